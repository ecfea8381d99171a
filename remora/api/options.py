"""The options that the application passed to a runtime, and the models that follow from them."""

from __future__ import annotations

import importlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from remora.actors.blocks.base import BlocksLike
from remora.actors.policies.buffer import PolicyLike
from remora.actors.policies.summary import DEFAULT_PROMPT, ChatSummarizer
from remora.config import Config
from remora.errors import ConfigError
from remora.messages import ChatDict
from remora.models.cache import CachingEmbedder
from remora.models.compression import CompressionMeter, LeadSummarizer, TailSummarizer
from remora.models.extractive import ExtractiveSummarizer
from remora.models.ports import ChatModel, Embedder, Reranker, Summarizer
from remora.runtime.clock import Clock
from remora.runtime.threads import run_in_thread
from remora.storage.layout import ShardPlace
from remora.storage.ports import Journal, LongTermStore
from remora.tokens import CheckedCounter, HeuristicCounter, TiktokenCounter, TokenCounter

if TYPE_CHECKING:
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


class Models(msgspec.Struct, frozen=True):
    """The models: what counts, embeds and summarizes.

    Attributes:
        chat: None if there is no chat model.
        embedder: None if there is none.
        cached: the embedder, with a cache.
        fallback: summarizes when `summarizer` fails; the same one where nothing else is configured.
        reranker: None if there is none.
    """

    counter: TokenCounter
    chat: ChatModel | None
    embedder: Embedder | None
    cached: CachingEmbedder | None
    summarizer: CompressionMeter
    fallback: CompressionMeter
    reranker: Reranker | None


async def build_models(options: Options, closers: list[Callable[[], Any]]) -> Models:
    """Make the models.

    Args:
        options: what the application chose.
        closers: gets what must be called at the end, also if this fails.

    Raises:
        ConfigError: one of them cannot be used.
    """
    if options.models is not None:
        return await options.models.build(options, closers)
    chat = await run_in_thread(_make_chat_model, options, closers)
    counter, embedder, cached = await build_intake_models(options, closers)
    reranker = await run_in_thread(_make_reranker, options, closers)
    summarizer, fallback = _make_summarizers(options, counter, chat)
    return Models(counter, chat, embedder, cached, summarizer, fallback, reranker)


async def build_intake_models(
    options: Options, closers: list[Callable[[], Any]]
) -> tuple[TokenCounter, Embedder | None, CachingEmbedder | None]:
    """Make what counts and embeds where messages come in: the counter, and the embedder if any.

    Raises:
        ConfigError: one of them cannot be used.
    """
    # in threads: a model's module may import half a framework
    counter = options.counter
    if counter is None:
        counter = await run_in_thread(_make_counter, options.config)
    elif type(counter) not in {HeuristicCounter, TiktokenCounter}:
        counter = await run_in_thread(CheckedCounter, counter)
    embedder = await run_in_thread(_make_embedder, options, closers)
    cached = None
    if embedder is not None:
        cached = CachingEmbedder(embedder, size=options.config.working.embedding_cache)
    return counter, embedder, cached


class SharedModels:
    """Models of several runtimes of one event loop, all with the same options.

    The first runtime that opens makes them, the last one that closes closes them. Each has
    summarizers of its own, which count what they did.
    """

    def __init__(self) -> None:
        self._made: Models | None = None
        self._closers: list[Callable[[], Any]] = []
        self._users = 0

    async def build(self, options: Options, closers: list[Callable[[], Any]]) -> Models:
        """Models for one more runtime; `closers` gets what must be called when it closes.

        Raises:
            ConfigError: one of them cannot be used.
        """
        self._users += 1
        closers.append(self._leave)
        if self._made is None:
            alone = msgspec.structs.replace(options, models=None)
            self._made = await build_models(alone, self._closers)
        made = self._made
        summarizer, fallback = _make_summarizers(options, made.counter, made.chat)
        return msgspec.structs.replace(made, summarizer=summarizer, fallback=fallback)

    async def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            closers, self._closers, self._made = self._closers, [], None
            for close in closers:
                await close()


def _make_summarizers(
    options: Options, counter: TokenCounter, chat: ChatModel | None
) -> tuple[CompressionMeter, CompressionMeter]:
    """The summarizer, and the one for when it fails."""
    fallback = CompressionMeter(ExtractiveSummarizer(counter.count), counter.count)
    chosen = _choose_summarizer(options, counter, chat)
    return fallback if chosen is None else CompressionMeter(chosen, counter.count), fallback


def _make_counter(config: Config) -> TokenCounter:
    tokens = config.tokens
    media = {
        "image_url": tokens.image_tokens,
        "video_url": tokens.video_tokens,
        "input_audio": tokens.audio_tokens,
        "file": tokens.file_tokens,
    }
    if tokens.counter == "heuristic":
        return HeuristicCounter(tokens.unit, media_tokens=media, media_family=tokens.media)
    return TiktokenCounter(tokens.encoding, media_tokens=media, media_family=tokens.media)


def _make_remote(
    key: str, kind: str, config: Config, closers: list[Callable[[], Any]], module: str = "openai"
) -> Any:
    model = getattr(_load(key, module), kind)(config.models)
    closers.append(model.aclose)
    return model


def _load(key: str, module: str) -> Any:
    """A module of `remora.models`, which a key of the configuration asks for.

    Raises:
        ConfigError: what it needs is not installed.
    """
    try:
        return importlib.import_module(f"remora.models.{module}")
    except ImportError as e:
        raise ConfigError(f"{key}: {e}", key=key) from e


def _make_chat_model(options: Options, closers: list[Callable[[], Any]]) -> ChatModel | None:
    chat = options.chat_model
    if chat is None and options.config.models.summarizer == "openai":
        chat = _make_remote("models.summarizer", "OpenAIChatModel", options.config, closers)
    return chat


def _make_embedder(options: Options, closers: list[Callable[[], Any]]) -> Embedder | None:
    embedder = options.embedder
    if embedder is None and options.config.models.embedder == "openai":
        embedder = _make_remote("models.embedder", "OpenAIEmbedder", options.config, closers)
    elif embedder is None and options.config.models.embedder == "wordllama":
        embedder = _load("models.embedder", "static").WordLlamaEmbedder()
    elif embedder is None and options.config.models.embedder == "minilm":
        embedder = _load("models.embedder", "minilm").MiniLMEmbedder()
    return embedder


def _make_reranker(options: Options, closers: list[Callable[[], Any]]) -> Reranker | None:
    reranker = options.reranker
    if reranker is None and options.config.models.reranker == "minilm":
        reranker = _load("models.reranker", "minilm").MiniLMReranker()
    elif reranker is None and options.config.models.reranker == "http":
        reranker = _make_remote(
            "models.reranker", "HttpReranker", options.config, closers, module="http_reranker"
        )
    return reranker


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
