-- The objects of pg_cyclone: progress and pace of running VACUUMs, the history of past ones, the bloat of tables, sessions that hold VACUUM back,
-- and advice.

\echo Use "CREATE EXTENSION pg_cyclone" to load this file. \quit

-- Functions and operators that another role has put into the schema before would be taken for the server's in what follows, and
-- run with the rights of a user who reads the views; and the schema's owner could put other views in the place of these.
DO $$
BEGIN
    IF EXISTS (
        SELECT FROM (
            SELECT nspowner AS role FROM pg_catalog.pg_namespace WHERE nspname = 'cyclone'::pg_catalog.name
            UNION ALL
            SELECT a.grantee FROM pg_catalog.pg_namespace n CROSS JOIN LATERAL pg_catalog.aclexplode(n.nspacl) a
            WHERE n.nspname = 'cyclone'::pg_catalog.name AND a.privilege_type = 'CREATE'::pg_catalog.text
            UNION ALL
            SELECT p.proowner FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
            WHERE n.nspname = 'cyclone'::pg_catalog.name
            UNION ALL
            SELECT o.oprowner FROM pg_catalog.pg_operator o JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
            WHERE n.nspname = 'cyclone'::pg_catalog.name) others
        WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = others.role AND (r.rolsuper OR r.rolname = current_user)))
    THEN
        RAISE EXCEPTION 'schema cyclone belongs to another role, or another role has objects or the CREATE privilege in it'
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'Objects of that role would run with the rights of a user who reads the views of pg_cyclone.',
                  HINT = 'Look at the objects in the schema, and rename or drop the schema, or the objects of other roles.';
    END IF;
END
$$;

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
    OUT bytes_freed bigint,
    OUT phase_eta timestamptz,
    OUT eta timestamptz)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pg_cyclone_progress';

COMMENT ON FUNCTION progress_rows() IS
'The rows of the view cyclone.progress, without names.';

CREATE VIEW progress_details AS
SELECT p.pid,
       p.leader_pid,
       p.role,
       p.datid,
       d.datname,
       p.relid,
       CASE WHEN p.datid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
            THEN p.relid::pg_catalog.regclass END AS relation,
       p.phase,
       p.index_relid,
       CASE WHEN p.datid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
            THEN p.index_relid::pg_catalog.regclass END AS index,
       p.blocks_done,
       p.blocks_total,
       p.phase_eta,
       p.eta,
       p.bytes_freed
FROM cyclone.progress_rows() p
LEFT JOIN pg_catalog.pg_database d ON d.oid = p.datid;

COMMENT ON VIEW progress_details IS
'The view cyclone.progress with all columns. A row for each process of each running VACUUM: its phase, and how many blocks are done. A user without the rights of the command''s user or of pg_read_all_stats sees pid, datid and datname only.';
COMMENT ON COLUMN progress_details.pid IS 'Process ID of the leader or worker';
COMMENT ON COLUMN progress_details.leader_pid IS 'Process ID of the leader, which runs the command';
COMMENT ON COLUMN progress_details.role IS '"leader" or "worker"';
COMMENT ON COLUMN progress_details.datid IS 'OID of the database';
COMMENT ON COLUMN progress_details.datname IS 'Name of the database';
COMMENT ON COLUMN progress_details.relid IS 'OID of the table being vacuumed';
COMMENT ON COLUMN progress_details.relation IS 'The table; null if it is in another database';
COMMENT ON COLUMN progress_details.phase IS 'Phase of the process, in the words of pg_stat_progress_vacuum, and more words for VACUUM FULL';
COMMENT ON COLUMN progress_details.index_relid IS 'OID of the index that the process works on; null if none';
COMMENT ON COLUMN progress_details.index IS 'That index; null, too, if it is in another database';
COMMENT ON COLUMN progress_details.blocks_done IS 'Blocks that this process has done in this phase: of the heap, scanned or skipped; of a btree, visited; of other indexes, 0; when rows are moved, vacated';
COMMENT ON COLUMN progress_details.blocks_total IS 'Blocks of the table, for all processes together; in index phases, of the current index; when rows are moved, to be vacated';
COMMENT ON COLUMN progress_details.phase_eta IS 'When the phase is likely to be done: at the rate that it goes, or, of a phase whose blocks are not counted, as in the last run; null if neither is known; like eta, for the leader only';
COMMENT ON COLUMN progress_details.eta IS 'When the VACUUM of the table is likely to be done: when the phase is, and then as in the last run of the same operation on this table, started by the same, a command or autovacuum (cyclone.history); null if there is none, or if it takes longer than that';
COMMENT ON COLUMN progress_details.bytes_freed IS 'How much of the table VACUUM (FULL INPLACE) has given back so far, in bytes';

CREATE VIEW progress AS
SELECT v.pid, v.leader_pid, v.role, v.datname, v.relation, v.phase, v.index, v.blocks_done, v.blocks_total,
       v.eta
FROM cyclone.progress_details v;

COMMENT ON VIEW progress IS
'A row for each process of each running VACUUM: its phase, and how many blocks are done. A user without the rights of the command''s user or of pg_read_all_stats sees pid, datid and datname only. The columns that one looks at first; cyclone.progress_details has all of them.';

CREATE FUNCTION pace_rows(
    OUT pid int,
    OUT datid oid,
    OUT relid oid,
    OUT limited_by text,
    OUT figure float8,
    OUT bound float8,
    OUT budget float8,
    OUT rate float8,
    OUT asleep float8,
    OUT held_by text,
    OUT standby_pid int,
    OUT shared_by int,
    OUT added float8,
    OUT others_at_work float8,
    OUT others_take float8,
    OUT others_would_take float8)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pg_cyclone_pace';

COMMENT ON FUNCTION pace_rows() IS
'The rows of the view cyclone.pace, without names.';

CREATE VIEW pace_details AS
SELECT p.pid,
       p.datid,
       d.datname,
       p.relid,
       CASE WHEN p.datid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
            THEN p.relid::pg_catalog.regclass END AS relation,
       p.limited_by,
       CASE p.limited_by WHEN 'cost delay' THEN p.rate ELSE p.figure END AS figure,
       CASE p.limited_by WHEN 'cost delay' THEN p.budget ELSE p.bound END AS bound,
       CASE WHEN p.standby_pid IS NULL THEN p.held_by
            ELSE (SELECT a.application_name FROM pg_catalog.pg_stat_get_activity(p.standby_pid) a) END AS held_by,
       p.asleep,
       p.rate,
       p.budget,
       p.added,
       p.others_at_work,
       p.others_take,
       p.others_would_take,
       p.shared_by
FROM cyclone.pace_rows() p
LEFT JOIN pg_catalog.pg_database d ON d.oid = p.datid;

COMMENT ON VIEW pace_details IS
'The view cyclone.pace with all columns. How fast each running VACUUM goes, and why not faster; it is brought up to date a few times a second. A user without the rights of the command''s user or of pg_read_all_stats sees pid, datid and datname only.';
COMMENT ON COLUMN pace_details.pid IS 'Process ID of the leader, which runs the command';
COMMENT ON COLUMN pace_details.datid IS 'OID of the database';
COMMENT ON COLUMN pace_details.datname IS 'Name of the database';
COMMENT ON COLUMN pace_details.relid IS 'OID of the table being vacuumed';
COMMENT ON COLUMN pace_details.relation IS 'The table; null if it is in another database';
COMMENT ON COLUMN pace_details.limited_by IS 'The limit that keeps the VACUUM from going faster: "nothing"; "cost delay"; with an adaptive delay "other sessions" (it is faster than its cost delay, as much as they allow), "learning" (at its cost delay, to see what they take then) or "floor" (at its cost delay, as more would make them wait); or "WAL rate" (cyclone.max_wal_rate), "replica lag" (cyclone.max_replica_lag), "disk space" (cyclone.min_free_disk), "paused" (by cyclone.pause()), or "nothing (failsafe)"';
COMMENT ON COLUMN pace_details.figure IS 'The figure that limited_by bounds: cost a second, bytes of WAL a second (the bound itself), lag in seconds, bytes that are free in the file system of pg_wal, or for how many seconds it has been paused; null for other limits';
COMMENT ON COLUMN pace_details.bound IS 'The bound of figure, in its unit';
COMMENT ON COLUMN pace_details.held_by IS 'Name of the role that has paused it, application name of the standby or subscriber that lags, or what VACUUM waits for where the disk gets full: who retains WAL, or "full disk"; null for other limits';
COMMENT ON COLUMN pace_details.asleep IS 'Share of their time that the processes sleep to keep to the budget, 0 to 1; null while the server''s code cleans up an index';
COMMENT ON COLUMN pace_details.rate IS 'What all processes of the VACUUM together cost recently, in cost a second; null if it is not counted, as there is no cost-based delay, or not known: in the first moments, and while the server''s code cleans up an index';
COMMENT ON COLUMN pace_details.budget IS 'Budget of all processes of the VACUUM together by cost-based delay, in cost a second by vacuum_cost_page_hit and its like; with an adaptive delay it is the floor, and rate may be more; null if there is none';
COMMENT ON COLUMN pace_details.added IS 'How many processes at work, on average, the adaptive delay adds to the cost delay of all VACUUMs that have it, together; null without it, and if nothing bounds them';
COMMENT ON COLUMN pace_details.others_at_work IS 'How many processes of other sessions are at work or wait for that, on average over five seconds, as the adaptive delay sees them; null without it';
COMMENT ON COLUMN pace_details.others_take IS 'How many times as long as alone on the machine other sessions take now, by how long they ran and waited; null without an adaptive delay, if it is not known, and if nobody was at work for a second';
COMMENT ON COLUMN pace_details.others_would_take IS 'The same, if nothing were added to the cost delay, as it was at times; null if it is not known yet';
COMMENT ON COLUMN pace_details.shared_by IS 'How many VACUUMs of the server have an adaptive delay, and share what is added; null without it';

CREATE VIEW pace AS
SELECT v.pid, v.datname, v.relation, v.limited_by, pg_catalog.round(v.figure::numeric, 1)::float8 AS figure,
       pg_catalog.round(v.bound::numeric, 1)::float8 AS bound, v.held_by,
       pg_catalog.round(v.asleep::numeric, 2)::float8 AS asleep,
       pg_catalog.round(v.rate::numeric, 1)::float8 AS rate,
       pg_catalog.round(v.budget::numeric, 1)::float8 AS budget,
       pg_catalog.round(v.added::numeric, 2)::float8 AS added,
       pg_catalog.round(v.others_take::numeric, 2)::float8 AS others_take,
       pg_catalog.round(v.others_would_take::numeric, 2)::float8 AS others_would_take
FROM cyclone.pace_details v;

COMMENT ON VIEW pace IS
'How fast each running VACUUM goes, and why not faster; it is brought up to date a few times a second. A user without the rights of the command''s user or of pg_read_all_stats sees pid, datid and datname only. The columns that one looks at first; cyclone.pace_details has all of them.';

CREATE FUNCTION pause(pid int)
RETURNS bool
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'pg_cyclone_pause';

COMMENT ON FUNCTION pause(int) IS
'Pauses a running VACUUM, for an hour at most; for roles that may cancel it. It keeps what it has done, and its lock on the table. False, with a warning, if the process runs no VACUUM, or one that keeps readers out, as VACUUM FULL does, or that prevents transaction ID wraparound.';

CREATE FUNCTION pause()
RETURNS int
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'pg_cyclone_pause';

COMMENT ON FUNCTION pause() IS
'Pauses all running VACUUMs that the role may cancel, and for a superuser those that begin meanwhile. Returns how many were running.';

CREATE FUNCTION resume(pid int)
RETURNS bool
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'pg_cyclone_resume';

COMMENT ON FUNCTION resume(int) IS
'Lets a paused VACUUM go on; for roles that may cancel it. False if it was not paused.';

CREATE FUNCTION resume()
RETURNS int
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'pg_cyclone_resume';

COMMENT ON FUNCTION resume() IS
'Lets all paused VACUUMs go on that the role may cancel, and for a superuser those that begin from now on. Returns how many there were.';

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
'The rows of the view cyclone.autovacuum, without names.';

CREATE VIEW autovacuum_details AS
SELECT a.datid,
       d.datname,
       a.relid,
       c.oid::pg_catalog.regclass AS relation,
       a.last_start,
       a.last_seconds,
       a.last_by,
       a.last_reason,
       a.last_rows_removed,
       a.last_pages_scanned,
       a.last_workers,
       a.engine_count,
       a.server_count,
       a.cancel_count,
       a.error_count,
       a.breaker_open,
       a.breaker_until,
       a.failures,
       a.failed_with
FROM cyclone.autovacuum_rows() a
LEFT JOIN pg_catalog.pg_database d ON d.oid = a.datid
LEFT JOIN pg_catalog.pg_class c ON c.oid = a.relid AND a.datid IN (0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()));

COMMENT ON VIEW autovacuum_details IS
'The view cyclone.autovacuum with all columns. A row for each table that autovacuum came to since the server''s start or the last reset: whether pg_cyclone''s engine or PostgreSQL vacuumed it, and how that ended.';
COMMENT ON COLUMN autovacuum_details.datid IS 'OID of the database; 0 for a shared catalog';
COMMENT ON COLUMN autovacuum_details.datname IS 'Name of the database';
COMMENT ON COLUMN autovacuum_details.relid IS 'OID of the table or TOAST table';
COMMENT ON COLUMN autovacuum_details.relation IS 'The table or TOAST table; null if it is in another database, or was dropped';
COMMENT ON COLUMN autovacuum_details.last_start IS 'When its last autovacuum began';
COMMENT ON COLUMN autovacuum_details.last_seconds IS 'How long that took, in seconds, also if it was cancelled or failed';
COMMENT ON COLUMN autovacuum_details.last_by IS 'By which VACUUM that was: "engine" or, PostgreSQL''s own, "server"';
COMMENT ON COLUMN autovacuum_details.last_reason IS 'Why it was not the engine: "off" (cyclone.autovacuum), "not listed" (cyclone.databases, cyclone.tables), "circuit breaker", "crashes" (after several of them all tables are left to PostgreSQL for a while), or "no note on disk" (it couldn''t be written)';
COMMENT ON COLUMN autovacuum_details.last_rows_removed IS 'Rows that the engine removed then; null if it was the server';
COMMENT ON COLUMN autovacuum_details.last_pages_scanned IS 'Pages of the table that the engine scanned then; null if it was the server';
COMMENT ON COLUMN autovacuum_details.last_workers IS 'Parallel workers that the engine had then; since PostgreSQL 19 no more than autovacuum_max_parallel_workers allows, which is 0 by default; null if it was the server';
COMMENT ON COLUMN autovacuum_details.engine_count IS 'How often pg_cyclone''s engine vacuumed it to the end';
COMMENT ON COLUMN autovacuum_details.server_count IS 'How often it was left to PostgreSQL''s own VACUUM, to the end';
COMMENT ON COLUMN autovacuum_details.cancel_count IS 'How often the engine gave way: a session waited for a lock on the table, or a user cancelled it or terminated one of its parallel workers';
COMMENT ON COLUMN autovacuum_details.error_count IS 'How often the engine failed, or a crash of the server came while it was at work';
COMMENT ON COLUMN autovacuum_details.breaker_open IS 'Is the table left to PostgreSQL''s own VACUUM because the engine or an audit failed, or are all tables because of crashes?';
COMMENT ON COLUMN autovacuum_details.breaker_until IS 'Until when the breaker is open; null if it is not, or, after an audit, until cyclone.autovacuum_reset()';
COMMENT ON COLUMN autovacuum_details.failures IS 'How often in a row the engine has failed';
COMMENT ON COLUMN autovacuum_details.failed_with IS 'The last failure: an SQLSTATE, "crash" or "audit"; null if the engine was successful since';

CREATE VIEW autovacuum AS
SELECT v.datname, v.relid, v.relation, v.last_start,
       pg_catalog.round(v.last_seconds::numeric, 3)::float8 AS last_seconds, v.last_by, v.last_reason,
       v.engine_count, v.server_count, v.failures, v.failed_with
FROM cyclone.autovacuum_details v;

COMMENT ON VIEW autovacuum IS
'A row for each table that autovacuum came to since the server''s start or the last reset: whether pg_cyclone''s engine or PostgreSQL vacuumed it, and how that ended. The columns that one looks at first; cyclone.autovacuum_details has all of them.';

CREATE FUNCTION autovacuum_reset(relation regclass DEFAULT NULL)
RETURNS bigint
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'pg_cyclone_autovacuum_reset';

COMMENT ON FUNCTION autovacuum_reset(regclass) IS
'Removes a table from the view cyclone.autovacuum and closes its circuit breaker; without an argument, all tables. Returns how many there were.';

REVOKE ALL ON FUNCTION autovacuum_rows(), autovacuum_reset(regclass) FROM PUBLIC;
REVOKE ALL ON autovacuum, autovacuum_details FROM PUBLIC;
GRANT EXECUTE ON FUNCTION autovacuum_rows() TO pg_monitor;
GRANT SELECT ON autovacuum, autovacuum_details TO pg_monitor;

CREATE FUNCTION history_rows(
    OUT id bigint,
    OUT datid oid,
    OUT relid oid,
    OUT relation_name text,
    OUT started_by text,
    OUT operation text,
    OUT options text,
    OUT run_by text,
    OUT usesysid oid,
    OUT started timestamptz,
    OUT seconds float8,
    OUT phases jsonb,
    OUT outcome text,
    OUT sqlstate text,
    OUT error text,
    OUT warnings text,
    OUT forced boolean,
    OUT rows_removed bigint,
    OUT rows_dead bigint,
    OUT rows_moved bigint,
    OUT pages_scanned bigint,
    OUT bytes_before bigint,
    OUT bytes_after bigint,
    OUT workers_launched int,
    OUT wal_bytes bigint,
    OUT slept_seconds float8,
    OUT held jsonb,
    OUT audited_pages bigint,
    OUT audit_failed boolean)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'pg_cyclone_history';

COMMENT ON FUNCTION history_rows() IS
'The rows of the view cyclone.history, without names.';

CREATE VIEW history_details AS
SELECT h.id,
       h.started,
       h.seconds,
       d.datname,
       h.relid,
       c.oid::pg_catalog.regclass AS relation,
       h.relation_name,
       h.started_by,
       h.run_by,
       u.rolname AS usename,
       h.operation,
       h.options,
       h.outcome,
       h.forced,
       h.rows_removed,
       h.rows_dead,
       h.rows_moved,
       h.pages_scanned,
       h.bytes_before,
       h.bytes_after,
       h.workers_launched,
       h.wal_bytes,
       h.slept_seconds,
       h.held,
       h.audited_pages,
       h.audit_failed,
       h.sqlstate,
       h.error,
       h.warnings,
       h.phases
FROM cyclone.history_rows() h
LEFT JOIN pg_catalog.pg_database d ON d.oid = h.datid
LEFT JOIN pg_catalog.pg_class c ON c.oid = h.relid AND h.datid IN (0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))
LEFT JOIN pg_catalog.pg_roles u ON u.oid = h.usesysid;

COMMENT ON VIEW history_details IS
'The view cyclone.history with all columns. A row for each of the last runs of VACUUM on a table, cyclone.history_size of them. When there are more, the oldest row of the role whose tables have the most gives way; of one table there are a fiftieth at most. They survive a restart and a crash of the server. A user without the rights of the run''s user or of pg_read_all_stats sees id and datname only; that holds for all of autovacuum''s.';
COMMENT ON COLUMN history_details.id IS 'Number of the run; they count up, so a program that collects runs can ask for those after the last one that it has';
COMMENT ON COLUMN history_details.started IS 'When it began, with the lock on the table';
COMMENT ON COLUMN history_details.seconds IS 'How long it took, in seconds';
COMMENT ON COLUMN history_details.datname IS 'Name of the database; null for a shared catalog, or if there is no such database any more';
COMMENT ON COLUMN history_details.relid IS 'OID of the table or TOAST table';
COMMENT ON COLUMN history_details.relation IS 'The table or TOAST table; null if it is in another database, or was dropped';
COMMENT ON COLUMN history_details.relation_name IS 'Its name at the time, with its schema';
COMMENT ON COLUMN history_details.started_by IS 'How it was started: by a "command", by "autovacuum" or by "compaction"';
COMMENT ON COLUMN history_details.run_by IS '"engine" or, in autovacuum, "server": it was left to PostgreSQL''s own VACUUM, of which only times, pages and WAL are known';
COMMENT ON COLUMN history_details.usename IS 'Name of the command''s user';
COMMENT ON COLUMN history_details.operation IS '"VACUUM", "FULL REWRITE", "FULL INPLACE" or, since PostgreSQL 19, "REPACK"';
COMMENT ON COLUMN history_details.options IS 'Options of a command as they held for the table, from the statement, the table or a setting; null if there were none. FULL and its kind are the operation; ADAPTIVE_DELAY and BUFFER_USAGE_LIMIT are not recorded';
COMMENT ON COLUMN history_details.outcome IS '"done", "cancelled" (by a user, for a session that waited for the table, by the end of the process or of the server) or "failed"';
COMMENT ON COLUMN history_details.forced IS 'Was it an autovacuum that the table''s age had forced, to prevent wraparound?';
COMMENT ON COLUMN history_details.rows_removed IS 'Rows removed; like all that follows up to bytes_after null if it is not known, as after an error';
COMMENT ON COLUMN history_details.rows_dead IS 'Rows that are dead but not yet removable';
COMMENT ON COLUMN history_details.rows_moved IS 'Rows moved by FULL INPLACE';
COMMENT ON COLUMN history_details.pages_scanned IS 'Pages of the table that were scanned';
COMMENT ON COLUMN history_details.bytes_before IS 'Size of the table and its indexes at the beginning, in bytes, without free space map and visibility map; of FULL REWRITE and FULL INPLACE with that of the TOAST table';
COMMENT ON COLUMN history_details.bytes_after IS 'The same size at the end, in bytes';
COMMENT ON COLUMN history_details.workers_launched IS 'Parallel workers launched; in FULL INPLACE, to move rows, the most at a time';
COMMENT ON COLUMN history_details.wal_bytes IS 'WAL written, in bytes, by all processes';
COMMENT ON COLUMN history_details.slept_seconds IS 'How long all processes together slept for cost-based delay, in seconds; null if it is not known';
COMMENT ON COLUMN history_details.held IS 'How long at least one of its processes was held by each guard, in seconds: "pause" (cyclone.pause()), "WAL rate" (cyclone.max_wal_rate), "lag" (cyclone.max_replica_lag), "disk" (cyclone.min_free_disk); null if none was, or if it is not known';
COMMENT ON COLUMN history_details.audited_pages IS 'How many pages of the table and its indexes were audited, by cyclone.audit; a page counts each time; of FULL REWRITE and REPACK pages of the old table and of new btrees; null if it is not by the engine, or not done';
COMMENT ON COLUMN history_details.audit_failed IS 'Did it end because verdicts of an audit differed? Then a report is in the folder pg_cyclone of the data directory';
COMMENT ON COLUMN history_details.sqlstate IS 'SQLSTATE of the error that ended it';
COMMENT ON COLUMN history_details.error IS 'Message of that error; if it is longer than 255 bytes it ends in dots';
COMMENT ON COLUMN history_details.warnings IS 'Messages of warnings that log_min_messages lets into the log, a line each; if that is longer than 255 bytes it ends in dots; null if there were none';
COMMENT ON COLUMN history_details.phases IS 'How long each phase took, in seconds, as VERBOSE has it; null if the run was not done to the end';

CREATE VIEW history AS
SELECT v.id, v.started, pg_catalog.round(v.seconds::numeric, 3)::float8 AS seconds, v.datname, v.relation,
       v.relation_name, v.started_by, v.operation, v.outcome, v.rows_removed, v.error
FROM cyclone.history_details v;

COMMENT ON VIEW history IS
'A row for each of the last runs of VACUUM on a table, cyclone.history_size of them. When there are more, the oldest row of the role whose tables have the most gives way; of one table there are a fiftieth at most. They survive a restart and a crash of the server. A user without the rights of the run''s user or of pg_read_all_stats sees id and datname only; that holds for all of autovacuum''s. The columns that one looks at first; cyclone.history_details has all of them.';

CREATE FUNCTION history_reset()
RETURNS bigint
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'pg_cyclone_history_reset';

COMMENT ON FUNCTION history_reset() IS
'Removes all rows of the view cyclone.history. Returns how many there were.';

REVOKE ALL ON FUNCTION history_reset() FROM PUBLIC;

CREATE FUNCTION estimate_bloat(
    "table" regclass,
    sample_pages int DEFAULT 5000,
    seed bigint DEFAULT NULL,
    wait boolean DEFAULT true,
    indexes boolean DEFAULT true,
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
LANGUAGE C STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'pg_cyclone_estimate_bloat';

COMMENT ON FUNCTION estimate_bloat(regclass, int, bigint, boolean, boolean) IS
'The bloat of a table, its TOAST table and its indexes, estimated from at most sample_pages pages of each; of smaller ones it is exact. The same seed chooses the same pages. For roles that may VACUUM the table and for members of pg_stat_scan_tables. The columns are those of the view cyclone.bloat. With wait => false it waits for no lock, as the view does, and there are no rows where there would be an error. With indexes => false it looks at the table only.';

CREATE VIEW bloat_details AS
SELECT c.oid::pg_catalog.regclass AS of_table,
       b.relation,
       b.kind,
       b.size,
       b.bloat_bytes,
       b.bloat_ratio,
       b.error_bytes,
       b.live_bytes,
       b.dead_bytes,
       b.held_bytes,
       b.free_bytes,
       b.sampled_pages,
       b.total_pages,
       b.inplace_size,
       b.inplace_bytes,
       b.inplace_disk,
       b.rewrite_size,
       b.rewrite_disk,
       b.inplace_lock,
       b.rewrite_lock
FROM pg_catalog.pg_class c
CROSS JOIN LATERAL cyclone.estimate_bloat(c.oid, wait => false) b
WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't';

COMMENT ON VIEW bloat_details IS
'The view cyclone.bloat with all columns. The bloat of each table, TOAST table and index of this database that the user may VACUUM; of all for members of pg_stat_scan_tables. It is estimated when the view is read, from at most 5000 pages of each. Temporary tables are left out; on a standby, unlogged ones, too. There are no figures of a relation that another session has locked exclusively, nor of one that cannot be read; then a WARNING says why. If the access method is neither heap, btree nor hnsw of pgvector, if an index is invalid, or if its table cannot be read, there is the size only.';
COMMENT ON COLUMN bloat_details.of_table IS 'Table that the row belongs to; a condition on this column keeps other tables from being read';
COMMENT ON COLUMN bloat_details.relation IS 'The table, its TOAST table, or an index of either';
COMMENT ON COLUMN bloat_details.kind IS '"table", "materialized view", "TOAST table" or "index"';
COMMENT ON COLUMN bloat_details.size IS 'Present size, in bytes, without free space map and visibility map; null, as all figures are, if another session has it locked exclusively, or if it cannot be read';
COMMENT ON COLUMN bloat_details.bloat_bytes IS 'How much VACUUM (FULL REWRITE) would give back, in bytes: size less rewrite_size, or 0. The space that fillfactor asks for is no bloat';
COMMENT ON COLUMN bloat_details.bloat_ratio IS 'bloat_bytes as a share of size, 0 to 1';
COMMENT ON COLUMN bloat_details.error_bytes IS 'With a confidence of 95 %, by how many bytes bloat_bytes is wrong at most because only a sample was read; 0 if all pages were read';
COMMENT ON COLUMN bloat_details.live_bytes IS 'Length of the live rows, or of the index entries, in bytes, as pgstattuple counts it';
COMMENT ON COLUMN bloat_details.dead_bytes IS 'Length of the dead rows that VACUUM would free, in bytes; of an index, of the entries that are marked as dead, and in hnsw of those that are deleted, whose room insertions use';
COMMENT ON COLUMN bloat_details.held_bytes IS 'Length of the dead rows that VACUUM would not free yet as a transaction, a replication slot or a standby may need them, in bytes; 0 for an index';
COMMENT ON COLUMN bloat_details.free_bytes IS 'Free space in the pages, in bytes, the part included that fillfactor asks for; of an index, that in leaf pages, and its empty pages';
COMMENT ON COLUMN bloat_details.sampled_pages IS 'Pages that were read';
COMMENT ON COLUMN bloat_details.total_pages IS 'Pages that there are';
COMMENT ON COLUMN bloat_details.inplace_size IS 'Size after VACUUM (FULL INPLACE) at best, in bytes: when no old transaction keeps it from moving and freeing rows; null for catalogs';
COMMENT ON COLUMN bloat_details.inplace_bytes IS 'How much VACUUM (FULL INPLACE) would give back at best, in bytes; null for catalogs';
COMMENT ON COLUMN bloat_details.inplace_disk IS 'Disk space that VACUUM (FULL INPLACE) of the table needs besides, in bytes, for rebuilding the largest index; in the row of the table only, null for catalogs';
COMMENT ON COLUMN bloat_details.rewrite_size IS 'Size after VACUUM (FULL REWRITE) or, of an index, REINDEX, in bytes';
COMMENT ON COLUMN bloat_details.rewrite_disk IS 'Disk space that VACUUM (FULL REWRITE) of the table needs besides, in bytes: the new table, TOAST table and indexes, as they are estimated; others than heaps and btrees with their present size. As much WAL comes on top unless the table is unlogged or wal_level is minimal, and files for sorting the largest index if it is larger than maintenance_work_mem. In the row of the table only';
COMMENT ON COLUMN bloat_details.inplace_lock IS 'Lock that VACUUM (FULL INPLACE) holds; in the row of the table only, null for catalogs';
COMMENT ON COLUMN bloat_details.rewrite_lock IS 'Lock that VACUUM (FULL REWRITE) holds; in the row of the table only';

CREATE VIEW bloat AS
SELECT v.of_table, v.relation, v.kind, v.size, v.bloat_bytes,
       pg_catalog.round(v.bloat_ratio::numeric, 2)::float8 AS bloat_ratio, v.error_bytes, v.held_bytes,
       v.inplace_bytes, v.inplace_disk
FROM cyclone.bloat_details v;

COMMENT ON VIEW bloat IS
'The bloat of each table, TOAST table and index of this database that the user may VACUUM; of all for members of pg_stat_scan_tables. It is estimated when the view is read, from at most 5000 pages of each. Temporary tables are left out; on a standby, unlogged ones, too. There are no figures of a relation that another session has locked exclusively, nor of one that cannot be read; then a WARNING says why. If the access method is neither heap, btree nor hnsw of pgvector, if an index is invalid, or if its table cannot be read, there is the size only. The columns that one looks at first; cyclone.bloat_details has all of them.';

CREATE FUNCTION horizon_rows(
    OUT kind text,
    OUT pid int,
    OUT datid oid,
    OUT everywhere boolean,
    OUT usesysid oid,
    OUT backend_type text,
    OUT application text,
    OUT state text,
    OUT query text,
    OUT name text,
    OUT logical boolean,
    OUT since timestamptz,
    OUT xmin xid,
    OUT catalog_xmin xid,
    OUT multixact_age int,
    OUT is_oldest boolean,
    OUT is_oldest_for_catalogs boolean)
RETURNS SETOF record
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pg_cyclone_horizon';

COMMENT ON FUNCTION horizon_rows() IS
'The rows of the view cyclone.horizon, without names.';

CREATE FUNCTION dead_tables(
    OUT relid oid,
    OUT dead_rows bigint)
RETURNS SETOF record
LANGUAGE SQL STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.oid, t.n
    FROM (SELECT c.oid, pg_stat_get_dead_tuples(c.oid) AS n FROM pg_class c
          WHERE c.relkind IN ('r', 'm', 't') AND c.relpersistence <> 't' AND NOT c.relisshared) t
    WHERE t.n > 0
    ORDER BY t.n DESC, t.oid
$$;

COMMENT ON FUNCTION dead_tables() IS
'The tables of this database that have dead rows by the counters of the statistics system, those with the most first.';

CREATE VIEW horizon_details AS
SELECT h.kind,
       h.name,
       h.pid,
       h.datid,
       d.datname,
       h.usesysid,
       CASE WHEN h.usesysid IS NOT NULL THEN pg_catalog.pg_get_userbyid(h.usesysid) END AS usename,
       h.application,
       h.backend_type,
       h.state,
       h.since,
       h.xmin,
       pg_catalog.age(h.xmin) AS xmin_age,
       h.catalog_xmin,
       pg_catalog.age(h.catalog_xmin) AS catalog_xmin_age,
       h.multixact_age,
       h.is_oldest,
       h.is_oldest_for_catalogs,
       CASE WHEN h.is_oldest AND (h.everywhere OR d.datname = pg_catalog.current_database())
            THEN (SELECT pg_catalog.sum(t.dead_rows)::bigint FROM cyclone.dead_tables() t) END AS dead_rows,
       s.held_bytes,
       CASE WHEN h.is_oldest AND (h.everywhere OR d.datname = pg_catalog.current_database())
            THEN ARRAY(SELECT t.relid::pg_catalog.regclass FROM cyclone.dead_tables() t LIMIT 5) END AS dead_tables,
       -- not of what comes and goes by itself, nor of a subscriber that is at work
       CASE
           WHEN h.kind = 'replication slot' AND h.pid IS NULL THEN
               CASE WHEN h.since < pg_catalog.clock_timestamp() - interval '1 hour'
                    THEN pg_catalog.format('SELECT pg_drop_replication_slot(%L);', h.name) END
           WHEN h.kind IN ('replication slot', 'standby') THEN
               CASE WHEN NOT h.logical
                    THEN 'ALTER SYSTEM SET hot_standby_feedback = off; SELECT pg_reload_conf(); -- on the standby; or end the queries there' END
           WHEN h.since < pg_catalog.clock_timestamp() - interval '1 minute' THEN
               CASE WHEN h.kind = 'prepared transaction'
                    THEN pg_catalog.format('ROLLBACK PREPARED %L; -- or COMMIT PREPARED; in the database of column datname', h.name)
                    ELSE pg_catalog.format('SELECT pg_terminate_backend(%s);', h.pid) END
       END AS how_to_end,
       h.query
FROM cyclone.horizon_rows() h
LEFT JOIN pg_catalog.pg_database d ON d.oid = h.datid
-- apart, so that the tables are read once, and only if the column is asked for
CROSS JOIN LATERAL (
    SELECT CASE WHEN h.is_oldest AND (h.everywhere OR d.datname = pg_catalog.current_database())
                THEN (SELECT pg_catalog.sum(s.held_bytes)::bigint
                      FROM (SELECT t.relid FROM cyclone.dead_tables() t LIMIT 5) t
                      CROSS JOIN LATERAL cyclone.estimate_bloat(t.relid, 200, wait => false, indexes => false) s) END AS held_bytes
    OFFSET 0
) s
UNION ALL
-- standbys whose queries VACUUM doesn't know of; one with feedback always has an xmin
SELECT 'standby without feedback', NULL, w.pid, NULL, NULL, a.usesysid, pg_catalog.pg_get_userbyid(a.usesysid),
       a.application_name, a.backend_type, a.state, a.backend_start, NULL, NULL, NULL, NULL, NULL, false, false, NULL, NULL,
       NULL,
       'ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf(); -- on the standby, if VACUUM is to wait for its queries, and not to cancel them',
       NULL
FROM pg_catalog.pg_stat_get_wal_senders() w
JOIN pg_catalog.pg_stat_get_activity(NULL) a ON a.pid = w.pid
WHERE a.datid IS NULL AND a.backend_xmin IS NULL AND w.replay_lsn IS NOT NULL
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_get_replication_slots() s WHERE s.active_pid = w.pid AND s.xmin IS NOT NULL);

COMMENT ON VIEW horizon_details IS
'The view cyclone.horizon with all columns. A row for each session, prepared transaction, replication slot and standby that keeps VACUUM from removing dead rows, the oldest first. Columns that pg_stat_activity hides from the user are null here, too.';
COMMENT ON COLUMN horizon_details.kind IS '"session" (any process in a transaction), "prepared transaction", "replication slot", "standby" (with hot_standby_feedback and without a slot), or "standby without feedback" (it holds nothing, as hot_standby_feedback is off there, so VACUUM may cancel its queries)';
COMMENT ON COLUMN horizon_details.name IS 'Name of the replication slot or of the prepared transaction; null for others';
COMMENT ON COLUMN horizon_details.pid IS 'Process ID; of a slot, that of the process that uses it; null if there is none';
COMMENT ON COLUMN horizon_details.datid IS 'OID of the database; null if it belongs to none. A session or prepared transaction holds the tables of its database and the shared catalogs; a slot and a standby, the tables of all databases';
COMMENT ON COLUMN horizon_details.datname IS 'Name of the database';
COMMENT ON COLUMN horizon_details.usesysid IS 'OID of the user';
COMMENT ON COLUMN horizon_details.usename IS 'Name of the user';
COMMENT ON COLUMN horizon_details.application IS 'application_name of the session; of a slot, of the process that uses it';
COMMENT ON COLUMN horizon_details.backend_type IS 'Type of the process, as in pg_stat_activity';
COMMENT ON COLUMN horizon_details.state IS 'State of the session, as in pg_stat_activity';
COMMENT ON COLUMN horizon_details.since IS 'When the transaction began, or was prepared; of a slot, since when nobody uses it, or, like that of a standby, since when the process that uses it is connected';
COMMENT ON COLUMN horizon_details.xmin IS 'The oldest transaction whose effects it may still have to tell from others'': rows deleted by it or later are kept; null if it holds no rows of tables';
COMMENT ON COLUMN horizon_details.xmin_age IS 'How many transactions have come since xmin';
COMMENT ON COLUMN horizon_details.catalog_xmin IS 'The same as xmin for system catalogs, if a slot or a standby holds only these';
COMMENT ON COLUMN horizon_details.catalog_xmin_age IS 'How many transactions have come since catalog_xmin';
COMMENT ON COLUMN horizon_details.multixact_age IS 'How many multixact IDs have been assigned since the oldest that some transaction may need, the same in all rows; null if it cannot be this one''s doing. Which transaction it is the server does not tell';
COMMENT ON COLUMN horizon_details.is_oldest IS 'Is it the first that VACUUM of a table waits for, in its database, or in the current one if it holds the tables of all? True for several if they are equally old';
COMMENT ON COLUMN horizon_details.is_oldest_for_catalogs IS 'The same for system catalogs that are not shared';
COMMENT ON COLUMN horizon_details.dead_rows IS 'Dead rows in all tables of the current database, by the counters of pg_stat_all_tables: what VACUUM could remove at most if this one ended and no other held it; in the row of the oldest only';
COMMENT ON COLUMN horizon_details.held_bytes IS 'Length of the rows in dead_tables that are dead and not removable now, in bytes, estimated from up to 200 pages of each table whose figures the user may see, as in cyclone.bloat; in the row of the oldest only. Tables that cannot be read are left out, with a WARNING. Nothing is read unless the column is selected';
COMMENT ON COLUMN horizon_details.dead_tables IS 'The up to five tables that have most of these dead rows; in the row of the oldest only';
COMMENT ON COLUMN horizon_details.how_to_end IS 'Statement that would end it, as text: reading it does nothing. Consider what its users lose. Null of a transaction younger than a minute, of a slot that has not been used for less than an hour, and of one that a subscriber uses. Of a standby without feedback: how to have VACUUM wait for its queries';
COMMENT ON COLUMN horizon_details.query IS 'The session''s present query, or the last one, as in pg_stat_activity';

CREATE VIEW horizon AS
SELECT v.kind, v.name, v.pid, v.usename, v.state, v.since, v.xmin_age, v.is_oldest, v.how_to_end
FROM cyclone.horizon_details v;

COMMENT ON VIEW horizon IS
'A row for each session, prepared transaction, replication slot and standby that keeps VACUUM from removing dead rows, the oldest first. Columns that pg_stat_activity hides from the user are null here, too. The columns that one looks at first; cyclone.horizon_details has all of them.';

CREATE FUNCTION compaction_rows(
    OUT relation pg_catalog.regclass,
    OUT reason text,
    OUT figure float8,
    OUT figure_is text,
    OUT next_at timestamptz,
    OUT size bigint,
    OUT would_free bigint,
    OUT sampled_at timestamptz,
    OUT running_since timestamptz,
    OUT last_end timestamptz,
    OUT last_outcome text,
    OUT last_freed bigint,
    OUT last_seconds float8,
    OUT runs bigint,
    OUT total_freed bigint,
    OUT pause float8,
    OUT label text,
    OUT threshold float8,
    OUT last_error text)
RETURNS SETOF record
LANGUAGE C STABLE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'pg_cyclone_compaction_rows';

COMMENT ON FUNCTION compaction_rows() IS
'The rows of the view cyclone.compaction_details.';

CREATE VIEW compaction_details AS
SELECT v.relation,
       v.reason,
       v.figure,
       v.figure_is,
       v.next_at,
       v.size,
       v.would_free,
       v.sampled_at,
       v.running_since,
       v.last_end,
       v.last_outcome,
       v.last_freed,
       v.last_seconds,
       v.runs,
       v.total_freed,
       v.pause,
       v.label,
       v.threshold,
       v.last_error
FROM cyclone.compaction_rows() v;

COMMENT ON VIEW compaction_details IS
'The view cyclone.compaction with all columns. A row for each table of this database that the user may VACUUM, with the decision of cyclone.compaction and the reason; for members of pg_stat_scan_tables, for all tables.';
COMMENT ON COLUMN compaction_details.relation IS 'The table';
COMMENT ON COLUMN compaction_details.reason IS '"due"; "running"; or why it is neither: "not sampled yet", "standby", "off", "off, by its label", "left to PostgreSQL" (by cyclone.databases or cyclone.tables, or as a subscription writes to it), "small", "circuit breaker" (that of autovacuum), "pause" (after the last run), "little to be freed", "below the threshold", "horizon held back" (see cyclone.horizon), or "outside the window"';
COMMENT ON COLUMN compaction_details.figure IS 'The number that decided it; of the tables that are due the one with the greatest comes first';
COMMENT ON COLUMN compaction_details.figure_is IS 'Unit and meaning of figure';
COMMENT ON COLUMN compaction_details.next_at IS 'When the reason ends; null if it is not known';
COMMENT ON COLUMN compaction_details.size IS 'Size with TOAST table and indexes, in bytes, by pg_class.relpages';
COMMENT ON COLUMN compaction_details.would_free IS 'How much VACUUM (FULL INPLACE) would give back, in bytes, by a sample of pages as in cyclone.bloat; null if there is none';
COMMENT ON COLUMN compaction_details.sampled_at IS 'When the sample was taken';
COMMENT ON COLUMN compaction_details.running_since IS 'When the present run began; null if there is none';
COMMENT ON COLUMN compaction_details.last_end IS 'When the last run ended';
COMMENT ON COLUMN compaction_details.last_outcome IS '"done"; "stopped" at the window''s end, as it was switched off, or with its process; "gave way" to a session that had or wanted the table, or cancelled it; "failed"';
COMMENT ON COLUMN compaction_details.last_freed IS 'By how many bytes the last run made it smaller';
COMMENT ON COLUMN compaction_details.last_seconds IS 'How long the last run took, in seconds';
COMMENT ON COLUMN compaction_details.runs IS 'How many complete runs there were';
COMMENT ON COLUMN compaction_details.total_freed IS 'How much all runs have given back, in bytes';
COMMENT ON COLUMN compaction_details.pause IS 'How long it is left alone after the last run, in seconds';
COMMENT ON COLUMN compaction_details.label IS 'Its security label for pg_cyclone; null if it has none';
COMMENT ON COLUMN compaction_details.threshold IS 'The least share of the size that a run must win, in percent';
COMMENT ON COLUMN compaction_details.last_error IS 'The error that ended the last run, or its beginning';

CREATE VIEW compaction AS
SELECT v.relation, v.reason, v.next_at, v.size, v.would_free, v.last_end, v.last_outcome, v.last_freed,
       v.total_freed
FROM cyclone.compaction_details v;

COMMENT ON VIEW compaction IS
'A row for each table of this database that the user may VACUUM, with the decision of cyclone.compaction and the reason; for members of pg_stat_scan_tables, for all tables. The columns that one looks at first; cyclone.compaction_details has all of them.';

GRANT SELECT ON compaction, compaction_details TO PUBLIC;

CREATE FUNCTION unused_indexes(
    counted_for interval DEFAULT '7 days',
    OUT relid oid,
    OUT advice text[])
RETURNS SETOF record
LANGUAGE SQL STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT i.indrelid,
           array_agg(format('Index %s was never scanned on this server since %s and is %s, %s %% of what a VACUUM of all indexes reads: DROP INDEX %s.',
                            i.indexrelid::regclass,
                            to_char(s.since, 'YYYY-MM-DD'),
                            pg_size_pretty(c.pages * current_setting('block_size')::int),
                            round(100.0 * c.pages / greatest(t.pages + (SELECT sum(o.relpages::bigint & 4294967295)
                                                                        FROM pg_index oi JOIN pg_class o ON o.oid = oi.indexrelid
                                                                        WHERE oi.indrelid = t.oid), 1)),
                            i.indexrelid::regclass)
                     ORDER BY c.pages DESC, c.oid)
    FROM pg_index i
    -- relpages is unsigned, in a column that isn't
    JOIN (SELECT oid, relpages::bigint & 4294967295 AS pages FROM pg_class) c ON c.oid = i.indexrelid
    JOIN (SELECT oid, relkind, relpages::bigint & 4294967295 AS pages FROM pg_class) t ON t.oid = i.indrelid
    CROSS JOIN (SELECT coalesce(pg_stat_get_db_stat_reset_time(oid),
                                least(pg_stat_get_bgwriter_stat_reset_time(), pg_stat_get_checkpointer_stat_reset_time())) AS since
                FROM pg_database WHERE datname = current_database()) s
    WHERE s.since <= now() - counted_for
      AND t.relkind IN ('r', 'm') AND t.oid >= 16384
      AND c.pages * current_setting('block_size')::int >= 1048576
      AND i.indisvalid AND NOT i.indisunique AND NOT i.indisreplident AND NOT i.indisclustered
      AND pg_stat_get_numscans(c.oid) = 0
      AND pg_stat_get_vacuum_count(t.oid) + pg_stat_get_autovacuum_count(t.oid) > 0
      AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.indexrelid)
      AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = i.indexrelid)
    GROUP BY i.indrelid
$$;

COMMENT ON FUNCTION unused_indexes(interval) IS
'Indexes of at least 1 MB that no scan has used, whose table was vacuumed, and which stand for no constraint: advice for their tables. None until scans have been counted for that time, as after a crash.';

CREATE VIEW advice AS
WITH base AS (
    SELECT c.oid, c.relkind, (c.relpages::bigint & 4294967295) * pg_catalog.current_setting('block_size')::int AS bytes,
           greatest(c.reltuples, 0)::float8 AS rows, m.oid AS main, c.relpersistence = 't' AS is_temporary,
           coalesce(m.oid, c.oid)::pg_catalog.regclass AS name, s.is_on, s.is_standby,
           pg_catalog.pg_stat_get_dead_tuples(c.oid) AS dead_rows,
           pg_catalog.pg_stat_get_ins_since_vacuum(c.oid) AS inserted_rows,
           greatest(pg_catalog.pg_stat_get_last_vacuum_time(c.oid), pg_catalog.pg_stat_get_last_autovacuum_time(c.oid)) AS last_vacuum,
           pg_catalog.age(c.relfrozenxid) AS xid_age, pg_catalog.mxid_age(c.relminmxid) AS multixact_age,
           -- the share of pages that are not all-frozen: before PostgreSQL 18 all of them count
           1 - coalesce(((pg_catalog.to_jsonb(c) ->> 'relallfrozen')::bigint & 4294967295)::float8
                        / nullif(c.relpages::bigint & 4294967295, 0), 0) AS unfrozen,
           coalesce(nullif(o.vacuum_threshold, -1), pg_catalog.current_setting('autovacuum_vacuum_threshold')::float8) AS vacuum_threshold,
           coalesce(nullif(o.vacuum_scale_factor, -1), pg_catalog.current_setting('autovacuum_vacuum_scale_factor')::float8) AS vacuum_scale,
           coalesce(nullif(o.vacuum_max_threshold, -2),
                    pg_catalog.current_setting('autovacuum_vacuum_max_threshold', true)::float8, -1) AS vacuum_max,
           coalesce(nullif(o.insert_threshold, -2), pg_catalog.current_setting('autovacuum_vacuum_insert_threshold')::float8) AS insert_threshold,
           coalesce(nullif(o.insert_scale_factor, -1), pg_catalog.current_setting('autovacuum_vacuum_insert_scale_factor')::float8) AS insert_scale,
           least(nullif(o.freeze_max_age, -1), pg_catalog.current_setting('autovacuum_freeze_max_age')::int)::int AS xid_limit,
           least(nullif(o.multixact_freeze_max_age, -1),
                 pg_catalog.current_setting('autovacuum_multixact_freeze_max_age')::int)::int AS multixact_limit,
           coalesce(o.enabled, true) AS autovacuum_enabled
    FROM pg_catalog.pg_class c
    LEFT JOIN pg_catalog.pg_class m ON c.relkind = 't' AND m.reltoastrelid = c.oid
    CROSS JOIN (SELECT pg_catalog.current_setting('autovacuum')::boolean AND pg_catalog.current_setting('track_counts')::boolean AS is_on,
                       pg_catalog.pg_is_in_recovery() AS is_standby) s
    -- a TOAST table without options of its own goes by those of its table
    CROSS JOIN LATERAL (
        SELECT (pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_enabled'))::boolean AS enabled,
               (pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold'))::float8 AS vacuum_threshold,
               (pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor'))::float8 AS vacuum_scale_factor,
               (pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_max_threshold'))::float8 AS vacuum_max_threshold,
               (pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_insert_threshold'))::float8 AS insert_threshold,
               (pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_insert_scale_factor'))::float8 AS insert_scale_factor,
               (pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_freeze_max_age'))::int AS freeze_max_age,
               (pg_catalog.max(option_value) FILTER (WHERE option_name = 'autovacuum_multixact_freeze_max_age'))::int AS multixact_freeze_max_age
        FROM pg_catalog.pg_options_to_table(coalesce(c.reloptions, m.reloptions))) o
    WHERE c.relkind IN ('r', 'm', 't') AND c.relfrozenxid <> '0'
), counted AS (
    SELECT b.*,
           -- in single precision, as autovacuum does it
           CASE WHEN b.vacuum_max >= 0 THEN least(b.vacuum_max, (b.vacuum_threshold + b.vacuum_scale * b.rows)::float4)
                ELSE (b.vacuum_threshold + b.vacuum_scale * b.rows)::float4 END AS dead_threshold,
           CASE WHEN b.insert_threshold >= 0 THEN (b.insert_threshold + b.insert_scale * b.rows * b.unfrozen)::float4 END AS inserted_threshold,
           b.xid_age > b.xid_limit OR b.multixact_age > b.multixact_limit AS is_forced
    FROM base b
), sampled AS MATERIALIZED (
    SELECT b.oid, s.inplace_bytes, s.error_bytes
    FROM (SELECT c.oid
          FROM counted c
          CROSS JOIN LATERAL (SELECT pg_catalog.sum(w.stawidth) AS width FROM pg_catalog.pg_statistic w WHERE w.starelid = c.oid AND NOT w.stainherit) w
          WHERE c.relkind <> 't' AND NOT c.is_temporary AND c.oid >= 16384 AND c.bytes >= 8388608 AND (w.width > 0 OR c.rows = 0)
            AND (pg_catalog.pg_has_role('pg_stat_scan_tables', 'USAGE') OR pg_catalog.has_table_privilege(c.oid, 'MAINTAIN'))
            AND c.rows * (28 + coalesce(w.width, 0)) < 0.7 * c.bytes
          ORDER BY c.bytes - c.rows * (28 + coalesce(w.width, 0)) DESC LIMIT 10) b
    CROSS JOIN LATERAL cyclone.estimate_bloat(b.oid, 300, wait => false, indexes => false) s
), failed AS MATERIALIZED (
    SELECT h.relid, pg_catalog.count(*) AS times, pg_catalog.max(h.started) AS started,
           (pg_catalog.array_agg(h.error ORDER BY h.id DESC))[1] AS error
    FROM (SELECT r.*, pg_catalog.max(r.id) FILTER (WHERE r.outcome = 'done') OVER (PARTITION BY r.relid) AS last_done
          FROM cyclone.history_rows() r
          WHERE r.datid IN (0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))) h
    WHERE h.started_by = 'autovacuum' AND h.outcome = 'failed' AND h.id > coalesce(h.last_done, 0)
    GROUP BY h.relid
    HAVING pg_catalog.count(*) > 1
), holder AS MATERIALIZED (
    SELECT kind, since, pg_catalog.age(xmin) AS xmin_age
    FROM cyclone.horizon_rows()
    WHERE is_oldest AND since <= pg_catalog.clock_timestamp() - interval '1 minute'
      AND (everywhere OR datid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))
    LIMIT 1
), unneeded AS (
    SELECT x.indrelid, pg_catalog.array_agg(CASE WHEN d.objid IS NOT NULL
               THEN pg_catalog.format('Index %s was left by a VACUUM (FULL INPLACE) that ended early, and is not needed: DROP INDEX. As long as nothing hangs on it the next one of %s drops it, too.',
                                      x.indexrelid::pg_catalog.regclass, x.indrelid::pg_catalog.regclass)
               ELSE pg_catalog.format('Index %s is invalid (pg_index): no query uses it, but each change of a row may have to maintain it: DROP INDEX, or REINDEX INDEX CONCURRENTLY.',
                                      x.indexrelid::pg_catalog.regclass) END ORDER BY x.indexrelid) AS advice
    FROM pg_catalog.pg_index x
    JOIN pg_catalog.pg_class c ON c.oid = x.indexrelid AND c.relkind = 'i'
    LEFT JOIN (SELECT DISTINCT d.objid FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_index o ON o.indexrelid = d.refobjid
               WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = d.classid AND d.deptype = 'a') d ON d.objid = x.indexrelid
    WHERE (NOT x.indisvalid OR (d.objid IS NOT NULL AND c.relname LIKE '%cyclone%'))
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_create_index p WHERE p.relid = x.indrelid)
    GROUP BY x.indrelid
)
SELECT b.oid::pg_catalog.regclass AS relation,
       b.main::pg_catalog.regclass AS toast_of,
       CASE WHEN b.is_standby OR b.is_temporary THEN NULL
            WHEN b.xid_age > b.xid_limit THEN 'age of transaction IDs'
            WHEN b.multixact_age > b.multixact_limit THEN 'age of multixact IDs'
            WHEN NOT b.is_on OR NOT b.autovacuum_enabled THEN NULL
            WHEN b.dead_rows > b.dead_threshold THEN 'dead rows'
            WHEN b.inserted_rows > b.inserted_threshold THEN 'inserted rows' END AS due,
       b.dead_rows,
       b.dead_threshold::float8 AS dead_threshold,
       b.xid_age,
       b.xid_limit,
       CASE WHEN NOT b.is_standby AND NOT b.is_temporary THEN greatest(b.xid_limit - b.xid_age + 1, 0) END AS forced_in,
       b.autovacuum_enabled,
       b.last_vacuum,
       CASE WHEN b.is_temporary THEN ARRAY[
           pg_catalog.format('Only its session can VACUUM a temporary table. This one keeps datfrozenxid or datminmxid from advancing, by %s transactions (relfrozenxid): its session should VACUUM or drop it, or end. If that has ended in a crash: DROP TABLE %s, which autovacuum does, too.',
                             b.xid_age, b.name)]
       ELSE pg_catalog.array_remove(ARRAY[
           CASE WHEN b.dead_rows > b.dead_threshold AND NOT b.is_on
                THEN pg_catalog.format('Autovacuum is off on this server. There are %s dead rows; it would have come at %s (pg_stat_all_tables): autovacuum = on.',
                                       b.dead_rows, b.dead_threshold)
                WHEN b.dead_rows > b.dead_threshold AND NOT b.autovacuum_enabled
                THEN pg_catalog.format('Autovacuum is off for this table. There are %s dead rows; it would have come at %s (pg_stat_all_tables): ALTER TABLE %s SET (%sautovacuum_enabled = on).',
                                       b.dead_rows, b.dead_threshold, b.name, CASE WHEN b.relkind = 't' THEN 'toast.' ELSE '' END) END,
           CASE WHEN b.dead_threshold >= 1000000 AND b.dead_threshold > 0.05 * b.rows
                THEN pg_catalog.format('Autovacuum waits for %s dead rows, %s %% of the table (pg_class.reltuples): ALTER TABLE %s SET (%sautovacuum_vacuum_scale_factor = 0.01) would have it come at about %s.',
                                       b.dead_threshold, pg_catalog.round((100 * b.dead_threshold / nullif(b.rows, 0))::numeric), b.name,
                                       CASE WHEN b.relkind = 't' THEN 'toast.' ELSE '' END, pg_catalog.round(0.01 * b.rows::numeric)) END,
           CASE WHEN b.dead_rows > b.dead_threshold AND b.last_vacuum > h.since
                THEN pg_catalog.format('The VACUUM of %s left dead rows, now %s (pg_stat_all_tables), as a %s keeps what was deleted in the last %s transactions: see cyclone.horizon.',
                                       pg_catalog.date_trunc('second', b.last_vacuum), b.dead_rows, h.kind, h.xmin_age) END,
           CASE WHEN b.is_forced AND NOT b.is_standby
                THEN pg_catalog.format('Autovacuum to prevent wraparound should have come, and has not, or did not get there, at an age of %s transactions (relfrozenxid) and %s multixact IDs (relminmxid): VACUUM (FREEZE) %s, and see cyclone.horizon.',
                                       b.xid_age, b.multixact_age, b.name)
                WHEN (b.xid_age >= 0.9 * b.xid_limit OR b.multixact_age >= 0.9 * b.multixact_limit) AND NOT b.is_standby
                THEN pg_catalog.format('An autovacuum to prevent wraparound comes in %s transactions (relfrozenxid) or %s multixact IDs (relminmxid): VACUUM (FREEZE) %s in a quiet hour comes before it.',
                                       b.xid_limit - b.xid_age + 1, b.multixact_limit - b.multixact_age + 1, b.name) END,
           (SELECT pg_catalog.format('The last %s autovacuums have failed, the last one at %s with "%s" (cyclone.history). Until that is fixed the table is not vacuumed.',
                                     f.times, pg_catalog.date_trunc('second', f.started), f.error)
            FROM failed f WHERE f.relid = b.oid),
           (SELECT pg_catalog.format(CASE WHEN k.reason IS NULL THEN 'VACUUM (FULL INPLACE) %s would give back about %s of %s, give or take %s (300 pages read).'
                                          ELSE '%s will be compacted by itself, which gives back about %s of %s, give or take %s (300 pages read); now: %s (cyclone.compaction).' END,
                                     b.name, pg_catalog.pg_size_pretty(s.inplace_bytes),
                                     pg_catalog.pg_size_pretty(b.bytes), pg_catalog.pg_size_pretty(s.error_bytes), k.reason)
            FROM sampled s
            LEFT JOIN cyclone.compaction k ON k.relation = s.oid
                AND k.reason IN ('due', 'running', 'not sampled yet', 'pause', 'horizon held back', 'outside the window')
            WHERE s.oid = b.oid AND s.inplace_bytes - s.error_bytes >= 0.2 * b.bytes)
           ] || u.advice || i.advice, NULL) END AS advice
FROM counted b
LEFT JOIN holder h ON true
LEFT JOIN cyclone.unused_indexes() u ON u.relid = b.oid
LEFT JOIN unneeded i ON i.indrelid = b.oid
WHERE NOT b.is_temporary OR (b.is_forced AND NOT b.is_standby);

COMMENT ON VIEW advice IS
'A row for each table, materialized view, TOAST table and catalog of this database: how far it is from autovacuum''s thresholds, and advice. Temporary tables are there only if they are older than the ages at which autovacuum prevents wraparound.';
COMMENT ON COLUMN advice.relation IS 'The table';
COMMENT ON COLUMN advice.toast_of IS 'Of a TOAST table, its table; null for others';
COMMENT ON COLUMN advice.due IS 'Why the next autovacuum worker of this database takes the table: "age of transaction IDs", "age of multixact IDs" (both to prevent wraparound), "dead rows" or "inserted rows"; null if it does not';
COMMENT ON COLUMN advice.dead_rows IS 'Dead rows, by the counters that autovacuum uses';
COMMENT ON COLUMN advice.dead_threshold IS 'Autovacuum comes when there are more dead rows than that';
COMMENT ON COLUMN advice.xid_age IS 'Age of relfrozenxid, in transactions';
COMMENT ON COLUMN advice.xid_limit IS 'Autovacuum comes to prevent wraparound when xid_age is higher than that';
COMMENT ON COLUMN advice.forced_in IS 'In how many transactions the age of transaction IDs forces an autovacuum, to prevent wraparound; 0 if it is due; null on a standby';
COMMENT ON COLUMN advice.autovacuum_enabled IS 'The table option of that name; if off, autovacuum comes to prevent wraparound only';
COMMENT ON COLUMN advice.last_vacuum IS 'When the last VACUUM or autovacuum of the table ended; null if there was none';
COMMENT ON COLUMN advice.advice IS 'Advice, each piece with its numbers and where they are from; empty if there is none. Pages of tables are read only if the column is selected';

GRANT USAGE ON SCHEMA cyclone TO PUBLIC;
GRANT SELECT ON progress, pace, history, bloat, horizon, advice TO PUBLIC;
GRANT SELECT ON progress_details, pace_details, history_details, bloat_details, horizon_details TO PUBLIC;

-- The columns that a view has of its details mean there what they mean here.
DO $$
DECLARE
    c record;
BEGIN
    FOR c IN
        SELECT v.relname AS view, a.attname AS "column", pg_catalog.col_description(d.oid, b.attnum) AS comment
        FROM pg_catalog.pg_class v
        JOIN pg_catalog.pg_attribute a ON a.attrelid = v.oid AND a.attnum > 0
        JOIN pg_catalog.pg_class d ON d.relnamespace = v.relnamespace AND d.relname = v.relname || '_details'
        JOIN pg_catalog.pg_attribute b ON b.attrelid = d.oid AND b.attname = a.attname
        WHERE v.relnamespace = 'cyclone'::pg_catalog.regnamespace AND v.relkind = 'v'
    LOOP
        EXECUTE pg_catalog.format('COMMENT ON COLUMN cyclone.%I.%I IS %L', c.view, c."column", c.comment);
    END LOOP;
END
$$;
