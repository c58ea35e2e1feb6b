-- A VACUUM that keeps to a budget, of a cost delay, adaptive or not, does what any VACUUM does.
CREATE SCHEMA pace;
SET search_path = pace;
SET cyclone.enabled = on;
SET cyclone.adaptive_delay = off;
SET vacuum_cost_delay = 0;
\getenv abs_srcdir PG_ABS_SRCDIR
\set wait_for_snapshots :abs_srcdir '/include/wait_for_snapshots.sql'
\i :wait_for_snapshots
CREATE TABLE t (id int PRIMARY KEY) WITH (autovacuum_enabled = off, vacuum_truncate = off);
INSERT INTO t SELECT generate_series(1, 10000);
DELETE FROM t WHERE id % 2 = 0;
CALL wait_for_snapshots();
VACUUM (ADAPTIVE_DELAY) t;
DELETE FROM t WHERE id % 3 = 0;
CALL wait_for_snapshots();
SET cyclone.adaptive_delay = on;
VACUUM t;
SET cyclone.adaptive_delay = off;
DELETE FROM t WHERE id % 5 = 0;
CALL wait_for_snapshots();
SET vacuum_cost_delay = '1ms';
VACUUM t;
RESET vacuum_cost_delay;
SELECT run_by, outcome, rows_removed, slept_seconds IS NOT NULL AS could_sleep
FROM cyclone.history_details WHERE relid = 't'::regclass AND datname = current_database() ORDER BY id;
SELECT count(*) FROM t;
-- nobody is at work any more
SELECT count(*) FROM cyclone.pace WHERE datname = current_database();

SET client_min_messages = warning;
DROP SCHEMA pace CASCADE;
