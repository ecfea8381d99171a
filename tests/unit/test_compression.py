"""Compression without a model: shorter, within the budget, each its own way, and measured."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, cast

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import Line, Summarizer
from remora.errors import ModelAnswerInvalid, ModelUnavailable
from remora.models.compression import CompressionMeter, LeadSummarizer, TailSummarizer, prepare
from remora.models.extractive import ExtractiveSummarizer, MostRelevant, Vectors, plain_words
from remora.results import CompressionStatistics
from tests.harness import COUNTER

pytestmark = pytest.mark.anyio

START = 1_683_504_000_000_000  # 8 May 2023
BYTES = COUNTER.count


def words(text: str) -> int:
    return len(text.split())


def line(text: str, speaker: str = "Ann", day: int = 0) -> Line:
    return Line("user", speaker, text, START + day * 86_400_000_000)


def conversation(length: int = 120) -> list[Line]:
    places = ["Lisbon", "Porto", "Braga", "Faro", "Evora"]
    return [
        line(
            f"Turn {i} it is. By the way, my cousin number {i} moved to {places[i % 5]} on the "
            f"{i % 28 + 1}th of May "
            f"and keeps {i} bees there. And that is all that I can think of just now, so let us "
            "go on.",
            "Ann" if i % 2 else "Bob",
            day=i,
        )
        for i in range(length)
    ]


SUMMARIZERS: list[Callable[[Callable[[str], int]], Summarizer]] = [
    ExtractiveSummarizer,
    LeadSummarizer,
    TailSummarizer,
]


async def test_strategies_keep_different_things() -> None:
    """S4.34: each strategy compresses a long conversation to a part of its tokens, and the meter
    says to what part. What one keeps another does not; together they keep more than any one.
    """
    kept = {}
    told = "\n".join(f"{one.speaker}: {one.text}" for one in conversation())
    for make in SUMMARIZERS:
        meter = CompressionMeter(make(BYTES), BYTES)
        text = await meter.summarize(None, conversation(), max_tokens=800)
        assert meter.statistics() == CompressionStatistics(1, 0, BYTES(told), BYTES(text))
        assert 0.05 < meter.statistics().ratio < 0.2
        # the extractive one adds up lines; whoever calls it cuts
        assert BYTES(text) <= 800 or meter.name == "extractive"
        kept[meter.name] = {
            (i, part)
            for i in range(120)
            for part in (f"Turn {i} it", f"cousin number {i} moved", f"keeps {i} bees")
            if part in text
        }
    together = set().union(*kept.values())
    assert set(kept) == {"extractive", "lead", "tail"}
    for mine in kept.values():
        assert mine
        assert mine < together
    assert {i for i, _ in kept["tail"]} < {i for i, _ in kept["lead"]}


async def test_lead_keeps_the_course() -> None:
    """S4.34: the first sentence of each message with its day and speaker, after the previous
    summary, oldest dropped first.
    """
    lead = LeadSummarizer(words)
    lines = [
        line("I moved. To Lisbon, in fact."),
        line("  "),
        line("Really?\nWhen was that?", "Bob", 1),
        line("x" * 5000, day=2),
    ]
    text = await lead.summarize("- 7 May 2023, Bob: Hello.", lines, max_tokens=100)
    assert text.splitlines() == [
        "- 7 May 2023, Bob: Hello.",
        "- 8 May 2023, Ann: I moved.",
        "- 9 May 2023, Bob: Really?",
        f"- 10 May 2023, Ann: {'x' * 599}…",
    ]
    short = await lead.summarize(None, conversation(), max_tokens=30)
    told = [one.split(": ")[1] for one in short.splitlines()]
    assert told == [f"Turn {n} it is." for n in (117, 118, 119)]


async def test_tail_keeps_the_end() -> None:
    """S4.34: the last messages, verbatim; a last one that is too long by itself keeps its end."""
    tail = TailSummarizer(words)
    lines = [line("one two three"), line("four\nfive", "Bob"), line("six seven")]
    end = "Bob: four\n  five\nAnn: six seven"
    for previous, said, most, kept in (
        ("before", lines, 11, f"before\nAnn: one two three\n{end}"),
        ("before", lines, 10, f"before\n{end}"),
        (None, lines, 5, "Ann: six seven"),
        (None, [line("a b c d e f g h i j")], 5, "Ann: … h i j"),
    ):
        assert await tail.summarize(previous, said, max_tokens=most) == kept


@pytest.mark.parametrize("make", [LeadSummarizer, TailSummarizer])
async def test_the_previous_summary_is_carried_on(
    make: Callable[[Callable[[str], int]], Summarizer],
) -> None:
    """S4.34: whole where it fits; else its newest lines, in a third of the budget at least; alone
    when nothing was said.
    """
    summarizer = make(words)
    long = "\n".join(f"- fact {i}" for i in range(100))
    assert (
        await summarizer.summarize("Her name is Ann.", conversation(), max_tokens=60)
    ).startswith("Her name is Ann.\n")
    text = await summarizer.summarize(long, conversation(), max_tokens=90)
    carried = [one for one in text.splitlines() if one.startswith("- fact")]
    assert carried == [f"- fact {i}" for i in range(90, 100)]
    assert "Turn 119 it is." in text
    roomy = await summarizer.summarize(long, [line("Yes, so it is.")], max_tokens=90)
    assert len(roomy.splitlines()) > 25
    assert await summarizer.summarize(long, [], max_tokens=300) == long
    assert await summarizer.summarize(long, [], max_tokens=6) == "- fact 98\n- fact 99"
    assert await summarizer.summarize(None, [], max_tokens=6) == ""


async def test_folding_again_and_again() -> None:
    """S4.34: a summary of summaries stays within the budget, and what was said last is in it."""
    for make in (LeadSummarizer, TailSummarizer):
        meter, previous = CompressionMeter(make(BYTES), BYTES), None
        for start in range(0, 120, 10):
            previous = await meter.summarize(
                previous, conversation()[start : start + 10], max_tokens=300
            )
            assert BYTES(previous) <= 300
            assert f"Turn {start + 9} it is" in previous
        assert meter.statistics().calls == 12
        assert meter.statistics().ratio < 1


class Failing:
    name = "failing"

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        if previous is None:
            return cast("str", None)
        raise ModelUnavailable("down")


async def test_failures_are_counted_and_raised() -> None:
    """S4.34: a failure comes through as it is, and does not enter the ratio; an answer that is no
    text is one, with an error of the tree.
    """
    meter = CompressionMeter(Failing(), words)
    assert meter.name == "failing"
    with pytest.raises(ModelUnavailable, match="down"):
        await meter.summarize("previous", [line("one")], max_tokens=10)
    with pytest.raises(ModelAnswerInvalid, match="failing returned no text"):
        await meter.summarize(None, [line("one")], max_tokens=10)
    failed = CompressionStatistics(calls=2, failures=2, tokens_in=0, tokens_out=0)
    assert meter.statistics() == failed
    assert meter.statistics().ratio == 1.0


texts = st.text(max_size=40) | st.lists(
    st.sampled_from(["word.", "a b", "漢字", "\n", "Hello? ", "x" * 50]), max_size=8
).map(" ".join)
lines_strategy = st.lists(
    st.builds(line, texts, st.sampled_from(["Ann", "Bob: B"]), st.integers(0, 400)), max_size=8
)


@given(
    st.sampled_from([LeadSummarizer, TailSummarizer]),
    st.none() | texts,
    lines_strategy,
    st.integers(1, 120),
    st.sampled_from([words, BYTES, len]),
)
def test_never_over_the_budget(
    make: Any, previous: str | None, lines: list[Line], max_tokens: int, count: Any
) -> None:
    """S4.34, G9: whatever was said, the summary is within its budget by the given counter."""
    text = anyio.run(
        functools.partial(make(count).summarize, previous, lines, max_tokens=max_tokens)
    )
    assert count(text) <= max_tokens


@pytest.mark.parametrize("text", ["\"'" * 20_000, "a word " * 6_000, "line\n" * 9_000])
async def test_long_texts_are_cut_into_sentences_piece_by_piece(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sentencex takes time with the square of some texts, and stops all threads for it."""
    pieces: list[str] = []

    def segment(language: str, piece: str) -> list[str]:
        pieces.append(piece)
        return [piece]

    monkeypatch.setattr("sentencex.segment", segment)
    summarizer = ExtractiveSummarizer(COUNTER.count)
    await summarizer.summarize(None, [Line("user", "User", text, 0)], max_tokens=200)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 4_000


class _Said(NamedTuple):
    """A sentence as it is compared: its words and their weights, its score, and its length."""

    score: float
    vector: dict[str, float]
    length: int = 1


def _compare(sentences: Sequence[_Said]) -> MostRelevant:
    words = [ord(word) for one in sentences for word in one.vector]
    weights = [weight for one in sentences for weight in one.vector.values()]
    sizes = [len(one.vector) for one in sentences]
    return MostRelevant(
        np.array([one.score for one in sentences]),
        np.array([one.length for one in sentences]),
        Vectors(np.array(words, np.intp), np.array(weights), np.array(sizes, np.intp)),
    )


def _assert_most_relevant(sentences: Sequence[_Said], found: Sequence[int]) -> None:
    """Each was the best of what was left: maximal marginal relevance, each cosine by itself."""
    top = max(one.score for one in sentences)
    assert sorted(found) == list(range(len(sentences)))
    for number, place in enumerate(found):
        chosen = [sentences[one] for one in found[:number]]

        def worth(place: int, chosen: list[_Said] = chosen) -> float:
            one = sentences[place]
            near = [
                sum(value * one.vector.get(word, 0.0) for word, value in other.vector.items())
                for other in chosen
            ]
            return 0.8 * one.score / top - 0.2 * max(near, default=0.0)

        # of equals any may be the first: sums in another order round otherwise
        assert worth(place) == pytest.approx(max(map(worth, found[number:])), abs=1e-9)


@given(st.data())
def test_what_is_said_already_comes_later(data: st.DataObject) -> None:
    """The candidates of an extract come in the order of maximal marginal relevance."""
    eighths = st.integers(1, 16).map(lambda number: number / 8)
    vectors = st.dictionaries(st.sampled_from("abcdef"), eighths, min_size=1)
    drawn = data.draw(st.lists(st.tuples(eighths, vectors), min_size=1, max_size=12))
    sentences = [_Said(score, vector) for score, vector in drawn]
    kept = data.draw(st.sets(st.sampled_from(range(len(sentences)))))
    candidates = _compare(sentences)
    taken = []
    while (one := candidates.take_best()) is not None:
        taken.append(one)
        if one in kept:
            candidates.choose(one)
    assert sorted(taken) == list(range(len(sentences)))
    everything = _compare(sentences)
    by_score = sorted(range(len(sentences)), key=lambda place: -sentences[place].score)
    assert everything.ranking == by_score
    while (one := everything.take_best()) is not None:
        everything.choose(one)
    found = everything.chosen
    _assert_most_relevant(sentences, found)
    everything.restart()
    assert not everything.chosen
    while (one := everything.take_best()) is not None:
        everything.choose(one)
    assert everything.chosen == found


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12),
    st.lists(st.integers(0, 10), max_size=20),
)
def test_what_is_too_long_may_fit_later(drawn: list[tuple[int, int]], bounds: list[int]) -> None:
    """Of the candidates that were not taken, the best of at most so many characters is taken."""
    sentences = [_Said(score, {"a": 1.0}, length) for score, length in drawn]
    candidates, left = _compare(sentences), [*range(len(sentences))]
    for most in bounds:
        fitting = [place for place in left if sentences[place].length <= most]
        best = max(fitting, key=lambda place: sentences[place].score, default=None)
        assert candidates.take_best(most) == best
        left = [place for place in left if place != best]


def _weigh_by_definition(texts: Sequence[str]) -> tuple[list[float], list[dict[str, float]]]:
    """Scores and vectors, each by itself; of a text without words, 0 and none."""
    said = [[word for word in plain_words(text) if word not in STOP_WORDS] for text in texts]
    compared = sum(1 for one in said if one)
    scores, vectors = [], []
    for text, own in zip(texts, said, strict=True):
        idf = {word: math.log(1 + compared / sum(word in other for other in said)) for word in own}
        weights = {word: idf[word] * own.count(word) for word in idf}
        length = math.sqrt(sum(weight**2 for weight in weights.values())) or 1.0
        vectors.append({word: weight / length for word, weight in weights.items()})
        score = sum(idf.values()) / math.sqrt(len(own) or 1)
        every = {*plain_words(text)}
        score *= 1.25 if every & {"i", "we"} else 1
        score *= 1.2 if "monday" in every or re.search("[0-9]", text) else 1
        score *= 1.08 ** min(len(re.findall("(?<=[a-z,;] )[A-Z][A-Za-z]+", text)), 4)
        scores.append(score * (0.5 if text.endswith("?") else 1))
    return scores, vectors


STOP_WORDS = frozenset({"i", "the", "and", "we"})
VOCABULARY = ["I", "the", "and", "We", "Monday", "Porto", "ferry", *map("word{}".format, range(30))]


@given(st.randoms(use_true_random=False), st.floats(0.05, 1.0), st.booleans())
def test_an_extract_is_what_its_definition_says(
    random: Random, share: float, missing: bool
) -> None:
    """The sentences with the rarest words and the most signs of facts, and none like another."""
    texts = []
    words_used = random.sample(VOCABULARY, random.randint(1, len(VOCABULARY)))
    for _ in range(random.randint(1, 25)):
        said = random.choices(words_used, range(len(words_used), 0, -1), k=random.randint(1, 12))
        said += [str(random.randint(1, 9))] if random.random() < 0.2 else []
        said = ["and", "the"] if random.random() < 0.1 else said
        texts.append(" ".join(said) + random.choice(".!?"))
    summarizer = ExtractiveSummarizer(len)  # a token is a character, so what fits is known
    lines = [line(text, day=day) for day, text in enumerate(texts)]
    every = summarizer.extract(None, lines, 100_000).splitlines()
    costs = [len(one) + 1 for one in every]
    left = sum(costs) - 1 if missing else int(sum(costs) * share)
    found = [every.index(one) for one in summarizer.extract(None, lines, left).splitlines()]
    assert found == sorted(found)
    if left == sum(costs):
        assert found == [*range(len(texts))]
        return
    scores, vectors = _weigh_by_definition(texts)
    chosen: list[int] = []

    def worth(place: int) -> float:
        near = [
            sum(weight * vectors[place].get(word, 0.0) for word, weight in vectors[other].items())
            for other in chosen
        ]
        return 0.8 * scores[place] / max(scores) - 0.2 * max(near, default=0.0)

    while fitting := [
        place
        for place in range(len(texts))
        if vectors[place] and place not in chosen and costs[place] <= left
    ]:
        best = max(map(worth, fitting)) - 1e-9  # sums in another order differ in the last digit
        chosen.append(next(p for p in fitting if worth(p) >= best and p in found))
        left -= costs[chosen[-1]]
    assert sorted(chosen) == found


def test_extracts_at_the_edges() -> None:
    """Of very many sentences the 2,000 best are compared with each other, and the others never
    come. A long one is cut, and then it may have nothing to compare it by.
    """
    lines = [line(f"The ferry came to Porto, and word{n} was late.") for n in range(2_500)]
    summarizer = ExtractiveSummarizer(lambda text: text.count("\n"))
    assert len(summarizer.extract(None, lines, 2_500).splitlines()) == 2_500
    assert len(summarizer.extract(None, lines, 2_499).splitlines()) == 2_000
    found = ExtractiveSummarizer(len).extract(None, [line("so " * 300 + "Porto.")], 700)
    assert found.startswith("- 8 May 2023, Ann: so so so")
    assert found.endswith("so…")


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_words_of_plain_text(text: str) -> None:
    """The short way to the words of ASCII text finds those that a pattern finds."""
    assert plain_words(text) == re.findall(r"[^\W_]+", text.lower())


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=5))
async def test_sizes_of_one_summary(sizes: list[int]) -> None:
    """An extract that is prepared is the same for each size, in any order of sizes."""
    summarizer = ExtractiveSummarizer(words)
    lines = [*conversation(40), line("word " * 400)]  # whole only where all of it fits
    summarize = prepare(CompressionMeter(summarizer, words), "- Ann: Earlier it rained.", lines)
    for most in sizes:
        alone = summarizer.extract("- Ann: Earlier it rained.", lines, most)
        assert await summarize(most) == alone
