"""The checks find what they are for: a proof that cannot fail proves nothing."""

import pytest

from cyclone_lab import checks


@pytest.fixture
def table(conn):
    """A table with a btree and a hash index, posting lists in the btree, and its visibility map set."""
    conn.execute("CREATE EXTENSION pg_surgery")
    conn.execute("CREATE TABLE t (id int, kind int) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 3000) i")
    conn.execute("CREATE INDEX ON t (kind)")
    conn.execute("CREATE INDEX ON t USING hash (id)")
    conn.execute("VACUUM (FREEZE) t")
    return "t"


def test_a_sound_table_passes(conn, table):
    checks.assert_clean(conn, table)


def test_an_entry_to_a_dead_line_pointer_is_found_in_each_index(conn, table):
    conn.execute("SELECT heap_force_kill('t', ARRAY['(0,5)', '(3,7)']::tid[])")
    problems = checks.dangling_index_entries(conn, table)
    assert sorted(problem.rpartition(" ")[2] for problem in problems) == ["(0,5)", "(0,5)", "(3,7)", "(3,7)"]
    assert {problem.split(",")[0] for problem in problems} == {"index t_kind_idx", "index t_id_idx"}


def test_an_entry_to_a_dead_line_pointer_is_found_in_gist_and_gin_too(conn):
    conn.execute("CREATE EXTENSION pg_surgery")
    conn.execute("CREATE TABLE t (a int[], p point) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT ARRAY[1], point(i, i) FROM generate_series(1, 5000) i")
    conn.execute("CREATE INDEX ON t USING gin (a)")
    conn.execute("CREATE INDEX ON t USING gist (p)")
    conn.execute("VACUUM (FREEZE) t")
    checks.assert_clean(conn, "t")
    conn.execute("SELECT heap_force_kill('t', ARRAY['(0,5)', '(3,7)']::tid[])")
    problems = checks.dangling_index_entries(conn, "t")
    assert sorted(problem.rpartition(" ")[2] for problem in problems) == ["(0,5)", "(0,5)", "(3,7)", "(3,7)"]
    assert {problem.split(",")[0] for problem in problems} == {"index t_a_idx", "index t_p_idx"}


def test_deleted_pages_of_a_gin_posting_tree_are_passed_by(conn):
    conn.execute("CREATE TABLE t (id int, a int[]) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, ARRAY[1] FROM generate_series(1, 100000) i")
    conn.execute("CREATE INDEX t_a ON t USING gin (a)")
    conn.execute("DELETE FROM t WHERE id BETWEEN 20000 AND 80000")
    conn.execute("VACUUM (INDEX_CLEANUP on) t")
    flags = """
        SELECT count(*) FROM generate_series(1, pg_relation_size('t_a') / 8192 - 1) block,
        LATERAL (SELECT (gin_page_opaque_info(get_raw_page('t_a', block))).flags) page WHERE flags @> '{data,leaf,deleted}'
    """
    assert conn.execute(flags).fetchone()[0] > 0
    checks.assert_clean(conn, "t")


def test_a_row_missing_from_its_index_is_found(conn, table):
    conn.execute("UPDATE pg_index SET indisready = false WHERE indexrelid = 't_kind_idx'::regclass")
    conn.execute("INSERT INTO t VALUES (1, 99)")
    conn.execute("UPDATE pg_index SET indisready = true WHERE indexrelid = 't_kind_idx'::regclass")
    [problem] = checks.btree_corruption(conn, table)
    assert "lacks matching index tuple" in problem


def test_every_heap_of_a_partitioned_table_is_looked_at(conn):
    conn.execute("CREATE TABLE p (id int, note text) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    conn.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
    names = checks.heaps(conn, "p")
    assert names[:2] == ["p1", "p2"] and len(names) == 4
