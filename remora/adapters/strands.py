"""Sessions and memory for agents of Strands Agents.

Needs the extra: ``pip install "remora[strands]"``.

A session of Strands is a session of the user, with its record and the states of its graphs and
swarms in keyed state. Each agent in it is another one, ``session/agent``, with its messages as chat
messages and its record in keyed state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from remora.adapters.versions import warn_if_untested
from remora.api.keyed_state import KeyedState, adapter_state
from remora.api.session import Session
from remora.api.threads import awaiter_of, original_of, waiter_of
from remora.api.user import User
from remora.blocking import User as BlockingUser
from remora.errors import InvalidInput, InvalidMessage, KeyConflict, NotFound, StateConflict
from remora.ids import validate_id
from remora.messages import ChatDict, Message, plain_text, quote
from remora.recall.memory import Memory
from remora.services.arguments import (
    MAX_RESULTS,
    MAX_TEXT_CHARACTERS,
    check_flag,
    check_int,
    check_result_count,
    check_text,
)
from remora.storage.keyed_values import escape

try:
    from strands.memory.types import AddMessagesContext, MemoryEntry, MemoryStore, SearchOptions
    from strands.session.session_repository import SessionRepository
    from strands.types.content import Message as StrandsMessage
    from strands.types.exceptions import SessionException
    from strands.types.session import Session as StrandsSession
    from strands.types.session import (
        SessionAgent,
        SessionMessage,
        SessionType,
        decode_bytes_values,
        encode_bytes_values,
    )
except ImportError as e:
    raise ImportError('sessions of Strands Agents need it: pip install "remora[strands]"') from e

__all__ = ["RemoraMemoryStore", "RemoraSessionRepository"]

warn_if_untested("strands-agents")

_NAME = "strands"
_SESSION, _AGENT, _GROUPS = "session", "agent", "multi_agents/"
_RESULTS = 10
_TAIL = 32  # messages in which a free index is looked for first


class RemoraSessionRepository(SessionRepository):
    """Strands' `SessionRepository`, for its ``RepositorySessionManager``.

    A message is durable when the call returns. One that is stored again, with the same index and
    content, is stored once. If another run has taken its index, it gets the next free one, and so
    does the given `SessionMessage`, from which the manager counts on: of several runs of an agent
    at once nothing is lost, and each one's messages stay in order.

    Strands calls it from the event loop of an agent, which waits. It works on every thread but that
    of the runtime's event loop, where it raises `WrongLoop`; ``agent(…)`` has a thread of its own.

    Args:
        user: whose sessions they are, of `remora.Runtime` or of `remora.blocking.Runtime`.
    """

    def __init__(self, user: User | BlockingUser) -> None:
        if not isinstance(user, (User, BlockingUser)):
            raise InvalidInput(f"user must be a user, not a {type(user).__name__}")
        self._user: User = original_of(user)
        self._call = waiter_of(user)

    # -- sessions ----------------------------------------------------------------------------------

    def create_session(self, session: StrandsSession, **_options: Any) -> StrandsSession:
        """Create a session.

        Raises:
            SessionException: of Strands; there is one with this id.
            InvalidId: the id is not valid; nothing was written.
        """
        record = {**session.to_dict(), "session_type": SessionType(session.session_type).value}
        state = _state(self._session(session.session_id))
        try:
            self._call(state.set, _SESSION, record, version=0)
        except StateConflict as e:
            raise SessionException(f"Session {session.session_id} already exists") from e
        return session

    def read_session(self, session_id: str, **_options: Any) -> StrandsSession | None:
        """The record of a session; None if there is none."""
        found = self._call(_state(self._session(session_id)).get, _SESSION)
        return None if found is None else _session_of(found.value)

    def delete_session(self, session_id: str, **_options: Any) -> None:
        """Erase a session with its agents, their messages and all states, as by `Session.forget`.

        Raises:
            SessionException: of Strands; there is no such session.
        """
        self._call(self._delete, session_id)

    async def _delete(self, session_id: str) -> None:
        session = await self._existing(session_id)
        for one in await self._user.sessions(prefix=f"{escape(session_id)}/", empty=True):
            await self._user.session(one.session).forget()
        await session.forget()  # last: after a crash, a retry finds the rest

    # -- agents ------------------------------------------------------------------------------------

    def create_agent(self, session_id: str, session_agent: SessionAgent, **_options: Any) -> None:
        """Create an agent in a session; the same one again changes nothing.

        Raises:
            SessionException: of Strands; there is no such session, or it has an agent of this id.
            InvalidId: an id is not valid; nothing was written.
            InvalidInput: a state that is not JSON, or too large; nothing was written.
        """
        self._call(self._create_agent, session_id, session_agent)

    async def _create_agent(self, session_id: str, agent: SessionAgent) -> None:
        await self._existing(session_id)
        record = agent.to_dict()
        state = _state(self._agent(session_id, agent.agent_id))
        try:
            await state.set(_AGENT, record, version=0)
        except StateConflict as e:
            if e.value != record:
                raise SessionException(
                    f"Agent {agent.agent_id} already exists in session {session_id}"
                ) from e

    def read_agent(self, session_id: str, agent_id: str, **_options: Any) -> SessionAgent | None:
        """The record of an agent; None if there is none."""
        found = self._call(_state(self._agent(session_id, agent_id)).get, _AGENT)
        return None if found is None else SessionAgent.from_dict(found.value)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **_options: Any) -> None:
        """Replace the record of an agent; its time of creation stays.

        Raises:
            SessionException: of Strands; there is no such agent.
            InvalidInput: see `create_agent`.
        """
        self._call(self._update_agent, session_id, session_agent)

    async def _update_agent(self, session_id: str, agent: SessionAgent) -> None:
        session, before = await self._existing_agent(session_id, agent.agent_id)
        agent.created_at = before["created_at"]
        await _state(session).set(_AGENT, agent.to_dict())

    # -- messages ----------------------------------------------------------------------------------

    def create_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **_options: Any
    ) -> None:
        """Store a message of an agent, durable on return; see the class for its index.

        Raises:
            SessionException: of Strands; there is no such agent.
            InvalidMessage: it is no message of Strands, or not JSON; nothing was written.
            InvalidInput: its index is no number from 0; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`. A retry with the
                same message stores it once.
        """
        self._call(self._create_message, session_id, agent_id, session_message)

    async def _create_message(self, session_id: str, agent_id: str, given: SessionMessage) -> None:
        digest = digest_of(given)
        number = check_int(given.message_id, "message_id")
        session, _ = await self._existing_agent(session_id, agent_id)
        id_ = f"{_NAME}-{number}-{digest}"
        while True:
            try:
                receipt = await session.append(
                    chat_messages(given, number, 0, id_), key=f"{_NAME}/{number}"
                )
            except KeyConflict:
                number = await _next_number(session, number)
                continue
            if not receipt.duplicate:
                break
            if receipt.ids[0].endswith(f"-{digest}"):  # by an earlier try
                same = [one for one in await _stored(session) if one.ids[0] == receipt.ids[0]]
                number = same[0].number if same else number
                break
            number = await _next_number(session, number)
        given.message_id = number

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **_options: Any
    ) -> SessionMessage | None:
        """The newest version of a message; None if there is none."""
        number = check_int(message_id, "message_id")
        found = self._call(_find, self._agent(session_id, agent_id), number)
        return None if found is None else found.to_session_message()

    def update_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **_options: Any
    ) -> None:
        """Replace a message by a newer version; its time of creation stays.

        The new version is appended, and then the old one is deleted from the session, so that
        neither `load` nor recall shows it. What has been compacted stays in the summary and in
        recall; `remora.Session.forget` erases it.

        Raises:
            SessionException: of Strands; there is no such message.
            InvalidMessage, MailboxFull, OutcomeUnknown, CommitFailed: see `create_message`.
        """
        self._call(self._update_message, session_id, agent_id, session_message)

    async def _update_message(self, session_id: str, agent_id: str, given: SessionMessage) -> None:
        digest = digest_of(given)
        number = check_int(given.message_id, "message_id")
        session = self._agent(session_id, agent_id)
        stored = await _stored(session)
        before = _newest(stored, number)
        if before is None:
            raise SessionException(
                f"Message {number} does not exist in agent {agent_id} in session {session_id}"
            )
        given.created_at = before.record.get("created_at", given.created_at)
        if before.ids[0].endswith(f"-{digest}"):  # by an earlier try
            version = before.version
        else:
            version = await _append_version(session, given, number, before.version + 1, digest)
        replaced = [one.ids for one in stored if one.number == number and one.version < version]
        if replaced:
            with suppress(NotFound):  # an earlier try has deleted them
                await session.delete([id_ for ids in replaced for id_ in ids])

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **_options: Any,
    ) -> list[SessionMessage]:
        """An agent's messages by index, each in its newest version.

        Args:
            session_id: the session.
            agent_id: the agent.
            limit: how many at most; None for all.
            offset: how many of the first ones to leave out.

        Raises:
            SessionException: of Strands; there is no such agent.
            InvalidInput: a number below 0.
        """
        start = check_int(offset, "offset")
        end = None if limit is None else start + check_int(limit, "limit")
        found = self._call(self._list_messages, session_id, agent_id)
        return [one.to_session_message() for one in found[start:end]]

    async def _list_messages(self, session_id: str, agent_id: str) -> list[Stored]:
        session, _ = await self._existing_agent(session_id, agent_id)
        return newest_versions(await _stored(session))

    # -- graphs and swarms -------------------------------------------------------------------------

    def create_multi_agent(self, session_id: str, multi_agent: Any, **_options: Any) -> None:
        """Store the state of a graph or swarm.

        Raises:
            SessionException: of Strands; there is no such session.
            InvalidId, InvalidInput: see `create_agent`.
        """
        self._call(
            self._set_group,
            session_id,
            _group_key(multi_agent.id),
            encode_bytes_values(multi_agent.serialize_state()),
        )

    async def _set_group(
        self, session_id: str, key: str, value: Any, *, known: bool = False
    ) -> None:
        state = _state(await self._existing(session_id))
        if known and await state.get(key) is None:
            name = key.removeprefix(_GROUPS)
            raise SessionException(f"MultiAgent {name} does not exist in session {session_id}")
        await state.set(key, value)

    def read_multi_agent(
        self, session_id: str, multi_agent_id: str, **_options: Any
    ) -> dict[str, Any] | None:
        """The state of a graph or swarm; None if there is none."""
        state = _state(self._session(session_id))
        found = self._call(state.get, _group_key(multi_agent_id))
        return None if found is None else decode_bytes_values(found.value)

    def update_multi_agent(self, session_id: str, multi_agent: Any, **_options: Any) -> None:
        """Replace the state of a graph or swarm.

        Raises:
            SessionException: of Strands; there is none, or no such session.
            InvalidInput: see `create_agent`.
        """
        key, value = _group_key(multi_agent.id), encode_bytes_values(multi_agent.serialize_state())
        self._call(self._set_group, session_id, key, value, known=True)

    # -- what is where -----------------------------------------------------------------------------

    def _session(self, session_id: str) -> Session:
        return self._user.session(escape(validate_id(session_id, "a session id")))

    def _agent(self, session_id: str, agent_id: str) -> Session:
        session = escape(validate_id(session_id, "a session id"))
        return self._user.session(f"{session}/{escape(validate_id(agent_id, 'an agent id'))}")

    async def _existing(self, session_id: str) -> Session:
        session = self._session(session_id)
        if await _state(session).get(_SESSION) is None:
            raise SessionException(f"Session {session_id} does not exist")
        return session

    async def _existing_agent(
        self, session_id: str, agent_id: str
    ) -> tuple[Session, dict[str, Any]]:
        session = self._agent(session_id, agent_id)
        found = await _state(session).get(_AGENT)
        if found is None:
            await self._existing(session_id)
            raise SessionException(f"Agent {agent_id} does not exist in session {session_id}")
        return session, found.value


class RemoraMemoryStore(MemoryStore):
    """A user's memory as Strands' `MemoryStore`, for its ``MemoryManager``.

    It finds what was said in all the user's sessions, and what was added. What is said in sessions
    of a `RemoraSessionRepository` is found at once; ``extraction=True`` is for other sessions, and
    records what was said without a call of a model.

    What is found is untrusted text: each memory comes as a JSON string in quotation marks.

    Args:
        user: of `remora.Runtime` or of `remora.blocking.Runtime`, on any event loop.
        session: the session of the agent, ``chat-42/default``: its recent messages are left out,
            since the agent has them. None to search everything.
        name: of the store, for tools.
        description: of the store, for tools.
        max_search_results: of a search that names no number; None for 10. Strands' manager names
            3, if this is None.
        writable: whether memories can be added.
        extraction: of Strands; None for none.
    """

    def __init__(
        self,
        user: User | BlockingUser,
        *,
        session: str | None = None,
        name: str = "remora",
        description: str | None = None,
        max_search_results: int | None = None,
        writable: bool = True,
        extraction: Any = None,
    ) -> None:
        if not isinstance(user, (User, BlockingUser)):
            raise InvalidInput(f"user must be a user, not a {type(user).__name__}")
        self._user: User = original_of(user)
        self._session = None if session is None else self._user.session(session)
        self._await = awaiter_of(user)
        self.name = validate_id(name, "the name of a store")
        self.description = description
        self.max_search_results = (
            None if max_search_results is None else _check_count(max_search_results)
        )
        self.writable = check_flag(writable, "writable")
        self.extraction = extraction

    async def search(self, query: str, options: SearchOptions | None = None) -> list[MemoryEntry]:
        """Return what the user's sessions and memories have on the query, best first.

        Raises:
            InvalidInput: a number of results that is out of range.
            LongTermError, ModelError: see `remora.User.recall`.
        """
        most = (options or {}).get("max_search_results")
        limit = _check_count(most if most is not None else self.max_search_results or _RESULTS)
        query = check_text(query, "query")[:MAX_TEXT_CHARACTERS]
        if not query.strip():
            return []
        found: list[Memory] = await self._await(self._search, query, limit)
        return [MemoryEntry(content=quote(one.text), metadata=_metadata(one)) for one in found]

    async def _search(self, query: str, limit: int) -> list[Memory]:
        if self._session is None:
            return await self._user.recall(query, limit=limit)
        recent = {message.seq for message in await self._session.get_messages()}
        found = await self._user.recall(query, limit=min(limit + len(recent), MAX_RESULTS))
        here = self._session.key.session
        return [one for one in found if one.session != here or one.seq not in recent][:limit]

    async def add(self, content: str, metadata: dict[str, Any] | None = None) -> str:
        """Remember a text; the same text once. Returns its id, once it is durable.

        Raises:
            InvalidInput: no text, or metadata that is not JSON or too large; nothing was written.
            RecordingFailed, MailboxFull: see `remora.User.remember`.
        """
        (id_,) = await self._await(self._user.remember, content, metadata=metadata)
        return str(id_)

    async def add_messages(
        self,
        messages: list[StrandsMessage],
        context: AddMessagesContext | None = None,  # noqa: ARG002 - the same text is kept once
    ) -> list[str]:
        """Remember what was said in messages, the same text once; see `remora.User.record`.

        Raises:
            InvalidMessage: one of them is no message of Strands; nothing was written.
        """
        said: list[ChatDict] = []
        for place, message in enumerate(messages):
            chats = chat_messages(SessionMessage(message, place), place, 0, str(place))
            said += [
                {"role": one["role"], "content": one["content"]}
                for one in chats
                if one["role"] != "tool" and one.get("content")
            ]
        if not said:
            return []
        return list(await self._await(self._user.record, said))


def _state(session: Session) -> KeyedState:
    return adapter_state(session, _NAME)


def _session_of(record: dict[str, Any]) -> StrandsSession:
    kind = SessionType(record["session_type"])
    return StrandsSession.from_dict({**record, "session_type": kind})


def _group_key(id_: object) -> str:
    return _GROUPS + escape(validate_id(id_, "the id of a graph or swarm"))


async def _stored(session: Session) -> list[Stored]:
    return stored_versions(await session.history())


def _newest(stored: list[Stored], number: int) -> Stored | None:
    return next((one for one in newest_versions(stored) if one.number == number), None)


async def _find(session: Session, number: int) -> Stored | None:
    return _newest(await _stored(session), number)


async def _next_number(session: Session, taken: int) -> int:
    """An index behind `taken` that may be free: behind those of the newest messages."""
    newest = stored_versions(await session.get_messages(limit=_TAIL))
    return max([taken, *(one.number for one in newest)]) + 1


async def _append_version(
    session: Session, given: SessionMessage, number: int, version: int, digest: str
) -> int:
    while True:
        id_ = f"{_NAME}-{number}-{version}-{digest}"
        chats = chat_messages(given, number, version, id_)
        try:
            receipt = await session.append(chats, key=f"{_NAME}/{number}/{version}")
        except KeyConflict:
            pass
        else:
            if receipt.ids[0] == id_:
                return version
        version += 1  # another update came first


def _check_count(value: object) -> int:
    return check_result_count(value, "max_search_results")


def _metadata(memory: Memory) -> dict[str, Any]:
    """Return what the model is shown with a memory."""
    known = {
        "said_by": memory.role if memory.type == "message" else "",
        "session": memory.session,
        "created_at": memory.created_at.isoformat(),
    }
    return {**memory.metadata, **{name: value for name, value in known.items() if value}}


# -- messages of Strands Agents as chat messages, and back -----------------------------------------
#
# A message becomes one chat message, or several if it has results of tools: one for each. The first
# one has the record of Strands in its metadata, without its text if the chat message has that.

try:
    from strands.types.session import SessionMessage
except ImportError as e:
    raise ImportError('sessions of Strands Agents need it: pip install "remora[strands]"') from e

__all__ = ["Stored", "chat_messages", "digest_of", "newest_versions", "stored_versions"]

_KEY = "strands"
_SILENT = ("reasoningContent", "cachePoint")


class Stored(NamedTuple):
    """A version of a message, as a session has it.

    Attributes:
        number: the message's index in the conversation of its agent.
        version: 0, and one more with each update.
        seq: where it is in the session.
        ids: of its chat messages.
        record: of Strands, as `SessionMessage.from_dict` takes it.
    """

    number: int
    version: int
    seq: int
    ids: list[str]
    record: dict[str, Any]

    def to_session_message(self) -> SessionMessage:
        """The message as Strands has it."""
        return SessionMessage.from_dict({**self.record, "message_id": self.number})


def chat_messages(given: object, number: int, version: int, id_: str) -> list[ChatDict]:
    """Equivalent chat messages, as `Session.append` takes them.

    Args:
        given: a `SessionMessage`. What a redacted one said is in its record alone.
        number: the message's index, whatever the record says.
        version: see `Stored`.
        id_: of the first chat message.

    Raises:
        InvalidMessage: it is no message of Strands, or has what cannot be written as JSON.
    """
    record = _record(given)
    shown = record["redact_message"] or record["message"]
    chats = _chats(shown, id_)
    kept = {"number": number, "version": version, "record": record}
    if shown["content"] == [{"text": chats[0]["content"]}]:
        field = "redact_message" if record["redact_message"] else "message"
        rest = {name: value for name, value in shown.items() if name != "content"}
        kept = {**kept, "record": {**record, field: rest}, "text_of": field}
    first = {**chats[0], "id": id_, "metadata": {_KEY: kept}}
    return [
        first,
        *(
            {**chat, "id": f"{id_}.{place}", "metadata": {_KEY: {"part_of": id_}}}
            for place, chat in enumerate(chats[1:], start=1)
        ),
    ]


def digest_of(given: object) -> str:
    """Return a digest that tells a message from others with the same index."""
    record = _record(given)
    said = [record["message"], record["redact_message"]]
    return blake2b(msgspec.json.encode(said, order="sorted"), digest_size=12).hexdigest()


def stored_versions(messages: Iterable[Message]) -> list[Stored]:
    """The messages that chat messages were made from, each in all its versions, as they came.

    For a text of the user or the assistant that something else has stored, an equivalent one with
    the next index.
    """
    found: dict[str, Stored] = {}
    number = -1
    for message in messages:
        id_, seq = message.id or "", message.seq or 0
        kept = (message.metadata or {}).get(_KEY)
        if kept is None:
            if message.role in ("user", "assistant") and (text := plain_text(message.to_chat())):
                number += 1
                found[id_] = Stored(number, 0, seq, [id_], _equivalent(message, text))
        elif "part_of" in kept:
            if kept["part_of"] in found:
                found[kept["part_of"]].ids.append(id_)
        else:
            record = kept["record"]
            if field := kept.get("text_of"):
                content = [{"text": plain_text(message.to_chat())}]
                record = {**record, field: {**record[field], "content": content}}
            found[id_] = Stored(kept["number"], kept["version"], seq, [id_], record)
            number = max(number, kept["number"])
    return list(found.values())


def newest_versions(stored: Iterable[Stored]) -> list[Stored]:
    """Return those that no later version replaces, by index."""
    every = list(stored)
    newest: dict[int, int] = {}
    for one in every:
        newest[one.number] = max(newest.get(one.number, 0), one.version)
    shown = [one for one in every if one.version == newest[one.number]]
    return sorted(shown, key=lambda one: (one.number, one.seq))


def _record(given: object) -> dict[str, Any]:
    if not isinstance(given, SessionMessage):
        raise InvalidMessage(f"a {type(given).__name__} is no SessionMessage of Strands", index=0)
    try:
        record: dict[str, Any] = given.to_dict()
        msgspec.json.encode(record)
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidMessage(f"the message cannot be written as JSON: {e}", index=0) from e
    for message in (record["message"], record["redact_message"] or record["message"]):
        blocks = message.get("content") if isinstance(message, dict) else None
        if (
            not isinstance(blocks, list)
            or not all(isinstance(block, dict) for block in blocks)
            or message.get("role") not in ("user", "assistant")
        ):
            raise InvalidMessage(
                "a message of Strands has a role, user or assistant, and a list of content blocks",
                index=0,
            )
    return record


def _chats(message: Mapping[str, Any], id_: str) -> list[ChatDict]:
    blocks = message["content"]
    called = [block["toolUse"] for block in blocks if "toolUse" in block]
    results = [block["toolResult"] for block in blocks if "toolResult" in block]
    said = "\n".join(
        filter(None, (_text(one) for one in blocks if not {"toolUse", "toolResult"} & one.keys()))
    )
    if called and message["role"] == "assistant":
        calls = [
            {
                "id": str(one.get("toolUseId") or f"{id_}.{place}"),
                "type": "function",
                "function": {
                    "name": str(one.get("name") or ""),
                    "arguments": msgspec.json.encode(one.get("input") or {}).decode(),
                },
            }
            for place, one in enumerate(called)
        ]
        return [{"role": "assistant", "content": said or None, "tool_calls": calls}]
    chats: list[ChatDict] = [
        {
            "role": "tool",
            "tool_call_id": str(one.get("toolUseId") or f"{id_}.{place}"),
            "content": "\n".join(map(_text, one.get("content") or ())),
        }
        for place, one in enumerate(results)
    ]
    if said or not chats:
        chats.append({"role": message["role"], "content": said or "[message]"})
    return chats


def _text(block: Any) -> str:
    """Return what a block says; for a file, its kind."""
    if not isinstance(block, dict):
        return str(block)
    if isinstance(block.get("text"), str):
        return str(block["text"])
    if "json" in block:
        return msgspec.json.encode(block["json"]).decode()
    kind = next(iter(block), "message")
    value = block.get(kind)
    if kind in _SILENT:
        return ""
    if isinstance(value, dict):  # text to guard, or text with citations
        inner = [value.get("text"), *(value.get("content") or ())]
        texts = [one["text"] for one in inner if isinstance(one, dict) and "text" in one]
        if texts and all(isinstance(one, str) for one in texts):
            return "\n".join(texts)
    return f"[{kind}]"


def _equivalent(message: Message, text: str) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if message.created_at is not None:
        at = message.created_at.isoformat()
        known = {"created_at": at, "updated_at": at}
    said = {"role": message.role, "content": [{"text": text}], "tracking_id": message.id or ""}
    return {"message": said, "redact_message": None, **known}
