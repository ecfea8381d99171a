"""The limits of the registry (G10, G11), and its counts."""

from __future__ import annotations

import msgspec


class RegistryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of messages that wait and of actors in memory, and when a failing actor rests."""

    mailbox_messages: int = 1_000
    mailbox_bytes: int = 32 << 20
    total_bytes: int = 256 << 20
    """Bytes that may wait in mailboxes or for the log, of all actors together."""
    held_replies: int = 1_024
    """Replies behind one gate before messages queue in the mailbox instead; and writes that an
    owner who is alone may have on their way to the log."""
    share_writes: int = 16
    """Writes that one owner may have on their way to the log while other owners are active."""
    wait_when_full: bool = False
    """Senders wait for room in a full mailbox, and are not refused."""
    timeout_s: float = 30.0
    idle_s: float = 300.0
    max_live: int = 100_000
    max_bytes: int = 2 << 30
    restart_intensity: int = 5
    """After so many failures within `restart_period_s` a cell is quarantined for `rest_s`."""
    restart_period_s: float = 30.0
    rest_s: float = 30.0


class RegistryStatistics(msgspec.Struct, frozen=True):
    """Counters since start, and current sizes."""

    live: int
    bytes: int
    queued: int
    activations: int
    passivations: int
    inline_messages: int
    queued_messages: int
    refused: int
    expired: int
    restarts: int
    quarantines: int
    waiting_bytes: int = 0
    """Of requests that wait in a mailbox or for the log."""
