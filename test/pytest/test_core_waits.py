"""The target auto goes by how long others wait for a core, which their statements don't show, or for a page.

The test says it in place of the kernel (test/shim/core_times.c).
"""

import threading
import time
from pathlib import Path

import pytest

from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Background, wait_until
from cyclone_lab.postgres import REPO, hand_over
from cyclone_lab.shim import preloadable
from test_pace import BURN, BUSY, COSTS, FIRST_BUDGET, SETTINGS, Load, cancel, make_slow_table, pace, rows_by_pid

# so that a table of this size takes minutes
PAGES = 10_000
AUTO = {**SETTINGS, "cyclone.debug_price": 60, "cyclone.latency_target": "auto"}
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


def budget(conn) -> float | None:
    """Return what the VACUUM may cost a second; None if it isn't held back by its target, or is just learning it."""
    row = pace(conn)
    return row["budget"] if row and row["limited_by"] in ("latency target", "floor") else None


@pytest.mark.once
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_vacuum_makes_way_for_those_who_wait_for_a_core(kernel, workers):
    """Statements take 20 ms come what may; so without that it would go faster and faster, until it is through."""
    with kernel.cluster.connect() as conn, Load(kernel.cluster, "postgres", BUSY, 4):
        vacuum = Background(kernel.cluster, "postgres", f"VACUUM (PARALLEL {workers}) t", AUTO)
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "learning the target", "learning")
        wait_until(lambda: budget(conn), "what they wait for alone")
        kernel.waits = 12
        for _ in range(2):  # it may rest meanwhile, but what is learned is the mean of eight rests
            wait_until(lambda: (found := budget(conn)) and found < FIRST_BUDGET / 4, "less of a budget")
            time.sleep(0.5)
            assert vacuum.running
        low = wait_until(lambda: budget(conn), "its budget")
        kernel.waits = 0
        wait_until(lambda: (budget(conn) or 0) > 1.5 * low, "more of it")
        cancel(conn, vacuum)
    with kernel.cluster.connect() as conn:
        checks.assert_clean(conn, "t")


def test_vacuums_share_one_budget(kernel):
    """All of them sleep for the time of one, and all know what one has found out, whatever pages cost each."""
    dear, cheap = ({name: cost for name in COSTS} for cost in (10_000, 0))
    with kernel.cluster.connect() as conn, Load(kernel.cluster, "postgres", BUSY, 4):
        make_slow_table(conn, "u", pages=PAGES)
        first = Background(kernel.cluster, "postgres", "VACUUM (PARALLEL 0) t", {**AUTO, **dear})
        wait_until(lambda: budget(conn), "what they wait for alone")
        kernel.waits = 12
        wait_until(lambda: (found := budget(conn)) and found < FIRST_BUDGET / 4, "less of a budget")
        second = Background(kernel.cluster, "postgres", "VACUUM (PARALLEL 0) u", {**AUTO, **cheap})
        rows = lambda: [row for row in rows_by_pid(conn).values() if row["limited_by"] in ("latency target", "floor")]  # noqa: E731
        found = wait_until(lambda: len(found := rows()) == 2 and found[0]["shared_by"] == found[1]["shared_by"] == 2 and found, "both")
        assert max(row["budget"] for row in found) < FIRST_BUDGET, found

        def they_share():
            rates = [row["rate"] * AUTO["cyclone.debug_price"] / row["budget"] for row in rows()]
            return len(rates) == 2 and min(rates) > 0.1 and sum(rates) < 1.5

        wait_until(they_share, "one budget's time by both")
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
            wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "learning the target", "a rest")
            wait_until(lambda: budget(conn), "what they wait for alone")
        gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        sessions = [Background(kernel.cluster, "postgres", "INSERT INTO page VALUES (2)", {"my.wait": "on"})]
        held = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'advisory'"
        wait_until(lambda: conn.execute(held, (sessions[0].pid,)).fetchall(), "a locked page")
        sessions += [Background(kernel.cluster, "postgres", "INSERT INTO page VALUES (3)") for _ in range(WAITERS)]
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE query ~ '^INSERT' AND wait_event_type IN ('LWLock', 'Buffer')"
        wait_until(lambda: conn.execute(waiting).fetchone() == (WAITERS,), "those who wait for it")
        low = wait_until(lambda: (found := budget(conn)) and found < FIRST_BUDGET / 4 and found, "less of a budget")
        gate.close()
        for session in sessions:
            session.finish()
        wait_until(lambda: (budget(conn) or 0) > 1.5 * low, "more of it")
        cancel(conn, vacuum)
    with kernel.cluster.connect() as conn:
        checks.assert_clean(conn, "t", "page")


@pytest.mark.once
@pytest.mark.parametrize("what", ["nothing", *(pytest.param(what, marks=pytest.mark.full) for what in ("always the same", "no file"))])
def test_where_it_is_not_known_a_small_budget_is_kept_to(kernel, what):
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
        wait_until(lambda: (row := pace(conn)) and row["limited_by"] == "learning the target", "learning")
        wait_until(lambda: budget(conn), "its pace")
        for _ in range(10):
            assert (budget(conn) or 0) <= FIRST_BUDGET and vacuum.running
            time.sleep(0.2)
        cancel(conn, burner)
    vacuum.finish()
    with kernel.cluster.connect() as conn:
        checks.assert_clean(conn, "t")
