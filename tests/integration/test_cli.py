"""The command line, as a user runs it."""

from __future__ import annotations

import json
import os
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from remora import Runtime
from remora.cli.erasure import describe_rows
from remora.cli.replay import read_conversations
from remora.config import Config
from remora.errors import InvalidInput
from tests.programs import run_command, run_program


def write(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path


def chat(user: str, session: str, *texts: str) -> dict[str, Any]:
    roles = cycle(("user", "assistant"))
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    timestamp = "2025-01-02T03:04:05Z"
    return {"user": user, "session": session, "timestamp": timestamp, "messages": messages}


FIGARO = chat("alice", "one", "My cat is called Figaro.", "What a name!")
MAPS = chat("bob", "one", "I collect maps.", "Which ones?")


class Commands:
    """Runs commands in a directory of their own, on the memory that is in it."""

    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.base, self.memory, self._capsys = base, base / "memory", capsys

    def __call__(self, *words: object, directory: Path | None = None, code: int = 0) -> str:
        """What a command prints; the text of its error, with single blanks, where that is due."""
        where = ["--dir", str(directory or self.memory)]
        return self.plain(*words, *where, code=code)

    def plain(self, *words: object, code: int | None = 0) -> str:
        """One that uses no memory, or names it itself. Without a code: any that means an error."""
        self._capsys.readouterr()
        ended = run_command(*words)
        out, error = self._capsys.readouterr()
        assert ended in ({1, 2} if code is None else {code}), (words, out, error)
        return " ".join(error.split()) if ended in {1, 2} else out

    def replay(self, *rows: Any, code: int = 0) -> str:
        return self("replay", write(self.base / "chats.jsonl", *rows), code=code)


@pytest.fixture
def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.setenv("COLUMNS", "160")
    return Commands(tmp_path, capsys)


def test_replay_show_recall(run: Commands) -> None:
    """S4.36: the commands on one file; a second replay adds nothing; what is forgotten is counted
    in words that go with the numbers.
    """
    rows = [chat("alice", "one", "My cat is called Figaro.", "What a name!", "He hates thunder.")]
    shown = run.replay(*rows, MAPS, chat("alice", "two", "It rains."))
    assert "6 added" in shown
    assert "each once; 6 messages in the journal" in shown
    shown = run("replay", run.base / "chats.jsonl", "--query", "maps")
    assert " 0 added, 6 there already" in shown
    assert "I collect maps." in shown
    shown = run("show", "alice", "one")
    assert "My cat is called Figaro." in shown
    assert "3 messages ever" in shown
    shown = run("recall", "alice", "what is the cat's name?", "-k", "1")
    assert "Figaro" in shown
    assert "one #" in shown
    assert "maps" not in shown
    forgotten = run("forget", "alice", "two", "--yes")
    assert "1 actor, 1 message, 1 state item, 1 long-term row" in forgotten


CHATGPT = [
    {
        "title": "Ferries",
        "mapping": {
            "n1": {
                "id": "n1",
                "message": {
                    "author": {"role": "user"},
                    "content": {"content_type": "text", "parts": ["When does it leave?"]},
                },
                "parent": None,
                "children": [],
            }
        },
        "current_node": "n1",
    }
]
CLAUDE = [
    {
        "uuid": "u1",
        "name": "Ferries",
        "chat_messages": [{"uuid": "m1", "text": "When does it leave?", "sender": "human"}],
    }
]
SHAREGPT = {"id": "1", "conversations": [{"from": "human", "value": "hi"}]}
TUNING = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (CHATGPT, "the export of ChatGPT"),
        (CLAUDE, "the export of Claude"),
        (SHAREGPT, "a data set in ShareGPT's format"),
        ([SHAREGPT] * 300, "a data set in ShareGPT's format"),
        (TUNING, "its messages are of no user and session"),
        ({"user": "a", "session": "b", "texts": [1, 2]}, '"messages": […]}'),
        ("plain text\n" * 30, "it is no JSON"),
        ("", "it is empty"),
    ],
)
def test_a_file_of_another_shape_is_named(
    run: Commands, shape: Any, named: str, indent: int | None
) -> None:
    """In one message, whether it is one line or a thousand; nothing is written."""
    file = run.base / "conversations.json"
    file.write_text(shape if isinstance(shape, str) else json.dumps(shape, indent=indent))
    error = run("replay", file, code=1)
    assert named in error
    assert error.count("remora:") == 1
    assert error.count("line 1: ") == (shape != "")
    assert "line 2: " not in error


@pytest.mark.parametrize("port", ["77731", "-1", "0x1f", "9" * 500])
def test_a_port_that_there_is_not_is_refused(run: Commands, port: str) -> None:
    """At once, in one sentence."""
    target = run.memory
    for words in (
        ("view", target, f"--port={port}"),
        ("http", target, "--keys", run.base / "keys", f"--port={port}"),
        ("mcp", target, f"--http={port}"),
    ):
        error = run.plain(*words, code=2)
        assert "65535" in error
        assert "Traceback" not in error


def test_a_sentence_is_one_line_in_a_pipe(
    run: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the width: grep finds it. A terminal breaks it between words."""
    long = "My cat Figaro sleeps on the warm stones of the harbour until the last ferry leaves."
    run.replay(chat("alice", "one", long))
    monkeypatch.setenv("COLUMNS", "40")
    for command in (("show", "alice", "one"), ("recall", "alice", "cat", "-k", "1")):
        lines = run(*command).splitlines()
        assert [line for line in lines if long in line], command
    ever = [line for line in run("show", "alice", "one").splitlines() if "message ever" in line]
    assert ever[0].endswith("indexed or being indexed")
    assert run_command("show", "bob", "one", "--dir", run.memory) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_bad_lines_are_named_and_the_rest_is_replayed(run: Commands) -> None:
    """A bad line: named by number, exit code 3, everything else replayed."""
    two: dict[str, Any] = {"user": "alice", "session": "two"}
    half = [{"role": "user", "content": "half"}, {"role": "robot", "content": "x"}]
    shown = run.replay(
        chat("alice", "one", "fine"),
        "{broken",
        '["no", "object"]',
        {"user": "alice", "messages": []},
        chat("", "x", "x"),
        {**two, "messages": half},
        {**two, "timestamp": "noon", "messages": []},
        "",
        {"type": "qa", "question": "passed over"},
        {"user": "alice", "session": "three", "role": "user", "content": "also fine", "key": "k"},
        code=3,
    )
    assert [number for number in range(1, 11) if f"line {number}:" in shown] == [2, 3, 4, 5, 6, 7]
    assert "2 added" in shown
    assert "no conversation is in it: 1 line (" in shown


def test_errors_say_what_to_do(run: Commands, tmp_path: Path) -> None:
    """No traceback: one line on standard error, exit code 1, and nothing made that was not asked
    for.
    """
    absent, empty = tmp_path / "absent.jsonl", write(tmp_path / "empty.jsonl", "")
    for command, text in (
        (["replay", absent], "cannot read"),
        (["replay", empty], "no conversation"),
        (["show", "alice", "one"], "no memory in"),
        (["recall", "alice", "x"], "no memory in"),
        (["replay", absent, "--token-limit", "0"], "--token-limit"),
        (
            ["show", "alice", "one", "--config", write(tmp_path / "c.toml", "[bufer]")],
            "did you mean buffer?",
        ),
    ):
        said = run(*command, code=1)
        assert text in said
        assert said.startswith("remora: ")
    assert not run.memory.exists()
    run.replay(chat("alice", "monday", "hello"))
    assert "alice has: monday" in run("show", "alice", "mondy", code=1)
    run("recall", "nobody", "x", code=1)
    run("replay", absent, "--concurrency", "0", code=2)
    run("show", "alice", "monday", "-n", "-1", code=2)
    run("recall", "a", "b", "-k", "0", code=2)


def test_a_user_who_has_memories_alone(
    run: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They exist, and what was recorded is shown as what it is; a backup prints its one line."""

    async def remember() -> None:
        async with Runtime(run.memory) as runtime:
            await runtime.user("dora").remember("Dora plays the cello.")
            await runtime.settle()

    anyio.run(remember)
    said = run("show", "dora", "chat", code=1)
    assert "dora has no sessions, only what was remembered" in said
    recalled = run("recall", "dora", "cello")
    assert "fact: Dora plays the cello." in recalled
    assert "#0" not in recalled
    capsys.readouterr()
    assert run_command("backup", tmp_path / "copy", "--dir", run.memory) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "1 memory" in printed.out


def test_user_data_cannot_drive_the_terminal(run: Commands) -> None:
    """What people wrote, ids and names among it, is shown and not obeyed: neither markup nor emoji
    codes nor escape sequences.
    """
    content = "[red]markup[/] \x1b]0;title\x07\x1b[2J bell"
    messages = [{"role": "user", "name": "[/b]", "content": content}]
    shown = run.replay({"user": "[/x]", "session": "[/y]", "messages": messages})
    for command in (
        ("replay", run.base / "chats.jsonl", "--query", "bell"),
        ("show", "[/x]", "[/y]"),
        ("show", "[/x]", "[/y]", "-n", "0"),
        ("recall", "[/x]", "bell \udcff"),
    ):
        shown += run(*command)
    run.replay({"user": "a:x:b", "session": "s:bug:", "messages": messages})
    assert "a:x:b / s:bug:" in run("show", "a:x:b", "s:bug:")
    assert "[red]markup[/]" in shown
    assert "\x1b]" not in shown
    assert "\x07" not in shown


def test_an_owner_of_another_release_erases_from_other_tables() -> None:
    """Their names are shown; a traceback would look as if nothing were erased."""
    rows = {"actors": 2, "summaries": 1, "facets": 3, "jobs": 0}
    assert describe_rows(rows) == "2 actors, 1 summary, 3 rows of facets"
    assert describe_rows({"jobs": 0}) == "there was nothing"


def test_files_of_other_making(tmp_path: Path) -> None:
    """A byte order mark, Windows line ends, absurd nesting, dates past the calendar: read, or named
    by number.
    """
    path = tmp_path / "odd.jsonl"
    good = json.dumps(chat("alice", "one", "hello")).encode()
    late = {**chat("alice", "two", "a", "b"), "timestamp": "9999-12-31T23:59:59Z"}
    long_id = json.dumps(chat("x" * 200_000, "two", "a")).encode()
    begin = b"\xef\xbb\xbf" + good + b"\r\n" + b"[" * 200_000 + b"\r\n"
    path.write_bytes(begin + json.dumps(late).encode() + b"\n\xff\xfe\n" + long_id + b"\n")
    found = read_conversations(path)
    assert found.messages == 1
    assert [bad.number for bad in found.bad] == [2, 3, 4, 5]
    assert all(len(bad.reason) <= 200 for bad in found.bad)


def test_four_shapes_of_lines(tmp_path: Path) -> None:
    """docs/reference/replay-format.md: conversations, messages, turns and traces, each with
    keys of their own.
    """
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    one = {"user": "alice", "session": "one", "timestamp": "2025-01-02"}
    turn = {"type": "turn", "conv": "c1", "session": 1}
    calling = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    file = write(
        tmp_path / "mixed.jsonl",
        chat("alice", "one", "a", "b"),
        chat("alice", "one", "a", "b"),
        {**one, "role": "user", "content": "c"},
        {"type": "conversation", "conv": "c1", "speakers": ["Ann Lee", "Bo"]},
        {**turn, "time": "2023-05-08T13:56:00", "id": "D1:1", "speaker": "Bo", "text": "Hi"},
        {**turn, "id": "D1:2", "speaker": "Ann Lee", "text": "Look", "image": "a photo of a dog"},
        {"type": "trace", "source": "s", "id": "t", "messages": calling},
    )
    found = read_conversations(file)
    assert not found.bad
    keys = [p.key for planned in found.sessions.values() for p in planned]
    assert len(set(keys[:5])) == 5, "the same line twice is two messages each"
    bo, ann = found.sessions[next(key for key in found.sessions if key.user == "c1")]
    assert bo.message["role"] == "assistant"
    assert (ann.message["role"], ann.message["name"]) == ("user", "Ann_Lee")
    assert ann.message["content"] == "Look [shares a photo of a dog]"


def test_demo_shows_the_point() -> None:
    """S5.04: folds, recall across sessions, and no tool call split, in a process of its own."""
    shown = " ".join(run_program("remora", "demo").stdout.split())
    assert "each once; 269 messages in the journal" in shown
    assert "tool calls split 0" in shown
    assert "green button for seven seconds" in shown


def test_help_is_worth_reading(run: Commands) -> None:
    """Every command explains itself."""
    commands = ["replay", "show", "recall", "demo", "export", "import", "reembed", "stats", "tune"]
    for words in ([], *([command] for command in commands)):
        assert len(run.plain(*words, "--help")) > 300, words


# -- carrying elsewhere ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["all.jsonl", "tables"])
def test_export_and_import(run: Commands, tmp_path: Path, form: str) -> None:
    """S4.37: what one directory holds another one holds, recallable when the command ends; mistakes
    are named; a new directory is removed again when the import is refused.
    """
    target, two, new = tmp_path / form, tmp_path / "two", tmp_path / "new"
    run.replay(FIGARO, MAPS)
    assert "2 sessions with 4 messages" in run("export", target)
    assert "--overwrite" in run("export", target, code=1)
    run("export", target, "--overwrite")
    run("export", tmp_path / "all.csv", code=1)
    assert "no memory in" in run("export", target, directory=tmp_path / "none", code=1)
    assert "2 sessions with 4 messages" in run("import", target, directory=two)
    shown = run("recall", "alice", "what is the cat's name?", "-k", "1", directory=two)
    assert "Figaro" in shown
    assert "--skip-existing" in run("import", target, directory=two, code=1)
    assert "2 sessions there already" in run("import", target, "--skip-existing", directory=two)
    broken = write(tmp_path / "broken.jsonl", "{}")
    assert "line 1" in run("import", broken, directory=two, code=1)
    bad = run.base / "chats.jsonl"
    assert "chats.jsonl" in run("import", bad, directory=new, code=1)
    assert not new.exists()
    run("import", bad, directory=tmp_path, code=1)
    assert bad.exists()


def test_reembed(run: Commands, tmp_path: Path) -> None:
    """S2.17: another embedder is refused with the command that helps; the command helps, and then
    has nothing to do.
    """
    run.replay(FIGARO)
    other = ["--config", tmp_path / "remora.yaml"]
    (tmp_path / "remora.yaml").write_text("models: {embedder: none}\n")
    refused = run("recall", "alice", "cat", *other, code=1)
    assert f"remora reembed --dir {run.memory}" in refused
    assert "now uses none/0: 2 rows" in run("reembed", *other)
    assert "Figaro" in run("recall", "alice", "cat", *other)
    assert "nothing to do" in run("reembed", *other)


async def _append(directory: Path) -> None:
    async with Runtime(directory) as runtime:
        await runtime.session("bob", "now").append({"role": "user", "content": "I collect maps."})


def test_reembed_names_messages_that_have_no_row_yet(run: Commands, tmp_path: Path) -> None:
    anyio.run(_append, run.memory)
    (tmp_path / "remora.yaml").write_text("models: {embedder: none}\n")
    told = run("reembed", "--config", tmp_path / "remora.yaml")
    assert "now uses none/0: 0 rows; 1 message not indexed yet" in told


def test_stats(run: Commands) -> None:
    """S4.36: figures of the memory, of a user, of a session; whoever is not there is named; ids are
    shown and not obeyed.
    """
    run.replay(FIGARO, chat("[/b]\u202e", "[red]", "I collect maps.", "Which ones?"))

    def figures(*words: str) -> dict[str, str]:
        lines = [line.strip().split("  ", 1) for line in run("stats", *words).splitlines()]
        return {line[0]: line[1].strip() for line in lines if len(line) == 2}

    whole = figures()
    names = ("users", "sessions", "messages", "dead letters")
    assert [whole[name] for name in names] == ["2", "2", "4", "0"]
    assert whole["embedder"].startswith("wordllama")
    assert figures("alice")["messages"] == "2"
    assert figures("alice", "one")["indexed"] == "2, or being indexed"
    assert figures("[/b]\u202e", "[red]")["messages"] == "2"
    for wrong in (["nobody"], ["alice", "two"]):
        assert wrong[-1] in run("stats", *wrong, code=1)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_commands_say_at_once_that_a_server_is_there(run: Commands) -> None:
    """S4.36: a command does not wait for the process that owns the directory."""
    import fcntl  # noqa: PLC0415

    run.replay(FIGARO)
    server = os.open(run.memory, os.O_RDONLY)
    try:
        fcntl.flock(server, fcntl.LOCK_EX)
        for command in (["reembed"], ["forget", "alice", "--yes"]):
            said = run(*command, code=1)
            assert "is in use by process" in said
            assert "lock_wait_s" not in said
    finally:
        os.close(server)


ADDRESS = "postgresql://joe:hidden@127.0.0.1:1/shop"


def test_an_address_is_no_directory(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.36: it says what takes an address, without the password; no directory is made."""
    monkeypatch.chdir(run.base)
    write(run.base / "chats.jsonl", FIGARO)
    for command in (
        ["view", ADDRESS],
        ["top", ADDRESS],
        ["health", ADDRESS],
        ["stats", "--dir", ADDRESS],
        ["replay", "chats.jsonl", "--dir", ADDRESS],
        ["reshard", ADDRESS, "--to", "directory"],
        ["serve", ADDRESS],
        ["mcp", ADDRESS],
        ["stats", "--dir", ADDRESS.replace("postgresql", "POSTGRESQL")],
        ["stats", "--dir", f" {ADDRESS}"],
    ):
        said = run.plain(*command, code=None)
        assert "not the address of a database" in said, command
        assert "remora owners ADDRESS" in said, command
        assert "hidden" not in said, command
        assert [one.name for one in run.base.iterdir()] == ["chats.jsonl"], command
    with pytest.raises(InvalidInput, match="not the address of a database"):
        Runtime(ADDRESS)


def test_a_file_is_no_directory(run: Commands, tmp_path: Path) -> None:
    """S4.36: a configuration has an option of its own."""
    file = write(tmp_path / "remora.yaml", "directory: memory")
    for command in (["view", file], ["stats", "--dir", file]):
        assert "with --config" in run.plain(*command, code=2)


@pytest.mark.blocking("resharding reads the directory before its work begins")
def test_a_directory_beside_an_address(run: Commands, tmp_path: Path) -> None:
    """S4.36: a memory of files is read, also one in shards, whatever the configuration has."""
    config = write(tmp_path / "remora.yaml", f"journal: {{dsn: '{ADDRESS}'}}")
    run.replay(FIGARO)
    for shards in (2, 1):
        run("reshard", "--shards", shards)
        assert "alice" in run("users", "--config", config)


# -- config ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REMORA_") and "__" in name]:
        monkeypatch.delenv(name)


def test_config_defaults_load_back(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2.33: what `--defaults` prints is a configuration file with every key, each with a comment,
    and it means the defaults.
    """
    with monkeypatch.context() as broken:
        broken.setenv("REMORA_BUFFER__SIZE", "0")  # the environment is not asked
        shown = run.plain("config", "--defaults")
    path = tmp_path / "remora.yaml"
    path.write_text(shown)
    assert Config.from_file(path, environment={}) == Config()
    tree = msgspec.yaml.decode(shown)
    assert tree.keys() == set(Config.__struct_fields__)
    lines = shown.splitlines()
    for number, line in enumerate(lines):
        if line and not line.lstrip().startswith("#"):
            assert lines[number - 1].lstrip().startswith("# "), f"{line} has no comment"
    sections = [(tree[name], getattr(Config(), name)) for name in tree]
    for keys, section in sections:
        if isinstance(keys, dict):
            assert keys.keys() == set(section.__struct_fields__)
            sections.extend((keys[name], getattr(section, name)) for name in keys)
    assert "  # One of: power, process, none.\n  durability: power\n" in shown
    assert (
        "  # buffer is compacted, `summary_tokens` by default, and the user profile.\n"
        "  token_limit: 30000\n" in shown
    )


def test_config_in_force(run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.33, S2.34: file and environment in force, the default beside what differs, secrets as
    stars, and it loads back; a mistake in either is named; two sources at once are wrong usage.
    """
    path = tmp_path / "remora.yaml"
    path.write_text(
        'directory: "a: b # c"\nbuffer: {size: 7, summary_prefix: "'
        + "long, " * 40
        + '\\n "}\nmodels: {api_key: "${{ secrets.K }}"}\n'
        + "long_term: {object_store: {region: north}}\n"
    )
    monkeypatch.setenv("K", "sk-hidden")
    monkeypatch.setenv("REMORA_MAILBOX__TIMEOUT_S", "7.5")
    shown = run.plain("config", "--config", path)
    assert "sk-hidden" not in shown
    for line in (
        "  size: 7  # default: 50",
        "  timeout_s: 7.5  # default: 30.0",
        "  api_key: '***'  # default: ''",
        "    region: north  # default: ''",
        "  batch: 10",
    ):
        assert line in shown.splitlines()
    again = tmp_path / "again.yaml"
    again.write_text(shown.replace("'***'", "'sk-hidden'"))
    assert Config.from_file(again, environment={}) == Config.from_file(path)
    assert "  size: 50\n" in run.plain("config")
    run.plain("config", "--defaults", "--config", path, code=2)
    path.write_text("buffer: {sise: 7}\n")
    said = run.plain("config", "--config", path, code=1)
    assert "did you mean buffer.size?" in said
    monkeypatch.setenv("REMORA_BUFFER__SIZE", "-3")
    said = run.plain("config", code=1)
    assert "environment variable REMORA_BUFFER__SIZE) must be over 0, not -3" in said
