"""The waiting erasures that ``remora jobs`` shows and retries."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.text import Text

from remora.cli.opening import open_runtime
from remora.cli.render import printable
from remora.cluster.operating import call_there
from remora.storage.erasure_notes import WaitingErasure

__all__ = ["print_erasures", "retry_erasures"]


class _ErasureLine(msgspec.Struct, frozen=True):
    """The line of ``--json`` for an erasure.

    Attributes:
        state: ``erasing``.
        user_key: digest of the user's id.
        session_key: digest of the session; empty for the whole user.
        since: when it was first tried, if it has failed; ISO 8601.
    """

    id: str
    state: str
    user_key: str
    session_key: str
    attempts: int
    since: str | None
    error: str


def print_erasures(
    console: Console, erasures: Sequence[WaitingErasure], *, as_json: bool = False
) -> None:
    """Print them, one per line."""
    if as_json:
        lines = [
            _ErasureLine(
                one.id, "erasing", one.user_key, one.session_key, one.attempts,
                _time(one.since_us), one.error,
            )
            for one in erasures
        ]  # fmt: skip
        sys.stdout.writelines(msgspec.json.encode(line).decode() + "\n" for line in lines)
        return
    for one in erasures:
        whose = f"user {one.user_key}" + (f" session {one.session_key}" * bool(one.session_key))
        failures = ""
        if one.attempts:
            plural = "s" if one.attempts != 1 else ""
            failures = f"  {one.attempts} failure{plural} since {_time(one.since_us)}, the last: "
        console.print(
            Text.assemble(
                one.id, ("  erasing", "red" if one.attempts else ""), "  ", (whose, "cyan"),
                failures, printable(one.error),
            ),
            soft_wrap=True,
            highlight=False,
        )  # fmt: skip
    if any(one.attempts for one in erasures):
        hint = "erasures are retried by themselves; fix the cause, then remora jobs retry --all"
        console.print(hint, style="dim", soft_wrap=True, markup=False, highlight=False)


def _time(since_us: int) -> str | None:
    if not since_us:
        return None
    return datetime.fromtimestamp(since_us / 1_000_000, UTC).isoformat(timespec="seconds")


async def retry_erasures(console: Console, arguments: argparse.Namespace) -> int:
    """Try all waiting erasures once more, here; returns the exit code."""
    with call_there("retry_erasures()"):
        async with open_runtime(arguments, journal_only=True) as runtime:
            left = await runtime.retry_erasures()
            finished = runtime.statistics().erasures.finished
    plural = "s" if finished != 1 else ""
    console.print(f"{finished} erasure{plural} finished", markup=False, highlight=False)
    print_erasures(console, left)
    return 1 if left else 0
