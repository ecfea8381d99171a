"""Shares as plain arithmetic: who is admitted, and who may send more to the log."""

from __future__ import annotations

import gc

from remora.runtime.cell import Quota, QuotaPool

KB = 1_024


def pool(max_bytes: int = 100 * KB, **limits: int) -> QuotaPool:
    return QuotaPool(
        max_bytes,
        limits.get("max_units", 4),
        limits.get("max_units_alone", 64),
        lambda key: str(key)[0],
    )


def filled(quota: Quota, size: int) -> int:
    """How many requests of this size it takes until one is refused."""
    count = 0
    while quota.allows(size):
        quota.reserve(size)
        count += 1
    return count


def test_one_owner_has_half_and_others_the_rest() -> None:
    """G10: one alone fills half of the room, each that comes later an equal share of that half,
    until there is no room.
    """
    room = pool()
    shares = [room.quota(name) for name in "abcde"]
    assert room.quota("a, another actor") is shares[0]
    assert [filled(quota, 0) for quota in shares] == [50, 25, 16, 9, 0]
    assert room.bytes == room.max_bytes
    for _ in range(40):
        shares[0].release(0)
    assert [quota.allows(0) for quota in shares] == [True, False, False, True, True], (
        "below an equal share, 12"
    )


def test_room_is_given_back() -> None:
    """G10: what was taken and given back leaves nothing behind, whoever else came and went."""
    room = pool()
    a, b = room.quota("a"), room.quota("b")
    for _ in range(10):
        a.reserve(3_000)
        b.start_write(5_000)
    assert (room.owners, a.units, b.units) == (2, 0, 10 * 5)
    for _ in range(10):
        a.release(3_000)
        b.end_write(5_000)
    assert (room.bytes, room.owners, a.bytes, b.bytes, b.units) == (0, 0, 0, 0, 0)


def test_a_request_over_all_bounds_may_wait_alone() -> None:
    """G10: a single message larger than the room is taken where nothing else waits, or it could
    never be delivered; in a share of a commit's length, large messages count for more.
    """
    quota = pool().quota("a")
    assert quota.allows(10**9)
    quota.reserve(1)
    assert not quota.allows(10**9)
    for size, units in ((0, 1), (1_023, 1), (1_024, 2), (100 * KB, 101)):
        quota = pool().quota("a")
        quota.start_write(size)
        assert quota.units == units


def test_who_is_alone_may_send_more() -> None:
    """G10: one owner has few writes on their way while others ask as well, and many when nobody
    else did for a second.
    """
    room = pool()
    a, b = room.quota("a"), room.quota("b")
    room.note_request(a, 0.0)
    a.start_write(0)
    for _ in range(20):
        a.start_write(0)
    assert room.may_write(a, 0.0)
    room.note_request(b, 0.5)
    assert not room.may_write(a, 0.6)
    assert room.may_write(b, 0.6)
    room.note_request(b, 1.0)
    assert not room.may_write(a, 1.49)
    assert room.may_write(a, 1.51)
    for _ in range(60):
        a.start_write(0)
    assert not room.may_write(a, 9.0), (
        "nor is one alone without bound: whoever comes would wait behind all of it"
    )


def test_owners_without_actors_are_forgotten() -> None:
    """G10, G12: a share lasts as long as one of its owner's actors is in memory."""
    room = pool()
    for number in range(1_000):
        room.quota(chr(200 + number))
    gc.collect()
    assert len(room) <= 1
