"""Work beside something else: a VACUUM without a break, watched; pgbench; any function."""

import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Literal

from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import program_env, program_path

PERCENTILE = 95
CLIENTS = 8
MOST_SECONDS = 3
CANCEL_SECONDS = 0.5
AUTO = {"cyclone.adaptive_delay": "on"}
# How many times the table has been scanned
QUERY = """
    SELECT vacuum_count + coalesce(heap_blks_scanned::float8 / nullif(heap_blks_total, 0), 0)
    FROM pg_stat_user_tables LEFT JOIN pg_stat_progress_vacuum USING (relid)
    WHERE pg_stat_user_tables.relid = {}::regclass
"""


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
        self.samples: list[tuple[float, float]] = []
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
        scanned = [(moment, tables) for moment, tables in self.samples if first <= moment < last]
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
                rows.set_types(["float8"])
                self.samples += [(time.time(), *row) for row in rows.rows()]


def percentile(values: list[float], percent: int = PERCENTILE) -> float:
    """Return this percentile of values; 0 without any."""
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * percent / 100))] if values else 0.0


LOCK_WAIT = re.compile(r"^pgbench: LOG: .* acquired .* after ([0-9.]+) ms", re.MULTILINE)
# With these every wait for a lock that takes longer goes to the log, when it is over.
LOG_LOCK_WAITS = {"log_lock_waits": "on", "deadlock_timeout": "1ms", "log_line_prefix": "%a: "}


def longest_lock_wait_ms(log: str) -> float:
    """Return how long a statement of pgbench waited for a lock at most, by the log of a server with LOG_LOCK_WAITS."""
    return max(map(float, LOCK_WAIT.findall(log)), default=0)


def most(cluster: Cluster, script: str, **options) -> float:
    """Return how many transactions a second pgbench does with this script if nothing limits it."""
    return len(run_pgbench(cluster, script, MOST_SECONDS, None, **options)) / MOST_SECONDS


def run_pgbench(cluster: Cluster, scripts: str | list[str], seconds: float, rate: float | None, **options) -> list[tuple[float, float]]:
    """Run pgbench, at `rate` transactions a second or as fast as it goes; return what Pgbench.wait does."""
    with Pgbench(cluster, scripts, rate, seconds=seconds, **options) as pgbench:
        return pgbench.wait()


@dataclass(frozen=True)
class Transaction:
    """A line of pgbench's log."""

    script: int  # its number, from 0
    end: float  # seconds since the epoch
    seconds: float  # from when the rate wanted it to begin
    waited: float  # of these, for a free client, of which the server knows nothing


class Pgbench:
    """pgbench at work from the moment it is made, for `seconds` or until `stop`."""

    def __init__(self, cluster: Cluster, scripts: str | list[str], rate: float | None, *, seconds: float = 1_000_000, clients: int = CLIENTS,
                 arguments: Iterable[str] = (), base: Path | None = None):  # fmt: skip
        """Start it. `arguments` are more of its own; the log goes into a folder below `base`, by default that for temporary files."""
        self._folder = tempfile.TemporaryDirectory(dir=base)
        folder = Path(self._folder.name)
        command = [program_path(cluster.prefix, "pgbench"), "--no-vacuum", "--protocol=prepared", f"--client={clients}"]
        command += ["--log", f"--log-prefix={folder / 'log'}", f"--time={max(1, round(seconds))}", *arguments]
        for number, script in enumerate([scripts] if isinstance(scripts, str) else scripts):
            (folder / f"{number}.sql").write_text(script)
            command.append(f"--file={folder / f'{number}.sql'}")
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

    def end(self) -> None:
        """End it as if its time were up."""
        self._process.send_signal(signal.SIGALRM)  # what its own timer sends

    def stop(self) -> list[tuple[float, float]]:
        """End it; return what `wait` does."""
        self.end()
        return self.wait()

    def wait(self) -> list[tuple[float, float]]:
        """Wait for its end; return the end of each transaction, in seconds since the epoch, and its milliseconds in the server."""
        return [(one.end, 1000 * (one.seconds - one.waited)) for one in self.transactions()[0]]

    def transactions(self) -> tuple[list[Transaction], int]:
        """Wait for its end; return all transactions in the order of their ends, and how many failed. Raises RuntimeError with pgbench's
        output if it ended with an error.
        """
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"pgbench failed with status {self._process.returncode}:\n{output}")
        done, failed = [], 0
        for log in Path(self._folder.name).glob("log*"):
            for line in log.read_text().splitlines():
                _client, _number, microseconds, script, epoch, epoch_microseconds, *lag = line.split()
                if microseconds == "failed":
                    failed += 1
                else:
                    end, waited = int(epoch) + int(epoch_microseconds) / 1e6, int(lag[0]) / 1e6 if lag else 0.0
                    done.append(Transaction(int(script), end, int(microseconds) / 1e6, waited))
        return sorted(done, key=lambda transaction: transaction.end), failed
