"""Summaries by a chat model: the prompt, the running form, and the enforced length."""

from __future__ import annotations

import re
from collections.abc import Sequence

from remora.errors import ModelAnswerInvalid
from remora.messages import ChatDict
from remora.models.answers import strip_fence, strip_thinking
from remora.models.ports import ChatModel, Line
from remora.tokens import TokenCounter

DEFAULT_PROMPT = (
    "Write in the language of the conversation. Keep names, identifiers, dates and numbers as they "
    "are written, what was decided or promised, and the tasks that are still open. Of a previous "
    "summary, keep all that the conversation does not change. "
    "Summarize the following conversation concisely, focusing on key facts and important "
    "information:\n\n"
)
"""Comes before the conversation's lines; `models.summary_prompt` replaces it."""
_REFUSAL = re.compile(
    r"(i['\u2019]?m|i am) (sorry|unable|not able)|(sorry|unfortunately),? (but )?i|i "
    r"(can['\u2019]?t|cannot|won['\u2019]?t)\b",
    re.IGNORECASE,
)
_LONGEST_REFUSAL = 400  # characters
_LONGEST_TOKEN = 128  # characters, in any known vocabulary


class ChatSummarizer:
    """Implements `remora.models.ports.Summarizer` with any chat model.

    Args:
        model: writes the summaries.
        prompt: comes before the conversation's lines.
    """

    def __init__(self, model: ChatModel, *, prompt: str = DEFAULT_PROMPT) -> None:
        self.name = str(getattr(model, "name", type(model).__name__))
        self._model = model
        self._prompt = prompt

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        """Call the model: the previous summary as a system message, then a line per message."""
        messages: list[ChatDict] = []
        if previous:
            messages.append({"role": "system", "content": f"Previous summary: {previous}"})
        messages.append(
            {
                "role": "system",
                "content": f"Answer with the summary alone, in at most {max_tokens} tokens.",
            }
        )
        said = "\n".join(line.spoken for line in lines)
        messages.append({"role": "user", "content": self._prompt + said})
        answer = await self._model.complete(messages)
        text = strip_fence(strip_thinking(answer)) if isinstance(answer, str) else ""
        if not text:
            raise ModelAnswerInvalid(f"{self.name} returned no summary")
        if refuses(text):
            raise ModelAnswerInvalid(f"{self.name} refused to summarize")
        return text


def refuses(text: str) -> bool:
    """Return whether a model's answer is a refusal: a short apology."""
    return len(text) < _LONGEST_REFUSAL and _REFUSAL.match(text) is not None


def shorten(text: str, max_tokens: int, counter: TokenCounter) -> str:
    """Cut `text` at a line or a word so that it fits into `max_tokens` with an ellipsis.

    A model that was asked for 800 tokens may answer with 100 000, or with a million times the same
    letter. What cannot fit is cut before it is counted: this may run on the event loop.
    """
    most = max(max_tokens, 1) * _LONGEST_TOKEN
    if len(text) > most:
        text = text[:most]
    elif counter.count(text) <= max_tokens:
        return text
    low, high = 0, len(text)
    while low < high:  # the longest prefix that fits; counts grow with the prefix, or nearly
        middle = (low + high + 1) // 2
        if counter.count(text[:middle] + " …") <= max_tokens:
            low = middle
        else:
            high = middle - 1
    cut = max(text.rfind("\n", 0, low), text.rfind(" ", 0, low))
    return (text[: cut if cut > low // 2 else low]).rstrip() + " …"
