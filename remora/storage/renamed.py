"""Ports of an application that still have earlier method names."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, TypeVar, cast

from remora.ids import SessionKey
from remora.storage.long_term_port import BLOCK_TYPE

__all__ = ["with_current_names"]

Port = TypeVar("Port")

_RENAMED = {
    "buffer_start": "past",
    "change_settings": "change",
    "finish_erasure": "erased",
    "indexed_through": "flushed",
    "init_setting": "setting",
    "pruned_seqs": "pruned",
    "sessions_to_flush": "unflushed",
    "state_items": "facets",
    "summary_figures": "folds",
}
"""Methods of `Journal`, and what they were called."""


class _Renamed:
    """Passes calls on, under the old names where the port has them."""

    def __init__(self, port: Any, names: dict[str, str], *, doubtful: bool) -> None:
        self._port = port
        self._names = names
        self._doubtful = doubtful

    def __getattr__(self, name: str) -> Any:
        if name == "add" and self._doubtful:
            return self._add
        if name == "count" and not hasattr(self._port, name):
            return self._count
        if name == "session_indexed_through" and not hasattr(self._port, name):
            return self._session_indexed_through
        return getattr(self._port, self._names.get(name, name))

    async def _session_indexed_through(self, key: SessionKey) -> int:
        return int(dict(await self.indexed_through()).get(key, 0))

    async def _count(self, user: str) -> int:
        return sum(row.memory_type != BLOCK_TYPE for row in await self._port.rows(user))

    async def _add(self, rows: Any, vectors: Any, *, may_exist: bool) -> None:
        await self._port.add(rows, vectors, doubtful=may_exist)


def with_current_names(port: Port) -> Port:
    """The `Journal` or `LongTermStore` itself, or a stand-in for one that has old names."""
    names = {
        name: old
        for name, old in _RENAMED.items()
        if hasattr(port, old) and (old != "setting" or not hasattr(port, name))
    }
    add = getattr(port, "add", None)
    doubtful = add is not None and "doubtful" in inspect.signature(add).parameters
    incomplete = hasattr(port, "indexed_through") and not hasattr(port, "session_indexed_through")
    incomplete = incomplete or (add is not None and not hasattr(port, "count"))
    if not names and not doubtful:
        if not incomplete:
            return port
        return cast("Port", _Renamed(port, names, doubtful=doubtful))
    old = [*names.values(), *(["add(doubtful=)"] if doubtful else [])]
    warnings.warn(
        f"{type(port).__name__} has old names of methods: {', '.join(old)}; see "
        "docs/storage-ports.md",
        DeprecationWarning,
        stacklevel=2,
    )
    return cast("Port", _Renamed(port, names, doubtful=doubtful))
