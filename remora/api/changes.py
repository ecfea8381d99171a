"""Changes of a memory that another process of the same account asks its owner for.

An owner answers at a socket, from a thread that waits for nothing (`remora.services.answering`). So
a change is asked for again and again, under one id: the first question starts it on the event loop,
and each of them is answered with what is known by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from remora.errors import InvalidInput, RemoraError, RuntimeClosed, StorageError
from remora.ids import SessionKey, validate_id
from remora.services.deleting import DeletionReceipt
from remora.services.erasure import ErasureReceipt

if TYPE_CHECKING:
    from concurrent.futures import Future

_AT_ONCE = 16
_KEPT = 64  # answers of changes that are done


class Change(msgspec.Struct, frozen=True):
    """A change, done once for each `id`.

    Attributes:
        id: chosen by the one who asks; nobody else can guess it.
        verb: retry or drop dead letters, erase, or delete messages.
        ids: of dead letters, or of messages.
        user: to erase, or whose session.
        session: None to erase the user.
    """

    id: str
    verb: Literal["retry", "drop", "forget", "delete"]
    ids: tuple[str, ...] = ()
    user: str = ""
    session: str | None = None


class ChangeAnswer(msgspec.Struct, frozen=True):
    """The outcome of a change.

    Attributes:
        done: it is over; otherwise it is still being done, and what follows is empty.
        changed: how many dead letters, or messages.
        receipt: of an erasure.
        error: why it failed; empty if it did not.
        kind: of the error: `InvalidInput`, `StorageError`, or another name.
    """

    done: bool
    changed: int = 0
    receipt: ErasureReceipt | None = None
    error: str = ""
    kind: str = ""

    def check(self) -> None:
        """Raise what the change raised.

        Raises:
            InvalidInput: it cannot be done; nothing was changed.
            StorageError: the memory failed.
            RemoraError: it failed otherwise.
        """
        if not self.error:
            return
        known = {one.__name__: one for one in (InvalidInput, StorageError)}
        raise known.get(self.kind, RemoraError)(self.error)


class Changes:
    """The owner's side. All calls come from the thread that answers.

    Args:
        loop: the event loop of the open memory; raises `RuntimeClosed` while it is not open. What
            follows is called on it.
        retry: runs dead letters again; how many.
        drop: drops dead letters; how many.
        forget: erases a user, or a session of one.
        delete: deletes messages of a session.
    """

    def __init__(
        self,
        loop: Callable[[], object],
        *,
        retry: Callable[[Sequence[str]], Awaitable[int]],
        drop: Callable[[Sequence[str]], Awaitable[int]],
        forget: Callable[[str, str | None], Awaitable[ErasureReceipt]],
        delete: Callable[[SessionKey, Sequence[str]], Awaitable[DeletionReceipt]],
    ) -> None:
        self._loop = loop
        self._retry, self._drop, self._forget, self._delete = retry, drop, forget, delete
        self._known: dict[str, Future[ChangeAnswer]] = {}

    def ask(self, change: Change) -> ChangeAnswer:
        """Start the change if it is a new one; what is known of it."""
        known = self._known.get(change.id)
        if known is None:
            working = sum(not one.done() for one in self._known.values())
            if working >= _AT_ONCE:
                return _failed(InvalidInput(f"{working} changes are being made: try again"))
            try:
                known = self._start(self._perform(change))
            except RemoraError as e:
                return _failed(e)
            self._known[change.id] = known
            for id_ in [id_ for id_, one in self._known.items() if one.done()][:-_KEPT]:
                del self._known[id_]
        if not known.done():
            return ChangeAnswer(done=False)
        if known.cancelled():
            return _failed(RuntimeClosed("the process closed the memory before that was done"))
        return known.result()

    def _start(self, work: Coroutine[Any, Any, ChangeAnswer]) -> Future[ChangeAnswer]:
        import asyncio  # noqa: PLC0415  # an import of remora does not load it

        try:
            loop = self._loop()
            if not isinstance(loop, asyncio.AbstractEventLoop):
                raise InvalidInput("the memory runs on another event loop than asyncio's")
            return asyncio.run_coroutine_threadsafe(work, loop)
        except BaseException as e:
            work.close()
            if isinstance(e, RuntimeError):  # the loop is closed
                raise RuntimeClosed("the process opens or closes the memory: try again") from e
            raise

    async def _perform(self, change: Change) -> ChangeAnswer:
        try:
            match change.verb:
                case "retry":
                    return ChangeAnswer(done=True, changed=await self._retry(change.ids))
                case "drop":
                    return ChangeAnswer(done=True, changed=await self._drop(change.ids))
                case "forget":
                    receipt = await self._forget(change.user, change.session)
                    return ChangeAnswer(done=True, receipt=receipt)
                case "delete":
                    key = SessionKey(
                        validate_id(change.user, "a user id"),
                        validate_id(change.session, "a session id"),
                    )
                    deleted = (await self._delete(key, change.ids)).deleted
                    return ChangeAnswer(done=True, changed=deleted)
        except Exception as e:
            return _failed(e)


def _failed(error: Exception) -> ChangeAnswer:
    """The answer for a change that failed; only errors of remora have a text that quotes nobody."""
    known = next((one for one in (InvalidInput, StorageError) if isinstance(error, one)), None)
    text = str(error) if isinstance(error, RemoraError) else type(error).__name__
    return ChangeAnswer(done=True, error=text, kind=(known or type(error)).__name__)
