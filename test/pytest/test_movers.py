"""VACUUM (FULL INPLACE) with workers that move rows: what holds without them holds with them, and no failure of one leaves traces."""

import re

import psycopg
import pytest

from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, wait_until
from cyclone_lab.shim import Disk
from test_inplace import (  # noqa: F401 (run once more, with the workers that the fixtures here see to)
    CLEAN,
    INPLACE,
    MAKE_VALUES,
    MOVE,
    blocks,
    made,  # noqa: F401 (a fixture)
    table,  # noqa: F401 (a fixture)
    template,  # noqa: F401 (a fixture)
    test_a_move_is_a_change_of_what_was_read,
    test_a_standby_replays_it,
    test_a_table_that_is_used_all_the_time_becomes_smaller,
    test_as_small_as_a_rewrite,
    test_crashes,
    test_failing_while_values_move,
    test_fillfactor_is_kept,
    test_functions_in_indexes_run_as_the_owner,
    test_kinds_of_tables,
    test_logical_decoding_hears_nothing,
    test_logical_decoding_hears_nothing_of_values,
    test_nothing_else_happens_to_the_rows,
    test_old_snapshots_see_their_rows,
    test_rows_in_use_stay_until_they_are_free,
    test_serializable_transactions_stay_serializable,
    test_values_after_a_crash,
    test_who_changes_a_row_while_its_values_move,
    test_who_fails_leaves_a_sound_table,
    toast_of,
    values,  # noqa: F401 (a fixture)
    warnings_of,
)
from test_rewrite import content, run_script

WORKERS = {"min_parallel_table_scan_size": 0, "cyclone.debug_workers": 2, "max_parallel_maintenance_workers": 2}
FAILED = "a worker that moved rows has failed, going on without workers"
POINTS = ("inplace-pause", "inplace-lists", "inplace-half", "inplace-batch")


@pytest.fixture
def db(cluster, db):
    """The test's database, where every session has its tables compacted by three processes, however small they are."""
    for name, value in WORKERS.items():
        cluster.sql(f"ALTER DATABASE {db} SET {name} = {value}")
    return db


@pytest.fixture
def new_cluster(new_cluster):
    """The same for a server of the test's own."""
    return lambda **config: new_cluster(**WORKERS, **config)


def assert_all_is_well(conn, expected) -> None:
    """The rows are these, heap and indexes sound; and no worker, nor lock of one, is left over."""
    assert content(conn, "t") == expected
    conn.execute(CLEAN)
    checks.assert_clean(conn, "t")
    assert workers(conn) == [] and conn.execute("TABLE cyclone.progress").fetchall() == []
    held = conn.execute("SELECT pid, mode FROM pg_locks WHERE relation = 't'::regclass AND pid <> pg_backend_pid()").fetchall()
    assert held == []


def workers(conn) -> list[int]:
    """The process IDs of the workers in this database."""
    query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_cyclone worker' AND datname = current_database()"
    return [pid for (pid,) in conn.execute(query)]


def test_three_processes_move_rows(cluster, db, conn, table):  # noqa: F811
    """Each in a transaction of its own, at the same time."""
    with Parked(cluster, db, "inplace-batch:any", 3, INPLACE) as parked:
        assert sorted(workers(conn)) == parked.workers
        writing = conn.execute("SELECT count(DISTINCT backend_xid::text) FROM pg_stat_activity WHERE pid = ANY(%s)", (parked.parked,))
        assert writing.fetchone() == (3,), "one has moved nothing"
        told = conn.execute("SELECT pid, leader_pid, role, phase FROM cyclone.progress ORDER BY pid").fetchall()
        assert told == [
            (pid, parked.pid, "leader" if pid == parked.pid else "worker", "moving rows") for pid in parked.parked
        ]
        assert content(conn, "t") == table
    parked.finish()
    assert blocks(conn) < 100
    assert_all_is_well(conn, table)


def test_three_processes_move_values(cluster, db, conn, values):  # noqa: F811
    with Parked(cluster, db, "inplace-value:any", 3, MOVE) as parked:
        assert sorted(workers(conn)) == parked.workers
        assert conn.execute("SELECT DISTINCT phase FROM cyclone.progress").fetchall() == [("moving values",)]
    parked.finish()
    assert_all_is_well(conn, values)


def test_the_report_counts_workers_and_what_they_did(conn, table):  # noqa: F811
    [report] = [text for text, _ in warnings_of(conn, "VACUUM (FULL INPLACE, VERBOSE) t") if "finished compacting" in text]
    assert "\nworkers moving rows: 2 planned, 2 launched\n" in report
    # a tail of 8 MB is needed for each, else
    conn.execute("RESET min_parallel_table_scan_size; SET min_parallel_table_scan_size = '8MB'")
    conn.execute("UPDATE t SET n = n WHERE id % 2 = 0")
    [report] = [text for text, _ in warnings_of(conn, "VACUUM (FULL INPLACE, VERBOSE, PARALLEL 2) t") if "finished compacting" in text]
    assert "rows moved: 0" not in report and "workers moving rows" not in report


@pytest.mark.parametrize("limit", ["max_parallel_maintenance_workers", "max_parallel_workers"])
def test_limits_of_the_server(conn, table, limit):  # noqa: F811
    conn.execute(f"SET {limit} = 1")
    [report] = [text for text, _ in warnings_of(conn, "VACUUM (FULL INPLACE, VERBOSE, PARALLEL 4) t") if "finished compacting" in text]
    assert "\nworkers moving rows: 1 planned, 1 launched\n" in report
    assert_all_is_well(conn, table)


def test_no_slots_for_workers(new_cluster):
    """All taken, so one process does it."""
    cluster = new_cluster(max_worker_processes=1)  # the server's own launcher of logical replication has it
    with cluster.connect("cyclone_template") as conn:
        run_script(conn, MAKE_VALUES)
        expected = content(conn, "t")
        [report] = [text for text, _ in warnings_of(conn, "VACUUM (FULL INPLACE, VERBOSE) t") if "finished compacting" in text]
        assert "\nworkers moving rows: 2 planned, 0 launched\n" in report
        assert content(conn, "t") == expected


def failing_workers(cluster, db, statement: str, point: str, leader_at: str) -> list[str]:
    """What the client hears of a statement whose workers fail at `point`, while the leader waits at `leader_at` with work left."""
    told = f'debug point "{point}" reached in worker'
    before = cluster.log.count(told)
    settings = {"cyclone.debug_point": f"{leader_at}:leader:wait {point}:worker:error"}
    with Parked(cluster, db, leader_at, 1, statement, settings) as parked:
        wait_until(lambda: cluster.log.count(told) > before, "failing of a worker")
    parked.finish()
    return parked.messages


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_fails(cluster, db, conn, table, point):  # noqa: F811
    """The others do its work; the client hears of it, and the table becomes as small."""
    assert FAILED in failing_workers(cluster, db, INPLACE, point, "inplace-batch")
    assert blocks(conn) < 100
    assert_all_is_well(conn, table)


def test_a_worker_that_fails_while_it_moves_values(cluster, db, conn, values):  # noqa: F811
    before = blocks(conn, toast_of(conn))
    assert FAILED in failing_workers(cluster, db, MOVE, "inplace-value", "inplace-value")
    assert blocks(conn, toast_of(conn)) < before / 2
    assert_all_is_well(conn, values)


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
@pytest.mark.parametrize("who", ["leader", "workers"])
def test_stopping_it(cluster, db, conn, table, how, who):  # noqa: F811
    """With the leader all end; without its workers it goes on."""
    with Parked(cluster, db, "inplace-batch:any", 3, MOVE) as parked:
        for pid in parked.workers if who == "workers" else [parked.pid]:
            conn.execute(f"SELECT {how}(%s)", (pid,))
        wait_until(lambda: workers(conn) == [], "the workers' end")
        if who == "leader":
            assert isinstance(parked.wait(), psycopg.errors.QueryCanceled if "cancel" in how else psycopg.errors.AdminShutdown)
    if who == "workers":
        parked.finish()
        assert FAILED in parked.messages
    assert_all_is_well(conn, table)
    conn.execute(INPLACE)
    assert blocks(conn) < 100
    assert_all_is_well(conn, table)


def test_who_waits_for_the_table_does_not_block_the_workers(cluster, db, conn, table):  # noqa: F811
    """He waits for the leader, so a worker that waited behind him would wait for its own leader."""
    with Parked(cluster, db, "inplace-pause:worker", 2, MOVE) as parked:
        locker = Background(cluster, db, "BEGIN; LOCK TABLE t; COMMIT")
        waits = "SELECT FROM pg_locks WHERE relation = 't'::regclass AND NOT granted"
        wait_until(lambda: conn.execute(waits).fetchall(), "somebody who waits")
    parked.finish()
    locker.finish()
    assert FAILED not in parked.messages
    assert_all_is_well(conn, table)


def test_a_deadlock_that_the_server_does_not_see(cluster, db, conn, table):  # noqa: F811
    """A worker waits for the lock of someone who waits for the leader: it gives up, and what remains is a deadlock that is seen."""
    with Parked(cluster, db, "inplace-pause:worker", 2, MOVE) as parked, cluster.connect(db) as other:
        ended = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'CycloneMoversEnd'"
        wait_until(lambda: conn.execute(ended, (parked.pid,)).fetchall(), "a leader that waits for its workers")
        other.execute("BEGIN")
        other.execute("ALTER INDEX t_note SET TABLESPACE pg_default")
        modes = other.execute("SELECT mode FROM pg_locks WHERE relation = 't_note'::regclass AND pid = pg_backend_pid()").fetchall()
        assert ("AccessExclusiveLock",) in modes
        parked.release()
        try:
            other.execute("SET LOCAL lock_timeout = 0")
            other.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")  # nothing that the workers have conflicts with that
            other.execute("COMMIT")
        except psycopg.errors.DeadlockDetected:
            other.execute("ROLLBACK")
        assert isinstance(parked.wait(), type(None) | psycopg.errors.DeadlockDetected)
        assert FAILED in parked.messages
    assert_all_is_well(conn, table)


def test_an_expression_that_leaves_something_behind_in_the_session(cluster, db, conn, table):  # noqa: F811
    """The session's first temporary object, which it has to clean up when it ends, comes while rows move: in leader and workers."""
    run_script(
        conn,
        "CREATE FUNCTION key(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        "CREATE INDEX t_key ON t (key(id))",
    )
    conn.execute(
        "CREATE FUNCTION litter() RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
        " IF pg_catalog.pg_my_temp_schema() = 0 THEN"
        "  CREATE FUNCTION pg_temp.one() RETURNS int LANGUAGE sql AS 'SELECT 1'; END IF; END $$"
    )
    conn.execute(
        "CREATE OR REPLACE FUNCTION key(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM public.litter(); RETURN $1; END'"
    )
    with Parked(cluster, db, "inplace-batch:any", 3, MOVE) as parked:
        assert len(parked.workers) == 2
    parked.finish()
    assert FAILED not in parked.messages
    # a session's schema outlives it, what was in it does not; a later pass has workers of its own
    [(littered,)] = conn.execute(r"SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pg\_temp\_%'")
    assert littered >= 3
    left = "SELECT FROM pg_proc WHERE proname = 'one'"
    wait_until(lambda: conn.execute(left).fetchall() == [], "cleaning up")
    assert blocks(conn) < 100
    assert_all_is_well(conn, table)


def test_settings_and_roles_are_those_of_the_session(cluster, db, conn):
    """An expression in an index sees in a worker what it sees in the leader, also after SET ROLE and SET SESSION AUTHORIZATION."""
    as_member = {
        "cyclone.debug_point": "inplace-batch:any:wait",
        "my.own": "word",
        "timezone": "Asia/Tokyo",
        "session_authorization": "moving_member",
        "role": "moving_owner",
    }
    conn.execute("CREATE ROLE moving_owner; CREATE ROLE moving_member; GRANT moving_owner TO moving_member; GRANT CREATE ON SCHEMA public TO moving_owner")
    try:
        run_script(
            conn,
            "CREATE TABLE t (id int, filler text);"
            "INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i;"
            "CREATE FUNCTION who(int) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1::text';"
            "CREATE INDEX t_who ON t (who(id)); DELETE FROM t WHERE id % 4 <> 0; ALTER TABLE t OWNER TO moving_owner",
        )
        conn.execute(
            "CREATE OR REPLACE FUNCTION who(int) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE LOG 'seen by %: % % % % %;', pg_catalog.pg_backend_pid(), session_user, current_user,"
            "  pg_catalog.current_setting('my.own'), pg_catalog.current_setting('timezone'), pg_catalog.current_setting('search_path');"
            " RETURN $1::text; END $$"
        )
        before, log = content(conn, "t"), cluster.log
        with Parked(cluster, db, "inplace-batch:any", 3, MOVE, as_member) as parked:
            pass
        parked.finish()
        seen = re.findall(r"seen by (\d+): (.*);", cluster.log[len(log) :])
        assert {int(pid) for pid, _ in seen} >= set(parked.parked)
        assert {what for _, what in seen} == {"moving_member moving_owner word Asia/Tokyo pg_catalog, pg_temp"}
        assert content(conn, "t") == before
    finally:
        conn.execute("DROP TABLE IF EXISTS t")
        conn.execute("DROP OWNED BY moving_owner CASCADE")
        conn.execute("DROP ROLE moving_owner; DROP ROLE moving_member")


def test_too_little_shared_memory(new_cluster):
    """For workers and what they have to know, the list of values among it: then one process does it all, and says so."""
    cluster = new_cluster(min_dynamic_shared_memory=0)
    cluster.stop()
    disk = Disk(cluster)
    cluster.start()
    with cluster.connect("cyclone_template") as conn:
        run_script(conn, MAKE_VALUES)
        expected, before = content(conn, "t"), blocks(conn, toast_of(conn))
        # VACUUM itself has had its workers when the first plan is made
        with Parked(cluster, "cyclone_template", "inplace-plan:leader", 1, MOVE) as parked:
            with disk.fault(["PostgreSQL."], ["allocate"], "ENOSPC") as seen:
                parked.release()
                parked.finish()
                assert seen().failed == 1
        assert parked.messages == ["not enough shared memory for workers that move rows, going on without workers"]
        assert blocks(conn, toast_of(conn)) < before / 2
        assert_all_is_well(conn, expected)
