"""LangGraph's store over a user of remora.

Needs the extra: ``pip install "remora[langgraph]"``. `remora.adapters.langgraph_checkpoints` has
the checkpointer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import anyio
import numpy as np

from remora.adapters.versions import warn_if_untested
from remora.api.keyed_state import adapter_state
from remora.api.threads import awaiter_of, original_of, waiter_of
from remora.api.user import User
from remora.blocking import User as BlockingUser
from remora.errors import InvalidInput, StateConflict
from remora.runtime.concurrency import run_in_thread_if

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        IndexConfig,
        ListNamespacesOp,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        ensure_embeddings,
        get_text_at_path,
        tokenize_path,
    )
except ImportError as e:
    raise ImportError('LangGraph\'s store needs it: pip install "remora[langgraph]"') from e

from remora.adapters.langgraph_items import (
    Stored,
    compare,
    decode,
    encode,
    join_path,
    matches_namespace,
    namespace_prefix,
    to_item,
    write_time,
)

__all__ = ["RemoraStore"]

warn_if_untested("langgraph-checkpoint")
_AT_ONCE = 64  # batches; others wait here, and are not refused by a full mailbox
_IN_THREAD = 200  # items from which on filtering and ranking are a thread's work


class RemoraStore(BaseStore):
    """A user's items by namespace and key, as LangGraph's `BaseStore`.

    What a batch changes is one durable write: all of it or nothing. Items are the user's keyed
    state, apart from the application's own keys: a backup, an export and `User.forget` include
    them. All items of one user are in memory while they are in use; `state.adapter_max_keys` bounds
    their number, `state.adapter_max_value_bytes` their size.

    ``abatch`` and the methods that begin with ``a`` run on the event loop of the runtime; with a
    user of `remora.blocking`, on any. The others work in every thread but the event loop's.

    Args:
        user: whose items they are; one user of your choice for the whole application, or one for
            each of its users.
        index: LangGraph's own: what makes vectors of items, of which fields. Without it a search by
            text is in the order of a search without.
        ttl: LangGraph's own. Expired items are never shown. Reading an item begins its time again
            if ``refresh_on_read`` is set, as in LangGraph's SQLite store.

    Attributes:
        index_config: as given.
        ttl_config: as given.
    """

    __slots__ = (
        "_await",
        "_embeddings",
        "_fields",
        "_places",
        "_state",
        "_wait",
        "index_config",
        "ttl_config",
    )

    supports_ttl = True

    def __init__(
        self,
        user: User | BlockingUser,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        self._await = awaiter_of(user)
        self._state = adapter_state(original_of(user), "langgraph.store")
        self._wait = waiter_of(user)
        self._places = anyio.Semaphore(_AT_ONCE)
        self._embeddings = None if index is None else ensure_embeddings(index.get("embed"))
        self._fields = (index or {}).get("fields") or ["$"]
        self.index_config = index
        self.ttl_config = ttl

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations: reads as of before the batch, then all changes in one write.

        Raises:
            InvalidInput: an item is too large, no JSON, or one too many; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed, RedactionFailed: see
                `remora.KeyedState.change`.
        """
        return cast("list[Result]", await self._await(self._batch_in_turn, list(ops)))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """`abatch`, for threads.

        Raises:
            WrongLoop: called on the event loop; nothing was done.
        """
        return cast("list[Result]", self._wait(self._batch_in_turn, list(ops)))

    async def asweep_ttl(self) -> int:
        """Delete the items that have expired; returns how many there were."""
        return cast("int", await self._await(self._sweep))

    def sweep_ttl(self) -> int:
        """`asweep_ttl`, for threads."""
        return cast("int", self._wait(self._sweep))

    # -- on the runtime's event loop ---------------------------------------------------------------

    async def _batch_in_turn(self, ops: list[Op]) -> list[Result]:
        async with self._places:
            return await self._batch(ops)

    async def _batch(self, ops: list[Op]) -> list[Result]:
        results: list[Result] = [None] * len(ops)
        shown: list[Stored] = []  # whose time to live begins again
        gets = {place: op for place, op in enumerate(ops) if isinstance(op, GetOp)}
        found = await self._read(join_path(op.namespace, op.key) for op in gets.values())
        for place, get in gets.items():
            if one := found.get(join_path(get.namespace, get.key)):
                results[place] = to_item(one)
                shown += [one] * get.refresh_ttl
        puts: dict[str, PutOp] = {}
        for place, op in enumerate(ops):
            if isinstance(op, SearchOp):
                results[place], hits = await self._search(op)
                shown += hits if op.refresh_ttl else []
            elif isinstance(op, ListNamespacesOp):
                results[place] = await self._namespaces(op)
            elif isinstance(op, PutOp):
                puts[join_path(op.namespace, op.key)] = op
            elif not isinstance(op, GetOp):
                raise InvalidInput(f"there is no operation {type(op).__name__}")
        await self._refresh(shown)
        await self._change(puts)
        return results

    async def _read(self, keys: Iterable[str]) -> dict[str, Stored]:
        wanted = set(keys)
        if not wanted:
            return {}
        found = (await self._state.get_many(wanted)).values()
        now = write_time()
        return {one.key: one for one in map(decode, found) if not one.has_expired(now)}

    async def _items(self, prefix: tuple[str, ...]) -> list[Stored]:
        found = await self._state.items(prefix=namespace_prefix(prefix))
        now = write_time()
        return [one for one in map(decode, found) if not one.has_expired(now)]

    async def _search(self, op: SearchOp) -> tuple[list[SearchItem], list[Stored]]:
        items = await self._items(op.namespace_prefix)
        vector = None
        if op.query and self._embeddings is not None:
            vector = np.asarray(await self._embeddings.aembed_query(op.query), np.float32)
        page = await run_in_thread_if(len(items) > _IN_THREAD, _select, items, op, vector)
        return [
            SearchItem(one.namespace, one.name, one.value, *one.times, score) for one, score in page
        ], [one for one, _ in page]

    async def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found = {one.namespace for one in await self._items(())}
        for condition in op.match_conditions or ():
            found = {one for one in found if matches_namespace(condition, one)}
        if op.max_depth is not None:
            found = {one[: op.max_depth] for one in found}
        return sorted(found)[op.offset : op.offset + op.limit]

    async def _change(self, puts: Mapping[str, PutOp]) -> None:
        if not puts:
            return
        present = await self._read(key for key, op in puts.items() if op.value is not None)
        vectors = await self._embed({key: op for key, op in puts.items() if op.value is not None})
        now = write_time()
        values = {
            key: encode(
                op, present[key].created_us if key in present else now, now, vectors.get(key, {})
            )
            for key, op in puts.items()
            if op.value is not None
        }
        await self._state.change(
            values, delete=[key for key, op in puts.items() if op.value is None]
        )

    async def _embed(self, puts: Mapping[str, PutOp]) -> dict[str, dict[str, list[float]]]:
        """Vectors of each item, by its fields."""
        if self._embeddings is None:
            return {}
        texts: list[tuple[str, str, str]] = []
        for key, op in puts.items():
            if op.index is False:
                continue
            for path in self._fields if op.index is None else op.index:
                at: Any = path if path == "$" else tokenize_path(path)
                parts = get_text_at_path(op.value, at)
                texts += [(key, f"{path}.{number}", text) for number, text in enumerate(parts)]
        if not texts:
            return {}
        found: dict[str, dict[str, list[float]]] = {}
        made = await self._embeddings.aembed_documents([text for _, _, text in texts])
        for (key, path, _), vector in zip(texts, made, strict=True):
            found.setdefault(key, {})[path] = [float(number) for number in vector]
        return found

    async def _refresh(self, shown: Iterable[Stored]) -> None:
        """Begin the time to live of these items again, as far as nobody else has changed them."""
        if not (self.ttl_config or {}).get("refresh_on_read", False):
            return
        now = write_time()
        fresh = {one.key: one for one in shown if one.ttl is not None}
        while fresh:
            try:
                await self._state.change(
                    {key: one.refreshed(now) for key, one in fresh.items()},
                    versions={key: one.version for key, one in fresh.items()},
                )
            except StateConflict as e:
                del fresh[e.key]
            else:
                return

    async def _sweep(self) -> int:
        now = write_time()
        old = [one for one in map(decode, await self._state.items()) if one.has_expired(now)]
        count = 0
        for one in old:
            try:
                count += await self._state.delete(one.key, version=one.version)
            except StateConflict:
                continue  # it was put again, or read
        return count


def _select(
    items: list[Stored], op: SearchOp, vector: np.ndarray[Any, Any] | None
) -> list[tuple[Stored, float | None]]:
    """The page of a search, best first; what has no vector comes last, the newest first."""
    conditions = (op.filter or {}).items()
    items = [one for one in items if all(compare(one.value, *pair) for pair in conditions)]
    items.sort(key=lambda one: one.updated_us, reverse=True)
    ranked: list[tuple[Stored, float | None]] = [(one, None) for one in items]
    if vector is not None:
        ranked = [(one, one.similarity(vector)) for one in items]
        ranked.sort(key=lambda pair: -2.0 if pair[1] is None else pair[1], reverse=True)
    return ranked[op.offset : op.offset + op.limit]
