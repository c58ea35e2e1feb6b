"""VACUUM of a table larger than memory, on a real disk, by PostgreSQL and by pg_cyclone.

A table with eight equal indexes, --size GB with these, every fiftieth row deleted. Each VACUUM starts from an equal copy of the data
directory of which nothing is in the page cache (POSIX_FADV_DONTNEED on each file, after it is written back; what stays nevertheless is
in the results). Of each round what matters most comes first. `make bench-large SIZE=31 BASE=/on/a/disk`.
"""

import argparse
import mmap
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from circumstances import RESULTS, add_common_arguments, begin, file_system, run_main, save_results
from cyclone_lab.files import GIBIBYTE, assert_free
from grid import Grid
from kernel import data_files
from measure import CONFIG, Contender, Result, contenders_for, made, run_round
from report import MEBIBYTE, objections, print_result
from scenarios import LARGE, SCENARIOS

ROWS_PER_GB = 4_800_000  # with the indexes
WORKER_COUNTS = (0, 1, 3)
UNPRESERVED_COUNTS = (1,)
FIRST = (("core", 1), ("pg_cyclone", 1), ("core", 7), ("pg_cyclone", 0))  # who tells most
ROOM = 1.03  # of what there is; and a GB for WAL of the catalogs


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=4, help="GB of the table with its indexes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKER_COUNTS, metavar="N",
                        help="counts of pg_cyclone's parallel workers (default: %(default)s)")  # fmt: skip
    parser.add_argument("--core-workers", type=int, nargs="+", metavar="N", help="the same of core (default: 0 1 7)")
    parser.add_argument("--unpreserved", type=int, nargs="*", default=UNPRESERVED_COUNTS, metavar="N",
                        help="the same with cyclone.preserve_page_cache off (default: %(default)s)")  # fmt: skip
    parser.add_argument("--left", type=float, metavar="GB",
                        help="hold memory while it is measured, so that this much is left for the page cache")  # fmt: skip
    parser.add_argument("--logged", action="store_true", help="a logged table, as most are: WAL takes a part of the disk's rate, and of its room")
    add_common_arguments(parser, RESULTS / "large")
    options = parser.parse_args()
    if options.size <= 0 or options.rounds < 1:
        parser.error("--size is more than 0, --rounds 1 or more")
    return options


def assert_fits(folder: Path, size: float, *, logged: bool) -> None:
    """Raise RuntimeError unless `folder` has room for the table, a copy of it and, if logged, WAL with an image of each page."""
    parts = 2 + 1.2 * logged
    most = (shutil.disk_usage(folder).free / GIBIBYTE - 1) / ROOM / parts
    assert_free(folder, (parts * size * ROOM + 1) * GIBIBYTE, f"choose another folder with --base, or --size {max(0, most):.1f} or less")


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
    """Return what each contender's VACUUM used: medians of the rounds."""
    header = ["VACUUM", "seconds", "reads, MB/s", "writes, MB/s", "user, s", "system, s", "in page cache before, MB", "after, MB",
              "written back after, s"]  # fmt: skip
    rows = []
    for contender in result.contenders():
        runs = result.runs_of(contender)
        figures = (
            [run.seconds, run.use.read / run.seconds / MEBIBYTE, run.use.written / run.seconds / MEBIBYTE, run.use.user, run.use.system,
             run.cached_before / MEBIBYTE, (run.cached_before + run.use.cached) / MEBIBYTE, run.left_dirty_seconds]
            for run in runs
        )  # fmt: skip
        rows.append([contender.name, *(f"{median(column):,.1f}" for column in zip(*figures))])
    return Grid(header, rows)


def all_contenders(options: argparse.Namespace) -> list[Contender]:
    """Return who competes, those who tell most first."""
    contenders = contenders_for(SCENARIOS[LARGE], list(options.workers), options.core_workers)
    contenders.sort(key=lambda one: FIRST.index((one.engine, one.workers)) if (one.engine, one.workers) in FIRST else len(FIRST))
    return contenders + [Contender("pg_cyclone", workers, page_cache="off") for workers in dict.fromkeys(options.unpreserved)]


def main() -> int:
    options = parse_arguments()
    assert_fits(options.base, options.size, logged=options.logged)
    console, prefix, config, circumstances = begin(options, CONFIG)
    large = SCENARIOS[LARGE]
    scenario = replace(large, logged=options.logged, about=f"{large.about}, {'logged' if options.logged else 'unlogged'}")
    rows = max(1000, round(options.size * ROWS_PER_GB))
    circumstances["memory"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / GIBIBYTE:.1f} GB"
    circumstances["page cache"] = "emptied of the data before each VACUUM: each file written back, then POSIX_FADV_DONTNEED"
    if file_system(options.base) == "tmpfs":
        console.print(f"{options.base} is in memory: there is no disk and no page cache in these numbers; name one with --base")

    def say(line: str) -> None:
        console.print(line, highlight=False)

    with made(scenario, prefix, config, rows=rows, base=options.base, say=say) as (original, result):
        held = hold_memory(options.left) if options.left else None
        if held:
            circumstances["memory held"] = f"{len(held) / GIBIBYTE:.1f} GB, so that {options.left:g} GB were left for all else"
        circumstances["GB in all"] = f"{sum(file.stat().st_size for file in data_files(original)) / GIBIBYTE:.1f}"
        try:
            for number in range(options.rounds):
                for one in run_round(original, result, all_contenders(options), number, base=options.base):
                    say(f"round {one.round} of {options.rounds}, {one.contender.name}: {one.seconds:.2f} s")
        finally:  # what there is when it is interrupted is worth having, too
            if len({one.contender.is_core for one in result.runs}) == 2:
                save_results(options.results, circumstances, results=[asdict(result)])
    print_result(console, result)
    console.print(cold_grid(result).to_rich("disk, processors and page cache"))
    say(f"\nnumbers: {options.results}")
    return 1 if objections(result) else 0


if __name__ == "__main__":
    run_main(main)
