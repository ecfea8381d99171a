"""The target of a worker's connection, in a form that another process can load as well."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from remora.api.base import holder_of
from remora.api.runtime import Runtime
from remora.api.shards import options_of
from remora.config import Config, Secret
from remora.errors import ConfigError, InvalidInput
from remora.services.arguments import check_directory

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_FILES = frozenset({".yaml", ".yml", ".toml", ".json"})
_EXAMPLE = 'write a function at the top level of a module, and its name: "myapp.memory:runtime"'


class Target(msgspec.Struct, frozen=True):
    """A target that was read.

    Attributes:
        text: with absolute paths.
        runtime: as the target describes it, not opened.
        directory: of the memory, absolute.
        digest: of the configuration.
    """

    text: str
    runtime: Runtime
    directory: Path
    digest: str

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.runtime.config


def read_target(target: object) -> Target:
    """The runtime that a target describes; nothing is opened.

    Args:
        target: ``"module:function"``, whose function takes no arguments and returns a `Runtime`
            that is not open; the path of a configuration file; or a memory directory, for the
            configuration of the environment.

    Raises:
        InvalidInput: it is none of these, or looks like a function's name and is none, or the
            runtime cannot be made in another process.
        ConfigError: the configuration is not valid.
    """
    if not isinstance(target, (str, os.PathLike)):
        raise _not_a_name(target)
    text = os.fspath(target)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f"{text!r} is no target: {_EXAMPLE}, or the path of a directory")
    if isinstance(target, str) and _FACTORY.fullmatch(text) and not Path(text).exists():
        runtime = _call_factory(text)
    else:
        path = _check_path(text) if isinstance(target, str) else check_directory(target, "target")
        path = path.absolute()
        text = str(path)
        if path.suffix in _FILES and not path.is_dir():
            runtime = Runtime.from_file(path)
        elif path.is_file():
            raise InvalidInput(f"{path} is a file: a configuration ends in {', '.join(_FILES)}")
        else:
            runtime = Runtime(path)
    _check_crosses(runtime, text)
    directory = runtime.path
    assert directory is not None
    return Target(text, runtime, directory.absolute(), digest_of(runtime.config))


def _check_path(text: str) -> Path:
    """The path that a text is meant as; a new directory would have no hooks of a function's.

    Raises:
        InvalidInput: it looks like a function's name.
    """
    path = check_directory(text, "target")
    if path.suffix in _FILES or path.exists():
        return path
    if ":" in text:
        raise InvalidInput(
            f"{text!r} is neither module:function nor a path that exists: {_EXAMPLE}; if you mean "
            "a directory of this name, make it first"
        )
    if _DOTTED.fullmatch(text):
        module, _, name = text.rpartition(".")
        raise InvalidInput(
            f'{text!r} is no path that exists; if you mean a function, write "{module}:{name}", '
            f'and if you mean a new directory, "./{text}"'
        )
    return path


def digest_of(config: Config) -> str:
    """A digest of a configuration, secrets included."""
    data = msgspec.json.encode(config, enc_hook=_reveal, order="sorted")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _reveal(value: object) -> str:
    assert isinstance(value, Secret)
    return value.reveal()


def _not_a_name(target: object) -> InvalidInput:
    """The error for an object: another process cannot get it."""
    if isinstance(target, Runtime):
        return InvalidInput(
            "connect takes a name, because another process makes the runtime: move Runtime(…) into "
            'a function that returns it, and write remora.connect("myapp.memory:runtime")'
        )
    if isinstance(target, Config):
        return InvalidInput(
            "connect takes a name, because another process reads the configuration: write the path "
            'of the file, remora.connect("remora.yaml")'
        )
    module = getattr(target, "__module__", None)
    name = getattr(target, "__qualname__", "")
    if inspect.isfunction(target) and "<" not in name and module and module != "__main__":
        return InvalidInput(
            f'connect takes a name, because another process calls it: write "{module}:{name}"'
        )
    what = "a lambda" if name.endswith("<lambda>") else f"an object ({type(target).__name__})"
    return InvalidInput(f"connect takes a name, not {what}, which no other process has: {_EXAMPLE}")


def _call_factory(text: str) -> Runtime:
    module_name, _, name = text.partition(":")
    if module_name == "__main__":
        raise InvalidInput(
            f"{text}: __main__ is another program in the owner; move the function into a module "
            'of its own, and write "that_module:function"'
        )
    try:
        factory: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module_name}.".startswith(f"{e.name}."):
            raise
        raise InvalidInput(
            f"{text}: there is no module {e.name!r} in {Path.cwd()} or in sys.path "
            f"({len(sys.path)} places); a target is module:function, or the path of a directory"
        ) from None
    for part in name.split("."):
        if not hasattr(factory, part):
            raise InvalidInput(f"{text}: module {module_name} has no {name}")
        factory = getattr(factory, part)
    return _make(factory, text)


def _make(factory: Callable[[], object], text: str) -> Runtime:
    if isinstance(factory, Runtime):
        raise InvalidInput(
            f"{text} is a Runtime, and each process must make its own: name a function that "
            "returns a new one"
        )
    if not callable(factory):
        raise InvalidInput(f"{text} is no function, but of type {type(factory).__name__}")
    try:
        runtime = factory()
    except TypeError as e:
        try:
            inspect.signature(factory).bind()
        except TypeError as wrong:
            raise InvalidInput(f"{text} is called without arguments: {wrong}") from e
        except ValueError:  # it has no signature
            pass
        raise
    if inspect.iscoroutine(runtime):
        runtime.close()
        raise InvalidInput(f"{text} is a coroutine function: write `def`, making does no I/O")
    if not isinstance(runtime, Runtime):
        raise InvalidInput(
            f"{text} returned {type(runtime).__name__}: it must return a remora.Runtime"
        )
    return runtime


def _check_crosses(runtime: Runtime, text: str) -> None:
    """Check that an owner can open what the factory made.

    Raises:
        InvalidInput: it cannot.
    """
    options = options_of(runtime)
    if options.path is None:
        raise InvalidInput(
            f"{text} makes a runtime in memory, which workers cannot share: give it a directory"
        )
    for name in ("journal", "store"):
        if getattr(options, name) is not None:
            raise InvalidInput(
                f"{text} passes {name}= to its Runtime, which shards cannot share: leave it out, "
                "or open that Runtime in a single process"
            )
    if holder_of(runtime).phase != "not opened":
        raise InvalidInput(
            f"{text} returns a runtime that was opened: return a new one, without entering it"
        )
    if options.config.journal.durability == "none":
        raise ConfigError(
            "journal.durability none promises nothing when an owner dies: choose process or power",
            key="journal.durability",
        )
