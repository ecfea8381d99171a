"""Sessions are found by what was said in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from remora import Message, Runtime
from remora.errors import InvalidInput
from tests.harness import user

pytestmark = pytest.mark.anyio

TALKS = {
    "garden": ("Let us plan the garden.", "Roses along the wall.", "The garden needs a hose."),
    "boat": ("Help me repair the boat.", "The keel has a crack.", "Is epoxy right for a keel?"),
    "long": (f"{'My plan is to walk. ' * 9}", "Boots, and a map."),
}


async def test_sessions_with_title_days_and_messages(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        ada = runtime.user("ada")
        for name, said in TALKS.items():
            await ada.session(name).append([user(text) for text in said])
        first, *_ = await ada.find_sessions("What was wrong with the keel of the boat?")
        assert (first.session, first.title) == ("boat", "Help me repair the boat.")
        assert "The keel has a crack." in [one.text for one in first.memories]
        assert len(first.memories) <= 3
        assert first.first_at <= first.last_at
        (only,) = await ada.find_sessions("Where do I want to walk with my boots?", limit=1)
        assert only.session == "long"
        assert only.title.endswith("…")
        assert len(only.title) <= 80
        assert await runtime.user("bob").find_sessions("boat") == []
        with pytest.raises(InvalidInput):
            await ada.find_sessions("boat", limit=0)


async def test_a_message_that_goes_on_with_something_finds_its_last_sessions(
    tmp_path: Path,
) -> None:
    """A question finds what matches best, however old it is."""
    now = datetime.now(UTC)
    said = {
        "first": (200, "The kitchen plan: which tiles, which lamp, which oven for the kitchen?"),
        "last": (1, "The kitchen plan has an oven now, we stopped at the tiles."),
    }
    async with Runtime(tmp_path) as runtime:
        ada = runtime.user("ada")
        for name, (days, text) in said.items():
            at = now - timedelta(days=days)
            await ada.session(name).append(Message(role="user", content=text, created_at=at))
        asked = "Which lamp and which tiles are in the kitchen plan?"
        assert (await ada.find_sessions(asked))[0].session == "first"
        going_on = "Hi, I am back. Now the kitchen plan: which lamp, which tiles? What is next?"
        assert (await ada.find_sessions(going_on))[0].session == "last"
