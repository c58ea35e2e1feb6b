"""How fast a VACUUM goes: one budget for all its processes, settings that change meanwhile, and the adaptive delay.

test/unit/test_pace_law.c has the control law in a simulation. test_core_waits.py has what others wait for.
"""

import os
import re
import signal
import threading
import time

import psycopg
import pytest

from conftest import CONFIG
from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Background, Parked, wait_until
from cyclone_lab.cluster import Cluster
from long_runs.statements import alter_system

SETTINGS = {"min_parallel_table_scan_size": 0, "min_parallel_index_scan_size": 0}
COSTS = {"vacuum_cost_page_hit": 1, "vacuum_cost_page_miss": 1, "vacuum_cost_page_dirty": 10}
# Statements that take a millisecond or more, come what may
BUSY = "SELECT count(*) FROM generate_series(1, 10000)"
# So slow that it would not end by itself.
STANDSTILL = {"vacuum_cost_delay": "100ms", "vacuum_cost_limit": 1}
# ... with an adaptive delay neither, while a session is at work
LITTLE_ADDED = {**STANDSTILL, "cyclone.debug_price": 20}


def rows_by_pid(conn) -> dict:
    """Return the rows of cyclone.pace of this database by process ID."""
    cursor = conn.execute("SELECT * FROM cyclone.pace_details WHERE datname = current_database()")
    names = [column.name for column in cursor.description]
    return {row["pid"]: row for row in (dict(zip(names, values, strict=True)) for values in cursor.fetchall())}


def pace(conn) -> dict | None:
    """Return the only row of cyclone.pace of this database, or None."""
    rows = list(rows_by_pid(conn).values())
    assert len(rows) <= 1
    return rows[0] if rows else None


def make_table(conn, indexes=("btree (id)",)) -> None:
    """Make table t of some 2000 pages, every third row of which is dead."""
    conn.execute("CREATE TABLE t (id int, a int[]) WITH (fillfactor = 10, autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, ARRAY[i % 100, i % 77] FROM generate_series(1, 30000) i")
    for index in indexes:
        conn.execute(f"CREATE INDEX ON t USING {index}")
    conn.execute("DELETE FROM t WHERE id % 3 = 0")


def make_slow_table(conn, name="t", pages=5000) -> None:
    """Make a table with a row on each page that a VACUUM has to write."""
    conn.execute(f"CREATE TABLE {name} (id int, filler text) WITH (fillfactor = 10, autovacuum_enabled = off)")
    conn.execute(f"INSERT INTO {name} SELECT i, repeat('x', 700) FROM generate_series(1, {pages}) i")
    conn.execute(f"DELETE FROM {name} WHERE id % 3 = 0")
    conn.execute("CHECKPOINT")  # a page that is to be written anyway costs next to nothing


@pytest.mark.parametrize("indexes", [("btree (id)",), ("gin (a)", "btree (id)", "hash (id)")], ids=["btree", "several"])
@pytest.mark.parametrize("workers", [*(pytest.param(number, marks=pytest.mark.once) for number in (0, 1, 4)), 8])
def test_a_team_has_the_budget_of_one_process(conn, workers, indexes):
    """It takes at least as long as all that it costs, at the rate of the settings; that it takes no longer is for the bench."""
    make_table(conn, indexes)
    settings = {**SETTINGS, **COSTS, "vacuum_cost_delay": "20ms", "vacuum_cost_limit": 100}
    if workers == 8:  # and come and go
        settings |= {"max_parallel_maintenance_workers": 8, "cyclone.debug_parking": 3}
    for name, value in settings.items():
        conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
    usage = []
    conn.add_notice_handler(lambda notice: usage.append(notice.message_detail or notice.message_primary))
    start = time.monotonic()
    conn.execute(f"VACUUM (VERBOSE, INDEX_CLEANUP on, PARALLEL {workers}) t")
    seconds = time.monotonic() - start
    lines = [line for line in "\n".join(usage).splitlines() if line.startswith("buffer usage: ")]
    assert len(lines) == 2, "the table and its TOAST table"
    counts = [[int(part.split()[0]) for part in line.removeprefix("buffer usage: ").split(", ")] for line in lines]
    cost = sum(hits + misses + 10 * dirtied for hits, misses, dirtied in counts)
    slept = [float(text) for text in re.findall(r"pace: processes slept ([\d.]+) s in all", "\n".join(usage))]
    assert len(slept) == 2 and 0 < slept[0] < (workers + 1) * seconds and slept[1] <= slept[0]
    assert cost > 7_000
    # what comes before and after the team is not paid for
    assert seconds > 0.95 * (cost - 1000) / 5_000
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_a_long_nap_is_counted_once(conn):
    """A process wakes up now and then during it."""
    conn.execute("CREATE TABLE t (a int)")
    conn.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    conn.execute("SET vacuum_cost_delay = '100ms'; SET vacuum_cost_limit = 1; SET vacuum_cost_page_hit = 4")
    usage = []
    conn.add_notice_handler(lambda notice: usage.append(notice.message_detail or notice.message_primary))
    start = time.monotonic()
    conn.execute("VACUUM (VERBOSE, PARALLEL 0) t")
    [slept] = re.findall(r"pace: processes slept ([\d.]+) s in all", "\n".join(usage))
    assert 1 < float(slept) <= time.monotonic() - start + 0.001, "it is rounded to ms"
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.once), 2])
def test_settings_change_while_it_runs(new_cluster, workers):
    """A reload reaches a running VACUUM, unless the session has a value of its own; and the session after it, as ever."""
    cluster = new_cluster(**SETTINGS, **STANDSTILL)
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        checks.create_extensions(conn)
        make_table(conn)
        statement = f"VACUUM (PARALLEL {workers}) t"
        vacuum = Background(cluster, "postgres", statement)
        conn.execute("CREATE TABLE own WITH (fillfactor = 10) AS SELECT generate_series(1, 100000)")  # which takes minutes
        own = Background(cluster, "postgres", "VACUUM (PARALLEL 0) own", STANDSTILL)
        wait_until(lambda: len(conn.execute("SELECT FROM cyclone.pace").fetchall()) == 2, "two VACUUMs")
        wait_until(
            lambda: conn.execute("SELECT FROM cyclone.pace_details WHERE pid = %s AND asleep > 0.5", (vacuum.pid,)).fetchall(), "sleep"
        )
        [(limit, budget)] = conn.execute("SELECT limited_by, budget FROM cyclone.pace_details WHERE pid = %s", (vacuum.pid,))
        assert (limit, budget) == ("cost delay", 10)

        alter_system(conn, "SET vacuum_cost_limit = 20")
        query = "SELECT budget FROM cyclone.pace_details WHERE pid = %s"
        wait_until(lambda: conn.execute(query, (vacuum.pid,)).fetchone() == (200,), "a new budget")
        alter_system(conn, "SET vacuum_cost_delay = 0")
        vacuum.finish()
        assert own.running and conn.execute(query, (own.pid,)).fetchone() == (10,)
        conn.execute("SELECT pg_cancel_backend(%s)", (own.pid,))
        assert isinstance(own.wait(), psycopg.errors.QueryCanceled)
        assert pace(conn) is None
        checks.assert_clean(conn, "t")


def test_the_session_reloads_its_settings_after_the_command(new_cluster):
    cluster = new_cluster(**SETTINGS, **STANDSTILL)
    with cluster.connect() as conn, cluster.connect() as other:
        other.execute("CREATE EXTENSION pg_cyclone")
        make_table(other)
        thread = threading.Thread(target=conn.execute, args=("VACUUM (PARALLEL 2) t",))
        thread.start()
        wait_until(lambda: pace(other), "a VACUUM")
        alter_system(other, "SET vacuum_cost_delay = 0", "SET vacuum_cost_page_hit = 7", "SET work_mem = '77MB'")
        thread.join()
        values = [conn.execute(f"SHOW {name}").fetchone()[0] for name in ("vacuum_cost_delay", "vacuum_cost_page_hit", "work_mem")]
        assert values == ["0", "7", "77MB"]


class Load:
    """Sessions that run a statement over and over, with a break in between; `rounds` says how often each has."""

    def __init__(self, cluster, dbname, statement, sessions, *, seconds=0.01):
        self._seconds = seconds
        self._end = threading.Event()
        self._error = None
        self._begun = threading.Semaphore(0)
        self.rounds = [0] * sessions
        self._threads = [threading.Thread(target=self._run, args=(cluster, dbname, statement, i)) for i in range(sessions)]

    def _run(self, cluster, dbname, statement, number):
        try:
            with cluster.connect(dbname) as conn:
                self._begun.release()
                while not self._end.is_set():
                    conn.execute(statement)
                    self.rounds[number] += 1
                    time.sleep(self._seconds)
        except psycopg.Error as error:
            self._error = error
            self._begun.release()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            self._begun.acquire()
        return self

    def __exit__(self, *_exception):
        self._end.set()
        for thread in self._threads:
            thread.join()
        assert self._error is None


@pytest.mark.once
def test_the_cost_delay_goes_by_the_settings(conn):
    """Also in the server's code for other indexes."""
    make_table(conn, ("btree (id)", "gin (a)", "hash (id)"))
    conn.execute("CHECKPOINT")
    settings = {"vacuum_cost_page_hit": 3, "vacuum_cost_page_miss": 5, "vacuum_cost_page_dirty": 0,
                "vacuum_cost_delay": "20ms", "vacuum_cost_limit": 200}  # fmt: skip
    for name, value in settings.items():
        conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
    said = []
    conn.add_notice_handler(lambda notice: said.append(notice.message_detail or notice.message_primary))
    start = time.monotonic()
    conn.execute("VACUUM (VERBOSE, INDEX_CLEANUP on, PROCESS_TOAST off, PARALLEL 0) t")
    seconds = time.monotonic() - start
    [(hits, misses)] = re.findall(r"buffer usage: (\d+) hits, (\d+) (?:reads|misses)", "\n".join(said))
    cost = 3 * int(hits) + 5 * int(misses)
    assert cost > 7_000
    assert seconds > 0.9 * (cost - 2000) / 10_000
    assert [conn.execute(f"SHOW {name}").fetchone()[0] for name in list(settings)[:3]] == ["3", "5", "0"]


def test_what_is_added_is_learned(cluster, db, conn):
    """VACUUM keeps to its cost delay, and then adds to it by what others wait for. When they have gone, it goes at full speed."""
    make_slow_table(conn, pages=20000)
    settings = {**SETTINGS, **LITTLE_ADDED, "cyclone.adaptive_delay": "on"}
    busy = "SELECT count(*) FROM pg_stat_activity WHERE query = %s"
    with Load(cluster, db, BUSY, 4):
        # or VACUUM may be through before anybody waits
        wait_until(lambda: conn.execute(busy, (BUSY,)).fetchone() == (4,), "the load")
        vacuum = Background(cluster, db, "VACUUM (PARALLEL 1) t", settings)
        row = wait_until(lambda: (row := pace(conn)) and row["limited_by"] in ("other sessions", "floor") and row, "its end")
        assert (row["shared_by"], row["figure"], row["bound"], row["budget"]) == (1, None, None, 10), row
        assert (row["added"] > 0) == (row["limited_by"] == "other sessions") and row["others_at_work"] > 0, row
        wait_until(lambda: (row := pace(conn)) and min(row["others_take"] or 0, row["others_would_take"] or 0) >= 1, "what they take")
    vacuum.finish()
    checks.assert_clean(conn, "t")


BURN = """
    CREATE OR REPLACE FUNCTION burn(seconds float8) RETURNS int LANGUAGE plpgsql AS $$
    DECLARE until timestamptz := clock_timestamp() + seconds * interval '1 s';
    BEGIN WHILE clock_timestamp() < until LOOP END LOOP; RETURN 0; END $$"""
# All that may be added beside somebody who burns is worth nothing.
NOTHING_ADDED = {**STANDSTILL, "cyclone.debug_price": 1_000_000}


def cancel(conn, *processes):
    for process in processes:
        conn.execute("SELECT pg_cancel_backend(%s)", (process.pid,))
        process.wait()


@pytest.mark.once
def test_who_sees_what(cluster, db, conn):
    make_table(conn)
    conn.execute("CREATE ROLE regress_pace_nobody")
    vacuum = Background(cluster, db, "VACUUM (PARALLEL 0) t", {**SETTINGS, **STANDSTILL})
    wait_until(lambda: pace(conn), "a VACUUM")
    with cluster.connect(db) as other:
        other.execute("SET ROLE regress_pace_nobody")
        row = pace(other)
    assert {name for name, value in row.items() if value is not None} == {"pid", "datid", "datname"}
    conn.execute("SELECT pg_terminate_backend(%s)", (vacuum.pid,))
    assert vacuum.wait()
    wait_until(lambda: pace(conn) is None, "the end of its row")
    conn.execute("DROP ROLE regress_pace_nobody")


@pytest.fixture(scope="module")
def reloaded(prefix):
    """A server whose configuration files may be changed; what was changed, and table t, is for the test to take back."""
    with Cluster.create(prefix, {**CONFIG, **SETTINGS}) as cluster:
        cluster.start()
        with cluster.connect() as conn:
            conn.execute("CREATE EXTENSION pg_cyclone")
            checks.create_extensions(conn)
        yield cluster


@pytest.mark.parametrize("point", [
    "heap-scan", *(pytest.param(point, marks=pytest.mark.once) for point in ("index-vacuum", "btree-page", "heap-vacuum", "index-cleanup"))
])
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.once), 2])
def test_an_adaptive_delay_is_set_by_a_reload_in_each_phase(reloaded, point, workers):
    """And taken back in the next: the VACUUM goes on, and its session ends in peace."""
    cluster = reloaded
    position = len(cluster.log)
    with cluster.connect() as conn:
        conn.execute("DROP TABLE IF EXISTS t")
        make_table(conn, ("btree (id)", "gin (a)"))
        for rest, change in enumerate(("SET cyclone.adaptive_delay = 'on'", "RESET cyclone.adaptive_delay")):
            conn.execute(f"DELETE FROM t WHERE id % 3 = {rest}")
            with Parked(cluster, "postgres", f"{point}:any", 1, f"VACUUM (PARALLEL {workers}, INDEX_CLEANUP on) t") as vacuum:
                alter_system(conn, change)
                time.sleep(0.1)
                vacuum.release()
                vacuum.finish()
        checks.assert_clean(conn, "t")
        assert pace(conn) is None
    assert "terminated by signal" not in cluster.log[position:] and cluster.running


@pytest.mark.once
def test_what_is_taken_out_of_the_files_is_forgotten(new_cluster):
    cluster = new_cluster(**{**SETTINGS, "cyclone.debug_price": NOTHING_ADDED["cyclone.debug_price"]})
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        make_table(conn)
        conn.execute(BURN)
        burner = Background(cluster, "postgres", "SELECT burn(600)")
        alter_system(conn, "SET vacuum_cost_delay = '100ms'", "SET vacuum_cost_limit = 2")
        vacuum = Background(cluster, "postgres", "VACUUM (PARALLEL 1) t")
        wait_until(lambda: (row := pace(conn)) and row["budget"] == 20, "a VACUUM")
        alter_system(conn, "SET cyclone.adaptive_delay = 'on'", "SET vacuum_cost_limit = 1")
        wait_until(lambda: (row := pace(conn)) and row["budget"] == 10 and row["shared_by"] == 1, "new settings")
        alter_system(conn, "RESET cyclone.adaptive_delay", "RESET vacuum_cost_limit")
        wait_until(lambda: (row := pace(conn)) and row["budget"] == 2000 and row["shared_by"] is None, "the defaults")
        cancel(conn, vacuum, burner)


@pytest.mark.once
def test_the_leader_follows_a_reload_while_it_waits_for_a_worker(new_cluster):
    cluster = new_cluster(**SETTINGS, vacuum_cost_delay="10ms", vacuum_cost_limit=300)
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        make_table(conn)
        # the leader waits for the worker at its first page, or it might do them all alone
        with Parked(cluster, "postgres", "heap-scan:any", 2, "VACUUM (PARALLEL 1) t") as vacuum:
            [worker] = vacuum.workers
            os.kill(worker, signal.SIGSTOP)
            try:
                vacuum.release()
                activity = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
                wait_until(lambda: conn.execute(activity, (vacuum.pid,)).fetchone() == ("CyclonePhaseEnd",), "the leader's part")
                alter_system(conn, "SET vacuum_cost_limit = 2")
                wait_until(lambda: (row := pace(conn)) and row["budget"] == 200, "new settings")
                alter_system(conn, "SET vacuum_cost_delay = 0")
                wait_until(lambda: (row := pace(conn)) and row["budget"] is None, "no delay")
            finally:
                os.kill(worker, signal.SIGCONT)
            vacuum.finish()


@pytest.mark.once
def test_an_adaptive_delay_governs_small_tables_too(cluster, db, conn):
    """Tables that take less than a tick each, one after the other: they are one VACUUM."""
    for number in range(100):
        conn.execute(f"CREATE TABLE small_{number} WITH (fillfactor = 10) AS SELECT generate_series(1, 200) i")
    conn.execute("CHECKPOINT")
    names = ", ".join(f"small_{number}" for number in range(100))
    with Load(cluster, db, BUSY, 4):
        vacuum = Background(cluster, db, f"VACUUM (ADAPTIVE_DELAY) {names}", {**LITTLE_ADDED, "vacuum_cost_limit": 100})
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] in ("other sessions", "floor") and row["others_would_take"], "its pace")
    vacuum.finish()


@pytest.mark.once
def test_an_error_ends_the_pace_too(cluster, db, conn):
    """After a failed VACUUM with an adaptive delay, whichever process failed, the session's next ones are as fast as ever, and statements go on."""
    make_table(conn)
    for who, other in (("leader", "worker"), ("worker", "leader")):
        with cluster.connect(db) as session, cluster.connect(db) as gate:
            # the others wait, or they might have scanned the table before this one comes there
            gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
            points = f"heap-scan:{who}:error heap-scan:{other}:wait"
            for name, value in {**SETTINGS, "cyclone.adaptive_delay": "on", "cyclone.debug_point": points}.items():
                session.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
            with pytest.raises(psycopg.Error, match="debug point"):
                session.execute("VACUUM (PARALLEL 2, DISABLE_PAGE_SKIPPING) t")
            gate.execute("SELECT pg_advisory_unlock(%s)", (DEBUG_POINT_LOCK,))
            assert pace(conn) is None
            session.execute("RESET cyclone.debug_point")
            session.execute("VACUUM (PARALLEL 2) t")
            checks.assert_clean(session, "t")


@pytest.mark.once
def test_who_has_left_counts_no_more(cluster, db, conn):
    """However it has left: cancelled, terminated, by an error of its own or of a worker, before its first table, or by its end."""
    make_table(conn)
    conn.execute(BURN)
    burner = Background(cluster, db, "SELECT burn(600)")
    for name in "uvw":
        conn.execute(f"CREATE TABLE {name} WITH (fillfactor = 10) AS SELECT generate_series(1, 50000) i")
    time.sleep(0.3)  # for that long the next VACUUM goes on as fast as the last one, of another test, perhaps with nobody at work
    first, second, third = (
        Background(cluster, db, f"VACUUM (PARALLEL 2, ADAPTIVE_DELAY) {name}", {**SETTINGS, **NOTHING_ADDED}) for name in "tuv"
    )
    shared_by = lambda: (row := rows_by_pid(conn).get(first.pid)) and row["shared_by"]  # noqa: E731
    wait_until(lambda: shared_by() == 3, "all of them")
    for vacuum, function, rest in ((second, "pg_cancel_backend", 2), (third, "pg_terminate_backend", 1)):
        conn.execute(f"SELECT {function}(%s)", (vacuum.pid,))
        assert vacuum.wait()
        wait_until(lambda: shared_by() == rest, "its end")  # noqa: B023
    with Parked(cluster, db, "heap-scan:any", 1, "VACUUM (PARALLEL 2, ADAPTIVE_DELAY) w", SETTINGS) as vacuum:
        wait_until(lambda: shared_by() == 2, "another one")
        vacuum.release()
        vacuum.finish()
    wait_until(lambda: shared_by() == 1, "its end")
    for points, workers in (("heap-scan:leader:error", 0), ("heap-scan:worker:error heap-scan:leader:wait", 2)):
        with cluster.connect(db) as gate:
            # the leader waits, or it might have scanned the table before a worker comes
            gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
            failing = Background(
                cluster, db, f"VACUUM (PARALLEL {workers}, ADAPTIVE_DELAY, DISABLE_PAGE_SKIPPING) w",
                {**SETTINGS, "cyclone.debug_point": points},
            )  # fmt: skip
            assert "debug point" in str(failing.wait())
        wait_until(lambda: shared_by() == 1, "its end")
    # before its first table, in a session that goes on
    with pytest.raises(psycopg.errors.UndefinedTable):
        conn.execute("VACUUM (ADAPTIVE_DELAY) nowhere")
    wait_until(lambda: shared_by() == 1, "its end")
    cancel(conn, first, burner)


@pytest.mark.once
def test_who_was_killed_counts_no_more(new_cluster):
    cluster = new_cluster(**SETTINGS)
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        make_table(conn)
        conn.execute("CREATE TABLE u AS SELECT * FROM t")
        conn.execute(BURN)
        burner = Background(cluster, "postgres", "SELECT burn(600)")
        vacuums = [Background(cluster, "postgres", f"VACUUM (PARALLEL 1, ADAPTIVE_DELAY) {name}", NOTHING_ADDED) for name in "tu"]
        wait_until(lambda: [row["shared_by"] for row in rows_by_pid(conn).values()] == [2, 2], "two VACUUMs")
        position = len(cluster.log)
        os.kill(vacuums[0].pid, signal.SIGKILL)
        for process in (*vacuums, burner):
            assert process.wait()
    wait_until(lambda: "database system is ready to accept connections" in cluster.log[position:], "the restart")
    with cluster.connect() as conn:
        assert pace(conn) is None
        vacuum = Background(cluster, "postgres", "VACUUM (PARALLEL 1, ADAPTIVE_DELAY) t", STANDSTILL)
        assert wait_until(lambda: pace(conn), "a VACUUM")["shared_by"] == 1
        conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
        vacuum.wait()


@pytest.mark.once
@pytest.mark.parametrize("replication, is_nobody", [("database", True), ("false", False)])
def test_a_walsender_is_nobody(cluster, db, conn, replication, is_nobody):
    """It sends the WAL that VACUUM writes, so to spare it would be to stop at once; any other session that is as busy counts."""
    make_table(conn)
    conn.execute(BURN)
    settings = {**SETTINGS, "cyclone.adaptive_delay": "on"}
    with cluster.connect(db, replication=replication) as session:
        session.pgconn.send_query(b"SELECT burn(60)")
        vacuum = Background(cluster, db, f"VACUUM (DISABLE_PAGE_SKIPPING, PARALLEL 0) {', '.join(['t'] * 50_000)}", settings)
        wait_until(lambda: pace(conn), "a VACUUM")
        time.sleep(6)  # who looks is somebody, too
        row = wait_until(lambda: pace(conn), "a table that is in hand")
        assert (row["limited_by"] == "nothing") == is_nobody, row
        cancel(conn, vacuum)
        session.cancel()
        session.pgconn.get_result()
        session.pgconn.get_result()
