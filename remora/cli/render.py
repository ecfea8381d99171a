"""Output of the command line, and the question before what cannot be undone."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from remora.actors.session.messages import SessionView
from remora.cli.replay import Conversations, ReplayReport, percentile
from remora.errors import InvalidInput
from remora.messages import Message, plain_text
from remora.messages.text import counted
from remora.recall.memory import Memory
from remora.runtime.jobs import Job
from remora.runtime.threads import run_in_thread

_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_WIDEST = 1000


class Output(Console):
    """A console that breaks no sentence where no terminal shows it: grep finds it whole.

    It makes no emoji of what is between colons: ids and texts are shown as they are.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    def print(self, *objects: Any, **options: Any) -> None:
        """See `rich.console.Console.print`."""
        if not self.is_terminal and all(isinstance(one, (str, Text)) for one in objects):
            options.setdefault("soft_wrap", True)
        super().print(*objects, **options)


def print_report(console: Console, report: ReplayReport) -> None:
    """Print the table at the end of a replay."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in (*_count_rows(report), *_speed_rows(report)):
        table.add_row(*row)
    console.print(table)


def _count_rows(report: ReplayReport) -> Iterator[tuple[str, str, str]]:
    yield "users", f"{report.users:,}", ""
    yield "sessions", f"{report.sessions:,}", ""
    repeated = f"{report.added:,} added, {report.duplicates:,} there already"
    yield "messages", f"{report.messages:,}", repeated
    yield "contexts", f"{report.loads:,}", "one before each answer and one at each session's end"
    if report.live_loads and report.full_tokens:
        full = report.full_tokens / report.live_loads
        context = report.context_tokens / report.live_loads
        saved = f"{abs(1 - context / full):.0%} {'less' if context <= full else 'more'}"
        if saved.startswith("0%"):
            saved = "about the same, as short sessions fit whole"
        yield "tokens, whole session", f"{full:,.0f}", "per context: what one would otherwise send"
        yield (
            "tokens, in context",
            f"{context:,.0f}",
            f"per context: its summary and recent messages, {saved}",
        )
    yield "tool calls split", _zero_or_red(report.split), "from their results, in any context"
    yield "contexts over budget", _zero_or_red(report.over_budget), ""
    yield "compactions", f"{report.compactions:,}", "summaries written"
    yield "indexing jobs", f"{report.flushes:,}", "batches written to long-term memory"
    if report.rows is not None:
        doubled = f"[red]{report.rows_doubled} doubled[/]" if report.rows_doubled else "each once"
        journal = f"{report.journal_messages:,} messages in the journal"
        yield "rows in LanceDB", f"{report.rows:,}", f"{doubled}; {journal}"
    if report.dead:
        yield "dead letters", f"[red]{report.dead}[/]", "failed jobs; their messages still load"


def _speed_rows(report: ReplayReport) -> Iterator[tuple[str, str, str]]:
    for name, values in (("append", report.append_s), ("load", report.load_s)):
        p50, p99 = percentile(values, 0.5) * 1000, percentile(values, 0.99) * 1000
        note = "durable when it returns" if name == "append" else ""
        yield f"{name} p50 / p99", f"{p50:.2f} / {p99:.2f} ms", note
    if report.appending_s:
        rate = f"{len(report.append_s) / report.appending_s:,.0f}"
        yield "appends/s", rate, f"in {report.appending_s:.1f} s, with the loads"
    yield (
        "background work",
        f"{report.draining_s:.1f} s",
        "to finish summaries and indexing after the last append",
    )


def _zero_or_red(count: int) -> str:
    return "[green]0[/]" if not count else f"[red]{count}[/]"


def print_bad_lines(console: Console, conversations: Conversations) -> None:
    """Print which lines were left out."""
    for bad in conversations.bad[:20]:
        console.print(f"[red]line {bad.number}[/]: {escape(bad.reason)}")
    if len(conversations.bad) > 20:
        console.print(f"[red]… and {len(conversations.bad) - 20} more[/]")


def print_session(
    console: Console,
    title: str,
    view: SessionView,
    messages: Sequence[Message],
    jobs: Sequence[Job],
    *,
    most: int,
) -> None:
    """Print a session's summary, its recent messages, and its waiting jobs."""
    _print_summary(console, view)
    if (lost := view.degraded) is not None:
        console.print(
            f"degraded: {lost.count} of the messages {lost.first} to {lost.last} are in no summary",
            style="yellow",
        )
    table = Table(
        title=escape(named(title)),
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        show_header=False,
    )
    table.add_column(justify="right", style="dim")
    table.add_column(style="cyan")
    table.add_column()
    recent = [
        message for message in messages if (message.seq or 0) > view.watermarks.archived_through
    ]
    if len(recent) > most:
        table.add_row("…", "", f"{len(recent) - most} more")
    for message in recent[len(recent) - most if len(recent) > most else 0 :]:
        state = "summarizing" if (message.seq or 0) <= view.watermarks.summarizing_through else ""
        text = Text(_shorten(plain_text(message.to_chat()), 300))
        table.add_row(
            str(message.seq), Text(_shorten(message.name or message.role, 64)), text, state
        )
    if console.is_terminal:
        console.print(table)
    else:
        print_wide(console, table)
    console.print(
        f"{counted(view.last_seq, 'message')} ever, {view.buffered} in the buffer "
        f"({counted(view.buffered_tokens, 'token')}), {view.pending} of them being summarized, "
        f"{view.watermarks.indexing_through} indexed or being indexed",
        style="dim",
    )
    if view.keyed is not None:
        console.print(f"keyed state: {counted(len(view.keyed.values), 'key')}", style="dim")
    for job in jobs:
        state = (
            f"dead letter after {counted(job.attempts, 'attempt')}"
            if job.dead
            else f"waiting, {counted(job.attempts, 'failure')} so far"
        )
        console.print(
            f"job {job.id}: {state}" + (f": {escape(job.error)}" if job.error else ""),
            style="yellow",
        )


def _print_summary(console: Console, view: SessionView) -> None:
    summary = view.summary
    if summary is None:
        return
    kind = ""
    if summary.degraded:
        kind = " (degraded: a fallback, because the model failed)"
    elif summary.model == "extractive":
        kind = " (an extract of the messages, without a chat model)"
    console.print(
        Panel(
            Text("\n".join(map(printable, summary.text.splitlines()))),
            title=f"summary{kind}",
            subtitle=f"{summary.tokens} tokens, up to message {summary.through}, "
            f"by {escape(summary.model)}",
            border_style="yellow" if summary.degraded else "cyan",
            title_align="left",
        )
    )


def print_memories(console: Console, memories: Sequence[Memory]) -> None:
    """Print recalled memories, with scores and origin."""
    if not memories:
        console.print("nothing found", style="yellow")
        return
    for memory in memories:
        parts = ", ".join(f"{name} {value:.2f}" for name, value in memory.parts.items())
        said_there = memory.type == "message"
        who = memory.speaker or memory.role if said_there else memory.type.replace("_", " ")
        where = f"{memory.session} #{memory.seq}" if said_there else memory.session or "recorded"
        console.print(
            Text.assemble(
                (f"{memory.score:.2f}", "green"),
                "  ",
                (named(where), "cyan"),
                (f"  {memory.created_at:%Y-%m-%d}  {parts}", "dim"),
            )
        )
        said = Text.assemble((f"{_shorten(who, 64)}: ", "bold"), _shorten(memory.text, 400))
        if console.is_terminal:
            console.print(Padding(said, (0, 0, 0, 6)))
        else:
            console.print(Text.assemble(" " * 6, said))


def print_wide(console: Console, table: Table) -> None:
    """Print a table with nothing left out, also where it is wider than the terminal."""
    needed = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    lines = console.render_lines(table, console.options.update(width=needed), pad=False)
    for line in lines:
        console.print(Text.assemble(*((one.text, one.style or "") for one in line)), soft_wrap=True)


def print_json(result: object) -> None:
    """Print a result as one JSON object on one line."""
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")


def _shorten(text: str, length: int) -> str:
    one_line = printable(" ".join(text.split()))
    return one_line if len(one_line) <= length else one_line[: length - 1] + "…"


def printable(text: str) -> str:
    """The text without characters that control the terminal, or the direction of its line."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" or c in _DIRECTIONS else c
        for c in text
    )


def named(name: str) -> str:
    """A name with its invisible characters named: with them, it can look like another name."""
    return printable(
        "".join(
            f"<U+{ord(c):04X}>" if unicodedata.category(c) in {"Cf", "Zl", "Zp"} else c
            for c in name
        )
    )


async def confirm(
    console: Console,
    question: str,
    *,
    without_terminal: str,
    show: Callable[[], None] = lambda: None,
) -> bool:
    """Ask on the terminal, and return whether the answer is yes.

    Args:
        console: prints the question.
        question: the question.
        without_terminal: the error text without a terminal.
        show: prints what has to be seen before the answer.

    Raises:
        InvalidInput: standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise InvalidInput(without_terminal)
    show()
    console.print(f"{question} [y/N] ", end="", markup=False, highlight=False)
    answer = await run_in_thread(sys.stdin.readline)
    return answer.strip().casefold() in {"y", "yes"}
