"""Histories made by hand, and what was played, for the tests of the checker."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from remora import Config, Receipt
from remora.messages import ChatDict
from tests.checker.history import History, Record, Shown
from tests.checker.judging import check
from tests.checker.programs import Call, Caller, Kind, messages_of

# -- histories made by hand ------------------------------------------------------------------------


class Script:
    """Writes a history as it is told; session alice/s unless said otherwise."""

    def __init__(self) -> None:
        self.history = History()
        self._number = itertools.count()

    def begin(
        self, kind: Kind, *shapes: Any, key: str | None = None, session: str = "s", **options: Any
    ) -> Record:
        number = next(self._number)
        call = Call(
            number, kind, "alice", session, shapes=shapes, key=key, max_tokens=options.get("budget")
        )
        messages: list[ChatDict] = options.get("messages") or messages_of(Caller(0, (call,)), call)
        return self.history.call(0, call, messages=messages, argument=options.get("argument"))

    def append(
        self,
        *seqs: int,
        shapes: Sequence[Any] | None = None,
        duplicate: bool = False,
        **options: Any,
    ) -> Record:
        record = self.begin("append", *(shapes or ["user"] * len(seqs)), **options)
        self.end(record, Receipt(seqs, tuple(map(str, seqs)), duplicate))
        return record

    def end(self, record: Record, result: Any) -> None:
        self.history.returned(record, result)

    def load(self, *names: str, covered: Sequence[str] = (), **options: Any) -> Record:
        record = self.begin("load", **options)
        self.end(record, shown(*names, covered=covered, **options))
        return record

    def told(self, *pairs: tuple[int, str]) -> None:
        self.end(self.begin("history"), pairs)

    def clear(self, count: int) -> None:
        self.end(self.begin("clear"), count)


def shown(*names: str, covered: Sequence[str] = (), **options: Any) -> Shown:
    tokens = options.get("tokens", 10)
    return Shown(
        budget=options.get("budget"),
        summarized=bool(covered),
        covered=tuple(covered),
        names=names,
        tokens=tokens,
        counted=options.get("counted", tokens),
        pending=options.get("pending", 0),
        awaiting=tuple(options.get("awaiting", ())),
        split=options.get("split", 0),
        told=frozenset(options.get("told", ())),
    )


def found(script: Script) -> set[str]:
    return {violation.guarantee for violation in check(script.history)}


# -- programs and players --------------------------------------------------------------------------

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "supervisor": {"backoff_s": 0.001, "max_backoff_s": 0.01},
        "long_term": {"batch_ms": 1},
        "buffer": {"summary_tokens": 100_000, "token_limit": 1_000_000},
        "activation": {"idle_s": 0.05},
    }
)
