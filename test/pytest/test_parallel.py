"""How VACUUM shares its work: how many workers it plans and gets, and that a team does each block exactly once."""

import re
from collections import Counter

import pytest

from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, heard, wait_until


def vacuum_report(conn, table: str, options: str = "", details: bool = False) -> str:
    """Run VACUUM (VERBOSE) on the table and return all that it says; with the lines of DETAIL or without."""
    said = heard(conn, f"VACUUM (VERBOSE, PROCESS_TOAST false{options}) {table}", lambda notice: (notice.message_primary, notice.message_detail))
    return "\n".join(text for primary, detail in said for text in (primary, detail if details else None) if text)


def planned_and_launched(report: str) -> tuple[int, int]:
    [(planned, launched)] = re.findall(r"^parallel workers: (\d+) planned, (\d+) launched$", report, re.MULTILINE)
    return int(planned), int(launched)


def wait_for_workers(conn, vacuum: Parked) -> None:
    """Wait until the workers have done all of a phase but what the leader is at."""
    idle = "SELECT count(*) FROM pg_stat_activity WHERE leader_pid = %s AND wait_event = 'CyclonePhaseEnd'"
    wait_until(lambda: conn.execute(idle, (vacuum.pid,)).fetchone() == (2,), "the workers' wait")


@pytest.fixture
def pages(conn):
    """A function that makes a table of this many pages, of two rows each, and empties the statistics on it."""

    def make(name: str, count: int, options: str = "") -> None:
        conn.execute(f"CREATE TABLE {name} (id int, filler text) {options}")
        conn.execute(f"ALTER TABLE {name} ALTER filler SET STORAGE PLAIN")
        conn.execute(f"INSERT INTO {name} SELECT i, repeat('x', 3500) FROM generate_series(1, {2 * count}) i")

    return make


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 1030, 3000])
def test_each_block_is_scanned_and_vacuumed_once(conn, pages, count, workers):
    pages("t", count)
    conn.execute("CREATE INDEX ON t (id)")
    conn.execute("DELETE FROM t WHERE id % 2 = 0 AND id % 8 <> 0")
    conn.execute("SET min_parallel_index_scan_size = 0")
    gone = [i for i in range(1, 2 * count + 1) if i % 2 == 0 and i % 8 != 0]
    dead = len(gone), len({(i + 1) // 2 for i in gone})
    report = vacuum_report(conn, "t", f", DISABLE_PAGE_SKIPPING, INDEX_CLEANUP on, PARALLEL {workers}")
    assert planned_and_launched(report) == (workers, workers)
    assert f"pages: 0 removed, {count} remain, {count} scanned (100.00% of total)" in report
    assert f"tuples: {dead[0]} removed, {2 * count - dead[0]} remain, 0 are dead" in report
    if dead[0]:
        assert f"{dead[1]} pages from table" in report and f"had {dead[0]} dead item identifiers removed" in report
    state = checks.table_state(conn, "t")
    assert state["rows"] == state["reltuples"] == 2 * count - dead[0]
    assert (state["dead_items"], state["dead_tuples"], state["all_visible"]) == (0, 0, count)
    assert conn.execute("SELECT count(*) FROM pg_visibility_map('t') WHERE NOT all_visible").fetchone() == (0,)
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("workers", [0, 2])
def test_verbose_is_not_much_longer_than_in_postgresql(conn, workers):
    """At most half again as long, for 20 indexes, when all of them are vacuumed."""
    conn.execute("CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 20000) i")
    for number in range(20):
        conn.execute(f"CREATE INDEX t_{number} ON t (id)")
    conn.execute("SET min_parallel_index_scan_size = 0; SET max_parallel_maintenance_workers = 4")
    lines = {}
    for who, enabled in {"postgresql": "off", "engine": "on"}.items():
        conn.execute(f"SET cyclone.enabled = {enabled}; DELETE FROM t WHERE ctid = ANY (ARRAY(SELECT ctid FROM t WHERE id % 3 = 0 LIMIT 2000))")
        lines[who] = vacuum_report(conn, "t", f", INDEX_CLEANUP on, PARALLEL {workers}", details=True).splitlines()
    assert all(sum(line.startswith('index "t_') for line in lines[who]) >= 20 for who in lines), lines
    assert len(lines["engine"]) <= 1.5 * len(lines["postgresql"]), lines


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("phase", ["heap-scan", "heap-vacuum"])
def test_each_process_does_a_share(cluster, db, conn, pages, phase, workers):
    pages("t", 1500)
    conn.execute("CREATE INDEX ON t (id)")
    conn.execute("DELETE FROM t WHERE id % 2 = 0")
    statement = f"VACUUM (VERBOSE, PROCESS_TOAST false, PARALLEL {workers}) t"
    with Parked(cluster, db, f"{phase}:any", workers + 1, statement) as vacuum:  # each is at a page
        vacuum.finish()
    assert "1500 scanned (100.00% of total)" in "\n".join(vacuum.messages)
    assert checks.table_state(conn, "t")["dead_items"] == 0


def test_the_oldest_id_that_a_worker_has_seen_is_the_tables(cluster, db, conn, pages):
    """It is on the last page, which isn't the leader's; that a transaction deletes the row there keeps it from being frozen."""
    pages("t", 1500)
    conn.execute("VACUUM (FREEZE) t")
    conn.execute("UPDATE t SET id = 0 WHERE id = 3000")
    [(old,)] = conn.execute("SELECT xmin FROM t WHERE id = 0")
    with cluster.connect(db) as other:
        other.execute("BEGIN; DELETE FROM t WHERE id = 0")
        with Parked(cluster, db, "heap-scan:any", 3, "VACUUM (DISABLE_PAGE_SKIPPING, PARALLEL 2) t") as vacuum:
            with vacuum.paused():
                vacuum.release()
                wait_for_workers(conn, vacuum)
            vacuum.finish()
        other.execute("ROLLBACK")
    assert conn.execute("SELECT relfrozenxid FROM pg_class WHERE relname = 't'").fetchone() == (old,)
    checks.assert_clean(conn, "t")


def test_the_statistics_count_what_workers_put_into_the_visibility_map(cluster, db, conn):
    """The leader has to notice that workers have extended the map: here by its second page."""
    pages, pages_of_the_first = 33000, 32672
    conn.execute("CREATE UNLOGGED TABLE t (filler text) WITH (fillfactor = 10)")
    conn.execute(f"INSERT INTO t SELECT repeat('x', 900) FROM generate_series(1, {pages_of_the_first - 100})")
    conn.execute("VACUUM t")
    conn.execute(f"INSERT INTO t SELECT repeat('x', 900) FROM generate_series(1, {pages - pages_of_the_first + 100})")
    assert conn.execute("SELECT pg_relation_size('t', 'vm')").fetchone() == (8192,)
    with Parked(cluster, db, "heap-scan:any", 3, "VACUUM (FREEZE, PARALLEL 2) t") as vacuum:
        with vacuum.paused():
            vacuum.release()
            wait_for_workers(conn, vacuum)
            assert conn.execute("SELECT pg_relation_size('t', 'vm')").fetchone() == (2 * 8192,)
        vacuum.finish()
    assert conn.execute("SELECT * FROM pg_visibility_map_summary('t')").fetchone() == (pages, pages)
    assert conn.execute("SELECT relallvisible FROM pg_class WHERE relname = 't'").fetchone() == (pages,)


def test_the_degree_follows_the_table_its_indexes_and_the_settings(conn, pages):
    conn.execute("SET min_parallel_table_scan_size = '800kB'")  # 100 pages
    pages("small", 99)
    pages("medium", 100)
    pages("large", 300)
    assert planned_and_launched(vacuum_report(conn, "small")) == (0, 0)
    assert planned_and_launched(vacuum_report(conn, "medium")) == (1, 1)
    assert planned_and_launched(vacuum_report(conn, "large")) == (2, 2)
    # the storage parameter overrides the size, PARALLEL both
    conn.execute("ALTER TABLE small SET (parallel_workers = 3)")
    assert planned_and_launched(vacuum_report(conn, "small")) == (3, 3)
    assert planned_and_launched(vacuum_report(conn, "small", ", PARALLEL 1")) == (1, 1)
    assert planned_and_launched(vacuum_report(conn, "small", ", PARALLEL 0")) == (0, 0)
    conn.execute("ALTER TABLE large SET (parallel_workers = 0)")
    assert planned_and_launched(vacuum_report(conn, "large")) == (0, 0)
    # no index is needed
    assert planned_and_launched(vacuum_report(conn, "medium", ", PARALLEL 4")) == (4, 4)
    # the bound bounds it all
    conn.execute("SET max_parallel_maintenance_workers = 2")
    assert planned_and_launched(vacuum_report(conn, "small")) == (2, 2)
    assert planned_and_launched(vacuum_report(conn, "medium", ", PARALLEL 4")) == (2, 2)
    conn.execute("SET max_parallel_maintenance_workers = 0")
    assert planned_and_launched(vacuum_report(conn, "medium", ", PARALLEL 4")) == (0, 0)
    assert "launched" not in vacuum_report(conn, "small").replace("0 launched", "")


def test_indexes_ask_for_workers_even_if_the_table_is_small(conn, pages):
    conn.execute("SET min_parallel_index_scan_size = 0")
    pages("t", 20)
    assert planned_and_launched(vacuum_report(conn, "t")) == (0, 0)
    for column in ("id", "id", "id", "filler"):
        conn.execute(f"CREATE INDEX ON t USING hash ({column})")
    # one index is the leader's
    assert planned_and_launched(vacuum_report(conn, "t")) == (3, 3)
    # but not if they are left alone
    assert planned_and_launched(vacuum_report(conn, "t", ", INDEX_CLEANUP off")) == (0, 0)


def test_an_empty_table_and_an_unfilled_one_need_no_workers(conn, pages):
    pages("t", 0)
    assert planned_and_launched(vacuum_report(conn, "t", ", PARALLEL 4")) == (0, 0)


def test_unlogged_tables_have_workers(conn):
    conn.execute("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)")
    conn.execute("INSERT INTO t SELECT generate_series(1, 100000)")
    conn.execute("DELETE FROM t WHERE id % 3 = 0")
    assert planned_and_launched(vacuum_report(conn, "t", ", PARALLEL 2")) == (2, 2)
    checks.assert_clean(conn, "t")


def test_two_vacuums_of_two_tables_share_the_pool_of_workers(new_cluster):
    cluster = new_cluster(max_parallel_workers=3, max_worker_processes=5)
    with cluster.connect() as conn:
        for name in ("a", "b"):
            conn.execute(f"CREATE TABLE {name} (id int, filler text)")
            conn.execute(f"INSERT INTO {name} SELECT i, repeat('x', 1950) FROM generate_series(1, 4000) i")
            conn.execute(f"DELETE FROM {name} WHERE id % 2 = 0")
        slow = {"vacuum_cost_delay": "2ms", "vacuum_cost_limit": 200}
        vacuums = [Background(cluster, "postgres", f"VACUUM (VERBOSE, PARALLEL 4) {name}", slow) for name in ("a", "b")]
        launched = Counter()
        for name, vacuum in zip(("a", "b"), vacuums, strict=True):
            vacuum.finish()
            report = next(message for message in vacuum.messages if "finished" in message)
            launched[name] = planned_and_launched(report)[1]
            assert planned_and_launched(report)[0] == 4
            assert "2000 removed, 2000 remain" in report
        assert max(launched.values()) <= 3


def test_a_lock_timeout_is_not_for_teammates_that_look_how_long_an_index_is(conn):
    """Each of many processes asks that of each of many small indexes, under the lock on its extension."""
    conn.execute("CREATE TABLE t (id int)")
    for _ in range(12):
        conn.execute("CREATE INDEX ON t (id)")
    conn.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    conn.execute("SET min_parallel_index_scan_size = 0; SET max_parallel_maintenance_workers = 7; SET lock_timeout = '1ms'")
    for _ in range(100):
        conn.execute("UPDATE t SET id = id")
        conn.execute("VACUUM (INDEX_CLEANUP on, PARALLEL 7) t")
    checks.assert_clean(conn, "t")


def test_tiny_shared_buffers_have_room_for_fewer_processes(new_cluster):
    """Each process that builds an SP-GiST index pins 32 pages at a time. As many as are asked for would pin more than there are."""
    small = {"shared_buffers": "320kB", "max_connections": 10, "max_wal_senders": 0, "max_parallel_maintenance_workers": 8, "max_parallel_workers": 8}
    cluster = new_cluster(**{**small, "shared_buffers": "16MB"})
    with cluster.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, place point) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO t SELECT i, point(i, i) FROM generate_series(1, 3000) i")
        for _ in range(8):
            conn.execute("CREATE INDEX ON t USING spgist (place)")
        conn.execute("DELETE FROM t WHERE id % 3 = 0")
    cluster.stop()
    cluster.config.update(small)
    cluster.start()
    with cluster.connect() as conn:
        said = []
        conn.add_notice_handler(lambda message: said.append(message.message_primary + (message.message_detail or "")))
        for options in ("FULL, ", "FULL, ", ""):
            said.clear()
            conn.execute(f"VACUUM ({options}VERBOSE, PARALLEL 8) t")
            assert "parallel workers: 4 planned, 4 launched (4 more not allowed by shared_buffers)" in "".join(said)
        conn.execute("VACUUM (FULL INPLACE, PARALLEL 8) t")
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (2000,)
