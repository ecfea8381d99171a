"""The sections of the configuration, with every key, its default and the reason of it."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec

from remora.config.secrets import Secret
from remora.errors import ConfigError

_SUMMARY_TOKENS = 800
_LEAST_ROOM = 300  # tokens
SHORTEST_LEASE_S = 1.0
LONGEST_LEASE_S = 86_400.0


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of the tree. Its numbers must be finite, and positive unless listed below.

    Values have the types of their keys, also where a section is made without `Config.from_dict`.
    """

    def __post_init__(self) -> None:
        self._check_types()
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                if not math.isfinite(value):
                    raise ConfigError(f"{name} must be a finite number, not {value}", key=name)
                if value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
                    bound = "at least 0" if name in _MAY_BE_ZERO else "over 0"
                    raise ConfigError(f"{name} must be {bound}, not {value}", key=name)

    def _check_types(self) -> None:
        for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            if (value := getattr(self, name)) is default:
                continue
            kind = _types(type(self))[name]
            if isinstance(kind, type) and issubclass(kind, (Section, Secret)):
                if not isinstance(value, kind):
                    raise ConfigError(
                        f"{name} must be a {kind.__name__}, not {type(value).__name__}; "
                        "Config.from_dict takes a tree of dicts",
                        key=name,
                    )
                continue
            try:
                msgspec.convert(value, kind, dec_hook=_same)
            except msgspec.ValidationError as e:
                text = str(e)
                raise ConfigError(f"{name}: {text[:1].lower()}{text[1:]}", key=name) from e


@cache
def _types(section: type[Section]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(section)}


def _same(kind: type, value: object) -> object:
    """A value of a type that msgspec does not know."""
    if isinstance(value, kind):
        return value
    raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")


_MAY_BE_ZERO = frozenset(
    {
        "age_days",
        "instructions_share",
        "answer_bonus",
        "identifier_bonus",
        "batch_ms",
        "cache",
        "dedup_window",
        "forgotten_s",
        "gather_s",
        "hot_mb",
        "jitter",
        "linger_s",
        "list_spread",
        "lock_wait_s",
        "unindexed_rows",
        "max_waiting",
        "max_user_rows",
        "neighbour_bonus",
        "near_words",
        "question_penalty",
        "relevance",
        "floor",
        "rerank_weight",
        "session_weight",
        "session_messages",
        "summary_tokens",
        "total_mb",
        "turn_weight",
        "vector_agreement",
        "vector_weight",
        "warm_up_s",
        "weight",
        "window_weight",
    }
)


class BufferConfig(Section, frozen=True, kw_only=True):
    """The size of a session's buffer, and when it is compacted."""

    policy: Literal["summary_buffer", "keep_all", "window", "token_window", "summary", "ring"] = (
        "summary_buffer"
    )
    """Which messages leave the buffer and what becomes of them: see
    remora.actors.policies.buffer. `window` and `ring` use `size`, the others tokens."""
    size: int = 50
    """Messages that a window or a ring holds."""
    multiplier: int = 10
    """A ring keeps `size` times `multiplier` summary entries."""
    batch: int = 10
    """Messages that a ring summarizes into one entry."""
    token_flush_size: int = 3_000
    """Most tokens in one batch for long-term memory and memory blocks; one tool-call group may be
    larger."""
    vector_search: bool = True
    """Search a session's buffer by meaning if there is an embedder; otherwise by words."""
    dedup_window: int = 0
    """A message that equals one of the newest so many is skipped as a repetition; 0 skips none."""
    token_limit: int = 30_000
    """Short-term and long-term memory together, in one context. What depends on it is lowered with
    it: when the buffer is compacted, `summary_tokens` by default, and the user profile."""
    fold_ratio: float = 0.7
    """The buffer is compacted above this share of `token_limit`, down to half of that."""
    result_tokens: int = 64
    """Most tokens that the result of a tool counts for in `fold_ratio` and `overdraft_ratio`:
    contexts show old results as stubs (`context.stub_tokens`) before anything is summarized."""
    max_bytes: int = 4_194_304
    """The buffer of a session is compacted above this size, whatever its tokens count for."""
    overdraft_ratio: float = 2.0
    """Unsummarized tokens, as a multiple of `token_limit`, that a session may have while a slow
    summarizer works; `overdraft` says what happens beyond."""
    overdraft: Literal["extract", "wait", "refuse"] = "extract"
    """What an append beyond the overdraft does. `extract`: it is stored, and remora writes a
    fallback summary at once. `wait`: it waits until the running compaction is done. `refuse`: it
    raises OverdraftReached, and nothing is written."""
    overdraft_wait_s: float = 30.0
    """With `wait`, how long an append without a `timeout_s` waits before OverdraftReached."""
    summary_tokens: int = 0
    """Longest summary by a model; 0: a quarter of `token_limit`, at most 800. A longer answer is
    not cut, but asked for again. A fallback summary may have half of the tokens that it stands for,
    if that is more, up to what compaction leaves of `token_limit`: 1 - `fold_ratio` of it."""
    summary_prefix: str = "Summary of earlier conversation: "
    """The first words of the summary's message; stored with each summary, so a change
    affects later ones only."""
    max_message_bytes: int = 16_777_216
    """Largest single message, encoded."""

    @property
    def most_summary_tokens(self) -> int:
        """Longest summary by a model."""
        return self.summary_tokens or max(min(self.token_limit // 4, _SUMMARY_TOKENS), 1)

    @property
    def fold_above_tokens(self) -> int:
        """The tokens above which the buffer is compacted."""
        return max(int(self.token_limit * self.fold_ratio), 1)

    def fallback_tokens(self, replaced: int) -> int:
        """Longest fallback summary in place of `replaced` tokens."""
        most = self.token_limit - self.fold_above_tokens
        return max(min(replaced // 2, most), self.most_summary_tokens)


class ContextConfig(Section, frozen=True, kw_only=True):
    """How a context is built."""

    recent: int = 10
    """Of a conversation without tools: the newest messages, which are in every context that has
    room for them."""
    whole_results: int = 3
    """Where a conversation does not fit: so many of the newest results of tools are not reduced to
    a stub; fewer, if they take more than a quarter of the room."""
    stub_tokens: int = 64
    """Most tokens of such a stub: how the result begins and ends, its size, and its message's
    number."""
    keep_results: tuple[str, ...] = ()
    """Names of tools whose results are not reduced to a stub: the newest, for half of the room."""
    insert_method: Literal["system", "user", "tail"] = "system"
    """Where memory blocks go: into the system message, into the newest user message, or (`tail`)
    into a message before that one, which keeps the provider's prompt cache valid. What a block
    repeats of its conversation gets the authority of the message that it is in."""
    instructions_share: float = 0.05
    """Share of the budget for standing instructions of the user ("always …", "please don't …", "I
    am allergic to …"), at the front of each of their contexts, newest first; at least 100 tokens,
    of a small budget a fifth. 0 for none: then they are not noticed, either. They are found by
    their wording, in fourteen languages, in what the user says in the role ``user``, without a name
    or with the user's id as the name: neither tools nor other people give any. It needs long-term
    memory."""
    blocks_share: float = 0.3
    """Share of the budget for memory blocks, taken from older messages."""
    quoted_role: Literal["user", "system", "developer"] = "user"
    """The role of messages that repeat what users, tools and models wrote: recalled memories, the
    synopsis, fallback summaries, and memory blocks at the tail. Instructions hidden in such text
    get the authority of this role."""
    summary_role: Literal["system", "developer", "user"] = "system"
    """The role of a summary that a chat model wrote."""
    block_timeout_s: float = 5.0
    """A memory block that has not answered after this time is left out, and named in the context's
    sources."""


class TurnConfig(Section, frozen=True, kw_only=True):
    """Turns of one session, which run one after the other."""

    wait_s: float = 60.0
    """How long a turn waits for the turns before it; then SessionBusy. A turn takes as long as the
    model."""
    max_waiting: int = 16
    """Turns of one session that may wait; the next one is refused with SessionBusy at once."""


class StateConfig(Section, frozen=True, kw_only=True):
    """Keyed state: small values that the application keeps with a session or a user."""

    max_keys: int = 1_000
    """Keys of one session or user; a further one is refused. They are in memory while it is in
    use."""
    max_value_bytes: int = 16_384
    """Of one value as JSON."""
    adapter_max_keys: int = 20_000
    """Keys of one session or user that adapters keep for a framework, such as LangGraph's items
    and checkpoints. They are in memory while it is in use."""
    adapter_max_value_bytes: int = 4_194_304
    """Of one such value as JSON; bytes take four thirds of their number."""

    def of_adapters(self) -> StateConfig:
        """The bounds of what adapters keep, in place of the application's own."""
        return msgspec.structs.replace(
            self, max_keys=self.adapter_max_keys, max_value_bytes=self.adapter_max_value_bytes
        )


class TokensConfig(Section, frozen=True, kw_only=True):
    """How tokens are counted."""

    counter: Literal["tiktoken", "heuristic"] = "tiktoken"
    """tiktoken is exact for OpenAI's models and needs no network; heuristic is a quarter of the
    length."""
    encoding: Literal["o200k_base", "cl100k_base"] = "o200k_base"
    """Which of tiktoken's vocabularies."""
    unit: Literal["bytes", "characters"] = "bytes"
    """The length that the heuristic divides by four."""
    media: Literal["openai", "anthropic", "gemini"] = "openai"
    """Whose published rules give the tokens of a picture, sound or document, by its size."""
    image_tokens: int = 256
    """Tokens counted for an image whose size is not known: one at an address."""
    video_tokens: int = 2_630
    """The same of a video: ten seconds."""
    audio_tokens: int = 256
    """The same of audio."""
    file_tokens: int = 2_048
    """The same of a document."""


class AttachmentsConfig(Section, frozen=True, kw_only=True):
    """Pictures, sounds and documents that come as base64: stored apart from the messages, once."""

    min_kb: int = 32
    """Base64 of less stays in its message."""
    max_mb: float = 20.0
    """The largest attachment; a larger one is refused."""
    newest: int = 8
    """Contexts hold the attachments of the newest so many messages that have some, up to half of it
    more, and from the newest message of the user on; of older ones they say what they were."""
    context_mb: float = 20.0
    """Most bytes of attachments in a context."""


class WorkingConfig(Section, frozen=True, kw_only=True):
    """Working memory: what a user's agents note and search during the day, by meaning."""

    max_memory_mb: float = 10.0
    """Of each user; the oldest items are removed first."""
    fifo_interval_min: float = 5.0
    """How often the supervisor has every live user's actor clean up."""
    embedding_cache: int = 1_000
    """Texts whose vectors are kept; the least recently used leave first."""
    limit: int = 5
    """Items that `load(query=…)` adds to a context."""


class SynopsisConfig(Section, frozen=True, kw_only=True):
    """The user profile: who a user is, and what they are about."""

    identity_ttl: float = 604_800.0
    """Seconds for which name, preferences and traits hold: 7 days."""
    context_ttl: float = 3_600.0
    """Seconds for which recent topics and goals hold: an hour."""
    refresh_on_access: bool = True
    """Reading a profile extends it by a whole term."""
    shown: Literal["with_model", "always", "never"] = "with_model"
    """Whether `load(query=…)` adds the profile. `with_model`: if there is a chat model to write it.
    `always`: without one, too, as an extract of what was said. `never`: contexts have none, and
    `User.synopsis()` still asks the chat model for it."""
    max_tokens: int = 1_000
    """Both parts together; at most a quarter of `buffer.token_limit`, its share of a context."""
    deadline_s: float = 0.5
    """After this time `load(query=…)` omits the profile, and its sources say so."""
    prompt: str = ""
    """Instructions to the chat model that writes the profile; empty for remora's own."""


class FactsConfig(Section, frozen=True, kw_only=True):
    """Facts that the chat model extracts from what was said, as memories of the user."""

    enabled: bool = False
    """Extract facts from messages when they are indexed: a call of the chat model for each batch of
    messages, and another one that compares the facts with each other and with similar ones. A model
    that is there for summaries does not switch it on, because it costs; without a chat model, and
    without long-term memory, nothing is extracted."""
    per_session: int = 500
    """Facts of one session, at most."""
    max_characters: int = 300
    """Of one fact; a longer one is dropped."""
    prompt: str = ""
    """Instructions to the chat model; empty for remora's own. It must say which JSON to answer."""


class ImportanceConfig(Section, frozen=True, kw_only=True):
    """Weights of a memory's importance."""

    formula: Literal["bounded", "seed"] = "bounded"
    """bounded: 0 to 1 for any access count. seed: MUXI's own, in which the access count can
    outweigh everything else."""
    half_life_days: float = 30.0
    """Age at which recency has halved."""
    score_messages: bool = False
    """Score messages by their form when they are appended, if the application has no scorer."""
    weight: float = 0.2
    """How much a memory's own importance moves its rank; an importance of 0.5 moves nothing."""


class RecallConfig(Section, frozen=True, kw_only=True):
    """How lists of candidates become one ranking; measured on LoCoMo, REALTALK, BFCL and BEAM."""

    limit: int = 500
    """Most memories that `load(query=…)` adds. The budget decides before that: `context_share` of
    it, and what the conversation leaves."""
    relevance: float = 0.15
    """Share of the best memory's score below which a memory is not worth its tokens; more where
    no message has half of the question's words, half of it where the question asks for several
    things. 0 fills the budget. LoCoMo, contexts of 4,000 tokens: all the evidence in .872, with
    2,657 tokens of memories (0: .882, 3,933), and 2,430 tokens for questions of which nobody ever
    spoke (0: 3,932)."""
    depth: int = 200
    """Candidates taken from each list (LoCoMo: R@10 .815 with 200, .807 with 100)."""
    turn_weight: float = 0.5
    """Weight of the full-text match of the message (bm25)."""
    window_weight: float = 0.5
    """Weight of the full-text match of the message with its neighbours (bm25_neighbourhood)."""
    vector_weight: float = 0.35
    """Weight of the similarity of meaning (cosine). For people's chat anything from 0.25 to 0.5 is
    equal with the embedded embedder; agent chat wants more (BEAM: R@10 .504 at 0.25, .535 at
    0.5). A transformer wants 0.5 (LoCoMo, e5-small: R@5 .736 at 0.25, .743 at 0.5)."""
    vector_agreement: float = 0.2
    """Correlation of the vector list with the text lists below which the vector list loses weight,
    so that a useless embedder does no harm; 0 trusts any."""
    neighbour_bonus: float = 0.3
    """Share of its best neighbour's score that a message gains."""
    neighbour_chars: int = 300
    """Length up to which a message gains all of that; at twice the length, half."""
    answer_bonus: float = 0.2
    """Further share that it gains from a question right before it."""
    question_penalty: float = 0.3
    """Share that a message loses if it consists of questions only; others lose in proportion. For
    people with names only: users ask an assistant in the very message that holds the fact (BEAM:
    R@10 rises by .025 without it)."""
    speaker_prior: float = 1.5
    """Factor for messages whose speaker is named in the query."""
    user_prior: float = 1.5
    """Factor for a user's messages, and tools' results, where an assistant answers: three quarters
    of the evidence is in a user's (BEAM: R@10 falls by .066 without it), and most of the rest
    in results. With or without names; not where all who speak are people with names."""
    identifier_bonus: float = 1.0
    """Further share that a message gains if it has the identifier that the question names: an order
    number, a code, an e-mail address, a path. Of several, rare ones count more."""
    near_words: float = 0.4
    """What a word counts that is near a word of the question in meaning, times its cosine; 0 looks
    for none. It finds what was said in other words (LoCoMo: R@5 .755 instead of .743). The
    embedded embedder knows near words, and one of yours may. Everyday words of six languages are
    written down ("heating", "boiler", "Heizung") and count as much without an embedder (R@10
    .828 instead of .823). For a user with more than `hot_rows` rows only these are looked for."""
    session_weight: float = 0.2
    """Weight of the full-text match of a message's whole session (bm25): questions are often about
    what one conversation was about (LoCoMo: R@5 .755 instead of .747)."""
    time_bonus: float = 1.3
    """Factor for messages that say when ("yesterday", "last week"), if the question asks for it, in
    English, German, French, Spanish, Japanese or Chinese (LoCoMo: R@1 .443 instead of .430,
    R@5 .755 instead of .752)."""
    date_bonus: float = 1.75
    """Factor for messages of the days that a question names ("on 7 May", "last summer", "vor zwei
    Wochen"), because they were said or speak of them; 1 reads no dates (LoCoMo, questions with
    dates: R@5 .798 instead of .769)."""
    list_spread: float = 0.05
    """Share of its score that a message loses for each better one of its session, up to seven, if
    the question asks for several things ("which books", "how many", "all the"), in English, German,
    French, Spanish, Japanese or Chinese; 0 for none (LoCoMo, questions of several messages:
    R@10 .531 instead of .510; lists in generated chats: .282 instead of .269)."""
    deadline_s: float = 1.0
    """After this time `load(query=…)` omits long-term memory, and its sources say so."""
    rerank_depth: int = 50
    """How many of the best memories a reranker judges, if there is one; the others keep their
    places behind them. LoCoMo: with 50 a small model raised R@10 from .815 to .830, with 20
    to .826."""
    rerank_weight: float = 0.5
    """What a reranker's scores count among the memories that it judged, from 0 to 1; those of the
    fusion count the rest. LoCoMo, word by word with a MiniLM: R@10 .815 at 0, .830 at 0.35,
    .826 at 0.5, .814 at 0.7, .741 at 1. A large model may deserve more."""
    rerank_deadline_s: float = 0.5
    """After this time the memories keep the order that they were found in, and the sources of
    `load(query=…)` say so. Within `deadline_s`, a reranker has four fifths of what is left."""
    warm_up_s: float = 10.0
    """How long the first `load(query=…)` of a process waits for models and tables that are still
    being loaded, before `deadline_s` begins; 0 does not wait. Loading takes 1 to 3 s; ten leave
    room for a slow disk. `Runtime.ready` waits for it before a server takes requests."""
    insert_method: Literal["tail", "user"] = "tail"
    """Where recalled memories go: into a message of `context.quoted_role` before the newest user
    message, or into that message, at its start."""
    floor: float = 0.0
    """How near a memory must be to a question (the cosine of their vectors) that has none of its
    words, and none of its neighbours' words. What is neither is no answer: `recall` and `load` may
    find nothing. 0 for no floor: the most similar memories are found, however little that is."""
    context_share: float = 0.1
    """Share of the budget that is reserved for recalled memories; of a small budget a quarter, up
    to 300 tokens, if that is more. While the conversation is short, they get what it leaves."""
    cache: int = 1_000
    """Recalls whose results are kept until something is written about their user."""
    unindexed_rows: int = 1_000
    """Rows of a user that are searched although they are not indexed yet, at most, the newest
    first; `context.sources` says when there are more. Two sessions with full buffers have some
    800. A row takes 0.1 ms to make and 5 kB; while a user talks, each recall takes two to three
    times as long for them, most of what recall costs. When a recall finds half as many, or 20,000
    of all users, the sessions with the most are indexed. 0 searches what is indexed only."""
    hot_mb: int = 256
    """Memory for the rows and vectors of the users who recalled last (the user index), which are
    searched there and not in the store: 2.5 to 3.5 kB per row of a conversation. 0 always searches
    the store: for one that other processes write to, or that searches in its own way."""
    hot_rows: int = 20_000
    """A user with more rows than this is always searched in the store, without the words of a
    message's neighbours."""

    def room(self, budget: int) -> int:
        """The tokens of a context's budget that are reserved for recalled memories."""
        return max(int(budget * self.context_share), min(budget // 4, _LEAST_ROOM))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rerank_weight > 1:
            raise ConfigError(
                f"rerank_weight must be at most 1, not {self.rerank_weight}", key="rerank_weight"
            )
        if self.list_spread > 1:
            raise ConfigError(
                f"list_spread must be at most 1, not {self.list_spread}", key="list_spread"
            )


# -- configuration of the models -------------------------------------------------------------------


class ModelConfig(Section, frozen=True, kw_only=True):
    """Which models are used; the defaults are embedded and need no key and no network."""

    summarizer: Literal["extractive", "lead", "tail", "openai"] = "extractive"
    """extractive picks sentences, lead takes the first one of each message, tail keeps the end word
    for word: none needs a model. openai is any OpenAI-compatible endpoint."""
    embedder: Literal["wordllama", "minilm", "openai", "none"] = "wordllama"
    """wordllama is embedded; minilm runs in the process as well, finds more, takes 15 ms of
    processor time a message instead of 0.1, and needs the extra `remora[minilm]`: set
    `recall.vector_weight` to 0.6 for it. none leaves recall to full-text search."""
    reranker: Literal["none", "minilm", "http"] = "none"
    """minilm runs in the process and needs the extra `remora[minilm]`: set `recall.rerank_depth` to
    20 and `recall.rerank_weight` to 0.35 for it. http is any endpoint that takes what Cohere's and
    Jina's take, as vLLM's and Infinity's do: `rerank_url` names it."""
    rerank_url: str = ""
    """The whole URL, as https://api.jina.ai/v1/rerank."""
    rerank_model: str = ""
    """The endpoint's name for the model that reranks; empty for an endpoint that has only one."""
    rerank_api_key: Secret = Secret()
    """Sent as a bearer token; empty for an endpoint without keys. OPENAI_API_KEY is not taken."""
    base_url: str = ""
    """An OpenAI-compatible endpoint; empty means OPENAI_BASE_URL, then OpenAI's own."""
    api_key: Secret = Secret()
    """Empty means OPENAI_API_KEY."""
    summary_prompt: str = ""
    """Instructions before the conversation when a chat model writes a summary; empty means remora's
    own."""
    context_window: int = 32_000
    """Tokens that the model which summarizes can read and write. Longer input is clipped: the head
    and tail of each long message are sent, and the size of what is between."""
    chat_model: str = "gpt-4o-mini"
    """The endpoint's name for the model that summarizes."""
    embedding_model: str = "text-embedding-3-small"
    """The endpoint's name for the model that embeds."""
    embedding_dimension: int = 1536
    """Dimension of the endpoint's vectors, or of a plain callable's; other embedders have their
    own."""
    timeout_s: float = 60.0
    """Deadline of one request to the endpoint."""


# -- configuration of several workers on one box ---------------------------------------------------


class ClusterConfig(Section, frozen=True, kw_only=True):
    """The owner: the process that holds the memory for all workers that `remora.connect`."""

    shards: int | None = None
    """Journals over which users are hashed, fixed when a memory is made. None: as many as there
    are, and 8 where an owner makes a memory."""
    owners: int | None = None
    """Processes that own the memory in a directory, each some of its shards. None: one for each
    four cores of the machine, and never more than there are shards."""
    start_owner: bool = True
    """Whether a worker that finds no owner starts one. Otherwise it waits for `remora serve`."""
    standby: bool = False
    """A second process, with everything loaded, takes over when the owner dies: half a second
    instead of one or two, for 130 to 300 MB."""
    linger_s: float = 30.0
    """How long an owner that a worker started stays after the last worker has left."""
    wait_s: float = 30.0
    """How long a worker waits for an owner that answers."""
    silent_s: float = 2.0
    """An owner that answers no ping for this long is killed, and another one started."""
    stuck_s: float = 30.0
    """An owner whose event loop has not run for this long is killed, although it answers."""
    worker_silent_s: float = 60.0
    """A worker with an open turn that has sent nothing for this long stands still: its connection
    is closed, and its turns end. Workers send something every second."""
    listen: str = ""
    """With journal.dsn: where `remora serve` takes connections of workers, host:port. Elsewhere
    than on loopback it needs `certificate` and `key`."""
    address: str = ""
    """What workers on other machines connect to, host:port; empty: as in `listen`."""
    secret: Secret = Secret()
    """What owners and workers of all machines know, 32 characters or more: each side proves it to
    the other."""
    certificate: str = ""
    """File with the certificate that `remora serve` shows (PEM); it may be self-signed."""
    key: str = ""
    """File with the certificate's private key (PEM)."""
    max_deaths: int = 3
    """Owners that may die within 30 s before workers stop starting others, and raise
    OwnerFailed."""


class MailboxConfig(Section, frozen=True, kw_only=True):
    """Bounds of one session's mailbox, and of all together."""

    max_messages: int = 1_000
    """Messages that may wait in it."""
    max_bytes: int = 33_554_432
    """Bytes that they may have together; one message may always wait."""
    max_total_bytes: int = 268_435_456
    """Bytes that may wait for a handler or for the disk, of all sessions together, with a kilobyte
    added for each request. Above half of it, no user may have more than an equal share of that
    half. Requests beyond it are refused or wait, as `when_full` says."""
    share_writes: int = 16
    """Writes, of a kilobyte each, that one user may have on their way to the disk while others
    write as well: fewer are fairer, more let a busy user go faster on a disk that syncs slowly."""
    timeout_s: float = 30.0
    """Deadline of a request without one of its own."""
    when_full: Literal["refuse", "wait"] = "refuse"
    """Refuse the newest with MailboxFull, or let its sender wait until its deadline."""


class ActivationConfig(Section, frozen=True, kw_only=True):
    """How many sessions stay in memory, and how long."""

    idle_s: float = 300.0
    """A session that has been idle this long is indexed, and then leaves memory."""
    max_live: int = 100_000
    """Sessions in memory; the longest idle leave first."""
    max_bytes: int = 2_147_483_648
    """Bytes of session state; the longest idle leave first."""


class BackgroundConfig(Section, frozen=True, kw_only=True):
    """Where background jobs compute."""

    process: Literal["auto", "never"] = "auto"
    """`auto`: in a process of its own while jobs have computed for more than two seconds, which
    takes 100 MB and a second core; it ends after a minute without work. `never`: in a thread."""


class SupervisorConfig(Section, frozen=True, kw_only=True):
    """Background jobs."""

    summarize_concurrency: int = 4
    """Summaries written at the same time; of one user at most half of that, rounded up."""
    flush_concurrency: int = 32
    """Batches indexed into long-term memory at the same time; of one user at most half of that."""
    max_attempts: int = 6
    """Attempts before a job that fails in itself is dead-lettered."""
    backoff_s: float = 0.5
    """Pause before the second attempt; it doubles with each."""
    max_backoff_s: float = 60.0
    """Longest pause."""
    jitter: float = 0.5
    """Largest random addition to the pause, as a share of it."""
    breaker_failures: int = 5
    """Failures in a row, over all sessions, after which the chat model is not called for a
    while."""
    breaker_rest_s: float = 30.0
    """Length of that pause."""
    resummarize_interval_s: float = 30.0
    """How often sessions with lost messages try to summarize them, when the chat model is back."""
    drain_s: float = 10.0
    """How long `aclose` waits for accepted requests."""


Durability: TypeAlias = Literal["power", "process", "none"]


class JournalConfig(Section, frozen=True, kw_only=True):
    """The write-ahead journal."""

    durability: Durability = "power"
    """power: fsync at each commit, an acknowledged message survives power loss. process: it
    survives kill -9. none: nothing is promised."""
    max_batch_writes: int = 8_192
    """Writes joined in one group commit."""
    max_wal_mb: int = 64
    """Size of the write-ahead log above which a warning says that some reader holds it back."""
    max_import_mb: float = 256.0
    """Largest session of an import of Parquet files, or user without the sessions: its texts, and
    half a kilobyte a row. It is read and committed as a whole, and small files may hold a lot."""
    dsn: Secret = Secret()
    """The journal is in this PostgreSQL, postgresql://user@host/database, and not in the
    directory."""
    schema: str = "remora"
    """The schema of that database that has the journal, and nothing else."""
    memory: str = ""
    """Whose journal it is: a schema that was made under one name is opened under no other."""
    lease_s: float = 10.0
    """An owner of that journal that renews nothing is replaced after so long: 1 s to a day."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not SHORTEST_LEASE_S <= self.lease_s <= LONGEST_LEASE_S:
            raise ConfigError(
                f"lease_s must be {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:,.0f}, not "
                f"{self.lease_s:g}",
                key="lease_s",
            )


class RetentionConfig(Section, frozen=True, kw_only=True):
    """How long messages stay archived that left their buffer and are indexed; 0 is no bound."""

    age_days: float = 0.0
    """Older ones are removed."""
    session_messages: int = 0
    """Most archived messages of one session; the oldest are removed first."""
    total_mb: float = 0.0
    """Most archived megabytes of all sessions together; the oldest are removed first."""
    interval_s: float = 3_600.0
    """How often the supervisor applies these bounds."""
    deleted_s: float = 3_600.0
    """How long files may hold the bytes of what was deleted one by one. Then they are rewritten,
    and the journal is vacuumed: the shorter, the more often."""
    forgotten_s: float = 60.0
    """How long files may hold the bytes of users and sessions that are forgotten one after
    another: the receipt then has `erased_by`. 0: `forget` always returns when no byte is left."""


class ObjectStoreConfig(Section, frozen=True, kw_only=True):
    """How long-term memory at an object store (`long_term.uri: s3://…`) is reached.

    What is empty is taken from the environment, as the tools of that store do: AWS_ENDPOINT_URL,
    AWS_REGION, AWS_ACCESS_KEY_ID, a role of the machine.
    """

    endpoint: str = ""
    """Address of the server, where it is not Amazon's: https://host:port. On loopback it may be
    http://."""
    region: str = ""
    """Where the bucket is; Amazon needs it."""
    access_key_id: Secret = Secret()
    """Name of the access key."""
    secret_access_key: Secret = Secret()
    """The access key itself."""
    session_token: Secret = Secret()
    """What belongs to a key that expires."""
    allow_http: bool = False
    """An endpoint elsewhere than on loopback may be http://: texts and keys then cross the network
    in the clear."""


class LongTermConfig(Section, frozen=True, kw_only=True):
    """Long-term memory in LanceDB."""

    enabled: bool = True
    """Without it, messages that leave the buffer are summarized and archived, and nothing can be
    recalled."""
    shards: int = 8
    """Tables over which users are hashed; fixed when the directory is created."""
    batch_rows: int = 5_000
    """Rows in one commit."""
    batch_ms: float = 100.0
    """How long rows wait for others before they are committed; again and again while others come,
    for up to two seconds."""
    gather_s: float = 60.0
    """How long messages that left a buffer wait for others, to be indexed together: until there are
    `batch_rows`, half of `recall.unindexed_rows` of one user, or nothing was written for half a
    second. They are recalled all the same; where `recall.unindexed_rows` is 0 they do not wait. 0
    indexes them one compaction at a time."""
    compact_fragments: int = 20
    """Commits to a shard after which it is compacted: each slows every search a little."""
    compact_interval_s: float = 30.0
    """How often the supervisor looks for shards to compact."""
    keep_versions_s: float = 120.0
    """Age at which old table versions are removed; readers need them for a while."""
    index_user_rows: int = 2_000
    """Rows in a shard above which the user column is indexed."""
    tune_allocators: bool = True
    """Keep memory flat by settings of the whole process: pyarrow's default pool becomes the C
    library's, glibc has two arenas at most, and free memory returns to the system after writes.
    What the host or the environment has set stays."""
    window_chars: int = 300
    """How much of each neighbouring message is searched along with a message."""
    language: Literal["en", "de", "fr", "es", "it", "pt", "nl", "sv", "da", "no", "tr", "ru"] = "en"
    """Language of texts that do not show theirs: names, short replies. Others are searched by the
    words of the language that they are in, whatever this says. It counts for what is indexed from
    then on."""
    uri: Secret = Secret()
    """Where LanceDB lives: a path or an object store's address. Empty means inside the
    directory."""
    object_store: ObjectStoreConfig = ObjectStoreConfig()
    max_user_rows: int = 0
    """A user's rows beyond this number are pruned by the supervisor; 0: never."""
    prune: Literal["fifo", "age", "importance", "lru"] = "importance"
    """Which rows are pruned first."""
    prune_interval_s: float = 3_600.0
    """How often the supervisor looks for users with too many rows."""
    max_age_days: float = 365.0
    """Rows older than this are pruned first, if `prune` is `age`."""
