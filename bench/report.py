"""The tables of `make bench` and `make bench-large`."""

from statistics import geometric_mean, median

from rich.console import Console

from grid import Grid
from measure import OTHER_PHASE, PARALLEL_PHASES, Contender, Ratio, Result
from scenarios import GROUPS

PHASES = (*PARALLEL_PHASES, "truncation", "team", OTHER_PHASE)
MEBIBYTE = 1 << 20
NOISY = 1.3  # slowest run to fastest; on a quiet machine it is 1.05 to 1.15


def print_result(console: Console, result: Result) -> None:
    """Print times and ratios of one scenario, and whatever stands against trusting them."""
    console.print()
    console.print(scenario_grid(result).to_rich(f"{result.scenario.name}: {result.scenario.about}\n{_sizes(result)}; seconds"))
    for line in (*device_lines(result), *noise_lines(result), *objections(result)):
        console.print(line, highlight=False)


def print_summary(console: Console, results: list[Result]) -> None:
    """Print how many times as fast pg_cyclone is, a line each scenario."""
    if results:
        console.print()
        console.print(
            summary_grid(results).to_rich("times as fast as core with its best PARALLEL setting (lowest–highest round)")
        )
        for line in mean_lines(results):
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
                *(_ratio_text(result.ratio(contender, core)) for core in baselines),
                *(f"{phases[phase]:.3f}" if phase in phases else "" for phase in known),
                "" if share is None else f"{share:.1%}",
                f"{result.runs_of(contender)[0].bytes_after / MEBIBYTE:,.1f}",
            ]
        )
    return Grid(header, rows)


def summary_grid(results: list[Result]) -> Grid:
    """Return the ratios of pg_cyclone to PostgreSQL's best, a row each scenario."""
    counts = sorted({contender.workers for result in results for contender in result.contenders() if contender.is_usual})
    header = [
        "scenario",
        "rows",
        "core alone, s",
        "core at best, s",
        *(_workers(count) for count in counts),
        "bytes a dead TID",
    ]
    rows = []
    for result in results:
        best = result.best_core()
        stored = result.store_bytes_per_item()
        rows.append(
            [
                result.scenario.name,
                f"{result.rows:,}",
                f"{result.median_seconds(result.core_alone()):.3f}",
                f"{result.median_seconds(best):.3f} (PARALLEL {best.workers})",
                *(_ratio_text(result.ratio(Contender("pg_cyclone", count), best)) for count in counts),
                "" if stored is None else f"{stored:.2f}",
            ]
        )
    return Grid(header, rows)


def mean_lines(results: list[Result]) -> list[str]:
    """Return the geometric mean of the ratios to PostgreSQL's best for each group that has several scenarios."""
    lines = []
    for group in GROUPS:
        members = [result for result in results if result.scenario.group == group]
        if len(members) < 2:
            continue
        ours = [contender for contender in members[0].contenders() if contender.is_usual]
        means = [
            f"{_workers(contender.workers)}"
            f" {geometric_mean(result.ratio(contender, result.best_core()).median for result in members):.2f}"
            for contender in ours
        ]
        lines.append(f"geometric mean of {group}: {', '.join(means)}")
    return lines


def serial_share(result: Result, contender: Contender) -> float | None:
    """Return the median share of the time outside the parallel phases, 0 to 1; None for PostgreSQL, which shares out little, and
    unless every run reported phases.
    """
    shares = [run.serial_share for run in result.runs_of(contender)]
    return None if contender.is_core or None in shares else median(shares)


def device_lines(result: Result) -> list[str]:
    """Return at which part of the device's rate each contender scans the heap, if that is read from there, and its waits."""
    if not result.device_rates:
        return []
    device = median(result.device_rates)
    parts = []
    for contender in result.contenders():
        if seconds := result.median_phases(contender).get("heap scan"):
            rate = result.heap_bytes / seconds
            parts.append(f"{contender.name} {rate / MEBIBYTE:,.0f} MB/s ({rate / device:.0%})")
    waits = []
    for contender in result.contenders():
        uses = [run.device for run in result.runs_of(contender)]
        reads, writes = median(use.read_seconds for use in uses), median(use.write_seconds for use in uses)
        count = median(use.writes for use in uses)
        waits.append(f"{contender.name} {reads:.2f} s for reads, {writes:.2f} s for {count:,.0f} writes")
    return [
        f"heap scan, of {device / MEBIBYTE:,.0f} MB/s that dd reads: {'; '.join(parts)}",
        f"all processes together waited: {'; '.join(waits)}",
    ]


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


def _workers(count: int) -> str:
    return "1 process" if count == 0 else f"{count} worker{'s' if count > 1 else ''}"


def _ratio_text(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
