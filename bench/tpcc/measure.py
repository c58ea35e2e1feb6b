"""One run for each setting, on equal copies of the loaded data: the load, and VACUUM of all large tables in the midst of it."""

import os
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from beside import Pgbench, Transaction, in_thread
from circumstances import cores
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
NEW_ORDER = list(MIX).index("new_order")
PACE_SECONDS = 0.5
PACE_QUERY = "SELECT rate, asleep, budget, limited_by FROM cyclone.pace_details WHERE pid = %s"


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
class Vacuum:
    """VACUUM of the large tables in one run; times in seconds since the run counts."""

    begin: float
    end: float
    scanned: float  # share of the heap blocks that were scanned, 0 to 1; 1 if it has finished
    finished: bool
    wal_bytes: int  # in an unfinished one on PostgreSQL 17: of the tables that were finished
    dirtied: int  # pages; in an unfinished one: of the tables that were finished
    table_seconds: dict[str, float]  # of those that were finished
    messages: list[str]  # what VERBOSE said
    pace: list[tuple]  # of pg_cyclone's, every PACE_SECONDS: when, and the columns of PACE_QUERY


@dataclass
class Run:
    """A run with one setting."""

    setting: Setting
    seconds: float = 0.0  # that count
    transactions: int = 0  # in these, of all five kinds
    failed: int = 0  # with an error, at any time
    new_orders: list[tuple[float, float]] = field(default_factory=list)  # end, in seconds since the run counts; milliseconds
    vacuum: Vacuum | None = None

    def latencies_before(self) -> list[float]:
        """Return the milliseconds of each New-Order that had ended when VACUUM began: the run's own time without it."""
        return [taken for end, taken in self.new_orders if self.vacuum is None or end < self.vacuum.begin]

    def latencies_outside(self) -> list[float]:
        """Return the milliseconds of each New-Order that never met the VACUUM."""
        return [taken for end, taken in self.new_orders if not self._meets_vacuum(end, taken)]

    def latencies_inside(self) -> list[float]:
        """Return the milliseconds of each New-Order that met the VACUUM."""
        return [taken for end, taken in self.new_orders if self._meets_vacuum(end, taken)]

    def _meets_vacuum(self, end: float, taken: float) -> bool:
        return self.vacuum is not None and end >= self.vacuum.begin and end - taken / 1000 <= self.vacuum.end


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


def run(original: Cluster, experiment: Experiment, setting: Setting, *, workers: int | None, base: Path) -> Run:
    """Run the load, with VACUUM as this setting wants it, on a copy of the original; return what came of it.

    `workers` is for VACUUM's PARALLEL, None leaves it out.
    """
    schedule = experiment.schedule
    with _copy(original, experiment, base) as server:
        with (
            _load(server, experiment, schedule.rampup + schedule.longest, experiment.rate) as load,
            _small_tables_vacuumed(server, schedule.longest / SMALL_VACUUMS),
        ):
            time.sleep(schedule.rampup)
            begin = time.time()
            time.sleep(schedule.before)
            # Without VACUUM, the run has the length of those whose VACUUM does not end soon.
            vacuum = _vacuum(server, setting, schedule.cap, workers) if setting.vacuums else time.sleep(schedule.cap / 2)
            time.sleep(schedule.after)
            end = time.time()
            load.end()
            transactions, failed = load.transactions()
    if vacuum:
        vacuum.begin -= begin
        vacuum.end -= begin
    counted = _between(transactions, begin, end)
    new_orders = [
        (round(transaction.end - begin, 4), round(transaction.seconds * 1000, 3))
        for transaction in counted
        if transaction.script == NEW_ORDER
    ]
    return Run(setting, end - begin, len(counted), failed, new_orders, vacuum)


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


def _vacuum(server: Cluster, setting: Setting, cap: float, workers: int | None) -> Vacuum:
    """Vacuum the large tables, one after the other, but for no longer than `cap` seconds; times are since the epoch."""
    with _Session(server, setting, workers) as session, server.connect() as observer:
        sizes = dict(observer.execute("SELECT oid::regclass::text, pg_relation_size(oid) / current_setting('block_size')::int"
                                      " FROM pg_class WHERE oid = ANY (%s::regclass[])", (list(LARGE_TABLES),)))  # fmt: skip
        begin = time.time()
        session.start()
        pace = []
        while not (finished := session.wait(PACE_SECONDS)) and time.time() < begin + cap:
            row = observer.execute(PACE_QUERY, (session.pid,)).fetchone()
            if row:
                pace.append((round(time.time() - begin, 3), *row))
        scanned = 1.0
        if not finished:
            done = sum(sizes[table] for table in list(session.table_seconds))
            row = observer.execute(
                "SELECT heap_blks_scanned FROM pg_stat_progress_vacuum WHERE pid = %s", (session.pid,)
            ).fetchone()
            scanned = (done + (row[0] if row else 0)) / sum(sizes.values())
            session.cancel()
            finished = len(session.table_seconds) == len(LARGE_TABLES)  # after all
        end = session.end
    wal_bytes, dirtied = parse_usage(session.messages)
    wal_bytes = max(wal_bytes, session.wal_bytes or 0)
    return Vacuum(begin, end, scanned, finished, wal_bytes, dirtied, session.table_seconds, session.messages, pace)


class _Session:
    """A session that vacuums the large tables, one after the other, in one command, in a thread of its own."""

    def __init__(self, server: Cluster, setting: Setting, workers: int | None):
        """Prepare it; to be used as a context manager. Raises psycopg.Error if the server does not know a setting."""
        self.messages: list[str] = []
        self.table_seconds: dict[str, float] = {}  # of each table that is finished
        self.wal_bytes: int | None = None  # that this session, without its workers, wrote; None if the server does not say
        self.end = 0.0  # since the epoch
        self._begin = 0.0  # of the table at hand
        self._error: psycopg.Error | None = None
        self._options = "VERBOSE" if workers is None else f"VERBOSE, PARALLEL {workers}"
        self._conn = server.connect()
        self._conn.add_notice_handler(self._hear)
        for name, value in setting.parameters.items():
            self._conn.execute("SELECT set_config(%s, %s, false)", (name, value))
        self.pid = self._conn.info.backend_pid
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> "_Session":
        return self

    def __exit__(self, *_exception) -> None:
        if self._thread.is_alive():
            self.cancel()
        self._conn.close()

    def start(self) -> None:
        """Send the command."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, but no longer than that; return whether it has come. Raises psycopg.Error."""
        self._thread.join(seconds)
        if self._error:
            raise self._error
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Break off what is not finished."""
        self._conn.cancel_safe()
        self._thread.join(PATIENCE_SECONDS)

    def _work(self) -> None:
        try:
            self._begin = time.perf_counter()
            self._conn.execute(f"VACUUM ({self._options}) {', '.join(LARGE_TABLES)}")
        except psycopg.errors.QueryCanceled:
            pass
        except psycopg.Error as error:
            self._error = error
            return
        self.end = time.time()
        if self._conn.info.server_version >= 180000:
            self._conn.execute("SELECT pg_stat_force_next_flush()")
            query = "SELECT wal_bytes::bigint FROM pg_stat_get_backend_wal(pg_backend_pid())"
            [(self.wal_bytes,)] = self._conn.execute(query)

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        """Keep a message of the server, and note the end of a table."""
        self.messages.append(f"{notice.message_primary}\n{notice.message_detail or ''}")
        if found := re.match(r'finished vacuuming ".*\.(\w+)"', notice.message_primary):
            if found[1] in LARGE_TABLES:
                now = time.perf_counter()
                self.table_seconds[found[1]] = now - self._begin
                self._begin = now


def parse_usage(messages: list[str]) -> tuple[int, int]:
    """Return the bytes of WAL and the number of pages dirtied in what VERBOSE said of all tables together."""
    text = "\n".join(messages)
    wal = re.findall(r"^WAL usage: .*?(\d+) bytes", text, re.MULTILINE)
    dirtied = re.findall(r"^buffer usage: .*?(\d+) dirtied", text, re.MULTILINE)
    return sum(map(int, wal)), sum(map(int, dirtied))


def _between(transactions: list[Transaction], begin: float, end: float) -> list[Transaction]:
    """Return the transactions that ended between these times; they are in the order of their ends."""
    first, last = (bisect_left(transactions, moment, key=lambda transaction: transaction.end) for moment in (begin, end))
    return transactions[first:last]
