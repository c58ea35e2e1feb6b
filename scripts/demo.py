"""Shows pg_cyclone's main job: the same bloated table vacuumed by core and by pg_cyclone, phase by phase.

Fetches PostgreSQL 18, builds the extension, fills pgbench's accounts table, gives it three indexes, spreads updates and
deletes over it, and lets each contender vacuum its own copy of that data directory. Then amcheck and a content hash
prove that all copies are sound and equal. Run it as `make demo DEMO_ARGS="--rows 1000000"`; all its data is temporary.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import psycopg
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cyclone_lab import build, checks
from cyclone_lab.cluster import Cluster

MAJOR = 18
TABLE = "pgbench_accounts"
ROWS_PER_BRANCH = 100_000
SAMPLE_SECONDS = 0.02
CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "off",
    "fsync": "off",  # the disks of a laptop or a CI machine are not what is shown here
    "shared_buffers": "1GB",
    "maintenance_work_mem": "256MB",
    "max_wal_size": "20GB",
    "checkpoint_timeout": "1h",
    "max_worker_processes": 64,
    "max_parallel_workers": 64,
    "max_parallel_maintenance_workers": 64,
}
PHASES = (
    "initializing",
    "scanning heap",
    "vacuuming indexes",
    "vacuuming heap",
    "cleaning up indexes",
    "truncating heap",
    "performing final cleanup",
)
CORE_PROGRESS = f"""
    SELECT pid, 'vacuum', phase,
           CASE WHEN phase = 'vacuuming heap' THEN heap_blks_vacuumed
                WHEN phase = 'vacuuming indexes' THEN indexes_processed
                ELSE heap_blks_scanned END,
           CASE WHEN phase = 'vacuuming indexes' THEN indexes_total ELSE heap_blks_total END
    FROM pg_stat_progress_vacuum WHERE relid = '{TABLE}'::regclass
"""
CYCLONE_PROGRESS = f"""
    SELECT pid, role, phase, blocks_done, blocks_total
    FROM cyclone.progress WHERE relid = '{TABLE}'::regclass ORDER BY role, pid
"""


@dataclass
class Contender:
    """One way to vacuum, and what came of it."""

    name: str
    enabled: str  # cyclone.enabled: "on" or "off"
    workers: int
    seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    state: dict = field(default_factory=dict)
    verdict: str = ""


def load(cluster: Cluster, rows: int) -> None:
    """Fill the table with some `rows` rows (whole branches of 100 000), index it, and churn a fifth of it."""
    branches = max(1, round(rows / ROWS_PER_BRANCH))
    cluster.run("pgbench", "--initialize", "--init-steps=dt", "--quiet", f"--scale={branches}")
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        conn.execute("CREATE EXTENSION pg_prewarm")
        checks.create_extensions(conn)
        conn.execute("SELECT setseed(0.5)")
        conn.execute(
            f"INSERT INTO {TABLE} SELECT aid, (aid - 1) / {ROWS_PER_BRANCH} + 1, (random() * 10000)::int, md5(aid::text)"
            f" FROM generate_series(1, {branches * ROWS_PER_BRANCH}) aid"
        )
        conn.execute(f"ALTER TABLE {TABLE} ADD PRIMARY KEY (aid)")
        conn.execute(f"CREATE INDEX accounts_by_balance ON {TABLE} (bid, abalance)")
        conn.execute(f"CREATE INDEX accounts_by_filler ON {TABLE} (filler)")
        conn.execute(f"VACUUM (FREEZE, ANALYZE) {TABLE}")
        conn.execute(f"UPDATE {TABLE} SET abalance = abalance + 1 WHERE aid % 10 = 3")
        conn.execute(f"DELETE FROM {TABLE} WHERE aid % 10 = 7")
        conn.execute("CHECKPOINT")


def vacuum(cluster: Cluster, contender: Contender, console: Console) -> None:
    """Vacuum the table in this contender's way, showing the progress; record its time in all and by phase."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(cluster, contender, console, done))
    with cluster.connect() as conn:
        conn.execute(f"SET cyclone.enabled = {contender.enabled}")
        watcher.start()
        try:
            start = time.perf_counter()
            conn.execute(f"VACUUM (PARALLEL {contender.workers}) {TABLE}")
            contender.seconds = time.perf_counter() - start
        finally:
            done.set()
            watcher.join()


def _watch(cluster: Cluster, contender: Contender, console: Console, done: threading.Event) -> None:
    """Sample the running VACUUM until `done`: show each process's progress, add up the leader's seconds by phase."""
    query = CYCLONE_PROGRESS if contender.enabled == "on" else CORE_PROGRESS
    columns = TextColumn("  {task.description:<40}"), BarColumn(40), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn()
    progress = Progress(*columns, console=console)
    bars = {}
    seconds = defaultdict(float)
    shown_phase = None
    live = Live(progress, console=console, transient=True) if console.is_terminal else nullcontext()
    with cluster.connect() as conn, live:
        before = time.perf_counter()
        while not done.wait(SAMPLE_SECONDS):
            leader = conn.execute(f"SELECT phase FROM pg_stat_progress_vacuum WHERE relid = '{TABLE}'::regclass").fetchone()
            now = time.perf_counter()
            if leader:
                seconds[leader[0]] += now - before
                if leader[0] != shown_phase and not console.is_terminal:
                    console.print(f"  {leader[0]}")
                shown_phase = leader[0]
            before = now
            for pid, role, phase, blocks_done, blocks_total in conn.execute(query):
                if pid not in bars:
                    bars[pid] = progress.add_task("")
                progress.update(bars[pid], description=f"{role} {pid}: {phase}", completed=blocks_done, total=blocks_total)
    contender.phase_seconds = dict(seconds)


def prove(cluster: Cluster, contender: Contender) -> None:
    """Record whether every check finds the vacuumed table sound, and its state."""
    with cluster.connect() as conn:
        try:
            checks.assert_clean(conn, TABLE)
            contender.verdict = "sound"
        except AssertionError as problems:
            contender.verdict = str(problems)
        contender.state = checks.table_state(conn, TABLE)


def report(console: Console, contenders: list[Contender]) -> bool:
    """Print the times, the ratios to the first contender and the proof; return whether all is sound and equal."""
    core = contenders[0]
    times = Table(title="VACUUM, seconds by phase")
    times.add_column("phase")
    for contender in contenders:
        times.add_column(contender.name, justify="right")
    for phase in PHASES:
        if any(phase in contender.phase_seconds for contender in contenders):
            times.add_row(phase, *(f"{contender.phase_seconds.get(phase, 0):.2f}" for contender in contenders))
    times.add_section()
    times.add_row("total", *(f"{contender.seconds:.2f}" for contender in contenders), style="bold")
    times.add_row("times as fast as core", *(f"{core.seconds / contender.seconds:.2f}" for contender in contenders))
    times.add_section()
    for name in ("rows", "dead_items", "dead_tuples", "all_visible", "free_space"):
        times.add_row(name.replace("_", " "), *(f"{contender.state[name]:,}" for contender in contenders))
    console.print(times)

    for contender in contenders:
        console.print(f"{contender.name}: amcheck, visibility map and index entries: {contender.verdict}", highlight=False)
    equal = len({(contender.state["rows"], contender.state["content_hash"]) for contender in contenders}) == 1
    console.print("The contents of all copies are equal." if equal else "THE CONTENTS OF THE COPIES DIFFER.")
    return equal and all(contender.verdict == "sound" for contender in contenders)


@contextmanager
def _busy(console: Console, task: str):
    """Show that this task goes on, and how long it took."""
    start = time.perf_counter()
    with console.status(task.strip()):
        yield
    console.print(f"{task} ... {time.perf_counter() - start:.0f} s", highlight=False)


def main() -> int:
    cores = len(os.sched_getaffinity(0))
    workers = max(1, cores - 1)
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=2_000_000, help="size of the table (default: %(default)s)")
    arguments.add_argument("--workers", type=int, default=workers, help="parallel workers (default: cores - 1, at least 1)")
    options = arguments.parse_args()
    workers = options.workers
    contenders = [
        Contender(f"core, PARALLEL {workers}", "off", workers),
        Contender(f"pg_cyclone, PARALLEL {workers}", "on", workers),
        Contender("pg_cyclone, PARALLEL 0", "on", 0),
    ]
    console = Console(width=None if sys.stdout.isatty() else 110)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # leave through the context managers

    with _busy(console, f"Getting PostgreSQL {MAJOR} and building the extension"):
        prefix = build.install(MAJOR)
    with Cluster.create(prefix, CONFIG) as original:
        original.start()
        with _busy(console, "Loading, indexing and churning the table"):
            load(original, options.rows)
        [(heap, indexes, index_count)] = original.sql(
            f"SELECT pg_size_pretty(pg_table_size('{TABLE}')), pg_size_pretty(pg_indexes_size('{TABLE}')),"
            f" (SELECT count(*) FROM pg_index WHERE indrelid = '{TABLE}'::regclass)"
        )
        original.stop()
        console.print(f"{cores} cores; {TABLE}: heap {heap}, {index_count} indexes of {indexes} in all, one row in five dead")
        for contender in contenders:
            with original.copy() as copy:
                copy.start()
                copy.warm_up(TABLE)
                console.print(f"Vacuuming a copy: {contender.name}", highlight=False)
                vacuum(copy, contender, console)
                console.print(f"  [bold]{contender.seconds:.2f} s[/bold]", highlight=False)
                with _busy(console, "  checking it"):
                    prove(copy, contender)
    return 0 if report(console, contenders) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
