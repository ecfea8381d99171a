"""The recall benchmark, on a file small enough to know every answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks.recall import judged
from benchmarks.recall_contexts import judged_contexts
from benchmarks.recall_data import Answer, Question, read_questions, read_unanswerable
from benchmarks.recall_sessions import measure, read_sessions
from benchmarks.reference import Bm25, Reference, words
from benchmarks.synthetic.__main__ import CHATS, DAILY, DESK
from benchmarks.synthetic.chats import make_chats, to_jsonl
from benchmarks.synthetic.daily import make_daily
from benchmarks.synthetic.desk import make_desk
from remora.cli.replay import read_conversations
from tests.programs import run_program

RECALL = "benchmarks.recall"
SAID = {
    "a": [
        ("Ann", "My sister Ottilie keeps bees in Coimbra."),
        ("Bob", "How many hives does she have?"),
        ("Ann", "Eleven, and a twelfth in spring."),
        ("Bob", "I bought a walnut table for the harbour house."),
        ("Ann", "Was it expensive?"),
        ("Bob", "Four hundred, with delivery."),
    ],
    "b": [
        ("Cleo", "The cello needs a new bridge before the concert."),
        ("Dan", "Take it to the luthier in Ghent."),
        ("Cleo", "He is away until Thursday."),
        ("Dan", "Then play the old one."),
    ],
}
ASKED: list[dict[str, Any]] = [
    {"conv": conv, "category": category, "question": question, "evidence": list(evidence)}
    for conv, category, question, *evidence in (
        ("a", 4, "Who keeps bees?", "a:1"),
        ("a", 1, "What did Bob buy, and for how much?", "a:4", "a:6"),
        ("b", 4, "What does the cello need?", "b:1", "b:99"),
        ("a", 5, "Who keeps goats?", "a:1"),
        ("a", 4, "Where is the key?", "a:77"),
        ("a", 4, "Why?"),
    )
]


def written(path: Path) -> Path:
    rows: list[dict[str, Any]] = []
    for conv, turns in SAID.items():
        for number, (speaker, text) in enumerate(turns, start=1):
            said = {"id": f"{conv}:{number}", "speaker": speaker, "text": text}
            when = {"session": 1 + (number > 3), "time": "2024-03-04T10:00:00"}
            rows.append({"type": "turn", "conv": conv, **when, **said})
    for number, asked in enumerate(ASKED):
        rows.append({"type": "qa", "qid": str(number), "answer": "", **asked})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.nightly
def test_it_measures_every_method_on_the_same_questions(tmp_path: Path) -> None:
    """S5.06: replayed through the whole runtime, asked by recall and load, beside LanceDB and the
    recipes in memory.
    """
    out, data = tmp_path / "figures.json", written(tmp_path / "chats.jsonl")
    done = run_program(RECALL, "--data", data, "--embedder", "hash", "--json", out)
    assert "against the best recipe in memory" in done.stdout
    assert "asking remora" in done.stderr
    figures = json.loads(out.read_text())
    assert (figures["rows"], figures["questions"], figures["embedder"]) == (10, 3, "hashing-1024")
    assert set(figures["methods"]) == {
        "remora",
        "LanceDB full text",
        "LanceDB hybrid",
        "BM25 in memory",
        "LEX in memory",
        "HYB in memory",
    }
    for method in figures["methods"].values():
        assert method["all"]["questions"] == 3
        assert method["4"]["recall@1"] == 1.0
    remora = figures["methods"]["remora"]
    assert remora["1"]["recall@5"] == 1.0
    assert remora["p50_ms"] > 0
    for method, sizes in figures["contexts"].items():
        assert set(sizes) == {"1000", "2000", "4000", "8000"}, method
        assert sizes["1000"]["all"]["any_of_it"] == 1.0, "so few messages all fit"
        assert sizes["1000"]["1"]["all_of_it"] == 1.0
    assert figures["unanswerable_questions"] == 1
    assert figures["unanswerable"]["the newest messages"]["1000"] > 0


TURN = '{"type": "turn", "conv": "a", "session": 1, "id": "1", "speaker": "Ann", "text": "Hi."}\n'


@pytest.mark.parametrize("rows", [None, pytest.param(TURN, marks=pytest.mark.nightly)])
def test_it_says_that_it_skips(tmp_path: Path, rows: str | None) -> None:
    """S5.06: without the file, or without questions in it, there is nothing to measure, and no
    figure is printed.
    """
    file = tmp_path / "absent.jsonl"
    if rows is not None:
        file.write_text(rows)
    done = run_program(RECALL, "--data", file, check=False)
    assert done.returncode == 77
    assert done.stderr.startswith("skipped:")
    assert "absent.jsonl" in done.stderr
    assert done.stdout == ""


def test_questions_are_those_with_evidence(tmp_path: Path) -> None:
    """S5.06: evidence is found by its turn's id, and counted once."""
    path = written(tmp_path / "chats.jsonl")
    questions = read_questions(path, read_conversations(path))
    assert [question.text for question in questions] == [asked["question"] for asked in ASKED[:3]]
    assert questions[1].evidence == (("session-2", 1), ("session-2", 3))
    assert questions[2].evidence == (("session-1", 1),)


def test_the_synthetic_chats_are_what_their_generator_makes() -> None:
    """S5.06: anybody gets the same questions, and each has evidence that was said to its user, or
    none at all.
    """
    assert CHATS.read_text(encoding="utf-8") == to_jsonl(make_chats())
    assert CHATS.stat().st_size < 2_000_000
    conversations = read_conversations(CHATS)
    assert conversations.bad == []
    questions = read_questions(CHATS, conversations)
    unanswerable = read_unanswerable(CHATS, conversations)
    assert (len(questions), len(unanswerable), len(conversations.users)) == (416, 64, 8)
    given = [row for row in make_chats() if row.get("type") == "qa" and row["evidence"]]
    assert [len(one.evidence) for one in questions] == [len(row["evidence"]) for row in given]
    lists = [one for one in questions if one.category in {"list", "count"}]
    for one in lists:
        assert len({session for session, _ in one.evidence}) == len(one.evidence) >= 3


def test_the_synthetic_desk_is_what_its_generator_makes() -> None:
    """Each question's evidence is of the role that its category says."""
    assert DESK.read_text(encoding="utf-8") == to_jsonl(make_desk())
    conversations = read_conversations(DESK)
    assert conversations.bad == []
    questions = read_questions(DESK, conversations)
    assert len(questions) == 115
    for one in questions:
        roles = {
            conversations.sessions[key][seq - 1].message["role"]
            for session, seq in one.evidence
            for key in conversations.sessions
            if key.session == session
        }
        wanted = {"said": {"user"}, "call": {"assistant", "tool"}}.get(one.category, {"tool"})
        assert roles == wanted, one


def test_the_synthetic_daily_life_is_what_its_generator_makes() -> None:
    """The evidence of each question is what its case says, with what else was said around it."""
    assert DAILY.read_text(encoding="utf-8") == to_jsonl(make_daily())
    conversations = read_conversations(DAILY)
    assert conversations.bad == []
    questions = read_questions(DAILY, conversations)
    assert len(questions) == 47
    said = {
        (key.session, number): one.message["content"]
        for key, messages in conversations.sessions.items()
        for number, one in enumerate(messages, start=1)
    }
    assert len(said) > 400
    by_text = {one.text: [said[place] for place in one.evidence] for one in questions}
    assert by_text["What car do I drive?"] == [
        "I sold the Golf and bought a second-hand Zoe, so electric at last."
    ]
    assert len(by_text["What is on my shopping list?"]) == 3


def test_the_figures_are_what_they_are_called() -> None:
    """S5.06: recall is a share, a hit is any, MRR goes by the first; contexts count all and any."""
    one = Question("u", "1", "?", (("s", 1), ("s", 2)))
    other = Question("u", "4", "?", (("s", 3),))
    answers = [Answer([("s", 9), ("s", 2), ("t", 1)], 0.001), Answer([("s", 4)], 0.003)]
    figures = judged([one, other], answers)
    every = figures["all"]
    assert [every[name] for name in ("recall@5", "hit@5", "hit@1")] == [0.25, 0.5, 0.0]
    assert (figures["1"]["recall@5"], figures["1"]["mrr"], figures["4"]["mrr"]) == (0.5, 0.5, 0.0)
    contexts = judged_contexts([one, other], answers)["all"]
    assert (contexts["all_of_it"], contexts["any_of_it"], contexts["memories"]) == (0.0, 0.5, 2.0)


def test_the_reference_is_bm25() -> None:
    """S5.06: stems and stop words as said; rare words count more than common ones, and short texts
    more than long ones.
    """
    stems = words("The relational Ponies were hopping, generously!")
    assert stems == ["relat", "poni", "hop", "gener"]
    bm25 = Bm25(["bees in spring", "bees and hives and a garden by the river", "bees bees", "rain"])
    scores = bm25.scores("hives of bees")
    assert scores[1] > scores[2] > scores[0] > scores[3] == 0
    turns = ["Who keeps bees?", "Ottilie does.", "It rained.", "Bees."]
    reference = Reference(["one", "one", "two", "two"], turns, None)
    assert reference.bm25("bees") == [3, 0]
    # The window finds what stands beside a match, never what stands in another session.
    assert set(reference.lex("ottilie")) == {0, 1}


def test_sessions_are_asked_for_when_their_user_wrote(tmp_path: Path) -> None:
    """As RealMem is published; what came later is not there yet."""
    said = {
        "first": ["The keel of the boat has a crack.", "Epoxy closes it."],
        "other": ["Roses need a wall.", "A warm one."],
        "again": ["The keel of the boat is dry. What is next for the crack?", "Sand it."],
        "later": ["The keel of the boat had a crack, and the boat has a new keel.", "Good."],
    }
    dialogues = [
        {
            "session_uuid": name,
            "current_time": f"2026-03-0{day} (Monday)",
            "dialogue_turns": [
                {"speaker": "User", "content": texts[0], "is_query": name == "again"},
                {
                    "speaker": "Assistant",
                    "content": texts[1],
                    "memory_session_uuids": ["first"] if name == "again" else [],
                },
            ],
        }
        for day, (name, texts) in enumerate(said.items(), start=1)
    ]
    path = tmp_path / "ada.json"
    path.write_text(json.dumps({"dialogues": dialogues}), encoding="utf-8")
    figures = anyio.run(measure, tmp_path / "runtime", {"ada": list(read_sessions(path))})
    assert figures["questions"] == 1
    assert {one["any@1"] for one in figures["methods"].values()} == {1.0}
