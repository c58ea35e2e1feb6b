"""Autovacuum as a driver of the long runs: on the engine, with teams, all the time; and what it came to.

`settings` has it come to each table every other second, by several processes, and freeze tables by force when `use_up_xids` has made them
old. `Autovacuums` counts in the server's log what was done and by whom, which outlasts a crash; the view cyclone.autovacuum has
what it knows since the server's start. The engine's circuit breakers may open for what a run did to it, and for nothing else.
"""

import random
import re
import struct
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psycopg

from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import run_program
from long_runs.statements import alter_system

FREEZE_MAX_AGE = 100_000
CONFIG = {
    "autovacuum": "on",
    "autovacuum_naptime": "1s",
    "autovacuum_max_workers": 4,
    "autovacuum_vacuum_threshold": 20,
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_insert_threshold": 200,
    "autovacuum_vacuum_insert_scale_factor": 0,
    "autovacuum_freeze_max_age": FREEZE_MAX_AGE,
    "autovacuum_multixact_freeze_max_age": 10_000,
    "log_autovacuum_min_duration": 0,
    "log_line_prefix": "%m [%p] %b ",
    "max_worker_processes": 24,
    "max_parallel_workers": 20,
    "min_parallel_table_scan_size": 0,
    "min_parallel_index_scan_size": 0,
    "cyclone.autovacuum": "on",
}
# All of these can be changed while the server is running
CHOICES = {
    "autovacuum_vacuum_cost_delay": ("0", "0", "1ms"),
    "autovacuum_vacuum_cost_limit": (200, 10_000),
    "autovacuum_work_mem": ("64kB", "1MB", "-1"),
    "vacuum_freeze_min_age": (0, 50_000_000),
    "vacuum_freeze_table_age": (0, 150_000_000),
    "vacuum_failsafe_age": (0, 1_600_000_000),  # 0 is just above autovacuum_freeze_max_age
    "cyclone.autovacuum_max_parallel_workers": (2, 6, 6),
    "cyclone.adaptive_delay": ("off", "autovacuum", "on"),
    "cyclone.max_wal_rate": ("0", "0", "8MB"),
}
FOR_TEAMS = {"autovacuum_vacuum_cost_limit": 10_000}  # a small one with a delay feeds no more than one process
BY_ENGINE, WITH_WORKERS, WORKERS = "autovacuums by the engine", "autovacuums by the engine with workers", "autovacuums' workers"
BY_SERVER, FORCED, CANCELLED = "autovacuums by the server", "autovacuums to prevent wraparound, by the engine", "autovacuums cancelled"
NEEDED = (BY_ENGINE, WITH_WORKERS)
REPORT = re.compile(r'LOG:  (automatic (?:aggressive )?vacuum (?:to prevent wraparound )?of table "([^"]+)".*\n(?:\t.*\n)+)')
LAUNCHED = re.compile(r"parallel workers: \d+ planned, (\d+) launched")
SEVERAL_ROUNDS = re.compile(r"index scans: (?!0$|1$)\d+$", re.MULTILINE)
TROUBLE = re.compile(r".*\] autovacuum worker (?:ERROR|PANIC):  .*")
CANCELLATION = "canceling autovacuum task"
NOTED = re.compile(r"an autovacuum by pg_cyclone of relation (\d+) in database (\d+) was interrupted by a crash")
NOTE = struct.Struct("=2Iq3I")  # database, relation, end of its breaker, failures, cause, checksum
NOTES_HEADER = 16
RUNNING, CRASH = 1, 2  # causes
PATIENCE = 300
OLD_PERIODS = 8  # in each such period tables become old


class Key(NamedTuple):
    """A table, as the view knows it."""

    database: int
    relation: int


def settings(rng: random.Random, prefix: Path) -> dict:
    """Return the settings of a server of this prefix, those that may be changed by chance; its budget feeds teams until they are.

    Since 19 the server has a limit of its own.
    """
    version = run_program(prefix, "pg_config", "--version").stdout
    limit = {"autovacuum_max_parallel_workers": 6} if int(re.search(r"\d+", version)[0]) >= 19 else {}
    return {**CONFIG, **limit, **{name: rng.choice(values) for name, values in CHOICES.items()}, **FOR_TEAMS}


def choose_anew(conn: psycopg.Connection, rng: random.Random) -> None:
    """Change what may be changed beside running autovacuums."""
    alter_system(conn, *(f"SET {name} = '{rng.choice(values)}'" for name, values in CHOICES.items()))


def vary(conn: psycopg.Connection, chance: str, period: int) -> None:
    """In one of the periods of a run: change its settings, turn it on, and now and then make tables old."""
    choose_anew(conn, random.Random(f"{chance}:{period}:autovacuum"))
    turn_on(conn)
    if period % OLD_PERIODS == 0:
        use_up_xids(conn)


def use_up_xids(conn: psycopg.Connection) -> None:
    """Make all tables that are there old enough for autovacuum to come to them by force."""
    conn.execute("""
        CREATE OR REPLACE PROCEDURE use_up_xids(n int) LANGUAGE plpgsql AS
            $$BEGIN FOR i IN 1..n LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END$$
    """)
    conn.execute("SET synchronous_commit = off")
    conn.execute(f"CALL use_up_xids({FREEZE_MAX_AGE + 1000})")
    conn.execute("RESET synchronous_commit")


def turn_on(conn: psycopg.Connection) -> None:
    """Let autovacuum come to the tables."""
    alter_system(conn, "RESET autovacuum")


def turn_off(conn: psycopg.Connection, *, at_once: bool = False) -> None:
    """Wait until no table of this database is due by force; then `stop` autovacuum."""
    old = (
        "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'm', 't') AND relpersistence <> 't'"
        f" AND (age(relfrozenxid) > {FREEZE_MAX_AGE} OR mxid_age(relminmxid) > 10000)"
    )
    wait_until(lambda: conn.execute(old).fetchone() == (0,), "the end of all forced autovacuums", PATIENCE)
    stop(conn, at_once=at_once)


def stop(conn: psycopg.Connection, *, at_once: bool) -> None:
    """Turn autovacuum off, and see to it that it is off. The tables under way are finished, or given up at once."""
    alter_system(conn, "SET autovacuum = off")
    counted = "count(pg_terminate_backend(pid))" if at_once else "count(*)"
    processes = f"SELECT {counted} FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'"

    def nobody() -> bool:
        if conn.execute(processes).fetchone() != (0,):
            return False
        time.sleep(0.2)  # in which one that had been about to start is there
        return conn.execute(processes).fetchone() == (0,)

    wait_until(nobody, "the end of autovacuum", PATIENCE)


def notes(cluster: Cluster) -> set[Key]:
    """Return the tables that the engine is vacuuming for autovacuum, by its notes on disk."""
    return _read_notes(cluster, "running", RUNNING)


def crash_breakers(cluster: Cluster) -> set[Key]:
    """Return the tables whose circuit breakers crashes had opened by the server's start, by its notes on disk."""
    return _read_notes(cluster, "breakers", CRASH)


def _read_notes(cluster: Cluster, name: str, what: int) -> set[Key]:
    file = cluster.data / "pg_cyclone" / name
    if not file.exists():
        return set()
    data = file.read_bytes()[NOTES_HEADER:]
    found = NOTE.iter_unpack(data[: len(data) // NOTE.size * NOTE.size])
    return {Key(database, relation) for database, relation, _, _, cause, checksum in found if checksum and cause == what}


def in_rounds_by_the_server(log: str) -> set[str]:
    """Return the tables, with database and schema, that the server's own VACUUM has been through in several rounds."""
    return {table for report, table in REPORT.findall(log) if "phases: " not in report and SEVERAL_ROUNDS.search(report)}


def view(conn: psycopg.Connection) -> dict[Key, dict]:
    """Return the rows of cyclone.autovacuum."""
    cursor = conn.execute("SELECT * FROM cyclone.autovacuum_details")
    rows = [dict(zip((column.name for column in cursor.description), row, strict=True)) for row in cursor]
    return {Key(row["datid"], row["relid"]): row for row in rows}


def assert_no_failures(conn: psycopg.Connection) -> None:
    """The engine has not failed on any table since the server's start."""
    failed = [row for row in view(conn).values() if row["error_count"] or row["failures"] or row["breaker_open"]]
    assert not failed, f"the engine has failed in autovacuum: {failed[:5]}"


class Autovacuums:
    """The results of one server's autovacuums, by its log; `done` counts them."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.done: Counter = Counter()
        self._position = 0

    def read_log(self) -> list[str]:
        """Count what is new in the log, and return the errors that ended an autovacuum, cancellations not among them."""
        with open(self.cluster.log_file, "rb") as file:
            file.seek(self._position)
            text = file.read().decode(errors="replace")
            self._position = file.tell()
        for report, table in REPORT.findall(text):
            self._count(report, table.rsplit(".", 1)[1])
        self.done[CANCELLED] += text.count(CANCELLATION)
        return [line for line in TROUBLE.findall(text) if CANCELLATION not in line]

    def assert_no_errors(self, allowed: re.Pattern | None = None) -> None:
        """Count what is new in the log, as `read_log` does; no error may have ended an autovacuum, but those that are allowed."""
        errors = [line for line in self.read_log() if not (allowed and allowed.search(line))]
        assert not errors, f"autovacuum failed: {errors[:5]}"

    def _count(self, report: str, table: str) -> None:
        """Count one autovacuum: only the engine reports on phases."""
        if "phases: " not in report:
            self.done[BY_SERVER] += 1
            return
        workers = int(found[1]) if (found := LAUNCHED.search(report)) else 0
        self.done[BY_ENGINE] += 1
        self.done[f"{BY_ENGINE}: {table}"] += 1
        self.done[WITH_WORKERS] += workers > 0
        self.done[WORKERS] += workers
        self.done[FORCED] += "to prevent wraparound" in report

    def summary(self) -> Counter:
        """Return the counts, without those of single tables."""
        return Counter({what: number for what, number in self.done.items() if not what.startswith(f"{BY_ENGINE}: ")})

    def missing(self, *more: str) -> list[str]:
        """Return what a run should have come to, and has not."""
        return [what for what in (*NEEDED, *more) if not self.done[what]]
