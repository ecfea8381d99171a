"""The commands and options of ``remora``."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import remora
from remora.cli.erasure import add_forget_parser
from remora.cli.health import add_health_parsers
from remora.cli.http import add_http_parsers
from remora.cli.jobs import add_jobs_parser
from remora.cli.listing import add_listing_parsers
from remora.cli.mcp import add_mcp_parser
from remora.cli.opening import memory_directory
from remora.cli.resharding import add_reshard_parser
from remora.cli.transfer import add_transfer_parsers
from remora.cli.tune import add_tune_parser
from remora.cli.upkeep import add_upkeep_parsers
from remora.cli.view import add_view_parser
from remora.cli.workers import add_worker_parsers

__all__ = ["build_parser"]

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

exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, but lines of the file were left out
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
    commands: Any,
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


def _add_config_parser(commands: Any) -> None:
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
