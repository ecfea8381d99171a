"""No content or id of any user delays another's erasure, or their own."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.ids import SessionKey, memory_id, row_id, session_key, user_key
from tests.lance import lance, put, rows_of

pytestmark = pytest.mark.blocking

VICTIM, BYSTANDER = "victim", "bob"
CANARY = "zyzzyva"

# Whatever remora, LanceDB or Arrow itself writes into files, and pieces of it.
own_words = st.sampled_from(
    (
        user_key(VICTIM),
        user_key(VICTIM)[:8],
        user_key(VICTIM).upper(),
        session_key(VICTIM, "s0"),
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
        f"user_key = '{user_key(VICTIM)}'",
    )
)
free = st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=20)
pieces = own_words | free
texts = st.lists(pieces, min_size=1, max_size=3).map(" ".join) | pieces
ids = pieces.map(lambda text: f"h{text}")


def holds(base: Path, word: bytes) -> bool:
    return any(word in path.read_bytes() for path in base.rglob("*") if path.is_file())


@given(user=ids | own_words, sessions=st.lists(pieces, min_size=1, max_size=3), content=texts)
@settings(deadline=None, max_examples=12)
def test_whatever_others_write(user: str, sessions: list[str], content: str) -> None:
    """G13: each erasure ends at the first attempt and takes its own rows only, and no byte of the
    victim is left, whatever the others are called and have written.
    """

    async def run(base: Path) -> None:
        hostile = f"not {user}" if user in {VICTIM, BYSTANDER} else user
        async with lance(base, index_user_rows=1, sync=False) as store:
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
            assert await store.erase(user_key(VICTIM), session_key(VICTIM, "none such")) == 0
            assert await store.erase(user_key(VICTIM)) == 4
            assert not await anyio.to_thread.run_sync(holds, base, CANARY.encode())
            assert len(await store.rows(hostile)) == count
            first = sum(session == sessions[0] for session in sessions)
            assert await store.erase(user_key(hostile), session_key(hostile, sessions[0])) == first
            assert await store.erase(user_key(hostile)) == count - first
            assert len(await store.rows(BYSTANDER)) == 4
            assert list(await store.verify(deep=True)) == []

    with TemporaryDirectory() as directory:
        anyio.run(run, Path(directory) / "lance")
