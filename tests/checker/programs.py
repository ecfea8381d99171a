"""Programs of calls.

What several callers do with a runtime's sessions, written down before anything runs.

A program is plain data. What its messages say follows from where they stand in it, so a program
prints as a few lines, two runs of it say the same, and a smaller program is found by leaving out
calls (`tests.checker.shrinking`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import msgspec

from remora.messages import ChatDict

__all__ = [
    "KINDS",
    "NAME",
    "SHAPES",
    "Call",
    "Caller",
    "Kind",
    "Program",
    "Shape",
    "draw_program",
    "fact_of",
    "messages_of",
]

Kind: TypeAlias = Literal[
    "append",
    "load",
    "messages",
    "clear",
    "history",
    "flush",
    "delete",
    "rewind",
    "remember",
    "recall",
    "synopsis",
    "pause",
    "forget_session",
    "forget_user",
]
"""What a call does.

``messages`` is `Session.get_messages`; ``pause`` is a wait, in which a session may leave memory.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Every kind of call."""

Shape: TypeAlias = Literal["user", "assistant", "call", "call2", "result", "orphan"]
"""What a message is: said by either side; an assistant message that calls one or two tools.

The result of a call that the caller made in this session and that has none yet; the result of a
call that nobody made.
"""

SHAPES: tuple[Shape, ...] = get_args(Shape)
"""Every shape of a message."""

NAME = re.compile(r"\b[mf]\d+\.\d+\.\d+\b")
"""What names a message or a fact: its caller, the call's number, and its place in the call."""


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of a caller.

    Attributes:
        number: its own among its caller's calls; it stays when others are left out.
        kind: what it does.
        user: whose.
        session: which of the user's; empty for calls to the user.
        shapes: for ``append``: its messages.
        words: for ``append``: how many words each message has after its name.
        key: for ``append``: the idempotency key; callers may share one.
        max_tokens: for ``load``: the budget; None for none.
        asks: for ``load`` and ``recall``: with a query.
        back: for ``delete`` and ``rewind``: the caller's n-th newest append in this session,
            from 1.
        place: for ``delete`` and ``rewind``: which of that append's messages.
        pause_s: seconds, for ``pause``.
        cancel_after_s: the caller gives up after so many seconds.
        timeout_s: the call's own deadline, in seconds.
        retries: how often it is tried again while its outcome is not known, or nothing ran; without
            giving up or a deadline.
    """

    number: int
    kind: Kind
    user: str = "alice"
    session: str = ""
    shapes: tuple[Shape, ...] = ()
    words: int = 0
    key: str | None = None
    max_tokens: int | None = None
    asks: bool = False
    back: int = 1
    place: int = 0
    pause_s: float = 0.0
    cancel_after_s: float | None = None
    timeout_s: float | None = None
    retries: int = 0

    def __str__(self) -> str:
        where = f"{self.user}/{self.session}" if self.session else self.user
        about = {
            "append": " ".join(self.shapes) + (f" +{self.words}w" if self.words else ""),
            "load": ("" if self.max_tokens is None else f"{self.max_tokens} tokens")
            + (" query" if self.asks else ""),
            "delete": f"message {self.place} of append -{self.back}",
            "rewind": f"to message {self.place} of append -{self.back}",
            "pause": f"{self.pause_s:g} s",
        }.get(self.kind, "")
        options = [
            f"key={self.key}" if self.key is not None else "",
            f"timeout={self.timeout_s:g}s" if self.timeout_s is not None else "",
            f"cancelled after {self.cancel_after_s:g}s" if self.cancel_after_s is not None else "",
            f"retried {self.retries} times" if self.retries else "",
        ]
        head = f"pause {about}" if self.kind == "pause" else f"{where}.{self.kind}({about.strip()})"
        return "  ".join([f"{self.number}: {head}", *(one for one in options if one)])


class Caller(msgspec.Struct, frozen=True):
    """One task: its calls, one after another.

    Attributes:
        number: its own; it stays when other callers are left out.
        calls: in order.
    """

    number: int
    calls: tuple[Call, ...]

    def __str__(self) -> str:
        return "\n".join([f"caller {self.number}", *(f"  {call}" for call in self.calls)])


class Program(msgspec.Struct, frozen=True):
    """Callers that run at once."""

    callers: tuple[Caller, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.callers))

    @property
    def sessions(self) -> tuple[tuple[str, str], ...]:
        """The sessions that it speaks of, user and session, in order."""
        return tuple(
            sorted(
                {
                    (call.user, call.session)
                    for caller in self.callers
                    for call in caller.calls
                    if call.session
                }
            )
        )

    @property
    def users(self) -> tuple[str, ...]:
        """The users that it speaks of, in order."""
        return tuple(
            sorted(
                {
                    call.user
                    for caller in self.callers
                    for call in caller.calls
                    if call.kind != "pause"
                }
            )
        )

    @property
    def size(self) -> int:
        """How many calls."""
        return sum(len(caller.calls) for caller in self.callers)


def messages_of(caller: Caller, call: Call) -> list[ChatDict]:
    """The messages of an append, in the OpenAI chat format; the first word of each is its name."""
    open_ = _open_calls(caller, call)
    found = []
    for place, shape in enumerate(call.shapes):
        name = f"m{caller.number}.{call.number}.{place}"
        found.append(_message(shape, name, call.words, open_))
    return found


def fact_of(caller: Caller, call: Call) -> str:
    """What a ``remember`` records."""
    return f"f{caller.number}.{call.number}.0 is worth knowing"


def _open_calls(caller: Caller, call: Call) -> list[list[str]]:
    """Ids of the tool calls that the caller made in this session before, and did not answer.

    A list for each message.
    """
    open_: list[list[str]] = []
    for earlier in caller.calls:
        if earlier.number >= call.number:
            break
        if earlier.kind == "append" and (earlier.user, earlier.session) == (
            call.user,
            call.session,
        ):
            for place, shape in enumerate(earlier.shapes):
                _message(shape, f"m{caller.number}.{earlier.number}.{place}", 0, open_)
    return open_


def _message(shape: Shape, name: str, words: int, open_: list[list[str]]) -> ChatDict:
    text = " ".join([name, *("lorem" for _ in range(words))])
    match shape:
        case "user" | "assistant":
            return {"role": shape, "content": text}
        case "call" | "call2":
            ids = [f"call-{name}-{n}" for n in range(2 if shape == "call2" else 1)]
            open_.append(list(ids))
            calls = [
                {"id": id_, "type": "function", "function": {"name": "look", "arguments": "{}"}}
                for id_ in ids
            ]
            return {"role": "assistant", "content": text, "tool_calls": calls}
        case "result":
            newest = next((ids for ids in reversed(open_) if ids), [f"none-{name}"])
            return {"role": "tool", "tool_call_id": newest.pop(0), "content": text}
        case "orphan":
            return {"role": "tool", "tool_call_id": f"none-{name}", "content": text}


# -- drawing ---------------------------------------------------------------------------------------

_BATCHES: tuple[tuple[Shape, ...], ...] = (
    ("user",),
    ("user",),
    ("user",),
    ("assistant",),
    ("user", "assistant"),
    ("user", "assistant", "user"),
    ("call", "result"),
    ("call2", "result", "result"),
    ("call",),
    ("call2",),
    ("result",),
    ("result", "assistant"),
    ("orphan",),
)
_KINDS: dict[
    Kind, tuple[int, float]
] = {  # how often a call is of the kind, in programs that have it; how many programs have it
    "append": (40, 1.0),
    "load": (18, 1.0),
    "messages": (4, 0.5),
    "clear": (5, 0.5),
    "history": (5, 0.5),
    "flush": (4, 0.5),
    "delete": (6, 0.5),
    "rewind": (6, 0.4),
    "remember": (4, 0.5),
    "recall": (4, 0.5),
    "synopsis": (2, 0.2),
    "pause": (5, 0.5),
    "forget_session": (3, 0.2),
    "forget_user": (3, 0.2),
}


def draw_program(
    rng: random.Random,
    *,
    size: int = 24,
    callers: int = 4,
    users: Sequence[str] = ("alice", "bob"),
    sessions: int = 2,
    kinds: Sequence[Kind] | None = None,
) -> Program:
    """A program by chance; most of its calls meet in one session.

    Each program leaves out some kinds of calls: a session that is cleared all the time never folds
    (swarm testing, Groce et al. 2012).

    Args:
        rng: what it is drawn from; the same state gives the same program.
        size: calls, in all.
        callers: how many at most.
        users: whose sessions.
        sessions: of each user.
        kinds: what calls may do; everything otherwise.
    """
    count = rng.randint(1, callers)
    among = _KINDS if kinds is None else kinds
    chosen = [
        (kind, weight)
        for kind, (weight, share) in _KINDS.items()
        if rng.random() < share and kind in among
    ]
    favourite = (rng.choice(users), "s0")
    drawn: list[list[Call]] = [[] for _ in range(count)]
    for _ in range(size):
        mine = drawn[rng.randrange(count)]
        mine.append(_draw_call(rng, len(mine), chosen, favourite, users, sessions))
    return Program(
        tuple(Caller(number, tuple(calls)) for number, calls in enumerate(drawn) if calls)
    )


def _draw_call(
    rng: random.Random,
    number: int,
    kinds: Sequence[tuple[Kind, int]],
    favourite: tuple[str, str],
    users: Sequence[str],
    sessions: int,
) -> Call:
    (kind,) = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
    if kind == "pause":
        return Call(number, kind, pause_s=rng.choice([0.02, 0.3, 1.15, 2.0, 40.0]))
    user, session = (
        favourite if rng.random() < 0.7 else (rng.choice(users), f"s{rng.randrange(sessions)}")
    )
    if kind in {"remember", "recall", "synopsis", "forget_user"}:
        session = ""
    cancelled = rng.random() < (0.12 if kind != "synopsis" else 0.5)
    call = Call(
        number,
        kind,
        user,
        session,
        cancel_after_s=rng.choice([0.0, 0.001, 0.004, 0.02, 0.3]) if cancelled else None,
        retries=20 if rng.random() < 0.5 else 0,
    )
    replace = msgspec.structs.replace
    if kind in {"append", "load", "clear", "flush"} and rng.random() < 0.1:
        call = replace(call, timeout_s=rng.choice([0.0, 0.01, 0.5]))
    match kind:
        case "append":
            key = rng.choice([None, None, None, "k0", "k1", "k2"])
            if call.retries and key is None:  # what is retried without one is said twice
                key = f"r{rng.randrange(1 << 30):x}"
            return replace(
                call, shapes=rng.choice(_BATCHES), words=rng.choice([0, 0, 3, 12, 40]), key=key
            )
        case "load":
            return replace(
                call,
                max_tokens=rng.choice([None, None, None, 0, 15, 60, 200]),
                asks=rng.random() < 0.25,
            )
        case "delete" | "rewind":
            return replace(call, back=rng.choice([1, 1, 2, 3]), place=rng.choice([0, 0, 1]))
        case _:
            return call
