"""The part of a long message that answers a question, for a context.

A tool's result may have 20 kB, and one of its fields the answer. So a result that is JSON is shown
by its fields: those that hold words of the question, and the first ones, which mostly say what it
is about. Of other long texts, the lines with words of the question are shown, and those around
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from remora.actors.policies.bm25 import words
from remora.models.clipping import size_words
from remora.recall.memory import LONG_TOKENS, Memory

_MOST_CHARS = 1_200  # that are shown of one
_FILLED_CHARS = 600  # up to which it is shown from the beginning, besides what matches
_MOST_ASKED = 2_000  # characters of a question
_FIRST = 2  # fields that say what a result is about
_LARGE = 300  # characters of a field whose own fields are looked at one by one
_MOST_FIELDS = 400
_DEEPEST, _LONGEST = 8, 600  # of a field: levels, and characters
_LINE = 300  # characters of a piece of a text without lines


def show_parts(memories: Sequence[Memory], query: str) -> list[Memory]:
    """The memories, of long ones the part that answers; their tokens in proportion.

    Where there are long ones, do it in a thread.

    Args:
        memories: what was found.
        query: what is asked.
    """
    asked = frozenset(words(query[:_MOST_ASKED]))
    return [_show_part(one, asked) if one.tokens > LONG_TOKENS else one for one in memories]


def _show_part(memory: Memory, asked: frozenset[str]) -> Memory:
    if len(memory.text) <= _MOST_CHARS:
        return memory
    fields = _fields_of(memory.text)
    pieces, glue = (fields, ", ") if fields else (list(_lines_of(memory.text)), "\n")
    shown = _choose(pieces, asked, around=not fields)
    parts: list[str] = []
    last = -1
    for place in shown:
        if place > last + 1:
            parts.append("…")
        parts.append(pieces[place])
        last = place
    if last < len(pieces) - 1:
        parts.append("…")
    text = glue.join(parts)
    left_out = len(memory.text) - len(text)
    if left_out <= 0:
        return memory
    where = f"message {memory.seq} of {memory.session}" if memory.seq else "this memory"
    text += f" [{size_words(left_out)} of {where} are left out]"
    tokens = max(memory.tokens * len(text) // len(memory.text), 1)
    return msgspec.structs.replace(memory, text=text, tokens=tokens)


def _fields_of(text: str) -> list[str]:
    """The fields of a JSON text, each as it is written there; empty if it is none."""
    if text[:1] not in {"{", "["}:
        return []
    try:
        # numbers stay as they are written
        found: Any = json.loads(text, parse_float=_as_written, parse_int=_as_written)
        return list(islice(_walk(found, "", 0), _MOST_FIELDS))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return []


def _as_written(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


def _walk(value: Any, name: str, depth: int) -> Iterator[str]:
    written = msgspec.json.encode(value).decode()
    if len(written) <= _LARGE or not isinstance(value, dict | list) or depth == _DEEPEST:
        field = f"{name}: {written}" if name else written
        yield field if len(field) <= _LONGEST else f"{field[:_LONGEST]}…"
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value, start=1)
    for key, one in pairs:
        yield from _walk(one, f"{name}.{key}" if name else str(key), depth + 1)


def _lines_of(text: str) -> Iterator[str]:
    for line in text.splitlines():
        for start in range(0, len(line), _LINE):
            yield line[start : start + _LINE]


def _choose(pieces: Sequence[str], asked: frozenset[str], *, around: bool) -> list[int]:
    """Places of the pieces to show, in order: the first, and those that match, best first."""
    held = [asked & set(words(one[:_MOST_CHARS])) for one in pieces]
    counts: dict[str, int] = {}
    for some in held:
        for word in some:
            counts[word] = counts.get(word, 0) + 1
    worth = {word: math.log(1 + len(pieces) / count) for word, count in counts.items()}
    scores = [sum(worth[word] for word in some) for some in held]
    best = sorted(range(len(pieces)), key=lambda place: -scores[place])
    wanted = list(range(min(_FIRST, len(pieces))))
    for place in best:
        if scores[place] > 0:
            wanted += [place - 1, place, place + 1] if around else [place]
    chosen: set[int] = set()
    taken = 0
    for places, most in ((wanted, _MOST_CHARS), (range(len(pieces)), _FILLED_CHARS)):
        for place in places:
            if 0 <= place < len(pieces) and place not in chosen:
                size = len(pieces[place]) + 2
                if taken + size <= most or not chosen:
                    chosen.add(place)
                    taken += size
    return sorted(chosen)
