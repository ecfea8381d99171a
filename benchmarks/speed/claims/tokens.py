"""Counting tokens: how fast, whether exactly, and what a long message does to the event loop.

*300 B*, *2 kB*: distinct texts of Python's manual, one call each. *200 kB*: texts of that length,
each counted in a thread (`asyncio.to_thread`) while a task on the event loop repeats a sleep of a
millisecond; `lag_…` is how much later it wakes, which shows a counter that does not release the
interpreter. *1 MB without a blank*: the same. *200 kB appended*: `Session.append` of such messages.
*base64 2 kB*: 20 MB of text that never repeats, as tools return it; `bytes_grown` is the growth of
resident memory at the end.

`wrong` is how many texts are refused, or counted otherwise than by tiktoken's `encode_ordinary`.
*every character*: one short text for each code point of the planes of Unicode that are in use:
tables of different versions of Unicode differ there. *odd texts*: special tokens as text, long
runs, combining marks, lone surrogates.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from benchmarks.speed.claim import Case
from benchmarks.speed.text import counter, percentile, texts

NAME = "tokens"
TITLE = "Counting tokens"
WORK = (
    "Tokens of texts, by o200k_base. *remora* is the counter it has by default, which is "
    "tiktoken's `encode_ordinary` with long "
    "runs of blanks cut; *tiktoken-numpy* is `encode_to_numpy`, *tiktoken-batch* "
    "`encode_ordinary_batch` of 64 texts, "
    "*tiktoken-thread* a hop of `anyio.to_thread` for each text. `wrong`: texts whose count is "
    "not tiktoken's; *every character* "
    "has one text for each code point. Texts of 200 kB and more are counted in a thread, beside "
    "an event loop whose lag is "
    "measured; *200 kB appended* is `Session.append` of such messages, one by one, where "
    "*remora-heuristic* takes a "
    "quarter of the length instead of counting. *gigatoken* keeps the words that it has seen: the "
    "manual's recur, base64 not."
)
PEERS = ("gigatoken", "rs_bpe", "bpe_openai", "kitoken")
_WAYS = ("tiktoken-numpy", "tiktoken-batch", "tiktoken-thread")
CONTESTANTS = ("remora", "remora-heuristic", *_WAYS, *PEERS)
FASTER = {
    "remora-heuristic": "it divides the length by four",
    "tiktoken-numpy": "it counts the same without a list",
    "tiktoken-batch": "it counts many texts by one call",
    "tiktoken-thread": "it counts in another thread, which has a core of its own",
    "gigatoken": "its engine is another",
    "rs_bpe": "its engine is another",
    "bpe_openai": "its engine is another",
    "kitoken": "its engine is another",
}

_LONG = 200_000
_BATCH = 64
_LAG_S = 0.001
Count = Callable[[str], int]


def cases(smoke: bool) -> Sequence[Case]:
    few = 50 if smoke else 1
    alone = ("remora", *PEERS)
    return [
        Case(
            NAME,
            "300 B",
            {"bytes": 300, "texts": 20_000 // few},
            contestants=("remora", *_WAYS, *PEERS),
        ),
        Case(
            NAME,
            "2 kB",
            {"bytes": 2_000, "texts": 5_000 // few},
            contestants=("remora", *_WAYS, *PEERS),
        ),
        Case(NAME, "200 kB", {"bytes": _LONG, "texts": 3 if smoke else 40}, contestants=alone),
        Case(
            NAME,
            "1 MB without a blank",
            {"bytes": 1_000_000, "texts": 1 if smoke else 10},
            contestants=alone,
        ),
        Case(
            NAME,
            "200 kB appended",
            {"bytes": _LONG, "texts": 3 if smoke else 40},
            contestants=("remora", "remora-heuristic"),
        ),
        Case(NAME, "base64 2 kB", {"bytes": 2_000, "texts": 10_000 // few}, contestants=alone),
        Case(NAME, "every character", {"step": few}, contestants=alone),
        Case(NAME, "odd texts", {}, contestants=alone),
    ]


def measure(
    contestant: str,
    case: Case,
    directory: Path,
    seed: int,
    smoke: bool,  # noqa: ARG001
) -> dict[str, float]:
    if case.name == "200 kB appended":
        return asyncio.run(
            _append_texts(contestant, directory, _long_texts(int(case.sizes["texts"]), seed))
        )
    exact = counter()
    exact("warm")
    if contestant == "tiktoken-thread":
        return asyncio.run(_count_in_threads(_texts(case, seed), exact))
    if contestant == "tiktoken-batch":
        return _count_in_batches(_texts(case, seed), exact)
    count = _counter(contestant)
    count("warm")
    pool = _texts(case, seed)
    if case.sizes.get("bytes", 0) >= _LONG:
        return asyncio.run(_beside_a_loop(count, exact, pool))
    before, begun = _resident(), time.perf_counter()
    counts = [_said(count, text) for text in pool]
    took, grown = time.perf_counter() - begun, _resident() - before
    figures = _figures(took, counts, exact, pool)
    return figures | {"bytes_grown": max(grown, 0)} if case.name == "base64 2 kB" else figures


def _counter(contestant: str) -> Count:
    """How a contestant counts; loading it is not measured."""
    if contestant == "remora":
        from remora.tokens import TiktokenCounter  # noqa: PLC0415

        return TiktokenCounter("o200k_base").count
    if contestant == "tiktoken-numpy":
        import tiktoken  # noqa: PLC0415

        as_array = tiktoken.get_encoding("o200k_base").encode_to_numpy
        return lambda text: int(as_array(text, disallowed_special=()).size)
    if contestant == "gigatoken":
        import gigatoken  # noqa: PLC0415

        # Without special tokens: it would find them in any text otherwise.
        encode = gigatoken.Tokenizer.from_tiktoken(
            _vocabulary(), pretokenizer="o200k", special_tokens={}
        ).encode
        return lambda text: len(encode(text))
    if contestant == "rs_bpe":
        from rs_bpe.bpe import openai  # noqa: PLC0415

        rs_bpe: Count = openai.o200k_base().count
        return rs_bpe
    if contestant == "bpe_openai":
        import bpe_openai  # noqa: PLC0415

        ordinary = bpe_openai.get_encoding("o200k_base").encode_ordinary
        return lambda text: len(ordinary(text))
    import kitoken  # noqa: PLC0415

    tokenizer = kitoken.Kitoken.from_tiktoken_file(str(_vocabulary()))
    return lambda text: len(tokenizer.encode(text))


def _vocabulary() -> Path:
    from benchmarks.speed.vocabularies import place  # noqa: PLC0415

    return Path(os.environ["TIKTOKEN_CACHE_DIR"]) / place("o200k_base")


def _texts(case: Case, seed: int) -> list[str]:
    if case.name == "every character":
        # An apostrophe and an s count otherwise after a letter, a digit groups with digits, a blank
        # sticks to a letter.
        points = (n for n in range(0x40000) if not 0xD800 <= n < 0xE000)
        found = [f"a{c}b {c}{c} 1{c}'s" for c in map(chr, points)]
        return found[:: int(case.sizes["step"])]
    if case.name == "odd texts":
        return _odd(seed)
    count, size = int(case.sizes["texts"]), int(case.sizes["bytes"])
    if case.name == "200 kB":
        return _long_texts(count, seed)
    if case.name == "1 MB without a blank":
        return [chr(ord("A") + n) * size for n in range(count)]
    if case.name == "base64 2 kB":
        rng = random.Random(seed)
        return [base64.b64encode(rng.randbytes(size * 3 // 4)).decode() for _ in range(count)]
    return texts(seed, count, size)


def _long_texts(count: int, seed: int) -> list[str]:
    pieces = texts(seed, count * (_LONG // 2_000), 2_000)
    each = len(pieces) // count
    return [" ".join(pieces[n * each : (n + 1) * each])[:_LONG] for n in range(count)]


def _odd(seed: int) -> list[str]:
    rng = random.Random(seed)
    letters = "".join(rng.choices("abcdefghij", k=100_000))
    runs = [
        "a",
        " ",
        "\n",
        "^",
        "1",
        " \n",
        "\u6f22\u5b57",
        "\U0001f600",
        "\u0644\u0627",
        "e\u0301",
        "\U0001f469\u200d\U0001f4bb",
    ]
    special = ["<|endoftext|>", "a <|endofprompt|> b", "<|endoftext", "<|im_start|>user"]
    return [
        "",
        " ",
        letters,
        "e" + "\u0301" * 50_000,
        "don\u2019t I'VE we'LL",
        "\u017f's \u0130's \u212a's",
        "a\u00a0\u3000\u0085b",
        "\x00\x1c\x1f",
        "\ud800",
        "a\udfffb",
        "\ud83d\ude00",
        *special,
        *(run * (90_000 // len(run)) for run in runs),
    ]


def _said(count: Count, text: str) -> int | None:
    """None where the counter refuses; a panic in Rust is no `Exception`."""
    try:
        return count(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return None


def _figures(
    took: float, counts: Sequence[int | None], exact: Count, pool: Sequence[str]
) -> dict[str, float]:
    wrong = sum(found != exact(text) for found, text in zip(counts, pool, strict=True))
    return {"us_per_text": took / len(pool) * 1e6, "wrong": wrong}


def _count_in_batches(pool: Sequence[str], exact: Count) -> dict[str, float]:
    import tiktoken  # noqa: PLC0415

    encode, counts = tiktoken.get_encoding("o200k_base").encode_ordinary_batch, []
    begun = time.perf_counter()
    for at in range(0, len(pool), _BATCH):
        counts += [
            len(found)
            for found in encode(list(pool[at : at + _BATCH]), num_threads=os.cpu_count() or 1)
        ]
    return _figures(time.perf_counter() - begun, counts, exact, pool)


async def _count_in_threads(pool: Sequence[str], exact: Count) -> dict[str, float]:
    from anyio import to_thread  # noqa: PLC0415

    begun = time.perf_counter()
    counts = [await to_thread.run_sync(exact, text) for text in pool]
    return _figures(time.perf_counter() - begun, counts, exact, pool)


async def _beside_a_loop(count: Count, exact: Count, pool: Sequence[str]) -> dict[str, float]:
    lags: list[float] = []
    async with _watch_lags(lags):
        begun = time.perf_counter()
        counts = [await asyncio.to_thread(_said, count, text) for text in pool]
        took = time.perf_counter() - begun
    return _figures(took, counts, exact, pool) | _lag(lags)


async def _append_texts(contestant: str, directory: Path, pool: Sequence[str]) -> dict[str, float]:
    from remora import Config, Runtime  # noqa: PLC0415

    tree = {"long_term": {"enabled": False}, "buffer": {"policy": "keep_all"}}
    tree["tokens"] = {"counter": "heuristic" if contestant == "remora-heuristic" else "tiktoken"}
    lags: list[float] = []
    latencies: list[float] = []
    async with Runtime(directory / "remora", config=Config.from_dict(tree)) as runtime:
        session = runtime.session("user", "chat")
        await session.append({"role": "user", "content": "warm " * 4_000})
        async with _watch_lags(lags):
            for text in pool:
                begun = time.perf_counter()
                await session.append({"role": "user", "content": text})
                latencies.append(time.perf_counter() - begun)
    return {
        "p50_ms": percentile(latencies, 0.5) * 1e3,
        "p99_ms": percentile(latencies, 0.99) * 1e3,
    } | _lag(lags)


@contextlib.asynccontextmanager
async def _watch_lags(lags: list[float]) -> AsyncIterator[None]:
    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(_LAG_S)
            lags.append(time.perf_counter() - begun - _LAG_S)

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    yield
    await asyncio.sleep(2 * _LAG_S)  # what comes late is seen still
    task.cancel()


def _lag(lags: Sequence[float]) -> dict[str, float]:
    return {"lag_p99_ms": percentile(lags, 0.99) * 1e3, "lag_max_ms": max(lags, default=0.0) * 1e3}


def _resident() -> int:
    """Resident bytes of this process; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
