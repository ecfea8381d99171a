"""The journal's schema, as numbered migrations.

`PRAGMA user_version` holds the number of the last one applied.
"""

from __future__ import annotations

APPLICATION_ID = 0x52454D4F
"""``REMO``: tells a remora journal from any other SQLite file."""

_V1 = """
CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE actors (
    sid INTEGER PRIMARY KEY,
    user TEXT NOT NULL,
    session TEXT NOT NULL,        -- empty: the user's own actor
    created_us INTEGER NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0,
    summarized INTEGER NOT NULL DEFAULT 0,
    folding INTEGER NOT NULL DEFAULT 0,
    flushing INTEGER NOT NULL DEFAULT 0,
    cleared INTEGER NOT NULL DEFAULT 0,
    flushed INTEGER NOT NULL DEFAULT 0,
    UNIQUE (user, session)
);

CREATE TABLE messages (
    pos INTEGER PRIMARY KEY,      -- sid << 32 | seq
    at_us INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    role INTEGER NOT NULL,
    epoch INTEGER NOT NULL,       -- which ownership of the directory wrote it
    chat BLOB NOT NULL,           -- the chat dict, msgpack
    meta BLOB,                    -- the metadata dict, msgpack
    id TEXT,                      -- the sender's own id, if it gave one
    key BLOB,                     -- digest of the idempotency key, on the first message that came under it
    batch INTEGER,                -- how many messages came under it
    importance REAL NOT NULL,     -- 0 to 1
    removed INTEGER,              -- deleted or rewound: the newest message's number at that time
    pruned INTEGER                -- 1: taken out of long-term memory, and not to be put back
);
CREATE UNIQUE INDEX messages_by_key ON messages (pos >> 32, key) WHERE key IS NOT NULL;
CREATE INDEX messages_by_id ON messages (pos >> 32, id) WHERE id IS NOT NULL;

CREATE TABLE folds (              -- each time that the front of a buffer moved or its summary changed
    number INTEGER PRIMARY KEY,
    sid INTEGER NOT NULL,
    at_seq INTEGER NOT NULL,      -- the newest message's number at that time
    kind TEXT NOT NULL,           -- summary, entry, dropped, cleared or restated
    generation INTEGER NOT NULL,
    first INTEGER NOT NULL,       -- of a summary; where only the front moved, the last message that was cleared
    through INTEGER NOT NULL,
    prefix TEXT NOT NULL DEFAULT '',
    text TEXT NOT NULL DEFAULT '',
    tokens INTEGER NOT NULL DEFAULT 0,
    degraded INTEGER NOT NULL DEFAULT 0,
    model TEXT NOT NULL DEFAULT '',
    input_tokens INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX folds_by_session ON folds (sid, generation);

CREATE TABLE facets (             -- what an actor keeps beside messages: block states, working memory, synopses, grants …
    sid INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (sid, kind, name)
);

CREATE TABLE memories (           -- what was recorded on purpose; long-term memory is an index over it
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    sid INTEGER NOT NULL,         -- of the user's own actor
    session TEXT NOT NULL,
    agent TEXT NOT NULL,
    content TEXT NOT NULL,
    type TEXT NOT NULL,
    importance REAL NOT NULL,
    created_us INTEGER NOT NULL,
    tokens INTEGER NOT NULL
);
CREATE INDEX memories_by_user ON memories (sid);

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    lane TEXT NOT NULL,
    sid INTEGER NOT NULL,
    payload BLOB NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    not_before REAL NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX jobs_by_session ON jobs (sid);
"""  # noqa: E501

# A checksum (`remora.storage.rows.row_crc`) covers what never changes in a row; older rows
# have none. An actor's watermarks change together, and have a checksum of their own. `trimmed` is
# always `NEIGHBOURS` or more behind the front of the buffer: going back to messages that were
# trimmed in the meantime is refused by the transaction itself. A note of an erasure holds digests
# under each key in use, between spaces (`remora.storage.erasure_notes`).
_V2 = """
ALTER TABLE actors ADD COLUMN crc INTEGER;
ALTER TABLE actors ADD COLUMN marks_crc INTEGER;
ALTER TABLE actors ADD COLUMN trimmed INTEGER NOT NULL DEFAULT 0 CHECK (trimmed = 0 OR trimmed + 2 <= summarized);
ALTER TABLE messages ADD COLUMN crc INTEGER;
ALTER TABLE folds ADD COLUMN crc INTEGER;
ALTER TABLE facets ADD COLUMN crc INTEGER;
ALTER TABLE memories ADD COLUMN crc INTEGER;
ALTER TABLE jobs ADD COLUMN crc INTEGER;

CREATE TABLE erasures (           -- what is being forgotten and may still be in long-term memory, by digests alone
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    user_key TEXT NOT NULL,
    session_key TEXT NOT NULL     -- empty: all that is the user's
);

INSERT INTO settings VALUES ('commits', '0');
"""  # noqa: E501

# What a fallback summary holds and what it lost (`remora.storage.rows.FallbackCover`); NULL
# for a summary by a model without losses, and in older rows. The index finds sessions with losses.
_V3 = """
ALTER TABLE folds ADD COLUMN cover BLOB;
CREATE INDEX folds_with_losses ON folds (sid) WHERE cover IS NOT NULL;
"""

# For listings: when a session was last used, written a while after its messages
# (`remora.storage.sqlite.uses`), and the removed messages, which are not counted.
# For memories: key, metadata and the like (`remora.storage.rows.MemoryDetails`); NULL where
# a memory has none of them, and in older rows.
_V4 = """
ALTER TABLE actors ADD COLUMN used_us INTEGER NOT NULL DEFAULT 0;
CREATE INDEX actors_by_use ON actors (user, used_us, session);
CREATE INDEX actors_by_any_use ON actors (used_us, user);
CREATE INDEX messages_removed ON messages (pos) WHERE removed IS NOT NULL;
ALTER TABLE memories ADD COLUMN details BLOB;
CREATE INDEX memories_by_time ON memories (sid, created_us, id);
"""

MIGRATIONS: tuple[str, ...] = (_V1, _V2, _V3, _V4)
FORMAT = len(MIGRATIONS)
"""The newest format that this remora reads and writes."""
