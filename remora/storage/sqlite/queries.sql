-- The queries of a journal in SQLite. `remora.storage.sql.reading` says what each answers.
--
-- A list is one parameter, a JSON array. pos is sid << 32 | seq, and {mask} takes seq out of it.
-- {entry}, {summary}, {state_item}, {memory} and {job} are the columns that are decoded.
-- CROSS JOIN keeps the order of the tables. A plus before a column (no affinity) keeps the planner
-- from an index on it, so that it takes the partial index that the other conditions name.

-- name: actors
-- Everything about some actors by one statement: an activation is one call to the connection's
-- thread. A call costs as much as reading a session's messages. A row is its kind, a number to sort
-- by where the order matters (a part of a compound cannot be sorted; messages come in the order of
-- their tree), and its columns, padded with NULLs to 16.
WITH asked AS MATERIALIZED (
    SELECT a.sid, a.user, a.session, a.created_us, a.crc, a.marks_crc, a.generation, a.summarized,
           a.summarizing, a.flushing, a.cleared
    FROM json_each(:names) AS w
    JOIN actors AS a ON a.user = w.value ->> 0 AND a.session = w.value ->> 1
)
SELECT {actor_kind}, 0, s.sid, s.user, s.session, s.created_us, s.crc, s.marks_crc, s.generation, s.summarized,
       s.summarizing, s.flushing, s.cleared, NULL, NULL, NULL
FROM asked AS s
UNION ALL
SELECT {message_kind}, m.removed, {entry}, NULL, NULL, NULL
FROM asked AS s CROSS JOIN messages AS m
    ON m.pos > (s.sid << 32) + s.summarized AND m.pos < (s.sid + 1) << 32
UNION ALL
SELECT {summary_kind}, f.number, {summary}
FROM asked AS s CROSS JOIN summaries AS f
    ON f.sid = s.sid AND f.generation = s.generation AND f.kind IN ('summary', 'entry')
UNION ALL
SELECT {digest_kind}, n, sid, key, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM (SELECT s.sid, m.key, row_number() OVER (PARTITION BY s.sid ORDER BY m.pos DESC) AS n
      FROM asked AS s CROSS JOIN messages AS m ON m.pos >> 32 = +s.sid AND m.key IS NOT NULL)
WHERE n <= :digests
UNION ALL
SELECT DISTINCT {with_ids_kind}, 0, s.sid, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM asked AS s CROSS JOIN messages AS m
    ON m.pos >> 32 = +s.sid AND m.id IS NOT NULL AND m.removed IS NULL
    AND m.pos & {mask} > s.cleared AND m.pos & {mask} <= s.summarized
UNION ALL
SELECT {state_item_kind}, x.rowid, {state_item}, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM asked AS s CROSS JOIN state_items AS x ON x.sid = s.sid AND x.kind != :entry_kind
UNION ALL
SELECT {job_kind}, j.number, {job}, NULL, NULL, NULL
FROM asked AS s CROSS JOIN jobs AS j ON j.sid = s.sid WHERE NOT j.dead

-- name: messages_by_id
SELECT {entry}
FROM actors AS s
CROSS JOIN json_each(:ids) AS w
CROSS JOIN messages AS m ON m.pos >> 32 = +s.sid AND m.id = w.value AND m.id IS NOT NULL
WHERE s.user = :user AND s.session = :session AND m.removed IS NULL AND m.pos & {mask} > :after

-- name: erasable_messages
SELECT m.removed, {entry}
FROM actors AS s
CROSS JOIN json_each(:ids) AS w
CROSS JOIN messages AS m ON m.pos >> 32 = +s.sid AND m.id = w.value AND m.id IS NOT NULL
WHERE s.user = :user AND s.session = :session
UNION
SELECT m.removed, {entry}
FROM actors AS s
CROSS JOIN json_each(:seqs) AS w
CROSS JOIN messages AS m ON m.pos = (s.sid << 32) + w.value
WHERE s.user = :user AND s.session = :session
ORDER BY 2

-- name: appends_of_turn
SELECT k.key, m.removed, {entry}
FROM actors AS s
CROSS JOIN messages AS k
    ON k.pos >> 32 = +s.sid AND k.key BETWEEN :first AND :last AND k.key IS NOT NULL
CROSS JOIN messages AS m ON m.pos BETWEEN k.pos AND k.pos + k.batch - 1
WHERE s.user = :user AND s.session = :session
ORDER BY k.key, m.pos

-- name: append_of_key
SELECT {entry}
FROM actors AS s
CROSS JOIN messages AS k ON k.pos >> 32 = +s.sid AND k.key = :digest AND k.key IS NOT NULL
CROSS JOIN messages AS m ON m.pos BETWEEN k.pos AND k.pos + k.batch - 1
WHERE s.user = :user AND s.session = :session
ORDER BY m.pos

-- name: messages
SELECT s.trimmed, m.removed, {entry}
FROM actors AS s
JOIN messages AS m ON m.pos BETWEEN (s.sid << 32) + :first AND (s.sid << 32) + :last
WHERE s.user = :user AND s.session = :session
ORDER BY m.pos

-- name: size_of_ranges
SELECT coalesce(sum(length(m.chat)), 0)
FROM json_each(:ranges) AS w
CROSS JOIN actors AS s ON s.user = json_extract(w.value, '$[0]')
    AND s.session = json_extract(w.value, '$[1]')
CROSS JOIN messages AS m ON m.pos BETWEEN (s.sid << 32) + json_extract(w.value, '$[2]')
    AND (s.sid << 32) + json_extract(w.value, '$[3]')

-- name: messages_of_ranges
SELECT w.key, m.pruned, s.trimmed, m.removed, {entry}
FROM json_each(:ranges) AS w
CROSS JOIN actors AS s ON s.user = json_extract(w.value, '$[0]')
    AND s.session = json_extract(w.value, '$[1]')
CROSS JOIN messages AS m ON m.pos BETWEEN (s.sid << 32) + json_extract(w.value, '$[2]')
    AND (s.sid << 32) + json_extract(w.value, '$[3]')
ORDER BY w.key, m.pos

-- name: any_removed
SELECT 1
FROM actors AS s
CROSS JOIN messages AS m INDEXED BY messages_removed
    ON m.pos BETWEEN (s.sid << 32) + :first AND (s.sid << 32) + :last
WHERE s.user = :user AND s.session = :session AND m.removed IS NOT NULL AND m.removed > :since
LIMIT 1

-- name: summaries_until
SELECT s.trimmed, {summary}
FROM actors AS s LEFT JOIN summaries AS f ON f.sid = s.sid AND f.at_seq <= :at
WHERE s.user = :user AND s.session = :session
ORDER BY f.number

-- name: summary_figures
SELECT count(*), coalesce(sum(f.input_tokens), 0), coalesce(sum(f.tokens), 0),
       coalesce(sum(f.degraded), 0)
FROM actors AS s JOIN summaries AS f USING (sid)
WHERE s.user = :user AND s.session = :session AND f.input_tokens > 0

-- name: memories
SELECT {memory}
FROM actors AS s CROSS JOIN memories AS m ON m.sid = s.sid
WHERE s.user = :user AND s.session = ''
ORDER BY m.number

-- name: memories_by_id
SELECT {memory}
FROM actors AS s
CROSS JOIN json_each(:ids) AS w
CROSS JOIN memories AS m ON m.id = w.value AND +m.sid = s.sid
WHERE s.user = :user AND s.session = ''
ORDER BY m.number

-- name: memories_after
SELECT {memory}
FROM actors AS s CROSS JOIN memories AS m ON m.sid = s.sid
WHERE s.user = :user AND s.session = '' AND (m.created_us, m.id) > (:after_us, :after)
ORDER BY m.created_us, m.id
LIMIT :limit

-- name: facts
SELECT {memory}
FROM actors AS s CROSS JOIN memories AS m ON m.sid = s.sid
WHERE s.user = :user AND s.session = '' AND m.details IS NOT NULL
    AND (:session IS NULL OR m.session = :session)
ORDER BY m.number

-- name: facts_of_topics
-- An id begins with its topic.
SELECT {memory}
FROM actors AS s
CROSS JOIN json_each(:topics) AS w
CROSS JOIN memories AS m ON m.id BETWEEN w.value AND w.value || 'g' AND +m.sid = s.sid
WHERE s.user = :user AND s.session = '' AND m.details IS NOT NULL
    AND (:session IS NULL OR m.session = :session)
ORDER BY m.number

-- name: instructions
SELECT {memory}
FROM memories AS m
WHERE m.number IN (
    SELECT number FROM (
        SELECT number, created_us,
            row_number() OVER (PARTITION BY substr(id, 1, 16) ORDER BY created_us DESC, number DESC)
            AS place
        FROM (
            SELECT m.number, m.id, m.created_us
            FROM actors AS s CROSS JOIN memories AS m ON m.sid = s.sid
            WHERE s.user = :user AND s.session = '' AND m.type = 'instruction'
            ORDER BY m.created_us DESC, m.number DESC LIMIT 4 * :limit
        )
    )
    WHERE place <= 3 ORDER BY created_us DESC, number DESC LIMIT :limit
)
ORDER BY m.created_us DESC, m.number DESC

-- name: removed_messages
SELECT s.session, m.pos & {mask}
FROM json_each(:places) AS w
CROSS JOIN actors AS s ON s.user = :user AND s.session = w.value ->> 0
CROSS JOIN messages AS m ON m.pos = (s.sid << 32) + (w.value ->> 1)
WHERE m.removed IS NOT NULL

-- name: message_ids
SELECT s.session, s.sid, m.pos & {mask}, m.id
FROM json_each(:places) AS w
CROSS JOIN actors AS s ON s.user = :user AND s.session = w.value ->> 0
CROSS JOIN messages AS m ON m.pos = (s.sid << 32) + (w.value ->> 1)

-- name: sessions_by_number
SELECT w.value ->> 0, s.session
FROM json_each(:numbered) AS w
CROSS JOIN actors AS s ON s.sid = w.value ->> 1
WHERE s.user = :user

-- name: sessions_by_message_id
SELECT DISTINCT w.value, s.session
FROM actors AS s
CROSS JOIN json_each(:ids) AS w
CROSS JOIN messages AS m ON m.pos >> 32 = +s.sid AND m.id = w.value AND m.id IS NOT NULL
WHERE s.user = :user AND s.session != '' AND (m.removed IS NULL OR m.chat != :blank)

-- name: pruned_seqs
SELECT m.pos & {mask}
FROM actors AS s JOIN messages AS m ON m.pos BETWEEN s.sid << 32 AND (s.sid << 32) + {mask}
WHERE s.user = :user AND s.session = :session AND m.pruned

-- name: state_items
SELECT {state_item}
FROM actors AS s JOIN state_items AS x USING (sid)
WHERE s.user = :user AND s.session = :session
ORDER BY x.rowid

-- name: indexed_through
SELECT flushed, sid, user, session, created_us, crc FROM actors ORDER BY sid

-- name: session_indexed_through
SELECT flushed FROM actors WHERE user = :user AND session = :session

-- name: jobs
SELECT {job}
FROM jobs AS j JOIN actors AS s USING (sid)
WHERE j.dead = :dead
ORDER BY j.number

-- name: jobs_of_user
SELECT {job}
FROM actors AS s CROSS JOIN jobs AS j ON j.sid = s.sid
WHERE s.user = :user
ORDER BY j.number

-- name: unindexed_with_words
WITH told AS MATERIALIZED (
    SELECT s.session, m.pos, m.at_us, lower(CAST(m.chat AS TEXT)) AS text
    FROM actors AS s CROSS JOIN messages AS m
        ON m.pos > (s.sid << 32) + s.flushed AND m.pos <= (s.sid << 32) + {mask}
    WHERE s.user = :user AND s.session != '' AND m.removed IS NULL AND m.pruned IS NULL
),
hits AS MATERIALIZED (
    SELECT session, pos, at_us, u.key AS n
    FROM told CROSS JOIN json_each(:words) AS u
    WHERE instr(text, u.value) > 0
),
weights AS (SELECT n, :rarest / count(*) AS weight FROM hits GROUP BY n)
SELECT session, pos & {mask}
FROM hits JOIN weights USING (n)
GROUP BY session, pos, at_us
ORDER BY sum(weight) DESC, at_us DESC, pos DESC
LIMIT :limit

-- name: unindexed
SELECT s.session, m.pos & {mask}
FROM actors AS s CROSS JOIN messages AS m
    ON m.pos > (s.sid << 32) + s.flushing AND m.pos <= (s.sid << 32) + {mask}
WHERE s.user = :user AND s.session != ''
    AND m.removed IS NULL AND m.pruned IS NULL
ORDER BY m.at_us DESC, m.pos DESC
LIMIT :limit

-- name: unindexed_of_sessions
SELECT s.session, m.pos & {mask}
FROM actors AS s CROSS JOIN messages AS m
    ON m.pos > (s.sid << 32) + s.flushing AND m.pos <= (s.sid << 32) + {mask}
WHERE s.user = :user AND s.session != ''
    AND s.session IN (SELECT w.value FROM json_each(:sessions) AS w)
    AND m.removed IS NULL AND m.pruned IS NULL
ORDER BY m.at_us DESC, m.pos DESC
LIMIT :limit

-- name: sessions_to_flush
SELECT s.user, s.session
FROM actors AS s
WHERE s.session != '' AND s.flushing < (
    SELECT m.pos & {mask} FROM messages AS m
    WHERE m.pos BETWEEN s.sid << 32 AND (s.sid << 32) + {mask} AND m.removed IS NULL
    ORDER BY m.pos DESC LIMIT 1
)
LIMIT :limit

-- name: sessions_with_fallbacks
SELECT s.user, s.session
FROM summaries AS f JOIN actors AS s ON s.sid = f.sid AND s.generation = f.generation
WHERE f.cover IS NOT NULL
GROUP BY s.sid
ORDER BY s.sid DESC
LIMIT :limit

-- name: counts
SELECT (SELECT count(DISTINCT s.user) FROM actors AS s),
       (SELECT count(*) FROM actors AS s WHERE s.session != ''),
       m.messages, m.tokens,
       (SELECT count(*) FROM summaries AS f WHERE f.kind IN ('summary', 'entry')),
       j.pending, j.dead,
       (SELECT count(*) FROM memories),
       (SELECT count(*) FROM state_items AS x WHERE x.kind = :keyed_kind)
FROM (SELECT count(*) AS messages, coalesce(sum(tokens), 0) AS tokens FROM messages) AS m,
     (SELECT count(*) FILTER (WHERE NOT dead) AS pending, count(*) FILTER (WHERE dead) AS dead
      FROM jobs) AS j

-- name: counts_of_user
WITH own AS MATERIALIZED (SELECT s.sid, s.session FROM actors AS s WHERE s.user = :user)
SELECT (SELECT count(*) > 0 FROM own),
       (SELECT count(*) FROM own WHERE session != ''),
       m.messages, m.tokens,
       (SELECT count(*) FROM own CROSS JOIN summaries AS f ON f.sid = own.sid
        WHERE f.kind IN ('summary', 'entry')),
       j.pending, j.dead,
       (SELECT count(*) FROM own CROSS JOIN memories AS m ON m.sid = own.sid),
       (SELECT count(*) FROM own CROSS JOIN state_items AS x ON x.sid = own.sid
        WHERE x.kind = :keyed_kind)
FROM (SELECT count(*) AS messages, coalesce(sum(m.tokens), 0) AS tokens
      FROM own CROSS JOIN messages AS m
          ON m.pos BETWEEN own.sid << 32 AND (own.sid << 32) + {mask}) AS m,
     (SELECT count(*) FILTER (WHERE NOT j.dead) AS pending,
             count(*) FILTER (WHERE j.dead) AS dead
      FROM own CROSS JOIN jobs AS j ON j.sid = own.sid) AS j

-- name: setting
SELECT value FROM settings WHERE name = :name

-- name: erasures
SELECT number, user_key, session_key FROM erasures ORDER BY number

-- name: messages_with_attachments
SELECT m.chat, m.meta
FROM actors AS s JOIN messages AS m ON m.pos BETWEEN s.sid << 32 AND (s.sid << 32) + {mask}
WHERE s.user = :user AND (instr(m.chat, :magic) OR instr(m.meta, :magic))

-- name: users
SELECT DISTINCT user FROM actors

-- Archived originals: what there is of them (`remora.storage.sql.archive`).

-- name: archived_sessions
SELECT sid FROM actors
WHERE sid > :after AND session != '' AND summarized > trimmed
ORDER BY sid
LIMIT :limit

-- name: jobs_of_actors
SELECT j.sid, j.payload FROM json_each(:sids) AS w CROSS JOIN jobs AS j ON j.sid = w.value

-- name: archive_bounds
SELECT s.sid, s.trimmed, s.summarized, (
    SELECT m.pos FROM messages AS m
    WHERE m.pos > (s.sid << 32) + max(s.flushed, s.trimmed)
        AND m.pos <= (s.sid << 32) + min(s.flushing, s.summarized)
        AND m.pruned IS NULL AND m.removed IS NULL
    ORDER BY m.pos LIMIT 1
)
FROM json_each(:sids) AS w CROSS JOIN actors AS s ON s.sid = w.value

-- name: first_since
SELECT m.pos FROM messages AS m
WHERE m.pos BETWEEN :first AND :last AND m.at_us >= :at_us
ORDER BY m.pos
LIMIT 1

-- name: newest_beyond
SELECT m.pos
FROM actors AS s CROSS JOIN messages AS m
    ON m.pos > (s.sid << 32) + :trimmed AND m.pos <= (s.sid << 32) + s.summarized
WHERE s.sid = :sid AND s.summarized - s.trimmed > :count AND m.removed IS NULL
ORDER BY m.pos DESC
LIMIT 1 OFFSET :count

-- name: most_bytes
SELECT (p.page_count - f.freelist_count) * z.page_size
FROM pragma_page_count AS p, pragma_freelist_count AS f, pragma_page_size AS z

-- name: users_with_attachments
SELECT DISTINCT s.user
FROM json_each(:ends) AS w
CROSS JOIN actors AS s ON s.sid = w.value ->> 0
CROSS JOIN messages AS m ON m.pos > s.sid << 32 AND m.pos <= (s.sid << 32) + (w.value ->> 1)
WHERE instr(m.chat, :magic) OR instr(m.meta, :magic)

-- name: archive_size
SELECT coalesce(sum(length(m.chat) + coalesce(length(m.meta), 0)), 0)
FROM json_each(:sids) AS w
CROSS JOIN actors AS s ON s.sid = w.value
CROSS JOIN messages AS m ON m.pos > s.sid << 32 AND m.pos <= (s.sid << 32) + s.summarized

-- name: message_sizes
SELECT m.pos, m.at_us, length(m.chat) + coalesce(length(m.meta), 0)
FROM messages AS m
WHERE m.pos BETWEEN :first AND :last
ORDER BY m.pos
LIMIT :limit
