"""How it is measured: every run on an equal copy of one data directory, warm and settled, the contenders taking turns."""

import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from cyclone_lab.cluster import Cluster
from scenarios import TABLE, Scenario

LOAD_CONFIG = {
    "autovacuum": "off",
    "fsync": "off",
    "shared_buffers": "2GB",
    "maintenance_work_mem": "1GB",
    "wal_level": "minimal",
    "max_wal_senders": 0,
    "max_wal_size": "256MB",  # little WAL is left behind, so little has to be copied
    "min_wal_size": "32MB",
}
CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "fsync": "off",
    "full_page_writes": "on",
    "maintenance_work_mem": "256MB",
    "max_parallel_maintenance_workers": 64,
    "max_parallel_workers": 64,
    "max_wal_size": "100GB",
    "min_wal_size": "100GB",
    "max_worker_processes": 64,
    "shared_buffers": "2GB",
    "wal_level": "replica",
}
WAL_FILE_BYTES = 16 << 20
# What the whole team does together; all the rest of a VACUUM is the leader's alone.
PARALLEL_PHASES = ("heap scan", "index vacuum", "heap vacuum", "index cleanup")


@dataclass(frozen=True)
class Contender:
    """One way to run the VACUUM of a scenario."""

    engine: str  # "core" or "pg_cyclone"
    workers: int  # parallel workers beside the leader

    @property
    def name(self) -> str:
        return f"{self.engine}, PARALLEL {self.workers}"


@dataclass
class Run:
    """One timed VACUUM."""

    contender: Contender
    round: int
    seconds: float  # as the client sees it
    phases: dict[str, float]  # the leader's seconds by phase; empty if the engine reported none
    launched: int | None  # parallel workers that pg_cyclone says took part; None if it said nothing
    outcome: dict[str, int]  # what the VACUUM left behind; has to be the same for all
    messages: list[str]  # what VERBOSE said

    @property
    def serial_share(self) -> float | None:
        """The part of the time in which the leader worked alone, 0 to 1; None if unknown."""
        if not self.phases:
            return None
        return 1 - sum(self.phases.get(phase, 0) for phase in PARALLEL_PHASES) / self.seconds


@dataclass
class Result:
    """All runs of one scenario, and the size of what was vacuumed."""

    scenario: Scenario
    rows: int
    heap_bytes: int
    index_bytes: int
    runs: list[Run] = field(default_factory=list)

    def contenders(self) -> list[Contender]:
        """Return the contenders in the order of their first run, the one to compare with first."""
        return list(dict.fromkeys(run.contender for run in self.runs))

    def runs_of(self, contender: Contender) -> list[Run]:
        return [run for run in self.runs if run.contender == contender]


def contenders_for(scenario: Scenario, worker_counts: list[int]) -> list[Contender]:
    """Return who competes: core alone, core with a process an index where there are several, pg_cyclone with each count."""
    core_counts = [0, max(worker_counts)] if scenario.indexes > 1 else [0]
    counts = [("core", core_counts), ("pg_cyclone", worker_counts)]
    return [Contender(engine, workers) for engine, numbers in counts for workers in dict.fromkeys(numbers)]


def measure(
    scenario: Scenario,
    prefix: Path,
    config: dict,
    *,
    rows: int,
    rounds: int,
    worker_counts: list[int],
    base: Path | None = None,
    say: Callable[[str], None] = print,
) -> Result:
    """Run all contenders `rounds` times on servers with these settings, in another order each round; return the times.

    `base` is the folder for the data, by default the system's for temporary files; `say` is called with each line of
    progress. Raises RuntimeError if there is too little room for the copies.
    """
    contenders = contenders_for(scenario, worker_counts)
    with _original(scenario, prefix, config, rows, base) as (original, result), ExitStack() as stack:
        shared = stack.enter_context(original.copy(base=base)) if scenario.repeatable else None
        if shared:
            _warm_up(shared)
            shared.sql(scenario.vacuum_statement(0))
        for number in range(rounds):
            turn = number % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                with nullcontext(shared) if shared else original.copy(base=base) as server:
                    _warm_up(server)
                    run = _timed_vacuum(server, scenario, contender, number + 1)
                result.runs.append(run)
                say(f"{scenario.name}, round {run.round} of {rounds}, {contender.name}: {run.seconds:.3f} s")
    return result


@contextmanager
def _original(scenario: Scenario, prefix: Path, config: dict, rows: int, base: Path | None):
    """Make the stopped cluster that every run starts from, and the empty result that knows its sizes.

    After the setup no query may read the table: that would prune its pages, which is the work of the VACUUM to measure.
    """
    with Cluster.create(prefix, LOAD_CONFIG, base=base) as original:
        original.start()
        with original.connect() as conn:
            conn.execute("CREATE EXTENSION pg_prewarm")
            conn.execute("CREATE EXTENSION pg_visibility")
            for statement in scenario.setup_statements(rows):
                conn.execute(statement)
            conn.execute("CHECKPOINT")
            sizes = conn.execute(f"SELECT pg_table_size('{TABLE}'), pg_indexes_size('{TABLE}')").fetchone()
        original.stop()
        original.config = config
        _assert_room(original)
        yield original, Result(scenario, rows, *sizes)


def _assert_room(original: Cluster) -> None:
    """Raise RuntimeError unless a copy and WAL files for an image of each of its pages fit beside the original."""
    size = sum(file.stat().st_size for file in original.data.rglob("*") if file.is_file())
    free = shutil.disk_usage(original.home).free
    needed = 3 * size
    if free < needed:
        raise RuntimeError(
            f"{original.home.parent} has {free >> 20} MB left and the runs need {needed >> 20} MB:"
            " choose another folder with --base, or fewer rows with --rows"
        )


def _warm_up(cluster: Cluster) -> None:
    """Bring the cluster into the state of a server in use, starting it if it does not run.

    The table is in its buffers, it has old WAL files to write over, enough for an image of every page, and the file
    system is at rest. Without the old files, the time to make new ones would drown the differences.
    """
    if not cluster.running:
        cluster.start()
        with cluster.connect() as conn:
            [heap_and_indexes] = conn.execute(f"SELECT pg_total_relation_size('{TABLE}')").fetchone()
            for _ in range(1 + int(1.2 * heap_and_indexes) // WAL_FILE_BYTES):
                conn.execute("SELECT pg_logical_emit_message(false, 'bench', repeat('x', %s))", (WAL_FILE_BYTES,))
            conn.execute("CHECKPOINT")  # makes them old
    cluster.sql(
        f"SELECT pg_prewarm('{TABLE}'), pg_prewarm('{TABLE}', fork => 'vm'),"
        f" (SELECT sum(pg_prewarm(indexrelid)) FROM pg_index WHERE indrelid = '{TABLE}'::regclass)"
    )
    os.sync()  # or the copy is written back while the clock runs


def _timed_vacuum(cluster: Cluster, scenario: Scenario, contender: Contender, number: int) -> Run:
    """Run the scenario's VACUUM as this contender and return what it took and what it did."""
    messages = []
    with cluster.connect() as conn:
        conn.add_notice_handler(lambda notice: messages.append(f"{notice.message_primary}\n{notice.message_detail or ''}"))
        conn.execute(f"SET cyclone.enabled = {'on' if contender.engine == 'pg_cyclone' else 'off'}")
        start = time.perf_counter()
        conn.execute(scenario.vacuum_statement(contender.workers))
        seconds = time.perf_counter() - start
        outcome = conn.execute(
            "SELECT relpages, reltuples::bigint, relallvisible, (pg_visibility_map_summary(oid)).all_visible"
            f" FROM pg_class WHERE oid = '{TABLE}'::regclass"
        )
        names = [column.name for column in outcome.description]
        state = dict(zip(names, outcome.fetchone()))
    return Run(contender, number, seconds, parse_phases(messages), parse_launched(messages), state, messages)


def parse_phases(messages: list[str]) -> dict[str, float]:
    """Return the seconds of each phase in a line like `phases: heap scan 1.234 s, truncation 0.010 s`; {} without one."""
    for line in "\n".join(messages).splitlines():
        if line.startswith("phases: "):
            phases = line.removeprefix("phases: ").split(", ")
            return {name: float(seconds) for name, seconds, _ in (phase.rsplit(" ", 2) for phase in phases)}
    return {}


def parse_launched(messages: list[str]) -> int | None:
    """Return the second number of a line like `parallel workers: 2 planned, 1 launched`; None without one."""
    found = re.search(r"^parallel workers: \d+ planned, (\d+) launched$", "\n".join(messages), re.MULTILINE)
    return int(found[1]) if found else None
