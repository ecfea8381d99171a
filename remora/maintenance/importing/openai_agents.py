"""The SQLite file of the OpenAI Agents SDK's ``SQLiteSession``.

Items become the messages that `remora.adapters.openai_agents.RemoraSession` makes of them, so an
agent goes on with an imported session. The SDK need not be installed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from remora.errors import InvalidInput
from remora.formats.agent_items import numbered_messages
from remora.maintenance.importing.files import Records, decode, open_sqlite
from remora.maintenance.importing.records import (
    Conversation,
    Found,
    Notes,
    Said,
    read_time,
    stable_id,
)

_ITEMS = "SELECT id, message_data, created_at FROM agent_messages WHERE session_id = ?"
_BRANCHES = "message_structure"  # of the SDK's AdvancedSQLiteSession
_OTHER_BRANCH = f"""id IN (SELECT message_id FROM {_BRANCHES} WHERE branch_id <> 'main')"""


class Raw(NamedTuple):
    """A session of a file."""

    database: sqlite3.Connection
    session: Any
    branches: bool


@contextmanager
def open_records(path: Path) -> Iterator[Records]:
    """The sessions of a file."""
    with open_sqlite(path, ["agent_sessions", "agent_messages"]) as database:
        found = database.execute("SELECT DISTINCT session_id FROM agent_messages").fetchall()
        named = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        branches = database.execute(named, (_BRANCHES,)).fetchone() is not None
        each = (
            (f"session {number}", Raw(database, session, branches))
            for number, (session,) in enumerate(found, start=1)
        )
        yield Records(each, len(found))


def translate(raw: Raw, notes: Notes) -> Iterator[Found]:
    """The session.

    Raises:
        InvalidInput: an item is no JSON object, or has no time.
    """
    where = f"NOT {_OTHER_BRANCH}" if raw.branches else "1"
    if raw.branches:
        count = "SELECT count(*) FROM agent_messages WHERE session_id = ? AND " + _OTHER_BRANCH
        if others := raw.database.execute(count, (raw.session,)).fetchone()[0]:
            notes.leave_out("item of another branch", count=others)
    query = f"{_ITEMS} AND {where} ORDER BY id"
    rows = raw.database.execute(query, (raw.session,)).fetchall()
    items: list[dict[str, Any]] = []
    for id_, data, _ in rows:
        try:
            items.append(decode(data if isinstance(data, bytes) else str(data).encode(), dict))
        except InvalidInput as e:
            raise InvalidInput(f"row {id_} of agent_messages: {e}") from e
    said = [
        Said(chat, at=read_time(rows[number][2], "created_at"))
        for number, chat in numbered_messages(items)
    ]
    yield Conversation(stable_id(raw.session, "session_id"), said)
