"""The programs: one for each claim, written once against `benchmarks.correctness.protocol.Subject`.
Standard library only.

A program reports its figures as it gets them, so that what was measured before a time limit is not
lost. None of them knows which library it talks to.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.correctness.protocol import (
    Embedding,
    Open,
    Setting,
    Subject,
    Summaries,
    marked,
    marks,
)

__all__ = ["FULL", "PROGRAMS", "SMALL", "Bench", "Sizes"]

Figure = int | float | str


@dataclass(frozen=True)
class Sizes:
    """How large the programs are.

    Attributes:
        callers: how many at once, and how many messages each appends.
        flood: writers and messages of each, for the programs that overflow a session.
        limits: tokens of short-term memory in the flood.
        outage: tokens of short-term memory, and messages that are appended while the summarizer
            fails.
        cancels: appends that are cancelled, each at another moment.
        slow_s: what the slow summarizer takes.
        rounds: how often it is waited behind.
        summary_s: what the ordinary one takes.
        paced: messages of the writer beside whom a reader loads.
        spoken: messages of the user who is deleted.
        asked: contexts of the other user that are searched for a secret.
        open: sessions that are open at once.
        patience_s: after which a call hangs.
        box_s: after which no caller begins another append.
    """

    callers: tuple[tuple[int, int], ...] = ((1, 64), (2, 32), (8, 8), (64, 8))
    flood: tuple[int, int] = (8, 25)
    limits: tuple[int, ...] = (4_000, 400)
    outage: tuple[tuple[int, int], ...] = ((4_000, 200), (400, 60))
    cancels: int = 31
    slow_s: float = 2.0
    rounds: int = 3
    summary_s: float = 0.2
    paced: int = 60
    spoken: int = 60
    asked: int = 10
    open: int = 300
    patience_s: float = 10.0
    box_s: float = 60.0


FULL = Sizes()
SMALL = Sizes(
    callers=((1, 6), (2, 4), (8, 3), (64, 1)),
    flood=(4, 10),
    limits=(800,),
    outage=((400, 20),),
    cancels=5,
    slow_s=1.0,
    rounds=1,
    summary_s=0.05,
    paced=25,
    spoken=24,
    asked=2,
    open=40,
)


@dataclass(frozen=True)
class Bench:
    """What a program works with.

    Attributes:
        opened: opens the library on a directory.
        directory: of this run; each opening has a directory of its own in it.
        report: takes figures as they come.
        sizes: how large the program is.
        summarizes: whether the library has a summarizer.
        shares_blocks: whether several sessions can be given one object that searches long-term
            memory.
    """

    opened: Open
    directory: Path
    report: Callable[[dict[str, Figure]], None]
    sizes: Sizes = FULL
    summarizes: bool = True
    shares_blocks: bool = False

    async def open(self, name: str, setting: Setting | None = None) -> Subject:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        return await self.opened(directory, setting or Setting())


# -- what several programs need --------------------------------------------------------------------


async def _within(work: Awaitable[object], seconds: float) -> BaseException | bool | None:
    """True if it ended well, the exception if not, None if it has not ended; it is never cancelled."""  # noqa: E501
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        return None
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or True


def _named(error: BaseException) -> str:
    return type(error).__name__


@dataclass
class _Written:
    """What came of many appends: marks, and what was raised."""

    acknowledged: list[str]
    refused: list[str]
    errors: Counter[str]

    @property
    def sent(self) -> int:
        return len(self.acknowledged) + len(self.refused)


async def _writers(
    bench: Bench, subject: Subject, session: str, count: int, each: int, words: int
) -> _Written:
    """So many callers at once, each of whom waits for each of its appends."""
    written = _Written([], [], Counter())
    end = time.perf_counter() + bench.sizes.box_s

    async def write(writer: int) -> None:
        for number in range(each):
            if time.perf_counter() > end:
                return
            mark = f"w{writer}n{number}"
            try:
                await subject.append(session, [marked(mark, words)])
            except Exception as e:
                written.errors[_named(e)] += 1
                written.refused.append(mark)
            else:
                written.acknowledged.append(mark)

    await asyncio.gather(*(write(writer) for writer in range(count)))
    return written


async def _texts_or_error(work: Awaitable[list[str]]) -> tuple[list[str], str]:
    """The texts, or none and the name of what was raised."""
    try:
        return await work, ""
    except Exception as e:
        return [], _named(e)


def _inverted(order: Sequence[str]) -> int:
    """Messages that stand behind a later one of the same caller."""
    newest: dict[str, int] = {}
    found = 0
    for mark in order:
        writer, _, number = mark.partition("n")
        found += int(number) < newest.get(writer, -1)
        newest[writer] = max(newest.get(writer, -1), int(number))
    return found


async def _still_kept(subject: Subject, session: str, missing: set[str]) -> int:
    """How many of the missing the library can give back all the same."""
    texts, _ = await _texts_or_error(subject.kept(session))
    return len(missing & set(marks(texts)))


# -- the programs ----------------------------------------------------------------------------------


async def concurrent_appends(bench: Bench) -> None:
    """Callers append to one session at once; then it is read."""
    for count, each in bench.sizes.callers:
        subject = await bench.open(f"callers-{count}")
        session = "ann/1"
        await subject.append(session, [marked("first", 4)])
        written = await _writers(bench, subject, session, count, each, words=4)
        await subject.settle()
        texts, unreadable = await _texts_or_error(subject.load(session))
        there = marks(texts)
        order = [mark for mark in _in_order(texts) if mark != "first"]
        missing = set(written.acknowledged) - set(there)
        bench.report(
            {
                f"{count}.sent": written.sent,
                f"{count}.acknowledged": len(written.acknowledged),
                f"{count}.rejected": len(written.refused),
                f"{count}.errors": ", ".join(written.errors),
                f"{count}.lost": len(missing),
                f"{count}.unreadable": unreadable,
                f"{count}.kept": await _still_kept(subject, session, missing),
                f"{count}.doubled": sum(times > 1 for times in there.values()),
                f"{count}.reordered": _inverted(order),
                f"{count}.refused_there": len(set(order) - set(written.acknowledged)),
            }
        )
        await subject.close()


def _in_order(texts: Sequence[str]) -> list[str]:
    return [mark for text in texts for mark in marks([text])]


async def deliveries(bench: Bench) -> None:
    """Writers overflow a session whose overflow goes to long-term memory; then its rows are
    counted.
    """
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
        written = await _writers(bench, subject, session, count, every, words=30)
        await subject.settle()
        buffered, unreadable = await _texts_or_error(subject.buffered(session))
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


async def summarizer_raises(bench: Bench) -> None:
    """The summarizer fails for a while, then works again; then five more messages, and the context
    is read.
    """
    for limit, count in bench.sizes.outage:
        summaries = Summaries()
        summaries.failing = True
        subject = await bench.open(
            f"outage-{limit}", Setting(limit_tokens=limit, summarize=summaries)
        )
        session = "ann/1"
        written = await _writers(bench, subject, session, 1, count, words=30)
        summaries.failing = False
        for number in range(5):
            mark = f"after{number}"
            ended = await _within(subject.append(session, [marked(mark)]), bench.sizes.patience_s)
            (written.acknowledged if ended is True else written.refused).append(mark)
        await subject.settle()
        texts, unreadable = await _texts_or_error(subject.load(session))
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
                f"{limit}.kept": await _still_kept(subject, session, missing),
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
        written = await _writers(bench, subject, session, writers, each, words=30)
        await asyncio.sleep(1)
        await subject.settle()
        texts, unreadable = await _texts_or_error(subject.load(session))
        missing = set(written.acknowledged) - summaries.covered(texts)
        bench.report(
            {
                f"{limit}.acknowledged": len(written.acknowledged),
                f"{limit}.rejected": len(written.refused),
                f"{limit}.lost": len(missing),
                f"{limit}.unreadable": unreadable,
                f"{limit}.kept": await _still_kept(subject, session, missing),
                f"{limit}.summaries": summaries.calls,
            }
        )
        await subject.close()


async def loads_meanwhile(bench: Bench) -> None:
    """A writer overflows a session, a reader loads it all the while: loads that lack a message
    acknowledged before they began.
    """
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
            texts, error = await _texts_or_error(subject.load(session))
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


async def cancelled_append(bench: Bench) -> None:
    """An append of four messages to a session of twenty is cancelled, each time at another moment
    of its way.
    """
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
    """The append that waits for a summary is cancelled; where none does, whichever came last."""
    summaries = Summaries(bench.sizes.slow_s / 2)
    subject = await bench.open("cancelled-summary", Setting(limit_tokens=400, summarize=summaries))
    session = "ann/1"
    acknowledged, appending = await _until_summary(subject, session, summaries)
    appending.cancel()
    await asyncio.wait({appending}, timeout=bench.sizes.patience_s)
    await _within(subject.settle(), bench.sizes.patience_s)
    if await _within(subject.append(session, [marked("next")]), bench.sizes.patience_s) is True:
        acknowledged.append("next")
    await _within(subject.settle(), bench.sizes.patience_s)
    texts, _ = await _texts_or_error(subject.load(session))
    missing = set(acknowledged) - summaries.covered(texts)
    bench.report(
        {
            "summary.acknowledged": len(acknowledged),
            "summary.lost": len(missing),
            "summary.kept": await _still_kept(subject, session, missing),
        }
    )
    await subject.close()


async def _until_summary(
    subject: Subject, session: str, summaries: Summaries
) -> tuple[list[str], asyncio.Future[tuple[float, str]]]:
    """Append until a summary is being made: the marks acknowledged by then, the append that was
    under way, or the last one.
    """
    acknowledged: list[str] = []
    for number in range(200):
        appending = asyncio.ensure_future(_time(subject.append(session, [marked(f"n{number}")])))
        begun = asyncio.ensure_future(summaries.begun.wait())
        await asyncio.wait({appending, begun}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        # One that is made in the background begins a moment after the append that caused it.
        await asyncio.sleep(0.02)
        if appending.done() and not appending.result()[1]:
            acknowledged.append(f"n{number}")
        if summaries.running:
            return acknowledged, appending
    raise AssertionError("no summary began")


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
        errors[_named(error)] += 1
    ended = await _within(subject.append(session, [marked("next", 4)]), patience)
    if ended is None:
        counted["hung"] += 1
    elif isinstance(ended, BaseException):
        counted["refused"] += 1
        errors[_named(ended)] += 1
    loading = asyncio.ensure_future(subject.load(session))
    await asyncio.wait({loading}, timeout=patience)
    if not loading.done():
        counted["hung"] += ended is not None
        return
    error = loading.exception()
    there = Counter[str]() if error is not None else marks(loading.result())
    if error is not None:
        errors[_named(error)] += 1
    gone = sum(mark not in there for mark in before) + (ended is True and "next" not in there)
    counted["wiped"] += all(mark not in there for mark in before)
    counted["lost"] += gone > 0
    new = sum(mark in there for mark in batch)
    counted["half"] += 0 < new < len(batch)
    counted["applied"] += reached and new == len(batch)
    counted["doubled"] += any(times > 1 for times in there.values())
    await _within(subject.close(), patience)


async def append_behind_summary(bench: Bench) -> None:
    """Appends until a slow summarizer is at work; then one more append, and a load, beside it."""
    times: dict[str, list[float]] = {"own": [], "beside": [], "load": []}
    unhindered = 0
    errors: dict[str, Figure] = {}
    for number in range(bench.sizes.rounds):
        summaries = Summaries(bench.sizes.slow_s)
        subject = await bench.open(f"slow-{number}", Setting(limit_tokens=400, summarize=summaries))
        session = "ann/1"
        _, appending = await _until_summary(subject, session, summaries)
        beside = asyncio.ensure_future(_time(subject.append(session, [marked("beside")])))
        loading = asyncio.ensure_future(_time(subject.load(session)))
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


async def _time(work: Awaitable[object]) -> tuple[float, str]:
    """Milliseconds, and what was raised."""
    start = time.perf_counter()
    error = ""
    try:
        await work
    except Exception as e:
        error = _named(e)
    return (time.perf_counter() - start) * 1_000, error


async def same_key_twice(bench: Bench) -> None:
    """One request, sent again: after its answer, eight times at once, and after a restart."""
    subject = await bench.open("keys")
    errors: Counter[str] = Counter()

    async def send(session: str, key: str) -> None:
        try:
            await subject.append(session, [marked(f"once{key}", 4)], key=key)
        except Exception as e:
            errors[_named(e)] += 1

    async def copies(session: str, key: str) -> int:
        texts, _ = await _texts_or_error(subject.load(session))
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
    survived = await _first_is_there(subject, "ann/3")
    if survived:
        await send("ann/3", "c")
        bench.report({"restart": await copies("ann/3", "c"), "restart.errors": ", ".join(errors)})
    else:
        bench.report({"restart": "nothing survives a restart"})
    await subject.close()


async def _first_is_there(subject: Subject, session: str) -> bool:
    texts, _ = await _texts_or_error(subject.load(session))
    return marks(texts)["first"] > 0


async def left_on_disk(bench: Bench) -> None:
    """A user's sessions are deleted and everything is closed; then the bytes of every file are
    searched for what was said.
    """
    embed = Embedding()
    subject = await bench.open("disk", Setting(limit_tokens=400, embed=embed))
    sessions = ["ann/1", "ann/2"]
    said = [f"zqx{n}v" for n in range(bench.sizes.spoken)]
    for n, mark in enumerate(said):
        await subject.append(sessions[n % 2], [marked(mark)])
        await subject.append("bob/1", [marked(f"other{n}")])
    await subject.settle()
    directory = bench.directory / "disk"
    before = _found_in(directory, said)
    await subject.delete("ann", sessions)
    await subject.settle()
    readable: set[str] = set()
    for session in sessions:
        for work in (subject.load(session), subject.kept(session)):
            texts, _ = await _texts_or_error(work)  # what is not there any more may well be refused
            readable |= set(marks(texts))
    others: set[str] = set()
    for work in (subject.load("bob/1"), subject.kept("bob/1")):
        others |= set(marks((await _texts_or_error(work))[0]))
    rows = set(marks((await _texts_or_error(subject.delivered()))[0]))
    await subject.close()
    files = _found_in(directory, said)
    bench.report(
        {
            "said": len(said),
            "before": len(before),
            "readable": len(readable & set(said)),
            "rows": len(rows & set(said)),
            "in_files": len(files),
            "others_lost": sum(f"other{n}" not in others for n in range(len(said))),
            "bytes_files": sum(path.is_file() for path in directory.rglob("*")),
        }
    )


def _found_in(directory: Path, said: Sequence[str]) -> set[str]:
    contents = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    return {mark for mark in said if any(mark.encode() in content for content in contents)}


async def strangers_secret(bench: Bench) -> None:
    """Anna tells a secret that goes into the shared long-term memory; Ann, another user, asks for
    it.
    """
    secret = "SECRET-4711"
    question = "what is the combination of the old vault"
    for case, one_block in (
        (("store", False), ("block", True)) if bench.shares_blocks else (("store", False),)
    ):
        subject = await bench.open(
            case, Setting(limit_tokens=400, embed=Embedding(), one_block=one_block)
        )
        for user in ("anna", "ann"):
            fact = secret if user == "anna" else "not known to me"
            await subject.append(
                f"{user}/1",
                [f"the combination of the old vault is {fact} and nobody else may know it"],
            )
            for n in range(20):
                words = " ".join(
                    f"{user}{n}x{m}" for m in range(30)
                )  # nothing that the question has in common with it
                await subject.append(f"{user}/1", [f"[[{user}{n}]] {words}"])
        await subject.settle()
        own = leaked = 0
        for _ in range(bench.sizes.asked):
            own += any(secret in text for text in await subject.load("anna/1", query=question))
            leaked += any(secret in text for text in await subject.load("ann/1", query=question))
        bench.report(
            {f"{case}.asked": bench.sizes.asked, f"{case}.own": own, f"{case}.leaked": leaked}
        )
        await subject.close()


async def open_sessions(bench: Bench) -> None:
    """Sessions of different users are opened, each with a message, and stay open."""
    subject = await bench.open("open")
    await subject.append("first/1", [marked("first", 4)])
    await subject.settle()
    before = _held()
    for number in range(bench.sizes.open):
        await subject.append(f"user{number}/1", [marked(f"n{number}", 4)])
    after = _held()
    bench.report(
        {
            "sessions": bench.sizes.open,
            "descriptors": after[0] - before[0],
            "threads": after[1] - before[1],
            "base_descriptors": before[0],
        }
    )
    await subject.close()


def _held() -> tuple[int, int]:
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


PROGRAMS: dict[str, Callable[[Bench], Coroutine[None, None, None]]] = {
    program.__name__: program
    for program in (
        concurrent_appends,
        deliveries,
        summarizer_raises,
        overflow,
        loads_meanwhile,
        cancelled_append,
        append_behind_summary,
        same_key_twice,
        left_on_disk,
        strangers_secret,
        open_sessions,
    )
}
