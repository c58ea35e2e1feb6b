"""A table of results, and a quantity in it."""

from dataclasses import dataclass
from statistics import median

from rich.table import Table


@dataclass(frozen=True)
class Spread:
    """A quantity of some runs."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(min(values), median(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass
class Grid:
    """A table before it is known where it will be shown; the first column holds names, the others numbers."""

    header: list[str]
    rows: list[list[str]]

    def to_rich(self, title: str) -> Table:
        """Return it for the terminal."""
        table = Table(title=title)
        for number, name in enumerate(self.header):
            table.add_column(name, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        return table
