"""Planted bugs, as plain data: what a person might well have written, and what it would cost
whoever relies on remora.

Each is a change of some lines in one file of the package, written as in a diff. What it removes,
with what stands around it, must be there exactly once; a test holds that, so that the catalogue
cannot rot unnoticed. Each is a violation of a guarantee (docs/how-to/testing.md has them) that a
user could notice: what only looks different, or only costs time, is not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

__all__ = ["CATALOGUE", "Journal", "Mutant"]

Journal: TypeAlias = Literal["memory", "sqlite"]


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A planted bug.

    Attributes:
        name: its own.
        guarantee: what it breaks.
        what: what was written, in a sentence.
        path: the file, from the root of the repository.
        change: lines that go begin with a minus, lines that come with a plus, lines around them
            with a blank; a line with a tilde alone stands between two places.
        journal: which one the simulation needs to come by the place.
        simulated: whether the simulation can come by at all.
        tests: those of the suite that must notice it where the simulation does not.
    """

    name: str
    guarantee: str
    what: str
    path: str
    change: str
    journal: Journal = "memory"
    simulated: bool = True
    tests: tuple[str, ...] = ()

    @property
    def replacements(self) -> Iterator[tuple[str, str]]:
        """What is replaced, and what stands in its place."""
        for hunk in self.change.strip("\n").split("\n~\n"):
            lines = hunk.splitlines()
            before = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
            after = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
            yield before, after

    def planted(self, root: Path) -> str:
        """The text of the file with the bug in it.

        Raises:
            ValueError: what it replaces is not there exactly once.
        """
        text = (root / self.path).read_text()
        for before, after in self.replacements:
            if text.count(before) != 1:
                raise ValueError(
                    f"{self.name}: this is {text.count(before)} times in {self.path}, and not "
                    f"once:\n{before}"
                )
            text = text.replace(before, after)
        return text


_MUTANTS = (
    Mutant(
        name="uncounted_message_handled",
        guarantee="G9",
        what="A message in the mailbox can be handled: that a thread still counts its tokens is "
        "nobody's business here.",
        path="remora/runtime/dispatch.py",
        change="""
             if mailbox.head.holds_up:
-                probe("message_not_ready")
-                break
+                probe("message_not_ready")
""",
    ),
    Mutant(
        name="counts_in_another_order",
        guarantee="G9",
        what="What the thread counted belongs to the messages that it was given, the last first.",
        path="remora/services/counting.py",
        change="""
-        for (entries, reserved), tokens in zip(batch, counted, strict=True):
+        for (entries, reserved), tokens in zip(batch, counted[::-1], strict=True):
""",
    ),
    Mutant(
        name="reads_overtake_what_is_counted",
        guarantee="G2",
        what="A read adds nothing to the mailbox, so it need not wait behind what is in there.",
        path="remora/runtime/dispatch.py",
        change="""
-        if cell.mailbox or cell.parked or cell.status is not CellStatus.VALID:
+        if (cell.mailbox and size) or cell.parked or cell.status is not CellStatus.VALID:
""",
        simulated=False,
        tests=("tests/unit/test_counting.py",),
    ),
    Mutant(
        name="lost_when_the_sender_left",
        guarantee="G11",
        what="A message whose sender left while it was counted is not ready, and nobody makes it "
        "so: whatever waits behind it waits for ever.",
        path="remora/runtime/dispatch.py",
        change="""
+        if envelope.promise.abandoned:
+            return
         if mailbox.head is not envelope or not self._may_handle(cell, now):
""",
        simulated=False,
        tests=("tests/unit/test_counting.py",),
    ),
    Mutant(
        name="reply_before_commit",
        guarantee="G3",
        what="An append that runs at once is answered at once: its records are on their way, so "
        "what could go wrong?",
        path="remora/runtime/registry.py",
        change="""
-                if cell.written == cell.durable:
+                if outcome.records or cell.written == cell.durable:
""",
    ),
    Mutant(
        name="queued_reply_before_commit",
        guarantee="G3",
        what="A message that waited in the mailbox is answered when its turn has run, and not "
        "when its records are durable.",
        path="remora/runtime/cell.py",
        change="""
-        self.reply(envelope.promise, outcome.reply, envelope.deadline)
+        envelope.promise.resolve(outcome.reply)
""",
    ),
    Mutant(
        name="reads_pass_the_gate",
        guarantee="G3",
        what="A read writes nothing, so its reply need not wait for anybody's commit.",
        path="remora/runtime/registry.py",
        change="""
-                if cell.written == cell.durable:
+                if not outcome.records or cell.written == cell.durable:
""",
    ),
    Mutant(
        name="gate_opens_with_the_first_commit",
        guarantee="G3",
        what="Whatever commit comes back opens the gate for all who wait behind it.",
        path="remora/runtime/cell.py",
        change="""
-        while held and held[0].after <= durable:
+        while held and durable:
""",
    ),
    Mutant(
        name="failed_commit_stays_in_state",
        guarantee="G4",
        what="When a commit fails whoever waits is told, and the actor goes on with the state "
        "that it has.",
        path="remora/runtime/cell.py",
        change="""
-        self.state = None
-        self.status = CellStatus.ACTIVATING
+        self.written = self.durable = 0
         for reply in held or ():
~
-        self._host.broken(self, error)
-        if self.status is CellStatus.ACTIVATING and not self.awaiting_fence:
-            self._host.restore(self)
+        self._host.acknowledged(self)
""",
    ),
    Mutant(
        name="waiters_lost_when_a_commit_fails",
        guarantee="G11",
        what="The gate is thrown away with the state, and nobody tells those who wait behind it.",
        path="remora/runtime/cell.py",
        change="""
-        for reply in held or ():
-            reply.promise.reject(answer)
+        del held
""",
    ),
    Mutant(
        name="unknown_outcome_told_as_failure",
        guarantee="G3 G4",
        what="A commit of which nobody knows what became is reported as one that stored nothing.",
        path="remora/runtime/cell.py",
        change="""
-            if isinstance(error, (CommitFailed, OutcomeUnknown))
-            else OutcomeUnknown(str(error))
+            if isinstance(error, CommitFailed)
+            else CommitFailed(str(error))
""",
    ),
    Mutant(
        name="cancelled_turn_is_undone",
        guarantee="G11",
        what="A caller that gives up while its commit is under way takes its turn back, and with "
        "it the actor's state.",
        path="remora/runtime/registry.py",
        change="""
                 self._deadlines.watch(cell)
-                return await promise.wait()
+                try:
+                    return await promise.wait()
+                except anyio.get_cancelled_exc_class():
+                    from remora.errors import OutcomeUnknown
+                    cell.fail(OutcomeUnknown("its caller gave up"))
+                    raise
""",
    ),
    Mutant(
        name="drain_dies_with_its_asker",
        guarantee="G11",
        what="The answer is set whether or not its caller is still there; where it is not, that "
        "raises in whoever answers.",
        path="remora/runtime/promise.py",
        change="""
-        if not self._future.done():
-            self._future.set_result(value)
+        self._future.set_result(value)
""",
    ),
    Mutant(
        name="registered_after_activation",
        guarantee="G1 G2",
        what="A cell is registered when it has its state: two callers who come before that "
        "activate it twice.",
        path="remora/runtime/activation.py",
        change="""
         cell = self._new_cell(key)
-        self._cells[key] = cell
~
             cell.take_image(image, state)
+            self._cells[cell.key] = cell
""",
    ),
    Mutant(
        name="await_before_forgetting",
        guarantee="G2",
        what="An idle cell is forgotten a moment later, at the next sweep; nobody looks whether a "
        "message came meanwhile.",
        path="remora/runtime/passivation.py",
        change="""
         self.passivations = 0
+        self._leaving: list[Cell] = []
~
         self.passivations += 1
-        self.remove(cell)
+        self._leaving.append(cell)
~
         horizon = int((self._clock.monotonic() - self._limits.idle_s) / self._bucket_s)
+        leaving, self._leaving = self._leaving, []
+        for cell in leaving:
+            self.remove(cell)
""",
    ),
    Mutant(
        name="passivated_while_writing",
        guarantee="G2 G3",
        what="A cell without messages counts as idle, though a commit of its own is still under "
        "way.",
        path="remora/runtime/cell.py",
        change="""
             and not self.queued
-            and self.written == self.durable
~
-            and not self._held
""",
    ),
    Mutant(
        name="images_mixed_up",
        guarantee="G1",
        what="Actors that are read in one batch come back in the order of their names, and are "
        "handed out in that of asking.",
        path="remora/storage/memory/journal.py",
        change="""
-        return [self.saved(key) for key in keys]
+        return [self.saved(key) for key in sorted(keys, key=str)]
""",
    ),
    Mutant(
        name="removed_numbers_are_used_again",
        guarantee="G2",
        what="The next number is that after the newest message that is left; a rewound one's is "
        "given to somebody else.",
        path="remora/storage/memory/tables.py",
        change="""
-            next_seq=actor.last + 1,
+            next_seq=max((one.seq for one in actor.visible(1, actor.last)), default=0) + 1,
""",
    ),
    Mutant(
        name="mailbox_lifo",
        guarantee="G2",
        what="The newest message is taken first.",
        path="remora/runtime/mailbox.py",
        change="""
-        envelope = self._queue.popleft()
+        envelope = self._queue.pop()
""",
    ),
    Mutant(
        name="parked_senders_overtaken",
        guarantee="G2",
        what="Who comes when there is room again passes those that have waited for it.",
        path="remora/runtime/dispatch.py",
        change="""
-        if cell.mailbox or cell.parked or cell.status is not CellStatus.VALID:
+        if cell.mailbox or cell.status is not CellStatus.VALID:
~
-            if cell.parked and not envelope.control:
+            if cell.parked and cell.mailbox is None:
""",
        tests=("tests/simulation/test_kernel.py",),
    ),
    Mutant(
        name="full_mailbox_drops_the_oldest",
        guarantee="G10",
        what="A full mailbox makes room by letting its oldest message go.",
        path="remora/runtime/mailbox.py",
        change="""
+            while self._counted >= self._max_messages and not self._queue[0].control:
+                self._discount(self._queue.popleft())
             if self._counted >= self._max_messages and (
""",
    ),
    Mutant(
        name="expired_message_still_runs",
        guarantee="G10",
        what="Whoever waited too long is told that nothing ran, and the message stays in the "
        "mailbox.",
        path="remora/runtime/mailbox.py",
        change="""
-            gone = set(map(id, expired))
-            self._queue = deque(e for e in self._queue if id(e) not in gone)
-            for envelope in expired:
-                self._discount(envelope)
+            expired = [e for e in expired if not e.promise.abandoned]
""",
    ),
    Mutant(
        name="expired_messages_still_counted",
        guarantee="G10",
        what="What leaves a mailbox at its deadline goes on counting against the bound, until "
        "nothing is taken any more.",
        path="remora/runtime/mailbox.py",
        change="""
-            for envelope in expired:
-                self._discount(envelope)
         return expired
""",
        tests=("tests/simulation/test_kernel.py",),
    ),
    Mutant(
        name="expired_sender_never_told",
        guarantee="G10",
        what="Those that wait for room past their deadline are taken out of the line, and not "
        "told.",
        path="remora/runtime/cell.py",
        change="""
-            expired.extend(envelope for envelope in self.parked if envelope.deadline <= now)
""",
    ),
    Mutant(
        name="quarantine_never_left",
        guarantee="G11",
        what="A cell that failed too often is looked at again when its rest has begun, and not "
        "when it is over.",
        path="remora/runtime/activation.py",
        change="""
-            elif cell.quarantined_until <= now and not cell.awaiting_fence:
+            elif cell.quarantined_until < 0:
""",
        simulated=False,
        tests=(
            "tests/simulation/test_kernel.py",
            "tests/integration/test_runtime.py",
            "tests/integration/test_regressions.py",
        ),
    ),
    Mutant(
        name="clear_forgets_the_keys",
        guarantee="G4",
        what="A clear empties everything, the idempotency keys included.",
        path="remora/actors/session/state.py",
        change="""
     state.summaries = list(record.summaries)
+    state.keys = {} if record.reason == "cleared" else state.keys
""",
    ),
    Mutant(
        name="passivation_forgets_the_keys",
        guarantee="G4",
        what="What comes back from the journal has the newest keys, and takes them for all.",
        path="remora/actors/session/state.py",
        change="""
-        self.keys_complete = image.keys_complete
+        self.keys_complete = True
""",
    ),
    Mutant(
        name="lookup_outlives_the_change",
        guarantee="G4",
        what="What the journal answered is kept: a key that it did not know then is still unknown "
        "when it has been used.",
        path="remora/actors/session/state.py",
        change="""
-    if state.answers:
-        state.answers.clear()
""",
    ),
    Mutant(
        name="lookup_before_the_commit",
        guarantee="G4",
        what="The journal is asked for a key at once, while the append that brought it is still "
        "on its way there.",
        path="remora/runtime/lookups.py",
        change="""
-        if cell.clean:
-            self.ask_log(cell)
+        self.ask_log(cell)
""",
    ),
    Mutant(
        name="fallback_forgets_earlier_losses",
        guarantee="G6",
        what="A fallback summary names the messages that it has no room for; what an earlier one "
        "had lost is that one's affair.",
        path="remora/jobs/fallback.py",
        change="""
-        lost = [part for one in priors for part in find_lost(one)]
+        lost: list[MessageRange] = []
""",
    ),
    Mutant(
        name="long_summary_is_cut",
        guarantee="G6",
        what="A model that does not keep to its limit has its answer cut to it.",
        path="remora/jobs/summarize.py",
        change="""
             add_tokens(self._summarizer, given.tokens, tokens)
-            if tokens <= most:
-                return text
+            return shorten(text, most, self._counter)
""",
    ),
    Mutant(
        name="stale_summary_is_taken",
        guarantee="G5",
        what="A summary is taken whenever it comes, though the session was cleared or rewound "
        "meanwhile.",
        path="remora/actors/session/compaction.py",
        change="""
-    if result.job != expected or outdated:
+    if outdated:
""",
    ),
    Mutant(
        name="fold_applied_twice",
        guarantee="G6",
        what="A summary is stale when the session was restated since; that it is in already is "
        "nobody's business.",
        path="remora/actors/session/compaction.py",
        change="""
-    if result.job != expected or outdated:
+    if spec.generation != state.watermarks.generation or outdated:
""",
        tests=("tests/simulation/test_kernel.py",),
    ),
    Mutant(
        name="pending_left_out_of_load",
        guarantee="G6",
        what="What is being folded is not shown any more, though its summary is not there yet.",
        path="remora/actors/session/behavior.py",
        change="""
-        entries, tokens = turns.without(state, message)
+        entries, tokens = state.entries[state.pending :], state.live_tokens
""",
    ),
    Mutant(
        name="condensing_drops_all_entries",
        guarantee="G6",
        what="When the oldest summary entry goes into the running summary, the list is emptied.",
        path="remora/actors/session/state.py",
        change="""
-        state.summaries = [one for one in state.summaries if one.through > covered]
+        state.summaries = []
""",
    ),
    Mutant(
        name="rewind_keeps_the_summary",
        guarantee="G5",
        what="A rewind takes messages out of the buffer, and leaves the summary that tells of "
        "them.",
        path="remora/actors/session/state.py",
        change="""
     removed = set(record.removed)
-    state.summary = record.summary
+    state.summary = record.summary or state.summary
""",
    ),
    Mutant(
        name="load_waits_for_the_fold",
        guarantee="G5",
        what="A load waits until the summary that is being made is in, so that it shows the "
        "newest.",
        path="remora/services/contexts.py",
        change="""
+            await self._supervisor.drain(key)
             snapshot = await self._actors.ask(key, Load(budget), timeout_s=timeout_s)
""",
    ),
    Mutant(
        name="cut_splits_a_tool_call",
        guarantee="G8",
        what="A window of so many messages is cut after as many messages as are too many.",
        path="remora/actors/policies/units.py",
        change="""
     if excess <= 0:
         return 0
+    if messages:
+        return min(excess, len(entries) - 1)
""",
    ),
    Mutant(
        name="interruption_orphans_the_call",
        guarantee="G8",
        what="What is no result ends the wait for results: a user who interrupts parts the call "
        "from what it brought.",
        path="remora/actors/policies/units.py",
        change="""
-        while unit.awaiting and index < len(entries) and entries[index].role != "assistant":
+        while unit.awaiting and index < len(entries) and entries[index].role == "tool":
""",
    ),
    Mutant(
        name="budget_ignores_tool_calls",
        guarantee="G9",
        what="A message weighs what its text weighs; the calls that it makes are not text.",
        path="remora/tokens.py",
        change="""
-    for call in chat.get("tool_calls") or ():
-        texts += (call["function"]["name"], call["function"]["arguments"], call["id"])
""",
    ),
    Mutant(
        name="budget_ignores_the_summary",
        guarantee="G9",
        what="The summary is what holds the rest together, so it is shown whatever it weighs.",
        path="remora/actors/session/window.py",
        change="""
-    if summary.tokens <= room:
+    if summary.tokens <= room or room:
""",
    ),
    Mutant(
        name="job_begins_before_its_commit",
        guarantee="G7",
        what="What a turn wants done is begun when the turn has run; should its commit fail, it "
        "was done for nothing.",
        path="remora/runtime/cell.py",
        change="""
             self._host.log.write(write)
-        elif decision.jobs or decision.cancel or decision.expedite:
+        if decision.jobs or decision.cancel or decision.expedite:
~
-        if decision.jobs or decision.cancel or decision.expedite:
-            self._host.carry_out(decision)
         self._host.acknowledged(self)
""",
    ),
    Mutant(
        name="flush_job_not_journalled",
        guarantee="G7",
        what="A flush moves the mark in the journal, and its job is handed to the supervisor "
        "alone.",
        path="remora/actors/session/compaction.py",
        change="""
-    moved = BufferMoved(state.sid, watermarks, jobs=jobs)
+    moved = BufferMoved(state.sid, watermarks)
""",
    ),
    Mutant(
        name="job_done_before_its_work",
        guarantee="G7",
        what="A job's row goes when its work begins, so that nobody else takes it up.",
        path="remora/runtime/supervisor.py",
        change="""
+                await commit_records(self._log, (JobDone(job.id),))
                 return await call_guarded(queue.handler, attempt)
""",
    ),
    Mutant(
        name="resumed_job_taken_for_new",
        guarantee="G7",
        what="Only what failed in this process may have left rows behind; what a crash broke off "
        "is added as new.",
        path="remora/jobs/flush.py",
        change="""
-        may_exist = attempt.job.resumed or attempt.job.attempts > 0
+        may_exist = attempt.job.attempts > 0 and not attempt.job.resumed
""",
    ),
    Mutant(
        name="back_off_lost_in_a_crash",
        guarantee="G7",
        what="A job that is found in its back-off is known, and never put back in line.",
        path="remora/runtime/supervisor.py",
        change="""
-                self._delay(queue, job, wait_s)
+                continue
             else:
                 queue.push(job)
""",
    ),
    Mutant(
        name="unreadable_actor_leaves_its_job",
        guarantee="G7",
        what="An actor whose state is lost and cannot be read is left to its next message, and so "
        "is the job that it may have.",
        path="remora/runtime/activation.py",
        change="""
-        if cell.occupies_room or cell.key in self._lost:
+        if cell.key in self._lost:
""",
        tests=("tests/simulation/test_rare_branches.py", "tests/simulation/test_rare_jobs.py"),
    ),
    Mutant(
        name="outage_buries_the_job",
        guarantee="G7",
        what="A job that was tried often enough is buried, though its store is only down for a "
        "while.",
        path="remora/runtime/supervisor.py",
        change="""
-        last = last and not getattr(error, "retryable", False)
""",
    ),
    Mutant(
        name="expedited_job_is_lost",
        guarantee="G6",
        what="A summary that can be waited for no longer is broken off, and nobody makes the "
        "extract in its stead.",
        path="remora/runtime/supervisor.py",
        change="""
-        else:  # expedited: once more, at once
-            queue.push_first(job)
""",
    ),
    Mutant(
        name="cleared_is_flushed_no_more",
        guarantee="G7",
        what="A clear moves the flush mark past what was never handed over, and says nowhere that "
        "it is not to be there.",
        path="remora/actors/session/rewriting.py",
        change="""
-    records: list[Any] = [moved, *_never_index(state, before.indexing_through + 1, last)]
+    records: list[Any] = [moved]
""",
    ),
    Mutant(
        name="removed_stays_in_long_term_memory",
        guarantee="G7 G13",
        what="What is deleted or rewound leaves the conversation, and stays in long-term memory.",
        path="remora/actors/session/rewriting.py",
        change="""
-    indexed = removed[: bisect_right(removed, shown_through)] if rules.indexes else ()
+    indexed: tuple[int, ...] = ()
""",
    ),
    Mutant(
        name="neighbours_keep_removed_words",
        guarantee="G13",
        what="A removed message's row goes; those beside it keep its words in their windows.",
        path="remora/jobs/flush.py",
        change="""
-        if near:
+        if near and not spec.seqs:
             await self._flush(key, min(near), max(near), may_exist=True, among=near)
~
-    rows = [row_id(key, seq) for seq in (*removed, *near)]
+    rows = [row_id(key, seq) for seq in removed]
""",
    ),
    Mutant(
        name="words_beside_the_last_row_stay",
        guarantee="G13",
        what="What is removed before it was handed over is looked for nowhere; the window of the "
        "row before it has its words.",
        path="remora/actors/session/rewriting.py",
        change="""
-    shown_through = before.indexing_through + NEIGHBOURS if before.indexing_through else 0
+    shown_through = before.indexing_through
""",
        tests=("tests/simulation/test_found_by_seed.py",),
    ),
    Mutant(
        name="windows_reach_over_gaps",
        guarantee="G13",
        what="A window has the messages next to its own, whatever was removed between them; a "
        "removal looks at the next numbers.",
        path="remora/jobs/rows.py",
        change="""
-            if abs(numbers[j] - entry.seq) <= NEIGHBOURS
""",
        tests=("tests/simulation/test_found_by_seed.py",),
    ),
    Mutant(
        name="forgotten_flush_goes_on",
        guarantee="G13",
        what="What is forgotten leaves the journal; a flush of it that is under way goes on, and "
        "brings it back.",
        path="remora/services/erasure.py",
        change="""
-                    jobs = await self._supervisor.cancel_matching(matches)
+                    jobs = 0
""",
    ),
    Mutant(
        name="forgotten_stays_in_the_cache",
        guarantee="G13",
        what="What was found of a forgotten user is found again: nobody tells the caches.",
        path="remora/services/erasure.py",
        change="""
-                    bars.callback(self._forget_cached, user)
""",
    ),
    Mutant(
        name="recall_cache_mixes_users",
        guarantee="G1",
        what="What was found is kept under the question alone: the next to ask gets another "
        "user's memories.",
        path="remora/recall/index_cache.py",
        change="""
-        entry = self._answered.get(user)
+        entry = self._answered.get("")
~
-        self._answered[user] = entry
-        self._answered.move_to_end(user)
+        self._answered[""] = entry
~
-        self._answered.move_to_end(user)
-        held = self._without_index if entry.index is None else self._indexed
-        held.move_to_end(user)
         return found
""",
    ),
    Mutant(
        name="recall_serves_old_results",
        guarantee="G7",
        what="Nobody tells the searches in memory that their user has written.",
        path="remora/api/queues.py",
        change="""
-        recall.note_change(user, gone=False)
""",
    ),
    Mutant(
        name="statements_commit_one_by_one",
        guarantee="G4",
        what="There is no transaction around a commit's statements: each is durable by itself.",
        path="remora/storage/sqlite/writer.py",
        change="""
-            steps = [_BEGIN, *steps, *others, _COMMIT]
+            steps = [Step(_BEGIN.sql.partition("; ")[2]), *steps, *others]
""",
        journal="sqlite",
    ),
    Mutant(
        name="failed_sync_told_as_refusal",
        guarantee="G3 G4",
        what="A disk that fails while it syncs has stored nothing, says the journal; after a "
        "crash the commit may be there.",
        path="remora/storage/sqlite/writer.py",
        change="""
-        if name.startswith("SQLITE_IOERR") or not rolled_back:
+        if not rolled_back:
""",
        journal="sqlite",
    ),
    Mutant(
        name="sqlite_commits_fenced_writes",
        guarantee="G4",
        what="What is queued behind a commit that failed is committed all the same.",
        path="remora/storage/queueing.py",
        change="""
-        return [write for write in taken if not write.fenced and not self._refuse(write)]
+        return [write for write in taken if not self._refuse(write)]
""",
        journal="sqlite",
        tests=("tests/unit/test_journal_commits.py",),
    ),
    Mutant(
        name="commit_behind_a_failed_one",
        guarantee="G4",
        what="What was submitted behind a commit that failed is stored before its senders know.",
        path="remora/storage/sqlite/connection.py",
        change="""
-        if earlier is not None and earlier.failed:
-            raise EarlierFailed
""",
        simulated=False,
        tests=("tests/simulation/test_commits_behind.py", "tests/unit/test_commits_behind.py"),
    ),
    Mutant(
        name="commit_behind_keeps_fenced_writes",
        guarantee="G4",
        what="What was submitted behind a commit that failed is stored all the same, after it.",
        path="remora/storage/sqlite/writer.py",
        change="""
-                unfenced = [write for write in batch if not write.fenced]
+                unfenced = list(batch)
""",
        simulated=False,
        tests=("tests/simulation/test_commits_behind.py", "tests/unit/test_commits_behind.py"),
    ),
    Mutant(
        name="working_memory_evicts_the_newest",
        guarantee="G10",
        what="Working memory that is full lets go of what came last.",
        path="remora/actors/user/working.py",
        change="""
-        return [item.id for item in itertools.islice(itertools.chain(held, arriving), count)]
+        return [item.id for item in itertools.islice([*arriving, *reversed([*held])], count)]
""",
        simulated=False,
        tests=(
            "tests/unit/test_working.py",
            "tests/property/test_user_machine.py",
            "tests/unit/test_user_actor.py",
        ),
    ),
    Mutant(
        name="known_ids_only_in_memory",
        guarantee="G2",
        what="A message whose id is known is skipped, as long as the one before it has not left "
        "the buffer.",
        path="remora/actors/session/behavior.py",
        change="""
-        if state.has_ids:
+        if state.has_ids and not state.watermarks.archived_through:
""",
        simulated=False,
        tests=(
            "tests/property/test_session_machine.py",
            "tests/unit/test_messages.py",
            "tests/integration/test_buffers.py",
        ),
    ),
)

CATALOGUE: Mapping[str, Mutant] = {mutant.name: mutant for mutant in _MUTANTS}
"""All of them, by name."""
