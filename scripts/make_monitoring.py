#!/usr/bin/env python3
"""Makes the files for exporters and Grafana in monitoring/ of monitoring/metrics.toml, which has the queries once.

`make monitoring` runs it; with --check it only says which files are not what it would write, and a test has it do so.
"""

import json
import sys
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "monitoring"
NOTE = "# Made by scripts/make_monitoring.py of metrics.toml: change that, and run \"make monitoring\".\n"
OLDEST_MAJOR = 17
SCRAPE_SECONDS = 60  # how often pgwatch asks for what may not be kept
TIMEOUT_SECONDS = 30
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
PANEL_HEIGHTS = {"stat": 4, "timeseries": 8, "bargauge": 8}
GRID_WIDTH = 24
COLORS = ("green", "orange", "red")


def indented(text: str, spaces: int) -> str:
    """Return the lines of a text indented, as the body of a YAML block."""
    return "".join(" " * spaces + line + "\n" for line in text.strip().splitlines())


def quoted(text: str) -> str:
    """Return a text as a YAML string."""
    return json.dumps(text, ensure_ascii=False)


def is_counter(name: str) -> bool:
    return name == "total" or name.endswith("_total")


def postgres_exporter(queries: dict) -> str:
    """Return the file for postgres_exporter's --extend.query-path."""
    out = NOTE + "# For postgres_exporter: --extend.query-path=postgres_exporter.yml\n"
    for key, query in queries.items():
        out += f"\n{key}:\n"
        if query["scope"] == "server":
            out += "  master: true\n"
        if query["every"]:
            out += f"  cache_seconds: {query['every']}\n"
        out += f"  query: |\n{indented(query['sql'], 4)}  metrics:\n"
        for label in query["labels"]:
            out += f"    - {label}:\n        usage: LABEL\n        description: {quoted(label)}\n"
        for name, text in query["metrics"].items():
            out += f"    - {name}:\n        usage: {'COUNTER' if is_counter(name) else 'GAUGE'}\n        description: {quoted(text)}\n"
    return out


def sql_exporter(queries: dict, every: int) -> str:
    """Return the collector for sql_exporter of those queries whose results may be kept for `every` seconds."""
    name = f"cyclone_{every}s" if every else "cyclone"
    out = NOTE + f"# For sql_exporter (github.com/burningalchemist/sql_exporter): collector_files: [cyclone*.collector.yml]\n\ncollector_name: {name}\n"
    out += f"min_interval: {every}s\n\nmetrics:\n"
    chosen = {key: query for key, query in queries.items() if query["every"] == every}
    for key, query in chosen.items():
        for column, text in query["metrics"].items():
            out += f"  - metric_name: {key}_{column}\n    type: {'counter' if is_counter(column) else 'gauge'}\n    help: {quoted(text)}\n"
            if query["labels"]:
                out += f"    key_labels: [{', '.join(query['labels'])}]\n"
            out += f"    values: [{column}]\n    query_ref: {key}\n"
    out += "\nqueries:\n"
    for key, query in chosen.items():
        out += f"  - query_name: {key}\n    query: |\n{indented(query['sql'], 6)}"
    return out


def pgwatch(queries: dict) -> str:
    """Return metrics and a preset for pgwatch 3 and later."""
    out = NOTE + "# For pgwatch 3 and later: --metrics=pgwatch.yml, and the preset cyclone for the source\n\nmetrics:\n"
    for key, query in queries.items():
        body = query["sql"].strip()
        labels = ", ".join(f"q.{label} AS tag_{label}" for label in query["labels"])
        columns = ", ".join(f"q.{name}" for name in query["metrics"])
        sql = "SELECT /* pgwatch_generated */ (extract(epoch FROM now()) * 1e9)::bigint AS epoch_ns,\n       "
        sql += f"{labels + ', ' if labels else ''}{columns}\nFROM (\n{indented(body, 4)}) q"
        out += f"  {key}:\n    description: {quoted(query['help'])}\n    sqls:\n      {OLDEST_MAJOR}: |\n{indented(sql, 8)}"
        gauges = [name for name in query["metrics"] if not is_counter(name)]
        out += "    gauges:\n" + "".join(f"      - {name}\n" for name in gauges)
        out += f"    is_instance_level: {str(query['scope'] == 'server').lower()}\n    statement_timeout_seconds: {TIMEOUT_SECONDS}\n"
    out += "\npresets:\n  cyclone:\n    description: \"VACUUM as pg_cyclone sees it\"\n    metrics:\n"
    for key, query in queries.items():
        out += f"      {key}: {max(query['every'], SCRAPE_SECONDS)}\n"
    return out


def panel_json(panel: dict, number: int, x: int, y: int) -> dict:
    """Return a panel of the dashboard."""
    defaults: dict = {"unit": panel["unit"]}
    if "thresholds" in panel:
        steps = [{"color": color, "value": value} for color, value in zip(COLORS, [None, *panel["thresholds"]], strict=True)]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel["unit"] == "percentunit" or panel["kind"] == "timeseries":
        defaults["min"] = 0
    made = {
        "id": number,
        "type": panel["kind"],
        "title": panel["title"],
        "description": panel["help"],
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel["width"], "h": PANEL_HEIGHTS[panel["kind"]]},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [],
    }
    if panel["kind"] in ("stat", "bargauge"):
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    if panel["kind"] == "bargauge":
        made["options"] |= {"orientation": "horizontal", "displayMode": "basic"}
    for letter, (expression, legend) in zip("ABCDEF", panel["exprs"]):
        made["targets"].append(
            {
                "refId": letter,
                "datasource": DATASOURCE,
                "expr": expression.replace("$server", 'job=~"$job", instance=~"$instance"'),
                "legendFormat": legend,
                "instant": panel["kind"] == "bargauge",
                "range": panel["kind"] != "bargauge",
            }
        )
    return made


def variable(name: str, query: str) -> dict:
    """Return a variable of the dashboard whose values are those of a label."""
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard(panels: list) -> str:
    """Return the dashboard for Grafana 10 and later."""
    made, x, y = [], 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel["width"] > GRID_WIDTH:
            x, y = 0, y + made[-1]["gridPos"]["h"]
        made.append(panel_json(panel, number, x, y))
        x += panel["width"]
    content = {
        "title": "pg_cyclone",
        "uid": "pg-cyclone",
        "tags": ["postgresql", "vacuum"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                variable("job", "label_values(cyclone_database_xid_age, job)"),
                variable("instance", 'label_values(cyclone_database_xid_age{job=~"$job"}, instance)'),
            ]
        },
        "annotations": {"list": []},
        "panels": made,
    }
    return json.dumps(content, indent=2) + "\n"


def files() -> dict[str, str]:
    """Return the content of each file, by its name."""
    source = tomllib.loads((FOLDER / "metrics.toml").read_text())
    queries = source["query"]
    made = {"postgres_exporter.yml": postgres_exporter(queries), "pgwatch.yml": pgwatch(queries), "grafana.json": dashboard(source["panel"])}
    for every in sorted({query["every"] for query in queries.values()}):
        made[f"cyclone{f'_{every}s' if every else ''}.collector.yml"] = sql_exporter(queries, every)
    return made


def main() -> int:
    check = "--check" in sys.argv[1:]
    for name, content in files().items():
        path = FOLDER / name
        if check and not (path.exists() and path.read_text() == content):
            print(f"monitoring/{name} is not what metrics.toml makes: run \"make monitoring\"")
            return 1
        if not check:
            path.write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
