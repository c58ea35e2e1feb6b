"""Making a bloated table small while others use it: VACUUM (FULL INPLACE) beside PostgreSQL's VACUUM FULL, pg_repack, pg_squeeze,
and on PostgreSQL 19 REPACK (CONCURRENTLY).

The table is that of the case that VACUUM FULL is known by: a serial key, an integer and a compressed text, nine rows in ten
deleted. Each contender works on an equal copy of the data directory, while pgbench reads and changes rows of the same table at
half the rate that it could, or another part (--load; with 0 there is no pgbench). Measured are the time it takes, the disk and WAL that it
needs, what pgbench's transactions took, the longest that any of them waited for a lock, and the sizes at the end; and the same of a while
in which nothing is done. `make bench-online ONLINE_ARGS="--rows 5000000 --pg-repack ../pg_repack-1.5.3"`.

pg_repack and pg_squeeze are built from their sources; who is not named is left out. pg_squeeze takes wal_level = logical, so all have
that if it takes part, and a server whose output_plugin_libraries may name it (17.11, 18.6, or later).
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psycopg

from beside import LOG_LOCK_WAITS, Pgbench, longest_lock_wait_ms, most, percentile
from circumstances import RESULTS, add_common_arguments, begin, in_turn, run_main, save_results
from cyclone_lab import build, checks
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import program_env, program_path
from figures import online_lines

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "maintenance_work_mem": "256MB",
    "autovacuum": "off",
    "fsync": "off",
    "synchronous_commit": "off",
    **LOG_LOCK_WAITS,
}
ROWS = 1_000_000
TEXTS = 10_000  # that differ
FORMS = ("FULL INPLACE", "FULL INPLACE, ADAPTIVE_DELAY", "FULL INPLACE, INDEX_CLEANUP off", "FULL REWRITE")
CORE = "VACUUM FULL"
NAMES = {CORE: "`VACUUM FULL` by PostgreSQL"}
CONCURRENTLY = "REPACK (CONCURRENTLY)"
LOAD = """\\set id random(1, :rows / 10)
BEGIN;
UPDATE s SET whatever = whatever + 1 WHERE id = :id * 10;
SELECT whatever FROM s WHERE id = :id * 10;
INSERT INTO history VALUES (:id);
END;
"""
CLIENTS = 4
QUIET_SECONDS, SETTLE_SECONDS = 5, 2  # before a contender begins; of these until pgbench's clients are there
IDLE_SECONDS = 3
MOST_SECONDS = 300  # before a contender is given up


@dataclass
class Run:
    """The results of one contender, with pgbench beside it."""

    contender: str
    seconds: float
    finished: bool
    peak_disk: int  # bytes beyond what there was, without WAL
    wal: int  # bytes, pgbench's included
    longest_ms: float  # of pgbench's transactions
    longest_lock_wait_ms: float  # of pgbench's, 0 if none took a millisecond
    p99_ms: float
    p99_before_ms: float
    p95_ms: float  # from when the rate wanted a transaction to begin, as somebody who waits for the answer sees it
    p95_before_ms: float
    lost_rows: int
    table: int  # bytes at the end
    indexes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows before the deletion (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender (default: %(default)s)")
    parser.add_argument("--load", type=float, default=0.5, help="pgbench's rate, as a part of what it could (default: %(default)s)")
    parser.add_argument("--pg-repack", type=Path, help="a folder with pg_repack's sources")
    parser.add_argument("--pg-squeeze", type=Path, help="a folder with pg_squeeze's sources")
    add_common_arguments(parser, RESULTS / "online")
    options = parser.parse_args()
    prefix = build.install(options.major)
    contenders = {"nothing": _nothing, **{form: partial(_statement, statement=f"VACUUM ({form}) s") for form in FORMS}}
    contenders[CORE] = partial(_statement, statement="VACUUM FULL s", enabled="off")
    if options.major >= 19:
        contenders[CONCURRENTLY] = partial(_statement, statement=f"{CONCURRENTLY} s")
    if options.pg_repack:
        build_extension(prefix, options.pg_repack.resolve())
        contenders["pg_repack"] = _pg_repack
    else:
        print("pg_repack is left out: name its sources by --pg-repack")
    config = dict(CONFIG)
    if options.pg_squeeze:
        build_extension(prefix, options.pg_squeeze.resolve())
        contenders["pg_squeeze"] = partial(_statement, statement="SELECT squeeze.squeeze_table('public', 's')")
        config |= {
            "shared_preload_libraries": "pg_cyclone, pg_squeeze",
            "wal_level": "logical",
            "output_plugin_libraries": "pg_squeeze",
        }
    else:
        print("pg_squeeze is left out: name its sources by --pg-squeeze")
    console, _, config, circumstances = begin(options, config, prefix)

    runs: list[Run] = []
    with Cluster.create(prefix, config, base=options.base) as original:
        original.start()
        _make(original, options.rows, [name for name in contenders if name in ("pg_repack", "pg_squeeze")])
        rate = options.load * most(original, LOAD, **_load_options(options.rows)) if options.load else 0.0
        original.stop()
        console.print(f"pgbench at {rate:.0f} transactions a second, {options.load:.0%} of what it could" if rate else "without pgbench")
        for number in range(options.rounds):
            for name in in_turn(contenders, number):
                with original.copy(base=options.base) as cluster:
                    cluster.start()
                    runs.append(_measure(cluster, name, contenders[name], options.rows, rate))
                    cluster.stop()
                console.print(_line(runs[-1]), highlight=False)
    save_results(options.results, circumstances, online_lines, rate=rate, runs=[asdict(run) for run in runs])
    return 0


def _load_options(rows: int) -> dict:
    return {"clients": CLIENTS, "arguments": [f"--define=rows={rows}"]}


def _make(cluster: Cluster, rows: int, extensions: list[str]) -> None:
    with cluster.connect() as conn:
        checks.create_extensions(conn)
        conn.execute("CREATE EXTENSION pg_prewarm")
        for extension in extensions:
            conn.execute(f"CREATE EXTENSION {extension}")
        conn.execute("SELECT setseed(0.5)")
        conn.execute("CREATE TABLE s (id serial PRIMARY KEY, whatever int, anything text)")
        conn.execute("CREATE TEMPORARY TABLE texts (id int, anything text)")
        conn.execute(
            "INSERT INTO texts SELECT i, repeat('some TEXT' || random() * 100, (100 + random() * 900)::int) FROM generate_series(0, %s) i", (TEXTS - 1,)
        )
        # compressed texts are stored as they are, which takes a twentieth of the time
        conn.execute("INSERT INTO s (whatever, anything) SELECT random() * 100000, anything FROM generate_series(1, %s) i JOIN texts ON id = i %% %s",
                     (rows, TEXTS))  # fmt: skip
        conn.execute("CREATE TABLE history (id int)")
        conn.execute("DELETE FROM s WHERE id %% 10 > 0", ())
        conn.execute("VACUUM s")
        conn.execute("CHECKPOINT")


def _measure(cluster: Cluster, name: str, contender, rows: int, rate: float) -> Run:
    """Run one contender beside pgbench, or alone if its rate is 0; on a server that has the table in its buffers, as one in use."""
    cluster.warm_up("s")
    # pgbench's own log goes where the data is, which may be memory, as pgbench waits for it
    load = Pgbench(cluster, LOAD, rate, base=cluster.home, **_load_options(rows)) if rate else nullcontext()
    with cluster.connect() as conn, load as pgbench:
        time.sleep(QUIET_SECONDS)
        disk = _Disk(cluster)
        [(lsn,)] = conn.execute("SELECT pg_current_wal_lsn()")
        logged = len(cluster.log)
        begin = time.time()
        finished = contender(cluster)
        end = time.time()
        [(wal,)] = conn.execute("SELECT pg_current_wal_lsn() - %s::pg_lsn", (lsn,))
        peak = disk.stop()
        time.sleep(1)
        if pgbench:
            pgbench.end()
        transactions = pgbench.transactions()[0] if pgbench else []
        lock_wait = longest_lock_wait_ms(cluster.log[logged:])
        [(left, table, indexes)] = conn.execute("SELECT count(*), pg_table_size('s'), pg_indexes_size('s') FROM s")
        conn.execute("VACUUM (INDEX_CLEANUP on) s")
        checks.assert_clean(conn, "s")
    during = [one for one in transactions if begin <= one.end and one.end - one.seconds <= end]
    before = [one for one in transactions if begin - QUIET_SECONDS + SETTLE_SECONDS <= one.end < begin]
    in_server, in_server_before = ([1000 * (one.seconds - one.waited) for one in ones] for ones in (during, before))
    return Run(name, end - begin, finished, peak, int(wal), max(in_server, default=0), lock_wait,
               percentile(in_server, 99), percentile(in_server_before, 99),
               percentile([1000 * one.seconds for one in during]), percentile([1000 * one.seconds for one in before]),
               rows // 10 - left, table, indexes)  # fmt: skip


class _Disk:
    """Watches how much the data directory takes beyond what it did, without WAL."""

    def __init__(self, cluster: Cluster):
        self.data = cluster.data / "base"
        self.peak = 0
        self.start = self._size()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _size(self) -> int:
        size = 0
        for file in self.data.rglob("*"):
            try:
                size += file.stat().st_size
            except FileNotFoundError:
                pass
        return size

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self.peak = max(self.peak, self._size() - self.start)

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.peak


def _nothing(_cluster: Cluster) -> bool:
    time.sleep(IDLE_SECONDS)
    return True


def _statement(cluster: Cluster, statement: str, enabled: str = "on") -> bool:
    """Run a contender that is a statement, unless it takes too long; return whether it has finished."""
    with cluster.connect() as conn:
        conn.execute(f"SET cyclone.enabled = {enabled}")
        conn.execute(f"SET statement_timeout = '{MOST_SECONDS}s'")
        try:
            conn.execute(statement)
        except psycopg.Error as error:
            print(f"{statement}: {error}", file=sys.stderr)
            return False
        return True


def build_extension(prefix: Path, source: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / source.name
        shutil.copytree(source, copy)
        for target in ("all", "install"):
            subprocess.run(["make", "-C", copy, f"PG_CONFIG={program_path(prefix, 'pg_config')}", target],
                           env=program_env(prefix), check=True, capture_output=True)  # fmt: skip


def _pg_repack(cluster: Cluster) -> bool:
    command = [program_path(cluster.prefix, "pg_repack"), "--table=s", "--no-superuser-check", "postgres"]
    env = program_env(cluster.prefix, **cluster.client_env())
    return subprocess.run(command, env=env, capture_output=True, timeout=MOST_SECONDS).returncode == 0


def _line(run: Run) -> str:
    return (f"  {run.contender:32} {run.seconds:7.2f} s{'' if run.finished else ' (gave up)'}, disk +{run.peak_disk / 2**20:.1f} MB,"
            f" WAL {run.wal / 2**20:.0f} MB, longest {run.longest_ms:.0f} ms,"
            f" lock {run.longest_lock_wait_ms:.0f} ms, p99 {run.p99_ms:.2f} ms (before {run.p99_before_ms:.2f}),"
            f" p95 {run.p95_ms:.2f} ms (before {run.p95_before_ms:.2f}),"
            f" table {run.table / 2**20:.1f} MB, indexes {run.indexes / 2**20:.1f} MB, {run.lost_rows} rows lost")  # fmt: skip


if __name__ == "__main__":
    run_main(main)
