"""Questions that share no word with their answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.synthetic.chats import make_chats
from remora import Config, Message, Runtime, User

pytestmark = pytest.mark.anyio

SAID = {
    "Where do I live?": "I moved to Lisbon.",
    "What's my number?": "My new number is 933 222 111.",
    "¿A qué me dedico?": "Trabajo como panadera.",
}

CHATS = [
    Message(role=row["role"], content=row["content"])
    for row in make_chats() * 3
    if row.get("user") == "ada"
    and row["role"] in {"user", "assistant"}
    and row["content"]
    and "live" not in row["content"]
]


async def fill(user: User) -> None:
    """500 messages of a user and an assistant, and what is asked about among them."""
    told = [Message(role="user", content=text) for text in SAID.values()]
    for start in range(0, 500, 50):
        said = told if start == 200 else []
        await user.session(f"chat-{start}").append([*CHATS[start : start + 50], *said])


async def test_what_a_user_is_asked_about_themselves(tmp_path: Path) -> None:
    """README's own example, among 500 messages."""
    async with Runtime(tmp_path) as runtime:
        user = runtime.user("ada")
        await fill(user)
        for indexed in (False, True):
            for question, answer in SAID.items():
                found = [one.text for one in await user.recall(question, limit=3)]
                assert answer in found, (indexed, question)
            await runtime.settle()


async def test_what_an_assistant_says_is_no_statement_of_the_user(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        user = runtime.user("ada")
        await user.session("a").append(
            [
                {"role": "user", "content": "Tell me a story."},
                {"role": "assistant", "content": "I live in a castle, said the dragon."},
                {"role": "user", "content": "We live in a lighthouse now."},
            ]
        )
        (first,) = await user.recall("Where do I live?", limit=1)
        assert first.role == "user"


@pytest.mark.parametrize("question", ["What did I tell you yesterday?", "Was sagte ich gestern?"])
async def test_what_was_said_on_a_day(tmp_path: Path, question: str) -> None:
    """No message of the day has a word of the question."""
    now = datetime.now(UTC)
    days = {0: "The plumber rang.", 1: "Rita's cello arrived this morning.", 2: "It snowed."}
    async with Runtime(tmp_path) as runtime:
        user = runtime.user("ada")
        for back, text in days.items():
            said = Message(role="user", content=text, created_at=now - timedelta(days=back))
            await user.session(f"day-{back}").append(said)
        (first,) = await user.recall(question, limit=1)
        assert first.text == days[1]


@pytest.mark.parametrize("hot_mb", [0, 64])
async def test_everyday_words_that_say_the_same_also_in_another_language(
    tmp_path: Path, hot_mb: int
) -> None:
    config = Config.from_dict({"recall": {"hot_mb": hot_mb}})
    async with Runtime(tmp_path, config=config, embedder=None) as runtime:
        user = runtime.user("ada")
        await fill(user)
        await user.session("a").append(
            [
                {"role": "user", "content": "The plumber fixed the boiler, what a nice man."},
                {"role": "user", "content": "Mein Bruder hat eine Stelle in Bremen gefunden."},
            ]
        )
        for _indexed in (False, True):
            found = await user.recall("What became of our heating?", limit=3)
            assert any("boiler" in one.text for one in found)
            assert "Bremen" in (await user.recall("Where is my brother?", limit=1))[0].text
            for session in await user.sessions():
                await user.session(session.session).flush()
            await runtime.settle()
            await (await runtime.internals.long_term()).compact()


async def test_what_the_assistant_said_is_asked_of_it(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        user = runtime.user("ada")
        await fill(user)
        await user.session("a").append(
            [
                {"role": "user", "content": "Which plant survives in a dark bathroom?"},
                {"role": "assistant", "content": "A cast-iron plant needs the least light."},
            ]
        )
        question = "Which plant did you recommend for the bathroom?"
        assert "cast-iron" in (await user.recall(question, limit=1))[0].text
