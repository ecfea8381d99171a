"""How a chat model's answer is unwrapped: fences, tags and bullets, in time with its length."""

from __future__ import annotations

import itertools

import msgspec

from remora.actors.blocks.fact import parse_facts
from remora.models.answers import find_json, strip_fence, strip_thinking
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


def test_thinking_is_taken_off() -> None:
    """Closed blocks are removed; one without an end is no answer, as the model was cut off."""
    said = "The user lives in Lisbon."
    for answer in (
        said,
        f"<think>Okay, who?</think>\n{said}",
        f"<think>\n\n</think>\n\n{said}",
        f"Okay, who?\n</think>\n\n{said}",
        f"<THINKING>Okay</THINKING>{said} <think>Is that all?</think>",
        f'<think time="3">Okay</think>{said}',
        f"[THINK]Okay[/THINK]{said}",
        f"◁think▷Okay◁/think▷{said}",
        f"<seed:think>Okay</seed:think>{said}",
        f"<|begin_of_thought|>Okay<|end_of_thought|>{said}",
        f"<|channel|>analysis<|message|>Hm<|end|><|channel|>final<|message|>{said}<|return|>",
        f"<|channel|>final <|constrain|>text<|message|>{said}",
        f"analysisOkay, who?assistantfinal{said}",
        f"{said}<think>Is that",
    ):
        assert strip_thinking(answer) == said, answer
    for nothing in (
        "",
        "<think>Okay, the user",
        "<|channel|>analysis<|message|>Okay",
        "<think></think>",
    ):
        assert strip_thinking(nothing) == ""
    kept = "She said that she thinks in <b>Portuguese</b>: analysis comes later."
    assert strip_thinking(kept) == kept


def test_the_longest_answer_takes_no_time() -> None:
    """G10: no pattern looks at a part of it again and again; one that did would take hours."""
    units = (
        "\n",
        " \n",
        "<fact>",
        "<think>a</think>",
        "<think",
        "</think> think",
        "</fact ",
        "- ",
        " ",
        "```",
        "1. \n",
    )
    for unit, begin in itertools.product(units, ("", "```", "-", "<fact>")):
        answer = begin + unit * ((MAX_ANSWER_CHARACTERS - 10) // len(unit)) + "x"
        assert strip_fence(answer)
        assert strip_thinking(answer) is not None
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
