"""Harm against time: how much slower New-Orders are while the tables are vacuumed, and how long that takes: the points of curves, which `make
figures` draws.

Each run is compared with its own time before VACUUM, so a machine that is slower for a while doesn't count as harm. A point is
the median of a setting's runs, with the least and the most of them.
"""

from dataclasses import dataclass
from statistics import median

from tpcc.measure import Experiment, Run
from tpcc.percentiles import percentile
from tpcc.settings import CORE_CURVE, CYCLONE_CURVE, TARGET_CURVE

PERCENTILES = (95, 99)
CURVES = (CORE_CURVE, CYCLONE_CURVE, TARGET_CURVE)


@dataclass(frozen=True)
class Spread:
    """A quantity of some runs."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(min(values), median(values), max(values))


@dataclass(frozen=True)
class Point:
    """A setting's place on its curve."""

    title: str
    curve: str
    seconds: Spread  # of VACUUM; of one that was broken off, up to then
    harm: dict[int, Spread]  # for each of PERCENTILES: during VACUUM, as a multiple of that before it
    finished: bool  # in each run


def harm(run: Run, percent: int) -> float | None:
    """Return this percentile of the New-Orders that met the VACUUM as a multiple of that before it; None if there were too few."""
    before, during = percentile(run.latencies_before(), percent), percentile(run.latencies_inside(), percent)
    return during / before if before and during else None


def points(experiment: Experiment) -> list[Point]:
    """Return the points of all curves, each curve's in the order of their times."""
    found = []
    for runs in experiment.by_setting():
        runs = [run for run in runs if run.vacuum and None not in (harm(run, percent) for percent in PERCENTILES)]
        if runs and runs[0].setting.curve:
            found.append(
                Point(
                    runs[0].setting.title,
                    runs[0].setting.curve,
                    Spread.of([run.vacuum.end - run.vacuum.begin for run in runs]),
                    {percent: Spread.of([harm(run, percent) for run in runs]) for percent in PERCENTILES},
                    all(run.vacuum.finished for run in runs),
                )
            )
    return sorted(found, key=lambda point: (CURVES.index(point.curve), point.seconds.median))
