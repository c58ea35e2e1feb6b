"""What became slower since an earlier commit, by phase, in the five cases of `make bench`.

Both libraries vacuum equal copies of the same data directory, in turns. A phase is slower or faster if the medians of all rounds
differ by more than the noise: the distance between the quartiles of either, and what VERBOSE rounds to.
`make bench-compare BEFORE=COMMIT COMPARE_ARGS="--base /dev/shm"`.
"""

import argparse
from collections import defaultdict
from dataclasses import dataclass
from statistics import median, quantiles

from rich.table import Table

from circumstances import RESULTS, add_common_arguments, begin, run_main, save_results
from cyclone_lab import build
from measure import CONFIG, Contender, Result, made, run_round
from scenarios import SCENARIOS

PHASES = ("heap scan", "index vacuum", "heap vacuum", "total")
ROUNDING = 0.001  # seconds, of what VERBOSE says of a phase


@dataclass(frozen=True)
class Library(Contender):
    """pg_cyclone as one of the two commits has it, which may not know each other's settings."""

    settings = ("SET cyclone.enabled = on",)


def noise(times: list[float]) -> float:
    """Return the distance between the quartiles."""
    low, _, high = quantiles(times, n=4)
    return high - low


def add_rows(table: Table, name: str, workers: int, times: dict[tuple[str, str], list[float]]) -> bool:
    """Add a row for each phase; return whether one is slower than before."""
    slower = False
    for phase in PHASES:
        before, after = (times[side, phase] for side in ("before", "after"))
        change, bound = median(after) - median(before), max(noise(before), noise(after), ROUNDING)
        verdict = "" if abs(change) <= bound else "SLOWER" if change > 0 else "faster"
        slower = slower or verdict == "SLOWER"
        figures = [f"{seconds * 1000:.0f}" for seconds in (median(before), median(after), bound)]
        figures.append(f"{change / median(before):+.1%}" if median(before) > 0 else "")
        table.add_row(name, str(workers), phase, *figures, verdict)
    return slower


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = [scenario.name for scenario in SCENARIOS.values() if scenario.group == "cases"]
    parser.add_argument("before", help="the commit to compare with")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, metavar="NAME", help="another table of make bench; may be repeated")
    parser.add_argument("--rows", type=int, default=4_000_000, help="of each table (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each library (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1], metavar="N", help="parallel workers (default: 0 1)")
    add_common_arguments(parser, RESULTS / "compare")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds is 3 or more")
    libraries = {"before": build.install_commit(options.before, options.major)}
    console, libraries["after"], config, circumstances = begin(options, CONFIG)
    table = Table("case", "workers", "phase", "before, ms", "after, ms", "noise, ms", "change", "", title=f"since {options.before}")
    found, slower = [], False
    for name in options.scenario or cases:
        times = defaultdict(lambda: defaultdict(list))
        with made(SCENARIOS[name], libraries["after"], config, rows=options.rows, base=options.base, say=console.print) as (original, result):
            for number in range(options.rounds):
                for workers in options.workers:
                    for side in sorted(libraries, reverse=number % 2 > 0):
                        original.prefix = libraries[side]
                        runs = Result(result.scenario, result.rows, result.heap_bytes, result.index_bytes, result.buffers)
                        [run] = run_round(original, runs, [Library("pg_cyclone", workers)], 0, base=options.base)
                        found.append({"case": name, "workers": workers, "side": side, "total": run.seconds, **run.phases})
                        for phase in PHASES:
                            times[workers][side, phase].append({"total": run.seconds, **run.phases}[phase])
        for workers in options.workers:
            slower = add_rows(table, name, workers, times[workers]) or slower
    console.print(table)
    save_results(options.results, circumstances, before=options.before, runs=found)
    return int(slower)


if __name__ == "__main__":
    run_main(main)
