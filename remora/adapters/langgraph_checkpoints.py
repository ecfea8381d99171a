"""LangGraph's checkpointer over a user of remora: each thread is one of the user's sessions.

Needs the extra: ``pip install "remora[langgraph]"``.

A checkpoint, the channel values that are new in it, and a task's writes are one durable write each,
so none of them is ever there in part. They are keyed state of the session whose id is the thread's:
exports, backups, `Session.fork` and `Session.forget` include them. Large values are stored in
pieces, which checkpoints share; those that are too many for one write are written before it.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, cast

from remora.adapters.versions import warn_if_untested
from remora.api.threads import awaiter_of, original_of, waiter_of
from remora.api.user import User
from remora.blocking import User as BlockingUser

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol
except ImportError as e:
    raise ImportError('LangGraph\'s checkpointer needs it: pip install "remora[langgraph]"') from e

from remora.adapters.langgraph_threads import Known, Threads
from remora.services.arguments import check_text

__all__ = ["RemoraSaver"]

warn_if_untested("langgraph-checkpoint")


class RemoraSaver(BaseCheckpointSaver[str]):
    """Checkpoints of all threads of a user, for ``graph.compile(checkpointer=…)``.

    ``aput`` and the other methods that begin with ``a`` run on the event loop of the runtime; with
    a user of `remora.blocking`, on any. The others work in every thread but the event loop's.

    The checkpoints of a thread are in memory while it is in use: `aprune` keeps the latest ones.
    When a thread has `state.adapter_max_keys`, the older half of its checkpoints is deleted. A
    redaction hook is not given checkpoints, which are bytes of LangGraph's serializer.

    Args:
        user: whose threads they are; one user of your choice for the whole application, or one for
            each of its users, with a saver each.
        serde: LangGraph's own: how values become bytes.
        messages: the channel whose messages are also those of the session, ``"messages"`` for
            instance: they are recalled, listed and deleted as any others. None if nothing is, or if
            `RemoraMiddleware` stores them. Messages that a graph removes from the channel stay in
            the session; those of a branch that a run leaves, since it goes on from an earlier
            checkpoint, are deleted.
    """

    def __init__(
        self,
        user: User | BlockingUser,
        *,
        serde: SerializerProtocol | None = None,
        messages: str | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._channel = None if messages is None else check_text(messages, "messages")
        self._user: User = original_of(user)
        self._await = awaiter_of(user)
        self._wait = waiter_of(user)
        self._known = Known()

    @property
    def _threads(self) -> Threads:
        # a clone of the saver may have another `serde`
        return Threads(self._user, self.serde, self._known, self._channel)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the latest one of its thread and namespace."""
        return cast("CheckpointTuple | None", await self._await(self._threads.get_tuple, config))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`aget_tuple`, for threads."""
        return cast("CheckpointTuple | None", self._wait(self._threads.get_tuple, config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints, the latest first: of the thread and namespace in `config`, or of all.

        Args:
            config: may name a thread, a namespace and a checkpoint; None for all threads.
            filter: what the metadata must say.
            before: only checkpoints before the one that it names.
            limit: how many at most.
        """
        for one in await self._await(self._threads.find_all, config, filter, before, limit):
            yield one

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """`alist`, for threads."""
        yield from self._wait(self._threads.find_all, config, filter, before, limit)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and its new channel values, in one durable write.

        Raises:
            InvalidInput: there is no room for its keys, or `state.adapter_max_value_bytes` is less
                than a piece of a large value; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.KeyedState.change`.
        """
        arguments = config, checkpoint, metadata, new_versions
        return cast("RunnableConfig", await self._await(self._threads.put, *arguments))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`aput`, for threads."""
        return cast(
            "RunnableConfig",
            self._wait(self._threads.put, config, checkpoint, metadata, new_versions),
        )

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's writes with a checkpoint, in one durable write; see `aput`.

        Those that are there already stay as they are, except errors, interrupts and the like.
        """
        await self._await(self._threads.put_writes, config, writes, task_id, task_path)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`aput_writes`, for threads."""
        self._wait(self._threads.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete the checkpoints and writes of a thread.

        A checkpoint that is added while they are deleted is deleted as well. Their bytes leave the
        files in the course of upkeep; `Session.forget` of the session with the thread's id removes
        them at once.
        """
        await self._await(self._threads.delete_thread, thread_id)

    def delete_thread(self, thread_id: str) -> None:
        """`adelete_thread`, for threads."""
        self._wait(self._threads.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints and writes of these runs; looks at every thread of the user."""
        await self._await(self._threads.delete_for_runs, run_ids)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`adelete_for_runs`, for threads."""
        self._wait(self._threads.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another, in one durable write."""
        await self._await(self._threads.copy_thread, source_thread_id, target_thread_id)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`acopy_thread`, for threads."""
        self._wait(self._threads.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of these threads: all, or all but the latest of each namespace.

        What a delta channel of the latest one is rebuilt from stays as well.

        Args:
            thread_ids: the threads.
            strategy: ``keep_latest`` or ``delete``.

        Raises:
            InvalidInput: there is no such strategy; nothing was deleted.
        """
        await self._await(self._threads.prune, thread_ids, strategy)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`aprune`, for threads."""
        self._wait(self._threads.prune, thread_ids, strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The writes to each channel since the nearest ancestor with its value, and that value."""
        found = await self._await(self._threads.history, config, channels)
        return cast("Mapping[str, DeltaChannelHistory]", found)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`aget_delta_channel_history`, for threads."""
        found = self._wait(self._threads.history, config, channels)
        return cast("Mapping[str, DeltaChannelHistory]", found)

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """A channel's next version, which no other run chooses for its own value."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.random():016}"
