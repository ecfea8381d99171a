"""Attachments in a table of the journal's schema."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["BlobRows"]

Query: TypeAlias = Callable[..., Awaitable[Sequence[tuple[Any, ...]]]]


class BlobRows:
    """Implements `remora.storage.attachments.BlobStore`.

    Args:
        query: runs a statement; it may run one twice.
        epoch: of the owner; nothing is removed for an earlier one.
    """

    def __init__(self, query: Query, epoch: int) -> None:
        self._query = query
        self._epoch = epoch

    async def put(self, name: str, blobs: Mapping[bytes, bytes]) -> None:
        """See `BlobStore`."""
        for digest, data in blobs.items():
            await self._query(
                "INSERT INTO remora.attachments (owner, digest, data) VALUES ($1, $2, $3) "
                "ON CONFLICT DO NOTHING",
                name,
                digest,
                data,
            )

    async def get(self, name: str, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """See `BlobStore`."""
        rows = await self._query(
            "SELECT a.digest, a.data FROM remora.attachments AS a WHERE a.owner = $1 AND "
            "a.digest = ANY($2::bytea[])",
            name,
            list(digests),
        )
        return dict(rows)

    async def digests(self, name: str) -> set[bytes]:
        """See `BlobStore`."""
        sql = "SELECT a.digest FROM remora.attachments AS a WHERE a.owner = $1"
        return {digest for (digest,) in await self._query(sql, name)}

    async def remove(self, name: str, digests: Collection[bytes]) -> None:
        """See `BlobStore`."""
        await self._query(
            "DELETE FROM remora.attachments AS a WHERE a.owner = $1 AND a.digest = "
            "ANY($2::bytea[]) AND EXISTS (SELECT 1 FROM remora.journal WHERE epoch = $3 FOR SHARE)",
            name,
            list(digests),
            self._epoch,
        )

    async def names(self) -> list[str]:
        """See `BlobStore`."""
        rows = await self._query("SELECT DISTINCT a.owner FROM remora.attachments AS a ORDER BY 1")
        return [name for (name,) in rows]
