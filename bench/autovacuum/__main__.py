"""Measures what it is worth that autovacuum runs on pg_cyclone's engine, and what it costs those who don't use it.

Two parts (`--only` chooses). churn: a load that changes two tables all the time, and autovacuum with the server's defaults by
PostgreSQL, by the engine, and by the engine with the latency target auto; bloat, latencies and processor time. seam: a server that
preloads pg_cyclone and has it off against one without it.
`make bench-autovacuum AUTOVACUUM_ARGS="--minutes 1.5 --churn-rows 60000 --seam-rounds 3"` to try it out.
"""

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from autovacuum import churn, seam
from autovacuum.report import Report, print_report, save_results
from circumstances import RESULTS, add_common_arguments, find_circumstances, print_circumstances
from cyclone_lab import build

PARTS = ("churn", "seam")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="autovacuum", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, metavar="PART",
                        help=f"the parts to run (default: all): {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=10, help="length of each run of churn (default: %(default)s)")
    parser.add_argument("--churn-rows", type=int, default=1_000_000, metavar="N",
                        help="rows of each of its two tables (default: %(default)s)")  # fmt: skip
    parser.add_argument("--rate", type=float, help="its load in transactions a second, without measuring the most")
    parser.add_argument("--seam-rounds", type=int, default=15, metavar="N", help="rounds of seam (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "autovacuum")
    options = parser.parse_args()
    if min(options.churn_rows // churn.CLIENTS, options.seam_rounds) < 1 or options.minutes * 60 < 20:
        parser.error(f"rounds are 1 or more, --churn-rows {churn.CLIENTS} or more, --minutes a third or more")
    return options


def main() -> int:
    options = parse_arguments()
    console = Console(width=None if sys.stdout.isatty() else 240)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # leave through the context managers
    prefix = build.install(options.major)
    circumstances = find_circumstances(prefix, dict(options.set), options.base)
    configs = {name: {**part.CONFIG, **dict(options.set)} for name, part in zip(PARTS, (churn, seam))}
    circumstances |= {f"settings of {part}": configs[part] for part in PARTS if part in options.only}
    print_circumstances(console, circumstances)

    def say(line: str) -> None:
        console.print(line, highlight=False)

    report = Report(circumstances)
    try:
        if "seam" in options.only:
            report.seam = seam.measure(prefix, configs["seam"], rounds=options.seam_rounds, base=options.base, say=say)
        if "churn" in options.only:
            _run_churn(options, prefix, configs["churn"], report, say)
    finally:  # what there is when it is interrupted is worth having, too
        if report.parts():
            save_results(options.results, report)
    print_report(console, report)
    say(f"\ntables, numbers and picture: {options.results}")
    return 1 if report.objections() else 0


def _run_churn(options: argparse.Namespace, prefix: Path, config: dict, report: Report, say) -> None:
    """Run the load once for PostgreSQL, once for the engine, and once for it with the target; the runs are in the report as they end."""
    sizes = {"rows": options.churn_rows, "minutes": options.minutes, "base": options.base}
    with churn.prepared(prefix, config, **sizes) as (original, measured):
        report.churn = measured
        measured.rate = options.rate or 0.0
        if options.rate is None:
            measured.most = churn.calibrate(original, measured, base=options.base)
            measured.rate = churn.SHARE_OF_MOST * measured.most
        say(f"churn: {measured.database_bytes >> 20} MB, {measured.rate:.0f} transactions a second")
        for name, settings in churn.CONTENDERS.items():
            run = churn.run(original, measured, name, settings, base=options.base)
            measured.runs.append(run)
            bloat, p95 = run.bloat()[1][-1] >> 20, run.percentiles[95]
            say(f"churn, {name}: bloat {bloat} MB, p95 {p95:.2f} ms, {len(run.autovacuums)} autovacuums")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, TimeoutError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")
