"""What guards do for a standby that replays slowly: its lag, the WAL and the progress of a VACUUM over time, with and without them.

A primary with writers, and a standby whose replay is stopped for most of the time, as if its disk were slow. Each command runs
once without guards, and once with `cyclone.max_replica_lag`. Lag is measured here: since when the WAL has been at the place that
the standby has come to. `make bench-guards`.
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

from circumstances import RESULTS, add_common_arguments, circumstances_markdown, find_circumstances, print_circumstances
from cyclone_lab import build, checks
from cyclone_lab.background import Background, wait_until
from cyclone_lab.cluster import Cluster
from drawing import STYLE, save_figures

CONFIG = {
    "shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "shared_buffers": "1GB", "max_wal_size": "20GB",
    "wal_keep_size": "20GB", "checkpoint_timeout": "1h", "synchronous_commit": "local",
}  # fmt: skip
COMMANDS = ("VACUUM (FREEZE, PARALLEL 1)", "VACUUM (FULL INPLACE)")
SAMPLE_SECONDS, DUTY_SECONDS = 0.1, 0.1
MB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_500_000, help="size of the table (default: %(default)s)")
    parser.add_argument("--bound", type=float, default=3, help="cyclone.max_replica_lag, in s (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=0.1, help="share of the time that the standby replays (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "guards")
    options = parser.parse_args()
    prefix, config = build.install(options.major), {**CONFIG, **dict(options.set)}
    console = Console()
    circumstances = find_circumstances(prefix, config, options.base)
    print_circumstances(console, circumstances)
    runs = {}
    for command in COMMANDS:
        for bound in (0, options.bound):
            runs[command, bound] = measure(prefix, config, options, command, bound)
            console.print(f"{command}, {f'lag of {bound:g} s' if bound else 'no guard'}: {summary(runs[command, bound])}")
    report(console, options.results, circumstances, runs)


def measure(prefix: Path, config: dict, options, command: str, bound: float) -> list[tuple]:
    """Return samples of a run: seconds since it began, lag in s, MB of WAL since then, share of the blocks of its phase, is it running?"""
    config = {**config, "cyclone.max_replica_lag": f"{int(bound * 1000)}ms"}
    with Cluster.create(prefix, config, base=options.base) as primary:
        primary.start()
        conn = primary.connect()
        make_tables(conn, options.rows)
        with primary.standby({"cluster_name": "slow"}, base=options.base) as standby:
            standby.start()
            standby.wait_for_replay(primary)
            conn.execute("CHECKPOINT")
            with slowed(standby, options.speed), writing(primary):
                samples = sample(primary, standby, command)
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
    conn.execute("CREATE TABLE others AS SELECT i AS id, 0 AS n FROM generate_series(1, 1000) i")


@contextmanager
def slowed(standby: Cluster, speed: float):
    """Let a standby's replay be at work for no more than this share of the time."""
    [(pid,)] = standby.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'")
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


@contextmanager
def in_thread(run, is_over: threading.Event):
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def sample(primary: Cluster, standby: Cluster, command: str) -> list[tuple]:
    """Run a command; see how it gets on, and then how long the standby takes to catch up."""
    conn, other = primary.connect(), standby.connect()
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
        [(replayed,)] = other.execute("SELECT pg_last_wal_replay_lsn() - '0/0'::pg_lsn")
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
    other.close()
    return samples


def summary(samples: list[tuple]) -> str:
    took = max(time for time, *_, is_running in samples if is_running)
    return f"{took:.1f} s, longest lag {max(lag for _, lag, *_ in samples):.1f} s, caught up after {samples[-1][0]:.1f} s"


def report(console: Console, folder: Path, circumstances: dict, runs: dict) -> None:
    """Print a table, and write it, the samples and the chart."""
    folder.mkdir(parents=True, exist_ok=True)
    table = Table("command", "bound of lag, s", "it takes, s", "longest lag, s", "WAL, MB", "until the standby has caught up, s")
    with open(folder / "samples.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["command", "bound", "seconds", "lag", "wal_mb", "progress", "running"])
        for (command, bound), samples in runs.items():
            writer.writerows((command, bound, *line) for line in samples)
            took = max(time for time, *_, is_running in samples if is_running)
            table.add_row(command, f"{bound:g}" if bound else "none", f"{took:.1f}", f"{max(line[1] for line in samples):.1f}",
                          f"{samples[-1][2]:.0f}", f"{samples[-1][0]:.1f}")  # fmt: skip
    console.print(table)
    (folder / "circumstances.md").write_text(circumstances_markdown(circumstances))
    with pyplot.rc_context(STYLE):
        save_figures(folder, circumstances, {"guards": draw(runs)})


def draw(runs: dict):
    """Draw lag, WAL and progress over time, a column for each command."""
    figure, axes = pyplot.subplots(3, len(COMMANDS), figsize=(9, 7), sharex="col", layout="constrained", squeeze=False)
    for column, command in enumerate(COMMANDS):
        for row, (index, label) in enumerate(((1, "lag of the standby, s"), (2, "WAL, MB"), (3, "progress of the phase"))):
            for (whose, bound), samples in runs.items():
                if whose == command:
                    axes[row][column].plot([line[0] for line in samples], [line[index] for line in samples],
                                           color="#20639b" if bound else "#ed553b",
                                           label=f"bound of {bound:g} s" if bound else "no guard")  # fmt: skip
                    if bound and row == 0:
                        axes[row][column].axhline(bound, color="#20639b", linewidth=0.8, linestyle=":")
            axes[row][column].set_ylabel(label if column == 0 else "")
            axes[row][column].set_ylim(bottom=0)
        axes[0][column].set_title(command, loc="left")
        axes[2][column].set_xlabel("seconds")
    axes[0][0].legend()
    return figure


if __name__ == "__main__":
    main()
