"""What crosses between a worker and an owner: frames, their bounds, and exceptions."""

from __future__ import annotations

import builtins
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora import errors
from remora.cluster.link import OwnerEnd, WorkerEnd
from remora.cluster.wire import (
    MAX_FRAME,
    WIRE,
    Bye,
    Call,
    Cancel,
    Frames,
    Hello,
    Progress,
    Raised,
    ShardInfo,
    Welcome,
    WireError,
    check_wire,
    decode_replies,
    decode_requests,
    frame,
    restore_error,
    to_raised,
)
from tests.golden.make_frames import REPLIES, REQUESTS, SHORTER, files

WELCOME = Welcome(WIRE, "0.1.0", (ShardInfo(1, "i"),))
EPOCHS = b"\x91\x01"


def owner_end() -> OwnerEnd:
    return OwnerEnd(lambda _: WELCOME, EPOCHS)


def worker_end() -> WorkerEnd:
    return WorkerEnd(Hello(WIRE), lambda *_: None)


def connected() -> tuple[WorkerEnd, OwnerEnd]:
    worker, owner = worker_end(), owner_end()
    pass_all(worker, owner)
    assert worker.open
    return worker, owner


def pass_all(worker: WorkerEnd, owner: OwnerEnd) -> tuple[list[Any], list[Any]]:
    """Carry everything across; returns the requests and the replies."""
    requests: list[Any] = []
    replies: list[Any] = []
    while True:
        there, back = worker.take(), owner.take()
        if there is None and back is None:
            return requests, replies
        if there is not None:
            requests += owner.feed(bytes(there))
        if back is not None:
            replies += [one for _, found in worker.feed(bytes(back)) for one in found]


# -- bytes -----------------------------------------------------------------------------------------


def test_what_is_sent_has_the_golden_bytes() -> None:
    """Another release reads them, and this one ignores the fields of a later one."""
    for name, encoded in files()[WIRE].items():
        golden = bytes.fromhex(encoded)
        (payload,) = Frames().feed(golden)
        if name in REQUESTS:
            assert decode_requests(payload) == [REQUESTS[name]], name
            assert (frame([REQUESTS[name]]) == golden) is (name not in SHORTER), name
        else:
            assert decode_replies(payload) == ((6,), [REPLIES[name]]), name
            assert frame([(6,), [REPLIES[name]]]) == golden, name
    assert files()[WIRE].keys() == {*REQUESTS, *REPLIES}
    later = frame([[204, 7, "later"], [201, 1, "0.2", "d", "w", 3, 2, 8, {"more": 1}]])
    (payload,) = Frames().feed(bytes(later))
    assert decode_requests(payload) == [Cancel(7), Hello(1, "0.2", "d", "w", 3, 2, 8)]


@settings(max_examples=40)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_frames_arrive_whole_wherever_they_are_cut(
    payloads: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(struct.pack("<I", len(one)) + one for one in payloads)
    frames = Frames()
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += map(bytes, frames.feed(stream[:size]))
        stream = stream[size:]
    assert found == payloads


def test_no_frame_is_empty_or_too_long() -> None:
    """A stranger's first frame is short: who says no hello cannot make the owner hold much."""
    for length in (0, MAX_FRAME + 1, 0xFFFFFFFF):
        with pytest.raises(WireError, match="at most"):
            Frames().feed(struct.pack("<I", length) + b"x")
    with pytest.raises(WireError, match="65536"):
        owner_end().feed(struct.pack("<I", 1 << 20))


# -- garbage ---------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 300) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@settings(max_examples=60)
@given(st.binary(max_size=200) | st.lists(PLAIN, max_size=4).map(lambda one: bytes(frame(one))))
def test_garbage_raises_nothing_but_an_error_of_the_protocol(data: bytes) -> None:
    """Before and after the greeting, at either end."""
    for end in (owner_end(), worker_end(), *connected()):
        try:
            end.feed(data)
        except WireError:
            continue
        except errors.RemoraError:  # the owner's refusal, which may say anything
            assert isinstance(end, WorkerEnd)
            assert not end.open


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_frame_raises_nothing_but_an_error_of_the_protocol(data: st.DataObject) -> None:
    sent = bytearray(bytes.fromhex(data.draw(st.sampled_from(list(files()[WIRE].values())))))
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    for end in connected():
        with suppress(WireError):
            end.feed(bytes(sent))


# -- greeting and parting --------------------------------------------------------------------------


def test_nothing_is_sent_before_the_welcome() -> None:
    worker, owner = worker_end(), owner_end()
    assert not worker.open
    assert pass_all(worker, owner) == ([], [])
    assert worker.welcome == WELCOME
    assert owner.hello == Hello(WIRE)


def test_another_version_is_refused_with_advice() -> None:
    """The worker learns who must upgrade; the version before is served as well."""
    for theirs, advice in ((WIRE + 1, "upgrade the owner"), (0, "upgrade the worker")):
        worker, owner = WorkerEnd(Hello(theirs, "9.9"), lambda *_: None), owner_end()
        with pytest.raises(errors.ProtocolMismatch, match=advice) as caught:
            pass_all(worker, owner)
        assert (caught.value.theirs, caught.value.ours) == (WIRE, theirs)
        assert "9.9" in str(caught.value)
        assert owner.refused
    check_wire(Hello(1), 2, 1, "0.2")
    with pytest.raises(errors.ProtocolMismatch, match="versions 2 to 3"):
        check_wire(Hello(1), 3, 2, "0.3")


def test_an_owner_that_is_about_to_close_gets_no_more() -> None:
    """A stranger must say hello first, and nothing else."""
    worker, owner = connected()
    worker.put(Cancel(1))
    owner.drain()
    owner.reply(1, 5)
    assert pass_all(worker, owner) == ([Cancel(1)], [(1, 5)])
    assert owner.parted
    assert not worker.open
    with pytest.raises(WireError, match="Cancel"):
        owner.feed(bytes(frame([Cancel(2)])))
    for first in ([Cancel(1)], [Hello(WIRE), Cancel(1)], [Bye()]):
        with pytest.raises(WireError):
            owner_end().feed(bytes(frame(first)))


# -- frames that are cut, and what cannot be sent --------------------------------------------------


def test_many_requests_leave_in_frames_of_a_bounded_size() -> None:
    worker, owner = connected()
    calls = [Call(n, 0, "x", bytes(50_000)) for n in range(1, 21)]
    for one in calls:
        worker.put(one)
    sizes, found = [], []
    while (sent := worker.take()) is not None:
        sizes.append(len(sent))
        found += owner.feed(bytes(sent))
    assert found == calls
    assert max(sizes) < 320_000
    assert len(sizes) > 1


def test_what_cannot_be_sent_is_refused_alone() -> None:
    """An answer that is too long is an error; progress is a reply that ends nothing."""
    refused: list[Any] = []
    worker = WorkerEnd(Hello(WIRE), lambda request, _: refused.append(request))
    owner = OwnerEnd(lambda _: WELCOME, EPOCHS, max_frame=10_000)
    pass_all(worker, owner)
    bad, good = Call(1, 0, "\ud800"), Call(2, 0, "x")
    worker.put(bad)
    worker.put(good)
    assert pass_all(worker, owner)[0] == [good]
    assert refused == [bad]
    replies: list[tuple[int, Any]] = [(1, "x" * 20_000), (2, 5), (3, Progress(1, 2)), (3, None)]
    for reply in replies:
        owner.reply(*reply)
    _, found = pass_all(worker, owner)
    too_long = dict(found)[1]
    assert sorted(found, key=lambda one: one[0]) == [(1, too_long), *replies[1:]]
    with pytest.raises(errors.InvalidInput, match="ask for less"):
        raise restore_error(too_long)


# -- exceptions ------------------------------------------------------------------------------------

SAMPLES: list[Exception] = [
    errors.NoDeadLetter("none", ids=("flush-7-120",)),
    errors.StateConflict("no", key="k", expected=1, actual=2, value=[1, {"a": None}]),
    errors.DirectoryLocked("locked", path=Path("memory"), pid=7, since=None),
    errors.IndexOutOfRange("no", places=(1, 2)),
    errors.LongTermError("failed", retryable=True),
    errors.NotGranted("no", scope="team", who="Zoë"),
    errors.OwnershipLost("gone"),
    ValueError("no"),
    KeyError("k"),
]


def test_an_exception_arrives_as_it_was() -> None:
    """Every error of remora does; every built-in exception as one that says it, also one that
    cannot be made of a text alone: a group. Others say what they were.
    """
    for error in SAMPLES:
        (payload,) = Frames().feed(bytes(frame([(1,), [(3, to_raised(error))]])))
        raised = decode_replies(payload)[1][0][1]
        found = restore_error(raised)  # type: ignore[arg-type]
        assert type(found) is type(error)
        assert vars(found) == vars(error)
        assert str(error) in str(found)
        assert getattr(found, "retryable", None) == getattr(error, "retryable", None)
    for name in errors.__all__:
        kind = getattr(errors, name)
        error = kind.__new__(kind)
        error.args = ("text",)
        assert type(restore_error(to_raised(error))) is kind
    for name in filter(lambda one: one[0].isupper(), vars(builtins)):
        found = restore_error(Raised(name, "what it said"))
        assert isinstance(found, Exception), name
        assert "what it said" in repr(found), name
    found = restore_error(to_raised(type("DiskOnFire", (Exception,), {})("smoke")))
    assert type(found) is errors.RemoraError
    assert "DiskOnFire: smoke" in str(found)


def test_an_error_may_hold_any_text() -> None:
    """Of a user, for instance. Its name cannot call anything: a class that is no exception, or one
    that ends a program, is not made.
    """
    error = errors.NotGranted("no \ud800", scope="\ud800", who="x" * 10)
    found = restore_error(decode_replies(frame([(), [(1, to_raised(error))]])[4:])[1][0][1])  # type: ignore[arg-type]
    assert isinstance(found, errors.NotGranted)
    assert found.who == "x" * 10
    assert "\\ud800" in str(found)
    for name in ("eval", "SystemExit", "KeyboardInterrupt", "__import__", "Later"):
        assert type(restore_error(Raised(name, "text"))) is errors.RemoraError
