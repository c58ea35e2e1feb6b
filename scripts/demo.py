"""Shows why one would want pg_cyclone: three things that PostgreSQL's VACUUM doesn't do, each with its figure and its proof.

1. A table of 1 GB becomes small while pgbench uses it and the disk has 300 kB left.
2. VACUUM of one table with several processes, beside PostgreSQL's own, on equal copies of the data.
3. VACUUM beside pgbench: PostgreSQL's with its default delay and without one, and an adaptive delay: what each takes, and what
   pgbench's statements take meanwhile.

Fetches PostgreSQL 18 and builds the extension. Afterwards amcheck and other checks prove that all is sound, and contents are compared.
A picture is drawn at the end. Run it as `make demo DEMO_ARGS="--rows 500000"`; all its data is temporary.
"""

import argparse
import os
import re
import signal
import statistics
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from rich.console import Console

from beside import AUTO, Pgbench, in_thread, percentile
from cyclone_lab import build, checks
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO
from cyclone_lab.small_disk import Disk, can_be_small

MAJOR = 18
PARTS = (
    "1. The disk is full: a table becomes small while it is used",
    "2. VACUUM of a big table, with several processes",
    "3. VACUUM beside pgbench: as fast as the statements leave room",
)
TABLE = "orders"
CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "off",
    "fsync": "off",  # the disks of a laptop or a CI machine are not what is shown here
    "shared_buffers": "512MB",
    "maintenance_work_mem": "64MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "1h",
    "max_worker_processes": 64,
    "max_parallel_workers": 64,
    "max_parallel_maintenance_workers": 64,
    # what loads a table in the transaction that makes it writes no WAL
    "wal_level": "minimal",
    "max_wal_senders": 0,
}
WIDE_ROW, WIDE_SHARE = 640, 2  # bytes of filler in the table that becomes small; it has one row where the other has WIDE_SHARE
LIVE_STEP = 20  # the load is about rows whose id is a multiple of this: these are never deleted
LEFT_FREE = 300 * 1024
SETTLE_SECONDS = 2  # in which pgbench connects and warms up, before it is watched
LOAD_PART = 0.4  # pgbench's rate, as a part of what it could
PACED_PART = 0.5  # in the third part
ROOM = 1.2  # times what statements take without VACUUM: if VACUUM at full speed does no more harm, there is nothing to choose
NO_FASTER = 0.9  # of the seconds with the default delay: the adaptive delay has found no room if it takes more
SAMPLE_SECONDS = 0.05
MB = 1 << 20
CONTENTS = f"SELECT count(*), sum(hashint8extended(id, customer)) FROM {TABLE}"
CHANGE = """\\set id {step} * random(1, {rows} / {step})
WITH changed AS (UPDATE orders SET touched = touched + 1 WHERE id = :id RETURNING id),
    seen AS (SELECT sum(customer) AS customers FROM orders WHERE id BETWEEN :id - {seen} AND :id)
INSERT INTO history SELECT id, customers FROM changed, seen;
"""


@dataclass
class Shrunk:
    """The first part: a table that became small, and what went on meanwhile. Moments are seconds since the epoch."""

    begin: float = 0.0
    end: float = 0.0
    sizes: list[tuple[float, int]] = field(default_factory=list)  # of table and indexes
    most_extra: int = 0  # bytes that the disk took beyond what it did before
    transactions: list[tuple[float, float]] = field(default_factory=list)  # end and milliseconds
    verdict: str = ""


@dataclass
class Contender:
    """One way to vacuum, and what came of it."""

    name: str
    enabled: str  # cyclone.enabled: "on" or "off"
    seconds: list[float] = field(default_factory=list)
    state: dict = field(default_factory=dict)
    verdict: str = ""

    @property
    def middle(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Beside:
    """One way to vacuum beside pgbench, and what came of it."""

    name: str
    settings: dict[str, str]
    seconds: float = 0.0
    before_ms: float = 0.0  # the percentile of pgbench's statements before VACUUM,
    ms: float = 0.0  # and beside it
    verdict: str = ""


def make_table(conn: psycopg.Connection, rows: int, *, filler: int = 0, tablespace: str = "pg_default") -> None:
    """Make a table with two indexes, and that of pgbench's changes. Its rows are not frozen, and no page is all-visible."""
    conn.execute("CREATE EXTENSION pg_cyclone")
    conn.execute("CREATE EXTENSION pg_prewarm")
    checks.create_extensions(conn)
    conn.execute("SELECT setseed(0.5)")
    conn.execute("CREATE TABLE history (id bigint, customers bigint)")
    with conn.transaction():
        conn.execute(f"CREATE TABLE {TABLE} (id bigint, customer int, touched int NOT NULL, filler text) TABLESPACE {tablespace}")
        conn.execute(f"INSERT INTO {TABLE} SELECT id, (random() * {rows // 10})::int, 0, nullif(repeat('x', {filler}), '')"
                     f" FROM generate_series(1, {rows}) id")  # fmt: skip
        conn.execute(f"ALTER TABLE {TABLE} ADD PRIMARY KEY (id) USING INDEX TABLESPACE {tablespace}")
        conn.execute(f"CREATE INDEX orders_by_customer ON {TABLE} (customer) TABLESPACE {tablespace}")


def change(rows: int, seen: int) -> str:
    """Return pgbench's script for a table of `rows` rows: it changes one, and reads `seen` others."""
    return CHANGE.format(step=LIVE_STEP, rows=rows, seen=seen)


def most(cluster: Cluster, script: str, seconds: float) -> float:
    """Return how many transactions a second pgbench does without a limit."""
    with Pgbench(cluster, script, None, seconds=max(1, round(seconds))) as pgbench:
        return max(1.0, len(pgbench.wait()) / max(1, round(seconds)))


def soundness(conn: psycopg.Connection) -> str:
    """Return "sound" if every check says so of the table, otherwise what is wrong."""
    try:
        checks.assert_clean(conn, TABLE)
    except AssertionError as problems:
        return str(problems)
    return "sound"


def prove_load(cluster: Cluster) -> str:
    """Return "sound" if the table is, and has each change that pgbench has committed; otherwise what is wrong.

    A VACUUM comes first, as index entries of rows that pgbench has updated since lead to dead items, which the checks don't allow.
    """
    with cluster.connect() as conn:
        [(touched, committed)] = conn.execute(f"SELECT (SELECT sum(touched) FROM {TABLE}), (SELECT count(*) FROM history)")
        if touched != committed:
            return f"{committed} STATEMENTS WERE COMMITTED, {touched} CHANGES ARE THERE"
        conn.execute(f"VACUUM (INDEX_CLEANUP on) {TABLE}")
        return soundness(conn)


def shrink(prefix: Path, options, small: bool, why_not: str, console: Console) -> tuple[Shrunk, bool]:
    """The first part. Return what came of it, and whether all is sound."""
    rows = options.rows // WIDE_SHARE
    shrunk = Shrunk()
    # Images of whole pages in WAL are switched on when the table is there.
    with Cluster.create(prefix, {**CONFIG, "shared_buffers": "256MB", "full_page_writes": "off"}) as cluster:
        disk = Disk(cluster.home / "disk", small=small, megabytes=100 + rows * (WIDE_ROW + 200) // MB)
        try:
            cluster.start()
            with _busy(console, "A table with two indexes on a disk of its own; nineteen rows in twenty are deleted, and VACUUM"):
                with cluster.connect() as conn:
                    conn.execute(f"CREATE TABLESPACE disk LOCATION '{disk.folder}'")
                    make_table(conn, rows, filler=WIDE_ROW, tablespace="disk")
                    conn.execute(f"DELETE FROM {TABLE} WHERE id % {LIVE_STEP} > 0")
                    conn.execute(f"VACUUM {TABLE}")
                    conn.execute("ALTER SYSTEM SET full_page_writes = on")
                    conn.execute("SELECT pg_reload_conf()")
                    [contents] = conn.execute(CONTENTS)
                    conn.execute("CHECKPOINT")
            disk.leave(LEFT_FREE)
            if small:
                console.print(f"  PostgreSQL's VACUUM FULL: {core_full(cluster)}", highlight=False)
            run_shrink(cluster, disk, shrunk, change(rows, 200), options)
            shrunk.verdict = prove_load(cluster)
            equal = cluster.sql(CONTENTS)[0] == contents
        finally:
            cluster.stop()
            disk.remove()
    report_shrunk(console, shrunk, small, why_not)
    console.print("The rows are those that there were." if equal else "THE ROWS ARE NOT THOSE THAT THERE WERE.")
    return shrunk, equal and shrunk.verdict == "sound"


def core_full(cluster: Cluster) -> str:
    """Return what becomes of PostgreSQL's VACUUM FULL of the table."""
    with cluster.connect() as conn:
        conn.execute("SET cyclone.enabled = off")
        try:
            conn.execute(f"VACUUM FULL {TABLE}")
        except psycopg.errors.DiskFull as error:
            return "ERROR: " + re.sub(' "[^"]*"', "", error.diag.message_primary or "")  # without the file's name
    return "had room enough"


def run_shrink(cluster: Cluster, disk: Disk, shrunk: Shrunk, script: str, options) -> None:
    """Run FULL INPLACE beside pgbench, and watch the table's size and the disk."""
    rate = LOAD_PART * most(cluster, script, options.seconds)
    before, is_over = disk.used(), threading.Event()

    def watch() -> None:
        with cluster.connect() as conn:
            while True:
                is_last = is_over.is_set()
                [(size,)] = conn.execute("SELECT pg_total_relation_size(%s::regclass)", [TABLE])
                shrunk.sizes.append((time.time(), size))
                shrunk.most_extra = max(shrunk.most_extra, disk.used() - before)
                if is_last:
                    break
                is_over.wait(SAMPLE_SECONDS / 2)

    with Pgbench(cluster, script, rate) as pgbench:
        time.sleep(SETTLE_SECONDS + options.seconds)
        with cluster.connect() as conn, in_thread(watch, is_over):
            time.sleep(0.2)
            shrunk.begin = time.time()
            conn.execute(f"VACUUM (FULL INPLACE, PARALLEL 0) {TABLE}")
            shrunk.end = time.time()
        time.sleep(min(1, options.seconds))
        shrunk.transactions = pgbench.stop()


def report_shrunk(console: Console, shrunk: Shrunk, small: bool, why_not: str) -> None:
    """Print what became of the table."""
    first = shrunk.transactions[0][0] if shrunk.transactions else 0
    before = [ms for end, ms in shrunk.transactions if first + SETTLE_SECONDS <= end < shrunk.begin]
    beside = [ms for end, ms in shrunk.transactions if shrunk.begin < end and end - ms / 1000 < shrunk.end]
    sizes = [size / MB for _, size in shrunk.sizes]
    console.print(f"  VACUUM (FULL INPLACE): [bold]{sizes[0]:,.0f} MB before, {sizes[-1]:,.0f} MB after {shrunk.end - shrunk.begin:.1f} s"
                  f"[/bold], and pgbench went on: 95 % of {len(beside):,} statements took less than {percentile(beside):.1f} ms"
                  f" ({percentile(before):.1f} before), the longest {max(beside, default=0):.0f} ms.", highlight=False)  # fmt: skip
    room = f"The disk had {LEFT_FREE // 1024} kB left" if small else f"A small disk can't be made here ({why_not}), so there was room"
    console.print(f"  {room}; [bold]{max(0, shrunk.most_extra) // 1024} kB more[/bold] were used at most (WAL is on another disk).", highlight=False)
    console.print(f"FULL INPLACE: amcheck, visibility map and index entries, and pgbench's changes: {shrunk.verdict}", highlight=False)


def race(original: Cluster, options, console: Console) -> tuple[list[Contender], bool]:
    """The second part: in each round each contender vacuums a copy of the stopped cluster.

    Return them, and whether all is sound and equal, by the copies of the last round.
    """
    contenders = [Contender("PostgreSQL", "off"), Contender("pg_cyclone", "on")]
    for number in range(options.rounds):
        for contender in contenders:
            with original.copy() as copy, _busy(console, f"a copy of the table, and VACUUM (PARALLEL {options.workers}) of it by {contender.name}"):
                copy.start()
                copy.warm_up(TABLE)
                with copy.connect() as conn:
                    conn.execute(f"SET cyclone.enabled = {contender.enabled}")
                    start = time.perf_counter()
                    conn.execute(f"VACUUM (PARALLEL {options.workers}) {TABLE}")
                    contender.seconds.append(time.perf_counter() - start)
                    if number == options.rounds - 1:
                        contender.verdict = soundness(conn)
                        contender.state = checks.table_state(conn, TABLE)
    return contenders, report_race(console, contenders)


def report_race(console: Console, contenders: list[Contender]) -> bool:
    """Print the times, the ratio and the proof; return whether all is sound and equal."""
    core, ours = contenders
    console.print(f"  {core.name} [bold]{core.middle:.2f} s[/bold], {ours.name} [bold]{ours.middle:.2f} s: {core.middle / ours.middle:.2f} times"
                  " as fast[/bold]", highlight=False)  # fmt: skip
    for contender in contenders:
        console.print(f"{contender.name}: amcheck, visibility map and index entries: {contender.verdict}", highlight=False)
    equal = len({(contender.state["rows"], contender.state["content_hash"]) for contender in contenders}) == 1
    console.print("The contents of both copies are equal." if equal else "THE CONTENTS OF THE COPIES DIFFER.")
    return equal and all(contender.verdict == "sound" for contender in contenders)


def pace(original: Cluster, options, console: Console) -> tuple[list[Beside], bool]:
    """The third part: a VACUUM of a copy of the stopped cluster in each way. Return what came of it, and whether all is sound."""
    script, rate = change(options.rows, options.seen), 0.0
    ways = [
        Beside("PostgreSQL, default delay", {"cyclone.enabled": "off", "vacuum_cost_delay": "2ms"}),
        Beside("PostgreSQL, no delay", {"cyclone.enabled": "off"}),
        Beside("pg_cyclone, adaptive delay", AUTO),
    ]
    for way in ways:
        with original.copy() as copy, _busy(console, f"a copy of the table, and VACUUM of it beside pgbench by {way.name}"):
            copy.start()
            copy.warm_up(TABLE)
            rate = rate or PACED_PART * most(copy, script, options.seconds)
            with Pgbench(copy, script, rate) as pgbench, copy.connect() as conn:
                for name, value in way.settings.items():
                    conn.execute(f"SET {name} = '{value}'")
                start = time.time()
                time.sleep(SETTLE_SECONDS + options.seconds)
                begin = time.time()
                conn.execute(f"VACUUM {TABLE}")
                end = time.time()
                time.sleep(min(1, options.seconds))
                transactions = pgbench.stop()
            way.seconds = end - begin
            way.before_ms = percentile([ms for moment, ms in transactions if start + SETTLE_SECONDS <= moment < begin])
            way.ms = percentile([ms for moment, ms in transactions if begin < moment and moment - ms / 1000 < end])
            way.verdict = prove_load(copy)
    report_paced(console, ways, rate)
    return ways, all(way.verdict == "sound" for way in ways)


def alone_ms(ways: list[Beside]) -> float:
    """Return the percentile of pgbench's statements without VACUUM."""
    return statistics.median(way.before_ms for way in ways)


def paced_claim(ways: list[Beside]) -> str:
    """Return what the third part has shown, which may be that it shows nothing."""
    default, full, adaptive = ways
    alone = alone_ms(ways)
    if full.ms < ROOM * alone:
        return "This load leaves room for VACUUM at full speed, so this says nothing of the three. With a larger --seen it might."
    if adaptive.seconds > NO_FASTER * default.seconds:
        return "This load leaves no room: the adaptive delay is the default one."
    return (f"An adaptive delay is {default.seconds / adaptive.seconds:.1f} times as fast as the default delay; 95 % of the statements take less than"
            f" {adaptive.ms:.1f} ms beside it, {default.ms:.1f} ms beside the delay, {full.ms:.1f} ms without one.")  # fmt: skip


def report_paced(console: Console, ways: list[Beside], rate: float) -> None:
    """Print what VACUUM took, and statements beside it."""
    alone = alone_ms(ways)
    console.print(f"  {rate:,.0f} statements a second; without VACUUM 95 % take less than {alone:.1f} ms", highlight=False)
    for way in ways:
        console.print(f"  {way.name}: [bold]{way.seconds:.1f} s, 95 % take less than {way.ms:.1f} ms[/bold]", highlight=False)
    console.print(f"  {paced_claim(ways)}", highlight=False)
    for way in ways:
        console.print(f"{way.name}: amcheck, visibility map and index entries, and pgbench's changes: {way.verdict}", highlight=False)


@contextmanager
def _busy(console: Console, task: str):
    """Show that this task goes on, and how long it took."""
    start = time.perf_counter()
    with console.status(task):
        yield
    console.print(f"{task} ... {time.perf_counter() - start:.0f} s", highlight=False)


def _parse(cores: int) -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=3_000_000, help="size of the tables (default: %(default)s)")
    arguments.add_argument("--workers", type=int, default=max(1, cores - 1), help="parallel workers (default: cores - 1, at least 1)")
    arguments.add_argument("--rounds", type=int, default=3, help="how often each VACUUM of the second part runs (default: %(default)s)")
    arguments.add_argument("--seconds", type=float, default=3, help="how long pgbench is watched before VACUUM (default: %(default)s)")
    arguments.add_argument("--seen", type=int, default=10_000, help="how many rows a statement reads then (default: %(default)s)")
    arguments.add_argument("--picture", type=Path, default=REPO / "build" / "demo.png", help="where to (default: %(default)s)")
    options = arguments.parse_args()
    if options.rows < WIDE_SHARE * LIVE_STEP:
        arguments.error(f"--rows must be {WIDE_SHARE * LIVE_STEP} at least")
    if options.rounds < 1:
        arguments.error("--rounds must be 1 at least")
    return options


def main() -> int:
    cores = len(os.sched_getaffinity(0))
    options = _parse(cores)
    why_not = can_be_small()
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print("Three parts, on servers of their own; nothing that is installed is touched:\n" + "\n".join(PARTS), highlight=False)
    with _busy(console, f"Getting PostgreSQL {MAJOR} and building the extension"):
        prefix = build.install(MAJOR)
    start = time.perf_counter()
    console.rule(PARTS[0])
    shrunk, whole = shrink(prefix, options, not why_not, why_not, console)
    with Cluster.create(prefix, CONFIG) as original:
        original.start()
        console.rule(PARTS[1])
        with _busy(console, "A table with two indexes; every tenth row is deleted"), original.connect() as conn:
            make_table(conn, options.rows)
            conn.execute(f"VACUUM (FREEZE, ANALYZE) {TABLE}")
            conn.execute(f"DELETE FROM {TABLE} WHERE id % 10 = 7")
            [(heap, indexes, version)] = conn.execute(
                f"SELECT pg_size_pretty(pg_table_size('{TABLE}')), pg_size_pretty(pg_indexes_size('{TABLE}')), version()"
            )
        original.stop()
        contenders, equal = race(original, options, console)
        console.rule(PARTS[2])
        ways, sound = pace(original, options, console)
    from demo_picture import draw  # here, as numpy starts threads, with which there is no small disk

    circumstances = f"{cores} cores; VACUUM of {options.rows:,} rows: heap {heap}, two indexes of {indexes} in all, in memory; fsync off"
    draw(options.picture, f"{version.split(' on ')[0]}, {circumstances}", shrunk, contenders, ways, paced_claim(ways))
    console.rule()
    console.print(circumstances, highlight=False)
    console.print(f"{time.perf_counter() - start:.0f} s after PostgreSQL was there. The picture: {options.picture}", highlight=False)
    return 0 if whole and equal and sound else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # leave through the context managers
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
