-- The views about what runs, what has run, what holds VACUUM back and what would help.
CREATE SCHEMA views;
SET search_path = views;
SET cyclone.enabled = on;
SET track_counts = on;
CREATE ROLE regress_cyclone_reader;
\getenv abs_srcdir PG_ABS_SRCDIR
\set wait_for_snapshots :abs_srcdir '/include/wait_for_snapshots.sql'
\i :wait_for_snapshots
CREATE TABLE t (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = off, vacuum_truncate = off);
INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 10000) i;
DELETE FROM t WHERE id % 2 = 0;
SELECT pg_stat_force_next_flush();
SELECT relation, autovacuum_enabled, dead_rows FROM cyclone.advice WHERE relation = 't'::regclass;
SELECT count(*) FROM cyclone.progress WHERE datname = current_database();

-- who has a snapshot holds VACUUM back
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM pg_am WHERE amname = 'heap';
SELECT kind, datname = current_database() AS here, xmin_age >= 0 AS has_age, how_to_end AS not_yet
FROM cyclone.horizon_details WHERE pid = pg_backend_pid();
COMMIT;
SELECT count(*) FROM cyclone.horizon WHERE pid = pg_backend_pid();

-- bloat, by a sample that has all pages of so small a table
CALL wait_for_snapshots();
VACUUM t;
SELECT kind, count(*), bool_and(size > 0 OR total_pages = 0) AS sized FROM cyclone.estimate_bloat('t') GROUP BY kind ORDER BY kind COLLATE "C";
SELECT bloat_bytes > 0 AS bloated, sampled_pages = total_pages AS all_pages FROM cyclone.estimate_bloat('t') WHERE kind = 'table';
SELECT count(*) AS tables FROM cyclone.bloat WHERE relation = 't'::regclass;

-- what has run
VACUUM (FREEZE, INDEX_CLEANUP off) t;
SELECT started_by, operation, options, run_by, outcome, rows_removed
FROM cyclone.history_details WHERE relid = 't'::regclass AND datname = current_database() ORDER BY id;
SELECT count(*) FROM cyclone.autovacuum WHERE relid = 't'::regclass AND datname = current_database();
SELECT max(id) AS run FROM cyclone.history_details WHERE relid = 't'::regclass AND datname = current_database() \gset

-- what is others' is theirs
SET ROLE regress_cyclone_reader;
SELECT count(*) AS rows, count(relation) AS relations, count(usename) AS users FROM cyclone.history_details WHERE id = :run;
SELECT * FROM cyclone.estimate_bloat('views.t');
SELECT count(*) FROM cyclone.autovacuum;
SELECT cyclone.history_reset();
SELECT cyclone.autovacuum_reset();
RESET ROLE;

SET client_min_messages = warning;
DROP SCHEMA views CASCADE;
DROP ROLE regress_cyclone_reader;
