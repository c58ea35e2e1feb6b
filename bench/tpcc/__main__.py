"""Measures how VACUUM disturbs those who use the database, as it was measured when cost-based delay came into PostgreSQL in 2004.

A load in the manner of TPC-C runs at a rate that the machine can keep up with. After a while all large tables are vacuumed,
in each run with other settings, and the time that each New-Order takes is drawn as a dot. Every run starts from an equal
copy of one data directory. `make bench-tpcc TPCC_ARGS="--only no-vacuum core-no-delay --warehouses 4"`.
"""

import argparse
import signal
import sys

from rich.console import Console

from circumstances import RESULTS, add_common_arguments, find_circumstances, print_circumstances
from cyclone_lab import build
from tpcc.load import Sizes
from tpcc.measure import CONFIG, Schedule, calibrate, prepared, run
from tpcc.report import objections, print_experiment, save_results
from tpcc.settings import settings_with


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tpcc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [setting.name for setting in settings_with(["auto"])]
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME",
                        help=f"the settings to run (default: all): {', '.join(names)}")  # fmt: skip
    parser.add_argument("--skip", nargs="+", default=[], choices=names, metavar="NAME", help="settings not to run")
    parser.add_argument("--target", nargs="+", default=["auto", "3ms"], metavar="TARGET",
                        help="cyclone.latency_target, as 20ms; with several, a run for each (default: auto 3ms)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=1, metavar="N",
                        help="runs with each setting, taking turns; the table has medians (default: %(default)s)")  # fmt: skip
    parser.add_argument("--workers", type=int, metavar="N", help="VACUUM's PARALLEL (default: as the server decides)")
    parser.add_argument("--warehouses", type=int, default=12, metavar="N", help="size of the database (default: %(default)s)")
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
    for name, seconds, what in (
        ("rampup", 5, "before anything counts"),
        ("before", 10, "before VACUUM of the large tables"),
        ("cap", 75, "that VACUUM may take before it is broken off"),
        ("after", 5, "after VACUUM"),
    ):
        parser.add_argument(f"--{name}", type=float, default=seconds, metavar="SECONDS", help=f"{what} (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "tpcc")
    options = parser.parse_args()
    positive = [options.rounds, options.warehouses, options.part, options.buffers, options.clients, options.load]
    positive += [options.before, options.cap]
    if min(positive) <= 0 or min(options.rampup, options.after, options.workers or 0) < 0 or not 0 <= options.dead < 1:
        parser.error("sizes, shares and times are more than 0, --dead less than 1")
    return options


def main() -> int:
    options = parse_arguments()
    console = Console(width=None if sys.stdout.isatty() else 200)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # leave through the context managers
    prefix = build.install(options.major)
    config = {**CONFIG, **dict(options.set)}
    circumstances = find_circumstances(prefix, config, options.base)
    print_circumstances(console, circumstances)

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
            say(f"most: {experiment.most:.0f} transactions a second; the load is {experiment.rate:.0f}")
        try:
            for setting in options.rounds * settings_with(options.target):
                if setting.name in options.only and setting.name not in options.skip:
                    experiment.runs.append(run(original, experiment, setting, workers=options.workers, base=options.base))
                    say(f"{setting.title}: done")
        finally:  # what there is when it is interrupted is worth having, too
            if experiment.runs:
                circumstances |= {
                    "database": f"{sizes.warehouses} warehouses, {experiment.database_bytes >> 20} MB,"
                    f" shared_buffers {experiment.buffers}, dead rows {sizes.dead:.0%}",
                    "load": f"{experiment.rate:.0f} transactions a second by {experiment.clients} clients"
                    + (f", of {experiment.most:.0f} at most" if experiment.most else ""),
                }
                save_results(options.results, circumstances, experiment)
        print_experiment(console, experiment)
    say(f"\ntable, numbers and picture: {options.results}")
    return 1 if objections(experiment) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")
