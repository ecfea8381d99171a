"""Probes of actors: branches that tests must reach."""

from __future__ import annotations

from collections.abc import Mapping

PROBES: Mapping[str, str] = {
    # a session
    "key_looked_up": "an idempotency key was looked up in the journal",
    "duplicate_key_in_memory": "an append was repeated under a key in memory: same answer",
    "duplicate_key_in_journal": "an append was repeated under a key in the journal: same answer",
    "key_conflict": "an append has a key that another append had: refused",
    "duplicate_message": "a message was there already, by id or content, and is not stored again",
    "id_conflict": "a message has the id of another one, with other content: refused",
    "message_changed": "stored messages were changed where they stand",
    "ids_looked_up": "message ids were looked up in the journal",
    "key_of_partial_append": "a repeated append had skipped messages that were there already",
    "memories_looked_up": "memories of a user were looked up in the journal",
    "memory_key_conflict": "a memory has a key that another memory has: refused",
    "memory_id_taken": "a text was recorded whose memory says something else by now",
    "overdraft_reached": "the summarizer is too slow: the buffer is over its overdraft",
    "open_tool_call_withheld": "a tool call waits for its result: it and what follows are not "
    "indexed",
    "stale_summary_dropped": "a summary came in after a clear or rewind: it is dropped",
    "compaction_followed_compaction": "when a summary came in, the next compaction was due already",
    "repair_started": "lost messages are summarized again, in a job of their own",
    "entry_condensed": "a list of summary entries was full: the oldest goes into the running "
    "summary",
    "session_changed_during_compaction": "a clear, rewind or change came during a compaction",
    "summarized_message_deleted": "a message of a summary was deleted: it is written again",
    "removal_of_flushed": "indexed messages were removed: they leave long-term memory, too",
    "went_back": "a session went back to an earlier message",
    # keyed state
    "state_version_stale": "a value has another version than its change gave: refused",
    # a turn
    "turn_begun_again": "a turn was cleared or removed: under the same key, a new one begins",
    "turn_gone": "a reply came to a message that was cleared, removed or erased: refused",
    "incomplete_reply_replaced": "a reply took the place of an incomplete one, in one write",
    # tool calls
    "group_cut_whole": "a compaction ended within a tool-call group: it takes the whole group",
    "abandoned_call_cut": "a tool call whose agent seems dead was cut like single messages",
    "orphan_result_dropped": "a tool result without its call is left out of a context",
    "open_call_closed": "a message stands for the result that a tool call never got",
    "late_result_found_its_call": "a tool result is shown with its call, although others spoke "
    "between them",
    "summary_planned_for_reader": "a budget has no room for the whole buffer: it gets a summary",
    "shown_behind_own_summary": "a context shows the summary that was made for its budget",
    "instructions_pinned": "a context begins with a system message that has left the buffer",
    "question_kept": "the newest message of the user is shown, although messages behind it are not",
    "awaiting_call_withheld": "a tool call without all its results is withheld from a context",
    # a user
    "working_memory_overfull": "working memory is far over its limit: the oldest items leave at "
    "once",
    "working_memory_evicted": "a cleanup removed the oldest items of working memory",
    "synopsis_joined": "a synopsis was requested while it was written: both requests wait for one "
    "job",
    "synopsis_stale": "a part of a synopsis expired, or was never written: it is written",
    "synopsis_dropped": "a synopsis came in whose sources had changed: it is dropped",
}
