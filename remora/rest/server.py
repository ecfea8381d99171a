"""The HTTP server under the service: uvicorn, with bounds, and with refusals as problem documents.

Needs the extra: ``pip install "remora[serve]"``.
"""

from __future__ import annotations

import resource
import socket

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from remora.rest.app import RestApp
from remora.rest.problems import Problem

__all__ = ["RestServer", "make_server"]

_LEAVE_S = 10
_CONNECTIONS = 2048
_HEAD = 64 << 10
_FILES = 2 * _CONNECTIONS  # the memory has files and connections, too


class RestServer(uvicorn.Server):
    """A server that does not wait for event streams when it stops."""

    def __init__(self, app: RestApp, settings: uvicorn.Config) -> None:
        super().__init__(settings)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; see uvicorn."""
        self._app.end_streams()  # else their connections are waited for
        await super().shutdown(sockets)


class _Protocol(H11Protocol):
    """What is no HTTP at all gets a problem document, too."""

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:  # else an answer has begun
            title = "InvalidRequest"
            problem = Problem(f"urn:remora:{title}", title, 400, f"{msg} Nothing ran.")
            body = msgspec.json.encode(problem)
            head = (
                "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def make_server(app: RestApp) -> RestServer:
    """A server of the application, on sockets that its caller gives to `RestServer.serve`.

    It takes HTTP/1.1 alone, with at most 64 KiB before the body. The process may open as many files
    as the connections need, if its hard limit has room for them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES:
        room = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
    settings = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        log_config=None,
        access_log=False,  # an address has the ids of users
        server_header=False,
        lifespan="off",
        limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=_HEAD,
        timeout_graceful_shutdown=_LEAVE_S,
    )
    return RestServer(app, settings)
