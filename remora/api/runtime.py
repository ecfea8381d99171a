"""The runtime: what an application opens, and gets its handles from."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import msgspec

from remora.actors.blocks.base import BlocksLike
from remora.actors.blocks.state import check_blocks
from remora.actors.policies.buffer import PolicyLike, policy_from_config, resolve_policy
from remora.actors.policies.redaction import BackgroundHook, validate_hook
from remora.actors.policies.scoring import heuristic_score
from remora.api.batches import append_batches
from remora.api.build import Internals
from remora.api.lifetime import Lifetime
from remora.api.operations import Operations
from remora.api.options import JournalLike, Options, check_options
from remora.api.session import Session
from remora.api.shared import SharedScope
from remora.api.user import User
from remora.config import Config
from remora.errors import ConfigError, NotReady, RemoraError
from remora.ids import validate_id
from remora.messages import ChatDict, MessageLike, Receipt, encode_message
from remora.models.ports import (
    ChatModelLike,
    EmbedderLike,
    RerankerLike,
    Summarizer,
    as_chat_model,
    as_embedder,
    as_reranker,
)
from remora.runtime.clock import Clock, SystemClock
from remora.services.arguments import (
    check_directory,
    check_flag,
    check_function,
    check_int,
    check_path,
    check_seconds,
    collect,
)
from remora.storage.export.transfer import TransferReport
from remora.storage.ports import LongTermStore
from remora.tokens import TokenCounter, count_message

if TYPE_CHECKING:
    from remora.maintenance.export import Progress


class Runtime(Operations):
    """Conversation memory for one process: ``async with Runtime("memory/") as runtime: …``.

    Args:
        directory: where everything is kept (created if necessary), or a `Config` that names it.
        config: the configuration; None for `Config()`, changed by ``REMORA_…`` environment
            variables.
        chat_model: summarizes; an object with ``async complete(messages) -> str``, or a callable
            ``prompt -> str``. None for `models.summarizer`; its default is an extract that needs no
            model.
        summarizer: a compression strategy of your own, which makes the summaries.
        embedder: an object with ``async embed(texts)``, ``name`` and ``dimension``, or a callable.
            None for `models.embedder`; its default is embedded.
        reranker: judges the best memories that `recall` and `load(query=…)` found: an object with
            ``async rank(query, texts)``, or a callable ``(query, texts) -> scores``, sync or async.
            None for `models.reranker`; its default is none.
        store: keeps long-term memory instead of LanceDB in the directory; its vectors have the
            embedder's dimension. The runtime closes it.
        counter: counts tokens; None for `tokens.counter`.
        policy: what sessions keep and what becomes of the rest, one for all or a function of the
            session's key; None for `buffer.policy`.
        blocks: memory blocks (`remora.blocks`), which are shown what leaves a session's buffer and
            add to its context: prototypes for all sessions, or a function of the session's key that
            returns the same ones each time.
        redact: replaces every text of a message before the journal sees it; if it raises, the
            message is refused.
        redact_long_term: replaces what is left before long-term memory sees it.
        reembed: if another embedder made long-term memory, or if it was made before its digests
            had keys, rebuild it from the journal, in the background (`reembedding`).
        scorer: says from 0 to 1 what a chat message is worth keeping; None for
            `importance.score_messages`.
        journal: a journal of your own instead of the embedded SQLite: an object that follows
            `remora.storage.ports.Journal`, or an async callable that opens one. The runtime closes
            it; the directory then holds long-term memory only.
        clock: for tests.
        rng: for jitter, and the key of digests; for tests.

    Raises:
        ConfigError: a value that is not valid.
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
        reranker: RerankerLike | None = None,
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
        config = check_options(config, journal, reembed=reembed)
        if scorer is None and config.importance.score_messages:
            scorer = heuristic_score
        if policy is None:
            policy = policy_from_config(config.buffer)
        if blocks is not None and not callable(blocks):
            blocks = check_blocks(blocks) or None
        options = Options(
            path=_make_absolute(
                check_directory(
                    directory if directory is not None else config.directory, "directory"
                )
            ),
            config=config,
            chat_model=None if chat_model is None else as_chat_model(chat_model),
            summarizer=summarizer,
            embedder=None
            if embedder is None
            else as_embedder(embedder, dimension=config.models.embedding_dimension),
            reranker=None if reranker is None else as_reranker(reranker),
            store=store,
            counter=counter,
            policy=policy if callable(policy) else resolve_policy(policy),
            blocks=blocks,
            redact=None if redact is None else validate_hook(redact),
            redact_long_term=(
                None if redact_long_term is None else BackgroundHook(redact_long_term)
            ),
            reembed=reembed,
            scorer=scorer,
            journal=journal,
            clock=clock or SystemClock(),
            rng=rng or random.SystemRandom(),  # it makes keys, too
        )
        self._lifetime = Lifetime(options)

    @classmethod
    def in_memory(cls, **options: Any) -> Self:
        """A runtime without a directory, of which nothing is left when it closes.

        Takes the options of `Runtime` except the directory.
        """
        runtime = cls(**options)
        given = runtime._lifetime.options
        runtime._lifetime = Lifetime(msgspec.structs.replace(given, path=None))
        return runtime

    @classmethod
    def from_file(
        cls, path: str | Path, *, secrets: Mapping[str, str] | None = None, **options: Any
    ) -> Self:
        """A runtime configured by a ``.yaml``, ``.toml`` or ``.json`` file and the environment.

        `secrets` holds values for ``${{ secrets.NAME }}``; the environment supplies the others.
        Takes the other options of `Runtime` as well.

        Raises:
            ConfigError: see `Config.from_file`.
        """
        return cls(Config.from_file(path, secrets=secrets), **options)

    def __repr__(self) -> str:
        return f"Runtime({self._lifetime.holder.described})"

    # -- handles -----------------------------------------------------------------------------------

    def user(self, user: str) -> User:
        """A handle on a user.

        Raises:
            InvalidId: the id cannot name a user.
        """
        return User(self._lifetime.holder, validate_id(user, "a user id"))

    def session(self, user: str, session: str) -> Session:
        """Short for ``runtime.user(user).session(session)``."""
        return self.user(user).session(session)

    def shared(self, name: str) -> SharedScope:
        """A handle on a memory that agents share, of any user or none.

        Raises:
            InvalidId: the name is not valid.
        """
        return SharedScope(self._lifetime.holder, validate_id(name, "a shared scope's name"))

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Open the runtime, as entering ``async with`` does; returns the runtime.

        Close it with `aclose`, from any task of the same event loop. Prefer ``async with``, which
        closes it in every case. A closed runtime can be opened again, on another event loop as
        well; one in memory is then empty, and one that was given a journal or a store as an object
        is refused.

        Raises:
            RuntimeClosed: the runtime closed the journal or store that it was given, or another
                task closed it while it opened.
            InvalidInput: it is open already, or the event loop is not asyncio's.
            WrongLoop: it is open on another event loop.
            ConfigError, DirectoryLocked, DirectoryUnusable, JournalTooNew, JournalDamaged,
                EmbedderChanged: see `Runtime`.
        """
        await self._lifetime.start()
        return self

    async def aclose(self) -> None:
        """Refuse new requests, finish accepted ones, leave jobs for the next start, and close.

        Leaving ``async with`` does the same. Any task of the runtime's event loop may call it, and
        more than once. It returns when the directory is free.

        Raises:
            ReentrantAsk: called from background work: a chat model, a memory block, an embedder.
            WrongLoop: the runtime is open on another event loop.
        """
        await self._lifetime.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        lifetime: Lifetime | None = getattr(self, "_lifetime", None)  # None: bad options
        if lifetime is not None and lifetime.holder.phase == "open":
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    async def ready(self, *, timeout_s: float | None = None) -> None:
        """Wait until models and tables are loaded, so that the first recall is as fast as others.

        Loading begins when the runtime opens, in the background, and takes a second or more.
        Appends and `Session.load` without a query need none of it. Call this before a server takes
        traffic, or in its readiness probe: once everything is loaded, it returns at once. What
        failed to load is tried again by each call. Models behind a network are not called.

        Args:
            timeout_s: seconds to wait; None for no limit. Loading goes on afterwards.

        Raises:
            NotReady: it took longer than `timeout_s`.
            LongTermError: long-term memory cannot be opened.
            ModelError: the embedded embedder cannot be loaded.
            RuntimeClosed: the runtime is not open, or closed before it was ready.
            InvalidInput: `timeout_s` is not a number of seconds.
        """
        check_seconds(timeout_s, "timeout_s")
        warm_up = self._lifetime.internals.warm_up
        with anyio.move_on_after(timeout_s):
            return await warm_up.result()
        raise NotReady(f"models and tables were not loaded within {timeout_s:g} s; call it again")

    async def settle(self) -> None:
        """Wait until all background work that exists now is done, for tests and shutdown.

        Rows that came in bulk are then in the indices of long-term memory as well.
        """
        parts = self._lifetime.internals
        await parts.supervisor.drain_all()
        await parts.index.index_written()

    # -- state -------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The memory directory; None for a runtime in memory."""
        return self._lifetime.options.path

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._lifetime.options.config

    @property
    def internals(self) -> Internals:
        """The parts of an open runtime, for tests and tools: they may change in any release.

        Raises:
            RuntimeClosed: the runtime is not open.
        """
        return self._lifetime.internals_anywhere

    def message_tokens(self, message: MessageLike) -> int:
        """Tokens of a chat message by the runtime's counter.

        Raises:
            InvalidMessage: it is not a chat message.
        """
        return count_message(self._lifetime.internals_anywhere.counter, encode_message(message)[1])

    # -- many sessions -----------------------------------------------------------------------------

    async def append_many(
        self,
        batches: Iterable[tuple[Session, MessageLike | Iterable[MessageLike], str | None]],
        *,
        concurrency: int = 64,
    ) -> list[Receipt | RemoraError]:
        """Append to many sessions of any users; each batch is all or none, as by `Session.append`.

        Nothing is raised for a refused batch: the result has a `Receipt` or the exception for each,
        in their order. Batches for one session keep their order.

        Args:
            batches: a session, one message or many, and an idempotency key or None.
            concurrency: sessions at once.

        Raises:
            InvalidInput: `concurrency` is not positive.
        """
        check_int(concurrency, "concurrency", low=1)
        self._lifetime.internals  # noqa: B018  # raises, although a refused batch does not
        return await append_batches(collect(batches, "batches"), concurrency=concurrency)

    async def export(
        self, path: str | Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """Write all sessions and users to a file or a directory (docs/reference/export-format.md).

        Appends go on: each session is written as it is when its turn comes. `path` is complete and
        on disk at the end; until then nothing is there.

        Args:
            path: a file that ends in ``.jsonl``; any other name becomes a directory of Parquet
                files.
            overwrite: replace what is there.
            progress: called with the number of messages done, and of all.

        Raises:
            InvalidInput: `path` exists, or looks like a file and does not end in ``.jsonl``.
            StorageError: the journal cannot be read, or the disk refused.
        """
        target = check_path(path, "path")
        check_flag(overwrite, "overwrite")
        check_function(progress, "progress")
        transfers = self._lifetime.internals.transfers
        return await transfers.export_to(target, overwrite=overwrite, progress=progress)

    async def import_(
        self, path: str | Path, *, skip_existing: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """Import what `export` wrote, here or elsewhere.

        The whole export is checked before anything is written. Tokens are counted, and long-term
        memory is embedded, by this runtime's own models, in the background: `settle` waits for
        that. Idempotency keys are not imported. A crash leaves whole sessions; repeat the call with
        `skip_existing`.

        Args:
            path: a file or a directory.
            skip_existing: keep existing sessions as they are; otherwise nothing is imported if any
                exists.
            progress: called with the number of messages done, and of all.

        Raises:
            InvalidExport: it is not a complete export, `line` says where; nothing was written.
            InvalidInput: a session exists, or there is nothing to read at `path`; nothing was
                written.
            RedactionFailed: the redaction hook failed on a session; those before it are there.
        """
        source = check_path(path, "path")
        check_flag(skip_existing, "skip_existing")
        check_function(progress, "progress")
        transfers = self._lifetime.internals.transfers
        return await transfers.import_from(source, skip_existing=skip_existing, progress=progress)


def _make_absolute(path: Path) -> Path:
    """So that the program may change its working directory before or after it opens the runtime."""
    try:
        return path.absolute()
    except FileNotFoundError:  # the working directory is gone: opening refuses the path
        return path
