"""Keyed state against a model: for each place a dict of values, and the versions that were used."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from remora import Config, KeyedState, Runtime, StateValue
from remora.errors import InvalidInput, StateConflict
from remora.storage.memory import MemoryJournal
from tests.harness import user

MAX_KEYS = 3
CONFIG = Config.from_dict(
    {
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
        "state": {"max_keys": MAX_KEYS},
        "activation": {"max_live": 1},  # every change of place restores an actor
    }
)
PLACES = ("user", "one", "two")
KEYS = ("a", "a/b", "b", "ü")

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)  # fmt: skip
places, keys = st.sampled_from(PLACES), st.sampled_from(KEYS)
versions = st.sampled_from([None, "present", "earlier", 0])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), places, keys, values, versions),
        st.tuples(st.just("set"), places, keys, values, versions),
        st.tuples(st.just("race"), places, keys, st.integers(2, 4)),
        st.tuples(st.just("delete"), places, keys, versions),
        st.tuples(st.sampled_from(["clear", "rewind", "say", "fork"]), st.sampled_from(PLACES[1:])),
        st.just(("restart",)),
    ),
    max_size=20,
)


@dataclass
class Place:
    """What a session or a user must have."""

    values: dict[str, tuple[Any, int]] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    """The largest version of each key, deleted ones included."""

    def version(self, key: str, wanted: object) -> int | None:
        """The version that a call gives."""
        present = self.values[key][1] if key in self.values else 0
        if wanted == "earlier":
            return max(self.used.get(key, 0) - 1, 1)
        return present if wanted == "present" else 0 if wanted == 0 else None

    def refuses(self, key: str, version: int | None) -> bool:
        present = self.values[key][1] if key in self.values else 0
        return version is not None and version != present

    def take(self, key: str, value: Any, version: int) -> None:
        """A call has set this."""
        assert version > self.used.get(key, 0)
        self.values[key] = (value, version)
        self.used[key] = version


def handle(runtime: Runtime, place: str) -> KeyedState:
    alice = runtime.user("alice")
    return alice.state if place == "user" else alice.session(place).state


async def outcome(call: Awaitable[StateValue | bool]) -> Any:
    """What a call returns, or its error."""
    try:
        return await call
    except (StateConflict, InvalidInput) as e:
        return e


def judge_conflict(error: StateConflict, model: Place, key: str, version: int | None) -> None:
    """A call was refused, rightly, and shows what is there."""
    present, number = model.values.get(key, (None, 0))
    assert model.refuses(key, version)
    assert (error.key, error.expected, error.actual, error.value) == (key, version, number, present)


async def set_value(
    state: KeyedState, model: Place, key: str, value: Any, version: int | None
) -> None:
    match await outcome(state.set(key, value, version=version)):
        case StateConflict() as error:
            judge_conflict(error, model, key, version)
        case InvalidInput():
            assert key not in model.values
            assert len(model.values) == MAX_KEYS
        case StateValue() as stored:
            assert not model.refuses(key, version)
            assert stored.value == value
            model.take(key, value, stored.version)


async def delete_value(state: KeyedState, model: Place, key: str, version: int | None) -> None:
    match await outcome(state.delete(key, version=version)):
        case StateConflict() as error:
            judge_conflict(error, model, key, version)
        case there:
            assert not model.refuses(key, version)
            assert there is (model.values.pop(key, None) is not None)


async def race(runtime: Runtime, place: str, model: Place, key: str, count: int) -> None:
    """Several handles give the same version: one succeeds."""
    version = model.values[key][1] if key in model.values else 0
    if not version and len(model.values) == MAX_KEYS:
        return
    outcomes: list[Any] = []

    async def attempt(number: int) -> None:
        state = handle(runtime, place)
        outcomes.append(await outcome(state.set(key, number, version=version)))

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(attempt, number)
    (stored,) = (one for one in outcomes if isinstance(one, StateValue))
    model.take(key, stored.value, stored.version)
    lost = [one for one in outcomes if one is not stored]
    assert [(one.actual, one.value) for one in lost] == [(stored.version, stored.value)] * len(lost)


async def change(runtime: Runtime, models: dict[str, Place], step: str, place: str) -> None:
    """Change the conversation, which leaves keyed state alone; or copy both."""
    chat = runtime.session("alice", place)
    match step:
        case "say":
            await chat.append(user("hello"))
        case "clear":
            await chat.clear()
        case "rewind":
            await chat.rewind(0)
        case "fork":
            copy = f"copy {len(models)}"
            await chat.fork(copy)
            source = models[place]
            models[copy] = Place(dict(source.values), dict(source.used))


async def compare(runtime: Runtime, models: dict[str, Place]) -> None:
    for place, model in models.items():
        state = handle(runtime, place)
        found = await state.items()
        assert [(one.key, one.value, one.version) for one in found] == [
            (key, *model.values[key]) for key in sorted(model.values)
        ]
        pages: list[StateValue] = []
        while page := await state.items(limit=1, after=pages[-1].key if pages else None):
            pages += page
        assert pages == found
        assert await state.items(prefix="a") == [one for one in found if one.key.startswith("a")]
        for key in KEYS:
            assert await state.get(key) == next((one for one in found if one.key == key), None)


async def play(program: list[Any]) -> None:
    models = {place: Place() for place in PLACES}
    journal = MemoryJournal()
    runtime = await Runtime.in_memory(config=CONFIG, journal=journal).start()
    try:
        for step in program:
            match step:
                case ("set", place, key, value, wanted):
                    version = models[place].version(key, wanted)
                    state = handle(runtime, place)
                    await set_value(state, models[place], key, value, version)
                case ("race", place, key, count):
                    await race(runtime, place, models[place], key, count)
                case ("delete", place, key, wanted):
                    version = models[place].version(key, wanted)
                    await delete_value(handle(runtime, place), models[place], key, version)
                case ("restart",):
                    await runtime.aclose()
                    runtime = await Runtime.in_memory(config=CONFIG, journal=journal).start()
                case (what, place):
                    await change(runtime, models, what, place)
        await compare(runtime, models)
    finally:
        await runtime.aclose()


@given(steps)
def test_keyed_state(program: list[Any]) -> None:
    """Values are what was set last; a version that is not the present one writes nothing, and none
    is used twice for a key, by a deleted value or after a restart either; of a race, one wins.
    """
    anyio.run(play, program)
