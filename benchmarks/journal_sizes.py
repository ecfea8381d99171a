"""How long maintenance takes on a journal of a given size.

    python -m benchmarks.journal_sizes [--megabytes 100 1000] [--dir DIR] [--json FILE]

Measured: opening, reading, verifying, copying, forgetting, scrubbing and trimming. Opening does not
depend on the size; verifying, copying and scrubbing read or write all of it. Appends wait during
scrubbing, and the longest wait is reported as well.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from benchmarks.shared import texts
from remora.ids import SessionKey
from remora.messages import encode_message
from remora.runtime.log import commit_records
from remora.storage.ports import Retention
from remora.storage.records import Appended, BufferMoved, Opened, Watermarks
from remora.storage.sqlite.journal import SqliteJournal

SESSIONS = 1_000
AT_ONCE = 20  # messages of a session in one write


async def fill(journal: SqliteJournal, megabytes: int, path: Path) -> int:
    """Sessions of chat messages, side by side, until the file has its size; returns how many
    messages there are.
    """
    encoded = [encode_message(message)[0] for message in texts(1_000)]
    async with anyio.create_task_group() as tasks:
        for sid in range(1, SESSIONS + 1):
            tasks.start_soon(commit_records, journal, [Opened(sid, f"user {sid}", "chat", 0)])
    seq = 0
    while path.stat().st_size < megabytes << 20:  # noqa: ASYNC240
        async with anyio.create_task_group() as tasks:
            for sid in range(1, SESSIONS + 1):
                entries = tuple(
                    encoded[(sid + seq + n) % 1_000].with_seq(seq + n + 1) for n in range(AT_ONCE)
                )
                tasks.start_soon(commit_records, journal, [Appended(sid, entries, None)])
        seq += AT_ONCE
        await journal.checkpoint()
    front = seq - 20
    async with anyio.create_task_group() as tasks:
        for sid in range(1, SESSIONS + 1):
            tasks.start_soon(
                commit_records,
                journal,
                [BufferMoved(sid, Watermarks(0, front, front, 0), at_seq=seq, reason="dropped")],
            )
    return seq * SESSIONS


async def took(work: Callable[[], Awaitable[Any]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def measure(directory: Path, megabytes: int) -> dict[str, Any]:
    path = directory / "journal.db"
    figures: dict[str, Any] = {"megabytes": megabytes}
    journal = await SqliteJournal.open(path, durability="process")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.run)
        figures["messages"] = await fill(journal, megabytes, path)
        tasks.cancel_scope.cancel()
    await journal.aclose()
    begun = time.perf_counter()
    journal = await SqliteJournal.open(path, durability="power")
    figures["open_s"] = time.perf_counter() - begun
    figures["bytes"] = path.stat().st_size
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.run)
        key = SessionKey("user 7", "chat")
        figures["activation_s"] = await took(lambda: journal.hydrate([key]))
        figures["history_s"] = await took(lambda: journal.read(key, 1, 1 << 20))
        figures["verify_s"] = await took(journal.verify)
        figures["backup_s"] = await took(lambda: journal.backup(directory / "copy.db"))
        figures["erase_user_s"] = await took(lambda: journal.erase("user 7"))
        waits, going = [0.0], [True]

        async def append() -> None:
            (image,) = await journal.hydrate([SessionKey("user 8", "chat")])
            seq = image.next_seq  # type: ignore[union-attr]
            entry = encode_message({"role": "user", "content": "beside it"})[0]
            while going[0]:
                record = Appended(8, (entry.with_seq(seq),), None)
                waits.append(await took(lambda record=record: commit_records(journal, [record])))  # type: ignore[misc]
                seq += 1
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as beside:
            beside.start_soon(append)
            figures["scrub_s"] = await took(journal.scrub)
            figures["longest_append_beside_it_s"] = max(waits)
            waits.clear()
            figures["trim_half_s"] = await took(
                lambda: journal.trim(Retention(max_bytes=figures["bytes"] // 3), 0)
            )
            figures["longest_append_beside_trim_s"] = max(waits)
            going[0] = False
        figures["bytes_after_trim"] = path.stat().st_size
        tasks.cancel_scope.cancel()
    await journal.aclose()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 1_000])
    parser.add_argument(
        "--dir", type=Path, help="where the journals are made (default: a temporary directory)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    found = []
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory(dir=options.dir) as directory:
            figures = anyio.run(measure, Path(directory), megabytes)
        found.append(figures)
        for name, value in figures.items():
            print(
                f"{name:>30} {value:,.4f}" if isinstance(value, float) else f"{name:>30} {value:,}"
            )
        print()
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
