"""VACUUM (DRY_RUN) says what VACUUM does afterwards, and writes nothing."""

import re

import psycopg
import pytest

from cyclone_lab import checks
from test_seam import by_engine, said

EVERY_VERSION = "what PostgreSQL freezes, skips and truncates is its own, in each version"

SHAPES = {
    "deleted here and there": ["DELETE FROM t WHERE id % 7 = 0"],
    "without index": ["DROP INDEX t_id_idx", "DELETE FROM t WHERE id % 7 = 0"],
    "empty end": ["DELETE FROM t WHERE id > 3000"],
    "empty": ["DELETE FROM t"],
    "few": ["DELETE FROM t WHERE id = 5"],
    "HOT": ["UPDATE t SET note = 'a' WHERE id % 3 = 0", "UPDATE t SET note = 'b' WHERE id % 6 = 0", "DELETE FROM t WHERE id % 9 = 0"],
    "updated": ["UPDATE t SET id = id + 10000 WHERE id % 3 = 0"],
    "aborted": ["BEGIN", "UPDATE t SET note = 'c' WHERE id % 4 = 0", "INSERT INTO t SELECT i, 'd' FROM generate_series(1, 300) i", "ROLLBACK"],
    "vacuumed before": ["DELETE FROM t WHERE id % 7 = 0", "VACUUM (INDEX_CLEANUP on) t", "DELETE FROM t WHERE id BETWEEN 100 AND 200"],
    "dead items before": ["DELETE FROM t WHERE id % 7 = 0", "VACUUM (INDEX_CLEANUP off) t", "UPDATE t SET note = 'e' WHERE id % 5 = 0"],
    "locked": ["SELECT FROM t WHERE id % 5 = 0 FOR UPDATE", "DELETE FROM t WHERE id % 10 = 0"],
}
COLUMNS = "pages, pages_scanned, pages_after, rows_removed, rows_remaining, rows_dead, dead_item_pages, dead_items, index_scans"


@pytest.fixture
def t(conn):
    """A connection to a database with a table t of 4000 rows and an index on id, without maps."""
    conn.execute("CREATE TABLE t (id int, note text) WITH (autovacuum_enabled = off, fillfactor = 70)")
    conn.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 4000) i")
    conn.execute("CREATE INDEX ON t (id)")
    conn.execute("SELECT count(*) FROM t")  # hints
    return conn


def expected(conn, full=None, freeze=False, columns=COLUMNS):
    query = f"SELECT {columns} FROM cyclone.dry_run('t', %s, %s) WHERE relation = 't'::regclass"
    return conn.execute(query, (full, freeze)).fetchone()


def done(report):
    """The same numbers from what VACUUM VERBOSE says of the table itself, and how many rows were frozen."""

    def numbers(pattern):
        return tuple(map(int, re.search(pattern, report).groups()))

    removed_pages, remain, scanned = numbers(r"pages: (\d+) removed, (\d+) remain, (\d+) scanned")
    removed, remaining, dead = numbers(r"tuples: (\d+) removed, (\d+) remain, (\d+) are dead but not yet removable")
    scans = numbers(r"index scans: (\d+)")[0]
    items = re.search(r"index scan (?:needed|bypassed|not needed): (\d+) pages from table .* (?:had|have) (\d+) dead item identifiers", report)
    item_pages, dead_items = (int(items[1]), int(items[2])) if items else (0, 0)
    frozen = re.search(r"frozen: (\d+) pages? from table \([\d.]+% of total\) had (\d+) tuples frozen", report)
    return (
        (removed_pages + remain, scanned, remain, removed, remaining, dead, item_pages, dead_items, scans),
        tuple(map(int, frozen.groups())) if frozen else (0, 0),
    )


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_as_vacuum_does_it(t, shape, freeze):
    for statement in SHAPES[shape]:
        t.execute(statement)
    foreseen = expected(t, freeze=freeze)
    frozen = expected(t, freeze=freeze, columns="pages_frozen, rows_frozen")
    report = said(t, f"VACUUM (VERBOSE, PROCESS_TOAST off{', FREEZE' if freeze else ''}) t")
    assert by_engine(report)
    result, froze = done(report)
    if shape == "without index":  # where VACUUM reports no items
        foreseen, result = foreseen[:-3], result[:-3]
    assert (foreseen, frozen) == (result, froze)
    checks.assert_clean(t, "t")


@pytest.mark.parametrize("full", ["", "FULL INPLACE", "FULL", "FREEZE"])
def test_nothing_is_written(t, cluster, full):
    """Neither to pages, nor to WAL; nor is a transaction ID assigned, or a lock taken that is in others' way."""
    t.execute("DELETE FROM t WHERE id % 7 = 0")
    t.execute("UPDATE t SET note = 'x' WHERE id % 5 = 0")
    t.execute("CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_walinspect")
    t.execute("CHECKPOINT")
    state = (
        "SELECT pg_relation_filenode('t'), pg_relation_size('t'), pg_relation_size('t_id_idx'), age(relfrozenxid), relpages, reltuples"
        " FROM pg_class WHERE oid = 't'::regclass"
    )
    files = [cluster.data / path for (path,) in t.execute("SELECT pg_relation_filepath(oid) FROM pg_class WHERE relname IN ('t', 't_id_idx')").fetchall()]
    start = t.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
    before, bytes_before = t.execute(state).fetchone(), [file.read_bytes() for file in files]
    with t.transaction():
        options = ", ".join(filter(None, ["DRY_RUN", full]))
        assert 'of table "' in said(t, f"VACUUM ({options}) t")
        t.execute("SELECT count(*) FROM cyclone.dry_run('t', %s)", ("inplace" if "INPLACE" in full else None,))
        wal = t.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()
        locks = t.execute("SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 't'::regclass").fetchall()
    assert wal == (None,) and set(locks) <= {("AccessShareLock",)}
    ours = "relfilenode IN (pg_relation_filenode('t'), pg_relation_filenode('t_id_idx'))"
    assert t.execute(f"SELECT count(*) FROM pg_buffercache WHERE isdirty AND {ours}").fetchone() == (0,)
    t.execute("SELECT pg_logical_emit_message(false, 'test', 'so that there is some WAL')")
    t.execute("SELECT pg_switch_wal()")
    blocks = f"SELECT count(*) FROM pg_get_wal_block_info(%s, pg_current_wal_flush_lsn()) WHERE {ours}"
    assert t.execute(blocks, (start,)).fetchone() == (0,)
    assert t.execute(state).fetchone() == before
    t.execute("CHECKPOINT")
    assert [file.read_bytes() for file in files] == bytes_before


@pytest.mark.once
def test_what_is_held_back(t, cluster, db):
    """By whom, and the times that past runs took."""
    with cluster.connect(db) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT txid_current()")
        pid = other.info.backend_pid
        t.execute("DELETE FROM t WHERE id % 7 = 0")
        removed, dead, holder, seconds, runs = expected(t, columns="rows_removed, rows_dead, held_by, seconds, past_runs_are_own")
        assert (removed, dead, runs) == (0, 4000 // 7, False) and str(pid) in holder
        assert f"{4000 // 7} are dead but not yet removable\n" in said(t, "VACUUM (DRY_RUN) t")
    t.execute("VACUUM (INDEX_CLEANUP on) t")
    t.execute("DELETE FROM t WHERE id % 5 = 0")
    seconds, phases, runs, own = expected(t, columns="seconds, phases, past_runs, past_runs_are_own")
    assert (runs, own) == (1, True) and seconds > 0 and abs(sum(phases.values()) - seconds) < 0.001
    assert "as the last 1 runs on it have it" in said(t, "VACUUM (DRY_RUN) t")


def test_full(t):
    """Sizes are estimates, from all pages of so small a table."""
    t.execute("DELETE FROM t WHERE id % 2 = 0")
    t.execute("ANALYZE t")
    [rewrite] = t.execute("SELECT operation, run_by, pages_after, disk_bytes, wal_bytes, index_scans FROM cyclone.dry_run('t', 'rewrite') LIMIT 1").fetchall()
    [inplace] = t.execute("SELECT operation, run_by, pages_after, disk_bytes, wal_bytes FROM cyclone.dry_run('t', 'inplace') LIMIT 1").fetchall()
    assert rewrite[:2] == ("FULL REWRITE", "engine") and rewrite[5] is None and rewrite[3] >= rewrite[4] > 0
    assert inplace[:2] == ("FULL INPLACE", "engine") and inplace[4] is None
    assert inplace[3] == 0  # so small an index isn't built anew
    report = said(t, "VACUUM (DRY_RUN, FULL) t")
    assert "needed meanwhile" in report and "\nfrozen: 2000 tuples\n" in report
    assert expected(t, "rewrite", columns="rows_frozen, pages_frozen") == (2000, None)
    assert expected(t, "inplace", columns="rows_frozen, pages_frozen") == (None, None)
    t.execute("VACUUM (FULL INPLACE) t")
    pages = "SELECT pg_relation_size('t') / 8192"
    assert abs(inplace[2] - t.execute(pages).fetchone()[0]) <= 2
    frozen = expected(t, "rewrite", columns="rows_frozen")[0]
    items = "generate_series(0, pg_relation_size('t') / 8192 - 1) b, heap_page_items(get_raw_page('t', b::int))"
    rows = f"SELECT count(*) FILTER (WHERE t_infomask & 768 = 768), count(*) FROM {items} WHERE t_infomask IS NOT NULL"
    before = t.execute(rows).fetchone()[0]
    t.execute("VACUUM FULL t")
    assert t.execute(rows).fetchone() == (before + frozen, 2000)
    assert abs(rewrite[2] - t.execute(pages).fetchone()[0]) <= 1
    checks.assert_clean(t, "t")


@pytest.mark.once
def test_full_inplace_of_a_table_with_a_large_index(conn):
    """What the index gives back, and needs meanwhile, counts, unless it is left as it is."""
    conn.execute("CREATE TABLE w (id int PRIMARY KEY, note text) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO w SELECT i, 'x' FROM generate_series(1, 40000) i")
    conn.execute("DELETE FROM w WHERE id % 10 <> 0")
    sizes = "SELECT pg_relation_size('w'), pg_relation_size('w_pkey')"
    [(table, index)] = conn.execute(sizes)
    query = "SELECT bytes_freed, disk_bytes FROM cyclone.dry_run('w', 'inplace') LIMIT 1"
    freed, disk = conn.execute(query).fetchone()
    assert "needed meanwhile" in said(conn, "VACUUM (DRY_RUN, FULL INPLACE) w")
    assert "needed meanwhile" not in said(conn, "VACUUM (DRY_RUN, FULL INPLACE, INDEX_CLEANUP off) w")
    conn.execute("VACUUM (FULL INPLACE) w")
    [(new_table, new_index)] = conn.execute(sizes)
    assert index > 2 * new_index
    assert abs(table + index - new_table - new_index - freed) <= 4 * 8192
    assert abs(disk - new_index) <= 2 * 8192
    checks.assert_clean(conn, "w")


@pytest.mark.once
def test_wal_of_full_inplace(t):
    """Only past runs of the table know."""
    t.execute("DELETE FROM t WHERE id % 2 = 0")
    query = "SELECT wal_bytes FROM cyclone.dry_run('t', 'inplace') LIMIT 1"
    assert t.execute(query).fetchone() == (None,)
    t.execute("VACUUM (FULL INPLACE) t")
    t.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(4001, 8000) i")
    t.execute("DELETE FROM t WHERE id % 4 = 0")
    [(foreseen, shown)] = t.execute(query.replace("wal_bytes", "wal_bytes, pg_size_pretty(wal_bytes)")).fetchall()
    assert f"\nWAL: about {shown}\n" in said(t, "VACUUM (DRY_RUN, FULL INPLACE) t")
    t.execute("VACUUM (FULL INPLACE) t")
    [(written,)] = t.execute("SELECT wal_bytes FROM cyclone.history_details WHERE relid = 't'::regclass ORDER BY id DESC LIMIT 1").fetchall()
    assert written / 4 < foreseen < 4 * written


def test_who_would_do_it(t):
    t.execute("SET cyclone.tables = 'other*'")
    assert expected(t, columns="run_by, reason") == ("server", "by cyclone.databases or cyclone.tables")
    assert '" by PostgreSQL: by cyclone.databases or cyclone.tables\n' in said(t, "VACUUM (DRY_RUN) t")
    t.execute("RESET cyclone.tables")
    assert expected(t, columns="run_by, reason") == ("engine", None)
    t.execute("SET cyclone.enabled = off")
    assert expected(t, columns="run_by, reason") == ("server", "cyclone.enabled is off")
    t.execute("RESET cyclone.enabled")
    [(operation, run_by, reason)] = t.execute("SELECT operation, run_by, reason FROM cyclone.dry_run('pg_class', 'rewrite')").fetchall()
    assert (operation, run_by) == ("FULL REWRITE", "server") and "catalog" in reason


@pytest.mark.once
def test_which_tables(t):
    """Partitions of a table, several tables, all; each with its TOAST table, unless that isn't wanted."""
    t.execute("CREATE TABLE p (id int, note text) PARTITION BY RANGE (id)")
    for i in range(2):
        t.execute(f"CREATE TABLE p{i} PARTITION OF p FOR VALUES FROM ({i}) TO ({i + 1})")

    def tables(statement):
        return set(re.findall(r'dry run: VACUUM of table "\w+\.public\.(\w+)"', said(t, statement)))

    assert tables("VACUUM (DRY_RUN) p") == {"p0", "p1"}
    assert tables("VACUUM (DRY_RUN, VERBOSE) p1, t") == {"p1", "t"}
    assert {"p0", "p1", "t"} <= tables("VACUUM (DRY_RUN)")
    assert t.execute("SELECT count(*) FROM cyclone.dry_run('p')").fetchone() == (4,)
    assert said(t, "VACUUM (DRY_RUN, PROCESS_TOAST off) t").count("dry run: ") == 1
    assert said(t, "VACUUM (DRY_RUN) t").count("dry run: ") == 2


@pytest.mark.once
def test_who_may(t, cluster, db):
    """Those who may VACUUM the table; others don't wait for its lock."""
    t.execute("CREATE ROLE clerk; GRANT SELECT ON t TO clerk; GRANT USAGE ON SCHEMA cyclone TO clerk")
    try:
        t.execute("SET ROLE clerk")
        assert 'permission denied to vacuum "t", skipping it' in said(t, "VACUUM (DRY_RUN) t")
        assert expected(t) is None
        with cluster.connect(db) as other, other.transaction():
            other.execute("LOCK TABLE t")
            t.execute("SET statement_timeout = '10s'")
            assert expected(t) is None, "it stood in the queue for a lock"
            t.execute("RESET statement_timeout")
        t.execute("RESET ROLE; GRANT MAINTAIN ON t TO clerk; SET ROLE clerk")
        assert expected(t)[4] == 4000
    finally:
        t.execute("RESET ROLE; DROP OWNED BY clerk; DROP ROLE clerk")


@pytest.mark.once
def test_options(t):
    """With the option off it is a VACUUM; with it on no other hook gets the statement, even with errors in it."""
    t.execute("DELETE FROM t WHERE id % 7 = 0")
    for options, error in [
        ("DRY_RUN, ANALYZE", psycopg.errors.FeatureNotSupported),
        ("DRY_RUN, ONLY_DATABASE_STATS", psycopg.errors.Error),
        ("DRY_RUN, PARALLEL -1", psycopg.errors.SyntaxError),
        ("DRY_RUN maybe", psycopg.errors.SyntaxError),
        ("DRY_RUN, NONSENSE", psycopg.errors.SyntaxError),
    ]:
        with pytest.raises(error):
            t.execute(f"VACUUM ({options}) {'' if 'ONLY' in options else 't'}")
    t.execute("SET cyclone.enabled = off")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="DRY_RUN is pg_cyclone's, which is off"):
        t.execute("VACUUM (DRY_RUN) t")
    t.execute("RESET cyclone.enabled")
    assert expected(t)[3] == 4000 // 7
    report = said(t, "VACUUM (DRY_RUN off, VERBOSE) t")
    assert by_engine(report) and f"tuples: {4000 // 7} removed" in report
    assert "finished compacting" in said(t, "VACUUM (DRY_RUN, DRY_RUN false, FULL INPLACE, VERBOSE) t")
    checks.assert_clean(t, "t")


@pytest.mark.once
def test_on_a_standby(new_cluster):
    """There the standby's own queries count."""
    primary = new_cluster(autovacuum="off")
    primary.sql("CREATE EXTENSION IF NOT EXISTS pg_cyclone")
    primary.sql("CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 1000); DELETE FROM t WHERE id % 10 = 0")
    with primary.standby().start() as standby:
        standby.wait_for_replay(primary)
        with standby.connect() as conn:
            assert expected(conn, columns="rows_removed, rows_remaining, run_by") == (100, 900, "engine")
            assert "tuples: 100 removed, 900 remain" in said(conn, "VACUUM (DRY_RUN) t")
