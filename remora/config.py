"""The configuration: one tree of frozen structs, each default beside its reason.

`Config()` is what runs when nothing is said. A tree is read from a dict, a TOML or YAML file, and
the environment; a key that means nothing is refused, with the nearest one that does. The docstring
under each key is what ``remora config --defaults`` prints above it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from remora.config_keys import section, translate_muxi, unknown_key
from remora.errors import ConfigError
from remora.secrets import Secret, refers_to_secret, resolve_secret

__all__ = [
    "ActivationConfig",
    "BufferConfig",
    "Config",
    "ContextConfig",
    "ImportanceConfig",
    "JournalConfig",
    "LongTermConfig",
    "MailboxConfig",
    "ModelConfig",
    "RecallConfig",
    "RetentionConfig",
    "Secret",
    "SupervisorConfig",
    "SynopsisConfig",
    "TokensConfig",
    "WorkingConfig",
]

Durability = Literal["power", "process", "none"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of the tree; positive numbers are checked when it is built."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                low, strict = _LOWEST.get(name, (0, True))
                if not math.isfinite(value):
                    raise ConfigError(f"{name} must be a finite number, not {value}", key=name)
                if value < low or (strict and value == low):
                    raise ConfigError(
                        f"{name} must be {'over' if strict else 'at least'} {low}, not {value}",
                        key=name,
                    )


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
    "dedup_window": (0, False),
    "max_user_rows": (0, False),
    "weight": (0, False),
    "cache": (0, False),
    "age_days": (0, False),
    "session_messages": (0, False),
    "total_mb": (0, False),
    "hot_mb": (0, False),
}


class BufferConfig(_Section, frozen=True, kw_only=True):
    """What a session keeps verbatim, and when it folds."""

    policy: Literal["summary_buffer", "keep_all", "window", "token_window", "summary", "ring"] = (
        "summary_buffer"
    )
    """What leaves the buffer and what becomes of it: see remora.actors.policies.buffer.

    Windows and the ring go by `size`, the others by tokens.
    """
    size: int = 50
    """Messages that a window or a ring holds."""
    multiplier: int = 10
    """A ring keeps `size` times `multiplier` summary entries."""
    batch: int = 10
    """Messages that a ring folds into one summary entry."""
    token_flush_size: int = 3_000
    """Tokens that long-term memory and memory blocks are handed at once, or one whole turn."""
    vector_search: bool = True
    """Search in a session's buffer compares meanings where there is an embedder, and words
    otherwise.
    """
    dedup_window: int = 0
    """A message equal to one of the newest so many is taken for a repetition and skipped.

    0: equal messages are legal.
    """
    token_limit: int = 30_000
    """Short-term and long-term memory together, in one context."""
    fold_ratio: float = 0.7
    """The buffer folds above this share of `token_limit`, down to half of that."""
    overdraft_ratio: float = 2.0
    """Unfolded tokens, as a multiple of `token_limit`, at which a slow summarizer is no longer
    waited for (G6).
    """
    summary_tokens: int = 800
    """Longest summary."""
    summary_prefix: str = "Summary of earlier conversation: "
    """What the summary's system message begins with.

    Kept with each summary, so a change is for later ones.
    """
    max_message_bytes: int = 16_777_216
    """Largest single message, encoded."""

    @property
    def fold_above_tokens(self) -> int:
        """The trigger, in tokens."""
        return max(int(self.token_limit * self.fold_ratio), 1)


class MailboxConfig(_Section, frozen=True, kw_only=True):
    """Bounds of one session's mailbox, and of all together (G10)."""

    max_messages: int = 1_000
    """Messages that may wait in it."""
    max_bytes: int = 33_554_432
    """Bytes that they may have together; one message may always wait."""
    max_total_bytes: int = 268_435_456
    """Bytes that may wait for their turn or for the disk, of all sessions together, a kilobyte for
    each request included. From half of it on, no user has more than an equal share of that half;
    what is beyond is refused, or waits, as `when_full` says.
    """
    share_writes: int = 16
    """Writes, of a kilobyte, that one user may have on their way to the disk at a time, while
    others write as well: fewer are fairer, more let a busy user go faster on a disk that is slow to
    sync.
    """
    timeout_s: float = 30.0
    """Deadline of a request whose caller named none."""
    when_full: Literal["refuse", "wait"] = "refuse"
    """Refuse the newest with MailboxFull, or let its sender wait until its deadline."""


class ActivationConfig(_Section, frozen=True, kw_only=True):
    """How many sessions live in memory, and how long (G12)."""

    idle_s: float = 300.0
    """A session that finished its last turn this long ago is flushed and leaves memory."""
    max_live: int = 100_000
    """Sessions in memory; the longest idle leave first."""
    max_bytes: int = 2_147_483_648
    """Bytes of session state; the longest idle leave first."""


class JournalConfig(_Section, frozen=True, kw_only=True):
    """The write-ahead journal (G3)."""

    durability: Durability = "power"
    """power: an acknowledged message survives power loss. process: it survives kill -9. none.

    Nothing is promised.
    """
    max_batch_writes: int = 8_192
    """Writes joined in one group commit."""
    max_wal_mb: int = 64
    """Size of the write-ahead log from which an alarm is worth it that some reader holds it
    back.
    """


class RetentionConfig(_Section, frozen=True, kw_only=True):
    """How long originals are archived that left their session's buffer and are in long-term memory;
    0 is no bound (G6).
    """

    age_days: float = 0.0
    """Older ones go."""
    session_messages: int = 0
    """Of each session those beyond this go, the oldest first."""
    total_mb: float = 0.0
    """Of all sessions together those beyond this go, the oldest first."""
    interval_s: float = 3_600.0
    """How often the supervisor looks for such."""


class LongTermConfig(_Section, frozen=True, kw_only=True):
    """Long-term memory in LanceDB."""

    enabled: bool = True
    """Without it what overflows is summarized and archived, and nothing can be recalled."""
    shards: int = 8
    """Tables over which users are hashed; fixed when the directory is made."""
    batch_rows: int = 1_000
    """Rows in one commit."""
    batch_ms: float = 100.0
    """Rows wait this long for company before they are committed."""
    compact_fragments: int = 20
    """Commits to a shard after which it is compacted.

    What came since is searched without the full-text index.
    """
    compact_interval_s: float = 30.0
    """How often the supervisor looks for shards to compact."""
    keep_versions_s: float = 600.0
    """Age at which old table versions are removed; readers need a while."""
    index_user_rows: int = 2_000
    """Rows in a shard above which the user column is indexed."""
    window_chars: int = 300
    """How much of each neighbouring message is searched along with a message."""
    uri: Secret = Secret()
    """Where LanceDB lives: a path or an object store's address.

    Empty means inside the directory.
    """
    max_user_rows: int = 0
    """A user's rows beyond this are pruned by the supervisor; 0: never."""
    prune: Literal["fifo", "age", "importance", "lru"] = "importance"
    """Which rows go first."""
    prune_interval_s: float = 3_600.0
    """How often the supervisor looks for users with too many rows."""
    max_age_days: float = 365.0
    """With `prune: age`, rows older than this go first."""


class WorkingConfig(_Section, frozen=True, kw_only=True):
    """Working memory: what a user's agents look up within the day, by meaning."""

    max_memory_mb: float = 10.0
    """Of each user; the oldest items leave first."""
    fifo_interval_min: float = 5.0
    """How often the supervisor has every live user's actor clean up."""
    embedding_cache: int = 1_000
    """Texts whose vectors are kept, the least recently used leaving first."""
    k: int = 5
    """Items that `load(query=…)` brings."""


class SynopsisConfig(_Section, frozen=True, kw_only=True):
    """The synopsis of a user: who they are, and what they are about."""

    identity_ttl: float = 604_800.0
    """Seconds for which name, preferences and traits hold: 7 days."""
    context_ttl: float = 3_600.0
    """Seconds for which recent topics and goals hold: an hour."""
    refresh_on_access: bool = True
    """A synopsis that is read lives on for a whole term."""
    max_tokens: int = 1_000
    """Both parts together."""
    deadline_s: float = 0.5
    """`load(query=…)` goes on without a synopsis after this long, and says so."""
    prompt: str = ""
    """What a chat model is told before it sees a user's memories and messages.

    Empty for remora's own.
    """


class ImportanceConfig(_Section, frozen=True, kw_only=True):
    """What makes a memory worth keeping."""

    formula: Literal["bounded", "seed"] = "bounded"
    """bounded: 0 to 1, whatever the access count.

    Seed: MUXI's own, whose logarithm lets access count swamp the rest.
    """
    half_life_days: float = 30.0
    """Age at which recency has halved."""
    score_messages: bool = False
    """Weigh messages as they come, by what they look like, where the application has no scorer of
    its own.
    """
    weight: float = 0.2
    """How much the importance that its sender gave a memory moves its rank; 0.5 moves nothing."""


class ContextConfig(_Section, frozen=True, kw_only=True):
    """How a context is put together."""

    recent: int = 10
    """The newest messages, which are in every context that they fit into."""
    insert_method: Literal["system", "user", "tail"] = "system"
    """Where memory blocks go: the system message, the newest user message, or a message before
    that, which leaves the provider's prompt cache alone.
    """
    blocks_share: float = 0.3
    """Of the budget, kept for memory blocks from older messages (the conversation has the other
    0.7).
    """
    block_timeout_s: float = 5.0
    """A memory block that has not answered after this long is left out, and named in the context's
    sources.
    """


class RecallConfig(_Section, frozen=True, kw_only=True):
    """How lists of candidates become one ranking; measured on LoCoMo, REALTALK, BFCL and BEAM."""

    k: int = 16
    """Most memories that `load(query=…)` brings.

    `context_share` may allow fewer. 16 instead of 8 put all the evidence into .77 instead of .72 of
    LoCoMo's contexts, for some 350 tokens.
    """
    depth: int = 100
    """Candidates taken from each list."""
    turn_weight: float = 0.5
    """Weight of the full-text match of the message."""
    window_weight: float = 0.5
    """Weight of the full-text match of the message with its neighbours."""
    vector_weight: float = 0.25
    """Suits the embedded embedder.

    0.5 a transformer (LoCoMo, e5-small: recall@5 .736 at 0.25, .743 at 0.5).
    """
    vector_agreement: float = 0.2
    """Correlation of the vector list with the text lists below which the vector list loses weight,
    so that a useless embedder does no harm; 0 trusts any.
    """
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
    """Factor on what unnamed users said.

    In agent chat the evidence is in their messages, three to one.
    """
    deadline_s: float = 1.0
    """`load(query=…)` goes on without long-term memory after this long, and says so."""
    context_share: float = 0.25
    """Of the budget, kept for recalled memories from older messages."""
    cache: int = 1_000
    """Recalls whose results are kept until something is written about their user."""
    hot_mb: int = 64
    """Memory for the rows and vectors of the users who recalled last, which are searched there and
    not in the store: 2.5 to 3.5 kB a row of a conversation. 0 asks the store each time: for one
    that other processes write to, or searches its own way.
    """
    hot_rows: int = 5_000
    """A user with more rows than this is always searched in the store."""


class ModelConfig(_Section, frozen=True, kw_only=True):
    """Which models do the work; the defaults are embedded and need no key and no network."""

    summarizer: Literal["extractive", "lead", "tail", "openai"] = "extractive"
    """extractive picks sentences, lead takes each message's first one, tail the end verbatim.

    None needs a model. openai is any OpenAI-compatible endpoint.
    """
    embedder: Literal["wordllama", "openai", "none"] = "wordllama"
    """wordllama is embedded; none leaves recall to full-text search."""
    base_url: str = ""
    """An OpenAI-compatible endpoint; empty means OPENAI_BASE_URL, else OpenAI's own."""
    api_key: Secret = Secret()
    """Empty means OPENAI_API_KEY."""
    summary_prompt: str = ""
    """What stands before the conversation's lines when a chat model is asked for a summary.

    Empty means remora's own.
    """
    chat_model: str = "gpt-4o-mini"
    """The endpoint's name for the model that summarizes."""
    embedding_model: str = "text-embedding-3-small"
    """The endpoint's name for the model that embeds."""
    embedding_dimension: int = 1536
    """Numbers in a vector of the endpoint's, or of a plain callable's.

    Other embedders say it themselves.
    """
    timeout_s: float = 60.0
    """Deadline of one request to the endpoint."""


class SupervisorConfig(_Section, frozen=True, kw_only=True):
    """Background jobs (G6, G7, G11)."""

    summarize_concurrency: int = 4
    """Summaries written at once."""
    flush_concurrency: int = 32
    """Flushes to long-term memory under way at once."""
    max_attempts: int = 6
    """Attempts before a job that fails in itself is set aside."""
    backoff_s: float = 0.5
    """Pause before the second attempt; it doubles with each."""
    max_backoff_s: float = 60.0
    """Longest pause."""
    jitter: float = 0.5
    """Share of the pause that is added to it at most, at random."""
    breaker_failures: int = 5
    """Failures in a row, over all sessions, after which the chat model is left alone for a
    while.
    """
    breaker_rest_s: float = 30.0
    """How long that is."""
    drain_s: float = 10.0
    """How long `aclose` waits for what was accepted."""


class TokensConfig(_Section, frozen=True, kw_only=True):
    """How tokens are counted."""

    counter: Literal["tiktoken", "heuristic"] = "tiktoken"
    """tiktoken is exact for OpenAI's models and needs no network.

    The heuristic takes a quarter of the length.
    """
    encoding: Literal["o200k_base", "cl100k_base"] = "o200k_base"
    """Which of tiktoken's vocabularies."""
    unit: Literal["bytes", "characters"] = "bytes"
    """What the heuristic divides by four."""
    image_tokens: int = 256
    """What an image is taken to cost."""
    audio_tokens: int = 256
    """What a piece of audio is taken to cost."""
    file_tokens: int = 2_048
    """What a document is taken to cost."""


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
    retention: RetentionConfig = RetentionConfig()
    long_term: LongTermConfig = LongTermConfig()
    working: WorkingConfig = WorkingConfig()
    synopsis: SynopsisConfig = SynopsisConfig()
    importance: ImportanceConfig = ImportanceConfig()
    recall: RecallConfig = RecallConfig()
    context: ContextConfig = ContextConfig()
    models: ModelConfig = ModelConfig()
    supervisor: SupervisorConfig = SupervisorConfig()
    tokens: TokensConfig = TokensConfig()

    @classmethod
    def from_dict(
        cls,
        tree: Mapping[str, Any],
        *,
        secrets: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Config:
        """Read a nested dict; MUXI's own keys are understood under ``memory``.

        Args:
            tree: sections of keys.
            secrets: values for ``${{ secrets.NAME }}``, which fields of type `Secret` may hold.
            environment: where a name that is not in `secrets` is looked up; the process's own
                otherwise. Nothing else is read from it: see `from_file` and `from_environment`.

        Raises:
            ConfigError: an unknown key (the nearest known one is named), a value of the wrong type
                or range, a secret that is nowhere or stands where it would be printed.
        """
        return _build(tree, {}, secrets, environment)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        secrets: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Config:
        """Read ``.toml``, ``.yaml``, ``.yml`` or ``.json``, then the environment over it.

        ``REMORA_BUFFER__TOKEN_LIMIT=4000`` sets ``buffer.token_limit``. See `from_dict` for
        `secrets`.

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
            raise ConfigError(f"{path}: {_syntax_problem(e)}") from None
        variables = os.environ if environment is None else environment
        return _build({} if tree is None else tree, variables, secrets, environment)

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        secrets: Mapping[str, str] | None = None,
    ) -> Config:
        """The defaults, changed by ``REMORA_SECTION__KEY`` variables.

        Raises:
            ConfigError: see `from_dict`.
        """
        return _build({}, os.environ if environment is None else environment, secrets, environment)


def _build(
    source: object,
    variables: Mapping[str, str],
    secrets: Mapping[str, str] | None,
    environment: Mapping[str, str] | None,
) -> Config:
    if not isinstance(source, Mapping):
        raise ConfigError(
            f"the configuration must be a mapping of sections, not {type(source).__name__}"
        )
    if secrets is not None and not isinstance(secrets, Mapping):
        raise ConfigError(
            f"secrets must be a mapping of names to texts, not {type(secrets).__name__}"
        )
    tree, written_as = translate_muxi(source)

    def resolve(text: str, key: str) -> Secret:
        return resolve_secret(
            text,
            key=key,
            secrets=secrets,
            environment=os.environ if environment is None else environment,
        )

    try:
        return msgspec.convert(
            _check_keys(_apply_environment(tree, variables), Config, "", resolve),
            Config,
            dec_hook=_dec_hook,
        )
    except msgspec.ValidationError as e:
        # msgspec: "what - at `$.section.key`"; a check of ours: "key must …", raised for the
        # section as a whole
        text, _, at = str(e).partition(" - at `$")
        key = at.strip(".`")
        if isinstance(e.__cause__, ConfigError):
            text, key = (
                str(e.__cause__).removeprefix(e.__cause__.key),
                f"{key}.{e.__cause__.key}".lstrip("."),
            )
        else:
            text = f": {text[:1].lower()}{text[1:]}"
        written = f" (written as {written_as[key]})" if key in written_as else ""
        raise ConfigError(f"{key}{written}{text}", key=key) from e


def _syntax_problem(error: Exception) -> str:
    """What is wrong and where, without the line itself: it may hold a secret."""
    cause = error.__context__
    mark = getattr(cause, "problem_mark", None)
    return (
        str(error)
        if mark is None
        else f"line {mark.line + 1}, column {mark.column + 1}: {getattr(cause, 'problem', '')}"
    )


def _dec_hook(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, Secret):
        return value
    raise TypeError(f"expected text, not {type(value).__name__}")


def _secret_keys(kind: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        if field.type is Secret:
            yield f"{path}{field.name}"
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _secret_keys(field.type, f"{path}{field.name}.")


def _check_keys(
    tree: Mapping[str, Any],
    kind: type[msgspec.Struct],
    path: str,
    resolve: Callable[[str, str], Secret],
) -> dict[str, Any]:
    """The tree, without unknown keys, and with secrets where they belong and nowhere else."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    checked: dict[str, Any] = {}
    for key, value in tree.items():
        dotted = f"{path}{key}"
        if key not in fields:
            raise unknown_key(path, key, fields)
        wanted = fields[key]
        if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
            checked[key] = _check_keys(section(value, dotted), wanted, f"{dotted}.", resolve)
        elif wanted is Secret and isinstance(value, str):
            checked[key] = resolve(value, dotted)
        elif isinstance(value, str) and refers_to_secret(value):
            allowed = ", ".join(_secret_keys(Config))
            raise ConfigError(
                f"{dotted} may not hold a secret, for it would be printed; these may: {allowed}",
                key=dotted,
            )
        elif get_origin(wanted) is Literal and value not in get_args(wanted):
            raise ConfigError(
                f"{dotted} must be one of {', '.join(get_args(wanted))}, not {value!r}", key=dotted
            )
        else:
            checked[key] = value
    return checked


def _apply_environment(tree: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    merged: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in tree.items()}
    sections = {field.name: field.type for field in msgspec.structs.fields(Config)}
    for variable, text in environment.items():
        part, separator, key = variable.removeprefix("REMORA_").lower().partition("__")
        if not variable.startswith("REMORA_") or not separator:
            continue
        kinds = (
            {f.name: f.type for f in msgspec.structs.fields(sections[part])}
            if part in sections
            else {}
        )
        target = merged.setdefault(part, {})
        if isinstance(target, dict):
            target[key] = _parse_variable(text, kinds.get(key, str))
    return merged


def _parse_variable(text: str, kind: Any) -> object:
    """Environment text as the type that the key wants.

    What does not parse is left for the tree's own check.
    """
    if kind is Secret or (get_origin(kind) is Literal and text in get_args(kind)):
        return text
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        return text
