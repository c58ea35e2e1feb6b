"""Hours of load and VACUUM with a physical standby and a logical subscriber, compared with the ledger again and again.

`make soak MINUTES=60 WRITERS=8 SEED=1`. VACUUMs of all kinds (`statements`) run all the time beside the writers of `workload`. The
standby compares each page that VACUUM logs with what replay makes of it, and answers queries. Every PERIOD seconds all come to
rest, and primary, standby and subscriber must have what the ledger says and pass the checks; in the end the standby is promoted.
"""

import argparse
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

import psycopg

from cyclone_lab import build, checks
from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.load import Load
from cyclone_lab.proof import assert_sound, assert_sound_before_vacuum, vacuum_all
from cyclone_lab.workload import BY_NAME, CHECKED_WAL, Workload

PERIOD = 20
DATABASE = "postgres"
PUBLISHED = BY_NAME["plain"]
PAUSE = 0.005  # of a writer after each transaction, or the standby, which compares every page, falls behind
CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "fsync": "off",
    "autovacuum": "off",
    "shared_buffers": "32MB",
    "wal_level": "logical",
    "wal_consistency_checking": CHECKED_WAL,
    "wal_keep_size": "4GB",
    "max_connections": 60,
    "max_worker_processes": 24,
    "max_parallel_workers": 16,
    "max_prepared_transactions": 30,
    "min_parallel_table_scan_size": 0,
    "min_parallel_index_scan_size": 0,
    "max_parallel_workers_per_gather": 0,
    "statement_timeout": "3min",
    "jit": "off",
    "cyclone.check_disk_space": "off",
}
STANDBY = {"hot_standby_feedback": "on", "max_standby_streaming_delay": "5s", "wal_receiver_status_interval": 1}
TROUBLE = re.compile(r"PANIC|TRAP:|inconsistent page|was terminated by signal")


class Soak:
    """A primary with its standby and its subscriber; `done` counts what happened."""

    def __init__(self, prefix: Path, seed: int, writers: int, *, base: Path | None = None):
        self.seed = seed
        self.done: Counter = Counter()
        self.workload = Workload(writers)
        self.clusters: list[Cluster] = []
        try:
            self._build(prefix, base)
        except BaseException:
            self.remove()
            raise

    def _build(self, prefix: Path, base: Path | None) -> None:
        self.primary = Cluster.create(prefix, CONFIG, base=base, initdb=("--data-checksums",))
        self.clusters.append(self.primary)
        self.primary.start()
        with self.primary.connect(DATABASE) as conn:
            conn.execute("CREATE EXTENSION pg_cyclone")
            checks.create_extensions(conn)
            self.workload.create(conn, random.Random(self.seed))
            conn.execute(f"CREATE PUBLICATION everything FOR TABLE {PUBLISHED.name}")
        self.standby = self.primary.standby(STANDBY, base=base)
        self.clusters.append(self.standby)
        self.standby.start()
        self.subscriber = Cluster.create(prefix, {**CONFIG, "wal_consistency_checking": ""}, base=base)
        self.clusters.append(self.subscriber)
        self.subscriber.start()
        with self.subscriber.connect(DATABASE) as conn:
            conn.execute(PUBLISHED.create)
            conn.execute(PUBLISHED.indexes[0])  # the key
            source = f"host={self.primary.socket_dir} user=postgres dbname={DATABASE}"
            conn.execute(f"CREATE SUBSCRIPTION all_of_it CONNECTION '{source}' PUBLICATION everything")

    def remove(self) -> None:
        for cluster in reversed(self.clusters):
            cluster.remove()

    def __enter__(self) -> "Soak":
        return self

    def __exit__(self, *_exception) -> None:
        self.remove()

    def run(self, minutes: float, show=lambda text: None) -> None:
        """Load and compare for so long, then promote; raise AssertionError at the first difference."""
        deadline = time.monotonic() + 60 * minutes
        period = 0
        while (left := deadline - time.monotonic()) > 0:
            load = Load(self.primary, DATABASE, self.workload, f"{self.seed}:{period}", f"p{period}")
            readers = Load(self.standby, DATABASE, self.workload, f"{self.seed}:{period}:standby", "")
            load.start(vacuums=2, readers=1, pause=PAUSE)
            readers.start(vacuums=0, readers=1, writers=False)
            began = time.monotonic()
            while time.monotonic() - began < min(PERIOD, left) and not (load.failed or readers.failed):
                time.sleep(0.1)
            load.stop()
            readers.stop()
            self.done["seconds of load"] += round(time.monotonic() - began)
            self.done["vacuums"] += load.vacuums
            self._compare()
            period += 1
            self.done["comparisons"] += 1
            show(f"{self.done['seconds of load']} s of load, {self.done['vacuums']} vacuums, {self.workload.done['commit']} commits")
        self._finish()

    def _compare(self) -> None:
        """Primary, standby and subscriber have what the ledger says."""
        with self.primary.connect(DATABASE) as conn:
            self.workload.assert_content(conn)
            assert_sound_before_vacuum(conn, self.workload)
            conn.execute("SELECT pg_logical_emit_message(true, '', '')")  # flushes all WAL
            [(target,)] = conn.execute("SELECT pg_current_wal_lsn()::text")
            self.standby.wait_for_replay(self.primary, 300)
            slot = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = 'all_of_it'"
            wait_until(lambda: conn.execute(slot, (target,)).fetchone() == (True,), "the subscriber's catching up")
        with self.standby.connect(DATABASE) as conn:
            self.workload.assert_content(conn)
            assert_sound_before_vacuum(conn, self.workload)
        with self.subscriber.connect(DATABASE) as conn:
            self.workload.assert_content(conn, PUBLISHED)
        for cluster in self.clusters:
            trouble = [line for line in cluster.log.splitlines() if TROUBLE.search(line)]
            assert not trouble, trouble[:5]

    def _finish(self) -> None:
        """VACUUM everything, compare once more, promote the standby, and VACUUM everything there."""
        with self.primary.connect(DATABASE) as conn:
            wait_until(lambda: self._is_clean(conn), "the standby's word that it needs no dead rows")
            assert_sound(conn, self.workload)
        self._compare()
        with self.standby.connect(DATABASE) as conn:
            self.standby.promote()
            self.workload.forget_unlogged()
            vacuum_all(conn, self.workload)
            assert_sound(conn, self.workload)
            load = Load(self.standby, DATABASE, self.workload, f"{self.seed}:promoted", "promoted")
            load.start(vacuums=2, readers=1)
            time.sleep(2)
            load.stop()
            vacuum_all(conn, self.workload)
            assert_sound(conn, self.workload)
        self.done["promotions"] += 1

    def _is_clean(self, conn: psycopg.Connection) -> bool:
        """Tell whether VACUUM leaves no dead rows, which those whom the standby's snapshots may need are."""
        vacuum_all(conn, self.workload)
        tables = [heap for table in self.workload.tables for heap in checks.heaps(conn, table.name)]
        return all(conn.execute("SELECT dead_tuple_count FROM pgstattuple(%s)", (heap,)).fetchone() == (0,) for heap in tables)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--version", type=int, default=18, help="17 or 18")
    parser.add_argument("--base", type=Path, help="folder for the servers' files")
    options = parser.parse_args()
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    print(f"soak of PostgreSQL {options.version}: SEED={seed} MINUTES={options.minutes:g} WRITERS={options.writers}", flush=True)
    prefix = build.install(options.version, debug_points=True)
    with Soak(prefix, seed, options.writers, base=options.base) as soak:
        try:
            soak.run(options.minutes, show=lambda text: print(text, flush=True))
        finally:
            print(*(f"{what}: {number}" for what, number in sorted((soak.done + soak.workload.done).items())), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
