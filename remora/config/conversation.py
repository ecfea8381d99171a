"""Configuration of a conversation: its buffer, its contexts, and how tokens are counted."""

from typing import Literal

import msgspec

from remora.config.section import Section

_SUMMARY_TOKENS = 800


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

    def of_adapters(self) -> "StateConfig":
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
