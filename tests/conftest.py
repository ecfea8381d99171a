"""Shared by all tests: the guard that fails one which blocks the event loop, and ``--probes``."""

from __future__ import annotations

import faulthandler
import functools
import gc
import inspect
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

# a runtime that opens loads it, in a thread; parts that are tested alone write lines as well
import structlog  # noqa: F401
import trio
from blockbuster import BlockBuster, blockbuster_ctx

from remora.recall.question import load_related
from remora.storage.sqlite import journal
from remora.testing import count_probes
from remora.testing.probes import PROBES
from tests import example_runs
from tests.patience import WATCH, Stuck
from tests.sqlite import BreakableConnection, Connections
from tests.zygote import cold_start, forked_children

pytest.register_assert_rewrite("tests.conformance")

_OBSERVED = pytest.StashKey[Counter[str]]()
_SECONDS = pytest.StashKey[dict[str, float]]()
_SECONDS_FILE = Path(__file__).parents[1] / "build" / "seconds.json"
"""Processor time of each test, its children's included: for `tools.quick` and `tools.mutants`."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.register(example_runs)
    parser.addini("quiet_limit", "s without a movement that end a test (tests.patience)")
    parser.addini("processor_limit", "s of processor time that end a test (tests.patience)")
    parser.addoption(
        "--probes",
        type=Path,
        metavar="FILE",
        help="count how often each of remora's probes (rare branches) is reached, write the table "
        "there, and fail if one never "
        "was: for runs of the whole suite. Workers of pytest-xdist are counted, other child "
        "processes are not.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("numprocesses", None):  # whose workers are no programs of tests
        children = ExitStack()
        children.enter_context(forked_children())
        config.add_cleanup(children.close)
    config.stash[_SECONDS] = {}
    WATCH.set_limits(float(config.getini("quiet_limit")), float(config.getini("processor_limit")))
    if config.getoption("--probes") is not None:
        observing = ExitStack()
        config.stash[_OBSERVED] = observing.enter_context(count_probes())
        config.add_cleanup(observing.close)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a worker of pytest-xdist counted; one that crashed has failed a test."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[_SECONDS].update(output.get("seconds") or {})
    if "probes" in output:
        node.config.stash[_OBSERVED].update(output["probes"])


def _unreached(config: pytest.Config) -> list[str]:
    return [name for name in PROBES if not config.stash[_OBSERVED][name]]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    table: Path | None = session.config.getoption("--probes")
    seconds = session.config.stash[_SECONDS]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["seconds"] = seconds
        if table is not None:
            reached = session.config.stash[_OBSERVED]
            session.config.workeroutput["probes"] = dict(reached)
        return
    if seconds:
        _note_seconds(seconds)
    if table is None:
        return
    width = max(map(len, PROBES))
    counts = session.config.stash[_OBSERVED]
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(
        "".join(f"{name:<{width}} {counts[name]:>10}  {told}\n" for name, told in PROBES.items()),
        encoding="utf-8",
    )
    if exitstatus == pytest.ExitCode.OK and _unreached(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _note_seconds(seconds: dict[str, float]) -> None:
    if "REMORA_HYPOTHESIS" in os.environ:  # with more examples than in a usual run
        return
    known = json.loads(_SECONDS_FILE.read_text()) if _SECONDS_FILE.exists() else {}
    there = {name for name in {test.partition("::")[0] for test in known} if Path(name).exists()}
    kept = {test: spent for test, spent in known.items() if test.partition("::")[0] in there}
    _SECONDS_FILE.parent.mkdir(exist_ok=True)
    made = _SECONDS_FILE.with_suffix(f".{os.getpid()}")
    made.write_text(json.dumps(kept | seconds, indent=0))
    made.replace(_SECONDS_FILE)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("--probes") is None:
        return
    unreached = _unreached(config)
    terminalreporter.section("probes", red=bool(unreached))
    terminalreporter.line(
        f"{len(PROBES) - len(unreached)} of {len(PROBES)} reached; {config.getoption('--probes')}"
    )
    for name in unreached:
        terminalreporter.line(f"never reached: {name}: {PROBES[name]}")


_CANCEL = pytest.StashKey[Callable[[str], None]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mix slow and quick modules, so that the percentage that is shown can be believed.

    Raises:
        pytest.UsageError: a test's name has an address, so that workers could not agree on it.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: sha256(item.nodeid.partition("::")[0].encode()).digest())
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"no two processes give this test the same name: {item.nodeid}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End a test of which nothing moves any more; see `tests.patience`."""
    marker = item.get_closest_marker("limit")
    ending, began_s = _Ending(item), sum(os.times()[:4])
    WATCH.begin(ending.end, marker and float(marker.args[0]))
    signal.signal(signal.SIGALRM, ending.interrupt)
    try:
        with cold_start() if item.get_closest_marker("cold") else nullcontext():
            return (yield)
    finally:
        WATCH.rest()
        signal.signal(signal.SIGALRM, _nothing)  # one that comes late ends no other test
        if item.get_closest_marker("nightly") is None:  # what others ask about is no such test
            item.config.stash[_SECONDS][item.nodeid] = round(sum(os.times()[:4]) - began_s, 3)


def _nothing(*_: object) -> None:
    pass


def pytest_enter_pdb() -> None:
    WATCH.rest()


class _Ending:
    """How one test ends that is over a limit: an asynchronous one from within, others by a signal.

    A signal would stop the loop in the middle: trio's loop cannot go on then, and on asyncio the
    test still occupies the task in which its fixtures are to end.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item, self._reason = item, ""
        self._told, self._told_s = 0, 0.0

    def end(self, reason: str) -> None:
        """Called once a second by the watch's thread. A test that goes on is told a second time;
        then its process is ended, which fails it, and another worker goes on.
        """
        self._reason = reason
        cancel = self._item.stash.get(_CANCEL, None)
        if cancel is not None:
            cancel(reason)
        if self._told and time.monotonic() - self._told_s < WATCH.quiet_limit_s / 2:
            return
        if self._told > 1:
            faulthandler.dump_traceback(sys.__stderr__ or 2)
            os._exit(os.EX_SOFTWARE)
        if self._told or cancel is None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        self._told, self._told_s = self._told + 1, time.monotonic()

    def interrupt(self, *_: object) -> None:
        raise Stuck(self._reason)


async def _end_from_within(item: pytest.Item, test: Callable[[], Awaitable[object]]) -> None:
    """Run a test that the watch may cancel, all shields opened.

    Raises:
        Stuck: it was cancelled.
    """
    running, told = anyio.CancelScope(), ""
    token = anyio.lowlevel.current_token()
    where: list[str] = []

    def end() -> None:
        if _CANCEL not in item.stash:  # a signal was quicker
            return
        running.cancel()
        for scope in gc.get_objects():
            if isinstance(scope, trio.CancelScope | anyio.CancelScope) and scope.shield:
                scope.shield = False

    def ask() -> None:
        with suppress(anyio.RunFinishedError):
            anyio.from_thread.run_sync(end, token=token)

    def cancel(reason: str) -> None:
        nonlocal told
        told = reason
        # of another thread, as a loop that is blocked would hold up the watch: a signal follows
        threading.Thread(target=ask, daemon=True).start()

    item.stash[_CANCEL] = cancel
    try:
        with running:
            try:
                await test()
            except anyio.get_cancelled_exc_class() as cancelled:
                where = traceback.format_exception(cancelled)
                raise
    finally:
        del item.stash[_CANCEL]
    if running.cancelled_caught:
        raise Stuck("".join([f"{told}, here:\n", *where]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run an asynchronous test so that it can be ended from within."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def ended(**arguments: Any) -> None:
            await _end_from_within(pyfuncitem, functools.partial(test, **arguments))

        pyfuncitem.obj = ended
    return (yield)


@pytest.fixture
def anyio_backend() -> str | tuple[str, dict[str, Any]]:
    """Tests with the real stores need asyncio; the kernel's own name their backends.

    ``REMORA_TEST_LOOP=uvloop`` runs them on uvloop.
    """
    if os.environ.get("REMORA_TEST_LOOP") == "uvloop":
        return "asyncio", {"use_uvloop": True}
    return "asyncio"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    """The connections of the SQLite journals that the test opens."""
    opened: Connections = []

    def connect(path: Path) -> BreakableConnection:
        opened.append(BreakableConnection(path))
        return opened[-1]

    monkeypatch.setattr(journal, "JournalConnection", connect)
    return opened


@pytest.fixture(autouse=True)
def blocking_guard(request: pytest.FixtureRequest) -> Iterator[BlockBuster | None]:
    """Fail a test whose event loop is blocked by file, socket or sleep calls (S4.02)."""
    if request.node.get_closest_marker("blocking"):
        yield None
        return
    load_related()  # as a runtime does it when it opens; tests of the index alone open none
    with blockbuster_ctx() as guard:
        # the import system reads files, and pytest's own reporting writes them
        guard.functions["os.stat"].can_block_in("importlib/_bootstrap_external.py", {"_path_stat"})
        for function in guard.functions.values():  # as starting a process may
            function.can_block_in("tests/zygote.py", {"execute"})
        # a database in memory computes, and waits for nothing
        for name in ("execute", "executemany", "executescript"):
            statement = guard.functions[f"sqlite3.Connection.{name}"]
            statement.can_block_in("remora/storage/sqlite/memory.py", {name, "_empty"})
        # a system call that reads no disk: a relative path is that of the making of a runtime
        guard.functions["os.getcwd"].can_block_in("remora/api/runtime.py", {"_make_absolute"})
        # asyncpg looks for a file of passwords when it connects, which is seldom
        guard.functions["os.stat"].can_block_in("asyncpg/connect_utils.py", {"_read_password_file"})
        yield guard


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    """What a test silenced is heard again in the next; commands set levels for their process."""
    levels = [(one, one.level) for one in map(logging.getLogger, ("remora", "remora.rest"))]
    yield
    logging.disable(logging.NOTSET)
    for logger, level in levels:
        if logger.level != level:
            logger.setLevel(level)
