"""The ports of `remora.services.parts`, for a shard that another process owns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from remora.actors.session.messages import Append, Load, Replace, Snapshot, TurnView
from remora.actors.user.messages import Synopsis
from remora.cluster.calls import CALLS
from remora.cluster.connection import Connection
from remora.cluster.router import repeat_of
from remora.cluster.wire import WIRE, Ask, Call, Returned, ShardInfo, UnreadableCall, release
from remora.config import Config
from remora.errors import MailboxFull, ProtocolMismatch, RuntimeClosed
from remora.ids import SessionKey, UserKey
from remora.messages import Entry, Receipt
from remora.recall.attached import attach
from remora.recall.context import Context
from remora.recall.planner import show_snapshot
from remora.recall.shown import ShownSummaries, shown_digests
from remora.runtime.actor import Asked, Reply
from remora.runtime.promise import AwaitablePromise, new_promise
from remora.services.turns import TurnStreams
from remora.tokens import TokenCounter

_NEVER = float("inf")
_RESENT = 256  # summaries that a new owner hears of at once


class ShardLine:
    """Requests to one shard.

    Args:
        connection: to the owner.
        shard: its number.
        config: of the memory.
    """

    def __init__(self, connection: Connection, shard: int, config: Config) -> None:
        self.shard = shard
        self.config = config
        self.timeout_s = config.mailbox.timeout_s
        self._connection = connection
        self._router = connection.router

    async def ask(
        self,
        key: SessionKey | UserKey,
        message: Asked[Reply],
        *,
        size: int = 0,
        timeout_s: float | None = None,
        patience_s: float = 0.0,
    ) -> Reply:
        """The reply of an actor; `patience_s`: what the owner may take beyond the deadline."""
        router = self._router
        number = router.next_number()
        promise = new_promise()
        seconds = self.timeout_s if timeout_s is None else timeout_s
        session = key[1] if len(key) > 1 else ""
        router.submit(
            Ask(number, self.shard, key[0], session, cast("Any", message), size, timeout_s),
            promise,
            self._connection.now() + seconds + patience_s,
            repeat=repeat_of(message),
            size=size,
        )
        return cast("Reply", await self._wait(number, promise))

    def post(self, key: SessionKey | UserKey, message: Any) -> bool:
        """Tell an actor something, without a reply."""
        session = key[1] if len(key) > 1 else ""
        request = Ask(0, self.shard, key[0], session, message)
        try:
            self._router.submit(request, None, _NEVER, repeat="never")
        except MailboxFull:
            return False
        return True

    async def call(
        self,
        name: str,
        *positional: Any,
        on_progress: Callable[[int, int], object] | None = None,
        **named: Any,
    ) -> Any:
        """Return what a port's method, or a verb of the runtime, returns.

        See `remora.cluster.calls`.
        """
        call = CALLS[name]
        data = await call.encode_arguments_slowly(*positional, **named)
        router = self._router
        number = router.next_number()
        promise = new_promise()
        router.submit(
            Call(number, self.shard, name, data),
            promise,
            _NEVER,
            repeat=call.repeat,
            size=len(data),
            on_progress=on_progress,
        )
        returned: Returned = await self._wait(number, promise)
        try:
            return await call.decode_result(returned.value)
        except UnreadableCall as e:
            raise ProtocolMismatch(
                f"the owner of the memory is of another release than this process (remora "
                f"{release()}): {e}; upgrade the older one of the two",
                theirs=WIRE,
                ours=WIRE,
            ) from e

    async def _wait(self, number: int, promise: AwaitablePromise) -> Any:
        try:
            return await promise.wait()
        except BaseException:
            self._router.cancel(number)
            raise

    def send(self, name: str, *positional: Any, first: bool = False) -> None:
        """Call something whose result nobody waits for; `first`: before all that waits.

        It is not refused, however much waits: nobody would send it again, and a turn that does not
        end keeps all later ones waiting. What is sent is small, and follows an answer.
        """
        data = CALLS[name].encode_arguments(*positional)
        request = Call(0, self.shard, name, data)
        self._router.submit(
            request, None, _NEVER, repeat="never", size=len(data), first=first, always=True
        )


class RemoteActors:
    """`remora.services.parts.Actors` and `Appends`."""

    def __init__(self, line: ShardLine) -> None:
        self.ask = line.ask
        self.post = line.post
        buffer = line.config.buffer
        self._patience_s = buffer.overdraft_wait_s if buffer.overdraft == "wait" else 0.0

    async def append(self, key: SessionKey, request: Append, timeout_s: float | None) -> Receipt:
        """See `remora.Session.append`."""
        return await self.ask(
            key, request, size=request.size, timeout_s=timeout_s, patience_s=self._patience_s
        )

    def begin(
        self, key: SessionKey, request: Append, timeout_s: float | None
    ) -> Awaitable[Receipt]:
        """See `remora.services.appending.LocalAppends`: the owner keeps the order."""
        return self.append(key, request, timeout_s)

    async def replace(self, key: SessionKey, request: Replace) -> Receipt:
        """See `remora.Session.load_state_dict`."""
        return await self.ask(key, request, size=request.size)


class RemoteContexts:
    """`remora.services.parts.Contexts`: a conversation alone is put together here.

    Args:
        line: to the shard.
        counter: counts tokens.
        info: what the owner says of the shard.
    """

    def __init__(self, line: ShardLine, counter: TokenCounter, info: ShardInfo) -> None:
        self._line = line
        self._counter = counter
        self._blocks = info.blocks
        self._shown = ShownSummaries(partial(line.send, "contexts.note_summaries"))

    async def load(
        self,
        key: SessionKey,
        budget: int,
        query: str | None = None,
        *,
        override: Sequence[Entry] | None = None,
        about: Sequence[Entry] | None = None,
        at: int | None = None,
        turn: TurnView | None = None,
        timeout_s: float | None = None,
    ) -> Context:
        """See `remora.Session.load`."""
        alone = query is None and override is None and at is None and not self._blocks
        if alone and (turn is None or not turn.at):
            request = Load(budget) if turn is None else Load(budget, turn.without, turn.sid)
            snapshot: Snapshot = await self._line.ask(key, request, timeout_s=timeout_s)
            config = self._line.config.context
            most = int(self._line.config.attachments.context_mb * (1 << 20))
            context = await show_snapshot(
                snapshot,
                self._counter,
                config,
                budget,
                prefix_changed=snapshot.prefix_changed,
                attach=lambda shown: attach(shown, key.user, self._fetch, most),
            )
            if context.summary is not None:
                first, count = snapshot.pinned, context.sources.summary.count
                shown = context.messages[first : first + count]
                self._shown.note(key.user, shown_digests(shown))
            return context
        loaded: Context = await self._line.call(
            "contexts.load",
            key,
            budget,
            query,
            override=override,
            about=about,
            at=at,
            turn=turn,
            timeout_s=timeout_s,
        )
        return loaded

    async def _fetch(self, user: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = await self._line.call("archive.blobs", user, list(digests))
        return found

    async def synopsis(self, user: str, *, refresh: bool, timeout_s: float | None) -> Synopsis:
        """See `remora.User.synopsis`."""
        synopsis: Synopsis = await self._line.call(
            "contexts.synopsis", user, refresh=refresh, timeout_s=timeout_s
        )
        return synopsis

    def note_summaries(self, user: str, digests: Sequence[bytes]) -> None:
        """Remember that the user was shown these summaries; the owner hears of each once."""
        self._shown.note(user, digests)

    def tell_owner(self) -> None:
        """Tell an owner that may be a new one of the newest summaries that were shown.

        Of older ones it hears when they are shown again.
        """
        for user, digests in self._shown.keep(_RESENT).items():
            self._line.send("contexts.note_summaries", user, digests, first=True)

    async def find_summaries(self, user: str, digests: Sequence[bytes]) -> Sequence[bool]:
        """Which of these texts the user was shown as summaries, by whichever process."""
        found: list[bool] = await self._line.call("contexts.find_summaries", user, digests)
        return found


class RemoteTurns(TurnStreams):
    """`remora.services.parts.Turns`: the owner has the lines, of the sessions of all workers."""

    def __init__(self, line: ShardLine) -> None:
        super().__init__()
        self._line = line
        self._closed = ""

    async def begin(self, key: SessionKey, *, wait: bool = True) -> int:
        """Begin a turn, when those before it have ended; returns its number, which `end` takes."""
        if self._closed:
            raise RuntimeClosed(self._closed)
        number: int = await self._line.call("turns.begin", key, wait=wait)
        return number

    def end(self, key: SessionKey, number: int) -> None:
        """End this turn, if it runs; the next in line begins."""
        self._streams.pop(key, None)
        self._line.send("turns.end", key, number)

    def close(self, error: RuntimeClosed) -> None:
        """Refuse later turns."""
        self._closed = str(error)


def remote_port(name: str, line: ShardLine) -> Any:
    """Return a port of `remora.services.parts` whose methods the owner performs.

    Each is a call of `remora.cluster.calls`.

    Args:
        name: of the port in calls.
        line: to the shard.
    """
    calls = [call for call in CALLS if call.startswith(f"{name}.")]
    return SimpleNamespace(
        **{call.removeprefix(f"{name}."): partial(line.call, call) for call in calls}
    )
