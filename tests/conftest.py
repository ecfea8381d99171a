"""Shared by all tests: hypothesis profiles, the guard that fails a test which blocks the event
loop, and ``--probes``.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import inspect
import logging
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, suppress
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
from _pytest.faulthandler import fault_handler_stderr_fd_key  # as pytest's own watch uses it
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import HealthCheck, settings

from remora.runtime.probes import count_probes
from remora.storage.sqlite import journal
from remora.testing.probes import PROBES
from tests.sqlite import BreakableConnection, Connections

settings.register_profile(
    "ci",
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.register_profile(
    "soak",
    max_examples=int(os.environ.get("REMORA_EXAMPLES", "20000")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("REMORA_HYPOTHESIS", "ci"))

_OBSERVED = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
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
    if config.getoption("--probes") is not None:
        observing = ExitStack()
        config.stash[_OBSERVED] = observing.enter_context(count_probes())
        config.add_cleanup(observing.close)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a worker of pytest-xdist counted; one that crashed has failed a test."""
    counts = getattr(node, "workeroutput", {}).get("probes")
    if counts is not None:
        node.config.stash[_OBSERVED].update(counts)


def _unreached(config: pytest.Config) -> list[str]:
    return [name for name in PROBES if not config.stash[_OBSERVED][name]]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    table: Path | None = session.config.getoption("--probes")
    if table is None:
        return
    width = max(map(len, PROBES))
    counts = session.config.stash[_OBSERVED]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["probes"] = dict(counts)
        return
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(
        "".join(f"{name:<{width}} {counts[name]:>10}  {told}\n" for name, told in PROBES.items()),
        encoding="utf-8",
    )
    if exitstatus == pytest.ExitCode.OK and _unreached(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


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


_CHILD_TIMEOUT_S = 600
_REPORT_S = 30.0
_LIMIT_S = pytest.StashKey[float]()
"""Of an asynchronous test; pytest-timeout's own limit for it is later."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modules that start processes get time for them on a busy machine.

    Workers run the modules in an order that mixes slow and quick ones, so that half of the tests
    take about half of the time, and the percentage that is shown can be believed.

    Raises:
        pytest.UsageError: a test's name has an address, so that workers could not agree on it.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: sha256(item.nodeid.partition("::")[0].encode()).digest())
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"no two processes give this test the same name: {item.nodeid}")
        module = getattr(item, "module", None)
        if hasattr(module, "subprocess") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_CHILD_TIMEOUT_S))
        if inspect.iscoroutinefunction(getattr(item, "obj", None)):
            marker = item.get_closest_marker("timeout")
            limit_s = float(marker.args[0] if marker else item.config.getini("timeout") or 0)
            if limit_s:
                item.stash[_LIMIT_S] = limit_s
                item.add_marker(pytest.mark.timeout(limit_s + _REPORT_S), append=False)


async def _end_in_time(test: Callable[[], Awaitable[object]], limit_s: float) -> None:
    """Run a test, and cancel it after so many seconds of real time, all shields opened.

    A thread counts them: the test's own clock may be one that jumps.

    Raises:
        TimeoutError: it did not end in time.
    """
    running, ended = anyio.CancelScope(), threading.Event()
    token = anyio.lowlevel.current_token()

    def end() -> None:
        running.cancel()
        for scope in gc.get_objects():
            if isinstance(scope, trio.CancelScope | anyio.CancelScope) and scope.shield:
                scope.shield = False

    def watch() -> None:
        pause_s = limit_s
        with suppress(anyio.RunFinishedError):
            while not ended.wait(pause_s):
                anyio.from_thread.run_sync(end, token=token)
                pause_s = 0.1

    threading.Thread(target=watch, name="limit of a test", daemon=True).start()
    try:
        with running:
            await test()
    finally:
        ended.set()
    if running.cancelled_caught:
        raise TimeoutError(f"the test did not end within {limit_s:g} s")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """End an asynchronous test that hangs from within, also one that hangs in a shielded scope.

    The signal of pytest-timeout stops the loop in the middle: trio's loop cannot go on then, and on
    asyncio the test still occupies the task in which its fixtures are to end.
    """
    test, limit_s = pyfuncitem.obj, pyfuncitem.stash.get(_LIMIT_S, None)
    if limit_s:

        @functools.wraps(test)
        async def limited(**arguments: Any) -> None:
            await _end_in_time(functools.partial(test, **arguments), limit_s)

        pyfuncitem.obj = limited
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the end of a test that has failed, too: pytest stops watching where a test fails."""
    limit_s = float(item.config.getini("faulthandler_timeout") or 0)
    if limit_s:
        faulthandler.dump_traceback_later(
            limit_s,
            file=item.config.stash[fault_handler_stderr_fd_key],
            exit=bool(item.config.getini("faulthandler_exit_on_timeout")),
        )
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
    with blockbuster_ctx() as guard:
        # the import system reads files, and pytest's own reporting writes them
        guard.functions["os.stat"].can_block_in("importlib/_bootstrap_external.py", {"_path_stat"})
        # asyncpg looks for a file of passwords when it connects, which is seldom
        guard.functions["os.stat"].can_block_in("asyncpg/connect_utils.py", {"_read_password_file"})
        # as pytest-timeout writes where a test hangs
        guard.functions["io.TextIOWrapper.write"].can_block_in(
            "pytest_timeout.py", {"timeout_sigalrm"}
        )
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
