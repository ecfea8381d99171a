"""The queues of background work, and what schedules it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from remora.actors.blocks.base import BlockServices
from remora.actors.blocks.fit import BlockView
from remora.actors.blocks.state import BlockSet
from remora.actors.policies.redaction import BackgroundHook
from remora.actors.session.compaction import (
    BLOCKS_QUEUE,
    FACTS_QUEUE,
    FLUSH_QUEUE,
    SUMMARIZE_QUEUE,
)
from remora.actors.session.messages import Flush, Inspect, SessionView
from remora.actors.user.behavior import PRUNE_QUEUE, RECORD_QUEUE
from remora.actors.user.messages import InspectUser, Synopsis, UserView
from remora.actors.user.synopsis import SYNOPSIS_QUEUE
from remora.api.options import Models, Options
from remora.config import Config
from remora.ids import SessionKey, UserKey, topic_of_fact
from remora.jobs.cleanup import WorkingMemoryCleanup
from remora.jobs.facts import FactsHandler, KnownFact
from remora.jobs.feed_blocks import BlocksHandler
from remora.jobs.flush import FlushHandler, count_new_messages
from remora.jobs.memories import RecordHandler, count_new_memories
from remora.jobs.prune import PruneHandler
from remora.jobs.rows import IndexAccess
from remora.jobs.summarize import CompactionDurations, Resummarizer, SummarizeHandler
from remora.jobs.synopsis import SynopsisHandler
from remora.logging import get_logger
from remora.models.breaker import CircuitBreaker
from remora.recall.current import CurrentMemories
from remora.recall.fit import profile_room
from remora.recall.quotes import synopsis_text
from remora.recall.recall import Recall
from remora.recall.reranking import Reranking
from remora.runtime.jobs import Gathering, JobQueue, RetryPolicy, Together
from remora.runtime.locks import SharedLocks
from remora.runtime.registry import ActorRegistry
from remora.runtime.schedule import Schedule
from remora.runtime.supervisor import Supervisor
from remora.services.appending import Instructions
from remora.services.erasure import Eraser
from remora.services.index import LongTermIndex
from remora.services.unindexed import UnindexedRows
from remora.services.upkeep import trim_archive
from remora.storage.ports import Journal, Scope
from remora.tokens import TokenCounter, count_message

_logger = get_logger(__name__)

_CHECKPOINT_S = 5.0
_PRUNE_CONCURRENCY = 2
_QUIET_S = 0.5  # without a commit: messages are indexed
_TOGETHER = 512  # messages of short sessions that are indexed as one; less than a second of work
_MEMORIES_TOGETHER = 256
_KNOWN_FACTS = 5  # near a new one, which may take the place of one of them


class Foundation(msgspec.Struct, frozen=True):
    """The kernel, the models and the index, which all builders use."""

    options: Options
    journal: Journal
    models: Models
    index: LongTermIndex
    registry: ActorRegistry
    supervisor: Supervisor
    schedule: Schedule
    retry: RetryPolicy
    durations: CompactionDurations

    def add_queue(
        self,
        name: str,
        handler: Any,
        concurrency: int,
        line: Callable[[Any], Hashable] | None = None,
        *,
        hurries: bool = True,
        gathering: Gathering | None = None,
        together: Together | None = None,
    ) -> None:
        """Have the supervisor run the jobs of this queue; see `JobQueue` for the rest."""
        queue = JobQueue(
            name,
            handler,
            concurrency=concurrency,
            retry=self.retry,
            line=line,
            owner=attrgetter("user"),
            hurries=hurries,
            gathering=gathering,
            together=together,
        )
        self.supervisor.add_queue(queue)


def add_summaries(base: Foundation) -> CircuitBreaker:
    """The queues that write summaries and synopses; returns the breaker of their model."""
    config, models, clock = base.options.config, base.models, base.options.clock
    breaker = _make_breaker(base)

    async def inspect(key: SessionKey) -> SessionView:
        view: SessionView = await base.registry.ask_control(key, Inspect())
        return view

    resummarizer = Resummarizer(base.journal, base.registry.ask_control, breaker)
    if not models.summarizer.extracts:
        every = config.supervisor.resummarize_interval_s
        base.schedule.every(every, "resummarize", resummarizer)
    summarize = SummarizeHandler(
        base.journal,
        inspect,
        models.summarizer,
        models.fallback,
        breaker=breaker,
        counter=models.counter,
        buffer=config.buffer,
        resummarizer=resummarizer,
        durations=base.durations,
        timeout_s=config.models.timeout_s,
        window=config.models.context_window,
    )
    synopsis = SynopsisHandler(
        base.journal,
        models.chat,
        models.fallback,
        clock=clock,
        breaker=breaker,
        counter=models.counter,
        max_tokens=_profile_tokens(config, models.counter),
        prompt=config.synopsis.prompt,
        timeout_s=config.models.timeout_s,
    )
    at_once = config.supervisor.summarize_concurrency
    # the quick way of a summary is to extract it
    base.add_queue(SUMMARIZE_QUEUE, summarize, at_once, hurries=not models.summarizer.extracts)
    base.add_queue(SYNOPSIS_QUEUE, synopsis, config.supervisor.summarize_concurrency)
    return breaker


def _make_breaker(base: Foundation) -> CircuitBreaker:
    options = base.options.config.supervisor
    return CircuitBreaker(
        base.options.clock, failures=options.breaker_failures, rest_s=options.breaker_rest_s
    )


def _make_reranking(base: Foundation) -> Reranking | None:
    reranker = base.models.reranker
    if reranker is None:
        return None
    deadline_s = base.options.config.recall.rerank_deadline_s
    return Reranking(reranker, base.options.clock, _make_breaker(base), deadline_s=deadline_s)


def _profile_tokens(config: Config, counter: TokenCounter) -> int:
    """Longest user profile, so that its message has its share of a context."""
    share = profile_room(config.buffer.token_limit)
    head = synopsis_text(Synopsis("-", "-", "ok"))
    room = share - count_message(counter, {"role": config.context.quoted_role, "content": head})
    return max(min(config.synopsis.max_tokens, room), 1)


def schedule_upkeep(base: Foundation) -> None:
    """Schedule the upkeep that runs with or without long-term memory."""
    config, every = base.options.config, base.schedule.every
    every(_CHECKPOINT_S, "checkpoint", base.journal.checkpoint)
    keep = config.retention
    if keep.age_days or keep.session_messages or keep.total_mb:
        trim = partial(trim_archive, base.journal, keep, base.options.clock)
        every(keep.interval_s, "retention", trim)
    cleanup = WorkingMemoryCleanup(base.registry, int(config.working.max_memory_mb * (1 << 20)))
    every(config.working.fifo_interval_min * 60, "fifo_cleanup", cleanup)


def add_long_term(
    base: Foundation, writers: SharedLocks, eraser: Eraser, instructions: Instructions | None
) -> Recall:
    """Recall, and the queues that write to long-term memory.

    Args:
        base: what they are built on.
        writers: of users.
        eraser: admits users.
        instructions: of users; None where none are noticed.
    """
    options, config, models = base.options, base.options.config, base.models
    index, store = base.index, base.index.store

    def admit(user: str) -> None:
        eraser.admit(user)

    async def inspect(key: UserKey) -> UserView:
        view: UserView = await base.registry.ask_control(key, InspectUser(), keeps_alive=False)
        return view

    def note_changed(user: str) -> None:
        recall.note_change(user, gone=False)
        index.note_change(user, gone=False)
        if instructions is not None:
            instructions.note_change(user)

    access = IndexAccess(
        base.journal,
        store,
        models.embedder,
        options.redact_long_term,
        note_changed,
        lambda user: recall.note_change(user, gone=True),
        writers,
        language=config.long_term.language,
    )
    recall = Recall(
        store,
        models.cached,
        config.recall,
        importance_weight=config.importance.weight,
        admit=admit,
        unindexed=_unindexed_rows(base, access) if config.recall.unindexed_rows else None,
        current=CurrentMemories(
            base.journal, None if instructions is None else instructions.withdrawn
        ),
        reranking=_make_reranking(base),
        now=options.clock.time,
    )
    flush = FlushHandler(
        access,
        models.counter,
        window_chars=config.long_term.window_chars,
        batch_tokens=config.buffer.token_flush_size,
        tell=base.registry.ask_control,
    )
    record = RecordHandler(access)
    prune = PruneHandler(
        access,
        inspect,
        now=options.clock.time,
        importance=config.importance,
    )
    at_once = config.supervisor.flush_concurrency
    gathering = _gathering(config)
    base.add_queue(
        FLUSH_QUEUE,
        flush,
        at_once,
        gathering=gathering,
        # a hook may fail for one text, and is asked on the event loop
        together=Together(count_new_messages, _TOGETHER, flush.index_together)
        if gathering and access.redact is None
        else None,
    )
    memories = Together(count_new_memories, _MEMORIES_TOGETHER, record.index_together)
    base.add_queue(RECORD_QUEUE, record, at_once, together=memories)
    index.serve(base.registry, flush, record, base.retry)
    base.add_queue(PRUNE_QUEUE, prune, _PRUNE_CONCURRENCY)
    every, long_term = base.schedule.every, config.long_term
    if long_term.max_user_rows or long_term.prune == "age":
        every(long_term.prune_interval_s, "prune", partial(index.prune, base.registry.ask_control))
    every(long_term.compact_interval_s, "compact", index.compact)
    return recall


def _gathering(config: Config) -> Gathering | None:
    """When jobs begin that index messages; None for at once: what waits would not be recalled."""
    unindexed = config.recall.unindexed_rows
    if not unindexed:
        return None
    return Gathering(
        size=count_new_messages,
        most=config.long_term.batch_rows,
        most_of_owner=unindexed // 2,
        age_s=config.long_term.gather_s,
        quiet_s=_QUIET_S,
    )


def extracts_facts(config: Config, models: Models) -> bool:
    """Return whether facts are extracted: if that is switched on, and there is what it needs."""
    return config.facts.enabled and config.long_term.enabled and models.chat is not None


def add_facts(
    base: Foundation, recall: Recall | None, breaker: CircuitBreaker
) -> FactsHandler | None:
    """The queue that extracts facts; None if they are not extracted."""
    options, config, models = base.options, base.options.config, base.models
    if not extracts_facts(config, models):
        if config.facts.enabled:
            _logger.warning("facts_not_extracted", chat_model=models.chat is not None)
        return None
    assert recall is not None
    assert models.chat is not None
    scope = Scope(types=("fact",))

    async def find_known(user: str, text: str) -> Sequence[KnownFact]:
        found = await recall(user, text, limit=_KNOWN_FACTS, scope=scope)
        return [
            KnownFact(topic_of_fact(one.id), one.text, int(one.created_at.timestamp() * 1_000_000))
            for one in found
            if one.sources
        ]

    facts = FactsHandler(
        base.journal,
        models.chat,
        tell=base.registry.ask_control,
        find_known=find_known,
        config=config.facts,
        breaker=breaker,
        counter=models.counter,
        batch_tokens=config.buffer.token_flush_size,
        redact=None if options.redact is None else BackgroundHook(options.redact),
        redact_long_term=options.redact_long_term,
        timeout_s=config.models.timeout_s,
    )
    base.add_queue(
        FACTS_QUEUE,
        facts,
        config.supervisor.summarize_concurrency,
        line=attrgetter("user"),  # each job finds the facts that the one before it recorded
    )
    return facts


def _unindexed_rows(base: Foundation, access: IndexAccess) -> UnindexedRows:
    config = base.options.config
    return UnindexedRows(
        access,
        base.registry.quota,
        base.supervisor.has_jobs,
        lambda key: base.registry.post(key, Flush()),
        base.models.counter,
        window_chars=config.long_term.window_chars,
        limit=config.recall.unindexed_rows,
    )


def add_blocks(base: Foundation) -> BlockView | None:
    """Memory blocks, and the queue that shows them messages."""
    options, config, models = base.options, base.options.config, base.models
    if options.blocks is None:
        return None
    store = base.index.store if config.long_term.enabled else None

    def services(key: SessionKey) -> BlockServices:
        return BlockServices(
            key.user, key.session, models.counter, models.chat, models.embedder, store
        )

    blocks = BlockSet(options.blocks, services)
    feed = BlocksHandler(
        base.journal,
        base.registry.ask_control,
        blocks,
        batch_tokens=config.buffer.token_flush_size,
        redact=options.redact_long_term,
    )
    # as many at once as summaries: blocks wait for the chat model as well
    base.add_queue(
        BLOCKS_QUEUE,
        feed,
        config.supervisor.summarize_concurrency,
        line=lambda key: key,  # a session's next job finds the states that this one leaves
    )
    return BlockView(
        blocks,
        count=partial(count_message, models.counter),
        method=config.context.insert_method,
        tail_role=config.context.quoted_role,
        timeout_s=config.context.block_timeout_s,
    )
