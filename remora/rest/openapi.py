"""The description of the service (OpenAPI 3.1), from the operations and their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import msgspec

from remora.rest.operation import Operation
from remora.rest.problems import Problem
from remora.rest.streams import EventStream

_REFERENCE = "#/components/schemas/{name}"
_PRINTABLE = r"^[^\u0000-\u001f\u007f-\u009f]+$"
_TEXT = {"type": "string", "minLength": 1, "maxLength": 512, "pattern": _PRINTABLE}
_REFUSALS = {
    "400": "the request is not valid; nothing was written",
    "401": "no valid API key",
    "403": "the agent may not do this in the shared scope",
    "404": "there is no such thing",
    "408": "the body did not arrive in time; nothing was written",
    "409": "it conflicts with what is stored; nothing was written",
    "413": "the body is too long; nothing was written",
    "415": "the body is not JSON; nothing was written",
    "429": "too many requests; nothing ran",
    "500": "the memory is configured wrongly, or failed; its log says why",
    "502": "a model gave an invalid answer",
    "503": "the memory does not answer; retry with the same idempotency key",
    "504": "a model did not answer in time",
}


def describe_service(
    operations: Sequence[Operation], streams: Sequence[EventStream] = ()
) -> dict[str, Any]:
    """The description, as plain data for JSON."""
    types = {one for op in operations for one in (op.answers, op.body, op.query) if one is not None}
    types.add(Problem)
    for stream in streams:
        types |= {stream.query, *stream.events.values()}
    ordered = sorted(types, key=lambda one: one.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    known = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for op in operations:
        paths.setdefault(op.path, {})[op.method.lower()] = _describe(op, known, components)
    for stream in streams:
        paths[stream.path] = {"get": _describe_stream(stream, known, components)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "remora",
            "version": metadata.version("remora"),
            "description": "Conversation memory: sessions, contexts, turns and memories. What is "
            "answered with status 200 is durable.",
        },
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(op: Operation, known: dict[type, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters = _parameters(op.path, op.query, components)
    if op.keyed:
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": op.keyed == "required",
                "schema": _TEXT,
                "description": "The same request with the same key has one effect.",
            }
        )
    described: dict[str, Any] = {
        "operationId": op.name,
        "summary": op.summary,
        "parameters": parameters,
        "responses": {
            "200": _content("done", "application/json", known[op.answers]),
            **_describe_refusals(known),
        },
    }
    if op.body is not None:
        described["requestBody"] = {
            "required": bool(components[op.body.__name__]["required"]),
            "content": {"application/json": {"schema": known[op.body]}},
        }
    return described


def _describe_stream(
    stream: EventStream, known: dict[type, Any], components: dict[str, Any]
) -> dict[str, Any]:
    listed = ", ".join(f"`{name}` ({kind.__name__})" for name, kind in stream.events.items())
    schema = {"type": "string", "description": f"Events and their data: {listed}, `problem`."}
    return {
        "operationId": stream.name,
        "summary": stream.summary,
        "parameters": _parameters(stream.path, stream.query, components),
        "responses": {
            "200": _content("server-sent events", "text/event-stream", schema),
            **_describe_refusals(known),
        },
    }


def _parameters(path: str, query: type | None, components: dict[str, Any]) -> list[dict[str, Any]]:
    fields = {} if query is None else components[query.__name__]["properties"]
    return [
        *(
            {"name": name, "in": "path", "required": True, "schema": _TEXT}
            for name in re.findall(r"{(\w+)}", path)
        ),
        *({"name": name, "in": "query", "schema": schema} for name, schema in fields.items()),
    ]


def _describe_refusals(known: dict[type, Any]) -> dict[str, Any]:
    return {
        status: _content(text, "application/problem+json", known[Problem])
        for status, text in _REFUSALS.items()
    }


def _content(description: str, kind: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema}}}
