"""Operations on memories that agents share, each as one agent may use the scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import TypeVar

from remora.errors import NotGranted
from remora.recall.memory import Memory
from remora.rest import memory_shapes, shapes
from remora.rest.memory_shapes import split_types
from remora.rest.operation import Asked, Operation
from remora.rest.session_operations import erased
from remora.services.deleting import DeletionReceipt

Answer = TypeVar("Answer")


def _in_own_words(
    run: Callable[[Asked], Awaitable[Answer]],
) -> Callable[[Asked], Awaitable[Answer]]:
    """Have refusals name the scope as the tenant does."""

    @wraps(run)
    async def answer(asked: Asked) -> Answer:
        with _named(asked):
            return await run(asked)

    return answer


@contextmanager
def _named(asked: Asked) -> Iterator[None]:
    try:
        yield
    except NotGranted as e:
        own = e.scope.removeprefix(asked.prefix)
        text = str(e).replace(repr(e.scope), repr(own))
        raise NotGranted(text, scope=own, who=e.who) from None


@_in_own_words
async def remember_shared(asked: Asked) -> memory_shapes.Remembered:
    """Memories for all members."""
    given = asked.given
    ids = await asked.member.remember(given.content, type=given.type, importance=given.importance)
    return memory_shapes.Remembered(ids)


@_in_own_words
async def recall_shared(asked: Asked) -> memory_shapes.Recalled:
    """Return what members recorded and matches a question."""
    given = asked.given
    found = await asked.member.recall(
        given.query, limit=given.limit, types=given.types, by=given.by
    )
    return memory_shapes.Recalled(found)


@_in_own_words
async def list_shared(asked: Asked) -> memory_shapes.Recalled:
    """Return what members recorded."""
    given = asked.given
    found = await asked.member.memories(split_types(given.types), limit=given.limit)
    return memory_shapes.Recalled(found)


@_in_own_words
async def read_shared(asked: Asked) -> memory_shapes.MemoryFound:
    """A memory of any member."""
    return memory_shapes.MemoryFound(await asked.member.memory(asked.names["memory"]))


@_in_own_words
async def update_shared(asked: Asked) -> Memory:
    """A memory is changed."""
    given = asked.given
    return await asked.member.update_memory(
        asked.names["memory"], given.content, importance=given.importance, metadata=given.metadata
    )


@_in_own_words
async def delete_shared(asked: Asked) -> DeletionReceipt:
    """Memories are deleted."""
    return await asked.member.delete(asked.given.ids)


@_in_own_words
async def claim_scope(asked: Asked) -> memory_shapes.Done:
    """The agent becomes the owner of a scope that has none."""
    await asked.member.claim()
    return memory_shapes.Done()


@_in_own_words
async def grant_right(asked: Asked) -> memory_shapes.Done:
    """Another agent may read, write or own."""
    await asked.member.grant(asked.given.to, asked.given.right)
    return memory_shapes.Done()


@_in_own_words
async def revoke_right(asked: Asked) -> memory_shapes.Done:
    """Another agent's rights are taken away."""
    await asked.member.revoke(asked.given.to)
    return memory_shapes.Done()


@_in_own_words
async def list_members(asked: Asked) -> memory_shapes.Members:
    """Each agent's right."""
    return memory_shapes.Members(await asked.member.members())


@_in_own_words
async def forget_scope(asked: Asked) -> shapes.Erased:
    """The scope and its grants are erased."""
    return erased(await asked.member.forget())


_MEMBER = "/v1/shared/{scope}/as/{agent}"
_MEMORIES = _MEMBER + "/memories"
_get = partial(Operation, "GET", repeatable=True)
_post = partial(Operation, "POST", repeatable=True)
SHARED_OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "DELETE", _MEMBER, "Erase a shared scope", forget_scope, shapes.Erased, repeatable=True
    ),
    _post(
        _MEMORIES,
        "Share memories",
        remember_shared,
        memory_shapes.Remembered,
        body=memory_shapes.Sharing,
    ),
    _get(
        _MEMORIES,
        "List shared memories",
        list_shared,
        memory_shapes.Recalled,
        query=memory_shapes.SharedAsked,
    ),
    _post(
        _MEMBER + "/recall",
        "Search shared memories",
        recall_shared,
        memory_shapes.Recalled,
        body=memory_shapes.SharedRecall,
    ),
    _post(
        _MEMORIES + "/delete",
        "Delete shared memories",
        delete_shared,
        DeletionReceipt,
        body=memory_shapes.MemoryIds,
    ),
    _get(_MEMORIES + "/{memory}", "Read a shared memory", read_shared, memory_shapes.MemoryFound),
    Operation(
        "PATCH",
        _MEMORIES + "/{memory}",
        "Change a shared memory",
        update_shared,
        Memory,
        body=memory_shapes.MemoryChange,
    ),
    _get(_MEMBER + "/members", "List members", list_members, memory_shapes.Members),
    _post(_MEMBER + "/claim", "Own a scope that has no owner", claim_scope, memory_shapes.Done),
    Operation(
        "POST",
        _MEMBER + "/grant",
        "Grant a right",
        grant_right,
        memory_shapes.Done,
        body=memory_shapes.GrantGiven,
    ),
    Operation(
        "POST",
        _MEMBER + "/revoke",
        "Take rights away",
        revoke_right,
        memory_shapes.Done,
        body=memory_shapes.MemberNamed,
    ),
)
"""Of memories that agents share."""
