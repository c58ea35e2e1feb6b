"""A crash of the server in the midst of a VACUUM FULL leaves no file behind once it has started again, and nothing is
removed that belongs to anything."""

import os
import shutil
import signal
import time
from pathlib import Path

import psycopg
import pytest

from conftest import TEMPLATE, every_other
from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.files import (  # fmt: skip
    BEGIN,
    FILE,
    TRIED,
    database_folders,
    journal_header,
    journal_record,
    journals,
    missing_files,
    stray_files,
    wait_for_cleaning,
)

FULL = "VACUUM (FULL, PARALLEL 2) t"
SETTINGS = {"cyclone.debug_workers": 2, "max_parallel_maintenance_workers": 2}
POINTS = {
    "before the first file": "rewrite-begun:leader",
    "files created": "rewrite-created:leader",
    "copying": "heap-copy:any",
    "before the swap": "rewrite-swap:leader",
    "building an index": "no-point:any",
    "before the commit": "rewrite-swapped:leader",
}
DEFAULT_TABLESPACE = 1663
REMOVED = " of an unfinished VACUUM FULL"


def make_table(cluster, conn, kind: str = "") -> dict:
    """Make table t with a TOAST table, in one tablespace, with indexes in this and others, and room to gain; return its
    state. One of its indexes takes an advisory lock for each row, so that a test can stop its building.
    """
    for name in ("one", "two"):
        folder = cluster.home / f"tablespace-{name}"
        if not folder.exists():
            hand_to_owner(cluster, folder, folder.mkdir)
            conn.execute(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
    conn.execute(
        """
        CREATE OR REPLACE FUNCTION same(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock_shared(51966); RETURN i; END $$
        """
    )
    conn.execute(f"CREATE {kind} TABLE t (id int, note text, big text) TABLESPACE one")
    conn.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    conn.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    conn.execute("CREATE INDEX t_note ON t USING hash (note) TABLESPACE two")
    conn.execute("CREATE INDEX t_same ON t (same(id)) TABLESPACE two")
    conn.execute("CREATE INDEX t_last ON t (note)")
    fill(conn)
    assert stray_files(cluster, conn) == missing_files(cluster, conn) == []
    return checks.table_state(conn, "t")


def fill(conn) -> None:
    """Put rows into table t, and take away some."""
    conn.execute("INSERT INTO t SELECT i, md5(i::text), repeat(md5(i::text), 100) FROM generate_series(1, 2000) i")
    conn.execute("DELETE FROM t WHERE id % 3 = 0")
    conn.execute("VACUUM (INDEX_CLEANUP on) t")


def hand_to_owner(cluster, path: Path, make=None) -> None:
    """Make a file or folder, and give it to who owns the data."""
    if make:
        make()
    owner = cluster.data.stat()
    os.chown(path, owner.st_uid, owner.st_gid)


def park(cluster, point: str, dbname: str = TEMPLATE) -> Parked:
    """Have a VACUUM FULL come to this point."""
    return Parked(cluster, dbname, point, 1, FULL, SETTINGS)


def crash_at(cluster, point: str) -> None:
    """Have a VACUUM FULL come to this point, then kill every process."""
    with park(cluster, point) as vacuum:
        cluster.crash()
        assert isinstance(vacuum.wait(), psycopg.OperationalError)


def assert_sound(cluster, conn, before: dict) -> None:
    """Check the files of the database, and that table t is as it was."""
    assert stray_files(cluster, conn) == missing_files(cluster, conn) == []
    assert checks.same_rows(checks.table_state(conn, "t"), before)
    checks.assert_clean(conn, "t")


def assert_cleaned(cluster, before: dict) -> None:
    """The server, which has started, removes what a VACUUM FULL has left; see then that all is as it was."""
    wait_for_cleaning(cluster)
    with cluster.connect(TEMPLATE) as conn:
        assert_sound(cluster, conn, before)


@pytest.fixture
def filled(new_cluster):
    """A function that makes a server with these settings, and table t; returns it, and the table's state."""

    def make(kind: str = "", **config) -> tuple[Cluster, dict]:
        cluster = new_cluster(**config)
        with cluster.connect(TEMPLATE) as conn:
            return cluster, make_table(cluster, conn, kind)

    return make


def write_journal(cluster, *records: bytes) -> Path:
    """Put a journal of these records into a stopped server."""
    path = cluster.data / "pg_cyclone" / "rewrite-forged"
    if not path.parent.exists():
        hand_to_owner(cluster, path.parent, path.parent.mkdir)
    path.write_bytes(b"".join(records))
    hand_to_owner(cluster, path)
    return path


def identity(conn) -> tuple[int, int]:
    """Return the system identifier, and the OID of the connection's database."""
    return conn.execute(
        "SELECT (SELECT system_identifier FROM pg_control_system()),"
        " (SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchone()


def dropped_table(cluster, conn) -> tuple[int, Path]:
    """Make a table and drop it; return the number of its file, which nothing has any more, and where it was."""
    conn.execute("CREATE TABLE dropped AS SELECT 1 AS one")
    [(dropped,)] = conn.execute("SELECT relfilenode FROM pg_class WHERE oid = 'dropped'::regclass")
    [path] = [folder / str(dropped) for folder in database_folders(cluster, conn) if folder.parent.name == "base"]
    conn.execute("DROP TABLE dropped")
    conn.execute("CHECKPOINT")
    return dropped, path


def aborted_transaction(conn) -> int:
    """Return the ID of a transaction that was rolled back."""
    with conn.transaction(force_rollback=True):
        return int(conn.execute("SELECT pg_current_xact_id()::text").fetchone()[0])


@every_other("wal_level, kind", ["minimal", "replica"], ["", pytest.param("UNLOGGED", marks=pytest.mark.once)])
def test_nothing_is_left_over_by_a_crash(filled, wal_level, kind):
    cluster, before = filled(kind, wal_level=wal_level, **({"max_wal_senders": 0} if wal_level == "minimal" else {}))
    empty = {**before, "rows": 0, "content_hash": None}
    for what, point in POINTS.items():
        crash_at(cluster, point)
        assert len(journals(cluster)) == 1, what
        cluster.start()
        wait_for_cleaning(cluster)
        with cluster.connect(TEMPLATE) as conn:
            assert_sound(cluster, conn, empty if kind else before)
            if kind:
                fill(conn)
    assert cluster.log.count(REMOVED) > len(POINTS)
    with cluster.connect(TEMPLATE) as conn:
        conn.execute(FULL)
        assert_sound(cluster, conn, before)
        assert journals(cluster) == []
    assert "PANIC" not in cluster.log and "TRAP" not in cluster.log


@pytest.mark.once
def test_nothing_is_left_over_of_the_server_s_builds_with_workers(new_cluster):
    cluster = new_cluster()
    gate = cluster.data / "gate"
    with cluster.connect(TEMPLATE) as conn:
        before = make_table(cluster, conn)
        # waits as long as there is the file
        conn.execute(
            """
            CREATE FUNCTION held(i int) RETURNS int IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
            BEGIN
                WHILE (pg_stat_file('gate', true)).size IS NOT NULL LOOP
                    PERFORM pg_sleep(0.01);
                END LOOP;
                RETURN i;
            END $$
            """
        )
        conn.execute("CREATE INDEX t_held ON t (held(id))")  # with another that isn't ours, so that the server builds all
        hand_to_owner(cluster, gate, gate.touch)
        vacuum = Background(cluster, TEMPLATE, FULL, {**SETTINGS, "maintenance_work_mem": "256MB"})
        sleeping = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        wait_until(lambda: conn.execute(sleeping).fetchall() != [] or not vacuum.running, "the last index")
        assert vacuum.running
        assert len(stray_files(cluster, conn)) > 5
    cluster.crash()
    assert isinstance(vacuum.wait(), psycopg.OperationalError)
    gate.unlink()
    cluster.start()
    wait_for_cleaning(cluster)
    with cluster.connect(TEMPLATE) as conn:
        assert_sound(cluster, conn, before)
        conn.execute(FULL)
        assert_sound(cluster, conn, before)


@pytest.mark.once
def test_several_rewrites_in_several_databases(filled):
    """One of them lets nobody in, one has been dropped."""
    cluster, before = filled()
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE TABLE u AS SELECT * FROM generate_series(1, 1000) id")
    for name in ("closed", "other"):
        cluster.sql(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    with (
        park(cluster, "rewrite-swap:leader") as first,
        park(cluster, "rewrite-swapped:leader", "closed") as second,
        park(cluster, "rewrite-created:leader", "other"),
    ):
        third = Background(cluster, TEMPLATE, "VACUUM FULL u", {"cyclone.debug_point": "rewrite-swapped:leader:wait"})
        first.wait_for(2)
        cluster.sql("ALTER DATABASE closed ALLOW_CONNECTIONS off")
        assert len(journals(cluster)) == 4
        gone = journals(cluster)[2].read_bytes()
        cluster.crash()
        assert None not in (first.wait(), second.wait(), third.wait())
    # a journal of a database that is gone has no files any more
    cluster.start()
    wait_for_cleaning(cluster)
    cluster.sql("DROP DATABASE other")
    cluster.sql("ALTER DATABASE closed ALLOW_CONNECTIONS on")
    for name in (TEMPLATE, "closed"):
        with cluster.connect(name) as conn:
            assert_sound(cluster, conn, before)
    cluster.stop()
    write_journal(cluster, gone)
    cluster.start()
    wait_for_cleaning(cluster)


@pytest.mark.once
def test_without_a_free_worker_files_remain_until_there_is_one(filled):
    cluster, before = filled()
    crash_at(cluster, "rewrite-swapped:leader")
    cluster.config["max_worker_processes"] = 0
    cluster.start()
    wait_until(lambda: "no background worker is free" in cluster.log, "the message")
    assert len(journals(cluster)) == 1
    cluster.config["max_worker_processes"] = 8
    cluster.restart()
    assert_cleaned(cluster, before)


@pytest.mark.once
def test_a_database_s_timeout_does_not_keep_its_files(filled):
    """A prepared transaction has the lock for which VACUUM FULL, and after the crash the worker, waits longer than that."""
    cluster, before = filled()
    with cluster.connect(TEMPLATE) as conn:
        conn.execute(f"ALTER DATABASE {TEMPLATE} SET cyclone.debug_point = 'leftovers-clean:worker:wait'")
        conn.execute(f"ALTER DATABASE {TEMPLATE} SET transaction_timeout = '200ms'")
        conn.execute("BEGIN")
        conn.execute("SELECT pg_advisory_xact_lock(51966)")
        conn.execute("PREPARE TRANSACTION 'gate'")
        vacuum = Background(cluster, TEMPLATE, FULL, {**SETTINGS, "transaction_timeout": 0})
        waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: conn.execute(waiting).fetchall(), "the building of an index")
    cluster.crash()
    assert isinstance(vacuum.wait(), psycopg.OperationalError)
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        wait_until(lambda: conn.execute(waiting).fetchall(), "the worker")
        time.sleep(0.5)
        conn.execute("ROLLBACK PREPARED 'gate'")
        conn.execute(f"ALTER DATABASE {TEMPLATE} RESET ALL")
    assert_cleaned(cluster, before)
    assert "transaction timeout" not in cluster.log


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_files_of_a_transaction_that_ended_in_time_stay(filled, end):
    """A crash between the end of a transaction and that of its journal is made by putting a copy of the journal back."""
    cluster, before = filled()
    with park(cluster, "rewrite-swapped:leader") as vacuum:
        [journal] = journals(cluster)
        copy = journal.read_bytes()
        if end == "rollback":
            cluster.sql(f"SELECT pg_cancel_backend({vacuum.pid})")
        vacuum.release()
        assert (vacuum.wait() is None) == (end == "commit")
    wait_for_cleaning(cluster)
    for stop in (cluster.stop, cluster.crash):
        stop()
        write_journal(cluster, copy)
        assert_cleaned(cluster.start(), before)
    assert REMOVED not in cluster.log


@pytest.mark.once
def test_files_that_belong_to_something_stay_whatever_a_journal_says(filled):
    """Tables, indexes, catalogs, and what a prepared transaction has created are named by a journal of a transaction that
    was rolled back."""
    cluster, before = filled()
    with cluster.connect(TEMPLATE) as conn:
        system_id, database = identity(conn)
        xid = aborted_transaction(conn)
        conn.execute("BEGIN")
        conn.execute("CREATE TABLE prepared AS SELECT 1 AS one")
        conn.execute("TRUNCATE t")
        files = conn.execute(
            "SELECT coalesce(nullif(reltablespace, 0), %s), pg_relation_filenode(oid) FROM pg_class"
            " WHERE pg_relation_filenode(oid) IS NOT NULL AND NOT relisshared", (DEFAULT_TABLESPACE,)
        ).fetchall()  # fmt: skip
        conn.execute("PREPARE TRANSACTION 'p'")
        files += conn.execute(
            "SELECT reltablespace, relfilenode FROM pg_class WHERE oid IN ('t'::regclass, 't_note'::regclass)"
        ).fetchall()
        dropped, stray = dropped_table(cluster, conn)
    cluster.stop()
    # and one that belongs to nothing, to see that the journal is believed
    hand_to_owner(cluster, stray, lambda: stray.write_bytes(bytes(8192)))
    journal = write_journal(
        cluster,
        journal_header(),
        journal_record(system_id, BEGIN, database, next_oid=dropped, number=xid),
        *(journal_record(system_id, FILE, database, tablespace=tablespace, file=file) for tablespace, file in files),
        journal_record(system_id, FILE, database, tablespace=DEFAULT_TABLESPACE, file=dropped),
    )
    cluster.start()
    wait_until(lambda: not journal.exists(), "the cleaning")
    assert cluster.log.count(REMOVED) == 1 and f"/{dropped}\"{REMOVED}" in cluster.log
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("ROLLBACK PREPARED 'p'")
        assert_sound(cluster, conn, before)


@pytest.mark.once
def test_files_not_yet_named_are_those_that_are_empty(filled):
    """Others that belong to nothing are left alone: those that hold something, or have a name from before the rewrite."""
    cluster, before = filled()
    with cluster.connect(TEMPLATE) as conn:
        [(oid,)] = conn.execute("SELECT lo_creat(-1)")
        default, *_ = folders = database_folders(cluster, conn)
        kept = {default / str(oid - 1): 0, default / str(oid + 100): 8192, default / f"{oid + 200}_fsm": 0,
                default / f"{oid + 300}x": 0, default / f"{oid + 300}.1": 0}  # fmt: skip
        ours = [folder / str(oid + 400) for folder in folders]
    crash_at(cluster, "rewrite-begun:leader")
    for file, size in {**kept, **dict.fromkeys(ours, 0)}.items():
        hand_to_owner(cluster, file, lambda: file.write_bytes(bytes(size)))
    cluster.start()
    wait_for_cleaning(cluster)
    with cluster.connect(TEMPLATE) as conn:
        assert stray_files(cluster, conn) == sorted(str(file.relative_to(cluster.data)) for file in kept)
        for file in kept:
            file.unlink()
        assert_sound(cluster, conn, before)


@pytest.mark.once
def test_a_journal_that_is_no_good_does_no_harm(filled):
    """Nor does it keep the server from starting."""
    cluster, before = filled()
    for what in ("garbage", "empty", "other cluster", "to come", "torn", "tried", "committed"):
        with cluster.connect(TEMPLATE) as conn:
            system_id, database = identity(conn)
            xid = aborted_transaction(conn)
            if what == "committed":
                [(xid,)] = conn.execute("SELECT pg_current_xact_id()::text::int")
            [(oid,)] = conn.execute("SELECT lo_creat(-1)")
            stray = database_folders(cluster, conn)[0] / str(oid + 100)
        cluster.stop()
        hand_to_owner(cluster, stray, lambda: stray.write_bytes(bytes(8192)))
        if what == "other cluster":
            system_id += 1
        begin = journal_record(system_id, BEGIN, database, next_oid=oid, number=xid + (1000 if what == "to come" else 0))
        file = journal_record(system_id, FILE, database, tablespace=DEFAULT_TABLESPACE, file=oid + 100, next_oid=oid)
        contents = {"garbage": [os.urandom(1000)], "empty": [], "torn": [journal_header(), begin, file[:-1]],
                    "tried": [journal_header(), begin, file, *[journal_record(system_id, TRIED, 0)] * 3]}  # fmt: skip
        write_journal(cluster, *contents.get(what, [journal_header(), begin, file]))
        cluster.start()
        wait_for_cleaning(cluster)
        assert stray.exists() and REMOVED + "\n" not in cluster.log, what
        kept = list((cluster.data / "pg_cyclone").glob("rewrite-*.damaged"))
        assert [path.read_bytes() for path in kept] == ([b"".join(contents[what])] if what in ("garbage", "empty", "torn") else []), what
        for path in (stray, *kept):
            path.unlink()
        with cluster.connect(TEMPLATE) as conn:
            assert_sound(cluster, conn, before)


def test_a_journal_that_cannot_be_read_stays(filled):
    """Until it can be read: then the files that it names are removed."""
    cluster, before = filled()
    with cluster.connect(TEMPLATE) as conn:
        system_id, database = identity(conn)
        xid = aborted_transaction(conn)
        dropped, stray = dropped_table(cluster, conn)
    cluster.stop()
    hand_to_owner(cluster, stray, lambda: stray.write_bytes(bytes(8192)))
    journal = write_journal(
        cluster,
        journal_header(),
        journal_record(system_id, BEGIN, database, next_oid=dropped, number=xid),
        journal_record(system_id, FILE, database, tablespace=DEFAULT_TABLESPACE, file=dropped),
    )
    journal.chmod(0)
    cluster.start()
    assert f'could not read file "pg_cyclone/{journal.name}": Permission denied' in cluster.log
    assert stray.exists() and journals(cluster) == [journal]
    cluster.stop()
    journal.chmod(0o600)
    cluster.start()
    wait_for_cleaning(cluster)
    assert cluster.log.count(REMOVED) == 1 and f"/{dropped}\"{REMOVED}" in cluster.log
    with cluster.connect(TEMPLATE) as conn:
        assert_sound(cluster, conn, before)


@pytest.mark.once
def test_without_a_journal_there_is_no_rewrite(new_cluster):
    """A failed write of the first journal is an error, of a later one a warning."""
    cluster = new_cluster()  # of its own, as history's file is gone afterwards
    conn = cluster.connect(TEMPLATE)
    folder = cluster.data / "pg_cyclone"
    conn.execute("CREATE TABLE t AS SELECT * FROM generate_series(1, 1000) id")
    conn.execute("CREATE INDEX ON t (id)")
    before = checks.table_state(conn, "t")
    shutil.rmtree(folder, ignore_errors=True)
    hand_to_owner(cluster, folder, folder.touch)
    try:
        with pytest.raises(psycopg.Error, match="could not write file"):
            conn.execute(FULL)
    finally:
        folder.unlink()
    assert stray_files(cluster, conn) == []

    with park(cluster, "rewrite-created:leader", conn.info.dbname) as vacuum:
        shutil.rmtree(folder)
        hand_to_owner(cluster, folder, folder.touch)
    vacuum.finish()
    folder.unlink()
    assert [message for message in vacuum.messages if "could not write file" in message] == vacuum.messages[:1]
    assert checks.same_rows(checks.table_state(conn, "t"), before)
    assert stray_files(cluster, conn) == []
    conn.close()


def test_a_standby_loses_the_files_with_its_primary(new_cluster):
    """It is made while the rewrite goes on, so it has a journal of its own, of which it makes nothing."""
    primary = new_cluster()
    with primary.connect(TEMPLATE) as conn:
        before = make_table_without_tablespaces(primary, conn)
    with park(primary, "rewrite-swapped:leader") as vacuum:
        with primary.standby().start() as standby:
            standby.wait_for_replay(primary)
            with standby.connect(TEMPLATE) as conn:
                strays = stray_on_standby(standby, conn)
                assert strays and len(journals(standby)) == 1
            primary.crash()
            assert isinstance(vacuum.wait(), psycopg.OperationalError)
            primary.start()
            assert_cleaned(primary, before)
            standby.wait_for_replay(primary)
            with standby.connect(TEMPLATE) as conn:
                assert stray_on_standby(standby, conn) == []
                assert checks.same_rows(checks.table_state(conn, "t"), before)
            assert len(journals(standby)) == 1 and REMOVED not in standby.log
            standby.promote()
            assert_cleaned(standby, before)
            assert REMOVED not in standby.log


def test_a_standby_made_during_the_rewrite_cleans_up_when_promoted(new_cluster):
    primary = new_cluster()
    with primary.connect(TEMPLATE) as conn:
        before = make_table_without_tablespaces(primary, conn)
    with park(primary, "rewrite-swapped:leader") as vacuum:
        with primary.standby().start() as standby:
            primary.crash()
            assert isinstance(vacuum.wait(), psycopg.OperationalError)
            with standby.connect(TEMPLATE) as conn:
                assert stray_on_standby(standby, conn)
            standby.promote()
            assert_cleaned(standby, before)
            assert REMOVED in standby.log


def make_table_without_tablespaces(cluster, conn) -> dict:
    """As make_table, for servers that are copied on the same machine."""
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, note text, big text)")
    conn.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    conn.execute("CREATE INDEX ON t (note)")
    fill(conn)
    assert stray_files(cluster, conn) == []
    return checks.table_state(conn, "t")


def stray_on_standby(standby, conn) -> list[str]:
    """As stray_files; replay leaves no dropped file waiting."""
    used = {str(number) for (number,) in conn.execute("SELECT pg_relation_filenode(oid) FROM pg_class") if number}
    [folder] = database_folders(standby, conn)
    return sorted(file.name for file in folder.iterdir() if file.name.isdigit() and file.name not in used)


@pytest.mark.once
def test_an_error_in_the_postmaster_does_not_keep_the_server_from_starting(filled):
    cluster, before = filled()
    crash_at(cluster, "heap-copy:any")
    cluster.config = {**cluster.config, "cyclone.debug_point": "leftovers-look:any:error"}
    cluster.start()
    assert "files of an unfinished VACUUM FULL may be left over until the next start" in cluster.log
    assert len(journals(cluster)) == 1
    with cluster.connect(TEMPLATE) as conn:
        assert checks.same_rows(checks.table_state(conn, "t"), before)
        assert stray_files(cluster, conn) != []
    # also when it restarts after a crash of its children
    position = len(cluster.log)
    with cluster.connect(TEMPLATE) as conn, pytest.raises(psycopg.OperationalError):
        os.kill(conn.info.backend_pid, signal.SIGKILL)
        conn.execute("SELECT")
    wait_until(lambda: "database system is ready to accept connections" in cluster.log[position:], "the restart")
    assert "may be left over until the next start" in cluster.log[position:]

    cluster.stop()
    cluster.config = {**cluster.config, "cyclone.debug_point": ""}
    assert_cleaned(cluster.start(), before)


@pytest.mark.once
def test_an_error_where_files_are_noted_is_a_warning(filled):
    """It would be raised amid the invalidation of caches otherwise."""
    cluster, before = filled()
    with cluster.connect(TEMPLATE) as conn:
        said = []
        conn.add_notice_handler(lambda message: said.append(f"{message.message_primary}: {message.message_detail}"))
        conn.execute("SET cyclone.debug_point = 'journal-note:leader:error'")
        conn.execute(FULL)
        assert said == ['files of this VACUUM FULL could not be noted in case of a crash: debug point "journal-note" reached in leader']
        conn.execute("RESET cyclone.debug_point")
        assert_sound(cluster, conn, before)
        assert journals(cluster) == []
        conn.execute("DELETE FROM t WHERE id % 5 = 0")
        conn.execute(FULL)
        assert_sound(cluster, conn, checks.table_state(conn, "t"))
