"""Which messages remora wrote as summaries, so that a user's words are never taken for one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from remora.messages import ChatDict

_MAX_HELD = 10_000


class ShownSummaries:
    """The summaries that were given to the application as messages of the user.

    An application may record a whole context. What it holds of one was made by this process, and
    text alone does not tell: a user can write what a summary begins with. Digests are held, of the
    newest 10 000.

    Args:
        tell: called with a user and the digests that were not held; None for nobody. Where others
            hold them as well, they hear of each once.
    """

    def __init__(self, tell: Callable[[str, Sequence[bytes]], object] | None = None) -> None:
        self._held: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._tell = tell

    def note(self, user: str, digests: Sequence[bytes]) -> None:
        """Remember that the user was shown these; see `shown_digests`."""
        if self._tell is not None and (new := [d for d in digests if (user, d) not in self._held]):
            self._tell(user, new)
        for digest in digests:
            self._held[user, digest] = None
            self._held.move_to_end((user, digest))
        while len(self._held) > _MAX_HELD:
            self._held.popitem(last=False)

    def find(self, user: str, digests: Sequence[bytes]) -> list[bool]:
        """Which of these texts the user was shown as summaries."""
        return [(user, digest) in self._held for digest in digests]

    def keep(self, count: int) -> dict[str, list[bytes]]:
        """Forget all but the newest `count` digests; returns these, by user."""
        while len(self._held) > count:
            self._held.popitem(last=False)
        kept: dict[str, list[bytes]] = {}
        for user, digest in self._held:
            kept.setdefault(user, []).append(digest)
        return kept

    def forget(self, user: str) -> None:
        """Hold nothing of this user."""
        for key in [key for key in self._held if key[0] == user]:
            del self._held[key]


def shown_digests(messages: Iterable[ChatDict]) -> list[bytes]:
    """The digests of those summaries that a user could have written: with the role ``user``."""
    return [text_digest(one["content"]) for one in messages if one["role"] == "user"]


def text_digest(text: str) -> bytes:
    """Return what stands for the text of a message."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
