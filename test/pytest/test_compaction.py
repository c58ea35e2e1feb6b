"""Tables that stay small by themselves: what cyclone.compaction decides and does, and that nobody has to wait for it.

Which table is due, and when, is in test/unit/test_compaction.c, for each reason; here each that can be staged is staged on a server. One
server for all, on which compaction visits a database ten times a second; each test switches it on for its own database.
"""

import re
import struct
import time
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
    "cyclone.compaction_latency_target": "0",
    "cyclone.compaction_min_size": "1MB",
}
MB = 1024 * 1024


class Server:
    """The server, and the database that is the test's own."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.number = 0
        self.db = ""

    def next_database(self) -> None:
        self.number += 1
        self.db = f"compaction_{self.number}"
        self.cluster.sql(f"CREATE DATABASE {self.db} TEMPLATE {TEMPLATE} STRATEGY file_copy")
        self.set(**{"cyclone.compaction_databases": self.db})

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

        def row() -> dict | None:
            found = self.row(table)
            return found if all(found[name] == value for name, value in expected.items()) else None

        return wait_until(row, f"{expected} of {table}")

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
    with running.connect() as conn:
        make(conn)
    yield running
    running.off()
    settings = running.cluster.sql("SELECT name FROM pg_file_settings WHERE name LIKE 'cyclone.%' AND sourcefile LIKE '%auto.conf'")
    running.set(**{name: None for (name,) in settings})


def size(conn, relation: str = "t") -> int:
    [(bytes_,)] = conn.execute("SELECT pg_relation_size(%s::regclass)", [relation]).fetchall()
    return bytes_


def test_bloated_table_becomes_small(server):
    """It starts without a restart and takes no worker while it is off; it compacts the table, leaves another alone, and says so."""
    with server.connect() as conn:
        make(conn, "dense", keep=1)
        policy(conn, "min_size => 0")
        before = size(conn)
        assert server.row()["reason"] == "off"
        assert not server.processes()
        server.on()
        row = server.wait_for(last_outcome="done")
        after = size(conn)
        assert after < before / 4
        assert row["last_won"] >= before - after
        assert row["total_won"] == row["last_won"]
        assert (row["runs"], row["last_error"], row["running_since"]) == (1, None, None)
        assert row["last_wal"] > 0
        assert row["reason"] == "cooldown"
        assert 0 < row["figure"] <= 86400
        assert server.wait_for("dense", reason="little to be won")["runs"] == 0
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


def policy(conn, sql: str) -> None:
    conn.execute(f"SELECT cyclone.compaction_policy('t', {sql})")


# What is changed, and the reason that the table has then
REASONS = {
    "never, by its policy": "SELECT cyclone.compaction_policy('t', false)",
    "small": "SELECT cyclone.compaction_policy('t', min_size => 9223372036854775807, cooldown => 'infinity')",
    "little to be won": "SELECT cyclone.compaction_policy('t', min_size => (SELECT would_win + 1 FROM cyclone.compaction WHERE relation = 't'::regclass))",
    "below the threshold": "SELECT cyclone.compaction_policy('t', threshold => 100)",
    "its policy's window is not valid": "INSERT INTO cyclone.compaction_policies (pattern, hours) VALUES ('*', 'noon')",
    "due": "SELECT cyclone.compaction_policy('t', hours => '')",
}


@pytest.mark.once
def test_reasons(server):
    """Each reason that the view gives, with its number. An hour that isn't now keeps the worker from doing anything about it."""
    with server.connect() as conn:
        [(never,)] = conn.execute("SELECT to_char(now() AT TIME ZONE current_setting('log_timezone') - interval '2 days', 'Dy')").fetchall()
        server.on(**{"cyclone.compaction_threshold": 100})
        assert server.wait_for(reason="below the threshold")["would_win"] > 3 * MB
        server.set(**{"cyclone.compaction_threshold": None, "cyclone.compaction_window": never})
        row = server.wait_for(reason="outside the window")
        assert 3 * 86400 < row["figure"] < 6 * 86400
        assert row["next_at"] is not None
        for reason, change in REASONS.items():
            conn.execute("BEGIN")
            conn.execute(change)
            found = conn.execute("SELECT reason, figure, figure_is FROM cyclone.compaction_details WHERE relation = 't'::regclass").fetchall()
            conn.execute("ROLLBACK")
            assert [r for r, *_ in found] == [reason]
            assert all((figure is None) == (unit is None) for _, figure, unit in found)
        conn.execute("SELECT cyclone.compaction_policy('t', latency_target => 'auto', cooldown => '2 hours')")
        row = server.row()
        assert (row["policy"], row["latency_target"], row["cooldown"].total_seconds()) == ("t", "auto", 7200)
        server.set(**{"cyclone.tables": "other*"})
        server.wait_for(reason="left to PostgreSQL")
        server.set(**{"cyclone.tables": None, "cyclone.compaction_databases": "other_*"})
        server.wait_for(reason="database not listed")
        server.set(**{"cyclone.compaction_databases": None, "cyclone.compaction_max_wal": 0, "cyclone.compaction_window": None})
        row = server.wait_for(reason="WAL of the day used up")
        assert row["figure"] == 2 * row["would_win"]


@pytest.mark.once
def test_holder_of_the_horizon_is_waited_for(server):
    holder = server.connect()
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT 1")
    server.on(**{"cyclone.debug_compaction_held": 1})
    assert server.wait_for(reason="horizon held back")["figure"] > 0
    assert server.row()["last_outcome"] is None
    holder.close()
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
        [(never,)] = conn.execute("SELECT to_char(now() AT TIME ZONE current_setting('log_timezone') - interval '2 days', 'Dy')").fetchall()
        server.on(**{"cyclone.compaction_window": never})
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
        assert row["reason"] == "gave way"
        assert 0 < row["figure"] <= 600
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_pause_does_not_double_where_something_was_won(server):
    """Or a table that is interrupted each time would be compacted less and less often."""
    with server.connect() as conn:
        policy(conn, "false")
        make_wide(conn)
        with server.parked("truncate-again") as worker:
            conn.execute("SELECT pg_cancel_backend(%s)", [worker])
            row = server.wait_for("w", last_outcome="gave way")
        assert row["last_won"] > 0 and row["figure"] <= 600
        assert conn.execute("SELECT failures FROM cyclone.compaction_state").fetchall() == [(0,)]


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
        assert row["runs"] == 0 and row["would_win"] > 3 * MB
        other.execute("ROLLBACK")


@pytest.mark.once
def test_autovacuum_that_is_there_first_is_no_failure(server):
    """However often it is: the pause is ten minutes each time, and the table isn't sampled anew."""
    with server.connect() as conn, server.connect() as autovacuum:
        autovacuum.execute("BEGIN; LOCK t IN SHARE UPDATE EXCLUSIVE MODE")
        server.on()
        sampled = server.wait_for(last_outcome="gave way")["sampled_at"]
        for _ in range(2):
            conn.execute("UPDATE cyclone.compaction_state SET outcome = 'none', ended_at = now() - interval '1 hour'")
            row = server.wait_for(last_outcome="gave way")
            assert row["reason"] == "gave way" and row["figure"] <= 600
            assert sampled == row["sampled_at"] is not None
        conn.execute("UPDATE cyclone.compaction_state SET ended_at = now() - interval '1 hour'")
        autovacuum.execute("ROLLBACK")
        server.wait_for(last_outcome="done")


@pytest.mark.once
def test_table_that_is_locked_at_the_last_moment(server):
    """VACUUM skips it: that is no run in vain, by which the cooldown would double, nor a failure, by which the pause would."""
    with server.connect() as conn, server.connect() as other:
        with server.parked("compaction-run"):
            other.execute("BEGIN")
            other.execute("LOCK t IN SHARE UPDATE EXCLUSIVE MODE")
        row = server.wait_for(last_outcome="gave way")
        assert (row["runs"], row["reason"]) == (0, "gave way")
        assert conn.execute("SELECT backoff, failures, done_at FROM cyclone.compaction_state").fetchall() == [(0, 0, None)]
        other.execute("ROLLBACK")


@pytest.mark.once
def test_ends_when_it_is_switched_off(server):
    with server.parked("inplace-plan"):
        server.set(**{"cyclone.compaction": None})
        assert server.wait_for(last_outcome="stopped")["reason"] == "off"
    server.off()
    server.on()
    server.wait_for(last_outcome="done")


@pytest.mark.once
def test_ends_with_its_window(server):
    """A compaction that the end of the window has ended goes on in the next one, without a pause; here that is at once."""
    with server.parked("inplace-plan"):
        server.set(**{"cyclone.debug_compaction_window": 200})
        server.wait_for(last_outcome="stopped")
        server.set(**{"cyclone.debug_compaction_window": None})
    server.wait_for(last_outcome="done")
    with server.connect() as conn:
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_toast_table_that_is_being_vacuumed(server):
    """By autovacuum, which comes to TOAST tables by themselves: a run without it would win little, by which the cooldown would double."""
    with server.connect() as conn:
        policy(conn, "false")
        conn.execute("CREATE TABLE w (id int PRIMARY KEY, note text STORAGE EXTERNAL) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO w SELECT i, repeat('x', 4000) FROM generate_series(1, 1000) i")
        conn.execute("DELETE FROM w WHERE id % 10 <> 0")
        conn.execute("VACUUM (ANALYZE) w")
        [(toast,)] = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'w'").fetchall()
        with Parked(server.cluster, server.db, "heap-scan:leader", 1, f"VACUUM (DISABLE_PAGE_SKIPPING) {toast}") as vacuum:
            server.on()
            row = server.wait_for("w", last_outcome="gave way")
            assert (row["reason"], row["runs"]) == ("gave way", 0)
            vacuum.release()
            vacuum.finish()
        conn.execute("UPDATE cyclone.compaction_state SET ended_at = now() - interval '1 hour'")
        assert server.wait_for("w", last_outcome="done")["last_won"] > 2 * MB
        assert conn.execute("SELECT backoff, failures FROM cyclone.compaction_state").fetchall() == [(0, 0)]
        checks.assert_clean(conn, "w")


@pytest.mark.once
def test_switched_off_after_the_launcher_has_died(server):
    """A launcher comes, though compaction is off, and ends what the worker does."""
    with server.parked("inplace-plan"):
        server.set(**{"cyclone.debug_compaction_visit": 3000})  # ms after which the next launcher comes
        wait_until(lambda: server.cluster.sql("SHOW cyclone.debug_compaction_visit") == [("3000",)], "the reload")
        [launcher] = server.processes("launcher")
        server.cluster.sql(f"SELECT pg_terminate_backend({launcher}, 60000)")
        server.set(**{"cyclone.compaction": None})
        assert server.wait_for(last_outcome="stopped")["reason"] == "off"


@pytest.mark.once
def test_objects_that_are_locked_at_the_end_of_a_run(server):
    """The worker has more patience there than at other times, or the run would count as killed, and says for what it waits."""
    with server.connect() as conn, server.connect() as other:
        with server.parked("inplace-plan") as worker:
            other.execute("BEGIN; LOCK cyclone.compaction_state IN SHARE MODE")
        state = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {worker}"
        wait_until(lambda: server.cluster.sql(state) == [("CycloneCompactionObjects",)], "the wait")
        time.sleep(6)  # longer than it waits at other times
        other.execute("ROLLBACK")
        assert server.wait_for(last_outcome="done")["runs"] == 1
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_what_is_left_alone(server):
    """Databases that are templates, or have no extension, and temporary tables: the next database has its turn all the same."""
    template, bare = server.db, f"{server.db}_bare"
    server.cluster.sql(f"CREATE DATABASE {bare} TEMPLATE template0")
    server.cluster.sql(f"ALTER DATABASE {template} IS_TEMPLATE true")
    server.next_database()
    with server.connect() as conn:
        make(conn)
        make(conn, "pg_temp.temporary")
        server.on(**{"cyclone.compaction_databases": f"{template}, {bare}, {server.db}"})
        server.wait_for(last_outcome="done")
        assert conn.execute("SELECT relation::text FROM cyclone.compaction").fetchall() == [("t",)]
        workers = "SELECT FROM pg_stat_activity WHERE backend_type = 'pg_cyclone compaction worker' AND datname = %s"
        wait_until(lambda: conn.execute(workers, [bare]).fetchall(), "a worker in the database without the extension")
        assert conn.execute(workers, [template]).fetchall() == []
    server.off()
    with server.cluster.connect(template) as conn:
        assert conn.execute("SELECT FROM cyclone.compaction_state").fetchall() == []


def never(conn) -> str:
    """Return a day of the week that isn't today, in the server's time zone."""
    return conn.execute("SELECT to_char(now() AT TIME ZONE current_setting('log_timezone') - interval '2 days', 'Dy')").fetchone()[0]


@pytest.mark.once
def test_ends_when_its_window_is_changed(server):
    """Hours that no longer are those of the setting end the run, too, unless the table's policy has hours of its own."""
    with server.connect() as conn:
        with server.parked("inplace-plan"):
            server.set(**{"cyclone.compaction_window": never(conn)})
            assert server.wait_for(last_outcome="stopped")["runs"] == 0
        server.off()
        conn.execute("DELETE FROM cyclone.compaction_state")
        policy(conn, "hours => 'Sun-Sat'")
        with server.parked("inplace-plan") as worker:
            wait_until(lambda: server.cluster.sql("SHOW cyclone.compaction_window") == [(never(conn),)], "the reload")
            server.set(**{"cyclone.compaction_latency_target": "auto"})  # the launcher reads the files once more
            assert server.row()["reason"] == "running" and server.processes("worker") == [worker]
        server.wait_for(last_outcome="done")


@pytest.mark.once
def test_nothing_is_read_outside_the_window(server):
    """A table isn't even sampled there, unless its policy has hours of its own."""
    with server.connect() as conn:
        make(conn, "u")
        conn.execute("SELECT cyclone.compaction_policy('u', hours => '')")
        server.on(**{"cyclone.compaction_window": never(conn)})
        server.wait_for("u", last_outcome="done")
        row = server.row()
        assert (row["reason"], row["sampled_at"], row["would_win"]) == ("outside the window", None, None)


@pytest.mark.once
def test_ends_when_the_wal_of_the_day_is_used_up(server):
    """A bound that is set while a worker stands still behind the first rows that it has moved ends the run."""
    with server.connect() as conn:
        with server.parked("inplace-batch"):
            server.set(**{"cyclone.compaction_max_wal": "1GB"})
            assert server.row()["reason"] == "running"
            server.set(**{"cyclone.compaction_max_wal": 0})
            assert server.wait_for(last_outcome="stopped")["last_wal"] > 0
            assert server.wait_for(reason="WAL of the day used up")["figure"] > 0
        server.off()
        conn.execute("VACUUM (INDEX_CLEANUP on) t")
        checks.assert_clean(conn, "t")


def wal_of_the_day(server) -> int:
    """Return how much WAL is noted on disk, in bytes; 0 without a note."""
    path = server.cluster.data / "pg_cyclone/compaction"
    return struct.unpack_from("=qQ", path.read_bytes())[1] if path.exists() else 0


@pytest.mark.once
def test_wal_of_workers_counts_when_a_run_is_cancelled(server):
    """What VACUUM's parallel workers have written until then is the day's, too."""
    with server.connect() as conn:
        for kind in ("table", "index"):
            conn.execute(f"ALTER DATABASE {server.db} SET min_parallel_{kind}_scan_size = 0")
        conn.execute("DROP TABLE t")
        make(conn, "v", keep=1)
        conn.execute("DELETE FROM v WHERE id % 2 = 0")
        conn.execute("ANALYZE v")
        conn.execute("CHECKPOINT")  # images of all pages are written after it
        before = wal_of_the_day(server)
        written = "SELECT pg_current_wal_insert_lsn() - '0/0'"
        [(start,)] = conn.execute(written).fetchall()
        with server.parked("index-vacuum") as worker:
            [(end,)] = conn.execute(written).fetchall()
            assert end - start > 2 * MB
            conn.execute("SELECT pg_cancel_backend(%s)", [worker])
            row = server.wait_for("v", last_outcome="gave way")
            server.set(**{"cyclone.compaction": None})
        assert wal_of_the_day(server) - before > 0.9 * float(end - start)
        assert row["last_wal"] > 0.9 * float(end - start)


@pytest.mark.once
def test_samples_end_with_the_window(server):
    """Those of tables that were chosen before, too."""
    with server.connect() as conn:
        with server.parked("bloat-page"):
            server.set(**{"cyclone.compaction_window": never(conn)})
            assert server.wait_for(last_outcome="stopped")["would_win"] is None
        assert server.wait_for(reason="outside the window")["sampled_at"] is None


@pytest.mark.once
@pytest.mark.parametrize("locked", [False, True])
def test_each_database_has_its_turn(server, locked):
    """With one worker for all; also if that has to leave one as the extension is locked there, which keeps the others for seconds only."""
    first = server.db
    server.next_database()
    with server.connect() as conn:
        make(conn)
    server.set(**{"cyclone.compaction_databases": f"{first}, {server.db}"})
    with server.cluster.connect(first) as holder:
        holder.execute("BEGIN")
        if locked:
            holder.execute("LOCK cyclone.compaction_state IN ACCESS EXCLUSIVE MODE")
        server.on()
        server.wait_for(last_outcome="done")
    server.db = first
    server.wait_for(last_outcome="done")
    server.off()


@pytest.mark.once
def test_objects_that_are_not_the_extensions(server):
    """What takes the place of an object of the extension while that is being dropped isn't used: its functions would have all rights."""
    with server.connect() as conn:
        conn.execute("CREATE TABLE trap (i int)")
        conn.execute("CREATE FUNCTION spring() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.trap VALUES (1); RETURN NULL; END$$")
        conn.execute("BEGIN; DROP EXTENSION pg_cyclone")
        server.set(**{"cyclone.compaction": "on"})
        waits = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_cyclone compaction worker' AND wait_event_type IN ('Lock', 'Extension')"
        wait_until(lambda: server.cluster.sql(waits), "a worker that waits")
        conn.execute("CREATE SCHEMA IF NOT EXISTS cyclone; CREATE TABLE cyclone.compaction_state (relid oid)")
        conn.execute("CREATE TRIGGER trap AFTER DELETE ON cyclone.compaction_state EXECUTE FUNCTION spring()")
        conn.execute("COMMIT")
        server.off()
        assert conn.execute("SELECT FROM trap").fetchall() == []


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
def test_nothing_is_to_be_won_where_nothing_can_be(server):
    """A table that is used as a catalog isn't tried again and again; the index of a TOAST table stays as it is."""
    with server.connect() as conn:
        make(conn, "u")
        conn.execute("ALTER TABLE u SET (user_catalog_table = true)")
        conn.execute("CREATE TABLE w (id int PRIMARY KEY, note text STORAGE EXTERNAL) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO w SELECT i, repeat('x', 15000) FROM generate_series(1, 5000) i")
        conn.execute("DELETE FROM w WHERE id % 500 <> 0")
        conn.execute("VACUUM (FULL INPLACE, ANALYZE) w")
        policy(conn, "min_size => 0, threshold => 0")
        conn.execute("INSERT INTO cyclone.compaction_policies (pattern, min_size, threshold) VALUES ('w', 0, 100), ('u', 1, 0)")
        server.on()
        row = server.wait_for("u", reason="little to be won")
        assert row["last_outcome"] is None
        row = server.wait_for("w", reason="below the threshold")
        assert row["size"] > MB > 4 * row["would_win"]


@pytest.mark.once
def test_nothing_runs_where_a_run_was_cut_off(server):
    """The note of a run that was killed says of no run that it is under way: neither here, while compaction is off, nor on a standby."""
    with server.connect() as conn:
        conn.execute("INSERT INTO cyclone.compaction_state (relid, began_at) VALUES ('t'::regclass, now())")
        assert server.row()["running_since"] is None


@pytest.mark.once
def test_error_is_one_tables(server):
    with server.connect() as conn:
        server.on(**{"cyclone.debug_point": "inplace-plan:worker:error"})
        row = server.wait_for(reason="failed")
        assert "debug point" in row["last_error"]
        assert 0 < row["figure"] <= 3600
        server.set(**{"cyclone.debug_point": None})
        name = """ "U ""v"" 'w'; --" """
        make(conn, name)
        server.wait_for(name, last_outcome="done")
        assert server.row()["reason"] == "failed"
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_killed_worker_leaves_a_pause(server):
    with server.connect() as conn:
        with server.parked("inplace-plan") as worker:
            conn.execute("SELECT pg_terminate_backend(%s)", [worker])
            row = server.wait_for(reason="killed")
        assert 0 < row["figure"] <= 3600
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_clock_that_was_set_back(server):
    """A note of a moment that hasn't come yet doesn't count for as long as the clock was wrong."""
    with server.connect() as conn:
        conn.execute("INSERT INTO cyclone.compaction_state (relid, sampled_at, ended_at, done_at, outcome)"
                     " SELECT 't'::regclass, at, at, at, 'done' FROM (SELECT now() + interval '1 year' AS at)")  # fmt: skip
        server.on()
        past = "SELECT FROM cyclone.compaction_state WHERE greatest(sampled_at, ended_at, done_at) <= now()"
        wait_until(lambda: conn.execute(past).fetchall(), "moments that have been")
        row = server.row()
        assert row["reason"] == "cooldown" and 0 < row["figure"] <= 86400


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
        server.set(post_auth_delay="2")  # s
        wait_until(lambda: server.cluster.sql("SHOW post_auth_delay") == [("2s",)], "the reload")
        conn.execute("ALTER SYSTEM SET cyclone.compaction = on")
        conn.execute("SELECT pg_reload_conf()")
        starting = wait_until(lambda: child(server, conn, "launcher"), "the launcher")
        conn.execute("ALTER SYSTEM RESET cyclone.compaction")
        conn.execute("ALTER SYSTEM RESET post_auth_delay")
        conn.execute("SELECT pg_reload_conf()")
        wait_until(lambda: not starting.exists(), "the launcher's end")


# Where a worker may stand still, each point that it comes by: while it samples, before VACUUM begins, and in each step of FULL INPLACE,
# the last of which are about an index.
POINTS = ["bloat-page", "inplace-plan", "inplace-batch", "shrink-swap"]
ONCE = ["compaction-run", "heap-scan", "inplace-pause", "inplace-look", "shrink-create", "shrink-build", "shrink-built", "shrink-validate"]
WIDE = ["gin-page", "gist-page", "hash-bucket", "index-page-deletion", "inplace-value", "spgist-page", "truncate-again"]
FULL = ["btree-page", "heap-vacuum", "index-cleanup", "index-vacuum", "inplace-audit", "shrink-swapped", "shrink-wait", "truncate", *WIDE]


def make_for(conn, point: str) -> str:
    """Make the only table anew, which comes by that point when it is compacted, and return its name."""
    conn.execute("DROP TABLE IF EXISTS t, i, w; DELETE FROM cyclone.compaction_state")
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
    [*POINTS, *(pytest.param(point, marks=pytest.mark.once) for point in ONCE), *(pytest.param(point, marks=pytest.mark.full) for point in FULL)],
)
def test_stopped_at_any_point(server, point):
    """A worker that is cancelled, or terminated, or whose launcher is, leaves a pause, if any, and what the next one can go on with."""
    position = len(server.cluster.log)
    with server.connect() as conn:
        for how, expected in (("cancel", "gave way"), ("terminate", "killed")):
            table = make_for(conn, point)
            with server.parked(point) as worker:
                conn.execute(f"SELECT pg_{how}_backend(%s)", [worker])
                if point == "bloat-page":
                    wait_until(lambda worker=worker: server.parked(point).worker() != worker, "the worker's end")
                else:
                    server.wait_for(table, last_outcome=expected)
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
        server.set(**{"cyclone.compaction_databases": "none"})
        background = Background(server.cluster, "postgres", statement)
        wait_until(lambda: worker not in server.processes(), "the worker's end")
    if isinstance(background.wait(), psycopg.errors.ObjectInUse):  # it waits for five seconds
        server.cluster.sql(statement)
    assert not background.error or isinstance(background.error, psycopg.errors.ObjectInUse)


@pytest.mark.once
def test_database_that_is_dropped_meanwhile(server):
    """DROP DATABASE IF EXISTS of an owner who isn't a superuser makes way for a database that another session drops at this moment."""
    server.cluster.sql("CREATE ROLE owner_of_dropped LOGIN CREATEDB")
    server.cluster.sql("CREATE DATABASE dropped OWNER owner_of_dropped")
    with server.parked("inplace-plan"):
        statement = "DROP DATABASE IF EXISTS dropped"
        with Parked(server.cluster, "postgres", "compaction-way:leader", 1, statement, {"role": "owner_of_dropped"}) as drop:
            server.cluster.sql("DROP DATABASE dropped")
            drop.release()
            drop.finish()
    server.cluster.sql("DROP ROLE owner_of_dropped")


@pytest.mark.once
def test_worker_that_comes_too_late_is_in_nobodys_place(server):
    """A database was left before its worker had begun: its place is free at once, not after the minute that a worker has to start."""
    with server.cluster.connect() as conn:
        server.set(post_auth_delay="3")  # s
        wait_until(lambda: server.cluster.sql("SHOW post_auth_delay") == [("3s",)], "the reload")
        conn.execute("ALTER SYSTEM SET cyclone.compaction = on")
        conn.execute("SELECT pg_reload_conf()")
        starting = wait_until(lambda: child(server, conn, "worker"), "a worker")
        conn.execute("ALTER SYSTEM SET cyclone.compaction_databases = 'none'")
        conn.execute("ALTER SYSTEM RESET post_auth_delay")
        conn.execute("SELECT pg_reload_conf()")
        conn.execute(f"ALTER DATABASE {server.db} RENAME TO {server.db}_late")
        wait_until(lambda: not starting.exists(), "the worker's end")
        server.db += "_late"
        conn.execute(f"ALTER SYSTEM SET cyclone.compaction_databases = '{server.db}'")
        conn.execute("SELECT pg_reload_conf()")
        wait_until(lambda: server.processes("worker"), "another worker", 45)
    server.wait_for(last_outcome="done")


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
    """Nobody waits for a worker that is at a table, which ends without a word when it is done."""
    with server.connect() as conn:
        with server.parked("inplace-plan") as worker:
            conn.execute("SET lock_timeout = '60s'")
            conn.execute("DROP EXTENSION pg_cyclone")
        wait_until(lambda: worker not in server.processes(), "the worker's end")
        conn.execute("CREATE EXTENSION pg_cyclone")
        checks.assert_clean(conn, "t")


@pytest.mark.once
@pytest.mark.parametrize("point", ["bloat-page", "inplace-plan"])
def test_restart_leaves_no_pause(new_cluster, point):
    """A server that is shut down ends a run, or a sample, as the end of the window does."""
    cluster = new_cluster(**SETTINGS)
    server = Server(cluster)
    server.next_database()
    with server.connect() as conn:
        make(conn)
    with server.parked(point):
        cluster.restart()
    server.wait_for(last_outcome="done")
    with server.connect() as conn:
        assert conn.execute("SELECT failures FROM cyclone.compaction_state").fetchall() == [(0,)]
        checks.assert_clean(conn, "t")


@pytest.mark.once
def test_restart_does_not_forget_the_wal_of_the_day(new_cluster):
    cluster = new_cluster(**SETTINGS)
    server = Server(cluster)
    server.next_database()
    with server.connect() as conn:
        make(conn)
        conn.execute("CHECKPOINT")  # images of all pages are written after it
    server.on()
    written = server.wait_for(last_outcome="done")["last_wal"]
    assert written > MB
    server.set(**{"cyclone.compaction_max_wal": 0})
    cluster.restart()
    with server.connect() as conn:
        make(conn, "u")
        needed = server.wait_for("u", reason="WAL of the day used up")["figure"]
        bound = (written + needed) // MB  # as much as is needed, but not beside what was written before
        assert bound * MB > needed
        server.set(**{"cyclone.compaction_max_wal": f"{bound:.0f}MB"})
        wait_until(lambda: server.cluster.sql("SHOW cyclone.compaction_max_wal") == [(f"{bound:.0f}MB",)], "the reload")
        assert server.row("u")["reason"] == "WAL of the day used up"
        server.set(**{"cyclone.compaction_max_wal": f"{bound + 4:.0f}MB"})
        server.wait_for("u", last_outcome="done")
        checks.assert_clean(conn, "u")


def test_crash_leaves_a_pause(new_cluster):
    """After the server has crashed in a table it waits, also if it was but sampled; compaction itself begins anew by itself."""
    cluster = new_cluster(**SETTINGS)
    server = Server(cluster)
    server.next_database()
    with server.connect() as conn:
        make(conn)
    for point in ("bloat-page", "heap-scan", "inplace-batch", "inplace-plan"):
        with server.parked(point):
            cluster.crash()
            cluster.start()
            assert server.wait_for(reason="circuit breaker")["last_outcome"] in (None, "killed")
        server.off()
        with server.connect() as conn:
            assert checks.dangling_index_entries(conn, "t", between_passes=True) == []
            conn.execute("VACUUM (INDEX_CLEANUP on) t")
            checks.assert_clean(conn, "t")
            if point != "inplace-plan":
                conn.execute("SELECT cyclone.autovacuum_reset('t')")
                conn.execute("DELETE FROM cyclone.compaction_state")
    server.on()
    assert server.wait_for(last_outcome="killed")["reason"] == "circuit breaker"
    with server.connect() as conn:
        make(conn, "u")
        server.wait_for("u", last_outcome="done")
        conn.execute("SELECT cyclone.autovacuum_reset('t')")
        assert server.row()["reason"] == "killed"
        checks.assert_clean(conn, "t")


@pytest.mark.full
@pytest.mark.parametrize("point", [*POINTS, *ONCE, *FULL])
def test_crash_at_any_point(new_cluster, point):
    """The table waits, and is sound when it is compacted after all."""
    cluster = new_cluster(**SETTINGS)
    server = Server(cluster)
    server.next_database()
    with server.connect() as conn:
        table = make_for(conn, point)
    with server.parked(point):
        cluster.crash()
        cluster.start()
        assert server.wait_for(table, reason="circuit breaker")["last_outcome"] in (None, "killed")
    with server.connect() as conn:
        conn.execute("SELECT cyclone.autovacuum_reset()")
        server.wait_for(table, reason="killed")
        conn.execute("DELETE FROM cyclone.compaction_state")
        over = ("cooldown", "small", "below the threshold", "little to be won")  # a run may have won all that was to be won
        wait_until(lambda: server.row(table)["reason"] in over, "the end of compaction")
        server.off()
        conn.execute(f"VACUUM (INDEX_CLEANUP on) {table}")
        checks.assert_clean(conn, table)


def test_standby_takes_over(new_cluster):
    """A standby has no launcher and says so; once promoted it goes on by itself."""
    cluster = new_cluster(**SETTINGS)
    server = Server(cluster)
    server.next_database()
    standby = cluster.standby()
    try:
        standby.start()
        with server.connect() as conn:
            make(conn)
        standby.wait_for_replay(cluster)
        cluster.stop()
        there = Server(standby)
        there.db = server.db
        standby.config["cyclone.compaction"] = "on"
        standby.restart()
        assert there.row()["reason"] == "standby"
        assert not there.processes()
        standby.promote()
        there.wait_for(last_outcome="done")
    finally:
        standby.remove()


@pytest.fixture
def roles(server):
    server.cluster.sql("CREATE ROLE compaction_owner LOGIN; CREATE ROLE compaction_other LOGIN")
    with server.connect() as conn:
        conn.execute("ALTER TABLE t OWNER TO compaction_owner")
    yield server
    server.cluster.sql(f"DROP DATABASE {server.db} WITH (FORCE)")
    server.cluster.sql("DROP ROLE compaction_owner, compaction_other")


@pytest.mark.once
def test_privileges(roles):
    """A table's owner has its policy, and nobody else's; nobody writes to the tables, and what is said of a table is for its owner."""
    with roles.connect(user="compaction_owner") as owner, roles.connect(user="compaction_other") as other, roles.connect() as conn:
        policy(owner, "threshold => 50")
        assert owner.execute("SELECT relation::text, policy, threshold FROM cyclone.compaction_details").fetchall() == [("t", "t", 50)]
        assert other.execute("SELECT * FROM cyclone.compaction_details").fetchall() == []
        for role in (owner, other):
            for table in ("compaction_policies", "compaction_state"):
                for statement in (f"SELECT FROM cyclone.{table} FOR UPDATE", f"DELETE FROM cyclone.{table}", f"INSERT INTO cyclone.{table} DEFAULT VALUES"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        role.execute(statement)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                role.execute("SELECT FROM cyclone.compaction_state")
        # nor does a condition see what the view hides
        conn.execute("UPDATE cyclone.compaction_state SET error = 'secret'; INSERT INTO cyclone.compaction_state (relid, error)"
                     " VALUES ('t'::regclass, 'secret') ON CONFLICT DO NOTHING")
        assert other.execute("SELECT FROM cyclone.compaction_details WHERE last_error::int = 1").fetchall() == []
        conn.execute("DELETE FROM cyclone.compaction_state")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner of table t"):
            policy(other, "false")
        # a function that runs with another user's rights goes by these
        conn.execute("CREATE FUNCTION f() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$SELECT cyclone.compaction_policy('t', false)$$")
        conn.execute("ALTER FUNCTION f() OWNER TO compaction_other")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute("SELECT f()")
        # nor does a search path lead anywhere
        owner.execute("CREATE TEMP TABLE compaction_policies (relation regclass)")
        owner.execute("SET search_path = pg_temp, public")
        policy(owner, "threshold => 60")
        assert conn.execute("SELECT threshold FROM cyclone.compaction_policies").fetchall() == [(60,)]
        policy(owner, "NULL")
        assert conn.execute("SELECT FROM cyclone.compaction_policies").fetchall() == []
        assert owner.execute("SELECT current_user, current_setting('search_path')").fetchall() == [("compaction_owner", "pg_temp, public")]


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("'t', hours => 'Mon-Fry'", "invalid hours"),
        ("'t', latency_target => 'soon'", "invalid latency target"),
        ("'t', threshold => 101", "check constraint"),
        ("'t', min_size => -1", "check constraint"),
        ("'t', cooldown => '-1 s'", "check constraint"),
        ("'t', hours => repeat(' ', 2000)", "too long"),
        ("'pg_class', false", "cannot be compacted"),
        ("'t_pkey', false", "cannot be compacted"),
        ("NULL, false", "must not be null"),
        ("4294967295, false", "does not exist"),
    ],
)
def test_wrong_policies(server, arguments, error):
    with server.connect() as conn, pytest.raises(psycopg.Error, match=error):
        conn.execute(f"SELECT cyclone.compaction_policy({arguments})")


@pytest.mark.once
def test_rows_that_no_constraint_has_seen(server):
    """The function behind the view takes a row that is made by hand, too, with times that a CHECK would refuse."""
    with server.connect() as conn:
        for sign in ("", "-"):
            policy_row = f"ROW(NULL, '*', true, NULL, NULL, '{sign}infinity', NULL, NULL)::cyclone.compaction_policies"
            state = f"jsonb_populate_record(NULL::cyclone.compaction_state, '{{\"ended_at\": \"{sign}infinity\", \"outcome\": \"done\"}}')"
            verdict = f"cyclone.compaction_verdict('t'::regclass, 1e9::bigint, 1, 1, {policy_row}, {state})"
            [(cooldown,)] = conn.execute(f"SELECT date_part('epoch', cooldown) FROM {verdict}").fetchall()
            assert cooldown == (60 if sign else 100 * 365 * 86400)


@pytest.mark.once
def test_wrong_settings(server):
    with server.connect() as conn:
        with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
            conn.execute("ALTER SYSTEM SET cyclone.compaction_window = 'Mon-Fri 22-5'")
        assert caught.value.diag.message_detail == "Hours are as in 22:00-05:00."
        assert "Mon-Fri 22:00-05:00" in caught.value.diag.message_hint
        for setting in ("latency_target = 'soon'", "databases = 'a,,'", "workers = 0", "threshold = 101"):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                conn.execute(f"ALTER SYSTEM SET cyclone.compaction_{setting}")


@pytest.mark.once
def test_policies_survive(server):
    """Rename, dump and restore; that of a dropped table doesn't, and isn't dumped."""
    with server.connect() as conn:
        make(conn, "dropped", keep=1)
        policy(conn, "false, threshold => 50, hours => 'Sat'")
        conn.execute("SELECT cyclone.compaction_policy('dropped', false)")
        conn.execute("INSERT INTO cyclone.compaction_policies (pattern, enabled) VALUES ('public.log*', false), ('log_*', true)")
        conn.execute("ALTER TABLE t RENAME TO renamed")
        conn.execute("CREATE SCHEMA s")
        conn.execute("ALTER TABLE renamed SET SCHEMA s")
        conn.execute("DROP TABLE dropped")
        conn.execute("CREATE TABLE log_1 (); CREATE TABLE logs ()")
        chosen = "SELECT relation::text, policy, enabled FROM cyclone.compaction_details ORDER BY 1"
        expected = [("log_1", "public.log*", False), ("logs", "public.log*", False), ("s.renamed", "s.renamed", False)]
        assert conn.execute(chosen).fetchall() == expected
        with pytest.raises(psycopg.errors.CheckViolation):
            conn.execute("INSERT INTO cyclone.compaction_policies (pattern, enabled) VALUES ('two words', false)")
        # any role may that may read the rest
        conn.execute("CREATE ROLE dumper LOGIN; GRANT USAGE ON SCHEMA s TO dumper; GRANT SELECT ON ALL TABLES IN SCHEMA s, public TO dumper")
        server.cluster.run("pg_dump", "--dbname", server.db, "--username", "dumper")
        conn.execute("DROP OWNED BY dumper; DROP ROLE dumper")
        dump = server.cluster.run("pg_dump", "--dbname", server.db).stdout
        server.cluster.sql(f"CREATE DATABASE {server.db}_restored")
        server.cluster.run("psql", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname", f"{server.db}_restored", input=dump)
        with server.cluster.connect(f"{server.db}_restored") as restored:
            assert restored.execute(chosen).fetchall() == expected
            assert restored.execute("SELECT count(*) FROM cyclone.compaction_policies").fetchall() == [(3,)]
        server.on()
        wait_until(lambda: conn.execute("SELECT count(*) FROM cyclone.compaction_policies").fetchall() == [(3,)], "the end of a policy")


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
        reader = Background(server.cluster, server.db, "SELECT * FROM t")
        reader.finish()
    server.wait_for(last_outcome="done")


@pytest.mark.once
def test_publication_of_all_tables(server):
    """It publishes the extension's tables, too, and the server refuses to delete from one whose rows it can't name."""
    with server.connect() as conn:
        conn.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        policy(conn, "threshold => 20")
        policy(conn, "threshold => 25")
        server.on()
        server.wait_for(last_outcome="done")


@pytest.mark.once
def test_subscriber_of_all_tables(new_cluster):
    """With the extension it gets the rows of compaction's tables, too, and replication goes on, also where compaction cleans up there."""
    server = Server(new_cluster(wal_level="logical", **SETTINGS, **{"cyclone.compaction_databases": "publisher"}))
    server.db = "publisher"
    for name in ("publisher", "subscriber"):
        server.cluster.sql(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    policies = "SELECT relation::text, threshold FROM cyclone.compaction_policies"
    states = "SELECT relid, outcome, won, runs FROM cyclone.compaction_state WHERE outcome = 'done'"
    with server.connect() as publisher, server.cluster.connect("subscriber") as subscriber:
        make(publisher)
        policy(publisher, "threshold => 20")
        subscriber.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        publisher.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        publisher.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        subscriber.execute(
            f"CREATE SUBSCRIPTION s CONNECTION 'host={server.cluster.socket_dir} dbname=publisher user=postgres'"
            " PUBLICATION everything WITH (create_slot = false, slot_name = s)"
        )

        def arrives(query: str) -> None:
            wait_until(lambda: subscriber.execute(query).fetchall() == publisher.execute(query).fetchall() != [], query)

        arrives(policies)
        server.on()
        server.wait_for(last_outcome="done")
        policy(publisher, "threshold => 25")
        for query in (policies, states, "SELECT * FROM t ORDER BY id"):
            arrives(query)
        # of tables that the subscriber doesn't have
        server.set(**{"cyclone.compaction_databases": "*"})
        unknown = "SELECT FROM cyclone.compaction_state WHERE relid NOT IN (SELECT oid FROM pg_class)"
        wait_until(lambda: subscriber.execute(unknown).fetchall() == [], "compaction's clearing up")
        policy(publisher, "threshold => 30")
        publisher.execute("INSERT INTO t VALUES (0, 'new')")
        for query in (policies, "SELECT * FROM t ORDER BY id"):
            arrives(query)
        subscriber.execute("DROP SUBSCRIPTION s")
        checks.assert_clean(subscriber, "t")
    server.off()
    assert "ERROR" not in server.cluster.log


@pytest.mark.once
def test_policy_without_cooldown(server):
    """Or a table of which nothing is won would be compacted again and again: none doubles to none."""
    with server.connect() as conn:
        policy(conn, "min_size => 0, cooldown => '0'")
        server.on()
        row = server.wait_for(last_outcome="done")
    assert (row["reason"], row["cooldown"].total_seconds()) == ("cooldown", 60)


@pytest.mark.once
def test_policy_of_a_dropped_table_in_a_transaction(roles):
    """Its owner has changed it in a transaction that goes on; no worker waits for that."""
    with roles.connect(user="compaction_owner") as owner, roles.connect(user="compaction_owner") as second, roles.connect() as conn:
        make(conn, "u")
        policy(owner, "threshold => 50")
        owner.execute("BEGIN")
        policy(owner, "threshold => 60")
        second.execute("DROP TABLE t")
        roles.on()
        wait_until(lambda: roles.row("u")["sampled_at"] or roles.row("u")["last_outcome"], "a sample, or a run")
        owner.execute("ROLLBACK")
        wait_until(lambda: conn.execute("SELECT count(*) FROM cyclone.compaction_policies").fetchall() == [(0,)], "the end of its policy")


@pytest.mark.once
def test_view_is_cheap_with_a_policy_for_each_table(roles):
    """Each owner of tables may set as many policies, so the view doesn't look at all of them for each table."""
    number = 40
    with roles.connect(user="compaction_owner") as owner, roles.connect() as conn:
        conn.execute("GRANT CREATE ON SCHEMA public TO compaction_owner")
        for i in range(number):
            owner.execute(f"CREATE TABLE u{i} (); SELECT cyclone.compaction_policy('u{i}', false)")
        conn.execute("ANALYZE cyclone.compaction_policies, pg_class")
        [([plan],)] = conn.execute("EXPLAIN (ANALYZE, FORMAT JSON) SELECT * FROM cyclone.compaction_details").fetchall()

        def looked_at(node: dict) -> float:
            own = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) if node.get("Relation Name") == "compaction_policies" else 0
            return own * node["Actual Loops"] + sum(looked_at(child) for child in node.get("Plans", []))

        assert number <= looked_at(plan["Plan"]) <= 4 * number
        assert conn.execute("SELECT count(*) FROM cyclone.compaction_details WHERE NOT enabled").fetchall() == [(number,)]


@pytest.mark.once
@pytest.mark.parametrize("point", ["", "compaction-run"])
def test_index_that_is_locked(roles, point):
    """The owner of a table locks an index alone, before a run or in its midst: no other table waits for the end of that transaction."""
    with roles.connect(user="compaction_owner") as owner, roles.connect() as conn:
        make(conn, "u")
        conn.execute("SELECT cyclone.compaction_policy('u', false)")
        owner.execute("BEGIN")
        lock = "ALTER INDEX t_pkey SET TABLESPACE pg_default"
        if point:
            with roles.parked(point):
                owner.execute(lock)
        else:
            owner.execute(lock)
            roles.on()
        conn.execute("SELECT cyclone.compaction_policy('u')")
        roles.wait_for("u", last_outcome="done")
        roles.wait_for("t", last_outcome="gave way")
        owner.execute("ROLLBACK")
