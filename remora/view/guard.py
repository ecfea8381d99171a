"""Who may ask: a token, the right host name, and headers that let a browser run nothing else.

A page of another origin can have the browser send requests to this server. Without the token,
which it cannot read, each of them ends with 401. A host name that is made to point here (DNS
rebinding) would make the other page the same origin: so only the server's own names are answered.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any, TypeAlias
from urllib.parse import parse_qs, quote, urlsplit

__all__ = ["Guard"]

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Callable[[], Awaitable[Any]], Send], Awaitable[None]]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    (
        b"content-security-policy",
        _POLICY.encode(),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_DENIED = (
    "401: this address is not valid, or no longer. Each start of remora view prints a new one: "
    "copy it from the terminal."
)


class Guard:
    """Lets a request through to the application, or answers it.

    Args:
        application: what is guarded, by ASGI.
        token: what the address of the page has.
        port: of the server; 0 where the application is called without one.
        names: host names that are the server's, besides the addresses of this machine.
        any_address: answer to any address (no name) of a machine, not to loopback alone.
    """

    def __init__(
        self,
        application: Application,
        *,
        token: str,
        port: int,
        names: frozenset[str] = frozenset(),
        any_address: bool = False,
    ) -> None:
        self._application = application
        self._token = token.encode()
        self._cookie = f"remora-view-{port}"
        self._names = {"localhost"} | {name.lower() for name in names}
        self._any_address = any_address

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Send
    ) -> None:
        """Answer by ASGI."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._application(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        host = headers.get("host", b"").decode("latin-1")
        if not self._is_own(host):
            await _answer(send, 421, "421: this server does not answer to that host name.")
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if given:
            await self._enter(scope, given, send)
        elif not self._knows(headers):
            await _answer(send, 401, _DENIED)
        elif scope["method"] not in {"GET", "HEAD"} and not _is_same_origin(headers, host):
            await _answer(send, 403, "403: a page of another origin may not change anything.")
        else:
            await self._application(scope, receive, _with_headers(send))

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            address = ip_address(name)
        except ValueError:
            return name.lower() in self._names
        return address.is_loopback or self._any_address or name in self._names

    async def _enter(self, scope: Scope, given: list[str], send: Send) -> None:
        """Keep the token in a cookie, and take it out of the address."""
        if len(given) != 1 or not self._is_token(given[0]):
            await _answer(send, 401, _DENIED)
            return
        cookie = f"{self._cookie}={given[0]}; HttpOnly; SameSite=Strict; Path=/"
        path = "/" + quote(scope["path"].lstrip("/"))  # "//name" would be another host
        more = ((b"set-cookie", cookie.encode()), (b"location", path.encode()))
        await _answer(send, 303, "", more)

    def _knows(self, headers: dict[str, bytes]) -> bool:
        scheme, _, credentials = headers.get("authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(credentials.strip())
        # browsers send the cookies of all ports together, and others' may be anything
        pairs = headers.get("cookie", b"").decode("latin-1").split(";")
        cookies = (pair.strip().partition("=") for pair in pairs)
        return any(name == self._cookie and self._is_token(value) for name, _, value in cookies)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token)


def _is_same_origin(headers: dict[str, bytes], host: str) -> bool:
    """Return whether a change comes from the page, or from a program that has the token itself."""
    if b"json" not in headers.get("content-type", b""):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin.decode("latin-1")).netloc == host


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_HEADERS]
        await send(message)

    return sending


async def _answer(
    send: Send, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    body = text.encode()
    kind = (b"content-type", b"text/plain; charset=utf-8")
    length = (b"content-length", str(len(body)).encode())
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [kind, length, *_HEADERS, *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})
