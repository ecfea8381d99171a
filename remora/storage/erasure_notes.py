"""Notes of erasures: the digests that they hold, and what an operator is shown of them.

The notes are rows of the journal. A note has digests under each key that a directory of long-term
memory has, since a digest under one key says nothing of that under another. How far each erasure
has come is a setting, so that it can be read after a crash and while another process has the
journal open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from remora.errors import RemoraError
from remora.ids import UNKEYED, Digests, SessionKey, row_id
from remora.storage.journal_port import Erasure

__all__ = [
    "DIGEST_KEYS",
    "ERASED_KINDS",
    "ERASED_TABLES",
    "ERROR_REMOVED",
    "NO_SESSION",
    "PROGRESS_SETTING",
    "SYNOPSIS_KIND",
    "WORKING_KIND",
    "ErasureProgress",
    "WaitingErasure",
    "decode_digest_keys",
    "decode_digests",
    "decode_note",
    "decode_progress",
    "describe_failure",
    "encode_digest_keys",
    "encode_owners",
    "encode_progress",
    "find_erased",
    "list_waiting",
    "of_user",
]

DIGEST_KEYS = "digest_keys"
"""The setting that has the keys of digests (`remora.ids.Digests`), as a JSON array: that of the
directory of long-term memory in use, then those of older ones. Not set: the empty key.
"""

PROGRESS_SETTING = "erasure_failures"
"""The setting that says how far the erasures have come that wait."""

NO_SESSION = "none"
"""What a note has in place of a session's digest if no row is to go: what was deleted before has
left the table, and leaves the files when that is written again.
"""

_MOST_CHARS = 200


class ErasureProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far an erasure has come.

    Attributes:
        since_us: when it was first tried, in microseconds since the epoch.
        attempts: how often it has failed.
        error: the last failure, without anything that a store may have quoted.
        removed: long-term memory finds no row any more, so that the user may write new ones.
    """

    since_us: int
    attempts: int = 0
    error: str = ""
    removed: bool = False


class WaitingErasure(msgspec.Struct, frozen=True):
    """An erasure whose rows are gone from the journal, and whose files are not rewritten yet.

    Attributes:
        id: ``erasure-`` and the number of its note; ``deletions`` for what was deleted one by one,
            of several users perhaps, of whom this names one.
        user_key: digest of the user's id.
        session_key: digest of the session; empty for the whole user.
        attempts: how often it has failed.
        since_us: when it was first tried, in microseconds since the epoch; 0 if it never failed.
        error: the last failure; empty if there was none.
    """

    id: str
    user_key: str
    session_key: str
    attempts: int
    since_us: int
    error: str


_decode_keys = msgspec.json.Decoder(list[str]).decode
_decode = msgspec.json.Decoder(dict[int, ErasureProgress]).decode


def encode_digest_keys(keys: Sequence[str]) -> str:
    """The value of the setting; each key once."""
    return msgspec.json.encode(list(dict.fromkeys(keys))).decode()


def decode_digest_keys(setting: str | None) -> list[str]:
    """The keys; only the empty one where the setting cannot be read."""
    try:
        return (_decode_keys(setting) if setting else []) or [""]
    except msgspec.MsgspecError:
        return [""]


def decode_digests(setting: str | None) -> list[Digests]:
    """The digests under each key of the setting."""
    return [Digests(key) if key else UNKEYED for key in decode_digest_keys(setting)]


def encode_owners(user: str, session: str | None, setting: str | None) -> tuple[str, str]:
    """Return the digests of a user and a session in a note's row, between spaces.

    Args:
        user: whose erasure it is.
        session: the session; None for the whole user.
        setting: the keys.
    """
    users, sessions = zip(
        *(one.owner(user, session) for one in decode_digests(setting)), strict=True
    )
    return " ".join(users), " ".join(sessions).strip()


def decode_note(number: int, user_keys: str, session_keys: str) -> Erasure:
    """The note of a row."""
    users = user_keys.split() or [""]
    sessions = session_keys.split() or [""] * len(users)
    first, *others = zip(users, sessions, strict=False)
    return Erasure(number, *first, others=tuple(others))


def decode_progress(setting: str | None) -> dict[int, ErasureProgress]:
    """How far erasures have come, by the numbers of their notes; none if it cannot be read."""
    try:
        return _decode(setting) if setting else {}
    except msgspec.MsgspecError:  # the notes themselves are rows: each erasure begins again
        return {}


def encode_progress(progress: Mapping[int, ErasureProgress]) -> str:
    """The value of the setting; empty for none."""
    return msgspec.json.encode(dict(progress)).decode() if progress else ""


def list_waiting(
    notes: Sequence[Erasure], progress: Mapping[int, ErasureProgress]
) -> list[WaitingErasure]:
    """The notes, and how far each has come."""
    never = ErasureProgress(0)
    listed = []
    for note in notes:
        failed = progress.get(note.number, never)
        listed.append(
            WaitingErasure(
                f"erasure-{note.number}" if note.number else "deletions",
                note.user_key,
                "" if note.session_key == NO_SESSION else note.session_key,
                failed.attempts,
                failed.since_us,
                failed.error,
            )
        )
    return listed


def of_user(
    waiting: Iterable[WaitingErasure], user: str, digests: Collection[Digests]
) -> list[WaitingErasure]:
    """Return those of one user, whose digest is under any of the keys."""
    own = {one.user(user) for one in digests}
    return [one for one in waiting if one.user_key in own]


def describe_failure(error: BaseException) -> str:
    """An error without what it may quote: other libraries' texts can hold rows and addresses."""
    name = type(error).__name__
    if not isinstance(error, RemoraError):
        return name
    return f"{name}: {str(error).partition(' (')[0]}"[:_MOST_CHARS]


# -- which state items of a user are erased with one of their sessions (G13) -----------------------
#
# This is the only place where storage reads the values of state items.

ERASED_TABLES = ("actors", "messages", "summaries", "state_items", "memories", "jobs")
"""Whose removed rows are counted (`Erased.removed`)."""

SYNOPSIS_KIND, WORKING_KIND, ACCESS_KIND = ERASED_KINDS = ("synopsis", "working", "access")
"""Kinds of state items, some of which are erased; `remora.actors.user.state` has them all."""

ERROR_REMOVED = "(removed with the session that it told of)"
"""Replaces the text of a failure, which may quote messages."""


class _Scoped(msgspec.Struct):
    """The part of a working memory item that names its session."""

    scope: str = ""


_decode_scoped = msgspec.msgpack.Decoder(_Scoped).decode


def find_erased(
    key: SessionKey, newest: int, items: Iterable[tuple[str, str, bytes]]
) -> list[tuple[str, str]]:
    """Which state items of a user are erased with one of their sessions, by kind and name.

    The synopsis is, because it may quote any session; a working memory item is if it belongs to the
    session; and so are the access counts of its messages.

    Args:
        key: the session.
        newest: the number of its newest message, at least.
        items: kinds, names and values of the user's state items.
    """
    found = []
    rows: set[str] | None = None
    for kind, name, value in items:
        if kind == ACCESS_KIND:
            if rows is None:
                rows = {row_id(key, seq) for seq in range(1, newest + 1)}
            erased = name in rows
        else:
            erased = kind == SYNOPSIS_KIND or (
                kind == WORKING_KIND and _session_of(value) == key.session
            )
        if erased:
            found.append((kind, name))
    return found


def _session_of(item: bytes) -> str:
    """Empty for all of the user's sessions, or if it cannot be read."""
    try:
        return _decode_scoped(item).scope
    except msgspec.DecodeError:
        return ""
