"""``remora export``, ``import``, ``reembed`` and ``stats``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from remora.api.runtime import Runtime
from remora.cli.render import printable
from remora.errors import InvalidInput
from remora.models.ports import embedder_name
from remora.services.archive import SessionStatistics
from remora.storage.export.transfer import TransferReport
from remora.storage.ports import JournalCounts

__all__ = [
    "add_transfer_parsers",
    "command_export",
    "command_import",
    "command_reembed",
    "command_stats",
    "open_runtime",
    "progress_bar",
]


def add_transfer_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Describe the commands to the parser."""
    command = commands.add_parser(
        "export",
        parents=[common],
        help="write all sessions and users to a file or a directory",
        description="Write everything that the memory holds to DEST: a file of JSON lines if its "
        "name ends in .jsonl, else a "
        "directory of Parquet files (docs/export-format.md). Vectors are left out: an import "
        "embeds anew. DEST appears when it "
        "is whole, and not before; what is there already is refused.",
        epilog="examples:  remora export backup.jsonl --dir memory      remora export tables/ "
        "--dir memory --overwrite",
    )
    command.add_argument(
        "dest",
        type=Path,
        metavar="DEST",
        help="a file that ends in .jsonl, or a directory that is to be made",
    )
    command.add_argument("--overwrite", action="store_true", help="replace DEST if it is there")

    command = commands.add_parser(
        "import",
        parents=[common],
        help="take over what remora export wrote, here or elsewhere",
        description="Bring sessions and users from SRC, a .jsonl file or a directory of Parquet "
        "files, into the memory "
        "directory, which is made if need be. SRC is looked through to its end before anything is "
        "written; a line that is wrong "
        "is named, and nothing is imported. Long-term memory is embedded by the configured "
        "embedder before the command ends; if "
        "it is interrupted, whatever opens the directory next goes on with that.",
    )
    command.add_argument("src", type=Path, metavar="SRC", help="what remora export wrote")
    command.add_argument(
        "--skip-existing",
        action="store_true",
        help="leave sessions that are there as they are, instead of importing nothing",
    )

    commands.add_parser(
        "reembed",
        parents=[common],
        help="make long-term memory anew with the configured embedder",
        description="After models.embedder was changed: make long-term memory anew from the "
        "journal, with the embedder that is "
        "configured now. Rows of the old embedder are removed when all is done. It may be "
        "interrupted at any time: the same "
        "command, or a server that opens the directory, goes on where it was. A server can also "
        "do it by itself, while it "
        "serves: Runtime(…, reembed=True).",
    )

    command = commands.add_parser(
        "stats",
        parents=[common],
        help="print how much the memory, a user or a session holds",
        description="Print figures: of the whole memory, of one user, or of one session. It reads "
        "the journal alone: no model is "
        "loaded, and long-term memory is not opened.",
    )
    command.add_argument("user", metavar="USER", nargs="?")
    command.add_argument("session", metavar="SESSION", nargs="?")


@contextmanager
def progress_bar(doing: str) -> Iterator[tuple[Progress, Callable[[int, int], None]]]:
    """A bar on standard error, and what moves it: told how many are done, of how many."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield progress, advance


def open_runtime(
    arguments: argparse.Namespace, *, journal_only: bool = False, **options: Any
) -> Runtime:
    """The runtime that a command works with.

    With `journal_only`, without long-term memory and models.
    """
    config = arguments.configured
    if journal_only:
        long_term = msgspec.structs.replace(config.long_term, enabled=False)
        models = msgspec.structs.replace(config.models, embedder="none")
        config = msgspec.structs.replace(config, long_term=long_term, models=models)
    return Runtime(arguments.dir or config.directory, config=config, **options)


async def command_export(console: Console, arguments: argparse.Namespace) -> int:
    """Export; returns the exit code."""
    async with open_runtime(arguments, journal_only=True) as runtime:
        with progress_bar("exporting") as (_, advance):
            report = await runtime.export(
                arguments.dest, overwrite=arguments.overwrite, progress=advance
            )
    console.print(f"{_contents(report)} in {arguments.dest}", markup=False, highlight=False)
    return 0


async def command_import(console: Console, arguments: argparse.Namespace) -> int:
    """Import; returns the exit code."""
    async with open_runtime(arguments) as runtime:
        with progress_bar("importing") as (progress, advance):
            report = await runtime.import_(
                arguments.src, skip_existing=arguments.skip_existing, progress=advance
            )
            progress.update(progress.task_ids[0], description="embedding", completed=0, total=None)
            await runtime.settle()
        dead = (await runtime.counts()).dead_jobs
    skipped = f"; {report.skipped:,} sessions were there already" if report.skipped else ""
    console.print(f"{_contents(report)} imported{skipped}", highlight=False)
    if dead:
        console.print(
            f"{dead} jobs failed for good: remora jobs says why, and the sessions still load",
            style="red",
        )
    return 0


async def command_reembed(console: Console, arguments: argparse.Namespace) -> int:
    """Make long-term memory anew; returns the exit code."""
    async with open_runtime(arguments, reembed=True) as runtime:
        name = embedder_name(runtime.internals.embedder)
        await runtime.internals.long_term()  # what is damaged is made anew as well
        begun = runtime.reembedding
        if begun is None:
            console.print(
                f"long-term memory is {name}'s already: there is nothing to do",
                markup=False,
                highlight=False,
            )
            return 0
        with progress_bar("embedding") as (_, advance):
            await runtime.reembedded(advance)
        rows = (await runtime.long_term_statistics()).rows
    console.print(f"long-term memory is {name}'s now: {rows:,} rows", markup=False, highlight=False)
    return 0


async def command_stats(console: Console, arguments: argparse.Namespace) -> int:
    """Print figures; returns the exit code."""
    directory = Path(arguments.dir or arguments.configured.directory)
    async with open_runtime(arguments, journal_only=True) as runtime:
        if arguments.user is None:
            settings = {
                name: await runtime.internals.journal.setting(name) or "-"
                for name in ("embedder", "counter")
            }
            on_disk = await anyio.to_thread.run_sync(_bytes_on_disk, directory)
            _print(
                console,
                f"{directory}",
                {**_counts(await runtime.counts()), **settings, "bytes on disk": f"{on_disk:,}"},
            )
        elif arguments.session is None:
            user = runtime.user(arguments.user)
            counts = await runtime.counts(user.id)
            view = await user.inspect()
            if not counts.sessions and not counts.memories and not view.working_items:
                raise InvalidInput(f"there is no user {arguments.user} in this memory")
            figures = {name: figure for name, figure in _counts(counts).items() if name != "users"}
            figures |= {
                "working memory": f"{view.working_items:,}",
                "synopsis": view.synopsis.state,
            }
            _print(console, user.id, figures)
        else:
            chat = runtime.session(arguments.user, arguments.session)
            stats = await chat.stats()
            if not stats.messages:
                raise InvalidInput(f"{arguments.user} has no session {arguments.session}")
            _print(console, f"{arguments.user} / {arguments.session}", _session(stats))
    return 0


def _contents(report: TransferReport) -> str:
    return f"{report.sessions:,} sessions with {report.messages:,} messages, {report.memories:,} memories"  # noqa: E501


def _counts(counts: JournalCounts) -> dict[str, str]:
    return {
        name.replace("_", " "): f"{figure:,}"
        for name, figure in msgspec.structs.asdict(counts).items()
    }


def _session(stats: SessionStatistics) -> dict[str, str]:
    folds = stats.folds
    return {
        "messages": f"{stats.messages:,}",
        "in the buffer": f"{stats.buffered:,} ({stats.buffered_tokens:,} tokens)",
        "waiting for a summary": f"{stats.pending:,}",
        "summaries": f"{folds.calls:,}, {folds.degraded:,} of them extracts in a model's place",
        "tokens of summaries": f"{stats.summary_tokens:,} held; {folds.tokens_in:,} read and "
        f"{folds.tokens_out:,} written in all",
        "in long-term memory": f"{stats.flushed:,}, or on their way",
        "past restated": f"{stats.restated:,} times",
    }


def _print(console: Console, title: str, figures: dict[str, str]) -> None:
    console.print(Text(printable(title), style="bold"))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    for name, figure in figures.items():
        table.add_row(name, Text(printable(figure)))
    console.print(table)


def _bytes_on_disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
