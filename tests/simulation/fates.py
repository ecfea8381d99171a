"""What tests share that play a server's life under a seed, through faults and power cuts."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from remora import Config
from remora.errors import (
    CommitFailed,
    MailboxFull,
    OutcomeUnknown,
    RuntimeClosed,
    SessionBusy,
    SessionQuarantined,
    StorageError,
)
from remora.testing.simulation import CONFIG, Fault, World
from remora.testing.simulation.world import KINDS

SCALE = int(os.environ.get("REMORA_SEEDS", "1"))
"""How many times as many seeds are played, for a soak."""

SMALL = msgspec.structs.replace(
    CONFIG, activation=Config.from_dict({"activation": {"max_live": 1, "idle_s": 0.05}}).activation
)
REFUSED = (
    CommitFailed,
    MailboxFull,
    OutcomeUnknown,
    RuntimeClosed,
    SessionBusy,
    SessionQuarantined,
    StorageError,
)
"""What a client may try again."""


def worlds(
    seeds: int,
    journal: Any,
    *,
    faults: int,
    cuts: int,
    within: range,
    ports: Sequence[str] = (),
    nth: int = 40,
) -> Iterator[World]:
    """A world for each seed: less than so many faults and power cuts.

    Args:
        seeds: how many, times `SCALE`.
        journal: see `World`.
        faults: of the journal, and of the `ports`, at one of their first `nth` calls.
        cuts: of the power.
        within: steps at which they come.
        ports: which ones fail beside the journal, though none with garbage.
        nth: see `faults`.
    """
    failing = ["commit", *ports, *(["read"] if journal == "memory" else [])]
    ways = [(port, kind) for port in failing for kind in KINDS[port] if kind != "garbage"]
    for seed in range(seeds * SCALE):
        rng = random.Random(seed)
        plan = [
            Fault(port, rng.randrange(nth), kind, rng.choice([1, 1, 2]))
            for port, kind in rng.choices(ways, k=rng.randrange(faults))
        ]
        when = [rng.randrange(within.start, within.stop) for _ in range(rng.randrange(cuts))]
        yield World(seed, plan=plan, cuts=when, journal=journal)
