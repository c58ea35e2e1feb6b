"""The demo's picture: a table that becomes small while others use it, the time of a VACUUM, and what it does to others.

The panels are below each other, as a phone shows them.
"""

import textwrap
from pathlib import Path

from matplotlib import pyplot

from drawing import CORE, NARROW, OTHER, OURS, STYLE

MB = 1 << 20


def draw(file: Path, footnote: str, shrunk, contenders: list, ways: list, alone_ms: float) -> None:
    """Write the picture to `file`."""
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(NARROW, 9), layout="constrained")
        grid = figure.add_gridspec(3, 1, height_ratios=(1, 0.5, 1.2))
        _draw_size(figure.add_subplot(grid[0]), shrunk)
        _draw_times(figure.add_subplot(grid[1]), contenders)
        _draw_ways(figure.add_subplot(grid[2]), ways, alone_ms)
        figure.supxlabel(textwrap.fill(footnote, 76), fontsize=9, color="#606060")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=150)
        pyplot.close(figure)


def _title(panel: pyplot.Axes, title: str, unit: str = "") -> None:
    """Write what a panel is, and in a line of its own what its numbers are, as there is no room for that at the side."""
    panel.set_title(unit, loc="left", fontsize=10)
    panel.annotate(title, (0, 1), (-40, 20 if unit else 6), xycoords="axes fraction", textcoords="offset points", fontweight="bold")


def _draw_size(panel: pyplot.Axes, shrunk) -> None:
    """Draw the size of the table with its indexes over time."""
    panel.plot([moment - shrunk.begin for moment, _ in shrunk.sizes], [size / MB for _, size in shrunk.sizes], color=OURS, linewidth=2)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("seconds since VACUUM (FULL INPLACE) began")
    _title(panel, f"1. Beside pgbench, with {max(0, shrunk.most_extra) // 1024} kB of disk more at most", "MB, table and indexes")


def _draw_times(panel: pyplot.Axes, contenders: list) -> None:
    """Draw a bar for each contender."""
    core = contenders[0]
    for position, contender in enumerate(contenders):
        panel.barh(position, contender.middle, color=OTHER if contender is core else OURS, height=0.6)
        panel.annotate(f"{contender.middle:.2f} s" + ("" if contender is core else f", {core.middle / contender.middle:.1f} ×"),
                       (contender.middle, position), (4, 0), va="center", textcoords="offset points")  # fmt: skip
    panel.set_yticks(range(len(contenders)), [contender.name for contender in contenders])
    panel.invert_yaxis()
    panel.set_xlim(0, 1.35 * max(contender.middle for contender in contenders))
    panel.set_xlabel("seconds")
    panel.grid(axis="y", visible=False)
    _title(panel, "2. VACUUM of a big table, nobody else at work")


def _draw_ways(panel: pyplot.Axes, ways: list, alone_ms: float) -> None:
    """Draw a point for each way to vacuum: what it took, and statements meanwhile."""
    panel.axhline(alone_ms, color=OTHER, linestyle=":", linewidth=2)
    panel.annotate("without VACUUM", (1, alone_ms), (-4, 4), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right", fontsize=9)
    for way in ways:
        panel.plot(way.seconds, way.ms, color=CORE if way.name.startswith("PostgreSQL") else OURS, marker="o", markersize=8)
        panel.annotate(way.name, (way.seconds, way.ms), (8, 4), textcoords="offset points")
    panel.set_xlim(0, 2 * max(way.seconds for way in ways))
    panel.set_ylim(0, 1.2 * max(alone_ms, *(way.ms for way in ways)))
    panel.set_xlabel("seconds of VACUUM")
    _title(panel, "3. Beside pgbench", "ms, below which 95 % of the statements stay")
