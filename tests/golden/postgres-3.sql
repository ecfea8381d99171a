-- A journal of format 3, with attachments: that of formats 1 and 2, migrated; pg_dump --schema golden --inserts

SET check_function_bodies = false;

CREATE SCHEMA golden;

CREATE TABLE golden.journal (
    one boolean DEFAULT true NOT NULL,
    format integer NOT NULL,
    epoch bigint NOT NULL,
    commits bigint NOT NULL,
    taken bigint DEFAULT 0 NOT NULL,
    instance text NOT NULL,
    last_sid bigint DEFAULT 0 NOT NULL,
    owner text DEFAULT ''::text NOT NULL,
    claimed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT journal_one_check CHECK (one)
)
WITH (fillfactor='20');

CREATE FUNCTION golden.claim(p_owner text, p_address text, p_seconds double precision) RETURNS golden.journal
    LANGUAGE plpgsql
    AS $$
DECLARE
    j golden.journal%ROWTYPE;
BEGIN
    PERFORM 1 FROM golden.lease AS l WHERE l.until = '-infinity' OR clock_timestamp() > greatest(
        l.until, pg_postmaster_start_time() + l.seconds * interval '1 second') FOR UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    UPDATE golden.journal AS k SET epoch = k.epoch + 1, owner = p_owner,
        claimed_at = clock_timestamp(), last_sid = greatest(k.last_sid,
        (SELECT coalesce(max(sid), 0) FROM golden.actors)) RETURNING * INTO j;
    UPDATE golden.lease SET epoch = j.epoch, owner = p_owner, address = p_address,
        since = j.claimed_at, seconds = p_seconds, until = CASE WHEN p_seconds > 0
        THEN clock_timestamp() + p_seconds * interval '1 second' ELSE '-infinity' END;
    RETURN j;
END $$;

CREATE FUNCTION golden.commit(e bigint, n bigint, p_pos bigint[], p_at_us bigint[], p_tokens bigint[], p_role smallint[], p_chat bytea[], p_meta bytea[], p_id text[], p_key bytea[], p_batch bigint[], p_importance double precision[], p_crc bigint[], kinds text[], rows text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    r json;
BEGIN
    PERFORM golden.fence(e, n);
    IF cardinality(p_pos) > 0 THEN
        INSERT INTO golden.messages (pos, at_us, tokens, role, epoch, chat, meta, id, key, batch,
            importance, crc)
        SELECT u.pos, u.at_us, u.tokens, u.role, e, u.chat, u.meta, u.id, u.key, u.batch,
            u.importance, u.crc
        FROM unnest(p_pos, p_at_us, p_tokens, p_role, p_chat, p_meta, p_id, p_key, p_batch,
            p_importance, p_crc)
            AS u (pos, at_us, tokens, role, chat, meta, id, key, batch, importance, crc);
    END IF;
    FOR i IN 1 .. cardinality(kinds) LOOP
        r := rows[i]::json;
        CASE kinds[i]
        WHEN 'insert_actor' THEN
            INSERT INTO golden.actors (sid, "user", session, created_us, crc)
            SELECT (v ->> 0)::bigint, v ->> 1, v ->> 2, (v ->> 3)::bigint, (v ->> 4)::bigint
            FROM json_array_elements(r) AS v;
        WHEN 'remove_message' THEN
            UPDATE golden.messages AS m SET removed = (v ->> 0)::bigint
            FROM json_array_elements(r) AS v
            WHERE m.pos = (v ->> 1)::bigint AND m.removed IS NULL;
        WHEN 'change_message' THEN
            UPDATE golden.messages AS m SET tokens = (v ->> 0)::bigint,
                chat = decode(v ->> 1, 'hex'), meta = decode(v ->> 2, 'hex'),
                importance = (v ->> 3)::float8, crc = (v ->> 4)::bigint
            FROM json_array_elements(r) AS v WHERE m.pos = (v ->> 5)::bigint;
        WHEN 'erase_summaries' THEN
            UPDATE golden.folds AS f SET text = '', tokens = 0, degraded = 1, model = 'none',
                cover = NULL, crc = NULL
            FROM json_array_elements(r) AS v
            WHERE f.sid = (v ->> 0)::bigint AND f.generation < (v ->> 1)::bigint
                AND f.kind IN ('summary', 'entry') AND EXISTS (
                    SELECT 1 FROM json_array_elements_text((v ->> 2)::json) AS w (seq)
                    WHERE w.seq::bigint BETWEEN f.first AND f.through);
        WHEN 'prune_message' THEN
            UPDATE golden.messages AS m SET pruned = 1
            FROM json_array_elements(r) AS v, golden.actors AS s
            WHERE s.user = v ->> 0 AND s.session = v ->> 1
                AND m.pos = (s.sid << 32) + (v ->> 2)::bigint;
        WHEN 'prune_entry' THEN
            DELETE FROM golden.facets AS x USING json_array_elements(r) AS v, golden.actors AS s
            WHERE s.user = v ->> 0 AND s.session = v ->> 1 AND x.sid = s.sid
                AND x.kind = 'entry' AND x.name = decode(v ->> 2, 'hex');
        WHEN 'update_watermarks' THEN
            UPDATE golden.actors AS s SET generation = (v ->> 0)::bigint,
                summarized = (v ->> 1)::bigint, folding = (v ->> 2)::bigint,
                flushing = (v ->> 3)::bigint, cleared = (v ->> 4)::bigint,
                marks_crc = (v ->> 5)::bigint
            FROM json_array_elements(r) AS v WHERE s.sid = (v ->> 6)::bigint;
        WHEN 'insert_front' THEN
            INSERT INTO golden.folds (sid, at_seq, kind, generation, first, through, prefix, text,
                tokens, degraded, model, input_tokens, cover, crc)
            SELECT (v ->> 0)::bigint, (v ->> 1)::bigint, v ->> 2, (v ->> 3)::bigint,
                (v ->> 4)::bigint, (v ->> 5)::bigint, decode(v ->> 6, 'hex'),
                decode(v ->> 7, 'hex'), (v ->> 8)::bigint, (v ->> 9)::smallint,
                decode(v ->> 10, 'hex'), (v ->> 11)::bigint, decode(v ->> 12, 'hex'),
                (v ->> 13)::bigint
            FROM json_array_elements(r) AS v;
        WHEN 'update_indexed' THEN
            UPDATE golden.actors AS s SET flushed = greatest(s.flushed, w.through)
            FROM (SELECT (v ->> 1)::bigint AS sid, max((v ->> 0)::bigint) AS through
                FROM json_array_elements(r) AS v GROUP BY 1) AS w WHERE s.sid = w.sid;
        WHEN 'insert_job' THEN
            INSERT INTO golden.jobs (id, lane, sid, payload, crc)
            SELECT v ->> 0, v ->> 1, (v ->> 2)::bigint, decode(v ->> 3, 'hex'), (v ->> 4)::bigint
            FROM json_array_elements(r) AS v;
        WHEN 'advance_job' THEN
            UPDATE golden.jobs AS j SET payload = decode(v ->> 0, 'hex'), crc = (v ->> 1)::bigint
            FROM json_array_elements(r) AS v WHERE j.id = v ->> 2;
        WHEN 'retry_job' THEN
            UPDATE golden.jobs AS j SET attempts = (v ->> 0)::bigint,
                not_before = (v ->> 1)::float8, error = decode(v ->> 2, 'hex')
            FROM json_array_elements(r) AS v WHERE j.id = v ->> 3;
        WHEN 'dead_letter_job' THEN
            UPDATE golden.jobs AS j SET attempts = (v ->> 0)::bigint,
                error = decode(v ->> 1, 'hex'), dead = 1
            FROM json_array_elements(r) AS v WHERE j.id = v ->> 2;
        WHEN 'retry_dead_letter' THEN
            UPDATE golden.jobs AS j SET attempts = 0, not_before = 0, dead = 0
            FROM json_array_elements(r) AS v WHERE j.id = v ->> 0 AND j.dead = 1;
        WHEN 'delete_job' THEN
            DELETE FROM golden.jobs AS j USING json_array_elements(r) AS v WHERE j.id = v ->> 0;
        WHEN 'drop_state_item' THEN
            DELETE FROM golden.facets AS x USING json_array_elements(r) AS v
            WHERE x.sid = (v ->> 0)::bigint AND x.kind = v ->> 1
                AND x.name = decode(v ->> 2, 'hex');
        WHEN 'put_state_item' THEN
            INSERT INTO golden.facets (sid, kind, name, value, crc)
            SELECT (v ->> 0)::bigint, v ->> 1, decode(v ->> 2, 'hex'), decode(v ->> 3, 'hex'),
                (v ->> 4)::bigint
            FROM json_array_elements(r) AS v
            ON CONFLICT (sid, kind, name)
            DO UPDATE SET value = excluded.value, crc = excluded.crc;
        WHEN 'delete_memory' THEN
            DELETE FROM golden.memories AS m USING json_array_elements(r) AS v
            WHERE m.id = v ->> 0;
        WHEN 'insert_memory', 'put_memory' THEN
            INSERT INTO golden.memories AS m (id, sid, session, agent, content, type, importance,
                created_us, tokens, details, crc)
            SELECT v ->> 0, (v ->> 1)::bigint, v ->> 2, decode(v ->> 3, 'hex'),
                decode(v ->> 4, 'hex'), decode(v ->> 5, 'hex'), (v ->> 6)::float8,
                (v ->> 7)::bigint, (v ->> 8)::bigint, decode(v ->> 9, 'hex'), (v ->> 10)::bigint
            FROM json_array_elements(r) AS v
            ON CONFLICT (id) DO UPDATE SET content = excluded.content,
                importance = excluded.importance, tokens = excluded.tokens,
                details = excluded.details, crc = excluded.crc, session = excluded.session,
                type = excluded.type, created_us = excluded.created_us
            WHERE kinds[i] = 'put_memory';
        END CASE;
    END LOOP;
END $$;

CREATE FUNCTION golden.delete_messages(e bigint, n bigint, most bigint, most_actors bigint) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    chosen bigint[]; gone bigint;
BEGIN
    PERFORM golden.fence(e, n);
    chosen := ARRAY(SELECT w.sid FROM golden.erased AS w ORDER BY w.sid LIMIT most_actors);
    DELETE FROM golden.messages AS m WHERE m.pos IN (
        SELECT d.pos FROM unnest(chosen) AS w (sid)
        JOIN golden.messages AS d ON d.pos BETWEEN w.sid << 32 AND ((w.sid + 1) << 32) - 1
        LIMIT most);
    GET DIAGNOSTICS gone = ROW_COUNT;
    IF gone < most THEN
        DELETE FROM golden.erased AS w WHERE w.sid = ANY(chosen);
    END IF;
    RETURN ARRAY[gone, (SELECT count(*) FROM (SELECT 1 FROM golden.erased LIMIT 1) AS w)];
END $$;

CREATE FUNCTION golden.erase(e bigint, n bigint, sids bigint[], own bigint, p_session text, kinds text[], names bytea[], removed_error bytea, user_keys text, session_keys text) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    c bigint; note bigint; actors bigint; folds bigint; facets bigint; memories bigint; jobs bigint;
BEGIN
    PERFORM golden.fence(e, n);
    UPDATE golden.journal
    SET last_sid = greatest(last_sid, (SELECT coalesce(max(sid), 0) FROM golden.actors));
    DELETE FROM golden.facets AS x USING unnest(kinds, names) AS u (kind, name)
    WHERE x.sid = own AND x.kind = u.kind AND x.name = u.name;
    GET DIAGNOSTICS facets = ROW_COUNT;
    DELETE FROM golden.memories AS m WHERE m.sid = own AND m.session = p_session;
    GET DIAGNOSTICS memories = ROW_COUNT;
    UPDATE golden.jobs AS j SET error = removed_error WHERE j.sid = own AND j.error <> '';
    DELETE FROM golden.folds AS f WHERE f.sid = ANY(sids);
    GET DIAGNOSTICS folds = ROW_COUNT;
    DELETE FROM golden.facets AS x WHERE x.sid = ANY(sids);
    GET DIAGNOSTICS c = ROW_COUNT;
    facets := facets + c;
    DELETE FROM golden.memories AS m WHERE m.sid = ANY(sids);
    GET DIAGNOSTICS c = ROW_COUNT;
    memories := memories + c;
    DELETE FROM golden.jobs AS j WHERE j.sid = ANY(sids);
    GET DIAGNOSTICS jobs = ROW_COUNT;
    DELETE FROM golden.actors AS s WHERE s.sid = ANY(sids);
    GET DIAGNOSTICS actors = ROW_COUNT;
    INSERT INTO golden.erased SELECT unnest(sids) ON CONFLICT DO NOTHING;
    INSERT INTO golden.erasures AS w (user_key, session_key) VALUES (user_keys, session_keys)
    RETURNING w.number INTO note;
    RETURN ARRAY[note, actors, folds, facets, memories, jobs];
END $$;

CREATE FUNCTION golden.fence(e bigint, n bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE golden.journal SET commits = n WHERE epoch = e AND commits = n - 1;
    IF FOUND THEN RETURN; END IF;
    PERFORM 1 FROM golden.journal WHERE epoch = e;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another owner has this journal' USING errcode = 'RM001';
    END IF;
    RAISE EXCEPTION 'commit % is not the next one', n USING errcode = 'RM002';
END $$;

CREATE FUNCTION golden.finish_erasure(e bigint, n bigint, note bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM golden.fence(e, n);
    DELETE FROM golden.erasures AS w WHERE w.number = note;
END $$;

CREATE FUNCTION golden.release(e bigint) RETURNS void
    LANGUAGE sql
    AS $$
    UPDATE golden.lease SET until = '-infinity' WHERE epoch = e
$$;

CREATE FUNCTION golden.renew(e bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE golden.lease SET until = clock_timestamp() + seconds * interval '1 second'
    WHERE epoch = e;
    RETURN FOUND;
END $$;

CREATE FUNCTION golden.set_settings(e bigint, n bigint, names text[], contents bytea[], only_new boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM golden.fence(e, n);
    INSERT INTO golden.settings AS s (name, value) SELECT u.* FROM unnest(names, contents) AS u
    ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE NOT only_new;
END $$;

CREATE FUNCTION golden.take(e bigint, n bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE j golden.journal%ROWTYPE;
BEGIN
    UPDATE golden.journal SET commits = n, taken = n WHERE epoch = e AND commits = n - 1;
    IF FOUND THEN RETURN false; END IF;
    SELECT * INTO j FROM golden.journal;
    IF j.epoch IS DISTINCT FROM e THEN
        RAISE EXCEPTION 'another owner has this journal' USING errcode = 'RM001';
    ELSIF j.commits <> n THEN
        RAISE EXCEPTION 'commit % is not the next one', n USING errcode = 'RM002';
    END IF;
    RETURN j.taken <> n;
END $$;

CREATE FUNCTION golden."trim"(e bigint, n bigint, sids bigint[], lasts bigint[]) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    gone bigint;
BEGIN
    PERFORM golden.fence(e, n);
    DELETE FROM golden.messages AS m USING unnest(sids, lasts) AS u (sid, last)
    WHERE m.pos > u.sid << 32 AND m.pos <= (u.sid << 32) + u.last;
    GET DIAGNOSTICS gone = ROW_COUNT;
    UPDATE golden.actors AS s SET trimmed = u.last FROM unnest(sids, lasts) AS u (sid, last)
    WHERE s.sid = u.sid;
    RETURN gone;
END $$;

CREATE TABLE golden.actors (
    sid bigint NOT NULL,
    "user" text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    created_us bigint NOT NULL,
    generation bigint DEFAULT 0 NOT NULL,
    summarized bigint DEFAULT 0 NOT NULL,
    folding bigint DEFAULT 0 NOT NULL,
    flushing bigint DEFAULT 0 NOT NULL,
    cleared bigint DEFAULT 0 NOT NULL,
    flushed bigint DEFAULT 0 NOT NULL,
    trimmed bigint DEFAULT 0 NOT NULL,
    crc bigint NOT NULL,
    marks_crc bigint,
    CONSTRAINT actors_check CHECK (((trimmed = 0) OR ((trimmed + 2) <= summarized)))
)
WITH (fillfactor='80');

CREATE TABLE golden.attachments (
    owner text NOT NULL,
    digest bytea NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY golden.attachments ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE golden.erased (
    sid bigint NOT NULL
);

CREATE TABLE golden.erasures (
    number bigint NOT NULL,
    user_key text NOT NULL,
    session_key text NOT NULL
);

ALTER TABLE golden.erasures ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME golden.erasures_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE golden.facets (
    number bigint NOT NULL,
    sid bigint NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    name bytea NOT NULL,
    value bytea NOT NULL,
    crc bigint NOT NULL
);

ALTER TABLE golden.facets ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME golden.facets_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE golden.folds (
    number bigint NOT NULL,
    sid bigint NOT NULL,
    at_seq bigint NOT NULL,
    kind text NOT NULL,
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
    crc bigint
);

ALTER TABLE golden.folds ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME golden.folds_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE golden.jobs (
    number bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    lane text NOT NULL,
    sid bigint NOT NULL,
    payload bytea NOT NULL,
    attempts bigint DEFAULT 0 NOT NULL,
    not_before double precision DEFAULT 0 NOT NULL,
    dead smallint DEFAULT 0 NOT NULL,
    error bytea DEFAULT '\x'::bytea NOT NULL,
    crc bigint NOT NULL
);

ALTER TABLE golden.jobs ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME golden.jobs_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE golden.lease (
    one boolean DEFAULT true NOT NULL,
    epoch bigint NOT NULL,
    owner text NOT NULL,
    address text NOT NULL,
    since timestamp with time zone NOT NULL,
    seconds double precision NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT lease_one_check CHECK (one)
)
WITH (fillfactor='20');

CREATE TABLE golden.memories (
    number bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    sid bigint NOT NULL,
    session text NOT NULL COLLATE pg_catalog."C",
    agent bytea NOT NULL,
    content bytea NOT NULL,
    type bytea NOT NULL,
    importance double precision NOT NULL,
    created_us bigint NOT NULL,
    tokens bigint NOT NULL,
    details bytea,
    crc bigint NOT NULL
);

ALTER TABLE golden.memories ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME golden.memories_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE golden.messages (
    pos bigint NOT NULL,
    at_us bigint NOT NULL,
    tokens bigint NOT NULL,
    role smallint NOT NULL,
    epoch bigint NOT NULL,
    chat bytea NOT NULL,
    meta bytea,
    id text COLLATE pg_catalog."C",
    key bytea,
    batch bigint,
    importance double precision NOT NULL,
    crc bigint NOT NULL,
    removed bigint,
    pruned smallint
);

CREATE TABLE golden.settings (
    name text NOT NULL COLLATE pg_catalog."C",
    value bytea NOT NULL
);

INSERT INTO golden.actors VALUES (1, 'alice', 'chat', 1795638018681660, 0, 0, 0, 0, 0, 0, 0, 575625066, NULL);
INSERT INTO golden.actors VALUES (2, 'alice', '', 1795638018837552, 0, 0, 0, 0, 0, 0, 0, 3674367337, NULL);
INSERT INTO golden.actors VALUES (3, 'bob', 'other', 1795638018842126, 1, 2, 2, 2, 2, 0, 0, 3006186383, 3744847917);

INSERT INTO golden.facets OVERRIDING SYSTEM VALUE VALUES (1, 2, 'counter', '\x6a6f62', '\x01', 5635212);

INSERT INTO golden.folds OVERRIDING SYSTEM VALUE VALUES (1, 3, 2, 'cleared', 1, 2, 2, '\x', '\x', 0, 0, '\x', 0, NULL, 3182535532);

INSERT INTO golden.jobs OVERRIDING SYSTEM VALUE VALUES (1, 'record-2-1', 'record', 2, '\x84a474797065a67265636f7264a373696402a369647391d9203738336565303339303630303662633162343139386538396532666130323063a87265706c6163656490', 0, 0, 0, '\x', 432716436);

INSERT INTO golden.journal VALUES (true, 3, 1, 36, 0, '0a7710', 0, 'vm:13690', '2026-11-25 20:20:17.936299+00');

INSERT INTO golden.lease VALUES (true, 1, 'vm:13690', '', '2026-11-25 20:20:17.936299+00', 0, '-infinity');

INSERT INTO golden.memories OVERRIDING SYSTEM VALUE VALUES (1, '783ee03906006bc1b4198e89e2fa020c', 2, '', '\x', '\x416c696365206c696b6573200020746561', '\x66616374', 0.5, 1795638018837552, 12, NULL, 262263496);

INSERT INTO golden.messages VALUES (4294967297, 1795638018681660, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b26d6573736167652030200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 2546991930, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967298, 1795638018763936, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b26d6573736167652031200020c3a920e6bca2', NULL, NULL, '\xaed69cc054a5fdfcc6a10b0df59ce4bd', 1, 0.5, 4230600450, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967299, 1795638018782461, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b26d6573736167652032200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 1505887008, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967300, 1795638018784282, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b26d6573736167652033200020c3a920e6bca2', NULL, NULL, '\x766e7985bbbee1a1697bae66741e17ea', 1, 0.5, 327037226, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967301, 1795638018785837, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b26d6573736167652034200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 648910575, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967302, 1795638018798065, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b26d6573736167652035200020c3a920e6bca2', NULL, NULL, '\x5e313028b23f682356a422368d891df7', 1, 0.5, 1939912656, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967303, 1795638018810063, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b26d6573736167652036200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 3672894031, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967304, 1795638018813990, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b26d6573736167652037200020c3a920e6bca2', NULL, NULL, '\xef2ab7fc32bf72c2fa1aeb89a31fb6dd', 1, 0.5, 2622571555, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967305, 1795638018822640, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b26d6573736167652038200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 2476681119, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967306, 1795638018823232, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b26d6573736167652039200020c3a920e6bca2', NULL, NULL, '\x27140a05632e022a479b9c23e8c12fbe', 1, 0.5, 2017346651, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967307, 1795638018823748, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203130200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 3902299600, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967308, 1795638018824178, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203131200020c3a920e6bca2', NULL, NULL, '\xd772eaee0f712e155bcc3f218982f5c9', 1, 0.5, 1031223623, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967309, 1795638018824569, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203132200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 867586062, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967310, 1795638018824954, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203133200020c3a920e6bca2', NULL, NULL, '\x7cf2e25b116e372b5230d65788bfbcf9', 1, 0.5, 2316172155, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967311, 1795638018825366, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203134200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 2781622084, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967312, 1795638018828513, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203135200020c3a920e6bca2', NULL, NULL, '\x3e473682f400de7111824d7ff66953a6', 1, 0.5, 305444678, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967313, 1795638018829048, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203136200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 355801133, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967314, 1795638018829458, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203137200020c3a920e6bca2', NULL, NULL, '\x8698dd0e4f35b3bf92d99501350a02c9', 1, 0.5, 394996117, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967315, 1795638018829926, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203138200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 3221102576, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967316, 1795638018830287, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203139200020c3a920e6bca2', NULL, NULL, '\xba019deb204eb4b1a095102122ec01c9', 1, 0.5, 1475790280, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967317, 1795638018830671, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203230200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 2512432878, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967318, 1795638018831145, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203231200020c3a920e6bca2', NULL, NULL, '\x310f49b902264b80f278850e26787230', 1, 0.5, 1198242935, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967319, 1795638018831632, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203232200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 1480004972, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967320, 1795638018832189, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203233200020c3a920e6bca2', NULL, NULL, '\xed5105bc27eb8e2efd1ff589cb33e9ed', 1, 0.5, 357866374, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967321, 1795638018832504, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203234200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 2211051916, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967322, 1795638018835243, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203235200020c3a920e6bca2', NULL, NULL, '\x45406942f6a6555622d365db44f4c691', 1, 0.5, 3619064313, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967323, 1795638018835718, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203236200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 2886750146, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967324, 1795638018836190, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203237200020c3a920e6bca2', NULL, NULL, '\x5dca6a4859e2499a32661a4c2a4ab72b', 1, 0.5, 1381314232, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967325, 1795638018836565, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203238200020c3a920e6bca2', NULL, NULL, NULL, NULL, 0.5, 1262749616, NULL, NULL);
INSERT INTO golden.messages VALUES (4294967326, 1795638018836996, 11, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74b36d657373616765203239200020c3a920e6bca2', NULL, NULL, '\x480f493c5c1664a66410fd8ae607fa52', 1, 0.5, 2992479109, NULL, NULL);
INSERT INTO golden.messages VALUES (12884901890, 1795638018842126, 6, 4, 1, '\x83a4726f6c65a4746f6f6cac746f6f6c5f63616c6c5f6964a26331a7636f6e74656e74a4646f6e65', NULL, NULL, NULL, NULL, 0.5, 2706536097, NULL, 1);
INSERT INTO golden.messages VALUES (12884901889, 1795638018842126, 7, 3, 1, '\x83a4726f6c65a9617373697374616e74a7636f6e74656e74c0aa746f6f6c5f63616c6c739183a26964a26331a474797065a866756e6374696f6ea866756e6374696f6e82a46e616d65a166a9617267756d656e7473a27b7d', NULL, NULL, NULL, NULL, 0.5, 4233932980, NULL, 1);
INSERT INTO golden.messages VALUES (12884901891, 1795638018865009, 4, 2, 1, '\x82a4726f6c65a475736572a7636f6e74656e74a56166746572', NULL, NULL, NULL, NULL, 0.5, 2857463520, NULL, NULL);

INSERT INTO golden.settings VALUES ('embedder', '\x776f72646c6c616d612d6c322d73757065726361742d3235362f323536');
INSERT INTO golden.settings VALUES ('longterm', '\x6c6f6e677465726d');
INSERT INTO golden.settings VALUES ('shards', '\x38');
INSERT INTO golden.settings VALUES ('digest_keys', '\x5b22225d');
INSERT INTO golden.settings VALUES ('counter', '\x74696b746f6b656e3a6f3230306b5f62617365');

SELECT pg_catalog.setval('golden.erasures_number_seq', 1, false);

SELECT pg_catalog.setval('golden.facets_number_seq', 1, true);

SELECT pg_catalog.setval('golden.folds_number_seq', 1, true);

SELECT pg_catalog.setval('golden.jobs_number_seq', 1, true);

SELECT pg_catalog.setval('golden.memories_number_seq', 1, true);

ALTER TABLE ONLY golden.actors
    ADD CONSTRAINT actors_pkey PRIMARY KEY (sid);

ALTER TABLE ONLY golden.actors
    ADD CONSTRAINT actors_user_session_key UNIQUE ("user", session);

ALTER TABLE ONLY golden.attachments
    ADD CONSTRAINT attachments_pkey PRIMARY KEY (owner, digest);

ALTER TABLE ONLY golden.erased
    ADD CONSTRAINT erased_pkey PRIMARY KEY (sid);

ALTER TABLE ONLY golden.erasures
    ADD CONSTRAINT erasures_pkey PRIMARY KEY (number);

ALTER TABLE ONLY golden.facets
    ADD CONSTRAINT facets_pkey PRIMARY KEY (sid, kind, name);

ALTER TABLE ONLY golden.folds
    ADD CONSTRAINT folds_pkey PRIMARY KEY (number);

ALTER TABLE ONLY golden.jobs
    ADD CONSTRAINT jobs_id_key UNIQUE (id);

ALTER TABLE ONLY golden.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (number);

ALTER TABLE ONLY golden.journal
    ADD CONSTRAINT journal_pkey PRIMARY KEY (one);

ALTER TABLE ONLY golden.lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (one);

ALTER TABLE ONLY golden.memories
    ADD CONSTRAINT memories_id_key UNIQUE (id);

ALTER TABLE ONLY golden.memories
    ADD CONSTRAINT memories_pkey PRIMARY KEY (number);

ALTER TABLE ONLY golden.messages
    ADD CONSTRAINT messages_pkey PRIMARY KEY (pos);

ALTER TABLE ONLY golden.settings
    ADD CONSTRAINT settings_pkey PRIMARY KEY (name);

CREATE INDEX folds_by_session ON golden.folds USING btree (sid, generation);

CREATE INDEX folds_with_losses ON golden.folds USING btree (sid) WHERE (cover IS NOT NULL);

CREATE INDEX jobs_by_session ON golden.jobs USING btree (sid);

CREATE INDEX memories_by_time ON golden.memories USING btree (sid, created_us, id);

CREATE INDEX messages_by_id ON golden.messages USING btree (((pos >> 32)), id) WHERE (id IS NOT NULL);

CREATE UNIQUE INDEX messages_by_key ON golden.messages USING btree (((pos >> 32)), key) WHERE (key IS NOT NULL);

CREATE INDEX messages_removed ON golden.messages USING btree (pos) WHERE (removed IS NOT NULL);
