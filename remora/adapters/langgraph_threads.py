"""Reads and writes of LangGraph's checkpointer, on the event loop of the runtime."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import msgspec
from langchain_core.messages import BaseMessage
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

from remora.adapters.langchain import store_messages
from remora.adapters.langgraph_items import compare
from remora.api.keyed_state import KeyedState, StateValue, adapter_state
from remora.api.user import User
from remora.errors import InvalidInput, NotFound, StateConflict, TooManyKeys
from remora.logging import get_logger
from remora.runtime.concurrency import run_in_thread_if
from remora.storage.keyed_values import escape

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

# -- LangGraph's checkpoints as values of keyed state: their keys, and bytes in them ---------------

CHECKPOINTS, WRITES, BLOBS, PIECES = "checkpoint/", "write/", "value/", "piece/"
SAID = "said"
"""The key that says that messages of the checkpoints so far are the session's as well."""
LAST = "last"
"""The key of the id of the checkpoint that was put last: who deletes sees that another came."""

PIECE_BYTES = 98_304
"""Of a piece of a large value; 128 KiB as JSON."""

_NO_PIECES: Mapping[str, str] = MappingProxyType({})
_LOWEST_PLACE = 100  # places of writes that are not regular are below 0


class Record(msgspec.Struct, frozen=True):
    """A checkpoint as it is stored, without the values of its channels.

    Attributes:
        namespace: of the graph, or of a graph in it.
        id: sorts by time.
        parent: id of the one before; None for the first.
        run: id of the run that it is of.
        checkpoint: typed bytes, see `encode_typed`.
        metadata: typed bytes.
    """

    namespace: str
    id: str
    parent: str | None
    run: str | None
    checkpoint: list[str]
    metadata: list[str]


def decode_record(value: Any) -> Record:
    """The checkpoint in a value of keyed state."""
    return Record(*value)


def encode_typed(typed: tuple[str, bytes]) -> list[Any]:
    """A type's name and bytes, as JSON can hold them."""
    return [typed[0], b64encode(typed[1]).decode()]


def cut_typed(typed: tuple[str, bytes], pieces: dict[str, bytes]) -> list[Any]:
    """The same; if the bytes are many, the keys of their pieces, which are added to `pieces`.

    A key is the digest of its piece. So a list that has only grown shares the pieces of its
    beginning with earlier checkpoints, and a picture in it is stored once.
    """
    name, data = typed
    if len(data) <= PIECE_BYTES:
        return encode_typed(typed)
    keys = []
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        keys.append(f"{PIECES}{blake2b(piece, digest_size=20).hexdigest()}")
        pieces[keys[-1]] = piece
    return [name, keys]


def piece_keys(value: list[Any]) -> list[str]:
    """The keys of the pieces that a value has; none if it has its bytes in itself."""
    return [] if isinstance(value[1], str) else value[1]


def decode_typed(value: list[Any], pieces: Mapping[str, str] = _NO_PIECES) -> tuple[str, bytes]:
    """The type's name and bytes; `pieces` has, as base64, those that `piece_keys` names."""
    parts = [pieces[key] for key in piece_keys(value)] or [value[1]]
    return value[0], b"".join(map(b64decode, parts))


def namespace_key(namespace: str) -> str:
    """Return the key of a namespace: names of graphs in graphs may be too long for one."""
    return f"{_digest(namespace)}/"


def is_of_task(namespace: str) -> bool:
    """Return whether it is of one call of a graph in a graph, from which no later call goes on."""
    return ":" in namespace  # before a task's id; no name of a node has it


def checkpoint_key(namespace: str, id_: str) -> str:
    """The key of a checkpoint; those of a namespace sort by their ids."""
    return f"{CHECKPOINTS}{namespace_key(namespace)}{escape(id_)}"


def blob_key(namespace: str, channel: str, version: object) -> str:
    """The key of a channel's value."""
    return f"{BLOBS}{namespace_key(namespace)}{_digest(f'{channel}/{version}')}"


def writes_prefix(namespace: str, id_: str) -> str:
    """Return what the keys of a checkpoint's writes begin with."""
    return f"{WRITES}{namespace_key(namespace)}{escape(id_)}/"


def write_key(namespace: str, id_: str, task: str, place: int) -> str:
    """The key of a write; they sort by task and place."""
    return f"{writes_prefix(namespace, id_)}{escape(task)}/{place + _LOWEST_PLACE:08}"


def config_of(thread: str, namespace: str, id_: str | None = None) -> RunnableConfig:
    """LangGraph's name of a checkpoint; without an id, of the latest one."""
    name = {"thread_id": thread, "checkpoint_ns": namespace}
    return {"configurable": name if id_ is None else {**name, "checkpoint_id": id_}}


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


_PAGE = 100  # values that are read at once
_SESSIONS = 500  # sessions that are listed at once
_DELETED = 5_000  # keys in one write
_PIECES_AT_ONCE = 64  # 8 MiB as JSON, a quarter of a mailbox
_MESSAGES = 1_000  # that are stored at once
_REMEMBERED = 65_536  # pieces (6 GB of values), or checkpoints
_THREADS = 1_024  # whose messages are remembered
_IN_THREAD = 1_000_000  # bytes of a value from which on cutting it is a thread's work

_logger = get_logger(__name__)

_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")
_Choose: TypeAlias = Callable[[list[Record], Collection[str]], list[Record]]
"""The checkpoints that stay, of all and the keys of the channel values."""


class _Deleted(Exception):
    """A checkpoint was deleted while it was read."""


class Known:
    """The memory of a saver between its calls; all of it may be forgotten.

    Attributes:
        pieces: versions of pieces, by thread and key.
        said: by thread, the checkpoint that was put last, and its messages: a hash by id.
        named: threads and checkpoints that were asked for by their ids, and not as the latest.
    """

    def __init__(self) -> None:
        self.pieces: dict[tuple[str, str], int] = {}
        self.said: dict[str, tuple[str, Mapping[str, int]]] = {}
        self.named: dict[tuple[str, str], None] = {}


def _remember(
    memory: dict[_Key, _Kept], key: _Key, value: _Kept, *, most: int = _REMEMBERED
) -> None:
    """Note a value as the newest; the oldest is forgotten."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]


class Threads:
    """The threads of a user; see `remora.adapters.langgraph_checkpoints.RemoraSaver`.

    Args:
        user: whose threads they are.
        serde: how values become bytes.
        known: of the saver, for all calls.
        channel: whose messages are the sessions' as well; None for none.
    """

    def __init__(
        self, user: User, serde: SerializerProtocol, known: Known, channel: str | None = None
    ) -> None:
        self._user = user
        self._serde = serde
        self._known = known
        self._channel = channel

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
        if self._channel is not None and (named := get_checkpoint_id(config)):
            place = str(config["configurable"]["thread_id"]), named
            _remember(self._known.named, place, None)
        while (record := await self._find(config)) is not None:
            with suppress(_Deleted):
                return await self._tuple(config["configurable"]["thread_id"], record)
        return None

    async def _tuple(self, thread: str, record: Record) -> CheckpointTuple:
        checkpoint = self._serde.loads_typed(decode_typed(record.checkpoint))
        writes = await self._writes(thread, record)
        values = await self._values(thread, record, checkpoint["channel_versions"])
        namespace = record.namespace
        return CheckpointTuple(
            config=config_of(thread, namespace, record.id),
            checkpoint=cast("Checkpoint", {**checkpoint, "channel_values": values}),
            metadata=self._serde.loads_typed(decode_typed(record.metadata)),
            parent_config=config_of(thread, namespace, record.parent) if record.parent else None,
            pending_writes=writes,
        )

    async def _values(
        self, thread: str, record: Record, versions: ChannelVersions
    ) -> dict[str, Any]:
        """Values of channels.

        Raises:
            _Deleted: the checkpoint is not there any more, so a value may be missing.
        """
        keys = {
            channel: blob_key(record.namespace, channel, one) for channel, one in versions.items()
        }
        found = await self._read(thread, record, keys.values())
        there = {channel: found[key].value for channel, key in keys.items() if key in found}
        loaded = await self._loads(thread, record, there.values())
        return dict(zip(there, loaded, strict=True))

    async def _writes(self, thread: str, record: Record) -> list[PendingWrite]:
        prefix = writes_prefix(record.namespace, record.id)
        found = [one.value for one in await self._state(thread).items(prefix=prefix)]
        loaded = await self._loads(thread, record, [typed for _, _, typed, _ in found])
        return [
            (task, channel, value)
            for (task, channel, _, _), value in zip(found, loaded, strict=True)
        ]

    async def _loads(
        self, thread: str, record: Record, encoded: Collection[list[Any]]
    ) -> list[Any]:
        """Return what was stored as these values, put together from their pieces; see `_values`."""
        keys = [*dict.fromkeys(key for one in encoded for key in piece_keys(one))]
        pieces: dict[str, str] = {}
        for start in range(0, len(keys), _PIECES_AT_ONCE):
            part = keys[start : start + _PIECES_AT_ONCE]
            for one in (await self._read(thread, record, part)).values():
                pieces[one.key] = one.value
                self._note(str(thread), one)
        return [self._serde.loads_typed(decode_typed(one, pieces)) for one in encoded]

    async def _read(
        self, thread: str, record: Record, keys: Iterable[str]
    ) -> dict[str, StateValue]:
        """Values as of one moment at which the checkpoint was there; see `_values`."""
        at = checkpoint_key(record.namespace, record.id)
        found = await self._state(thread).get_many({at, *keys})
        if found.pop(at, None) is None:
            raise _Deleted
        return found

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
                    with suppress(_Deleted):
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
        pieces: dict[str, bytes] = {}
        put: dict[str, Any] = {
            blob_key(namespace, channel, version): await self._cut(values[channel], pieces)
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
        if self._channel is None or namespace:
            await self._store(where, put, pieces)
            return config_of(thread, namespace, checkpoint["id"])
        left = await self._left(where)
        there = await self._said_before(str(thread), where.get("checkpoint_id"))
        if self._channel in new_versions:
            there = await self._say(str(thread), values.get(self._channel), there)
        put[SAID] = True
        await self._store(where, put, pieces)
        _remember(self._known.said, str(thread), (checkpoint["id"], there), most=_THREADS)
        if gone := left - there.keys():
            with suppress(NotFound):
                await self._user.session(str(thread)).delete(gone)
        return config_of(thread, namespace, checkpoint["id"])

    async def _left(self, where: Mapping[str, Any]) -> set[str]:
        """The ids of messages of the branch that a run leaves with its first checkpoint.

        It goes on from a checkpoint that was asked for by its id and is not the latest one. Of runs
        at once, which all ask for the latest, none leaves a branch.
        """
        place = str(where["thread_id"]), str(where.get("checkpoint_id"))
        if self._channel is None or where.get("checkpoint_ns") or place not in self._known.named:
            return set()
        del self._known.named[place]
        latest = await self._find(config_of(place[0], ""))
        if latest is None or latest.id == place[1]:
            return set()
        before = await self._find(config_of(place[0], "", place[1]))
        return await self._ids(place[0], latest) - await self._ids(place[0], before)

    async def _ids(self, thread: str, record: Record | None) -> set[str]:
        """The ids of the messages of a checkpoint."""
        return set(_hashes(await self._read_messages(thread, record)))

    async def _read_messages(self, thread: str, record: Record | None) -> list[BaseMessage]:
        if record is None or self._channel is None:
            return []
        versions = self._versions(record)
        wanted = {one: at for one, at in versions.items() if one == self._channel}
        found = (await self._values(thread, record, wanted)).get(self._channel)
        return self._named(found)

    def _named(self, value: Any) -> list[BaseMessage]:
        """The messages of the channel, each with an id."""
        return [
            one if one.id else one.model_copy(update={"id": f"{self._channel}/{place}"})
            for place, one in enumerate(_messages(value))
        ]

    async def _said_before(self, thread: str, parent: str | None) -> Mapping[str, int]:
        """The messages of the checkpoint before, which were stored with it: a hash by id.

        One that the session does not have any more was deleted there, and is not stored again.
        """
        if not parent:
            return {}
        at, known = self._known.said.get(thread, ("", {}))
        if at == parent:
            return known
        if await self._state(thread).get(SAID) is None:
            return {}
        record = await self._find(config_of(thread, "", parent))
        return _hashes(await self._read_messages(thread, record))

    async def _say(self, thread: str, value: Any, before: Mapping[str, int]) -> dict[str, int]:
        """Store the messages of the channel that are not as before; a hash of each, by id.

        It is done before the checkpoint is written: after a crash it is done again, and a message
        that the session has by its id is stored once.
        """
        messages = self._named(value)
        hashes = _hashes(messages)
        new = [one for one in messages if before.get(str(one.id)) != hashes[str(one.id)]]
        session = self._user.session(thread)
        for start in range(0, len(new), _MESSAGES):
            await store_messages(session, new[start : start + _MESSAGES])
        return hashes

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
        put: dict[str, Any] = {}
        once: dict[str, int] = {}
        pieces: dict[str, bytes] = {}
        for number, (channel, value) in enumerate(writes):
            place = WRITES_IDX_MAP.get(channel, number)
            key = write_key(namespace, id_, task_id, place)
            put[key] = [task_id, channel, await self._cut(value, pieces), task_path]
            if place >= 0:
                once[key] = 0
        if pieces:
            put[LAST] = id_  # who deletes pieces sees that some are used
        while put.keys() - {LAST}:
            try:
                await self._store(where, put, pieces, once)
            except StateConflict as e:  # it was written before: the task was run again
                del put[e.key], once[e.key]
            else:
                return

    async def _cut(self, value: Any, pieces: dict[str, bytes]) -> list[Any]:
        typed = self._serde.dumps_typed(value)
        return await run_in_thread_if(len(typed[1]) > _IN_THREAD, cut_typed, typed, pieces)

    async def _store(
        self,
        where: Mapping[str, Any],
        put: Mapping[str, Any],
        pieces: Mapping[str, bytes],
        versions: Mapping[str, int] | None = None,
    ) -> None:
        """Write values, which name `pieces`, so that these are there whenever the values are.

        If there is no room for more keys, the older half of the thread's checkpoints is deleted.

        Raises:
            StateConflict: a key of `versions` has another one; none of the values was written.
            InvalidInput: see `RemoraSaver.aput`.
        """
        thread = str(where["thread_id"])
        while True:
            try:
                await self._store_whole(thread, put, pieces, versions or {})
            except StateConflict as e:
                if e.key not in pieces:
                    raise
                for key in pieces:  # some were deleted, or written by another process
                    self._known.pieces.pop((thread, key), None)
            except TooManyKeys:
                at = where.get("checkpoint_ns", ""), where.get("checkpoint_id")
                if not await self._make_room(thread, at):
                    raise
            else:
                return

    async def _store_whole(
        self,
        thread: str,
        put: Mapping[str, Any],
        pieces: Mapping[str, bytes],
        versions: Mapping[str, int],
    ) -> None:
        state = self._state(thread)
        known = self._known.pieces
        held = {key: known[thread, key] for key in pieces if (thread, key) in known}
        left = [key for key in pieces if key not in held]
        while len(left) > _PIECES_AT_ONCE:  # too many for one write
            part, left = left[:_PIECES_AT_ONCE], left[_PIECES_AT_ONCE:]
            stored = await state.change(_as_json(part, pieces))
            held.update((key, self._note(thread, one)) for key, one in stored.items())
        stored = await state.change(
            {**_as_json(left, pieces), **put}, versions={**held, **versions}
        )
        for key in left:
            self._note(thread, stored[key])

    def _note(self, thread: str, piece: StateValue) -> int:
        """Note that a thread has a piece, and return its version."""
        _remember(self._known.pieces, (thread, piece.key), piece.version)
        return piece.version

    async def delete_thread(self, thread: str) -> None:
        """See `RemoraSaver.adelete_thread`."""
        await self._delete(thread, partial(_all_keys, self._state(thread)))

    async def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """See `RemoraSaver.adelete_for_runs`."""
        runs = set(run_ids)
        if not runs:
            return
        async for thread in self._threads():
            await self._keep(
                thread, lambda records, _: [one for one in records if one.run not in runs]
            )

    async def _delete(self, thread: str, find: Callable[[], Awaitable[list[str]]]) -> int:
        """Delete the keys that `find` names, and return how many there were.

        If a checkpoint is added at the same time, they are looked for again: it may need them. They
        are deleted in their order, so those of checkpoints are to come first.
        """
        state = self._state(thread)
        while True:
            last = await state.get(LAST)
            versions = {LAST: last.version if last is not None else 0}
            keys = await find()
            try:
                for start in range(0, len(keys), _DELETED):
                    part = keys[start : start + _DELETED]
                    await state.change({}, delete=part, versions=versions)
            except StateConflict:
                continue
            return len(keys)

    async def _keep(self, thread: str, choose: _Choose) -> int:
        """Delete the checkpoints that are not chosen, and what only they have; see `_delete`."""
        return await self._delete(thread, partial(self._unneeded, self._state(thread), choose))

    async def _unneeded(self, state: KeyedState, choose: _Choose) -> list[str]:
        records = [decode_record(one.value) async for one in _pages(state, CHECKPOINTS)]
        blobs = {one.key: piece_keys(one.value) async for one in _pages(state, BLOBS)}
        kept = choose(records, blobs)
        needed = {checkpoint_key(one.namespace, one.id) for one in kept}
        gone = [checkpoint_key(one.namespace, one.id) for one in records]
        gone = [key for key in gone if key not in needed]
        for one in kept:
            versions = self._versions(one)
            needed.update(blob_key(one.namespace, *pair) for pair in versions.items())
        writes = tuple(writes_prefix(one.namespace, one.id) for one in kept)
        found = {one.key: piece_keys(one.value[2]) async for one in _pages(state, WRITES)}
        for key, pieces in (*blobs.items(), *found.items()):
            if key in needed or key.startswith(writes):
                needed.update(pieces)
            else:
                gone.append(key)
        gone += [one.key async for one in _pages(state, PIECES) if one.key not in needed]
        return gone

    def _versions(self, record: Record) -> ChannelVersions:
        checkpoint = self._serde.loads_typed(decode_typed(record.checkpoint))
        return cast("ChannelVersions", checkpoint["channel_versions"])

    async def copy_thread(self, source: str, target: str) -> None:
        """See `RemoraSaver.acopy_thread`."""
        items = await self._state(source).items()
        # its messages are not said in the other session yet
        await self._state(target).change({one.key: one.value for one in items if one.key != SAID})

    async def prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        """See `RemoraSaver.aprune`."""
        if strategy not in {"keep_latest", "delete"}:
            raise InvalidInput(f"strategy must be keep_latest or delete, not {strategy!r:.80}")
        for thread in thread_ids:
            if strategy == "delete":
                await self.delete_thread(thread)
            else:
                await self._keep(thread, self._latest)

    def _latest(self, records: list[Record], blobs: Collection[str]) -> list[Record]:
        """The latest checkpoint of each namespace, and what its delta channels are rebuilt from."""
        latest = {one.namespace: one for one in sorted(records, key=attrgetter("id"))}
        return self._with_ancestors([*latest.values()], records, blobs)

    def _with_ancestors(
        self, chosen: Iterable[Record], records: Iterable[Record], blobs: Collection[str]
    ) -> list[Record]:
        """Checkpoints, and those that their delta channels are rebuilt from."""
        by_place = {(one.namespace, one.id): one for one in records}
        kept = {(one.namespace, one.id): one for one in chosen}
        for one in [*kept.values()]:
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

    async def _make_room(self, thread: str, at: tuple[str, str | None]) -> bool:
        """Delete the older half of a thread's checkpoints; returns whether there were any.

        Those that a run goes on from stay: the latest of each graph, and the one that the run `at`
        which room is needed has read.
        """

        def choose(records: list[Record], blobs: Collection[str]) -> list[Record]:
            records = sorted(records, key=attrgetter("id"))
            latest = {one.namespace: one for one in records if not is_of_task(one.namespace)}
            here = [one for one in records if (one.namespace, one.id) == at]
            newer = records[(len(records) + 1) // 2 :]
            return self._with_ancestors([*newer, *latest.values(), *here], records, blobs)

        deleted = await self._keep(thread, choose)
        if deleted:
            _logger.warning(
                "checkpoints_pruned", session=self._user.session(thread).key, keys=deleted
            )
        return deleted > 0

    async def history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """See `RemoraSaver.aget_delta_channel_history`."""
        while True:
            with suppress(_Deleted):
                return await self._history(config, channels)

    async def _history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        record = await self._find(config) if channels else None
        thread = config["configurable"]["thread_id"]
        while record is not None and record.parent and len(seeds) < len(writes):
            record = await self._find(config_of(thread, record.namespace, record.parent))
            if record is None:
                break
            open_ = writes.keys() - seeds.keys()
            for one in reversed(await self._writes(thread, record)):
                if one[1] in open_:
                    writes[one[1]].append(one)
            versions = {key: one for key, one in self._versions(record).items() if key in open_}
            seeds.update(await self._values(thread, record, versions))
        history: dict[str, DeltaChannelHistory] = {}
        for channel, found in writes.items():
            history[channel] = {"writes": found[::-1]}
            if channel in seeds:
                history[channel]["seed"] = seeds[channel]
        return history


def _messages(value: Any) -> list[BaseMessage]:
    """The messages among a channel's values."""
    return [one for one in (value or ()) if isinstance(one, BaseMessage)]


def _hashes(messages: Iterable[BaseMessage]) -> dict[str, int]:
    """Return what each says, by its id."""
    return {str(one.id): hash(repr(one)) for one in messages}


async def _all_keys(state: KeyedState) -> list[str]:
    """Return those of checkpoints first, and last the one that a put changes."""
    keys = [one.key async for one in _pages(state, "")]
    return sorted(keys, key=lambda key: (key == LAST, key))


def _as_json(keys: Iterable[str], pieces: Mapping[str, bytes]) -> dict[str, str]:
    return {key: b64encode(pieces[key]).decode() for key in keys}


async def _pages(state: KeyedState, prefix: str) -> AsyncIterator[StateValue]:
    """Values in the reverse order of their keys."""
    after = None
    while page := await state.items(prefix=prefix, limit=_PAGE, after=after, backward=True):
        for one in page:
            yield one
        after = page[-1].key
