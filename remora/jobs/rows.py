"""The rows of long-term memory: built from the journal's records, redacted, embedded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import msgspec

from remora.actors.policies.redaction import redact_text
from remora.actors.user.working import WorkingItem, pack_vector
from remora.errors import RedactionFailed
from remora.ids import SessionKey, entry_id, row_id
from remora.languages.dates import name_days
from remora.languages.search_words import reading_size, search_texts
from remora.messages import Entry, dated_line, decode_chats, said_text, speaker_of
from remora.models.clipping import clip
from remora.models.ports import Embedder, embed_texts
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.locks import SharedLocks
from remora.storage.lookups import SessionPart
from remora.storage.ports import Journal, LongTermStore, MemoryRow, Vector
from remora.storage.records import INSTRUCTION, MemoryItem, Summary
from remora.storage.windows import with_windows
from remora.tokens import TokenCounter

MEMORY_TYPES = ("fact", "preference", "context", "procedural", "message_batch")
"""The types of recorded memories."""

MOST_SEARCHED = 8_000
"""Characters of a message that are indexed, searched and recalled. A pasted file of a megabyte has
as many words as thousands of messages: every recall of its user would read them.
"""

ROW_TYPES = ("message", "summary", *MEMORY_TYPES)
"""The types of rows in long-term memory, except those of memory blocks."""

LISTED_TYPES = (*ROW_TYPES, INSTRUCTION)
"""Those, and the type of memories that are listed and not searched."""

_DAY_US = 86_400_000_000
_READ_ON_LOOP = 20  # rows; of short messages in another language than English 100 take 5 ms
_CHARACTERS = 10_000  # of messages, likewise
_KEPT_BYTES = 16 << 20  # vectors of some 16 000 texts by the embedded embedder


# -- rows of records ----------------------------------------------------------------------


def message_rows(
    key: SessionKey,
    entries: Sequence[Entry],
    first: int,
    through: int,
    counter: TokenCounter,
    *,
    whole: bool = False,
) -> list[MemoryRow]:
    """The rows of messages that say something, without their windows.

    Of messages before `first` and after `through` nobody asks for the tokens.

    Args:
        key: the session.
        entries: the messages.
        first: number of the first message.
        through: number of the last.
        counter: for a row's size in a context.
        whole: long messages are not cut, as they are redacted first; see `cut_long_rows`.
    """
    rows = []
    for entry, chat in zip(entries, decode_chats(entries), strict=True):
        text = said_text(entry, chat)
        if not text:
            continue
        if not whole:
            text = clip(text, MOST_SEARCHED, "\n…\n")
        turn = dated_line(entry.at_us, f"{speaker_of(chat)}: {text}")
        rows.append(
            MemoryRow(
                id=row_id(key, entry.seq),
                user=key.user,
                session=key.session,
                seq=entry.seq,
                role=entry.role,
                speaker=str(chat.get("name") or "") if entry.role != "tool" else "",
                content=text,
                turn=turn,
                window="",
                memory_type="message",
                importance=entry.importance,
                created_us=entry.at_us,
                tokens=counter.count(turn) if first <= entry.seq <= through else 0,
            )
        )
    return rows


def cut_long_rows(rows: Sequence[MemoryRow], counter: TokenCounter) -> list[MemoryRow]:
    """Redacted rows of messages with their texts cut as `message_rows` does it."""
    return [
        row
        if len(row.turn) <= MOST_SEARCHED
        else msgspec.structs.replace(
            row,
            content=clip(row.content, MOST_SEARCHED, "\n…\n"),
            turn=(turn := clip(row.turn, MOST_SEARCHED, "\n…\n")),
            tokens=counter.count(turn) if row.tokens else 0,
        )
        for row in rows
    ]


def finish_message_rows(
    rows: Sequence[MemoryRow],
    first: int,
    through: int,
    *,
    language: str,
    window_chars: int | None,
    embed: Callable[[Sequence[str]], Vector] | None,
) -> tuple[list[MemoryRow], Vector | None]:
    """The rows of messages `first`…`through`, as long-term memory has them, and their vectors.

    Args:
        rows: redacted; with those of neighbours, for the windows.
        first: number of the first message.
        through: number of the last.
        language: see `searchable_rows`.
        window_chars: most characters of a neighbour in a window; None to make no windows.
        embed: makes vectors; None to make none.
    """
    rows = searchable_rows(rows, language)
    if window_chars is not None:
        rows = with_windows(rows, window_chars)
    rows = [row for row in rows if first <= row.seq <= through]
    if embed is None:
        return rows, None
    return rows, embed([embedding_text(row) for row in rows])


def make_message_rows(
    key: SessionKey,
    entries: Sequence[Entry],
    first: int,
    through: int,
    counter: TokenCounter,
    **how: Any,
) -> tuple[list[MemoryRow], Vector | None]:
    """`finish_message_rows` of messages that nothing redacts."""
    rows = message_rows(key, entries, first, through, counter)
    return finish_message_rows(rows, first, through, **how)


def rows_of_sessions(
    parts: Sequence[SessionPart], counter: TokenCounter, language: str
) -> list[MemoryRow]:
    """The rows of messages of several sessions that nothing redacts, without windows."""
    rows: list[MemoryRow] = []
    for one in parts:
        entries = [entry for entry in one.entries if entry.seq not in one.pruned]
        if entries:
            first, last = entries[0].seq, entries[-1].seq
            rows += message_rows(one.key, entries, first, last, counter)
    return searchable_rows(rows, language)


def entry_row(key: SessionKey, entry: Summary, at_us: int) -> MemoryRow:
    """The row of a summary entry that left its list."""
    return _standalone_row(
        entry_id(key, entry.through),
        key.user,
        key.session,
        entry.text,
        dated_line(at_us, f"Summary: {entry.text}"),
        memory_type="summary",
        importance=0.5,
        created_us=at_us,
        tokens=entry.tokens,
    )


def _standalone_row(
    id_: str, user: str, session: str, content: str, turn: str, **rest: Any
) -> MemoryRow:
    """A row without neighbours and without a speaker, even if it names a session."""
    return MemoryRow(id_, user, session, 0, "system", "", content, turn, "", **rest)


def memory_row(user: str, item: MemoryItem) -> MemoryRow:
    """The row of a memory."""
    return _standalone_row(
        item.row_id,
        user,
        item.session,
        item.content,
        dated_line(item.created_us, item.content),
        memory_type=item.type,
        importance=item.importance,
        created_us=item.created_us,
        tokens=item.tokens,
        agent=item.agent,
    )


# -- before they are written ------------------------------------------------------------


def vectors_by_text(rows: Sequence[MemoryRow], vectors: Vector) -> dict[str, Vector]:
    """The vectors of rows, shape (rows, dimension), by the text that each was made of."""
    return dict(zip(map(embedding_text, rows), vectors, strict=True))


class KnownVectors:
    """Vectors of the embedder in use that need not be made again, by the text that was embedded."""

    def __init__(self) -> None:
        self._known: list[Mapping[str, Vector]] = []
        self._kept: OrderedDict[bytes, Vector] = OrderedDict()
        self._kept_bytes = 0

    def keep(self, texts: Sequence[str], vectors: Vector) -> None:
        """Keep vectors until their texts are embedded, or until there are too many.

        Args:
            texts: what was embedded.
            vectors: of the texts, shape (texts, dimension).
        """
        for text, vector in zip(texts, vectors, strict=True):
            key = _digest(text)
            if key not in self._kept:
                self._kept[key] = vector.copy()  # a view would keep its whole batch
                self._kept_bytes += vector.nbytes
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Drop all that is kept."""
        self._kept.clear()
        self._kept_bytes = 0

    @contextmanager
    def holding(self, vectors: Mapping[str, Vector]) -> Iterator[None]:
        """Know these vectors for a while, by their texts."""
        self._known.append(vectors)
        try:
            yield
        finally:
            self._known = [one for one in self._known if one is not vectors]

    async def embed(self, embedder: Embedder, texts: Sequence[str]) -> Vector:
        """Vectors of texts, shape (texts, dimension).

        Raises:
            ModelError: the embedder failed.
        """
        known = {text: one[text] for one in self._known for text in texts if text in one}
        for text in texts if self._kept else ():
            kept = self._kept.pop(_digest(text), None)
            if kept is not None:
                self._kept_bytes -= kept.nbytes
                known[text] = kept
        new = [text for text in texts if text not in known]
        if not known:
            return await embed_texts(embedder, new)
        if new:
            known.update(zip(new, await embed_texts(embedder, new), strict=True))
        import numpy as np  # noqa: PLC0415

        return np.stack([known[text] for text in texts])


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class IndexAccess(msgspec.Struct, frozen=True):
    """The access that jobs on rows of long-term memory share.

    Attributes:
        journal: has what is indexed.
        store: opens long-term memory at first use.
        embedder: None for text search only.
        redact: applied to every text before long-term memory has it.
        changed: called with the user whose rows changed or may have changed.
        removed: called with the user of whom rows were removed: nothing of them stays in memory.
        users: locks that exclude other writes of a user's rows during pruning.
        known: vectors that are not made again.
        language: of texts that do not show theirs, as an ISO 639-1 code.
    """

    journal: Journal
    store: Callable[[], Awaitable[LongTermStore]]
    embedder: Embedder | None
    redact: Callable[[str], str] | None
    changed: Callable[[str], None]
    removed: Callable[[str], None]
    users: SharedLocks
    known: KnownVectors = msgspec.field(default_factory=KnownVectors)
    language: str = "en"

    async def prepare(
        self, rows: Sequence[MemoryRow], *, redacted: bool = False
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """Redact rows, make their texts searchable, and embed them.

        Args:
            rows: the rows.
            redacted: both was done before.

        Returns:
            The rows, and their vectors, shape (rows, dimension); none without an embedder.

        Raises:
            RedactionFailed: the hook raised or returned no text.
            ModelError: the embedder failed.
        """
        if not redacted:
            if self.redact is not None:
                rows = [redact_row(row, self.redact) for row in rows]
            rows = with_windows(await self.make_searchable(rows), 0)
        if self.embedder is None:
            return rows, None
        texts = [embedding_text(row) for row in rows]
        return rows, await self.known.embed(self.embedder, texts)

    def redacted(
        self, rows: Sequence[MemoryRow], counter: TokenCounter
    ) -> tuple[list[MemoryRow], dict[int, RedactionFailed]]:
        """Rows of messages as the hook leaves them, and why it failed on others, by number."""
        if self.redact is None:
            return [*rows], {}
        kept, failed = [], {}
        for row in rows:
            try:
                kept.append(redact_row(row, self.redact))
            except RedactionFailed as e:
                failed[row.seq] = e
        return cut_long_rows(kept, counter), failed

    async def make_searchable(self, rows: Sequence[MemoryRow]) -> Sequence[MemoryRow]:
        """Redacted rows with the texts that are searched, by the language of each."""
        size = reading_size([row.turn for row in rows])
        large = len(rows) > _READ_ON_LOOP or size > _CHARACTERS
        return await run_in_thread_if(large, searchable_rows, rows, self.language)

    async def delete(self, user: str, ids: Sequence[str]) -> None:
        """Delete rows."""
        try:
            await (await self.store()).delete(user, ids)
        finally:
            self.removed(user)


def embedding_text(row: MemoryRow) -> str:
    """The text that is embedded; a message's speaker is part of it, worth 16 points of recall."""
    if row.memory_type != "message":
        return row.content
    return f"{row.speaker or row.role.title()}: {row.content}"


def redact_row(row: MemoryRow, redact: Callable[[str], str]) -> MemoryRow:
    """The row with all its texts redacted.

    Raises:
        RedactionFailed: the hook raised or returned no text.
    """
    texts = {name: redact_text(getattr(row, name), redact) for name in ("content", "turn")}
    return msgspec.structs.replace(row, **texts)


def searchable_rows(rows: Sequence[MemoryRow], language: str) -> list[MemoryRow]:
    """The rows with their searched texts as full-text search is to have them.

    A message that says "yesterday" has the date of that day, too.

    Args:
        rows: redacted: in stems a hook would not find what it removes.
        language: of texts that do not show theirs, as an ISO 639-1 code.
    """
    turns = search_texts([row.turn for row in rows], language)
    turns = [_with_named_days(turn, row) for turn, row in zip(turns, rows, strict=True)]
    return [
        row if turn == row.turn else msgspec.structs.replace(row, turn=turn)
        for row, turn in zip(rows, turns, strict=True)
    ]


def _with_named_days(turn: str, row: MemoryRow) -> str:
    """The line of a row, with the days that its message names behind the message's own date.

    A line whose date a hook has removed gets none.
    """
    head = dated_line(row.created_us, "")
    if row.memory_type != "message" or not turn.startswith(head):
        return turn
    days = name_days(row.content, row.created_us // _DAY_US)
    return turn.replace(")", f"; {days})", 1) if days else turn


async def embed_items(embedder: Embedder, items: Sequence[WorkingItem]) -> tuple[WorkingItem, ...]:
    """Items of working memory with vectors of `embedder`.

    Raises:
        ModelError: it failed.
    """
    vectors = await embed_texts(embedder, [item.text for item in items])
    return tuple(
        msgspec.structs.replace(item, vector=pack_vector(vector))
        for item, vector in zip(items, vectors, strict=True)
    )
