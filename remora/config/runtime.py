"""Configuration of the kernel: mailboxes, live sessions, background jobs."""

from typing import Literal

from remora.config.section import Section


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
