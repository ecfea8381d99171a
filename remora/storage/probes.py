"""Probes of storage: branches that tests must reach."""

from __future__ import annotations

from collections.abc import Mapping

PROBES: Mapping[str, str] = {
    # the journal
    "write_of_erased_refused": "a write came for an actor that was erased: it is refused",
    "batch_halved": "a batch cannot be stored: it is halved until the failing write is alone",
    "commit_behind": "many senders write: a commit is submitted while another one runs",
    "commit_behind_not_begun": "a commit failed, so that the one behind it was not begun",
    "commit_unknown": "a write or sync of the journal's files failed: the commit may survive a "
    "crash",
    "commit_refused": "SQLite refused a commit, and rolled it back",
    "rollback_failed": "not even the rollback of a failed commit succeeded",
    "journal_files_gone": "the journal's files were removed or replaced while they were open",
    "long_term_gone": "the directory of long-term memory is gone: what was read is dropped",
    "ownership_lost": "another process has taken the journal over",
    "writer_did_other_work": "the journal's writer erased, trimmed or compacted between two "
    "batches",
    "attachment_missing": "an attachment is not where a message says: somebody removed it",
    "attachments_removed": "attachments that no message refers to were removed",
    # long-term memory
    "caches_renewed": "many indices were replaced: LanceDB's caches start empty",
    "words_indexed": "a table's words are indexed: a user has many rows, or somebody asked",
    "row_exists": "a row was in long-term memory already: it is not written twice",
    "uncertain_write_undone": "a write failed half way: the table goes back to what is on disk",
    "doubtful_add_merged": "rows that may exist already are merged, not just added",
    "queued_rows_dropped": "rows that were queued are of a user who is being erased",
    "long_term_failed": "LanceDB or the file system under it raised",
    "foreign_version_found": "another process has written to a table at an object store",
    "overtaken_write_repeated": "a write that another process came between is done again",
    "table_emptied": "objects of a table are gone: it is filled again from the journal",
    "table_quarantined": "a table of long-term memory is damaged, and was quarantined",
}
