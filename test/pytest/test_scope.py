"""cyclone.databases and cyclone.tables bound what the engine takes, for each kind of VACUUM; test_autovacuum.py has autovacuum's part."""

import psycopg
import pytest

from cyclone_lab import checks
from test_seam import by_engine, said

LEFT = "is left to PostgreSQL, by cyclone.databases or cyclone.tables"


@pytest.fixture
def tables(conn):
    """A connection with tables "orders" and sales.orders_2025, of which every third row is dead."""
    conn.execute("CREATE SCHEMA sales")
    for name in ("orders", "sales.orders_2025"):
        conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text) WITH (autovacuum_enabled = off)")
        conn.execute(f"INSERT INTO {name} SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 900) i")
        conn.execute(f"ALTER TABLE {name} ALTER note SET STORAGE EXTERNAL")
        conn.execute(f"UPDATE {name} SET note = note || 'x' WHERE id % 3 = 0")
    return conn


def bound(conn, databases="", tables=""):
    conn.execute("SELECT set_config('cyclone.databases', %s, false), set_config('cyclone.tables', %s, false)", (databases, tables))


def is_engines(conn, table, how="VERBOSE") -> bool:
    """Vacuum a table, and tell who did so."""
    report = said(conn, f"VACUUM ({how}) {table}")
    assert by_engine(report) != (f'table "{table.split(".")[-1]}" {LEFT}' in report), report
    checks.assert_clean(conn, table)
    return by_engine(report)


@pytest.mark.parametrize(
    ("lists", "engines"),
    [
        ({}, {"orders", "sales.orders_2025"}),
        ({"tables": "orders"}, {"orders"}),
        ({"tables": "orders*"}, {"orders", "sales.orders_2025"}),
        ({"tables": "nothing, sales.orders_20[0-9]5"}, {"sales.orders_2025"}),
        ({"tables": "public.*"}, {"orders"}),
        ({"tables": "Orders, sales, sales.*.*, *orders?"}, set()),
        ({"databases": "test_*"}, {"orders", "sales.orders_2025"}),
        ({"databases": "test_*", "tables": "orders"}, {"orders"}),
        ({"databases": "shop, crm"}, set()),
        ({"databases": "shop", "tables": "*"}, set()),
    ],
)
def test_patterns(tables, lists, engines):
    bound(tables, **lists)
    assert {name for name in ("orders", "sales.orders_2025") if is_engines(tables, name)} == engines


def test_toast_table_goes_with_its_table(tables):
    """Also where it is vacuumed by itself; the name in the list is its table's."""
    [(toast,)] = tables.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'orders'").fetchall()
    bound(tables, tables="orders")
    report = said(tables, "VACUUM (VERBOSE) orders")
    assert report.count("parallel workers: ") == 2 and LEFT not in report
    assert by_engine(said(tables, f"VACUUM (VERBOSE) {toast}"))
    bound(tables, tables="pg_toast*")
    report = said(tables, f"VACUUM (VERBOSE) {toast}")
    assert not by_engine(report) and f'table "{toast.split(".")[1]}" {LEFT}' in report
    # without its owner's name it is a table like any other
    tables.execute("SET allow_system_table_mods = on")
    tables.execute(f"ALTER TABLE {toast} RENAME TO pg_toast_1")
    assert by_engine(said(tables, "VACUUM (VERBOSE) pg_toast.pg_toast_1"))


def test_whole_database_and_catalogs(tables):
    bound(tables, tables="orders")
    report = said(tables, "VACUUM (VERBOSE)")
    assert 'finished vacuuming "' in report and f'table "pg_class" {LEFT}' in report
    assert report.count("parallel workers: ") == 2  # orders and its TOAST table
    checks.assert_clean(tables, "orders", "sales.orders_2025")


def test_full_is_left_to_the_server(tables):
    bound(tables, tables="orders")
    assert by_engine(said(tables, "VACUUM (FULL, VERBOSE) orders"))
    before = tables.execute("SELECT count(*), sum(hashtext(note)) FROM sales.orders_2025").fetchone()
    assert not by_engine(said(tables, "VACUUM (FULL REWRITE, VERBOSE) sales.orders_2025"))
    assert tables.execute("SELECT count(*), sum(hashtext(note)) FROM sales.orders_2025").fetchone() == before
    checks.assert_clean(tables, "orders", "sales.orders_2025")


def test_inplace_says_that_it_only_vacuums(tables):
    """PostgreSQL has no such thing, so a warning says what is not done."""
    bound(tables, tables="orders")
    report = said(tables, "VACUUM (FULL INPLACE) sales.orders_2025")
    assert 'WARNING: rows of "orders_2025" cannot be moved, vacuuming only' in report
    assert "cannot be moved" not in said(tables, "VACUUM (FULL INPLACE) orders")
    checks.assert_clean(tables, "orders", "sales.orders_2025")


def test_who_may_set_them(conn):
    conn.execute("SET cyclone.tables = 'a', 'b.c*'")
    assert conn.execute("SHOW cyclone.tables").fetchone() == ("a, b.c*",)
    for name in ("tables", "databases"):
        with pytest.raises(psycopg.errors.InvalidParameterValue) as error:
            conn.execute(f"SELECT set_config('cyclone.{name}', 'a,,b', false)")
        assert error.value.diag.message_detail == "List syntax is invalid."
    conn.execute("CREATE ROLE clerk")
    try:
        conn.execute("SET ROLE clerk")
        for name in ("tables", "databases"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(f"SET cyclone.{name} = ''")
    finally:
        conn.execute("RESET ROLE; DROP ROLE clerk")
