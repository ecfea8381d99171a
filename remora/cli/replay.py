"""Replays conversations as an agent server holds them.

All users run at once, each user's sessions one after another. Before every assistant message the
session is loaded, as an agent does to call its model. The size of that context is compared with
the user's whole history, which an agent without a memory would have to send.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec

from remora.api.base import BaseRuntime
from remora.cli.reader import Conversations
from remora.cluster.sharded import runtimes_of
from remora.errors import LongTermError, MailboxFull
from remora.ids import SessionKey
from remora.messages import split_tool_calls
from remora.recall.context import Context


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank); 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


class ReplayReport(msgspec.Struct):
    """The result of a replay; latencies in seconds, one for each call."""

    users: int = 0
    sessions: int = 0
    messages: int = 0
    added: int = 0
    duplicates: int = 0
    loads: int = 0
    live_loads: int = 0
    split: int = 0
    over_budget: int = 0
    full_tokens: int = 0
    context_tokens: int = 0
    append_s: list[float] = msgspec.field(default_factory=list)
    load_s: list[float] = msgspec.field(default_factory=list)
    appending_s: float = 0.0
    draining_s: float = 0.0
    compactions: int = 0
    flushes: int = 0
    rows: int | None = None
    rows_doubled: int = 0
    journal_messages: int = 0
    dead: int = 0

    def figures(self) -> dict[str, Any]:
        """The report as JSON has it: quantiles instead of every latency; times in seconds."""
        figures = msgspec.structs.asdict(self)
        for name in ("append_s", "load_s"):
            values = figures.pop(name)
            figures |= {f"{name[:-2]}_p50_s": percentile(values, 0.5)}
            figures |= {f"{name[:-2]}_p99_s": percentile(values, 0.99)}
        return figures


async def replay(
    runtime: BaseRuntime,
    conversations: Conversations,
    *,
    concurrency: int,
    progress: Callable[[int], None],
) -> ReplayReport:
    """Append everything, load as an agent would, index each finished session, and drain.

    Args:
        runtime: receives the messages.
        conversations: the messages.
        concurrency: users at once.
        progress: called with the number of messages appended since the last call.
    """
    report = ReplayReport(
        users=len(conversations.users),
        sessions=len(conversations.sessions),
        messages=conversations.messages,
    )
    before = runtime.statistics().supervisor.queues
    limiter = anyio.CapacityLimiter(concurrency)
    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for user, sessions in conversations.users.items():
            tasks.start_soon(
                _replay_user, runtime, conversations, user, sessions, limiter, report, progress
            )
    report.appending_s = time.perf_counter() - started
    started = time.perf_counter()
    await runtime.settle()
    report.draining_s = time.perf_counter() - started
    after = runtime.statistics().supervisor.queues
    report.compactions = after["summarize"].done - before["summarize"].done
    if "flush" in after:
        report.flushes = after["flush"].done - before["flush"].done
        try:
            ids = [
                id_
                for one in runtimes_of(runtime)
                for id_ in await (await one.internals.long_term()).row_ids()
            ]
            report.rows, report.rows_doubled = len(ids), len(ids) - len(set(ids))
        except LongTermError:
            report.rows = None
    counts = await runtime.counts()
    report.journal_messages, report.dead = counts.messages, counts.dead_jobs
    return report


async def _replay_user(
    runtime: BaseRuntime,
    conversations: Conversations,
    user: str,
    sessions: Sequence[SessionKey],
    limiter: anyio.CapacityLimiter,
    report: ReplayReport,
    progress: Callable[[int], None],
) -> None:
    async with limiter:
        for key in sessions:
            said = 0  # tokens of this conversation so far: what an agent without memory would send
            session = runtime.user(user).session(key.session)
            live = True  # False after a repeated append, whose context shows the session's end
            for planned in conversations.sessions[key]:
                if planned.message["role"] == "assistant":
                    started = time.perf_counter()
                    context = await session.load()
                    report.load_s.append(time.perf_counter() - started)
                    _count_context(
                        report, context, runtime.config.buffer.token_limit, said if live else None
                    )
                while True:
                    started = time.perf_counter()
                    try:
                        receipt = await session.append(planned.message, key=planned.key)
                    except MailboxFull:
                        await anyio.sleep(0.01)  # nothing ran: retry
                        continue
                    break
                report.append_s.append(time.perf_counter() - started)
                live = not receipt.duplicate
                report.added += live
                report.duplicates += receipt.duplicate
                said += runtime.message_tokens(planned.message)
                progress(1)
            context = await session.load()
            _count_context(
                report, context, runtime.config.buffer.token_limit, said if live else None
            )
            await session.flush()  # index the rest, also of an interrupted replay


def _count_context(report: ReplayReport, context: Context, budget: int, said: int | None) -> None:
    report.loads += 1
    report.split += split_tool_calls(context.messages)
    report.over_budget += context.tokens > budget
    if said is not None:
        report.live_loads += 1
        report.full_tokens += said
        report.context_tokens += context.tokens
