"""What callers saw of a runtime: a record of calls and returns, for `tests.checker.judging`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from remora import Context, Message, Receipt
from remora.messages import ChatDict, split_tool_calls
from remora.testing import covered_by
from remora.tokens import TokenCounter
from tests.checker.programs import NAME, Call

__all__ = [
    "FOREVER",
    "History",
    "MessageShape",
    "Outcome",
    "Record",
    "Seen",
    "Shown",
    "Violation",
    "is_tool",
    "name_of",
    "result_text",
    "seen_of",
    "shown_of",
    "table",
    "where_of",
]

Outcome: TypeAlias = Literal["flying", "done", "nothing", "unknown"]
"""What is known of a call: it is under way; it returned; it failed, and provably nothing happened.

It may have happened.
"""

FOREVER = float("inf")
_MOST = 300_000  # configurations that are looked at; histories that have an order need some hundred


class Shown(msgspec.Struct, frozen=True):
    """What a ``load`` showed.

    Attributes:
        budget: in tokens; None for none.
        summarized: whether there was a summary in it.
        covered: names of the messages that the summary covers; None where it cannot be told: it is
            an extract, or garbage.
        names: the messages, oldest first.
        tokens: what it says that it weighs.
        counted: its tokens, counted again.
        pending: messages that it says wait for their summary.
        awaiting: tool calls that it says wait for a result.
        split: tool calls parted from their results.
        told: names in anything else: in what was recalled, and in the synopsis.
        degraded: the first and the last message that it says no summary covers, and how many there
            are; None for none.
        shortened: the summary was cut to fit.
        cut: so were messages, which are not among `names`.
    """

    budget: int | None
    summarized: bool
    covered: tuple[str, ...] | None
    names: tuple[str, ...]
    tokens: int
    counted: int
    pending: int
    awaiting: tuple[str, ...]
    split: int
    told: frozenset[str] = frozenset()
    degraded: tuple[int, int, int] | None = None
    shortened: bool = False
    cut: bool = False

    def __str__(self) -> str:
        covered = (
            ""
            if not self.summarized
            else f"[{'…' if self.covered is None else ' '.join(self.covered)}] "
        )
        pending = f" pending={self.pending}" if self.pending else ""
        awaiting = f" awaiting={len(self.awaiting)}" if self.awaiting else ""
        return f"{covered}{' '.join(self.names) or '-'}  ({self.tokens} tokens{pending}{awaiting})"


def shown_of(context: Context, budget: int | None, counter: TokenCounter) -> Shown:
    """What a context shows."""
    system = [str(one["content"]) for one in context.messages if _is_added(one)]
    summarized = context.summary is not None
    lost = context.sources["summary"].degraded
    cut = context.sources.recent.shortened > 0
    return Shown(
        budget=budget,
        summarized=summarized,
        covered=_covered(context),
        names=tuple(
            name_of(one)
            for one in context.messages
            if not (_is_added(one) or (cut and _is_excerpt(one)))
        ),
        tokens=context.tokens,
        counted=sum(_weight(counter, one) for one in context.messages),
        pending=context.pending,
        awaiting=context.awaiting,
        split=split_tool_calls(context.messages),
        told=frozenset(name for text in system for name in NAME.findall(text)),
        degraded=(lost.first, lost.last, lost.count) if lost is not None else None,
        shortened=_is_shortened(context),
        cut=cut,
    )


def _covered(context: Context) -> tuple[str, ...] | None:
    """The names in the summary; None where they are not those of all messages before the buffer."""
    if context.sources["summary"].degraded is not None or _is_shortened(context):
        return None
    return covered_by(context.summary or "") if context.summary is not None else ()


def _is_shortened(context: Context) -> bool:
    """Whether the summary in a context was cut to fit."""
    return context.summary is not None and "shortened from" in context.sources.summary.detail


class Seen(NamedTuple):
    """One message as a call showed it, whole.

    Attributes:
        name: its first word.
        chat: what a chat API takes of it.
        seq: its number; None where the call shows none, and then none of the rest either.
        id: its id.
        created_at: when it was said.
        metadata: its sender's.
    """

    name: str
    chat: ChatDict
    seq: int | None = None
    id: str | None = None
    created_at: datetime | None = None
    metadata: dict[str, Any] | None = None


def name_of(chat: Mapping[str, Any]) -> str:
    """The name of a message: its first word."""
    return str(chat["content"]).split()[0]


def _is_added(chat: ChatDict) -> bool:
    """Whether remora wrote a message of a context: what nobody said."""
    heads = ("<recalled>", "<user_profile>", "Summary of earlier conversation: ", "[no result")
    return chat["role"] == "system" or str(chat["content"]).startswith(heads)


def _is_excerpt(chat: ChatDict) -> bool:
    """Whether it may be an excerpt; of the shortest, nothing else is left."""
    return "…" in str(chat)


def seen_of(messages: Iterable[Message | ChatDict]) -> tuple[Seen, ...]:
    """Messages as `Session.history` and `get_messages` give them, or those of a context.

    Not what is in front of them there.
    """
    found = []
    for one in messages:
        if isinstance(one, Message):
            chat = one.to_chat()
            found.append(Seen(name_of(chat), chat, one.seq, one.id, one.created_at, one.metadata))
        elif not (_is_added(one) or _is_excerpt(one)):
            found.append(Seen(name_of(one), one))
    return tuple(found)


def _weight(counter: TokenCounter, message: ChatDict) -> int:
    """What a message of text and tool calls weighs, counted without remora's help (G9)."""
    texts = [message["content"], message.get("tool_call_id")]
    for call in message.get("tool_calls") or ():
        texts += [call["id"], call["function"]["name"], call["function"]["arguments"]]
    return counter.message_overhead + sum(counter.count(text) for text in texts if text)


class Record(msgspec.Struct):
    """One call, as it went.

    Attributes:
        caller: who called; -1 for the checks at the end.
        call: what.
        attempt: from 0.
        called: tick of the call.
        argument: what it was told: for an append its names, for a delete the number and name, for a
            rewind the number.
        returned: tick of its end; infinity while it is under way, or when it may still happen.
        outcome: what is known of it.
        result: what came back.
        error: what it raised, or why its outcome is not known.
        died: the process died before its outcome was known.
        took_s: seconds from its call to its return.
        seen: the messages that it showed, whole.
    """

    caller: int
    call: Call
    attempt: int
    called: int
    argument: Any = None
    returned: float = FOREVER
    ended: float = FOREVER
    outcome: Outcome = "flying"
    result: Any = None
    error: str = ""
    died: bool = False
    took_s: float = 0.0
    seen: tuple[Seen, ...] = ()

    @property
    def session(self) -> tuple[str, str]:
        """The session that it was about; an empty name for calls to the user."""
        return self.call.user, self.call.session

    @property
    def effective(self) -> bool:
        """It happened, or may have happened."""
        return self.outcome != "nothing"

    def overlaps(self, other: Record) -> bool:
        """Whether the two were under way at one moment."""
        return self.called < other.returned and other.called < self.returned


class Violation(msgspec.Struct, frozen=True):
    """A guarantee that did not hold.

    Attributes:
        guarantee: which, for instance ``G2``.
        where: session, user or store.
        text: what was seen, and what should have been.
        ticks: of the calls that show it.
    """

    guarantee: str
    where: str
    text: str
    ticks: tuple[int, ...] = ()

    def __str__(self) -> str:
        at = f" (calls at {', '.join(map(str, self.ticks))})" if self.ticks else ""
        return f"{self.guarantee} {self.where}: {self.text}{at}"


class MessageShape(NamedTuple):
    """What decides how a message may be shown."""

    role: str
    calls: tuple[str, ...]
    answers: str | None


class History:
    """Every call and return, by ticks that only grow."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.crashes: list[int] = []
        self.violations: list[Violation] = []
        self._tick = 0
        self._messages: dict[str, ChatDict] = {}
        self._shapes: dict[str, MessageShape] = {}
        self._owners: dict[str, tuple[str, str, int]] = {}
        self.counter: TokenCounter | None = None
        self.summary_prefix = ""
        """What weighs messages, and what summaries begin with; `Player` knows them."""

    def __str__(self) -> str:
        return table(self)

    # -- writing down ------------------------------------------------------------------------------

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick

    def call(
        self,
        caller: int,
        call: Call,
        *,
        attempt: int = 0,
        messages: Sequence[ChatDict] = (),
        argument: Any = None,
    ) -> Record:
        """A call begins."""
        record = Record(caller, call, attempt, self._next_tick(), argument)
        if messages:
            names = tuple(map(name_of, messages))
            for name, message in zip(names, messages, strict=True):
                self._messages[name] = message
                calls = tuple(one["id"] for one in message.get("tool_calls") or ())
                self._shapes[name] = MessageShape(
                    message["role"], calls, message.get("tool_call_id")
                )
                self._owners.setdefault(name, (call.user, call.session, record.called))
            record.argument = names
        elif call.kind == "remember":
            self._owners.setdefault(str(argument), (call.user, "", record.called))
        self.records.append(record)
        return record

    def _end(
        self, record: Record, outcome: Outcome, *, result: Any = None, error: object = ""
    ) -> bool:
        if record.died:
            return False  # its caller died with the process
        record.ended = self._next_tick()
        record.outcome, record.result, record.error = outcome, result, _error_text(error)
        if outcome != "unknown":
            record.returned = record.ended
        return True

    def returned(self, record: Record, result: Any) -> None:
        """It came back with this."""
        self._end(record, "done", result=result)

    def nothing(self, record: Record, why: object) -> None:
        """It failed, and provably nothing happened."""
        self._end(record, "nothing", error=why)

    def unknown(self, record: Record, why: object) -> None:
        """The caller does not know the outcome; it may still happen."""
        self._end(record, "unknown", error=why)

    def wrong(self, record: Record, why: object) -> None:
        """It raised what nothing raises."""
        if self._end(record, "unknown", error=why):
            text = f"{record.call.kind} raised {_error_text(why)}"
            self.violations.append(Violation("G11", where_of(record), text, (record.called,)))

    def crashed(self) -> None:
        """The process died: what was not known by now has happened by now, or never.

        Twice without a call between is once.

        Call it at the moment of which the next life sees the state; what returns to callers after
        that is not written down.
        """
        if self.crashes and (not self.records or self.records[-1].called < self.crashes[-1]):
            return
        at = self._next_tick()
        self.crashes.append(at)
        for record in self.records:
            if record.outcome in {"flying", "unknown"} and not record.died:
                record.died, record.returned, record.outcome = True, at, "unknown"
                record.ended = min(record.ended, at)
                record.error = record.error or "the process died"

    # -- reading -----------------------------------------------------------------------------------

    @property
    def shapes(self) -> Mapping[str, MessageShape]:
        """What is known of each message, by name."""
        return self._shapes

    @property
    def messages(self) -> Mapping[str, ChatDict]:
        """Each message that was to be appended, by name."""
        return self._messages

    @property
    def weights(self) -> Mapping[str, int]:
        """Tokens of each message, by name; none without a counter."""
        counter = self.counter
        return (
            {}
            if counter is None
            else {name: _weight(counter, one) for name, one in self._messages.items()}
        )

    @property
    def owners(self) -> Mapping[str, tuple[str, str, int]]:
        """Whose each message and fact is: user, session, and the tick of the call that first said
        it.
        """
        return self._owners

    @property
    def sessions(self) -> list[tuple[str, str]]:
        """The sessions that were called, in order."""
        return sorted({record.session for record in self.records if record.call.session})

    @property
    def users(self) -> list[str]:
        """The users that were called, in order."""
        return sorted({record.call.user for record in self.records})

    def of_session(self, session: tuple[str, str]) -> list[Record]:
        """The calls that bear on a session; forgetting its user is one."""
        return [
            record
            for record in self.records
            if record.session == session
            or (record.call.kind == "forget_user" and record.call.user == session[0])
        ]


def _error_text(why: object) -> str:
    return f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)


def where_of(record: Record) -> str:
    """The session or user that a call was about, for a report."""
    return "/".join(part for part in record.session if part)


def is_tool(shape: MessageShape) -> bool:
    """Whether a message calls a tool, or is the result of one."""
    return bool(shape.calls) or shape.role == "tool"


def result_text(result: Any) -> str:
    """What came back, for a report."""
    match result:
        case None:
            return "?"
        case Receipt():
            return f"{' '.join(map(str, result.seqs))}{' duplicate' if result.duplicate else ''}"
        case tuple() | frozenset():
            pairs = [f"{one[0]}={one[1]}" if isinstance(one, tuple) else str(one) for one in result]
            return " ".join(pairs if isinstance(result, tuple) else sorted(pairs)) or "-"
        case _:
            return str(result)


def table(history: History) -> str:
    """The history, one line for each call and each return, in the order of their ticks."""
    lines: list[tuple[float, str]] = [
        (at, f"{at:>5}  ───── the process dies, and starts again") for at in history.crashes
    ]
    for one in history.records:
        who = f"{'end' if one.caller < 0 else one.caller:>4}"
        head = str(one.call).split(": ", 1)[1]
        again = f" (attempt {one.attempt + 1})" if one.attempt else ""
        lines.append((one.called, f"{one.called:>5} {who} ▶ {head}{again}{_argument_text(one)}"))
        if one.ended < FOREVER and not (one.died and one.ended == one.returned):
            ended = (
                result_text(one.result) if one.outcome == "done" else f"{one.outcome}: {one.error}"
            )
            lines.append((one.ended, f"{one.ended:>5} {who} ◀ {one.called}: {ended}"))
    return "\n".join(line for _, line in sorted(lines, key=lambda line: line[0]))


def _argument_text(record: Record) -> str:
    match record.call.kind, record.argument:
        case "append", tuple() as names:
            return f" {' '.join(names)}"
        case "delete" | "rewind" | "remember", argument:
            return f" {argument}"
        case _:
            return ""
