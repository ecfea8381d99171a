"""Asks the process that has a memory open what it knows, and to change something."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import msgspec

from remora.api.changes import Change, ChangeAnswer
from remora.api.status import RuntimeStatus, StatusQuestion, merge_statuses
from remora.errors import OwnerUnreachable
from remora.runtime.threads import run_in_thread
from remora.services.asking import ask_owner, find_answering

LIMIT_S = 5.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.01, 0.5
_decode_status = msgspec.json.Decoder(RuntimeStatus).decode
_decode_change = msgspec.json.Decoder(ChangeAnswer).decode


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


async def change_there(directory: Path, change: Change, number: int = 0) -> ChangeAnswer | None:
    """Have the process that has a memory open change it; return when that is done.

    Cancelling the call does not stop the change.

    Args:
        directory: the memory's.
        change: what to do.
        number: of the process among those that own the memory together.

    Returns:
        None if no process has it open.

    Raises:
        InvalidInput: the system is not Linux.
        DirectoryUnusable: the directory cannot be read.
        OwnerUnreachable: the process does not answer, or its release changes nothing for others.
    """
    question = msgspec.json.encode(StatusQuestion(change=change))
    pause_s, asked = _FIRST_PAUSE_S, False
    while True:
        found = await run_in_thread(partial(ask_owner, directory, question, LIMIT_S, number))
        if found is None:
            if asked:
                raise OwnerUnreachable(
                    "the process that has the memory open ended before it said what became of it: "
                    "look whether it was done"
                )
            return None
        try:
            answer = _decode_change(found)
        except msgspec.DecodeError as e:
            raise OwnerUnreachable(
                "the process that has the memory open is of an earlier release, which changes "
                "nothing for others: call it there"
            ) from e
        if answer.done:
            return answer
        asked = True
        await anyio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LAST_PAUSE_S)
