"""Spans of a memory's calls and of the jobs that they cause, as OpenTelemetry's SDK gets them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import remora.blocking
from remora import Config, Runtime
from remora.adapters.otel import trace_calls
from remora.cluster.sharded import ShardedRuntime
from remora.errors import InvalidInput, KeyConflict
from remora.ids import user_key
from remora.testing import HashEmbedder
from tests.configs import PLAIN
from tests.harness import user
from tests.remote import Owner

pytestmark = pytest.mark.anyio

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "buffer": {"token_limit": 400, "summary_tokens": 50},
        "recall": {"deadline_s": 600},
    }
)


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def take(self) -> Sequence[ReadableSpan]:
        found = self._exporter.get_finished_spans()
        self._exporter.clear()
        return found


@pytest.fixture
def spans() -> Spans:
    return Spans()


def make(path: Path, spans: Spans, **options: Any) -> Runtime:
    runtime = Runtime(path / "memory", config=CONFIG, embedder=HashEmbedder(16))
    trace_calls(runtime, tracer_provider=spans.provider, **options)
    return runtime


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_calls_are_spans_of_the_convention(tmp_path: Path, spans: Spans) -> None:
    """Operation, store, conversation and counts, under the caller's span; no text, no user."""
    tracer = spans.provider.get_tracer("test")
    async with make(tmp_path, spans) as runtime:
        await runtime.ready()
        ann = runtime.user("ann")
        chat = ann.session("one")
        with tracer.start_as_current_span("request") as request:
            await chat.append([user("I keep bees"), user("and hens")])
        await chat.load()
        await chat.load(query="bees")
        await ann.recall("hens")
        (id_,) = await ann.remember("likes honey", key="food")
        await ann.update_memory(id_, "likes jam")
        await ann.delete(id_)
        await runtime.settle()
        await ann.forget()
    found = spans.take()
    calls = [one for one in found if not one.name.startswith("remora.") and one.name != "request"]
    assert [one.name for one in calls] == [
        *("create_memory", "load_context", "search_memory", "search_memory", "create_memory"),
        *("update_memory", "delete_memory", "delete_memory_store"),
    ]
    append, load, query, recall, remember, update, delete, _ = calls
    assert told(append) == {
        "gen_ai.operation.name": "create_memory",
        "gen_ai.memory.store.id": user_key("ann"),
        "gen_ai.conversation.id": "one",
        "gen_ai.memory.record.count": 2,
    }
    assert append.parent is not None
    assert append.parent.span_id == request.get_span_context().span_id
    assert told(load)["remora.context.tokens"] > 0
    assert told(query)["remora.context.recall"] == "ok"
    assert told(recall)["gen_ai.memory.record.count"] >= 1
    assert "gen_ai.conversation.id" not in told(recall)
    assert told(remember)["gen_ai.memory.record.count"] == 1
    assert told(update)["gen_ai.memory.record.id"] == id_
    assert told(delete)["gen_ai.memory.record.count"] == 1
    everything = " ".join(one.to_json() for one in found)
    for text in ("bees", "hens", "honey", '"ann"'):
        assert text not in everything


async def test_jobs_are_linked_to_what_caused_them(tmp_path: Path, spans: Spans) -> None:
    """A trace of its own for each job; its links lead to the call that was under way."""
    async with make(tmp_path, spans) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append(user("hello"))
        await chat.append([user("word " * 60) for _ in range(12)])
        await runtime.settle()
    found = spans.take()
    quiet, cause = [one for one in found if one.name == "create_memory"]
    jobs = [one for one in found if one.name.startswith("remora.")]
    assert {"remora.summarize", "remora.flush"} <= {one.name for one in jobs}
    (summarize,) = [one for one in jobs if one.name == "remora.summarize"]
    assert [link.context.span_id for link in summarize.links] == [cause.context.span_id]
    assert summarize.parent is None
    assert summarize.context.trace_id != cause.context.trace_id
    assert told(summarize)["gen_ai.conversation.id"] == "one"
    assert told(summarize)["remora.job.attempt"] == 1
    assert all(quiet.context != link.context for job in jobs for link in job.links)


async def test_a_call_that_fails_says_of_what_kind(tmp_path: Path, spans: Spans) -> None:
    """The error's text can name users, and is in no span."""
    async with make(tmp_path, spans) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append(user("first"), key="k")
        with pytest.raises(KeyConflict):
            await chat.append(user("second"), key="k")
    _, failed, *_ = [one for one in spans.take() if one.name == "create_memory"]
    assert told(failed)["error.type"] == "KeyConflict"
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description is None
    assert not failed.events


async def test_contents_are_opt_in(
    tmp_path: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the argument, or by the variable that the convention names."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    async with make(tmp_path, spans) as runtime:
        await runtime.ready()
        await runtime.session("ann", "one").append(user("I keep bees"))
        await runtime.user("ann").recall("bees")
    calls = {one.name: told(one) for one in spans.take()}
    (said,) = json.loads(calls["create_memory"]["gen_ai.memory.records"])
    assert said["content"]["content"] == "I keep bees"
    (hit,) = json.loads(calls["search_memory"]["gen_ai.memory.records"])
    assert hit["content"] == "I keep bees"
    assert calls["search_memory"]["gen_ai.memory.query.text"] == "bees"
    async with make(tmp_path / "other", spans, contents=False) as runtime:
        await runtime.session("ann", "one").append(user("I keep bees"))
    assert all("gen_ai.memory.records" not in told(one) for one in spans.take())


@pytest.mark.blocking
async def test_shards_and_workers(tmp_path: Path, spans: Spans) -> None:
    """A worker has the spans of its calls."""
    options = partial(Runtime, tmp_path / "memory", config=CONFIG, embedder=HashEmbedder(16))
    owner = Owner(lambda: ShardedRuntime.of(options(), shards=2))
    await owner.start()
    try:
        memory = owner.worker()
        runtime = ShardedRuntime(memory.shards, transfers=memory.transfers)
        trace_calls(runtime, tracer_provider=spans.provider)
        async with runtime:
            for name in ("ann", "bo", "cy"):
                await runtime.session(name, "one").append(user("hello"))
    finally:
        await owner.stop()
    assert [one.name for one in spans.take()] == ["create_memory"] * 3


@pytest.mark.blocking
def test_blocking_and_wrong_use(spans: Spans) -> None:
    runtime = remora.blocking.Runtime.in_memory(config=PLAIN)
    trace_calls(runtime, tracer_provider=spans.provider)
    for _ in range(2):  # it can be opened again
        with runtime:
            runtime.session("ann", "one").append(user("hello"))
            with pytest.raises(InvalidInput, match="before that"):
                trace_calls(runtime)
    assert len([one for one in spans.take() if one.name == "create_memory"]) == 2
    with pytest.raises(InvalidInput, match="not str"):
        trace_calls("memory/")


@pytest.mark.cold
@pytest.mark.blocking
def test_nothing_of_it_is_loaded_unless_it_is_asked_for() -> None:
    """Without the call, a program has neither spans nor OpenTelemetry."""
    program = "import remora, remora.metrics, sys; assert 'opentelemetry' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
