"""remora without async: for scripts, notebooks and threads.

The classes have the methods of `remora`'s, with the same names, arguments and results, and each
call returns when it is done::

    with remora.blocking.Runtime("memory/") as runtime:
        chat = runtime.session("alice", "chat-42")
        chat.append({"role": "user", "content": "I moved to Lisbon."})
        context = chat.load(query="where do I live?")

Any number of threads may use one runtime at the same time. `view` gives the threads of a server the
runtime that its event loop has opened.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import anyio.from_thread

import remora
from remora.api.health import Health
from remora.api.threads import Mirror, call_on_loop, is_open, mirror, name_opening, original_of
from remora.api.tools import MemoryTools as AsyncMemoryTools
from remora.api.turn import Chunk, OnInterrupt, ReadChunk
from remora.errors import InvalidInput, RemoraError
from remora.faces import publish
from remora.messages import Message, MessageLike, Receipt

if TYPE_CHECKING:
    from remora.cluster.connected import ConnectedRuntime

__all__ = [
    "Agent",
    "Exclusive",
    "KeyedState",
    "MemoryTools",
    "Runtime",
    "Session",
    "SharedMember",
    "SharedScope",
    "Turn",
    "User",
    "connect",
    "view",
]


_OPENED = "with remora.blocking.Runtime(…) as runtime"
_Runtime = TypeVar("_Runtime", bound="Runtime")


@mirror(AsyncMemoryTools)
class MemoryTools(Mirror):
    """See `remora.api.tools.MemoryTools`; every call returns when it is done."""


@mirror(remora.SharedMember)
class SharedMember(Mirror):
    """See `remora.SharedMember`; every call returns when it is done."""


@mirror(remora.SharedScope)
class SharedScope(Mirror):
    """See `remora.SharedScope`; every call returns when it is done."""


@mirror(remora.Turn)
class Turn(Mirror):
    """See `remora.Turn`: used with ``with``; every call returns when it is done."""

    def stream(
        self,
        chunks: Iterable[Chunk],
        *,
        read: ReadChunk | None = None,
        on_interrupt: OnInterrupt = "keep",
    ) -> Generator[Chunk]:
        """See `remora.Turn.stream`; `chunks` is iterated in the thread that iterates the result."""
        source: _Source[Chunk] = _Source()
        stream = self._original.stream
        passed = call_on_loop(self._runtime, stream, source, read=read, on_interrupt=on_interrupt)
        try:
            for source.chunk in chunks:
                yield call_on_loop(self._runtime, passed.__anext__)
            source.ended = True
            call_on_loop(self._runtime, anext, passed, None)
        finally:
            call_on_loop(self._runtime, passed.aclose)


class _Source(Generic[Chunk]):
    """A model's stream, read by a thread chunk by chunk for the event loop."""

    chunk: Chunk
    ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self.ended:
            raise StopAsyncIteration
        return self.chunk


@mirror(remora.Exclusive)
class Exclusive(Mirror):
    """See `remora.Exclusive`: used with ``with``; every call returns when it is done."""


@mirror(remora.KeyedState)
class KeyedState(Mirror):
    """See `remora.KeyedState`; every call returns when it is done."""


@mirror(remora.Session)
class Session(Mirror):
    """See `remora.Session`; every call returns when it is done."""

    def follow(self, *, after: int | None = None) -> Generator[Message]:
        """See `remora.Session.follow`; the thread that iterates the result waits."""
        followed = call_on_loop(self._runtime, self._original.follow, after=after)
        try:
            while (message := call_on_loop(self._runtime, anext, followed, None)) is not None:
                yield message
        finally:
            call_on_loop(self._runtime, followed.aclose)


@mirror(remora.Agent)
class Agent(Mirror):
    """See `remora.Agent`; every call returns when it is done."""


@mirror(remora.User)
class User(Mirror):
    """See `remora.User`; every call returns when it is done."""


@mirror(remora.Runtime)
class Runtime(Mirror):
    """See `remora.Runtime`; every call returns when it is done.

    The event loop runs in a thread of its own, from entering ``with``, or `start`, until the
    runtime is closed. Takes the arguments of `remora.Runtime`.
    """

    def __init__(self, directory: Any = None, **options: Any) -> None:
        runtime = remora.Runtime(directory, **options)
        super().__init__(runtime, runtime)
        name_opening(runtime, _OPENED)
        self._owned = True
        self._thread = ExitStack()

    @classmethod
    def in_memory(cls, **options: Any) -> Self:
        """See `remora.Runtime.in_memory`."""
        return _wrap(cls, remora.Runtime.in_memory(**options))

    @classmethod
    def from_file(
        cls, path: str | Path, *, secrets: Mapping[str, str] | None = None, **options: Any
    ) -> Self:
        """See `remora.Runtime.from_file`."""
        return _wrap(cls, remora.Runtime.from_file(path, secrets=secrets, **options))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start the thread of the event loop, and open the runtime there.

        Raises:
            InvalidInput: it is open already, or this is a `view`.
            ConfigError, DirectoryLocked, DirectoryUnusable, JournalTooNew, JournalDamaged,
                EmbedderChanged: see `remora.Runtime`.
        """
        if not self._owned:
            raise InvalidInput("this is a view: the event loop of the runtime opens and closes it")
        if is_open(self._runtime):
            raise InvalidInput("the runtime is open already")
        with ExitStack() as thread:
            portal = thread.enter_context(anyio.from_thread.start_blocking_portal("asyncio"))
            portal.call(self._runtime.start)
            self._thread = thread.pop_all()
        return self

    def close(self) -> None:
        """Close the runtime, see `remora.Runtime.aclose`, and end its thread.

        An interrupt shortens the wait for accepted requests; the runtime is closed all the same.

        Raises:
            InvalidInput: this is a `view`.
        """
        if not self._owned:
            raise InvalidInput("this is a view: the event loop of the runtime opens and closes it")
        with self._thread:
            if not is_open(self._runtime):
                return
            try:
                call_on_loop(self._runtime, self._runtime.aclose)
            except KeyboardInterrupt:
                call_on_loop(self._runtime, self._runtime.aclose)  # it waits for no request now
                raise

    aclose = close

    def health(self) -> Health:
        """See `remora.Runtime.health`: it does not wait for the event loop, which may be stuck."""
        health: Health = self._original.health()
        return health

    def append_many(
        self,
        batches: Iterable[tuple[Session, MessageLike | Iterable[MessageLike], str | None]],
        *,
        concurrency: int = 64,
    ) -> list[Receipt | RemoraError]:
        """See `remora.Runtime.append_many`."""
        given: Any = [tuple(map(original_of, batch)) for batch in batches]
        results: list[Receipt | RemoraError] = call_on_loop(
            self._runtime, self._runtime.append_many, given, concurrency=concurrency
        )
        return results


def connect(target: str | Path) -> Runtime:
    """See `remora.connect`; used with ``with``. Every call returns when it is done.

    Raises:
        InvalidInput, ConfigError, DirectoryUnusable: see `remora.connect`.
    """
    opened = "with remora.blocking.connect(…) as memory"
    return _wrap(Runtime, remora.connect(target), opened=opened)


def view(runtime: remora.Runtime | ConnectedRuntime) -> Runtime:
    """A runtime that an event loop opens and closes, for the other threads of the process.

    It can be made before the runtime opens. Sync endpoints of a web framework use it, which run in
    worker threads. On the event loop itself, a call raises `WrongLoop`.
    """
    given: object = runtime
    if not isinstance(given, remora.Runtime) and not _is_connected(given):
        raise InvalidInput(f"view takes a remora.Runtime, not {type(given).__name__}")
    return _wrap(Runtime, runtime, owned=False)


def _is_connected(given: object) -> bool:
    connected = sys.modules.get("remora.cluster.connected")  # what made such a runtime
    return connected is not None and isinstance(given, connected.ConnectedRuntime)


def _wrap(
    kind: type[_Runtime],
    runtime: Any,
    *,
    owned: bool = True,
    opened: str = _OPENED,
) -> _Runtime:
    made = kind.__new__(kind)
    Mirror.__init__(made, runtime, runtime)
    if owned:
        name_opening(runtime, opened)
    vars(made).update(_owned=owned, _thread=ExitStack())
    return made


publish(__name__, __all__, globals())
