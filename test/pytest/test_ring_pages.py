"""Pages that VACUUM changed in its ring are written several at a time, and are what the server would have written.

In all other tests the pages of each table are written so, by cyclone.debug_ring_turn; here those that a process has read from disk.
"""

import threading
from contextlib import contextmanager

import pytest

from conftest import CONFIG
from cyclone_lab import checks
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import run_program
from cyclone_lab.shim import Disk

FIRST_MAJOR = 18  # on 17 the server writes its pages one by one
EVERY_VERSION = "it goes by how the server's buffers are locked and written, which differs between versions"
ROWS = 60_000
# 16 MB, so that the table has to be read; of a ring of 1 MB at most 8 pages are written together
SETTINGS = {"shared_buffers": "16MB", "vacuum_buffer_usage_limit": "1MB", "cyclone.debug_ring_turn": 0, "io_combine_limit": "64kB"}
WRITES = """SELECT sum(writes)::int, (sum(write_bytes) / 8192)::int FROM pg_stat_io
            WHERE object = 'relation' AND context = 'vacuum' AND backend_type <> 'checkpointer'"""


@pytest.fixture(scope="module")
def server(prefix):
    """A server with little memory, checksums, and a table of 30 MB with indexes that is copied for each test."""
    cluster = Cluster.create(prefix, {**CONFIG, **SETTINGS}, initdb=("--data-checksums",))
    try:
        cluster.disk = Disk(cluster)
        cluster.start()
        with cluster.connect() as conn:
            checks.create_extensions(conn)
            rows = f"generate_series(1, {ROWS}) i"
            conn.execute(f"CREATE TABLE made AS SELECT i AS id, i % 1000 AS k, repeat('x', 300) AS filler FROM {rows}")
        yield cluster
    finally:
        cluster.remove()


@contextmanager
def cold(server, kind: str = ""):
    """A session in a server that has nothing of a table t with dead rows in its shared buffers."""
    with server.connect() as conn:
        conn.execute("DROP TABLE IF EXISTS t")
        conn.execute(f"CREATE {kind} TABLE t (id int, k int, filler text) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO t SELECT * FROM made")
        conn.execute("CREATE INDEX t_id ON t (id) WITH (fillfactor = 20)")
        conn.execute("CREATE INDEX t_gist ON t USING gist (box(point(id, k), point(id, k)))")
        conn.execute("DELETE FROM t WHERE id % 5 = 0")
    server.restart()
    with server.connect() as conn:
        yield conn


def assert_vacuumed(conn, removed: int = 5) -> None:
    assert conn.execute("SELECT count(*), sum(k) FROM t").fetchone() == conn.execute(f"SELECT count(*), sum(k) FROM made WHERE id % {removed} > 0").fetchone()
    checks.assert_clean(conn, "t")


def assert_checksums(server) -> None:
    """Prove that each page on disk has the right checksum, and start the server again."""
    server.stop()
    try:
        run_program(server.prefix, "pg_checksums", "--check", "-D", str(server.data))
    finally:
        server.start()


def written(conn, sql: str) -> tuple[int, int]:
    """Return how often a statement and its workers wrote with a ring, and how many pages."""
    conn.execute("SELECT pg_stat_force_next_flush()")
    before = conn.execute(WRITES).fetchone()
    conn.execute(sql)
    conn.execute("SELECT pg_stat_force_next_flush()")
    after = conn.execute(WRITES).fetchone()
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize("kind", ["", "UNLOGGED"])
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.once), 2])
def test_several_pages_are_written_at_a_time(server, kind, workers):
    with cold(server, kind) as conn:
        writes, pages = written(conn, f"VACUUM (PARALLEL {workers}) t")
        # io_combine_limit is 8 pages; some are in use, or at the end of a range
        assert pages > 3000 and pages > 3 * writes
        assert_vacuumed(conn)
    with cold(server, kind) as conn:
        conn.execute("SET io_combine_limit = '8kB'")
        writes, pages = written(conn, f"VACUUM (PARALLEL {workers}) t")
        assert writes == pages
        assert_vacuumed(conn)
    assert_checksums(server)


def test_what_was_in_shared_buffers_stays_dirty(server):
    with server.connect() as conn:
        conn.execute("DROP TABLE IF EXISTS t")
        conn.execute("CREATE TABLE t WITH (autovacuum_enabled = off) AS SELECT * FROM made WHERE id <= 12000")
        conn.execute("CREATE INDEX t_id ON t (id)")
        conn.execute("DELETE FROM t WHERE id % 5 = 0")
        conn.execute("SELECT count(*), (SELECT count(*) FROM t b WHERE b.k >= 0) FROM t a")
        writes, pages = written(conn, "VACUUM t")
        assert writes == pages < 200, "the server writes a page now and then, of another table"
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (9600,)
        checks.assert_clean(conn, "t")


def test_a_crash_loses_nothing(server):
    with cold(server) as conn:
        conn.execute("VACUUM (PARALLEL 2) t")
        conn.execute("DELETE FROM t WHERE id % 5 = 1")
        conn.execute("VACUUM (PARALLEL 2) t")
    server.restart("crash")
    with server.connect() as conn:
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (ROWS * 3 // 5,)
        checks.assert_clean(conn, "t")
    assert_checksums(server)


@pytest.mark.parametrize("relation", ["t", "t_id"])
@pytest.mark.parametrize("error, lasting, workers", [("EIO", False, 0), ("ENOSPC", True, 2)])
def test_a_write_that_fails_ends_the_vacuum_only(server, relation, error, lasting, workers):
    with cold(server) as conn:
        path = conn.execute("SELECT pg_relation_filepath(%s)", (relation,)).fetchone()[0]
        conn.execute("SET cyclone.debug_ring_turn = 16")  # before the ring comes round, and the server writes
        with server.disk.fault([path], ["write"], error, after=3, lasting=lasting) as seen, pytest.raises(Exception) as failure:
            conn.execute(f"VACUUM (PARALLEL {workers}) t")
        assert seen().failed > 0
        assert "could not write blocks" in str(failure.value)
        assert f'of relation "{relation}"' in failure.value.diag.context
        # nothing is left locked, pinned or marked as being written
        assert conn.execute("SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass").fetchone() == (0,)
        conn.execute("VACUUM (INDEX_CLEANUP on) t")
        assert_vacuumed(conn)
    assert_checksums(server)


@pytest.mark.once
def test_a_ring_that_holds_the_table_is_not_written(server):
    with server.connect() as conn:
        conn.execute("DROP TABLE IF EXISTS t")
        conn.execute("CREATE TABLE t WITH (autovacuum_enabled = off) AS SELECT * FROM made WHERE id <= 2400")
        conn.execute("CREATE INDEX t_id ON t (id)")
        conn.execute("DELETE FROM t WHERE id % 5 = 0")
    server.restart()
    with server.connect() as conn:
        assert conn.execute("SELECT pg_relation_size('t') > 800 * 1024").fetchone() == (True,)
        assert written(conn, "VACUUM (PARALLEL 0) t") == (0, 0)
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (1920,)
        checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("connections", [30, 400])
def test_pages_are_written_together_whatever_the_number_of_connections(prefix, connections):
    """A read stream may take all pages that the server's limit of pins gives to a process."""
    settings = {**CONFIG, "cyclone.debug_ring_turn": 0, "shared_buffers": "32MB", "max_connections": connections}
    with Cluster.create(prefix, settings).start() as cluster, cluster.connect() as conn:
        conn.execute("CREATE TABLE t WITH (autovacuum_enabled = off) AS SELECT i AS id, repeat('x', 900) AS f FROM generate_series(1, 30000) i")
        conn.execute("DELETE FROM t WHERE id % 5 = 0")
        cluster.restart()
        with cluster.connect() as cold_session:
            checks.create_extensions(cold_session)
            writes, pages = written(cold_session, "VACUUM (PARALLEL 0) t")
            assert pages > 3000 and pages > 8 * writes
            assert cold_session.execute("SELECT count(*) FROM t").fetchone() == (24000,)
            checks.assert_clean(cold_session, "t")


def test_other_sessions_read_and_write_meanwhile(server):
    done, failed = threading.Event(), []

    def write(number: int) -> None:
        try:
            with server.connect() as conn:
                while not done.is_set():
                    conn.execute("UPDATE t SET k = k WHERE id BETWEEN %s AND %s", (number * 7919 % ROWS, number * 7919 % ROWS + 20))
                    conn.execute("SELECT count(filler) FROM t WHERE id BETWEEN %s AND %s", (number * 104729 % ROWS, number * 104729 % ROWS + 200))
                    number += 3
        except Exception as error:
            failed.append(error)

    with cold(server) as conn:
        writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(3):
                conn.execute("VACUUM (PARALLEL 2) t")
        finally:
            done.set()
            for writer in writers:
                writer.join()
        assert not failed
        conn.execute("VACUUM (INDEX_CLEANUP on) t")
        assert_vacuumed(conn)
    assert_checksums(server)
