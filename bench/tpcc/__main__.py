"""Measures how VACUUM disturbs those who use the database, as it was measured when cost-based delay came into PostgreSQL in 2004.

A load in the manner of TPC-C runs at a rate that the machine can keep up with. After a while all large tables are vacuumed,
in each run with other settings, and the time that each New-Order takes is kept. Every run starts from an equal
copy of one data directory. The settings are no delay and budgets, of both engines, and the adaptive delay: harm against time.
`make bench-tpcc TPCC_ARGS="--only core-no-delay cyclone-no-delay --warehouses 4"`.
"""

import argparse
import re
from dataclasses import asdict

from circumstances import RESULTS, add_common_arguments, begin, run_main, save_results
from tpcc.load import Sizes
from tpcc.measure import CONFIG, Schedule, calibrate, prepared, run
from tpcc.report import grid, objections, points
from tpcc.settings import Budget, all_settings

USUAL_BUDGETS = [Budget(limit, 2) for limit in (200, 400, 800, 1600, 3200)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tpcc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="the settings to run (default: all): core-no-delay, cyclone-no-delay,"
                        " core-LIMIT/MS and cyclone-LIMIT/MS of each budget, cyclone-adaptive")  # fmt: skip
    parser.add_argument("--budget", nargs="+", type=_parse_budget, default=USUAL_BUDGETS, metavar="LIMIT/MS",
                        help="vacuum_cost_limit and vacuum_cost_delay in ms"
                        f" (default: {' '.join(map(str, USUAL_BUDGETS))})")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=1, metavar="N",
                        help="runs with each setting, taking turns; the table has medians (default: %(default)s)")  # fmt: skip
    parser.add_argument("--warehouses", type=int, default=12, metavar="N",
                        help="size of the database (default: %(default)s)")  # fmt: skip
    parser.add_argument("--part", type=float, default=1.0,
                        help="rows of a warehouse as a part of the specified ones (default: %(default)s)")  # fmt: skip
    parser.add_argument("--dead", type=float, default=0.2,
                        help="share of rows updated, and of orders deleted, beforehand (default: %(default)s)")  # fmt: skip
    parser.add_argument("--buffers", type=float, default=0.25,
                        help="shared_buffers as a part of the database (default: %(default)s)")  # fmt: skip
    parser.add_argument("--clients", type=int, default=16, metavar="N", help="sessions of the load (default: %(default)s)")
    parser.add_argument("--load", type=float, default=0.45,
                        help="the load as a part of the most that was measured (default: %(default)s)")  # fmt: skip
    parser.add_argument("--rate", type=float, help="the load in transactions a second, without measuring the most")
    for (name, what), seconds in zip(
        (
            ("rampup", "before anything counts"),
            ("before", "before VACUUM of the large tables"),
            ("cap", "that VACUUM may take before it is broken off"),
            ("after", "after VACUUM"),
        ),
        (5, 10, 75, 5),
    ):
        parser.add_argument(f"--{name}", type=float, default=seconds, metavar="SECONDS", help=f"{what} (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "tpcc")
    options = parser.parse_args()
    positive = [options.rounds, options.warehouses, options.part, options.buffers, options.clients, options.load]
    positive += [options.before, options.cap]
    if min(positive) <= 0 or min(options.rampup, options.after) < 0 or not 0 <= options.dead < 1:
        parser.error("sizes, shares and times are more than 0, --dead less than 1")
    settings = {setting.name: setting for setting in all_settings(options.budget)}
    if unknown := {*(options.only or [])} - {*settings}:
        parser.error(f"no such setting here: {' '.join(sorted(unknown))}")
    options.settings = [setting for name, setting in settings.items() if not options.only or name in options.only]
    return options


def _parse_budget(text: str) -> Budget:
    """Split LIMIT/MS; raise ArgumentTypeError if it is not that."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not LIMIT/MS")
    return Budget(int(found[1]), int(found[2]))


def main() -> int:
    options = parse_arguments()
    console, prefix, config, circumstances = begin(options, CONFIG)

    def say(line: str) -> None:
        console.print(line, highlight=False)

    sizes = Sizes(options.warehouses, options.part, options.dead)
    schedule = Schedule(options.rampup, options.before, options.cap, options.after)
    common = {"schedule": schedule, "clients": options.clients, "buffers": options.buffers, "base": options.base, "say": say}
    with prepared(prefix, config, sizes, **common) as (original, experiment):
        experiment.rate = options.rate
        if options.rate is None:
            experiment.most = calibrate(original, experiment, base=options.base)
            experiment.rate = options.load * experiment.most
            say(f"most: {experiment.most:.1f} transactions a second; the load is {experiment.rate:.1f}")
        try:
            for setting in options.rounds * options.settings:
                experiment.runs.append(run(original, experiment, setting, base=options.base))
                say(f"{setting.title}: done")
        finally:  # what there is when it is interrupted is worth having, too
            if experiment.runs:
                circumstances |= {
                    "database": f"{sizes.warehouses} warehouses, {experiment.database_bytes >> 20} MB,"
                    f" shared_buffers {experiment.buffers}, dead rows {sizes.dead:.0%}",
                    "load": f"{experiment.rate:.1f} transactions a second by {experiment.clients} clients"
                    + (f", of {experiment.most:.1f} at most" if experiment.most else ""),
                }
                save_results(options.results, circumstances, **asdict(experiment), points=[asdict(point) for point in points(experiment)])
    console.print(grid(experiment).to_rich("VACUUM of the large tables"))
    for line in objections(experiment):
        say(line)
    say(f"\nnumbers: {options.results}")
    return 1 if objections(experiment) else 0


if __name__ == "__main__":
    run_main(main)
