"""A process that owns a journal, for the checks that kill and stop one.

``python -m remora.testing.journal_process module:function text`` opens the journal with the
function, appends to a session without end, and prints the number of each acknowledged message. At
an error it prints the error's name and ends.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

import anyio
import anyio.lowlevel

from remora.errors import RemoraError
from remora.runtime.log import commit_records
from remora.storage.journal_port import running_journal
from remora.testing.journal_fixtures import CHAT, appended, open_actor, texts


async def own_journal(target: str, text: str) -> None:
    """Open the journal and append to it until that fails."""
    module, _, name = target.partition(":")
    opened = getattr(import_module(module), name)
    async with running_journal(await opened(text)) as journal:
        sid = await open_actor(journal, CHAT)
        seq = len(await texts(journal))
        while True:
            seq += 1
            try:
                await commit_records(journal, [appended(sid, seq, f"m{seq}")])
            except RemoraError as e:
                _say(type(e).__name__)
                return
            _say(str(seq))
            await anyio.lowlevel.checkpoint()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(own_journal(*sys.argv[1:]))
