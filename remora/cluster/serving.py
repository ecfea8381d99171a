"""The owner's side of the connections: requests of workers go to the runtimes of the shards."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import msgspec

from remora.actors.session.messages import Append, Load, Replace
from remora.api.build import Internals
from remora.api.operator import Operator
from remora.cluster.calls import CallType, find_call, perform
from remora.cluster.link import WINDOW, OwnerEnd, Work
from remora.cluster.sharding import WHOLE, Share, another_count, another_division
from remora.cluster.wire import (
    WIRE,
    Ask,
    Call,
    Hello,
    Outcome,
    Progress,
    Returned,
    ShardInfo,
    UnreadableCall,
    Welcome,
    WireError,
    call_mismatch,
    release,
    to_raised,
)
from remora.errors import MailboxFull, ProtocolMismatch, RemoraError, RuntimeClosed
from remora.ids import SessionKey, actor_key
from remora.logging import get_logger
from remora.recall.planner import Planner
from remora.runtime.meters import HistogramMeter
from remora.system.forks import give_up_in_children, keep_in_children

_logger = get_logger(__name__)
_AT_ONCE = 256  # requests of a worker that are begun before others have their turn
MOST_OPEN = 4_096  # requests of a worker that are not answered; more are not read
MOST_WAITING = 16_384  # requests of a worker that wait for others, which may come after them
_POLL_S = 0.01
_GREETING_S = 10.0
_OF_ALL = frozenset({"runtime.backup", "runtime.export", "runtime.import_"})


class Served:
    """Serves workers: `make_protocol` is for ``loop.create_unix_server``.

    Args:
        shards: the parts of opened runtimes and their operators, by number.
        whole: the operator of all of them, for exports, imports and backups.
        share: which shards of the memory they are; other processes own the others.
        of: how many shards the memory has; None for those that are given.
    """

    def __init__(
        self,
        shards: Sequence[tuple[Internals, Operator]],
        *,
        whole: Operator,
        share: Share = WHOLE,
        of: int | None = None,
    ) -> None:
        self._share = share
        self._count = of or len(shards)
        self.whole = whole
        self.shards = tuple(_Shard(*one) for one in shards)
        self._links: dict[_Link, None] = {}
        self._draining = False
        self._infos = tuple(shard.info for shard in self.shards)
        self._epochs = msgspec.msgpack.encode(tuple(info.epoch for info in self._infos))

    @property
    def links(self) -> int:
        """How many workers are connected."""
        return len(self._links)

    def make_protocol(self) -> asyncio.Protocol:
        """Return what serves one connection."""
        return _Link(self)

    async def drain(self, seconds: float, parting_s: float | None = None) -> None:
        """Take no more requests, answer those that are here, and close all connections.

        Args:
            seconds: to wait for them; what is not answered then, never is.
            parting_s: to wait for workers that ask nothing, and do not say that they have heard of
                it; None for `seconds`.
        """
        self._draining = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            for link in list(self._links):
                link.drain()
            while self._links and loop.time() - began < seconds:
                late = parting_s is not None and loop.time() - began > parting_s
                for link in list(self._links):
                    if link.is_done or (late and link.is_idle):
                        link.close()
                await asyncio.sleep(_POLL_S)
        finally:
            for link in list(self._links):
                link.abort()

    # -- for the links -----------------------------------------------------------------------------

    def make_end(self) -> OwnerEnd:
        """The protocol of a new connection."""
        return OwnerEnd(self._greet, self._epochs)

    def _greet(self, hello: Hello) -> Welcome:
        if self._draining:
            raise RuntimeClosed("the owner of the memory is closing; another takes its place")
        share = self._share
        if hello.owners != share.owners or (share.owners > 1 and hello.shard != share.number):
            raise another_count(share.owners, hello.owners)
        if hello.shards not in {0, self._count}:
            raise another_division(self._count, hello.shards)
        return Welcome(WIRE, release(), self._infos)

    def add(self, link: _Link) -> None:
        """Note a new connection."""
        self._links[link] = None

    def remove(self, link: _Link) -> None:
        """Forget a connection."""
        self._links.pop(link, None)

    def end_earlier(self, worker: str, newest: _Link) -> None:
        """End the earlier connections of a worker, with all that they still hold."""
        for link in list(self._links):
            if link is not newest and worker and link.worker == worker:
                link.abort()


class _Shard:
    """A runtime, as its links use it."""

    def __init__(self, built: Internals, operator: Operator) -> None:
        parts = built.parts
        self.operator = operator
        self.parts = parts
        self.registry = built.registry
        self.planner = built.planner
        self.verbs = built.verbs
        self.journal = built.journal
        self.waits = parts.config.buffer.overdraft == "wait"
        self.info = ShardInfo(
            built.journal.epoch,
            parts.instance,
            recalls=parts.recalls is not None,
            blocks=built.planner.tiers.blocks is not None,
            digest_keys=tuple(built.eraser.digest_keys),
        )


_Turn: TypeAlias = tuple[_Shard, SessionKey, int]


class _Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._end = served.make_end()
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._todo: deque[Work] = deque()
        self._open: dict[int, Answer | asyncio.Task[None]] = {}
        self._again: set[int] = set()  # of these, what the worker sends to the next owner as well
        self._waiting: set[int] = set()  # of these, turns, and who follows a session
        self._posted: set[asyncio.Task[None]] = set()
        self._turns: dict[_Turn, int] = {}
        self._begun: dict[int, _Turn] = {}
        self._flushing = self._working = self._full = self._read_paused = self._closed = False
        self._told = False
        self._descriptor = -1
        self._heard_at = self._loop.time()
        self._watching: asyncio.TimerHandle | None = None

    @property
    def worker(self) -> str:
        """The worker's name; empty until it has said hello."""
        return self._end.hello.worker if self._end.hello is not None else ""

    @property
    def is_done(self) -> bool:
        """Return whether the worker sends nothing more, and has all answers that it needs."""
        return self._end.hello is None or (self._end.parted and self.is_idle)

    @property
    def is_idle(self) -> bool:
        """Return whether the worker has all answers that it needs, to what it has sent so far."""
        return not (self._todo or self._end.queued or not self._open.keys() <= self._again)

    # -- the transport -----------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`, as for the others."""
        self._transport = transport
        self._loop.call_later(_GREETING_S, self._end_if_silent)
        self._descriptor = transport.get_extra_info("socket").fileno()
        give_up_in_children(self._descriptor)  # the worker sees the end of this process, not theirs
        transport.set_write_buffer_limits(high=WINDOW)
        self._served.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        keep_in_children(self._descriptor)
        self._served.remove(self)
        self._todo.clear()
        for one in (*self._open.values(), *self._posted):
            one.cancel()
        self._open.clear()
        self._again.clear()
        self._waiting.clear()
        for turn in list(self._turns):
            self._end_turn(*turn)

    def pause_writing(self) -> None:
        self._full = True
        self._pace()

    def resume_writing(self) -> None:
        self._full = False
        self._flush()
        self._pace()

    def data_received(self, data: bytes) -> None:
        greeted = self._end.hello is not None
        self._heard_at = self._loop.time()
        try:
            self._todo.extend(self._end.feed(data))
        except WireError as e:
            self._refuse(e)
            return
        if not greeted and self._end.hello is not None:
            self._served.end_earlier(self.worker, self)
            self._flush()
            if self._end.refused:
                self.close()
        if not self._working:
            self._work()

    def close(self) -> None:
        """Close the connection when all is written."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()
        if not self._closed:
            self._closed = True  # what it holds must not run any more
            self.connection_lost(None)

    def _end_if_silent(self) -> None:
        """End a connection by which no worker has said hello."""
        if self._end.hello is None and not self._closed:
            self.abort()

    def _refuse(self, error: WireError) -> None:
        _logger.warning("worker_garbled", problem=str(error)[:200])
        self.abort()

    def drain(self) -> None:
        """Tell the worker that nothing more is taken."""
        if self._end.hello is not None:
            self._end.drain()
            self._flush_soon()

    def _pace(self) -> None:
        """Read no more of a worker that does not read, or has too many open requests."""
        count = len(self._open) - len(self._waiting) + len(self._todo)
        pause = self._full or count > MOST_OPEN
        if pause is not self._read_paused and not self._transport.is_closing():
            self._read_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # -- requests ----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Begin what has arrived, a bounded part of it at once."""
        todo = self._todo
        for _ in range(min(len(todo), _AT_ONCE)):
            if self._closed:
                return
            one = todo.popleft()
            try:
                if isinstance(one, Ask):
                    self._ask(one)
                elif isinstance(one, Call):
                    self._call(one)
                else:
                    self._cancel(one.number)
            except WireError as e:
                self._refuse(e)
                return
        self._working = bool(todo)
        if todo:
            self._loop.call_soon(self._work)
        self._pace()

    def _ask(self, ask: Ask) -> None:
        shard = self._shard(ask.shard)
        message, number = ask.message, ask.number
        key = actor_key(ask.user, ask.session)
        if not number:
            shard.registry.post(key, message)
            return
        self._check_number(number)
        if self._is_lapsed(shard, number):
            return
        answer: Answer
        if type(message) is Append:
            if any(one.blobs for one in message.entries) and isinstance(key, SessionKey):
                try:
                    begun = shard.parts.appends.begin(key, message, ask.timeout_s)
                except RemoraError as e:
                    self._refuse_call(number, e)
                    return
                self._start(number, lambda: begun, again=message.key is not None)
                return
            if (shard.waits or message.replace) and isinstance(key, SessionKey):
                append = partial(shard.parts.appends.append, key, message, ask.timeout_s)
                self._start(number, append, again=message.key is not None)
                return
            answer = TimedAnswer(self, number, shard.verbs.append_s)
        elif type(message) is Replace and isinstance(key, SessionKey):
            self._start(number, partial(shard.parts.appends.replace, key, message), again=False)
            return
        elif type(message) is Load:
            if shard.planner.has_fronts and isinstance(key, SessionKey):
                answer = LoadAnswer(self, number, shard.verbs.load_s, shard.planner, key)
            else:
                answer = TimedAnswer(self, number, shard.verbs.load_s)
        else:
            answer = Answer(self, number)
        self._open[number] = answer
        shard.registry.submit(key, message, answer, size=ask.size, timeout_s=ask.timeout_s)

    def _call(self, call: Call) -> None:
        shard, number = self._shard(call.shard), call.number
        if number:
            self._check_number(number)
            if self._is_lapsed(shard, number):
                return
        try:
            kind = find_call(call.name)
            if kind.name == "turns.begin":
                self._start_turn(shard, number, kind, call.arguments)
            elif kind.name == "turns.end":
                self._end_turn(shard, **kind.decode_arguments(call.arguments))
            elif kind.name == "archive.follow":
                self._wait(number, partial(self._perform, shard, call))
            else:
                function = partial(self._perform, shard, call)
                self._start(number, function, again=kind.repeat == "read")
        except UnreadableCall as e:
            self._refuse_call(number, self._explain(e))

    def _check_number(self, number: int) -> None:
        if number in self._open or number in self._begun:
            raise WireError(f"the number {number} of two requests")

    def _is_lapsed(self, shard: _Shard, number: int) -> bool:
        """Return whether another process may own the journal; the worker is told so."""
        try:
            shard.journal.check_lease()
        except RemoraError as e:
            self._refuse_call(number, e)
            return True
        return False

    def _explain(self, error: UnreadableCall) -> ProtocolMismatch:
        if not self._told:
            self._told = True  # it may ask every second
            _logger.warning("call_unreadable", problem=str(error)[:200])
        assert self._end.hello is not None
        return call_mismatch(self._end.hello, error)

    def _refuse_call(self, number: int, error: RemoraError) -> None:
        if number:
            self._end.reply(number, to_raised(error))
            self._flush_soon()

    async def _perform(self, shard: _Shard, call: Call) -> Outcome:
        returned = await perform(
            call.name,
            call.arguments,
            parts=shard.parts,
            verbs=self._served.whole if call.name in _OF_ALL else shard.operator,
            progress=partial(self._tell, call.number),
        )
        return Returned(returned)

    def _tell(self, number: int, done: int, total: int) -> None:
        """Say how far a call is; from any thread."""
        self._loop.call_soon_threadsafe(self._tell_here, number, done, total)

    def _tell_here(self, number: int, done: int, total: int) -> None:
        if number in self._open:
            self._end.reply(number, Progress(done, total))
            self._flush_soon()

    # -- turns -------------------------------------------------------------------------------------

    def _start_turn(self, shard: _Shard, number: int, kind: CallType, data: bytes) -> None:
        arguments = kind.decode_arguments(data)
        self._wait(number, partial(self._begin_turn, shard, number, kind, arguments))

    def _wait(self, number: int, function: Callable[[], Awaitable[Outcome]]) -> None:
        """Start what may wait for another request."""
        if not number:
            raise WireError("a request that waits, of somebody who does not")
        if len(self._waiting) >= MOST_WAITING:
            text = f"{MOST_WAITING} requests of this process wait; nothing ran, retry later"
            self._refuse_call(number, MailboxFull(text, limit="total"))
            return
        self._waiting.add(number)
        self._start(number, function, again=True)

    async def _begin_turn(
        self, shard: _Shard, number: int, kind: CallType, arguments: dict[str, Any]
    ) -> Outcome:
        turn = await shard.parts.turns.begin(**arguments)
        if turn:
            begun = (shard, arguments["key"], turn)
            self._turns[begun] = number
            self._begun[number] = begun
            if self._watching is None:
                self._watch(shard.parts.config.cluster.worker_silent_s)
        return Returned(await kind.encode_result(turn))

    def _watch(self, patience_s: float) -> None:
        """Close the connection of a worker that has turns, and stands still.

        A worker asks for figures every second.
        """
        self._watching = None
        if not self._turns or self._closed:
            return
        now = self._loop.time()
        if self._read_paused:
            self._heard_at = now
        silent_s = now - self._heard_at
        if silent_s >= patience_s:
            _logger.warning("worker_silent", turns=len(self._turns), seconds=round(silent_s))
            self.abort()
            return
        pause_s = min(patience_s - silent_s, patience_s / 4)
        self._watching = self._loop.call_later(pause_s, self._watch, patience_s)

    def _end_turn(self, shard: _Shard, key: SessionKey, number: int) -> None:
        request = self._turns.pop((shard, key, number), 0)
        if request:
            self._begun.pop(request, None)
            shard.parts.turns.end(key, number)

    def _cancel(self, number: int) -> None:
        """Nobody waits for the answer; a turn that has begun in the meantime ends."""
        gone = self._open.pop(number, None)
        if gone is not None:
            gone.cancel()
            self._forget(number)
        elif number in self._begun:
            self._end_turn(*self._begun[number])

    # -- tasks and answers -------------------------------------------------------------------------

    def _start(
        self, number: int, function: Callable[[], Awaitable[Outcome]], *, again: bool
    ) -> None:
        """Answer with what `function` returns; `again`: the worker may ask the next owner."""
        task = self._loop.create_task(self._run(number, function), name="remora.call")
        if number:
            self._open[number] = task
            if again:
                self._again.add(number)
        else:
            self._posted.add(task)
            task.add_done_callback(self._posted.discard)

    async def _run(self, number: int, function: Callable[[], Awaitable[Outcome]]) -> None:
        value: Outcome
        try:
            value = await function()
        except UnreadableCall as e:
            value = to_raised(self._explain(e))
        except WireError as e:
            self._refuse(e)
            return
        except Exception as e:
            if not isinstance(e, RemoraError):
                _logger.exception("call_failed")
            value = to_raised(e)
        if number:
            self._forget(number)
            self.answer(number, value)

    def _forget(self, number: int) -> None:
        self._again.discard(number)
        self._waiting.discard(number)

    def answer(self, number: int, value: Outcome) -> None:
        """Send what came of a request, unless nobody waits for it any more."""
        if self._open.pop(number, None) is None or self._closed:
            return
        self._end.reply(number, value)
        if not self._flushing:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write all answers of this tick, in one frame if they are not too long."""
        self._flushing = False
        end, transport = self._end, self._transport
        while not self._full and not self._closed:
            frame = end.take()
            if frame is None:
                break
            transport.write(frame)
        if self._read_paused:
            self._pace()

    def _shard(self, number: int) -> _Shard:
        if not 0 <= number < len(self._served.shards):
            raise WireError(f"there is no shard {number}")
        return self._served.shards[number]


# -- the promises of requests whose callers are in another process ---------------------------------


class Link(Protocol):
    """A connection to a worker."""

    def answer(self, number: int, value: Outcome) -> None:
        """Send what came of a request."""
        ...


class Answer:
    """The promise of a request whose caller is in another process: no task, no future."""

    __slots__ = ("_link", "_number", "abandoned")

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number
        self.abandoned = False

    def resolve(self, value: Any) -> None:
        """Send the answer."""
        self._link.answer(self._number, value)

    def reject(self, error: BaseException) -> None:
        """Send the failure."""
        self._link.answer(self._number, to_raised(error))

    def cancel(self) -> None:
        """Nobody reads it."""
        self.abandoned = True


class TimedAnswer(Answer):
    """The answer to what is measured: when it succeeds, the time that it took is counted."""

    __slots__ = ("_began_s", "_meter")

    def __init__(self, link: Link, number: int, meter: HistogramMeter) -> None:
        super().__init__(link, number)
        self._meter = meter
        self._began_s = perf_counter()

    def resolve(self, value: Any) -> None:
        """Send the answer."""
        self._meter.add(perf_counter() - self._began_s)
        super().resolve(value)


class LoadAnswer(TimedAnswer):
    """The answer to a load without a query, which the worker assembles itself.

    Whether the context's front has changed depends on the loads of all workers.
    """

    __slots__ = ("_key", "_planner")

    def __init__(
        self, link: Link, number: int, meter: HistogramMeter, planner: Planner, key: SessionKey
    ) -> None:
        super().__init__(link, number, meter)
        self._planner = planner
        self._key = key

    def resolve(self, value: Any) -> None:
        """Send the snapshot."""
        if self._planner.drop_front(self._key):
            value = msgspec.structs.replace(value, prefix_changed=True)
        super().resolve(value)
