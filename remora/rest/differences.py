"""Operations that differ from the verbs of handles: pages, contexts, turns."""

from __future__ import annotations

from typing import Any

import msgspec

from remora.actors.blocks.source import Source
from remora.api.turn import Turn, turn_to_answer
from remora.errors import InvalidInput, TurnClosed
from remora.messages import Message, Receipt
from remora.recall.context import Context, Sources
from remora.rest import shapes
from remora.rest.operation import Asked
from remora.rest.problems import FailureLog, TierFailed
from remora.services.deleting import DeletionReceipt

_NOT_MESSAGES = ("fact", "preference", "context", "procedural", "message_batch")


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


async def list_memories(asked: Asked) -> shapes.Recalled:
    """Return what long-term memory holds of a user; messages only if they are asked for."""
    given = asked.given
    types = _split(given.types) or (None if given.messages else _NOT_MESSAGES)
    found = await asked.user.memories(
        types, order=given.order, limit=given.limit, session=given.session, agent=given.agent
    )
    return shapes.Recalled(found)


async def list_shared(asked: Asked) -> shapes.Recalled:
    """Return what members recorded."""
    given = asked.given
    with asked.in_own_words():
        found = await asked.member.memories(_split(given.types), limit=given.limit)
    return shapes.Recalled(found)


def _split(types: str | None) -> list[str] | None:
    """Memory types of a query's parameter."""
    return None if types is None else [one.strip() for one in types.split(",")]


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


async def delete_messages(asked: Asked) -> DeletionReceipt:
    """Messages are deleted, in the buffer or out of it."""
    given = asked.given
    ids = () if given.ids is None else given.ids
    return await asked.session.delete(ids, positions=given.positions)


async def fork_session(asked: Asked) -> shapes.Forked:
    """Another session begins as a copy."""
    copy = await asked.session.fork(asked.given.session, at=asked.given.at)
    return shapes.Forked(copy.key.session)


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
    fields = {name: getattr(context, name) for name in shapes.ContextShown.__struct_fields__}
    fields["messages"] = list(context.messages)
    fields["sources"] = _hide_failures(context.sources, failures)
    fields["working"] = tuple(
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
    )
    return shapes.ContextShown(**fields)
