"""Two tables that change all the time, and autovacuum with the server's defaults: who keeps them small?

The load is pgbench at half of what the machine can do. Each transaction updates four rows of `updated`, an indexed column
among them, and replaces four rows of `replaced`, that is deletes and inserts them. The rows are drawn at random, by each
client from rows of its own, so that nobody waits for a row. Both tables always have as many rows, of the same size, as at
the start, when they were loaded, indexed and frozen. So each byte that heap and indexes have beyond the start is bloat: space
for dead rows, or space that dead rows left and nobody has used again. It includes what a btree takes when it is filled at random,
which no VACUUM changes. Files don't shrink while rows at their end are in use: bloat is a high-water mark. Dead rows are as the
server's statistics have them (n_dead_tup), which is when the next autovacuum comes.

Autovacuum has the server's defaults: a look at the database each minute, a table when a fifth of its rows is dead, three workers,
200 cost a 2 ms for all of them together. So dead rows pile up until a fifth is dead and the minute over, whichever engine vacuums; what
comes on top while autovacuum is under way is what can be won. In tables so small that it takes seconds, that is next to
nothing.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, quantiles

from autovacuum.processes import AUTOVACUUM, PARALLEL, AutovacuumTime, server_seconds
from cyclone_lab.cluster import Cluster
from cyclone_lab.files import assert_free
from cyclone_lab.postgres import program_env, program_path
from measure import LOAD_CONFIG

WAL_GB = 4
CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "on",
    "log_autovacuum_min_duration": 0,
    "fsync": "off",
    # Checkpoints come, as ten minutes of WAL are too much to keep; without images of pages after them they are hardly felt.
    "full_page_writes": "off",
    "max_wal_size": f"{WAL_GB}GB",
    "min_wal_size": f"{WAL_GB}GB",
    "wal_level": "replica",
}
TABLES = ("updated", "replaced")
BUFFERS = 0.25  # shared_buffers as a part of the database
WIDTH = 900  # bytes of a row's text: eight rows a page
ROWS_A_TRANSACTION = 4
CLIENTS = 8
SHARE_OF_MOST = 0.5
GROWTH = 4  # by what factor a database may grow in a run
RAMPUP_SECONDS, CALIBRATION_SECONDS = 5, 10
SAMPLE_SECONDS = 5
CORE, CYCLONE = "PostgreSQL", "pg_cyclone"
CONTENDERS = {
    CORE: {"cyclone.autovacuum": "off"},
    CYCLONE: {"cyclone.autovacuum": "on"},
    f"{CYCLONE}, target auto": {"cyclone.autovacuum": "on", "cyclone.autovacuum_latency_target": "auto"},
}
_ENDED = re.compile(r'automatic (?:aggressive )?vacuum[^"\n]*table "postgres\.public\.(\w+)".*?elapsed: ([\d.]+) s', re.DOTALL)
_SIZES = """
    SELECT c.relname, pg_relation_size(c.oid), pg_indexes_size(c.oid), s.n_dead_tup
    FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid WHERE c.relname = ANY (%s) ORDER BY 1
"""


@dataclass(frozen=True)
class Sample:
    """A table at one moment."""

    second: float  # since the load began
    table: str
    heap: int  # bytes
    indexes: int
    dead_rows: int


@dataclass
class Run:
    """What came of the load with one way to autovacuum."""

    name: str
    settings: dict[str, str]
    seconds: float = 0.0
    transactions: int = 0
    percentiles: dict[int, float] = field(default_factory=dict)  # ms, from when the rate wanted a transaction to begin
    at_work_p95: float = 0.0  # ms, from when a client was free for it
    autovacuum_seconds: float = 0.0  # of processor time
    parallel_seconds: float = 0.0
    server_seconds: float = 0.0  # of the server with all of these
    wal_bytes: int = 0
    autovacuums: list[tuple[str, float]] = field(default_factory=list)  # that came to their end: table, seconds
    vacuumed_by: dict[str, int] = field(default_factory=dict)  # how many of them by "engine" and "server"
    samples: list[Sample] = field(default_factory=list)

    def over_time(self, value: Callable[[Sample], int]) -> tuple[list[float], list[int]]:
        """Return the moments of the samples, and at each the sum of this value for all tables."""
        totals: dict[float, int] = {}
        for sample in self.samples:
            totals[sample.second] = totals.get(sample.second, 0) + value(sample)
        return list(totals), list(totals.values())

    def bloat(self) -> tuple[list[float], list[int]]:
        """Return the moments of the samples, and at each the bytes beyond those at the start."""
        seconds, sizes = self.over_time(lambda sample: sample.heap + sample.indexes)
        return seconds, [size - sizes[0] for size in sizes]

    def dead_rows(self) -> tuple[list[float], list[int]]:
        return self.over_time(lambda sample: sample.dead_rows)

    def mean_dead_rows(self) -> float:
        return mean(self.dead_rows()[1])


@dataclass
class Churn:
    """All runs, and what they have in common."""

    rows: int  # of each table
    minutes: float
    database_bytes: int
    buffers: str
    most: float = 0.0  # transactions a second, without a limit and without autovacuum
    rate: float = 0.0
    runs: list[Run] = field(default_factory=list)

    def core(self) -> Run | None:
        return next((run for run in self.runs if run.name == CORE), None)


@contextmanager
def prepared(prefix: Path, config: dict, *, rows: int, minutes: float, base: Path):
    """Make the stopped cluster that every run starts from, and the Churn that has no runs yet.

    Raises RuntimeError if there is too little room for the copies.
    """
    with Cluster.create(prefix, LOAD_CONFIG, base=base) as original:
        original.start()
        with original.connect() as conn:
            conn.execute("CREATE EXTENSION pg_prewarm")
            for table in TABLES:
                conn.execute(f"CREATE TABLE {table} (id int, v int, filler text)")
                conn.execute(
                    f"INSERT INTO {table} SELECT i, hashint4(i), repeat('x', {WIDTH}) FROM generate_series(0, {rows - 1}) i"
                )
                conn.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (id)")
                conn.execute(f"CREATE INDEX ON {table} (v)")
            conn.execute("VACUUM (FREEZE, ANALYZE)")
            [(size,)] = conn.execute(
                "SELECT sum(pg_total_relation_size(name::regclass))::bigint FROM unnest(%s::text[]) name", (list(TABLES),)
            )
            conn.execute("CHECKPOINT")
        original.stop()
        original.config = {"shared_buffers": f"{max(16, int(BUFFERS * size / (1 << 20)))}MB", **config}
        assert_free(base, GROWTH * size + 2 * (WAL_GB << 30), "choose another folder with --base, or fewer --churn-rows")
        yield original, Churn(rows, minutes, size, original.config["shared_buffers"])


def calibrate(original: Cluster, churn: Churn, *, base: Path) -> float:
    """Return how many transactions a second the server does if nothing limits the load, without autovacuum."""
    with _server(original, churn, {"autovacuum": "off"}, base) as server, tempfile.TemporaryDirectory(dir=base) as folder:
        begin = time.time() + RAMPUP_SECONDS
        with _load(server, churn, Path(folder), RAMPUP_SECONDS + CALIBRATION_SECONDS, rate=None) as load:
            _finish(load)
        return len(_read_log(Path(folder), begin)) / CALIBRATION_SECONDS


def run(original: Cluster, churn: Churn, name: str, settings: dict[str, str], *, base: Path) -> Run:
    """Run the load on a copy of the original with these settings of autovacuum; return what came of it."""
    result = Run(name, settings)
    seconds = round(churn.minutes * 60)
    with _server(original, churn, settings, base) as server, tempfile.TemporaryDirectory(dir=base) as folder:
        postmaster = server.postmaster.pid
        used = server_seconds(postmaster)
        [(lsn,)] = server.sql("SELECT pg_current_wal_lsn()")
        begin = time.time()
        with (
            server.connect() as conn,
            AutovacuumTime(postmaster) as autovacuum_time,
            _load(server, churn, Path(folder), seconds, rate=churn.rate) as load,
        ):
            for number in range(1 + seconds // SAMPLE_SECONDS):
                time.sleep(max(0, begin + number * SAMPLE_SECONDS - time.time()))
                moment = round(time.time() - begin, 1)
                result.samples += [Sample(moment, *row) for row in conn.execute(_SIZES, (list(TABLES),))]
            _finish(load)
            result.seconds = time.time() - begin
            result.vacuumed_by = dict(
                zip(("engine", "server"), conn.execute(
                    "SELECT coalesce(sum(engine_count), 0)::int, coalesce(sum(server_count), 0)::int"
                    " FROM cyclone.autovacuum WHERE relid = ANY (%s::regclass[])", (list(TABLES),)).fetchone())
            )  # fmt: skip
        [(result.wal_bytes,)] = server.sql(f"SELECT (pg_current_wal_lsn() - '{lsn}')::bigint")
        result.server_seconds = server_seconds(postmaster) - used
        result.autovacuum_seconds = autovacuum_time.seconds(AUTOVACUUM)
        result.parallel_seconds = autovacuum_time.seconds(PARALLEL)
        result.autovacuums = [(table, float(elapsed)) for table, elapsed in _ENDED.findall(server.log) if table in TABLES]
        latencies = _read_log(Path(folder), begin + RAMPUP_SECONDS)
    result.transactions = len(latencies)
    cuts = quantiles((whole for whole, _ in latencies), n=100, method="inclusive")
    result.percentiles = {percent: cuts[percent - 1] for percent in (50, 95, 99)}
    result.at_work_p95 = quantiles((at_work for _, at_work in latencies), n=100, method="inclusive")[94]
    return result


@contextmanager
def _server(original: Cluster, churn: Churn, settings: dict[str, str], base: Path):
    """Start a server on a copy of the original, with full buffers, WAL files to write over, and a file system at rest."""
    with original.copy(base=base) as server:
        server.config |= settings
        server.start()
        server.sql("CREATE EXTENSION pg_cyclone")
        server.prepare_wal(churn.database_bytes)
        for table in TABLES:  # more than there is room for
            server.warm_up(table, wal=False)
        os.sync()  # or the copy is written back while the clock runs
        yield server


def _script(rows: int) -> str:
    """Return pgbench's transaction: rows at random, of those whose number leaves the client's as the rest."""
    names = [f"id{number}" for number in range(ROWS_A_TRANSACTION)]
    draw = "".join(f"\\set {name} random(0, {rows // CLIENTS - 1}) * {CLIENTS} + :client_id\n" for name in names)
    ids = ", ".join(f":{name}" for name in names)
    return (
        f"{draw}\\set v random(-2000000000, 2000000000)\nBEGIN;\nUPDATE updated SET v = :v WHERE id IN ({ids});\n"
        f"WITH gone AS (DELETE FROM replaced WHERE id IN ({ids}) RETURNING id)\n"
        f"INSERT INTO replaced SELECT id, :v, repeat('x', {WIDTH}) FROM gone;\nEND;\n"
    )


@contextmanager
def _load(server: Cluster, churn: Churn, folder: Path, seconds: int, *, rate: float | None):
    """Start pgbench, which logs to the empty folder; it is killed if it still runs in the end."""
    (folder / "script.sql").write_text(_script(churn.rows))
    command = [program_path(server.prefix, "pgbench"), "--no-vacuum", "--protocol=prepared", f"--client={CLIENTS}"]
    command += ["--random-seed=1", "--log", f"--log-prefix={folder / 'log'}", f"--time={seconds}"]
    command += [f"--file={folder / 'script.sql'}"]
    command += [f"--rate={rate:.1f}"] if rate else []
    env = program_env(server.prefix, **server.client_env())
    process = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _finish(load: subprocess.Popen) -> None:
    """Wait for pgbench's end; raise RuntimeError with its output if it failed or a client gave up."""
    output, _ = load.communicate()
    if load.returncode != 0:
        raise RuntimeError(f"pgbench failed with status {load.returncode}:\n{output}")


def _read_log(folder: Path, begin: float) -> list[tuple[float, float]]:
    """Return the milliseconds of each transaction that ended after `begin`: from when the rate wanted it to begin, and from when a
    client was free for it.
    """
    latencies = []
    for log in folder.glob("log*"):
        with open(log) as lines:
            for line in lines:
                _client, _number, microseconds, _script, epoch, epoch_microseconds, *lag = line.split()
                if int(epoch) + int(epoch_microseconds) / 1e6 >= begin:
                    whole = int(microseconds)
                    latencies.append((whole / 1000, (whole - int(lag[0] if lag else 0)) / 1000))
    return latencies
