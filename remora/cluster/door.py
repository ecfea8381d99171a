"""Where connections to a node come in: each goes to the shard that its worker asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from remora.cluster.link import OwnerEnd
from remora.cluster.serving import Served
from remora.cluster.wire import Hello, Welcome, WireError
from remora.errors import OwnerUnreachable
from remora.logging import get_logger
from remora.storage.forks import give_up_in_children, keep_in_children

__all__ = ["ShardDoor"]

_logger = get_logger(__name__)
_NO_EPOCHS = b"\x90"


class ShardDoor(asyncio.Protocol):
    """One connection until its worker has said which shard it wants.

    Args:
        find: gives what serves a shard; None if this node does not serve it now.
    """

    def __init__(self, find: Callable[[int], Served | None]) -> None:
        self._find = find
        self._end = OwnerEnd(self._greet, _NO_EPOCHS)
        self._wanted: Served | None = None
        self._data = bytearray()
        self._transport: Any = None
        self._descriptor = -1

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`, as for the others."""
        self._transport = transport
        self._descriptor = transport.get_extra_info("socket").fileno()
        give_up_in_children(self._descriptor)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002, D102
        keep_in_children(self._descriptor)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._data += data
        try:
            self._end.feed(data)
        except WireError as e:
            _logger.warning("worker_garbled", problem=str(e)[:200])
            self._transport.abort()
            return
        if self._wanted is not None:
            self._pass_on(self._wanted)
        elif self._end.refused:
            frame = self._end.take()
            assert frame is not None
            self._transport.write(frame)
            self._transport.close()

    def _greet(self, hello: Hello) -> Welcome:
        """Note what serves the shard, which then reads the hello itself."""
        self._wanted = self._find(hello.shard)
        raise OwnerUnreachable(
            f"this node does not serve shard {hello.shard} now: another one does, or will"
        )

    def _pass_on(self, served: Served) -> None:
        keep_in_children(self._descriptor)
        protocol = served.make_protocol()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(bytes(self._data))
