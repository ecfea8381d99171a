"""Two owners of one memory's tables at an object store: what a former one still writes counts for
nobody. Without the fence most of what the new one stored is lost: see the control.
"""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.to_thread
import pytest

from remora.config import LongTermConfig
from remora.errors import LongTermError, OwnershipLost, StorageError
from remora.ids import user_key
from remora.storage.lance.store import LanceStore
from remora.storage.lance.versions import JournalVersions
from remora.storage.memory import MemoryJournal
from remora.testing.stores import DIMENSION
from tests.lance import put, rows_of
from tests.object_store import ObjectServer, serve_objects

pytestmark = pytest.mark.anyio

Late = Callable[[LanceStore], Coroutine[Any, Any, object]]


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with serve_objects() as served:
        if not served.faulty:
            pytest.skip("requests to this server cannot be held")
        yield served


@asynccontextmanager
async def owner(
    server: ObjectServer, address: str, journal: MemoryJournal | None
) -> AsyncIterator[LanceStore]:
    """A process that owns the tables; without a journal nothing keeps it from another one's."""
    options: dict[str, Any] = {
        "batch_ms": 0.5,
        "compact_fragments": 2,
        "object_store": server.config,
    }
    config = LongTermConfig(shards=1, **options)
    store = await LanceStore.open(
        address,
        dimension=DIMENSION,
        config=config,
        versions=None if journal is None else JournalVersions(journal, "longterm"),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        yield store
        tasks.cancel_scope.cancel()
    await store.aclose()


async def stored(server: ObjectServer, address: str, journal: MemoryJournal) -> list[str]:
    """The rows that the next owner finds."""
    async with owner(server, address, journal.restart()) as store:
        return sorted(await store.row_ids())


LATE: dict[str, Late] = {
    "add": lambda store: put(store, rows_of("late", range(3))),
    "merge": lambda store: put(store, rows_of("alice", range(5, 25)), may_exist=True),
    "delete": lambda store: store.delete("alice", [f"alice-{n}" for n in range(5)]),
    "compact": lambda store: store.compact(),
    "erase": lambda store: store.erase(user_key("alice")),
}
"""What a former owner does."""


async def fill(store: LanceStore) -> None:
    for start in (0, 5):  # so that there is something to compact
        await put(store, rows_of("alice", range(start, start + 5)))
    await put(store, rows_of("carol", range(2)))


async def goes_on(store: LanceStore, expected: list[str]) -> list[str]:
    """The new owner has what it had, and writes on; all rows then."""
    assert sorted(await store.row_ids()) == expected
    await put(store, rows_of("bob", range(4, 6)))
    after = sorted([*expected, "bob-4", "bob-5"])
    assert sorted(await store.row_ids()) == after
    assert await store.verify(deep=True) == []
    return after


class Pause:
    """Stops the first request that writes a version of a table, as if its process stood still."""

    def __init__(self, server: ObjectServer, *, versions: int) -> None:
        self.reached, self.goes_on = threading.Event(), threading.Event()
        self._left = versions
        self._lock = threading.Lock()
        server.gate = self._pass

    def _pass(self, method: str, path: str) -> None:
        if method != "PUT" or "/_versions/" not in path:
            return
        with self._lock:
            self._left -= 1
            stops = self._left == 0
        if stops:
            self.reached.set()
            self.goes_on.wait()


async def test_without_a_fence_rows_are_lost(server: ObjectServer) -> None:
    """The control: one process erases while the other adds, and nothing keeps them apart."""
    address = server.address()
    async with owner(server, address, None) as first:
        await put(first, rows_of("alice", range(5)))
        async with owner(server, address, None) as second:
            await put(second, rows_of("bob", [0]))
            pause = Pause(server, versions=1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(LATE["erase"], first)
                await anyio.to_thread.run_sync(pause.reached.wait)
                server.gate = None
                for number in range(1, 7):
                    await put(second, rows_of("bob", [number]))  # acknowledged
                pause.goes_on.set()
    async with owner(server, address, None) as third:
        assert await third.row_ids() == ["bob-0"]


@pytest.mark.parametrize("late", LATE)
async def test_a_former_owners_write_is_refused(server: ObjectServer, late: str) -> None:
    """G7: it begins when another process has the journal."""
    journal, address = MemoryJournal(), server.address()
    async with owner(server, address, journal) as former:
        await fill(former)
        async with owner(server, address, journal.restart()) as new:
            await put(new, rows_of("bob", range(4)))
            expected = sorted(await new.row_ids())
            assert len(expected) == 16
            with pytest.raises(StorageError):
                await LATE[late](former)
            expected = await goes_on(new, expected)
        with pytest.raises((OwnershipLost, LongTermError)):
            await LATE["add"](former)
    assert await stored(server, address, journal) == expected


@pytest.mark.parametrize(
    ("late", "versions"),
    [*((late, 1) for late in LATE), ("compact", 2), ("erase", 2), ("erase", 4)],
)
async def test_a_former_owner_stands_still_within_a_write(
    server: ObjectServer, late: str, versions: int
) -> None:
    """G7: it goes on when another process has the journal, and has written."""
    journal, address = MemoryJournal(), server.address()
    async with owner(server, address, journal) as former:
        await fill(former)
        before = sorted(await former.row_ids())
        pause = Pause(server, versions=versions)
        outcome: list[BaseException | None] = []

        async def write() -> None:
            try:
                await LATE[late](former)
                outcome.append(None)
            except StorageError as e:
                outcome.append(e)
            pause.reached.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.to_thread.run_sync(pause.reached.wait)
            server.gate = None
            if outcome:  # it makes fewer versions
                return
            async with owner(server, address, journal.restart()) as new:
                await put(new, rows_of("bob", range(4)))
                expected = sorted([*before, *(f"bob-{n}" for n in range(4))])
                pause.goes_on.set()
                while not outcome:
                    await anyio.sleep(0.01)
                    assert sorted(await new.row_ids()) == expected
                assert isinstance(outcome[0], StorageError)
                expected = await goes_on(new, expected)
    assert await stored(server, address, journal) == expected


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
async def test_owners_follow_one_another(server: ObjectServer, seed: int) -> None:
    """G7: five owners, each of whom writes on without knowing of the next ones; every row that was
    acknowledged is there once, and nothing else of another one's.
    """
    rng = random.Random(seed)
    journal, address = MemoryJournal(), server.address()
    expected: set[str] = set()
    owners: list[LanceStore] = []
    async with AsyncExitStack() as opened:
        for number in range(5):
            owners.append(await opened.enter_async_context(owner(server, address, journal)))
            for step in range(rng.randrange(1, 4)):
                writer = owners[-1]
                ids = range(100 * number + 10 * step, 100 * number + 10 * step + 3)
                async with anyio.create_task_group() as tasks:
                    if rng.random() < 0.4 and len(owners) > 1:  # a former one, at the same time
                        late, former = rng.choice(list(LATE.values())), rng.choice(owners[:-1])
                        tasks.start_soon(_ignore_refusal, late, former)
                    await put(writer, rows_of("bob", ids), may_exist=rng.random() < 0.5)
                    expected |= {f"bob-{n}" for n in ids}
                    if rng.random() < 0.3:
                        await writer.erase(user_key("nobody"))
                    assert sorted(await writer.row_ids()) == sorted(expected)
            journal = journal.restart()
    assert await stored(server, address, journal) == sorted(expected)


async def _ignore_refusal(write: Late, store: LanceStore) -> None:
    with suppress(StorageError):
        await write(store)
