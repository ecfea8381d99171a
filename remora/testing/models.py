"""Models for tests: scripted ones, ones that fail or answer garbage, and a perfect summarizer.

A summary of `UnionSummarizer` names every message that it covers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import anyio
import msgspec

from remora.errors import ModelError, ModelUnavailable
from remora.messages import ChatDict
from remora.models.ports import ChatModel, Embedder, Line, Reranker, Summarizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ChatResponse(msgspec.Struct, frozen=True):
    """One scripted answer; `usage` is for callers that count."""

    message: str
    usage: int | None = None


class ScriptedChatModel:
    """Returns the scripted answers in order, then fails.

    Args:
        responses: texts, `ChatResponse` objects, or exceptions to raise.

    Attributes:
        requests: the messages of each call so far.
    """

    name = "scripted"

    def __init__(self, responses: Sequence[str | ChatResponse | Exception]) -> None:
        self._responses = list(responses)
        self.requests: list[list[ChatDict]] = []

    def script(self, *responses: str | ChatResponse | Exception) -> None:
        """Add answers after those that are left."""
        self._responses += responses

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        """The next answer.

        Raises:
            ModelError: the script is exhausted.
        """
        self.requests.append(list(messages))
        if not self._responses:
            raise ModelError("scripted model exhausted responses")
        response = self._responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response.message if isinstance(response, ChatResponse) else response


class HashEmbedder:
    """Feature hashing of words: deterministic, instant, and near for texts that share words.

    Args:
        dimension: length of the vectors.
    """

    def __init__(self, dimension: int = 64) -> None:
        self.name = f"hash-{dimension}"
        self.dimension = dimension

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector per text."""
        import numpy as np  # noqa: PLC0415

        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                digest = int.from_bytes(blake2b(word.encode(), digest_size=8).digest())
                vectors[row, digest % self.dimension] += 1 if digest >> 63 else -1
        return vectors


Answer = TypeVar("Answer")
Inner = TypeVar("Inner")

ModelFault = Literal["fail", "hang", "late", "garbage"]
"""What goes wrong with a call: ``fail``: it raises, an error of remora's or any other.

``hang``: it never returns, until it is cancelled; ``late``: its answer takes very long;
``garbage``: its answer is none.
"""

GARBAGE_TEXTS: tuple[Any, ...] = (
    "",
    " \n\t",
    "and so on and " * 100_000,
    "a" * 1_000_000,
    None,
    42,
    b"bytes",
    ["a", "list"],
    "half an emoji \ud83d and a NUL \0",
)
"""What a chat model or summarizer has been seen to answer, and worse."""

GARBAGE_VECTORS: tuple[Callable[[int, int], Any], ...] = (
    lambda rows, dimension: None,  # noqa: ARG005
    lambda rows, dimension: "vectors",  # noqa: ARG005
    lambda rows, dimension: [[float("nan")] * dimension] * rows,
    lambda rows, dimension: [[float("inf")] * dimension] * rows,
    lambda rows, dimension: [[1e300] * dimension] * rows,
    lambda rows, dimension: [[3e38] * dimension] * rows,
    lambda rows, dimension: [[1.0] * (dimension + 1)] * rows,
    lambda rows, dimension: [[1.0] * dimension] * (rows - 1),
    lambda rows, dimension: [[1.0] * dimension] * (rows + 1),
    lambda rows, dimension: [1.0] * dimension * rows,
    lambda rows, dimension: [[1.0] * (dimension + row % 2) for row in range(rows + 1)],
)
"""What an embedder has been seen to answer for so many texts, and worse.

By rows and dimension that it should have.
"""

GARBAGE_SCORES: tuple[Callable[[int], Any], ...] = (
    lambda texts: None,  # noqa: ARG005
    lambda texts: "scores",  # noqa: ARG005
    lambda texts: 0.5,  # noqa: ARG005
    lambda texts: [float("nan")] * texts,
    lambda texts: [0.1] * (texts - 1) + [float("inf")],
    lambda texts: [0.1] * (texts - 1),
    lambda texts: [0.1] * (texts + 1),
    lambda texts: [[0.1]] * texts,
    lambda texts: [{"index": text, "score": 0.1} for text in range(texts)],
    lambda texts: [10**400] * texts,
)
"""What a reranker has been seen to answer for so many texts, and worse."""


def _failures() -> tuple[Exception, ...]:
    return (
        ModelUnavailable("injected"),
        RuntimeError("injected"),
        KeyError("choices"),
        TimeoutError(),
    )


class _Faulty(Generic[Inner]):
    """One model of any kind.

    Args:
        inner: what answers otherwise.
        fault: asked once before each call what is to go wrong with it; None for nothing.
        latency_s: asked before each call how long it takes.
        late_s: how long an answer that is late takes on top.
        garbage: what garbage is drawn from.
        rng: draws the garbage, and what a call fails with.
    """

    _garbage: Sequence[Any] = GARBAGE_TEXTS

    def __init__(
        self,
        inner: Inner,
        fault: Callable[[], ModelFault | None],
        *,
        latency_s: Callable[[], float] = lambda: 0.0,
        late_s: float = 90.0,
        garbage: Sequence[Any] = (),
        rng: random.Random | None = None,
    ) -> None:
        self.inner = inner
        self.name = str(getattr(inner, "name", type(inner).__name__))
        self._fault = fault
        self._latency_s = latency_s
        self._late_s = late_s
        self._garbage = garbage or self._garbage
        self._rng = rng or random.Random(0)

    async def _answer(
        self, ask: Callable[[], Awaitable[Answer]], garbage: Callable[[Any], Any] = lambda one: one
    ) -> Answer:
        fault = self._fault()
        await anyio.sleep(self._latency_s())
        match fault:
            case "fail":
                raise self._rng.choice(_failures())
            case "hang":
                await anyio.sleep_forever()
            case "late":
                await anyio.sleep(self._late_s)
            case "garbage":
                answer: Answer = garbage(self._rng.choice(self._garbage))
                return answer
        return await ask()


class FaultySummarizer(_Faulty[Summarizer]):
    """Implements `remora.models.ports.Summarizer` by another, with faults.

    Args:
        inner: what summarizes otherwise.
        fault: asked once before each call what is to go wrong with it; None for nothing.
        latency_s: asked before each call how long it takes.
        late_s: how long an answer that is late takes on top.
        garbage: what garbage is drawn from; `GARBAGE_TEXTS` otherwise.
        rng: draws the garbage, and what a call fails with.
    """

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        """See `Summarizer.summarize`."""
        return await self._answer(
            lambda: self.inner.summarize(previous, [*lines], max_tokens=max_tokens)
        )


class FaultyChatModel(_Faulty[ChatModel]):
    """Implements `remora.models.ports.ChatModel` by another, with faults.

    Takes what `FaultySummarizer` takes.
    """

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        """See `ChatModel.complete`."""
        return await self._answer(lambda: self.inner.complete([*messages]))


class FaultyEmbedder(_Faulty[Embedder]):
    """Implements `remora.models.ports.Embedder` by another, under its name, with faults.

    Takes what `FaultySummarizer` takes.

    Its garbage is made by functions of the number of texts and of the dimension: `GARBAGE_VECTORS`.
    """

    _garbage = GARBAGE_VECTORS

    def __init__(
        self,
        inner: Embedder,
        fault: Callable[[], ModelFault | None],
        *,
        latency_s: Callable[[], float] = lambda: 0.0,
        late_s: float = 90.0,
        garbage: Sequence[Callable[[int, int], Any]] = (),
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(inner, fault, latency_s=latency_s, late_s=late_s, garbage=garbage, rng=rng)
        self.dimension = inner.dimension

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See `Embedder.embed`."""
        inner: Any = self.inner
        vectors: npt.NDArray[np.float32] = await self._answer(
            lambda: inner.embed([*texts]), lambda make: make(len(texts), self.dimension)
        )
        return vectors


class FaultyReranker(_Faulty[Reranker]):
    """Implements `remora.models.ports.Reranker` by another, with faults.

    Takes what `FaultySummarizer` takes.

    Its garbage is made by functions of the number of texts: `GARBAGE_SCORES`.
    """

    _garbage = GARBAGE_SCORES

    async def rank(self, query: str, texts: Sequence[str]) -> Any:
        """See `Reranker.rank`."""
        return await self._answer(
            lambda: self.inner.rank(query, [*texts]), lambda make: make(len(texts))
        )


class UnionSummarizer:
    """Names every message that it covers by its first word, and says how many they are.

    What it was given as the summary before may be another's, an extract say, which leaves things
    out; it is kept as it is, before the names, so that the whole does not pass for complete.

    Args:
        rng: draws how long it takes; at once otherwise.
        latency_s: what is drawn from.
    """

    name = "union"

    def __init__(
        self, rng: random.Random | None = None, *, latency_s: Sequence[float] = (0.0, 0.05, 1.0)
    ) -> None:
        self._rng = rng
        self._latency_s = latency_s

    async def summarize(
        self,
        previous: str | None,
        lines: Sequence[Line],
        *,
        max_tokens: int,  # noqa: ARG002
    ) -> str:
        """The names of what the previous summary covered, and of these lines."""
        if self._rng:
            await anyio.sleep(self._rng.choice(self._latency_s))
        before = covered_by(previous) if previous else ()
        names = [*(before or ())]
        rest = [previous] if previous and before is None else []
        for line in lines:
            if line.speaker == "Summary":  # an entry that goes into the running summary
                covered = covered_by(line.text)
                names.extend(covered or ())
                rest.extend([] if covered is not None else [line.text])
            elif line.speaker != "Note":
                names.append(line.text.split()[0])
        return "\n".join([*rest, " ".join([*names, f"={len(names)}"])])


def covered_by(text: str) -> tuple[str, ...] | None:
    """The names of the messages that summaries of `UnionSummarizer` cover, one a line.

    None if anything else is among them.

    A summary that was cut short, garbled or made by another does not end with the number of its
    names.
    """
    covered: list[str] = []
    for line in text.splitlines():
        *names, total = line.split() or [""]
        if total != f"={len(names)}":
            return None
        covered.extend(names)
    return tuple(covered)
