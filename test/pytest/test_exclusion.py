"""VACUUM (FULL INPLACE) under exclusion constraints: rows move as elsewhere, and no row gets in that another one excludes."""

import random
import threading
from contextlib import suppress

import psycopg
import pytest

import test_inplace
from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Background, Parked, wait_until
from test_inplace import (  # noqa: F401 (run once more, with the constraints that the fixture here adds)
    LONG_BATCHES,
    MOVE,
    assert_kept,
    assert_sound,
    blocks,
    made,  # noqa: F401 (a fixture)
    table,  # noqa: F401 (a fixture)
    template,  # noqa: F401 (a fixture)
    test_a_standby_replays_it,
    test_old_snapshots_see_their_rows,
    test_rows_in_use_stay_until_they_are_free,
    test_values_move_too,
    test_who_changes_a_row_that_moves_finds_it_again,
    test_who_changes_a_row_while_its_values_move,
    values,  # noqa: F401 (a fixture)
    warnings_of,
)
from test_rewrite import content, run_script

# Of each access method that has them, and deferred
EXCLUDE = """;
    ALTER TABLE t ADD EXCLUDE USING gist (circle(p, 0.3) WITH &&), ADD EXCLUDE USING spgist (p WITH ~=),
        ADD EXCLUDE USING btree (n WITH =) DEFERRABLE INITIALLY DEFERRED, ADD EXCLUDE USING hash (id WITH =) WHERE (id % 3 > 0)
"""
EXCLUDE_BIG = "; ALTER TABLE t ADD EXCLUDE USING gist (circle(point(id, 0), 0.3) WITH &&)"

# An expression that waits for the test, in a session that says for which row it is to do that
LOOK = f"""
    CREATE FUNCTION look(circle) RETURNS circle IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
        IF $1 OPERATOR(pg_catalog.~=) nullif(pg_catalog.current_setting('my.wait', true), '')::circle THEN
            PERFORM pg_catalog.pg_advisory_xact_lock_shared({DEBUG_POINT_LOCK});
        END IF;
        RETURN $1;
    END $$
"""
MAKE_CIRCLES = """
    CREATE TABLE t (id int PRIMARY KEY, spot circle, filler text, EXCLUDE USING gist (look(spot) WITH &&) DEFERRABLE);
    INSERT INTO t SELECT i, circle(point(i * 10, 0), 3), {filler} FROM generate_series(1, {rows}) i;
    DELETE FROM t WHERE id % 5 <> 0
"""
FILLER = "repeat('x', 200)"
BIG_FILLER = "(SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 150) j)"


@pytest.fixture(autouse=True)
def constraints(monkeypatch):
    """The tables of the tests that run once more have exclusion constraints."""
    monkeypatch.setattr(test_inplace, "MAKE", test_inplace.MAKE + EXCLUDE)
    monkeypatch.setattr(test_inplace, "MAKE_VALUES", test_inplace.MAKE_VALUES + EXCLUDE_BIG)


def make_circles(conn, filler: str, rows: int) -> None:
    conn.execute(LOOK)
    run_script(conn, MAKE_CIRCLES.format(filler=filler, rows=rows))


def places(conn, what: str) -> dict[int, str]:
    """Of each row, by id."""
    return dict(conn.execute(f"SELECT id, {what} FROM t").fetchall())


class Looking(Background):
    """An INSERT that has put its row in and made its entry, and has not yet seen that a row is near which it looks at."""

    def __init__(self, cluster, db, circle: str, near: int):
        self._gate = cluster.connect(db)
        self._gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        super().__init__(cluster, db, f"INSERT INTO t VALUES (-1, '{circle}')", {"my.wait": f"<({near * 10},0),3>"})
        waits = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = %s"
        wait_until(lambda: self._gate.execute(waits, (self.pid,)).fetchall(), "an INSERT that looks")

    def release(self) -> None:
        self._gate.close()


@pytest.mark.parametrize(
    ("filler", "rows", "what"), [(FILLER, 20000, "ctid::text"), (BIG_FILLER, 3000, "pg_column_toast_chunk_id(filler)")]
)
def test_who_is_about_to_be_excluded(cluster, db, conn, filler, rows, what):
    """A row stays if a session looks for it: the session would find neither of two versions if the move were through too soon."""
    make_circles(conn, filler, rows)
    conn.execute("SET cyclone.debug_horizon_wait = 1")
    before, expected = places(conn, what), content(conn, "t")
    looking = Looking(cluster, db, f"<({rows * 10 + 2},0),1>", rows)
    said = warnings_of(conn, MOVE)
    assert any("in use by other transactions" in text for text, _ in said)
    after = places(conn, what)
    assert after[rows] == before[rows]
    # its neighbours on the page, at most, stay with it
    assert sum(after[id_] == before[id_] for id_ in before if id_ > rows * 0.6) < 20
    looking.release()
    assert isinstance(looking.wait(), psycopg.errors.ExclusionViolation)
    assert_kept(conn, expected)

    conn.execute(MOVE)
    assert places(conn, what)[rows] != before[rows]
    assert_kept(conn, expected)


def test_whose_check_is_deferred(cluster, db, conn, pg_major):
    """His row is there, and will be checked when he commits; where no value is a value like others, too."""
    conn.execute("CREATE EXTENSION btree_gist")
    exclude = "UNIQUE NULLS NOT DISTINCT (n, span WITHOUT OVERLAPS)" if pg_major >= 18 else "EXCLUDE USING gist (n WITH =, span WITH &&)"
    n = "NULL" if pg_major >= 18 else "7"
    run_script(
        conn,
        f"CREATE TABLE t (id int, n int, span int4range, filler text, {exclude} DEFERRABLE INITIALLY DEFERRED);"
        f"INSERT INTO t SELECT i, {n}, int4range(i * 10, i * 10 + 5), {FILLER} FROM generate_series(1, 20000) i;"
        "DELETE FROM t WHERE id % 5 <> 0; SET cyclone.debug_horizon_wait = 1",
    )
    before, expected = places(conn, "ctid::text"), content(conn, "t")
    with cluster.connect(db) as other:
        other.execute("BEGIN")
        other.execute(f"INSERT INTO t VALUES (-1, {n}, '[200002,200003)')")
        conn.execute(MOVE)
        after = places(conn, "ctid::text")
        assert after[20000] == before[20000] and after[19000] != before[19000]
        with pytest.raises(psycopg.errors.ExclusionViolation):
            other.execute("COMMIT")
    conn.execute(MOVE)
    assert places(conn, "ctid::text")[20000] != before[20000]
    assert_kept(conn, expected)


@pytest.mark.once
@pytest.mark.parametrize("how", ["inplace-half", "inplace-value", "statement_timeout"])
def test_the_session_goes_on_after_an_error(cluster, db, conn, how):
    """Also if it came in the midst of a batch: no lock and no transaction is left."""
    make_circles(conn, BIG_FILLER, 1000)
    expected = content(conn, "t")
    with cluster.connect(db) as other:
        if how == "statement_timeout":
            other.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
            conn.execute("SET my.wait = '<(10000,0),3>'; SET statement_timeout = '2s'")
        else:
            conn.execute(f"SET cyclone.debug_point = '{how}:any:error'")
        with pytest.raises((psycopg.errors.QueryCanceled, psycopg.errors.InternalError_)):
            conn.execute(MOVE)
        held = other.execute("SELECT mode FROM pg_locks WHERE pid = %s AND locktype <> 'virtualxid'", (conn.info.backend_pid,))
        assert held.fetchall() == []
        state = other.execute("SELECT state, backend_xid, backend_xmin FROM pg_stat_activity WHERE pid = %s", (conn.info.backend_pid,))
        assert state.fetchone() == ("idle", None, None)
    conn.execute("RESET ALL")
    conn.execute(MOVE)
    assert_kept(conn, expected)


@pytest.mark.once
def test_who_is_near_but_not_excluded(cluster, db, conn):
    """The boxes overlap, the circles don't: that is in nobody's way."""
    make_circles(conn, FILLER, 20000)
    conn.execute("SET cyclone.debug_horizon_wait = 1")
    before = places(conn, "ctid::text")
    looking = Looking(cluster, db, "<(200003,3),0.7>", 20000)
    conn.execute(MOVE)
    assert places(conn, "ctid::text")[20000] != before[20000]
    looking.release()
    looking.finish()
    conn.execute("DELETE FROM t WHERE id = -1")
    conn.execute(MOVE)
    assert blocks(conn) < 150
    assert_sound(conn)


def test_who_comes_while_the_row_moves_waits_for_it(cluster, db, conn):
    make_circles(conn, FILLER, 20000)
    with Parked(cluster, db, "inplace-batch:leader", 1, MOVE, LONG_BATCHES) as parked:
        late = Background(cluster, db, "INSERT INTO t VALUES (-1, '<(200002,0),1>')")
        waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'transactionid'"
        wait_until(lambda: conn.execute(waits, (late.pid,)).fetchall(), "an INSERT that waits")
    parked.finish()
    assert isinstance(late.wait(), psycopg.errors.ExclusionViolation)
    assert_sound(conn)


@pytest.mark.once
def test_rows_that_exclude_each_other_already(conn):
    """By an expression that has changed its mind: they stay as they are, and move."""
    run_script(
        conn,
        "CREATE FUNCTION key(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        "CREATE TABLE t (id int, filler text, EXCLUDE USING btree (key(id) WITH =));"
        "INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i; DELETE FROM t WHERE id % 5 <> 0;"
        "CREATE OR REPLACE FUNCTION key(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'",
    )
    before = content(conn, "t")
    conn.execute(MOVE)
    assert blocks(conn) < 150
    assert content(conn, "t") == before


@pytest.mark.once
def test_an_index_that_stays_bloated(conn):
    """It can't be rebuilt beside others, which is said."""
    run_script(
        conn,
        "CREATE TABLE t (id int, CONSTRAINT only_one EXCLUDE USING btree (id WITH =));"
        "INSERT INTO t SELECT generate_series(1, 50000); DELETE FROM t WHERE id % 5 <> 0",
    )
    size, expected = blocks(conn, "only_one"), content(conn, "t")
    [(said, hint)] = warnings_of(conn, test_inplace.INPLACE, "message_hint")
    assert said == 'index "only_one" of an exclusion constraint stays bloated, as it cannot be rebuilt concurrently'
    assert blocks(conn, "only_one") >= size
    conn.execute("REINDEX INDEX only_one")
    assert "REINDEX INDEX" in hint and blocks(conn, "only_one") < size / 2
    assert warnings_of(conn, test_inplace.INPLACE, "message_hint") == []
    assert content(conn, "t") == expected
    checks.assert_clean(conn, "t")


def test_without_overlaps(conn, pg_major):
    """Keys of periods, and foreign keys to them; PostgreSQL 17 has only the constraint that they are made of."""
    conn.execute("CREATE EXTENSION btree_gist")
    key = "PRIMARY KEY (id, during WITHOUT OVERLAPS)" if pg_major >= 18 else "EXCLUDE USING gist (id WITH =, during WITH &&)"
    run_script(
        conn,
        f"CREATE TABLE t (id int, during int4range, filler text, {key});"
        "INSERT INTO t SELECT i / 10, int4range(i * 10, i * 10 + 5), repeat('x', 200) FROM generate_series(1, 20000) i;"
        "DELETE FROM t WHERE id % 5 <> 0",
    )
    if pg_major >= 18:
        run_script(
            conn,
            "CREATE TABLE child (id int, during int4range, FOREIGN KEY (id, PERIOD during) REFERENCES t (id, PERIOD during));"
            "INSERT INTO child SELECT id, during FROM t WHERE id % 10 = 0",
        )
    expected = content(conn, "t")
    conn.execute(MOVE)
    assert blocks(conn) < 150
    assert content(conn, "t") == expected
    with pytest.raises(psycopg.errors.ExclusionViolation):
        conn.execute("INSERT INTO t VALUES (1990, '[199002,199003)')")
    if pg_major >= 18:
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            conn.execute("DELETE FROM t WHERE id = 1990")
    assert_sound(conn)


def test_constraints_hold_while_many_write(cluster, db, conn):
    """Sessions put in, change and delete what often excludes each other, while rows move again and again, also with workers."""
    run_script(
        conn,
        "CREATE TABLE t (id int, span int4range, filler text, EXCLUDE USING gist (span WITH &&));"
        "INSERT INTO t SELECT i, int4range(i * 10, i * 10 + 5), repeat('x', 300) FROM generate_series(1, 4000) i",
    )
    excluded = 0
    put = 0
    done = threading.Event()

    def write(seed: int) -> None:
        nonlocal excluded, put
        rng = random.Random(seed)
        with cluster.connect(db) as session:
            while not done.is_set():
                low = rng.randrange(10, 40000)
                span = f"[{low},{low + rng.randrange(1, 12)})"
                try:
                    match rng.randrange(4):
                        case 0:
                            session.execute("DELETE FROM t WHERE span && %s::int4range", (span,))
                        case 1:
                            session.execute("UPDATE t SET span = %s::int4range WHERE span @> %s::int", (span, rng.randrange(40000)))
                        case _:
                            session.execute("INSERT INTO t VALUES (%s, %s::int4range, repeat('x', 300))", (low, span))
                    put += 1
                except (psycopg.errors.ExclusionViolation, psycopg.errors.DeadlockDetected):
                    excluded += 1

    def delete(rest: int) -> None:
        """Delete a quarter of the rows; again, if the server ends this one of those that wait for each other."""
        with suppress(psycopg.errors.DeadlockDetected):
            conn.execute("DELETE FROM t WHERE id %% 4 = %s", (rest,))
            return
        delete(rest)

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for writer in writers:
        writer.start()
    try:
        conn.execute("SET min_parallel_table_scan_size = 0; SET cyclone.debug_horizon_wait = 100")
        rounds = 0
        while rounds < 12 or not (excluded and put) and rounds < 1000:
            delete(rounds % 4)
            conn.execute(f"VACUUM (FULL INPLACE, PARALLEL {rounds % 3}, INDEX_CLEANUP off) t")
            rounds += 1
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert excluded > 0 and put > 0
    overlaps = "SELECT a.id, b.id FROM t a JOIN t b ON a.span && b.span AND a.ctid < b.ctid"
    assert conn.execute(overlaps).fetchall() == []
    run_script(conn, "SET enable_seqscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off")
    by_index = conn.execute("SELECT count(*) FROM t WHERE span && '[0,100000)'").fetchone()
    run_script(conn, "RESET enable_seqscan; SET enable_indexscan = off")
    assert conn.execute("SELECT count(*) FROM t").fetchone() == by_index
    assert_sound(conn)
