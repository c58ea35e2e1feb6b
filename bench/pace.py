"""Measures two things that a VACUUM's pace rests on. `make bench-pace`.

How well a team keeps to the budget of cost-based delay: what it costs a second, as a part of what the settings allow, for
PostgreSQL's VACUUM in one process and pg_cyclone's with workers.
And what others take with the adaptive delay beside slow and fast loads, bursts, and one that grows tenfold (loads): a VACUUM runs
without a break, and pgbench beside it.
"""

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

from beside import AUTO, PERCENTILE, VacuumBeside, most, percentile, run_pgbench
from circumstances import RESULTS, add_common_arguments, begin, run_main, save_results
from cyclone_lab.cluster import Cluster
from grid import Grid

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "off",
    "fsync": "off",
    "shared_buffers": "1GB",
    "max_parallel_maintenance_workers": 4,
    "max_wal_size": "10GB",
    "checkpoint_timeout": "1h",
}
PAGE_COSTS = {"vacuum_cost_page_hit": 1, "vacuum_cost_page_miss": 2, "vacuum_cost_page_dirty": 20}
BUDGETS = ((200, 20), (200, 2), (2000, 20))  # vacuum_cost_limit, vacuum_cost_delay in ms
WORKERS = (0, 1, 2, 4)
PARTS = ("budget", "loads")
SUM = """\\set aid random(1, 1000000 - {rows})
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + {rows};
"""
LOOK_UP = """\\set aid random(1, 1000000)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
"""
# In seconds; with this interval the VACUUM's watcher is no load itself. The first seconds don't count.
LOADS_ALONE, LOADS_IDLE, LOADS_BEGIN, LOADS_WINDOW, LOADS_INTERVAL = 10, 6, 5, 10, 1.0

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
    """The figures of one run of a kind of load, in milliseconds."""

    kind: str
    per_second: float  # statements, while there were any
    alone_ms: float  # the percentile without VACUUM, at the most statements a second
    load_ms: float  # the percentile, without the first seconds
    worst_ms: float  # of a window
    speed: float  # what of the table was scanned a second, as a part of that before the load


def load(cluster: Cluster, rows: int) -> None:
    """Make the table t, with an index; all in shared buffers."""
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        conn.execute("CREATE TABLE t (id int, v text) WITH (autovacuum_enabled = off)")
        conn.execute(f"INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, {rows}) i")
        conn.execute("CREATE INDEX ON t (id)")
        conn.execute("VACUUM t")


def use_of_budget(cluster: Cluster, limit: int, delay_ms: int, *, workers: int | None) -> float:
    """Return what a VACUUM of t with some dead rows costs a second, as a part of limit/delay; workers None: PostgreSQL's."""
    said = []
    with cluster.connect() as conn:
        # a tenth of the pages gets dead rows, the same number each time
        conn.execute("UPDATE t SET v = v WHERE id % 600 = 0")
        conn.execute("CHECKPOINT")
        settings = {**PAGE_COSTS, "vacuum_cost_limit": limit, "vacuum_cost_delay": delay_ms}
        settings["cyclone.enabled"] = "off" if workers is None else "on"
        for name, value in settings.items():
            conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
        conn.add_notice_handler(lambda notice: said.append(notice.message_primary))
        start = time.perf_counter()
        options = f"VERBOSE, INDEX_CLEANUP on, DISABLE_PAGE_SKIPPING, PROCESS_TOAST off, PARALLEL {workers or 0}"
        conn.execute(f"VACUUM ({options}) t")
        seconds = time.perf_counter() - start
    [counts] = re.findall(r"buffer usage: (\d+) hits, (\d+) (?:reads|misses), (\d+) dirtied", "\n".join(said))
    cost = sum(int(count) * price for count, price in zip(counts, PAGE_COSTS.values()))
    return cost / seconds / (limit / delay_ms * 1000)


def measure_load(cluster: Cluster, kind: Kind) -> Beside:
    """Do one run of a kind of load; tables t and pgbench's, with a million accounts, exist."""
    parts = kind.parts(most(cluster, kind.script))
    alone = percentile([ms for _, ms in run_pgbench(cluster, kind.script, LOADS_ALONE, max(rate for _, rate in parts))])
    transactions: list[tuple[float, float]] = []
    with VacuumBeside(cluster, AUTO, interval=LOADS_INTERVAL) as vacuum:
        time.sleep(LOADS_IDLE)
        begin = time.time()
        for seconds, rate in parts:
            if rate:
                transactions += run_pgbench(cluster, kind.script, seconds, rate)
            else:
                time.sleep(seconds)
        end = time.time()
    counted = begin + LOADS_BEGIN
    windows = [[ms for moment, ms in transactions if start <= moment < start + LOADS_WINDOW]
               for start in range(int(counted), int(end) - LOADS_WINDOW + 1)]  # fmt: skip
    return Beside(
        kind.name,
        len(transactions) / sum(seconds for seconds, rate in parts if rate),
        alone,
        percentile([ms for moment, ms in transactions if moment >= counted]),
        max(percentile(window) for window in windows),
        vacuum.speed(counted, end) / (vacuum.speed(begin - 4, begin) or float("nan")),
    )


def budget_grid(cluster: Cluster) -> Grid:
    """Return a row for each contender, with what it costs a second of each budget."""
    contenders = {"PostgreSQL": None, **{f"pg_cyclone, {workers} workers": workers for workers in WORKERS}}
    rows = [[name, *(f"{use_of_budget(cluster, *budget, workers=workers):.3f}" for budget in BUDGETS)] for name, workers in contenders.items()]
    return Grid(["cost a second, of limit/delay", *(f"{limit} / {delay} ms" for limit, delay in BUDGETS)], rows)


def loads_grid(runs: list[Beside]) -> Grid:
    """Return a row for each kind of load, with the medians of its runs."""
    name = f"{PERCENTILE}th percentile"
    header = ["load", "statements a second", f"{name} without VACUUM, ms", f"{name}, ms", f"of the worst {LOADS_WINDOW} s, ms", "speed"]
    rows = []
    for kind in KINDS:
        columns = zip(*(tuple(asdict(run).values())[1:] for run in runs if run.kind == kind.name))
        rows.append([kind.name, *(f"{median(values):,.2f}" for values in columns)])
    return Grid(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="size of the table (default: %(default)s)")
    parser.add_argument("--loads", type=int, default=1, help="runs of each load (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    add_common_arguments(parser, RESULTS / "pace")
    options = parser.parse_args()
    if options.loads < 1:
        parser.error("--loads: at least one")
    console, prefix, config, circumstances = begin(options, CONFIG)
    found: dict[str, Grid] = {}

    def show(part: str, grid: Grid, title: str) -> None:
        found[part] = grid
        console.print(grid.to_rich(title))

    with Cluster.create(prefix, config, base=options.base) as cluster:
        cluster.start()
        load(cluster, options.rows)
        if "budget" in options.only:
            show("budget", budget_grid(cluster), "Budget")
        cluster.run("pgbench", "-i", "-q", "-s", "10", "postgres")
        if "loads" in options.only:
            show("loads", loads_grid([measure_load(cluster, kind) for _ in range(options.loads) for kind in KINDS]), "Loads")
    save_results(options.results, circumstances, **{part: asdict(grid) for part, grid in found.items()})


if __name__ == "__main__":
    run_main(main)
