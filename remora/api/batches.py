"""Appending to many sessions at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from remora.api.session import Session
from remora.errors import InvalidInput, RemoraError
from remora.ids import SessionKey
from remora.messages import MessageLike, Receipt
from remora.runtime.concurrency import map_concurrently


async def append_batches(
    batches: Sequence[tuple[Any, Any, str | None]], *, concurrency: int, kind: type = Session
) -> list[Receipt | RemoraError]:
    """Append each batch; batches for one session keep their order.

    Args:
        batches: a session of that kind, one message or many, and an idempotency key or None.
        concurrency: how many sessions are appended to at once.
        kind: of session.

    Returns:
        For each batch, in their order, the receipt or the error.

    Raises:
        InvalidInput: one of them is not a batch; nothing was written.
    """
    for batch in batches:
        if not (isinstance(batch, Sequence) and len(batch) == 3 and isinstance(batch[0], kind)):
            raise InvalidInput(
                "a batch is a session, one message or many, and an idempotency key or None"
            )
    by_session: dict[SessionKey, list[int]] = {}
    for place, (session, _, _) in enumerate(batches):
        by_session.setdefault(session.key, []).append(place)
    results: dict[int, Receipt | RemoraError] = {}

    async def append(places: list[int]) -> None:
        for place in places:
            session, messages, key = batches[place]
            try:
                results[place] = await session.append(messages, key=key)
            except RemoraError as e:
                results[place] = e

    await map_concurrently(append, list(by_session.values()), concurrency=concurrency)
    return [results[place] for place in range(len(batches))]


async def append_by_id(
    find: Callable[[str], Any],
    messages: Mapping[str, MessageLike | Iterable[MessageLike]],
    *,
    concurrency: int | None = None,
    kind: type = Session,
) -> dict[str, Receipt]:
    """`User.append_many`.

    Args:
        find: gives the session of an id.
        messages: by the ids of sessions.
        concurrency: how many sessions are appended to at once; None for all.
        kind: of session.

    Raises:
        InvalidInput, InvalidId, RemoraError: see `User.append_many`.
    """
    given: object = messages
    if not isinstance(given, Mapping):
        raise InvalidInput(f"messages must be a dict by session ids, not {type(given).__name__}")
    batches = [(find(name), batch, None) for name, batch in messages.items()]
    at_once = max(len(batches), 1) if concurrency is None else concurrency
    results = await append_batches(batches, concurrency=at_once, kind=kind)
    receipts = {}
    for name, result in zip(messages, results, strict=True):
        if isinstance(result, RemoraError):
            raise result
        receipts[name] = result
    return receipts
