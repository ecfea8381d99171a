"""Memories in other languages than English are found, by the index in memory and by the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remora import Config, Runtime
from remora.cli.replay import read_conversations, replay

pytestmark = pytest.mark.anyio
DATA = Path(__file__).resolve().parents[1] / "data" / "languages.jsonl"
LINES = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]
SAID = {one["id"]: one["text"] for one in LINES if one["type"] == "turn"}
ASKED = [one for one in LINES if one["type"] == "qa"]
LANGUAGES = sorted({one["conv"] for one in ASKED})


async def found(runtime: Runtime, user: str) -> dict[str, list[tuple[str, bool]]]:
    """The texts of the memories that each question of the set finds, best first, and whether each
    has a word of the question itself, not its neighbours alone.
    """
    asked = [one["question"] for one in ASKED if one["conv"] == user]
    return {
        question: [
            (one.text, "turn" in one.parts)
            for one in await runtime.user(user).recall(question, limit=20)
        ]
        for question in asked
    }


async def test_each_language_is_found_in_both_searches(tmp_path: Path) -> None:
    """By their words alone, indexed or not."""
    conversations = read_conversations(DATA)
    # compacted, so that the index has all rows: LanceDB scores those of a small table that are not
    # in it on another scale (lance #9058)
    words_alone = {"models": {"embedder": "none"}, "long_term": {"compact_fragments": 1}}
    hot = Config.from_dict(words_alone)
    cold = Config.from_dict(words_alone | {"recall": {"hot_mb": 0}})
    async with Runtime(tmp_path, config=hot) as runtime:
        await replay(runtime, conversations, concurrency=8, progress=lambda _: None)
        unindexed = {user: await found(runtime, user) for user in LANGUAGES}
        await runtime.settle()
        in_memory = {user: await found(runtime, user) for user in LANGUAGES}
        await (await runtime.internals.long_term()).compact()
    async with Runtime(tmp_path, config=cold) as runtime:
        in_store = {user: await found(runtime, user) for user in LANGUAGES}
    assert unindexed == in_memory
    missed = []
    for one in ASKED:
        expected, question = SAID[one["evidence"][0]], one["question"]
        in_both = in_memory[one["conv"]][question], in_store[one["conv"]][question]
        # the same messages; a word's weight depends on the others in the table, and so the order;
        # and the store does not search the words of neighbours
        own = [{text for text, has_word in texts if has_word} for texts in in_both]
        memory, store = [[text for text, _ in texts] for texts in in_both]
        assert own[0] >= own[1] == set(store), question
        if expected not in memory[:2] or expected not in store[:3]:
            missed.append(question)
    assert missed == []


async def test_fifty_languages_in_one_session() -> None:
    """Nothing is lost, whatever it is written in, and a word of it is found."""
    text = (
        "Tere Sveiki Hallå Goddag Hei Bună Ahoj Cześć Szia Merhaba Salut Hola Ciao Olá Hallo Dia "
        "Helo Kaixo Përshëndetje Zdravo Здраво Здравей Привіт Γεια Բարև გამარჯობა שלום مرحبا سلام "
        "नमस्ते নমস্কার ਸਤ નમસ્તે வணக்கம் నమస్కారం ನಮಸ್ಕಾರ നമസ്കാരം ආයුබෝවන් สวัสดี ສະບາຍດີ မင်္ဂလာပါ "
        "សួស្តី 안녕하세요 こんにちは 你好 ᠰᠠᠶᠢᠨ ሰላም Sawubona Jambo Aloha བཀྲ"
    )
    hello = text.split()
    async with Runtime.in_memory() as runtime:
        user = runtime.user("u")
        session = user.session("s")
        for number, word in enumerate(hello):
            await session.append({"role": "user", "content": f"{word} {number + 1000}"})
        await session.flush()
        await runtime.settle()
        assert len(hello) >= 50
        for number, word in enumerate(hello):
            memories = await user.recall(f"{number + 1000} {word}", limit=3)
            assert f"{word} {number + 1000}" in [one.text for one in memories]


async def test_redacted_before_it_is_stemmed(tmp_path: Path) -> None:
    """A hook sees what was said, and not its stems; what it removes is in no index."""
    shown: list[str] = []

    def redact(text: str) -> str:
        shown.append(text)
        return text.replace("Geheimnisse", "[…]")

    async with Runtime(tmp_path, redact_long_term=redact) as runtime:
        user = runtime.user("u")
        await user.session("s").append(
            {"role": "user", "content": "Ich habe die Geheimnisse in der Schublade."}
        )
        await user.session("s").flush()
        await runtime.settle()
        assert any("die Geheimnisse in der" in text for text in shown)
        store = await runtime.internals.long_term()
        (row,) = await store.rows("u")
        assert "geheim" not in (row.turn + row.window).lower()
        assert "schublad" in row.turn


async def test_a_language_that_is_set() -> None:
    """Short messages that show no language are taken for German."""
    config = Config.from_dict({"long_term": {"language": "de"}})
    async with Runtime.in_memory(config=config) as runtime:
        user = runtime.user("u")
        await user.session("s").append({"role": "user", "content": "Häuser gekauft"})
        await user.session("s").flush()
        await runtime.settle()
        (row,) = await (await runtime.internals.long_term()).rows("u")
        assert row.turn.endswith("haus gekauft ")
        assert row.content == "Häuser gekauft"
