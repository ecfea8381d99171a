"""``remora export``, ``import``, ``reembed`` and ``stats``."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

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

from remora.api.base import BaseRuntime
from remora.api.runtime import Runtime
from remora.cli import Commands
from remora.cli.memory import (
    directory_of,
    open_runtime,
    open_to_read,
)
from remora.cli.render import print_json, printable
from remora.cluster.acting import Actions
from remora.cluster.connected import ConnectedRuntime
from remora.cluster.reading import without_long_term
from remora.cluster.sharded import ShardedRuntime, runtimes_of
from remora.errors import (
    InvalidExport,
    InvalidInput,
    OutcomeUnknown,
    OwnerFailed,
    OwnerUnreachable,
    StorageError,
)
from remora.maintenance.import_ import check_export
from remora.maintenance.importing.translate import SOURCES, Translation, translate
from remora.messages.text import counted
from remora.models.ports import embedder_name
from remora.runtime.threads import run_in_thread
from remora.services.archive import SessionStatistics
from remora.services.arguments import check_path
from remora.storage.export.transfer import TransferReport
from remora.storage.files import open_private
from remora.storage.ports import JournalCounts
from remora.storage.records import MessageRange
from remora.system.forks import closing
from remora.system.locks import lock_file

_EXPORT = """\
Write everything that the memory holds to DEST: a file of JSON lines if its
name ends in .jsonl, otherwise a directory of Parquet files
(docs/reference/export-format.md). Vectors are left out: an import embeds everything
again. DEST appears when it is complete; an existing DEST is refused. A server
may own the directory: the export is of the moment at which the command began.
"""

_COPY = "import-"  # begins the name of a directory for what is imported
_IMPORT = """\
Add the sessions and users of SRC to the memory directory, which is created if
necessary. A server may own the directory. SRC is a .jsonl file or a directory of
Parquet files that remora wrote or, with --from, a file of another product.

SRC is checked to its end before anything is written; what is invalid is named, and
nothing is imported. The configured embedder embeds everything before the command
ends; if it is interrupted, the next process that opens the directory continues.

With --from, conversations become sessions of the ids that they had, with the times
of their messages, and memories become memories of their user. Running it again
doubles nothing: a session that exists is kept as it is, and counted.
"""


def add_transfer_parsers(
    commands: Commands,
    common: argparse.ArgumentParser,
    printing: argparse.ArgumentParser,
    context: argparse.ArgumentParser,
) -> None:
    """Describe the commands to the parser.

    Args:
        commands: the parser of commands.
        common: options of all commands.
        printing: options of commands that print results.
        context: options of commands that fill buffers.
    """
    command = commands.add_parser(
        "export",
        parents=[common, printing],
        help="write all sessions and users to a file or a directory",
        description=_EXPORT,
        epilog="examples:\n  remora export backup.jsonl --dir memory\n"
        "  remora export tables/ --dir memory --overwrite\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "dest",
        type=Path,
        metavar="DEST",
        help="a file whose name ends in .jsonl, or a new directory",
    )
    command.add_argument("--overwrite", action="store_true", help="replace DEST if it exists")

    _add_import_parser(commands, common, printing, context)

    commands.add_parser(
        "reembed",
        parents=[common, printing],
        help="rebuild long-term memory with the configured embedder",
        description="After models.embedder was changed: rebuild long-term memory from the journal, "
        "with the configured embedder. Rows of the old embedder are removed at the end. With the "
        "embedder unchanged, a directory of an earlier remora gets a key for its users' digests, "
        "and no model is called. It may be interrupted at any time: the same command, or a server "
        "that opens the directory, continues. A server can also do it while it serves: "
        "Runtime(…, reembed=True).",
    )

    command = commands.add_parser(
        "stats",
        parents=[common, printing],
        help="print figures of the memory, a user or a session",
        description="Print figures: of the whole memory, of one user, or of one session. It reads "
        "only the journal, and writes nothing; a server may own the directory.",
    )
    command.add_argument("user", metavar="USER", nargs="?")
    command.add_argument("session", metavar="SESSION", nargs="?")


def _add_import_parser(
    commands: Commands,
    common: argparse.ArgumentParser,
    printing: argparse.ArgumentParser,
    context: argparse.ArgumentParser,
) -> None:
    products = "\n".join(f"  {one.name:<14}{one.description}" for one in SOURCES.values())
    command = commands.add_parser(
        "import",
        parents=[common, printing, context],
        help="add the sessions and users of an export, of remora or of another product",
        description=_IMPORT,
        epilog=f"what --from reads:\n{products}\n\nexamples:\n"
        "  remora import backup.jsonl --dir memory\n"
        "  remora import --from chatgpt export.zip --user alice --dry-run\n"
        "  remora import --from mem0 memories.json --dir memory --skip-broken\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "src", type=Path, metavar="SRC", help="what remora export, or another product, wrote"
    )
    command.add_argument(
        "--from",
        dest="source",
        choices=sorted(SOURCES),
        metavar="PRODUCT",
        help=f"the product that wrote SRC: {', '.join(SOURCES)}",
    )
    command.add_argument(
        "--user",
        metavar="USER",
        help="with --from: whose memory it becomes, where SRC names no user",
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="with --from: print what would be imported and what would not, and write nothing",
    )
    command.add_argument(
        "--skip-broken",
        action="store_true",
        help="with --from: leave broken conversations and memories out, and count them",
    )
    command.set_defaults(
        wrong_usage=lambda given: (
            ""
            if given.source or not (given.user or given.dry_run or given.skip_broken)
            else "--user, --dry-run and --skip-broken need --from"
        )
    )
    command.add_argument(
        "--skip-existing",
        action="store_true",
        help="keep existing sessions unchanged, instead of refusing the import",
    )


@contextmanager
def progress_bar(doing: str) -> Iterator[tuple[Progress, Callable[[int, int | None], None]]]:
    """A bar on standard error, and the function that sets how many of how many are done."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    hidden = not console.is_terminal  # off a terminal it would leave an empty line
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(doing, total=None)

        def advance(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total)

        yield progress, advance


async def command_export(console: Console, arguments: argparse.Namespace) -> int:
    """Export; returns the exit code."""
    async with open_to_read(arguments, copied=True) as runtime:
        with progress_bar("exporting") as (_, advance):
            report = await runtime.export(
                arguments.dest, overwrite=arguments.overwrite, progress=advance
            )
    if arguments.json:
        print_json(report)
        return 0
    console.print(f"{_contents(report)} in {arguments.dest}", markup=False, highlight=False)
    return 0


async def command_import(console: Console, arguments: argparse.Namespace) -> int:
    """Import; returns the exit code."""
    if arguments.source:
        return await _import_foreign(console, arguments)
    directory = directory_of(arguments)
    if not await run_in_thread(directory.exists):  # what is refused leaves no directory
        config = without_long_term(arguments.configured)
        async with Runtime.in_memory(config=config) as checking:
            with _name_option():
                await check_export(
                    checking.internals.transfers.parts, check_path(arguments.src, "SRC")
                )
    with _name_option():
        report, dead = await _import(
            arguments, arguments.src, skip_existing=arguments.skip_existing
        )
    if arguments.json:
        print_json({**msgspec.to_builtins(report), "dead_letters": dead})
        return 0
    _print_imported(console, report, dead)
    return 0


@contextmanager
def _name_option() -> Iterator[None]:
    """Say what imports a file that does not begin as an export does."""
    try:
        yield
    except InvalidExport as e:
        if e.line != 1:
            raise
        raise InvalidExport(f"{e}; a file of another product needs --from", line=1) from e


def _print_imported(console: Console, report: TransferReport, dead: int) -> None:
    skipped = f"; {counted(report.skipped, 'session')} there already" if report.skipped else ""
    console.print(f"{_contents(report)} imported{skipped}", highlight=False)
    if dead:
        console.print(
            f"{counted(dead, 'dead letter')}: remora jobs prints the reasons; "
            "the sessions still load",
            style="red",
        )


async def _import_foreign(console: Console, arguments: argparse.Namespace) -> int:
    """Translate another product's file into an export, and import that; returns the exit code."""
    path = check_path(arguments.src, "SRC")
    with tempfile.TemporaryDirectory(prefix="remora-import-") as temporary:
        export = Path(temporary) / "export.jsonl"
        translation = await _translate(arguments, path, export)
        if arguments.dry_run:
            if arguments.json:
                print_json(translation)
            else:
                refused = translation.broken and not arguments.skip_broken
                first = "without --skip-broken nothing is imported; with it, " if refused else ""
                console.print(f"{first}{_contents(translation)} would be imported", highlight=False)
                _print_left_out(console, translation)
            return _exit_code(translation, skip_broken=arguments.skip_broken)
        report, dead = await _import(arguments, export, skip_existing=True)
    if arguments.json:
        print_json(
            {
                **msgspec.to_builtins(translation),
                **msgspec.to_builtins(report),
                "dead_letters": dead,
            }
        )
    else:
        _print_imported(console, report, dead)
        _print_left_out(console, translation)
    return _exit_code(translation, skip_broken=True)


def _exit_code(translation: Translation, *, skip_broken: bool) -> int:
    if not translation.broken:
        return 0
    return 3 if skip_broken else 1


async def _translate(arguments: argparse.Namespace, path: Path, dest: Path) -> Translation:
    config = without_long_term(arguments.configured)
    async with Runtime.in_memory(config=config) as checking:
        with progress_bar("reading") as (_, advance):
            return await run_in_thread(
                partial(
                    translate,
                    SOURCES[arguments.source],
                    path,
                    dest,
                    checking.internals.transfers.parts,
                    user=arguments.user or "",
                    skip_broken=arguments.skip_broken or arguments.dry_run,
                    progress=advance,
                )
            )


def _print_left_out(console: Console, translation: Translation) -> None:
    for reason, left in sorted(translation.left_out.items(), key=lambda one: -one[1].count):
        names = f" ({', '.join(left.examples)})" if left.examples else ""
        line = f"not carried over: {reason}: {left.count:,}{names}"
        console.print(printable(line), style="dim", markup=False, highlight=False)
    if translation.broken:
        console.print(f"broken, and left out: {counted(translation.broken, 'record')}", style="red")
        for broken in translation.named:
            line = f"  {broken.place}: {broken.reason}"
            console.print(printable(line), style="red", markup=False, highlight=False)


async def _import(
    arguments: argparse.Namespace, path: Path, *, skip_existing: bool
) -> tuple[TransferReport, int]:
    """Return what was imported, and how many dead letters there are then."""
    actions = Actions(directory_of(arguments), arguments.configured)
    async with actions.open(journal_only=False) as memory:
        with progress_bar("importing") as (progress, advance):
            try:
                async with _in_reach(memory, arguments, path) as source:
                    report = await memory.import_(
                        source, skip_existing=skip_existing, progress=advance
                    )
            except OutcomeUnknown as e:
                raise OutcomeUnknown(
                    "the process that had the memory open ended before the import did: repeat it"
                    f"{'' if arguments.source else ' with --skip-existing'}"
                ) from e
            task = progress.task_ids[0]
            progress.update(task, description="embedding", completed=0, total=None)
            with suppress(OwnerFailed, OwnerUnreachable):  # its server has gone, and goes on later
                await memory.settle()
                return report, (await memory.counts()).dead_jobs
        return report, 0


@asynccontextmanager
async def _in_reach(
    memory: BaseRuntime, arguments: argparse.Namespace, path: Path
) -> AsyncIterator[Path]:
    """The export, where the process that has the memory open can read it.

    A temporary file of this process is copied into the memory directory: systemd gives a server a
    ``/tmp`` of its own.
    """
    directory = directory_of(arguments)
    served = isinstance(memory, ConnectedRuntime) and await run_in_thread(directory.is_dir)
    if not (arguments.source and served):
        yield path
        return
    with _place_in(directory) as place:
        copy = place / path.name
        try:
            await run_in_thread(shutil.copyfile, path, copy)
        except OSError as e:
            raise StorageError(f"{copy} cannot be written: {e.strerror or e}") from e
        yield copy


@contextmanager
def _place_in(directory: Path) -> Iterator[Path]:
    """A temporary directory in the memory directory; those that killed imports left are removed.

    Raises:
        StorageError: the disk refuses.
    """
    with ExitStack() as held:
        try:
            for left in directory.glob(f"{_COPY}*"):
                # the import of one that is locked goes on
                with suppress(BlockingIOError, FileNotFoundError), _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
            place = _make_place(directory, held)
        except OSError as e:
            raise StorageError(f"{directory} cannot be written: {e.strerror or e}") from e
        yield place


def _make_place(directory: Path, held: ExitStack) -> Path:
    """A new temporary directory, locked; another import may remove one before it is."""
    while True:
        with ExitStack() as made:
            temporary = tempfile.TemporaryDirectory(
                prefix=_COPY, dir=directory, ignore_cleanup_errors=True
            )
            place = Path(made.enter_context(temporary))
            with suppress(BlockingIOError, FileNotFoundError):
                if os.fstat(made.enter_context(_locked(place))).st_nlink:
                    held.enter_context(made.pop_all())
                    return place


@contextmanager
def _locked(place: Path) -> Iterator[int]:
    """Hold the lock of a temporary directory; yields the descriptor of its file.

    Raises:
        BlockingIOError: another process holds it.
    """
    descriptor = open_private(place / "lock", os.O_RDWR)
    with closing(descriptor):
        lock_file(descriptor)
        yield descriptor


async def command_reembed(console: Console, arguments: argparse.Namespace) -> int:
    """Rebuild long-term memory; returns the exit code."""
    async with open_runtime(arguments, reembed=True) as runtime:
        for one in runtimes_of(runtime):
            name = embedder_name(one.internals.embedder)
            await one.internals.long_term()  # damage starts a rebuild as well
        begun = runtime.reembedding
        if begun is not None:
            with progress_bar("embedding") as (_, advance):
                await runtime.reembedded(advance)
        rows = (await runtime.long_term_statistics()).rows
        waiting = await _count_unindexed(runtime)
    if arguments.json:
        rebuilt = begun is not None
        print_json({"embedder": name, "rebuilt": rebuilt, "rows": rows, "unindexed": waiting})
        return 0
    later = f"; {counted(waiting, 'message')} not indexed yet" if waiting else ""
    done = (
        f"long-term memory already uses {name}: there is nothing to do"
        if begun is None
        else f"long-term memory now uses {name}: {counted(rows, 'row')}{later}"
    )
    console.print(done, markup=False, highlight=False)
    return 0


async def _count_unindexed(runtime: BaseRuntime) -> int:
    """Return how many messages have no row yet, as those of a session that is not idle."""
    reached = 0
    for one in runtimes_of(runtime):
        journal = one.internals.journal
        reached += sum(through for _, through in await journal.indexed_through())
    return max((await runtime.counts()).messages - reached, 0)


async def command_stats(console: Console, arguments: argparse.Namespace) -> int:
    """Print figures; returns the exit code."""
    async with open_to_read(arguments, user=arguments.user) as runtime:
        if arguments.user is None:
            counts = await runtime.counts()
            where, settings = await _settings(arguments, runtime)
            if arguments.json:
                print_json({**msgspec.to_builtins(counts), **settings})
                return 0
            shown = {
                name.replace("_", " "): f"{value:,}" if isinstance(value, int) else value
                for name, value in settings.items()
            }
            _print(console, where, {**_counts(counts), **shown})
        elif arguments.session is None:
            user = runtime.user(arguments.user)
            counts = await runtime.counts(user.id)
            view = await user.inspect()
            held = (counts.sessions, counts.memories, view.working_items, counts.state_keys)
            if not any(held):
                raise InvalidInput(f"there is no user {arguments.user} in this memory")
            if arguments.json:
                of_user = msgspec.structs.asdict(counts)
                del of_user["users"]
                of_user["working_items"] = view.working_items
                of_user["profile"] = view.synopsis.state
                print_json(of_user)
                return 0
            figures = {name: figure for name, figure in _counts(counts).items() if name != "users"}
            figures |= {
                "working memory": f"{view.working_items:,}",
                "user profile": view.synopsis.state,
            }
            _print(console, user.id, figures)
        else:
            chat = runtime.session(arguments.user, arguments.session)
            stats = await chat.stats()
            if not stats.messages and not stats.state_keys:
                raise InvalidInput(f"{arguments.user} has no session {arguments.session}")
            if arguments.json:
                print_json(stats)
                return 0
            _print(console, f"{arguments.user} / {arguments.session}", _session(stats))
    return 0


async def _settings(
    arguments: argparse.Namespace, memory: BaseRuntime
) -> tuple[str, dict[str, str | int]]:
    """Where a memory is, and what it was made with."""
    if arguments.in_database:
        assert isinstance(memory, ShardedRuntime)
        schema = arguments.configured.journal.schema
        return f"the schema {schema} in PostgreSQL", {"shards": str(len(memory.shards))}
    directory, shards = directory_of(arguments), runtimes_of(memory)
    settings: dict[str, str | int] = {
        name: await shards[0].internals.journal.setting(name) or "-"
        for name in ("embedder", "counter")
    }
    if len(shards) > 1:
        settings["shards"] = str(len(shards))
    settings["bytes_on_disk"] = await run_in_thread(_bytes_on_disk, directory)
    return str(directory), settings


def _contents(report: TransferReport | Translation) -> str:
    memories = counted(report.memories, "memory", "memories")
    return (
        f"{counted(report.sessions, 'session')} with {counted(report.messages, 'message')}, "
        f"{memories}"
    )


_LABELS = {"dead_jobs": "dead letters", "state_keys": "keys of keyed state"}


def _counts(counts: JournalCounts) -> dict[str, str]:
    return {
        _LABELS.get(name, name.replace("_", " ")): f"{figure:,}"
        for name, figure in msgspec.structs.asdict(counts).items()
    }


def _session(stats: SessionStatistics) -> dict[str, str]:
    summaries = stats.summaries
    return {
        "messages": f"{stats.messages:,}",
        "in the buffer": f"{stats.buffered:,} ({stats.buffered_tokens:,} tokens)",
        "being summarized": f"{stats.pending:,} of them",
        "summaries": f"{summaries.calls:,}, {summaries.degraded:,} of them fallbacks",
        "in no summary": _degraded(stats.degraded),
        "tokens of summaries": f"{stats.summary_tokens:,} now; in all "
        f"{summaries.tokens_in:,} read, "
        f"{summaries.tokens_out:,} written",
        "indexed": f"{stats.indexed:,}, or being indexed",
        "history rewritten": f"{stats.rewritten:,} times",
        "keys of keyed state": f"{stats.state_keys:,}",
    }


def _degraded(lost: MessageRange | None) -> str:
    if lost is None:
        return "0"
    return f"{lost.count:,} of the messages {lost.first:,} to {lost.last:,} (degraded)"


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
