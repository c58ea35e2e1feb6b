"""VACUUM FULL rebuilds several indexes at once and leaves catalogs and indexes as PostgreSQL's does, to which some kinds are left."""

import os
import re
from contextlib import ExitStack

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, create_with_template
from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, messages_to
from cyclone_lab.cluster import Cluster
from cyclone_lab.shim import Disk
from test_as_core import DB
from test_rewrite import CHANGES, MAKE_VERSIONS, WAL_LEVELS, content, run_script

# One parallel worker of PostgreSQL's needs 64 MB, so here PostgreSQL builds each index alone, and only what isn't plain is left to it.
SETTINGS = {"maintenance_work_mem": "32MB"}
FULL = "VACUUM (FULL, PARALLEL 2) t"
MAKE_TYPES = r"""
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE TYPE pair AS (a int, b int);
    CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 2 * $1;
    CREATE FUNCTION backwards(int, int) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN btint4cmp($2, $1);
    CREATE OPERATOR CLASS backwards_ops FOR TYPE int USING btree AS
        OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =, OPERATOR 4 <=, OPERATOR 5 <, FUNCTION 1 backwards(int, int);
"""
_FILL = """
    INSERT INTO {0} SELECT i, i % 500, md5(i::text) FROM generate_series(1, 3000) i;
    DELETE FROM {0} WHERE id % 3 = 0;
    UPDATE {0} SET n = n + 1 WHERE id % 5 = 0
"""


def _simple(name: str, *indexes: str, kind: str = "", options: str = "") -> str:
    """Return the statements for a table of this name with a primary key and these indexes."""
    creations = "".join(f"; CREATE INDEX ON {name} {index}" for index in indexes)
    return f"CREATE {kind} TABLE {name} (id int PRIMARY KEY, n int, note text) {options}; {_FILL.format(name)} {creations}"


# By table: how it is made, and how many indexes are built at once and alone, None if PostgreSQL builds them all.
TABLES = {
    "kinds": ("""
        CREATE TABLE kinds (id int PRIMARY KEY, n int, note text, e mood, a int[], moods mood[], p positive,
                            later int UNIQUE DEFERRABLE INITIALLY DEFERRED,
                            same int, EXCLUDE USING btree (same WITH =) INCLUDE (note));
        INSERT INTO kinds
        SELECT i, i % 500, md5(i::text), (enum_range(NULL::mood))[1 + i % 3], ARRAY[i % 7, i], enum_range(NULL::mood), i, i, -i
        FROM generate_series(1, 3000) i;
        INSERT INTO kinds (id, later) VALUES (3001, 3001), (3002, 3002);
        CREATE UNIQUE INDEX kinds_not_distinct ON kinds (n, id) NULLS NOT DISTINCT;
        CREATE UNIQUE INDEX kinds_replica ON kinds (id DESC) INCLUDE (note, a);
        CREATE INDEX kinds_partial ON kinds (n) WHERE note > '8' AND n IS NOT NULL AND e = 'ok';
        CREATE INDEX kinds_expression ON kinds ((n * 2 + 1), lower(note) text_pattern_ops DESC NULLS LAST);
        CREATE INDEX kinds_options ON kinds (note COLLATE "C") WITH (fillfactor = 60, deduplicate_items = off);
        CREATE INDEX kinds_elsewhere ON kinds (n) TABLESPACE elsewhere;
        CREATE INDEX kinds_empty ON kinds (n) WHERE n < 0;
        CREATE INDEX kinds_types ON kinds (e, a, moods, p);
        CREATE INDEX kinds_coalesced ON kinds (coalesce(n, 0), (n::text), (n IN (1, 2, 3)),
                                                    (CASE n WHEN 1 THEN 'one' WHEN 2 THEN upper(note) ELSE 'many' END));
        ALTER INDEX kinds_expression ALTER COLUMN 1 SET STATISTICS 500;
        ALTER TABLE kinds CLUSTER ON kinds_options;
        ALTER TABLE kinds REPLICA IDENTITY USING INDEX kinds_replica;
        COMMENT ON INDEX kinds_partial IS 'a comment';
        DELETE FROM kinds WHERE id % 3 = 0
    """, (12, 0)),
    "no_autovacuum": (_simple("no_autovacuum", "(n)", options="WITH (autovacuum_enabled = off)"), (2, 0)),
    "emptied": (_simple("emptied", "(n)", "(note)") + "; DELETE FROM emptied", (3, 0)),
    "with_toast": ("""
        CREATE TABLE with_toast (id int PRIMARY KEY, n int, big text STORAGE EXTERNAL) WITH (toast.autovacuum_enabled = off);
        INSERT INTO with_toast SELECT i, i % 10, repeat(md5(i::text), 100) FROM generate_series(1, 500) i;
        CREATE INDEX ON with_toast (n);
        CREATE INDEX ON with_toast (md5(big));
        DELETE FROM with_toast WHERE id % 3 = 0
    """, (3, 0)),
    "partitioned_1": ("""
        CREATE TABLE partitioned (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
        CREATE INDEX ON partitioned (n);
        CREATE TABLE partitioned_1 PARTITION OF partitioned FOR VALUES FROM (0) TO (10000);
        INSERT INTO partitioned SELECT i, i % 500 FROM generate_series(1, 3000) i;
        DELETE FROM partitioned WHERE id % 3 = 0
    """, (2, 0)),
    "matview": (
        _simple("viewed")
        + "; CREATE MATERIALIZED VIEW matview AS TABLE viewed; CREATE UNIQUE INDEX ON matview (id); CREATE INDEX ON matview (n)",
        (2, 0),
    ),
    "missing": (
        _simple("missing", "(n)") + "; ALTER TABLE missing ADD COLUMN m int DEFAULT 7; CREATE INDEX ON missing (m)",
        (3, 0),
    ),
    "one_function": (_simple("one_function", "(twice(n))", "(n)"), (2, 1)),
    "two_functions": (_simple("two_functions", "(twice(n))", "(twice(id))", "(n)"), None),
    "in_predicate": (_simple("in_predicate", "(n) WHERE twice(n) > 100", "(note)"), (2, 1)),
    "opclass": (_simple("opclass", "(n backwards_ops)", "(note)"), (2, 1)),
    "two_opclasses": (_simple("two_opclasses", "(n backwards_ops)", "(id backwards_ops)", "(note)"), None),
    "to_domain": (_simple("to_domain", "((n::positive)) WHERE n > 0", "(note)"), (2, 1)),
    "composite": ("""
        CREATE TABLE composite (id int PRIMARY KEY, n int, c pair);
        INSERT INTO composite SELECT i, i % 500, (i, i)::pair FROM generate_series(1, 3000) i;
        CREATE INDEX ON composite (n);
        CREATE INDEX ON composite (c)
    """, (2, 1)),
    "methods": ("""
        CREATE TABLE methods (id int PRIMARY KEY, n int, note text, e mood, moods mood[], p point, i inet, j jsonb, t tsvector);
        INSERT INTO methods
        SELECT i, i % 500, md5(i::text), 'ok', enum_range(NULL::mood), point(i % 100, i % 77), '10.0.0.0'::inet + i,
               jsonb_build_object('n', i % 50), to_tsvector('simple', left(md5(i::text), 2) || ' word')
        FROM generate_series(1, 3000) i;
        CREATE INDEX ON methods USING hash (note);
        CREATE INDEX ON methods USING hash (e) WHERE n > 100;
        CREATE INDEX ON methods USING brin (id, note) WITH (pages_per_range = 4);
        CREATE INDEX ON methods USING brin (n int4_minmax_multi_ops, i inet_inclusion_ops, note text_bloom_ops);
        CREATE INDEX ON methods USING gin (j);
        CREATE INDEX ON methods USING gin (t, moods) WITH (fastupdate = off);
        CREATE INDEX methods_gist_chancy ON methods USING gist (p) INCLUDE (n);
        CREATE INDEX methods_gist2_chancy ON methods USING gist (i inet_ops, t);
        CREATE INDEX methods_spgist_chancy ON methods USING spgist (note) INCLUDE (id);
        CREATE INDEX methods_spgist2_chancy ON methods USING spgist (p);
        DELETE FROM methods WHERE id % 3 = 0
    """, (11, 0)),
    "hashed": ("""
        CREATE TABLE hashed (id int PRIMARY KEY, name name, c pair);
        INSERT INTO hashed SELECT i, i::text, (i, i)::pair FROM generate_series(1, 3000) i;
        CREATE INDEX ON hashed (name);
        CREATE INDEX ON hashed USING hash (c)
    """, (2, 1)),
    "bloom": (_simple("bloom", "USING bloom (n, id)", "(n)"), (2, 1)),
    "two_others": (_simple("two_others", "USING bloom (n, id)", "USING gist (int4range(0, id))", "(n)"), None),
    "unlogged": (_simple("unlogged", "(n)", "USING gin (string_to_array(note, 'a'))", "(twice(n))", kind="UNLOGGED"), (3, 1)),
    "only_one": (_simple("only_one"), (1, 0)),
    "one_invalid": (_simple("one_invalid", "(note)"), (2, 1)),
    "two_invalid": (_simple("two_invalid", "(note)"), None),
    "checked_xmin": (_simple("checked_xmin", "(note)", "(n)"), (2, 1)),
}  # fmt: skip
INVALID = {
    "one_invalid": ["UNIQUE INDEX CONCURRENTLY one_invalid_1 ON one_invalid (n)"],
    "two_invalid": [
        "UNIQUE INDEX CONCURRENTLY two_invalid_1 ON two_invalid (n)",
        "INDEX CONCURRENTLY two_invalid_2 ON two_invalid ((1 / (id - 1)))",
    ],
}
# They say something about the moment only.
_IGNORED = ("relfilenode", "relpages", "reltuples")


@pytest.fixture(scope="module")
def base(prefix):
    """A stopped cluster with a database of all tables, where autovacuum is on, but comes to nothing."""
    config = {**CONFIG, "autovacuum": "on", "autovacuum_naptime": "1d", "allow_in_place_tablespaces": "on"}
    with create_with_template(prefix, config) as cluster:
        cluster.start()
        cluster.sql("CREATE TABLESPACE elsewhere LOCATION ''")
        cluster.sql(f"CREATE DATABASE {DB} TEMPLATE {TEMPLATE}")
        with cluster.connect(DB) as conn:
            conn.execute("CREATE EXTENSION bloom")
            run_script(conn, MAKE_TYPES)
            for script, _ in TABLES.values():
                run_script(conn, script)
            for definitions in INVALID.values():
                for definition in definitions:
                    with pytest.raises((psycopg.errors.UniqueViolation, psycopg.errors.DivisionByZero)):
                        conn.execute(f"CREATE {definition}")
            conn.execute("DELETE FROM two_invalid WHERE id = 1")
            conn.execute("UPDATE pg_index SET indcheckxmin = true WHERE indexrelid = 'checked_xmin_n_idx'::regclass")
        cluster.stop()
        yield cluster


def catalog_rows(conn, table: str) -> dict[str, dict]:
    """Return the rows in pg_class and pg_index of a table, its TOAST table and all their indexes, by name, with their sizes."""
    rows = conn.execute(
        """
        WITH heaps AS (SELECT oid FROM pg_class WHERE oid = %(table)s::regclass
                       UNION SELECT reltoastrelid FROM pg_class WHERE oid = %(table)s::regclass)
        SELECT c.oid::regclass::text, to_jsonb(c), to_jsonb(i), pg_relation_size(c.oid), pg_relation_filepath(c.oid)
        FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
        WHERE c.oid IN (SELECT oid FROM heaps) OR i.indrelid IN (SELECT oid FROM heaps)
        """,
        {"table": table},
    )
    return {
        name: {
            "class": {key: value for key, value in in_class.items() if key not in _IGNORED},
            "index": in_index,
            "size": size,
            "relpages": in_class["relpages"],
            "reltuples": in_class["reltuples"],
            "folder": os.path.dirname(path),
        }
        for name, in_class, in_index, size, path in rows
    }


def dependencies(conn, table: str) -> list[str]:
    rows = conn.execute(
        "SELECT d::text FROM pg_depend d WHERE %(table)s::regclass IN (objid, refobjid)"
        " OR objid IN (SELECT indexrelid FROM pg_index WHERE indrelid = %(table)s::regclass) ORDER BY 1",
        {"table": table},
    )
    return [row for (row,) in rows]


def builds(messages: list[str]) -> tuple[int, int] | None:
    """Return how many indexes were built at once and alone, as VERBOSE says; None if PostgreSQL has built them."""
    [report] = [message for message in messages if message.startswith("finished rewriting")]
    found = re.search(
        r"^index builds: (\d+) at once by \d+ processes with \d+ kB of memory each, \d+ of them by a shared pass, (\d+) alone$",
        report,
        re.M,
    )
    timed = len(re.findall(r"^index .* after, built in [\d.]+ s$", report, re.M))
    assert timed == (int(found[1]) + int(found[2]) if found else 0)
    return (int(found[1]), int(found[2])) if found else None


def rewrite_all(base: Cluster, settings: dict, options: str, **config) -> tuple[dict, dict]:
    """VACUUM FULL all tables in a copy of the cluster; return what came of each, and how the indexes were built."""
    outcome, built = {}, {}
    with base.copy() as cluster:
        cluster.config.update(config)
        cluster.start()
        with cluster.connect(DB) as conn:
            said = messages_to(conn)
            for name, value in {**SETTINGS, **settings}.items():
                conn.execute(f"SET {name} = '{value}'")
            for table in TABLES:
                said.clear()
                rows = content(conn, table)
                conn.execute(f"VACUUM ({options}, VERBOSE) {table}")
                assert content(conn, table) == rows
                outcome[table] = {"catalogs": catalog_rows(conn, table), "depend": dependencies(conn, table)}
                if options != "FULL":
                    built[table] = builds(said)
            checks.assert_clean(conn, *TABLES)
            [(setting,)] = conn.execute("SHOW maintenance_work_mem")
            assert setting == SETTINGS["maintenance_work_mem"]
            [(leftover,)] = conn.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'pg_temp%%' OR relrewrite <> 0")
            assert leftover == 0
        if options == "FULL":
            return outcome, built
        for _ in ("crash", "what is in the files is in WAL as well"):
            cluster.restart("crash")
            with cluster.connect(DB) as conn:
                for table in TABLES:
                    assert checks.btree_corruption(conn, table) == [], table
                assert checks.dangling_index_entries(conn, "unlogged") == [], "its indexes are not reset"
                assert_found_by_index(conn)
    return outcome, built


def assert_found_by_index(conn) -> None:
    """The indexes of other kinds than btree lead to the rows that a sequential scan finds."""
    for condition in (
        *("note = md5('7')", "e = 'ok' AND n > 100 AND n < 200", "id BETWEEN 100 AND 200", "n = 7 AND i > '10.0.0.7'"),
        *("j @> '{\"n\": 7}'", "t @@ 'word & 0c'", "moods @> '{sad}'", "p <@ box '((0,0),(20,20))'", "i << '10.0.4.0/22'"),
        *("t @@ 'word' AND i << '10.0.4.0/22'", "note LIKE 'a%'", "p << point '(20,0)'"),
    ):
        counts = set()
        for switch in ("on", "off"):
            conn.execute(f"SET enable_seqscan = {switch}")
            counts.add(conn.execute(f"SELECT count(*) FROM methods WHERE {condition}").fetchone())
        assert len(counts) == 1 and counts != {(0,)}, condition


@pytest.fixture(scope="module")
def core(base):
    """What PostgreSQL's VACUUM FULL does to all tables."""
    return rewrite_all(base, {"cyclone.enabled": "off"}, "FULL")[0]


@pytest.mark.parametrize(("workers", "parts", "config"), [
    (0, 0, {}),
    (2, 0, {}),
    pytest.param(2, 0, WAL_LEVELS["minimal"], marks=pytest.mark.full),  # new files are logged at commit, as they are small
    pytest.param(2, 0, {**WAL_LEVELS["minimal"], "wal_skip_threshold": 0, "fsync": "on"}, marks=pytest.mark.full),  # or flushed
    (2, 5, {"default_transaction_isolation": "serializable"}),
    (1, 2, WAL_LEVELS["minimal"]),
    (2, 3, {**WAL_LEVELS["minimal"], "wal_skip_threshold": 0, "fsync": "on"}),
], ids=["alone", "replica", "minimal", "minimal-flushed", "5-parts-serializable", "2-parts", "3-parts"])  # fmt: skip
def test_indexes_of_every_kind(base, core, workers, parts, config):
    """Catalogs and sizes are as PostgreSQL leaves them, whoever builds which index, and so they are after a crash."""
    ours, built = rewrite_all(base, {"cyclone.debug_btree_parts": parts}, f"FULL, PARALLEL {workers}", **config)
    assert built == {table: expected for table, (_, expected) in TABLES.items() if table in built}
    for table in TABLES:
        assert ours[table]["depend"] == core[table]["depend"], table
        assert ours[table]["catalogs"].keys() == core[table]["catalogs"].keys(), table
        for name, expected in core[table]["catalogs"].items():
            actual = ours[table]["catalogs"][name]
            if re.search("chancy|range", name) or (expected["index"] is None and workers > 0):
                # some indexes are built with chance, and the joints of its parts may cost the heap a page
                assert actual["size"] <= 1.3 * expected["size"] + 2 * 8192, name
                assert actual["relpages"] == actual["size"] // 8192 or name.startswith("pg_toast"), name
            elif parts > 0 and expected["index"] is not None:
                # so small a part may cost a page
                assert actual["size"] <= expected["size"] + parts * 8192, name
                assert actual["relpages"] in (expected["relpages"], actual["size"] // 8192) or name.startswith("pg_toast"), name
            else:
                assert actual["size"] == expected["size"], name
                # PostgreSQL's for the TOAST table are those of the empty one, from before it is filled
                assert actual["relpages"] == expected["relpages"] or name.startswith("pg_toast"), name
            assert actual["reltuples"] == expected["reltuples"] or name.startswith("pg_toast"), name
            for key in ("class", "index", "folder"):
                assert actual[key] == expected[key], name


@pytest.mark.parametrize("parts", [0, 3])
def test_old_snapshots_find_their_rows(cluster, db, conn, parts):
    """Row versions that only old snapshots see are in each of the new indexes, and aren't counted as rows."""
    said = messages_to(conn)
    run_script(conn, MAKE_VERSIONS)
    run_script(conn, "CREATE INDEX ON t (n); CREATE INDEX ON t (note)")
    conn.execute("CREATE INDEX ON t (coalesce(md5(big), ''))")
    conn.execute(f"SET maintenance_work_mem = '32MB'; SET cyclone.debug_btree_parts = {parts}; SET min_parallel_index_scan_size = '1GB'")
    readers = []
    with ExitStack() as snapshots:
        for change in CHANGES:
            readers.append((snapshots.enter_context(cluster.snapshot(db)), content(conn, "t")))  # a lock on t would keep VACUUM FULL away
            run_script(conn, change)
        conn.execute("VACUUM (FULL, VERBOSE, PARALLEL 2) t")
        assert builds(said) == (4, 0)
        assert f"{2 if parts else 0} of them by a shared pass" in said[-1]
        if conn.info.server_version < 180000:  # later ones don't count rows while they build indexes
            [(counted, rows)] = conn.execute("SELECT reltuples, (SELECT count(*) FROM t) FROM pg_class WHERE oid = 't'::regclass")
            assert counted == rows
        assert checks.btree_corruption(conn, "t") == []
        for reader, seen in readers:
            reader.execute("SET enable_seqscan = off")
            for condition in ("id > -1", "n > -100", "note > ''", "coalesce(md5(big), '') >= ''"):
                assert "Index" in str(reader.execute(f"EXPLAIN SELECT FROM t WHERE {condition}").fetchall())
                found = reader.execute(f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM t WHERE {condition}").fetchone()
                assert found == seen, condition
    checks.assert_clean(conn, "t")


MAKE_INDEXED = "CREATE EXTENSION IF NOT EXISTS bloom; " + _simple(
    "t", "(n)", "USING gin (string_to_array(note, NULL))", "USING bloom (n)"
)


@pytest.fixture
def indexed(conn):
    """Table t with three btrees and a hash index; yields its contents."""
    run_script(conn, MAKE_INDEXED)
    yield content(conn, "t")


def test_what_is_wrong_with_a_row(cluster, db, conn, indexed):
    """An expression that fails ends it, in whichever process that is, with the expression's error."""
    conn.execute("CREATE INDEX late ON t ((1 / (n + 1000)))")
    conn.execute("UPDATE pg_index SET indisready = false WHERE indexrelid = 'late'::regclass")
    conn.execute("INSERT INTO t VALUES (-1, -1000, 'nothing')")
    conn.execute("UPDATE pg_index SET indisready = true WHERE indexrelid = 'late'::regclass")
    conn.execute("DROP INDEX t_n_idx1")
    before = content(conn, "t")
    for _ in range(5):
        assert isinstance(Background(cluster, db, FULL, SETTINGS).wait(), psycopg.errors.DivisionByZero)
        assert content(conn, "t") == before
    conn.execute("DELETE FROM t WHERE id = -1")
    conn.execute(FULL)
    assert content(conn, "t") == indexed
    checks.assert_clean(conn, "t")


def test_duplicates_are_not_looked_for(cluster, db, conn, indexed):
    """In a unique index that has some already, as in PostgreSQL's."""
    conn.execute("UPDATE pg_index SET indisunique = true WHERE indexrelid = 't_n_idx'::regclass")
    conn.execute("SET cyclone.enabled = off")
    conn.execute("VACUUM FULL t")
    conn.execute("RESET cyclone.enabled")
    assert builds(Background(cluster, db, "VACUUM (FULL, VERBOSE, PARALLEL 2) t", SETTINGS).finish()) == (3, 1)
    assert content(conn, "t") == indexed


def test_a_standby_has_the_same_indexes(base):
    with base.copy() as primary:
        primary.config["wal_consistency_checking"] = "all"
        primary.start()
        with primary.standby({"max_standby_streaming_delay": -1}).start() as standby:
            with primary.connect(DB) as conn:
                conn.execute("SET maintenance_work_mem = '32MB'")
                for number, table in enumerate(TABLES):
                    conn.execute(f"SET cyclone.debug_btree_parts = {number % 2 * 3}")
                    conn.execute(f"VACUUM (FULL, PARALLEL 2) {table}")
            standby.wait_for_replay(primary)
            with primary.connect(DB) as conn, standby.connect(DB) as there:
                for table in set(TABLES) - {"unlogged"}:
                    assert content(there, table) == content(conn, table), table
                    assert checks.heap_corruption(there, table) == checks.btree_corruption(there, table) == [], table
                assert_found_by_index(there)
            assert "inconsistent page" not in standby.log


def test_progress_and_memory(cluster, db, conn, indexed):
    """Each process shows its index, and has its part of the memory."""
    with Parked(cluster, db, "rewrite-index:any", 3, "VACUUM (FULL, VERBOSE, PARALLEL 2) t", SETTINGS) as vacuum:
        rows = conn.execute(
            "SELECT role, phase, index_relid::regclass::text FROM cyclone.progress_details WHERE datname = %s", (db,)
        ).fetchall()
        assert sorted(role for role, _, _ in rows) == ["leader", "worker", "worker"]
        assert {phase for _, phase, _ in rows} == {"rebuilding indexes"}
        assert {index for _, _, index in rows} == {"t_pkey", "t_n_idx", "t_string_to_array_idx"}
        shown = "SELECT phase, index_rebuild_count FROM pg_stat_progress_cluster WHERE datname = %s"
        assert conn.execute(shown, (db,)).fetchall() == [("rebuilding index", 0)]
        said = "\n".join(vacuum.finish())
    assert f"index builds: 3 at once by 3 processes with {(32 << 10) // 3} kB of memory each, 0 of them by a shared pass, 1 alone\n" in said
    with Parked(cluster, db, "rewrite-index-alone:leader", 1, FULL, SETTINGS):
        assert conn.execute(shown, (db,)).fetchall() == [("rebuilding index", 3)]


@pytest.mark.parametrize(("indexes", "workers", "memory", "expected"), [
    (2, 1, "64MB", (2, 0)),  # one each
    (3, 1, "64MB", (3, 0)),
    (3, 1, "32MB", (3, 0)),  # PostgreSQL would have it built by one process
    (3, 2, "64MB", (3, 0)),
    (3, 0, "64MB", (3, 0)),
])  # fmt: skip
def test_who_builds_which(cluster, db, conn, indexes, workers, memory, expected):
    conn.execute("CREATE TABLE t (id int, n int)")
    conn.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 20000) i")
    for _ in range(indexes):
        conn.execute("CREATE INDEX ON t (n)")
    said = messages_to(conn)
    conn.execute(f"SET maintenance_work_mem = '{memory}'")
    conn.execute(f"VACUUM (FULL, VERBOSE, PARALLEL {workers}) t")
    assert builds(said) == expected
    checks.assert_clean(conn, "t")


def test_without_parallel_size_decides(conn):
    """Indexes that are large enough for a parallel scan get a process each, unless the table has a number of its own."""
    said = messages_to(conn)
    conn.execute("SET maintenance_work_mem = '32MB'")
    run_script(conn, "CREATE TABLE t (id int, n int); CREATE INDEX ON t (n); CREATE INDEX ON t (id)")
    for rows, option, expected in ((100, None, 1), (50000, None, 2), (50000, 0, 1), (100, 1, 2)):
        conn.execute("TRUNCATE t")
        conn.execute("INSERT INTO t SELECT i, i FROM generate_series(1, %s) i", (rows,))
        change = "RESET (parallel_workers)" if option is None else f"SET (parallel_workers = {option})"
        conn.execute(f"ALTER TABLE t {change}")
        said.clear()
        conn.execute("VACUUM (FULL, VERBOSE) t")
        assert f"2 at once by {expected} processes" in said[-1], (rows, option)
    checks.assert_clean(conn, "t")


# By name: what fills the index's columns a and b, the index, and how many rows. These are built in parts.
IN_PARTS = {
    "ascending": ("i, NULL", "(a)", 20000),
    "descending": ("i, NULL", "(a DESC)", 20000),
    "scattered": ("hashint4(i), NULL", "(a)", 20000),
    "nulls": ("nullif(i % 3, 0) * nullif(i % 5, 0), NULL", "(a NULLS FIRST)", 20000),
    "one-key": ("7, NULL", "(a)", 20000),
    "not-deduplicated": ("7, NULL", "(a) WITH (deduplicate_items = off)", 20000),
    "few-keys": ("i % 4, NULL", "(a)", 20000),
    "full-pages": ("hashint4(i), NULL", "(a) WITH (fillfactor = 100)", 20000),
    "empty-pages": ("hashint4(i), NULL", "(a) WITH (fillfactor = 10)", 20000),
    "two-columns": ("i % 100, md5(i::text)::uuid", "(b DESC)", 15000),
    "full-uuids": ("i, md5((i % 9999)::text)::uuid", "(b) WITH (fillfactor = 100)", 15000),
    "expression": ("i, NULL", "((a % 1000)) WHERE a % 2 = 0", 20000),
}
# And these whole
SHAPES = {
    **IN_PARTS,
    "two-columns": ("i % 100, md5(i::text)", "(a, b DESC)", 30000),
    "full-uuids": ("i % 100, md5(i::text)", "((b::uuid), a) WITH (fillfactor = 100)", 30000),
    "included": ("i % 1000, md5(i::text)", "(a) INCLUDE (b)", 30000),
    "text": ("i, md5(i::text)", "(b)", 30000),
    "numeric": ("i, NULL", "((a::numeric / 7))", 30000),
    "nulls-and-orders": ("nullif(i % 50, 0), nullif((i % 7)::text, '0')", "(b DESC NULLS LAST, a NULLS FIRST)", 30000),
    "compressed": ("i, repeat(md5(i::text), 100)", "(b)", 5000),
    "upper": ("i, md5(i::text)", "(upper(b)) WHERE a % 2 = 0", 30000),
    # three entries a page: many levels
    "wide": ("i, wide(i)", "(b)", 2000),
    "wide-duplicates": ("i, wide(i % 5)", "(b)", 2000),
    "wide-unlike": ("i, left(wide(i), hashint4(i) & 2047)", "(b)", 4000),
}


# With ICU's collations, which a server may come without: texts whose order there is not that of their bytes.
ICU_SHAPES = {
    "english": ("i, (ARRAY['a', 'A', 'é', '-', ' ', 'Z'])[1 + i % 6] || md5(i::text)", '(b COLLATE "en-x-icu")', 30000),
    "german-descending": ("i, (ARRAY['ö', 'O', 'ß', 'ss', 'Ä'])[1 + i % 5] || i % 3000", '(b COLLATE "de-x-icu" DESC, a)', 30000),
    # two of each key that are equal, but not alike
    "without-case": ("i, (ARRAY[upper(md5((i / 2)::text)), md5((i / 2)::text)])[1 + i % 2]", "(b COLLATE without_case)", 30000),
    "few-without-case": ("i, (ARRAY['word', 'Word', 'other'])[1 + i % 3]", "(b COLLATE without_case)", 30000),
}


@pytest.mark.parametrize("shape", IN_PARTS)
def test_a_btree_in_parts_is_a_btree(conn, shape):
    """With any keys it has no more pages than PostgreSQL's, except one a part if parts are small, and none that is no page of it."""
    columns, index, nrows = IN_PARTS[shape]
    conn.execute("CREATE TABLE t (a int, b uuid)")
    conn.execute(f"INSERT INTO t SELECT {columns} FROM generate_series(1, {nrows}) i")
    conn.execute(f"CREATE INDEX t_index ON t {index}")
    conn.execute("SET maintenance_work_mem = '8MB'")
    rows = content(conn, "t")
    conn.execute("SET cyclone.enabled = off")
    conn.execute("VACUUM FULL t")
    [(of_core, leaves_of_core)] = conn.execute("SELECT index_size, leaf_pages FROM pgstatindex('t_index')")
    conn.execute("RESET cyclone.enabled")

    said = messages_to(conn)
    for workers, parts in ((1, 2), (2, 3), (2, 13)):
        conn.execute(f"SET cyclone.debug_btree_parts = {parts}")
        conn.execute(f"VACUUM (FULL, VERBOSE, PARALLEL {workers}) t")
        assert "1 at once by" in said[-1] and "1 of them by a shared pass" in said[-1]
        [(size, used, leaves)] = conn.execute(
            "SELECT index_size, 8192 * (1 + internal_pages + leaf_pages), leaf_pages FROM pgstatindex('t_index')"
        )
        assert size == used, "pages that are none of the tree's"
        # high keys elsewhere may be of another size, and those of all pages just too much for one page above them
        assert size <= of_core + (parts + 1) * 8192
        assert leaves <= leaves_of_core + parts
        checks.assert_clean(conn, "t")
    assert content(conn, "t") == rows


@pytest.mark.parametrize(("memory", "parts", "collected"), [
    ("64MB", 8, 2), ("64MB", 5, 2),
    ("4MB", 8, 1),  # two don't fit
    ("1MB", 8, 0),
])  # fmt: skip
def test_processes_read_the_table_together(conn, memory, parts, collected):
    """As many indexes as have room in memory come of one pass; their rows are all there, in the same order as by PostgreSQL."""
    conn.execute("CREATE TABLE t (id int, n int, note text STORAGE PLAIN)")
    conn.execute("INSERT INTO t SELECT i, hashint4(i) % 1000, i::text FROM generate_series(1, 200000) i")
    run_script(conn, "CREATE INDEX t_id ON t (id); CREATE INDEX t_n ON t (n DESC, id); DELETE FROM t WHERE id % 3 = 0")
    conn.execute("UPDATE t SET n = NULL WHERE id % 7 = 0")
    rows = content(conn, "t")
    said = messages_to(conn)
    conn.execute(f"SET maintenance_work_mem = '{memory}'; SET cyclone.debug_btree_parts = {parts}")
    conn.execute("VACUUM (FULL, VERBOSE, PARALLEL 1) t")
    assert builds(said) == (2, 0)
    assert f"{collected} of them by a shared pass" in said[-1]
    assert content(conn, "t") == rows
    checks.assert_clean(conn, "t")


def test_a_large_btree_is_divided(cluster, db, conn):
    """Without being told to, by as many as there are, if it is known how many entries it has; one process alone divides nothing."""
    said = messages_to(conn)
    run_script(conn, "CREATE TABLE t (id int, n int); INSERT INTO t SELECT i, i % 1000 FROM generate_series(1, 400000) i")
    run_script(conn, "CREATE INDEX t_id ON t (id); DELETE FROM t WHERE id % 3 = 0")
    rows = content(conn, "t")
    for option, processes in (("", 4), (", PARALLEL 1", 2), (", PARALLEL 0", 1)):
        said.clear()
        conn.execute(f"VACUUM (FULL, VERBOSE{option}) t")
        assert builds(said) == (1, 0)
        assert f"1 at once by {processes} processes" in said[-1] and f"{int(processes > 1)} of them by a shared pass" in said[-1]
        checks.assert_clean(conn, "t")
        assert content(conn, "t") == rows

    conn.execute("SET max_parallel_workers = 2")
    said.clear()
    conn.execute("VACUUM (FULL, VERBOSE, PARALLEL 4) t")
    assert "1 at once by 3 processes" in said[-1]
    for others, expected in ((1, "1 at once by 2 processes"), (2, "1 at once by 1 processes")):
        conn.execute("DROP TABLE IF EXISTS other; CREATE TABLE other AS SELECT generate_series(1, 100000)")
        settings = {"cyclone.debug_workers": others, "max_parallel_workers": 2}
        with Parked(cluster, db, "heap-scan:any", 1 + others, f"VACUUM (PARALLEL {others}) other", settings):
            said.clear()
            conn.execute("VACUUM (FULL, VERBOSE, PARALLEL 4) t")
        assert expected in said[-1] and f"{2 - others} of them by a shared pass" in said[-1]
        checks.assert_clean(conn, "t")
        assert content(conn, "t") == rows

    conn.execute("RESET max_parallel_workers")
    conn.execute("DROP INDEX t_id; CREATE INDEX ON t ((id + 1)); CREATE INDEX ON t (id) WHERE id > 7")
    said.clear()
    conn.execute("VACUUM (FULL, VERBOSE, PARALLEL 4) t")
    assert "2 at once by" in said[-1] and "1 of them by a shared pass" in said[-1], "of a partial one it isn't known how large it is"


@pytest.mark.parametrize("workers", [0, 2])
def test_what_an_unlogged_index_is_reset_to_is_on_disk_at_once(prefix, workers):
    """Or after a loss of power recovery might find its file in the way (test/upstream/unlogged-power-cut.md). What can't be synced is no harm."""
    with create_with_template(prefix, {**CONFIG, "fsync": "on", "data_sync_retry": "on"}) as cluster:
        disk = Disk(cluster)
        cluster.start()
        with cluster.connect(TEMPLATE) as conn:
            conn.execute("CREATE UNLOGGED TABLE t (id int, n int); INSERT INTO t SELECT i, i FROM generate_series(1, 1000) i")
            conn.execute("CREATE INDEX ON t (id); CREATE INDEX ON t USING hash (n); CHECKPOINT")
            before = content(conn, "t")
            for after in range(2):
                with disk.fault(["_init"], ["sync"], "EIO", after=after):
                    with pytest.raises(psycopg.errors.IoError, match="could not fsync file .*_init"):
                        conn.execute(f"VACUUM (FULL, PARALLEL {workers}) t")
                assert content(conn, "t") == before
                checks.assert_clean(conn, "t")
