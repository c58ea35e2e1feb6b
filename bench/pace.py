"""Measures three things that a VACUUM's pace rests on.

How well a team keeps to the budget of cost-based delay: what it costs a second, as a part of what the settings allow, for
PostgreSQL's VACUUM in one process and pg_cyclone's with workers.
How fast the latency target auto makes way when a load begins, and full speed is reached again when it ends (steps.py). And what
others take beside slow and fast loads, bursts, and one that grows tenfold (loads.py).
`make bench-pace`.
"""

import argparse
import csv
import json
import re
import signal
import sys
import time
from dataclasses import asdict
from statistics import median

from rich.console import Console

import beside
import loads
import steps
from circumstances import RESULTS, add_common_arguments, circumstances_markdown, find_circumstances, print_circumstances
from cyclone_lab import build
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
PARTS = ("budget", "steps", "loads")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="size of the table (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="runs of a load that begins and ends (default: %(default)s)")
    parser.add_argument("--loads", type=int, default=1, help="runs of each other load (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    add_common_arguments(parser, RESULTS / "pace")
    options = parser.parse_args()
    if min(options.steps, options.loads) < 1:
        parser.error("--steps, --loads: at least one")
    return options


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


def budget_grid(cluster: Cluster) -> Grid:
    """Return a row for each contender, with what it costs a second of each budget."""
    contenders = {"PostgreSQL": None, **{f"pg_cyclone, {workers} workers": workers for workers in WORKERS}}
    rows = [[name, *(f"{use_of_budget(cluster, *budget, workers=workers):.3f}" for budget in BUDGETS)] for name, workers in contenders.items()]
    return Grid(["cost a second, of limit/delay", *(f"{limit} / {delay} ms" for limit, delay in BUDGETS)], rows)


def steps_grid(runs: list[steps.Steps]) -> Grid:
    """Return a row each run, and one of medians."""
    percentile = f"{beside.PERCENTILE}th percentile"
    header = ["run", f"{percentile} without VACUUM, ms", "near it again after, s",
              f"{percentile} from 2 s on, ms", "speed from 2 s on", "full speed again after, s"]  # fmt: skip

    def row(name: str, values: list[float]) -> list[str]:
        return [name, *(f"{value:.2f}" for value in values)]

    columns = [
        (run.alone_ms, run.back_seconds, run.load_ms, run.speed_under_load, run.full_speed_seconds)
        for run in runs
    ]  # fmt: skip
    rows = [row(str(number), values) for number, values in enumerate(columns, 1)]
    return Grid(header, [*rows, row("median", [median(values) for values in zip(*columns)])])


def loads_grid(runs: list[loads.Beside]) -> Grid:
    """Return a row for each kind of load, with the medians of its runs."""
    percentile = f"{beside.PERCENTILE}th percentile"
    header = ["load", "statements a second", f"{percentile} without VACUUM, ms", f"{percentile}, ms",
              f"of the worst {loads.WINDOW_SECONDS} s, ms", "speed"]  # fmt: skip
    rows = []
    for kind in loads.KINDS:
        columns = zip(*(tuple(asdict(run).values())[1:] for run in runs if run.kind == kind.name))
        rows.append([kind.name, *(f"{median(values):,.2f}" for values in columns)])
    return Grid(header, rows)


def main() -> int:
    options = parse_arguments()
    console = Console(width=None if sys.stdout.isatty() else 200)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # leave through the context managers
    prefix = build.install(options.major)
    config = {**CONFIG, **dict(options.set)}
    circumstances = find_circumstances(prefix, config, options.base)
    print_circumstances(console, circumstances)

    grids: list[Grid] = []
    numbers: dict[str, list] = {}

    def show(grid: Grid, title: str) -> None:
        grids.append(grid)
        console.print(grid.to_rich(title))

    with Cluster.create(prefix, config, base=options.base) as cluster:
        cluster.start()
        load(cluster, options.rows)
        if "budget" in options.only:
            show(budget_grid(cluster), "Budget")

        cluster.run("pgbench", "-i", "-q", "-s", "10", "postgres")
        if "steps" in options.only:
            most = steps.most(cluster)
            runs = [steps.measure_steps(cluster, most) for _ in range(options.steps)]
            numbers["steps"] = [asdict(run) for run in runs]
            show(steps_grid(runs), f"A load of {steps.SHARE_OF_MOST * most:.0f} transactions a second begins and ends")

        if "loads" in options.only:
            others = [loads.measure_load(cluster, kind) for _ in range(options.loads) for kind in loads.KINDS]
            numbers["loads"] = [asdict(run) for run in others]
            show(loads_grid(others), "Loads")

    options.results.mkdir(parents=True, exist_ok=True)
    tables = [grid.to_markdown() for grid in grids]
    (options.results / "pace.md").write_text("\n".join(["# Pace\n", circumstances_markdown(circumstances), *tables]))
    (options.results / "pace.json").write_text(json.dumps({"circumstances": circumstances, **numbers}, indent=1))
    with open(options.results / "pace.csv", "w", newline="") as file:
        csv.writer(file).writerows(row for grid in grids for row in (grid.header, *grid.rows))
    console.print(f"\ntables and numbers: {options.results}", highlight=False)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
