"""Audits find what the engine does wrong, before harm is done, and find nothing where it is right.

The setting cyclone.debug_fault has the engine make a fault; the tests' servers have cyclone.audit = 1. That right verdicts differ from
nothing is what all other tests prove, as an audit that fails fails their VACUUM.
"""

import re
import stat
import struct

import psycopg
import pytest

from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Parked, messages_to
from test_seam import by_engine, said

ROWS = 4000
BTP_DELETED = 4
LEFT = 'table "t" is left to PostgreSQL, as an audit has failed on it'
BTREES = {"btree": "btree (id)", "btree posting": "btree ((id % 7))"}


@pytest.fixture
def t(conn):
    """A function that makes a table t with an index, or none, of which every third row is dead, or as few as that; returns a connection."""

    def make(index=BTREES["btree"], dead="id % 3 = 0"):
        conn.execute("CREATE TABLE t (id int, list int[], place point, box box, note text) WITH (autovacuum_enabled = off)")
        conn.execute(
            "INSERT INTO t SELECT i, ARRAY[i % 4, 100 + i % 50, i], point(i % 61, i), box(point(i, i % 13), point(i + 1, i % 13)), md5(i::text)"
            f" FROM generate_series(1, {ROWS}) i"
        )
        if index:
            conn.execute(f"CREATE INDEX ON t USING {index}")
        conn.execute(f"DELETE FROM t WHERE {dead}")
        return conn

    return make


def fails(conn, fault, statement="VACUUM t") -> psycopg.Error:
    """Have the engine make a fault, and return the error by which the audit ends the VACUUM."""
    conn.execute("SELECT set_config('cyclone.debug_fault', %s, false)", (fault,))
    with pytest.raises(psycopg.errors.DataCorrupted, match=r"an audit of (VACUUM|VACUUM \(FULL\)|VACUUM \(FULL INPLACE\)) has failed in relation") as error:
        conn.execute(statement)
    conn.execute("RESET cyclone.debug_fault")
    return error.value


def rows(conn):
    """The rows of t, by a sequential scan and by an index on id, if there is one."""
    query = "SELECT count(*), sum(hashtext(t::text)) FROM t WHERE id BETWEEN 0 AND 1000000"
    conn.execute("SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; SET enable_seqscan = on")
    by_scan = conn.execute(query).fetchone()
    conn.execute("RESET enable_indexscan; RESET enable_bitmapscan; RESET enable_indexonlyscan; SET enable_seqscan = off")
    by_index = conn.execute(query).fetchone()
    conn.execute("RESET enable_seqscan")
    assert by_scan == by_index
    return by_scan


def assert_server_finishes(conn, before, statement="VACUUM (VERBOSE, FREEZE, PROCESS_TOAST off) t"):
    """The server's own VACUUM gets the table, and leaves it as it should be, with all rows."""
    report = said(conn, statement)
    assert LEFT in report and not by_engine(report)
    assert rows(conn) == before
    checks.assert_vacuumed(conn)
    # until a user says otherwise
    conn.execute("SELECT cyclone.autovacuum_reset('t')")
    assert by_engine(said(conn, "VACUUM (VERBOSE) t"))
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("index", [BTREES["btree"], None], ids=["indexed", "without index"])
def test_live_row_called_dead(t, index):
    conn = t(index)
    before = rows(conn)
    error = fails(conn, "live-row")
    assert re.search(r'relation "t" at item \d+ of block 0$', error.diag.message_primary)
    fate = "becomes dead" if index else "becomes unused"
    assert f"pg_cyclone's verdict: the item {fate}. The audit's: the item stays as it is." in error.diag.message_detail
    state = checks.table_state(conn, "t")
    assert state["dead_tuples"] + state["dead_items"] == ROWS // 3  # nothing is changed on the page, and it is the first
    assert_server_finishes(conn, before)


@pytest.mark.once
def test_one_fault_on_a_page_in_seven_is_found_by_a_full_audit(t):
    conn = t()
    before = rows(conn)
    assert "the item stays as it is" in fails(conn, "live-row:7").diag.message_detail
    assert_server_finishes(conn, before)


@pytest.mark.once
def test_a_sample_finds_it(t):
    """With a fault on each of a hundred pages, and half of the pages audited: that it is missed has a probability of 2 ** -100."""
    conn = t()
    conn.execute("UPDATE t SET note = repeat('x', 200)")
    before = rows(conn)
    conn.execute("SET cyclone.audit = 0.5")
    fails(conn, "store-loses")  # which does no harm where it isn't found
    assert_server_finishes(conn, before)


def test_a_row_frozen_that_is_too_new(t, cluster, db):
    conn = t()
    with cluster.snapshot(db, "SELECT txid_current()"):  # which OldestXmin doesn't pass
        conn.execute("INSERT INTO t (id) SELECT 5000 + i FROM generate_series(1, 9) i")
        conn.execute("SELECT count(*) FROM t")  # hints
        conn.execute("CREATE TABLE pages AS SELECT id FROM t")
        before = rows(conn)
        error = fails(conn, "freeze", "VACUUM (FREEZE) t")
        assert "pg_cyclone's verdict: the row is frozen. The audit's: the item stays as it is." in error.diag.message_detail
    assert_server_finishes(conn, before)


def test_map_bit_without_page_bit(t):
    conn = t()
    before = rows(conn)
    conn.execute("VACUUM t")
    conn.execute("INSERT INTO t SELECT * FROM t WHERE id < 100")
    conn.execute("DELETE FROM t WHERE ctid IN (SELECT max(ctid) FROM t GROUP BY id HAVING count(*) > 1)")
    error = fails(conn, "page-bit")
    assert "the page is all-visible, by its bit in the map. The audit's: it isn't, by the page's own" in error.diag.message_detail
    pages = "generate_series(0, pg_relation_size('t') / 8192 - 1) b, pg_visibility('t', b)"
    assert conn.execute(f"SELECT count(*) FROM {pages} WHERE all_visible AND NOT pd_all_visible").fetchone() == (0,)
    assert_server_finishes(conn, before)  # which may skip pages by the map


@pytest.mark.once
@pytest.mark.parametrize(("fault", "found"), [("look-age", "oldest XID left"), ("look-dead", "dead items: 1. The audit's: 2")])
def test_page_that_is_only_looked_at(t, cluster, db, fault, found):
    """As a session has it pinned: its dead items, and its oldest XID, which nothing else holds relfrozenxid for."""
    conn = t(dead="false")
    for statement in ("DELETE FROM t", "VACUUM t", "INSERT INTO t (id) VALUES (1), (2)", "DELETE FROM t", "VACUUM (INDEX_CLEANUP off, TRUNCATE off) t"):
        conn.execute(statement)
    conn.execute("INSERT INTO t (id) VALUES (3), (4)")  # on one page with two dead items
    before = rows(conn)
    [(age,)] = conn.execute("SELECT age(relfrozenxid) FROM pg_class WHERE oid = 't'::regclass").fetchall()
    for i in range(3):
        conn.execute(f"CREATE TABLE younger_{i} ()")
    with cluster.connect(db) as other, other.transaction():
        other.execute("DECLARE c CURSOR FOR SELECT FROM t; FETCH c")
        assert found in fails(conn, fault, "VACUUM (INDEX_CLEANUP on) t").diag.message_detail
    assert conn.execute("SELECT age(relfrozenxid) >= %s FROM pg_class WHERE oid = 't'::regclass", [age]).fetchone() == (True,)
    assert_server_finishes(conn, before)


SHARE = 0.1


@pytest.fixture
def large(conn):
    """A connection with a table t of 3000 pages, three rows on each, the first of them dead, and a btree of as many leaf pages."""
    conn.execute("CREATE TABLE t (id int, note text STORAGE PLAIN) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, lpad(i::text, 2600, '0') FROM generate_series(1, 9000) i; CREATE INDEX ON t (note)")
    conn.execute("DELETE FROM t WHERE id % 3 = 1")
    assert conn.execute("SELECT pg_relation_size('t') / 8192").fetchone() == (3000,)
    return conn


@pytest.mark.once
def test_size_of_the_sample(large):
    """10 % of the pages, give or take eight standard deviations: missed once in 10 ** 15."""
    large.execute(f"SET cyclone.audit = {SHARE}")
    report = said(large, "VACUUM (VERBOSE, PARALLEL 0) t")
    heap, index = map(int, re.search(r"\naudit: (\d+) heap pages and (\d+) index pages\n", report).groups())
    assert abs(heap - 2 * 3000 * SHARE) < 8 * (2 * 3000 * SHARE) ** 0.5  # in the first pass, and in the second
    # at the visit, and half as many in sections of 16 pages
    [(pages,)] = large.execute("SELECT pg_relation_size('t_note_idx') / 8192")
    assert abs(index - 1.5 * pages * SHARE) < 8 * (pages * SHARE + 16 * 0.5 * pages * SHARE) ** 0.5


@pytest.mark.once
@pytest.mark.parametrize(
    ("fault", "statement", "share", "most_pages"),
    [
        # on one page in ten; that 29 times as many as expected are passed over has a probability of exp(-29)
        ("store-loses:10", "VACUUM (PARALLEL 0) t", SHARE, 29 * 10 / SHARE),
        ("rewrite-change:20", "VACUUM (FULL, PARALLEL 0) t", SHARE, 29 * 10 / SHARE),
        # on one leaf in five, so in each section of 16 pages
        ("leaf:5", "VACUUM (PARALLEL 0) t", 3 * SHARE, 16 * 180),
        # on one leaf in a thousand, all audited; one page in three is no leaf, and one leaf in three has no dead row
        ("leaf:1000", "VACUUM (PARALLEL 0) t", 1, 3500),
        ("index-entry:1000", "VACUUM (PARALLEL 0) t", 1, 3500),
    ],
)
def test_found_within_the_expected_number_of_pages(large, fault, statement, share, most_pages):
    before = rows(large)
    large.execute(f"SET cyclone.audit = {share}")
    error = fails(large, fault, statement)
    assert int(re.search(r"of block (\d+)$|at block (\d+)$", error.diag.message_primary)[0].split()[-1]) < most_pages
    large.execute("RESET cyclone.audit")
    if "FULL" in statement:
        assert_full_is_the_servers(large, before)
    else:
        assert_server_finishes(large, before)


@pytest.mark.once
def test_leaf_that_nobody_visits(t):
    """Its entries are found when all indexes have been passed over; no item has become unused before that."""
    conn = t()
    conn.execute("INSERT INTO t (id) SELECT i FROM generate_series(5001, 30000) i")
    deleted = conn.execute("DELETE FROM t WHERE id > 5000 AND id % 3 = 0").rowcount
    before = rows(conn)
    error = fails(conn, "leaf:5")
    assert re.search(r'relation "t_\w+_idx" at block \d+$', error.diag.message_primary)
    assert re.search(r"The audit's: the entry of row \(\d+,\d+\) is still there\.", error.diag.message_detail)
    assert checks.table_state(conn, "t")["dead_items"] == ROWS // 3 + deleted
    assert_server_finishes(conn, before)


@pytest.mark.once
@pytest.mark.parametrize("index", BTREES.values(), ids=BTREES)
@pytest.mark.parametrize("fault", ["index-entry", "index-live"])
def test_entry_left_or_deleted(t, index, fault):
    """Found before the page is changed, so that no entry of a live row is lost."""
    conn = t(index)
    before = rows(conn)
    detail = fails(conn, fault).diag.message_detail
    assert ("stays. The audit's: its row is dead" if fault == "index-entry" else "goes. The audit's: its row isn't dead") in detail
    assert_server_finishes(conn, before)


@pytest.mark.once
@pytest.mark.parametrize("index", BTREES.values(), ids=BTREES)
def test_entry_that_is_still_there_when_others_are_deleted(t, index):
    """Though it was said to go."""
    conn = t(index)
    before = rows(conn)
    detail = fails(conn, "index-stays").diag.message_detail
    left, right = map(int, re.search(r"(\d+) TIDs are left on the page, in this order. The audit's: there should be (\d+), in the order", detail).groups())
    assert left == right + 1
    assert_server_finishes(conn, before)


@pytest.mark.once
@pytest.mark.parametrize("fault", ["store-loses:3", "store-adds:3"])
def test_store_that_loses_or_adds(t, fault):
    conn = t()
    before = rows(conn)
    detail = fails(conn, fault).diag.message_detail
    found = re.search(r"the store has (\d+) dead items of this block. The audit's: there are (\d+), or others", detail)
    assert int(found[1]) - int(found[2]) == (-1 if "loses" in fault else 1)
    assert_server_finishes(conn, before)


@pytest.mark.once
def test_relfrozenxid_that_is_too_new(t):
    conn = t()
    before = rows(conn)
    for i in range(3):
        conn.execute(f"CREATE TABLE younger_{i} ()")
    age = conn.execute("SELECT age(relfrozenxid) FROM pg_class WHERE relname = 't'").fetchone()
    detail = fails(conn, "relfrozenxid").diag.message_detail
    assert re.search(r"relfrozenxid becomes \d+. The audit's: an XID that is left is \d+", detail)
    [(now,)] = conn.execute("SELECT age(relfrozenxid) FROM pg_class WHERE relname = 't'")
    assert now >= age[0]
    assert_server_finishes(conn, before)


@pytest.mark.once
def test_relminmxid_that_is_too_new(t, cluster, db):
    conn = t()
    conn.execute("CREATE TABLE other AS SELECT 1 AS id")
    before = rows(conn)
    for table, id in (("t", 1), ("other", 1)):
        with cluster.connect(db) as one, cluster.connect(db) as two:
            for session in (one, two):
                session.execute("BEGIN")
                session.execute(f"SELECT FROM {table} WHERE id = {id} FOR SHARE")
            one.execute("COMMIT")
            two.execute("COMMIT")
    with cluster.connect(db) as reader:
        reader.execute("BEGIN")
        reader.execute("DECLARE c CURSOR FOR SELECT xmax FROM t")
        [(multixact,)] = reader.execute("FETCH c")  # pins the page, or VACUUM would remove a MultiXactId without members
        detail = fails(conn, "relminmxid").diag.message_detail
    found = re.search(r"relminmxid becomes (\d+). The audit's: a MultiXactId that is left is (\d+)", detail)
    assert found and int(found[1]) > int(found[2]) == int(multixact)
    assert_server_finishes(conn, before)


@pytest.mark.once
def test_visible_pages_that_are_skipped_as_frozen(t):
    """By an aggressive VACUUM, which would move relfrozenxid past the XIDs of their rows."""
    conn = t()
    conn.execute("VACUUM (INDEX_CLEANUP on) t")
    before = rows(conn)
    for i in range(3):
        conn.execute(f"CREATE TABLE younger_{i} ()")
    age = conn.execute("SELECT age(relfrozenxid) FROM pg_class WHERE relname = 't'").fetchone()
    detail = fails(conn, "skip-visible", "VACUUM (FREEZE) t").diag.message_detail
    assert re.search(r"relfrozenxid becomes \d+. The audit's: an XID that is left is \d+", detail)
    assert conn.execute("SELECT age(relfrozenxid) FROM pg_class WHERE relname = 't'").fetchone() >= age
    assert_server_finishes(conn, before)


@pytest.mark.once
def test_skipped_page_that_is_not_frozen_as_the_map_says(t, cluster):
    """That is damage, and no alarm."""
    conn = t(dead="false")
    conn.execute("VACUUM t")
    [(blocks, path)] = conn.execute("SELECT pg_relation_size('t') / 8192, pg_relation_filepath('t')")
    assert conn.execute("SELECT count(*) FROM pg_visibility_map('t') WHERE all_visible AND NOT all_frozen").fetchone() == (blocks,)
    conn.execute("CHECKPOINT")
    file = cluster.data / f"{path}_vm"
    image = bytearray(file.read_bytes())
    image[24 : 24 + blocks // 4] = b"\xff" * (blocks // 4)
    [(checksum,)] = conn.execute("SELECT page_checksum(%s, 0)", [bytes(image)])
    struct.pack_into("<h", image, 8, checksum)
    cluster.stop()
    file.write_bytes(image)
    cluster.start()
    with cluster.connect(conn.info.dbname) as again:
        report = said(again, "VACUUM (VERBOSE) t")
        assert by_engine(report)
        assert re.search('block \\d+ of table "t" is all-frozen in the visibility map, and has rows that aren\'t frozen', report)
        again.execute("VACUUM (DISABLE_PAGE_SKIPPING, FREEZE) t")
        checks.assert_clean(again, "t")


@pytest.mark.once
@pytest.mark.parametrize("fault", ["live-row:4", "leaf:3", "index-live:3", "store-loses:7"])
def test_in_workers(t, fault):
    """The error of any process is the statement's, and the leader knows that it is an audit's."""
    conn = t()
    before = rows(conn)
    conn.execute("SET min_parallel_table_scan_size = 0; SET min_parallel_index_scan_size = 0")
    fails(conn, fault, "VACUUM (PARALLEL 3) t")
    assert_server_finishes(conn, before)


@pytest.mark.once
def test_in_a_worker_alone(t, cluster, db):
    """While the leader waits: its wait ends by the worker's error."""
    conn = t()
    before = rows(conn)
    conn.execute("SET min_parallel_table_scan_size = 0; SET cyclone.debug_point = 'heap-scan:leader:wait'")
    with cluster.connect(db) as gate:
        gate.execute("SELECT pg_advisory_lock(%s)", [DEBUG_POINT_LOCK])
        error = fails(conn, "worker-live-row", "VACUUM (PARALLEL 3) t")
    conn.execute("RESET cyclone.debug_point")
    assert "parallel worker" in error.diag.context
    assert_server_finishes(conn, before)


REWRITE = "VACUUM (FULL, VERBOSE) t"


def assert_full_is_the_servers(conn, before):
    """The server's own VACUUM FULL gets the table, until a user says otherwise."""
    assert LEFT in said(conn, REWRITE)
    assert rows(conn) == before
    checks.assert_clean(conn, "t")
    conn.execute("SELECT cyclone.autovacuum_reset('t')")
    report = said(conn, REWRITE)
    assert LEFT not in report and "parallel workers:" in report
    assert rows(conn) == before
    checks.assert_clean(conn, "t")


def files(cluster):
    """All files of relations in the cluster's databases."""
    return {path.name for path in (cluster.data / "base").glob("*/*") if path.name[0].isdigit()}


@pytest.mark.once
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("rewrite-drop:7", "the row is left out. The audit's: it isn't dead"),
        ("rewrite-change:7", "the row is copied. The audit's: its copy has other values"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_rewrite_that_drops_or_changes_a_row(t, cluster, fault, found, workers):
    """Nothing is lost but the work, and no file of it is left."""
    conn = t()
    before = rows(conn)
    conn.execute("CHECKPOINT")
    files_before = files(cluster)
    conn.execute("SET min_parallel_table_scan_size = 0")
    error = fails(conn, fault, f"VACUUM (FULL, PARALLEL {workers}) t")
    assert found in error.diag.message_detail and re.search(r"at item \d+ of block \d+$", error.diag.message_primary)
    conn.execute("CHECKPOINT")
    assert files(cluster) <= files_before
    assert conn.execute("SELECT outcome, audit_failed FROM cyclone.history_details WHERE relid = 't'::regclass").fetchall() == [("failed", True)]
    assert_full_is_the_servers(conn, before)


@pytest.mark.once
@pytest.mark.parametrize("workers", [0, 2])
def test_rewrite_that_takes_a_live_row_for_dead(t, workers):
    """Though it was updated, as versions that are linked with others were. Nothing counts a row that is taken for dead."""
    conn = t(dead="false")
    conn.execute("UPDATE t SET note = note || '.'")
    before = rows(conn)
    conn.execute("SET min_parallel_table_scan_size = 0")
    assert "the row is dead. The audit's: the row is live" in fails(conn, "rewrite-dead:7", f"VACUUM (FULL, PARALLEL {workers}) t").diag.message_detail
    assert_full_is_the_servers(conn, before)


@pytest.mark.once
def test_rewrite_that_loses_a_value_of_the_toast_table(t):
    conn = t(None)
    conn.execute("ALTER TABLE t ALTER note SET STORAGE EXTERNAL; UPDATE t SET note = repeat(note, 100) WHERE id < 500; DELETE FROM t WHERE id < 100")
    before = rows(conn)
    assert "the row is dead. The audit's: the row is live" in fails(conn, "rewrite-dead-chunk:7", "VACUUM (FULL, PARALLEL 0) t").diag.message_detail
    assert_full_is_the_servers(conn, before)


@pytest.mark.once
def test_rewrite_is_counted_on_all_pages(t):
    """Even if next to none is looked at row by row."""
    conn = t()
    before = rows(conn)
    conn.execute("SET cyclone.audit = 1e-9")
    detail = fails(conn, "rewrite-drop:100", "VACUUM FULL t").diag.message_detail
    kept, written = map(int, re.search(r"(\d+) rows are kept. The audit's: there are (\d+) in the new file", detail).groups())
    assert kept == before[0] and kept - written == kept // 100
    conn.execute("RESET cyclone.audit")
    assert_full_is_the_servers(conn, before)


@pytest.mark.once
def test_linked_version_that_changes(t, cluster, db):
    conn = t()
    with cluster.snapshot(db, "SELECT txid_current()"):
        conn.execute("UPDATE t SET note = note || '.' WHERE id % 5 = 1")
        before = rows(conn)
        assert "its copy has other values" in fails(conn, "rewrite-link-change", "VACUUM FULL t").diag.message_detail
        assert_full_is_the_servers(conn, before)


@pytest.mark.once
@pytest.mark.parametrize("index", ["btree (id)", "btree (note)", "btree ((id % 7))"])
@pytest.mark.parametrize("workers", [0, 1])
def test_new_index_that_lacks_an_entry(t, index, workers):
    """One row in a thousand has none."""
    conn = t(index)
    before = rows(conn)
    conn.execute("SET min_parallel_table_scan_size = 0")
    error = fails(conn, "new-entry:1000", f"VACUUM (FULL, PARALLEL {workers}) t")
    found = re.search(r"there are (\d+) entries. The audit's: there are (\d+) live rows, or others, and 0 deleted", error.diag.message_detail)
    entries, live = map(int, found.groups())
    assert entries < live == before[0]
    assert_full_is_the_servers(conn, before)


@pytest.mark.once
def test_the_comparison_of_new_indexes_is_seen_and_ends_when_cancelled(t, cluster, db):
    conn = t()
    before = rows(conn)
    with Parked(cluster, db, "audit-entries:leader", 1, "VACUUM (FULL) t", {"cyclone.audit": 1}) as vacuum:
        shown = "SELECT phase, blocks_done, blocks_total > 1 FROM cyclone.progress_details WHERE datname = %s"
        assert conn.execute(shown, (db,)).fetchall() == [("auditing new indexes", 1, True)]
        conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
        assert isinstance(vacuum.wait(), psycopg.errors.QueryCanceled)
    assert rows(conn) == before
    conn.execute("VACUUM (FULL) t")
    assert rows(conn) == before
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_new_indexes_with_rows_that_old_snapshots_see(t, cluster, db):
    """Of each kind, with nulls and predicates: no false alarm."""
    conn = t(None, dead="id % 9 = 0")
    others = ["gist (box)", "spgist (place)", "btree (id) WHERE id % 2 = 0", "hash ((NULLIF(id % 4, 0)))", "gin (list)", "brin (id)"]
    for number, index in enumerate([*BTREES.values(), *others]):
        conn.execute(f"CREATE INDEX i{number} ON t USING {index}")
    conn.execute("UPDATE t SET box = NULL, place = NULL, note = NULL WHERE id % 5 = 0")
    before = rows(conn)
    conn.execute("VACUUM (FULL) t")
    with cluster.snapshot(db, "SELECT txid_current()"):
        conn.execute("UPDATE t SET note = 'x' WHERE id % 7 = 0; DELETE FROM t WHERE id % 11 = 0")
        before = rows(conn)
        conn.execute("VACUUM (FULL) t")
    assert rows(conn) == before
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_new_btree_out_of_order(t):
    """Of an index that several processes build."""
    conn = t("btree (id DESC)")
    before = rows(conn)
    conn.execute("SET cyclone.debug_btree_parts = 2; SET min_parallel_table_scan_size = 0")
    error = fails(conn, "btree-order", "VACUUM (FULL, PARALLEL 1) t")
    assert 'relation "t_id_idx"' in error.diag.message_primary
    assert "entries are in order. The audit's: the next one doesn't come behind this one" in error.diag.message_detail
    conn.execute("RESET cyclone.debug_btree_parts")
    assert_full_is_the_servers(conn, before)


@pytest.mark.once
def test_inplace_that_puts_entries_of_a_new_btree_out_of_order(t):
    """What it has built isn't used, and is dropped; the table is the server's from then on."""
    conn = t(None)
    conn.execute("INSERT INTO t SELECT i FROM generate_series(10000, 60000) i; CREATE INDEX ON t (id); DELETE FROM t WHERE id > 9999 AND id % 3 > 0")
    before = rows(conn)
    error = fails(conn, "btree-order", "VACUUM (FULL INPLACE) t")
    assert 'an audit of VACUUM (FULL INPLACE) has failed in relation "t_id_idx_cyclone"' in error.diag.message_primary
    assert "entries are in order. The audit's: the next one doesn't come behind this one" in error.diag.message_detail
    assert conn.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid").fetchone() == (0,)
    assert rows(conn) == before
    report = said(conn, "VACUUM (FULL INPLACE) t")
    assert 'rows of "t" cannot be moved, vacuuming only' in report and LEFT in report
    conn.execute("SELECT cyclone.autovacuum_reset('t')")
    report = said(conn, "VACUUM (FULL INPLACE, VERBOSE) t")
    [(leaves,)] = conn.execute("SELECT pg_relation_size('t_id_idx') / 8192 - 1").fetchall()
    assert int(re.search(r"\naudit: (\d+) pages and", report)[1]) >= leaves
    assert rows(conn) == before
    checks.assert_clean(conn, "t")


def is_deleted(image):
    image[8188] |= BTP_DELETED


def has_other_special_space(image):
    """Of twice the size, where the bit is the one of a deleted page."""
    struct.pack_into("<H", image, 16, 8160)
    image[8172] |= BTP_DELETED


def changed_while_built(cluster, db, conn, command, change):
    """The rows, and the error of VACUUM where a page of the new index of t is changed, or zeroes if there is no change, when it is written."""
    conn.execute("INSERT INTO t SELECT i FROM generate_series(10000, 60000) i; CREATE INDEX ON t (id); DELETE FROM t WHERE id > 9999 AND id % 3 > 0")
    before = rows(conn)
    [(oid,)] = conn.execute("SELECT oid FROM pg_database WHERE datname = current_database()")
    folder = cluster.data / "base" / str(oid)
    old = set(folder.iterdir())
    with Parked(cluster, db, "rewrite-btree-join:leader", 1, f"VACUUM ({command}) t") as vacuum:
        [index] = [path for path in set(folder.iterdir()) - old if path.stat().st_size > 9 * 8192 and path.read_bytes()[5 * 8192 + 16 :][:2] == b"\xf0\x1f"]
        with index.open("r+b") as file:
            file.seek(5 * 8192)
            image = bytearray(file.read(8192))
            if change:
                change(image)
                [(checksum,)] = conn.execute("SELECT page_checksum(%s, 5)", (bytes(image),))
                struct.pack_into("<h", image, 8, checksum)
            file.seek(5 * 8192)
            file.write(image if change else bytes(8192))
        vacuum.release()
        return before, vacuum.wait()


@pytest.mark.once
def test_new_btree_with_a_damaged_page(cluster, db, t):
    """That is no matter of verdicts."""
    conn = t(None)
    before, error = changed_while_built(cluster, db, conn, "FULL", has_other_special_space)
    assert isinstance(error, psycopg.errors.IndexCorrupted)
    report = said(conn, REWRITE)
    assert LEFT not in report and "parallel workers:" in report
    assert rows(conn) == before
    checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("command", ["FULL", "FULL INPLACE"])
@pytest.mark.parametrize(("change", "found"), [(None, "it was never written"), (is_deleted, "it is deleted")], ids=["zeroes", "deleted"])
def test_new_btree_with_a_page_that_is_none_of_it(cluster, db, t, command, change, found):
    """Each page of a new file is one of the tree's."""
    conn = t(None)
    before, error = changed_while_built(cluster, db, conn, command, change)
    assert isinstance(error, psycopg.errors.DataCorrupted)
    assert "at block 5" in error.diag.message_primary
    assert f"the page is one of the tree's. The audit's: {found}" in error.diag.message_detail
    assert rows(conn) == before
    assert conn.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid").fetchone() == (0,)
    conn.execute("SELECT cyclone.autovacuum_reset('t')")
    conn.execute(f"VACUUM ({command}) t")
    assert rows(conn) == before
    checks.assert_clean(conn, "t")


def test_rewrite_of_all_shapes(t):
    """Rows that are formed anew, frozen, locked, with values elsewhere; btrees with lists, in levels, with a key cut short: no false alarm."""
    conn = t(dead="id % 9 = 0")
    conn.execute('CREATE TABLE big (id int, a text COLLATE "C", gone int, b text)')
    conn.execute("ALTER TABLE big ALTER b SET STORAGE EXTERNAL")
    conn.execute("INSERT INTO big SELECT i, repeat('x', 200) || i % 3000, i, repeat(md5(i::text), i % 90) FROM generate_series(1, 6000) i")
    conn.execute("CREATE INDEX ON big (a, id); CREATE INDEX ON big (a DESC NULLS FIRST) INCLUDE (id); CREATE INDEX ON big ((id % 5), a)")
    conn.execute("ALTER TABLE big DROP gone; ALTER TABLE big ADD added int DEFAULT 5")
    conn.execute("UPDATE big SET a = NULL WHERE id % 7 = 0; DELETE FROM big WHERE id % 11 = 0; SELECT FROM big WHERE id % 13 = 0 FOR UPDATE")
    pages = conn.execute("SELECT pg_relation_size('big') / 8192 + pg_relation_size(reltoastrelid) / 8192 FROM pg_class WHERE relname = 'big'").fetchone()[0]
    report = said(conn, "VACUUM (FULL, VERBOSE) big")
    heap, index = map(int, re.search(r"\naudit: (\d+) heap pages and (\d+) index pages\n", report).groups())
    assert heap == pages
    names = ("big_a_id_idx", "big_a_id_idx1", "big_expr_a_idx")
    of_indexes = conn.execute("SELECT sum(pg_relation_size(c.oid)) / 8192 FROM pg_class c WHERE relname = ANY (%s)", [list(names)]).fetchone()[0]
    assert index >= of_indexes - len(names)  # but for their first pages; and those of the TOAST table's
    checks.assert_clean(conn, "big")
    [(audited,)] = conn.execute("SELECT audited_pages FROM cyclone.history_details WHERE relid = 'big'::regclass ORDER BY id DESC LIMIT 1")
    assert audited == heap + index


@pytest.mark.once
def test_rewrite_beside_an_index_of_the_toast_table_that_is_left_over(cluster, db, conn):
    """It stays what it was, by PostgreSQL's rewrite, too, and VACUUM has deleted some of its pages: no false alarm."""
    conn.execute("CREATE TABLE t (id int, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    conn.execute("INSERT INTO t SELECT i, repeat(md5(i::text), 70) FROM generate_series(1, 2000) i")
    [(toast, index)] = conn.execute(
        "SELECT reltoastrelid::regclass::text, indexrelid::regclass::text FROM pg_class JOIN pg_index ON indrelid = reltoastrelid WHERE relname = 't'"
    )
    with cluster.snapshot(db):
        conn.execute("SET lock_timeout = 10")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute(f"REINDEX INDEX CONCURRENTLY {index}")
    conn.execute("RESET lock_timeout")
    [(left,)] = conn.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass AND indisready AND NOT indisvalid", [toast])
    conn.execute("DELETE FROM t WHERE id < 1900")
    before = conn.execute("SELECT count(*), sum(hashtext(v)) FROM t").fetchone()
    conn.execute("VACUUM t")
    deleted = conn.execute("SELECT blkno FROM bt_multi_page_stats(%s, 1, -1) WHERE type = 'd'", [left]).fetchall()
    assert deleted
    conn.execute("VACUUM (FULL) t")
    assert conn.execute("SELECT blkno FROM bt_multi_page_stats(%s, 1, -1) WHERE type = 'd'", [left]).fetchall() == deleted
    assert conn.execute("SELECT count(*), sum(hashtext(v)) FROM t").fetchone() == before
    conn.execute(f"DROP INDEX {left}")
    checks.assert_clean(conn, "t")


def test_full_inplace(t):
    """Its passes are VACUUMs like any other."""
    conn = t()
    before = rows(conn)
    fails(conn, "live-row", "VACUUM (FULL INPLACE) t")
    report = said(conn, "VACUUM (FULL INPLACE) t")
    assert 'rows of "t" cannot be moved, vacuuming only' in report and LEFT in report
    assert_server_finishes(conn, before)


INPLACE = "VACUUM (FULL INPLACE, VERBOSE) t"


def test_inplace_that_changes_a_row(t):
    """The batch is undone, and no more rows are moved."""
    conn = t("btree (note)", dead="id < 3000")
    before = rows(conn)
    conn.execute("SET cyclone.debug_batch_ms = 1000")
    with pytest.raises(psycopg.errors.DataCorrupted, match=r"an audit of VACUUM \(FULL INPLACE\) has failed in") as error:
        conn.execute("SET cyclone.debug_fault = 'inplace-differs:50'")
        conn.execute(INPLACE)
    conn.execute("RESET cyclone.debug_fault")
    assert "the new version has the row's values. The audit's: they differ from those at" in error.value.diag.message_detail
    assert rows(conn) == before
    assert checks.dangling_index_entries(conn, "t", between_passes=True) == []  # the batch's rows are dead
    [(with_what, is_open)] = conn.execute("SELECT failed_with, breaker_open FROM cyclone.autovacuum_details WHERE relid = 't'::regclass").fetchall()
    assert (with_what, is_open) == ("audit", True)
    query = "SELECT outcome, audit_failed FROM cyclone.history_details WHERE relid = 't'::regclass ORDER BY id DESC LIMIT 1"
    assert conn.execute(query).fetchone() == ("failed", True)
    report = said(conn, INPLACE)
    assert 'rows of "t" cannot be moved, vacuuming only' in report and LEFT in report
    conn.execute("SELECT cyclone.autovacuum_reset('t')")
    report = said(conn, INPLACE)
    pages, moved, audited = map(int, re.search(r"rows moved: (\d+) out of .*?\naudit: (\d+) pages and (\d+) moved rows\n", report, re.S).groups())
    assert 0 < pages <= audited and moved > 0
    assert rows(conn) == before
    checks.assert_clean(conn, "t")


def test_inplace_of_values(t):
    """Values that move are compared themselves."""
    conn = t(None, dead="false")
    conn.execute("ALTER TABLE t ALTER note SET STORAGE EXTERNAL; ALTER TABLE t ALTER id SET STATISTICS 0")
    conn.execute("UPDATE t SET note = repeat(note, 100) WHERE id > 3700; DELETE FROM t WHERE id BETWEEN 3700 AND 3900")
    before = rows(conn)
    report = said(conn, INPLACE)
    assert int(re.search(r"and (\d+) moved rows\n", report)[1]) > 100
    assert rows(conn) == before
    checks.assert_clean(conn, "t")


def report_path(conn, cluster, relation):
    [(database, relid)] = conn.execute("SELECT d.oid, %s::regclass::oid FROM pg_database d WHERE datname = current_database()", [relation]).fetchall()
    return cluster.data / "pg_cyclone" / f"audit-{database}-{relid}.txt"


def forget_reports(cluster):
    """Make room for one: the server keeps the first ones."""
    for path in (cluster.data / "pg_cyclone").glob("audit-*"):
        path.unlink()


@pytest.mark.once
def test_report_and_history(t, cluster):
    conn = t()
    forget_reports(cluster)
    error = fails(conn, "live-row")
    [path] = re.findall(r'"(pg_cyclone/audit-\d+-\d+\.txt)" in the data directory', error.diag.message_hint)
    file = cluster.data / path
    text = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert text.startswith("pg_cyclone ") and "pg_cyclone's verdict: the item becomes dead\naudit's verdict: the item stays as it is\n" in text
    assert re.search(r"\nOldestXmin \d+, ", text)
    assert re.search(r"\n([0-9a-f]{64}\n)+$", text)[0].count("\n") == 1 + 8192 // 32
    assert not list(file.parent.glob("audit-*.txt.*"))
    columns = "outcome, sqlstate, audited_pages, audit_failed"
    assert conn.execute(f"SELECT {columns} FROM cyclone.history_details WHERE relid = 't'::regclass").fetchall() == [("failed", "XX001", None, True)]
    conn.execute("SELECT cyclone.autovacuum_reset()")
    report = said(conn, "VACUUM (VERBOSE) t")
    heap, index = re.search(r"\naudit: (\d+) heap pages and (\d+) index pages\n", report).groups()
    pages = conn.execute("SELECT pg_relation_size('t') / 8192, pg_relation_size('t_id_idx') / 8192").fetchone()
    assert int(heap) == 2 * pages[0] and int(index) >= 2 * (pages[1] - 10)
    query = f"SELECT {columns} FROM cyclone.history_details WHERE relid = 't'::regclass ORDER BY id DESC LIMIT 1"
    assert conn.execute(query).fetchone() == ("done", None, int(heap) + int(index), False)
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_report_on_a_full_disk(t, cluster):
    """The error is the audit's all the same, and claims no report."""
    conn = t()
    before = rows(conn)
    forget_reports(cluster)
    path = report_path(conn, cluster, "t")
    (cluster.data / "pg_cyclone").mkdir(exist_ok=True)
    temporary = path.with_name(f"{path.name}.{conn.info.backend_pid}")
    temporary.symlink_to("/dev/full")
    error = fails(conn, "live-row")
    assert "No report was written to a file" in error.diag.message_hint and path.name not in error.diag.message_hint
    assert not path.exists() and not temporary.is_symlink()
    assert f'could not write file "pg_cyclone/{temporary.name}": No space left on device' in cluster.log
    assert_server_finishes(conn, before)


@pytest.mark.once
def test_first_reports_are_kept(new_cluster):
    """The first one of a relation, and of 20 relations."""
    own = new_cluster(autovacuum="off")
    folder = own.data / "pg_cyclone"
    with own.connect("postgres") as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_cyclone; CREATE EXTENSION amcheck; CREATE EXTENSION pageinspect; CREATE EXTENSION pg_visibility")
        for name in ("t", "u"):
            conn.execute(f"CREATE TABLE {name} (id int)")
            conn.execute(f"INSERT INTO {name} SELECT generate_series(1, 1000)")
            conn.execute(f"DELETE FROM {name} WHERE id % 3 = 0")
        for i in range(19):
            (folder / f"audit-1-{i}.txt").write_text("")
        assert "in the data directory has one" in fails(conn, "live-row", "VACUUM t").diag.message_hint
        first = report_path(conn, own, "t").read_text()
        for name in ("t", "u"):
            conn.execute("SELECT cyclone.autovacuum_reset()")
            assert "No report was written to a file" in fails(conn, "live-row", f"VACUUM {name}").diag.message_hint
        assert report_path(conn, own, "t").read_text() == first and len(list(folder.glob("audit-*"))) == 20
        for name in ("t", "u"):
            conn.execute(f"VACUUM {name}")
            checks.assert_clean(conn, name)


@pytest.mark.once
@pytest.mark.parametrize("body", ["RAISE EXCEPTION '%', message USING ERRCODE = 'XX001', CONSTRAINT = 'cyclone.audit'", "RETURN random()"])
def test_function_of_the_tables_owner_makes_no_alarm(t, cluster, body):
    """Neither by raising an error like an audit's, nor by another value for each call, though it was said to be immutable."""
    conn = t(None, dead="id < 3000")
    conn.execute(
        "CREATE FUNCTION f(i int) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS $$"
        " DECLARE message text := 'an audit of VACUUM has failed in relation \"t\"'; BEGIN"
        f" IF current_setting('test.go', true) = '1' THEN {body}; END IF; RETURN i; END $$"
    )
    conn.execute("CREATE INDEX i ON t (f(id)); CREATE INDEX h ON t USING hash (f(id)); SET test.go = '1'")
    before = rows(conn)
    if "RAISE" in body:
        with pytest.raises(psycopg.errors.DataCorrupted, match="an audit of VACUUM has failed"):
            conn.execute("VACUUM (FULL INPLACE) t")
    else:
        conn.execute("VACUUM (FULL INPLACE) t")
        conn.execute("VACUUM (FULL) t")
    conn.execute("DROP INDEX i, h")
    assert conn.execute("SELECT count(*) FROM cyclone.history_details WHERE relid = 't'::regclass AND audit_failed").fetchone() == (0,)
    assert conn.execute("SELECT count(*) FROM cyclone.autovacuum_details WHERE relid = 't'::regclass AND failed_with = 'audit'").fetchone() == (0,)
    assert not report_path(conn, cluster, "t").exists()
    assert by_engine(said(conn, "VACUUM (VERBOSE) t"))
    assert rows(conn) == before
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_other_tables_of_the_statement(t):
    """An alarm on one table isn't the end of the statement."""
    conn = t(dead="id < 3000")
    conn.execute("CREATE TABLE u AS SELECT * FROM t WHERE false")
    conn.execute("INSERT INTO u SELECT i FROM generate_series(1, 2000) i; DELETE FROM u WHERE id < 1990")
    before = rows(conn)
    notices = messages_to(conn)
    # of t some 1000 rows would be moved, of u 11: no second one is due in u
    conn.execute("SET cyclone.debug_fault = 'inplace-differs:700'")
    with pytest.raises(psycopg.errors.DataCorrupted, match="an audit has failed on 1 table"):
        conn.execute("VACUUM (FULL INPLACE) t, u")
    conn.execute("RESET cyclone.debug_fault")
    assert any("an audit of VACUUM (FULL INPLACE) has failed in relation \"t\"" in notice for notice in notices)
    query = "SELECT relid::regclass::text, outcome, audit_failed FROM cyclone.history_details WHERE relid IN ('t'::regclass, 'u'::regclass) ORDER BY id"
    assert conn.execute(query).fetchall() == [("t", "failed", True), ("u", "done", False)]
    assert conn.execute("SELECT pg_relation_size('u') / 8192").fetchone() == (1,)
    assert rows(conn) == before
    checks.assert_clean(conn, "u")
    assert_server_finishes(conn, before)


@pytest.mark.once
@pytest.mark.parametrize("statement", ["VACUUM (ANALYZE) parts", "VACUUM (ADAPTIVE_DELAY)", "VACUUM (ANALYZE) part_0, part_1, part_1, part_2"])
def test_other_tables_of_a_lazy_vacuum(conn, statement):
    """The server's own loop over the tables has ended; those that it hasn't come to are vacuumed and analyzed all the same."""
    conn.execute("CREATE TABLE parts (id int, part int) PARTITION BY LIST (part)")
    for part in range(3):
        conn.execute(f"CREATE TABLE part_{part} PARTITION OF parts FOR VALUES IN ({part}) WITH (autovacuum_enabled = off)")
        conn.execute(f"INSERT INTO parts SELECT i, {part} FROM generate_series(1, 2000) i; CREATE INDEX ON part_{part} (id)")
    conn.execute("VACUUM")
    conn.execute("DELETE FROM parts WHERE id % 2 = 0 AND part = 1 OR id < 10")
    before = conn.execute("SELECT count(*), sum(id) FROM parts").fetchone()
    notices = messages_to(conn)
    conn.execute("SET cyclone.debug_fault = 'store-loses:7'")  # only part_1 has as many pages with dead rows
    with pytest.raises(psycopg.errors.DataCorrupted, match="an audit has failed on 1 table"):
        conn.execute(statement)
    conn.execute("RESET cyclone.debug_fault")
    assert any('an audit of VACUUM has failed in relation "part_1"' in notice for notice in notices)
    assert conn.execute("SELECT outcome FROM cyclone.history_details WHERE relid = 'part_1'::regclass ORDER BY id").fetchall() == [("done",), ("failed",)]
    for name in ("part_0", "part_2"):
        checks.assert_clean(conn, name)
        assert checks.table_state(conn, name)["dead_items"] == 0
        assert conn.execute("SELECT reltuples FROM pg_class WHERE oid = %s::regclass", (name,)).fetchone() == (1991,)
        assert conn.execute("SELECT count(*) FROM pg_stats WHERE tablename = %s", (name,)).fetchone() == (2 if "ANALYZE" in statement else 0,)
        query = "SELECT count(*) FROM cyclone.history_details WHERE relid = %s::regclass AND outcome = 'done'"
        assert conn.execute(query, (name,)).fetchone() == (2,)
    conn.execute("VACUUM parts")
    assert conn.execute("SELECT count(*), sum(id) FROM parts").fetchone() == before
    checks.assert_clean(conn, "part_1")


@pytest.mark.once
def test_a_table_is_dropped_while_a_lazy_vacuum_fails(cluster, db, conn):
    """The statement ends with what the audit has found, not with the name that isn't known any more."""
    for name in ("t", "u"):
        conn.execute(f"CREATE TABLE {name} AS SELECT i AS id FROM generate_series(1, 2000) i; CREATE INDEX ON {name} (id)")
        conn.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
    conn.execute("DELETE FROM t WHERE id % 2 = 0")
    before = rows(conn)
    with Parked(cluster, db, "heap-scan:leader", 1, "VACUUM t, u", {"cyclone.debug_fault": "store-loses:7"}) as vacuum:
        conn.execute("DROP TABLE u")
        vacuum.release()
        with pytest.raises(psycopg.errors.DataCorrupted, match='an audit of VACUUM has failed in relation "t"'):
            vacuum.finish()
    assert_server_finishes(conn, before)


@pytest.mark.once
@pytest.mark.parametrize("form, fault", [("FULL INPLACE, ", "index-entry"), ("FULL, ", "rewrite-change"), ("", "index-entry")])
def test_other_tables_after_a_team_that_failed(new_cluster, form, fault):
    """Its memory is gone, where the server keeps none for later; nothing of the next table's pace is in it."""
    own = new_cluster(min_dynamic_shared_memory=0, min_parallel_table_scan_size=0, min_parallel_index_scan_size=0)
    with own.connect("cyclone_template") as conn:
        for name in ("t", "u", "v"):
            conn.execute(f"CREATE TABLE {name} AS SELECT i AS id, repeat('x', 100) FROM generate_series(1, 5000) i")
            conn.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off); CREATE INDEX ON {name} (id); DELETE FROM {name} WHERE id % 3 = 0")
        before = conn.execute("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u), (SELECT count(*) FROM v)").fetchone()
        conn.execute("SET max_parallel_maintenance_workers = 2; SET cyclone.adaptive_delay = on")
        conn.execute("SELECT set_config('cyclone.debug_fault', %s, false)", (fault,))
        with pytest.raises(psycopg.errors.DataCorrupted, match="audits have failed on 3 tables"):
            conn.execute(f"VACUUM ({form}PARALLEL 2) t, u, v")
        conn.execute("RESET cyclone.debug_fault; SELECT cyclone.autovacuum_reset()")
        conn.execute("VACUUM (FULL INPLACE) t, u, v")
        assert conn.execute("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u), (SELECT count(*) FROM v)").fetchone() == before
        for name in ("t", "u", "v"):
            checks.assert_clean(conn, name)
        assert conn.execute("SELECT count(*) FROM cyclone.pace_details").fetchone() == (0,)


@pytest.mark.once
def test_alarm_on_a_toast_table_leaves_its_table(conn):
    """To the server, also where the statement is about both."""
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
    conn.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    conn.execute("INSERT INTO t SELECT i, repeat(md5(i::text), 200) FROM generate_series(1, 300) i; DELETE FROM t WHERE id % 3 = 0")
    before = rows(conn)
    [(toast,)] = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 't'::regclass")
    fails(conn, "store-loses", f"VACUUM (INDEX_CLEANUP on) {toast}")
    assert 'rows of "t" cannot be moved' in said(conn, "VACUUM (FULL INPLACE) t")
    assert LEFT in said(conn, "VACUUM (FULL) t")
    assert rows(conn) == before
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_breaker_outlasts_restart_and_crash(new_cluster):
    """Until a user resets it, for one table or for all."""
    own = new_cluster(autovacuum="off")
    own.sql("CREATE DATABASE d")
    with own.connect("d") as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        for name in ("t", "u"):
            conn.execute(f"CREATE TABLE {name} (id int) WITH (autovacuum_enabled = off)")
            conn.execute(f"INSERT INTO {name} SELECT generate_series(1, 1000)")
            conn.execute(f"DELETE FROM {name} WHERE id % 3 = 0")
            fails(conn, "live-row", f"VACUUM {name}")
        query = "SELECT relid::regclass::text, failures, failed_with, breaker_until FROM cyclone.autovacuum_details ORDER BY 1"
        before = conn.execute(query).fetchall()
    assert [row[:3] for row in before] == [("t", 1, "audit"), ("u", 1, "audit")]

    def left():
        """Which tables are left to the server; none of them is what it has failed on before it tries."""
        with own.connect("d") as conn:
            assert conn.execute(query).fetchall() == [row for row in before if row[0] in names]
            return {name for name in ("t", "u") if f'"{name}" is left to PostgreSQL, as an audit' in said(conn, f"VACUUM (VERBOSE) {name}")}

    names = {"t", "u"}
    own.restart()
    assert left() == names
    own.restart("crash")
    assert left() == names
    with own.connect("d") as conn:
        conn.execute("SELECT cyclone.autovacuum_reset('t')")
    names = {"u"}
    own.restart()
    assert left() == names
    with own.connect("d") as conn:
        conn.execute("SELECT cyclone.autovacuum_reset()")
    names = set()
    own.restart()
    assert left() == names
    with own.connect("d") as conn:
        conn.execute("CREATE EXTENSION pg_visibility; CREATE EXTENSION amcheck; CREATE EXTENSION pageinspect")
        checks.assert_clean(conn, "t", "u")


@pytest.mark.once
def test_switched_off(t):
    """Then even a fault is none that anybody looks for."""
    conn = t()
    conn.execute("SET cyclone.audit = 0")
    report = said(conn, "VACUUM (VERBOSE) t")
    assert by_engine(report) and "\naudit: " not in report
    checks.assert_clean(conn, "t")
    conn.execute("DELETE FROM t WHERE id % 3 = 1")
    conn.execute("SET cyclone.debug_fault = 'store-loses'")
    conn.execute("VACUUM t")


@pytest.mark.once
@pytest.mark.parametrize("fault", ["store-loses:", "store-loses:0", "store-loses:-1"])
def test_a_fault_that_is_never_due(t, fault):
    conn = t()
    conn.execute("SELECT set_config('cyclone.debug_fault', %s, false)", (fault,))
    assert by_engine(said(conn, "VACUUM (VERBOSE) t"))
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_who_may_set_it(conn):
    for value in ("-0.1", "1.1"):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            conn.execute(f"SET cyclone.audit = {value}")
    conn.execute("CREATE ROLE clerk")
    conn.execute("SET ROLE clerk")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("SET cyclone.audit = 0")
