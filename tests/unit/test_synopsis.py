"""What becomes of a model's answer, and what stands in for it."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.actors.user.messages import SynopsisReady
from remora.errors import ModelAnswerInvalid
from remora.jobs.synopsis import SynopsisHandler, parse_synopsis
from remora.messages import encode_message
from remora.models.breaker import CircuitBreaker
from remora.models.extractive import ExtractiveSummarizer
from remora.results import Job
from remora.runtime.clock import SystemClock
from remora.runtime.jobs import JobAttempt
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey, UserKey
from remora.storage.records import Appended, MemoryItem, Opened, Remembered, SynopsisSpec
from remora.testing import ScriptedChatModel
from remora.tokens import HeuristicCounter, TiktokenCounter
from tests.harness import commit_each

pytestmark = pytest.mark.anyio
KEY = UserKey("ada")
AT_US = 1_700_000_000_000_000


def test_what_an_answer_says() -> None:
    """S2.23, G6: the JSON that was asked for, fenced or amid prose, structured or not; plain prose
    is the identity. Nothing, a refusal, JSON of another shape or cut off fails the attempt rather
    than being kept for a week.
    """
    structured = '{"identity": {"name": "Ada", "likes": ["tea", "rye"], "age": null}, "context": '
    ada = '{"identity": "Ada.", "context": '
    for answer, identity, context in (
        (ada + '"Bees."}', "Ada.", "Bees."),
        (f'```json\n{ada}"Bees."}}\n```', "Ada.", "Bees."),
        (f'Here you are:\n{ada}""}} I hope it helps.', "Ada.", ""),
        (structured + '["bees", "beans"]}', "name: Ada; likes: tea; rye", "bees; beans"),
        ('{"context": "Bees."}', "", "Bees."),
        ('{"identity": null, "context": ""}', "", ""),
        ("Ada likes tea and keeps {three} hives.", "Ada likes tea and keeps {three} hives.", ""),
        ("An emoji cut in half: \ud83d", "An emoji cut in half: \ufffd", ""),
    ):
        assert parse_synopsis(answer) == (identity, context)
    bad: list[Any] = [
        *("", "  \n", None, 7, "[1, 2]", "42"),
        '{"identity": "cut o',
        '{"error": "overloaded"}',
        "I'm sorry, but I can't do that.",
        "[" * 100_000,
        '{"identity": ' + '{"a":' * 900 + "1" + "}" * 901,
    ]
    for answer in bad:
        with pytest.raises(ModelAnswerInvalid):
            parse_synopsis(answer)


def attempt(*, last: bool = False) -> JobAttempt:
    return JobAttempt(
        Job("synopsis-1-1", "synopsis", KEY, SynopsisSpec(1, 1)), last, expedited=False
    )


async def journal_with(memories: list[MemoryItem], messages: list[dict[str, Any]]) -> MemoryJournal:
    journal = MemoryJournal()
    records: list[Any] = [
        Opened(1, "ada", "", 0),
        Remembered(1, tuple(memories), ()),
        Opened(2, "ada", "chat", 0),
    ]
    for seq, message in enumerate(messages, start=1):
        entry, _ = encode_message(
            {**message, "created_at": f"2023-11-14T22:{seq // 60:02}:{seq % 60:02}+00:00"}
        )
        records.append(Appended(2, (entry.with_seq(seq),), None))
    await commit_each(journal, records)
    return journal


def handler(
    journal: MemoryJournal, model: Any = None, *, extract: Any = None, **options: Any
) -> SynopsisHandler:
    counter = options.pop("counter", HeuristicCounter())
    given: dict[str, Any] = {
        "clock": SystemClock(),
        "breaker": CircuitBreaker(SystemClock(), failures=5, rest_s=30),
        "counter": counter,
        "max_tokens": 1_000,
        **options,
    }
    summarizer = extract or ExtractiveSummarizer(counter.count)
    return SynopsisHandler(journal, model, summarizer, **given)


async def written(lane: SynopsisHandler, one: JobAttempt | None = None) -> SynopsisReady:
    message = (await lane(one or attempt())).message
    assert isinstance(message, SynopsisReady)
    return message


def memory(
    n: int, text: str, type_: str = "fact", importance: float = 0.5, agent: str = ""
) -> MemoryItem:
    return MemoryItem(f"m{n}", "", agent, text, type_, importance, AT_US + n, 5)


async def test_the_extract_knows_them_apart() -> None:
    """S2.22, S4.44: without a model, identity is of memories by importance and first-person words,
    context of what was said.
    """
    journal = await journal_with(
        [
            memory(1, "Likes rye bread.", "preference", 0.2),
            memory(2, "Is allergic to nuts.", "fact", 0.9),
            memory(3, "Is planning a trip to Porto.", "context"),
            memory(4, "Was told a secret.", agent="spy"),
        ],
        [
            {"role": "user", "content": "My name is Ada and I live in Lisbon."},
            {"role": "assistant", "content": "The bus to Coimbra leaves at nine on Tuesday."},
            {"role": "tool", "tool_call_id": "c", "content": "tool noise 12345"},
        ],
    )
    result = await written(handler(journal))
    assert result.identity.splitlines()[:2] == ["- Is allergic to nuts.", "- Likes rye bread."]
    assert "I live in Lisbon" in result.identity
    assert "Coimbra" in result.context
    assert "Porto" in result.context
    assert "Porto" not in result.identity
    for text in (result.identity, result.context):
        assert "secret" not in text
        assert "12345" not in text
    assert (result.degraded, result.model) == (False, "extractive")


async def test_one_call_for_both_parts() -> None:
    """S2.23, S2.24: one request; the prompt is the application's own if it gave one; what is asked
    for is bounded. Without a word or a memory there is nothing to ask a model about.
    """
    journal = await journal_with([memory(1, "Likes rye bread.")], [])
    model = ScriptedChatModel(['{"identity": "Ada.", "context": "Bread."}'])
    result = await written(handler(journal, model, prompt="Write of them in Latin.", max_tokens=77))
    assert (result.identity, result.context) == ("Ada.", "Bread.")
    assert (result.degraded, result.model) == (False, "scripted")
    (request,) = model.requests
    assert request[0]["content"].startswith("Write of them in Latin.")
    assert "77 tokens" in request[0]["content"]
    nothing = await written(handler(await journal_with([], []), ScriptedChatModel([])))
    assert (nothing.identity, nothing.context, nothing.tokens) == ("", "", (0, 0))
    assert not nothing.degraded


async def test_the_newest_are_shown() -> None:
    """S2.23, G10: of many sessions and many messages, the newest; the prompt does not grow with
    what was ever said.
    """
    texts = [f"Message number {n} " + "x" * 2_000 for n in range(400)]
    journal = await journal_with(
        [memory(n, f"Memory {n} " + "y" * 2_000, importance=n / 300) for n in range(300)],
        [{"role": "user", "content": text} for text in texts],
    )
    model = ScriptedChatModel(['{"identity": "Ada."}'])
    await written(handler(journal, model))
    lines = [
        line for line in str(model.requests[0][1]["content"]).splitlines() if line.startswith("{")
    ]
    said = [msgspec.json.decode(line)["text"] for line in lines]
    assert said[0].startswith("Memory 299 ")
    assert said[-1].startswith("Message number 399 ")
    assert len(said) == 260
    assert max(map(len, said)) <= 600
    assert SessionKey("ada", "chat") == (await journal.sessions("ada"))[0].key


@pytest.mark.parametrize("broken", ["journal", "extract"])
async def test_the_last_attempt_comes_to_something(broken: str) -> None:
    """G6: whatever breaks, the last attempt ends the job, marked; an earlier one is tried again."""
    journal: Any = await journal_with([], [{"role": "user", "content": "My name is Ada."}])
    extract: Any = ExtractiveSummarizer(HeuristicCounter().count)

    async def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError(broken)

    if broken == "journal":
        journal.memories = fails
    else:
        extract.summarize = fails
    lane = handler(journal, extract=extract)
    with pytest.raises(ZeroDivisionError):
        await written(lane)
    result = await written(lane, attempt(last=True))
    assert (result.identity, result.context, result.degraded) == ("", "", True)


COUNTERS: dict[str, Any] = {
    "heuristic": HeuristicCounter(),
    "tiktoken": TiktokenCounter("cl100k_base"),
}
words = st.text("abc é漢 \n", max_size=400).map(lambda text: text * 3)


@given(words, words, st.integers(1, 120), st.sampled_from(sorted(COUNTERS)))
def test_both_parts_are_within_the_bound(identity: str, context: str, most: int, name: str) -> None:
    """S2.26: whatever a model answers, both parts together take at most `max_tokens`; what fits is
    left as it is.
    """
    counter = COUNTERS[name]
    identity, context = identity.strip(), context.strip()
    answer = msgspec.json.encode({"identity": identity, "context": context}).decode()

    async def run() -> SynopsisReady:
        journal = await journal_with([memory(1, "Likes rye bread.")], [])
        model = ScriptedChatModel([answer])
        return await written(handler(journal, model, max_tokens=most, counter=counter))

    result = anyio.run(run)
    parts = result.identity, result.context
    assert sum(counter.count(text) for text in parts if text) == sum(result.tokens) <= most
    if sum(counter.count(text) for text in (identity, context) if text) <= most:
        assert parts == (identity, context)


async def test_a_wordy_model_is_cut() -> None:
    """S2.26: an answer of 20 000 words leaves at most 1 000 tokens, with something of both parts."""  # noqa: E501
    journal = await journal_with([memory(1, "Likes rye bread.")], [])
    answer = msgspec.json.encode(
        {"identity": "tea " * 10_000, "context": "bees " * 10_000}
    ).decode()
    counter = COUNTERS["tiktoken"]
    result = await written(handler(journal, ScriptedChatModel([answer]), counter=counter))
    assert 900 < counter.count(result.identity) + counter.count(result.context) <= 1_000
    assert min(result.tokens) > 400
