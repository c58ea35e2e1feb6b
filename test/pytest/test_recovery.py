"""VACUUM's WAL is right: after a crash at any point, and on a standby, tables are sound and their rows
are there. The WAL carries whole pages to compare with what replay makes of it (wal_consistency_checking)."""

import os
import signal

import psycopg
import pytest

from conftest import TEMPLATE
from cyclone_lab import checks
from cyclone_lab.background import Parked
from cyclone_lab.files import missing_files, stray_files, wait_for_cleaning
from long_runs.proof import wait_for_restart
from long_runs.workload import CHECKED_WAL
from test_faults import KINDS, PLACES, assert_sound, assert_whole

EVERY_VERSION = "what replays WAL is the server"

CHECK_WAL = {"wal_consistency_checking": "all", "min_parallel_index_scan_size": 0, "max_wal_size": "4GB", "wal_keep_size": "4GB"}
FOLLOWING = {"max_standby_streaming_delay": -1, "hot_standby_feedback": "off", "wal_retrieve_retry_interval": "100ms"}
# Elsewhere the one of these before has done the same to the files
CRASHES_IN_PLACE = ("inplace-batch", "inplace-value", "truncate", "shrink-validate", "shrink-swapped")


def replayed_state(conn) -> dict:
    """Return what a standby must know of table t, block by block."""
    state = checks.table_state(conn, "t")
    del state["free_space"]  # not replayed exactly
    [(state["items"],)] = conn.execute(
        """
        SELECT array_agg(hash ORDER BY block)
        FROM (SELECT block, sum(hash_record_extended((lp, lp_flags, t_xmin, t_xmax, t_ctid), 0)) AS hash
              FROM generate_series(0, pg_relation_size('t') / 8192 - 1) block, heap_page_items(get_raw_page('t', block))
              GROUP BY block) blocks
        """
    )
    [(state["map"],)] = conn.execute("SELECT array_agg(map::text ORDER BY blkno) FROM pg_visibility('t') map")
    return state


def flush(conn) -> None:
    """Write out all WAL, with a commit that does: that of a VACUUM, which has no transaction ID, does not."""
    conn.execute("SELECT pg_logical_emit_message(true, '', '')")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.once] * (kind != "VACUUM")) for kind in KINDS])
def test_a_crash_at_each_point(new_cluster, kind):
    """And one after the end. A standby follows, and has the same pages."""
    statement, make, settings = KINDS[kind]
    # where rows that move get entries, PostgreSQL's insertion into GiST would be a false alarm: test/upstream/wal-consistency.md
    primary = new_cluster(**CHECK_WAL | ({"wal_consistency_checking": CHECKED_WAL} if "INPLACE" in kind else {}))
    places = [place for place in PLACES if place.kind == kind and not place.only_errors and ("INPLACE" not in kind or place.point in CRASHES_IN_PLACE)]
    with primary.standby(FOLLOWING).start() as standby:
        for place in (*places, None):
            with primary.connect(TEMPLATE) as conn:
                conn.execute("SET wal_consistency_checking = ''")  # only what VACUUM does is compared
                make(conn)
                before = checks.table_state(conn, "t")
            crash_at(primary, place, statement)
            primary.start()
            wait_for_cleaning(primary)
            with primary.connect(TEMPLATE) as conn:
                assert_sound(conn, before)
                assert stray_files(primary, conn) == missing_files(primary, conn) == [], place
                for name, value in settings.items():
                    conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
                assert_whole(conn, before, statement)
                flush(conn)
                here = replayed_state(conn)
            standby.wait_for_replay(primary)
            with standby.connect(TEMPLATE) as conn:
                assert replayed_state(conn) == here, place
                # pg_visibility's checks do not run on a standby of 17 with assertions, but its map is the primary's
                assert checks.heap_corruption(conn, "t") == checks.btree_corruption(conn, "t") == checks.dangling_index_entries(conn, "t") == []
            primary.sql("DROP TABLE t CASCADE; DROP TABLE IF EXISTS child", dbname=TEMPLATE)
        for server in (primary, standby):
            assert "inconsistent page" not in server.log and "PANIC" not in server.log and "TRAP" not in server.log


def crash_at(cluster, place, statement: str) -> None:
    """Kill all processes when a statement has come to this place, or has ended, with all its WAL on disk."""
    if not place:
        with cluster.connect(TEMPLATE) as conn:
            conn.execute(statement)
            flush(conn)
        cluster.crash()
        return
    with Parked(cluster, TEMPLATE, f"{place.point}:any", place.processes, statement, place.all_settings) as vacuum:
        with cluster.connect(TEMPLATE) as conn:
            flush(conn)
        cluster.crash()
        assert isinstance(vacuum.wait(), psycopg.OperationalError)


@pytest.mark.once
@pytest.mark.parametrize(
    "kind, point, victim",
    [
        ("VACUUM", "heap-vacuum", "leader"), ("VACUUM", "heap-vacuum", "worker"),
        ("indexes of FULL", "rewrite-index", "worker"), ("FULL", "rewrite-swapped", "leader"),
    ],
)  # fmt: skip
def test_the_server_recovers_from_the_sudden_death_of_one_process(new_cluster, kind, point, victim):
    """It restarts itself, without reading its libraries anew, and the first commit has files go."""
    cluster = new_cluster(**CHECK_WAL)
    [place] = [place for place in PLACES if (place.kind, place.point) == (kind, point)]
    with cluster.connect(TEMPLATE) as conn:
        KINDS[kind].make(conn)
        before = checks.table_state(conn, "t")
    with (
        cluster.connect() as witness,
        Parked(cluster, TEMPLATE, f"{point}:any", place.processes, KINDS[kind].statement, place.all_settings) as vacuum,
    ):
        os.kill(vacuum.pid if victim == "leader" else vacuum.workers[0], signal.SIGKILL)
        assert isinstance(vacuum.wait(), psycopg.OperationalError)
        # a moment later the server notices, and ends all sessions
        with pytest.raises(psycopg.OperationalError):
            witness.execute("SELECT pg_sleep(60)")
    wait_for_restart(cluster)
    wait_for_cleaning(cluster)
    with cluster.connect(TEMPLATE) as conn:
        assert conn.execute("SELECT * FROM cyclone.progress_details").fetchall() == []
        assert_sound(conn, before)
        assert stray_files(cluster, conn) == missing_files(cluster, conn) == []
        assert_whole(conn, before, KINDS[kind].statement)


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
    with primary.standby({"max_standby_streaming_delay": request.param, "hot_standby_feedback": "off"}) as standby:
        yield primary, standby.start()


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
