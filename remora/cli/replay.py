"""Reads files of conversations, and replays them as an agent server holds them.

All users run at once, each user's sessions one after another. Before every assistant message the
session is loaded, as an agent does to call its model. The size of that context is compared with
the user's whole history, which an agent without a memory would have to send.
"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio
import msgspec

from remora.api.base import BaseRuntime
from remora.cluster.sharded import runtimes_of
from remora.errors import InvalidInput, InvalidMessage, LongTermError, MailboxFull, RemoraError
from remora.ids import SessionKey, validate_id
from remora.messages import ChatDict, encode_message, split_tool_calls
from remora.recall.context import Context

_NAME = re.compile(r"[^A-Za-z0-9_-]+")


_HEAD_BYTES = 1 << 18  # of a file, by which its shape is known
_SHAPES = (
    ({"mapping", "author", "parts"}, "the export of ChatGPT (conversations.json)", "chatgpt"),
    ({"chat_messages", "sender"}, "the export of Claude (conversations.json)", "claude"),
    ({"conversations", "from", "value"}, "a data set in ShareGPT's format", "sharegpt"),
    ({"instruction", "output"}, "a data set of instructions (Alpaca)", ""),
)
_KEY = re.compile(rb'"([a-z_]{2,20})"\s*:')


class PlannedMessage(msgspec.Struct):
    """One message to replay, and an idempotency key made from its place and content."""

    message: ChatDict
    key: str


class BadLine(msgspec.Struct, frozen=True):
    """A line that could not be used: its number, from 1, and the reason."""

    number: int
    reason: str


class Conversations(msgspec.Struct):
    """The content of a file.

    Attributes:
        sessions: messages by session, in the file's order; dicts keep that order.
        bad: lines that were left out.
        ignored: lines of other types than conversations.
    """

    sessions: dict[SessionKey, list[PlannedMessage]]
    bad: list[BadLine]
    ignored: int

    @property
    def users(self) -> dict[str, list[SessionKey]]:
        """Each user's sessions, in the file's order."""
        users: dict[str, list[SessionKey]] = {}
        for key in self.sessions:
            users.setdefault(key.user, []).append(key)
        return users

    @property
    def messages(self) -> int:
        """The number of messages to replay."""
        return sum(map(len, self.sessions.values()))


def read_conversations(path: Path) -> Conversations:
    """Read a whole file; bad lines are noted and left out.

    Raises:
        InvalidInput: the file cannot be read.
    """
    found = Conversations({}, [], 0)
    speakers: dict[str, list[str]] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)  # noqa: PLW2901
                if not line.strip():
                    continue
                try:
                    _read_line(line, found, speakers)
                except (
                    RemoraError,
                    KeyError,
                    ValueError,
                    TypeError,
                    RecursionError,
                    OverflowError,
                ) as e:
                    reason = f"the key {e} is missing" if isinstance(e, KeyError) else str(e)
                    found.bad.append(
                        BadLine(number, reason if len(reason) <= 200 else reason[:199] + "…")
                    )
    except OSError as e:
        raise InvalidInput(f"cannot read {path}: {e.strerror}") from e
    return found


def describe_shape(path: Path) -> str:
    """Return what a file that holds no conversation looks like, and what to do; for a message.

    Raises:
        InvalidInput: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    except OSError as e:
        raise InvalidInput(f"cannot read {path}: {e.strerror}") from e
    keys = {key.decode() for key in _KEY.findall(head)}
    line = '{"user": …, "session": …, "messages": […]}'
    known, product = next(((name, by) for wanted, name, by in _SHAPES if wanted <= keys), ("", ""))
    if product:
        return f"it looks like {known}: remora import --from {product} FILE --user USER imports it"
    if known:
        return f"it looks like {known}: write one line for each of its conversations, as {line}"
    if not head:
        return "it is empty"
    if head[:1] not in b"[{":
        return f"it is no JSON: write one line for each conversation, as {line}"
    if {"role", "content"} <= keys and not {"user", "session"} <= keys:
        return f"its messages are of no user and session: write lines as {line}"
    if b"\n" in head.rstrip() or head[:1] == b"[":
        return f"it looks like one JSON value: write one line for each conversation, as {line}"
    return f"write one line for each conversation, as {line}"


def _read_line(line: bytes, found: Conversations, speakers: dict[str, list[str]]) -> None:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidInput(f"not JSON: {e}") from e
    if not isinstance(row, dict):
        raise InvalidInput(f"a line must hold a JSON object, not {type(row).__name__}")
    kind = row.get("type")
    if kind == "turn":
        _plan_turn(row, found, speakers)
    elif kind == "trace":
        source, id_ = str(row["source"]), str(row["id"])
        _plan(found, f"{source}/{id_}", id_, None, row["messages"])
    elif kind == "conversation" and "messages" not in row:
        speakers[str(row["conv"])] = [str(speaker) for speaker in row["speakers"]]
        found.ignored += 1
    elif kind is not None and "messages" not in row and "role" not in row:
        found.ignored += 1
    elif "messages" in row:
        _plan(found, row["user"], row["session"], row.get("timestamp"), row["messages"])
    else:
        chat = {
            k: v for k, v in row.items() if k not in {"user", "session", "timestamp", "key", "type"}
        }
        _plan(found, row["user"], row["session"], row.get("timestamp"), [chat], key=row.get("key"))


def _plan_turn(
    row: Mapping[str, Any], found: Conversations, speakers: dict[str, list[str]]
) -> None:
    conv, speaker, text = str(row["conv"]), str(row["speaker"]), str(row["text"])
    if image := row.get("image"):
        text = f"{text} [shares {image}]"
    chat: ChatDict = {"role": speaker, "content": text}
    if speaker not in {"user", "assistant"}:
        # two people: the first one becomes the user
        pair = speakers.setdefault(conv, [])
        if speaker not in pair:
            pair.append(speaker)
        chat = {
            "role": "user" if pair[0] == speaker else "assistant",
            "name": _NAME.sub("_", speaker)[:64],
            "content": text,
        }
    _plan(found, conv, f"session-{row['session']}", row.get("time"), [chat], key=str(row["id"]))


def _plan(
    found: Conversations,
    user: object,
    session: object,
    timestamp: object,
    messages: object,
    *,
    key: str | None = None,
) -> None:
    """Check all messages of a line, then add them."""
    session_key = SessionKey(validate_id(user, "user"), validate_id(session, "session"))
    if not isinstance(messages, list):
        raise InvalidMessage("messages must be a list of chat dicts")
    started = _parse_time(timestamp)
    place = len(found.sessions.get(session_key, ()))
    planned = []
    for offset, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidMessage(
                f"message {offset} is a {type(message).__name__}, not a chat dict", index=offset
            )
        chat = dict(message)
        own = _parse_time(chat.pop("timestamp", None))
        if own is not None:
            chat["created_at"] = own
        elif started is not None and "created_at" not in chat:
            chat["created_at"] = started + timedelta(seconds=offset)
        encode_message(chat, index=offset)
        if key is None:
            said = blake2b(
                msgspec.json.encode(message, order="deterministic"), digest_size=12
            ).hexdigest()
            planned.append(PlannedMessage(chat, f"replay:{place + offset}:{said}"))
        else:
            planned.append(PlannedMessage(chat, f"replay:{validate_id(key, 'key')}"))
    found.sessions.setdefault(session_key, []).extend(planned)


def _parse_time(value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidInput(f"timestamp must be ISO 8601 text, not {value!r:.80}")
    try:
        at = datetime.fromisoformat(value)
    except ValueError as e:
        raise InvalidInput(f"timestamp {value!r:.80} is not ISO 8601") from e
    return at if at.tzinfo else at.replace(tzinfo=UTC)


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
