"""How it is measured: every run on an equal copy of one data directory, warm and settled, the contenders taking turns."""

import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import psycopg

from circumstances import in_turn
from cyclone_lab import page_cache
from cyclone_lab.background import Background
from cyclone_lab.cluster import Cluster
from cyclone_lab.files import assert_free, table_files
from grid import Spread
from kernel import Use, data_files, use_of
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
    "wal_level": "replica",
}
LEAST_BUFFERS_MB = 2048
# Of a table on the device, which is not in them: with much less, a process may hold too few pages to read ahead.
COLD_BUFFERS_MB = 128
# Phases that the whole team does together; all the rest of a VACUUM is the leader's alone.
PARALLEL_PHASES = (
    *("heap scan", "index vacuum", "heap vacuum", "index cleanup"),
    *("heap copy", "TOAST copy", "TOAST index", "index build"),
)
OTHER_PHASE = "other"
# As pg_stat_progress_vacuum numbers them; the first and the last one are the others.
CORE_PHASES = (OTHER_PHASE, *PARALLEL_PHASES[:4], "truncation", OTHER_PHASE)
# As pg_stat_progress_cluster does: the TOAST table is part of the heap copy, and so is its index.
CORE_FULL_PHASES = (OTHER_PHASE, "heap copy", *[OTHER_PHASE] * 4, "index build", OTHER_PHASE)
# With which VACUUM FULL of PostgreSQL builds indexes as it comes
CORE_FULL_WORKERS = 2
SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Contender:
    """One way to run the VACUUM of a scenario."""

    engine: str  # "core" or "pg_cyclone"
    workers: int  # parallel workers beside the leader
    page_cache: str = "auto"  # cyclone.preserve_page_cache

    @property
    def name(self) -> str:
        return f"{self.label}, PARALLEL {self.workers}"

    @property
    def label(self) -> str:
        """The engine, with the setting that isn't the default."""
        return self.engine + {"auto": "", "on": " (page cache preserved)", "off": " (page cache not preserved)"}[self.page_cache]

    @property
    def is_core(self) -> bool:
        return self.engine == "core"

    @property
    def settings(self) -> tuple[str, ...]:
        """The statements with which a session becomes this contender's."""
        return (
            f"SET cyclone.enabled = {'off' if self.is_core else 'on'}",
            f"SET cyclone.preserve_page_cache = {self.page_cache}",
        )


@dataclass
class Run:
    """One timed VACUUM."""

    contender: Contender
    round: int
    seconds: float  # as the client sees it
    phases: dict[str, float]  # the leader's seconds by phase; sampled for PostgreSQL; empty if pg_cyclone reported none
    launched: int | None  # parallel workers that took part; None if the engine said nothing
    outcome: dict[str, int]  # what the VACUUM left behind; has to be the same for all
    bytes_after: int  # of the table with all that belongs to it
    messages: list[str]  # what VERBOSE said
    use: Use | None = None  # if its pages come through the page cache
    cached_before: int = 0  # bytes of the table in the page cache
    left_dirty_seconds: float = 0.0  # in which the system wrote back afterwards what was still to be written

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
    buffers: str  # shared_buffers
    runs: list[Run] = field(default_factory=list)

    def contenders(self) -> list[Contender]:
        """Return the contenders in the order in which they were named: PostgreSQL first, each with more and more workers."""
        return sorted({run.contender for run in self.runs}, key=lambda contender: (contender.label, contender.workers))

    def runs_of(self, contender: Contender) -> list[Run]:
        """Return the contender's runs by round."""
        return sorted((run for run in self.runs if run.contender == contender), key=lambda run: run.round)

    def median_seconds(self, contender: Contender) -> float:
        return median(run.seconds for run in self.runs_of(contender))

    def median_phases(self, contender: Contender) -> dict[str, float]:
        """Return the median seconds of each phase that is known."""
        runs = self.runs_of(contender)
        names = dict.fromkeys(name for run in runs for name in run.phases)
        return {name: median(run.phases.get(name, 0) for run in runs) for name in names}

    def core_alone(self) -> Contender:
        """Return PostgreSQL in one process, or with as few workers as it had."""
        return next(contender for contender in self.contenders() if contender.is_core)

    def best_core(self) -> Contender:
        """Return PostgreSQL with the PARALLEL setting that was the fastest here."""
        return min((contender for contender in self.contenders() if contender.is_core), key=self.median_seconds)

    def ratio(self, contender: Contender, baseline: Contender) -> Spread:
        """Return how many times as fast the contender is as the baseline: its runs are compared with those of the same round,
        which other work of the machine slowed down as well.
        """
        pairs = zip(self.runs_of(baseline), self.runs_of(contender))
        return Spread.of([base.seconds / run.seconds for base, run in pairs])


def contenders_for(scenario: Scenario, worker_counts: list[int], core_counts: list[int] | None = None) -> list[Contender]:
    """Return who competes: PostgreSQL with these counts, by default alone, with one worker and with a process an index, where there are
    several; pg_cyclone with each count.
    """
    if core_counts is None:
        core_counts = [0, 1, scenario.indexes - 1] if scenario.indexes > 1 else [0]
    if scenario.full:
        core_counts = [0, CORE_FULL_WORKERS]
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
    with made(scenario, prefix, config, rows=rows, base=base, say=say) as (original, result), ExitStack() as stack:
        shared = stack.enter_context(original.copy(base=base)) if scenario.repeatable else None
        if shared:
            _warm_up(shared, scenario)
            shared.sql(scenario.vacuum_statement(0))
        for number in range(rounds):
            for run in run_round(original, result, contenders, number, base=base, shared=shared):
                say(f"{scenario.name}, round {run.round} of {rounds}, {run.contender.name}: {run.seconds:.3f} s")
    return result


def run_round(
    original: Cluster, result: Result, contenders: list[Contender], number: int, *, base: Path | None, shared: Cluster | None = None
) -> Iterator[Run]:
    """Run each contender once, and yield each run when the result has it; `number` is from 0.

    Each round begins with another contender. All have the `shared` cluster, if there is one.
    """
    scenario = result.scenario
    for contender in in_turn(contenders, number):
        with nullcontext(shared) if shared else original.copy(base=base) as server:
            _warm_up(server, scenario)
            if scenario.page_cache_dropped:
                page_cache.drop(data_files(original) + data_files(server))
            run = _timed_vacuum(server, scenario, contender, number + 1)
        result.runs.append(run)
        yield run


@contextmanager
def made(
    scenario: Scenario,
    prefix: Path,
    config: dict,
    *,
    rows: int,
    base: Path | None,
    say: Callable[[str], None],
):
    """Make the stopped cluster that every run starts from, and the empty result that knows its sizes.

    After the setup no query may read the table: that would prune its pages, which is the work of the VACUUM to measure.
    """
    statements = scenario.setup_statements(rows)
    begin = time.perf_counter()
    with Cluster.create(prefix, LOAD_CONFIG, base=base) as original:
        sizes = _load(original, statements)
        say(f"{scenario.name}: loaded {rows:,} rows in {time.perf_counter() - begin:.0f} s")
        original.config = {"shared_buffers": _buffers(scenario, sum(sizes)), **config, **scenario.settings}
        assert_room(original, times=3 if scenario.logged else 1.05)
        yield original, Result(scenario, rows, *sizes, original.config["shared_buffers"])


def _load(original: Cluster, statements: list[list[str]]) -> list[int]:
    """Start a new cluster, run the statements and stop it; return the bytes of the table and of its indexes."""
    original.start()
    with original.connect() as conn:
        conn.execute("CREATE EXTENSION pg_prewarm")
        conn.execute("CREATE EXTENSION pg_visibility")
        for statement, *at_the_same_time in statements:
            others = [Background(original, "postgres", other) for other in at_the_same_time]
            conn.execute(statement)
            for other in others:
                other.finish(None)
        conn.execute("SELECT pg_stat_force_next_flush()")
        conn.execute("CHECKPOINT")
        sizes = conn.execute(f"SELECT pg_table_size('{TABLE}'), pg_indexes_size('{TABLE}')").fetchone()
    original.stop()
    return list(sizes)


def _buffers(scenario: Scenario, size: int) -> str:
    """Return the shared_buffers for a table that has this many bytes with its indexes."""
    megabytes = size / (1 << 20)
    if scenario.is_cold:
        return f"{COLD_BUFFERS_MB}MB"
    return f"{max(LEAST_BUFFERS_MB, int(1.2 * megabytes))}MB"


def assert_room(original: Cluster, *, times: float = 3) -> None:
    """Raise RuntimeError unless `times` its size is free beside the original: by default a copy and WAL files for an image of each
    of its pages.
    """
    size = sum(file.stat().st_size for file in original.data.rglob("*") if file.is_file())
    assert_free(original.home.parent, times * size, "choose another folder with --base, or smaller tables")


def _warm_up(cluster: Cluster, scenario: Scenario) -> None:
    """Bring the cluster into the state of a server in use, starting it if it does not run.

    The table is in its buffers as far as they go, unless it is to be read from the device; it has WAL files to write over,
    enough for an image of every page; and the file system is at rest. Without these files, the time to make new ones would
    drown the differences.
    """
    if not cluster.running:
        cluster.start()
    cluster.warm_up(TABLE, wal=scenario.logged, pages=not scenario.is_cold)
    os.sync()  # or the copy is written back while the clock runs


def _timed_vacuum(cluster: Cluster, scenario: Scenario, contender: Contender, number: int) -> Run:
    """Run the scenario's VACUUM as this contender and return what it took and what it did."""
    messages = []
    statement = scenario.vacuum_statement(contender.workers)
    with (
        cluster.connect() as conn,
        PhaseSampler(cluster, conn.info.backend_pid, full=scenario.full) as sampler,
    ):
        conn.add_notice_handler(lambda notice: messages.append(f"{notice.message_primary}\n{notice.message_detail or ''}"))
        for setting in contender.settings:
            conn.execute(setting)
        if scenario.full and contender.is_core:
            conn.execute(f"SET max_parallel_maintenance_workers = {contender.workers}")
            statement = scenario.vacuum_statement(0).replace(", PARALLEL 0", "")
        files = table_files(cluster, conn, TABLE) if scenario.page_cache_dropped else []
        before = use_of(cluster, conn, files) if files else None
        sampler.start()
        start = time.perf_counter()
        conn.execute(statement)
        seconds = time.perf_counter() - start
        sampled = sampler.stop()
        use = use_of(cluster, conn, files) - before if files else None
        start = time.perf_counter()
        if files:
            os.sync()
        left_dirty_seconds = time.perf_counter() - start
        outcome = conn.execute(
            "SELECT relpages, reltuples::bigint, relallvisible, (pg_visibility_map_summary(oid)).all_visible"
            f" FROM pg_class WHERE oid = '{TABLE}'::regclass"
        )
        names = [column.name for column in outcome.description]
        state = dict(zip(names, outcome.fetchone()))
        if scenario.full:  # how rows fall on pages is not quite the same
            state = {"reltuples": state["reltuples"]}
        [(bytes_after,)] = conn.execute(f"SELECT pg_total_relation_size('{TABLE}')")
    phases = sampled if contender.is_core else parse_phases(messages)
    return Run(contender, number, seconds, phases, parse_launched(messages), state, bytes_after,
               messages, use, before.cached if before else 0, left_dirty_seconds)  # fmt: skip


class PhaseSampler:
    """Asks pg_stat_progress_vacuum or _cluster every SAMPLE_SECONDS in which phase a VACUUM is.

    Core does not report the time of its phases in any other way. All contenders are sampled, so that it disturbs all alike: it takes
    about a hundredth of a core.
    """

    def __init__(self, cluster: Cluster, backend: int, *, full: bool = False):
        """Prepare to watch the server process with this ID, for VACUUM FULL or not; to be used as a context manager."""
        self._connection = cluster.connect()
        command, phase = ("CLUSTER", "param2") if full else ("VACUUM", "param1")
        self._phases = CORE_FULL_PHASES if full else CORE_PHASES
        self._query = f"SELECT {phase} FROM pg_stat_get_progress_info('{command}') WHERE pid = {backend}"
        self._begin = 0.0
        self._samples: list[tuple[float, str | None]] = []  # None: no VACUUM there
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "PhaseSampler":
        return self

    def __exit__(self, *_exception) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self._connection.close()

    def start(self) -> None:
        """Begin to watch."""
        self._begin = time.perf_counter()
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """End watching; return each phase's seconds since the start, to within SAMPLE_SECONDS. Shorter ones may be missing."""
        end = time.perf_counter()
        self._end.set()
        self._thread.join()
        samples = [(moment, phase) for moment, phase in self._samples if moment < end and phase is not None]
        if not samples:
            return {OTHER_PHASE: end - self._begin}
        phases = defaultdict(float)
        start, phase = self._begin, samples[0][1]
        # A phase seen first in one sample began halfway between that and the sample before.
        for (before, _), (after, next_phase) in pairwise(samples):
            if next_phase != phase:
                phases[phase] += (before + after) / 2 - start
                start, phase = (before + after) / 2, next_phase
        phases[phase] += end - start
        return dict(phases)

    def _sample(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            try:
                self._take()
            except psycopg.Error:  # the server goes down, and the VACUUM with it
                return

    def _take(self) -> None:
        row = self._connection.execute(self._query, prepare=True).fetchone()
        self._samples.append((time.perf_counter(), self._phases[row[0]] if row else None))


def parse_phases(messages: list[str]) -> dict[str, float]:
    """Return the seconds of each phase in a line like `phases: heap scan 1.234 s, truncation 0.010 s`; {} without one."""
    for line in "\n".join(messages).splitlines():
        if line.startswith("phases: "):
            phases = line.removeprefix("phases: ").split(", ")
            return {name: float(seconds) for name, seconds, _ in (phase.rsplit(" ", 2) for phase in phases)}
    return {}


def parse_launched(messages: list[str]) -> int | None:
    """Return the second number of pg_cyclone's line like `parallel workers: 2 planned, 1 launched`, or the first one of
    PostgreSQL's, like `launched 1 parallel vacuum worker for index vacuuming (planned: 2)`; None if there is neither.
    """
    text = "\n".join(messages)
    found = re.search(r"^parallel workers: \d+ planned, (\d+) launched$", text, re.MULTILINE)
    found = found or re.search(r"^launched (\d+) parallel vacuum workers? for index vacuuming", text, re.MULTILINE)
    return int(found[1]) if found else None
