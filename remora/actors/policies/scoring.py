"""How important a message looks, without a model.

What people want remembered is mostly in the first person, with names, numbers and dates, often a
preference, or has the word "remember"; small talk is short, a greeting, or raw output of a tool.
`heuristic_score` adds up such signs, each a pattern with a weight. The patterns are English; other
languages score by numbers and names. The weights were set by hand.

`validate_score` checks the answers of an application's own scorer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

from remora.errors import InvalidInput

NEUTRAL_SCORE = 0.5
"""What a message without any sign gets."""

_TOOL_SCORE = 0.2
_READ = 2_000  # characters: an append waits for this, and longer texts say what matters first

# In what anyone says.
_SIGNS = (
    (re.compile(r"\d"), 0.08),
    (
        re.compile(
            r"\b(?:birthday|anniversary|deadline|appointment|january|february|march|april|june|july|august|september|october|"
            r"november|december|monday|tuesday|wednesday|thursday|friday|saturday|sunday|tomorrow|tonight)\b",
            re.IGNORECASE,
        ),
        0.08,
    ),
    (re.compile(r"(?<=[a-z,;] )[A-Z][a-z]\w*"), 0.08),  # a capital within a sentence: mostly a name
)
# In what users say of themselves.
_OWN_SIGNS = (
    (
        re.compile(
            r"\b(?:remember|don't forget|do not forget|keep in mind|note that|for the record)\b",
            re.IGNORECASE,
        ),
        0.25,
    ),
    (re.compile(r"\bmy\b[^.?!\n]{1,60}?\b(?:is|are|was|were)\b", re.IGNORECASE), 0.15),
    (
        re.compile(
            r"\b(?:prefer|favou?rite|love|like|enjoy|hate|dislike|avoid|allergic|always|never|"
            r"can't stand)\b",
            re.IGNORECASE,
        ),
        0.12,
    ),
    (re.compile(r"\b(?:I(?:'(?:m|ve|d|ll))?|my|mine|me|we|our|us)\b"), 0.08),
)
_GREETING = re.compile(
    r"\W*(?:(?:hi|hello|hey|good (?:morning|afternoon|evening|night)|how are you|what's "
    r"up|thanks?(?: you)?(?: so much| a lot)?|"
    r"bye|goodbye|see you|cheers|ok(?:ay)?|great|cool|sure|yes|no|yep|nope|you're "
    r"welcome|there|again)\W*)+",
    re.IGNORECASE,
)
_GREETING_WEIGHT = -0.35
_ONE_WORD_WEIGHT = -0.3
_QUESTION_WEIGHT = -0.2
_CALL_WEIGHT = -0.2


def heuristic_score(chat: Mapping[str, Any]) -> float:
    """The importance of a chat message, from 0 to 1; 0.5 is neutral.

    First-person statements, "my … is", preferences, "remember", numbers, dates and names raise it;
    greetings, answers of one word, questions and tool calls lower it; a tool's result is 0.2. What
    an assistant says of itself does not count. Media are neutral.
    """
    if chat.get("role") == "tool":
        return _TOOL_SCORE
    text = _text_beginning(chat)
    score = NEUTRAL_SCORE
    if chat.get("tool_calls"):
        score += _CALL_WEIGHT
    if _GREETING.fullmatch(text):
        score += _GREETING_WEIGHT
    elif text:
        score += sum(weight for sign, weight in _SIGNS if sign.search(text))
        if chat.get("role") == "user":
            score += sum(weight for sign, weight in _OWN_SIGNS if sign.search(text))
        if len(text.split(maxsplit=1)) == 1:
            score += _ONE_WORD_WEIGHT
        if text.endswith("?"):
            score += _QUESTION_WEIGHT
    return min(max(score, 0.0), 1.0)


def validate_score(value: object, scorer: str = "importance") -> float:
    """Return a scorer's answer if it is a number from 0 to 1.

    Args:
        value: the answer.
        scorer: its name, for the error.

    Raises:
        InvalidInput: it is not.
    """
    if (
        not isinstance(value, bool) and isinstance(value, Real) and value <= 1 and not value < 0
    ):  # no NaN is at most 1
        return float(value)
    raise InvalidInput(
        f"the scorer {scorer} must return a number from 0 to 1, not {_describe(value)}"
    )


def _describe(value: object) -> str:
    """A number as it is; the type of anything else, which may quote the message."""
    return f"{value!r:.40}" if isinstance(value, Real) else f"a {type(value).__name__}"


def _text_beginning(chat: Mapping[str, Any]) -> str:
    """The beginning of the message's text."""
    content = chat.get("content")
    if not isinstance(content, str):
        content = "\n".join(
            part["text"][:_READ] for part in content or () if part["type"] == "text"
        )
    return content[:_READ].replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").strip()
