"""A team no larger than its budget feeds: workers that are not launched, parked, woken, and whatever may happen to them meanwhile.

test/unit/test_parking.c has the law in a simulation.
"""

import os
import re
import signal
from contextlib import suppress

import psycopg
import pytest

from conftest import TEMPLATE, every_other
from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Background, Parked, heard, wait_until
from cyclone_lab.shim import Disk

WORKERS = {
    "min_parallel_table_scan_size": 0,
    "min_parallel_index_scan_size": 0,
    "max_parallel_maintenance_workers": 2,
    "cyclone.debug_fed": 0,  # other tests want all workers, whatever the budget
}
# So slow that it takes a minute, but not so slow that a worker doesn't come to the end of what it has taken.
SLOW = {"vacuum_cost_delay": "10ms", "vacuum_cost_limit": 20}
BUSY = "DO 'BEGIN LOOP END LOOP; END'"  # wants a core, and never waits for anything, not for files either
INDEXES = ("btree (id)", "btree (a)", "gin (list)")


def make_table(conn, rows=30_000, indexes=INDEXES, dead="id % 3 = 0 OR id BETWEEN 5000 AND 8000") -> None:
    """Make a table of 10 rows a page, every third row of which is dead."""
    conn.execute("CREATE TABLE t (id int, a int, list int[], filler text) WITH (autovacuum_enabled = off)")
    conn.execute("ALTER TABLE t ALTER filler SET STORAGE PLAIN")
    conn.execute(f"INSERT INTO t SELECT i, i % 1000, ARRAY[i % 77], repeat('x', 700) FROM generate_series(1, {rows}) i")
    for index in indexes:
        conn.execute(f"CREATE INDEX ON t USING {index}")
    conn.execute(f"DELETE FROM t WHERE {dead}")


def set_all(conn, settings) -> None:
    for name, value in settings.items():
        conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))


def vacuum(conn, options: str) -> str:
    """Run it and return all that it says."""
    return "\n".join(heard(conn, f"VACUUM ({options}, VERBOSE) t"))


def change(conn, **settings) -> None:
    """Set these in the files, and have them reloaded."""
    for name, value in settings.items():
        conn.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    conn.execute("SELECT pg_reload_conf()")


def parked(conn) -> list[int]:
    """Return who is parked."""
    return [pid for (pid,) in conn.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'CycloneParked'")]


def workers(conn) -> int:
    [(number,)] = conn.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'")
    return number


@every_other("options, one_in", ["PARALLEL 4", "PARALLEL 4, INDEX_CLEANUP off", "FULL, PARALLEL 4"], [1, 2, 5])
def test_workers_that_come_and_go_by_chance_do_each_page_once(conn, one_in, options):
    """A worker that leaves a phase early comes back to it, or doesn't: the table is as it is after a VACUUM by one process."""
    make_table(conn)
    set_all(conn, WORKERS | {"max_parallel_maintenance_workers": 4, "cyclone.debug_parking": one_in})
    before = conn.execute("SELECT count(*), sum(id) FROM t").fetchall()
    for share in (3, 7):
        conn.execute(f"DELETE FROM t WHERE id % {share} = 1 AND id > 20000")
        before = conn.execute("SELECT count(*), sum(id) FROM t").fetchall()
        report = vacuum(conn, options)
        assert "parallel workers: 4 planned, 4 launched" in report
    if "off" in options:  # as long as index entries of dead items are left, they dangle
        vacuum(conn, "PARALLEL 4")
    assert conn.execute("SELECT count(*), sum(id) FROM t").fetchall() == before
    state = checks.table_state(conn, "t")
    assert state["dead_tuples"] == state["dead_items"] == 0
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("options", ["PARALLEL 2", "FULL, PARALLEL 2"])
def test_no_workers_are_launched_that_would_be_parked(conn, options):
    make_table(conn, 3000)
    set_all(conn, WORKERS | {"vacuum_cost_delay": "1ms", "vacuum_cost_limit": 20})
    assert re.search(r"^parallel workers: 2 planned, 0 launched", vacuum(conn, options), re.MULTILINE)
    set_all(conn, {"vacuum_cost_delay": "0"})
    assert re.search(r"^parallel workers: 2 planned, 2 launched", vacuum(conn, options), re.MULTILINE)
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("options", ["PARALLEL 2", "FULL, PARALLEL 2"])
def test_workers_come_when_the_budget_is_lifted(new_cluster, options):
    """In the midst of a phase."""
    cluster = new_cluster(**WORKERS, **SLOW)
    with cluster.connect(TEMPLATE) as conn:
        make_table(conn)
        running = Background(cluster, TEMPLATE, f"VACUUM ({options}, VERBOSE) t", {})
        wait_until(lambda: conn.execute("SELECT FROM pg_stat_activity WHERE wait_event = 'VacuumDelay'").fetchall(), "a nap")
        assert workers(conn) == 0
        change(conn, vacuum_cost_delay="0")
        running.finish()
        assert "2 planned, 2 launched" in "\n".join(running.messages)
        checks.assert_clean(conn, "t")


@pytest.fixture
def standing_still(new_cluster):
    """A VACUUM whose two workers have been parked by a reload, in the midst of its heap scan; its cluster and a connection."""
    cluster = new_cluster(**WORKERS)
    with cluster.connect(TEMPLATE) as conn:
        make_table(conn)
        running = Parked(cluster, TEMPLATE, "heap-scan:any", 3, "VACUUM (PARALLEL 2, VERBOSE) t")
        change(conn, **SLOW)
        running.release()
        wait_until(lambda: len(parked(conn)) == 2, "both to be parked")
        yield cluster, conn, running


def test_parked_workers_go_on_when_the_budget_is_lifted(standing_still):
    _cluster, conn, running = standing_still
    change(conn, vacuum_cost_delay="0")
    running.finish()
    checks.assert_clean(conn, "t")


def test_a_parked_worker_that_is_terminated_costs_only_its_help(standing_still):
    _cluster, conn, running = standing_still
    conn.execute("SELECT pg_terminate_backend(%s)", (parked(conn)[0],))
    wait_until(lambda: workers(conn) == 1, "its end")
    change(conn, vacuum_cost_delay="0")
    running.finish()
    assert "a parallel vacuum worker was terminated between two phases" in "\n".join(running.messages)
    checks.assert_clean(conn, "t")


def test_a_vacuum_whose_workers_are_parked_can_be_cancelled(standing_still):
    _cluster, conn, running = standing_still
    conn.execute("SELECT pg_cancel_backend(%s)", (running.pid,))
    with pytest.raises(psycopg.errors.QueryCanceled):
        running.finish()
    wait_until(lambda: workers(conn) == 0, "their end")
    change(conn, vacuum_cost_delay="0")
    conn.execute("VACUUM (PARALLEL 2) t")
    checks.assert_clean(conn, "t")


def test_a_leader_that_is_killed_leaves_no_parked_worker(standing_still):
    _cluster, conn, running = standing_still
    conn.execute("SELECT pg_terminate_backend(%s)", (running.pid,))
    wait_until(lambda: workers(conn) == 0, "their end")
    change(conn, vacuum_cost_delay="0")
    conn.execute("VACUUM (PARALLEL 2) t")
    checks.assert_clean(conn, "t")


def test_a_worker_that_came_after_the_scan_and_is_gone_holds_up_no_later_round(new_cluster):
    """The next round's heap scan neither waits nor runs again for the work that it left."""
    slow = {"vacuum_cost_delay": "5ms", "vacuum_cost_limit": 500}
    cluster = new_cluster(**{**WORKERS, "max_parallel_maintenance_workers": 1}, **slow, maintenance_work_mem="64kB")
    points = {"cyclone.debug_point": "index-vacuum:leader:wait heap-vacuum:leader:wait"}
    idle = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'parallel worker' AND wait_event = 'CyclonePhaseEnd'"
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE TABLE t (id int) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO t SELECT generate_series(1, 400000)")
        conn.execute("CREATE INDEX ON t (id)")
        conn.execute("DELETE FROM t WHERE id % 2 = 0 OR id < 50000")
        command = "VACUUM (PARALLEL 1, INDEX_CLEANUP on, VERBOSE) t"
        running = Parked(cluster, TEMPLATE, "index-vacuum:leader", 1, command, points)
        assert workers(conn) == 0
        change(conn, vacuum_cost_delay="0")
        running.step()  # until the leader waits in the heap vacuum
        wait_until(lambda: conn.execute(idle).fetchall(), "the end of the worker's part")
        conn.execute(f"SELECT pg_terminate_backend(pid) FROM ({idle}) worker")
        wait_until(lambda: workers(conn) == 0, "its end")
        running.finish()
        assert int(re.search(r"index scans: (\d+)", "\n".join(running.messages))[1]) > 1
        checks.assert_clean(conn, "t")


@pytest.fixture
def leader_waits_for_a_piece(new_cluster):
    """A VACUUM whose leader waits for a worker in a GIN index, while the other one is parked; its cluster and a connection."""
    # a budget that nobody comes to the end of, but by which there is only one place
    cluster = new_cluster(**WORKERS | {"cyclone.debug_fed": 1}, vacuum_cost_delay="0.1ms", vacuum_cost_limit=10000)
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE TABLE t (id int, list int[]) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO t SELECT i, ARRAY[1] FROM generate_series(1, 50000) i")
        conn.execute("CREATE INDEX ON t USING gin (list) WITH (fastupdate = off)")
        conn.execute("DELETE FROM t WHERE id % 3 = 0")
        # the leader stays behind, so the worker has the only entry, and is stopped at its posting tree
        points = {"cyclone.debug_point": "index-vacuum:leader:wait gin-posting-page:worker:wait"}
        command = "VACUUM (PARALLEL 2, INDEX_CLEANUP on, VERBOSE) t"
        running = Parked(cluster, TEMPLATE, "gin-posting-page:worker", 2, command, points)
        [worker] = running.workers
        os.kill(worker, signal.SIGSTOP)
        try:
            running.release()
            waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'CycloneGinStretches'"
            wait_until(lambda: conn.execute(waiting, (running.pid,)).fetchall(), "the leader's wait")
            wait_until(lambda: len(parked(conn)) == 1, "the other worker to be parked")
            yield conn, running, worker
        finally:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)


def test_a_leader_that_waits_for_a_worker_in_an_index_calls_others(leader_waits_for_a_piece):
    conn, running, worker = leader_waits_for_a_piece
    change(conn, vacuum_cost_delay="0")
    wait_until(lambda: not parked(conn), "the call")
    os.kill(worker, signal.SIGCONT)
    running.finish()
    checks.assert_clean(conn, "t")


def test_a_leader_that_waits_in_an_index_learns_that_its_worker_was_terminated(leader_waits_for_a_piece):
    conn, running, worker = leader_waits_for_a_piece
    conn.execute("SELECT pg_terminate_backend(%s)", (worker,))
    os.kill(worker, signal.SIGCONT)
    with pytest.raises(psycopg.errors.AdminShutdown):
        running.finish()
    wait_until(lambda: workers(conn) == 0, "the other worker's end")
    conn.execute("VACUUM (PARALLEL 2) t")
    checks.assert_clean(conn, "t")


def test_a_team_that_was_asked_for_makes_way_for_nobody(cluster, db, conn):
    """On one core, beside a session that uses it."""
    set_all(conn, {**WORKERS, "cyclone.debug_cores": 1, "cyclone.debug_workers": 2})
    make_table(conn, 5000)
    busy = Background(cluster, db, BUSY, {})
    state = "SELECT FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND wait_event IS NULL"
    wait_until(lambda: conn.execute(state, (busy.pid,)).fetchall(), "its work")
    assert "2 planned, 0 launched" in vacuum(conn, "INDEX_CLEANUP on")
    conn.execute("DELETE FROM t WHERE id % 7 = 0")
    assert "2 planned, 2 launched" in vacuum(conn, "INDEX_CLEANUP on, PARALLEL 2")
    conn.execute("SELECT pg_cancel_backend(%s)", (busy.pid,))
    assert isinstance(busy.wait(), psycopg.errors.QueryCanceled)
    checks.assert_clean(conn, "t")


def test_who_reads_from_a_slow_disk_is_at_work(new_cluster):
    """On one core, which such a session hardly uses: the team would be at its disk, too."""
    settings = {**WORKERS, "cyclone.debug_cores": 1, "cyclone.debug_workers": 2, "synchronous_commit": "off"}
    cluster = new_cluster(**settings, shared_buffers="64MB", autovacuum="off", max_parallel_workers_per_gather=0)
    cluster.stop()
    disk = Disk(cluster)
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE UNLOGGED TABLE large AS SELECT repeat('x', 700) FROM generate_series(1, 100000)")
        make_table(conn, 5000)
        conn.execute("ALTER TABLE t SET UNLOGGED")
        # t is in the buffers then, and all that it takes to vacuum it
        assert "2 planned, 2 launched" in vacuum(conn, "INDEX_CLEANUP on")
        conn.execute("DELETE FROM t WHERE id % 7 = 0")
        conn.execute("CHECKPOINT")
        disk.slow_down(200_000)
        reader = Background(cluster, TEMPLATE, "SELECT count(*) FROM large", {})
        state = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'IO'"
        wait_until(lambda: conn.execute(state, (reader.pid,)).fetchall(), "its reading")
        assert "2 planned, 0 launched" in vacuum(conn, "INDEX_CLEANUP on")
        disk.slow_down(0)
        conn.execute("SELECT pg_cancel_backend(%s)", (reader.pid,))
        with suppress(psycopg.errors.QueryCanceled):
            reader.finish()
        checks.assert_clean(conn, "t")


def test_workers_rest_and_come_back_while_the_leader_is_in_the_servers_code(new_cluster):
    """On one core, beside a session that uses it now and then: the leader looks around in a routine with another delay point, too.

    An index that they leave half done doesn't count as processed.
    """
    settings = {"cyclone.debug_fed": 1000, "cyclone.debug_cores": 1, "cyclone.debug_workers": 2}
    cluster = new_cluster(**{**WORKERS, **SLOW, **settings, "min_parallel_index_scan_size": "32MB"})
    naps = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'VacuumDelay'"
    at_gate = "SELECT FROM pg_locks WHERE pid = %s AND locktype = 'advisory' AND NOT granted"
    processed = "SELECT indexes_processed FROM pg_stat_progress_vacuum WHERE pid = %s"

    def busy_until_parked() -> Background:
        busy = Background(cluster, TEMPLATE, BUSY, {})
        wait_until(lambda: len(parked(conn)) == 2, "both to be parked")
        return busy

    with cluster.connect(TEMPLATE) as conn, cluster.connect(TEMPLATE) as gate:
        conn.execute("CREATE EXTENSION bloom")
        # the first one is the leader's, as it is small, and has much to do at once; but the workers soon come to the end of a
        # range, as there is nothing dead in what is at the beginning of theirs
        indexes = ("bloom (id) WITH (length = 4000)", "btree (filler, id DESC)")
        make_table(conn, 60_000, indexes, dead="id % 3 = 0 AND id < 40000")
        conn.execute("CHECKPOINT")  # a page that is to be written anyway costs next to nothing
        gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        points = {"cyclone.debug_point": "index-vacuum:leader:wait"}
        running = Background(cluster, TEMPLATE, "VACUUM (INDEX_CLEANUP on, VERBOSE) t", points)
        wait_until(lambda: workers(conn) == 2, "the workers")
        busy = busy_until_parked()
        change(conn, vacuum_cost_delay="0")
        wait_until(lambda: conn.execute(at_gate, (running.pid,)).fetchall(), "the first index")
        change(conn, **SLOW)
        wait_until(lambda: conn.execute("SHOW vacuum_cost_delay").fetchall() == [("10ms",)], "the reload")
        gate.close()
        wait_until(lambda: conn.execute(naps, (running.pid,)).fetchall(), "a nap in the server's code")
        assert len(parked(conn)) == 2
        for _ in range(2):
            conn.execute("SELECT pg_cancel_backend(%s)", (busy.pid,))
            assert isinstance(busy.wait(), psycopg.errors.QueryCanceled)
            wait_until(lambda: not parked(conn), "their coming back")
            busy = busy_until_parked()
            assert conn.execute(processed, (running.pid,)).fetchall() == [(0,)]
        conn.execute("SELECT pg_cancel_backend(%s)", (busy.pid,))
        change(conn, vacuum_cost_delay="0")
        running.finish()
        checks.assert_clean(conn, "t")


def test_free_space_that_a_worker_finds_late_is_offered(new_cluster):
    """The rest of a range is scanned when the free space behind it is offered already; it must not be known to the leaves alone."""
    pages = 130_000  # a range of several thousand blocks is larger than what one page of the free space map is about
    cluster = new_cluster(**WORKERS, autovacuum="off")
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE UNLOGGED TABLE t (id int); INSERT INTO t VALUES (1)")
        [(path,)] = conn.execute("SELECT pg_relation_filepath('t')")
    cluster.stop()
    os.truncate(cluster.data / path, pages * 8192)  # pages that were never initialized: a hole in the file
    cluster.start()
    settings = {
        "cyclone.debug_workers": 1, "cyclone.debug_parking": 5, "cyclone.debug_fsm_blocks": 2048, "max_parallel_maintenance_workers": 1,
    }  # fmt: skip
    with cluster.connect(TEMPLATE) as conn, Parked(
        cluster, TEMPLATE, "heap-scan-remainder:worker", 1, "VACUUM (TRUNCATE off) t", settings
    ) as vacuum:
        # the leader does all the others meanwhile
        scanned = "SELECT FROM pg_stat_progress_vacuum WHERE heap_blks_scanned > %s"
        wait_until(lambda: conn.execute(scanned, (pages * 0.9,)).fetchall(), "the leader's part")
        vacuum.finish()
        conn.execute("CREATE EXTENSION IF NOT EXISTS pageinspect")

        def nodes(block: int) -> dict[int, int]:
            [(text,)] = conn.execute("SELECT fsm_page_contents(get_raw_page('t', 'fsm', %s))", (block,))
            return {int(node): int(space) for node, space in re.findall(r"(\d+): (\d+)", text)}

        [(size,)] = conn.execute("SELECT pg_relation_size('t', 'fsm') / 8192")
        known = nodes(1)
        leaves = {leaf: nodes(leaf + 2).get(0, 0) for leaf in range(size - 2)}
        assert len(leaves) > 30 and all(leaves.values())
        assert {leaf: known.get(4095 + leaf, 0) for leaf in leaves} == leaves
