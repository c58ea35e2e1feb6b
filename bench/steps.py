"""How fast the pace follows a load that comes and goes: a VACUUM with the latency target auto runs without a break, and in the
midst of it pgbench begins, and ends, adding up rows at half the rate that it could.
"""

import time
from dataclasses import dataclass

import beside
from beside import AUTO, VacuumBeside, percentile, run_pgbench
from cyclone_lab.cluster import Cluster

SCRIPT = """\\set aid random(1, 950000)
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 30000;
"""
SHARE_OF_MOST = 0.5  # of what pgbench does without a limit
ALONE_SECONDS, IDLE_SECONDS, LOAD_SECONDS, AFTER_SECONDS = 4, 4, 10, 5
WINDOW_SECONDS = 1.0
SAMPLE_SECONDS = 0.02
NEAR = 1.1


@dataclass
class Steps:
    """The figures of one run, in seconds and milliseconds."""

    alone_ms: float  # the percentile without VACUUM
    back_seconds: float  # after the load's begin, until the percentile of a window is within a tenth of that
    load_ms: float  # the percentile from two seconds after the load's begin to its end
    full_speed_seconds: float  # after its end, until nothing bounds the VACUUM
    speed_under_load: float  # what of the table was scanned a second from two seconds on, as a part of that without load


def most(cluster: Cluster) -> float:
    """Return how many transactions a second pgbench does without a limit."""
    return beside.most(cluster, SCRIPT)


def measure_steps(cluster: Cluster, most: float) -> Steps:
    """Do one run; table t and pgbench's tables exist, with a million accounts."""
    rate = SHARE_OF_MOST * most
    alone = percentile([ms for _, ms in run_pgbench(cluster, SCRIPT, ALONE_SECONDS, rate)])
    with VacuumBeside(cluster, AUTO, interval=SAMPLE_SECONDS) as vacuum:
        time.sleep(IDLE_SECONDS)
        begin = time.time()
        transactions = run_pgbench(cluster, SCRIPT, LOAD_SECONDS, rate)
        time.sleep(AFTER_SECONDS)
    begin = max(begin, min(moment for moment, _ in transactions))
    end = max(moment for moment, _ in transactions)
    back = begin
    while percentile([ms for moment, ms in transactions if back <= moment < back + WINDOW_SECONDS]) > NEAR * alone and back < end:
        back += 0.1
    unbounded = [moment for moment, limit, *_ in vacuum.samples if moment > end and limit == "nothing"]
    return Steps(
        alone,
        back - begin,
        percentile([ms for moment, ms in transactions if moment >= begin + 2]),
        unbounded[0] - end if unbounded else float("inf"),
        vacuum.speed(begin + 2, end) / (vacuum.speed(begin - 2, begin) or float("nan")),
    )
