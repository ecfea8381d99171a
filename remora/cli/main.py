"""``remora``: the commands, and their dispatch."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import anyio
import msgspec
from rich.console import Console
from rich.text import Text

from remora.cli.configuration import render_changes, render_defaults
from remora.cli.erasure import command_forget
from remora.cli.health import command_health, command_top
from remora.cli.http import command_http, command_keys
from remora.cli.jobs import command_jobs
from remora.cli.listing import command_sessions, command_users
from remora.cli.mcp import command_mcp
from remora.cli.opening import Memory, is_in_database, open_runtime, require_memory
from remora.cli.parser import build_parser
from remora.cli.reader import Conversations, describe_shape, read_conversations
from remora.cli.render import (
    Output,
    counted,
    print_bad_lines,
    print_json,
    print_memories,
    print_report,
)
from remora.cli.replay import ReplayReport, replay
from remora.cli.resharding import command_reshard
from remora.cli.show import command_recall, command_show, show_session
from remora.cli.transfer import (
    command_export,
    command_import,
    command_reembed,
    command_stats,
    progress_bar,
)
from remora.cli.tune import command_tune
from remora.cli.upkeep import command_backup, command_repair, command_verify
from remora.cli.view import command_view
from remora.cli.workers import command_owners, command_serve
from remora.config import Config
from remora.errors import ConfigError, InvalidInput, RemoraError
from remora.runtime.threads import run_in_thread
from remora.storage.sqlite.peek import peek_jobs

__all__ = ["main", "run"]

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


async def _replay(runtime: Memory, conversations: Conversations, concurrency: int) -> ReplayReport:
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
        return anyio.run(_COMMANDS[arguments.command], console, arguments)
    except RemoraError as e:
        Output(stderr=True).print(f"remora: {e}", style="red", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        Output(stderr=True).print(
            "interrupted: acknowledged data is kept; run the same command again to continue"
        )
        return 130


def run() -> None:
    """The console script."""
    code = main()
    if code == 130:
        # a second Ctrl-C may have interrupted the closing: exit at once, the journal needs no
        # shutdown
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
