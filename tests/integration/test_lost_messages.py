"""Messages that a fallback summary had no room for are named until a model summarized them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora import Config, Line, Runtime, Session
from remora.actors.session.messages import Resummarize
from remora.errors import ModelUnavailable, OverdraftReached, RuntimeClosed
from tests.patience import until
from tests.simulation.rare import reaching
from tests.sqlite import change_rows

pytestmark = pytest.mark.anyio

TAG = re.compile(r"Q\d+x")
SMALL: dict[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "long_term": {"enabled": False},
    "models": {"embedder": "none"},
    "buffer": {"token_limit": 400, "summary_tokens": 120, "summary_prefix": ""},
    "supervisor": {"max_attempts": 1, "breaker_failures": 1_000, "backoff_s": 0.001},
}


class Model:
    """Keeps the tag of every message, while it works."""

    name = "tags"

    def __init__(self, *, works: bool = True) -> None:
        self.works = works
        self.calls: list[int] = []
        self.gate: anyio.Event | None = None

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        assert max_tokens > 0
        self.calls.append(len(lines))
        if self.gate is not None:
            await self.gate.wait()
        if not self.works:
            raise ModelUnavailable("down")
        tags = TAG.findall("\n".join([previous or "", *(line.text for line in lines)]))
        return " ".join(dict.fromkeys(tags))


def message(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Q{number}x {'and the garden of my sister ' * 6}too"}


def config(**sections: dict[str, Any]) -> Config:
    return Config.from_dict(
        {name: {**SMALL.get(name, {}), **sections.get(name, {})} for name in {*SMALL, *sections}}
    )


@asynccontextmanager
async def opened(
    model: Model | None, directory: Path | None = None, **sections: dict[str, Any]
) -> AsyncIterator[Runtime]:
    made = config(**sections)
    runtime = (
        Runtime.in_memory(config=made, summarizer=model)
        if directory is None
        else Runtime(directory, config=made, summarizer=model)
    )
    async with runtime:
        yield runtime


async def missing(chat: Session) -> set[int]:
    """The numbers of messages that no context shows."""
    context = await chat.load(max_tokens=1_000_000)
    text = " ".join(str(one["content"]) for one in context.messages)
    view = await chat.inspect()
    there = [
        one for one in await chat.history() if (one.seq or 0) > view.watermarks.cleared_through
    ]
    return {one.seq or 0 for one in there if TAG.findall(str(one.content))[0] not in text}


async def check(chat: Session) -> set[int]:
    """What is in no summary is named, in all places, and nothing else is."""
    lost = await missing(chat)
    source = (await chat.load()).sources["summary"]
    found = source.degraded
    assert (await chat.inspect()).degraded == found
    assert (await chat.stats()).degraded == found
    assert (source.status == "degraded") is bool(lost)
    if found is None:
        assert not lost
    else:
        assert (found.first, found.last, found.count) == (min(lost), max(lost), len(lost))
    return lost


async def fill(chat: Session, first: int, count: int) -> None:
    for number in range(first, first + count):
        await chat.append(message(number))
    await chat.settle()


async def is_summarized(chat: Session) -> bool:
    return (await chat.load()).sources["summary"].status == "ok"


async def test_lost_messages_are_named_until_they_are_summarized(tmp_path: Path) -> None:
    """G6: after a later fallback, a restart, a fork and an export; then a model's next summary
    takes them along, each once and in order.
    """
    model = Model(works=False)
    async with opened(model, tmp_path) as runtime:
        chat = runtime.session("alice", "chat")
        await fill(chat, 1, 10)
        first = await check(chat)
        assert first
        await fill(chat, 11, 10)
        assert await check(chat) > set()
        copy = await chat.fork("copy")
        assert await check(copy) == await check(chat)
        exported = await chat.export()
        await runtime.user("bob").import_session(exported)
        assert await check(runtime.session("bob", "chat")) == await check(chat)
    async with opened(model, tmp_path) as runtime:
        chat = runtime.session("alice", "chat")
        assert await check(chat)
        model.works = True
        await fill(chat, 21, 6)
        assert await check(chat) == set()
        summary = (await chat.load()).summary or ""
        tags = TAG.findall(summary)
        assert len(tags) == len(set(tags))
        copy = runtime.session("alice", "copy")
        assert await check(copy)
        assert await copy.clear()
        assert await check(copy) == set()


async def test_an_idle_session_is_summarized_again_when_the_model_is_back(tmp_path: Path) -> None:
    """G6: also after a restart, without an append; each call of the model is bounded. While it is
    down each attempt fails and ends, `settle` returns, and the range stays named.
    """
    model = Model(works=False)
    async with opened(model, tmp_path) as runtime:
        chat = runtime.session("alice", "chat")
        await fill(chat, 1, 30)
        lost = await check(chat)
        assert len(lost) > 10
    model.calls = []
    async with opened(model, tmp_path, supervisor={"resummarize_interval_s": 0.01}) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.load()
        await until(lambda: len(model.calls) >= 3, "attempts are made")
        await chat.settle()
        assert await check(chat) == lost
        failed = len(model.calls)
        model.works = True
        await until(partial(is_summarized, chat), "the model's summary is there")
        assert await check(chat) == set()
        assert len(model.calls) > failed + 1
        assert max(model.calls) < 10
    async with opened(model, tmp_path) as runtime:
        assert await check(runtime.session("alice", "chat")) == set()


async def test_a_repair_is_superseded_by_clear_and_forget() -> None:
    """G6, G13: a late repair brings nothing back."""
    model = Model(works=False)
    async with opened(model, supervisor={"resummarize_interval_s": 0.01}) as runtime:
        for verb in ("clear", "forget", "rewind"):
            chat = runtime.session("alice", verb)
            await fill(chat, 1, 20)
            assert await check(chat)
            model.works, model.gate, model.calls = True, anyio.Event(), []
            await until(lambda: model.calls, "a repair has begun")
            if verb == "rewind":
                await chat.rewind(1)
            else:
                await getattr(chat, verb)()
            model.gate.set()
            model.gate = None
            await chat.settle()
            assert (await chat.inspect()).summary is None
            assert await check(chat) == set()
            model.works = False


async def test_without_a_model_the_status_says_what_is_in_no_context() -> None:
    """G6: the default install keeps extracts; what they leave out is named, and in the history."""
    async with opened(None) as runtime:
        chat = runtime.session("alice", "chat")
        await fill(chat, 1, 60)
        lost = await check(chat)
        assert len(lost) > 30
        assert len(await chat.history()) == 60


async def test_an_extract_is_sized_by_what_it_stands_for() -> None:
    """G9: half of what it replaces, at least a summary, at most what compaction leaves; in a
    smaller budget its brief form is shown.
    """
    buffer = {"token_limit": 4_000, "summary_tokens": 100, "fold_ratio": 0.5}
    async with opened(None, buffer=buffer) as runtime:
        chat = runtime.session("alice", "chat")
        await fill(chat, 1, 55)
        summary = (await chat.inspect()).summary
        assert summary is not None
        assert 100 < summary.tokens <= 2_000
        assert summary.tokens > 400
        for budget in (50, 210, 400, 900, 3_000, 4_000):
            context = await chat.load(max_tokens=budget)
            assert context.tokens <= budget
            if budget >= 400:
                assert context.summary
        assert (await chat.load(max_tokens=400)).summary == summary.brief
        assert summary.brief_tokens <= 100


async def test_a_damaged_message_that_is_lost_blocks_no_extract(tmp_path: Path) -> None:
    """G11: messages whose text is in a summary are read again, and not those between them."""
    buffer = {"token_limit": 1_000, "summary_tokens": 100, "fold_ratio": 0.5}

    async def fill_unevenly(first: int) -> None:
        for number in range(first, first + 30):
            said = "and the garden of my sister " * (1 + number % 3 * 4)
            await chat.append({"role": "user", "content": f"Q{number}x {said}too"})
        await chat.settle()

    async with opened(None, tmp_path, buffer=buffer) as runtime:
        chat = runtime.session("alice", "chat")
        await fill_unevenly(1)
        view = await chat.inspect()
        before = view.summary
        assert before is not None
        assert len(before.verbatim) > 1
        place = f"pos = ({view.sid} << 32) + {before.verbatim[0].last + 1}"
        await change_rows(tmp_path / "journal.db", f"UPDATE messages SET crc = 1 WHERE {place}")
        await fill_unevenly(31)
        summary = (await chat.inspect()).summary
        assert summary is not None
        assert summary.through > before.through
        assert summary.model == "extractive"
        assert summary.verbatim[0].first <= before.through  # it is still known


async def start_compaction(chat: Session) -> None:
    """Append until a compaction runs."""
    number = 100
    while not (await chat.inspect()).pending:
        number += 1
        await chat.append(message(number))


async def overdraw(chat: Session) -> None:
    """Append until a compaction runs and no message more fits."""
    await start_compaction(chat)
    view = await chat.inspect()
    size = view.entries[-1].tokens
    for number in range(200, 200 + (400 - view.buffered_tokens + view.pending_tokens) // size):
        await chat.append(message(number))


async def test_refuse() -> None:
    """G6: an append beyond the overdraft is refused before anything is written, and its key is
    free; a key that was used answers as before.
    """
    model = Model()
    model.gate = anyio.Event()
    async with opened(model, buffer={"overdraft": "refuse", "overdraft_ratio": 1.0}) as runtime:
        chat = runtime.session("alice", "chat")
        kept = await chat.append(message(900), key="first")
        await overdraw(chat)
        before = len(await chat.history())
        with pytest.raises(OverdraftReached) as caught:
            await chat.append(message(901), key="second")
        assert caught.value.retryable
        assert caught.value.tokens > caught.value.limit == 400
        assert len(await chat.history()) == before
        assert (await chat.append(message(900), key="first")).seqs == kept.seqs
        model.gate.set()
        await chat.settle()
        receipt = await chat.append(message(901), key="second")
        assert not receipt.duplicate
        assert await check(chat) == set()


async def test_wait() -> None:
    """G6: appends wait for the compaction, in order; none is lost, and none becomes an extract."""
    model = Model()
    model.gate = anyio.Event()
    async with opened(model, buffer={"overdraft": "wait", "overdraft_ratio": 1.0}) as runtime:
        chat = runtime.session("alice", "chat")
        await overdraw(chat)
        before = len(await chat.history())
        with pytest.raises(OverdraftReached):
            await chat.append(message(901), timeout_s=0.02)
        async with anyio.create_task_group() as tasks:
            for number in range(902, 908):
                tasks.start_soon(partial(chat.append, message(number), key=str(number)))
                await anyio.sleep(0)
            assert len(await chat.history()) == before
            assert (await chat.load()).tokens
            model.gate.set()
        numbers = [TAG.findall(str(one.content))[0] for one in await chat.history()]
        assert numbers[before:] == [f"Q{number}x" for number in range(902, 908)]
        assert (await chat.append(message(902), key="902")).duplicate
        await chat.settle()
        assert (await chat.stats()).summaries.degraded == 0
        assert await check(chat) == set()


@pytest.mark.parametrize("timeout_s", [0.0, 1e-6, 0.001])
async def test_appends_with_hardly_any_time_are_refused_as_others_are(timeout_s: float) -> None:
    """G6: one that is alone, one whose time is over before the first is refused again, and one that
    comes when the line is about to be dissolved.
    """
    model = Model()
    model.gate = anyio.Event()
    async with opened(model, buffer={"overdraft": "wait", "overdraft_ratio": 1.0}) as runtime:
        chat = runtime.session("alice", "chat")
        await overdraw(chat)
        before = len(await chat.history())
        errors: list[OverdraftReached] = []

        async def append(number: int) -> None:
            try:
                await chat.append(message(number), key=str(number), timeout_s=timeout_s)
            except OverdraftReached as e:
                errors.append(e)

        await append(901)
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for number in range(902, 910):
                    tasks.start_soon(append, number)
                    await anyio.sleep(0)
        assert len(errors) == 25
        assert {error.limit for error in errors} == {400}
        assert len(await chat.history()) == before
        model.gate.set()
        assert not (await chat.append(message(901), key="901")).duplicate
        await chat.settle()
        assert await check(chat) == set()


async def test_nothing_deadlocks_while_appends_wait() -> None:
    """G5, G11: an append of a summarizer does not wait; closing and forgetting end the wait."""
    refused = anyio.Event()

    class Appends(Model):
        async def summarize(
            self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
        ) -> str:
            await anyio.sleep(0)
            with pytest.raises(OverdraftReached):
                while True:
                    await chat.append(message(700))
            refused.set()
            await anyio.sleep_forever()
            raise AssertionError

    errors: list[Exception] = []

    async def wait() -> None:
        try:
            await chat.append(message(999))
        except Exception as e:
            errors.append(e)

    async with anyio.create_task_group() as tasks:
        async with opened(
            Appends(), buffer={"overdraft": "wait", "overdraft_ratio": 1.0}
        ) as runtime:
            chat = runtime.session("alice", "chat")
            await start_compaction(chat)
            await refused.wait()
            tasks.start_soon(wait)
            await anyio.sleep(0)
            await chat.forget()
            chat = runtime.session("alice", "other")
            refused = anyio.Event()
            await start_compaction(chat)
            await refused.wait()
            tasks.start_soon(wait)
            await anyio.sleep(0)
    assert isinstance(errors[-1], RuntimeClosed)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 8)),
        st.tuples(st.just("model"), st.booleans()),
        st.tuples(st.sampled_from(["clear", "fork", "forget", "delete"]), st.just(0)),
        st.tuples(st.just("rewind"), st.integers(0, 40)),
    ),
    min_size=3,
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS, model=st.booleans())
def test_the_degraded_range_is_what_is_in_no_summary(
    steps: list[tuple[str, Any]], *, model: bool
) -> None:
    """G6: whatever fails when, and whatever is cleared, rewound, forked or forgotten in between."""

    async def run() -> None:
        tags = Model(works=False) if model else None
        number = 0
        async with opened(tags) as runtime:
            chat = runtime.session("alice", "chat")
            for count, (verb, what) in enumerate(steps):
                if verb == "append":
                    await fill(chat, number + 1, what)
                    number += what
                elif verb == "model":
                    if tags is not None:
                        tags.works = what
                elif verb == "rewind":
                    last = (await chat.inspect()).last_seq
                    there = {one.seq for one in await chat.history()} | {0}
                    if what <= last and what in there:
                        await chat.rewind(what)
                elif verb == "fork":
                    chat = await chat.fork(f"copy-{count}")
                elif verb == "delete":
                    if await chat.size():
                        await chat.delete(positions=0)
                else:
                    await getattr(chat, verb)()
                await chat.settle()
                await check(chat)
            if tags is not None:
                tags.works = True
                await fill(chat, number + 1, 8)
                await fill(chat, number + 9, 8)
                assert await check(chat) == set()

    anyio.run(run)


async def test_an_attempt_that_is_asked_for_while_the_last_one_ends() -> None:
    """G6, G11: it is made, at whatever moment it is asked for; none is taken for the last one."""
    model = Model(works=False)
    async with opened(model) as runtime:
        chat = runtime.session("alice", "chat")
        await fill(chat, 1, 20)
        assert await check(chat)
        calls = len(model.calls)
        while len(model.calls) < calls + 100:
            assert await runtime.internals.registry.ask_control(chat.key, Resummarize())
            await anyio.sleep(0)


class Extract:
    """An extract that takes until it is told to go on."""

    name = "slow extract"
    extracts = True

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.gate = anyio.Event()
        self.given: list[str] = []

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        self.given += [TAG.findall(line.text)[0] for line in lines]
        self.begun.set()
        await self.gate.wait()
        return "\n".join([*([previous] if previous else []), *(line.spoken for line in lines)])


async def test_an_extract_that_is_made_is_not_made_anew() -> None:
    """Where no model summarizes, the overdraft has no quicker way: it costs no second extract."""
    extract = Extract()
    made = config(buffer={"summary_tokens": 100_000})
    async with Runtime.in_memory(config=made, summarizer=extract) as runtime:
        chat = runtime.session("alice", "chat")
        number = 0
        while not extract.begun.is_set():
            await chat.append(message(number := number + 1))
            await anyio.lowlevel.checkpoint()
        with reaching("overdraft_reached"):
            for _ in range(40):
                await chat.append(message(number := number + 1))
        extract.gate.set()
        await chat.settle()
        assert len(extract.given) == len(set(extract.given)) > 0


@pytest.mark.blocking
def test_an_extract_that_a_commit_calls_for(tmp_path: Path) -> None:
    """The overdraft is noticed when a commit is acknowledged, which no task does: the extract is
    made, and who waits for the same commit is answered. asyncio alone runs the loop, not anyio.
    """

    async def run() -> int:
        rests = {"backoff_s": 600.0, "max_backoff_s": 600.0, "max_attempts": 9}
        async with opened(Model(works=False), tmp_path, supervisor=rests) as runtime:
            chat = runtime.session("alice", "chat")
            with reaching("job_pulled_from_backoff", "summary_degraded"):
                for number in range(1, 61):
                    await chat.append(message(number))
                    await asyncio.sleep(0)
            return len(await chat.history())

    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # where nobody named the event loop
        assert pool.submit(asyncio.run, run()).result() == 60
