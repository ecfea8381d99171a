"""Rows in memory beside LanceDB, and in a whole runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from remora import Config, Context, Runtime
from remora.config import RecallConfig
from remora.models.ports import embed_texts
from remora.recall.question import Question
from remora.recall.user_index import SearchedRows, Sessions, UserIndex, find_matches
from remora.storage.ports import EVERYTHING
from remora.testing import HashEmbedder, long_term_row
from remora.testing.stores import DIMENSION
from tests.lance import lance

pytestmark = pytest.mark.anyio

EMBEDDER = HashEmbedder(DIMENSION)
TEXTS = (
    "I moved to Lisbon in the spring.",
    "Where do you live now?",
    "She was running late, as runners do.",
    "Café déjà-vu at Łódź",
    "my password is hunter2_x",
    "don't forget the cat's bowl",
    "3.14 and 2,718",
    "नमस्ते दुनिया",
    "東京 に 行く",
    "the and of a",
    "A very long word: " + "w" * 41,
    "short",
    "",
    "naïve façade, e5-small",
    "Ottilie keeps bees near Coimbra",
)
QUERIES = (
    *TEXTS,
    "runs",
    "bee",
    "LISBON spring?",
    "what does Ottilie keep",
    "cafe",
    "hunter2",
    "and",
    "nothing of this",
    "14 2718",
)


async def test_memory_finds_what_lancedb_finds(tmp_path: Path) -> None:
    """S2.28, S4.39: the same rows match by words, and vectors are as near: who outgrows memory is
    searched as before.
    """
    rows = [
        long_term_row(
            f"{user}-{n}",
            text,
            user=user,
            turn=f"User: {text}",
            window="\n".join(TEXTS[max(n - 1, 0) : n + 2]),
            created_us=n,
        )
        for user in ("alice", "bob")
        for n, text in enumerate(TEXTS)
    ]
    async with lance(tmp_path, batch_ms=1.0, compact_fragments=1) as store:
        await store.add(
            rows, await embed_texts(EMBEDDER, [row.content for row in rows]), may_exist=False
        )
        await store.compact()
        made = UserIndex(*await store.embedded_rows("alice"))
        for query in QUERIES:
            vector = (await embed_texts(EMBEDDER, [query]))[0]
            asked = {
                one.row.id: one.scores
                for one in await store.search("alice", query, vector, depth=100)
            }
            question = Question(query, vector if vector.any() else None)
            lists = find_matches(
                SearchedRows([made], made.rows, made.traits, Sessions([made])),
                question,
                made.within(EVERYTHING),
                RecallConfig(depth=100),
            ).lists
            for name in ("turn",):
                mine = {made.rows[place].id for place in lists[name].places}
                assert mine == {id_ for id_, scores in asked.items() if name in scores}, (
                    query,
                    name,
                )
            if "vector" in lists:
                near = {
                    made.rows[place].id: score
                    for place, score in zip(
                        lists["vector"].places, lists["vector"].scores, strict=True
                    )
                }
                wanted = {
                    id_: scores["vector"] for id_, scores in asked.items() if "vector" in scores
                }
                assert {
                    id_: value for id_, value in wanted.items() if id_ in near
                } == pytest.approx(near, abs=1e-5)


async def test_a_user_who_grows_is_found_all_the_way(tmp_path: Path) -> None:
    """S4.39, G7: what is said, remembered, removed and pruned is found, or not, by the next recall;
    above hot_rows, too.
    """
    config = Config.from_dict(
        {"recall": {"hot_rows": 8, "cache": 0, "deadline_s": 600}, "long_term": {"batch_ms": 1.0}}
    )
    async with Runtime(tmp_path, config=config, embedder=EMBEDDER) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("chat")

        async def texts() -> set[str]:
            return {memory.text for memory in await alice.recall("bees", limit=50)}

        assert await texts() == set()
        said = [f"bees, message {n}" for n in range(4)]
        await chat.append([{"role": "user", "content": text} for text in said])
        await chat.flush()
        await chat.settle()
        assert await texts() == await texts() == set(said)
        await alice.remember("Ottilie keeps bees")
        await alice.settle()
        assert await texts() == {*said, "Ottilie keeps bees"}
        await chat.delete(positions=1)
        await chat.settle()
        assert await texts() == {*said[:1], *said[2:], "Ottilie keeps bees"}
        more = [f"more bees, {n}" for n in range(8)]
        await alice.remember(more)
        await alice.settle()
        before = runtime.statistics().user_index
        assert len(await texts()) == len(await texts()) == 12
        assert runtime.statistics().user_index.users == 0
        assert runtime.statistics().user_index.passed > before.passed
        await alice.prune(keep=3)
        await alice.settle()
        left = await texts()
        assert len(left) == 3
        assert left == {memory.text for memory in await alice.memories()}
        assert runtime.statistics().user_index.users == 1


async def test_a_context_is_the_same_from_memory(tmp_path: Path) -> None:
    """S2.29, S4.39: what `load` shows does not depend on what is in memory: not at the first time,
    nor after a restart.
    """
    config = Config.from_dict(
        {"long_term": {"batch_ms": 1.0}, "recall": {"cache": 0, "deadline_s": 600}}
    )
    contexts: list[Context] = []
    for _ in range(2):
        async with Runtime(tmp_path, config=config, embedder=EMBEDDER) as runtime:
            alice = runtime.user("alice")
            if not contexts:
                chat = alice.session("chat")
                await chat.append(
                    [{"role": "user", "content": f"{text} {n}"} for n, text in enumerate(TEXTS)]
                )
                await chat.flush()
                await chat.settle()
            question = "where does Ottilie keep bees?"
            contexts += [
                await alice.session("new").load(query=question),
                await alice.session("new").load(query=question),
            ]
    assert all(context.sources["long_term"].status == "ok" for context in contexts)
    assert all(
        [one.id for one in context.memories] == [one.id for one in contexts[0].memories]
        for context in contexts
    )
    assert contexts[0].memories[0].text.startswith("Ottilie keeps bees")
    scores = np.array([[one.score for one in context.memories] for context in contexts])
    assert np.allclose(scores, scores[0])
