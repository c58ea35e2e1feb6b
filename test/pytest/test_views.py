"""What all views have in common: the types of their columns, comments with units, and that psql can show them.

A file for each view tests what it says.
"""

import pytest

from conftest import TEMPLATE
from cyclone_lab.background import Parked

VIEWS = ("advice", "autovacuum", "bloat", "compaction", "history", "horizon", "pace", "progress")
DETAILED = VIEWS[1:]
WIDTH = 160
REGCLASS, OID, TEXTS = 2205, 26, {19, 25}

COLUMNS = """
    SELECT c.relname, a.attname, a.atttypid::int, col_description(c.oid, a.attnum)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    WHERE c.relnamespace = 'cyclone'::regnamespace AND c.relkind = 'v'
"""


def test_a_column_has_one_type_by_its_name_and_a_comment(conn):
    columns = conn.execute(COLUMNS).fetchall()
    assert {view for view, *_ in columns} >= set(VIEWS) | {f"{view}_details" for view in DETAILED}
    for view, column, kind, comment in columns:
        where = f"cyclone.{view}.{column}"
        assert comment, f"{where} has no comment"
        if column in ("relation", "index", "toast_of", "of_table"):
            assert kind == REGCLASS, where
        elif column in ("relid", "datid", "usesysid", "index_relid"):
            assert kind == OID, where
        elif column.endswith("name") or column == "name":
            assert kind in TEXTS, where
        units = {"_bytes": "byte", "_seconds": "second", "_ms": "millisecond", "_ratio": "0 to 1", "_size": "byte"}
        for end, unit in units.items():
            assert not column.endswith(end) or unit in comment, f"{where} doesn't say its unit: {comment}"


def test_the_first_columns_are_those_of_the_details(conn):
    """In their order, with their types and comments."""
    found: dict = {}
    for view, column, kind, comment in conn.execute(COLUMNS + " ORDER BY c.relname, a.attnum"):
        found.setdefault(view, {})[column] = (kind, comment)
    for view in DETAILED:
        details = found[f"{view}_details"]
        assert found[view] == {column: details[column] for column in details if column in found[view]}
        assert list(found[view]) == [column for column in details if column in found[view]], view


@pytest.mark.parametrize("view", VIEWS)
def test_relation_joins(conn, view):
    conn.execute(f"SELECT FROM cyclone.{view} v JOIN pg_class c ON c.oid = v.relation" if view != "horizon" else "SELECT 1")
    if view != "horizon":
        conn.execute(f"SELECT FROM cyclone.{view} v JOIN pg_stat_all_tables s ON s.relid = v.relation WHERE v.relation = 'pg_class'::regclass")


def test_psql_can_show_them(cluster, db, conn):
    """With a usual table in them no line is longer than a wide terminal, but for long texts, which come last."""
    conn.execute("""
        CREATE TABLE orders (id int PRIMARY KEY, note text);
        INSERT INTO orders SELECT i, md5(i::text) FROM generate_series(1, 20000) i;
        """)
    conn.execute("VACUUM orders")
    conn.execute("DELETE FROM orders WHERE id % 2 = 0")
    conn.execute("SELECT pg_stat_force_next_flush()")
    settings = {"vacuum_cost_delay": "1ms", "vacuum_cost_limit": 200}
    with (
        cluster.connect(db) as other,
        Parked(cluster, db, "index-vacuum:any", 2, "VACUUM (PARALLEL 1) orders", {**settings, "min_parallel_index_scan_size": 0}) as vacuum,
    ):
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()")
        for view in VIEWS:
            column = {"horizon": "'orders'::regclass", "bloat": "of_table"}.get(view, "relation")
            where = f"WHERE {column} = 'orders'::regclass"
            shown = cluster.run("psql", "-X", "-d", db, "-c", f"SELECT * FROM cyclone.{view} {where}").stdout
            rows = shown.splitlines()
            assert ("(0 rows)" in shown) == (view == "autovacuum"), f"{view} has no rows:\n{shown}"
            # the text of the advice is as long as it has to be
            width = rows[0].rindex("|") if view == "advice" else max(map(len, rows))
            assert width <= WIDTH, f"cyclone.{view} is {width} wide:\n{shown}"
        vacuum.finish()


def test_a_table_of_another_database_has_no_relation(cluster, db, conn):
    conn.execute("CREATE TABLE t AS SELECT 1 AS a")
    conn.execute("VACUUM t")
    query = "SELECT relation, relation_name FROM cyclone.history WHERE datname = %s AND relation_name = 'public.t'"
    assert conn.execute(query, (db,)).fetchall() == [("t", "public.t")]
    with cluster.connect(TEMPLATE) as elsewhere:
        assert elsewhere.execute(query, (db,)).fetchall() == [(None, "public.t")]
    conn.execute("DROP TABLE t")
    assert conn.execute(query, (db,)).fetchall() == [(None, "public.t")]
