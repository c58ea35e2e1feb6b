"""Pages of a btree that split between the visits of two processes of one VACUUM."""

import pytest

from cyclone_lab import checks
from cyclone_lab.background import Parked

SETTINGS = {"min_parallel_index_scan_size": 0, "min_parallel_table_scan_size": 0}
CHAIN = 'debug point "btree-chain" reached'
INTERRUPTION = 'debug point "btree-duties" reached'


@pytest.fixture
def table(conn):
    """Rows with even keys, of which every fourth is dead; leaf pages are full, so that any insertion splits one."""
    conn.execute("CREATE TABLE t (key int, note text) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT 2 * i, 'old' FROM generate_series(1, 60000) i")
    conn.execute("CREATE INDEX t_key ON t (key) WITH (fillfactor = 100, deduplicate_items = off)")
    conn.execute("DELETE FROM t WHERE key % 8 = 0")
    [(pages,)] = conn.execute("SELECT pg_relation_size('t_key') / 8192")
    assert pages > 100
    return pages


def vacuum_with_splits(cluster, conn, db: str, workers: int, statements: list[str], **config) -> list[str]:
    """VACUUM, all processes parked at their first page of the index; run the statements; return what the server said."""
    points = "btree-page:any:wait btree-chain:any:notice btree-duties:any:notice"
    settings = {**SETTINGS, **config, "cyclone.debug_point": points}
    statement = f"VACUUM (INDEX_CLEANUP on, PARALLEL {workers}) t"
    with Parked(cluster, db, "btree-page:any", workers + 1, statement, settings) as vacuum:
        for other in statements:
            conn.execute(other)
        vacuum.release()
        vacuum.finish()
    return vacuum.messages


def assert_all_dead_entries_are_gone(conn):
    state = checks.table_state(conn, "t")
    assert state["dead_items"] == state["dead_tuples"] == 0
    checks.assert_clean(conn, "t")
    [(by_index,)] = conn.execute("SELECT reltuples FROM pg_class WHERE relname = 't_key'")
    assert by_index <= state["rows"]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_tuples_that_moved_right_before_their_page_was_visited_are_followed(cluster, conn, db, table, workers):
    insert = "INSERT INTO t SELECT 2 * i + 1, 'new' FROM generate_series(1, 60000) i"
    messages = vacuum_with_splits(cluster, conn, db, workers, [insert])
    assert sum(CHAIN in message for message in messages) > table / 4
    assert not any(INTERRUPTION in message for message in messages)
    assert_all_dead_entries_are_gone(conn)


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("workers", [0, 3])
def test_a_range_is_left_for_pages_that_are_due_and_taken_up_again(cluster, conn, db, table, workers, limit):
    insert = "INSERT INTO t SELECT 2 * i + 1, 'new' FROM generate_series(1, 60000) i"
    config = {"cyclone.debug_max_duties": limit}
    messages = vacuum_with_splits(cluster, conn, db, workers, [insert], **config)
    assert sum(CHAIN in message for message in messages) > table / 4
    assert sum(INTERRUPTION in message for message in messages) > 3
    assert_all_dead_entries_are_gone(conn)


@pytest.mark.parametrize("workers", [0, 2])
def test_pages_that_split_several_times_are_followed_to_the_end(cluster, conn, db, table, workers):
    inserts = [f"INSERT INTO t SELECT {key}, 'new' FROM generate_series(1, 1500)" for key in (40001, 80001, 80003, 119999)]
    messages = vacuum_with_splits(cluster, conn, db, workers, inserts * 2)
    assert sum(CHAIN in message for message in messages) > 20
    assert_all_dead_entries_are_gone(conn)


@pytest.mark.parametrize("workers", [0, 2])
def test_recycled_blocks_take_the_tuples_of_pages_not_yet_visited(cluster, conn, db, workers):
    """Blocks freed by an earlier VACUUM, low in the index, become the right halves of splits of pages that lie higher."""
    conn.execute("CREATE TABLE t (key int, note text) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT 2 * i, 'old' FROM generate_series(1, 90000) i")
    conn.execute("CREATE INDEX t_key ON t (key) WITH (fillfactor = 100, deduplicate_items = off)")
    conn.execute("DELETE FROM t WHERE key < 60000")
    for _ in range(2):  # the second puts the deleted pages into the free space map, as no snapshot can see them
        conn.execute("VACUUM (INDEX_CLEANUP on) t")
        conn.execute("SELECT txid_current()")
    [(free,)] = conn.execute("SELECT count(*) FROM pg_freespace('t_key') WHERE avail > 0")
    assert free > 50
    [(pages,)] = conn.execute("SELECT pg_relation_size('t_key')")

    conn.execute("DELETE FROM t WHERE key % 8 = 0")
    insert = "INSERT INTO t SELECT 2 * i + 1, 'new' FROM generate_series(35000, 42000) i"
    messages = vacuum_with_splits(cluster, conn, db, workers, [insert])
    assert conn.execute("SELECT pg_relation_size('t_key')").fetchone() == (pages,), "no block was recycled"
    assert sum(CHAIN in message for message in messages) > 20
    assert_all_dead_entries_are_gone(conn)
