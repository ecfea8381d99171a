"""Checks of a `LongTermStore` that anyone who writes one can run.

Each is given an empty store of `DIMENSION`, and raises AssertionError where it does not hold::

    from remora.testing import long_term_suite
    from remora.testing.stores import DIMENSION

    @pytest.mark.parametrize("check", long_term_suite, ids=lambda check: check.__name__)
    async def test_my_store(check):
        await check(await MyStore.open(dimension=DIMENSION))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from remora.errors import LongTermError
from remora.ids import session_key, user_key
from remora.storage.ports import LongTermStore, MemoryRow, RowOrder, Scope
from remora.storage.windows import makes_windows
from remora.testing.models import HashEmbedder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DIMENSION = 32
"""Length of the vectors that the checks use."""

_HOSTILE = (
    "a",
    "a:b",
    "a' OR 1=1 --",
    'a" OR ""="',
    "a%",
    "_",
    "ä",
    "a\u0308",
    "用户",
    "a\\",
    "{a}",
    "🜁",
    "A",
    "a ",
)


def long_term_row(id_: str, content: str, *, user: str = "alice", **fields: Any) -> MemoryRow:
    """A row with all that a test does not care about filled in."""
    values: dict[str, Any] = {
        "session": "",
        "seq": 0,
        "role": "system",
        "speaker": "",
        "turn": content,
        "window": content,
        "memory_type": "fact",
        "importance": 0.5,
        "created_us": 0,
        "tokens": 1,
        "agent": "",
    }
    return MemoryRow(id=id_, user=user, content=content, **{**values, **fields})


async def _vectors(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    import numpy as np  # noqa: PLC0415

    vectors = await HashEmbedder(DIMENSION).embed(texts)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)


async def _add(store: LongTermStore, *rows: MemoryRow, may_exist: bool = False) -> None:
    await store.add(rows, await _vectors([row.content for row in rows]), may_exist=may_exist)


async def _find_ids(
    store: LongTermStore, text: str, scope: Scope | None = None, user: str = "alice"
) -> set[str]:
    vector = (await _vectors([text]))[0]
    return {
        one.row.id
        for one in await store.search(user, text, vector, depth=50, scope=scope or Scope())
    }


def _with_window_of(wanted: MemoryRow, found: MemoryRow, store: LongTermStore) -> MemoryRow:
    if not makes_windows(store):
        return found
    return msgspec.structs.replace(found, window=wanted.window)


async def a_row_comes_back_as_it_was(store: LongTermStore) -> None:
    """Every field, in a search and in a listing; a store that makes windows need not keep one."""
    row = long_term_row(
        "r1", "Ottilie keeps bees\nnear Coimbra 🐝", session="s", seq=7, role="user",
        speaker="Ann", turn="(1 May) Ann: bees",
        window="before\nbees\nafter", memory_type="message", importance=0.25,
        created_us=1_700_000_000_123_456, tokens=9, agent="x",
    )  # fmt: skip
    await _add(store, row)
    (found,) = await store.rows("alice")
    assert _with_window_of(row, found, store) == row
    assert (await store.count("alice"), await store.count("bob")) == (1, 0)
    (candidate,) = await store.search("alice", "bees", (await _vectors([row.content]))[0], depth=5)
    assert _with_window_of(row, candidate.row, store) == row
    assert {"turn", "vector"} <= set(candidate.scores) <= {"turn", "window", "vector"}
    assert abs(candidate.scores["vector"] - 1) < 1e-3


async def rows_come_with_their_vectors(store: LongTermStore) -> None:
    """Each row with its own vector, in the order of a listing, within the scope.

    An unknown user has none.
    """
    texts = ["green tea", "black coffee", "red wine"]
    rows = [
        long_term_row(f"r{n}", text, session="st"[n % 2], created_us=9 - n)
        for n, text in enumerate(texts)
    ]
    await _add(store, *rows)
    for scope in (Scope(), Scope(session="s")):
        found, vectors = await store.embedded_rows("alice", scope)
        listed = await store.rows("alice", scope)
        pairs = zip(listed, found, strict=True)
        assert [_with_window_of(one, other, store) for one, other in pairs] == list(listed)
        assert vectors is not None
        wanted = await _vectors([row.content for row in found])
        assert vectors.shape == wanted.shape
        assert abs(vectors - wanted).max() < 1e-6
    nobody, none = await store.embedded_rows("bob")
    assert list(nobody) == []
    assert none is not None
    assert none.shape == (0, DIMENSION)


async def an_empty_store_finds_nothing(store: LongTermStore) -> None:
    """No rows, no error."""
    assert await _find_ids(store, "anything") == set()
    assert list(await store.rows("alice")) == []
    assert await store.delete("alice", ["r1"]) == 0
    assert list(await store.row_ids()) == []


async def a_repeated_row_is_one_row(store: LongTermStore) -> None:
    """A row that may be there already is not doubled, alone or among others."""
    first = long_term_row("r1", "The cat is called Figaro")
    await _add(store, first)
    await _add(store, first, long_term_row("r2", "The dog is called Rex"), may_exist=True)
    await _add(store, msgspec.structs.replace(first, importance=1.0), may_exist=True)
    assert sorted(await store.row_ids()) == ["r1", "r2"]
    assert [row.importance for row in await store.rows("alice") if row.id == "r1"] == [0.5]


async def a_row_twice_in_one_call_is_one_row(store: LongTermStore) -> None:
    """The row is stored once, whether an earlier attempt is in doubt or not."""
    rows = [long_term_row(f"r{number}", f"apple {number}") for number in range(3)]
    await _add(store, *rows, *rows)
    more = [*rows, long_term_row("r3", "apple 3")]
    await _add(store, *more, *more, may_exist=True)
    assert sorted(await store.row_ids()) == ["r0", "r1", "r2", "r3"]


async def scopes_narrow_together(store: LongTermStore) -> None:
    """Session, agent and type each narrow, and all that is given must hold."""
    rows = [
        long_term_row(
            f"{session}{agent}{kind}", "green tea", session=session, agent=agent, memory_type=kind
        )
        for session in ("s", "t")
        for agent in ("", "x", "y")
        for kind in ("fact", "preference", "context")
    ]
    await _add(store, *rows)
    scopes = [
        Scope(session=session, agent=agent, types=types)
        for session in (None, "s", "none such")
        for agent in (None, "", "x", "z")
        for types in ((), ("fact",), ("fact", "context"))
    ]
    for scope in scopes:
        wanted = {
            row.id
            for row in rows
            if scope.session in {None, row.session}
            and scope.agent in {None, row.agent}
            and (not scope.types or row.memory_type in scope.types)
        }
        assert await _find_ids(store, "green tea", scope) == wanted, scope
        assert {row.id for row in await store.rows("alice", scope)} == wanted, scope


async def users_do_not_meet(store: LongTermStore) -> None:
    """With any names, no user finds or removes another's rows."""
    rows = [
        long_term_row(
            f"r{number}", f"my secret is number {number}", user=user, session=user, agent=user
        )
        for number, user in enumerate(_HOSTILE)
    ]
    await _add(store, *rows)
    for row in rows:
        for scope in (Scope(), Scope(session=row.user), Scope(agent=row.user)):
            assert await _find_ids(store, "secret number", scope, user=row.user) == {row.id}
            assert [one.id for one in await store.rows(row.user, scope)] == [row.id]
        assert await store.delete(row.user, [one.id for one in rows if one.id != row.id]) == 0
    assert sorted(await store.row_ids()) == sorted(row.id for row in rows)


async def deleting_removes_just_that(store: LongTermStore) -> None:
    """The ids given, of this user; how many were there; and again without effect."""
    await _add(store, *(long_term_row(f"r{number}", f"apple {number}") for number in range(6)))
    assert await store.delete("alice", ["r1", "r4", "none such", "' OR '1'='1"]) == 2
    assert await store.delete("alice", ["r1", "r4"]) == 0
    assert await store.delete("alice", []) == 0
    assert await _find_ids(store, "apple") == {"r0", "r2", "r3", "r5"}
    await _add(store, long_term_row("r1", "apple 1"), may_exist=True)
    assert "r1" in await _find_ids(store, "apple")


async def depth_bounds_each_list(store: LongTermStore) -> None:
    """At most `depth` rows of each list, the best of them."""
    await _add(store, *(long_term_row(f"r{n}", f"apple {'pear ' * n}plum") for n in range(12)))
    found = await store.search("alice", "apple plum", (await _vectors(["apple plum"]))[0], depth=3)
    for name in {name for one in found for name in one.scores}:
        assert len([one for one in found if name in one.scores]) == 3
    assert {"turn", "vector"} <= {name for one in found for name in one.scores}
    assert "r0" in {one.row.id for one in found}


async def listings_are_in_order(store: LongTermStore) -> None:
    """Oldest first; within a moment by session and number."""
    await _add(
        store,
        long_term_row("c", "three", created_us=30),
        long_term_row("b", "two", created_us=20, session="s", seq=2),
        long_term_row("a", "one", created_us=20, session="s", seq=1),
    )
    assert [row.id for row in await store.rows("alice")] == ["a", "b", "c"]


async def a_listing_is_cut_in_its_order(store: LongTermStore) -> None:
    """The first rows, oldest or most important, and none of memory blocks."""
    others: dict[str, Any] = {"memory_type": "block", "agent": "block", "importance": 1.0}
    await _add(
        store,
        long_term_row("d", "four", created_us=40, importance=0.9),
        long_term_row("c", "three", created_us=30, importance=0.1),
        long_term_row("b", "two", created_us=20, session="s", seq=2, importance=0.9),
        long_term_row("a", "one", created_us=20, session="s", seq=1, importance=0.2),
        long_term_row("block", "none", created_us=10, **others),
        long_term_row("bobs", "none", user="bob", created_us=10),
    )
    cases: list[tuple[Scope, RowOrder, list[str]]] = [
        (Scope(), "created", ["a", "b", "c", "d"]),
        (Scope(), "importance", ["b", "d", "a", "c"]),
        (Scope(session="s"), "importance", ["b", "a"]),
        (Scope(types=("summary",)), "created", []),
    ]
    for scope, by, ids in cases:
        for limit in (1, 2, 3, 9):
            found = await store.rows("alice", scope, limit=limit, by=by)
            assert [row.id for row in found] == ids[:limit]
    assert list(await store.rows("nobody", limit=1)) == []


async def a_row_without_user_or_content_is_refused(store: LongTermStore) -> None:
    """And with it all that came along; nothing is stored."""
    good = long_term_row("good", "apple")
    for wrong in ({"user": None}, {"content": None}, {"user": ""}):
        refused = None
        try:
            bad: Any = msgspec.structs.replace(good, id="bad", **wrong)
            await store.add([good, bad], await _vectors(["apple", "apple"]), may_exist=False)
        except LongTermError as e:
            refused = e
        assert refused is not None, f"a row with {wrong} was taken"
        assert not refused.retryable
        assert list(await store.row_ids()) == []


async def erasing_a_user_leaves_the_others(store: LongTermStore) -> None:
    """All that is the user's goes, whatever type and agent.

    Other users' rows stay, and erasing again is harmless.
    """
    kinds = ("fact", "message", "summary", "block")
    rows = [
        long_term_row(
            f"{user}{kind}",
            f"apple of {user}",
            user=user,
            session="s",
            memory_type=kind,
            agent="x" * (kind == "block"),
        )
        for user in ("alice", "bob", "alice ", "Alice")
        for kind in kinds
    ]
    await _add(store, *rows)
    assert await store.erase(user_key("nobody")) == 0
    assert await store.erase(user_key("alice")) == len(kinds)
    assert await store.erase(user_key("alice")) == 0
    assert list(await store.rows("alice")) == []
    assert await _find_ids(store, "apple") == set()
    for user in ("bob", "alice ", "Alice"):
        assert {row.id for row in await store.rows(user)} == {f"{user}{kind}" for kind in kinds}
        assert await _find_ids(store, "apple", user=user) == {f"{user}{kind}" for kind in kinds}
    assert sorted(await store.row_ids()) == sorted(row.id for row in rows if row.user != "alice")
    await _add(store, rows[0])
    assert await _find_ids(store, "apple") == {rows[0].id}


async def erasing_a_session_leaves_the_user_the_rest(store: LongTermStore) -> None:
    """G13.

    The rows of that session of that user, and no other session's of the same or of another user.
    """
    rows = [
        long_term_row(f"{user}/{session}/{number}", f"apple {number}", user=user, session=session)
        for user in ("alice", "bob")
        for session in ("s", "t", "")
        for number in range(3)
    ]
    await _add(store, *rows)
    assert await store.erase(user_key("alice"), session_key("alice", "none such")) == 0
    assert await store.erase(user_key("alice"), session_key("bob", "s")) == 0
    assert await store.erase(user_key("alice"), session_key("alice", "s")) == 3
    left = {row.id for row in rows if not row.id.startswith("alice/s/")}
    assert set(await store.row_ids()) == left
    assert await _find_ids(store, "apple") == {id_ for id_ in left if id_.startswith("alice")}
    assert await _find_ids(store, "apple", user="bob") == {
        id_ for id_ in left if id_.startswith("bob")
    }


async def what_is_removed_is_not_found(store: LongTermStore) -> None:
    """A user, or one of their sessions, and nothing of others; removing again is harmless."""
    rows = [
        long_term_row(f"{user}/{session}/{number}", f"apple {number}", user=user, session=session)
        for user in ("alice", "bob", "carol")
        for session in ("s", "t", "")
        for number in range(3)
    ]
    await _add(store, *rows)
    assert await store.remove(user_key("nobody")) == 0
    assert await store.remove(user_key("alice"), session_key("bob", "s")) == 0
    assert await store.remove(user_key("alice"), session_key("alice", "s")) == 3
    assert await store.remove(user_key("alice"), session_key("alice", "s")) == 0
    assert await store.remove(user_key("bob")) == 9
    left = {row.id for row in rows if not row.id.startswith(("alice/s/", "bob"))}
    assert set(await store.row_ids()) == left
    for user in ("alice", "bob", "carol"):
        mine = {id_ for id_ in left if id_.startswith(user)}
        assert await _find_ids(store, "apple", user=user) == mine
        assert {row.id for row in await store.rows(user)} == mine
    await _add(store, rows[0], rows[-1], may_exist=True)
    assert await store.erase(user_key("alice")) == 7
    assert await store.erase(user_key("bob")) == 0
    assert {row.user for row in await store.rows("carol")} == {"carol"}


async def a_store_that_is_whole_verifies(store: LongTermStore) -> None:
    """A store that was written to, deleted from, compacted and erased from has no findings."""
    assert list(await store.verify(deep=True)) == []
    await _add(
        store,
        *(
            long_term_row(f"r{number}", f"apple {number}", user=f"user-{number % 3}")
            for number in range(12)
        ),
    )
    await _add(store, long_term_row("r1", "apple 1", user="user-1"), may_exist=True)
    await store.delete("user-0", ["r0"])
    await store.compact()
    await store.erase(user_key("user-2"))
    for deep in (False, True):
        assert list(await store.verify(deep=deep)) == []


long_term_suite: tuple[Callable[[LongTermStore], Awaitable[None]], ...] = (
    a_row_comes_back_as_it_was,
    rows_come_with_their_vectors,
    an_empty_store_finds_nothing,
    a_repeated_row_is_one_row,
    a_row_twice_in_one_call_is_one_row,
    scopes_narrow_together,
    users_do_not_meet,
    deleting_removes_just_that,
    depth_bounds_each_list,
    listings_are_in_order,
    a_listing_is_cut_in_its_order,
    a_row_without_user_or_content_is_refused,
    erasing_a_user_leaves_the_others,
    erasing_a_session_leaves_the_user_the_rest,
    what_is_removed_is_not_found,
    a_store_that_is_whole_verifies,
)
"""All of them, to parametrize a test with; each needs a store of its own."""
