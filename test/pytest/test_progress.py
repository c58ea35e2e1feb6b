"""What others see of a running VACUUM: cyclone.progress, pg_stat_progress_vacuum and the wait events."""

import pytest

from cyclone_lab import checks
from cyclone_lab.background import Parked, wait_until

SETTINGS = {"min_parallel_index_scan_size": 0}
VACUUM = "VACUUM (PARALLEL 2) t"
PHASES = {
    # debug point: what the views call it
    "heap-scan": "scanning heap",
    "index-vacuum": "vacuuming indexes",
    "heap-vacuum": "vacuuming heap",
    "index-cleanup": "cleaning up indexes",
}
NAMES = ("pid", "leader_pid", "datname", "relid", "relation", "role", "phase", "blocks_done", "blocks_total", "index_relid",
         "bytes_freed")  # fmt: skip


@pytest.fixture
def table(conn):
    """Table t with dead rows on each page, none but these at the end, and indexes for a team of three in each phase."""
    conn.execute("CREATE TABLE t (id int, a int[], p point) WITH (fillfactor = 20)")
    conn.execute("INSERT INTO t SELECT i, ARRAY[i, -i], point(i, i) FROM generate_series(1, 14000) i")
    conn.execute("CREATE INDEX t_id ON t (id)")
    conn.execute("CREATE INDEX t_a ON t USING gin (a)")
    conn.execute("CREATE INDEX t_p ON t USING gist (p)")
    conn.execute("CREATE INDEX t_brin_1 ON t USING brin (id)")
    conn.execute("CREATE INDEX t_brin_2 ON t USING brin (id)")
    conn.execute("DELETE FROM t WHERE id % 3 = 0 OR id > 11000")
    [(oid, pages)] = conn.execute("SELECT 't'::regclass::oid, pg_relation_size('t') / 8192")
    return oid, pages


def progress(conn) -> dict[int, dict]:
    """Return the rows of cyclone.progress by pid."""
    rows = conn.execute(f"SELECT {', '.join(NAMES)} FROM cyclone.progress_details WHERE datname = current_database()")
    return {row[0]: dict(zip(NAMES, row, strict=True)) for row in rows}


@pytest.mark.parametrize("phase", PHASES)
def test_each_process_has_a_row_in_each_phase(cluster, db, conn, table, phase):
    oid, pages = table
    indexes = {oid for (oid,) in conn.execute("SELECT indexrelid FROM pg_index WHERE indrelid = 't'::regclass")}
    with Parked(cluster, db, f"{phase}:any", 3, VACUUM, {"maintenance_work_mem": "16MB", **SETTINGS}) as vacuum:
        rows = progress(conn)
        assert sorted(rows) == sorted([vacuum.pid, *vacuum.workers])
        for pid, row in rows.items():
            assert row["leader_pid"] == vacuum.pid
            assert row["role"] == ("leader" if pid == vacuum.pid else "worker")
            assert (row["relid"], row["relation"], row["datname"]) == (oid, "t", db)
            assert row["phase"] == PHASES[phase]
            if phase in ("heap-scan", "heap-vacuum"):
                assert row["blocks_total"] == pages
                assert row["index_relid"] is None
            else:
                assert row["index_relid"] in indexes
            assert 0 <= row["blocks_done"] <= pages

        [(core_phase, total, scanned, vacuumed, passes, limit)] = conn.execute(
            """
            SELECT phase, heap_blks_total, heap_blks_scanned, heap_blks_vacuumed, index_vacuum_count, max_dead_tuple_bytes
            FROM pg_stat_progress_vacuum WHERE pid = %s AND relid = %s
            """,
            (vacuum.pid, oid),
        )
        assert (core_phase, total, limit) == (PHASES[phase], pages, 16 * 1024 * 1024)
        assert passes == (1 if phase in ("heap-vacuum", "index-cleanup") else 0)
        assert scanned < pages if phase == "heap-scan" else scanned == pages
        assert vacuumed == pages if phase == "index-cleanup" else vacuumed < pages
        [(dead_item_ids, dead_bytes, indexes_total, indexes_processed)] = conn.execute(
            """
            SELECT num_dead_item_ids, dead_tuple_bytes, indexes_total, indexes_processed
            FROM pg_stat_progress_vacuum WHERE pid = %s
            """,
            (vacuum.pid,),
        )
        if phase in ("index-vacuum", "index-cleanup"):
            assert indexes_total == 5 and 0 <= indexes_processed < 5
        else:
            assert indexes_total == indexes_processed == 0
        if phase in ("index-vacuum", "heap-vacuum"):
            assert dead_item_ids == 14000 - 11000 + 11000 // 3
            assert dead_bytes > 0
        vacuum.finish()
    assert progress(conn) == {}
    assert conn.execute("SELECT * FROM pg_stat_progress_vacuum WHERE relid = %s", (oid,)).fetchall() == []


def test_the_workers_are_gone_when_the_leader_truncates(cluster, db, conn, table):
    oid, pages = table
    with Parked(cluster, db, "truncate:leader", 1, VACUUM, SETTINGS) as vacuum:
        core_progress = "SELECT phase, heap_blks_vacuumed FROM pg_stat_progress_vacuum"
        assert conn.execute(core_progress).fetchall() == [("truncating heap", pages)]
        [row] = progress(conn).values()
        assert (row["pid"], row["role"]) == (vacuum.pid, "leader")
        assert row["phase"] == "truncating heap"
        vacuum.finish()
    assert progress(conn) == {}


def test_blocks_done_add_up_to_the_table(cluster, db, conn, table):
    """When the leader is at its first block, and the others are done, what is missing is the range in its hands."""
    _, pages = table
    with Parked(cluster, db, "heap-scan:any", 3, VACUUM, SETTINGS) as vacuum, vacuum.paused():
        vacuum.release()
        idle = "SELECT count(*) FROM pg_stat_activity WHERE leader_pid = %s AND wait_event = 'CyclonePhaseEnd'"
        wait_until(lambda: conn.execute(idle, (vacuum.pid,)).fetchone() == (2,), "the workers' wait")
        rows = progress(conn)
        done = [row["blocks_done"] for row in rows.values()]
        leaders = rows[vacuum.pid]["blocks_done"]
        assert leaders == 0
        assert pages - 1024 <= sum(done) < pages


def test_wait_events_say_what_a_process_waits_for(cluster, db, conn, table):
    events = """
        SELECT backend_type, wait_event_type, wait_event, count(*) FROM pg_stat_activity
        WHERE %s IN (pid, leader_pid) GROUP BY 1, 2, 3
    """

    def seen(pid):
        return {row[:3]: row[3] for row in conn.execute(events, (pid,))}

    # here the leader has an index to itself
    with Parked(cluster, db, "index-vacuum:leader", 1, VACUUM, SETTINGS) as vacuum:
        waiting = "parallel worker", "Extension", "CyclonePhaseEnd"
        wait_until(lambda: seen(vacuum.pid).get(waiting) == 2, "the workers' wait")
        assert ("client backend", "Lock", "advisory") in seen(vacuum.pid)
        with_query = "SELECT count(*) FROM pg_stat_activity WHERE leader_pid = %s AND query = %s"
        assert conn.execute(with_query, (vacuum.pid, VACUUM)).fetchone() == (2,)


@pytest.mark.parametrize("privileged", [False, True])
def test_who_may_not_see_the_statistics_of_others_sees_that_a_vacuum_runs_and_no_more(cluster, db, conn, table, privileged):
    conn.execute("CREATE ROLE cyclone_watcher LOGIN")
    if privileged:
        conn.execute("GRANT pg_read_all_stats TO cyclone_watcher")
    with Parked(cluster, db, "heap-scan:any", 3, VACUUM, SETTINGS) as vacuum:
        with cluster.connect(db, user="cyclone_watcher") as watcher:
            rows = progress(watcher)
        assert sorted(rows) == sorted([vacuum.pid, *vacuum.workers])
        for row in rows.values():
            assert row["datname"] == db
            details = [row[name] for name in NAMES if name not in ("pid", "datname", "index_relid")]
            assert all((detail is not None) == privileged for detail in details)


def test_a_user_sees_the_details_of_a_vacuum_of_his_own(cluster, db, conn, table):
    conn.execute("CREATE ROLE cyclone_owner LOGIN")
    conn.execute("ALTER TABLE t OWNER TO cyclone_owner")
    conn.execute("GRANT SET ON PARAMETER cyclone.debug_point TO cyclone_owner")
    settings = {"session_authorization": "cyclone_owner", **SETTINGS}
    with Parked(cluster, db, "heap-scan:any", 3, VACUUM, settings) as vacuum:
        with cluster.connect(db, user="cyclone_owner") as watcher:
            rows = progress(watcher)
        assert sorted(rows) == sorted([vacuum.pid, *vacuum.workers])
        assert all(row["phase"] == "scanning heap" and row["relation"] == "t" for row in rows.values())


def test_a_vacuum_in_another_database_is_shown_without_its_tables_name(cluster, db, conn, table):
    with Parked(cluster, db, "heap-scan:any", 3, VACUUM, SETTINGS), cluster.connect("cyclone_template") as elsewhere:
        rows = elsewhere.execute("SELECT datname, relation, phase FROM cyclone.progress").fetchall()
        assert rows == [(db, None, "scanning heap")] * 3


def test_full_inplace_is_seen_where_other_programs_look(cluster, db, conn, table):
    """While it moves rows: as the end of the table is about to be cut off."""
    query = "SELECT pid, relid, phase, heap_blks_total FROM pg_stat_progress_vacuum WHERE datname = current_database()"
    with Parked(cluster, db, "inplace-batch:leader", 1, "VACUUM (FULL INPLACE) t") as vacuum:
        [(pid, relid, phase, blocks)] = conn.execute(query).fetchall()
        assert (pid, relid, phase) == (vacuum.pid, table[0], "truncating heap") and 0 < blocks <= table[1]
        own = "SELECT phase, blocks_done >= 0, blocks_total > 0, bytes_freed >= 0 FROM cyclone.progress_details WHERE relation = 't'::regclass"
        assert conn.execute(own).fetchall() == [("moving rows", True, True, True)]
    assert conn.execute(query).fetchall() == []
    checks.assert_clean(conn, "t")
