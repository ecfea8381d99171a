"""A real PgBouncer before the tests' PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.postgres import Cluster

__all__ = ["NO_PGBOUNCER", "running_pooler"]

NO_PGBOUNCER = "no pgbouncer on the path"
_START_S = 30.0
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
    user = "nobody" if os.getuid() == 0 else None  # it refuses to run as root
    if user is not None:
        os.chown(directory, pwd.getpwnam(user).pw_uid, -1)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, str(config)], stdout=log, stderr=log, cwd="/", user=user
        )
    try:
        deadline = time.monotonic() + _START_S
        while not (directory / ".s.PGSQL.5432").exists():
            assert process.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.02)
        yield f"postgresql://postgres@/postgres?host={directory}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)
