"""An import is all or nothing: what cannot be written is found before anything is written."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remora import Config, Runtime
from remora.adapters.muxi import BufferMemory
from remora.blocks import FactExtractionMemoryBlock
from remora.errors import InvalidExport, InvalidInput, InvalidMessage
from remora.testing import HashEmbedder

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves read and write files

Record = dict[str, Any]
Change = Callable[[Record], None]


def working(**changes: Any) -> Change:
    """Change an item of working memory."""

    def change(record: Record) -> None:
        item = msgspec.msgpack.decode(base64.b64decode(record["value"]))
        encoded = msgspec.msgpack.encode({**item, **changes})
        record["value"] = base64.b64encode(encoded).decode()

    return change


def memory(**changes: Any) -> Change:
    """Change a memory."""
    return lambda record: record["memory"].update(changes)


def plain(**changes: Any) -> Change:
    """Change a record."""
    return lambda record: record.update(changes)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("message", plain(created_at="9999-12-31T23:59:59.999999Z")),
        ("message", plain(metadata={"number": 2**70})),
        ("message", plain(chat={"role": "user", "content": "x", "id": 2**70})),
        ("message", plain(chat={"role": "user", "content": "x", "number": -(2**70)})),
        ("memory", memory(created_us=2**62)),
        ("memory", memory(created_us=2**70)),
        ("memory", memory(importance=2**70)),
        ("working", working(at_us=2**63)),
        ("working", working(tokens=2**64 - 1)),
        ("working", working(text="x" * 30_000)),
        ("synopsis", plain(name="2026-01-01T00:00:00Z")),
    ],
)
async def test_nothing_is_written_of_a_bad_import(
    kind: str, change: Change, tmp_path: Path
) -> None:
    """The bad record comes last, after sessions and users that are sound."""
    small = Config.from_dict({"working": {"max_memory_mb": 0.02}})
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    async with Runtime.in_memory(embedder=HashEmbedder(16)) as source:
        for name in ("ada", "bob"):
            await source.session(name, "chat").append({"role": "user", "content": "hello"})
            await source.user(name).remember("likes tea")
            await source.user(name).learn("a ticket costs ten euros")
            assert (await source.user(name).synopsis()).state == "ok"
        await source.export(good)
    records = [json.loads(line) for line in good.read_text().splitlines()]
    change([one for one in records if kind in (one["type"], one.get("kind"))][-1])
    bad.write_text("".join(json.dumps(one) + "\n" for one in records))
    async with Runtime.in_memory(config=small, embedder=HashEmbedder(16)) as target:
        with pytest.raises(InvalidExport):
            await target.import_(bad)
        counts = await target.counts()
        assert (counts.sessions, counts.messages, counts.memories) == (0, 0, 0)
        assert (await target.import_(good)).sessions == 2


@pytest.mark.parametrize("vector", [b"", b"x", b"\0" * 60, b"\xff" * 64, b"\0\0\x80\x7f" * 16])
async def test_a_bad_vector_is_made_again(vector: bytes, tmp_path: Path) -> None:
    """Working memory whose vectors are damaged is embedded again, and can be searched."""
    good = tmp_path / "good.jsonl"
    async with Runtime.in_memory(embedder=HashEmbedder(16)) as source:
        await source.user("ada").learn("a ticket costs ten euros")
        await source.export(good)
    records = [json.loads(line) for line in good.read_text().splitlines()]
    working(vector=vector)(next(one for one in records if one.get("kind") == "working"))
    good.write_text("".join(json.dumps(one) + "\n" for one in records))
    async with Runtime.in_memory(embedder=HashEmbedder(16)) as target:
        await target.import_(good)
        found = await target.user("ada").search_working("a ticket costs ten euros")
        assert [one.text for one in found] == ["a ticket costs ten euros"]
        assert found[0].score == pytest.approx(1, abs=1e-3)


async def test_redaction_covers_what_was_derived(tmp_path: Path) -> None:
    """S4.43: no text of an export passes the hook, in whatever it stands: working memory, the
    synopsis, a block's facts.
    """
    path, copy = tmp_path / "export.jsonl", tmp_path / "copy.jsonl"
    small = Config.from_dict({"buffer": {"token_limit": 300, "summary_tokens": 80}})

    async def chat(_: str) -> str:
        return "<fact>The card is 4111-1111.</fact>"

    def opened(**options: Any) -> Runtime:
        blocks = [FactExtractionMemoryBlock(name="facts")]
        return Runtime.in_memory(
            config=small, embedder=HashEmbedder(16), chat_model=chat, blocks=blocks, **options
        )

    async with opened() as source:
        session = source.session("ada", "chat")
        for number in range(20):
            await session.append({"role": "user", "content": f"My card is 4111-1111, {number}."})
        await source.user("ada").learn("a card: 4111-1111", session="chat")
        await source.user("ada").learn("4111-1111")
        await session.settle()
        assert "4111-1111" in (await source.user("ada").synopsis()).identity
        await source.export(path)
    kinds = {json.loads(line).get("kind") for line in path.read_text().splitlines()}
    assert {"working", "synopsis", "block"} <= kinds

    async with opened(redact=lambda text: text.replace("4111-1111", "")) as target:
        await target.import_(path)
        found = await target.user("ada").search_working("a card:", session="chat")
        assert [one.text for one in found] == ["a card: "]
        assert found[0].score == pytest.approx(1, abs=1e-3)
        assert (await target.user("ada").synopsis()).identity
        await target.export(copy)
    records = [json.loads(line) for line in copy.read_text().splitlines()]
    texts = "".join(
        str(base64.b64decode(one["value"])) if "value" in one else str(one) for one in records
    )
    assert "The card is ." in texts
    assert "4111-1111" not in texts


@pytest.mark.parametrize("depth", [1_100, 100_000])
async def test_json_that_nests_too_deep(depth: int) -> None:
    """S3.28: it is invalid input, like other JSON that is no session; Python 3.14 reads more depth,
    and then finds no messages in it.
    """
    text = '{"messages": ' + "[" * depth + "]" * depth + "}"
    async with Runtime.in_memory() as runtime:
        with pytest.raises((InvalidInput, InvalidMessage)):
            await BufferMemory.from_json(text, runtime.session("ada", "chat"))
