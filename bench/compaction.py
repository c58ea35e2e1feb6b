"""A week of a database in an hour: how large its tables are, and what others feel, with autovacuum alone and with cyclone.compaction.

pgbench works by day at one rate and by night, the last third of a day, at another. One table grows; in one rows and keys of an index
change all the time; in one each evening deletes what is older than a day; one is purged of nine rows in ten on the third evening; and of
the second all rows are changed at once on the fifth. The rows need the space that they took when the tables were new.

Time is compressed: compaction visits the database more often by the same factor, is on by night as by its window, and what it remembers
becomes older as days go by. `make bench-compaction COMPACTION_ARGS="--minutes 9"` takes twenty minutes. What there is when it is ended early is written, too.

With `--looking 20 500` it measures something else: the CPU time of compaction where it finds nothing to do, in 20 databases of 500 tables
each. `make bench-compaction COMPACTION_ARGS="--looking 20 500"` takes four minutes.
"""

import argparse
import math
import os
import statistics
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from beside import LOG_LOCK_WAITS, in_thread, longest_lock_wait_ms, run_pgbench
from circumstances import RESULTS, add_common_arguments, begin, run_main, save_results
from cyclone_lab import build, checks
from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster

DAYS, NIGHT, LOOKS = 7, 1 / 3, 100  # looks at sizes a day
MB = 1 << 20
CONFIG = {
    "shared_preload_libraries": "pg_cyclone", "shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum_naptime": "1s", "fsync": "off",
    **LOG_LOCK_WAITS, "cyclone.debug_compaction_least": 1024,
    # the default, 30 %, leaves a table alone that is up to 1.43 times as large as its rows need
    "cyclone.compaction_threshold": 20,
}  # fmt: skip
TABLES = ("grows", "churns", "expires", "purged")
WARM_UP, LOOKING = 70, 120  # seconds: each database is visited once, and then twice
SCRIPTS = {
    "grow": "INSERT INTO grows (key, note) VALUES (random() * 1e9, repeat('x', 150));",
    "churn": "\\set id random(1, :rows)\nUPDATE churns SET key = random() * 1e9, note = repeat('x', 150) WHERE id = :id;",
    "expire": "INSERT INTO expires (key, note) VALUES (random() * 1e9, repeat('x', 150));",
    "read": "\\set id random(1, :rows)\nSELECT sum(key) FROM churns WHERE id BETWEEN :id AND :id + 20;",
}


@dataclass
class Run:
    """The results of one contender."""

    sizes: list[tuple[float, float]] = field(default_factory=list)  # days, MB
    mornings: list[tuple[float, float]] = field(default_factory=list)  # the same of what the rows need, at the nights' ends
    day_times_ms: list[float] = field(default_factory=list)  # of transactions
    night_times_ms: list[float] = field(default_factory=list)
    wal_mb: float = 0
    lock_wait_ms: float = 0

    def worst(self) -> float:
        """Return the largest ratio of the tables' size to what their rows need, at the end of a night."""
        return max((min(self.sizes, key=lambda sample: abs(sample[0] - day))[1] / need for day, need in self.mornings), default=math.nan)

    def mean(self) -> float:
        sizes = [size for day, size in self.sizes if day >= 1]
        return statistics.fmean(sizes) if sizes else math.nan

    def days(self) -> float:
        return self.sizes[-1][0] if self.sizes else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="how long the week takes, for each contender (default: %(default)s)")
    parser.add_argument("--rows", type=int, help="of each table at the beginning (default: 200000 an hour, so that a night's work fits in)")
    parser.add_argument("--day", type=float, default=200, help="transactions a second by day (default: %(default)s)")
    parser.add_argument("--night", type=float, default=40, help="by night (default: %(default)s)")
    parser.add_argument("--looking", type=int, nargs=2, metavar=("DATABASES", "TABLES"), help="measure what it costs that nothing is due instead")
    add_common_arguments(parser, RESULTS / "compaction")
    options = parser.parse_args()
    if options.looking:
        _look(options, *options.looking)
        return
    options.rows = options.rows or round(200_000 * options.minutes / 60)
    prefix = build.install(options.major, debug_points=True)
    hour_ms = options.minutes * 60_000 / (DAYS * 24)
    config = {**CONFIG, "cyclone.debug_compaction_visit": max(100, round(hour_ms / 60)), "cyclone.debug_compaction_hour": round(hour_ms)}
    nights = {"autovacuum alone": None, "compaction": _compaction}
    console, _, config, circumstances = begin(options, config, prefix)
    circumstances |= {"minutes a week": options.minutes, "rows": options.rows}
    runs = {}
    for name, night in nights.items():
        with Cluster.create(prefix, config, base=options.base) as cluster:
            cluster.start()
            runs[name] = Run()
            try:
                _week(cluster, options, night, runs[name])
            finally:  # what there is when it is interrupted is worth having, too
                runs[name].lock_wait_ms = longest_lock_wait_ms(cluster.log)
                _report(console, options.results, circumstances, runs)


def _look(options, databases: int, tables: int) -> None:
    """Measure the CPU time of compaction where each table is large, has been sampled, and little can be freed."""
    config = {"shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "max_locks_per_transaction": 1000}
    _console, prefix, config, _circumstances = begin(options, config)
    with Cluster.create(prefix, config, base=options.base) as cluster:
        cluster.start()
        cluster.sql("CREATE DATABASE looked_1")
        with cluster.connect("looked_1") as conn:
            conn.execute("CREATE EXTENSION pg_cyclone")
            conn.execute(f"DO $$BEGIN FOR i IN 1..{tables} LOOP EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, note text)', i); END LOOP; END$$")
            conn.execute("UPDATE pg_class SET relpages = 100000, reltuples = 1e7 WHERE relname ~ '^t[0-9]+$'")
        for number in range(2, databases + 1):
            cluster.sql(f"CREATE DATABASE looked_{number} TEMPLATE looked_1 STRATEGY file_copy")
        with cluster.connect("looked_1") as conn:
            conn.execute("ALTER SYSTEM SET cyclone.compaction = on")
            conn.execute("SELECT pg_reload_conf()")
            query = "SELECT reason, count(*) FROM cyclone.compaction GROUP BY 1"
            wait_until(lambda: conn.execute(query).fetchall() == [("little to be freed", tables)], "that all are sampled")
            query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_cyclone compaction launcher'"
            [(launcher,)] = wait_until(lambda: conn.execute(query).fetchall(), "the launcher")
            time.sleep(WARM_UP)
            started, before = time.monotonic(), _cpu_seconds(cluster.postmaster.pid, launcher)
            time.sleep(LOOKING)
            used, seconds = _cpu_seconds(cluster.postmaster.pid, launcher) - before, time.monotonic() - started
    print(f"{databases} databases with {tables} tables each, none of them due: {used:.2f} s of CPU time in {seconds:.0f} s, {used / seconds:.2%} of a core")


def _cpu_seconds(postmaster: int, launcher: int) -> float:
    """Return the CPU time of the launcher, and of all processes of the server that have ended."""
    ended = Path(f"/proc/{postmaster}/stat").read_text().rsplit(")", 1)[1].split()[13:15]  # cutime, cstime
    return sum(map(int, ended)) / os.sysconf("SC_CLK_TCK") + int(Path(f"/proc/{launcher}/schedstat").read_text().split()[0]) / 1e9


def _week(cluster: Cluster, options, night, run: Run) -> None:
    """Let a week go by, and note the results as they come; `night(cluster)` is a context for each night, if any."""
    conn = cluster.connect()
    conn.execute("CREATE EXTENSION pg_cyclone")
    checks.create_extensions(conn)
    for table in TABLES:
        conn.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, key int, at timestamptz DEFAULT now(), note text)")
        conn.execute(f"INSERT INTO {table} (key, note) SELECT random() * 1e9, repeat('x', 150) FROM generate_series(1, {options.rows})")
        conn.execute(f"CREATE INDEX ON {table} (key)")
    conn.execute("CREATE INDEX ON expires (at)")
    conn.execute("VACUUM ANALYZE")
    conn.execute("CHECKPOINT")
    each = {table: _size(conn, table) / options.rows for table in TABLES}
    day_seconds, start = options.minutes * 60 / DAYS, time.monotonic()
    [(first,)] = conn.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")

    def until(day: float) -> float:
        return start + day * day_seconds - time.monotonic()

    def note_morning() -> None:
        rows = {table: conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES}
        run.wal_mb = float(conn.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()[0] - first) / MB
        run.mornings.append(((time.monotonic() - start) / day_seconds, sum(rows[table] * each[table] for table in TABLES) / MB))

    with _sampled(cluster, run, start, day_seconds):
        for day in range(DAYS):
            _load(cluster, options, options.day, until(day + 1 - NIGHT), run.day_times_ms)
            _evening(conn, day, day_seconds)
            with night(cluster) if night else nullcontext():
                _load(cluster, options, options.night, until(day + 1), run.night_times_ms)
            note_morning()
    # what an autovacuum or a page's pruning leaves to the next VACUUM is no fault
    _set(cluster, "ALTER SYSTEM SET autovacuum = off")
    wait_until(lambda: conn.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'").fetchone() == (0,),
               "the end of autovacuum")  # fmt: skip
    conn.execute("VACUUM (INDEX_CLEANUP on)")
    checks.assert_clean(conn, *TABLES)
    conn.close()


def _evening(conn, day: int, day_seconds: float) -> None:
    """The work that is done in one go before the night."""
    conn.execute("DELETE FROM expires WHERE at < clock_timestamp() - make_interval(secs => %s)", (day_seconds,))
    if day == 2:
        conn.execute("DELETE FROM purged WHERE id % 10 <> 0")
    if day == 4:
        conn.execute("UPDATE churns SET key = -key")
    conn.execute("SELECT pg_stat_force_next_flush()")  # or statistics would come up to ten seconds later: in a short week that is hours


def _load(cluster: Cluster, options, rate: float, seconds: float, times_ms: list[float]) -> None:
    """Run pgbench at that rate, and add how long each transaction took in the server, in ms."""
    options = {"clients": 4, "arguments": [f"--define=rows={options.rows}"]}
    times_ms += [ms for _, ms in run_pgbench(cluster, list(SCRIPTS.values()), seconds, rate, **options)]


@contextmanager
def _sampled(cluster: Cluster, run: Run, start: float, day_seconds: float):
    """Note the size of all tables."""
    is_over = threading.Event()

    def watch() -> None:
        with cluster.connect() as conn:
            while not is_over.wait(day_seconds / LOOKS):
                run.sizes.append(((time.monotonic() - start) / day_seconds, sum(_size(conn, table) for table in TABLES) / MB))

    with in_thread(watch, is_over):
        yield


def _size(conn, table: str) -> int:
    return conn.execute("SELECT pg_total_relation_size(%s::regclass)", (table,)).fetchone()[0]


@contextmanager
def _compaction(cluster: Cluster):
    """It is night: the window is open."""
    _set(cluster, "ALTER SYSTEM SET cyclone.compaction = on")
    try:
        yield
    finally:
        _set(cluster, "ALTER SYSTEM RESET cyclone.compaction")


def _set(cluster: Cluster, statement: str) -> None:
    with cluster.connect() as conn:
        conn.execute(statement)
        conn.execute("SELECT pg_reload_conf()")


def _report(console: Console, folder: Path, circumstances: dict, runs: dict[str, Run]) -> None:
    """Print a table, and write all that was measured."""
    head = ["contender", "days", "size at a night's end, times what the rows need, at most", "mean size after the first day, MB",
            "p95, ms", "p95 by night, ms", "WAL, MB", "longest wait for a lock, ms"]  # fmt: skip
    table = Table(*head)
    for name, run in runs.items():
        p95, night = (statistics.quantiles(times, n=20)[18] if len(times) > 1 else math.nan
                      for times in (run.day_times_ms + run.night_times_ms, run.night_times_ms))  # fmt: skip
        table.add_row(name, f"{run.days():.1f}", f"{run.worst():.2f}", f"{run.mean():.0f}", f"{p95:.2f}", f"{night:.2f}",
                      f"{run.wal_mb:.0f}", f"{run.lock_wait_ms:.1f}")  # fmt: skip
    console.print(table)
    save_results(folder, circumstances, runs={name: asdict(run) for name, run in runs.items()})


if __name__ == "__main__":
    run_main(main)
