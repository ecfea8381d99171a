"""The runtime: everything put together, opened with ``async with`` and closed in order."""

from __future__ import annotations

import importlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from remora.actors.blocks.base import BlockServices, BlocksLike, block_name
from remora.actors.blocks.render import BlockView
from remora.actors.blocks.state import BlockSet, check_blocks
from remora.actors.blocks.vector import VectorMemoryBlock
from remora.actors.kinds import ByKind
from remora.actors.policies.buffer import PolicyLike, configured_policy, resolve_policy
from remora.actors.policies.redaction import validate_hook
from remora.actors.policies.scoring import heuristic_score
from remora.actors.policies.summary import DEFAULT_PROMPT, ChatSummarizer
from remora.actors.session.behavior import (
    BLOCKS_QUEUE,
    FLUSH_QUEUE,
    SUMMARIZE_QUEUE,
    SessionBehavior,
)
from remora.actors.session.messages import Flush, Inspect, SessionView
from remora.actors.user.behavior import PRUNE_QUEUE, RECORD_QUEUE, SYNOPSIS_QUEUE, UserBehavior
from remora.actors.user.messages import (
    InspectUser,
    ReadSynopsis,
    ScoredItem,
    SearchWorking,
    Synopsis,
    UserView,
)
from remora.api.batches import TransferVerbs
from remora.api.dead_letters import DeadLetters
from remora.api.session import Session
from remora.api.shared import SharedScope
from remora.api.user import User
from remora.config import Config
from remora.errors import ConfigError, InvalidInput, ReentrantAsk, RuntimeClosed, StorageError
from remora.ids import SessionKey, UserKey, validate_id
from remora.jobs.cleanup import WorkingMemoryCleanup
from remora.jobs.feed_blocks import BlocksHandler
from remora.jobs.memories import PruneHandler, RecordHandler
from remora.jobs.sessions import FlushHandler, SummarizeHandler
from remora.jobs.synopsis import SynopsisHandler
from remora.logging import get_logger
from remora.messages import ChatDict, MessageLike, encode_message, without_surrogates
from remora.models.breaker import CircuitBreaker
from remora.models.cache import CachingEmbedder
from remora.models.compression import (
    CompressionMeter,
    CompressionStatistics,
    LeadSummarizer,
    TailSummarizer,
)
from remora.models.extractive import ExtractiveSummarizer
from remora.models.ports import (
    ChatModel,
    ChatModelLike,
    Embedder,
    EmbedderLike,
    Summarizer,
    as_chat_model,
    as_embedder,
    embed_texts,
    embedder_name,
)
from remora.recall.index_cache import UserIndexStatistics
from remora.recall.planner import Planner, Tiers
from remora.recall.recall import Recall
from remora.runtime.actor import Decision
from remora.runtime.clock import Clock, SystemClock
from remora.runtime.guard import guarded_call
from remora.runtime.locks import SharedLocks
from remora.runtime.log import Job, LogStatistics
from remora.runtime.probes import probe
from remora.runtime.registry import ActorRegistry, RegistryLimits, RegistryStatistics
from remora.runtime.schedule import Schedule, TaskStatistics
from remora.runtime.supervisor import Lane, RetryPolicy, Supervisor, SupervisorStatistics
from remora.services.erasure import Eraser
from remora.services.index import LongTermIndex
from remora.services.preload import preload
from remora.services.rebuild import ReembedProgress
from remora.storage.lock import DirectoryLock
from remora.storage.memory import MemoryJournal
from remora.storage.ports import (
    Journal,
    JournalCounts,
    LongTermStatistics,
    LongTermStore,
    Retention,
)
from remora.tokens import HeuristicCounter, TiktokenCounter, TokenCounter, count_message

if TYPE_CHECKING:
    from remora.maintenance.backup import BackupReport

__all__ = ["JournalLike", "Runtime", "RuntimeStatistics"]

_logger = get_logger("remora.runtime")
_CHECKPOINT_S = 5.0
_TAIL_CONCURRENCY = 16
_PRUNE_CONCURRENCY = 2
_DAY_S = 86_400.0
_MOST_TAILS = 1_000_000

JournalLike: TypeAlias = Journal | Callable[[], Awaitable[Journal]]
"""A journal, or what opens one."""


class RuntimeStatistics(msgspec.Struct, frozen=True):
    """Every part's own counters."""

    directory: RegistryStatistics
    log: LogStatistics
    supervisor: SupervisorStatistics
    schedule: dict[str, TaskStatistics]
    compression: dict[str, CompressionStatistics]
    """By the name of the strategy that made the summaries."""
    hot: UserIndexStatistics = UserIndexStatistics()
    """Users' rows in memory."""


class _Parts(msgspec.Struct):
    """What is there while the runtime is open."""

    journal: Journal
    directory: ActorRegistry
    supervisor: Supervisor
    dead_letters: DeadLetters
    schedule: Schedule
    planner: Planner
    recall: Recall | None
    eraser: Eraser
    counter: TokenCounter
    meters: tuple[CompressionMeter, ...]


class Runtime(TransferVerbs):
    """Conversation memory for one process: ``async with Runtime("memory/") as runtime: …``.

    Args:
        directory: where everything is kept (made if need be), or a `Config` that names it.
        config: the configuration; `Config()` otherwise, changed by ``REMORA_…`` environment
            variables.
        chat_model: summarizes; an object with ``async complete(messages) -> str``, or a callable
            ``prompt -> str``. Without one, `models.summarizer` decides; the default is an extract
            that needs no model.
        summarizer: makes the summaries, in a way of its own: a compression strategy.
        embedder: an object with ``async embed(texts)``, ``name`` and ``dimension``, or a callable.
            Without one, `models.embedder` decides; the default is embedded.
        store: keeps long-term memory, instead of LanceDB in the directory; its vectors have the
            embedder's dimension. The runtime closes it at its end.
        counter: counts tokens; `tokens.counter` decides otherwise.
        policy: what sessions keep and what becomes of the rest, one for all or a function of the
            session's key; `buffer.policy` decides otherwise.
        blocks: memory blocks (`remora.blocks`), which see what leaves a session's buffer and speak
            in its context: prototypes for all sessions, or a function of the session's key that
            gives the same ones each time.
        redact: goes over every text of a message before the journal sees it; where it raises, the
            message is refused.
        redact_long_term: goes over what is left before long-term memory sees it.
        reembed: where another embedder made long-term memory, make it anew from the journal, in the
            background (`reembedding`).
        scorer: says from 0 to 1 what a chat message is worth keeping; `importance.score_messages`
            decides otherwise.
        journal: a journal of your own instead of the embedded SQLite: an object that follows
            `remora.storage.ports.Journal`, or an async callable that opens one. The runtime closes
            it on leaving; the directory then holds long-term memory alone.
        clock: for tests.
        rng: for jitter; for tests.

    Raises:
        ConfigError: a value that means nothing.
        DirectoryLocked, DirectoryUnusable, JournalTooNew, JournalDamaged, EmbedderChanged: on
            entering.
    """

    def __init__(
        self,
        directory: str | Path | Config | None = None,
        *,
        config: Config | None = None,
        chat_model: ChatModelLike | None = None,
        summarizer: Summarizer | None = None,
        embedder: EmbedderLike | None = None,
        store: LongTermStore | None = None,
        counter: TokenCounter | None = None,
        policy: PolicyLike | None = None,
        blocks: BlocksLike | None = None,
        redact: Callable[[str], str] | None = None,
        redact_long_term: Callable[[str], str] | None = None,
        reembed: bool = False,
        scorer: Callable[[ChatDict], float] | None = None,
        journal: JournalLike | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if isinstance(directory, Config):
            if config is not None:
                raise ConfigError(
                    "pass the configuration once: Runtime(config) or Runtime(directory, "
                    "config=config)"
                )
            directory, config = None, directory
        if config is None:
            config = Config.from_environment()
        elif not isinstance(config, Config):
            raise ConfigError(
                f"config must be a remora.Config, not {type(config).__name__}; see Config.from_dict"
            )
        self._config = config
        self._directory: Path | None = Path(
            directory if directory is not None else config.directory
        )
        self._chat_model = None if chat_model is None else as_chat_model(chat_model)
        self._summarizer = summarizer
        self._given_embedder = (
            None
            if embedder is None
            else as_embedder(embedder, dimension=config.models.embedding_dimension)
        )
        self._given_store = store
        self._given_counter = counter
        self._redact = None if redact is None else validate_hook(redact)
        self._redact_long_term = (
            None if redact_long_term is None else validate_hook(redact_long_term)
        )
        self._scorer = (
            heuristic_score if scorer is None and config.importance.score_messages else scorer
        )
        self._policies = policy if policy is not None else configured_policy(config.buffer)
        if not callable(self._policies):
            self._policies = resolve_policy(self._policies)
        self._blocks: BlocksLike | None = (
            blocks if blocks is None or callable(blocks) else check_blocks(blocks) or None
        )
        if journal is not None and not callable(journal) and not hasattr(journal, "hydrate"):
            raise ConfigError(
                "journal must follow remora.storage.ports.Journal or open one, not "
                f"{type(journal).__name__}"
            )
        self._given_journal = journal
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._parts: _Parts | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._ended = anyio.Event()
        self._warmed = anyio.Event()
        self._long_term: LongTermIndex | None = None
        self._embedder: Embedder | None = None
        self._cached_embedder: CachingEmbedder | None = None
        if reembed and not config.long_term.enabled:
            raise ConfigError(
                "there is no long-term memory to make anew: long_term.enabled is false",
                key="long_term.enabled",
            )
        self._reembed = reembed
        self._closers: list[Any] = []
        self._lifetime: Any = None
        self._closed = False

    @classmethod
    def in_memory(cls, **options: Any) -> Self:
        """A runtime without a directory: nothing survives it.

        Takes the options of `Runtime`, but for the directory.
        """
        runtime = cls(**options)
        runtime._directory = None
        return runtime

    @classmethod
    def from_file(
        cls, path: str | Path, *, secrets: Mapping[str, str] | None = None, **options: Any
    ) -> Self:
        """A runtime configured by a ``.yaml``, ``.toml`` or ``.json`` file and the environment.

        `secrets` holds values for ``${{ secrets.NAME }}``; what it lacks is looked up in the
        environment. Takes the other options of `Runtime` as well.

        Raises:
            ConfigError: see `Config.from_file`.
        """
        return cls(Config.from_file(path, secrets=secrets), **options)

    # -- handles -----------------------------------------------------------------------------------

    def user(self, user: str) -> User:
        """A handle on a user.

        Raises:
            InvalidId: the id cannot name a user.
        """
        return User(self, validate_id(user, "a user id"))

    def session(self, user: str, session: str) -> Session:
        """Short for ``runtime.user(user).session(session)``."""
        return self.user(user).session(session)

    def shared(self, name: str) -> SharedScope:
        """A handle on a memory that agents share, of any user or none.

        Raises:
            InvalidId: the name cannot be one.
        """
        return SharedScope(self, validate_id(name, "a shared scope's name"))

    # -- what handles need -------------------------------------------------------------------------

    @property
    def _open(self) -> _Parts:
        if self._parts is None:
            raise RuntimeClosed(
                "the runtime is closed"
                if self._closed
                else "open the runtime first: async with Runtime(…) as runtime"
            )
        return self._parts

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._config

    @property
    def directory(self) -> ActorRegistry:
        """The kernel's directory of live sessions."""
        return self._open.directory

    @property
    def supervisor(self) -> Supervisor:
        """The kernel's background jobs."""
        return self._open.supervisor

    @property
    def journal(self) -> Journal:
        """The write-ahead journal."""
        return self._open.journal

    @property
    def planner(self) -> Planner:
        """Context assembly."""
        return self._open.planner

    @property
    def recall(self) -> Recall | None:
        """Search in long-term memory; None where it is switched off."""
        return self._open.recall

    @property
    def eraser(self) -> Eraser:
        """What forgets users and sessions."""
        return self._open.eraser

    @property
    def counter(self) -> TokenCounter:
        """The token counter."""
        return self._open.counter

    @property
    def embedder(self) -> CachingEmbedder | None:
        """The embedder, which keeps the vectors of the texts last asked for.

        None where there is none.
        """
        return self._cached_embedder

    def indexed_blocks(self, key: SessionKey) -> Collection[str]:
        """Names of the session's memory blocks whose rows are in long-term memory, so that they can
        be made again.
        """
        if self._blocks is None:
            return ()
        blocks = self._blocks(key) if callable(self._blocks) else self._blocks
        return {
            block_name(one)
            for one in blocks
            if isinstance(one, VectorMemoryBlock) and one.vector_store is None
        }

    @property
    def clock(self) -> Clock:
        """What the time is."""
        return self._clock

    @property
    def redact(self) -> Callable[[str], str] | None:
        """The redaction hook in front of the journal."""
        return self._redact

    @property
    def scorer(self) -> Callable[[ChatDict], float] | None:
        """What weighs messages at the door."""
        return self._scorer

    # -- life --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._lifetime is not None:
            raise RuntimeClosed("a runtime can be entered once; make another")
        self._lifetime = self._live()
        await self._lifetime.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The body's exception is its caller's business: no background task's is ever joined to it.
        await self._lifetime.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """Stop intake, finish what was accepted, leave jobs for the next start.

        Leaving ``async with`` does the same.
        """
        parts = self._parts
        if parts is None:
            return
        if parts.supervisor.in_a_job():
            raise ReentrantAsk("a background job closes the runtime, which waits for that job")
        parts.directory.stop_intake()
        try:
            with anyio.move_on_after(self._config.supervisor.drain_s, shield=True) as scope:
                await parts.directory.drain()
            if scope.cancelled_caught:
                probe("drain_timed_out")
                _logger.error("drain_timed_out", seconds=self._config.supervisor.drain_s)
        finally:
            # even where the event loop's own cancellation broke the shield, nobody is left waiting
            self._abandon(
                parts,
                RuntimeClosed(
                    "the runtime closed before this could be done; what is in the journal goes on "
                    "later"
                ),
            )
            assert self._tasks is not None
            self._tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()

    def _abandon(self, parts: _Parts, error: RuntimeClosed) -> None:
        parts.directory.stop_intake()
        parts.directory.abandon(error)
        parts.supervisor.abandon(error)
        parts.eraser.abandon()
        self._parts = None
        self._closed = True

    @asynccontextmanager
    async def _live(self) -> AsyncIterator[None]:
        lock = DirectoryLock(self._directory) if self._directory is not None else None
        try:
            if lock is not None:
                await anyio.to_thread.run_sync(_prepare, lock)
            async with self._opened_journal() as journal:
                # What can fail comes before the task group, which would wrap its exception.
                parts = await self._build(journal)
                left = await journal.jobs()
                async with anyio.create_task_group() as host:
                    await host.start(self._run, parts, left)
                    try:
                        yield
                    finally:
                        await self.aclose()
        finally:
            self._closed = True
            with anyio.CancelScope(shield=True):
                if lock is not None:
                    await anyio.to_thread.run_sync(lock.release)

    @asynccontextmanager
    async def _opened_journal(self) -> AsyncIterator[Journal]:
        config = self._config.journal
        journal: Journal
        if self._given_journal is not None:
            journal = await _opened(self._given_journal)
        elif self._directory is None:
            journal = MemoryJournal()
        else:
            # `remora.services.preload` has loaded it
            from remora.storage.sqlite.journal import SqliteJournal  # noqa: PLC0415

            journal = await SqliteJournal.open(
                self._directory / "journal.db",
                durability=config.durability,
                max_batch_writes=config.max_batch_writes,
                max_wal_mb=config.max_wal_mb,
            )
        try:
            yield journal
        finally:
            with anyio.CancelScope(shield=True):
                for closer in (
                    *self._closers,
                    *([self._long_term.aclose] if self._long_term is not None else []),
                ):
                    try:
                        await closer()
                    except Exception:
                        _logger.exception(
                            "close_failed"
                        )  # jobs that it leaves are still in the journal
                await journal.aclose()

    async def _build(self, journal: Journal) -> _Parts:
        config = self._config
        counter = self._given_counter
        if counter is None:
            counter = await anyio.to_thread.run_sync(self._make_counter)
        # in a thread: a model's module may bring half a framework along
        chat = await anyio.to_thread.run_sync(self._make_chat_model)
        summarizer, fallback = self._make_summarizers(counter, chat)
        long_term = config.long_term.enabled
        self._embedder = await anyio.to_thread.run_sync(self._make_embedder)
        if self._embedder is not None:
            self._cached_embedder = CachingEmbedder(
                self._embedder, size=config.working.embedding_cache
            )
        memory = self._long_term = LongTermIndex(
            journal,
            config,
            self._directory,
            given=self._given_store,
            embedder=self._embedder,
            clock=self._clock,
            rng=self._rng,
        )
        if long_term:
            await memory.prepare(reembed=self._reembed)
        recount = None
        named = _counter_name(counter)
        if await journal.setting("counter", named) != named:
            await journal.setting("counters", "several")
        if await journal.setting("counters"):
            # Rows hold the figures of the counter that they were written under; a budget is kept by
            # today's (G9).
            recount = partial(count_message, counter)
        sessions = SessionBehavior(
            partial(resolve_policy, self._policies),
            instance=journal.instance,
            flushes=long_term,
            blocks=self._blocks is not None,
            recount=recount,
        )
        max_working_bytes = int(config.working.max_memory_mb * (1 << 20))
        users = UserBehavior(
            self._embedder.dimension if self._embedder else None,
            embedder=embedder_name(self._embedder),
            max_bytes=max_working_bytes,
            identity_ttl=config.synopsis.identity_ttl,
            context_ttl=config.synopsis.context_ttl,
            refresh_on_access=config.synopsis.refresh_on_access,
        )

        def decided(turn: Decision) -> None:
            supervisor.cancel(turn.cancel)
            supervisor.submit(turn.jobs)
            supervisor.expedite(turn.expedite)

        directory = ActorRegistry(
            ByKind(sessions, users),
            journal,
            self._clock,
            self._limits(),
            decided,
            attrgetter("user"),
        )
        supervisor = Supervisor(journal, directory.tell, self._clock, self._rng)
        breaker = CircuitBreaker(
            self._clock,
            failures=config.supervisor.breaker_failures,
            rest_s=config.supervisor.breaker_rest_s,
        )
        retry = RetryPolicy(
            max_attempts=config.supervisor.max_attempts,
            backoff_s=config.supervisor.backoff_s,
            max_backoff_s=config.supervisor.max_backoff_s,
            jitter=config.supervisor.jitter,
        )

        async def look(key: SessionKey) -> SessionView:
            view: SessionView = await directory.tell(key, Inspect())
            return view

        summarize = SummarizeHandler(
            journal,
            look,
            summarizer,
            fallback,
            breaker=breaker,
            counter=counter,
            max_tokens=config.buffer.summary_tokens,
            prefix=config.buffer.summary_prefix,
            timeout_s=config.models.timeout_s,
        )
        concurrency = config.supervisor
        supervisor.add_lane(
            Lane(
                SUMMARIZE_QUEUE,
                summarize,
                concurrency=concurrency.summarize_concurrency,
                retry=retry,
            )
        )
        synopsis = SynopsisHandler(
            journal,
            chat,
            fallback,
            clock=self._clock,
            breaker=breaker,
            counter=counter,
            max_tokens=config.synopsis.max_tokens,
            prompt=config.synopsis.prompt,
            timeout_s=config.models.timeout_s,
        )
        supervisor.add_lane(
            Lane(
                SYNOPSIS_QUEUE, synopsis, concurrency=concurrency.summarize_concurrency, retry=retry
            )
        )
        schedule = Schedule(self._clock)
        schedule.every(_CHECKPOINT_S, "checkpoint", journal.checkpoint)
        if (
            config.retention.age_days
            or config.retention.session_messages
            or config.retention.total_mb
        ):
            schedule.every(config.retention.interval_s, "retention", self._retain)
        cleanup = WorkingMemoryCleanup(directory, max_working_bytes)
        schedule.every(config.working.fifo_interval_min * 60, "fifo_cleanup", cleanup)
        recall = None
        writers = SharedLocks()
        eraser = Eraser(
            journal,
            directory,
            supervisor,
            stores=memory.open_all_stores,
            alone=writers.alone,
            forget_cached=partial(self._changed, gone=True),
            withdraw_anew=memory.withdraw,
            clock=self._clock,
            retry=retry,
            rng=self._rng,
        )
        eraser.resume(await journal.erasures())
        if long_term:
            recall = Recall(
                memory.store, self._cached_embedder, config.recall,
                importance_weight=config.importance.weight, admit=eraser.admit,
            )  # fmt: skip
            flush = FlushHandler(
                journal,
                self.long_term,
                self._embedder,
                counter,
                window_chars=config.long_term.window_chars,
                batch_tokens=config.buffer.token_flush_size,
                redact=self._redact_long_term,
                written=partial(self._changed, gone=False),
                users=writers,
            )
            supervisor.add_lane(
                Lane(FLUSH_QUEUE, flush, concurrency=concurrency.flush_concurrency, retry=retry)
            )
            record = RecordHandler(
                journal,
                self.long_term,
                self._embedder,
                redact=self._redact_long_term,
                written=partial(self._changed, gone=False),
                users=writers,
            )
            supervisor.add_lane(
                Lane(RECORD_QUEUE, record, concurrency=concurrency.flush_concurrency, retry=retry)
            )
            memory.serve(directory, flush, record, retry)

            async def look_at_user(key: UserKey) -> UserView:
                view: UserView = await directory.tell(key, InspectUser(), keeps_alive=False)
                return view

            prune = PruneHandler(
                journal, self.long_term, look_at_user, now=self._clock.time, importance=config.importance,  # noqa: E501
                written=partial(recall.changed, gone=True), users=writers,
            )  # fmt: skip
            supervisor.add_lane(
                Lane(PRUNE_QUEUE, prune, concurrency=_PRUNE_CONCURRENCY, retry=retry)
            )
            if config.long_term.max_user_rows or config.long_term.prune == "age":
                schedule.every(
                    config.long_term.prune_interval_s,
                    "prune",
                    partial(memory.prune, directory.tell),
                )
            schedule.every(config.long_term.compact_interval_s, "compact", memory.compact)
        block_view = None
        if self._blocks is not None:
            blocks = BlockSet(self._blocks, partial(self._block_services, counter, chat))
            show = BlocksHandler(
                journal,
                directory.tell,
                blocks,
                batch_tokens=config.buffer.token_flush_size,
                redact=self._redact_long_term,
            )
            # as many at once as summaries: what blocks wait for is the chat model as well
            supervisor.add_lane(
                Lane(BLOCKS_QUEUE, show, concurrency=concurrency.summarize_concurrency, retry=retry)
            )
            block_view = BlockView(
                blocks, count=partial(count_message, counter), method=config.context.insert_method,
                timeout_s=config.context.block_timeout_s,
            )  # fmt: skip

        async def working(user: str, session: str, query: str) -> Sequence[ScoredItem]:
            assert self._cached_embedder is not None
            vector = (await embed_texts(self._cached_embedder, [without_surrogates(query)]))[0]
            found: Sequence[ScoredItem] = await directory.tell(
                UserKey(user), SearchWorking(vector, config.working.k, session)
            )
            return found

        async def known(user: str) -> Synopsis:
            read: Synopsis = await directory.tell(UserKey(user), ReadSynopsis(self._clock.time()))
            return read

        searched = working if self._cached_embedder is not None else None
        tiers = Tiers(recall=recall, working=searched, synopsis=known, blocks=block_view)
        planner = Planner(tiers, counter, config)
        dead_letters = DeadLetters(journal, supervisor)
        meters = (fallback, summarizer)
        return _Parts(
            journal,
            directory,
            supervisor,
            dead_letters,
            schedule,
            planner,
            recall,
            eraser,
            counter,
            meters,
        )

    def _block_services(
        self, counter: TokenCounter, chat: ChatModel | None, key: SessionKey
    ) -> BlockServices:
        long_term = self.long_term if self._config.long_term.enabled else None
        return BlockServices(key.user, key.session, counter, chat, self._embedder, long_term)

    async def _run(
        self, parts: _Parts, left: Sequence[Job], *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        """All background tasks, in a group of their own.

        Closing cancels them and not the caller, whose group is the host's.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self._start(parts, left, tasks)
                task_status.started()
        except (KeyboardInterrupt, SystemExit, anyio.get_cancelled_exc_class()):
            raise
        except BaseException:
            # A bug of ours; the host must not go down with it. Nothing that was acknowledged is
            # lost.
            _logger.exception("background_failed")
        finally:
            self._abandon(
                parts,
                RuntimeClosed(
                    "remora's background work has ended; if nobody closed it, the log says why"
                ),
            )
            self._ended.set()

    def _start(self, parts: _Parts, left: Sequence[Job], tasks: anyio.abc.TaskGroup) -> None:
        self._parts, self._tasks = parts, tasks
        tasks.start_soon(parts.journal.run, name="remora.journal.writer")
        parts.directory.start(tasks)
        parts.supervisor.submit(left)
        parts.supervisor.start(tasks)
        parts.schedule.start(tasks)
        parts.eraser.start(tasks)
        if parts.recall is not None:
            tasks.start_soon(self._warm, name="remora.warm")
            tasks.start_soon(parts.recall.run, name="remora.recall")
            tasks.start_soon(self._flush_tails, name="remora.tails")
        if self._long_term is not None:
            self._long_term.start(tasks)

    def _make_counter(self) -> TokenCounter:
        tokens = self._config.tokens
        media = {
            "image_url": tokens.image_tokens,
            "input_audio": tokens.audio_tokens,
            "file": tokens.file_tokens,
        }
        if tokens.counter == "heuristic":
            return HeuristicCounter(tokens.unit, media_tokens=media)
        return TiktokenCounter(tokens.encoding, media_tokens=media)

    def _make_summarizers(
        self, counter: TokenCounter, chat: ChatModel | None
    ) -> tuple[CompressionMeter, CompressionMeter]:
        """The configured summarizer, and the extract that stands in for it.

        The same where that is what is configured.
        """
        models = self._config.models
        fallback = CompressionMeter(ExtractiveSummarizer(counter.count), counter.count)
        chosen: Summarizer
        if self._summarizer is not None:
            chosen = self._summarizer
        elif chat is not None:
            chosen = ChatSummarizer(chat, prompt=models.summary_prompt or DEFAULT_PROMPT)
        elif models.summarizer == "lead":
            chosen = LeadSummarizer(counter.count)
        elif models.summarizer == "tail":
            chosen = TailSummarizer(counter.count)
        else:
            return fallback, fallback
        return CompressionMeter(chosen, counter.count), fallback

    def _make_chat_model(self) -> ChatModel | None:
        preload()  # where there is no directory, nothing has until now
        if self._chat_model is not None:
            return self._chat_model
        if self._config.models.summarizer != "openai":
            return None
        chat: Any = importlib.import_module("remora.models.openai").OpenAIChatModel(
            self._config.models
        )
        self._closers.append(chat.aclose)
        made: ChatModel = chat
        return made

    def _make_embedder(self) -> Embedder | None:
        if self._given_embedder is not None:
            return self._given_embedder
        match self._config.models.embedder:
            case "none":
                return None
            case "openai":
                embedder: Any = importlib.import_module("remora.models.openai").OpenAIEmbedder(
                    self._config.models
                )
                self._closers.append(embedder.aclose)
            case "wordllama":
                embedder = importlib.import_module("remora.models.static").WordLlamaEmbedder()
        found: Embedder = embedder
        return found

    def _limits(self) -> RegistryLimits:
        mailbox, activation = self._config.mailbox, self._config.activation
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

    # -- long-term memory --------------------------------------------------------------------------

    async def long_term(self) -> LongTermStore:
        """The long-term store, opened at first use.

        Raises:
            LongTermError: it cannot be opened; the next call tries again.
            RuntimeClosed: the runtime is not open.
        """
        _ = self._open
        assert self._long_term is not None
        return await self._long_term.store()

    def _changed(self, user: str, *, gone: bool) -> None:
        """The user's long-term memory changed, or may have.

        Args:
            user: whose.
            gone: all of it was erased: nothing in memory may tell of the user any more (G13).
        """
        parts = self._parts  # None where a job ends because the runtime does
        if parts is not None and parts.recall is not None:
            parts.recall.changed(user, gone=gone)
        if parts is not None and gone:
            parts.planner.forget(user)
        if self._cached_embedder is not None and gone:
            self._cached_embedder.clear()  # it does not keep which texts were whose
        if self._long_term is not None:
            self._long_term.changed(user, gone=gone)

    @property
    def reembedding(self) -> ReembedProgress | None:
        """How far long-term memory is made anew, for another embedder or after damage.

        None when nothing is left to be done.

        Damage is found when long-term memory is opened, a moment after the runtime: see
        `reembedded` and `long_term`.
        """
        anew = None if self._long_term is None else self._long_term.reembedding
        return None if anew is None or anew.over else anew.progress

    async def reembedded(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Return when long-term memory is whole: at once, but where it is made anew for another
        embedder.

        Args:
            progress: told how many messages are done, of how many.

        Raises:
            RuntimeClosed: the runtime closed before; the next start goes on.
            StorageError, ModelError: what failed again and again; the next start goes on.
        """
        parts = self._open
        if parts.recall is not None:
            await self._warmed.wait()
        if self._long_term is not None and self._long_term.reembedding is not None:
            await self._long_term.reembedding.wait(progress)

    async def _warm(self) -> None:
        """Load LanceDB and the embedder before anybody recalls.

        In a thread, beside a runtime that is open: importing LanceDB takes a second or more, three
        quarters of it for models of a REST service. Sessions, which need none of it, are answered
        meanwhile; the event loop waits for the interpreter 1 ms at a time, and once for a garbage
        collection of some 60 ms.
        """
        try:
            await guarded_call(self.long_term)
            if (
                self._embedder is not None
                and self._given_embedder is None
                and self._config.models.embedder == "wordllama"
            ):
                await guarded_call(self._embedder.embed, ["warm"])
        except Exception:
            _logger.exception(
                "warming_failed"
            )  # whoever needs it tries again, and says why it fails
        finally:
            self._warmed.set()

    async def _retain(self) -> None:
        """Let archived originals go that are older, or more, than are kept."""
        keep = self._config.retention
        limits = Retention(keep.age_days, keep.session_messages, int(keep.total_mb * (1 << 20)))
        gone = await self._open.journal.trim(limits, int(self._clock.time() * 1_000_000))
        if gone:
            _logger.info("archive_trimmed", messages=gone)

    async def _flush_tails(self) -> None:
        """Flush what sessions of an earlier run had not handed over, unless somebody talks to them
        first.
        """
        await self._clock.sleep(self._config.activation.idle_s)
        parts = self._open
        try:
            found = await parts.journal.unflushed(_MOST_TAILS)
        except StorageError:
            _logger.exception("tails_unread")  # they are found at the next start
            return

        tails = iter(found)

        async def work() -> None:
            for key in tails:
                if not parts.directory.is_live(key):
                    try:
                        probe("tail_flushed")
                        await parts.directory.tell(key, Flush())
                    except Exception:
                        _logger.exception("tail_flush_failed", session=key)

        async with anyio.create_task_group() as group:
            for _ in range(min(_TAIL_CONCURRENCY, len(found))):
                group.start_soon(work)

    def reschedule(self, task: str, seconds: float) -> None:
        """Run a periodic task, ``fifo_cleanup`` for instance, each `seconds` from now on.

        `statistics` names them all.

        Raises:
            InvalidInput: there is no such task, or the interval is no positive number.
            RuntimeClosed: the runtime is not open.
        """
        self._open.schedule.change(task, seconds)

    # -- looking -----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until all background work that exists now is done: for tests, scripts and
        shutdown.
        """
        await self._open.supervisor.drain_all()

    def message_tokens(self, message: MessageLike) -> int:
        """What a chat message costs by the runtime's counter.

        Raises:
            InvalidMessage: it is no chat message.
        """
        return count_message(self._open.counter, encode_message(message)[1])

    async def counts(self, user: str | None = None) -> JournalCounts:
        """How much the journal holds, of everybody or of one user."""
        return await self._open.journal.counts(user)

    async def long_term_statistics(self) -> LongTermStatistics:
        """How much long-term memory holds.

        Raises:
            LongTermError: it cannot be opened or read.
        """
        return await (await self.long_term()).statistics()

    async def backup(
        self, dest: str | Path, *, progress: Callable[[int, int], None] | None = None
    ) -> BackupReport:
        """Copy the memory directory to `dest` while it is in use (G3, G7; docs/backup.md).

        ``remora backup`` does the same.

        All messages that were acknowledged before are in it. What there is at `dest` in the end is
        whole, and on the disk; until then nothing is.

        Args:
            dest: a directory that is not there yet, or is empty.
            progress: told how many rows of long-term memory were compared with the journal, of how
                many.

        Raises:
            InvalidInput: there is no directory to copy, or something is at `dest`.
            StorageError: it cannot be read, or the disk refused; nothing stands at `dest` then.
        """
        # `remora.services.preload` has loaded both
        from remora.maintenance.backup import backup  # noqa: PLC0415
        from remora.storage.sqlite.journal import SqliteJournal  # noqa: PLC0415

        journal = self._open.journal
        if self._directory is None or not isinstance(journal, SqliteJournal):
            raise InvalidInput(
                "there is nothing to copy: this runtime's journal is not in a memory directory"
            )
        return await backup(
            self._directory, Path(dest), self._config, take=journal.backup, progress=progress
        )

    async def dead_letters(self) -> list[Job]:
        """Jobs that failed for good, oldest first; their messages still load."""
        return await self._open.dead_letters.jobs()

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:
        """Have dead letters run again, all or those of `ids`, when what they failed of was mended.

        Returns how many.

        `settle` waits for them. What an earlier attempt had written is not doubled (G7).

        Raises:
            NoDeadLetter: one of `ids` is none; nothing was changed.
            CommitFailed, OutcomeUnknown: see `Session.append`.
        """
        return await self._open.dead_letters.retry(ids)

    async def drop_dead_letters(self, ids: Sequence[str]) -> int:
        """Give dead letters up for good: all of these, or none; returns how many.

        No message is lost by it: those of a flush job are never to be in long-term memory, and load
        as before (G6).

        Raises:
            NoDeadLetter: one of `ids` is none; nothing was changed.
            InvalidInput: one of them can only be retried: a summary that messages wait for, a
                deletion in long-term memory.
            CommitFailed, OutcomeUnknown: see `Session.append`.
        """
        return await self._open.dead_letters.drop(ids)

    def statistics(self) -> RuntimeStatistics:
        """Counters of the parts, without I/O."""
        parts = self._open
        return RuntimeStatistics(
            parts.directory.statistics(),
            parts.journal.statistics(),
            parts.supervisor.statistics(),
            parts.schedule.statistics(),
            {meter.name: meter.statistics() for meter in parts.meters},
            parts.recall.index_statistics() if parts.recall is not None else UserIndexStatistics(),
        )


def _prepare(lock: DirectoryLock) -> None:
    preload()
    lock.acquire()


def _counter_name(counter: TokenCounter) -> str:
    return str(getattr(counter, "name", type(counter).__qualname__))


async def _opened(journal: JournalLike) -> Journal:
    return await journal() if callable(journal) else journal
