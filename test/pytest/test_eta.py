"""How long a running VACUUM will take: the estimates in cyclone.progress, as a server has them. test/unit/test_eta.c has the figures."""

from dataclasses import dataclass
from datetime import datetime

import pytest

from cyclone_lab.background import Background, Parked, wait_until

# five pages at a time: a scan takes many seconds, and ends with the test
SLOW = {"vacuum_cost_delay": "100ms", "vacuum_cost_limit": 100, "vacuum_cost_page_hit": 20}
VACUUM = "VACUUM (PARALLEL 0) t"
COLUMNS = "phase, phase_eta, eta, clock_timestamp()"


@dataclass
class Eta:
    phase: str
    phase_eta: datetime | None
    eta: datetime | None
    now: datetime


def look(conn, role: str = "leader") -> Eta | None:
    """Return what cyclone.progress says of the one VACUUM of this database; None if there is none, or all of it is hidden."""
    row = conn.execute(
        f"SELECT {COLUMNS} FROM cyclone.progress_details WHERE datname = current_database() AND role IS NOT DISTINCT FROM %s", (role,)
    ).fetchone()
    return row and Eta(*row)


@pytest.fixture
def table(conn):
    """Table t of some hundred pages with dead rows on each, and an index."""
    conn.execute("CREATE TABLE t (id int) WITH (fillfactor = 10, autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT generate_series(1, 14000)")
    conn.execute("CREATE INDEX ON t (id)")
    conn.execute("DELETE FROM t WHERE id % 3 = 0")


def cancel(conn, vacuum: Background) -> None:
    conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
    vacuum.wait()


def test_nothing_is_known_at_the_beginning_of_a_first_run(cluster, db, conn, table):
    with Parked(cluster, db, "heap-scan:any", 3, "VACUUM (PARALLEL 2) t"):
        seen = look(conn)
        assert seen.phase == "scanning heap"
        assert seen.phase_eta is seen.eta is look(conn, "worker").phase_eta is None


def test_a_phase_is_estimated_by_its_rate_and_the_whole_as_the_last_time(cluster, db, conn, table):
    vacuum = Background(cluster, db, VACUUM, SLOW)
    seen = wait_until(lambda: (eta := look(conn)) and eta.phase_eta and eta, "an estimate")
    assert seen.phase == "scanning heap"
    assert seen.eta is None, "no run tells what comes after the phase"
    cancel(conn, vacuum)
    assert look(conn) is None

    # a run that was cancelled says nothing, one that is done does
    conn.execute(VACUUM)
    conn.execute("INSERT INTO t SELECT generate_series(1, 14000)")
    vacuum = Background(cluster, db, VACUUM, SLOW)
    seen = wait_until(lambda: (eta := look(conn)) and eta.phase_eta and eta.eta and eta, "an estimate")
    assert seen.phase_eta <= seen.eta
    cancel(conn, vacuum)


@pytest.mark.parametrize("privileged", [False, True])
def test_who_may_not_see_progress_sees_no_estimate(cluster, db, conn, table, privileged):
    conn.execute(VACUUM)
    conn.execute("CREATE ROLE cyclone_eta_watcher LOGIN")
    if privileged:
        conn.execute("GRANT pg_read_all_stats TO cyclone_eta_watcher")
    with Parked(cluster, db, "heap-scan:leader", 1, VACUUM) as vacuum, cluster.connect(db, user="cyclone_eta_watcher") as watcher:
        [row] = watcher.execute("SELECT pid FROM cyclone.progress_details WHERE datname = current_database()").fetchall()
        assert row == (vacuum.pid,)
        [(phases, estimates)] = watcher.execute("SELECT count(phase), count(phase_eta) + count(eta) FROM cyclone.progress_details").fetchall()
        assert phases == int(privileged) and (privileged or estimates == 0)
