"""Where shared memory or descriptors run out, a VACUUM goes on with less of it, or with none, and says so."""

import re
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, create_with_template, table_made_once
from cyclone_lab import checks
from cyclone_lab.background import Parked
from cyclone_lab.fault_test import SHARED_MEMORY
from cyclone_lab.files import missing_files, stray_files
from cyclone_lab.shim import Disk

SEGMENTS = ("allocate", "truncate")  # which calls make a segment large enough, on one system or another
ROWS = 600_000
SETTINGS = {
    "dynamic_shared_memory_type": "posix",
    "min_dynamic_shared_memory": 0,
    "min_parallel_index_scan_size": 0,
    "maintenance_work_mem": "1MB",
}

@pytest.fixture(scope="module")
def faulty(prefix):
    """A server on a machine whose shared memory can run out, and what makes it."""
    with create_with_template(prefix, {**CONFIG, **SETTINGS}) as cluster:
        disk = Disk(cluster)
        cluster.start()
        yield cluster, disk


@pytest.fixture
def cluster(faulty):
    return faulty[0]


@pytest.fixture
def disk(faulty):
    return faulty[1]


def make_table(conn) -> dict:
    """Make table t of 2700 pages with dead rows on each, more than the store can take in at first."""
    conn.execute("CREATE TABLE t (id int, n int) WITH (autovacuum_enabled = off)")
    conn.execute(f"INSERT INTO t SELECT i, i FROM generate_series(1, {ROWS}) i")
    conn.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    conn.execute("CREATE INDEX t_n ON t (n)")
    conn.execute("DELETE FROM t WHERE id % 3 = 0")
    return checks.table_state(conn, "t")


# the state of table t
made, template, table = table_made_once(lambda request: request.getfixturevalue("faulty")[0], make_table)


def said(conn, command: str) -> str:
    lines = []
    conn.add_notice_handler(lambda m: lines.append(f"{m.severity}: {m.message_primary} {m.message_detail or ''}"))
    conn.execute(command)
    return "\n".join(lines)


def segments_left(conn) -> int:
    """How many segments of shared memory does the session have mapped?"""
    return Path(f"/proc/{conn.info.backend_pid}/maps").read_text().count("/dev/shm/PostgreSQL.")


def assert_whole(conn, before: dict) -> None:
    after = checks.table_state(conn, "t")
    assert (after["rows"], after["content_hash"]) == (before["rows"], before["content_hash"])
    assert after["dead_items"] == after["dead_tuples"] == 0
    checks.assert_clean(conn, "t")


def assert_log_is_clean(cluster, position: int) -> None:
    assert not re.search("leak|PANIC|TRAP|was terminated by signal|still referenced", cluster.log[position:])


@pytest.mark.parametrize("error", ["ENOSPC", "EMFILE"])
@pytest.mark.parametrize("after", [0, 1], ids=["the session's", "the team's"])
@pytest.mark.parametrize("command", ["VACUUM (VERBOSE, PARALLEL 2) t", "VACUUM (FULL, VERBOSE, PARALLEL 2) t"])
def test_without_shared_memory_for_a_team_the_leader_is_alone(cluster, disk, conn, table, command, after, error):
    position = len(cluster.log)
    with (
        cluster.connect(conn.info.dbname) as fresh,
        disk.fault([SHARED_MEMORY], ["create"] if error == "EMFILE" else SEGMENTS, error, after=after, lasting=True) as seen,
    ):
        text = said(fresh, command)
        assert seen().failed > 0
    assert "WARNING: VACUUM goes on without parallel workers for lack of shared memory" in text
    assert "2 planned, 0 launched" in text or "0 of 2 workers" in text or "FULL" in command
    assert_whole(conn, table)
    # the session is none the worse for it
    conn.execute("DELETE FROM t WHERE id % 7 = 0")
    text = said(conn, command)
    assert "WARNING" not in text
    assert checks.table_state(conn, "t")["dead_items"] == 0
    assert_log_is_clean(cluster, position)


def test_indexes_are_built_without_a_team_where_memory_runs_out_for_that_one(cluster, disk, conn, table):
    """The team that copies the table has its segment; the next one doesn't, nor do the server's own workers."""
    position = len(cluster.log)
    conn.execute("CREATE INDEX t_expression ON t ((id + n))")
    with cluster.connect(conn.info.dbname) as fresh, disk.fault([SHARED_MEMORY], SEGMENTS, "ENOSPC", after=2, lasting=True) as seen:
        text = said(fresh, "VACUUM (FULL, VERBOSE, PARALLEL 2) t")
        assert seen().failed > 0
    assert text.count("WARNING: VACUUM goes on without parallel workers for lack of shared memory") == 1
    assert_whole(conn, table)
    assert_log_is_clean(cluster, position)


@contextmanager
def out_of_memory_in_the_heap_scan(cluster, disk, conn, **how):
    """Run VACUUM with one worker; no memory can be had for the store beyond what it has from the start."""
    with Parked(cluster, conn.info.dbname, "heap-scan:any", 2, "VACUUM (VERBOSE, PARALLEL 1) t") as vacuum:
        with disk.fault([SHARED_MEMORY], SEGMENTS, "ENOSPC", **how) as seen:
            vacuum.release()
            vacuum.finish()
            yield "\n".join(vacuum.messages), seen()


def test_shared_memory_that_runs_out_in_the_heap_scan_ends_the_round_early(cluster, disk, conn, table):
    position = len(cluster.log)
    with out_of_memory_in_the_heap_scan(cluster, disk, conn, lasting=True) as (text, seen):
        assert seen.failed > 0
    assert text.count("early for lack of shared memory") == 1
    assert int(re.search(r"index scans: (\d+)", text)[1]) > 1
    assert_whole(conn, table)
    assert_log_is_clean(cluster, position)


def test_without_the_fault_one_round_is_enough_and_no_segment_is_left(conn, table):
    text = said(conn, "VACUUM (VERBOSE, PARALLEL 1) t")
    assert "index scans: 1" in text and "WARNING" not in text
    assert_whole(conn, table)
    left = segments_left(conn)  # the session's, and that of the statistics
    conn.execute("DELETE FROM t WHERE id % 3 = 1")
    conn.execute("VACUUM (PARALLEL 1) t")
    assert segments_left(conn) == left


def test_a_single_failure_costs_no_round_where_less_memory_is_enough(cluster, disk, conn, table):
    with out_of_memory_in_the_heap_scan(cluster, disk, conn) as (text, seen):
        assert seen.failed == 1
    assert "index scans: 1" in text and "lack of shared memory" not in text
    assert_whole(conn, table)


def test_a_worker_that_cannot_map_new_memory_sits_out(cluster, disk, conn, table):
    """It takes part until the store grows; the rest of its range is the leader's then."""
    position = len(cluster.log)
    with Parked(cluster, conn.info.dbname, "heap-scan:any", 2, "VACUUM (VERBOSE, PARALLEL 1) t") as vacuum:
        with disk.fault([SHARED_MEMORY], ["attach"], "ENFILE", lasting=True) as seen:
            vacuum.release()
            vacuum.finish()
            assert seen().failed >= 1
    text = "\n".join(vacuum.messages)
    assert text.count("a parallel vacuum worker sits out for lack of shared memory") == 1
    assert "index scans: 1" in text
    assert_whole(conn, table)
    assert_log_is_clean(cluster, position)


def test_workers_that_cannot_start_cost_only_their_help(cluster, disk, conn, table):
    position = len(cluster.log)
    with disk.fault([SHARED_MEMORY], ["attach"], "ENFILE", lasting=True) as seen:
        text = said(conn, "VACUUM (VERBOSE, PARALLEL 1) t")
        assert seen().failed == 1
    assert "WARNING: 1 parallel vacuum worker failed to start" in text
    assert_whole(conn, table)
    assert_log_is_clean(cluster, position)


# Parallel safe, and of a user, so an index with it is always left to the server; it may fail at first, when there are workers.
MAKE_FUNCTION = """
    CREATE FUNCTION f(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
    BEGIN
        IF current_setting('test.fail', true) = 'always' OR
            current_setting('test.fail', true) = 'at first' AND current_setting('max_parallel_maintenance_workers') <> '0'
        THEN
            RAISE EXCEPTION 'made to fail' USING ERRCODE = current_setting('test.error');
        END IF;
        RETURN i % 1000;
    END $$
"""
INDEXES = {
    "all by the server": "DROP INDEX t_n; ALTER TABLE t DROP CONSTRAINT t_pkey; CREATE INDEX t_f ON t (f(id))",
    "one by the server": "CREATE INDEX t_f ON t (f(id))",
    "BRIN by the server": "DROP INDEX t_n; ALTER TABLE t DROP CONSTRAINT t_pkey; CREATE INDEX t_f ON t USING brin (f(id))",
    "TOAST": "DROP INDEX t_n; ALTER TABLE t DROP CONSTRAINT t_pkey;"
             " ALTER TABLE t ADD v text; ALTER TABLE t ALTER v SET STORAGE EXTERNAL;"
             " UPDATE t SET v = repeat('v', 5000) WHERE id < 300",
}  # fmt: skip
ONCE_MORE = "indexes are built once more without parallel workers, for lack of resources"
FULL = "VACUUM (FULL, VERBOSE, PARALLEL 2) t"
WITH_WORKERS = {"maintenance_work_mem": "256MB", "cyclone.debug_workers": 2}  # or the server has no use for any


@pytest.fixture
def small(conn):
    make_small(conn)


def make_small(conn) -> None:
    """Make table t with two indexes, and a function that the server calls when it builds an index."""
    conn.execute(MAKE_FUNCTION)
    conn.execute("CREATE TABLE t (id int, n int) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 3000) i")
    conn.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    conn.execute("CREATE INDEX t_n ON t (n)")
    conn.execute("DELETE FROM t WHERE id % 3 = 0")


def set_all(conn, settings: dict) -> None:
    for name, value in settings.items():
        conn.execute(f"SET {name} = '{value}'")


def files(conn) -> list:
    return conn.execute("SELECT oid, pg_relation_filenode(oid) FROM pg_class WHERE relname ~ '^t(_|$)' ORDER BY oid").fetchall()


@pytest.mark.parametrize("indexes", INDEXES)
def test_indexes_that_the_server_builds_are_built_without_its_workers(cluster, disk, conn, small, indexes):
    """Wherever memory runs out: for our teams, or for the server's workers only. The command's progress is reported as ever."""
    conn.execute(INDEXES[indexes])
    before = checks.table_state(conn, "t")
    position = len(cluster.log)
    retried = 0
    for after in range(8):
        with disk.fault([SHARED_MEMORY], SEGMENTS, "ENOSPC", after=after) as seen:
            with Parked(cluster, conn.info.dbname, "rewrite-swapped:leader", 1, FULL, WITH_WORKERS) as vacuum:
                progress = conn.execute("SELECT command, relid::regclass::text, phase FROM pg_stat_progress_cluster").fetchall()
                vacuum.release()
                vacuum.finish()
                came = seen().failed > 0
        assert progress == [("VACUUM FULL", "t", "performing final cleanup")]
        retried += ONCE_MORE in "\n".join(vacuum.messages)
        assert_whole(conn, before)
        if not came:
            break
    assert not came and retried == 1
    assert_log_is_clean(cluster, position)


def test_workers_of_the_server_that_cannot_start_cost_only_their_help(cluster, disk, conn, small):
    conn.execute(INDEXES["all by the server"])
    before = checks.table_state(conn, "t")
    position = len(cluster.log)
    set_all(conn, WITH_WORKERS)
    with disk.fault([SHARED_MEMORY], ["attach"], "ENFILE", lasting=True) as seen:
        text = said(conn, FULL)
        assert seen().failed > 0
    assert text.count(f"WARNING: {ONCE_MORE}") == 1
    assert_whole(conn, before)
    assert_log_is_clean(cluster, position)


@pytest.mark.parametrize("wal_level", ["replica", "minimal"])
@pytest.mark.parametrize("indexes", ["all by the server", "one by the server"])
def test_what_the_first_try_did_is_undone(new_cluster, wal_level, indexes):
    """It fails late, with files filled; nothing of it is left, nor of settings, and recovery finds what was committed."""
    cluster = new_cluster(wal_level=wal_level, **({"max_wal_senders": 0} if wal_level == "minimal" else {}))
    with cluster.connect(TEMPLATE) as conn:
        make_small(conn)
        conn.execute(INDEXES[indexes] + "; CREATE INDEX t_g ON t (f(n))" * (indexes == "all by the server"))
        before = checks.table_state(conn, "t")
        set_all(conn, {**WITH_WORKERS, "test.fail": "at first", "test.error": "53000"})
        assert said(conn, FULL).count(ONCE_MORE) == 1
        set_all(conn, {"test.fail": "never"})
        [(workers,)] = conn.execute("SHOW max_parallel_maintenance_workers")
        assert workers == str(CONFIG["max_parallel_maintenance_workers"])
        assert_whole(conn, before)
        conn.execute("CHECKPOINT")
        assert stray_files(cluster, conn) == missing_files(cluster, conn) == []
        set_all(conn, {"test.fail": "at first"})
        assert said(conn, FULL).count(ONCE_MORE) == 1
    cluster.crash()
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        assert_whole(conn, before)
        assert stray_files(cluster, conn) == missing_files(cluster, conn) == []
    assert_log_is_clean(cluster, 0)


@pytest.mark.parametrize(("error", "tries"), [("P0001", 1), ("53100", 1), ("55000", 1), ("53200", 2), ("53000", 2)])
def test_other_errors_end_the_command_and_its_transaction(conn, small, error, tries):
    conn.execute(INDEXES["all by the server"])
    before, old_files = checks.table_state(conn, "t"), files(conn)
    set_all(conn, {**WITH_WORKERS, "test.fail": "always", "test.error": error})
    lines = []
    conn.add_notice_handler(lambda m: lines.append(m.message_primary))
    with pytest.raises(psycopg.Error, match="made to fail") as raised:
        conn.execute(FULL)
    assert raised.value.sqlstate == error
    assert lines.count(ONCE_MORE) == tries - 1
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert files(conn) == old_files and conn.execute("SELECT FROM pg_stat_progress_cluster").fetchall() == []
    set_all(conn, {"test.fail": "never"})
    conn.execute(FULL)
    assert_whole(conn, before)


def test_transaction_ids_are_used_for_the_sake_of_workers_only(conn, small):
    """Where the server would not start any, its builds take none of their own."""
    next_xid = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    conn.execute(INDEXES["all by the server"])
    used = {}
    for memory in ("32MB", "256MB"):
        conn.execute(f"SET maintenance_work_mem = '{memory}'")
        [(first,)] = conn.execute(next_xid)
        conn.execute(FULL)
        [(last,)] = conn.execute(next_xid)
        used[memory] = last - first
    assert used["256MB"] == used["32MB"] + 1
