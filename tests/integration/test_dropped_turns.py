"""A turn that was entered and whose object is gone keeps no later turn waiting."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import remora
from remora.testing import count_probes


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["turn", "exclusive"])
async def test_a_dropped_turn_ends(tmp_path: Path, kind: str) -> None:
    config = remora.Config.from_dict({"long_term": {"enabled": False}})
    async with remora.Runtime(tmp_path, config=config) as runtime:
        chat = runtime.session("alice", "chat")

        async def enter_and_leave_it() -> None:
            block = chat.turn("Hello") if kind == "turn" else chat.exclusive()
            await block.__aenter__()

        with count_probes() as probes:
            await enter_and_leave_it()
            gc.collect()
            async with chat.turn("Next") as turn:
                await turn.reply("Fine.")
        assert probes["turn_dropped"] == 1
        assert [one.content for one in await chat.history()][-2:] == ["Next", "Fine."]


@pytest.mark.anyio
async def test_health_names_a_turn_that_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name of a user; a long turn for which nobody waits is no problem."""
    monkeypatch.setattr("remora.api.health.TURN_LONG_S", 0.0)
    tree = {"long_term": {"enabled": False}, "turns": {"wait_s": 0.01}}
    async with remora.Runtime.in_memory(config=remora.Config.from_dict(tree)) as runtime:
        chat = runtime.session("alice", "chat")
        async with chat.turn("Hello"):
            assert runtime.health().problems == ()
            with pytest.raises(remora.errors.SessionBusy):
                await chat.turn("Next").__aenter__()
            (problem,) = runtime.health().problems
            assert (problem.code, problem.effect) == ("turns_held", "degraded")
            assert "alice" not in problem.text
        assert runtime.health().problems == ()
