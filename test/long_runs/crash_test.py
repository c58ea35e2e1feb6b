"""Crashes at random moments and at named points, under load, and the proof after each that nothing is lost or wrong.

`make crash-test ROUNDS=500 SEED=1`. In a round, writers change tables of many kinds (`workload`) while VACUUMs of all kinds run
(`statements`); then the server is killed, or one of its processes, or shut down at once, and recovers. `proof` compares
tables with the ledger, and checks them. Every LIFE rounds begin with fresh tables and other settings of the server, all
chosen by the seed, so that a failed round can be repeated by the rounds of its life, as far as timing lets it.

With `--autovacuum` (`AUTOVACUUM=1`), autovacuum on the engine is at work in each round (`autovacuum`), and most crashes come in its midst.
The tables that the engine was at go to PostgreSQL's own VACUUM next; no other may, and the engine may not fail.
"""

import os
import random
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psycopg

from cyclone_lab.background import DEBUG_POINT_LOCK
from cyclone_lab.cluster import Cluster
from long_runs import autovacuum, compaction, long_run
from long_runs.autovacuum import Key
from long_runs.load import Load, reset_limits
from long_runs.proof import (
    PENDING_LIST_COUNT,
    STALE_LOCK,
    STALE_LOCK_COUNT,
    assert_sound,
    assert_sound_before_vacuum,
    vacuum_all,
    wait_for_restart,
)
from long_runs.statements import KINDS, PLAIN_POINTS, alter_system, points, random_vacuum
from long_runs.workload import CHECKED_WAL

LIFE = 10
CONFIG = {
    **long_run.CONFIG,
    "max_connections": 40,
    "max_parallel_workers": 16,
    "max_prepared_transactions": 20,
    "min_parallel_index_scan_size": 0,
    "statement_timeout": "2min",
    "max_wal_size": "256MB",
    "min_wal_size": "128MB",
}
# Each life has one value of each
CHOICES = {
    "shared_buffers": ("2MB", "16MB"),
    "wal_consistency_checking": (CHECKED_WAL, CHECKED_WAL, ""),
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
BREAK_SECONDS = (1, 3600)  # seconds, with autovacuum
IN_AUTOVACUUM, LEFT_TO_SERVER = "crashes in an autovacuum by the engine", "tables left to the server after a crash"
RETRIED = "tables taken by the engine again after a crash"
TROUBLE = re.compile(
    "PANIC|TRAP:|inconsistent page|terminated by signal (?!9)|WARNING: .*(leak|marked|multiple active)|could not (read|access)"
)


class CrashTest(long_run.LongRun):
    """One cluster that lives through rounds; `done` counts what happened."""

    command = "crash-test"
    server = Cluster
    config = CONFIG
    choices = CHOICES
    wanted = (IN_AUTOVACUUM, LEFT_TO_SERVER)  # with autovacuum, the latter in long runs

    def __init__(self, prefix: Path, major: int, seed: int, *, base: Path | None = None, with_autovacuum: bool = False):
        super().__init__(self.server.create(prefix, self.config, base=base, initdb=("--data-checksums",)), seed, with_autovacuum)
        self.major = major
        self.noted: set[Key] = set()  # tables that the last crash found in the engine's hands

    def run(self, rounds: int, first: int = 0, show=lambda text: None) -> None:
        """Run rounds with these numbers, `first` a multiple of LIFE; raise AssertionError at the first that fails, after
        keeping the server's files."""
        assert first % LIFE == 0, f"begin with a multiple of {LIFE}"
        began = time.monotonic()
        for number in range(first, first + rounds):
            life = number - number % LIFE
            with self.kept(self.command, number, f"FIRST={life} ROUNDS={number - life + 1}"):
                if number == life:
                    self._begin_life(number)
                story = self._round(number)
            show(f"round {number} ({(time.monotonic() - began) / (number - first + 1):.1f} s each): {story}")
        self._end_life()
        if self.autovacuums and rounds >= LIFE:
            self.done += self.autovacuums.summary()
            # in some lives breakers are open for a second only, and in all of them some are reset
            wanted = self.wanted[: 2 if rounds >= 10 * LIFE else 1]
            missing = self.autovacuums.missing(autovacuum.FORCED) + [what for what in wanted if not self.done[what]]
            assert not missing, f"it proves too little, for lack of {missing}"

    def _begin_life(self, number: int) -> None:
        """Start the server with settings of the life's own, and make fresh tables."""
        self._end_life()
        rng = random.Random(f"{self.seed}:life:{number}")
        self.cluster.stop()
        choices = {**self.choices, **(CHOICES_18 if self.major >= 18 else {})}
        chosen = {name: rng.choice(values) for name, values in choices.items()}
        if self.autovacuums:
            assert not autovacuum.notes(self.cluster), "a note is left over by a server that was stopped"
            self.noted = set()
            chosen |= {**autovacuum.settings(rng, self.cluster.prefix), "cyclone.debug_break_seconds": rng.choice(BREAK_SECONDS)}
        else:
            # where autovacuum is a driver it is proved by whom a crash has interrupted
            chosen |= compaction.settings(rng)
        self.begin_life(number, rng, WRITERS, {**self.config, **chosen, "max_wal_senders": 0 if chosen["wal_level"] == "minimal" else 10})
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
        left_to_server = autovacuum.crash_breakers(self.cluster) if self.autovacuums else set()
        load = Load(self.cluster, self.database, self.workload, rng.random(), f"r{number}")
        if self.autovacuums and number % LIFE == 2:
            with self.cluster.connect(self.database) as conn:
                autovacuum.use_up_xids(conn)
        load.start(vacuums=2, readers=1)
        time.sleep(rng.uniform(0.1, 1))
        how = rng.choices(list(ENDS), list(ENDS.values()))[0]
        where = "at random"
        gate = None
        leader, workers = None, []
        if rng.random() < 0.6:
            gate = self.cluster.connect(self.database)
            park = self._park_autovacuum if self.autovacuums and rng.random() < 0.7 else self._park
            where, leader, workers = park(rng, gate, load)
        elif self.autovacuums:
            self._wait_for_autovacuum()
        if rng.random() < 0.7:
            self.cluster.sql("SELECT pg_logical_emit_message(true, '', '')", dbname=self.database)  # flushes all WAL
        load.check()
        if self.autovacuums:
            self._check_breakers()
        load.expect_the_end()
        crash_position = len(self.cluster.log)
        how = self._crash(rng, how, leader, workers)
        load.join()
        noted = autovacuum.notes(self.cluster) if not self.cluster.running else None
        if gate:
            gate.close()
        crashed = time.monotonic()
        wait_for_restart(self.cluster)
        recovery = time.monotonic() - crashed
        self.done[how] += 1
        self.done[where] += 1
        interrupted = ""
        if self.autovacuums:
            self._check_notes(self.cluster.log[crash_position:], noted)
            interrupted = f", autovacuums interrupted: {len(self.noted)}"
        self._examine(rng, left_to_server, log_position)
        log = self.cluster.log[log_position:]
        if self.autovacuums:
            self.autovacuums.assert_no_errors(STALE_LOCK)
        if trouble := [line for line in log.splitlines() if TROUBLE.search(line)]:
            raise AssertionError("in the server's log:\n" + "\n".join(trouble[:10]))
        self.done[STALE_LOCK_COUNT] += len(STALE_LOCK.findall(log))  # autovacuum's; a session's ends the load with it
        self.done["rounds"] += 1
        return f"{how} {where}, {load.vacuums} vacuums, recovery {recovery:.1f} s{interrupted}"

    def _park(self, rng: random.Random, gate: psycopg.Connection, load: Load) -> tuple[str, int | None, list[int]]:
        """Let a VACUUM come to a debug point and wait there; return where that is, its process and its workers.

        Some points are seldom come to: if so, another moment serves as well.
        """
        gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
        [kind] = rng.choices(list(KINDS.values()), [kind.weight for kind in KINDS.values()])
        point = rng.choice(points(kind, load.targets))
        role = rng.choice(["any", "any", "leader", "worker"])
        deadline = time.monotonic() + 2
        leader = None
        while time.monotonic() < deadline:
            if leader is None or not leader.running:
                vacuum = random_vacuum(rng, load.targets, repack=self.major >= 19)
                if point not in vacuum.points:
                    continue
                leader = load.start_vacuum(vacuum, {"cyclone.debug_point": f"{point}:{role}:wait"})
            if gate.execute(waiting, (DEBUG_POINT_LOCK,)).fetchall():
                time.sleep(rng.choice([0, 0, 0.2]))  # others go on, and come there, too
                workers = gate.execute("SELECT pid FROM pg_stat_activity WHERE leader_pid = %s", (leader.pid,)).fetchall()
                return f"at {point}", leader.pid, [pid for (pid,) in workers]
            time.sleep(0.01)
        return "at random", None, []

    def _park_autovacuum(self, rng: random.Random, gate: psycopg.Connection, _load: Load) -> tuple[str, int | None, list[int]]:
        """Let an autovacuum come to a debug point and wait there; return where that is, its process and its workers."""
        gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        point = rng.choice(PLAIN_POINTS)
        alter_system(gate, f"SET cyclone.debug_point = '{point}:{rng.choice(['any', 'any', 'leader', 'worker'])}:wait'")
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            parked = gate.execute(
                "SELECT leader.pid FROM pg_locks JOIN pg_stat_activity process USING (pid)"
                " JOIN pg_stat_activity leader ON leader.pid = coalesce(process.leader_pid, process.pid)"
                " WHERE locktype = 'advisory' AND objid = %s AND NOT granted AND leader.backend_type = 'autovacuum worker'",
                (DEBUG_POINT_LOCK,),
            ).fetchall()
            if parked:
                time.sleep(rng.choice([0, 0, 0.2]))
                [leader] = rng.choice(parked)
                workers = gate.execute("SELECT pid FROM pg_stat_activity WHERE leader_pid = %s", (leader,)).fetchall()
                return f"in an autovacuum at {point}", leader, [pid for (pid,) in workers]
            time.sleep(0.01)
        return "at random", None, []

    def _wait_for_autovacuum(self) -> None:
        """Wait until the engine is at work for autovacuum, but not for long."""
        deadline = time.monotonic() + 3
        while not autovacuum.notes(self.cluster) and time.monotonic() < deadline:
            time.sleep(0.002)

    def _check_breakers(self) -> None:
        """The engine has failed on no table but by a crash; and what it was at then it has left to the server.

        After three crashes it has left all to the server.
        """
        with self.cluster.connect(self.database) as conn:
            rows = autovacuum.view(conn)
        crashed = autovacuum.crash_breakers(self.cluster)
        assert self.noted <= crashed, f"no breaker is noted on disk: {self.noted - crashed}"
        for key, row in rows.items():
            assert row["error_count"] == (key in crashed), f"the engine has failed in autovacuum: {row}"
        for key in self.noted:
            assert key in rows, f"a table that a crash found in the engine's hands is forgotten: {key}"
            row = rows[key]
            if self.settings["cyclone.debug_break_seconds"] > 1:
                assert row["breaker_open"] and row["failed_with"] == "crash" and not row["engine_count"], row
                assert row["last_reason"] in (("circuit breaker", "crashes") if row["server_count"] else (None,)), row
                self.done[LEFT_TO_SERVER] += row["server_count"] > 0
            self.done[RETRIED] += row["engine_count"] > 0

    def _check_notes(self, log: str, noted: set[Key] | None) -> None:
        """The server has found the notes of those whom the crash interrupted; they are `noted`, if that is known."""
        since_start = re.split("reinitializing", log)[-1]
        self.noted = {Key(int(database), int(relation)) for relation, database in autovacuum.NOTED.findall(since_start)}
        assert noted is None or noted == self.noted, f"notes on disk: {noted}, found by the server: {self.noted}"
        self.done[IN_AUTOVACUUM] += bool(self.noted)

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
            if how == "leader killed" and pid == leader and self.autovacuums:
                self.done["leaders of autovacuums killed"] += bool(
                    watch.execute("SELECT FROM pg_stat_activity WHERE pid = %s AND backend_type LIKE 'autov%%'", (pid,)).fetchall()
                )
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
            "leader killed": "query ~* '^(autovacuum: )?VACUUM' AND state = 'active' AND leader_pid IS NULL",
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

    def _look_further(self, conn: psycopg.Connection) -> None:
        """For runs that look at more while nobody is at work."""

    def _doubtful_indexes(self, conn: psycopg.Connection, left_to_server: set[Key], log: str) -> frozenset[str]:
        """Return the GIN indexes in which the server's own VACUUM may have left entries of removed rows (PENDING_LIST_COUNT).

        It has been through their tables in several rounds, by the log, or may have begun to, as the engine had left them to it.
        """
        relations = [key.relation for key in left_to_server]
        rows = conn.execute(
            "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam"
            " JOIN pg_class t ON t.oid = i.indrelid WHERE a.amname = 'gin' AND (i.indrelid = ANY (%s::oid[])"
            " OR format('%%s.%%s.%%s', current_database(), t.relnamespace::regnamespace, t.relname) = ANY (%s))",
            (relations, list(autovacuum.in_rounds_by_the_server(log))),
        )
        return frozenset(name for (name,) in rows)

    def _examine(self, rng: random.Random, left_to_server: set[Key], log_position: int) -> None:
        """The tables are as the ledger says and sound, before VACUUM and after, beside prepared transactions and without."""
        with self.cluster.connect(self.database) as conn:
            conn.execute("SET statement_timeout = '60s'")
            reset_limits(conn)
            if self.autovacuums:
                conn.execute("ALTER SYSTEM RESET cyclone.debug_point")
                autovacuum.turn_off(conn, at_once=rng.random() < 0.5)
            else:
                autovacuum.stop(conn, at_once=True)  # whose pruning makes items dead that are in an index
                self.done["compactions"] += compaction.stop(conn)
                conn.execute("SELECT cyclone.autovacuum_reset()")  # what a crash has come of matters no more when it begins again
            self.workload.settle(conn)
            doubtful = self._doubtful_indexes(conn, left_to_server, self.cluster.log[log_position:])
            self.done[PENDING_LIST_COUNT] += assert_sound_before_vacuum(conn, self.workload, doubtful=doubtful)
            vacuum_all(conn, self.workload)
            if self.workload.finish_prepared(conn, rng):
                self.workload.assert_content(conn)
                vacuum_all(conn, self.workload)
            for index in doubtful:
                conn.execute(f"REINDEX INDEX {index}")
            assert_sound(conn, self.workload)
            self._look_further(conn)
            if self.autovacuums and rng.random() < 0.6:
                forgotten = conn.execute("SELECT cyclone.autovacuum_reset()").fetchone()[0]
                assert forgotten >= len(self.noted)
                self.noted = set()
            autovacuum.turn_on(conn)  # as the life's settings have it
            if not self.autovacuums:
                compaction.go_on(conn)


def main() -> int:
    return long_run.main(CrashTest, __doc__, "crash-test", "rounds", 500, rounds_of=LIFE)


if __name__ == "__main__":
    sys.exit(main())
