"""How many requests may be sent: token buckets, of tenants and of addresses."""

from __future__ import annotations

import ipaddress
import secrets
from hashlib import blake2b

from remora.errors import RateLimited
from remora.runtime.clock import Clock

_PLACES = 8_192
_NETWORK = 64  # bits: what one customer has of IPv6, at least


class RateLimit:
    """Requests a second of each tenant, and twice as many at once after a pause.

    Args:
        rate: requests a second; 0 for no limit.
        clock: what tells the time.
        who: whose limit it is, for the error.
    """

    def __init__(self, rate: float, clock: Clock, *, who: str = "this key") -> None:
        self._rate, self._burst = rate, max(2 * rate, 1.0)
        self._clock, self._whose = clock, who
        self._left: dict[object, tuple[float, float]] = {}

    def take(self, one: object) -> None:
        """Count a request.

        Args:
            one: who sends it; as many are remembered as there are.

        Raises:
            RateLimited: it is one too many.
        """
        if not self._rate:
            return
        now = self._clock.monotonic()
        left, at = self._left.get(one, (self._burst, now))
        left = min(left + (now - at) * self._rate, self._burst)
        if left < 1:
            self._left[one] = left, now
            raise RateLimited(
                f"{self._whose} may send {self._rate:g} requests a second: nothing ran",
                retry_after_s=(1 - left) / self._rate,
            )
        self._left[one] = left - 1, now


class AddressLimit:
    """Requests a second of each address, in memory that does not grow with their number.

    Each has one of 8,192 places, by a secret hash: two that share one share its requests, and
    nobody can choose another's. An IPv6 address stands for its network of 64 bits.

    Args:
        rate: requests a second; 0 for no limit.
        clock: what tells the time.
    """

    def __init__(self, rate: float, clock: Clock) -> None:
        self._limit = RateLimit(rate, clock, who="without a valid key an address")
        self._secret = secrets.token_bytes(16)

    def take(self, address: str) -> None:
        """Count a request.

        Raises:
            RateLimited: it is one too many.
        """
        network = network_of(address).encode("utf-8", "surrogateescape")
        digest = blake2b(network, key=self._secret, digest_size=8).digest()
        self._limit.take(int.from_bytes(digest) % _PLACES)


def network_of(address: str) -> str:
    """An IPv4 address as it is; of an IPv6 address its network of 64 bits."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # of a proxy that names its clients otherwise
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(int(found) >> (128 - _NETWORK))
