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


def bars(panel: pyplot.Axes, title: str, values: dict[str, tuple[float, str]], form: str) -> None:
    """Draw a bar of this length and color for each name, the first at the top, with its figure at its end."""
    for at, (value, color) in enumerate(values.values()):
        panel.barh(at, value, color=color, height=0.8)
        panel.annotate(f"{value:{form}}", (value, at), (4, 0), va="center", textcoords="offset points", fontsize=10)
    panel.set_title(title, loc="left", fontsize=10, fontweight="bold")
    panel.set_yticks(range(len(values)), list(values), fontsize=10)
    panel.set_ylim(len(values) - 0.5, -0.5)
    panel.set_xlim(0, 1.4 * max(value for value, _ in values.values()))
    panel.xaxis.set_visible(False)
    panel.spines["bottom"].set_visible(False)
    panel.grid(visible=False)
    panel.tick_params(length=0)
