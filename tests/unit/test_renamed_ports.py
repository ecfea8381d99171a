"""Ports that an application wrote before their methods were renamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from remora import Runtime
from remora.ids import SessionKey
from remora.storage.memory import MemoryJournal, MemoryStore
from remora.storage.ports import LongTermStore, MemoryRow, Vector
from remora.storage.renamed import with_current_names

pytestmark = pytest.mark.anyio


class OldStore(MemoryStore):
    async def add(  # type: ignore[override]
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, doubtful: bool
    ) -> None:
        await super().add(rows, vectors, may_exist=doubtful)


class OldJournal:
    """A journal with the earlier names, and no others."""

    def __init__(self) -> None:
        self._inner = MemoryJournal()
        self.instance = self._inner.instance

    def __getattr__(self, name: str) -> Any:
        if name in {"init_setting", "change_settings", "indexed_through", "finish_erasure"}:
            raise AttributeError(name)
        return getattr(self._inner, name)

    async def setting(self, name: str, value: str | None = None) -> str | None:
        if value is None:
            return await self._inner.setting(name)
        return await self._inner.init_setting(name, value)

    async def change(self, settings: dict[str, str]) -> None:
        await self._inner.change_settings(settings)

    async def flushed(self) -> Any:
        return await self._inner.indexed_through()

    async def erased(self, number: int) -> None:
        await self._inner.finish_erasure(number)


async def use(journal: Any) -> None:
    async with Runtime.in_memory(journal=journal) as runtime:
        chat = runtime.session("ana", "chat")
        await chat.append({"role": "user", "content": "hello"})
        actors = [key for key, _ in await runtime.internals.journal.indexed_through()]
        assert actors == [SessionKey("ana", "chat")]
        await runtime.internals.journal.change_settings({"colour": "red"})
        assert await runtime.internals.journal.init_setting("colour", "blue") == "red"
        assert await runtime.internals.journal.setting("colour") == "red"
        await runtime.user("ana").forget()
        assert await runtime.internals.journal.erasures() == []


async def test_old_names_go_on_working() -> None:
    """S2.16: a runtime takes ports with the old names, warns, and does all that it did with
    them.
    """
    with pytest.warns(DeprecationWarning, match="OldJournal has old names.*erased"):
        await use(OldJournal())


async def test_an_old_store() -> None:
    """S2.16: `add(doubtful=)` is called by that name where a store has it."""
    old: Any = OldStore(None)
    with pytest.warns(DeprecationWarning, match="OldStore has old names.*doubtful"):
        store: LongTermStore = with_current_names(old)
    row = MemoryRow("r", "ana", "s", 1, "user", "", "tea", "tea", "tea", "message", 0.5, 0, 1)
    await store.add([row], None, may_exist=True)
    assert await store.row_ids() == ["r"]


def test_current_ports_are_left_alone() -> None:
    journal, store = MemoryJournal(), MemoryStore(None)
    assert with_current_names(journal) is journal
    assert with_current_names(store) is store
