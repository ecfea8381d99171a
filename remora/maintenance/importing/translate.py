"""Translation of a foreign file into an export, which `remora.maintenance.import_` imports.

Each record is checked as the import will check it, so a broken one is named by its place in the
foreign file, and nothing is written before the last is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from remora.actors.policies.scoring import NEUTRAL_SCORE
from remora.errors import InvalidInput, RemoraError, StorageError
from remora.ids import memory_id, validate_id
from remora.maintenance.import_ import check_session, check_user
from remora.maintenance.importing import (
    chatgpt,
    claude,
    langgraph,
    letta,
    mem0,
    openai_agents,
    sharegpt,
    zep,
)
from remora.maintenance.importing.files import Records
from remora.maintenance.importing.records import (
    Conversation,
    Found,
    LeftOut,
    Notes,
    Remembered,
    Said,
    shown,
)
from remora.services.metadata import check_metadata
from remora.services.parts import TransferParts
from remora.storage.export.jsonl import JsonlWriter
from remora.storage.export.transfer import (
    FORMAT,
    ExportHeader,
    MessageExport,
    SessionExport,
    UserExport,
)
from remora.storage.keyed_values import KeyedValue, keyed_item
from remora.storage.records import MemoryItem, StateItem

_MAX_NAMED = 20  # broken records that a report names
_MEMORIES_AT_ONCE = 10_000
_MAX_REASON = 300
_MAX_TITLE = 300  # characters
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Source(msgspec.Struct, frozen=True):
    """A product whose files can be imported.

    Attributes:
        name: of ``--from``.
        description: the files, in words.
        open: the records of a file.
        translate: what a record becomes; what cannot be carried over is noted.
    """

    name: str
    description: str
    open: Callable[[Path], AbstractContextManager[Records]]
    translate: Callable[[Any, Notes], Iterator[Found]]


SOURCES = {
    name: Source(name, description, module.open_records, module.translate)
    for name, description, module in (
        ("chatgpt", "ChatGPT's export: the zip, or conversations.json", chatgpt),
        ("claude", "Claude's export: the zip, or conversations.json", claude),
        ("sharegpt", "a data set of conversations, JSON or JSON lines", sharegpt),
        ("openai-agents", "the SQLite file of the Agents SDK's SQLiteSession", openai_agents),
        ("langgraph", "the SQLite file of LangGraph's SqliteSaver", langgraph),
        ("mem0", "the memories that mem0's get_all or export answers", mem0),
        ("letta", "an agent file (.af), or an agent's messages", letta),
        ("zep", "sessions or threads, messages and facts", zep),
    )
}
"""The products whose files can be imported, by the name for ``--from``."""


class Broken(msgspec.Struct, frozen=True):
    """A record that cannot be imported: its place in the file, and why."""

    place: str
    reason: str


class Translation(msgspec.Struct):
    """The content of a foreign file: how much is imported, and what is not.

    Attributes:
        sessions: how many there are.
        messages: of these.
        memories: how many there are.
        users: that have memories.
        left_out: what cannot be carried over, by reason.
        broken: how many records cannot be imported.
        named: the first of them.
    """

    sessions: int = 0
    messages: int = 0
    memories: int = 0
    users: int = 0
    left_out: dict[str, LeftOut] = {}
    broken: int = 0
    named: list[Broken] = []


def translate(
    source: Source,
    path: Path,
    dest: Path,
    target: TransferParts,
    *,
    user: str = "",
    skip_broken: bool = False,
    now: datetime | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Translation:
    """Write what is in a foreign file as an export. Blocks.

    Args:
        source: the product that wrote it.
        path: of the file.
        dest: of the export, which must not exist.
        target: of a runtime with the configuration of the one that will import it.
        user: whose memory it becomes, where the file does not say it.
        skip_broken: leave broken records out, and count them.
        now: the time of messages, if the file has none; the present by default.
        progress: called with the number of records that are done, and how many there are.

    Raises:
        InvalidInput: the file cannot be read, a record is broken and `skip_broken` is false, or the
            file does not say whose it is, and `user` neither.
        InvalidId: `user` is no user id.
        StorageError: the export cannot be written.
    """
    if user:
        validate_id(user, "a user id")
    now = now or datetime.now(UTC)
    header = ExportHeader(FORMAT, "", now, "", "")
    with source.open(path) as records:
        writer = JsonlWriter(dest, header)
        try:
            made = _Writing(writer, target, user, now)
            for number, (place, raw) in enumerate(records.each, start=1):
                try:
                    made.take(source, place, raw)
                except _NOT_IMPORTABLE as e:
                    broken = Broken(place, _reason(e))
                    if not skip_broken:
                        raise InvalidInput(
                            f"{place} of {path.name} cannot be imported: {broken.reason}; nothing "
                            "was written; --skip-broken leaves out what is broken"
                        ) from e
                    made.note_broken(broken)
                except _NoUserError as e:
                    raise InvalidInput(
                        f"{place} of {path.name} does not say whose it is: name the user with "
                        "--user; nothing was written"
                    ) from e
                if progress is not None:
                    progress(number, records.total)
            made.finish()
            writer.close()
        except OSError as e:
            raise StorageError(
                f"the translation of {path.name} cannot be written to {dest.parent} "
                f"({e.strerror or e}): make room there, or name another place in TMPDIR; nothing "
                "was imported"
            ) from e
        finally:
            writer.abandon()
    return made.report


_NOT_IMPORTABLE = (
    RemoraError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What a record of another shape raises."""


class _NoUserError(Exception):
    """A record does not say whose it is."""


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    if isinstance(error, (RemoraError, ValueError, OverflowError)):
        text = str(error)
        line = "".join(one if one.isprintable() else " " for one in text[:_MAX_REASON])
        return line if len(text) <= _MAX_REASON else f"{line}…"
    return f"it has another shape ({type(error).__name__}: {shown(str(error))})"


class _Writing:
    """Writes records as an export, sessions as they come, memories in large groups."""

    def __init__(
        self, writer: JsonlWriter, target: TransferParts, user: str, now: datetime
    ) -> None:
        self.report = Translation()
        self._writer = writer
        self._target = target
        self._user = user
        self._now = now
        self._notes = Notes()
        self._users: set[str] = set()
        self._places: dict[tuple[str, str], str] = {}
        self._memories: dict[str, dict[str, MemoryItem]] = {}
        self._held = 0

    def take(self, source: Source, place: str, raw: object) -> None:
        """Translate, check and write a record: all of it, or nothing."""
        notes = Notes()
        sessions, memories = [], []
        for found in source.translate(raw, notes):
            owner = found.user or self._user
            if not owner:
                raise _NoUserError
            validate_id(owner, "a user id")
            if isinstance(found, Remembered):
                memories.append((owner, _memory(found, owner, self._now)))
            elif found.messages:
                sessions.append(self._session(found, owner, notes))
            else:
                notes.leave_out("conversation without messages")
        for owner, memory in memories:
            check_user(UserExport(owner, (memory,), ()), self._target)
        self._writer.write(sessions)
        for session in sessions:
            self._places[session.user, session.session] = place
            self.report.sessions += 1
            self.report.messages += len(session.messages)
        for owner, memory in memories:
            self._remember(owner, memory, notes)
        self._notes.add(notes)

    def _session(self, found: Conversation, owner: str, notes: Notes) -> SessionExport:
        if (before := self._places.get((owner, found.id))) is not None:
            raise InvalidInput(f"it has the id of {before}")
        session = _export(found, owner, self._now, notes)
        return check_session(session, self._target.intake)

    def _remember(self, owner: str, memory: MemoryItem, notes: Notes) -> None:
        held = self._memories.setdefault(owner, {})
        if memory.id in held:
            notes.leave_out("memory with the text of another")
            return
        held[memory.id] = memory
        self._users.add(owner)
        self._held += 1
        self.report.memories += 1
        if self._held >= _MEMORIES_AT_ONCE:
            self._write_memories()

    def _write_memories(self) -> None:
        self._writer.write(
            [UserExport(user, tuple(held.values()), ()) for user, held in self._memories.items()]
        )
        self._memories.clear()
        self._held = 0

    def note_broken(self, broken: Broken) -> None:
        """Count a record that is left out."""
        self.report.broken += 1
        if len(self.report.named) < _MAX_NAMED:
            self.report.named.append(broken)

    def finish(self) -> None:
        """Write what is held, and complete the report."""
        self._write_memories()
        self.report.users = len(self._users)
        self.report.left_out = self._notes.left_out


def _export(found: Conversation, owner: str, now: datetime, notes: Notes) -> SessionExport:
    messages: list[MessageExport] = []
    ids: set[str] = set()
    untimed = sum(one.at is None for one in found.messages)
    at = next((one.at for one in found.messages if one.at is not None), now)
    if untimed == len(found.messages):
        notes.leave_out("time of a message, which the file does not have", count=untimed)
    for seq, said in enumerate(found.messages, start=1):
        at = said.at or at
        id_ = _message_id(said, seq, ids)
        ids.add(id_)
        metadata = said.chat.pop("metadata", None)
        messages.append(MessageExport(seq, id_, at, 0, NEUTRAL_SCORE, said.chat, metadata))
    state: tuple[StateItem, ...] = ()
    if title := found.title.strip()[:_MAX_TITLE]:
        at_us = max((messages[0].created_at - _EPOCH) // _MICROSECOND, 0)
        state = (keyed_item("title", KeyedValue(1, at_us, msgspec.json.encode(title))),)
    return SessionExport(owner, found.id, tuple(messages), 0, len(messages), None, (), state)


def _message_id(said: Said, seq: int, taken: set[str]) -> str:
    """The foreign id, or the message's number where that cannot be one, or is another's."""
    if said.id and said.id not in taken and said.id.isprintable() and len(said.id) <= 100:
        return said.id
    id_ = f"imported-{seq}"
    while id_ in taken:
        id_ += "-"
    return id_


def _memory(found: Remembered, owner: str, now: datetime) -> MemoryItem:
    return MemoryItem(
        memory_id(owner, found.agent, found.text),
        found.session,
        found.agent,
        found.text,
        found.type,
        0.5,
        ((found.at or now) - _EPOCH) // _MICROSECOND,
        0,
        metadata=check_metadata(found.metadata),
    )
