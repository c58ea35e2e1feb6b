"""Pages of a btree that split between the visits of two processes of one VACUUM."""

import pytest

from cyclone_lab import checks
from cyclone_lab.background import Parked, wait_until

SETTINGS = {"min_parallel_index_scan_size": 0, "min_parallel_table_scan_size": 0}
CHAIN = 'debug point "btree-chain" reached'
INTERRUPTION = 'debug point "btree-duties" reached'
PUT_OFF = 'debug point "btree-duty-put-off" reached'
WAITING = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event IN ('BufferPin', 'BufferCleanup')"


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
    points = "btree-page:any:wait btree-chain:any:notice btree-duties:any:notice btree-duty-put-off:any:notice"
    settings = {**SETTINGS, **config, "cyclone.debug_point": points}
    statement = f"VACUUM (INDEX_CLEANUP on, PARALLEL {workers}) t"
    with Parked(cluster, db, "btree-page:any", workers + 1, statement, settings) as vacuum:
        for other in statements:
            conn.execute(other)
        vacuum.finish()
    return vacuum.messages


def assert_all_dead_entries_are_gone(conn):
    state = checks.assert_vacuumed(conn)
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


def make_recycled_blocks(conn, rows: int) -> set[int]:
    """Make a table whose index has blocks to recycle, and all of them before those in use; return these blocks."""
    conn.execute("CREATE TABLE t (key int, note text) WITH (autovacuum_enabled = off)")
    conn.execute(f"INSERT INTO t SELECT 2 * i, 'old' FROM generate_series(1, {rows}) i")
    conn.execute("CREATE INDEX t_key ON t (key) WITH (fillfactor = 100, deduplicate_items = off)")
    conn.execute(f"DELETE FROM t WHERE key < {rows}")
    for _ in range(2):  # the second puts the deleted pages into the free space map, as no snapshot can see them
        conn.execute("VACUUM (INDEX_CLEANUP on, PARALLEL 0) t")
        conn.execute("SELECT txid_current()")
    free = {block for (block,) in conn.execute("SELECT blkno FROM pg_freespace('t_key') WHERE avail > 0")}
    assert len(free) > 1
    conn.execute("DELETE FROM t WHERE key % 8 = 0")
    return free


def stand_on(session, blocks, pages: int = 1, table: str = "t", column: str = "key") -> None:
    """Let cursors stand on some of the leaf pages in these blocks of the index t_key, and so pin them."""
    session.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; BEGIN")
    pinned = 0
    for block in blocks:
        [(kind,)] = session.execute("SELECT type FROM bt_page_stats('t_key', %s)", (block,))
        row = f"SELECT {column} FROM {table} t WHERE t.ctid = i.htid"
        items = f"SELECT ({row}) FROM bt_page_items('t_key', %s) i WHERE itemoffset > 1"
        keys = [key for (key,) in session.execute(items, (block,)) if key is not None] if kind == "l" else []
        if pinned < pages and keys:
            # an index-only scan, as others let go of the page
            session.execute(f"DECLARE c{block} CURSOR FOR SELECT {column} FROM {table} WHERE {column} >= {keys[0]} ORDER BY {column}")
            assert session.execute(f"FETCH c{block}").fetchone() == (keys[0],)
            pinned += 1
    assert pinned == pages


def park_behind(cluster, db, free: set[int], settings: dict) -> Parked:
    """VACUUM in one process, parked when it has passed these blocks."""
    points = "btree-chain:any:notice btree-duty-put-off:any:notice btree-page:any"
    vacuum = Parked(cluster, db, points, 1, "VACUUM (INDEX_CLEANUP on, PARALLEL 0) t", {**SETTINGS, **settings})
    for _ in range(max(free)):
        vacuum.step()
    return vacuum


@pytest.mark.parametrize("parallel_size", [0, "1GB"], ids=["shared out", "the leader's alone"])
@pytest.mark.parametrize("end", ["commit", "cancel"])
def test_a_page_that_is_due_is_waited_for_as_long_as_sessions_have_it_pinned_in_turn(
    cluster, conn, db, end, parallel_size
):
    """Not by trying, which succeeds only if it comes at the right moment."""
    free = make_recycled_blocks(conn, 3000)
    settings = {"min_parallel_index_scan_size": parallel_size}
    with park_behind(cluster, db, free, settings) as vacuum, cluster.connect(db) as one, cluster.connect(db) as other:
        conn.execute("INSERT INTO t SELECT 4001, 'new' FROM generate_series(1, 200)")
        stand_on(one, sorted(free))
        vacuum.release()
        wait_until(lambda: conn.execute(WAITING, (vacuum.pid,)).fetchall(), "the wait for the page")
        for _ in range(3):
            stand_on(other, sorted(free))
            one.execute("COMMIT")
            assert conn.execute(WAITING, (vacuum.pid,)).fetchall()
            one, other = other, one
        if end == "cancel":
            conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
            assert "canceling statement due to user request" in str(vacuum.wait())
        one.execute("COMMIT")
        if end == "commit":
            vacuum.finish()
    assert sum(PUT_OFF in message for message in vacuum.messages) == 1
    if end == "cancel":
        conn.execute("VACUUM (INDEX_CLEANUP on) t")
    assert_all_dead_entries_are_gone(conn)


@pytest.mark.parametrize("tries", [1, 3])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_duties_that_are_put_off_are_done_in_the_end(cluster, conn, db, table, workers, tries):
    """Pages that are due are in the read streams of other processes, and a session stands still on some that are new."""
    points = "btree-page:any:wait btree-chain:any:notice btree-duty-put-off:any:notice"
    settings = {**SETTINGS, "cyclone.debug_point": points, "cyclone.debug_max_duty_tries": tries}
    statement = f"VACUUM (INDEX_CLEANUP on, PARALLEL {workers}) t"
    waiting = "SELECT 1 FROM pg_stat_activity WHERE %s IN (pid, leader_pid) AND wait_event IN ('BufferPin', 'BufferCleanup')"
    with (
        cluster.connect(db) as reader,
        Parked(cluster, db, "btree-page:any", workers + 1, statement, settings) as vacuum,
    ):
        conn.execute("INSERT INTO t SELECT 2 * i + 1, 'new' FROM generate_series(1, 60000) i")
        stand_on(reader, range(table + 1, table + 40, 3), pages=10)
        vacuum.release()
        wait_until(lambda: conn.execute(waiting, (vacuum.pid,)).fetchall(), "the wait for a page")
        wait_until(lambda: any(PUT_OFF in message for message in vacuum.messages), "a duty that is put off")
        reader.execute("COMMIT")
        vacuum.finish()
    assert_all_dead_entries_are_gone(conn)


def test_a_worker_that_has_put_off_pages_is_missed_if_it_is_terminated(cluster, conn, db, table):
    """Nobody else knows of them, so the VACUUM fails; without duties its termination would only cost its help."""
    conn.execute("CREATE INDEX t_small ON t (key) WHERE key < 100")  # for the leader, who waits there
    conn.execute("INSERT INTO t VALUES (8, 'old')")
    conn.execute("DELETE FROM t WHERE key = 8")
    points = "index-vacuum:leader:wait btree-duty-put-off:any:notice"
    settings = {"min_parallel_index_scan_size": "400kB", "cyclone.debug_point": points, "cyclone.debug_max_duty_tries": 1}
    statement = "VACUUM (INDEX_CLEANUP on, PARALLEL 1) t"
    events = "SELECT pid FROM pg_stat_activity WHERE leader_pid = %s AND wait_event = ANY(%s)"
    with cluster.connect(db) as at_the_start, cluster.connect(db) as reader:
        stand_on(at_the_start, [1])
        with Parked(cluster, db, "index-vacuum:leader", 1, statement, settings) as vacuum:
            wait_until(lambda: conn.execute(events, (vacuum.pid, ["BufferPin", "BufferCleanup"])).fetchall(), "the worker at the first page")
            conn.execute("INSERT INTO t SELECT 2 * i + 1, 'new' FROM generate_series(1, 60000) i")
            stand_on(reader, range(table + 1, table + 40, 3), pages=10)
            at_the_start.execute("COMMIT")
            wait_until(lambda: any(PUT_OFF in message for message in vacuum.messages), "a duty that is put off")
            reader.execute("COMMIT")  # as the new pages are in its ranges, too
            wait_until(lambda: conn.execute(events, (vacuum.pid, ["CyclonePhaseEnd"])).fetchall(), "the end of its part")
            [(worker,)] = conn.execute(events, (vacuum.pid, ["CyclonePhaseEnd"])).fetchall()
            conn.execute("SELECT pg_terminate_backend(%s, 60000)", (worker,))
            vacuum.release()
            error = vacuum.wait()
    assert "terminating background worker" in str(error)
    conn.execute("VACUUM (INDEX_CLEANUP on) t")
    assert_all_dead_entries_are_gone(conn)
