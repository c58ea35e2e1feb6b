"""VACUUM (FULL INPLACE) keeps away from tables to which a subscription writes, as its worker may miss a row that moves."""

import re
import threading

import psycopg
import pytest

from conftest import TEMPLATE
from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, wait_until
from test_inplace import INPLACE, MAKE_VALUES, MOVE, blocks, warnings_of
from test_rewrite import content, run_script

REFUSED = "rows of {} cannot be moved, vacuuming only"
STOPPED = 'rows of "t" cannot be moved any more, it was not compacted fully'
PLACES = "SELECT array_agg(ctid ORDER BY id) FROM t"

# The end of the table would fit into its beginning
ROWS = "INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i; DELETE FROM t WHERE id <= 10000"
PLAIN = f"CREATE TABLE t (id int PRIMARY KEY, filler text); {ROWS}"
LEAF = f"""
    CREATE TABLE root (id int, filler text) PARTITION BY RANGE (id);
    CREATE TABLE branch PARTITION OF root FOR VALUES FROM (0) TO (1000000) PARTITION BY RANGE (id);
    CREATE TABLE t PARTITION OF branch FOR VALUES FROM (0) TO (1000000);
    {ROWS}
"""


def subscribe(conn, table: str) -> None:
    """Make a table one that the subscription writes to, as CREATE SUBSCRIPTION does, but without a publisher."""
    conn.execute("SET allow_system_table_mods = on")
    conn.execute(
        "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) SELECT oid, %s::regclass, 'r' FROM pg_subscription", (table,)
    )


@pytest.fixture
def subscription(cluster, db, conn):
    """A subscription to nothing yet."""
    name = f"s_{db}"
    conn.execute(f"CREATE SUBSCRIPTION {name} CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE)")
    yield name
    conn.execute(f"DROP SUBSCRIPTION {name}")


@pytest.mark.once
@pytest.mark.parametrize("target", ["t", "branch", "root"])
def test_partitions_of_a_target_are_targets(conn, subscription, target):
    """Changes that come for a partitioned table are made in its leaves, though they are nowhere named."""
    run_script(conn, LEAF)
    subscribe(conn, target)
    before = conn.execute(PLACES).fetchone()
    said = warnings_of(conn, INPLACE)
    assert said == [(REFUSED.format('"t"'), "A subscription of logical replication writes to it.")]
    # one that was not named itself: a word in VERBOSE only
    assert warnings_of(conn, "VACUUM (FULL INPLACE) root") == []
    assert REFUSED.format('"t"') in [text for text, _ in warnings_of(conn, "VACUUM (FULL INPLACE, VERBOSE) root")]
    assert conn.execute(PLACES).fetchone() == before
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_relatives_of_a_target_are_no_targets(conn, subscription):
    """Other partitions' parents, children by inheritance, and parents of targets have nothing to fear."""
    conn.execute("CREATE TABLE root (id int, filler text) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE other PARTITION OF root FOR VALUES FROM (1000000) TO (2000000)")
    conn.execute("CREATE TABLE t PARTITION OF root FOR VALUES FROM (0) TO (1000000)")
    subscribe(conn, "other")
    run_script(conn, ROWS)
    before = blocks(conn)
    assert warnings_of(conn, INPLACE) == [] and blocks(conn) < before * 0.6
    conn.execute("DROP TABLE root; CREATE TABLE parent (id int, filler text); CREATE TABLE t () INHERITS (parent)")
    subscribe(conn, "parent")
    run_script(conn, ROWS)
    assert warnings_of(conn, INPLACE) == [] and blocks(conn) < before * 0.6
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_a_circle_in_the_catalog_is_damage(conn, subscription):
    """A partition that is its own parent."""
    run_script(conn, LEAF)
    conn.execute("SET allow_system_table_mods = on; UPDATE pg_inherits SET inhparent = inhrelid WHERE inhrelid = 'branch'::regclass")
    [(branch,)] = conn.execute("SELECT 'branch'::regclass::oid")
    with pytest.raises(psycopg.errors.DataCorrupted, match=f"relation with OID {branch} is a partition of itself"):
        conn.execute(INPLACE)
    conn.execute("UPDATE pg_inherits SET inhparent = 'root'::regclass WHERE inhrelid = 'branch'::regclass")


@pytest.mark.parametrize("make, target, statement", [
    (PLAIN, "t", INPLACE), *(pytest.param(*case, marks=pytest.mark.once) for case in ((LEAF, "root", MOVE), (MAKE_VALUES, "t", MOVE)))
])
def test_a_subscription_that_comes_meanwhile(cluster, db, conn, subscription, make, target, statement):
    """A process that is about to begin a batch sees it, and nothing moves from then on."""
    run_script(conn, make)
    before, rows = conn.execute(PLACES).fetchone(), content(conn, "t")
    with Parked(cluster, db, "inplace-pause:leader", 1, statement, {"cyclone.debug_horizon_wait": 200}) as parked:
        subscribe(conn, target)
    parked.finish()
    assert parked.messages == [STOPPED]
    assert conn.execute(PLACES).fetchone() == before
    assert content(conn, "t") == rows
    checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("make", [PLAIN, MAKE_VALUES])
def test_none_comes_while_rows_are_being_moved(cluster, db, conn, subscription, make):
    """From a batch's look to its commit; or a worker could begin to look for rows in between."""
    run_script(conn, make)
    rows = content(conn, "t")
    with Parked(cluster, db, "inplace-batch:leader", 1, MOVE) as parked:
        conn.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            subscribe(conn, "t")
        before = conn.execute(PLACES).fetchone()
    parked.finish()
    assert conn.execute(PLACES).fetchone() != before
    assert content(conn, "t") == rows
    checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("make", [PLAIN, MAKE_VALUES])
def test_who_drops_a_table_waits_for_no_batch(cluster, db, conn, make):
    """He needs pg_subscription_rel, too, but is not to be kept from it where there are no subscriptions; their makers are."""
    run_script(conn, make)
    rows = content(conn, "t")
    conn.execute("CREATE TABLE other ()")
    with Parked(cluster, db, "inplace-batch:leader", 1, MOVE) as parked:
        conn.execute("SET lock_timeout = '10s'; DROP TABLE other")
        conn.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute("CREATE SUBSCRIPTION s CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE)")
    parked.finish()
    assert content(conn, "t") == rows
    checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("committed", [True, False])
def test_a_subscription_counts_before_it_is_committed(cluster, db, conn, committed):
    """The session that makes the first one has then released its lock on pg_subscription, but not those on its tables."""
    run_script(conn, PLAIN)
    before = conn.execute(PLACES).fetchone()
    conn.execute("SET cyclone.debug_horizon_wait = 100")
    create = f"CREATE SUBSCRIPTION s_{db} CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE)"
    with cluster.connect(db) as other:
        other.execute(f"BEGIN; {create}")
        if committed:
            other.execute("COMMIT; BEGIN")
        subscribe(other, "t")
        assert other.execute(
            "SELECT FROM pg_locks WHERE relation = 'pg_subscription'::regclass AND pid = pg_backend_pid() AND mode = 'RowExclusiveLock'"
        ).fetchall() == []
        said = warnings_of(conn, INPLACE)
        assert said == [(STOPPED, "Subscriptions are being created or changed, and one may be about to write to it.")]
        assert conn.execute(PLACES).fetchone() == before
        other.execute("ROLLBACK")
    assert warnings_of(conn, INPLACE) == [] and blocks(conn) < 300
    if committed:
        conn.execute(f"DROP SUBSCRIPTION s_{db}")
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_who_is_about_to_subscribe_goes_first(cluster, db, conn, subscription):
    """He has queued for his lock behind a batch; the next one sees what he did."""
    run_script(conn, PLAIN)
    with Parked(cluster, db, "inplace-batch:leader", 1, INPLACE) as parked:
        coming = threading.Thread(target=subscribe, args=(conn, "t"))
        coming.start()
        waits = "SELECT FROM pg_locks WHERE relation = 'pg_subscription_rel'::regclass AND NOT granted"
        with cluster.connect(db) as other:
            wait_until(lambda: other.execute(waits).fetchall(), "somebody who subscribes")
    parked.finish()
    coming.join()
    # all was moved in that batch, or else there was another one
    assert parked.messages in ([STOPPED], [])
    assert conn.execute("SELECT count(*) FROM pg_subscription_rel WHERE srrelid = 't'::regclass").fetchone() == (1,)
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_subscriptions_that_are_being_changed(cluster, db, conn, subscription):
    """While a session is at it nothing moves; if the session doesn't end, it is given up, with a warning."""
    run_script(conn, PLAIN)
    before = conn.execute(PLACES).fetchone()
    with cluster.connect(db) as other:
        other.execute("BEGIN; LOCK TABLE pg_subscription_rel IN ROW EXCLUSIVE MODE")
        conn.execute("SET cyclone.debug_horizon_wait = 100")
        said = warnings_of(conn, INPLACE)
        assert said == [(STOPPED, "Subscriptions are being created or changed, and one may be about to write to it.")]
        assert conn.execute(PLACES).fetchone() == before
        held = "SELECT mode FROM pg_locks WHERE relation = 't'::regclass"
        assert conn.execute(held).fetchall() == []

        waiting = Background(cluster, db, INPLACE, {"cyclone.debug_horizon_wait": 300_000})
        naps = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'CycloneOtherTransactions'"
        wait_until(lambda: conn.execute(naps, (waiting.pid,)).fetchall(), "waiting for the end of that")
        assert conn.execute(PLACES).fetchone() == before
        other.execute("ROLLBACK")
        waiting.finish()
    assert waiting.messages == []
    assert blocks(conn) < 300
    checks.assert_clean(conn, "t")


@pytest.mark.once
def test_nothing_is_attached_above_a_table(cluster, db, conn):
    """Nor above a partitioned table that it is a partition of: who attaches locks all down to the leaves."""
    run_script(conn, LEAF)
    conn.execute("CREATE TABLE trunk (id int, filler text) PARTITION BY RANGE (id); ALTER TABLE root DETACH PARTITION branch")
    with Parked(cluster, db, "inplace-pause:leader", 1, MOVE) as parked:
        conn.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute("ALTER TABLE root ATTACH PARTITION branch FOR VALUES FROM (0) TO (1000000)")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute("ALTER TABLE trunk ATTACH PARTITION branch FOR VALUES FROM (0) TO (1000000)")
    parked.finish()
    assert blocks(conn) < 300


@pytest.mark.once
def test_a_table_that_is_detached_meanwhile(cluster, db, conn, subscription):
    """A partitioned table counts as one above until nobody can be on his way through it any more."""
    run_script(conn, LEAF)
    subscribe(conn, "root")
    with cluster.connect(db) as reader:
        reader.execute("BEGIN; SELECT FROM root LIMIT 0")
        detaching = Background(cluster, db, "ALTER TABLE root DETACH PARTITION branch CONCURRENTLY")
        pending = "SELECT FROM pg_inherits WHERE inhrelid = 'branch'::regclass AND inhdetachpending"
        wait_until(lambda: conn.execute(pending).fetchall(), "half a detachment")
        assert [text for text, _ in warnings_of(conn, INPLACE)] == [REFUSED.format('"t"')]
        reader.execute("ROLLBACK")
    detaching.finish()
    assert warnings_of(conn, INPLACE) == [] and blocks(conn) < 300


def test_no_change_is_lost(new_cluster):
    """Updates are applied while the leaf they go to is compacted again and again, before the subscription, while it comes, and after."""
    cluster = new_cluster(wal_level="logical", max_worker_processes=16, **{"cyclone.debug_horizon_wait": 100})
    for name in ("publisher", "subscriber"):
        cluster.sql(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    publisher, subscriber = cluster.connect("publisher"), cluster.connect("subscriber")
    last = 5000
    for conn in (publisher, subscriber):
        conn.execute("CREATE TABLE root (id int, v int, filler text) PARTITION BY RANGE (id)")
        conn.execute("CREATE TABLE t PARTITION OF root FOR VALUES FROM (0) TO (10000000)")
        conn.execute("ALTER TABLE root REPLICA IDENTITY FULL; ALTER TABLE t REPLICA IDENTITY FULL")
        conn.execute("INSERT INTO t SELECT i, 0, repeat('x', 200) FROM generate_series(1, %s) i" % last)
    publisher.execute("CREATE INDEX ON t (id); CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root = true)")
    publisher.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    stop = threading.Event()
    seen: list[str] = []
    failed: list[Exception] = []
    moved: list[int] = []

    def compact() -> None:
        """Rows of the beginning go, others come to the end, and all is compacted."""
        try:
            with cluster.connect("subscriber") as conn:
                conn.add_notice_handler(lambda message: seen.append(message.message_primary))
                while not stop.is_set():
                    conn.execute("INSERT INTO t SELECT 1000000 + i, 0, repeat('y', 200) FROM generate_series(1, 5000) i")
                    conn.execute("DELETE FROM t WHERE id >= 1000000")
                    conn.execute("VACUUM (FULL INPLACE, VERBOSE) t")
                    moved.append(1)
        except Exception as error:  # noqa: BLE001 (for the test to raise)
            failed.append(error)

    def publish(rounds: int) -> None:
        for i in range(rounds):
            first = i * 10 % last + 1
            publisher.execute("UPDATE root SET v = v + 1 WHERE id BETWEEN %s AND %s", (first, first + 9))

    compacting = threading.Thread(target=compact)
    compacting.start()
    try:
        publish(100)
        wait_until(lambda: moved, "compacting once")
        subscriber.execute(
            f"CREATE SUBSCRIPTION s CONNECTION 'host={cluster.socket_dir} dbname=publisher user=postgres'"
            " PUBLICATION p WITH (create_slot = false, slot_name = s, copy_data = false)"
        )
        publish(1500)
        [(lsn,)] = publisher.execute("SELECT pg_current_wal_lsn()").fetchall()
        there = "SELECT FROM pg_replication_slots WHERE slot_name = 's' AND confirmed_flush_lsn >= %s"
        wait_until(lambda: publisher.execute(there, (lsn,)).fetchall(), "catching up")
    finally:
        stop.set()
        compacting.join()
    assert not failed, failed
    assert any(text == REFUSED.format('"t"') for text in seen), "none came after the subscription"
    counted = "SELECT id, v FROM t WHERE id < 1000000 ORDER BY id"
    assert subscriber.execute(counted).fetchall() == publisher.execute(counted).fetchall()
    assert "update_missing" not in cluster.log
    checks.assert_clean(subscriber, "t")
    subscriber.execute("DROP SUBSCRIPTION s")


@pytest.fixture
def late_worker(new_cluster):
    """A subscriber whose worker is behind with changes of t, which is no table of its subscription any more.

    Yields the subscriber's server, a connection to it, and two functions: what lets the worker go on to where it has
    changed t and waits for a row of u, and what lets it catch up.
    """
    cluster = new_cluster(wal_level="logical", max_worker_processes=16)
    for name in ("publisher", "subscriber"):
        cluster.sql(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    with cluster.connect("publisher") as publisher, cluster.connect("subscriber") as subscriber:
        for conn in (publisher, subscriber):
            run_script(conn, PLAIN)
            conn.execute("CREATE TABLE u (id int PRIMARY KEY, v int); INSERT INTO u VALUES (1, 0), (2, 0)")
        publisher.execute("CREATE PUBLICATION p FOR TABLE t, u")
        publisher.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        subscriber.execute(
            f"CREATE SUBSCRIPTION s CONNECTION 'host={cluster.socket_dir} dbname=publisher user=postgres'"
            " PUBLICATION p WITH (create_slot = false, slot_name = s, copy_data = false)"
        )
        publisher.execute("UPDATE t SET filler = 'known' WHERE id = 20000")
        wait_until(lambda: subscriber.execute("SELECT FROM t WHERE filler = 'known'").fetchall(), "the first change")

        with cluster.connect("subscriber") as first, cluster.connect("subscriber") as second:
            first.execute("BEGIN; UPDATE u SET v = v WHERE id = 1")
            second.execute("BEGIN; UPDATE u SET v = v WHERE id = 2")
            publisher.execute("UPDATE u SET v = 1 WHERE id = 1")
            publisher.execute("BEGIN; UPDATE t SET filler = 'late' WHERE id = 20000; UPDATE u SET v = 1 WHERE id = 2; COMMIT")
            [(lsn,)] = publisher.execute("SELECT pg_current_wal_lsn()").fetchall()
            # what is sent after that begins with a description of t, at which the worker would ask the catalog again
            sent = "SELECT FROM pg_stat_replication WHERE sent_lsn >= %s"
            wait_until(lambda: publisher.execute(sent, (lsn,)).fetchall(), "the second change's being sent")
            publisher.execute("ALTER PUBLICATION p DROP TABLE t")
            subscriber.execute("ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = false)")
            assert subscriber.execute("SELECT srrelid::regclass::text FROM pg_subscription_rel").fetchall() == [("u",)]
            held = (
                "SELECT FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE relation = 't'::regclass"
                " AND mode = 'RowExclusiveLock' AND granted AND backend_type LIKE 'logical replication%'"
            )
            assert subscriber.execute(held).fetchall() == []

            def go_on() -> None:
                first.execute("ROLLBACK")
                wait_until(lambda: subscriber.execute(held).fetchall(), "the worker's lock on t")

            def catch_up() -> None:
                second.execute("ROLLBACK")
                wait_until(lambda: subscriber.execute("SELECT FROM u WHERE id = 2 AND v = 1").fetchall(), "catching up")

            yield cluster, subscriber, go_on, catch_up
        subscriber.execute("DROP SUBSCRIPTION s")


AT_WORK = [(STOPPED, "A worker of a subscription of logical replication writes to it.")]


def test_a_worker_that_goes_on_with_a_table_taken_from_its_subscription(late_worker):
    """It asks the catalog no more once it has found a table ready; as long as it has the table locked nothing moves."""
    _, conn, go_on, catch_up = late_worker
    go_on()
    before = conn.execute(PLACES).fetchone()
    conn.execute("SET cyclone.debug_horizon_wait = 100")
    assert warnings_of(conn, INPLACE) == AT_WORK
    assert conn.execute(PLACES).fetchone() == before
    catch_up()
    assert warnings_of(conn, INPLACE) == [] and blocks(conn) < 300
    assert conn.execute("SELECT filler FROM t WHERE id = 20000").fetchall() == [("late",)], "what the publisher had sent"
    checks.assert_clean(conn, "t")


def test_a_batch_is_undone_for_such_a_worker(late_worker):
    """It may have begun to look for a row before that was moved, so nothing is committed; and is done once more later."""
    cluster, conn, go_on, catch_up = late_worker
    before, rows = conn.execute(PLACES).fetchone(), content(conn, "t")
    with Parked(cluster, "subscriber", "inplace-look:leader", 1, MOVE, {"cyclone.debug_horizon_wait": 300_000}) as parked:
        go_on()
        parked.release()
        naps = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'CycloneOtherTransactions'"
        wait_until(lambda: conn.execute(naps, (parked.pid,)).fetchall(), "waiting for the worker's end")
        assert conn.execute(PLACES).fetchone() == before and content(conn, "t") == rows
        catch_up()
    parked.finish()
    assert parked.messages == []
    assert blocks(conn) < 300
    assert conn.execute("SELECT filler FROM t WHERE id = 20000").fetchall() == [("late",)]
    checks.assert_clean(conn, "t")


def test_room_that_was_filled_in_vain_is_filled_once_more(late_worker):
    """A batch that is undone leaves its rows in front, dead; they don't keep others from being moved in the next pass."""
    cluster, conn, go_on, catch_up = late_worker
    move = "VACUUM (FULL INPLACE, INDEX_CLEANUP off, VERBOSE) {}"
    rows = content(conn, "t")
    settings = {"cyclone.debug_horizon_wait": 300_000}
    with Parked(cluster, "subscriber", "inplace-look:any", 1, move.format("t"), settings) as parked:
        go_on()
        parked.release()
        naps = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'CycloneOtherTransactions'"
        wait_until(lambda: conn.execute(naps, (parked.pid,)).fetchall(), "waiting for the worker's end")
        assert content(conn, "t") == rows
        catch_up()
    parked.finish()
    assert any(re.search("rows moved back, as other sessions were at work on them: [1-9]", text) for text in parked.messages), parked.messages

    # now that nobody needs old versions any more
    run_script(conn, PLAIN.replace("TABLE t", "TABLE undisturbed").replace("INTO t", "INTO undisturbed").replace("FROM t", "FROM undisturbed"))
    undisturbed = [text for text, _ in warnings_of(conn, move.format("undisturbed"))]
    assert not any("moved back" in text for text in undisturbed)
    # a row or two may need another page than there
    assert blocks(conn) <= blocks(conn, "undisturbed") + 2
    checks.assert_clean(conn, "t")
