"""What guards do for a standby or a subscriber that is slow: its lag, the WAL and the progress of a VACUUM over time, with and without them.

A primary with writers, and a standby whose replay is stopped for most of the time, as if its disk were slow, or a logical subscriber
whose apply worker is. Each command runs once without guards, and once with `cyclone.max_replica_lag`. Lag is measured here: since when
the WAL has been at the place that the standby has come to, or that the subscriber has confirmed. `make bench-guards`.
"""

import argparse
import csv
import os
import signal
import threading
import time
from bisect import bisect_right
from contextlib import contextmanager
from pathlib import Path

from matplotlib import pyplot
from rich.console import Console
from rich.table import Table

from beside import in_thread
from circumstances import RESULTS, add_common_arguments, circumstances_markdown, find_circumstances, print_circumstances
from cyclone_lab import build, checks
from cyclone_lab.background import Background, wait_until
from cyclone_lab.cluster import Cluster
from drawing import STYLE, save_figures

CONFIG = {
    "shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "shared_buffers": "1GB", "max_wal_size": "20GB",
    "wal_keep_size": "20GB", "checkpoint_timeout": "1h", "synchronous_commit": "local",
    "wal_level": "logical",
}  # fmt: skip
CASES = (("standby", "VACUUM (FREEZE, PARALLEL 1)"), ("standby", "VACUUM (FULL INPLACE)"), ("subscriber", "VACUUM (FREEZE, PARALLEL 1)"))
SAMPLE_SECONDS, DUTY_SECONDS = 0.1, 0.1
MB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_500_000, help="size of the table (default: %(default)s)")
    parser.add_argument("--bound", type=float, default=3, help="cyclone.max_replica_lag, in s (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=0.1, help="share of the time that the standby or subscriber is at work (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "guards")
    options = parser.parse_args()
    prefix, config = build.install(options.major), {**CONFIG, **dict(options.set)}
    console = Console()
    circumstances = find_circumstances(prefix, config, options.base)
    print_circumstances(console, circumstances)
    runs = {}
    for who, command in CASES:
        for bound in (0, options.bound):
            runs[who, command, bound] = measure(prefix, config, options, who, command, bound)
            console.print(f"{command}, {who}, {f'lag of {bound:g} s' if bound else 'no guard'}: {summary(runs[who, command, bound])}")
    report(console, options.results, circumstances, runs)


def measure(prefix: Path, config: dict, options, who: str, command: str, bound: float) -> list[tuple]:
    """Return samples of a run: seconds since it began, lag in s, MB of WAL since then, share of the blocks of its phase, is it running?"""
    config = {**config, "cyclone.max_replica_lag": f"{int(bound * 1000)}ms"}
    with Cluster.create(prefix, config, base=options.base) as primary:
        primary.start()
        conn = primary.connect()
        make_tables(conn, options.rows)
        follower = with_subscriber(primary) if who == "subscriber" else with_standby(primary, options.base)
        with follower as (pid, place_of):
            conn.execute("CHECKPOINT")
            with slowed(pid, options.speed), writing(primary):
                samples = sample(primary, place_of, command)
            checks.assert_clean(conn, "t")
        conn.close()
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
    """The same for a subscriber, in another database of the server: the process that applies, and what it has confirmed."""
    primary.sql("CREATE DATABASE subscriber")
    with primary.connect() as conn, primary.connect("subscriber") as other:
        conn.execute("CREATE PUBLICATION p FOR TABLE others")
        conn.execute("SELECT pg_create_logical_replication_slot('slow', 'pgoutput')")
        other.execute("CREATE TABLE others (id int PRIMARY KEY, n int)")
        other.execute(f"CREATE SUBSCRIPTION slow CONNECTION 'host={primary.socket_dir} dbname=postgres user=postgres'"
                      " PUBLICATION p WITH (create_slot = false)")  # fmt: skip
        ready = "SELECT pid FROM pg_stat_subscription, pg_subscription_rel WHERE pid IS NOT NULL AND relid IS NULL AND srsubstate = 'r'"
        [(pid,)] = wait_until(lambda: other.execute(ready).fetchall(), "the subscriber")
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


def sample(primary: Cluster, place_of, command: str) -> list[tuple]:
    """Run a command; see how it gets on, and then how long the standby or subscriber takes to catch up."""
    conn = primary.connect()
    start, times, places, ends, samples = time.monotonic(), [], [], [], []
    [(first,)] = conn.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
    vacuum = Background(primary, "postgres", f"{command} t")

    def look() -> bool:
        [(place, progress)] = conn.execute(
            "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn,"
            " (SELECT sum(blocks_done) / max(blocks_total) FROM cyclone.progress WHERE blocks_total > 0)"
        )
        times.append(time.monotonic())
        places.append(place)
        replayed = place_of()
        since = bisect_right(places, replayed)
        lag = times[-1] - times[since] if since < len(times) else 0
        samples.append((times[-1] - start, lag, float(place - first) / MB, float(progress or 0), vacuum.running))
        if not vacuum.running and not ends:
            ends.append(place)
        time.sleep(SAMPLE_SECONDS)
        return ends and replayed >= ends[0]

    wait_until(look, "the end of VACUUM, and of the lag", 1800)
    vacuum.finish()
    conn.close()
    return samples


def summary(samples: list[tuple]) -> str:
    took = max(time for time, *_, is_running in samples if is_running)
    return f"{took:.1f} s, longest lag {max(lag for _, lag, *_ in samples):.1f} s, caught up after {samples[-1][0]:.1f} s"


def report(console: Console, folder: Path, circumstances: dict, runs: dict) -> None:
    """Print a table, and write it, the samples and the chart."""
    folder.mkdir(parents=True, exist_ok=True)
    table = Table("who is slow", "command", "bound of lag, s", "it takes, s", "longest lag, s", "WAL, MB", "until it has caught up, s")
    with open(folder / "samples.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["who", "command", "bound", "seconds", "lag", "wal_mb", "progress", "running"])
        for (who, command, bound), samples in runs.items():
            writer.writerows((who, command, bound, *line) for line in samples)
            took = max(time for time, *_, is_running in samples if is_running)
            table.add_row(who, command, f"{bound:g}" if bound else "none", f"{took:.1f}", f"{max(line[1] for line in samples):.1f}",
                          f"{samples[-1][2]:.0f}", f"{samples[-1][0]:.1f}")  # fmt: skip
    console.print(table)
    (folder / "circumstances.md").write_text(circumstances_markdown(circumstances))
    with pyplot.rc_context(STYLE):
        save_figures(folder, circumstances, {"guards": draw(runs)})


def draw(runs: dict):
    """Draw lag, WAL and progress over time, a column for each case."""
    figure, axes = pyplot.subplots(3, len(CASES), figsize=(4.5 * len(CASES), 7), sharex="col", layout="constrained", squeeze=False)
    for column, case in enumerate(CASES):
        for row, (index, label) in enumerate(((1, "lag, s"), (2, "WAL, MB"), (3, "progress of the phase"))):
            for (who, command, bound), samples in runs.items():
                if (who, command) == case:
                    axes[row][column].plot([line[0] for line in samples], [line[index] for line in samples],
                                           color="#20639b" if bound else "#ed553b",
                                           label=f"bound of {bound:g} s" if bound else "no guard")  # fmt: skip
                    if bound and row == 0:
                        axes[row][column].axhline(bound, color="#20639b", linewidth=0.8, linestyle=":")
            axes[row][column].set_ylabel(label if column == 0 else "")
            axes[row][column].set_ylim(bottom=0)
        axes[0][column].set_title(f"{case[1]}, {case[0]}", loc="left")
        axes[2][column].set_xlabel("seconds")
    axes[0][0].legend()
    return figure


if __name__ == "__main__":
    main()
