-- VACUUM (FULL INPLACE) makes a table small without a second copy: rows move to the front, and its end is cut off.
CREATE SCHEMA inplace;
SET search_path = inplace;
SET cyclone.enabled = on;
\getenv abs_srcdir PG_ABS_SRCDIR
\set wait_for_snapshots :abs_srcdir '/include/wait_for_snapshots.sql'
\i :wait_for_snapshots
CREATE TABLE t (id int PRIMARY KEY, v text, w text) WITH (autovacuum_enabled = off, vacuum_truncate = on, toast.vacuum_truncate = on);
ALTER TABLE t ALTER w SET STORAGE EXTERNAL;
INSERT INTO t SELECT i, 'row ' || i, CASE WHEN i % 100 = 0 THEN repeat('w', 4000) END FROM generate_series(1, 30000) i;
CREATE UNIQUE INDEX t_v ON t (v);
DELETE FROM t WHERE id <= 20000;
CALL wait_for_snapshots();
SELECT pg_relation_filenode('t') AS filenode, pg_relation_size('t') AS size, pg_total_relation_size('t') AS total \gset
VACUUM (FULL INPLACE) t;
SELECT pg_relation_filenode('t') = :filenode AS same_file, pg_relation_size('t') < :size / 2 AS half, pg_total_relation_size('t') < :total / 2 AS all_half;
SELECT count(*), sum(id), sum(length(w)) FROM t;
SET enable_seqscan = off;
SELECT id FROM t WHERE v = 'row 29999';
SELECT v FROM t WHERE id = 20001;
SELECT count(*) FROM t WHERE id IN (1, 20000, 20001);
RESET enable_seqscan;
INSERT INTO t VALUES (30000, 'twice');
INSERT INTO t VALUES (30001, 'row 30000');
SELECT run_by, operation, outcome, rows_moved > 0 AS moved, bytes_after < bytes_before AS smaller
FROM cyclone.history_details WHERE relid = 't'::regclass AND datname = current_database();

-- where it can't be done
VACUUM (FULL INPLACE) pg_class;
BEGIN;
VACUUM (FULL INPLACE) t;
ROLLBACK;

SET client_min_messages = warning;
DROP SCHEMA inplace CASCADE;
