"""What a runtime loads when it opens, so that nothing is loaded in the middle of a request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from remora import Runtime
from remora.errors import InvalidInput

# All verbs that need what `import remora` leaves out, in an interpreter that has loaded nothing
# else. It prints which modules the event loop's thread imported.
PROGRAM = """
import asyncio, sys, threading
from pathlib import Path
import remora

loop_thread = threading.get_ident()
loaded, watching = [], False

def watch(event, args):
    if watching and event == "import" and threading.get_ident() == loop_thread:
        loaded.append(args[0])

async def main(kind, directory):
    global watching
    config = remora.Config.from_dict({"tokens": {"counter": "heuristic"}, "models": {"embedder": "none"}})
    make = remora.Runtime.in_memory if kind == "in_memory" else lambda **options: remora.Runtime(directory / "memory", **options)
    watching = True
    async with make(config=config) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append({"role": "user", "content": "I moved to Lisbon."})
        await chat.load(query="where do I live?")
        export = await chat.export()
        await runtime.user("alice").import_session(export, session="copy")
        await runtime.settle()
        await runtime.user("alice").export_arrow()
        for form in ("out.jsonl", "out"):
            await runtime.export(directory / form)
            await runtime.import_(directory / form, skip_existing=True)
        if kind == "directory":
            await runtime.backup(directory / "backup")
        await runtime.user("alice").recall("where do I live?")
        await runtime.user("alice").forget()
        runtime.statistics()
    watching = False

sys.addaudithook(watch)
asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
print([name for name in loaded if name.split(".")[0] in {"remora", "structlog", "aiosqlite", "filelock", "importlib"}])
"""  # noqa: E501


@pytest.mark.cold
@pytest.mark.parametrize("kind", ["directory", "in_memory"])
def test_nothing_is_loaded_on_the_event_loop(kind: str, tmp_path: Path) -> None:
    """S4.02: what a runtime leaves out at `import remora` is loaded in threads, before it is
    needed.
    """
    command = [sys.executable, "-c", PROGRAM, kind, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_another_event_loop_is_refused(tmp_path: Path) -> None:
    """Under trio the error says what to run instead, and nothing is written."""

    async def main(directory: Path | None) -> None:
        async with Runtime(directory):
            raise AssertionError

    for directory in (None, tmp_path / "memory"):
        with pytest.raises(InvalidInput, match="asyncio"):
            anyio.run(main, directory, backend="trio")
    assert not list(tmp_path.iterdir())


@pytest.mark.anyio
@pytest.mark.blocking  # the test itself changes the directory
async def test_the_program_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: a relative path is that of the moment in which the runtime opens."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with Runtime("memory") as runtime:
        assert runtime.path == tmp_path / "memory"
        session = runtime.session("alice", "chat")
        await session.append({"role": "user", "content": "I moved to Lisbon."})
        monkeypatch.chdir(tmp_path / "elsewhere")
        await session.append({"role": "user", "content": "It is sunny there."})
        await session.flush()
        await runtime.settle()
        assert len(await runtime.user("alice").recall("Lisbon")) == 2
        await runtime.user("alice").forget()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    async with Runtime(tmp_path / "memory") as runtime:
        assert await runtime.session("alice", "chat").history() == []
