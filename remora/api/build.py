"""The composition root: makes the parts of a runtime from what the application passed to it."""

from __future__ import annotations

import importlib
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import anyio.to_thread
import msgspec

from remora.actors.blocks.base import BlockServices, BlocksLike, block_name
from remora.actors.blocks.fit import BlockView
from remora.actors.blocks.state import BlockSet
from remora.actors.blocks.vector import VectorMemoryBlock
from remora.actors.kinds import ByKind
from remora.actors.policies.buffer import PolicyLike, resolve_policy
from remora.actors.policies.summary import DEFAULT_PROMPT, ChatSummarizer
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.compaction import BLOCKS_QUEUE, FLUSH_QUEUE, SUMMARIZE_QUEUE
from remora.actors.session.messages import Inspect, SessionView
from remora.actors.user.behavior import PRUNE_QUEUE, RECORD_QUEUE, UserBehavior
from remora.actors.user.messages import (
    InspectUser,
    ReadSynopsis,
    ScoredItem,
    SearchWorking,
    Synopsis,
    UserView,
)
from remora.actors.user.synopsis import SYNOPSIS_QUEUE
from remora.api.dead_letters import DeadLetters
from remora.api.transfers import LocalTransfers
from remora.config import Config
from remora.ids import SessionKey, UserKey
from remora.jobs.cleanup import WorkingMemoryCleanup
from remora.jobs.feed_blocks import BlocksHandler
from remora.jobs.flush import FlushHandler
from remora.jobs.memories import RecordHandler
from remora.jobs.prune import PruneHandler
from remora.jobs.summarize import SummarizeHandler
from remora.jobs.synopsis import SynopsisHandler
from remora.messages import ChatDict, without_surrogates
from remora.models.breaker import CircuitBreaker
from remora.models.cache import CachingEmbedder
from remora.models.compression import CompressionMeter, LeadSummarizer, TailSummarizer
from remora.models.extractive import ExtractiveSummarizer
from remora.models.ports import ChatModel, Embedder, Summarizer, embed_texts, embedder_name
from remora.recall.gather import Tiers
from remora.recall.planner import Planner
from remora.recall.recall import Recall
from remora.runtime.actor import Decision
from remora.runtime.clock import Clock
from remora.runtime.locks import SharedLocks
from remora.runtime.registry import ActorRegistry, RegistryLimits
from remora.runtime.schedule import Schedule
from remora.runtime.supervisor import Lane, RetryPolicy, Supervisor
from remora.services.archive import LocalArchive
from remora.services.contexts import LocalContexts
from remora.services.erasure import Eraser
from remora.services.index import LongTermIndex
from remora.services.intake import Intake
from remora.services.parts import Parts, TransferParts
from remora.services.preload import preload
from remora.services.recalls import LocalRecalls
from remora.services.upkeep import trim_archive
from remora.services.work import LocalWork
from remora.storage.ports import Journal, LongTermStore
from remora.tokens import HeuristicCounter, TiktokenCounter, TokenCounter, count_message

__all__ = ["Internals", "JournalLike", "Options", "build"]

_CHECKPOINT_S = 5.0
_PRUNE_CONCURRENCY = 2

JournalLike: TypeAlias = Journal | Callable[[], Awaitable[Journal]]
"""A journal, or what opens one."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the application passed to `remora.Runtime`, checked; see there."""

    path: Path | None
    config: Config
    chat_model: ChatModel | None
    summarizer: Summarizer | None
    embedder: Embedder | None
    store: LongTermStore | None
    counter: TokenCounter | None
    policy: PolicyLike
    blocks: BlocksLike | None
    redact: Callable[[str], str] | None
    redact_long_term: Callable[[str], str] | None
    reembed: bool
    scorer: Callable[[ChatDict], float] | None
    journal: JournalLike | None
    clock: Clock
    rng: random.Random


class Internals(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an open runtime, for tests, tools and benchmarks: not a public interface.

    Attributes:
        parts: what handles use.
        meters: one for each summarizer.
        recall: None if long-term memory is switched off.
        embedder: None if there is none.
    """

    config: Config
    clock: Clock
    journal: Journal
    registry: ActorRegistry
    supervisor: Supervisor
    schedule: Schedule
    dead_letters: DeadLetters
    eraser: Eraser
    index: LongTermIndex
    recall: Recall | None
    planner: Planner
    counter: TokenCounter
    embedder: CachingEmbedder | None
    meters: tuple[CompressionMeter, ...]
    parts: Parts
    transfers: LocalTransfers

    async def long_term(self) -> LongTermStore:
        """The long-term store, opened at first use.

        Raises:
            LongTermError: it cannot be opened; the next call tries again.
        """
        return await self.index.store()


class _Models(msgspec.Struct, frozen=True):
    counter: TokenCounter
    chat: ChatModel | None
    embedder: Embedder | None
    cached: CachingEmbedder | None
    summarizer: CompressionMeter
    fallback: CompressionMeter


class _Base(msgspec.Struct, frozen=True):
    """What the builders have in common."""

    options: Options
    journal: Journal
    models: _Models
    index: LongTermIndex
    registry: ActorRegistry
    supervisor: Supervisor
    schedule: Schedule
    retry: RetryPolicy

    def add_queue(self, name: str, handler: Any, concurrency: int) -> None:
        """Have the supervisor run the jobs of this queue."""
        self.supervisor.add_lane(Lane(name, handler, concurrency=concurrency, retry=self.retry))


async def build(options: Options, journal: Journal, closers: list[Callable[[], Any]]) -> Internals:
    """Make the parts; nothing runs yet.

    Args:
        options: what the application chose.
        journal: open.
        closers: gets what must be called at the end, also if this fails.
    """
    config = options.config
    models = await _build_models(options, closers)
    index = LongTermIndex(
        journal,
        config,
        options.path,
        given=options.store,
        embedder=models.embedder,
        clock=options.clock,
        rng=options.rng,
    )
    closers.append(index.aclose)
    if config.long_term.enabled:
        await index.prepare(reembed=options.reembed)
    registry, supervisor = _build_kernel(
        options, journal, models, await _choose_recount(journal, models.counter)
    )
    base = _Base(
        options,
        journal,
        models,
        index,
        registry,
        supervisor,
        Schedule(options.clock),
        _retry_policy(config),
    )
    _add_summaries(base)
    _schedule_upkeep(base)
    writers = SharedLocks()
    caches: list[Callable[[str], None]] = []
    eraser = _build_eraser(base, writers, caches)
    eraser.resume(await journal.erasures())
    recall = _add_long_term(base, writers, eraser) if config.long_term.enabled else None
    planner = _build_planner(base, recall, _add_blocks(base))
    caches.extend([planner.forget, partial(index.changed, gone=True)])
    if recall is not None:
        caches.append(partial(recall.changed, gone=True))
    if (cached := models.cached) is not None:
        caches.append(lambda _: cached.clear())  # it does not keep whose text each one was
    return _build_internals(base, eraser, recall, planner)


# -- models ----------------------------------------------------------------------------------------


async def _build_models(options: Options, closers: list[Callable[[], Any]]) -> _Models:
    # in threads: a model's module may import half a framework
    in_thread = anyio.to_thread.run_sync
    counter = options.counter
    if counter is None:
        counter = await in_thread(_make_counter, options.config)
    chat = await in_thread(_make_chat_model, options, closers)
    embedder = await in_thread(_make_embedder, options, closers)
    cached = None
    if embedder is not None:
        cached = CachingEmbedder(embedder, size=options.config.working.embedding_cache)
    fallback = CompressionMeter(ExtractiveSummarizer(counter.count), counter.count)
    chosen = _choose_summarizer(options, counter, chat)
    summarizer = fallback if chosen is None else CompressionMeter(chosen, counter.count)
    return _Models(counter, chat, embedder, cached, summarizer, fallback)


def _make_counter(config: Config) -> TokenCounter:
    tokens = config.tokens
    media = {
        "image_url": tokens.image_tokens,
        "input_audio": tokens.audio_tokens,
        "file": tokens.file_tokens,
    }
    if tokens.counter == "heuristic":
        return HeuristicCounter(tokens.unit, media_tokens=media)
    return TiktokenCounter(tokens.encoding, media_tokens=media)


def _make_openai(kind: str, config: Config, closers: list[Callable[[], Any]]) -> Any:
    model = getattr(importlib.import_module("remora.models.openai"), kind)(config.models)
    closers.append(model.aclose)
    return model


def _make_chat_model(options: Options, closers: list[Callable[[], Any]]) -> ChatModel | None:
    preload()  # a runtime in memory has not done it yet
    chat = options.chat_model
    if chat is None and options.config.models.summarizer == "openai":
        chat = _make_openai("OpenAIChatModel", options.config, closers)
    return chat


def _make_embedder(options: Options, closers: list[Callable[[], Any]]) -> Embedder | None:
    embedder = options.embedder
    if embedder is None and options.config.models.embedder == "openai":
        embedder = _make_openai("OpenAIEmbedder", options.config, closers)
    elif embedder is None and options.config.models.embedder == "wordllama":
        embedder = importlib.import_module("remora.models.static").WordLlamaEmbedder()
    return embedder


def _choose_summarizer(
    options: Options, counter: TokenCounter, chat: ChatModel | None
) -> Summarizer | None:
    """None for the extract that is the fallback as well."""
    models = options.config.models
    if options.summarizer is not None:
        return options.summarizer
    if chat is not None:
        return ChatSummarizer(chat, prompt=models.summary_prompt or DEFAULT_PROMPT)
    if models.summarizer == "lead":
        return LeadSummarizer(counter.count)
    if models.summarizer == "tail":
        return TailSummarizer(counter.count)
    return None


async def _choose_recount(
    journal: Journal, counter: TokenCounter
) -> Callable[[ChatDict], int] | None:
    """What counts stored messages again: their rows hold another counter's figures (G9)."""
    name = str(getattr(counter, "name", type(counter).__qualname__))
    if await journal.init_setting("counter", name) != name:
        await journal.init_setting("counters", "several")
    return partial(count_message, counter) if await journal.setting("counters") else None


# -- kernel ----------------------------------------------------------------------------------------


def _build_kernel(
    options: Options,
    journal: Journal,
    models: _Models,
    recount: Callable[[ChatDict], int] | None,
) -> tuple[ActorRegistry, Supervisor]:
    config = options.config
    sessions = SessionBehavior(
        partial(resolve_policy, options.policy),
        instance=journal.instance,
        flushes=config.long_term.enabled,
        blocks=options.blocks is not None,
        recount=recount,
    )
    users = UserBehavior(
        models.embedder.dimension if models.embedder else None,
        embedder=embedder_name(models.embedder),
        max_bytes=_working_bytes(config),
        identity_ttl=config.synopsis.identity_ttl,
        context_ttl=config.synopsis.context_ttl,
        refresh_on_access=config.synopsis.refresh_on_access,
    )

    def carry_out(decision: Decision) -> None:
        supervisor.cancel(decision.cancel)
        supervisor.submit(decision.jobs)
        supervisor.expedite(decision.expedite)

    registry = ActorRegistry(
        ByKind(sessions, users),
        journal,
        options.clock,
        _registry_limits(config),
        carry_out,
        attrgetter("user"),
    )
    supervisor = Supervisor(journal, registry.tell, options.clock, options.rng)
    return registry, supervisor


def _registry_limits(config: Config) -> RegistryLimits:
    mailbox, activation = config.mailbox, config.activation
    return RegistryLimits(
        mailbox_messages=mailbox.max_messages,
        mailbox_bytes=mailbox.max_bytes,
        total_bytes=mailbox.max_total_bytes,
        share_writes=mailbox.share_writes,
        wait_when_full=mailbox.when_full == "wait",
        timeout_s=mailbox.timeout_s,
        idle_s=activation.idle_s,
        max_live=activation.max_live,
        max_bytes=activation.max_bytes,
    )


def _retry_policy(config: Config) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=config.supervisor.max_attempts,
        backoff_s=config.supervisor.backoff_s,
        max_backoff_s=config.supervisor.max_backoff_s,
        jitter=config.supervisor.jitter,
    )


def _working_bytes(config: Config) -> int:
    return int(config.working.max_memory_mb * (1 << 20))


# -- background work -------------------------------------------------------------------------------


def _add_summaries(base: _Base) -> None:
    """The queues that write summaries and synopses."""
    config, models, clock = base.options.config, base.models, base.options.clock
    breaker = CircuitBreaker(
        clock, failures=config.supervisor.breaker_failures, rest_s=config.supervisor.breaker_rest_s
    )

    async def look(key: SessionKey) -> SessionView:
        view: SessionView = await base.registry.tell(key, Inspect())
        return view

    summarize = SummarizeHandler(
        base.journal,
        look,
        models.summarizer,
        models.fallback,
        breaker=breaker,
        counter=models.counter,
        max_tokens=config.buffer.summary_tokens,
        prefix=config.buffer.summary_prefix,
        timeout_s=config.models.timeout_s,
    )
    synopsis = SynopsisHandler(
        base.journal,
        models.chat,
        models.fallback,
        clock=clock,
        breaker=breaker,
        counter=models.counter,
        max_tokens=config.synopsis.max_tokens,
        prompt=config.synopsis.prompt,
        timeout_s=config.models.timeout_s,
    )
    base.add_queue(SUMMARIZE_QUEUE, summarize, config.supervisor.summarize_concurrency)
    base.add_queue(SYNOPSIS_QUEUE, synopsis, config.supervisor.summarize_concurrency)


def _schedule_upkeep(base: _Base) -> None:
    config, every = base.options.config, base.schedule.every
    every(_CHECKPOINT_S, "checkpoint", base.journal.checkpoint)
    keep = config.retention
    if keep.age_days or keep.session_messages or keep.total_mb:
        trim = partial(trim_archive, base.journal, keep, base.options.clock)
        every(keep.interval_s, "retention", trim)
    cleanup = WorkingMemoryCleanup(base.registry, _working_bytes(config))
    every(config.working.fifo_interval_min * 60, "fifo_cleanup", cleanup)


def _build_eraser(
    base: _Base, writers: SharedLocks, caches: Sequence[Callable[[str], None]]
) -> Eraser:
    def forget_cached(user: str) -> None:
        for forget in caches:
            forget(user)

    return Eraser(
        base.journal,
        base.registry,
        base.supervisor,
        stores=base.index.open_all_stores,
        alone=writers.alone,
        forget_cached=forget_cached,
        withdraw_rebuild=base.index.withdraw,
        clock=base.options.clock,
        retry=base.retry,
        rng=base.options.rng,
    )


def _add_long_term(base: _Base, writers: SharedLocks, eraser: Eraser) -> Recall:
    """Recall, and the queues that write to long-term memory."""
    options, config, models = base.options, base.options.config, base.models
    index, store = base.index, base.index.store
    recall = Recall(
        store,
        models.cached,
        config.recall,
        importance_weight=config.importance.weight,
        admit=eraser.admit,
    )

    def note_written(user: str) -> None:
        recall.changed(user, gone=False)
        index.changed(user, gone=False)

    async def look(key: UserKey) -> UserView:
        view: UserView = await base.registry.tell(key, InspectUser(), keeps_alive=False)
        return view

    flush = FlushHandler(
        base.journal,
        store,
        models.embedder,
        models.counter,
        window_chars=config.long_term.window_chars,
        batch_tokens=config.buffer.token_flush_size,
        redact=options.redact_long_term,
        written=note_written,
        users=writers,
    )
    record = RecordHandler(
        base.journal,
        store,
        models.embedder,
        redact=options.redact_long_term,
        written=note_written,
        users=writers,
    )
    prune = PruneHandler(
        base.journal,
        store,
        look,
        now=options.clock.time,
        importance=config.importance,
        written=partial(recall.changed, gone=True),
        users=writers,
    )
    base.add_queue(FLUSH_QUEUE, flush, config.supervisor.flush_concurrency)
    base.add_queue(RECORD_QUEUE, record, config.supervisor.flush_concurrency)
    index.serve(base.registry, flush, record, base.retry)
    base.add_queue(PRUNE_QUEUE, prune, _PRUNE_CONCURRENCY)
    every, long_term = base.schedule.every, config.long_term
    if long_term.max_user_rows or long_term.prune == "age":
        every(long_term.prune_interval_s, "prune", partial(index.prune, base.registry.tell))
    every(long_term.compact_interval_s, "compact", index.compact)
    return recall


def _add_blocks(base: _Base) -> BlockView | None:
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
        base.registry.tell,
        blocks,
        batch_tokens=config.buffer.token_flush_size,
        redact=options.redact_long_term,
    )
    # as many at once as summaries: blocks wait for the chat model as well
    base.add_queue(BLOCKS_QUEUE, feed, config.supervisor.summarize_concurrency)
    return BlockView(
        blocks,
        count=partial(count_message, models.counter),
        method=config.context.insert_method,
        timeout_s=config.context.block_timeout_s,
    )


# -- what handles use ------------------------------------------------------------------------------


def _build_planner(base: _Base, recall: Recall | None, blocks: BlockView | None) -> Planner:
    config, cached = base.options.config, base.models.cached

    async def search_working(user: str, session: str, query: str) -> Sequence[ScoredItem]:
        assert cached is not None
        (vector,) = await embed_texts(cached, [without_surrogates(query)])
        message = SearchWorking(vector, config.working.k, session)
        found: Sequence[ScoredItem] = await base.registry.tell(UserKey(user), message)
        return found

    async def read_synopsis(user: str) -> Synopsis:
        message = ReadSynopsis(base.options.clock.time())
        synopsis: Synopsis = await base.registry.tell(UserKey(user), message)
        return synopsis

    tiers = Tiers(
        recall=recall,
        working=search_working if cached is not None else None,
        synopsis=read_synopsis,
        blocks=blocks,
    )
    return Planner(tiers, base.models.counter, config)


def _build_internals(
    base: _Base, eraser: Eraser, recall: Recall | None, planner: Planner
) -> Internals:
    options, models = base.options, base.models
    config, clock = options.config, options.clock
    journal, registry, supervisor = base.journal, base.registry, base.supervisor
    intake = Intake(
        config.buffer, models.counter, clock, options.redact, options.scorer, models.cached
    )
    recalls = None
    if recall is not None:
        recalls = LocalRecalls(recall, registry, journal, supervisor, models.embedder, clock)
    indexed_blocks = partial(_indexed_blocks, options.blocks)
    transfers = LocalTransfers(TransferParts(journal, registry, intake, indexed_blocks))
    parts = Parts(
        config=config,
        instance=journal.instance,
        intake=intake,
        actors=registry,
        contexts=LocalContexts(
            registry, journal, planner, supervisor, clock, config.mailbox.timeout_s
        ),
        archive=LocalArchive(journal, registry, recall, models.cached),
        recalls=recalls,
        work=LocalWork(supervisor, eraser),
        transfers=transfers,
    )
    return Internals(
        config=config,
        clock=clock,
        journal=journal,
        registry=registry,
        supervisor=supervisor,
        schedule=base.schedule,
        dead_letters=DeadLetters(journal, supervisor),
        eraser=eraser,
        index=base.index,
        recall=recall,
        planner=planner,
        counter=models.counter,
        embedder=models.cached,
        meters=(models.fallback, models.summarizer),
        parts=parts,
        transfers=transfers,
    )


def _indexed_blocks(blocks: BlocksLike | None, key: SessionKey) -> Collection[str]:
    """Names of the session's memory blocks whose rows can be made again from the journal."""
    if blocks is None:
        return ()
    of_session = blocks(key) if callable(blocks) else blocks
    return {
        block_name(one)
        for one in of_session
        if isinstance(one, VectorMemoryBlock) and one.vector_store is None
    }
