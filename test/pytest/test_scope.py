"""cyclone.databases and cyclone.tables bound what the engine takes, for each kind of VACUUM; test_autovacuum.py has autovacuum's part."""

import psycopg
import pytest

from cyclone_lab import checks
from cyclone_lab.background import wait_until
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
    conn.execute("SET ROLE clerk")
    for name in ("tables", "databases"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(f"SET cyclone.{name} = ''")


@pytest.mark.once
def test_never_is_for_all(new_cluster):
    """What the files say for an emergency switches off what was switched on for a database, a session and autovacuum; and goes again."""
    own = new_cluster(autovacuum="on", autovacuum_naptime="1s", **{"cyclone.enabled": "off"})
    own.sql("CREATE DATABASE shop")
    own.sql("ALTER DATABASE shop SET cyclone.enabled = on")
    with own.connect("shop") as conn:
        conn.execute("CREATE EXTENSION pg_cyclone; CREATE EXTENSION pg_visibility; CREATE EXTENSION amcheck; CREATE EXTENSION pageinspect")
        conn.execute("CREATE TABLE t (id int) WITH (autovacuum_enabled = off, autovacuum_vacuum_threshold = 1)")
        conn.execute("INSERT INTO t SELECT generate_series(1, 1000)")
        assert by_engine(said(conn, "VACUUM (VERBOSE) t"))
        own.stop()
        with (own.data / "postgresql.auto.conf").open("a") as file:
            file.write("cyclone.enabled = 'never'\n")
        own.config.pop("cyclone.enabled")  # as the test's files come later
        own.start()
    with own.connect("shop") as conn:
        assert not by_engine(said(conn, "VACUUM (VERBOSE) t"))
        conn.execute("SET cyclone.enabled = on")
        assert not by_engine(said(conn, "VACUUM (VERBOSE) t"))
        conn.execute("DELETE FROM t WHERE id % 2 = 0; ALTER TABLE t SET (autovacuum_enabled = on)")
        query = "SELECT last_by, last_reason FROM cyclone.autovacuum WHERE relation = 't'::regclass"
        wait_until(lambda: conn.execute(query).fetchall(), "an autovacuum")
        assert conn.execute(query).fetchall() == [("server", "off")]
        # a session with a value of its own notices when it goes
        for value, engines in (("on", True), ("never", False), ("off", True)):
            conn.execute(f"ALTER SYSTEM SET cyclone.enabled = {value}")
            conn.execute("SELECT pg_reload_conf()")
            wait_until(lambda: by_engine(said(conn, "VACUUM (VERBOSE) t")) == engines, f"{value} in the files")  # noqa: B023
        checks.assert_clean(conn, "t")


def test_no_user_switches_it_on(conn):
    """Not what the files or a superuser have switched off, in no way; nor does any list."""
    conn.execute("DROP ROLE IF EXISTS ordinary; CREATE ROLE ordinary")
    conn.execute("SET ROLE ordinary")
    for name in ("cyclone.enabled", "cyclone.databases", "cyclone.tables"):
        for statement in (f"SET {name} = on", f"ALTER ROLE ordinary SET {name} = on"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement)


@pytest.mark.once
def test_a_mistake_in_the_files_leaves_it_off(new_cluster):
    """Or narrow. So what is meant to be one database is never all of them."""
    wrong = {"cyclone.enabled": "maybe", "cyclone.autovacuum": "perhaps", "cyclone.system_calls": "if so", "cyclone.databases": "shop,,"}
    wrong |= {"cyclone.max_wal_rate": "32 MB a second", "cyclone.max_replica_lag": "-1", "cyclone.adaptive_delay": "20ms"}
    own = new_cluster(**wrong, **{"cyclone.tables": '"', "cyclone.compaction": "on", "cyclone.compaction_window": "some time"})
    expected = {"enabled": "off", "autovacuum": "off", "system_calls": "off", "databases": '""', "tables": '""', "compaction": "off",
                "max_wal_rate": "1MB", "max_replica_lag": "1s", "adaptive_delay": "on"}  # fmt: skip
    with own.connect() as conn:
        assert {name: conn.execute(f"SHOW cyclone.{name}").fetchone()[0] for name in expected} == expected
        assert all(f"\"cyclone.{name}\" is taken for '{value}', as the value of" in own.log for name, value in expected.items())
    valid = {"max_wal_rate": "32MB", "max_replica_lag": "10s", "adaptive_delay": "off"}
    with own.connect() as conn:
        for name, value in valid.items():
            conn.execute(f"ALTER SYSTEM SET cyclone.{name} = '{value}'")
        conn.execute("SELECT pg_reload_conf()")
        show = lambda name: conn.execute(f"SHOW cyclone.{name}").fetchone()[0]  # noqa: E731
        wait_until(lambda: {name: show(name) for name in valid} == valid, "the reload")
    for name in ("cyclone.enabled", "cyclone.autovacuum", "cyclone.system_calls", "cyclone.compaction_window"):
        own.config.pop(name)
    own.restart()
    with own.connect() as conn:
        conn.execute("CREATE TABLE t (id int)")
        assert LEFT in said(conn, "VACUUM (VERBOSE) t")
        own.config.pop("cyclone.tables")
        own.config["cyclone.databases"] = "postgres"
    own.restart()
    with own.connect() as conn:
        assert by_engine(said(conn, "VACUUM (VERBOSE) t"))
