"""Guards beside a standby or a subscriber that is slow, and on a disk on which an archiver that fails leaves WAL: lag or free
space, the WAL and the progress of a VACUUM over time, with and without them.

Replay of a standby, or the walsender of a subscriber, is stopped for most of the time. Lag is measured here: since when the WAL has been
at the place that they have come to. Or WAL is on a small disk, and its archiver fails for some seconds; where no small disk can be made
this is left out. `make bench-guards`.
"""

import argparse
import os
import signal
import threading
import time
from bisect import bisect_right
from contextlib import contextmanager
from pathlib import Path

import psycopg

from beside import in_thread
from circumstances import RESULTS, add_common_arguments, begin, run_main, save_results
from cyclone_lab import checks
from cyclone_lab.background import Background, wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.small_disk import can_be_small, move_wal
from figures import guards_lines

CONFIG = {
    "shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "shared_buffers": "1GB", "max_wal_size": "20GB",
    "wal_keep_size": "20GB", "checkpoint_timeout": "1h", "synchronous_commit": "local",
    "wal_level": "logical",
}  # fmt: skip
ARCHIVER = "archiver"
CASES = (("standby", "VACUUM (FREEZE, PARALLEL 1)"), ("standby", "VACUUM (FULL INPLACE)"), ("subscriber", "VACUUM (FULL INPLACE)"),
         (ARCHIVER, "VACUUM (FREEZE, PARALLEL 1)"))  # fmt: skip
# For WAL on a small disk: it goes as soon as it may
ARCHIVER_CONFIG = {
    "archive_mode": "on", "archive_command": "true", "wal_level": "replica", "wal_keep_size": 0, "max_wal_size": "64MB",
    "min_wal_size": "32MB", "wal_recycle": "off", "checkpoint_timeout": "30s",
}  # fmt: skip
WAL_DISK_MB, FREE_MB, FAILS_SECONDS = 192, 64, 15
LOOK = """
    SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn,
           (SELECT sum(blocks_done) / max(blocks_total) FROM cyclone.progress WHERE blocks_total > 0)
"""
NAMES = {"standby": "a slow standby", "subscriber": "a slow subscriber", ARCHIVER: "an archiver that fails"}
SAMPLE_SECONDS, DUTY_SECONDS = 0.1, 0.1
MB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_500_000, help="size of the table (default: %(default)s)")
    parser.add_argument("--bound", type=float, default=3, help="cyclone.max_replica_lag, in s (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=0.1, help="share of the time that a standby replays (default: %(default)s)")
    parser.add_argument("--decoding-speed", type=float, default=0.02, help="share of the time that a subscriber's walsender works (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "guards")
    options = parser.parse_args()
    why_not = can_be_small()
    console, prefix, config, circumstances = begin(options, CONFIG)
    runs = {}
    for who, command in CASES:
        if who == ARCHIVER and why_not:
            console.print(f"{command}, {who}: left out, as a small disk can't be made here: {why_not}", highlight=False)
            continue
        for bound in (0, FREE_MB if who == ARCHIVER else options.bound):
            case = measure_archiver if who == ARCHIVER else measure
            runs[who, command, bound] = case(prefix, config, options, who, command, bound)
            console.print(f"{command}, {who}, {guard_of(who, bound)}: {summary(who, runs[who, command, bound])}", highlight=False)
    cases = [{"who": who, "command": command, "bound": bound, "samples": [[round(value, 2) for value in line] for line in samples]}
             for (who, command, bound), samples in runs.items()]  # fmt: skip
    save_results(options.results, circumstances, guards_lines, runs=cases)


def measure(prefix: Path, config: dict, options, who: str, command: str, bound: float) -> list[tuple]:
    """Return samples of a run: seconds since it began, lag in s, MB of WAL since then, share of the blocks of its phase, is it running?"""
    config = {**config, "cyclone.max_replica_lag": f"{int(bound * 1000)}ms"}
    with Cluster.create(prefix, config, base=options.base) as primary:
        primary.start()
        with primary.connect() as conn:
            make_tables(conn, options.rows)
            follower = with_subscriber(primary) if who == "subscriber" else with_standby(primary, options.base)
            with follower as (pid, place_of):
                conn.execute("CHECKPOINT")
                times, places, ends = [], [], []

                def lag_of(place, is_running):
                    times.append(time.monotonic())
                    places.append(place)
                    replayed = place_of()
                    if not is_running and not ends:
                        ends.append(place)
                    since = bisect_right(places, replayed)
                    return times[-1] - times[since] if since < len(times) else 0, bool(ends) and replayed >= ends[0]

                with slowed(pid, options.decoding_speed if who == "subscriber" else options.speed):
                    samples = sample(primary, command, lag_of)
                checks.assert_clean(conn, "t")
    return samples


def measure_archiver(prefix: Path, config: dict, options, _who: str, command: str, bound: float) -> list[tuple]:
    """The same with MB that are free where WAL is, while archiving fails for some seconds. The samples end when the server does."""
    config = {**config, **ARCHIVER_CONFIG, "cyclone.min_free_disk": f"{int(bound)}MB" if bound else "0"}
    with Cluster.create(prefix, config, base=options.base) as primary:
        disk = move_wal(primary, WAL_DISK_MB)
        try:
            primary.start()
            with primary.connect() as conn:
                make_tables(conn, options.rows)
                conn.execute("CHECKPOINT")
                wait_until(lambda: disk.used() < 80 * MB, "WAL to be archived and removed", 120)
                set_archiver(conn, "false")
                mend = threading.Timer(FAILS_SECONDS, set_archiver, (conn, "true"))
                mend.start()
                samples = sample(primary, command, lambda _place, is_running: (WAL_DISK_MB - disk.used() / MB, not is_running))
                mend.cancel()
                if not is_down(samples):
                    checks.assert_clean(conn, "t")
        finally:
            primary.stop("immediate")
            disk.remove()
    return samples


def set_archiver(conn, command: str) -> None:
    conn.execute(f"ALTER SYSTEM SET archive_command = '{command}'")
    conn.execute("SELECT pg_reload_conf()")


def sample(primary: Cluster, command: str, look) -> list[tuple]:
    """Run a command beside writers, and see how it gets on until look, given where the WAL is, says that it is over, or the server goes down."""
    start, samples, is_over = time.monotonic(), [], False
    conn = primary.connect()
    [(first, _)] = conn.execute(LOOK)
    try:
        with writing(primary):
            vacuum = Background(primary, "postgres", f"{command} t")
            while not is_over:
                is_running = vacuum.running
                [(place, progress)] = conn.execute(LOOK)
                figure, is_over = look(place, is_running)
                samples.append((time.monotonic() - start, figure, float(place - first) / MB, float(progress or 0), is_running))
                time.sleep(SAMPLE_SECONDS)
            vacuum.finish()
            conn.close()
    except psycopg.OperationalError:
        samples.append((time.monotonic() - start, 0.0, *samples[-1][2:4], False))
    return samples


def make_tables(conn, rows: int) -> None:
    conn.execute("CREATE EXTENSION pg_cyclone")
    checks.create_extensions(conn)
    conn.execute("CREATE TABLE t (id int, a int, note text)")
    conn.execute(f"INSERT INTO t SELECT i, hashint4(i), repeat('x', 80) FROM generate_series(1, {rows}) i")
    conn.execute("CREATE INDEX ON t (id)")
    conn.execute("DELETE FROM t WHERE id % 2 = 0")
    conn.execute("CREATE TABLE others (id int PRIMARY KEY, n int)")
    conn.execute("INSERT INTO others SELECT i, 0 FROM generate_series(1, 1000) i")


@contextmanager
def with_standby(primary: Cluster, base: Path):
    """A standby: yields the process that replays, and a function that says how far it is, in bytes of WAL."""
    with primary.standby({"cluster_name": "slow"}, base=base) as standby:
        standby.start()
        standby.wait_for_replay(primary)
        [(pid,)] = standby.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'")
        with standby.connect() as conn:
            yield pid, lambda: conn.execute("SELECT pg_last_wal_replay_lsn() - '0/0'::pg_lsn").fetchone()[0]


@contextmanager
def with_subscriber(primary: Cluster):
    """The same for a subscriber, in another database of the server: its walsender, and what it has confirmed."""
    primary.sql("CREATE DATABASE subscriber")
    with primary.connect() as conn, primary.connect("subscriber") as other:
        conn.execute("CREATE PUBLICATION p FOR TABLE others")
        conn.execute("SELECT pg_create_logical_replication_slot('slow', 'pgoutput')")
        other.execute("CREATE TABLE others (id int PRIMARY KEY, n int)")
        other.execute(f"CREATE SUBSCRIPTION slow CONNECTION 'host={primary.socket_dir} dbname=postgres user=postgres'"
                      " PUBLICATION p WITH (create_slot = false)")  # fmt: skip
        ready = "SELECT FROM pg_stat_subscription, pg_subscription_rel WHERE pid IS NOT NULL AND relid IS NULL AND srsubstate = 'r'"
        wait_until(lambda: other.execute(ready).fetchall(), "the subscriber")
        [(pid,)] = conn.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'slow'")
        yield pid, lambda: conn.execute("SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = 'slow'").fetchone()[0]


@contextmanager
def slowed(pid: int, speed: float):
    """Let a process be at work for no more than this share of the time."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(DUTY_SECONDS * (1 - speed))
            os.kill(pid, signal.SIGCONT)
            time.sleep(DUTY_SECONDS * speed)

    with in_thread(run, is_over):
        yield


@contextmanager
def writing(primary: Cluster):
    """Change rows of another table meanwhile."""
    is_over = threading.Event()

    def run() -> None:
        with primary.connect() as conn:
            while not is_over.wait(0.01):
                conn.execute("UPDATE others SET n = n + 1 WHERE id = 1 + (random() * 999)::int")

    with in_thread(run, is_over):
        yield


def guard_of(who: str, bound: float) -> str:
    """Return what holds VACUUM back, for people."""
    if not bound:
        return "no guard"
    return f"min_free_disk {bound:g} MB" if who == ARCHIVER else f"max_replica_lag {bound:g} s"


def summary(who: str, samples: list[tuple]) -> str:
    took = max(time for time, *_, is_running in samples if is_running)
    if who == ARCHIVER:
        return f"the server went down after {took:.1f} s" if is_down(samples) else f"{took:.1f} s, at least {min(line[1] for line in samples):.0f} MB free"
    return f"{took:.1f} s, longest lag {max(lag for _, lag, *_ in samples):.1f} s, caught up after {samples[-1][0]:.1f} s"


def is_down(samples: list[tuple]) -> bool:
    """Tell whether the samples of an archiver that fails end with the server's end."""
    return samples[-1][1] == 0


def draw(runs: dict):
    """Draw lag or free space, WAL and progress over time, a row for each case."""
    from drawing import CORE, NARROW, OURS, pyplot  # here, as numpy starts threads, with which there is no small disk

    cases = list(dict.fromkeys((who, command) for who, command, _ in runs))
    figure, axes = pyplot.subplots(len(cases), 3, figsize=(NARROW, 2.2 * len(cases)), layout="constrained", squeeze=False)
    for row, (who, command) in enumerate(cases):
        first = "free disk, MB" if who == ARCHIVER else "lag, s"
        for column, label in enumerate((first, "WAL, MB", "% of the phase")):
            panel, scale = axes[row][column], 100 if column == 2 else 1
            for (of, what, bound), samples in runs.items():
                if (of, what) == (who, command):
                    panel.plot([line[0] for line in samples], [scale * line[1 + column] for line in samples],
                               color=OURS if bound else CORE, linewidth=1.5)  # fmt: skip
                    if bound and column == 0:
                        panel.axhline(bound, color=OURS, linewidth=1, linestyle=":")
                    if who == ARCHIVER and column == 0 and is_down(samples):
                        panel.plot([samples[-1][0]], [0], marker="x", color=OURS if bound else CORE, markersize=9, markeredgewidth=2, clip_on=False)
            panel.set_title(f"\n{label}", loc="left", fontsize=10)  # the line above it is the row's
            panel.locator_params(nbins=4)
            panel.tick_params(labelsize=10)
        title = axes[row][0].annotate(f"{command}, {NAMES[who]}", (0, 1), (0, 21), xycoords="axes fraction", textcoords="offset points", fontsize=10)
        title.set_in_layout(False)
    for panel in axes[-1]:
        panel.set_xlabel("seconds")
    # one scale for one quantity
    rooms = [who == ARCHIVER for who, _ in cases]
    firsts = [[panel for panel, is_room in zip(axes[:, 0], rooms, strict=True) if is_room == kind] for kind in (False, True)]
    for panels in (*firsts, axes[:, 1], axes[:, 2]):
        for panel in panels:
            panel.set_ylim(0, max(one.get_ylim()[1] for one in panels))
    lines = [
        pyplot.Line2D([], [], color=CORE),
        pyplot.Line2D([], [], color=OURS),
        pyplot.Line2D([], [], color=OURS, linestyle=":"),
        pyplot.Line2D([], [], color="#303030", linestyle="", marker="x", markeredgewidth=2),
    ]
    figure.legend(lines, ["no guard", "with a guard", "its bound", "the server goes down"], loc="outside upper center", ncols=2)
    return figure


if __name__ == "__main__":
    run_main(main)
