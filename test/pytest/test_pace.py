"""How fast a VACUUM goes: one budget for all its processes, settings that change meanwhile, and latency targets.

The control law runs in a simulation first, then in the server.
"""

import ctypes
import math
import random
import re
import subprocess
import threading
import time

import psycopg
import pytest

from cyclone_lab import build, checks
from cyclone_lab.background import Background, Parked, wait_until

SETTINGS = {"min_parallel_table_scan_size": 0, "min_parallel_index_scan_size": 0}
COSTS = {"vacuum_cost_page_hit": 1, "vacuum_cost_page_miss": 1, "vacuum_cost_page_dirty": 10}
# At the floor there are two pages a second then.
DEAR = {name: 2000 for name in COSTS}
# So slow that it would not end by itself.
STANDSTILL = {"vacuum_cost_delay": "100ms", "vacuum_cost_limit": 1}
TICK_SECONDS = 0.25


class Input(ctypes.Structure):
    """ControllerInput of src/pace/controller.h."""

    _fields_ = [
        (name, ctypes.c_double) for name in ("seconds", "percentile_ms", "percent", "samples", "statements", "rate", "awake")
    ]


class Controller(ctypes.Structure):
    """The first members of Controller of src/pace/controller.h, and room for the others."""

    _fields_ = [
        ("learns_target", ctypes.c_bool),
        ("target_ms", ctypes.c_double),
        ("budget", ctypes.c_double),
        ("limit", ctypes.c_int),
        ("forget_window", ctypes.c_bool),
        ("learning", ctypes.c_bool),
        ("rest", ctypes.c_double * 64),
    ]


@pytest.fixture(scope="module")
def law(prefix, tmp_path_factory):
    """The control law, compiled for itself."""
    library = tmp_path_factory.mktemp("law") / "controller.so"
    includes = [build.REPO / "src", prefix / "include" / "server"]
    source = build.REPO / "src" / "pace" / "controller.c"
    command = ["cc", "-O2", "-shared", "-fPIC", *(f"-I{folder}" for folder in includes), source, "-o", library, "-lm"]
    subprocess.run(command, check=True)
    law = ctypes.CDLL(str(library))
    law.controller_init.argtypes = [ctypes.c_void_p, ctypes.c_double]
    law.controller_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    law.controller_target_is_out_of_reach.argtypes = [ctypes.c_void_p]
    law.controller_target_is_out_of_reach.restype = ctypes.c_bool
    return law


class Simulation:
    """A server as a queue, whose statements take the longer the more of it is in use, and a VACUUM that uses it, too.

    `load(seconds)` says how busy statements keep it (0 to 1), `per_second` how many there are at full load. Without a VACUUM
    they take `base_ms` on average if there are few, and twice that at full load; at full speed the VACUUM costs FULL_RATE a
    second, and takes nearly all that is left, but for another `harm`. In some ticks, `bursts` of them, statements take three
    times as long for reasons of their own. `ticks` has what happened, one a quarter of a second.
    """

    FULL_RATE = 200_000

    def __init__(self, law, target_ms, load, seconds, *, per_second=400, base_ms=5.0, seed=1, harm=0.48, bursts=0.0):
        self.law, self.controller, self.ticks = law, Controller(), []
        law.controller_init(ctypes.byref(self.controller), target_ms)
        chance, window = random.Random(seed), []
        for number in range(int(seconds / TICK_SECONDS)):
            now = number * TICK_SECONDS
            speed = min(self.controller.budget / self.FULL_RATE, 1 - load(now) / 2)
            mean = base_ms / (1 - load(now) / 2 - harm * speed) * (3 if chance.random() < bursts else 1)
            latencies = [chance.expovariate(1 / mean) for _ in range(int(per_second * load(now) * TICK_SECONDS))]
            # as in src/pace/pace.c
            total = sum(weight for _, weight in window)
            fading = 0.85 if total < 100 else 0.3 if total > 1000 else 0.6
            window = [(ms, weight * fading) for ms, weight in window if weight > 0.05] + [(ms, 1) for ms in latencies]
            samples = sum(weight for _, weight in window)
            step = Input(TICK_SECONDS, percentile(window), 95, samples, len(latencies), speed * self.FULL_RATE, speed)
            law.controller_step(ctypes.byref(self.controller), ctypes.byref(step))
            if self.controller.forget_window:
                window = []
            self.ticks.append((now, speed, self.controller.budget, latencies))

    def percentile(self, start, end):
        """Return the 95th percentile of latency between two times, in ms."""
        return percentile([(ms, 1) for now, _, _, latencies in self.ticks if start <= now < end for ms in latencies])

    def speed(self, start, end):
        """Return the mean speed between two times, 1 being all that the machine has."""
        speeds = [speed for now, speed, _, _ in self.ticks if start <= now < end]
        return sum(speeds) / len(speeds)


def percentile(weighted, percent=95):
    """Return that percentile of (value, weight) pairs."""
    rank = sum(weight for _, weight in weighted) * percent / 100
    for value, weight in sorted(weighted):
        rank -= weight
        if rank <= 0:
            return value
    return math.nan


@pytest.mark.parametrize("per_second", [400, 3000])
@pytest.mark.parametrize("seed", range(5))
def test_the_law_follows_steps_of_the_load(law, per_second, seed):
    """Idle, full load, idle, full load: statements are spared within two seconds, and full speed is back within two."""
    sim = Simulation(law, 40, lambda now: 10 <= now < 40 or now >= 50, 70, per_second=per_second, seed=seed)
    assert sim.speed(5, 10) == 1
    assert sim.percentile(12, 40) <= 40
    assert sim.percentile(12, 14) <= 44
    assert sim.percentile(20, 40) >= 30 and sim.speed(20, 40) > 0.1, "it is held back more than it has to be"
    assert sim.speed(42, 50) == 1
    assert sim.percentile(52, 70) <= 40


def test_the_law_leaves_a_vacuum_alone_that_does_not_disturb(law):
    assert Simulation(law, 400, lambda now: 1, 30).speed(5, 30) == 0.5


def test_the_law_finds_out_when_the_load_has_become_less(law):
    sim = Simulation(law, 40, lambda now: 1 if now < 20 else 0.2, 40)
    assert sim.speed(10, 20) < 0.4
    assert sim.speed(25, 40) > 0.7


@pytest.mark.parametrize("seed", range(5))
def test_the_law_with_few_statements(law, seed):
    sim = Simulation(law, 40, lambda now: 1, 60, per_second=40, seed=seed)
    assert sim.percentile(10, 60) <= 60
    assert sim.speed(10, 60) > 0.05


@pytest.mark.parametrize("per_second", [2, 5, 12])
def test_the_law_with_hardly_a_statement(law, per_second):
    """Fast ones are no reason to go slowly, nor is one that ran for long; neither is what was a while ago."""
    assert Simulation(law, 40, lambda now: 1, 60, per_second=per_second, base_ms=1).speed(20, 60) > 0.45
    sim = Simulation(law, 8, lambda now: 1 if now < 20 else per_second / 400, 60)
    assert sim.speed(10, 20) < 0.02
    sim = Simulation(law, 30, lambda now: 1 if now < 20 else per_second / 400, 60)
    assert sim.speed(40, 60) > 0.5


def test_the_law_after_a_gap_without_ticks(law):
    """However long the last step took, one bad percentile is one bad percentile."""
    controller = Controller()
    law.controller_init(ctypes.byref(controller), 40)
    for seconds, latency in [(0.25, 5)] * 40 + [(0.5, 41)]:
        step = Input(seconds, latency, 95, 100, 25, 100_000, 0.5)
        law.controller_step(ctypes.byref(controller), ctypes.byref(step))
    assert controller.budget > 50_000
    assert not law.controller_target_is_out_of_reach(ctypes.byref(controller))


def test_the_law_never_stops_a_vacuum(law):
    """A target that can't be met: the floor, and it is told; then it can be met, and all is well again."""
    sim = Simulation(law, 8, lambda now: 1, 40)
    assert 0.004 < sim.speed(20, 40) < 0.02
    assert law.controller_target_is_out_of_reach(ctypes.byref(sim.controller))
    sim = Simulation(law, 8, lambda now: 1 if now < 30 else 0.1, 60, base_ms=1.5)
    assert not law.controller_target_is_out_of_reach(ctypes.byref(sim.controller))
    assert sim.speed(35, 60) > 0.5


@pytest.mark.parametrize("per_second", [80, 400, 3000])
def test_the_law_learns_a_target(law, per_second):
    """The 95th percentile without a VACUUM is 30 ms here; a tenth more is the target, whatever chance makes of it."""
    sim = Simulation(law, 0, lambda now: 1, 180, per_second=per_second)
    assert sim.controller.target_ms == pytest.approx(33, rel=0.15)
    assert sim.percentile(5, 180) <= 33 * 1.1
    assert sim.speed(5, 180) > 0.02


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bursts", [0, 0.05, 0.15])
def test_the_law_does_not_crawl_because_of_others(law, bursts, seed):
    """What a VACUUM isn't to blame for may make it careful, but no more than that."""
    sim = Simulation(law, 0, lambda now: 1, 120, per_second=3000, seed=seed, harm=0, bursts=bursts)
    assert sim.speed(10, 120) > 0.05


def test_the_law_learns_when_there_is_something_to_learn_from(law):
    sim = Simulation(law, 0, lambda now: now >= 20, 60)
    assert sim.speed(3, 20) == 1
    assert sim.percentile(25, 60) <= 33 * 1.1


def pace(conn) -> dict | None:
    """Return the only row of cyclone.pace of this database, or None."""
    cursor = conn.execute("SELECT * FROM cyclone.pace WHERE datname = current_database()")
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


@pytest.mark.parametrize("indexes", [("btree (id)",), ("gin (a)", "btree (id)", "hash (id)")], ids=["btree", "several"])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_team_has_the_budget_of_one_process(conn, workers, indexes):
    """It takes at least as long as all that it costs, at the rate of the settings; that it takes no longer is for the bench."""
    make_table(conn, indexes)
    settings = {**SETTINGS, **COSTS, "vacuum_cost_delay": "20ms", "vacuum_cost_limit": 100}
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
    assert 1 < float(slept) <= time.monotonic() - start
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("workers", [0, 2])
def test_settings_change_while_it_runs(new_cluster, workers):
    """A reload reaches a running VACUUM, unless the session has a value of its own; and the session after it, as ever."""
    cluster = new_cluster(**SETTINGS, **STANDSTILL)
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        checks.create_extensions(conn)
        make_table(conn)
        statement = f"VACUUM (PARALLEL {workers}) t"
        vacuum = Background(cluster, "postgres", statement)
        conn.execute("CREATE TABLE own AS SELECT generate_series(1, 100000)")
        own = Background(cluster, "postgres", "VACUUM (PARALLEL 0) own", STANDSTILL)
        wait_until(lambda: len(conn.execute("SELECT FROM cyclone.pace").fetchall()) == 2, "two VACUUMs")
        wait_until(
            lambda: conn.execute("SELECT FROM cyclone.pace WHERE pid = %s AND asleep > 0.5", (vacuum.pid,)).fetchall(), "sleep"
        )
        [(limit, budget)] = conn.execute("SELECT limited_by, budget FROM cyclone.pace WHERE pid = %s", (vacuum.pid,))
        assert (limit, budget) == ("cost delay", 10)

        conn.execute("ALTER SYSTEM SET vacuum_cost_limit = 20")
        conn.execute("SELECT pg_reload_conf()")
        query = "SELECT budget FROM cyclone.pace WHERE pid = %s"
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
    """Sessions that run a statement over and over."""

    def __init__(self, cluster, dbname, statement, sessions):
        self._end = threading.Event()
        self._error = None
        self._threads = [threading.Thread(target=self._run, args=(cluster, dbname, statement)) for _ in range(sessions)]

    def _run(self, cluster, dbname, statement):
        try:
            with cluster.connect(dbname) as conn:
                while not self._end.is_set():
                    conn.execute(statement)
        except psycopg.Error as error:
            self._error = error

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception):
        self._end.set()
        for thread in self._threads:
            thread.join()
        assert self._error is None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_target_out_of_reach(cluster, db, conn, workers):
    """Statements take 20 ms come what may: the floor, one warning, and full speed as soon as there are no more of them."""
    make_table(conn)
    with Load(cluster, db, "SELECT pg_sleep(0.02)", 4):
        vacuum = Background(cluster, db, f"VACUUM (PARALLEL {workers}, LATENCY_TARGET '2ms') t", {**SETTINGS, **DEAR})
        wait_until(lambda: any("latency target of 2 ms is missed" in message for message in vacuum.messages), "the warning")
        row = wait_until(
            lambda: (row := pace(conn)) and row["limited_by"] == "floor" and row["latency_ms"] and row, "the floor"
        )
        assert (row["relation"], row["target_ms"], row["latency_of"], row["percentile"]) == ("t", 2, "statements", 95)
        assert row["latency_ms"] > 18
        assert row["budget"] >= 1000
        assert vacuum.running
    vacuum.finish()
    assert len([message for message in vacuum.messages if "latency target" in message]) == 1
    assert pace(conn) is None
    checks.assert_clean(conn, "t")


def test_a_target_is_learned(cluster, db, conn):
    make_table(conn)
    with Load(cluster, db, "SELECT pg_sleep(0.02)", 4):
        vacuum = Background(cluster, db, "VACUUM (PARALLEL 1) t", {**SETTINGS, **DEAR, "cyclone.latency_target": "auto"})
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "learning the target", "learning")
        row = wait_until(lambda: (row := pace(conn)) and row["target_ms"] is not None and row, "a target")
        assert row["target_ms"] > 20
    vacuum.finish()
    checks.assert_clean(conn, "t")


def test_a_statement_is_late_before_it_ends(cluster, db, conn):
    """Statements that hang slow a VACUUM down, although none has ended to be measured."""
    make_table(conn)
    vacuum = Background(cluster, db, "VACUUM (PARALLEL 1, LATENCY_TARGET 10) t", {**SETTINGS, **STANDSTILL, **DEAR})
    wait_until(lambda: pace(conn), "a VACUUM")
    sleepers = [Background(cluster, db, "SELECT pg_sleep(60)") for _ in range(25)]
    row = wait_until(lambda: (row := pace(conn)) and (row["latency_ms"] or 0) > 500 and row, "late statements")
    assert row["limited_by"] == "cost delay"  # which allows even less
    for process in (vacuum, *sleepers):
        conn.execute("SELECT pg_cancel_backend(%s)", (process.pid,))
        process.wait()


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


@pytest.mark.parametrize("point", ["heap-scan", "index-vacuum", "btree-page", "heap-vacuum", "index-cleanup"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_target_is_set_by_a_reload_in_each_phase(new_cluster, point, workers):
    """And taken back in the next: the VACUUM goes on, and its session ends in peace."""
    cluster = new_cluster(**SETTINGS)
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        checks.create_extensions(conn)
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
    cluster.restart()  # fails if a process has died
    assert "terminated by signal" not in cluster.log


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


def test_the_leader_follows_a_reload_while_it_waits_for_a_worker(new_cluster):
    # slow enough for the worker to get its part, and stand still there
    cluster = new_cluster(**SETTINGS, vacuum_cost_delay="10ms", vacuum_cost_limit=300)
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        make_table(conn)
        with Parked(cluster, "postgres", "heap-scan:worker", 1, "VACUUM (PARALLEL 1) t") as vacuum:
            activity = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: conn.execute(activity, (vacuum.pid,)).fetchone() == ("CyclonePhaseEnd",), "the leader's part")
            conn.execute("ALTER SYSTEM SET vacuum_cost_limit = 2")
            conn.execute("SELECT pg_reload_conf()")
            wait_until(lambda: (row := pace(conn)) and row["budget"] == 200, "new settings")
            conn.execute("ALTER SYSTEM SET vacuum_cost_delay = 0")
            conn.execute("SELECT pg_reload_conf()")
            wait_until(lambda: (row := pace(conn)) and row["budget"] is None, "no delay")
            vacuum.release()
            vacuum.finish()


def watched(cluster, db, statement, of="statements") -> float:
    """Return the latency that a watching VACUUM measures while one session runs the statement over and over, in ms."""
    with cluster.connect(db) as conn:
        settings = {**SETTINGS, **STANDSTILL, "cyclone.latency_of": of}
        vacuum = Background(cluster, db, "VACUUM (PARALLEL 0, LATENCY_TARGET '1h') t", settings)
        wait_until(lambda: pace(conn), "a VACUUM")
        with Load(cluster, db, statement, 1):
            time.sleep(1)
            row = wait_until(lambda: (row := pace(conn)) and row["latency_ms"] and row, "a measurement")
        conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
        vacuum.wait()
    return row["latency_ms"]


def test_what_counts_as_a_statement(cluster, db, conn):
    """What happens inside a statement belongs to it, deferred triggers too; what is slow by nature is left out."""
    make_table(conn)
    conn.execute("CREATE TABLE many (v int)")
    conn.execute("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
                 "'BEGIN PERFORM 1; PERFORM pg_sleep(0.03); PERFORM 2; RETURN NULL; END'")  # fmt: skip
    conn.execute("CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON many DEFERRABLE INITIALLY DEFERRED "
                 "FOR EACH ROW EXECUTE FUNCTION slow()")  # fmt: skip
    assert watched(cluster, db, "INSERT INTO many VALUES (1)") > 25
    assert watched(cluster, db, "BEGIN; INSERT INTO many VALUES (1), (2); COMMIT") > 55
    assert watched(cluster, db, "DO 'BEGIN PERFORM pg_sleep(0.03); PERFORM 1; PERFORM 2; END'") > 25
    # only the short one of the two is timed
    assert watched(cluster, db, "CREATE TEMP TABLE x AS SELECT count(*) FROM pg_sleep(0.2); DROP TABLE x; SELECT 1") < 150


def test_what_a_transaction_takes(cluster, db, conn):
    """The sum of its statements, its commit included; but neither what its client does meanwhile nor what was rolled back."""
    make_table(conn)
    twice = "BEGIN; SELECT pg_sleep(0.03); SELECT pg_sleep(0.03); COMMIT"
    assert 25 < watched(cluster, db, twice) < 55
    assert watched(cluster, db, twice, "transactions") > 55
    assert watched(cluster, db, "SELECT pg_sleep(0.03)", "transactions") > 25
    conn.execute("CREATE TABLE written (v int)")
    assert 25 < watched(cluster, db, "INSERT INTO written VALUES (1); SELECT pg_sleep(0.03)", "transactions") < 55
    assert watched(cluster, db, "DO 'BEGIN PERFORM pg_sleep(0.03); COMMIT; PERFORM pg_sleep(0.03); END'", "transactions") > 55
    assert watched(cluster, db, "BEGIN; SELECT pg_sleep(0.2); ROLLBACK; SELECT 1", "transactions") < 150
    assert watched(cluster, db, "BEGIN; SELECT 1; COMMIT; SELECT pg_sleep(0.03)", "transactions") < 55


def test_the_client_of_a_transaction_may_take_its_time(cluster, db, conn):
    make_table(conn)
    settings = {**SETTINGS, **STANDSTILL, "cyclone.latency_of": "transactions"}
    vacuum = Background(cluster, db, "VACUUM (PARALLEL 0, LATENCY_TARGET '1h') t", settings)
    wait_until(lambda: pace(conn), "a VACUUM")
    with cluster.connect(db) as slow:
        slow.execute("BEGIN; SELECT 1")
        time.sleep(1)
        slow.execute("COMMIT")
        row = wait_until(lambda: (row := pace(conn)) and row["latency_ms"] and row, "a measurement")
        assert row["latency_ms"] < 500
    conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
    vacuum.wait()


def test_a_transaction_is_late_before_it_ends(cluster, db, conn):
    """None of its statements is."""
    make_table(conn)
    settings = {**SETTINGS, **STANDSTILL, **DEAR, "cyclone.latency_of": "transactions"}
    vacuum = Background(cluster, db, "VACUUM (PARALLEL 1, LATENCY_TARGET 10) t", settings)
    wait_until(lambda: pace(conn), "a VACUUM")
    sleepers = [Background(cluster, db, "BEGIN; " + "SELECT pg_sleep(0.2); " * 300 + "COMMIT") for _ in range(25)]
    wait_until(lambda: (row := pace(conn)) and (row["latency_ms"] or 0) > 500, "late transactions")
    for process in (vacuum, *sleepers):
        conn.execute("SELECT pg_cancel_backend(%s)", (process.pid,))
        process.wait()


def test_what_the_target_is_about_changes_while_it_runs(new_cluster):
    cluster = new_cluster(**SETTINGS, **STANDSTILL, **{"cyclone.latency_target": "1h"})
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        checks.create_extensions(conn)
        make_table(conn)
        vacuum = Background(cluster, "postgres", "VACUUM (PARALLEL 2) t")
        with Load(cluster, "postgres", "BEGIN; SELECT pg_sleep(0.03); SELECT pg_sleep(0.03); COMMIT", 1):
            for of, least, most in (("statements", 25, 55), ("transactions", 55, 500), ("statements", 25, 55)):
                conn.execute(f"ALTER SYSTEM SET cyclone.latency_of = {of}")
                conn.execute("SELECT pg_reload_conf()")
                wait_until(
                    lambda: (row := pace(conn)) and row["latency_of"] == of and least < (row["latency_ms"] or 0) < most,  # noqa: B023
                    f"latency of {of}",
                )
        conn.execute("ALTER SYSTEM SET vacuum_cost_delay = 0")
        conn.execute("SELECT pg_reload_conf()")
        vacuum.finish()
        checks.assert_clean(conn, "t")


def test_waiting_for_the_client_does_not_count(cluster, db, conn):
    """A client that takes its rows slowly is no reason for a VACUUM to hold back."""
    make_table(conn)
    vacuum = Background(cluster, db, "VACUUM (PARALLEL 0, LATENCY_TARGET '1h') t", {**SETTINGS, **STANDSTILL})
    wait_until(lambda: pace(conn), "a VACUUM")
    with cluster.connect(db) as slow:
        query = b"SELECT repeat('x', 1000) FROM generate_series(1, 20000)"
        slow.pgconn.send_query(query)
        activity = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: conn.execute(activity, (slow.info.backend_pid,)).fetchone() == ("ClientWrite",), "a full socket")
        time.sleep(2)
        while slow.pgconn.is_busy() or slow.pgconn.get_result():
            slow.pgconn.consume_input()
        row = wait_until(lambda: (row := pace(conn)) and row["latency_ms"] and row, "a measurement")
        assert row["latency_ms"] < 1500
    conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
    vacuum.wait()


def test_a_session_that_was_terminated_is_not_late_for_ever(cluster, db, conn):
    make_table(conn)
    vacuum = Background(cluster, db, "VACUUM (PARALLEL 1, LATENCY_TARGET 10) t", {**SETTINGS, **STANDSTILL, **DEAR})
    wait_until(lambda: pace(conn), "a VACUUM")
    sleepers = [Background(cluster, db, "SELECT pg_sleep(60)") for _ in range(25)]
    wait_until(lambda: (row := pace(conn)) and (row["latency_ms"] or 0) > 500, "late statements")
    for sleeper in sleepers:
        conn.execute("SELECT pg_terminate_backend(%s)", (sleeper.pid,))
        sleeper.wait()
    wait_until(lambda: (row := pace(conn)) and (row["latency_ms"] or 0) < 500, "their end")
    conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
    vacuum.wait()


def test_a_target_governs_small_tables_too(cluster, db, conn):
    """Tables that take less than a tick each, one after the other: they are one VACUUM."""
    for number in range(40):
        conn.execute(f"CREATE TABLE small_{number} WITH (fillfactor = 10) AS SELECT generate_series(1, 700) i")
    names = ", ".join(f"small_{number}" for number in range(40))
    with Load(cluster, db, "SELECT pg_sleep(0.02)", 4):
        vacuum = Background(cluster, db, f"VACUUM (LATENCY_TARGET 2) {names}", DEAR)
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] in ("latency target", "floor") and row["latency_ms"], "a tick")
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "floor", "the floor")
    vacuum.finish()


def test_a_command_that_fails_early_watches_nobody(cluster, db, conn):
    """Before the first table: were the session still watching, its own statements would not be timed."""
    make_table(conn)
    with cluster.connect(db) as session:
        with pytest.raises(psycopg.errors.UndefinedTable):
            session.execute("VACUUM (LATENCY_TARGET 20) nowhere")
        vacuum = Background(cluster, db, "VACUUM (PARALLEL 0, LATENCY_TARGET '1h') t", {**SETTINGS, **STANDSTILL})
        wait_until(lambda: pace(conn), "a VACUUM")
        wait_until(lambda: session.execute("SELECT 1") and session.execute("SELECT latency_ms FROM cyclone.pace").fetchone()[0],
                   "a measurement of the session's own statements")  # fmt: skip
        conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
        vacuum.wait()


def test_an_error_ends_the_pace_too(cluster, db, conn):
    """After a failed VACUUM with a target, whoever failed, the session's next ones are as fast as ever, and statements go on."""
    make_table(conn)
    for who in ("leader", "worker"):
        with cluster.connect(db) as session:
            for name, value in {**SETTINGS, "cyclone.latency_target": "5ms", "cyclone.debug_point": f"heap-scan:{who}:error"}.items():
                session.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
            with pytest.raises(psycopg.Error, match="debug point"):
                session.execute("VACUUM (PARALLEL 2, DISABLE_PAGE_SKIPPING) t")
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
    vacuum = Background(cluster, db, "VACUUM (LATENCY_TARGET '1h') t", {**SETTINGS, **STANDSTILL})
    wait_until(lambda: pace(conn), "a VACUUM")
    timed = outcomes()
    row = wait_until(lambda: (row := pace(conn)) and row["latency_ms"] and row, "a measurement")
    assert 0 < row["latency_ms"] < 60_000
    conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
    vacuum.wait()
    assert timed == untimed
