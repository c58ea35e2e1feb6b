-- The objects of pg_cyclone: the progress and the pace of running VACUUMs.

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
       p.store_limit
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
COMMENT ON COLUMN progress.phase IS 'What the process does, in the words of pg_stat_progress_vacuum';
COMMENT ON COLUMN progress.blocks_done IS 'Blocks that this process has done in this phase: of the heap, scanned or skipped; of a btree, visited; of other indexes, 0';
COMMENT ON COLUMN progress.blocks_total IS 'Blocks of the table, for all processes together; in index phases, of the current index';
COMMENT ON COLUMN progress.index_relid IS 'OID of the index that the process works on; null if none';
COMMENT ON COLUMN progress.dead_tids IS 'Dead item identifiers in the store; for the leader only';
COMMENT ON COLUMN progress.store_bytes IS 'Memory used by the dead-TID store, in bytes; for the leader only';
COMMENT ON COLUMN progress.store_limit IS 'Memory that the store may use (maintenance_work_mem), in bytes; for the leader only';

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
       p.percentile,
       p.latency_ms,
       p.budget,
       p.rate,
       p.asleep,
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
COMMENT ON COLUMN pace.percentile IS 'Which percentile of the latency of statements is to be kept at the target; null without one';
COMMENT ON COLUMN pace.latency_ms IS 'That percentile as last measured, in milliseconds; null if there were no statements of late';
COMMENT ON COLUMN pace.budget IS 'What all processes of the VACUUM together may cost a second, in units of vacuum_cost_page_hit and its like; null if there is no bound';
COMMENT ON COLUMN pace.rate IS 'What they cost a second of late; null if it is not counted, as there is neither cost-based delay nor a target';
COMMENT ON COLUMN pace.asleep IS 'Share of their time that the processes sleep to keep to the budget, 0 to 1';
COMMENT ON COLUMN pace.limited_by IS 'What keeps the VACUUM from going faster: "nothing", "cost delay", "latency target", "learning the target", "floor" (the target is missed at the slowest pace), or "nothing (failsafe)"';

GRANT USAGE ON SCHEMA cyclone TO PUBLIC;
GRANT SELECT ON progress, pace TO PUBLIC;
