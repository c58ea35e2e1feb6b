#!/usr/bin/env python3
"""Draws the panels of monitoring/grafana.json as Prometheus answers them, for a server under load, into docs/dashboard.png.

A server of its own runs for a minute or so, with updates, autovacuum, VACUUMs with a latency target and a transaction that holds dead rows.
postgres_exporter, as a member of pg_monitor, and Prometheus watch it with the files of monitoring/; so the picture is also a proof that these go
together. Both programs are Debian's packages prometheus and prometheus-postgres-exporter. All listen on this machine only, and are gone in the end.

    PYTHONPATH=python .venv/bin/python scripts/draw_dashboard.py
"""

import argparse
import json
import re
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

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
}
TABLES = {"orders": 100_000, "order_items": 200_000, "customers": 50_000}
COLORS = ["#17727f", "#c98a12", "#7a5ea8", "#c5384c", "#2a9483", "#5f6b7a"]


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
        time.sleep(seconds * 0.4)
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
        return f"{1000 * value:.3g} ms"
    return f"{value:,.0f}"


def draw_panel(axes, panel: dict, begin: float, end: float) -> int:
    """Draw a panel; return how many series it has."""
    unit, drawn = panel["fieldConfig"]["defaults"]["unit"], []
    for target in panel["targets"]:
        drawn += [
            (name_of(target, series["metric"]), [(float(at) - begin, float(value)) for at, value in series["values"] if value != "NaN"])
            for series in ask("query_range", query=expression(target["expr"]), start=begin, end=end, step=1)["result"]
        ]
    drawn = [(name, values) for name, values in drawn if values]
    axes.set_title(panel["title"], loc="left", fontsize=9, fontweight="bold")
    if panel["type"] == "stat":
        axes.axis("off")
        axes.text(0.0, 0.45, shown(drawn[0][1][-1][1], unit), fontsize=20, va="center", transform=axes.transAxes, color=COLORS[0])
    elif panel["type"] == "bargauge":
        last = sorted(((values[-1][1], name) for name, values in drawn))
        axes.barh(range(len(last)), [value for value, _ in last], color=COLORS[0], alpha=0.35)
        for place, (_, name) in enumerate(last):
            axes.text(0, place, f"  {name}", va="center", fontsize=8)
        axes.set_yticks([])
    else:
        for number, (name, values) in enumerate(drawn):
            # a new line where a series was interrupted
            times = [at for at, _ in values]
            gaps = [0, *(place for place in range(1, len(times)) if times[place] - times[place - 1] > 2), len(times)]
            for place in range(len(gaps) - 1):
                part = values[gaps[place] : gaps[place + 1]]
                axes.plot(*zip(*part, strict=True), color=COLORS[number % len(COLORS)], linewidth=1.3, marker="." if len(part) < 3 else None,
                          label=name if place == 0 else None)
        most = max((value for _, values in drawn for _, value in values), default=0)
        axes.set_ylim(0, 1.45 * most or 1)  # with room for the legend
        axes.set_xlim(0, end - begin)
        axes.legend(fontsize=6, loc="upper left", frameon=False, ncols=1 + (len(drawn) > 3) + (len(drawn) > 6))
    if panel["type"] != "stat":
        (axes.xaxis if panel["type"] == "bargauge" else axes.yaxis).set_major_formatter(lambda value, _: shown(value, unit))
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25)
    return len(drawn)


def draw(begin: float, end: float, to: Path) -> None:
    """Draw all panels where the dashboard has them; fail if one of them has nothing to show."""
    panels = json.loads((MONITORING / "grafana.json").read_text())["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(12, height * 0.3))
    grid = figure.add_gridspec(height, 24, left=0.06, right=1.03, top=0.97, bottom=0.03, wspace=3, hspace=6)
    empty = []
    for panel in panels:
        place = panel["gridPos"]
        axes = figure.add_subplot(grid[place["y"] : place["y"] + place["h"] - 1, place["x"] : place["x"] + place["w"] - 1])
        if not draw_panel(axes, panel, begin, end):
            empty.append(panel["title"])
    figure.savefig(to, dpi=90)
    assert not empty, f"panels without data: {empty}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporter", default="prometheus-postgres-exporter")
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--seconds", type=float, default=60)
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
