"""What an application does with a user's long-term memory, and with an agent's share of it.

Both are handles of the same kind: `User` sees all that is the user's, `Agent` only what that agent
recorded.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import anyio
import anyio.to_thread

from remora.actors.policies.importance import DEFAULT_IMPORTANCE
from remora.actors.policies.pruning import PruningStrategy
from remora.actors.policies.redaction import redact_text
from remora.actors.user.messages import PruneNow, Remember, RememberReceipt, Touch
from remora.api.tools import MemoryTools
from remora.errors import (
    CommitFailed,
    InvalidInput,
    InvalidMessage,
    OutcomeUnknown,
    RecordingFailed,
)
from remora.ids import UserKey, memory_id, validate_id
from remora.jobs.memories import MEMORY_TYPES, ROW_TYPES
from remora.messages import (
    Message,
    MessageLike,
    dated_line,
    decode_chat,
    encode_message,
    plain_text,
    without_surrogates,
)
from remora.recall.recall import Memory, Recall
from remora.services.parts import Services
from remora.storage.ports import Scope
from remora.storage.records import MemoryItem
from remora.tokens import INLINE_CHARACTERS

__all__ = [
    "Agent",
    "LongTermHandle",
    "MemoryLike",
    "gathered",
    "prune_message",
    "recording",
    "touched",
]

MemoryLike: TypeAlias = str | Mapping[str, Any]
"""Something to remember: a text, or a dict with ``content`` and, where they differ from the call's
own, ``type``, ``importance``, ``session``, ``agent`` and ``created_at`` (a datetime, or seconds
since the epoch).
"""

Result = TypeVar("Result")

_KEYS = frozenset({"content", "type", "importance", "session", "agent", "created_at"})
_RECORDED_ROLES = ("user", "assistant")


def touched(services: Services, user: str, memories: Sequence[Memory]) -> None:
    """Have the user's own actor count these as retrieved, once, without waiting for it."""
    if memories:
        now_us = int(services.clock.time() * 1_000_000)
        services.directory.post(
            UserKey(user), Touch(tuple(memory.id for memory in memories), now_us)
        )


@contextmanager
def recording(op: str, user: str, session: str) -> Iterator[None]:
    """Say of a failing journal what it failed at.

    Raises:
        RecordingFailed: for CommitFailed and OutcomeUnknown.
    """
    try:
        yield
    except (CommitFailed, OutcomeUnknown) as e:
        raise RecordingFailed(
            f"{op} failed for user {user!r}{f', session {session!r}' if session else ''}: {e}",
            op=op, user=user, session=session, cause=e,
        ) from e  # fmt: skip


def prune_message(
    keep: int | None,
    strategy: PruningStrategy,
    max_age_s: float | None,
    types: str | Iterable[str] | None,
) -> PruneNow:
    """What the user's own actor is told.

    Raises:
        InvalidInput: a value out of range, or no bound at all.
    """
    if strategy not in get_args(PruningStrategy):
        raise InvalidInput(
            f"strategy must be one of {', '.join(get_args(PruningStrategy))}, not {strategy!r}"
        )
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 0):
        raise InvalidInput(f"keep must be a number of memories, not {keep!r}")
    if max_age_s is not None and not (math.isfinite(max_age_s) and max_age_s > 0):
        raise InvalidInput(f"max_age_s must be a positive number of seconds, not {max_age_s!r}")
    if max_age_s is not None and strategy != "age":
        raise InvalidInput(f"max_age_s goes with the strategy age, not with {strategy}")
    if keep is None and max_age_s is None:
        raise InvalidInput("pruning needs a bound: keep, or max_age_s with the strategy age")
    return PruneNow(-1 if keep is None else keep, strategy, max_age_s or 0.0, _check_types(types))


class LongTermHandle:
    """Records and recalls for one user, or for one agent of a user.

    Get one from `Runtime.user` or `User.agent`.
    """

    __slots__ = ("_agent", "_services", "_user")

    def __init__(self, services: Services, user: str, agent: str | None = None) -> None:
        self._services = services
        self._user = user
        self._agent = agent

    # -- recording ---------------------------------------------------------------------------------

    async def remember(
        self,
        content: MemoryLike | Iterable[MemoryLike],
        *,
        type: str = "fact",  # noqa: A002
        importance: float | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[str]:
        """Record something in long-term memory.

        Returns its id, or those of several, when it is durable (G3).

        It can be recalled a moment later: `settle` waits for that. All of it is recorded, or
        nothing. The same words of the same agent are one memory, whoever recorded them; the first
        to do so decides its type, importance and session.

        Args:
            content: a text, a dict (see `MemoryLike`), or many of either.
            type: ``fact``, ``preference``, ``context``, ``procedural`` or ``message_batch``.
            importance: 0 to 1; None for 0.5.
            session: where it was learned.
            agent: whose it is; None for all of the user's agents.

        Raises:
            InvalidInput: no text, an empty one, or another value out of range; nothing was written.
            RecordingFailed: the journal failed; all of it is recorded, or nothing. Retry it as it
                was.
            RedactionFailed: the redaction hook failed on it; nothing was written.
            MailboxFull, SessionQuarantined: nothing ran.
        """
        contents = [content] if isinstance(content, (str, Mapping)) else _as_list(content)
        if not contents:
            raise InvalidInput("there is nothing to remember")
        defaults = {"type": type, "importance": importance, "session": session, "agent": agent}
        return await self._record_items(
            [self._item(one, defaults) for one in contents], "remember", session
        )

    async def remember_many(self, contents: Iterable[MemoryLike]) -> list[str]:
        """Record many memories as one: all or nothing; see `remember`."""
        return await self.remember(contents)

    async def record(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[str]:
        """Record what the user and the assistant said in these messages, as memories of the type
        ``context``.

        What others put into the prompt (system messages, retrieved memories among them, and tools'
        results) is passed over, or each round would remember what it had remembered before. What
        was recorded already stays as it is. For a conversation that remora keeps anyway,
        `Session.flush` does it, message by message.

        Returns:
            The ids of the memories; none where nobody said anything.

        Raises:
            InvalidMessage: one of them is no chat message; nothing was written.
            RecordingFailed, MailboxFull, SessionQuarantined: see `remember`.
        """
        (ids,) = await self.record_many([messages], session=session, agent=agent)
        return ids

    async def record_many(
        self,
        conversations: Iterable[MessageLike | Iterable[MessageLike]],
        *,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[list[str]]:
        """Record several conversations at once, all or nothing; returns the ids for each.

        See `record`.
        """
        said = [self._recorded_texts(messages) for messages in conversations]
        defaults = {"type": "context", "importance": None, "session": session, "agent": agent}
        items = [[self._item(text, defaults) for text in texts] for texts in said]
        ids = iter(
            await self._record_items([item for part in items for item in part], "record", session)
        )
        return [[next(ids) for _ in part] for part in items]

    def _recorded_texts(self, messages: MessageLike | Iterable[MessageLike]) -> list[str]:
        batch = [messages] if isinstance(messages, (Message, Mapping)) else messages
        found: object = batch
        if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
            raise InvalidMessage(
                "messages are dicts in the OpenAI chat format or remora.Message, not "
                f"{type(found).__name__}"
            )
        limit = self._services.config.buffer.max_message_bytes
        texts = []
        for number, message in enumerate(batch):
            entry, _ = encode_message(message, index=number, max_bytes=limit)
            chat = decode_chat(entry.chat)
            chat.pop("tool_calls", None)
            text = plain_text(chat)
            if entry.role in _RECORDED_ROLES and text.strip():
                texts.append(text)
        return texts

    def _item(self, content: object, defaults: Mapping[str, Any]) -> MemoryItem:
        given: Mapping[str, Any] = {"content": content}
        if isinstance(content, Mapping):
            given = content
            if unknown := sorted(set(map(str, content)) - _KEYS):
                raise InvalidInput(
                    f"a memory has no {', '.join(unknown)}; it may have {', '.join(sorted(_KEYS))}"
                )
        values = {**defaults, **{key: value for key, value in given.items() if value is not None}}
        text = values.get("content")
        if not isinstance(text, str):
            raise InvalidInput(f"what is to be remembered must be text, not {type(text).__name__}")
        text = without_surrogates(text)
        if self._services.redact is not None:
            text = without_surrogates(redact_text(text, self._services.redact))
        if not text.strip():
            raise InvalidInput("what is to be remembered is empty")
        limit = self._services.config.buffer.max_message_bytes
        if len(text.encode()) > limit:
            raise InvalidInput(
                f"what is to be remembered is {len(text.encode())} bytes; at most {limit} are "
                "allowed"
            )
        kind = values["type"]
        if kind not in MEMORY_TYPES:
            raise InvalidInput(
                f"a memory's type must be one of {', '.join(MEMORY_TYPES)}, not {kind!r}"
            )
        agent = self._agent_of(values["agent"]) or ""
        session = values["session"]
        return MemoryItem(
            id=memory_id(self._user, agent, text),
            session="" if session is None else validate_id(session, "a session id"),
            agent=agent,
            content=text,
            type=kind,
            importance=_check_importance(values["importance"]),
            created_us=self._created_us(values.get("created_at")),
            tokens=0,
        )

    def _created_us(self, value: object) -> int:
        if value is None:
            return int(self._services.clock.time() * 1_000_000)
        try:
            if isinstance(value, datetime):
                value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                datetime.fromtimestamp(value, UTC)  # what cannot be read back is not taken
                return int(value * 1_000_000)
        except (ValueError, OverflowError, OSError) as e:
            raise InvalidInput(f"created_at {value!r} is out of range") from e
        raise InvalidInput(
            f"created_at must be a datetime or seconds since the epoch, not {type(value).__name__}"
        )

    async def _record_items(
        self, items: Sequence[MemoryItem], op: str, session: str | None
    ) -> list[str]:
        services = self._services
        self._recall  # noqa: B018 -- refused where long-term memory is switched off
        if not items:
            return []
        counter = services.counter

        def counted() -> tuple[MemoryItem, ...]:
            return tuple(
                _with_tokens(item, counter.count(dated_line(item.created_us, item.content)))
                for item in items
            )

        size = sum(len(item.content) for item in items)
        sized = counted() if size <= INLINE_CHARACTERS else await anyio.to_thread.run_sync(counted)
        with recording(op, self._user, session or ""):
            reply: RememberReceipt = await services.directory.ask(
                UserKey(self._user), Remember(sized), size=size
            )
        return list(reply.ids)

    # -- recalling ---------------------------------------------------------------------------------

    async def recall(
        self,
        query: str,
        *,
        k: int = 5,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[Memory]:
        """What was said before, or recorded, that bears on `query`; best first.

        Finds what is in long-term memory: what was remembered, folded, flushed, or left idle. Each
        thing asked for narrows, and all of it must hold.

        Args:
            query: what is asked.
            k: how many at most.
            types: memory types: ``message``, ``summary``, or what `remember` takes; None for all.
            session: what was said or learned in this session.
            agent: what this agent recorded; None for all of the user's agents and what is common to
                them. On an agent's handle only its own.

        Raises:
            InvalidInput: `k` is not positive, the query is no text, there is no such type, or
                long-term memory is switched off.
            LongTermError: long-term memory failed.
            ModelError: the embedder failed.
        """
        if not isinstance(query, str):
            raise InvalidInput(f"query must be text, not {type(query).__name__}")
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InvalidInput(f"k must be a positive number, not {k!r}")
        found = await self._recall(self._user, query, k=k, scope=self._scope(types, session, agent))
        touched(self._services, self._user, found)
        return found

    async def recall_many(
        self,
        queries: Iterable[str],
        *,
        k: int = 5,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[list[Memory]]:
        """Several recalls at once, each as by `recall`; results in the order of the queries."""
        kinds = _check_types(types) or None
        one = partial(self.recall, k=k, types=kinds, session=session, agent=agent)
        return await gathered([partial(one, query) for query in _as_list(queries)])

    async def retrieve(
        self,
        query: str,
        limit: int = 5,
        *,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> str:
        """What bears on `query`, as a text for a system message; empty where there is nothing.

        See `recall`.
        """
        return _as_text(
            await self.recall(query, k=limit, types=types, session=session, agent=agent)
        )

    async def retrieve_many(
        self,
        queries: Iterable[str],
        limit: int = 5,
        *,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[str]:
        """Several retrievals at once, each as by `retrieve`."""
        found = await self.recall_many(queries, k=limit, types=types, session=session, agent=agent)
        return [_as_text(one) for one in found]

    async def memories(
        self,
        types: str | Iterable[str] | None = None,
        *,
        order: Literal["created", "importance"] = "created",
        limit: int | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[Memory]:
        """What long-term memory holds, oldest first, or the most important first.

        Does not count as retrieval.

        Args:
            types: see `recall`; messages are among them unless they are left out.
            order: ``created``, or ``importance``, the older first among equals.
            limit: how many at most.
            session: see `recall`.
            agent: see `recall`.

        Raises:
            InvalidInput: a value out of range, or long-term memory is switched off.
            LongTermError: long-term memory failed.
        """
        if order not in {"created", "importance"}:
            raise InvalidInput(f"order must be 'created' or 'importance', not {order!r}")
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit must not be negative, not {limit}")
        found = await self._recall.rows(self._user, self._scope(types, session, agent))
        if order == "importance":
            found.sort(key=lambda memory: -memory.importance)
        return found[:limit]

    # -- for agents --------------------------------------------------------------------------------

    def tools(self, *, agent: str | None = None, session: str | None = None) -> MemoryTools:
        """Two tools by which a model saves and recalls for itself.

        Args:
            agent: whose memories they save and find; None for what is common to the user's agents,
                and for all.
            session: where what they save was learned. What they find is from all of the user's
                sessions.

        Raises:
            InvalidId: one of the ids cannot be one.
        """
        agent = self._agent_of(agent)
        if session is not None:
            validate_id(session, "a session id")
        return MemoryTools(LongTermHandle(self._services, self._user, agent), session=session)

    async def settle(self) -> None:
        """Wait until what was remembered can be recalled, and pruning is done: for tests, scripts
        and shutdown.

        Raises:
            ReentrantAsk: called from within that work.
        """
        await self._services.supervisor.settle(UserKey(self._user))

    # -- scope -------------------------------------------------------------------------------------

    @property
    def _recall(self) -> Recall:
        recall = self._services.recall
        if recall is None:
            raise InvalidInput("long-term memory is switched off: long_term.enabled is false")
        return recall

    def _agent_of(self, agent: str | None) -> str | None:
        if agent is None:
            return self._agent
        validate_id(agent, "an agent's id")
        if self._agent is not None and agent != self._agent:
            raise InvalidInput(
                f"this is the handle of agent {self._agent!r}; ask the user for one of agent "
                f"{agent!r}"
            )
        return agent

    def _scope(
        self, types: str | Iterable[str] | None, session: str | None, agent: str | None
    ) -> Scope:
        if session is not None:
            validate_id(session, "a session id")
        return Scope(session=session, agent=self._agent_of(agent), types=_check_types(types))


class Agent(LongTermHandle):
    """One agent of a user: what it records is its own, and it finds nothing else.

    Get one from `User.agent`.

    What is common to a user's agents, or was said in the user's sessions, is the user's:
    `User.recall` finds it. What several agents are to share goes into a `SharedScope`.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Agent({self._user!r}, {self._agent!r})"

    @property
    def user(self) -> str:
        """Whose agent it is."""
        return self._user

    @property
    def name(self) -> str:
        """The agent's id."""
        return self._agent or ""


def _as_list(values: Iterable[Any]) -> list[Any]:
    found: object = values
    if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
        raise InvalidInput(f"expected several, not one {type(found).__name__}")
    return list(found)


def _check_types(types: str | Iterable[str] | None) -> tuple[str, ...]:
    if types is not None and not isinstance(types, Iterable):
        raise InvalidInput(f"types must be texts, not {types!r:.40}")
    kinds = () if types is None else (types,) if isinstance(types, str) else tuple(types)
    if types is not None and not kinds:
        raise InvalidInput("no memory type is given; leave types out for all of them")
    for kind in kinds:
        if kind not in ROW_TYPES:
            raise InvalidInput(f"a memory's type is one of {', '.join(ROW_TYPES)}, not {kind!r}")
    return tuple(sorted(set(kinds)))


def _check_importance(value: object) -> float:
    if value is None:
        return DEFAULT_IMPORTANCE
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not 0 <= value <= 1
    ):
        raise InvalidInput(f"importance must be a number from 0 to 1, not {value!r}")
    return float(value)


def _with_tokens(item: MemoryItem, tokens: int) -> MemoryItem:
    return MemoryItem(
        item.id,
        item.session,
        item.agent,
        item.content,
        item.type,
        item.importance,
        item.created_us,
        tokens,
    )


def _as_text(memories: Sequence[Memory]) -> str:
    if not memories:
        return ""
    return "\n".join(
        ["What is remembered that may bear on this:", *(f"- {memory.line}" for memory in memories)]
    )


async def gathered(calls: Sequence[Callable[[], Awaitable[Result]]]) -> list[Result]:
    """Make all calls at once; the first failure is raised when all have ended."""
    results: list[Any] = [None] * len(calls)
    errors: list[Exception] = []

    async def one(place: int) -> None:
        try:
            results[place] = await calls[place]()
        except Exception as e:
            errors.append(e)

    async with anyio.create_task_group() as tasks:
        for place in range(len(calls)):
            tasks.start_soon(one, place)
    if errors:
        raise errors[0]
    return results
