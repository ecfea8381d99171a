"""``remora``: the commands, and their dispatch."""

from __future__ import annotations

import argparse
import difflib
import io
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

import anyio
import msgspec
from rich.console import Console
from rich.text import Text

import remora
from remora.api.base import BaseRuntime
from remora.cli import Commands
from remora.cli.configuration import render_changes, render_defaults
from remora.cli.contents import (
    add_listing_parsers,
    command_recall,
    command_sessions,
    command_show,
    command_users,
    show_session,
)
from remora.cli.erasure import add_forget_parser, command_forget
from remora.cli.health import add_health_parsers, command_health, command_top
from remora.cli.jobs import add_jobs_parser, command_jobs
from remora.cli.memory import (
    is_in_database,
    memory_directory,
    open_runtime,
    require_memory,
)
from remora.cli.render import (
    Output,
    print_bad_lines,
    print_json,
    print_memories,
    print_report,
)
from remora.cli.replay import (
    Conversations,
    ReplayReport,
    describe_shape,
    read_conversations,
    replay,
)
from remora.cli.servers import (
    add_http_parsers,
    add_mcp_parser,
    add_view_parser,
    command_http,
    command_keys,
    command_mcp,
    command_view,
)
from remora.cli.transfer import (
    add_transfer_parsers,
    command_export,
    command_import,
    command_reembed,
    command_stats,
    progress_bar,
)
from remora.cli.tune import add_tune_parser, command_tune
from remora.cli.upkeep import (
    add_reshard_parser,
    add_upkeep_parsers,
    command_backup,
    command_repair,
    command_reshard,
    command_verify,
)
from remora.cli.workers import add_worker_parsers, command_owners, command_serve
from remora.config import Config
from remora.errors import ConfigError, InvalidInput, RemoraError
from remora.messages.text import counted
from remora.runtime.threads import run_in_thread
from remora.storage.sqlite.peek import peek_jobs

EXIT_BAD_LINES = 3
_DEMO_TOKENS = 1_600
_DEMO_QUESTIONS = (
    ("jonas", "which note growls on the cello?"),
    ("amara", "how does the boiler trick work?"),
    ("mei", "what did the physio prescribe?"),
)


def _load_config(arguments: argparse.Namespace) -> Config:
    config = Config.from_file(arguments.config) if arguments.config else Config.from_environment()
    if arguments.token_limit is not None:
        if arguments.token_limit < 1:
            raise ConfigError(
                f"--token-limit must be positive, not {arguments.token_limit}",
                key="buffer.token_limit",
            )
        limit = arguments.token_limit
        summary = min(config.buffer.summary_tokens, max(limit // 4, 1))  # 0 stays 0
        buffer = msgspec.structs.replace(config.buffer, token_limit=limit, summary_tokens=summary)
        config = msgspec.structs.replace(config, buffer=buffer)
    return config


async def _replay(
    runtime: BaseRuntime, conversations: Conversations, concurrency: int
) -> ReplayReport:
    with progress_bar("replaying") as (progress, advance):
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            advance(done, conversations.messages)
            if done == conversations.messages:
                progress.update(progress.task_ids[0], description="summarizing and indexing")

        return await replay(runtime, conversations, concurrency=concurrency, progress=count)


async def _command_replay(console: Console, arguments: argparse.Namespace) -> int:
    conversations = await run_in_thread(read_conversations, arguments.file)
    if not conversations.sessions:
        shape = await run_in_thread(describe_shape, arguments.file)
        first = next((f"; line {bad.number}: {bad.reason}" for bad in conversations.bad), "")
        raise InvalidInput(
            f"{arguments.file} holds no conversation: {shape} "
            f"(docs/reference/replay-format.md){first}"
        )
    async with open_runtime(arguments) as runtime:
        report = await _replay(runtime, conversations, arguments.concurrency)
        if arguments.json:
            print_json(report.figures())
        else:
            print_report(console, report)
        if arguments.query:
            for user in conversations.users:
                found = await runtime.user(user).recall(arguments.query)
                if arguments.json:
                    print_json({"user": user, "memories": found})
                    continue
                console.rule(Text(f"recall for {user}"), align="left")
                print_memories(console, found)
    if arguments.json:
        for bad in conversations.bad:
            print_json({"line": bad.number, "reason": bad.reason})
        return EXIT_BAD_LINES if conversations.bad else 0
    if conversations.ignored:
        console.print(
            f"ignored, since no conversation is in it: {counted(conversations.ignored, 'line')} "
            "(questions, prompts)",
            style="dim",
        )
    print_bad_lines(console, conversations)
    return EXIT_BAD_LINES if conversations.bad else 0


async def _command_demo(console: Console, arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(
        prefix="remora-demo-", ignore_cleanup_errors=True
    ) as temporary:
        kept = arguments.dir is not None
        arguments.dir = arguments.dir or Path(temporary)
        with resources.as_file(resources.files("remora.cli").joinpath("demo.jsonl")) as path:
            conversations = await run_in_thread(read_conversations, path)
        async with open_runtime(arguments) as runtime:
            console.rule("1. sixteen conversations of four users, replayed at once", align="left")
            print_report(console, await _replay(runtime, conversations, 64))
            longest = max(conversations.sessions, key=lambda key: len(conversations.sessions[key]))
            console.rule(f"2. remora show {longest.user} {longest.session}", align="left")
            waiting = await run_in_thread(peek_jobs, arguments.dir / "journal.db")
            await show_session(console, runtime, waiting, longest, most=6)
            for number, (user, question) in enumerate(_DEMO_QUESTIONS, start=3):
                console.rule(f'{number}. remora recall {user} "{question}"', align="left")
                print_memories(console, await runtime.user(user).recall(question, limit=3))
        console.rule(align="left")
        if kept:
            more = f'Ask more: {_program()} recall USER "question" --dir {arguments.dir}'
        else:
            more = (
                f"Keep it and ask more: {_program()} demo --dir demo\n"
                f'and then: {_program()} recall mei "…" --dir demo'
            )
        console.print(more, soft_wrap=True, markup=False, highlight=False)
    return 0


def _program() -> str:
    """Return what a shell calls this program by: it may be outside of its search path."""
    if shutil.which("remora"):
        return "remora"
    called = sys.argv[0]
    return f"{sys.executable} -m remora" if called.endswith(".py") else called


_COMMANDS = {
    "replay": _command_replay,
    "show": command_show,
    "recall": command_recall,
    "users": command_users,
    "sessions": command_sessions,
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
    "tune": command_tune,
    "reshard": command_reshard,
}
_OF_PROCESSES = {
    "serve": command_serve,
    "owners": command_owners,
    "health": command_health,
    "top": command_top,
    "http": command_http,
    "keys": command_keys,
    "mcp": command_mcp,
}
_ASK_OWNER = frozenset({"show", "recall", "users", "sessions", "stats", "jobs", "forget"})
"""Those that ask the owner of a memory in PostgreSQL."""
_NEED_MEMORY = _ASK_OWNER | {"export", "reembed", "tune", "view"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if wrong := getattr(arguments, "wrong_usage", lambda _: None)(arguments):
        parser.error(wrong)
    logging.basicConfig(
        level=logging.INFO if arguments.verbose else logging.CRITICAL,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    console = Output()
    try:
        if (
            arguments.command == "demo"
            and arguments.token_limit is None
            and arguments.config is None
        ):
            arguments.token_limit = _DEMO_TOKENS  # so that short conversations are summarized
        if arguments.command == "config":
            sys.stdout.write(
                render_defaults() if arguments.defaults else render_changes(_load_config(arguments))
            )
            return 0
        if arguments.command in _OF_PROCESSES:
            return _OF_PROCESSES[arguments.command](console, arguments)
        arguments.configured = _load_config(arguments)
        if arguments.command == "view":
            arguments.dir = arguments.place or arguments.dir
        arguments.in_database = is_in_database(arguments)
        asked = arguments.in_database and arguments.command in _ASK_OWNER
        if arguments.command in _NEED_MEMORY and not asked:
            require_memory(arguments)
        if arguments.command == "view":
            return command_view(console, arguments)
        with _ended_by_sigterm():
            return anyio.run(_COMMANDS[arguments.command], console, arguments)
    except RemoraError as e:
        Output(stderr=True).print(f"remora: {e}", style="red", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        Output(stderr=True).print(
            "interrupted: acknowledged data is kept; run the same command again to continue"
        )
        return 130


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does: no copy of a conversation is left in a temporary file."""
    if threading.current_thread() is not threading.main_thread():  # only that one may set it
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _write_all_characters() -> None:
    """Have no text fail for its letters: Windows writes files and pipes in a code page of old."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            if stream.isatty():
                stream.reconfigure(errors="replace")
            else:
                stream.reconfigure(encoding="utf-8")


def run() -> None:
    """The console script."""
    _write_all_characters()
    code = main()
    if code == 130:
        # a second Ctrl-C may have interrupted the closing: exit at once, the journal needs no
        # shutdown
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


# -- the commands and options of ``remora`` --------------------------------------------------------

_DESCRIPTION = (
    "Conversation memory, embedded in your agent server. Writes are durable before they return, "
    "and never wait for a model."
)
_WRONG_COMMAND = re.compile(r"argument COMMAND: invalid choice: '([^']*)'")
_EPILOG = """\
examples:
  remora demo                               replay conversations that ship with remora, and recall
  remora replay chats.jsonl --dir memory    replay a file (docs/reference/replay-format.md)
  remora users --dir memory                 who is in it; remora sessions alice: what they have
  remora show alice chat-42 --dir memory    a session's summary and its recent messages
  remora recall alice "where do I live?" --dir memory
  remora export backup.jsonl --dir memory   everything to a file; remora import reads it
  remora jobs --dir memory                  waiting background jobs, and dead letters
  remora backup /backups/monday --dir memory  a copy, while a server owns the directory
  remora verify --dir /backups/monday       check it
  remora tune questions.jsonl --dir memory  fit recall's weights to questions with known answers
  remora reshard memory --shards 8          divide it: a journal for each part of the users
  remora serve myapp.memory:runtime         own a memory for the workers that connect to it
  remora config --defaults > remora.yaml    every key, its default and what it is for

exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, but broken parts of the file were left out
"""


class _Parser(argparse.ArgumentParser):
    """Suggests the command that was probably meant."""

    def error(self, message: str) -> NoReturn:
        if (wrong := _WRONG_COMMAND.match(message)) is not None:
            known = re.findall(r"[a-z]+", message[wrong.end() :])
            if near := difflib.get_close_matches(wrong[1], known, n=1):
                message = f"there is no command {wrong[1]}; did you mean {near[0]}?"
        super().error(message)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="remora",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"remora {remora.__version__}")
    common, inherited = _common_options(), _common_options(argument_default=argparse.SUPPRESS)
    parser.set_defaults(token_limit=None)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=argparse.ArgumentParser
    )
    context, printing = _context_options(), _printing_options()
    _add_conversation_parsers(commands, common, printing, context)
    add_listing_parsers(commands, common, printing, _at_least(1))
    add_transfer_parsers(commands, common, printing, context)
    add_forget_parser(commands, common, printing)
    add_upkeep_parsers(commands, common, printing)
    add_jobs_parser(commands, common, inherited)
    add_tune_parser(commands, common, printing)
    add_reshard_parser(commands, common, printing)
    add_worker_parsers(commands, printing)
    add_health_parsers(commands, printing)
    add_view_parser(commands, common, printing)
    add_http_parsers(commands)
    add_mcp_parser(commands)
    _add_config_parser(commands)
    return parser


def _at_least(low: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, not {value}")
        return value

    return number


def _common_options(**options: Any) -> argparse.ArgumentParser:
    """The options of every command that opens a memory directory."""
    common = argparse.ArgumentParser(add_help=False, **options)
    common.add_argument(
        "--dir",
        type=memory_directory,
        metavar="DIR",
        help="the memory directory (by default the configuration's, remora-memory; "
        "demo: a temporary one)",
    )
    common.add_argument(
        "--config", type=Path, metavar="FILE", help="a .yaml, .toml or .json configuration file"
    )
    common.add_argument("-v", "--verbose", action="store_true", help="log to standard error")
    return common


def _printing_options() -> argparse.ArgumentParser:
    """The options of the commands that print results."""
    printing = argparse.ArgumentParser(add_help=False)
    printing.add_argument(
        "--json", action="store_true", help="print the result as JSON, one object per line"
    )
    return printing


def _context_options() -> argparse.ArgumentParser:
    """The options of the commands that fill buffers."""
    context = argparse.ArgumentParser(add_help=False)
    context.add_argument(
        "--token-limit",
        type=int,
        metavar="N",
        help="buffer.token_limit: the context's size; smaller ones are compacted sooner (30000)",
    )
    return context


def _add_conversation_parsers(
    commands: Commands,
    common: argparse.ArgumentParser,
    printing: argparse.ArgumentParser,
    context: argparse.ArgumentParser,
) -> None:
    command = commands.add_parser(
        "replay",
        parents=[common, printing, context],
        help="replay a JSONL file of conversations, all users at once",
        description="Append every message of a JSONL file, and load a context before each answer, "
        "as an agent would. A second run on the same file adds nothing: each message has an "
        "idempotency key made from its place and content.",
    )
    command.add_argument(
        "file",
        type=Path,
        metavar="FILE.jsonl",
        help="conversations, see docs/reference/replay-format.md",
    )
    command.add_argument(
        "--concurrency", type=_at_least(1), default=64, metavar="N", help="users at once (64)"
    )
    command.add_argument("--query", metavar="TEXT", help="afterwards, recall this for every user")

    command = commands.add_parser(
        "show",
        parents=[common, printing],
        help="print a session: summary, recent messages, waiting jobs",
        description="Print one session: its summary, its recent messages, which of them are being "
        "summarized, and the background jobs that wait. A server may own the directory.",
    )
    command.add_argument("user", metavar="USER")
    command.add_argument("session", metavar="SESSION")
    command.add_argument(
        "-n",
        "--limit",
        type=_at_least(0),
        default=20,
        metavar="N",
        help="how many messages at most (20)",
    )

    command = commands.add_parser(
        "recall",
        parents=[common, printing],
        help="print what a user said before about a question",
        description="Print what a user said before about a question, best first. A server may own "
        "the directory. A reranker that the configuration names has 30 s.",
    )
    command.add_argument("user", metavar="USER")
    command.add_argument("question", metavar="QUESTION")
    command.add_argument(
        "-n",
        "--limit",
        type=_at_least(1),
        default=5,
        metavar="N",
        help="how many memories at most (5)",
    )
    command.add_argument(
        "-k", dest="limit", type=_at_least(1), default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )

    commands.add_parser(
        "demo",
        parents=[common, context],
        help="replay, show and recall, on conversations that ship with remora",
        description="Replay sixteen conversations of four users that ship with remora, show a "
        "session, and recall facts from months before. Uses a temporary directory unless --dir "
        "names one.",
    )


def _add_config_parser(commands: Commands) -> None:
    command = commands.add_parser(
        "config",
        help="print the configuration in force, or every key with its default",
        description="Print the configuration in force, as YAML: the defaults, then FILE, then the "
        "REMORA_SECTION__KEY variables of the environment, with the default of each key that "
        "differs. Secrets print as ***. A mistake in FILE or in a variable is named, and the exit "
        "code is 1, so this checks a configuration before a server starts with it.",
        epilog="The output of --defaults is itself a configuration file: keep the keys that you "
        "change, and leave the others out.",
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
    command.set_defaults(verbose=False)
