"""A stand-in for an owner, with a real seat and no memory; it is started as owners are.

``STAND_IN`` in the environment says what is wrong with it: ``dies`` or ``refuses`` at its start;
``stuck``: its event loop hangs while a file ``stuck`` is in the directory; ``slow``: it serves when
a file ``go`` is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from remora.cluster.owner import Seat
from remora.cluster.place import Place
from remora.cluster.spawn import OwnerFinder, Report, StartOrder
from remora.cluster.target import read_target

__all__ = ["COMMAND", "finder", "make_target"]

COMMAND = (sys.executable, "-m", "tests.owners")
TARGET = """\
directory: {directory}
long_term: {{enabled: false}}
tokens: {{counter: heuristic}}
cluster: {{linger_s: 1, wait_s: {wait_s}, silent_s: {silent_s}, stuck_s: {stuck_s},
  max_deaths: {deaths}}}
"""


def make_target(
    path: Path,
    *,
    silent_s: float = 600,
    stuck_s: float = 600,
    deaths: int = 3,
    wait_s: float = 600,
) -> Path:
    """A configuration file for a memory beside it."""
    file = path / "remora.yaml"
    text = TARGET.format(
        directory=path / "memory", silent_s=silent_s, stuck_s=stuck_s, deaths=deaths, wait_s=wait_s
    )
    file.write_text(text)
    return file


def finder(file: Path) -> OwnerFinder:
    """What finds or starts a stand-in."""
    target = read_target(file)
    return OwnerFinder(target, Place(target.directory), command=COMMAND)


def say(**report: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # the worker waited no longer
        os.write(1, msgspec.json.encode(Report(**report)) + b"\n")  # type: ignore[arg-type]


async def serve(seat: Seat, digest: str) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)

    def leave(message: object) -> None:
        seat.leave(message)  # type: ignore[arg-type]
        ended.set()

    seat.announce(leave)
    while os.environ.get("STAND_IN") == "slow" and not (seat.place.directory / "go").exists():
        await asyncio.sleep(0.02)
    seat.control.attach(loop)
    seat.serve(digest)
    say(serving=True)
    stuck = seat.place.directory / "stuck"
    while not ended.is_set():
        if os.environ.get("STAND_IN") == "stuck" and stuck.exists():
            time.sleep(60)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), 0.05)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=StartOrder)
    fault = os.environ.get("STAND_IN")
    place = Place(Path(order.directory))
    with place.directory.joinpath("started").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if fault == "dies":
        sys.exit("the factory raised: no such host")
    if fault == "refuses":
        return say(failed="journal.db is damaged")
    target = read_target(order.target)
    seat = Seat(place, target.text, stays=False, logs=True)
    if not seat.take():
        return say(taken=True)
    asyncio.run(serve(seat, target.digest))
    seat.release()
    return None


if __name__ == "__main__":
    main()
