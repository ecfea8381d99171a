"""What recorded memories are now: the same answer from a thread as from the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import Memory
from remora.messages import encode_message
from remora.recall import current
from remora.recall.current import CurrentMemories
from remora.recall.memory import sort_by_importance
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.log import commit_records
from remora.storage import standings
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.storage.records import (
    Appended,
    BufferMoved,
    MemoryItem,
    Opened,
    Remembered,
    Watermarks,
)

STEPS = ("memories", "facts", "removed_messages", "comparing", "never")
"""What an erasure comes before."""

SESSIONS = ("", "one", "two")
BLANK = Memory("", "user", "", "", 0, datetime.fromtimestamp(0, UTC), 0.0, {}, 0)

items = st.builds(
    lambda session, kind, importance, at_us, topic, sources: MemoryItem(
        "",
        session,
        "",
        "something",
        kind,
        importance,
        at_us,
        3,
        topic=topic if session else "",
        sources=tuple(sorted(sources)) if session and topic else (),
    ),
    st.sampled_from(SESSIONS),
    st.sampled_from(["fact", "preference"]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 3),
    st.sampled_from(["", "home", "pet"]),
    st.sets(st.integers(1, 4), max_size=3),
)
worlds = st.tuples(
    st.lists(items, max_size=12),
    st.sets(st.tuples(st.sampled_from(SESSIONS[1:]), st.integers(1, 4))),  # messages taken out
    st.sets(st.integers(0, 11)),  # memories that only the index has
)


class ErasingJournal(MemoryJournal):
    """Somebody erases a session, or the user, right before one of its answers."""

    def __init__(self, step: str, session: str | None) -> None:
        super().__init__()
        self._step, self._session = step, session

    async def reach(self, step: str) -> None:
        if step == self._step:
            await self.erase("ann", self._session)

    async def memories(self, user: str, ids: Sequence[str] | None = None) -> Sequence[MemoryItem]:
        await self.reach("memories")
        return await super().memories(user, ids)

    async def facts(self, *arguments: Any, **options: Any) -> Sequence[MemoryItem]:
        await self.reach("facts")
        return await super().facts(*arguments, **options)

    async def removed_messages(self, *arguments: Any) -> Any:
        await self.reach("removed_messages")
        return await super().removed_messages(*arguments)


def named(given_items: Sequence[MemoryItem]) -> list[MemoryItem]:
    return [msgspec.structs.replace(one, id=f"{n:032x}") for n, one in enumerate(given_items)]


def rows_of(made: Sequence[MemoryItem]) -> list[Memory]:
    """What an index may have found: every memory, one of a text before, and messages."""
    found = [msgspec.structs.replace(BLANK, id=one.row_id, type=one.type) for one in made]
    old = [msgspec.structs.replace(one, id=f"{one.id}.7") for one in found[:2]]
    said = [
        msgspec.structs.replace(BLANK, id=f"said-{n}", session="one", seq=n) for n in range(1, 4)
    ]
    return [one for group in zip(found, found[::-1], strict=True) for one in group] + old + said


async def fill(journal: MemoryJournal, made: Sequence[MemoryItem], removed: Any) -> None:
    await commit_records(journal, [Opened(1, "ann", "", 0), Remembered(1, tuple(made), ())])
    for sid, session in enumerate(SESSIONS[1:], start=2):
        entries = [encode_message({"role": "user", "content": "hello"})[0] for _ in range(4)]
        said = tuple(one.with_seq(seq) for seq, one in enumerate(entries, start=1))
        gone = tuple(seq for where, seq in sorted(removed) if where == session)
        key = SessionKey("ann", session)
        moved = BufferMoved(sid, Watermarks(), at_seq=4, removed=gone)
        await commit_records(journal, [Opened(sid, *key, 0), Appended(sid, said, None), moved])


async def answer(
    large: bool, world: Any, step: str, session: str | None, options: dict[str, Any]
) -> list[Memory]:
    """What the comparison says."""
    given_items, removed, unknown = world
    made = named(given_items)
    journal = ErasingJournal(step, session)
    journal.instance = "abcdef"

    async def run(_: bool, function: Callable[..., Any], *arguments: Any) -> Any:
        await journal.reach("comparing")
        return await run_in_thread_if(large, function, *arguments)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.run)
        await fill(journal, [one for n, one in enumerate(made) if n not in unknown], removed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(current, "run_in_thread_if", run)
            patch.setattr(standings, "run_in_thread_if", run)
            found = await CurrentMemories(journal)("ann", rows_of(made), **options)
        tasks.cancel_scope.cancel()
    return found


@given(
    worlds,
    st.sampled_from(STEPS),
    st.sampled_from([None, "one"]),
    st.fixed_dictionaries(
        {
            "history": st.booleans(),
            "as_found": st.booleans(),
            "without": st.sets(st.tuples(st.sampled_from(SESSIONS), st.integers(1, 4))),
        }
    ),
)
def test_a_thread_compares_as_the_loop_does(
    world: Any, step: str, session: str | None, options: dict[str, Any]
) -> None:
    """Whatever ties, is superseded, was taken out, or is erased in between."""
    small, large = (anyio.run(answer, way, world, step, session, options) for way in (False, True))
    assert small == large
    if step in STEPS[:1] and session is None:  # before anything was read
        assert all(one.type == "message" for one in large)


@given(st.lists(st.sampled_from([0.0, -0.0, 0.1, 0.5, 0.1 + 0.2, 0.3, 1.0]), max_size=60))
def test_numpy_sorts_as_python_does(importances: list[float]) -> None:
    """Stably: of equals the older."""
    found = [
        msgspec.structs.replace(BLANK, id=str(n), importance=one)
        for n, one in enumerate(importances)
    ]

    async def sort(in_thread_from: int) -> list[Memory]:
        return await sort_by_importance(found, in_thread_from=in_thread_from)

    assert anyio.run(sort, 0) == anyio.run(sort, len(found) + 1)
