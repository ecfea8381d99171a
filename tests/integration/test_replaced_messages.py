"""A message of a known id: equal it is skipped, otherwise refused, or changed where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from remora import Config, Message, Runtime
from remora.errors import IdConflict, InvalidInput, InvalidMessage

pytestmark = pytest.mark.anyio

FOLDS = Config.from_dict({"buffer": {"token_limit": 400}})


def user(text: str, id_: str | None = None) -> dict[str, Any]:
    return {"role": "user", "content": text, **({"id": id_} if id_ else {})}


def assistant(text: str, id_: str | None = None) -> dict[str, Any]:
    return {**user(text, id_), "role": "assistant"}


def texts(messages: Sequence[Message]) -> list[Any]:
    return [one.content for one in messages]


async def test_another_content_under_a_known_id_is_refused(tmp_path: Path) -> None:
    """Of a message in the buffer, and of one that left it; nothing of the batch is written."""
    async with Runtime(tmp_path, config=FOLDS) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append([user("v1", "m"), assistant("fine", "a")])
        for step in range(2):
            with pytest.raises(IdConflict, match="replace=True") as caught:
                await chat.append([user("v2", "m"), user("new", f"n{step}")])
            assert caught.value.ids == ("m",)
            assert len(await chat.history()) == 2 + 60 * step
            assert (await chat.append(user("v1", "m"))).duplicate
            if not step:
                await chat.append([user(f"question {n} about towns") for n in range(60)])
                await chat.settle()
        assert texts(await chat.get_messages())[:1] != ["v1"], "it left the buffer"


async def test_two_messages_of_one_id_in_a_batch_are_refused() -> None:
    async with Runtime.in_memory() as runtime:
        chat = runtime.session("ann", "one")
        for second in ("A", "B"):
            with pytest.raises(InvalidMessage, match="message 1 has the id 'd'") as caught:
                await chat.append([user("A", "d"), user(second, "d")])
            assert caught.value.index == 1
            with pytest.raises(InvalidMessage, match="'d'"):
                await chat.append([user("A", "d"), user(second, "d")], replace=True)
        assert await chat.history() == []
        await chat.append([user("A", "d"), user("B", "d")], allow_duplicates=True)
        assert texts(await chat.history()) == ["A", "B"]


async def test_a_replaced_message_keeps_its_place(tmp_path: Path) -> None:
    """With its number and time, before and after a restart; new ones of the batch are appended."""
    async with Runtime(tmp_path) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append([user("hi", "u"), assistant("The answer is", "a")], key="k")
        (before,) = await chat.get_messages("assistant")
        await chat.append(user("and?"))
        given = [assistant("The answer is 42.", "a"), user("hi", "u"), user("thanks", "t")]
        receipt = await chat.append(given, replace=True)
        assert (receipt.seqs, receipt.ids) == ((2, 1, 4), ("a", "u", "t"))
        assert not receipt.duplicate
        again = await chat.append(given, replace=True)
        assert (again.seqs, again.duplicate) == ((2, 1, 4), True)
        context = await chat.load()
        assert texts(await chat.history()) == ["hi", "The answer is 42.", "and?", "thanks"]
    async with Runtime(tmp_path) as runtime:
        chat = runtime.session("ann", "one")
        found = await chat.history()
        assert texts(found) == ["hi", "The answer is 42.", "and?", "thanks"]
        assert (found[1].seq, found[1].created_at) == (before.seq, before.created_at)
        assert (await chat.load()).messages == context.messages
        assert (await chat.load()).tokens == context.tokens
        with pytest.raises(IdConflict):  # the first append, sent again
            await chat.append([user("hi", "u"), assistant("The answer", "a")])


async def test_what_cannot_be_replaced() -> None:
    async with Runtime.in_memory() as runtime:
        chat = runtime.session("ann", "one")
        await chat.append(user("hi", "u"))
        with pytest.raises(IdConflict, match="role"):
            await chat.append(assistant("hi", "u"), replace=True)
        with pytest.raises(InvalidInput, match="not both"):
            await chat.append(user("ho", "u"), replace=True, allow_duplicates=True)
        await chat.delete(["u"])
        assert (await chat.append(user("ho", "u"), replace=True)).seqs == (2,), "it is a new one"
        async with chat.turn(user("question"), key="t") as turn:
            with pytest.raises(IdConflict):
                await turn.reply(assistant("other", "u"))


@pytest.mark.parametrize("indexed", [False, True])
async def test_recall_knows_the_new_content_alone(*, indexed: bool) -> None:
    """Whether the message was indexed or not, its neighbours' words included."""
    async with Runtime.in_memory() as runtime:
        ann = runtime.user("ann")
        chat = ann.session("one")
        await chat.append([user("My car is a red Volvo", "m"), assistant("Noted"), user("Bye")])
        if indexed:
            await chat.flush()
            await chat.settle()
        (first,) = await ann.recall("red Volvo", limit=1)
        assert first.text.endswith("Volvo")
        await chat.append(user("My car is a green Skoda", "m"), replace=True)
        assert not any("Volvo" in one.text for one in await ann.recall("red Volvo"))
        await chat.settle()
        assert not any("Volvo" in one.text for one in await ann.recall("red Volvo"))
        (found, *_) = await ann.recall("which car, a Skoda?")
        assert found.text == "My car is a green Skoda"
        assert "Volvo" not in str((await runtime.session("ann", "two").load("my car")).messages)


async def test_an_extract_is_made_again(tmp_path: Path) -> None:
    async with Runtime(tmp_path, config=FOLDS) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append([user("My car is a red Volvo", "m"), assistant("Noted")])
        for n in range(40):
            await chat.append([user(f"Is it nice in town {n} today?"), assistant(f"Yes, {n}.")])
        await chat.settle()
        assert "red Volvo" in ((await chat.load()).summary or "")
        await chat.append(user("My car is a green Skoda", "m"), replace=True)
        await chat.settle()
        summary = (await chat.load()).summary or ""
        assert "green Skoda" in summary
        assert "Volvo" not in summary


async def test_a_models_summary_is_repaired() -> None:
    """The model is told what the message says now, and that this counts."""
    asked: list[str] = []

    async def model(prompt: str) -> str:
        asked.append(prompt)
        return f"Summary {len(asked)}."

    async with Runtime.in_memory(config=FOLDS, chat_model=model) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append(user("My car is a red Volvo", "m"))
        await chat.append([user(f"Is it nice in town {n} today?") for n in range(40)])
        await chat.settle()
        count = len(asked)
        await chat.append(user("My car is a green Skoda", "m"), replace=True)
        await chat.settle()
        (repair,) = asked[count:]
        assert "green Skoda" in repair
        assert "what they say replaces" in repair
        assert f"Summary {count}." in repair
        assert (await chat.load()).summary == f"Summary {count + 1}."
