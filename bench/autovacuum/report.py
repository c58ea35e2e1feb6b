"""What comes out: tables for the terminal and as Markdown, samples as CSV, all of it as JSON, and the picture of bloat over time."""

import csv
import json
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from statistics import median

from matplotlib import pyplot
from matplotlib.figure import Figure
from rich.console import Console

from autovacuum import churn
from autovacuum.churn import Churn
from autovacuum.seam import WITH, WITHOUT, Seam
from circumstances import circumstances_markdown
from drawing import STYLE, save_figures
from grid import Grid

MEBIBYTE = 1 << 20
LEAST_SHARE = 0.95  # of the rate that a load must have kept to
COLORS = ("#8a8a8a", "#e08a3c", "#3b6fb6", "#5aa469")


@dataclass
class Report:
    """What has been measured so far."""

    circumstances: dict
    churn: Churn | None = None
    seam: Seam | None = None

    def parts(self) -> list[tuple[str, Grid, list[str], list[str]]]:
        """Return for each part that was measured its title, its table, and lines to go with it: findings, and objections."""
        parts = []
        if self.churn and self.churn.runs:
            parts.append((_churn_title(self.churn), churn_grid(self.churn), goal_lines(self.churn), churn_objections(self.churn)))
        if self.seam and self.seam.measured:
            parts.append(("Cost for those who don't use it", seam_grid(self.seam), [], []))
        return parts

    def objections(self) -> list[str]:
        """Return what makes the numbers doubtful."""
        return [line for *_, objections in self.parts() for line in objections]


def churn_grid(measured: Churn) -> Grid:
    """Return a row for each run of the load."""
    header = ["autovacuum by", "autovacuums", "of the engine", "seconds of one", "bloat at the end, MB", "of PostgreSQL's",
              "dead rows at the end", "in the mean", "median, ms", "p95, ms", "p99, ms", "p95 at work, ms", "CPU s: workers", "their parallel workers",
              "whole server", "WAL, MB"]  # fmt: skip
    core = measured.core()
    rows = []
    for run in measured.runs:
        bloat, dead = run.bloat()[1][-1], run.dead_rows()[1][-1]
        rows.append(
            [
                run.name,
                str(len(run.autovacuums)),
                str(run.vacuumed_by["engine"]),
                f"{median(seconds for _, seconds in run.autovacuums):.1f}" if run.autovacuums else "",
                f"{bloat / MEBIBYTE:,.0f}",
                f"{bloat / core.bloat()[1][-1]:.2f}" if core and core.bloat()[1][-1] else "",
                f"{dead:,}",
                f"{run.mean_dead_rows():,.0f}",
                *(f"{milliseconds:.2f}" for milliseconds in run.percentiles.values()),
                f"{run.at_work_p95:.2f}",
                *(f"{seconds:.1f}" for seconds in (run.autovacuum_seconds, run.parallel_seconds, run.server_seconds)),
                f"{run.wal_bytes / MEBIBYTE:,.0f}",
            ]
        )
    return Grid(header, rows)


def goal_lines(measured: Churn) -> list[str]:
    """Return a line for each other run that sets its bloat and its 95th percentile against PostgreSQL's."""
    core = measured.core()
    if not core or not core.bloat()[1][-1]:
        return []
    return [
        f"{run.name}: {run.bloat()[1][-1] / core.bloat()[1][-1]:.2f} times PostgreSQL's bloat at the end,"
        f" {run.mean_dead_rows() / core.mean_dead_rows():.2f} times its dead rows in the mean,"
        f" p95 {run.percentiles[95] / core.percentiles[95]:.2f} times PostgreSQL's"
        for run in measured.runs
        if run is not core
    ]


def churn_objections(measured: Churn) -> list[str]:
    """Return what makes the numbers of the load doubtful."""
    found = []
    for run in measured.runs:
        rate = run.transactions / (run.seconds - churn.RAMPUP_SECONDS)
        if rate < LEAST_SHARE * measured.rate:
            found.append(f"{run.name}: the load came to {rate:.0f} transactions a second only, of {measured.rate:.0f}")
        expected = "server" if run.name == churn.CORE else "engine"
        if run.vacuumed_by[expected] < sum(run.vacuumed_by.values()):
            found.append(f"{run.name}: autovacuums by {run.vacuumed_by}")
        if not run.autovacuums:
            found.append(f"{run.name}: no autovacuum came to its end; more --minutes, or fewer --churn-rows")
    return found


def seam_grid(measured: Seam) -> Grid:
    """Return a row for each server."""
    header = ["", WITHOUT, WITH, "the latter as a part of the former (lowest–highest round)"]
    rows = []
    for what, values in measured.measured.items():
        ratios = _spread(measured.ratios(what), ".3f")
        rows.append([what, *(f"{median(values[name]):,.1f}" for name in (WITHOUT, WITH)), ratios])
    return Grid(header, rows)


def print_report(console: Console, report: Report) -> None:
    """Print all tables, and whatever stands against trusting them."""
    for title, grid, findings, objections in report.parts():
        console.print()
        console.print(grid.to_rich(title))
        for line in (*findings, *objections):
            console.print(line, highlight=False)


def save_results(folder: Path, report: Report) -> None:
    """Write results.md, results.json, samples.csv and the picture into `folder`, made if need be, over older ones.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = ["# Autovacuum by PostgreSQL and by pg_cyclone\n", circumstances_markdown(report.circumstances)]
    if report.churn and report.churn.runs:
        with pyplot.rc_context(STYLE):
            picture = save_figures(folder, report.circumstances, {"bloat": _draw(report.churn)})["bloat"]
        parts.append(f"![bloat over time]({picture})\n")
        _save_samples(folder / "samples.csv", report.churn)
    for title, grid, findings, objections in report.parts():
        parts += [f"## {title}\n", grid.to_markdown()]
        parts.append("".join([*(f"- {line}\n" for line in findings), *(f"- **{line}**\n" for line in objections)]))
    (folder / "results.md").write_text("\n".join(part for part in parts if part))
    (folder / "results.json").write_text(json.dumps(asdict(report), indent=1) + "\n")


def _save_samples(file: Path, measured: Churn) -> None:
    """Write a line for each sample of each table."""
    with open(file, "w", newline="") as output:
        writer = csv.writer(output)
        writer.writerow(["autovacuum_by", "second", "table", "heap_bytes", "index_bytes", "dead_rows"])
        for run in measured.runs:
            writer.writerows([run.name, *asdict(sample).values()] for sample in run.samples)


def _draw(measured: Churn) -> Figure:
    """Draw bloat and dead rows over time, a line for each run."""
    figure, (bloat, dead_rows) = pyplot.subplots(1, 2, figsize=(12, 4.6), sharex=True, layout="constrained")
    for color, run in zip(cycle(COLORS), measured.runs):
        label = f"{run.name}, p95 {run.percentiles[95]:.2f} ms"
        for panel, (seconds, values), unit in ((bloat, run.bloat(), MEBIBYTE), (dead_rows, run.dead_rows(), 1e6)):
            line = [value / unit for value in values]
            panel.plot([second / 60 for second in seconds], line, color=color, linewidth=1.6, label=label)
    bloat.set_title("bloat of tables and indexes, MB", loc="left")
    dead_rows.set_title("dead rows, millions", loc="left")
    for panel in (bloat, dead_rows):
        panel.set_xlabel("minutes")
        panel.set_ylim(bottom=0)
    handles, labels = bloat.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, title=_churn_title(measured))
    return figure


def _churn_title(measured: Churn) -> str:
    most = f" of {measured.most:.0f} at most" if measured.most else ""
    return (
        f"Two tables that change all the time: {measured.rows:,} rows each, {measured.database_bytes // MEBIBYTE} MB with indexes,"
        f" shared_buffers {measured.buffers},"
        f" {measured.rate:.0f} transactions a second{most}, {measured.minutes:g} minutes"
    )


def _spread(ratios: list[float], form: str) -> str:
    return f"{median(ratios):{form}} ({min(ratios):{form}}–{max(ratios):{form}})"
