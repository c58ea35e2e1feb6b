"""VACUUM by each way in which the server reads (io_method), with small and large combined reads (io_combine_limit)."""

import pytest

from conftest import CONFIG
from cyclone_lab import checks
from cyclone_lab.cluster import Cluster

FIRST_MAJOR = 18  # on 17 there is one way only
EVERY_VERSION = "io_uring is there on some builds only"
ROWS = 40_000


@pytest.mark.parametrize("combined", ["8kB", "1MB"])
@pytest.mark.parametrize("io_method", ["sync", "worker"])
def test_vacuum(prefix, io_method, combined):
    with new_server(prefix, io_method, combined) as server:
        server.start()
        vacuum_all(server)


def test_vacuum_by_io_uring_where_there_is_any(prefix):
    """Not each server is built with it, nor does each system allow it."""
    for combined in ("8kB", "1MB"):
        with new_server(prefix, "io_uring", combined) as server:
            try:
                server.start()
            except RuntimeError as error:
                assert "io_method" in str(error) or "io_uring" in str(error)
                return
            vacuum_all(server)


def new_server(prefix, io_method: str, combined: str) -> Cluster:
    settings = {
        "shared_buffers": "16MB",
        "io_method": io_method,
        "io_max_combine_limit": combined,
        "io_combine_limit": combined,
        "cyclone.preserve_page_cache": "on",
        "cyclone.debug_ring_turn": 0,
    }
    return Cluster.create(prefix, {**CONFIG, **settings})


def vacuum_all(server) -> None:
    """Make a table with indexes of each kind, vacuum it in each way, cold, and prove that it is sound and has its rows."""
    with server.connect() as conn:
        checks.create_extensions(conn)
        conn.execute(
            "CREATE TABLE t WITH (autovacuum_enabled = off) AS SELECT i AS id, i % 100 AS k, repeat('x', 400) AS f"
            f" FROM generate_series(1, {ROWS}) i"
        )
        conn.execute("CREATE INDEX t_id ON t (id)")
        conn.execute("CREATE INDEX t_hash ON t USING hash (id)")
        conn.execute("CREATE INDEX t_gin ON t USING gin ((ARRAY[id, k]))")
        conn.execute("CREATE INDEX t_gist ON t USING gist (point(id, k))")
        conn.execute("CREATE INDEX t_spgist ON t USING spgist (point(id, k))")
    for number, options in enumerate(("PARALLEL 0", "PARALLEL 2", "FULL, PARALLEL 1", "FULL INPLACE, PARALLEL 1")):
        with server.connect() as conn:
            conn.execute("SET min_parallel_table_scan_size = 0")
            conn.execute("SET min_parallel_index_scan_size = 0")
            conn.execute(f"DELETE FROM t WHERE id % 7 = {number}")
            server.restart()
        with server.connect() as conn:
            conn.execute(f"VACUUM ({options}) t")
            [(rows,)] = conn.execute("SELECT count(*) FROM t")
            assert rows == sum(1 for i in range(1, ROWS + 1) if i % 7 > number)
            checks.assert_clean(conn, "t")
