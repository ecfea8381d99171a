"""Published sets are read as they are downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recall_data import read_questions, read_unanswerable
from benchmarks.recall_readers import is_published, read_published
from benchmarks.synthetic.chats import to_jsonl
from remora.cli.replay import read_conversations

LOCOMO = [
    {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bob",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ann", "dia_id": "D1:1", "text": "I keep bees."},
                {"speaker": "Bob", "dia_id": "D1:2", "text": "Look", "blip_caption": "a hive"},
            ],
        },
        "qa": [
            {"question": "What does Ann keep?", "category": 4, "evidence": ["D1:1"]},
            {"question": "What does Bob keep?", "category": 5, "evidence": ["D1:1"]},
        ],
    }
]
LONGMEMEVAL = [
    {
        "question_id": "q1",
        "question_type": "single-session-user",
        "question": "Which degree do I have?",
        "haystack_session_ids": ["a", "b"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 02:21"],
        "haystack_sessions": [
            [{"role": "user", "content": "Hi"}],
            [{"role": "user", "content": "I studied law.", "has_answer": True}],
        ],
    },
    {
        "question_id": "q2_abs",
        "question_type": "multi-session",
        "question": "Which cat do I have?",
        "haystack_session_ids": ["a"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [[{"role": "user", "content": "Hello"}]],
    },
]
FACTS = [
    {
        "context": "F\n0. The chair of A is Bo.\n1. The king is Al.\n2. The chair of A is Ida.",
        "questions": ["Who is the chair of A?"],
        "answers": [["Ida"]],
        "metadata": {},
    }
]


REALTALK = {
    "name": {"speaker_1": "Ann", "speaker_2": "Bob"},
    "session_1": [
        {
            "clean_text": "I went running.",
            "speaker": "Ann",
            "date_time": "29.12.2023, 00:51:12",
            "dia_id": "D1:1",
        },
        {
            "clean_text": "Where?",
            "speaker": "Bob",
            "date_time": "29.12.2023, 00:52:00",
            "dia_id": "D1:2",
        },
    ],
    "qa": [{"question": "What did Ann do?", "category": 2, "evidence": ["D1:1"], "answer": "run"}],
}


def _turn(speaker: str, content: str, **more: Any) -> dict[str, Any]:
    return {"speaker": speaker, "content": content, "is_query": False, **more}


REALMEM = {
    "_metadata": {"person_name": "Ann"},
    "dialogues": [
        {
            "session_uuid": "aa",
            "current_time": "2025-12-15 (Monday)",
            "dialogue_turns": [
                _turn("User", "I plan a trip to Faro."),
                _turn("Assistant", "Nice."),
            ],
            "extracted_memory": [{"content": "Trip to Faro.", "source_turn": 1}],
        },
        {
            "session_uuid": "bb",
            "current_time": "2025-12-16 (Tuesday)",
            "dialogue_turns": [
                _turn("User", "What is next for my trip?", is_query=True, category_name="Dynamic"),
                _turn(
                    "Assistant",
                    "Flights to Faro.",
                    memory_used=[{"session_uuid": "aa", "content": "Trip to Faro."}],
                ),
                _turn("User", "Thanks."),
            ],
            "extracted_memory": [],
        },
    ],
}


def read(tmp_path: Path, path: Path) -> tuple[list[Any], list[Any]]:
    assert is_published(path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(to_jsonl(read_published(path)), encoding="utf-8")
    conversations = read_conversations(rows)
    assert conversations.bad == []
    return read_questions(rows, conversations), read_unanswerable(rows, conversations)


@pytest.mark.parametrize(
    ("found", "evidence", "unanswerable"),
    [
        (LOCOMO, [("session-1", 1)], 1),
        (LONGMEMEVAL, [("1-b", 1)], 1),
        (FACTS, [("facts-0", 3)], 0),
        (REALTALK, [("session-1", 1)], 0),
        (REALMEM, [("aa", 1)], 0),
    ],
)
def test_a_file(tmp_path: Path, found: Any, evidence: list[Any], unanswerable: int) -> None:
    path = tmp_path / "set.json"
    path.write_text(json.dumps(found))
    questions, others = read(tmp_path, path)
    assert [list(one.evidence) for one in questions] == [evidence]
    assert len(others) == unanswerable


def test_a_folder_of_beam(tmp_path: Path) -> None:
    chat = tmp_path / "100K" / "1"
    (chat / "probing_questions").mkdir(parents=True)
    turns = [
        {"role": "user", "id": 0, "time_anchor": "March-15-2024", "content": "I plan. ->-> 1,1"},
        {"role": "assistant", "id": 1, "content": "Good."},
    ]
    (chat / "chat.json").write_text(json.dumps([{"batch_number": 1, "turns": [turns]}]))
    asked = {
        "abstention": [{"question": "And the cat?"}],
        "knowledge_update": [
            {"question": "What do I do?", "source_chat_ids": {"original": [0], "new": [1]}}
        ],
    }
    (chat / "probing_questions" / "probing_questions.json").write_text(str(asked))
    questions, others = read(tmp_path, tmp_path / "100K")
    assert [one.evidence for one in questions] == [(("batch-1", 1), ("batch-1", 2))]
    assert len(others) == 1


def test_a_folder_of_files(tmp_path: Path) -> None:
    """What asks is not stored, and neither is what answers it."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    for name in ("Ann", "Bo"):
        found = {**REALMEM, "_metadata": {"person_name": name}}
        (folder / f"{name}_dialogues_256k.json").write_text(json.dumps(found))
    questions, _ = read(tmp_path, folder)
    assert [one.user for one in questions] == ["Ann", "Bo"]
    said = [row["content"] for row in read_published(folder) if row.get("user") == "Ann"]
    assert said == ["I plan a trip to Faro.", "Nice.", "Thanks."]


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_text("[]")
    with pytest.raises(ValueError, match="none of the formats"):
        list(read_published(path))
