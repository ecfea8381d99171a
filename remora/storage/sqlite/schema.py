"""The journal's schema (`schema.sql`), and the step from the format before.

`PRAGMA user_version` holds the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

APPLICATION_ID = 0x52454D4F
"""``REMO``: tells a remora journal from any other SQLite file."""
FORMAT = 5
"""The format that this remora reads and writes; an older one has a step in `MIGRATIONS`."""

_RENAMED = """
ALTER TABLE folds RENAME TO summaries;
ALTER TABLE facets RENAME TO state_items;
ALTER TABLE actors RENAME COLUMN folding TO summarizing;
ALTER TABLE jobs RENAME COLUMN lane TO queue;
DROP INDEX folds_by_session;
DROP INDEX folds_with_losses;
CREATE INDEX summaries_by_session ON summaries (sid, generation);
CREATE INDEX summaries_with_losses ON summaries (sid) WHERE cover IS NOT NULL;
"""
MIGRATIONS: Mapping[int, str] = {
    0: Path(__file__).with_name("schema.sql").read_text(encoding="utf-8"),
    4: _RENAMED,
}
"""What brings a journal of a format to `FORMAT`; 0: an empty file."""
