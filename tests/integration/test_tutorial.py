"""The tutorial, as a reader goes through it: each step is run, and prints what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from examples.tutorial.assistant import Assistant
from tests.endpoints import Answer, started_endpoint
from tests.programs import ROOT, printed, run_program

PAGE = ROOT / "docs" / "tutorial" / "an-agent-that-remembers.md"
STEP = re.compile(r"```console\n\$ python -m examples\.tutorial\.(\w+)\n(.*?)```", re.DOTALL)
DATE = re.compile(r"\(\d+ \w+ \d{4}\)")
ID = re.compile(r"[0-9a-f]{32}")


def comparable(output: str) -> str:
    """Without dates, ids, and spaces before the end of a line."""
    return re.sub(" +$", "", ID.sub("ID", DATE.sub("(DATE)", output)), flags=re.MULTILINE)


@pytest.mark.blocking
def test_each_step_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One directory for all, as on the page; the process that dies is one of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    steps = STEP.findall(PAGE.read_text())
    files = {path.stem for path in (ROOT / "examples" / "tutorial").glob("step_*.py")}
    assert {name for name, _ in steps} == files
    for name, shown in steps:
        if name == "step_4_crash":
            done = run_program(f"examples.tutorial.{name}", check=False, cwd=tmp_path)
            assert done.stderr == ""
            got = done.stdout
        else:
            got = printed(f"examples.tutorial.{name}")
        assert comparable(got) == comparable(shown), name


@pytest.mark.blocking
def test_its_tests_pass() -> None:
    """The tests of the last step, by the command that the page shows."""
    assert "$ pytest examples/tutorial/test_agent.py\n" in PAGE.read_text()
    file = ROOT / "examples" / "tutorial" / "test_agent.py"
    words = ["-p", "remora_pytest", "-p", "no:cacheprovider"]
    done = run_program("pytest", *words, file, check=False)
    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.blocking  # the import of OpenAI's package
@pytest.mark.anyio
async def test_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key, the steps ask the endpoint, through OpenAI's package, whole and streamed."""
    with started_endpoint() as endpoint:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        endpoint.answer = reply
        messages = [{"role": "user", "content": "Where do I live?"}]
        assert await Assistant().complete(messages) == "In Lisbon."
        chunks = [chunk async for chunk in Assistant().stream(messages)]
        assert chunks == ["In ", "Lisbon."]
        assert [body["messages"] for _, _, body in endpoint.requests] == [messages, messages]


def reply(_: str, body: dict[str, Any]) -> Answer:
    base = {"id": "1", "created": 1, "model": body["model"]}
    if not body.get("stream"):
        message = {"role": "assistant", "content": "In Lisbon."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, json.dumps({**base, "object": "chat.completion", "choices": [choice]}).encode()
    lines = []
    for text in ("In ", "Lisbon."):
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        chunk = {**base, "object": "chat.completion.chunk", "choices": [choice]}
        lines.append(f"data: {json.dumps(chunk)}\n\n")
    return 200, "".join([*lines, "data: [DONE]\n\n"]).encode()
