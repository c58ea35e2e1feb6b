"""Tables that stay small by themselves: what cyclone.compaction decides and does, and that nobody has to wait for it.

Which table is due, and when, is in test/unit/test_compaction.c, for each reason; here each that can be staged is staged on a server. One
server for all, on which compaction visits a database ten times a second; each test switches it on for its own database.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, create_with_template
from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Background, Parked, wait_until
from cyclone_lab.cluster import Cluster

EVERY_VERSION = "background workers, locks and DROP DATABASE are the server's"

ROWS = 20_000
SETTINGS = {
    "autovacuum_naptime": "1s",
    "cyclone.debug_compaction_visit": 100,
    "cyclone.debug_compaction_least": 1024,  # kB
}
MB = 1024 * 1024


class Server:
    """The server, and the database that is the test's own."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.number = 0
        self.db = ""

    def next_database(self) -> None:
        """Go on to a new database, in which table t is bloated."""
        self.number += 1
        self.db = f"compaction_{self.number}"
        self.cluster.sql(f"CREATE DATABASE {self.db} TEMPLATE {TEMPLATE} STRATEGY file_copy")
        with self.connect() as conn:
            make(conn)
        self.set(**{"cyclone.databases": self.db})

    def set(self, **settings) -> None:
        """Change the configuration of the running server; None is as it was."""
        with self.cluster.connect() as conn:
            for name, value in settings.items():
                conn.execute(f"ALTER SYSTEM RESET {name}" if value is None else f"ALTER SYSTEM SET {name} = '{value}'")
            conn.execute("SELECT pg_reload_conf()")

    def on(self, **settings) -> None:
        self.set(**{"cyclone.compaction": "on"}, **settings)
        self.cluster.sql("SELECT 1")  # a transaction that commits, by which the launcher starts

    def off(self) -> None:
        self.set(**{"cyclone.compaction": None})
        wait_until(lambda: not self.processes(), "the end of compaction")

    def forget(self) -> None:
        """Have compaction, which is off, know nothing of the database's tables any more."""
        [(oid,)] = self.cluster.sql(f"SELECT oid FROM pg_database WHERE datname = '{self.db}'")
        (self.cluster.data / f"pg_cyclone/compaction_{oid}").unlink(missing_ok=True)

    def processes(self, kind: str = "%") -> list[int]:
        return [pid for (pid,) in self.cluster.sql(f"SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'pg_cyclone compaction {kind}'")]

    def connect(self, **parameters) -> psycopg.Connection:
        return self.cluster.connect(self.db, **parameters)

    def row(self, table: str = "t") -> dict:
        """Return the row of a table in the view; a SELECT that commits, so that the launcher starts."""
        with self.connect() as conn:
            cursor = conn.execute("SELECT * FROM cyclone.compaction_details WHERE relation = %s::regclass", [table])
            row = cursor.fetchone()
            assert row
            return dict(zip((column.name for column in cursor.description), row, strict=True))

    def wait_for(self, table: str = "t", **expected) -> dict:
        """Wait until the table's row has these values, and return it."""

        rows = []

        def row() -> dict | None:
            rows[:] = [self.row(table)]
            return rows[0] if all(rows[0][name] == value for name, value in expected.items()) else None

        try:
            return wait_until(row, f"{expected} of {table}")
        except TimeoutError as error:
            error.add_note(f"It has {rows}.")
            raise

    def parked(self, point: str) -> "Gate":
        return Gate(self, point)


class Gate:
    """Workers of compaction wait at a debug point, one of which is there when the block begins; it ends with them on their way."""

    def __init__(self, server: Server, point: str):
        self.server, self.point = server, point

    def __enter__(self) -> int:
        self.gate = self.server.connect()
        self.gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        self.server.on(**{"cyclone.debug_point": f"{self.point}:worker:wait"})
        return wait_until(self.worker, f"a worker at {self.point}")

    def worker(self) -> int | None:
        rows = self.server.cluster.sql(
            f"SELECT pid FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE locktype = 'advisory' AND objid = {DEBUG_POINT_LOCK}"
            " AND NOT granted AND backend_type = 'pg_cyclone compaction worker'"
        )
        return rows[0][0] if rows else None

    def __exit__(self, *_exception) -> None:
        self.server.set(**{"cyclone.debug_point": None})
        self.gate.close()


def make(conn, name: str = "t", keep: int = 10) -> None:
    """Make a table of 4 MB, of which one row in `keep` is left, at the end."""
    conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text) WITH (autovacuum_enabled = off)")
    conn.execute(f"INSERT INTO {name} SELECT i, repeat('x', 180) FROM generate_series(1, {ROWS}) i")
    if keep > 1:
        conn.execute(f"DELETE FROM {name} WHERE id % {keep} <> 0")
    conn.execute(f"VACUUM (ANALYZE) {name}")


def make_bloated_index(conn, kind: str = "btree") -> None:
    """Make a table i that is as small as can be, with an index that isn't."""
    conn.execute("CREATE TABLE i (id int, note text) WITH (autovacuum_enabled = off)")
    conn.execute(f"INSERT INTO i SELECT i, 'x' FROM generate_series(1, {2 * ROWS}) i")
    conn.execute(f"CREATE INDEX i_id ON i USING {kind} (id) WITH (fillfactor = 10)")
    conn.execute("ALTER INDEX i_id RESET (fillfactor)")
    conn.execute("VACUUM (ANALYZE) i")


def make_wide(conn) -> None:
    """Make a table w, of which one row in ten is left, with a TOAST table and indexes of each kind."""
    conn.execute("CREATE TABLE w (id int PRIMARY KEY, note text STORAGE EXTERNAL, tags int[], place point) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO w SELECT i, repeat('x', 4000), ARRAY[i % 10, i], point(i, i) FROM generate_series(1, 3000) i")
    for kind, column in (("gin", "tags"), ("gist", "place"), ("hash", "id"), ("spgist", "place")):
        conn.execute(f"CREATE INDEX ON w USING {kind} ({column})")
    conn.execute("DELETE FROM w WHERE id % 10 <> 0")
    conn.execute("VACUUM (ANALYZE) w")


@pytest.fixture(scope="module")
def running(prefix):
    with create_with_template(prefix, {**CONFIG, **SETTINGS}) as cluster:
        cluster.start()
        yield Server(cluster)


@pytest.fixture
def server(running):
    """The server, with compaction off, and a database of the test's own that has a bloated table."""
    running.next_database()
    yield running
    running.off()
    settings = running.cluster.sql("SELECT name FROM pg_file_settings WHERE name LIKE 'cyclone.%' AND sourcefile LIKE '%auto.conf'")
    running.set(**{name: None for (name,) in settings})


@pytest.fixture
def own_server(new_cluster):
    """The same on a server of the test's own, which it may restart."""
    server = Server(new_cluster(**SETTINGS))
    server.next_database()
    return server


def size(conn, relation: str = "t") -> int:
    [(bytes_,)] = conn.execute("SELECT pg_relation_size(%s::regclass)", [relation]).fetchall()
    return bytes_


def test_bloated_table_becomes_small(server):
    """It starts without a restart and takes no worker while it is off; it compacts the table, leaves another alone, and says so."""
    with server.connect() as conn:
        make(conn, "dense", keep=1)
        before = size(conn)
        assert server.row()["reason"] == "off"
        assert not server.processes()
        server.on()
        row = server.wait_for(last_outcome="done")
        after = size(conn)
        assert after < before / 4
        assert row["last_freed"] >= before - after
        assert row["total_freed"] == row["last_freed"]
        assert (row["runs"], row["last_error"], row["running_since"]) == (1, None, None)
        assert (row["reason"], row["pause"]) == ("small", 3600)
        assert server.wait_for("dense", reason="little to be freed")["runs"] == 0
        query = "SELECT started_by, options FROM cyclone.history_details WHERE relid = 't'::regclass AND operation = 'FULL INPLACE'"
        [(started_by, options)] = conn.execute(query).fetchall()
        assert started_by == "compaction" and "SKIP_LOCKED" in options
        checks.assert_clean(conn, "t")
        checks.assert_clean(conn, "dense")
    assert len(server.processes("launcher")) == 1
    server.off()


@pytest.mark.once
@pytest.mark.parametrize("kind", ["btree", "hash"])
def test_index_alone_is_rebuilt(server, kind):
    """A table whose index alone is bloated keeps its rows where they are."""
    with server.connect() as conn:
        make_bloated_index(conn, kind)
        index, where = size(conn, "i_id"), conn.execute("SELECT max(ctid) FROM i").fetchall()
        server.on()
        server.wait_for("i", last_outcome="done")
        assert size(conn, "i_id") < index / 3
        assert conn.execute("SELECT max(ctid) FROM i").fetchall() == where
        checks.assert_clean(conn, "i")


def label(conn, text: str | None, table: str = "t") -> None:
    conn.execute(f"SECURITY LABEL FOR pg_cyclone ON TABLE {table} IS {'NULL' if text is None else repr(text)}")


def decision(conn, table: str = "t") -> tuple:
    """Return what the view says of a table, in the transaction at hand."""
    query = "SELECT reason, (figure IS NULL) = (figure_is IS NULL), threshold FROM cyclone.compaction_details WHERE relation = %s::regclass"
    return conn.execute(query, [table]).fetchone()


@pytest.mark.once
def test_reasons(server):
    """Reasons that settings and a label give. An hour that isn't now keeps the worker from doing anything about it."""
    with server.connect() as conn:
        server.on(**{"cyclone.compaction_threshold": 100})
        assert server.wait_for(reason="below the threshold")["would_free"] > 3 * MB
        label(conn, "threshold=99.5")
        assert decision(conn) == ("below the threshold", True, 99.5)
        server.set(**{"cyclone.compaction_threshold": None, "cyclone.compaction_window": never(conn)})
        server.wait_for(reason="below the threshold")
        for text, reason, threshold in (
            ("compaction=off", "off, by its label", 30), ("compaction = ON , threshold = 25", "outside the window", 25), (None, "outside the window", 30)
        ):  # fmt: skip
            label(conn, text)
            assert decision(conn) == (reason, True, threshold)
        server.set(**{"cyclone.tables": "other*"})
        server.wait_for(reason="left to PostgreSQL")
        server.set(**{"cyclone.tables": None, "cyclone.databases": "other_*"})
        server.wait_for(reason="left to PostgreSQL")
        assert conn.execute("SELECT count(*) FROM cyclone.compaction_details WHERE runs > 0").fetchone() == (0,)
        checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize(
    ("target", "text", "error"),
    [
        ("TABLE t", "threshold=101", "from 0 to 100"),
        ("TABLE t", "threshold=-1", "from 0 to 100"),
        ("TABLE t", "threshold=nan", "from 0 to 100"),
        ("TABLE t", "threshold=40 %", "from 0 to 100"),
        ("TABLE t", "compaction=maybe", "on or off"),
        ("TABLE t", "window=Sun", "a list of"),
        ("TABLE t", "", "a list of"),
        ("TABLE t", "compaction=off,", "a list of"),
        ("COLUMN t.id", "compaction=off", "permanent and unlogged"),
        ("TABLE pg_class", "compaction=off", "permanent and unlogged"),
        ("TABLE parted", "compaction=off", "permanent and unlogged"),
        ("TABLE pg_temp.own", "compaction=off", "permanent and unlogged"),
        ("ROLE postgres", "compaction=off", "permanent and unlogged"),
    ],
)
def test_wrong_labels(server, target, text, error):
    """Each says what is wrong, and, where a person can do something, what would be right."""
    with server.connect() as conn:
        conn.execute("CREATE TABLE parted (i int) PARTITION BY RANGE (i); CREATE TEMP TABLE own (i int)")
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(f"SECURITY LABEL FOR pg_cyclone ON {target} IS '{text}'")
        assert error in caught.value.diag.message_detail
        assert ("Label its partitions" if "parted" in target else "A label is like" if target == "TABLE t" else "") in (caught.value.diag.message_hint or "")
        conn.execute(f"SECURITY LABEL FOR pg_cyclone ON {target} IS NULL")


@pytest.mark.once
def test_wrong_settings(server):
    with server.connect() as conn:
        with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
            conn.execute("ALTER SYSTEM SET cyclone.compaction_window = 'Mon-Fri 22-5'")
        assert "Mon-Fri 22:00-05:00" in caught.value.diag.message_hint
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            conn.execute("ALTER SYSTEM SET cyclone.compaction_threshold = 101")


@pytest.mark.once
def test_labels_survive(server):
    """Rename, dump and restore, where a table may be left out; that of a dropped table doesn't. No other table has it."""
    with server.connect() as conn:
        make(conn, "dropped", keep=1)
        label(conn, "compaction=off")
        label(conn, "threshold=50", "dropped")
        conn.execute("ALTER TABLE t RENAME TO renamed; CREATE SCHEMA s; ALTER TABLE renamed SET SCHEMA s; DROP TABLE dropped; CREATE TABLE dropped ()")
        chosen = "SELECT relation::text, label FROM cyclone.compaction_details ORDER BY 1"
        expected = [("dropped", None), ("s.renamed", "compaction=off")]
        assert conn.execute(chosen).fetchall() == expected
        for options, rows in (([], expected), (["--exclude-table", "s.renamed"], [("dropped", None)])):
            dump = server.cluster.run("pg_dump", "--dbname", server.db, *options).stdout
            server.cluster.sql(f"CREATE DATABASE {server.db}_restored")
            server.cluster.run("psql", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", "--dbname", f"{server.db}_restored", input=dump)
            with server.cluster.connect(f"{server.db}_restored") as restored:
                assert restored.execute(chosen).fetchall() == rows
            server.cluster.sql(f"DROP DATABASE {server.db}_restored")


@pytest.mark.once
def test_holder_of_the_horizon_is_waited_for(server):
    with server.cluster.snapshot(server.db):
        server.on(**{"cyclone.debug_compaction_held": 1})
        assert server.wait_for(reason="horizon held back")["figure"] > 0
        assert server.row()["last_outcome"] is None
    server.wait_for(last_outcome="done")


@pytest.mark.once
def test_advice_says_that_it_will_be_compacted(server):
    with server.connect() as conn:
        conn.execute("CREATE TABLE large (id int, note text) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO large SELECT i, repeat('x', 900) FROM generate_series(1, 16000) i")
        conn.execute("DELETE FROM large WHERE id % 10 <> 0")
        conn.execute("VACUUM (ANALYZE) large")

        def advice() -> str:
            [(lines,)] = conn.execute("SELECT advice FROM cyclone.advice WHERE relation = 'large'::regclass").fetchall()
            return " ".join(lines)

        assert "VACUUM (FULL INPLACE) large would give back" in advice()
        server.on(**{"cyclone.compaction_window": never(conn)})
        server.wait_for("large", reason="outside the window")
        assert "large will be compacted" in advice()
        assert "outside the window" in advice()
        assert "VACUUM (FULL INPLACE)" not in advice()


@pytest.mark.parametrize("statement", ["ALTER TABLE t ADD added int", pytest.param("VACUUM t", marks=pytest.mark.once)])
def test_gives_way(server, statement):
    """DDL, and a VACUUM, wait no longer than until the worker has ended what it does; then there is a pause."""
    with server.connect() as conn:
        with server.parked("inplace-plan"):
            conn.execute(statement)
            row = server.wait_for(last_outcome="gave way")
        assert row["reason"] == "pause"
        assert 0 < row["figure"] <= 3600
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_gives_way_to_one_session_of_many(server):
    """Others wait for another table's lock, more of them than the launcher asks about at once."""
    with server.connect() as conn, server.connect() as holder:
        holder.execute("CREATE TABLE other ()")
        holder.execute("BEGIN; LOCK other")
        with server.parked("inplace-plan"):
            waiting = [Background(server.cluster, server.db, "SELECT FROM other") for _ in range(40)]
            query = "SELECT count(*) FROM pg_locks WHERE relation = 'other'::regclass AND NOT granted"
            wait_until(lambda: conn.execute(query).fetchone() == (40,), "sessions that wait")
            conn.execute("SET lock_timeout = '60s'")
            conn.execute("ALTER TABLE t ADD added int")
            server.wait_for(last_outcome="gave way")
        holder.execute("COMMIT")
        for session in waiting:
            session.finish()
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_gives_way_to_ddl_while_paused(server):
    """As when it isn't paused."""
    with server.connect() as conn:
        with server.parked("inplace-plan") as worker:
            assert conn.execute("SELECT cyclone.pause(%s)", [worker]).fetchall() == [(True,)]
        state = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {worker}"
        wait_until(lambda: conn.execute(state).fetchall() == [("CyclonePaused",)], "the pause")
        conn.execute("SET lock_timeout = '60s'")
        conn.execute("ALTER TABLE t ADD added int")
        server.wait_for(last_outcome="gave way")
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_table_that_is_locked_is_left_alone(server):
    with server.connect() as other, server.connect() as conn:
        make(conn, "u")
        other.execute("BEGIN")
        other.execute("LOCK t IN SHARE UPDATE EXCLUSIVE MODE")
        server.on()
        server.wait_for("u", last_outcome="done")
        row = server.wait_for(last_outcome="gave way")
        assert row["runs"] == 0 and row["would_free"] > 3 * MB
        checks.assert_clean(conn, "u")
        other.execute("ROLLBACK")


@pytest.mark.once
def test_table_that_is_locked_at_the_last_moment(server):
    """VACUUM skips it: that is no run in vain, by which the pause would double."""
    with server.connect() as other:
        with server.parked("compaction-run"):
            other.execute("BEGIN")
            other.execute("LOCK t IN SHARE UPDATE EXCLUSIVE MODE")
        row = server.wait_for(last_outcome="gave way")
        assert (row["runs"], row["reason"], row["pause"]) == (0, "pause", 3600)
        assert row["would_free"] > 3 * MB
        other.execute("ROLLBACK")


@pytest.mark.once
@pytest.mark.parametrize("setting", ["compaction", "compaction_window"])
def test_ends_when_it_is_over(server, setting):
    """Switched off, or outside of the window as it is set now. After the pause, which a test shortens, the next run goes on."""
    with server.connect() as conn:
        with server.parked("inplace-plan"):
            server.set(**{f"cyclone.{setting}": None if setting == "compaction" else never(conn)})
            assert server.wait_for(last_outcome="stopped")["runs"] == 0
        server.set(**{"cyclone.compaction_window": None, "cyclone.debug_compaction_hour": 1})
        server.on()
        server.wait_for(last_outcome="done")
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_toast_table_that_is_being_vacuumed(server):
    """By autovacuum, which comes to TOAST tables by themselves: a run without it would win little, by which the pause would double."""
    with server.connect() as conn:
        label(conn, "compaction=off")
        conn.execute("CREATE TABLE w (id int PRIMARY KEY, note text STORAGE EXTERNAL) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO w SELECT i, repeat('x', 4000) FROM generate_series(1, 1000) i")
        conn.execute("DELETE FROM w WHERE id % 10 <> 0")
        conn.execute("VACUUM (ANALYZE) w")
        [(toast,)] = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'w'").fetchall()
        with Parked(server.cluster, server.db, "heap-scan:leader", 1, f"VACUUM (DISABLE_PAGE_SKIPPING) {toast}") as vacuum:
            server.on()
            row = server.wait_for("w", last_outcome="gave way")
            assert (row["reason"], row["runs"], row["pause"]) == ("pause", 0, 3600)
            vacuum.finish()
        server.set(**{"cyclone.debug_compaction_hour": 1})
        assert server.wait_for("w", last_outcome="done")["last_freed"] > 2 * MB
        checks.assert_clean(conn, "w")


@pytest.mark.once
def test_switched_off_after_the_launcher_has_died(server):
    """A launcher comes, though compaction is off, and ends what the worker does."""
    with server.parked("inplace-plan"):
        server.set(**{"cyclone.debug_compaction_visit": 250})  # ms; after 12 times that the next launcher comes
        wait_until(lambda: server.cluster.sql("SHOW cyclone.debug_compaction_visit") == [("250",)], "the reload")
        [launcher] = server.processes("launcher")
        server.cluster.sql(f"SELECT pg_terminate_backend({launcher}, 60000)")
        server.set(**{"cyclone.compaction": None})
        assert server.wait_for(last_outcome="stopped")["reason"] == "off"


@pytest.mark.once
def test_launcher_that_has_failed_comes_later(server):
    """Later than one that has ended because compaction was switched off."""
    server.on(**{"cyclone.debug_compaction_visit": 500})  # ms; after 12 times that it comes
    launcher = wait_until(lambda: server.processes("launcher"), "the launcher")[0]
    wait_until(lambda: server.cluster.sql("SHOW cyclone.debug_compaction_visit") == [("500",)], "the reload")
    server.cluster.sql(f"SELECT pg_terminate_backend({launcher}, 60000)")
    for _ in range(6):
        server.cluster.sql("SELECT pg_sleep(0.2)")
        assert server.processes("launcher") == []
    wait_until(lambda: server.processes("launcher"), "the next launcher")


@pytest.mark.once
def test_worker_keeps_its_place_until_its_result_is_noted(server):
    """The next one, which reads it, comes afterwards. A launcher that has come later knows the worker by its place alone."""
    [(oid,)] = server.cluster.sql(f"SELECT oid FROM pg_database WHERE datname = '{server.db}'")
    fifo = server.cluster.data / f"pg_cyclone/compaction_{oid}.new"
    server.set(**{"cyclone.debug_compaction_hour": 1})  # for which no table is taken, as a pipe isn't written to disk
    with server.parked("inplace-plan") as worker:
        [launcher] = server.processes("launcher")
        server.cluster.sql(f"SELECT pg_terminate_backend({launcher}, 60000)")
        wait_until(lambda: server.processes("launcher"), "the next launcher")
        os.mkfifo(fifo)
        fifo.chmod(0o666)  # the server may be another user's
        try:
            server.cluster.sql(f"SELECT pg_terminate_backend({worker})")
            for _ in range(20):
                server.cluster.sql("SELECT pg_sleep(0.2)")
                assert server.processes("worker") == [worker]
        finally:
            reader = os.open(fifo, os.O_RDONLY)
            fifo.unlink(missing_ok=True)  # the worker may do that first
            wait_until(lambda: worker not in server.processes("worker"), "the worker's end")
            os.close(reader)


@pytest.mark.once
def test_what_is_left_alone(server):
    """Databases that are templates, or have no extension, and temporary tables: the next database has its turn all the same."""
    template, bare = server.db, f"{server.db}_bare"
    server.cluster.sql(f"CREATE DATABASE {bare} TEMPLATE template0")
    server.cluster.sql(f"ALTER DATABASE {template} IS_TEMPLATE true")
    server.next_database()
    with server.connect() as conn:
        make(conn, "pg_temp.temporary")
        server.on(**{"cyclone.databases": f"{template}, {bare}, {server.db}"})
        server.wait_for(last_outcome="done")
        assert conn.execute("SELECT relation::text FROM cyclone.compaction").fetchall() == [("t",)]
    server.off()
    with server.cluster.connect(template) as conn:
        assert conn.execute("SELECT FROM cyclone.compaction_details WHERE sampled_at IS NOT NULL OR runs > 0").fetchall() == []


def never(conn) -> str:
    """Return a day of the week that isn't today, in the server's time zone."""
    return conn.execute("SELECT to_char(now() AT TIME ZONE current_setting('log_timezone') - interval '2 days', 'Dy')").fetchone()[0]


@pytest.mark.once
def test_nothing_is_read_outside_the_window(server):
    """A table isn't even sampled there."""
    with server.connect() as conn:
        server.on(**{"cyclone.compaction_window": never(conn)})
        worker = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pg_cyclone compaction worker'"
        wait_until(lambda: conn.execute(worker).fetchone() != (0,), "a visit")
        wait_until(lambda: conn.execute(worker).fetchone() == (0,), "its end")
        row = server.row()
        assert (row["reason"], row["sampled_at"], row["would_free"]) == ("outside the window", None, None)
        assert 3 * 86400 < row["figure"] < 6 * 86400 and row["next_at"] is not None


@pytest.mark.once
def test_samples_end_with_the_window(server):
    """Those of tables that were chosen before, too."""
    with server.connect() as conn:
        with server.parked("bloat-page"):
            server.set(**{"cyclone.compaction_window": never(conn)})
            assert server.wait_for(last_outcome="stopped")["would_free"] is None
        assert server.row()["sampled_at"] is None


@pytest.mark.once
def test_tables_that_are_left_to_postgresql(server):
    """They are none that fail: they aren't even sampled."""
    with server.connect() as conn:
        make(conn, "u")
        make(conn, "subscribed")
        conn.execute("CREATE SUBSCRIPTION s CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false)")
        try:
            conn.execute("INSERT INTO pg_subscription_rel SELECT oid, 'subscribed'::regclass, 'r' FROM pg_subscription WHERE subname = 's'")
            server.on(**{"cyclone.tables": "u, subscribed"})
            server.wait_for("u", last_outcome="done")
            for table in ("t", "subscribed"):
                row = server.row(table)
                assert (row["reason"], row["sampled_at"], row["last_outcome"]) == ("left to PostgreSQL", None, None)
            server.set(**{"cyclone.tables": None})
            server.wait_for("t", last_outcome="done")
        finally:
            conn.execute("ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s")


@pytest.mark.once
def test_breaker_of_a_toast_table(server):
    """Counts for its table."""
    with server.connect() as conn:
        label(conn, "compaction=off")
        conn.execute("CREATE TABLE w (id int PRIMARY KEY, note text STORAGE EXTERNAL) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO w SELECT i, repeat('x', 4000) FROM generate_series(1, 1000) i")
        conn.execute("VACUUM (ANALYZE) w")
        conn.execute("DELETE FROM w WHERE id % 10 <> 0")
        [(toast,)] = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'w'").fetchall()
        conn.execute("SET cyclone.debug_fault = 'store-loses'")
        with pytest.raises(psycopg.errors.DataCorrupted, match="an audit of VACUUM has failed"):
            conn.execute(f"VACUUM (INDEX_CLEANUP on) {toast}")
        conn.execute("RESET cyclone.debug_fault")
        server.on()
        assert server.wait_for("w", reason="circuit breaker")["sampled_at"] is None
        conn.execute("SELECT cyclone.autovacuum_reset()")
        server.wait_for("w", last_outcome="done")
        checks.assert_clean(conn, "w")


@pytest.mark.once
def test_error_is_one_tables(server):
    with server.connect() as conn:
        name = """ "U ""v"" 'w'; --" """
        make(conn, name)
        label(conn, "compaction=off", name)
        server.on(**{"cyclone.debug_point": "inplace-plan:worker:error"})
        row = server.wait_for(reason="pause")
        assert "debug point" in row["last_error"] and row["last_outcome"] == "failed"
        assert 0 < row["figure"] <= 3600
        server.set(**{"cyclone.debug_point": None})
        wait_until(lambda: server.cluster.sql("SHOW cyclone.debug_point") == [("",)], "the reload")
        label(conn, None, name)
        server.wait_for(name, last_outcome="done")
        assert server.row()["last_outcome"] == "failed"
        checks.assert_clean(conn, "t")


def child(server, conn, kind: str) -> Path | None:
    """Return the folder in /proc of the server's compaction launcher or worker, also of one that has only just been forked."""
    conn.execute("SELECT 1")  # a transaction that commits, by which the launcher starts
    postmaster = server.cluster.postmaster.pid
    for pid in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            if f"compaction {kind}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return Path(f"/proc/{pid}")
    return None


def test_switched_off_while_the_launcher_starts(server):
    """Signals of a reload are ignored by a background worker that has only just been forked."""
    with server.connect() as conn:
        server.set(post_auth_delay="1")  # s
        wait_until(lambda: server.cluster.sql("SHOW post_auth_delay") == [("1s",)], "the reload")
        conn.execute("ALTER SYSTEM SET cyclone.compaction = on")
        conn.execute("SELECT pg_reload_conf()")
        starting = wait_until(lambda: child(server, conn, "launcher"), "the launcher")
        conn.execute("ALTER SYSTEM RESET cyclone.compaction")
        conn.execute("ALTER SYSTEM RESET post_auth_delay")
        conn.execute("SELECT pg_reload_conf()")
        wait_until(lambda: not starting.exists(), "the launcher's end")


# Where a worker may stand still, each point that it comes by: while it samples, before VACUUM begins, and in each step of FULL INPLACE,
# the last of which are about an index.
ONCE = ["bloat-page", "compaction-run", "heap-scan", "inplace-batch", "inplace-pause", "inplace-look", "shrink-create", "shrink-build",
        "shrink-built", "shrink-swap", "shrink-validate"]  # fmt: skip
WIDE = ["gin-page", "gist-page", "hash-bucket", "index-page-deletion", "inplace-value", "spgist-page", "truncate-again"]
FULL = ["btree-page", "heap-vacuum", "index-cleanup", "index-vacuum", "inplace-audit", "shrink-swapped", "shrink-wait", "truncate", *WIDE]


def make_for(conn, point: str) -> str:
    """Make the only table anew, which comes by that point when it is compacted, and return its name."""
    conn.execute("DROP TABLE IF EXISTS t, i, w")
    if point in WIDE:
        make_wide(conn)
        return "w"
    if "shrink" in point:
        make_bloated_index(conn)
        return "i"
    make(conn)
    return "t"


@pytest.mark.parametrize(
    "point",
    ["inplace-plan", *(pytest.param(point, marks=pytest.mark.once) for point in ONCE), *(pytest.param(point, marks=pytest.mark.full) for point in FULL)],
)
def test_stopped_at_any_point(server, point):
    """A worker that is cancelled, or terminated, or whose launcher is, leaves a pause, if any, and what the next one can go on with."""
    position = len(server.cluster.log)
    with server.connect() as conn:
        for how, expected in (("cancel", "gave way"), ("terminate", "stopped")):
            table = make_for(conn, point)
            with server.parked(point) as worker:
                conn.execute(f"SELECT pg_{how}_backend(%s)", [worker])
                row = server.wait_for(table, last_outcome=expected)
                assert row["reason"] == "pause" and row["pause"] == 3600
                server.set(**{"cyclone.compaction": None})
            server.off()
            # a session that reads pages from which rows were moved may prune them: index entries of dead items are VACUUM's
            assert checks.dangling_index_entries(conn, table, between_passes=True) == []
            conn.execute(f"VACUUM (INDEX_CLEANUP on) {table}")
            checks.assert_clean(conn, table)
        table = make_for(conn, point)
        with server.parked(point):
            [launcher] = server.processes("launcher")
            conn.execute("SELECT pg_cancel_backend(%s), pg_terminate_backend(%s)", [launcher, launcher])
            wait_until(lambda: launcher not in server.processes("launcher"), "the launcher's end")
        server.wait_for(table, last_outcome="done")
        checks.assert_clean(conn, table)
    assert not re.search("PANIC|TRAP|leak", server.cluster.log[position:])


@pytest.mark.parametrize("statement", ["DROP DATABASE {db}", "ALTER DATABASE {db} RENAME TO {db}_new", "CREATE DATABASE {db}_copy TEMPLATE {db}"])
def test_databases_are_left_at_once(server, statement):
    """Statements that want nobody in the database have the worker leave it, wherever it is. Only the test's own session is in the way then."""
    statement = statement.format(db=server.db)
    with server.parked("inplace-plan") as worker:
        background = Background(server.cluster, "postgres", statement)
        wait_until(lambda: worker not in server.processes(), "the worker's end")
    if isinstance(background.wait(), psycopg.errors.ObjectInUse):  # it waits for five seconds
        server.cluster.sql(statement)
    assert not background.error or isinstance(background.error, psycopg.errors.ObjectInUse)


@pytest.mark.once
@pytest.mark.parametrize("point", ["bloat-page", "inplace-plan"])
def test_restart_is_the_end_of_a_run(own_server, point):
    """A server that is shut down ends a run, or a sample, as the end of the window does."""
    with own_server.parked(point):
        own_server.cluster.restart()
    row = own_server.wait_for(last_outcome="stopped")
    assert row["reason"] == "pause" and row["figure"] <= row["pause"] == 3600
    own_server.set(**{"cyclone.debug_compaction_hour": 1})
    own_server.wait_for(last_outcome="done")
    with own_server.connect() as conn:
        checks.assert_clean(conn, "t")


def test_crash_leaves_a_pause(own_server):
    """After the server has crashed in a table it waits, also if it was but sampled; compaction itself begins anew by itself."""
    for point in ("bloat-page", "heap-scan", "inplace-batch", "inplace-plan"):
        with own_server.parked(point):
            own_server.cluster.restart("crash")
            assert own_server.wait_for(reason="circuit breaker")["runs"] == 0
        own_server.off()
        with own_server.connect() as conn:
            assert checks.dangling_index_entries(conn, "t", between_passes=True) == []
            conn.execute("VACUUM (INDEX_CLEANUP on) t")
            checks.assert_clean(conn, "t")
            if point != "inplace-plan":
                conn.execute("SELECT cyclone.autovacuum_reset('t')")
    with own_server.connect() as conn:
        make(conn, "u")  # before, or the worker may come while it is locked, and try again in an hour
        own_server.on()
        assert own_server.wait_for(reason="circuit breaker")["runs"] == 0
        own_server.wait_for("u", last_outcome="done")
        conn.execute("SELECT cyclone.autovacuum_reset('t')")
        own_server.wait_for("t", last_outcome="done")
        checks.assert_clean(conn, "t")


@pytest.mark.full
@pytest.mark.parametrize("point", ["inplace-plan", *ONCE, *FULL])
def test_crash_at_any_point(own_server, point):
    """The table waits, and is sound when it is compacted after all."""
    with own_server.connect() as conn:
        table = make_for(conn, point)
    with own_server.parked(point):
        own_server.cluster.restart("crash")
        assert own_server.wait_for(table, reason="circuit breaker")["runs"] == 0
    with own_server.connect() as conn:
        conn.execute("SELECT cyclone.autovacuum_reset()")
        over = ("pause", "small", "below the threshold", "little to be freed")  # a run may have freed all that was to be freed
        wait_until(lambda: own_server.row(table)["reason"] in over, "the end of compaction")
        own_server.off()
        conn.execute(f"VACUUM (INDEX_CLEANUP on) {table}")
        checks.assert_clean(conn, table)


def test_standby_takes_over(own_server):
    """A standby has no launcher and says so; once promoted it goes on by itself."""
    with own_server.cluster.standby().start() as standby:
        standby.wait_for_replay(own_server.cluster)
        own_server.cluster.stop()
        there = Server(standby)
        there.db = own_server.db
        standby.config["cyclone.compaction"] = "on"
        standby.restart()
        assert there.row()["reason"] == "standby"
        assert not there.processes()
        standby.promote()
        there.wait_for(last_outcome="done")


@pytest.fixture
def roles(server):
    server.cluster.sql("CREATE ROLE compaction_owner LOGIN; CREATE ROLE compaction_other LOGIN")
    with server.connect() as conn:
        conn.execute("ALTER TABLE t OWNER TO compaction_owner")
    yield server
    server.cluster.sql(f"DROP DATABASE {server.db} WITH (FORCE)")
    server.cluster.sql("DROP ROLE compaction_owner, compaction_other")


@pytest.mark.once
def test_view_is_cheap(server):
    """No page of a table is read for the view, whatever is asked."""
    with server.connect() as conn:
        make(conn, "own")  # the session that made t may not have told yet what it has read
        conn.execute("SELECT pg_stat_force_next_flush()")
        blocks = "SELECT heap_blks_read + heap_blks_hit FROM pg_statio_all_tables WHERE relid = 'own'::regclass"
        before = conn.execute(blocks).fetchall()
        assert before > [(0,)]
        conn.execute("SELECT * FROM cyclone.compaction_details").fetchall()
        conn.execute("SELECT pg_stat_force_next_flush()")
        assert conn.execute(blocks).fetchall() == before


@pytest.mark.once
def test_reader_never_waits_for_long(server):
    """Sessions read and write the table while a worker stands still at it, with its lock."""
    with server.connect() as conn, server.parked("inplace-plan"):
        conn.execute("SET lock_timeout = '60s'")
        conn.execute("UPDATE t SET note = note || 'y' WHERE id = 10")
        assert conn.execute("SELECT count(*) FROM t").fetchall() == [(ROWS // 10,)]
        assert server.row()["reason"] == "running"
        Background(server.cluster, server.db, "SELECT * FROM t").finish()
    server.wait_for(last_outcome="done")


@pytest.mark.once
@pytest.mark.parametrize("point", ["", "compaction-run"])
def test_index_that_is_locked(roles, point):
    """The owner of a table locks an index alone, before a run or in its midst: no other table waits for the end of that transaction."""
    with roles.connect(user="compaction_owner") as owner, roles.connect() as conn:
        make(conn, "u")
        label(conn, "compaction=off", "u")
        roles.set(**{"cyclone.debug_compaction_patience": 2000})
        owner.execute("BEGIN")
        lock = "ALTER INDEX t_pkey SET TABLESPACE pg_default"
        if point:
            with roles.parked(point):
                owner.execute(lock)
        else:
            owner.execute(lock)
            roles.on()
        label(conn, None, "u")
        roles.wait_for("u", last_outcome="done")
        roles.wait_for("t", last_outcome="gave way")
        owner.execute("ROLLBACK")


HANG_LOCK = 42
HANG = {
    "lock": f"PERFORM pg_advisory_xact_lock({HANG_LOCK})",
    "sleep": "PERFORM pg_sleep(100000)",
    "catch": "LOOP BEGIN PERFORM pg_sleep(100000); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP",
}


def make_hanging(server, owner, how: str) -> None:
    """Make an index of t, with a function that doesn't end while the session of its owner has an advisory lock, as it has now."""
    server.cluster.sql("GRANT CREATE ON SCHEMA public TO compaction_owner", dbname=server.db)
    owner.execute(
        "CREATE FUNCTION hang(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN"
        f" IF EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objid = {HANG_LOCK} AND granted) THEN {HANG[how]}; END IF;"
        " RETURN i; END$$; CREATE INDEX ON t (hang(id))"
    )
    owner.execute(f"SELECT pg_advisory_lock({HANG_LOCK})")


@pytest.mark.once
@pytest.mark.parametrize(
    ("how", "outcome", "error"), [("lock", "gave way", "canceling"), ("sleep", "failed", "it took too long"), ("catch", "stopped", None)]
)
def test_function_that_does_not_end(roles, how, outcome, error):
    """One in an index of a table keeps the worker from no other table for longer than a turn, and each time the pause doubles."""
    with roles.connect(user="compaction_owner") as owner, roles.connect() as conn:
        make(conn, "u")
        label(conn, "compaction=off", "u")
        make_hanging(roles, owner, how)
        roles.on(**{"cyclone.debug_compaction_patience" if how == "lock" else "cyclone.debug_compaction_turn": 2000})
        row = roles.wait_for(last_outcome=outcome)
        assert (row["reason"], row["pause"], row["runs"]) == ("pause", 3600, 0)
        assert error is None if row["last_error"] is None else error in row["last_error"]
        roles.set(**{"cyclone.debug_compaction_hour": 1})
        wait_until(lambda: roles.row()["pause"] > 3600, "another such run")
        label(conn, "compaction=off", "t")  # another run of it may have begun, which takes a turn
        label(conn, None, "u")
        roles.wait_for("u", last_outcome="done")
        roles.off()
        owner.execute(f"SELECT pg_advisory_unlock({HANG_LOCK})")
        conn.execute("VACUUM (INDEX_CLEANUP on) t")
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_gives_way_to_a_session_that_waits_for_a_row(roles):
    """A row that moves is moved in a moment, unless a function of the table's owner keeps it."""
    with roles.connect(user="compaction_owner") as owner, roles.connect() as conn:
        make_hanging(roles, owner, "sleep")
        roles.on(**{"cyclone.debug_compaction_patience": 2000})
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND backend_type = 'pg_cyclone compaction worker'"
        wait_until(lambda: conn.execute(query).fetchone() == (1,), "a function that doesn't end")
        owner.execute(f"SELECT pg_advisory_unlock({HANG_LOCK})")
        conn.execute("SET lock_timeout = '120s'")
        conn.execute("UPDATE t SET note = note || 'y'")
        roles.wait_for(last_outcome="gave way")
        roles.off()
        conn.execute("VACUUM (INDEX_CLEANUP on) t")
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_catalog_that_is_locked(server):
    """A worker that stands still at no table leaves the database after the time of a turn, and other databases have theirs."""
    first = server.db
    with server.connect() as holder:
        holder.execute("BEGIN; LOCK pg_extension")
        server.next_database()
        with server.connect() as conn:
            server.set(**{"cyclone.databases": f"{first}, {server.db}"})
            server.on(**{"cyclone.debug_compaction_turn": 3000})
            server.wait_for(last_outcome="done")
            checks.assert_clean(conn, "t")
        holder.execute("ROLLBACK")


@pytest.mark.once
def test_privileges(roles):
    """A table's owner has its label, and nobody else's; what is said of a table is for its owner."""
    with roles.connect(user="compaction_owner") as owner, roles.connect(user="compaction_other") as other:
        label(owner, "threshold=50")
        assert owner.execute("SELECT relation::text, label, threshold FROM cyclone.compaction_details").fetchall() == [("t", "threshold=50", 50)]
        assert other.execute("SELECT * FROM cyclone.compaction_details").fetchall() == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner of table t"):
            label(other, "compaction=off")


TRAP = "BEGIN BEGIN EXECUTE 'ALTER ROLE compaction_other SUPERUSER'; EXCEPTION WHEN OTHERS THEN NULL; END; END"


@pytest.mark.once
def test_another_role_owns_the_extensions_objects(roles):
    """After REASSIGN OWNED an ordinary role puts what it likes in the place of each function, and behind each table: nothing of ours runs it."""
    with roles.connect() as conn:
        # as REASSIGN OWNED does with all that the role owns which made the extension
        for kind, name in conn.execute(
            "SELECT CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass::text FROM pg_class"
            " WHERE relnamespace = 'cyclone'::regnamespace AND relkind IN ('r', 'v')"
            " UNION ALL SELECT 'FUNCTION', oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'cyclone'::regnamespace"
        ).fetchall():
            conn.execute(f"ALTER {kind} {name} OWNER TO compaction_other")
        conn.execute("GRANT CREATE ON SCHEMA public, cyclone TO compaction_other")
        with roles.connect(user="compaction_other") as other:
            other.execute(f"CREATE FUNCTION public.trap() RETURNS trigger LANGUAGE plpgsql AS $${TRAP[:-3]}RETURN NEW; END$$")
            for (table,) in other.execute("SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'cyclone'::regnamespace AND relkind = 'r'").fetchall():
                other.execute(f"CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION public.trap()")
            for (definition,) in other.execute(
                "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'cyclone'::regnamespace AND prolang IN"
                " (SELECT oid FROM pg_language WHERE lanname = 'c')"
            ).fetchall():
                head = definition[: definition.index("\nAS ")]
                other.execute(f"{re.sub('LANGUAGE c', 'LANGUAGE plpgsql', head)} AS $trap${TRAP}$trap$")
        roles.on(autovacuum="on")
        compacted = "SELECT pg_relation_size('t') < 1000000"
        wait_until(lambda: conn.execute(compacted).fetchone() == (True,), "the end of a run")
        conn.execute("ALTER TABLE t RESET (autovacuum_enabled); UPDATE t SET note = note")
        query = "SELECT autovacuum_count > 0 FROM pg_stat_user_tables WHERE relname = 't'"
        wait_until(lambda: conn.execute(query).fetchone() == (True,), "an autovacuum")
        assert conn.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'compaction_other'").fetchall() == [(False,)]
        roles.off()
        checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_transaction_that_stays(server, when):
    """A transaction that has read a table keeps the worker for seconds, whatever its database sets, and other databases have their turn."""
    first = server.db
    with server.connect() as conn:
        make_bloated_index(conn)
        label(conn, "compaction=off")
    server.set(**{"cyclone.debug_compaction_patience": 1500})
    for name, value in (("cyclone.index_wait", "1d"), ("vacuum_cost_delay", "100ms"), ("vacuum_cost_limit", "1")):
        server.cluster.sql(f"ALTER DATABASE {first} SET {name} = '{value}'")
    with server.connect() as holder:
        holder.execute("BEGIN")
        if when == "before":
            holder.execute("SELECT count(*) FROM i")
            server.on()
        else:
            with server.parked("compaction-run"):
                holder.execute("SELECT count(*) FROM i")
        row = server.wait_for("i", last_outcome="gave way")
        assert row["last_seconds"] < 120
        server.next_database()
        server.set(**{"cyclone.databases": f"{first}, {server.db}"})
        server.wait_for(last_outcome="done")
    server.db = first
    server.set(**{"cyclone.debug_compaction_hour": 1})
    server.wait_for("i", last_outcome="done")
    server.off()
    with server.connect() as conn:
        checks.assert_clean(conn, "i")


@pytest.mark.once
def test_result_that_cannot_be_noted(own_server):
    """As on a full disk: no table is taken for an hour, or the same one would be compacted again and again."""
    with own_server.connect() as conn:
        [(oid,)] = conn.execute("SELECT oid FROM pg_database WHERE datname = current_database()")
        obstacle = own_server.cluster.data / f"pg_cyclone/compaction_{oid}.new"
        obstacle.mkdir(parents=True)
        own_server.cluster.sql("SELECT 1")
        own_server.on(**{"cyclone.debug_compaction_visit": 100})
        wait_until(lambda: "could not write file" in own_server.cluster.log, "a sample")
        begun = len(own_server.cluster.log)
        for _ in range(20):
            own_server.cluster.sql("SELECT pg_sleep(0.2)")
        assert "could not write file" not in own_server.cluster.log[begun:]
        assert conn.execute("SELECT count(*) FROM cyclone.history_details WHERE started_by = 'compaction'").fetchone() == (0,)


@pytest.mark.once
def test_replication_of_all_tables(new_cluster):
    """The extension and compaction on both sides of a publication FOR ALL TABLES, with labels, and equal OIDs: nothing of ours is published."""
    server = Server(new_cluster(wal_level="logical", **SETTINGS))
    for name in ("publisher", "subscriber"):
        server.cluster.sql(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    server.db = "publisher"
    with server.connect() as publisher, server.cluster.connect("subscriber") as subscriber:
        for conn in (publisher, subscriber):
            conn.execute("CREATE TABLE t (id int PRIMARY KEY, note text) WITH (autovacuum_enabled = off)")
            make(conn, "own")
            label(conn, "threshold=20", "own")
        publisher.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        publisher.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        subscriber.execute(
            f"CREATE SUBSCRIPTION s CONNECTION 'host={server.cluster.socket_dir} dbname=publisher user=postgres'"
            " PUBLICATION everything WITH (create_slot = false, slot_name = s, copy_data = false)"
        )
        published = publisher.execute("SELECT tablename FROM pg_publication_tables ORDER BY 1").fetchall()
        assert published == [("own",), ("t",)]
        server.on()
        server.wait_for("own", last_outcome="done")
        publisher.execute("INSERT INTO t SELECT i, 'new' FROM generate_series(1, 10) i")
        wait_until(lambda: subscriber.execute("SELECT count(*) FROM t").fetchone() == (10,), "the rows at the subscriber")
        subscriber.execute("DROP SUBSCRIPTION s")
        # where no subscription writes any more compaction has its turn, too
        server.db = "subscriber"
        server.wait_for("own", last_outcome="done")
        for conn in (publisher, subscriber):
            checks.assert_clean(conn, "own")
    server.off()
    assert "ERROR" not in server.cluster.log


def test_settings_of_a_database_do_not_matter(server):
    """Not even a role that may neither read nor write what the worker does."""
    settings = {
        "role": "pg_read_all_stats", "search_path": "nowhere", "statement_timeout": "1ms", "lock_timeout": "1ms",
        "default_transaction_read_only": "on", "default_transaction_isolation": "serializable", "default_transaction_deferrable": "on",
        "restrict_nonsystem_relation_kind": "view, foreign-table",
    }  # fmt: skip
    with server.connect() as conn:
        for name, value in settings.items():
            server.cluster.sql(f"ALTER DATABASE {server.db} SET {name} = '{value}'")
        server.on()
        done = "SELECT FROM cyclone.compaction WHERE relation = 't'::regclass AND last_outcome = 'done'"
        wait_until(lambda: conn.execute(done).fetchall(), "the end of a run")
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_extension_is_dropped_and_created_anew(server):
    """Nobody waits for a worker that is at a table; without the extension it comes to no other."""
    with server.connect() as conn:
        make(conn, "u")
        with server.parked("inplace-plan"):
            conn.execute("SET lock_timeout = '60s'")
            conn.execute("DROP EXTENSION pg_cyclone")
        wait_until(lambda: not server.processes("worker"), "the worker's end")
        conn.execute("CREATE EXTENSION pg_cyclone")
        server.wait_for("u", last_outcome="done")
        server.wait_for("t", last_outcome="done")
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_what_is_remembered_goes_with_its_object(server):
    """That of a table, and the file of a database."""
    with server.connect() as conn:
        make(conn, "u", keep=1)
        [(oid,)] = conn.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchall()
        server.on()
        server.wait_for(last_outcome="done")
        wait_until(lambda: server.row("u")["sampled_at"], "a sample")
        path = server.cluster.data / f"pg_cyclone/compaction_{oid}"
        before = path.stat().st_size
        conn.execute("DROP TABLE u")
        wait_until(lambda: path.stat().st_size < before, "the end of what was known of the table")
    server.off()
    server.cluster.sql(f"DROP DATABASE {server.db} WITH (FORCE)")
    server.on()
    wait_until(lambda: server.cluster.sql("SELECT 1") and not path.exists(), "the end of the file")
    server.off()
