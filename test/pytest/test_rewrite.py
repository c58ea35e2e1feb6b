"""VACUUM FULL on pg_cyclone's engine leaves tables of every shape as PostgreSQL's does: the same rows with the same headers, frozen
alike, in files no larger, and everything else about the table as it was."""

import re
from contextlib import ExitStack

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, create_with_template, every_other
from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, messages_to
from cyclone_lab.cluster import Cluster
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
    "missing_numbers": """
        CREATE TABLE missing_numbers (id int PRIMARY KEY, note text);
        INSERT INTO missing_numbers SELECT i, md5(i::text) FROM generate_series(1, 5000) i;
        ALTER TABLE missing_numbers ADD COLUMN a int, ADD COLUMN b bigint DEFAULT 7, ADD COLUMN c text;
        INSERT INTO missing_numbers SELECT i, md5(i::text), i, i, 'there' FROM generate_series(5001, 8000) i;
        DELETE FROM missing_numbers WHERE id % 3 = 0;
    """,
    "missing_texts": """
        CREATE TABLE missing_texts (id int PRIMARY KEY, code varchar(10));
        INSERT INTO missing_texts SELECT i, i FROM generate_series(1, 5000) i;
        ALTER TABLE missing_texts ADD COLUMN price numeric(10,2) DEFAULT 12.5, ADD COLUMN state varchar(10) DEFAULT 'new';
        INSERT INTO missing_texts SELECT i, i, i, 'there' FROM generate_series(5001, 8000) i;
        DELETE FROM missing_texts WHERE id % 3 = 0;
    """,
    "once_plain": """
        CREATE TABLE once_plain (id int PRIMARY KEY, gone int, short text);
        ALTER TABLE once_plain ALTER short SET STORAGE PLAIN;
        INSERT INTO once_plain SELECT i, i, i FROM generate_series(1, 2000) i;
        ALTER TABLE once_plain ALTER short SET STORAGE EXTENDED, DROP COLUMN gone;
        UPDATE once_plain SET short = 'x' WHERE id % 5 = 0;
        DELETE FROM once_plain WHERE id % 3 = 0;
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
# Which of them PostgreSQL rewrites in our stead, such as those with a TOAST table that they wouldn't get today
LEFT_TO_SERVER = {"missing_values", "dropped_columns", "now_plain", *CATALOGS}


@pytest.fixture(scope="module")
def base(prefix):
    """A stopped cluster with a database of all shapes."""
    with create_with_template(prefix, {**CONFIG, "checkpoint_timeout": "1h", "max_wal_size": "10GB", "wal_recycle": "off"}) as cluster:
        cluster.start()
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


# A hash of all that is in the header but t_ctid, and of all that is in the data; and one of the data alone
_TUPLES = """
    SELECT hash_record_extended((t_xmin, t_xmax, t_infomask, t_infomask2, t_hoff, t_bits, lp_len, t_data), 0), hash_record_extended((lp_len, t_data), 0)
    FROM generate_series(0, pg_relation_size(%(heap)s::regclass) / 8192 - 1) block, heap_page_items(get_raw_page(%(heap)s::text, block))
"""


def tuples(conn, heap: str) -> list[tuple[int, int]]:
    """Return what _TUPLES has of each of a heap's tuples, in physical order."""
    return conn.execute(_TUPLES, {"heap": heap}).fetchall()


def content(conn, table: str) -> tuple:
    """Return the number and a hash of a table's rows."""
    return conn.execute(f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {table} t").fetchone()


def entries(conn, heap: str) -> dict:
    """Return what is to be equal of a table's and its indexes' entries in the catalogs, whoever rewrites it: relfrozenxid as the
    number of transaction IDs before the rewrite's own, as earlier rewrites may have used a different number of them.
    """
    rows = conn.execute(
        """
        SELECT c.relname, c.oid, c.relam, c.reltablespace, c.relpersistence, c.relkind, c.relacl, c.reloptions, c.relowner,
               c.reltoastrelid, c.relhasindex, c.relrewrite, c.relispopulated, c.relreplident,
               CASE WHEN c.relfrozenxid::text <> '0' THEN c.xmin::text::bigint - c.relfrozenxid::text::bigint END,
               c.relminmxid::text::bigint,
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


def rewrite_all(base: Cluster, settings: dict, command: str, **config) -> dict:
    """Rewrite all tables in a copy of the cluster by this command; return what came of it by heap."""
    outcome = {}
    with base.copy() as cluster:
        cluster.config.update(config)
        cluster.start()
        with cluster.connect(DB) as conn:
            for name, value in settings.items():
                conn.execute(f"SET {name} = {value}")
            for table in (*TABLES, *CATALOGS):
                conn.execute(f"{command} {table}")
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
    """What PostgreSQL's VACUUM FULL does to all tables."""
    return rewrite_all(base, {"cyclone.enabled": "off"}, "VACUUM (FULL)", **wal_level)


def test_core_keeps_the_rows(base, core):
    """The expected outcomes are right themselves."""
    with base.copy().start() as cluster, cluster.connect(DB) as conn:
        for table in TABLES:
            assert core[f"rows of {table}"]["content"] == content(conn, table), table


@pytest.mark.parametrize("wal_level, workers", [
    ("replica", 3), ("minimal", 0),
    *(pytest.param(*case, marks=pytest.mark.full) for case in (("replica", 0), ("replica", 1), ("minimal", 1), ("minimal", 3))),
], indirect=["wal_level"])  # fmt: skip
def test_tables_of_every_shape(base, core, workers, wal_level):
    """The same tuples, and the same catalogs; by one process even in the same order, in a file of the same size."""
    assert_alike(rewrite_all(base, {"cyclone.debug_point": "''"}, f"VACUUM (FULL REWRITE, PARALLEL {workers})", **wal_level), core, workers)


def assert_alike(ours: dict, core: dict, workers: int) -> None:
    """Compare what came of two rewrites, ours by `workers` workers."""
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
        if is_toast:  # PostgreSQL inserts values anew, so its tuples have other headers
            assert sorted(data for _, data in actual["tuples"]) == sorted(data for _, data in expected["tuples"]), heap
        elif workers == 0:
            assert actual["tuples"] == expected["tuples"], heap
            assert actual["blocks"] == expected["blocks"], heap
        else:
            assert sorted(actual["tuples"]) == sorted(expected["tuples"]), heap


# Rows of several versions, in blocks far from each other, with values in the TOAST table
MAKE_VERSIONS = """
    CREATE TABLE t (id int PRIMARY KEY, n int, note text, big text) WITH (fillfactor = 70);
    ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
    INSERT INTO t SELECT i, 0, repeat('x', 200), CASE WHEN i % 50 = 0 THEN repeat(md5(i::text), 100) END
    FROM generate_series(1, 12000) i;
    DELETE FROM t WHERE id % 4 = 0;
"""
# Each a transaction: updates in place and elsewhere, of other columns and of values, of what was updated, deletes, failures
CHANGES = (
    "UPDATE t SET n = n + 1 WHERE id % 3 = 0",
    "UPDATE t SET note = repeat('y', 400) WHERE id % 5 = 0",
    "UPDATE t SET big = repeat('z', 3000) WHERE id % 100 = 50",
    "BEGIN; UPDATE t SET n = n + 10 WHERE id % 7 = 0; ROLLBACK",
    "BEGIN; UPDATE t SET n = n + 1 WHERE id % 9 = 0; UPDATE t SET n = n + 1 WHERE id % 9 = 0; COMMIT",
    "DELETE FROM t WHERE id % 11 = 0",
    "BEGIN; DELETE FROM t WHERE id % 13 = 0; SAVEPOINT s; UPDATE t SET n = -1; ROLLBACK TO s; COMMIT",
    "INSERT INTO t SELECT i, 5, 'new', repeat('n', 3000) FROM generate_series(30001, 30500) i",
    "SELECT count(*) FROM (SELECT 1 FROM t WHERE id % 17 = 0 FOR UPDATE) locked",
)


def run_script(conn, script: str) -> None:
    for statement in filter(str.strip, script.split(";")):
        conn.execute(statement)


def physical_chains(conn) -> list[tuple]:
    """Return for each tuple of t that was updated what its link leads to: the same transaction, and the same row."""
    return conn.execute(
        """
        WITH item AS MATERIALIZED (
            SELECT format('(%%s,%%s)', block, lp)::tid AS tid, t_ctid, t_xmin, t_xmax, t_infomask,
                   (tuple_data_split('t'::regclass, t_data, t_infomask, t_infomask2, t_bits))[1] AS id
            FROM generate_series(0, pg_relation_size('t') / 8192 - 1) block, heap_page_items(get_raw_page('t', block))
            WHERE lp_flags = 1
        )
        SELECT old.id = new.id AND old.t_xmax = new.t_xmin
        FROM item old LEFT JOIN item new ON new.tid = old.t_ctid
        WHERE old.t_ctid <> old.tid
        """.replace("%%", "%")
    ).fetchall()


@pytest.mark.parametrize("workers", [0, 2])
def test_old_snapshots_see_what_they_saw(cluster, db, conn, workers):
    """Versions of rows that only old snapshots see survive, and so do the links between them, whoever copied them."""
    run_script(conn, MAKE_VERSIONS)
    readers, seen = [], []
    with ExitStack() as snapshots:
        for change in CHANGES:
            readers.append(snapshots.enter_context(cluster.snapshot(db)))  # a lock on t would keep VACUUM FULL away
            seen.append(content(conn, "t"))
            run_script(conn, change)
        last = content(conn, "t")
        conn.execute(f"VACUUM (FULL, PARALLEL {workers}) t")
        assert content(conn, "t") == last
        assert [content(reader, "t") for reader in readers] == seen
        chains = physical_chains(conn)
        assert len(chains) > 3000 and all(sound for (sound,) in chains)
        checks.assert_clean(conn, "t")

        # the links are followed: this row's newest version is known to be newer
        with pytest.raises(psycopg.errors.SerializationFailure):
            readers[0].execute("UPDATE t SET n = 0 WHERE id = 3")
    conn.execute(f"VACUUM (FULL, PARALLEL {workers}) t")
    assert content(conn, "t") == last and physical_chains(conn) == []
    checks.assert_clean(conn, "t")


def test_row_versions_are_kept_as_core_keeps_them(prefix):
    """With an old snapshot open, the same versions of rows and values survive as in PostgreSQL's VACUUM FULL."""
    kept = {}
    with create_with_template(prefix, CONFIG) as original:
        original.start()
        with original.connect(TEMPLATE) as conn:
            run_script(conn, MAKE_VERSIONS)
        original.stop()
        for name, command in {
            "core": "SET cyclone.enabled = off; VACUUM FULL t",
            "ours": "VACUUM (FULL, PARALLEL 2) t",
            "alone": "VACUUM (FULL, PARALLEL 0) t",
        }.items():
            with original.copy().start() as cluster, cluster.connect(TEMPLATE) as conn, cluster.snapshot(TEMPLATE):
                for change in CHANGES:
                    run_script(conn, change)
                run_script(conn, command)
                versions = sorted(tuples(conn, "t"))
                [(toast,)] = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 't'")
                # all of them: deleted chunks are still there, but the server has made them anew
                kept[name] = versions, sorted(data for _, data in tuples(conn, toast))
    assert kept["ours"] == kept["alone"] == kept["core"]


def test_what_is_left_to_the_server(base):
    """Only that, and what is left is said at DEBUG1."""
    left = set()
    with base.copy().start() as cluster, cluster.connect(DB) as conn:
        said = messages_to(conn)
        conn.execute("SET client_min_messages = debug1")
        for table in (*TABLES, *CATALOGS):
            said.clear()
            conn.execute(f"VACUUM (FULL, VERBOSE) {table}")
            if any(message.startswith("pg_cyclone leaves relation") for message in said):
                left.add(table)
            else:
                assert any(message.startswith("finished rewriting") for message in said), table
    assert left == LEFT_TO_SERVER


def test_values_are_not_compressed_anew(cluster, db, conn):
    """Row versions that are linked point at values as these are, whatever the server would make of them today."""
    run_script(conn, MAKE_VERSIONS)
    with cluster.snapshot(db):
        conn.execute("ALTER TABLE t ALTER big SET STORAGE EXTENDED")
        conn.execute("UPDATE t SET n = n + 1 WHERE big IS NOT NULL")
        before = content(conn, "t")
        conn.execute("VACUUM (FULL, PARALLEL 2) t")
        assert content(conn, "t") == before
        conn.execute("INSERT INTO t VALUES (-1, 0, '', repeat('compressed', 1000))")
    checks.assert_clean(conn, "t")


def test_versions_before_a_dead_one_are_dead(cluster, db, conn):
    """A row deleted by an older transaction than the one that updated it before: its value has gone, and so must the old
    version, which looks recently dead, or the index on the value cannot be built."""
    conn.execute("CREATE TABLE t (id int, n int, big text)")
    conn.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    conn.execute("INSERT INTO t SELECT i, 0, repeat('v', 5000) FROM generate_series(1, 10) i")
    conn.execute("CREATE INDEX ON t (md5(big))")
    with cluster.connect(db) as deleter, cluster.connect(db) as other:
        deleter.execute("BEGIN")
        deleter.execute("SELECT txid_current()")
        other.execute("BEGIN")
        other.execute("SELECT txid_current()")
        conn.execute("UPDATE t SET n = 1 WHERE id <= 5")
        conn.execute("UPDATE t SET n = 2 WHERE id <= 3")
        deleter.execute("DELETE FROM t WHERE id <= 5")
        deleter.execute("COMMIT")
        conn.execute("VACUUM (FULL, PARALLEL 0) t")
        [(versions,)] = conn.execute("SELECT count(*) FROM heap_page_items(get_raw_page('t', 0))")
        assert versions == 5
    assert content(conn, "t")[0] == 5
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("workers", [0, 2])
def test_values_that_no_row_points_at_do_not_survive(cluster, db, conn, workers):
    """Those of a dropped column, and of rows that are gone; but all that an old snapshot may read."""
    run_script(conn, """
        CREATE EXTENSION pg_surgery;
        CREATE TABLE t (id int PRIMARY KEY, gone text, n int, big text, late text);
        ALTER TABLE t ALTER gone SET STORAGE EXTERNAL, ALTER big SET STORAGE EXTERNAL;
        INSERT INTO t SELECT i, repeat(md5(i::text), 200), 0, CASE WHEN i % 2 = 0 THEN repeat(md5(i::text), 150) END
        FROM generate_series(1, 2000) i;
        DELETE FROM t WHERE id % 5 = 0;
        ALTER TABLE t DROP COLUMN gone
    """)
    [(victims,)] = conn.execute("SELECT array_agg(ctid::text) FROM t WHERE id BETWEEN 100 AND 149")
    conn.execute("SELECT heap_force_kill('t', %s::tid[])", (victims,))
    with cluster.snapshot(db) as reader:
        seen = content(conn, "t")
        conn.execute("UPDATE t SET big = repeat('new', 1000) WHERE id % 3 = 0")
        conn.execute("UPDATE t SET n = 1 WHERE id % 7 = 0")
        conn.execute("DELETE FROM t WHERE id % 11 = 0")
        before = content(conn, "t")
        assert before != seen
        said = Background(cluster, db, f"VACUUM (FULL REWRITE, VERBOSE, PARALLEL {workers}) t").finish()
        # four for each value of the dropped column, and what the rows that are gone had in the other
        assert int(re.search(r"(\d+) chunks left out to which no row points", "\n".join(said))[1]) > 4 * 1550
        assert content(reader, "t") == seen
    assert content(conn, "t") == before
    conn.execute(f"VACUUM (FULL REWRITE, PARALLEL {workers}) t")
    assert content(conn, "t") == before
    [(toast,)] = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 't'")
    stored = conn.execute(f"SELECT DISTINCT chunk_id FROM {toast}").fetchall()
    wanted = conn.execute("SELECT pg_column_toast_chunk_id(big) FROM t WHERE pg_column_toast_chunk_id(big) IS NOT NULL").fetchall()
    assert len(wanted) > 500
    assert sorted(stored) == sorted(wanted)
    checks.assert_clean(conn, "t")


def test_rows_locked_by_several_and_updated_a_moment_ago(new_cluster):
    """Their commits are not on disk yet, so the server does not set all hints that VACUUM FULL knows of."""
    cluster = new_cluster(synchronous_commit="off", wal_writer_delay="10s", wal_writer_flush_after=0)
    with cluster.connect(TEMPLATE) as conn, cluster.connect(TEMPLATE) as other:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        conn.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 2000) i")
        conn.execute("CHECKPOINT")
        conn.execute("UPDATE t SET n = n + 1")
        for session in (conn, other):
            session.execute("BEGIN")
            session.execute("SELECT FROM t FOR KEY SHARE")
        conn.execute("COMMIT")
        other.execute("COMMIT")
        conn.execute("VACUUM (FULL, PARALLEL 0) t")
        assert conn.execute("SELECT count(*), sum(n) FROM t").fetchone() == (2000, 2000)
        checks.assert_clean(conn, "t")


FAULT_SETTINGS = {"min_parallel_table_scan_size": 0}
FULL = "VACUUM (FULL, PARALLEL 2) t"


def relation_files(cluster, conn) -> dict[str, int]:
    """Return the relation files of the connection's database with their sizes, once those that were dropped are gone."""
    [(oid,)] = conn.execute("SELECT oid FROM pg_database WHERE datname = current_database()")
    conn.execute("CHECKPOINT")
    return {file.name: file.stat().st_size for file in (cluster.data / "base" / str(oid)).iterdir()
            if re.match(r"\d+", file.name)}  # fmt: skip


@pytest.fixture
def versions(cluster, db, conn):
    """Table t with rows that an open snapshot needs; yields its contents."""
    run_script(conn, MAKE_VERSIONS)
    with cluster.snapshot(db):
        for change in CHANGES:
            run_script(conn, change)
        yield content(conn, "t")


@every_other("wal_level, kind", ["minimal", "logical"], ["", "UNLOGGED"])
def test_a_crash_after_it_with_each_wal_level(new_cluster, wal_level, kind):
    """Committed rows are there after a crash; unlogged tables are empty then, as they should be."""
    extra = {"max_wal_senders": 0, "wal_skip_threshold": 0} if wal_level == "minimal" else {}
    cluster = new_cluster(wal_level=wal_level, fsync="on", **extra)
    with cluster.connect(TEMPLATE) as conn:
        run_script(conn, MAKE_VERSIONS.replace("CREATE TABLE", f"CREATE {kind} TABLE"))
        before = content(conn, "t")
        conn.execute("CHECKPOINT")
        conn.execute(FULL)
        conn.execute("INSERT INTO t VALUES (0, 0, 'after', repeat('a', 5000))")
    cluster.restart("crash")
    with cluster.connect(TEMPLATE) as conn:
        [(rows,)] = conn.execute("SELECT count(*) FROM t")
        assert rows == (0 if kind else before[0] + 1)
        assert checks.heap_corruption(conn, "t") == checks.btree_corruption(conn, "t") == []
        conn.execute("DELETE FROM t WHERE id = 0")
        assert kind or content(conn, "t") == before


def test_logical_decoding_goes_on(new_cluster):
    """A rewrite is no change of rows, and those before and after it are decoded."""
    cluster = new_cluster(wal_level="logical")
    with cluster.connect(TEMPLATE) as conn:
        run_script(conn, MAKE_VERSIONS)
        conn.execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
        conn.execute("INSERT INTO t VALUES (-1, 0, 'before', repeat('b', 5000))")
        conn.execute(FULL)
        conn.execute("INSERT INTO t VALUES (-2, 0, 'after', repeat('a', 5000))")
        changes = [data for (data,) in conn.execute("SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL)")]
        changes = [data for data in changes if not data.startswith(("BEGIN", "COMMIT"))]
        assert len(changes) == 2
        assert "id[integer]:-1" in changes[0] and "b" * 5000 in changes[0]
        assert "id[integer]:-2" in changes[1] and "a" * 5000 in changes[1]


def test_neighbours_remain_neighbours(conn):
    """Several processes keep rows together that were together: a BRIN index stays of use."""
    conn.execute("CREATE TABLE t (id int, filler text)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 400) FROM generate_series(1, 60000) i")
    conn.execute("DELETE FROM t WHERE id % 3 = 0")
    conn.execute("VACUUM (FULL, ANALYZE, PARALLEL 3) t")
    [(apart,)] = conn.execute(
        """
        SELECT avg((abs(block - next) > 1)::int)
        FROM (SELECT block, lead(block) OVER (ORDER BY id) AS next FROM (SELECT id, (ctid::text::point)[0] AS block FROM t) a) b
        """
    )
    assert apart < 0.01


@pytest.mark.parametrize("min_free", ["1MB", "0"])
def test_disk_space_is_checked_before_any_work(cluster, db, conn, min_free):
    """As that is an estimate, it is a warning; none is wanted by who has no bound on free disk space."""
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, filler text)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 400) FROM generate_series(1, 60000) i")
    said = Background(cluster, db, "VACUUM FULL t", {"cyclone.debug_free_disk_mb": 40, "cyclone.min_free_disk": min_free}).finish()
    assert ('disk space may not suffice for VACUUM FULL of "t"' in said) == (min_free != "0")
    checks.assert_clean(conn, "t")


def test_progress_is_shown(cluster, db, conn, versions):
    with Parked(cluster, db, "heap-copy:any", 3, FULL, FAULT_SETTINGS):
        rows = conn.execute("SELECT role, phase, blocks_total FROM cyclone.progress WHERE datname = %s", (db,)).fetchall()
        assert sorted(role for role, _, _ in rows) == ["leader", "worker", "worker"]
        assert {phase for _, phase, _ in rows} == {"copying heap"}
        [(command, phase)] = conn.execute(
            "SELECT command, phase FROM pg_stat_progress_cluster WHERE datname = %s", (db,)
        ).fetchall()
        assert (command, phase) == ("VACUUM FULL", "seq scanning heap")


def test_what_verbose_says(cluster, db, conn, versions):
    said = "\n".join(Background(cluster, db, "VACUUM (FULL, VERBOSE, PARALLEL 2) t").finish())
    for pattern in (
        r'^(vacuuming "public\.t"|repacking "public\.t" in physical order)$',
        r'^"public\.t": found \d+ removable, \d+ nonremovable row versions in \d+ pages$',
        rf'^finished rewriting "{db}\.public\.t"$',
        r"^heap: \d+ [kM]B before, \d+ [kM]B after$",
        r"^TOAST table: \d+ [kM]B before, \d+ [kM]B after$",
        r'^index "t_pkey": \d+ [kM]B before, \d+ [kM]B after, built in [\d.]+ s$',
        r"^parallel workers: 2 planned, 2 launched$",
        r"^phases: heap copy [\d.]+ s, linked row versions [\d.]+ s, TOAST copy [\d.]+ s, TOAST index [\d.]+ s,"
        r" index build [\d.]+ s, other [\d.]+ s$",
    ):
        assert re.search(pattern, said, re.MULTILINE), pattern


def test_temporary_tables(cluster, db, conn):
    """They are copied by one process, with a warning if more were asked for."""
    said = messages_to(conn)
    run_script(conn, MAKE_VERSIONS.replace("CREATE TABLE", "CREATE TEMP TABLE"))
    before = content(conn, "t")
    conn.execute("VACUUM (FULL, VERBOSE) t")
    assert any(message.startswith("finished rewriting") for message in said)
    conn.execute("VACUUM (FULL, PARALLEL 2) t")
    assert any("cannot vacuum temporary tables in parallel" in message for message in said)
    assert content(conn, "t") == before
    checks.assert_clean(conn, "t")


def test_a_whole_database(conn):
    run_script(conn, MAKE_VERSIONS)
    conn.execute("CREATE MATERIALIZED VIEW unfilled AS SELECT 1 WITH NO DATA")
    before = content(conn, "t")
    conn.execute("VACUUM (FULL, PARALLEL 2, ANALYZE)")
    assert content(conn, "t") == before
    checks.assert_clean(conn, "t")
    for catalog in ("pg_class", "pg_attribute"):  # which have changed since their turn
        assert checks.heap_corruption(conn, catalog) == checks.btree_corruption(conn, catalog) == []
