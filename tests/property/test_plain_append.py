"""The short path of a plain append gives what the general one gives, or leaves it to that."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from remora import BufferPolicy
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.messages import Append, SummaryReady
from remora.config import Config
from remora.runtime.actor import Decision
from remora.services.intake import Intake
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.storage.records import Appended
from tests.harness import COUNTER, WINDOWS, append

KEY = SessionKey("alice", "chat")
POLICY = BufferPolicy(above_tokens=60, keep_tokens=20)


class StoppedClock:
    def time(self) -> float:
        return 1_700_000_000.25

    monotonic = time

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def intake(**options: Any) -> Intake:
    parts = {"redact": None, "scorer": None, "embedder": None, **options}
    buffer = Config.from_dict({"buffer": {"max_message_bytes": 2_000}}).buffer
    return Intake(buffer, COUNTER, StoppedClock(), **parts)


values = st.text(max_size=20) | st.none() | st.integers() | st.lists(st.text(max_size=3))
roles = st.sampled_from(["user", "assistant", "system", "developer", "tool", "robot"]) | values
contents = values | st.sampled_from(["x" * 1_990, "half \ud83d", "a\x00b"])
messages = st.fixed_dictionaries(
    {"role": roles, "content": contents},
    optional={"name": values, "id": values, "metadata": values, "tool_call_id": values},
)


@given(messages)
@example({"content": "the text first", "role": "user"})
@example({"role": ["user"], "content": "x"})
@example({"role": "user", "text": "x"})
def test_a_message_is_the_same_entry(message: dict[str, Any]) -> None:
    """S1.15: or it is none, and the general path says what is wrong."""
    one = intake().encode_at_once(KEY, message)
    if one is not None:
        assert [one] == anyio.run(intake().encode, KEY.user, [message])


def test_hooks_see_every_message() -> None:
    """Redaction and a scorer are the general path's."""
    message = {"role": "user", "content": "Hello."}
    assert intake().encode_at_once(KEY, message) is not None
    assert intake(redact=str.upper).encode_at_once(KEY, message) is None
    assert intake(scorer=lambda _: 0.5).encode_at_once(KEY, message) is None


def test_a_long_message_is_left_to_a_thread() -> None:
    """S1.15: its size alone says so."""
    wide = Config.from_dict({"buffer": {"max_message_bytes": 1_000_000}}).buffer
    one = Intake(wide, COUNTER, StoppedClock(), None, None, None)
    assert one.encode_at_once(KEY, {"role": "user", "content": "w" * 16_000}) is not None
    assert one.encode_at_once(KEY, {"role": "user", "content": "w" * 16_001}) is None


def facts(decision: Any) -> dict[str, Any]:
    """All that was decided, but for the key."""
    assert isinstance(decision, Decision)
    found = {name: getattr(decision, name) for name in Decision.__struct_fields__}
    found["records"] = [
        msgspec.structs.replace(one, key=None) if isinstance(one, Appended) else one
        for one in decision.records
    ]
    return {name: [*one] if isinstance(one, (list, tuple)) else one for name, one in found.items()}


steps = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from([None, None, "a", "b"]),
        st.sampled_from([None, None, "k"]),
        st.sampled_from([0, 0, 2]),
        st.booleans(),
    ),
    max_size=12,
)


@given(steps)
def test_a_decision_is_the_same(
    script: list[tuple[int, str | None, str | None, int, bool]],
) -> None:
    """G2, G4, G6: with ids, keys, windows of duplicates and compactions in between."""
    actor = SessionBehavior(lambda _: POLICY, instance="0", flushes=False, windows=WINDOWS)
    image: Any = anyio.run(MemoryJournal().hydrate, [KEY])[0]
    state = actor.restore(KEY, image)
    for number, (count, id_, key, window, summarized) in enumerate(script):
        said: list[dict[str, Any]] = [
            {"role": "user", "content": f"message {number} {n} " + "word " * 6}
            for n in range(count)
        ]
        if id_ is not None:
            said[0] = {"role": "user", "content": "word " * 6, "id": f"{id_}{number // 3}"}
        one = append(*said, key=key and f"{key}{number}")
        message = Append(one.entries, one.key, one.size, dedup_window=window)
        decision = actor.handle(state, message)
        if key is None and isinstance(decision, Decision):
            # with a key it takes the general path
            keyed = Append(one.entries, f"fresh {number}".encode(), one.size, dedup_window=window)
            assert facts(decision) == facts(actor.handle(state, keyed))
        if not isinstance(decision, Decision):
            continue
        for record in decision.records:
            actor.apply(state, record)
        for job in decision.jobs if summarized else ():
            ready = SummaryReady(job.payload, job.id, "", "Summary.", 5, False, "m")
            done = actor.handle(state, ready)
            assert isinstance(done, Decision)
            for record in done.records:
                actor.apply(state, record)
