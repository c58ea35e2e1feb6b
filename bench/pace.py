"""Measures four things that a VACUUM's pace rests on.

How well a team keeps to the budget of cost-based delay: what it costs a second, as a part of what the settings allow, for
PostgreSQL's VACUUM in one process and pg_cyclone's with workers. And what it costs other sessions that their statements are
timed while a VACUUM has a latency target in ms: `pgbench -S`, and a statement that sends many rows, beside a VACUUM that sleeps,
with and without a target, taking turns.
How fast a latency target is kept again when a load begins, and full speed reached again when it ends (steps.py). And how it is
kept beside slow and fast loads, bursts, and one that grows tenfold (loads.py).
`make bench-pace`.
"""

import argparse
import csv
import json
import os
import re
import signal
import sys
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psycopg
from rich.console import Console

import beside
import loads
import steps
from beside import Pgbench
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
CANCEL_SECONDS = 60
PARTS = ("budget", "timing", "rows", "steps", "loads")
# Transactions a second, and the processor time of the server for one, in microseconds
Cost = tuple[float, float]
# By time of the processor, so that nothing else counts; the least of several, as others on the machine only add to it.
MANY_ROWS = 700_000
STATEMENTS_OF_MANY_ROWS = 3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="size of the table (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=41, help="periods without and with a target (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a period of pgbench (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="runs of a load that begins and ends (default: %(default)s)")
    parser.add_argument("--loads", type=int, default=1, help="runs of each other load (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=2, help="clients of pgbench (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    add_common_arguments(parser, RESULTS / "pace")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: how much they differ takes at least two")
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


def in_turn(rounds: int, measure: Callable[[str], Any]) -> list[tuple[Any, Any]]:
    """Return what `measure` has measured of untimed and of timed statements in each round; the first one takes turns."""
    measured = []
    for number in range(rounds):
        order = ("0", "1h") if number % 2 else ("1h", "0")
        costs = {target: measure(target) for target in order}
        measured.append((costs["0"], costs["1h"]))
    return measured


@contextmanager
def vacuum_that_hardly_moves(cluster: Cluster, target: str) -> Iterator[psycopg.Connection]:
    """Beside the block a VACUUM sleeps, with this latency target; yields a connection. Raises RuntimeError if it doesn't, or goes on."""
    with cluster.connect() as conn, cluster.connect() as watcher:
        for name, value in {"vacuum_cost_limit": 1, "vacuum_cost_delay": 100, "cyclone.latency_target": target}.items():
            conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))

        ends = ["it has ended by itself"]

        def vacuum() -> None:
            try:
                conn.execute("VACUUM (DISABLE_PAGE_SKIPPING, PARALLEL 0) t")
            except Exception as error:  # it is cancelled
                ends[0] = str(error)

        thread = threading.Thread(target=vacuum, daemon=True)
        thread.start()
        while not watcher.execute("SELECT FROM cyclone.pace").fetchall():
            if not thread.is_alive():
                raise RuntimeError(f"the VACUUM doesn't begin: {ends[0]}")
            time.sleep(0.01)
        yield watcher
        if not thread.is_alive():
            raise RuntimeError(f"the VACUUM ended before what is beside it did: {ends[0]}")
        conn.cancel()
        thread.join(CANCEL_SECONDS)
        if thread.is_alive():
            activity = watcher.execute("SELECT state, wait_event_type, wait_event FROM pg_stat_activity WHERE pid = %s", [conn.info.backend_pid])
            raise RuntimeError(f"the VACUUM goes on {CANCEL_SECONDS} s after it was cancelled: {activity.fetchone()}")


def cost_of_transactions(cluster: Cluster, options: argparse.Namespace) -> list[tuple[Cost, Cost]]:
    """Return what `pgbench -S` does beside such a VACUUM, without and with a target, in each round.

    All rounds are of the same sessions, on one core.
    """
    with Pgbench(cluster, loads.LOOK_UP, None, clients=options.clients) as pgbench, cluster.connect() as watcher:
        pids: list[int] = []
        while len(pids) < options.clients:
            pids = [pid for (pid,) in watcher.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'")]
            time.sleep(0.1)
        # on one core: where the kernel places them makes a transaction take 10 microseconds of processor time, or 38
        for pid in [pgbench.pid, *pids]:
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})

        def period(target: str) -> tuple[float, float, int]:
            with vacuum_that_hardly_moves(cluster, target):
                start, before = time.time(), sum(map(processor_time, pids))
                time.sleep(options.seconds)
                return start, time.time(), sum(map(processor_time, pids)) - before

        periods = in_turn(options.rounds, period)
        ended = sorted(moment for moment, _ in pgbench.stop())

    def cost(start: float, end: float, nanoseconds: int) -> Cost:
        transactions = bisect(ended, end) - bisect(ended, start)
        return transactions / (end - start), nanoseconds / transactions / 1000

    return [(cost(*untimed), cost(*timed)) for untimed, timed in periods]


def cost_of_many_rows(cluster: Cluster, *, target: str) -> float:
    """Return the processor time of the server, in milliseconds, for a statement of MANY_ROWS rows beside such a VACUUM."""
    with vacuum_that_hardly_moves(cluster, target), cluster.connect() as conn:
        used = [processor_time(conn.info.backend_pid)]
        for _ in range(STATEMENTS_OF_MANY_ROWS):
            conn.pgconn.exec_(f"SELECT * FROM generate_series(1, {MANY_ROWS})".encode())
            used.append(processor_time(conn.info.backend_pid))
    return min(after - before for before, after in pairwise(used)) / 1e6


def processor_time(pid: int) -> int:
    """Return for how many nanoseconds a process has run, as the kernel's scheduler counts it; raises OSError if it has ended."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def timing_grid(rounds: list[tuple[Cost, Cost]]) -> Grid:
    """Return a row for untimed and timed sessions: medians, and of the ratios the median and the middle half."""
    header = ["pgbench -S", "transactions a second", "of untimed", "processor time of one, µs", "of untimed"]
    cells = [["untimed"], ["timed"]]
    for what, form in ((0, ",.0f"), (1, ".2f")):
        ratios = [timed[what] / untimed[what] for untimed, timed in rounds]
        lower, _, upper = quantiles(ratios, n=4)
        cells[0] += [f"{median(untimed[what] for untimed, _ in rounds):{form}}", "1"]
        cells[1] += [f"{median(timed[what] for _, timed in rounds):{form}}", f"{median(ratios):.4f} ({lower:.4f}–{upper:.4f})"]
    return Grid(header, cells)


def rows_grid(rounds: list[tuple[float, float]]) -> Grid:
    """The same for a statement of many rows."""
    lower, _, upper = quantiles([timed / untimed for untimed, timed in rounds], n=4)
    return Grid(
        [f"a statement of {MANY_ROWS:,} rows", "processor time, ms", "of untimed"],
        [["untimed", f"{median(untimed for untimed, _ in rounds):.1f}", "1"],
         ["timed", f"{median(timed for _, timed in rounds):.1f}",
          f"{median(timed / untimed for untimed, timed in rounds):.4f} ({lower:.4f}–{upper:.4f})"]],
    )  # fmt: skip


def steps_grid(runs: list[steps.Steps]) -> Grid:
    """Return a row each run, and one of medians."""
    percentile = f"{beside.PERCENTILE}th percentile"
    header = ["run", f"{percentile} without VACUUM, ms", "target, ms", "at it again after, s", "in the server after, s",
              f"{percentile} from 2 s on, ms", "in the server, ms", "speed from 2 s on", "full speed again after, s"]  # fmt: skip

    def row(name: str, values: list[float]) -> list[str]:
        return [name, *(f"{value:.2f}" for value in values)]

    columns = [
        (run.alone_ms, run.target_ms, run.back_seconds, run.server_back_seconds, run.load_ms, run.server_ms, run.speed_under_load,
         run.full_speed_seconds)
        for run in runs
    ]  # fmt: skip
    rows = [row(str(number), values) for number, values in enumerate(columns, 1)]
    return Grid(header, [*rows, row("median", [median(values) for values in zip(*columns)])])


def loads_grid(runs: list[loads.Beside]) -> Grid:
    """Return a row for each kind of load, with the medians of its runs."""
    percentile = f"{beside.PERCENTILE}th percentile"
    header = ["load", "statements a second", f"{percentile} without VACUUM, ms", "target, ms", f"{percentile}, ms",
              f"of the worst {loads.WINDOW_SECONDS} s, ms", "in the server, ms", "speed"]  # fmt: skip
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
        if "timing" in options.only:
            numbers["pgbench"] = cost_of_transactions(cluster, options)
            show(timing_grid(numbers["pgbench"]), "Timing statements")
        if "rows" in options.only:
            numbers["rows"] = in_turn(options.rounds, lambda target: cost_of_many_rows(cluster, target=target))
            show(rows_grid(numbers["rows"]), "Timing a statement of many rows")

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
