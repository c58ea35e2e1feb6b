"""Follows a VACUUM of the demo from a second session: shows how far each process is, and remembers what was seen."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cyclone_lab.cluster import Cluster

SAMPLE_SECONDS = 0.02
SIZE_SECONDS = 0.1
CORE_PROGRESS = """
    SELECT pid, 'vacuum', phase,
           CASE WHEN phase = 'vacuuming heap' THEN heap_blks_vacuumed
                WHEN phase = 'vacuuming indexes' THEN indexes_processed
                ELSE heap_blks_scanned END,
           CASE WHEN phase = 'vacuuming indexes' THEN indexes_total ELSE heap_blks_total END, NULL
    FROM pg_stat_progress_vacuum WHERE relid = %s::regclass
"""
CYCLONE_PROGRESS = """
    SELECT pid, role, phase, blocks_done, blocks_total, bytes_freed
    FROM cyclone.progress WHERE relid = %s::regclass ORDER BY role, pid
"""


class Watch:
    """As a context manager, watches the VACUUM of a table that runs within.

    `note` returns a text to show beside the bars, such as what pgbench does. `phase_seconds` has the leader's seconds by phase,
    and `sizes`, if asked for, pairs of a moment in seconds since the epoch and the bytes of table and indexes then, the first from
    before what runs within.
    """

    def __init__(self, cluster: Cluster, table: str, console: Console, *, engine: bool, note: Callable[[], str] | None = None,
                 with_sizes: bool = False):  # fmt: skip
        self.phase_seconds: dict[str, float] = defaultdict(float)
        self.sizes: list[tuple[float, int]] = []
        self._cluster, self._table, self._console = cluster, table, console
        self._query = CYCLONE_PROGRESS if engine else CORE_PROGRESS
        self._note = note
        self._with_sizes = with_sizes
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        if self._with_sizes:
            with self._cluster.connect() as conn:
                self._measure(conn)
        self._thread.start()
        return self

    def __exit__(self, *_exception) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        columns = TextColumn("  {task.description:<52}"), BarColumn(30), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn()
        progress = Progress(*columns, console=self._console)
        live = Live(progress, console=self._console, transient=True) if self._console.is_terminal else nullcontext()
        note = progress.add_task("", total=None) if self._note else None
        bars: dict[int, int] = {}
        shown_phase, next_size, before = None, 0.0, time.perf_counter()
        with self._cluster.connect() as conn, live:
            while not self._done.wait(SAMPLE_SECONDS):
                rows = conn.execute(self._query, (self._table,)).fetchall()
                now = time.perf_counter()
                for pid, role, phase, blocks_done, blocks_total, freed in rows:
                    if role != "worker":
                        self.phase_seconds[phase] += now - before
                        if phase != shown_phase and not self._console.is_terminal:
                            self._console.print(f"  {phase}{self._beside()}", highlight=False)
                        shown_phase = phase
                    if pid not in bars:
                        bars[pid] = progress.add_task("")
                    given_back = f", {freed / 2**20:,.0f} MB given back" if freed else ""
                    progress.update(bars[pid], description=f"{role} {pid}: {phase}{given_back}", completed=blocks_done or 0,
                                    total=blocks_total)  # fmt: skip
                before = now
                if note is not None:
                    progress.update(note, description=self._note())
                if self._with_sizes and now >= next_size:
                    self._measure(conn)
                    next_size = now + SIZE_SECONDS
            if self._with_sizes:
                self._measure(conn)

    def _beside(self) -> str:
        return f"; {self._note()}" if self._note else ""

    def _measure(self, conn) -> None:
        [(size,)] = conn.execute("SELECT pg_total_relation_size(%s::regclass)", (self._table,))
        self.sizes.append((time.time(), size))
