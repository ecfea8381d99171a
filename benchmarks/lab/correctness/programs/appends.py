"""What appends leave behind: concurrent ones, those that overflow, and repeated ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from benchmarks.lab.correctness.programs.bench import (
    Bench,
    append_concurrently,
    count_kept,
    error_name,
    texts_or_error,
)
from benchmarks.lab.correctness.protocol import Embedding, Setting, Subject, marked, marks

__all__ = ["concurrent_appends", "deliveries", "same_key_twice"]


async def concurrent_appends(bench: Bench) -> None:
    """Callers append to one session at once; then it is read."""
    for count, each in bench.sizes.callers:
        subject = await bench.open(f"callers-{count}")
        session = "ann/1"
        await subject.append(session, [marked("first", 4)])
        written = await append_concurrently(bench, subject, session, count, each, words=4)
        await subject.settle()
        texts, unreadable = await texts_or_error(subject.load(session))
        there = marks(texts)
        order = [mark for mark in _marks_in_order(texts) if mark != "first"]
        missing = set(written.acknowledged) - set(there)
        bench.report(
            {
                f"{count}.sent": written.sent,
                f"{count}.acknowledged": len(written.acknowledged),
                f"{count}.rejected": len(written.refused),
                f"{count}.errors": ", ".join(written.errors),
                f"{count}.lost": len(missing),
                f"{count}.unreadable": unreadable,
                f"{count}.kept": await count_kept(subject, session, missing),
                f"{count}.doubled": sum(times > 1 for times in there.values()),
                f"{count}.reordered": count_inverted(order),
                f"{count}.refused_there": len(set(order) - set(written.acknowledged)),
            }
        )
        await subject.close()


async def deliveries(bench: Bench) -> None:
    """Count the rows after writers overflow a session into long-term memory."""
    writers, each = bench.sizes.flood
    cases = (
        ("one", 1, writers * each, 0),
        ("many", writers, each, 0),
        ("failing", writers, each, 3),
    )
    for case, count, every, fails_at in cases:
        embed = Embedding(fails_at)
        subject = await bench.open(case, Setting(limit_tokens=400, embed=embed))
        session = "ann/1"
        await subject.append(session, [marked("first")])
        written = await append_concurrently(bench, subject, session, count, every, words=30)
        await subject.settle()
        buffered, unreadable = await texts_or_error(subject.buffered(session))
        left = set(written.acknowledged) - set(marks(buffered))
        rows = marks(await subject.delivered())
        times = [rows[mark] for mark in left]
        bench.report(
            {
                f"{case}.left": len(left),
                f"{case}.unreadable": unreadable,
                f"{case}.never": times.count(0),
                f"{case}.once": times.count(1),
                f"{case}.more": sum(one > 1 for one in times),
                f"{case}.deliveries": sum(times),
                f"{case}.sent": written.sent,
                f"{case}.rejected": len(written.refused),
                f"{case}.failed": int(0 < fails_at <= embed.calls),
            }
        )
        await subject.close()


async def same_key_twice(bench: Bench) -> None:
    """Send one request again: after its answer, eight times at once, and after a restart."""
    subject = await bench.open("keys")
    errors: Counter[str] = Counter()

    async def send(session: str, key: str) -> None:
        try:
            await subject.append(session, [marked(f"once{key}", 4)], key=key)
        except Exception as e:
            errors[error_name(e)] += 1

    async def copies(session: str, key: str) -> int:
        texts, _ = await texts_or_error(subject.load(session))
        return marks(texts)[f"once{key}"]

    for session in ("ann/1", "ann/2", "ann/3"):
        await subject.append(session, [marked("first", 4)])
    await send("ann/1", "a")
    await send("ann/1", "a")
    bench.report({"again": await copies("ann/1", "a"), "again.errors": ", ".join(errors)})
    errors.clear()
    await asyncio.gather(*(send("ann/2", "b") for _ in range(8)))
    bench.report({"together": await copies("ann/2", "b"), "together.errors": ", ".join(errors)})
    errors.clear()
    await send("ann/3", "c")
    await subject.settle()
    await subject.close()
    subject = await bench.open("keys")
    survived = await _has_first(subject, "ann/3")
    if survived:
        await send("ann/3", "c")
        bench.report({"restart": await copies("ann/3", "c"), "restart.errors": ", ".join(errors)})
    else:
        bench.report({"restart": "nothing survives a restart"})
    await subject.close()


def _marks_in_order(texts: Sequence[str]) -> list[str]:
    return [mark for text in texts for mark in marks([text])]


def count_inverted(order: Sequence[str]) -> int:
    """How many messages follow a later one of the same caller."""
    newest: dict[str, int] = {}
    found = 0
    for mark in order:
        writer, _, number = mark.partition("n")
        found += int(number) < newest.get(writer, -1)
        newest[writer] = max(newest.get(writer, -1), int(number))
    return found


async def _has_first(subject: Subject, session: str) -> bool:
    texts, _ = await texts_or_error(subject.load(session))
    return marks(texts)["first"] > 0
