"""Calls of a runtime from threads: each runs on the runtime's event loop, and its caller waits.

`remora.blocking` makes its classes with this module. A class there gets all public names of the
async class that it stands for, so that no method can be forgotten. ``remora/blocking.pyi`` has the
signatures; ``tools/blocking.py`` writes it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial, wraps
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from remora.api.base import BaseRuntime, holder_of
from remora.errors import InvalidInput, RuntimeClosed, WrongLoop
from remora.services.parts import PartsHolder

_Kind = TypeVar("_Kind", bound="type[Mirror]")
_PARTS = ("_holder", "_holders", "_memory")  # of handles, of runtimes, of tools


class Mirror:
    """A handle for threads, which stands for an async one.

    Attributes:
        kinds: the classes that stand for async ones, by these.
    """

    kinds: ClassVar[dict[type, type[Mirror]]] = {}

    def __init__(self, original: Any, runtime: BaseRuntime) -> None:
        self._original = original
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"blocking.{self._original!r}"


def mirror(original: type) -> Callable[[_Kind], _Kind]:
    """Give a class the public names of an async one, except those that it defines itself."""

    def fill(kind: _Kind) -> _Kind:
        Mirror.kinds[original] = kind
        for name in dir(original):
            member = inspect.getattr_static(original, name)
            if name.startswith("_") or name in vars(kind) or isinstance(member, classmethod):
                continue
            setattr(kind, name, _mirror_member(name, member))
        if hasattr(original, "__aenter__") and "__enter__" not in vars(kind):
            kind.__enter__ = _enter  # type: ignore[attr-defined]
            kind.__exit__ = _leave  # type: ignore[attr-defined]
        return kind

    return fill


def _mirror_member(name: str, member: Any) -> Any:
    if not inspect.isfunction(member):  # a property, or an attribute of a class with slots

        def read(self: Mirror) -> Any:
            return _mirrored(self, getattr(self._original, name))

        return property(read, doc=inspect.getdoc(member) or f"The async handle's `{name}`.")
    returned = member.__annotations__.get("return")
    makes_handle = returned in {original.__name__ for original in Mirror.kinds}

    @wraps(member)
    def method(self: Mirror, /, *arguments: Any, **options: Any) -> Any:
        function = getattr(self._original, name)
        if makes_handle and not inspect.iscoroutinefunction(member):  # without I/O
            result = function(*arguments, **options)
        else:
            result = call_on_loop(self._runtime, function, *arguments, **options)
        return _mirrored(self, result)

    return method


def _mirrored(owner: Mirror, result: Any) -> Any:
    """A handle as one for threads; anything else as it is."""
    kind = Mirror.kinds.get(type(result))
    return result if kind is None else kind(result, owner._runtime)  # noqa: SLF001 - of this module


def _enter(self: Mirror) -> Mirror:
    call_on_loop(self._runtime, self._original.__aenter__)
    return self


def _leave(
    self: Mirror,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> Any:
    return call_on_loop(self._runtime, self._original.__aexit__, kind, error, traceback)


def original_of(value: Any) -> Any:
    """The async handle that a thread's stands for; any other value as it is."""
    return value._original if isinstance(value, Mirror) else value  # noqa: SLF001 - of this module


def awaiter_of(value: Any) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return what awaits a coroutine function of a handle.

    Of a thread's handle: on the event loop of its runtime, from any event loop.

    Raises:
        InvalidInput: it is a handle of no memory that this process has opened.
    """
    if isinstance(value, Mirror):
        return partial(_await_on_loop, value._runtime)  # noqa: SLF001 - of this module
    if not any(hasattr(value, name) for name in _PARTS):
        raise InvalidInput(
            f"an adapter takes what a Runtime, remora.connect or remora.blocking gives, not a "
            f"{type(value).__name__} of {type(value).__module__}"
        )
    return await_here


def waiter_of(value: Any) -> Callable[..., Any]:
    """Return a function that calls one of a handle from another thread, and waits."""
    if isinstance(value, Mirror):
        return partial(call_on_loop, value._runtime)  # noqa: SLF001 - of this module
    return partial(_call_and_wait, value._holder)  # noqa: SLF001 - a handle of the same layer


async def await_here(
    function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any, **options: Any
) -> Any:
    """Await a coroutine function of a handle on the event loop that one is on."""
    return await function(*arguments, **options)


def is_open(runtime: BaseRuntime) -> bool:
    """Return whether the runtime is open, on any event loop."""
    return holder_of(runtime).phase == "open"


def name_opening(runtime: BaseRuntime, words: str) -> None:
    """Say how an application opens the runtime, for those who use it before."""
    holder_of(runtime).entered = words


def call_on_loop(
    runtime: BaseRuntime, function: Callable[..., Any], *arguments: Any, **options: Any
) -> Any:
    """Call a function, or await a coroutine function, on the event loop of an open runtime.

    An exception that interrupts the wait, `KeyboardInterrupt` for instance, cancels the call.

    Raises:
        RuntimeClosed: the runtime is not open, or its event loop ended before the call did.
        WrongLoop: this thread runs that event loop, which the call would wait for; or nothing runs
            it, so the call would not begin.
        InvalidInput: it is not an event loop of asyncio.
    """
    return _call_and_wait(holder_of(runtime), function, *arguments, **options)


def _call_and_wait(
    holder: PartsHolder, function: Callable[..., Any], *arguments: Any, **options: Any
) -> Any:
    loop = _find_loop(holder)
    if _runs_here(loop):
        raise WrongLoop(
            "a blocking call on the runtime's own event loop would wait for itself; nothing was "
            "done. Await the method of the async runtime here"
        )
    future = _start(loop, function, arguments, options)
    try:
        return future.result()
    except CancelledError as e:
        raise RuntimeClosed("the event loop of the runtime ended before the call did") from e
    except BaseException:
        future.cancel()  # an interrupt; without effect if the call itself raised this
        raise


async def _await_on_loop(
    runtime: BaseRuntime, function: Callable[..., Any], *arguments: Any, **options: Any
) -> Any:
    loop = _find_loop(holder_of(runtime))
    if _runs_here(loop):
        return await function(*arguments, **options)
    future = _start(loop, function, arguments, options)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError as e:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeClosed("the event loop of the runtime ended before the call did") from e


def _find_loop(holder: PartsHolder) -> asyncio.AbstractEventLoop:
    loop: Any = holder.home
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise InvalidInput("remora.blocking needs a runtime on asyncio's event loop")
    return loop


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _start(
    loop: asyncio.AbstractEventLoop,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> Future[Any]:
    if not (loop.is_running() or loop.is_closed()):
        raise WrongLoop(
            "the event loop of the runtime is not running, so the call would wait for ever; "
            "nothing was done. Run the loop in a thread of its own (loop.run_forever), or use "
            "remora.blocking.Runtime, which has one"
        )

    async def call() -> Any:
        result = function(*arguments, **options)
        return await result if inspect.isawaitable(result) else result

    coroutine = call()
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError as e:  # the loop was closed since
        coroutine.close()
        raise RuntimeClosed("the event loop of the runtime has ended; nothing was done") from e
