"""What comes out: tables for the terminal."""

from statistics import median

from rich.console import Console

from grid import Grid
from tpcc.curve import PERCENTILES as HARM_PERCENTILES
from tpcc.curve import harm
from tpcc.measure import Experiment, Run
from tpcc.percentiles import PERCENTILES, percentiles
from tpcc.settings import NO_VACUUM, TARGET

MEBIBYTE = 1 << 20
NOISY = 1.3  # slowest run's median without VACUUM to the fastest one's
LEAST_SHARE = 0.95  # of the rate that a load must have kept to


def grid(experiment: Experiment) -> Grid:
    """Return the table, a row for each setting, with the medians of its runs."""
    names = ["median" if percent == 50 else f"p{percent}" for percent in PERCENTILES]
    header = ["New-Order, ms", *(f"{name} without" for name in names), *(f"{name} during" for name in names),
              "VACUUM, s", "WAL, MB", "pages dirtied"]  # fmt: skip
    rows = []
    for runs in experiment.by_setting():
        each = zip(*([*percentiles(run.latencies_outside()), *percentiles(run.latencies_inside())] for run in runs))
        numbers = [median(values) if None not in values else None for values in each]
        rows.append(
            [runs[0].setting.title, *("" if number is None else f"{number:.2f}" for number in numbers), *_vacuum_cells(runs)]
        )
    return Grid(header, rows)


def harm_grid(experiment: Experiment) -> Grid:
    """Return a row for each setting that compares each run with its own time before VACUUM: medians, least and most."""
    header = ["compared with its own time before", "VACUUM, s", *(f"p{percent} during, ×" for percent in HARM_PERCENTILES)]
    rows = []
    for runs in experiment.by_setting():
        seconds = _spread([run.vacuum.end - run.vacuum.begin for run in runs if run.vacuum], ".1f")
        rows.append([runs[0].setting.title, seconds, *(_harm_cell(runs, percent) for percent in HARM_PERCENTILES)])
    return Grid(header, rows)


def _spread(values: list[float], form: str) -> str:
    """Return the median of these values and, if there are several, the least and the most of them."""
    spread = f" ({min(values):{form}}–{max(values):{form}})" if len(values) > 1 else ""
    return f"{median(values):{form}}{spread}" if values else ""


def _harm_cell(runs: list[Run], percent: int) -> str:
    """Return what became of a percentile during VACUUM as a multiple of the same run's time before it."""
    return _spread([value for run in runs if run.vacuum and (value := harm(run, percent)) is not None], ".2f")


def _vacuum_cells(runs: list[Run]) -> list[str]:
    """Return duration, WAL and dirtied pages of the VACUUM as text; empty if there was none."""
    vacuums = [run.vacuum for run in runs if run.vacuum]
    if not vacuums:
        return [""] * 3
    seconds = f"{median(vacuum.end - vacuum.begin for vacuum in vacuums):.1f}"
    wal = f"{median(vacuum.wal_bytes for vacuum in vacuums) / MEBIBYTE:,.0f}"
    dirtied = f"{median(vacuum.dirtied for vacuum in vacuums):,.0f}"
    unfinished = [vacuum.scanned for vacuum in vacuums if not vacuum.finished]
    if not unfinished:
        return [seconds, wal, dirtied]
    which = f"{len(unfinished)} of {len(vacuums)} not finished" if len(vacuums) > 1 else "not finished"
    return [f"{which} in {seconds}: {median(unfinished):.1%} scanned", f"≥ {wal}", f"≥ {dirtied}"]


def target_lines(experiment: Experiment) -> list[str]:
    """Return a line for each run with a latency target that compares its 95th percentile with that of the run without VACUUM
    in its round.
    """
    lines = []
    without = None
    for run in experiment.runs:
        if run.setting.name == NO_VACUUM:
            without = percentiles(run.latencies_outside())[PERCENTILES.index(95)]
        elif run.setting.name == TARGET and without:
            during = percentiles(run.latencies_inside())[PERCENTILES.index(95)]
            if during:
                lines.append(f"{run.setting.title}: p95 of {during:.2f} ms, {during / without:.2f} times that of no VACUUM")
    return lines


def noise_lines(experiment: Experiment) -> list[str]:
    """Return a line if the runs differ even without VACUUM, so that the machine must have had other work to do; else none."""
    medians = sorted((median(values), run.setting.name) for run in experiment.runs if (values := run.latencies_outside()))
    if len(medians) < 2 or medians[-1][0] <= NOISY * medians[0][0]:
        return []
    (fastest, fastest_name), (slowest, slowest_name) = medians[0], medians[-1]
    return [f"noisy: without VACUUM, the median is {slowest:.2f} ms in {slowest_name}, {fastest:.2f} ms in {fastest_name}"]


def objections(experiment: Experiment) -> list[str]:
    """Return what makes the numbers doubtful."""
    return overload_lines(experiment) + [
        f"{run.setting.name}: {run.failed} transactions failed" for run in experiment.runs if run.failed
    ]


def overload_lines(experiment: Experiment) -> list[str]:
    """Return a line for each run that could not keep up with the load."""
    return [
        f"{run.setting.name}: the load came to {rate:.1f} transactions a second only, of {experiment.rate:.1f}"
        for run in experiment.runs
        if (rate := run.transactions / run.seconds) < LEAST_SHARE * experiment.rate
    ]


def remarks(experiment: Experiment) -> list[str]:
    """Return what should be known of the numbers, besides objections."""
    return [*target_lines(experiment), *noise_lines(experiment)]


def print_experiment(console: Console, experiment: Experiment) -> None:
    """Print the table, and whatever stands against trusting it."""
    console.print()
    console.print(grid(experiment).to_rich("New-Order without and during VACUUM of the large tables, milliseconds"))
    console.print(harm_grid(experiment).to_rich("New-Order during VACUUM, as a multiple of that before it"))
    for line in (*remarks(experiment), *objections(experiment)):
        console.print(line, highlight=False)
