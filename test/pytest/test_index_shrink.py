"""VACUUM (FULL INPLACE) builds bloated indexes anew, and no statement of others fails because of that."""

import re
import threading
import time

import psycopg
import pytest

from conftest import TEMPLATE, every_other, table_made_once
from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, PATIENCE_SECONDS, Background, Parked, messages_to, time_out_while_parked, wait_until
from cyclone_lab.shim import Disk
from test_rewrite import relation_files, run_script

INPLACE = "VACUUM (FULL INPLACE) t"
# Of a btree that we build ourselves: the table has been read; all pages are filled, but not all written; they are joined
BUILD_STEPS = ("shrink-scanned", "rewrite-btree-part", "rewrite-btree-join")
STEPS = ("shrink-create", "shrink-build", "shrink-built", "shrink-wait", "shrink-validate", "shrink-swap", "shrink-swapped", "shrink-drop")
ROWS = 10000
MAKE = f"""
    CREATE TABLE t (
        id int PRIMARY KEY, pos int CONSTRAINT t_pos UNIQUE DEFERRABLE INITIALLY DEFERRED, note text, a int[], p point
    ) WITH (autovacuum_enabled = off);
    INSERT INTO t SELECT i, i, md5(i::text), ARRAY[i % 7, i], point(i, i) FROM generate_series(1, {ROWS}) i;
    CREATE UNIQUE INDEX t_expr ON t (lower(note)) INCLUDE (id) WITH (fillfactor = 80);
    CREATE UNIQUE INDEX t_some ON t (pos DESC NULLS LAST, id) WHERE id % 3 > 0;
    CREATE INDEX t_hash ON t USING hash (note);
    CREATE INDEX t_gin ON t USING gin (a);
    CREATE INDEX t_gist ON t USING gist (p);
    ALTER TABLE t REPLICA IDENTITY USING INDEX t_pkey;
    ALTER TABLE t CLUSTER ON t_expr;
    COMMENT ON INDEX t_expr IS 'kept';
    ANALYZE t;
    DELETE FROM t WHERE id % 10 BETWEEN 1 AND 8
"""
INDEXES = ("t_pkey", "t_pos", "t_expr", "t_some", "t_hash", "t_gin", "t_gist")
INVALID = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT (indisvalid AND indisready AND indislive)"
COPIES = "SELECT indexrelid::regclass::text FROM pg_index WHERE indexrelid::regclass::text LIKE '%\\_cyclone%'"
# All that hangs on the indexes, but for their files
LOOKS = """
    SELECT i.*, c.relname, c.reloptions, pg_get_indexdef(c.oid), obj_description(c.oid, 'pg_class'),
        (SELECT array_agg(conname || pg_get_constraintdef(oid)) FROM pg_constraint WHERE conindid = c.oid),
        (SELECT array_agg(s.stanullfrac) FROM pg_statistic s WHERE s.starelid = c.oid)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = 't'::regclass ORDER BY c.relname
"""


def make(conn) -> list[tuple]:
    """Make table t with bloated indexes; return its contents."""
    run_script(conn, MAKE)
    return content(conn)


@pytest.fixture
def no_cleaner(conn, db):
    """No worker drops a copy that is left over, as it fails when it has begun, and the next one comes soon."""
    conn.execute(f"ALTER DATABASE {db} SET cyclone.debug_point = 'copy-cleaner:worker:error'")
    conn.execute(f"ALTER DATABASE {db} SET cyclone.debug_cleaner_wait = 1000")


def content(conn) -> list[tuple]:
    return conn.execute("SELECT id, pos, note, a, p::text FROM t ORDER BY id").fetchall()


made, template, table = table_made_once(lambda request: request.getfixturevalue("cluster"), make)


def sizes(conn) -> dict[str, int]:
    return {name: conn.execute("SELECT pg_relation_size(%s::regclass)", (name,)).fetchone()[0] for name in INDEXES}


def main_files(cluster, conn) -> set[str]:
    """Return the relation files of the connection's database without their maps, which come and go."""
    return {name for name in relation_files(cluster, conn) if "_" not in name}


def leave_a_copy(cluster, db, conn, step: str) -> None:
    """Have a FULL INPLACE that is at this step terminated."""
    with Parked(cluster, db, f"{step}:leader", 1, INPLACE) as vacuum:
        conn.execute("SELECT pg_terminate_backend(%s)", (vacuum.pid,))
        vacuum.wait()


def assert_sound(conn) -> None:
    """Nothing is left over, the table is clean, and each index leads to each row, unique ones to just one."""
    assert conn.execute(INVALID).fetchall() == []
    assert conn.execute(COPIES).fetchall() == []
    conn.execute("VACUUM (INDEX_CLEANUP on) t")
    checks.assert_clean(conn, "t")
    sizes(conn)  # which fails if one is missing
    rows = content(conn)
    with conn.transaction():
        conn.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = on")
        for probe in (
            "SELECT count(*) FROM t WHERE id > 0", "SELECT count(*) FROM t WHERE pos > -1000000000", "SELECT count(*) FROM t WHERE lower(note) > ''",
            "SELECT count(*) FROM t WHERE a && ARRAY[0,1,2,3,4,5,6]", "SELECT count(*) FROM t WHERE p <@ box '(-10,-10,10000000,10000000)'",
        ):  # fmt: skip
            assert "Seq Scan" not in str(conn.execute(f"EXPLAIN {probe}").fetchall())
            assert conn.execute(probe).fetchone() == (len(rows),), probe


def test_what_hangs_on_an_index_stays(conn, table):
    """Its file changes, and its size; nothing else, and it goes on to enforce what it did."""
    before, looks = sizes(conn), conn.execute(LOOKS).fetchall()
    files = {name: conn.execute("SELECT pg_relation_filenode(%s::regclass)", (name,)).fetchone() for name in INDEXES}
    conn.execute(INPLACE)
    assert conn.execute(LOOKS).fetchall() == looks
    for name, size in sizes(conn).items():
        assert size < 0.8 * before[name], name
        assert conn.execute("SELECT pg_relation_filenode(%s::regclass)", (name,)).fetchone() != files[name]
    assert content(conn) == table
    for duplicate in ("(10, 1, '', NULL, NULL)", "(1, 10, '', NULL, NULL)", "(1, 1, (SELECT note FROM t WHERE id = 10), NULL, NULL)"):
        with pytest.raises(psycopg.errors.UniqueViolation):
            conn.execute(f"INSERT INTO t VALUES {duplicate}")
    assert_sound(conn)


def swap_positions(conn) -> None:
    """Two rows change a deferred key with each other: for a moment there are duplicates."""
    conn.execute("UPDATE t SET pos = 30 - pos WHERE id IN (10, 20)")


def insert_or_update(conn) -> None:
    """Several clients do so with the same keys at a time, in the test of them."""
    conn.execute("INSERT INTO t VALUES (10, 1000010, 'x') ON CONFLICT (id) DO UPDATE SET note = t.note || 'x'")


@every_other("step", STEPS[1:-1] + BUILD_STEPS)
def test_others_write_as_ever(cluster, db, conn, table, step):
    """At each of its steps: deferred constraints with temporary duplicates, upserts by each key, and errors that are deserved."""
    with Parked(cluster, db, f"{step}:leader", 1, INPLACE, settings={"cyclone.index_wait": "20s"}) as vacuum:
        if step == "shrink-swapped":  # the table is locked
            vacuum.finish()
        with cluster.connect(db) as other:
            swap_positions(other)
            other.execute("BEGIN; UPDATE t SET pos = 20 WHERE id = 20; UPDATE t SET pos = 10 WHERE id = 10; COMMIT")
            insert_or_update(other)
            other.execute("INSERT INTO t VALUES (10, 10, 'y') ON CONFLICT ON CONSTRAINT t_pkey DO NOTHING")
            other.execute("INSERT INTO t SELECT 5, 5, note FROM t WHERE id = 20 ON CONFLICT (lower(note)) DO UPDATE SET a = '{1}'")
            other.execute("DELETE FROM t WHERE id = 30; INSERT INTO t VALUES (30, 30, md5('30'), '{1}', point(1, 1))")
            with pytest.raises(psycopg.errors.UniqueViolation):
                other.execute("INSERT INTO t VALUES (10, 1, 'z')")
            with pytest.raises(psycopg.errors.UniqueViolation):
                other.execute("UPDATE t SET pos = 40 WHERE id = 50")
            expected = content(other)
    assert vacuum.error is None
    conn.execute("UPDATE t SET a = '{0}', p = point(1, 1) WHERE a IS NULL OR p IS NULL")
    assert [row[:3] for row in content(conn)] == [row[:3] for row in expected]
    assert_sound(conn)


@every_other(
    "statement, step",
    ["ANALYZE t", "ALTER TABLE t ADD COLUMN more int", "ALTER TABLE t ALTER COLUMN id TYPE bigint", "LOCK TABLE t", "CREATE INDEX ON t (note)"],
    ["shrink-wait", "shrink-swap"],
)
def test_a_transaction_that_used_the_table_may_lock_it(cluster, db, conn, table, step, statement):
    """It would be a deadlock if it was waited for in a queue; here the index is left as it is, and tried once more."""
    with cluster.connect(db) as other:
        other.execute("SET deadlock_timeout = '50ms'; BEGIN; INSERT INTO t VALUES (1, 1, 'mine', '{0}', point(1, 1))")
        with Parked(cluster, db, f"{step}:leader", 1, INPLACE) if step == "shrink-wait" else late(cluster, db, other) as vacuum:
            vacuum.release()
            other.execute(statement)
            other.execute("COMMIT")
            vacuum.finish()
    assert len(content(conn)) == len(table) + 1
    assert_sound(conn)


def late(cluster, db, other) -> Parked:
    """A VACUUM at the swap, and `other` in a transaction that has written meanwhile."""
    other.execute("COMMIT; DELETE FROM t WHERE id = 1")
    vacuum = Parked(cluster, db, "shrink-swap:leader", 1, INPLACE)
    other.execute("BEGIN; INSERT INTO t VALUES (1, 1, 'mine', '{0}', point(1, 1))")
    return vacuum


@pytest.mark.parametrize("how", ["LOCK TABLE t IN ROW EXCLUSIVE MODE", "SELECT 1", "prepared"])
def test_who_stays_is_waited_for_no_longer_than_that(cluster, db, conn, table, how):
    """An idle transaction that may write, one that has an old snapshot only, and a prepared one; each is named."""
    before = sizes(conn)
    with cluster.connect(db) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("INSERT INTO t VALUES (1, 1, 'mine', '{0}', point(1, 1)); PREPARE TRANSACTION 'p'" if how == "prepared" else how)
        messages = messages_to(conn)
        conn.execute("SET cyclone.index_wait = '100ms'")
        conn.execute(INPLACE)
        name = "a prepared transaction" if how == "prepared" else f"the transaction of process {other.info.backend_pid}"
        assert any(f"stays bloated because of {name}" in message for message in messages), messages
        assert sizes(conn)["t_pos"] >= before["t_pos"]
        other.execute("ROLLBACK PREPARED 'p'" if how == "prepared" else "COMMIT")
    conn.execute("RESET cyclone.index_wait")
    conn.execute(INPLACE)
    assert sizes(conn)["t_pos"] < 0.8 * before["t_pos"]
    assert content(conn) == table
    assert_sound(conn)


@pytest.mark.parametrize("how", ["prepared", "untracked"])
def test_who_may_end_in_time_is_waited_for(cluster, db, conn, table, how):
    """It isn't known for how long a prepared transaction has been running, nor one of a session that tells nobody."""
    before = sizes(conn)
    with cluster.connect(db) as other:
        other.execute("SET track_activities = off")
        other.execute("BEGIN; INSERT INTO t VALUES (1, 1, 'mine', '{0}', point(1, 1))")
        if how == "prepared":
            other.execute("PREPARE TRANSACTION 'p'")
        with Parked(cluster, db, "shrink-wait:leader", 1, INPLACE) as vacuum:
            other.execute("ROLLBACK PREPARED 'p'" if how == "prepared" else "ROLLBACK")
    vacuum.finish()
    assert not any("bloated" in message for message in vacuum.messages), vacuum.messages
    assert sizes(conn)["t_pos"] < 0.8 * before["t_pos"] and content(conn) == table
    assert_sound(conn)


def test_what_was_left_behind_is_tried_once_more(cluster, db, conn, table):
    """When all other indexes have been built anew: who was in the way may have ended."""
    before = sizes(conn)
    with cluster.connect(db) as other:
        with Parked(cluster, db, "shrink-create:leader", 1, INPLACE) as vacuum:
            other.execute("BEGIN; ALTER INDEX t_pkey RENAME TO t_other")  # which takes a lock on the index alone
            vacuum.step()
            other.execute("ROLLBACK")
    vacuum.finish()
    assert vacuum.messages == []
    assert sizes(conn)["t_pkey"] < 0.8 * before["t_pkey"] and content(conn) == table
    assert_sound(conn)


def test_a_copy_that_was_read_while_the_server_wrote_it(cluster, db, conn):
    """Somebody finds zeroes where the server hasn't yet written: not even he who writes to the table finds them later."""
    run_script(
        conn,
        "CREATE TABLE t (id int) WITH (autovacuum_enabled = off); INSERT INTO t SELECT i FROM generate_series(1, 90000) i;"
        "CREATE FUNCTION cmp(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT pg_catalog.btint4cmp($1, $2)';"
        "CREATE OPERATOR CLASS odd_ops FOR TYPE int USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,"
        " FUNCTION 1 cmp(int, int); CREATE INDEX t_x ON t (id odd_ops); DELETE FROM t WHERE id % 3 <> 0; VACUUM t;"
        "CREATE SEQUENCE peeks",
    )
    conn.execute(
        "CREATE OR REPLACE FUNCTION cmp(int, int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN"
        " IF $1 % 100 = 0 AND pg_catalog.pg_relation_size(pg_catalog.to_regclass('public.t_x_cyclone')) > 0 THEN"
        "  PERFORM pg_catalog.setval('public.peeks', 2) FROM public.get_raw_page('public.t_x_cyclone', 0) page"
        "   WHERE page = pg_catalog.decode(pg_catalog.repeat('00', 8192), 'hex'); END IF;"
        " RETURN pg_catalog.btint4cmp($1, $2); END $$"
    )
    before = conn.execute("SELECT pg_relation_size('t_x')").fetchone()[0]
    conn.execute("SET maintenance_work_mem = '1MB'")
    conn.execute(INPLACE)
    assert conn.execute("SELECT last_value FROM peeks").fetchone() == (2,), "nobody has seen zeroes"
    conn.execute("INSERT INTO t SELECT i FROM generate_series(1, 100) i")
    assert conn.execute("SELECT pg_relation_size('t_x')").fetchone()[0] < 0.8 * before
    conn.execute("SELECT bt_index_check('t_x', true)")
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_it_is_read_committed_whatever_the_default(cluster, db, conn, table, isolation):
    """No snapshot is held while a btree is written, and no serializable transaction is in conflict with the builds."""
    with Parked(cluster, db, "shrink-scanned:leader", 1, INPLACE, {"default_transaction_isolation": isolation}) as vacuum:
        assert conn.execute("SELECT backend_xmin FROM pg_stat_activity WHERE pid = %s", (vacuum.pid,)).fetchone() == (None,)
        held = "SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid = %s"
        assert conn.execute(held, (vacuum.pid,)).fetchone() == (0,)
    vacuum.finish()
    assert content(conn) == table
    assert_sound(conn)


def test_progress_says_who_is_waited_for(cluster, db, conn, table):
    with Parked(cluster, db, "shrink-validate:leader", 1, INPLACE) as vacuum, cluster.snapshot(db) as other:
        vacuum.release()
        waiting = "SELECT current_locker_pid FROM pg_stat_progress_create_index WHERE relid = 't'::regclass"
        wait_until(lambda: conn.execute(waiting).fetchall() == [(other.info.backend_pid,)], "the wait for the snapshot")
        assert conn.execute("SELECT phase FROM cyclone.progress WHERE relation = 't'::regclass").fetchall() == [("waiting for other transactions",)]
        activity = "SELECT DISTINCT wait_event FROM pg_stat_activity WHERE pid = %s AND wait_event IS NOT NULL"
        wait_until(lambda: conn.execute(activity, (vacuum.pid,)).fetchall() == [("CycloneOtherTransactions",)], "the wait event")
        other.execute("COMMIT")
        vacuum.finish()
    assert_sound(conn)


def test_an_old_snapshot_that_goes_from_one_to_another_is_waited_for(cluster, db, conn, table):
    """A later transaction may get a snapshot from one that is waited for, and needs entries that the copy lacks."""
    locker = "SELECT current_locker_pid FROM pg_stat_progress_create_index WHERE relid = 't'::regclass"
    with cluster.connect(db) as first, cluster.connect(db) as second:
        first.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        [(snapshot,)] = first.execute("SELECT pg_export_snapshot()")
        conn.execute("DELETE FROM t WHERE id = 10")
        with Parked(cluster, db, "shrink-validate:leader", 1, INPLACE, settings={"cyclone.debug_horizon_wait": 100}) as vacuum:
            vacuum.release()
            wait_until(lambda: conn.execute(locker).fetchall() == [(first.info.backend_pid,)], "the wait for the first one")
            second.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{snapshot}'")
            first.execute("COMMIT")
            wait_until(lambda: not vacuum.running or conn.execute(locker).fetchall() == [(second.info.backend_pid,)], "the wait for the second one")
            second.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
            assert "t_pkey" in str(second.execute("EXPLAIN SELECT id FROM t WHERE id = 10").fetchall())
            assert second.execute("SELECT id FROM t WHERE id = 10").fetchall() == [(10,)]
            second.execute("COMMIT")
            vacuum.finish()
    assert_sound(conn)


def test_a_standbys_new_snapshots_are_in_nobodys_way(new_cluster):
    """Those that are taken when the copy has been validated: what it lacks had been deleted before."""
    primary = new_cluster()
    with primary.connect(TEMPLATE) as conn, primary.standby({"max_standby_streaming_delay": 0}).start() as standby:
        run_script(conn, MAKE)
        conn.execute("VACUUM (FULL INPLACE, INDEX_CLEANUP off) t")
        points = "shrink-validate:leader:wait shrink-swap:leader"
        with Parked(primary, TEMPLATE, points, 1, INPLACE) as vacuum, primary.snapshot(TEMPLATE) as holder:
            swap = threading.Thread(target=vacuum.step, daemon=True)
            swap.start()
            locker = "SELECT pid FROM pg_stat_progress_create_index WHERE current_locker_pid = %s"
            wait_until(lambda: conn.execute(locker, (holder.info.backend_pid,)).rowcount, "the wait for the holder")
            standby.wait_for_replay(primary)
            with standby.snapshot(TEMPLATE) as reader:
                conn.execute("SELECT pg_current_xact_id()")
                holder.execute("COMMIT")
                swap.join(PATIENCE_SECONDS)
                conn.execute("CREATE TABLE later ()")
                standby.wait_for_replay(primary)
                reader.execute("SELECT 1; COMMIT")
            vacuum.finish()
        assert_sound(conn)


def test_tries_to_lock_the_table_take_no_xids(cluster, db, conn, table):
    """Not as long as another session has it: there may be many tries."""
    next_xid = "SELECT pg_current_xact_id()::text::int"
    conn.execute("VACUUM (FULL INPLACE, INDEX_CLEANUP off) t")
    with cluster.connect(db) as reader:
        with Parked(cluster, db, "shrink-swap:leader", 1, INPLACE, settings={"cyclone.index_wait": "2s"}) as vacuum:
            reader.execute("BEGIN; LOCK TABLE t IN ACCESS SHARE MODE")
            [(before,)] = conn.execute(next_xid)
            vacuum.finish()
        [(after,)] = conn.execute(next_xid)
        reader.execute("COMMIT")
    assert any("stays bloated because of" in message for message in vacuum.messages), vacuum.messages
    assert after - before <= 8  # this one, and what it takes to make and to drop the copy
    conn.execute(INPLACE)
    assert_sound(conn)


@pytest.mark.parametrize("step", ["shrink-wait", "shrink-validate", "shrink-swap"])
def test_what_a_killed_session_leaves_goes_with_the_next_run(cluster, db, conn, table, no_cleaner, step):
    """It bothers nobody meanwhile."""
    leave_a_copy(cluster, db, conn, step)
    assert conn.execute(INVALID).fetchall() == [("t_pkey_cyclone",)]
    swap_positions(conn)
    swap_positions(conn)
    insert_or_update(conn)
    conn.execute("UPDATE t SET note = md5('10') WHERE id = 10")
    conn.execute(INPLACE)
    assert content(conn) == table
    assert_sound(conn)


@pytest.mark.parametrize("step", ["shrink-build", "shrink-wait", "shrink-drop"])
def test_what_a_killed_session_leaves_is_dropped_by_a_worker(cluster, db, conn, table, step):
    """Whether others maintain it already or not, and while they use the table."""
    point = "shrink-validate:leader:error shrink-drop:leader" if step == "shrink-drop" else f"{step}:leader"
    with Parked(cluster, db, point, 1, INPLACE) as vacuum:
        conn.execute("SELECT pg_terminate_backend(%s)", (vacuum.pid,))
        vacuum.wait()
    insert_or_update(conn)
    wait_until(lambda: conn.execute(INVALID).fetchall() == [], "the end of the copy")
    wait_until(lambda: conn.execute("SELECT FROM pg_stat_activity WHERE backend_type = 'pg_cyclone cleaner'").fetchall() == [], "that it ends")
    conn.execute("DELETE FROM t WHERE id = 10")
    conn.execute(INPLACE)
    assert_sound(conn)


@pytest.mark.parametrize("options", ["FULL INPLACE", "FULL INPLACE, SKIP_LOCKED"])
def test_what_has_the_table_when_a_copy_is_dropped_is_waited_for(cluster, db, conn, table, no_cleaner, options):
    """As at the begin of VACUUM, an autovacuum for instance; with SKIP_LOCKED it is not."""
    leave_a_copy(cluster, db, conn, "shrink-wait")
    with cluster.connect(db) as other:
        with Parked(cluster, db, "shrink-lock:leader", 1, f"VACUUM ({options}) t") as vacuum:
            other.execute("BEGIN; LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
            vacuum.release()
            if "SKIP_LOCKED" in options:
                assert isinstance(vacuum.wait(), psycopg.errors.LockNotAvailable)
            else:
                blocked = "SELECT %s = ANY (pg_blocking_pids(%s))"
                wait_until(lambda: conn.execute(blocked, (other.info.backend_pid, vacuum.pid)).fetchone()[0], "that it is blocked")
                other.execute("COMMIT")
                vacuum.finish()
                assert not any("left over" in message or "bloated" in message for message in vacuum.messages), vacuum.messages
        other.execute("COMMIT")
    if "SKIP_LOCKED" in options:
        conn.execute(INPLACE)
    assert max(sizes(conn).values()) < 100 * 8192
    assert content(conn) == table
    assert_sound(conn)


@pytest.mark.parametrize("end", ["cancel", "statement_timeout"])
def test_what_an_idle_transaction_keeps_is_not_maintained(cluster, db, conn, table, end):
    """A transaction that has used the table may have the copy open, so the copy is left over: nobody maintains it, and a worker drops it."""
    with cluster.connect(db) as idle:
        idle.execute("BEGIN; SELECT FROM t LIMIT 1")
        if end == "statement_timeout":
            time_out_while_parked(cluster, db, "shrink-wait:leader", 1, INPLACE)
        else:
            with Parked(cluster, db, "shrink-wait:leader", 1, INPLACE) as vacuum:
                conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
                assert isinstance(vacuum.wait(), psycopg.errors.QueryCanceled)
            assert any("an unfinished copy, is left over" in message for message in vacuum.messages), vacuum.messages
        assert conn.execute(f"{INVALID} AND NOT indislive").fetchall() == [("t_pkey_cyclone",)]
        insert_or_update(conn)
        [(advice,)] = conn.execute("SELECT array_to_string(advice, ' ') FROM cyclone.advice WHERE relation = 't'::regclass").fetchall()
        assert "Index t_pkey_cyclone was left by a VACUUM (FULL INPLACE) that ended early" in advice
        idle.execute("COMMIT")
        wait_until(lambda: conn.execute(INVALID).fetchall() == [], "the end of the copy")
    conn.execute(INPLACE)
    assert_sound(conn)


@pytest.mark.parametrize("end", ["in time", "too late"])
def test_one_worker_at_a_time_comes_several_times(cluster, db, conn, table, end):
    """It waits for a moment only.  What an idle transaction keeps for all of these times goes after the next VACUUM."""
    conn.execute(f"ALTER DATABASE {db} SET cyclone.debug_cleaner_wait = {500 if end == 'in time' else 100}")
    conn.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u SELECT generate_series(1, 30000); DELETE FROM u WHERE id % 10 > 0")
    [(oid,)] = conn.execute("SELECT oid FROM pg_database WHERE datname = current_database()")
    workers = "SELECT FROM pg_stat_activity WHERE backend_type = 'pg_cyclone cleaner'"
    visits = 3 if end == "in time" else 10

    def came(times: int) -> bool:
        assert len(conn.execute(workers).fetchall()) < 2
        return cluster.log.count(f"of database {oid}, an unfinished copy, is still left over") >= 2 * times

    def no_worker_comes() -> bool:
        for _ in range(20):
            if conn.execute(workers).fetchall():
                return False
            time.sleep(0.02)
        return True

    with cluster.connect(db) as idle:
        idle.execute("BEGIN; SELECT FROM t LIMIT 1; SELECT FROM u LIMIT 1")
        conn.execute("SET cyclone.index_wait = '10ms'")
        conn.execute(INPLACE)
        conn.execute("VACUUM (FULL INPLACE) u")
        wait_until(lambda: came(visits), "the workers")
        assert len(conn.execute(f"{INVALID} AND NOT indislive").fetchall()) == 2
        if end == "too late":
            wait_until(no_worker_comes, "the end of the workers")
    if end == "too late":
        assert len(conn.execute(COPIES).fetchall()) == 2
        conn.execute("VACUUM u")
    wait_until(lambda: conn.execute(COPIES).fetchall() == [], "the end of the copies")
    conn.execute("RESET cyclone.index_wait")
    conn.execute(INPLACE)
    assert_sound(conn)
    checks.assert_clean(conn, "u")


@pytest.mark.parametrize("step", ["rewrite-btree-join", "shrink-validate"])
def test_what_a_crash_leaves_is_dropped_after_the_next_vacuum(new_cluster, step):
    cluster = new_cluster()
    with cluster.connect(TEMPLATE) as conn:
        run_script(conn, MAKE)
        rows = content(conn)
    vacuum = Parked(cluster, TEMPLATE, f"{step}:leader", 1, INPLACE)
    cluster.crash()
    vacuum.release()
    vacuum.wait()
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("SET cyclone.enabled = off")
        conn.execute("VACUUM t")
        assert conn.execute(INVALID).fetchall() == [("t_pkey_cyclone",)]
        conn.execute("SET cyclone.enabled = on")
        conn.execute("VACUUM t")
        wait_until(lambda: conn.execute(INVALID).fetchall() == [], "the end of the copy")
        assert content(conn) == rows
        conn.execute(INPLACE)
        assert_sound(conn)


def test_no_worker_takes_a_copy_from_a_session_that_lives(cluster, db, conn, table):
    """Not even while the table isn't locked, as the session stands in the lock's queue."""
    conn.execute("VACUUM (FULL INPLACE, INDEX_CLEANUP off) t")
    with cluster.connect(db) as other:
        other.execute("BEGIN; LOCK TABLE t IN ACCESS SHARE MODE")
        with Parked(cluster, db, "shrink-queue:leader", 1, INPLACE, {"cyclone.debug_queue_age": 600_000}) as vacuum:
            conn.execute("VACUUM t")
            cleaner = "SELECT FROM pg_stat_activity WHERE backend_type = 'pg_cyclone cleaner' AND datname = current_database()"
            for _ in range(20):  # one would wait for two seconds whether the copy becomes nobody's
                assert conn.execute(cleaner).fetchall() == []
                time.sleep(0.05)
            assert conn.execute(f"{INVALID} AND NOT indislive").fetchall() == []
            other.execute("COMMIT")
    assert vacuum.error is None and not any("stays" in message for message in vacuum.messages), vacuum.messages
    assert_sound(conn)


def test_a_leftover_goes_with_its_index(cluster, db, conn, table, no_cleaner):
    leave_a_copy(cluster, db, conn, "shrink-validate")
    conn.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT; ALTER TABLE t DROP CONSTRAINT t_pkey")
    assert conn.execute(INVALID).fetchall() == []


@every_other("end, statement", ["FULL INPLACE", "a worker"], ["TRUNCATE t", "VACUUM (FULL) t", "REINDEX TABLE t"])
def test_a_leftover_that_was_built_anew_is_dropped_all_the_same(cluster, db, conn, table, no_cleaner, statement, end):
    """What builds all of a table's indexes anew makes each of them valid."""
    leave_a_copy(cluster, db, conn, "shrink-validate")
    conn.execute(statement)
    assert conn.execute(COPIES).fetchall() == [("t_pkey_cyclone",)]
    assert conn.execute(INVALID).fetchall() == []
    [(advice,)] = conn.execute("SELECT array_to_string(advice, ' ') FROM cyclone.advice WHERE relation = 't'::regclass").fetchall()
    assert "Index t_pkey_cyclone was left by a VACUUM (FULL INPLACE) that ended early" in advice
    if end == "FULL INPLACE":
        conn.execute(INPLACE)
    else:
        with cluster.connect(db) as reader:
            reader.execute("BEGIN; SELECT FROM t LIMIT 1")
            conn.execute(f"ALTER DATABASE {db} RESET cyclone.debug_point")
            conn.execute("VACUUM t")
            cleaner = "SELECT FROM pg_stat_activity WHERE backend_type = 'pg_cyclone cleaner' AND wait_event = 'CycloneOtherTransactions'"
            wait_until(lambda: conn.execute(cleaner).fetchall() != [], "that it waits for the reader")
            assert conn.execute(COPIES).fetchall() == [("t_pkey_cyclone",)]
        wait_until(lambda: conn.execute(COPIES).fetchall() == [], "the end of the copy")
    assert content(conn) == ([] if statement == "TRUNCATE t" else table)
    assert_sound(conn)


def test_a_leftover_that_others_make_use_of_stays(cluster, db, conn, table, no_cleaner):
    leave_a_copy(cluster, db, conn, "shrink-build")
    conn.execute("REINDEX TABLE t; ALTER TABLE t REPLICA IDENTITY USING INDEX t_pkey_cyclone")
    conn.execute("CREATE TABLE refers (id int REFERENCES t)")
    conn.execute(f"ALTER DATABASE {db} RESET cyclone.debug_point")
    conn.execute("VACUUM t")
    conn.execute(INPLACE)
    assert conn.execute("SELECT indisreplident FROM pg_index WHERE indexrelid = 't_pkey_cyclone'::regclass").fetchall() == [(True,)]
    conn.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT; DROP TABLE refers; ALTER INDEX t_pkey_cyclone RENAME TO kept")
    conn.execute(INPLACE)
    conn.execute("ALTER INDEX kept RENAME TO t_pkey_cyclone")  # or else it would stay
    conn.execute(INPLACE)
    assert content(conn) == table
    assert_sound(conn)


@pytest.mark.once
@pytest.mark.parametrize("meanwhile", ["DROP INDEX t_pkey_cyclone", "ALTER TABLE t REPLICA IDENTITY USING INDEX t_pkey_cyclone"])
def test_a_worker_says_that_it_drops_a_leftover_only_if_it_does(cluster, db, conn, table, no_cleaner, meanwhile):
    """In the moment before it has the table locked others drop the copy, or make use of it."""
    leave_a_copy(cluster, db, conn, "shrink-build")
    if meanwhile.startswith("ALTER"):
        conn.execute("REINDEX TABLE t")
    waits = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = %s)"
    log_position = len(cluster.log)
    with cluster.connect(db) as gate:
        gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        conn.execute(f"ALTER DATABASE {db} SET cyclone.debug_point = 'copy-drop:worker:wait'")
        conn.execute("VACUUM t")
        wait_until(lambda: conn.execute(waits, (DEBUG_POINT_LOCK, db)).fetchall(), "the worker before it locks the table")
        conn.execute(meanwhile)
    workers = "SELECT FROM pg_stat_activity WHERE backend_type = 'pg_cyclone cleaner' AND datname = %s"
    wait_until(lambda: conn.execute(workers, (db,)).fetchall() == [], "its end")
    assert 'dropping index "t_pkey_cyclone"' not in cluster.log[log_position:]
    if meanwhile.startswith("ALTER"):
        assert conn.execute(COPIES).fetchall() == [("t_pkey_cyclone",)]
        conn.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_pkey")
    conn.execute(INPLACE)
    assert content(conn) == table
    assert_sound(conn)


def test_an_index_that_others_change_meanwhile_is_left_to_them(cluster, db, conn, table):
    with Parked(cluster, db, "shrink-swap:leader", 1, INPLACE) as vacuum:
        conn.execute("ALTER INDEX t_pkey RENAME TO t_key")
        conn.execute("ALTER INDEX t_key SET TABLESPACE pg_default")
        vacuum.finish()
    conn.execute("ALTER INDEX t_key RENAME TO t_pkey")
    assert_sound(conn)


def test_an_index_that_is_changed_meanwhile_is_reported(cluster, db, conn, table):
    with Parked(cluster, db, "shrink-built:leader", 1, "VACUUM (FULL INPLACE, VERBOSE) t") as vacuum:
        conn.execute("ALTER INDEX t_pkey RENAME TO t_key")
        vacuum.finish()
    [report] = [text for text in vacuum.messages if text.startswith("finished compacting")]
    assert (found := re.search(r'index "t_pkey": (.+) before, (.+) after', report)) and found[2] != "0 bytes"
    [(size,)] = conn.execute(
        "SELECT sum(pg_relation_size(c.oid)) FROM pg_class c LEFT JOIN pg_index ON indexrelid = oid"
        " WHERE 't'::regclass IN (oid, indrelid) OR oid = (SELECT reltoastrelid FROM pg_class WHERE oid = 't'::regclass)"
    )
    [(noted,)] = conn.execute(
        "SELECT bytes_after FROM cyclone.history_details WHERE relation = 't'::regclass ORDER BY started DESC LIMIT 1"
    )
    assert noted == size
    conn.execute("ALTER INDEX t_key RENAME TO t_pkey")
    assert_sound(conn)


@pytest.mark.parametrize(("index", "row", "key"), [("t_expr", "(1, 1, md5('10'))", "lower(note)"), ("t_pkey", "(10, 1, 'new')", "id")])
def test_duplicates_are_found_and_other_indexes_made_small(conn, table, index, row, key):
    """As by REINDEX, whoever builds it; they come from damage, here from an index that was wrong for a while."""
    conn.execute("UPDATE pg_index SET indisready = false WHERE indexrelid = %s::regclass", (index,))
    conn.execute(f"INSERT INTO t VALUES {row}")
    conn.execute("UPDATE pg_index SET indisready = true WHERE indexrelid = %s::regclass", (index,))
    before = sizes(conn)
    with pytest.raises(psycopg.errors.UniqueViolation, match=f'could not create unique index "{index}_cyclone"') as error:
        conn.execute(INPLACE)
    assert error.value.diag.message_detail.startswith(f"Key ({key})=(") and error.value.diag.message_detail.endswith(") is duplicated.")
    assert error.value.diag.table_name == "t" and error.value.diag.constraint_name == f"{index}_cyclone"
    after = sizes(conn)
    assert after[index] == before[index]
    assert all(after[name] < 0.8 * before[name] for name in INDEXES if name != index)
    assert conn.execute(INVALID).fetchall() == []
    with conn.transaction():
        assert conn.execute("SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND mode LIKE 'Share%'").fetchone() == (0,)
    conn.execute("DELETE FROM t WHERE pos = 1")
    conn.execute(INPLACE)
    conn.execute(f"REINDEX INDEX {index}")
    assert content(conn) == table
    assert_sound(conn)


def test_without_disk_space_an_index_stays(conn):
    """Each would have 2 MB, and all but 1 MB of 100 MB is to stay free."""
    conn.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int UNIQUE) WITH (autovacuum_enabled = off);"
        "INSERT INTO t SELECT i, -i FROM generate_series(1, 200000) i; DELETE FROM t WHERE id % 2 = 0"
    )
    files = "SELECT pg_relation_filenode('t_pkey'), pg_relation_filenode('t_n_key')"
    before = conn.execute(files).fetchone()
    messages = messages_to(conn)
    conn.execute("SET cyclone.debug_free_disk_mb = 100; SET cyclone.min_free_disk = '99MB'")
    conn.execute(INPLACE)
    assert [message for message in messages if "disk space" in message] == [
        f'index "{name}" stays bloated, as disk space may not suffice to build it anew' for name in ("t_pkey", "t_n_key")
    ]
    assert conn.execute(files).fetchone() == before
    conn.execute("SET cyclone.min_free_disk = '10MB'")
    conn.execute(INPLACE)
    assert all(new != old for new, old in zip(conn.execute(files).fetchone(), before, strict=True))
    assert conn.execute(INVALID).fetchall() == []
    checks.assert_clean(conn, "t")


def test_no_queue_keeps_others_waiting(cluster, db, conn, table):
    """A session that reads all the time keeps the command from its lock, and never waits for it: NOWAIT succeeds."""
    conn.execute("VACUUM (FULL INPLACE, INDEX_CLEANUP off) t")
    with cluster.connect(db) as reader:
        with Parked(cluster, db, "shrink-swap:leader", 1, INPLACE, settings={"cyclone.index_wait": "500ms"}) as vacuum:
            reader.execute("BEGIN; LOCK TABLE t IN ACCESS SHARE MODE")
            vacuum.release()
            while vacuum.running:
                with cluster.connect(db) as other:
                    other.execute("BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE NOWAIT; COMMIT")
            vacuum.finish()
        assert any(f"because of the transaction of process {reader.info.backend_pid}" in message for message in vacuum.messages)
        reader.execute("COMMIT")
    conn.execute(INPLACE)
    assert_sound(conn)


def test_a_busy_table_is_no_prepared_transaction(cluster, db, conn):
    """Short transactions that end while they are looked at are not taken for such as stay."""
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, n int) WITH (autovacuum_enabled = off, fillfactor = 50)")
    messages = messages_to(conn)
    busy = "DO 'BEGIN FOR i IN 1..1000000 LOOP UPDATE t SET n = n + 1 WHERE id = 10; COMMIT; END LOOP; END'"
    users = [Background(cluster, db, busy) for _ in range(4)]
    for _ in range(8):
        conn.execute("INSERT INTO t SELECT i, 0 FROM generate_series(100, 20000) i; DELETE FROM t WHERE id >= 100")
        conn.execute("SET cyclone.index_wait = '5s'")
        conn.execute(INPLACE)
    for user in users:
        conn.execute("SELECT pg_cancel_backend(%s)", (user.pid,))
        user.wait()
    assert not any("prepared transaction" in message for message in messages), messages
    assert conn.execute(INVALID).fetchall() == []
    conn.execute("VACUUM (INDEX_CLEANUP on) t")
    checks.assert_clean(conn, "t")


def test_on_a_table_that_is_always_in_use_the_lock_is_queued_for(cluster, db, conn):
    """There is no moment at which nobody has it locked."""
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, n int) WITH (autovacuum_enabled = off, fillfactor = 50)")
    conn.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 20000) i; DELETE FROM t WHERE id > 100")
    busy = "BEGIN FOR i IN 1..1000000 LOOP UPDATE t SET n = n + 1 WHERE id = {}; PERFORM pg_sleep(0.005); COMMIT; END LOOP; END"
    users = [Background(cluster, db, f"DO '{busy.format(number)}'") for number in range(1, 9)]
    messages = messages_to(conn)
    conn.execute("SET cyclone.index_wait = '100s'; SET cyclone.debug_queue_age = 1000")  # on a slow machine they have it for long
    conn.execute(INPLACE)
    for user in users:
        assert user.running
        conn.execute("SELECT pg_cancel_backend(%s)", (user.pid,))
        user.wait()
    assert not any("bloated" in message for message in messages), messages
    assert conn.execute("SELECT pg_relation_size('t_pkey') < 10 * 8192").fetchone() == (True,)
    assert conn.execute(INVALID).fetchall() == []
    conn.execute("VACUUM (INDEX_CLEANUP on) t")
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize(
    "statement", ["ANALYZE t", "CREATE INDEX t_new ON t (note)", "ALTER TABLE t ALTER COLUMN id TYPE bigint", "TRUNCATE t", "DROP TABLE t"]
)
def test_in_the_queue_it_has_nothing_locked(cluster, db, conn, table, statement):
    """A session that is waited for may lock the table in any mode, and change it."""
    settings = {"cyclone.debug_queue_age": 600_000, "cyclone.index_wait": "30s"}
    conn.execute("VACUUM (FULL INPLACE, INDEX_CLEANUP off) t")
    with cluster.connect(db) as other:
        other.execute("BEGIN; LOCK TABLE t IN ACCESS SHARE MODE")
        with Parked(cluster, db, "shrink-queue:leader", 1, INPLACE, settings) as vacuum:
            other.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE NOWAIT")
            other.execute(statement)
            vacuum.release()
            other.execute("COMMIT")
    if statement == "DROP TABLE t":
        is_changed = any("other sessions have changed" in message for message in vacuum.messages)
        assert is_changed or "other sessions have locked or dropped the table meanwhile" in str(vacuum.error)
        return
    assert vacuum.error is None and not any("bloated" in message for message in vacuum.messages), vacuum.messages
    assert content(conn) == ([] if statement == "TRUNCATE t" else table)
    assert_sound(conn)


@pytest.mark.parametrize("wal_level", ["minimal", "replica"])
def test_a_crash_after_a_btree_is_built(new_cluster, wal_level):
    """Its file is older than the transaction that fills it, so it's in the WAL; a checkpoint may begin while it is written."""
    cluster = new_cluster(wal_level=wal_level, max_wal_senders=0)
    with cluster.connect(TEMPLATE) as conn:
        run_script(conn, MAKE)
        before, rows = sizes(conn), content(conn)
        with Parked(cluster, TEMPLATE, "rewrite-btree-part:leader", 1, INPLACE) as vacuum:
            conn.execute("CHECKPOINT")
        assert vacuum.error is None
    cluster.restart("crash")
    with cluster.connect(TEMPLATE) as conn:
        assert content(conn) == rows
        assert sizes(conn)["t_pkey"] < 0.8 * before["t_pkey"]
        assert_sound(conn)


def test_pages_that_are_read_while_they_are_written(cluster, db, conn, table):
    """By curious people, who find zeroes: these don't stay in shared buffers. No horizon is held back meanwhile."""
    with Parked(cluster, db, "rewrite-btree-join:leader", 1, INPLACE) as vacuum:
        [(copy, nblocks)] = conn.execute("SELECT oid::regclass::text, pg_relation_size(oid) / 8192 FROM pg_class WHERE relname LIKE '%_cyclone'").fetchall()
        pages = [conn.execute("SELECT get_raw_page(%s, %s)", (copy, block)).fetchone()[0] for block in range(nblocks)]
        assert sum(page == bytes(8192) for page in pages) == 3 < nblocks  # the metapage, and the first and the last leaf
        assert conn.execute("SELECT backend_xmin FROM pg_stat_activity WHERE pid = %s", (vacuum.pid,)).fetchone() == (None,)
    assert vacuum.error is None and not any("bloated" in message for message in vacuum.messages), vacuum.messages
    assert content(conn) == table
    assert_sound(conn)


def test_temporary_files_that_may_not_be_so_large(cluster, conn, table):
    """The error is as of any sort; nothing is left behind."""
    conn.execute("SELECT set_config(name, min_val, false) FROM pg_settings WHERE name = 'maintenance_work_mem'")
    conn.execute("INSERT INTO t (id) SELECT generate_series(100000, 200000); DELETE FROM t WHERE id >= 100000 AND id % 3 = 0")
    conn.execute("VACUUM t")
    files, rows = main_files(cluster, conn), content(conn)
    for limit in ("16kB", "1MB"):
        conn.execute(f"SET temp_file_limit = '{limit}'")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            conn.execute(INPLACE)
        assert conn.execute(INVALID).fetchall() == []
        assert main_files(cluster, conn) == files
        assert list((cluster.data / "base" / "pgsql_tmp").glob("*")) == []
        assert content(conn) == rows
    conn.execute("RESET temp_file_limit")
    conn.execute("DELETE FROM t WHERE id >= 100000")
    conn.execute(INPLACE)
    assert content(conn) == table
    assert_sound(conn)


@pytest.mark.parametrize(("where", "step", "after"), [
    ("pgsql_tmp", "shrink-build", 0), ("pgsql_tmp", "shrink-scanned", 0),  # runs of entries, and downlinks
    pytest.param("copy", "shrink-scanned", 0, marks=pytest.mark.full), ("copy", "shrink-scanned", 1), ("copy", "rewrite-btree-join", 0),
])  # fmt: skip
def test_a_disk_that_is_full(new_cluster, where, step, after):
    """Of temporary files or of the copy: the command says so, the index stays, nothing is left behind, and the next run makes it small."""
    cluster = new_cluster()
    cluster.stop()
    disk = Disk(cluster)
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE TABLE t (id int) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO t SELECT generate_series(1, 120000); CREATE INDEX t_id ON t (id); DELETE FROM t WHERE id % 3 = 0")
        conn.execute("VACUUM t")
        query = "SELECT count(*), sum(id) FROM t"
        rows, files = conn.execute(query).fetchone(), main_files(cluster, conn)
        size = conn.execute("SELECT pg_relation_size('t_id')").fetchone()[0]
        with Parked(cluster, TEMPLATE, f"{step}:leader", 1, INPLACE, {"maintenance_work_mem": "1MB"}) as vacuum:
            [(copy,)] = conn.execute("SELECT pg_relation_filepath(oid) FROM pg_class WHERE relname = 't_id_cyclone'").fetchall()
            with disk.fault([copy if where == "copy" else where], ["write", "allocate"], "ENOSPC", after=after) as seen:
                vacuum.release()
                assert isinstance(vacuum.wait(), psycopg.errors.DiskFull), vacuum.messages
                assert seen().failed == 1
        assert conn.execute(INVALID).fetchall() == []
        assert conn.execute(query).fetchone() == rows
        assert main_files(cluster, conn) == files
        assert list((cluster.data / "base" / "pgsql_tmp").glob("*")) == []
        checks.assert_clean(conn, "t")
        conn.execute(INPLACE)
        assert conn.execute("SELECT pg_relation_size('t_id')").fetchone()[0] < 0.8 * size
        assert conn.execute(query).fetchone() == rows
        checks.assert_clean(conn, "t")


def test_a_standby_replays_the_pages_of_a_copy(new_cluster):
    """And compares them, whether somebody had read them before they were written or not."""
    primary = new_cluster()
    with primary.connect(TEMPLATE) as conn, primary.standby({"max_standby_streaming_delay": -1}).start() as standby:
        run_script(conn, MAKE)
        before, rows = sizes(conn), content(conn)
        with Parked(primary, TEMPLATE, "rewrite-btree-join:leader", 1, INPLACE, {"wal_consistency_checking": "all"}) as vacuum:
            [(copy,)] = conn.execute("SELECT oid::regclass::text FROM pg_class WHERE relname LIKE '%_cyclone'").fetchall()
            conn.execute("SELECT get_raw_page(%s, b::int) FROM generate_series(0, pg_relation_size(%s) / 8192 - 1) b", (copy, copy))
        assert vacuum.error is None
        assert sizes(conn)["t_pkey"] < 0.8 * before["t_pkey"]
        standby.wait_for_replay(primary)
        with standby.connect(TEMPLATE) as reader:
            assert content(reader) == rows and sizes(reader) == sizes(conn)
            assert checks.btree_corruption(reader, "t") == []
        assert "inconsistent page" not in standby.log
        assert_sound(conn)


def test_constants_in_expressions_are_computed_as_the_owner(cluster, db, conn):
    """The server computes them when it looks at what an index is made of, even if that is not to be built by us."""
    conn.execute("CREATE ROLE careless_owner; GRANT CREATE ON SCHEMA public TO careless_owner")
    conn.execute("SET ROLE careless_owner")
    conn.execute("CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 20000) i")
    conn.execute("CREATE FUNCTION one(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'")
    conn.execute("CREATE INDEX t_one ON t ((id + one(1)))")
    conn.execute("DELETE FROM t WHERE id % 10 <> 0")
    conn.execute(
        "CREATE OR REPLACE FUNCTION one(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN"
        " IF current_user <> 'careless_owner' THEN RAISE EXCEPTION 'runs as %', current_user; END IF; RETURN 1; END $$"
    )
    conn.execute("RESET ROLE")
    [(before,)] = conn.execute("SELECT pg_relation_size('t_one')")
    with cluster.connect(db) as other:
        other.execute(INPLACE)
    assert conn.execute("SELECT pg_relation_size('t_one')").fetchone()[0] < before / 2


@pytest.mark.parametrize("kind", ["UNLOGGED", "TEMPORARY"])
def test_tables_of_other_kinds(conn, kind):
    run_script(conn, MAKE.replace("CREATE TABLE", f"CREATE {kind} TABLE", 1))
    before, rows = sizes(conn), content(conn)
    conn.execute(INPLACE)
    assert all(size < 0.8 * before[name] for name, size in sizes(conn).items())
    assert content(conn) == rows
    assert conn.execute(INVALID).fetchall() == []


def test_an_unlogged_table_is_empty_and_sound_after_a_crash(new_cluster):
    cluster = new_cluster()
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS amcheck")
        run_script(conn, MAKE.replace("CREATE TABLE", "CREATE UNLOGGED TABLE", 1))
        conn.execute(INPLACE)
    cluster.restart("crash")
    with cluster.connect() as conn:
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (0,)
        conn.execute("INSERT INTO t VALUES (1, 1, 'a', '{0}', point(1, 1))")
        for name in ("t_pkey", "t_pos", "t_expr", "t_some"):
            conn.execute("SELECT bt_index_check(%s::regclass, heapallindexed => true)", (name,))
