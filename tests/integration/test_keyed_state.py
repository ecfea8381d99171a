"""Keyed state over the real stores: bounds, races, and what other features do with it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import remora.blocking
from remora import Config, KeyedState, Runtime
from remora.api.keyed_state import adapter_state
from remora.errors import (
    CommitFailed,
    InvalidExport,
    InvalidId,
    InvalidInput,
    JournalDamaged,
    RedactionFailed,
    StateConflict,
    TooManyKeys,
)
from remora.maintenance.backup import backup
from remora.maintenance.repair import repair
from remora.maintenance.verify import verify
from remora.testing import CommitFault, FaultyJournal, VirtualClock
from tests.harness import user
from tests.programs import run_command_aside
from tests.simulation.rare import reaching
from tests.sqlite import change_rows

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

TREE: dict[str, Any] = {
    "models": {"embedder": "none"},
    "tokens": {"counter": "heuristic"},
    "long_term": {"shards": 2, "batch_ms": 1},
    "state": {
        "max_keys": 4,
        "max_value_bytes": 200,
        "adapter_max_keys": 3,
        "adapter_max_value_bytes": 400,
    },
}
CONFIG = Config.from_dict(TREE)
CART = {"items": [{"sku": "canary-7", "count": 2}], "coupon": None, "total": 12.5}


def opened(place: Path, **options: Any) -> Runtime:
    return Runtime(place, config=CONFIG, **options)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with opened(tmp_path / "memory") as runtime:
        yield runtime


def both(runtime: Runtime) -> tuple[KeyedState, KeyedState]:
    """The state of a session, and of its user."""
    return runtime.session("alice", "one").state, runtime.user("alice").state


async def test_a_value_is_stored_as_it_was_given(tmp_path: Path) -> None:
    """Of a session and of a user, each its own; copied in and out; there after a restart."""
    clock = VirtualClock()
    async with opened(tmp_path, clock=clock) as runtime:
        for state in both(runtime):
            given = {**CART, "place": repr(state)[:20]}
            wanted = dict(given)
            stored = await state.set("cart", given)
            given["items"] = "changed by the caller"
            stored.value["total"] = "changed by the caller"
            found = await state.get("cart")
            assert found is not None
            assert found.value == wanted
            assert (found.key, found.version) == ("cart", 1)
            assert found.updated_at == datetime.fromtimestamp(int(clock.time()), UTC)
            assert await state.get("none such") is None
            assert await state.set("tuple", ("a", 1)) == await state.get("tuple")
    async with opened(tmp_path) as runtime:
        for state in both(runtime):
            found = await state.get("cart")
            assert found is not None
            assert found.value == {**CART, "place": found.value["place"]}
            assert (await state.get("tuple")).value == ["a", 1]  # type: ignore[union-attr]
        assert await runtime.user("bob").state.items() == []
        assert await runtime.session("bob", "one").state.items() == []
        assert await runtime.session("alice", "two").state.items() == []


BAD_VALUES: tuple[object, ...] = (
    float("nan"), float("inf"), {1: "a"}, {"a": {None: 1}}, {1, 2}, b"bytes", object(), 1 << 63,
    10**5000, "\ud800", {"\ud800": 1}, datetime.now(UTC), "x" * 201, ["ab"] * 60, ["x"] * 100_000,
)  # fmt: skip


async def test_what_cannot_be_kept_is_refused(runtime: Runtime) -> None:
    """Before anything is written, with an error of remora's."""
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    endless: list[Any] = []
    endless.append(endless)
    for state in both(runtime):
        kept = await state.set("kept", 1)
        for bad in (*BAD_VALUES, deep, endless):
            with pytest.raises(InvalidInput):
                await state.set("kept", bad)
        keys: tuple[Any, ...] = ("", None, 7, "a\nb", "\ud800", "k" * 513, b"k")
        for key in keys:
            for verb, more in ((state.get, ()), (state.delete, ()), (state.set, (1,))):
                call: Callable[..., Awaitable[Any]] = verb
                with pytest.raises(InvalidId):
                    await call(key, *more)
        versions: tuple[Any, ...] = (-1, True, "1", 1.0, 1 << 62)
        for version in versions:
            with pytest.raises(InvalidInput):
                await state.set("kept", 2, version=version)
            with pytest.raises(InvalidInput):
                await state.delete("kept", version=version)
        pages: tuple[dict[str, Any], ...] = ({"prefix": 1}, {"limit": 0}, {"after": 3})
        for page in pages:
            with pytest.raises(InvalidInput):
                await state.items(**page)
        assert await state.items() == [kept]


async def test_several_keys_in_one_write(runtime: Runtime) -> None:
    """Set and deleted together, with versions of their own; or none of them, where a version does
    not hold, one value is too large, or there is one key too many.
    """
    for state in both(runtime):
        await state.set("old", 1)
        made = await state.change({"a": [1], "b": {"x": 2}}, delete=["old", "never"])
        assert {key: (one.value, one.version) for key, one in made.items()} == {
            "a": ([1], 2),
            "b": ({"x": 2}, 3),
        }
        assert await state.change({}, delete=["never"]) == {}
        assert await state.get_many(["b", "old", "a"]) == made
        with pytest.raises(StateConflict) as caught:
            await state.change({"a": 10, "c": 3}, versions={"c": 0, "b": 1})
        assert (caught.value.key, caught.value.expected, caught.value.actual) == ("b", 1, 3)
        for bad, told in (
            ({"c": 1, "d": "x" * 300}, r"state\.max_value_bytes"),
            ({"c": 1, "d": 1, "e": 1}, r"state\.max_keys"),
            ({"c": 1, "": 1}, None),
            ({"c": 1, "d": object()}, None),
        ):
            with pytest.raises(InvalidInput, match=told):
                await state.change(bad)
        with pytest.raises(InvalidInput, match="both set and deleted"):
            await state.change({"c": 1}, delete=["c"])
        assert [one.key for one in await state.items()] == ["a", "b"]
        # a key that is deleted makes room for another, and others can be changed
        await state.change({"b": 2, "c": 1, "d": 1, "e": 1}, delete=["a"])
        with pytest.raises(InvalidInput, match=r"state\.max_keys"):
            await state.set("f", 1)
        assert [one.key for one in await state.items()] == ["b", "c", "d", "e"]


async def test_compare_and_set(runtime: Runtime) -> None:
    """A version that is not the present one writes nothing; the error has what is there."""
    with reaching("state_version_stale"):
        for state in both(runtime):
            first = await state.set("step", "one", version=0)
            second = await state.set("step", "two", version=first.version)
            for version, attempt in (
                (0, state.set("step", "x", version=0)),
                (first.version, state.set("step", "x", version=first.version)),
                (first.version, state.delete("step", version=first.version)),
                (0, state.delete("step", version=0)),
            ):
                with pytest.raises(StateConflict) as caught:
                    await attempt
                error = caught.value
                assert (error.key, error.expected, error.actual, error.value) == (
                    "step", version, second.version, "two",
                )  # fmt: skip
                assert "two" not in str(error)
            assert await state.items() == [second]
            assert await state.delete("step", version=second.version)
            assert not await state.delete("step", version=0)
            with pytest.raises(StateConflict) as caught:
                await state.set("step", "x", version=second.version)
            assert (caught.value.actual, caught.value.value) == (0, None)
            again = await state.set("step", "three", version=0)
            assert again.version > second.version


async def test_of_several_that_give_one_version_one_succeeds(tmp_path: Path) -> None:
    """Over several handles, round after round: a counter loses no increment. Also where they change
    different keys and compare a common one.
    """
    async with opened(tmp_path) as runtime:

        async def count(number: int) -> None:
            state, times = runtime.session("alice", "one").state, 6
            while times:
                present = await state.get("counter")
                value, version = (present.value, present.version) if present else (0, 0)
                try:
                    await state.change(
                        {f"k{number % 2}": value, "counter": value + 1},
                        versions={"counter": version},
                    )
                except StateConflict:
                    continue
                else:
                    times -= 1

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(count, number)
        found = await runtime.session("alice", "one").state.get_many(["counter", "k0", "k1"])
        assert found["counter"].value == 30
        assert max(found["k0"].value, found["k1"].value) == 29


async def test_a_conflict_shows_what_is_durable_only() -> None:
    """The loser of a race hears of the winner's value when that is stored, and not before: if it is
    not, neither has an effect, and both are told so.
    """
    faults: list[CommitFault] = []
    journal = FaultyJournal(lambda: faults.pop() if faults else None)
    async with Runtime.in_memory(config=CONFIG, journal=journal) as runtime:
        state = runtime.session("alice", "one").state
        first = await state.set("step", "one")
        faults.append("refused")
        failed: list[type[Exception]] = []

        async def attempt(value: str) -> None:
            try:
                await state.set("step", value, version=first.version)
            except Exception as e:
                failed.append(type(e))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, "two")
            tasks.start_soon(attempt, "three")
        assert failed == [CommitFailed, CommitFailed]
        assert await state.get("step") == first
        assert (await state.set("step", "four", version=first.version)).value == "four"


async def test_pages(runtime: Runtime) -> None:
    """In the order of keys, by prefix, behind a key that may be gone by then, or before one."""
    state = runtime.user("alice").state
    for key in ("b/2", "a", "b/1", "ß"):
        await state.set(key, key)
    assert [one.key for one in await state.items()] == ["a", "b/1", "b/2", "ß"]
    assert [one.key for one in await state.items(backward=True)] == ["ß", "b/2", "b/1", "a"]
    assert [one.key for one in await state.items(prefix="b/")] == ["b/1", "b/2"]
    (last,) = await state.items(prefix="b/", limit=1, backward=True)
    assert last.key == "b/2"
    (first,) = await state.items(prefix="b/", after=last.key, backward=True)
    assert [first] == await state.items(prefix="b/", limit=1)
    await state.delete(first.key)
    assert [one.key for one in await state.items(after=first.key)] == ["b/2", "ß"]
    assert await state.items(after="ß") == []


async def test_it_is_no_part_of_the_conversation(runtime: Runtime) -> None:
    """Clearing, rewinding, restoring and pruning leave it; no context shows it; a session that has
    nothing else is not listed.
    """
    chat = runtime.session("alice", "one")
    stored = await chat.state.set("cart", CART)
    assert await runtime.user("alice").sessions() == []
    await chat.append([user("hello"), user("again")])
    assert "canary" not in json.dumps((await chat.load(query="canary")).messages)
    await chat.rewind(1)
    await chat.load_state_dict({"messages": [user("restored")]})
    await chat.clear()
    await chat.truncate_to_size(0)
    assert await chat.state.items() == [stored]
    assert (await chat.stats()).state_keys == 1
    await runtime.user("alice").state.set("units", "metric")
    await runtime.user("bob").state.set("units", "metric")
    assert (await runtime.user("alice").stats()).state_keys == 2
    assert (await runtime.user("alice").inspect()).state_keys == 1
    assert (await runtime.counts()).state_keys == 3


async def test_a_fork_has_a_copy(runtime: Runtime) -> None:
    """With its versions; the two change apart. An existing session is not overwritten."""
    for messages in ([], [user("hello"), user("again")]):
        chat = runtime.session("alice", f"chat {len(messages)}")
        if messages:
            await chat.append(messages)
        stored = await chat.state.set("cart", CART)
        await chat.state.set("gone", 1)
        await chat.state.delete("gone")
        copy = await chat.fork(f"copy {len(messages)}", at=1 if messages else None)
        assert await copy.state.items() == [stored]
        assert (await copy.state.set("gone", 2)).version == 3
        await copy.state.set("cart", "changed", version=stored.version)
        assert await chat.state.items() == [stored]
        assert [one.content for one in await copy.history()] == ["hello"] * bool(messages)
        with pytest.raises(InvalidInput, match="keyed state already"):
            await chat.fork(copy.key.session)
    await runtime.session("alice", "state only").state.set("a", 1)
    with pytest.raises(InvalidInput):
        await runtime.session("alice", "chat 2").fork("state only")


async def test_redaction(tmp_path: Path) -> None:
    """The hook gets every text in a value, and no key; its failure writes nothing. Of an import as
    well, and of what adapters keep, unless that is encoded bytes: changed, they could not be
    decoded.
    """

    def hide(text: str) -> str:
        if text == "fails":
            raise ValueError(text)
        return text.replace("secret", "***")

    given, hidden = {"secret": ["my secret", 7]}, {"secret": ["my ***", 7]}
    async with opened(tmp_path / "here") as runtime:
        for state in both(runtime):
            await state.set("secret", given)
        chat = runtime.session("alice", "one")
        await adapter_state(chat, "test").set("a", "a secret")
        await adapter_state(chat, "test", opaque=True).set("a", "a secret")
        await runtime.export(tmp_path / "export.jsonl")
    async with opened(tmp_path / "there", redact=hide) as runtime:
        await runtime.import_(tmp_path / "export.jsonl")
        for name in ("one", "two"):
            chat = runtime.session("alice", name)
            if name == "two":
                await chat.state.set("secret", given)
                await adapter_state(chat, "test").set("a", "a secret")
                await adapter_state(chat, "test", opaque=True).set("a", "a secret")
            with pytest.raises(RedactionFailed):
                await chat.state.set("secret", ["fails"])
            assert [(one.key, one.value) for one in await chat.state.items()] == [
                ("secret", hidden)
            ]
            for opaque, kept in ((False, "a ***"), (True, "a secret")):
                (one,) = await adapter_state(chat, "test", opaque=opaque).items()
                assert one.value == kept
        assert [one.value for one in await runtime.user("alice").state.items()] == [hidden]


async def test_an_evicted_actor_comes_back(tmp_path: Path) -> None:
    """With one actor in memory, each change of place restores an actor from the journal."""
    config = Config.from_dict({**TREE, "activation": {"max_live": 1}})
    async with Runtime(tmp_path, config=config) as runtime:
        for number in range(3):
            for state in both(runtime):
                assert (await state.set("step", number)).version == number + 1
        for state in both(runtime):
            await state.delete("step")
        for state in both(runtime):
            assert (await state.set("step", "new")).version == 4


async def test_the_log_says_that_a_bound_is_near(caplog: pytest.LogCaptureFixture) -> None:
    """Of the number of keys once, when it is passed; of a value each time that it is set."""
    state = {"max_keys": 10, "max_value_bytes": 100}
    async with Runtime.in_memory(config=Config.from_dict({**TREE, "state": state})) as runtime:
        kept = runtime.session("alice", "chat").state
        for number in range(7):
            await kept.set(f"{number}", 0)
        await kept.set("0", "x" * 70)
        assert not caplog.records
        await kept.change({"7": 0, "8": 0})
        await kept.set("9", "x" * 80)
        with pytest.raises(TooManyKeys) as raised:
            await kept.set("10", 0)
        assert raised.value.limit == 10
    lines = [line.split(" session=") for line in caplog.messages]
    assert [line[0] for line in lines] == [
        "event=state_keys_near_limit",
        "event=state_value_near_limit",
    ]
    key = runtime.session("alice", "chat").key.pseudonym
    assert [line[1] for line in lines] == [
        f"{key} keys=9 setting=state.max_keys",
        f"{key} bytes=82 setting=state.max_value_bytes",
    ]


async def test_adapters_have_keys_of_their_own(tmp_path: Path) -> None:
    """With bounds of their own; the application neither sees nor writes them."""
    async with opened(tmp_path / "memory") as runtime:
        chat = runtime.session("alice", "chat")
        kept = adapter_state(chat, "test")
        await kept.change({"a": "x" * 300, "b": 1, "c": 2})
        await chat.state.change({"a": 0, "b": 0, "c": 0, "d": 0})
        with pytest.raises(InvalidInput, match=r"state\.adapter_max_keys allows 3"):
            await kept.set("d", 1)
        with pytest.raises(InvalidInput, match=r"state\.adapter_max_value_bytes"):
            await kept.set("a", "x" * 500)
        with pytest.raises(InvalidInput, match=r"state\.max_keys allows 4"):
            await chat.state.set("e", 1)
        assert [one.key for one in await chat.state.items()] == ["a", "b", "c", "d"]
        assert [one.key for one in await kept.items()] == ["a", "b", "c"]
        with pytest.raises(InvalidId):
            await chat.state.set("remora.adapters/test/a", 1)
        assert await chat.state.items(prefix="remora.adapters/") == []
        copy = await chat.fork("copy")
        assert await adapter_state(copy, "test").get("b") == await kept.get("b") is not None
        await runtime.export(tmp_path / "all.jsonl")
    async with opened(tmp_path / "other") as runtime:
        await runtime.import_(tmp_path / "all.jsonl")
        kept = adapter_state(runtime.session("alice", "chat"), "test")
        assert [one.key for one in await kept.items()] == ["a", "b", "c"]


async def test_sessions_that_have_state_alone_are_listed_if_asked_for(tmp_path: Path) -> None:
    """In memory and in SQLite, page by page."""
    for runtime in (Runtime.in_memory(config=CONFIG), opened(tmp_path)):
        async with runtime:
            alice = runtime.user("alice")
            await alice.session("said").append(user("hello"))
            await alice.session("kept").state.set("step", 1)
            assert [one.session for one in await alice.sessions()] == ["said"]
            page = await alice.sessions(order="name", limit=1, empty=True)
            assert [(one.session, one.messages) for one in page] == [("kept", 0)]
            page = await alice.sessions(order="name", after=page[-1].cursor, empty=True)
            assert [one.session for one in page] == ["said"]


@pytest.mark.parametrize("name", ["export.jsonl", "export"])
async def test_exports_carry_it(tmp_path: Path, name: str) -> None:
    """Of sessions with and without messages, and of users; with versions and times."""
    async with opened(tmp_path / "here") as runtime:
        for state in both(runtime):
            await state.set("cart", CART)
            await state.set("gone", 1)
            await state.delete("gone")
        await runtime.session("alice", "two").append(user("hello"))
        await runtime.session("alice", "two").state.set("step", 2)
        before = [await state.items() for state in both(runtime)]
        report = await runtime.export(tmp_path / name)
        assert (report.sessions, report.users) == (2, 1)
    async with opened(tmp_path / "there") as runtime:
        await runtime.import_(tmp_path / name)
        assert [await state.items() for state in both(runtime)] == before
        assert [one.value for one in await runtime.session("alice", "two").state.items()] == [2]
        for state in both(runtime):
            assert (await state.set("gone", 2)).version == 3
        await runtime.import_(tmp_path / name, skip_existing=True)
        assert [one.key for one in await both(runtime)[1].items()] == ["cart", "gone"]


async def test_an_import_adds_to_a_user(tmp_path: Path) -> None:
    """What the user has stays; what is added has versions that were not used here."""
    async with opened(tmp_path / "here") as runtime:
        state = runtime.user("alice").state
        await state.set("cart", "theirs")
        await state.set("step", "theirs")
        await runtime.export(tmp_path / "export.jsonl")
    async with opened(tmp_path / "there") as runtime:
        state = runtime.user("alice").state
        mine = await state.set("cart", "mine")
        gone = await state.set("step", "gone")
        await state.delete("step")
        await runtime.import_(tmp_path / "export.jsonl")
        assert await state.get("cart") == mine
        found = await state.get("step")
        assert found is not None
        assert found.value == "theirs"
        assert found.version > gone.version


async def test_one_session_is_moved(runtime: Runtime) -> None:
    """`Session.export` and `User.import_session`, of a session without messages as well."""
    chat = runtime.session("alice", "one")
    with pytest.raises(InvalidInput, match="no messages and no state"):
        await chat.export()
    stored = await chat.state.set("cart", CART)
    moved = await runtime.user("bob").import_session(await chat.export())
    assert await moved.state.items() == [stored]
    with pytest.raises(InvalidInput):
        await runtime.user("bob").import_session(await chat.export())


async def test_an_import_is_checked(tmp_path: Path) -> None:
    """Values beyond this runtime's bounds, and what is no value, are refused before a write."""
    async with opened(tmp_path / "here") as runtime:
        for state in both(runtime):
            await state.set("cart", CART)
            await state.set("step", 1)
        await runtime.export(tmp_path / "export.jsonl")
    text = (tmp_path / "export.jsonl").read_text()
    for number, (bounds, change) in enumerate(
        (
            ({"max_keys": 1}, text),
            ({"max_value_bytes": 10}, text),
            ({}, text.replace('"keyed","name":"step"', '"keyed","name":"a\\u0007"')),
            ({}, text.replace('"keyed","name":"step"', '"keyless","name":"step"')),
        )
    ):
        changed = tmp_path / f"changed-{number}.jsonl"
        changed.write_text(change)
        assert bounds or change != text
        config = Config.from_dict({**TREE, "state": {**TREE["state"], **bounds}})
        async with Runtime(tmp_path / f"there {number}", config=config) as runtime:
            with pytest.raises(InvalidExport):
                await runtime.import_(changed)
            assert (await runtime.counts()).users == 0


def holds(directory: Path, needle: bytes) -> list[str]:
    """The files with these bytes, the write-ahead log included."""
    return [
        str(path) for path in directory.rglob("*") if path.is_file() and needle in path.read_bytes()
    ]


@pytest.mark.parametrize("whole", [True, False])
async def test_forgetting_leaves_no_byte(tmp_path: Path, whole: bool) -> None:
    """Neither of present values nor of those before them; what is not forgotten stays."""
    async with opened(tmp_path) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("one")
        kept = await runtime.user("bob").state.set("kept", "bob's")
        for state in (chat.state, *([alice.state] if whole else [])):
            await state.set("canary-key", "canary-before")
            await state.set("canary-key", CART)
            await state.set("canary-gone", "canary-gone")
            await state.delete("canary-gone")
        mine = await alice.state.set("mine", "the user's")
        assert holds(tmp_path, b"canary")
        await (alice.forget() if whole else chat.forget())
        assert holds(tmp_path, b"canary") == []
        assert await chat.state.items() == []
        assert await alice.state.items() == ([] if whole else [mine])
        assert await runtime.user("bob").state.items() == [kept]
        assert await chat.state.set("canary-key", 1)
    async with opened(tmp_path) as runtime:
        assert await runtime.user("bob").state.items() == [kept]


async def test_backup_verify_and_repair(tmp_path: Path) -> None:
    """A backup has it; a damaged value is found, makes its session alone unreadable, and can be
    dropped.
    """
    async with opened(tmp_path / "memory") as runtime:
        stored = [await state.set("cart", CART) for state in both(runtime)]
        await backup(tmp_path / "memory", tmp_path / "copy", CONFIG)
    assert (await verify(tmp_path / "copy", CONFIG)).clean
    changed = "UPDATE state_items SET value = x'93010201' WHERE kind = 'keyed' AND sid = 1"
    await change_rows(tmp_path / "copy" / "journal.db", changed)
    assert not (await verify(tmp_path / "copy", CONFIG)).clean
    async with opened(tmp_path / "copy") as runtime:
        with pytest.raises(JournalDamaged):
            await both(runtime)[0].items()
        assert await both(runtime)[1].items() == stored[1:]
    await repair(tmp_path / "copy", CONFIG, drop_damaged=True)
    assert (await verify(tmp_path / "copy", CONFIG)).clean
    async with opened(tmp_path / "copy") as runtime:
        assert await both(runtime)[0].items() == []


async def test_commands_count_keys_and_print_no_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`show` and `stats`, as text and as JSON, of a session that has nothing else as well."""
    monkeypatch.setenv("REMORA_MODELS__EMBEDDER", "none")
    monkeypatch.setenv("REMORA_TOKENS__COUNTER", "heuristic")
    async with opened(tmp_path) as runtime:
        for state in both(runtime):
            await state.set("cart", CART)
        await runtime.user("alice").state.set("step", 1)

    async def run(*arguments: str) -> str:
        capsys.readouterr()
        line = [*arguments, "--dir", str(tmp_path)]
        assert await run_command_aside(*line) == 0
        out = capsys.readouterr().out
        assert "canary" not in out
        return out

    assert "keyed state: 1 key\n" in await run("show", "alice", "one")
    assert json.loads(await run("show", "alice", "one", "--json"))["state_keys"] == 1
    assert json.loads(await run("stats", "alice", "one", "--json"))["state_keys"] == 1
    assert json.loads(await run("stats", "alice", "--json"))["state_keys"] == 3
    assert json.loads(await run("stats", "--json"))["state_keys"] == 3
    assert re.search(r"keys of keyed state +3 *\n", await run("stats", "alice"))
    assert re.search(r"keys of keyed state +1 *\n", await run("stats", "alice", "one"))


async def test_logs_hold_no_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG level either, the statements of SQLite included."""
    caplog.set_level(logging.DEBUG)
    async with opened(tmp_path) as runtime:
        for state in both(runtime):
            await state.set("cart", CART)
            with pytest.raises(StateConflict):
                await state.set("cart", CART, version=0)
            await state.items()
    assert "canary" not in caplog.text


def test_threads(tmp_path: Path) -> None:
    """`remora.blocking` has the same verbs."""
    with remora.blocking.Runtime(tmp_path, config=CONFIG) as runtime:
        for state in (runtime.session("alice", "one").state, runtime.user("alice").state):
            stored = state.set("cart", CART, version=0)
            assert state.get("cart") == stored
            with pytest.raises(StateConflict):
                state.set("cart", 1, version=0)
            assert state.items() == [stored]
            assert state.delete("cart", version=stored.version)
