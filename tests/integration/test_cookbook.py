"""The examples, the cookbook's and the guides', run offline, and print what they are to show."""

from __future__ import annotations

import json
import re
import runpy
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.programs import PATIENT, ROOT, printed, run_program
from tools import picture

pytestmark = pytest.mark.blocking

WITH_A_DIRECTORY = {
    # the document's six steps, twice; what was recorded on Monday is in front of Friday's prompt
    "developer_controlled": """
        1 add: My birthday is on March 15.
        2 retrieve: nothing
        3 build: ['user']
        4 generate: ...
        5 add
        6 record: ...
        1 add: When is my birthday?
        2 retrieve: ...
        ...My birthday is on March 15...
        3 build: ['system', 'user']
        4 generate: March 15, of course.
        5 add
        6 record: ...
        """,
    # the application records what the model has saved: one memory
    "hybrid": """
        save_to_memory(...
        assistant: ...
        fact: My birthday is on March 15.
        fact: Prefers short answers
        context: Noted!
        """,
    # the tool runs once; the third request gets the stored reply
    "turn_with_tools": """
        the thermometer was read
        failed: the model is gone
        It has 18 degrees in Lisbon.
        It has 18 degrees in Lisbon.
        """,
    # the day that the question names is the message's own, and not that of the import
    "earlier_dates": """
        <recalled>
        ...
        - (1 March 2024) User: "I moved to Oslo."
        ...
        - (30 June 2023) Fact: "Speaks Norwegian"
        </recalled>
        """,
    # a user's own agent, with the public tools: each message once, through faults and power cuts
    "simulated_agent": "100 seeds, ... power cuts: every message once, in order",
}
WITHOUT = {
    # "my name is Charlie" is in the next turn's prompt, after the instructions
    "agent": """
        ...
        the second prompt was:
          system: You are a helpful assistant.
          user: Hello, my name is Charlie.
          assistant: Hello Charlie!
          user: What's my name?
        """,
    # a long conversation is summarized; each user sees their own; metadata filters
    "scopes": """
        40 messages in ... tokens; summary: ...
        alice: ['My order is 4711.']
        bob: ['My order is 815.']
        rui said: ['Half past!']
        """,
    # a file that was pinned at run time stays when all else has left, until it is taken out
    "pinned_files": """
        ...
        <pinned_files>
        # notes.md
        The deploy key is rotated on Mondays.
        ...
        unpinned: True
        """,
    # what left the buffer comes back through a service behind a block, and nothing beside it
    "service_block": """
        ...
        <service>
        - my cat is called Figaro
        </service>
        ...
        """,
    # one condensed question reaches the model; the session keeps the turns as they were said
    "condensed_turns": """
        the model was asked: Draw a red circle, twice as large.
        the session has: ...'Red, and twice as large.'...
        """,
    # a journal of one's own is asked to make durable what was said
    "own_journal": "...made durable: Opened, Appended...",
    "openai_agents_session": """
        Charlie.
        the second run saw 3 items
        """,
    "langchain_history": """
        ...'My name is Charlie.', 'Hello Charlie!', 'What is my name?', 'Charlie.'...
        """,
    # the facades side by side
    "old_names": """
        ['Hello, world!', 'Hello, world to you too!']
        ...
        ...Birthday: March 15...
        [{'role': 'user', 'content': 'Hello, my name is Alice.'}]
        ...
        """,
    # the newer fact holds; the older one does so again when the newer is forgotten
    "facts": """
        holds: Ana lives in Porto | from message (1,) of day 1
        no longer: Ana lives in Lisbon
        after forgetting: Ana lives in Lisbon
        """,
    # of two bookings at the same time one succeeds; no visit is lost; clearing keeps both
    "keyed_state": """
        ...[False, True]
        visits: 5
        units metric (version 1)
        visits 5 (version 6)
        booking {'train': 'IC 523', 'seat': '1...
        """,
}
"""What each prints; ``...`` stands for anything."""


@pytest.mark.parametrize("example", [*WITH_A_DIRECTORY, *WITHOUT])
def test_what_an_example_prints(example: str, tmp_path: Path) -> None:
    """S0.28, S0.30, S1.02, S1.20, S3.02, S3.03, S3.05, S3.26, S3.31, S4.06, S4.07, S4.21, S4.23,
    S4.44, S5.05.
    """
    words = [tmp_path / "memory"] if example in WITH_A_DIRECTORY else []
    got = printed(f"examples.{example}", *words)
    expected = {**WITH_A_DIRECTORY, **WITHOUT}[example].strip()
    options = ELLIPSIS | NORMALIZE_WHITESPACE
    assert OutputChecker().check_output(expected, got.strip(), options), got
    if example == "scopes":
        assert int(got.split("40 messages in ")[1].split(" tokens")[0]) < 600
    if example == "service_block":
        assert "bakery" not in got
    if example == "simulated_agent":
        assert 50 <= int(got.split()[2]) < 100


def test_quickstart(tmp_path: Path) -> None:
    """S4.01: what was said on Monday is recalled on Friday, in a process as a user starts it."""
    shown = run_program("examples.quickstart", tmp_path / "memory").stdout
    assert "I moved to Lisbon, and my cat is called Figaro." in shown
    again = printed("examples.quickstart", tmp_path / "memory")
    assert again.count("Lovely!") <= 1, "run again"


def test_agent_controlled(tmp_path: Path) -> None:
    """S4.22: the model saves on Monday and recalls on Friday, by the tools that it was offered."""
    shown = printed("examples.agent_controlled", tmp_path / "memory").splitlines()
    saved, noted, recalled, answered = shown
    assert json.loads(saved.split(" -> ")[1])["success"] is True
    memories = json.loads(recalled.split(" -> ")[1])["memories"]
    assert "Birthday: March 15" in [memory["content"] for memory in memories]
    assert (noted, answered) == ("assistant: Noted!", "assistant: It is on March 15.")


def test_human_in_the_loop(tmp_path: Path) -> None:
    """S3.29: the question is asked by one process and answered in another; asked and answered
    twice, it is once.
    """
    example = "examples.human_in_the_loop"
    # nothing is recalled: the embedder need not be loaded
    plain: dict[str, Any] = {"REMORA_LONG_TERM__ENABLED": "false"}
    asked = run_program(example, tmp_path / "yes", "ask", **plain).stdout
    assert printed(example, tmp_path / "yes", "ask", **plain) == asked
    assert printed(example, tmp_path / "no", "ask", **plain) == asked
    assert "waiting for a human: call-1" in asked
    for words, result in (("yes", "booked to Porto for 32 EUR"), ("no", "the user declined")):
        assert printed(example, tmp_path / words, "answer", words, **plain).splitlines() == [
            "user: Take me to Porto on Friday, cheaply.",
            "assistant: book_train",
            f"tool: {result}",
        ]
        again = printed(example, tmp_path / words, "answer", words, **plain)
        assert "nothing to decide" in again


def test_metrics() -> None:
    """The official parser reads it, and finds what was done."""
    shown = {
        sample.name: sample.value
        for family in text_string_to_metric_families(printed("examples.metrics"))
        for sample in family.samples
    }
    assert shown["remora_append_seconds_count"] == 1
    assert shown["remora_lost"] == 0


def test_the_first_program_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs as it stands there, and prints what stands there."""
    shown = re.search(
        r"<!-- first program -->\n```python\n(.*?)```\n\n[^`]*`first.py`[^\n]*:\n\n```\n(.*?)```",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert shown is not None
    (tmp_path / "first.py").write_text(shown[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, value in PATIENT.items():
        monkeypatch.setenv(name, value)
    runpy.run_path("first.py", run_name="__main__")
    date = r"\d{1,2} \w+ \d{4}"
    assert re.sub(date, "a day", capsys.readouterr().out) == re.sub(date, "a day", shown[2])


@pytest.mark.anyio
async def test_the_picture_of_the_readme() -> None:
    """It is what a run gives: the order and the city come from another conversation."""
    context = await picture.run()
    assert context.tokens <= picture.BUDGET
    (recalled,) = [one for one in context.messages if "<recalled>" in str(one["content"])]
    assert "A-4711" in str(recalled["content"])
    assert "Lisbon" in str(recalled["content"])
    drawn = picture.TARGET.read_text(encoding="utf-8")

    def cards(text: str) -> list[str]:
        return re.findall(r'<text x="[^>]*>(.*?)</text>', text)

    assert cards(picture.draw(context)) == cards(drawn)


def test_sizing_guide() -> None:
    """S0.27: the figures of docs/evidence/buffer-sizes.md are what the benchmark measures."""
    shown = printed("benchmarks.sizing")
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert len(rows) == 11
    page = (ROOT / "docs" / "evidence" / "buffer-sizes.md").read_text()
    assert "\n".join(rows) in page
    figures = {row.split(" | ")[0].strip("| "): row.strip("| ").split(" | ") for row in rows[2:]}
    small, large = figures["window 4, with summary"], figures["window 12 (BufferPreset.TECHNICAL)"]
    assert int(small[1]) < int(large[1]), "fewer tokens"
    assert int(small[7].strip("%")) > int(large[7].strip("%")), "and more of what was told"


def test_benchmarks_run(tmp_path: Path) -> None:
    """S4.31: the benchmarks' smoke sizes."""
    words = ["--sessions", 300, "--users", 30, "--messages", 3]
    assert "301 sessions live, 901 messages stored" in printed("benchmarks.many_sessions", *words)
    file = tmp_path / "figures.json"
    printed("benchmarks.turns", "--turns", 20, "--rounds", 1, "--json", file)
    assert json.loads(file.read_text())["ratio"] > 0
    printed("benchmarks.contexts", "--smoke", "--json", file)
    within = json.loads(file.read_text())["remora"]["8000"]
    assert within["facts"]["user"]["lost"] == 0
