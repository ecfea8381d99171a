"""The head-to-head: what remora shows in its programs, that they find what is wrong, that the table
says what was measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks.correctness.claims import claims
from benchmarks.correctness.peers import PEERS
from benchmarks.correctness.programs import PROGRAMS, SMALL, Bench
from benchmarks.correctness.protocol import Setting, Subject
from benchmarks.correctness.subjects import remora as remora_subject
from benchmarks.correctness.table import rendered

ROOT = Path(__file__).resolve().parents[2]
# Programs look at files and at /proc on the event loop: nobody else is there to be kept waiting.
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


class Naive:
    """What one writes first: the whole list is read, changed and written back, and the summarizer
    is awaited in between.
    """

    def __init__(self, directory: Path, setting: Setting) -> None:
        self.setting = setting
        self.file = directory / "messages.txt"
        self.sessions: dict[str, list[str]] = {}
        self.rows: list[str] = []

    async def append(self, session: str, texts: Sequence[str], *, key: str = "") -> None:
        found = list(self.sessions.get(session, []))
        for text in texts:
            await anyio.lowlevel.checkpoint()
            found.append(text)
        self.sessions[session] = found
        with self.file.open("a") as file:
            file.writelines(f"{text}\n" for text in texts)
        size = sum(len(text) // 4 for text in found)
        if size > self.setting.limit_tokens and (self.setting.summarize or self.setting.embed):
            half = len(found) // 2
            left, self.sessions[session] = found[:half], found[half:]
            if self.setting.summarize is not None:
                summary = await self.setting.summarize("\n".join(left))
                self.sessions[session] = [summary, *self.sessions[session]]
            if self.setting.embed is not None:
                for text in left:
                    self.setting.embed(text)
                    self.rows.append(text)

    async def load(self, session: str, query: str = "") -> list[str]:
        found = [row for row in self.rows if query.rpartition(" ")[2] in row] if query else []
        return [*found, *self.sessions.get(session, [])]

    async def buffered(self, session: str) -> list[str]:
        return self.sessions.get(session, [])

    async def kept(self, session: str) -> list[str]:
        return self.sessions.get(session, [])

    async def delivered(self) -> list[str]:
        return self.rows

    async def delete(self, user: str, sessions: Sequence[str]) -> None:
        for session in sessions:
            self.sessions.pop(session)

    async def settle(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def naive(directory: Path, setting: Setting) -> Subject:
    return Naive(directory, setting)


async def figures_of(
    program: str, directory: Path, opened: Any = remora_subject.opened
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    await PROGRAMS[program](Bench(opened, directory, found.update, SMALL))
    return found


async def test_concurrent_appends_lose_nothing(tmp_path: Path) -> None:
    """G2: with 1, 2, 8 and 64 callers at once every message is there once, in each caller's order,
    and none was refused.
    """
    found = await figures_of("concurrent_appends", tmp_path)
    for callers, each in SMALL.callers:
        assert found[f"{callers}.acknowledged"] == callers * each
        for fault in ("rejected", "lost", "doubled", "reordered", "refused_there"):
            assert found[f"{callers}.{fault}"] == 0, (callers, fault)


async def test_each_flushed_message_is_delivered_once(tmp_path: Path) -> None:
    """G7: with one writer, with several, and when the embedder fails in between."""
    found = await figures_of("deliveries", tmp_path)
    for case in ("one", "many", "failing"):
        assert found[f"{case}.once"] == found[f"{case}.left"] > 10
        assert (found[f"{case}.never"], found[f"{case}.more"], found[f"{case}.rejected"]) == (
            0,
            0,
            0,
        )
    assert found["failing.failed"] == 1


async def test_a_summarizer_that_raises_costs_nothing(tmp_path: Path) -> None:
    """G5, G6: no append fails, and every message is in the buffer or in a summary afterwards."""
    found = await figures_of("summarizer_raises", tmp_path)
    assert (found["400.acknowledged"], found["400.rejected"], found["400.lost"]) == (
        SMALL.outage[0][1] + 5,
        0,
        0,
    )
    assert found["400.calls"] > 0


async def test_writers_that_overflow_a_session_lose_nothing(tmp_path: Path) -> None:
    """G6: within the overdraft all that was acknowledged is in the context, word for word or by its
    summary.
    """
    found = await figures_of("overflow", tmp_path)
    assert (found["800.acknowledged"], found["800.lost"], found["800.rejected"]) == (40, 0, 0)
    assert found["800.summaries"] > 0


async def test_loads_lack_nothing_while_a_summary_is_made(tmp_path: Path) -> None:
    """G6: from the moment at which a message leaves the buffer until its summary is in."""
    found = await figures_of("loads_meanwhile", tmp_path)
    assert found["during"] > 0
    assert (found["missing"], found["missing_during"], found["failed"]) == (0, 0, 0)


async def test_a_cancelled_append_harms_nothing(tmp_path: Path) -> None:
    """G11: it is there or it is not; what was acknowledged stays, and the next call is served."""
    found = await figures_of("cancelled_append", tmp_path)
    assert found["cases"] == SMALL.cancels
    assert found["reached"] > 0
    for fault in ("wiped", "lost", "half", "hung", "refused", "doubled", "summary.lost"):
        assert found[fault] == 0, fault


async def test_no_append_waits_for_the_summarizer(tmp_path: Path) -> None:
    """G5: the append that caused the summary, one beside it and a load have all returned while it
    is still being made.
    """
    found = await figures_of("append_behind_summary", tmp_path)
    assert found["unhindered"] == found["rounds"] == SMALL.rounds


async def test_a_key_has_one_effect(tmp_path: Path) -> None:
    """G4: sent again, eight times at once, and after a restart."""
    found = await figures_of("same_key_twice", tmp_path)
    assert [found[case] for case in ("again", "together", "restart")] == [1, 1, 1]
    assert not any(found[f"{case}.errors"] for case in ("again", "together", "restart"))


async def test_nothing_is_left_of_who_is_deleted(tmp_path: Path) -> None:
    """G13: the bytes of every file were searched, and held all of it before."""
    found = await figures_of("left_on_disk", tmp_path)
    assert found["before"] == found["said"]
    assert [found[name] for name in ("in_files", "readable", "rows", "others_lost")] == [0, 0, 0, 0]


async def test_a_strangers_context_has_no_secret(tmp_path: Path) -> None:
    """S2.31: the owner finds it, a user with nearly the same name does not."""
    found = await figures_of("strangers_secret", tmp_path)
    assert (found["store.own"], found["store.leaked"]) == (SMALL.asked, 0)


async def test_open_sessions_cost_no_descriptors(tmp_path: Path) -> None:
    """G10: one set of files, however many sessions."""
    found = await figures_of("open_sessions", tmp_path)
    assert found["descriptors"] < 10


async def test_the_programs_find_what_is_wrong(tmp_path: Path) -> None:
    """G2, G4 to G7, G11, G13: a list that is read, changed and written back fails in every one of
    them.
    """

    async def of(program: str) -> dict[str, Any]:
        directory = tmp_path / program
        directory.mkdir()
        return await figures_of(program, directory, naive)

    found = await of("concurrent_appends")
    assert (found["1.lost"], found["1.reordered"], found["1.doubled"]) == (0, 0, 0)
    assert found["8.lost"] > 0
    assert found["8.kept"] == 0
    found = await of("deliveries")
    assert found["one.never"] == 0
    assert found["failing.rejected"] == 1
    assert found["failing.never"] > 0
    found = await of("summarizer_raises")
    assert found["400.rejected"] > 0
    assert found["400.lost"] > 0
    assert (await of("overflow"))["800.lost"] > 0
    assert (await of("loads_meanwhile"))["missing_during"] > 0
    assert (await of("cancelled_append"))["summary.lost"] > 0
    assert (await of("append_behind_summary"))["unhindered"] == 0
    found = await of("same_key_twice")
    assert (found["again"], found["restart"]) == (2, "nothing survives a restart")
    found = await of("left_on_disk")
    assert found["in_files"] == found["before"] == found["said"]
    assert (await of("strangers_secret"))["store.leaked"] == SMALL.asked


def run_of(**figures: Any) -> dict[str, Any]:
    return {"figures": figures}


def table_of(program: str, *runs: dict[str, Any], name: str = "llama_index_file") -> str:
    subject = {"versions": {"thing": "1.2.3"}, "claims": {program: list(runs)}}
    return rendered({"about": {"date": "2031-05-06"}, "subjects": {name: subject}}, PEERS, claims())


def row(page: str, label: str) -> str:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {label} |")]
    return line.split("|")[2].strip()


def keyed(**changes: Any) -> dict[str, Any]:
    return {
        "again": 1,
        "again.errors": "",
        "together": 8,
        "together.errors": "",
        "restart": 1,
        "restart.errors": "",
    } | changes


async def test_the_table_says_what_it_is_given() -> None:
    """S5.06: figures of all runs, errors by name, versions, the date, and bold only where nothing
    was wrong.
    """
    page = table_of(
        "same_key_twice",
        run_of(**keyed()),
        run_of(**keyed(together=6, **{"restart.errors": "IntegrityError, Busy"})),
        run_of(**keyed(**{"restart.errors": "Busy"})),
    )
    assert row(page, "sent again") == "**1 copy**"
    assert row(page, "8 times at once") == "6 to 8 copies"
    assert row(page, "again after a restart") == "1 copy, raises Busy, IntegrityError"
    assert "- date: 2031-05-06" in page
    assert "(thing 1.2.3)" in page
    assert "Bold in 1 of 3 rows" in page
    lost = {
        "4000.lost": 0,
        "4000.acknowledged": 200,
        "400.lost": 42,
        "400.kept": 42,
        "400.acknowledged": 200,
        "400.rejected": 3,
    }
    page = table_of("overflow", run_of(**lost))
    assert row(page, "buffer of 4 000 tokens") == "**0 of 200**"
    assert row(page, "buffer of 400 tokens") == "42 of 200 (all still archived); 3 refused"


async def test_the_table_says_what_does_not_apply_and_what_did_not_end() -> None:
    """S5.06: a reason stands in the cell, never an empty or a flattering one."""
    page = table_of("overflow", {"figures": {}, "not applicable": "it has no summarizer"})
    assert row(page, "buffer of 400 tokens") == "*n/a*: it has no summarizer"
    assert "Bold in 0 of 0 rows" in page
    page = table_of(
        "same_key_twice",
        {"figures": {"again": 2, "again.errors": ""}, "ended": "did not end within 9 s"},
    )
    assert row(page, "sent again") == "2 copies"
    assert row(page, "8 times at once") == "did not end within 9 s"


async def test_the_script_runs_a_subject_in_a_child(tmp_path: Path) -> None:
    """S5.06: figures come over a pipe, and the file is written by the script."""
    figures, table = tmp_path / "figures.json", tmp_path / "table.md"
    command = [
        sys.executable,
        "-m",
        "benchmarks.correctness",
        "--peers",
        "remora",
        "--claims",
        "same_key_twice",
        "--small",
    ]
    command += ["--json", str(figures), "--table", str(table)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "same_key_twice 1/1: ok" in done.stderr
    (run,) = json.loads(figures.read_text())["subjects"]["remora"]["claims"]["same_key_twice"]
    assert (run["figures"]["again"], run["figures"]["together"], run["figures"]["restart"]) == (
        1,
        1,
        1,
    )
    assert row(table.read_text(), "8 times at once") == "**1 copy**"
    refused = subprocess.run(
        [*command[:3], "--peers", "nobody"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "no such peer: nobody" in refused.stderr
    assert refused.returncode == 1
