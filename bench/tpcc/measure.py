"""One run for each setting, on equal copies of the loaded data: the load, and VACUUM of all large tables in the midst of it."""

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from beside import Pgbench, Transaction, in_thread
from circumstances import cores
from cyclone_lab.background import Background
from cyclone_lab.cluster import Cluster
from measure import LOAD_CONFIG, assert_room
from tpcc.load import LARGE_TABLES, SMALL_TABLES, Sizes, age, database_bytes, load
from tpcc.settings import Setting
from tpcc.transactions import MIX, pgbench_arguments

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "off",
    "bgwriter_delay": "50ms",  # as in 2004
    "bgwriter_lru_maxpages": 200,
    # No checkpoint begins during a run: only VACUUM makes the difference between one minute and the next.
    "checkpoint_timeout": "1h",
    "fsync": "on",
    "maintenance_work_mem": "256MB",
    "max_wal_size": "100GB",
    "min_wal_size": "100GB",
    "wal_level": "replica",
}
LEAST_BUFFERS_MB = 16
CALIBRATION_SECONDS = 8
SMALL_VACUUMS = 40  # in the longest run; the original had as many
PATIENCE_SECONDS = 60
LOOK_SECONDS = 0.01
NEW_ORDER = list(MIX).index("new_order")


@dataclass(frozen=True)
class Schedule:
    """The length of a run's parts, in seconds."""

    rampup: float  # of the load, before anything counts
    before: float  # without VACUUM of the large tables
    cap: float  # the longest that their VACUUM may take
    after: float  # of the load, after it

    @property
    def longest(self) -> float:
        """The longest time that counts."""
        return self.before + self.cap + self.after


@dataclass
class Run:
    """A run with one setting."""

    setting: Setting
    seconds: float  # that count
    transactions: int  # in these, of all five kinds
    failed: int  # with an error, at any time
    new_orders: list[tuple[float, float]]  # end, in seconds since the run counts; milliseconds
    vacuum_begin: float  # of all large tables, in seconds since the run counts
    vacuum_end: float
    finished: bool  # not broken off

    def latencies_before(self) -> list[float]:
        """Return the milliseconds of each New-Order that had ended when VACUUM began: the run's own time without it."""
        return [taken for end, taken in self.new_orders if end < self.vacuum_begin]

    def latencies_inside(self) -> list[float]:
        """Return the milliseconds of each New-Order that met the VACUUM."""
        return [taken for end, taken in self.new_orders if end >= self.vacuum_begin and end - taken / 1000 <= self.vacuum_end]


@dataclass
class Experiment:
    """All runs, and what they have in common."""

    sizes: Sizes
    schedule: Schedule
    clients: int
    database_bytes: int  # at the beginning
    buffers: str  # shared_buffers
    most: float | None = None  # transactions a second that were measured without a limit; None if the rate was given
    rate: float = 0.0  # transactions a second, the load
    runs: list[Run] = field(default_factory=list)

    def by_setting(self) -> list[list[Run]]:
        """Return the runs with each setting, in the order of the first ones."""
        settings: dict[str, list[Run]] = {}
        for run in self.runs:
            settings.setdefault(run.setting.title, []).append(run)
        return list(settings.values())


@contextmanager
def prepared(prefix: Path, config: dict, sizes: Sizes, *, schedule: Schedule, clients: int, buffers: float, base: Path,
             say: Callable[[str], None]):  # fmt: skip
    """Make the stopped cluster that every run starts from, and the experiment that has no runs yet.

    `buffers` is shared_buffers as a share of the database; `say` is called with each line of progress. Raises RuntimeError if there
    is too little room for the copies.
    """
    with Cluster.create(prefix, LOAD_CONFIG, base=base) as original:
        original.start()
        begin = time.perf_counter()
        original.sql("CREATE EXTENSION pg_prewarm")
        load(original, sizes, processes=cores())
        loaded = time.perf_counter()
        age(original, sizes)
        original.sql("CHECKPOINT")
        size = database_bytes(original)
        original.stop()
        original.config = {"shared_buffers": f"{max(LEAST_BUFFERS_MB, int(buffers * size / (1 << 20)))}MB", **config}
        assert_room(original)
        say(f"loaded {size >> 20} MB in {loaded - begin:.0f} s, aged in {time.perf_counter() - loaded:.0f} s")
        yield original, Experiment(sizes, schedule, clients, size, original.config["shared_buffers"])


def calibrate(original: Cluster, experiment: Experiment, *, base: Path) -> float:
    """Return how many transactions a second the server does if nothing limits the load."""
    with _copy(original, experiment, base) as server:
        with _load(server, experiment, experiment.schedule.rampup + CALIBRATION_SECONDS, None) as unlimited:
            time.sleep(experiment.schedule.rampup)
            begin = time.time()
            time.sleep(CALIBRATION_SECONDS)
            end = time.time()
            unlimited.end()
            transactions, _failed = unlimited.transactions()
    return len(_between(transactions, begin, end)) / (end - begin)


def run(original: Cluster, experiment: Experiment, setting: Setting, *, base: Path) -> Run:
    """Run the load, with VACUUM as this setting wants it, on a copy of the original; return what came of it."""
    schedule = experiment.schedule
    with _copy(original, experiment, base) as server:
        with (
            _load(server, experiment, schedule.rampup + schedule.longest, experiment.rate) as load,
            _small_tables_vacuumed(server, schedule.longest / SMALL_VACUUMS),
        ):
            time.sleep(schedule.rampup)
            begin = time.time()
            time.sleep(schedule.before)
            vacuum_begin, vacuum_end, finished = _vacuum(server, setting, schedule.cap)
            time.sleep(schedule.after)
            end = time.time()
            load.end()
            transactions, failed = load.transactions()
    counted = _between(transactions, begin, end)
    new_orders = [
        (round(transaction.end - begin, 4), round(transaction.seconds * 1000, 3))
        for transaction in counted
        if transaction.script == NEW_ORDER
    ]
    return Run(setting, end - begin, len(counted), failed, new_orders, vacuum_begin - begin, vacuum_end - begin, finished)


def _load(server: Cluster, experiment: Experiment, seconds: float, rate: float | None) -> Pgbench:
    """Start the load, which is to be ended after these seconds."""
    return Pgbench(server, [], rate, seconds=seconds + PATIENCE_SECONDS, clients=experiment.clients,
                   arguments=pgbench_arguments(experiment.sizes, clients=experiment.clients))  # fmt: skip


@contextmanager
def _copy(original: Cluster, experiment: Experiment, base: Path):
    """Start a server on a copy of the original, with full buffers, WAL files to write over, and a file system at rest."""
    with original.copy(base=base) as server:
        server.start()
        server.sql("CREATE EXTENSION pg_cyclone")
        for table in ("stock", "order_line", "customer"):  # more than there is room for, the last ones stay
            server.warm_up(table, wal=False)
        server.prepare_wal(experiment.database_bytes)
        os.sync()  # or the copy is written back while the clock runs
        yield server


@contextmanager
def _small_tables_vacuumed(server: Cluster, interval: float):
    """Have the small tables vacuumed every `interval` seconds for as long as the block takes, by PostgreSQL and without delay in each
    run, so that all runs have this in common.
    """
    done = threading.Event()

    def repeat() -> None:
        with server.connect() as conn:
            conn.execute("SET cyclone.enabled = off")
            conn.execute("SET vacuum_cost_delay = 0")
            while not done.wait(interval):
                conn.execute(f"VACUUM {', '.join(SMALL_TABLES)}")

    with in_thread(repeat, done):
        yield


def _vacuum(server: Cluster, setting: Setting, cap: float) -> tuple[float, float, bool]:
    """Vacuum the large tables, one after the other, but for no longer than `cap` seconds; return when that began and ended, since the
    epoch, and whether it has finished.
    """
    vacuum = Background(server, "postgres", f"VACUUM {', '.join(LARGE_TABLES)}", setting.parameters)
    begin = time.time()
    while vacuum.running and time.time() < begin + cap:
        time.sleep(LOOK_SECONDS)
    end = time.time()
    with suppress(psycopg.Error):  # it has ended after all
        vacuum.connection.cancel_safe()
    if (error := vacuum.wait(PATIENCE_SECONDS)) and not isinstance(error, psycopg.errors.QueryCanceled):
        raise error
    return begin, end, error is None


def _between(transactions: list[Transaction], begin: float, end: float) -> list[Transaction]:
    """Return the transactions that ended between these times; they are in the order of their ends."""
    first, last = (bisect_left(transactions, moment, key=lambda transaction: transaction.end) for moment in (begin, end))
    return transactions[first:last]
