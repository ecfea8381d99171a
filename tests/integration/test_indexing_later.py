"""What waits to be indexed: it is recalled, whoever searches and whatever embeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora import Config, Runtime
from remora.testing import HashEmbedder
from tests.harness import user
from tests.patience import until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("recall", [{"hot_rows": 20}, {"hot_mb": 0}, {}], ids=["many", "store", ""])
async def test_words_that_only_unindexed_messages_have(
    tmp_path: Path, recall: dict[str, int]
) -> None:
    """Of a user who is searched in the store as well, whose rows have none of these words."""
    config = Config.from_dict({"recall": recall, "long_term": {"batch_ms": 1}})
    async with Runtime(tmp_path / "memory", config=config) as runtime:
        alice = runtime.user("alice")
        talk = [user(f"We spoke of the weather in Porto, day {n}.") for n in range(60)]
        await alice.session("before").append(talk)
        await alice.session("before").flush()
        await runtime.settle()
        said = [user(f"The invoice is called QX{n}ZV.") for n in range(12)]
        await alice.session("now").append(said)
        for number in range(12):
            (first, *_) = await alice.recall(f"QX{number}ZV", limit=3)
            assert f"QX{number}ZV." in first.text
        await alice.session("now").flush()
        await runtime.settle()
        for number in range(12):
            (first, *_) = await alice.recall(f"QX{number}ZV", limit=3)
            assert f"QX{number}ZV." in first.text


async def test_what_would_not_be_recalled_does_not_wait(tmp_path: Path) -> None:
    """Where only what is indexed is searched, messages that left a buffer are indexed at once, also
    while others write without a pause.
    """
    settings = {
        "buffer": {"token_limit": 200},
        "recall": {"unindexed_rows": 0},
        "long_term": {"gather_s": 3_600},
    }
    async with Runtime(tmp_path / "memory", config=Config.from_dict(settings)) as runtime:
        said = [user(f"Alice's sentence {n}, of several words more.") for n in range(40)]
        await runtime.session("alice", "chat").append(said)

        async def indexed() -> bool:
            await runtime.user("bob").state.set("colour", "blue")
            return (await runtime.user("alice").stats()).long_term_rows > 0

        await until(indexed, "some of them are indexed")


class Computing(HashEmbedder):
    """An application's embedder, with an attribute that remora's own has."""

    compute = "cuda:0"


async def test_an_embedder_of_the_application_is_called_as_it_says(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "memory", embedder=Computing()) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append([user(f"Sentence {n} of a longer text. " * 20) for n in range(40)])
        await chat.flush()
        await runtime.settle()
        assert (await runtime.user("alice").stats()).long_term_rows == 40


@pytest.mark.parametrize("gather_s", [0, 0.01, 3_600])
async def test_jobs_that_are_gathered_are_there_after_a_restart(
    tmp_path: Path, gather_s: float
) -> None:
    """Each message is indexed once, though the runtime closes while its job waits."""
    settings = {"buffer": {"token_limit": 400}, "long_term": {"gather_s": gather_s}}
    config = Config.from_dict(settings)
    for part in range(3):
        async with Runtime(tmp_path / "memory", config=config) as runtime:
            said = [user(f"Message {part}-{n}, of some more words.") for n in range(50)]
            for message in said:
                await runtime.session("alice", "chat").append(message)
    async with Runtime(tmp_path / "memory", config=config) as runtime:
        await runtime.session("alice", "chat").flush()
        await runtime.settle()
        assert (await runtime.user("alice").stats()).long_term_rows == 150
