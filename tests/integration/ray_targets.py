"""Targets for nodes on a Ray cluster."""

from __future__ import annotations

import remora

__all__ = ["stubborn"]


def stubborn() -> remora.Runtime:
    """A runtime with a directory of its own, whatever the environment says."""
    tree = {
        "journal": {"dsn": "postgresql://nowhere/none"},
        "long_term": {"enabled": False},
        "cluster": {"secret": "x" * 32},
    }
    return remora.Runtime("memory", config=remora.Config.from_dict(tree))
