"""The HTTP server under the service: uvicorn, with bounds, and with refusals as problem documents.

Needs the extra: ``pip install "remora[serve]"``.
"""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from remora.rest.app import RestApp, RestOptions
from remora.rest.limits import network_of
from remora.rest.problems import Problem
from remora.system.processes import allow_files
from remora.system.sockets import end_unacknowledged

_LEAVE_S = 10
_HEAD = 64 << 10
_BACKLOG = 512  # connections that one turn of the loop accepts, at most


class RestServer(uvicorn.Server):
    """A server that does not wait for event streams when it stops."""

    def __init__(self, app: RestApp, settings: uvicorn.Config) -> None:
        super().__init__(settings)
        self._app = app
        self.server_state = _State(app.options)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; see uvicorn."""
        self._app.end_streams()  # else their connections are waited for
        await super().shutdown(sockets)


class _State(ServerState):
    """The connections of a server that wait for a request, oldest first."""

    def __init__(self, options: RestOptions) -> None:
        super().__init__()
        self.options = options
        self._waiting: dict[str, dict[_Protocol, None]] = {}
        self._count = 0

    def wait(self, one: _Protocol) -> None:
        """A connection waits. Where too many do, the address that has most of them loses one."""
        own = self._waiting.setdefault(one.network, {})
        own[one] = None
        self._count += 1
        if self._count > self.options.waiting:
            most = max(self._waiting.values(), key=len)
            next(iter(most)).give_up()

    def end_wait(self, one: _Protocol) -> None:
        """It has a request, or is closed."""
        own = self._waiting[one.network]
        del own[one]
        self._count -= 1
        if not own:
            del self._waiting[one.network]


class _Protocol(H11Protocol):
    """A connection; uvicorn bounds only how long one may be silent after an answer.

    It may be without a request for a while: before its first head is complete, and after an answer,
    also while it sends half a head, or the rest of a body that nobody reads.
    """

    server_state: _State
    network = ""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        timeout_s = self.server_state.options.timeout_s
        # the kernel knows best whether a client takes what it is sent, also after a `close`
        end_unacknowledged(transport.get_extra_info("socket"), timeout_s)
        self.network = network_of(self.client[0]) if self.client else ""
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_wait()
        elif self._deadline is None and not self.transport.is_closing():
            timeout_s = self.server_state.options.timeout_s
            self._deadline = self.loop.call_later(timeout_s, self.give_up)
            self.server_state.wait(self)

    def _end_wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self.server_state.end_wait(self)

    def give_up(self) -> None:
        """Close a connection that waits for a request."""
        self._end_wait()
        if self.conn.trailing_data[0]:
            self._refuse(408, "RequestTimeout", "The head of the request is not complete.")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "InvalidRequest", msg)

    def _refuse(self, status: int, title: str, detail: str) -> None:
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:  # else an answer has begun
            problem = Problem(f"urn:remora:{title}", title, status, f"{detail} Nothing ran.")
            body = msgspec.json.encode(problem)
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
                "content-type: application/problem+json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def make_server(app: RestApp) -> RestServer:
    """A server of the application, on sockets that its caller gives to `RestServer.serve`.

    It takes HTTP/1.1 alone, with at most 64 KiB before the body. The process may open as many files
    as the connections need, if its hard limit has room for them.
    """
    # the memory has files and connections, too
    allow_files(app.options.answering + app.options.waiting + 2 * _BACKLOG)
    settings = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        log_config=None,
        access_log=False,  # an address has the ids of users
        server_header=False,
        lifespan="off",
        backlog=_BACKLOG,
        h11_max_incomplete_event_size=_HEAD,
        timeout_graceful_shutdown=_LEAVE_S,
    )
    return RestServer(app, settings)
