"""VACUUM of a table larger than memory, on a real disk, by PostgreSQL and by pg_cyclone; and what it does to others' page cache.

A table with eight equal indexes, --size GB with these, every fiftieth row deleted. Each VACUUM starts from an equal copy of the data
directory of which nothing is in the page cache (POSIX_FADV_DONTNEED on each file, after it is written back; what stays nevertheless is
in the results). Beside it, what a small program of our own gets from the same disk, which reads and rewrites files as VACUUM does it, or
better. Then a hot table, a part of the page cache, is read by pgbench at random, while the large one is vacuumed.
The first round and the hot table come first, and of each round what matters most. What is there is saved after each run, and --resume
goes on from there. `make bench-large SIZE=31 BASE=/on/a/disk`.
"""

import argparse
import json
import mmap
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from matplotlib import pyplot
from matplotlib.figure import Figure
from rich.console import Console

from circumstances import RESULTS, add_common_arguments, circumstances_markdown, file_system, find_circumstances, print_circumstances
from cyclone_lab import build
from cyclone_lab.cluster import Cluster
from cyclone_lab.files import GIBIBYTE, assert_free
from cyclone_lab.postgres import hand_over
from drawing import STYLE, save_figures
from grid import Grid
from hot import PARTS, HotRun, average_kept, make_hot_table, measure_hot
from kernel import KernelUse, data_files
from measure import CONFIG, Contender, DeviceUse, Result, Run, contenders_for, is_kept, made, run_round
from report import MEBIBYTE, objections, print_result, save_json, save_results
from scenarios import LARGE, SCENARIOS
from tpcc.percentiles import percentile

ROWS_PER_GB = 4_800_000  # with the indexes
WORKER_COUNTS = (0, 1, 3)
UNPRESERVED_COUNTS = (1,)
HOT_CONTENDERS = (Contender("core", 1), Contender("pg_cyclone", 1), Contender("pg_cyclone", 1, page_cache="off"))
HOT_SHARE = 1 / 8  # of the large table's size
FIRST = (("core", 1), ("pg_cyclone", 1), ("core", 7), ("pg_cyclone", 0))  # who tells most
ROOM = 1.03  # of what there is; and a GB for WAL of the catalogs
HOT_COLORS = ("#8a8a8a", "#3b6fb6", "#c8553d")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=4, help="GB of the table with its indexes (default: %(default)s)")
    parser.add_argument("--hot", type=float, help=f"GB of the hot table; 0: leave that part out (default: {HOT_SHARE:g} of --size)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender (default: %(default)s)")
    parser.add_argument("--hot-rounds", type=int, default=1, help="runs of each beside the hot table (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKER_COUNTS, metavar="N",
                        help="counts of pg_cyclone's parallel workers (default: %(default)s)")  # fmt: skip
    parser.add_argument("--core-workers", type=int, nargs="+", metavar="N", help="the same of core (default: 0 1 7)")
    parser.add_argument("--unpreserved", type=int, nargs="*", default=UNPRESERVED_COUNTS, metavar="N",
                        help="the same with cyclone.preserve_page_cache off (default: %(default)s)")  # fmt: skip
    parser.add_argument("--before", type=float, default=15, help="seconds of load on the hot table before VACUUM (default: %(default)s)")
    parser.add_argument("--after", type=float, default=60, help="seconds of load after it (default: %(default)s)")
    parser.add_argument("--left", type=float, metavar="GB",
                        help="hold memory while it is measured, so that this much is left for the page cache")  # fmt: skip
    parser.add_argument("--keep", type=Path, metavar="FOLDER",
                        help="a folder instead of --base, in which the table stays for the next run; delete it afterwards")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on where an earlier run with these options ended, by the files in --results")
    parser.add_argument("--logged", action="store_true", help="a logged table, as most are: WAL takes a part of the disk's rate, and of its room")
    add_common_arguments(parser, RESULTS / "large")
    options = parser.parse_args()
    if options.size <= 0 or options.rounds < 1 or options.hot_rounds < 1:
        parser.error("--size is more than 0, --rounds and --hot-rounds 1 or more")
    if options.hot is None:
        options.hot = options.size * HOT_SHARE
    if options.keep:
        options.base = options.keep / "runs"
        make_empty(options.base)
    return options


def make_empty(folder: Path) -> None:
    """Make a folder for the server's files; what a run that was killed has left there goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    hand_over(folder)


def assert_fits(folder: Path, size: float, hot: float, *, logged: bool, is_made: bool = False) -> None:
    """Raise RuntimeError unless `folder` has room for the tables, unless they are made, a copy of them and, if logged, WAL with an
    image of each page.
    """
    times = 1 if is_made else 2
    parts = times + 1.2 * logged
    most = ((shutil.disk_usage(folder).free / GIBIBYTE - 1) / ROOM - times * hot) / parts
    needed = (parts * size + times * hot) * ROOM + 1
    assert_free(folder, needed * GIBIBYTE, f"choose another folder with --base, or --size {max(0, most):.1f} or less")


def hold_memory(left: float) -> mmap.mmap | None:
    """Fill memory of our own until `left` GB are available; return it, or None if no more are now.

    A small table is then larger than memory. Where there is swap it proves nothing.
    """
    [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")]
    surplus = int(line.split()[1]) * 1024 - int(left * GIBIBYTE)
    if surplus < MEBIBYTE:
        return None
    memory = mmap.mmap(-1, surplus)
    page = os.urandom(mmap.PAGESIZE)
    for start in range(0, surplus - mmap.PAGESIZE, mmap.PAGESIZE):
        memory[start : start + mmap.PAGESIZE] = page
    return memory


def cold_grid(result: Result) -> Grid:
    """Return what the kernel and the server say of each contender's VACUUM: medians of the rounds."""
    best = max((rate for rates in result.programs for name, rate in rates.items() if "rewrites" in name), default=0)
    header = ["VACUUM", "seconds", "reads, MB/s", "writes, MB/s", "of the program's best", "disk reads, MB/s", "disk writes, MB/s",
              "user, s", "system, s", "in page cache before, MB", "after, MB", "written back after, s"]  # fmt: skip
    rows = []
    for contender in result.contenders():
        runs = result.runs_of(contender)
        rates = [
            [count / run.seconds for count in (run.device.read_bytes, run.device.written_bytes, run.kernel.disk_read, run.kernel.disk_written)]
            for run in runs
        ]
        read, written, disk_read, disk_written = (median(column) for column in zip(*rates))
        rows.append([
            contender.name,
            f"{result.median_seconds(contender):.2f}",
            f"{read / MEBIBYTE:,.0f}",
            f"{written / MEBIBYTE:,.0f}",
            f"{(read + written) / (2 * best):.0%}" if best else "",
            f"{disk_read / MEBIBYTE:,.0f}",
            f"{disk_written / MEBIBYTE:,.0f}",
            f"{median(run.kernel.user for run in runs):.1f}",
            f"{median(run.kernel.system for run in runs):.1f}",
            f"{median(run.cached_before for run in runs) / MEBIBYTE:,.0f}",
            f"{median(run.cached_before + run.kernel.cached for run in runs) / MEBIBYTE:,.0f}",
            f"{median(run.left_dirty_seconds for run in runs):.1f}",
        ])  # fmt: skip
    return Grid(header, rows)


def program_grid(result: Result) -> Grid:
    """Return what the program gets from the disk, of each byte that it reads or reads and rewrites."""
    names = result.programs[0]
    return Grid(["a program that", "MB/s"], [[name, f"{median(rates[name] for rates in result.programs) / MEBIBYTE:,.0f}"] for name in names])


def hot_grid(runs: list[HotRun]) -> Grid:
    """Return a row for each run beside the hot table."""
    header = ["VACUUM", "seconds", "transactions/s", *(f"p95 {part}, ms" for part in PARTS), *(f"hit rate {part}" for part in PARTS),
              *(f"disk reads {part}, MB/s" for part in PARTS), "in page cache before", "at its end", "at the end"]  # fmt: skip
    return Grid(header, [
        [
            run.contender.name,
            f"{run.seconds:.2f}",
            f"{run.rate:,.0f}",
            *(_text(run.p95_ms[part], ".3f") for part in PARTS),
            *(_text(run.hit_rate[part], ".1%") for part in PARTS),
            *(f"{run.disk_reads[part] / MEBIBYTE:.1f}" for part in PARTS),
            _text(average_kept(run, float("-inf"), 0), ".1%"),
            _text(average_kept(run, run.seconds - 1, run.seconds + 1), ".1%"),
            _text(run.kept[-1][1] if run.kept else None, ".1%"),
        ]
        for run in runs
    ])  # fmt: skip


def _text(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def draw_hot(runs: list[HotRun]) -> Figure:
    """Draw the hot table's share in the page cache over time, and below it each second's 95th percentile; VACUUM is shaded."""
    figure, (shares, latencies) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5), layout="constrained")
    engines = list(dict.fromkeys(run.contender.name for run in runs))
    for number, run in enumerate(runs):
        color = HOT_COLORS[engines.index(run.contender.name) % len(HOT_COLORS)]
        shares.plot(*zip(*run.kept), color=color, label=run.contender.name if number < len(engines) else None)
        seconds: dict[int, list[float]] = {}
        for moment, ms in run.latencies:
            seconds.setdefault(int(moment // 1), []).append(ms)
        points = [(second, p95) for second, values in sorted(seconds.items()) if (p95 := percentile(values, 95)) is not None]
        latencies.plot(*zip(*points), color=color)
        for axes in (shares, latencies):
            axes.axvspan(0, run.seconds, color=color, alpha=0.12)
    shares.set_ylim(0, 1.05)
    shares.set_ylabel("share in the page cache")
    latencies.set_yscale("log")
    latencies.yaxis.set_major_formatter("{x:g}")
    latencies.yaxis.set_minor_formatter("{x:g}")
    latencies.set_ylabel("p95 of a second, ms")
    latencies.set_xlabel("seconds since VACUUM began (shaded: while it runs)")
    figure.suptitle("A hot table while a cold one is vacuumed")
    figure.legend(*shares.get_legend_handles_labels(), loc="outside right upper")
    return figure


def save(folder: Path, circumstances: dict, result: Result, hot_runs: list[HotRun]) -> None:
    """Write what the other benchmarks do, and large.md with what is told here, hot.json and hot.png beside it."""
    save_results(folder, circumstances, [result])
    parts = ["# VACUUM of a table larger than memory\n", circumstances_markdown(circumstances), cold_grid(result).to_markdown(),
             program_grid(result).to_markdown()]  # fmt: skip
    if hot_runs:
        with pyplot.rc_context(STYLE):
            pictures = save_figures(folder, circumstances, {"hot": draw_hot(hot_runs)})
        parts += [f"## A hot table beside it\n\n![hot]({pictures['hot']})\n", hot_grid(hot_runs).to_markdown()]
    (folder / "large.md").write_text("\n".join(parts))


def save_numbers(folder: Path, circumstances: dict, result: Result, hot_runs: list[HotRun]) -> None:
    """Write results.json and hot.json, from which `resumed` goes on."""
    save_json(folder, circumstances, [result])
    (folder / "hot.json").write_text(json.dumps([asdict(run) for run in hot_runs]) + "\n")


def resumed(folder: Path, circumstances: dict, result: Result) -> list[HotRun]:
    """Add the runs that `save_numbers` has written to an empty result; return those beside the hot table. There may be none.

    Raises RuntimeError if they are of another table, machine, commit or server.
    """
    if not (folder / "results.json").exists():
        return []
    saved = json.loads((folder / "results.json").read_text())
    [old] = saved["results"]
    for name, now, then in (
        *((name, circumstances[name], saved["circumstances"][name]) for name in ("commit", "PostgreSQL", "CPU", "data in", "settings")),
        ("memory left", _memory_left(circumstances), _memory_left(saved["circumstances"])),
        ("table", [result.scenario.about, result.rows], [old["scenario"]["about"], old["rows"]]),
    ):
        if now != then:
            raise RuntimeError(f"{folder} has results of another {name} ({then}, now {now}): leave out --resume, or name another --results")
    result.programs = old["programs"]
    result.runs = [
        Run(**{
            **run,
            "contender": Contender(**run["contender"]),
            "device": DeviceUse(**run["device"]),
            "kernel": KernelUse(**run["kernel"]),
        })
        for run in old["runs"]
    ]  # fmt: skip
    return [HotRun(**{**run, "contender": Contender(**run["contender"])}) for run in json.loads((folder / "hot.json").read_text())]


def _memory_left(circumstances: dict) -> str:
    """Return the words of main about how much memory was left; "" if none was held."""
    return circumstances.get("memory held", "").partition(", ")[2]


def all_contenders(options: argparse.Namespace) -> list[Contender]:
    """Return who competes, those who tell most first."""
    contenders = contenders_for(SCENARIOS[LARGE], list(options.workers), options.core_workers)
    contenders.sort(key=lambda one: FIRST.index((one.engine, one.workers)) if (one.engine, one.workers) in FIRST else len(FIRST))
    return contenders + [Contender("pg_cyclone", workers, page_cache="off") for workers in dict.fromkeys(options.unpreserved)]


def main() -> int:
    options = parse_arguments()
    console = Console(width=None if sys.stdout.isatty() else 240)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # leave through the context managers
    assert_fits(options.base, options.size, options.hot, logged=options.logged, is_made=is_kept(options.keep))
    prefix = build.install(options.major)
    config = {**CONFIG, **dict(options.set)}
    large = SCENARIOS[LARGE]
    scenario = replace(large, logged=options.logged, about=f"{large.about}, {'logged' if options.logged else 'unlogged'}")
    rows = max(1000, round(options.size * ROWS_PER_GB))
    circumstances = find_circumstances(prefix, config, options.base)
    circumstances["memory"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / GIBIBYTE:.1f} GB"
    circumstances["date"] = time.strftime("%Y-%m-%d")
    circumstances["page cache"] = "emptied of the data before each VACUUM: each file written back, then POSIX_FADV_DONTNEED"
    print_circumstances(console, circumstances)
    if file_system(options.base) == "tmpfs":
        console.print(f"{options.base} is in memory: there is no disk and no page cache in these numbers; name one with --base")

    def say(line: str) -> None:
        console.print(line, highlight=False)

    more = make_hot_table(options.hot * 1024) if options.hot else ()
    with made(scenario, prefix, config, rows=rows, base=options.base, say=say, more=more, kept=options.keep) as (original, result):
        held = hold_memory(options.left) if options.left else None
        if held:
            circumstances["memory held"] = f"{len(held) / GIBIBYTE:.1f} GB, so that {options.left:g} GB were left for all else"
        hot_runs = resumed(options.results, circumstances, result) if options.resume else []
        circumstances["GB in all"] = f"{sum(file.stat().st_size for file in data_files(original)) / GIBIBYTE:.1f}"
        try:
            measure(original, result, hot_runs, options, say, lambda: save_numbers(options.results, circumstances, result, hot_runs))
        finally:  # what there is when it is interrupted is worth having, too
            if len({run.contender.is_core for run in result.runs}) == 2:
                save(options.results, circumstances, result, hot_runs)
    print_result(console, result)
    for grid, title in ((cold_grid(result), "disk, processors and page cache"), (program_grid(result), "the same disk in the same run")):
        console.print(grid.to_rich(title))
    if hot_runs:
        console.print(hot_grid(hot_runs).to_rich("a hot table beside it"))
    say(f"\ntables, numbers and pictures: {options.results}")
    return 1 if objections(result) else 0


def measure(
    original: Cluster,
    result: Result,
    hot_runs: list[HotRun],
    options: argparse.Namespace,
    say: Callable[[str], None],
    after_run: Callable[[], None],
) -> None:
    """Add those of all runs that are not there yet: of each round those of the large table alone, then those beside the hot one."""
    for number in range(max(options.rounds, options.hot_rounds)):
        if number < options.rounds:
            for run in run_round(original, result, all_contenders(options), number, base=options.base):
                after_run()
                say(f"round {run.round} of {options.rounds}, {run.contender.name}: {run.seconds:.2f} s")
        if not options.hot or number >= options.hot_rounds:
            continue
        for place, contender in enumerate(HOT_CONTENDERS[:: -1 if number % 2 else 1]):
            if number * len(HOT_CONTENDERS) + place < len(hot_runs):
                continue
            rate = hot_runs[0].rate if hot_runs else None
            hot_runs.append(
                measure_hot(original, result.scenario, contender, rate, before=options.before, after=options.after, base=options.base)
            )
            after_run()
            say(f"beside a hot table, {contender.name}: {hot_runs[-1].seconds:.2f} s")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")
