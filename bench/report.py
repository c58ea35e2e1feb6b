"""The tables of `make bench` and `make bench-large`."""

from statistics import median

from rich.console import Console

from grid import Grid
from measure import OTHER_PHASE, PARALLEL_PHASES, Contender, Result

PHASES = (*PARALLEL_PHASES, "truncation", "team", OTHER_PHASE)
MEBIBYTE = 1 << 20
NOISY = 1.3  # slowest run to fastest; on a quiet machine it is 1.05 to 1.15


def print_result(console: Console, result: Result) -> None:
    """Print times and ratios of one scenario, and whatever stands against trusting them."""
    console.print()
    console.print(scenario_grid(result).to_rich(f"{result.scenario.name}: {result.scenario.about}\n{_sizes(result)}; seconds"))
    for line in (*noise_lines(result), *objections(result)):
        console.print(line, highlight=False)


def scenario_grid(result: Result) -> Grid:
    """Return times, ratios and phases of one scenario, a row each contender."""
    baselines = dict.fromkeys((result.core_alone(), result.best_core()))
    known = [phase for phase in PHASES if any(phase in run.phases for run in result.runs)]
    header = ["VACUUM", "median", "min–max", *(f"× {core.name}" for core in baselines), *known, "serial share", "MB after"]
    rows = []
    for contender in result.contenders():
        seconds = [run.seconds for run in result.runs_of(contender)]
        phases = result.median_phases(contender)
        share = serial_share(result, contender)
        rows.append(
            [
                contender.name,
                f"{median(seconds):.3f}",
                f"{min(seconds):.3f}–{max(seconds):.3f}",
                *(str(result.ratio(contender, core)) for core in baselines),
                *(f"{phases[phase]:.3f}" if phase in phases else "" for phase in known),
                "" if share is None else f"{share:.1%}",
                f"{result.runs_of(contender)[0].bytes_after / MEBIBYTE:,.1f}",
            ]
        )
    return Grid(header, rows)


def serial_share(result: Result, contender: Contender) -> float | None:
    """Return the median share of the time outside the parallel phases, 0 to 1; None for PostgreSQL, which shares out little, and
    unless every run reported phases.
    """
    shares = [run.serial_share for run in result.runs_of(contender)]
    return None if contender.is_core or None in shares else median(shares)


def noise_lines(result: Result) -> list[str]:
    """Return which contenders' runs differ so much that the machine must have had other work to do; no line if none."""
    spreads = {}
    for contender in result.contenders():
        seconds = [run.seconds for run in result.runs_of(contender)]
        spreads[contender.name] = max(seconds) / min(seconds)
    noisy = [f"{name} {spread:.1f}" for name, spread in spreads.items() if spread > NOISY]
    return [f"noisy: slowest run to fastest: {'; '.join(noisy)}"] if noisy else []


def objections(result: Result) -> list[str]:
    """Return what makes the numbers doubtful: contenders that did different work, or not in the way they are named for."""
    found = []
    outcomes = {tuple(run.outcome.items()) for run in result.runs}
    if len(outcomes) > 1:
        found.append("THE CONTENDERS LEFT DIFFERENT TABLES: " + "; ".join(str(dict(outcome)) for outcome in outcomes))
    least = min(run.bytes_after for run in result.runs if run.contender.is_core)
    for contender in result.contenders():
        runs = result.runs_of(contender)
        if contender.is_core:
            continue
        if max(run.bytes_after for run in runs) > least:
            found.append(f"{contender.name}: left {max(run.bytes_after for run in runs) - least:,} bytes more than core")
        if any(not run.phases for run in runs):
            found.append(f"{contender.name}: reported no phases in some run; was it core's VACUUM after all?")
        elif any(run.launched != contender.workers for run in runs):
            found.append(f"{contender.name}: workers launched in each run: {', '.join(str(run.launched) for run in runs)}")
    return found


def _sizes(result: Result) -> str:
    heap, indexes = result.heap_bytes // MEBIBYTE, result.index_bytes // MEBIBYTE
    return f"{result.rows:,} rows, heap {heap} MB, indexes {indexes} MB, shared_buffers {result.buffers}"
