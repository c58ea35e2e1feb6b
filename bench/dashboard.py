"""What Prometheus answers to the panels of monitoring/grafana.json, for a server under load: `make bench-dashboard`.

A server of its own runs for a minute or two, with updates, autovacuum, VACUUMs with a latency target, compaction and a transaction that holds
dead rows. postgres_exporter, as a member of pg_monitor, and Prometheus watch it with the files of monitoring/; so the result is also a proof
that these go together. Both programs are Debian's packages prometheus and prometheus-postgres-exporter. All listen on this machine only, and
are gone in the end. `make figures` draws docs/dashboard.png of the saved result: the panels below each other, as a phone shows them.
"""

import argparse
import json
import math
import re
import subprocess
import tempfile
import textwrap
import threading
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from circumstances import RESULTS, add_common_arguments, find_circumstances
from cyclone_lab import build
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO

MONITORING = REPO / "monitoring"
PORTS = {"exporter": 29187, "prometheus": 29090}
CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "fsync": "off",
    "autovacuum_naptime": "1s",
    "autovacuum_vacuum_cost_delay": "10ms",
    "max_wal_size": "4GB",
    "cyclone.compaction": "on",
    "cyclone.compaction_min_size": "1MB",
    "cyclone.compaction_threshold": 20,
    "cyclone.compaction_cooldown": "1min",
}
TABLES = {"orders": 100_000, "order_items": 200_000, "customers": 50_000}
COLORS = ["#17727f", "#c98a12", "#7a5ea8", "#c5384c"]  # of the series that are named
OTHERS = "#b8bec6"
FAINT = "#606060"
FONT = 9  # points: a phone, 360 pixels wide, shows these as 8 pixels
STAT, CHART, FOOT = 1.35, 2.0, 0.5  # inches: a figure with its title and four lines, a chart, and the line below all
MOST_NAMES = len(COLORS)


@contextmanager
def program(*command):
    """Run a program as long as the block takes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def ask(path: str, **parameters):
    """Return what Prometheus' API answers."""
    url = f"http://127.0.0.1:{PORTS['prometheus']}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]


def load(cluster: Cluster, end: float) -> None:
    """Change rows until the end, in a session of its own."""
    with cluster.connect("shop") as conn:
        number = 0
        while time.time() < end:
            number += 1
            for table in TABLES:
                first = number * 701 % TABLES[table]
                conn.execute(f"UPDATE {table} SET a = a + 1 WHERE id BETWEEN %s AND %s", [first, first + 600])
                time.sleep(0.02)


def vacuums(cluster: Cluster, end: float) -> None:
    """VACUUM a table with a latency target, again and again."""
    with cluster.connect("shop") as conn:
        while time.time() < end:
            conn.execute("VACUUM (LATENCY_TARGET '10ms') order_items")
            time.sleep(3)


def work(cluster: Cluster, seconds: float) -> None:
    """Keep the server at work for `seconds`."""
    end = time.time() + seconds
    threads = [threading.Thread(target=routine, args=(cluster, end)) for routine in (load, vacuums)]
    for thread in threads:
        thread.start()
    with cluster.connect("shop") as holder:
        time.sleep(seconds * 0.2)
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM orders")
        time.sleep(seconds * 0.2)
    for thread in threads:
        thread.join()


def prepare(cluster: Cluster) -> None:
    cluster.sql("CREATE DATABASE shop")
    cluster.sql("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    with cluster.connect("shop") as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        for table, rows in TABLES.items():
            conn.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, a int, filler text)")
            conn.execute(f"INSERT INTO {table} SELECT i, i, repeat('x', 150) FROM generate_series(1, {rows}) i")
            conn.execute(f"CREATE INDEX ON {table} (a)")
        conn.execute("DELETE FROM customers WHERE id % 3 > 0")
        conn.execute("CREATE TABLE archive WITH (autovacuum_enabled = off) AS SELECT i AS id, repeat('x', 150) AS filler FROM generate_series(1, 200000) i")
        conn.execute("DELETE FROM archive WHERE id % 3 > 0")
        conn.execute("VACUUM ANALYZE")


def expression(text: str) -> str:
    return text.replace("$job", ".*").replace("$instance", ".*")


def name_of(target: dict, labels: dict) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), target["legendFormat"]).strip() or "value"


def shown(value: float, unit: str) -> str:
    """Return a number with its unit, as Grafana writes it."""
    if unit == "percentunit":
        return f"{100 * value:,.0f} %" if value == 0 or abs(value) >= 0.1 else f"{100 * value:.2g} %"
    if unit == "bytes":
        for suffix in ("B", "KiB", "MiB", "GiB"):
            if abs(value) < 1024 or suffix == "GiB":
                return f"{value:.3g} {suffix}"
            value /= 1024
    if unit == "s":
        return f"{1000 * value:,.0f} ms" if value >= 0.1 else f"{1000 * value:.3g} ms"
    return f"{value:,.0f}"


def look_of(panel: dict) -> dict:
    """Return what a reader sees of a panel before there are answers."""
    return {"type": panel["type"], "title": panel["title"], "description": panel["description"], "unit": panel["fieldConfig"]["defaults"]["unit"]}


def series_of(panel: dict, begin: float, end: float) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return what Prometheus has for a panel: names, and values by seconds since the begin."""
    found = [
        (" ".join(name_of(target, series["metric"]).split()),
         [(round(float(at) - begin), float(f"{float(value):.4g}")) for at, value in series["values"] if value != "NaN"])
        for target in panel["targets"]
        for series in ask("query_range", query=expression(target["expr"]), start=begin, end=end, step=1)["result"]
    ]  # fmt: skip
    return [(name, values) for name, values in found if values]


def parts_of(values: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Return a series' parts: a new one begins where it was interrupted."""
    gaps = [0, *(place for place in range(1, len(values)) if values[place][0] - values[place - 1][0] > 2), len(values)]
    return [values[begin:end] for begin, end in zip(gaps, gaps[1:])]


def draw_bars(axes, drawn: list) -> float:
    """Draw the last value of each series; return the highest."""
    last = sorted((values[-1][1], name) for name, values in drawn)
    axes.barh(range(len(last)), [value for value, _ in last], color=COLORS[0], alpha=0.35)
    for place, (_, name) in enumerate(last):
        axes.text(0, place, f"  {name}", va="center", fontsize=FONT)
    axes.set_yticks([])
    axes.set_xlim(0, 1.05 * last[-1][0] or 1)
    return last[-1][0]


def draw_lines(axes, drawn: list, seconds: float) -> float:
    """Draw each series over time, with the names of those that come highest; return the top of the scale."""
    from drawing import pyplot

    highest = sorted(drawn, key=lambda one: -max(value for _, value in one[1]))
    for number, (_, values) in enumerate(highest):
        look = {"color": COLORS[number], "zorder": 3} if number < MOST_NAMES else {"color": OTHERS, "zorder": 2}
        for part in parts_of(values):
            axes.plot(*zip(*part, strict=True), linewidth=1.3, marker="." if len(part) < 3 else None, **look)
    shown_names = [pyplot.Line2D([], [], color=COLORS[number]) for number in range(min(MOST_NAMES, len(highest)))]
    if len(highest) > MOST_NAMES:
        axes.annotate(f"{len(highest) - MOST_NAMES} more in grey", (1, 1), (0, 4), xycoords="axes fraction", textcoords="offset points",
                      ha="right", va="bottom", fontsize=FONT, color=FAINT)  # fmt: skip
    names = [name for name, _ in highest[:MOST_NAMES]]
    lines = (len(names) + 1) // 2
    top = max(value for _, values in drawn for _, value in values) * (1.1 + 0.25 * lines) or 1  # with room for the names
    axes.set_ylim(0, top)
    axes.set_xlim(0, seconds)
    axes.set_xlabel("seconds", fontsize=FONT)
    axes.legend(shown_names, names, fontsize=FONT, loc="upper left", frameon=False, borderpad=0.1, labelspacing=0.2, ncols=2,
                columnspacing=1, handlelength=1, handletextpad=0.4)  # fmt: skip
    return top


def draw_panel(axes, panel: dict, seconds: float) -> None:
    is_stat, drawn = panel["type"] == "stat", panel["series"]
    about = textwrap.wrap(panel["description"], 34 if is_stat else 72)
    # the title of a figure is at the top of its row, the text of a chart just above it
    left, above = (0, 11 * 4) if is_stat else (-0.65 * 72, 11 * len(about))
    at = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(panel["title"], (0, 1), (left, above + 6), va="bottom", fontsize=10, fontweight="bold", **at)
    axes.annotate("\n".join(about), (0, 1), (left, above + 4), va="top", fontsize=FONT, color=FAINT, **at)
    if is_stat:
        axes.axis("off")
        axes.text(0.0, 0.5, shown(drawn[0][1][-1][1], panel["unit"]), fontsize=20, va="center", transform=axes.transAxes, color=COLORS[0])
        return
    from matplotlib.ticker import FixedLocator, MultipleLocator

    is_bars = panel["type"] == "bargauge"
    top = draw_bars(axes, drawn) if is_bars else draw_lines(axes, drawn, seconds)
    scale = axes.xaxis if is_bars else axes.yaxis
    if panel["unit"] == "bytes" and top >= 4:
        scale.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(top / 4))))
    elif panel["unit"] == "percentunit" and top < 2:
        scale.set_major_locator(FixedLocator([0, 0.5, 1]))
    else:
        axes.locator_params(axis="x" if is_bars else "y", nbins=4)
    scale.set_major_formatter(lambda value, _: shown(value, panel["unit"]))
    axes.tick_params(labelsize=FONT)


def draw(saved: dict):
    """Draw all panels, figures first."""
    from drawing import NARROW, pyplot

    figures = [panel for panel in saved["panels"] if panel["type"] == "stat"]
    charts = [panel for panel in saved["panels"] if panel["type"] != "stat"]
    rows = -(-len(figures) // 2)
    height = STAT * rows + CHART * len(charts) + FOOT
    figure = pyplot.figure(figsize=(NARROW, height))
    # in inches from the left and from the top: where the axes are, below the title and what explains it
    places = [(0.1 + NARROW / 2 * (number % 2), STAT * (number // 2) + 0.9, NARROW / 2 - 0.2, 0.4) for number in range(len(figures))]
    places += [(0.75, STAT * rows + CHART * number + 0.45, NARROW - 0.9, CHART - 0.9) for number in range(len(charts))]
    for panel, (left, top, wide, high) in zip([*figures, *charts], places, strict=True):
        draw_panel(figure.add_axes((left / NARROW, 1 - (top + high) / height, wide / NARROW, high / height)), panel, saved["seconds"])
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exporter", default="prometheus-postgres-exporter")
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--seconds", type=int, default=120)
    add_common_arguments(parser, RESULTS / "dashboard")
    options = parser.parse_args()
    prefix, settings = build.install(options.major), {**CONFIG, **dict(options.set)}
    circumstances = find_circumstances(prefix, settings, options.base)
    with tempfile.TemporaryDirectory() as folder, Cluster.create(prefix, settings, base=options.base) as cluster:
        cluster.start()
        prepare(cluster)
        queries = Path(folder) / "queries.yml"
        queries.write_text(re.sub(r"cache_seconds: \d+", "cache_seconds: 5", (MONITORING / "postgres_exporter.yml").read_text()))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(MONITORING / "alerts.yml")],
            "scrape_configs": [{"job_name": "shop", "static_configs": [{"targets": [f"127.0.0.1:{PORTS['exporter']}"]}]}],
        }
        (Path(folder) / "prometheus.yml").write_text(json.dumps(config))
        source = f"host={cluster.socket_dir} user=watcher dbname=shop sslmode=disable"
        exporter = [options.exporter, f"--extend.query-path={queries}", "--disable-default-metrics", "--disable-settings-metrics",
                    "--no-collector.database", "--no-collector.bgwriter", f"--web.listen-address=127.0.0.1:{PORTS['exporter']}"]
        server = [options.prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                  f"--web.listen-address=127.0.0.1:{PORTS['prometheus']}"]  # fmt: skip
        with program("env", f"DATA_SOURCE_NAME={source}", *exporter), program(*server):
            begin = time.time() + 2
            work(cluster, options.seconds)
            end = time.time()
            time.sleep(2)
            panels = json.loads((MONITORING / "grafana.json").read_text())["panels"]
            answered = [{**look_of(panel), "series": series_of(panel, begin, end)} for panel in panels]
            metrics = [name for name in ask("label/__name__/values") if name.startswith("cyclone_")]
            alerts = {alert["labels"]["alertname"]: alert["state"] for alert in ask("alerts")["alerts"]}
    empty = [panel["title"] for panel in answered if not panel["series"]]
    assert not empty, f"panels without data: {empty}"
    options.results.mkdir(parents=True, exist_ok=True)
    told = {"circumstances": circumstances, "seconds": options.seconds, "panels": answered}
    (options.results / "results.json").write_text(json.dumps(told) + "\n")
    print(f"{len(answered)} panels, of {len(metrics)} metrics; alerts: {alerts}")


if __name__ == "__main__":
    main()
