"""A perfect summarizer.

Its summaries name every message that they cover, so a test can tell what a summary covers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import anyio

from remora.models.ports import Line


class UnionSummarizer:
    """Names every message that it covers by its first word, and says how many they are.

    What it was given as the summary before may be another's, an extract say, which leaves things
    out; it is kept as it is, before the names, so that the whole does not pass for complete.

    Args:
        rng: draws how long it takes; at once otherwise.
        latency_s: what is drawn from.
    """

    name = "union"

    def __init__(
        self, rng: random.Random | None = None, *, latency_s: Sequence[float] = (0.0, 0.05, 1.0)
    ) -> None:
        self._rng = rng
        self._latency_s = latency_s

    async def summarize(
        self,
        previous: str | None,
        lines: Sequence[Line],
        *,
        max_tokens: int,  # noqa: ARG002
    ) -> str:
        """The names of what the previous summary covered, and of these lines."""
        if self._rng:
            await anyio.sleep(self._rng.choice(self._latency_s))
        before = covered_by(previous) if previous else ()
        names = [*(before or ())]
        rest = [previous] if previous and before is None else []
        for line in lines:
            if line.speaker == "Summary":  # an entry that goes into the running summary
                covered = covered_by(line.text)
                names.extend(covered or ())
                rest.extend([] if covered is not None else [line.text])
            elif line.speaker != "Note":
                names.append(line.text.split()[0])
        return "\n".join([*rest, " ".join([*names, f"={len(names)}"])])


def covered_by(text: str) -> tuple[str, ...] | None:
    """The names of the messages that summaries of `UnionSummarizer` cover, one a line.

    None if anything else is among them.

    A summary that was cut short, garbled or made by another does not end with the number of its
    names.
    """
    covered: list[str] = []
    for line in text.splitlines():
        *names, total = line.split() or [""]
        if total != f"={len(names)}":
            return None
        covered.extend(names)
    return tuple(covered)
