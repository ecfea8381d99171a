"""Tools by which a model uses its own long-term memory, for any tool-call loop.

`MemoryTools` describes them in the shape that each API wants, and is iterable: its tools are async
functions with annotations and docstrings, as frameworks make tools of.

A tool never raises into the loop: its result has the error, so that the model can report it or try
something else.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from remora.errors import InvalidInput, NotFound, RemoraError, WrongLoop
from remora.logging import get_logger
from remora.messages import Message, plain_text, without_surrogates
from remora.recall.memory import Memory
from remora.runtime.threads import run_in_thread
from remora.services.arguments import check_int
from remora.services.deleting import DeletionReceipt

_MAX_FOUND = 50  # memories for each keyword: a model may ask for any number
_MAX_KEYWORDS = 20
_logger = get_logger(__name__)
_SAVE = "save_to_memory"
_RECALL = "recall_from_memory"
_CORRECT = "correct_memory"
_DELETE = "delete_from_memory"
_READ = "read_message"
_PAGE_BYTES = 8_000  # about 2 000 tokens
_ALIASES = {"record_to_memory": _SAVE, "retrieve_from_memory": _RECALL}
_DESCRIPTIONS = {
    _SAVE: "Save important information, so that it can be recalled in later conversations: what "
    "the user told about themselves, "
    "prefers, decided or asked to be remembered. Pass each piece as a sentence that can be "
    "understood alone.",
    _RECALL: "Search your memory for what was said or saved in earlier conversations. Use it "
    "before you say that you do not know "
    "something about the user.",
    _CORRECT: "Correct something that was saved to memory and is wrong or outdated. Find its id "
    "with recall_from_memory first. What was said in a conversation cannot be corrected.",
    _DELETE: "Delete what was saved to memory, when the user asks you to forget it or it is no "
    "longer true. Find the ids with recall_from_memory first. What was said in a conversation "
    "cannot be deleted.",
    _READ: "Read a message of this conversation in full, of which you see only a part: the result "
    "of a tool that says how much of it was left out, for instance.",
}
_PARAMETERS: dict[str, dict[str, Any]] = {
    _SAVE: {
        "type": "object",
        "properties": {
            "thinking": {
                "type": "string",
                "description": "Why this is worth remembering. It helps you to choose, and is not "
                "saved.",
            },
            "content": {
                "type": "array",
                "items": {"type": "string"},
                "description": 'What to remember, one piece each, for instance ["Birthday: March '
                '15"].',
            },
        },
        "required": ["thinking", "content"],
        "additionalProperties": False,
    },
    _RECALL: {
        "type": "object",
        "properties": {
            "keywords": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Short queries; each is searched for on its own.",
            },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "default": 5,
                "description": "Memories for each keyword, at most.",
            },
        },
        "required": ["keywords"],
        "additionalProperties": False,
    },
    _CORRECT: {
        "type": "object",
        "properties": {
            "memory_id": {"type": "string", "description": "The id of the memory."},
            "content": {
                "type": "string",
                "description": "What it says from now on, as a sentence.",
            },
        },
        "required": ["memory_id", "content"],
        "additionalProperties": False,
    },
    _DELETE: {
        "type": "object",
        "properties": {
            "memory_ids": {
                "type": "array",
                "items": {"type": "string"},
                "description": "The ids of the memories.",
            },
        },
        "required": ["memory_ids"],
        "additionalProperties": False,
    },
    _READ: {
        "type": "object",
        "properties": {
            "number": {
                "type": "integer",
                "minimum": 1,
                "description": "The number of the message.",
            },
            "part": {
                "type": "integer",
                "minimum": 1,
                "default": 1,
                "description": "Which part of a long message; parts have about 2 000 tokens.",
            },
        },
        "required": ["number"],
        "additionalProperties": False,
    },
}
ReadMessage: TypeAlias = Callable[[int], Awaitable[Message | None]]
"""Reads a message of a session by its number; None if there is none."""


class MemoryHandle(Protocol):
    """The port of a handle that the tools need."""

    async def remember(
        self,
        content: Any,
        *,
        type: str = ...,  # noqa: A002
        session: str | None = ...,
    ) -> list[str]:
        """Record memories."""
        ...

    async def recall_many(self, queries: Iterable[str], *, limit: int = ...) -> list[list[Memory]]:
        """Find memories."""
        ...


class MemoryEditor(Protocol):
    """The port of a handle that the tools that correct and delete need."""

    async def update_memory(self, id: str, content: str | None = ...) -> Memory:  # noqa: A002
        """Change a memory."""
        ...

    async def delete(self, which: Iterable[str], *, saved_only: bool = False) -> DeletionReceipt:
        """Delete what was remembered or said."""
        ...


class MemoryTools:
    """The tools of a user, or of an agent. Get them from `User.tools` or `Agent.tools`.

    Args:
        memory: whose memory it is.
        session: where what is saved was learned.
        editor: what corrects and deletes what was saved; None if a model may not.
        read: what reads messages of the session; None if a model may not.
    """

    def __init__(
        self,
        memory: MemoryHandle,
        *,
        session: str | None = None,
        editor: MemoryEditor | None = None,
        read: ReadMessage | None = None,
    ) -> None:
        self._memory = memory
        self._session = session
        self._editor = editor
        self._read = read
        self._names = (
            *(_SAVE, _RECALL),
            *((_CORRECT, _DELETE) if editor else ()),
            *((_READ,) if read else ()),
        )

    async def save_to_memory(self, thinking: str, content: list[str]) -> dict[str, Any]:
        """Save important information.

        Args:
            thinking: why it is worth saving, which makes models choose better. It is not saved.
            content: the pieces, each a text.

        Returns:
            ``success``, ``memory_ids`` and ``message``; or ``success`` False and ``error``.
        """
        return await self._run_safely(self._save, thinking, content)

    async def recall_from_memory(self, keywords: list[str], limit: int = 5) -> dict[str, Any]:
        """Search your memory.

        Args:
            keywords: each is searched for.
            limit: memories for each keyword, at most.

        Returns:
            ``success``, ``memories`` (dicts with ``id``, ``content``, ``type``, ``importance``,
            ``date``, and ``role`` of what was said, each memory once) and ``message``; or
            ``success`` False and ``error``.
        """
        return await self._run_safely(self._find, keywords, limit)

    async def correct_memory(self, memory_id: str, content: str) -> dict[str, Any]:
        """Correct something that was saved.

        Args:
            memory_id: as `recall_from_memory` gave it.
            content: what it says from now on.

        Returns:
            ``success``, ``memory_ids`` and ``message``; or ``success`` False and ``error``.
        """
        return await self._run_safely(self._correct, memory_id, content)

    async def delete_from_memory(self, memory_ids: list[str]) -> dict[str, Any]:
        """Delete what was saved.

        Args:
            memory_ids: as `recall_from_memory` gave them.

        Returns:
            ``success``, ``deleted`` and ``message``; or ``success`` False and ``error``, which says
            how many of them were deleted.
        """
        return await self._run_safely(self._delete, memory_ids)

    async def read_message(self, number: int, part: int = 1) -> dict[str, Any]:
        """Read a message of this conversation in full.

        Args:
            number: of the message, as an excerpt of it says.
            part: which part of a long one, from 1.

        Returns:
            ``success``, ``number``, ``role``, ``content``, ``part`` and ``parts``; or ``success``
            False and ``error``.
        """
        return await self._run_safely(self._read_part, number, part)

    def __iter__(self) -> Iterator[Callable[..., Awaitable[dict[str, Any]]]]:
        """The tools as async functions: ``[function_tool(tool) for tool in user.tools()]``."""
        return iter([getattr(self, name) for name in self._names])

    def specs(self) -> list[dict[str, Any]]:
        """Plain specifications: ``name``, ``description``, ``function``."""
        return [
            {"name": name, "description": _DESCRIPTIONS[name], "function": getattr(self, name)}
            for name in self._names
        ]

    def _describe(self, schema: str) -> list[dict[str, Any]]:
        """Name, description and parameters of each tool, the parameters under the key `schema`."""
        return [
            {
                "name": name,
                "description": _DESCRIPTIONS[name],
                schema: copy.deepcopy(_PARAMETERS[name]),  # callers may add to it
            }
            for name in self._names
        ]

    def openai(self) -> list[Any]:
        """The ``tools`` of a request to OpenAI's Chat Completions API, or one like it."""
        return [{"type": "function", "function": one} for one in self._describe("parameters")]

    def responses(self) -> list[Any]:
        """The ``tools`` of a request to OpenAI's Responses API."""
        return [
            {"type": "function", **one, "strict": False} for one in self._describe("parameters")
        ]

    def anthropic(self) -> list[Any]:
        """The ``tools`` of a request to Anthropic's Messages API."""
        return self._describe("input_schema")

    def gemini(self) -> list[Any]:
        """The ``tools`` of a request to Gemini, for ``GenerateContentConfig``."""
        return [{"function_declarations": self._describe("parameters_json_schema")}]

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Run the tool that a model called; returns JSON for the tool message, also on failure.

        Args:
            name: of the tool, or its older name (``record_to_memory``, ``retrieve_from_memory``).
            arguments: JSON text as the model wrote it, or a dict.
        """
        # an error may quote the model, with half an emoji in it
        return without_surrogates(
            json.dumps(await self._run_safely(self._call, name, arguments), ensure_ascii=False)
        )

    # -- what they do ------------------------------------------------------------------------------

    async def _call(self, name: object, arguments: object) -> dict[str, Any]:
        tool = _ALIASES.get(name, name) if isinstance(name, str) else ""
        if tool not in self._names:
            names = f"{', '.join(self._names[:-1])} and {self._names[-1]}"
            raise InvalidInput(f"there is no tool {name!r:.80}; there are {names}")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError) as e:
                raise InvalidInput(f"the arguments of {name} are not JSON: {e}") from e
        if not isinstance(arguments, Mapping):
            raise InvalidInput(
                f"the arguments of {name} must be an object, not {type(arguments).__name__}"
            )
        schema = _PARAMETERS[tool]
        missing = [one for one in schema["required"] if one not in arguments and one != "thinking"]
        unknown = [str(one) for one in arguments if one not in schema["properties"]]
        if missing or unknown:
            wrong = [
                *(f"{one} is missing" for one in missing),
                *(f"{one} is unknown" for one in unknown),
            ]
            raise InvalidInput(f"the arguments of {name}: {', '.join(wrong):.200}")
        match tool:
            case "save_to_memory":
                return await self._save(arguments.get("thinking", ""), arguments["content"])
            case "correct_memory":
                return await self._correct(arguments["memory_id"], arguments["content"])
            case "delete_from_memory":
                return await self._delete(arguments["memory_ids"])
            case "read_message":
                return await self._read_part(arguments["number"], arguments.get("part", 1))
            case _:
                return await self._find(arguments["keywords"], arguments.get("limit", 5))

    async def _save(self, thinking: object, content: object) -> dict[str, Any]:
        if not isinstance(thinking, str):
            raise InvalidInput(f"thinking must be text, not {type(thinking).__name__}")
        pieces = _require_texts(content, "content")
        ids = await self._memory.remember(pieces, type="fact", session=self._session)
        return {
            "success": True,
            "memory_ids": ids,
            "message": f"Saved {_count_text(len(set(ids)))}.",
        }

    def _require_editor(self) -> MemoryEditor:
        if self._editor is None:
            raise InvalidInput("these tools do not correct or delete: pass edit=True to tools()")
        return self._editor

    async def _correct(self, memory_id: object, content: object) -> dict[str, Any]:
        editor = self._require_editor()
        (id_,) = _require_texts([memory_id], "memory_id")
        (text,) = _require_texts([content], "content")
        memory = await editor.update_memory(id_, text)
        return {"success": True, "memory_ids": [memory.id], "message": "Corrected 1 memory."}

    async def _delete(self, memory_ids: object) -> dict[str, Any]:
        editor = self._require_editor()
        wanted, count = set(_require_texts(memory_ids, "memory_ids")), 0
        with suppress(NotFound):
            count = (await editor.delete(wanted, saved_only=True)).deleted
        if count < len(wanted):
            raise InvalidInput(
                f"deleted {count} of {len(wanted)}: the others are no saved memories, or are gone "
                "already; what was said in a conversation cannot be deleted with this tool"
            )
        return {"success": True, "deleted": count, "message": f"Deleted {_count_text(count)}."}

    async def _read_part(self, number: object, part: object) -> dict[str, Any]:
        if self._read is None:
            raise InvalidInput("these tools do not read messages: pass read=True to tools()")
        number, part = check_int(number, "number", low=1), check_int(part, "part", low=1)
        message = await self._read(number)
        if message is None:
            raise InvalidInput(f"the conversation has no message {number}")
        parts = await run_in_thread(_split, plain_text(message.to_chat()))
        if part > len(parts):
            raise InvalidInput(f"message {number} has {len(parts)} parts")
        return {
            "success": True,
            "number": number,
            "role": message.role,
            "part": part,
            "parts": len(parts),
            "content": parts[part - 1],
        }

    async def _find(self, keywords: object, limit: object) -> dict[str, Any]:
        limit = check_int(limit, "limit", low=1)
        wanted = list(dict.fromkeys(_require_texts(keywords, "keywords")))
        if limit > _MAX_FOUND or len(wanted) > _MAX_KEYWORDS:
            raise InvalidInput(
                f"at most {_MAX_KEYWORDS} keywords and a limit of {_MAX_FOUND} are searched at once"
            )
        lists = await self._memory.recall_many(wanted, limit=limit)
        # The best of each keyword come first: scores of two searches cannot be compared.
        found: dict[str, Memory] = {}
        for place in range(max(map(len, lists), default=0)):
            for one in lists:
                if place < len(one):
                    found.setdefault(one[place].id, one[place])
        memories = [
            {
                "id": memory.id,
                "content": memory.text,
                "type": memory.type,
                **({"role": memory.role} if memory.type == "message" else {}),
                "importance": memory.importance,
                "date": memory.created_at.isoformat(timespec="seconds"),
            }
            for memory in found.values()
        ]
        return {
            "success": True,
            "memories": memories,
            "message": f"Found {_count_text(len(memories))}.",
        }

    async def _run_safely(
        self, tool: Callable[..., Awaitable[dict[str, Any]]], *arguments: object
    ) -> dict[str, Any]:
        try:
            return await tool(*arguments)
        except WrongLoop:  # the application's mistake, of which the model need not know
            raise
        except Exception as e:
            if not isinstance(e, RemoraError):
                _logger.exception("memory_tool_failed")
            return {"success": False, "error": f"{e}" or type(e).__name__}


def _require_texts(value: object, what: str) -> list[str]:
    """A list of texts, or a single text, which models write without brackets."""
    texts = [value] if isinstance(value, str) else value
    if (
        not isinstance(texts, (list, tuple))
        or not texts
        or not all(isinstance(text, str) for text in texts)
    ):
        raise InvalidInput(f"{what} must be a list of texts with at least one")
    return list(texts)


def _split(text: str) -> list[str]:
    """A text in pieces of at most `_PAGE_BYTES` of UTF-8."""
    encoded = without_surrogates(text).encode()
    pieces = []
    start = 0
    while start < len(encoded):
        end = start + _PAGE_BYTES
        while end < len(encoded) and encoded[end] & 0xC0 == 0x80:  # within a character
            end -= 1
        pieces.append(encoded[start:end].decode())
        start = end
    return pieces or [""]


def _count_text(number: int) -> str:
    return f"{number} {'memory' if number == 1 else 'memories'}"
