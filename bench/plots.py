"""The pictures: times by phase for each group of scenarios, and all ratios at a glance."""

from pathlib import Path

from matplotlib import pyplot
from matplotlib.figure import Figure

from drawing import STYLE, save_figures
from measure import OTHER_PHASE, PARALLEL_PHASES, Contender, Result
from scenarios import GROUPS

PHASE_COLORS = {
    **dict(zip(PARALLEL_PHASES, ("#3b6fb6", "#e08a3c", "#5aa469", "#b65f9e", "#9dbde3", "#3b6fb6", "#f3cfa4", "#e08a3c"))),
    "truncation": "#8c6d4f",
    "team": "#d9c24a",
    OTHER_PHASE: "#b8b8b8",
}
# By number of workers, from light to dark
WORKER_COLORS = ("#f2b134", "#ed553b", "#3caea3", "#20639b", "#173f5f")


def save_plots(folder: Path, circumstances: dict, results: list[Result]) -> dict[str, str]:
    """Draw all pictures there are numbers for into `folder`; return their file names, by group, or `summary`."""
    figures = {}
    with pyplot.rc_context(STYLE):
        if results:
            figures["summary"] = _draw_summary(results)
        for group, title in GROUPS.items():
            members = [result for result in results if result.scenario.group == group]
            if members:
                figures[group] = _draw_group(title, members)
        return save_figures(folder, circumstances, figures)


def _draw_summary(results: list[Result]) -> Figure:
    """Draw a line each scenario, with a dot for each count of workers: how many times as fast as PostgreSQL at its best."""
    counts = sorted({contender.workers for result in results for contender in result.contenders() if contender.is_usual})
    figure, axes = pyplot.subplots(figsize=(8.5, 1.4 + 0.42 * len(results)), layout="constrained")
    for number, count in enumerate(counts):
        ratios = [result.ratio(Contender("pg_cyclone", count), result.best_core()) for result in results]
        middles = [ratio.median for ratio in ratios]
        spread = [[ratio.median - ratio.low for ratio in ratios], [ratio.high - ratio.median for ratio in ratios]]
        lines = [position + 0.16 * (number - (len(counts) - 1) / 2) for position in range(len(results))]
        axes.errorbar(middles, lines, xerr=spread, fmt="o", markersize=5, capsize=2, linewidth=1,
                      color=WORKER_COLORS[number % len(WORKER_COLORS)],
                      label=f"{count} worker{'' if count == 1 else 's'}")  # fmt: skip
    axes.axvline(1, color="#404040", linewidth=1)
    axes.set_yticks(range(len(results)), [result.scenario.name for result in results])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("times as fast as core with its best PARALLEL setting (median of the rounds, lowest to highest)")
    axes.set_title("VACUUM by pg_cyclone with", loc="left")
    figure.legend(loc="outside upper center", ncols=len(counts))
    return figure


def _draw_group(title: str, results: list[Result]) -> Figure:
    """Draw a panel each scenario, with a bar for each contender, from phase to phase."""
    figure, panels = pyplot.subplots(
        1, len(results), figsize=(1.5 + max(5, 3.1 * len(results)), 4.4), squeeze=False, layout="constrained"
    )
    for panel, result in zip(panels[0], results):
        _draw_bars(panel, result)
    panels[0][0].set_ylabel("seconds (median; whiskers: fastest and slowest run)")
    figure.suptitle(title)
    shown = {name for result in results for contender in result.contenders() for name in result.median_phases(contender)}
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for name, color in PHASE_COLORS.items() if name in shown]
    figure.legend(handles, [name for name in PHASE_COLORS if name in shown], loc="outside right upper", title="phase")
    return figure


def _draw_bars(panel: pyplot.Axes, result: Result) -> None:
    """Draw the bars of one scenario, with the ratio to PostgreSQL's best above each."""
    contenders = result.contenders()
    best = result.best_core()
    for position, contender in enumerate(contenders):
        seconds = [run.seconds for run in result.runs_of(contender)]
        middle = result.median_seconds(contender)
        phases = result.median_phases(contender)
        # Medians of the phases don't add up to the median of the whole: they are drawn in proportion.
        scale = middle / (sum(phases.values()) or 1)
        bottom = 0
        for name, color in PHASE_COLORS.items():
            height = phases.get(name, 0) * scale
            panel.bar(position, height, bottom=bottom, color=color, alpha=0.6 if contender.is_core else 1)
            bottom += height
        panel.errorbar(position, middle, yerr=[[middle - min(seconds)], [max(seconds) - middle]], capsize=3, color="#303030")
        ratio = f"{result.ratio(contender, best).median:.2f}×"
        panel.annotate(ratio, (position, max(seconds)), (0, 3), textcoords="offset points", ha="center", fontsize=8)
    names = [f"{'core' if contender.is_core else 'ours'}{'' if contender.page_cache == 'auto' else '*'}\n+{contender.workers}" for contender in contenders]
    panel.set_xticks(range(len(contenders)), names)
    panel.grid(axis="x", visible=False)
    panel.set_xlabel("+ workers")
    panel.set_title(f"{result.scenario.name}\n{result.rows:,} rows")
