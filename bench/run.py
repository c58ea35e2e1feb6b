"""Measures pg_cyclone's VACUUM as a ratio to PostgreSQL's in the same run.

Every timed VACUUM starts from an equal copy of one data directory, with the table in shared buffers; the contenders
take turns, in another order each round, and the median counts. Every run's numbers go to results.json. `make bench BENCH_ARGS="--scenario heap-deleted"`.
"""

import argparse
from dataclasses import asdict

from circumstances import RESULTS, add_common_arguments, begin, cores, run_main, save_results
from measure import CONFIG, measure
from report import objections, print_result
from scenarios import GROUPS, LARGE, SCENARIOS, Scenario

WORKER_COUNTS = (0, 1, 2, 4)
SCALE = 0.4


def default_worker_counts() -> list[int]:
    """Return WORKER_COUNTS, and what makes a process a core where there are more cores."""
    return sorted({*WORKER_COUNTS, max(cores() - 1, *WORKER_COUNTS)})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", action="append", default=[], choices=SCENARIOS, metavar="NAME",
                        help=f"what to vacuum; may be repeated (default: all): {', '.join(SCENARIOS)}")  # fmt: skip
    parser.add_argument("--group", action="append", default=[], choices=[*GROUPS], metavar="NAME",
                        help="the scenarios of a group; may be repeated (default: all):"
                             f" {', '.join(GROUPS)}")  # fmt: skip
    parser.add_argument("--scale", type=float, default=SCALE,
                        help="size of the tables; 1 makes 10 to 20 million rows, by scenario (default: %(default)s)")  # fmt: skip
    parser.add_argument("--rows", type=int, help="size of every table, whatever the scale")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=default_worker_counts(), metavar="N",
                        help="counts of pg_cyclone's parallel workers (default: %(default)s)")  # fmt: skip
    add_common_arguments(parser, RESULTS)
    options = parser.parse_args()
    if min(options.rounds, 1 if options.rows is None else options.rows) < 1 or options.scale <= 0 or min(options.workers) < 0:
        parser.error("--rows and --rounds are 1 or more, --scale more than 0, --workers 0 or more")
    return options


def chosen_scenarios(options: argparse.Namespace) -> list[Scenario]:
    """Return the scenarios that the options name, all but the large one if they name nothing."""
    everything = not (options.scenario or options.group)
    return [
        scenario
        for scenario in SCENARIOS.values()
        if (everything and scenario.group != LARGE) or scenario.name in options.scenario or scenario.group in options.group
    ]


def main() -> int:
    options = parse_arguments()
    console, prefix, config, circumstances = begin(options, CONFIG)
    scenarios = chosen_scenarios(options)
    common = {"rounds": options.rounds, "base": options.base, "say": lambda line: console.print(line, highlight=False)}

    results = []
    try:
        for scenario in scenarios:
            rows = options.rows or max(1, round(options.scale * scenario.rows))
            result = measure(scenario, prefix, config, rows=rows, worker_counts=options.workers, **common)
            results.append(result)
            print_result(console, result)
    finally:  # what there is when it is interrupted is worth having, too
        if results:
            save_results(options.results, circumstances, results=[asdict(result) for result in results])
    console.print(f"\nnumbers: {options.results}", highlight=False)
    return 1 if any(objections(result) for result in results) else 0


if __name__ == "__main__":
    run_main(main)
