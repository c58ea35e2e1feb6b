"""Measures what cyclone.history costs: reading it when it is full, and recording a run.

Fills it with VACUUMs of a thousand small tables, and prints the medians. `make bench-history`.
"""

import argparse
import time
from pathlib import Path
from statistics import median

from rich.console import Console

from circumstances import RESULTS, add_common_arguments, find_circumstances, print_circumstances
from cyclone_lab import build
from cyclone_lab.cluster import Cluster

CONFIG = {"shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "max_parallel_maintenance_workers": 0}
TABLES = 1000
QUERIES = {
    "all rows and columns": "SELECT * FROM cyclone.history_details",
    "last night's, the longest first": "SELECT * FROM cyclone.history_details WHERE started > now() - interval '12h' ORDER BY seconds DESC LIMIT 20",
    "time by table and phase": "SELECT relation, key, sum(value::float8) FROM cyclone.history_details, jsonb_each_text(phases) GROUP BY 1, 2",
}


def milliseconds(conn, statement: str, times: int) -> tuple[float, float]:
    """Return the median time that a statement takes until the client has all, and the server's share of CPU time in that."""
    statistics = Path(f"/proc/{conn.info.backend_pid}/schedstat")
    durations, cpu = [], []
    for _ in range(times):
        start, start_cpu = time.perf_counter(), int(statistics.read_text().split()[0])
        conn.execute(statement)
        durations.append(time.perf_counter() - start)
        cpu.append(int(statistics.read_text().split()[0]) - start_cpu)
    return median(durations) * 1000, median(cpu) / 1e6


def fill(conn, rows: int) -> tuple[float, float]:
    """Fill the history; return what a VACUUM of an empty table takes when it is full."""
    conn.execute(f"DO $$BEGIN FOR i IN 1..{TABLES} LOOP EXECUTE format('CREATE TABLE t%s (id int)', i); END LOOP; END$$")
    for i in range(rows):
        conn.execute(f"VACUUM t{i % TABLES + 1}")
    return milliseconds(conn, "VACUUM t1", 500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000, help="size of the history (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "history")
    options = parser.parse_args()
    prefix = build.install(options.major)
    config = {**CONFIG, "cyclone.history_size": options.rows, **dict(options.set)}
    print_circumstances(Console(), find_circumstances(prefix, config, options.base))
    with Cluster.create(prefix, config, base=options.base) as cluster:
        cluster.start()
        with cluster.connect() as conn:
            conn.execute("CREATE EXTENSION pg_cyclone")
            full = fill(conn, options.rows)
            count = conn.execute("SELECT count(*) FROM cyclone.history").fetchone()[0]
            print(f"{count} rows")
            for what, query in QUERIES.items():
                wall, cpu = milliseconds(conn, query, 15)
                print(f"{what}: {wall:.1f} ms, CPU time of the server {cpu:.1f} ms")
        cluster.config["cyclone.history_size"] = 0
        cluster.restart()
        with cluster.connect() as conn:
            without = milliseconds(conn, "VACUUM t1", 500)
        for what, (wall, cpu) in (("with", full), ("without", without)):
            print(f"VACUUM of an empty table {what} a history: {wall:.3f} ms, CPU time of the server {cpu:.3f} ms")


if __name__ == "__main__":
    main()
