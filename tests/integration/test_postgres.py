"""The journal in PostgreSQL: the suite that every journal passes, against a real server."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from remora.testing import AccessCheck, journal_checks
from tests.patience import wait_until
from tests.postgres import Cluster, PostgresAccess


@pytest.mark.anyio
@pytest.mark.parametrize(
    "check",
    journal_checks("owners", "commit_numbers", "connections", "late_commits", "processes"),
    ids=lambda check: check.__name__,
)
async def test_postgres(check: AccessCheck, cluster: Cluster) -> None:
    """S1.02, S3.26: PostgreSQL passes the suite, with all that it can do."""
    await check(PostgresAccess(cluster))


_SERVERS = """\
import shutil, time
from contextlib import ExitStack
from tests.postgres.pooler import running_pooler
from tests.postgres import running_cluster

with ExitStack() as stack:
    cluster = stack.enter_context(running_cluster())
    print(cluster.directory)
    if shutil.which("pgbouncer"):
        print(stack.enter_context(running_pooler(cluster, "session")).rpartition("host=")[2])
    print(flush=True)
    time.sleep(1e6)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells of a parent's end")
def test_servers_of_tests_end_with_a_test_process_that_is_killed(postgres_server: Cluster) -> None:
    """A run that is killed leaves no server behind, which would take the next one's memory."""
    command = [sys.executable, "-c", _SERVERS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        directories = [Path(line.strip()) for line in iter(child.stdout.readline, "\n")]
        assert directories
        assert not any(map(is_unused, directories))
        child.send_signal(signal.SIGKILL)
    for one in directories:
        wait_until(partial(is_unused, one), f"the server over {one} ends")
        shutil.rmtree(one)


def is_unused(directory: Path) -> bool:
    """No process has the directory in its command."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if bytes(directory) in command.read_bytes():
                return False
    return True
