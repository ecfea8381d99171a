"""Replaying conversations as an agent server would hold them: all users at once, each user's
sessions one after another.

Before every assistant message the session is loaded, as the agent would to call its model; what it
would have had to send without a memory, everything that its user ever said, is counted beside what
it gets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import anyio
import msgspec

from remora.api.runtime import Runtime
from remora.cli.reader import Conversations
from remora.errors import LongTermError, MailboxFull
from remora.ids import SessionKey
from remora.messages import split_tool_calls
from remora.recall.context import Context

__all__ = ["ReplayReport", "replay"]


class ReplayReport(msgspec.Struct):
    """What a replay did; latencies in seconds, one for each call."""

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
    folds: int = 0
    flushes: int = 0
    rows: int | None = None
    rows_doubled: int = 0
    journal_messages: int = 0
    dead: int = 0


async def replay(
    runtime: Runtime,
    conversations: Conversations,
    *,
    concurrency: int,
    progress: Callable[[int], None],
) -> ReplayReport:
    """Append everything, load as an agent would, hand each finished session over to long-term
    memory, and settle.

    Args:
        runtime: where to.
        conversations: what.
        concurrency: users at once.
        progress: told how many messages were appended since it was last told.
    """
    report = ReplayReport(
        users=len(conversations.users),
        sessions=len(conversations.sessions),
        messages=conversations.messages,
    )
    before = runtime.statistics().supervisor.lanes
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
    after = runtime.statistics().supervisor.lanes
    report.folds = after["summarize"].done - before["summarize"].done
    if "flush" in after:
        report.flushes = after["flush"].done - before["flush"].done
        try:
            ids = await (await runtime.internals.long_term()).row_ids()
            report.rows, report.rows_doubled = len(ids), len(ids) - len(set(ids))
        except LongTermError:
            report.rows = None
    counts = await runtime.counts()
    report.journal_messages, report.dead = counts.messages, counts.dead_jobs
    return report


async def _replay_user(
    runtime: Runtime,
    conversations: Conversations,
    user: str,
    sessions: Sequence[SessionKey],
    limiter: anyio.CapacityLimiter,
    report: ReplayReport,
    progress: Callable[[int], None],
) -> None:
    async with limiter:
        said = 0  # tokens that this user's conversations came to so far
        for key in sessions:
            session = runtime.user(user).session(key.session)
            live = (
                True  # what was replayed before shows the session's end, not the turn that it was
            )
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
                        await anyio.sleep(0.01)  # nothing ran: simply again
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
            await (
                session.flush()
            )  # hands over what it has not, so a replay that was cut short is completed


def _count_context(report: ReplayReport, context: Context, budget: int, said: int | None) -> None:
    report.loads += 1
    report.split += split_tool_calls(context.messages)
    report.over_budget += context.tokens > budget
    if said is not None:
        report.live_loads += 1
        report.full_tokens += said
        report.context_tokens += context.tokens
