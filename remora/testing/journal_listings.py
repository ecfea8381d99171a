"""Checks of a journal's listings: users and sessions, page by page."""

from __future__ import annotations

from remora.storage.listing import ListingOrder, SessionListing
from remora.testing.journal_runtime import OpenJournal, open_runtime, user_message

_SESSIONS = (
    ("bob", "b"),
    ("alice", "c"),
    ("alice", "a"),
    ("alice", "b"),
    ("ña", "x"),
    ("bob", "a"),
)
_BEGIN = 1_700_000_000
_ORDERS: tuple[tuple[ListingOrder, str], ...] = (
    ("name", "abc"),
    ("newest", "bac"),
    ("oldest", "cab"),
)


async def users_and_sessions_have_pages(opened: OpenJournal) -> None:
    """The same page by page as at once, in each order, also after opening again."""
    async with open_runtime(opened) as runtime:
        for number, (user, session) in enumerate(_SESSIONS):
            message = {**user_message("hello"), "created_at": _BEGIN + number}
            await runtime.session(user, session).append([message, message])
        await runtime.shared("team").as_("alice").grant("bob", "read")
        await runtime.session("alice", "c").delete(positions=0)
        await runtime.session("alice", "gone").append(user_message("never mind"))
        await runtime.session("alice", "gone").delete(positions=0)
    for _ in range(2):
        async with open_runtime(opened) as runtime:
            alice = runtime.user("alice")
            for order, names in _ORDERS:
                found: list[SessionListing] = []
                after = None
                while page := await alice.sessions(order=order, limit=2, after=after):
                    found += page
                    after = page[-1].cursor
                assert [one.key.session for one in found] == list(names), order
                assert found == list(await alice.sessions(order=order))
            assert [one.messages for one in found] == [1, 2, 2]
            assert [one.last_at.timestamp() - _BEGIN for one in found] == [1, 2, 3]
            users = await runtime.users(order="newest")
            assert [(one.user, one.sessions) for one in users] == [
                ("alice", 4),
                ("bob", 2),
                ("ña", 1),
            ]
            (bob,) = await runtime.users(prefix="b", limit=1)
            assert bob.user == "bob"
            assert list(await runtime.users(prefix="b", after=bob.cursor)) == []
            assert [one.user for one in await runtime.users(after="alice")] == ["bob", "ña"]
