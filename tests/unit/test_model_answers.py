"""How a chat model's answer is unwrapped: fences, tags and bullets, in time with its length."""

from __future__ import annotations

import itertools

import msgspec

from remora.actors.blocks.fact import parse_facts
from remora.models.answers import find_json, strip_fence
from remora.models.ports import MAX_ANSWER_CHARACTERS


def test_a_fence_is_removed_if_it_is_around_everything() -> None:
    for answer, content in (
        ('{"a": 1}', '{"a": 1}'),
        (' \n```json\n{"a": 1}\n```\n', '{"a": 1}'),
        ('```\n{"a": 1}```', '{"a": 1}'),
        ('```json  \n\n  {"a": 1}\n\n```', '{"a": 1}'),
        ("```json\nleft open", "```json\nleft open"),
        ("``` not a language\nx\n```", "``` not a language\nx\n```"),
        ("```", "```"),
        ("``````", "``````"),
        ("before\n```\nx\n```", "before\n```\nx\n```"),
        ("", ""),
    ):
        assert strip_fence(answer) == content


def test_the_longest_answer_takes_no_time() -> None:
    """G10: no pattern looks at a part of it again and again; one that did would take hours."""
    units = ("\n", " \n", "<fact>", "</fact ", "- ", " ", "```", "1. \n")
    for unit, begin in itertools.product(units, ("", "```", "-", "<fact>")):
        answer = begin + unit * ((MAX_ANSWER_CHARACTERS - 10) // len(unit)) + "x"
        assert strip_fence(answer)
        assert len(parse_facts(answer)) <= 1


class Said(msgspec.Struct):
    """What an answer is read as."""

    text: str


def test_half_a_character_does_not_cost_the_answer() -> None:
    """An emoji that a model cut is one replacement character; a written backslash stays."""
    for escaped, read in (
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\ud83d", "\ufffd"),
        (r"\ude00 and \uD83D\uDE00", "\ufffd and \U0001f600"),
        (r"\\ud83d", r"\ud83d"),
        (r"\ud83d\\ude00", "\ufffd" + r"\ude00"),
    ):
        assert find_json(f'Sure: {{"text": "{escaped}"}}', Said) == Said(read)
