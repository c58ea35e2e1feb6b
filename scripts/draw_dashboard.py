#!/usr/bin/env python3
"""Draws the panels of monitoring/grafana.json as Prometheus answers them, for a server under load, into docs/dashboard.png.

A server of its own runs for a minute or two, with updates, autovacuum, VACUUMs with a latency target, compaction and a transaction that holds
dead rows. The panels are below each other, as a phone shows them. The picture has in it which panels it was drawn of: a test compares them.
postgres_exporter, as a member of pg_monitor, and Prometheus watch it with the files of monitoring/; so the picture is also a proof that these go
together. Both programs are Debian's packages prometheus and prometheus-postgres-exporter. All listen on this machine only, and are gone in the end.

    PYTHONPATH=python .venv/bin/python scripts/draw_dashboard.py
"""

import argparse
import hashlib
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

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MultipleLocator

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
WIDTH, FONT = 5.6, 9  # inches, points: a phone, 360 pixels wide, shows these as 8 pixels
STAT = 1.35  # inches, of a figure with its title and four lines
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


def series_of(panel: dict, begin: float, end: float) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return what Prometheus has for a panel: names, and values by seconds since the begin."""
    found = [
        (" ".join(name_of(target, series["metric"]).split()), [(float(at) - begin, float(value)) for at, value in series["values"] if value != "NaN"])
        for target in panel["targets"]
        for series in ask("query_range", query=expression(target["expr"]), start=begin, end=end, step=1)["result"]
    ]
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
    highest = sorted(drawn, key=lambda one: -max(value for _, value in one[1]))
    for number, (_, values) in enumerate(highest):
        look = {"color": COLORS[number], "zorder": 3} if number < MOST_NAMES else {"color": OTHERS, "zorder": 2}
        for part in parts_of(values):
            axes.plot(*zip(*part, strict=True), linewidth=1.3, marker="." if len(part) < 3 else None, **look)
    shown_names = [plt.Line2D([], [], color=COLORS[number]) for number in range(min(MOST_NAMES, len(highest)))]
    if len(highest) > MOST_NAMES:
        axes.annotate(f"{len(highest) - MOST_NAMES} more in grey", (1, 1), (0, 4), xycoords="axes fraction", textcoords="offset points",
                      ha="right", va="bottom", fontsize=FONT, color="#606060")  # fmt: skip
    names = [name for name, _ in highest[:MOST_NAMES]]
    lines = (len(names) + 1) // 2
    top = max(value for _, values in drawn for _, value in values) * (1.1 + 0.4 * lines) or 1  # with room for the names
    axes.set_ylim(0, top)
    axes.set_xlim(0, seconds)
    axes.set_xlabel("seconds")
    axes.legend(shown_names, names, fontsize=FONT, loc="upper left", frameon=False, borderpad=0.1, labelspacing=0.2, ncols=2,
                columnspacing=1, handlelength=1, handletextpad=0.4)  # fmt: skip
    return top


def draw_panel(axes, panel: dict, begin: float, end: float) -> bool:
    """Draw a panel; tell whether there is anything in it."""
    unit, drawn = panel["fieldConfig"]["defaults"]["unit"], series_of(panel, begin, end)
    about = textwrap.wrap(panel["description"], 34 if panel["type"] == "stat" else 72)
    for text, above, look in ((panel["title"], 6 + 11 * len(about), {"fontsize": 10, "fontweight": "bold"}),
                              ("\n".join(about), 4, {"fontsize": FONT, "color": "#606060"})):  # fmt: skip
        left = 0 if panel["type"] == "stat" else -0.65 * 72
        axes.annotate(text, (0, 1), (left, above), xycoords="axes fraction", textcoords="offset points", va="bottom", **look)
    if not drawn:
        return False
    if panel["type"] == "stat":
        axes.axis("off")
        axes.text(0.0, 0.5, shown(drawn[0][1][-1][1], unit), fontsize=20, va="center", transform=axes.transAxes, color=COLORS[0])
        return True
    is_bars = panel["type"] == "bargauge"
    top = draw_bars(axes, drawn) if is_bars else draw_lines(axes, drawn, end - begin)
    scale = axes.xaxis if is_bars else axes.yaxis
    if unit == "bytes" and top >= 4:
        scale.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(top / 4))))
    scale.set_major_formatter(lambda value, _: shown(value, unit))
    axes.tick_params(labelsize=FONT)
    axes.grid(alpha=0.25)
    return True


def drawn_of(panels: list[dict]) -> str:
    """Return a digest of what a reader sees of the panels: titles, explanations and units."""
    seen = [(panel["title"], panel["description"], panel["fieldConfig"]["defaults"]["unit"]) for panel in panels]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def draw(begin: float, end: float, to: Path) -> None:
    """Draw all panels, figures first; fail if one of them has nothing to show."""
    panels = json.loads((MONITORING / "grafana.json").read_text())["panels"]
    figures = [panel for panel in panels if panel["type"] == "stat"]
    charts = [panel for panel in panels if panel["type"] != "stat"]
    rows = -(-len(figures) // 2)
    height = STAT * rows + 1.75 * len(charts)
    figure, empty = plt.figure(figsize=(WIDTH, height)), []
    # in inches from the left and from the top: where the axes are, below the title and what explains it
    places = [(0.1 + WIDTH / 2 * (number % 2), STAT * (number // 2) + 0.9, WIDTH / 2 - 0.2, 0.4) for number in range(len(figures))]
    places += [(0.75, STAT * rows + 1.75 * number + 0.45, WIDTH - 0.9, 0.85) for number in range(len(charts))]
    for panel, (left, top, wide, high) in zip([*figures, *charts], places, strict=True):
        axes = figure.add_axes((left / WIDTH, 1 - (top + high) / height, wide / WIDTH, high / height))
        if not draw_panel(axes, panel, begin, end):
            empty.append(panel["title"])
    figure.savefig(to, dpi=150, metadata={"Source": drawn_of(panels)})
    assert not empty, f"panels without data: {empty}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", default="prometheus-postgres-exporter")
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--output", type=Path, default=REPO / "docs/dashboard.png")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Cluster.create(build.install(18), CONFIG) as cluster:
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
                  f"--web.listen-address=127.0.0.1:{PORTS['prometheus']}"]
        with program("env", f"DATA_SOURCE_NAME={source}", *exporter), program(*server):
            begin = time.time() + 2
            work(cluster, options.seconds)
            end = time.time()
            time.sleep(2)
            draw(begin, end, options.output)
            names = sorted(set(ask("label/__name__/values")))
            alerts = {alert["labels"]["alertname"]: alert["state"] for alert in ask("alerts")["alerts"]}
    print(f"{options.output}: {len([name for name in names if name.startswith('cyclone_')])} metrics; alerts: {alerts}")


if __name__ == "__main__":
    main()
