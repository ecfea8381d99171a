"""Ports to models, and adapters for plain callables."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

import anyio
import msgspec

from remora.errors import (
    ConfigError,
    ModelAnswerInvalid,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    ReentrantAsk,
)
from remora.messages import ChatDict, indent
from remora.models.breaker import describe_failure
from remora.runtime.guard import call_guarded
from remora.runtime.probes import probe
from remora.runtime.threads import run_plugin_in_thread

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "MAX_ANSWER_CHARACTERS",
    "ChatModel",
    "ChatModelLike",
    "Embedder",
    "EmbedderLike",
    "Line",
    "NearWords",
    "Reranker",
    "RerankerLike",
    "Summarizer",
    "Vectors",
    "as_chat_model",
    "as_embedder",
    "as_near_words",
    "as_reranker",
    "check_answer_length",
    "embed_texts",
    "embedder_name",
    "function_of",
    "in_an_embedder",
]


Vectors: TypeAlias = "npt.NDArray[Any] | Sequence[npt.NDArray[Any]] | Sequence[Sequence[float]]"
"""Vectors of equal length: an array of shape (n, dimension), or a list of arrays or of lists."""


@runtime_checkable
class ChatModel(Protocol):
    """A chat model: a class with an async ``complete``.

    Spell it as you like: messages are a list of chat dicts, whose type may be the client's own::

        async def complete(self, messages: list[dict[str, object]]) -> str: ...
    """

    async def complete(self, messages: list[Any], /) -> str:
        """The assistant's text.

        Args:
            messages: dicts in the OpenAI chat format.

        Raises:
            ModelError: no usable answer.
        """
        ...


@runtime_checkable
class Embedder(Protocol):
    """An embedder: a class with ``name``, ``dimension`` and an async ``embed``.

    For instance::

        async def embed(self, texts: list[str]) -> list[list[float]]: ...
    """

    @property
    def name(self) -> str:
        """Model id, stored with the rows so that another model is noticed."""
        ...

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        ...

    async def embed(self, texts: list[str], /) -> Vectors:
        """One vector per text, shape (n, dimension): a numpy array, or lists of numbers.

        Raises:
            ModelError: no usable answer.
        """
        ...


@runtime_checkable
class NearWords(Protocol):
    """An optional port of an embedder: words that are near in meaning, of a fixed vocabulary."""

    def vocabulary(self) -> Sequence[str]:
        """The words, in lower case, each once. It is called once, in a thread, after an `embed`."""
        ...

    def near_words(
        self, words: Sequence[str], among: npt.NDArray[np.int32], /
    ) -> Sequence[Sequence[tuple[int, float]]]:
        """For each word, which words of the vocabulary are near in meaning, and their cosines.

        It is called on the event loop or in a thread, after the first `embed`. It must take 1 ms at
        most, and keep nothing of a word that is not of its vocabulary.

        Args:
            words: in lower case, 32 at most.
            among: the places, in `vocabulary`, of the words to look among; shape (n,).

        Returns:
            For each word pairs of a place in `vocabulary` and a cosine, nearest first, without the
            word itself.
        """
        ...


def as_near_words(embedder: object) -> NearWords | None:
    """The embedder, if it has near words."""
    return embedder if isinstance(embedder, NearWords) else None


@runtime_checkable
class Reranker(Protocol):
    """Judges what recall found, text by text: a class with an async ``rank``.

    For instance::

        async def rank(self, query: str, texts: list[str]) -> list[float]: ...

    One that keeps something of the texts has a method ``clear`` as well, which is called when
    memories are removed.
    """

    async def rank(self, query: str, texts: list[str], /) -> Any:
        """How well each text answers the query: a finite number for each, higher is better.

        Logits, probabilities or cosines: they are scaled by the lowest and the highest of them.

        Args:
            query: what is asked, at most 2,000 characters.
            texts: when it was said, who said it, and what; the best by the fused ranking first, at
                most `recall.rerank_depth` of them with at most 2,000 characters each. They are
                what users said: treat them as data.

        Raises:
            ModelError: no usable answer. Its text is logged, that of other exceptions is not.
        """
        ...


class Line(msgspec.Struct, frozen=True):
    """One message, as a summarizer gets it.

    Attributes:
        role: of the chat message.
        speaker: its name, or that of its role.
        text: what it says; its calls of tools are at the end.
        at_us: created_at, in microseconds since the epoch.
        calls: names and arguments of the tools that it calls.
    """

    role: str
    speaker: str
    text: str
    at_us: int
    calls: tuple[tuple[str, str], ...] = ()

    @property
    def spoken(self) -> str:
        """The speaker and the text, whose later lines are indented: no text begins a line."""
        return f"{self.speaker}: {indent(self.text.strip())}"


class Summarizer(Protocol):
    """Writes the running summary: a class with ``name`` and an async ``summarize``."""

    @property
    def name(self) -> str:
        """Stored with each summary that it writes."""
        ...

    async def summarize(
        self, previous: str | None, lines: list[Line], /, *, max_tokens: int
    ) -> str:
        """A text of at most `max_tokens` that continues `previous` with the content of `lines`.

        Raises:
            ModelError: no usable summary.
        """
        ...


ChatModelLike: TypeAlias = (
    ChatModel | Callable[[str], str | Awaitable[str] | AsyncIterator[str] | Iterator[str]]
)
EmbedderLike: TypeAlias = Embedder | Callable[[list[str]], Any]
RerankerLike: TypeAlias = Reranker | Callable[[str, list[str]], Any]


MAX_ANSWER_CHARACTERS = 1_000_000
"""Longest answer of a chat model or a summarizer: counting a longer one would take a minute."""


class _CallableChatModel:
    def __init__(self, function: Callable[[str], Any]) -> None:
        self._function = function
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        prompt = "\n\n".join(str(message["content"]) for message in messages)
        answer = await _call(self._function, prompt, threads=self._threads)
        text: str = await _collect(answer, self._threads)  # the caller checks that it is text
        return text


class _StreamingChatModel:
    """A model whose `complete` yields its answer piece by piece."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.name = str(getattr(model, "name", type(model).__qualname__))
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        text: str = await _collect(self._model.complete(messages), self._threads)
        return text


async def _collect(answer: Any, threads: anyio.CapacityLimiter) -> Any:
    """The whole answer: pieces are joined, anything else is returned unchanged.

    Raises:
        ModelAnswerInvalid: it is too long; a model that never ends is stopped by this.
    """
    if isinstance(answer, AsyncIterator):
        joined = _Pieces()
        async for piece in answer:
            joined.add(piece)
        return joined.text()
    if isinstance(answer, Iterator):

        def join() -> str:
            joined = _Pieces()
            for piece in answer:
                joined.add(piece)
            return joined.text()

        return await run_plugin_in_thread(join, limiter=threads)
    return check_answer_length(answer)


class _Pieces:
    """The pieces of an answer, up to `MAX_ANSWER_CHARACTERS`."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self._length += len(piece)
        _check_length(self._length + len(self._pieces))  # empty pieces do not go on for ever

    def text(self) -> str:
        return "".join(self._pieces)


def check_answer_length(answer: Any) -> Any:
    """Return a model's answer, unless it is a text over `MAX_ANSWER_CHARACTERS`.

    Raises:
        ModelAnswerInvalid: it is.
    """
    if isinstance(answer, str):
        _check_length(len(answer))
    return answer


def _check_length(characters: int) -> None:
    if characters > MAX_ANSWER_CHARACTERS:
        raise ModelAnswerInvalid(
            f"the model's answer is longer than {MAX_ANSWER_CHARACTERS} characters"
        )


class _CallableEmbedder:
    def __init__(self, function: Callable[[list[str]], Any], dimension: int) -> None:
        self.name = f"callable:{getattr(function, '__qualname__', type(function).__qualname__)}"
        self.dimension = dimension
        self._function = function
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors: npt.NDArray[np.float32] = await _call(
            self._function, list(texts), threads=self._threads
        )
        return vectors


class _CallableReranker:
    def __init__(self, function: Callable[[str, list[str]], Any], name: str) -> None:
        self.name = name
        self.clear: Callable[[], object] | None = None
        self._function = function
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def rank(self, query: str, texts: list[str]) -> Any:
        return await _call(self._function, query, texts, threads=self._threads)


_EMBEDDING_S = 60.0
_THREADS = 8  # for each model, so that slow models do not use up the threads that count tokens


async def _call(
    function: Callable[..., Any], *arguments: Any, threads: anyio.CapacityLimiter
) -> Any:
    """Await an async callable; run a sync one in a thread.

    A thread whose caller is cancelled is abandoned, and counts until it ends.
    """
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    ):
        return await function(*arguments)
    result = await run_plugin_in_thread(function, *arguments, limiter=threads)
    return await result if inspect.isawaitable(result) else result


def as_chat_model(model: ChatModelLike) -> ChatModel:
    """An object with ``complete``, or a callable ``prompt -> str``, as a chat model.

    A callable may be sync or async, and return the whole answer or yield it piece by piece;
    ``complete`` may do so, too.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(model, ChatModel):
        return _StreamingChatModel(model) if inspect.isasyncgenfunction(model.complete) else model
    if callable(model):
        return _CallableChatModel(model)
    raise ConfigError(
        "chat_model must have an async complete(messages) or be callable, not "
        f"{type(model).__name__}"
    )


def as_embedder(embedder: EmbedderLike, *, dimension: int) -> Embedder:
    """An object with ``embed``, ``name`` and ``dimension``, or a callable, as an embedder.

    Args:
        embedder: the object or callable.
        dimension: numbers in a vector of a callable.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(embedder, Embedder):
        return embedder
    if not callable(embedder):
        raise ConfigError(
            "embedder must have an async embed(texts), name and dimension, not "
            f"{type(embedder).__name__}"
        )
    return _CallableEmbedder(embedder, dimension)


def as_reranker(reranker: RerankerLike) -> Reranker:
    """An object with ``rank``, or a callable ``(query, texts) -> scores``, as a reranker.

    Either may be sync or async; a sync one runs in a thread.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(reranker, Reranker):
        if inspect.iscoroutinefunction(reranker.rank):
            return reranker
        name = str(getattr(reranker, "name", type(reranker).__qualname__))
        wrapped = _CallableReranker(reranker.rank, name)
        wrapped.clear = getattr(reranker, "clear", None)
        return wrapped
    if callable(reranker):
        name = getattr(reranker, "__name__", type(reranker).__qualname__)
        return _CallableReranker(reranker, name)
    raise ConfigError(
        "reranker must have an async rank(query, texts) or be callable, not "
        f"{type(reranker).__name__}"
    )


def function_of(embedder: Embedder | None) -> Callable[[Sequence[str]], Any] | None:
    """The function by which remora's own embedder computes, for any thread and process.

    None of others, whatever attributes they have.
    """
    own = type(embedder).__module__ == "remora.models.static"
    return getattr(embedder, "compute", None) if own else None


def embedder_name(embedder: Embedder | None) -> str:
    """Name and dimension, which identify the embedder of stored vectors; ``none/0`` without one."""
    return "none/0" if embedder is None else f"{embedder.name}/{embedder.dimension}"


class _Embedding:
    """A call of an embedder; over when `embedder` is None, also for tasks that it has started."""

    __slots__ = ("around", "embedder")

    def __init__(self, embedder: Embedder, around: _Embedding | None) -> None:
        self.embedder: Embedder | None = embedder
        self.around = around


_embedding: ContextVar[_Embedding | None] = ContextVar("embedding", default=None)


def in_an_embedder() -> bool:
    """Return whether the caller is an embedder's own code."""
    call = _embedding.get()
    while call is not None and call.embedder is None:
        call = call.around
    return call is not None


@contextmanager
def _enter(embedder: Embedder) -> Iterator[None]:
    """Refuse to call an embedder from within itself: it would wait for its own vectors."""
    around = call = _embedding.get()
    while call is not None:
        if call.embedder is embedder:
            raise ReentrantAsk(f"the embedder {embedder.name} asks for vectors of its own")
        call = call.around
    call = _Embedding(embedder, around)
    _embedding.set(call)
    try:
        yield
    finally:
        call.embedder = None
        _embedding.set(around)


async def embed_texts(embedder: Embedder, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Unit vectors of texts by any embedder, shape (len(texts), dimension); zeros stay zeros.

    Raises:
        ModelError: the embedder raised, returned something else, or took longer than a minute: a
            call that hangs would hold a place that others wait for.
        ReentrantAsk: called from within the embedder itself.
    """
    import numpy as np  # noqa: PLC0415

    with _enter(embedder):
        if getattr(embedder, "gives_unit_vectors", False):
            # a part of remora that calls this function itself: twice takes 0.1 ms longer
            return cast("npt.NDArray[np.float32]", await embedder.embed([*texts]))
        answer = await _ask(embedder, texts)
    try:
        with np.errstate(over="ignore"):
            vectors = np.asarray(answer, dtype=np.float32)
    except (TypeError, ValueError) as e:
        raise ModelAnswerInvalid(f"the embedder {embedder.name} returned no vectors: {e}") from e
    if vectors.shape != (len(texts), embedder.dimension):
        probe("embedder_misshaped")
        raise ModelAnswerInvalid(
            f"the embedder {embedder.name} returned shape {vectors.shape}, not "
            f"{(len(texts), embedder.dimension)}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():  # the vectors are not finite, or too long to be normalized
        probe("embedder_not_finite")
        raise ModelAnswerInvalid(
            f"the embedder {embedder.name} returned values that are not finite"
        )
    return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32, copy=False)


async def _ask(embedder: Embedder, texts: Sequence[str]) -> Any:
    """The embedder's answer, whatever it is."""
    try:
        with anyio.fail_after(_EMBEDDING_S):
            return await call_guarded(embedder.embed, [*texts])
    except ModelError:
        raise
    except TimeoutError as e:
        probe("embedder_hung")
        raise ModelTimeout(
            f"the embedder {embedder.name} did not answer within {_EMBEDDING_S:g} s"
        ) from e
    except Exception as e:  # a plugged-in embedder may raise anything; it may work later
        text, cause = describe_failure(e)
        raise ModelUnavailable(f"the embedder {embedder.name} failed: {text}") from cause
