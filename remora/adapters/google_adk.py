"""Sessions and memory for agents of Google's Agent Development Kit.

Needs the extra: ``pip install "remora[google-adk]"``.

A user of an app is the remora user ``app/user``, and a session is a session. Each event is a chat
message, so that `Session.load`, summaries and recall work on them. State is keyed state: of the
session, of the user (``user:``), and of the app (``app:``), which is kept with the remora user
``app``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from remora.adapters.versions import warn_if_untested
from remora.api.keyed_state import KeyedState, adapter_state
from remora.api.runtime import Runtime
from remora.api.session import Session
from remora.api.threads import awaiter_of, original_of
from remora.api.user import User
from remora.blocking import Runtime as BlockingRuntime
from remora.errors import InvalidInput, InvalidMessage, NotFound, StateConflict
from remora.messages import ChatDict, Message, plain_text, quote
from remora.services.arguments import MAX_TEXT_CHARACTERS, check_int
from remora.storage.keyed_values import escape, unescape

try:
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events import Event
    from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions import Session as AdkSession
    from google.adk.sessions.base_session_service import (
        BaseSessionService,
        GetSessionConfig,
        ListSessionsResponse,
    )
    from google.genai import types
    from pydantic_core import PydanticSerializationError, to_jsonable_python
except ImportError as e:
    raise ImportError('sessions of Google\'s ADK need it: pip install "remora[google-adk]"') from e

__all__ = ["RemoraMemoryService", "RemoraSessionService", "chat_messages"]

warn_if_untested("google-adk")

_NAME = "google_adk"
_CREATED = "created"
_VALUES = "state/"
_APP, _USER, _TEMPORARY = "app:", "user:", "temp:"


class _Service:
    """The common part of both services: an open runtime."""

    def __init__(self, runtime: Runtime | BlockingRuntime) -> None:
        if not callable(getattr(runtime, "user", None)):
            raise InvalidInput(f"runtime must be a runtime, not a {type(runtime).__name__}")
        self._runtime: Runtime = original_of(runtime)
        self._await = awaiter_of(runtime)

    def _user(self, app: str, user: str) -> User:
        return self._runtime.user(f"{escape(app)}/{escape(user)}")


class RemoraSessionService(_Service, BaseSessionService):
    """ADK's session service: ``Runner(…, session_service=RemoraSessionService(runtime))``.

    Events that several callers append to a session at once are all kept, in the order in which
    they came, and an event that is appended again is stored once. A session that is deleted is
    erased, as by `Session.forget`.

    Args:
        runtime: of `remora.Runtime`; one of `remora.blocking` works on any event loop, as ADK's
            sync ``Runner.run`` wants it.
    """

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> AdkSession:
        """Create a session, with its state.

        Raises:
            AlreadyExistsError: of ADK; a session of the user has this id.
            InvalidInput: a value of the state that is not JSON; nothing was written.
        """
        id_ = (session_id or "").strip() or uuid.uuid4().hex
        return cast(
            "AdkSession", await self._await(self._create, app_name, user_id, id_, state or {})
        )

    async def _create(self, app: str, user: str, id_: str, state: Mapping[str, Any]) -> AdkSession:
        ours, users, apps = _split(state)
        session = self._user(app, user).session(id_)
        created = datetime.now(UTC).timestamp()
        try:
            await _state(session).change({_CREATED: created, **ours}, versions={_CREATED: 0})
        except StateConflict as e:
            raise AlreadyExistsError(f"Session with id {id_} already exists.") from e
        await self._change_shared(app, user, users, apps)
        return AdkSession(
            id=id_,
            app_name=app,
            user_id=user,
            state=await self._merged(session, app, user),
            last_update_time=created,
        )

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> AdkSession | None:
        """The session with its events and state; None if there is none."""
        found = await self._await(self._get, app_name, user_id, session_id.strip(), config)
        return cast("AdkSession | None", found)

    async def _get(
        self, app: str, user: str, id_: str, config: GetSessionConfig | None
    ) -> AdkSession | None:
        session = self._user(app, user).session(id_) if id_ else None
        created = None if session is None else await _state(session).get(_CREATED)
        if session is None or created is None:
            return None
        events = events_of(await session.history())
        updated = events[-1].timestamp if events else created.value
        if config is not None and config.num_recent_events is not None:
            events = events[max(len(events) - config.num_recent_events, 0) :]
        if config is not None and config.after_timestamp is not None:
            since = config.after_timestamp
            old = [place for place, one in enumerate(events) if one.timestamp < since]
            events = events[old[-1] + 1 :] if old else events
        return AdkSession(
            id=id_,
            app_name=app,
            user_id=user,
            events=events,
            state=await self._merged(session, app, user),
            last_update_time=updated,
        )

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """The sessions of a user, or of all users of the app, without events; oldest use first."""
        found = await self._await(self._list, app_name, user_id)
        return ListSessionsResponse(sessions=found)

    async def _list(self, app: str, user: str | None) -> list[AdkSession]:
        users = [user] if user is not None else await self._users(app)
        found: list[AdkSession] = []
        for name in users:
            handle = self._user(app, name)
            for listing in await handle.sessions(empty=True):
                session = handle.session(listing.session)
                created = await _state(session).get(_CREATED)
                if created is None:
                    continue
                last = await session.get_messages(limit=1)
                updated = events_of(last)[-1].timestamp if last else created.value
                found.append(
                    AdkSession(
                        id=listing.session,
                        app_name=app,
                        user_id=name,
                        state=await self._merged(session, app, name),
                        last_update_time=updated,
                    )
                )
        return sorted(found, key=lambda one: (one.last_update_time, one.user_id, one.id))

    async def _users(self, app: str) -> list[str]:
        prefix = f"{escape(app)}/"
        found = await self._runtime.users(prefix=prefix, limit=None)
        return [unescape(one.user.removeprefix(prefix)) for one in found]

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Erase a session with its events and its state; see `remora.Session.forget`."""
        await self._await(self._delete, app_name, user_id, session_id.strip())

    async def _delete(self, app: str, user: str, id_: str) -> None:
        session = self._user(app, user).session(id_)
        if await _state(session).get(_CREATED) is not None:
            await session.forget()

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return what the sessions of the user share, without the prefix ``user:``."""
        return cast(
            "dict[str, Any]", await self._await(_values, _state(self._user(app_name, user_id)))
        )

    async def append_event(self, session: AdkSession, event: Event) -> Event:
        """Store an event and its changes of state, and add them to the given session.

        A partial event is not stored. An event with the id of a stored one is that one: it is not
        stored again, but its changes of state are made. An event that rewinds the session deletes
        the events that it rewinds: they are neither recalled nor given again.

        Raises:
            SessionNotFoundError: of ADK; there is no such session, or no longer.
            InvalidInput: a change of state that is not JSON; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        await self._await(self._append, session.app_name, session.user_id, session.id, event)
        if not any(one.id == event.id and one == event for one in session.events):
            self._commit_event_to_session(session, event)
            session.last_update_time = event.timestamp
        return event

    async def _append(self, app: str, user: str, id_: str, event: Event) -> None:
        session = self._user(app, user).session(id_)
        state = _state(session)
        if await state.get(_CREATED) is None:
            raise SessionNotFoundError(f"Session {id_} not found.")
        ours, users, apps = _split(event.actions.state_delta if event.actions else {})
        await session.append(chat_messages(event))
        if event.actions and (before := event.actions.rewind_before_invocation_id):
            await _delete_rewound(session, before, event.id)
        if ours:
            await state.change(ours)
        await self._change_shared(app, user, users, apps)

    async def _change_shared(
        self, app: str, user: str, users: dict[str, Any], apps: dict[str, Any]
    ) -> None:
        if users:
            await _state(self._user(app, user)).change(users)
        if apps:
            await _state(self._runtime.user(escape(app))).change(apps)

    async def _merged(self, session: Session, app: str, user: str) -> dict[str, Any]:
        apps = await _values(_state(self._runtime.user(escape(app))))
        users = await _values(_state(self._user(app, user)))
        return {
            **await _values(_state(session)),
            **{f"{_APP}{key}": value for key, value in apps.items()},
            **{f"{_USER}{key}": value for key, value in users.items()},
        }


class RemoraMemoryService(_Service, BaseMemoryService):
    """ADK's memory service: ``Runner(…, memory_service=RemoraMemoryService(runtime))``.

    What is said in sessions of `RemoraSessionService` with the same runtime is found at once;
    adding such a session stores nothing. Sessions of other services are stored as memories, the
    same text once.

    What is found is untrusted text: each memory comes as a JSON string in quotation marks.

    Args:
        runtime: see `RemoraSessionService`.
        limit: how many memories a search gives at most.
    """

    def __init__(self, runtime: Runtime | BlockingRuntime, *, limit: int = 10) -> None:
        super().__init__(runtime)
        self._limit = check_int(limit, "limit", low=1)

    async def search_memory(
        self, *, app_name: str, user_id: str, query: str
    ) -> SearchMemoryResponse:
        """Return what the user's sessions and memories have on the query, best first."""
        query = query[:MAX_TEXT_CHARACTERS]
        if not query.strip():
            return SearchMemoryResponse(memories=[])
        user = self._user(app_name, user_id)
        found = await self._await(user.recall, query, limit=self._limit)
        return SearchMemoryResponse(
            memories=[
                MemoryEntry(
                    id=one.id or None,
                    author=one.speaker or (one.role if one.type == "message" else None),
                    timestamp=one.created_at.isoformat(),
                    custom_metadata=one.metadata,
                    content=types.Content(role="user", parts=[types.Part(text=quote(one.text))]),
                )
                for one in found
            ]
        )

    async def add_session_to_memory(self, session: AdkSession) -> None:
        """Remember what was said in a session that remora does not keep."""
        user = self._user(session.app_name, session.user_id)
        kept = await self._await(_state(user.session(session.id)).get, _CREATED)
        if kept is None:
            await self._record(user, session.events, session.id)

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,  # noqa: ARG002 - of the interface
    ) -> None:
        """Remember what was said in events of a session that remora does not keep."""
        await self._record(self._user(app_name, user_id), events, session_id)

    async def _record(self, user: User, events: Sequence[Event], session_id: str | None) -> None:
        said = [
            {"role": "user" if event.author == "user" else "assistant", "content": text}
            for event in events
            if (text := text_of(event))
        ]
        if said:
            await self._await(user.record, said, session=session_id)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember the texts of these entries, all or none, with their metadata."""
        given = [
            {
                "content": "\n".join(part.text for part in one.content.parts or () if part.text),
                "metadata": {**(custom_metadata or {}), **one.custom_metadata},
            }
            for one in memories
        ]
        if given:
            await self._await(self._user(app_name, user_id).remember, given)

    async def delete_memory(
        self, *, app_name: str, user_id: str, memory_id: str | None = None
    ) -> None:
        """Delete what was remembered under this id; what was said in a session stays in it."""
        if memory_id is not None:
            await self._await(self._delete, self._user(app_name, user_id), memory_id)

    async def _delete(self, user: User, memory_id: str) -> None:
        with suppress(NotFound):
            await user.delete(memory_id, saved_only=True)


async def _delete_rewound(session: Session, before: str, rewind: str) -> None:
    """Delete the events from an invocation on, up to the one that rewinds the session."""
    messages = await session.history()
    end = next((at for at, one in enumerate(messages) if one.id == rewind), len(messages))
    invocations = [invocation_of(one) for one in messages[:end]]
    if before in invocations:
        start = invocations.index(before)
        rewound = [
            one
            for one, of in zip(messages[start:end], invocations[start:], strict=True)
            if of is not None
        ]
        with suppress(NotFound):
            await session.delete(rewound)


def _state(handle: Session | User) -> KeyedState:
    return adapter_state(handle, _NAME)


async def _values(state: KeyedState) -> dict[str, Any]:
    found = await state.items(prefix=_VALUES)
    return {unescape(one.key.removeprefix(_VALUES)): one.value for one in found}


def _split(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The values of a session, of its user and of the app, by key of keyed state."""
    ours: dict[str, Any] = {}
    users: dict[str, Any] = {}
    apps: dict[str, Any] = {}
    for name, value in state.items():
        try:
            plain = to_jsonable_python(value)
        except PydanticSerializationError as e:
            raise InvalidInput(f"the value of {name!r} cannot be written as JSON: {e}") from e
        if name.startswith(_APP):
            apps[_VALUES + escape(name.removeprefix(_APP))] = plain
        elif name.startswith(_USER):
            users[_VALUES + escape(name.removeprefix(_USER))] = plain
        elif not name.startswith(_TEMPORARY):
            ours[_VALUES + escape(name)] = plain
    return ours, users, apps


# -- events of Google's ADK as chat messages, and back ---------------------------------------------
#
# An event becomes one chat message, or one for each result of a tool that it has. The first one has
# the event in its metadata, without its text if the message has that.

try:
    from google.adk.events import Event
    from google.genai import types
    from pydantic_core import PydanticSerializationError
except ImportError as e:
    raise ImportError('sessions of Google\'s ADK need it: pip install "remora[google-adk]"') from e

__all__ = ["chat_messages", "events_of", "invocation_of", "text_of"]

_KEY = "google_adk"
_SAME = "same_text"


def chat_messages(event: Event) -> list[ChatDict]:
    """Equivalent chat messages, as `Session.append` takes them; their ids are the event's.

    Raises:
        InvalidMessage: the event has what cannot be written as JSON.
    """
    try:
        kept = event.model_dump(mode="json", exclude_none=True)
    except (PydanticSerializationError, ValueError) as e:
        raise InvalidMessage(f"event {event.id} cannot be written as JSON: {e}", index=0) from e
    parts = (event.content.parts if event.content else None) or []
    results = [part.function_response for part in parts if part.function_response]
    chats = [
        {
            "role": "tool",
            "tool_call_id": result.id or f"{event.id}.{place}",
            "name": result.name,
            "content": msgspec.json.encode(_plain(result.response)).decode(),
        }
        for place, result in enumerate(results)
    ] or [_chat(event, parts)]
    if parts and kept["content"]["parts"] == [{"text": chats[0]["content"]}]:
        del kept["content"]["parts"]
        kept = {_SAME: kept}
    first = {**chats[0], "id": event.id, "metadata": {_KEY: kept}}
    rest = [
        {**chat, "id": f"{event.id}.{place}", "metadata": {_KEY: None}}
        for place, chat in enumerate(chats[1:], start=1)
    ]
    return [first, *rest]


def events_of(messages: Iterable[Message]) -> list[Event]:
    """The events that messages were made from; equivalent ones for other messages."""
    events = []
    for message in messages:
        metadata = message.metadata or {}
        if _KEY not in metadata:
            events.append(_equivalent(message))
        elif (kept := metadata[_KEY]) is not None:
            if _SAME in kept:
                kept = kept[_SAME]
                text = plain_text(message.to_chat())
                kept = {**kept, "content": {**kept["content"], "parts": [{"text": text}]}}
            events.append(Event.model_validate(kept))
    return events


def invocation_of(message: Message) -> str | None:
    """The id of the invocation that a message is of; None if it is of no event.

    Of an event with several messages, the first one has it, and the others an empty text.
    """
    metadata = message.metadata or {}
    if _KEY not in metadata:
        return None
    kept = metadata[_KEY] or {}
    return str(kept.get(_SAME, kept).get("invocation_id") or "")


def text_of(event: Event) -> str:
    """Return what an event says, without thoughts."""
    parts = (event.content.parts if event.content else None) or []
    return "\n".join(part.text for part in parts if part.text and not part.thought)


def _chat(event: Event, parts: list[types.Part]) -> ChatDict:
    role = "user" if event.author == "user" else "assistant"
    text = text_of(event)
    calls = [
        {
            "id": part.function_call.id or f"{event.id}.{place}",
            "type": "function",
            "function": {
                "name": part.function_call.name or "",
                "arguments": msgspec.json.encode(_plain(part.function_call.args or {})).decode(),
            },
        }
        for place, part in enumerate(parts)
        if part.function_call
    ]
    if calls and role == "assistant":
        return {"role": role, "content": text or None, "tool_calls": calls}
    files = "\n".join(
        f"[{blob.mime_type or 'file'}]"
        for part in parts
        if (blob := part.inline_data or part.file_data)
    )
    return {"role": role, "content": "\n".join(filter(None, (text, files))) or "[event]"}


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


def _equivalent(message: Message) -> Event:
    """For a message that something else has stored."""
    user = message.role == "user"
    content = types.Content(
        role="user" if user else "model", parts=[types.Part(text=plain_text(message.to_chat()))]
    )
    known: dict[str, Any] = {"id": message.id} if message.id else {}
    if message.created_at is not None:
        known["timestamp"] = message.created_at.timestamp()
    return Event(author="user" if user else "model", content=content, **known)
