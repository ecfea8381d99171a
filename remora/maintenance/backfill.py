"""Work for rows that long-term memory lacks, put into the journal.

Whoever opens the directory next has it done (G7).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from remora.actors.session.compaction import FLUSH_QUEUE
from remora.actors.user.behavior import RECORD_QUEUE
from remora.errors import StorageError
from remora.maintenance.compare import Backfill
from remora.runtime.log import Job
from remora.runtime.supervisor import commit_records
from remora.storage.ports import Journal
from remora.storage.records import JobsStarted, RecordSpec

__all__ = ["refilled"]

_encode = msgspec.msgpack.Encoder().encode


async def refilled(journal: Journal, backfills: Sequence[Backfill]) -> int:
    """Put jobs into the journal that write these rows; returns how many jobs.

    Their ids come of what they do, and differ in each.

    Found in the journal at the next start, they are jobs like any that a crash left behind: their
    rows are merged.

    Raises:
        StorageError, CommitFailed, OutcomeUnknown: they are not known to be there.
    """
    for one in backfills:
        (image,) = await journal.hydrate([one.key])
        if isinstance(image, Exception):
            raise StorageError(f"{one.key!r} cannot be read: {image}") from image
        spec = msgspec.structs.replace(one.spec, sid=image.sid)
        lane = RECORD_QUEUE if isinstance(spec, RecordSpec) else FLUSH_QUEUE
        digest = blake2b(_encode(spec), digest_size=8).hexdigest()
        job = Job(f"refill-{image.sid}-{digest}", lane, one.key, spec)
        await commit_records(journal, [JobsStarted(image.sid, (job,))])
    return len(backfills)
