"""``remora health`` and ``remora top``: asking the process that has a memory open."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from remora import observe
from remora.api.status import RuntimeStatistics
from remora.cli import Commands
from remora.cli.memory import memory_directory
from remora.cli.render import named, print_json, printable
from remora.config import Config
from remora.errors import InvalidInput, OwnerUnreachable
from remora.observe import RuntimeStatus
from remora.runtime.meters import Histogram

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


def add_health_parsers(commands: Commands, printing: argparse.ArgumentParser) -> None:
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


# -- the picture of ``remora top``: what a process says of its memory, in eighty columns -----------

_WINDOW_S = 10.0
_COLUMNS = 20
_BARS = " ▁▂▃▄▅▆▇█"
_MOST_MAILBOXES = 5
_STYLES = {"not live": "red", "not ready": "red", "degraded": "yellow"}


def describe_status(status: RuntimeStatus) -> Iterator[Text]:
    """The process, its health, and what is wrong: a line each."""
    health = status.health
    if health.ready:
        word, style = ("ready, degraded", "yellow") if health.degraded else ("ready", "green")
    else:
        word, style = "not ready" if health.live else "not live", "red"
    line = Text(word, style=f"bold {style}")
    line.append(f"  process {status.pid}, since {status.since}", style="not bold default")
    if status.shards > 1:
        part = "" if status.served in {None, status.shards} else f"{status.served} of "
        line.append(f", {part}{status.shards} shards", style="not bold default")
    yield line
    for problem in health.problems:
        text = Text(problem.code, style=_STYLES[problem.effect])
        text.append(f": {printable(problem.text)}", style="default")
        yield text


def show_status(directory: Path, statuses: Sequence[RuntimeStatus]) -> Group:
    """Return what was said in the last minute, the newest last.

    Args:
        directory: the memory's.
        statuses: one at least, of one process.
    """
    newest = statuses[-1]
    parts: list[Text | Table] = [Text(printable(str(directory)), style="bold")]
    parts += describe_status(newest)
    if newest.statistics is not None:
        known = [one for one in statuses if one.statistics is not None]
        parts += [Text(), _calls(known), Text(), *_sizes(known), Text(), _jobs(known)]
    if newest.mailboxes:
        parts += [Text(), _mailboxes(newest)]
    return Group(*parts)


def _calls(statuses: Sequence[RuntimeStatus]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", min_width=16, no_wrap=True)
    for name in ("a second", "p50", "p99", "in all"):
        table.add_column(name, justify="right", min_width=8)
    table.add_column("last minute", width=_COLUMNS)
    for name, path in (
        ("append", ("verbs", "append_s")),
        ("load", ("verbs", "load_s")),
        ("load, with query", ("verbs", "query_s")),
        ("recall", ("verbs", "recall_s")),
        ("commit", ("log", "commit_s")),
    ):
        table.add_row(name, *_call_figures(statuses, path))
    return table


def _call_figures(statuses: Sequence[RuntimeStatus], path: tuple[str, str]) -> list[str]:
    def histogram(one: RuntimeStatus) -> Histogram:
        found: Histogram = getattr(getattr(one.statistics, path[0]), path[1])
        return found

    before, now = _window(statuses)
    recent = histogram(now).since(histogram(before)) if now is not before else histogram(now)
    seconds = now.at_s - before.at_s
    rate = f"{recent.count / seconds:,.1f}" if seconds > 0 else ""
    counts = [
        histogram(after).since(histogram(first)).count / max(after.at_s - first.at_s, 0.001)
        for first, after in pairwise(statuses)
    ]
    return [
        rate,
        _quantile(recent, 0.5),
        _quantile(recent, 0.99),
        f"{histogram(now).count:,}",
        _sparkline(counts),
    ]


def _window(statuses: Sequence[RuntimeStatus]) -> tuple[RuntimeStatus, RuntimeStatus]:
    """Return what was said some seconds ago, and now."""
    now = statuses[-1]
    return next(one for one in statuses if now.at_s - one.at_s <= _WINDOW_S), now


def _quantile(histogram: Histogram, share: float) -> str:
    """An upper bound of what this share took."""
    if not histogram.count:
        return ""
    value = histogram.quantile(share)
    above = sum(histogram.counts[:-1]) < share * histogram.count
    text = f"{value * 1_000:g} ms" if value < 1 else f"{value:g} s"
    return f"{'>' if above else '≤'} {text}"


def _sparkline(values: Sequence[float]) -> str:
    """The newest values, each as high as its share of the highest."""
    shown = values[-_COLUMNS:]
    top = max(shown, default=0.0)
    if not top:
        return ""
    steps = len(_BARS) - 1
    return "".join(_BARS[-(-int(value * 1_000) * steps // int(top * 1_000 + 1))] for value in shown)


def _sizes(statuses: Sequence[RuntimeStatus]) -> Iterator[Text]:
    before, now = _window(statuses)
    old, new = before.statistics, now.statistics
    assert old is not None
    assert new is not None
    registry, log = new.registry, new.log
    batch = log.batch_writes.since(old.log.batch_writes)
    yield Text(
        f"in memory  {registry.live:,} sessions and users, {_bytes(registry.bytes)}; "
        f"waiting {registry.queued:,}, {_bytes(registry.waiting_bytes)}"
    )
    yield Text(
        f"journal    {log.backlog:,} writes wait, "
        f"{batch.sum / batch.count if batch.count else 0:.1f} in a commit, "
        f"log {_bytes(log.wal_bytes)}, {log.failed_commits:,} commits failed"
    )
    refused = registry.refused + registry.expired
    lately = refused - old.registry.refused - old.registry.expired
    yield Text(f"refused    {refused:,} requests, {lately:,} of them lately{_lateness(new)}")
    saved = [(one.tokens_in, one.tokens_out) for one in new.compression.values() if one.tokens_in]
    if saved:
        tokens_in, tokens_out = (sum(part) for part in zip(*saved, strict=True))
        yield Text(f"summaries  {tokens_in:,} tokens became {tokens_out:,}")


def _lateness(statistics: RuntimeStatistics) -> str:
    """Which share of contexts a source was left out of."""
    found = ""
    for source, counts in statistics.verbs.sources.items():
        total, gone = sum(counts.values()), counts.get("late", 0) + counts.get("failed", 0)
        if gone:
            found += f"; {source} left out of {gone / total:.1%} of contexts"
    return found


def _jobs(statuses: Sequence[RuntimeStatus]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("jobs", min_width=16)
    for name in ("waiting", "delayed", "running", "done", "oldest", "dead letters"):
        table.add_column(name, justify="right", min_width=7)
    statistics = statuses[-1].statistics
    assert statistics is not None
    for name, queue in statistics.supervisor.queues.items():
        busy = queue.waiting or queue.delayed or queue.running
        table.add_row(
            name,
            f"{queue.waiting:,}",
            f"{queue.delayed:,}",
            f"{queue.running:,}",
            f"{queue.done:,}",
            f"{queue.oldest_s:,.0f} s" if busy else "",
            Text(f"{queue.dead:,}", style="yellow" if queue.dead else ""),
        )
    return table


def _mailboxes(status: RuntimeStatus) -> Text:
    text = Text("full mailboxes")
    for one in status.mailboxes[:_MOST_MAILBOXES]:
        name = one.user if one.session is None else f"{one.user}/{one.session}"
        text.append(f"  {named(name)[:40]} {one.messages:,}")
    text.truncate(79, overflow="ellipsis")
    return text


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} GB"
