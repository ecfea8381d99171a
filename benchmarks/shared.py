"""What several benchmarks use: messages to send, memory in use, an event loop by its name."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

__all__ = ["resident", "run", "texts"]

_WORDS = [
    "the",
    "garden",
    "bridge",
    "river",
    "morning",
    "varnish",
    "cello",
    "harbour",
    "ledger",
    "lantern",
    "window",
    "quiet",
    "seven",
    "copper",
    "walnut",
    "island",
]


def texts(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Messages of about forty tokens."""
    rng = random.Random(seed)
    return [{"role": "user", "content": " ".join(rng.choices(_WORDS, k=38))} for _ in range(count)]


def resident() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def run(function: Callable[..., Any], *arguments: Any, loop: str) -> Any:
    """Run it on ``asyncio`` or ``uvloop``."""
    return anyio.run(
        function, *arguments, backend="asyncio", backend_options={"use_uvloop": loop == "uvloop"}
    )
