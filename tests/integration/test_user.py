"""What outlives sessions, on the real runtime: working memory and the synopsis, over restarts,
passivation and failing models.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import remora
from remora import Config, Runtime, WorkingHit
from remora.actors.user.behavior import UserBehavior
from remora.errors import InvalidId, InvalidInput, ModelUnavailable, RedactionFailed, StorageError
from remora.storage.ports import UserKey
from remora.testing import HashEmbedder, ScriptedChatModel
from tests.embedders import NotingEmbedder
from tests.patience import until

pytestmark = pytest.mark.anyio

ANSWER = '{"identity": "Ada, prefers tea.", "context": "Is planting a garden."}'
TEXTS = [
    "The night train to Porto leaves at nine.",
    "Rye bread keeps for a week.",
    "A railway ticket costs ten euros.",
]


def config(**sections: dict[str, Any]) -> Config:
    return Config.from_dict({"long_term": {"enabled": False}, **sections})


# -- working memory --------------------------------------------------------------------------------


async def test_working_memory_outlives_a_restart(tmp_path: Path) -> None:
    """S2.10, S2.11, S2.12, G12: what was learned is found by meaning, whole, also after a restart;
    by its own user alone. Vectors of two models cannot be compared: after a change of embedder
    nothing old is found, and learning goes on.
    """
    before = datetime.now(UTC)
    async with Runtime(tmp_path, config=config()) as runtime:
        ada = runtime.user("ada")
        assert isinstance(ada, remora.User)
        ids = await ada.learn(TEXTS, source="tool:search")
        assert await ada.learn(TEXTS[1]) == [ids[1]], "the same text is the same item"
        first = await ada.search_working("train ticket", limit=2)
        assert {hit.text for hit in first} == {TEXTS[0], TEXTS[2]}
    async with Runtime(tmp_path, config=config()) as runtime:
        ada = runtime.user("ada")
        assert await ada.search_working("train ticket", limit=2) == first
        (hit,) = await ada.search_working("bread", limit=1)
        assert isinstance(hit, WorkingHit)
        assert (hit.text, hit.source, hit.session, hit.id) == (TEXTS[1], "tool:search", "", ids[1])
        assert before <= hit.created_at <= datetime.now(UTC)
        assert 0 < hit.score <= 1
        assert await runtime.user("bob").search_working("train ticket") == []
        assert (await ada.inspect()).working_items == 3
    async with Runtime(tmp_path, config=config(), embedder=HashEmbedder(32)) as runtime:
        ada = runtime.user("ada")
        assert await ada.search_working("train") == []
        await ada.learn(TEXTS[0])
        assert [hit.text for hit in await ada.search_working("train")] == [TEXTS[0]]


async def test_five_by_default_and_by_session() -> None:
    """S2.12, S2.31: k is 5; a session sees its own items and those of no session, and the same text
    in two sessions is two.
    """
    async with Runtime.in_memory(config=config(), embedder=HashEmbedder(16)) as runtime:
        ada = runtime.user("ada")
        await ada.learn([f"train number {n}" for n in range(9)])
        assert len(await ada.search_working("train")) == 5
        (one,) = await ada.learn("bees sleep", session="one")
        (two,) = await ada.learn("bees sleep", session="two")
        assert one != two
        assert [hit.id for hit in await ada.search_working("bees sleep", 1, session="two")] == [two]
        assert [hit.id for hit in await ada.search_working("bees sleep", 2)] == [one, two]
        assert one not in {hit.id for hit in await ada.search_working("bees", 100, session="two")}


async def test_a_repeated_text_costs_no_call(tmp_path: Path) -> None:
    """S2.05: learned, searched for, recalled: one text is embedded once; what is flushed in bulk
    does not pass the cache.
    """
    embedder = NotingEmbedder(16)
    small = {"buffer": {"token_limit": 200}, "working": {"embedding_cache": 2}}
    async with Runtime(tmp_path, config=Config.from_dict(small), embedder=embedder) as runtime:
        ada = runtime.user("ada")
        await ada.learn("bees")
        await ada.search_working("bees")
        await ada.recall("bees")
        await ada.learn("bees", session="two")
        assert embedder.texts == ["bees"]
        await ada.session("chat").append(
            [{"role": "user", "content": f"about {n}"} for n in range(20)]
        )
        await ada.session("chat").flush()
        await ada.session("chat").settle()
        assert len(embedder.texts) == 21
        await ada.search_working("bees")
        assert len(embedder.texts) == 21, "the flush did not push it out"
        await ada.search_working("wasps")
        await ada.search_working("hornets")
        await ada.search_working("bees")
        assert embedder.texts[21:] == ["wasps", "hornets", "bees"], (
            "the least recently used left first"
        )


async def test_bad_calls_write_nothing() -> None:
    """S2.10, S2.11, S4.28, G4: each says what is wrong with it, before anything is embedded or
    written; where there is no embedder, what to set. All of a call is learned or nothing.
    """
    embedder = NotingEmbedder(16)
    async with Runtime.in_memory(
        config=config(working={"max_memory_mb": 0.01}), embedder=embedder
    ) as runtime:
        ada = runtime.user("ada")
        bad: Any
        for bad in (7, None, ["fine", 7], "", ["fine", "  "], b"bytes"):
            with pytest.raises(InvalidInput, match="what is learned"):
                await ada.learn(bad)
        for bad in ({"source": ""}, {"session": "line\nbreak"}):
            with pytest.raises(InvalidId):
                await ada.learn("x", **bad)
        with pytest.raises(InvalidInput, match="limit must be positive"):
            await ada.search_working("x", 0)
        for bad in (True, 1.5, "1", None):
            with pytest.raises(InvalidInput, match="limit must be a whole number"):
                await ada.search_working("x", bad)
        with pytest.raises(InvalidInput, match="query must be text"):
            await ada.search_working(7)  # type: ignore[arg-type]
        assert embedder.texts == []
        with pytest.raises(InvalidInput, match="working memory may hold"):
            await ada.learn(["fine", "x" * 20_000])
        assert await ada.learn([]) == []
        assert (await ada.inspect()).working_items == 0

    def fails(texts: list[str]) -> Any:
        raise ZeroDivisionError("broken")

    async with Runtime.in_memory(config=config(), embedder=fails) as runtime:
        with pytest.raises(ModelUnavailable):
            await runtime.user("ada").learn(["x", "y"])
        assert (await runtime.user("ada").inspect()).working_items == 0
    async with Runtime.in_memory(config=config(models={"embedder": "none"})) as runtime:
        for call in (runtime.user("ada").learn("x"), runtime.user("ada").search_working("x")):
            with pytest.raises(InvalidInput, match=r"models\.embedder"):
                await call


async def test_redaction_stands_before_working_memory(tmp_path: Path) -> None:
    """S4.43: what the hook takes out is neither embedded nor kept; a hook that fails lets nothing
    through.
    """

    def redact(text: str) -> str:
        if "fail" in text:
            raise ValueError(text)
        return text.replace("4711", "[number]")

    embedder = NotingEmbedder(16)
    async with Runtime(tmp_path, config=config(), embedder=embedder, redact=redact) as runtime:
        await runtime.user("ada").learn("my card is 4711")
        with pytest.raises(RedactionFailed):
            await runtime.user("ada").learn(["fine", "fail"])
        assert [hit.text for hit in await runtime.user("ada").search_working("card")] == [
            "my card is [number]"
        ]
    assert not any("4711" in text for text in embedder.texts)

    def leaked() -> list[Path]:
        return [
            path for path in tmp_path.rglob("*") if path.is_file() and b"4711" in path.read_bytes()
        ]

    assert await anyio.to_thread.run_sync(leaked) == []


async def test_passivation_and_cleanup(tmp_path: Path) -> None:
    """G12, S2.11, S2.13, S2.14, S2.15: a user's idle actor leaves memory and comes back with
    everything, in its order of age. The supervisor's round brings a user's memory within the limit,
    the oldest first, and for good.
    """
    options: Any = {
        "config": config(
            working={"max_memory_mb": 0.01, "fifo_interval_min": 60}, activation={"idle_s": 0.05}
        ),
        "embedder": HashEmbedder(16),
    }
    async with Runtime(tmp_path, **options) as runtime:
        ada = runtime.user("ada")
        texts = [f"train {n}" for n in range(40)]
        await ada.learn(texts[:16])
        before = await ada.search_working("train", 40)
        assert len(before) == 16
        await until(lambda: not runtime.internals.registry.is_live(UserKey("ada")), "she is idle")
        assert await ada.search_working("train", 40) == before
        await ada.learn(texts[16:])
        runtime.reschedule("fifo_cleanup", 0.01)

        async def evicted() -> int:
            return (await ada.inspect()).evicted

        await until(evicted, "the round was made")
        view = await ada.inspect()
        assert view.working_bytes <= 0.01 * (1 << 20)
        left = {hit.text for hit in await ada.search_working("train", 100)}
        assert left == set(texts[-view.working_items :])
        assert len(left) == 40 - view.evicted > 10
    async with Runtime(tmp_path, **options) as runtime:
        assert {hit.text for hit in await runtime.user("ada").search_working("train", 100)} == left


async def test_a_large_working_memory_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart others go on while it is; a failure is told, and the next call tries
    again.
    """
    texts = [f"train {n}" for n in range(600)]
    settings = config(working={"max_memory_mb": 1})
    async with Runtime(tmp_path, config=settings, embedder=HashEmbedder(16)) as runtime:
        await runtime.user("ada").learn(texts)
        before = await runtime.user("ada").search_working("train", 600)
    begun, end, broken = threading.Event(), threading.Event(), [StorageError("broken")]
    restore = UserBehavior.restore

    def restore_slowly(behavior: UserBehavior, key: Any, image: Any) -> Any:
        begun.set()
        end.wait()
        if broken:
            raise broken.pop()
        return restore(behavior, key, image)

    async with Runtime(tmp_path, config=settings, embedder=HashEmbedder(16)) as runtime:
        other = runtime.session("bob", "chat")
        await other.append({"role": "user", "content": "hello"})
        monkeypatch.setattr(UserBehavior, "restore", restore_slowly)

        async def refused() -> None:
            with pytest.raises(StorageError, match="broken"):
                await runtime.user("ada").search_working("train")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refused)
            await anyio.to_thread.run_sync(begun.wait)
            await other.append({"role": "user", "content": "still there"})
            end.set()
        assert await runtime.user("ada").search_working("train", 600) == before
        assert len(before) == 600
        assert not broken


# -- synopsis --------------------------------------------------------------------------------------


async def test_the_synopsis_outlives_a_restart(tmp_path: Path) -> None:
    """S2.22, S2.24, G12: after a restart it is there, and not paid for again: the model would
    raise.
    """
    async with Runtime(
        tmp_path, config=config(), chat_model=ScriptedChatModel([ANSWER])
    ) as runtime:
        ada = runtime.user("ada")
        await ada.session("chat").append(
            {"role": "user", "content": "My name is Ada and I prefer tea."}
        )
        first = await ada.synopsis()
        assert (first.identity, first.context, first.state) == (
            "Ada, prefers tea.",
            "Is planting a garden.",
            "ok",
        )
        assert first.tokens == sum(
            runtime.internals.counter.count(text) for text in (first.identity, first.context)
        )
    exhausted = ScriptedChatModel([])
    async with Runtime(tmp_path, config=config(), chat_model=exhausted) as runtime:
        assert await runtime.user("ada").synopsis() == first
        view = await runtime.user("ada").inspect()
        assert (view.synopsis_hits, view.synopsis_misses) == (1, 0)
        assert (await runtime.user("bob").synopsis()).state == "empty"
    assert exhausted.requests == []


async def test_a_synopsis_under_way_is_written_after_a_restart(tmp_path: Path) -> None:
    """S2.24, G7: the runtime closes while the model thinks; the next one does the job, and who asks
    waits for that one.
    """
    asked = anyio.Event()

    class Hanging:
        async def complete(self, messages: Any) -> str:
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError

    async def give_up() -> None:
        with pytest.raises(remora.errors.RuntimeClosed):
            await runtime.user("ada").synopsis()

    async with anyio.create_task_group() as tasks:
        async with Runtime(tmp_path, config=config(), chat_model=Hanging()) as runtime:
            await runtime.session("ada", "chat").append(
                {"role": "user", "content": "My name is Ada."}
            )
            tasks.start_soon(give_up)
            await asked.wait()
    model = ScriptedChatModel([ANSWER])
    async with Runtime(tmp_path, config=config(), chat_model=model) as runtime:
        assert (await runtime.user("ada").synopsis()).identity == "Ada, prefers tea."
        await runtime.settle()
        assert await runtime.dead_letters() == []
    assert len(model.requests) == 1


async def test_the_embedded_synopsis(tmp_path: Path) -> None:
    """S2.22, S2.26: with no model at all the configuration may ask for a synopsis, within its
    bound, of what users said of themselves and lately.
    """
    said = [
        "My name is Ada, I live in Lisbon and I am allergic to nuts.",
        *(f"On day {n} we planted {n} rows of beans near the old well." for n in range(30)),
    ]
    settings = config(synopsis={"max_tokens": 120, "shown": "always"})
    async with Runtime(tmp_path, config=settings) as runtime:
        ada = runtime.user("ada")
        await ada.session("chat").append([{"role": "user", "content": text} for text in said])
        found = await ada.synopsis()
        assert found.state == "ok"
        assert "Lisbon" in found.identity
        assert "beans" in found.context
        count = runtime.internals.counter.count
        assert 40 < found.tokens == count(found.identity) + count(found.context) <= 120
    assert Config().synopsis.max_tokens == 1_000
