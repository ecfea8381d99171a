"""The summary buffer: what the model is asked, when, and what becomes of its answers, good and bad."""  # noqa: E501

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from rich.console import Console

from remora import BufferPolicy, Config, Line, Message, Runtime
from remora.cli.render import print_session
from remora.errors import ModelError
from remora.storage.memory import MemoryStore
from remora.storage.records import SummarizeSpec
from remora.testing import ChatResponse, ScriptedChatModel
from tests.harness import user
from tests.integration.test_buffers import PLAIN, Recording, said, session

pytestmark = pytest.mark.anyio
FAST = replace(
    PLAIN,
    supervisor=replace(PLAIN.supervisor, backoff_s=0.01, max_backoff_s=0.02, max_attempts=2),
)
BY_WINDOW = BufferPolicy.window(1, fold="summary")
SUMMARY = BufferPolicy.summary_buffer(50)
LONG = "word " * 12  # 15 tokens


async def test_the_prompt() -> None:
    """S0.11, S0.15, S1.10, S1.13, S1.27: the prompt, a line for each message under the role,
    the previous summary in front of it. The prompt and what stands before a summary can be
    configured.
    """
    model = ScriptedChatModel(["first", "second"])
    async with session(BufferPolicy.window(2, fold="summary"), chat_model=model) as chat:
        await chat.append([user("I like tea."), Message.assistant("Noted."), user("b"), user("c")])
        await chat.settle()
        await chat.append(user("d"))
        await chat.settle()
    asked = model.requests[0][-1]["content"]
    assert asked.endswith(
        "Summarize the following conversation concisely, focusing on key facts and important "
        "information:\n\n"
        "User: I like tea.\nAssistant: Noted."
    )
    for wanted in ("language", "names", "identifiers", "dates", "numbers", "decided", "open"):
        assert wanted in asked
    assert all("Previous summary" not in str(message["content"]) for message in model.requests[0])
    assert model.requests[1][0] == {"role": "system", "content": "Previous summary: first"}
    assert model.requests[1][-1]["content"].endswith("User: b")
    config = replace(
        PLAIN,
        models=replace(PLAIN.models, summary_prompt="Fasse zusammen:\n"),
        buffer=replace(PLAIN.buffer, summary_prefix="Previous conversation summary: "),
    )
    model = ScriptedChatModel(["kurz"])
    async with session(BY_WINDOW, config, chat_model=model) as chat:
        await chat.append([user("a"), user("b")])
        await chat.settle()
        assert model.requests[0][-1]["content"] == "Fasse zusammen:\nUser: a"
        assert (await chat.load()).messages[0]["content"] == "Previous conversation summary: kurz"


async def test_any_callable_summarizes() -> None:
    """S0.10, S0.12, S4.03, S4.20: a plain function, an async one and an object are all chat models."""  # noqa: E501
    asked: list[str] = []

    def plain(prompt: str) -> str:
        asked.append(prompt)
        return "by a function"

    async def waiting(prompt: str) -> str:
        await anyio.lowlevel.checkpoint()
        return "by a coroutine"

    for model, text in (
        (plain, "by a function"),
        (waiting, "by a coroutine"),
        (ScriptedChatModel(["by an object"]), "by an object"),
    ):
        async with session(BY_WINDOW, chat_model=model) as chat:
            await chat.append([user("a"), user("b")])
            await chat.settle()
            assert (await chat.load()).summary == text
    assert "User: a" in asked[0]


async def test_below_the_limit_nobody_is_asked() -> None:
    """S1.08, S1.17, S1.18, S1.23: at the limit no call; one over-long message, no call; what is
    kept is the original.
    """
    async with session(SUMMARY, chat_model=ScriptedChatModel([])) as chat:
        await chat.append(user("x" * 1000))
        await chat.settle()
        assert await chat.size() == 1
    async with session(SUMMARY, chat_model=ScriptedChatModel([])) as chat:
        texts = ["x" * 80, "y" * 80, "z" * 40]
        await chat.append([user(text) for text in texts])  # 20 + 20 + 10: the limit itself
        await chat.settle()
        assert said(await chat.get_messages()) == texts
    async with session(SUMMARY, chat_model=ScriptedChatModel(["summed up"])) as chat:
        await chat.append([user(text) for text in texts])
        await chat.append(user("over"))
        await chat.settle()
        context = await chat.load()
        assert said(context.messages) == [
            "Summary of earlier conversation: summed up",
            "z" * 40,
            "over",
        ]


async def test_exhausted_script() -> None:
    """S1.07, S1.23, S1.24, G6: an exhausted script fails as it says; no message is lost, and an
    extract stands in, visibly.
    """
    model = ScriptedChatModel([ChatResponse("one", usage=3), "two"])
    assert [await model.complete([user("a")]), await model.complete([user("b")])] == ["one", "two"]
    with pytest.raises(Exception, match="scripted model exhausted responses"):
        await model.complete([user("c")])
    async with session(BY_WINDOW, FAST, chat_model=model) as chat:
        assert (await chat.append([user("I was born in Faro."), user("b")])).seqs == (1, 2)
        await chat.settle()
        context = await chat.load()
        assert "Faro" in (context.summary or "")
        summary = (await chat.inspect()).summary
        assert summary is not None
        assert summary.degraded
        assert context.sources["summary"].status == "ok"  # all the text is in it
        assert said(await chat.history()) == ["I was born in Faro.", "b"]


async def test_answers_that_are_no_summary() -> None:
    """G6, G9, S1.22: nothing, a refusal, or a hundred thousand tokens: an extract stands in, says
    so, and the originals stay.
    """
    for answer in (
        "",
        "   \n",
        "I'm sorry, but I can't help with that.",
        "I cannot assist with this request.",
        "endless " * 100_000,
    ):
        told = answer[:20]
        async with session(BY_WINDOW, FAST, chat_model=lambda _, answer=answer: answer) as chat:
            await chat.append([user("My badge number is 4711."), user("b")])
            await chat.settle()
            context = await chat.load(max_tokens=900)
            assert context.tokens <= 900, told
            assert "4711" in (context.summary or ""), told
            assert context.sources["summary"].status == "ok", told  # all the text is in it
            assert not answer.strip() or told not in (context.summary or ""), told
            assert len(await chat.history(include_archived=True)) == 2, told
            assert (await chat.stats()).summaries.degraded == 1, told
            summary = (await chat.inspect()).summary
            assert summary is not None, told
            assert summary.degraded, told
            assert summary.tokens <= 800, told


async def test_calls_and_tokens_are_counted(tmp_path: Path) -> None:
    """S1.19, S0.26, S4.34: a session counts its summaries and what they cost, after a restart too;
    a runtime, the ratio.
    """
    options: Any = {
        "config": PLAIN,
        "policy": BufferPolicy.summary_buffer(100),
        "summarizer": Recording(),
    }
    async with Runtime(tmp_path, **options) as runtime:
        chat = runtime.session("alice", "chat")
        for number in range(40):
            await chat.append(user(f"{number} {LONG}"))
        await chat.settle()
        folds = (await chat.stats()).summaries
        assert 0 < folds.calls <= 40 * 15 // 50
        assert folds.tokens_in > folds.calls * 50
        measured = runtime.statistics().compression["recording"]
        assert (measured.calls, measured.failures) == (folds.calls, 0)
        assert measured.tokens_in == folds.tokens_in
    async with session(where=tmp_path, **options) as chat:
        assert (await chat.stats()).summaries == folds


async def test_compression_strategies() -> None:
    """S4.34, G6: strategies can be chosen; each makes less of what it is given, and says how much
    less. The sentence splitter panics over some blanks, in Rust, which is no `Exception`.
    """
    visit = "On day {0} I went to place {0}. The weather was as one would expect it there."
    blanks = "It was I\xa0. I was {0} years old. Who knew I\u3000. "
    for name in ("extractive", "lead", "tail"):
        config = replace(
            PLAIN,
            models=replace(PLAIN.models, summarizer=name),
            buffer=replace(PLAIN.buffer, summary_tokens=120, token_limit=1000),
        )
        async with Runtime.in_memory(config=config) as runtime:
            for text in (visit, blanks):
                chat = runtime.session("alice", text[:2])
                for number in range(90):
                    await chat.append(user(text.format(number)))
                await chat.settle()
                context = await chat.load()
                assert context.summary, name
                assert context.pending == 0, name
                if text is visit:
                    measured = runtime.statistics().compression[name]
                    assert measured.calls > 0, name
                    assert 0 < measured.ratio < 0.6, name
            assert await runtime.dead_letters() == [], name


async def test_the_slow_summarizer_is_not_on_the_way() -> None:
    """S1.21, G5, S1.11: while a summary is being made, appends and loads go on, in order, and
    nothing is lost.
    """
    opened = anyio.Event()

    class Slow(Recording):
        async def summarize(
            self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
        ) -> str:
            await opened.wait()
            return await super().summarize(previous, lines, max_tokens=max_tokens)

    async with session(BufferPolicy.window(2, fold="summary"), summarizer=Slow()) as chat:
        for number in range(50):
            await chat.append(user(f"m{number}"))
            assert said((await chat.load()).messages)[-1] == f"m{number}"
        context = await chat.load()
        assert context.pending == 1
        assert said(context.messages) == [f"m{number}" for number in range(50)]
        opened.set()
        await chat.settle()
        context = await chat.load()
        assert (context.summary or "").split() + said(context.messages)[1:] == [
            f"m{number}" for number in range(50)
        ]


async def test_flush_batches() -> None:
    """S3.07, S3.08, S3.09, S3.10: the queue folds above 0.7 of the limit, not at it, and hands over
    a flush size at once.
    """
    default = Config().buffer
    assert (default.token_limit, default.fold_ratio, default.token_flush_size) == (
        30_000, 0.7, 3_000,
    )  # fmt: skip
    buffer = replace(PLAIN.buffer, token_limit=1000, token_flush_size=100, summary_tokens=50)
    config = replace(PLAIN, long_term=Config().long_term, buffer=buffer)
    handed: list[int] = []

    class Noting(MemoryStore):
        async def add(self, rows: Any, vectors: Any, *, may_exist: bool) -> None:
            handed.append(sum(len(row.content) // 4 for row in rows))
            await super().add(rows, vectors, may_exist=may_exist)

    async with session(config=config, store=Noting(None)) as chat:
        for _ in range(70):
            await chat.append(user("word " * 8))  # 10 tokens
        await chat.settle()
        view = await chat.inspect()
        assert (view.buffered_tokens, view.pending) == (700, 0)
        assert handed == []
        await chat.append(user("one"))
        await chat.settle()
        assert sum(handed) >= 300
        assert all(tokens <= 100 for tokens in handed)
        await chat.append([user("small"), user("x" * 1600)])
        await chat.settle()
        assert (await chat.inspect()).buffered_tokens <= 700


async def test_figures_agree_during_a_compaction() -> None:
    """S4.36: messages that are being summarized are in the buffer, wherever it is counted."""
    asked = anyio.Event()

    class Stuck(Recording):
        async def summarize(
            self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
        ) -> str:
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError

    async with session(BufferPolicy.window(2, fold="summary"), summarizer=Stuck()) as chat:
        await chat.append([user(letter) for letter in "abcd"])
        await asked.wait()
        view, stats = await chat.inspect(), await chat.stats()
        shown = io.StringIO()
        print_session(
            Console(file=shown, width=200), "alice", view, await chat.history(), [], most=9
        )
        assert (stats.buffered, stats.pending) == (view.buffered, view.pending) == (4, 2)
        assert stats.buffered_tokens == view.buffered_tokens
        assert f"4 in the buffer ({stats.buffered_tokens} tokens), 2 of them" in shown.getvalue()


async def test_stale_summary_is_dropped_after_a_delete() -> None:
    """G5, S4.12: what was deleted while its summary was being made is in no summary."""
    asked = anyio.Event()
    answers = ["secret leaked", "clean"]

    class Slow(Recording):
        async def summarize(
            self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
        ) -> str:
            self.given.append((previous, [line.text for line in lines]))
            asked.set()
            if len(self.given) == 1:
                await anyio.sleep_forever()
            return answers[len(self.given) - 1]

    slow = Slow()
    policy = BufferPolicy.window(2, fold="summary")
    async with Runtime.in_memory(config=PLAIN, policy=policy, summarizer=slow) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append([user("secret"), user("b"), user("c"), user("d")])
        await asked.wait()
        await chat.delete(positions=0)
        await chat.settle()
        assert slow.given[1][1] == ["b"]
        assert (await chat.load()).summary == "clean"
        jobs = await runtime.internals.journal.jobs()
        assert [job for job in jobs if isinstance(job.payload, SummarizeSpec)] == []


async def test_a_summary_of_more_than_a_model_can_read() -> None:
    """G6: no request is above the window, and none is sent again that failed for its size. What
    users say is word for word in it; long results, and bytes, are clipped or named by their size.
    """
    window = 4_000
    config = replace(FAST, models=replace(PLAIN.models, context_window=window))
    model = ScriptedChatModel([ModelError("too long"), "<think>Hm.</think>Order 4711 is late."])
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    result = "row of a table, " * 160_000
    picture = "iVBORw0K" * 10_000
    said = [
        user("My order 4711 is late."),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": result},
        user(f"A photo: {picture}"),
        *(user(f"{n} " + "And this is what happened on that day. " * 100) for n in range(20)),
        user("Well?"),
    ]
    async with session(BY_WINDOW, config, chat_model=model) as chat:
        await chat.append(said)
        await chat.settle()
        context = await chat.load()
        assert context.summary == "Order 4711 is late."
    first, second = (sum(len(one["content"]) for one in sent) // 4 for sent in model.requests)
    assert second < first * 0.7 < window * 0.7
    for sent in model.requests:
        text = sent[-1]["content"]
        assert "My order 4711 is late." in text
        assert "kB are left out]" in text
        assert "of data]" in text
        assert "iVBORw0K" not in text
