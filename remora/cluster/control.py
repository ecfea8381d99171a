"""Pings, and requests to leave: questions that a thread of the owner answers at its socket.

A worker can so tell an owner whose process hangs from one whose event loop is busy. The first is
killed after seconds: a process that was stopped, and goes on later, would write what is out of
date. Its id is the kernel's, or that of the process that has proved itself, and it is killed by a
handle that was made while it lived, so that no other process can be meant.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self

import msgspec

from remora.api.status import RuntimeStatus, StatusQuestion
from remora.errors import OwnerUnreachable
from remora.logging import get_logger
from remora.system.forks import give_up_in_children, keep_in_children
from remora.system.processes import ProcessHandle, work_s
from remora.system.sockets import Unproved, connect_peer, is_readable

_logger = get_logger(__name__)
_MOST_BYTES = 4_096
_DEATH_S = 10.0
_LEAST_WORK_S = 0.03


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Are you there?"""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End, so that another may become the owner.

    Attributes:
        release: of the next owner; empty if none is to come.
        digest: of its configuration.
    """

    release: str = ""
    digest: str = ""


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Ask for the figures of each shard."""


class ShardFigures(msgspec.Struct, frozen=True):
    """The figures of a shard.

    Attributes:
        epoch: the number of its owners so far.
        sessions: sessions and users in memory.
        queue: requests that wait.
    """

    epoch: int
    sessions: int
    queue: int


class Answer(msgspec.Struct, frozen=True):
    """The answer of the owner.

    Attributes:
        phase: what it does.
        stuck_s: how long its event loop has not run.
        stays: it was started by hand, and is to be ended in the same way.
        workers: how many are connected; of `Look` only, as what follows.
        shards: by number.
    """

    phase: Literal["starting", "serving", "leaving"]
    stuck_s: float = 0.0
    stays: bool = False
    workers: int = 0
    shards: tuple[ShardFigures, ...] = ()


_decode = msgspec.json.Decoder(Ping | Leave | Look | StatusQuestion).decode


class Control:
    """The owner's side: what it answers, in the thread of its socket.

    Args:
        on_leave: called in the event loop's thread.
        stays: see `Answer`.

    Attributes:
        phase: what the owner does.
        figures: the workers that are connected, and what each shard does.
        status: answers a `StatusQuestion`; None while there is no memory.
    """

    def __init__(self, on_leave: Callable[[Leave], None], *, stays: bool) -> None:
        self.phase: Literal["starting", "serving", "leaving"] = "starting"
        self.figures: Callable[[], tuple[int, tuple[ShardFigures, ...]]] = _nothing
        self.status: Callable[[StatusQuestion], RuntimeStatus] | None = None
        self._stays = stays
        self._on_leave = on_leave
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_at: float | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch this loop from now on; call it in the loop's thread."""
        self._loop = loop

    def answer(self, line: bytes) -> bytes:
        """The answer to a line; see `remora.services.answering`.

        Raises:
            msgspec.DecodeError: it is no question.
            OwnerUnreachable: the owner has no memory to speak of.
        """
        message = _decode(line)
        if not isinstance(message, StatusQuestion):
            return msgspec.json.encode(self._answer(message))
        if self.status is None:
            raise OwnerUnreachable("the memory is not open")
        return msgspec.json.encode(self.status(message))

    def _answer(self, message: Ping | Leave | Look) -> Answer:
        now, loop = time.monotonic(), self._loop
        if isinstance(message, Leave) and loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._on_leave, message)
        stuck_s = 0.0
        if self._asked_at is not None:
            stuck_s = now - self._asked_at
        elif loop is not None and not loop.is_closed():
            self._asked_at = now
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._loop_runs)
        workers, shards = self.figures() if isinstance(message, Look) else (0, ())
        return Answer(self.phase, round(stuck_s, 3), self._stays, workers, shards)

    def _loop_runs(self) -> None:
        self._asked_at = None


def _nothing() -> tuple[int, tuple[ShardFigures, ...]]:
    return 0, ()


class OwnerGone(Exception):
    """There is no such process any more."""


class OwnerSilent(Exception):
    """It did not answer in time."""


class ControlLink:
    """The worker's side; everything blocks. Use it with ``with``.

    Args:
        path: of the owner's socket.
        silent_s: how long to wait for an answer.
        busy_s: how long, if its process works.

    Raises:
        OwnerGone: nobody listens there.
        OwnerUnreachable: it belongs to another account.
    """

    def __init__(self, path: str, silent_s: float, busy_s: float) -> None:
        self._busy_s = busy_s
        self._process: ProcessHandle | None = None
        try:
            self._link, self.pid = connect_peer(Path(path), silent_s)
        except OwnerUnreachable:  # of another account
            raise
        except Unproved as e:  # it hangs, or has died and another process has its port
            raise OwnerGone(str(e)) from e
        except (BlockingIOError, TimeoutError) as e:  # so many wait to be accepted
            raise OwnerUnreachable(f"the owner at {path} accepts no connections") from e
        except OSError as e:
            raise OwnerGone(str(e)) from e
        give_up_in_children(self._link.fileno())
        try:
            self._identify()
        except OSError as e:
            self.close()
            raise OwnerGone(str(e)) from e
        except BaseException:
            self.close()
            raise

    def _identify(self) -> None:
        if self.pid > 0:  # 0: it is in a namespace that this process cannot see
            self._process = ProcessHandle(self.pid)
            # nothing was asked, so all that can come is the end: it died in between
            if is_readable(self._link):  # and the handle may be of another process
                raise OSError("it died")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        keep_in_children(self._link.fileno())
        self._link.close()
        if self._process is not None:
            self._process.close()
            self._process = None

    def ask(self, message: Ping | Leave | Look | None = None) -> Answer:
        """Send a message, a ping by default; returns the answer.

        A process that works, or waits for its disk, is given more time: it may load a library,
        which stops all of its threads.

        Raises:
            OwnerSilent: no answer in time.
            OwnerGone: it has ended.
        """
        end = time.monotonic() + self._busy_s
        try:
            before = work_s(self.pid)
            self._link.sendall(msgspec.json.encode(message or Ping()) + b"\n")
            line = b""
            while True:
                with contextlib.suppress(TimeoutError):
                    while not line.endswith(b"\n"):
                        if not (data := self._link.recv(_MOST_BYTES)):
                            raise OwnerGone("it closed the connection")
                        line += data
                    return msgspec.json.decode(line, type=Answer)
                after = work_s(self.pid)
                idle = math.isfinite(before + after) and after - before < _LEAST_WORK_S
                if idle or time.monotonic() > end:
                    raise OwnerSilent
                before = after
        except (TimeoutError, BlockingIOError) as e:
            raise OwnerSilent from e
        except (OSError, msgspec.DecodeError) as e:
            raise OwnerGone(str(e)) from e

    def kill(self, why: str) -> None:
        """Kill the owner; return when it is dead.

        Raises:
            OwnerUnreachable: it cannot be killed.
        """
        _logger.error("owner_killed", pid=self.pid, why=why)
        try:
            if self._process is None:
                raise PermissionError(1, "it is in another namespace")
            self._process.kill()
        except ProcessLookupError:
            return
        except OSError as e:
            raise OwnerUnreachable(
                f"the owner, process {self.pid or '?'}, {why}, and cannot be killed: {e.strerror}"
            ) from e
        if not self.wait(_DEATH_S):
            raise OwnerUnreachable(
                f"the owner, process {self.pid}, {why}, and did not die: the system waits for its "
                "disk"
            )

    def wait(self, seconds: float) -> bool:
        """Wait until the owner has ended; whether it has."""
        return self._process is not None and self._process.wait(seconds)
