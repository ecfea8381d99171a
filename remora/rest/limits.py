"""How many requests a tenant may send: a token bucket for each."""

from __future__ import annotations

from remora.errors import RateLimited
from remora.runtime.clock import Clock

__all__ = ["RateLimit"]


class RateLimit:
    """Requests a second of each tenant, and twice as many at once after a pause.

    Args:
        rate: requests a second; 0 for no limit.
        clock: what tells the time.
    """

    def __init__(self, rate: float, clock: Clock) -> None:
        self._rate, self._burst = rate, max(2 * rate, 1.0)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # tenants are as many as keys

    def take(self, tenant: str) -> None:
        """Count a request.

        Raises:
            RateLimited: it is one too many.
        """
        if not self._rate:
            return
        now = self._clock.monotonic()
        left, at = self._left.get(tenant, (self._burst, now))
        left = min(left + (now - at) * self._rate, self._burst)
        if left < 1:
            self._left[tenant] = left, now
            raise RateLimited(
                f"this key may send {self._rate:g} requests a second: nothing ran",
                retry_after_s=(1 - left) / self._rate,
            )
        self._left[tenant] = left - 1, now
