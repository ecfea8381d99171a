"""Operations on sessions and turns: functions over the handles that an application uses."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from remora.actors.blocks.source import Source
from remora.api.turn import Turn, turn_to_answer
from remora.errors import InvalidInput, TurnClosed
from remora.messages import Message, Receipt
from remora.recall.context import Context, Sources
from remora.rest import shapes
from remora.rest.operation import SESSION, USER, Asked, Operation
from remora.rest.problems import FailureLog, TierFailed
from remora.services.archive import SessionStatistics
from remora.services.deleting import DeletionReceipt
from remora.services.erasure import ErasureReceipt


async def list_users(asked: Asked) -> shapes.UserPage:
    """Users of the tenant."""
    page, own = asked.given, asked.prefix
    found = await asked.runtime.users(
        prefix=own + page.prefix, order=page.order, limit=page.limit, after=page.after
    )
    users = [
        shapes.UserItem(one.user.removeprefix(own), one.sessions, one.last_at, one.cursor)
        for one in found
    ]
    return shapes.UserPage(users, next_cursor(users, page.limit))


async def list_sessions(asked: Asked) -> shapes.SessionPage:
    """Sessions of a user."""
    page = asked.given
    found = await asked.user.sessions(
        prefix=page.prefix, order=page.order, limit=page.limit, after=page.after, empty=page.empty
    )
    sessions = [
        shapes.SessionItem(one.session, one.messages, one.last_at, one.cursor) for one in found
    ]
    return shapes.SessionPage(sessions, next_cursor(sessions, page.limit))


async def append_messages(asked: Asked) -> shapes.Appended:
    """Messages for a session."""
    given = asked.given
    receipt = await asked.session.append(
        given.messages,
        key=asked.key,
        allow_duplicates=given.allow_duplicates,
        replace=given.replace,
    )
    return _appended(receipt)


async def list_messages(asked: Asked) -> shapes.MessagePage:
    """Messages of a session."""
    page = asked.given
    found = await asked.session.history(
        include_archived=page.archived,
        at=page.at,
        after=page.after,
        limit=page.limit + 1,
        attachments=page.attachments,
    )
    shown = found[: page.limit]
    return shapes.MessagePage(shown, shown[-1].seq if len(found) > len(shown) else None)


async def load_context(asked: Asked) -> shapes.ContextShown:
    """Return what a model should see."""
    given = asked.given
    context = await asked.session.load(
        given.query,
        max_tokens=given.max_tokens,
        override=given.override,
        messages=given.messages,
        at=given.at,
    )
    return _shown(context, asked.failures)


async def begin_turn(asked: Asked) -> shapes.TurnShown:
    """The user's message is stored, and the context loaded."""
    given = asked.given
    query: Any = given.query if given.recall else False
    turn = asked.session.turn(
        given.message, key=asked.key, query=query, max_tokens=given.max_tokens
    )
    async with turn:
        context = None if turn.replayed else _shown(turn.context, asked.failures)
        return shapes.TurnShown(turn.replayed, turn.replies, context, turn.resumed)


async def reply_to_turn(asked: Asked) -> shapes.TurnShown:
    """The reply is stored, once."""
    given = asked.given
    async with turn_to_answer(asked.session, given.message, key=asked.key) as turn:
        replies, stored = turn.replies, given.stored
        if len(replies) < stored:
            raise InvalidInput(f"the turn has {len(replies)} replies, and `stored` is {stored}")
        if len(replies) > stored:  # it was sent before
            found = _appended(_receipt_of(replies[stored:]))
        elif turn.replayed:
            raise TurnClosed("the turn was answered before: nothing was written")
        else:
            found = _appended(await turn.reply(given.reply))
        answered = turn.replayed or _is_answered(turn)
        return shapes.TurnShown(answered, turn.replies, None, turn.resumed, found)


async def clear_session(asked: Asked) -> shapes.Cleared:
    """The buffer and the summary are emptied; history and memories stay."""
    return shapes.Cleared(await asked.session.clear())


async def flush_session(asked: Asked) -> shapes.Cleared:
    """Return what long-term memory does not have yet begins to be indexed."""
    return shapes.Cleared(await asked.session.flush())


async def read_buffer(asked: Asked) -> shapes.Buffered:
    """Messages of the buffer."""
    given = asked.given
    found = await asked.session.get_messages(
        given.role, filter_metadata=given.filter_metadata, limit=given.limit
    )
    return shapes.Buffered(found)


async def read_contents(asked: Asked) -> shapes.Contents:
    """The whole buffer, and the summaries as messages."""
    found = await asked.session.contents(summary_prefix=asked.given.summary_prefix)
    return shapes.Contents(*found)


async def search_buffer(asked: Asked) -> shapes.Hits:
    """Messages of the buffer that match a query."""
    given = asked.given
    found = await asked.session.search(given.query, given.limit, semantic=given.semantic)
    return shapes.Hits([shapes.Hit(one.message, one.score) for one in found])


async def delete_messages(asked: Asked) -> DeletionReceipt:
    """Messages are deleted, in the buffer or out of it."""
    given = asked.given
    ids = () if given.ids is None else given.ids
    return await asked.session.delete(ids, positions=given.positions)


async def rewind_session(asked: Asked) -> shapes.Deleted:
    """Later messages are gone."""
    return shapes.Deleted(await asked.session.rewind(asked.given.to))


async def truncate_session(asked: Asked) -> shapes.Cleared:
    """Older messages leave the buffer; history stays."""
    return shapes.Cleared(await asked.session.truncate_to_size(asked.given.keep))


async def fork_session(asked: Asked) -> shapes.Forked:
    """Another session begins as a copy."""
    copy = await asked.session.fork(asked.given.session, at=asked.given.at)
    return shapes.Forked(copy.key.session)


async def count_session(asked: Asked) -> SessionStatistics:
    """The session in figures."""
    return await asked.session.stats()


async def forget_session(asked: Asked) -> shapes.Erased:
    """A session is erased down to the bytes."""
    receipt = await asked.session.forget()
    return erased(receipt)


def erased(receipt: ErasureReceipt) -> shapes.Erased:
    """Return what was erased."""
    return shapes.Erased(*msgspec.structs.astuple(receipt))


def next_cursor(found: list[Any], limit: int) -> str | None:
    """Where the next page begins; None if this one is not full."""
    return found[-1].cursor if len(found) == limit else None


def _appended(receipt: Receipt) -> shapes.Appended:
    return shapes.Appended(receipt.seqs, receipt.ids, receipt.duplicate)


def _receipt_of(messages: list[Message]) -> Receipt:
    numbers = tuple(one.seq or 0 for one in messages)
    return Receipt(numbers, tuple(one.id or "" for one in messages), duplicate=True)


def _is_answered(turn: Turn) -> bool:
    """Return whether the newest reply ends the turn: it is complete, and calls no tool."""
    if not turn.replies:
        return False
    last = turn.replies[-1]
    return last.role == "assistant" and not last.tool_calls


def _hide_failures(sources: Sources, failures: FailureLog) -> Sources:
    """Return what each tier gave.

    Texts of exceptions, which name files and quote models, are logged.
    """
    failed = False
    for name, one in sources.items():
        if one.status == "ok":
            failures.succeed(name)
        elif one.status == "failed":
            failed = True
            failures.fail(TierFailed(one.detail), part=name)
    if not failed:
        return sources

    def hide(source: Source) -> Source:
        if source.status != "failed":
            return source
        return msgspec.structs.replace(source, detail="it failed: the server's log says why")

    tiers = {name: hide(one) for name, one in sources.items() if ":" not in name}
    blocks = {name: hide(one) for name, one in sources.blocks.items()}
    return Sources(**tiers, blocks=blocks)


def _shown(context: Context, failures: FailureLog) -> shapes.ContextShown:
    return shapes.ContextShown(
        messages=list(context.messages),
        tokens=context.tokens,
        summary=context.summary,
        memories=context.memories,
        sources=_hide_failures(context.sources, failures),
        prefix_changed=context.prefix_changed,
        pending=context.pending,
        omitted=context.omitted,
        awaiting=context.awaiting,
        orphans=context.orphans,
        working=tuple(
            shapes.WorkingShown(
                one.item.id,
                one.item.text,
                one.item.source,
                one.item.scope,
                one.item.at_us,
                one.item.tokens,
                one.score,
            )
            for one in context.working
        ),
        synopsis=context.synopsis,
        entries=context.entries,
    )


_get = partial(Operation, "GET", repeatable=True)
_post = partial(Operation, "POST")
_erase = partial(Operation, "DELETE", repeatable=True)
SESSION_OPERATIONS: tuple[Operation, ...] = (
    _get("/v1/users", "List users", list_users, shapes.UserPage, query=shapes.Listing),
    _get(
        USER + "/sessions",
        "List a user's sessions",
        list_sessions,
        shapes.SessionPage,
        query=shapes.SessionsListing,
    ),
    _erase(SESSION, "Erase a session", forget_session, shapes.Erased),
    _get(
        SESSION + "/messages",
        "Read a session's messages",
        list_messages,
        shapes.MessagePage,
        query=shapes.Messages,
    ),
    _post(
        SESSION + "/messages",
        "Append messages: all are durable, or none",
        append_messages,
        shapes.Appended,
        body=shapes.Append,
        keyed=True,
    ),
    _post(
        SESSION + "/messages/delete",
        "Delete messages, in the buffer or out of it",
        delete_messages,
        DeletionReceipt,
        body=shapes.Deletion,
    ),
    _post(
        SESSION + "/context",
        "Load what a model should see",
        load_context,
        shapes.ContextShown,
        body=shapes.ContextAsked,
        repeatable=True,
    ),
    _post(
        SESSION + "/turns",
        "Begin or resume a turn: store the user's message, load the context",
        begin_turn,
        shapes.TurnShown,
        body=shapes.TurnAsked,
        keyed="required",
    ),
    _post(
        SESSION + "/turns/replies",
        "Store a reply of a turn",
        reply_to_turn,
        shapes.TurnShown,
        body=shapes.Reply,
        keyed="required",
    ),
    _post(SESSION + "/clear", "Empty the buffer and the summary", clear_session, shapes.Cleared),
    _post(
        SESSION + "/flush",
        "Index what long-term memory does not have yet",
        flush_session,
        shapes.Cleared,
        repeatable=True,
    ),
    _post(
        SESSION + "/buffer",
        "Read the messages in the buffer",
        read_buffer,
        shapes.Buffered,
        body=shapes.Buffer,
        repeatable=True,
    ),
    _post(
        SESSION + "/contents",
        "Read the whole buffer, and the summaries as messages",
        read_contents,
        shapes.Contents,
        body=shapes.ContentsAsked,
        repeatable=True,
    ),
    _post(
        SESSION + "/buffer/search",
        "Search the buffer",
        search_buffer,
        shapes.Hits,
        body=shapes.BufferSearch,
        repeatable=True,
    ),
    _post(
        SESSION + "/rewind",
        "Go back to an earlier message",
        rewind_session,
        shapes.Deleted,
        body=shapes.Rewinding,
    ),
    _post(
        SESSION + "/truncate",
        "Keep the newest messages in the buffer",
        truncate_session,
        shapes.Cleared,
        body=shapes.Truncation,
    ),
    _post(
        SESSION + "/fork",
        "Begin another session as a copy",
        fork_session,
        shapes.Forked,
        body=shapes.Forking,
    ),
    _get(SESSION + "/stats", "Count messages, tokens, summaries", count_session, SessionStatistics),
)
"""Of users' listings, sessions and turns."""
