"""Appending to many sessions at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from remora.api.session import Session
from remora.errors import InvalidInput, RemoraError
from remora.ids import SessionKey
from remora.messages import MessageLike, Receipt
from remora.runtime.concurrency import map_concurrently

Batch: TypeAlias = tuple[Session, MessageLike | Iterable[MessageLike], str | None]
"""A session, one message or many, and an idempotency key or None."""


async def append_batches(
    batches: Sequence[Batch], *, concurrency: int
) -> list[Receipt | RemoraError]:
    """Append each batch; batches for one session keep their order.

    Returns:
        For each batch, in their order, the receipt or the error.

    Raises:
        InvalidInput: one of them is not a batch; nothing was written.
    """
    for batch in batches:
        if not (isinstance(batch, Sequence) and len(batch) == 3 and isinstance(batch[0], Session)):
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
