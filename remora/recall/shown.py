"""Which messages remora wrote as summaries, so that a user's words are never taken for one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from remora.messages import ChatDict

__all__ = ["ShownSummaries"]

_MAX_HELD = 10_000


class ShownSummaries:
    """The summaries that were given to the application as messages of the user.

    An application may record a whole context. What it holds of one was made by this process, and
    text alone does not tell: a user can write what a summary begins with. Digests are held, of the
    newest 10 000.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def note(self, user: str, messages: Iterable[ChatDict]) -> None:
        """Remember those of these summaries that have the role ``user``."""
        for one in messages:
            if one["role"] == "user":
                key = (user, _digest(one["content"]))
                self._held[key] = None
                self._held.move_to_end(key)
        while len(self._held) > _MAX_HELD:
            self._held.popitem(last=False)

    def has(self, user: str, text: str) -> bool:
        """Whether the user was shown a summary with exactly this text."""
        return (user, _digest(text)) in self._held

    def forget(self, user: str) -> None:
        """Hold nothing of this user."""
        for key in [key for key in self._held if key[0] == user]:
            del self._held[key]


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
