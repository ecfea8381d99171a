"""What a cancelled append leaves behind."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter

from benchmarks.lab.correctness.programs.bench import (
    Bench,
    count_kept,
    error_name,
    texts_or_error,
    within,
)
from benchmarks.lab.correctness.programs.summaries import append_until_summary
from benchmarks.lab.correctness.protocol import Setting, Summaries, marked, marks

__all__ = ["cancelled_append"]


async def cancelled_append(bench: Bench) -> None:
    """Cancel an append of four messages to a session of twenty, each time at another moment."""
    counted: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    warm = await bench.open("warm")
    took = []
    for number in range(6):
        begun = time.perf_counter()
        await warm.append("ann/1", [marked(f"a{number}b{n}", 4) for n in range(4)])
        took.append(time.perf_counter() - begun)
    await warm.close()
    span = statistics.median(took[1:]) * 1.2
    for number in range(bench.sizes.cancels):
        await _cancel_one(
            bench, number, span * number / max(bench.sizes.cancels - 1, 1), counted, errors
        )
        bench.report(
            {
                "cases": number + 1,
                **{
                    name: counted[name]
                    for name in (
                        "reached",
                        "applied",
                        "wiped",
                        "lost",
                        "half",
                        "hung",
                        "refused",
                        "doubled",
                    )
                },
                "errors": ", ".join(f"{name} x{times}" for name, times in errors.items()),
            }
        )
    if bench.summarizes:
        await _cancelled_summary(bench)


async def _cancelled_summary(bench: Bench) -> None:
    """Cancel the append that waits for a summary; the last one where none waits."""
    summaries = Summaries(bench.sizes.slow_s / 2)
    subject = await bench.open("cancelled-summary", Setting(limit_tokens=400, summarize=summaries))
    session = "ann/1"
    acknowledged, appending = await append_until_summary(subject, session, summaries)
    appending.cancel()
    await asyncio.wait({appending}, timeout=bench.sizes.patience_s)
    await within(subject.settle(), bench.sizes.patience_s)
    if await within(subject.append(session, [marked("next")]), bench.sizes.patience_s) is True:
        acknowledged.append("next")
    await within(subject.settle(), bench.sizes.patience_s)
    texts, _ = await texts_or_error(subject.load(session))
    missing = set(acknowledged) - summaries.covered(texts)
    bench.report(
        {
            "summary.acknowledged": len(acknowledged),
            "summary.lost": len(missing),
            "summary.kept": await count_kept(subject, session, missing),
        }
    )
    await subject.close()


async def _cancel_one(
    bench: Bench, number: int, delay_s: float, counted: Counter[str], errors: Counter[str]
) -> None:
    subject = await bench.open(f"cancelled-{number}")
    session = "ann/1"
    patience = bench.sizes.patience_s
    before = [f"old{n}" for n in range(20)]
    for n in range(0, 20, 4):
        await subject.append(session, [marked(mark, 4) for mark in before[n : n + 4]])
    batch = [f"new{n}" for n in range(4)]
    due = time.perf_counter() + delay_s
    task = asyncio.ensure_future(subject.append(session, [marked(mark, 4) for mark in batch]))
    await asyncio.sleep(0)
    while time.perf_counter() < due and not task.done():  # noqa: ASYNC110 -- a timer would be off by the whole way
        await asyncio.sleep(0)
    reached = task.cancel()
    await asyncio.wait({task}, timeout=patience)
    if not task.done():
        counted["hung"] += 1
        counted["reached"] += 1
        return
    counted["reached"] += reached
    if not task.cancelled() and (error := task.exception()) is not None:
        errors[error_name(error)] += 1
    ended = await within(subject.append(session, [marked("next", 4)]), patience)
    if ended is None:
        counted["hung"] += 1
    elif isinstance(ended, BaseException):
        counted["refused"] += 1
        errors[error_name(ended)] += 1
    loading = asyncio.ensure_future(subject.load(session))
    await asyncio.wait({loading}, timeout=patience)
    if not loading.done():
        counted["hung"] += ended is not None
        return
    error = loading.exception()
    there = Counter[str]() if error is not None else marks(loading.result())
    if error is not None:
        errors[error_name(error)] += 1
    gone = sum(mark not in there for mark in before) + (ended is True and "next" not in there)
    counted["wiped"] += all(mark not in there for mark in before)
    counted["lost"] += gone > 0
    new = sum(mark in there for mark in batch)
    counted["half"] += 0 < new < len(batch)
    counted["applied"] += reached and new == len(batch)
    counted["doubled"] += any(times > 1 for times in there.values())
    await within(subject.close(), patience)
