"""Operations on users: memories, working memory, profile, erasure."""

from __future__ import annotations

from functools import partial

from remora.actors.user.messages import Synopsis
from remora.recall.memory import Memory
from remora.rest import memory_shapes, shapes
from remora.rest.memory_shapes import split_types
from remora.rest.operation import USER, Asked, Operation
from remora.rest.session_operations import erased
from remora.services.archive import UserStatistics
from remora.services.deleting import DeletionReceipt

_NOT_MESSAGES = ("fact", "preference", "context", "procedural", "message_batch")


async def forget_user(asked: Asked) -> shapes.Erased:
    """A user is erased down to the bytes."""
    return erased(await asked.user.forget())


async def count_user(asked: Asked) -> UserStatistics:
    """The user in figures."""
    return await asked.user.stats()


async def recall(asked: Asked) -> memory_shapes.Recalled:
    """Return what was said or remembered and matches a question."""
    given = asked.given
    found = await asked.user.recall(
        given.query,
        limit=given.limit,
        types=given.types,
        session=given.session,
        agent=given.agent,
        where=given.where,
    )
    return memory_shapes.Recalled(found)


async def list_memories(asked: Asked) -> memory_shapes.Recalled:
    """Return what long-term memory holds of a user."""
    given = asked.given
    types = split_types(given.types) or (None if given.messages else _NOT_MESSAGES)
    found = await asked.user.memories(
        types, order=given.order, limit=given.limit, session=given.session, agent=given.agent
    )
    return memory_shapes.Recalled(found)


async def list_remembered(asked: Asked) -> memory_shapes.Recalled:
    """Return what was recorded, page by page."""
    given = asked.given
    found = await asked.user.remembered(
        where=given.where,
        types=given.types,
        session=given.session,
        agent=given.agent,
        limit=given.limit,
        after=given.after,
    )
    return memory_shapes.Recalled(found)


async def read_memory(asked: Asked) -> memory_shapes.MemoryFound:
    """A memory by its id."""
    return memory_shapes.MemoryFound(await asked.user.memory(asked.names["memory"]))


async def find_memory(asked: Asked) -> memory_shapes.MemoryFound:
    """A memory by its key."""
    given = asked.given
    return memory_shapes.MemoryFound(await asked.user.memory(key=given.key, agent=given.agent))


async def remember(asked: Asked) -> memory_shapes.Remembered:
    """A memory, or several, for all of a user's sessions."""
    given = asked.given
    ids = await asked.user.remember(
        given.content,
        type=given.type,
        importance=given.importance,
        session=given.session,
        agent=given.agent,
        key=given.key,
        metadata=given.metadata,
        replace=given.replace,
    )
    return memory_shapes.Remembered(ids)


async def record(asked: Asked) -> memory_shapes.Remembered:
    """Return what was said in a conversation that is kept elsewhere."""
    given = asked.given
    ids = await asked.user.record(given.messages, session=given.session, agent=given.agent)
    return memory_shapes.Remembered(ids)


async def update_memory(asked: Asked) -> Memory:
    """A memory is changed."""
    given = asked.given
    return await asked.user.update_memory(
        asked.names["memory"], given.content, importance=given.importance, metadata=given.metadata
    )


async def delete_memory(asked: Asked) -> DeletionReceipt:
    """A memory, or a message of any session, is deleted."""
    return await asked.user.delete(asked.names["memory"])


async def delete_memories(asked: Asked) -> DeletionReceipt:
    """Memories, and messages of any session, are deleted."""
    return await asked.user.delete(asked.given.ids, saved_only=asked.given.saved_only)


async def prune_memories(asked: Asked) -> memory_shapes.Done:
    """The least important rows leave long-term memory."""
    given = asked.given
    await asked.user.prune(
        keep=given.keep,
        strategy=given.strategy,
        max_age_s=given.max_age_s,
        types=given.types,
        wait=given.wait,
    )
    return memory_shapes.Done()


async def read_synopsis(asked: Asked) -> Synopsis:
    """Who the user is, and what concerns them."""
    return await asked.user.synopsis(refresh=asked.given.refresh)


async def learn(asked: Asked) -> memory_shapes.Learned:
    """Texts for working memory."""
    given = asked.given
    ids = await asked.user.learn(given.texts, source=given.source, session=given.session)
    return memory_shapes.Learned(ids)


async def search_working(asked: Asked) -> memory_shapes.WorkingFound:
    """Return what is nearest in meaning, in working memory."""
    given = asked.given
    found = await asked.user.search_working(given.query, given.limit, given.session)
    return memory_shapes.WorkingFound(
        [
            shapes.WorkingShown(
                one.id,
                one.text,
                one.source,
                one.session,
                round(one.created_at.timestamp() * 1_000_000),
                0,
                one.score,
            )
            for one in found
        ]
    )


_MEMORIES = USER + "/memories"
_MEMORY = _MEMORIES + "/{memory}"
_get = partial(Operation, "GET", repeatable=True)
_delete = partial(Operation, "DELETE", repeatable=True)
_post = partial(Operation, "POST")
_repeatable = partial(Operation, "POST", repeatable=True)
USER_OPERATIONS: tuple[Operation, ...] = (
    _delete(USER, "Erase a user", forget_user, shapes.Erased),
    _get(USER + "/stats", "Count what is stored of a user", count_user, UserStatistics),
    _repeatable(
        USER + "/recall",
        "Search what was said or remembered",
        recall,
        memory_shapes.Recalled,
        body=memory_shapes.Recall,
    ),
    _get(
        _MEMORIES,
        "List a user's memories",
        list_memories,
        memory_shapes.Recalled,
        query=memory_shapes.MemoryAsked,
    ),
    _repeatable(
        _MEMORIES,
        "Store a memory, or several",
        remember,
        memory_shapes.Remembered,
        body=memory_shapes.Remember,
    ),
    _repeatable(
        _MEMORIES + "/list",
        "List what was recorded, page by page",
        list_remembered,
        memory_shapes.Recalled,
        body=memory_shapes.MemoryPageAsked,
    ),
    _repeatable(
        _MEMORIES + "/find",
        "Read a memory by its key",
        find_memory,
        memory_shapes.MemoryFound,
        body=memory_shapes.MemoryNamed,
    ),
    _repeatable(
        _MEMORIES + "/record",
        "Remember what was said in a conversation kept elsewhere",
        record,
        memory_shapes.Remembered,
        body=memory_shapes.Recording,
    ),
    _repeatable(
        _MEMORIES + "/delete",
        "Delete memories, and messages of any session",
        delete_memories,
        DeletionReceipt,
        body=memory_shapes.UserDeletion,
    ),
    _post(
        _MEMORIES + "/prune",
        "Remove the least important rows of long-term memory",
        prune_memories,
        memory_shapes.Done,
        body=memory_shapes.Pruning,
    ),
    _get(_MEMORY, "Read a memory", read_memory, memory_shapes.MemoryFound),
    Operation(
        "PATCH",
        _MEMORY,
        "Change a memory",
        update_memory,
        Memory,
        body=memory_shapes.MemoryChange,
    ),
    _delete(_MEMORY, "Delete a memory or a message", delete_memory, DeletionReceipt),
    _repeatable(
        USER + "/synopsis",
        "Read who the user is",
        read_synopsis,
        Synopsis,
        body=memory_shapes.SynopsisAsked,
    ),
    _repeatable(
        USER + "/working",
        "Note texts in working memory",
        learn,
        memory_shapes.Learned,
        body=memory_shapes.Learning,
    ),
    _repeatable(
        USER + "/working/search",
        "Search working memory",
        search_working,
        memory_shapes.WorkingFound,
        body=memory_shapes.WorkingSearch,
    ),
)
"""Of users and their memories."""
