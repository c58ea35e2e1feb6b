"""A VACUUM removes the dead rows of a table with indexes and leaves it sound, with the engine on and off."""

import pytest

from cyclone_lab import checks


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

    after = checks.table_state(conn, "t")
    assert (after["rows"], after["content_hash"]) == (before["rows"], before["content_hash"])
    assert after["dead_items"] == after["dead_tuples"] == 0
    assert after["all_visible"] == after["relpages"]
    assert after["free_space"] > 0
    checks.assert_clean(conn, "t")
