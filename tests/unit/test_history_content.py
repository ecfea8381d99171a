"""The checker on content: words, envelopes, ids, and what is left at rest."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from remora import Receipt, Runtime
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.state import SessionState
from remora.runtime.actor import Decision
from remora.storage.memory import MemoryStore
from remora.storage.ports import MemoryRow
from remora.testing import (
    HashEmbedder,
)
from remora.testing.simulation import World
from tests.checker.history import History, Seen, Violation
from tests.checker.judging import check
from tests.checker.players import Player
from tests.checker.programs import Call, Caller, Program
from tests.checker.rest import check_at_rest
from tests.checker.scripted import CONFIG, Script, found

# -- content ---------------------------------------------------------------------------------------


def whole(script: Script, name: str, seq: int | None = None, **changed: Any) -> Seen:
    """A message as it was said, but for what is changed."""
    said = script.history.messages[name]
    seen = Seen(name, {key: value for key, value in said.items() if key != "metadata"})
    if seq is not None:
        seen = seen._replace(
            seq=seq,
            id=str(seq),
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            metadata=said.get("metadata"),
        )
    return seen._replace(**changed)


def told_whole(script: Script, *seen: Seen) -> None:
    record = script.begin("history")
    record.seen = seen
    script.end(record, tuple((one.seq, one.name) for one in seen))


def test_garbled_words() -> None:
    """G3: a message whose name is right and whose words, role or tool calls are not, in a load."""
    script = Script()
    script.append(1, 2, shapes=["user", "call"])
    result = {"role": "tool", "tool_call_id": "call-m0.0.1-0", "content": "m0.1.0 found"}
    script.append(3, shapes=["result"], messages=[result])
    names = ("m0.0.0", "m0.0.1", "m0.1.0")
    script.load(*names).seen = tuple(whole(script, name) for name in names)
    assert check(script.history) == []
    for name, changed in (
        ("m0.0.0", {"content": "m0.0.0 mumbled"}),
        ("m0.0.0", {"role": "assistant"}),
        ("m0.0.1", {"tool_calls": []}),
        ("m0.1.0", {"tool_call_id": "another"}),
        ("m0.1.0", {"name": "nobody"}),
    ):
        chat = {**script.history.messages[name], **changed}
        script.history.records[-1].seen = (whole(script, name, chat=chat),)
        assert found(script) == {"G3"}


def test_lost_envelope() -> None:
    """G3, G4: metadata, time and id of a message are the same in every history, and in the receipt
    of a duplicate.
    """
    script = Script()
    said = {"role": "user", "content": "m0.0.0", "metadata": {"of": "m0.0.0"}}
    script.append(1, key="k", messages=[said])
    told_whole(script, whole(script, "m0.0.0", 1))
    script.append(1, key="k", messages=[said], duplicate=True)
    told_whole(script, whole(script, "m0.0.0", 1))
    assert check(script.history) == []
    last = script.history.records[-1]
    for changed in ({"metadata": None}, {"created_at": datetime(1970, 1, 1, tzinfo=UTC)}):
        last.seen = (whole(script, "m0.0.0", 1, **changed),)
        assert found(script) == {"G3"}
    last.seen = (whole(script, "m0.0.0", 1, id="another"),)
    assert found(script) == {"G4"}
    script = Script()
    script.append(1, key="k")
    record = script.begin("append", key="k", messages=[script.history.messages["m0.0.0"]])
    script.end(record, Receipt((1,), ("another",), duplicate=True))
    assert found(script) == {"G4"}


class Mishearing(MemoryStore):
    """Keeps other words than it was given in one field of a row, if any."""

    def __init__(self, field: str) -> None:
        super().__init__(64)
        self._field = field

    async def add(self, rows: Sequence[MemoryRow], vectors: Any, *, may_exist: bool = True) -> None:
        if self._field:
            rows = [msgspec.structs.replace(row, **{self._field: self._hear(row)}) for row in rows]
        await super().add(rows, vectors, may_exist=may_exist)

    def _hear(self, row: MemoryRow) -> str:
        text: str = getattr(row, self._field)
        return text.replace("lorem", "morel").replace("user", "tool")


@pytest.mark.anyio
async def test_wrong_words_in_long_term_memory() -> None:
    """G7: a row that is there, once, under the right id, with the wrong words or speaker."""
    program = Program((Caller(0, (Call(0, "append", "alice", "s0", shapes=("user",), words=3),)),))
    for field in ("", "content", "turn", "window", "role"):
        history = History()
        options: Any = {"config": CONFIG, "store": Mishearing(field), "embedder": HashEmbedder()}
        async with Runtime.in_memory(**options) as runtime:
            await Player(program, history, random.Random(1), think_s=(0.0,)).play(runtime)
            violations = await check_at_rest(runtime, history) + check(history)
        guarantees = {violation.guarantee for violation in violations}
        assert guarantees == ({"G7"} if field else set()), field


# -- at rest ---------------------------------------------------------------------------------------


class Stubborn(SessionBehavior):
    """Its sessions leave memory, and flush nothing before."""

    def on_idle(self, state: SessionState, *, closing: bool = False) -> None:
        """Nothing."""


class Modest(SessionBehavior):
    """Its sessions flush, and say that there was nothing."""

    def _flush(self, state: SessionState) -> Decision:
        turn = super()._flush(state)
        return Decision(0, turn.records, jobs=turn.jobs)


@pytest.mark.parametrize("patience_s", [0.0, 10.0])
@pytest.mark.parametrize("behavior", [SessionBehavior, Stubborn, Modest])
def test_what_is_flushed_at_rest(
    behavior: type[SessionBehavior], patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: an idle session hands over what it has by itself, and a flush says how much there was."""
    monkeypatch.setattr("remora.api.build.SessionBehavior", behavior)
    pause = Call(
        0, "pause", pause_s=5.0
    )  # longer than a runtime waits with what its earlier runs left
    program = Program((Caller(0, (pause, Call(1, "append", "alice", "s0", shapes=("user",)))),))
    history = History()

    async def life(world: World) -> list[Violation]:
        async with world.runtime() as runtime:
            await Player(program, history, random.Random(1)).play(runtime)
            return await check_at_rest(runtime, history, patience_s=patience_s)

    caught = behavior is (Stubborn if patience_s else Modest)
    assert {violation.guarantee for violation in World(1).run(life)} == (
        {"G7"} if caught else set()
    )
