"""``remora``.

Replay conversations, look at them, recall, carry everything elsewhere, show the configuration.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
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
from rich.text import Text

from remora.api.runtime import Runtime
from remora.cli.configuration import render_changes, render_defaults
from remora.cli.erasure import add_forget_parser, command_forget
from remora.cli.jobs import add_jobs_parser, command_jobs
from remora.cli.reader import Conversations, read_conversations
from remora.cli.render import print_bad_lines, print_memories, print_report, print_session
from remora.cli.replay import ReplayReport, replay
from remora.cli.transfer import (
    add_transfer_parsers,
    command_export,
    command_import,
    command_reembed,
    command_stats,
)
from remora.cli.upkeep import add_upkeep_parsers, command_backup, command_repair, command_verify
from remora.config import Config
from remora.errors import ConfigError, InvalidInput, RemoraError

__all__ = ["main", "run"]

EXIT_BAD_LINES = 3
_DEMO_TOKENS = 1_600
_DEMO_QUESTIONS = (
    ("jonas", "which note growls on the cello?"),
    ("amara", "how does the boiler trick work?"),
    ("mei", "what did the physio prescribe?"),
)

_DESCRIPTION = (
    "Conversation memory, embedded in your agent server. Writes are durable before they return, "
    "and never wait for a model."
)
_EPILOG = """\
examples:
  remora demo                                       see the whole thing on conversations that ship with it
  remora replay chats.jsonl --dir memory            replay a file of conversations (docs/replay-format.md)
  remora show alice chat-42 --dir memory            a session's summary, recent messages, and what is pending
  remora recall alice "where do I live?" --dir memory
  remora export backup.jsonl --dir memory           everything to a file; remora import takes it over, here or elsewhere
  remora jobs --dir memory                          background work that waits, and what failed for good
  remora backup memory /backups/monday              a copy, while a server uses it; remora verify checks it
  remora config --defaults > remora.yaml            every key, its default and what it is for

exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, but lines of the file were left out
"""  # noqa: E501


def _at_least(low: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, not {value}")
        return value

    return number


def _common(**options: Any) -> argparse.ArgumentParser:
    """What every command takes that opens a memory directory."""
    common = argparse.ArgumentParser(add_help=False, **options)
    common.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="the memory directory (default: the configuration's, remora-memory)",
    )
    common.add_argument(
        "--config", type=Path, metavar="FILE", help="a .yaml, .toml or .json configuration file"
    )
    common.add_argument(
        "--token-limit",
        type=int,
        metavar="N",
        help="buffer.token_limit: the context's size; a smaller one folds sooner (30000)",
    )
    common.add_argument(
        "-v", "--verbose", action="store_true", help="log what happens to standard error"
    )
    return common


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="remora",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common, inherited = _common(), _common(argument_default=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "replay",
        parents=[common],
        help="replay a JSONL file of conversations, all users at once",
        description="Append every message of a JSONL file, loading a context before each answer "
        "as an agent would. Run again on "
        "the same file it adds nothing: each message has an idempotency key made from its place "
        "and content.",
    )
    command.add_argument(
        "file", type=Path, metavar="FILE.jsonl", help="conversations, see docs/replay-format.md"
    )
    command.add_argument(
        "--concurrency", type=_at_least(1), default=64, metavar="N", help="users at once (64)"
    )
    command.add_argument("--query", metavar="TEXT", help="afterwards, recall this for every user")

    command = commands.add_parser(
        "show", parents=[common], help="print a session: summary, recent messages, what is pending"
    )
    command.add_argument("user", metavar="USER")
    command.add_argument("session", metavar="SESSION")
    command.add_argument(
        "-n", type=_at_least(0), default=20, metavar="N", help="messages to print (20)"
    )

    command = commands.add_parser(
        "recall", parents=[common], help="print what a user said before that bears on a question"
    )
    command.add_argument("user", metavar="USER")
    command.add_argument("question", metavar="QUESTION")
    command.add_argument(
        "-k", type=_at_least(1), default=5, metavar="K", help="memories to print (5)"
    )

    commands.add_parser(
        "demo",
        parents=[common],
        help="replay, show and recall on conversations that ship with remora",
        description="Replays sixteen conversations of four users that ship with remora, shows a "
        "session, and recalls facts from "
        "months before. Uses a temporary directory unless --dir names one.",
    )

    add_transfer_parsers(commands, common)
    add_forget_parser(commands, common)
    add_upkeep_parsers(commands)
    add_jobs_parser(commands, common, inherited)

    command = commands.add_parser(
        "config",
        help="print the configuration: what is in force, or every key with its default",
        description="Print the configuration in force, as YAML: the defaults, changed by FILE and "
        "then by REMORA_SECTION__KEY "
        "variables of the environment, with the default beside what differs from it. Secrets "
        "print as ***. A mistake in FILE or "
        "in a variable is named, and the exit code is 1: so this checks a configuration before a "
        "server starts with it.",
        epilog="The output of --defaults is a configuration file itself: keep the keys that you "
        "change, and leave the rest out.",
    )
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--defaults",
        action="store_true",
        help="print every key with its default and what it is for; reads no file or environment",
    )
    which.add_argument(
        "--config", type=Path, metavar="FILE", help="a .yaml, .toml or .json configuration file"
    )
    command.set_defaults(token_limit=None, verbose=False)
    return parser


def _load_config(arguments: argparse.Namespace) -> Config:
    config = Config.from_file(arguments.config) if arguments.config else Config.from_environment()
    if arguments.token_limit is not None:
        if arguments.token_limit < 1:
            raise ConfigError(
                f"--token-limit must be positive, not {arguments.token_limit}",
                key="buffer.token_limit",
            )
        limit = arguments.token_limit
        summary = min(config.buffer.summary_tokens, max(limit // 4, 1))
        buffer = msgspec.structs.replace(config.buffer, token_limit=limit, summary_tokens=summary)
        config = msgspec.structs.replace(config, buffer=buffer)
    return config


def _runtime(arguments: argparse.Namespace) -> Runtime:
    return Runtime(arguments.dir or arguments.configured.directory, config=arguments.configured)


def _require_memory(arguments: argparse.Namespace) -> None:
    directory = Path(arguments.dir or arguments.configured.directory)
    if not (directory / "journal.db").is_file():
        raise InvalidInput(
            f"there is no memory in {directory}: name its directory with --dir, or fill one with "
            "remora replay"
        )


async def _replay(
    console: Console, runtime: Runtime, conversations: Conversations, concurrency: int
) -> ReplayReport:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("replaying", total=conversations.messages)

        def advance(count: int) -> None:
            progress.advance(bar, count)
            if progress.tasks[0].finished:
                progress.update(bar, description="folding and flushing")

        report = await replay(runtime, conversations, concurrency=concurrency, progress=advance)
    print_report(console, report)
    return report


async def _command_replay(console: Console, arguments: argparse.Namespace) -> int:
    conversations = await anyio.to_thread.run_sync(read_conversations, arguments.file)
    if not conversations.sessions:
        print_bad_lines(console, conversations)
        raise InvalidInput(
            f"{arguments.file} holds no conversation; docs/replay-format.md describes the format"
        )
    async with _runtime(arguments) as runtime:
        await _replay(console, runtime, conversations, arguments.concurrency)
        if arguments.query:
            for user in conversations.users:
                console.rule(Text(f"recall for {user}"), align="left")
                print_memories(console, await runtime.user(user).recall(arguments.query))
    if conversations.ignored:
        console.print(
            f"{conversations.ignored} lines hold no conversation (questions, prompts) and were "
            "passed over",
            style="dim",
        )
    print_bad_lines(console, conversations)
    return EXIT_BAD_LINES if conversations.bad else 0


async def _print_session(
    console: Console, runtime: Runtime, user: str, session: str, most: int
) -> None:
    handle = runtime.session(user, session)
    view = await handle.inspect()
    if view.last_seq == 0:
        known = [listing.key.session for listing in await runtime.user(user).sessions()]
        near = difflib.get_close_matches(session, known, n=3, cutoff=0.3) or known[-3:]
        hint = f"; {user} has: {', '.join(near)}" if near else f"; there is no user {user} either"
        raise InvalidInput(f"{user} has no session {session}{hint}")
    jobs = [
        job
        for dead in (False, True)
        for job in await runtime.internals.journal.jobs(dead=dead)
        if job.key == handle.key
    ]
    print_session(console, f"{user} / {session}", view, await handle.history(), jobs, most=most)


async def _command_show(console: Console, arguments: argparse.Namespace) -> int:
    # looking at a session needs the journal alone
    long_term = msgspec.structs.replace(arguments.configured.long_term, enabled=False)
    arguments.configured = msgspec.structs.replace(arguments.configured, long_term=long_term)
    async with _runtime(arguments) as runtime:
        await _print_session(console, runtime, arguments.user, arguments.session, arguments.n)
    return 0


async def _command_recall(console: Console, arguments: argparse.Namespace) -> int:
    async with _runtime(arguments) as runtime:
        user = runtime.user(arguments.user)
        if not await user.sessions():
            raise InvalidInput(f"there is no user {arguments.user} in this memory")
        print_memories(console, await user.recall(arguments.question, k=arguments.k))
    return 0


async def _command_demo(console: Console, arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(
        prefix="remora-demo-", ignore_cleanup_errors=True
    ) as temporary:
        kept = arguments.dir is not None
        arguments.dir = arguments.dir or Path(temporary)
        with resources.as_file(resources.files("remora.cli").joinpath("demo.jsonl")) as path:
            conversations = await anyio.to_thread.run_sync(read_conversations, path)
        async with _runtime(arguments) as runtime:
            console.rule("1. sixteen conversations of four users, replayed at once", align="left")
            await _replay(console, runtime, conversations, 64)
            longest = max(conversations.sessions, key=lambda key: len(conversations.sessions[key]))
            console.rule(f"2. remora show {longest.user} {longest.session}", align="left")
            await _print_session(console, runtime, longest.user, longest.session, 6)
            for number, (user, question) in enumerate(_DEMO_QUESTIONS, start=3):
                console.rule(f'{number}. remora recall {user} "{question}"', align="left")
                print_memories(console, await runtime.user(user).recall(question, k=3))
        console.rule(align="left")
        if kept:
            console.print(f'Ask more: remora recall USER "question" --dir {arguments.dir}')
        else:
            console.print(
                'Keep it and ask more: remora demo --dir demo && remora recall mei "…" --dir demo'
            )
    return 0


_COMMANDS = {
    "replay": _command_replay,
    "show": _command_show,
    "recall": _command_recall,
    "demo": _command_demo,
    "export": command_export,
    "import": command_import,
    "reembed": command_reembed,
    "stats": command_stats,
    "forget": command_forget,
    "verify": command_verify,
    "backup": command_backup,
    "repair": command_repair,
    "jobs": command_jobs,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if wrong := getattr(arguments, "wrong_usage", lambda _: None)(arguments):
        parser.error(wrong)
    logging.basicConfig(
        level=logging.INFO if arguments.verbose else logging.CRITICAL,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    console = Console()
    try:
        if (
            arguments.command == "demo"
            and arguments.token_limit is None
            and arguments.config is None
        ):
            arguments.token_limit = _DEMO_TOKENS  # short conversations: let them fold
        if arguments.command == "config":
            sys.stdout.write(
                render_defaults() if arguments.defaults else render_changes(_load_config(arguments))
            )
            return 0
        arguments.configured = _load_config(arguments)
        if arguments.command in {"show", "recall", "export", "reembed", "stats", "jobs", "forget"}:
            _require_memory(arguments)
        return anyio.run(_COMMANDS[arguments.command], console, arguments)
    except RemoraError as e:
        Console(stderr=True).print(f"remora: {e}", style="red", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print(
            "interrupted: what was acknowledged is kept; run the same command again to go on"
        )
        return 130


def run() -> None:
    """The console script."""
    code = main()
    if code == 130:
        # a second Ctrl-C may have cut the closing short: leave at once, the journal needs no
        # farewell
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
