"""Figures of users, of contexts and of tiers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remora import Config, Runtime
from remora.testing import HashEmbedder
from tests.harness import user
from tests.programs import printed

pytestmark = pytest.mark.anyio


async def test_stats_of_a_user() -> None:
    """S1.04, S4.36, S2.05, S2.24, S4.39: sessions, messages, tokens, memories, working memory, hit
    rates; of this user alone. Without a directory, long-term memory included.
    """
    config = Config.from_dict(
        {
            "buffer": {"policy": "window", "size": 4},
            "long_term": {"batch_ms": 5},
            "synopsis": {"shown": "always"},
        }
    )
    async with Runtime.in_memory(config=config, embedder=HashEmbedder()) as runtime:
        alice, bob = runtime.user("alice"), runtime.user("bob")
        for name in ("one", "two"):
            chat = alice.session(name)
            await chat.append([user(f"{name} {number} about tea") for number in range(6)])
            await chat.flush()
            await chat.settle()
        await bob.session("one").append(user("his"))
        await alice.remember("Prefers metric units", type="preference")
        await alice.settle()
        await alice.learn(["the tool said 7", "and 8"], source="tool")
        for _ in range(4):
            await alice.recall("tea")
            await alice.synopsis()
        stats = await alice.stats()
        assert (stats.sessions, stats.messages) == (2, 12)
        assert (stats.memories, stats.working_items) == (1, 2)
        assert stats.long_term_rows == 13
        assert stats.working_bytes > 0
        journal, keys = (
            runtime.internals.journal,
            [alice.session(name).key for name in ("one", "two")],
        )
        entries = [entry for key in keys for entry in await journal.read(key, 1, 99)]
        assert stats.tokens == sum(entry.tokens for entry in entries)
        assert stats.recall_hit_rate == 0.75
        assert 0.7 < stats.synopsis_hit_rate < 1
        assert (stats.pending_jobs, stats.dead_jobs) == (0, 0)
        his = await bob.stats()
        assert (his.sessions, his.messages, his.memories, his.long_term_rows) == (1, 1, 0, 0)


async def test_a_context_counts_what_it_recalled() -> None:
    """S2.21, S2.01: what a context brought from long-term memory is counted as retrieved, once for
    each context.
    """
    config = Config.from_dict({"long_term": {"batch_ms": 5}, "recall": {"deadline_s": 600.0}})
    async with Runtime.in_memory(config=config, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        (id_,) = await alice.remember("Alice keeps bees in Coimbra.")
        await alice.settle()
        await alice.learn("the hive weighs 30 kg", source="scales")
        chat = alice.session("chat")
        await chat.append(user("how are the bees?"))
        for turn in (1, 2):
            context = await chat.load("bees in Coimbra")
            assert [memory.id for memory in context.memories] == [id_]
            assert (context.sources["long_term"].count, context.sources["recent"].count) == (1, 1)
            assert (await alice.inspect()).accesses[id_][0] == turn
        context = await chat.load("what does the hive weigh?")
        assert [found.item.text for found in context.working] == ["the hive weighs 30 kg"]
        assert '("scales"): "the hive weighs 30 kg"' in str(context.messages[-2]["content"])


async def test_every_mode_of_control(tmp_path: Path) -> None:
    """S4.04: the same memory is written and read by the application and by the model's tools."""
    async with Runtime(tmp_path) as runtime:
        alice = runtime.user("alice")
        await alice.remember("Alice is allergic to nuts.")
        tools = alice.tools()
        saved = await tools.save_to_memory(
            thinking="she said so", content=["Alice's birthday is March 15."]
        )
        assert saved["success"] is True
        await alice.settle()
        by_tool = await tools.recall_from_memory(["nuts"])
        assert "allergic" in str(by_tool["memories"])
        assert (await alice.recall("birthday"))[0].text == "Alice's birthday is March 15."


def test_tiers_are_measured(tmp_path: Path) -> None:
    """S2.32: the benchmark of the latency table measures every operation of the document, idle and
    beside other loads.
    """
    figures = tmp_path / "figures.json"
    printed("benchmarks.tiers", "--smoke", "--json", figures)
    measured = json.loads(figures.read_text())
    assert measured["long_term_rows"] == 400
    for name in (
        "buffer add",
        "buffer search",
        "working search",
        "persistent search",
        "synopsis, cached",
        "synopsis, written",
        "full context",
    ):
        for load in ("idle", "loaded"):
            assert 0 < measured[name][load]["p50_ms"] <= measured[name][load]["p95_ms"]
    assert measured["contexts_per_s"] > 0
