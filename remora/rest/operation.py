"""A request that was understood, and the operation that answers it.

An operation is a row: a method on a path, and the verb of a handle that answers there. The verb's
signature says the rest: what its arguments are called, and what it returns. The row renames an
argument where the wire has another name for it. What differs over HTTP is a function of the request
instead of a verb.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from remora.actors.user.messages import ScoredItem
from remora.actors.user.working import WorkingItem
from remora.api.base import BaseRuntime
from remora.api.keyed_state import KeyedState, StateValue
from remora.api.session import Session
from remora.api.shared import SharedMember
from remora.api.user import User, WorkingHit
from remora.errors import NotGranted
from remora.ids import validate_id
from remora.recall.context import Context
from remora.rest.problems import FailureLog
from remora.rest.shapes import ContextShown, WorkingShown

USER = "/v1/users/{user}"
SESSION = USER + "/sessions/{session}"
MEMBER = "/v1/shared/{scope}/as/{agent}"
_OWNERS = frozenset({"user", "session", "scope", "agent"})
"""Names of paths that say whose verb it is; others are arguments."""
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


class Asked(NamedTuple):
    """A request that was understood.

    Attributes:
        runtime: what is served.
        tenant: whose API key it has.
        names: what its path names: user, session, memory, key, scope, agent.
        given: the body, or the query's parameters; None for a request without any.
        key: its idempotency key.
        failures: takes what the memory did not do, and clients are not told.
    """

    runtime: BaseRuntime
    tenant: str
    names: dict[str, str]
    given: Any
    key: str | None
    failures: FailureLog

    @property
    def user(self) -> User:
        """The user: of this tenant, whatever the name."""
        return self.runtime.user(self._own(validate_id(self.names["user"], "a user id")))

    @property
    def session(self) -> Session:
        """The session."""
        return self.user.session(self.names["session"])

    @property
    def member(self) -> SharedMember:
        """An agent in a shared scope of this tenant."""
        scope = self._own(validate_id(self.names["scope"], "a shared scope's name"))
        return self.runtime.shared(scope).as_(self.names["agent"])

    @property
    def handle(self) -> SharedMember | Session | User:
        """The handle that the path names."""
        if "scope" in self.names:
            return self.member
        return self.session if "session" in self.names else self.user

    @property
    def prefix(self) -> str:
        """Return what the ids of the tenant's users begin with in the memory."""
        return self._own("")

    def _own(self, user: str) -> str:
        return f"{self.tenant}/{user}"

    @contextmanager
    def in_own_words(self) -> Iterator[None]:
        """Have refusals name a shared scope as the tenant does."""
        try:
            yield
        except NotGranted as e:
            own = e.scope.removeprefix(self.prefix)
            text = str(e).replace(repr(e.scope), repr(own))
            raise NotGranted(text, scope=own, who=e.who) from None


# -- what a verb returns, as an answer -------------------------------------------------------------


class Conversion(NamedTuple):
    """How the result of a verb crosses.

    Attributes:
        kind: the type that a client decodes.
        pack: gives what the server encodes.
        unpack: gives what the verb returned.
    """

    kind: Any
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


def _same(value: object) -> Any:
    return value


def _show_hits(hits: list[WorkingHit]) -> list[WorkingShown]:
    return [
        WorkingShown(
            one.id,
            one.text,
            one.source,
            one.session,
            round(one.created_at.timestamp() * 1_000_000),
            0,
            one.score,
        )
        for one in hits
    ]


def _restore_hits(shown: list[WorkingShown]) -> list[WorkingHit]:
    return [
        WorkingHit(
            one.text,
            one.source,
            one.session,
            _BEGIN + timedelta(microseconds=one.created_at_us),
            one.score,
            one.id,
        )
        for one in shown
    ]


def context_of(answer: ContextShown) -> Context:
    """Return what a model should see; items of working memory are without their vectors."""
    fields = msgspec.structs.asdict(answer)
    fields["working"] = tuple(
        ScoredItem(
            WorkingItem(
                one.id, one.text, one.source, one.session, one.created_at_us, one.tokens, b""
            ),
            one.score,
        )
        for one in answer.working
    )
    return Context(**fields)


_CONVERSIONS: Mapping[Any, Conversion] = {
    Context: Conversion(ContextShown, _same, context_of),
    dict[str, StateValue]: Conversion(
        list[StateValue],
        lambda found: list(found.values()),
        lambda values: {one.key: one for one in values},
    ),
    list[WorkingHit]: Conversion(list[WorkingShown], _show_hits, _restore_hits),
}


def _find_conversion(result: object, answers: type) -> Conversion:
    """How a result crosses in an answer of this type.

    A result is the one field of the answer, or its fields if it is a tuple; else its own fields are
    those of the answer.
    """
    answer: Any = answers
    names = answer.__struct_fields__
    if not names:
        return Conversion(answers, lambda _: answers(), lambda _: None)
    if typing.get_origin(result) is tuple:
        return Conversion(answers, lambda found: answers(*found), msgspec.structs.astuple)
    own = _CONVERSIONS.get(result, Conversion(result, _same, _same))
    if len(names) > 1:
        return own
    return Conversion(
        msgspec.defstruct(answers.__name__, [(names[0], own.kind)]),
        lambda found: answers(own.pack(found)),
        lambda answer: own.unpack(getattr(answer, names[0])),
    )


# -- a row of the table ----------------------------------------------------------------------------


class Operation:
    """A method on a path.

    Args:
        method: of HTTP.
        name: its id in the description.
        path: with names in braces.
        summary: what it does, for the description.
        does: the verb of a handle that answers, or a function of the request.
        answers: the type of its answer.
        body: the type of its body.
        query: the type of the query's parameters.
        keyed: whether it takes an idempotency key; ``"required"``: it needs one.
        repeatable: the same request again has no other effect, and its answer tells as much: a
            client may send it again if it does not know what became of it. With an idempotency key
            every request is.
        rename: names of the wire, with those of the verb's parameters where these are others.
        verb: of a handle, whose arguments and result a function takes and gives, too.

    Attributes:
        owners: names of the path that say whose verb it is.
        arguments: fields of the body or query, with the verb's parameters.
        named: names of the path that are arguments, with the verb's parameters.
        answer: how the verb's result crosses.
    """

    def __init__(
        self,
        method: str,
        name: str,
        path: str,
        summary: str,
        does: Callable[..., Awaitable[Any]],
        answers: type,
        *,
        body: type | None = None,
        query: type | None = None,
        keyed: bool | str = False,
        repeatable: bool = False,
        rename: Mapping[str, str] | None = None,
        verb: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        self.method, self.name, self.path, self.summary = method, name, path, summary
        self.answers, self.body, self.query = answers, body, query
        self.keyed, self.repeatable = keyed, repeatable
        self._does = does
        self._by_hand = "self" not in inspect.signature(does).parameters
        self.verb = verb if self._by_hand else does
        if self.verb is None:
            return
        parameters = inspect.signature(self.verb).parameters
        places = re.findall(r"{(\w+)}", path)
        self.owners = tuple(one for one in places if one in _OWNERS)
        self._of_state = does in vars(KeyedState).values()
        given: Any = body or query
        fields = () if given is None else given.__struct_fields__
        named = [one for one in places if one not in _OWNERS]
        called = {one: (rename or {}).get(one, one) for one in (*fields, *named)}
        if unknown := set(called.values()) - set(parameters):
            raise TypeError(f"{self.verb.__qualname__} has no parameter {min(unknown)}")
        self.arguments = {one: called[one] for one in fields}
        self.named = {one: called[one] for one in named}
        self.answer = _find_conversion(typing.get_type_hints(self.verb)["return"], answers)

    def takes(self, parameters: Iterable[str]) -> bool:
        """Return whether the verb's parameters are all of the wire; how long to wait is not."""
        own = {*self.arguments.values(), *self.named.values(), *(["key"] if self.keyed else [])}
        return own == set(parameters) - {"timeout_s"}

    async def run(self, asked: Asked) -> Any:
        """Answer a request."""
        if self._by_hand:
            return await self._does(asked)
        handle: Any = asked.handle
        given = {parameter: getattr(asked.given, one) for one, parameter in self.arguments.items()}
        given |= {parameter: asked.names[one] for one, parameter in self.named.items()}
        if self.keyed:
            given["key"] = asked.key
        verb = getattr(handle.state if self._of_state else handle, self._does.__name__)
        with asked.in_own_words():
            return self.answer.pack(await verb(**given))
