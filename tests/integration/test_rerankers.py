"""A reranker over the real stores: what it changes, and that nothing it does costs a context."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Config, Runtime, User
from remora.config import ModelConfig
from remora.errors import ConfigError, ErasureInProgress, ModelAnswerInvalid, ModelUnavailable
from remora.models.http_reranker import HttpReranker
from remora.testing import HashEmbedder
from tests import facts
from tests.endpoints import Answer, Endpoint, started_endpoint
from tests.programs import run_command

# blocking: at the first use here, numpy may be imported by two threads at once
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
COUNT = 12


def config(**recall: Any) -> Config:
    return Config.from_dict(
        {
            "long_term": {"batch_ms": 1},
            "journal": {"durability": "process"},
            "tokens": {"counter": "heuristic"},
            "recall": {"deadline_s": 600.0, "rerank_deadline_s": 300.0, **recall},
        }
    )


class Favourite:
    """Likes texts with one word, and remembers what it was asked."""

    name = "favourite"

    def __init__(self, word: str) -> None:
        self.word = word
        self.asked: list[tuple[str, list[str]]] = []
        self.fails = False

    async def rank(self, query: str, texts: list[str]) -> list[float]:
        self.asked.append((query, texts))
        if self.fails:
            raise ModelUnavailable("away")
        return [float(self.word in text) for text in texts]


def open_at(path: Path, reranker: Any, *, settings: Config | None = None, **more: Any) -> Runtime:
    return Runtime(
        path, config=settings or config(), embedder=HashEmbedder(), reranker=reranker, **more
    )


async def talk(user: User, *, indexed: bool = True) -> None:
    chat = user.session("then")
    await chat.append(
        [{"role": "user", "content": f"I drank tea of sort{n}."} for n in range(COUNT)]
    )
    if indexed:
        await chat.flush()
        await user.settle()


async def recalled(user: User, **options: Any) -> list[str]:
    return [one.text for one in await user.recall("which tea?", **{"limit": 100, **options})]


@pytest.mark.parametrize("indexed", [True, False])
async def test_every_recall_is_reranked(tmp_path: Path, *, indexed: bool) -> None:
    """Recalls, contexts, tools and agents; memory that is indexed and memory that is not."""
    favourite = Favourite("sort7")
    async with open_at(tmp_path, favourite) as runtime:
        ann = runtime.user("ann")
        await talk(ann, indexed=indexed)
        found = await ann.recall("which tea?", limit=100)
        assert found[0].text == "I drank tea of sort7."
        assert found[0].parts["reranker"] == 1.0
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert sorted(one.text for one in found) == sorted(
            f"I drank tea of sort{n}." for n in range(COUNT)
        )
        context = await ann.session("now").load(query="which tea?")
        assert context.memories[0].text == "I drank tea of sort7."
        assert context.sources.long_term.status == "ok"
        assert context.sources.long_term.detail == ""
        many = await ann.recall_many(["tea of which sort?", "a drink?"], limit=1)
        assert [one[0].text for one in many] == ["I drank tea of sort7."] * 2
        answer = await ann.tools().call("recall_from_memory", {"keywords": ["tea"]})
        assert re.findall(r"sort\d+", str(answer))[0] == "sort7"
        figures = runtime.statistics().reranking
        assert (figures.calls, figures.failures) == (len(favourite.asked), 0)
    assert all(len(texts) == COUNT for _, texts in favourite.asked)


class PanicError(BaseException):
    """What an extension module raises."""


def raising(error: BaseException) -> Callable[..., Any]:
    async def rank(*_: Any) -> Any:
        raise error

    return rank


def answering(answer: Callable[[int], Any]) -> Callable[..., Any]:
    return lambda _, texts: answer(len(texts))


async def hanging(*_: Any) -> Any:
    await anyio.sleep_forever()


BAD = {
    "raises": raising(RuntimeError("no")),
    "panics": raising(PanicError("no")),
    "exits": raising(SystemExit()),
    "cancels": raising(anyio.EndOfStream()),
    "hangs": hanging,
    "nan": answering(lambda n: [math.nan] * n),
    "inf": answering(lambda n: [0.1] * (n - 1) + [math.inf]),
    "short": answering(lambda n: [0.1] * (n - 1)),
    "long": answering(lambda n: [0.1] * (n + 1)),
    "columns": answering(lambda n: [[0.1]] * n),
    "words": answering(lambda n: ["good"] * n),
    "nothing": answering(lambda _: None),
}


async def test_a_bad_reranker_changes_nothing(tmp_path: Path) -> None:
    """Contexts and recalls have the fused order; sources and figures say that it failed."""
    async with open_at(tmp_path, None) as runtime:
        await talk(runtime.user("ann"))
        expected = await recalled(runtime.user("ann"))
        shown = (await runtime.session("ann", "now").load(query="which tea?")).messages
    for kind, rank in BAD.items():
        settings = config(rerank_deadline_s=0.02) if kind == "hangs" else config()
        async with open_at(tmp_path, rank, settings=settings) as runtime:
            ann = runtime.user("ann")
            await runtime.ready()
            context = await ann.session("now").load(query="which tea?")
            assert context.messages == shown, kind
            source = context.sources.long_term
            assert source.status == "degraded", kind
            assert source.count == len(context.memories) > 0, kind
            assert source.detail.startswith("not reranked: "), kind
            for _ in range(7):  # the breaker opens after 5 calls without an answer
                assert await recalled(ann) == expected, kind
            figures = runtime.statistics().reranking
            answers = kind != "hangs"
            assert figures.calls == figures.failures == (8 if answers else 5), kind
            assert figures.skipped == (0 if answers else 3), kind
            assert figures.late == (5 if kind == "hangs" else 0), kind


async def test_what_is_forgotten_at_the_same_time(tmp_path: Path) -> None:
    """Neither a recall that waits for its reranker nor a held result has what was forgotten."""
    asked, go_on = anyio.Event(), anyio.Event()

    async def rank(_: str, texts: list[str]) -> list[int]:
        asked.set()
        await go_on.wait()
        return [*range(len(texts))]

    found: list[Any] = []
    async with open_at(tmp_path, rank) as runtime:
        ann = runtime.user("ann")
        await talk(ann)
        await ann.remember("Likes tea of sort99")
        await ann.settle()

        async def recall() -> None:
            try:
                found.append(await recalled(ann))
            except ErasureInProgress:
                found.append([])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recall)
            await asked.wait()
            await ann.session("then").forget()
            go_on.set()
        assert found in ([["Likes tea of sort99"]], [[]])
        assert await recalled(ann) == ["Likes tea of sort99"]
        await ann.forget()
        assert await recalled(ann) == []


async def test_what_was_deleted_or_redacted_is_not_judged(tmp_path: Path) -> None:
    """A reranker may be somebody else's: it reads what a recall would return, no more."""
    favourite = Favourite("tea")

    def redact(text: str) -> str:
        return text.replace("4711", "[number]")

    async with open_at(tmp_path, favourite, redact_long_term=redact) as runtime:
        ann = runtime.user("ann")
        await ann.session("then").append(
            [{"role": "user", "content": f"My card is 4711-{n}, for tea."} for n in range(3)]
        )
        await ann.remember([f"Likes tea of sort{n}" for n in range(3)])
        await ann.settle()
        (gone,) = [one.id for one in await ann.remembered() if "sort1" in one.text]
        await ann.delete([gone])
        await recalled(ann)
        (_, texts) = favourite.asked[-1]
        assert not [one for one in texts if "4711" in one or "sort1" in one]
        assert len(texts) == 5


async def test_facts_that_no_longer_hold_are_not_judged(tmp_path: Path) -> None:
    """What newer facts took the place of, and what rests on messages that are gone."""
    favourite = Favourite("home")
    async with Runtime(
        tmp_path, config=facts.config(), chat_model=facts.FactModel(), reranker=favourite
    ) as runtime:
        ann = runtime.user("ann")
        for name, home in (("one", "Lisbon"), ("two", "Porto")):
            await facts.say(ann.session(name), f"Now home is {home}.")
        await ann.recall("home?")
        (_, texts) = favourite.asked[-1]
        assert {one.partition(") ")[2] for one in texts} == {
            "user: Now home is Lisbon.",
            "user: Now home is Porto.",
            "home is Porto",
        }
        await ann.session("two").forget()
        await ann.recall("home?")
        assert len(favourite.asked) == 2
        assert not [one for one in favourite.asked[-1][1] if "Porto" in one]


async def test_what_was_judged_is_held(tmp_path: Path) -> None:
    """The first of the found are judged; for the same question once, and again after a write or a
    failure.
    """
    favourite = Favourite("sort7")
    async with open_at(tmp_path, favourite) as runtime:
        ann = runtime.user("ann")
        await talk(ann)
        favourite.fails = True
        assert (await recalled(ann))[0] != "I drank tea of sort7."
        favourite.fails = False
        assert (await recalled(ann))[0] == (await recalled(ann, limit=1))[0]
        assert (await recalled(ann))[0] == "I drank tea of sort7."
        assert len(favourite.asked) == 2
        await ann.session("then").append({"role": "user", "content": "More tea of sort7, please."})
        assert "More tea of sort7, please." in (await recalled(ann))[:2]
        assert len(favourite.asked) == 3
    async with open_at(tmp_path, favourite, settings=config(rerank_depth=3)) as runtime:
        assert len(await recalled(runtime.user("ann"))) == COUNT + 1
        assert len(favourite.asked[-1][1]) == 3


async def test_a_reranker_may_recall(tmp_path: Path) -> None:
    """What it recalls is not reranked, so it does not call itself."""
    inner: list[list[str]] = []

    async def rank(_: str, texts: list[str]) -> list[float]:
        inner.append(await recalled(runtime.user("ann"), limit=2))
        return [float("sort7" in text) for text in texts]

    async with open_at(tmp_path, rank) as runtime:
        await talk(runtime.user("ann"))
        assert (await recalled(runtime.user("ann")))[0] == "I drank tea of sort7."
        assert len(inner) == 1
        assert len(inner[0]) == 2


async def test_no_log_has_what_it_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """G13: of an exception that quotes the texts, logs and contexts have the type alone."""
    caplog.set_level(logging.DEBUG)

    def rank(_: str, texts: list[str]) -> Any:
        raise ValueError(f"cannot judge {texts}")

    async with open_at(tmp_path, rank) as runtime:
        await talk(runtime.user("ann"))
        context = await runtime.session("ann", "now").load(query="which tea?")
        assert context.sources.long_term.detail == (
            "not reranked: the reranker rank failed: ValueError"
        )
    assert "ValueError" in caplog.text
    assert "sort" not in caplog.text


# -- over HTTP -------------------------------------------------------------------------------------


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with started_endpoint() as endpoint:
        yield endpoint


def results(*scores: tuple[int, float]) -> Answer:
    found = [
        {"index": n, "relevance_score": score, "document": {"text": "?"}} for n, score in scores
    ]
    return 200, json.dumps({"id": "1", "results": found, "usage": {"total_tokens": 9}}).encode()


async def test_an_endpoint(tmp_path: Path, endpoint: Endpoint) -> None:
    """The request that Cohere and others take, and their answer, best first, in another order."""

    def judge(_: str, body: Any) -> Answer:
        scores = [(n, float("sort7" in text)) for n, text in enumerate(body["documents"])]
        return results(*sorted(scores, key=lambda one: -one[1]))

    endpoint.answer = judge
    tree = {
        "models": {
            "reranker": "http",
            "rerank_url": f"{endpoint.url}/rerank",
            "rerank_model": "bge",
            "rerank_api_key": "sk-rerank",
        },
        "tokens": {"counter": "heuristic"},
        "recall": {"deadline_s": 600.0, "rerank_deadline_s": 300.0},
    }
    async with Runtime(tmp_path, config=Config.from_dict(tree), embedder=HashEmbedder()) as runtime:
        await talk(runtime.user("ann"), indexed=False)
        assert (await recalled(runtime.user("ann")))[0] == "I drank tea of sort7."
        ((path, key, body),) = endpoint.requests
        assert (path, key) == ("/v1/rerank", "Bearer sk-rerank")
        assert {**body, "documents": len(body["documents"])} == {
            "model": "bge",
            "query": "which tea?",
            "documents": COUNT,
            "top_n": COUNT,
        }
        endpoint.answer = lambda *_: (401, b'{"error": "bad key for which tea?"}')
        context = await runtime.session("ann", "now").load(query="what tea?")
        assert context.sources.long_term.detail == (
            f"not reranked: the reranker bge failed: {endpoint.url}/rerank answered 401"
        )


async def test_an_endpoint_that_answers_nonsense(endpoint: Endpoint) -> None:
    reranker = HttpReranker(ModelConfig(rerank_url=endpoint.url))
    for answer, error in (
        ((500, b"busy"), ModelUnavailable),
        ((200, b"<html>proxy</html>"), ModelAnswerInvalid),
        ((200, b"{}"), ModelAnswerInvalid),
        ((200, b'{"results": [{"index": 0, "relevance_score": null}]}'), ModelAnswerInvalid),
        (results((0, 0.5)), ModelAnswerInvalid),
        (results((0, 0.5), (0, 0.4)), ModelAnswerInvalid),
        (results((0, 0.5), (2, 0.4)), ModelAnswerInvalid),
        (results((0, 0.5), (-1, 0.4)), ModelAnswerInvalid),
    ):
        endpoint.answer = lambda *_, answer=answer: answer
        with pytest.raises(error):
            await reranker.rank("q", ["a", "b"])
    await reranker.aclose()


async def test_an_endpoint_may_repeat_the_texts(endpoint: Endpoint) -> None:
    """In ASCII, as many do; an answer that is much larger is refused before it is read."""
    texts = ["\u20ac\u00e9" * 1_000, "\U0001f600" * 2_000]
    found = [
        {"index": n, "relevance_score": 0.5, "document": {"text": text}}
        for n, text in enumerate(texts)
    ]
    endpoint.answer = lambda *_: (200, json.dumps({"results": found}).encode())
    reranker = HttpReranker(ModelConfig(rerank_url=endpoint.url))
    assert await reranker.rank("q", texts) == [0.5, 0.5]
    endpoint.answer = lambda *_: (200, json.dumps({"results": found[:1] * 500}).encode())
    with pytest.raises(ModelAnswerInvalid, match="more than 105000 bytes"):
        await reranker.rank("q", texts)
    endpoint.answer = lambda *_: (200, json.dumps({"results": found}).encode())
    assert await reranker.rank("q", texts) == [0.5, 0.5]
    await reranker.aclose()


def test_the_command_says_that_it_failed(
    tmp_path: Path,
    endpoint: Endpoint,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On stderr, so what is printed stays JSON; the memories are there."""

    async def fill() -> None:
        async with Runtime(tmp_path, config=config()) as runtime:
            await talk(runtime.user("ann"))

    anyio.run(fill)
    monkeypatch.setenv("REMORA_MODELS__RERANKER", "http")
    monkeypatch.setenv("REMORA_MODELS__RERANK_URL", endpoint.url)
    endpoint.answer = lambda *_: (500, b"busy")
    question = ["recall", "ann", "which tea?", "--dir", str(tmp_path), "--json"]
    assert run_command(*question) == 0
    shown = capsys.readouterr()
    assert len([json.loads(line)["text"] for line in shown.out.splitlines()]) == 5
    assert "the reranker failed" in " ".join(shown.err.split())


async def test_a_url_is_needed(tmp_path: Path) -> None:
    for url in ("", "api.jina.ai/v1/rerank", "file:///etc/passwd"):
        tree = {"models": {"reranker": "http", "rerank_url": url}}
        with pytest.raises(ConfigError, match=r"models\.rerank_url"):
            async with Runtime(tmp_path, config=Config.from_dict(tree)):
                pass
