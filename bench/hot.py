"""How much of a hot table stays in the page cache while a cold one is vacuumed: pgbench reads rows of it at random all the time."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from beside import Pgbench, most
from cyclone_lab import page_cache
from cyclone_lab.cluster import Cluster
from cyclone_lab.files import table_files
from kernel import data_files
from measure import Contender
from scenarios import Scenario
from tpcc.percentiles import percentile

HOT = "hot"
ROW_BYTES = 1170  # seven on a page, with their part of the key's index
LOOK_SECONDS = 0.5
SHARE_OF_MOST = 0.3  # of what pgbench does without a limit
PARTS = ("before", "during", "after")


@dataclass
class HotRun:
    """One VACUUM of the cold table beside the load; moments are in seconds since its begin."""

    contender: Contender
    rate: float  # transactions a second of pgbench
    seconds: float
    p95_ms: dict[str, float | None]  # by part: before the VACUUM, during it, and after
    disk_reads: dict[str, float]  # bytes a second that pgbench's sessions have read from the disk, by part
    hit_rate: dict[str, float | None]  # of what these sessions read past shared_buffers, the part that wasn't read from the disk
    kept: list[tuple[float, float]]  # moments, and the share of the hot table in the page cache
    latencies: list[tuple[float, float]] = field(repr=False, default_factory=list)  # ends, and milliseconds


def make_hot_table(megabytes: float) -> tuple[str, ...]:
    """Return the statements that make a table of this size."""
    return (
        f"CREATE UNLOGGED TABLE {HOT} (id int PRIMARY KEY, v text STORAGE PLAIN) WITH (autovacuum_enabled = off)",
        f"INSERT INTO {HOT} SELECT i, repeat('x', 1090) FROM generate_series(1, {max(100, int(megabytes * (1 << 20) / ROW_BYTES))}) i",
        f"VACUUM (FREEZE, ANALYZE) {HOT}",
    )


def measure_hot(
    original: Cluster, scenario: Scenario, contender: Contender, rate: float | None, *, before: float, after: float, base: Path | None
) -> HotRun:
    """Do one run on a copy of a stopped cluster: `before` and `after` are the seconds of load without VACUUM. Without a rate it is
    SHARE_OF_MOST of what pgbench can do.
    """
    with original.copy(base=base) as server:
        server.start()
        with server.connect() as conn:
            hot = table_files(server, conn, HOT)
            [(rows,)] = conn.execute(f"SELECT count(*) FROM {HOT}")
        page_cache.drop(data_files(original) + data_files(server))
        page_cache.fill(hot)
        script = f"\\set id random(1, {rows})\nSELECT v FROM {HOT} WHERE id = :id;\n"
        rate = rate or SHARE_OF_MOST * most(server, script)
        with Pgbench(server, script, rate) as pgbench, Watch(server, hot) as watch, server.connect() as conn:
            for setting in contender.settings:
                conn.execute(setting)
            time.sleep(before)
            begin = time.time()
            conn.execute(scenario.vacuum_statement(contender.workers))
            end = time.time()
            time.sleep(after)
            transactions = pgbench.stop()
    borders = dict(zip(PARTS, ((begin - before, begin), (begin, end), (end, end + after))))
    parts = {part: watch.reads(*moments) for part, moments in borders.items()}
    return HotRun(
        contender,
        rate,
        end - begin,
        {part: percentile([ms for moment, ms in transactions if first <= moment < last], 95) for part, (first, last) in borders.items()},
        {part: disk / max(borders[part][1] - borders[part][0], 1e-9) for part, (disk, _) in parts.items()},
        {part: 1 - disk / read if read else None for part, (disk, read) in parts.items()},
        [(moment - begin, share) for moment, share, *_ in watch.samples],
        [(moment - begin, ms) for moment, ms in transactions],
    )


class Watch:
    """Looks twice a second, while the block runs, at the share of files in the page cache, and at what pgbench's sessions have read:
    bytes from the disk, and bytes at all, past shared_buffers."""

    def __init__(self, server: Cluster, files: list[Path]):
        self.samples: list[tuple[float, float, int, int]] = []  # time since the epoch, share, bytes from the disk, and at all
        self._files, self._size = files, sum(file.stat().st_size for file in files)
        self._conn = server.connect()
        self._read: dict[int, tuple[int, int]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_exception) -> None:
        self._done.set()
        self._thread.join()
        self._conn.close()

    def reads(self, first: float, last: float) -> tuple[int, int]:
        """Return what was read between two moments since the epoch, from the disk and at all, as far as samples tell."""
        samples = [sample for sample in self.samples if first <= sample[0] <= last]
        return (samples[-1][2] - samples[0][2], samples[-1][3] - samples[0][3]) if samples else (0, 0)

    def _watch(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            for (pid,) in self._conn.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'").fetchall():
                with suppress(OSError):  # it has ended
                    self._look(pid)
            disk, read = (sum(counts) for counts in zip(*self._read.values())) if self._read else (0, 0)
            self.samples.append((time.time(), page_cache.held(self._files) / self._size, disk, read))

    def _look(self, pid: int) -> None:
        counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        self._read[pid] = int(counts["read_bytes"]), int(counts["rchar"])


def average_kept(run: HotRun, first: float, last: float) -> float | None:
    """Return the mean share of the hot table in the page cache between two moments of the run."""
    shares = [share for moment, share in run.kept if first <= moment <= last]
    return sum(shares) / len(shares) if shares else None
