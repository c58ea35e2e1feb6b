"""A VACUUM of each kind that is cancelled, terminated or struck by an error, in any process and at any point, ends with a clear error,
leaves no lock, pin, file or row of progress behind, and the next one does the whole work. test_recovery.py crashes servers at the same points."""

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

import test_gin
from conftest import TEMPLATE, every_other, tables_made_once
from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Background, Parked, time_out_while_parked, wait_until
from cyclone_lab.files import stray_files
from test_exclusion import EXCLUDE_BIG
from test_inplace import MAKE as MAKE_INPLACE
from test_inplace import MAKE_VALUES
from test_rewrite import CHANGES, MAKE_VERSIONS, run_script
from test_rewrite_indexes import MAKE_INDEXED

SETTINGS = {"min_parallel_index_scan_size": 0}
VACUUM = "VACUUM (VERBOSE, PARALLEL 2) t"
CONTEXTS = {
    # debug point: the context of an error there
    "heap-scan": r'while scanning block \d+ of relation "public\.t"',
    "index-vacuum": r'while vacuuming index "t_\w+" of relation "public\.t"',
    "btree-page": r'while vacuuming index "t_id" of relation "public\.t"',
    "gin-page": r'while vacuuming index "t_a" of relation "public\.t"',
    "hash-bucket": r'while vacuuming index "t_hash" of relation "public\.t"',
    "gist-page": r'while vacuuming index "t_p" of relation "public\.t"',
    "spgist-page": r'while vacuuming index "t_sp" of relation "public\.t"',
    "index-page-deletion": r'while vacuuming index "t_(id|p)" of relation "public\.t"',
    "heap-vacuum": r'while vacuuming block \d+ of relation "public\.t"',
    "index-cleanup": r'while cleaning up index "t_\w+" of relation "public\.t"',
    "truncate": r'while truncating relation "public\.t" to \d+ blocks',
}
# Here each member of a team has something to do.
TEAM_PHASES = ["heap-scan", "index-vacuum", "heap-vacuum", "index-cleanup"]
STOPPED = {"cancel": psycopg.errors.QueryCanceled, "terminate": psycopg.errors.AdminShutdown, "error": psycopg.errors.InternalError_}


class Place(NamedTuple):
    """A debug point of a kind of VACUUM, where `processes` of it are when one of them is ended."""

    kind: str
    point: str
    processes: int = 1
    settings: tuple = ()
    only_errors: bool = False  # as something is locked there

    def __str__(self) -> str:
        return f"{self.kind}-{self.point}"

    @property
    def all_settings(self) -> dict:
        return {**KINDS[self.kind].settings, **dict(self.settings)}


class Kind(NamedTuple):
    """A kind of VACUUM of table t, and what makes the table; another table for some points."""

    statement: str
    make: Callable
    settings: dict


def make_table(conn) -> None:
    """Make table t of some 700 pages, dead rows on each and nothing else at the end, with an index for each process of a team
    of three in index vacuum (btree, hash, gin, gist, sp-gist) and in index cleanup (gin, brin), and empty pages in btree and gist."""
    conn.execute("CREATE TABLE t (id int, a int[], p point, note text) WITH (fillfactor = 20)")
    conn.execute("INSERT INTO t SELECT i, ARRAY[i, -i], point(i, i), md5(i::text) FROM generate_series(1, 9000) i")
    conn.execute("CREATE INDEX t_id ON t (id)")
    conn.execute("CREATE INDEX t_a ON t USING gin (a)")
    conn.execute("CREATE INDEX t_p ON t USING gist (p)")
    conn.execute("CREATE INDEX t_hash ON t USING hash (id)")
    conn.execute("CREATE INDEX t_sp ON t USING spgist (p)")
    conn.execute("CREATE INDEX t_brin_id ON t USING brin (id)")
    conn.execute("CREATE INDEX t_brin_note ON t USING brin (note)")
    conn.execute("DELETE FROM t WHERE id % 3 = 0 OR id > 7000")


def make_gin(conn) -> None:
    """Make table t with an index whose posting trees are shared out, and have pages that become empty."""
    test_gin.make_table(conn, "t", "runs of rows")
    conn.execute(f"DELETE FROM t WHERE {test_gin.SHAPES['runs of rows'][2]}")


def make_versions(conn) -> None:
    """Make table t with a TOAST table, and rows that were changed in many ways."""
    run_script(conn, MAKE_VERSIONS)
    for change in CHANGES:
        run_script(conn, change)


TEAM = {"min_parallel_table_scan_size": 0, "min_parallel_index_scan_size": 0}
KINDS = {
    "VACUUM": Kind(VACUUM, make_table, SETTINGS),
    "VACUUM of gin": Kind("VACUUM (PARALLEL 2) t", make_gin, test_gin.SHARED_OUT),
    "FULL": Kind("VACUUM (FULL, PARALLEL 2) t", make_versions, TEAM),
    "indexes of FULL": Kind("VACUUM (FULL, PARALLEL 2) t", lambda conn: run_script(conn, MAKE_INDEXED), {"maintenance_work_mem": "32MB"}),
    "FULL INPLACE": Kind("VACUUM (FULL INPLACE) t", lambda conn: run_script(conn, MAKE_INPLACE), {}),
    "values of FULL INPLACE": Kind("VACUUM (FULL INPLACE, INDEX_CLEANUP off) t", lambda conn: run_script(conn, MAKE_VALUES + EXCLUDE_BIG), {}),
}
IN_PARTS = (("cyclone.debug_btree_parts", 3),)
PLACES = [
    *(Place("VACUUM", point, 3 if point in TEAM_PHASES else 1) for point in CONTEXTS),
    *(Place("VACUUM of gin", point) for point in ("gin-page", "gin-empty-pages")),
    *(Place("VACUUM of gin", point, 2) for point in ("gin-posting-page", "gin-piece")),
    *(Place("FULL", point, 3 if point == "heap-copy" else 1) for point in ("rewrite-created", "heap-copy", "rewrite-swap", "rewrite-swapped")),
    Place("FULL", "rewrite-extend", only_errors=True),
    *(Place("indexes of FULL", point) for point in ("rewrite-index-files", "rewrite-index-alone")),
    Place("indexes of FULL", "rewrite-index", 3),
    *(Place("indexes of FULL", point, 3, IN_PARTS) for point in ("rewrite-btree-part", "rewrite-entry-sort", "rewrite-collect")),
    Place("indexes of FULL", "rewrite-btree-join", 1, IN_PARTS),
    Place("FULL INPLACE", "inplace-half", only_errors=True),
    *(Place("FULL INPLACE", point) for point in (
        "inplace-plan", "inplace-batch", "inplace-pause", "inplace-lists", "heap-scan", "heap-vacuum", "truncate", "shrink-create", "shrink-build",
        "shrink-scanned", "rewrite-btree-part", "rewrite-btree-join", "shrink-built", "shrink-wait", "shrink-validate", "shrink-swap", "shrink-swapped",
    )),
    Place("values of FULL INPLACE", "inplace-value"),
    Place("values of FULL INPLACE", "inplace-half", only_errors=True),
]  # fmt: skip
INVALID = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT (indisvalid AND indisready AND indislive)"


def context_lines(error: psycopg.Error) -> list[str]:
    """Return an error's context, without what a server says since 19 of the lock that the debug point waited for."""
    return [line for line in error.diag.context.splitlines() if not line.startswith("waiting for")]


def kind_of(request) -> str | None:
    """The kind of the place that a test is about; any other test that needs the table is about a plain VACUUM."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return params["place"].kind if "place" in params else "VACUUM" if "table" in request.fixturenames else None


made, template = tables_made_once({name: kind.make for name, kind in KINDS.items()}, kind_of)


@pytest.fixture
def table(conn) -> dict:
    """Table t, with which the test's database was made; its state."""
    return checks.table_state(conn, "t")


def assert_no_traces(cluster, conn, log_position: int) -> None:
    """Nothing is left of a VACUUM that failed, but a table on which the next one does the whole work."""
    others = """
        SELECT pid, backend_type, query FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
          AND query ~ 'VACUUM|REPACK'
    """
    wait_until(lambda: not conn.execute(others).fetchall(), "the end of all processes of the VACUUM")
    locks = "SELECT * FROM pg_locks WHERE relation = 't'::regclass OR locktype = 'advisory'"
    wait_until(lambda: not conn.execute(locks).fetchall(), "the end of all locks")
    for view in ("cyclone.progress_details", "cyclone.pace", "pg_stat_progress_vacuum"):
        assert conn.execute(f"SELECT * FROM {view} WHERE datname = current_database()").fetchall() == []
    wait_until(lambda: not conn.execute(INVALID).fetchall(), "the end of a copy of an index")
    # the end of a transaction is seen before its files go
    wait_until(lambda: not stray_files(cluster, conn), "the end of files of no relation")
    assert list((cluster.data / "base" / "pgsql_tmp").glob("*")) == []
    trouble = re.compile("leak|PANIC|TRAP|was terminated by signal|multiple active vacuums")
    assert not trouble.search(cluster.log[log_position:])


def assert_sound(conn, before: dict) -> None:
    """Between two VACUUMs: the rows are there, and only index entries of dead items may be there besides."""
    assert checks.same_rows(checks.table_state(conn, "t"), before)
    assert checks.heap_corruption(conn, "t") == checks.btree_corruption(conn, "t") == checks.visibility_map_errors(conn, "t") == []
    assert checks.dangling_index_entries(conn, "t", between_passes=True) == []


def assert_whole(conn, before: dict, *statements: str) -> None:
    """After these, and a complete VACUUM (FREEZE), everything is as that leaves it; where it shrinks tables t has become smaller."""
    # an aggressive vacuum waits for ever for a page that someone has pinned; on few pages it would leave dead items
    conn.execute("SET statement_timeout = '60s'")
    for statement in (*statements, "VACUUM (FREEZE, DISABLE_PAGE_SKIPPING, INDEX_CLEANUP on, PARALLEL 2) t"):
        conn.execute(statement)
    after = checks.assert_vacuumed(conn, "t", before)
    assert after["all_frozen"] == after["relpages"] > 0
    assert after["reltuples"] == after["rows"]


@pytest.fixture
def unharmed(cluster, conn, table):
    """Table t, in which a VACUUM may fail: at the end of the test nothing is left of that, and the next VACUUM makes it whole."""
    log_position = len(cluster.log)
    yield
    assert_no_traces(cluster, conn, log_position)
    assert_whole(conn, table)


def ended(cluster, conn, statement: str, place: Place, role: str, how: str) -> psycopg.Error | None:
    """Have one process of a statement end when as many as the place says have come there; return the statement's error.

    The role is leader, worker, or any: whichever comes first.
    """
    at = f"{place.point}:{'any' if place.processes > 1 else role}"
    settings = dict(place.all_settings)
    if how == "error" and place.only_errors:
        return Background(cluster, conn.info.dbname, statement, {**settings, "cyclone.debug_point": f"{at}:error"}).wait()
    if how == "error":
        settings["cyclone.debug_point"] = f"{at}:wait {place.point}:{role}:error"
    with Parked(cluster, conn.info.dbname, at, place.processes, statement, settings) as vacuum:
        if how == "error":
            vacuum.release()
        else:
            victim = {"leader": [vacuum.pid], "worker": vacuum.workers, "any": vacuum.parked}[role][0]
            conn.execute(f"SELECT pg_{how}_backend(%s)", (victim,))
        return vacuum.wait()  # the other processes may still be parked, and must be torn away


def ends_of(places: list[Place]) -> list:
    """Return the places, each with the roles of the process that is ended there, and how.

    In `make check` one way at each: what has to be cleaned up goes by the place, how the process comes to that by the way.
    """
    victims = [(place, role) for place in places for role in (("leader", "worker") if place.processes > 1 else ("any",))]
    ends = []
    for number, (place, role) in enumerate(victims):
        ways = ["error"] if place.only_errors else list(STOPPED)
        for how in ways:
            marks = [] if how == ways[number % len(ways)] else [pytest.mark.full]
            ends.append(pytest.param(place, role, how, id=f"{place}-{role}-{how}", marks=marks))
    return ends


@pytest.mark.parametrize("place, role, how", ends_of(PLACES))
def test_one_process_is_ended(cluster, conn, table, place, role, how):
    """The command ends with that error, and all its processes with it."""
    assert_ends_without_harm(cluster, conn, table, place, role, how, KINDS[place.kind].statement)


@pytest.mark.parametrize("how", STOPPED)
def test_one_process_is_ended_among_linked_row_versions(cluster, db, conn, how):
    """An old snapshot needs them."""
    log_position = len(cluster.log)
    run_script(conn, MAKE_VERSIONS)
    with cluster.snapshot(db):
        for change in CHANGES:
            run_script(conn, change)
        before = checks.table_state(conn, "t")
        assert isinstance(ended(cluster, conn, KINDS["FULL"].statement, Place("FULL", "update-chains"), "any", how), STOPPED[how])
        assert checks.same_rows(checks.table_state(conn, "t"), before)
        conn.execute(KINDS["FULL"].statement)
    assert_no_traces(cluster, conn, log_position)
    assert_whole(conn, before, KINDS["FULL"].statement)


def assert_ends_without_harm(cluster, conn, before: dict, place: Place, role: str, how: str, statement: str) -> None:
    """Have a statement end so, and then have it succeed."""
    log_position = len(cluster.log)
    error = ended(cluster, conn, statement, place, role, how)
    assert isinstance(error, STOPPED[how]), error
    if how == "error" and not place.only_errors:
        assert error.diag.message_primary.startswith(f'debug point "{place.point}" reached in {role.replace("any", "")}')
    if place.kind == "VACUUM" and (role == "worker" or role == "leader" and how != "terminate"):
        context = context_lines(error)
        assert re.fullmatch(CONTEXTS[place.point], context[0]), context
        assert context[1:2] == ["parallel worker"] * (role == "worker"), context
    assert_no_traces(cluster, conn, log_position)
    assert_sound(conn, before)
    assert_whole(conn, before, statement)


def test_workers_that_are_only_just_starting_say_nothing(cluster, db, conn, table):
    """The leader fails a few ms after it has launched them: they are not to be terminated before they know that."""
    log_position = len(cluster.log)
    with cluster.connect(db) as gate, cluster.connect(db) as session:
        gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        session.execute("SET cyclone.debug_point = 'heap-scan:leader:wait'")
        for ms in range(2, 32):
            session.execute("SET statement_timeout = %s" % ms)
            with pytest.raises(psycopg.errors.QueryCanceled):
                session.execute("VACUUM (PARALLEL 3) t")
    assert_no_traces(cluster, conn, log_position)
    assert_whole(conn, table)
    assert "FATAL" not in cluster.log[log_position:]


def test_a_leader_that_fails_on_a_page_keeps_it_locked_for_nobody(cluster, db, conn, table):
    """While it waits for workers that are only just starting, as the postmaster stands still, others read the page."""
    conn.execute("SELECT pg_current_xact_id()")
    conn.execute(
        "UPDATE pg_class SET relfrozenxid = (pg_snapshot_xmax(pg_current_snapshot())::text::bigint %% (1::bigint << 32) - 1)::text::xid"
        " WHERE relname = %s", ("t",)
    )  # fmt: skip
    errors = []

    def vacuum() -> None:
        try:
            session.execute("VACUUM (FREEZE, DISABLE_PAGE_SKIPPING, PARALLEL 2) t")
        except psycopg.Error as error:
            errors.append(error)

    with cluster.connect(db) as session:
        session.execute("SET cyclone.debug_arrival_ms = 60000; SET min_parallel_index_scan_size = 0")
        conn.execute("SET statement_timeout = '20s'")
        thread = threading.Thread(target=vacuum)
        os.kill(cluster.postmaster.pid, signal.SIGSTOP)
        try:
            thread.start()
            waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'BgworkerStartup'"
            wait_until(lambda: conn.execute(waits, (session.info.backend_pid,)).fetchall(), "a leader that has failed")
            assert conn.execute("SELECT count(*) FROM t").fetchone() == (4667,)
            assert thread.is_alive()
        finally:
            os.kill(cluster.postmaster.pid, signal.SIGCONT)
            thread.join()
    assert "before relfrozenxid" in str(errors)
    conn.execute("UPDATE pg_class SET relfrozenxid = '3' WHERE relname = 't'")
    conn.execute("VACUUM (FREEZE, INDEX_CLEANUP on) t")
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_the_leader_is_stopped_while_it_waits_for_a_worker(cluster, db, conn, unharmed, how):
    # the delay keeps the leader from doing it all before a worker comes, however long that takes to start
    slow = {"vacuum_cost_delay": "20ms", "vacuum_cost_limit": 20, **SETTINGS}
    with Parked(cluster, db, "heap-scan:worker", 1, VACUUM, slow) as vacuum:
        waiting = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: conn.execute(waiting, (vacuum.pid,)).fetchone() == ("CyclonePhaseEnd",), "the leader's wait")
        conn.execute(f"SELECT pg_{how}_backend(%s)", (vacuum.pid,))
        error = vacuum.wait()
    assert isinstance(error, STOPPED[how]), error


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_a_worker_is_stopped_while_it_waits_for_the_leader(cluster, db, conn, unharmed, how):
    """To cancel is to cancel the command; a worker that is terminated has done its part, and is missed by nobody."""
    # each has an index to itself, and the leader stands still before its own
    with Parked(cluster, db, "index-vacuum:any", 3, VACUUM, SETTINGS) as vacuum:
        idle = "SELECT pid FROM pg_stat_activity WHERE leader_pid = %s AND wait_event = 'CyclonePhaseEnd'"
        with vacuum.paused():
            vacuum.release()
            wait_until(lambda: len(conn.execute(idle, (vacuum.pid,)).fetchall()) == 2, "the workers' wait")
            [(worker,), _] = conn.execute(idle, (vacuum.pid,)).fetchall()
            conn.execute(f"SELECT pg_{how}_backend(%s)", (worker,))
            wait_until(lambda: len(conn.execute(idle, (vacuum.pid,)).fetchall()) == 1, "the worker's end")
        if how == "cancel":
            error = vacuum.wait()
            assert isinstance(error, psycopg.errors.QueryCanceled), error
            assert "parallel worker" in error.diag.context
        else:
            said = "\n".join(vacuum.finish())
            assert "a parallel vacuum worker was terminated between two phases" in said
            assert checks.table_state(conn, "t")["dead_items"] == 0


@pytest.mark.parametrize("point", ["team-join", "team-leave"])
def test_workers_that_are_terminated_before_or_after_their_phases_cost_no_more_than_their_help(cluster, db, conn, unharmed, point):
    with Parked(cluster, db, f"{point}:worker", 2, VACUUM, SETTINGS) as vacuum:
        for worker in vacuum.workers:
            conn.execute("SELECT pg_terminate_backend(%s)", (worker,))
        if point == "team-leave":
            vacuum.release()
        assert vacuum.wait() is None  # at the first point though it is still closed
    said = "\n".join(vacuum.messages)
    assert "terminated" not in said
    if point == "team-join":
        assert said.count("a parallel vacuum worker could not take part") == 2
    assert checks.table_state(conn, "t")["dead_items"] == 0


def test_a_worker_that_is_terminated_twice_costs_its_help_once(cluster, db, conn, unharmed):
    points = {"cyclone.debug_point": "index-vacuum:leader:wait team-leave:worker:wait"}
    # the delay keeps the workers from doing all indexes before the leader comes to one
    slow = {"vacuum_cost_delay": "20ms", "vacuum_cost_limit": 40}
    with Parked(cluster, db, "index-vacuum:leader", 1, VACUUM, {**points, **slow, **SETTINGS}) as vacuum:
        idle = "SELECT pid FROM pg_stat_activity WHERE leader_pid = %s AND wait_event = 'CyclonePhaseEnd'"
        wait_until(lambda: len(conn.execute(idle, (vacuum.pid,)).fetchall()) == 2, "the workers' wait")
        [(worker,), _] = conn.execute(idle, (vacuum.pid,)).fetchall()
        conn.execute("SELECT pg_terminate_backend(%s)", (worker,))
        vacuum.wait_for(2)
        assert vacuum.workers == [worker]
        conn.execute("SELECT pg_terminate_backend(%s)", (worker,))
        vacuum.finish()
    assert "\n".join(vacuum.messages).count("a parallel vacuum worker was terminated between two phases") == 1


@pytest.mark.parametrize("command", ["VACUUM (VERBOSE, PARALLEL 2) t", "VACUUM (FULL, VERBOSE, PARALLEL 2) t"])
def test_workers_that_fail_before_their_first_phase_cost_only_their_help(cluster, db, conn, unharmed, command):
    log_position = len(cluster.log)
    said = "\n".join(Background(cluster, db, command, {"cyclone.debug_point": "team-join:worker:error", **SETTINGS}).finish())
    teams = 2 if "FULL" in command else 1  # the second one builds indexes
    assert said.count("a parallel vacuum worker could not take part") == 2 * teams
    assert 'debug point "team-join" reached in worker' in cluster.log[log_position:]
    assert checks.table_state(conn, "t")["dead_items"] == 0


def test_after_an_error_in_a_team_nothing_of_its_cost_accounting_is_touched(conn, unharmed):
    """The memory that the leader shared with its workers is gone: the next command of the session sleeps by itself."""
    conn.execute("SET vacuum_cost_delay = '20ms'; SET vacuum_cost_limit = 10")  # alone it would take half a minute
    conn.execute("SET cyclone.debug_point = 'heap-scan:worker:error'")
    with pytest.raises(psycopg.errors.InternalError, match='debug point "heap-scan" reached in worker'):
        conn.execute("VACUUM (PARALLEL 2) t")
    conn.execute("RESET cyclone.debug_point; SET vacuum_cost_delay = '1ms'; SET vacuum_cost_limit = 1000")
    conn.execute("ANALYZE t")
    conn.execute("VACUUM (PARALLEL 0) t")
    conn.execute("VACUUM (PARALLEL 2, DISABLE_PAGE_SKIPPING) t")


@pytest.mark.parametrize("phase", TEAM_PHASES)
def test_the_statement_timeout_stops_a_team(cluster, db, conn, unharmed, phase):
    time_out_while_parked(cluster, db, f"{phase}:any", 3, VACUUM, SETTINGS)


@pytest.mark.parametrize("command", ["VACUUM (PARALLEL 2) t", "VACUUM (FULL, PARALLEL 2) t"])
def test_the_lock_timeout_stops_a_wait_for_the_table(cluster, db, conn, unharmed, command):
    conn.execute("BEGIN")
    conn.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
    error = Background(cluster, db, command, {"lock_timeout": "100ms", **SETTINGS}).wait()
    assert isinstance(error, psycopg.errors.LockNotAvailable), error
    conn.execute("COMMIT")


@every_other("phase, how", [*TEAM_PHASES, "truncate"], ["finishes", "is cancelled"])
def test_others_may_wait_to_alter_or_drop_the_table(cluster, db, conn, table, phase, how):
    """They get their turn whether VACUUM finishes or not, and what they do is not undone."""
    processes = 1 if phase == "truncate" else 3
    log_position = len(cluster.log)
    with Parked(cluster, db, f"{phase}:any", processes, VACUUM, SETTINGS) as vacuum:
        alter = Background(cluster, db, "ALTER TABLE t ADD COLUMN extra int DEFAULT 7, DROP COLUMN p")
        waiting = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: conn.execute(waiting, (alter.pid,)).fetchone() == ("Lock",), "the wait of ALTER TABLE")
        if how == "is cancelled":
            conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
            assert isinstance(vacuum.wait(), psycopg.errors.QueryCanceled)
        else:
            vacuum.finish()
        alter.finish()
    assert conn.execute("SELECT count(*), sum(extra) FROM t").fetchone() == (table["rows"], 7 * table["rows"])
    assert_no_traces(cluster, conn, log_position)
    conn.execute("VACUUM (INDEX_CLEANUP on) t")
    assert checks.table_state(conn, "t")["dead_items"] == 0
    checks.assert_clean(conn, "t")

    conn.execute("DELETE FROM t WHERE id % 5 = 0")
    point = "heap-scan" if phase == "truncate" else phase  # with nothing to cut off
    with Parked(cluster, db, f"{point}:any", 1, VACUUM, SETTINGS) as vacuum:
        drop = Background(cluster, db, "DROP TABLE t")
        wait_until(lambda: conn.execute(waiting, (drop.pid,)).fetchone() == ("Lock",), "the wait of DROP TABLE")
        vacuum.finish()
        drop.finish()
    assert conn.execute("SELECT to_regclass('t')").fetchone() == (None,)


def test_a_full_lock_table_fails_the_command_only(new_cluster):
    cluster = new_cluster(max_locks_per_transaction=10, max_connections=10, max_prepared_transactions=0, max_worker_processes=4,
                          max_wal_senders=0)  # fmt: skip
    with cluster.connect(TEMPLATE) as conn, cluster.connect(TEMPLATE) as greedy:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        conn.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 20000) i")
        conn.execute("DELETE FROM t WHERE id % 3 = 0")
        before = checks.table_state(conn, "t")
        with pytest.raises(psycopg.errors.OutOfMemory):
            for number in range(100_000):
                greedy.execute("SELECT pg_advisory_lock(%s)", (number,))
        for command in ("VACUUM (PARALLEL 2) t", "VACUUM (FULL, PARALLEL 2) t"):
            with pytest.raises(psycopg.errors.OutOfMemory, match="out of shared memory") as raised:
                conn.execute(command)
            assert "max_locks_per_transaction" in raised.value.diag.message_hint
        greedy.execute("SELECT pg_advisory_unlock_all()")
        conn.execute("VACUUM (FREEZE, PARALLEL 2) t")
        assert_whole(conn, before)


def test_a_vacuum_goes_on_without_the_workers_it_cannot_have(cluster, db, conn, unharmed):
    said = "\n".join(Background(cluster, db, VACUUM, {"max_parallel_workers": 0, **SETTINGS}).finish())
    assert "launched 0 parallel vacuum workers (planned: 2)" in said
    assert "parallel workers: 2 planned, 0 launched" in said
    assert checks.table_state(conn, "t")["dead_items"] == 0


@pytest.mark.parametrize("phase", TEAM_PHASES[1:])
def test_workers_that_come_late_join_the_phase_that_is_running(cluster, db, conn, unharmed, phase):
    # While the postmaster stands still no worker can start; the VACUUM waits for a lock until it does.
    conn.execute("BEGIN")
    conn.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
    with cluster.connect(db) as watcher, Parked(cluster, db, f"{phase}:any", 0, VACUUM, SETTINGS) as vacuum:
        waiting = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: watcher.execute(waiting, (vacuum.pid,)).fetchone() == ("Lock",), "the wait for the lock")
        os.kill(cluster.postmaster.pid, signal.SIGSTOP)
        try:
            conn.execute("COMMIT")
            vacuum.wait_for(1)
            assert vacuum.parked == [vacuum.pid]
        finally:
            os.kill(cluster.postmaster.pid, signal.SIGCONT)
        vacuum.wait_for(3)
        vacuum.finish()
    assert "parallel workers: 2 planned, 2 launched" in "\n".join(vacuum.messages)
    assert checks.table_state(conn, "t")["dead_items"] == 0


def footprint(conn) -> dict[str, int]:
    """Return what the connection's session holds on to, and how many segments of shared memory its server does.

    A buffer that stays pinned is a fault; the server's own processes pin one for a moment.
    """
    pid = conn.info.backend_pid
    pinned = "SELECT count(*) FROM pg_buffercache WHERE pinning_backends > 0"
    wait_until(lambda: conn.execute(pinned).fetchone() == (0,), "no pinned buffer")
    counts = {
        "memory contexts": "SELECT count(*) FROM pg_backend_memory_contexts",
        "locks": "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()",
        "segments": "SELECT count(*) FROM pg_ls_dir('pg_dynshmem')",
    }
    found = {what: conn.execute(query).fetchone()[0] for what, query in counts.items()}
    found["mapped segments"] = Path(f"/proc/{pid}/maps").read_text().count("pg_dynshmem")
    found["open files"] = len(os.listdir(f"/proc/{pid}/fd"))
    return found


def fail_at(cluster, conn, point: str) -> None:
    """Let a VACUUM of t by this connection fail at a point; if a role is said, only when a team of three has come there."""
    phase, role = point.split(":")
    with cluster.connect(TEMPLATE) as gate:
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"

        def open_gate() -> None:
            try:
                wait_until(lambda: gate.execute(waiting, (DEBUG_POINT_LOCK,)).fetchone() == (3,), "the team's arrival")
            finally:
                gate.execute("SELECT pg_advisory_unlock_all()")

        opener = threading.Thread(target=open_gate)
        if role == "any":
            conn.execute(f"SET cyclone.debug_point = '{point}:error'")
        else:
            conn.execute(f"SET cyclone.debug_point = '{phase}:any:wait {point}:error'")
            gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
            opener.start()
        with pytest.raises(psycopg.errors.InternalError, match=f'debug point "{phase}" reached in'):
            conn.execute("VACUUM (PARALLEL 2, INDEX_CLEANUP on) t")
        conn.execute("RESET cyclone.debug_point")
        if role != "any":
            opener.join()


def test_a_session_whose_vacuums_fail_again_and_again_keeps_nothing_of_them(new_cluster):
    # each segment is a file that can be seen, and none comes from memory that the server keeps anyway
    cluster = new_cluster(dynamic_shared_memory_type="mmap", min_dynamic_shared_memory=0, **SETTINGS)
    points = [f"{phase}:{role}" for phase in ("heap-scan", "index-vacuum") for role in ("leader", "worker")]
    points += ["btree-page:any", "index-page-deletion:any", "heap-vacuum:any", "index-cleanup:any"]
    memory = "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts"
    with cluster.connect(TEMPLATE, prepare_threshold=None) as conn:  # prepared statements take memory, too
        conn.execute("CREATE EXTENSION pg_buffercache")
        conn.execute("CREATE TABLE t (id int, a int[], p point) WITH (fillfactor = 20, autovacuum_enabled = off)")
        conn.execute("CREATE INDEX t_id ON t (id)")
        conn.execute("CREATE INDEX t_a ON t USING gin (a)")
        conn.execute("CREATE INDEX t_p ON t USING gist (p)")

        def fail_at_all_points() -> None:
            for point in points:
                conn.execute("INSERT INTO t SELECT i, ARRAY[i, -i], point(i, i) FROM generate_series(1, 4000) i")
                conn.execute("DELETE FROM t WHERE id % 5 > 0 OR id > 1000")
                fail_at(cluster, conn, point)

        for _ in range(2):  # fills caches
            fail_at_all_points()
            before, [(bytes_before,)] = footprint(conn), conn.execute(memory)
        log_position = len(cluster.log)
        for _ in range(4):
            fail_at_all_points()
        after, [(bytes_after,)] = footprint(conn), conn.execute(memory)
        assert after == before
        assert bytes_after - bytes_before < 4 * len(points) * 1024, "less than the smallest memory context for each of them"
        assert after["segments"] > 0 and after["mapped segments"] > 0, "the server's own"
        assert_no_traces(cluster, conn, log_position)
        conn.execute("VACUUM (FREEZE, DISABLE_PAGE_SKIPPING, INDEX_CLEANUP on, PARALLEL 2) t")
        checks.assert_clean(conn, "t")
