"""Owners on several machines, which are directories and processes of this one."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from remora.storage.membership import Placement
from remora.storage.postgres.cluster import ClusterReader
from remora.storage.postgres.owners import JournalOwner, read_owner
from tests.postgres import Cluster

__all__ = [
    "NO_OPENSSL",
    "SECRET",
    "Machine",
    "ServingOwner",
    "owned_by",
    "owner_after",
    "placed",
    "running_owner",
    "write_certificate",
]

SECRET = "of-all-machines-" * 3
NO_OPENSSL = "openssl is not installed"
_SECONDS = 60
_CONFIG = """\
directory: {directory}
journal: {{dsn: "{dsn}", schema: {schema}, lease_s: {lease_s}, durability: process}}
long_term: {long_term}
tokens: {{counter: heuristic}}
cluster: {{listen: "{listen}", secret: "{secret}", wait_s: 120{more}}}
"""


class Machine:
    """A configuration and a directory.

    Args:
        path: for both.
        dsn: of the database.
        schema: of the journal.
        listen: where it takes connections.
        more: keys of the section ``cluster``.
        long_term: the section of this name.
    """

    def __init__(
        self,
        path: Path,
        dsn: str,
        schema: str,
        *,
        lease_s: float = 2,
        secret: str = SECRET,
        listen: str = "127.0.0.1:0",
        more: str = "",
        long_term: str = "{enabled: false}",
    ) -> None:
        path.mkdir(exist_ok=True)
        self.file = path / "remora.yaml"
        self.log = path / "log"
        self.file.write_text(
            _CONFIG.format(
                directory=path / "memory",
                dsn=dsn,
                schema=schema,
                lease_s=lease_s,
                secret=secret,
                listen=listen,
                more=f", {more}" if more else "",
                long_term=long_term,
            )
        )


class ServingOwner:
    """A process that runs `remora serve`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    async def said(self, text: str, times: int = 1) -> None:
        """Return when its log has this text so often."""
        with anyio.fail_after(_SECONDS):
            while (await anyio.Path(self.log).read_text()).count(text) < times:
                assert self.process.returncode is None, await anyio.Path(self.log).read_text()
                await anyio.sleep(0.02)

    async def ended(self) -> int:
        """Its exit code, when it has ended."""
        with anyio.fail_after(_SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def running_owner(
    machine: Machine,
    command: Sequence[str] = (sys.executable, "-m", "remora", "serve"),
    **environment: str,
) -> AsyncIterator[ServingOwner]:
    """`remora serve` with the machine's configuration; it is killed in the end."""
    with machine.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(*command, str(machine.file)),
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        )
    try:
        yield ServingOwner(process, machine.log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def owner_after(cluster: Cluster, schema: str, epoch: int) -> JournalOwner:
    """The first owner after the one of an epoch, when its lease runs."""
    with anyio.fail_after(_SECONDS):
        while True:
            found = await read_owner(cluster.dsn(), schema)
            if found is not None and found.epoch > epoch and found.left_s:
                return found
            await anyio.sleep(0.02)


async def placed(
    cluster: Cluster, schema: str, right: Callable[[Placement], bool], *, seconds: float = _SECONDS
) -> Placement:
    """What nodes and shards there are, as soon as it is right."""
    reader = ClusterReader(cluster.dsn(), schema)
    try:
        with anyio.fail_after(seconds):
            while True:
                found = await reader.read()
                if found is not None and right(found):
                    return found
                await anyio.sleep(0.02)
    finally:
        reader.close()


def owned_by(*counts: int) -> Callable[[Placement], bool]:
    """Whether every shard is owned, so many by each of the nodes."""

    def right(found: Placement) -> bool:
        owners = Counter(one.address for one in found.leases if one.runs)
        live = {one.address for one in found.nodes}
        return sorted(owners.values()) == sorted(counts) and owners.keys() <= live

    return right


async def write_certificate(path: Path) -> str:
    """Make a certificate; returns the keys of ``cluster`` that name it."""
    import pytest  # noqa: PLC0415

    if shutil.which("openssl") is None:
        pytest.skip(NO_OPENSSL)
    certificate, key = path / "cert.pem", path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ed25519",
        "-nodes",
        "-subj",
        "/CN=remora",
        "-days",
        "2",
    ]
    await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            [*command, "-out", str(certificate), "-keyout", str(key)],
            check=True,
            capture_output=True,
        )
    )
    return f'certificate: "{certificate}", key: "{key}"'
