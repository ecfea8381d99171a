-- The tables of a journal in SQLite.
--
-- crc covers what never changes in a row (`remora.storage.rows.row_crc`). An actor's watermarks
-- change together, and have a checksum of their own. All numbers of messages are those in a session.

CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE actors (
    sid INTEGER PRIMARY KEY,
    user TEXT NOT NULL,
    session TEXT NOT NULL,                      -- empty: the user's own actor
    created_us INTEGER NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0,
    summarized INTEGER NOT NULL DEFAULT 0,      -- out of the buffer up to here
    summarizing INTEGER NOT NULL DEFAULT 0,     -- frozen up to here, and waiting for their summary
    flushing INTEGER NOT NULL DEFAULT 0,        -- in long-term memory or in a job for it up to here
    cleared INTEGER NOT NULL DEFAULT 0,
    flushed INTEGER NOT NULL DEFAULT 0,         -- in long-term memory up to here
    crc INTEGER,
    marks_crc INTEGER,
    -- gone from the journal up to here: two messages or more behind the front of the buffer, so
    -- that the transaction itself refuses to go back to messages that were trimmed meanwhile
    trimmed INTEGER NOT NULL DEFAULT 0 CHECK (trimmed = 0 OR trimmed + 2 <= summarized),
    used_us INTEGER NOT NULL DEFAULT 0,         -- written a while after the messages: sqlite/uses.py
    UNIQUE (user, session)
);
CREATE INDEX actors_by_use ON actors (user, used_us, session);
CREATE INDEX actors_by_any_use ON actors (used_us, user);

CREATE TABLE messages (
    pos INTEGER PRIMARY KEY,                    -- sid << 32 | number
    at_us INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    role INTEGER NOT NULL,
    epoch INTEGER NOT NULL,                     -- which ownership of the directory wrote it
    chat BLOB NOT NULL,                         -- the chat dict, msgpack
    meta BLOB,                                  -- the metadata dict, msgpack
    id TEXT,                                    -- the sender's own id, if it gave one
    key BLOB,                                   -- digest of the idempotency key, on the first message under it
    batch INTEGER,                              -- how many messages came under it
    importance REAL NOT NULL,                   -- 0 to 1
    removed INTEGER,                            -- deleted or rewound: the newest message's number at that time
    pruned INTEGER,                             -- 1: taken out of long-term memory, and not to be put back
    crc INTEGER
);
CREATE UNIQUE INDEX messages_by_key ON messages (pos >> 32, key) WHERE key IS NOT NULL;
CREATE INDEX messages_by_id ON messages (pos >> 32, id) WHERE id IS NOT NULL;
CREATE INDEX messages_removed ON messages (pos) WHERE removed IS NOT NULL;

CREATE TABLE summaries (                        -- each time that the front of a buffer moved or its summary changed
    number INTEGER PRIMARY KEY,
    sid INTEGER NOT NULL,
    at_seq INTEGER NOT NULL,                    -- the newest message's number at that time
    kind TEXT NOT NULL,                         -- summary, entry, dropped, cleared or restated
    generation INTEGER NOT NULL,
    first INTEGER NOT NULL,                     -- of a summary; where only the front moved, the last message that was cleared
    through INTEGER NOT NULL,
    prefix TEXT NOT NULL DEFAULT '',
    text TEXT NOT NULL DEFAULT '',
    tokens INTEGER NOT NULL DEFAULT 0,
    degraded INTEGER NOT NULL DEFAULT 0,
    model TEXT NOT NULL DEFAULT '',
    input_tokens INTEGER NOT NULL DEFAULT 0,
    crc INTEGER,
    cover BLOB                                  -- what a fallback holds and lost: `remora.storage.rows.FallbackCover`
);
CREATE INDEX summaries_by_session ON summaries (sid, generation);
CREATE INDEX summaries_with_losses ON summaries (sid) WHERE cover IS NOT NULL;

CREATE TABLE state_items (                      -- what an actor keeps beside messages: block states, working memory, profiles, grants …
    sid INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    crc INTEGER,
    PRIMARY KEY (sid, kind, name)
);

CREATE TABLE memories (                         -- what was recorded on purpose; long-term memory is an index over it
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    sid INTEGER NOT NULL,                       -- of the user's own actor
    session TEXT NOT NULL,
    agent TEXT NOT NULL,
    content TEXT NOT NULL,
    type TEXT NOT NULL,
    importance REAL NOT NULL,
    created_us INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    crc INTEGER,
    details BLOB                                -- key, metadata and the like: `remora.storage.rows.FactDetails`
);
CREATE INDEX memories_by_user ON memories (sid);
CREATE INDEX memories_by_time ON memories (sid, created_us, id);

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    queue TEXT NOT NULL,
    sid INTEGER NOT NULL,
    payload BLOB NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    not_before REAL NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '',
    crc INTEGER
);
CREATE INDEX jobs_by_session ON jobs (sid);

CREATE TABLE erasures (                         -- what is being forgotten and may still be in long-term memory, by digests alone
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    user_key TEXT NOT NULL,                     -- digests under each key in use, between spaces: erasure_notes.py
    session_key TEXT NOT NULL                   -- empty: all that is the user's
);

INSERT INTO settings VALUES ('commits', '0');
