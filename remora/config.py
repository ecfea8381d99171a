"""The configuration: one tree of frozen structs, each default beside its reason.

`Config()` is what runs when nothing is said. A tree is read from a dict, a TOML or YAML file, and the environment; a key
that means nothing is refused, with the nearest one that does.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from remora.errors import ConfigError

__all__ = [
    "ActivationConfig",
    "BufferConfig",
    "Config",
    "JournalConfig",
    "LongTermConfig",
    "MailboxConfig",
    "ModelConfig",
    "RecallConfig",
    "Secret",
    "SupervisorConfig",
    "TokensConfig",
]

Durability = Literal["power", "process", "none"]


class Secret(str):
    """A string that prints as stars (S2.34)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'" if self else "''"


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of the tree; positive numbers are checked when it is built."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                low, strict = _LOWEST.get(name, (0, True))
                if value < low or (strict and value == low):
                    raise ConfigError(f"{name} must be {'over' if strict else 'at least'} {low}, not {value}", key=name)


_LOWEST: dict[str, tuple[float, bool]] = {
    "vector_weight": (0, False),
    "turn_weight": (0, False),
    "window_weight": (0, False),
    "neighbour_bonus": (0, False),
    "answer_bonus": (0, False),
    "question_penalty": (0, False),
    "vector_agreement": (0, False),
    "jitter": (0, False),
    "batch_ms": (0, False),
}


class BufferConfig(_Section, frozen=True, kw_only=True):
    """What a session keeps verbatim, and when it folds (S1.08, S1.09, S3.08, S3.09)."""

    token_limit: int = 30_000
    """Short-term and long-term memory together, in one context (S3.08)."""
    fold_ratio: float = 0.7
    """The buffer folds above this share of `token_limit` (S3.09), down to half of that (S1.09)."""
    overdraft_ratio: float = 2.0
    """Unfolded tokens, as a multiple of `token_limit`, at which a slow summarizer is no longer waited for (G6)."""
    summary_tokens: int = 800
    """Longest summary."""
    summary_prefix: str = "Summary of earlier conversation: "
    """What the summary's system message begins with (S1.13); kept with each summary, so a change is for later ones."""
    max_message_bytes: int = 16_777_216
    """Largest single message, encoded."""

    @property
    def fold_above_tokens(self) -> int:
        """The trigger, in tokens."""
        return int(self.token_limit * self.fold_ratio)

    @property
    def keep_tokens(self) -> int:
        """What a fold leaves verbatim, at most, in tokens."""
        return self.fold_above_tokens // 2


class MailboxConfig(_Section, frozen=True, kw_only=True):
    """Bounds of one session's mailbox (G10)."""

    max_messages: int = 1_000
    max_bytes: int = 33_554_432
    timeout_s: float = 30.0
    """Deadline of a request whose caller named none."""
    when_full: Literal["refuse", "wait"] = "refuse"
    """Refuse the newest with MailboxFull, or let its sender wait until its deadline."""


class ActivationConfig(_Section, frozen=True, kw_only=True):
    """How many sessions live in memory, and how long (G12)."""

    idle_s: float = 300.0
    """A session that finished its last turn this long ago is flushed and leaves memory."""
    max_live: int = 100_000
    max_bytes: int = 2_147_483_648
    """Bytes of session state; the longest idle leave first."""


class JournalConfig(_Section, frozen=True, kw_only=True):
    """The write-ahead journal (G3)."""

    durability: Durability = "power"
    """power: an acknowledged message survives power loss. process: it survives kill -9. none: it lives in memory."""
    max_batch_writes: int = 8_192
    """Writes joined in one group commit."""


class LongTermConfig(_Section, frozen=True, kw_only=True):
    """Long-term memory in LanceDB."""

    enabled: bool = True
    shards: int = 8
    """Tables over which users are hashed; fixed when the directory is made."""
    batch_rows: int = 1_000
    batch_ms: float = 100.0
    """Rows wait this long for company before they are committed."""
    compact_fragments: int = 20
    """Commits to a shard after which it is compacted: what came since is searched without the full-text index."""
    compact_interval_s: float = 30.0
    keep_versions_s: float = 600.0
    """Age at which old table versions are removed; readers need a while."""
    index_user_rows: int = 2_000
    """Rows in a shard above which the user column is indexed."""
    window_chars: int = 300
    """How much of each neighbouring message is searched along with a message."""


class RecallConfig(_Section, frozen=True, kw_only=True):
    """How lists of candidates become one ranking; measured on LoCoMo, REALTALK, BFCL and BEAM."""

    k: int = 16
    """Most memories that `load(query=…)` brings; `context_share` may allow fewer. 16 instead of 8 put all the evidence
    into .77 instead of .72 of LoCoMo's contexts, for some 350 tokens."""
    depth: int = 100
    """Candidates taken from each list."""
    turn_weight: float = 0.5
    window_weight: float = 0.5
    vector_weight: float = 0.25
    """Suits the embedded embedder; 0.5 a transformer (LoCoMo, e5-small: recall@5 .736 at 0.25, .743 at 0.5)."""
    vector_agreement: float = 0.2
    """Correlation of the vector list with the text lists below which the vector list loses weight, so that a useless
    embedder does no harm; 0 trusts any."""
    neighbour_bonus: float = 0.3
    """Share of its best neighbour's score that a message gains."""
    neighbour_chars: int = 300
    """Length up to which it gains all of that; of twice the length, half."""
    answer_bonus: float = 0.2
    """Further share that it gains from a question right before it."""
    question_penalty: float = 0.3
    """What a message loses that is nothing but questions; others by their share of questions."""
    speaker_prior: float = 1.5
    """Factor on what was said by somebody whom the query names."""
    user_prior: float = 1.5
    """Factor on what unnamed users said: in agent chat the evidence is in their messages, three to one."""
    deadline_s: float = 1.0
    """`load(query=…)` goes on without long-term memory after this long, and says so."""
    context_share: float = 0.25
    """Largest share of the token budget that recalled memories take."""


class ModelConfig(_Section, frozen=True, kw_only=True):
    """Which models do the work; the defaults are embedded and need no key and no network."""

    summarizer: Literal["extractive", "openai"] = "extractive"
    embedder: Literal["wordllama", "openai", "none"] = "wordllama"
    base_url: str = ""
    """An OpenAI-compatible endpoint; empty means OPENAI_BASE_URL, else OpenAI's own."""
    api_key: Secret = Secret()
    """Empty means OPENAI_API_KEY."""
    chat_model: str = "gpt-4o-mini"
    embedding_model: str = "text-embedding-3-small"
    embedding_dimension: int = 1536
    timeout_s: float = 60.0


class SupervisorConfig(_Section, frozen=True, kw_only=True):
    """Background jobs (G6, G7, G11)."""

    summarize_concurrency: int = 4
    flush_concurrency: int = 32
    max_attempts: int = 6
    backoff_s: float = 0.5
    max_backoff_s: float = 60.0
    jitter: float = 0.5
    breaker_failures: int = 5
    """Failures in a row, over all sessions, after which the chat model is left alone for a while."""
    breaker_rest_s: float = 30.0
    drain_s: float = 10.0
    """How long `aclose` waits for what was accepted."""


class TokensConfig(_Section, frozen=True, kw_only=True):
    """How tokens are counted."""

    counter: Literal["tiktoken", "heuristic"] = "tiktoken"
    encoding: Literal["o200k_base", "cl100k_base"] = "o200k_base"
    unit: Literal["bytes", "characters"] = "bytes"
    """What the heuristic divides by four."""


class Config(_Section, frozen=True, kw_only=True):
    """The whole tree.

    Raises:
        ConfigError: a value out of range.
    """

    directory: str = "remora-memory"
    """Where everything is kept, unless the runtime is given a directory of its own."""
    buffer: BufferConfig = BufferConfig()
    mailbox: MailboxConfig = MailboxConfig()
    activation: ActivationConfig = ActivationConfig()
    journal: JournalConfig = JournalConfig()
    long_term: LongTermConfig = LongTermConfig()
    recall: RecallConfig = RecallConfig()
    models: ModelConfig = ModelConfig()
    supervisor: SupervisorConfig = SupervisorConfig()
    tokens: TokensConfig = TokensConfig()

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Config:
        """Read a nested dict.

        Raises:
            ConfigError: an unknown key (the nearest known one is named), or a value of the wrong type or range.
        """
        if not isinstance(tree, Mapping):
            raise ConfigError(f"the configuration must be a mapping of sections, not {type(tree).__name__}")
        _refuse_unknown(tree, cls, "")
        try:
            return msgspec.convert(tree, cls, dec_hook=_dec_hook)
        except msgspec.ValidationError as e:
            if isinstance(e.__cause__, ConfigError):
                raise ConfigError(str(e), key=e.__cause__.key) from e
            raise ConfigError(str(e)) from e

    @classmethod
    def from_file(cls, path: str | Path, *, environment: Mapping[str, str] | None = None) -> Config:
        """Read ``.toml``, ``.yaml``, ``.yml`` or ``.json``, then the environment over it.

        ``REMORA_BUFFER__TOKEN_LIMIT=4000`` sets ``buffer.token_limit``.

        Raises:
            ConfigError: no such file, no such format, bad syntax, unknown key or bad value.
        """
        path = Path(path)
        try:
            data = path.read_bytes()
        except OSError as e:
            raise ConfigError(f"cannot read the configuration {path}: {e.strerror}") from e
        decoders: dict[str, Callable[[bytes], Any]] = {
            ".toml": msgspec.toml.decode,
            ".yaml": msgspec.yaml.decode,
            ".yml": msgspec.yaml.decode,
            ".json": msgspec.json.decode,
        }
        decode = decoders.get(path.suffix)
        if decode is None:
            raise ConfigError(f"{path} must end in {', '.join(decoders)}")
        try:
            tree = decode(data)
        except (msgspec.DecodeError, ValueError) as e:
            raise ConfigError(f"{path}: {e}") from e
        return cls.from_dict(_overlay(tree or {}, os.environ if environment is None else environment))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        """The defaults, changed by ``REMORA_SECTION__KEY`` variables."""
        return cls.from_dict(_overlay({}, os.environ if environment is None else environment))


def _dec_hook(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise TypeError(f"expected {kind.__name__}")


def _refuse_unknown(tree: Mapping[str, Any], kind: type[msgspec.Struct], path: str) -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in tree.items():
        dotted = f"{path}{key}"
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"; did you mean {path}{near[0]}?" if near else f"; known here: {', '.join(sorted(fields))}"
            raise ConfigError(f"unknown configuration key {dotted}{hint}", key=dotted)
        section = fields[key]
        if isinstance(section, type) and issubclass(section, msgspec.Struct):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{dotted} must be a section of keys, not {type(value).__name__}", key=dotted)
            _refuse_unknown(value, section, f"{dotted}.")


def _overlay(tree: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    merged: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in tree.items()}
    sections = {field.name: field.type for field in msgspec.structs.fields(Config)}
    for variable, text in environment.items():
        section, separator, key = variable.removeprefix("REMORA_").lower().partition("__")
        if not variable.startswith("REMORA_") or not separator:
            continue
        kinds = {f.name: f.type for f in msgspec.structs.fields(sections[section])} if section in sections else {}
        target = merged.setdefault(section, {})
        if isinstance(target, dict):
            target[key] = _parsed(text, kinds.get(key, str))
    return merged


def _parsed(text: str, kind: Any) -> object:
    """Environment text as the type that the key wants; what does not parse is left for the tree's own check."""
    if get_origin(kind) is Literal and text in get_args(kind):
        return text
    try:
        return msgspec.convert(text, kind, strict=False, dec_hook=_dec_hook)
    except msgspec.ValidationError:
        return text
