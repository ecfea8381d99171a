"""Answers other processes of the same account about a memory that this process has open.

A thread of its own answers, at a socket in the memory directory: also while the event loop is busy
or stuck. One line of JSON is asked, one is answered, at once.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from remora.logging import get_logger
from remora.storage.sockets import has_sockets, is_ours, listen_at, peer_of

_logger = get_logger(__name__)
SOCKET_NAME = "status.sock"
MAX_LINE_BYTES = 256 << 10
"""Of a question."""
_MOST_CONNECTIONS = 64
_IDLE_S = 60.0
_PAUSE_S = 0.05


def socket_name(number: int) -> str:
    """Of the process that has this number among those that own a memory together."""
    return f"status-{number}.sock" if number else SOCKET_NAME


def start_answering(
    directory: Path, answer: Callable[[bytes], bytes], number: int = 0
) -> AnswerThread | None:
    """Answer at the socket of a memory directory, which this process owns. Blocks.

    Args:
        directory: the memory's.
        answer: the answer to a question, both without the end of the line; called in the thread.
        number: of this process among those that own the memory together.

    Returns:
        None where that is not possible, which is logged: a memory works without it.
    """
    if not has_sockets():
        return None
    try:
        thread = AnswerThread(directory / socket_name(number), answer)
        thread.start()
    except (OSError, RuntimeError) as e:  # a file system without sockets; no more threads
        _logger.warning("status_not_answered", path=str(directory), error=str(e))
        return None
    return thread


class AnswerThread(threading.Thread):
    """Serves the socket until it is stopped.

    Args:
        path: of the socket.
        answer: see `start_answering`. What it raises ends the connection.

    Raises:
        OSError: nothing can listen there.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], bytes]) -> None:
        super().__init__(name="remora.status", daemon=True)
        self._path = path
        self._answer = answer
        self._ended = False
        self._pid = os.getpid()
        self._listener = listen_at(path, _MOST_CONNECTIONS)
        self._file = path.lstat().st_ino
        self._listener.setblocking(False)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._listener, selectors.EVENT_READ)
        self._peers: dict[socket.socket, _Peer] = {}
        _threads.add(self)

    def stop(self) -> None:
        """Answer no more, and remove the socket. Blocks until the thread has ended."""
        self._ended = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self.is_alive():
            self.join()
        with contextlib.suppress(OSError):
            if os.getpid() == self._pid and self._path.lstat().st_ino == self._file:
                self._path.unlink()

    def close_in_child(self) -> None:
        """A forked process has the sockets, and no thread that answers."""
        self._ended = True
        self._ready.close()
        for one in (self._listener, *self._peers):
            one.close()

    def run(self) -> None:
        """Answer until `stop`."""
        try:
            while not self._ended:
                for key, events in self._ready.select(_IDLE_S if self._peers else None):
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    if one is self._listener:
                        self._accept()
                    else:
                        self._serve(one, events)
                self._end_idle()
        except Exception:  # a defect; the memory goes on without it
            _logger.exception("status_failed")
        finally:
            for one in (*self._peers, self._listener):
                one.close()
            self._peers.clear()
            self._ready.close()

    def _accept(self) -> None:
        try:
            one, _ = self._listener.accept()
        except OSError:  # it is closed, or there are too many files
            if not self._ended:
                time.sleep(_PAUSE_S)
            return
        uid = peer_of(one)[1]
        ours = is_ours(uid)
        if not ours:
            _logger.warning("status_refused", uid=uid)
        if not ours or len(self._peers) >= _MOST_CONNECTIONS:
            one.close()
            return
        one.setblocking(False)
        self._ready.register(one, selectors.EVENT_READ)
        self._peers[one] = _Peer()

    def _serve(self, one: socket.socket, events: int) -> None:
        """Read and write what can be; a peer that asks on reads its answer first."""
        peer = self._peers[one]
        peer.used_at = time.monotonic()
        try:
            if events & selectors.EVENT_READ:
                data = one.recv(MAX_LINE_BYTES)
                peer.asked += data
                if not data or len(peer.asked) > MAX_LINE_BYTES:
                    raise ConnectionError
            if not peer.answer and (line := peer.take_line()) is not None:
                peer.answer = self._answer(line) + b"\n"
            if peer.answer:
                with contextlib.suppress(BlockingIOError):
                    peer.answer = peer.answer[one.send(peer.answer) :]
        except Exception as e:
            if not isinstance(e, OSError):
                _logger.warning("status_question_refused", error=type(e).__name__)
            self._end(one)
            return
        more = b"\n" in peer.asked
        wanted = selectors.EVENT_WRITE if peer.answer or more else selectors.EVENT_READ
        self._ready.modify(one, wanted)

    def _end(self, one: socket.socket) -> None:
        self._ready.unregister(one)
        del self._peers[one]
        one.close()

    def _end_idle(self) -> None:
        before = time.monotonic() - _IDLE_S
        for one in [one for one, peer in self._peers.items() if peer.used_at < before]:
            self._end(one)


class _Peer:
    """A connection: what was asked and is not answered, and what of the answer is not sent."""

    def __init__(self) -> None:
        self.asked = b""
        self.answer = b""
        self.used_at = time.monotonic()

    def take_line(self) -> bytes | None:
        line, end, rest = self.asked.partition(b"\n")
        if not end:
            return None
        self.asked = rest
        return line


_threads: weakref.WeakSet[AnswerThread] = weakref.WeakSet()


def _close_in_child() -> None:
    for thread in list(_threads):
        thread.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
