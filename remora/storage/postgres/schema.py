"""The journal's tables and functions in PostgreSQL, and the step from the format before.

They stand in `schema.sql` and `functions.sql`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from remora.storage.records import ENTRY_KIND

OVERTAKEN, NEXT_NUMBER, OTHER_FORMAT = "RM001", "RM002", "RM003"
"""SQLSTATE of a call that another owner's claim came before, of a number that is not next, and of a
claim by a process that reads another format."""
JOURNAL_ROW = "SELECT epoch, commits FROM remora.journal"
"""Who owns the journal, and how many commits it has."""
FORMAT = 4
"""The format that this remora reads and writes; an older one has a step in `MIGRATIONS`."""


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


_FUNCTIONS = (
    _read("functions.sql")
    .replace("{OVERTAKEN}", OVERTAKEN)
    .replace("{NEXT_NUMBER}", NEXT_NUMBER)
    .replace("{OTHER_FORMAT}", OTHER_FORMAT)
    .replace("{ENTRY_KIND}", ENTRY_KIND)
)
_RENAMED = """
ALTER TABLE remora.folds RENAME TO summaries;
ALTER TABLE remora.facets RENAME TO state_items;
ALTER TABLE remora.actors RENAME COLUMN folding TO summarizing;
ALTER TABLE remora.jobs RENAME COLUMN lane TO queue;
ALTER INDEX remora.folds_pkey RENAME TO summaries_pkey;
ALTER INDEX remora.facets_pkey RENAME TO state_items_pkey;
ALTER INDEX remora.folds_by_session RENAME TO summaries_by_session;
ALTER INDEX remora.folds_with_losses RENAME TO summaries_with_losses;
"""
# Processes of a release before may wait in `claim`, whose call says no format: the next call fails
# by this function, and one that runs while the tables change fails for the columns.
_REFUSED = f"""
ALTER TABLE remora.journal DROP COLUMN owner, DROP COLUMN claimed_at;
CREATE OR REPLACE FUNCTION remora.claim(p_owner text, p_address text, p_seconds float8)
RETURNS remora.journal LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the journal has format {FORMAT}: upgrade remora on this machine'
        USING errcode = '{OTHER_FORMAT}';
END $$;
"""
MIGRATIONS: Mapping[int, str] = {
    0: _read("schema.sql") + _FUNCTIONS,
    3: _RENAMED + _REFUSED + _FUNCTIONS,
}
"""What brings a journal of a format to `FORMAT`; 0: there is no journal yet."""


def in_schema(sql: str, schema: str) -> str:
    """The statement for tables and functions of this schema."""
    return sql if schema == "remora" else sql.replace("remora.", f"{schema}.")
