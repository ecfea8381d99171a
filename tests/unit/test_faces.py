"""What a user sees of remora: paths of public classes, and the verbs of the handles."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
import pytest

import remora
import remora.results
from remora import (
    Agent,
    Config,
    KeyedState,
    Message,
    Receipt,
    Runtime,
    Session,
    SharedMember,
    Turn,
    User,
    errors,
)
from remora.errors import RuntimeClosed
from tests.verbs import CALLS

FACES = (
    "remora",
    "remora.blocking",
    "remora.blocks",
    "remora.config",
    "remora.metrics",
    "remora.observe",
    "remora.results",
    "remora.storage.memory",
    "remora.storage.ports",
    "remora.testing",
    "remora.testing.simulation",
    "remora.transfer",
)
PUBLIC = {
    f"{face}.{name}": getattr(importlib.import_module(face), name)
    for face in reversed(FACES)
    for name in importlib.import_module(face).__all__
}
CLASSES = {path: thing for path, thing in PUBLIC.items() if isinstance(thing, type)}
STRUCTS = [path for path, one in CLASSES.items() if issubclass(one, msgspec.Struct)]

BESIDES: dict[type, str] = {
    Runtime: """
        config erasures from_file health in_memory internals message_tokens path reembedding
        reschedule session shared statistics user
    """,
    Session: "exclusive follow key state turn",
    Turn: "context key open_calls replayed replies resumed stream",
    User: "agent id session state tools",
    Agent: "name tools user",
    KeyedState: "",
    SharedMember: "scope who",
}
"""Public names that are no coroutines."""
VERBS = {
    kind: set(names.split())
    | {one.partition(".")[2] for one in CALLS if one.startswith(f"{kind.__name__}.")}
    for kind, names in BESIDES.items()
}
"""With those of which `tests.verbs` has a call, which a coroutine must have."""


def test_public_classes_show_their_public_path() -> None:
    """In reprs and tracebacks, and where a pickle looks for them. A name in two public modules has
    the shorter path.
    """
    for path, thing in CLASSES.items():
        one: Any = thing
        shown = f"{one.__module__}.{one.__qualname__}"
        assert shown in {path, f"remora.{one.__name__}"}
        assert PUBLIC[shown] is one
        assert pickle.loads(pickle.dumps(one)) is one
        assert shown in repr(one) or issubclass(one, Enum)


def test_annotations_of_structs_resolve() -> None:
    """In the module that defines the class, where its public module does not have the names; and
    when msgspec decodes, which resolves annotations when it first needs them.
    """
    for path in STRUCTS:
        hints = typing.get_type_hints(CLASSES[path])
        assert not any(isinstance(hint, str) for hint in hints.values()), path
        assert {field.name for field in msgspec.structs.fields(CLASSES[path])} <= set(hints), path
    for one in (Message(role="user", content="hi"), Receipt((1,), ("id",)), remora.BufferPolicy()):
        assert msgspec.json.decode(msgspec.json.encode(one), type=type(one)) == one
    assert Config.from_dict({"buffer": {"token_limit": 7}}).buffer.token_limit == 7


def returned(annotation: Any) -> list[type]:
    """The classes of remora that an annotation names, at any depth."""
    if parts := typing.get_args(annotation):
        return [one for part in parts for one in returned(part)]
    own = isinstance(annotation, type) and annotation.__module__.startswith("remora")
    return [annotation] if own else []


def test_what_methods_return_has_a_public_path() -> None:
    """So that an application can annotate what it keeps."""
    paths = {id(one) for one in CLASSES.values()}
    names = {"BackupReport": remora.results.BackupReport, "Progress": object}
    for handle, name in ((one, name) for one, verbs in VERBS.items() for name in verbs):
        verb = getattr(handle, name, None)
        verb = verb.fget if isinstance(verb, property) else getattr(verb, "__func__", verb)
        if name == "internals" or not callable(verb):
            continue
        verb = inspect.unwrap(verb)
        hints = typing.get_type_hints(verb, verb.__globals__ | names)
        for one in returned(hints.get("return")):
            assert id(one) in paths or one.__module__ in {"remora.errors", "remora.ids"}, (
                f"{handle.__name__}.{name}: {one}"
            )


def test_a_runtime_says_where_it_is_and_whether_it_is_open() -> None:
    assert repr(Runtime("/memory", config=Config())) == "Runtime('/memory', not opened)"
    runtime = Runtime.in_memory(config=Config())
    assert repr(runtime) == "Runtime(in memory, not opened)"
    alice = runtime.user("alice")
    assert repr(alice) == "User('alice', in memory, not opened)"
    assert repr(alice.session("one")) == "Session('alice', 'one', in memory, not opened)"
    assert repr(alice.agent("cook")) == "Agent('alice', 'cook', in memory, not opened)"
    scope = runtime.shared("team")
    assert repr(scope) == "SharedScope('team', in memory, not opened)"
    assert repr(scope.as_("zoe")) == "SharedMember('team', 'zoe', in memory, not opened)"


def test_errors_cross_processes() -> None:
    """A pool of processes pickles what a worker raises."""
    for error in (
        errors.MailboxFull("full", limit="bytes"),
        errors.NotGranted("no", scope="team", who="zoe"),
        errors.DirectoryLocked("locked", path=Path("memory"), pid=7, since=None),
        errors.NoDeadLetter("none", ids=("flush-7-120",)),
        errors.OwnerFailed("it ends at once", log="Traceback …"),
        errors.ProtocolMismatch("upgrade the owner", theirs=1, ours=2),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_public_verbs_are_the_listed_ones() -> None:
    """Nothing of the kernel is among what an editor completes."""
    for handle, verbs in VERBS.items():
        public = {name for name in dir(handle) if not name.startswith("_")}
        assert public == verbs, handle


IMPLEMENTATIONS = ("remora.storage.memory.", "remora.testing.simulation.")
"""Their methods are documented by the interfaces that they implement."""


def documented() -> Iterator[tuple[str, Any]]:
    """What a user meets of public modules: functions, classes, their methods and properties."""
    for path, thing in PUBLIC.items():
        if not isinstance(thing, (type, FunctionType)) or path.startswith(IMPLEMENTATIONS):
            continue
        yield path, thing
        for name, given in vars(thing).items() if isinstance(thing, type) else ():
            member = getattr(given, "__func__", given)
            if not name.startswith("_") and isinstance(member, (FunctionType, property)):
                yield f"{path}.{name}", member


def test_docstrings_are_for_callers() -> None:
    """The first line is a sentence of its own; no docstring has a code of a requirement, which
    means nothing to a reader.
    """
    for path, thing in documented():
        text = inspect.getdoc(thing) or ""
        first, _, rest = text.partition("\n")
        assert re.search(r"[\w`\")…][.:]{1,2}$", first), f"{path}: {first!r}"
        assert not rest or rest.startswith("\n"), f"{path}: the first line goes on"
        assert not re.search(r"\b(?:G\d+|S\d\.\d\d)\b", text), path


def test_a_closed_runtime_has_no_internals() -> None:
    """But its path and configuration."""
    runtime = Runtime("/memory", config=Config())
    assert str(runtime.path) == "/memory"
    assert runtime.config == Config()
    assert Runtime.in_memory(config=Config()).path is None
    with pytest.raises(RuntimeClosed, match="open the runtime first"):
        _ = runtime.internals
