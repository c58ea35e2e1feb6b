"""How long VACUUM of a database of many small tables takes: a thousand of 1 MB, each with a primary key, every tenth row deleted.

By a bare VACUUM, whose CPU time is told, too, and by two sessions of vacuumdb, of PostgreSQL and of pg_cyclone; each starts from an
equal copy of one data directory. The contenders take turns, in another order each round, and the median counts. `make bench-tables
TABLES_ARGS="--rounds 5"`; of tiny tables, where a table costs most before its first page, `TABLES_ARGS="--tables 2000 --rows 100"`.
"""

import argparse
import time
from itertools import product
from pathlib import Path

from circumstances import RESULTS, add_common_arguments, begin, in_turn, run_main, save_results
from cyclone_lab.cluster import Cluster
from figures import tables_lines
from kernel import session_ns

CONFIG = {
    "shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "max_wal_size": "16GB", "checkpoint_timeout": "1h",
    "max_locks_per_transaction": 1000,
}  # fmt: skip
LOAD_CONFIG = {**CONFIG, "wal_level": "minimal", "max_wal_senders": 0}
ROWS = 18_000  # of 1 MB with the primary key
CPU = "VACUUM, CPU time of the session"
PER_ROUND = ("VACUUM", "vacuumdb --jobs 2")
ENGINES = {"PostgreSQL": "off", "pg_cyclone": "on"}
DEAD = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables"


def fill(conn, tables: int, rows: int) -> None:
    """Make the tables, with dead rows."""
    for number in range(tables):
        conn.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v int); INSERT INTO t{number} SELECT i, i FROM generate_series(1, {rows}) i")
    conn.execute("VACUUM (FREEZE, ANALYZE)")
    for number in range(tables):
        conn.execute(f"DELETE FROM t{number} WHERE id % 10 = 0")
    conn.execute("SELECT pg_stat_force_next_flush()")
    conn.execute("CHECKPOINT")


def timed(original: Cluster, base: Path, engine: str, way: str) -> dict[str, float]:
    """Return the seconds that one contender takes in a copy of the database, by what is measured; raise RuntimeError if it leaves
    dead rows."""
    with original.copy(base=base) as server:
        server.config |= {"cyclone.enabled": ENGINES[engine], "shared_buffers": "4GB"}
        server.start()
        with server.connect() as conn:
            conn.execute("SELECT sum(pg_prewarm(oid)) FROM pg_class WHERE relkind IN ('r', 'i')")
            server.prepare_wal(1 << 30)
            start, used = time.perf_counter(), session_ns(conn)
            if way == "VACUUM":
                conn.execute("VACUUM")
            else:
                server.run("vacuumdb", "--jobs", "2", "--quiet", "postgres")
            seconds = {way: time.perf_counter() - start}
            if way == "VACUUM":
                seconds[CPU] = (session_ns(conn) - used) / 1e9
            conn.execute("SELECT pg_stat_force_next_flush()")
            if (dead := conn.execute(DEAD).fetchone()) != (0,):
                raise RuntimeError(f"{engine}, {way}: left {dead[0]} dead rows")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000, help="how many tables (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "tables")
    options = parser.parse_args()
    _console, prefix, config, circumstances = begin(options, CONFIG)
    seconds = {(way, engine): [] for way in (*PER_ROUND, CPU) for engine in ENGINES}
    with Cluster.create(prefix, LOAD_CONFIG, base=options.base) as original:
        original.start()
        with original.connect() as conn:
            conn.execute("CREATE EXTENSION pg_prewarm")
            fill(conn, options.tables, options.rows)
        original.stop()
        original.config = config
        for number in range(options.rounds):
            for way, engine in in_turn(product(PER_ROUND, ENGINES), number):
                for what, duration in timed(original, options.base, engine, way).items():
                    seconds[what, engine].append(duration)
    ways = [{"way": way, **{engine: seconds[way, engine] for engine in ENGINES}} for way in (*PER_ROUND, CPU)]
    save_results(options.results, circumstances, tables_lines, tables=options.tables, rows=options.rows, ways=ways)


if __name__ == "__main__":
    run_main(main)
