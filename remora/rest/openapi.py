"""The description of the service (OpenAPI 3.1), from the operations and their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import msgspec

from remora.rest.operation import Operation
from remora.rest.problems import Problem

__all__ = ["describe_service"]

_REFERENCE = "#/components/schemas/{name}"
_PRINTABLE = r"^[^\u0000-\u001f\u007f-\u009f]+$"
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


def describe_service(operations: Sequence[Operation]) -> dict[str, Any]:
    """The description, as plain data for JSON."""
    types = {one for op in operations for one in (op.answers, op.body, op.query) if one is not None}
    ordered = sorted(types | {Problem}, key=lambda one: one.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    known = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for op in operations:
        paths.setdefault(op.path, {})[op.method.lower()] = _describe(op, known, components)
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
    text = {"type": "string", "minLength": 1, "maxLength": 512, "pattern": _PRINTABLE}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": text}
        for name in re.findall(r"{(\w+)}", op.path)
    ]
    if op.keyed:
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": op.keyed == "required",
                "schema": text,
                "description": "The same request with the same key has one effect.",
            }
        )
    if op.query is not None:
        fields = components[op.query.__name__]["properties"]
        parameters += [
            {"name": name, "in": "query", "schema": schema} for name, schema in fields.items()
        ]
    described: dict[str, Any] = {
        "operationId": op.name,
        "summary": op.summary,
        "parameters": parameters,
        "responses": {
            "200": _content("done", "application/json", known[op.answers]),
            **{
                status: _content(text, "application/problem+json", known[Problem])
                for status, text in _REFUSALS.items()
            },
        },
    }
    if op.body is not None:
        described["requestBody"] = {
            "required": bool(components[op.body.__name__]["required"]),
            "content": {"application/json": {"schema": known[op.body]}},
        }
    return described


def _content(description: str, kind: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema}}}
