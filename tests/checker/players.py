"""Callers that play a program against a runtime, and write down what they saw."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import anyio

from remora import Receipt, Runtime
from remora.errors import (
    BudgetTooSmall,
    CommitFailed,
    ErasureInProgress,
    InvalidInput,
    JournalDamaged,
    KeyConflict,
    LongTermError,
    MailboxFull,
    ModelError,
    NotFound,
    OutcomeUnknown,
    OwnershipLost,
    RecordingFailed,
    ReentrantAsk,
    RuntimeClosed,
    SessionQuarantined,
    StorageError,
)
from remora.messages import ChatDict
from tests.checker.history import History, Record, name_of, seen_of, shown_of
from tests.checker.programs import NAME, Call, Caller, Program, fact_of, messages_of

__all__ = ["UNBOUNDED", "Player", "record_of"]

UNBOUNDED = 10**9
"""The budget, in tokens, of a load without one."""
_ROOM_FOR_SOME = 100  # tokens that have room for a few words of the newest

_QUERY = "what is lorem worth knowing"
_NOTHING_RAN = (CommitFailed, MailboxFull, SessionQuarantined, ErasureInProgress)
_NOTHING_STORED = (CommitFailed.__name__, OwnershipLost.__name__)
_READS = frozenset({"load", "messages", "history", "recall", "synopsis"})


class Player:
    """Plays a program, over as many runtimes as it takes.

    Where each caller stands is kept here. When a runtime died under them, `play` on the next one
    goes on from there: the history learns that the process died, and what was under way is tried
    again under the same key where its call says so.

    Args:
        program: what is called.
        history: where it is written down.
        rng: draws how long callers think between their calls, and wait before they try again.
        think_s: what the thinking is drawn from, in seconds.
        again_s: what the waiting is drawn from, in seconds.
    """

    def __init__(
        self,
        program: Program,
        history: History,
        rng: random.Random,
        *,
        think_s: Sequence[float] = (0.0, 0.0, 0.0, 0.02, 0.3),
        again_s: Sequence[float] = (0.01, 0.1, 1.0, 5.0),
    ) -> None:
        self.history = history
        self._think_s = think_s
        self._again_s = again_s
        seed = rng.getrandbits(32)
        # a stream of each caller's own: leaving one out changes nothing of what the others draw
        self._callers = [
            _Standing(caller, random.Random(f"{seed}/{caller.number}"))
            for caller in program.callers
        ]
        self._played = False

    @property
    def finished(self) -> bool:
        """Everybody has made all their calls."""
        return all(standing.place == len(standing.caller.calls) for standing in self._callers)

    async def play(self, runtime: Runtime) -> None:
        """Make all calls that are left, all callers at once.

        Returns when they are made, or the runtime has closed under them.
        """
        if self._played:
            self.history.crashed()
        self._played = True
        self.history.counter, self.history.summary_prefix = (
            runtime.internals.counter,
            runtime.config.buffer.summary_prefix,
        )
        async with anyio.create_task_group() as tasks:
            for standing in self._callers:
                tasks.start_soon(self._play, runtime, standing)

    async def _play(self, runtime: Runtime, standing: _Standing) -> None:
        life = len(self.history.crashes)
        if standing.flying:  # it was under way when the process died
            standing.ended(known=False)
        while standing.place < len(standing.caller.calls):
            waits = self._again_s if standing.attempt else self._think_s
            await anyio.sleep(standing.rng.choice(waits))
            if len(self.history.crashes) > life:
                return  # the process is dead, and this caller does not know it yet
            call = standing.caller.calls[standing.place]
            if call.kind == "pause":
                await anyio.sleep(call.pause_s)
                standing.ended(known=True)
                continue
            asked = standing.asked(call)
            if asked is None:  # there is nothing yet that it could be about
                standing.ended(known=True)
                continue
            messages = (
                _with_metadata(messages_of(standing.caller, call)) if call.kind == "append" else ()
            )
            standing.flying = True
            record = self.history.call(
                standing.caller.number,
                call,
                attempt=standing.attempt,
                messages=messages,
                argument=asked[0],
            )
            known = await record_of(self.history, record, runtime, messages=messages, id_=asked[1])
            if known is None or record.died:
                return  # who plays on the next runtime goes on
            if isinstance(record.result, Receipt):
                standing.receipts.append((call, record.result))
            standing.ended(known=known)


def _with_metadata(messages: Sequence[ChatDict]) -> list[ChatDict]:
    """What users say, with metadata that is to come back with it; the rest has none."""
    return [
        {**one, "metadata": {"of": name_of(one)}} if one["role"] == "user" else one
        for one in messages
    ]


class _Standing:
    """Where a caller stands: its next call, which attempt that is, and whether it is under way."""

    def __init__(self, caller: Caller, rng: random.Random) -> None:
        self.caller = caller
        self.rng = rng
        self.place = 0
        self.attempt = 0
        self.flying = False
        self.receipts: list[tuple[Call, Receipt]] = []

    def ended(self, *, known: bool) -> None:
        self.flying = False
        if known or self.attempt >= self.caller.calls[self.place].retries:
            self.place, self.attempt = self.place + 1, 0
        else:
            self.attempt += 1

    def asked(self, call: Call) -> tuple[Any, str] | None:
        """What a call is about: for the history, and the message's id."""
        if call.kind == "remember":
            return fact_of(self.caller, call).split()[0], ""
        if call.kind not in {"delete", "rewind"}:
            return None, ""
        mine = [
            (done, receipt)
            for done, receipt in self.receipts
            if (done.user, done.session) == (call.user, call.session) and not receipt.duplicate
        ]
        if call.back > len(mine):
            return None
        done, receipt = mine[-call.back]
        place = min(call.place, len(receipt.seqs) - 1)
        if call.kind == "rewind":
            return receipt.seqs[place], ""
        return (receipt.seqs[place], f"m{self.caller.number}.{done.number}.{place}"), receipt.ids[
            place
        ]


async def record_of(
    history: History,
    record: Record,
    runtime: Runtime,
    *,
    messages: Sequence[Any] = (),
    id_: str = "",
) -> bool | None:
    """Make a call whose beginning is recorded, and record its end.

    Returns:
        Whether its outcome is known; false as well where nothing ran. None if the runtime is
        closed.
    """
    began_s = anyio.current_time()
    known = await _record_call(history, record, runtime, messages, id_)
    record.took_s = anyio.current_time() - began_s
    return known


async def _record_call(
    history: History, record: Record, runtime: Runtime, messages: Sequence[Any], id_: str
) -> bool | None:
    call = record.call
    scope = anyio.CancelScope()
    # with its event loop, as in a power cut: leaving the scope fails then, and nobody is to hear of
    # it
    dropped = False
    try:
        if call.cancel_after_s is not None and record.attempt == 0:
            scope.deadline = anyio.current_time() + call.cancel_after_s
        with scope:
            try:
                result = await _make_call(record, runtime, messages, id_)
            except GeneratorExit:
                dropped = True
                raise
    except RuntimeClosed as e:
        history.unknown(record, e)
        return None
    except RecordingFailed as e:
        if e.cause in _NOTHING_STORED:
            history.nothing(record, e)
        else:
            history.unknown(record, e)
    except _NOTHING_RAN as e:
        history.nothing(record, e)
    except OutcomeUnknown as e:
        history.unknown(record, e)
    except JournalDamaged as e:
        history.wrong(record, e)
    except (LongTermError, ModelError) as e:
        if call.kind in _READS:
            history.nothing(record, e)
        else:
            history.wrong(record, e)
    except BudgetTooSmall as e:
        if call.max_tokens is not None and call.max_tokens < _ROOM_FOR_SOME:
            history.nothing(record, e)
        else:
            history.wrong(record, e)
    except InvalidInput as e:
        if call.kind == "rewind":
            history.returned(record, "refused")
        elif isinstance(e, KeyConflict):
            history.returned(record, Receipt((), (), duplicate=True))
        else:
            history.wrong(record, e)
    except ReentrantAsk as e:
        history.wrong(record, e)
    except StorageError as e:
        history.unknown(record, e)
    except Exception as e:
        if dropped:
            raise
        history.wrong(record, e)
    else:
        if scope.cancelled_caught:
            history.unknown(record, f"cancelled after {call.cancel_after_s:g} s")
        else:
            history.returned(record, result)
    return record.outcome == "done"


async def _make_call(record: Record, runtime: Runtime, messages: Sequence[Any], id_: str) -> Any:
    call = record.call
    timeout_s = call.timeout_s if record.attempt == 0 else None
    user = runtime.user(call.user)
    chat = user.session(call.session) if call.session else user.session("none")
    match call.kind:
        case "append":
            return await chat.append(messages, key=call.key, timeout_s=timeout_s)
        case "load":
            budget = UNBOUNDED if call.max_tokens is None else call.max_tokens
            query = _QUERY if call.asks else None
            context = await chat.load(query, max_tokens=budget, timeout_s=timeout_s)
            record.seen = seen_of(context.messages)
            return shown_of(context, call.max_tokens, runtime.internals.counter)
        case "messages":
            record.seen = seen_of(await chat.get_messages())
            return tuple(one.name for one in record.seen)
        case "clear":
            return await chat.clear(timeout_s=timeout_s)
        case "history":
            record.seen = seen_of(await chat.history())
            return tuple((one.seq, one.name) for one in record.seen)
        case "flush":
            return await chat.flush(timeout_s=timeout_s)
        case "delete":
            try:
                return (await chat.delete([id_])).deleted
            except NotFound:
                return 0
        case "rewind":
            return await chat.rewind(record.argument)
        case "remember":
            await user.remember(f"{record.argument} is worth knowing")
            return None
        case "recall":
            found = await user.recall(_QUERY, limit=10)
            return frozenset(name for memory in found for name in NAME.findall(memory.text))
        case "synopsis":
            synopsis = await user.synopsis()
            return frozenset(NAME.findall(f"{synopsis.identity} {synopsis.context}"))
        case "forget_session":
            await chat.forget()
            return None
        case "forget_user":
            await user.forget()
            return None
        case "pause":
            return None
