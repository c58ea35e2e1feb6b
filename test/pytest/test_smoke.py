"""A VACUUM removes the dead rows of a table with indexes and leaves it sound, with the engine on and off."""

import pytest

from cyclone_lab import checks

EVERY_VERSION = "the first look"


@pytest.mark.parametrize("enabled", ["on", "off"])
def test_vacuum_removes_dead_rows_and_leaves_the_table_sound(conn, enabled):
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, kind int, note text) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, i % 10, md5(i::text) FROM generate_series(1, 20000) i")
    conn.execute("CREATE INDEX ON t (kind)")
    conn.execute("CREATE INDEX ON t USING hash (note)")
    conn.execute("UPDATE t SET kind = kind + 1 WHERE id % 5 = 0")
    conn.execute("DELETE FROM t WHERE id % 3 = 0")
    before = checks.table_state(conn, "t")

    conn.execute(f"SET cyclone.enabled = {enabled}")
    conn.execute("VACUUM t")

    after = checks.assert_vacuumed(conn, "t", before)
    assert after["all_visible"] == after["relpages"]
    assert after["free_space"] > 0


ROWS = """
INSERT INTO t
SELECT i, i % 100, md5(i::text), ARRAY[i % 50, i % 77, i], point(i % 100, i / 100), CASE WHEN i % 20 = 0 THEN repeat(md5(i::text), 300) END
FROM generate_series(1, 20000) i
"""


def test_each_kind_of_vacuum_leaves_the_table_sound(conn):
    """With all types of indexes and a TOAST table, by several processes. Segments and blocks may have other sizes (make check-builds)."""
    conn.execute("SET min_parallel_table_scan_size = 0; SET min_parallel_index_scan_size = 0")
    conn.execute(
        "CREATE TABLE t (id int PRIMARY KEY, kind int, note text, list int[], place point, large text)"
        " WITH (autovacuum_enabled = off, fillfactor = 90)"
    )
    conn.execute("ALTER TABLE t ALTER large SET STORAGE external")
    conn.execute(ROWS)
    for index in ("btree (kind)", "hash (note)", "gin (list)", "gist (place)", "spgist (place)", "brin (id)"):
        conn.execute(f"CREATE INDEX ON t USING {index}")
    full_size = relation_size(conn)
    for statement, where in (
        ("VACUUM t", "id % 3 = 0 AND id < 10000"),
        ("VACUUM (PARALLEL 2) t", "id % 3 = 0"),
        ("VACUUM (FULL, PARALLEL 2) t", "id % 7 = 0"),
        ("VACUUM (FULL INPLACE, PARALLEL 2) t", "id BETWEEN 4000 AND 15000"),
        ("VACUUM (PARALLEL 2) t", "true"),
    ):
        conn.execute("UPDATE t SET kind = kind + 1 WHERE id % 11 = 0")
        conn.execute(f"DELETE FROM t WHERE {where}")
        before = checks.table_state(conn, "t")
        conn.execute(statement)
        checks.assert_vacuumed(conn, "t", before)
        if "FULL" in statement:
            size = relation_size(conn)
            assert size < full_size * 0.8
            full_size = size
    assert relation_size(conn) == 0


def relation_size(conn) -> int:
    """The size of the table and its TOAST table."""
    return conn.execute("SELECT pg_relation_size('t') + pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 't'::regclass").fetchone()[0]
