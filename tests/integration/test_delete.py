"""Deleting one thing that was said: for every reader at once, and then from the files."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from remora import Config, Context, Line, Message, Runtime
from remora.errors import InvalidInput, ModelUnavailable, NotFound, TurnClosed
from remora.testing import HashEmbedder, count_probes
from tests.programs import run_command_aside

pytestmark = pytest.mark.anyio

SECRET = "qzvkpin"
SMALL: dict[str, Any] = {
    "buffer": {"token_limit": 400},
    "tokens": {"counter": "heuristic"},
    "supervisor": {"backoff_s": 0.01},
}
FOLDS = Config.from_dict(SMALL)


def user(text: str, id_: str | None = None) -> dict[str, Any]:
    return {"role": "user", "content": text, **({"id": id_} if id_ else {})}


def shown(context: Context) -> str:
    return "\n".join(str(one["content"]) for one in context.messages)


async def holding(directory: Path, word: str) -> list[str]:
    return await anyio.to_thread.run_sync(_holding, directory, word)


def _holding(directory: Path, word: str) -> list[str]:
    """The files that hold a word, in whatever letters."""
    needles = [word.encode(), word.upper().encode(), word.encode("utf-16-le")]
    return [
        str(path.relative_to(directory))
        for path in sorted(directory.rglob("*"))
        if path.is_file() and any(one in path.read_bytes() for one in needles)
    ]


async def talk(runtime: Runtime, *, after: int = 60, session: str = "one") -> Message:
    """A conversation of which the first message is the one to delete, if `after` push it out."""
    chat = runtime.session("ann", session)
    await chat.append(user(f"My PIN hint is {SECRET} of course."))
    for number in range(after):
        await chat.append(user(f"Question {number} about towns and rivers of the north."))
    await chat.settle()
    return (await chat.history())[0]


class Teller:
    """A summarizer that repeats what it is given, and can be away."""

    name = "teller"

    def __init__(self) -> None:
        self.away = False

    async def summarize(self, previous: str | None, lines: Sequence[Line], max_tokens: int) -> str:
        if self.away:
            raise ModelUnavailable("away")
        told = " ".join([previous or "", *(line.text for line in lines)]).split()
        words = [one for one in told if SECRET in one]
        return "Told: " + " ".join(words)[: max_tokens * 2]


@pytest.mark.parametrize("way", ["memory", "message", "id", "user", "many"])
@pytest.mark.parametrize("after", [0, 60], ids=["buffer", "archived"])
async def test_every_way_to_name_a_message(tmp_path: Path, way: str, after: int) -> None:
    """One id everywhere; nothing shows it afterwards, and only it is gone."""
    async with Runtime(tmp_path, config=FOLDS, embedder=HashEmbedder()) as runtime:
        ann, chat = runtime.user("ann"), runtime.session("ann", "one")
        message = await talk(runtime, after=after)
        found = next(one for one in await ann.recall("PIN hint") if SECRET in one.text)
        assert found.id == message.id
        count = len(await chat.history())
        before = datetime.now(UTC)
        if way == "memory":
            receipt = await chat.delete(found)
        elif way == "message":
            receipt = await chat.delete(message)
        elif way == "id":
            receipt = await chat.delete(message.id or "")
        elif way == "user":
            receipt = await ann.delete(found)
        else:
            receipt = await ann.delete([found, "msg_none"])
        assert receipt.deleted == 1
        assert receipt.missing == (("msg_none",) if way == "many" else ())
        assert receipt.erased_by is not None
        assert receipt.erased_by - before < timedelta(hours=1, minutes=1)
        for step in range(2):
            assert SECRET not in shown(await chat.load(max_tokens=8_000))
            assert SECRET not in shown(await chat.load(max_tokens=8_000, query="PIN hint"))
            assert SECRET not in shown(await chat.load(max_tokens=8_000, at=count))
            assert all(SECRET not in one.text for one in await ann.recall("PIN hint"))
            assert all(SECRET not in one.text for one in await ann.memories())
            history = await chat.history()
            assert len(history) == count - 1, "only it is gone"
            assert all(SECRET not in str(one.content) for one in history)
            if not step:
                await chat.settle()
        with pytest.raises(NotFound, match="nothing was deleted") as caught:
            await ann.delete(found)
        assert caught.value.ids == (message.id,)


async def test_what_is_not_deleted(tmp_path: Path) -> None:
    """Numbers, summaries, foreign messages and ambiguous ids are refused, and nothing goes."""
    async with Runtime(tmp_path, config=FOLDS) as runtime:
        ann = runtime.user("ann")
        for session in ("one", "two"):
            await runtime.session("ann", session).append([user("Hello.", "1"), user("There.")])
        chat = runtime.session("ann", "one")
        (memory, *_) = [one for one in await ann.recall("There") if one.session == "two"]
        history = await runtime.session("bob", "one").append(user("Mine."))
        for wrong in (1, 1.5, None, {"id": "1"}):
            with pytest.raises(InvalidInput):
                await chat.delete(wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidInput):
                await ann.delete(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="another session"):
            await chat.delete(memory)
        with pytest.raises(InvalidInput, match="several sessions"):
            await ann.delete("1")
        for absent in (history.ids[0], "msg_none", "x" * 40):
            with pytest.raises(NotFound):
                await ann.delete(absent)
            with pytest.raises(NotFound):
                await chat.delete(absent)
        with pytest.raises(NotFound):
            await ann.delete(memory, saved_only=True)
        assert (await chat.delete([])).erased_by is None
        for session in ("one", "two"):
            assert len(await runtime.session("ann", session).history()) == 2
        assert len(await runtime.session("bob", "one").history()) == 1
        assert (await chat.delete("1")).deleted == 1
        assert (await ann.delete("1")).deleted == 1, "only one is left"


@pytest.mark.parametrize("away", [False, True])
async def test_a_summary_is_written_again(tmp_path: Path, *, away: bool) -> None:
    """A model's: from what it wrote before on; an extract if the model is away."""
    teller = Teller()
    async with Runtime(tmp_path, config=FOLDS, summarizer=teller) as runtime:
        chat = runtime.session("ann", "one")
        message = await talk(runtime)
        assert SECRET in shown(await chat.load(max_tokens=4_000))
        teller.away = away
        await chat.delete(message)
        assert SECRET not in shown(await chat.load(max_tokens=4_000))
        await chat.settle()
        context = await chat.load(max_tokens=4_000)
        assert SECRET not in shown(context)
        assert context.sources.summary.count == 1, "there is a summary again"
        await chat.append([user(f"More about town {number}.") for number in range(60)])
        await chat.settle()
        assert SECRET not in shown(await chat.load(max_tokens=4_000))


async def test_a_summary_keeps_what_came_before(tmp_path: Path) -> None:
    """What a model wrote before the deleted message is not asked for again."""
    teller = Teller()
    async with Runtime(tmp_path, config=FOLDS, summarizer=teller) as runtime:
        chat = runtime.session("ann", "one")
        await talk(runtime)
        late = await chat.append(user(f"A late {SECRET}late word."))
        await chat.append([user(f"More about town {number}.") for number in range(60)])
        await chat.settle()
        assert f"{SECRET}late" in shown(await chat.load(max_tokens=4_000))
        await chat.delete(late.ids[0])
        first = await chat.load(max_tokens=4_000)
        assert f"{SECRET}late" not in shown(first)
        assert SECRET in shown(first), "the summary before is shown at once"
        await chat.settle()
        after = shown(await chat.load(max_tokens=4_000))
        assert SECRET in after
        assert f"{SECRET}late" not in after


async def test_a_repeated_append_brings_nothing_back(tmp_path: Path) -> None:
    async with Runtime(tmp_path, config=FOLDS) as runtime:
        chat = runtime.session("ann", "one")
        given = [user(SECRET), user("And more.")]
        receipt = await chat.append(given, key="k")
        await chat.delete(receipt.ids[0])
        assert (await chat.append(given, key="k")).duplicate
        assert [one.content for one in await chat.history()] == ["And more."]


@pytest.mark.parametrize("after", [0, 60], ids=["buffer", "archived"])
async def test_a_deletion_leaves_no_byte(tmp_path: Path, after: int) -> None:
    """Also of what was rewound before; the next start goes on where the last one stopped."""
    async with Runtime(tmp_path, config=FOLDS, embedder=HashEmbedder()) as runtime:
        ann, chat = runtime.user("ann"), runtime.session("ann", "one")
        message = await talk(runtime, after=after)
        rewound = await chat.append(user(f"{SECRET} once more"))
        await chat.rewind(rewound.seqs[0] - 1)
        await chat.flush()
        (saved,) = await ann.remember([f"The {SECRET} is safe."])
        await runtime.settle()
        assert (await ann.delete([message, saved, rewound.ids[0]])).deleted == 3
        await chat.settle()
    assert await holding(tmp_path, SECRET), "the files are not rewritten at once"
    async with Runtime(tmp_path, config=FOLDS, embedder=HashEmbedder()) as runtime:
        assert await runtime.retry_erasures() == []
        await runtime.settle()
        assert await holding(tmp_path, SECRET) == []
        assert len(await runtime.session("ann", "one").history()) == after
        assert all(SECRET not in one.text for one in await runtime.user("ann").memories())
    assert await holding(tmp_path, SECRET) == []


async def test_files_are_rewritten_in_time(tmp_path: Path) -> None:
    """Without a call, and of all users together."""
    config = Config.from_dict({**SMALL, "retention": {"deleted_s": 0.001}})
    async with Runtime(tmp_path, config=config, embedder=HashEmbedder()) as runtime:
        message = await talk(runtime)
        await runtime.user("ann").delete(message)
        while await holding(tmp_path, SECRET):
            await runtime.retry_erasures()
        assert len(await runtime.session("ann", "one").history()) == 60


@pytest.mark.parametrize("summarizer", [None, Teller()], ids=["extract", "model"])
async def test_going_back_brings_no_empty_summary(
    tmp_path: Path, summarizer: Teller | None
) -> None:
    """To before the deletion, into a copy, or after a restart: each message is in the context, or
    a summary covers it.
    """
    count = 60
    async with Runtime(tmp_path, config=FOLDS, summarizer=summarizer) as runtime:
        chat = runtime.session("ann", "one")
        message = await talk(runtime, after=count)
        await chat.append([user(f"More about town {number}.") for number in range(count)])
        await chat.settle()
        await chat.delete(message)
        copies = [await chat.fork("now"), await chat.fork("then", at=count)]
        await chat.rewind(count)
    async with Runtime(tmp_path, config=FOLDS, summarizer=summarizer) as runtime:
        await runtime.settle()
        for name in ("one", *(copy.key.session for copy in copies)):
            session = runtime.session("ann", name)
            assert SECRET not in shown(await session.load(max_tokens=8_000))
            sources = (await session.load(max_tokens=8_000)).sources
            history = await session.history()
            covered = sources.summary.messages
            first = (covered.last if covered else 0) + 1
            assert sources.recent.count == sum((one.seq or 0) >= first for one in history), name
            summaries, _ = await session.contents()
            assert all(SECRET not in str(one) for one in summaries)


async def test_a_picture_goes_with_its_message(tmp_path: Path) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + SECRET.encode() * 10_000
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    part: Any = {"type": "image_url", "image_url": {"url": url}}
    async with Runtime(tmp_path, config=FOLDS) as runtime:
        chat = runtime.session("ann", "one")
        receipt = await chat.append({"role": "user", "content": [part]})
        assert await holding(tmp_path, SECRET)
        await chat.delete(receipt.ids[0])
        await runtime.retry_erasures()
        assert await holding(tmp_path, SECRET) == []


async def test_entries_of_a_list_go_too(tmp_path: Path) -> None:
    """Summary entries that left their list are rows of long-term memory, which recall finds."""
    ring = {"policy": "ring", "size": 12, "multiplier": 1, "batch": 6}
    config = Config.from_dict({**SMALL, "buffer": ring})
    async with Runtime(tmp_path, config=config, embedder=HashEmbedder()) as runtime:
        ann, chat = runtime.user("ann"), runtime.session("ann", "one")
        message = await talk(runtime, after=200)
        kinds = {one.type for one in await ann.memories() if SECRET in one.text}
        assert kinds == {"message", "summary"}
        await chat.delete(message)
        assert all(SECRET not in one.text for one in await ann.recall("PIN hint", limit=50))
        await runtime.settle()
        assert all(SECRET not in one.text for one in await ann.memories())
        assert SECRET not in shown(await chat.load(max_tokens=8_000))
        await runtime.retry_erasures()
        assert await holding(tmp_path, SECRET) == []


class Away(HashEmbedder):
    """Answers questions, and no batch of texts."""

    async def embed(self, texts: Sequence[str]) -> Any:
        if len(texts) > 1:
            raise ModelUnavailable("away")
        return await super().embed(texts)


async def test_what_waits_for_its_index_is_hidden_at_once(tmp_path: Path) -> None:
    """Also where a recall held it before, while no job can end."""
    async with Runtime(tmp_path, config=FOLDS, embedder=Away()) as runtime:
        ann, chat = runtime.user("ann"), runtime.session("ann", "one")
        words = [user(f"Word {SECRET}{n}x about the north.") for n in range(30)]
        receipt = await chat.append(words)
        assert any(f"{SECRET}2x" in one.text for one in await ann.recall(f"{SECRET}2x", limit=50))
        await chat.delete(receipt.ids[2])
        found = [one.text for one in await ann.recall(f"{SECRET}2x north", limit=50)]
        assert found
        assert all(f"{SECRET}2x" not in one for one in found)
        context = await chat.load(max_tokens=4_000, query=f"{SECRET}2x north")
        assert f"{SECRET}2x" not in shown(context)


async def test_entries_of_a_rewound_past_go_too(tmp_path: Path) -> None:
    """Their rows were left by `rewind`, and the journal knew nothing of them."""
    ring = {"policy": "ring", "size": 8, "multiplier": 1, "batch": 4}
    config = Config.from_dict({**SMALL, "buffer": ring})
    async with Runtime(tmp_path / "m", config=config, embedder=HashEmbedder()) as runtime:
        ann, chat = runtime.user("ann"), runtime.session("ann", "one")
        for start in range(0, 150, 10):
            await chat.append([user(f"Word {SECRET}{n}x.") for n in range(start, start + 10)])
            await chat.settle()
        ids = {one.seq: one.id for one in await chat.history()}
        await chat.rewind(100)
        await chat.settle()
        await chat.delete(ids[62] or "")
        await runtime.settle()
        assert all(f"{SECRET}61x" not in one.text for one in await ann.memories())
        await runtime.retry_erasures()
        assert await holding(tmp_path, f"{SECRET}61x") == []
    code = await run_command_aside("verify", "--deep", "--dir", tmp_path / "m")
    assert code == 0


async def test_an_id_of_two_messages_deletes_both(tmp_path: Path) -> None:
    """A sender may give a message the id that another one has by its number, and a buffer that is
    replaced has its messages once more: an erasure of one leaves the other nowhere.
    """
    async with Runtime(tmp_path, config=FOLDS) as runtime:
        chat = runtime.session("ann", "one")
        receipt = await chat.append([user("One."), user("Two.")])
        await chat.append(user("Three.", receipt.ids[0]))
        assert (await chat.delete(receipt.ids[0])).deleted == 2
        assert [one.content for one in await chat.history()] == ["Two."]
        await chat.load_state_dict(await chat.state_dict())
        assert (await chat.delete((await chat.get_messages())[0])).deleted == 2
        assert await chat.history() == []


@pytest.mark.parametrize("after", [0, 60], ids=["buffer", "archived"])
async def test_a_turn_ends_with_its_message(tmp_path: Path, after: int) -> None:
    async with Runtime(tmp_path, config=FOLDS) as runtime:
        chat = runtime.session("ann", "one")
        async with chat.turn(f"My PIN is {SECRET}.", key="k") as turn:
            asked = (await chat.history())[-1]
            for number in range(after):
                await chat.append(user(f"Aside {number} of towns."))
            await chat.settle()
            await chat.delete(asked)
            with pytest.raises(TurnClosed):
                await turn.reply("Noted.")
        assert len(await chat.history()) == after


async def test_the_summary_of_a_very_long_session_is_extracted_again_in_parts() -> None:
    """A bounded number of messages is in memory at a time; the summary tells of all of them."""
    config = Config.from_dict({**SMALL, "long_term": {"enabled": False}})
    async with Runtime.in_memory(config=config) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append(user(f"My PIN hint is {SECRET} of course.", "secret"))
        await chat.append(user("I live at 42 Harbour Street in Porto since 8 May 2023."))
        for start in range(0, 11_000, 1_000):
            await chat.append([user(f"Well, {start + n}.") for n in range(1_000)])
        await chat.settle()
        await chat.delete("secret")
        with count_probes() as reached:
            await chat.settle()
        assert reached["extracted_again_in_parts"] == 2
        context = await chat.load(max_tokens=8_000)
        assert SECRET not in shown(context)
        assert "Harbour Street" in (context.summary or "")
        assert "Well, 9" in (context.summary or "")
