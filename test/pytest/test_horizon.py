"""The holders that keep dead rows from being removed: cyclone.horizon, and the line of VERBOSE and of the log, for each kind of holder.

Each holder's row is compared with what VACUUM does: rows stay as long as there is a holder, the cutoff that VACUUM reports is that of the
oldest one, and what the view names as the way to end it lets VACUUM remove them.
"""

import os
import re
import subprocess
from contextlib import contextmanager, suppress

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, create_with_template
from cyclone_lab.background import Background, Parked, wait_until
from cyclone_lab.postgres import program_env
from test_bloat import pages_read
from test_wraparound import report_of

ROWS = 1000
LINE = r"horizon: the removal of dead rows is held back by (.*)"


def rows(conn, where: str = "true") -> list[dict]:
    """Return the rows of the view, the oldest first."""
    cursor = conn.execute(f"SELECT * FROM cyclone.horizon_details WHERE {where}")
    return [dict(zip((column.name for column in cursor.description), row, strict=True)) for row in cursor]


def advice(conn) -> str:
    """The only row's statement that would end it, as if it had been there for hours; now there is none yet."""
    assert [row["how_to_end"] for row in rows(conn)] == [None]
    [(view,)] = conn.execute("SELECT pg_get_viewdef('cyclone.horizon_details'::regclass)")
    [(statement,)] = conn.execute(re.sub("'(00:01:00|01:00:00)'::interval", "'-1 day'::interval", f"SELECT how_to_end FROM ({view.strip(' ;')}) v"))
    return statement


def make_table(conn, name: str = "t") -> None:
    conn.execute(f"CREATE TABLE {name} (id int)")
    conn.execute(f"INSERT INTO {name} SELECT generate_series(1, {ROWS})")


def delete_half(conn, name: str = "t") -> None:
    conn.execute(f"DELETE FROM {name} WHERE id % 2 = 0")
    conn.execute("SELECT pg_stat_force_next_flush()")


def vacuum(conn, name: str = "t") -> dict:
    """VACUUM a table; return how many rows are dead but can't be removed, the cutoff, and who holds them."""
    report = report_of(conn, f"VACUUM (VERBOSE, TRUNCATE false) {name}")
    held = re.search(LINE, report)
    return {
        "dead": int(re.search(r"(\d+) are dead but not yet removable", report)[1]),
        "cutoff": int(re.search(r"removable cutoff: (\d+)", report)[1]),
        "holder": held and held[1],
        "said": report,
    }


@contextmanager
def open_transaction(cluster, db, *statements, begin="BEGIN"):
    with cluster.connect(db, application_name="holder") as session:
        session.execute(begin)
        for statement in statements:
            session.execute(statement)
        yield session
        with suppress(psycopg.OperationalError):
            session.execute("ROLLBACK")  # as the end of a connection is not the end of its transaction at once


def assert_held_by(conn, row: dict, description: str) -> None:
    """Half of the rows of t are dead, and held by this row of the view, until it is ended as it says."""
    assert row["is_oldest"] and row["is_oldest_for_catalogs"]
    held = vacuum(conn)
    assert (held["dead"], held["cutoff"]) == (ROWS // 2, int(row["xmin"])), held["said"]
    assert re.fullmatch(description, held["holder"]), held["holder"]
    [again] = rows(conn, "is_oldest")
    [(dead, held)] = conn.execute(
        "SELECT (SELECT sum(n_dead_tup) FROM pg_stat_all_tables WHERE relid NOT IN (SELECT oid FROM pg_class WHERE relisshared)),"
        " held_bytes FROM cyclone.bloat WHERE relation = 't'::regclass"
    )
    assert again["dead_rows"] == dead >= ROWS // 2
    assert again["dead_tables"][0] == "t"
    assert again["held_bytes"] >= held > 0


def assert_gone(conn) -> None:
    """Nobody holds anything now, and VACUUM removes the rows."""
    wait_until(lambda: rows(conn) == [], "the holder's end")
    free = vacuum(conn)
    assert free["dead"] == 0 and "horizon:" not in free["said"]


STAMP = r"\d{4}-\d\d-\d\d [\d:.+]+"
SESSIONS = {
    # how it begins, what it does, its state
    "writer": ("BEGIN", "SELECT pg_current_xact_id()", "idle in transaction"),
    "snapshot": ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM t", "idle in transaction"),
    "cursor": ("BEGIN", "DECLARE c CURSOR FOR SELECT FROM t", "idle in transaction"),
}


@pytest.mark.parametrize("kind", SESSIONS)
def test_a_session(cluster, db, conn, kind):
    make_table(conn)
    begin, statement, state = SESSIONS[kind]
    with open_transaction(cluster, db, statement, begin=begin) as session:
        delete_half(conn)
        [row] = rows(conn)
        pid = session.info.backend_pid
        assert (row["kind"], row["pid"], row["datname"], row["usename"]) == ("session", pid, db, "postgres")
        assert (row["application"], row["state"], row["query"]) == ("holder", state, statement)
        assert row["backend_type"] == "client backend"
        [(since, age)] = conn.execute(
            "SELECT xact_start, (SELECT age(coalesce(backend_xid, backend_xmin))) FROM pg_stat_activity WHERE pid = %s", [pid]
        )
        assert (row["since"], row["xmin_age"]) == (since, age)
        assert row["name"] is row["catalog_xmin"] is row["catalog_xmin_age"] is None
        assert_held_by(conn, row, rf"session {pid} \(user postgres, application holder, {state}, since {STAMP}\)")
        assert advice(conn) == f"SELECT pg_terminate_backend({pid});"
        conn.execute(advice(conn))
        assert_gone(conn)


def test_an_active_statement(cluster, db, conn):
    make_table(conn)
    conn.execute("SELECT pg_advisory_lock(1)")
    session = Background(cluster, db, "SELECT pg_advisory_lock(1)")
    # until it waits it may take another snapshot
    waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    wait_until(lambda: conn.execute(waiting, [session.pid]).fetchone(), "the statement")
    delete_half(conn)
    [row] = rows(conn)
    assert_held_by(conn, row, rf"session {session.pid} \(user postgres, active, since {STAMP}\)")
    conn.execute("SELECT pg_advisory_unlock(1)")
    session.finish()
    assert_gone(conn)


def test_a_prepared_transaction(cluster, db, conn):
    make_table(conn)
    with open_transaction(cluster, db, "SELECT pg_current_xact_id()") as session:
        session.execute("PREPARE TRANSACTION 'it''s'")
    delete_half(conn)
    [row] = rows(conn)
    assert (row["kind"], row["name"], row["pid"], row["datname"]) == ("prepared transaction", "it's", None, db)
    [(xid, prepared)] = conn.execute("SELECT transaction::text, prepared FROM pg_prepared_xacts")
    assert (row["xmin"], row["since"], row["usename"]) == (xid, prepared, "postgres")
    assert_held_by(conn, row, rf'prepared transaction "it\'s" \(user postgres, since {STAMP}\)')
    assert advice(conn).startswith("ROLLBACK PREPARED 'it''s'; --")
    conn.execute(advice(conn))
    assert_gone(conn)


@pytest.fixture(scope="module")
def replicating(prefix):
    """A primary with logical decoding, which has a standby that uses a slot and one that doesn't."""
    config = {"wal_level": "logical", "wal_receiver_status_interval": "1s"}
    with create_with_template(prefix, {**CONFIG, **config}) as primary:
        primary.start()
        yield primary


@pytest.mark.parametrize("with_slot", [True, False], ids=["slot", "no-slot"])
def test_a_standby(replicating, with_slot):
    primary = replicating
    with primary.connect(TEMPLATE) as conn, primary.standby({"hot_standby_feedback": "on", "max_standby_streaming_delay": -1}) as standby:
        conn.execute("DROP TABLE IF EXISTS t")
        make_table(conn)
        settings = f"{standby.data}/postgresql.auto.conf"
        if with_slot:
            conn.execute("SELECT pg_create_physical_replication_slot('it')")
            with open(settings, "a") as file:
                file.write("primary_slot_name = 'it'\n")
        standby.start()
        standby.wait_for_replay(primary)
        with open_transaction(standby, TEMPLATE, "SELECT count(*) FROM t", begin="BEGIN ISOLATION LEVEL REPEATABLE READ") as reader:
            before = int(reader.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())").fetchone()[0])
            with standby.connect(TEMPLATE) as other:
                assert [(row["kind"], row["pid"]) for row in rows(other)] == [("session", reader.info.backend_pid)]
            wait_until(lambda: any(int(row["xmin"] or 0) == before for row in rows(conn)), "feedback")
            conn.execute("CREATE TABLE IF NOT EXISTS more ()")  # another transaction, which the standby has not seen before
            delete_half(conn)
            [row] = rows(conn, "is_oldest")
            assert (row["application"], row["usename"]) == ("walreceiver", "postgres")
            assert "hot_standby_feedback = off" in row["how_to_end"]
            if with_slot:
                assert (row["kind"], row["name"]) == ("replication slot", "it")
                who = rf'replication slot "it" \(used by process {row["pid"]}, user postgres, application walreceiver, since {STAMP}\)'
            else:
                assert (row["kind"], row["name"], row["datname"]) == ("standby", None, None)
                who = rf"a standby, fed by process {row['pid']} \(user postgres, application walreceiver, active, since {STAMP}\)"
            assert_held_by(conn, row, who)
        if with_slot:
            # what nobody uses any more, as it was left behind
            with open_transaction(standby, TEMPLATE, "SELECT count(*) FROM t", begin="BEGIN ISOLATION LEVEL REPEATABLE READ"):
                standby.stop("immediate")
            wait_until(lambda: rows(conn, "kind = 'replication slot' AND pid IS NULL"), "the standby's end")
            conn.execute("INSERT INTO t SELECT generate_series(1, 10)")
            conn.execute("DELETE FROM t WHERE id <= 10")
            [row] = rows(conn)
            held = vacuum(conn)
            assert held["dead"] > 0 and re.fullmatch(rf'replication slot "it" \(not used since {STAMP}\)', held["holder"]), held["said"]
            assert advice(conn) == "SELECT pg_drop_replication_slot('it');"
            conn.execute(advice(conn))
        else:
            # the standby's statements are ended by its settings, as the view says
            standby.sql("ALTER SYSTEM SET hot_standby_feedback = off")
            standby.sql("SELECT pg_reload_conf()")
            row = wait_until(lambda: (found := rows(conn)) and found[0]["kind"] == "standby without feedback" and found[0], "the end of feedback")
            assert (row["application"], row["xmin"], row["is_oldest"]) == ("walreceiver", None, False)
            assert "hot_standby_feedback = on" in row["how_to_end"]
            standby.stop()
        assert_gone(conn)


def test_a_slot_for_logical_decoding(replicating):
    """It holds catalogs, not tables."""
    with replicating.connect(TEMPLATE) as conn:
        conn.execute("DROP TABLE IF EXISTS t")
        make_table(conn)
        conn.execute("CREATE TABLE c (id int) WITH (user_catalog_table = on)")
        conn.execute(f"INSERT INTO c SELECT generate_series(1, {ROWS})")
        conn.execute("CREATE PUBLICATION nothing")
        conn.execute("SELECT pg_create_logical_replication_slot('it', 'pgoutput')")
        delete_half(conn)
        delete_half(conn, "c")
        [row] = rows(conn)
        assert (row["kind"], row["name"], row["pid"], row["datname"]) == ("replication slot", "it", None, TEMPLATE)
        assert (row["is_oldest"], row["is_oldest_for_catalogs"], row["xmin"], row["dead_rows"]) == (False, True, None, None)
        assert row["catalog_xmin"] == conn.execute("SELECT catalog_xmin::text FROM pg_replication_slots").fetchone()[0]
        assert row["catalog_xmin_age"] > 0
        assert vacuum(conn)["dead"] == 0
        held = vacuum(conn, "c")
        assert (held["dead"], held["cutoff"]) == (ROWS // 2, int(row["catalog_xmin"]))
        assert re.fullmatch(rf'replication slot "it" \(not used since {STAMP}\)', held["holder"])
        assert advice(conn) == "SELECT pg_drop_replication_slot('it');"
        # nobody is told to end who is at work
        options = ["-o", "proto_version=1", "-o", "publication_names=nothing", "--start", "--no-loop", "-f", os.devnull]
        receive = [replicating.prefix / "bin/pg_recvlogical", "-d", TEMPLATE, "--slot", "it", *options]
        with subprocess.Popen(receive, env=program_env(replicating.prefix, **replicating.client_env()), stderr=subprocess.DEVNULL) as receiver:
            wait_until(lambda: rows(conn, "kind = 'replication slot' AND pid IS NOT NULL"), "the subscriber")
            assert not any(row["how_to_end"] for row in rows(conn, "kind = 'replication slot'"))
            receiver.terminate()
        wait_until(lambda: rows(conn, "kind = 'replication slot' AND pid IS NULL"), "the subscriber's end")
        conn.execute(advice(conn))
        assert rows(conn) == []
        assert vacuum(conn, "c")["dead"] == 0


def test_who_does_not_hold_anything(cluster, db, conn):
    """VACUUM and its workers; parallel workers of a query have no row of their own; nor has the session that asks."""
    conn.execute("CREATE TABLE t (id int) WITH (fillfactor = 10)")
    conn.execute("INSERT INTO t SELECT generate_series(1, 14000)")
    with Parked(cluster, db, "heap-scan:any", 3, "VACUUM (PARALLEL 2) t"):
        [(shown,)] = conn.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND query LIKE 'VACUUM%'")
        assert shown >= 1
        assert rows(conn) == []
    conn.execute("CREATE FUNCTION wait() RETURNS bool LANGUAGE plpgsql PARALLEL SAFE AS"
                 " 'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN true; END'")  # fmt: skip
    settings = {"parallel_setup_cost": 0, "parallel_tuple_cost": 0, "min_parallel_table_scan_size": 0, "debug_parallel_query": "on"}
    conn.execute("SELECT pg_advisory_lock(7)")
    query = Background(cluster, db, "SELECT count(*) FROM t WHERE wait()", settings)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE leader_pid = %s AND wait_event_type = 'Lock' AND backend_xmin IS NOT NULL"
    wait_until(lambda: conn.execute(waiting, [query.pid]).fetchone()[0] >= 1, "a worker")
    assert [row["pid"] for row in rows(conn)] == [query.pid]
    conn.execute("SELECT pg_advisory_unlock(7)")
    query.finish()
    assert rows(conn) == []
    # a transaction block of one's own may hold rows for as long as any
    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert [row["pid"] for row in rows(conn)] == [conn.info.backend_pid]
    conn.execute("COMMIT")


def test_databases(cluster, db, conn):
    """A transaction holds the tables of its own database; the oldest is told for each."""
    make_table(conn)
    with open_transaction(cluster, "postgres", "SELECT pg_current_xact_id()") as elsewhere:
        with open_transaction(cluster, db, "SELECT pg_current_xact_id()") as here, open_transaction(cluster, db, "SELECT pg_current_xact_id()") as later:
            delete_half(conn)
            found = rows(conn)
            sessions = [elsewhere, here, later]
            assert [row["pid"] for row in found] == [session.info.backend_pid for session in sessions]
            assert [(row["datname"], row["is_oldest"]) for row in found] == [("postgres", True), (db, True), (db, False)]
            assert [row["dead_rows"] is not None for row in found] == [False, True, False]
            held = vacuum(conn)
            assert (held["dead"], held["cutoff"]) == (ROWS // 2, int(found[1]["xmin"]))
            assert f"session {here.info.backend_pid} " in held["holder"]
        assert vacuum(conn)["dead"] == 0
        # but shared catalogs are held by all
        conn.execute("CREATE ROLE nobody_yet")
        conn.execute("DROP ROLE nobody_yet")
        assert f"session {elsewhere.info.backend_pid} " in vacuum(conn, "pg_authid")["holder"]


def test_a_query_in_another_encoding(cluster, db, conn, latin):
    with open_transaction(cluster, latin, "SELECT pg_current_xact_id() /* größe */") as session:
        [row] = rows(conn, f"pid = {session.info.backend_pid}")
        assert row["query"] == "SELECT pg_current_xact_id() /* gr??e */"
        with cluster.connect(latin) as there:
            assert rows(there, f"pid = {session.info.backend_pid}")[0]["query"] == "SELECT pg_current_xact_id() /* größe */"


def test_tables_are_read_once_and_for_who_asks_only(cluster, db, conn):
    make_table(conn)
    with open_transaction(cluster, db, "SELECT count(*) FROM t", begin="BEGIN ISOLATION LEVEL REPEATABLE READ"):
        with open_transaction(cluster, db, "SELECT count(*) FROM t", begin="BEGIN ISOLATION LEVEL REPEATABLE READ"):
            delete_half(conn)
            assert len(rows(conn, "is_oldest")) == 2
            [(pages,)] = conn.execute(
                "SELECT sum(least(200, pg_relation_size(relid) / 8192)) FROM (SELECT relid FROM cyclone.dead_tables() LIMIT 5) t"
            )
            assert pages_read(conn, "SELECT held_bytes FROM cyclone.horizon_details") == pages > 0
            assert pages_read(conn, "SELECT held_bytes, held_bytes + 1 FROM cyclone.horizon_details WHERE held_bytes > 0 ORDER BY held_bytes") == pages
            for query in ("SELECT kind, dead_rows, dead_tables, how_to_end FROM cyclone.horizon_details WHERE is_oldest",
                          "SELECT count(*) FROM cyclone.horizon"):  # fmt: skip
                assert pages_read(conn, query) == 0


def test_a_holder_that_has_ended(cluster, db, conn):
    """VACUUM found rows that it could not remove, and by the time it ends another could."""
    make_table(conn)
    with open_transaction(cluster, db, "SELECT pg_current_xact_id()") as session:
        delete_half(conn)
        with Parked(cluster, db, "heap-scan:leader", 1, "VACUUM (VERBOSE, PARALLEL 0) t") as parked:
            session.execute("COMMIT")
            parked.finish()
    [report] = [message for message in parked.messages if "finished vacuuming" in message]
    assert f"{ROWS // 2} are dead but not yet removable" in report
    assert "horizon: the removal of dead rows is not held back any more" in report


def test_freezing_alone(cluster, db, conn):
    """No row is dead, but old ones can't be frozen: by the age that is asked for, and only as long as there is a holder."""
    make_table(conn)
    with open_transaction(cluster, db, "SELECT pg_current_xact_id()") as session:
        held = f"horizon: freezing is held back by session {session.info.backend_pid} (user "
        for _ in range(3):
            conn.execute("SELECT pg_current_xact_id()")
        assert "horizon:" not in report_of(conn, "VACUUM (VERBOSE) t")
        assert held in report_of(conn, "VACUUM (VERBOSE, FREEZE) t")
        conn.execute("SET vacuum_freeze_min_age = 3")
        assert held in report_of(conn, "VACUUM (VERBOSE) t")
        # rows that are dead have the line to themselves
        delete_half(conn)
        assert re.findall("horizon: .* held back by", report_of(conn, "VACUUM (VERBOSE) t")) == [LINE.removesuffix(" (.*)")]
    wait_until(lambda: rows(conn) == [], "the holder's end")
    assert "horizon:" not in report_of(conn, "VACUUM (VERBOSE, FREEZE) t")


@pytest.mark.parametrize("prepared", [False, True], ids=["session", "prepared"])
def test_full(cluster, db, conn, prepared):
    make_table(conn)
    with open_transaction(cluster, db, "SELECT pg_current_xact_id()") as session:
        if prepared:
            session.execute("PREPARE TRANSACTION 'full'")
        delete_half(conn)
        said = report_of(conn, "VACUUM (FULL, VERBOSE) t")
        who = 'prepared transaction "full" ' if prepared else f"session {session.info.backend_pid} "
        assert f"{ROWS // 2} dead row versions cannot be removed yet" in said
        assert re.search(LINE, said)[1].startswith(who)
    if prepared:
        conn.execute("ROLLBACK PREPARED 'full'")
    assert "horizon:" not in report_of(conn, "VACUUM (FULL, VERBOSE) t")


def test_multixacts(cluster, db, conn):
    """A transaction that may need the oldest multixact has its age; which one it is nobody can tell."""
    conn.execute("CREATE TABLE m (id int PRIMARY KEY)")
    conn.execute("INSERT INTO m VALUES (1), (2)")
    with open_transaction(cluster, db, "SELECT FROM m WHERE id = 1 FOR SHARE") as first:
        assert [row["multixact_age"] for row in rows(conn)] == [None]
        with open_transaction(cluster, db, "SELECT FROM m WHERE id = 1 FOR SHARE") as second:
            found = rows(conn, "multixact_age IS NOT NULL")
            assert {row["pid"] for row in found} >= {first.info.backend_pid, second.info.backend_pid}
            assert all(row["multixact_age"] > 0 for row in found)
    assert rows(conn) == []
    with open_transaction(cluster, db, "SELECT FROM m WHERE id = 2 FOR SHARE") as session:
        session.execute("PREPARE TRANSACTION 'm'")
    with open_transaction(cluster, db, "SELECT FROM m WHERE id = 2 FOR SHARE"):
        [row] = rows(conn, "kind = 'prepared transaction'")
        assert row["multixact_age"] > 0
    conn.execute("ROLLBACK PREPARED 'm'")


def test_privileges(cluster, db, conn):
    """Of others' sessions there is what pg_stat_activity shows; so it is in VERBOSE, for a table of any owner."""
    conn.execute("CREATE ROLE plain LOGIN")
    conn.execute("CREATE ROLE watcher LOGIN IN ROLE pg_read_all_stats")
    make_table(conn)
    conn.execute("GRANT SELECT, MAINTAIN ON t TO plain, watcher")
    with open_transaction(cluster, db, "SELECT pg_current_xact_id() /* secret */") as session:
        delete_half(conn)
        pid = session.info.backend_pid
        with cluster.connect(db, user="plain") as plain:
            [row] = rows(plain)
            assert (row["pid"], row["usename"], row["application"], row["datname"]) == (pid, "postgres", "holder", db)
            masked = ("backend_type", "state", "query", "since")
            assert all(row[column] is None for column in masked)
            [shown] = plain.execute(
                "SELECT backend_type, state, nullif(query, '<insufficient privilege>'), xact_start FROM pg_stat_activity WHERE pid = %s", [pid]
            )
            assert shown == (None,) * 4
            assert vacuum(plain)["holder"] == f"session {pid} (user postgres, application holder)"
        with cluster.connect(db, user="watcher") as watcher:
            [row] = rows(watcher)
            assert row["query"] == "SELECT pg_current_xact_id() /* secret */" and row["state"] == "idle in transaction"
            assert "idle in transaction, since" in vacuum(watcher)["holder"]
    with cluster.connect(db, user="plain") as own, open_transaction(cluster, db, "SELECT pg_current_xact_id()"):
        own.execute("BEGIN")
        own.execute("SELECT pg_current_xact_id()")
        with cluster.connect(db, user="plain") as plain:
            assert [row["state"] for row in rows(plain)] == [None, "idle in transaction"]
        own.execute("COMMIT")


def test_figures_of_tables_that_one_may_not_see(cluster, db, conn):
    conn.execute("CREATE ROLE plain LOGIN")
    make_table(conn)
    with open_transaction(cluster, db, "SELECT pg_current_xact_id()"):
        delete_half(conn)
        with cluster.connect(db, user="plain") as plain:
            [row] = rows(plain)
            # as in pg_stat_all_tables, and as in cyclone.bloat
            assert row["dead_rows"] >= ROWS // 2 and row["dead_tables"][0] == "t" and row["held_bytes"] is None


def test_the_log_names_the_holder(new_cluster):
    cluster = new_cluster(
        autovacuum="on", autovacuum_naptime="1s", autovacuum_analyze_threshold=1_000_000_000, log_autovacuum_min_duration=0,
        **{"cyclone.autovacuum": "on"},
    )  # fmt: skip
    with cluster.connect(TEMPLATE) as conn, open_transaction(cluster, TEMPLATE, "SELECT pg_current_xact_id()") as session:
        make_table(conn)
        delete_half(conn)
        pattern = rf"automatic vacuum of table \"{TEMPLATE}\.public\.t\"(?:.*\n\t)*?.*{LINE}"
        found = wait_until(lambda: re.search(pattern, cluster.log), "the log's report")
        assert re.fullmatch(rf"session {session.info.backend_pid} \(user postgres, application holder, idle in transaction, since {STAMP}\)", found[1])
