"""What an operator is shown of an erasure that waits: digests, and how often it has failed.

The notes are rows of the journal. How often each has failed is a setting, which is written at each
failure, so that it can be read after a crash and while another process has the journal open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from remora.errors import RemoraError
from remora.storage.journal_port import Erasure

__all__ = [
    "FAILURES_SETTING",
    "ErasureFailures",
    "WaitingErasure",
    "decode_failures",
    "describe_failure",
    "encode_failures",
    "list_waiting",
]

FAILURES_SETTING = "erasure_failures"
"""The setting that has the failures of the erasures that wait."""

_MOST_CHARS = 200


class ErasureFailures(msgspec.Struct, frozen=True, array_like=True):
    """How often an erasure has failed.

    Attributes:
        since_us: when it was first tried, in microseconds since the epoch.
        attempts: how often it has failed.
        error: the last failure, without anything that a store may have quoted.
    """

    since_us: int
    attempts: int
    error: str


class WaitingErasure(msgspec.Struct, frozen=True):
    """An erasure whose rows are gone from the journal, and whose files are not rewritten yet.

    Attributes:
        id: ``erasure-`` and the number of its note.
        user_key: digest of the user's id.
        session_key: digest of the session; empty for the whole user.
        attempts: how often it has failed.
        since_us: when it was first tried, in microseconds since the epoch; 0 if it never failed.
        error: the last failure; empty if there was none.
    """

    id: str
    user_key: str
    session_key: str
    attempts: int
    since_us: int
    error: str


_decode = msgspec.json.Decoder(dict[int, ErasureFailures]).decode


def decode_failures(setting: str | None) -> dict[int, ErasureFailures]:
    """The failures by the numbers of their notes; none where the setting cannot be read."""
    try:
        return _decode(setting) if setting else {}
    except msgspec.MsgspecError:  # it only informs: the notes themselves are rows
        return {}


def encode_failures(failures: Mapping[int, ErasureFailures]) -> str:
    """The value of the setting; empty for none."""
    return msgspec.json.encode(dict(failures)).decode() if failures else ""


def list_waiting(
    notes: Sequence[Erasure], failures: Mapping[int, ErasureFailures]
) -> list[WaitingErasure]:
    """The notes with their failures."""
    never = ErasureFailures(0, 0, "")
    listed = []
    for note in notes:
        failed = failures.get(note.number, never)
        listed.append(
            WaitingErasure(
                f"erasure-{note.number}",
                note.user_key,
                note.session_key,
                failed.attempts,
                failed.since_us,
                failed.error,
            )
        )
    return listed


def describe_failure(error: BaseException) -> str:
    """An error without what it may quote: other libraries' texts can hold rows and addresses."""
    name = type(error).__name__
    if not isinstance(error, RemoraError):
        return name
    return f"{name}: {str(error).partition(' (')[0]}"[:_MOST_CHARS]
