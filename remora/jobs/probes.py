"""Probes of background jobs: branches that tests must reach."""

from __future__ import annotations

from collections.abc import Mapping

PROBES: Mapping[str, str] = {
    "compaction_without_summary": "even the fallback failed: the messages stay in the journal",
    "summary_degraded": "a fallback summary was made",
    "summary_input_clipped": "what is to be summarized is longer than the model's window: clipped",
    "summary_too_long": "a model's summary was longer than it may be: it is asked again",
    "messages_lost": "a fallback summary had no room for messages, and names them",
    "prose_dropped": "a fallback summary had no room for what a model wrote before it: its "
    "messages count as lost",
    "repaired_with_compaction": "lost messages were given to the model with a compaction",
    "extracted_again": "a summary was extracted again, since a message of it changed",
    "extracted_again_in_parts": "what was extracted again are too many messages to have in memory",
    "repair_failed": "the model failed on lost messages, or they were gone: they stay lost for now",
    "repair_postponed": "a model's summaries stay too long: the next repair comes later",
    "session_resummarized": "a session was asked to summarize its lost messages again",
    "extract_failed": "the fallback summary failed: the previous summary is kept",
    "doubtful_flush": "messages are indexed again: some rows may be in long-term memory already",
    "sessions_indexed_together": "new messages of several short sessions are indexed as one",
    "windows_completed": "rows are indexed again with messages that came after them",
    "prune_resumed": "a prune runs again, and first finishes what the earlier attempt began",
    "memory_gone_while_embedded": "a memory was removed while it was embedded: it is not stored",
    "block_failed": "a memory block failed to take its messages in; the others did not",
    "facts_resumed": "facts are extracted again, behind the last message that has one",
    "facts_full": "a session has all the facts that it may have: no more are extracted",
    "facts_unreadable": "a model's answer held no facts that can be read: it is asked again once",
    "facts_not_compared": "the model failed on which fact replaces which: none does",
    "unsupported_facts_removed": "facts were removed, because their messages were",
    "synopsis_degraded": "a fallback synopsis was made",
    "synopsis_unwritten": "no synopsis could be written at all: it stays empty",
}
