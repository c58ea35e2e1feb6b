"""VACUUM (FULL INPLACE) leaves the same rows in a smaller table, while others read and write it."""

import re
import time
from contextlib import suppress
from itertools import product
from types import NoneType

import psycopg
import pytest

from conftest import TEMPLATE, tables_made_once
from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, heard, messages_to, wait_until
from test_as_core import DB, MIXED_MAP, MULTIXACTS, SHAPES
from test_rewrite import REWRITE_SHAPES, base, content, run_script  # noqa: F401 (base is a fixture)

INPLACE = "VACUUM (FULL INPLACE) t"
MOVE = "VACUUM (FULL INPLACE, INDEX_CLEANUP off) t"
CLEAN = "VACUUM (INDEX_CLEANUP on) t"  # no dead items are left, so none may have an index entry
LONG_BATCHES = {"cyclone.debug_batch_ms": 1000}  # more than a page's rows, however slow the machine is
# A transaction waits for others before it begins
SAFE_SNAPSHOTS = {f"default_transaction_{name}": value for name, value in (("isolation", "serializable"), ("read_only", "on"), ("deferrable", "on"))}
# Half empty everywhere, with indexes of all kinds, values in the TOAST table, and a key that others refer to
MAKE = """
    CREATE TABLE t (
        id int PRIMARY KEY, n int, note text, big text, a int[], p point,
        UNIQUE (n) DEFERRABLE INITIALLY DEFERRED
    );
    ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
    INSERT INTO t SELECT i, -i, repeat(md5(i::text), 2), CASE WHEN i % 100 = 0 THEN repeat('big', 1000) END,
        ARRAY[i % 7, i % 11], point(i, i)
    FROM generate_series(1, 20000) i;
    CREATE INDEX t_note ON t (lower(note));
    CREATE INDEX t_some ON t (n, id) WHERE id % 3 = 0;
    CREATE INDEX t_hash ON t USING hash (note);
    CREATE INDEX t_gin ON t USING gin (a) WITH (gin_pending_list_limit = 64);
    CREATE INDEX t_gist ON t USING gist (p);
    CREATE INDEX t_brin ON t USING brin (id);
    DELETE FROM t WHERE id % 10 BETWEEN 1 AND 8;
    CREATE TABLE child (id int REFERENCES t);
    INSERT INTO child SELECT i FROM generate_series(10, 20000, 10) i;
    UPDATE t SET big = big WHERE id % 40 = 0
"""

MAKE_VALUES = """
    CREATE TABLE t (id int PRIMARY KEY, a text, b text, gone text);
    ALTER TABLE t ALTER b SET STORAGE EXTERNAL, ALTER gone SET STORAGE EXTERNAL;
    INSERT INTO t
    SELECT i, (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 150) j),
           CASE WHEN i % 2 = 0 THEN repeat(md5(i::text), 200) END, CASE WHEN i % 50 = 0 THEN repeat('gone', 1000) END
    FROM generate_series(1, 4000) i;
    ALTER TABLE t DROP COLUMN gone;
    UPDATE t SET a = a || '!' WHERE id % 10 = 5;
    DELETE FROM t WHERE id % 5 <> 0
"""


MADE = {"table": lambda conn: run_script(conn, MAKE), "values": lambda conn: run_script(conn, MAKE_VALUES)}
made, template = tables_made_once(MADE, lambda request: next((name for name in MADE if name in request.fixturenames), None))


@pytest.fixture
def table(conn):
    """Table t, with which the test's database was made; its contents."""
    return content(conn, "t")


def blocks(conn, relation: str = "t") -> int:
    return conn.execute("SELECT pg_relation_size(%s::regclass) / 8192", (relation,)).fetchone()[0]


def bytes_of(conn, relation: str) -> int:
    return conn.execute("SELECT pg_relation_size(%s::regclass)", (relation,)).fetchone()[0]


def assert_small(conn, rows: tuple) -> None:
    """Table t has become as small as MAKE's can be, and has these rows."""
    assert blocks(conn) < 100 and content(conn, "t") == rows
    checks.assert_clean(conn, "t")


def assert_sound(conn) -> None:
    """Nothing dead is left in table t when it has been vacuumed, and it is sound."""
    conn.execute(CLEAN)
    checks.assert_clean(conn, "t")


def assert_kept(conn, rows: tuple) -> None:
    """Table t has these rows, and is sound, wherever they are."""
    assert content(conn, "t") == rows
    assert_sound(conn)


def assert_indexes_agree(conn, table: str) -> None:
    """Each index leads to as many rows as there are."""
    [(rows,)] = conn.execute(f"SELECT count(*) FROM {table}")
    conn.execute("SET enable_seqscan = off; SET enable_indexonlyscan = off")
    for condition in ("id > -1", "n < 1", "lower(note) > ''", "a @> '{}'", "p <@ box '(-1,-1),(1e9,1e9)'"):
        assert conn.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone() == (rows,), condition
    conn.execute("RESET ALL")


def test_as_small_as_a_rewrite(conn, table):
    """Table and indexes are no larger than after VACUUM FULL, but for a few percent; and another run has nothing to do."""
    before = blocks(conn)
    conn.execute("CREATE TABLE twin (LIKE t INCLUDING ALL)")
    conn.execute("INSERT INTO twin SELECT * FROM t ORDER BY id")
    conn.execute("VACUUM (FULL) twin")
    conn.execute(INPLACE)
    assert content(conn, "t") == table
    assert blocks(conn) < before / 3
    assert blocks(conn) <= blocks(conn, "twin") * 1.05 + 1
    indexes = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 't'::regclass"
    for (index,) in conn.execute(indexes).fetchall():
        [(kind,)] = conn.execute("SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE c.oid = %s::regclass", (index,))
        if kind == "btree":
            twin = re.sub("^t_", "twin_", index).replace("twin_note", "twin_lower_idx").replace("twin_some", "twin_n_id_idx")
            assert bytes_of(conn, index) <= bytes_of(conn, twin) * 1.05, index
    checks.assert_clean(conn, "t")
    assert_indexes_agree(conn, "t")

    place = conn.execute("SELECT array_agg(ctid ORDER BY id) FROM t").fetchone()
    conn.execute(INPLACE)
    assert conn.execute("SELECT array_agg(ctid ORDER BY id) FROM t").fetchone() == place


def test_nothing_cached_is_used_after_the_server_has_forgotten_it(conn):
    """As soon as it may, where the server can be told to: in builds with assertions."""
    run_script(conn, MAKE_VALUES.replace("4000", "100"))
    rows = content(conn, "t")
    conn.execute("SELECT set_config(name, least(max_val::int, 1)::text, false) FROM pg_settings WHERE name = 'debug_discard_caches'")
    conn.execute(INPLACE)
    conn.execute("SET debug_discard_caches = 0")
    assert_kept(conn, rows)


@pytest.mark.parametrize("wal_level", [*(pytest.param(level, marks=pytest.mark.full) for level in ("replica", "logical")), "minimal"])
def test_tables_of_every_shape(base, wal_level):  # noqa: F811
    """The same rows, sound tables; none larger, and those that a rewrite makes much smaller much smaller."""
    shapes = [*SHAPES, *REWRITE_SHAPES, MIXED_MAP, MULTIXACTS]
    sizes, before = {}, {}
    for options in ("FULL", "FULL INPLACE, INDEX_CLEANUP off", "FULL INPLACE, PARALLEL 2"):
        with base.copy() as cluster:
            cluster.config.update(wal_level=wal_level, **({"max_wal_senders": 0} if wal_level == "minimal" else {}))
            cluster.start()
            with cluster.connect(DB) as conn:
                for shape in shapes:
                    before[shape] = before.get(shape) or content(conn, shape)
                    conn.execute(f"VACUUM ({options}) {shape}")
                    assert content(conn, shape) == before[shape], shape
                    sizes[options, shape] = sum(blocks(conn, heap) for heap in checks.heaps(conn, shape) if "toast" not in heap)
                if options != "FULL":  # that is test_rewrite.py's
                    for shape in shapes:
                        conn.execute(f"VACUUM (INDEX_CLEANUP on) {shape}")
                    checks.assert_clean(conn, *shapes)
            assert "PANIC" not in cluster.log and "TRAP" not in cluster.log
    for (options, shape), size in sizes.items():
        heaps_of_several = 4  # each of a partitioned table's may have a page more
        if shape in ("dropped_columns", "dropped_big"):
            continue  # a row that is moved keeps what it has of dropped columns
        # where rows were updated in place, redirecting line pointers remain
        assert size <= sizes["FULL", shape] * 1.1 + heaps_of_several, (options, shape)


def test_nothing_else_happens_to_the_rows(conn, table):
    """No trigger fires, no rule acts, and nothing counts as an update by a user."""
    conn.execute("CREATE TABLE fired (what text)")
    conn.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO fired VALUES (TG_OP); RETURN NEW; END'"
    )
    conn.execute("CREATE TRIGGER note BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note()")
    conn.execute("ALTER TABLE t ENABLE ALWAYS TRIGGER note")
    conn.execute("CREATE RULE nothing AS ON UPDATE TO t DO INSTEAD NOTHING")
    counted = "SELECT n_tup_ins, n_tup_upd, n_tup_del, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 't'"
    conn.execute("SELECT pg_stat_force_next_flush()")
    before = conn.execute(counted).fetchone()
    conn.execute(INPLACE)
    conn.execute("SELECT pg_stat_force_next_flush()")
    assert conn.execute(counted).fetchone() == before
    assert conn.execute("TABLE fired").fetchall() == []
    assert content(conn, "t") == table


@pytest.mark.once
def test_rows_in_use_stay_until_they_are_free(cluster, db, conn, table):
    """A row that is locked, changed or inserted in an open transaction is passed over, and nobody waits for it."""
    [(last,)] = conn.execute("SELECT max(id) FROM t")
    with cluster.connect(db) as other:
        for lock in ("FOR UPDATE", "FOR NO KEY UPDATE", "FOR SHARE", "FOR KEY SHARE"):
            other.execute("BEGIN")
            other.execute(f"SELECT FROM t WHERE id = {last} {lock}")
            said = Background(cluster, db, MOVE).finish()  # building indexes anew would wait for the lock
            assert any("in use by other transactions" in message for message in said), lock
            assert conn.execute(f"SELECT ctid >= '(100,0)' FROM t WHERE id = {last}").fetchone() == (True,), lock
            other.execute("ROLLBACK")
            assert content(conn, "t") == table
        # in a prepared transaction
        other.execute("BEGIN")
        other.execute(f"UPDATE t SET n = 0 WHERE id = {last}")
        other.execute("PREPARE TRANSACTION 'p'")
        conn.execute(MOVE)
        assert blocks(conn) > 100
        other.execute("ROLLBACK PREPARED 'p'")
    conn.execute(INPLACE)
    assert_small(conn, table)


@pytest.mark.once
def test_old_snapshots_see_their_rows(cluster, db, conn, table):
    """The table cannot be truncated while a snapshot needs the old versions; who holds it is said."""
    with cluster.snapshot(db, "TABLE child") as reader:
        assert any("dead row versions are still needed" in message for message in Background(cluster, db, MOVE).finish())
        assert content(reader, "t") == content(conn, "t") == table
        reader.execute("SET LOCAL enable_seqscan = off")
        assert content(reader, "t") == table
        details: list[str] = []
        conn.add_notice_handler(lambda message: details.append(str(message.message_detail)))
        conn.execute(MOVE)
        assert any(f"held back by session {reader.info.backend_pid} (user postgres, idle in transaction, since" in detail for detail in details), details
        with pytest.raises(psycopg.errors.SerializationFailure):
            reader.execute("UPDATE t SET n = 0 WHERE id = (SELECT max(id) FROM t)")
    conn.execute(INPLACE)
    assert_small(conn, table)


@pytest.mark.once
def test_rows_are_counted_right_where_others_held_them_back(cluster, db, conn):
    """The passes after the first skip pages, which are fuller than the table was."""
    conn.execute("CREATE TABLE t WITH (autovacuum_enabled = off) AS SELECT i AS id, md5(i::text) AS text, 0 AS n FROM generate_series(1, 20000) i")
    conn.execute("VACUUM t")
    conn.execute("UPDATE t SET n = n + 1")
    with cluster.connect(db) as holder:
        holder.execute("BEGIN; SELECT pg_current_xact_id()")
        conn.execute("UPDATE t SET n = n + 1")
        with Parked(cluster, db, "inplace-plan:leader", 1, INPLACE) as parked:
            parked.step()
            parked.step()  # rows have moved twice, and the next VACUUM has met the holder
            holder.execute("COMMIT")
        parked.finish()
    assert conn.execute("SELECT reltuples FROM pg_class WHERE relname = 't'").fetchone() == (20000,)
    conn.execute("CREATE TABLE twin AS SELECT i AS id, md5(i::text) AS text, 2 AS n FROM generate_series(1, 20000) i")
    assert blocks(conn) < 200 and content(conn, "t") == content(conn, "twin")
    checks.assert_clean(conn, "t")


def test_who_changes_a_row_that_moves_finds_it_again(cluster, db, conn, table):
    """Updates, deletes and locks wait for the batch, and follow the row to its new place; foreign keys don't wait at all."""
    keys = [key for (key,) in conn.execute("SELECT id FROM t WHERE id % 10 = 9 ORDER BY id DESC LIMIT 4")]
    with Parked(cluster, db, "inplace-batch:leader", 1, INPLACE, LONG_BATCHES) as parked:
        with cluster.connect(db) as child:
            modes = {mode for (mode,) in conn.execute("SELECT mode FROM pg_locks WHERE relation = 't'::regclass")}
            assert modes == {"ShareUpdateExclusiveLock", "RowExclusiveLock"}, "no more than a plain VACUUM's, and an update's"
            child.execute("SET lock_timeout = '10s'")
            child.execute(f"INSERT INTO child VALUES ({keys[0]})")
            child.execute("UPDATE t SET note = 'x' WHERE id = 10")
            child.execute("INSERT INTO t (id, n) VALUES (0, 0)")
            child.execute("SET lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                child.execute("ALTER TABLE t ADD COLUMN x int")
        waiting = [
            Background(cluster, db, f"UPDATE t SET note = 'changed' WHERE id = {keys[0]}"),
            Background(cluster, db, f"UPDATE t SET n = 1000000 WHERE id = {keys[1]}"),
            Background(cluster, db, f"DELETE FROM t WHERE id = {keys[2]}"),
            Background(cluster, db, f"BEGIN; SELECT FROM t WHERE id = {keys[3]} FOR UPDATE; COMMIT"),
            Background(cluster, db, f"INSERT INTO t (id, n) VALUES ({keys[3]}, 5)"),
        ]
        wait_until(
            lambda: conn.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'").fetchone()[0] >= 4,
            "four sessions that wait for the batch",
        )
    parked.finish()
    for session in waiting[:4]:
        session.finish()
    waiting[4].wait()
    assert isinstance(waiting[4].error, psycopg.errors.UniqueViolation)
    assert conn.execute(f"SELECT note FROM t WHERE id = {keys[0]}").fetchall() == [("changed",)]
    assert conn.execute(f"SELECT n FROM t WHERE id = {keys[1]}").fetchall() == [(1000000,)]
    assert conn.execute(f"SELECT n FROM t WHERE id = {keys[2]}").fetchall() == []
    assert content(conn, "t")[0] == table[0]  # one more and one less
    assert_sound(conn)


def test_serializable_transactions_stay_serializable(cluster, db, conn):
    """Two sessions each read what the other changes (write skew); rows move between reading and changing. One must fail."""
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, on_call boolean, filler text)")
    for round_ in range(8):
        run_script(
            conn,
            "TRUNCATE t; INSERT INTO t SELECT i, true, repeat('x', 500) FROM generate_series(1, 2000) i;"
            "DELETE FROM t WHERE id BETWEEN 1 AND 1900",
        )
        when = round_ % 4  # before any read, between the reads, after them, between the changes
        with cluster.connect(db) as one, cluster.connect(db) as two:
            failed = 0
            count = "SELECT count(*) FROM t WHERE on_call AND id IN (1999, 2000)"

            def compact(number: int) -> None:
                if number == when:
                    with cluster.connect(db) as other:
                        other.execute("SET lock_timeout = '20s'")
                        # old versions stay, as the two sessions need them; moving is what counts
                        other.execute("VACUUM (FULL INPLACE, INDEX_CLEANUP off) t")

            for session in (one, two):
                session.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
                session.execute("SET LOCAL enable_seqscan = %s" % ("off" if round_ < 4 else "on"))
            def step(session, statement: str) -> None:
                nonlocal failed
                try:
                    session.execute(statement)
                except psycopg.errors.SerializationFailure:
                    failed += 1
                    session.execute("ROLLBACK")

            compact(0)
            step(one, count)
            compact(1)
            step(two, count)
            compact(2)
            step(one, "UPDATE t SET on_call = false WHERE id = 1999")
            compact(3)
            step(two, "UPDATE t SET on_call = false WHERE id = 2000")
            step(one, "COMMIT")
            step(two, "COMMIT")
        [(left,)] = conn.execute(count)
        assert failed >= 1 and left >= 1, f"write skew when rows move at {when}"
        assert_sound(conn)


def test_a_move_is_a_change_of_what_was_read(cluster, db, conn):
    """Write skew again, of two that know rows by their places alone: what tells is that the one read what was moved away."""
    run_script(
        conn,
        "CREATE TABLE t (id int PRIMARY KEY, on_call boolean, filler text);"
        "INSERT INTO t SELECT i, true, repeat('x', 500) FROM generate_series(1, 2000) i; DELETE FROM t WHERE id BETWEEN 2 AND 1900",
    )
    places = "SELECT array_agg(ctid::text ORDER BY id) FROM t WHERE id IN (1, 2000)"
    read = "SELECT count(*) FROM t WHERE on_call AND ctid = ANY (%s::text[]::tid[])"
    change = "UPDATE t SET on_call = false WHERE ctid = %s::tid"
    with cluster.connect(db) as one, cluster.connect(db) as two:
        one.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        [(before,)] = conn.execute(places)
        assert one.execute(read, (before,)).fetchone() == (2,)
        with cluster.connect(db) as other:
            other.execute(MOVE)
        [(after,)] = conn.execute(places)
        assert after[0] == before[0] and after[1] != before[1], "one of the two rows moves"
        two.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        assert two.execute(read, (after,)).fetchone() == (2,)
        failed = 0
        for session, place in ((two, after[1]), (one, before[0])):
            try:
                session.execute(change, (place,))
                session.execute("COMMIT")
            except psycopg.errors.SerializationFailure:
                failed += 1
                session.execute("ROLLBACK")
    assert failed == 1
    assert conn.execute("SELECT count(*) FROM t WHERE on_call AND id IN (1, 2000)").fetchone() == (1,)
    assert_sound(conn)


def test_a_foreign_key_is_checked_before_the_batch_is_audited(cluster, db, conn, table):
    """That locks a row's new version, too, as of any update that is under way."""
    keys = [key for (key,) in conn.execute("SELECT id FROM t WHERE id % 10 = 9 ORDER BY id DESC LIMIT 20")]
    with Parked(cluster, db, "inplace-audit:leader", 1, INPLACE, LONG_BATCHES) as parked:
        with cluster.connect(db) as child:
            child.execute("SET lock_timeout = '10s'")
            child.execute("INSERT INTO child SELECT unnest(%s::int[])", (keys,))
    parked.finish()
    assert conn.execute("SELECT failed_with FROM cyclone.autovacuum WHERE relid = 't'::regclass").fetchall() in ([], [(None,)])
    assert_kept(conn, table)


def batches(conn) -> list[set[int]]:
    """The ids of the rows that each transaction has put where they are."""
    return [set(ids) for (ids,) in conn.execute("SELECT array_agg(id) FROM t GROUP BY xmin").fetchall()]


# An index entry takes longer than a batch, if "test.slow" is on
SLOW = """
    CREATE FUNCTION slow(int) RETURNS text IMMUTABLE LANGUAGE sql
    AS $$ SELECT concat(CASE WHEN current_setting('test.slow', true) = 'on' THEN pg_sleep(0.01)::text END, $1) $$;
"""


def test_a_row_with_costly_entries_is_moved_alone(conn):
    """A batch moves only the rows that fill its time, by the speed of the rows before; the next one goes on in the same pages."""
    run_script(
        conn,
        SLOW
        + """
        CREATE TABLE t (id int, filler text);
        INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 400) i;
        CREATE INDEX t_slow ON t (slow(id));
        DELETE FROM t WHERE id % 4 <> 0;
        CREATE TABLE twin AS TABLE t;
        VACUUM (FULL) twin
        """,
    )
    before = content(conn, "t")
    place = dict(conn.execute("SELECT id, ctid FROM t").fetchall())
    conn.execute("SET test.slow = on")
    conn.execute(MOVE)
    conn.execute("RESET test.slow")
    moved = {id for id, ctid in conn.execute("SELECT id, ctid FROM t").fetchall() if place[id] != ctid}
    assert len(moved) > 60 and content(conn, "t") == before
    assert [ids for ids in batches(conn) if moved & ids and len(ids) > 1] == []
    # each page in front was filled, by as many batches as it took
    assert blocks(conn) == blocks(conn, "twin")
    assert_sound(conn)


@pytest.mark.parametrize("fastupdate", ["on", "off"])
def test_pending_lists_are_emptied_when_nobody_waits(cluster, db, conn, fastupdate):
    """Before a batch, and only where entries come into them; each batch is of one row here."""
    run_script(
        conn,
        SLOW
        + f"""
        CREATE TABLE t (id int, a int[]);
        INSERT INTO t SELECT i, array(SELECT i * j FROM generate_series(1, 50) j) FROM generate_series(1, 3000) i;
        CREATE INDEX t_gin ON t USING gin (a) WITH (gin_pending_list_limit = 64);
        CREATE INDEX t_slow ON t (slow(id));
        DELETE FROM t WHERE id <= 2940;
        VACUUM t;
        INSERT INTO t SELECT i, array(SELECT i * j FROM generate_series(1, 50) j) FROM generate_series(1, 20) i;
        ALTER INDEX t_gin SET (fastupdate = {fastupdate})
        """,
    )
    before = content(conn, "t")
    point = "inplace-lists:leader"
    if fastupdate == "off":
        said = Background(cluster, db, MOVE, {"cyclone.debug_point": f"{point}:notice"}).finish()
        assert not any("inplace-lists" in message for message in said)
    else:
        with Parked(cluster, db, point, 1, MOVE, {"test.slow": "on"}) as parked:
            for _ in range(3):
                assert len(conn.execute("SELECT FROM t FOR UPDATE NOWAIT").fetchall()) == 80
                parked.step()
        parked.finish()
    assert content(conn, "t") == before and blocks(conn) < 10
    conn.execute("SET enable_seqscan = off")
    for id in (1, 20, 2941, 3000):
        assert conn.execute("SELECT id FROM t WHERE a @> ARRAY[%s, %s]::int[]", (id, id * 49)).fetchall() == [(id,)]
    assert_sound(conn)


DEAD = "SELECT n_dead_tup, n_mod_since_analyze FROM pg_stat_all_tables WHERE relid = %s::regclass"


def counted(conn, relation: str = "t") -> tuple[int, int]:
    conn.execute("SELECT pg_stat_force_next_flush()")
    return conn.execute(DEAD, (relation,)).fetchone()


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_who_is_stopped_tells_what_is_dead(cluster, db, conn, table, how):
    """Autovacuum learns of each version that a stopped run leaves, and ANALYZE of each row that has moved."""
    counted(conn)
    conn.execute("VACUUM (ANALYZE) t")
    assert counted(conn) == (0, 0)
    place = dict(conn.execute("SELECT id, ctid FROM t").fetchall())
    with Parked(cluster, db, "inplace-batch:leader", 1, "VACUUM (FULL INPLACE, PROCESS_TOAST off) t") as parked:
        parked.step()
        conn.execute(f"SELECT {how}(%s)", (parked.pid,))
        parked.wait()
    # a session that ends tells all that it has not yet told, and only then it is gone
    alive = "SELECT FROM pg_stat_activity WHERE pid = %s"
    wait_until(lambda: not conn.execute(alive, (parked.pid,)).fetchall(), "the end of the session")
    moved = sum(place[id] != ctid for id, ctid in conn.execute("SELECT id, ctid FROM t").fetchall())
    dead, changed = counted(conn)
    assert 0 < moved <= changed <= dead
    conn.execute(INPLACE)
    assert content(conn, "t") == table
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("options", ["", ", PARALLEL 2"])
def test_a_run_that_ends_has_left_nothing_dead(conn, table, options):
    """But the statistics of columns are to be made anew, as rows are elsewhere."""
    counted(conn)
    conn.execute("VACUUM (ANALYZE) t")
    place = dict(conn.execute("SELECT id, ctid FROM t").fetchall())
    conn.execute(f"VACUUM (FULL INPLACE{options}) t")
    moved = sum(place[id] != ctid for id, ctid in conn.execute("SELECT id, ctid FROM t").fetchall())
    toast = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 't'::regclass").fetchone()[0]
    assert counted(conn)[0] == counted(conn, toast)[0] == 0
    assert 0 < moved <= counted(conn)[1]
    checks.assert_clean(conn, "t")


BUSY = "DO 'BEGIN LOOP PERFORM FROM t LIMIT 1; PERFORM pg_sleep(0.004); COMMIT; END LOOP; END'"


def test_a_table_that_is_used_all_the_time_becomes_smaller(cluster, db, conn, table):
    """Somebody has it locked at any moment, though nobody for long, so truncation must wait its turn."""
    users = [Background(cluster, db, BUSY) for _ in range(8)]
    conn.execute("SET cyclone.debug_queue_age = 1000")  # a slow machine's users have it for longer than it would queue behind
    # and for longer than one command waits; that nobody has it for a moment is not to be expected
    wait_until(lambda: conn.execute(MOVE) and blocks(conn) < 100, "a turn for truncation")
    assert all(user.running for user in users)
    assert content(conn, "t") == table
    for user in users:
        conn.execute("SELECT pg_cancel_backend(%s)", (user.pid,))
        user.wait()
    checks.assert_clean(conn, "t")


def test_nobody_is_refused_a_lock_while_somebody_stays(cluster, db, conn, table):
    """Behind a transaction that stays, as pg_dump's, truncation doesn't queue: a NOWAIT of others, as of pg_dump's helpers, succeeds."""
    with cluster.connect(db) as holder, cluster.connect(db) as other:
        holder.execute("BEGIN; LOCK TABLE t IN ACCESS SHARE MODE")
        vacuum = Background(cluster, db, MOVE)
        tries = 0
        while vacuum.running:
            other.execute("BEGIN; LOCK TABLE t IN ACCESS SHARE MODE NOWAIT; COMMIT")
            tries += 1
        vacuum.finish()
        assert tries > 10 and blocks(conn) > 100
        holder.execute("COMMIT")
    conn.execute(MOVE)
    assert_small(conn, table)


def test_new_rows_are_put_in_front(cluster, db, conn):
    """While rows move, there is room in front for those of others, and none in the tail."""
    conn.execute("CREATE TABLE t (id int, note text)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 50000) i")
    conn.execute("DELETE FROM t WHERE id % 5 > 0")
    pages = blocks(conn)
    conn.execute("VACUUM t")
    with cluster.snapshot(db):
        # what others change during the first VACUUM, a row of each page; it is seen by that snapshot for a while
        conn.execute("DELETE FROM t WHERE ctid IN (SELECT min(ctid) FROM t GROUP BY (ctid::text::point)[0])")
        vacuum = Parked(cluster, db, "inplace-batch:leader", 1, "VACUUM (FULL INPLACE) t")
    with vacuum:
        offered = [space for (space,) in conn.execute("SELECT avail FROM pg_freespace('t') ORDER BY blkno")]
        assert not any(offered[pages // 2 :]), "the tail is offered"
        [(last,)] = conn.execute("""
            WITH new AS (INSERT INTO t SELECT -i, repeat('y', 200) FROM generate_series(1, 500) i RETURNING ctid)
            SELECT max((ctid::text::point)[0]) FROM new
        """)
        assert last < pages / 2
        vacuum.finish()
    assert blocks(conn) < pages / 3
    assert conn.execute("SELECT count(*) FILTER (WHERE id > 0), count(*) FILTER (WHERE id < 0) FROM t").fetchone() == (
        10000 - pages, 500
    )  # fmt: skip
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("wait_event", ["relation", "VacuumTruncate"])
def test_it_can_be_stopped_while_it_waits_for_the_lock(cluster, db, conn, table, wait_event):
    """In the lock's queue and out of it. Neither lock nor transaction is left over, and no request is lost, even if it comes in
    the same moment as the end of waiting."""

    def waits(compaction) -> bool:
        query = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = %s"
        return conn.execute(query, (compaction.pid, wait_event)).fetchall() != []

    def cancel_while_it_waits(compaction) -> bool:
        with suppress(ProcessLookupError), compaction.paused():
            if waits(compaction):
                conn.execute("SELECT pg_cancel_backend(%s)", (compaction.pid,))
                time.sleep(0.05)  # longer than it would be in the queue
                return True
        return False

    settings = {"cyclone.debug_queue_age": 600_000} if wait_event == "relation" else {}  # or it would not queue behind this user
    with cluster.connect(db) as user:
        for _ in range(10):
            user.execute("ROLLBACK; BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE")
            compaction, cancelled = Background(cluster, db, MOVE, settings), False
            while not cancelled and compaction.running:
                wait_until(lambda: waits(compaction) or not compaction.running, "the attempt to truncate")
                cancelled = compaction.running and cancel_while_it_waits(compaction)
            assert isinstance(compaction.wait(), psycopg.errors.QueryCanceled if cancelled else NoneType)
            if cancelled:
                break
        assert cancelled
        held = conn.execute("SELECT DISTINCT pid FROM pg_locks WHERE relation = 't'::regclass").fetchall()
        assert held == [(user.info.backend_pid,)]
        assert blocks(conn) > 100
    assert conn.execute("SELECT FROM pg_stat_activity WHERE state LIKE '%aborted%'").fetchall() == []
    conn.execute(MOVE)
    assert_small(conn, table)


def test_who_waits_for_its_end_with_a_lock_of_his_own_is_no_deadlock(cluster, db, conn, table):
    """Truncation then doesn't wait for that lock, but tries again until the other has given up."""
    upgrade = "DO 'BEGIN LOCK TABLE t IN ROW EXCLUSIVE MODE; LOCK TABLE t IN SHARE MODE; END'"
    waiting = "SELECT FROM pg_locks WHERE relation = 't'::regclass AND mode = 'ShareLock' AND NOT granted"
    with Parked(cluster, db, "truncate:leader", 1, MOVE) as compaction:
        other = Background(cluster, db, upgrade, {"lock_timeout": "2s"})  # truncation tries for five
        wait_until(lambda: conn.execute(waiting).fetchall() != [], "the other's waiting")
        compaction.finish()
        assert isinstance(other.wait(), psycopg.errors.LockNotAvailable)
    assert_small(conn, table)


def test_who_waits_for_it_is_not_waited_for(cluster, db, conn, table):
    """A transaction that has used the table wants a lock that FULL INPLACE forbids, while that waits for its end."""
    waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'CycloneOtherTransactions'"
    with cluster.connect(db) as user:
        user.execute("BEGIN; SELECT pg_current_xact_id(); SELECT FROM t LIMIT 1")
        compaction = Background(cluster, db, MOVE, {"cyclone.debug_horizon_wait": 600_000})
        wait_until(lambda: conn.execute(waits, (compaction.pid,)).fetchall(), "the wait")
        user.execute("ALTER TABLE t ADD more int")
        compaction.finish()
        assert any("cannot be moved any more" in message for message in compaction.messages), compaction.messages
        user.execute("ROLLBACK")
    conn.execute(MOVE)
    assert_small(conn, table)


def test_no_safe_snapshot_is_waited_for_with_a_lock(cluster, db, conn, table):
    """A session may have set that its transactions wait for those of others before they begin. One of these may wait for the table:
    the server would not see that deadlock."""
    with Parked(cluster, db, "inplace-plan:leader", 1, INPLACE, SAFE_SNAPSHOTS) as compaction, cluster.connect(db) as other:
        other.execute("BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO child VALUES (NULL)")
        compaction.release()
        other.execute("LOCK TABLE t; COMMIT")
        compaction.finish()
    conn.execute(MOVE)  # the other one's snapshot needed the rows at their old places
    assert_small(conn, table)


@pytest.mark.parametrize("how", ["FOR SHARE", "UPDATE"])
def test_who_changes_a_hidden_page_before_a_crash(new_cluster, how):
    """After recovery the visibility map is what it was when the row was changed: its page isn't in it."""
    cluster = new_cluster()
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE TABLE t (id int, note text)")
        conn.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 50000) i")
        conn.execute("DELETE FROM t WHERE id % 5 > 0")
        conn.execute("VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) t")
        conn.execute("CHECKPOINT")
        [(row,)] = conn.execute("SELECT max(id) FROM t WHERE ctid < %s::text::tid", (f"({blocks(conn) * 2 // 3},0)",))
    with Parked(cluster, TEMPLATE, "inplace-pause:leader", 1, "VACUUM (FULL INPLACE) t") as vacuum:
        with cluster.connect(TEMPLATE) as conn:
            if how == "UPDATE":
                conn.execute("UPDATE t SET note = 'y' WHERE id = %s", (row,))
            else:
                conn.execute("SELECT FROM t WHERE id = %s FOR SHARE", (row,))
        cluster.crash()
        assert isinstance(vacuum.wait(), psycopg.OperationalError)
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        assert checks.visibility_map_errors(conn, "t") == []
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (10000,)
        conn.execute("VACUUM (FULL INPLACE) t")
        checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("fixture, ids", [("table", (9, 19999, 19989)), ("values", (5, 3990, 3980))])
def test_logical_decoding_hears_nothing(new_cluster, fixture, ids):
    """Moving rows and values is no change to subscribers; what users change before and after comes as ever."""
    cluster = new_cluster(wal_level="logical")
    text = "n = 1000001" if fixture == "table" else "a = a || '!'"
    with cluster.connect(TEMPLATE) as conn:
        MADE[fixture](conn)
        conn.execute("CREATE PUBLICATION p FOR TABLE t")
        conn.execute("SELECT pg_create_logical_replication_slot('decoded', 'test_decoding')")
        conn.execute("SELECT pg_create_logical_replication_slot('published', 'pgoutput')")
        conn.execute(f"UPDATE t SET {text} WHERE id = {ids[0]}")
        before = sum(blocks(conn, name) for name in ("t", toast_of(conn)))
        conn.execute(INPLACE)
        assert sum(blocks(conn, name) for name in ("t", toast_of(conn))) < before / 2
        conn.execute(f"UPDATE t SET {text.replace('1000001', '1000002')} WHERE id = {ids[1]}")
        conn.execute(f"DELETE FROM t WHERE id = {ids[2]}")
        decoded = [row for (row,) in conn.execute("SELECT data FROM pg_logical_slot_get_changes('decoded', NULL, NULL)")]
        changes = [row for row in decoded if row.startswith("table public.t")]
        assert [row.split(":")[1].strip() for row in changes] == ["UPDATE", "UPDATE", "DELETE"], changes
        [(messages,)] = conn.execute(
            "SELECT count(*) FROM pg_logical_slot_get_binary_changes('published', NULL, NULL,"
            " 'proto_version', '4', 'publication_names', 'p') WHERE chr(get_byte(data, 0)) IN ('I', 'U', 'D')"
        )
        assert messages == 3
        assert_sound(conn)


def test_the_wait_for_old_snapshots_is_seen(cluster, db, conn):
    """Rows have moved, and a snapshot may need them at their old places."""
    conn.execute("CREATE TABLE t (id int, filler text); INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 4000) i")
    conn.execute("DELETE FROM t WHERE id <= 3000")
    seen = "SELECT phase, wait_event FROM cyclone.progress JOIN pg_stat_activity USING (pid) WHERE relation = 't'::regclass AND phase LIKE 'waiting%'"
    waits = [("waiting for other transactions", "CycloneOtherTransactions")]
    with Parked(cluster, db, "inplace-plan:leader", 1, INPLACE, {"cyclone.debug_horizon_wait": 100000}) as vacuum, cluster.snapshot(db) as other:
        vacuum.release()
        wait_until(lambda: conn.execute(seen).fetchall() == waits, "the wait")
        other.execute("COMMIT")
        vacuum.finish()
    assert blocks(conn) < 100
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_a_standby_replays_it(new_cluster):
    primary = new_cluster(wal_consistency_checking="all")
    with primary.connect(TEMPLATE) as conn, primary.standby({"hot_standby_feedback": "on", "wal_receiver_status_interval": 1}).start() as standby:
        conn.execute("SET wal_consistency_checking = ''")  # only what VACUUM does is compared
        run_script(conn, MAKE)
        conn.execute("RESET wal_consistency_checking")
        conn.execute("VACUUM (FREEZE) t")  # all pages all-visible
        expected = content(conn, "t")
        standby.wait_for_replay(primary)
        with standby.connect(TEMPLATE) as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            assert content(reader, "t") == expected
            wait_until(lambda: conn.execute("SELECT FROM pg_stat_replication WHERE backend_xmin IS NOT NULL").fetchall(), "feedback")
            conn.execute("VACUUM (FULL INPLACE, INDEX_CLEANUP off) t")
            standby.wait_for_replay(primary)
            assert content(reader, "t") == expected
            reader.execute("COMMIT")
        wait_until(lambda: (conn.execute(INPLACE), blocks(conn) < 100)[1], "the standby's snapshot gone")
        standby.wait_for_replay(primary)
        with standby.connect(TEMPLATE) as reader:
            assert content(reader, "t") == expected
            assert blocks(reader) == blocks(conn)
            assert checks.heap_corruption(reader, "t") == checks.btree_corruption(reader, "t") == []
            assert checks.dangling_index_entries(reader, "t") == []
            standby.promote()
            reader.execute("UPDATE t SET note = 'after' WHERE id % 2 = 0")
            assert_sound(reader)
        assert "inconsistent page" not in standby.log


def test_a_standby_gets_its_turn_between_steps_of_truncation(new_cluster):
    """Its queries wait for no longer than one step takes, as those of the primary do."""
    primary = new_cluster()
    with primary.connect(TEMPLATE) as conn, primary.standby().start() as standby:
        run_script(
            conn,
            """
            CREATE TABLE t (id int, note text);
            INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 100000) i;
            DELETE FROM t WHERE id > 100
            """,
        )
        seen = [blocks(conn)]
        with Parked(primary, TEMPLATE, "truncate-again:leader", 1, INPLACE) as vacuum:
            for number in range(3):
                if number > 0:
                    vacuum.step()
                standby.wait_for_replay(primary)
                with standby.connect(TEMPLATE) as reader:
                    held = "SELECT FROM pg_locks WHERE relation = 't'::regclass AND mode = 'AccessExclusiveLock'"
                    assert reader.execute(held).fetchall() == []
                    reader.execute("SET lock_timeout = '10s'")
                    assert reader.execute("SELECT count(*) FROM t").fetchone() == (100,)
                    seen.append(blocks(reader))
            vacuum.finish()
        assert seen == sorted(set(seen), reverse=True)
        assert blocks(conn) < 20
        assert conn.execute("SELECT relpages FROM pg_class WHERE relname = 't'").fetchone()[0] == blocks(conn)
        standby.wait_for_replay(primary)
        with standby.connect(TEMPLATE) as reader:
            assert blocks(reader) == blocks(conn) and content(reader, "t") == content(conn, "t")
        checks.assert_clean(conn, "t")


def test_a_standby_is_told_what_it_may_lack(new_cluster):
    """Rows that stay on a page from which others move: with hints that nobody has logged, and with old bytes behind them."""
    primary = new_cluster(wal_consistency_checking="all", checkpoint_timeout="1h", wal_keep_size="1GB")
    with primary.connect(TEMPLATE) as conn, primary.standby().start() as standby:
        run_script(
            conn,
            """
            CREATE TABLE t (id int, note text);
            INSERT INTO t SELECT i, repeat('x', 301) FROM generate_series(1, 6000) i;
            DELETE FROM t WHERE id % 6 > 0;
            VACUUM (TRUNCATE off) t;
            CHECKPOINT;
            INSERT INTO t SELECT i, repeat('y', 290 + i % 7) FROM generate_series(10001, 15000) i;
            BEGIN; DELETE FROM t WHERE id % 5 = 0; ROLLBACK;
            DELETE FROM t WHERE id % 4 > 1;
            SELECT count(*) FROM t
            """,
        )
        expected = content(conn, "t")
        with primary.connect(TEMPLATE) as other:
            other.execute("BEGIN")
            other.execute("SELECT FROM t WHERE id % 8 = 0 FOR UPDATE")
            conn.execute("SET cyclone.debug_horizon_wait = 100")
            conn.execute("VACUUM (FULL INPLACE) t")
            other.execute("ROLLBACK")
        standby.wait_for_replay(primary)
        with standby.connect(TEMPLATE) as reader:
            assert content(reader, "t") == expected == content(conn, "t")
        assert "inconsistent page" not in standby.log
        assert_sound(conn)


def test_what_is_in_wal_already_is_not_logged_as_an_image(new_cluster):
    """Pages from which rows move, too, if they have been changed since the last checkpoint; and none becomes all-visible to be cut off."""
    cluster = new_cluster(checkpoint_timeout="1h", max_wal_size="4GB", bgwriter_lru_maxpages=0)
    with cluster.connect(TEMPLATE) as conn:
        run_script(conn, MAKE)
        conn.execute("CREATE EXTENSION pg_walinspect")
        expected = content(conn, "t")
        before = blocks(conn)
        [(start,)] = conn.execute("SELECT pg_current_wal_insert_lsn()")
        conn.execute(MOVE)
        [(end,)] = conn.execute("SELECT pg_current_wal_flush_lsn() FROM pg_switch_wal()")
        of_table = "FROM pg_get_wal_block_info(%s, %s, false) WHERE relfilenode = pg_relation_filenode('t') AND relforknumber = 0"
        kinds = "SELECT resource_manager, record_type, count(*), sum(block_fpi_length)"
        seen = {(rmgr, kind): (n, images) for rmgr, kind, n, images in conn.execute(f"{kinds} {of_table} GROUP BY 1, 2", (start, end))}
        assert seen["Generic", "Generic"][0] > before / 2
        assert {kind: images for kind, (_, images) in seen.items() if images} == {}
        # by the VACUUM before rows move
        made_visible = f"SELECT max(n) FROM (SELECT count(*) n {of_table} AND record_type = 'VISIBLE' AND relblocknumber >= %s GROUP BY relblocknumber) t"
        assert conn.execute(made_visible, (start, end, blocks(conn))).fetchone()[0] in (None, 1)
        assert content(conn, "t") == expected and blocks(conn) < before / 3
    cluster.restart("crash")
    with cluster.connect(TEMPLATE) as conn:
        assert_kept(conn, expected)
        assert_indexes_agree(conn, "t")


def test_bloated_indexes_of_other_kinds_are_built_anew(conn):
    """GIN with posting trees and without, GiST and hash; once, and not those that a build would not make smaller."""
    run_script(
        conn,
        """
        CREATE TABLE t (id int PRIMARY KEY, n int, note text, a int[], p point);
        INSERT INTO t SELECT i, -i, md5(i::text), ARRAY[i % 3, i], point(i, i) FROM generate_series(1, 30000) i;
        CREATE INDEX t_hash ON t USING hash (note);
        CREATE INDEX t_gin ON t USING gin (a);
        CREATE INDEX t_gist ON t USING gist (p);
        CREATE INDEX t_note ON t (lower(note))
        """,
    )
    names = ("t_hash", "t_gin", "t_gist")
    files = "SELECT array_agg(pg_relation_filenode(name::regclass) ORDER BY name) FROM unnest(%s::text[]) name"
    [(whole,)] = conn.execute(files, (list(names),)).fetchall()
    conn.execute(INPLACE)
    assert conn.execute(files, (list(names),)).fetchone() == (whole,)

    conn.execute("DELETE FROM t WHERE id % 10 > 0")
    expected = content(conn, "t")
    conn.execute(INPLACE)
    [(rebuilt,)] = conn.execute(files, (list(names),)).fetchall()
    assert not set(whole) & set(rebuilt)
    assert content(conn, "t") == expected
    assert_indexes_agree(conn, "t")
    checks.assert_clean(conn, "t")
    sizes = {name: bytes_of(conn, name) for name in names}
    conn.execute("REINDEX TABLE t")
    # one that is built while rows may come has some more of GIN's pages
    assert {name: size for name, size in sizes.items() if size > bytes_of(conn, name) * 1.1 + 2 * 8192} == {}

    [(rebuilt,)] = conn.execute(files, (list(names),)).fetchall()
    conn.execute(INPLACE)
    assert conn.execute(files, (list(names),)).fetchone() == (rebuilt,)


def test_indexes_that_are_as_small_as_they_can_be_are_not_built_anew(conn):
    """Each key of GIN has a tree of TIDs that doesn't fill its last page, each of hash more entries than fit in its bucket."""
    run_script(
        conn,
        """
        CREATE TABLE t (id int, a int[]) WITH (autovacuum_enabled = off);
        INSERT INTO t SELECT i % 150, ARRAY[i % 150] FROM generate_series(1, 150 * 1500) i;
        CREATE INDEX t_gin ON t USING gin (a);
        CREATE INDEX t_hash ON t USING hash (id);
        VACUUM t
        """,
    )
    files = "SELECT pg_relation_filenode('t_gin'), pg_relation_filenode('t_hash')"
    whole = conn.execute(files).fetchone()
    conn.execute(INPLACE)
    assert conn.execute(files).fetchone() == whole
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("patience", [None, "-1", "100ms"])
def test_an_old_snapshot_on_a_standby_never_meets_a_new_index(new_cluster, patience):
    """A rebuilt index lacks what was deleted on the primary; until whose snapshot on a standby sees that has gone, the old one is used."""
    config = {"hot_standby_feedback": "on", "wal_receiver_status_interval": 1, "max_standby_streaming_delay": patience or "100ms"}
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'RecoveryConflictSnapshot'"
    unfinished = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
    with (primary := new_cluster()).connect(TEMPLATE) as conn, primary.standby(config).start() as standby:
        run_script(conn, MAKE)
        expected = content(conn, "t")
        standby.wait_for_replay(primary)
        with standby.connect(TEMPLATE) as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")  # with a snapshot, but no lock on the table
            [(xmin,)] = reader.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::xid")
            told = "SELECT FROM pg_stat_replication WHERE backend_xmin = %s"
            wait_until(lambda: conn.execute(told, (xmin,)).fetchall(), "feedback")
            conn.execute("UPDATE t SET n = n - 100000, note = 'after ' || note, p = point(1, id)")
            conn.execute(INPLACE if patience else MOVE)
            if patience == "-1":
                wait_until(lambda: standby.sql(waiting) == [(1,)], "the conflict")
                with standby.connect(TEMPLATE) as other:
                    [(name,)] = other.execute(unfinished)
                    assert name.endswith("_cyclone")
            else:
                standby.wait_for_replay(primary)
            if patience == "100ms":
                with pytest.raises(psycopg.OperationalError, match="row versions that must be removed"):
                    reader.execute("SELECT count(*) FROM t")
            else:
                assert content(reader, "t") == expected
                assert_indexes_agree(reader, "t")
                reader.execute("COMMIT")
        standby.wait_for_replay(primary)
        with standby.connect(TEMPLATE) as reader:
            assert reader.execute(unfinished).fetchall() == []
            assert content(reader, "t") == content(conn, "t")
            assert_indexes_agree(reader, "t")
            assert checks.btree_corruption(reader, "t") == []


def set_item(page: bytearray, number: int, offset: int, flags: int, length: int) -> None:
    page[20 + 4 * number : 24 + 4 * number] = (offset | flags << 15 | length << 17).to_bytes(4, "little")


# the number, offset, flags and length of a line pointer, or where the line pointers end; and what is said of it
DAMAGES = {
    "leads behind the page": ((1, 8184, 1, 200), "corrupted line pointer: offset = 8184, size = 200"),
    "leads into the items": ((1, 24, 1, 200), "corrupted line pointer: offset = 24, size = 200"),
    "leads nowhere": ((1, 400, 2, 0), "corrupted line pointer: offset = 400, size = 0"),
    "row too short": ((1, 8160, 1, 8), "corrupted line pointer: offset = 8160, size = 8"),
    "too many items": (24 + 4 * 400, "corrupted page pointers: lower = 1624, upper = {upper}, special = 8192"),
    "no header": (8, "corrupted page pointers: lower = 8, upper = {upper}, special = 8192"),
}


@pytest.mark.parametrize(("what", "damage"), [*product(["rows", "values"], DAMAGES), ("target", "no header")])
def test_items_that_lead_astray_are_damage(cluster, db, conn, damage, what):
    """A page whose bytes are wrong, after VACUUM has been there, is an error before anything is read by them, or put there."""
    filler = "repeat(md5(i::text), 100)" if what == "values" else "repeat('x', 200)"
    storage = "EXTERNAL" if what == "values" else "PLAIN"  # without a TOAST table, which comes first
    conn.execute(f"CREATE TABLE t (id int, note text STORAGE {storage})")
    conn.execute(f"INSERT INTO t SELECT i, {filler} FROM generate_series(1, 4000) i")
    conn.execute("DELETE FROM t WHERE id % 4 > 0")
    [(relation,)] = conn.execute(
        "SELECT (CASE WHEN %s = 'values' THEN reltoastrelid ELSE oid END)::regclass::text FROM pg_class WHERE relname = 't'", (what,)
    )
    block = 0 if what == "target" else blocks(conn, relation) - 2
    bytes_, told = DAMAGES[damage]

    def do_damage(page: bytearray) -> None:
        if isinstance(bytes_, tuple):
            set_item(page, *bytes_)
        else:
            page[12:14] = bytes_.to_bytes(2, "little")

    error, page = error_of_move(cluster, db, conn, relation, block, do_damage)
    assert isinstance(error, psycopg.errors.DataCorrupted), error
    assert error.diag.message_primary == told.format(upper=int.from_bytes(page[14:16], "little"))
    assert f"block {block}" in error.diag.context and f'"{relation.removeprefix("pg_toast.")}"' in error.diag.context
    assert conn.execute("SELECT FROM pg_locks WHERE relation = %s::regclass", (relation,)).fetchall() == []


def test_a_part_of_a_value_that_is_too_short_is_damage(cluster, db, conn):
    """A row of a TOAST table without room for the value's OID."""
    conn.execute("CREATE TABLE t (id int, note text STORAGE EXTERNAL)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 2040) FROM generate_series(1, 4000) i")  # the second part is short
    conn.execute("DELETE FROM t WHERE id % 2 > 0")
    [(relation,)] = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 't'")
    found = []

    def have_a_long_header(page: bytearray) -> None:
        for number in range(1, (int.from_bytes(page[12:14], "little") - 24) // 4 + 1):
            pointer = int.from_bytes(page[20 + 4 * number : 24 + 4 * number], "little")
            offset, flags, length = pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17
            if flags == 1 and length < 256:
                page[offset + 22] = length
                found.append(number)
                return

    block = blocks(conn, relation) - 2
    error, _ = error_of_move(cluster, db, conn, relation, block, have_a_long_header)
    assert isinstance(error, psycopg.errors.DataCorrupted), error
    name = relation.removeprefix("pg_toast.")
    assert error.diag.message_primary == f'tuple ({block},{found[0]}) of relation "{name}" is not one of a TOAST table'


def have_items_in_one_place(page: bytearray) -> None:
    """As many rows as a page may have, all of them the same, of odd length; and a dead item with a length."""
    page[12:14], page[14:16] = (24 + 4 * 291).to_bytes(2, "little"), (4000).to_bytes(2, "little")
    offset = int.from_bytes(page[20 + 4 : 24 + 4], "little") & 0x7FFF
    for number in range(1, 292):
        set_item(page, number, offset, 1, 225)
    set_item(page, 291, offset, 3, 200)


def test_items_that_overlap(cluster, db, conn):
    """A WAL record of all of them has room, also where WAL is checked."""
    conn.execute("CREATE TABLE t (id int, note text STORAGE PLAIN)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 4000) i")
    conn.execute("DELETE FROM t WHERE id < 3900")
    settings = {"wal_consistency_checking": "generic", "cyclone.audit": "0"}
    block = blocks(conn, "t") - 2
    error, _ = error_of_move(cluster, db, conn, "t", block, have_items_in_one_place, settings)
    assert re.findall(".*(?:PANIC|TRAP|terminated by signal).*", cluster.log) == []
    assert not isinstance(error, psycopg.OperationalError), error


def error_of_move(cluster, db, conn, relation, block, damage, settings=None):
    """Have rows moved from a table of which a page was damaged after VACUUM has been there; return the error, and the page."""
    conn.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
    [(path,)] = conn.execute("SELECT pg_relation_filepath(%s::regclass)", (relation,))
    settings = {"ignore_checksum_failure": "on", **(settings or {})}
    with Parked(cluster, db, "inplace-plan:leader", 1, MOVE, settings) as compaction:
        conn.execute(
            "SELECT pg_buffercache_evict(bufferid) FROM pg_buffercache WHERE relfilenode = pg_relation_filenode(%s::regclass)"
            " AND reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relforknumber = 0",
            (relation,),
        )
        with open(cluster.data / path, "r+b") as file:
            file.seek(block * 8192)
            page = bytearray(file.read(8192))
            damage(page)
            file.seek(block * 8192)
            file.write(page)
        compaction.release()
        return compaction.wait(), page


MANY_EMPTY_PAGES = """
    CREATE TABLE t (id int, note text);
    INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 60000) i;
    DELETE FROM t WHERE id > 100
"""


def test_steps_of_truncation_grow_while_nobody_waits(conn):
    """Each is a lock that standbys take: a table that nobody uses is cut off in few."""
    run_script(conn, MANY_EMPTY_PAGES)
    said = messages_to(conn)
    conn.execute("SET client_min_messages = debug2")
    conn.execute(INPLACE)
    steps = [int(before) - int(after) for line in said for before, after in re.findall(r'"t": truncated (\d+) to (\d+) pages', line)]
    assert 2 <= len(steps) <= 4 and steps[0] < steps[1], steps
    assert conn.execute("SELECT relpages FROM pg_class WHERE relname = 't'").fetchone() == (blocks(conn),)
    checks.assert_clean(conn, "t")


def test_rows_that_come_between_two_steps_are_no_obstacle_to_truncation(cluster, db, conn):
    """Pages that are full are not said to be in the way of others; what is cut off is known to the planner, step by step."""
    run_script(conn, MANY_EMPTY_PAGES)
    with Parked(cluster, db, "truncate-again:leader", 1, INPLACE) as compaction:
        assert conn.execute("SELECT relpages FROM pg_class WHERE relname = 't'").fetchone() == (blocks(conn),)
        conn.execute("INSERT INTO t SELECT i, repeat('y', 1000) FROM generate_series(100001, 103000) i")
        compaction.finish()
    assert not any("could not be truncated" in text for text in compaction.messages), compaction.messages
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (3100,)
    checks.assert_clean(conn, "t")


def test_kinds_of_tables(conn):
    """Unlogged and temporary tables, materialized views, partitioned tables; catalogs are vacuumed only."""
    fill = "SELECT i AS id, repeat('x', 200) AS filler FROM generate_series(1, 5000) i"
    conn.execute(f"CREATE UNLOGGED TABLE u AS {fill}")
    conn.execute(f"CREATE TEMP TABLE tmp AS {fill}")
    conn.execute(f"CREATE MATERIALIZED VIEW m AS {fill}")
    conn.execute("CREATE UNIQUE INDEX ON m (id)")
    conn.execute("CREATE TABLE parted (id int, filler text) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (2500)")
    conn.execute("CREATE TABLE parted_2 PARTITION OF parted DEFAULT")
    conn.execute(f"INSERT INTO parted {fill}")
    for table in ("u", "tmp", "parted"):
        conn.execute(f"CREATE INDEX ON {table} (id)")
        conn.execute(f"DELETE FROM {table} WHERE id % 10 <> 0")
    before = {table: content(conn, table) for table in ("u", "tmp", "m", "parted")}
    for table in before:
        conn.execute(f"VACUUM (FULL INPLACE) {table}")
        assert content(conn, table) == before[table]
    assert blocks(conn, "u") < 20 and blocks(conn, "tmp") < 20
    assert blocks(conn, "parted_1") < 20 and blocks(conn, "parted_2") < 20
    checks.assert_clean(conn, "u", "m", "parted")
    said = messages_to(conn)
    conn.execute("VACUUM (FULL INPLACE) pg_class")
    assert said == ['rows of "pg_class" cannot be moved, vacuuming only']
    said.clear()
    conn.execute("VACUUM (FULL INPLACE)")
    assert [text for text in said if "cannot be moved" in text] == []


def warnings_of(conn, statement: str, with_: str = "message_detail") -> list[tuple[str, str]]:
    """Run a statement; return its messages with their details, or their hints with `message_hint`."""
    return heard(conn, statement, lambda notice: (notice.message_primary, getattr(notice, with_)))


def test_where_rows_are_not_moved(conn):
    """Where a subscription writes, as it looks for a row without a snapshot: it may miss one that moves."""
    conn.execute("CREATE TABLE t AS SELECT i AS id, repeat('x', 200) AS filler FROM generate_series(1, 5000) i")
    conn.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    conn.execute("CREATE SUBSCRIPTION s CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE)")
    conn.execute("SET allow_system_table_mods = on")
    conn.execute(
        "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) SELECT oid, 't'::regclass, 'r' FROM pg_subscription"
    )
    conn.execute("DELETE FROM t WHERE id % 10 <> 0")
    places = "SELECT array_agg(ctid ORDER BY id) FROM t"
    place = conn.execute(places).fetchone()
    said = warnings_of(conn, "VACUUM (FULL INPLACE) t")
    assert said == [('rows of "t" cannot be moved, vacuuming only', "A subscription of logical replication writes to it.")]
    assert conn.execute(places).fetchone() == place
    checks.assert_clean(conn, "t")
    conn.execute("DROP SUBSCRIPTION s")


def test_an_owner_who_is_no_superuser(cluster, db, conn):
    """He may do it all, but for the index of the TOAST table, in a schema that is not for him."""
    conn.execute("CREATE ROLE inplace_owner LOGIN; GRANT CREATE ON SCHEMA public TO inplace_owner")
    with cluster.connect(db, user="inplace_owner") as owner:
        run_script(owner, MAKE_VALUES)
        before = content(owner, "t")
        owner.execute(INPLACE)
        assert content(owner, "t") == before
    checks.assert_clean(conn, "t")


def test_new_pages_survive_without_full_page_writes(new_cluster):
    """A row whose value moves may need a page that the server adds to the table, and that WAL must make anew."""
    cluster = new_cluster(full_page_writes="off")
    reader = cluster.connect(TEMPLATE)
    with cluster.connect(TEMPLATE) as conn:
        run_script(conn, MAKE_VALUES)
        conn.execute("VACUUM t")
        conn.execute("INSERT INTO t (id) SELECT generate_series(10001, 60000)")  # no room is left
        expected = content(conn, "t")
        conn.execute("CHECKPOINT")
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT FROM pg_class")
        before = blocks(conn)
        conn.execute(MOVE)
        assert blocks(conn) > before  # or this proves nothing
        conn.execute("INSERT INTO t (id) VALUES (0)")  # flushes WAL
    cluster.crash()
    reader.close()
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("DELETE FROM t WHERE id = 0")
        assert_kept(conn, expected)


def test_options(conn):
    conn.execute("CREATE TABLE t (id int)")
    for option in ("TRUNCATE false", "PROCESS_MAIN false", "ONLY_DATABASE_STATS"):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=f"FULL INPLACE cannot be used with {option}"):
            conn.execute(f"VACUUM (FULL INPLACE, {option})" + ("" if "STATS" in option else " t"))
    with pytest.raises(psycopg.errors.ActiveSqlTransaction):
        conn.execute("BEGIN; VACUUM (FULL INPLACE) t")
    conn.execute("ROLLBACK")
    conn.execute("VACUUM (FULL 'inplace', FULL off) t")
    conn.execute("VACUUM (FULL INPLACE, ANALYZE, SKIP_LOCKED, FREEZE, PROCESS_TOAST off, BUFFER_USAGE_LIMIT '1MB') t")


def test_a_plan_where_most_rows_are_dead_but_still_needed(cluster, db, conn):
    """A few rows are what little is alive: a page takes no more than a page of what is there, so most of the table stays as it is."""
    run_script(conn, """
        CREATE TABLE t (id int, filler text);
        INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i;
        DELETE FROM t WHERE id <= 2000;
        VACUUM t
    """)
    with cluster.snapshot(db, "SELECT FROM t LIMIT 1"):
        conn.execute("DELETE FROM t WHERE id % 2000 <> 0")
        conn.execute("SET cyclone.debug_horizon_wait = 100")
        said = "\n".join(text for text, _ in warnings_of(conn, "VACUUM (FULL INPLACE, VERBOSE, PARALLEL 0) t"))
        [(visited, passes)] = re.findall(r"out of (\d+) pages in (\d+) passes", said)
        assert int(passes) > 0 and int(visited) <= int(passes) * blocks(conn) / 2
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (9,)
    checks.assert_clean(conn, "t")


def toast_of(conn) -> str:
    return conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 't'").fetchone()[0]


@pytest.fixture
def values(conn):
    """Table t with most of what it has in its TOAST table, with which the test's database was made; its contents."""
    return content(conn, "t")


def test_toast_tables_are_spoken_of_as_what_they_are(conn, values):
    """Their values have been moved when a VACUUM comes to them: nothing is wrong with them."""
    said = [text for text, _ in warnings_of(conn, "VACUUM (FULL INPLACE, VERBOSE) t")]
    assert any(toast_of(conn).partition(".")[2] in text for text in said)  # or this proves nothing
    assert not [text for text in said if "cannot be moved" in text]


def test_a_toast_table_that_is_locked_is_skipped(cluster, db, conn, values):
    """With SKIP_LOCKED nobody waits for it, and the table itself is compacted all the same."""
    toast, before = toast_of(conn), blocks(conn)
    size = blocks(conn, toast)
    with Parked(cluster, db, "heap-scan:any", 1, f"VACUUM {toast}") as parked:
        conn.execute("SET statement_timeout = '60s'")
        said = warnings_of(conn, "VACUUM (FULL INPLACE, SKIP_LOCKED) t")
        assert [text for text, _ in said] == [f'skipping the TOAST table "{toast.partition(".")[2]}" --- lock not available']
        assert blocks(conn) < before and blocks(conn, toast) == size
    parked.finish()
    assert warnings_of(conn, "VACUUM (FULL INPLACE, SKIP_LOCKED) t") == [] and blocks(conn, toast) < size
    assert content(conn, "t") == values
    checks.assert_clean(conn, "t")


def test_values_move_too(cluster, db, conn, values):
    """The TOAST table becomes almost as small as a rewrite makes it, and old snapshots find their values."""
    with cluster.snapshot(db) as reader:
        before = blocks(conn, toast_of(conn))
        conn.execute(MOVE)
        assert content(reader, "t") == content(conn, "t") == values
    conn.execute(INPLACE)
    assert_kept(conn, values)
    in_place = blocks(conn, toast_of(conn))
    conn.execute("VACUUM (FULL) t")
    assert in_place <= blocks(conn, toast_of(conn)) * 1.15 + 2 < before / 2
    # no value has been left behind that nothing points at
    assert content(conn, "t") == values


def test_who_changes_a_row_while_its_values_move(cluster, db, conn, values):
    """The row stays what it was made, and the values that were stored in vain go."""
    with Parked(cluster, db, "inplace-value:leader", 1, MOVE) as parked:
        conn.execute("UPDATE t SET a = 'changed'")
        conn.execute("DELETE FROM t WHERE b IS NULL")
        expected = content(conn, "t")
    parked.finish()
    assert_kept(conn, expected)
    [(values_left,)] = conn.execute(f"SELECT count(DISTINCT chunk_id) FROM {toast_of(conn)}")
    [(values_of_rows,)] = conn.execute("SELECT count(*) FROM t WHERE pg_column_toast_chunk_id(b) IS NOT NULL")
    assert values_left == values_of_rows


def test_fillfactor_is_kept(conn):
    conn.execute("CREATE TABLE t (id int, filler text) WITH (fillfactor = 50)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i")
    conn.execute("DELETE FROM t WHERE id % 4 <> 0")
    before = content(conn, "t")
    conn.execute(INPLACE)
    [(fullest,)] = conn.execute("SELECT 8192 - min(avail) FROM pg_freespace('t')")
    assert fullest < 8192 * 0.56
    assert content(conn, "t") == before
    conn.execute("CREATE TABLE twin (LIKE t) WITH (fillfactor = 50)")
    conn.execute("INSERT INTO twin TABLE t")
    assert blocks(conn) <= blocks(conn, "twin") * 1.05 + 1
    checks.assert_clean(conn, "t")


def assert_compacted_as_by_a_rewrite(conn, slack: float) -> None:
    """Compact table t, of which less than 60 % is needed; compare it with VACUUM FULL, up to this factor and a page."""
    rows, before = content(conn, "t"), blocks(conn)
    conn.execute(INPLACE)
    in_place = blocks(conn)
    assert content(conn, "t") == rows
    checks.assert_clean(conn, "t")
    conn.execute("VACUUM (FULL) t")
    assert in_place <= blocks(conn) * slack + 1 < before * 0.6


@pytest.mark.parametrize("fillfactor, width", [(30, 3000), (60, 5200), (60, 3000), (10, 100), (10, 7000), (30, "(i * 7919) % 6000")])
def test_a_page_that_is_empty_takes_a_row_whatever_the_fillfactor(conn, fillfactor, width):
    """As PostgreSQL has it: the row wouldn't fit on any page otherwise. Of rows of all sizes small ones share pages as ever."""
    conn.execute(f"CREATE TABLE t (id int, filler text) WITH (fillfactor = {fillfactor}); ALTER TABLE t ALTER filler SET STORAGE PLAIN")
    conn.execute(f"INSERT INTO t SELECT i, repeat('x', {width}) FROM generate_series(1, 2000) i")
    conn.execute("DELETE FROM t WHERE id <= 1000")
    assert_compacted_as_by_a_rewrite(conn, 1.05 if isinstance(width, int) else 1.1)


def test_verbose_says_why_nothing_moves(conn):
    """Large holes, and a size that none of them takes."""
    conn.execute("CREATE TABLE t (id int, filler text) WITH (fillfactor = 90); ALTER TABLE t ALTER filler SET STORAGE PLAIN")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 5000) FROM generate_series(1, 200) i")
    said = warnings_of(conn, "VACUUM (FULL INPLACE, VERBOSE) t")
    [detail] = [detail for text, detail in said if text == 'table "t": no rows to be moved, as too few pages would be freed']
    assert re.fullmatch(r"\d+ kB are free in 200 pages, a row takes 50\d\d bytes on average, and the fillfactor is 90\.", detail)
    assert warnings_of(conn, INPLACE) == []


def test_a_row_that_stays_is_no_conflict(cluster, db, conn):
    """A serializable transaction has read a row that a move looks at, but that fits nowhere: it has read nothing that changes."""
    run_script(
        conn,
        "CREATE TABLE t (id int, filler text); ALTER TABLE t ALTER filler SET STORAGE PLAIN; CREATE TABLE other (n int);"
        "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 700) i;"
        "DELETE FROM t WHERE id % 2 = 0;"
        "INSERT INTO t VALUES (1000, repeat('y', 7000)), (1001, repeat('x', 500)); INSERT INTO other VALUES (1)",
    )
    [(place,)] = conn.execute("SELECT ctid::text FROM t WHERE id = 1000").fetchall()
    with cluster.connect(db) as one, cluster.connect(db) as two:
        one.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        assert one.execute("SELECT id FROM t WHERE ctid = %s::tid", (place,)).fetchall() == [(1000,)]
        two.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        assert two.execute("TABLE other").fetchall() == [(1,)]
        with cluster.connect(db) as compacting:
            compacting.execute("SET cyclone.debug_horizon_wait = 50")
            said = warnings_of(compacting, "VACUUM (FULL INPLACE, VERBOSE) t")
            assert not any("moved 0 rows" in text for text, _ in said), "none was moved, so this proves nothing"
        assert conn.execute("SELECT ctid::text FROM t WHERE id = 1000").fetchall() == [(place,)]
        one.execute("UPDATE other SET n = 2")
        one.execute("COMMIT")
        two.execute("COMMIT")


def test_a_toast_table_is_not_cut_off_by_another(cluster, db, conn, values):
    """Not between the plan and what is done by it."""
    toast = toast_of(conn)
    with Parked(cluster, db, "inplace-plan:leader", 1, MOVE) as parked:
        conn.execute("SET lock_timeout = '100ms'; SET cyclone.enabled = off")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute(f"VACUUM {toast}")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute("TRUNCATE t")
        conn.execute("RESET ALL")
    parked.finish()
    assert_kept(conn, values)


def test_functions_in_indexes_run_as_the_owner(cluster, db, conn):
    """In a restricted context, whichever role compacts: an expression that tries to do more fails, and the rows stay."""
    conn.execute("CREATE ROLE careless_owner LOGIN")
    conn.execute("GRANT CREATE ON SCHEMA public TO careless_owner")
    conn.execute("SET ROLE careless_owner")
    conn.execute("CREATE TABLE t (id int, filler text)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 3000) i")
    conn.execute("CREATE FUNCTION who(int) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1::text'")
    conn.execute("CREATE INDEX t_who ON t (who(id))")
    conn.execute("DELETE FROM t WHERE id % 10 <> 0")
    conn.execute("CREATE TABLE trap (who text, path text)")
    conn.execute("RESET ROLE")
    conn.execute(
        "CREATE OR REPLACE FUNCTION who(int) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN"
        " IF current_user <> 'careless_owner' THEN RAISE EXCEPTION 'runs as %', current_user; END IF;"
        " IF current_setting('search_path') <> 'pg_catalog, pg_temp' THEN"
        "   RAISE EXCEPTION 'search_path is %', current_setting('search_path'); END IF;"
        " RETURN $1::text; END $$"
    )
    before = content(conn, "t")
    conn.execute("VACUUM (FULL INPLACE, INDEX_CLEANUP off) t")
    assert content(conn, "t") == before and blocks(conn) < 15
    conn.execute("CREATE OR REPLACE FUNCTION who(int) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1::text'")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(3001, 6000) i")
    conn.execute("DELETE FROM t WHERE id BETWEEN 3001 AND 5900")
    conn.execute(
        "CREATE OR REPLACE FUNCTION who(int) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM set_config('role', 'postgres', false); RETURN $1::text; END $$"
    )
    before = content(conn, "t")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="within security-restricted operation"):
        conn.execute(INPLACE)
    assert content(conn, "t") == before
    assert conn.execute("SELECT current_user = session_user").fetchone() == (True,)


def test_an_expression_that_leaves_something_behind_in_the_session(cluster, db, conn, table):
    """The session's first temporary object, which it has to clean up when it ends, comes while rows move."""
    run_script(
        conn,
        "CREATE FUNCTION key(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        "CREATE INDEX t_key ON t (key(id))",
    )
    conn.execute(
        "CREATE FUNCTION litter() RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
        " IF pg_catalog.pg_my_temp_schema() = 0 THEN"
        "  CREATE FUNCTION pg_temp.one() RETURNS int LANGUAGE sql AS 'SELECT 1'; END IF; END $$"
    )
    conn.execute("CREATE OR REPLACE FUNCTION key(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM public.litter(); RETURN $1; END'")
    with cluster.connect(db) as other:
        other.execute(MOVE)
        assert other.execute("SELECT FROM pg_proc WHERE proname = 'one'").fetchall() != []
    wait_until(lambda: conn.execute("SELECT FROM pg_proc WHERE proname = 'one'").fetchall() == [], "cleaning up")
    assert blocks(conn) < 100
    assert_kept(conn, table)
