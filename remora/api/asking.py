"""Asks the process that has a memory open what it knows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from remora.api.status import RuntimeStatus, StatusQuestion, merge_statuses
from remora.errors import OwnerUnreachable
from remora.services.asking import ask_owner, find_answering

_decode_status = msgspec.json.Decoder(RuntimeStatus).decode


def ask_status(directory: Path, question: StatusQuestion, limit_s: float) -> RuntimeStatus | None:
    """Return what the process says, or several together if each owns a part; blocks.

    See `remora.services.asking.ask_owner`, also for errors.
    """
    asked = msgspec.json.encode(question)
    said = [ask_owner(directory, asked, limit_s, one) for one in find_answering(directory)]
    try:
        found = [_decode_status(one) for one in said if one is not None]
        return merge_statuses(found) if found else None
    except msgspec.DecodeError as e:
        raise OwnerUnreachable(f"the process that has {directory} open did not answer: {e}") from e
