"""Senders at twice the rate of the disk, for a minute: runs `benchmarks.overload`.

The deadline of each request is 5 s. `longest_of_allowed` is the longest time that any answer took,
divided by deadline plus 1 s. `untyped` counts answers that were neither an acknowledgement,
`MailboxFull` nor `OutcomeUnknown`. `wrong` counts messages that were acknowledged and lost, refused
and run, or doubled, and sessions out of order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio

from benchmarks.overload import DEADLINE_S, LATE_S, overload
from benchmarks.speed.claim import Case

NAME = "overload"
TITLE = "More than the disk takes"
WORK = (
    "Senders at twice the sustainable rate for 60 s: 48 users send 1 800 messages a second to a "
    "journal that takes 900, whether "
    "or not they are answered; deadline 5 s, at most 6 MB waiting. Then every history is compared "
    "with what its sender was told."
)
CONTESTANTS = ("remora", "remora-uvloop")
FASTER = {"remora-uvloop": "its event loop is written in C"}


def cases(smoke: bool) -> Sequence[Case]:
    return [Case(NAME, "twice", {"seconds": 1.0 if smoke else 60.0}, limit_s=180.0)]


def measure(
    contestant: str,
    case: Case,
    directory: Path,
    seed: int,
    smoke: bool,  # noqa: ARG001
) -> dict[str, float]:
    async def whole() -> dict[str, float]:
        found = await overload(
            directory / "memory", seconds=float(case.sizes["seconds"]), seed=seed
        )
        later = found.rss_mb[len(found.rss_mb) // 3 :]
        return {
            "longest_of_allowed": found.longest_ms / 1e3 / (DEADLINE_S + LATE_S),
            "longest_ms": found.longest_ms,
            "acknowledged_p50_ms": found.p50_ms,
            "acknowledged_p99_ms": found.p99_ms,
            "sent": found.sent,
            "acknowledged": found.acknowledged,
            "refused": sum(found.refused.values()),
            "unknown": found.unknown,
            "untyped": found.untyped,
            "wrong": found.lost + found.ran + found.doubled + found.disordered,
            "waiting_of_bound": found.waiting_kb / found.bound_kb,
            "growth_mb": max(later) - later[0] if later else 0.0,
            "loop_lag_ms": found.lag_ms,
        }

    return anyio.run(whole, backend_options={"use_uvloop": contestant == "remora-uvloop"})
