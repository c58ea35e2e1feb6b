"""What comes out: tables for the terminal, raw numbers as JSON, a chart."""

import json
from dataclasses import asdict
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from measure import PARALLEL_PHASES, Contender, Result


def print_circumstances(console: Console, circumstances: dict) -> None:
    """Print on what, of what and with which settings the numbers that follow were measured."""
    grid = Table.grid(padding=(0, 2))
    for name, value in circumstances.items():
        text = ", ".join(f"{key} = {setting}" for key, setting in value.items()) if isinstance(value, dict) else str(value)
        grid.add_row(name, text)
    console.print(grid)


def print_result(console: Console, result: Result) -> None:
    """Print times and ratios of one scenario, and whatever stands against trusting them."""
    contenders = result.contenders()
    baseline = median_seconds(result, contenders[0])
    size = f"heap {result.heap_bytes >> 20} MB, indexes {result.index_bytes >> 20} MB"
    table = Table(title=f"{result.scenario.name}: {result.scenario.about}\n{result.rows:,} rows, {size}; seconds")
    table.add_column("VACUUM")
    for name in ("median", "min–max", "times as fast", *PARALLEL_PHASES, "serial share"):
        table.add_column(name, justify="right")
    for contender in contenders:
        seconds = [run.seconds for run in result.runs_of(contender)]
        phases = median_phases(result, contender)
        share = serial_share(result, contender)
        table.add_row(
            contender.name,
            f"{median(seconds):.3f}",
            f"{min(seconds):.3f}–{max(seconds):.3f}",
            f"{baseline / median(seconds):.2f}",
            *(f"{phases[phase]:.3f}" if phase in phases else "" for phase in PARALLEL_PHASES),
            "" if share is None else f"{share:.1%}",
        )
    console.print()
    console.print(table)
    for line in (*amdahl_lines(result), *objections(result)):
        console.print(line, highlight=False)


def median_seconds(result: Result, contender: Contender) -> float:
    """Return the contender's median time in seconds."""
    return median(run.seconds for run in result.runs_of(contender))


def median_phases(result: Result, contender: Contender) -> dict[str, float]:
    """Return the median seconds of each phase the engine reported."""
    runs = result.runs_of(contender)
    names = dict.fromkeys(name for run in runs for name in run.phases)
    return {name: median(run.phases.get(name, 0) for run in runs) for name in names}


def serial_share(result: Result, contender: Contender) -> float | None:
    """Return the median share of the time outside the parallel phases, 0 to 1; None unless every run reported phases."""
    shares = [run.serial_share for run in result.runs_of(contender)]
    return None if None in shares else median(shares)


def amdahl_lines(result: Result) -> list[str]:
    """Return, for each count of workers, the serial fraction that Amdahl's law finds in its gain over one process."""
    ours = {contender.workers: contender for contender in result.contenders() if contender.engine == "pg_cyclone"}
    if 0 not in ours:
        return []
    alone = median_seconds(result, ours[0])
    lines = []
    for workers in filter(None, ours):
        processes = workers + 1
        fraction = (processes * median_seconds(result, ours[workers]) / alone - 1) / (processes - 1)
        lines.append(f"{processes} processes against one: serial fraction {fraction:.1%} by Amdahl's law")
    return lines


def objections(result: Result) -> list[str]:
    """Return what makes the numbers doubtful: contenders that did different work, or not in the way they are named for."""
    found = []
    outcomes = {tuple(run.outcome.items()) for run in result.runs}
    if len(outcomes) > 1:
        found.append("THE CONTENDERS LEFT DIFFERENT TABLES: " + "; ".join(str(dict(outcome)) for outcome in outcomes))
    for contender in result.contenders():
        runs = result.runs_of(contender)
        if contender.engine == "core":
            continue
        if any(not run.phases for run in runs):
            found.append(f"{contender.name}: reported no phases in some run; was it core's VACUUM after all?")
        elif any(run.launched != contender.workers for run in runs):
            found.append(f"{contender.name}: workers launched in each run: {', '.join(str(run.launched) for run in runs)}")
    return found


def save_json(file: Path, circumstances: dict, results: list[Result]) -> None:
    """Write every run with the circumstances; times are in seconds, sizes in bytes."""
    content = {"circumstances": circumstances, "results": [asdict(result) for result in results]}
    file.write_text(json.dumps(content, indent=1) + "\n")


def save_plot(file: Path, circumstances: dict, results: list[Result]) -> None:
    """Draw the median times with their range, a panel each scenario; the suffix of `file` chooses the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(results), figsize=(4.2 * len(results), 4.2), squeeze=False, layout="constrained")
    for panel, result in zip(panels[0], results):
        contenders = result.contenders()
        baseline = median_seconds(result, contenders[0])
        for position, contender in enumerate(contenders):
            seconds = [run.seconds for run in result.runs_of(contender)]
            middle = median(seconds)
            color = "tab:gray" if contender.engine == "core" else "tab:blue"
            panel.bar(position, middle, yerr=[[middle - min(seconds)], [max(seconds) - middle]], capsize=4, color=color)
            ratio = f"{baseline / middle:.2f}×"
            panel.annotate(ratio, (position, 0), (0, 4), textcoords="offset points", ha="center", color="white")
        panel.set_xticks(range(len(contenders)), [contender.name.replace(", ", "\n") for contender in contenders], fontsize=8)
        panel.set_title(f"{result.scenario.name}, {result.rows:,} rows", fontsize=10)
        panel.set_ylabel("seconds")
    machine = f"{circumstances['cores']} cores of {circumstances['CPU']}"
    versions = f"{circumstances['PostgreSQL']}, pg_cyclone {circumstances['commit']}"
    figure.suptitle(f"VACUUM, median and range: {versions}, {machine}", fontsize=9)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
