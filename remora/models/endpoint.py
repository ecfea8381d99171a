"""Requests to an HTTP endpoint of models; its failures become remora's errors.

Needs the extra: ``pip install "remora[openai]"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import msgspec

from remora.errors import ModelAnswerInvalid, ModelError, ModelTimeout, ModelUnavailable
from remora.models.breaker import says_away
from remora.runtime.threads import run_in_thread

try:
    import httpx2
except ImportError as e:
    raise ImportError('an endpoint over HTTP needs httpx2: pip install "remora[openai]"') from e

Result = TypeVar("Result")
_LARGE = 1 << 16  # bytes of an answer that is read in a thread


class Endpoint:
    """One HTTP client, connected at its first request.

    Its errors are logged, and have nothing of an answer: a refusal may repeat what was asked.

    Args:
        key: sent as a bearer token; empty for none.
        timeout_s: deadline of a request.
    """

    def __init__(self, key: str, timeout_s: float) -> None:
        self._key = key
        self._timeout_s = timeout_s
        self._client: httpx2.AsyncClient | None = None
        self._connect_lock = anyio.Lock()

    async def post(
        self,
        url: str,
        body: dict[str, Any],
        read: Callable[[bytes], Result],
        *,
        max_bytes: int | None = None,
    ) -> Result:
        """The answer to a request.

        Args:
            url: the whole URL.
            body: sent as JSON.
            read: decodes an answer; a large one in a thread.
            max_bytes: of an answer; it is asked for uncompressed, so that this bounds the work.

        Raises:
            ModelTimeout: there was none in time.
            ModelUnavailable: the endpoint cannot be reached, or serves nobody.
            ModelAnswerInvalid: the answer is of another type, or too large.
            ModelError: the endpoint refused this request.
        """
        client = self._client or await self._connect()
        headers = {"Content-Type": "application/json"}
        if max_bytes is not None:
            headers["Accept-Encoding"] = "identity"
        content = msgspec.json.encode(body)
        try:
            async with client.stream("POST", url, content=content, headers=headers) as response:
                if response.status_code >= 400:
                    if not says_away(response.status_code):
                        raise ModelError(f"{url} answered {response.status_code}")
                    raise ModelUnavailable(f"{url} answered {response.status_code}")
                if max_bytes is None:
                    received = await response.aread()
                else:
                    received = await _read_limited(response, url, max_bytes)
        except httpx2.TimeoutException as e:
            raise ModelTimeout(f"{url} did not answer in time") from e
        except (httpx2.ProtocolError, httpx2.DecodingError) as e:  # it quotes a line, or the key
            raise ModelUnavailable(f"{url} does not speak HTTP: {type(e).__name__}") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            raise ModelUnavailable(f"{url} cannot be reached: {e}") from e
        try:
            if len(received) <= _LARGE:
                return read(received)
            return await run_in_thread(read, received, abandon_on_cancel=True)
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
                self._client = await run_in_thread(self._make_client)
        return self._client

    def _make_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=self._timeout_s,
        )


async def _read_limited(response: httpx2.Response, url: str, max_bytes: int) -> bytes:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ModelAnswerInvalid(f"{url} gave a compressed answer, for which it was not asked")
    received = bytearray()
    async for part in response.aiter_raw():
        received += part
        if len(received) > max_bytes:
            raise ModelAnswerInvalid(f"{url} gave an answer of more than {max_bytes} bytes")
    return bytes(received)
