"""What is shown, and who waits, while a session is summarized."""

from __future__ import annotations

import asyncio
import statistics

from benchmarks.lab.correctness.programs.bench import (
    Bench,
    Figure,
    append_concurrently,
    count_kept,
    texts_or_error,
    time_call,
    within,
)
from benchmarks.lab.correctness.protocol import Setting, Subject, Summaries, marked

__all__ = [
    "append_behind_summary",
    "append_until_summary",
    "loads_meanwhile",
    "overflow",
    "summarizer_raises",
]


async def summarizer_raises(bench: Bench) -> None:
    """Read the context after the summarizer failed for a while, and five more messages."""
    for limit, count in bench.sizes.outage:
        summaries = Summaries()
        summaries.failing = True
        subject = await bench.open(
            f"outage-{limit}", Setting(limit_tokens=limit, summarize=summaries)
        )
        session = "ann/1"
        written = await append_concurrently(bench, subject, session, 1, count, words=30)
        summaries.failing = False
        for number in range(5):
            mark = f"after{number}"
            ended = await within(subject.append(session, [marked(mark)]), bench.sizes.patience_s)
            (written.acknowledged if ended is True else written.refused).append(mark)
        await subject.settle()
        texts, unreadable = await texts_or_error(subject.load(session))
        there = summaries.covered(texts)
        missing = set(written.acknowledged) - there
        bench.report(
            {
                f"{limit}.sent": written.sent,
                f"{limit}.acknowledged": len(written.acknowledged),
                f"{limit}.rejected": len(written.refused),
                f"{limit}.refused_there": len(set(written.refused) & there),
                f"{limit}.lost": len(missing),
                f"{limit}.unreadable": unreadable,
                f"{limit}.kept": await count_kept(subject, session, missing),
                f"{limit}.calls": summaries.calls,
            }
        )
        await subject.close()


async def overflow(bench: Bench) -> None:
    """Writers overflow one session; a second after the last append its context is read."""
    writers, each = bench.sizes.flood
    for limit in bench.sizes.limits:
        summaries = Summaries(bench.sizes.summary_s)
        subject = await bench.open(
            f"limit-{limit}", Setting(limit_tokens=limit, summarize=summaries)
        )
        session = "ann/1"
        await subject.append(session, [marked("first")])
        written = await append_concurrently(bench, subject, session, writers, each, words=30)
        await asyncio.sleep(1)
        await subject.settle()
        texts, unreadable = await texts_or_error(subject.load(session))
        missing = set(written.acknowledged) - summaries.covered(texts)
        bench.report(
            {
                f"{limit}.acknowledged": len(written.acknowledged),
                f"{limit}.rejected": len(written.refused),
                f"{limit}.lost": len(missing),
                f"{limit}.unreadable": unreadable,
                f"{limit}.kept": await count_kept(subject, session, missing),
                f"{limit}.summaries": summaries.calls,
            }
        )
        await subject.close()


async def loads_meanwhile(bench: Bench) -> None:
    """Count loads that lack a message acknowledged before, while a writer overflows a session."""
    summaries = Summaries(bench.sizes.summary_s)
    subject = await bench.open("paced", Setting(limit_tokens=400, summarize=summaries))
    session = "ann/1"
    await subject.append(session, [marked("first")])
    acknowledged: set[str] = set()
    done = asyncio.Event()
    loads = missing = failed = during = missing_during = 0

    async def write() -> None:
        for number in range(bench.sizes.paced):
            await subject.append(session, [marked(f"n{number}")])
            acknowledged.add(f"n{number}")
            await asyncio.sleep(0.01)
        done.set()

    async def read() -> None:
        nonlocal loads, missing, failed, during, missing_during
        while not done.is_set():
            known, running = set(acknowledged), summaries.running > 0
            texts, error = await texts_or_error(subject.load(session))
            if error:
                failed += 1
            else:
                lacking = not known <= summaries.covered(texts)
                loads += 1
                missing += lacking
                during += running
                missing_during += running and lacking
            await asyncio.sleep(0.005)

    await asyncio.gather(write(), read())
    bench.report(
        {
            "during": during,
            "missing_during": missing_during,
            "loads": loads,
            "missing": missing,
            "failed": failed,
            "summaries": summaries.calls,
        }
    )
    await subject.close()


async def append_behind_summary(bench: Bench) -> None:
    """Time one more append and a load while a slow summarizer works."""
    times: dict[str, list[float]] = {"own": [], "beside": [], "load": []}
    unhindered = 0
    errors: dict[str, Figure] = {}
    for number in range(bench.sizes.rounds):
        summaries = Summaries(bench.sizes.slow_s)
        subject = await bench.open(f"slow-{number}", Setting(limit_tokens=400, summarize=summaries))
        session = "ann/1"
        _, appending = await append_until_summary(subject, session, summaries)
        beside = asyncio.ensure_future(time_call(subject.append(session, [marked("beside")])))
        loading = asyncio.ensure_future(time_call(subject.load(session)))
        await asyncio.wait({beside, loading})
        unhindered += appending.done() and summaries.running > 0
        for name, waiting in (("beside", beside), ("load", loading), ("own", appending)):
            took_ms, error = await waiting
            times[name].append(took_ms)
            if error:
                errors[f"{name}.error"] = error
        await subject.close()
    medians = {f"{name}_ms": round(statistics.median(took), 1) for name, took in times.items()}
    bench.report({**medians, **errors, "rounds": bench.sizes.rounds, "unhindered": unhindered})


async def append_until_summary(
    subject: Subject, session: str, summaries: Summaries
) -> tuple[list[str], asyncio.Future[tuple[float, str]]]:
    """Append until a summary is being made.

    Returns the marks acknowledged by then, and the append that runs, or the last one.
    """
    acknowledged: list[str] = []
    for number in range(200):
        appending = asyncio.ensure_future(
            time_call(subject.append(session, [marked(f"n{number}")]))
        )
        begun = asyncio.ensure_future(summaries.begun.wait())
        await asyncio.wait({appending, begun}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        # A summary in the background begins a moment after the append that caused it.
        await asyncio.sleep(0.02)
        if appending.done() and not appending.result()[1]:
            acknowledged.append(f"n{number}")
        if summaries.running:
            return acknowledged, appending
    raise AssertionError("no summary began")
