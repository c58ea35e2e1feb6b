-- The objects of pg_cyclone: the progress of running VACUUMs.

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

GRANT USAGE ON SCHEMA cyclone TO PUBLIC;
GRANT SELECT ON progress TO PUBLIC;
