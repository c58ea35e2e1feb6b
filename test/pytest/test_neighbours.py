"""Beside libraries that distribute or divide tables: which VACUUM goes to them, and which options they can't have.

The libraries are stand-ins: test/modules/test_neighbours has the hooks, and the catalogs are made by hand. The tests beside the real ones
are in test_citus.py and test_timescaledb.py, which are collected where there is a server that has them.
"""

import psycopg
import pytest

from cyclone_lab import build, checks
from cyclone_lab.background import Background, heard, wait_until

ROWS = 4000
# with what comes to a hook in front of ours, and to one behind it
FULL_IS_PASSED_ON = {
    "FULL": ("full", "full"),
    "FULL true": ("full=true", "full=true"),
    "FULL REWRITE": ("full=rewrite", "full"),
    "FULL INPLACE, FULL": ("full=inplace full", "full"),
    "FULL, ANALYZE, PARALLEL 0": ("full analyze parallel=0", "full analyze parallel=0"),
}
FULL_IS_REFUSED = {
    "FULL INPLACE": "option FULL INPLACE",
    "FULL, FULL INPLACE, VERBOSE": "option FULL INPLACE",
    "FULL, PARALLEL 2": "options FULL and PARALLEL",
    "FULL REWRITE, ADAPTIVE_DELAY": "options FULL and ADAPTIVE_DELAY",
}
CATALOGS = {
    "citus": """
        CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod "char");
        CREATE TABLE pg_catalog.pg_dist_node (nodeid int)
        """,
    "timescaledb": """
        CREATE SCHEMA _timescaledb_catalog;
        CREATE TABLE _timescaledb_catalog.hypertable (id int, schema_name name, table_name name);
        CREATE TABLE _timescaledb_catalog.chunk (id int, relid regclass, status int);
        CREATE TABLE _timescaledb_catalog.continuous_agg (user_view_schema name, user_view_name name)
        """,
}  # fmt: skip


@pytest.fixture(scope="module", params=["test_neighbours, pg_cyclone", "pg_cyclone, test_neighbours"], ids=["before", "after"])
def order(request) -> str:
    return request.param


@pytest.fixture
def server(prefix, new_cluster, order):
    build.install_test_module("test_neighbours", prefix)
    return new_cluster(shared_preload_libraries=order, allow_system_table_mods="on", min_parallel_table_scan_size="64kB")


def pretend(server, extension: str) -> None:
    """Make a database with an extension of that name and its catalogs, a table `own`, and a parent `shared` with a child."""
    server.sql(f"CREATE DATABASE {extension} TEMPLATE cyclone_template")
    with server.connect(extension) as conn:
        conn.execute(
            "INSERT INTO pg_extension SELECT 77777, %s, 10, oid, false, '1' FROM pg_namespace WHERE nspname = 'public'", (extension,)
        )
        conn.execute(CATALOGS[extension])
        conn.execute("CREATE TABLE own (id int PRIMARY KEY, note text)")
        conn.execute("CREATE TABLE shared (LIKE own INCLUDING ALL)")
        conn.execute("CREATE TABLE part (PRIMARY KEY (id)) INHERITS (shared)")
        conn.execute("CREATE VIEW aggregate AS SELECT count(*) FROM shared")
        conn.execute("CREATE TABLE parted (id int) PARTITION BY RANGE (id)")
        conn.execute("CREATE TABLE parted_shared PARTITION OF parted FOR VALUES FROM (0) TO (9)")


def fill(conn) -> None:
    for table in ("own", "part"):
        conn.execute(f"TRUNCATE {table}")
        conn.execute(f"INSERT INTO {table} SELECT i, repeat('x', 100) FROM generate_series(1, {ROWS}) i")
        conn.execute(f"DELETE FROM {table} WHERE id % 2 = 0")


def pages(conn, table: str) -> int:
    return conn.execute("SELECT pg_relation_size(%s::regclass) / 8192", (table,)).fetchone()[0]


def dead(conn, table: str) -> int:
    return conn.execute("SELECT dead_tuple_count FROM pgstattuple(%s::regclass)", (table,)).fetchone()[0]


def hear(conn, statement: str) -> list[str]:
    """Run a statement and return what the server said."""
    return heard(conn, statement, lambda notice: f"{notice.severity}: {notice.message_primary}")


def told(said: list[str], who: str) -> list[str]:
    """Return the options of the VACUUMs that came to this hook."""
    return [line.partition(f"{who}:")[2].strip() for line in said if line.startswith(f"NOTICE: {who}:")]


def refusal(conn, statement: str) -> psycopg.Error:
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        conn.execute(statement)
    assert caught.value.diag.message_hint
    return caught.value


def reports(said: list[str], table: str) -> int:
    """Return how often the engine has finished a VACUUM of this table."""
    return sum(f'public.{table}"' in line and "finished vacuuming" in line and "\nparallel workers: " in line for line in said)


def test_distributed_tables(server, order):
    """A VACUUM FULL of a table in Citus's catalog goes on to its hook, of another table it doesn't."""
    pretend(server, "citus")
    with server.connect("citus") as conn:
        conn.execute("INSERT INTO pg_dist_partition VALUES ('shared', 'h'), ('parted_shared', 'h')")
        fill(conn)
        for options, (before, here) in FULL_IS_PASSED_ON.items():
            said = hear(conn, f"VACUUM ({options}, VERBOSE) shared")
            heard = told(said, "watcher")
            assert heard == ([f"{here} verbose"] if order.startswith("test") else [f"{before} verbose"])
            assert any('"shared" is distributed by Citus' in line for line in said)
        for target in ("shared", "own, shared", "parted", "parted_shared", ""):
            for options, what in FULL_IS_REFUSED.items():
                error = refusal(conn, f"VACUUM ({options}) {target}")
                assert error.diag.message_primary.startswith(f"VACUUM {what} cannot be used for")
                assert "distributed by Citus" in error.diag.message_primary
            error = refusal(conn, f"VACUUM (ADAPTIVE_DELAY) {target}")
            assert "cyclone.adaptive_delay" in error.diag.message_hint
        assert dead(conn, "own") == ROWS // 2

        before = pages(conn, "own")
        said = hear(conn, "VACUUM (FULL, PARALLEL 1) own")
        assert order.startswith("pg_cyclone") or told(said, "watcher") == []
        assert pages(conn, "own") < before
        fill(conn)
        conn.execute("VACUUM (FULL INPLACE) own, part")
        assert pages(conn, "own") < before
        fill(conn)
        assert reports(hear(conn, "VACUUM (ADAPTIVE_DELAY, VERBOSE) own"), "own") == 1
        conn.execute("VACUUM own, part")
        checks.assert_clean(conn, "own", "part")


def test_a_database_with_other_nodes(server):
    """A bare VACUUM FULL is Citus's as soon as there are nodes, as it goes to them."""
    pretend(server, "citus")
    with server.connect("citus") as conn:
        fill(conn)
        conn.execute("VACUUM (FULL INPLACE)")
        assert dead(conn, "own") == 0
        conn.execute("INSERT INTO pg_dist_node VALUES (1)")
        assert "whole database" in str(refusal(conn, "VACUUM (FULL INPLACE)"))
        said = hear(conn, "VACUUM (FULL, VERBOSE)")
        assert len(told(said, "watcher")) == 1
        conn.execute("VACUUM (FULL INPLACE) shared")


def test_distribution_switched_off(server, order):
    """Where Citus keeps out of VACUUM, its tables and shards are like any other."""
    pretend(server, "citus")
    with server.connect("citus") as conn:
        conn.execute("INSERT INTO pg_dist_partition VALUES ('shared', 'h')")
        fill(conn)
        conn.execute("SET citus.enable_ddl_propagation = off")
        said = hear(conn, "VACUUM (FULL INPLACE)")
        assert order.startswith("pg_cyclone") or told(said, "watcher") == []
        assert dead(conn, "own") == dead(conn, "part") == 0


def test_a_table_distributed_meanwhile(server):
    """A table that becomes another library's while VACUUM FULL waits for its lock is not rewritten, and the client is told."""
    pretend(server, "citus")
    with server.connect("citus") as conn:
        fill(conn)
        before = pages(conn, "own")
        with conn.transaction():
            conn.execute("LOCK own")
            vacuum = Background(server, "citus", "VACUUM (FULL) own")
            with server.connect("citus") as other:
                waiting = f"SELECT FROM pg_locks WHERE pid = {vacuum.pid} AND relation = 'own'::regclass AND NOT granted"
                wait_until(lambda: other.execute(waiting).fetchall(), "waiting for the lock")
            conn.execute("INSERT INTO pg_dist_partition VALUES ('own', 'h')")
        vacuum.finish()
        assert 'skipping "own" --- it is now distributed by Citus' in vacuum.messages
        assert pages(conn, "own") == before


@pytest.mark.parametrize("harm", ["column", "table"])
@pytest.mark.parametrize("extension", sorted(CATALOGS))
def test_unknown_catalogs(server, extension, harm):
    """If the catalogs aren't as we know them, any table may be the other library's."""
    pretend(server, extension)
    table, column = {
        "citus": ("pg_dist_partition", "logicalrelid"),
        "timescaledb": ("_timescaledb_catalog.hypertable", "table_name"),
    }[extension]
    server.sql(f"DROP TABLE {table}" if harm == "table" else f"ALTER TABLE {table} RENAME {column} TO other", dbname=extension)
    with server.connect(extension) as conn:
        fill(conn)
        before = pages(conn, "own")
        assert "FULL INPLACE" in str(refusal(conn, "VACUUM (FULL INPLACE) own"))
        assert told(hear(conn, "VACUUM (FULL) own"), "watcher" if extension == "citus" else "divider") == ["full"]
        assert pages(conn, "own") < before


def test_tables_in_chunks(server):
    """A VACUUM FULL of a hypertable goes on to the library in front of us, of another table, or of a plain chunk, it doesn't."""
    pretend(server, "timescaledb")
    with server.connect("timescaledb") as conn:
        conn.execute("INSERT INTO _timescaledb_catalog.hypertable VALUES (1, 'public', 'shared')")
        conn.execute("INSERT INTO _timescaledb_catalog.chunk VALUES (1, 'part', 0)")
        conn.execute("INSERT INTO _timescaledb_catalog.continuous_agg VALUES ('public', 'aggregate')")
        fill(conn)
        before = pages(conn, "part")
        assert told(hear(conn, "VACUUM (FULL REWRITE) shared"), "divider") == ["full"]
        assert pages(conn, "part") < before
        for target in ("shared", "own, shared", "aggregate", ""):
            for options, what in FULL_IS_REFUSED.items():
                error = refusal(conn, f"VACUUM ({options}) {target}")
                assert error.diag.message_primary.startswith(f"VACUUM {what} cannot be used for")
                assert "TimescaleDB" in error.diag.message_primary
        for target in ("own", "part"):
            fill(conn)
            assert told(hear(conn, f"VACUUM (FULL INPLACE) {target}"), "divider") == []
            assert pages(conn, target) < before and dead(conn, target) == 0
            fill(conn)
            assert told(hear(conn, f"VACUUM (FULL, PARALLEL 1) {target}"), "divider") == []
            assert pages(conn, target) < before and dead(conn, target) == 0
        # a compressed chunk has a second table, of which only the library knows
        conn.execute("UPDATE _timescaledb_catalog.chunk SET status = 1")
        refusal(conn, "VACUUM (FULL INPLACE) part")
        assert told(hear(conn, "VACUUM (FULL) part"), "divider") == ["full"]
        conn.execute("VACUUM own, part")
        checks.assert_clean(conn, "own", "part")


def test_adaptive_delay_for_chunks(server):
    """The option comes to the chunks, which are vacuumed in the same session."""
    pretend(server, "timescaledb")
    server.sql("INSERT INTO _timescaledb_catalog.hypertable VALUES (1, 'public', 'shared')", dbname="timescaledb")
    with server.connect("timescaledb") as conn:
        fill(conn)
        said = hear(conn, "VACUUM (ADAPTIVE_DELAY, VERBOSE, PARALLEL 1) shared")
        assert told(said, "divider") == ["verbose parallel=1"]
        assert reports(said, "part") >= 1 and any("adaptive delay" in line for line in said)
        assert dead(conn, "part") == 0


def test_chunks_named_as_in_older_versions(server):
    """Chunks have been named by schema and name, too."""
    pretend(server, "timescaledb")
    with server.connect("timescaledb") as conn:
        conn.execute("ALTER TABLE _timescaledb_catalog.chunk DROP relid, ADD schema_name name, ADD table_name name")
        conn.execute("INSERT INTO _timescaledb_catalog.chunk VALUES (1, 1, 'public', 'part'), (2, 1, 'gone', 'part'), (3, 1, NULL, NULL)")
        refusal(conn, "VACUUM (FULL INPLACE) part")
        conn.execute("VACUUM (FULL INPLACE) own")


@pytest.mark.once
def test_an_audit_ends_a_vacuum_that_the_next_library_takes_part_in(server):
    """It can't go on for that library, so it says nothing of other tables."""
    pretend(server, "citus")
    with server.connect("citus") as conn:
        conn.execute("INSERT INTO pg_dist_partition VALUES ('shared', 'h')")
        fill(conn)
        conn.execute("SET cyclone.debug_fault = 'store-loses:7'")
        for statement in ("VACUUM own, shared", "VACUUM"):
            with pytest.raises(psycopg.errors.DataCorrupted, match='an audit of VACUUM has failed in relation "own"'):
                conn.execute(statement)
            conn.execute("SELECT cyclone.autovacuum_reset()")
        with pytest.raises(psycopg.errors.DataCorrupted, match="an audit has failed on 1 table"):
            conn.execute("VACUUM own, aggregate, parted")
        conn.execute("RESET cyclone.debug_fault")
        conn.execute("VACUUM own")
        checks.assert_clean(conn, "own")
