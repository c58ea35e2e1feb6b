"""The pictures and tables of README and docs/, of results that are kept in bench/saved: `make figures`.

A benchmark writes what it found into bench/results. With `--save NAME FILE COMMAND` what the documents need of that is kept as
bench/saved/NAME.json, with the circumstances, the date and the command. `make figures` writes all tables, which stand between two
comments in the documents, and draws all pictures. `--check`, a rule of `make tidy`, fails if a table isn't what the saved result says,
or a picture was drawn of another one.
"""

import argparse
import hashlib
import json
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

TOP = Path(__file__).resolve().parents[1]
SAVED = TOP / "bench" / "saved"
BEGIN, END = "<!-- make figures: {} -->", "<!-- end -->"
PHASES = {"heap scan": "#3b6fb6", "index vacuum": "#e08a3c", "heap vacuum": "#5aa469", "other": "#b8b8b8"}
SHORT = {"case-": "one btree: the picture's five cases", "kind-": "another kind of index: GiST, SP-GiST, GIN, hash", "full-": "VACUUM FULL, with indexes"}
MB = 1 << 20
LINE = 118
AUDIT, AUDITED_MOST = 0.01, 0.99  # the default share of pages, and that of `make bench-audit`
# What only a saved result can tell; PERFORMANCE has none outside of what is made of one
PERFORMANCE = "docs/performance.md"
MEASURED = re.compile(r"\d[\d.,]* ?(?:%|×|times\b|m?s\b|[kMG]B\b)")
# Where the label of a point is, as curves go down to the right: at which end of the bar, by how many points beside that, and its sides
LABELS = {
    "below": ("low", (0, -9), {"ha": "right", "va": "top"}),
    "above": ("high", (0, 4), {"ha": "left", "va": "bottom"}),
    "beside": ("median", (8, 0), {"ha": "left", "va": "center"}),
}


@dataclass(frozen=True)
class Picture:
    file: str
    saved: str  # the name of the result that it shows
    draw: Callable[[dict], object]  # of that a figure


@dataclass(frozen=True)
class Table:
    page: str
    name: str
    saved: str  # the name of the result; of several, those between spaces that are there, and lines gets them by name
    lines: Callable[[dict], list[str]]


def load(name: str) -> dict:
    return json.loads((SAVED / f"{name}.json").read_text())


def digest(name: str) -> str:
    return hashlib.sha256((SAVED / f"{name}.json").read_bytes()).hexdigest()


# VACUUM: results.json of `make bench`


def keep_vacuum(result: dict) -> dict:
    """Return what is kept of a run of `make bench`."""
    scenarios = [
        {
            "name": one["scenario"]["name"], "about": one["scenario"]["about"], "rows": one["rows"],
            "heap_bytes": one["heap_bytes"], "index_bytes": one["index_bytes"],
            "runs": [{"engine": run["contender"]["engine"], "workers": run["contender"]["workers"], "round": run["round"],
                      "seconds": round(run["seconds"], 4), "phases": {name: round(value, 4) for name, value in run["phases"].items()}}
                     for run in one["runs"]],
        }
        for one in result["results"]
    ]  # fmt: skip
    return {"circumstances": result["circumstances"], "scenarios": scenarios}


def runs_of(scenario: dict, engine: str, workers: int) -> list[dict]:
    return sorted((run for run in scenario["runs"] if (run["engine"], run["workers"]) == (engine, workers)), key=lambda run: run["round"])


def seconds_of(scenario: dict, engine: str, workers: int) -> float:
    return median(run["seconds"] for run in runs_of(scenario, engine, workers))


def best_core(scenario: dict) -> int:
    """Return with how many workers PostgreSQL was the fastest."""
    return min(sorted({run["workers"] for run in scenario["runs"] if run["engine"] == "core"}), key=lambda number: seconds_of(scenario, "core", number))


def core_seconds(scenario: dict) -> float:
    """Return what PostgreSQL took, as it does it best."""
    return seconds_of(scenario, "core", best_core(scenario))


def ratios(scenario: dict, workers: int) -> list[float]:
    """Return how many times as fast as PostgreSQL at its best pg_cyclone was, from the least to the most of the rounds."""
    pairs = zip(runs_of(scenario, "core", best_core(scenario)), runs_of(scenario, "pg_cyclone", workers), strict=True)
    return sorted(core["seconds"] / ours["seconds"] for core, ours in pairs)


def ratio(scenario: dict, workers: int) -> float:
    return median(ratios(scenario, workers))


def is_case(scenario: dict) -> bool:
    return scenario["name"].startswith("case-")


def rows_of(scenario: dict) -> str:
    millions = scenario["rows"] / 1_000_000
    return f"{millions:g} million" if millions >= 0.1 else f"{scenario['rows']:,}"


def times(number: float, digits: int = 2) -> str:
    return f"{number:.{digits}f} ×"


def between(numbers: list[float], form: str) -> str:
    """Return from where to where numbers go, or the one that there is."""
    ends = list(dict.fromkeys(f"{number:{form}}" for number in (min(numbers), max(numbers))))
    return " to ".join(ends)


def short_lines(saved: dict) -> list[str]:
    """Return a line for each kind of scenario: how many times as fast, from the least to the most of the scenarios' medians."""
    kinds: dict[str, list[dict]] = {}
    for one in saved["scenarios"]:
        about = next((text for beginning, text in SHORT.items() if one["name"].startswith(beginning)), one["about"])
        kinds.setdefault(about, []).append(one)
    lines = ["| scenario | PostgreSQL | pg_cyclone, 1 process | leader and 1 worker |", "|---|---|---|---|"]
    for about, ones in kinds.items():
        ours = (f"{between([ratio(one, workers) for one in ones], '.1f')} ×" for workers in (0, 1))
        lines.append(f"| {about} | {between([core_seconds(one) for one in ones], '.2f')} s | {' | '.join(ours)} |")
    return lines


def draw_bars(scenarios: list[dict], titles: list[str], height: float):
    """Return a figure and its panel: scenarios one below the other on one scale, a bar for each contender from phase to phase."""
    from drawing import HALO, NARROW, pyplot

    contenders = {("core", 0): "PostgreSQL", ("pg_cyclone", 0): "pg_cyclone, 1 process", ("pg_cyclone", 1): "leader and 1 worker"}
    figure, panel = pyplot.subplots(figsize=(NARROW, height), layout="constrained")
    marks, names = [], []
    for number, (one, title) in enumerate(zip(scenarios, titles, strict=True)):
        for place, ((engine, workers), name) in enumerate(contenders.items()):
            at, runs, left = 4 * number + place, runs_of(one, engine, workers), 0.0
            middle = median(run["seconds"] for run in runs)
            known = {phase: median(run["phases"].get(phase, 0) for run in runs) for phase in PHASES if phase != "other"}
            for phase, width in {**known, "other": max(0.0, middle - sum(known.values()))}.items():
                panel.barh(at, width, left=left, color=PHASES[phase], height=0.85)
                left += width
            text = f"{middle:.2f} s" + ("" if engine == "core" else f", {ratio(one, workers):.1f} ×")
            panel.annotate(text, (max(left, middle), at), (4, 0), va="center", textcoords="offset points", fontsize=10)
            marks.append(at)
            names.append(name)
        panel.annotate(title, (0, 4 * number - 0.5), (-130, 3), textcoords="offset points", fontweight="bold", fontsize=10,
                       path_effects=HALO).set_in_layout(False)  # fmt: skip
    panel.set_yticks(marks, names)
    panel.set_ylim(4 * len(scenarios) - 0.8, -1.4)
    panel.set_xlim(0, 1.35 * max(seconds_of(one, "core", 0) for one in scenarios))
    panel.grid(axis="y", visible=False)
    return figure, panel


def add_phases(figure, columns: int, **looks) -> None:
    from drawing import pyplot

    colors = [pyplot.Rectangle((0, 0), 1, 1, color=color) for color in PHASES.values()]
    figure.legend(colors, list(PHASES), loc="outside upper center", ncols=columns, **looks)


def in_short(scenario: dict) -> str:
    return f"{scenario['name']}: {scenario['about'].replace(', first 30 % of the pages deleted', '')}"


def draw_vacuum(saved: dict):
    """Draw the five cases."""
    cases = [one for one in saved["scenarios"] if is_case(one)]
    figure, panel = draw_bars(cases, [in_short(one) for one in cases], 6.6)
    panel.set_xlabel(f"seconds; {rows_of(cases[0])} rows, one btree")
    add_phases(figure, 2)
    return figure


# Harm against time: results.json of `make bench-tpcc`


def keep_latency(result: dict) -> dict:
    """Return what is kept of a run of `make bench-tpcc`."""
    common = {name: result[name] for name in ("rate", "database_bytes", "buffers", "sizes")}
    return {"circumstances": result["circumstances"], **common, "points": result["points"]}


def latency_short_lines(saved: dict) -> list[str]:
    """Return a line for each pace, with both engines beside each other."""
    found: dict[str, dict[str, str]] = {}
    for point in sorted(saved["points"], key=lambda point: -point["seconds"]["median"]):
        engine, pace = point["title"].split(", ", 1)
        told = f"{point['seconds']['median']:.1f} s, {times(point['harm']['95']['median'])}"
        found.setdefault(re.sub(r"^(\d+) a (\d+) ms$", r"cost limit \1 at \2 ms", pace), {})[engine] = told
    lines = [f"| seconds, and the 95th percentile; {saved['rate']:.0f} transactions a second | PostgreSQL | pg_cyclone |", "|---|---|---|"]
    return lines + [f"| {pace} | {told.get('PostgreSQL', '')} | {told.get('pg_cyclone', '')} |" for pace, told in found.items()]


def draw_latency(saved: dict):
    from drawing import CORE, HALO, NARROW, OURS, pyplot

    figure, panels = pyplot.subplots(2, 1, figsize=(NARROW, 7.5), layout="constrained", sharex=True, sharey=True)
    curves = list(dict.fromkeys(point["curve"] for point in saved["points"]))
    looks = {curve: look for curve, look in zip(curves, ((CORE, "o-", "below"), (OURS, "s-", "above"), ("#2e8b57", "D", "beside")))}
    for panel, percent in zip(panels, ("95", "99")):
        for curve, (color, style, place) in looks.items():
            points = sorted((point for point in saved["points"] if point["curve"] == curve), key=lambda point: point["seconds"]["median"])
            panel.plot([point["seconds"]["median"] for point in points], [point["harm"][percent]["median"] for point in points], style,
                       color=color, markersize=6, label=curve.replace("budgets", "cost delay"))  # fmt: skip
            for point in points:
                middle, spread = point["harm"][percent]["median"], point["harm"][percent]
                panel.errorbar(point["seconds"]["median"], middle, yerr=[[middle - spread["low"]], [spread["high"] - middle]], color=color,
                               capsize=3, linewidth=1)  # fmt: skip
                name = re.sub(r"(\d+) a \d+ ms", r"\1", point["title"].split(", ", 1)[1])
                at, offset, sides = LABELS[place]
                panel.annotate(name, (point["seconds"]["median"], spread[at]), offset, **sides,
                               textcoords="offset points", color=color, fontsize=10, path_effects=HALO)  # fmt: skip
        panel.axhline(1, color="#909090", linewidth=1)
        panel.set_xscale("log", subs=(2, 5))
        panel.set_yscale("log", subs=(2, 5))
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(lambda value, _position: f"{value:g}")
            axis.set_minor_formatter(lambda value, _position: f"{value:g}")
        panel.set_title(f"{percent}th percentile of New-Order, × before", loc="left")
        panel.margins(x=0.18, y=0.15)
    panels[1].set_xlabel("seconds that VACUUM took")
    delays = {found[1] for point in saved["points"] if (found := re.search(r"a (\d+) ms", point["title"]))}
    title = f"numbers: vacuum_cost_limit, at {' or '.join(sorted(delays))} ms" if delays else None
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=1, title=title)
    return figure


# Guards: guards.json of `make bench-guards`


def guards_lines(saved: dict) -> list[str]:
    from guards import NAMES, guard_of, summary

    lines = ["| beside | command | guard | what came of it |", "|---|---|---|---|"]
    return lines + [f"| {NAMES[run['who']]} | `{run['command']}` | {guard_of(run['who'], run['bound'])} | {summary(run['who'], run['samples'])} |"
                    for run in saved["runs"]]  # fmt: skip


def draw_guards(saved: dict):
    from guards import draw

    return draw({(run["who"], run["command"], run["bound"]): run["samples"] for run in saved["runs"]})


# Audits: results.json of `make bench-audit`


def audit_lines(saved: dict) -> list[str]:
    lines = ["| table | without audits | what audits of next to no page add | what the default adds |", "|---|---|---|---|"]
    for case in saved["cases"]:
        first = case["least"] / case["none"] - 1
        default = (case["most"] - case["least"]) * AUDIT / AUDITED_MOST / case["none"]
        lines.append(f"| {case['name']} | {case['none']:.1f} ms | {100 * first:.1f} % | {100 * default:.1f} % |")
    return lines


# Making a table small: online.json of `make bench-online`


def online_lines(saved: dict) -> list[str]:
    """Return the medians of each contender's runs, and the longest of the waits."""
    from online import CONCURRENTLY, FORMS, NAMES

    untouched = next(run for run in saved["runs"] if run["contender"] == "nothing")
    runs = [run for run in saved["runs"] if run["contender"] != "nothing"]
    rounds = len(runs) // len({run["contender"] for run in runs})
    heard = all("p95_ms" in run for run in runs)
    lines = [f"A table of {untouched['table'] / MB:,.0f} MB and indexes of {untouched['indexes'] / MB:,.0f} MB, beside {saved['rate']:,.0f}"
             f" transactions a second of pgbench; medians of {rounds} rounds, and the longest wait of all:", "",
             f"| | time | disk besides | WAL |{' 95 % of transactions |' if heard else ''} longest wait for a lock | table and indexes then |",
             "|---" * (7 if heard else 6) + "|"]  # fmt: skip
    for name in dict.fromkeys(run["contender"] for run in runs):
        mine = [run for run in runs if run["contender"] == name]
        disk, wal, then = (median(numbers) / MB for numbers in zip(*((run["peak_disk"], run["wal"], run["table"] + run["indexes"]) for run in mine)))
        shown = f"`VACUUM ({name})`" if name in FORMS else f"`{name}`" if name == CONCURRENTLY else NAMES.get(name, name)
        given_up = "" if all(run["finished"] for run in mine) else ", given up"
        wait = max(run["longest_lock_wait_ms"] for run in mine)
        harm = f" {median(run['p95_ms'] for run in mine):,.1f} ms |" if heard else ""
        lines.append(f"| {shown}{given_up} | {median(run['seconds'] for run in mine):.1f} s | {disk:,.1f} MB | {wal:,.0f} MB |{harm}"
                     f" {f'{wait:,.0f} ms' if wait else 'none of 1 ms'} | {then:,.0f} MB |")  # fmt: skip
    if heard:
        lines += ["", f"Without any of these 95 % of the transactions take less than {made_small(saved, 'nothing', 'p95_ms'):,.1f} ms."]
    return lines


def made_small(saved: dict, name: str, what: str) -> float:
    """Return the median of what a contender took."""
    return median(run["table"] + run["indexes"] if what == "size" else run[what] for run in saved["runs"] if run["contender"] == name)


def draw_online(saved: dict):
    """Draw a table before and after, and what each way costs: on a phone, and low enough for README's first words on the same screen."""
    from drawing import CORE, NARROW, OTHER, OURS, bars, pyplot

    before, after = (made_small(saved, name, "size") / MB for name in ("nothing", "FULL INPLACE"))
    quiet = made_small(saved, "nothing", "p95_ms")
    looks = {"VACUUM FULL": ("VACUUM FULL", CORE), "pg_repack": ("pg_repack", OTHER), "FULL INPLACE": ("FULL INPLACE", OURS),
             "+ ADAPTIVE_DELAY": ("FULL INPLACE, ADAPTIVE_DELAY", OURS)}  # fmt: skip
    figure = pyplot.figure(figsize=(NARROW, 3.9), layout="constrained")
    grid = figure.add_gridspec(3, 2, height_ratios=(0.55, 1, 1))
    bars(figure.add_subplot(grid[0, :]), "The table with its index, in use, MB", {"before": (before, "#c9c9c9"), "FULL INPLACE": (after, OURS)}, ",.0f")
    panels = (("Disk besides, MB", "peak_disk", MB, ",.1f"), (f"Others' p95, ms ({quiet:,.0f} alone)", "p95_ms", 1, ",.0f"),
              ("WAL, MB", "wal", MB, ",.0f"), ("Time, s", "seconds", 1, ".1f"))  # fmt: skip
    for number, (title, what, unit, form) in enumerate(panels):
        panel = figure.add_subplot(grid[1 + number // 2, number % 2])
        bars(panel, title, {name: (made_small(saved, of, what) / unit, color) for name, (of, color) in looks.items()}, form)
        if number % 2:
            panel.set_yticks([])
    return figure


# A table larger than memory: results.json of `make bench-large`


def keep_large(result: dict) -> dict:
    """Return what is kept of a run of `make bench-large`."""
    [one] = result["results"]
    scenario = {name: one[name] for name in ("rows", "heap_bytes", "index_bytes")} | {"about": one["scenario"]["about"]}
    runs = [{"engine": run["contender"]["engine"], "workers": run["contender"]["workers"], "page_cache": run["contender"]["page_cache"],
             "round": run["round"], "seconds": round(run["seconds"], 3)} for run in one["runs"]]  # fmt: skip
    return {"circumstances": result["circumstances"], "scenario": scenario, "runs": runs}


def large_times(saved: dict) -> dict[tuple[str, int, str], tuple[float, list[float]]]:
    """Return of each contender, PostgreSQL first, the median of its seconds, and how many times as fast as PostgreSQL at its best it was
    in each round, sorted.
    """
    seconds: dict[tuple[str, int, str], list[float]] = {}
    for run in sorted(saved["runs"], key=lambda run: run["round"]):
        seconds.setdefault((run["engine"], run["workers"], run["page_cache"]), []).append(run["seconds"])
    best = min((took for (engine, *_), took in seconds.items() if engine == "core"), key=median)
    return {look: (median(mine), sorted(core / ours for core, ours in zip(best, mine, strict=True)))
            for look, mine in sorted(seconds.items())}  # fmt: skip


def large_short_lines(saved: dict) -> list[str]:
    """Return the same in the form of short_lines."""
    looks = large_times(saved)
    best = min(took for (engine, *_), (took, _) in looks.items() if engine == "core")
    lines = ["| scenario | PostgreSQL | pg_cyclone, 1 process | leader and 1 worker |", "|---|---|---|---|"]
    for setting, name in (("auto", "a table larger than memory, on a disk"), ("off", "the same, `cyclone.preserve_page_cache = off`")):
        if ("pg_cyclone", 0, setting) in looks:
            ours = (f"{median(looks['pg_cyclone', workers, setting][1]):.1f} ×" for workers in (0, 1))
            lines.append(f"| {name} | {best:.1f} s | {' | '.join(ours)} |")
    return lines


# README's table, of several results


def readme_lines(saved: dict) -> list[str]:
    """Return a line for each kind of VACUUM, of those results that are there."""
    [key] = [one for one in saved["vacuum"]["scenarios"] if one["name"] == "one-index"]
    rows = [(f"VACUUM of {rows_of(key)} rows with a primary key, in memory", f"{core_seconds(key):.2f} s", [ratio(key, workers) for workers in (0, 1)])]
    large, looks = saved["large"]["scenario"], large_times(saved["large"])
    size = (large["heap_bytes"] + large["index_bytes"]) / 1e9
    best = min(took for (engine, *_), (took, _) in looks.items() if engine == "core")
    rows.append((f"VACUUM of a table larger than memory: {size:.0f} GB with eight indexes, on a disk", f"{best:.0f} s",
                 [median(looks["pg_cyclone", workers, "auto"][1]) for workers in (0, 1)]))  # fmt: skip
    if vectors := saved.get("vectors"):
        case = max(vectors["cases"], key=lambda case: case["share"])
        own, *ours = (case["results"][name]["seconds"] for name in ("pgvector", "one process", "with a worker"))
        rows.append((f"VACUUM of a table with an HNSW index of pgvector, {case['share']:.0%} of its rows deleted", f"{own:.1f} s", [own / one for one in ours]))
    full = [one for one in saved["more"]["scenarios"] if one["name"].startswith("full-")]
    lines = ["| | PostgreSQL | pg_cyclone, 1 process | leader and 1 worker |", "|---|---|---|---|"]
    lines += [f"| {what} | {core} | {' | '.join(f'{one:.1f} times as fast' for one in ours)} |" for what, core, ours in rows]
    ours = (f"{between([ratio(one, workers) for one in full], '.1f')} times as fast" for workers in (0, 1))
    lines.append(f"| VACUUM FULL, with indexes, in memory | {between([core_seconds(one) for one in full], '.2f')} s | {' | '.join(ours)} |")
    servers = sorted({f"{one['circumstances']['PostgreSQL']}, {one['circumstances']['cores']} cores" for one in saved.values()})
    return [*lines, "", f"({'; '.join(servers)}; [saved results](bench/saved), with machines and commands.)"]


# The views' cost, and many small tables: results.json of `make bench-views` and `make bench-tables`


def views_lines(saved: dict) -> list[str]:
    intro = (f"{saved['tables']:,} tables, ten of them large and bloated, and a history of {saved['runs']:,} runs; all columns, or as"
             f" named; medians of {saved['rounds']} times, until the client had all rows:")  # fmt: skip
    lines = [intro, "", "| view | median | longest |", "|---|---|---|"]
    return lines + [f"| {one['name']} | {one['median']:,.1f} ms | {one['longest']:,.1f} ms |" for one in saved["views"]]


def tables_lines(saved: dict) -> list[str]:
    lines = [f"{saved['tables']:,} tables of {saved['rows']:,} rows; medians, and the ratio of each round:", "",
             "| | PostgreSQL | pg_cyclone | times as fast |", "|---|---|---|---|"]  # fmt: skip
    for one in saved["ways"]:
        ratios_seen = sorted(core / ours for core, ours in zip(one["PostgreSQL"], one["pg_cyclone"], strict=True))
        lines.append(f"| {one['way']} | {median(one['PostgreSQL']):.2f} s | {median(one['pg_cyclone']):.2f} s |"
                     f" {median(ratios_seen):.2f} ({ratios_seen[0]:.2f}–{ratios_seen[-1]:.2f}) |")  # fmt: skip
    return lines


# HNSW indexes: results.json of `make bench-vectors`


def vectors_lines(saved: dict) -> list[str]:
    from vectors import lines

    intro = (f"{saved['rows']:,} vectors of {saved['dimensions']} numbers, in {saved['kind']}, in memory, m 16, ef_construction 64;"
             f" rounds, of which these are medians: {saved['rounds']}.")  # fmt: skip
    return [intro, "", *lines(saved)]


def as_it_is(result: dict) -> dict:
    return result


KEEPERS = {
    "vacuum": keep_vacuum, "more": keep_vacuum, "cold": keep_vacuum, "full-19": keep_vacuum,
    "latency": keep_latency, "guards": as_it_is, "audit": as_it_is, "online": as_it_is,
    "online-19": as_it_is, "large": keep_large, "views": as_it_is, "tables": as_it_is,
    "vectors": as_it_is,
}  # fmt: skip
PICTURES = (
    Picture("docs/cases.png", "vacuum", draw_vacuum),
    Picture("docs/small.png", "online", draw_online),
    Picture("docs/curve.png", "latency", draw_latency),
    Picture("docs/guards.png", "guards", draw_guards),
)
TABLES = (
    Table("README.md", "readme", "vacuum large vectors more", readme_lines),
    Table("docs/performance.md", "vacuum in short", "vacuum", short_lines),
    Table("docs/performance.md", "more in short", "more", short_lines),
    Table("docs/performance.md", "cold in short", "cold", short_lines),
    Table("docs/performance.md", "full on 19 in short", "full-19", short_lines),
    Table("docs/performance.md", "large in short", "large", large_short_lines),
    Table("docs/performance.md", "latency in short", "latency", latency_short_lines),
    Table("docs/performance.md", "online", "online", online_lines),
    Table("docs/performance.md", "online on 19", "online-19", online_lines),
    Table("docs/performance.md", "guards", "guards", guards_lines),
    Table("docs/performance.md", "tables", "tables", tables_lines),
    Table("docs/audit.md", "audit", "audit", audit_lines),
    Table("docs/vectors.md", "vectors", "vectors", vectors_lines),
    Table("docs/watching.md", "views", "views", views_lines),
)


def block(table: Table) -> str:
    """Return what stands between the comments: the table, and where it is from."""
    if " " in table.saved:
        return "\n".join(table.lines({name: load(name) for name in table.saved.split() if (SAVED / f"{name}.json").exists()}))
    saved = load(table.saved)
    facts, folder = saved["circumstances"], "" if table.page == "README.md" else "../"
    where = (f"({facts['PostgreSQL']}, {facts['cores']} cores of {facts['CPU']}, {facts['date']}, commit {facts['commit']};"
             f" [saved result]({folder}bench/saved/{table.saved}.json), which has the command.)")  # fmt: skip
    lines = [*table.lines(saved), "", where]
    return "\n".join(line if line.startswith("|") else textwrap.fill(line, LINE, break_long_words=False, break_on_hyphens=False) for line in lines)


def with_block(text: str, table: Table) -> str:
    """Return the page with the table as it is to be. Raises ValueError if the page has no place for it."""
    begin = BEGIN.format(table.name)
    before, found, rest = text.partition(begin + "\n")
    _, end, after = rest.partition(END)
    if not (found and end):
        raise ValueError(f"{table.page} has no lines {begin} and {END}")
    return f"{before}{begin}\n{block(table)}\n{END}{after}"


def typed(text: str) -> list[str]:
    """Return the measured figures of a page that were typed, not made of a saved result."""
    made = rf"{BEGIN.format('[^>]*')}.*?{END}"
    return MEASURED.findall(re.sub(made, "", text, flags=re.DOTALL))


def problems() -> list[str]:
    """Return what isn't as the saved results say."""
    found = []
    for table in TABLES:
        try:
            if (text := (TOP / table.page).read_text()) != with_block(text, table):
                found.append(f"{table.page}: the table {table.name} is not that of bench/saved/{table.saved}.json: run make figures")
        except (OSError, ValueError) as error:
            found.append(str(error))
    for picture in PICTURES:
        if digest(picture.saved).encode() not in (TOP / picture.file).read_bytes():
            found.append(f"{picture.file} was not drawn of bench/saved/{picture.saved}.json: run make figures")
    return found


def write() -> None:
    """Write each table, and draw each picture, with the saved result's digest in it."""
    from drawing import STYLE, footnote, pyplot

    for table in TABLES:
        page = TOP / table.page
        page.write_text(with_block(page.read_text(), table))
    for picture in PICTURES:
        with pyplot.rc_context(STYLE):
            saved = load(picture.saved)
            figure = picture.draw(saved)
            figure.supxlabel(f"{footnote(saved['circumstances'])}, {saved['circumstances']['date']}", fontsize=9, color="#606060")
            figure.savefig(TOP / picture.file, dpi=150, metadata={"Source": digest(picture.saved)})
            pyplot.close(figure)


def save(name: str, file: Path, command: str) -> None:
    """Keep what the documents need of a benchmark's result. Raises ValueError if nobody could tell of which source it is."""
    kept = {"command": command, **KEEPERS[name](json.loads(file.read_text()))}
    commit = kept["circumstances"]["commit"]
    if commit.endswith("-dirty") or commit.startswith("unknown"):
        raise ValueError(f"{file} is not of a commit: {commit}")
    SAVED.mkdir(exist_ok=True)
    (SAVED / f"{name}.json").write_text(json.dumps(kept, indent=None if name == "guards" else 1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say what isn't as the saved results say, and fail then")
    parser.add_argument("--save", nargs=3, metavar=("NAME", "FILE", "COMMAND"), help=f"keep a result that COMMAND wrote; names: {', '.join(KEEPERS)}")
    options = parser.parse_args()
    if options.save:
        save(options.save[0], Path(options.save[1]), options.save[2])
    elif options.check:
        found = problems() + [f"{PERFORMANCE}: '{figure}' is of no saved result" for figure in typed((TOP / PERFORMANCE).read_text())]
        print("\n".join(found), end="\n" if found else "")
        return 1 if found else 0
    else:
        write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
