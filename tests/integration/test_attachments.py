"""Attachments: stored once beside the journal, in contexts as bytes or in a few words."""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

from remora import Config, Runtime
from remora.cluster.moving import move_to_database, move_to_directory
from remora.cluster.reshard import reshard
from remora.config import AttachmentsConfig, Secret
from remora.errors import IdConflict, InvalidMessage, KeyConflict
from remora.maintenance.verify import verify
from tests.configs import PLAIN
from tests.filled import opened
from tests.postgres import Cluster, open_journal

pytestmark = pytest.mark.anyio

TIMES = "\N{MULTIPLICATION SIGN}"


def picture(seed: int, width: int = 640, height: int = 480, size: int = 60_000) -> bytes:
    """A picture of noise, as PNG."""
    noise = Random(seed).randbytes(size)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", noise) + chunk(b"IEND", b"")


def url(data: bytes) -> str:
    return f"data:image/png;base64,{b64encode(data).decode()}"


def shown(text: str, data: bytes, name: str = "") -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": url(data), "detail": "high"}}
    if name:
        image["name"] = name
    return {"role": "user", "content": [{"type": "text", "text": text}, image]}


def rich(data: bytes) -> list[dict[str, Any]]:
    """Messages with attachments at every place that providers and frameworks have."""
    text = b64encode(data).decode()
    call = {"id": "c", "type": "function", "function": {"name": "shoot", "arguments": "{}"}}
    return [
        shown("look", data, "photo.png"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": f'{{"type":"image","data":"{text}","mimeType":"image/png"}}',
        },
        {
            "role": "assistant",
            "content": f"Here: ![it]({url(data)}) and it again: {text[:-2]}",
            "audio": {"id": "a", "data": text, "transcript": "hello"},
            "reasoning_details": [{"type": "encrypted", "data": text}],
        },
        {
            "role": "user",
            "content": [
                {"type": "file", "file": {"filename": "a.pdf", "file_data": text}},
                {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}},
            ],
            "metadata": {"native": f'{{"bytes": "{text}"}}', "n": [1, text]},
        },
    ]


def files(where: Path) -> list[Path]:
    return [one for one in where.rglob("attachments/*/*") if one.is_file()]


def bytes_in(where: Path, data: bytes) -> list[Path]:
    """The files that hold these bytes, or their base64."""
    middle = len(data) // 2
    wanted = data[middle : middle + 64], b64encode(data)[1_000:1_064]
    found = [one for one in where.rglob("*") if one.is_file()]
    return [one for one in found if any(part in one.read_bytes() for part in wanted)]


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Opens one memory again and again, except the one in memory."""
    if request.param == "sqlite":
        return lambda: Runtime(tmp_path)
    if request.param == "memory":
        kept = Runtime.in_memory()
        return lambda: kept
    cluster: Cluster = request.getfixturevalue("cluster")
    schema = f"attachments_{abs(hash(request.node.name)) % 10**8}"

    @asynccontextmanager
    async def open_it() -> AsyncIterator[Runtime]:
        journal = await open_journal(cluster.dsn(), schema)
        async with Runtime.in_memory(journal=journal) as runtime:
            yield runtime

    return open_it


async def test_what_came_comes_back(reopen: Callable[[], Any]) -> None:
    """G13, S4.09: byte for byte, by history, buffer, state, fork and export; and in another
    session that has them by import."""
    data = picture(1)
    given = rich(data)
    async with reopen() as runtime:
        chat = runtime.session("ann", "one")
        await chat.append(given)
        for messages in (await chat.history(), await chat.get_messages()):
            assert [one.to_chat() for one in messages] == [
                {key: value for key, value in one.items() if key != "metadata"} for one in given
            ]
            assert messages[-1].metadata == given[-1]["metadata"]
        short = await chat.history(attachments=False)
        assert len(str([one.to_chat() for one in short])) < 2_000
        assert f"640{TIMES}480, 60.1 kB]" in short[0].content[1]["image_url"]["url"]
        state = await chat.state_dict()
        assert url(data) in str(state)
        export = await chat.export()
        await runtime.user("bob").import_session(export, session="two")
        fork = await chat.fork("three")
        for copy in (fork, runtime.session("bob", "two")):
            assert [one.to_chat() for one in await copy.history()] == [
                one.to_chat() for one in await chat.history()
            ]
        await runtime.session("ann", "four").load_state_dict(state)
        again = await runtime.session("ann", "four").get_messages()
        assert [one.content for one in again] == [one.content for one in await chat.get_messages()]


async def test_contexts_hold_the_newest(reopen: Callable[[], Any]) -> None:
    """Older ones are named, with their size; tokens are those of the picture's real size."""
    async with reopen() as runtime:
        chat = runtime.session("ann", "one")
        pictures = [picture(n) for n in range(20)]
        for number, data in enumerate(pictures):
            await chat.append([shown(f"No. {number}", data, f"p{number}.png")])
        context = await chat.load(max_tokens=20_000)
        parts = [one["content"][1] for one in context.messages]
        whole = [n for n, one in enumerate(parts) if one["type"] == "image_url"]
        assert 8 <= len(whole) <= 12
        assert whole == list(range(20 - len(whole), 20))
        assert parts[-1]["image_url"]["url"] == url(pictures[-1])
        assert parts[0] == {"type": "text", "text": f"[image p0.png, 640{TIMES}480]"}
        (entry,) = (await chat.inspect()).entries[:1]
        assert 425 <= entry.tokens <= 440, "85 and 170 for each of two tiles"
        assert 425 * len(whole) < context.tokens < 440 * len(whole) + 40 * 20


async def test_base64_in_a_text_is_no_text_for_a_model(reopen: Callable[[], Any]) -> None:
    async with reopen() as runtime:
        chat = runtime.session("ann", "one")
        await chat.append(rich(picture(2)))
        context = await chat.load()
        assert context.tokens < 6_000
        assert f'"data":"[image/png 640{TIMES}480, 60.1 kB]"' in str(context.messages[2]["content"])
        assert f"![it](data:image/png;base64,[image/png 640{TIMES}480" in str(context.messages[3])


@pytest.mark.blocking  # the test looks into files
async def test_bytes_are_written_once_and_erased(tmp_path: Path) -> None:
    """G13: with the last message that has them, of whichever session; others keep theirs."""
    data, other = picture(3), picture(4)
    async with Runtime(tmp_path) as runtime:
        for session in ("one", "two"):
            for _ in range(3):
                await runtime.session("ann", session).append([shown("look", data)])
        await runtime.session("bob", "one").append([shown("look", data), shown("", other)])
        mine, bobs = sorted(files(tmp_path), key=lambda path: path.parent.name)[:1], files(tmp_path)
        assert len(bobs) == 3
        assert {one.read_bytes() for one in bobs} == {data, other}
        assert mine[0].stat().st_mode & 0o777 == 0o600
        await runtime.session("ann", "one").forget()
        assert len(files(tmp_path)) == 3, "another session has it"
        await runtime.session("ann", "two").forget()
        await runtime.retry_erasures()
        assert len(files(tmp_path)) == 2
        await runtime.user("bob").forget()
        await runtime.retry_erasures()
        assert files(tmp_path) == []
        assert bytes_in(tmp_path, data) == bytes_in(tmp_path, other) == []


async def test_a_restart_keeps_them(tmp_path: Path) -> None:
    data = picture(6)
    async with Runtime(tmp_path) as runtime:
        await runtime.session("ann", "one").append(rich(data))
    async with Runtime(tmp_path) as runtime:
        chat = runtime.session("ann", "one")
        assert (await chat.history())[0].to_chat() == rich(data)[0]
        context = await chat.load()
        assert url(data) in str(context.messages[0])


@pytest.mark.blocking  # the test looks into files
async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Nothing else breaks."""
    async with Runtime(tmp_path) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append([shown("look", picture(7), "p.png")])
        (path,) = files(tmp_path)
        path.unlink()
        context = await chat.load()
        assert context.messages[0]["content"][1]["text"] == f"[image p.png, 640{TIMES}480, missing]"
        (message,) = await chat.history()
        assert "missing" in str(message.content)
        export = await chat.export()
        await runtime.user("bob").import_session(export, session="two")
        await chat.append([shown("again", picture(7), "p.png")])
        assert url(picture(7)) in str((await chat.load()).messages)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"type": "image_url", "image_url": {"url": url(picture(8))[:-3]}}, r"content\[0\]"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR"}}, "not base64"),
        ({"type": "image_url", "image_url": {"url": "data:text/html;base64,AAAA"}}, "no picture"),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA=A", "format": "wav"}},
            r"content\[0\].input_audio.data",
        ),
        ({"type": "image_url", "image_url": {"url": url(picture(9, size=2 << 20))}}, "max_mb"),
    ],
)
async def test_bad_attachments_are_refused(part: dict[str, Any], told: str) -> None:
    config = Config.from_dict({"attachments": {"max_mb": 1}})
    async with Runtime.in_memory(config=config) as runtime:
        chat = runtime.session("ann", "one")
        with pytest.raises(InvalidMessage, match=told):
            await chat.append({"role": "user", "content": [part]})
        assert await chat.history() == []


@pytest.mark.blocking  # the test looks into files
async def test_a_refused_append_leaves_nothing(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append({"role": "user", "content": "x", "id": "m"})
        with pytest.raises(Exception, match="says something else"):
            await chat.append({**shown("look", picture(10)), "id": "m"})
        assert files(tmp_path) == []
        assert b64decode(b64encode(b"x")) == b"x"


# -- copies of a memory ----------------------------------------------------------------------------


async def fill(runtime: Runtime) -> None:
    for number, user in enumerate(("ann", "bob", "eve")):
        await runtime.session(user, "one").append([shown("look", picture(20 + number), "p.png")])
        await runtime.session(user, "two").append([shown("look", picture(20 + number), "p.png")])


async def is_whole(runtime: Any) -> None:
    for number, user in enumerate(("ann", "bob", "eve")):
        for session in ("one", "two"):
            chat = runtime.user(user).session(session)
            (message,) = await chat.history()
            assert message.content[1]["image_url"]["url"] == url(picture(20 + number))
            assert url(picture(20 + number)) in str((await chat.load()).messages)


@pytest.mark.blocking  # the test looks into files
async def test_backups_shards_and_moves_have_them(cluster: Cluster, tmp_path: Path) -> None:
    """G13: each copy has the bytes, in its own place, and what is erased there is gone there."""
    where = tmp_path / "memory"
    async with Runtime(where, config=PLAIN) as runtime:
        await fill(runtime)
        await runtime.backup(tmp_path / "backup")
    async with Runtime(tmp_path / "backup", config=PLAIN) as runtime:
        await is_whole(runtime)
        await runtime.user("ann").forget()
    assert len(files(tmp_path / "backup")) == 2
    assert len(files(where)) == 3

    await reshard(where, 3, PLAIN)
    assert len(files(where)) == 3
    async with await opened(where, PLAIN) as shards:
        await is_whole(shards)
        await shards.user("bob").forget()
    assert len(files(where)) == 2
    assert bytes_in(where, picture(21)) == []

    other = tmp_path / "other"
    async with Runtime(other, config=PLAIN) as runtime:
        await fill(runtime)
    schema = f"moved_{abs(hash(str(tmp_path))) % 10**8}"
    journal = msgspec.structs.replace(
        PLAIN.journal, dsn=Secret(cluster.dsn()), schema=schema, durability="process"
    )
    config = msgspec.structs.replace(PLAIN, journal=journal)
    await move_to_database(other, config)
    assert files(other) == []
    async with Runtime(other, config=config) as runtime:
        await is_whole(runtime)
    await move_to_directory(other, config)
    assert len(files(other)) == 3
    async with Runtime(other, config=PLAIN) as runtime:
        await is_whole(runtime)


@pytest.mark.blocking  # the test looks into files
async def test_verify_finds_what_is_missing_or_damaged(tmp_path: Path) -> None:
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        await fill(runtime)
    assert (await verify(tmp_path, PLAIN, deep=True)).clean
    first, second, third = files(tmp_path)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    third.write_bytes(third.read_bytes()[:-1] + b"x")
    found = await verify(tmp_path, PLAIN)
    assert sorted(one.detail.partition(";")[0] for one in found.findings) == [
        "it has 60056 bytes and not 60057",
        "it is missing",
    ]
    assert len((await verify(tmp_path, PLAIN, deep=True)).findings) == 3
    (first.parent / ("0" * 64)).write_bytes(b"left")
    assert "1 files in attachments belong to no message" in (await verify(tmp_path, PLAIN)).notes


# -- where features meet ---------------------------------------------------------------------------


@pytest.mark.blocking  # the test looks into files
async def test_erasures_at_the_same_time_leave_nothing(tmp_path: Path) -> None:
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        for number in range(12):
            await runtime.session(f"u{number}", "one").append(shown("", picture(number)))
        assert len(files(tmp_path)) == 12
        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(runtime.user(f"u{number}").forget)
        assert files(tmp_path) == []


async def test_two_pictures_of_one_size_differ(reopen: Callable[[], Any]) -> None:
    """As contents of one id, of one key, and of one turn."""
    one, other = picture(1), picture(2)
    async with reopen() as runtime:
        chat = runtime.session("ann", "one")
        await chat.append({**shown("look", one), "id": "m"}, key="k")
        assert (await chat.append({**shown("look", one), "id": "m"})).duplicate
        with pytest.raises(IdConflict):
            await chat.append({**shown("look", other), "id": "m"})
        with pytest.raises(KeyConflict):
            await chat.append(shown("look", other), key="k")
        async with chat.turn(shown("this", one), key="t") as turn:
            await turn.reply({"role": "assistant", "content": "A cat."})
        async with chat.turn(shown("this", one), key="t") as turn:
            assert turn.replayed
        with pytest.raises(KeyConflict):
            await chat.turn(shown("this", other), key="t").__aenter__()
        await chat.append({**shown("look", other), "id": "m"}, replace=True)
        assert (await chat.history())[0].content == shown("look", other)["content"]


async def test_appends_keep_their_order(reopen: Callable[[], Any]) -> None:
    """A short text does not overtake a picture, which is written first."""
    async with reopen() as runtime:
        chat = runtime.session("ann", "one")
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                given = shown(f"{number}", picture(number)) if number % 2 == 0 else f"{number}"
                said = given if isinstance(given, dict) else {"role": "user", "content": given}
                tasks.start_soon(chat.append, said)
        found = [one.content for one in await chat.history()]
        texts = [one if isinstance(one, str) else one[0]["text"] for one in found if one]
        assert texts == [f"{number}" for number in range(10)]


@pytest.mark.blocking  # the test looks into files
async def test_a_cancelled_append_leaves_what_an_erasure_removes(tmp_path: Path) -> None:
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        chat = runtime.session("ann", "one")
        for number in range(6):
            with anyio.move_on_after(0.0005 * number):
                await chat.append(shown("", picture(number)))
        await chat.append({"role": "user", "content": "on"})
        await chat.forget()
        assert files(tmp_path) == []


@pytest.mark.blocking  # the test looks into files
async def test_replaced_bytes_are_erased(tmp_path: Path) -> None:
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append({**shown("look", picture(1)), "id": "m"})
        await chat.append({**shown("look", picture(2)), "id": "m"}, replace=True)
        assert [one.read_bytes() for one in files(tmp_path)] == [picture(2)]
        await chat.append({"role": "user", "content": "no", "id": "m"}, replace=True)
        assert files(tmp_path) == []


async def test_replies_and_instructions_have_their_bytes(reopen: Callable[[], Any]) -> None:
    data = b64encode(picture(3)).decode()
    reply: dict[str, Any] = {
        "role": "assistant",
        "content": "see",
        "audio": {"id": "a", "data": data},
    }
    async with reopen() as runtime:
        chat = runtime.session("ann", "one")
        for _ in range(2):
            async with chat.turn({"role": "user", "content": "say it"}, key="t") as turn:
                if not turn.replayed:
                    await turn.reply(reply)
                (told,) = turn.replies
                assert told.to_chat()["audio"] == reply["audio"]
        other = runtime.session("ann", "two")
        logo = {**shown("Our logo", picture(4)), "role": "system"}
        await other.append([logo, *({"role": "user", "content": "x " * 900} for _ in range(40))])
        await other.settle()
        assert (await other.load(max_tokens=4_000)).messages[0]["content"] == logo["content"]


@pytest.mark.blocking  # the test looks into files
async def test_a_damaged_file_is_missing_until_it_comes_again(tmp_path: Path) -> None:
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append(shown("look", picture(5), "p.png"))
        (path,) = files(tmp_path)
        path.write_bytes(path.read_bytes()[:20_000])
        assert "missing" in str((await chat.load()).messages)
        await chat.append(shown("again", picture(5), "p.png"))
        assert str((await chat.history())[0].content).count("missing") == 0


async def test_redaction_and_large_states() -> None:
    """Several large pictures in one message, with a hook, and in a state that is loaded back."""
    large = [picture(n, size=4 << 20) for n in range(3)]
    parts = [{"type": "image_url", "image_url": {"url": url(one)}} for one in large]
    secret: dict[str, Any] = {"type": "text", "text": "my secret"}
    hidden = Runtime.in_memory(redact=lambda text: text.replace("secret", "…"))
    async with hidden as runtime:
        chat = runtime.session("ann", "one")
        given: dict[str, Any] = {"role": "user", "content": [secret, *parts]}
        await chat.append(given)
        (message,) = await chat.history()
        assert message.content == [{"type": "text", "text": "my …"}, *parts]
        other = runtime.session("ann", "two")
        await other.load_state_dict(await chat.state_dict())
        (entry,) = (await other.inspect()).entries
        assert entry.size < 2_000


async def test_a_question_keeps_its_words(reopen: Callable[[], Any]) -> None:
    """Where its attachments do not fit, they are named; some are shown if some fit."""
    many = [{"type": "image_url", "image_url": {"url": url(picture(n))}} for n in range(12)]
    asked = {"type": "text", "text": "Which of these shows the red door of the house in Lisbon?"}
    async with reopen() as runtime:
        chat = runtime.session("ann", "one")
        await chat.append({"role": "user", "content": [asked, *many]})
        context = await chat.load(max_tokens=2_000)
        (message,) = context.messages
        kinds = [part["type"] for part in message["content"]]
        assert message["content"][0] == asked
        assert 2 <= kinds.count("image_url") <= 4
        assert kinds[1] == "image_url"
        assert message["content"][-1]["text"].startswith("[image, 640")
        assert 500 < context.tokens <= 2_000


async def test_the_picture_of_a_turn_stays(reopen: Callable[[], Any]) -> None:
    async with reopen() as runtime:
        chat = runtime.session("ann", "one")
        await chat.append(shown("What is it?", picture(6)))
        for number in range(15):
            function = {"name": "look", "arguments": "{}"}
            call = {"id": f"c{number}", "type": "function", "function": function}
            await chat.append(
                [
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": f"c{number}", "content": "a closer look"},
                ]
            )
        context = await chat.load()
        assert url(picture(6)) in str(context.messages[0])
        assert context.sources.recent.status == "ok"


async def test_extensions_are_refused() -> None:
    async with Runtime.in_memory() as runtime:
        chat = runtime.session("ann", "one")
        for bad in (msgspec.msgpack.Ext(5, b"x"), msgspec.msgpack.Ext(82, b"\x00rem\xff\x01x")):
            wrong: list[dict[str, Any]] = [
                {"role": "user", "content": "x", "metadata": {"x": [bad]}},
                {"role": "user", "content": "x", "thing": bad},
            ]
            for given in wrong:
                with pytest.raises(InvalidMessage):
                    await chat.append(given)
        assert await chat.history() == []


async def test_a_context_has_a_bound_of_bytes(tmp_path: Path) -> None:
    """The newest pictures come first; the others are shown in words, and are there for readers."""
    old, new = picture(1, size=700_000), picture(2, size=700_000)
    config = msgspec.structs.replace(PLAIN, attachments=AttachmentsConfig(context_mb=1))
    async with Runtime(tmp_path, config=config) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append([shown("first", old, "old.png"), shown("second", new, "new.png")])
        first, second = (await chat.load()).messages
        assert second == shown("second", new, "new.png")
        assert f"[image old.png, 640{TIMES}480]" in str(first)
        assert len(str(first)) < 1_000
        assert url(old) in str((await chat.history())[0].content)
