"""Hours of load and VACUUM with a physical standby and a logical subscriber, compared with the ledger again and again.

`make soak MINUTES=60 WRITERS=8 SEED=1`. VACUUMs of all kinds (`statements`) run all the time beside the writers of `workload`. The
standby compares each page that VACUUM logs with what replay makes of it, and answers queries. Every PERIOD seconds all come to
rest, and primary, standby and subscriber must have what the ledger says and pass the checks; in the end the standby is promoted.

With `--autovacuum` (`AUTOVACUUM=1`), autovacuum on the engine is at work, too (`autovacuum`), on the subscriber and on the promoted
standby as well. Its settings change each period, and now and then all tables are old enough to be vacuumed by force. The engine may
not fail, and a run goes on until there were autovacuums of each kind. Without it compaction is (`compaction`), in two seeds of three, on
the primary and on the promoted standby.
"""

import random
import re
import sys
import time
from pathlib import Path

import psycopg

from cyclone_lab import checks
from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster
from long_runs import autovacuum, compaction, long_run
from long_runs.autovacuum import Autovacuums
from long_runs.load import Load
from long_runs.proof import assert_sound, assert_sound_before_vacuum, vacuum_all
from long_runs.statements import alter_system
from long_runs.workload import BY_NAME, CHECKED_WAL, Workload

PERIOD = 20
EXTRA = 300  # seconds that a run may take longer, until all that it is about has happened
LEAST_VACUUMS = 4  # each of which may wait for others, for long
NEEDED = ("VACUUM", "FULL INPLACE", "rollback", "snapshots", "cursors")
PATIENCE = 300  # with those who follow
DATABASE = "postgres"
PUBLISHED = BY_NAME["plain"]
PAUSE = 0.005  # of a writer after each transaction, or the standby, which compares every page, falls behind
CONFIG = {
    **long_run.CONFIG,
    "shared_buffers": "32MB",
    "wal_level": "logical",
    "wal_consistency_checking": CHECKED_WAL,
    "wal_keep_size": "4GB",
    "max_connections": 60,
    "max_worker_processes": 24,
    "max_parallel_workers": 16,
    "max_prepared_transactions": 30,
    "min_parallel_index_scan_size": 0,
    "statement_timeout": "3min",
}
STANDBY = {"hot_standby_feedback": "on", "max_standby_streaming_delay": "5s", "wal_receiver_status_interval": 1}
TROUBLE = re.compile(r"PANIC|TRAP:|inconsistent page|was terminated by signal")


class Soak:
    """A primary with its standby and its subscriber; `done` counts what happened."""

    def __init__(self, prefix: Path, seed: int, writers: int, *, base: Path | None = None, with_autovacuum: bool = False):
        self.seed = seed
        self.with_autovacuum = with_autovacuum
        self.workload = Workload(writers)
        self.done = self.workload.done
        self.clusters: list[Cluster] = []
        try:
            self._build(prefix, base)
        except BaseException:
            self.remove()
            raise

    def _build(self, prefix: Path, base: Path | None) -> None:
        config = {**CONFIG, **(autovacuum.settings(random.Random(self.seed), prefix) if self.with_autovacuum else {})}
        drivers = {} if self.with_autovacuum else compaction.settings(random.Random(f"{self.seed}:compaction"))
        self.primary = Cluster.create(prefix, {**config, **drivers}, base=base, initdb=("--data-checksums",))
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
        self.subscriber = Cluster.create(prefix, {**config, "wal_consistency_checking": ""}, base=base)
        self.clusters.append(self.subscriber)
        self.subscriber.start()
        with self.subscriber.connect(DATABASE) as conn:
            conn.execute("CREATE EXTENSION pg_cyclone")
            conn.execute(PUBLISHED.create)
            conn.execute(PUBLISHED.indexes[0])  # the key
            source = f"host={self.primary.socket_dir} user=postgres dbname={DATABASE}"
            conn.execute(f"CREATE SUBSCRIPTION all_of_it CONNECTION '{source}' PUBLICATION everything")
        self.autovacuums = [Autovacuums(cluster) for cluster in self.clusters] if self.with_autovacuum else []

    def remove(self) -> None:
        for cluster in reversed(self.clusters):
            cluster.remove()

    def __enter__(self) -> "Soak":
        return self

    def __exit__(self, *_exception) -> None:
        self.remove()

    def run(self, minutes: float, show=lambda text: None) -> None:
        """Load and compare for `minutes`, then promote; raise AssertionError at the first difference, or if too little has happened."""
        deadline = time.monotonic() + 60 * minutes
        period = 0
        while (left := deadline - time.monotonic()) > 0 or (self._missing() and left > -EXTRA):
            load = Load(self.primary, DATABASE, self.workload, f"{self.seed}:{period}", f"p{period}")
            readers = Load(self.standby, DATABASE, self.workload, f"{self.seed}:{period}:standby", "")
            load.start(vacuums=2, readers=1, pause=PAUSE)
            readers.start(vacuums=0, readers=1, writers=False)
            began = time.monotonic()
            with self.primary.connect(DATABASE) as conn:
                autovacuum.vary(conn, str(self.seed), period) if self.with_autovacuum else compaction.go_on(conn)
            while time.monotonic() - began < (min(PERIOD, left) if left > 0 else PERIOD) and not (load.failed or readers.failed):
                time.sleep(0.1)
            load.stop()
            readers.stop()
            self._rest(self.primary)
            self.done["seconds of load"] += round(time.monotonic() - began)
            self.done["vacuums"] += load.vacuums
            self._compare()
            period += 1
            self.done["comparisons"] += 1
            show(f"{self.done['seconds of load']} s of load, {self.done['vacuums']} vacuums, {self.workload.done['commit']} commits")
        assert not self._missing(), f"it proves too little, for lack of {self._missing()}"
        self._finish()

    def _missing(self) -> list[str]:
        """Return what primary and subscriber should have come to, and have not."""
        if not self.with_autovacuum:
            enough = {"vacuums": self.done["vacuums"] >= LEAST_VACUUMS, **{what: self.workload.done[what] for what in NEEDED}}
            return [what for what, done in enough.items() if not done]
        primary, _, subscriber = self.autovacuums
        missing = primary.missing(autovacuum.FORCED, *(f"{autovacuum.BY_ENGINE}: {table}" for table in ("plain", "toasted", "scratch")))
        return missing + ([] if subscriber.done[autovacuum.BY_ENGINE] else [f"{autovacuum.BY_ENGINE} of the subscriber"])

    def _rest(self, cluster: Cluster) -> None:
        """Turn autovacuum off, or compaction, whichever is a driver; nothing may have failed in autovacuum, on any server that can be asked."""
        with cluster.connect(DATABASE) as conn:
            if not self.with_autovacuum:
                self.done["compactions"] += compaction.stop(conn)
                return
            autovacuum.turn_off(conn)
        for autovacuums in self.autovacuums:
            autovacuums.assert_no_errors()
            with autovacuums.cluster.connect(DATABASE) as conn:
                autovacuum.assert_no_failures(conn)

    def _compare(self) -> None:
        """Primary, standby and subscriber have what the ledger says."""
        with self.primary.connect(DATABASE) as conn:
            self.workload.assert_content(conn)
            assert_sound_before_vacuum(conn, self.workload)
            conn.execute("SELECT pg_logical_emit_message(true, '', '')")  # flushes all WAL
            [(target,)] = conn.execute("SELECT pg_current_wal_lsn()::text")
            self.standby.wait_for_replay(self.primary, PATIENCE)
            slot = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = 'all_of_it'"
            wait_until(lambda: conn.execute(slot, (target,)).fetchone() == (True,), "the subscriber's catching up", PATIENCE)
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
            wait_until(lambda: self._is_clean(conn), "the standby's word that it needs no dead rows", PATIENCE)
            assert_sound(conn, self.workload)
        self._compare()
        with self.standby.connect(DATABASE) as conn:
            alter_system(conn, f"SET {'autovacuum' if self.with_autovacuum else 'cyclone.compaction'} = off")
            self.standby.promote()
            self.workload.forget_unlogged()
            vacuum_all(conn, self.workload)
            assert_sound(conn, self.workload)
            load = Load(self.standby, DATABASE, self.workload, f"{self.seed}:promoted", "promoted")
            load.start(vacuums=2, readers=1)
            if self.with_autovacuum:
                autovacuum.turn_on(conn)
                wait_until(self._standby_has_autovacuums, "autovacuums on the promoted standby", PATIENCE)
            else:
                compaction.go_on(conn)
                time.sleep(2)
            load.stop()
            self._rest(self.standby)
            vacuum_all(conn, self.workload)
            assert_sound(conn, self.workload)
        self.done["promotions"] += 1
        for autovacuums in self.autovacuums:
            self.done += autovacuums.summary()

    def _standby_has_autovacuums(self) -> bool:
        """Tell whether the promoted standby has come to what a run should; raise AssertionError if something failed."""
        self.autovacuums[1].assert_no_errors()
        return not self.autovacuums[1].missing()

    def _is_clean(self, conn: psycopg.Connection) -> bool:
        """Tell whether VACUUM leaves no dead rows. Rows that the standby's snapshots may need count as dead."""
        vacuum_all(conn, self.workload)
        tables = [heap for table in self.workload.tables for heap in checks.heaps(conn, table.name)]
        return all(conn.execute("SELECT dead_tuple_count FROM pgstattuple(%s)", (heap,)).fetchone() == (0,) for heap in tables)


def main() -> int:
    return long_run.main(Soak, __doc__, "soak", "minutes", 60, writers=True)


if __name__ == "__main__":
    sys.exit(main())
