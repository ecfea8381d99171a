"""What LanceDB raises, provoked for real where it can be, and what becomes of it: an error that
says whether to try again.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from remora.errors import LongTermError
from remora.storage.lance.errors import map_errors, meaning
from tests.lance import data_files, held, lance, put, record_of, rows_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

_READ_ONLY, _REMOUNT = 1, 32


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = tmp_path / "disk"
    place.mkdir()
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=2m"):
        pytest.skip(f"this process may not mount: {os.strerror(ctypes.get_errno())}")
    yield place
    libc.umount2(os.fsencode(place), 2)


def read_only(place: Path, on: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.mount(
        b"tmpfs", os.fsencode(place), b"tmpfs", _REMOUNT | (_READ_ONLY if on else 0), b"size=2m"
    )


async def test_a_full_disk(small_disk: Path) -> None:
    """G3, G6, G7: writes are refused for the time being; nothing acknowledged is lost, reads go on;
    with room, so do writes.
    """
    ballast, base, acknowledged = small_disk / "ballast", small_disk / "lance", list[str]()
    async with lance(base) as store:
        await put(store, rows_of("alice", range(5)))
        ballast.write_bytes(bytes(max(0, os.statvfs(small_disk).f_bavail * 4096 - 120_000)))
        acknowledged += [row.id for row in rows_of("alice", range(5))]
        for number in range(1, 200):
            rows = rows_of("alice", range(number * 5, number * 5 + 5))
            try:
                await put(store, rows)
            except LongTermError as e:
                assert (e.retryable, "the disk is full" in str(e)) == (True, True)  # noqa: PT017
                break
            acknowledged += [row.id for row in rows]
        else:
            raise AssertionError("the disk never filled up")
        assert set(acknowledged) <= set(await held(store))
        with pytest.raises(LongTermError, match="the disk is full"):
            await store.erase("0" * 32)
        ballast.unlink()
        await put(store, rows, may_exist=True)
        acknowledged += [row.id for row in rows]
        assert await held(store) == sorted(acknowledged)
        await store.erase("0" * 32)
    async with lance(base) as store:
        assert await held(store) == sorted(acknowledged)
        assert list(await store.verify(deep=True)) == []


async def test_a_read_only_disk(small_disk: Path) -> None:
    """G3, G6: while the disk cannot be written, reads go on; afterwards writes do, without a
    restart.
    """
    base, rows = small_disk / "lance", rows_of("alice", range(5))
    async with lance(base, compact_fragments=1) as store:
        await put(store, rows)
        await store.search("alice", "number3", None, depth=1)  # the words are indexed for it
        read_only(small_disk, True)
        for verb in (
            lambda: put(store, rows_of("alice", [9])),
            lambda: store.delete("alice", [rows[0].id]),
            store.compact,
        ):
            with pytest.raises(LongTermError, match="the disk is read-only") as caught:
                await verb()
            assert caught.value.retryable
        assert len(await held(store)) == 5
        (found,) = await store.search("alice", "number3", None, depth=1)
        assert found.row.id == "alice-3"
        read_only(small_disk, False)
        await put(store, rows_of("alice", [9]), may_exist=True)
        await store.compact()
        assert len(await held(store)) == 6


@pytest.mark.parametrize("what", ["missing", "truncated"])
async def test_a_file_that_goes_while_in_use(tmp_path: Path, what: str) -> None:
    """G6: reads say what it is and that trying again is of no use; a job that writes waits for the
    next start, which mends it.
    """
    base, rows = tmp_path / "lance", rows_of("alice", range(30))
    async with lance(base) as store:
        for start in range(0, 30, 10):
            await put(store, rows[start : start + 10])
    (path, *_) = data_files(base)
    async with lance(base) as store:
        if what == "missing":
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size // 3)
        expected = "a file is missing" if what == "missing" else "a file is damaged"
        with pytest.raises(LongTermError, match=expected) as caught:
            await store.rows("alice")
        assert not caught.value.retryable
        for written in (rows, rows_of("alice", [40])):
            with pytest.raises(LongTermError) as caught:
                await put(store, written, may_exist=written is rows)
            assert caught.value.retryable
        assert str(path) in {finding.where for finding in await store.verify()}
    assert record_of(base).version
    async with lance(base) as store:
        assert store.refill_needed
        await put(store, rows, may_exist=True)
        assert await held(store) == sorted(row.id for row in rows)


async def test_what_it_does_not_take(tmp_path: Path) -> None:
    """G11: calls that can never succeed are told so."""
    async with lance(tmp_path / "lance") as store:
        await put(store, rows_of("alice", range(3)))
        for vectors, told in ((None, None), (np.ones((2, 3), np.float32), "do not fit")):
            with pytest.raises(LongTermError, match=told) as caught:
                await store.add(rows_of("alice", range(2)), vectors, may_exist=False)
            assert not caught.value.retryable
    with pytest.raises(LongTermError, match="it is closed") as caught:  # LanceDB's Rust panics here
        await store.rows("alice")
    assert caught.value.retryable


async def test_no_directory(tmp_path: Path) -> None:
    """G12: where a file is in the way, opening says so."""
    (tmp_path / "lance").write_text("a file")
    with pytest.raises(LongTermError):
        async with lance(tmp_path / "lance"):
            pass


LANCE, IO = "lance error: ", "lance error: LanceError(IO): "
SEEN = [
    (RuntimeError(f"{IO}No space left on device (os error 28), /root/.cargo/x.rs:1:2"), "full"),
    (OSError(28, "No space left on device"), "full"),
    (OSError(30, "Read-only file system"), "read-only"),
    (OSError(5, "Input/output error"), "the disk failed"),
    (
        RuntimeError(
            f"{LANCE}Retryable commit conflict for version 15: This Overwrite was preempted"
        ),
        "faster",
    ),
    (
        RuntimeError(f"{LANCE}Incompatible transaction: This ReserveFragments transaction is"),
        "faster",
    ),
    (RuntimeError("Query timed out after 1s"), "too long"),
    (RuntimeError("Table mem_000 is closed"), "closed"),
    (
        ValueError("Invalid input, Failed to connect to namespace: IO { source: RetryError(Retry"),
        "reached",
    ),
    (RuntimeError("something that nobody has seen"), "failed"),
]
"""What LanceDB 0.40 said when these were provoked by hand, and what it means; to be tried again."""
SEEN_FOR_GOOD = [
    (RuntimeError(f"{LANCE}Not found: tmp/store/mem_000.lance/data/1000.lance"), "missing"),
    (FileNotFoundError(2, "No such file or directory"), "missing"),
    (
        RuntimeError(f"{IO}Generic memory error: Invalid range 0..1309 for object of size 654"),
        "damaged",
    ),
    (RuntimeError("LanceError(IO): file size is too small"), "damaged"),
    (ValueError("Invalid input, Schema error: No field named nope."), "does not take"),
    (TypeError("an Expr is no str"), "does not take"),
]


def test_what_errors_mean() -> None:
    """G6, G11: each of LanceDB's untyped errors has one meaning, and is retryable or not; jobs wait
    for what a start mends.
    """
    for seen, retryable in ((SEEN, True), (SEEN_FOR_GOOD, False)):
        for error, told in seen:
            meant, again = meaning(error)
            assert told in meant, error
            assert again is retryable, error
            with pytest.raises(LongTermError) as caught, map_errors("writing", writing=True):
                raise error
            assert caught.value.retryable is (retryable or "file" in meant), error
            assert "cargo" not in str(caught.value)


def test_an_address_is_in_no_error() -> None:
    """S2.34: nor in what caused it."""
    with (
        pytest.raises(LongTermError) as caught,
        map_errors("reading", secret_address="s3://hunter2/x"),
    ):
        raise RuntimeError("Not found: s3://hunter2/x/mem_000.lance")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


async def test_a_panic_in_a_future_is_an_error_as_any_other() -> None:
    """S4.19, G6: LanceDB's Rust may panic over a flipped byte; whoever reads or verifies is told,
    and nothing falls.
    """
    panic = type("RustPanic", (Exception,), {})("rust future panicked: unknown error")
    with (
        pytest.raises(LongTermError, match="failed verifying: it failed") as caught,
        map_errors("verifying"),
    ):
        raise panic
    assert caught.value.retryable
