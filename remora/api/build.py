"""The composition root: makes the parts of a runtime from what the application passed to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from remora.actors.blocks.base import BlocksLike, block_name
from remora.actors.blocks.fit import BlockView
from remora.actors.blocks.vector import VectorMemoryBlock
from remora.actors.policies.buffer import resolve_policy
from remora.actors.session.behavior import SessionBehavior
from remora.actors.user.behavior import UserBehavior
from remora.actors.user.messages import (
    ReadSynopsis,
    ScoredItem,
    ScoredItems,
    SearchWorking,
    Synopsis,
)
from remora.actors.user.working import pack_vector
from remora.api.dead_letters import DeadLetters
from remora.api.options import Models, Options, build_models
from remora.api.queues import (
    Foundation,
    add_blocks,
    add_facts,
    add_long_term,
    add_summaries,
    extracts_facts,
    schedule_upkeep,
)
from remora.config import Config
from remora.errors import RuntimeClosed
from remora.ids import SessionKey, UserKey
from remora.jobs.facts import FactsHandler
from remora.jobs.summarize import CompactionDurations
from remora.languages.patterns import compile_patterns
from remora.logging import get_logger
from remora.messages import ChatDict, without_surrogates
from remora.models.breaker import CircuitBreaker
from remora.models.cache import CachingEmbedder
from remora.models.compression import CompressionMeter
from remora.models.ports import embed_texts, embedder_name
from remora.recall.excerpts import window_rules
from remora.recall.gather import Tiers
from remora.recall.planner import Planner
from remora.recall.recall import Recall
from remora.runtime.actor import Decision
from remora.runtime.clock import Clock
from remora.runtime.concurrency import Progress, run_to_end
from remora.runtime.jobs import RetryPolicy
from remora.runtime.locks import SharedLocks
from remora.runtime.passivation import RegistryLimits
from remora.runtime.registry import ActorRegistry
from remora.runtime.schedule import Schedule
from remora.runtime.shared_call import SharedCall
from remora.runtime.supervisor import Supervisor
from remora.runtime.threads import CallingThread, asyncio_loop, run_in_thread
from remora.services.appending import Instructions, LocalAppends
from remora.services.archive import LocalArchive
from remora.services.computing import shared_process
from remora.services.contexts import LocalContexts, read_synopsis
from remora.services.deleting import DeletionReceipt, DeletionRequest
from remora.services.erasure import Eraser, ErasureReceipt
from remora.services.index import LongTermIndex
from remora.services.intake import CountingThread, Intake, attachment_limits
from remora.services.meters import VerbMeters
from remora.services.parts import Parts, TransferParts
from remora.services.recalls import LocalRecalls
from remora.services.turns import LocalTurns
from remora.storage.export.transfer import SessionExport, TransferReport
from remora.storage.lance.allocators import return_free_memory
from remora.storage.ports import Journal, LongTermStore
from remora.tokens import BatchCounter, TokenCounter, count_message

# -- waiting for background work, and erasing what it works on -------------------------------------


class LocalWork:
    """Background work in this process."""

    def __init__(self, supervisor: Supervisor, eraser: Eraser) -> None:
        self._supervisor = supervisor
        self._eraser = eraser

    async def drain(self, key: SessionKey | UserKey) -> None:
        """See `remora.Session.settle`."""
        await self._supervisor.drain(key)

    async def forget(self, user: str, session: str | None = None) -> ErasureReceipt:
        """See `remora.User.forget`."""
        return await self._eraser.forget(user, session)

    async def delete(self, request: DeletionRequest) -> DeletionReceipt:
        """See `remora.User.delete`."""
        self._eraser.admit(request.user)
        return await self._eraser.deletions.delete(request)


_logger = get_logger(__name__)
_IDLE_CHECK_S = 15.0  # of the process that computes


class Internals(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an open runtime, for tests, tools and benchmarks: not a public interface.

    Attributes:
        parts: what handles use.
        meters: one for each summarizer.
        recall: None if long-term memory is switched off.
        embedder: None if there is none.
        warm_up: loads what the first recall needs.
        facts: None if facts are not extracted.
        breaker: of the chat model.
        compactions: how long the newest took.
        verbs: count appends, loads and recalls.
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
    warm_up: SharedCall[None]
    facts: FactsHandler | None
    breaker: CircuitBreaker
    compactions: CompactionDurations
    verbs: VerbMeters
    meters: tuple[CompressionMeter, ...]
    parts: Parts
    transfers: LocalTransfers
    turns: LocalTurns

    async def long_term(self) -> LongTermStore:
        """The long-term store, opened at first use.

        Raises:
            LongTermError: it cannot be opened; the next call tries again.
        """
        return await self.index.store()


async def build(options: Options, journal: Journal, closers: list[Callable[[], Any]]) -> Internals:
    """Make the parts; nothing runs yet.

    Args:
        options: what the application chose.
        journal: open.
        closers: gets what must be called at the end, also if this fails.
    """
    config = options.config
    models = await build_models(options, closers)
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
    base = Foundation(
        options,
        journal,
        models,
        index,
        registry,
        supervisor,
        Schedule(options.clock),
        _retry_policy(config),
        CompactionDurations(),
    )
    if config.background.process == "auto":
        shared_process.join()
        closers.append(shared_process.leave)
        base.schedule.every(_IDLE_CHECK_S, "computing", shared_process.end_if_idle)
    breaker = add_summaries(base)
    schedule_upkeep(base)
    writers = SharedLocks()
    caches: list[Callable[[str], None]] = []
    eraser = _build_eraser(base, writers, caches)
    await eraser.resume()
    instructions = _build_instructions(base)
    recall = None
    if config.long_term.enabled:
        recall = add_long_term(base, writers, eraser, instructions)
    facts = add_facts(base, recall, breaker)
    warm_up = SharedCall(partial(_load_parts, base))
    planner = _build_planner(base, warm_up, recall, add_blocks(base), instructions)
    if instructions is not None:
        caches.append(instructions.note_change)
    caches.extend([planner.forget, partial(index.note_change, gone=True)])
    if recall is not None:
        caches.append(partial(recall.note_change, gone=True))
    if (cached := models.cached) is not None:
        caches.append(lambda _: cached.clear())  # it does not keep whose text each one was
    counting = _build_counting(base)
    closers.append(counting.aclose)
    return _build_internals(
        base, eraser, recall, planner, warm_up, facts, breaker, counting, instructions
    )


# -- kernel ----------------------------------------------------------------------------------------


def _build_kernel(
    options: Options,
    journal: Journal,
    models: Models,
    recount: Callable[[ChatDict], int] | None,
) -> tuple[ActorRegistry, Supervisor]:
    config = options.config
    sessions = SessionBehavior(
        partial(resolve_policy, options.policy),
        instance=journal.instance,
        flushes=config.long_term.enabled,
        blocks=options.blocks is not None,
        recount=recount,
        repairs=not models.summarizer.extracts,
        facts=extracts_facts(config, models),
        windows=window_rules(config, models.counter),
        token_limit=config.buffer.token_limit,
    )
    users = UserBehavior(
        models.embedder.dimension if models.embedder else None,
        embedder=embedder_name(models.embedder),
        max_bytes=int(config.working.max_memory_mb * (1 << 20)),
        identity_ttl=config.synopsis.identity_ttl,
        context_ttl=config.synopsis.context_ttl,
        refresh_on_access=config.synopsis.refresh_on_access,
    )

    def carry_out(decision: Decision) -> None:
        supervisor.cancel(decision.cancel)
        supervisor.submit(decision.jobs)
        supervisor.expedite(decision.expedite)
        if decision.urgent:
            supervisor.begin_gathered()

    registry = ActorRegistry(
        {SessionKey: sessions, UserKey: users},
        journal,
        options.clock,
        _registry_limits(config),
        carry_out,
        attrgetter("user"),
    )
    elsewhere = shared_process.call if config.background.process == "auto" else None
    supervisor = Supervisor(
        journal, registry.ask_control, options.clock, options.rng, elsewhere=elsewhere
    )
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


def _build_eraser(
    base: Foundation, writers: SharedLocks, caches: Sequence[Callable[[str], None]]
) -> Eraser:
    def forget_cached(user: str) -> None:
        for forget in caches:
            forget(user)

    return Eraser(
        base.journal,
        base.registry,
        base.supervisor,
        stores=base.index.open_all_stores,
        alone=writers.exclusive,
        forget_cached=forget_cached,
        withdraw_rebuild=base.index.withdraw,
        clock=base.options.clock,
        retry=base.retry,
        rng=base.options.rng,
        retention=base.options.config.retention,
    )


async def _choose_recount(
    journal: Journal, counter: TokenCounter
) -> Callable[[ChatDict], int] | None:
    """Return what counts stored messages again: their rows hold another counter's figures."""
    name = str(getattr(counter, "name", type(counter).__qualname__))
    if await journal.init_setting("counter", name) != name:
        await journal.init_setting("counters", "several")
    return partial(count_message, counter) if await journal.setting("counters") else None


# -- what handles use ------------------------------------------------------------------------------


def _build_instructions(base: Foundation) -> Instructions | None:
    """Return what notices instructions; None where they are switched off."""
    config = base.options.config
    if not config.long_term.enabled or not config.context.instructions_share:
        return None
    return Instructions(
        base.journal,
        base.registry.ask_control,
        base.models.counter,
        base.options.redact_long_term,
    )


def _build_planner(
    base: Foundation,
    warm_up: SharedCall[None],
    recall: Recall | None,
    blocks: BlockView | None,
    instructions: Instructions | None,
) -> Planner:
    config, cached = base.options.config, base.models.cached

    async def search_working(user: str, session: str, query: str) -> Sequence[ScoredItem]:
        assert cached is not None
        (vector,) = await embed_texts(cached, [without_surrogates(query)])
        message = SearchWorking(pack_vector(vector), config.working.limit, session)
        found: ScoredItems = await base.registry.ask_control(UserKey(user), message)
        return found.items

    async def show_synopsis(user: str) -> Synopsis:
        request = ReadSynopsis(base.options.clock.time())
        return await read_synopsis(base.registry.ask_control, base.journal, user, request)

    no_synopsis = _why_no_synopsis(base)
    if config.synopsis.shown == "never":
        no_synopsis = "synopsis.shown is never"
    tiers = Tiers(
        warm_up=warm_up,
        recall=recall,
        working=search_working if cached is not None else None,
        synopsis=None if no_synopsis else show_synopsis,
        no_synopsis=no_synopsis,
        blocks=blocks,
        instructions=None if instructions is None else instructions.get,
    )
    return Planner(tiers, base.models.counter, config, fetch=base.journal.attachments.get)


def _why_no_synopsis(base: Foundation) -> str:
    """Why user profiles are not written; empty if they are."""
    if base.models.chat is not None or base.options.config.synopsis.shown == "always":
        return ""
    return (
        "there is no chat model to write it: pass chat_model= to the Runtime or set "
        "models.summarizer to openai; with synopsis.shown: always it is an extract of what was said"
    )


async def _load_parts(base: Foundation) -> None:
    """Load LanceDB, and the embedded embedder if it is used, before the first recall.

    LanceDB's import takes a second or more in a thread. Sessions are served in the meantime; the
    event loop waits for the interpreter 0.2 ms at a time, and twice for longer: about 60 ms for a
    garbage collection, and 80 to 200 ms for the embedder's tokenizer, which one call into C makes.
    """
    options = base.options
    try:
        if options.config.long_term.enabled:
            await run_in_thread(compile_patterns)
            await base.index.store()
        here = options.config.models.embedder in {"wordllama", "minilm"}
        embedded = options.embedder is None and here
        if embedded and base.models.embedder is not None:
            await embed_texts(base.models.embedder, ["warm"])
        if options.config.models.reranker == "minilm" and base.models.reranker is not None:
            await base.models.reranker.rank("warm", ["warm"])
        if options.config.long_term.enabled and options.config.long_term.tune_allocators:
            await run_in_thread(return_free_memory)  # 20 MB that reading files left
    except RuntimeClosed:  # it closes while it loads
        raise
    except Exception:
        _logger.exception("warming_failed")  # the next caller retries, and gets the error
        raise


def _no_rows(user: str) -> None:
    """Without long-term memory there is nothing to look up again."""


def _build_counting(base: Foundation) -> CountingThread:
    loop, counter = asyncio_loop(), base.models.counter
    return CountingThread(
        counter if isinstance(counter, BatchCounter) else None,
        base.registry.complete,
        None if loop is None else CallingThread("remora-tokens", loop),
    )


def _build_internals(
    base: Foundation,
    eraser: Eraser,
    recall: Recall | None,
    planner: Planner,
    warm_up: SharedCall[None],
    facts: FactsHandler | None,
    breaker: CircuitBreaker,
    counting: CountingThread,
    instructions: Instructions | None,
) -> Internals:
    options, models = base.options, base.models
    config, clock = options.config, options.clock
    journal, registry, supervisor = base.journal, base.registry, base.supervisor
    intake = Intake(
        config.buffer,
        models.counter,
        clock,
        options.redact,
        options.scorer,
        models.cached,
        config.state,
        counting=counting,
        attachments=attachment_limits(config),
    )
    recalls = None
    if recall is not None:
        recalls = LocalRecalls(recall, registry, journal, supervisor, models.embedder, clock)
    verbs = VerbMeters()
    turns = LocalTurns(config.turns, int(base.options.clock.time() * 1_000_000))
    indexed_blocks = partial(_rebuildable_blocks, options.blocks)
    working_bytes = int(config.working.max_memory_mb * (1 << 20))
    import_bytes = int(config.journal.max_import_mb * (1 << 20))
    transfers = LocalTransfers(
        TransferParts(
            journal, registry, intake, working_bytes, import_bytes, indexed_blocks, instructions
        )
    )
    parts = Parts(
        config=config,
        instance=journal.instance,
        intake=intake,
        actors=registry,
        appends=LocalAppends(
            registry,
            supervisor,
            clock,
            config.buffer.overdraft_wait_s,
            verbs.append_s,
            counting,
            journal.attachments,
            turns.begin_call,
            _no_rows if recall is None else partial(recall.note_change, gone=True),
            instructions,
        ),
        contexts=LocalContexts(
            registry,
            journal,
            planner,
            supervisor,
            clock,
            config.mailbox.timeout_s,
            verbs,
            window_rules(config, base.models.counter),
            _why_no_synopsis(base),
        ),
        turns=turns,
        archive=LocalArchive(journal, registry, recall, models.cached, instructions),
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
        warm_up=warm_up,
        facts=facts,
        breaker=breaker,
        compactions=base.durations,
        verbs=verbs,
        meters=(models.fallback, models.summarizer),
        parts=parts,
        transfers=transfers,
        turns=turns,
    )


def _rebuildable_blocks(blocks: BlocksLike | None, key: SessionKey) -> Collection[str]:
    """Names of the session's memory blocks whose rows can be made again from the journal."""
    if blocks is None:
        return ()
    of_session = blocks(key) if callable(blocks) else blocks
    return {
        block_name(one)
        for one in of_session
        if isinstance(one, VectorMemoryBlock) and one.vector_store is None
    }


# -- exporting and importing sessions of a runtime in this process ---------------------------------


class LocalTransfers:
    """Sessions and users as plain data: single sessions, or everything in files."""

    def __init__(self, parts: TransferParts) -> None:
        self.parts = parts
        """For what exports and imports several runtimes together."""

    # The modules that are imported below were preloaded when the runtime was opened.

    async def export_session(self, key: SessionKey) -> SessionExport | None:
        """See `remora.Session.export`."""
        from remora.maintenance.export import export_session  # noqa: PLC0415

        return await export_session(self.parts, key)

    async def import_session(self, export: SessionExport, key: SessionKey) -> None:
        """See `remora.User.import_session`."""
        from remora.maintenance.import_ import import_session  # noqa: PLC0415

        await import_session(self.parts, export, key)

    async def export_to(
        self, path: Path, *, overwrite: bool, progress: Progress | None
    ) -> TransferReport:
        """See `remora.Runtime.export`."""
        from remora.maintenance.export import export_to  # noqa: PLC0415
        from remora.storage.export.targets import check_target  # noqa: PLC0415

        target = check_target(path)
        return await run_to_end(
            export_to, [self.parts], target, overwrite=overwrite, progress=progress
        )

    async def import_from(
        self, path: Path, *, skip_existing: bool, progress: Progress | None
    ) -> TransferReport:
        """See `remora.Runtime.import_`."""
        from remora.maintenance.import_ import import_from  # noqa: PLC0415

        return await run_to_end(
            import_from, [self.parts], path, skip_existing=skip_existing, progress=progress
        )
