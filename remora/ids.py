"""Ids of users, sessions and rows, and the digests that stand for them on disk."""

from __future__ import annotations

import unicodedata
from hashlib import blake2b
from typing import NamedTuple

from remora.errors import InvalidId, InvalidInput

__all__ = [
    "MAX_ID_BYTES",
    "SHARED_PREFIX",
    "UNKEYED",
    "Digests",
    "SessionKey",
    "UserKey",
    "actor_key",
    "entry_id",
    "fact_id",
    "key_digest",
    "keyed_memory_id",
    "memory_id",
    "memory_of_row",
    "message_id",
    "message_id_prefix",
    "message_number",
    "row_id",
    "session_key",
    "topic_id",
    "topic_of_fact",
    "turn_key",
    "turn_numbers",
    "turn_root",
    "user_key",
    "validate_id",
    "words_of",
    "working_id",
]

MAX_ID_BYTES = 512
"""Longest user id, session id or idempotency key, in bytes of UTF-8."""


SHARED_PREFIX = "\x1fshared/"
"""First character of a shared scope's key: a control character, which no user id may contain."""


_MAX_PART = 0xFFFF


class SessionKey(NamedTuple):
    """The key of a session: a user, and one of their sessions."""

    user: str
    session: str

    @property
    def pseudonym(self) -> str:
        """Return what stands for it in logs: the digests of the user and of the session."""
        return f"{user_key(self.user)}/{session_key(self.user, self.session)}"

    @property
    def words(self) -> str:
        """Return what stands for it in the text of an error: who logs that logs no id."""
        return f"session {self.pseudonym}"


class UserKey(NamedTuple):
    """The key of a user's own actor, which owns what outlives their sessions."""

    user: str

    @property
    def pseudonym(self) -> str:
        """Return what stands for it in logs: the digest of the user."""
        return user_key(self.user)

    @property
    def words(self) -> str:
        """Return what stands for it in the text of an error: who logs that logs no id."""
        return (
            f"{'shared scope' if self.user.startswith(SHARED_PREFIX) else 'user'} {self.pseudonym}"
        )


def words_of(key: object) -> str:
    """Return what stands for an actor's key in the text of an error."""
    return str(getattr(key, "words", None) or repr(key))


def validate_id(value: object, what: str) -> str:
    """Return `value` as a plain `str`, if it may name a user, a session or a request.

    Any printable text may: quotes, slashes, colons, spaces, emoji. Control characters (NUL and line
    breaks among them) may not, since they break logs and terminals; nor may lone surrogates, which
    no file can hold.

    Raises:
        InvalidId: not a string, empty, over `MAX_ID_BYTES`, or with a character that is not
            allowed.
    """
    if not isinstance(value, str):
        raise InvalidId(f"{what} must be a string, not {type(value).__name__}")
    # A subclass may compare and hash as it likes, and the journal cannot encode it.
    value = str.__str__(value)
    if not value:
        raise InvalidId(f"{what} must not be empty")
    if len(value) > MAX_ID_BYTES:
        raise InvalidId(
            f"{what} is {len(value)} characters long; at most {MAX_ID_BYTES} bytes are allowed"
        )
    if value.isascii() and value.isprintable():
        return value
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidId(f"{what} holds a lone surrogate, which no file can keep") from None
    if size > MAX_ID_BYTES:
        raise InvalidId(f"{what} is {size} bytes long; at most {MAX_ID_BYTES} are allowed")
    for character in value:
        if unicodedata.category(character) == "Cc":
            raise InvalidId(f"{what} holds the control character {character!r}; use printable text")
    return value


def actor_key(user: str, session: str) -> SessionKey | UserKey:
    """The key of a session's actor; with an empty session, of the user's own."""
    return SessionKey(user, session) if session else UserKey(user)


class Digests:
    """Digests of ids under a key (32 hex characters): who does not know it cannot compute them.

    Args:
        key: a secret of up to 64 ASCII characters, which nothing else shows; empty for digests that
            anybody can compute.
    """

    __slots__ = ("_session", "_user")

    def __init__(self, key: str) -> None:
        secret = key.encode(errors="replace")[: blake2b.MAX_KEY_SIZE]
        self._user = blake2b(digest_size=16, key=secret, person=b"remora.user")
        self._session = blake2b(digest_size=16, key=secret, person=b"remora.session")

    def user(self, user: str) -> str:
        """A digest of a user id, so that no user text becomes part of a filter."""
        digest = self._user.copy()  # faster than to begin with the key
        digest.update(user.encode())
        return digest.hexdigest()

    def session(self, user: str, session: str) -> str:
        """A digest of a session, which hides the session's name (G13)."""
        owner = user.encode()
        digest = self._session.copy()
        digest.update(b"%d:%b%b" % (len(owner), owner, session.encode()))
        return digest.hexdigest()

    def owner(self, user: str, session: str | None) -> tuple[str, str]:
        """Digests of a user and of their session; the second is empty for the whole user."""
        return self.user(user), "" if session is None else self.session(user, session)


UNKEYED = Digests("")
"""In logs, so that an operator can look an id up; in tables that were made before there were keys;
for a store of the application's own (`LongTermStore.erase`).
"""


def user_key(user: str) -> str:
    """The digest of a user id that logs show: it has no key."""
    return UNKEYED.user(user)


def session_key(user: str, session: str) -> str:
    """The digest of a session that logs show: it has no key."""
    return UNKEYED.session(user, session)


def row_id(key: SessionKey, seq: int) -> str:
    """The deterministic id (32 hex characters) of a message's row in long-term memory (G7)."""
    user = key.user.encode()
    text = b"%d:%b%d:%b" % (len(user), user, seq, key.session.encode())
    return blake2b(text, digest_size=16, person=b"remora.row").hexdigest()


def entry_id(key: SessionKey, through: int) -> str:
    """The deterministic id of a summary entry's row; the entry covers messages up to `through`."""
    return row_id(key, -through)  # no message has a negative number


def memory_id(user: str, agent: str, content: str) -> str:
    """The deterministic id (32 hex characters) of a recorded memory.

    The same words recorded twice, for example by a tool and by the application, are one memory.
    Each part is preceded by its length, so that no choice of names makes two ids collide.
    """
    parts = [part.encode() for part in (user, agent, " ".join(content.split()))]
    text = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return blake2b(text, digest_size=16, person=b"remora.memory").hexdigest()


def keyed_memory_id(user: str, agent: str, key: str) -> str:
    """The deterministic id (32 hex characters) of a memory that its caller named."""
    parts = [part.encode() for part in (user, agent, key)]
    text = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return blake2b(text, digest_size=16, person=b"remora.keyed").hexdigest()


def topic_id(user: str, session: str, seq: int, text: str) -> str:
    """The topic (16 hex characters) of an extracted fact that no earlier fact is about."""
    return _fact_digest(user, session, seq, text, b"remora.topic")


def fact_id(topic: str, user: str, session: str, seq: int, text: str) -> str:
    """The deterministic id (32 hex characters) of an extracted fact: it begins with the topic.

    Args:
        topic: of the fact, see `topic_id`.
        user: whose fact it is.
        session: where it was said.
        seq: the last message that it rests on.
        text: what it says.
    """
    return topic + _fact_digest(user, session, seq, text, b"remora.fact")


def topic_of_fact(id_: str) -> str:
    """The topic of the extracted fact with this id."""
    return id_[:16]


def _fact_digest(user: str, session: str, seq: int, text: str, person: bytes) -> str:
    parts = [part.encode() for part in (user, session, str(seq), text)]
    whole = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return blake2b(whole, digest_size=8, person=person).hexdigest()


def memory_of_row(row: str) -> str:
    """The id of the memory that a row of long-term memory is of (`MemoryItem.row_id`)."""
    return row.partition(".")[0]


def working_id(session: str, text: str) -> str:
    """The deterministic id (32 hex characters) of a user's item of working memory."""
    name = session.encode()
    return blake2b(
        b"%d:%b%b" % (len(name), name, text.encode()), digest_size=16, person=b"remora.working"
    ).hexdigest()


def key_digest(key: str) -> bytes:
    """A digest of an idempotency key (16 bytes)."""
    return blake2b(key.encode(), digest_size=16, person=b"remora.key").digest()


def turn_root(key: str) -> bytes:
    """The first 12 bytes of every key digest of a turn, by the turn's idempotency key.

    A digest of `key_digest` begins with them by chance only: the two hash in separate domains.
    """
    return blake2b(key.encode(), digest_size=12, person=b"remora.turn").digest()


def turn_key(root: bytes, attempt: int, part: int) -> bytes:
    """The key digest (16 bytes) of one append of a turn.

    Args:
        root: see `turn_root`.
        attempt: how often the turn was begun again, because its messages had been removed.
        part: 0 for the user's messages, then 1, 2, … for each append of replies.

    Raises:
        InvalidInput: a number is over 65 535.
    """
    if max(attempt, part) > _MAX_PART:
        raise InvalidInput(f"a turn has at most {_MAX_PART} replies, and begins again as often")
    return root + attempt.to_bytes(2) + part.to_bytes(2)


def turn_numbers(digest: bytes) -> tuple[int, int]:
    """The attempt and the part of a key digest that `turn_key` made."""
    return int.from_bytes(digest[12:14]), int.from_bytes(digest[14:])


def message_id(instance: str, sid: int, seq: int) -> str:
    """The id of a message without one of its own: derived from its number, never stored."""
    return f"{message_id_prefix(instance, sid)}{seq:x}"


def message_number(instance: str, id_: str) -> tuple[int, int] | None:
    """The session's and the message's number in an id of `message_id`; None for another id."""
    prefix = f"msg_{instance}"
    sid, between, seq = id_.removeprefix(prefix).partition("_")
    try:
        found = int(sid, 16), int(seq, 16)
    except ValueError:
        return None
    return found if between and message_id(instance, *found) == id_ else None


def message_id_prefix(instance: str, sid: int) -> str:
    """Return what the ids of a session's messages begin with: the number follows, hexadecimal."""
    return f"msg_{instance}{sid:x}_"
