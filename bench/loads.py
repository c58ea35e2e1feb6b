"""What the latency target auto makes of loads of all kinds: a few statements a second and twenty thousand, bursts, and a load that
becomes ten times as much within a minute. A VACUUM with it runs without a break beside each.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import beside
from beside import AUTO, VacuumBeside, percentile, run_pgbench
from cyclone_lab.cluster import Cluster

SUM = """\\set aid random(1, 1000000 - {rows})
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + {rows};
"""
LOOK_UP = """\\set aid random(1, 1000000)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
"""
# With it the VACUUM's watcher is no load itself.
SAMPLE_SECONDS = 1.0
ALONE_SECONDS, IDLE_SECONDS = 10, 6
BEGIN_SECONDS = 5  # which don't count
WINDOW_SECONDS = 10

# Seconds, and the statements a second in them
Part = tuple[float, float]


@dataclass(frozen=True)
class Kind:
    """A load: its name, script, and the parts that it consists of, given the most that pgbench does with the script."""

    name: str
    script: str
    parts: Callable[[float], list[Part]]


KINDS = (
    Kind("5 a second", SUM.format(rows=300_000), lambda most: [(60, 5)]),
    Kind("20,000 a second", LOOK_UP, lambda most: [(30, 20_000)]),
    Kind("bursts: 2 s in 6", SUM.format(rows=30_000), lambda most: 8 * [(2, most / 2), (4, 0)]),
    Kind("tenfold in a minute", SUM.format(rows=30_000), lambda most: [(5, most / 20 * 10 ** (step / 12)) for step in range(13)]),
)


@dataclass
class Beside:
    """The figures of one run, in milliseconds."""

    kind: str
    per_second: float  # statements, while there were any
    alone_ms: float  # the percentile without VACUUM, at the most statements a second
    load_ms: float  # the percentile, without the first seconds
    worst_ms: float  # of a window
    speed: float  # what of the table was scanned a second, as a part of that before the load


def measure_load(cluster: Cluster, kind: Kind) -> Beside:
    """Do one run; table t and pgbench's tables exist, with a million accounts."""
    parts = kind.parts(beside.most(cluster, kind.script))
    alone = percentile([ms for _, ms in run_pgbench(cluster, kind.script, ALONE_SECONDS, max(rate for _, rate in parts))])
    transactions: list[tuple[float, float]] = []
    with VacuumBeside(cluster, AUTO, interval=SAMPLE_SECONDS) as vacuum:
        time.sleep(IDLE_SECONDS)
        begin = time.time()
        for seconds, rate in parts:
            if rate:
                transactions += run_pgbench(cluster, kind.script, seconds, rate)
            else:
                time.sleep(seconds)
        end = time.time()
    counted = begin + BEGIN_SECONDS
    windows = [[ms for moment, ms in transactions if start <= moment < start + WINDOW_SECONDS]
               for start in range(int(counted), int(end) - WINDOW_SECONDS + 1)]  # fmt: skip
    return Beside(
        kind.name,
        len(transactions) / sum(seconds for seconds, rate in parts if rate),
        alone,
        percentile([ms for moment, ms in transactions if moment >= counted]),
        max(percentile(window) for window in windows),
        vacuum.speed(counted, end) / (vacuum.speed(begin - 4, begin) or float("nan")),
    )
