"""Standing instructions of users: noticed when they are said, and shown in their contexts.

An instruction is a memory of the journal that rests on its message, as an extracted fact does
(`remora.storage.standings`): it goes with its message, and of instructions about one matter the
newest holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from remora.actors.policies.importance import DEFAULT_IMPORTANCE
from remora.actors.policies.redaction import redact_text
from remora.actors.user.messages import DeleteMemories, TakeInstructions
from remora.errors import RedactionFailed, RemoraError
from remora.ids import SessionKey, UserKey, fact_id, topic_id
from remora.languages.instructions import find_instructions, may_instruct
from remora.logging import get_logger
from remora.messages import Entry, Receipt, dated_line, decode_chat, said_text
from remora.runtime.probes import probe
from remora.storage.ports import Journal
from remora.storage.records import INSTRUCTION, MemoryItem
from remora.storage.standings import find_standings, holds
from remora.tokens import TokenCounter

_logger = get_logger(__name__)
_MOST_KNOWN = 100_000  # users of whom it is known that they gave none: 10 MB


class Instructions:
    """Notices and reads the instructions of users.

    Args:
        journal: has them.
        tell: sends a message to a user's own actor, and returns its durable reply.
        counter: for their sizes in a context.
        redact: applied to them before the journal has them; None for none.
    """

    def __init__(
        self,
        journal: Journal,
        tell: Callable[[UserKey, Any], Awaitable[Any]],
        counter: TokenCounter,
        redact: Callable[[str], str] | None,
    ) -> None:
        self._journal = journal
        self._tell = tell
        self._counter = counter
        self._redact = redact
        self._without: set[str] = set()
        self._changes = 0

    async def notice(
        self,
        key: SessionKey,
        entries: Sequence[Entry],
        receipt: Receipt,
        *,
        replaced: bool = False,
    ) -> None:
        """Record what messages that are stored ask for.

        If that fails, the messages are stored all the same; an append that is repeated under its
        key records it then.

        Args:
            key: the session.
            entries: the messages.
            receipt: theirs.
            replaced: they may have taken the place of others, whose instructions go.
        """
        items = [
            item
            for entry, seq in zip(entries, receipt.seqs, strict=False)
            if entry.role == "user" and may_instruct(entry.chat)
            for item in self._find(key, entry, seq)
        ]
        if not items and not replaced:
            return
        try:
            if replaced:
                await self._withdraw(key, set(receipt.seqs), {item.id for item in items})
            if receipt.duplicate and await self._journal.removed_messages(
                key.user, {(key.session, seq) for seq in receipt.seqs}
            ):
                return
            if items:
                await self._tell(UserKey(key.user), TakeInstructions(tuple(items)))
        except RemoraError as e:
            probe("instructions_not_noticed")
            _logger.warning("instructions_not_noticed", session=key, error=type(e).__name__)
        self.note_change(key.user)

    async def _withdraw(self, key: SessionKey, seqs: set[int], kept: set[str]) -> None:
        """Delete instructions that these messages gave before they were changed."""
        gone = [
            item.id
            for item in await self._read(key.user)
            if item.session == key.session and seqs.issuperset(item.sources) and item.id not in kept
        ]
        if gone:
            await self._tell(UserKey(key.user), DeleteMemories(tuple(gone), None))

    async def get(self, user: str) -> Sequence[MemoryItem]:
        """A user's instructions that hold, newest first.

        Raises:
            StorageError: the journal cannot be read.
        """
        items = await self._read(user)
        if not items:
            return ()
        standings = await find_standings(self._journal, user, items)
        return [item for item in reversed(items) if holds(item, standings)]

    async def _read(self, user: str) -> Sequence[MemoryItem]:
        """All of a user's instructions, oldest first; of a user without any it asks once."""
        if user in self._without:
            return ()
        changes = self._changes
        items = [one for one in await self._journal.facts(user) if one.type == INSTRUCTION]
        if not items and changes == self._changes:
            if len(self._without) == _MOST_KNOWN:
                self._without.clear()
            self._without.add(user)
        return items

    def note_change(self, user: str) -> None:
        """The user's memories changed, or may have."""
        self._changes += 1
        self._without.discard(user)

    def _find(self, key: SessionKey, entry: Entry, seq: int) -> list[MemoryItem]:
        chat = decode_chat(entry.chat)
        name = str(chat.get("name") or "")
        if name and name.casefold() != key.user.casefold():
            return []  # one of several people speaks
        items = []
        for one in find_instructions(said_text(entry, chat)):
            text = one.text
            if self._redact is not None:
                try:
                    text = redact_text(text, self._redact).strip()
                except RedactionFailed:
                    continue
            if text:
                topic = topic_id(key.user, "", 0, one.about)
                items.append(
                    MemoryItem(
                        id=fact_id(topic, key.user, key.session, seq, text),
                        session=key.session,
                        agent="",
                        content=text,
                        type=INSTRUCTION,
                        importance=DEFAULT_IMPORTANCE,
                        created_us=entry.at_us,
                        tokens=self._counter.count(dated_line(entry.at_us, text)),
                        sources=(seq,),
                        topic=topic,
                    )
                )
        return items
