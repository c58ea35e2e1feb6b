"""Beside TimescaleDB, before or after it in the list: VACUUM reaches each chunk, on the engine, or says that it doesn't.

Collected only where CYCLONE_TIMESCALE_PG_CONFIG is the pg_config of a server in which TimescaleDB is installed. The decisions
alone are in test_neighbours.py.
"""

import psycopg
import pytest

from conftest import CONFIG
from cyclone_lab import checks
from cyclone_lab.background import heard
from cyclone_lab.cluster import Cluster
from test_docs import blocks_marked

ROWS = 6000


@pytest.fixture(scope="module", params=["timescaledb, pg_cyclone", "pg_cyclone, timescaledb"], ids=["before", "after"])
def server(neighbours_prefix, request):
    settings = {"timescaledb.telemetry_level": "off", "min_parallel_table_scan_size": "64kB", "max_worker_processes": 32}
    with Cluster.create(neighbours_prefix, {**CONFIG, **settings, "shared_preload_libraries": request.param}) as cluster:
        cluster.start()
        with cluster.connect() as conn:
            conn.execute("CREATE EXTENSION timescaledb")
            conn.execute("CREATE EXTENSION pg_cyclone")
            checks.create_extensions(conn)
            conn.execute("CREATE TABLE own (id int PRIMARY KEY, note text)")
            for table in ("hyper", "packed"):
                conn.execute(f"CREATE TABLE {table} (at timestamptz NOT NULL, id int, note text)")
                conn.execute(f"SELECT create_hypertable('{table}', 'at', chunk_time_interval => interval '1 day')")
            conn.execute("ALTER TABLE packed SET (timescaledb.compress, timescaledb.compress_segmentby = 'id')")
            insert(conn, "packed")
            conn.execute("SELECT compress_chunk(chunk) FROM (SELECT show_chunks('packed') chunk LIMIT 2) first")
            conn.execute(
                "CREATE MATERIALIZED VIEW daily WITH (timescaledb.continuous) AS"
                " SELECT time_bucket('1 day', at) AS day, count(*) FROM packed GROUP BY 1 WITH NO DATA"
            )
            conn.execute("CALL refresh_continuous_aggregate('daily', NULL, NULL)")
        yield cluster


@pytest.fixture
def conn(server):
    """A connection of its own for each test: TimescaleDB loads its library with a session's first statement."""
    with server.connect() as connection:
        yield connection


def insert(conn, table: str) -> None:
    conn.execute(
        f"INSERT INTO {table} SELECT '2026-01-01'::timestamptz + i * interval '40 s', i % 100, repeat('x', 200)"
        f" FROM generate_series(1, {ROWS}) i"
    )


def fill(server) -> list[str]:
    """Fill the tables, in another session; return the names of the chunks and of the table that isn't divided."""
    with server.connect() as conn:
        conn.execute("TRUNCATE own, hyper")
        conn.execute(f"INSERT INTO own SELECT i, repeat('x', 200) FROM generate_series(1, {ROWS}) i")
        insert(conn, "hyper")
        conn.execute("DELETE FROM own WHERE id % 2 = 0")
        conn.execute("DELETE FROM hyper WHERE id % 2 = 0")
        chunks = [chunk for (chunk,) in conn.execute("SELECT show_chunks('hyper')::text")]
    assert len(chunks) >= 3
    return [*chunks, "own"]


def state(conn, tables) -> dict[str, tuple[int, int]]:
    query = "SELECT dead_tuple_count, table_len / 8192 FROM pgstattuple(%s::regclass)"
    return {table: conn.execute(query, (table,)).fetchone() for table in tables}


def hear(conn, statement: str) -> list[str]:
    return heard(conn, statement)


def engine_reports(said: list[str], table: str) -> int:
    return sum(f'.{table.split(".")[-1]}"' in line.split("\n")[0] and "\nparallel workers: " in line for line in said)


@pytest.mark.parametrize("options", ["VERBOSE", "VERBOSE, PARALLEL 2", "VERBOSE, ANALYZE", "VERBOSE, ADAPTIVE_DELAY"])
@pytest.mark.parametrize("target", ["hyper, own", ""], ids=["named", "bare"])
def test_vacuum_reaches_each_chunk_on_the_engine(server, conn, options, target):
    tables = fill(server)
    said = hear(conn, f"VACUUM ({options}) {target}")
    for table in tables:
        assert engine_reports(said, table) >= 1, table
    assert {dead for dead, _ in state(conn, tables).values()} == {0}
    assert any("adaptive delay" in line for line in said) == ("ADAPTIVE" in options)
    checks.assert_clean(conn, *tables)


@pytest.mark.parametrize("options", ["FULL", "FULL REWRITE"])
@pytest.mark.parametrize("target", ["hyper, own", "daily, packed, hyper, own", ""], ids=["named", "all", "bare"])
def test_full_reaches_each_chunk(server, conn, options, target):
    tables = fill(server)
    before = state(conn, tables)
    conn.execute(f"VACUUM ({options}) {target}")
    for table, (dead, pages) in state(conn, tables).items():
        assert dead == 0 and pages < 0.6 * before[table][1], table
    assert conn.execute("SELECT count(*) FROM packed").fetchone() == (ROWS,)
    checks.assert_clean(conn, *tables)


@pytest.mark.parametrize("target", ["hyper", "own, hyper", "daily", "compressed", ""])
@pytest.mark.parametrize("options", ["FULL INPLACE", "FULL, PARALLEL 2", "FULL, ADAPTIVE_DELAY"])
def test_what_hypertables_cannot_have_is_an_error(server, conn, options, target):
    tables = fill(server)
    before = state(conn, tables)
    if target == "compressed":
        [(target,)] = conn.execute("SELECT show_chunks('packed')::text LIMIT 1")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="TimescaleDB") as caught:
        conn.execute(f"VACUUM ({options}) {target}")
    assert caught.value.diag.message_hint
    assert state(conn, tables) == before


@pytest.mark.parametrize("options", ["FULL INPLACE", "FULL, PARALLEL 2", "FULL, ADAPTIVE_DELAY"])
def test_what_the_hint_says_works(server, conn, options):
    """Chunks that aren't compressed are like other tables."""
    tables = fill(server)
    before = state(conn, tables)
    conn.execute(f"VACUUM ({options}) {', '.join(tables)}")
    for table, (dead, pages) in state(conn, tables).items():
        assert dead == 0 and pages < 0.6 * before[table][1], table
    checks.assert_clean(conn, *tables)


def test_chunks_are_named_as_the_page_has_it(server, conn):
    tables = fill(server)
    before = state(conn, tables)
    [block] = blocks_marked("with timescaledb")
    script = block.text.replace("'conditions'", "'hyper'")
    assert script != block.text
    server.run("psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", "postgres", input=script)
    for table, (dead, pages) in state(conn, tables).items():
        assert (dead == 0 and pages < 0.6 * before[table][1]) == (table != "own"), table
