"""An event loop whose time, whose order of steps and whose end are functions of a seed.

* Ready handles wait in queues: one for each task, one for each simulated thread, one for all other
  callbacks. Within a queue the order is asyncio's; between queues the seed chooses. So the seed
  chooses only among orders that asyncio allows.
* Time is virtual. A step takes 50 µs, and when nothing is ready time jumps to the next timer.
  Sometimes a queue that is ready is left idle for a while instead (measured on planted bugs: about
  twice as many were found in the same number of runs; shuffling alone found almost none).
* If nothing is ready and there is no timer, the run fails as a deadlock, with what each task waits
  for.
* The power can be cut at any step. Nothing of the dead world runs after that: no `finally`, no
  callback.
* Each step changes a fingerprint: two runs of one seed must have the same.

The loop has no file descriptors and no threads: code that needs one gets an error. Work that
otherwise runs in a thread (SQLite, a tokenizer) is one step of a queue of its own; see
`remora.testing.simulation.seams`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import inspect
import logging
import random
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextvars import Context, copy_context
from types import CoroutineType, FrameType
from typing import Any, TypeVar, TypeVarTuple, Unpack

import anyio

from remora.runtime.probes import ignore_probes

T = TypeVar("T")
Args = TypeVarTuple("Args")

_CALLBACKS = 0
_STEP_S = 0.00005
_COLLECTED = 20_000  # steps between collections of garbage
_IDLE_S = (0.0005, 0.002, 0.008)
"""How long a queue is left idle.

Longer than a commit takes at most. anyio delivers a cancellation by calling again and again until
the task has taken it, so longer pauses are left to tasks that sleep.
"""


class Deadlock(AssertionError):
    """Nothing can happen any more, and the run is not over. The message says who waits for whom."""


class Stuck(AssertionError):
    """The run took more steps, or more virtual time, than it was given.

    The message says who waits for whom.
    """


class PowerCut(Exception):
    """The power was cut: what was durable is all that is left."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the power was cut at step {step}")
        self.step = step


class _Queue:
    """Handles that must run in their order; `number` tells queues apart in the fingerprint."""

    __slots__ = ("drowsy", "handles", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.handles: deque[asyncio.Handle] = deque()
        self.drowsy = False


class _SimulatedTask(asyncio.Task[T]):
    """Hashed by its number, because a set of tasks is otherwise walked by memory address."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], *, queue: _Queue, **options: Any) -> None:
        self.queue = queue  # first: while it is made, the task schedules its first step
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self.queue.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SeededLoop(asyncio.AbstractEventLoop):
    """See the module.

    Args:
        rng: where all randomness of the run comes from; `random.Random(seed)`, or hypothesis's.
        idle: share of the choices that leave a queue idle for a while instead of running it.
        latency_s: shortest and longest time that a thread's work takes.
        cut_at: the step at which the power is cut; None for never.
        max_steps: steps after which the run counts as stuck.
        limit_s: virtual seconds after which it does.

    Attributes:
        steps: steps so far.
        choices: how often there was more than one queue to choose from.
        fingerprint: of all steps so far.
        foreign: calls that came from real threads: each makes the run one that cannot be repeated.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        idle: float = 0.02,
        latency_s: tuple[float, float] = (0.0001, 0.005),
        cut_at: int | None = None,
        max_steps: int = 200_000,
        limit_s: float = 86_400.0,
        started_s: float = 0.0,
    ) -> None:
        self.rng = rng
        self.steps = self.choices = self.foreign = 0
        self.fingerprint = 0
        self.trace: list[tuple[float, str]] | None = None
        self._idle = idle
        self._latency_s = latency_s
        self._cut_at = cut_at
        self._max_steps = max_steps
        self._limit_s = started_s + limit_s
        self._now = started_s
        self._timers: list[tuple[float, int, asyncio.Handle | _Queue]] = []
        self._tickets = 0
        self._callbacks = _Queue(_CALLBACKS)
        self._awake: list[_Queue] = []
        self._numbers = _CALLBACKS
        self._tasks: list[_SimulatedTask[Any]] = []
        self._most_tasks = 64
        self._generators: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self._thread = threading.get_ident()
        self._failure: BaseException | None = None
        self._stopping = self._running = self._closed = self._dead = False
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None

    # -- randomness --------------------------------------------------------------------------------

    def draw(self, low: float, high: float) -> float:
        """A number between the two, for code in a task.

        What the source of chance raises ends the run, not the task.
        """
        try:
            return low + (high - low) * self.rng.random()
        except (
            BaseException
        ) as e:  # hypothesis ends an example this way; a job would take it for its own failure
            self._failure = self._failure or e
            return low

    # -- asyncio's side ----------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def call_soon(
        self,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Run it in its queue's turn."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._dead:
            owner = getattr(callback, "__self__", None)
            self._stand(handle, owner.queue if type(owner) is _SimulatedTask else self._callbacks)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """As `call_soon`; a real thread that calls is counted in `foreign`."""
        if threading.get_ident() != self._thread:
            self.foreign += 1
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run it when so much virtual time has passed."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run it at that time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._dead:
            self._at(when, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over when their time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:  # type: ignore[override]
        """A task with a queue of its own."""
        self._numbers += 1
        made = _SimulatedTask(coro, queue=_Queue(self._numbers), loop=self, **options)
        if self._dead:  # asked for by a `finally` block: it will not run
            close_unstarted(coro)
            return made
        if len(self._tasks) >= self._most_tasks:
            # tasks whose exception was not retrieved stay: it may still be asked for
            self._tasks = [task for task in self._tasks if not task.done() or task._log_traceback]
            self._most_tasks = 2 * len(self._tasks) + 64
        self._tasks.append(made)
        return made

    def set_task_factory(self, factory: Any) -> None:
        """There is one kind of task here."""
        if factory is not None:
            raise RuntimeError("a simulated loop makes its own tasks")

    def get_task_factory(self) -> None:
        """None: the loop's own."""
        return

    def run_in_executor(
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[[Unpack[Args]], T],
        *args: *Args,
    ) -> asyncio.Future[T]:
        """Do what a thread would do: one step, some time later."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as e:
                future.set_exception(e)
            else:
                future.set_result(result)

        self.in_thread(work)
        return future

    def in_thread(self, work: Callable[[], None]) -> None:
        """Run `work` in one step, after as long as a thread may take."""
        self._numbers += 1
        queue = _Queue(self._numbers)
        queue.handles.append(asyncio.Handle(work, (), self))
        self._at(self._now + self.draw(*self._latency_s), queue)

    def get_debug(self) -> bool:
        """False: asyncio's debug mode measures real time."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """There is no debug mode; `trace` tells more."""

    def is_running(self) -> bool:
        """Return whether it is within `run_until_complete`."""
        return self._running

    def is_closed(self) -> bool:
        """Return whether it was closed."""
        return self._closed

    def set_exception_handler(self, handler: Any) -> None:
        """Hear of exceptions that nobody caught."""
        self._handler = handler

    def get_exception_handler(self) -> Any:
        """Who hears of them."""
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that nobody caught ends the run: it would be lost in a log elsewhere."""
        error = context.get("exception")
        self._failure = self._failure or (
            error if error is not None else RuntimeError(context.get("message", ""))
        )

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell the handler, or end the run."""
        if self._dead:
            return
        if self._handler is not None:
            self._handler(self, context)
        else:
            self.default_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        """There is nothing to be shut down."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """There are no threads."""

    def _finalize(self, generator: Any) -> None:
        """An asynchronous generator that was left.

        It is closed as asyncio does it, or, in a dead world, not at all.
        """
        if not self._dead:
            self.create_task(generator.aclose())

    def stop(self) -> None:
        """End `run_forever` after this step."""
        self._stopping = True

    def run_forever(self) -> None:
        """Take steps until `stop`, a power cut, a deadlock, or an exception that nobody caught."""
        self._check_idle()
        self._failure = None
        collects = gc.isenabled()
        gc.disable()  # when it comes by is not the seed's choice, and finalizers make steps
        self._thread = threading.get_ident()
        self._running = True
        asyncio._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generators.add, finalizer=self._finalize)
        try:
            while not self._stopping:
                self._step()
                if self._failure is not None:
                    raise self._failure
        finally:
            self._stopping = self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if collects:
                gc.enable()

    def run_until_complete(self, future: Any) -> Any:
        """Take steps until it is done, and return what it came to.

        Raises:
            PowerCut: the step of `cut_at` was reached.
            Deadlock, Stuck: see there.
        """
        self._check_idle()
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(self._main_done)
        try:
            self.run_forever()
        finally:
            task.remove_done_callback(self._main_done)
        if not task.done():
            raise RuntimeError("the loop was stopped before its main task was done")
        result = task.result()
        for other in self._tasks:
            if other is not task and other.done() and other._log_traceback:
                raise (
                    other.exception() or AssertionError
                )  # nobody has asked for it, and nobody will
        return result

    def _main_done(self, _: asyncio.Future[Any]) -> None:
        self.stop()

    def _check_idle(self) -> None:
        if self._closed:
            raise RuntimeError("the simulated loop is closed; a new life needs a new one")
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("an event loop runs in this thread already")

    def close(self) -> None:
        """Forget everything.

        What is still waiting is dropped where it stands, and can do nothing more.
        """
        self._closed = self._dead = True
        self._timers.clear()
        self._awake.clear()
        self._callbacks.handles.clear()
        tasks, self._tasks = self._tasks, []
        close_tasks(self, [task for task in tasks if not task.done()], self._generators)

    # -- the scheduler -----------------------------------------------------------------------------

    def _at(self, when: float, what: asyncio.Handle | _Queue) -> None:
        self._tickets += 1
        heapq.heappush(self._timers, (when, self._tickets, what))

    def _stand(self, handle: asyncio.Handle, queue: _Queue) -> None:
        queue.handles.append(handle)
        if len(queue.handles) == 1 and not queue.drowsy:
            self._awake.append(queue)

    def _pass_time(self) -> None:
        while self._timers:
            when, _, what = heapq.heappop(self._timers)
            if isinstance(what, asyncio.Handle) and what.cancelled():
                continue
            self._now = max(self._now, when)
            self._wake(what)
            self._ring()
            return
        raise Deadlock(f"nothing can happen any more:\n{who_waits(self._tasks)}")

    def _ring(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            self._wake(heapq.heappop(self._timers)[2])

    def _wake(self, what: asyncio.Handle | _Queue) -> None:
        if isinstance(what, _Queue):
            what.drowsy = False
            if what.handles:
                self._awake.append(what)
        elif not what.cancelled():
            self._stand(what, self._callbacks)

    def _step(self) -> None:
        awake = self._awake
        if not awake:
            self._pass_time()
            if self._now > self._limit_s:
                raise Stuck(
                    f"the run is not over at {self._now:.0f} virtual "
                    f"seconds:\n{who_waits(self._tasks)}"
                )
            if not awake:
                return
        count = len(awake)
        if count == 1:
            position = 0
        else:
            self.choices += 1
            drawn = self.rng.random()
            position = int(drawn * count)
            if self._idle and drawn * count - position > 1 - self._idle:
                queue = awake.pop(position)
                queue.drowsy = True
                self._at(self._now + _IDLE_S[int(self.rng.random() * len(_IDLE_S))], queue)
                return
        queue = awake[position]
        handle = queue.handles.popleft()
        if not queue.handles:
            del awake[position]
        if handle.cancelled():
            return
        self.steps += 1
        self._now += _STEP_S
        if self._timers and self._timers[0][0] <= self._now:
            self._ring()
        self.fingerprint = hash((self.fingerprint, queue.number, self._now))
        if self.trace is not None:
            self.trace.append((self._now, repr(handle)))
        if self.steps % _COLLECTED == 0:
            gc.collect()
        if self.steps == self._cut_at:
            raise PowerCut(self.steps)
        if self.steps > self._max_steps:
            raise Stuck(
                f"the run is not over after {self._max_steps} steps:\n{who_waits(self._tasks)}"
            )
        handle._run()


def _foreign(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"{name}: there is no network, no process and no signal in a simulated world; put a "
            "port in between"
        )

    return refuse


for _name in vars(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(SeededLoop):
        setattr(SeededLoop, _name, _foreign(_name))


# -- the memory that a power cut leaves behind -----------------------------------------------------
#
# Coroutines that stand where they stood, and must go without doing anything more.
#
# Left alone they would be kept for ever (anyio remembers where each task stands, and that refers to
# the task), or run their `finally` blocks whenever the garbage collector comes by. So each is
# closed here and now: on a loop that takes no callback any more, whatever a `finally` block asks
# for never happens, and what it says about that is not listened to.

_TRIES = 20
"""A coroutine that awaits in a `finally` block is closed again, for each such block."""


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    hook, disabled = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        sys.unraisablehook = hook
        logging.disable(disabled)


def close_tasks(
    loop: asyncio.AbstractEventLoop,
    tasks: Iterable[asyncio.Task[Any]],
    generators: Iterable[AsyncGenerator[Any, Any]],
) -> None:
    """Close the tasks' coroutines, the youngest first, and what async generators wait for.

    The loop must be dead: nothing that they ask of it may happen.
    """
    standing, held = (
        list(tasks),
        list(generators),
    )  # held: a generator that went first would leave what it waits for behind
    hooks = sys.get_asyncgen_hooks()
    with _silence(), ignore_probes():
        asyncio._set_running_loop(loop)
        sys.set_asyncgen_hooks(firstiter=held.append, finalizer=lambda _: None)
        try:
            _close_awaited(loop, standing, held)
            for task in reversed(standing):
                task._log_destroy_pending = False
                _close(loop, task, task.get_coro())
            _close_awaited(
                loop, standing, held
            )  # closing a task may have sent a generator on to its next await
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)


def _close_awaited(
    loop: asyncio.AbstractEventLoop,
    tasks: Sequence[asyncio.Task[Any]],
    generators: Iterable[AsyncGenerator[Any, Any]],
) -> None:
    for generator in generators if tasks else ():
        if (awaited := getattr(generator, "ag_await", None)) is not None:
            _close(loop, tasks[0], awaited)


def _close(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], coroutine: Any) -> None:
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == "CORO_CREATED":
        close_unstarted(coroutine)
        return
    asyncio.tasks._enter_task(loop, task)  # anyio's scopes look who it is that leaves them
    try:
        for _ in range(_TRIES):
            with contextlib.suppress(BaseException):
                copy_context().run(
                    coroutine.close
                )  # what it sets in its context is not set in ours
            if getattr(coroutine, "cr_frame", None) is None:
                break
    finally:
        asyncio.tasks._leave_task(loop, task)


def close_unstarted(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine that has not begun, and the one that it would run: anyio wraps them."""
    frame = getattr(coroutine, "cr_frame", None)
    wrapped = [] if frame is None else gc.get_referents(*frame.f_locals.values())
    for one in (coroutine, *wrapped):
        if inspect.iscoroutine(one) and inspect.getcoroutinestate(one) == "CORO_CREATED":
            one.close()


# -- who waits for whom: what a stuck run is told by -----------------------------------------------


def who_waits(tasks: Iterable[asyncio.Task[Any]]) -> str:
    """One line a task: its name, where it stands, and whom it waits for, where that can be seen.

    Seen are a lock's owner, a task group's children, and the actor or job that something of the
    kernel waits for.
    """
    return (
        "\n".join(_describe_frame(task) for task in tasks if not task.done()) or "no task is left"
    )


def _describe_frame(task: asyncio.Task[Any]) -> str:
    frames = _frames(task)
    places = [f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in frames if _ours(frame)][
        -4:
    ]
    where = (
        " > ".join(places or [frame.f_code.co_qualname for frame in frames[-1:]])
        or "its first step"
    )
    return f"  {task.get_name()}: {where}{_whom(frames)}"


def _frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """From the outermost coroutine to the innermost."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = (
            getattr(awaited, "cr_frame", None)
            or getattr(awaited, "gi_frame", None)
            or getattr(awaited, "ag_frame", None)
        )
        if frame is not None:
            frames.append(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        if not isinstance(awaited, CoroutineType) and not hasattr(awaited, "gi_frame"):
            break
    return frames


def _ours(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return "site-packages" not in path and "/asyncio/" not in path


def _whom(frames: list[FrameType]) -> str:
    for frame in reversed(frames):
        one = frame.f_locals.get("self")
        name = frame.f_code.co_name
        if isinstance(one, anyio.Lock) and name == "acquire":
            owner = one.statistics().owner
            return f", for a lock that {owner.name if owner else 'nobody'} holds"
        if isinstance(one, anyio.abc.TaskGroup) and name == "__aexit__":
            children = sorted(child.get_name() for child in getattr(one, "_tasks", ()))
            return f", for its tasks {', '.join(children[:8])}" if children else ""
        if (key := frame.f_locals.get("key")) is not None and type(one).__module__.startswith(
            "remora.runtime"
        ):
            return f", for {type(one).__name__} of {key!r}"
    return ""
