"""The cookbook's and the guides' examples run, offline, each as a user would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(example: str, *words: str, **environment: str) -> str:
    command = [sys.executable, "-m", f"examples.{example}", *words]
    given = {**os.environ, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, cwd=ROOT, env=given
    ).stdout


def test_agent() -> None:
    """S0.28: "my name is Charlie" is in the next turn's prompt, after the instructions."""
    prompt = run("agent").split("the second prompt was:")[1].strip().splitlines()
    assert [line.strip() for line in prompt] == [
        "system: You are a helpful assistant.",
        "user: Hello, my name is Charlie.",
        "assistant: Hello Charlie!",
        "user: What's my name?",
    ]


def test_scopes() -> None:
    """S0.30: a long conversation is summarized; each user sees their own; metadata filters."""
    printed = run("scopes")
    assert "summary: " in printed
    tokens = int(printed.split("40 messages in ")[1].split(" tokens")[0])
    assert tokens < 600
    assert "alice: ['My order is 4711.']" in printed
    assert "bob: ['My order is 815.']" in printed
    assert "rui said: ['Half past!']" in printed


@pytest.mark.parametrize(
    ("words", "result"), [("yes", "booked to Porto for 32 EUR"), ("no", "the user declined")]
)
def test_human_in_the_loop(tmp_path: Path, words: str, result: str) -> None:
    """S3.29: the question is asked by one process and answered in another; asked and answered
    twice, it is once.
    """
    directory = str(tmp_path / "memory")

    def run_step(*step: str) -> str:
        # nothing is recalled: these processes need not load the embedder
        return run("human_in_the_loop", directory, *step, REMORA_LONG_TERM__ENABLED="false")

    assert "waiting for a human: call-1" in run_step("ask")
    assert "waiting for a human: call-1" in run_step("ask")
    shown = run_step("answer", words)
    assert shown.splitlines() == [
        "user: Take me to Porto on Friday, cheaply.",
        "assistant: book_train",
        f"tool: {result}",
    ]
    assert "nothing to decide" in run_step("answer", words)


def test_pinned_files() -> None:
    """S3.31: a file that was pinned at run time stays in the context when all else has left, until
    it is taken out.
    """
    printed = run("pinned_files")
    assert "<pinned_files>\n# notes.md\nThe deploy key is rotated on Mondays." in printed
    assert "unpinned: True" in printed


def test_service_block() -> None:
    """S3.31: what left the buffer comes back through a memory service behind a block; what does not
    bear on it stays away.
    """
    printed = run("service_block")
    assert "<service>\n- my cat is called Figaro\n</service>" in printed
    assert "bakery" not in printed


def test_condensed_turns() -> None:
    """S3.31, S3.05: one condensed question reaches the model, and the session keeps the turns as
    they were said.
    """
    printed = run("condensed_turns")
    assert "the model was asked: Draw a red circle, twice as large." in printed
    assert "'Red, and twice as large.'" in printed.split("the session has:")[1]


def test_own_journal() -> None:
    """S3.26, S1.02: a journal of one's own is asked to make durable what was said."""
    assert "made durable: Opened, Appended" in run("own_journal")


def test_frameworks() -> None:
    """S3.03, S1.20: the Agents SDK and LangChain over a session."""
    assert run("openai_agents_session").split() == [
        "Charlie.",
        "the",
        "second",
        "run",
        "saw",
        "3",
        "items",
    ]
    assert "'My name is Charlie.', 'Hello Charlie!', 'What is my name?', 'Charlie.'" in run(
        "langchain_history"
    )


def test_old_names() -> None:
    """S3.02, S4.06, S4.07, S4.44: the facades side by side."""
    printed = run("old_names")
    assert "['Hello, world!', 'Hello, world to you too!']" in printed
    assert "Birthday: March 15" in printed
    assert "[{'role': 'user', 'content': 'Hello, my name is Alice.'}]" in printed


def test_sizing_guide() -> None:
    """S0.27: the guide's figures are what the benchmark measures."""
    command = [sys.executable, "-m", "benchmarks.sizing"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, cwd=ROOT
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(rows) == 11
    guide = (ROOT / "docs" / "how-to" / "cookbook.md").read_text()
    assert "\n".join(rows) in guide
    figures = {row.split(" | ")[0].strip("| "): row.strip("| ").split(" | ") for row in rows[2:]}
    small, large = figures["window 4, with summary"], figures["window 12 (BufferPreset.TECHNICAL)"]
    assert int(small[1]) < int(large[1]), "fewer tokens"
    assert int(small[7].strip("%")) > int(large[7].strip("%")), "and more of what was told"


def test_facts() -> None:
    """The newer fact holds; the older one does so again when the newer is forgotten."""
    assert run("facts").splitlines() == [
        "holds: Ana lives in Porto | from message (1,) of day 1",
        "no longer: Ana lives in Lisbon",
        "after forgetting: Ana lives in Lisbon",
    ]


def test_keyed_state() -> None:
    """Of two bookings at the same time one succeeds; no visit is lost; clearing keeps both."""
    printed = run("keyed_state").splitlines()
    *refused, booked, visits, units, counted, booking = printed
    assert len(refused) < 2
    assert [booked, visits] == ["[False, True]", "visits: 5"]
    assert [units, counted] == ["units metric (version 1)", "visits 5 (version 6)"]
    assert booking.startswith("booking {'train': 'IC 523', 'seat': '1")
