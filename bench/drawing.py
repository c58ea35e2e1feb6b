"""The parts that the pictures of all benchmarks share: a ground of their own, so that they can be read in dark mode, and text that can
be read when a page shows them 880 pixels wide.
"""

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as pyplot
from matplotlib.patheffects import withStroke

STYLE = {
    "axes.axisbelow": True,
    "axes.facecolor": "white",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 12,
    "figure.facecolor": "white",
    "font.size": 11,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "savefig.facecolor": "white",
}
HALO = [withStroke(linewidth=3, foreground="white")]  # of text that a line may cross
NARROW = 5.6  # inches: a phone, 360 pixels wide, shows text of 10 points as 9 pixels
OURS, CORE, OTHER = "#20639b", "#ed553b", "#8a8a8a"


def footnote(circumstances: dict) -> str:
    """Return the most important circumstances in a line, which is as long as a phone's width allows."""
    processor = circumstances["CPU"].replace("(R)", "").replace("(TM)", "")
    return f"{circumstances['PostgreSQL']}, pg_cyclone {circumstances['commit'][:8]}, {circumstances['cores']} cores of {processor}"
