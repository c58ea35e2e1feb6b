"""VACUUM (DRY_RUN) estimates what VACUUM does afterwards, and writes nothing."""

import re

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE
from cyclone_lab import checks
from test_corruption import damageable
from test_seam import by_engine, said

EVERY_VERSION = "what PostgreSQL removes and logs is its own, in each version"

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
UNITS = {"bytes": 1, "kB": 1024, "MB": 1024**2}


@pytest.fixture
def t(conn):
    """A connection to a database with a table t of 4000 rows and an index on id, without maps."""
    conn.execute("CREATE TABLE t (id int, note text) WITH (autovacuum_enabled = off, fillfactor = 70)")
    conn.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 4000) i")
    conn.execute("CREATE INDEX ON t (id)")
    conn.execute("SELECT count(*) FROM t")  # hints
    return conn


def numbers(pattern: str, report: str) -> tuple[int, ...]:
    return tuple(map(int, re.search(pattern, report).groups()))


def size(pattern: str, report: str) -> int:
    """Return the bytes that such a text stands for."""
    number, unit = re.search(pattern + r" (\d+) (bytes|kB|MB)", report).groups()
    return int(number) * UNITS[unit]


def dry_run(conn, options: str = "", table: str = "t") -> str:
    return said(conn, f"VACUUM (DRY_RUN, PROCESS_TOAST off{', ' + options if options else ''}) {table}")


def foreseen(report: str) -> tuple[int, ...]:
    """Return pages, rows removed, remaining and dead, passes over indexes, and pages with dead items, and these."""
    scanned, skipped = numbers(r"pages: (\d+) scanned, (\d+) skipped", report)
    rows = numbers(r"tuples: (\d+) removed, (\d+) remain, (\d+) are dead but not yet removable", report)
    indexes = re.search(r"index scans: (\d+), .*; (\d+) pages have (\d+) dead item identifiers", report)
    return (scanned + skipped, *rows, *(map(int, indexes.groups()) if indexes else ()))


def done(report: str) -> tuple[int, ...]:
    """Return the same numbers from what VACUUM VERBOSE says of the table."""
    removed_pages, remain = numbers(r"pages: (\d+) removed, (\d+) remain", report)
    rows = numbers(r"tuples: (\d+) removed, (\d+) remain, (\d+) are dead but not yet removable", report)
    items = re.search(r"index scan (?:needed|bypassed|not needed): (\d+) pages from table .* (?:had|have) (\d+) dead item identifiers", report)
    return (removed_pages + remain, *rows, *numbers(r"index scans: (\d+)", report), *(map(int, items.groups()) if items else (0, 0)))


@pytest.mark.parametrize("shape", SHAPES)
def test_as_vacuum_does_it(t, shape):
    """Of a table that is smaller than the sample all rows are counted."""
    for statement in SHAPES[shape]:
        t.execute(statement)
    expected = foreseen(dry_run(t))
    report = said(t, "VACUUM (VERBOSE, PROCESS_TOAST off) t")
    assert by_engine(report)
    result = done(report)[: len(expected)]
    # of pages that it skips VACUUM only estimates the rows
    assert expected[2] == t.execute("SELECT count(*) FROM t").fetchone()[0]
    assert expected[:2] + expected[3:] == result[:2] + result[3:]
    checks.assert_clean(t, "t")


@pytest.mark.once
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


@pytest.mark.parametrize("options", ["", "FREEZE", "FULL INPLACE", "FULL"])
@pytest.mark.parametrize("logged_before", [False, True])
def test_wal(cluster, db, t, options, logged_before):
    """Also in a session that has written nothing yet, which doesn't know when the last checkpoint began."""
    t.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(4001, 60000) i")
    t.execute("VACUUM t")
    t.execute("DELETE FROM t WHERE id % 2 = 0")
    t.execute("SELECT count(*) FROM t")
    t.execute("CHECKPOINT")
    if logged_before:
        t.execute("UPDATE t SET note = 'x' WHERE id % 40 = 1")  # some of every page
        t.execute("SELECT count(*) FROM t")
    with cluster.connect(db) as conn:
        expected = size("WAL: about", said(conn, f"VACUUM (DRY_RUN{', ' + options if options else ''}) t"))
        before = conn.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        conn.execute(f"VACUUM {'(' + options + ')' if options else ''} t")
        [written] = conn.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)::bigint", before).fetchone()
    assert written / 2 < expected < 2 * written
    checks.assert_clean(t, "t")


@pytest.mark.once
@pytest.mark.parametrize("options", ["", "FREEZE"])
def test_wal_of_pages_without_dead_rows(prefix, pg_major, options):
    """Where hint bits are not logged such a page becomes all-visible without an image, so VACUUM doesn't freeze it for that."""
    with damageable(prefix, pg_major, {**CONFIG, "wal_log_hints": "off"}) as cluster, cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE TABLE t (id int, note text) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 60000) i")
        conn.execute("SELECT count(*) FROM t")
        conn.execute("CHECKPOINT")
        expected = size("WAL: about", dry_run(conn, options))
        before = conn.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        conn.execute(f"VACUUM {'(' + options + ')' if options else ''} t")
        [written] = conn.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)::bigint", before).fetchone()
        # since 19 reading the rows has made the pages all-visible, and little is left to do
        assert written / 2 - 8192 < expected < 2 * written
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_what_is_held_back(t, cluster, db):
    """By whom."""
    with cluster.snapshot(db, "SELECT txid_current()") as other:
        t.execute("DELETE FROM t WHERE id % 7 = 0")
        report = dry_run(t)
        assert foreseen(report)[1:4] == (0, 4000, 4000 // 7)
        assert re.search(rf"horizon: the removal of dead rows is held back by .*{other.info.backend_pid}", report)


@pytest.mark.once
def test_time(t):
    """By past runs, at the speed that they had while they didn't sleep."""
    assert " on it " not in dry_run(t)
    t.execute("SET vacuum_cost_delay = 20; SET vacuum_cost_limit = 50")
    index_pages = 0
    for number in (1, 2, 3):
        t.execute(f"UPDATE t SET note = 'x' WHERE id % 3 = {number % 3}")
        index_pages += t.execute("SELECT pg_relation_size('t_id_idx') / 8192").fetchone()[0]
        t.execute("VACUUM (INDEX_CLEANUP on) t")
    [(runs, work, slept, pages)] = t.execute(f"""
        SELECT count(*), sum(seconds - slept_seconds), sum(slept_seconds), sum(pages_scanned) + 2 * {index_pages}
        FROM cyclone.history_details WHERE relid = 't'::regclass AND operation = 'VACUUM'
        """).fetchall()
    t.execute("UPDATE t SET note = 'x'")
    [(heap, index)] = t.execute("SELECT pg_relation_size('t') / 8192, pg_relation_size('t_id_idx') / 8192").fetchall()
    report = dry_run(t)
    seconds, of_runs = re.search(r"time: about ([\d.]+) s without sleep and pauses, as past runs on it \((\d+)\) have it", report).groups()
    assert int(of_runs) == runs == 3 and slept > 0.1
    assert float(seconds) == pytest.approx((heap + 2 * index) * float(work) / float(pages), abs=0.001)
    checks.assert_clean(t, "t")


def test_full(t):
    """Sizes, from all pages of so small a table."""
    t.execute("DELETE FROM t WHERE id % 2 = 0")
    t.execute("ANALYZE t")
    pages = "SELECT pg_relation_size('t') / 8192"
    remain = r"; (\d+) of \d+ pages remain"
    [rewritten] = numbers(remain, said(t, "VACUUM (DRY_RUN, FULL) t"))
    [compacted] = numbers(remain, dry_run(t, "FULL INPLACE"))
    assert " 0 bytes needed meanwhile" in dry_run(t, "FULL INPLACE")  # so small an index isn't built anew
    t.execute("VACUUM (FULL INPLACE) t")
    assert abs(compacted - t.execute(pages).fetchone()[0]) <= 2
    took = "SELECT seconds FROM cyclone.history_details WHERE relid = 't'::regclass AND operation = 'FULL INPLACE'"
    [seconds] = re.findall(r"time: about ([\d.]+) s", dry_run(t, "FULL INPLACE"))
    assert 0 < float(seconds) < t.execute(took).fetchone()[0]  # for a smaller table
    t.execute("VACUUM FULL t")
    assert abs(rewritten - t.execute(pages).fetchone()[0]) <= 1
    checks.assert_clean(t, "t")


@pytest.mark.once
def test_full_inplace_of_a_table_with_a_large_index(conn):
    """What the index gives back, and needs meanwhile, counts, unless it is left as it is."""
    conn.execute("CREATE TABLE w (id int PRIMARY KEY, note text) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO w SELECT i, 'x' FROM generate_series(1, 40000) i")
    conn.execute("DELETE FROM w WHERE id % 10 <> 0")
    sizes = "SELECT pg_relation_size('w'), pg_relation_size('w_pkey')"
    [(table, index)] = conn.execute(sizes)
    report = dry_run(conn, "FULL INPLACE", "w")
    assert ", 0 bytes needed meanwhile" in dry_run(conn, "FULL INPLACE, INDEX_CLEANUP off", "w")
    conn.execute("VACUUM (FULL INPLACE) w")
    [(new_table, new_index)] = conn.execute(sizes)
    assert index > 2 * new_index
    assert abs(table + index - new_table - new_index - size("disk space:", report)) <= 4 * 8192
    assert abs(size("given back,", report) - new_index) <= 2 * 8192
    checks.assert_clean(conn, "w")


def test_who_would_do_it(t):
    t.execute("SET cyclone.tables = 'other*'")
    assert '" by PostgreSQL: by cyclone.databases or cyclone.tables\n' in dry_run(t)
    t.execute("RESET cyclone.tables")
    assert '" by pg_cyclone\n' in dry_run(t)
    assert re.search('FULL REWRITE of .* by PostgreSQL: it is a catalog', said(t, "VACUUM (DRY_RUN, FULL) pg_class"))


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
    assert said(t, "VACUUM (DRY_RUN, PROCESS_TOAST off) t").count("dry run: ") == 1
    assert said(t, "VACUUM (DRY_RUN) t").count("dry run: ") == 2


@pytest.mark.once
def test_who_may(t):
    """Those who may VACUUM the table, or its parent, as with VACUUM."""
    t.execute("CREATE ROLE clerk; GRANT SELECT ON t TO clerk; CREATE TABLE child () INHERITS (t)")
    t.execute("SET ROLE clerk")
    for table in ("t", "child"):
        report = said(t, f"VACUUM (DRY_RUN) {table}")
        assert f'permission denied to vacuum "{table}", skipping it' in report and "dry run" not in report
    t.execute("RESET ROLE; GRANT MAINTAIN ON t TO clerk; SET ROLE clerk")
    assert foreseen(dry_run(t))[2] == 4000


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
    assert foreseen(dry_run(t))[1] == 4000 // 7
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
            assert "tuples: 100 removed, 900 remain" in said(conn, "VACUUM (DRY_RUN) t")
