"""GiST and SP-GiST indexes that several processes vacuum: on copies of one server their pages are, byte for byte, as PostgreSQL's
VACUUM leaves them; and what moves between the visits of two processes is found."""

import re

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, create_with_template
from cyclone_lab import checks
from cyclone_lab.background import Parked, messages_to
from cyclone_lab.cluster import Cluster

DB = "trees"
SETTINGS = {"min_parallel_index_scan_size": 0, "min_parallel_table_scan_size": 0}
INDEXES = {
    "gist_p": "gist (p)",
    "gist_b": "gist (b)",
    "gist_r": "gist (r, p)",
    "gist_i": "gist (i inet_ops) INCLUDE (id)",
    "spgist_p": "spgist (p)",
    "spgist_kd": "spgist (p kd_point_ops)",
    "spgist_b": "spgist (b)",
    "spgist_r": "spgist (r)",
    "spgist_t": "spgist (t) INCLUDE (id)",
}
ROWS = """
    SELECT k, CASE WHEN k % 50 > 0 THEN point(k, k * 7919 % 1000) END, box(point(k, k % 100), point(k + k % 30, k % 100 + 5)),
           int4range(k, k + k % 50), '10.0.0.0'::inet + k, CASE WHEN k % 49 > 0 THEN md5((k / 3)::text) END
    FROM generate_series({}, {}) k
"""
TABLES = {
    # name: (persistence, which rows are deleted)
    "scattered": ("", "k % 5 = 0"),
    "stretches": ("", "k % 2000 < 1250"),
    "everything": ("", "true"),
    "nothing": ("", "false"),
    "unlogged": ("UNLOGGED", "k % 1500 < 500 OR k % 7 = 0"),
}


def make_tables(conn) -> None:
    """Make the tables: a part of their rows came when the indexes were there, so there are redirects, and placeholders."""
    for name, (persistence, deleted) in TABLES.items():
        conn.execute(f"CREATE {persistence} TABLE {name} (id int, p point, b box, r int4range, i inet, t text) WITH (fillfactor = 25)")
        conn.execute(f"INSERT INTO {name} {ROWS.format(1, 2000)}")
        for index, definition in INDEXES.items():
            conn.execute(f"CREATE INDEX {name}_{index} ON {name} USING {definition}")
        conn.execute(f"INSERT INTO {name} {ROWS.format(2001, 6000)}")
        # of VACUUMs before: free pages, and dead tuples in the place of chains
        conn.execute(f"DELETE FROM {name} WHERE id BETWEEN 3000 AND 3500")
        conn.execute(f"VACUUM (INDEX_CLEANUP on) {name}")
        conn.execute(f"INSERT INTO {name} {ROWS.format(3250, 3350)}")
        conn.execute(f"DELETE FROM {name} WHERE {deleted.replace('k', 'id')}")


@pytest.fixture(scope="module")
def base(prefix):
    """A stopped server with the tables."""
    config = {**CONFIG, "checkpoint_timeout": "1h", "max_wal_size": "10GB"}
    with create_with_template(prefix, config) as cluster:
        cluster.start()
        cluster.sql(f"CREATE DATABASE {DB} TEMPLATE {TEMPLATE}")
        with cluster.connect(DB) as conn:
            conn.execute("SET cyclone.enabled = off")
            make_tables(conn)
        cluster.stop()
        yield cluster


def masked(page: bytes) -> bytes:
    """Return a page without what may differ: its LSN, its checksum, and the room between line pointers and tuples."""
    lower, upper = (int.from_bytes(page[at : at + 2], "little") for at in (12, 14))
    return page[10:lower] + page[upper:]


def index_state(conn, index: str) -> dict:
    """Return all pages of an index, but for SP-GiST's first one, and what the catalog and the free space map say."""
    rows = conn.execute(
        "SELECT get_raw_page(%(index)s::text, block) FROM generate_series(0, pg_relation_size(%(index)s::regclass) / 8192 - 1) block"
        " ORDER BY block",
        {"index": index},
    )
    pages = [masked(page) for (page,) in rows]
    [(space,)] = conn.execute("SELECT array_agg(avail ORDER BY blkno) FROM pg_freespace(%s::regclass)", (index,))
    [catalog] = conn.execute("SELECT relpages, reltuples FROM pg_class WHERE oid = %s::regclass", (index,))
    entries = checks.index_entries(conn, index, "spgist" if "spgist" in index else "gist")
    return {"pages": pages[1:] if "spgist" in index else pages, "space": space, "catalog": catalog, "entries": entries}


def vacuum_copy(base: Cluster, workers: int, settings: dict) -> tuple[dict, dict, Cluster]:
    """VACUUM all tables of a copy; return the state of each index, how many rounds each table took, and the copy."""
    cluster = base.copy().start()
    states, rounds = {}, {}
    with cluster.connect(DB) as conn:
        said = messages_to(conn)
        for name, value in {**SETTINGS, **settings}.items():
            conn.execute(f"SET {name} = {value}")
        for table in TABLES:
            said.clear()
            conn.execute(f"VACUUM (VERBOSE, INDEX_CLEANUP on, PARALLEL {workers}) {table}")
            rounds[table] = int(re.search(r"index scans: (\d+)", "\n".join(said))[1])
            for index in INDEXES:
                states[f"{table}_{index}"] = index_state(conn, f"{table}_{index}")
    return states, rounds, cluster


@pytest.fixture(scope="module")
def core_states(base):
    """What PostgreSQL's VACUUM leaves."""
    states, _, cluster = vacuum_copy(base, 0, {"cyclone.enabled": "off"})
    cluster.remove()
    return states


def differences(ours: dict, core: dict, names: tuple[str, ...]) -> list[str]:
    """Return which indexes differ in which of the named respects, and where."""
    found = []
    for index, expected in core.items():
        for name in names:
            mine, theirs = ours[index][name], expected[name]
            if mine != theirs:
                where = [i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b]
                found.append(f"{index}: {name}: {len(mine)} and core's {len(theirs)}, other ones at {where[:10]}")
    return found


def assert_sound(conn) -> None:
    """Check all tables, fill the room of the deleted rows with others, and look for deleted ones by each index alone."""
    conn.execute("SET enable_seqscan = off")
    for table in TABLES:
        checks.assert_clean(conn, table)
        conn.execute(f"INSERT INTO {table} SELECT -id, point(-1e6, id), box(point(-1e6, id), point(-1e6, id)), int4range(-9, -8), '::1', 'new'"
                     f" FROM generate_series(1, 6000) id")  # fmt: skip
        for condition in ("p <@ box '(-1,-1),(2e4,2e4)'", "b && box '(-1,-1),(2e4,2e4)'", "r && int4range(0, 20000)",
                          "t >= '0' COLLATE \"C\" AND t < 'g' COLLATE \"C\""):  # fmt: skip
            assert conn.execute(f"SELECT count(*) FROM {table} WHERE {condition} AND id < 0").fetchone() == (0,), condition


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.full), 3])
def test_indexes_are_left_byte_for_byte_as_core_leaves_them(base, core_states, workers):
    ours, rounds, cluster = vacuum_copy(base, workers, {})
    with cluster, cluster.connect(DB) as conn:
        assert differences(ours, core_states, ("entries", "space", "catalog", "pages")) == []
        assert rounds["scattered"] == 1 and rounds["nothing"] == 0
        assert_sound(conn)


@pytest.mark.parametrize("workers", [0, 2])
def test_several_rounds_leave_the_entries_that_one_leaves(conn, workers):
    said = messages_to(conn)
    entries = {}
    conn.execute("; ".join(f"SET {name} = {value}" for name, value in SETTINGS.items()))
    for who, memory, enabled in (("ours", "64kB", "on"), ("core", "64MB", "off")):
        # few rows on each page, so that dead ones take up more memory
        conn.execute(f"CREATE TABLE {who} (id int, p point) WITH (fillfactor = 10)")
        conn.execute(f"INSERT INTO {who} SELECT i, point(i % 300, i / 300) FROM generate_series(1, {80000 + 40000 * workers}) i")
        for method in ("gist", "spgist"):
            conn.execute(f"CREATE INDEX {who}_{method} ON {who} USING {method} (p)")
        conn.execute(f"DELETE FROM {who} WHERE id % 2 = 0 OR id < 10000")
        conn.execute(f"SET maintenance_work_mem = '{memory}'; SET cyclone.enabled = {enabled}")
        said.clear()
        conn.execute(f"VACUUM (VERBOSE, INDEX_CLEANUP on, PARALLEL {workers}) {who}")
        rounds = int(re.search(r"index scans: (\d+)", "\n".join(said))[1])
        assert rounds > 1 if who == "ours" else rounds == 1
        entries[who] = {method: checks.index_entries(conn, f"{who}_{method}", method) for method in ("gist", "spgist")}
        checks.assert_clean(conn, who)
    assert entries["ours"] == entries["core"]


def cleaned_copy(base: Cluster, workers: int, settings: dict) -> tuple[dict, Cluster]:
    """VACUUM all tables of a copy twice, the second time without dead rows; return the state of each index, and the copy."""
    cluster = base.copy().start()
    with cluster.connect(DB) as conn:
        for name, value in {**SETTINGS, **settings}.items():
            conn.execute(f"SET {name} = {value}")
        for table in TABLES:
            conn.execute(f"VACUUM (INDEX_CLEANUP on) {table}")
            conn.execute("SELECT txid_current()")  # so that pages deleted now are free for the next one
            conn.execute(f"VACUUM (INDEX_CLEANUP on, DISABLE_PAGE_SKIPPING, PARALLEL {workers}) {table}")
        return {f"{t}_{i}": index_state(conn, f"{t}_{i}") for t in TABLES for i in INDEXES}, cluster


@pytest.fixture(scope="module")
def core_cleaned(base):
    """What PostgreSQL leaves without dead rows."""
    states, cluster = cleaned_copy(base, 0, {"cyclone.enabled": "off"})
    cluster.remove()
    return states


@pytest.mark.parametrize("workers", [0, 2])
def test_cleanup_alone_counts_and_frees_what_core_does(base, core_cleaned, workers):
    """Without dead rows no entry goes: the indexes are visited for their count, free pages and old redirects only."""
    ours, cluster = cleaned_copy(base, workers, {})
    with cluster, cluster.connect(DB) as conn:
        assert_sound(conn)
    assert differences(ours, core_cleaned, ("entries", "space", "catalog", "pages")) == []
    assert any(sum(state["space"]) > 0 for state in core_cleaned.values())


# What moves while the team is at it

POINTS = {
    # access method: (debug points of a page of a range, and of one that is visited for what moved)
    "gist": ("gist-page", "gist-chain"),
    "spgist": ("spgist-page", "spgist-pending"),
}


def moved(messages: list[str], method: str) -> int:
    """How many pages were visited for what moved."""
    return sum(f'debug point "{POINTS[method][1]}" reached' in message for message in messages)


def assert_all_dead_entries_are_gone(conn) -> None:
    state = checks.assert_vacuumed(conn)
    [(by_index,)] = conn.execute("SELECT reltuples FROM pg_class WHERE relname = 't_p'")
    assert by_index <= state["rows"]


@pytest.mark.parametrize("method", POINTS)
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.full), 3])
def test_entries_that_moved_before_their_page_was_visited_are_found(cluster, conn, db, method, workers):
    """All processes stand at their first page while the index is filled with as much again, then others go on with it."""
    page, chain = POINTS[method]
    conn.execute("CREATE TABLE t (id int, p point) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, point(i % 200, i / 200) FROM generate_series(1, 40000) i")
    conn.execute(f"CREATE INDEX t_p ON t USING {method} (p) WITH (fillfactor = 100)")
    conn.execute("DELETE FROM t WHERE id % 4 = 0")
    settings = {**SETTINGS, "cyclone.debug_point": f"{page}:any:wait {chain}:any:notice"}
    statement = f"VACUUM (INDEX_CLEANUP on, PARALLEL {workers}) t"
    insert = "INSERT INTO t SELECT -i, point(i % 200 + random(), i / 200 + random()) FROM generate_series(1, 40000) i"
    with Parked(cluster, db, f"{page}:any", workers + 1, statement, settings) as vacuum:
        conn.execute(insert)
        vacuum.release()
        for _ in range(20):
            conn.execute("INSERT INTO t SELECT -1, point(random() * 200, random() * 200) FROM generate_series(1, 300) i")
        vacuum.finish()
    assert moved(vacuum.messages, method) > 50
    conn.execute("VACUUM (INDEX_CLEANUP off) t")  # for rows inserted since
    assert_all_dead_entries_are_gone(conn)


def make_room_in_front(conn, method: str, rows: int) -> int:
    """Make an index whose first pages have room, and dead entries in all others; return the first block behind those."""
    conn.execute("CREATE TABLE t (id int, p point) WITH (autovacuum_enabled = off)")
    conn.execute(f"INSERT INTO t SELECT i, point(i, i % 10) FROM generate_series(1, {2 * rows}) i")
    conn.execute(f"CREATE INDEX t_p ON t USING {method} (p) WITH (fillfactor = 100)")
    conn.execute(f"DELETE FROM t WHERE id <= {rows}")
    for _ in range(2):  # the second puts the deleted pages into the free space map, as no snapshot can see them
        conn.execute("VACUUM (INDEX_CLEANUP on, PARALLEL 0) t")
        conn.execute("SELECT txid_current()")
    conn.execute("DELETE FROM t WHERE id % 4 = 0")
    if method == "gist":
        free = [block for (block,) in conn.execute("SELECT blkno FROM pg_freespace('t_p') WHERE avail > 0")]
        assert len(free) > 5
        return max(free) + 1
    return conn.execute("SELECT pg_relation_size('t_p') / 8192").fetchone()[0] * 2 // 3


@pytest.mark.parametrize("method", POINTS)
@pytest.mark.parametrize("first", ["visited", "not visited"])
def test_entries_that_move_to_pages_that_were_passed_already_are_found(cluster, conn, db, method, first):
    """Pages at the front take what moves from those behind."""
    page, chain = POINTS[method]
    behind = make_room_in_front(conn, method, 6000)
    points = f"{chain}:any:notice {page}:any"
    with Parked(cluster, db, points, 1, "VACUUM (INDEX_CLEANUP on, PARALLEL 0) t", SETTINGS) as vacuum:
        for _ in range(behind if first == "visited" else 0):
            vacuum.step()
        before = set(checks.index_entries(conn, "t_p", method))
        with cluster.connect(db) as other:
            other.execute("INSERT INTO t SELECT -i, point(6000 + i % 6000, i % 10) FROM generate_series(1, 8000) i")
        after = set(checks.index_entries(conn, "t_p", method))
        home = {tid: block for block, tid in before}
        fronted = [tid for block, tid in after if tid in home and block < min(home[tid], behind)]
        assert len(fronted) > 20, "nothing moved to the front"
        vacuum.finish()
    assert moved(vacuum.messages, method) > 0
    assert_all_dead_entries_are_gone(conn)


@pytest.mark.parametrize("method", POINTS)
def test_an_index_of_one_page_whose_root_splits_while_others_are_vacuumed(cluster, conn, db, method):
    """The root is visited before anything else is; here it splits right after that."""
    page, _ = POINTS[method]
    conn.execute("CREATE TABLE t (id int, p point, q point) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, CASE WHEN i <= 100 THEN point(i, i) END, point(i, i % 10) FROM generate_series(1, 9000) i")
    conn.execute(f"CREATE INDEX t_p ON t USING {method} (p) WHERE p IS NOT NULL")
    conn.execute(f"CREATE INDEX t_q ON t USING {method} (q)")
    conn.execute("DELETE FROM t WHERE id % 2 = 0")
    with Parked(cluster, db, f"{page}:any", 1, "VACUUM (INDEX_CLEANUP on, PARALLEL 1) t", SETTINGS) as vacuum:
        conn.execute("INSERT INTO t SELECT -i, point(i % 100, i % 100), point(i % 9000, 3) FROM generate_series(1, 3000) i")
        vacuum.finish()
    assert_all_dead_entries_are_gone(conn)


def test_redirects_are_cleaned_up_when_nobody_needs_them(cluster, conn, db):
    """Those that came about while the index was vacuumed go with the next VACUUM."""
    behind = make_room_in_front(conn, "spgist", 6000)
    redirects = """
        SELECT coalesce(sum(get_byte(page, 8186) + get_byte(page, 8187) * 256), 0)
        FROM generate_series(1, pg_relation_size('t_p') / 8192 - 1) block, get_raw_page('t_p', block) page
    """
    with Parked(cluster, db, "spgist-page:any", 1, "VACUUM (INDEX_CLEANUP on, PARALLEL 0) t", SETTINGS) as vacuum:
        for _ in range(behind):
            vacuum.step()
        conn.execute("INSERT INTO t SELECT -i, point(6000 + i % 6000, i % 10) FROM generate_series(1, 8000) i")
        vacuum.finish()
    assert conn.execute(redirects).fetchone()[0] > 0
    conn.execute("VACUUM (INDEX_CLEANUP on) t")
    assert conn.execute(redirects).fetchone() == (0,)
    assert_all_dead_entries_are_gone(conn)


@pytest.mark.parametrize("method", POINTS)
def test_a_page_that_is_damaged_is_an_error(new_cluster, method):
    cluster = new_cluster(ignore_checksum_failure="on")
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE TABLE t (id int, p point)")
        conn.execute("INSERT INTO t SELECT i, point(i, i % 10) FROM generate_series(1, 9000) i")
        conn.execute(f"CREATE INDEX t_p ON t USING {method} (p)")
        conn.execute("DELETE FROM t WHERE id % 2 = 0")
        [(path,)] = conn.execute("SELECT pg_relation_filepath('t_p')")
    cluster.stop()
    with open(cluster.data / path, "r+b") as file:
        file.seek(5 * 8192 + 8190)
        file.write(b"\x00\x01")
        if method == "gist":  # of its special space only the size is looked at
            file.seek(5 * 8192 + 16)
            file.write((8192 - 32).to_bytes(2, "little"))
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        with pytest.raises(psycopg.errors.IndexCorrupted, match='index "t_p" contains corrupted page at block 5'):
            conn.execute("VACUUM (INDEX_CLEANUP on) t")
