"""Spans of OpenTelemetry around the calls of a memory, and around the jobs that they cause.

Needs the extra: ``pip install "remora[otel]"``, which is OpenTelemetry's API; the application
chooses the SDK and the exporter::

    runtime = remora.Runtime("memory/")
    trace_calls(runtime)
    async with runtime:
        ...

Names and attributes are those of the GenAI conventions' memory operations, which are in
development. Without this call, nothing of it runs.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from remora.actors.session.messages import Append
from remora.actors.user.messages import (
    ChangeMemory,
    Learn,
    Remember,
    SearchWorking,
)
from remora.api.base import BaseRuntime, holder_of
from remora.api.runtime import Runtime
from remora.api.shards import built_of
from remora.api.threads import original_of
from remora.errors import InvalidInput
from remora.ids import SessionKey, UserKey, user_key
from remora.messages import Entry, Receipt, decode_chat
from remora.recall.context import Context
from remora.recall.memory import Memory
from remora.runtime.jobs import Handler, Job, JobAttempt, JobResult
from remora.services.deleting import DeletionReceipt, DeletionRequest
from remora.services.erasure import ErasureReceipt
from remora.services.parts import Parts, PartsHolder

try:
    from opentelemetry.context import Context as NoParent
    from opentelemetry.trace import (
        Link,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        Tracer,
        TracerProvider,
        get_tracer,
    )
except ImportError as e:
    raise ImportError('spans need OpenTelemetry: pip install "remora[otel]"') from e

__all__ = ["trace_calls"]

_CONTENTS = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_MOST_JOBS = 10_000
_MOST_LINKS = 16


def trace_calls(
    runtime: Any,
    *,
    tracer_provider: TracerProvider | None = None,
    contents: bool | None = None,
) -> None:
    """Have a runtime make spans of its calls and jobs, from when it opens.

    A span has the pseudonym of the user that logs have, and the id of the session as the
    application named it. Texts are in spans only if `contents` is set.

    Args:
        runtime: not open: a `remora.Runtime`, what `remora.connect` returned, or one of
            `remora.blocking`. In a worker the calls are traced; the jobs are the owner's.
        tracer_provider: None for OpenTelemetry's global one.
        contents: queries and records are attributes; None for what the environment variable
            ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` says.

    Raises:
        InvalidInput: it is open, or no runtime.
    """
    original = original_of(runtime)
    if contents is None:
        contents = os.environ.get(_CONTENTS, "").strip().lower() == "true"
    tracer = get_tracer("remora", tracer_provider=tracer_provider)
    if not isinstance(original, BaseRuntime):
        raise InvalidInput(f"trace_calls takes a runtime, not {type(runtime).__name__}")
    for shard in getattr(original, "shards", [original]):
        holder = holder_of(shard)
        if holder.phase == "open":
            raise InvalidInput("the runtime is open: call trace_calls before that")
        _Tracing(tracer, contents=contents).attach(holder, shard)


class _Tracing:
    """Makes the spans of one runtime or shard."""

    def __init__(self, tracer: Tracer, *, contents: bool) -> None:
        self.tracer = tracer
        self.contents = contents
        self._open: dict[SessionKey | UserKey, list[SpanContext]] = {}
        """Of each actor, the calls that wait for it, and its jobs that run."""
        self._causes: OrderedDict[str, list[SpanContext]] = OrderedDict()
        """By id, of jobs that wait: what was open when they came."""

    def attach(self, holder: PartsHolder, runtime: Any) -> None:
        """Trace what is opened from now on."""
        further = holder.wrap

        def wrap(parts: Parts) -> Parts:
            parts = parts if further is None else further(parts)
            built = built_of(runtime) if isinstance(runtime, Runtime) else None
            for queue in () if built is None else built.supervisor.queues.values():
                queue.on_job = self._note_job
                queue.handler = self._traced(queue.name, queue.handler)
            traced: dict[str, Any] = {
                "actors": _Actors(self, parts.actors),
                "appends": _Appends(self, parts.appends),
                "contexts": _Contexts(self, parts.contexts),
                "work": _Work(self, parts.work),
            }
            if parts.recalls is not None:
                traced["recalls"] = _Recalls(self, parts.recalls)
            return msgspec.structs.replace(parts, **traced)

        holder.wrap = wrap

    @contextmanager
    def call(
        self,
        operation: str,
        key: SessionKey | UserKey,
        *,
        count: int | None = None,
        query: str | None = None,
        record: str | None = None,
        records: Iterable[Mapping[str, Any]] = (),
    ) -> Iterator[Span]:
        """A span around a call, under the caller's."""
        attributes = _attributes_of(key) | {"gen_ai.operation.name": operation}
        if record is not None:
            attributes["gen_ai.memory.record.id"] = record
        if self.contents and query is not None:
            attributes["gen_ai.memory.query.text"] = query
        with (
            self.tracer.start_as_current_span(
                operation,
                kind=SpanKind.INTERNAL,
                attributes=attributes,
                record_exception=False,  # its text can name users
                set_status_on_exception=False,
            ) as span,
            self._opened(span, key),
        ):
            if count is not None:
                self.say(span, count, records)
            yield span

    def say(self, span: Span, count: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Say how many records a call is about, and, if that is wanted, which."""
        span.set_attribute("gen_ai.memory.record.count", count)
        if self.contents and span.is_recording():
            span.set_attribute("gen_ai.memory.records", json.dumps(list(records)))

    @contextmanager
    def _opened(self, span: Span, key: SessionKey | UserKey) -> Iterator[None]:
        """Jobs of the actor that come in the meantime are this span's; its failure is noted."""
        context = span.get_span_context()
        spans = self._open.setdefault(key, [])
        spans.append(context)
        try:
            yield
        except BaseException as e:
            span.set_attribute("error.type", type(e).__name__)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            spans.remove(context)
            if not spans:
                del self._open[key]

    # -- jobs --------------------------------------------------------------------------------------

    def _note_job(self, job: Job) -> None:
        key: Any = job.key
        spans = self._open.get(key)
        if spans:
            self._causes[job.id] = spans[-_MOST_LINKS:]
            if len(self._causes) > _MOST_JOBS:
                self._causes.popitem(last=False)

    def _traced(self, queue: str, handler: Handler) -> Handler:
        async def run(attempt: JobAttempt) -> JobResult:
            job = attempt.job
            key: Any = job.key
            links = [Link(context) for context in self._causes.get(job.id, ())]
            attributes = _attributes_of(key)
            attributes |= {"remora.job.queue": queue, "remora.job.attempt": job.attempts + 1}
            with (
                self.tracer.start_as_current_span(
                    f"remora.{queue}",
                    context=NoParent(),
                    kind=SpanKind.INTERNAL,
                    attributes=attributes,
                    links=links,
                    record_exception=False,
                    set_status_on_exception=False,
                ) as span,
                self._opened(span, key),
            ):
                result = await handler(attempt)
            self._causes.pop(job.id, None)
            return result

        return run


def _attributes_of(key: SessionKey | UserKey) -> dict[str, Any]:
    attributes: dict[str, Any] = {"gen_ai.memory.store.id": user_key(key.user)}
    if isinstance(key, SessionKey):
        attributes["gen_ai.conversation.id"] = key.session
    return attributes


def _entries(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        yield {"content": decode_chat(entry.chat)}


def _memories(memories: Iterable[Memory]) -> Iterator[dict[str, Any]]:
    for memory in memories:
        yield {"id": memory.id, "content": memory.text}


class _Traced:
    """A port with spans around some of its calls; the others are the port's own."""

    def __init__(self, tracing: _Tracing, inner: Any) -> None:
        self._tracing = tracing
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Appends(_Traced):
    async def append(self, key: SessionKey, request: Append, timeout_s: float | None) -> Receipt:
        entries = request.entries
        records = _entries(entries)
        with self._tracing.call("create_memory", key, count=len(entries), records=records):
            receipt: Receipt = await self._inner.append(key, request, timeout_s)
            return receipt


class _Contexts(_Traced):
    async def load(
        self, key: SessionKey, budget: int, query: str | None = None, **options: Any
    ) -> Context:
        operation = "load_context" if query is None else "search_memory"
        with self._tracing.call(operation, key, query=query) as span:
            context: Context = await self._inner.load(key, budget, query, **options)
            span.set_attribute("remora.context.tokens", context.tokens)
            if query is not None:
                memories = context.memories
                self._tracing.say(span, len(memories), _memories(memories))
                span.set_attribute("remora.context.recall", context.sources.long_term.status)
            return context


class _Recalls(_Traced):
    async def recall(self, user: str, query: str, *arguments: Any) -> list[Memory]:
        with self._tracing.call("search_memory", UserKey(user), query=query) as span:
            found: list[Memory] = await self._inner.recall(user, query, *arguments)
            self._tracing.say(span, len(found), _memories(found))
            return found


class _Work(_Traced):
    async def forget(self, user: str, session: str | None = None) -> ErasureReceipt:
        operation = "delete_memory_store" if session is None else "delete_memory"
        key = UserKey(user) if session is None else SessionKey(user, session)
        with self._tracing.call(operation, key):
            receipt: ErasureReceipt = await self._inner.forget(user, session)
            return receipt

    async def delete(self, request: DeletionRequest) -> DeletionReceipt:
        user, session = request.user, request.session
        key = UserKey(user) if session is None else SessionKey(user, session)
        with self._tracing.call("delete_memory", key) as span:
            receipt: DeletionReceipt = await self._inner.delete(request)
            self._tracing.say(span, receipt.deleted, ())
            return receipt


class _Actors(_Traced):
    async def ask(self, key: SessionKey | UserKey, message: Any, **options: Any) -> Any:
        call = self._tracing.call
        match message:
            case Remember(items=items):
                operation = "upsert_memory" if message.replace else "create_memory"
                records = ({"id": item.id, "content": item.content} for item in items)
                with call(operation, key, count=len(items), records=records):
                    return await self._inner.ask(key, message, **options)
            case Learn(items=items):
                with call("create_memory", key, count=len(items)):
                    return await self._inner.ask(key, message, **options)
            case ChangeMemory(id=id_):
                with call("update_memory", key, count=1, record=id_):
                    return await self._inner.ask(key, message, **options)
            case SearchWorking():
                with call("search_memory", key) as span:
                    found = await self._inner.ask(key, message, **options)
                    self._tracing.say(span, len(found.items), ())
                    return found
            case _:
                return await self._inner.ask(key, message, **options)
