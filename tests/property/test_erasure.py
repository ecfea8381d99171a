"""No content or id of any user delays another's erasure, or their own."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora import Config, Runtime
from remora.errors import InvalidId
from remora.ids import UNKEYED, Digests, memory_id, row_id, validate_id
from remora.storage.ports import SessionKey
from remora.testing import HashEmbedder
from tests.lance import digest_keys, lance, put, rows_of

pytestmark = pytest.mark.blocking

VICTIM, BYSTANDER = "victim", "bob"
CANARY = "zyzzyva"

KEY = "5" * 64
KEYED = Digests(KEY)

# Whatever remora, LanceDB or Arrow itself writes into files, and pieces of it; who writes it may
# even know the key.
own_words = st.sampled_from(
    (
        KEY,
        *(one.user(VICTIM) for one in (UNKEYED, KEYED)),
        *(one.session(VICTIM, "s0") for one in (UNKEYED, KEYED)),
        KEYED.user(VICTIM)[:8],
        KEYED.user(VICTIM).upper(),
        row_id(SessionKey(VICTIM, "s0"), 1),
        memory_id(VICTIM, "", "x"),
        f"{VICTIM}-0",
        VICTIM,
        "mem_000",
        "mem_000.lance",
        "_versions",
        ".tmp",
        "user_key",
        "user_key_idx",
        "LANC",
        "ARROW1",
        f"user_key = '{KEYED.user(VICTIM)}'",
    )
)
free = st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=20)
pieces = own_words | free
texts = st.lists(pieces, min_size=1, max_size=3).map(" ".join) | pieces
ids = pieces.map(lambda text: f"h{text}")


def holds(base: Path, word: bytes) -> bool:
    return any(word in path.read_bytes() for path in base.rglob("*") if path.is_file())


@given(
    user=ids | own_words,
    sessions=st.lists(pieces, min_size=1, max_size=3),
    content=texts,
    digests=st.sampled_from((UNKEYED, KEYED)),
)
@settings(deadline=None, max_examples=12)
def test_whatever_others_write(
    user: str, sessions: list[str], content: str, digests: Digests
) -> None:
    """G13: each erasure ends at the first attempt and takes its own rows only, and no byte of the
    victim is left, whatever the others are called and have written.
    """

    async def run(base: Path) -> None:
        hostile = f"not {user}" if user in {VICTIM, BYSTANDER} else user
        async with lance(base, index_user_rows=1, sync=False, digests=digests) as store:
            await put(store, rows_of(VICTIM, range(4), speaker=CANARY, session="s0"))
            await put(store, rows_of(BYSTANDER, range(4)))
            for number, session in enumerate(sessions):
                await put(
                    store,
                    rows_of(
                        hostile,
                        [number],
                        session=session,
                        turn=content,
                        window=content,
                        speaker=content,
                        agent=content,
                    ),
                )
            count = len(sessions)
            assert await store.erase(*digests.owner(VICTIM, "none such")) == 0
            assert await store.erase(digests.user(VICTIM)) == 4
            assert not await anyio.to_thread.run_sync(holds, base, CANARY.encode())
            assert len(await store.rows(hostile)) == count
            first = sum(session == sessions[0] for session in sessions)
            assert await store.erase(*digests.owner(hostile, sessions[0])) == first
            assert await store.erase(digests.user(hostile)) == count - first
            assert len(await store.rows(BYSTANDER)) == 4
            assert list(await store.verify(deep=True)) == []

    with TemporaryDirectory() as directory:
        anyio.run(run, Path(directory) / "lance")


CONFIG = Config.from_dict(
    {
        "long_term": {"batch_ms": 1, "shards": 1},
        "journal": {"durability": "process"},
        "tokens": {"counter": "heuristic"},
    }
)


def allowed(name: str) -> bool:
    try:
        validate_id(name, "a name")
    except InvalidId:
        return False
    return name not in {VICTIM, BYSTANDER}


names = (ids | own_words).filter(allowed)


@given(user=names, session=names, content=texts)
@settings(deadline=None, max_examples=6)
def test_whatever_others_write_into_a_directory(user: str, session: str, content: str) -> None:
    """G13: the same in a memory directory, where who writes even quotes the key in use: erasures
    that wait together end at their first attempt, after a restart too, and nobody else's rows go.
    """

    def opened(directory: Path) -> Runtime:
        return Runtime(directory, config=CONFIG, embedder=HashEmbedder())

    async def say(runtime: Runtime, who: str, where: str, text: str) -> None:
        await runtime.session(who, where).append({"role": "user", "content": text})
        await runtime.session(who, where).flush()

    async def run(directory: Path) -> None:
        async with opened(directory) as runtime:
            (key,) = await anyio.to_thread.run_sync(digest_keys, directory)
            own = Digests(key)
            await say(runtime, VICTIM, "s0", CANARY)
            await say(runtime, BYSTANDER, "s0", CANARY)
            for text in (content, key, own.user(VICTIM), own.session(VICTIM, "s0")):
                await say(runtime, user, session, text)
            await say(runtime, own.user(VICTIM), own.session(VICTIM, "s0"), own.user(BYSTANDER))
            await runtime.settle()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.user(VICTIM).forget)
                tasks.start_soon(runtime.session(BYSTANDER, "s0").forget)
            counted = runtime.statistics().erasures
            assert (counted.finished, counted.failures, counted.waiting) == (2, 0, 0)
            assert not await anyio.to_thread.run_sync(holds, directory, CANARY.encode())
        async with opened(directory) as runtime:
            assert runtime.erasures() == []
            store = await runtime.internals.long_term()
            assert len(await store.rows(user)) >= 4
            assert len(await store.rows(own.user(VICTIM))) >= 1
            await runtime.user(user).forget()
            assert runtime.statistics().erasures.failures == 0

    with TemporaryDirectory() as directory:
        anyio.run(run, Path(directory) / "memory")
