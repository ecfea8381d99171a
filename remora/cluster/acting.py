"""Changes of a memory by a command, or by the page with ``--allow-changes``.

The process that has the memory open does it, where there is one; otherwise it is done here, as the
owner of the directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from remora.api.asking import change_there
from remora.api.changes import Change, ChangeAnswer
from remora.api.dead_letters import DeadLetters, check_droppable, pick_dead_letters
from remora.cluster.merging import ShardIds
from remora.cluster.operating import call_there, change_dead_letters, list_jobs, open_owned
from remora.cluster.sharding import find_shards, shard_of
from remora.cluster.watch import count_live_owners
from remora.config import Config
from remora.runtime.jobs import Job
from remora.runtime.threads import run_in_thread
from remora.services.erasure import ErasureReceipt
from remora.storage.sockets import has_sockets


class Changed(msgspec.Struct, frozen=True):
    """How many dead letters or messages were changed; whether a process has the memory open."""

    changed: int
    open: bool


class Actions:
    """Changes a memory.

    Args:
        directory: of the memory.
        config: the configuration of its owner.
    """

    def __init__(self, directory: Path, config: Config) -> None:
        self._directory = directory
        self._config = config

    async def _ask_owner(self, **change: Any) -> ChangeAnswer | None:
        """Return what the process that has the memory open did; None if there is none.

        Where several own it, each does what concerns its shards.
        """
        if not has_sockets():
            return None
        parts = await run_in_thread(self._divide, change)
        if len(parts) > 1:
            await self._check_letters(change)
        answers = []
        for number, part in parts.items():
            answer = await change_there(self._directory, Change(uuid4().hex, **part), number)
            if answer is None:
                return None
            answer.check()
            answers.append(answer)
        changed = sum(one.changed for one in answers)
        return msgspec.structs.replace(answers[0], changed=changed)

    def _divide(self, change: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return what each of the processes that own the memory is to do, by its number. Blocks."""
        owners = count_live_owners(self._directory, self._config.cluster)
        if owners == 1:
            return {0: change}
        shards = len(find_shards(self._directory))
        if change["verb"] in {"forget", "delete"}:
            return {shard_of(change["user"], shards) % owners: change}
        ids = ShardIds(shards).split(change["ids"])
        parts: dict[int, list[str]] = {}
        for shard, own in ids.items():
            named = [ShardIds(shards).name_one(shard, one) for one in own]
            parts.setdefault(shard % owners, []).extend(named)
        return {number: change | {"ids": tuple(named)} for number, named in parts.items()}

    async def _check_letters(self, change: dict[str, Any]) -> None:
        """Check all dead letters before one of the owners changes some of them."""
        dead = [job for job in await list_jobs(self._directory) if job.dead]
        for job in pick_dead_letters(change["ids"], dead):
            if change["verb"] == "drop":
                check_droppable(job)

    async def retry(self, ids: Sequence[str]) -> Changed:
        """Have dead letters run again: now, or when a server opens the directory.

        Raises:
            DirectoryLocked: a process owns the directory that does not answer.
            OwnerUnreachable: it answers no more, or is of an earlier release.
            NoDeadLetter, InvalidInput: one of `ids` is none; nothing was changed.
        """
        if (there := await self._ask_owner(verb="retry", ids=tuple(ids))) is not None:
            return Changed(there.changed, open=True)
        verb = "retry_dead_letters([…])"
        durability = self._config.journal.durability
        count = await change_dead_letters(self._directory, durability, verb, DeadLetters.retry, ids)
        return Changed(count, open=False)

    async def drop(self, ids: Sequence[str]) -> Changed:
        """Drop dead letters permanently.

        Raises:
            DirectoryLocked, OwnerUnreachable, NoDeadLetter: see `retry`.
            InvalidInput: one of them can only be retried; nothing was changed.
        """
        if (there := await self._ask_owner(verb="drop", ids=tuple(ids))) is not None:
            return Changed(there.changed, open=True)

        async def check(jobs: Sequence[Job]) -> None:
            for job in jobs:
                check_droppable(job)

        count = await change_dead_letters(
            self._directory,
            self._config.journal.durability,
            "drop_dead_letters([…])",
            DeadLetters.drop,
            ids,
            confirmed=check,
        )
        return Changed(count, open=False)

    async def forget(self, user: str, session: str | None) -> ErasureReceipt:
        """Erase a user, or one session, down to the bytes.

        Raises:
            DirectoryLocked, OwnerUnreachable: see `retry`.
            StorageError: see `remora.User.forget`.
        """
        there = await self._ask_owner(verb="forget", user=user, session=session)
        if there is not None and there.receipt is not None:
            return there.receipt
        verb = "user(…).forget()" if session is None else "session(…).forget()"
        with call_there(verb):
            async with open_owned(self._directory, self._config, journal_only=True) as memory:
                who = memory.user(user)
                return await (who if session is None else who.session(session)).forget()

    async def delete(self, user: str, session: str, ids: Sequence[str]) -> Changed:
        """Delete messages of a session.

        Raises:
            DirectoryLocked, OwnerUnreachable: see `retry`.
            InvalidInput: there are none of these ids.
        """
        change = {"verb": "delete", "user": user, "session": session, "ids": tuple(ids)}
        if (there := await self._ask_owner(**change)) is not None:
            return Changed(there.changed, open=True)
        with call_there("session(…).delete([…])"):
            async with open_owned(self._directory, self._config, journal_only=True) as memory:
                receipt = await memory.session(user, session).delete(ids)
                return Changed(receipt.deleted, open=False)
