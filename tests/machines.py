"""Owners on several machines, which are directories and processes of this one."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from remora.storage.membership import Placement
from remora.storage.postgres.cluster import ClusterReader, JournalOwner, read_owner
from tests.patience import until
from tests.postgres import Cluster
from tests.processes import bound

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
_CONFIG = """\
directory: {directory}
journal: {{dsn: "{dsn}", schema: {schema}, lease_s: {lease_s}, durability: process}}
long_term: {long_term}
tokens: {{counter: heuristic}}
cluster: {{listen: "{listen}", secret: "{secret}", wait_s: 600, silent_s: 600{more}}}
"""


class Machine:
    """A configuration and a directory.

    Args:
        path: for both.
        dsn: of the database.
        schema: of the journal.
        lease_s: how long a killed owner is waited for; one that a busy machine keeps from its work
            for so long loses its shards.
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
        lease_s: float = 600,
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
        while (await anyio.Path(self.log).read_text()).count(text) < times:
            assert self.process.returncode is None, await anyio.Path(self.log).read_text()
            await anyio.sleep(0.02)

    async def ended(self) -> int:
        """Its exit code, when it has ended."""
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
            *bound(*command, machine.file),
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

    async def served() -> JournalOwner | None:
        found = await read_owner(cluster.dsn(), schema)
        return found if found is not None and found.epoch > epoch and found.left_s else None

    owner: JournalOwner | None = await until(served, f"an owner after epoch {epoch}")
    assert owner is not None
    return owner


async def placed(cluster: Cluster, schema: str, right: Callable[[Placement], bool]) -> Placement:
    """What nodes and shards there are, as soon as it is right."""
    reader = ClusterReader(cluster.dsn(), schema)

    async def rightly() -> Placement | None:
        found = await reader.read()
        return found if found is not None and right(found) else None

    try:
        placement: Placement | None = await until(rightly, "shards are divided as they should be")
    finally:
        reader.close()
    assert placement is not None
    return placement


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
    made = "openssl req -x509 -newkey ed25519 -nodes -subj /CN=remora -days 2"
    command = [*made.split(), "-out", str(certificate), "-keyout", str(key)]
    await anyio.run_process(command)
    return f'certificate: "{certificate}", key: "{key}"'
