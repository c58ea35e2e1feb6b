"""The sessions of a workload: writers, readers and VACUUMs, each a thread, until they are stopped or the server goes down."""

import random
import threading
from contextlib import suppress

import psycopg

from cyclone_lab import checks
from cyclone_lab.background import Background
from cyclone_lab.cluster import Cluster
from long_runs.statements import Vacuum, alter_system, random_vacuum
from long_runs.workload import CONFLICTS, SESSION, Workload, Writer

JOIN_SECONDS = 300  # more than statement_timeout anywhere, by which some statements end
# That a VACUUM doesn't get its lock is no failure; what the server says when it goes down is looked at in `Load._guard`
ALLOWED_OF_VACUUM = (*CONFLICTS, psycopg.errors.QueryCanceled, psycopg.errors.DiskFull)
# Bounds of guards, by chance: VACUUM FULL ends where 99 % of a disk are to be free, FULL INPLACE, too, or others wait, if WAL is retained
LIMITS = {
    "cyclone.max_wal_rate": ("0", "0", "4MB"),
    "cyclone.max_replica_lag": ("0", "0", "500ms"),
    "cyclone.min_free_disk": ("5%", "5%", "5%", "99%"),
}

# Indexes of `workload` that an index-only scan reads: table and column
SCANNED = (("plain", "id"), ("plain", "k"), ("toasted", "id"), ("toasted", "k"))


def reset_limits(conn: psycopg.Connection) -> None:
    """Let guards bound what they do by default."""
    alter_system(conn, *(f"RESET {name}" for name in LIMITS))


class Sessions:
    """Jobs, each in a session and a thread of its own, until they are stopped, one fails, or the server goes down.

    `chance` and a session's number decide what it does. Failures are kept, and raised by `check`, `stop` and `join`.
    """

    def __init__(self, cluster: Cluster, dbname: str, chance: float | str):
        self.cluster = cluster
        self.dbname = dbname
        self.chance = chance
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._stopped = threading.Event()
        self._crash_expected = False

    def run(self, jobs: list) -> None:
        """Start jobs, each called with its connection and its random numbers; one that returns too early is called again."""
        for number, job in enumerate(jobs):
            rng = random.Random(f"{self.chance}:{number}")
            self._threads.append(threading.Thread(target=self._guard, args=(job, rng), daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def stopped(self) -> bool:
        """Tell whether the jobs are to end."""
        return self._stopped.is_set()

    @property
    def failed(self) -> bool:
        return bool(self._failures)

    def check(self) -> None:
        """Raise the first failure, if there is one."""
        if self._failures:
            raise self._failures[0]

    def expect_the_end(self) -> None:
        """From now on sessions may end because the server goes down."""
        self._crash_expected = True

    def stop(self) -> None:
        """Let all sessions finish what they are at, and wait for them."""
        self._stopped.set()
        self.join()

    def join(self) -> None:
        """Wait for the end of all sessions; raise the first failure."""
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
            assert not thread.is_alive(), "a session does not end"
        self.check()

    def pause(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def _guard(self, job, rng: random.Random) -> None:
        """Run a session's job, with a connection of its own; with another one if it comes back before the end."""
        conn = None
        try:
            while not self.stopped:
                with self.cluster.connect(self.dbname) as conn:
                    conn.execute(SESSION)
                    job(conn, rng)
        except BaseException as failure:  # which check() raises again
            if not self._of_crash(conn, failure):
                self._failures.append(failure)
                self._stopped.set()

    def _of_crash(self, conn: psycopg.Connection | None, failure: BaseException) -> bool:
        """Tell whether this is how a crash looks that was expected."""
        return self._crash_expected and isinstance(failure, psycopg.OperationalError) and (
            conn is None or conn.closed or isinstance(failure, (psycopg.errors.AdminShutdown, psycopg.errors.CrashShutdown))
        )  # fmt: skip


class Load(Sessions):
    """Sessions at work on a workload in one database."""

    def __init__(self, cluster: Cluster, dbname: str, workload: Workload, chance: float | str, name: str):
        """`name` begins the names of prepared transactions, and must not have been used before in this database."""
        super().__init__(cluster, dbname, chance)
        self.workload = workload
        self.name = name
        self.vacuums = 0
        self.targets = tuple(table.name for table in workload.tables)
        self._parked: list[Background] = []

    def start(self, *, vacuums: int, readers: int, writers: bool = True, pause: float = 0.0) -> None:
        """Start all writers, or none, and these numbers of others; writers pause up to `pause` seconds after a transaction.

        A session pauses the VACUUMs now and then.
        """
        numbers = range(self.workload.writers if writers else 0)
        jobs = [lambda conn, rng, number=number: self._write(conn, rng, number, pause) for number in numbers]
        self.run(jobs + [self._vacuum] * vacuums + [self._read, self._read_slowly] * readers + [self._brake] * bool(vacuums))

    def start_vacuum(self, vacuum: Vacuum, settings: dict) -> Background:
        """Start one VACUUM more, with further settings, and return it."""
        self._parked.append(Background(self.cluster, self.dbname, vacuum.statement, {**vacuum.settings, **settings}))
        return self._parked[-1]

    def join(self) -> None:
        """Wait for the end of all sessions and VACUUMs; raise the first failure."""
        super().join()
        for parked in self._parked:
            error = parked.wait()
            if error and not isinstance(error, ALLOWED_OF_VACUUM) and not self._of_crash(parked.connection, error):
                self._failures.append(error)
        self.check()

    def _write(self, conn: psycopg.Connection, rng: random.Random, number: int, pause: float) -> None:
        writer = Writer(self.workload, conn, number, rng, self.name)
        while not self.stopped:
            writer.transaction(self.pause)
            if pause:
                self.pause(rng.uniform(0, pause))

    def _vacuum(self, conn: psycopg.Connection, rng: random.Random) -> None:
        conn.execute("SET cyclone.debug_point = ''")  # one of the configuration is for others
        while not self.stopped:
            if rng.random() < 0.03:
                conn.execute("CHECKPOINT")
            vacuum = random_vacuum(rng, self.targets, repack=conn.info.server_version >= 190000)
            vacuum.make_settings(conn)
            try:
                conn.execute(vacuum.statement)
                self.vacuums += 1
                self.workload.count(vacuum.kind)
            except ALLOWED_OF_VACUUM as error:
                if conn.closed:
                    raise
                self.workload.count(f"VACUUM: {type(error).__name__}")
            self.pause(rng.uniform(0, 0.05))

    def _brake(self, conn: psycopg.Connection, rng: random.Random) -> None:
        """Pause all VACUUMs, for moments, and let them go on, one by one or all; change what guards bound, and in the end no more."""
        while not self.stopped:
            if rng.random() < 0.3:
                name = rng.choice(list(LIMITS))
                alter_system(conn, f"SET {name} = '{rng.choice(LIMITS[name])}'")
                self.workload.count("changes of limits")
            self.pause(rng.uniform(0, 0.5))
            [(paused,)] = conn.execute("SELECT cyclone.pause()")
            self.workload.count("pauses of VACUUM", paused)
            self.pause(rng.uniform(0, 0.2))
            if rng.random() < 0.5:
                conn.execute("SELECT cyclone.resume(pid) FROM cyclone.pace WHERE limited_by = 'paused'")
            conn.execute("SELECT cyclone.resume()")
        reset_limits(conn)

    def _read(self, conn: psycopg.Connection, rng: random.Random) -> None:
        """Keep a snapshot for a while; then all indexes of a table must lead to what a sequential scan finds.

        BRIN indexes do not: when VACUUM summarizes a range, PostgreSQL leaves out row versions that HOT updates have replaced and
        that older snapshots see.
        Returns when stopped, or when a standby has ended the session as its snapshot was in the way of replay.
        """
        tables = self.workload.readable(conn)
        heaps = [heap for table in tables for heap in checks.heaps(conn, table.name) if not heap.startswith("pg_toast.")]
        while not (self.stopped or conn.closed):
            with suppress(*CONFLICTS), conn.transaction():
                conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                conn.execute("SELECT FROM pg_class LIMIT 1")  # takes the snapshot
                self.pause(rng.uniform(0, 0.3))
                problems = checks.index_scan_errors(conn, rng.choice(heaps), but=("brin",))
                assert not problems, problems
                self.workload.count("snapshots")
            self.pause(rng.uniform(0, 0.1))

    def _read_slowly(self, conn: psycopg.Connection, rng: random.Random) -> None:
        """Scan an index by a cursor that stands still on its pages, back and forth: it finds what was there when it was opened.

        Returns as `_read` does.
        """
        while not (self.stopped or conn.closed):
            table, column = rng.choice(SCANNED)
            query = f"SELECT {column} FROM {table} ORDER BY {column}"
            with suppress(*CONFLICTS), conn.transaction():
                conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                checks.forbid_index_scans(conn)
                expected = [value for (value,) in conn.execute(query, prepare=False)]
                checks.allow_only_index_scans(conn)
                [(plan, *_), *_] = conn.execute(f"EXPLAIN {query}", prepare=False).fetchall()
                assert "Index Only Scan" in plan, plan
                conn.execute(f"DECLARE c SCROLL CURSOR FOR {query}", prepare=False)
                at = 0
                for _ in range(rng.randrange(4, 40)):
                    some = rng.randrange(1, max(2, len(expected) // 20))
                    back = at > some and rng.random() < 0.2
                    found = [value for (value,) in conn.execute(f"FETCH {'BACKWARD' if back else 'FORWARD'} {some} FROM c", prepare=False)]
                    wanted = expected[at - 1 - some : at - 1][::-1] if back else expected[at : at + some]
                    assert found == wanted, f"{table}.{column}, {'backward' if back else 'forward'} from {at}"
                    at += -some if back else len(found)
                    if len(found) < some:
                        break
                    self.pause(rng.uniform(0, 0.03))
                self.workload.count("cursors")
            self.pause(rng.uniform(0, 0.1))
