"""The adaptive delay goes by how long others wait for a core, which their statements don't show, or for a page.

The test says it in place of the kernel (test/shim/core_times.c).
"""

import re
import threading
import time
from pathlib import Path

import pytest

from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Background, wait_until
from cyclone_lab.postgres import REPO, hand_over
from cyclone_lab.shim import preloadable
from test_pace import BURN, BUSY, COSTS, SETTINGS, STANDSTILL, Load, cancel, make_slow_table, pace, rows_by_pid

# so that a table of this size takes minutes
PAGES = 10_000
PACED = {"cyclone.debug_price": 60, "cyclone.adaptive_delay": "on"}
AUTO = {**SETTINGS, **STANDSTILL, **PACED}
SECONDS = 0.05


class Kernel:
    """Says that each process has run for half of the time, and waited for a core for `waits` times as long."""

    def __init__(self, folder: Path):
        self.file, self.waits = folder / "times", 0.2
        self._ran = self._waited = 1_000_000_000
        self._end = threading.Event()
        self._tell()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _tell(self):
        new = self.file.with_suffix(".new")
        new.write_text(f"{self._ran} {self._waited} 1\n")
        new.chmod(0o644)
        new.rename(self.file)

    def _run(self):
        while not self._end.wait(SECONDS):
            self._ran += int(SECONDS / 2 * 1e9)
            self._waited += int(self.waits * SECONDS / 2 * 1e9)
            self._tell()

    def stop(self):
        self._end.set()
        self._thread.join()


@pytest.fixture
def kernel(new_cluster):
    cluster = new_cluster(autovacuum="off")
    with cluster.connect() as conn:
        checks.create_extensions(conn)
        conn.execute("CREATE EXTENSION pg_cyclone")
        make_slow_table(conn, pages=PAGES)
    library, _control, _map = preloadable(REPO / "test" / "shim" / "core_times.c", 1, base=cluster.home)
    folder = cluster.home / "kernel"
    folder.mkdir()
    hand_over(folder)
    kernel = Kernel(folder)
    kernel.cluster = cluster
    cluster.env = {"LD_PRELOAD": str(library), "CYCLONE_CORE_TIMES": str(kernel.file)}
    cluster.restart()
    yield kernel
    kernel.stop()


def added(conn) -> float | None:
    """Return what is added to the VACUUM's cost delay; None if nothing bounds that, or it is just learning."""
    row = pace(conn)
    return row["added"] if row and row["limited_by"] in ("other sessions", "floor") else None


@pytest.mark.once
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_vacuum_makes_way_for_those_who_wait_for_a_core(kernel, workers):
    """Statements take 20 ms come what may; so without that it would go faster and faster, until it is through."""
    with kernel.cluster.connect() as conn, Load(kernel.cluster, "postgres", BUSY, 4):
        vacuum = Background(kernel.cluster, "postgres", f"VACUUM (PARALLEL {workers}) t", AUTO)
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "learning", "learning")
        wait_until(lambda: added(conn), "what they wait for alone")
        kernel.waits = 12
        for _ in range(2):  # it may learn meanwhile, but what is learned is the mean of eight times
            wait_until(lambda: added(conn) == 0, "its floor")
            time.sleep(0.5)
            assert vacuum.running
        row = wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "floor" and row, "its floor")
        assert row["others_take"] > 1.25 * row["others_would_take"], row
        kernel.waits = 0
        wait_until(lambda: added(conn), "more than that")
        cancel(conn, vacuum)
    with kernel.cluster.connect() as conn:
        checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("others", ["those who wait", "those who look", "idle in transaction"])
@pytest.mark.parametrize("delay", [{}, {"vacuum_cost_delay": "50ms", "vacuum_cost_limit": 10_000}], ids=["default", "delay"])
def test_nobody_makes_a_vacuum_slower_than_its_cost_delay(kernel, others, delay):
    """Whoever is there: with `auto` it sleeps no longer than its pages cost by that delay, or by 200 a 2 ms, which take seconds here."""
    kernel.waits = 12 if others == "those who wait" else 0.2
    said = []
    statement = {"those who wait": BUSY, "those who look": "SELECT 1", "idle in transaction": "BEGIN"}[others]
    with kernel.cluster.connect() as conn, Load(kernel.cluster, "postgres", statement, 4, seconds=0.02):
        conn.add_notice_handler(lambda notice: said.append(notice.message_detail or notice.message_primary))
        for name, value in {**SETTINGS, **PACED, **delay, "statement_timeout": "60s"}.items():
            conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
        conn.execute("VACUUM (VERBOSE, PROCESS_TOAST off, PARALLEL 0) t")
    report = "\n".join(said)
    [counts] = re.findall(r"buffer usage: (\d+) hits, (\d+) (?:reads|misses), (\d+) dirtied", report)
    cost = sum(int(count) * price for count, price in zip(counts, (1, 2, 20), strict=True))
    [slept] = re.findall(r"pace: processes slept ([\d.]+) s in all, with an adaptive delay", report)
    rate = 100_000 if not delay else 200_000
    assert cost > 150_000 and float(slept) < 1.2 * cost / rate, report


def test_vacuums_share_one_budget(kernel):
    """And all know what one has found out, whatever pages cost each. A page that costs nothing would have no floor."""
    dear, cheap = ({name: cost for name in COSTS} for cost in (10_000, 1))
    with kernel.cluster.connect() as conn, Load(kernel.cluster, "postgres", BUSY, 4):
        make_slow_table(conn, "u", pages=PAGES)
        first = Background(kernel.cluster, "postgres", "VACUUM (PARALLEL 0) t", {**AUTO, **dear})
        wait_until(lambda: added(conn), "what they wait for alone")
        second = Background(kernel.cluster, "postgres", "VACUUM (PARALLEL 0) u", {**AUTO, **cheap})
        rows = lambda: [row for row in rows_by_pid(conn).values() if row["limited_by"] == "other sessions"]  # noqa: E731
        known = lambda row: (row["added"], row["others_would_take"], row["shared_by"], row["budget"])  # noqa: E731
        found = wait_until(lambda: len(found := rows()) == 2 and known(found[0]) == known(found[1]) and found, "what both have")
        assert known(found[0])[2:] == (2, 10) and found[0]["others_would_take"], found
        kernel.waits = 12
        wait_until(lambda: [row["limited_by"] for row in rows_by_pid(conn).values()] == ["floor"] * 2, "the floor of both")
        cancel(conn, first)
        wait_until(lambda: [row["shared_by"] for row in rows_by_pid(conn).values()] == [1], "the other one's end")
        cancel(conn, second)
    with kernel.cluster.connect() as conn:
        checks.assert_clean(conn, "t", "u")


# Keys whose comparison waits for the test, with their page locked, in a session that asks for that
LOCKED_PAGE = f"""
    CREATE FUNCTION compared(int, int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
        IF current_setting('my.wait', true) = 'on' THEN
            PERFORM pg_advisory_xact_lock_shared({DEBUG_POINT_LOCK});
        END IF;
        RETURN btint4cmp($1, $2);
    END $$;
    CREATE OPERATOR CLASS waiting FOR TYPE int USING btree AS
        OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 compared(int, int);
    CREATE TABLE page (k int);
    CREATE INDEX ON page (k waiting);
    INSERT INTO page VALUES (1)
"""
WAITERS = 12


def test_a_vacuum_makes_way_for_those_who_wait_for_a_page(kernel):
    """Which is a wait of another class since PostgreSQL 19. The lock is held until they have been seen, however long that takes."""
    kernel.waits = 0
    with kernel.cluster.connect() as conn, kernel.cluster.connect() as gate:
        conn.execute(LOCKED_PAGE)
        vacuum = Background(kernel.cluster, "postgres", "VACUUM (PARALLEL 0) t", AUTO)
        for _ in range(3):  # those who wait do so in rests, too: these must not be all that is known
            wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "learning", "a rest")
            wait_until(lambda: added(conn), "what they wait for alone")
        gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        sessions = [Background(kernel.cluster, "postgres", "INSERT INTO page VALUES (2)", {"my.wait": "on"})]
        held = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'advisory'"
        wait_until(lambda: conn.execute(held, (sessions[0].pid,)).fetchall(), "a locked page")
        sessions += [Background(kernel.cluster, "postgres", "INSERT INTO page VALUES (3)") for _ in range(WAITERS)]
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE query ~ '^INSERT' AND wait_event_type IN ('LWLock', 'Buffer')"
        wait_until(lambda: conn.execute(waiting).fetchone() == (WAITERS,), "those who wait for it")
        wait_until(lambda: added(conn) == 0, "its floor")
        gate.close()
        for session in sessions:
            session.finish()
        wait_until(lambda: added(conn), "more than that")
        cancel(conn, vacuum)
    with kernel.cluster.connect() as conn:
        checks.assert_clean(conn, "t", "page")


@pytest.mark.once
@pytest.mark.parametrize("what", ["nothing", *(pytest.param(what, marks=pytest.mark.full) for what in ("always the same", "no file"))])
def test_where_it_is_not_known_nothing_is_added(kernel, what):
    """While others are at work; when they have gone the rest is done at full speed."""
    kernel.stop()
    if what == "nothing":
        kernel.file.write_text("0 0 0\n")
    elif what == "no file":
        kernel.file.unlink()
    with kernel.cluster.connect() as conn:
        conn.execute(BURN)
        # at work all the time, however slow the machine is
        burner = Background(kernel.cluster, "postgres", "SELECT burn(600)")
        vacuum = Background(kernel.cluster, "postgres", "VACUUM (PARALLEL 0) t", AUTO)
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "floor", "its pace")
        for _ in range(10):
            assert pace(conn)["added"] == 0 and vacuum.running
            time.sleep(0.2)
        cancel(conn, burner)
    vacuum.finish()
    with kernel.cluster.connect() as conn:
        checks.assert_clean(conn, "t")
