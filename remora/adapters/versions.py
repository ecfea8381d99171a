"""Which releases of the frameworks the adapters were tested with."""

from __future__ import annotations

import re
import warnings
from importlib import metadata

__all__ = ["TESTED", "UntestedVersion", "warn_if_untested"]

TESTED = {
    "agent-framework-core": ("1.23", "1.23"),
    "claude-agent-sdk": ("0.2", "0.2"),
    "google-adk": ("2.13", "2.13"),
    "langchain": ("1.4", "1.4"),
    "langchain-core": ("1.7", "1.7"),
    "langgraph-checkpoint": ("4.3", "4.3"),
    "llama-index-core": ("0.14", "0.14"),
    "mcp": ("2.3", "2.3"),
    "openai-agents": ("0.24", "0.24"),
    "pydantic-ai-slim": ("2.68", "2.68"),
    "ray": ("2.60", "2.60"),
    "strands-agents": ("1.62", "1.62"),
}
"""The first and the last tested release of each distribution, as ``major.minor``."""


class UntestedVersion(UserWarning):
    """The installed release of a framework is outside of the range that an adapter is tested with.

    The adapter works as far as the framework kept its interface. `warnings.filterwarnings` with
    this category silences it.
    """


def warn_if_untested(distribution: str) -> None:
    """Warn if the installed release of a framework is older or newer than the tested ones."""
    try:
        installed = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return  # a copy of the framework that was not installed says nothing of its release
    first, last = TESTED[distribution]
    if not _number(first) <= _number(installed) <= _number(last):
        tested = f"{first}" if first == last else f"{first} to {last}"
        warnings.warn(
            f"{distribution} {installed} is installed; remora's adapter is tested with {tested}",
            UntestedVersion,
            stacklevel=3,
        )


def _number(version: str) -> tuple[int, ...]:
    """Major and minor number of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
