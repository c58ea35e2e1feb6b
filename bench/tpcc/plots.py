"""The picture: each New-Order a dot, their running mean a line, and the time of VACUUM shaded; a panel for each setting's last run."""

from itertools import accumulate
from math import ceil
from pathlib import Path

from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from drawing import STYLE, save_figures
from tpcc.curve import draw_curves
from tpcc.measure import Experiment, Run

RUNNING = 50  # New-Orders in the running mean
COLUMNS = 2
TITLES = {"latencies": "New-Order, setting by setting", "curve": "harm against time"}
DOT, LINE, SHADE, UNFINISHED_SHADE = "#3b6fb6", "#e0602c", "#f7dfa5", "#f3c9c0"


def save_plots(folder: Path, circumstances: dict, experiment: Experiment) -> dict[str, str]:
    """Draw the pictures into `folder`; return their file names by what they show."""
    with pyplot.rc_context(STYLE):
        curves = draw_curves(experiment)
        figures = {"latencies": _draw(experiment), **({"curve": curves} if curves else {})}
        files = save_figures(folder, circumstances, figures)
    return {title: files[name] for name, title in TITLES.items() if name in files}


def running_mean(values: list[float], window: int) -> list[float]:
    """Return for each value the mean of it and those before it, `window` at most."""
    sums = [0.0, *accumulate(values)]
    return [(sums[end] - sums[max(0, end - window)]) / min(end, window) for end in range(1, len(sums))]


def _draw(experiment: Experiment) -> Figure:
    runs = [runs[-1] for runs in experiment.by_setting()]
    rows = ceil(len(runs) / COLUMNS)
    figure, grid = pyplot.subplots(
        rows, COLUMNS, figsize=(12, 1.2 + 2.4 * rows), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    panels = list(grid.flat)
    for panel, run in zip(panels, runs):
        _draw_run(panel, run)
    for panel in panels[len(runs) :]:
        panel.remove()
    panels[0].set_yscale("log")
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
    for row in grid:
        row[0].set_ylabel("milliseconds")
    for panel in panels[max(0, len(runs) - COLUMNS) : len(runs)]:
        panel.tick_params(labelbottom=True)
        panel.set_xlabel("seconds")
    figure.legend(
        [
            pyplot.Line2D([], [], color=DOT, marker="o", markersize=3, linestyle=""),
            pyplot.Line2D([], [], color=LINE),
            pyplot.Rectangle((0, 0), 1, 1, color=SHADE),
            pyplot.Rectangle((0, 0), 1, 1, color=UNFINISHED_SHADE),
        ],
        ["a New-Order", f"mean of the last {RUNNING}", "VACUUM", "VACUUM, broken off"],
        loc="outside upper center",
        ncols=4,
        title=f"New-Order while the large tables are vacuumed: {experiment.rate:.0f} transactions a second,"
        f" {experiment.sizes.warehouses} warehouses, {experiment.database_bytes >> 20} MB, shared_buffers {experiment.buffers}",
        title_fontsize=11,
    )
    return figure


def _draw_run(panel: pyplot.Axes, run: Run) -> None:
    ends = [end for end, _ in run.new_orders]
    latencies = [milliseconds for _, milliseconds in run.new_orders]
    title = run.setting.title
    if vacuum := run.vacuum:
        panel.axvspan(vacuum.begin, vacuum.end, color=SHADE if vacuum.finished else UNFINISHED_SHADE, linewidth=0)
        took = f"{vacuum.end - vacuum.begin:.1f} s"
        title += f": {took}" if vacuum.finished else f": not finished in {took}, {vacuum.scanned:.1%} scanned"
    panel.scatter(ends, latencies, s=1.5, color=DOT, alpha=0.35, linewidths=0)
    panel.plot(ends, running_mean(latencies, RUNNING), color=LINE, linewidth=1)
    panel.set_title(title, loc="left")
