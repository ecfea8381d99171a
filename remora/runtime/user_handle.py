"""What an application holds of a user: their sessions, and what outlives them. Making one does no I/O and starts no actor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import anyio
import anyio.to_thread
import msgspec

from remora.actors.recall import Memory
from remora.actors.redaction import redacted_text
from remora.actors.user_protocol import Found, InspectUser, Learn, ReadSynopsis, SearchWorking, Synopsis, UserView
from remora.actors.working import WorkingItem
from remora.errors import InvalidInput, ModelTimeout
from remora.identity import SessionKey, UserKey, validated_id, working_id
from remora.messages import sound_text
from remora.models.cache import CachingEmbedder
from remora.models.ports import embed_texts
from remora.runtime.handles import Session
from remora.runtime.services import Services
from remora.storage.ports import SessionListing

__all__ = ["User", "WorkingHit"]

_INLINE_CHARACTERS = 16_000  # texts up to this are counted on the event loop: about a millisecond


class WorkingHit(msgspec.Struct, frozen=True):
    """Something found in working memory.

    Attributes:
        text: what was learned.
        source: where it came from, for instance ``"tool:search"``.
        session: the session that it belongs to; empty for all of the user's.
        created_at: when it was learned.
        score: nearness of meaning to the query, 1 for the same.
        id: names it within the user's working memory.
    """

    text: str
    source: str
    session: str
    created_at: datetime
    score: float
    id: str


class User:
    """One user: their sessions, and what was said in all of them. Get one from `Runtime.user`."""

    __slots__ = ("_services", "id")

    def __init__(self, services: Services, id_: str) -> None:
        self._services = services
        self.id = id_

    def __repr__(self) -> str:
        return f"User({self.id!r})"

    def session(self, session: str) -> Session:
        """A handle on one of the user's sessions; it exists from its first message on.

        Raises:
            InvalidId: the id cannot name a session.
        """
        return Session(self._services, SessionKey(self.id, validated_id(session, "a session id")))

    async def sessions(self) -> Sequence[SessionListing]:
        """The user's sessions, the one with the newest message last."""
        return await self._services.journal.sessions(self.id)

    async def recall(self, query: str, *, k: int = 5) -> list[Memory]:
        """What was said before, in any of the user's sessions, that bears on `query`; best first.

        Finds what is in long-term memory: what was folded, flushed, or left idle.

        Raises:
            InvalidInput: `k` is not positive, or the query is no text.
            LongTermError: long-term memory failed, or is switched off.
            ModelError: the embedder failed.
        """
        if not isinstance(query, str):
            raise InvalidInput(f"query must be text, not {type(query).__name__}")
        if k < 1:
            raise InvalidInput(f"k must be positive, not {k}")
        recall = self._services.recall
        if recall is None:
            raise InvalidInput("long-term memory is switched off: long_term.enabled is false")
        return await recall(self.id, query, k=k)

    # -- working memory -----------------------------------------------------------------------------------------------

    async def learn(self, text: str | Iterable[str], *, source: str = "application", session: str = "") -> list[str]:
        """Put something at hand: a tool's output, something that the user told (S2.11); returns the ids when it is durable.

        It can be found at once, by `search_working`, and leaves when working memory is full and it is the oldest, or with
        `forget`. The same text, for the same session, is held once, and keeps its age.

        Args:
            text: one text or many; all of them are taken, or none. The redaction hook goes over each first.
            source: where they come from, for instance ``"tool:search"``.
            session: the session that they belong to; empty for all of the user's.

        Raises:
            InvalidInput: no text, an empty one, one that working memory cannot hold, or no embedder is configured.
            InvalidId: `session` cannot name a session, or `source` cannot be kept.
            RedactionFailed: the redaction hook failed; nothing was written.
            ModelError: the embedder failed; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`; learning twice has one effect, so simply retry.
        """
        embedder = self._working_embedder()
        if not isinstance(text, (str, Iterable)):
            raise InvalidInput(f"what is learned must be one text or many, not {type(text).__name__}")
        texts = [_text(one, "what is learned") for one in ([text] if isinstance(text, str) else text)]
        validated_id(source, "a source")
        if session:
            validated_id(session, "a session id")
        if not texts:
            return []
        if (redact := self._services.redact) is not None:
            texts = [_text(redacted_text(one, redact), "what redaction leaves") for one in texts]
        vectors = await embed_texts(embedder, texts)
        count = self._services.counter.count
        if sum(map(len, texts)) <= _INLINE_CHARACTERS:
            tokens = [count(one) for one in texts]
        else:
            tokens = await anyio.to_thread.run_sync(lambda: [count(one) for one in texts])
        at_us = int(self._services.clock.time() * 1_000_000)
        items = tuple(
            WorkingItem(working_id(session, one), one, source, session, at_us, size, vector.astype("<f4").tobytes())
            for one, size, vector in zip(texts, tokens, vectors, strict=True)
        )
        await self._services.directory.ask(UserKey(self.id), Learn(items), size=sum(map(len, texts)) + vectors.nbytes)
        return [item.id for item in items]

    async def search_working(self, query: str, k: int = 5, session: str | None = None) -> list[WorkingHit]:
        """What in working memory is nearest in meaning to `query`, best first; of equals the older (S2.12).

        Args:
            query: what to look for.
            k: how many at most.
            session: what that session may see: its own and what belongs to none. None for all of the user's.

        Raises:
            InvalidInput: `k` is not positive, the query is no text, or no embedder is configured.
            InvalidId: `session` cannot name a session.
            ModelError: the embedder failed.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`; reading changes nothing, so simply retry.
        """
        embedder = self._working_embedder()
        if not isinstance(query, str):
            raise InvalidInput(f"query must be text, not {type(query).__name__}")
        if k < 1:
            raise InvalidInput(f"k must be positive, not {k}")
        if session is not None:
            validated_id(session, "a session id")
        (vector,) = await embed_texts(embedder, [sound_text(query)])
        found: tuple[Found, ...] = await self._services.directory.ask(UserKey(self.id), SearchWorking(vector, k, session))
        return [
            WorkingHit(
                text=one.item.text,
                source=one.item.source,
                session=one.item.scope,
                created_at=datetime.fromtimestamp(one.item.at_us / 1_000_000, UTC),
                score=one.score,
                id=one.item.id,
            )
            for one in found
        ]

    def _working_embedder(self) -> CachingEmbedder:
        embedder = self._services.embedder
        if embedder is None:
            raise InvalidInput(
                "working memory needs an embedder: set models.embedder to wordllama (embedded) or openai, "
                "or pass embedder= to the Runtime"
            )
        return embedder

    # -- the user as a whole ------------------------------------------------------------------------------------------

    async def synopsis(self, *, refresh: bool = False, timeout_s: float | None = None) -> Synopsis:
        """Who the user is, and what they are about (S2.22); what is held of it, or else written now, by one model call.

        However many ask at once, it is written once (S2.24). Without a chat model it is an extract.

        Args:
            refresh: have it written anew although it still holds.
            timeout_s: seconds to wait for it; the configured default otherwise.

        Raises:
            ModelTimeout: it was not written in time; it goes on being written, so ask again later.
            ReentrantAsk: called from within a background job of this user, such as the one that writes it.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`; simply retry.
        """
        services = self._services
        limit = services.config.mailbox.timeout_s if timeout_s is None else timeout_s
        # Who asks is served by whatever is written from now on, so one job is waited for, however short the terms are.
        request = ReadSynopsis(services.clock.time(), refresh=refresh)
        with anyio.move_on_after(limit):
            while True:
                found: Synopsis = await services.directory.ask(UserKey(self.id), request, timeout_s=limit)
                if found.state != "pending":
                    return found
                await services.supervisor.finished(found.job)
                request = msgspec.structs.replace(request, refresh=False)
        raise ModelTimeout(f"the synopsis of {self.id!r} was not written within {limit:g} s; it goes on being written, ask later")

    async def inspect(self) -> UserView:
        """How things stand: working memory, figures of access, the synopsis, grants. For people and tools."""
        view: UserView = await self._services.directory.ask(UserKey(self.id), InspectUser())
        return view


def _text(value: object, what: str) -> str:
    """A text that says something, as a file can keep it."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be text, not {type(value).__name__}")
    if not value.strip():
        raise InvalidInput(f"{what} must not be empty")
    return sound_text(value)
