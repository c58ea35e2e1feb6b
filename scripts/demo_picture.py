"""The demo's picture: a table that becomes small while others use it, the time of a VACUUM, and one beside a load that comes and goes.

The panels are below each other, as a phone shows them.
"""

import textwrap
from collections import defaultdict
from pathlib import Path

from matplotlib import pyplot

from beside import percentile
from drawing import CORE, NARROW, OTHER, OURS, STYLE

MB = 1 << 20
SHADE = "#f7dfa5"
SPEED_SECONDS = 0.5


def draw(file: Path, footnote: str, shrunk, contenders: list, paced) -> None:
    """Write the picture to `file`."""
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(NARROW, 11), layout="constrained")
        grid = figure.add_gridspec(4, 1, height_ratios=(1, 0.5, 1.4, 0.7))
        _draw_size(figure.add_subplot(grid[0]), shrunk)
        _draw_times(figure.add_subplot(grid[1]), contenders)
        statements = figure.add_subplot(grid[2])
        _draw_statements(statements, paced)
        statements.tick_params(labelbottom=False)
        _draw_speed(figure.add_subplot(grid[3], sharex=statements), paced)
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


def _draw_statements(panel: pyplot.Axes, paced) -> None:
    """Draw the percentile of each second's statements, and when there was a load."""
    start = paced.rests[0][0]
    seconds = defaultdict(list)
    for end, ms in paced.transactions:
        seconds[int(end - start)].append(ms)
    for number, (first, last) in enumerate(paced.loads):
        panel.axvspan(first - start, last - start, color=SHADE, alpha=0.6, linewidth=0, label="pgbench is at work" if number == 0 else None)
        inside = [second for second in sorted(seconds) if first - 0.5 <= second + start <= last - 0.5]
        panel.plot([second + 0.5 for second in inside], [percentile(seconds[second]) for second in inside], color=OURS, marker="o", markersize=4,
                   label="beside pg_cyclone's VACUUM" if number == 0 else None)  # fmt: skip
    panel.axhline(paced.core_ms, color=CORE, linestyle="--", label="beside PostgreSQL's VACUUM")
    panel.axhline(paced.alone_ms, color=OTHER, linestyle=":", linewidth=2, label="without VACUUM")
    panel.set_ylim(0, 1.1 * max(paced.core_ms, *(percentile(values) for values in seconds.values())))
    _title(panel, "3. A load that comes and goes, and the latency target auto", "ms, below which 95 % of the statements stay")
    panel.legend(loc="lower center", fontsize=9, frameon=True, framealpha=0.9, edgecolor="none")


def _draw_speed(panel: pyplot.Axes, paced) -> None:
    """Draw how fast VACUUM is meanwhile."""
    start = paced.rests[0][0]
    for first, last in paced.loads:
        panel.axvspan(first - start, last - start, color=SHADE, alpha=0.6, linewidth=0)
    points, (at, was) = [], paced.scanned[0] if paced.scanned else (start, 0)
    for moment, tables in paced.scanned:
        if moment - at >= SPEED_SECONDS:
            points.append(((at + moment) / 2 - start, (tables - was) * paced.heap_bytes / MB / (moment - at)))
            at, was = moment, tables
    panel.plot(*zip(*points), color=OURS) if points else None
    panel.set_ylim(bottom=0)
    panel.set_xlabel("seconds")
    _title(panel, "", "MB/s that VACUUM scans")
