"""A reranker's order: which places it changes, what counts as an answer, when it is not asked."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import Memory
from remora.errors import ConfigError, ModelAnswerInvalid, ModelTimeout, ModelUnavailable
from remora.models.breaker import CircuitBreaker
from remora.models.ports import as_reranker
from remora.recall.ranking import Ranking
from remora.recall.reranking import Judgement, Reranking, check_scores, reorder
from remora.results import RerankStatistics
from remora.runtime.clock import SystemClock
from remora.testing import VirtualClock, long_term_row

pytestmark = pytest.mark.anyio
WHEN = datetime(2023, 5, 8, tzinfo=UTC)


def ranking(count: int) -> Ranking:
    """Rows 0, 1, … in this order, with falling scores."""
    said: dict[str, Any] = {"session": "s", "role": "user", "memory_type": "message"}
    rows = [
        long_term_row(str(n), f"text {n}", user="u", seq=n, created_us=n, **said)
        for n in range(count)
    ]
    parts = {"turn": np.linspace(1, 0, count)}
    return Ranking(rows, np.arange(count), 1.0 / (1 + np.arange(count)), parts)


def memory(
    id_: str, text: str = "", *, role: str = "user", speaker: str = "", type_: str = "message"
) -> Memory:
    said = text or f"text {id_}"
    return Memory(said, role, speaker, "s", 1, WHEN, 1.0, {}, 1, id=id_, type=type_)


def ids(ranked: Ranking) -> list[str]:
    return [one.row.id for one in ranked]


# -- the order -------------------------------------------------------------------------------------

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.integers(0, 12), st.dictionaries(st.integers(0, 15).map(str), FINITE), st.booleans())
def test_the_judged_share_their_places(count: int, judged: dict[str, float], big: bool) -> None:
    """Whatever the scores: nothing is lost, others stay, and scores fall as before."""
    if big:
        judged = {id_: score * 1e300 for id_, score in judged.items() if abs(score) < 1e8}
    before = ranking(count)
    after = reorder(before, judged)
    assert sorted(ids(after)) == sorted(ids(before))
    assert after.scores.tolist() == before.scores.tolist()
    for old, new in zip(ids(before), ids(after), strict=True):
        assert (old in judged) == (new in judged)
        assert old == new or old in judged
    given = [one.parts["reranker"] for one in after if "reranker" in one.parts]
    assert given == sorted(given, reverse=True)
    for one in after:
        assert one.parts["turn"] == pytest.approx(1 - int(one.row.id) / max(count - 1, 1))
        assert ("reranker" in one.parts) == (one.row.id in judged)
        assert 0 <= one.parts.get("reranker", 0) <= 1


def test_both_rankings_count() -> None:
    """By `recall.rerank_weight`: the scale of either does not matter; equals keep their order."""
    judged = {"0": -50.0, "1": -40.0, "2": -10.0}
    orders = [ids(reorder(ranking(3), judged, weight)) for weight in (0.0, 0.5, 1.0)]
    assert orders == [["0", "1", "2"], ["0", "2", "1"], ["2", "1", "0"]]
    after = reorder(ranking(5), {"1": 0.5, "2": 0.5, "4": 0.7})
    assert ids(after) == ["0", "4", "1", "3", "2"]
    assert [one.parts.get("reranker") for one in after] == [None, 1.0, 0.0, None, 0.0]
    assert ids(reorder(ranking(3), {"0": 7.0, "1": 7.0, "2": 7.0})) == ["0", "1", "2"]


# -- what counts as an answer ----------------------------------------------------------------------

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.integers()
    | st.just(object())
    | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@given(JUNK, st.integers(0, 4))
def test_any_answer_is_scores_or_an_error(answer: Any, count: int) -> None:
    with suppress(ModelAnswerInvalid):
        scores = check_scores(answer, count, "mine")
        assert scores.shape == (count,)
        assert np.isfinite(scores).all()


@given(st.lists(FINITE, max_size=5), st.sampled_from([list, tuple, np.array]))
def test_numbers_are_an_answer(scores: list[float], kind: Callable[[list[float]], Any]) -> None:
    assert check_scores(kind(scores), len(scores), "mine").tolist() == scores


class Raising:
    """A list of two numbers that raises when it is read."""

    def __init__(self, error: BaseException, *, length: bool) -> None:
        self.error = error
        self.length = length

    def __len__(self) -> int:
        if self.length:
            raise self.error
        return 2

    def __getitem__(self, _: int) -> float:
        raise self.error


def test_what_is_no_answer() -> None:
    answers: tuple[tuple[Any, str], ...] = (
        ([0.1], "1 scores for 2 texts"),
        ([0.1, 0.2, 0.3], "3 scores for 2 texts"),
        ([0.1, math.nan], "not finite"),
        ([math.inf, 0.1], "not finite"),
        ([[0.1], [0.2]], r"shape \(2, 1\) of scores for 2 texts"),
        ([{"index": 0}, {"index": 1}], "no list of numbers but list"),
        (None, "no list of numbers but NoneType"),
        (0.5, "no list of numbers but float"),
        ("ab", "no list of numbers but str"),
        (Raising(LookupError("no length"), length=True), "no list of numbers but Raising"),
    )
    for answer, why in answers:
        with pytest.raises(ModelAnswerInvalid, match=why):
            check_scores(answer, 2, "mine")


# -- asking ----------------------------------------------------------------------------------------


def reranking(
    rank: Callable[..., Any], *, failures: int = 3, clock: Any = None, deadline_s: float = 600.0
) -> Reranking:
    clock = clock or SystemClock()
    breaker = CircuitBreaker(clock, failures=failures, rest_s=30.0)
    return Reranking(as_reranker(rank), clock, breaker, deadline_s=deadline_s)


async def judge(mine: Reranking, query: str, memories: Sequence[Memory]) -> Judgement:
    """Ask it while its tasks run, as in a runtime."""
    judged: list[Judgement] = []
    async with anyio.create_task_group() as tasks:
        mine.start(tasks)
        judged.append(await mine.judge("ann", query, memories))
    return judged[0]


TWO = (memory("a"), memory("b"))


async def test_what_a_reranker_reads() -> None:
    """When, who and what, none of it long."""
    asked: list[Any] = []

    async def rank(query: str, texts: list[str]) -> list[int]:
        asked.extend([query, *texts])
        return [*range(len(texts))]

    judgement = await judge(
        reranking(rank),
        "q" * 9_000,
        [
            memory("a", "I moved.", speaker="Caroline"),
            memory("b", "Where to?", role="assistant"),
            memory("c", "Lives in Lisbon.", type_="fact"),
            memory("d", "x" * 9_000),
        ],
    )
    assert judgement.scores == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert asked[:4] == [
        "q" * 2_000,
        "(8 May 2023) Caroline: I moved.",
        "(8 May 2023) assistant: Where to?",
        "(8 May 2023) Lives in Lisbon.",
    ]
    assert len(asked[4]) == 2_000


async def test_failures_rest_and_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """After failures in a row it is not asked; then one trial decides. Neither says its text, but
    errors of remora do. One memory needs no reranker.
    """
    caplog.set_level(logging.INFO)
    clock = VirtualClock()
    works = False

    def rank(_: str, texts: list[str]) -> list[float]:
        if not works:
            raise ConnectionError(f"cannot read {texts[0]}")
        return [1.0] * len(texts)

    mine = reranking(rank, clock=clock)
    assert (await judge(mine, "q", TWO[:1])).problem == ""
    assert mine.statistics() == RerankStatistics()
    problems = [(await judge(mine, "q", TWO)).problem for _ in range(5)]
    assert problems[0] == "not reranked: the reranker rank failed: ConnectionError"
    assert "is not asked for now" in problems[3]
    assert mine.statistics() == RerankStatistics(calls=3, failures=3, late=0, skipped=2)
    works = True
    await clock.advance(31.0)
    assert (await judge(mine, "q", TWO)).problem == ""
    lines = [record.getMessage() for record in caplog.records if "rerank_" in record.getMessage()]
    events = [line.split()[0] for line in lines]
    assert events == ["event=rerank_failed", "event=rerank_succeeds_again"]
    assert "ConnectionError" in lines[0]
    assert "text a" not in caplog.text

    def refuse(*_: Any) -> Any:
        raise ModelUnavailable("the quota is used up")

    assert "the quota" in (await judge(reranking(refuse), "q", TWO)).problem
    assert "the quota is used up" in caplog.text


async def test_cancellation_passes() -> None:
    """A caller who leaves is not a failure of the reranker."""
    asked = anyio.Event()

    async def rank(*_: Any) -> Any:
        asked.set()
        await anyio.sleep_forever()

    mine = reranking(rank)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(judge, mine, "q", TWO)
        await asked.wait()
        tasks.cancel_scope.cancel()
    assert mine.statistics() == RerankStatistics(calls=1)


class PanicError(BaseException):
    """What an extension module raises."""


async def test_an_answer_may_raise_anything() -> None:
    """When it is read: the caller gets a failure of the reranker, not that."""
    kinds = (asyncio.CancelledError, SystemExit, GeneratorExit, PanicError)
    for kind, length in itertools.product(kinds, (False, True)):
        answer = Raising(kind("which tea"), length=length)

        async def rank(*_: Any, answer: Any = answer) -> Any:
            return answer

        judgement = await judge(reranking(rank), "q", TWO)
        assert judgement.problem == (
            "not reranked: the reranker rank returned no list of numbers but Raising"
        )


async def test_who_ignores_a_cancellation_holds_nobody() -> None:
    """The caller goes on at the deadline, and the reranker alone."""
    released, ended = anyio.Event(), anyio.Event()

    async def rank(_: str, texts: list[str]) -> list[int]:
        for _n in range(10_000):
            with suppress(asyncio.CancelledError):
                await released.wait()
                break
        ended.set()
        return [0] * len(texts)

    mine = reranking(rank, deadline_s=0.01)
    async with anyio.create_task_group() as tasks:
        mine.start(tasks)
        problem = (await mine.judge("ann", "q", TWO)).problem
        assert problem == "not reranked: the reranker rank did not answer within 0.01 s"
        assert not ended.is_set()
        released.set()
        await ended.wait()
    assert mine.statistics() == RerankStatistics(calls=1, failures=1, late=1)


@pytest.mark.parametrize("then", ["waits", "returns", "raises"])
async def test_who_cancels_its_own_task_harms_nobody(then: str) -> None:
    """Not the caller, and not the tasks of the runtime, among which it ran."""
    cancels = True

    async def rank(_: str, texts: list[str]) -> list[int]:
        task = asyncio.current_task()
        if cancels and task is not None:
            task.cancel()
            if then == "waits":
                await anyio.sleep_forever()
            if then == "raises":
                raise ValueError
        return [0] * len(texts)

    mine = reranking(rank)
    async with anyio.create_task_group() as tasks:
        mine.start(tasks)
        problem = (await mine.judge("ann", "q", TWO)).problem
        assert problem.startswith("not reranked: ") == (then != "returns")
        cancels = False
        assert (await mine.judge("ann", "q", TWO)).scores == {"a": 0, "b": 0}
        await anyio.sleep(0)  # a group that was cancelled would raise here


async def test_who_is_cleared_while_it_ranks_is_cleared_again() -> None:
    """It may keep what it read when it ends."""
    kept: list[str] = []
    asked, removed = anyio.Event(), anyio.Event()

    class Keeping:
        async def rank(self, _: str, texts: list[str]) -> list[int]:
            asked.set()
            await removed.wait()
            kept.extend(texts)
            return [0] * len(texts)

        def clear(self) -> None:
            kept.clear()

    keeping: Any = Keeping()
    mine = reranking(keeping)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(judge, mine, "q", TWO)
        await asked.wait()
        mine.note_removal("ann")
        removed.set()
    assert kept == []


def test_a_removal_makes_what_is_watched_void() -> None:
    """Of this user, while it is watched."""
    mine = reranking(lambda _, texts: [0] * len(texts))
    mine.note_removal("ann")
    with mine.watch("ann") as first, mine.watch("ann") as second, mine.watch("bea") as other:
        mine.note_removal("ann")
    with mine.watch("ann") as later:
        pass
    assert [one.void for one in (first, second, other, later)] == [True, True, False, False]


async def test_objects_and_callables_sync_and_async(caplog: pytest.LogCaptureFixture) -> None:
    """One that keeps something is told of each removal; if that fails, the removal goes on."""

    class Sync:
        name = "sync"

        def rank(self, _: str, texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

    class Async:
        async def rank(self, _: str, texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

    async def function(_: str, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    rerankers: list[Any] = [Sync(), Async(), function, Sync().rank]
    for one in rerankers:
        assert await as_reranker(one).rank("q", ["a", "bcd"]) == [1, 3]
    bad: tuple[Any, ...] = (7, "bge", object())
    for one in bad:
        with pytest.raises(ConfigError, match="async rank"):
            as_reranker(one)
    late = ModelTimeout("gateway")

    def timed_out(*_: Any) -> Any:
        raise late

    mine = reranking(timed_out)
    await judge(mine, "q", TWO)
    assert mine.statistics().late == 1
    cleared: list[bool] = []
    for fails, one in itertools.product((False, True), rerankers[:2]):

        def clear(*, fails: bool = fails) -> None:
            cleared.append(fails)
            if fails:
                raise OSError("no")

        one.clear = clear
        reranking(one).note_removal("ann")
        assert ("reranker_not_cleared" in caplog.text) == fails
    assert cleared == [False, False, True, True]
