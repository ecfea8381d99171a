"""Deletions while the object store of long-term memory answers 503, refuses, is silent, or does
what it is asked and says that it did not: what was deleted never comes back, receipts are true, and
the bytes leave once the store is there again.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from remora import Config, Runtime
from remora.errors import ErasureDelayed, NotFound, RemoraError
from remora.ids import memory_id
from remora.maintenance.verify import verify
from remora.storage.lance.objects import ObjectStore
from remora.testing import HashEmbedder
from tests.object_store import ObjectServer, serve_objects
from tests.patience import until

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

SECRET, OTHER, BOBS = "zqxkelp", "plain opal", "amber of bob"
SAID = f"the {SECRET} is green"


@pytest.fixture(scope="module")
def served() -> Iterator[ObjectServer]:
    with serve_objects() as server:
        if not server.faulty:
            pytest.skip("faults of this server cannot be switched on")
        yield server


@pytest.fixture
def server(served: ObjectServer) -> Iterator[ObjectServer]:
    yield served
    served.away, served.gate, served.faults = False, None, 0
    served.denied = served.unanswered = frozenset()


def config_of(server: ObjectServer, address: str, **retention: float) -> Config:
    found = Config.from_dict(
        {
            "tokens": {"counter": "heuristic"},
            "long_term": {"batch_ms": 1, "shards": 2, "uri": address},
            "recall": {"deadline_s": 600},
            "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.02},
            "retention": retention,
        }
    )
    there = msgspec.structs.replace(found.long_term, object_store=server.config)
    return msgspec.structs.replace(found, long_term=there)


def opened(directory: Path, config: Config) -> Runtime:
    return Runtime(directory, config=config, embedder=HashEmbedder(32))


# -- faults ----------------------------------------------------------------------------------------


@contextmanager
def slow_down(server: ObjectServer) -> Iterator[None]:
    server.away = True
    yield
    server.away = False


@contextmanager
def refuses(server: ObjectServer) -> Iterator[None]:
    server.denied = frozenset({"PUT", "POST", "DELETE"})
    yield
    server.denied = frozenset()


@contextmanager
def answers_lost(server: ObjectServer) -> Iterator[None]:
    server.unanswered = frozenset({"PUT", "POST", "DELETE"})
    yield
    server.unanswered = frozenset()


@contextmanager
def silent(server: ObjectServer) -> Iterator[None]:
    back = threading.Event()

    def wait(_method: str, _path: str) -> None:
        if not back.is_set():
            server.faults += 1
            back.wait()

    server.gate = wait
    try:
        yield
    finally:
        server.gate = None
        back.set()


FAULTS = [slow_down, refuses, answers_lost, silent]


# -- deletions -------------------------------------------------------------------------------------


async def delete_message(memory: Runtime) -> Any:
    return await memory.session("alice", "chat").delete("secret")


async def delete_memory(memory: Runtime) -> Any:
    return await memory.user("alice").delete(memory_id("alice", "", SAID))


async def forget_session(memory: Runtime) -> Any:
    return await memory.session("alice", "chat").forget()


async def forget_user(memory: Runtime) -> Any:
    return await memory.user("alice").forget()


async def fill(memory: Runtime, deletion: Callable[[Runtime], Awaitable[Any]]) -> None:
    alice, bob = memory.user("alice"), memory.user("bob")
    if deletion is delete_memory:
        await alice.remember([SAID, OTHER])
    else:
        await alice.session("chat").append(
            [
                {"role": "user", "content": SAID, "id": "secret"},
                {"role": "user", "content": OTHER},
            ]
        )
        await alice.session("chat").flush()
    await bob.session("chat").append({"role": "user", "content": BOBS})
    await bob.session("chat").flush()
    await memory.settle()


async def recalled(memory: Runtime, user: str = "alice") -> list[str]:
    return [one.text for one in await memory.user(user).recall(f"{SECRET} opal amber", limit=9)]


async def bytes_left(server: ObjectServer, address: str) -> list[str]:
    """The objects that have the deleted text."""
    objects = ObjectStore(address, server.config)
    found = []
    for name in await objects.sizes(""):
        with suppress(FileNotFoundError):  # it was removed since
            if SECRET.encode() in await objects.read(name):
                found.append(name)
    return found


@pytest.mark.limit(300)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.__name__)
@pytest.mark.parametrize(
    "deletion",
    [delete_message, delete_memory, forget_session, forget_user],
    ids=lambda one: one.__name__,
)
async def test_a_deletion_while_the_store_fails(
    server: ObjectServer,
    tmp_path: Path,
    deletion: Callable[[Runtime], Awaitable[Any]],
    fault: Callable[[ObjectServer], Any],
) -> None:
    """G13: nothing comes back, also after a restart; another user's rows stay, once."""
    address = server.address()
    config = config_of(server, address, forgotten_s=0)
    done: list[Any] = []

    async def delete(memory: Runtime) -> None:
        try:
            done.append(await deletion(memory))
        except RemoraError as e:
            done.append(e)

    async with opened(tmp_path, config) as memory:
        await fill(memory, deletion)
        assert any(SECRET in text for text in await recalled(memory))
        assert await bytes_left(server, address)
        async with anyio.create_task_group() as tasks:
            with fault(server):
                tasks.start_soon(delete, memory)
                if deletion in {forget_session, forget_user}:
                    await until(lambda: server.faults > 0, "the store fails")
                else:
                    await until(lambda: bool(done), "the deletion returns")
        (receipt,) = done
        if isinstance(receipt, RemoraError):  # it says that bytes are left
            assert isinstance(receipt, ErasureDelayed), receipt
        elif deletion in {delete_message, delete_memory}:
            assert receipt.deleted == 1
            assert receipt.erased_by is not None
        elif receipt.erased_by is None:
            assert await bytes_left(server, address) == []
        await memory.settle()
        assert not any(SECRET in text for text in await recalled(memory))
        if deletion is delete_message:
            with pytest.raises(NotFound):
                await deletion(memory)
        await memory.retry_erasures()
        assert memory.erasures() == []
        assert await bytes_left(server, address) == []
    async with opened(tmp_path, config) as memory:
        assert not any(SECRET in text for text in await recalled(memory))
        kept = await recalled(memory)
        assert kept == ([] if deletion in {forget_session, forget_user} else [OTHER])
        assert await recalled(memory, "bob") == [BOBS]
    assert (await verify(tmp_path, config, deep=True)).findings == ()
    assert not any(
        SECRET.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("fault", [refuses, silent], ids=lambda one: one.__name__)
async def test_a_deleted_message_is_not_recalled_while_the_store_fails(
    server: ObjectServer, tmp_path: Path, fault: Callable[[ObjectServer], Any]
) -> None:
    """Its row is still in the table, which a search reads from a cache."""
    config = config_of(server, server.address())
    async with opened(tmp_path, config) as memory:
        await fill(memory, delete_message)
        await recalled(memory)
        with fault(server):
            await delete_message(memory)
            found = await memory.session("alice", "other").load(query=f"the {SECRET} opal")
            assert SECRET not in str(found.messages)
        await memory.settle()


@pytest.mark.limit(300)
async def test_the_bytes_leave_by_themselves(server: ObjectServer, tmp_path: Path) -> None:
    """Once the store is back, without a call, within the time of `retention`."""
    address = server.address()
    config = config_of(server, address, deleted_s=1.0)
    async with opened(tmp_path, config) as memory:
        await fill(memory, delete_message)
        with refuses(server):
            receipt = await delete_message(memory)
            assert receipt.erased_by is not None
            await until(lambda: server.faults > 0, "the store refuses")

        async def gone() -> bool:
            return not await bytes_left(server, address)

        await until(gone, "the bytes leave")
        assert await recalled(memory) == [OTHER]
