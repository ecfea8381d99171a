"""A real PgBouncer before the tests' PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import wait_until
from tests.postgres import Cluster, start_program

__all__ = ["NO_PGBOUNCER", "running_pooler"]

NO_PGBOUNCER = "no pgbouncer on the path"
_CONFIG = """\
[databases]
* = host={server} user=postgres
[pgbouncer]
unix_socket_dir = {directory}
listen_addr =
listen_port = 5432
pool_mode = {mode}
auth_type = any
default_pool_size = 2
"""


@contextmanager
def running_pooler(cluster: Cluster, mode: str) -> Iterator[str]:
    """The address of a pooler in a mode; skips the test where there is none."""
    import pytest  # noqa: PLC0415

    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip(NO_PGBOUNCER)
    server = cluster.dsn().rpartition("host=")[2]
    directory = Path(tempfile.mkdtemp(prefix="remora-pgb-", dir="/tmp"))
    directory.chmod(0o755)
    config = directory / "pgbouncer.ini"
    config.write_text(_CONFIG.format(server=server, directory=directory, mode=mode))
    if os.getuid() == 0:  # it refuses to run as root
        os.chown(directory, pwd.getpwnam("nobody").pw_uid, -1)
    log = directory / "log"
    process = start_program([program, config], log, signal.SIGKILL)
    try:
        wait_until(lambda: process.poll() is not None or _listens(directory), "PgBouncer listens")
        assert process.poll() is None, log.read_text()
        yield f"postgresql://postgres@/{cluster.database}?host={directory}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _listens(directory: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(directory / ".s.PGSQL.5432"))
    except OSError:
        return False
    return True
