"""Bytes of Strands Agents in a user's memory: its `Storage`, for ``SnapshotSessionManager``.

Needs the extra: ``pip install "remora[strands]"``. A snapshot is opaque: for conversations that are
recalled, summarized and read by others, use `remora.adapters.strands.RemoraSessionRepository`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING

from remora.adapters.versions import warn_if_untested
from remora.api.keyed_state import adapter_state
from remora.api.threads import awaiter_of, original_of
from remora.blocking import User as BlockingUser
from remora.errors import InvalidInput, RemoraError
from remora.storage.keyed_values import escape, unescape

try:
    from strands.storage.search.keyword import KeywordSearchStrategy
    from strands.types.exceptions import StorageError
except ImportError as e:
    raise ImportError('storage of Strands Agents needs it: pip install "remora[strands]"') from e

if TYPE_CHECKING:
    from strands.storage.storage import StorageSearchResult

__all__ = ["RemoraStorage"]

warn_if_untested("strands-agents")


class RemoraStorage:
    """A user's storage for Strands: bytes under keys of any text, durable when written.

    ``Agent(session_manager=SnapshotSessionManager("chat-42", storage=RemoraStorage(alice)))``.
    `User.forget` erases it. A value has at most three quarters of `state.adapter_max_value_bytes`.

    Args:
        user: of `remora.blocking`, since Strands calls it on event loops of its own.
    """

    def __init__(self, user: BlockingUser) -> None:
        given: object = user
        if not isinstance(given, BlockingUser):
            kind = type(given).__name__
            raise InvalidInput(f"user must be a user of remora.blocking, not a {kind}")
        self._state = adapter_state(original_of(user), "strands_storage", opaque=True)
        self._await = awaiter_of(user)

    async def write(self, key: str, data: bytes) -> None:
        """Store bytes under a key, in the place of others.

        Raises:
            StorageError: the key or the value is too long, or the memory failed.
        """
        try:
            await self._await(self._state.set, escape(key), b64encode(data).decode())
        except RemoraError as e:
            raise StorageError(f"a value was not written: {e}") from e

    async def read(self, key: str) -> bytes | None:
        """The bytes under a key; None if there are none.

        Raises:
            StorageError: the key is too long, or the memory failed.
        """
        try:
            found = await self._await(self._state.get, escape(key))
        except RemoraError as e:
            raise StorageError(f"a value cannot be read: {e}") from e
        return None if found is None else b64decode(found.value)

    async def delete(self, key: str) -> None:
        """Delete what is under a key, if there is something.

        Raises:
            StorageError: the key is too long, or the memory failed.
        """
        try:
            await self._await(self._state.delete, escape(key))
        except RemoraError as e:
            raise StorageError(f"a value was not deleted: {e}") from e

    async def search(self, query: str) -> list[StorageSearchResult]:
        """Return what has the words of a text, best first: by Strands' own search."""
        return await KeywordSearchStrategy().search(self, query)  # type: ignore[arg-type, no-any-return, unused-ignore]

    async def list(self, query: str = "") -> list[str]:
        """The keys that begin with a text, in order.

        Raises:
            StorageError: the memory failed.
        """
        try:
            found = await self._await(self._state.items, prefix=escape(query))
        except RemoraError as e:
            raise StorageError(f"keys cannot be listed: {e}") from e
        return sorted(unescape(one.key) for one in found)
