"""The runtime: what an application opens, and gets its handles from."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from remora.actors.blocks.base import BlocksLike
from remora.actors.blocks.state import check_blocks
from remora.actors.policies.buffer import PolicyLike, policy_from_config, resolve_policy
from remora.actors.policies.redaction import BackgroundHook, validate_hook
from remora.actors.policies.scoring import heuristic_score
from remora.api.base import BaseRuntime
from remora.api.build import Internals
from remora.api.lifetime import Lifetime
from remora.api.operator import LocalOperator, Operator
from remora.api.options import JournalLike, Options, check_options
from remora.config import Config
from remora.errors import ConfigError
from remora.messages import ChatDict
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
)
from remora.services.parts import PartsHolder
from remora.storage.ports import LongTermStore
from remora.tokens import TokenCounter


class Runtime(BaseRuntime):
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

    # -- of the base -------------------------------------------------------------------------------

    @property
    def _holders(self) -> Sequence[PartsHolder]:
        return (self._lifetime.holder,)

    @property
    def _operator(self) -> Operator:
        return LocalOperator(self._lifetime)

    async def _open(self) -> None:
        await self._lifetime.start()

    async def _close(self) -> None:
        await self._lifetime.aclose()

    def __del__(self) -> None:
        lifetime: Lifetime | None = getattr(self, "_lifetime", None)  # None: bad options
        if lifetime is not None and lifetime.holder.phase == "open":
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

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


def _make_absolute(path: Path) -> Path:
    """So that the program may change its working directory before or after it opens the runtime."""
    try:
        return path.absolute()
    except FileNotFoundError:  # the working directory is gone: opening refuses the path
        return path
