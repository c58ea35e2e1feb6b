"""How long the views take in a database of many tables, with a long history, beside one that holds rows back.

Each table has ten columns, two indexes and a TOAST table, and dead rows; ten of them are large and bloated, and one index of
each of these is never used. `make bench-views VIEWS_ARGS="--tables 1000 --runs 10000"`.
"""

import argparse
import time
from statistics import median

from circumstances import RESULTS, add_common_arguments, begin, run_main, save_results
from cyclone_lab.cluster import Cluster
from figures import views_lines
from kernel import session_ns

CONFIG = {"shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "max_locks_per_transaction": 1000, "cyclone.history_size": 10000}
LARGE = 10
ROUNDS = 7
QUERIES = {
    "horizon": "SELECT * FROM cyclone.horizon_details",
    "horizon, who holds it only": "SELECT kind, pid, xmin_age, how_to_end FROM cyclone.horizon WHERE is_oldest",
    "advice": "SELECT * FROM cyclone.advice",
    "advice, what is due only": "SELECT relation FROM cyclone.advice WHERE due IS NOT NULL",
    "advice, one table": "SELECT * FROM cyclone.advice WHERE relation = 't1'::regclass",
    "history": "SELECT * FROM cyclone.history_details",
    "progress": "SELECT * FROM cyclone.progress_details",
    "pace": "SELECT * FROM cyclone.pace_details",
    "autovacuum": "SELECT * FROM cyclone.autovacuum_details",
    "compaction": "SELECT * FROM cyclone.compaction_details",
    "bloat": "SELECT * FROM cyclone.bloat_details",
    "bloat, one table": "SELECT * FROM cyclone.bloat_details WHERE of_table = 't1'::regclass",
}


def fill(conn, tables: int, runs: int) -> None:
    for number in range(1, tables + 1):
        rows = 200_000 if number <= LARGE else 100
        conn.execute(f"CREATE TABLE t{number} (id int, a int, b int, c int, d int, e date, f float8, g text, h text, note text)")
        conn.execute(f"INSERT INTO t{number} SELECT i, i, i, i, i, now(), i, 'g', 'h', 'note' FROM generate_series(1, {rows}) i")
        conn.execute(f"CREATE INDEX ON t{number} (id)")
        conn.execute(f"CREATE INDEX ON t{number} (a)")
        conn.execute(f"DELETE FROM t{number} WHERE id % 10 > 2")
    conn.execute("VACUUM (ANALYZE)")
    while runs_kept(conn) < runs:
        conn.execute("VACUUM")
    for number in range(1, tables + 1):
        conn.execute(f"DELETE FROM t{number} WHERE id % 10 = 2")
    conn.execute("SELECT pg_stat_force_next_flush()")


def runs_kept(conn) -> int:
    [(number,)] = conn.execute("SELECT count(*) FROM cyclone.history")
    return number


def milliseconds(conn, query: str) -> tuple[float, float]:
    """Run a query; return how long it took until the client had all rows, and how long the server's process was at work."""
    start, start_ns = time.perf_counter(), session_ns(conn)
    conn.execute(query)
    return 1000 * (time.perf_counter() - start), (session_ns(conn) - start_ns) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=10000, help="in the history, 10,000 at most (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "views")
    arguments = parser.parse_args()
    if not 0 <= arguments.runs <= 10000:
        parser.error("--runs must be between 0 and 10000")
    _console, prefix, config, circumstances = begin(arguments, CONFIG)
    views = []
    with Cluster.create(prefix, config, base=arguments.base) as cluster:
        cluster.start()
        with cluster.connect() as conn, cluster.connect() as holder:
            conn.execute("CREATE EXTENSION pg_cyclone")
            fill(conn, arguments.tables, arguments.runs)
            holder.execute("BEGIN")
            holder.execute("SELECT pg_current_xact_id()")
            conn.execute("DELETE FROM t1 WHERE id % 10 = 1")
            for name, query in QUERIES.items():
                times, work = zip(*(milliseconds(conn, query) for _ in range(ROUNDS)), strict=True)
                views.append({"name": name, "median": round(median(times), 2), "longest": round(max(times), 2), "processor": round(median(work), 2)})
    save_results(arguments.results, circumstances, views_lines, tables=arguments.tables, runs=arguments.runs, rounds=ROUNDS, views=views)


if __name__ == "__main__":
    run_main(main)
