-- What a journal in PostgreSQL does, as functions.
--
-- Every change is one call of a function, and so one statement: a client that stops holds no lock.
-- The function first counts the commit in the row of remora.journal, for the owner alone (fence).

-- Counts a commit of the owner; fails for everybody else, and for a commit that comes late.
CREATE OR REPLACE FUNCTION remora.fence(e bigint, n bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE remora.journal SET commits = n WHERE epoch = e AND commits = n - 1;
    IF FOUND THEN RETURN; END IF;
    PERFORM 1 FROM remora.journal WHERE epoch = e;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another owner has this journal' USING errcode = '{OVERTAKEN}';
    END IF;
    RAISE EXCEPTION 'commit % is not the next one', n USING errcode = '{NEXT_NUMBER}';
END $$;

-- Says whether commit n was stored. If it was not, its number is used up: it never will be.
CREATE OR REPLACE FUNCTION remora.take(e bigint, n bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE j remora.journal%ROWTYPE;
BEGIN
    UPDATE remora.journal SET commits = n, taken = n WHERE epoch = e AND commits = n - 1;
    IF FOUND THEN RETURN false; END IF;
    SELECT * INTO j FROM remora.journal;
    IF j.epoch IS DISTINCT FROM e THEN
        RAISE EXCEPTION 'another owner has this journal' USING errcode = '{OVERTAKEN}';
    ELSIF j.commits <> n THEN
        RAISE EXCEPTION 'commit % is not the next one', n USING errcode = '{NEXT_NUMBER}';
    END IF;
    RETURN j.taken <> n;
END $$;

-- Takes the journal over if nobody's lease runs; a row of nulls otherwise. Fails for a process whose
-- format is not the journal's: another release migrated it while that process waited. A server that
-- has just started gives the owner time to renew a lease that ran out while there was no server.
-- Where its clock was set back, a lease lasts as long as if it had been renewed now, not longer.
CREATE OR REPLACE FUNCTION remora.claim(
    p_format int, p_owner text, p_address text, p_seconds float8
) RETURNS remora.journal LANGUAGE plpgsql AS $$
DECLARE
    j remora.journal%ROWTYPE;
BEGIN
    UPDATE remora.lease AS l SET until = clock_timestamp() + l.seconds * interval '1 second'
    WHERE l.until > clock_timestamp() + l.seconds * interval '1 second';
    PERFORM 1 FROM remora.lease AS l WHERE l.until = '-infinity' OR clock_timestamp() > greatest(
        l.until, CASE WHEN pg_postmaster_start_time() < clock_timestamp()
        THEN pg_postmaster_start_time() + l.seconds * interval '1 second' END) FOR UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    UPDATE remora.journal AS k SET epoch = k.epoch + 1, last_sid = greatest(k.last_sid,
        (SELECT coalesce(max(sid), 0) FROM remora.actors))
    WHERE k.format = p_format RETURNING * INTO j;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the journal does not have format %', p_format
            USING errcode = '{OTHER_FORMAT}';
    END IF;
    UPDATE remora.lease SET epoch = j.epoch, owner = p_owner, address = p_address,
        since = clock_timestamp(), seconds = p_seconds, until = CASE WHEN p_seconds > 0
        THEN clock_timestamp() + p_seconds * interval '1 second' ELSE '-infinity' END;
    RETURN j;
END $$;

-- Whether the lease is still this owner's; it lasts its whole time again.
CREATE OR REPLACE FUNCTION remora.renew(e bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE remora.lease SET until = clock_timestamp() + seconds * interval '1 second'
    WHERE epoch = e;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION remora.release(e bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE remora.lease SET until = '-infinity' WHERE epoch = e
$$;

-- Rows other than messages come as JSON, kind by kind (`remora.storage.rows.RowKind`), in the order
-- in which they must be stored; bytes in hexadecimal.
CREATE OR REPLACE FUNCTION remora.commit(
    e bigint, n bigint, p_pos bigint[], p_at_us bigint[], p_tokens bigint[], p_role smallint[],
    p_chat bytea[], p_meta bytea[], p_id text[], p_key bytea[], p_batch bigint[],
    p_importance float8[], p_crc bigint[], kinds text[], rows text[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r json;
BEGIN
    PERFORM remora.fence(e, n);
    IF cardinality(p_pos) > 0 THEN
        INSERT INTO remora.messages (pos, at_us, tokens, role, epoch, chat, meta, id, key, batch,
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
            INSERT INTO remora.actors (sid, "user", session, created_us, crc)
            SELECT (v ->> 0)::bigint, v ->> 1, v ->> 2, (v ->> 3)::bigint, (v ->> 4)::bigint
            FROM json_array_elements(r) AS v;
        WHEN 'remove_message' THEN
            UPDATE remora.messages AS m SET removed = (v ->> 0)::bigint
            FROM json_array_elements(r) AS v
            WHERE m.pos = (v ->> 1)::bigint AND m.removed IS NULL;
        WHEN 'change_message' THEN
            UPDATE remora.messages AS m SET tokens = (v ->> 0)::bigint,
                chat = decode(v ->> 1, 'hex'), meta = decode(v ->> 2, 'hex'),
                importance = (v ->> 3)::float8, crc = (v ->> 4)::bigint
            FROM json_array_elements(r) AS v WHERE m.pos = (v ->> 5)::bigint;
        WHEN 'erase_summaries' THEN
            UPDATE remora.summaries AS f SET text = '', tokens = 0, degraded = 1, model = 'none',
                cover = NULL, crc = NULL
            FROM json_array_elements(r) AS v
            WHERE f.sid = (v ->> 0)::bigint AND f.generation < (v ->> 1)::bigint
                AND f.kind IN ('summary', '{ENTRY_KIND}') AND EXISTS (
                    SELECT 1 FROM json_array_elements_text((v ->> 2)::json) AS w (seq)
                    WHERE w.seq::bigint BETWEEN f.first AND f.through);
        WHEN 'prune_message' THEN
            UPDATE remora.messages AS m SET pruned = 1
            FROM json_array_elements(r) AS v, remora.actors AS s
            WHERE s.user = v ->> 0 AND s.session = v ->> 1
                AND m.pos = (s.sid << 32) + (v ->> 2)::bigint;
        WHEN 'prune_entry' THEN
            DELETE FROM remora.state_items AS x USING json_array_elements(r) AS v, remora.actors AS s
            WHERE s.user = v ->> 0 AND s.session = v ->> 1 AND x.sid = s.sid
                AND x.kind = '{ENTRY_KIND}' AND x.name = decode(v ->> 2, 'hex');
        WHEN 'update_watermarks' THEN
            UPDATE remora.actors AS s SET generation = (v ->> 0)::bigint,
                summarized = (v ->> 1)::bigint, summarizing = (v ->> 2)::bigint,
                flushing = (v ->> 3)::bigint, cleared = (v ->> 4)::bigint,
                marks_crc = (v ->> 5)::bigint
            FROM json_array_elements(r) AS v WHERE s.sid = (v ->> 6)::bigint;
        WHEN 'insert_front' THEN
            INSERT INTO remora.summaries (sid, at_seq, kind, generation, first, through, prefix, text,
                tokens, degraded, model, input_tokens, cover, crc)
            SELECT (v ->> 0)::bigint, (v ->> 1)::bigint, v ->> 2, (v ->> 3)::bigint,
                (v ->> 4)::bigint, (v ->> 5)::bigint, decode(v ->> 6, 'hex'),
                decode(v ->> 7, 'hex'), (v ->> 8)::bigint, (v ->> 9)::smallint,
                decode(v ->> 10, 'hex'), (v ->> 11)::bigint, decode(v ->> 12, 'hex'),
                (v ->> 13)::bigint
            FROM json_array_elements(r) AS v;
        WHEN 'update_indexed' THEN
            UPDATE remora.actors AS s SET flushed = greatest(s.flushed, w.through)
            FROM (SELECT (v ->> 1)::bigint AS sid, max((v ->> 0)::bigint) AS through
                FROM json_array_elements(r) AS v GROUP BY 1) AS w WHERE s.sid = w.sid;
        WHEN 'insert_job' THEN
            INSERT INTO remora.jobs (id, queue, sid, payload, crc)
            SELECT v ->> 0, v ->> 1, (v ->> 2)::bigint, decode(v ->> 3, 'hex'), (v ->> 4)::bigint
            FROM json_array_elements(r) AS v;
        WHEN 'advance_job' THEN
            UPDATE remora.jobs AS j SET payload = decode(v ->> 0, 'hex'), crc = (v ->> 1)::bigint
            FROM json_array_elements(r) AS v WHERE j.id = v ->> 2;
        WHEN 'retry_job' THEN
            UPDATE remora.jobs AS j SET attempts = (v ->> 0)::bigint,
                not_before = (v ->> 1)::float8, error = decode(v ->> 2, 'hex')
            FROM json_array_elements(r) AS v WHERE j.id = v ->> 3;
        WHEN 'dead_letter_job' THEN
            UPDATE remora.jobs AS j SET attempts = (v ->> 0)::bigint,
                error = decode(v ->> 1, 'hex'), dead = 1
            FROM json_array_elements(r) AS v WHERE j.id = v ->> 2;
        WHEN 'retry_dead_letter' THEN
            UPDATE remora.jobs AS j SET attempts = 0, not_before = 0, dead = 0
            FROM json_array_elements(r) AS v WHERE j.id = v ->> 0 AND j.dead = 1;
        WHEN 'delete_job' THEN
            DELETE FROM remora.jobs AS j USING json_array_elements(r) AS v WHERE j.id = v ->> 0;
        WHEN 'drop_state_item' THEN
            DELETE FROM remora.state_items AS x USING json_array_elements(r) AS v
            WHERE x.sid = (v ->> 0)::bigint AND x.kind = v ->> 1
                AND x.name = decode(v ->> 2, 'hex');
        WHEN 'put_state_item' THEN
            INSERT INTO remora.state_items (sid, kind, name, value, crc)
            SELECT (v ->> 0)::bigint, v ->> 1, decode(v ->> 2, 'hex'), decode(v ->> 3, 'hex'),
                (v ->> 4)::bigint
            FROM json_array_elements(r) AS v
            ON CONFLICT (sid, kind, name)
            DO UPDATE SET value = excluded.value, crc = excluded.crc;
        WHEN 'delete_memory' THEN
            DELETE FROM remora.memories AS m USING json_array_elements(r) AS v
            WHERE m.id = v ->> 0;
        WHEN 'insert_memory', 'put_memory' THEN
            INSERT INTO remora.memories AS m (id, sid, session, agent, content, type, importance,
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

CREATE OR REPLACE FUNCTION remora.set_settings(
    e bigint, n bigint, names text[], contents bytea[], only_new boolean
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM remora.fence(e, n);
    INSERT INTO remora.settings AS s (name, value) SELECT u.* FROM unnest(names, contents) AS u
    ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE NOT only_new;
END $$;

-- Deletes all rows of these actors but the messages, and what the user's own has of a session.
CREATE OR REPLACE FUNCTION remora.erase(
    e bigint, n bigint, sids bigint[], own bigint, p_session text, kinds text[], names bytea[],
    removed_error bytea, user_keys text, session_keys text
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    c bigint; note bigint; actors bigint; summaries bigint; items bigint; memories bigint; jobs bigint;
BEGIN
    PERFORM remora.fence(e, n);
    UPDATE remora.journal
    SET last_sid = greatest(last_sid, (SELECT coalesce(max(sid), 0) FROM remora.actors));
    DELETE FROM remora.state_items AS x USING unnest(kinds, names) AS u (kind, name)
    WHERE x.sid = own AND x.kind = u.kind AND x.name = u.name;
    GET DIAGNOSTICS items = ROW_COUNT;
    DELETE FROM remora.memories AS m WHERE m.sid = own AND m.session = p_session;
    GET DIAGNOSTICS memories = ROW_COUNT;
    UPDATE remora.jobs AS j SET error = removed_error WHERE j.sid = own AND j.error <> '';
    DELETE FROM remora.summaries AS f WHERE f.sid = ANY(sids);
    GET DIAGNOSTICS summaries = ROW_COUNT;
    DELETE FROM remora.state_items AS x WHERE x.sid = ANY(sids);
    GET DIAGNOSTICS c = ROW_COUNT;
    items := items + c;
    DELETE FROM remora.memories AS m WHERE m.sid = ANY(sids);
    GET DIAGNOSTICS c = ROW_COUNT;
    memories := memories + c;
    DELETE FROM remora.jobs AS j WHERE j.sid = ANY(sids);
    GET DIAGNOSTICS jobs = ROW_COUNT;
    DELETE FROM remora.actors AS s WHERE s.sid = ANY(sids);
    GET DIAGNOSTICS actors = ROW_COUNT;
    INSERT INTO remora.erased SELECT unnest(sids) ON CONFLICT DO NOTHING;
    INSERT INTO remora.erasures AS w (user_key, session_key) VALUES (user_keys, session_keys)
    RETURNING w.number INTO note;
    RETURN ARRAY[note, actors, summaries, items, memories, jobs];
END $$;

-- Deletes some messages of erased actors: how many went, and whether there may be more.
CREATE OR REPLACE FUNCTION remora.delete_messages(e bigint, n bigint, most bigint, most_actors bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    chosen bigint[]; gone bigint;
BEGIN
    PERFORM remora.fence(e, n);
    chosen := ARRAY(SELECT w.sid FROM remora.erased AS w ORDER BY w.sid LIMIT most_actors);
    DELETE FROM remora.messages AS m WHERE m.pos IN (
        SELECT d.pos FROM unnest(chosen) AS w (sid)
        JOIN remora.messages AS d ON d.pos BETWEEN w.sid << 32 AND ((w.sid + 1) << 32) - 1
        LIMIT most);
    GET DIAGNOSTICS gone = ROW_COUNT;
    IF gone < most THEN
        DELETE FROM remora.erased AS w WHERE w.sid = ANY(chosen);
    END IF;
    RETURN ARRAY[gone, (SELECT count(*) FROM (SELECT 1 FROM remora.erased LIMIT 1) AS w)];
END $$;

CREATE OR REPLACE FUNCTION remora.finish_erasure(e bigint, n bigint, note bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM remora.fence(e, n);
    DELETE FROM remora.erasures AS w WHERE w.number = note;
END $$;

-- Deletes archived messages of these sessions, up to and with the last of each.
CREATE OR REPLACE FUNCTION remora.trim(e bigint, n bigint, sids bigint[], lasts bigint[])
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    gone bigint;
BEGIN
    PERFORM remora.fence(e, n);
    DELETE FROM remora.messages AS m USING unnest(sids, lasts) AS u (sid, last)
    WHERE m.pos > u.sid << 32 AND m.pos <= (u.sid << 32) + u.last;
    GET DIAGNOSTICS gone = ROW_COUNT;
    UPDATE remora.actors AS s SET trimmed = u.last FROM unnest(sids, lasts) AS u (sid, last)
    WHERE s.sid = u.sid;
    RETURN gone;
END $$;
