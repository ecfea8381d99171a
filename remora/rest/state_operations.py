"""Operations on keyed state, of a session or of a user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from remora.api.keyed_state import KeyedState
from remora.rest import memory_shapes as shapes
from remora.rest.operation import SESSION, USER, Asked, Operation


class StateOperations(NamedTuple):
    """The operations on keyed state."""

    list_values: Callable[[Asked], Awaitable[shapes.StateShown]]
    read_values: Callable[[Asked], Awaitable[shapes.StateShown]]
    read_value: Callable[[Asked], Awaitable[shapes.StateFound]]
    set_value: Callable[[Asked], Awaitable[shapes.StateFound]]
    delete_value: Callable[[Asked], Awaitable[shapes.StateRemoved]]
    change_values: Callable[[Asked], Awaitable[shapes.StateShown]]


def _make(owner: str, state: Callable[[Asked], KeyedState]) -> StateOperations:
    async def list_values(asked: Asked) -> shapes.StateShown:
        page = asked.given
        found = await state(asked).items(
            prefix=page.prefix, limit=page.limit, after=page.after, backward=page.backward
        )
        return shapes.StateShown(found)

    async def read_values(asked: Asked) -> shapes.StateShown:
        found = await state(asked).get_many(asked.given.keys)
        return shapes.StateShown(list(found.values()))

    async def read_value(asked: Asked) -> shapes.StateFound:
        return shapes.StateFound(await state(asked).get(asked.names["key"]))

    async def set_value(asked: Asked) -> shapes.StateFound:
        given = asked.given
        found = await state(asked).set(asked.names["key"], given.value, version=given.version)
        return shapes.StateFound(found)

    async def delete_value(asked: Asked) -> shapes.StateRemoved:
        version = asked.given.version
        return shapes.StateRemoved(await state(asked).delete(asked.names["key"], version=version))

    async def change_values(asked: Asked) -> shapes.StateShown:
        given = asked.given
        found = await state(asked).change(given.put, delete=given.delete, versions=given.versions)
        return shapes.StateShown(list(found.values()))

    made = StateOperations(
        list_values, read_values, read_value, set_value, delete_value, change_values
    )
    for one in made:
        function: Any = one
        function.__name__ = f"{function.__name__}_of_{owner}"
    return made


def _describe(root: str, of: str, made: StateOperations) -> tuple[Operation, ...]:
    state, one = f"{root}/state", f"{root}/state/{{key}}"
    return (
        Operation(
            "GET", state, f"List keyed state of a {of}", made.list_values, shapes.StateShown,
            query=shapes.StateAsked, repeatable=True,
        ),
        Operation(
            "POST", state, f"Set and delete several values of a {of}, all or none",
            made.change_values, shapes.StateShown, body=shapes.StateChange,
        ),
        Operation(
            "POST", f"{state}/read", f"Read several values of a {of}", made.read_values,
            shapes.StateShown, body=shapes.StateKeys, repeatable=True,
        ),
        Operation(
            "GET", one, f"Read a value of a {of}", made.read_value, shapes.StateFound,
            repeatable=True,
        ),
        Operation(
            "PUT", one, f"Set a value of a {of}", made.set_value, shapes.StateFound,
            body=shapes.ValueSet,
        ),
        Operation(
            "DELETE", one, f"Delete a value of a {of}", made.delete_value, shapes.StateRemoved,
            query=shapes.ValueVersion,
        ),
    )  # fmt: skip


SESSION_STATE = _make("session", lambda asked: asked.session.state)
USER_STATE = _make("user", lambda asked: asked.user.state)
STATE_OPERATIONS: tuple[Operation, ...] = (
    *_describe(SESSION, "session", SESSION_STATE),
    *_describe(USER, "user", USER_STATE),
)
"""Of keyed state."""
