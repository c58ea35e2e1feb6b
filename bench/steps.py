"""How fast the pace follows a load that comes and goes: a VACUUM with a latency target runs without a break, and in the midst
of it pgbench begins, and ends, adding up rows at half the rate that it could.

The statements take milliseconds. Of shorter ones, a client whose server has too few cores sees more than the server does: what
it waits until the server looks at its message.
"""

import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import program_env, program_path

SCRIPT = """\\set aid random(1, 950000)
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 30000;
"""
CLIENTS = 8
SHARE_OF_MOST = 0.5  # of what pgbench does without a limit
ALONE_SECONDS, IDLE_SECONDS, LOAD_SECONDS, AFTER_SECONDS = 4, 4, 10, 5
WINDOW_SECONDS = 1.0
SAMPLE_SECONDS = 0.02
NEAR = 1.1
# As a multiple of the percentile without VACUUM
TARGET_MARGIN = 1.5
PERCENTILE = 95


@dataclass
class Steps:
    """What one run measured; seconds and milliseconds."""

    alone_ms: float  # the percentile without VACUUM
    target_ms: float
    back_seconds: float  # after the load's begin, until the percentile of a window is within a tenth of the target
    server_back_seconds: float  # the same as the server sees it, which is what the target is about: for a window in which it measured something
    load_ms: float  # the percentile from two seconds after the load's begin to its end
    server_ms: float  # the same as the server sees it: the mean of what it measured, a few times a second
    full_speed_seconds: float  # after its end, until nothing bounds the VACUUM
    speed_under_load: float  # what the VACUUM cost a second from two seconds on, as a part of that without load


def percentile(values: list[float]) -> float:
    """Return the PERCENTILE of values; 0 without any."""
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * PERCENTILE / 100))] if values else 0.0


def mean(values: list[float]) -> float:
    """Return the mean of values; 0 without any."""
    return sum(values) / max(1, len(values))


def most(cluster: Cluster) -> float:
    """Return how many transactions a second pgbench does without a limit."""
    with tempfile.TemporaryDirectory() as folder:
        return len(_pgbench(cluster, Path(folder), 3, None)) / 3


def measure_steps(cluster: Cluster, most: float) -> Steps:
    """Do one run; table t and pgbench's tables exist, with a million accounts."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        rate = SHARE_OF_MOST * most
        alone = percentile([ms for _, ms in _pgbench(cluster, Path(first), ALONE_SECONDS, rate)])
        target = TARGET_MARGIN * alone
        with cluster.connect() as conn, cluster.connect() as watcher:
            thread = threading.Thread(target=_vacuum_until_cancelled, args=(conn, target))
            samples: list[tuple[float, str, float, float]] = []
            done = threading.Event()
            sampler = threading.Thread(target=_sample, args=(watcher, samples, done))
            thread.start()
            sampler.start()
            time.sleep(IDLE_SECONDS)
            begin = time.time()
            transactions = _pgbench(cluster, Path(second), LOAD_SECONDS, rate)
            time.sleep(AFTER_SECONDS)
            done.set()
            sampler.join()
            conn.cancel()
            thread.join()
    begin = max(begin, min(moment for moment, _ in transactions))
    end = max(moment for moment, _ in transactions)
    back = begin
    while percentile([ms for moment, ms in transactions if back <= moment < back + WINDOW_SECONDS]) > NEAR * target and back < end:
        back += 0.1
    server_back = begin
    while max((ms for moment, _, _, ms in samples if server_back <= moment < server_back + WINDOW_SECONDS and ms is not None),
              default=float("inf")) > NEAR * target and server_back < end:  # fmt: skip
        server_back += 0.1
    unbounded = [moment for moment, limit, *_ in samples if moment > end and limit == "nothing"]

    def speed(first: float, last: float) -> float:
        return mean([rate for moment, _, rate, _ in samples if first <= moment < last and rate is not None])

    return Steps(
        alone,
        target,
        back - begin,
        server_back - begin,
        percentile([ms for moment, ms in transactions if moment >= begin + 2]),
        mean([ms for moment, _, _, ms in samples if begin + 2 <= moment < end and ms is not None]),
        unbounded[0] - end if unbounded else float("inf"),
        speed(begin + 2, end) / max(1.0, speed(begin - 2, begin)),
    )


def _vacuum_until_cancelled(conn: psycopg.Connection, target_ms: float) -> None:
    """VACUUM the table again and again, in one command, which has one pace."""
    tables = ", ".join(["t"] * 2000)
    try:
        conn.execute(f"VACUUM (DISABLE_PAGE_SKIPPING, PROCESS_TOAST off, LATENCY_TARGET '{target_ms:.3f}ms') {tables}")
    except psycopg.errors.QueryCanceled:
        pass


def _sample(watcher: psycopg.Connection, samples: list, done: threading.Event) -> None:
    """Note what limits the VACUUM, what it costs a second, and the percentile in the server, until `done`."""
    while not done.wait(SAMPLE_SECONDS):
        samples += [(time.time(), *row) for row in watcher.execute("SELECT limited_by, rate, latency_ms FROM cyclone.pace")]


def _pgbench(cluster: Cluster, folder: Path, seconds: float, rate: float | None) -> list[tuple[float, float]]:
    """Run pgbench; return the end of each transaction, in seconds since the epoch, and its milliseconds in the server."""
    script = folder / "script.sql"
    script.write_text(SCRIPT)
    command = [program_path(cluster.prefix, "pgbench"), "--no-vacuum", "--protocol=prepared", f"--client={CLIENTS}"]
    command += ["--log", f"--log-prefix={folder / 'log'}", f"--time={seconds}", f"--file={script}"]
    command += [f"--rate={rate:.1f}"] if rate else []
    env = program_env(cluster.prefix, **cluster.client_env())
    subprocess.run(command, env=env, check=True, capture_output=True)
    transactions = []
    for log in folder.glob("log*"):
        for line in log.read_text().splitlines():
            _client, _number, microseconds, _script, epoch, epoch_microseconds, *lag = line.split()
            waited = int(lag[0]) if lag else 0  # for a free client, which the server knows nothing of
            transactions.append((int(epoch) + int(epoch_microseconds) / 1e6, (int(microseconds) - waited) / 1000))
    return transactions
