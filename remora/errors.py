"""Every exception that remora raises, sorted by what the caller can do about it.

========================  ========================================================================
what to do                exceptions
========================  ========================================================================
fix the call              `InvalidMessage`, `InvalidId`, `InvalidInput`, `IndexOutOfRange`,
                          `InvalidExport`, `ConfigError`, `NotGranted`, `RedactionFailed`,
                          `ReentrantAsk`, `WrongLoop`, `NoDeadLetter`, `NotFound`, `KeyConflict`,
                          `IdConflict`, `TurnClosed`, `KeyRefused`, `BudgetTooSmall`,
                          `TooManyKeys`
read again                `StateConflict`
retry: nothing ran        `MailboxFull`, `OverdraftReached`, `CommitFailed`,
                          `SessionBusy`, `SessionQuarantined`,
                          `ErasureInProgress`, `RateLimited`
retry with the same key   `OutcomeUnknown`
retry: nothing doubles    `RecordingFailed`, `BlockFailed`
check the directory       `DirectoryUnusable`, `DirectoryLocked`, `JournalTooNew`,
                          `JournalDamaged`, `EmbedderChanged`, `OwnershipLost`
wait for a service        `ModelUnavailable`, `ModelTimeout`, `ModelAnswerInvalid`,
                          `LongTermError`, `ErasureDelayed`, `NotReady`, `OwnerUnreachable`
look at the owner         `OwnerFailed`, `ProtocolMismatch`
open another runtime      `RuntimeClosed`
========================  ========================================================================

A text names users and sessions, where it does, by the pseudonyms that logs have: who logs an error
logs no id. `remora.ids.user_key` and `session_key` compute them. Attributes have ids as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = [
    "BlockFailed",
    "BudgetTooSmall",
    "CommitFailed",
    "ConfigError",
    "DirectoryLocked",
    "DirectoryUnusable",
    "EmbedderChanged",
    "ErasureDelayed",
    "ErasureInProgress",
    "IdConflict",
    "IndexOutOfRange",
    "InvalidExport",
    "InvalidId",
    "InvalidInput",
    "InvalidMessage",
    "JournalDamaged",
    "JournalTooNew",
    "KeyConflict",
    "KeyRefused",
    "LongTermError",
    "MailboxFull",
    "ModelAnswerInvalid",
    "ModelError",
    "ModelTimeout",
    "ModelUnavailable",
    "NoDeadLetter",
    "NoSuchMemory",
    "NotFound",
    "NotGranted",
    "NotReady",
    "OutcomeUnknown",
    "OverdraftReached",
    "OwnerFailed",
    "OwnerUnreachable",
    "OwnershipLost",
    "ProtocolMismatch",
    "RateLimited",
    "RecordingFailed",
    "RedactionFailed",
    "ReentrantAsk",
    "RemoraError",
    "RuntimeClosed",
    "SessionBusy",
    "SessionQuarantined",
    "StateConflict",
    "StorageError",
    "TooManyKeys",
    "TurnClosed",
    "WrongLoop",
]


class RemoraError(Exception):
    """The root of every exception that remora raises on purpose.

    It holds a text, and keyword arguments as attributes, all of them plain data: so another process
    can raise the same error.

    Attributes:
        retryable: whether the same call may succeed later.
    """

    retryable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:  # attributes are keyword-only parameters
        return _restore_error, (type(self), self.args, self.__dict__.copy())


def _restore_error(
    kind: type[RemoraError], args: tuple[Any, ...], state: dict[str, Any]
) -> RemoraError:
    error: RemoraError = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


# -- fix the call ----------------------------------------------------------------------------------


class InvalidInput(RemoraError, ValueError):
    """An argument is out of range. Nothing was written; fix the call."""


class InvalidId(InvalidInput):
    """A user id, session id or idempotency key is not allowed. Nothing was written; use another."""


class KeyConflict(InvalidInput):
    """An idempotency key was used before, for other messages. Nothing was written; use a new key.

    A key names one append, or one turn: two appends of one request have two keys.
    """


class IdConflict(InvalidInput):
    """A message has an id that is stored already, with other content. Nothing was written.

    Pass `replace=True` to change the stored message, or give the new one another id.

    Attributes:
        ids: of these messages.
    """

    def __init__(self, text: str, *, ids: tuple[str, ...]) -> None:
        super().__init__(text)
        self.ids = ids


class TooManyKeys(InvalidInput):
    """Keyed state has as many keys as are allowed. Nothing was written; delete some first.

    Attributes:
        limit: how many there may be.
    """

    def __init__(self, text: str, *, limit: int) -> None:
        super().__init__(text)
        self.limit = limit


class NotFound(InvalidInput, LookupError):
    """The user has no message and no memory of these ids. Nothing was changed.

    They were deleted, or were never there.

    Attributes:
        ids: that were given.
    """

    def __init__(self, text: str, *, ids: tuple[str, ...]) -> None:
        super().__init__(text)
        self.ids = ids


class NoSuchMemory(InvalidInput, LookupError):
    """The user has no such memory. Nothing was changed; it was deleted, pruned, or never there.

    Attributes:
        id: of the memory.
    """

    def __init__(self, text: str, *, id: str) -> None:  # noqa: A002
        super().__init__(text)
        self.id = id


class IndexOutOfRange(InvalidInput, IndexError):
    """An index is not in the buffer. Nothing was changed; use an index from the current buffer.

    Attributes:
        places: the indices that are out of range.
    """

    def __init__(self, text: str, *, places: tuple[int, ...]) -> None:
        super().__init__(text)
        self.places = places


class InvalidExport(InvalidInput):
    """The export is damaged or incomplete. Nothing was written; export again.

    Attributes:
        line: the line, or the row of a table, from 1.
    """

    def __init__(self, text: str, *, line: int) -> None:
        super().__init__(text)
        self.line = line


class InvalidMessage(RemoraError, TypeError):
    """A message is not a chat message. Nothing of its batch was written; fix that message.

    Attributes:
        index: position of the message in its batch, from 0.
    """

    def __init__(self, text: str, *, index: int = 0) -> None:
        super().__init__(text)
        self.index = index


class NoDeadLetter(InvalidInput):
    """No dead letter has this id: it may be retried, done or dropped by now. Nothing was changed.

    List the dead letters again.

    Attributes:
        ids: the ids that are not dead letters.
    """

    def __init__(self, text: str, *, ids: tuple[str, ...]) -> None:
        super().__init__(text)
        self.ids = ids


class ConfigError(InvalidInput):
    """A configuration key is unknown, or its value is not allowed. Fix the configuration.

    Attributes:
        key: dotted path of the key, or the empty string.
    """

    def __init__(self, text: str, *, key: str = "") -> None:
        super().__init__(text)
        self.key = key


class NotGranted(RemoraError, PermissionError):
    """The member lacks this right in the shared scope. Nothing was read or written.

    An owner of the scope can grant it.

    Attributes:
        scope: the shared scope.
        who: the member that asked.
    """

    def __init__(self, text: str, *, scope: str, who: str) -> None:
        super().__init__(text)
        self.scope = scope
        self.who = who


class KeyRefused(RemoraError, PermissionError):
    """A memory over HTTP does not know the API key, or no longer. Nothing ran; use another."""


class ReentrantAsk(RemoraError, RuntimeError):
    """A background job called `settle` of its own session, which waits for that job: a deadlock.

    The same for an embedder that has texts embedded by itself, or erases, and for background work
    that closes the runtime. Call it from outside.
    """


class WrongLoop(RemoraError, RuntimeError):
    """The runtime belongs to another event loop or thread. Nothing was done.

    Use it on the loop that it was opened on; other threads use `remora.blocking`.
    """


class TurnClosed(RemoraError, RuntimeError):
    """A turn was not entered, has ended, or was answered before. Nothing was written.

    Enter it once, with ``async with session.turn(…) as turn``, and reply inside the block. The same
    where the message that the turn answers was cleared, rewound, deleted or forgotten since.
    """


class StateConflict(RemoraError):
    """A value of keyed state has another version than the caller gave. Nothing was written.

    Somebody changed it since it was read: decide again from the present value.

    Attributes:
        key: of the value.
        expected: the version that the caller gave; 0 for no value.
        actual: the present version; 0 for no value.
        value: the present value; None for none.
    """

    def __init__(self, text: str, *, key: str, expected: int, actual: int, value: Any) -> None:
        super().__init__(text)
        self.key = key
        self.expected = expected
        self.actual = actual
        self.value = value


class RedactionFailed(RemoraError, RuntimeError):
    """The redaction hook failed on a message. Nothing was stored; fix the hook.

    The error contains nothing of the message.

    Attributes:
        hook: the hook's name.
    """

    def __init__(self, text: str, *, hook: str) -> None:
        super().__init__(text)
        self.hook = hook


# -- retry: nothing ran -------------------------------------------------------------------


class MailboxFull(RemoraError):
    """The request was refused before it ran and had no effect. Retry later, and slower.

    Attributes:
        limit: the bound that refused it: ``"messages"``, ``"bytes"`` or ``"age"`` of the session's
            mailbox, or ``"total"``, of all requests that wait for the disk.
    """

    retryable = True

    def __init__(self, text: str, *, limit: str) -> None:
        super().__init__(text)
        self.limit = limit


class BudgetTooSmall(InvalidInput):
    """Not even a few words of the newest message fit into a context. Allow more tokens.

    Attributes:
        needed: the tokens that would suffice; 0 if that is not known.
    """

    def __init__(self, text: str, *, needed: int = 0) -> None:
        super().__init__(text)
        self.needed = needed


class OverdraftReached(RemoraError):
    """The session has too much that is not summarized yet. Nothing was written; retry later.

    Raised only with `buffer.overdraft` ``refuse``, or ``wait`` when the wait was in vain.

    Attributes:
        tokens: what the buffer would hold without the messages that are being summarized.
        limit: what it may hold.
        job: the background job that writes the summary.
        waits: `buffer.overdraft` is ``wait``.
    """

    retryable = True

    def __init__(
        self, text: str, *, tokens: int, limit: int, job: str, waits: bool = False
    ) -> None:
        super().__init__(text)
        self.waits = waits
        self.tokens = tokens
        self.limit = limit
        self.job = job


class CommitFailed(RemoraError, RuntimeError):
    """The journal rolled the write back. Nothing is stored; retry when the disk works again."""

    retryable = True


class SessionBusy(RemoraError):
    """Too many turns of the session wait, or this one waited too long. Nothing ran; retry later.

    Attributes:
        waiting: how many turns of the session waited.
    """

    retryable = True

    def __init__(self, text: str, *, waiting: int) -> None:
        super().__init__(text)
        self.waiting = waiting


class SessionQuarantined(RemoraError):
    """The session failed too often in a short time, so the request did not run. Retry later.

    Attributes:
        retry_after_s: seconds until the session is tried again.
    """

    retryable = True

    def __init__(self, text: str, *, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class ErasureInProgress(RemoraError):
    """The user or session is being forgotten. The request did not run; retry when that is done."""

    retryable = True


class RateLimited(RemoraError):
    """A memory over HTTP takes no more requests with this API key now. Nothing ran; retry later.

    Attributes:
        retry_after_s: seconds until it may take the next one.
    """

    retryable = True

    def __init__(self, text: str, *, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


# -- retry with the same key -----------------------------------------------------------------------


class OutcomeUnknown(RemoraError):
    """The deadline passed, or a commit is uncertain: the request may have taken effect.

    Retry with the same `key`.
    """

    retryable = True


# -- the runtime -----------------------------------------------------------------------------------


class RuntimeClosed(RemoraError, RuntimeError):
    """The runtime is closing, closed, or was not opened. Use ``async with runtime``."""


# -- the owner of a memory, in another process -----------------------------------------------------


class OwnerUnreachable(RemoraError, ConnectionError):
    """No process that owns or serves the memory answered in time. Nothing ran; retry later.

    An owner that has died is replaced within seconds. A runtime whose journal is in PostgreSQL
    raises it as well, while its lease is not renewed and another process may own the journal.
    """

    retryable = True


class OwnerFailed(RemoraError, RuntimeError):
    """No owner runs: it ends when it is started, or nobody starts it. Nothing ran; read its log.

    Attributes:
        log: the end of its log, if it was started.
    """

    def __init__(self, text: str, *, log: str = "") -> None:
        super().__init__(text)
        self.log = log


class ProtocolMismatch(RemoraError, RuntimeError):
    """A worker and the owner of the memory speak different versions. Nothing ran.

    The text says which of the two must be upgraded.

    Attributes:
        theirs: the version of the other process's protocol.
        ours: the version of this process's.
    """

    def __init__(self, text: str, *, theirs: int, ours: int) -> None:
        super().__init__(text)
        self.theirs = theirs
        self.ours = ours


# -- storage ---------------------------------------------------------------------------------------


class NotReady(RemoraError, TimeoutError):
    """Models and tables are not loaded yet. Loading goes on; call `Runtime.ready` again."""

    retryable = True


class StorageError(RemoraError, RuntimeError):
    """A store failed.

    Attributes:
        retryable: whether the same call may succeed later.
    """

    retryable = True


class OwnershipLost(CommitFailed, StorageError):
    """Another process took over the journal, or its files are gone. Nothing is stored.

    The runtime has ended by itself, and every later call fails in the same way: what it had in
    memory may be out of date. Open it again when the other owner has gone, or when the directory is
    back in its place.
    """

    retryable = False


class RecordingFailed(StorageError):
    """The journal failed while memories were recorded: all of them are stored, or none.

    Retry the same call: memories are recognized by their words and not recorded twice.

    Attributes:
        op: the method, for instance ``"remember"``.
        user: the owner of the memories.
        session: the session that they were recorded for; empty for none.
        cause: name of the journal's error: ``"CommitFailed"`` (nothing is stored) or
            ``"OutcomeUnknown"``, for instance. In the process of the journal, ``__cause__`` is the
            error itself.
    """

    def __init__(self, text: str, *, op: str, user: str, session: str, cause: str) -> None:
        super().__init__(text)
        self.op = op
        self.user = user
        self.session = session
        self.cause = cause


class DirectoryUnusable(StorageError):
    """The memory directory cannot be created, read or written. Check path and permissions.

    Attributes:
        path: the directory.
    """

    def __init__(self, text: str, *, path: Path | str) -> None:
        super().__init__(text)
        self.path = str(path)


class DirectoryLocked(DirectoryUnusable):
    """Another process owns the directory. Stop it, or use another directory.

    Attributes:
        pid: the owner's process id, if known.
        since: when the owner opened it (ISO 8601), if known.
    """

    def __init__(self, text: str, *, path: Path | str, pid: int | None, since: str | None) -> None:
        super().__init__(text, path=path)
        self.pid = pid
        self.since = since


class JournalTooNew(StorageError):
    """The journal was written by a newer remora. Nothing was changed; upgrade remora.

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
    """The file is damaged, or not a journal. Restore a backup, or see ``remora repair``."""

    retryable = False


class EmbedderChanged(StorageError):
    """The long-term rows were embedded by another model than the one configured.

    Configure that one again, or rebuild long-term memory: ``remora reembed``.
    """

    retryable = False


class LongTermError(StorageError):
    """Long-term memory (LanceDB) failed. Conversations go on without it.

    Attributes:
        retryable: whether the same call may succeed later.
    """

    def __init__(self, text: str, *, retryable: bool) -> None:
        super().__init__(text)
        self.retryable = retryable


class ErasureDelayed(StorageError):
    """The journal has erased the user or session; files could not be rewritten, and hold bytes yet.

    It goes on by itself, in the background and at the next start. Until it is done, requests for
    the user raise `ErasureInProgress`. `Runtime.erasures` and ``remora jobs`` show what waits, and
    why; `Runtime.retry_erasures` tries at once. To forget again does no harm.

    Attributes:
        attempts: how often it has failed.
        retryable: the cause may pass; otherwise somebody must remove it.
    """

    def __init__(self, text: str, *, attempts: int, retryable: bool) -> None:
        super().__init__(text)
        self.attempts = attempts
        self.retryable = retryable


# -- memory blocks ---------------------------------------------------------------------------------


class BlockFailed(RemoraError, RuntimeError):
    """A memory block failed on the messages that it was shown.

    It is shown them again with the next job of its session.

    Attributes:
        blocks: the names of the blocks.
        retryable: whether the same call may succeed later.
    """

    def __init__(self, text: str, *, blocks: tuple[str, ...], retryable: bool) -> None:
        super().__init__(text)
        self.blocks = blocks
        self.retryable = retryable


# -- models ----------------------------------------------------------------------------------------


class ModelError(RemoraError, RuntimeError):
    """A chat model or embedder failed.

    Attributes:
        retryable: whether the same call may succeed later.
    """

    retryable = False


class ModelUnavailable(ModelError):
    """The model refused the connection, answered with an error, or is not called for a while."""

    retryable = True


class ModelTimeout(ModelError):
    """The model did not answer in time."""

    retryable = True


class ModelAnswerInvalid(ModelError):
    """The model answered with something other than what was asked for. Check its configuration."""
