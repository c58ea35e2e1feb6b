"""Harm against time: how much slower New-Orders are while the tables are vacuumed, and how long that takes, as curves.

Each run is compared with its own time before VACUUM, so a machine that is slower for a while doesn't count as harm. A point is
the median of a setting's runs, its bars go from the least to the most.
"""

from dataclasses import dataclass
from statistics import median

from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from tpcc.measure import Experiment, Run
from tpcc.percentiles import percentile
from tpcc.settings import CORE_CURVE, CYCLONE_CURVE, TARGET_CURVE

PERCENTILES = (95, 99)
# Color, marker and line; where a point's name goes
STYLES = {
    CORE_CURVE: ("#3b6fb6", "o-", {"xytext": (-5, -9), "ha": "right"}),
    CYCLONE_CURVE: ("#e0602c", "s-", {"xytext": (5, 5), "ha": "left"}),
    TARGET_CURVE: ("#2e8b57", "D", {"xytext": (0, -13), "ha": "center"}),
}


@dataclass(frozen=True)
class Spread:
    """A quantity of some runs."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(min(values), median(values), max(values))

    @property
    def bars(self) -> tuple[list[float], list[float]]:
        """How far it goes below the median, and above it, as matplotlib wants it."""
        return [self.median - self.low], [self.high - self.median]


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
    return sorted(found, key=lambda point: (list(STYLES).index(point.curve), point.seconds.median))


def draw_curves(experiment: Experiment) -> Figure | None:
    """Draw a panel for each percentile; None if there is no curve, that is no two points of one."""
    all_points = points(experiment)
    if len(all_points) - len({point.curve for point in all_points}) < 1:
        return None
    figure, panels = pyplot.subplots(1, len(PERCENTILES), figsize=(12, 4.6), sharex=True, layout="constrained")
    for panel, percent in zip(panels, PERCENTILES):
        for curve in STYLES:
            _draw_curve(panel, percent, curve, [point for point in all_points if point.curve == curve])
        panel.axhline(1, color="#909090", linewidth=0.8)
        panel.set_title(f"{percent}th percentile of New-Order during VACUUM, × that before it", loc="left")
        panel.set_xlabel("seconds that VACUUM took")
        for axis, scale in ((panel.xaxis, panel.set_xscale), (panel.yaxis, panel.set_yscale)):
            scale("log", subs=(2, 5))
            axis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
            axis.set_minor_formatter(_minor_labels(axis))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=len(STYLES),
        title=f"Harm against time: {experiment.rate:.0f} transactions a second, {experiment.database_bytes >> 20} MB,"
        f" shared_buffers {experiment.buffers}; median and spread of {_rounds(experiment)}; hollow: not finished",
        title_fontsize=11,
    )
    return figure


def _minor_labels(axis) -> FuncFormatter | NullFormatter:
    """Label the 2 and 5 between the powers of 10, where few of these are in sight."""
    low, high = axis.get_view_interval()
    return FuncFormatter(lambda value, _position: f"{value:g}") if high < 100 * low else NullFormatter()


def _rounds(experiment: Experiment) -> str:
    number = max(len(runs) for runs in experiment.by_setting())
    return f"{number} rounds" if number > 1 else "1 round"


def _draw_curve(panel: pyplot.Axes, percent: int, curve: str, of_curve: list[Point]) -> None:
    if not of_curve:
        return
    color, style, place = STYLES[curve]
    finished = [point for point in of_curve if point.finished]
    panel.plot([point.seconds.median for point in finished], [point.harm[percent].median for point in finished], style,
               color=color, markersize=5, label=curve)  # fmt: skip
    for point in of_curve:
        harmed = point.harm[percent]
        panel.errorbar(point.seconds.median, harmed.median, xerr=point.seconds.bars, yerr=harmed.bars, fmt=style[0],
                       color=color, markersize=5, markerfacecolor=color if point.finished else "white", capsize=2,
                       linewidth=0.9)  # fmt: skip
        name = point.title.split(", ", 1)[1].removeprefix("latency target ")
        panel.annotate(name, (point.seconds.median, harmed.median), textcoords="offset points", fontsize=7, color=color, **place)
