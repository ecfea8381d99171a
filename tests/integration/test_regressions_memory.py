"""Bugs of memory that were found by breaking it, each with the run that showed it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from remora import BufferPolicy, Config, Line, Runtime
from remora.config import SynopsisConfig
from remora.errors import InvalidInput, NotGranted
from remora.storage.memory import MemoryStore
from remora.testing import VirtualClock
from tests import facts
from tests.embedders import HeldEmbedder
from tests.harness import user
from tests.integration.test_buffers import PLAIN, Recording, said, session
from tests.patience import until

pytestmark = pytest.mark.anyio
WORDS = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "models": {"embedder": "none"},
        "long_term": {"batch_ms": 5, "prune_interval_s": 60},
        "recall": {"deadline_s": 600},
    }
)


async def test_a_hung_model_holds_nobody_else() -> None:
    """G5, G6, G10: with every place of the lane taken by hung models, an overdraft is extracted,
    and a clear settles.
    """
    config = replace(PLAIN, supervisor=replace(PLAIN.supervisor, summarize_concurrency=2))

    class Hangs(Recording):
        async def summarize(
            self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
        ) -> str:
            await anyio.sleep_forever()
            raise AssertionError

    policy = BufferPolicy(above_tokens=20, keep_tokens=10, overdraft_tokens=60)
    async with Runtime.in_memory(config=config, policy=policy, summarizer=Hangs()) as runtime:
        for name in ("one", "two", "three"):
            chat = runtime.session("alice", name)
            await chat.append([user("x" * 40), user("y" * 48)])
        await chat.append([user(f"{number} " + "z" * 40) for number in range(8)])
        while (summary := (await chat.inspect()).summary) is None:
            await anyio.sleep(0)
        assert summary.degraded
        queued = runtime.session("alice", "four")
        await queued.append([user("x" * 40), user("y" * 48)])
        await queued.clear()
        await queued.settle()


async def test_what_was_cleared_never_reaches_long_term_memory(tmp_path: Path) -> None:
    """S1.14, G7: deleting a message, here and in a copy, writes its neighbours anew, and no message
    that was not there before.
    """
    async with Runtime(tmp_path, config=WORDS) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append([user(f"secret{number}") for number in range(1, 6)])
        await chat.clear()
        await chat.append([user(f"m{number}") for number in range(6, 11)])
        await chat.flush()
        await chat.settle()
        await chat.delete(positions=0)
        await chat.settle()
        rows = await (await runtime.internals.long_term()).rows("alice")
        assert [row.seq for row in rows] == [7, 8, 9, 10]
        copy = await chat.fork("copy")
        await copy.delete(positions=2)
        await copy.flush()
        await runtime.settle()
        rows = await (await runtime.internals.long_term()).rows("alice")
        assert {row.session for row in rows} == {"chat"}


async def test_rewinding_takes_summary_entries_along(tmp_path: Path) -> None:
    """S2.04, G7: entries of messages that are gone leave long-term memory; one that leaves its list
    twice is there once.
    """
    policy = BufferPolicy.ring(4, multiplier=1, batch=2)
    async with Runtime(tmp_path, config=WORDS, policy=policy, summarizer=Recording()) as runtime:
        chat = runtime.session("alice", "chat")

        async def talk(first: int, last: int) -> None:
            for number in range(first, last + 1):
                await chat.append(user(f"w{number}"))
                await chat.settle()

        await talk(1, 20)
        await chat.rewind(12)
        await talk(21, 28)
        store = await runtime.internals.long_term()
        ids = await store.row_ids()
        assert len(ids) == len(set(ids))
        await chat.rewind(5)
        await chat.settle()
        rows = await store.rows("alice")
        assert [row.seq for row in rows if row.memory_type == "message"] == [1, 2, 3, 4, 5]
        assert all("w1" not in row.content.split() or "w9" not in row.content for row in rows)
        assert not [
            row.content
            for row in rows
            if any(f"w{number}" in row.content.split() for number in range(6, 29))
        ]


async def test_words_that_were_deleted_do_not_come_back() -> None:
    """S4.12, S1.22: not through a summary that was made before they were deleted, and not through a
    message that was removed.
    """
    async with session(BufferPolicy.ring(6, batch=3), summarizer=Recording()) as chat:
        for number in range(1, 10):
            await chat.append(user(f"word{number}"))
            await chat.settle()
        await chat.rewind(6)
        await chat.delete(positions=0)
        with pytest.raises(InvalidInput, match="removed"):
            await chat.rewind(8)
        await chat.append([user("a"), user("b"), user("c")])
        await chat.settle()
        await chat.rewind(5)
        assert "word1" not in str(await chat.contents())
        await chat.settle()
        assert "word1" not in str(await chat.contents()).replace("word1'", "")


class GatedStore(MemoryStore):
    """Waits before it deletes and before it adds, if it is told to."""

    def __init__(self) -> None:
        super().__init__(None)
        self.held: set[str] = set()
        self.reached = {"delete": anyio.Event(), "add": anyio.Event()}
        self.opened = {"delete": anyio.Event(), "add": anyio.Event()}

    async def _pass(self, gate: str) -> None:
        if gate in self.held:
            self.reached[gate].set()
            await self.opened[gate].wait()

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        await self._pass("delete")
        return await super().delete(user, ids)

    async def add(self, rows: Any, vectors: Any, *, may_exist: bool) -> None:
        await self._pass("add")
        await super().add(rows, vectors, may_exist=may_exist)


@pytest.mark.parametrize("extracted", [False, True])
async def test_what_is_deleted_is_listed_no_more_and_the_rest_is(*, extracted: bool) -> None:
    """As soon as `delete` returned, whatever its job has done so far, in both listings."""
    store, model = GatedStore(), facts.FactModel() if extracted else None
    settings = facts.config(facts={"enabled": extracted})
    async with Runtime.in_memory(config=settings, store=store, chat_model=model) as runtime:
        ann = runtime.user("ann")
        chat = ann.session("one")
        names = ("home", "pet", "car", "bike", "boat", "team")
        await facts.say(chat, *(f"{name} is Kept{name}" for name in names))
        await ann.settle()
        listed = sorted(one.text for one in await ann.memories())
        expected = [one for one in listed if "Keptpet" not in one]
        assert (len(listed), len(expected)) == ((12, 10) if extracted else (6, 5))

        async def check() -> None:
            found = await ann.memories()
            assert sorted(one.text for one in found) == expected
            assert [one.created_at for one in found] == sorted(one.created_at for one in found)
            assert sorted((await ann.export_arrow())["content"].to_pylist()) == expected
            assert await ann.memories(session="another") == []

        store.held = {"delete", "add"}
        assert (await chat.delete(positions=1)).deleted == 1
        await check()
        for gate in ("delete", "add"):
            await store.reached[gate].wait()
            await check()
            store.opened[gate].set()
        await runtime.settle()
        await check()


async def test_a_restored_summary_is_a_text_like_any(tmp_path: Path) -> None:
    """S4.43, S4.10, G9: it is redacted, without half an emoji, and no longer than a summary may be."""  # noqa: E501
    hide: Any = lambda text: text.replace("SECRET", "[x]")  # noqa: E731
    async with session(where=tmp_path, redact=hide) as chat:
        await chat.load_state_dict(
            {"messages": [user("SECRET")], "summary": "SECRET \ud800" + " word" * 20_000}
        )
        context = await chat.load()
        assert "SECRET" not in str(context.messages)
        assert (context.summary or "").startswith("[x] \ufffd")
        assert context.tokens < 1000
        copy = await chat.fork("copy")
        assert not (await copy.append(user("fine"))).duplicate


async def test_ids_and_copies_know_what_was_cleared() -> None:
    """S4.11, S3.28: ids of before a clear may come again, in a copy as well, and are known again
    when one goes back before it.
    """
    async with session(BufferPolicy.window(2)) as chat:
        await chat.append([user(f"m{number}", id=f"i{number}") for number in range(1, 6)])
        await chat.clear()
        await chat.append(user("after"))
        copy = await chat.fork("copy")
        assert (await copy.append(user("m1", id="i1"))).duplicate is False
        await chat.rewind(4)  # before the clear
        assert (await chat.append(user("m1", id="i1"))).seqs == (1,)


async def test_the_past_after_a_drop_right_behind_a_rewind(tmp_path: Path) -> None:
    """S1.22: what a session showed stays what `load(at=…)` shows, whatever was dropped since."""
    async with session(BufferPolicy.keep_all(), where=tmp_path) as chat:
        await chat.append([user(f"m{number}") for number in range(1, 21)])
        before = (await chat.load(at=15)).messages
    async with session(BufferPolicy.window(5), where=tmp_path) as chat:
        await chat.rewind(10)
        assert (await chat.load(at=15)).messages == before
        assert said((await chat.load()).messages) == ["m6", "m7", "m8", "m9", "m10"]


# -- users -----------------------------------------------------------------------------------------


async def test_what_an_agent_keeps_to_itself_is_in_no_context() -> None:
    """S4.18: an agent's memory is in no session's context, and in its own recall."""
    async with Runtime.in_memory(config=WORDS) as runtime:
        alice = runtime.user("alice")
        await alice.agent("therapist").remember("The diagnosis is lupus")
        await alice.remember("The diagnosis is known to the therapist")
        await alice.settle()
        context = await alice.session("chat").load("what is the diagnosis?")
        assert "lupus" not in str(context.messages)
        assert "known to the therapist" in str(context.messages)
        assert "lupus" in (await alice.agent("therapist").recall("diagnosis"))[0].text


async def test_a_models_arguments_are_bounded() -> None:
    """S4.22, G10: a limit or a list without end is refused to the model, not worked through on the
    event loop.
    """
    async with Runtime.in_memory(config=WORDS) as runtime:
        tools = runtime.user("alice").tools()
        for arguments in (
            {"keywords": ["tea"], "limit": 10**12},
            {"keywords": [str(n) for n in range(3_000)]},
        ):
            answer = json.loads(await tools.call("recall_from_memory", json.dumps(arguments)))
            assert answer["success"] is False
            assert "at most" in answer["error"]


async def test_a_right_that_was_taken_away_is_gone() -> None:
    """S4.33: a recall under way when the right is revoked returns nothing; nobody owns a scope by
    revoking in it.
    """
    embedder = HeldEmbedder("plan secret")
    async with Runtime.in_memory(embedder=embedder) as runtime:
        team = runtime.shared("team")
        lead, scout = team.as_("lead"), team.as_("scout")
        with pytest.raises(NotGranted):
            await scout.revoke("nobody")
        await lead.grant("scout", "read")
        await lead.remember("plan one")

        async def read() -> None:
            with pytest.raises(NotGranted):
                await scout.recall("plan secret")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await embedder.reached.wait()
            await lead.revoke("scout")
            embedder.go.set()


async def test_a_synopsis_forgets_what_was_deleted() -> None:
    """S2.22, S4.12: what a user deleted is in the synopsis no longer, nor in any context that it
    goes into.
    """
    shown = replace(WORDS, synopsis=SynopsisConfig(shown="always"))
    async with Runtime.in_memory(config=shown) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("chat")
        await chat.append(
            [user("My PIN is 9921 and my name is Bob."), {"role": "assistant", "content": "ok"}]
        )
        assert "9921" in (await alice.synopsis()).identity
        await chat.delete(positions=0)
        await runtime.settle()
        synopsis = await alice.synopsis()
        assert "9921" not in synopsis.identity + synopsis.context
        assert "9921" not in str((await alice.session("other").load("hello")).messages)


async def test_figures_survive_a_clean_shutdown(tmp_path: Path) -> None:
    """S2.21, G12: access figures that were gathered in memory are written before the runtime
    closes.
    """
    async with Runtime(tmp_path, config=WORDS) as runtime:
        alice = runtime.user("alice")
        (id_,) = await alice.remember("likes tea")
        await alice.settle()
        for _ in range(5):
            await alice.recall("tea")
    async with Runtime(tmp_path, config=WORDS) as runtime:
        assert (await runtime.user("alice").inspect()).accesses[id_][0] == 5


async def test_silent_users_are_pruned_by_age(tmp_path: Path) -> None:
    """S4.27, S4.41: time passes for users who say nothing, and for those of before a restart."""
    by_age = replace(WORDS.long_term, prune="age", max_age_days=1)
    config = replace(WORDS, long_term=by_age)
    async with Runtime(tmp_path, config=config) as runtime:
        await runtime.user("alice").remember("likes tea")
        await runtime.settle()
    clock = VirtualClock(start=4_000_000_000.0)
    async with Runtime(tmp_path, config=config, clock=clock) as runtime:

        async def is_pruned() -> bool:
            await clock.advance(60)
            return not await runtime.user("alice").memories()

        await until(is_pruned, "the memory is pruned")
