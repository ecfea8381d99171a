"""Write ``clients/typescript/remora.ts``: the types and requests of `remora http`, in TypeScript.

They are those of its OpenAPI description. ``python tools/typescript.py`` writes the file again;
``--check`` fails if it is not what would be written.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from remora.rest.openapi import describe_service
from remora.rest.operation import Operation
from remora.rest.operations import OPERATIONS
from remora.rest.streams import EVENTS

__all__ = ["FILE", "main", "render"]

FILE = Path(__file__).parents[1] / "clients" / "typescript" / "remora.ts"
_HEAD = """// Written by tools/typescript.py from the description of `remora http`.

import { Service, type CallOptions, type Operation } from "./service.ts";

export { RemoraError, type CallOptions, type ClientOptions } from "./service.ts";
export { follow } from "./follow.ts";
export { Turn } from "./turn.ts";

/** A message in the OpenAI chat format. */
export type ChatMessage = Record<string, unknown>;
"""
_CLIENT = """/** A memory that `remora http` serves. Ids of users and sessions are in `names`. */
export class Client extends Service {"""
_SIMPLE = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}
_MESSAGES = {"messages", "message", "reply", "override"}


def render() -> str:
    """The text of the file."""
    schemas = describe_service(OPERATIONS, [EVENTS])["components"]["schemas"]
    types = [_interface(name, schema) for name, schema in sorted(schemas.items())]
    names = [_camel(one.name) for one in OPERATIONS]
    table = [_entry(name, one) for name, one in zip(names, OPERATIONS, strict=True)]
    methods = [_method(name, one) for name, one in zip(names, OPERATIONS, strict=True)]
    listed = (
        "const OPERATIONS = {\n" + "\n".join(table) + "\n} satisfies Record<string, Operation>;"
    )
    client = _CLIENT + "\n" + "\n\n".join(methods) + "\n}"
    return "\n".join([_HEAD, "\n\n".join(types), "", listed, "", client, ""])


def _interface(name: str, schema: dict[str, Any]) -> str:
    text = re.split(r"\n\s*Attributes:", schema.get("description", ""))[0]
    lines = [f"/** {' '.join(text.replace('``', '`').split())} */", f"export interface {name} {{"]
    required = set(schema.get("required", ()))
    for field, one in schema.get("properties", {}).items():
        kind = _type(one, "ChatMessage" if field in _MESSAGES else "Record<string, unknown>")
        lines.append(f"  {field}{'' if field in required else '?'}: {kind};")
    return "\n".join([*lines, "}"])


def _type(schema: dict[str, Any], thing: str) -> str:
    """A schema as a type; an object without properties is a `thing`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "enum" in schema:
        return " | ".join(json.dumps(one) for one in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type(one, thing) for one in schema["anyOf"])
    match schema.get("type"):
        case "array":
            inner = _type(schema.get("items", {}), thing)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        case "object":
            values = schema.get("additionalProperties")
            return f"Record<string, {_type(values, thing)}>" if isinstance(values, dict) else thing
        case None:
            return "unknown"
        case simple:
            return _SIMPLE[simple]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(one.capitalize() for one in rest)


def _entry(name: str, one: Operation) -> str:
    shown = {
        "method": one.method,
        "path": one.path,
        "query": one.query is not None,
        "keyed": bool(one.keyed),
        "repeatable": one.repeatable,
    }
    fields = ", ".join(f"{key}: {json.dumps(value)}" for key, value in shown.items())
    return f"  {name}: {{ {fields} }},"


def _method(name: str, one: Operation) -> str:
    named = re.findall(r"{(\w+)}", one.path)
    names = "{ " + "; ".join(f"{each}: string" for each in named) + " }"
    given = one.body or one.query
    options = "options: CallOptions & { key: string }" if one.keyed == "required" else ""
    arguments = [
        *([f"names: {names}"] if named else []),
        *([f"given: {given.__name__}{'' if _needs(given) else ' = {}'}"] if given else []),
        options or "options: CallOptions = {}",
    ]
    passed = f"OPERATIONS.{name}, {'names' if named else '{}'}, {'given' if given else 'undefined'}"
    return (
        f"  /** {one.summary}. */\n"
        f"  {name}({', '.join(arguments)}): Promise<{one.answers.__name__}> {{\n"
        f"    return this.call({passed}, options);\n"
        "  }"
    )


def _needs(given: type) -> bool:
    """Whether a field has no default."""
    fields: Any = given
    return len(fields.__struct_fields__) > len(fields.__struct_defaults__)


def main() -> int:
    """Write the file, or compare it."""
    text = render()
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
        return 0
    if FILE.read_text(encoding="utf-8") == text:
        return 0
    print("clients/typescript/remora.ts is not what tools/typescript.py writes: run it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
