"""A table of results."""

from dataclasses import dataclass

from rich.table import Table


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
