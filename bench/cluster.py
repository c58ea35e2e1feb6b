"""VACUUM (FULL INPLACE) of a distributed table as those see it who use the table through the coordinator.

A coordinator and two workers of Citus on this machine, a table of 16 shards, seven rows in ten deleted, and clients that update the
others one by one through the coordinator, at a fixed rate. In turn, each on a table made anew:

- nothing: no VACUUM, for as many seconds as are waited before the others, too
- no target: one VACUUM (FULL INPLACE, PARALLEL 0) on the coordinator, so one process on each worker
- target: the same with a LATENCY_TARGET, which each node judges by its own sessions
- shard after shard: the same shards without Citus, on one worker after the other, by as many processes as the two had together

Measured at the coordinator are p50, p95 and p99 of the statements, before and meanwhile, as clients see them (on the same two cores, in
Python) and as the server does, in its log; those that failed, and how long the VACUUM takes; then the size beside that of a VACUUM
(FULL). Each time all rows have to be as the clients have left them, or the bench fails.
`make bench-cluster PG_CONFIG=/path/to/pg_config`, of a PostgreSQL in which Citus is installed.
"""

import argparse
import json
import re
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import psycopg
from rich.console import Console

from circumstances import RESULTS, add_common_arguments, circumstances_markdown, find_circumstances, print_circumstances
from cyclone_lab.background import Background
from cyclone_lab.citus import CONFIG, Clients, install, make_table, table_size, three_nodes
from cyclone_lab.cluster import Cluster
from grid import Grid
from tpcc.percentiles import percentile

MOST_SECONDS = 600  # before a VACUUM is given up
PERCENTS = (50, 95, 99)


@dataclass
class Run:
    """The results of one contender, with the clients beside it; latencies are in ms, sizes in bytes."""

    contender: str
    seconds: float
    finished: bool
    before: list[float]  # p50, p95 and p99 of the statements before it began
    meanwhile: list[float]
    in_server: list[float]  # meanwhile, by the coordinator's log
    statements: int
    failed: int
    rate: float  # statements a second meanwhile
    size_before: int
    size: int
    rewritten: int  # after VACUUM (FULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pg-config", required=True, type=Path, help="of a PostgreSQL in which Citus is installed")
    parser.add_argument("--rows", type=int, default=3_200_000, help="rows before the deletion (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=16, help="shards of the table (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=4, help="connections to the coordinator (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=200, help="statements a second (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=10, help="seconds of load before a VACUUM (default: %(default)s)")
    parser.add_argument("--target", type=float, default=20, metavar="MS", help="LATENCY_TARGET (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "cluster", choose_major=False)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 200)
    config = {**CONFIG, **dict(options.set)}
    prefix = install(options.pg_config)
    circumstances = find_circumstances(prefix, config, options.base)
    print_circumstances(console, circumstances)

    vacuum = "FULL INPLACE, PARALLEL 0"
    contenders = {
        "nothing": partial(_wait, seconds=options.idle),
        "no target": partial(_vacuum, options=vacuum),
        f"target {options.target:g} ms": partial(_vacuum, options=f"{vacuum}, LATENCY_TARGET {options.target:g}"),
        "shard after shard": _shard_after_shard,
    }
    runs: list[Run] = []
    with three_nodes(prefix, config, options.base) as nodes:
        for name, value in (("log_min_duration_statement", "0"), ("log_line_prefix", "'%n '")):
            nodes[0].sql(f"ALTER SYSTEM SET {name} = {value}")
        nodes[0].sql("SELECT pg_reload_conf()")
        for number in range(options.rounds):
            order = list(contenders)[number % len(contenders) :] + list(contenders)[: number % len(contenders)]
            for name in order:
                runs.append(_measure(nodes, name, contenders[name], options))
                console.print(_line(runs[-1]), highlight=False)
    grid = _table(list(contenders), runs)
    console.print(grid.to_rich(f"medians of {options.rounds} rounds"))
    ratio = _middle(runs, "no target", lambda run: run.seconds) / _middle(runs, "shard after shard", lambda run: run.seconds)
    told = f"time for both nodes at once to that for one shard after the other: {ratio:.2f}"
    console.print(told, highlight=False)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "cluster.json").write_text(
        json.dumps({"circumstances": circumstances, "runs": [asdict(run) for run in runs]}, indent=1, default=str)
    )
    (options.results / "cluster.md").write_text(f"{circumstances_markdown(circumstances)}\n{grid.to_markdown()}\n{told}\n")
    return 0


def _measure(nodes: list[Cluster], name: str, contender, options: argparse.Namespace) -> Run:
    """Run one contender beside the clients; raise RuntimeError if a row is not as it should be."""
    with nodes[0].connect() as conn:
        make_table(conn, options.rows, options.shards)
        for node in nodes:
            node.sql("CHECKPOINT")
        size_before = table_size(conn)
        rows = _rows(conn)
        clients = Clients(nodes[0], options.rows, options.clients, options.rate)
        with clients.at_work():
            loaded = time.monotonic()
            time.sleep(options.idle)
            start, start_clock = time.monotonic(), time.time()
            finished = contender(nodes)
            end, end_clock = time.monotonic(), time.time()
        size = table_size(conn)
        _check(conn, name, rows, clients)
        conn.execute("VACUUM (FULL) events")
        _check(conn, "VACUUM (FULL)", rows, clients)
        before, meanwhile = clients.between(loaded, start), clients.between(start, end)
        return Run(name, end - start, finished, [percentile(before, percent) for percent in PERCENTS],
                   [percentile(meanwhile, percent) for percent in PERCENTS],
                   [percentile(_in_server(nodes[0], start_clock, end_clock), percent) for percent in PERCENTS], len(clients.latencies), clients.failed,
                   len(meanwhile) / (end - start), size_before, size, table_size(conn))  # fmt: skip


def _in_server(coordinator: Cluster, since: float, until: float) -> list[float]:
    """Return how long the coordinator says that it executed each update between two moments, in ms."""
    logged = re.findall(r"^([\d.]+) LOG:  duration: ([\d.]+) ms  execute .*UPDATE events", coordinator.log, re.MULTILINE)
    return [float(ms) for ended, ms in logged if since <= float(ended) <= until]


def _rows(conn: psycopg.Connection) -> tuple:
    """Return what no client changes: how many rows there are, and a sum over all."""
    return conn.execute("SELECT count(*), sum(hashtext(id || note)::bigint) FROM events").fetchone()


def _check(conn: psycopg.Connection, after: str, rows: tuple, clients: Clients) -> None:
    """Raise RuntimeError if rows are missing, or updates; one that failed may have been done."""
    [(updates,)] = conn.execute("SELECT sum(n) FROM events")
    if _rows(conn) != rows or not 0 <= updates - len(clients.latencies) <= clients.failed:
        raise RuntimeError(f"rows are wrong after {after}: {_rows(conn)} for {rows}, {updates} updates of {len(clients.latencies)}")


def _wait(_nodes: list[Cluster], seconds: float) -> bool:
    time.sleep(seconds)
    return True


def _vacuum(nodes: list[Cluster], options: str) -> bool:
    """Vacuum all shards by one statement on the coordinator; return whether it came to an end."""
    return _finishes(Background(nodes[0], "postgres", f"VACUUM ({options}) events"))


def _shards(nodes: list[Cluster]) -> list[list[str]]:
    """Return the names of each worker's shards of the table."""
    query = """
        SELECT shard_name(s.logicalrelid, s.shardid)
        FROM pg_dist_shard s JOIN pg_dist_placement USING (shardid) JOIN pg_dist_node n USING (groupid)
        WHERE s.logicalrelid = 'events'::regclass AND n.nodename = %s ORDER BY s.shardid
        """
    with nodes[0].connect() as conn:
        return [[name for (name,) in conn.execute(query, (str(node.socket_dir),)).fetchall()] for node in nodes[1:]]


def _shard_after_shard(nodes: list[Cluster]) -> bool:
    """Vacuum the shards of one worker, then those of the other, each by a leader and a worker."""
    return all(
        _finishes(
            Background(node, "postgres", f"VACUUM (FULL INPLACE, PARALLEL 1) {', '.join(shards)}",
                       {"citus.enable_ddl_propagation": "off"})
        )
        for node, shards in zip(nodes[1:], _shards(nodes), strict=True)
    )  # fmt: skip


def _finishes(vacuum: Background) -> bool:
    """Wait for a VACUUM's end, or cancel it if that takes too long; return whether it came to an end; raise its error."""
    deadline = time.monotonic() + MOST_SECONDS
    while vacuum.running and time.monotonic() < deadline:
        time.sleep(0.01)
    if vacuum.running:
        vacuum.connection.cancel_safe()
        vacuum.wait()
        return False
    vacuum.finish()
    return True


def _line(run: Run) -> str:
    before, meanwhile, in_server = (" / ".join(f"{ms:.2f}" for ms in values) for values in (run.before, run.meanwhile, run.in_server))
    return (
        f"  {run.contender:28} {run.seconds:7.2f} s{'' if run.finished else ' (gave up)'}, p50 / p95 / p99 {meanwhile} ms"
        f" (before {before}; in the server {in_server}), {run.rate:.0f}/s, {run.failed} of {run.statements} failed,"
        f" {run.size_before / 2**20:.0f} MB to {run.size / 2**20:.0f}, rewritten {run.rewritten / 2**20:.0f}"
    )


def _middle(runs: list[Run], contender: str, value) -> float:
    return median(value(run) for run in runs if run.contender == contender)


def _table(contenders: list[str], runs: list[Run]) -> Grid:
    grid = Grid(["contender", "seconds", *(f"p{percent}, ms" for percent in PERCENTS), "p95 before, ms",
                 "p95 in the server, ms", "statements/s", "failed", "MB",
                 "to a rewrite's"], [])  # fmt: skip
    for name in contenders:
        mine = [run for run in runs if run.contender == name]
        gave_up = "" if all(run.finished for run in mine) else " (gave up)"
        values = [_middle(runs, name, lambda run, i=i: run.meanwhile[i]) for i in range(len(PERCENTS))]
        grid.rows.append([
            name + gave_up, f"{_middle(runs, name, lambda run: run.seconds):.1f}", *(f"{ms:.2f}" for ms in values),
            f"{_middle(runs, name, lambda run: run.before[1]):.2f}",
            f"{_middle(runs, name, lambda run: run.in_server[1]):.2f}", f"{_middle(runs, name, lambda run: run.rate):.0f}",
            f"{sum(run.failed for run in mine)}", f"{_middle(runs, name, lambda run: run.size) / 2**20:.0f}",
            f"{_middle(runs, name, lambda run: run.size / run.rewritten):.3f}",
        ])  # fmt: skip
    return grid


if __name__ == "__main__":
    sys.exit(main())
