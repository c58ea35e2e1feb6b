-- The objects of pg_cyclone: the progress and the pace of running VACUUMs, and the bloat of tables.

\echo Use "CREATE EXTENSION pg_cyclone" to load this file. \quit

CREATE FUNCTION progress_rows(
    OUT pid int,
    OUT leader_pid int,
    OUT datid oid,
    OUT relid oid,
    OUT role text,
    OUT phase text,
    OUT blocks_done bigint,
    OUT blocks_total bigint,
    OUT index_relid oid,
    OUT dead_tids bigint,
    OUT store_bytes bigint,
    OUT store_limit bigint,
    OUT bytes_freed bigint,
    OUT usesysid oid)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pg_cyclone_progress';

COMMENT ON FUNCTION progress_rows() IS
'The rows of the view cyclone.progress, without names.';

CREATE VIEW progress AS
SELECT p.pid,
       p.leader_pid,
       p.datid,
       d.datname,
       p.relid,
       CASE WHEN p.datid = (SELECT oid FROM pg_catalog.pg_database
                            WHERE datname = pg_catalog.current_database())
            THEN p.relid::pg_catalog.regclass::pg_catalog.text END AS relation,
       p.role,
       p.phase,
       p.blocks_done,
       p.blocks_total,
       p.index_relid,
       p.dead_tids,
       p.store_bytes,
       p.store_limit,
       p.bytes_freed
FROM cyclone.progress_rows() p
LEFT JOIN pg_catalog.pg_database d ON d.oid = p.datid;

COMMENT ON VIEW progress IS
'What each process of each running VACUUM is doing. A user without the rights of the command''s user or of pg_read_all_stats sees pid, datid and datname only.';
COMMENT ON COLUMN progress.pid IS 'Process ID of the leader or worker';
COMMENT ON COLUMN progress.leader_pid IS 'Process ID of the leader, which runs the command';
COMMENT ON COLUMN progress.datid IS 'OID of the database';
COMMENT ON COLUMN progress.datname IS 'Name of the database';
COMMENT ON COLUMN progress.relid IS 'OID of the table being vacuumed';
COMMENT ON COLUMN progress.relation IS 'Name of the table; null if it is in another database';
COMMENT ON COLUMN progress.role IS '"leader" or "worker"';
COMMENT ON COLUMN progress.phase IS 'What the process does, in the words of pg_stat_progress_vacuum, and some more for VACUUM FULL';
COMMENT ON COLUMN progress.blocks_done IS 'Blocks that this process has done in this phase: of the heap, scanned or skipped; of a btree, visited; of other indexes, 0; when rows are moved, vacated';
COMMENT ON COLUMN progress.blocks_total IS 'Blocks of the table, for all processes together; in index phases, of the current index; when rows are moved, to be vacated';
COMMENT ON COLUMN progress.index_relid IS 'OID of the index that the process works on; null if none';
COMMENT ON COLUMN progress.dead_tids IS 'Dead item identifiers in the store; for the leader only';
COMMENT ON COLUMN progress.store_bytes IS 'Memory used by the dead-TID store, in bytes; for the leader only';
COMMENT ON COLUMN progress.store_limit IS 'Memory that the store may use (maintenance_work_mem), in bytes; for the leader only';
COMMENT ON COLUMN progress.bytes_freed IS 'What VACUUM (FULL INPLACE) has given back of the table so far, in bytes; for the leader only';

CREATE FUNCTION pace_rows(
    OUT pid int,
    OUT datid oid,
    OUT relid oid,
    OUT target_ms float8,
    OUT percentile float8,
    OUT latency_ms float8,
    OUT budget float8,
    OUT rate float8,
    OUT asleep float8,
    OUT latency_of text,
    OUT shared_by int,
    OUT limited_by text,
    OUT usesysid oid)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pg_cyclone_pace';

COMMENT ON FUNCTION pace_rows() IS
'The rows of the view cyclone.pace, without names.';

CREATE VIEW pace AS
SELECT p.pid,
       p.datid,
       d.datname,
       p.relid,
       CASE WHEN p.datid = (SELECT oid FROM pg_catalog.pg_database
                            WHERE datname = pg_catalog.current_database())
            THEN p.relid::pg_catalog.regclass::pg_catalog.text END AS relation,
       p.target_ms,
       p.latency_of,
       p.percentile,
       p.latency_ms,
       p.budget,
       p.rate,
       p.asleep,
       p.shared_by,
       p.limited_by
FROM cyclone.pace_rows() p
LEFT JOIN pg_catalog.pg_database d ON d.oid = p.datid;

COMMENT ON VIEW pace IS
'How fast each running VACUUM goes, and why not faster; it is brought up to date a few times a second. A user without the rights of the command''s user or of pg_read_all_stats sees pid, datid and datname only.';
COMMENT ON COLUMN pace.pid IS 'Process ID of the leader, which runs the command';
COMMENT ON COLUMN pace.datid IS 'OID of the database';
COMMENT ON COLUMN pace.datname IS 'Name of the database';
COMMENT ON COLUMN pace.relid IS 'OID of the table being vacuumed';
COMMENT ON COLUMN pace.relation IS 'Name of the table; null if it is in another database';
COMMENT ON COLUMN pace.target_ms IS 'Latency target, in milliseconds; null if there is none, or if it is still to be learned';
COMMENT ON COLUMN pace.latency_of IS 'What the target is about: "statements" or "transactions"; null without one';
COMMENT ON COLUMN pace.percentile IS 'Which percentile of their latency is to be kept at the target; null without one';
COMMENT ON COLUMN pace.latency_ms IS 'That percentile as last measured, in milliseconds; null if there were none of late';
COMMENT ON COLUMN pace.budget IS 'What all processes of the VACUUM together may cost a second, in units of vacuum_cost_page_hit and its like; null if there is no bound';
COMMENT ON COLUMN pace.rate IS 'What they cost a second of late; null if it is not counted, as there is neither cost-based delay nor a target';
COMMENT ON COLUMN pace.asleep IS 'Share of their time that the processes sleep to keep to the budget, 0 to 1';
COMMENT ON COLUMN pace.shared_by IS 'How many VACUUMs of the server have this target, and share its budget; null without one';
COMMENT ON COLUMN pace.limited_by IS 'What keeps the VACUUM from going faster: "nothing", "cost delay", "latency target", "learning the target", "floor" (the target is missed at the slowest pace), or "nothing (failsafe)"';

CREATE FUNCTION autovacuum_rows(
    OUT datid oid,
    OUT relid oid,
    OUT engine_count bigint,
    OUT server_count bigint,
    OUT cancel_count bigint,
    OUT error_count bigint,
    OUT last_by text,
    OUT last_reason text,
    OUT last_start timestamptz,
    OUT last_seconds float8,
    OUT last_rows_removed bigint,
    OUT last_pages_scanned bigint,
    OUT last_workers int,
    OUT failures int,
    OUT failed_with text,
    OUT breaker_open boolean,
    OUT breaker_until timestamptz)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'pg_cyclone_autovacuum';

COMMENT ON FUNCTION autovacuum_rows() IS
'What became of the tables that autovacuum came to; see the view cyclone.autovacuum';

CREATE VIEW autovacuum AS
SELECT a.datid,
       d.datname,
       a.relid,
       CASE WHEN a.datid = 0 OR
                 a.datid = (SELECT oid FROM pg_catalog.pg_database
                            WHERE datname = pg_catalog.current_database())
            THEN a.relid::pg_catalog.regclass::pg_catalog.text END AS relation,
       a.engine_count,
       a.server_count,
       a.cancel_count,
       a.error_count,
       a.last_by,
       a.last_reason,
       a.last_start,
       a.last_seconds,
       a.last_rows_removed,
       a.last_pages_scanned,
       a.last_workers,
       a.failures,
       a.failed_with,
       a.breaker_open,
       a.breaker_until
FROM cyclone.autovacuum_rows() a
LEFT JOIN pg_catalog.pg_database d ON d.oid = a.datid;

COMMENT ON VIEW autovacuum IS
'A row for each table that autovacuum came to since the server''s start or the last reset: who vacuumed it, and what came of it';
COMMENT ON COLUMN autovacuum.datid IS 'OID of the database; 0 for a shared catalog';
COMMENT ON COLUMN autovacuum.datname IS 'Name of the database';
COMMENT ON COLUMN autovacuum.relid IS 'OID of the table or TOAST table';
COMMENT ON COLUMN autovacuum.relation IS 'Its name; null if it is in another database';
COMMENT ON COLUMN autovacuum.engine_count IS 'How often pg_cyclone''s engine vacuumed it to the end';
COMMENT ON COLUMN autovacuum.server_count IS 'How often it was left to PostgreSQL''s own VACUUM, to the end';
COMMENT ON COLUMN autovacuum.cancel_count IS 'How often the engine gave way, as somebody waited for a lock on the table, cancelled it, or terminated one of its parallel workers';
COMMENT ON COLUMN autovacuum.error_count IS 'How often the engine failed, or a crash of the server came while it was at work';
COMMENT ON COLUMN autovacuum.last_by IS 'Who vacuumed it last: "engine" or "server"';
COMMENT ON COLUMN autovacuum.last_reason IS 'Why not the engine: "off" (cyclone.autovacuum), "circuit breaker", "crashes" (so many that all tables are left to PostgreSQL for a while), or "no note on disk" (it couldn''t be written)';
COMMENT ON COLUMN autovacuum.last_start IS 'When that began';
COMMENT ON COLUMN autovacuum.last_seconds IS 'How long it took, in seconds, also if it was cancelled or failed';
COMMENT ON COLUMN autovacuum.last_rows_removed IS 'Rows that the engine removed then; null if it was the server';
COMMENT ON COLUMN autovacuum.last_pages_scanned IS 'Pages of the table that the engine scanned then; null if it was the server';
COMMENT ON COLUMN autovacuum.last_workers IS 'Parallel workers that the engine had then; null if it was the server';
COMMENT ON COLUMN autovacuum.failures IS 'How often in a row the engine failed by now';
COMMENT ON COLUMN autovacuum.failed_with IS 'The last failure: an SQLSTATE, or "crash"; null if the engine was successful since';
COMMENT ON COLUMN autovacuum.breaker_open IS 'Is the table left to PostgreSQL''s own VACUUM because of that?';
COMMENT ON COLUMN autovacuum.breaker_until IS 'Until when; null if it is not';

CREATE FUNCTION autovacuum_reset(relation regclass DEFAULT NULL)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'pg_cyclone_autovacuum_reset';

COMMENT ON FUNCTION autovacuum_reset(regclass) IS
'Forgets what became of a table in autovacuum and closes its circuit breaker; without an argument, of all tables. Returns how many there were';

REVOKE ALL ON FUNCTION autovacuum_rows(), autovacuum_reset(regclass) FROM PUBLIC;
REVOKE ALL ON autovacuum FROM PUBLIC;
GRANT EXECUTE ON FUNCTION autovacuum_rows() TO pg_monitor;
GRANT SELECT ON autovacuum TO pg_monitor;

CREATE FUNCTION estimate_bloat(
    table_name regclass,
    sample_pages int DEFAULT 5000,
    seed bigint DEFAULT NULL,
    OUT relation regclass,
    OUT kind text,
    OUT size bigint,
    OUT live_bytes bigint,
    OUT dead_bytes bigint,
    OUT held_bytes bigint,
    OUT free_bytes bigint,
    OUT bloat_bytes bigint,
    OUT bloat_ratio float8,
    OUT error_bytes bigint,
    OUT sampled_pages bigint,
    OUT total_pages bigint,
    OUT rewrite_size bigint,
    OUT rewrite_disk bigint,
    OUT rewrite_lock text,
    OUT inplace_size bigint,
    OUT inplace_bytes bigint,
    OUT inplace_disk bigint,
    OUT inplace_lock text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pg_cyclone_estimate_bloat';

COMMENT ON FUNCTION estimate_bloat(regclass, int, bigint) IS
'The bloat of a table, its TOAST table and its indexes, estimated from at most sample_pages pages of each; of smaller ones it is exact. The same seed chooses the same pages. For those who may VACUUM the table and for members of pg_stat_scan_tables. The columns are those of the view cyclone.bloat.';

CREATE FUNCTION bloat_rows(
    relation_oid oid,
    OUT relation regclass,
    OUT kind text,
    OUT size bigint,
    OUT live_bytes bigint,
    OUT dead_bytes bigint,
    OUT held_bytes bigint,
    OUT free_bytes bigint,
    OUT bloat_bytes bigint,
    OUT bloat_ratio float8,
    OUT error_bytes bigint,
    OUT sampled_pages bigint,
    OUT total_pages bigint,
    OUT rewrite_size bigint,
    OUT rewrite_disk bigint,
    OUT rewrite_lock text,
    OUT inplace_size bigint,
    OUT inplace_bytes bigint,
    OUT inplace_disk bigint,
    OUT inplace_lock text)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pg_cyclone_bloat_rows';

COMMENT ON FUNCTION bloat_rows(oid) IS
'The rows of the view cyclone.bloat for a table: none if the user may not see them or if they cannot be had.';

CREATE VIEW bloat AS
SELECT c.oid::pg_catalog.regclass AS table_name,
       b.relation,
       b.kind,
       b.size,
       b.live_bytes,
       b.dead_bytes,
       b.held_bytes,
       b.free_bytes,
       b.bloat_bytes,
       b.bloat_ratio,
       b.error_bytes,
       b.sampled_pages,
       b.total_pages,
       b.rewrite_size,
       b.rewrite_disk,
       b.rewrite_lock,
       b.inplace_size,
       b.inplace_bytes,
       b.inplace_disk,
       b.inplace_lock
FROM pg_catalog.pg_class c
CROSS JOIN LATERAL cyclone.bloat_rows(c.oid) b
WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't';

COMMENT ON VIEW bloat IS
'The bloat of each table, TOAST table and index of this database that the user may VACUUM; of all for members of pg_stat_scan_tables. It is estimated when the view is read, from at most 5000 pages of each. Temporary tables are left out; on a standby, unlogged ones, too. Of what another session has locked exclusively there are no figures.';
COMMENT ON COLUMN bloat.table_name IS 'Table that the row belongs to; a condition on this column keeps other tables from being read';
COMMENT ON COLUMN bloat.relation IS 'What the row is about: the table, its TOAST table, or an index of either';
COMMENT ON COLUMN bloat.kind IS '"table", "materialized view", "TOAST table" or "index"';
COMMENT ON COLUMN bloat.size IS 'Present size, in bytes, without free space map and visibility map; like all that follows null if another session has it locked exclusively';
COMMENT ON COLUMN bloat.live_bytes IS 'Length of the live rows, or of the index entries, in bytes, as pgstattuple counts it; like all sizes below null if the access method is neither heap nor btree, or if the index is invalid';
COMMENT ON COLUMN bloat.dead_bytes IS 'Length of the dead rows that VACUUM would free, in bytes; of an index, of the entries that are marked as dead';
COMMENT ON COLUMN bloat.held_bytes IS 'Length of the dead rows that VACUUM would not free yet as a transaction, a replication slot or a standby may need them, in bytes; 0 for an index';
COMMENT ON COLUMN bloat.free_bytes IS 'Free space in the pages, in bytes, the part included that fillfactor asks for; of an index, that in leaf pages, and its empty pages';
COMMENT ON COLUMN bloat.bloat_bytes IS 'What VACUUM (FULL REWRITE) would give back, in bytes: size less rewrite_size, or 0. The space that fillfactor asks for is no bloat';
COMMENT ON COLUMN bloat.bloat_ratio IS 'bloat_bytes as a share of size, 0 to 1';
COMMENT ON COLUMN bloat.error_bytes IS 'With a confidence of 95 %, by how many bytes bloat_bytes is wrong at most for the sake of the sample; 0 if all pages were read';
COMMENT ON COLUMN bloat.sampled_pages IS 'Pages that were read';
COMMENT ON COLUMN bloat.total_pages IS 'Pages that there are';
COMMENT ON COLUMN bloat.rewrite_size IS 'Size after VACUUM (FULL REWRITE) or, of an index, REINDEX, in bytes';
COMMENT ON COLUMN bloat.rewrite_disk IS 'Disk space that VACUUM (FULL REWRITE) of the table needs besides, in bytes: the new table, TOAST table and indexes, as they are estimated; others than heaps and btrees with their present size. As much WAL comes on top unless the table is unlogged or wal_level is minimal, and files for sorting the largest index if it is larger than maintenance_work_mem. In the row of the table only';
COMMENT ON COLUMN bloat.rewrite_lock IS 'Lock that VACUUM (FULL REWRITE) holds; in the row of the table only';
COMMENT ON COLUMN bloat.inplace_size IS 'Size after VACUUM (FULL INPLACE) at best, in bytes: when no old transaction keeps it from moving and freeing rows; null for catalogs';
COMMENT ON COLUMN bloat.inplace_bytes IS 'What VACUUM (FULL INPLACE) would give back at best, in bytes; null for catalogs';
COMMENT ON COLUMN bloat.inplace_disk IS 'Disk space that VACUUM (FULL INPLACE) of the table needs besides, in bytes, for rebuilding the largest index; in the row of the table only, null for catalogs';
COMMENT ON COLUMN bloat.inplace_lock IS 'Lock that VACUUM (FULL INPLACE) holds; in the row of the table only, null for catalogs';

GRANT USAGE ON SCHEMA cyclone TO PUBLIC;
GRANT SELECT ON progress, pace, bloat TO PUBLIC;
