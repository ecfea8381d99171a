"""Operations on background work of a tenant: dead letters, unfinished erasures."""

from __future__ import annotations

from typing import Annotated

import msgspec

from remora import errors
from remora.api.dead_letters import no_dead_letter
from remora.ids import SHARED_PREFIX, SessionKey, validate_id
from remora.rest.operation import Asked
from remora.rest.problems import explain
from remora.rest.shapes import Request, Text
from remora.runtime.jobs import Job
from remora.services.arguments import MAX_IDS, collect

Ids = Annotated[list[Text], msgspec.Meta(max_length=MAX_IDS)]


class DeadLetter(msgspec.Struct, frozen=True):
    """Background work that failed too often: it runs no more until it is retried.

    `user` is null for that of the shared scope `scope`. `error` names the class of the last
    failure, and says what it means; its text is for who runs the memory (``remora jobs``).
    """

    id: str
    queue: str
    user: str | None
    session: str | None
    scope: str | None
    attempts: int
    error: str


class DeadLetters(msgspec.Struct, frozen=True):
    """The tenant's dead letters."""

    jobs: list[DeadLetter]


class Retrying(Request, frozen=True):
    """Which jobs to try again; null for all of the tenant."""

    ids: Ids | None = None


class Dropping(Request, frozen=True):
    """Which jobs to drop."""

    ids: Ids


class Changed(msgspec.Struct, frozen=True):
    """How many jobs were changed."""

    jobs: int


class UnfinishedErasure(msgspec.Struct, frozen=True):
    """An erasure whose rows are gone, and whose files are not rewritten yet.

    `since_us`: when it was first tried, in microseconds since the epoch; 0 if it never failed.
    """

    id: str
    attempts: int
    since_us: int
    error: str


class UnfinishedErasures(msgspec.Struct, frozen=True):
    """Erasures of a user that are not confirmed yet; none: all that were asked for are done."""

    erasures: list[UnfinishedErasure]


async def list_dead_letters(asked: Asked) -> DeadLetters:
    """Dead letters of the tenant."""
    return DeadLetters([_show(job, asked) for job in await _own(asked)])


async def retry_dead_letters(asked: Asked) -> Changed:
    """Dead letters run again."""
    ids = await _check(asked, asked.given.ids)
    return Changed(await asked.runtime.retry_dead_letters(ids) if ids else 0)


async def drop_dead_letters(asked: Asked) -> Changed:
    """Dead letters are given up."""
    ids = await _check(asked, asked.given.ids)
    return Changed(await asked.runtime.drop_dead_letters(ids) if ids else 0)


async def list_erasures(asked: Asked) -> UnfinishedErasures:
    """Return what of a user is not erased yet."""
    found = asked.runtime.erasures(asked.user.id)
    return UnfinishedErasures(
        [
            UnfinishedErasure(one.id, one.attempts, one.since_us, _hide_text(one.error))
            for one in found
        ]
    )


async def _own(asked: Asked) -> list[Job]:
    mine = (asked.prefix, SHARED_PREFIX + asked.prefix)
    return [job for job in await asked.runtime.dead_letters() if _user(job).startswith(mine)]


async def _check(asked: Asked, ids: list[str] | None) -> list[str]:
    """These ids, or all of the tenant.

    Raises:
        InvalidId: one is none that a dead letter has.
        NoDeadLetter: one is another tenant's, or there is none.
    """
    own = [job.id for job in await _own(asked)]
    if ids is None:
        return own
    collect(ids, "ids", validate_id)
    unknown = [id_ for id_ in ids if id_ not in own]
    if unknown:
        raise no_dead_letter(unknown)
    return ids


def _user(job: Job) -> str:
    key = job.key
    return str(getattr(key, "user", ""))


def _show(job: Job, asked: Asked) -> DeadLetter:
    name = _user(job)
    shared = name.startswith(SHARED_PREFIX)
    own = name.removeprefix(SHARED_PREFIX).removeprefix(asked.prefix)
    return DeadLetter(
        job.id,
        job.queue,
        None if shared else own,
        job.key.session if isinstance(job.key, SessionKey) else None,
        own if shared else None,
        job.attempts,
        _hide_text(job.error),
    )


def _hide_text(error: str) -> str:
    """A failure by its class: its text names files and addresses, and may quote rows and models."""
    if not error:
        return ""
    name = error.partition(":")[0]
    kind = getattr(errors, name, None) if name in errors.__all__ else None
    return f"{name if name.isidentifier() else 'Exception'}: {explain(kind)}"
