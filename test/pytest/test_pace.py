"""How fast a VACUUM goes: one budget for all its processes, settings that change meanwhile, and latency targets.

test/unit/test_pace_law.c has the control law in a simulation.
"""

import os
import re
import signal
import threading
import time
from itertools import count

import psycopg
import pytest

from conftest import CONFIG
from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Background, Parked, wait_until
from cyclone_lab.cluster import Cluster

SETTINGS = {"min_parallel_table_scan_size": 0, "min_parallel_index_scan_size": 0}
COSTS = {"vacuum_cost_page_hit": 1, "vacuum_cost_page_miss": 1, "vacuum_cost_page_dirty": 10}
# With a target that nobody has had lately a VACUUM begins with it, in processes at work on average.
FIRST_BUDGET = 0.1
LEAST_BUDGET = 0.02
# At the slowest pace a table of some megabytes takes minutes.
SLOW = {"cyclone.debug_price": 20}
# Statements that take a millisecond or more, come what may
BUSY = "SELECT count(*) FROM generate_series(1, 10000)"
# So slow that it would not end by itself.
STANDSTILL = {"vacuum_cost_delay": "100ms", "vacuum_cost_limit": 1}
TICK_SECONDS = 0.25

_targets = count(1)


def hard_target() -> str:
    """Return a latency target of about 0.1 ms that no other test has: what one has learned is kept for the next VACUUM."""
    return f"{0.1 + next(_targets) / 1000:g}ms"


def easy_target() -> str:
    """Likewise one of about an hour."""
    return f"{3_600_000 + next(_targets)}ms"


def pace(conn) -> dict | None:
    """Return the only row of cyclone.pace of this database, or None."""
    cursor = conn.execute("SELECT * FROM cyclone.pace_details WHERE datname = current_database()")
    rows = cursor.fetchall()
    assert len(rows) <= 1
    return dict(zip((column.name for column in cursor.description), rows[0], strict=True)) if rows else None


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

        conn.execute("ALTER SYSTEM SET vacuum_cost_limit = 20")
        conn.execute("SELECT pg_reload_conf()")
        query = "SELECT budget FROM cyclone.pace_details WHERE pid = %s"
        wait_until(lambda: conn.execute(query, (vacuum.pid,)).fetchone() == (200,), "a new budget")
        conn.execute("ALTER SYSTEM SET vacuum_cost_delay = 0")
        conn.execute("SELECT pg_reload_conf()")
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
        other.execute("ALTER SYSTEM SET vacuum_cost_delay = 0")
        other.execute("ALTER SYSTEM SET vacuum_cost_page_hit = 7")
        other.execute("ALTER SYSTEM SET work_mem = '77MB'")
        other.execute("SELECT pg_reload_conf()")
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
@pytest.mark.parametrize("target", ["", "LATENCY_TARGET '90min', "])
def test_the_cost_delay_goes_by_the_settings(conn, target):
    """With a target, too, although that counts by weights of its own; also in the server's code for other indexes."""
    make_table(conn, ("btree (id)", "gin (a)", "hash (id)"))
    conn.execute("CHECKPOINT")
    settings = {"vacuum_cost_page_hit": 3, "vacuum_cost_page_miss": 5, "vacuum_cost_page_dirty": 0,
                "vacuum_cost_delay": "20ms", "vacuum_cost_limit": 200}  # fmt: skip
    for name, value in settings.items():
        conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
    said = []
    conn.add_notice_handler(lambda notice: said.append(notice.message_detail or notice.message_primary))
    start = time.monotonic()
    conn.execute(f"VACUUM (VERBOSE, INDEX_CLEANUP on, PROCESS_TOAST off, {target}PARALLEL 0) t")
    seconds = time.monotonic() - start
    [(hits, misses)] = re.findall(r"buffer usage: (\d+) hits, (\d+) (?:reads|misses)", "\n".join(said))
    cost = 3 * int(hits) + 5 * int(misses)
    assert cost > 7_000
    assert seconds > 0.9 * (cost - 2000) / 10_000
    assert [conn.execute(f"SHOW {name}").fetchone()[0] for name in list(settings)[:3]] == ["3", "5", "0"]


def test_a_target_is_learned(cluster, db, conn):
    """VACUUM rests, and then it goes on by what others wait for, of which their statements need not be timed."""
    make_slow_table(conn)
    # nobody else's "auto" is about this percentile
    settings = {**SETTINGS, **SLOW, "cyclone.latency_target": "auto", "cyclone.latency_percentile": 94}
    with Load(cluster, db, BUSY, 4):
        vacuum = Background(cluster, db, "VACUUM (PARALLEL 1) t", settings)
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "learning the target", "learning")
        row = wait_until(lambda: (row := pace(conn)) and row["limited_by"] in ("latency target", "floor") and row, "its end")
        assert (row["target_ms"], row["latency_ms"], row["latency_of"]) == (None, None, "waits")
    vacuum.finish()
    checks.assert_clean(conn, "t")


BURN = """
    CREATE OR REPLACE FUNCTION burn(seconds float8) RETURNS int LANGUAGE plpgsql AS $$
    DECLARE until timestamptz := clock_timestamp() + seconds * interval '1 s';
    BEGIN WHILE clock_timestamp() < until LOOP END LOOP; RETURN 0; END $$"""


def watching_vacuum(cluster, db, conn, target=None):
    """Return a VACUUM of t that hardly moves, with a target; statements are being timed."""
    settings = {**SETTINGS, **STANDSTILL}
    vacuum = Background(cluster, db, f"VACUUM (PARALLEL 0, LATENCY_TARGET '{target or easy_target()}') t", settings)
    wait_until(lambda: pace(conn), "a VACUUM")
    return vacuum


def cancel(conn, *processes):
    for process in processes:
        conn.execute("SELECT pg_cancel_backend(%s)", (process.pid,))
        process.wait()


def latency(conn) -> float | None:
    """Return the latency that the VACUUM of this database measures; COPY isn't timed, so to ask is no statement."""
    with conn.cursor().copy("COPY (SELECT latency_ms FROM cyclone.pace_details WHERE datname = current_database()) TO STDOUT") as copy:
        [(text,)] = copy.rows()
    return None if text is None else float(text)


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


@pytest.mark.parametrize("point", ["heap-scan", "index-vacuum", "btree-page", "heap-vacuum", "index-cleanup"])
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.once), 2])
def test_a_target_is_set_by_a_reload_in_each_phase(reloaded, point, workers):
    """And taken back in the next: the VACUUM goes on, and its session ends in peace."""
    cluster = reloaded
    position = len(cluster.log)
    with cluster.connect() as conn:
        conn.execute("DROP TABLE IF EXISTS t")
        make_table(conn, ("btree (id)", "gin (a)"))
        with Parked(cluster, "postgres", f"{point}:any", 1, f"VACUUM (PARALLEL {workers}, INDEX_CLEANUP on) t") as vacuum:
            conn.execute("ALTER SYSTEM SET cyclone.latency_target = '1h'")
            conn.execute("SELECT pg_reload_conf()")
            time.sleep(0.1)
            vacuum.release()
            vacuum.finish()
        conn.execute("DELETE FROM t WHERE id % 3 = 1")
        with Parked(cluster, "postgres", f"{point}:any", 1, f"VACUUM (PARALLEL {workers}, INDEX_CLEANUP on) t") as vacuum:
            conn.execute("ALTER SYSTEM RESET cyclone.latency_target")
            conn.execute("SELECT pg_reload_conf()")
            time.sleep(0.1)
            vacuum.release()
            vacuum.finish()
        checks.assert_clean(conn, "t")
        assert pace(conn) is None
    assert "terminated by signal" not in cluster.log[position:] and cluster.running


@pytest.mark.once
def test_what_is_taken_out_of_the_files_is_forgotten(new_cluster):
    cluster = new_cluster(**SETTINGS)
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        make_table(conn)
        conn.execute("ALTER SYSTEM SET vacuum_cost_delay = '100ms'")
        conn.execute("ALTER SYSTEM SET vacuum_cost_limit = 2")
        conn.execute("SELECT pg_reload_conf()")
        vacuum = Background(cluster, "postgres", "VACUUM (PARALLEL 1) t")
        wait_until(lambda: (row := pace(conn)) and row["budget"] == 20, "a VACUUM")
        conn.execute("ALTER SYSTEM SET cyclone.latency_target = '1h'")
        conn.execute("ALTER SYSTEM SET vacuum_cost_limit = 1")
        conn.execute("SELECT pg_reload_conf()")
        wait_until(lambda: (row := pace(conn)) and row["budget"] == 10 and row["target_ms"] == 3_600_000, "new settings")
        conn.execute("ALTER SYSTEM RESET cyclone.latency_target")
        conn.execute("ALTER SYSTEM RESET vacuum_cost_limit")
        conn.execute("SELECT pg_reload_conf()")
        wait_until(lambda: (row := pace(conn)) and row["budget"] == 2000 and row["target_ms"] is None, "the defaults")
        conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
        vacuum.wait()


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
                conn.execute("ALTER SYSTEM SET vacuum_cost_limit = 2")
                conn.execute("SELECT pg_reload_conf()")
                wait_until(lambda: (row := pace(conn)) and row["budget"] == 200, "new settings")
                conn.execute("ALTER SYSTEM SET vacuum_cost_delay = 0")
                conn.execute("SELECT pg_reload_conf()")
                wait_until(lambda: (row := pace(conn)) and row["budget"] is None, "no delay")
            finally:
                os.kill(worker, signal.SIGCONT)
            vacuum.finish()


BURNT = 0.1  # seconds
ONE_BURNT = 0.9 * 1000 * BURNT  # at least, as latencies are known to 6 % or so
LONG = 2  # seconds, of which nothing may be seen
SHORTER = 0.5 * 1000 * LONG


def watched(cluster, db, conn, statement, percentile=95, rounds=5) -> float:
    """Return the latency that a watching VACUUM measures while sessions run the statement over and over, in ms."""
    settings = {**SETTINGS, **STANDSTILL, "cyclone.latency_percentile": percentile}
    vacuum = Background(cluster, db, f"VACUUM (PARALLEL 0, LATENCY_TARGET '{easy_target()}') t", settings)
    wait_until(lambda: pace(conn), "a VACUUM")
    with Load(cluster, db, statement, 2) as load:
        wait_until(lambda: min(load.rounds) >= rounds, f"{rounds} rounds of each session")
        ms = wait_until(lambda: latency(conn), "a measurement")
    cancel(conn, vacuum)
    return ms


def test_what_counts_as_a_statement(cluster, db, conn):
    """Work inside a statement belongs to it, deferred triggers too; statements that are slow by nature are left out."""
    make_table(conn)
    conn.execute(BURN)
    conn.execute("CREATE TABLE many (v int)")
    conn.execute("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
                 f"'BEGIN PERFORM 1; PERFORM burn({BURNT}); PERFORM 2; RETURN NULL; END'")  # fmt: skip
    conn.execute("CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON many DEFERRABLE INITIALLY DEFERRED "
                 "FOR EACH ROW EXECUTE FUNCTION slow()")  # fmt: skip
    assert watched(cluster, db, conn, "INSERT INTO many VALUES (1)") > ONE_BURNT
    assert watched(cluster, db, conn, "BEGIN; INSERT INTO many VALUES (1), (2); COMMIT") > 2 * ONE_BURNT
    assert watched(cluster, db, conn, f"DO 'BEGIN PERFORM burn({BURNT}); PERFORM 1; PERFORM 2; END'") > ONE_BURNT
    # only the short one of the two is timed
    slow = f"CREATE TEMP TABLE x AS SELECT burn({LONG})"
    assert watched(cluster, db, conn, f"{slow}; DROP TABLE x; SELECT 1", rounds=2) < SHORTER


@pytest.mark.once
def test_waiting_for_the_client_does_not_count(cluster, db, conn):
    """A client that takes its rows slowly is no reason for a VACUUM to hold back."""
    make_table(conn)
    vacuum = watching_vacuum(cluster, db, conn)
    with cluster.connect(db) as slow:
        query = b"SELECT repeat('x', 1000) FROM generate_series(1, 20000)"
        slow.pgconn.send_query(query)
        activity = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: conn.execute(activity, (slow.info.backend_pid,)).fetchone() == ("ClientWrite",), "a full socket")
        time.sleep(LONG)
        while slow.pgconn.is_busy() or slow.pgconn.get_result():
            slow.pgconn.consume_input()
        seen = []
        wait_until(lambda: slow.execute("SELECT 1") and (seen.append(latency(conn)) or seen[-1]), "a measurement")
        assert all((ms or 0) < SHORTER for ms in seen)
    cancel(conn, vacuum)


@pytest.mark.once
def test_a_target_governs_small_tables_too(cluster, db, conn):
    """Tables that take less than a tick each, one after the other: they are one VACUUM."""
    for number in range(100):
        conn.execute(f"CREATE TABLE small_{number} WITH (fillfactor = 10) AS SELECT generate_series(1, 200) i")
    conn.execute("CHECKPOINT")
    names = ", ".join(f"small_{number}" for number in range(100))
    with Load(cluster, db, BUSY, 4):
        vacuum = Background(cluster, db, f"VACUUM (LATENCY_TARGET '{hard_target()}') {names}", SLOW)
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] in ("latency target", "floor") and row["latency_ms"], "a tick")
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "floor", "the floor")
    vacuum.finish()


@pytest.mark.once
def test_a_command_that_fails_early_watches_nobody(cluster, db, conn):
    """Before the first table: were the session still watching, its own statements would not be timed."""
    make_table(conn)
    with cluster.connect(db) as session:
        with pytest.raises(psycopg.errors.UndefinedTable):
            session.execute("VACUUM (LATENCY_TARGET 20) nowhere")
        vacuum = Background(cluster, db, f"VACUUM (PARALLEL 0, LATENCY_TARGET '{easy_target()}') t", {**SETTINGS, **STANDSTILL})
        wait_until(lambda: pace(conn), "a VACUUM")
        wait_until(lambda: session.execute("SELECT 1") and session.execute("SELECT latency_ms FROM cyclone.pace_details").fetchone()[0],
                   "a measurement of the session's own statements")  # fmt: skip
        conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
        vacuum.wait()


@pytest.mark.once
def test_an_error_ends_the_pace_too(cluster, db, conn):
    """After a failed VACUUM with a target, whichever process failed, the session's next ones are as fast as ever, and statements go on."""
    make_table(conn)
    for who, other in (("leader", "worker"), ("worker", "leader")):
        with cluster.connect(db) as session, cluster.connect(db) as gate:
            # the others wait, or they might have scanned the table before this one comes there
            gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
            points = f"heap-scan:{who}:error heap-scan:{other}:wait"
            for name, value in {**SETTINGS, "cyclone.latency_target": "5ms", "cyclone.debug_point": points}.items():
                session.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
            with pytest.raises(psycopg.Error, match="debug point"):
                session.execute("VACUUM (PARALLEL 2, DISABLE_PAGE_SKIPPING) t")
            gate.execute("SELECT pg_advisory_unlock(%s)", (DEBUG_POINT_LOCK,))
            assert pace(conn) is None
            session.execute("RESET cyclone.debug_point")
            session.execute("VACUUM (PARALLEL 2) t")
            checks.assert_clean(session, "t")


STATEMENTS = [
    "SELECT 1",
    "BEGIN; INSERT INTO s VALUES (1); COMMIT",
    "BEGIN; SELECT 1/0; ROLLBACK",
    "SELECT 1/0",
    "DO $$ BEGIN INSERT INTO s VALUES (2); COMMIT; INSERT INTO s VALUES (3); ROLLBACK; END $$",
    "DO $$ BEGIN BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN NULL; END; END $$",
    "CALL p()",
    "BEGIN; DECLARE c CURSOR FOR SELECT * FROM generate_series(1, 10); FETCH 3 FROM c; FETCH ALL FROM c; CLOSE c; COMMIT",
    "PREPARE q AS SELECT $1::int; EXECUTE q(1); EXECUTE q(2); DEALLOCATE q",
    "BEGIN; SAVEPOINT a; SELECT 1; ROLLBACK TO a; SELECT 2; COMMIT",
    "BEGIN; INSERT INTO s VALUES (4); PREPARE TRANSACTION 'cyclone'",
    "COMMIT PREPARED 'cyclone'",
    "INSERT INTO s VALUES (5) RETURNING *",
    "INSERT INTO d VALUES (-1)",  # fails in its commit
    "CREATE TEMP TABLE x AS SELECT 1; DROP TABLE x",
]


def test_a_timed_statement_may_drop_its_own_plan(cluster, db, conn):
    """It is freed before the statement ends; builds with assertions see who still looks at it."""
    make_table(conn)
    conn.execute(
        "CREATE PROCEDURE drops() LANGUAGE plpgsql AS $$BEGIN EXECUTE 'DEALLOCATE ALL'; ROLLBACK; PERFORM repeat('x', 10000); END$$"
    )
    vacuum = Background(cluster, db, f"VACUUM (LATENCY_TARGET '{easy_target()}') t", {**SETTINGS, **STANDSTILL})
    wait_until(lambda: pace(conn), "a VACUUM")
    with cluster.connect(db) as session:
        for _ in range(10):
            session.pgconn.prepare(b"own", b"CALL drops()")
            assert session.pgconn.exec_prepared(b"own", []).status == psycopg.pq.ExecStatus.COMMAND_OK
    conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
    vacuum.wait()


def test_timing_statements_changes_nothing_else(cluster, db, conn):
    """Statements of all kinds, in a session whose statements are being timed and in one whose are not."""
    conn.execute("CREATE TABLE s (v int)")
    conn.execute("CREATE PROCEDURE p() LANGUAGE plpgsql AS 'BEGIN INSERT INTO s VALUES (6); COMMIT; END'")
    conn.execute("CREATE TABLE d (v int PRIMARY KEY, w int REFERENCES d DEFERRABLE INITIALLY DEFERRED DEFAULT 99)")
    make_table(conn)

    def outcomes():
        with cluster.connect(db) as session:
            session.autocommit = True
            results = []
            for statement in STATEMENTS:
                try:
                    cursor = session.execute(statement)
                    results.append(cursor.fetchall() if cursor.description else cursor.statusmessage)
                except psycopg.Error as error:
                    results.append(error.sqlstate)
                    session.execute("ROLLBACK")
            results.append(session.execute("SELECT * FROM generate_series(1, 3)", prepare=True).fetchall())
            with session.pipeline():
                results.append([session.execute("SELECT %s::int", (i,)) for i in range(3)][-1].fetchall())
        return results, conn.execute("DELETE FROM s RETURNING v").fetchall()

    untimed = outcomes()
    vacuum = Background(cluster, db, f"VACUUM (LATENCY_TARGET '{easy_target()}') t", {**SETTINGS, **STANDSTILL})
    wait_until(lambda: pace(conn), "a VACUUM")
    timed = outcomes()
    row = wait_until(lambda: (row := pace(conn)) and row["latency_ms"] and row, "a measurement")
    assert 0 < row["latency_ms"] < 60_000
    conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
    vacuum.wait()
    assert timed == untimed
