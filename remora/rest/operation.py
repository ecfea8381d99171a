"""A request that was understood, and the operation that answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from remora.api.base import BaseRuntime
from remora.api.session import Session
from remora.api.shared import SharedMember
from remora.api.user import User
from remora.ids import validate_id
from remora.rest.problems import FailureLog

USER = "/v1/users/{user}"
SESSION = USER + "/sessions/{session}"


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
    def prefix(self) -> str:
        """Return what the ids of the tenant's users begin with in the memory."""
        return self._own("")

    def _own(self, user: str) -> str:
        return f"{self.tenant}/{user}"


class Operation(NamedTuple):
    """A method on a path.

    Attributes:
        method: of HTTP.
        path: with names in braces.
        summary: what it does, for the description.
        run: does it.
        answers: the type of its answer.
        body: the type of its body.
        query: the type of the query's parameters.
        keyed: whether it takes an idempotency key; ``"required"``: it needs one.
        repeatable: the same request again has no other effect, and its answer tells as much: a
            client may send it again if it does not know what became of it. With an idempotency key
            every request is.
    """

    method: str
    path: str
    summary: str
    run: Callable[[Asked], Awaitable[Any]]
    answers: type
    body: type | None = None
    query: type | None = None
    keyed: bool | str = False
    repeatable: bool = False

    @property
    def name(self) -> str:
        """Return its id in the description."""
        run: Any = self.run
        return str(run.__name__)
