"""Where shared memory or descriptors run out, a VACUUM goes on with less of it, or with none, and says so."""

import re
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from conftest import CONFIG, create_with_template, table_made_once
from cyclone_lab import checks
from cyclone_lab.background import Parked, heard
from cyclone_lab.shim import Disk
from long_runs.fault_test import SHARED_MEMORY

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
    return "\n".join(heard(conn, command, lambda notice: f"{notice.severity}: {notice.message_primary} {notice.message_detail or ''}"))


def segments_left(conn) -> int:
    """How many segments of shared memory does the session have mapped?"""
    return Path(f"/proc/{conn.info.backend_pid}/maps").read_text().count("/dev/shm/PostgreSQL.")


def assert_whole(conn, before: dict) -> None:
    checks.assert_vacuumed(conn, "t", before)


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


def test_workers_of_the_server_that_find_no_memory_end_the_command(cluster, disk, conn, table):
    """As they end PostgreSQL's own: an index with a user's function is always left to the server. Nothing is left of the command."""
    position = len(cluster.log)
    conn.execute("CREATE FUNCTION f(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS 'BEGIN RETURN i % 1000; END'")
    conn.execute("CREATE INDEX t_f ON t (f(id))")
    conn.execute("SET maintenance_work_mem = '256MB'")  # or the server has no use for any
    failed = 0
    for after in range(8):
        with disk.fault([SHARED_MEMORY], SEGMENTS, "ENOSPC", after=after) as seen:
            try:
                conn.execute("VACUUM (FULL, PARALLEL 2) t")
            except psycopg.errors.DiskFull:
                failed += 1
            came = seen().failed > 0
        assert_whole(conn, table)
        if not came:
            break
    assert not came and failed == 1
    assert_log_is_clean(cluster, position)
