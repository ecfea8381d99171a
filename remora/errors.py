"""Every exception that remora raises, sorted by what the caller can do about it.

=====================  ==========================================================================
what to do             exceptions =====================
========================================================================== fix the call
`InvalidMessage`, `InvalidId`, `InvalidInput`, `IndexOutOfRange`, `InvalidExport`, `ConfigError`,
                       `NotGranted`, `RedactionFailed`, `ReentrantAsk`, `NoDeadLetter`
retry, nothing ran     `MailboxFull`, `CommitFailed`, `SessionQuarantined`, `ErasureInProgress`
retry, *same key*      `OutcomeUnknown` retry, nothing doubles `RecordingFailed` look at the
directory  `DirectoryUnusable`, `DirectoryLocked`, `JournalTooNew`, `JournalDamaged`,
`EmbedderChanged`,
                       `OwnershipLost`
wait for a service     `ModelUnavailable`, `ModelTimeout`, `ModelAnswerInvalid`, `LongTermError`
open another runtime   `RuntimeClosed`
=====================  ==========================================================================
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "BlockFailed",
    "CommitFailed",
    "ConfigError",
    "DirectoryLocked",
    "DirectoryUnusable",
    "EmbedderChanged",
    "ErasureInProgress",
    "IndexOutOfRange",
    "InvalidExport",
    "InvalidId",
    "InvalidInput",
    "InvalidMessage",
    "JournalDamaged",
    "JournalTooNew",
    "LongTermError",
    "MailboxFull",
    "ModelAnswerInvalid",
    "ModelError",
    "ModelTimeout",
    "ModelUnavailable",
    "NoDeadLetter",
    "NotGranted",
    "OutcomeUnknown",
    "OwnershipLost",
    "RecordingFailed",
    "RedactionFailed",
    "ReentrantAsk",
    "RemoraError",
    "RuntimeClosed",
    "SessionQuarantined",
    "StorageError",
]


class RemoraError(Exception):
    """The root of every exception that remora raises on purpose."""


# -- fix the call ----------------------------------------------------------------------------------


class InvalidInput(RemoraError, ValueError):
    """An argument is out of range; nothing was written."""


class InvalidId(InvalidInput):
    """A user or session id, or an idempotency key, that cannot name anything.

    Nothing was written.
    """


class IndexOutOfRange(InvalidInput, IndexError):
    """A place that is not in the buffer; nothing was changed.

    Attributes:
        places: the places that are not there.
    """

    def __init__(self, text: str, *, places: tuple[int, ...]) -> None:
        super().__init__(text)
        self.places = places


class InvalidExport(InvalidInput):
    """What is to be imported is no whole export; nothing was written.

    Attributes:
        line: the line, or the row of a table, from 1.
    """

    def __init__(self, text: str, *, line: int) -> None:
        super().__init__(text)
        self.line = line


class InvalidMessage(RemoraError, TypeError):
    """A message that is no chat message; nothing of its batch was written.

    Attributes:
        index: position of the offending message in its batch, from 0.
    """

    def __init__(self, text: str, *, index: int = 0) -> None:
        super().__init__(text)
        self.index = index


class NoDeadLetter(InvalidInput):
    """No dead letter has this id: it was never one, or is retried, done or dropped by now.

    Nothing was changed.

    Attributes:
        ids: those that are none.
    """

    def __init__(self, text: str, *, ids: tuple[str, ...]) -> None:
        super().__init__(text)
        self.ids = ids


class ConfigError(InvalidInput):
    """A configuration key or value that means nothing.

    Attributes:
        key: dotted path of the offending key, or the empty string.
    """

    def __init__(self, text: str, *, key: str = "") -> None:
        super().__init__(text)
        self.key = key


class NotGranted(RemoraError, PermissionError):
    """Whoever asked has no such right in this shared scope; nothing was read or written.

    Attributes:
        scope: the shared scope.
        who: who asked.
    """

    def __init__(self, text: str, *, scope: str, who: str) -> None:
        super().__init__(text)
        self.scope = scope
        self.who = who


class ReentrantAsk(RemoraError, RuntimeError):
    """A background job waits for its own session to settle, which would wait for that job: a
    deadlock, refused.
    """


class RedactionFailed(RemoraError, RuntimeError):
    """The redaction hook failed on a message, so the message was refused; nothing was stored.

    The error holds nothing of the text.

    Attributes:
        hook: the hook's name.
    """

    def __init__(self, text: str, *, hook: str) -> None:
        super().__init__(text)
        self.hook = hook


# -- retry: provably nothing ran -------------------------------------------------------------------


class MailboxFull(RemoraError):
    """The request was refused before it ran: retry later, it had no effect (G10).

    Attributes:
        limit: which bound refused it: ``"messages"``, ``"bytes"`` or ``"age"`` of the session's
            mailbox, or ``"total"`` of what waits for the disk in all.
    """

    def __init__(self, text: str, *, limit: str) -> None:
        super().__init__(text)
        self.limit = limit


class CommitFailed(RemoraError, RuntimeError):
    """The journal refused the write and rolled it back: provably nothing of it is stored.

    Retry when the disk is well.
    """

    retryable = True


class SessionQuarantined(RemoraError):
    """The session failed too often in a short time and rests; the request did not run.

    Attributes:
        retry_after_s: seconds until the session is tried again.
    """

    retryable = True

    def __init__(self, text: str, *, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class ErasureInProgress(RemoraError):
    """The user, or something of theirs, is being forgotten; the request did not run.

    Ask again when that is done (G13).
    """

    retryable = True


# -- retry with the same key -----------------------------------------------------------------------


class OutcomeUnknown(RemoraError):
    """The deadline passed, or the commit's fate is uncertain: it may have taken effect.

    Retry with the same `key`.
    """

    retryable = True


# -- the runtime -----------------------------------------------------------------------------------


class RuntimeClosed(RemoraError, RuntimeError):
    """The runtime is closing, closed, or was not entered with ``async with``."""


# -- storage ---------------------------------------------------------------------------------------


class StorageError(RemoraError, RuntimeError):
    """A store cannot do what was asked.

    Attributes:
        retryable: whether the same call may succeed later.
    """

    retryable = True


class OwnershipLost(CommitFailed, StorageError):
    """Another process has taken the journal over, and this one may write to it no longer (G12).

    Provably nothing of it is stored.

    Everything that is written from then on fails with it. Close the runtime; open another once the
    other owner is gone.
    """

    retryable = False


class RecordingFailed(StorageError):
    """What was to be remembered may not be recorded; all of it is, or nothing.

    Retry it as it was: what is recorded already is known by its words, and is not recorded twice.
    The journal's own error is the cause.

    Attributes:
        op: what was tried, for instance ``"remember"``.
        user: whose memory it was.
        session: the session that it was recorded for; empty for none.
        cause: the journal's error.
    """

    def __init__(self, text: str, *, op: str, user: str, session: str, cause: Exception) -> None:
        super().__init__(text)
        self.op = op
        self.user = user
        self.session = session
        self.cause = cause


class DirectoryUnusable(StorageError):
    """The memory directory cannot be created, read or written.

    Attributes:
        path: the directory.
    """

    def __init__(self, text: str, *, path: Path) -> None:
        super().__init__(text)
        self.path = path


class DirectoryLocked(DirectoryUnusable):
    """Another process owns the directory (G12).

    Attributes:
        pid: the owner's process id, if it left one.
        since: when the owner opened it (ISO 8601), if it left that.
    """

    def __init__(self, text: str, *, path: Path, pid: int | None, since: str | None) -> None:
        super().__init__(text, path=path)
        self.pid = pid
        self.since = since


class JournalTooNew(StorageError):
    """The journal was written by a newer remora; nothing was touched.

    Attributes:
        found: format number in the file.
        supported: newest format number that this remora reads.
    """

    retryable = False

    def __init__(self, text: str, *, found: int, supported: int) -> None:
        super().__init__(text)
        self.found = found
        self.supported = supported


class JournalDamaged(StorageError):
    """The journal file is no journal, or does not hold together."""

    retryable = False


class EmbedderChanged(StorageError):
    """The long-term rows were embedded by another model than the one configured."""

    retryable = False


class LongTermError(StorageError):
    """Long-term memory (LanceDB) failed.

    Attributes:
        retryable: whether the same call may succeed later.
    """

    def __init__(self, text: str, *, retryable: bool) -> None:
        super().__init__(text)
        self.retryable = retryable


# -- memory blocks ---------------------------------------------------------------------------------


class BlockFailed(RemoraError, RuntimeError):
    """A memory block did not take in what it was shown.

    It is shown it again with the next job of its session.

    Attributes:
        blocks: which ones.
        retryable: whether the same may succeed later.
    """

    def __init__(self, text: str, *, blocks: tuple[str, ...], retryable: bool) -> None:
        super().__init__(text)
        self.blocks = blocks
        self.retryable = retryable


# -- models ----------------------------------------------------------------------------------------


class ModelError(RemoraError, RuntimeError):
    """A chat model or embedder did not do its work.

    Attributes:
        retryable: whether the same call may succeed later.
    """

    retryable = False


class ModelUnavailable(ModelError):
    """The endpoint refused the connection, or answered with an error status."""

    retryable = True


class ModelTimeout(ModelError):
    """The endpoint did not answer in time."""

    retryable = True


class ModelAnswerInvalid(ModelError):
    """The endpoint answered, but not with what was asked for."""
