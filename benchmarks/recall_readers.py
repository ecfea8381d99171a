"""Published sets of conversations and questions, read in the formats that they come in.

Each reader makes rows of docs/reference/replay-format.md of what a user downloaded:

* LoCoMo, `locomo10.json` (github.com/snap-research/locomo).
* LongMemEval, `longmemeval_s.json` or `_m` (github.com/xiaowu0162/LongMemEval): the evidence is
  the turns that have the answer.
* BEAM, a folder of `chats/100K`, `500K` or `1M` (github.com/mohammadtavakoli78/BEAM), one chat or
  all: the evidence is the messages that a question's `source_chat_ids` name.
* MemoryAgentBench, `Conflict_Resolution.json`: of facts that contradict each other, the evidence is
  the newest one with an answer.
* REALTALK, the folder `data` or one of its files (github.com/danny911kr/REALTALK).
* RealMem, the folder `dataset` or one of its files `…_dialogues_256k.json`
  (github.com/zhiyuan5986/RealMemBench): a question is a user's message that needed memories, the
  evidence is the messages that these were taken from. Neither it nor its answer is stored.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

__all__ = ["is_published", "read_published"]

Row = dict[str, Any]

_LOCOMO_TIME = "%I:%M %p on %d %B, %Y"
_LONGMEMEVAL_TIME = "%Y/%m/%d (%a) %H:%M"
_BEAM_TIME = "%B-%d-%Y"
_BEAM_TAIL = re.compile(r"\s*->->.*$", re.DOTALL)
_REALTALK_TIME = "%d.%m.%Y, %H:%M:%S"
_REALMEM_TIME = "%Y-%m-%d"
_FACT = re.compile(r"^(\d+)\. (.+)$", re.MULTILINE)
_FACTS_OF_SESSION = 25
_BEGIN = datetime(2024, 1, 1, 9, tzinfo=UTC)


def is_published(path: Path) -> bool:
    """Whether a path is of a published set, and not of rows of the replay format."""
    return path.is_dir() or path.suffix == ".json"


def read_published(path: Path) -> Iterator[Row]:
    """The messages, and then the questions, of a set.

    Raises:
        ValueError: it has none of the formats.
    """
    if path.is_dir() and (files := sorted(path.glob("*.json"))) and files[0].name != "chat.json":
        rows = [row for file in files for row in _read_file(file)]
    elif path.is_dir():
        rows = list(_read_beam(path))
    else:
        rows = list(_read_file(path))
    yield from (row for row in rows if row.get("type") != "qa")
    yield from (row for row in rows if row.get("type") == "qa")


def _read_file(path: Path) -> Iterator[Row]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(found, dict) and "dialogues" in found:
        yield from _read_realmem(found)
    elif isinstance(found, dict) and "session_1" in found:
        yield from _read_realtalk(found, path.stem)
    else:
        first = found[0] if isinstance(found, list) and found else {}
        if "haystack_sessions" in first:
            yield from (row for one in found for row in _read_longmemeval(one))
        elif "conversation" in first:
            yield from (row for one in found for row in _read_locomo(one))
        elif "context" in first:
            yield from (
                row for n, one in enumerate(found) for row in _read_facts(one, f"facts-{n}")
            )
        else:
            raise ValueError(f"{path} has none of the formats that are read: see --help")


def _qa(conv: str, category: object, question: str, evidence: Iterable[str]) -> Row:
    row: Row = {"type": "qa", "conv": conv, "category": category, "question": question}
    return {**row, "evidence": list(dict.fromkeys(evidence))}


def _read_locomo(sample: Row) -> Iterator[Row]:
    conv, talk = str(sample["sample_id"]), sample["conversation"]
    for number in range(1, 100):
        turns, at = talk.get(f"session_{number}"), talk.get(f"session_{number}_date_time")
        if not turns or not at:
            continue
        said = datetime.strptime(at, _LOCOMO_TIME).replace(tzinfo=UTC)
        head = {"type": "turn", "conv": conv, "session": number, "time": said.isoformat()}
        for turn in turns:
            text = turn.get("text", "")
            shown = turn.get("blip_caption")
            text += f" [shares {shown}]" if shown else ""
            yield {**head, "id": turn["dia_id"], "speaker": turn["speaker"], "text": text}
    for one in sample["qa"]:
        yield _qa(conv, one["category"], one["question"], one.get("evidence") or ())


def _read_longmemeval(one: Row) -> Iterator[Row]:
    conv, evidence = str(one["question_id"]), []
    sessions = zip(
        one["haystack_session_ids"], one["haystack_dates"], one["haystack_sessions"], strict=True
    )
    for place, (name, date, turns) in enumerate(sessions):
        at = datetime.strptime(date, _LONGMEMEVAL_TIME).replace(tzinfo=UTC)
        for number, turn in enumerate(turns):
            key = f"{place}:{number}"
            if turn.get("has_answer"):
                evidence.append(key)
            yield {
                "user": conv,
                "session": f"{place}-{name}",
                "timestamp": (at + timedelta(seconds=20 * number)).isoformat(),
                "key": key,
                "role": turn["role"],
                "content": turn["content"],
            }
    category = "unanswerable" if conv.endswith("_abs") else one["question_type"]
    yield _qa(conv, category, one["question"], evidence)


def _read_beam(folder: Path) -> Iterator[Row]:
    if not (folder / "chat.json").is_file():
        for one in sorted(folder.iterdir()):
            if (one / "chat.json").is_file():
                yield from _read_beam(one)
        return
    conv, at = f"beam-{folder.name}", _BEGIN
    batches = json.loads((folder / "chat.json").read_text(encoding="utf-8"))
    for batch in batches:
        session = f"batch-{batch['batch_number']}"
        for turn in (turn for turns in batch["turns"] for turn in turns):
            anchor = turn.get("time_anchor")
            if anchor:
                at = max(at, datetime.strptime(anchor, _BEAM_TIME).replace(tzinfo=UTC))
            at += timedelta(seconds=30)
            yield {
                "user": conv,
                "session": session,
                "timestamp": at.isoformat(),
                "key": str(turn["id"]),
                "role": turn["role"],
                "content": _BEAM_TAIL.sub("", turn["content"]),
            }
    file = folder / "probing_questions" / "probing_questions.json"
    asked = file.read_text(encoding="utf-8")
    try:
        questions = json.loads(asked)
    except ValueError:
        questions = ast.literal_eval(asked)
    for category, of_it in questions.items():
        for one in of_it:
            sources = _numbers_in(one.get("source_chat_ids") or ())
            name = "unanswerable" if category == "abstention" else category
            yield _qa(conv, name, one["question"], map(str, sources))


def _numbers_in(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict):
        yield from (number for one in value.values() for number in _numbers_in(one))
    elif isinstance(value, list | tuple):
        yield from (number for one in value for number in _numbers_in(one))


def _read_facts(one: Row, conv: str) -> Iterator[Row]:
    facts = _FACT.findall(one["context"])
    for number, text in facts:
        session, place = divmod(int(number), _FACTS_OF_SESSION)
        at = _BEGIN + timedelta(days=session, seconds=20 * place)
        yield {
            "user": conv,
            "session": f"facts-{session}",
            "timestamp": at.isoformat(),
            "key": number,
            "role": "user",
            "content": text,
        }
    for question, answers in zip(one["questions"], one["answers"], strict=True):
        known = [str(answer) for answer in (answers if isinstance(answers, list) else [answers])]
        asked = {word for word in re.findall(r"\w+", question.lower()) if len(word) > 3}
        best = max(
            (
                (len(asked & set(re.findall(r"\w+", text.lower()))), int(number), number)
                for number, text in facts
                if any(text.rstrip(".").endswith(answer) for answer in known)
            ),
            default=None,
        )
        yield _qa(conv, "newest fact", question, [best[2]] if best else ())


def _read_realtalk(chat: Row, conv: str) -> Iterator[Row]:
    for number in range(1, 1_000):
        turns = chat.get(f"session_{number}")
        if turns is None:
            break
        for turn in turns:
            said = datetime.strptime(turn["date_time"], _REALTALK_TIME).replace(tzinfo=UTC)
            text = turn["clean_text"]
            shown = turn.get("blip_caption")
            text += f" [shares {shown}]" if shown else ""
            yield {
                "type": "turn",
                "conv": conv,
                "session": number,
                "time": said.isoformat(),
                "id": turn["dia_id"],
                "speaker": turn["speaker"],
                "text": text,
            }
    for one in chat["qa"]:
        yield _qa(conv, one["category"], one["question"], one.get("evidence") or ())


def _read_realmem(found: Row) -> Iterator[Row]:
    user, sessions = str(found["_metadata"]["person_name"]), found["dialogues"]
    sources = {
        (one["session_uuid"], memory["content"]): memory["source_turn"]
        for one in sessions
        for memory in one["extracted_memory"]
    }
    stored, asked = set[str](), list[tuple[str, str, list[str]]]()
    for one in sessions:
        name, turns = one["session_uuid"], one["dialogue_turns"]
        at = datetime.strptime(one["current_time"].split(" ")[0], _REALMEM_TIME).replace(tzinfo=UTC)
        answers = False
        for number, turn in enumerate(turns):
            if answers:
                answers = False
                continue
            used = turns[number + 1].get("memory_used") if number + 1 < len(turns) else None
            evidence = [
                # turns are numbered from 1 there, and from 0 where a session begins with one
                f"{memory['session_uuid']}:{max(sources[place] - 1, 0)}"
                for memory in used or ()
                if (place := (memory["session_uuid"], memory["content"])) in sources
            ]
            if turn["is_query"] and evidence:
                asked.append((turn.get("category_name") or "", turn["content"], evidence))
                answers = True
                continue
            key = f"{name}:{number}"
            stored.add(key)
            yield {
                "user": user,
                "session": name,
                "timestamp": (at + timedelta(hours=8, seconds=20 * number)).isoformat(),
                "key": key,
                "role": turn["speaker"].lower(),
                "content": turn["content"],
            }
    for category, question, evidence in asked:
        if kept := [key for key in evidence if key in stored]:
            yield _qa(user, category, question, kept)
