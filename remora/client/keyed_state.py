"""Keyed state of a memory over HTTP. Its verbs are those of `remora.KeyedState`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from remora.api.keyed_state import StateValue
from remora.client.service import Service
from remora.errors import InvalidInput
from remora.rest import memory_shapes as shapes
from remora.rest.state_operations import StateOperations
from remora.services.arguments import check_flag, check_int, check_text, collect
from remora.services.parts import OfOneProcess
from remora.services.state_values import check_key

__all__ = ["ClientState"]

_PAGE = 1_000


class ClientState(OfOneProcess):
    """Small JSON values by key, kept with a session or a user. See `remora.KeyedState`.

    A value is set by one request, which is not sent again if it may have run: `OutcomeUnknown`
    tells that. Read the value then.
    """

    __slots__ = ("_ask", "_names", "_service")

    def __init__(self, service: Service, ask: StateOperations, names: dict[str, str]) -> None:
        self._service, self._ask, self._names = service, ask, names

    def __repr__(self) -> str:
        return f"ClientState({', '.join(map(repr, self._names.values()))}, {self._service.url})"

    async def get(self, key: str) -> StateValue | None:
        """The value under a key; None if there is none."""
        names = {**self._names, "key": check_key(key)}
        return (await self._service.call(self._ask.read_value, names)).value

    async def get_many(self, keys: Iterable[str]) -> dict[str, StateValue]:
        """The values under these keys, as of one moment. See `remora.KeyedState.get_many`."""
        given = shapes.StateKeys(keys=[check_key(key) for key in collect(keys, "keys")])
        found = await self._service.call(self._ask.read_values, self._names, given)
        return {one.key: one for one in found.values}

    async def set(self, key: str, value: object, *, version: int | None = None) -> StateValue:
        """Set a value, and return it with its new version. See `remora.KeyedState.set`."""
        given = shapes.ValueSet(value=value, version=_version(version))
        names = {**self._names, "key": check_key(key)}
        found = (await self._service.call(self._ask.set_value, names, given)).value
        assert found is not None
        return found

    async def delete(self, key: str, *, version: int | None = None) -> bool:
        """Delete a value; returns whether there was one. See `remora.KeyedState.delete`."""
        given = shapes.ValueVersion(version=_version(version))
        names = {**self._names, "key": check_key(key)}
        return (await self._service.call(self._ask.delete_value, names, given)).deleted

    async def change(
        self,
        put: Mapping[str, object],
        *,
        delete: Iterable[str] = (),
        versions: Mapping[str, int] | None = None,
    ) -> dict[str, StateValue]:
        """Set and delete several values, all or none. See `remora.KeyedState.change`."""
        given: object = put
        if not isinstance(given, Mapping) or not isinstance(versions or {}, Mapping):
            raise InvalidInput("put and versions must be dicts by key")
        change = shapes.StateChange(
            put={check_key(key): value for key, value in put.items()},
            delete=[check_key(key) for key in collect(delete, "delete")],
            versions=None
            if versions is None
            else {check_key(key): check_int(one, "version") for key, one in versions.items()},
        )
        found = await self._service.call(self._ask.change_values, self._names, change)
        return {one.key: one for one in found.values}

    async def items(
        self,
        *,
        prefix: str = "",
        limit: int | None = None,
        after: str | None = None,
        backward: bool = False,
    ) -> list[StateValue]:
        """All values, or a page of them, in the order of their keys. See `remora.KeyedState.items`.

        More than 1,000 come by several requests, so they may be of several moments.
        """
        check_text(prefix, "prefix")
        check_flag(backward, "backward")
        if after is not None:
            check_text(after, "after")
        if limit is not None:
            check_int(limit, "limit", low=1)
        found: list[StateValue] = []
        while True:
            size = _PAGE if limit is None else min(limit - len(found), _PAGE)
            given = shapes.StateAsked(prefix=prefix, limit=size, after=after, backward=backward)
            page = (await self._service.call(self._ask.list_values, self._names, given)).values
            found += page
            if len(page) < size or len(found) == limit:
                return found
            after = page[-1].key


def _version(version: object) -> int | None:
    return None if version is None else check_int(version, "version")
