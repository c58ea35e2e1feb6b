"""Shows why one would want pg_cyclone: three things that PostgreSQL's VACUUM doesn't do, each with its proof.

1. VACUUM of one table with several processes, beside PostgreSQL's own, on equal copies of the data.
2. VACUUM that keeps to a latency target while pgbench uses the table, beside PostgreSQL's own without a delay.
3. VACUUM (FULL INPLACE): a bloated table becomes small while pgbench goes on.

Fetches PostgreSQL 18, builds the extension, fills a table with some orders, and deletes every tenth. After each part amcheck and
other checks prove that all is sound, and contents are compared. A picture is drawn at the end. Run it as
`make demo DEMO_ARGS="--rows 500000"`; all its data is temporary.
"""

import argparse
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

from cyclone_lab import build, checks
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO
from demo_load import LIVE_STEP, Load, most, percentile
from demo_picture import draw
from demo_watch import Watch

MAJOR = 18
TABLE = "orders"
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
LOAD_PART = 0.4  # pgbench's rate, as a part of what it could
SETTLE_SECONDS = 2  # in which pgbench connects and warms up, before it is watched
CONTENTS = f"SELECT count(*), sum(hashint8extended(id, customer)) FROM {TABLE}"


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


@dataclass
class BusyRun:
    """A VACUUM beside pgbench, and what came of both."""

    name: str
    begin: float = 0.0  # seconds since the epoch
    end: float = 0.0
    finished: bool = True
    usual_ms: float = 0.0  # that 95 % of the transactions stay below without VACUUM
    loaded: float = 0.0  # when pgbench began
    transactions: list[tuple[float, float]] = field(default_factory=list)  # begin and milliseconds
    sizes: list[tuple[float, int]] = field(default_factory=list)
    verdict: str = ""

    def before(self, percent: float) -> float:
        """Return this percentile of the milliseconds of the transactions before VACUUM began."""
        return percentile([ms for begin, ms in self.transactions if self.loaded + SETTLE_SECONDS <= begin < self.begin - ms / 1000],
                          percent)  # fmt: skip

    def during(self, percent: float) -> float:
        """Return this percentile of the milliseconds of the transactions of which some part was beside VACUUM."""
        return percentile([ms for begin, ms in self.transactions if self.begin - ms / 1000 < begin < self.end], percent)


def load(cluster: Cluster, rows: int) -> None:
    """Fill the table with `rows` rows, index it, and delete every tenth."""
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        conn.execute("CREATE EXTENSION pg_prewarm")
        checks.create_extensions(conn)
        conn.execute("SELECT setseed(0.5)")
        conn.execute(f"CREATE TABLE {TABLE} (id bigint, customer int, touched int NOT NULL)")
        conn.execute("CREATE TABLE history (id bigint)")
        conn.execute(
            f"INSERT INTO {TABLE} SELECT id, (random() * {rows // 10})::int, 0 FROM generate_series(1, {rows}) id",
        )
        conn.execute(f"ALTER TABLE {TABLE} ADD PRIMARY KEY (id)")
        conn.execute(f"CREATE INDEX orders_by_customer ON {TABLE} (customer)")
        conn.execute(f"VACUUM (FREEZE, ANALYZE) {TABLE}")
        conn.execute(f"DELETE FROM {TABLE} WHERE id % 10 = 7")
        conn.execute("CHECKPOINT")


def vacuum(cluster: Cluster, contender: Contender, console: Console) -> None:
    """Vacuum the table in this contender's way, showing the progress; record its time in all and by phase."""
    with cluster.connect() as conn:
        conn.execute(f"SET cyclone.enabled = {contender.enabled}")
        with Watch(cluster, TABLE, console, engine=contender.enabled == "on") as watch:
            start = time.perf_counter()
            conn.execute(f"VACUUM (PARALLEL {contender.workers}) {TABLE}")
            contender.seconds = time.perf_counter() - start
    contender.phase_seconds = dict(watch.phase_seconds)


def soundness(conn: psycopg.Connection) -> str:
    """Return "sound" if every check says so of the table, otherwise what is wrong."""
    try:
        checks.assert_clean(conn, TABLE)
    except AssertionError as problems:
        return str(problems)
    return "sound"


def prove(cluster: Cluster, contender: Contender) -> None:
    """Record whether every check finds the vacuumed table sound, and its state."""
    with cluster.connect() as conn:
        contender.verdict = soundness(conn)
        contender.state = checks.table_state(conn, TABLE)


def report(console: Console, contenders: list[Contender], rounds: int) -> bool:
    """Print the times, the ratios to the first contender and the proof; return whether all is sound and equal."""
    core = contenders[0]
    times = Table(title="VACUUM, seconds by phase" + (f", the round in the middle of {rounds}" if rounds > 1 else ""))
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


def race(original: Cluster, workers: int, rounds: int, console: Console) -> tuple[list[Contender], bool]:
    """The first part: in each round each contender vacuums a copy of the stopped cluster.

    Return them, with the times of the round in the middle, and whether all is sound and equal, by the copies of the last one.
    """
    contenders = [
        Contender(f"core, PARALLEL {workers}", "off", workers),
        Contender("pg_cyclone, PARALLEL 0", "on", 0),
        Contender(f"pg_cyclone, PARALLEL {workers}", "on", workers),
    ]
    runs = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in contenders:
            with original.copy() as copy:
                copy.start()
                copy.warm_up(TABLE)
                console.print(f"Vacuuming a copy: {contender.name}", highlight=False)
                vacuum(copy, contender, console)
                runs[contender.name].append((contender.seconds, contender.phase_seconds))
                console.print(f"  [bold]{contender.seconds:.2f} s[/bold]", highlight=False)
                if number == rounds - 1:
                    with _busy(console, "  checking it"):
                        prove(copy, contender)
    for contender in contenders:
        middle = sorted(runs[contender.name], key=lambda run: run[0])[rounds // 2]
        contender.seconds, contender.phase_seconds = middle
    return contenders, report(console, contenders, rounds)


def run_beside_load(cluster: Cluster, run: BusyRun, settings: dict, statement: str, rows: int, rate: float, options, console: Console,
                    *, with_sizes: bool = False) -> None:  # fmt: skip
    """Run the statement while pgbench does `rate` transactions a second; record in `run` what came of it.

    pgbench has some seconds by itself before and after. The statement is cancelled if it isn't through in time.
    """
    pgbench = Load(cluster, rows, rate)
    try:
        run.loaded = pgbench.started
        time.sleep(SETTLE_SECONDS + options.seconds)
        with cluster.connect() as conn:
            for name, value in settings.items():
                conn.execute(f"SET {name} = '{value}'")
            watch = Watch(cluster, TABLE, console, engine=settings.get("cyclone.enabled") != "off", note=lambda: pgbench.note,
                          with_sizes=with_sizes)  # fmt: skip
            timer = threading.Timer(options.cap, conn.cancel)
            with watch:
                timer.start()
                run.begin = time.time()
                try:
                    conn.execute(statement)
                except psycopg.errors.QueryCanceled:
                    run.finished = False
                finally:
                    timer.cancel()
                run.end = time.time()
        time.sleep(min(2, options.seconds))
    finally:
        run.transactions = pgbench.stop()
    run.sizes = watch.sizes


def keep_target(original: Cluster, options, console: Console) -> tuple[list[BusyRun], float, Cluster, bool]:
    """The second part: VACUUM beside pgbench, by core without a delay, and by pg_cyclone with a latency target.

    Return the runs, pgbench's rate, the cluster of the last one, which the caller removes, and whether that is sound.
    """
    core, target = BusyRun("core, no delay"), BusyRun("pg_cyclone, latency target")
    with original.copy() as copy:
        copy.start()
        copy.warm_up(TABLE)
        rate = LOAD_PART * most(copy, options.rows, options.seconds)
        console.print(f"pgbench at {rate:,.0f} transactions a second, {LOAD_PART:.0%} of what it could; core's VACUUM beside it",
                      highlight=False)  # fmt: skip
        run_beside_load(copy, core, {"cyclone.enabled": "off"}, f"VACUUM (PARALLEL 0) {TABLE}", options.rows, rate, options, console)
    copy = original.copy()
    copy.start()
    copy.warm_up(TABLE)
    target.usual_ms = usual(copy, options.rows, rate, options.seconds)
    console.print(f"pg_cyclone's VACUUM, with the latency target auto; without it 95 % of the transactions take less than {target.usual_ms:.2f} ms",
                  highlight=False)  # fmt: skip
    settings = {"cyclone.latency_target": "auto"}
    run_beside_load(copy, target, settings, f"VACUUM (PARALLEL 0) {TABLE}", options.rows, rate, options, console)
    with _busy(console, "  checking it"):
        target.verdict = prove_load(copy)
    runs = [core, target]
    report_load(console, runs)
    return runs, rate, copy, target.verdict == "sound"


def report_load(console: Console, runs: list[BusyRun]) -> None:
    """Print how long each VACUUM took, and how long transactions took before and beside it."""
    table = Table(title="Milliseconds of pgbench's transactions")
    for column in ("VACUUM by", "seconds", "95 % before", "95 % meanwhile", "99 % before", "99 % meanwhile", "longest"):
        table.add_column(column, justify="left" if column == "VACUUM by" else "right")
    for run in runs:
        seconds = f"{run.end - run.begin:.1f}" + ("" if run.finished else ", broken off")
        table.add_row(run.name, seconds, *(f"{value:.2f}" for percent in (95, 99) for value in (run.before(percent), run.during(percent))),
                      f"{run.during(100):.1f}")  # fmt: skip
    console.print(table)
    console.print(f"{runs[-1].name}: amcheck, visibility map and index entries, and pgbench's changes: {runs[-1].verdict}",
                  highlight=False)  # fmt: skip


def prove_load(cluster: Cluster) -> str:
    """Return "sound" if the table is, and has each change that pgbench has committed; otherwise what is wrong.

    A VACUUM comes first, as index entries of rows that pgbench has updated since lead to dead items, which the checks don't allow.
    """
    with cluster.connect() as conn:
        [(touched, committed)] = conn.execute(f"SELECT (SELECT sum(touched) FROM {TABLE}), (SELECT count(*) FROM history)")
        if touched != committed:
            return f"{committed} TRANSACTIONS WERE COMMITTED, {touched} CHANGES ARE THERE"
        conn.execute(f"VACUUM (INDEX_CLEANUP on) {TABLE}")
        return soundness(conn)


def shrink(cluster: Cluster, rate: float, options, console: Console) -> tuple[BusyRun, bool]:
    """The third part: nineteen rows in twenty deleted, and FULL INPLACE beside pgbench. Return the run, and whether all is sound."""
    run = BusyRun("FULL INPLACE")
    with _busy(console, "Deleting nineteen rows in twenty, and VACUUM, which leaves the files as large as they are"):
        with cluster.connect() as conn:
            conn.execute(f"DELETE FROM {TABLE} WHERE id % {LIVE_STEP} > 0")
            conn.execute(f"VACUUM {TABLE}")
            [contents] = conn.execute(CONTENTS)
    console.print(f"VACUUM (FULL INPLACE) with pgbench at {rate:,.0f} transactions a second", highlight=False)
    settings = {"max_parallel_maintenance_workers": options.workers}
    run_beside_load(cluster, run, settings, f"VACUUM (FULL INPLACE) {TABLE}", options.rows, rate, options, console, with_sizes=True)
    with _busy(console, "  checking it"), cluster.connect() as conn:
        run.verdict = prove_load(cluster)
        equal = conn.execute(CONTENTS).fetchone() == contents
    before, after = (size / 2**20 for _, size in (run.sizes[0], run.sizes[-1]))
    console.print(f"  [bold]{before:,.0f} MB before, {after:,.0f} MB after {run.end - run.begin:.1f} s"
                  f"{'' if run.finished else ', when it was broken off'}[/bold]; 95 % of the transactions took less than"
                  f" {run.before(95):.2f} ms before and {run.during(95):.2f} ms meanwhile, the longest {run.during(100):.0f} ms",
                  highlight=False)  # fmt: skip
    console.print(f"{run.name}: amcheck, visibility map and index entries, and pgbench's changes: {run.verdict}", highlight=False)
    console.print("The rows are those that there were." if equal else "THE ROWS ARE NOT THOSE THAT THERE WERE.")
    return run, equal and run.verdict == "sound"


def usual(cluster: Cluster, rows: int, rate: float, seconds: float) -> float:
    """Return the milliseconds that 95 % of pgbench's transactions stay below at this rate when nothing else goes on."""
    pgbench = Load(cluster, rows, rate)
    time.sleep(SETTLE_SECONDS + seconds)
    transactions = pgbench.stop()
    return percentile([ms for begin, ms in transactions if begin >= pgbench.started + SETTLE_SECONDS], 95)


@contextmanager
def _busy(console: Console, task: str):
    """Show that this task goes on, and how long it took."""
    start = time.perf_counter()
    with console.status(task.strip()):
        yield
    console.print(f"{task} ... {time.perf_counter() - start:.0f} s", highlight=False)


def _parse(cores: int) -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=4_000_000, help="size of the table (default: %(default)s)")
    arguments.add_argument("--workers", type=int, default=max(1, cores - 1), help="parallel workers (default: cores - 1, at least 1)")
    arguments.add_argument("--rounds", type=int, default=3, help="how often each VACUUM of the first part runs (default: %(default)s)")
    arguments.add_argument("--seconds", type=float, default=4, help="how long pgbench is watched before VACUUM (default: %(default)s)")
    arguments.add_argument("--cap", type=float, default=30, help="seconds after which a VACUUM beside it is broken off (default: %(default)s)")
    arguments.add_argument("--picture", type=Path, default=REPO / "build" / "demo.png", help="where to (default: %(default)s)")
    options = arguments.parse_args()
    if options.rows < LIVE_STEP:
        arguments.error(f"--rows must be {LIVE_STEP} at least")
    if options.rounds < 1:
        arguments.error("--rounds must be 1 at least")
    return options


def main() -> int:
    cores = len(os.sched_getaffinity(0))
    options = _parse(cores)
    console = Console(width=None if sys.stdout.isatty() else 110)

    with _busy(console, f"Getting PostgreSQL {MAJOR} and building the extension"):
        prefix = build.install(MAJOR)
    start = time.perf_counter()
    with Cluster.create(prefix, CONFIG) as original:
        original.start()
        with _busy(console, "Loading and indexing the table, deleting every tenth row"):
            load(original, options.rows)
        [(heap, indexes, version)] = original.sql(
            f"SELECT pg_size_pretty(pg_table_size('{TABLE}')), pg_size_pretty(pg_indexes_size('{TABLE}')), version()"
        )
        original.stop()
        circumstances = f"{cores} cores; {options.rows:,} rows: heap {heap}, two indexes of {indexes} in all, in memory; fsync off"
        console.print(circumstances, highlight=False)
        console.rule("1. VACUUM, nobody else at work")
        contenders, equal = race(original, options.workers, options.rounds, console)
        console.rule("2. VACUUM beside others")
        runs, rate, cluster, sound = keep_target(original, options, console)
    with cluster:
        console.rule("3. A bloated table becomes small, beside others")
        shrunk, whole = shrink(cluster, rate, options, console)
    draw(options.picture, f"{version.split(' on ')[0]}, {circumstances}", contenders, PHASES, runs, shrunk)
    console.rule()
    console.print(f"{time.perf_counter() - start:.0f} s after PostgreSQL was there. The picture: {options.picture}", highlight=False)
    return 0 if equal and sound and whole else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # leave through the context managers
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
