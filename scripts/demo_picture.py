"""The demo's picture: a bar for each figure, so that a phone shows it, too, and it needs no legend."""

import textwrap
from pathlib import Path

from matplotlib import pyplot

from drawing import CORE, NARROW, OTHER, OURS, STYLE, bars

MB = 1 << 20


def draw(file: Path, footnote: str, shrunk, contenders: list, ways: list, claim: str) -> None:
    """Write the picture to `file`; `claim` is what the third part has shown."""
    core, ours = contenders
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(NARROW, 6.4), layout="constrained")
        grid = figure.add_gridspec(3, 2, height_ratios=(1, 1, 1.5))
        sizes = [size / MB for _, size in shrunk.sizes]
        bars(figure.add_subplot(grid[0, :]), f"1. Small beside pgbench, with {max(0, shrunk.most_extra) // 1024} kB of disk more, MB",
             {"before": (sizes[0], OTHER), "FULL INPLACE": (sizes[-1], OURS)}, ",.0f")  # fmt: skip
        bars(figure.add_subplot(grid[1, :]), f"2. VACUUM of a big table: {core.middle / ours.middle:.1f} times as fast, s",
             {"PostgreSQL": (core.middle, OTHER), "pg_cyclone": (ours.middle, OURS)}, ".2f")  # fmt: skip
        names = {way.name.partition(", ")[2]: way for way in ways}
        colors = [OTHER, CORE, OURS]
        bars(figure.add_subplot(grid[2, 0]), "3. Beside pgbench, s",
             {name: (way.seconds, color) for (name, way), color in zip(names.items(), colors, strict=True)}, ".1f")  # fmt: skip
        harm = figure.add_subplot(grid[2, 1])
        bars(harm, "95 % of statements, ms", {name: (way.ms, color) for (name, way), color in zip(names.items(), colors, strict=True)}, ".1f")
        harm.set_yticks([])
        figure.supxlabel(textwrap.fill(claim, 64) + "\n" + textwrap.fill(footnote, 76), fontsize=9, color="#606060")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=150)
        pyplot.close(figure)
