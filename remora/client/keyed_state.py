"""Keyed state of a memory over HTTP. Its verbs are those of `remora.KeyedState`."""

from __future__ import annotations

from remora.api.keyed_state import KeyedState, StateValue
from remora.client.messages import list_all
from remora.client.service import Service
from remora.client.verbs import served
from remora.services.parts import OfOneProcess

__all__ = ["ClientState"]


class ClientState(OfOneProcess):
    """Small JSON values by key, kept with a session or a user. See `remora.KeyedState`.

    A value is set by one request, which is not sent again if it may have run: `OutcomeUnknown`
    tells that. Read the value then.
    """

    __slots__ = ("_names", "_service")

    def __init__(self, service: Service, names: dict[str, str]) -> None:
        self._service, self._names = service, names

    def __repr__(self) -> str:
        return f"ClientState({', '.join(map(repr, self._names.values()))}, {self._service.url})"

    get = served(KeyedState.get)
    get_many = served(KeyedState.get_many)
    set = served(KeyedState.set)
    delete = served(KeyedState.delete)
    change = served(KeyedState.change)
    _page = served(KeyedState.items)

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

        async def page(size: int, behind: str | None) -> list[StateValue]:
            return await self._page(prefix=prefix, limit=size, after=behind, backward=backward)

        return await list_all(page, limit, after, "key")
