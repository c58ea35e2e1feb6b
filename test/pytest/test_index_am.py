"""A table with an index of another library's access method, which does in VACUUM what parallel mode forbids, gets no workers.

The index of the test module test_index_am keeps its entries in a table, so each VACUUM runs queries, with a transaction ID.
"""

import re

import psycopg
import pytest

from conftest import TEMPLATE
from cyclone_lab import build, checks
from cyclone_lab.background import Background, heard, wait_until

EVERY_VERSION = "the interface of index kinds differs"

MODULE_LOCK = 51967
ENTRIES = "SELECT tid FROM test_index_am_entries WHERE index = 't_other'::regclass ORDER BY tid"


@pytest.fixture(scope="module")
def module(prefix):
    build.install_test_module("test_index_am", prefix)


def make_table(conn, other: str = "USING in_a_table (id)") -> None:
    """Make table t with a foreign index and ours, of which every third row is dead; 64 kB have room for a part of them."""
    conn.execute("CREATE EXTENSION IF NOT EXISTS test_index_am")
    conn.execute("CREATE TABLE t (id int, a int[], note text) WITH (autovacuum_enabled = off, fillfactor = 30)")
    conn.execute("INSERT INTO t SELECT i, ARRAY[i, -i], md5(i::text) FROM generate_series(1, 9000) i")
    conn.execute("CREATE INDEX t_id ON t (id)")
    conn.execute(f"CREATE INDEX t_other ON t {other}")
    conn.execute("CREATE INDEX t_hash ON t USING hash (id)")
    conn.execute("CREATE INDEX t_a ON t USING gin (a)")
    conn.execute("CREATE INDEX t_brin ON t USING brin (note) WITH (pages_per_range = 4)")
    conn.execute("DELETE FROM t WHERE id % 3 = 0 OR id BETWEEN 2000 AND 5000")
    conn.execute("SET min_parallel_index_scan_size = 0")
    conn.execute("SET min_parallel_table_scan_size = 0")


def assert_entries(conn) -> None:
    """The foreign index has an entry for each row that there is, and no other."""
    assert conn.execute(ENTRIES).fetchall() == conn.execute("SELECT ctid FROM t ORDER BY ctid").fetchall()


def said(conn, statement: str) -> str:
    return "\n".join(heard(conn, statement))


def state(conn, vacuum: str) -> dict:
    """Make the table, run a VACUUM, and return what it left behind, of the table and each index."""
    make_table(conn)
    conn.execute(vacuum)
    found = checks.table_state(conn, "t")
    found["indexes"] = conn.execute(
        "SELECT relname, relpages, reltuples FROM pg_index JOIN pg_class ON oid = indexrelid WHERE indrelid = 't'::regclass ORDER BY 1"
    ).fetchall()
    del found["relfrozenxid_age"]
    conn.execute("DROP TABLE t")
    return found


@pytest.mark.parametrize("workers", [*(pytest.param(number, marks=pytest.mark.once) for number in (0, 1)), 3])
def test_a_foreign_index_is_vacuumed_without_workers(module, conn, workers):
    make_table(conn)
    report = said(conn, f"VACUUM (VERBOSE, PARALLEL {workers}) t")
    assert "parallel workers: 0 planned, 0 launched" in report
    assert ('disabling parallel option of vacuum on "t"' in report) == (workers > 0)
    assert_entries(conn)
    checks.assert_clean(conn, "t")
    conn.execute("INSERT INTO t SELECT i, ARRAY[i, -i], md5(i::text) FROM generate_series(1, 3000) i")
    conn.execute("DELETE FROM t WHERE id % 7 = 1")
    conn.execute(f"VACUUM (FREEZE, PARALLEL {workers}) t")
    assert_entries(conn)
    checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("workers", [0, 2])
def test_a_foreign_index_is_vacuumed_in_each_round(module, conn, workers):
    conn.execute("CREATE EXTENSION test_index_am")
    conn.execute("CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 500000) i")
    conn.execute("CREATE INDEX t_id ON t (id)")
    conn.execute("CREATE INDEX t_other ON t USING in_a_table (id) WHERE id % 100 < 2")
    conn.execute("DELETE FROM t WHERE id % 2 = 0")
    conn.execute("SET maintenance_work_mem = '64kB'")
    report = said(conn, f"VACUUM (VERBOSE, PARALLEL {workers}) t")
    assert int(re.search(r"index scans: (\d+)", report)[1]) > 1
    assert "parallel workers: 0 planned, 0 launched" in report
    assert conn.execute(ENTRIES).fetchall() == conn.execute("SELECT ctid FROM t WHERE id % 100 < 2 ORDER BY ctid").fetchall()
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.once), 2])
def test_a_table_with_a_foreign_index_is_left_as_core_leaves_it(module, conn, workers):
    ours = state(conn, f"VACUUM (PARALLEL {workers}) t")
    conn.execute("SET cyclone.enabled = off")
    assert ours == state(conn, "VACUUM (PARALLEL 0) t")


@pytest.mark.parametrize("statement", ["VACUUM (FULL) t", "VACUUM (FULL INPLACE) t"])
def test_a_table_with_a_foreign_index_is_compacted(module, conn, statement):
    make_table(conn)
    conn.execute("VACUUM t")
    conn.execute("DELETE FROM t WHERE id < 6000 AND id % 5 > 0")
    conn.execute(statement)
    # in place the moved row's old version, and its entry, are there until the next VACUUM
    conn.execute("VACUUM (INDEX_CLEANUP on) t")
    assert_entries(conn)
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_autovacuum_with_workers_comes_to_a_foreign_index(module, new_cluster):
    cluster = new_cluster(
        autovacuum="on",
        autovacuum_naptime="1s",
        autovacuum_vacuum_cost_delay=0,
        log_autovacuum_min_duration=0,
        min_parallel_index_scan_size=0,
        min_parallel_table_scan_size=0,
        **{"cyclone.autovacuum": "on", "cyclone.autovacuum_max_parallel_workers": 2},
    )
    with cluster.connect(TEMPLATE) as conn:
        make_table(conn)
        conn.execute("ALTER TABLE t SET (autovacuum_enabled = on, autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0)")
        count = "SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 't'"
        wait_until(lambda: conn.execute(count).fetchone() > (0,), "autovacuum")
        conn.execute("ALTER TABLE t SET (autovacuum_enabled = off)")
        assert_entries(conn)
        row = "SELECT engine_count > 0, error_count FROM cyclone.autovacuum_details WHERE relation = 't'::regclass"
        assert conn.execute(row).fetchone() == (True, 0)
        checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("workers", [0, 2])
def test_a_cancel_in_a_foreign_index_leaves_nothing_behind(module, cluster, conn, workers):
    make_table(conn)
    with cluster.connect(conn.info.dbname) as other:
        other.execute(f"SELECT pg_advisory_lock({MODULE_LOCK})")
        vacuum = Background(cluster, conn.info.dbname, f"VACUUM (PARALLEL {workers}) t", {"min_parallel_index_scan_size": 0})
        waits = f"SELECT 1 FROM pg_locks WHERE objid = {MODULE_LOCK} AND NOT granted"
        wait_until(lambda: other.execute(waits).fetchone(), "the index's routine")
        assert other.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'").fetchone() == (0,)
        other.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
        error = vacuum.wait()
    assert isinstance(error, psycopg.errors.QueryCanceled)
    assert 'while vacuuming index "t_other" of relation "public.t"' in error.diag.context
    said(conn, f"VACUUM (PARALLEL {workers}) t")
    assert_entries(conn)
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_functions_that_are_not_parallel_safe_may_be_called_to_summarize(module, conn):
    conn.execute("CREATE SEQUENCE calls")
    conn.execute("""
        CREATE FUNCTION counted(x text) RETURNS text IMMUTABLE PARALLEL UNSAFE LANGUAGE plpgsql AS $$
        BEGIN PERFORM nextval('public.calls'); RETURN lower(x); END $$
    """)
    make_table(conn, "USING brin (counted(note)) WITH (pages_per_range = 2)")
    conn.execute("INSERT INTO t SELECT i, NULL, 'x' FROM generate_series(1, 5000) i")
    assert "parallel workers: 0 planned, 0 launched" in said(conn, "VACUUM (VERBOSE, PARALLEL 2) t")
    # no page is left to be summarized
    assert conn.execute("SELECT brin_summarize_new_values('t_other')").fetchone() == (0,)
    checks.assert_clean(conn, "t")
