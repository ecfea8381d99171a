"""Have a reranker judge the best of what was found; whatever it does, there is a ranking.

The memories that it judged are ordered by its scores and those of the fusion, each scaled to 0…1.
They share their places and fused scores among themselves, so all others stay where they were, and
what compares scores (`recall.relevance`, working memory) still does. Both count because a reranker
reads each text alone: it does not know that the message before asks what this one answers.

A reranker that raises, hangs, or answers anything but one finite number for each text changes
nothing: the memories keep the fused order, and the caller, the counters and the log say so. After
failures in a row it is not called for a while. Such a result is not held for later recalls.

It is called in a task of the runtime, which is abandoned at the deadline: a reranker that does not
react to its cancellation holds no caller.

A reranker takes its time, in which memories may be removed. Then the search is repeated, so no
recall returns what was removed while its reranker was busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import msgspec

from remora.errors import ModelAnswerInvalid, ModelError, ModelTimeout, ModelUnavailable
from remora.logging import get_logger
from remora.models.breaker import CircuitBreaker, is_away
from remora.models.ports import Reranker
from remora.recall.memory import Memory
from remora.recall.ranking import Ranking
from remora.runtime.clock import Clock
from remora.runtime.guard import call_guarded
from remora.runtime.meters import OutageLog
from remora.runtime.probes import probe
from remora.runtime.shared_call import SharedCall

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

_logger = get_logger(__name__)
_MAX_CHARACTERS = 2_000  # of a query or a text: some 500 tokens, as many as rerankers read
_SHARE_OF_DEADLINE = 0.8  # of the caller's time that is left: what follows takes some, too
_MAX_REASON = 200  # characters of an error's text
_PART = "reranker"  # of `Memory.parts`


class RerankStatistics(msgspec.Struct, frozen=True):
    """Counts of a reranker's calls.

    Attributes:
        calls: recalls for which it was asked.
        failures: calls without a usable answer, late ones included.
        late: calls that missed their deadline.
        skipped: recalls for which it was not asked, because it had failed several times in a row.
    """

    calls: int = 0
    failures: int = 0
    late: int = 0
    skipped: int = 0


class Judgement(msgspec.Struct, frozen=True):
    """The judgement of a reranker.

    Attributes:
        scores: by a memory's id; empty if it failed, or was not asked.
        problem: why it was of no use, for people; empty if it was.
    """

    scores: Mapping[str, float] = {}
    problem: str = ""


class Watched:
    """The result of `Reranking.watch`.

    Attributes:
        void: memories were removed.
    """

    __slots__ = ("void",)

    def __init__(self) -> None:
        self.void = False


class Reranking:
    """Asks a reranker, within its deadline and as long as it works.

    Args:
        reranker: judges texts.
        clock: of the runtime.
        breaker: decides whether it is asked.
        deadline_s: of one call.
    """

    def __init__(
        self, reranker: Reranker, clock: Clock, breaker: CircuitBreaker, *, deadline_s: float
    ) -> None:
        self._reranker = reranker
        self._called = str(getattr(reranker, "name", type(reranker).__qualname__))
        self._name = f"the reranker {self._called}"
        self._clear: Callable[[], object] | None = getattr(reranker, "clear", None)
        self._breaker = breaker
        self._deadline_s = deadline_s
        self._tasks: anyio.abc.TaskGroup | None = None
        self._removals = 0
        self._watched: dict[str, set[Watched]] = {}
        self._asked = self._failures = self._late = self._skipped = 0
        self._outage = OutageLog(
            _logger,
            "rerank_failed",
            ended="rerank_succeeds_again",
            monotonic=clock.monotonic,
            level="warning",
        )

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Call the reranker in this group from now on."""
        self._tasks = tasks

    @contextmanager
    def watch(self, user: str) -> Iterator[Watched]:
        """Learn whether memories of the user are removed while this is open."""
        watched = Watched()
        self._watched.setdefault(user, set()).add(watched)
        try:
            yield watched
        finally:
            self._watched[user].discard(watched)
            if not self._watched[user]:
                del self._watched[user]

    async def judge(self, user: str, query: str, memories: Sequence[Memory]) -> Judgement:
        """Ask the reranker about some memories; fewer than two need none.

        Args:
            user: whose memories they are.
            query: what was asked.
            memories: the best first, as they were found.
        """
        if len(memories) < 2:
            return Judgement()
        if _is_reranking():
            probe("rerank_nested")
            return Judgement()
        if self._breaker.open:
            self._skipped += 1
            return Judgement(
                problem=f"not reranked: {self._name} failed before, and is not asked for now"
            )
        try:
            texts = [_text(one) for one in memories]
            scores = await self._rank(user, query[:_MAX_CHARACTERS], texts)
        except ModelError as e:
            probe("rerank_failed")
            self._failures += 1
            self._late += isinstance(e, ModelTimeout)
            self._outage.fail(e, reranker=self._called)
            return Judgement(problem=f"not reranked: {str(e)[:_MAX_REASON]}")
        self._outage.succeed()
        ids = [one.id for one in memories]
        return Judgement(dict(zip(ids, scores.tolist(), strict=True)))

    def note_removal(self, user: str) -> None:
        """Memories of the user are removed: what is being found and judged now is void.

        A reranker that keeps something of what it read is told to clear it.
        """
        self._removals += 1
        self._clear_kept()
        for watched in self._watched.get(user, ()):
            probe("rerank_void")
            watched.void = True

    def statistics(self) -> RerankStatistics:
        """The counts so far."""
        return RerankStatistics(self._asked, self._failures, self._late, self._skipped)

    @property
    def failing(self) -> bool:
        """Return whether it is not asked for now, because it failed several times in a row."""
        return self._breaker.failing

    def _clear_kept(self) -> None:
        if self._clear is not None:
            try:
                self._clear()
            except Exception as e:  # what it does is the application's
                _logger.warning("reranker_not_cleared", error=type(e).__name__)

    async def _rank(self, user: str, query: str, texts: list[str]) -> npt.NDArray[np.float64]:
        """The scores.

        Raises:
            ModelError: there are none.
        """
        left = anyio.current_effective_deadline() - anyio.current_time()
        timeout_s = min(self._deadline_s, max(left, 0.0) * _SHARE_OF_DEADLINE)
        self._asked += 1
        late = ModelTimeout(f"{self._name} did not answer within {timeout_s:.3g} s")
        scores = None
        try:
            with self._breaker.guard(user):
                with anyio.move_on_after(timeout_s):
                    scores = await self._ask(query, texts)
                if scores is None:
                    raise late if timeout_s == self._deadline_s else _CutShortError
        except _CutShortError:  # it may answer in time when its caller has more
            probe("rerank_cut_short")
        if scores is None:
            raise late
        return scores

    async def _ask(self, query: str, texts: list[str]) -> npt.NDArray[np.float64]:
        """The scores, by a call in a task of the runtime, which ends when the caller leaves."""
        call = SharedCall(partial(self._score, query, texts, self._removals))
        if self._tasks is not None:
            call.start(self._tasks)
        try:
            return await call.result()
        except ModelError:
            raise
        except Exception as e:  # the runtime closes, or the reranker has cancelled its own task
            raise ModelError(f"{self._name} failed: {e}") from e
        finally:
            call.abandon()

    async def _score(self, query: str, texts: list[str], removals: int) -> npt.NDArray[np.float64]:
        try:
            answer = await self._call(query, texts)
            try:
                return await call_guarded(self._check, answer, len(texts))
            except RuntimeError:  # in the place of what is no `Exception`
                raise _unreadable(answer, self._name) from None
        finally:
            if removals != self._removals:  # it may have kept something since it was cleared
                self._clear_kept()

    async def _check(self, answer: object, count: int) -> npt.NDArray[np.float64]:
        return check_scores(answer, count, self._name)

    async def _call(self, query: str, texts: list[str]) -> Any:
        try:
            with _mark_reranking():
                return await call_guarded(self._reranker.rank, query, [*texts])
        except ModelError as e:
            kinds = (ModelTimeout, ModelUnavailable, ModelError)
            kind = next(one for one in kinds if isinstance(e, one))
            raise kind(f"{self._name} failed: {e}") from e
        except Exception as e:  # a plugged-in reranker may raise anything
            kind = ModelUnavailable if is_away(e) else ModelError
            # without its text, which may quote what users said
            raise kind(f"{self._name} failed: {type(e).__name__}") from e


def check_scores(answer: Any, count: int, name: str) -> npt.NDArray[np.float64]:
    """A reranker's answer as `count` finite numbers, shape (count,).

    Raises:
        ModelAnswerInvalid: it is something else.
    """
    import numpy as np  # noqa: PLC0415

    try:
        size = len(answer)  # before a large answer is read
        scores = np.asarray(answer if size == count else (), dtype=np.float64)
    except Exception:  # it may be anything, and so may what its methods raise
        probe("reranker_misshaped")
        raise _unreadable(answer, name) from None
    if scores.shape != (count,):
        probe("reranker_misshaped")
        shape = size if size != count else f"shape {scores.shape} of"
        raise ModelAnswerInvalid(f"{name} returned {shape} scores for {count} texts")
    if not np.isfinite(scores).all():
        probe("reranker_not_finite")
        raise ModelAnswerInvalid(f"{name} returned scores that are not finite")
    return scores


def _unreadable(answer: object, name: str) -> ModelAnswerInvalid:
    return ModelAnswerInvalid(f"{name} returned no list of numbers but {type(answer).__name__}")


def reorder(ranking: Ranking, judged: Mapping[str, float], weight: float = 1.0) -> Ranking:
    """The ranking with the judged rows in another order; equals keep theirs.

    They share the places and the fused scores that they had. `Ranking.parts` says what each was
    given, scaled to 0…1.

    Args:
        ranking: as the fusion made it.
        judged: finite scores by row id.
        weight: what they count, scaled; the fused scores of the judged count the rest of 1.
    """
    import numpy as np  # noqa: PLC0415

    given: dict[int, float] = {}
    for at, place in enumerate(ranking.places.tolist()):
        if len(given) == len(judged):
            break
        score = judged.get(ranking.rows[place].id)
        if score is not None:
            given[at] = score
    if not given:
        return ranking
    before = np.fromiter(given, np.intp, len(given))
    scores = _scale(np.fromiter(given.values(), np.float64, len(given)))
    both = weight * scores + (1 - weight) * _scale(ranking.scores[before])
    order = np.argsort(-both, kind="stable")
    moved = np.arange(len(ranking.places))
    moved[before] = before[order]
    parts = {name: part[moved] for name, part in ranking.parts.items()}
    parts[_PART] = np.full(len(moved), np.nan)
    parts[_PART][before] = scores[order]
    return msgspec.structs.replace(ranking, places=ranking.places[moved], parts=parts)


def _scale(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Min-max; ones where all are equal."""
    import numpy as np  # noqa: PLC0415

    largest = np.abs(scores).max()
    scaled = scores / largest if largest > 0 else scores  # so that no difference is infinite
    low, high = scaled.min(), scaled.max()
    return (scaled - low) / (high - low) if high > low else np.ones(len(scores))


def _text(memory: Memory) -> str:
    """Return what a reranker reads of a memory."""
    when = f"({memory.created_at.day} {memory.created_at:%B %Y})"
    said = f"{memory.speaker or memory.role}: " if memory.type == "message" else ""
    return f"{when} {said}{memory.text[:_MAX_CHARACTERS]}"[:_MAX_CHARACTERS]


class _CutShortError(Exception):
    """The caller's deadline ended a call: this says nothing of the reranker."""


class _Mark:
    """Says of a task, and of those that it starts, that a reranker runs it; until it returns."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


_mark: ContextVar[_Mark | None] = ContextVar("reranking", default=None)


def _is_reranking() -> bool:
    mark = _mark.get()
    return mark is not None and not mark.over


@contextmanager
def _mark_reranking() -> Iterator[None]:
    before, mark = _mark.get(), _Mark()
    _mark.set(mark)
    try:
        yield
    finally:
        mark.over = True
        _mark.set(before)
