"""Buckets of a hash index that split between the visits of two processes of one VACUUM, or whose split was interrupted; and LSNs."""

import re

import pytest

from conftest import TEMPLATE
from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, wait_until
from cyclone_lab.postgres import as_server_user, run_program

SETTINGS = {"min_parallel_index_scan_size": 0, "min_parallel_table_scan_size": 0}
PUT_OFF = 'debug point "hash-put-off" reached'
META = "SELECT maxbucket, lowmask FROM hash_metapage_info(get_raw_page('t_key', 0))"
# in the special space at the end of a page: previous and next block, bucket, and then these flags
FLAGS = slice(8192 - 4, 8192 - 2)
BEING_POPULATED, BEING_SPLIT, NEEDS_SPLIT_CLEANUP = 1 << 4, 1 << 5, 1 << 6


def make_table(conn) -> None:
    """Make a table whose index has buckets of 40 rows, so that they split often, and all in their primary pages."""
    conn.execute("CREATE TABLE t (key int, note text) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, 'old' FROM generate_series(1, 5000) i")
    conn.execute("CREATE INDEX t_key ON t USING hash (key) WITH (fillfactor = 10)")
    assert conn.execute(META).fetchone()[0] > 100


def next_to_split(conn) -> int:
    """Return the bucket that the next split is of."""
    maxbucket, lowmask = conn.execute(META).fetchone()
    return (maxbucket + 1) & lowmask if maxbucket + 1 <= 2 * lowmask + 1 else 0


def insert_until_next_is(conn, buckets: range) -> None:
    """Insert rows until a bucket among these is the one that splits next."""
    [(key,)] = conn.execute("SELECT max(key) + 1 FROM t")
    while next_to_split(conn) not in buckets:
        conn.execute("INSERT INTO t SELECT i, 'old' FROM generate_series(%s::int, %s) i", (key, key + 9))
        key += 10


def assert_all_dead_entries_are_gone(conn) -> None:
    checks.assert_vacuumed(conn)
    assert checks.index_scan_errors(conn, "t") == []


def assert_entries_are_counted(conn) -> None:
    """In the metapage, by which the server decides when to split a bucket."""
    [(count, rows)] = conn.execute("SELECT ntuples, (SELECT count(*) FROM t) FROM hash_metapage_info(get_raw_page('t_key', 0))")
    assert count == rows


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.once), pytest.param(1, marks=pytest.mark.once), 2])
def test_buckets_that_are_added_while_all_stand_still_are_visited(cluster, conn, db, workers):
    make_table(conn)
    insert_until_next_is(conn, range(30, 50))  # beyond those that processes have pinned when they stand still
    [(before, _)] = conn.execute(META)
    conn.execute("DELETE FROM t WHERE key % 4 = 0")
    statement = f"VACUUM (INDEX_CLEANUP on, PARALLEL {workers}) t"
    with Parked(cluster, db, "hash-bucket:any", workers + 1, statement, SETTINGS) as vacuum:
        conn.execute("INSERT INTO t SELECT i, 'new' FROM generate_series(1000001, 1001200) i")
        [(after, _)] = conn.execute(META)
        vacuum.finish()
    assert after >= before + 10
    assert_all_dead_entries_are_gone(conn)
    assert_entries_are_counted(conn)


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.once), 2])
def test_each_bucket_is_visited_once_by_whoever_comes_to_it(conn, workers):
    make_table(conn)
    conn.execute("INSERT INTO t SELECT 42, 'many' FROM generate_series(1, 3000)")  # a chain of overflow pages
    conn.execute("DELETE FROM t WHERE key % 4 = 0 OR note = 'many' AND ctid::text ~ '[137].$'")
    conn.execute("SET min_parallel_index_scan_size = 0")
    conn.execute(f"VACUUM (INDEX_CLEANUP on, PARALLEL {workers}) t")
    assert_all_dead_entries_are_gone(conn)
    assert_entries_are_counted(conn)


def block_of(conn, bucket: int) -> int:
    """Return the block of a bucket's primary page."""
    [(block,)] = conn.execute(
        """
        SELECT block
        FROM (SELECT block, get_raw_page('t_key', block) AS page
              FROM generate_series(1, pg_relation_size('t_key') / 8192 - 1) block OFFSET 0) pages,
             LATERAL (SELECT hash_page_type(page) AS type OFFSET 0) types,
             LATERAL (SELECT hasho_bucket FROM hash_page_stats(page)) stats
        WHERE type = 'bucket' AND hasho_bucket = %s
        """,
        (bucket,),
    )
    return block


def with_flags(page: bytes, add: int, remove: int = 0) -> bytearray:
    page = bytearray(page)
    flags = int.from_bytes(page[FLAGS], "little")
    page[FLAGS] = (flags & ~remove | add).to_bytes(2, "little")
    return page


def without_items(page: bytearray) -> bytearray:
    """Return a page as it was before the first item came in."""
    page[12:14] = (24).to_bytes(2, "little")  # pd_lower
    page[14:16] = page[16:18]  # pd_upper is pd_special
    return page


@pytest.fixture
def interrupted(new_cluster):
    """A server with a table in whose index the split of a bucket has just begun when the session that did it failed; with that
    bucket, a low one. The next insertion into it takes up the split again."""
    cluster = new_cluster(**SETTINGS)
    with cluster.connect(TEMPLATE) as conn:
        make_table(conn)
        insert_until_next_is(conn, range(6, 8))
        old = next_to_split(conn)
        (maxbucket, lowmask) = conn.execute(META).fetchone()
        old_block = block_of(conn, old)
        [(before,)] = conn.execute("SELECT get_raw_page('t_key', %s)", (old_block,))
        # without those of the bucket itself
        keys = conn.execute(
            "SELECT i FROM generate_series(100000, 101000) i WHERE (hashint4(i)::bigint & 4294967295) & %s <> %s",
            (lowmask, old),
        ).fetchall()
        while conn.execute(META).fetchone()[0] == maxbucket:
            conn.execute("INSERT INTO t VALUES (%s, 'old')", keys.pop())
        new_block = block_of(conn, maxbucket + 1)
        [(after, new)] = conn.execute("SELECT get_raw_page('t_key', %s), get_raw_page('t_key', %s)", (old_block, new_block))
        [(path,)] = conn.execute("SELECT pg_relation_filepath('t_key')")
    assert before[-12:-8] == new[-12:-8] == b"\xff\xff\xff\xff"  # no overflow pages
    before = with_flags(before, BEING_SPLIT, NEEDS_SPLIT_CLEANUP)
    before[-16:-12] = after[-16:-12]  # the number of buckets when it was split
    pages = {old_block: before, new_block: without_items(with_flags(new, BEING_POPULATED))}
    cluster.stop()
    if not re.search(r"checksum version: +0\b", run_program(cluster.prefix, "pg_controldata", "-D", cluster.data).stdout):
        run_program(cluster.prefix, "pg_checksums", "--disable", "--no-sync", "-D", cluster.data, **as_server_user())
    with open(cluster.data / path, "r+b") as file:
        for block, page in pages.items():
            file.seek(block * 8192)
            file.write(page)
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        assert checks.index_scan_errors(conn, "t") == []
        conn.execute("DELETE FROM t WHERE key % 4 = 0")
        yield cluster, conn, old


NEW_KEYS = "SELECT key FROM generate_series(200000, 300000) key"


def key_in(conn, bucket: int, keys: str) -> int:
    """Return one of the keys whose entry belongs into this bucket."""
    maxbucket, lowmask = conn.execute(META).fetchone()
    for key, hashed in conn.execute(f"SELECT key, hashint4(key)::bigint & 4294967295 FROM ({keys}) keys"):
        found = hashed & (2 * lowmask + 1)
        if (found if found <= maxbucket else hashed & lowmask) == bucket:
            return key
    raise AssertionError("there is no such key")


def flags_of(conn, block: int) -> int:
    [(flags,)] = conn.execute("SELECT hasho_flag FROM hash_page_stats(get_raw_page('t_key', %s))", (block,))
    return flags


@pytest.mark.once
@pytest.mark.parametrize("taken_up", [True, False])
def test_a_split_that_was_interrupted_brings_no_dead_entries_to_a_bucket_already_visited(interrupted, taken_up):
    """One process waits before the old bucket, for a reader, and the other has passed all the rest, when an insertion goes
    on with the split."""
    cluster, conn, old = interrupted
    (maxbucket, _) = conn.execute(META).fetchone()
    new_block = block_of(conn, maxbucket)
    settings = {**SETTINGS, "cyclone.debug_point": "hash-put-off:any:notice"}
    with cluster.connect(TEMPLATE) as reader:
        # the member that has the first buckets has the old one before it
        reader.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; BEGIN")
        reader.execute(f"DECLARE c CURSOR FOR SELECT * FROM t WHERE key = {key_in(conn, 1, 'SELECT key FROM t')}")
        assert len(reader.execute("FETCH c").fetchall()) == 1
        vacuum = Background(cluster, TEMPLATE, "VACUUM (INDEX_CLEANUP on, PARALLEL 1) t", settings)
        waits = f"SELECT wait_event FROM pg_stat_activity WHERE {vacuum.pid} IN (pid, leader_pid) ORDER BY 1"
        expected = [[(event,), ("CyclonePhaseEnd",)] for event in ("BufferCleanup", "BufferPin")]
        wait_until(lambda: conn.execute(waits).fetchall() in expected, "one process's wait, and the other's end of the phase")
        assert flags_of(conn, new_block) & BEING_POPULATED
        if taken_up:
            conn.execute("INSERT INTO t VALUES (%s, 'new')", (key_in(conn, old, NEW_KEYS),))
            assert not flags_of(conn, new_block) & BEING_POPULATED
        reader.execute("ROLLBACK")
        vacuum.finish()
    assert any(PUT_OFF in message for message in vacuum.messages)
    assert_all_dead_entries_are_gone(conn)
    conn.execute("INSERT INTO t VALUES (%s, 'newer')", (key_in(conn, old, NEW_KEYS),))
    assert_all_dead_entries_are_gone(conn)


@pytest.mark.once
@pytest.mark.parametrize("workers", [0, 2])
def test_a_bucket_whose_split_was_interrupted_is_cleaned_and_counted_once(interrupted, workers):
    cluster, conn, _ = interrupted
    conn.execute(f"VACUUM (INDEX_CLEANUP on, PARALLEL {workers}) t")
    assert_all_dead_entries_are_gone(conn)
    # what the old bucket still has for both is counted there, and the new one is empty
    [(count, rows)] = conn.execute("SELECT reltuples, (SELECT count(*) FROM t) FROM pg_class WHERE relname = 't_key'")
    assert count == rows


@pytest.mark.parametrize("workers", [0, 2])
def test_pages_of_an_unlogged_hash_index_get_an_lsn_where_core_gives_them_one(conn, workers):
    """Core does since 19."""
    changed = []
    for name, settings in (("ours", "on"), ("cores", "off")):
        conn.execute(f"CREATE UNLOGGED TABLE {name} (key int) WITH (autovacuum_enabled = off)")
        conn.execute(f"INSERT INTO {name} SELECT generate_series(1, 5000)")
        conn.execute(f"CREATE INDEX {name}_key ON {name} USING hash (key)")
        conn.execute(f"INSERT INTO {name} SELECT generate_series(5001, 9000)")  # some buckets are split
        conn.execute(f"DELETE FROM {name} WHERE key % 500 = 0 OR key = 7")
        lsns = f"""
            SELECT block, lsn
            FROM generate_series(0, pg_relation_size('{name}_key') / 8192 - 1) block, page_header(get_raw_page('{name}_key', block))
        """
        before = conn.execute(lsns).fetchall()
        conn.execute(f"SET cyclone.enabled = {settings}")
        conn.execute("SET min_parallel_index_scan_size = 0; SET min_parallel_table_scan_size = 0")
        conn.execute(f"VACUUM (INDEX_CLEANUP on, PARALLEL {workers}) {name}")
        conn.execute("RESET cyclone.enabled")
        checks.assert_clean(conn, name)
        changed.append({block for block, _ in set(conn.execute(lsns).fetchall()) - set(before)})
    assert changed[0] == changed[1]
    assert len(changed[0]) > 10 or conn.info.server_version < 190000
