"""Workers, owners and the connections between them, under a seed: no socket, no event loop.

The protocol is the real one, both ends and the router. The owner's actors and journal are a model:
sessions are lists of texts, committed in order, a batch at a time, by the newest owner alone. Each
step one thing happens: some bytes arrive, cut anywhere; a batch is committed; somebody asks;
somebody dies, or a connection breaks while bytes are on their way.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from remora import Receipt
from remora.actors.keyed_state import ReadValue
from remora.actors.session.messages import Append
from remora.cluster.link import OwnerEnd, WorkerEnd
from remora.cluster.router import Repeat, Router, repeat_of
from remora.cluster.wire import (
    WIRE,
    Ask,
    Cancel,
    Hello,
    ShardInfo,
    Welcome,
    WireError,
    to_raised,
)
from remora.errors import CommitFailed, OutcomeUnknown, RemoraError, RuntimeClosed
from remora.messages import Entry
from remora.testing import Operation

__all__ = ["Network"]

SESSIONS = ("one", "two")


class Disk:
    """The journal: what all owners of it, one after the other, have committed."""

    def __init__(self) -> None:
        self.epoch = 0
        self.texts: dict[str, list[str]] = {name: [] for name in SESSIONS}
        self.keys: dict[tuple[str, bytes], int] = {}

    def append(self, session: str, text: str, key: bytes | None) -> Receipt:
        """Commit a message, unless its key is known."""
        known = self.keys.get((session, key)) if key is not None else None
        if known is not None:
            return Receipt((known,), ("",), duplicate=True)
        self.texts[session].append(text)
        seq = len(self.texts[session])
        if key is not None:
            self.keys[session, key] = seq
        return Receipt((seq,), ("",), duplicate=False)


class Wire:
    """A connection: bytes on their way to each end, and who is at it."""

    def __init__(self, worker: Worker, owner: OwnerProcess) -> None:
        self.worker, self.owner = worker, owner
        self.to_owner, self.to_worker = bytearray(), bytearray()
        self.broken = False
        self.end = OwnerEnd(owner.greet, msgspec.msgpack.encode((owner.epoch,)))


class OwnerProcess:
    """A process that owns the journal, until another does."""

    def __init__(self, disk: Disk) -> None:
        disk.epoch += 1
        self.disk, self.epoch = disk, disk.epoch
        self.wires: list[Wire] = []
        self.queue: deque[tuple[Wire, Ask]] = deque()
        self.alive, self.stopped, self.draining = True, False, False

    def greet(self, _: Hello) -> Welcome:
        if self.draining:
            raise RuntimeClosed("another takes its place")
        return Welcome(WIRE, "0", (ShardInfo(self.epoch, "i"),))

    def read(self, wire: Wire, size: int) -> None:
        """Take so many of the bytes that have arrived."""
        data, wire.to_owner = bytes(wire.to_owner[:size]), wire.to_owner[size:]
        greeted = wire.end.hello is not None
        try:
            requests = wire.end.feed(data)
        except WireError:
            self.lose(wire)
            raise
        if not greeted and wire.end.hello is not None:
            for other in [one for one in self.wires if one is not wire]:
                if other.worker is wire.worker:
                    self.lose(other)
        for one in requests:
            if isinstance(one, Ask):
                self.queue.append((wire, one))
            elif isinstance(one, Cancel):
                self.queue = deque(
                    (at, ask) for at, ask in self.queue if (at, ask.number) != (wire, one.number)
                )
        self.write(wire)

    def commit(self, most: int) -> None:
        """Handle some of what waits, and answer."""
        for _ in range(min(most, len(self.queue))):
            wire, ask = self.queue.popleft()
            wire.end.reply(ask.number, self._handle(ask))
            self.write(wire)

    def _handle(self, ask: Ask) -> Any:
        if self.disk.epoch != self.epoch:
            return to_raised(CommitFailed("another process owns the journal"))
        if isinstance(ask.message, Append):
            (entry,) = ask.message.entries
            return self.disk.append(ask.session, entry.chat.decode(), ask.message.key)
        return " ".join(self.disk.texts[ask.session])

    def write(self, wire: Wire) -> None:
        if not wire.broken:
            for frame in iter(wire.end.take, None):
                wire.to_worker += frame

    def lose(self, wire: Wire) -> None:
        """Drop what a connection has left, as the owner does that sees its end."""
        wire.broken = True
        wire.to_owner.clear()
        if wire in self.wires:
            self.wires.remove(wire)
        self.queue = deque((at, ask) for at, ask in self.queue if at is not wire)


class Promise:
    """Tells the network the outcome."""

    abandoned = False

    def __init__(self, done: Callable[[Any], None]) -> None:
        self.resolve = done
        self.reject: Callable[[BaseException], None] = done


class Worker:
    """A worker process with a client for each session; a client may ask twice without waiting."""

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.name = network, name
        self.router = Router(1 << 20, lambda: None)
        self.wire: Wire | None = None
        self.end: WorkerEnd | None = None
        self.alive = True
        self.open: dict[str, int] = dict.fromkeys(SESSIONS, 0)

    def connect(self, owner: OwnerProcess) -> None:
        self.end = WorkerEnd(Hello(WIRE, worker=self.name), self.router.refuse)
        self.wire = Wire(self, owner)
        owner.wires.append(self.wire)
        self.write()

    def write(self) -> None:
        wire, end = self.wire, self.end
        if wire is None or end is None or wire.broken:
            return
        frames = [*iter(end.take, None), *self.router.pump(lambda: True)]
        for frame in frames:
            wire.to_owner += frame

    def read(self, size: int) -> None:
        wire, end = self.wire, self.end
        assert wire is not None
        assert end is not None
        data, wire.to_worker = bytes(wire.to_worker[:size]), wire.to_worker[size:]
        greeted = end.welcome is not None
        try:
            found = end.feed(data)
            if not greeted and end.welcome is not None:
                self.router.attach(end)
            for replies in found:
                self.router.take_replies(replies)
        except (WireError, RemoraError):
            self.lose()
        self.write()

    def lose(self) -> None:
        """The connection is gone; what it had sent may still arrive."""
        self.wire = self.end = None
        self.router.detach()


class Network:
    """Everything; `run` plays a seed and gives the history of each session.

    Args:
        seed: of all that happens.
        repeat: which requests the workers send again.
    """

    def __init__(self, seed: int, repeat: Callable[[object], Repeat] = repeat_of) -> None:
        self.random = random.Random(seed)
        self.repeat = repeat
        self.now = 0.0
        self.disk = Disk()
        self.owner = OwnerProcess(self.disk)
        self.former: list[OwnerProcess] = []
        self.workers = [Worker(self, f"w{n}") for n in range(2)]
        self.history: dict[str, list[Operation]] = {name: [] for name in SESSIONS}
        self.in_order: list[tuple[str, str, int]] = []
        self.left = 14
        self.asked = 0

    # -- clients -----------------------------------------------------------------------------------

    def ask(self, worker: Worker, session: str) -> None:
        """A client of the worker appends, with a key or without, or reads."""
        self.asked += 1
        self.left -= 1
        worker.open[session] += 1
        text = f"t{self.asked}"
        kind = self.random.choice(["keyed", "keyed", "plain", "read"])
        key = text.encode() if kind == "keyed" else None
        self._send(worker, session, kind, text, key, self.now)

    def _send(
        self, worker: Worker, session: str, kind: str, text: str, key: bytes | None, called: float
    ) -> None:
        message: Any = ReadValue("all")
        if kind != "read":
            message = Append((Entry(0, 0, 1, "user", text.encode()),), key, 1)

        def done(outcome: Any) -> None:
            if not worker.alive:
                return
            worker.open[session] -= 1
            if kind == "read":
                if not isinstance(outcome, BaseException):
                    self._note(session, called, self.now, "read", None, tuple(outcome.split()))
            elif isinstance(outcome, Receipt):
                self._note(session, called, self.now, "append", text, outcome.seqs[0])
                self.in_order.append((worker.name, session, self._number(text)))
            elif isinstance(outcome, CommitFailed):
                pass  # it did not happen
            elif kind == "keyed":
                worker.open[session] += 1
                self._send(worker, session, kind, text, key, called)
            else:
                assert isinstance(outcome, OutcomeUnknown)
                self._note(session, called, float("inf"), "append", text, None)

        number = worker.router.next_number()
        worker.router.submit(
            Ask(number, 0, "ann", session, message),
            Promise(done),
            float("inf"),
            repeat=self.repeat(message),
        )

    @staticmethod
    def _number(text: str) -> int:
        return int(text[1:])

    def _note(
        self, session: str, called: float, returned: float, kind: str, argument: Any, result: Any
    ) -> None:
        self.history[session].append(Operation(called, returned, kind, argument, result))

    # -- what happens ------------------------------------------------------------------------------

    def run(self, steps: int = 400) -> None:
        """Play; at the end nothing breaks any more, and everybody gets an answer."""
        chosen = self.random
        for _ in range(steps):
            self.now += 1.0
            happening = chosen.choices(
                [self._deliver, self._write, self._commit, self._client, self._break,
                 self._kill_owner, self._stop_owner, self._wake_former, self._drain,
                 self._kill_worker],
                [30, 10, 14, 14, 3, 0.6, 0.5, 2, 0.5, 0.3],
            )[0]  # fmt: skip
            happening()
            self._reconnect()
        self.left = 0
        for _ in range(4_000):
            self.now += 1.0
            self._reconnect()
            self._write()
            self._deliver()
            self.owner.commit(9)
            self._wake_former()

    def _wires(self) -> list[Wire]:
        return [wire for owner in (self.owner, *self.former) for wire in owner.wires]

    def _deliver(self) -> None:
        """Some bytes arrive somewhere."""
        ways: list[Callable[[int], None]] = []
        sizes: list[int] = []
        for wire in self._wires():
            owner = wire.owner
            if wire.to_owner and owner.alive and not owner.stopped:
                ways.append(partial(owner.read, wire))
                sizes.append(len(wire.to_owner))
        for worker in self.workers:
            if worker.wire is not None and worker.wire.to_worker:
                ways.append(worker.read)
                sizes.append(len(worker.wire.to_worker))
        if ways:
            at = self.random.randrange(len(ways))
            some = self.random.randint(1, sizes[at])
            ways[at](self.random.choice([some, sizes[at]]))

    def _write(self) -> None:
        """A tick of a worker ends: what was asked in it leaves."""
        self.random.choice(self.workers).write()

    def _commit(self) -> None:
        self.owner.commit(self.random.randint(1, 3))

    def _client(self) -> None:
        worker, session = self.random.choice(self.workers), self.random.choice(SESSIONS)
        if self.left > 0 and worker.open[session] < 2:
            self.ask(worker, session)

    def _break(self) -> None:
        """A connection breaks; the owner reads what was on its way before it notices."""
        worker = self.random.choice(self.workers)
        wire = worker.wire
        if wire is None:
            return
        wire.broken = True
        wire.to_worker.clear()
        if self.random.random() < 0.5:
            del wire.to_owner[self.random.randint(0, len(wire.to_owner)) :]
        worker.lose()

    def _replace_owner(self) -> None:
        for worker in self.workers:
            if worker.wire is not None:
                worker.wire.broken = True
                worker.lose()
        self.owner = OwnerProcess(self.disk)

    def _kill_owner(self) -> None:
        self.owner.alive = False
        self.owner.queue.clear()
        self._replace_owner()

    def _stop_owner(self) -> None:
        """It hangs, and is replaced; it goes on later, with what it had."""
        self.owner.stopped = True
        self.former.append(self.owner)
        self._replace_owner()

    def _wake_former(self) -> None:
        for former in self.former:
            former.stopped = False
            former.commit(2)

    def _drain(self) -> None:
        """It closes politely: answers what it has, and goes when everybody has parted."""
        owner = self.owner
        if not owner.draining:
            owner.draining = True
            for wire in owner.wires:
                if wire.end.hello is not None:
                    wire.end.drain()
                    owner.write(wire)
        elif not owner.queue and all(
            wire.broken or wire.end.parted or wire.end.refused or wire.end.hello is None
            for wire in owner.wires
        ):
            self._kill_owner()

    def _kill_worker(self) -> None:
        at = self.random.randrange(len(self.workers))
        worker = self.workers[at]
        worker.alive = False
        if worker.wire is not None:
            worker.wire.broken = True
        self.asked += 1
        self.workers[at] = Worker(self, f"{worker.name}-{self.asked}")

    def _reconnect(self) -> None:
        for worker in self.workers:
            if worker.end is not None and worker.end.draining:
                worker.write()
            lost = worker.wire is not None and worker.wire.broken
            if lost:
                worker.lose()
            if worker.wire is None and not self.owner.draining:
                worker.connect(self.owner)
        if self.owner.draining:
            self._drain()
