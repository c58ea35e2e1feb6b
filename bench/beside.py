"""Work beside something else: a VACUUM without a break, watched; pgbench; any function."""

import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Literal

from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import program_env, program_path

PERCENTILE = 95
CLIENTS = 8
MOST_SECONDS = 3
CANCEL_SECONDS = 0.5
AUTO = {"cyclone.latency_target": "auto"}
# The limit of the VACUUM; and how many times the table has been scanned.  A rate isn't known before a VACUUM has gone on for a
# quarter of a second, when one at full speed is through.
QUERY = """
    SELECT limited_by, vacuum_count + coalesce(heap_blks_scanned::float8 / nullif(heap_blks_total, 0), 0)
    FROM pg_stat_user_tables LEFT JOIN pg_stat_progress_vacuum USING (relid) LEFT JOIN cyclone.pace USING (pid)
    WHERE pg_stat_user_tables.relid = {}::regclass
"""
TYPES = ["text", "float8"]


@contextmanager
def in_thread(run, is_over: threading.Event | None = None):
    """Call `run` in a thread beside the block. Its end sets `is_over`, waits for the thread, and raises what that has raised."""
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(run)
        try:
            yield
        finally:
            if is_over:
                is_over.set()
        future.result()


class VacuumBeside:
    """VACUUMs of a table, one after the other while the block runs, as the `settings` say. Raises psycopg.Error at the block's end
    if one failed.

    `samples` has what QUERY returned every `interval` seconds, after the time since the epoch.
    """

    def __init__(self, cluster: Cluster, settings: dict[str, str], *, interval: float, table: str = "t"):
        self.samples: list[tuple[float, str | None, float]] = []
        self._cluster, self._settings, self._interval, self._table = cluster, settings, interval, table
        self._done = threading.Event()
        self._error: psycopg.Error | None = None

    def __enter__(self) -> "VacuumBeside":
        self._conn, self._watcher = self._cluster.connect(), self._cluster.connect()
        self._threads = [threading.Thread(target=self._vacuum), threading.Thread(target=self._sample)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception) -> None:
        self._done.set()
        for thread in self._threads:
            while thread.is_alive():
                self._conn.cancel()  # again, as it may have come between two commands
                thread.join(CANCEL_SECONDS)
        self._conn.close()
        self._watcher.close()
        if self._error:
            raise self._error

    def speed(self, first: float, last: float) -> float:
        """Return how many times the table was scanned a second between two times since the epoch; 0 if it isn't known."""
        scanned = [(moment, tables) for moment, _, tables in self.samples if first <= moment < last]
        return (scanned[-1][1] - scanned[0][1]) / (scanned[-1][0] - scanned[0][0]) if len(scanned) > 1 else 0.0

    def _vacuum(self) -> None:
        """VACUUM the table again and again, in one command, which has one pace."""
        tables = ", ".join([self._table] * 2000)
        try:
            for name, value in self._settings.items():
                self._conn.execute(f"SET {name} = '{value}'")
            while not self._done.is_set():
                self._conn.execute(f"VACUUM (DISABLE_PAGE_SKIPPING, PROCESS_TOAST off) {tables}")
        except psycopg.errors.QueryCanceled:
            pass
        except psycopg.Error as error:  # the block's end says so
            self._error = error

    def _sample(self) -> None:
        copy = SQL("COPY ({}) TO STDOUT").format(SQL(QUERY).format(Literal(self._table)))
        while not self._done.wait(self._interval):
            with self._watcher.cursor().copy(copy) as rows:
                rows.set_types(TYPES)
                self.samples += [(time.time(), *row) for row in rows.rows()]


def percentile(values: list[float]) -> float:
    """Return the PERCENTILE of values; 0 without any."""
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * PERCENTILE / 100))] if values else 0.0


def mean(values: list[float]) -> float:
    """Return the mean of values; 0 without any."""
    return sum(values) / max(1, len(values))


def most(cluster: Cluster, script: str) -> float:
    """Return how many transactions a second pgbench does with this script if nothing limits it."""
    return len(run_pgbench(cluster, script, MOST_SECONDS, None)) / MOST_SECONDS


def run_pgbench(cluster: Cluster, script: str, seconds: float, rate: float | None) -> list[tuple[float, float]]:
    """Run pgbench, at `rate` transactions a second or as fast as it goes; return what Pgbench.wait does."""
    with Pgbench(cluster, script, rate, seconds=seconds) as pgbench:
        return pgbench.wait()


class Pgbench:
    """pgbench at work from the moment it is made, for `seconds` or until `stop`."""

    def __init__(self, cluster: Cluster, script: str, rate: float | None, *, seconds: float = 1_000_000, clients: int = CLIENTS):
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "script.sql").write_text(script)
        command = [program_path(cluster.prefix, "pgbench"), "--no-vacuum", "--protocol=prepared", f"--client={clients}"]
        command += ["--log", f"--log-prefix={folder / 'log'}", f"--time={seconds}", f"--file={folder / 'script.sql'}"]
        command += [f"--rate={rate:.2f}"] if rate else []
        env = program_env(cluster.prefix, **cluster.client_env())
        self._process = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def __enter__(self) -> "Pgbench":
        return self

    def __exit__(self, *_exception) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> list[tuple[float, float]]:
        """End it as if its time were up; return what `wait` does."""
        self._process.send_signal(signal.SIGALRM)  # what its own timer sends
        return self.wait()

    def wait(self) -> list[tuple[float, float]]:
        """Wait for its end; return the end of each transaction, in seconds since the epoch, and its milliseconds in the server.

        Raises RuntimeError with its output if it failed.
        """
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"pgbench failed with status {self._process.returncode}:\n{output}")
        transactions = []
        for log in Path(self._folder.name).glob("log*"):
            for line in log.read_text().splitlines():
                _client, _number, microseconds, _script, epoch, epoch_microseconds, *lag = line.split()
                waited = int(lag[0]) if lag else 0  # for a free client, which the server knows nothing of
                transactions.append((int(epoch) + int(epoch_microseconds) / 1e6, (int(microseconds) - waited) / 1000))
        return transactions
