"""VACUUM FULL succeeds wherever PostgreSQL's does: with versions of rows whose newer ends are gone, with chains of versions of any
length and number, with rows that become too big for a page, and whatever the session's timeouts."""

import struct
from contextlib import contextmanager

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE
from cyclone_lab import checks
from cyclone_lab.background import heard
from test_corruption import damage, damageable, tuple_at
from test_rewrite import content, physical_chains


def versions(conn, table: str) -> int:
    """Return how many tuples the table's pages have."""
    [(count,)] = conn.execute(
        f"""
        SELECT count(*) FROM generate_series(0, pg_relation_size('{table}') / 8192 - 1) block,
                             heap_page_items(get_raw_page('{table}', block)) WHERE lp_flags = 1
        """
    ).fetchall()
    return count


def full(conn, table: str, workers: int = 0, core: bool = False) -> str:
    """Run VACUUM FULL, ours or PostgreSQL's, and return what VERBOSE says."""
    conn.execute(f"SET cyclone.enabled = {'off' if core else 'on'}")
    said = heard(conn, f"VACUUM (FULL, VERBOSE) {table}" if core else f"VACUUM (FULL, VERBOSE, PARALLEL {workers}) {table}")
    conn.execute("RESET cyclone.enabled")
    return "\n".join(said)


@contextmanager
def rows_deleted_by_an_older_transaction(cluster, db, conn, change: str, delete: str):
    """Change rows and then delete them by a transaction with a smaller ID, while one with an ID in between keeps running: the
    versions before the change look recently dead, and the changed ones are dead."""
    with cluster.connect(db) as deleter, cluster.connect(db) as other:
        deleter.execute("BEGIN")
        deleter.execute("SELECT pg_current_xact_id()")
        other.execute("BEGIN")
        other.execute("SELECT pg_current_xact_id()")
        conn.execute(change)
        deleter.execute(delete)
        deleter.execute("COMMIT")
        yield
        other.execute("ROLLBACK")


MAKE_BIG = """
    CREATE TABLE t (id int, k int, pad text, body text);
    ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER pad SET STORAGE PLAIN;
    CREATE INDEX ON t (k);
    CREATE INDEX ON t (md5(body));
    INSERT INTO t SELECT i, i, repeat('x', 800), repeat('b', 5000) || i FROM generate_series(1, 18) i;
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["pruned", "vacuumed", "used anew"])
def test_versions_whose_newer_end_is_gone_are_dead(cluster, db, conn, how, workers):
    """They look recently dead, but their values may have gone, even where PostgreSQL still finds those."""
    conn.execute(MAKE_BIG)
    with rows_deleted_by_an_older_transaction(
        cluster, db, conn, "UPDATE t SET k = k + 1000 WHERE id IN (1, 2)", "DELETE FROM t WHERE id IN (1, 2)"
    ):
        assert versions(conn, "t") == 20
        if how == "pruned":
            conn.execute("INSERT INTO t SELECT i, i, repeat('x', 800), 's' FROM generate_series(100, 120) i")
            conn.execute("SELECT count(*) FROM t")
        else:
            conn.execute("SET cyclone.enabled = off")
            conn.execute("VACUUM (TRUNCATE off) t")
            conn.execute("RESET cyclone.enabled")
        if how == "used anew":
            conn.execute("INSERT INTO t SELECT i, i, repeat('x', 800), 's' FROM generate_series(100, 120) i")
        live = conn.execute("SELECT count(*) FROM t").fetchone()[0]
        assert versions(conn, "t") > live, "the older ends are still there"

        before = content(conn, "t")
        with cluster.snapshot(db) as reader:
            conn.execute("UPDATE t SET k = k + 1, body = repeat('new', 1000) WHERE id IN (3, 4)")
            after = content(conn, "t")
            said = full(conn, "t", workers)
            assert content(conn, "t") == after
            assert content(reader, "t") == before
        assert versions(conn, "t") == live + 2
        assert "2 dead row versions" not in said
    checks.assert_clean(conn, "t")
    full(conn, "t", workers)
    assert content(conn, "t") == after and versions(conn, "t") == live


def test_versions_before_those_are_dead_too(cluster, db, conn):
    """A chain of versions whose last one is gone goes as a whole, in whatever order its versions lie."""
    conn.execute(MAKE_BIG)
    with rows_deleted_by_an_older_transaction(
        cluster, db, conn,
        "DO $$ BEGIN FOR i IN 1..40 LOOP UPDATE t SET k = k + 1 WHERE id <= 5; COMMIT; END LOOP; END $$",
        "DELETE FROM t WHERE id <= 4",
    ):
        conn.execute("SET cyclone.enabled = off")
        conn.execute("VACUUM t")
        conn.execute("RESET cyclone.enabled")
        assert versions(conn, "t") > 170
        full(conn, "t")
        # 14 rows, and all versions of the one that lives
        assert versions(conn, "t") == 14 + 40
        chains = physical_chains(conn)
        assert len(chains) == 40 and all(sound for (sound,) in chains)
        conn.execute("SET enable_seqscan = off")
        assert conn.execute("SELECT count(*) FROM t WHERE k > 0").fetchone()[0] == 14
    checks.assert_clean(conn, "t")


def test_versions_whose_updater_aborted_are_live(cluster, db, conn):
    """Their newer ends are gone as well, and that means nothing."""
    conn.execute(MAKE_BIG)
    with cluster.connect(db) as locker, cluster.connect(db) as other:
        other.execute("BEGIN")
        other.execute("SELECT pg_current_xact_id()")
        # an updater among lockers, who end later
        locker.execute("BEGIN")
        locker.execute("SELECT FROM t WHERE id = 3 FOR KEY SHARE")
        for change in ("UPDATE t SET k = k + 1 WHERE id <= 3", "UPDATE t SET body = 'new' WHERE id IN (2, 3)"):
            conn.execute("BEGIN")
            conn.execute(change)
            conn.execute("ROLLBACK")
        locker.execute("COMMIT")
        before = content(conn, "t")
        conn.execute("VACUUM t")
        full(conn, "t")
        assert content(conn, "t") == before and versions(conn, "t") == 18
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("length", [100, 3000])
def test_long_chains_are_read_a_few_times_only(cluster, db, conn, length):
    """However long they are, and though each version turns out to be dead only when the next one has."""
    conn.execute("CREATE TABLE t (id int, k int, pad text)")
    conn.execute("CREATE INDEX ON t (k)")
    conn.execute("INSERT INTO t VALUES (1, 0, repeat('x', 100)), (2, 0, repeat('x', 100))")
    with rows_deleted_by_an_older_transaction(
        cluster, db, conn,
        f"DO $$ BEGIN FOR i IN 1..{length} LOOP UPDATE t SET k = i WHERE id = 1; COMMIT; END LOOP; END $$",
        "DELETE FROM t WHERE id = 1",
    ):
        [(blocks,)] = conn.execute("SELECT pg_relation_size('t') / 8192")
        visits = "SELECT pg_stat_force_next_flush(), heap_blks_read + heap_blks_hit FROM pg_statio_user_tables WHERE relname = 't'"
        conn.execute(visits)
        [(_, before)] = conn.execute(visits).fetchall()
        full(conn, "t")
        conn.execute(visits)
        [(_, after)] = conn.execute(visits).fetchall()
        assert versions(conn, "t") == 1
        assert after - before <= 8 * blocks
    checks.assert_clean(conn, "t")


def make_links(cluster, updates, end: str) -> None:
    """Update two rows of a table t while a prepared transaction needs their old versions, and a transaction with an older ID ends."""
    with cluster.connect(TEMPLATE) as conn, cluster.connect(TEMPLATE) as deleter:
        conn.execute("CREATE TABLE t (id int, n int); INSERT INTO t VALUES (1, 0), (2, 0)")
        deleter.execute("BEGIN; SELECT pg_current_xact_id()")
        conn.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'old'")
        for update in updates:
            conn.execute(update)
        deleter.execute(end)


@pytest.mark.parametrize("workers", [0, 2])
def test_versions_before_damaged_links_are_kept(prefix, pg_major, workers):
    """Links that go round in a circle, by one that is damaged, don't tell who is dead, whatever is found of other rows."""
    with damageable(prefix, pg_major, {**CONFIG, "min_parallel_table_scan_size": 0}) as cluster:
        updates = (
            "UPDATE t SET n = 1 WHERE id = 2",
            "BEGIN; UPDATE t SET n = 1 WHERE id = 1; UPDATE t SET n = 2 WHERE id = 1; UPDATE t SET n = 3 WHERE id = 1; COMMIT",
        )
        make_links(cluster, updates, "DELETE FROM t WHERE id = 2; COMMIT")
        # the versions of row 1 are items 1, 4, 5 and 6; 5 shall point at 4 instead of 6
        damage(cluster, cluster.connect(TEMPLATE), ("t",), 0, lambda page: struct.pack_into("<H", page, tuple_at(page, 5) + 16, 4))
        with cluster.connect(TEMPLATE) as conn:
            assert versions(conn, "t") == 6
            full(conn, "t", workers)
            assert versions(conn, "t") == 4, "row 2 is gone, and nothing of row 1"
            conn.execute("COMMIT PREPARED 'old'")
            full(conn, "t", workers)
            assert conn.execute("TABLE t").fetchall() == [(1, 3)]
            checks.assert_clean(conn, "t")


@pytest.mark.parametrize("newer", ["live", "dead"])
def test_an_old_version_of_the_future_is_kept(prefix, pg_major, newer):
    """A damaged xmin that no transaction has had yet counts as running. This version isn't dead, with any fate of the newer one."""

    def xmin_of_the_future(page: bytearray) -> None:
        at = tuple_at(page, 1)
        [infomask] = struct.unpack_from("<H", page, at + 20)
        struct.pack_into("<I", page, at, 5_000_000)
        struct.pack_into("<H", page, at + 20, infomask & ~0x0300)

    with damageable(prefix, pg_major) as cluster:
        make_links(cluster, ["UPDATE t SET n = 1"], "DELETE FROM t WHERE id = 1; COMMIT" if newer == "dead" else "COMMIT")
        damage(cluster, cluster.connect(TEMPLATE), ("t",), 0, xmin_of_the_future)
        with cluster.connect(TEMPLATE) as conn:
            full(conn, "t")
            assert versions(conn, "t") == (3 if newer == "dead" else 4)
            assert sorted(conn.execute("TABLE t")) == [(id, 1) for id in (1, 2) if newer == "live" or id == 2]
            conn.execute("COMMIT PREPARED 'old'")


def peak_memory(cluster, conn) -> int:
    """Return how much memory a session's process has had at most, in kB, shared memory included."""
    with open(f"/proc/{conn.info.backend_pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmPeak"))


def test_links_take_no_more_memory_than_they_may(cluster, db, conn):
    """Neither do those of rows that were updated twice, nor those that are found to be dead."""
    conn.execute("CREATE TABLE t (id int, n int, note text, big text)")
    conn.execute("INSERT INTO t SELECT i, 0, repeat('v', 500) FROM generate_series(1, 60000) i")
    with cluster.snapshot(db) as reader:
        seen = content(conn, "t")
        with rows_deleted_by_an_older_transaction(
            cluster, db, conn, "UPDATE t SET n = n + 1", "DELETE FROM t WHERE id % 3 = 0"
        ):
            conn.execute("UPDATE t SET n = n + 1 WHERE id % 2 = 0")
            last = content(conn, "t")
            conn.execute("SET maintenance_work_mem = '1MB'")
            before = peak_memory(cluster, conn)
            temp = "SELECT pg_stat_force_next_flush(), temp_bytes FROM pg_stat_database WHERE datname = current_database()"
            conn.execute(temp)
            [(_, temp_before)] = conn.execute(temp).fetchall()
            full(conn, "t")
            # the pages of a run, and what the process would have taken for any VACUUM FULL
            assert peak_memory(cluster, conn) - before < 20_000
            conn.execute(temp)
            [(_, temp_after)] = conn.execute(temp).fetchall()
            assert temp_after > temp_before
            assert content(conn, "t") == last
            assert content(reader, "t") == seen
            chains = physical_chains(conn)
            assert len(chains) == 60_000 + 20_000 and all(sound for (sound,) in chains)
    # and now half of the chains are dead
    with rows_deleted_by_an_older_transaction(
        cluster, db, conn, "UPDATE t SET n = n + 1", "DELETE FROM t WHERE id % 2 = 0"
    ):
        last = content(conn, "t")
        full(conn, "t")
        assert content(conn, "t") == last and versions(conn, "t") == 40_000
    full(conn, "t")
    assert content(conn, "t") == last and versions(conn, "t") == 20_000
    checks.assert_clean(conn, "t")


MAKE_TOO_BIG = """
    CREATE TABLE {name} (id int PRIMARY KEY, body text STORAGE MAIN, big text STORAGE EXTERNAL);
    INSERT INTO {name}
    SELECT i, CASE WHEN i % 3 > 0 THEN (SELECT string_agg(chr(33 + (random() * 90)::int), '') FROM generate_series(1, 8030) WHERE i > 0)
                   ELSE 'small' END,
           CASE WHEN i % 2 = 0 THEN repeat(md5(i::text), 200) END
    FROM generate_series(1, 60) i;
"""
GROW = "".join(f"ALTER TABLE {{name}} ADD c{i} bigint NOT NULL DEFAULT 7;" for i in range(20))


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_become_too_big_have_values_moved_out(cluster, db, conn, workers):
    """As in PostgreSQL's VACUUM FULL, also in versions that only an old snapshot sees, and are linked with others."""
    conn.execute("SET min_parallel_table_scan_size = 0")
    conn.execute(MAKE_TOO_BIG.format(name="t"))
    conn.execute(GROW.format(name="t"))
    conn.execute("CREATE INDEX ON t (md5(body))")
    before = content(conn, "t")
    with cluster.snapshot(db) as reader:
        conn.execute("UPDATE t SET c1 = 8, body = CASE WHEN id % 4 = 0 THEN body END WHERE id % 5 = 0")
        conn.execute("DELETE FROM t WHERE id % 7 = 0")
        after = content(conn, "t")
        said = full(conn, "t", workers)
        assert "values compressed or moved to the TOAST table in 40 rows" in said
        assert content(conn, "t") == after
        assert content(reader, "t") == before
        chains = physical_chains(conn)
        assert len(chains) == 12 and all(sound for (sound,) in chains)
    checks.assert_clean(conn, "t")
    full(conn, "t", workers)
    assert content(conn, "t") == after
    checks.assert_clean(conn, "t")


def test_rows_that_become_too_big_are_stored_as_core_stores_them(conn):
    """In tables as small, and where only the bitmap of nulls makes them too big, too; with the same error where nothing helps."""
    for name in ("ours", "core"):
        conn.execute("SELECT setseed(0.5)")
        conn.execute(MAKE_TOO_BIG.format(name=name))
        conn.execute(GROW.format(name=name))
        conn.execute("SELECT setseed(0.5)")
        conn.execute(f"CREATE TABLE nulls_{name} (id int, body text STORAGE MAIN)")
        conn.execute(f"""
            INSERT INTO nulls_{name}
            SELECT i, (SELECT string_agg(chr(33 + (random() * 90)::int), '') FROM generate_series(1, 8125) WHERE i > 0)
            FROM generate_series(1, 10) i
        """)
        for i in range(40):
            conn.execute(f"ALTER TABLE nulls_{name} ADD c{i} int")
        for table in (name, f"nulls_{name}"):
            before = content(conn, table)
            said = full(conn, table, core=name == "core")
            assert ("values compressed or moved to the TOAST table" in said) == (name == "ours")
            assert content(conn, table) == before
            checks.assert_clean(conn, table)
    for table in ("ours", "nulls_ours"):
        sizes = [
            conn.execute(
                "SELECT pg_relation_size(oid), pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = %s::regclass", (name,)
            ).fetchone()
            for name in (table, table.replace("ours", "core"))
        ]
        assert sizes[0] == sizes[1]

    conn.execute("CREATE TABLE hopeless (id int, body text STORAGE PLAIN, other text)")
    conn.execute("INSERT INTO hopeless SELECT i, repeat('x', 8050) FROM generate_series(1, 3) i")
    conn.execute(GROW.format(name="hopeless"))
    before = content(conn, "hopeless")
    errors = []
    for core in (True, False):
        with pytest.raises(psycopg.errors.ProgramLimitExceeded) as error:
            full(conn, "hopeless", core=core)
        errors.append((error.value.diag.message_primary, error.value.diag.message_hint))
    assert errors[0] == errors[1]
    assert content(conn, "hopeless") == before
    checks.assert_clean(conn, "hopeless")


@pytest.mark.parametrize("wal_level", ["minimal", "logical"])
def test_rows_that_become_too_big_survive_a_crash(new_cluster, wal_level):
    """Their values come to the new TOAST table another way than the others."""
    cluster = new_cluster(wal_level=wal_level, max_wal_senders=0 if wal_level == "minimal" else 5, fsync="on",
                          min_parallel_table_scan_size=0)
    with cluster.connect(TEMPLATE) as conn:
        conn.execute(MAKE_TOO_BIG.format(name="t"))
        conn.execute(GROW.format(name="t"))
        before = content(conn, "t")
        conn.execute("CHECKPOINT")
        full(conn, "t", 2)
    cluster.restart("crash")
    with cluster.connect(TEMPLATE) as conn:
        assert content(conn, "t") == before
        checks.assert_clean(conn, "t")


def test_the_team_does_not_time_out_among_itself(new_cluster):
    """lock_timeout is about locks that others hold."""
    cluster = new_cluster(min_parallel_table_scan_size=0, min_parallel_index_scan_size=0, shared_buffers="32MB",
                          log_lock_waits="on", deadlock_timeout="1ms")
    with cluster.connect(TEMPLATE) as conn, cluster.connect(TEMPLATE) as other:
        conn.execute("CREATE TABLE t (id int, v text)")
        conn.execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 400000) i")
        conn.execute("CREATE INDEX a ON t (id); CREATE INDEX b ON t (v); CREATE INDEX c ON t (v, id)")
        conn.execute("SET lock_timeout = '1ms'")
        for _ in range(5):
            full(conn, "t", 3)
        assert "on extension of relation" not in cluster.log

        other.execute("BEGIN")
        other.execute("LOCK TABLE t IN ACCESS SHARE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            full(conn, "t", 3)
        other.execute("COMMIT")
        checks.assert_clean(conn, "t")


@pytest.mark.parametrize("waits", ["heap-copy:leader", "heap-copy:any", "team-join:worker"])
def test_statement_timeout_ends_the_whole_statement(cluster, db, conn, waits):
    """Any process may be at work when the time is over; for workers that wait before their first phase, the leader waits in the end."""
    conn.execute("CREATE TABLE t AS SELECT i AS id, repeat('x', 200) AS v FROM generate_series(1, 20000) i")
    conn.execute("SET min_parallel_table_scan_size = 0")
    before = content(conn, "t")
    with cluster.connect(db) as other:
        other.execute("SELECT pg_advisory_lock(51966)")
        conn.execute(f"SET cyclone.debug_point = '{waits}:wait'; SET statement_timeout = '500ms'")
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            conn.execute("VACUUM (FULL, PARALLEL 2) t")
        conn.execute("RESET statement_timeout; RESET cyclone.debug_point")
    assert content(conn, "t") == before
    checks.assert_clean(conn, "t")
