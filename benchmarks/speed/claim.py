"""What a claim is: the work, who does it, and why others are faster. What a bar is.

Needs the standard library only. So does the top of every module in `claims` whose contestants run
in environments of their own: children import it there, without remora's dependencies. `measure`
imports what a contestant needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

__all__ = ["Bar", "Case", "Claim", "Skipped", "higher_is_better"]


class Skipped(Exception):
    """Raised by `measure`: this contestant cannot do this here; the reason stands in the table."""


@dataclass(frozen=True)
class Case:
    """One row's setting.

    Attributes:
        claim: the claim's name.
        name: short, unique within the claim.
        sizes: numbers by name; the first is what plots have on their x axis.
        least_repeats: repeated at least so often in a full run, whatever `--repeat` says; for what
            only the disk decides.
        limit_s: one measurement that takes longer is killed.
        contestants: who takes part, where it is not all of the claim's.
    """

    claim: str
    name: str
    sizes: dict[str, int | float] = field(default_factory=dict)
    least_repeats: int = 1
    limit_s: float = 120.0
    contestants: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Bar:
    """A bar that remora is held against.

    Attributes:
        case: the case's name.
        text: the bar in words, such as "≥ 0.6 of the limit".
        figure: which figure of the contestant's.
        than: contestants it is divided by: the best of them in each repeat. Empty: an absolute bar,
            or another case of its own.
        least: what the figure, or the ratio, must reach.
        most: what it must not exceed.
        than_case: the case whose figure it is divided by, where it is not the same.
        contestant: who is held against it.
    """

    case: str
    text: str
    figure: str
    than: str | tuple[str, ...] | None = None
    least: float | None = None
    most: float | None = None
    than_case: str | None = None
    contestant: str = "remora"

    @property
    def others(self) -> tuple[str, ...]:
        """`than`, always as a tuple; the contestant itself where only the case differs."""
        if self.than is None:
            return (self.contestant,) if self.than_case else ()
        return (self.than,) if isinstance(self.than, str) else self.than


class Claim(Protocol):
    """A module in `benchmarks.speed.claims`."""

    NAME: str
    """The module's name."""
    TITLE: str
    """A heading."""
    WORK: str
    """What exactly is done, in a sentence or two."""
    CONTESTANTS: tuple[str, ...]
    """Names: ``remora``, its variants ``remora-…``, limits ``limit…``, what a user would write
    instead, libraries.
    """
    FASTER: Mapping[str, str]
    """Why a contestant is faster, where it is: half a sentence, by contestant."""

    @staticmethod
    def cases(smoke: bool) -> Sequence[Case]:
        """The rows; few and small ones for a smoke run."""
        ...

    @staticmethod
    def measure(
        contestant: str, case: Case, directory: Path, seed: int, smoke: bool
    ) -> dict[str, float]:
        """Do the work once, in a process of its own.

        Args:
            contestant: one of `CONTESTANTS`.
            case: one of `cases`.
            directory: empty, on the disk that is measured.
            seed: of all that is random.
            smoke: just show that it works.

        Returns:
            Figures by name, units in the names: ``per_s``, ``p50_us``, ``p99_ms``, ``bytes_…``,
            ``cpu_us_per``. The first is the one of which ratios are shown.

        Raises:
            Skipped: it cannot be done here.
        """
        ...


def higher_is_better(figure: str) -> bool:
    """Rates are; times, bytes and lags are not."""
    return figure.endswith(("per_s", "rows_per_commit", "sessions_done"))
