"""Shows VACUUM (FULL INPLACE) of a distributed table on a coordinator and two workers, under load, as one statement.

Needs the pg_config of a PostgreSQL in which Citus is installed: `make demo-cluster PG_CONFIG=/path/to/pg_config`. Builds the
extension, brings up three servers on this machine, spreads a table over two of them, churns it, and compacts it while clients update it
through the coordinator; once with a target on each node, and, to compare, without one. All its data is temporary.
"""

import argparse
import re
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from cyclone_lab import build
from cyclone_lab.background import Background
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import run_program

CONFIG = {
    "shared_preload_libraries": "citus, pg_cyclone",
    "citus.node_conninfo": "sslmode=prefer",
    "autovacuum": "off",
    "fsync": "off",
    "wal_level": "logical",
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "max_worker_processes": 32,
    "max_connections": 100,
}
PORT = 5432
SHOW_SECONDS = 1


class Clients:
    """Clients that update single rows through the coordinator, so many a second, and time each statement."""

    def __init__(self, coordinator: Cluster, rows: int, number: int, rate: float):
        self.latencies: list[tuple[float, float]] = []  # when it ended, in s, and how long it took, in ms
        self.failed = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(coordinator, rows, i, number / rate)) for i in range(number)
        ]

    def _run(self, coordinator: Cluster, rows: int, number: int, pause: float) -> None:
        with coordinator.connect() as conn:
            row = number
            while not self._stop.wait(pause):
                row = (row * 7919 + 104729) % rows
                start = time.monotonic()
                try:
                    conn.execute("UPDATE events SET n = n + 1 WHERE id = %s", (row,))
                except psycopg.Error as error:
                    self.failed += 1
                    print(f"a client failed: {error}")
                    return
                self.latencies.append((time.monotonic(), (time.monotonic() - start) * 1000))

    @contextmanager
    def at_work(self):
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def p95(self, since: float, until: float) -> float:
        """Return the 95th percentile of what ended between two moments, in ms."""
        found = sorted(ms for end, ms in self.latencies if since <= end <= until)
        return found[int(0.95 * (len(found) - 1))] if found else float("nan")


def make_table(conn: psycopg.Connection, rows: int, shards: int) -> None:
    """Make a distributed table, most of whose rows are gone again."""
    conn.execute("DROP TABLE IF EXISTS events")
    conn.execute(f"SET citus.shard_count = {shards}")
    conn.execute("CREATE TABLE events (id int PRIMARY KEY, n int, note text)")
    conn.execute("SELECT create_distributed_table('events', 'id')")
    conn.execute("INSERT INTO events SELECT i, 0, repeat('x', 150) FROM generate_series(0, %s - 1) i", (rows,))
    conn.execute("DELETE FROM events WHERE id %% 10 >= 3 AND id >= %s", (rows // 100,))


def size(conn: psycopg.Connection) -> float:
    return conn.execute("SELECT citus_total_relation_size('events')").fetchone()[0] / 2**20


def show(conn: psycopg.Connection) -> None:
    """Print what the views of all nodes say now."""
    rows = conn.execute("""
        SELECT g.nodeport, g.nodename, coalesce(g.error, g.relation || ', ' || g.phase), p.budget, p.latency_ms
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
        before = size(conn)
        clients = Clients(coordinator, args.rows // 100, args.clients, args.rate)
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
        after = size(conn)
        start_rewrite = time.monotonic()
        conn.execute("VACUUM (FULL) events")
        print(
            f"  {before:.0f} MB to {after:.0f} MB in {end - start:.1f} s; a rewrite comes to {size(conn):.0f} MB in "
            f"{time.monotonic() - start_rewrite:.1f} s\n  p95 at the coordinator: {clients.p95(idle_from, start):.1f} ms before, "
            f"{clients.p95(start, end):.1f} ms meanwhile; {clients.failed} of {len(clients.latencies)} statements failed"
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

    origin = args.pg_config.resolve().parent.parent
    major = int(re.search(r"\d+", run_program(origin, "pg_config", "--version").stdout)[0])
    prefix = build.install(major, origin=origin, debug_points=False)
    with ExitStack() as stack:
        nodes = [stack.enter_context(Cluster.create(prefix, CONFIG, base=args.base)) for _ in range(3)]
        for node in nodes:
            node.start()
            with node.connect() as conn:
                conn.execute("CREATE EXTENSION citus; CREATE EXTENSION pg_cyclone")
        with nodes[0].connect() as conn:
            conn.execute("SELECT citus_set_coordinator_host(%s, %s)", (str(nodes[0].socket_dir), PORT))
            for node in nodes[1:]:
                conn.execute("SELECT citus_add_node(%s, %s)", (str(node.socket_dir), PORT))
        compact(nodes[0], args, f"FULL INPLACE, LATENCY_TARGET '{args.target}', PARALLEL 2")
        compact(nodes[0], args, "FULL INPLACE, PARALLEL 2")


if __name__ == "__main__":
    main()
