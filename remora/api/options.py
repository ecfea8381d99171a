"""The options that the application passed to a runtime."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from remora.actors.blocks.base import BlocksLike
from remora.actors.policies.buffer import PolicyLike
from remora.config import Config
from remora.errors import ConfigError
from remora.messages import ChatDict
from remora.models.ports import ChatModel, Embedder, Reranker, Summarizer
from remora.runtime.clock import Clock
from remora.storage.layout import ShardPlace
from remora.storage.ports import Journal, LongTermStore
from remora.tokens import TokenCounter

if TYPE_CHECKING:
    from remora.api.models import SharedModels
    from remora.api.status import TellsStatus

JournalLike: TypeAlias = Journal | Callable[[], Awaitable[Journal]]
"""A journal, or what opens one."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `remora.Runtime`, checked; see there.

    Attributes:
        shard: which shard of a memory this runtime is; None if it is a whole one.
        models: shared with other runtimes; None for models of its own.
        warm_up: load models and tables on opening; otherwise when they are first used.
        control: answers other processes for the memory; None for a socket of the runtime's own.
    """

    path: Path | None
    config: Config
    chat_model: ChatModel | None
    summarizer: Summarizer | None
    embedder: Embedder | None
    reranker: Reranker | None
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
    shard: ShardPlace | None = None
    models: SharedModels | None = None
    warm_up: bool = True
    control: TellsStatus | None = None


def check_options(config: Config | None, journal: JournalLike | None, *, reembed: bool) -> Config:
    """The configuration in force, if these options are valid together.

    Raises:
        ConfigError: they are not.
    """
    if config is None:
        config = Config.from_environment()
    elif not isinstance(config, Config):
        raise ConfigError(
            f"config must be a remora.Config, not {type(config).__name__}; see Config.from_dict"
        )
    if journal is not None and not callable(journal) and not hasattr(journal, "hydrate"):
        raise ConfigError(
            "journal must follow remora.storage.ports.Journal or open one, not "
            f"{type(journal).__name__}"
        )
    if reembed and not config.long_term.enabled:
        raise ConfigError(
            "there is no long-term memory to rebuild: long_term.enabled is false",
            key="long_term.enabled",
        )
    return config
