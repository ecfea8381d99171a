"""Probes of services: branches that tests must reach."""

from __future__ import annotations

from collections.abc import Mapping

PROBES: Mapping[str, str] = {
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
