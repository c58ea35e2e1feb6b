-- VACUUM FULL makes a new copy of the table, its TOAST table and its indexes, with workers if there are any to be had.
CREATE SCHEMA rewrite;
SET search_path = rewrite;
SET cyclone.enabled = on;
\getenv abs_srcdir PG_ABS_SRCDIR
\set wait_for_snapshots :abs_srcdir '/include/wait_for_snapshots.sql'
\i :wait_for_snapshots
CREATE TABLE t (id int PRIMARY KEY, v text, w text) WITH (autovacuum_enabled = off);
ALTER TABLE t ALTER w SET STORAGE EXTERNAL;
INSERT INTO t SELECT i, 'row ' || i, CASE WHEN i % 100 = 0 THEN repeat('w', 4000) END FROM generate_series(1, 30000) i;
CREATE INDEX t_v ON t (v);
CREATE INDEX t_hash ON t USING hash (id);
DELETE FROM t WHERE id % 3 <> 0;
UPDATE t SET v = v || '!' WHERE id % 9 = 0;
CALL wait_for_snapshots();
SELECT pg_relation_filenode('t') AS filenode, pg_relation_size('t') AS size, pg_total_relation_size('t') AS total \gset
VACUUM (FULL, PARALLEL 1) t;
SELECT pg_relation_filenode('t') <> :filenode AS copied, pg_relation_size('t') < :size / 2 AS half, pg_total_relation_size('t') < :total / 2 AS all_half;
SELECT count(*), sum(id), count(*) FILTER (WHERE v LIKE '%!') AS updated, sum(length(w)) FROM t;
SET enable_seqscan = off;
SELECT id FROM t WHERE v = 'row 9!';
SELECT v FROM t WHERE id = 29997;
SELECT count(*) FROM t WHERE id IN (1, 2, 3);
RESET enable_seqscan;
SELECT run_by, operation, outcome, bytes_after < bytes_before AS smaller
FROM cyclone.history_details WHERE relid = 't'::regclass AND datname = current_database();

-- nothing is lost that somebody may still see
BEGIN;
INSERT INTO t VALUES (0, 'kept');
COMMIT;
VACUUM (FULL REWRITE, ANALYZE) t;
SELECT count(*), min(v) FROM t;

SET client_min_messages = warning;
DROP SCHEMA rewrite CASCADE;
