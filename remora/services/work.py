"""Waiting for background work, and erasing what it works on."""

from __future__ import annotations

from remora.ids import SessionKey, UserKey
from remora.runtime.supervisor import Supervisor
from remora.services.deleting import DeletionReceipt, DeletionRequest
from remora.services.erasure import Eraser, ErasureReceipt


class LocalWork:
    """Background work in this process."""

    def __init__(self, supervisor: Supervisor, eraser: Eraser) -> None:
        self._supervisor = supervisor
        self._eraser = eraser

    async def drain(self, key: SessionKey | UserKey) -> None:
        """See `remora.Session.settle`."""
        await self._supervisor.drain(key)

    async def forget(self, user: str, session: str | None = None) -> ErasureReceipt:
        """See `remora.User.forget`."""
        return await self._eraser.forget(user, session)

    async def delete(self, request: DeletionRequest) -> DeletionReceipt:
        """See `remora.User.delete`."""
        self._eraser.admit(request.user)
        return await self._eraser.deletions.delete(request)
