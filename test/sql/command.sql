-- VACUUM as a command: its options, what it processes and what it says must be as with the server's own.
CREATE SCHEMA command;
SET search_path = command;
CREATE ROLE regress_cyclone_owner;
CREATE ROLE regress_cyclone_maintainer;
CREATE ROLE regress_cyclone_nobody;
GRANT USAGE ON SCHEMA command TO PUBLIC;

CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t SELECT i, repeat('x', i) FROM generate_series(1, 100) i;
CREATE TABLE u (id int, v int);
CREATE MATERIALIZED VIEW m AS SELECT * FROM t;
CREATE VIEW w AS SELECT * FROM t;
CREATE SEQUENCE s;
CREATE FOREIGN DATA WRAPPER cyclone_dummy;
CREATE SERVER cyclone_dummy FOREIGN DATA WRAPPER cyclone_dummy;
CREATE FOREIGN TABLE f (id int) SERVER cyclone_dummy;

-- what has been vacuumed and analyzed since the last reset
CREATE VIEW done AS
    SELECT relname, vacuum_count AS vacuums, analyze_count AS analyzes
    FROM pg_stat_all_tables
    WHERE schemaname = 'command' AND vacuum_count + analyze_count > 0;
CREATE FUNCTION reset_done() RETURNS void LANGUAGE sql AS $$
    SELECT pg_stat_reset_single_table_counters(oid) FROM pg_class WHERE relnamespace = 'command'::regnamespace
$$;

-- one table, several, none that exists, things that are no tables
VACUUM t;
VACUUM t, u, t;
VACUUM m;
VACUUM ANALYZE t (id), u;
VACUUM nonexistent;
VACUUM t, nonexistent;
VACUUM w;
VACUUM s;
VACUUM f;
VACUUM t_pkey;
VACUUM ANALYZE w;
VACUUM (SKIP_LOCKED) w, t;
SELECT * FROM done ORDER BY 1;
VACUUM pg_class, pg_catalog.pg_database;
VACUUM (ANALYZE) pg_type;
CREATE TEMP TABLE temporary AS SELECT 1 AS id;
VACUUM (ANALYZE, VERBOSE false) temporary;

-- options
SELECT reset_done();
VACUUM (FREEZE, ANALYZE, SKIP_LOCKED, DISABLE_PAGE_SKIPPING) t;
VACUUM FREEZE ANALYZE t;
VACUUM (FREEZE off, FULL off, VERBOSE 0, SKIP_LOCKED 'false') t;
VACUUM (INDEX_CLEANUP) t;
VACUUM (INDEX_CLEANUP auto) t;
VACUUM (INDEX_CLEANUP On) t;
VACUUM (INDEX_CLEANUP 0) t;
VACUUM (TRUNCATE, TRUNCATE false) t;
VACUUM (PARALLEL 0) t;
VACUUM (PARALLEL 2) t;
VACUUM (BUFFER_USAGE_LIMIT 0) t;
VACUUM (BUFFER_USAGE_LIMIT '512 kB', ANALYZE) t;
VACUUM (FULL) t;
VACUUM (FULL REWRITE) t;
VACUUM (FULL 'Rewrite', PARALLEL 0) t;
VACUUM (SKIP_DATABASE_STATS) t;
VACUUM (ONLY_DATABASE_STATS);
VACUUM (ONLY_DATABASE_STATS, PROCESS_TOAST false);
SELECT * FROM done ORDER BY 1;

-- option errors are the server's
VACUUM (BOGUS) t;
VACUUM ("ANALYZE") t;
VACUUM (FREEZE yes) t;
VACUUM (FREEZE 2) t;
VACUUM (FULL 1.0) t;
VACUUM (INDEX_CLEANUP maybe) t;
VACUUM (TRUNCATE auto) t;
VACUUM (PARALLEL) t;
VACUUM (PARALLEL on) t;
VACUUM (PARALLEL -1) t;
VACUUM (PARALLEL 1025) t;
VACUUM (BUFFER_USAGE_LIMIT) t;
VACUUM (BUFFER_USAGE_LIMIT 127) t;
VACUUM (BUFFER_USAGE_LIMIT '17 GB') t;
VACUUM (BUFFER_USAGE_LIMIT '12 parsecs') t;
VACUUM (FULL, PARALLEL 2) t;
VACUUM (FULL, DISABLE_PAGE_SKIPPING) t;
VACUUM (FULL, PROCESS_TOAST false) t;
VACUUM (FULL, BUFFER_USAGE_LIMIT 512) t;
VACUUM (ONLY_DATABASE_STATS) t;
VACUUM (ONLY_DATABASE_STATS, FREEZE);
VACUUM t (id);
ANALYZE (FREEZE) t;

-- the table and its TOAST table
CREATE TABLE toasted (v text);
CREATE VIEW toasted_done AS
    SELECT main.vacuum_count AS main, toast.vacuum_count AS toast
    FROM pg_class, pg_stat_all_tables main, pg_stat_all_tables toast
    WHERE pg_class.oid = 'command.toasted'::regclass AND main.relid = pg_class.oid AND toast.relid = reltoastrelid;
VACUUM toasted;
SELECT * FROM toasted_done;
VACUUM (PROCESS_TOAST false) toasted;
SELECT * FROM toasted_done;
VACUUM (PROCESS_MAIN false) toasted;
SELECT * FROM toasted_done;
VACUUM (PROCESS_MAIN false, PROCESS_TOAST false) toasted;
SELECT * FROM toasted_done;
VACUUM (PROCESS_MAIN false, ANALYZE) toasted;
SELECT * FROM toasted_done;

-- table options, and how the command overrides them; a temporary table, as other sessions' snapshots can't hold its dead rows back
CREATE TEMP TABLE options (id int) WITH (vacuum_truncate = false);
INSERT INTO options SELECT generate_series(1, 1000);
DELETE FROM options;
VACUUM options;
SELECT pg_relation_size('options') > 0 AS kept;
VACUUM (TRUNCATE) options;
SELECT pg_relation_size('options') > 0 AS kept;
ALTER TABLE options RESET (vacuum_truncate);
INSERT INTO options SELECT generate_series(1, 1000);
DELETE FROM options;
VACUUM (TRUNCATE off) options;
SELECT pg_relation_size('options') > 0 AS kept;
VACUUM options;
SELECT pg_relation_size('options') > 0 AS kept;

-- partitions
CREATE TABLE parted (id int, v text) PARTITION BY LIST (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2) PARTITION BY LIST (v);
CREATE TABLE parted_2_a PARTITION OF parted_2 FOR VALUES IN ('a');
SELECT reset_done();
VACUUM parted;
VACUUM ANALYZE parted_2 (v);
SELECT * FROM done ORDER BY 1;
-- only PostgreSQL 18 follows inheritance and knows ONLY: compare with the server's own VACUUM
CREATE TABLE parent (id int);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE grandchild () INHERITS (child);
SELECT current_setting('server_version_num')::int >= 180000 AS has_only \gset
SET cyclone.enabled = off;
SELECT reset_done();
VACUUM ANALYZE parent;
\if :has_only
VACUUM ANALYZE ONLY child;
\endif
CREATE TABLE done_by_server AS SELECT * FROM done;
SET cyclone.enabled = on;
SELECT reset_done();
VACUUM ANALYZE parent;
\if :has_only
VACUUM ANALYZE ONLY child;
\endif
SELECT relname, done, done_by_server
FROM done FULL JOIN done_by_server USING (relname)
WHERE done IS DISTINCT FROM done_by_server;
DROP TABLE done_by_server;
\if :has_only
VACUUM (SKIP_LOCKED) ONLY parted_1;
\set vacuum_only 'VACUUM ONLY parted'
\else
\set vacuum_only 'DO $$BEGIN RAISE WARNING \'VACUUM ONLY of partitioned table "parted" has no effect\'; END$$'
\endif
:vacuum_only;

-- the whole database
SELECT reset_done();
VACUUM;
SELECT * FROM done ORDER BY 1;
VACUUM (ANALYZE, SKIP_DATABASE_STATS);
SELECT * FROM done ORDER BY 1;

-- privileges
CREATE TABLE owned (id int, v text);
CREATE TABLE owned_parted (id int) PARTITION BY LIST (id);
CREATE TABLE owned_parted_1 PARTITION OF owned_parted FOR VALUES IN (1);
ALTER TABLE owned OWNER TO regress_cyclone_owner;
ALTER TABLE owned_parted_1 OWNER TO regress_cyclone_owner;
GRANT MAINTAIN ON owned, owned_parted TO regress_cyclone_maintainer;
SELECT reset_done();
SET ROLE regress_cyclone_nobody;
VACUUM owned;
VACUUM (ANALYZE) owned, t;
VACUUM owned_parted;
VACUUM (SKIP_LOCKED) pg_class;
VACUUM pg_catalog.pg_authid;
SET ROLE regress_cyclone_owner;
VACUUM ANALYZE owned;
VACUUM owned_parted;
SET ROLE regress_cyclone_maintainer;
VACUUM ANALYZE owned;
VACUUM owned_parted;
RESET ROLE;
SELECT * FROM done ORDER BY 1;
-- a TOAST table goes by the privileges of its table
SELECT vacuum_count
FROM pg_class, pg_stat_all_tables
WHERE pg_class.oid = 'owned'::regclass AND relid = reltoastrelid;

-- where VACUUM isn't allowed
BEGIN;
VACUUM t;
ROLLBACK;
BEGIN;
SAVEPOINT s;
VACUUM (BOGUS) t;
ROLLBACK;
VACUUM t \; SELECT 1;
SELECT 1 \; VACUUM t;
DO $$BEGIN EXECUTE 'VACUUM t'; END$$;
CREATE PROCEDURE run_vacuum() LANGUAGE plpgsql AS $$BEGIN COMMIT; EXECUTE 'VACUUM t'; END$$;
CALL run_vacuum();
CREATE FUNCTION run_vacuum_sql() RETURNS void LANGUAGE sql AS 'VACUUM t';
SELECT run_vacuum_sql();
-- where it is
SET default_transaction_read_only = on;
VACUUM t;
RESET default_transaction_read_only;
VACUUM t \bind \g
SET default_transaction_isolation = 'serializable';
VACUUM ANALYZE t;
RESET default_transaction_isolation;

-- VACUUM and ANALYZE inside VACUUM, from a function in an index
CREATE FUNCTION run_command() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE coalesce(current_setting('command.nested', true), 'SELECT');
END
$$;
CREATE FUNCTION with_command(id int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    PERFORM command.run_command();
    RETURN id;
END
$$;
CREATE TABLE nested (id int);
INSERT INTO nested VALUES (1), (2);
CREATE INDEX ON nested (with_command(id));
SET command.nested = 'ANALYZE command.u';
SET cyclone.enabled = off;
VACUUM ANALYZE nested;
SET cyclone.enabled = on;
VACUUM ANALYZE nested;
VACUUM nested;
SET command.nested = 'SET cyclone.enabled = off; ANALYZE (VERBOSE, SKIP_LOCKED) command.u (id)';
VACUUM ANALYZE nested;
SET command.nested = 'ANALYZE (BOGUS) command.u';
VACUUM ANALYZE nested;
SET command.nested = 'VACUUM command.u';
SET cyclone.enabled = off;
VACUUM ANALYZE nested;
SET cyclone.enabled = on;
VACUUM ANALYZE nested;
VACUUM (FULL) nested;
SET command.nested = 'SET LOCAL search_path = pg_temp';
VACUUM ANALYZE nested;
SHOW cyclone.enabled;
-- the session is as it was
SELECT current_user = session_user AS same_user, current_setting('search_path');

-- another access method with the heap's own handler
CREATE ACCESS METHOD cyclone_heap2 TYPE TABLE HANDLER heap_tableam_handler;
CREATE TABLE other (id int PRIMARY KEY, v text) USING cyclone_heap2;
SELECT reset_done();
VACUUM ANALYZE other;
SELECT * FROM done ORDER BY 1;

-- the setting
SET cyclone.enabled = off;
VACUUM ANALYZE t;
VACUUM w;
SET cyclone.enabled = maybe;
SET cyclone.nonexistent = 1;
RESET cyclone.enabled;

-- the adaptive delay
SHOW cyclone.adaptive_delay;
SET cyclone.adaptive_delay = YES;
VACUUM (ADAPTIVE_DELAY 0) t;
SET cyclone.adaptive_delay = '20ms';
VACUUM (ADAPTIVE_DELAY off) t;
SHOW cyclone.adaptive_delay;
SET cyclone.adaptive_delay = 'Autovacuum';
SHOW cyclone.adaptive_delay;
RESET cyclone.adaptive_delay;
VACUUM (ADAPTIVE_DELAY) t;
VACUUM (ADAPTIVE_DELAY maybe) t;
VACUUM (ADAPTIVE_DELAY '20ms') t;
VACUUM (FULL, ADAPTIVE_DELAY) t;
VACUUM (FULL rewritten) t;
ANALYZE (FULL rewrite) t;
BEGIN;
VACUUM (FULL rewrite) t;
ROLLBACK;
VACUUM (ONLY_DATABASE_STATS, ADAPTIVE_DELAY);
ANALYZE (ADAPTIVE_DELAY) t;
BEGIN;
VACUUM (ADAPTIVE_DELAY) t;
ROLLBACK;
SELECT count(*) FROM cyclone.pace;

SET client_min_messages = warning;
DROP SCHEMA command CASCADE;
DROP ACCESS METHOD cyclone_heap2;
DROP FOREIGN DATA WRAPPER cyclone_dummy CASCADE;
DROP ROLE regress_cyclone_owner, regress_cyclone_maintainer, regress_cyclone_nobody;
