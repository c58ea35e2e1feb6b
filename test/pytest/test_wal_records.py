"""How many WAL records VACUUM writes about each page of a table: as many as PostgreSQL's own VACUUM, which since 19 logs a page's bits in
the visibility map along with what is done to the page.
"""

import struct

import pytest

from cyclone_lab import checks

EVERY_VERSION = "WAL differs"

WIDE = "rpad(i::text, 500, '.')"  # some 15 rows a page
# options of VACUUM, and how many records there are about a page since 19
CASES = {
    "dead rows": ("CREATE TABLE {t} (id int, note text); {fill}; DELETE FROM {t} WHERE id % 3 = 0", "", 1),
    "rows to freeze": ("CREATE TABLE {t} (id int, note text); {fill}; UPDATE {t} SET id = 0 WHERE id < 0", "FREEZE", 1),
    "dead rows, and others to freeze": ("CREATE TABLE {t} (id int, note text); {fill}; DELETE FROM {t} WHERE id % 3 = 0", "FREEZE", 1),
    "nothing but bits to set": ("CREATE TABLE {t} (id int, note text); {fill}; UPDATE {t} SET id = 0 WHERE id < 0", "", 1),
    "all rows dead": ("CREATE TABLE {t} (id int, note text); {fill}; DELETE FROM {t}", "TRUNCATE off", 1),
    "no hints": ("CREATE TABLE {t} (id int, note text); {fill}", "", 1),
    "updated on the page": (
        "CREATE TABLE {t} (id int, note text) WITH (fillfactor = 50); {fill}; UPDATE {t} SET note = note WHERE id % 5 = 0",
        "",
        1,
    ),
    # one each when they become dead items and when these are freed
    "dead rows in an index": ("CREATE TABLE {t} (id int PRIMARY KEY, note text); {fill}; DELETE FROM {t} WHERE id % 3 = 0", "", 2),
    "dead rows in an index, and others to freeze": (
        "CREATE TABLE {t} (id int PRIMARY KEY, note text); {fill}; DELETE FROM {t} WHERE id % 3 = 0",
        "FREEZE",
        2,
    ),
    "dead rows left in an index": (
        "CREATE TABLE {t} (id int PRIMARY KEY, note text); {fill}; DELETE FROM {t} WHERE id % 3 = 0",
        "INDEX_CLEANUP off",
        1,
    ),
}
FILL = f"INSERT INTO {{t}} SELECT i, {WIDE} FROM generate_series(1, 3000) i"


@pytest.fixture
def logged(new_cluster):
    """A connection to a server in whose WAL nothing comes between; it has full pages in WAL of before all tables are made."""
    own = new_cluster(checkpoint_timeout="1h", max_wal_size="4GB", bgwriter_lru_maxpages=0)
    own.sql("CREATE DATABASE logged TEMPLATE cyclone_template")
    with own.connect("logged") as conn:
        conn.execute("CREATE EXTENSION pg_walinspect")
        conn.execute("CREATE EXTENSION IF NOT EXISTS pageinspect")
        yield own, conn


def records(conn, table: str, options: str, enabled: bool) -> tuple[dict[int, int], int]:
    """VACUUM a table: how many records there are about each of its pages, and how many about its map alone."""
    conn.execute(f"SET cyclone.enabled = {enabled}")
    [(start,)] = conn.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
    conn.execute(f"VACUUM ({options or 'VERBOSE off'}) {table}")
    [(end,)] = conn.execute("SELECT pg_current_wal_flush_lsn() FROM pg_switch_wal()").fetchall()
    rows = conn.execute(
        "SELECT relforknumber, relblocknumber, start_lsn, resource_manager || ' ' || record_type"
        " FROM pg_get_wal_block_info(%s, %s, false) WHERE relfilenode = pg_relation_filenode(%s)",
        (start, end, table),
    ).fetchall()
    about_pages: dict[int, set] = {}
    for fork, block, lsn, _ in rows:
        if fork == 0:
            about_pages.setdefault(block, set()).add(lsn)
    of_pages = set().union(*about_pages.values())
    map_alone = {lsn for fork, _, lsn, _ in rows if fork == 2} - of_pages
    return {block: len(lsns) for block, lsns in sorted(about_pages.items())}, len(map_alone)


def assert_as_core(pg_major, ours, core, expected: int) -> None:
    assert ours == core
    by_page, map_alone = ours
    assert len(by_page) > 5 and map_alone == 0
    if pg_major >= 19:
        assert set(by_page.values()) == {expected}, by_page


@pytest.mark.parametrize("workers", [0, 2])
def test_about_a_page_there_are_as_many_records_as_of_core(logged, pg_major, workers):
    own, conn = logged
    conn.execute(f"SET max_parallel_maintenance_workers = {workers}")
    conn.execute("SET min_parallel_table_scan_size = 0")
    for case, (setup, options, expected) in CASES.items():
        seen = {}
        for who in ("ours", "core"):
            table = f'"{case} {who}"'
            for statement in setup.split("; "):
                conn.execute(statement.format(t=table, fill=FILL.format(t=table)))
            seen[who] = records(conn, table, options, who == "ours")
        assert (case, seen["ours"]) == (case, seen["core"])
        assert_as_core(pg_major, seen["ours"], seen["core"], expected)


def empty_page(lsn: int, checksum: int = 0) -> bytes:
    """A page that was initialized, and to which nothing was added."""
    header = struct.pack("<IIHHHHHHI", lsn >> 32, lsn & 0xFFFFFFFF, checksum, 0, 24, 8192, 8192, 8192 | 4, 0)
    return header.ljust(8192, b"\0")


@pytest.mark.parametrize("was_logged", [True, False])
def test_about_an_empty_page_too(logged, pg_major, was_logged):
    """Before 19 a page that nobody has logged is logged first."""
    own, conn = logged
    files = {}
    lsn = 0
    if was_logged:
        [(lsn,)] = conn.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetchall()
    for who in ("ours", "core"):
        conn.execute(f"CREATE TABLE {who} (id int)")
        [(path,)] = conn.execute("SELECT pg_relation_filepath(%s)", (who,)).fetchall()
        sums = [conn.execute("SELECT page_checksum(%s::bytea, %s)", (empty_page(lsn), block)).fetchone()[0] for block in range(10)]
        files[path] = b"".join(empty_page(lsn, checksum & 0xFFFF) for checksum in sums)
    conn.close()
    own.stop()
    for path, content in files.items():
        with open(own.data / path, "r+b") as file:
            file.write(content)
    own.start()
    with own.connect("logged") as conn:
        seen = {who: records(conn, who, "TRUNCATE off", who == "ours") for who in ("ours", "core")}
        assert_as_core(pg_major, seen["ours"], seen["core"], 1)
        for who in ("ours", "core"):
            [(visible, frozen)] = conn.execute("SELECT * FROM pg_visibility_map_summary(%s)", (who,)).fetchall()
            assert (visible, frozen) == (10, 10)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_session_freezes_its_first_page_as_any_other(logged, workers):
    """Pages that are logged in full anyway are frozen, also the first that a process changes."""
    own, conn = logged
    for statement in CASES["dead rows"][0].format(t="t", fill=FILL.format(t="t")).split("; "):
        conn.execute(statement)
    conn.execute("SELECT count(*) FROM t")
    conn.execute("CHECKPOINT")
    with own.connect("logged") as fresh:
        fresh.execute("SET min_parallel_table_scan_size = 0")
        fresh.execute(f"VACUUM (PARALLEL {workers}) t")
    [(pages, visible, frozen)] = conn.execute("SELECT pg_relation_size('t') / 8192, * FROM pg_visibility_map_summary('t')").fetchall()
    assert (visible, frozen) == (pages, pages)
    checks.assert_clean(conn, "t")


def room_and_lsn(conn, relation):
    """Return where the free space of each page is, and the page's LSN."""
    query = "SELECT b, lower, upper, lsn::text FROM generate_series(0, pg_relation_size(%s) / 8192 - 1) b, page_header(get_raw_page(%s, b::int))"
    return {block: ((lower, upper), lsn) for block, lower, upper, lsn in conn.execute(query, [relation, relation])}


@pytest.mark.once
@pytest.mark.parametrize("statement", ["VACUUM (INDEX_CLEANUP on, TRUNCATE off, PARALLEL 0)", "VACUUM (FULL INPLACE)"])
def test_changed_pages_have_the_lsn_of_a_new_record(conn, statement):
    """Or the page may be on disk before the record is, and after a crash another change is replayed on it."""
    conn.execute("CREATE TABLE t (id int, list int[], place point, box box) WITH (autovacuum_enabled = off)")
    conn.execute(
        "INSERT INTO t SELECT i, ARRAY[i % 4, 100 + i % 50, i], point(i % 61, i), box(point(i, i % 13), point(i + 1, i % 13)) FROM generate_series(1, 20000) i"
    )
    for number, index in enumerate(["btree (id)", "btree ((id % 7))", "hash (id)", "gist (box)", "spgist (place)", "gin (list)"]):
        conn.execute(f"CREATE INDEX i{number} ON t USING {index}")
    conn.execute("DELETE FROM t WHERE id % 3 = 0 OR id BETWEEN 1000 AND 4000")
    relations = ["t", *(f"i{number}" for number in range(6))]
    before = {relation: room_and_lsn(conn, relation) for relation in relations}
    [(start,)] = conn.execute("SELECT pg_current_wal_insert_lsn()::text")
    conn.execute(f"{statement} t")
    for relation in relations:
        changed = [
            (block, lsn)
            for block, (room, lsn) in room_and_lsn(conn, relation).items()
            if block in before[relation] and before[relation][block][0] != room
        ]
        assert changed, relation
        old = conn.execute("SELECT l FROM unnest(%s::text[]) l WHERE l::pg_lsn < %s::pg_lsn", [[lsn for _, lsn in changed], start]).fetchall()
        assert old == [], relation
    checks.assert_clean(conn, "t")
