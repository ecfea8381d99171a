"""What LangGraph's checkpointer reads and writes, on the event loop of the runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from remora.adapters.langgraph_items import compare
from remora.adapters.langgraph_records import (
    BLOBS,
    CHECKPOINTS,
    LAST,
    Record,
    blob_key,
    checkpoint_key,
    config_of,
    decode_record,
    decode_typed,
    encode_typed,
    namespace_key,
    write_key,
    writes_prefix,
)
from remora.api.keyed_state import KeyedState, StateValue, adapter_state
from remora.api.user import User
from remora.errors import InvalidInput, StateConflict

__all__ = ["Threads"]

_PAGE = 100  # checkpoints that are read at once
_SESSIONS = 500  # sessions that are listed at once
_DELETED = 5_000  # keys in one write


class Threads:
    """The threads of a user; see `remora.adapters.langgraph_checkpoints.RemoraSaver`.

    Args:
        user: whose threads they are.
        serde: how values become bytes.
    """

    def __init__(self, user: User, serde: SerializerProtocol) -> None:
        self._user = user
        self._serde = serde

    def _state(self, thread: Any) -> KeyedState:
        return adapter_state(self._user.session(str(thread)), "langgraph", opaque=True)

    async def _find(self, config: RunnableConfig) -> Record | None:
        where = config["configurable"]
        state, namespace = self._state(where["thread_id"]), where.get("checkpoint_ns", "")
        if wanted := get_checkpoint_id(config):
            found = await state.get(checkpoint_key(namespace, wanted))
        else:
            prefix = CHECKPOINTS + namespace_key(namespace)
            found = next(iter(await state.items(prefix=prefix, limit=1, backward=True)), None)
        return None if found is None else decode_record(found.value)

    async def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `RemoraSaver.aget_tuple`."""
        record = await self._find(config)
        thread = config["configurable"]["thread_id"]
        return None if record is None else await self._tuple(thread, record)

    async def _tuple(self, thread: str, record: Record) -> CheckpointTuple:
        state, namespace = self._state(thread), record.namespace
        checkpoint = self._serde.loads_typed(decode_typed(record.checkpoint))
        values = await self._values(state, namespace, checkpoint["channel_versions"])
        return CheckpointTuple(
            config=config_of(thread, namespace, record.id),
            checkpoint=cast("Checkpoint", {**checkpoint, "channel_values": values}),
            metadata=self._serde.loads_typed(decode_typed(record.metadata)),
            parent_config=config_of(thread, namespace, record.parent) if record.parent else None,
            pending_writes=await self._writes(state, namespace, record.id),
        )

    async def _values(
        self, state: KeyedState, namespace: str, versions: ChannelVersions
    ) -> dict[str, Any]:
        keys = {channel: blob_key(namespace, channel, one) for channel, one in versions.items()}
        found = await state.get_many(set(keys.values()))
        return {
            channel: self._serde.loads_typed(decode_typed(found[key].value))
            for channel, key in keys.items()
            if key in found
        }

    async def _writes(self, state: KeyedState, namespace: str, id_: str) -> list[PendingWrite]:
        found = await state.items(prefix=writes_prefix(namespace, id_))
        return [
            (task, channel, self._serde.loads_typed(decode_typed(typed)))
            for task, channel, typed, _path in (one.value for one in found)
        ]

    async def find_all(
        self,
        config: RunnableConfig | None,
        wanted: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> list[CheckpointTuple]:
        """See `RemoraSaver.alist`."""
        if config is not None and "thread_id" in config["configurable"]:
            threads = [str(config["configurable"]["thread_id"])]
        else:
            threads = [one async for one in self._threads()]
        namespace = config["configurable"].get("checkpoint_ns") if config else None
        id_ = get_checkpoint_id(config) if config else None
        end = get_checkpoint_id(before) if before else None
        found: list[CheckpointTuple] = []
        for thread in threads:
            async for record in self._records(self._state(thread), namespace):
                if limit is not None and len(found) >= limit:
                    return found
                if (id_ and record.id != id_) or (end and record.id >= end):
                    continue
                metadata = self._serde.loads_typed(decode_typed(record.metadata))
                if all(compare(metadata, *pair) for pair in (wanted or {}).items()):
                    found.append(await self._tuple(thread, record))
        return found

    async def _threads(self) -> AsyncIterator[str]:
        after = None
        while page := await self._user.sessions(
            order="name", limit=_SESSIONS, after=after, empty=True
        ):
            for one in page:
                yield one.session
            after = page[-1].cursor

    async def _records(self, state: KeyedState, namespace: str | None) -> AsyncIterator[Record]:
        """Checkpoints of a thread by namespace, the latest first."""
        prefix = CHECKPOINTS + (namespace_key(namespace) if namespace is not None else "")
        async for one in _pages(state, prefix):
            yield decode_record(one.value)

    async def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `RemoraSaver.aput`."""
        where = config["configurable"]
        thread, namespace = where["thread_id"], where.get("checkpoint_ns", "")
        kept = {key: one for key, one in checkpoint.items() if key != "channel_values"}
        values = checkpoint["channel_values"]
        put: dict[str, Any] = {
            blob_key(namespace, channel, version): encode_typed(
                self._serde.dumps_typed(values[channel])
            )
            for channel, version in new_versions.items()
            if channel in values
        }
        metadata = get_checkpoint_metadata(config, metadata)
        put[checkpoint_key(namespace, checkpoint["id"])] = [
            namespace,
            checkpoint["id"],
            where.get("checkpoint_id"),
            metadata.get("run_id"),
            encode_typed(self._serde.dumps_typed(kept)),
            encode_typed(self._serde.dumps_typed(metadata)),
        ]
        put[LAST] = checkpoint["id"]
        await self._state(thread).change(put)
        return config_of(thread, namespace, checkpoint["id"])

    async def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        """See `RemoraSaver.aput_writes`."""
        where = config["configurable"]
        namespace, id_ = where.get("checkpoint_ns", ""), where["checkpoint_id"]
        put, once = {}, {}
        for number, (channel, value) in enumerate(writes):
            place = WRITES_IDX_MAP.get(channel, number)
            key = write_key(namespace, id_, task_id, place)
            put[key] = [task_id, channel, encode_typed(self._serde.dumps_typed(value)), task_path]
            if place >= 0:
                once[key] = 0
        while put:
            try:
                await self._state(where["thread_id"]).change(put, versions=once)
            except StateConflict as e:  # it was written before: the task was run again
                del put[e.key], once[e.key]
            else:
                return

    async def delete_thread(self, thread: str) -> None:
        """See `RemoraSaver.adelete_thread`."""
        state = self._state(thread)
        await _delete(state, [one.key for one in await state.items()])

    async def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """See `RemoraSaver.adelete_for_runs`."""
        runs = set(run_ids)
        if not runs:
            return
        async for thread in self._threads():
            await self._keep(
                thread, lambda records: [one for one in records if one.run not in runs]
            )

    async def _keep(self, thread: str, choose: Callable[[list[Record]], list[Record]]) -> None:
        """Delete the checkpoints that are not chosen, their writes and values that only they have.

        If a checkpoint is added at the same time, all is chosen again: it may need the values.
        """
        state = self._state(thread)
        while True:
            found = {one.key: one for one in await state.items()}
            last = found.pop(LAST, None)
            try:
                gone = self._unneeded(found, choose)
                versions = {LAST: last.version if last is not None else 0}
                for start in range(0, len(gone), _DELETED):
                    part = gone[start : start + _DELETED]
                    await state.change({}, delete=part, versions=versions)
            except StateConflict:
                continue
            else:
                return

    def _unneeded(
        self,
        found: Mapping[str, StateValue],
        choose: Callable[[list[Record]], list[Record]],
    ) -> list[str]:
        records = [
            decode_record(one.value) for key, one in found.items() if key.startswith(CHECKPOINTS)
        ]
        kept = choose(records)
        if len(kept) == len(records):
            return []
        needed = {checkpoint_key(one.namespace, one.id) for one in kept}
        for one in kept:
            versions = self._versions(one)
            needed.update(blob_key(one.namespace, *pair) for pair in versions.items())
        writes = tuple(writes_prefix(one.namespace, one.id) for one in kept)
        return [key for key in found if key not in needed and not key.startswith(writes)]

    def _versions(self, record: Record) -> ChannelVersions:
        checkpoint = self._serde.loads_typed(decode_typed(record.checkpoint))
        return cast("ChannelVersions", checkpoint["channel_versions"])

    async def copy_thread(self, source: str, target: str) -> None:
        """See `RemoraSaver.acopy_thread`."""
        items = await self._state(source).items()
        await self._state(target).change({one.key: one.value for one in items})

    async def prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        """See `RemoraSaver.aprune`."""
        if strategy not in {"keep_latest", "delete"}:
            raise InvalidInput(f"strategy must be keep_latest or delete, not {strategy!r:.80}")
        for thread in thread_ids:
            if strategy == "delete":
                await self.delete_thread(thread)
            else:
                state = self._state(thread)
                blobs = {one.key async for one in _pages(state, BLOBS)}
                await self._keep(thread, partial(self._latest, blobs))

    def _latest(self, blobs: Collection[str], records: list[Record]) -> list[Record]:
        """The latest checkpoint of each namespace, and what its delta channels are rebuilt from."""
        by_place = {(one.namespace, one.id): one for one in records}
        latest: dict[str, Record] = {}
        for one in sorted(records, key=lambda one: one.id):
            latest[one.namespace] = one
        kept = {(one.namespace, one.id): one for one in latest.values()}
        for one in latest.values():
            metadata = self._serde.loads_typed(decode_typed(one.metadata))
            missing = set(metadata.get("counters_since_delta_snapshot") or ())
            at: Record | None = one
            while missing and at is not None:
                kept[at.namespace, at.id] = at
                missing -= {
                    channel
                    for channel, version in self._versions(at).items()
                    if blob_key(at.namespace, channel, version) in blobs
                }
                at = by_place.get((at.namespace, at.parent or ""))
        return [*kept.values()]

    async def history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """See `RemoraSaver.aget_delta_channel_history`."""
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        record = await self._find(config) if channels else None
        thread = config["configurable"]["thread_id"]
        state = self._state(thread)
        while record is not None and record.parent and len(seeds) < len(writes):
            record = await self._find(config_of(thread, record.namespace, record.parent))
            if record is None:
                break
            open_ = writes.keys() - seeds.keys()
            for one in reversed(await self._writes(state, record.namespace, record.id)):
                if one[1] in open_:
                    writes[one[1]].append(one)
            versions = {key: one for key, one in self._versions(record).items() if key in open_}
            seeds.update(await self._values(state, record.namespace, versions))
        history: dict[str, DeltaChannelHistory] = {}
        for channel, found in writes.items():
            history[channel] = {"writes": found[::-1]}
            if channel in seeds:
                history[channel]["seed"] = seeds[channel]
        return history


async def _delete(state: KeyedState, keys: Sequence[str]) -> None:
    for start in range(0, len(keys), _DELETED):
        await state.change({}, delete=keys[start : start + _DELETED])


async def _pages(state: KeyedState, prefix: str) -> AsyncIterator[StateValue]:
    """Values in the reverse order of their keys."""
    after = None
    while page := await state.items(prefix=prefix, limit=_PAGE, after=after, backward=True):
        for one in page:
            yield one
        after = page[-1].key
