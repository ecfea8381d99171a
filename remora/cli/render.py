"""What the command line prints."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from remora.actors.session.messages import SessionView
from remora.cli.reader import Conversations
from remora.cli.replay import ReplayReport
from remora.messages import Message, plain_text
from remora.recall.recall import Memory
from remora.runtime.log import Job

__all__ = [
    "percentile",
    "print_bad_lines",
    "print_memories",
    "print_report",
    "print_session",
    "printable",
]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank); 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def print_report(console: Console, report: ReplayReport) -> None:
    """The table at the end of a replay."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="dim")

    def row(name: str, value: str, note: str = "") -> None:
        table.add_row(name, value, note)

    row("users", f"{report.users:,}")
    row("sessions", f"{report.sessions:,}")
    row(
        "messages",
        f"{report.messages:,}",
        f"{report.added:,} added, {report.duplicates:,} there already",
    )
    row(
        "turns",
        f"{report.loads:,}",
        "contexts loaded, one before each answer and one at each session's end",
    )
    if report.live_loads and report.full_tokens:
        full, context = (
            report.full_tokens / report.live_loads,
            report.context_tokens / report.live_loads,
        )
        saved = f"{abs(1 - context / full):.0%} {'less' if context <= full else 'more'}"
        row(
            "tokens, full history",
            f"{full:,.0f}",
            "per turn: all that the user ever said and was told",
        )
        row(
            "tokens, in context",
            f"{context:,.0f}",
            f"per turn: summary and recent messages, {saved}",
        )
    split = "[green]0[/]" if not report.split else f"[red]{report.split}[/]"
    row("tool calls split", split, "from their results, in any context loaded")
    over = "[green]0[/]" if not report.over_budget else f"[red]{report.over_budget}[/]"
    row("contexts over budget", over)
    row("folds", f"{report.folds:,}")
    row("flushes", f"{report.flushes:,}")
    if report.rows is not None:
        doubled = f"[red]{report.rows_doubled} doubled[/]" if report.rows_doubled else "each once"
        row(
            "rows in LanceDB",
            f"{report.rows:,}",
            f"{doubled}; {report.journal_messages:,} messages in the journal",
        )
    if report.dead:
        row(
            "dead letters",
            f"[red]{report.dead}[/]",
            "jobs that failed for good; their messages still load",
        )
    for name, values in (("append", report.append_s), ("load", report.load_s)):
        p50, p99 = percentile(values, 0.5) * 1000, percentile(values, 0.99) * 1000
        row(
            f"{name} p50 / p99",
            f"{p50:.2f} / {p99:.2f} ms",
            "durable when it returns" if name == "append" else "",
        )
    if report.appending_s:
        row(
            "appends/s",
            f"{len(report.append_s) / report.appending_s:,.0f}",
            f"in {report.appending_s:.1f} s, with the loads",
        )
    row(
        "background work",
        f"{report.draining_s:.1f} s",
        "to finish folds and flushes after the last append",
    )
    console.print(table)


def print_bad_lines(console: Console, conversations: Conversations) -> None:
    """Which lines were left out."""
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
    """A session's summary, its recent messages, and what is pending."""
    summary = view.summary
    if summary is not None:
        note = (
            f"{summary.tokens} tokens, up to message {summary.through}, by {escape(summary.model)}"
        )
        style = "yellow" if summary.degraded else "cyan"
        head = "summary" + (
            " (degraded: an extract stands in for the model's)" if summary.degraded else ""
        )
        console.print(
            Panel(
                Text("\n".join(map(printable, summary.text.splitlines()))),
                title=head,
                subtitle=note,
                border_style=style,
                title_align="left",
            )
        )
    table = Table(
        title=escape(printable(title)),
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
        pending = "pending" if (message.seq or 0) <= view.watermarks.summarizing_through else ""
        text = Text(_shorten(plain_text(message.to_chat()), 300))
        table.add_row(
            str(message.seq), Text(_shorten(message.name or message.role, 64)), text, pending
        )
    console.print(table)
    console.print(
        f"{view.last_seq} messages ever, {view.buffered} in the buffer ({view.buffered_tokens} "
        f"tokens), {view.pending} folded "
        f"and waiting for their summary, {view.watermarks.flushing} handed over to long-term "
        "memory",
        style="dim",
    )
    for job in jobs:
        state = (
            f"dead after {job.attempts} attempts"
            if job.dead
            else f"waiting, {job.attempts} failures so far"
        )
        console.print(
            f"job {job.id}: {state}" + (f": {escape(job.error)}" if job.error else ""),
            style="yellow",
        )


def print_memories(console: Console, memories: Sequence[Memory]) -> None:
    """What was recalled, with scores, and where it came from."""
    if not memories:
        console.print("nothing found", style="yellow")
        return
    for memory in memories:
        parts = ", ".join(f"{name} {value:.2f}" for name, value in memory.parts.items())
        where = f"{printable(memory.session)} #{memory.seq}"
        console.print(
            Text.assemble(
                (f"{memory.score:.2f}", "green"),
                "  ",
                (where, "cyan"),
                (f"  {memory.created_at:%Y-%m-%d}  {parts}", "dim"),
            )
        )
        said = Text.assemble(
            (f"{_shorten(memory.speaker or memory.role, 64)}: ", "bold"), _shorten(memory.text, 400)
        )
        console.print(Padding(said, (0, 0, 0, 6)))


def _shorten(text: str, length: int) -> str:
    one_line = printable(" ".join(text.split()))
    return one_line if len(one_line) <= length else one_line[: length - 1] + "…"


def printable(text: str) -> str:
    """Text that cannot drive the terminal: what people wrote is shown, not obeyed."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" else c for c in text
    )
