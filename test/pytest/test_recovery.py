"""VACUUM's WAL is right: after a crash in any phase, and on a standby, tables are sound and their rows
are there. The WAL carries whole pages to compare with what replay makes of it (wal_consistency_checking)."""

import os
import signal

import psycopg
import pytest

from conftest import TEMPLATE
from cyclone_lab import checks
from cyclone_lab.background import Parked
from cyclone_lab.proof import wait_for_restart

EVERY_VERSION = "what replays WAL is the server"

CHECK_WAL = {"wal_consistency_checking": "all", "min_parallel_index_scan_size": 0, "max_wal_size": "4GB"}
VACUUM = "VACUUM (PARALLEL 2) t"


def make_table(conn, name: str = "t") -> dict:
    """Make a table of 500 pages with dead rows on each and nothing else at the end, and several indexes."""
    conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, a int[], note text, p point) WITH (fillfactor = 20)")
    conn.execute(f"INSERT INTO {name} SELECT i, ARRAY[i, -i], md5(i::text), point(i, i) FROM generate_series(1, 7000) i")
    conn.execute(f"CREATE INDEX {name}_a ON {name} USING gin (a)")
    conn.execute(f"CREATE INDEX {name}_note ON {name} USING hash (note)")
    conn.execute(f"CREATE INDEX {name}_p ON {name} USING gist (p)")
    conn.execute(f"CREATE INDEX {name}_sp ON {name} USING spgist (p)")
    conn.execute(f"CREATE INDEX {name}_brin ON {name} USING brin (id)")
    conn.execute(f"CREATE INDEX {name}_brin2 ON {name} USING brin (note)")
    conn.execute(f"DELETE FROM {name} WHERE id % 3 = 0 OR id > 5000")
    return checks.table_state(conn, name)


def same_rows(state: dict, other: dict) -> bool:
    return (state["rows"], state["content_hash"]) == (other["rows"], other["content_hash"])


def replayed_state(conn) -> dict:
    """Return what a standby must know of table t, block by block."""
    state = checks.table_state(conn, "t")
    del state["free_space"]  # not replayed exactly
    [(state["items"],)] = conn.execute(
        """
        SELECT array_agg((block, lp, lp_flags, t_xmin, t_xmax, t_ctid)::text ORDER BY block, lp)
        FROM generate_series(0, pg_relation_size('t') / 8192 - 1) block, heap_page_items(get_raw_page('t', block))
        """
    )
    [(state["map"],)] = conn.execute("SELECT array_agg(map::text ORDER BY blkno) FROM pg_visibility('t') map")
    return state


def flush(conn) -> None:
    """Write out all WAL, with a commit that does: that of a VACUUM, which has no transaction ID, does not."""
    conn.execute("SELECT pg_logical_emit_message(true, '', '')")


def test_tables_are_sound_after_a_crash_in_each_phase(new_cluster):
    cluster = new_cluster(**CHECK_WAL)
    for phase, processes in {
        "heap-scan": 3,
        "index-vacuum": 3,
        "btree-page": 1,
        "gist-page": 1,
        "spgist-page": 1,
        "hash-bucket": 1,
        "index-page-deletion": 1,
        "heap-vacuum": 3,
        "index-cleanup": 3,
        "truncate": 1,
    }.items():
        with cluster.connect(TEMPLATE) as conn:
            before = make_table(conn)
        with Parked(cluster, TEMPLATE, f"{phase}:any", processes, VACUUM) as vacuum:
            with cluster.connect(TEMPLATE) as conn:
                flush(conn)
            cluster.crash()
            assert isinstance(vacuum.wait(), psycopg.OperationalError)
        cluster.start()
        with cluster.connect(TEMPLATE) as conn:
            conn.execute("SET statement_timeout = '60s'")
            state = checks.table_state(conn, "t")
            assert same_rows(state, before), phase
            # between the two passes index entries to dead items are as they should be
            assert checks.heap_corruption(conn, "t") == checks.btree_corruption(conn, "t") == []
            assert checks.visibility_map_errors(conn, "t") == []
            conn.execute("VACUUM (FREEZE, INDEX_CLEANUP on, PARALLEL 2) t")
            after = checks.table_state(conn, "t")
            assert same_rows(after, before), phase
            assert after["dead_items"] == after["dead_tuples"] == 0
            assert after["all_frozen"] == after["relpages"]
            checks.assert_clean(conn, "t")
            conn.execute("DROP TABLE t")
    assert "inconsistent page" not in cluster.log and "PANIC" not in cluster.log


@pytest.mark.once
@pytest.mark.parametrize("victim", ["leader", "worker"])
def test_the_server_recovers_from_the_sudden_death_of_one_process(new_cluster, victim):
    cluster = new_cluster(**CHECK_WAL)
    with cluster.connect(TEMPLATE) as conn:
        before = make_table(conn)
    with cluster.connect() as witness, Parked(cluster, TEMPLATE, "heap-vacuum:any", 3, VACUUM) as vacuum:
        os.kill(vacuum.pid if victim == "leader" else vacuum.workers[0], signal.SIGKILL)
        assert isinstance(vacuum.wait(), psycopg.OperationalError)
        # a moment later the server notices, and ends all sessions
        with pytest.raises(psycopg.OperationalError):
            witness.execute("SELECT pg_sleep(60)")
    wait_for_restart(cluster)
    with cluster.connect(TEMPLATE) as conn:
        assert conn.execute("SELECT * FROM cyclone.progress_details").fetchall() == []
        conn.execute("VACUUM (INDEX_CLEANUP on, PARALLEL 2) t")
        after = checks.table_state(conn, "t")
        assert same_rows(after, before)
        assert after["dead_items"] == after["dead_tuples"] == 0
        checks.assert_clean(conn, "t")


@pytest.mark.parametrize("full_page_writes", ["on", "off"])
def test_a_page_that_was_initialized_and_never_logged(new_cluster, full_page_writes):
    """The session that was to insert the first row has failed just before. Recovery has a page of zeros, of which WAL says that it is
    all-visible."""
    cluster = new_cluster(full_page_writes=full_page_writes)
    conn = cluster.connect(TEMPLATE)
    conn.execute("CREATE TABLE t (i int); CREATE TABLE a AS SELECT 1 AS i; CREATE TABLE b AS SELECT 1 AS i")
    with cluster.connect(TEMPLATE) as reader, cluster.connect(TEMPLATE) as pivot, cluster.connect(TEMPLATE) as writer:
        for session in (reader, pivot, writer):
            session.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        reader.execute("SELECT FROM b")
        pivot.execute("SELECT FROM a")
        writer.execute("UPDATE a SET i = 2")
        pivot.execute("UPDATE b SET i = 2")
        writer.execute("COMMIT")
        with pytest.raises(psycopg.errors.SerializationFailure):
            pivot.execute("INSERT INTO t VALUES (1)")
    header = "SELECT FROM page_header(get_raw_page('t', 0)) WHERE lsn = '0/0' AND upper = 8192"
    assert conn.execute(header).fetchall(), "the page is not initialized, or has been logged"
    conn.execute("VACUUM (TRUNCATE false) t")
    assert conn.execute("SELECT all_visible FROM pg_visibility('t')").fetchall() == [(True,)]
    flush(conn)
    conn.close()
    cluster.restart("immediate")
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("INSERT INTO t SELECT generate_series(1, 1000)")
        checks.assert_clean(conn, "t")


@pytest.fixture(params=[-1])
def pair(new_cluster, request):
    """A primary, and a hot standby whose replay waits this many milliseconds for queries, or without an end (-1)."""
    primary = new_cluster(**CHECK_WAL)
    standby = primary.standby({"max_standby_streaming_delay": request.param, "hot_standby_feedback": "off"})
    try:
        yield primary, standby.start()
    finally:
        standby.remove()


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.once), 2])
def test_a_standby_replays_what_a_vacuum_did(pair, workers):
    primary, standby = pair
    with primary.connect(TEMPLATE) as conn:
        before = make_table(conn)
        conn.execute(f"VACUUM (PARALLEL {workers}) t")
        conn.execute("UPDATE t SET note = note || 'x' WHERE id % 5 = 0")
        conn.execute("DELETE FROM t WHERE id % 7 = 0")
        conn.execute(f"VACUUM (FREEZE, PARALLEL {workers}) t")
        flush(conn)
        here = replayed_state(conn)
        assert here["rows"] < before["rows"] and here["all_frozen"] == here["relpages"]
        checks.assert_clean(conn, "t")
    standby.wait_for_replay(primary)
    with standby.connect(TEMPLATE) as conn:
        assert replayed_state(conn) == here
        # pg_visibility's checks do not run on a standby of 17 with assertions, but its map is the primary's
        assert checks.heap_corruption(conn, "t") == []
        assert checks.btree_corruption(conn, "t") == []
        assert checks.dangling_index_entries(conn, "t") == []
    assert "inconsistent page" not in standby.log


@pytest.mark.parametrize("pair", [0], indirect=True)
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.once), 2])
@pytest.mark.parametrize("how", ["first-pass", "second-pass"])
def test_a_standby_query_that_must_not_see_all_visible_rows_is_cancelled(pair, how, workers):
    """New rows share their pages with rows that were deleted long before the standby's snapshot, or with no dead ones:
    then it is the first pass that makes the pages all-visible, else the second."""
    primary, standby = pair
    standby.wait_for_replay(primary)  # of what the test before has left, which might cancel the connection
    with primary.connect(TEMPLATE) as conn, standby.connect(TEMPLATE) as reader:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, note text) WITH (fillfactor = 30)")
        conn.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 5000) i")
        if how == "second-pass":
            conn.execute("DELETE FROM t WHERE id % 4 = 0")
        conn.execute("VACUUM (INDEX_CLEANUP off) t")
        conn.execute("ALTER TABLE t RESET (fillfactor)")
        standby.wait_for_replay(primary)

        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        [(seen,)] = reader.execute("SELECT count(*) FROM t")
        conn.execute("INSERT INTO t SELECT i, 'new' FROM generate_series(10001, 14000) i")
        standby.wait_for_replay(primary)
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (seen,)

        conn.execute(f"VACUUM (INDEX_CLEANUP on, PARALLEL {workers}) t")
        state = checks.table_state(conn, "t")
        assert state["all_visible"] == state["relpages"]
        flush(conn)
        standby.wait_for_replay(primary)
        # without the cancellation, an index-only scan would now find the new rows
        conflict = psycopg.errors.SerializationFailure, psycopg.OperationalError
        with pytest.raises(conflict, match="conflict with recovery"):
            reader.execute("SET enable_seqscan = off")
            reader.execute("SELECT count(id) FROM t")
