"""The catalogue of probes (`remora.runtime.probes`): rare branches that tests must reach."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CATALOGUES", "PROBES"]

_RUNTIME = {
    # one cell
    "records_not_applied": "applying a decision's records raised: the state is restored",
    "fenced_write_acknowledged": "a write that was fenced was acknowledged by the log all the same",
    "lookup_after_commit": "a lookup waited for the cell's own writes, which are durable now",
    "gate_broken": "a commit failed, or a state broke: all that waits behind the gate is void",
    "write_fenced": "a write behind a failed one is fenced, so that it is not stored without it",
    "deadline_behind_gate": "a deadline passed between handling and commit: outcome unknown",
    "mailbox_full_of_messages": "a mailbox holds as many messages as it may",
    "mailbox_full_of_bytes": "a mailbox holds as many bytes as it may",
    # messages
    "quarantine_refused": "a message came for an actor in quarantine",
    "mailbox_refused": "a full mailbox refused a message: nothing ran",
    "sender_parked": "a mailbox was full, and its sender waits for room",
    "parked_sender_admitted": "there is room again for a message whose sender waited for it",
    "sender_gone_before_handling": "a queued message's sender gave up: it is never handled",
    "message_not_ready": "later messages wait behind one of which something is being computed",
    "quantum_spent": "a cell had more messages than one round takes, and queues again",
    "deadline_in_mailbox": "a message's deadline passed in the mailbox: it is never handled",
    "lookup_started": "a message needs a cold record: the cell is suspended, its message first",
    "lookup_failed": "the log could not answer a lookup",
    # activation
    "activation_joined": "a message came for an actor that is being activated for another one",
    "activation_waited_for_room": "no cell could leave memory, so an activation waits",
    "image_unreadable": "an actor's image could not be read: its messages fail; the next retries",
    "cell_reloaded": "a cell that lost its state was restored from the log, in place",
    "activated_amid_jobs": "an actor was activated or restored while jobs of it were in the log",
    "lost_actor_reread": "an actor that was lost is tried again, for the jobs it may have left",
    "quarantine_entered": "an actor failed too often in a short time, and rests",
    "quarantine_left": "an actor has rested, and is tried again",
    # leaving memory
    "shed_by_count": "too many actors are in memory: those that were idle longest leave",
    "shed_by_bytes": "actors take too many bytes: those that were idle longest leave",
    "passivation_found_used": "a cell that was to leave memory had been used since it was filed",
    "passivation_found_busy": "a cell that was to leave memory was busy",
    "passivation_wrote_first": "an idle actor writes what it put off before it leaves memory",
    "actor_barred": "a message came for an actor that must not be activated: it is being erased",
    "eviction_waited": "an actor that must leave memory has a commit in progress",
    # background jobs
    "job_resumed": "a job was found in the log: after a crash, an unknown commit, a retry",
    "job_resumed_in_backoff": "a job that was found in the log must not run yet",
    "dead_letter_retried": "a dead letter runs again",
    "job_cancelled_running": "a job was cancelled while its handler ran",
    "job_cancelled_while_recorded": "a job was cancelled while its end or failure was recorded",
    "job_expedited_running": "a job that was expedited gives its present attempt up",
    "gathered_jobs_begin": "jobs that waited to be run together begin",
    "jobs_run_alone": "the work of several jobs failed before it changed anything: each runs alone",
    "job_pulled_from_queue": "a job was cancelled or expedited while it waited in its queue",
    "stalled_jobs_resumed": "a store works again: the jobs that it refused wait no longer",
    "job_pulled_from_line": "a job was cancelled or expedited while it waited behind another",
    "job_pulled_from_backoff": "a job was cancelled or expedited while it waited to be retried",
    "attempt_ended_by_defect": "a defect of the supervisor ended an attempt; the queue goes on",
    "job_end_unrecorded": "a job's work is done; its end could not be recorded, and is tried again",
    "job_retried": "a job failed, and is tried again later",
    "job_failure_unrecorded": "the log refused the record of a job's failure",
    "job_dead_lettered": "a job failed too often: it is a dead letter",
}
_MODELS = {
    "breaker_refused": "a model is not called for a while after failures, so a call was refused",
    "breaker_opened": "a model failed too often in a row: it is not called for a while",
    "breaker_closed": "a model that was not called for a while answered its trial call",
    "model_hung": "a chat model or summarizer did not answer in time",
    "embedder_hung": "an embedder did not answer in time",
    "embedder_misshaped": "an embedder answered with a wrong number of vectors, or of a wrong "
    "length",
    "embedder_not_finite": "an embedder answered with a value that is not a finite number",
    "embedding_joined": "a text that another call was embedding was waited for",
    "embedding_joined_failed": "the call that was waited for failed, so this one embeds the text",
}
_STORAGE = {
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
_ACTORS = {
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
_JOBS = {
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
_RECALL = {
    # contexts
    "attachments_left_out": "attachments of old messages have no place in a context: words of them",
    "message_shortened": "a message is larger than its share of a context: it is shown in part",
    "excerpts_too_long": "names and ids make excerpts too long: the oldest units are left out",
    # finding
    "stale_memories_left_out": "memories that were found are changed or deleted by now: more are "
    "looked at",
    "withdrawn_message_marked": "a recalled message asks for what its user took back since",
    "fact_left_out": "a fact that was found has a newer one in its place, or lost its messages",
    "recall_overtaken": "a user wrote during a search: its result is not kept for others",
    "recall_cache_invalidated": "a result that was held is dropped, because its user wrote",
    "user_index_too_large": "a user has too many rows to be held in memory: the store is asked",
    "user_index_read_overtaken": "a user's rows were removed or requested again during a read",
    "user_index_read_failed": "a user's rows could not be read into memory: the store is asked",
    "user_index_evicted": "a user's rows left memory to make room for others'",
    "near_words_failed": "an embedder's near words failed: recall finds by words and vectors",
    "rerank_failed": "a reranker failed: the memories keep the order that they were found in",
    "rerank_cut_short": "a reranker had less than its deadline, because its caller's is near",
    "reranker_misshaped": "a reranker answered with a wrong number of scores, or with no numbers",
    "reranker_not_finite": "a reranker answered with a score that is not a finite number",
    "rerank_void": "memories were removed while a reranker judged them: the search is repeated",
    "rerank_nested": "a reranker recalls: what it gets is not reranked",
    # context assembly
    "search_before_warm_up": "a context was asked for while models and tables were being loaded",
    "tier_late": "a tier missed its deadline, and is left out of a context",
    "tier_failed": "a tier failed, and is left out of a context",
    "instructions_not_read": "a user's instructions could not be read: a context lacks them",
    "instructions_left_out": "a user has more instructions than fit into their share of a context",
    "synopsis_left_out": "there is no room for the synopsis in a context",
}
_SERVICES = {
    # computing
    "computing_process_started": "jobs have computed for a while: a process of its own begins to",
    "computing_process_gone": "the process that computes was killed or stopped: a thread computes",
    "computing_process_unable": "the process that computes does not start: threads compute",
    # counting
    "counted_in_thread": "many appends are on their way: a thread counts an append's tokens",
    "batch_counted_one_by_one": "the tokenizer failed on several texts: each is counted by itself",
    # instructions
    "instructions_not_noticed": "what a user asked for could not be noted; the message is stored",
    # turns
    "too_many_turns_waited": "as many turns of a session wait as may: the next one is refused",
    "turn_dropped": "a turn was entered, and its object was dropped: the turn has ended",
    "turn_waited_in_vain": "a turn waited for as long as it may, and is refused",
    "turn_begun_for_nobody": "a turn was begun just when its caller gave up: the next one begins",
    "unindexed_session_flushed": "messages of an earlier run that were not indexed are indexed",
    "tail_unread": "what a user said and is not indexed yet could not be read for a recall",
    "tail_not_redacted": "a row that is not indexed yet cannot be redacted: it is not searched",
    "tail_not_embedded": "rows that are not indexed yet are searched by words: no embedder answers",
    "tail_indexed": "much of a user, or of all, is not indexed yet: the largest sessions are",
    "older_messages_found": "a recall finds messages that are older than those of a tail",
    "removed_message_in_job": "a job would index a message that was removed since it was read",
    "tail_cut": "a user has more rows that are not indexed yet than may be searched",
    "append_waited_for_encoding": "a short append waits for a long one that is encoded in a thread",
    "append_waited": "an append waits until a compaction is done",
    "append_waited_in_vain": "an append waited until its deadline: it is refused",
    "erasure_resumed": "a start found the note of an erasure that had not ended",
    "erasure_uncertain": "it is unknown whether the journal has erased: it is asked again",
    "deletions_erased": "what was deleted one by one has left the files",
    "erasure_retried": "files could not be rewritten for an erasure: it is tried again",
}
_API = {
    "stream_interrupted": "a reply was streamed, and not to its end",
    "drain_timed_out": "closing took too long: callers are failed, jobs in the journal run after "
    "the next start",
    "drain_cut_short": "the task that closes the runtime was cancelled: it waits no longer for "
    "accepted requests",
    "opening_cancelled": "the task that opened the runtime was cancelled before it was open",
    "closed_while_opening": "another task closed the runtime before it was open",
    "loop_ended_before_the_runtime": "the event loop cancelled all tasks, and an open runtime's",
}

CATALOGUES: Mapping[str, Mapping[str, str]] = {
    "runtime": _RUNTIME,
    "models": _MODELS,
    "storage": _STORAGE,
    "actors": _ACTORS,
    "jobs": _JOBS,
    "recall": _RECALL,
    "services": _SERVICES,
    "api": _API,
}
"""By folder: the names, and when each is reached."""

PROBES: Mapping[str, str] = {
    name: branch for catalogue in CATALOGUES.values() for name, branch in catalogue.items()
}
"""Every probe, and when it is reached."""
