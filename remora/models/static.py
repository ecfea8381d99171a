"""The embedded embedder: wordllama, whose weights ship in its wheel.

0.06 ms per text, no network, no key.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import mmap
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import anyio
import numpy as np
import numpy.typing as npt

from remora.languages.search_words import cut_text
from remora.runtime.threads import compute_apart, frequent_switches, run_in_thread
from remora.system.files import free_pages

_WEIGHTS = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_WORD_BEGINS = "\u2581"  # in the names of tokens
_SHORTEST = 3  # letters of a word that has near ones, and the mark before it
_HEAD = 64  # dimensions
_LEAST_HEAD = 0.26  # cosine of these dimensions: of 8,044 near words 8 have less
_LEAST_COSINE = 0.4  # at 0.5 half of what near words bring is lost
# Words that are compared at once. BLAS divides more than 9,216 numbers among threads, and waits
# 10 ms for the last of them when cores are busy. In blocks it takes a third of `vecdot`'s time.
_BLOCK = 128
_FEW = 4  # of so many words one is few: they alone are compared, and not whole blocks
_PIECE = 16_000  # characters of a text that are encoded at once
_WORDS_WITH_BLANKS = re.compile(r" +[^ ]+| +$")
_SPECIAL_TOKENS = ("<s>", "</s>", "<unk>")
_MOST_KNOWN, _LONGEST_KNOWN = 50_000, 40  # words and letters: 8 MB
_KNOWN_S = 600.0  # then they are forgotten: some are of users who were forgotten
_Near: TypeAlias = "tuple[npt.NDArray[np.integer], npt.NDArray[np.float32]]"
_INLINE_CHARS = 400  # a question takes 0.1 ms on the event loop, and 0.4 in a thread


class WordLlamaEmbedder:
    """256-dimensional averages of static token vectors. Loaded at first use, in a thread."""

    name = "wordllama-l2-supercat-256"
    dimension = 256

    def __init__(self) -> None:
        self._model: _Model | None = None
        self._loading = anyio.Lock()

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector per text, shape (n, 256); a text without words gets zeros."""
        if self._model is None:
            async with self._loading:
                if self._model is None:
                    # not in turn with what jobs compute: a question may wait for it
                    self._model = await run_in_thread(_load_with_words, abandon_on_cancel=True)
        if sum(map(len, texts)) <= _INLINE_CHARS:
            return _average(self._model, texts)
        return await compute_apart(_embed, list(texts), abandon_on_cancel=True)

    @property
    def compute(self) -> Callable[[Sequence[str]], npt.NDArray[np.float32]]:
        """A function that embeds texts where it is called, also in another process. It blocks."""
        return _embed

    def vocabulary(self) -> Sequence[str]:
        """The words that are one token of the model each: 10,000. It blocks at first use."""
        return _vocabulary().words

    def near_words(
        self, words: Sequence[str], among: npt.NDArray[np.int32]
    ) -> Sequence[Sequence[tuple[int, float]]]:
        """Which words of `vocabulary` are near in meaning; see `remora.models.ports.NearWords`."""
        return _vocabulary().near(words, among)


_loading = threading.Lock()  # a caller that gave up has left its thread loading


def _load() -> _Model:
    with _loading:
        return _load_once()


@frequent_switches()
def _load_with_words() -> _Model:
    """The model; its words take 50 ms, for which a question would hold the event loop."""
    _vocabulary()
    return _load()


class _Words:
    """The tokens of texts, word by word: the tokenizer takes a whole text for one word.

    It merges nothing across a blank, so a text's tokens are those of its words. To look words up
    takes a third of the time.
    """

    def __init__(self, model: _Model) -> None:
        self._read = partial(model.tokenizer.encode, add_special_tokens=False)
        self._fill = model.table.fill
        # an empty word stands for the blank before it; of an empty text there would be no token
        blank = model.tokenizer.token_to_id(_WORD_BEGINS)
        self._empty = {"": (blank,)}
        self._fill([blank])
        self._known: dict[str, tuple[int, ...]] = dict(self._empty)
        self._since = time.monotonic()

    def tokens(self, text: str) -> Sequence[int]:
        """The tokens of a text."""
        if not text:
            return ()
        if _WORD_BEGINS in text or ("<" in text and any(one in text for one in _SPECIAL_TOKENS)):
            return self._encode(text)
        words = text.split(" ")
        if "" in words:  # several blanks in a row are one token
            words = [word[1:] for word in _WORDS_WITH_BLANKS.findall(f" {text}")]
        known = self._known
        found: list[int] = []
        for word in words:
            of_word = known.get(word)
            if of_word is None:
                of_word = tuple(self._encode(word))
                if len(word) <= _LONGEST_KNOWN:
                    known[word] = of_word
            found += of_word
        if len(known) > _MOST_KNOWN or time.monotonic() - self._since > _KNOWN_S:
            self._known, self._since = dict(self._empty), time.monotonic()
        return found

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._read(text).ids
        self._fill(ids)
        return ids


def _average(model: _Model, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """The mean vector of each text's tokens, shape (n, 256)."""
    # wordllama's own `embed` pads all texts of a batch to the longest, which takes a third more
    # time, and gigabytes where one is long; its normalization divides by zero.
    return _average_tokens(model, len(texts), _encode(_words(), texts))


def _embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    return _average(_load(), texts)


def _encode(words: _Words, texts: Sequence[str]) -> Iterator[tuple[int, Sequence[int]]]:
    """The place of each text with its tokens; of a long text several times, with some of them."""
    for place, text in enumerate(texts):
        for piece in (text,) if len(text) <= _PIECE else cut_text(text, _PIECE):
            yield place, words.tokens(piece)


def _average_tokens(
    model: _Model, count: int, tokens: Iterable[tuple[int, Sequence[int]]]
) -> npt.NDArray[np.float32]:
    rows = model.table.rows
    vectors = np.zeros((count, WordLlamaEmbedder.dimension), np.float32)
    counted = [0] * count
    for place, ids in tokens:
        if ids:  # `mean` does the same in twice the time
            vectors[place] += np.add.reduce(rows.take(ids, axis=0), axis=0)
            counted[place] += len(ids)
    for place, number in enumerate(counted):
        if number:
            vectors[place] /= number
    return vectors


class _Vocabulary:
    """The words that are one token of the model each, whose vectors are at hand: 10,000."""

    def __init__(self, model: _Model) -> None:
        tokens = {
            token[1:]: number
            for token, number in model.tokenizer.get_vocab().items()
            if token.startswith(_WORD_BEGINS) and len(token) > _SHORTEST and token[1:].islower()
        }
        self.words = [word for word in tokens if word.isalpha()]
        self._model = model
        self._place_of = {word: place for place, word in enumerate(self.words)}
        numbers = [tokens[word] for word in self.words]
        self._vectors = _unit(model.table.stored_rows(numbers))
        # The model's first dimensions are made to serve alone: they find the candidates.
        heads = _unit(self._vectors[:, :_HEAD])
        rows = -(-len(heads) // _BLOCK) * _BLOCK
        padded = np.zeros((rows, _HEAD), np.float32)
        padded[: len(heads)] = heads
        self._heads, self._blocks = padded, padded.reshape(-1, _BLOCK, _HEAD)
        # what is kept of questions is about these words only: other words may be a user's
        self._near_known = functools.cache(self._find_near_known)  # of most words ten: 1 kB

    def near(
        self, words: Sequence[str], among: npt.NDArray[np.int32]
    ) -> list[list[tuple[int, float]]]:
        wanted = np.zeros(len(self.words), np.bool_)
        wanted[among] = True
        others = [word for word in words if word not in self._place_of]
        near_others = iter(self._find_near(others, among, wanted))
        near = []
        for word in words:
            place = self._place_of.get(word)
            if place is None:
                found, cosines = next(near_others)
            else:
                found, cosines = self._near_known(place)
                kept = wanted[found]
                found, cosines = found[kept], cosines[kept]
            near.append(list(zip(found.tolist(), cosines.tolist(), strict=True)))
        return near

    def _find_near(
        self, words: Sequence[str], among: npt.NDArray[np.int32], wanted: npt.NDArray[np.bool_]
    ) -> Iterator[_Near]:
        """The words near each of some that are not of the vocabulary."""
        if not words:
            return
        vectors = _unit(_average(self._model, words))
        few = len(among) <= len(self.words) // _FEW
        heads = self._heads.take(among, axis=0) if few else self._heads[:0]
        for vector, head in zip(vectors, _unit(vectors[:, :_HEAD]), strict=True):
            found: npt.NDArray[np.integer]
            if few:
                found = among[np.vecdot(heads, head) >= _LEAST_HEAD]
            else:
                found = ((self._by_head(vector) >= _LEAST_HEAD) & wanted).nonzero()[0]
            yield self._nearest(vector, found)

    def _find_near_known(self, place: int) -> _Near:
        """The words near a word of the vocabulary, nearest first."""
        vector = self._vectors[place]
        by_head = self._by_head(vector)
        by_head[place] = 0
        return self._nearest(vector, (by_head >= _LEAST_HEAD).nonzero()[0])

    def _by_head(self, vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The cosines of all words with a vector, by their first dimensions."""
        (head,) = _unit(vector[None, :_HEAD])
        cosines: npt.NDArray[np.float32] = (self._blocks @ head).reshape(-1)
        return cosines[: len(self.words)]

    def _nearest(self, vector: npt.NDArray[np.float32], found: npt.NDArray[np.integer]) -> _Near:
        """Of the words at these places those that are near a unit vector, nearest first."""
        cosines = np.vecdot(self._vectors.take(found, axis=0), vector)
        kept = cosines >= _LEAST_COSINE
        found, cosines = found[kept], cosines[kept]
        order = np.lexsort((found, -cosines))
        return found[order], cosines[order]


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: npt.NDArray[np.float32] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return unit


@functools.cache
def _vocabulary() -> _Vocabulary:
    return _Vocabulary(_load())


@functools.cache
def _words() -> _Words:
    return _Words(_load())


class _Model(NamedTuple):
    """The content of wordllama's wheel: the tokens, and their vectors."""

    table: _Table
    tokenizer: Any


class _Table:
    """The vectors of the tokens: in the file's half precision, and in single where one is used.

    Both are mapped: of 48 MB only the rows of tokens that texts have are in memory.

    Attributes:
        rows: of the tokens for which `fill` was called; shape (tokens, 256).

    Args:
        path: a safetensors file.
        name: of the table in it.

    Raises:
        ValueError: its numbers are not of half precision.
    """

    def __init__(self, path: Path, name: str) -> None:
        with path.open("rb") as file:
            self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        begin = 8 + int.from_bytes(self._file[:8], "little")
        about = json.loads(self._file[8:begin])[name]
        if about["dtype"] != "F16":
            raise ValueError(f"{path}: {name} is of the type {about['dtype']}, and not F16")
        shape = tuple(about["shape"])
        first = begin + about["data_offsets"][0]
        count = shape[0] * shape[1]
        self._stored = np.frombuffer(self._file, np.float16, count, first).reshape(shape)
        # anonymous: NumPy asks for huge pages, of which each use of a row would fill one
        self.rows = np.frombuffer(mmap.mmap(-1, 4 * count), np.float32).reshape(shape)

    def fill(self, tokens: Sequence[int]) -> None:
        """Make the rows of tokens ready; another thread may write the same."""
        places = list(tokens)
        self.rows[places] = self._stored[places]

    def stored_rows(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The vectors of many tokens, which are not kept in memory."""
        rows = self._stored[tokens].astype(np.float32)
        free_pages(self._file)
        return rows


@functools.cache
def _load_once() -> _Model:
    """All runtimes of a process share one copy of the weights.

    The files are read, and the package's code is not run: it takes half a second to import, and
    configures the host's root logger.
    """
    found = importlib.util.find_spec("wordllama")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("wordllama is not installed: the embedder is in its wheel")
    folder = Path(next(iter(found.submodule_search_locations)))
    tokenizers: Any = importlib.import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / _TOKENIZER))
    # This tokenizer takes a whole text for one word, and tokenizers 0.23 caches words of less than
    # 256 bytes, 10 000 for each of its threads: 70 MB a thread, of texts that never come again and
    # of users who are forgotten. Without the cache a text takes as long.
    tokenizer.model._resize_cache(0)  # noqa: SLF001 -- it has no public name
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return _Model(_Table(folder / _WEIGHTS, "embedding.weight"), tokenizer)
