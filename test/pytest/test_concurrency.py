"""VACUUM beside other work: where pages are pinned so that they cannot be cleaned, and where others wait for the table."""

import re

import pytest

from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, wait_until

PINNED = 'debug point "heap-page-pinned" reached in leader'


def make_pinned(conn, name: str, indexed: bool) -> None:
    """Make a table of 600 pages with two rows each, one of them dead; no scan prunes the pages, as a tenth is free."""
    conn.execute(f"CREATE TABLE {name} (id int, filler text) WITH (autovacuum_enabled = off)")
    conn.execute(f"ALTER TABLE {name} ALTER filler SET STORAGE PLAIN")
    conn.execute(f"INSERT INTO {name} SELECT i, repeat('x', 3500) FROM generate_series(1, 1200) i")
    if indexed:
        conn.execute(f"CREATE INDEX ON {name} (id)")
    conn.execute(f"DELETE FROM {name} WHERE id % 2 = 0")


def pin(conn, table: str, row: int):
    """Open a cursor that stands on the row, and so pins its page."""
    conn.execute("BEGIN")
    conn.execute(f"DECLARE c CURSOR FOR SELECT id FROM {table}")
    conn.execute(f"MOVE {row // 2} IN c")
    assert conn.execute("FETCH c").fetchone() == (row + 1,)


@pytest.mark.parametrize("indexed", [True, False], ids=["index", "no-index"])
@pytest.mark.parametrize("workers", [0, 2])
def test_dead_rows_of_a_pinned_page_are_missed_as_core_misses_them(cluster, db, conn, workers, indexed):
    said, states = {}, {}
    for name, enabled in (("core", "off"), ("ours", "on")):
        make_pinned(conn, name, indexed)
        with cluster.connect(db) as reader:
            pin(reader, name, 600)
            statement = f"VACUUM (VERBOSE, PARALLEL {workers if enabled == 'on' else 0}) {name}"
            # what is not pinned is frozen, so that the pinned page alone holds relfrozenxid back
            settings = {"cyclone.enabled": enabled, "vacuum_freeze_min_age": 0}
            vacuum = Background(cluster, db, statement, settings)
            vacuum.finish()
            states[name] = checks.table_state(conn, name)
            assert checks.heap_corruption(conn, name) == []  # no row is older than relfrozenxid
        [report] = [message for message in vacuum.messages if "finished" in message and "pg_toast" not in message]
        said[name] = [
            re.sub(r"(cutoff|relfrozenxid): .*", "", line.replace(name, "table"))
            for line in report.splitlines()
            if not re.match("audit|parallel workers|phases|dead-TID|avg|buffer|WAL|memory|system", line)
        ]
    assert said["ours"] == said["core"]
    missed_line = r"tuples missed: (\d+) dead from (\d+) pages not removed due to cleanup lock contention"
    [(missed, pages)] = re.findall(missed_line, "\n".join(said["ours"]))
    assert missed == pages  # one row a page; the cursor may also have pinned what it reads next
    assert states["ours"] == {**states["core"], "relfrozenxid_age": states["ours"]["relfrozenxid_age"]}
    assert states["ours"]["relfrozenxid_age"] <= states["core"]["relfrozenxid_age"]
    assert (states["ours"]["dead_items"], states["ours"]["dead_tuples"]) == (0, int(missed))
    conn.execute("VACUUM (INDEX_CLEANUP on) ours")
    assert checks.table_state(conn, "ours")["dead_tuples"] == 0
    checks.assert_clean(conn, "ours")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_page_that_is_pinned_for_a_moment_is_cleaned(cluster, db, conn, workers):
    """As who pinned it may be another process of the team, which makes room in the shared buffers."""
    make_pinned(conn, "t", True)
    statement = f"VACUUM (VERBOSE, INDEX_CLEANUP on, PARALLEL {workers}) t"
    with cluster.connect(db) as reader:
        pin(reader, "t", 600)
        with Parked(cluster, db, "heap-page-pinned:any", 1, statement) as vacuum:
            reader.execute("COMMIT")
            vacuum.finish()
    assert "tuples missed" not in "\n".join(vacuum.messages)
    state = checks.table_state(conn, "t")
    assert (state["dead_items"], state["dead_tuples"], state["all_visible"]) == (0, 0, 600)
    checks.assert_clean(conn, "t")


def test_what_was_waited_for_a_page_is_not_waited_for_the_next(cluster, db, conn):
    """Or else a VACUUM that has caught up with a slow scan would follow it from page to page."""
    make_pinned(conn, "t", True)
    statement = "VACUUM (VERBOSE, INDEX_CLEANUP on, PARALLEL 0) t"
    points = "heap-page-pinned:any:notice heap-page-pinned:any"
    with cluster.connect(db) as first, cluster.connect(db) as second:
        pin(first, "t", 300)
        pin(second, "t", 900)
        with Parked(cluster, db, points, 1, statement, {"cyclone.debug_max_pin_ms": 1}) as vacuum:
            first.execute("COMMIT")
            vacuum.finish()
    assert vacuum.messages.count(PINNED) == 1
    [missed] = re.findall(r"tuples missed: (\d+) dead", "\n".join(vacuum.messages))
    assert checks.table_state(conn, "t")["dead_tuples"] == int(missed)
    checks.assert_clean(conn, "t")


def test_where_sessions_stand_still_on_many_pages_not_all_of_them_are_waited_for(cluster, db, conn):
    make_pinned(conn, "t", True)
    settings = {"cyclone.debug_point": "heap-page-pinned:any:notice", "cyclone.debug_max_pin_ms": 3000}
    with cluster.connect(db) as reader:
        reader.execute("BEGIN")
        for block in range(150):
            reader.execute(f"DECLARE c{block} CURSOR FOR SELECT id FROM t WHERE ctid = '({block},1)'")
            assert reader.execute(f"FETCH c{block}").fetchone() == (2 * block + 1,)
        vacuum = Background(cluster, db, "VACUUM (VERBOSE, INDEX_CLEANUP on, PARALLEL 0) t", settings)
        waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'CycloneHeapPagePin'"
        wait_until(lambda: conn.execute(waiting, (vacuum.pid,)).fetchall(), "the wait for a page")
        vacuum.finish()
        # 127 ms for a page until 3 s have passed, in seven waits each
        assert vacuum.messages.count(PINNED) == 24 * 7
        [missed] = re.findall(r"tuples missed: (\d+) dead", "\n".join(vacuum.messages))
        assert checks.table_state(conn, "t")["dead_tuples"] == int(missed) >= 150
        checks.assert_clean(conn, "t")
    conn.execute("VACUUM (INDEX_CLEANUP on, PARALLEL 0) t")
    assert checks.table_state(conn, "t")["dead_tuples"] == 0
    checks.assert_clean(conn, "t")


def test_an_aggressive_vacuum_waits_for_a_pinned_page_that_it_must_freeze(cluster, db, conn):
    for workers in (0, 2):
        name = f"pinned_{workers}"
        make_pinned(conn, name, True)
        with cluster.connect(db) as reader:
            pin(reader, name, 600)
            vacuum = Background(cluster, db, f"VACUUM (FREEZE, PARALLEL {workers}) {name}")
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event IN ('BufferPin', 'BufferCleanup') AND %s IN (pid, leader_pid)"
            wait_until(lambda: conn.execute(waiting, (vacuum.pid,)).fetchall(), "the wait for the pin")
            assert vacuum.running
            reader.execute("COMMIT")
            vacuum.finish()
        state = checks.assert_vacuumed(conn, name)
        assert state["all_frozen"] == state["relpages"] == 600


@pytest.mark.parametrize("workers", [0, 2])
def test_a_process_that_waits_for_a_pin_can_be_cancelled(cluster, db, conn, workers):
    make_pinned(conn, "t", True)
    with cluster.connect(db) as reader:
        pin(reader, "t", 600)
        vacuum = Background(cluster, db, f"VACUUM (FREEZE, PARALLEL {workers}) t")
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event IN ('BufferPin', 'BufferCleanup') AND %s IN (pid, leader_pid)"
        [(pid,)] = wait_until(lambda: conn.execute(waiting, (vacuum.pid,)).fetchall(), "the wait for the pin")
        conn.execute("SELECT pg_cancel_backend(%s)", (pid,))
        assert "canceling statement due to user request" in str(vacuum.wait())
    conn.execute("VACUUM (FREEZE) t")
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("workers", [0, 2])
def test_truncation_gives_way_to_others_and_leaves_the_table_usable(cluster, db, conn, workers):
    """Core's rule: no exclusive lock, no truncation, and no waiting in the queue for it."""
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, filler text)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 1950) FROM generate_series(1, 4000) i")
    conn.execute("DELETE FROM t WHERE id > 1000")
    with cluster.connect(db) as reader:
        reader.execute("BEGIN")
        reader.execute("LOCK TABLE t IN ACCESS SHARE MODE")
        said = "\n".join(Background(cluster, db, f"VACUUM (VERBOSE, PARALLEL {workers}) t").finish())
    assert '"t": stopping truncate due to conflicting lock request' in said
    assert "pages: 0 removed, 1000 remain" in said
    conn.execute("VACUUM t")
    assert checks.table_state(conn, "t")["relpages"] == 250
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_rolled_back_between_two_rounds_leave_nothing_in_the_pending_list_of_a_gin_index(cluster, db, conn, workers):
    """PostgreSQL's own VACUUM moves that list's entries to their place in the first round only, and forgets the others."""
    conn.execute("CREATE TABLE t (id int, a int[]) WITH (autovacuum_enabled = off, fillfactor = 10)")
    conn.execute("INSERT INTO t SELECT i, ARRAY[i % 5] FROM generate_series(1, 100000) i")
    conn.execute("CREATE INDEX t_a ON t USING gin (a) WITH (gin_pending_list_limit = 65536)")
    conn.execute("DELETE FROM t WHERE id > 98000")
    conn.execute("VACUUM (TRUNCATE off, INDEX_CLEANUP on) t")  # the last pages have room
    conn.execute("DELETE FROM t WHERE id % 4 = 0")
    statement = f"VACUUM (VERBOSE, INDEX_CLEANUP on, TRUNCATE off, PARALLEL {workers}) t"
    settings = {"maintenance_work_mem": "64kB", "min_parallel_index_scan_size": 0}
    with Parked(cluster, db, "heap-vacuum:any", 1, statement, settings) as vacuum:
        conn.execute("BEGIN; INSERT INTO t SELECT -i, ARRAY[77] FROM generate_series(1, 300) i; ROLLBACK")
        said = "\n".join(vacuum.finish())
    assert int(re.search(r'"\w+\.public\.t": index scans: (\d+)', said)[1]) > 1
    assert "had 24800 dead item identifiers removed" in said, "the rows that were rolled back were not found"
    conn.execute("INSERT INTO t SELECT -i, ARRAY[88] FROM generate_series(1, 30000) i")
    conn.execute("SET enable_seqscan = off")
    assert conn.execute("SELECT count(*) FROM t WHERE a @> ARRAY[77]").fetchone() == (0,)
    checks.assert_clean(conn, "t")
