-- The journal's tables in PostgreSQL: those of the journal in a file, with the same names.
--
-- Text that users, models or errors may have written is bytea in UTF-8: text cannot hold NUL. Names
-- of sessions and users, which cannot have it either, sort by their bytes. `remora` stands for the
-- schema.

CREATE TABLE remora.journal (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format int NOT NULL,
    epoch bigint NOT NULL,             -- how many owners there were so far
    commits bigint NOT NULL,           -- how many commits there were so far
    taken bigint NOT NULL DEFAULT 0,   -- the last commit number that was used up without rows
    instance text NOT NULL,
    last_sid bigint NOT NULL DEFAULT 0 -- the highest number of an actor that was erased
) WITH (fillfactor = 20);

CREATE TABLE remora.settings (name text COLLATE "C" PRIMARY KEY, value bytea NOT NULL);

CREATE TABLE remora.actors (
    sid bigint PRIMARY KEY,
    "user" text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL, -- empty: the user's own actor
    created_us bigint NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    summarized bigint NOT NULL DEFAULT 0,
    summarizing bigint NOT NULL DEFAULT 0,
    flushing bigint NOT NULL DEFAULT 0,
    cleared bigint NOT NULL DEFAULT 0,
    flushed bigint NOT NULL DEFAULT 0,
    trimmed bigint NOT NULL DEFAULT 0,
    crc bigint NOT NULL,
    marks_crc bigint,
    UNIQUE ("user", session),
    CHECK (trimmed = 0 OR trimmed + 2 <= summarized)
) WITH (fillfactor = 80);

CREATE TABLE remora.messages (
    pos bigint PRIMARY KEY,            -- sid << 32 | seq
    at_us bigint NOT NULL,
    tokens bigint NOT NULL,
    role smallint NOT NULL,
    epoch bigint NOT NULL,             -- which owner wrote it
    chat bytea NOT NULL,               -- the chat dict, msgpack
    meta bytea,                        -- the metadata dict, msgpack
    id text COLLATE "C",
    key bytea,                         -- digest of the idempotency key, on the first message under it
    batch bigint,                      -- how many messages came under it
    importance float8 NOT NULL,
    crc bigint NOT NULL,
    removed bigint,                    -- deleted or rewound: the newest message's number at that time
    pruned smallint                    -- 1: taken out of long-term memory, and not to be put back
);
CREATE UNIQUE INDEX messages_by_key ON remora.messages ((pos >> 32), key) WHERE key IS NOT NULL;
CREATE INDEX messages_by_id ON remora.messages ((pos >> 32), id) WHERE id IS NOT NULL;
CREATE INDEX messages_removed ON remora.messages (pos) WHERE removed IS NOT NULL;

CREATE TABLE remora.summaries (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sid bigint NOT NULL,
    at_seq bigint NOT NULL,
    kind text NOT NULL,                -- summary, entry, dropped, cleared or restated
    generation bigint NOT NULL,
    first bigint NOT NULL,
    through bigint NOT NULL,
    prefix bytea NOT NULL,
    text bytea NOT NULL,
    tokens bigint NOT NULL,
    degraded smallint NOT NULL,
    model bytea NOT NULL,
    input_tokens bigint NOT NULL,
    cover bytea,
    crc bigint                         -- NULL: the summary lost its text
);
CREATE INDEX summaries_by_session ON remora.summaries (sid, generation);
CREATE INDEX summaries_with_losses ON remora.summaries (sid) WHERE cover IS NOT NULL;

CREATE TABLE remora.state_items (
    number bigint GENERATED ALWAYS AS IDENTITY,
    sid bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name bytea NOT NULL,
    value bytea NOT NULL,
    crc bigint NOT NULL,
    PRIMARY KEY (sid, kind, name)
);

CREATE TABLE remora.memories (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    sid bigint NOT NULL,
    session text COLLATE "C" NOT NULL,
    agent bytea NOT NULL,
    content bytea NOT NULL,
    type bytea NOT NULL,
    importance float8 NOT NULL,
    created_us bigint NOT NULL,
    tokens bigint NOT NULL,
    details bytea,
    crc bigint NOT NULL
);
CREATE INDEX memories_by_time ON remora.memories (sid, created_us, id);

CREATE TABLE remora.jobs (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    queue text NOT NULL,
    sid bigint NOT NULL,
    payload bytea NOT NULL,
    attempts bigint NOT NULL DEFAULT 0,
    not_before float8 NOT NULL DEFAULT 0,
    dead smallint NOT NULL DEFAULT 0,
    error bytea NOT NULL DEFAULT '',
    crc bigint NOT NULL
);
CREATE INDEX jobs_by_session ON remora.jobs (sid);

CREATE TABLE remora.erasures (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_key text NOT NULL,
    session_key text NOT NULL
);
CREATE TABLE remora.erased (sid bigint PRIMARY KEY); -- actors whose messages are still to be deleted

-- A row of its own: a renewal waits for no commit. It has the epoch of remora.journal.
CREATE TABLE remora.lease (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    owner text NOT NULL,
    address text NOT NULL,              -- where the owner takes connections; empty: nowhere
    since timestamptz NOT NULL,
    seconds float8 NOT NULL,            -- how long a renewal lasts
    until timestamptz NOT NULL          -- -infinity: it was given back, or never was
) WITH (fillfactor = 20);

CREATE TABLE remora.attachments (
    owner text NOT NULL,               -- a digest of the user's id
    digest bytea NOT NULL,             -- SHA-256 of the data
    data bytea NOT NULL,
    PRIMARY KEY (owner, digest)
);
ALTER TABLE remora.attachments ALTER COLUMN data SET STORAGE EXTERNAL; -- pictures are compressed

-- what a new journal begins with
INSERT INTO remora.journal (format, epoch, commits, instance)
VALUES (0, 0, 0, substr(md5(random()::text || clock_timestamp()::text), 1, 6));
INSERT INTO remora.lease (epoch, owner, address, since, seconds, until)
VALUES (0, '', '', clock_timestamp(), 0, '-infinity');
