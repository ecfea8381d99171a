"""``remora health`` and ``remora top``: asking the process that has a memory open."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from remora import observe
from remora.cli.opening import memory_directory
from remora.cli.render import print_json
from remora.cli.top import describe_status, show_status
from remora.config import Config
from remora.errors import InvalidInput, OwnerUnreachable

_KEPT_S = 60.0
_DIRECTORY = "the memory directory (remora-memory)"
_HEALTH = """\
Ask the process that has a memory open whether it works, and why not. For probes
of a container, and for people. It reads nothing of the memory itself.
"""
_EPILOG = """\
exit codes: 0 ready (with --live: live), 1 not, or no process has it open, or it
does not answer, 2 wrong usage
"""


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3_600:
        raise argparse.ArgumentTypeError(f"must be between 0.1 and 3600, not {text}")
    return value


def add_health_parsers(commands: Any, printing: argparse.ArgumentParser) -> None:
    """Describe the commands to the parser.

    Args:
        commands: the parser of commands.
        printing: options of those that print results.
    """
    command = commands.add_parser(
        "health",
        parents=[printing],
        help="ask a running process whether its memory works",
        description=_HEALTH,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "directory", metavar="DIR", type=memory_directory, nargs="?", help=_DIRECTORY
    )
    command.add_argument(
        "--live", action="store_true", help="the exit code says whether it is live, not ready"
    )
    command.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=2.0,
        help="how long to wait for the answer (2)",
    )
    command.set_defaults(verbose=False)
    command = commands.add_parser(
        "top",
        help="watch a running process: rates, times, queues, health",
        description="Watch the process that has a memory open: how much it does, how long that "
        "takes, what waits, and what is wrong. Ctrl-C ends it.",
        epilog="exit codes: 0 ended, 1 no process has it open, 2 wrong usage",
    )
    command.add_argument(
        "directory", metavar="DIR", type=memory_directory, nargs="?", help=_DIRECTORY
    )
    command.add_argument(
        "--interval", metavar="SECONDS", type=_seconds, default=1.0, help="between two looks (1)"
    )
    command.add_argument(
        "--looks", metavar="N", type=int, default=0, help="end after so many (0: never)"
    )
    command.set_defaults(verbose=False)


def _directory_of(arguments: argparse.Namespace) -> Path:
    return arguments.directory or Path(Config().directory)


def _ask(directory: Path, timeout_s: float) -> observe.RuntimeStatus:
    status = observe.ask(directory, timeout_s=timeout_s)
    if status is None:
        raise InvalidInput(
            f"no process has {directory} open, or not one that answers: start the server, or name "
            "another directory"
        )
    return status


def command_health(console: Console, arguments: argparse.Namespace) -> int:
    """Print the health of a memory that a process has open."""
    status = _ask(_directory_of(arguments), arguments.timeout)
    health = status.health
    if arguments.json:
        facts = {"pid": status.pid, "since": status.since}
        print_json(facts | {"shards": status.shards, "served": status.served, "health": health})
    else:
        for line in describe_status(status):
            console.print(line, soft_wrap=True)
    good = health.live if arguments.live else health.ready
    return 0 if good else 1


def command_top(console: Console, arguments: argparse.Namespace) -> int:
    """Watch a memory that a process has open."""
    directory = _directory_of(arguments)
    pictures = _pictures(directory, arguments, _ask(directory, 2.0))
    with suppress(KeyboardInterrupt):
        if console.is_terminal:
            # not on another screen: what was seen last stays, also of a connection that breaks
            with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
                for picture in pictures:
                    live.update(picture, refresh=True)
        else:
            for picture in pictures:
                console.print(picture)
                console.print()
                console.file.flush()  # into a pipe or a file: each as soon as it is there
    return 0


def _pictures(
    directory: Path, arguments: argparse.Namespace, status: observe.RuntimeStatus
) -> Iterator[Any]:
    """As many pictures as are wanted, one at once and one after each interval."""
    kept = deque([status])
    yield show_status(directory, list(kept))
    looks = 1
    while looks != arguments.looks:
        time.sleep(arguments.interval)
        yield _look(directory, kept)
        looks += 1


def _look(directory: Path, kept: deque[observe.RuntimeStatus]) -> Any:
    """The next picture; one without figures while nobody answers."""
    try:
        status = observe.ask(directory)
    except OwnerUnreachable as e:
        return Text(str(e), style="red")
    if status is None:
        kept.clear()
        return Text(f"no process has {directory} open", style="red")
    if kept and kept[-1].pid != status.pid:
        kept.clear()
    kept.append(status)
    while status.at_s - kept[0].at_s > _KEPT_S:
        kept.popleft()
    return show_status(directory, list(kept))
