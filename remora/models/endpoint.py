"""Requests to an HTTP endpoint of models; its failures become remora's errors.

Needs the extra: ``pip install "remora[openai]"``.
"""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import msgspec

from remora.errors import ModelAnswerInvalid, ModelTimeout, ModelUnavailable

try:
    import httpx2
except ImportError as e:
    raise ImportError('an endpoint over HTTP needs httpx2: pip install "remora[openai]"') from e

__all__ = ["Endpoint"]


class Endpoint:
    """One HTTP client, connected at its first request.

    Args:
        key: sent as a bearer token; empty for none.
        timeout_s: deadline of a request.
        quotes: whether errors have the beginning of an endpoint's refusal, which may repeat what
            it was sent.
    """

    def __init__(self, key: str, timeout_s: float, *, quotes: bool = True) -> None:
        self._key = key
        self._timeout_s = timeout_s
        self._quotes = quotes
        self._client: httpx2.AsyncClient | None = None
        self._connect_lock = anyio.Lock()

    async def post(self, url: str, body: dict[str, Any], answer: type[Any]) -> Any:
        """The answer to a request, as this type.

        Raises:
            ModelTimeout: there was none in time.
            ModelUnavailable: the endpoint cannot be reached, or refused.
            ModelAnswerInvalid: the answer is of another type.
        """
        client = self._client or await self._connect()
        try:
            response = await client.post(
                url,
                content=msgspec.json.encode(body),
                headers={"Content-Type": "application/json"},
            )
        except httpx2.TimeoutException as e:
            raise ModelTimeout(f"{url} did not answer in time") from e
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            raise ModelUnavailable(f"{url} cannot be reached: {e}") from e
        if response.status_code >= 400:
            text = f": {response.text[:200]}" if self._quotes else ""
            raise ModelUnavailable(f"{url} answered {response.status_code}{text}")
        try:
            return msgspec.json.decode(response.content, type=answer)
        except (msgspec.DecodeError, RecursionError) as e:
            raise ModelAnswerInvalid(f"{url} gave an invalid answer: {e}") from e

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _connect(self) -> httpx2.AsyncClient:
        # reads the machine's certificates, which would block the event loop
        async with self._connect_lock:
            if self._client is None:
                self._client = await anyio.to_thread.run_sync(self._make_client)
        return self._client

    def _make_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=self._timeout_s,
        )
