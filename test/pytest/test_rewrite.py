"""VACUUM FULL on pg_cyclone's engine leaves tables of every shape as core's does: the same rows with the same headers, frozen
alike, in files no larger, and everything else about the table as it was."""

import threading

import psycopg
import pytest

from cyclone_lab import checks
from cyclone_lab.cluster import Cluster
from conftest import CONFIG, TEMPLATE, _create_template
from test_as_core import CATALOGS, DB, MIXED_MAP, MULTIXACTS, SHAPES, make_mixed_map, make_multixacts

# More of them: what matters to a rewrite alone.
REWRITE_SHAPES = {
    "missing_values": """
        CREATE TABLE missing_values (id int PRIMARY KEY, note text);
        INSERT INTO missing_values SELECT i, md5(i::text) FROM generate_series(1, 5000) i;
        ALTER TABLE missing_values ADD COLUMN a int, ADD COLUMN b text DEFAULT 'missing', ADD COLUMN c int DEFAULT 7;
        INSERT INTO missing_values SELECT i, md5(i::text), i, 'there', 8 FROM generate_series(5001, 8000) i;
        ALTER TABLE missing_values DROP COLUMN c;
        DELETE FROM missing_values WHERE id % 3 = 0;
    """,
    "dropped_big": """
        CREATE TABLE dropped_big (id int PRIMARY KEY, gone text, big text);
        ALTER TABLE dropped_big ALTER gone SET STORAGE EXTERNAL, ALTER big SET STORAGE EXTERNAL;
        INSERT INTO dropped_big SELECT i, repeat(md5(i::text), 200), repeat(md5(i::text), 100) FROM generate_series(1, 300) i;
        ALTER TABLE dropped_big DROP COLUMN gone;
        DELETE FROM dropped_big WHERE id % 3 = 0;
    """,
    "now_plain": """
        CREATE TABLE now_plain (id int PRIMARY KEY, big text);
        INSERT INTO now_plain SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 300) i;
        ALTER TABLE now_plain ALTER big SET STORAGE PLAIN;
        DELETE FROM now_plain WHERE id % 3 = 0;
    """,
    "big_compressed": """
        CREATE TABLE big_compressed (id int PRIMARY KEY, a text, b text);
        INSERT INTO big_compressed
        SELECT i, repeat(md5(i::text), 300), (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 200) j)
        FROM generate_series(1, 500) i;
        UPDATE big_compressed SET a = a || 'x' WHERE id % 5 = 0;
        DELETE FROM big_compressed WHERE id % 4 = 0;
    """,
    "no_columns": """
        CREATE TABLE no_columns ();
        INSERT INTO no_columns SELECT FROM generate_series(1, 3000);
        DELETE FROM no_columns WHERE ctid < '(3,0)';
    """,
    "referenced": """
        CREATE TABLE referenced (id int PRIMARY KEY, n int UNIQUE DEFERRABLE, EXCLUDE USING btree (n WITH =));
        INSERT INTO referenced SELECT i, i FROM generate_series(1, 3000) i;
        CREATE TABLE referencing (id int REFERENCES referenced, CHECK (id > 0));
        INSERT INTO referencing SELECT i FROM generate_series(1, 3000, 2) i;
        DELETE FROM referenced WHERE id % 2 = 0;
        ALTER TABLE referenced CLUSTER ON referenced_pkey;
        ALTER TABLE referenced REPLICA IDENTITY USING INDEX referenced_pkey;
        CREATE STATISTICS on referenced_n (dependencies) ON id, n FROM referenced;
    """.replace("STATISTICS on", "STATISTICS"),
    "partition_moves": """
        CREATE TABLE partition_moves (id int, n int) PARTITION BY LIST (n);
        CREATE TABLE partition_moves_1 PARTITION OF partition_moves FOR VALUES IN (1);
        CREATE TABLE partition_moves_2 PARTITION OF partition_moves FOR VALUES IN (2);
        INSERT INTO partition_moves SELECT i, 1 FROM generate_series(1, 3000) i;
        UPDATE partition_moves SET n = 2 WHERE id % 2 = 0;
    """,
}
TABLES = [*SHAPES, *REWRITE_SHAPES, MIXED_MAP, MULTIXACTS]
# Which of them core rewrites in our stead.
LEFT_TO_SERVER = ("dropped_big", "now_plain", *CATALOGS)


@pytest.fixture(scope="module")
def base(prefix):
    """A stopped cluster with a database of all shapes."""
    with Cluster.create(prefix, {**CONFIG, "checkpoint_timeout": "1h", "max_wal_size": "10GB"}) as cluster:
        cluster.start()
        _create_template(cluster)
        cluster.sql(f"CREATE DATABASE {DB} TEMPLATE {TEMPLATE}")
        with cluster.connect(DB) as conn:
            conn.execute("SET cyclone.enabled = off")
            conn.execute("CREATE EXTENSION bloom")
            for statements in (*SHAPES.values(), *REWRITE_SHAPES.values()):
                for statement in filter(str.strip, statements.split(";")):
                    conn.execute(statement)
            make_mixed_map(conn)
            make_multixacts(cluster, conn)
            conn.execute("COMMIT PREPARED 'locks'")
        cluster.stop()
        yield cluster


# All that is in the header but t_ctid, and all that is in the data
_TUPLES = """
    SELECT t_xmin::text, t_xmax::text, t_infomask, t_infomask2, t_hoff, t_bits, lp_len, md5(t_data) AS data
    FROM generate_series(0, pg_relation_size(%(heap)s::regclass) / 8192 - 1) block,
         heap_page_items(get_raw_page(%(heap)s::text, block))
"""


def tuples(conn, heap: str) -> list[tuple]:
    """Return the headers and hashed data of a heap's tuples, in physical order."""
    return conn.execute(_TUPLES, {"heap": heap}).fetchall()


def content(conn, table: str) -> tuple:
    """Return the number and a hash of a table's rows."""
    return conn.execute(f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {table} t").fetchone()


def entries(conn, heap: str) -> dict:
    """Return what is to be equal of a table's and its indexes' entries in the catalogs, whoever rewrites it."""
    rows = conn.execute(
        """
        SELECT c.relname, c.oid, c.relam, c.reltablespace, c.relpersistence, c.relkind, c.relacl, c.reloptions, c.relowner,
               c.reltoastrelid, c.relhasindex, c.relrewrite, c.relispopulated, c.relreplident,
               c.relfrozenxid::text::bigint, c.relminmxid::text::bigint,
               i.indisvalid, i.indisready, i.indislive, i.indisclustered, i.indisreplident, i.indcheckxmin
        FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
        WHERE %(heap)s::regclass IN (c.oid, i.indrelid)
        ORDER BY c.oid
        """,
        {"heap": heap},
    ).fetchall()
    [(dependencies,)] = conn.execute(
        "SELECT array_agg((classid, objid, objsubid, refclassid, refobjid, refobjsubid, deptype)::text ORDER BY 1)"
        " FROM pg_depend WHERE %(heap)s::regclass IN (objid, refobjid)",
        {"heap": heap},
    )
    return {"class": rows, "depend": sorted(dependencies or [])}


def rewrite_all(base: Cluster, settings: dict, options: str, **config) -> dict:
    """VACUUM FULL all tables in a copy of the cluster; return what came of it by heap."""
    outcome = {}
    with base.copy() as cluster:
        cluster.config.update(config)
        cluster.start()
        with cluster.connect(DB) as conn:
            for name, value in settings.items():
                conn.execute(f"SET {name} = {value}")
            for table in (*TABLES, *CATALOGS):
                conn.execute(f"VACUUM ({options}) {table}")
            for table in TABLES:
                outcome[f"rows of {table}"] = {"content": content(conn, table)}
                for heap in checks.heaps(conn, table):
                    [(blocks,)] = conn.execute("SELECT pg_relation_size(%s::regclass) / 8192", (heap,))
                    outcome[heap] = {"tuples": tuples(conn, heap), "blocks": blocks, **entries(conn, heap)}
            checks.assert_clean(conn, *TABLES)
            [(leftover,)] = conn.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'pg_temp%%' OR relrewrite <> 0")
            assert leftover == 0
    return outcome


WAL_LEVELS = {"replica": {}, "minimal": {"wal_level": "minimal", "max_wal_senders": 0}}


@pytest.fixture(scope="module", params=WAL_LEVELS)
def wal_level(request):
    """Under minimal, a new table is not logged, and neither are exclusive locks."""
    return WAL_LEVELS[request.param]


@pytest.fixture(scope="module")
def core(base, wal_level):
    """What core's VACUUM FULL does to all tables."""
    return rewrite_all(base, {"cyclone.enabled": "off"}, "FULL", **wal_level)


def test_core_keeps_the_rows(base, core):
    """What the outcomes are compared with is right itself."""
    with base.copy().start() as cluster, cluster.connect(DB) as conn:
        for table in TABLES:
            assert core[f"rows of {table}"]["content"] == content(conn, table), table


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_tables_of_every_shape(base, core, workers, wal_level):
    """The same tuples, and the same catalogs; by one process even in the same order, in a file of the same size."""
    ours = rewrite_all(base, {"cyclone.debug_point": "''"}, f"FULL REWRITE, PARALLEL {workers}", **wal_level)
    assert ours.keys() == core.keys()
    for heap, expected in core.items():
        actual = ours[heap]
        if "content" in expected:
            assert actual == expected, heap
            continue
        is_toast = heap.startswith("pg_toast")
        assert actual["class"] == expected["class"], heap
        assert actual["depend"] == expected["depend"], heap
        assert actual["blocks"] <= expected["blocks"] + (workers > 0), heap
        if is_toast:  # core inserts values anew, so its tuples have other headers
            assert sorted(row[6:] for row in actual["tuples"]) == sorted(row[6:] for row in expected["tuples"]), heap
        elif workers == 0:
            assert actual["tuples"] == expected["tuples"], heap
            assert actual["blocks"] == expected["blocks"], heap
        else:
            assert sorted(map(str, actual["tuples"])) == sorted(map(str, expected["tuples"])), heap
