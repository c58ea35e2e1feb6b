"""Several processes vacuum one GIN index: its pages are as the server's own VACUUM leaves them, and no entry of a dead row is
left although pages split, and lists become trees, between the visits."""

import pytest

from conftest import every_other
from cyclone_lab import checks, gin
from cyclone_lab.background import Parked

ROWS = 12000
# With this number the posting trees of a few keys have several leaves.
MANY_ROWS = 60000
# Any posting tree of two leaves is shared out.
SHARED_OUT = {"min_parallel_index_scan_size": 0, "min_parallel_table_scan_size": 0, "cyclone.debug_max_tree_pages": 2}
# Columns of a table with rows i, its index, which rows are deleted, and how many there are
SHAPES = {
    "few keys": ("ARRAY[i % 3, i % 5] AS v", "(v)", "i % 5 = 0 OR i % 7 = 0", MANY_ROWS),
    "many keys": ("ARRAY[i, -i, i % 1000] AS v", "(v)", "i % 5 = 0", ROWS),
    "one key": ("ARRAY[0] AS v", "(v)", "i % 2 = 0", MANY_ROWS),
    "a run of rows": ("ARRAY[i % 2, i / 10] AS v", "(v)", "i BETWEEN 2000 AND 50000", MANY_ROWS),
    "runs of rows": ("ARRAY[i % 2, i / 10] AS v", "(v)", "i % 33000 > 5000", MANY_ROWS),
    "all rows": ("ARRAY[i % 2, i / 10] AS v", "(v)", "true", MANY_ROWS),
    "no rows": ("ARRAY[i % 2, i / 10] AS v", "(v)", "false", MANY_ROWS),
    "jsonb": ("""jsonb_build_object('k', i % 4, 'tags', jsonb_build_array(i % 10, md5(i::text)), 'n', i) AS v""", "(v)", "i % 5 = 0", ROWS),
    "jsonb paths": ("jsonb_build_object('k', i % 4, 'n', i) AS v", "(v jsonb_path_ops)", "i % 5 = 0", ROWS),
    "words": ("to_tsvector('simple', 'all ' || md5(i::text) || ' w' || i % 50 || ' odd' || i % 2) AS v", "(v)", "i % 5 = 0", ROWS),
    "nulls and nothing": (
        "CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN '{}' WHEN 2 THEN ARRAY[NULL, 'x'] ELSE ARRAY[md5(i::text)] END::text[] AS v",
        "(v)",
        "i % 3 = 0",
        ROWS,
    ),
    "two columns": ("ARRAY[i % 3] AS v, ARRAY[md5(i::text)] AS w", "(v, w)", "i % 5 = 0", ROWS),
    "long keys": ("ARRAY[repeat(md5(i::text), 40), 'x'] AS v", "(v)", "i % 5 = 0", ROWS),
}


def make_table(conn, name: str, shape: str, persistence: str = "", options: str = "") -> None:
    columns, index, _, rows = SHAPES[shape]
    conn.execute(
        f"CREATE {persistence} TABLE {name} WITH (autovacuum_enabled = off) AS"
        f" SELECT i, {columns} FROM generate_series(1, {rows}) i"
    )
    [(workers,)] = conn.execute("SHOW max_parallel_maintenance_workers")
    # with them, what is on which page is left to chance
    conn.execute("SET max_parallel_maintenance_workers = 0")
    conn.execute(f"CREATE INDEX {name}_v ON {name} USING gin {index} {options}")
    conn.execute(f"SET max_parallel_maintenance_workers = {workers}")


def vacuum(conn, table: str, by: str, workers: int, options: str = "INDEX_CLEANUP on") -> None:
    conn.execute(f"SET cyclone.enabled = {by == 'ours'}")
    conn.execute(f"VACUUM ({options}, PARALLEL {workers}) {table}")


def assert_no_dead_entries(conn, pg_major: int, table: str = "t") -> None:
    checks.assert_vacuumed(conn, table)
    if pg_major >= 18:
        conn.execute(f"SELECT gin_index_check('{table}_v')")


def statistics(conn, index: str) -> tuple:
    return conn.execute("SELECT relpages, reltuples FROM pg_class WHERE relname = %s", (index,)).fetchone()


@every_other("workers, shape", [0, 2], SHAPES)
def test_all_pages_are_as_the_server_leaves_them(conn, pg_major, shape, workers):
    """Twice, so that pages deleted at first are recycled or not by the same rule, and keys without rows are met."""
    for name, value in SHARED_OUT.items():
        conn.execute(f"SET {name} = {value}")
    for name in ("t", "core"):
        make_table(conn, name, shape)
    columns, _, dead, rows = SHAPES[shape]
    for again in range(3):
        for name in ("t", "core"):
            if again:
                conn.execute(f"INSERT INTO {name} SELECT i, {columns} FROM generate_series({rows + 1}, {rows + 3000}) i")
            conn.execute(f"DELETE FROM {name} WHERE {dead}" + (" OR i % 3 = 1" if again == 2 else ""))
        vacuum(conn, "t", "ours", workers)
        vacuum(conn, "core", "core", 0)
        ours, core = gin.read_pages(conn, "t_v"), gin.read_pages(conn, "core_v")
        assert len(ours) == len(core)
        if shape in ("a run of rows", "runs of rows"):
            assert any(page.flags & gin.DELETED for page in ours[1:])
        for block, pages in enumerate(zip(ours, core, strict=True)):
            assert pages[0] == pages[1], block
        assert statistics(conn, "t_v") == statistics(conn, "core_v")
        assert_no_dead_entries(conn, pg_major)


@pytest.mark.parametrize("persistence", ["UNLOGGED", "TEMP"])
def test_indexes_that_are_not_logged(conn, pg_major, persistence):
    for name in ("t", "core"):
        make_table(conn, name, "a run of rows", persistence)
        conn.execute(f"DELETE FROM {name} WHERE {SHAPES['a run of rows'][2]}")
    vacuum(conn, "t", "ours", 2)
    vacuum(conn, "core", "core", 0)
    assert checks.index_entries(conn, "t_v", "gin") == checks.index_entries(conn, "core_v", "gin")
    if persistence == "UNLOGGED":
        assert_no_dead_entries(conn, pg_major)


# What happens while all processes stand before their first page, and what it is to bring about
CHANGES = {
    "entry pages split": "INSERT INTO t SELECT i, ARRAY[i, -i, i + 50000] FROM generate_series(1, 20000) i",
    "lists become trees": "INSERT INTO t SELECT i, ARRAY[i % 50] FROM generate_series(1, 100000) i",
    "trees grow": "INSERT INTO t SELECT i, ARRAY[i % 3] FROM generate_series(1, 100000) i",
}


# A process alone does whole trees, so comes to no pieces.
PLACES = [
    ("few keys", "gin-page", 0), ("few keys", "gin-posting-page", 0), ("few keys", "gin-posting-page", 2), ("few keys", "gin-piece", 2),
    ("many keys", "gin-page", 0), ("many keys", "gin-page", 2),
]  # fmt: skip


@every_other("shape, point, workers, change", [pytest.param(*place) for place in PLACES], CHANGES)
def test_entries_that_move_meanwhile(cluster, conn, db, pg_major, change, shape, point, workers):
    make_table(conn, "t", shape, options="WITH (fastupdate = off)")
    conn.execute(f"DELETE FROM t WHERE {SHAPES[shape][2]}")
    settings = {**SHARED_OUT}
    statement = f"VACUUM (INDEX_CLEANUP on, PARALLEL {workers}) t"
    before = len(gin.read_pages(conn, "t_v"))
    with Parked(cluster, db, f"{point}:any", 1, statement, settings) as parked:
        conn.execute(CHANGES[change])
        assert len(gin.read_pages(conn, "t_v")) > before
        parked.finish()
    assert_no_dead_entries(conn, pg_major)
    conn.execute("SET enable_seqscan = off")
    for key in (0, 1, 2, 999):
        by_index = conn.execute(f"SELECT count(*) FROM t WHERE v @> ARRAY[{key}]").fetchone()
        assert by_index == conn.execute(f"SELECT count(*) FROM t WHERE {key} = ANY (v)").fetchone()


def test_large_posting_trees_are_done_by_all(cluster, conn, db, pg_major):
    """All three stand at pieces at the same time, though there is one entry page."""
    make_table(conn, "t", "few keys")
    conn.execute("DELETE FROM t WHERE i % 5 = 0")
    assert sum(not page.flags & gin.DATA for page in gin.read_pages(conn, "t_v")[1:]) == 1
    with Parked(cluster, db, "gin-piece:any", 3, "VACUUM (INDEX_CLEANUP on, PARALLEL 2) t", SHARED_OUT) as parked:
        parked.finish()
    assert_no_dead_entries(conn, pg_major)
