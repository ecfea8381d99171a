"""Contestants of `benchmarks.contexts` that summarize: LangChain's and OpenAI's, as documented.

Both get their summaries from the extract that remora's default install makes, of a quarter of the
budget: so what differs is what is summarized, when, and what stays.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import anyio

from remora.messages import plain_text, tool_calls
from remora.models.extractive import ExtractiveSummarizer
from remora.models.ports import Line
from remora.tokens import HeuristicCounter, count_message

__all__ = ["LangChainSummaries", "OpenAICompaction"]

COUNTER = HeuristicCounter()
Extract = Callable[[str | None, Sequence[Mapping[str, Any]]], Awaitable[str]]


def _make_extract(budget: int) -> Extract:
    extractive = ExtractiveSummarizer(COUNTER.count)

    async def extract(previous: str | None, messages: Sequence[Mapping[str, Any]]) -> str:
        lines = [_line_of(one) for one in messages]
        return await extractive.summarize(previous, lines, max_tokens=budget // 4)

    return extract


def _line_of(chat: Mapping[str, Any]) -> Line:
    calls = tuple((one.name, one.arguments) for one in tool_calls(dict(chat)))
    return Line(chat["role"], chat["role"], plain_text(chat), 0, calls)


class LangChainSummaries:
    """`SummarizationMiddleware` of langchain: above the budget it summarizes all but the half."""

    def __init__(self, budget: int) -> None:
        from langchain.agents.middleware import SummarizationMiddleware  # noqa: PLC0415
        from langchain_core.language_models import FakeListChatModel  # noqa: PLC0415

        self._originals: dict[str, dict[str, Any]] = {}
        self._extract = _make_extract(budget)
        self._messages: list[Any] = []
        self._summary = ""
        self._middleware = SummarizationMiddleware(
            model=FakeListChatModel(responses=["never asked"]),
            trigger=("tokens", budget),
            keep=("tokens", budget // 2),
            token_counter=lambda messages: sum(map(self._size, messages)),
            summarizer=self._summarize,
        )

    def _size(self, message: Any) -> int:
        return count_message(COUNTER, self._chat(message))

    def _chat(self, message: Any) -> dict[str, Any]:
        known = self._originals.get(message.id)
        return known or {"role": "user", "content": message.content}

    async def _summarize(self, messages: list[Any]) -> str:
        chats = [self._originals[one.id] for one in messages if one.id in self._originals]
        self._summary = await self._extract(self._summary or None, chats)
        return self._summary

    async def add(self, chat: dict[str, Any]) -> None:
        """A message of the run."""
        from langchain_core.messages import convert_to_messages  # noqa: PLC0415

        plain = {key: value for key, value in chat.items() if key in _KNOWN}
        (message,) = convert_to_messages([{**plain, "content": plain.get("content") or ""}])
        message.id = f"m{len(self._originals)}"
        self._originals[message.id] = chat
        self._messages.append(message)

    async def show(self) -> tuple[list[dict[str, Any]], str]:
        """What a model is given, and the summary."""
        changed = await self._middleware.abefore_model({"messages": self._messages}, None)  # type: ignore[arg-type]
        if changed:
            self._messages = [one for one in changed["messages"] if one.type != "remove"]
        return [self._chat(one) for one in self._messages], self._summary


_KNOWN = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})


class OpenAICompaction:
    """`OpenAIResponsesCompactionSession` of openai-agents, after each turn that is over the budget.

    The endpoint on loopback answers as OpenAI's does: messages of the user as they are, and an item
    that stands for all else.
    """

    def __init__(self, budget: int) -> None:
        from agents import SQLiteSession  # noqa: PLC0415
        from agents.memory import OpenAIResponsesCompactionSession  # noqa: PLC0415
        from openai import AsyncOpenAI  # noqa: PLC0415

        self._endpoint = _Endpoint(_make_extract(budget))
        self._originals: dict[str, dict[str, Any]] = {}
        self._session = OpenAIResponsesCompactionSession(
            "run",
            SQLiteSession("run"),
            client=AsyncOpenAI(base_url=self._endpoint.url, api_key="none", max_retries=0),
            compaction_mode="input",
            should_trigger_compaction=lambda found: self._size(found["session_items"]) > budget,
        )

    def _size(self, items: Sequence[Any]) -> int:
        return sum(count_message(COUNTER, self._chat(one)) for one in items)

    def _chat(self, item: Mapping[str, Any]) -> dict[str, Any]:
        if item.get("type") == "compaction":
            return {"role": "system", "content": item["encrypted_content"]}
        return self._originals.get(_name(item), {"role": "user", "content": json.dumps(item)})

    async def add(self, chat: dict[str, Any]) -> None:
        """A message of the run; the answer to a user ends a turn."""
        item = _item_of(chat)
        self._originals[_name(item)] = chat
        await self._session.add_items([item])  # type: ignore[list-item]
        if chat["role"] == "assistant" and not chat.get("tool_calls"):
            await self._session.run_compaction({"compaction_mode": "input"})

    async def show(self) -> tuple[list[dict[str, Any]], str]:
        """What a model is given, and what stands in the place of the rest."""
        items: list[Any] = await self._session.get_items()
        summary = "\n".join(
            one["encrypted_content"] for one in items if one.get("type") == "compaction"
        )
        return [self._chat(one) for one in items], summary

    def close(self) -> None:
        """Stop the endpoint."""
        self._endpoint.close()


def _item_of(chat: Mapping[str, Any]) -> dict[str, Any]:
    if calls := chat.get("tool_calls"):
        (call,) = calls
        function = call["function"]
        return {"type": "function_call", "call_id": call["id"], **function}
    if chat["role"] == "tool":
        id_, output = chat["tool_call_id"], chat["content"]
        return {"type": "function_call_output", "call_id": id_, "output": output}
    content = chat.get("content") or chat.get("refusal")
    if isinstance(content, list):
        content = [
            {"type": "input_text", "text": part["text"]}
            if part["type"] == "text"
            else {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
            for part in content
        ]
    return {"role": chat["role"], "content": content}


def _name(item: Mapping[str, Any]) -> str:
    """What an item says, whatever a session added to it."""
    kept = ("role", "content", "call_id", "output", "arguments")
    return json.dumps([item.get(key) for key in kept], sort_keys=True)


def _chat_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as the endpoint reads it."""
    match item.get("type"):
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
    content = item["content"]
    if not isinstance(content, str):
        content = " ".join(part.get("text", "") for part in content)
    return {"role": item["role"], "content": content}


class _Endpoint:
    """`POST /responses/compact` on loopback."""

    def __init__(self, extract: Extract) -> None:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                items = asked["input"]
                sealed = [one for one in items if one.get("type") == "compaction"]
                said = [one for one in items if one.get("role") == "user"]
                rest = [one for one in items if one not in sealed and one not in said]
                previous = "\n".join(one["encrypted_content"] for one in sealed) or None
                text = anyio.run(extract, previous, [_chat_of(one) for one in rest])
                output = [*said, {"type": "compaction", "id": "cmp_1", "encrypted_content": text}]
                usage: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
                usage |= {"input_tokens_details": {"cached_tokens": 0}}
                usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
                answer = {"id": "r", "object": "response.compaction", "created_at": 0}
                body = json.dumps({**answer, "output": output, "usage": usage}).encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
