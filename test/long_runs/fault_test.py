"""A disk that fails at random moments of a VACUUM, and the proof each time that nothing else was harmed.

`make fault-test FAULTS=200 SEED=1`. Writers change the tables of `workload`; then a random VACUUM runs (`statements`) while the
shim of `shim` lets reads, writes, extensions, truncations, syncs or new files fail, of one relation or of any, or the allocation
of shared memory. The command has to end with an error that names the file, or without one if it was shared memory; then the tables
must be as the ledger says, and sound, before the next VACUUM and after. Faults that a VACUUM didn't come to are not counted.

With `--autovacuum` (`AUTOVACUUM=1`), it is autovacuum that the disk fails in most attempts. The engine's errors are as clear as those of a
command, and open the table's circuit breaker: PostgreSQL's own VACUUM has the table next, and then the engine has it again.
"""

import random
import re
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import psycopg

from cyclone_lab import checks, files
from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.shim import Disk, Seen
from long_runs import autovacuum, long_run
from long_runs.autovacuum import Key
from long_runs.proof import assert_sound, assert_sound_before_vacuum, vacuum_all, wait_for_restart
from long_runs.statements import Vacuum, alter_system, random_vacuum
from long_runs.workload import SESSION, Writer

LIFE = 25
CONFIG = {
    **long_run.CONFIG,
    "shared_buffers": "1MB",  # so that much is read, and written by VACUUM itself
    "bgwriter_lru_maxpages": 0,
    "checkpoint_timeout": "1h",
    "max_wal_size": "4GB",
    "max_connections": 20,
    "max_parallel_workers": 16,
    "max_prepared_transactions": 10,
    "min_parallel_index_scan_size": 0,
    "min_dynamic_shared_memory": 0,
    "wal_skip_threshold": 0,  # with wal_level minimal, what is committed is synced instead
    "statement_timeout": "1min",
}
CHOICES = {"fsync": ("off", "on"), "wal_level": ("replica", "minimal"), "max_wal_senders": (0,)}
CHOICES_18 = {"io_method": ("sync", "worker")}


class Fault(NamedTuple):
    """Calls that fail together, how, after how many that don't (on average), and how often that is tried."""

    calls: tuple[str, ...]
    error: str
    after: float
    weight: int


FAULTS = (
    Fault(("read",), "EIO", 8, 6),
    Fault(("write",), "EIO", 4, 3),
    Fault(("write", "allocate"), "ENOSPC", 4, 6),
    Fault(("allocate",), "ENOSPC", 1, 2),
    Fault(("create",), "ENOSPC", 1, 2),
    Fault(("truncate",), "EIO", 0.5, 3),
    Fault(("sync",), "EIO", 1, 3),
    Fault(("read", "write", "allocate", "create"), "EIO", 8, 3),
)
NO_SHARED_MEMORY = Fault(("allocate", "truncate"), "ENOSPC", 0.5, 1)
TEXT = {"EIO": "Input/output error", "ENOSPC": "No space left on device"}
SHARED_MEMORY = "/dev/shm/PostgreSQL."
RECOVERED = "database system was not properly shut down"
WRITERS = 2
IO_ERRORS = ("58030", "53100")
BREAKERS, LEFT_TO_SERVER = "circuit breakers opened", "tables with an open breaker vacuumed by the server"
MOST = 10  # times as many faults as wanted
AUTOVACUUM_SECONDS = 4  # in which autovacuum comes to each table


class FaultTest(long_run.LongRun):
    """One cluster on a disk that fails; `done` counts what happened."""

    def __init__(self, prefix: Path, major: int, seed: int, *, base: Path | None = None, with_autovacuum: bool = False):
        super().__init__(Cluster.create(prefix, CONFIG, base=base, initdb=("--data-checksums",)), seed, with_autovacuum)
        self.major = major
        self.disk = Disk(self.cluster)
        self.log_position = 0
        self.orphans: set[str] = set()  # files that a crash has left over

    def run(self, faults: int, first: int = 0, show=lambda text: None) -> None:
        """Try until `faults` of them have struck; raise AssertionError at the first that has done harm.

        With autovacuum, go on until it has come to all that a run should prove.
        """
        assert first % LIFE == 0, f"begin with a multiple of {LIFE}"
        number = first
        while self.done["faults"] < faults or (self._missing() and self.done["faults"] < MOST * faults):
            life = number - number % LIFE
            with self.kept("fault-test", number, f"FIRST={life}"):
                if number == life:
                    self._begin_life(number)
                show(f"attempt {number}: {self._attempt(number)}")
            number += 1
        if self.autovacuums:
            self.done += self.autovacuums.summary()
        assert not self._missing(), f"it proves too little, for lack of {self._missing()}"

    def _missing(self) -> list[str]:
        """Return what a run with autovacuum should have come to, and has not."""
        if not self.autovacuums:
            return []
        self.autovacuums.read_log()
        return self.autovacuums.missing() + [what for what in (BREAKERS, LEFT_TO_SERVER) if not self.done[what]]

    def _begin_life(self, number: int) -> None:
        """Start the server with settings of the life's own, and make fresh tables."""
        rng = random.Random(f"{self.seed}:life:{number}")
        choices = {**CHOICES, **(CHOICES_18 if self.major >= 18 else {})}
        config = {**CONFIG, **{name: rng.choice(values) for name, values in choices.items()}}
        if self.autovacuums:
            config |= {**autovacuum.settings(rng, self.cluster.prefix), "autovacuum": "off"}
        self.begin_life(number, rng, WRITERS, config)
        self.orphans = set()
        with self.cluster.connect(self.database) as conn:
            conn.execute("CREATE EXTENSION pg_prewarm")
            conn.execute("CREATE TABLE filler (x text STORAGE plain)")
            conn.execute("INSERT INTO filler SELECT repeat('x', 7000) FROM generate_series(1, 200)")

    def _attempt(self, number: int) -> str:
        rng = random.Random(f"{self.seed}:{number}")
        with self.cluster.connect(self.database) as conn:
            conn.execute(SESSION)
            for writer in range(WRITERS):
                session = Writer(self.workload, conn, writer, rng, f"a{number}")
                for _ in range(rng.randrange(3, 12)):
                    session.transaction()
            if rng.random() < 0.7:
                conn.execute("CHECKPOINT")
            vacuum = random_vacuum(rng, tuple(table.name for table in self.workload.tables))
            fault, paths = self._choose_fault(conn, rng, vacuum)
            if "truncate" in fault.calls or rng.random() < 0.3:
                self._add_dead_tail(conn, vacuum.tables)
            if rng.random() < 0.7:
                conn.execute("SELECT pg_prewarm('filler')")  # so that little else is in memory
        after, lasting = int(rng.expovariate(1 / fault.after)), rng.random() < 0.4
        # what a session needs may be among the files of the whole database
        if self.autovacuums and not any(path.endswith("/") for path in paths) and paths != [SHARED_MEMORY] and rng.random() < 0.8:
            return self._attempt_autovacuum(fault, paths, after, lasting)
        failure, seen = self._vacuum(vacuum, fault, paths, after, lasting)
        what = f"{fault.error} of {'/'.join(seen.kinds)}"
        if failure is not None and self._is_lost(failure):
            wait_until(lambda: RECOVERED in self.cluster.log[self.log_position :], "the server's restart")
        self._prove()
        if not seen.failed:
            assert failure is None, f"{vacuum.statement}: {failure}"
            return f"{vacuum.statement}: not come to"
        self.done["faults"] += 1
        self.done[what] += 1
        assert failure is None or paths != [SHARED_MEMORY], f"{vacuum.statement}: one process could have done it: {failure}"
        return f"{vacuum.statement}: {what}, {self._judge(vacuum.statement, failure, fault.error)}"

    def _attempt_autovacuum(self, fault: Fault, paths: list[str], after: int, lasting: bool) -> str:
        """Let autovacuum come to all tables with the fault, and after it; return what came of it in a few words."""
        self.log_position = len(self.cluster.log)
        broken = self.disk.fault(paths, fault.calls, fault.error, after=after, lasting=lasting)
        result = self._let_autovacuum_come(broken, lambda rows: any(row["error_count"] for row in rows.values()))
        self._turn_autovacuum_off()
        failed = self._autovacuum_failures(fault.error, result)
        if failed:
            self._let_autovacuum_come(nullcontext(), lambda rows: all(key in rows and rows[key]["server_count"] for key in failed))
        self._turn_autovacuum_off()
        with self.cluster.connect(self.database) as conn:
            rows = autovacuum.view(conn)
            conn.execute("SELECT cyclone.autovacuum_reset()")
        for key, engine_count in failed.items():
            assert rows[key]["engine_count"] == engine_count, f"the engine had a table whose breaker is open: {rows[key]}"
            self.done[LEFT_TO_SERVER] += rows[key]["server_count"] > 0
        self.autovacuums.read_log()
        self._prove()
        if not result.failed:
            return "autovacuum: not come to"
        what = f"{fault.error} of {'/'.join(result.kinds)}"
        self.done["faults"] += 1
        self.done["faults in autovacuum"] += 1
        self.done[what] += 1
        return f"autovacuum: {what}, breakers opened: {len(failed)}"

    def _let_autovacuum_come(self, disk, enough) -> Seen | None:
        """Turn autovacuum on, and wait until the view's rows are enough, the server goes down, or each table had its turn.

        Meanwhile the disk is as the context manager `disk` has it; return what was seen, if that can be.
        """
        deadline = time.monotonic() + AUTOVACUUM_SECONDS
        with self.cluster.connect(self.database) as conn:
            alter_system(conn, "SET autovacuum = on")
            with disk as seen:
                while not conn.closed and time.monotonic() < deadline:
                    # a session that reads the catalogs may have to write pages, which the disk doesn't take
                    with suppress(psycopg.OperationalError):
                        if enough(autovacuum.view(conn)):
                            break
                    time.sleep(0.05)
                return seen() if seen else None

    def _turn_autovacuum_off(self) -> None:
        """Turn it off, when the server is back."""
        wait_for_restart(self.cluster)
        with self.cluster.connect(self.database) as conn:
            autovacuum.turn_off(conn)

    def _autovacuum_failures(self, error: str, seen: Seen) -> dict[Key, int]:
        """Each error of autovacuum names what failed, and where; return the tables whose breakers are open for one, and how
        often the engine had vacuumed them before."""
        log = self.cluster.log[self.log_position :]
        for line in autovacuum.TROUBLE.findall(log):
            allowed = self._panic(error) if "PANIC" in line else self._clear(error)
            assert seen.failed and allowed.search(line), f"autovacuum: unclear: {line}"
        assert "TRAP" not in log
        if RECOVERED in log:
            assert self._panic(error).search(log), "the server went down, and not for what PostgreSQL goes down for"
            self.done["ended by a PANIC, as with PostgreSQL"] += 1
            return {}
        with self.cluster.connect(self.database) as conn:
            rows = {key: row for key, row in autovacuum.view(conn).items() if row["error_count"]}
        for row in rows.values():
            assert seen.failed, f"the engine has failed, and the disk has not: {row}"
            assert row["breaker_open"] and row["failed_with"] in IO_ERRORS, row
        self.done[BREAKERS] += len(rows)
        return {key: row["engine_count"] for key, row in rows.items()}

    def _add_dead_tail(self, conn, tables: tuple[str, ...]) -> None:
        """Give tables pages at the end that VACUUM can cut off."""
        conn.execute("BEGIN")
        for table in tables:
            conn.execute(
                f"INSERT INTO {table} SELECT id + number * 1000000, k, n, seed, tags, spot, note"
                f" FROM {table}, generate_series(1, 2) number"
            )
        conn.execute("ROLLBACK")

    def _choose_fault(self, conn, rng: random.Random, vacuum: Vacuum) -> tuple[Fault, list[str]]:
        """Return a fault, and parts of the paths of files: those of one relation, of a table or of the database."""
        if rng.random() < 0.05:
            return NO_SHARED_MEMORY, [SHARED_MEMORY]
        [fault] = rng.choices(FAULTS, [fault.weight for fault in FAULTS])
        rewrites = "FULL" in vacuum.kind and "read" not in fault.calls  # to files that aren't there yet
        if rewrites or not vacuum.tables or rng.random() < 0.1:
            [(folder,)] = conn.execute("SELECT 'base/' || oid || '/' FROM pg_database WHERE datname = current_database()")
            return fault, [folder]
        heaps = [heap for table in vacuum.tables for heap in checks.heaps(conn, table)]
        paths = [path for (path,) in conn.execute(
            "SELECT pg_relation_filepath(oid) FROM pg_class"
            " WHERE oid = ANY (%(heaps)s::text[]::regclass[])"
            " OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = ANY (%(heaps)s::text[]::regclass[])) ORDER BY oid",
            {"heaps": heaps},
        )]  # fmt: skip
        if rng.random() < 0.7:
            return fault, paths
        return fault, [rng.choice(paths) + rng.choice(["", "_fsm", "_vm"])]

    def _vacuum(self, vacuum: Vacuum, fault: Fault, paths: list[str], after: int, lasting: bool) -> tuple:
        """Run a VACUUM with the fault; return its error, or None, and what was seen."""
        failure = None
        self.log_position = len(self.cluster.log)
        with self.cluster.connect(self.database) as conn:
            conn.execute(SESSION)
            vacuum.make_settings(conn)
            with self.disk.fault(paths, fault.calls, fault.error, after=after, lasting=lasting) as seen:
                try:
                    conn.execute(vacuum.statement)
                except psycopg.Error as raised:
                    failure = raised
                result = seen()
        return failure, result

    def _judge(self, statement: str, failure: psycopg.Error | None, error: str) -> str:
        """The error names what failed, and where; return in a few words how it ended."""
        log = self.cluster.log[self.log_position :]
        if failure is None:
            self.done["without an error"] += 1
            return "without an error"
        if self._is_lost(failure):
            # as PostgreSQL does it where files cannot be truncated or synced, because memory and disk would differ
            panic = self._panic(error).search(log)
            assert panic, f"{statement}: the server went down, and not for what PostgreSQL goes down for: {failure}"
            self.done["ended by a PANIC, as with PostgreSQL"] += 1
            return panic[0]
        assert self._clear(error).search(failure.diag.message_primary), f"{statement}: unclear: {failure}"
        assert "PANIC" not in log and "TRAP" not in log, f"{statement}: PANIC beside {failure}"
        self.done["ended by a clear error"] += 1
        return failure.diag.message_primary

    def _clear(self, error: str) -> re.Pattern:
        """The message of an error that names the file."""
        return re.compile(rf'could not [a-z -]+ [^\n]*("base/[^"]+"|"/PostgreSQL\.\d+")[^\n]*: {TEXT[error]}')

    def _panic(self, error: str) -> re.Pattern:
        """The PANIC by which PostgreSQL goes down."""
        return re.compile(rf'PANIC:  could not (truncate|fsync) file "base/[^"]+"[^\n]*: {TEXT[error]}')

    def _is_lost(self, failure: psycopg.Error) -> bool:
        """Tell whether the server went down."""
        return failure.sqlstate is None or failure.sqlstate.startswith("57P") or failure.diag.severity_nonlocalized == "PANIC"

    def _prove(self) -> None:
        """Check that the tables are sound and as the ledger says, and that nothing is left of the VACUUM. The next one does the whole work."""
        wait_for_restart(self.cluster)
        crashed = RECOVERED in self.cluster.log[self.log_position :]
        with self.cluster.connect(self.database) as conn:
            if crashed:
                self.workload.settle(conn)
            else:
                self.workload.assert_content(conn)
            assert_sound_before_vacuum(conn, self.workload)
            assert conn.execute("SELECT * FROM cyclone.progress_details").fetchall() == []
            left = "SELECT relation::regclass, mode, pid FROM pg_locks WHERE locktype = 'relation' AND pid <> pg_backend_pid()"
            assert (locks := conn.execute(left).fetchall()) == [], locks
            orphans = set(files.stray_files(self.cluster, conn))
            assert crashed or orphans <= self.orphans, f"files are left over: {orphans - self.orphans}"
            self.orphans |= orphans
            vacuum_all(conn, self.workload)
            assert_sound(conn, self.workload)


def main() -> int:
    return long_run.main(FaultTest, __doc__, "fault-test", "faults", 200, rounds_of=LIFE)


if __name__ == "__main__":
    sys.exit(main())
