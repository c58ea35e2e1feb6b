"""The checks find what they are for: a proof that cannot fail proves nothing."""

import random

import pytest

from cyclone_lab import checks, gin, tids
from long_runs.workload import BY_NAME, Doubt, Workload


@pytest.fixture
def table(conn):
    """A table with a btree and a hash index, posting lists in the btree, and its visibility map set."""
    conn.execute("CREATE TABLE t (id int, kind int) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 3000) i")
    conn.execute("CREATE INDEX ON t (kind)")
    conn.execute("CREATE INDEX ON t USING hash (id)")
    conn.execute("VACUUM (FREEZE) t")
    return "t"


def test_an_entry_to_a_dead_line_pointer_is_found_in_each_index(conn):
    conn.execute("CREATE EXTENSION pg_surgery")
    conn.execute("CREATE TABLE t (id int, kind int, a int[], p point) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, i % 3, ARRAY[1], point(i, i) FROM generate_series(1, 5000) i")
    for index in ("btree (kind)", "hash (id)", "gin (a)", "gist (p)"):
        conn.execute(f"CREATE INDEX ON t USING {index}")
    conn.execute("VACUUM (FREEZE) t")
    checks.assert_clean(conn, "t")
    conn.execute("SELECT heap_force_kill('t', ARRAY['(0,5)', '(3,7)']::tid[])")
    problems = {(problem.split(",")[0], problem.rpartition(" ")[2]) for problem in checks.dangling_index_entries(conn, "t")}
    assert problems == {(f"index t_{column}_idx", tid) for column in ("kind", "id", "a", "p") for tid in ("(0,5)", "(3,7)")}


def test_entries_read_byte_by_byte_are_one_a_row(conn):
    """With posting lists, in tuples and in trees, entries marked as killed, chains of buckets, pages that were deleted and new ones."""
    conn.execute("CREATE TABLE t (id int, few int, a int[], p point, note text) WITH (autovacuum_enabled = off)")
    conn.execute(
        "INSERT INTO t SELECT i, i % 7, ARRAY[1, i % 900, -i], point(i % 800, i), repeat(md5(i::text), 9) FROM generate_series(1, 9000) i"
    )
    indexes = {"btree": ("(id)", "(few)", "(note, few)"), "hash": ("(few)",), "gin": ("(a)",), "gist": ("(p)",), "spgist": ("(p)",)}
    assert set(indexes) == set(tids.METHODS)
    for method, keys in indexes.items():
        for number, key in enumerate(keys):
            conn.execute(f"CREATE INDEX t_{method}_{number} ON t USING {method} {key}")
    rows = {}
    for change in (
        "SELECT 1", "DELETE FROM t WHERE id BETWEEN 2000 AND 7000 OR id % 3 = 0; SELECT count(note) FROM t WHERE id > 0", "VACUUM (INDEX_CLEANUP on) t",
        "INSERT INTO t SELECT -id, few, a, p, note FROM t; UPDATE t SET few = few + 1 WHERE id % 5 = 0; VACUUM (INDEX_CLEANUP on) t",
    ):  # fmt: skip
        conn.execute("SET enable_seqscan = off")
        for statement in change.split("; "):
            conn.execute(statement)
        conn.execute("SET enable_seqscan = on")
        for method, keys in indexes.items():
            if not change.startswith("DELETE"):  # which leaves all entries
                each = "t, LATERAL (SELECT DISTINCT unnest(a)) keys" if method == "gin" else "t"
                rows[method] = sorted(tid for (tid,) in conn.execute(f"SELECT t.ctid::text FROM {each}"))
            for number in range(len(keys)):
                found = sorted(tid for _, tid in checks.index_entries(conn, f"t_{method}_{number}", method))
                assert found == rows[method], (method, number, change)


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
    # of all the others there is none to which nothing leads
    leaves = gin.leaves_of_trees(gin.read_pages(conn, "t_a"))
    assert [item or block in leaves for block, item, _ in tids.entries(conn, "t_a", "gin")] == [True] * 39999


def test_a_row_missing_from_its_index_is_found(conn, table):
    conn.execute("UPDATE pg_index SET indisready = false WHERE indexrelid = 't_kind_idx'::regclass")
    conn.execute("INSERT INTO t VALUES (1, 99)")
    conn.execute("UPDATE pg_index SET indisready = true WHERE indexrelid = 't_kind_idx'::regclass")
    [problem] = checks.btree_corruption(conn, table)
    assert "lacks matching index tuple" in problem


@pytest.mark.parametrize(("method", "column"), [("btree", "id"), ("hash", "id"), ("gin", "a"), ("gist", "p"), ("brin", "id")])
def test_a_row_that_an_index_does_not_lead_to_is_found_for_each_kind(conn, method, column):
    conn.execute("CREATE TABLE t (id int, a int[], p point) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, ARRAY[i], point(i, i) FROM generate_series(1, 2000) i")
    conn.execute(f"CREATE INDEX t_i ON t USING {method} ({column})")
    assert checks.index_scan_errors(conn, "t") == []
    conn.execute("UPDATE pg_index SET indisready = false WHERE indexrelid = 't_i'::regclass")
    conn.execute("INSERT INTO t SELECT -i, ARRAY[-i], point(-i, -i) FROM generate_series(1, 3) i")
    conn.execute("UPDATE pg_index SET indisready = true WHERE indexrelid = 't_i'::regclass")
    [problem] = checks.index_scan_errors(conn, "t")
    found, expected = (17, 20) if method == "brin" else (2000, 2003)
    assert f"by index t_i: ({found}, " in problem and f"by a sequential scan: ({expected}, " in problem


def test_space_that_the_map_promises_and_the_page_lacks_is_found(conn, table):
    conn.execute("DELETE FROM t WHERE id % 2 = 0")
    conn.execute("VACUUM (DISABLE_PAGE_SKIPPING, INDEX_CLEANUP on) t")
    assert checks.free_space_errors(conn, table) == []
    conn.execute("INSERT INTO t VALUES (0, 0)")  # which the map isn't told of
    [problem] = checks.free_space_errors(conn, table)
    assert "bytes free, and" in problem


@pytest.fixture
def workload(conn):
    """Two tables of one writer, with their ledger."""
    tables = Workload(1, tables=(BY_NAME["bare"], BY_NAME["chains"]))
    tables.create(conn, random.Random(1))
    tables.assert_content(conn)
    return tables


@pytest.mark.parametrize("harm", [
    "DELETE FROM bare WHERE id = (SELECT min(id) FROM bare)",
    "UPDATE chains SET n = n + 1 WHERE id = (SELECT min(id) FROM chains)",
    "UPDATE chains SET note = 'another' WHERE id = (SELECT min(id) FROM chains)",
    "UPDATE bare SET spot = point(0, -1) WHERE id = (SELECT min(id) FROM bare)",
    "INSERT INTO bare SELECT * FROM bare LIMIT 1",
])  # fmt: skip
def test_the_ledger_notices(conn, workload, harm):
    conn.execute(harm)
    with pytest.raises(AssertionError):
        workload.assert_content(conn)


@pytest.mark.parametrize("there", ["wholly", "not", "in part"])
@pytest.mark.parametrize("step", ["commit", "prepare", "commit prepared", "rollback prepared", "prepared"])
def test_the_fate_of_a_transaction_in_doubt(conn, workload, step, there):
    """It is there or not, as the last step that was asked for allows, and never in part."""
    ids = {name: next(id for table, id in workload.ledgers[0] if table == name) for name in ("bare", "chains")}
    changes = {}
    for name, id in ids.items():
        k, n, seed = workload.ledgers[0][name, id]
        changes[name, id] = k, n + 1, seed
        if there == "wholly" or (there == "in part" and name == "bare"):
            conn.execute(f"UPDATE {name} SET n = n + 1 WHERE id = %s", (id,))
    workload.doubts[0] = Doubt(step, "g", changes)
    allowed = {"wholly": ("commit", "commit prepared"), "not": ("commit", "prepare", "rollback prepared"), "in part": ()}
    if step in allowed[there]:
        workload.settle(conn)
        assert workload.ledgers[0]["bare", ids["bare"]][1] == changes["bare", ids["bare"]][1] - (there == "not")
        workload.assert_content(conn)
    else:
        with pytest.raises(AssertionError):
            workload.settle(conn)


def test_every_heap_of_a_partitioned_table_is_looked_at(conn):
    conn.execute("CREATE TABLE p (id int, note text) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    conn.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
    names = checks.heaps(conn, "p")
    assert names[:2] == ["p1", "p2"] and len(names) == 4
