"""The demo's load: pgbench at a limited rate, which says all along how it does, and in the end what each transaction took."""

import re
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import program_env, program_path

CLIENTS = 8
LIVE_STEP = 20  # the load is about rows whose id is a multiple of this: these are never deleted
SCRIPT = f"""\\set id {LIVE_STEP} * random(1, :rows / {LIVE_STEP})
BEGIN;
UPDATE orders SET touched = touched + 1 WHERE id = :id;
SELECT count(*), sum(customer) FROM orders WHERE id BETWEEN :id AND :id + 500;
INSERT INTO history VALUES (:id);
END;
"""
PROGRESS = re.compile(r"progress: [\d.]+ s, ([\d.]+) tps, lat ([\d.]+) ms")


class Load:
    """pgbench against a cluster, from its making until `stop`; `rate` is in transactions a second, None for all that it can."""

    def __init__(self, cluster: Cluster, rows: int, rate: float | None):
        self.note = "pgbench begins"
        self.started = time.time()
        self._cluster = cluster
        self._folder = tempfile.TemporaryDirectory(dir=cluster.home)
        script = Path(self._folder.name) / "script.sql"
        script.write_text(SCRIPT)
        command = [program_path(cluster.prefix, "pgbench"), "--no-vacuum", "--protocol=prepared", f"--client={CLIENTS}", "--time=3600",
                   f"--define=rows={rows}", f"--file={script}", "--log", f"--log-prefix={self._folder.name}/log",
                   "--progress=1"]  # fmt: skip
        command += [f"--rate={rate:.1f}"] if rate else []
        self._process = subprocess.Popen(command, env=program_env(cluster.prefix, **cluster.client_env()), text=True,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stderr:
            if found := PROGRESS.match(line):
                self.note = f"pgbench: {float(found[1]):,.0f} transactions/s, {float(found[2]):.1f} ms each"
            elif "error" in line:
                self._errors.append(line)

    def stop(self) -> list[tuple[float, float]]:
        """End pgbench and its sessions; return each transaction's begin, in seconds since the epoch, and its milliseconds.

        What a transaction waited for a free client doesn't count. Raises RuntimeError if pgbench has had errors.
        """
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        while self._cluster.sql("SELECT FROM pg_stat_activity WHERE application_name = 'pgbench'"):
            time.sleep(0.05)
        transactions = [found for log in Path(self._folder.name).glob("log*") for found in _read_log(log)]
        self._folder.cleanup()
        if self._errors:
            raise RuntimeError("pgbench failed: " + "".join(self._errors))
        return sorted(transactions)


def _read_log(log: Path) -> list[tuple[float, float]]:
    transactions = []
    for line in log.read_text().splitlines()[:-1]:  # the last one may be cut off
        fields = [int(field) for field in line.split()]
        milliseconds = (fields[2] - (fields[6] if len(fields) > 6 else 0)) / 1000
        transactions.append((fields[4] + fields[5] / 1e6 - milliseconds / 1000, milliseconds))
    return transactions


def percentile(values: list[float], percent: float) -> float:
    """Return this percentile of the values, 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))] if values else 0.0


def most(cluster: Cluster, rows: int, seconds: float) -> float:
    """Return how many transactions a second pgbench does in so many seconds without a limit."""
    load = Load(cluster, rows, None)
    time.sleep(seconds)
    transactions = load.stop()
    return len(transactions) / (time.time() - load.started) if transactions else 1.0
