"""Crashes at random moments and at named points, under load, and the proof after each that nothing is lost or wrong.

`make crash-test ROUNDS=500 SEED=1`. In a round, writers change tables of many kinds (`workload`) while VACUUMs of all kinds run
(`statements`); then the server is killed, or one of its processes, or shut down at once, and recovers. What is compared with the
ledger, and by which checks, is in `proof`. Every LIFE rounds begin with fresh tables and other settings of the server, all
chosen by the seed, so that a failed round can be repeated by the rounds of its life, as far as timing lets it.
"""

import argparse
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psycopg

from cyclone_lab import build, checks
from cyclone_lab.background import DEBUG_POINT_LOCK, wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.load import Load
from cyclone_lab.postgres import REPO
from cyclone_lab.proof import STALE_LOCK, STALE_LOCK_COUNT, assert_sound, assert_sound_before_vacuum, vacuum_all, wait_for_restart
from cyclone_lab.statements import KINDS, random_vacuum
from cyclone_lab.workload import CHECKED_IN_RECOVERY, Workload

LIFE = 10
CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "fsync": "off",  # what is written survives the death of processes
    "max_connections": 40,
    "max_worker_processes": 16,
    "max_parallel_workers": 16,
    "max_prepared_transactions": 20,
    "min_parallel_table_scan_size": 0,
    "min_parallel_index_scan_size": 0,
    "max_parallel_workers_per_gather": 0,
    "statement_timeout": "2min",
    "max_wal_size": "256MB",
    "min_wal_size": "128MB",
    "jit": "off",
    "cyclone.check_disk_space": "off",
}
# Each life has one value of each
CHOICES = {
    "shared_buffers": ("2MB", "16MB"),
    "wal_consistency_checking": (CHECKED_IN_RECOVERY, CHECKED_IN_RECOVERY, ""),
    "wal_level": ("replica", "minimal", "logical"),
    "autovacuum": ("on", "off"),
    "autovacuum_naptime": ("1s",),
    "autovacuum_vacuum_threshold": (50,),
    "autovacuum_vacuum_scale_factor": (0,),
    "checkpoint_timeout": ("30s", "5min"),
    "min_dynamic_shared_memory": (0, "64MB"),
}
CHOICES_18 = {"io_method": ("sync", "worker")}
ENDS = {
    "server killed": 4, "immediate shutdown": 1, "leader killed": 3, "worker killed": 3, "writer killed": 1, "another killed": 1,
}  # fmt: skip
WRITERS = 4
TROUBLE = re.compile(
    "PANIC|TRAP:|inconsistent page|terminated by signal (?!9)|WARNING: .*(leak|marked|multiple active)|could not (read|access)"
)


class CrashTest:
    """One cluster that lives through rounds; `done` counts what happened."""

    def __init__(self, prefix: Path, major: int, seed: int, *, base: Path | None = None):
        self.seed = seed
        self.major = major
        self.cluster = Cluster.create(prefix, CONFIG, base=base, initdb=("--data-checksums",))
        self.done: Counter = Counter()
        self.workload: Workload | None = None
        self.database = ""

    def __enter__(self) -> "CrashTest":
        return self

    def __exit__(self, *_exception) -> None:
        self.cluster.remove()

    def run(self, rounds: int, first: int = 0, show=lambda text: None) -> None:
        """Run rounds with these numbers, `first` a multiple of LIFE; raise AssertionError at the first that fails, after
        keeping the server's files."""
        assert first % LIFE == 0, f"begin with a multiple of {LIFE}"
        began = time.monotonic()
        for number in range(first, first + rounds):
            try:
                if number % LIFE == 0:
                    self._begin_life(number)
                story = self._round(number)
            except BaseException as failure:
                if not isinstance(failure, KeyboardInterrupt):
                    kept = self.cluster.keep(REPO / "build" / "crash-test" / f"{self.seed}-{number}")
                    life = number - number % LIFE
                    failure.add_note(
                        f"round {number} failed: its life is repeated by SEED={self.seed} FIRST={life} ROUNDS={number - life + 1};"
                        f" the server's files are in {kept}"
                    )
                raise
            show(f"round {number} ({(time.monotonic() - began) / (number - first + 1):.1f} s each): {story}")
        self._end_life()

    def _begin_life(self, number: int) -> None:
        """Start the server with settings of the life's own, and make fresh tables."""
        self._end_life()
        rng = random.Random(f"{self.seed}:life:{number}")
        self.cluster.stop()
        choices = {**CHOICES, **(CHOICES_18 if self.major >= 18 else {})}
        chosen = {name: rng.choice(values) for name, values in choices.items()}
        self.cluster.config = {**CONFIG, **chosen, "max_wal_senders": 0 if chosen["wal_level"] == "minimal" else 10}
        self.cluster.start()
        self.database = f"life_{number}"
        self.cluster.sql(f"CREATE DATABASE {self.database}")
        with self.cluster.connect(self.database) as conn:
            conn.execute("CREATE EXTENSION pg_cyclone")
            checks.create_extensions(conn)
            self.workload = Workload(WRITERS)
            self.workload.create(conn, rng)
        self.settings = chosen

    def _end_life(self) -> None:
        """Check the whole database, catalogs included, and drop it."""
        if not self.database:
            return
        self.cluster.run("pg_amcheck", "--heapallindexed", "--parent-check", self.database)
        self.cluster.sql(f"DROP DATABASE {self.database} WITH (FORCE)")
        self.done += self.workload.done
        self.database = ""

    def _round(self, number: int) -> str:
        """Load, crash, recovery, proof; return what happened in a few words."""
        rng = random.Random(f"{self.seed}:{number}")
        log_position = len(self.cluster.log)
        load = Load(self.cluster, self.database, self.workload, rng.random(), f"r{number}")
        load.start(vacuums=2, readers=1)
        time.sleep(rng.uniform(0.1, 1))
        how = rng.choices(list(ENDS), list(ENDS.values()))[0]
        where = "at random"
        gate = None
        leader, workers = None, []
        if rng.random() < 0.6:
            gate = self.cluster.connect(self.database)
            where, leader, workers = self._park(rng, gate, load)
        if rng.random() < 0.7:
            self.cluster.sql("SELECT pg_logical_emit_message(true, '', '')", dbname=self.database)  # flushes all WAL
        load.check()
        load.expect_the_end()
        how = self._crash(rng, how, leader, workers)
        load.join()
        if gate:
            gate.close()
        crashed = time.monotonic()
        wait_for_restart(self.cluster)
        recovery = time.monotonic() - crashed
        self.done[how] += 1
        self.done[where] += 1
        self._examine(rng)
        log = self.cluster.log[log_position:]
        if trouble := [line for line in log.splitlines() if TROUBLE.search(line)]:
            raise AssertionError("in the server's log:\n" + "\n".join(trouble[:10]))
        self.done[STALE_LOCK_COUNT] += len(STALE_LOCK.findall(log))  # autovacuum's; a session's ends the load with it
        self.done["rounds"] += 1
        return f"{how} {where}, {load.vacuums} vacuums, recovery {recovery:.1f} s"

    def _park(self, rng: random.Random, gate: psycopg.Connection, load: Load) -> tuple[str, int | None, list[int]]:
        """Let a VACUUM come to a debug point and wait there; return where that is, its process and its workers.

        Some points are seldom come to: if so, another moment serves as well.
        """
        gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
        [kind] = rng.choices(list(KINDS.values()), [kind.weight for kind in KINDS.values()])
        point = rng.choice(kind.points)
        role = rng.choice(["any", "any", "leader", "worker"])
        deadline = time.monotonic() + 2
        leader = None
        while time.monotonic() < deadline:
            if leader is None or not leader.running:
                vacuum = random_vacuum(rng, load.targets)
                if point not in vacuum.points:
                    continue
                leader = load.start_vacuum(vacuum, {"cyclone.debug_point": f"{point}:{role}:wait"})
            if gate.execute(waiting, (DEBUG_POINT_LOCK,)).fetchall():
                time.sleep(rng.choice([0, 0, 0.2]))  # others go on, and come there, too
                workers = gate.execute("SELECT pid FROM pg_stat_activity WHERE leader_pid = %s", (leader.pid,)).fetchall()
                return f"at {point}", leader.pid, [pid for (pid,) in workers]
            time.sleep(0.01)
        return "at random", None, []

    def _crash(self, rng: random.Random, how: str, leader: int | None, workers: list[int]) -> str:
        """Kill as `how` says, or everything if there is no such process; return what was done."""
        if how == "immediate shutdown":
            self.cluster.stop("immediate")
        elif how == "server killed" or not self._kill_one(rng, how, leader, workers):
            how = "server killed"
            self.cluster.crash()
        return how

    def _kill_one(self, rng: random.Random, how: str, leader: int | None, workers: list[int]) -> bool:
        """Kill one process; return whether the server has gone down for it."""
        with self.cluster.connect(self.database) as watch:
            pid = self._victim(watch, rng, how, leader, workers)
            if pid is None:
                return False
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            try:
                for _ in range(100):  # the server tears all sessions away, this one included
                    watch.execute("SELECT pg_sleep(0.05)")
            except psycopg.OperationalError:
                return True
        return False

    def _victim(self, watch, rng: random.Random, how: str, leader: int | None, workers: list[int]) -> int | None:
        """Return the process to kill, or None."""
        if how == "leader killed" and leader:
            return leader
        if how == "worker killed" and workers:
            return rng.choice(workers)
        condition = {
            "leader killed": "query ILIKE 'VACUUM%' AND state = 'active' AND backend_type = 'client backend'",
            "worker killed": "backend_type = 'parallel worker'",
            "writer killed": "query !~ 'VACUUM' AND backend_type = 'client backend'",
            "another killed": "backend_type NOT IN ('client backend', 'parallel worker')",
        }[how]
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            query = f"SELECT pid FROM pg_stat_activity WHERE {condition} AND pid <> pg_backend_pid() ORDER BY pid"
            if pids := watch.execute(query).fetchall():
                return rng.choice(pids)[0]
        return None

    def _examine(self, rng: random.Random) -> None:
        """The tables are as the ledger says and sound, before VACUUM and after, beside prepared transactions and without."""
        with self.cluster.connect(self.database) as conn:
            conn.execute("SET statement_timeout = '60s'")
            self._let_autovacuum(conn, "off")  # whose pruning makes items dead that are in an index
            self.workload.settle(conn)
            assert_sound_before_vacuum(conn, self.workload)
            vacuum_all(conn, self.workload)
            if self.workload.finish_prepared(conn, rng):
                self.workload.assert_content(conn)
                vacuum_all(conn, self.workload)
            assert_sound(conn, self.workload)
            self._let_autovacuum(conn, self.settings["autovacuum"])

    def _let_autovacuum(self, conn: psycopg.Connection, value: str) -> None:
        """Turn autovacuum on or off, and see to it that it is off."""
        conn.execute(f"ALTER SYSTEM SET autovacuum = {value}")
        conn.execute("SELECT pg_reload_conf()")
        if value == "off":
            wait_until(
                lambda: conn.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'"
                ).fetchone() == (0,),
                "the end of autovacuum",
            )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--first", type=int, default=0, help=f"number of the first round, a multiple of {LIFE}")
    parser.add_argument("--version", type=int, default=18, help="17 or 18")
    parser.add_argument("--base", type=Path, help="folder for the server's files")
    options = parser.parse_args()
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    print(f"crash-test of PostgreSQL {options.version}: SEED={seed} FIRST={options.first} ROUNDS={options.rounds}", flush=True)
    prefix = build.install(options.version, debug_points=True)
    with CrashTest(prefix, options.version, seed, base=options.base) as test:
        try:
            test.run(options.rounds, options.first, show=lambda text: print(text, flush=True))
        finally:
            print(*(f"{what}: {number}" for what, number in sorted(test.done.items())), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
