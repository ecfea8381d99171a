"""Checks of a journal's turns and keyed state; a part of `journal_suite`."""

from __future__ import annotations

from remora.errors import StateConflict
from remora.ids import SessionKey, turn_key, turn_root
from remora.messages import decode_chat
from remora.storage.lookups import TurnLookup
from remora.testing.journal_runtime import OpenJournal, open_runtime


async def turns_are_found_by_their_keys(opened: OpenJournal) -> None:
    """All appends of a turn, in order, and of no other; deleted replies are counted.

    A turn that was cut goes on after opening again.
    """
    key = SessionKey("alice", "chat")
    async with open_runtime(opened) as runtime:
        chat = runtime.session(*key)
        for request in ("r", "r1", "r10"):
            async with chat.turn(f"question {request}", key=request) as turn:
                await turn.reply({"role": "assistant", "content": f"one {request}"})
                await turn.reply({"role": "assistant", "content": f"two {request}"})
        async with runtime.session("bob", "chat").turn("another", key="r1") as turn:
            pass
        async with chat.turn("cut", key="cut"):
            pass
        await chat.delete(positions=5)
    async with open_runtime(opened) as runtime:
        journal = runtime.internals.journal
        found = await journal.fetch(key, TurnLookup(turn_root("r1")))
        assert isinstance(found, tuple)
        assert [one.key for one in found] == [turn_key(turn_root("r1"), 0, n) for n in range(3)]
        said = [[decode_chat(entry.chat)["content"] for entry in one.entries] for one in found]
        assert said == [["question r1"], ["one r1"], []]
        assert [one.removed for one in found] == [0, 0, 1]
        for other in (key, SessionKey("alice", "none such")):
            assert await journal.fetch(other, TurnLookup(turn_root("none such"))) == ()
        chat = runtime.session(*key)
        async with chat.turn("question r10", key="r10") as turn:
            assert turn.replayed
            assert [one.content for one in turn.replies] == ["one r10", "two r10"]
        async with chat.turn("cut", key="cut") as turn:
            assert (turn.replayed, turn.resumed) == (False, True)
            await turn.reply("at last")
        async with chat.turn("cut", key="cut") as turn:
            assert turn.replayed
        assert [one.content for one in await chat.history()][-2:] == ["cut", "at last"]


async def keyed_state_keeps_its_versions(opened: OpenJournal) -> None:
    """Values and versions are there after opening again; no version is used twice."""
    async with open_runtime(opened) as runtime:
        for state in (runtime.session("alice", "chat").state, runtime.user("alice").state):
            await state.set("kept", {"a": [1, None, "ñ\u2028"]})
            gone = await state.set("gone", 1)
            await state.delete("gone", version=gone.version)
    async with open_runtime(opened) as runtime:
        assert (await runtime.counts("alice")).state_keys == 2
        assert (await runtime.counts("bob")).state_keys == 0
        for state in (runtime.session("alice", "chat").state, runtime.user("alice").state):
            (kept,) = await state.items()
            assert (kept.value, kept.version) == ({"a": [1, None, "ñ\u2028"]}, 1)
            again = await state.set("gone", 2, version=0)
            assert again.version > gone.version
            try:
                await state.set("kept", 2, version=again.version)
            except StateConflict:
                assert await state.get("kept") == kept
            else:
                raise AssertionError("a version that is not the present one was taken")
