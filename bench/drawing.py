"""What the pictures of all benchmarks have in common."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
}


def save_figures(folder: Path, circumstances: dict, figures: dict[str, Figure]) -> dict[str, str]:
    """Write each figure into `folder` as NAME.png, with the most important circumstances below; return the file names."""
    footnote = ", ".join(
        [
            circumstances["PostgreSQL"],
            f"pg_cyclone {circumstances['commit']}",
            f"{circumstances['cores']} cores of {circumstances['CPU']}",
        ]
    )
    for name, figure in figures.items():
        figure.supxlabel(footnote, fontsize=7, color="#707070")
        figure.savefig(folder / f"{name}.png", dpi=150)
        pyplot.close(figure)
    return {name: f"{name}.png" for name in figures}
