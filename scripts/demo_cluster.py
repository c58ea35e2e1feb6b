"""Shows VACUUM (FULL INPLACE) of a distributed table on a coordinator and two workers, under load, as one statement.

Needs the pg_config of a PostgreSQL in which Citus is installed: `make demo-cluster PG_CONFIG=/path/to/pg_config`. Builds the
extension, brings up three servers on this machine, spreads a table over two of them, churns it, and compacts it while clients update it
through the coordinator; once with a target on each node, and, to compare, without one. All its data is temporary.
"""

import argparse
import time
from pathlib import Path

import psycopg

from cyclone_lab.background import Background
from cyclone_lab.citus import CONFIG, Clients, install, make_table, table_size, three_nodes
from cyclone_lab.cluster import Cluster

SHOW_SECONDS = 0.5
MEBIBYTE = 1 << 20


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))] if values else float("nan")


def show_bloat(conn: psycopg.Connection) -> None:
    """Print what the view of all nodes says about the table."""
    rows = conn.execute("""
        SELECT nodeport, nodename, coalesce(max(error), format('%s shards, %s of %s could be given back', count(*),
               pg_size_pretty(sum(bloat_bytes)), pg_size_pretty(sum(size))))
        FROM cyclone.cluster_bloat WHERE error IS NOT NULL OR kind = 'table' AND relation_name ~ 'events_[0-9]'
        GROUP BY 1, 2 ORDER BY 1, 2
        """)
    for port, name, what in rows:
        print(f"    {Path(name).name}:{port}  {what}")


def show(conn: psycopg.Connection) -> None:
    """Print what the views of all nodes say now."""
    rows = conn.execute("""
        SELECT g.nodeport, g.nodename, coalesce(g.error, g.relation_name || ', ' || g.phase), p.budget, p.latency_ms
        FROM cyclone.cluster_progress g LEFT JOIN cyclone.cluster_pace p USING (nodename, nodeport, pid)
        WHERE g.role = 'leader' OR g.error IS NOT NULL ORDER BY 1, 2
        """)
    for port, name, what, budget, latency in rows:
        pace = "" if budget is None else f", {budget:.0f} pages/s, latency there {latency or 0:.1f} ms"
        print(f"    {Path(name).name}:{port}  {what}{pace}")


def compact(coordinator: Cluster, args: argparse.Namespace, options: str) -> None:
    """Compact the table under load with these options, and print what it came to."""
    with coordinator.connect() as conn:
        make_table(conn, args.rows, args.shards)
        before = table_size(conn)
        show_bloat(conn)
        clients = Clients(coordinator, args.rows, args.clients, args.rate)
        with clients.at_work():
            idle_from = time.monotonic()
            time.sleep(args.idle)
            start = time.monotonic()
            print(f"VACUUM ({options}) events")
            vacuum = Background(coordinator, conn.info.dbname, f"VACUUM ({options}) events")
            while vacuum.running:
                time.sleep(SHOW_SECONDS)
                show(conn)
            vacuum.finish()
            end = time.monotonic()
        after = table_size(conn)
        start_rewrite = time.monotonic()
        conn.execute("VACUUM (FULL) events")
        print(
            f"  {before / MEBIBYTE:.0f} MB to {after / MEBIBYTE:.0f} MB in {end - start:.1f} s; a rewrite comes to"
            f" {table_size(conn) / MEBIBYTE:.0f} MB in {time.monotonic() - start_rewrite:.1f} s\n"
            f"  p95 at the coordinator: {p95(clients.between(idle_from, start)):.1f} ms before,"
            f" {p95(clients.between(start, end)):.1f} ms meanwhile; {clients.failed} of {len(clients.latencies)} statements failed"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pg-config", required=True, type=Path, help="of a PostgreSQL in which Citus is installed")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rate", type=float, default=200, help="statements a second")
    parser.add_argument("--idle", type=float, default=5, help="seconds of load before VACUUM")
    parser.add_argument("--target", default="20ms", help="LATENCY_TARGET of each node")
    parser.add_argument("--base", type=Path, help="folder for the data")
    args = parser.parse_args()

    with three_nodes(install(args.pg_config), CONFIG, args.base) as nodes:
        compact(nodes[0], args, f"FULL INPLACE, LATENCY_TARGET '{args.target}', PARALLEL 2")
        compact(nodes[0], args, "FULL INPLACE, PARALLEL 2")


if __name__ == "__main__":
    main()
