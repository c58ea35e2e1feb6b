"""The ring of buffers: it has no more pages than vacuum_buffer_usage_limit, and keeps for the second pass what it has room for."""

import pytest

from conftest import CONFIG
from cyclone_lab import checks
from cyclone_lab.cluster import Cluster

PAGE = 8192
FEW = 40  # pages that are read without the ring, by the catalogs' and the maps' own rules


@pytest.fixture(scope="module")
def server(prefix):
    """A server with 32 MB of shared buffers, and its table t of 12 MB with an index and dead rows on each page."""
    with Cluster.create(prefix, {**CONFIG, "shared_buffers": "32MB", "cyclone.debug_ring_turn": 0, "cyclone.audit": 0}) as cluster:
        cluster.start()
        with cluster.connect() as conn:
            checks.create_extensions(conn)
            conn.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
        yield cluster


def vacuum_cold(server, rows: int, limit: str, workers: int) -> dict[str, int]:
    """Vacuum a table of which nothing is in shared buffers, with a ring of this size for each process; return its pages, its
    index's, how many of both were read, and how many are in shared buffers afterwards."""
    with server.connect() as conn:
        conn.execute("DROP TABLE IF EXISTS t")
        conn.execute("CREATE TABLE t WITH (autovacuum_enabled = off) AS SELECT i AS id, repeat('x', 400) AS f FROM generate_series(1, %s) i", (rows,))
        conn.execute("CREATE INDEX t_id ON t (id) WITH (fillfactor = 40)")
        conn.execute("DELETE FROM t WHERE id % 5 = 0")
    server.restart()
    with server.connect() as conn:
        conn.execute("SET min_parallel_table_scan_size = 0")
        conn.execute("SET min_parallel_index_scan_size = 0")
        before = blocks_read(conn)
        conn.execute(f"SET vacuum_buffer_usage_limit = '{limit}'")
        conn.execute(f"VACUUM (PARALLEL {workers}, INDEX_CLEANUP on) t")
        [(kept,)] = conn.execute(
            "SELECT count(*) FROM pg_buffercache WHERE relforknumber = 0 AND relfilenode IN (pg_relation_filenode('t'), pg_relation_filenode('t_id'))"
        )
        read = blocks_read(conn) - before
        [(heap, index)] = conn.execute(f"SELECT pg_relation_size('t') / {PAGE}, pg_relation_size('t_id') / {PAGE}")
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (rows * 4 // 5,)
        checks.assert_clean(conn, "t")
    return {"heap": heap, "index": index, "read": read, "kept": kept}


def blocks_read(conn) -> int:
    conn.execute("SELECT pg_stat_force_next_flush()")
    [(blocks,)] = conn.execute(
        "SELECT sum(pg_stat_get_blocks_fetched(oid) - pg_stat_get_blocks_hit(oid))::int FROM pg_class WHERE relname IN ('t', 't_id')"
    )
    return blocks


@pytest.mark.parametrize("workers", [0, 2])
def test_a_ring_has_no_more_pages_than_its_limit(server, workers):
    seen = vacuum_cold(server, 24000, "512kB", workers)
    ring = 512 * 1024 // PAGE
    assert seen["heap"] > 10 * ring and seen["index"] > 2 * ring
    assert ring // 2 < seen["kept"] <= (workers + 1) * ring + FEW
    assert seen["read"] >= 2 * seen["heap"] + seen["index"] - (workers + 1) * ring, "the second pass reads the table again"


@pytest.mark.parametrize("workers", [0, 2])
def test_pages_for_the_second_pass_stay_in_a_ring_with_room(server, workers):
    seen = vacuum_cold(server, 6000, "4MB", workers)
    ring = 4 * 1024 * 1024 // PAGE
    assert 250 < seen["heap"] and seen["heap"] + seen["index"] < ring
    assert seen["heap"] + seen["index"] <= seen["read"] <= seen["heap"] + seen["index"] + FEW, "each page is read once"
