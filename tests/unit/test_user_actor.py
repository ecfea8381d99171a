"""The user's own actor, turn by turn: working memory, the synopsis and its terms, figures of
access, grants.
"""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from remora import BufferPolicy
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.messages import Inspect
from remora.actors.user import behavior
from remora.actors.user.behavior import UserBehavior
from remora.actors.user.messages import (
    CleanUp,
    Grant,
    InspectUser,
    Learn,
    PruneNow,
    ReadGrants,
    ReadSynopsis,
    Remember,
    RememberReceipt,
    SearchWorking,
    SynopsisReady,
    Touch,
)
from remora.actors.user.state import SynopsisPart, UserState
from remora.config import Config
from remora.errors import InvalidInput, NotGranted
from remora.results import SessionView, UserView
from remora.runtime.actor import Decision
from remora.runtime.passivation import RegistryLimits
from remora.runtime.registry import ActorRegistry
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey, UserKey
from remora.storage.records import (
    MemoryItem,
    Opened,
    PruneSpec,
    RecordSpec,
    Remembered,
    SavedUser,
    StateChanged,
    StateItem,
)
from tests.harness import WINDOWS, LoopClock
from tests.users import DAY, HOUR, KEY, NOW, UserModel, axis, item

NOW_US = int(NOW * 1_000_000)


def memory(id_: str) -> MemoryItem:
    return MemoryItem(id_, "chat", "", f"content of {id_}", "fact", 0.5, NOW_US, 4)


def restored(model: UserModel, **options: Any) -> UserState:
    """The state after a restart, by replaying the facets that the records left."""
    state_items: dict[tuple[str, str], Any] = {}
    for record in model.records:
        if isinstance(record, StateChanged):
            state_items.update(((one.kind, one.name), one) for one in record.put)
            for place in record.dropped:
                state_items.pop(place, None)
    actor = UserBehavior(options.pop("dimension", 4), **{**model.options, **options})
    return actor.restore(
        KEY,
        SavedUser(
            1, opened=True, state_items=tuple(state_items.values()), jobs=tuple(model.jobs.values())
        ),
    )


# -- working memory --------------------------------------------------------------------------------


def test_what_is_learned_is_found() -> None:
    """S2.10, S2.11, S2.12, G12: nearest first, with source, scope and time; a session sees its own
    items and the user's. The same id again, in the same message or later, adds nothing, writes
    nothing, and keeps its age. The journal learns of the actor with what it writes first, and once.
    """
    model = UserModel()
    assert model.learn(item("a"), item("b", axis=1), item("a"), item("c", scope="s1")) == 3
    found = model.ask(SearchWorking(axis(0), 2)).items
    assert [(one.item.id, round(one.score, 6)) for one in found] == [("a", 1.0), ("c", 1.0)]
    assert found[0].item == item("a")
    for scope, wanted in (("s2", ["a", "b"]), ("s1", ["a", "c", "b"])):
        found = model.ask(SearchWorking(axis(0), 5, scope)).items
        assert [one.item.id for one in found] == wanted
    writes = model.writes
    assert model.learn(item("a", "other words"), item("b")) == 0
    assert model.learn() == 0
    assert (model.writes, model.held) == (writes, ["a", "b", "c"])
    model.learn(item("d"))
    opened = [record for record in model.records if isinstance(record, Opened)]
    assert opened == [Opened(1, "alice", "", NOW_US)] == model.records[:1]


def test_a_wrong_vector_is_refused_whole() -> None:
    """S2.10: another dimension, or a length that is not 1, refuses the whole message and changes
    nothing; without an embedder, the refusal says what to set.
    """
    model = UserModel()
    long = msgspec.structs.replace(item("x"), vector=b"\0\0\0\x40" * 4)
    for bad in (item("x", dimension=3), long):
        with pytest.raises(InvalidInput, match="item 'x' has a vector of"):
            model.learn(item("good"), bad)
        assert (model.held, model.records) == ([], [])
    with pytest.raises(InvalidInput, match="4 finite numbers"):
        model.ask(SearchWorking(axis(0)[:12], 5))
    with pytest.raises(InvalidInput, match="cannot have 15 bytes"):
        model.ask(SearchWorking(axis(0)[:15], 5))
    model = UserModel(dimension=None)
    for message in (Learn((item("a"),)), SearchWorking(axis(0), 5)):
        with pytest.raises(InvalidInput, match=r"models\.embedder is none"):
            model.ask(message)
    assert model.ask(CleanUp(0)) == 0


def limit_for(count: int) -> int:
    """Bytes that so many items like ``i00`` take."""
    probe = UserModel()
    probe.learn(*(item(f"i{n:02}") for n in range(count)))
    assert probe.state.working is not None
    return probe.state.working.content_bytes


def test_cleanup_removes_a_prefix_by_age() -> None:
    """S2.13, S2.14: while over the limit the oldest go, no more of them than need to, and then the
    memory is within it; free rows are given back first. A limit that nothing fits into empties it.
    """
    model = UserModel(max_bytes=limit_for(20))
    model.learn(*(item(f"i{n:02}") for n in range(30)))
    limit = limit_for(12)
    assert model.ask(CleanUp(limit)) == 18
    assert model.held == [f"i{n:02}" for n in range(18, 30)]
    view: UserView = model.ask(InspectUser())
    assert (view.working_items, view.evicted) == (12, 18)
    assert view.working_bytes <= limit
    writes = model.writes
    assert model.ask(CleanUp(limit)) == 0
    assert model.writes == writes
    assert model.ask(CleanUp(0)) == 12
    assert model.held == []
    assert model.ask(CleanUp(0)) == 0
    assert model.learn(item("i29")) == 1, "what left may be learned again"
    limit = limit_for(17)  # in a matrix of more rows
    model = UserModel(max_bytes=limit)
    model.learn(*(item(f"i{n:02}") for n in range(17)))
    assert model.ask(InspectUser()).working_bytes > limit
    writes = model.writes
    assert model.ask(CleanUp(limit)) == 0
    assert model.ask(InspectUser()).working_bytes == limit
    assert (len(model.held), model.writes) == (17, writes)


def test_many_leave_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.13: one message evicts few enough not to hold the event loop, but never leaves more than
    twice the limit.
    """
    monkeypatch.setattr(behavior, "MOST_EVICTED", 5)
    model = UserModel(max_bytes=limit_for(20))
    model.learn(*(item(f"i{n:02}") for n in range(38)))
    assert [model.ask(CleanUp(limit_for(20))) for _ in range(5)] == [5, 5, 5, 3, 0]
    model.learn(*(item(f"i{n:02}") for n in range(40, 59)))
    assert len(model.held) == 39
    model.learn(*(item(f"i{n:02}") for n in range(60, 62)))
    assert model.held == [f"i{n:02}" for n in (*range(23, 38), *range(40, 59), *range(60, 62))]
    model.learn(*(item(f"i{n:02}") for n in range(62, 78)))
    assert len(model.held) == 40


def test_a_flood_does_not_wait_for_the_cleanup() -> None:
    """G10, S2.13, S2.14: beyond twice the limit the oldest leave in the same turn; short of it
    nothing leaves. An item that is larger than the whole memory is refused.
    """
    limit = limit_for(10)
    model = UserModel(max_bytes=limit)
    model.learn(*(item(f"i{n:02}") for n in range(20)))
    assert len(model.held) == 20
    writes = model.writes
    assert model.learn(item("i20")) == 1
    assert model.held == [f"i{n:02}" for n in range(11, 21)]
    assert model.writes == writes + 1
    assert model.learn(*(item(f"j{n:02}") for n in range(50))) == 50, (
        "a message may be larger than all that is held"
    )
    held = [f"j{n:02}" for n in range(40, 50)]
    with pytest.raises(InvalidInput, match="'huge' takes"):
        model.learn(item("huge", "x" * limit))
    assert model.held == held
    assert [one.id for one in restored(model).working.items] == held  # type: ignore[union-attr]


def test_deciding_changes_nothing() -> None:
    """G1: `handle` only looks; a turn that is thrown away leaves no trace."""
    model = UserModel(max_bytes=limit_for(5))
    model.learn(*(item(f"i{n:02}") for n in range(9)))
    model.ask(Touch(("r1",), NOW_US))
    model.write_synopsis()
    before = (model.held, model.ask(InspectUser()), model.state.number, dict(model.state.parts))
    for message in (
        Learn(tuple(item(f"k{n:02}") for n in range(9))), CleanUp(0), Touch(tuple(f"r{n}" for n in range(300)), NOW_US),  # noqa: E501
        PruneNow(5, "fifo"), Remember((memory("m"),)), Grant("a", "b", "read"),
    ):  # fmt: skip
        assert model.actor.handle(model.state, message) is not None
    assert (
        model.held,
        model.ask(InspectUser()),
        model.state.number,
        dict(model.state.parts),
    ) == before


def test_vectors_of_another_embedder_are_left_aside() -> None:
    """S2.10: after a change of embedder nothing of the old one's is compared with the new one's;
    learning clears it away.
    """
    model = UserModel(embedder="old/4")
    model.learn(item("a"), item("b"))
    state = restored(model, embedder="new/4")
    assert state.working is not None
    assert len(state.working) == 0
    model.actor, model.state = UserBehavior(4, embedder="new/4", max_bytes=10 << 20), state
    assert model.learn(item("b"), item("c")) == 2
    assert model.held == ["b", "c"]
    again = restored(model, embedder="new/4")
    assert [one.id for one in again.working.items] == ["b", "c"]  # type: ignore[union-attr]
    assert not again.stale
    assert len(restored(model, embedder="", dimension=None).stale) == 2, (
        "without an embedder they keep"
    )


# -- synopsis --------------------------------------------------------------------------------------


def test_terms_to_the_second() -> None:
    """S2.22, S2.25: identity holds for 7 days, context for an hour, and neither a second longer."""
    model = UserModel(refresh_on_access=False)
    model.write_synopsis()
    for after_s, identity, context, state, tokens in (
        (HOUR - 60, "Ada.", "Bees.", "ok", 2),
        (HOUR - 1, "Ada.", "Bees.", "ok", 2),
        (HOUR, "Ada.", "", "pending", 1),
        (7 * DAY - 1, "Ada.", "", "pending", 1),
        (7 * DAY, "", "", "pending", 0),
    ):
        shown = model.synopsis(after_s)
        found = (shown.identity, shown.context, shown.state, shown.tokens)
        assert found == (identity, context, state, tokens), after_s
    assert model.jobs.keys() == {shown.job}
    defaults = Config().synopsis
    assert (defaults.identity_ttl, defaults.context_ttl) == (7 * DAY, HOUR)
    assert defaults.refresh_on_access


def test_a_stored_part_of_another_name_is_no_part() -> None:
    """G10: what an import of earlier releases let in neither fails a synopsis nor completes it."""
    part = SynopsisPart("x", NOW * 2, 1, "", degraded=False)
    stray = StateItem("synopsis", "2026-01-01", msgspec.msgpack.encode(part))
    behavior = UserBehavior(4, max_bytes=10_000)
    state = behavior.restore(KEY, SavedUser(1, opened=True, state_items=(stray,)))
    decision = behavior.handle(state, ReadSynopsis(NOW))
    assert isinstance(decision, Decision)
    shown = decision.reply
    assert (shown.identity, shown.context, shown.state) == ("", "", "pending")


def test_two_parts_in_one_turn() -> None:
    """S2.23, S2.24: one job writes both, under two names with two terms, and ends in the same turn;
    however many ask, and although the process ends meanwhile, no other is started. The names that
    the miss writes are those that a hit reads.
    """
    model = UserModel()
    pending = model.synopsis(0)
    assert (pending.state, pending.identity, pending.context) == ("pending", "", "")
    job = pending.job
    assert {model.synopsis(0).job for _ in range(99)} == {job}
    writes = model.writes
    misses = model.ask(InspectUser()).synopsis_misses
    model.state = restored(model)
    assert model.synopsis(1).job == job
    ready = SynopsisReady(job, "Ada.", "Bees.", NOW, degraded=False, model="m", tokens=(1, 2))
    assert model.ask(ready)
    assert model.writes == writes + 1
    parts = model.state.parts
    terms = {name: part.expires_at - NOW for name, part in parts.items()}
    assert terms == {"identity": 7 * DAY, "context": HOUR}
    assert (model.jobs, model.state.job) == ({}, "")
    assert restored(model).parts == parts
    assert {model.synopsis(1 + n).state for n in range(100)} == {"ok"}
    assert (model.started, model.writes) == ([job], writes + 1)
    assert (misses, model.ask(InspectUser()).synopsis_hits) == (100, 100)


def test_refresh_on_access_extends_to_a_whole_term() -> None:
    """S2.25: read at t, valid until t + ttl and no longer; without it, until the first term ends;
    who asks with an earlier clock takes no time away.
    """
    for refresh in (True, False):
        model = UserModel(refresh_on_access=refresh)
        model.write_synopsis()
        assert model.synopsis(50 * 60).state == "ok"
        assert model.synopsis(HOUR + 49 * 60).context == ("Bees." if refresh else "")
        if refresh:
            assert model.synopsis(2 * HOUR + 48 * 60 + 59).state == "ok"
            assert model.synopsis(3 * HOUR + 48 * 60 + 59).context == ""
            assert model.synopsis(7 * DAY + 2 * HOUR).identity == "Ada.", "it moved along"
    model = UserModel()
    model.write_synopsis(after_s=100)
    model.synopsis(0)
    assert model.state.parts["context"].expires_at == NOW + 100 + HOUR


def test_reading_is_no_write() -> None:
    """S2.25, S2.21: an extension is journalled when a tenth of a term has gone by, or before the
    actor leaves memory.
    """
    model = UserModel()
    model.write_synopsis()
    writes = model.writes
    for minute in range(1, 7):
        assert model.synopsis(60 * minute).state == "ok"
    assert model.writes == writes
    assert restored(model).parts["context"].expires_at == NOW + HOUR
    model.synopsis(7 * 60)
    assert model.writes == writes + 1
    assert restored(model).parts["context"].expires_at == NOW + HOUR + 7 * 60
    model.synopsis(8 * 60)
    assert model.writes == writes + 1
    model.rest()
    assert restored(model).parts == model.state.parts
    assert model.state.parts["context"].expires_at == NOW + HOUR + 8 * 60


def test_refresh_is_asked_for_once() -> None:
    """S2.23, S2.24, G5: asked to write it anew, it shows what still holds, and joins a job that is
    under way. The result of a job that nobody waits for changes nothing and leaves no job behind.
    """
    model = UserModel()
    model.write_synopsis()
    for job in ("synopsis-1-99", model.started[0]):
        late = SynopsisReady(job, "Eve.", "Lies.", NOW, degraded=False, model="m", tokens=(1, 1))
        assert model.ask(late) is False
    first = model.synopsis(10, refresh=True)
    assert (first.state, first.identity, first.context) == ("pending", "Ada.", "Bees.")
    assert model.synopsis(11, refresh=True).job == first.job
    assert model.synopsis(12).state == "ok", "who does not insist is served from what holds"
    assert len(model.started) == 2


def test_what_holds_for_the_short_term() -> None:
    """G6, S2.22, S2.24: a degraded synopsis says so, and no read makes it live on; an empty one is
    held as well, or each read of a new user would be a miss. Both hold for an hour.
    """
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"degraded": True}, "degraded"),
        ({"identity": "", "context": ""}, "empty"),
    )
    for options, state in cases:
        model = UserModel()
        model.write_synopsis(**options)
        assert [model.synopsis(after).state for after in (1, HOUR - 1)] == [state] * 2
        gone = model.synopsis(HOUR)
        assert (gone.state, gone.identity) == ("pending", "")


def test_job_ids_outlive_a_restart() -> None:
    """S2.24, G7: no job's id is used again: a dead letter's row may still bear it."""
    model = UserModel()
    model.write_synopsis()
    model.ask(Remember((memory("m1"),)))
    model.ask(PruneNow(5, "fifo"))
    model.jobs.clear()
    model.state = restored(model)
    model.ask(Remember((memory("m2"),)))
    model.synopsis(0, refresh=True)
    wanted = "synopsis-1-1 record-1-2 prune-1-3 record-1-4 synopsis-1-5"
    assert model.started == wanted.split()


# -- long-term memory ------------------------------------------------------------------------------


def test_figures_are_written_in_batches() -> None:
    """S2.21: figures go up by one for each retrieval, whatever its list looks like; the latest time
    stays. 2 560 retrievals are ten writes or fewer; none is lost when the actor leaves memory.
    """
    model = UserModel()
    for ids, at_us in ((("r1", "r2", "r1"), 0), (("r1",), 5), (("r2",), -5), ((), 9)):
        model.ask(Touch(ids, NOW_US + at_us))
    first = {"r1": (2, NOW_US + 5), "r2": (2, NOW_US)}
    assert model.ask(InspectUser()).accesses == first
    for number in range(10, 2_570):
        model.ask(Touch((f"r{number}",), NOW_US + number))
    assert 1 <= model.writes <= 10
    assert len(model.state.pending) <= 256
    model.rest()
    assert model.state.pending == {}
    every = {**first, **{f"r{n}": (1, NOW_US + n) for n in range(10, 2_570)}}
    assert restored(model).accesses == model.state.accesses == every
    assert model.actor.on_idle(model.state) is None


def test_figures_are_bounded() -> None:
    """G10, S2.21: of more rows than are kept, the least recently retrieved are forgotten, in the
    journal, too.
    """
    model = UserModel()
    for number in range(0, 10_500, 300):
        model.ask(Touch(tuple(f"r{n}" for n in range(number, number + 300)), NOW_US + number))
    model.rest()
    assert len(model.state.accesses) == 10_000
    assert "r499" not in model.state.accesses
    assert "r700" in model.state.accesses
    assert restored(model).accesses == model.state.accesses


def test_what_becomes_a_job() -> None:
    """S2.17, S4.41, G7: the memories and the job that makes them searchable are of one write;
    nothing to remember starts nothing. What to bring down to how much is a job of its own.
    """
    model = UserModel()
    reply: RememberReceipt = model.ask(Remember((memory("m1"), memory("m2"), memory("m1"))))
    assert reply == RememberReceipt(("m1", "m2", "m1"), "record-1-1")
    job = model.jobs[reply.job]
    assert (job.queue, job.key, job.payload) == ("record", KEY, RecordSpec(1, ("m1", "m2")))
    assert model.writes == 1
    assert isinstance(model.records[-1], Remembered)
    assert model.ask(Remember(())) == RememberReceipt((), "")
    assert model.writes == 1
    job = model.jobs[model.ask(PruneNow(100, "age", 3_600.0, ("fact",)))]
    assert (job.queue, job.payload) == ("prune", PruneSpec(1, 100, "age", 3_600.0, ("fact",)))


# -- grants ----------------------------------------------------------------------------------------


def test_only_owners_grant() -> None:
    """S4.33: the first to grant owns the scope; owners grant and take away; nobody else does, and
    nothing changes then. A scope is never without an owner, neither by the last one leaving nor by
    its stepping down, nor at the start.
    """
    model = UserModel()
    with pytest.raises(NotGranted, match="last owner"):
        model.ask(Grant("planner", "planner", "read"))
    assert model.ask(ReadGrants()) == {}
    model.ask(Grant("planner", "critic", "read"))
    assert model.ask(ReadGrants()) == {"planner": "own", "critic": "read"}
    for by in ("critic", "stranger"):
        with pytest.raises(NotGranted) as caught:
            model.ask(Grant(by, by, "own"))
        assert (caught.value.scope, caught.value.who) == ("alice", by)
    model.ask(Grant("planner", "critic", "own"))
    model.ask(Grant("critic", "planner", None))
    for right in (None, "write"):
        with pytest.raises(NotGranted, match="last owner"):
            model.ask(Grant("critic", "critic", right))
    writes = model.writes
    model.ask(Grant("critic", "critic", "own"))
    model.ask(Grant("critic", "stranger", None))
    assert (model.ask(ReadGrants()), model.writes) == ({"critic": "own"}, writes)
    assert restored(model).grants == {"critic": "own"}


# -- two kinds -------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_each_kind_has_its_behavior() -> None:
    """G1: in one registry, a session's messages reach the session's behavior, and a user's the
    user's.
    """
    policy = BufferPolicy(above_tokens=100, keep_tokens=50, overdraft_tokens=400)
    sessions = SessionBehavior(lambda _: policy, instance="0", flushes=True, windows=WINDOWS)
    users = UserBehavior(4, max_bytes=1_000)
    journal, chat = MemoryJournal(), SessionKey("alice", "chat")
    registry = ActorRegistry(
        {SessionKey: sessions, UserKey: users}, journal, LoopClock(), RegistryLimits(), print
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.run)
        registry.start(tasks)
        assert isinstance(await registry.ask(chat, Inspect()), SessionView)
        assert isinstance(await registry.ask(UserKey("alice"), InspectUser()), UserView)
        with pytest.raises(TypeError, match="a session has no answer to InspectUser"):
            await registry.ask(chat, InspectUser())
        tasks.cancel_scope.cancel()
