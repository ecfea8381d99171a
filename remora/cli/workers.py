"""``remora serve`` and ``remora owners``: the process that owns a memory for several workers."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from remora.cli import Commands
from remora.cli.render import print_json, print_wide
from remora.errors import DirectoryLocked, InvalidInput
from remora.storage.lock import ReadLock
from remora.storage.membership import Placement

TARGET = (
    "module:function, whose function returns a remora.Runtime; a configuration file; or a "
    "memory directory"
)
"""What says which memory, and how it is configured: for help."""
_SERVE = """\
Own a memory in the foreground, and serve the workers that remora.connect to it,
until SIGTERM or Ctrl-C: accepted requests are then answered first. An owner
that a worker started leaves for this one. Logs go to standard error.

Workers that find no owner start one of their own; with cluster.start_owner
false they wait for this command.
"""
_EPILOG = """\
exit codes: 0 ended as it was told to, 1 the memory cannot be opened, is served
by another remora serve, or was taken over, 2 wrong usage
"""


def add_worker_parsers(commands: Commands, printing: argparse.ArgumentParser) -> None:
    """Describe the commands to the parser.

    Args:
        commands: the parser of commands.
        printing: options of those that print results.
    """
    command = commands.add_parser(
        "serve",
        help="own a memory in the foreground, for the workers that connect to it",
        description=_SERVE,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("target", metavar="TARGET", help=TARGET)
    command.set_defaults(verbose=True)
    command = commands.add_parser(
        "owners",
        parents=[printing],
        help="print who owns a memory, and what each shard does",
        description="Print the process that owns a memory, for how long, and for each shard its "
        "epoch (how many owners it has had), sessions in memory, and requests that wait. Of one in "
        "PostgreSQL: the nodes that share it, and for each shard its owner and lease as well. Of a "
        "database: for each journal in it the owner, its address, and how long its lease lasts.",
        epilog="exit codes: 0 done, 1 there is no owner, 2 wrong usage",
    )
    command.add_argument(
        "target", metavar="TARGET", help=f"{TARGET}; or the address of a PostgreSQL database"
    )
    command.set_defaults(verbose=False)


def command_serve(console: Console, arguments: argparse.Namespace) -> int:
    """Own a memory until told to stop."""
    del console
    sys.path.insert(0, "")  # as python -m has it: the application's modules
    from remora.cluster.serve import serve  # noqa: PLC0415  # it needs Linux

    logging.getLogger("remora").setLevel(logging.INFO)
    return serve(arguments.target)


def command_owners(console: Console, arguments: argparse.Namespace) -> int:
    """Print the owner of a memory."""
    if arguments.target.startswith(("postgresql://", "postgres://")):
        return _print_journal_owners(console, arguments, arguments.target)
    sys.path.insert(0, "")
    from remora.cluster.control import Look, OwnerGone, OwnerSilent  # noqa: PLC0415  # likewise
    from remora.cluster.place import find_places  # noqa: PLC0415
    from remora.cluster.target import read_target  # noqa: PLC0415
    from remora.cluster.watch import open_control  # noqa: PLC0415

    target = read_target(arguments.target)
    if dsn := target.config.journal.dsn.reveal():
        return _print_nodes(console, arguments, dsn, target.config.journal.schema)
    if not target.directory.is_dir():
        raise InvalidInput(f"there is no directory {target.directory}")
    found = [(one.number, one.read_owner()) for one in find_places(target.directory)]
    owners = [(number, info) for number, info in found if info is not None]
    if not owners:
        raise _not_served(target.directory)
    lines: list[str] = []
    shards: list[dict[str, Any]] = []
    for number, info in owners:
        try:
            with open_control(info, target.config.cluster) as control:
                answer = control.ask(Look())
                pid = control.pid or info.pid
        except OwnerGone:
            if len(owners) > 1:
                lines.append(f"owner {number}, process {info.pid}, has died")
                continue
            raise InvalidInput(
                f"no process serves {target.directory}: its last owner, process {info.pid}, has "
                "died"
            ) from None
        except OwnerSilent:
            raise DirectoryLocked(
                f"the owner of {target.directory}, process {info.pid}, does not answer; a worker "
                "that connects to it kills it, and starts another",
                path=target.directory,
                pid=info.pid,
                since=info.since,
            ) from None
        lines.append(
            f"process {pid} serves {target.directory} since {info.since}: {answer.phase}, "
            f"{answer.workers} connected, remora {info.release}, target {info.target}"
        )
        shards += [
            {"shard": number + place * info.owners, "pid": pid, "since": info.since}
            | {"phase": answer.phase}
            | {"epoch": one.epoch, "sessions": one.sessions, "queue": one.queue}
            for place, one in enumerate(answer.shards)
        ]
    shards.sort(key=lambda one: one["shard"])
    if arguments.json:
        for shard in shards:
            print_json(shard)
        return 0
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    names = ["shard", *["pid"][: len(owners) > 1], "epoch", "sessions", "queue"]
    table = Table(*names, box=None)
    for one in shards:
        table.add_row(*(str(one[name]) for name in names))
    console.print(table)
    return 0


def _not_served(directory: Path) -> InvalidInput:
    """Return the error that says whether a program has the directory open by itself."""
    lock, nobody = ReadLock(directory), f"no process serves {directory}"
    try:
        lock.acquire()
    except DirectoryLocked as e:
        return InvalidInput(
            f"{nobody} to workers: process {e.pid or '?'} has it open since {e.since or '?'}, for "
            f"itself; remora top {directory} shows what it does"
        )
    lock.release()
    return InvalidInput(nobody)


async def _read_placement(dsn: str, schema: str) -> Placement | None:
    try:
        from remora.storage.postgres.cluster import ClusterReader  # noqa: PLC0415  # an extra
    except ImportError as e:
        raise InvalidInput(str(e)) from e

    reader = ClusterReader(dsn, schema)
    try:
        return await reader.read()
    finally:
        reader.close()


def _print_nodes(console: Console, arguments: argparse.Namespace, dsn: str, schema: str) -> int:
    """Print which nodes share a memory, and who owns each shard."""
    found = anyio.run(_read_placement, dsn, schema)
    if found is None:
        raise InvalidInput(f"there is no memory in the schema {schema} that the role may read")
    loads = {(one.address, load.number): load for one in found.nodes for load in one.loads}
    shards = []
    for one in found.leases:
        load = loads.get((one.address, one.number)) if one.runs else None
        shards.append(
            {"shard": one.number, "owner": one.owner, "address": one.address, "epoch": one.epoch}
            | {"since": one.since.isoformat(timespec="seconds")}
            | {"lease_left_s": None if one.left_s is None else round(one.left_s, 1)}
            | {"sessions": None if load is None else load.sessions}
            | {"queue": None if load is None else load.queue}
        )
    owned = 0 if any(one.runs for one in found.leases) else 1
    if arguments.json:
        for shard in shards:
            print_json(shard)
        return owned
    table = Table("node", "owner", "state", "shards", "since", "release", box=None)
    for node in found.nodes:
        held = sum(one.runs and one.address == node.address for one in found.leases)
        since = node.since.isoformat(timespec="seconds")
        row = (node.address, node.owner, node.state, str(held), since, node.release)
        table.add_row(*map(escape, row))
    if found.nodes:
        print_wide(console, table)
        console.print()
    _print_shards(console, shards)
    return owned


def _print_shards(console: Console, shards: Sequence[dict[str, Any]]) -> None:
    names = ("shard", "owner", "address", "epoch", "since", "lease left", "sessions", "queue")
    more = "queue" in shards[0]
    table = Table(*(names if more else names[:6]), box=None)
    for one in shards:
        left = one.pop("lease_left_s")
        state = "none" if left is None else f"{left:.1f} s" if left else "ended"
        values = ["" if value is None else escape(str(value)) for value in one.values()]
        table.add_row(*values[:5], state, *values[5:])
    print_wide(console, table)


def _print_journal_owners(console: Console, arguments: argparse.Namespace, dsn: str) -> int:
    """Print who owns the journals in a database."""
    try:
        from remora.storage.postgres.cluster import read_owners  # noqa: PLC0415  # an extra
    except ImportError as e:
        raise InvalidInput(str(e)) from e

    owners = anyio.run(read_owners, dsn)
    if not owners:
        raise InvalidInput("there is no journal in this database that the role may read")
    shards = [
        {"shard": one.schema, "owner": one.owner, "address": one.address, "epoch": one.epoch}
        | {"since": one.since.isoformat(timespec="seconds")}
        | {"lease_left_s": None if one.left_s is None else round(one.left_s, 1)}
        for one in owners
    ]
    if arguments.json:
        for shard in shards:
            print_json(shard)
    else:
        _print_shards(console, shards)
    return 0 if any(one.left_s for one in owners) else 1
