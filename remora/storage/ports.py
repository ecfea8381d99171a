"""The two storage ports: `Journal` and `LongTermStore`, and the data that crosses them."""

from __future__ import annotations

from remora.faces import publish
from remora.runtime.log import Write
from remora.storage.journal_port import (
    Erased,
    Erasure,
    Finding,
    Journal,
    JournalCounts,
    Retention,
    SummaryFigures,
    check_owned,
)
from remora.storage.listing import ListingPage, SessionListing, UserListing
from remora.storage.long_term_port import (
    BLOCK_TYPE,
    EVERYTHING,
    Candidate,
    LongTermStatistics,
    LongTermStore,
    MemoryRow,
    RowOrder,
    Scope,
    Vector,
)
from remora.storage.past import earlier_buffer
from remora.storage.pending import NEIGHBOURS

__all__ = [
    "BLOCK_TYPE",
    "EVERYTHING",
    "NEIGHBOURS",
    "Candidate",
    "Erased",
    "Erasure",
    "Finding",
    "Journal",
    "JournalCounts",
    "ListingPage",
    "LongTermStatistics",
    "LongTermStore",
    "MemoryRow",
    "Retention",
    "RowOrder",
    "Scope",
    "SessionListing",
    "SummaryFigures",
    "UserListing",
    "Vector",
    "Write",
    "check_owned",
    "earlier_buffer",
]

publish(__name__, __all__, globals())
