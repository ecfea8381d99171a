"""The command line, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from remora import Runtime
from remora.cli.main import main
from remora.cli.reader import read_conversations
from remora.config import Config
from remora.errors import InvalidInput


def write(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path


def chat(user: str, session: str, *texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {
        "user": user,
        "session": session,
        "timestamp": "2025-01-02T03:04:05Z",
        "messages": messages,
    }


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.mark.usefixtures("wide")
def test_replay_show_recall(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The three commands on one file; the second replay adds nothing."""
    file = write(
        tmp_path / "chats.jsonl",
        chat(
            "alice",
            "one",
            "My cat is called Figaro.",
            "What a name!",
            "He hates thunder.",
            "Poor Figaro.",
        ),
        chat("bob", "one", "I collect maps.", "Which ones?"),
    )
    where = ["--dir", str(tmp_path / "memory")]
    assert main(["replay", str(file), *where]) == 0
    shown = capsys.readouterr().out
    assert "6 added" in shown
    assert "each once; 6 messages in the journal" in shown
    assert main(["replay", str(file), *where, "--query", "maps"]) == 0
    shown = capsys.readouterr().out
    assert " 0 added, 6 there already" in shown
    assert "I collect maps." in shown
    assert main(["show", "alice", "one", *where]) == 0
    shown = capsys.readouterr().out
    assert "My cat is called Figaro." in shown
    assert "4 messages ever" in shown
    assert main(["recall", "alice", "what is the cat's name?", *where, "-k", "1"]) == 0
    shown = capsys.readouterr().out
    assert "Figaro" in shown
    assert "one #" in shown
    assert "maps" not in shown


@pytest.mark.usefixtures("wide")
def test_bad_lines_are_named_and_the_rest_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad line: named by number, exit code 3, everything else replayed."""
    file = write(
        tmp_path / "chats.jsonl",
        chat("alice", "one", "fine"),
        "{broken",
        '["no", "object"]',
        {"user": "alice", "messages": []},
        {"user": "", "session": "x", "messages": [{"role": "user", "content": "x"}]},
        {
            "user": "alice",
            "session": "two",
            "messages": [{"role": "user", "content": "half"}, {"role": "robot", "content": "x"}],
        },
        {"user": "alice", "session": "two", "timestamp": "noon", "messages": []},
        "",
        {"type": "qa", "question": "passed over"},
        {"user": "alice", "session": "three", "role": "user", "content": "also fine", "key": "k"},
    )
    assert main(["replay", str(file), "--dir", str(tmp_path / "memory")]) == 3
    shown = capsys.readouterr().out
    for number in (2, 3, 4, 5, 6, 7):
        assert f"line {number}:" in shown
    assert "line 1:" not in shown
    assert "2 added" in shown
    assert "no conversation is in it: 1 line (" in shown


def test_errors_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback: one line on standard error, exit code 1, and nothing made that was not asked
    for.
    """
    memory = tmp_path / "memory"
    cases = [
        (["replay", str(tmp_path / "absent.jsonl")], "cannot read"),
        (["replay", str(write(tmp_path / "empty.jsonl", ""))], "no conversation"),
        (["show", "alice", "one"], "no memory in"),
        (["recall", "alice", "x"], "no memory in"),
        (["replay", str(tmp_path / "absent.jsonl"), "--token-limit", "0"], "--token-limit"),
        (
            ["show", "alice", "one", "--config", str(write(tmp_path / "c.toml", "[bufer]"))],
            "did you mean buffer?",
        ),
    ]
    for command, text in cases:
        assert main([*command, "--dir", str(memory)]) == 1
        captured = capsys.readouterr()
        assert text in captured.err.replace("\n", " ")
        assert captured.err.startswith("remora: ")
    assert not memory.exists()
    file = write(tmp_path / "chats.jsonl", chat("alice", "monday", "hello"))
    assert main(["replay", str(file), "--dir", str(memory)]) == 0
    assert main(["show", "alice", "mondy", "--dir", str(memory)]) == 1
    assert "alice has: monday" in capsys.readouterr().err
    assert main(["recall", "nobody", "x", "--dir", str(memory)]) == 1
    for wrong in (
        ["replay", str(file), "--concurrency", "0"],
        ["show", "alice", "monday", "-n", "-1"],
        ["recall", "a", "b", "-k", "0"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*wrong, "--dir", str(memory)])
        assert stopped.value.code == 2


@pytest.mark.usefixtures("wide")
def test_a_user_who_has_memories_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They exist, and what was recorded is shown as what it is; a backup prints its one line."""
    memory = tmp_path / "memory"

    async def remember() -> None:
        async with Runtime(memory) as runtime:
            await runtime.user("dora").remember("Dora plays the cello.")
            await runtime.settle()

    anyio.run(remember)
    assert main(["show", "dora", "chat", "--dir", str(memory)]) == 1
    assert "dora has no sessions, only what was remembered" in capsys.readouterr().err
    assert main(["recall", "dora", "cello", "--dir", str(memory)]) == 0
    recalled = capsys.readouterr().out
    assert "fact: Dora plays the cello." in recalled
    assert "#0" not in recalled
    assert main(["backup", str(tmp_path / "copy"), "--dir", str(memory)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "1 memory" in printed.out


@pytest.mark.usefixtures("wide")
def test_user_data_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What people wrote, ids and names among it, is shown and not obeyed: neither markup nor escape
    sequences.
    """
    messages = [
        {"role": "user", "name": "[/b]", "content": "[red]markup[/] \x1b]0;title\x07\x1b[2J bell"}
    ]
    file = write(tmp_path / "odd.jsonl", {"user": "[/x]", "session": "[/y]", "messages": messages})
    where = ["--dir", str(tmp_path / "memory")]
    assert main(["replay", str(file), *where, "--query", "bell"]) == 0
    assert main(["show", "[/x]", "[/y]", *where]) == 0
    assert main(["show", "[/x]", "[/y]", *where, "-n", "0"]) == 0
    assert main(["recall", "[/x]", "bell \udcff", *where]) == 0
    shown = capsys.readouterr().out
    assert "[red]markup[/]" in shown
    assert "\x1b]" not in shown
    assert "\x07" not in shown


def test_files_of_other_making(tmp_path: Path) -> None:
    """A byte order mark, Windows line ends, absurd nesting, dates past the calendar: read, or named
    by number.
    """
    path = tmp_path / "odd.jsonl"
    good = json.dumps(chat("alice", "one", "hello")).encode()
    late = json.dumps(
        {**chat("alice", "two", "a", "b"), "timestamp": "9999-12-31T23:59:59Z"}
    ).encode()
    long_id = json.dumps({**chat("x" * 200_000, "two", "a")}).encode()
    path.write_bytes(
        b"\xef\xbb\xbf"
        + good
        + b"\r\n"
        + b"[" * 200_000
        + b"\r\n"
        + late
        + b"\n\xff\xfe\n"
        + long_id
        + b"\n"
    )
    found = read_conversations(path)
    assert found.messages == 1
    assert [bad.number for bad in found.bad] == [2, 3, 4, 5]
    assert all(len(bad.reason) <= 200 for bad in found.bad)


def test_four_shapes_of_lines(tmp_path: Path) -> None:
    """docs/reference/replay-format.md: conversations, messages, turns and traces, each with
    keys of their own.
    """
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    file = write(
        tmp_path / "mixed.jsonl",
        chat("alice", "one", "a", "b"),
        chat("alice", "one", "a", "b"),
        {
            "user": "alice",
            "session": "one",
            "timestamp": "2025-01-02",
            "role": "user",
            "content": "c",
        },
        {"type": "conversation", "conv": "c1", "speakers": ["Ann Lee", "Bo"]},
        {
            "type": "turn",
            "conv": "c1",
            "session": 1,
            "time": "2023-05-08T13:56:00",
            "id": "D1:1",
            "speaker": "Bo",
            "text": "Hi",
        },
        {
            "type": "turn",
            "conv": "c1",
            "session": 1,
            "id": "D1:2",
            "speaker": "Ann Lee",
            "text": "Look",
            "image": "a photo of a dog",
        },
        {
            "type": "trace",
            "source": "s",
            "id": "t",
            "messages": [{"role": "assistant", "content": None, "tool_calls": [call]}],
        },
    )
    found = read_conversations(file)
    assert not found.bad
    keys = [p.key for planned in found.sessions.values() for p in planned]
    assert len(set(keys[:5])) == 5, "the same line twice is two messages each"
    bo, ann = found.sessions[next(key for key in found.sessions if key.user == "c1")]
    assert (bo.message["role"], ann.message["role"], ann.message["name"]) == (
        "assistant",
        "user",
        "Ann_Lee",
    )
    assert ann.message["content"] == "Look [shares a photo of a dog]"


def test_demo_shows_the_point() -> None:
    """S5.04: folds, recall across sessions, and no tool call split, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "remora", "demo"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    shown = " ".join(done.stdout.split())
    assert "each once; 269 messages in the journal" in shown
    assert "tool calls split 0" in shown
    assert "green button for seven seconds" in shown


def test_help_is_worth_reading(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command explains itself."""
    for command in (
        [],
        ["replay"],
        ["show"],
        ["recall"],
        ["demo"],
        ["export"],
        ["import"],
        ["reembed"],
        ["stats"],
        ["tune"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*command, "--help"])
        assert stopped.value.code == 0
        assert len(capsys.readouterr().out) > 300


# -- carrying elsewhere ----------------------------------------------------------------------------


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("form", ["all.jsonl", "tables"])
def test_export_and_import(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """S4.37: what one directory holds another one holds, recallable when the command ends; mistakes
    are named.
    """
    file = write(
        tmp_path / "chats.jsonl",
        chat("alice", "one", "My cat is called Figaro.", "What a name!"),
        chat("bob", "one", "I collect maps.", "Which ones?"),
    )
    one, two, dest = str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / form)
    assert main(["replay", str(file), "--dir", one]) == 0
    capsys.readouterr()
    assert main(["export", dest, "--dir", one]) == 0
    assert "2 sessions with 4 messages" in capsys.readouterr().out
    assert main(["export", dest, "--dir", one]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["export", dest, "--dir", one, "--overwrite"]) == 0
    assert main(["export", str(tmp_path / "all.csv"), "--dir", one]) == 1
    assert main(["import", dest, "--dir", two]) == 0
    assert "2 sessions with 4 messages" in capsys.readouterr().out
    assert main(["recall", "alice", "what is the cat's name?", "--dir", two, "-k", "1"]) == 0
    assert "Figaro" in capsys.readouterr().out
    assert main(["import", dest, "--dir", two]) == 1
    assert "--skip-existing" in capsys.readouterr().err
    assert main(["import", dest, "--dir", two, "--skip-existing"]) == 0
    assert "2 sessions there already" in capsys.readouterr().out
    (tmp_path / "broken.jsonl").write_text("{}\n")
    assert main(["import", str(tmp_path / "broken.jsonl"), "--dir", two]) == 1
    assert "line 1" in capsys.readouterr().err
    assert main(["export", dest, "--dir", str(tmp_path / "none")]) == 1
    assert "no memory in" in capsys.readouterr().err


@pytest.mark.usefixtures("wide")
def test_reembed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S2.17: another embedder is refused with the command that helps; the command helps, and then
    has nothing to do.
    """
    file = write(
        tmp_path / "chats.jsonl", chat("alice", "one", "My cat is called Figaro.", "What a name!")
    )
    where = ["--dir", str(tmp_path / "memory")]
    assert main(["replay", str(file), *where]) == 0
    other = ["--config", str(tmp_path / "remora.yaml")]
    (tmp_path / "remora.yaml").write_text("models: {embedder: none}\n")
    assert main(["recall", "alice", "cat", *where, *other]) == 1
    assert f"remora reembed --dir {tmp_path / 'memory'}" in capsys.readouterr().err.replace(
        "\n", ""
    )
    assert main(["reembed", *where, *other]) == 0
    assert "now uses none/0: 2 rows" in capsys.readouterr().out
    assert main(["recall", "alice", "cat", *where, *other]) == 0
    assert "Figaro" in capsys.readouterr().out
    assert main(["reembed", *where, *other]) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.usefixtures("wide")
def test_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4.36: figures of the memory, of a user, of a session; whoever is not there is named; ids are
    shown and not obeyed.
    """
    file = write(
        tmp_path / "chats.jsonl",
        chat("alice", "one", "My cat is called Figaro.", "What a name!"),
        chat("[/b]\u202e", "[red]", "I collect maps.", "Which ones?"),
    )
    where = ["--dir", str(tmp_path / "memory")]
    assert main(["replay", str(file), *where]) == 0
    capsys.readouterr()

    def figures(*command: str) -> dict[str, str]:
        assert main(["stats", *command, *where]) == 0
        lines = [line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines()]
        return {line[0]: line[1].strip() for line in lines if len(line) == 2}

    whole = figures()
    assert (whole["users"], whole["sessions"], whole["messages"], whole["dead letters"]) == (
        "2",
        "2",
        "4",
        "0",
    )
    assert whole["embedder"].startswith("wordllama")
    assert figures("alice")["messages"] == "2"
    assert figures("alice", "one")["indexed"] == "2, or being indexed"
    assert figures("[/b]\u202e", "[red]")["messages"] == "2"
    for wrong in (["nobody"], ["alice", "two"]):
        assert main(["stats", *wrong, *where]) == 1
        assert wrong[-1] in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
@pytest.mark.usefixtures("wide")
def test_commands_say_at_once_that_a_server_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S4.36: a command does not wait for the process that owns the directory."""
    import fcntl  # noqa: PLC0415

    where = ["--dir", str(tmp_path / "memory")]
    file = write(tmp_path / "chats.jsonl", chat("alice", "one", "My cat is called Figaro."))
    assert main(["replay", str(file), *where]) == 0
    server = os.open(tmp_path / "memory", os.O_RDONLY)
    try:
        fcntl.flock(server, fcntl.LOCK_EX)
        for command in (["reembed"], ["forget", "alice", "--yes"]):
            assert main([*command, *where]) == 1
            said = capsys.readouterr().err
            assert "is in use by process" in said
            assert "lock_wait_s" not in said
    finally:
        os.close(server)


ADDRESS = "postgresql://joe:hidden@127.0.0.1:1/shop"


@pytest.mark.parametrize(
    "command",
    [
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
    ],
)
def test_an_address_is_no_directory(
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4.36: it says what takes an address, without the password; no directory is made."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "chats.jsonl", chat("alice", "one", "My cat is called Figaro."))
    try:
        code = main(command)
    except SystemExit as e:
        code = int(str(e.code))
    assert code in {1, 2}
    said = " ".join(capsys.readouterr().err.split())
    assert "not the address of a database" in said
    assert "remora owners ADDRESS" in said
    assert "hidden" not in said
    assert [one.name for one in tmp_path.iterdir()] == ["chats.jsonl"]
    with pytest.raises(InvalidInput, match="not the address of a database"):
        Runtime(ADDRESS)


def test_a_file_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4.36: a configuration has an option of its own."""
    file = tmp_path / "remora.yaml"
    file.write_text("directory: memory\n")
    for command in (["view", str(file)], ["stats", "--dir", str(file)]):
        with pytest.raises(SystemExit):
            main(command)
        assert "with --config" in " ".join(capsys.readouterr().err.split())


@pytest.mark.blocking("resharding reads the directory before its work begins")
@pytest.mark.usefixtures("wide")
def test_a_directory_beside_an_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4.36: a memory of files is read, also one in shards, whatever the configuration has."""
    where = ["--dir", str(tmp_path / "memory")]
    file = write(tmp_path / "chats.jsonl", chat("alice", "one", "My cat is called Figaro."))
    config = tmp_path / "remora.yaml"
    config.write_text(f"journal: {{dsn: '{ADDRESS}'}}\n")
    assert main(["replay", str(file), *where]) == 0
    for shards in ("2", "1"):
        assert main(["reshard", *where, "--shards", shards]) == 0
        capsys.readouterr()
        assert main(["users", *where, "--config", str(config)]) == 0
        assert "alice" in capsys.readouterr().out


@pytest.mark.usefixtures("wide")
def test_what_was_forgotten_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4.36: in words that go with the numbers."""
    where = ["--dir", str(tmp_path / "memory")]
    file = write(tmp_path / "chats.jsonl", chat("alice", "one", "My cat is called Figaro."))
    assert main(["replay", str(file), *where]) == 0
    capsys.readouterr()
    assert main(["forget", "alice", "one", "--yes", *where]) == 0
    assert "1 actor, 1 message, 1 long-term row" in capsys.readouterr().out


@pytest.mark.usefixtures("wide")
def test_a_refused_import_leaves_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S4.37: a new directory is removed again; one that holds something stays."""
    bad, new = write(tmp_path / "bad.jsonl", chat("alice", "one", "hello")), tmp_path / "new"
    assert main(["import", str(bad), "--dir", str(new)]) == 1
    assert "bad.jsonl" in capsys.readouterr().err
    assert not new.exists()
    assert main(["import", str(bad), "--dir", str(tmp_path)]) == 1
    assert bad.exists()


# -- config ----------------------------------------------------------------------------------------


@pytest.fixture
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REMORA_") and "__" in name]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_no_variables")
def test_config_defaults_load_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2.33: what `--defaults` prints is a configuration file with every key, each with a comment,
    and it means the defaults.
    """
    with monkeypatch.context() as broken:
        broken.setenv("REMORA_BUFFER__SIZE", "0")  # the environment is not asked
        assert main(["config", "--defaults"]) == 0
    shown = capsys.readouterr().out
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


@pytest.mark.usefixtures("_no_variables")
def test_config_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2.33, S2.34: file and environment in force, the default beside what differs, secrets as
    stars, and it loads back.
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
    assert main(["config", "--config", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "sk-hidden" not in shown
    assert "  size: 7  # default: 50\n" in shown
    assert "  timeout_s: 7.5  # default: 30.0\n" in shown
    assert "  api_key: '***'  # default: ''\n" in shown
    assert "    region: north  # default: ''\n" in shown
    assert "  batch: 10\n" in shown
    again = tmp_path / "again.yaml"
    again.write_text(shown.replace("'***'", "'sk-hidden'"))
    assert Config.from_file(again, environment={}) == Config.from_file(path)
    assert main(["config"]) == 0
    assert "  size: 50\n" in capsys.readouterr().out


def test_config_names_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2.33: a mistake in the file or in a variable is named, and the exit code is 1; two sources
    at once are wrong usage.
    """
    path = tmp_path / "remora.yaml"
    path.write_text("buffer: {sise: 7}\n")
    assert main(["config", "--config", str(path)]) == 1
    assert "did you mean buffer.size?" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setenv("REMORA_BUFFER__SIZE", "-3")
    assert main(["config"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "environment variable REMORA_BUFFER__SIZE) must be over 0, not -3" in said
    with pytest.raises(SystemExit):
        main(["config", "--defaults", "--config", str(path)])
