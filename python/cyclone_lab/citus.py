"""A coordinator and two workers of Citus on this machine, a distributed table, and clients that update it through the coordinator."""

import random
import re
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from cyclone_lab import build
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
# Of ten rows of the table, these many stay, and the first of them is one that clients update.
STAY = 3


def install(pg_config: Path) -> Path:
    """Return a tree of the PostgreSQL whose pg_config this is, in which Citus has to be, with the extension installed."""
    origin = pg_config.resolve().parent.parent
    major = int(re.search(r"\d+", run_program(origin, "pg_config", "--version").stdout)[0])
    return build.install(major, origin=origin, debug_points=False)


@contextmanager
def three_nodes(prefix: Path, config: dict, base: Path | None):
    """Yield the running servers of a cluster, the coordinator first, which has no shards of distributed tables."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(Cluster.create(prefix, config, base=base)) for _ in range(3)]
        for node in nodes:
            node.start()
            with node.connect() as conn:
                conn.execute("CREATE EXTENSION citus; CREATE EXTENSION pg_cyclone")
        with nodes[0].connect() as conn:
            conn.execute("SELECT citus_set_coordinator_host(%s, %s)", (str(nodes[0].socket_dir), PORT))
            for node in nodes[1:]:
                conn.execute("SELECT citus_add_node(%s, %s)", (str(node.socket_dir), PORT))
        yield nodes


def make_table(conn: psycopg.Connection, rows: int, shards: int) -> None:
    """Make the distributed table "events", most of whose rows are gone again."""
    conn.execute("DROP TABLE IF EXISTS events")
    conn.execute(f"SET citus.shard_count = {shards}")
    conn.execute("CREATE TABLE events (id int PRIMARY KEY, n int, note text)")
    conn.execute("SELECT create_distributed_table('events', 'id')")
    conn.execute("INSERT INTO events SELECT i, 0, repeat('x', 150) FROM generate_series(0, %s - 1) i", (rows,))
    conn.execute("DELETE FROM events WHERE id %% 10 >= %s", (STAY,))


def table_size(conn: psycopg.Connection) -> int:
    """Return the bytes of the table with its indexes, on all nodes."""
    return conn.execute("SELECT citus_total_relation_size('events')").fetchone()[0]


class Clients:
    """Clients that update single rows of the table through the coordinator, `rate` times a second together.

    `latencies` has when each statement ended, in s, and how long it took, in ms. One that comes late, as another took so long,
    is sent at once.
    """

    def __init__(self, coordinator: Cluster, rows: int, number: int, rate: float):
        self.latencies: list[tuple[float, float]] = []
        self.failed = 0
        self._coordinator = coordinator
        self._rows = rows
        self._pause = number / rate
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i, i / rate)) for i in range(number)]

    def _run(self, number: int, delay: float) -> None:
        rng = random.Random(number)
        due = time.monotonic() + delay
        with self._coordinator.connect() as conn:
            while not self._stop.wait(max(due - time.monotonic(), 0)):
                due += self._pause
                row = 10 * rng.randrange(self._rows // 10)
                start = time.monotonic()
                try:
                    conn.execute("UPDATE events SET n = n + 1 WHERE id = %s", (row,))
                except psycopg.Error as error:
                    self.failed += 1
                    print(f"a client failed: {error}")
                    return
                end = time.monotonic()
                self.latencies.append((end, (end - start) * 1000))

    @contextmanager
    def at_work(self):
        """Have them work for as long as the block takes."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def between(self, since: float, until: float) -> list[float]:
        """Return how long those statements took, in ms, that ended between two moments."""
        return [ms for end, ms in self.latencies if since <= end <= until]
