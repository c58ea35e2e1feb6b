"""VACUUMs with latency targets: the floor, what several of them share, and what counts as late.

test_pace.py has what differs between versions of PostgreSQL.
"""

import os
import signal
import statistics
import struct
import sys
import time
from pathlib import Path
from subprocess import Popen

import psycopg
import pytest

from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Background, Parked, wait_until
from cyclone_lab.postgres import REPO
from cyclone_lab.shim import preloadable
from test_pace import (
    BURN,
    BUSY,
    COSTS,
    FIRST_BUDGET,
    LEAST_BUDGET,
    SETTINGS,
    SLOW,
    STANDSTILL,
    TICK_SECONDS,
    Load,
    cancel,
    easy_target,
    hard_target,
    latency,
    make_slow_table,
    make_table,
    pace,
    watching_vacuum,
)  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_a_target_out_of_reach(cluster, db, conn, workers):
    """Statements take a millisecond come what may: the floor, one warning, and full speed as soon as there are no more of them."""
    make_slow_table(conn)
    target = hard_target()
    with Load(cluster, db, BUSY, 4):
        vacuum = Background(cluster, db, f"VACUUM (PARALLEL {workers}, LATENCY_TARGET '{target}') t", {**SETTINGS, **SLOW})
        warnings = lambda: [message for message in vacuum.messages if "latency target" in message]  # noqa: E731
        wait_until(warnings, "the warning")
        assert f"latency target of {target.removesuffix('ms')} ms is missed" in warnings()[0]
        row = wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "floor" and row["latency_ms"] and row, "the floor")
        assert (row["relation"], row["latency_of"], row["percentile"]) == ("t", "statements", 95)
        assert row["target_ms"] == pytest.approx(float(target.removesuffix("ms")))
        assert row["latency_ms"] > row["target_ms"]
        assert row["budget"] == pytest.approx(LEAST_BUDGET)
        assert vacuum.running
    vacuum.finish()
    assert len(warnings()) == 1
    assert pace(conn) is None
    checks.assert_clean(conn, "t")


def test_a_statement_warns_once_that_its_target_is_out_of_reach(cluster, db, conn):
    """However many tables it has, and wherever it has its target from."""
    make_slow_table(conn)
    for name in "uvw":
        conn.execute(f"CREATE TABLE {name} AS SELECT generate_series(1, 2000) i")
    settings = {"cyclone.latency_target": hard_target()}
    warnings = lambda vacuum: [message for message in vacuum.messages if "latency target of" in message]  # noqa: E731
    with Load(cluster, db, BUSY, 4):
        first = Background(cluster, db, "VACUUM (PARALLEL 0) t", {**settings, **SLOW})
        wait_until(lambda: warnings(first), "the warning")
        second = Background(cluster, db, "VACUUM (PARALLEL 0) u, v, w", settings)
        second.finish()
        assert len(warnings(second)) == 1
        conn.execute("SELECT pg_cancel_backend(%s)", (first.pid,))
        assert isinstance(first.wait(), psycopg.errors.QueryCanceled)
    assert len(warnings(first)) == 1


def rows_by_pid(conn) -> dict:
    """Return the rows of cyclone.pace of this database by process ID."""
    cursor = conn.execute("SELECT * FROM cyclone.pace_details WHERE datname = current_database()")
    names = [column.name for column in cursor.description]
    return {row["pid"]: row for row in (dict(zip(names, values, strict=True)) for values in cursor.fetchall())}


def at_the_floor(cluster, db, conn, target, settings=None):
    """Return a VACUUM of t with this target, which can't be met, and its row in cyclone.pace when it has come to the floor."""
    vacuum = Background(cluster, db, f"VACUUM (PARALLEL 0, LATENCY_TARGET '{target}') t", {**SETTINGS, **SLOW, **(settings or {})})

    def row_at_the_floor():
        assert vacuum.running, "it ended without having been at the floor"
        row = rows_by_pid(conn).get(vacuum.pid)
        return row and row["limited_by"] == "floor" and row["latency_ms"] and row

    return vacuum, wait_until(row_at_the_floor, "the floor")


def test_vacuums_with_one_target_share_one_budget(cluster, db, conn):
    """All of them sleep for the cost of one, and all know what one has found out. Those with another don't."""
    make_slow_table(conn)
    make_slow_table(conn, "u")
    target = hard_target()
    price = {"cyclone.debug_price": 4}  # as slow as need be: rates are those of some naps, and with SLOW each takes ten seconds and more
    conn.execute("CREATE TABLE other WITH (fillfactor = 10) AS SELECT generate_series(1, 1000) i")
    with Load(cluster, db, BUSY, 4):
        first, row = at_the_floor(cluster, db, conn, target, price)
        assert row["shared_by"] == 1 and row["budget"] < FIRST_BUDGET
        statement = f"VACUUM (PARALLEL 0, LATENCY_TARGET '{target}') u"
        with Parked(cluster, db, "heap-scan:any", 1, statement, price) as second:
            row = rows_by_pid(conn)[second.pid]
            assert row["shared_by"] == 2
            assert row["limited_by"] == "floor" and row["budget"] < FIRST_BUDGET, "it begins where the other one is"
            second.release()

            def rates_share_the_budget():
                rows = [rows_by_pid(conn)[vacuum.pid] for vacuum in (first, second)]
                rates = [row["rate"] * price["cyclone.debug_price"] / row["budget"] for row in rows]
                return min(rates) > 0.1 and sum(rates) < 1.5

            wait_until(rates_share_the_budget, "one budget's time by both")
            for other in (easy_target(), "0"):
                Background(cluster, db, f"VACUUM (PARALLEL 0, LATENCY_TARGET '{other}') other").finish()
            assert second.running and rows_by_pid(conn)[first.pid]["shared_by"] == 2
            conn.execute("SELECT pg_cancel_backend(%s)", (first.pid,))
            assert isinstance(first.wait(), psycopg.errors.QueryCanceled)
            wait_until(lambda: rows_by_pid(conn)[second.pid]["shared_by"] == 1, "the other one's end")
            conn.execute("SELECT pg_cancel_backend(%s)", (second.pid,))
            assert isinstance(second.wait(), psycopg.errors.QueryCanceled)
    assert pace(conn) is None


def test_what_pages_cost_one_user_is_nothing_to_others_with_the_target(cluster, db, conn):
    """While one VACUUM has pages as dear as can be, the other one gets its part; and as cheap as can be, it is held back."""
    make_slow_table(conn)
    conn.execute("CREATE TABLE small AS SELECT generate_series(1, 1000) i")
    target = hard_target()
    for cost in (10_000, 0):
        with Load(cluster, db, BUSY, 4):
            vacuum, row = at_the_floor(cluster, db, conn, target, {name: cost for name in COSTS})
            assert row["budget"] < FIRST_BUDGET
            Background(cluster, db, f"VACUUM (PARALLEL 0, LATENCY_TARGET '{target}') small").finish()
            assert vacuum.running
            conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
            assert isinstance(vacuum.wait(), psycopg.errors.QueryCanceled)


def test_who_has_left_a_target_counts_no_more(cluster, db, conn):
    """However it has left: cancelled, terminated, by an error of its own or of a worker, or by its end."""
    make_table(conn)
    for name in "uvw":
        conn.execute(f"CREATE TABLE {name} WITH (fillfactor = 10) AS SELECT generate_series(1, 50000) i")
    first, second, third = (
        Background(cluster, db, f"VACUUM (PARALLEL 2, LATENCY_TARGET {target}) {name}", {**SETTINGS, **STANDSTILL})
        for name, target in (("t", "'3h'"), ("u", "'10800s'"), ("v", "10800000"))
    )
    shared_by = lambda: (row := rows_by_pid(conn).get(first.pid)) and row["shared_by"]  # noqa: E731
    wait_until(lambda: shared_by() == 3, "all of them")
    for vacuum, function, rest in ((second, "pg_cancel_backend", 2), (third, "pg_terminate_backend", 1)):
        conn.execute(f"SELECT {function}(%s)", (vacuum.pid,))
        assert vacuum.wait()
        wait_until(lambda: shared_by() == rest, "its end")  # noqa: B023
    with Parked(cluster, db, "heap-scan:any", 1, "VACUUM (PARALLEL 2, LATENCY_TARGET '3h') w", SETTINGS) as vacuum:
        wait_until(lambda: shared_by() == 2, "another one")
        vacuum.release()
        vacuum.finish()
    wait_until(lambda: shared_by() == 1, "its end")
    for points, workers in (("heap-scan:leader:error", 0), ("heap-scan:worker:error heap-scan:leader:wait", 2)):
        with cluster.connect(db) as gate:
            # the leader waits, or it might have scanned the table before a worker comes
            gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
            failing = Background(
                cluster, db, f"VACUUM (PARALLEL {workers}, LATENCY_TARGET '3h', DISABLE_PAGE_SKIPPING) w",
                {**SETTINGS, "cyclone.debug_point": points},
            )  # fmt: skip
            assert "debug point" in str(failing.wait())
        wait_until(lambda: shared_by() == 1, "its end")
    conn.execute("SELECT pg_cancel_backend(%s)", (first.pid,))
    first.wait()


def test_who_was_killed_counts_no_more(new_cluster):
    cluster = new_cluster(**SETTINGS)
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        make_table(conn)
        conn.execute("CREATE TABLE u AS SELECT * FROM t")
        vacuums = [Background(cluster, "postgres", f"VACUUM (PARALLEL 1, LATENCY_TARGET '3h') {name}", STANDSTILL) for name in "tu"]
        wait_until(lambda: [row["shared_by"] for row in rows_by_pid(conn).values()] == [2, 2], "two VACUUMs")
        position = len(cluster.log)
        os.kill(vacuums[0].pid, signal.SIGKILL)
        for vacuum in vacuums:
            assert vacuum.wait()
    wait_until(lambda: "database system is ready to accept connections" in cluster.log[position:], "the restart")
    with cluster.connect() as conn:
        assert pace(conn) is None
        vacuum = Background(cluster, "postgres", "VACUUM (PARALLEL 1, LATENCY_TARGET '3h') t", STANDSTILL)
        assert wait_until(lambda: pace(conn), "a VACUUM")["shared_by"] == 1
        conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
        vacuum.wait()


def test_a_target_is_kept_to_by_the_next_vacuum_too(cluster, db, conn):
    """The first one's knowledge of the machine is still right: the floor is as low."""
    make_slow_table(conn)
    target = hard_target()
    with Load(cluster, db, BUSY, 4):
        for number in range(2):
            if number:
                time.sleep(2 * TICK_SECONDS)  # or else they are one to the target
            vacuum, row = at_the_floor(cluster, db, conn, target)
            assert row["budget"] < FIRST_BUDGET
            conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
            vacuum.wait()


def hanging(cluster, db, conn, statement, number):
    """Return sessions with a statement that goes on for a minute, where statements were fast before."""
    with Load(cluster, db, "SELECT 1", 4):
        wait_until(lambda: latency(conn), "a measurement")
    return [Background(cluster, db, statement) for _ in range(number)]


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_statement_is_late_before_it_ends(cluster, db, conn, end):
    """Statements that hang slow a VACUUM down, although none has ended to be measured; however they end, they are over then."""
    make_table(conn)
    conn.execute(BURN)
    vacuum = watching_vacuum(cluster, db, conn, hard_target())
    burners = hanging(cluster, db, conn, "SELECT burn(60)", 2)
    wait_until(lambda: (latency(conn) or 0) > 500, "late statements")
    assert pace(conn)["limited_by"] == "cost delay"  # which allows even less
    for burner in burners:
        conn.execute(f"SELECT {end}(%s)", (burner.pid,))
        burner.wait()
    wait_until(lambda: (latency(conn) or 0) < 500, "their end")
    cancel(conn, vacuum)


def test_naps_that_few_looks_see_do_not_count(cluster, db, conn):
    """A session that sleeps again and again, for less than the time between two looks."""
    make_table(conn)
    vacuum = watching_vacuum(cluster, db, conn, hard_target())
    with Load(cluster, db, "SELECT 1", 4):
        wait_until(lambda: latency(conn), "a measurement")
    with Load(cluster, db, "SELECT pg_sleep(0.02)", 1):
        wait_until(lambda: latency(conn) is None, "five seconds without a statement that counts")
    cancel(conn, vacuum)


@pytest.mark.parametrize("statement", ["SELECT pg_sleep(60)", "SELECT pg_advisory_lock(1)", "UPDATE locked SET v = 1"])
def test_what_a_vacuum_can_not_cause_does_not_count(cluster, db, conn, statement):
    """Neither while it hangs nor when it has ended."""
    make_table(conn)
    conn.execute("CREATE TABLE locked (v int); INSERT INTO locked VALUES (0)")
    vacuum = watching_vacuum(cluster, db, conn, hard_target())
    with cluster.connect(db) as holder:
        holder.execute("SELECT pg_advisory_lock(1); BEGIN; UPDATE locked SET v = 1")
        hung = hanging(cluster, db, conn, statement, 2)
        seen = [latency(conn)]
        wait_until(lambda: seen.append(latency(conn)) or seen[-1] is None, "nothing to measure")
        holder.execute("COMMIT; SELECT pg_advisory_unlock(1)")
        cancel(conn, *hung)
        with Load(cluster, db, "SELECT 1", 4):
            wait_until(lambda: seen.append(latency(conn)) or seen[-1], "a measurement")
    assert all((ms or 0) < 500 for ms in seen)
    cancel(conn, vacuum)


@pytest.mark.parametrize("replication, is_nobody", [("database", True), ("false", False)])
def test_a_walsender_is_nobody(cluster, db, conn, replication, is_nobody):
    """It sends the WAL that VACUUM writes, so to spare it would be to stop at once; any other session that is as busy counts."""
    make_table(conn)
    conn.execute(BURN)
    # nobody else's "auto" is about this percentile
    settings = {**SETTINGS, "cyclone.latency_target": "auto", "cyclone.latency_percentile": 93 if is_nobody else 92}
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


def test_a_wait_for_a_core_counts(cluster, db, conn):
    """Before a session can read the statement that its client has sent, too: users feel it, and the session's clock doesn't show it."""
    schedstat = Path("/proc/self/schedstat")
    if not schedstat.exists() or schedstat.read_text().startswith("0 "):
        pytest.skip("the kernel doesn't count it")
    make_table(conn)
    vacuum = watching_vacuum(cluster, db, conn)
    taken = []

    def slow(times) -> float:
        return statistics.quantiles(times, n=10)[-1]

    with cluster.connect(db) as session:
        # on one core, and behind a process that never lets it go
        core, others = {min(os.sched_getaffinity(0))}, os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(session.info.backend_pid, core)
            os.sched_setscheduler(session.info.backend_pid, os.SCHED_IDLE, os.sched_param(0))
        except PermissionError:
            pytest.skip("the system doesn't let a process wait behind another")
        with Popen([sys.executable, "-c", "while True: pass"]) as greedy:
            try:
                os.sched_setaffinity(greedy.pid, core)

                def waits() -> bool:
                    start = time.perf_counter()
                    session.execute("SELECT 1")
                    taken.append(1000 * (time.perf_counter() - start))
                    time.sleep(0.01)
                    return len(taken) >= 50 and (latency(conn) or 0) > slow(taken) / 3

                wait_until(waits, "a third of what slow ones take for the client")
            finally:
                greedy.kill()
        os.sched_setaffinity(session.info.backend_pid, others)
    assert slow(taken) > 1, "the session found a core at once"
    cancel(conn, vacuum)


def test_rows_of_a_timed_statement_are_not_timed(new_cluster):
    """Timing it takes a few readings of the clock, however many rows it has. Those in the server's code are counted, too.

    Of many short statements one in eight is timed.
    """
    rows, statements = 10_000, 1000
    short = "SELECT 1;" * statements
    query = f"SELECT repeat('x', 10) FROM generate_series(1, {rows})"
    cluster = new_cluster(autovacuum="off")
    layout = struct.Struct("ii")
    library, control, memory = preloadable(REPO / "test" / "shim" / "clock_calls.c", layout.size, base=cluster.home)
    cluster.env = {"LD_PRELOAD": str(library), "CYCLONE_CLOCK_CALLS": str(control)}
    cluster.restart()

    with cluster.connect() as conn, cluster.connect() as session:
        conn.execute("CREATE EXTENSION pg_cyclone")
        make_table(conn)
        session.execute("SELECT set_config(name, 'system', false) FROM pg_settings WHERE name = 'timing_clock_source'")

        def readings(statement: str) -> int:
            memory[:] = layout.pack(session.info.backend_pid, 0)
            assert session.execute(statement).fetchall()
            return layout.unpack(memory[:])[1]

        assert readings(f"EXPLAIN (ANALYZE, TIMING) {query}") > rows, "the clock is not read where it is counted"
        assert readings(query) < rows / 100
        untimed = readings(short)
        vacuum = watching_vacuum(cluster, "postgres", conn)
        assert readings(query) < rows / 100
        wait_until(lambda: session.execute("SELECT 1") and latency(conn), "a measurement: it is timed")
        # a busy machine interrupts some of them, and those that follow are timed
        assert 0.1 * statements < min(readings(short) for _ in range(5)) - untimed < statements
        cancel(conn, vacuum)
