-- The queries of a journal in PostgreSQL. `remora.storage.sql.reading` says what each answers.
--
-- A list of texts or numbers is an array, and a list of tuples is JSON. pos is sid << 32 | seq, and
-- {mask} takes seq out of it. {entry}, {summary}, {state_item}, {memory} and {job} are the columns
-- that are decoded. `remora` stands for the schema.

-- name: actors
-- Everything about some actors by one statement: of one moment, in one round trip. A row is its
-- kind and a record: a number to sort by where the order matters, and columns.
WITH asked AS MATERIALIZED (
    SELECT s.*
    FROM jsonb_array_elements(:names::jsonb) AS w (value)
    JOIN remora.actors AS s ON s.user = w.value ->> 0 AND s.session = w.value ->> 1
)
(SELECT {actor_kind}, ROW(0, s.sid, s.user, s.session, s.created_us, s.crc, s.marks_crc, s.generation,
        s.summarized, s.summarizing, s.flushing, s.cleared)
 FROM asked AS s)
UNION ALL
(SELECT {message_kind}, ROW(m.removed, {entry})
 FROM asked AS s
 JOIN remora.messages AS m
     ON m.pos > (s.sid << 32) + s.summarized AND m.pos < (s.sid + 1) << 32
 ORDER BY m.pos)
UNION ALL
(SELECT {summary_kind}, ROW(f.number, {summary})
 FROM asked AS s
 JOIN remora.summaries AS f
     ON f.sid = s.sid AND f.generation = s.generation AND f.kind IN ('summary', 'entry'))
UNION ALL
(SELECT {digest_kind}, ROW(n, sid, key)
 FROM (SELECT s.sid, m.key, row_number() OVER (PARTITION BY s.sid ORDER BY m.pos DESC) AS n
       FROM asked AS s
       JOIN remora.messages AS m ON m.pos >> 32 = s.sid AND m.key IS NOT NULL) AS k
 WHERE n <= :digests::bigint)
UNION ALL
(SELECT {with_ids_kind}, ROW(0, s.sid)
 FROM asked AS s
 WHERE EXISTS (SELECT 1 FROM remora.messages AS m
               WHERE m.pos >> 32 = s.sid AND m.id IS NOT NULL AND m.removed IS NULL
                   AND m.pos & {mask} > s.cleared AND m.pos & {mask} <= s.summarized))
UNION ALL
(SELECT {state_item_kind}, ROW(x.number, {state_item})
 FROM asked AS s JOIN remora.state_items AS x ON x.sid = s.sid AND x.kind <> :entry_kind::text)
UNION ALL
(SELECT {job_kind}, ROW(j.number, {job})
 FROM asked AS s JOIN remora.jobs AS j ON j.sid = s.sid WHERE j.dead = 0)

-- name: messages_by_id
SELECT {entry}
FROM remora.actors AS s
JOIN remora.messages AS m
    ON m.pos >> 32 = s.sid AND m.id = ANY(:ids::text[]) AND m.id IS NOT NULL
WHERE s.user = :user AND s.session = :session AND m.removed IS NULL AND m.pos & {mask} > :after

-- name: erasable_messages
SELECT m.removed, {entry}
FROM remora.actors AS s
JOIN remora.messages AS m ON m.pos BETWEEN s.sid << 32 AND (s.sid << 32) + {mask}
WHERE s.user = :user AND s.session = :session
    AND ((m.pos >> 32 = s.sid AND m.id = ANY(:ids::text[]))
        OR m.pos = ANY(SELECT (s.sid << 32) + unnest(:seqs::bigint[])))
ORDER BY m.pos

-- name: appends_of_turn
SELECT k.key, m.removed, {entry}
FROM remora.actors AS s
JOIN remora.messages AS k
    ON k.pos >> 32 = s.sid AND k.key BETWEEN :first AND :last AND k.key IS NOT NULL
JOIN remora.messages AS m ON m.pos BETWEEN k.pos AND k.pos + k.batch - 1
WHERE s.user = :user AND s.session = :session
ORDER BY k.key, m.pos

-- name: append_of_key
SELECT {entry}
FROM remora.actors AS s
JOIN remora.messages AS k ON k.pos >> 32 = s.sid AND k.key = :digest
JOIN remora.messages AS m ON m.pos BETWEEN k.pos AND k.pos + k.batch - 1
WHERE s.user = :user AND s.session = :session
ORDER BY m.pos

-- name: messages
SELECT s.trimmed, m.removed, {entry}
FROM remora.actors AS s
JOIN remora.messages AS m ON m.pos BETWEEN (s.sid << 32) + :first AND (s.sid << 32) + :last
WHERE s.user = :user AND s.session = :session
ORDER BY m.pos

-- name: size_of_ranges
SELECT coalesce(sum(length(m.chat)), 0)::bigint
FROM jsonb_array_elements(:ranges::jsonb) AS w (value)
JOIN remora.actors AS s ON s.user = w.value ->> 0 AND s.session = w.value ->> 1
JOIN remora.messages AS m ON m.pos BETWEEN (s.sid << 32) + (w.value ->> 2)::bigint
    AND (s.sid << 32) + (w.value ->> 3)::bigint

-- name: messages_of_ranges
SELECT w.place - 1, m.pruned, s.trimmed, m.removed, {entry}
FROM jsonb_array_elements(:ranges::jsonb) WITH ORDINALITY AS w (value, place)
JOIN remora.actors AS s ON s.user = w.value ->> 0 AND s.session = w.value ->> 1
JOIN remora.messages AS m ON m.pos BETWEEN (s.sid << 32) + (w.value ->> 2)::bigint
    AND (s.sid << 32) + (w.value ->> 3)::bigint
ORDER BY w.place, m.pos

-- name: any_removed
SELECT 1
FROM remora.actors AS s
JOIN remora.messages AS m ON m.pos BETWEEN (s.sid << 32) + :first AND (s.sid << 32) + :last
WHERE s.user = :user AND s.session = :session AND m.removed IS NOT NULL AND m.removed > :since
LIMIT 1

-- name: summaries_until
SELECT s.trimmed, {summary}
FROM remora.actors AS s LEFT JOIN remora.summaries AS f ON f.sid = s.sid AND f.at_seq <= :at
WHERE s.user = :user AND s.session = :session
ORDER BY f.number

-- name: summary_figures
SELECT count(*), coalesce(sum(f.input_tokens), 0)::bigint, coalesce(sum(f.tokens), 0)::bigint,
       coalesce(sum(f.degraded), 0)::bigint
FROM remora.actors AS s JOIN remora.summaries AS f USING (sid)
WHERE s.user = :user AND s.session = :session AND f.input_tokens > 0

-- name: memories
SELECT {memory}
FROM remora.actors AS s JOIN remora.memories AS m ON m.sid = s.sid
WHERE s.user = :user AND s.session = ''
ORDER BY m.number

-- name: memories_by_id
SELECT {memory}
FROM remora.actors AS s JOIN remora.memories AS m ON m.sid = s.sid
WHERE s.user = :user AND s.session = '' AND m.id = ANY(:ids::text[])
ORDER BY m.number

-- name: memories_after
SELECT {memory}
FROM remora.actors AS s JOIN remora.memories AS m ON m.sid = s.sid
WHERE s.user = :user AND s.session = ''
    AND (m.created_us, m.id) > (:after_us::bigint, :after::text)
ORDER BY m.created_us, m.id
LIMIT :limit

-- name: facts
SELECT {memory}
FROM remora.actors AS s JOIN remora.memories AS m ON m.sid = s.sid
WHERE s.user = :user AND s.session = '' AND m.details IS NOT NULL
    AND (:session::text IS NULL OR m.session = :session)
ORDER BY m.number

-- name: facts_of_topics
-- An id begins with its topic.
SELECT {memory}
FROM remora.actors AS s JOIN remora.memories AS m ON m.sid = s.sid
WHERE s.user = :user AND s.session = '' AND m.details IS NOT NULL
    AND (:session::text IS NULL OR m.session = :session)
    AND EXISTS (SELECT 1 FROM unnest(:topics::text[]) AS w (topic)
                WHERE m.id BETWEEN w.topic AND w.topic || 'g')
ORDER BY m.number

-- name: instructions
SELECT {memory}
FROM (
    SELECT n.*, row_number() OVER (
        PARTITION BY substr(n.id, 1, 16) ORDER BY n.created_us DESC, n.number DESC
    ) AS place
    FROM (
        SELECT m.*
        FROM remora.actors AS s JOIN remora.memories AS m ON m.sid = s.sid
        WHERE s.user = :user AND s.session = '' AND m.type = 'instruction'::bytea
        ORDER BY m.created_us DESC, m.number DESC LIMIT 4 * :limit::bigint
    ) AS n
) AS m
WHERE m.place <= 3
ORDER BY m.created_us DESC, m.number DESC LIMIT :limit::bigint

-- name: removed_messages
SELECT s.session, m.pos & {mask}
FROM jsonb_array_elements(:places::jsonb) AS w (value)
JOIN remora.actors AS s ON s.user = :user AND s.session = w.value ->> 0
JOIN remora.messages AS m ON m.pos = (s.sid << 32) + (w.value ->> 1)::bigint
WHERE m.removed IS NOT NULL

-- name: message_ids
SELECT s.session, s.sid, m.pos & {mask}, m.id
FROM jsonb_array_elements(:places::jsonb) AS w (value)
JOIN remora.actors AS s ON s.user = :user AND s.session = w.value ->> 0
JOIN remora.messages AS m ON m.pos = (s.sid << 32) + (w.value ->> 1)::bigint

-- name: sessions_by_number
SELECT w.value ->> 0, s.session
FROM jsonb_array_elements(:numbered::jsonb) AS w (value)
JOIN remora.actors AS s ON s.sid = (w.value ->> 1)::bigint
WHERE s.user = :user

-- name: sessions_by_message_id
SELECT DISTINCT m.id, s.session
FROM remora.actors AS s
JOIN remora.messages AS m
    ON m.pos >> 32 = s.sid AND m.id = ANY(:ids::text[]) AND m.id IS NOT NULL
WHERE s.user = :user AND s.session <> '' AND (m.removed IS NULL OR m.chat <> :blank)

-- name: pruned_seqs
SELECT m.pos & {mask}
FROM remora.actors AS s
JOIN remora.messages AS m ON m.pos BETWEEN s.sid << 32 AND (s.sid << 32) + {mask}
WHERE s.user = :user AND s.session = :session AND m.pruned = 1
ORDER BY m.pos

-- name: state_items
SELECT {state_item}
FROM remora.actors AS s JOIN remora.state_items AS x USING (sid)
WHERE s.user = :user AND s.session = :session
ORDER BY x.number

-- name: indexed_through
SELECT flushed, sid, s.user, session, created_us, crc FROM remora.actors AS s ORDER BY sid

-- name: session_indexed_through
SELECT s.flushed FROM remora.actors AS s WHERE s.user = :user AND s.session = :session

-- name: jobs
SELECT {job}
FROM remora.jobs AS j JOIN remora.actors AS s USING (sid)
WHERE j.dead = :dead
ORDER BY j.number

-- name: jobs_of_user
SELECT {job}
FROM remora.jobs AS j JOIN remora.actors AS s USING (sid)
WHERE s.user = :user
ORDER BY j.number

-- name: unindexed_with_words
WITH told AS MATERIALIZED (
    SELECT s.session, m.pos, m.at_us, lower(encode(m.chat, 'escape')) AS text
    FROM remora.actors AS s
    JOIN remora.messages AS m
        ON m.pos > (s.sid << 32) + s.flushed AND m.pos <= (s.sid << 32) + {mask}
    WHERE s.user = :user AND s.session <> '' AND m.removed IS NULL AND m.pruned IS NULL
),
hits AS MATERIALIZED (
    SELECT session, pos, at_us, n
    FROM told
    JOIN unnest(:words::text[]) WITH ORDINALITY AS u (word, n)
        ON position(encode(convert_to(u.word, 'UTF8'), 'escape') IN text) > 0
),
weights AS (SELECT n, :rarest::bigint / count(*) AS weight FROM hits GROUP BY n)
SELECT session, pos & {mask}
FROM hits JOIN weights USING (n)
GROUP BY session, pos, at_us
ORDER BY sum(weight) DESC, at_us DESC, pos DESC
LIMIT :limit

-- name: unindexed
SELECT s.session, m.pos & {mask}
FROM remora.actors AS s
JOIN remora.messages AS m
    ON m.pos > (s.sid << 32) + s.flushing AND m.pos <= (s.sid << 32) + {mask}
WHERE s.user = :user AND s.session <> ''
    AND m.removed IS NULL AND m.pruned IS NULL
ORDER BY m.at_us DESC, m.pos DESC
LIMIT :limit

-- name: unindexed_of_sessions
SELECT s.session, m.pos & {mask}
FROM remora.actors AS s
JOIN remora.messages AS m
    ON m.pos > (s.sid << 32) + s.flushing AND m.pos <= (s.sid << 32) + {mask}
WHERE s.user = :user AND s.session <> ''
    AND s.session = ANY(:sessions::text[])
    AND m.removed IS NULL AND m.pruned IS NULL
ORDER BY m.at_us DESC, m.pos DESC
LIMIT :limit

-- name: sessions_to_flush
SELECT s.user, s.session
FROM remora.actors AS s
WHERE s.session <> '' AND s.flushing < (
    SELECT m.pos & {mask} FROM remora.messages AS m
    WHERE m.pos BETWEEN s.sid << 32 AND (s.sid << 32) + {mask} AND m.removed IS NULL
    ORDER BY m.pos DESC LIMIT 1
)
LIMIT :limit

-- name: sessions_with_fallbacks
SELECT s.user, s.session
FROM remora.actors AS s
WHERE s.sid IN (SELECT f.sid FROM remora.summaries AS f WHERE f.cover IS NOT NULL)
    AND EXISTS (SELECT 1 FROM remora.summaries AS f
                WHERE f.sid = s.sid AND f.generation = s.generation AND f.cover IS NOT NULL)
ORDER BY s.sid DESC
LIMIT :limit

-- name: counts
SELECT (SELECT count(DISTINCT s.user) FROM remora.actors AS s),
       (SELECT count(*) FROM remora.actors AS s WHERE s.session <> ''),
       m.messages, m.tokens,
       (SELECT count(*) FROM remora.summaries AS f WHERE f.kind IN ('summary', 'entry')),
       j.pending, j.dead,
       (SELECT count(*) FROM remora.memories),
       (SELECT count(*) FROM remora.state_items AS x WHERE x.kind = :keyed_kind)
FROM (SELECT count(*) AS messages, coalesce(sum(tokens), 0)::bigint AS tokens
      FROM remora.messages) AS m,
     (SELECT count(*) FILTER (WHERE dead = 0) AS pending, count(*) FILTER (WHERE dead = 1) AS dead
      FROM remora.jobs) AS j

-- name: counts_of_user
WITH own AS MATERIALIZED (SELECT s.sid, s.session FROM remora.actors AS s WHERE s.user = :user)
SELECT (SELECT (count(*) > 0)::int FROM own),
       (SELECT count(*) FROM own WHERE session <> ''),
       m.messages, m.tokens,
       (SELECT count(*) FROM own JOIN remora.summaries AS f ON f.sid = own.sid
        WHERE f.kind IN ('summary', 'entry')),
       j.pending, j.dead,
       (SELECT count(*) FROM own JOIN remora.memories AS m ON m.sid = own.sid),
       (SELECT count(*) FROM own JOIN remora.state_items AS x ON x.sid = own.sid
        WHERE x.kind = :keyed_kind)
FROM (SELECT count(*) AS messages, coalesce(sum(m.tokens), 0)::bigint AS tokens
      FROM own JOIN remora.messages AS m
          ON m.pos BETWEEN own.sid << 32 AND (own.sid << 32) + {mask}) AS m,
     (SELECT count(*) FILTER (WHERE j.dead = 0) AS pending,
             count(*) FILTER (WHERE j.dead = 1) AS dead
      FROM own JOIN remora.jobs AS j ON j.sid = own.sid) AS j

-- name: setting
SELECT value FROM remora.settings WHERE name = :name

-- name: erasures
SELECT number, user_key, session_key FROM remora.erasures ORDER BY number

-- name: messages_with_attachments
SELECT m.chat, m.meta
FROM remora.actors AS s
JOIN remora.messages AS m ON m.pos BETWEEN s.sid << 32 AND (s.sid << 32) + {mask}
WHERE s.user = :user
    AND (position(:magic::bytea IN m.chat) > 0 OR position(:magic::bytea IN m.meta) > 0)

-- name: users
SELECT DISTINCT s.user FROM remora.actors AS s

-- Archived originals: what there is of them (`remora.storage.sql.archive`).

-- name: archived_sessions
SELECT sid FROM remora.actors
WHERE sid > :after AND session <> '' AND summarized > trimmed
ORDER BY sid
LIMIT :limit

-- name: jobs_of_actors
SELECT j.sid, j.payload FROM remora.jobs AS j WHERE j.sid = ANY(:sids::bigint[])

-- name: archive_bounds
SELECT s.sid, s.trimmed, s.summarized, (
    SELECT m.pos FROM remora.messages AS m
    WHERE m.pos > (s.sid << 32) + greatest(s.flushed, s.trimmed)
        AND m.pos <= (s.sid << 32) + least(s.flushing, s.summarized)
        AND m.pruned IS NULL AND m.removed IS NULL
    ORDER BY m.pos LIMIT 1
)
FROM remora.actors AS s
WHERE s.sid = ANY(:sids::bigint[])
ORDER BY s.sid

-- name: first_since
SELECT m.pos FROM remora.messages AS m
WHERE m.pos BETWEEN :first AND :last AND m.at_us >= :at_us
ORDER BY m.pos
LIMIT 1

-- name: newest_beyond
SELECT m.pos
FROM remora.actors AS s
JOIN remora.messages AS m
    ON m.pos > (s.sid << 32) + :trimmed AND m.pos <= (s.sid << 32) + s.summarized
WHERE s.sid = :sid AND s.summarized - s.trimmed > :count::bigint AND m.removed IS NULL
ORDER BY m.pos DESC
LIMIT 1 OFFSET :count

-- name: most_bytes
-- The table is compressed a good deal, and yet not that much.
SELECT pg_total_relation_size('remora.messages') * 16

-- name: users_with_attachments
SELECT DISTINCT s.user
FROM jsonb_array_elements(:ends::jsonb) AS w (value)
JOIN remora.actors AS s ON s.sid = (w.value ->> 0)::bigint
JOIN remora.messages AS m
    ON m.pos > s.sid << 32 AND m.pos <= (s.sid << 32) + (w.value ->> 1)::bigint
WHERE position(:magic::bytea IN m.chat) > 0 OR position(:magic::bytea IN m.meta) > 0

-- name: archive_size
SELECT coalesce(sum(octet_length(m.chat) + coalesce(octet_length(m.meta), 0)), 0)::bigint
FROM remora.actors AS s
JOIN remora.messages AS m ON m.pos > s.sid << 32 AND m.pos <= (s.sid << 32) + s.summarized
WHERE s.sid = ANY(:sids::bigint[])

-- name: message_sizes
SELECT m.pos, m.at_us, octet_length(m.chat) + coalesce(octet_length(m.meta), 0)
FROM remora.messages AS m
WHERE m.pos BETWEEN :first AND :last
ORDER BY m.pos
LIMIT :limit
