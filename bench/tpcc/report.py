"""Harm against time: how much slower New-Orders are while the tables are vacuumed, and how long that takes: the points of curves, which
`make figures` draws, and a table for the terminal.

Each run is compared with its own time before VACUUM, so a machine that is slower for a while doesn't count as harm. A point is
the median of a setting's runs, with the least and the most of them.
"""

from dataclasses import dataclass

from beside import percentile
from grid import Grid, Spread
from tpcc.measure import Experiment, Run
from tpcc.settings import ADAPTIVE_CURVE, CORE_CURVE, CYCLONE_CURVE

PERCENTILES = (95, 99)
CURVES = (CORE_CURVE, CYCLONE_CURVE, ADAPTIVE_CURVE)
LEAST_SHARE = 0.95  # of the rate that a load must have kept to


@dataclass(frozen=True)
class Point:
    """A setting's place on its curve."""

    title: str
    curve: str
    seconds: Spread  # of VACUUM; of one that was broken off, up to then
    harm: dict[int, Spread]  # for each of PERCENTILES: during VACUUM, as a multiple of that before it
    finished: bool  # in each run


def harm(run: Run, percent: int) -> float | None:
    """Return this percentile of the New-Orders that met the VACUUM as a multiple of that before it; None if there were none."""
    before, during = percentile(run.latencies_before(), percent), percentile(run.latencies_inside(), percent)
    return during / before if before and during else None


def points(experiment: Experiment) -> list[Point]:
    """Return the points of all curves, each curve's in the order of their times."""
    found = []
    for runs in experiment.by_setting():
        runs = [run for run in runs if None not in (harm(run, percent) for percent in PERCENTILES)]
        if runs:
            setting = runs[0].setting
            harms = {percent: Spread.of([harm(run, percent) for run in runs]) for percent in PERCENTILES}
            seconds = Spread.of([run.vacuum_end - run.vacuum_begin for run in runs])
            found.append(Point(setting.title, setting.curve, seconds, harms, all(run.finished for run in runs)))
    return sorted(found, key=lambda point: (CURVES.index(point.curve), point.seconds.median))


def grid(experiment: Experiment) -> Grid:
    """Return a row for each point."""
    header = ["New-Order during VACUUM, as a multiple of that before", "VACUUM, s", *(f"p{percent}, ×" for percent in PERCENTILES)]
    return Grid(header, [[point.title, f"{point.seconds}{'' if point.finished else ', not finished'}", *map(str, point.harm.values())]
                         for point in points(experiment)])  # fmt: skip


def objections(experiment: Experiment) -> list[str]:
    """Return what makes the numbers doubtful: a load that could not be kept up with, and transactions that failed."""
    found = []
    for run in experiment.runs:
        if (rate := run.transactions / run.seconds) < LEAST_SHARE * experiment.rate:
            found.append(f"{run.setting.name}: the load came to {rate:.1f} transactions a second only, of {experiment.rate:.1f}")
        if run.failed:
            found.append(f"{run.setting.name}: {run.failed} transactions failed")
    return found
