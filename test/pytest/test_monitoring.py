"""The files in monitoring/: each query runs as a member of pg_monitor and no more, and what dashboard and alerts ask for is what queries give.

The formats are checked by the names of fields that the exporters' own readers take; an exporter refuses, or passes over, any other.
"""

import json
import re
import shutil
import subprocess

import psycopg
import pytest
import yaml
from psycopg.rows import dict_row

from cyclone_lab.background import Parked, wait_until
from cyclone_lab.postgres import REPO

FOLDER = REPO / "monitoring"
EXPORTER_KEYS = {"query", "metrics", "master", "cache_seconds"}
COLLECTOR_KEYS = {"collector_name", "min_interval", "metrics", "queries"}
METRIC_KEYS = {"metric_name", "type", "help", "key_labels", "values", "query_ref"}
PGWATCH_KEYS = {"description", "sqls", "gauges", "is_instance_level", "statement_timeout_seconds"}
FLOAT8, INT8, TEXT = 701, 20, 25
# Words of PromQL that are followed by no metric.
NOT_METRICS = {"by", "without", "and", "or", "max", "min", "sum", "topk", "absent", "vector"}


def read(name: str):
    return yaml.safe_load((FOLDER / name).read_text())


def collectors() -> list[dict]:
    return [yaml.safe_load(file.read_text()) for file in sorted(FOLDER.glob("*.collector.yml"))]


def exported() -> dict[str, tuple[set, str]]:
    """Return the labels and the type of each metric that postgres_exporter makes."""
    found = {}
    for key, query in read("postgres_exporter.yml").items():
        columns = {name: entry for metric in query["metrics"] for name, entry in metric.items()}
        labels = {name for name, entry in columns.items() if entry["usage"] == "LABEL"}
        found |= {f"{key}_{name}": (labels, entry["usage"].lower()) for name, entry in columns.items() if entry["usage"] != "LABEL"}
    return found


def queries() -> dict[str, tuple[str, set, set]]:
    """Return each query of each file, with its labels and other columns."""
    found = {}
    for key, query in read("postgres_exporter.yml").items():
        columns = {name: entry["usage"] for metric in query["metrics"] for name, entry in metric.items()}
        labels = {name for name, usage in columns.items() if usage == "LABEL"}
        found[f"postgres_exporter: {key}"] = (query["query"], labels, set(columns) - labels)
    for collector in collectors():
        for query in collector["queries"]:
            users = [metric for metric in collector["metrics"] if metric["query_ref"] == query["query_name"]]
            labels = {label for metric in users for label in metric.get("key_labels", [])}
            found[f"sql_exporter: {query['query_name']}"] = (query["query"], labels, {metric["values"][0] for metric in users})
    for key, metric in read("pgwatch.yml")["metrics"].items():
        _, labels, values = found[f"postgres_exporter: {key}"]
        found[f"pgwatch: {key}"] = (metric["sqls"][17], {f"tag_{label}" for label in labels}, values | {"epoch_ns"})
    return found


def metrics_in(expression: str) -> set[str]:
    """Return the names of the metrics in a PromQL expression."""
    bare = re.sub(r"\{[^}]*\}", "", expression)
    bare = re.sub(r"\b(?:by|without|on|ignoring) *\([^)]*\)", "", bare)
    return set(re.findall(r"[a-z_][a-z0-9_]*", re.sub(r"\b[0-9.]+\b", "", bare))) - NOT_METRICS


def labels_in(expression: str) -> set[str]:
    """Return the labels that a PromQL expression asks for or groups by."""
    asked = {label for part in re.findall(r"\{([^}]*)\}", expression) for label in re.findall(r"(\w+)\s*[=!]", part)}
    return asked | {label.strip() for part in re.findall(r"\b(?:by|without|on) *\(([^)]*)\)", expression) for label in part.split(",")}


def test_files_are_made_of_the_metrics():
    result = subprocess.run([REPO / ".venv/bin/python", REPO / "scripts/make_monitoring.py", "--check"], text=True, capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_postgres_exporter_format():
    for key, query in read("postgres_exporter.yml").items():
        assert set(query) <= EXPORTER_KEYS and re.fullmatch(r"[a-z_]+", key)
        for metric in query["metrics"]:
            [(name, entry)] = metric.items()
            assert set(entry) == {"usage", "description"} and entry["usage"] in ("LABEL", "GAUGE", "COUNTER") and entry["description"]
            assert (entry["usage"] == "COUNTER") == (name == "total"), (key, name)


def test_sql_exporter_format_and_metrics():
    """It has the metrics of postgres_exporter, by name, type and labels."""
    found = {}
    for collector in collectors():
        assert set(collector) == COLLECTOR_KEYS and re.fullmatch(r"\d+s", collector["min_interval"])
        known = {query["query_name"] for query in collector["queries"]}
        for metric in collector["metrics"]:
            assert set(metric) <= METRIC_KEYS and metric["help"] and metric["query_ref"] in known and len(metric["values"]) == 1
            found[metric["metric_name"]] = (set(metric.get("key_labels", [])), metric["type"])
    assert found == exported()


def test_pgwatch_format():
    content = read("pgwatch.yml")
    assert set(content) == {"metrics", "presets"} and set(content["presets"]["cyclone"]["metrics"]) == set(content["metrics"])
    for key, metric in content["metrics"].items():
        assert set(metric) == PGWATCH_KEYS and list(metric["sqls"]) == [17]
        gauges = {name for name, (_, kind) in exported().items() if name.startswith(f"{key}_") and kind == "gauge"}
        assert {f"{key}_{name}" for name in metric["gauges"]} == gauges


def test_dashboard():
    """Each panel asks for metrics and labels that there are, and has a place of its own."""
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    known, taken, numbers = exported(), set(), set()
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    for panel in dashboard["panels"]:
        numbers.add(panel["id"])
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}" and panel["type"] in ("stat", "timeseries", "bargauge")
        assert panel["title"] and panel["description"] and panel["targets"]
        for target in panel["targets"]:
            named = metrics_in(target["expr"])
            assert named and named <= set(known), f"{panel['title']}: {named - set(known)}"
            labels = set.union(*(known[name][0] for name in named))
            assert labels_in(target["expr"]) <= labels | {"job", "instance"}, panel["title"]
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
    assert len(numbers) == len(dashboard["panels"])


def test_alerts():
    """Each rule asks for metrics that there are, and speaks of labels that they have; the four that matter most are there."""
    known, names = exported(), set()
    [group] = read("alerts.yml")["groups"]
    for rule in group["rules"]:
        names.add(rule["alert"])
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"} and rule["labels"]["severity"] in ("warning", "critical")
        named = metrics_in(rule["expr"])
        assert named and named <= set(known), rule["alert"]
        labels = set.intersection(*(known[name][0] for name in named)) - set(re.findall(r"without \((.*?)\)", rule["expr"]))
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, rule["alert"]
    assert {"CycloneWraparoundNear", "CycloneBreakerOpen", "CycloneAtFloor", "CycloneHorizonHeld"} <= names


def test_alerts_as_prometheus_sees_them():
    """Prometheus' own program reads the rules, and fires them for the series in test/alerts_test.yml, and for no other."""
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.xfail("NOT TESTED: there is no promtool here (Debian's package prometheus has it)")
    result = subprocess.run([promtool, "test", "rules", REPO / "test/alerts_test.yml"], text=True, capture_output=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture
def watcher(cluster, db):
    """A connection as a role that is a member of pg_monitor and owns nothing, in a session that can't write."""
    cluster.sql("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    with cluster.connect(db, user="watcher", row_factory=dict_row) as connection:
        connection.execute("SET default_transaction_read_only = on")
        yield connection


def run(conn, name: str) -> list[dict]:
    """Run a query; its columns are those that its file names, of types that exporters take, and no two rows have the same labels."""
    sql, labels, values = queries()[name]
    cursor = conn.execute(sql)
    types = {column.name: column.type_code for column in cursor.description}
    assert set(types) == labels | values, name
    assert all(types[label] == TEXT for label in labels), name
    assert all(types[value] in (FLOAT8, INT8) for value in values), (name, types)
    rows = cursor.fetchall()
    assert all(row[label] is not None for row in rows for label in labels), name
    keys = [tuple(row[label] for label in sorted(labels)) for row in rows]
    assert len(set(keys)) == len(keys), name
    return rows


def test_queries(cluster, db, conn, watcher):
    """Each query of each file as pg_monitor, while there is something to tell of: a holder, a VACUUM at work with an adaptive delay, a past one."""
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, filler text)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i")
    conn.execute("VACUUM ANALYZE t")
    with cluster.snapshot(db, "SELECT count(*) FROM t"):
        conn.execute("DELETE FROM t WHERE id % 2 = 0")
        conn.execute("SET cyclone.debug_point = 'heap-scan:leader:error'")
        with pytest.raises(psycopg.Error):
            conn.execute("VACUUM t")
        conn.execute("SELECT pg_stat_force_next_flush()")
        with Parked(cluster, db, "heap-scan:leader", 1, "VACUUM (PARALLEL 0, ADAPTIVE_DELAY) t") as vacuum:
            wait_until(lambda: run(watcher, "sql_exporter: cyclone_pace"), "its pace")
            found = {name: run(watcher, name) for name in queries()}
            vacuum.finish()
    check_what_they_tell(db, {name: rows for name, rows in found.items() if name.startswith("postgres_exporter: ")})
    check_what_they_tell(db, {name: rows for name, rows in found.items() if name.startswith("sql_exporter: ")})
    assert {len(found[f"pgwatch: {name}"]) > 0 for name in read("pgwatch.yml")["metrics"] if name != "cyclone_autovacuum"} == {True}


def test_processes_in_several_indexes_do_the_blocks_of_all(conn):
    """A worker that is in the next index already: it was 140 % of the larger one."""
    conn.execute("CREATE TEMP TABLE staged AS TABLE cyclone.progress_details WITH NO DATA")
    conn.execute("""INSERT INTO staged (datid, relid, phase, role, index_relid, blocks_done, blocks_total)
        VALUES (1, 2, 'vacuuming indexes', 'leader', 3, 50, 100), (1, 2, 'vacuuming indexes', 'worker', 4, 90, 90)""")
    for file in ("postgres_exporter", "sql_exporter"):
        sql, _, _ = queries()[f"{file}: cyclone_running"]
        [row] = conn.cursor(row_factory=dict_row).execute(sql.replace("cyclone.progress_details", "staged")).fetchall()
        assert (row["phase"], row["processes"], row["blocks_done"], row["blocks"]) == ("vacuuming indexes", 2, 140, 190)


def test_who_stands_still(conn):
    """Not one that has a core, of which there is no wait event; nor one that a standby only slows down. Near wraparound none is at its floor."""
    conn.execute("CREATE TEMP TABLE staged AS TABLE cyclone.pace_details WITH NO DATA")
    conn.execute("""INSERT INTO staged (datid, relid, limited_by, figure, bound, rate, budget)
        VALUES (1, 1, 'nothing', NULL, NULL, NULL, NULL), (1, 2, 'cost delay', 5, 10, 5, 10), (1, 3, 'replica lag', 1, 2, 5, 10),
               (1, 4, 'replica lag', 2, 1, 5, 10), (1, 5, 'floor', NULL, NULL, 0, 10), (1, 6, 'floor', NULL, NULL, 20, 10)""")
    sql = queries()["sql_exporter: cyclone_pace"][0].replace("cyclone.pace_details", "staged")
    rows = {row["relation"]: (row["stands_still"], row["at_floor"]) for row in conn.cursor(row_factory=dict_row).execute(sql).fetchall()}
    assert [rows[f"OID {relid}"] for relid in range(1, 7)] == [(0, 0), (0, 0), (0, 0), (1, 0), (1, 1), (0, 0)]


def check_what_they_tell(db: str, found: dict) -> None:
    """The rows name what the test has staged."""
    by_name = {name.split(": ")[1]: rows for name, rows in found.items()}
    assert {row["datname"] for row in by_name["cyclone_database"]} >= {db, "template0"}
    assert all(row["xids_left"] + row["xid_age"] == 2144483647 for row in by_name["cyclone_database"])
    [held] = [row for row in by_name["cyclone_horizon"] if row["datname"] == db]
    assert (held["kind"], held["name"], held["holders"]) == ("session", "", 1) and held["held_seconds"] >= 0
    [running] = [row for row in by_name["cyclone_running"] if row["datname"] == db]
    assert (running["relation"], running["phase"], running["processes"]) == ("t", "scanning heap", 1) and running["blocks"] > 500
    [pace] = [row for row in by_name["cyclone_pace"] if row["datname"] == db]
    assert (pace["relation"], pace["at_floor"], pace["stands_still"]) == ("t", 0, 1) and pace["rate"] != 0, "which is not known yet"
    outcomes = {row["outcome"]: row["runs"] for row in by_name["cyclone_history"] if row["datname"] == db}
    assert outcomes["failed"] == 1 and outcomes["done"] >= 1
    [runs] = by_name["cyclone_runs"]
    assert runs["total"] >= runs["remembered"] >= 2 and runs["hidden"] == 0
    [tables] = by_name["cyclone_tables"]
    assert tables["tables"] > 50 and tables["dead_rows"] >= 10000 and tables["due"] == 0, "autovacuum is off"
    [compaction] = by_name["cyclone_compaction"]
    assert (compaction["reason"], compaction["tables"], compaction["failing"]) == ("off", 1, 0) and compaction["size_bytes"] > 4_000_000
    [table] = [row for row in by_name["cyclone_table"] if row["relation"] == "public.t"]
    assert (table["due"], table["dead_rows"]) == (0, 10000) and table["dead_threshold"] < 10000
    [bloat] = [row for row in by_name["cyclone_bloat"] if row["relation"] == "public.t"]
    assert bloat["size_bytes"] > 4_000_000 and bloat["held_bytes"] > 1_000_000
