"""cyclone-top: at work on a terminal, for scripts, and on servers without the extension."""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from contextlib import contextmanager
from datetime import datetime, timedelta

import psycopg
import pytest
from rich.console import Console

from cyclone_lab.background import Background, Parked, wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO

CONSOLE = REPO / "console"
sys.path.insert(0, str(CONSOLE))

from cyclone_console import draw, look  # noqa: E402

SETTINGS = {"min_parallel_index_scan_size": 0}
# a page at a time: a scan takes more than a minute
SLOW = {"vacuum_cost_delay": "100ms", "vacuum_cost_limit": 20, "vacuum_cost_page_hit": 20}
PROGRAM = [sys.executable, "-m", "cyclone_console.top"]
ENV = {**os.environ, "PYTHONPATH": str(CONSOLE), "TERM": "xterm-256color", "PYTHONIOENCODING": "utf8"}


def dsn(cluster: Cluster, db: str, user: str = "postgres") -> str:
    return f"host={cluster.socket_dir} user={user} dbname={db}"


# what it calls in each look, as another user might define it
FUNCTIONS = [
    "current_setting(text) RETURNS text", "current_database() RETURNS name", "clock_timestamp() RETURNS timestamptz",
    "to_regclass(text) RETURNS regclass", "pg_backend_pid() RETURNS int",
]  # fmt: skip


def once(cluster: Cluster, db: str, user: str = "postgres", **variables: str) -> str:
    """Return what cyclone-top prints for scripts."""
    result = subprocess.run([*PROGRAM, "--once", dsn(cluster, db, user)], env={**ENV, "COLUMNS": "200", **variables}, text=True, capture_output=True)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


class Screen:
    """cyclone-top on a pseudo-terminal, gone at the block's end. `text` is what it has written since `forget`, without what steers the terminal."""

    def __init__(self, *arguments: str):
        self.master, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.before = termios.tcgetattr(self.terminal)
        self.written = b""
        self.known = 0
        self.process = subprocess.Popen(
            [*PROGRAM, "--interval", "0.1", *arguments], env=ENV, stdin=self.terminal, stdout=self.terminal,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_exception) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.master)

    def _read(self) -> None:
        try:
            while data := os.read(self.master, 65536):
                self.written += data
        except OSError:
            return

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.written[self.known :].decode(errors="replace"))

    def forget(self) -> None:
        self.known = len(self.written)  # which another thread is writing

    def shows(self, what: str) -> None:
        wait_until(lambda: what in self.text or self.process.poll() is not None, f"the text {what!r}")
        assert what in self.text, self.text[-2000:]

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def ended(self) -> int:
        """Wait for its end, see that the terminal is as it was, and return the exit status."""
        status = self.process.wait(60)
        assert termios.tcgetattr(self.terminal) == self.before
        return status


@pytest.fixture
def table(conn):
    """Table with dead rows on each page, and indexes for a team of three in each phase."""
    conn.execute("CREATE TABLE watched (id int, a int[], p point) WITH (fillfactor = 20, autovacuum_enabled = off)")
    conn.execute("INSERT INTO watched SELECT i, ARRAY[i, -i], point(i, i) FROM generate_series(1, 14000) i")
    conn.execute("CREATE INDEX watched_id ON watched (id)")
    conn.execute("CREATE INDEX watched_a ON watched USING gin (a)")
    conn.execute("CREATE INDEX watched_p ON watched USING gist (p)")
    conn.execute("DELETE FROM watched WHERE id % 3 = 0")


@pytest.mark.parametrize("point, phase", [("heap-scan", "scanning heap"), ("index-vacuum", "vacuuming indexes")])
def test_once_shows_each_process_of_a_vacuum(cluster, db, conn, table, point, phase):
    assert "No VACUUM is running" in once(cluster, db)
    with Parked(cluster, db, f"{point}:any", 3, "VACUUM (PARALLEL 2) watched", SETTINGS) as vacuum:
        text = once(cluster, db)
    assert re.search(rf"watched +{db} +pid {vacuum.pid} +postgres +by pg_cyclone", text)
    for pid in vacuum.parked:
        assert re.search(rf"{'leader' if pid == vacuum.pid else 'worker'} {pid}.*{phase}", text)
    assert "blocks" in text if point == "heap-scan" else "index public.watched_" in text
    assert "\x1b" not in text


def test_a_rewrite_is_shown_once(cluster, db, conn, table):
    with Parked(cluster, db, "heap-copy:leader", 1, "VACUUM (FULL) watched") as vacuum:
        text = once(cluster, db)
    assert text.count(f"pid {vacuum.pid}") == 1
    assert "by pg_cyclone" in text and "copying heap > copying linked row versions" in text


def test_holders_of_the_horizon_are_shown_but_not_how_to_end_who_has_just_come(cluster, db, conn, table):
    with cluster.snapshot(db, "SELECT count(*) FROM watched") as holder:
        text = once(cluster, db)
        pid = holder.info.backend_pid
        assert re.search(rf"session {pid}, {db}, postgres.*idle in transaction", text)
        assert "pg_terminate_backend" not in text


def test_in_a_database_without_the_extension_it_shows_what_the_server_tells(cluster, db, conn, table):
    with Parked(cluster, db, "heap-scan:leader", 1, "VACUUM (PARALLEL 0) watched") as vacuum:
        text = once(cluster, "postgres")
    assert f"pid {vacuum.pid}" in text and "scanning heap" in text
    assert "has no extension pg_cyclone" in text


@pytest.mark.parametrize("key", [b"q", b"\x03", None], ids=["q", "ctrl-c", "signal"])
def test_on_a_terminal_it_goes_on_until_it_is_ended(cluster, db, conn, table, key):
    with Screen(dsn(cluster, db)) as shown:
        shown.shows("No VACUUM is running")
        with Parked(cluster, db, "heap-scan:any", 3, "VACUUM (PARALLEL 2) watched", SETTINGS) as vacuum:
            for pid in vacuum.parked:
                shown.shows(f" {pid}")
            shown.shows("scanning heap")
        vacuum.finish()
        shown.forget()
        shown.shows("No VACUUM is running")
        if key:
            shown.type(key)
        else:
            shown.process.send_signal(signal.SIGTERM)
        assert shown.ended() == (0 if key else 143)


def test_a_plain_server_and_a_connection_that_is_lost(prefix):
    """A server that has never heard of pg_cyclone, with a VACUUM of its own; then it is restarted."""
    with Cluster.create(prefix, {"autovacuum": "off", "fsync": "off"}) as plain:
        plain.start()
        plain.sql("CREATE TABLE plain_table (id int) WITH (fillfactor = 10)")
        plain.sql("INSERT INTO plain_table SELECT generate_series(1, 14000)")
        plain.sql("DELETE FROM plain_table WHERE id % 2 = 0")
        with Screen(dsn(plain, "postgres")) as shown:
            shown.shows("has no extension pg_cyclone")
            vacuum = Background(plain, "postgres", "VACUUM plain_table", SLOW)
            shown.shows(f"pid {vacuum.pid}  postgres  by the server")
            shown.shows("at the rate seen")
            plain.stop()
            assert vacuum.wait() is not None
            shown.shows("No connection, trying again")
            plain.start()
            last = lambda: shown.text.split("cyclone-top ")[-1]  # noqa: E731
            wait_until(lambda: "No VACUUM is running" in (picture := last()) and "No connection" not in picture, "a picture as at first")
            shown.type(b"q")
            assert shown.ended() == 0


def test_a_server_that_does_not_preload_the_library_is_shown_by_its_own_views(prefix):
    settings = {"autovacuum": "off", "fsync": "off", "shared_preload_libraries": "pg_cyclone"}
    with Cluster.create(prefix, settings) as plain:
        plain.start()
        plain.sql("CREATE EXTENSION pg_cyclone")
        # not by ALTER SYSTEM, which makes of an empty list one with an empty name
        with (plain.data / "postgresql.auto.conf").open("a") as file:
            file.write("shared_preload_libraries = ''\n")
        plain.restart()
        text = once(plain, "postgres")
    assert "No VACUUM is running" in text
    assert "does not preload pg_cyclone" in text


def test_a_rewrite_by_the_server_is_shown(prefix):
    with Cluster.create(prefix, {"autovacuum": "off", "fsync": "off"}) as plain:
        plain.start()
        plain.sql("CREATE TABLE plain_table AS SELECT generate_series(1, 1000) AS id")
        # an index that waits: its function takes a lock that the test holds
        plain.sql(
            "CREATE FUNCTION waits(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN i; END'"
        )
        plain.sql("CREATE INDEX ON plain_table (waits(id))")
        with plain.connect() as gate:
            gate.execute("SELECT pg_advisory_lock(1)")
            vacuum = Background(plain, "postgres", "VACUUM FULL plain_table")
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_until(lambda: gate.execute(waits).fetchone() == (1,), "the rewrite's wait")
            text = once(plain, "postgres")
        vacuum.finish()
        assert re.search(rf"pid {vacuum.pid} +postgres +by the server", text)
        assert "rebuilding index" in text


@pytest.mark.parametrize("options", ["-c datestyle=German -c intervalstyle=iso_8601", "-c datestyle=SQL,MDY -c intervalstyle=sql_standard"])
def test_the_form_of_times_that_a_server_is_set_to_does_not_matter(cluster, db, conn, table, options):
    with Parked(cluster, db, "heap-scan:leader", 1, "VACUUM (PARALLEL 0) watched"), cluster.snapshot(db, "SELECT count(*) FROM watched") as holder:
        text = once(cluster, db, PGOPTIONS=options)
        assert "scanning heap" in text and f"session {holder.info.backend_pid}, {db}" in text


def test_functions_of_a_database_are_not_taken_for_the_servers(cluster, db, conn, table):
    """Its owner may have set a search path: nothing of the owner's runs with the rights of the role that watches."""
    conn.execute("CREATE SCHEMA theirs")
    for function in FUNCTIONS:
        conn.execute(f"CREATE FUNCTION theirs.{function} LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it ran as %', current_user; END $$")
    with Parked(cluster, db, "heap-scan:leader", 1, "VACUUM (PARALLEL 0) watched"):
        conn.execute(f"ALTER DATABASE {db} SET search_path = theirs, pg_catalog, public")
        with pytest.raises(psycopg.errors.RaiseException), cluster.connect(db) as trapped:
            trapped.execute("SELECT current_setting('server_version')")
        assert "public.watched" in once(cluster, db)


@contextmanager
def code_of_another_role(cluster, conn):
    """An ordinary role has the extension's functions, as REASSIGN OWNED leaves them, and has put code of its own in their place."""
    conn.execute("CREATE ROLE mallory; GRANT CREATE ON SCHEMA cyclone TO mallory")
    for name, definition in conn.execute(
        "SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'cyclone'::regnamespace AND probin IS NOT NULL"
    ).fetchall():
        head = definition[: definition.index("\nAS ")].replace("LANGUAGE c", "LANGUAGE plpgsql")
        conn.execute(f"ALTER FUNCTION {name} OWNER TO mallory; SET ROLE mallory")
        conn.execute(f"{head} AS $$ BEGIN RAISE EXCEPTION 'it ran as %', session_user; END $$")
        conn.execute("RESET ROLE")
    try:
        yield
    finally:
        conn.execute("DROP EXTENSION pg_cyclone; DROP OWNED BY mallory; DROP ROLE mallory")


def test_views_of_another_role_are_not_asked(cluster, db, conn, table):
    """Nothing of its owner's runs with the rights of the role that watches."""
    with code_of_another_role(cluster, conn), Parked(cluster, db, "heap-scan:leader", 1, "VACUUM (PARALLEL 0) watched"):
        with pytest.raises(psycopg.errors.RaiseException, match="it ran as postgres"):
            conn.execute("SELECT * FROM cyclone.progress")
        text = once(cluster, db)
        assert "public.watched" in text and "has no extension pg_cyclone that superusers own" in text


def test_texts_of_another_encoding_are_shown(cluster, db, conn, latin):
    """A query is in the encoding of its database, which may be none in that which is watched from."""
    cluster.sql("CREATE TABLE größe (id int)", dbname=latin)
    cluster.sql("INSERT INTO größe VALUES (1)", dbname=latin)
    with Parked(cluster, latin, "heap-scan:leader", 1, "VACUUM (PARALLEL 0) größe") as vacuum:
        with pytest.raises(UnicodeDecodeError):
            conn.execute("SELECT query FROM pg_stat_activity").fetchall()
        assert re.search(rf"latin +pid {vacuum.pid} .*\n +VACUUM .*\n.*scanning heap", once(cluster, db))


def test_a_table_of_another_database_is_shown_with_its_statement(cluster, db, conn, table):
    """Its name can't be looked up from here."""
    cluster.sql("CREATE EXTENSION pg_cyclone")
    try:
        with Parked(cluster, db, "heap-scan:leader", 1, "VACUUM (PARALLEL 0) watched") as vacuum:
            text = once(cluster, "postgres")
            assert "(PARALLEL 0)" not in once(cluster, db)
    finally:
        cluster.sql("DROP EXTENSION pg_cyclone")
    assert re.search(rf"OID \d+ +{db} +pid {vacuum.pid} .*\n +VACUUM \(PARALLEL 0\) watched", text)


def test_a_role_is_told_what_it_is_not_shown(cluster, db, conn, table):
    """An ordinary role sees that a VACUUM runs, and its own whole."""
    cluster.sql("CREATE ROLE ordinary LOGIN")
    with Parked(cluster, db, "heap-scan:leader", 1, "VACUUM (PARALLEL 0) watched") as vacuum:
        text = once(cluster, db, "ordinary")
        assert "Role " not in once(cluster, db)
    assert re.search(rf"table of another user +{db} +pid {vacuum.pid}", text) and "insufficient" not in text
    assert "Role ordinary sees its own sessions only: pg_monitor" in text


@pytest.mark.once
def test_a_database_is_named_as_for_psql(cluster):
    where = {"PGHOST": str(cluster.socket_dir), "PGUSER": "postgres"}
    printed = subprocess.run([*PROGRAM, "--once", "postgres"], env={**ENV, **where}, text=True, capture_output=True, check=True).stdout
    assert "No VACUUM is running" in printed


@pytest.mark.parametrize("columns", ["wide", "0", "-3"])
def test_a_width_that_is_none_is_passed_over(cluster, columns):
    assert "No VACUUM is running" in once(cluster, "postgres", COLUMNS=columns)


def test_what_cannot_be_done_is_said_in_a_line():
    def run(*arguments):
        return subprocess.run([*PROGRAM, *arguments], env=ENV, text=True, capture_output=True, stdin=subprocess.DEVNULL)

    result = run("--once", "host=/nonexistent")
    assert result.returncode == 1
    assert re.fullmatch(r"cyclone-top: .*/nonexistent.*\n", result.stderr)
    result = run("--once", "no connection string")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    result = run("host=/nonexistent")
    assert result.returncode == 2 and "use --once" in result.stderr


def test_rates_of_the_servers_vacuums_come_from_two_looks():
    begin = datetime(2026, 1, 1)
    memory = draw.Memory()

    def seen(seconds, done, phase="scanning heap"):
        vacuum = look.Vacuum(7, "db", relid=1, phase=phase, done=done, total=1000)
        memory.note(look.Look(begin + timedelta(seconds=seconds), "18", "db", False, [vacuum], []))
        return vacuum.phase_left

    assert seen(0, 100) is None
    assert seen(10, 100) is None, "it stands still"
    assert seen(20, 300) == 70
    assert seen(30, 0, "vacuuming heap") is None
    assert seen(40, 1000, "vacuuming heap") == 0


def test_nobody_is_said_to_hold_rows_only_where_that_is_known():
    def drawn(holders):
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(draw.picture(look.Look(datetime(2026, 1, 1), "18", "db", True, [], holders), draw.Memory(), ""))
        return console.export_text()

    assert "Nobody holds back" in drawn([])
    assert "Nobody holds back" not in drawn(None) and "older than 0.2.0" in drawn(None)


def test_words_and_curves():
    assert [draw.duration(seconds) for seconds in (0, 59.4, 59.6, 3599, 3600, 172800)] == [
        "0 s", "59 s", "1 min 00 s", "59 min 59 s", "1 h 00 min", "2 days",
    ]  # fmt: skip
    assert [draw.spark(share) for share in (-1, 0, 0.5, 1, 9)] == ["▁", "▁", "▅", "█", "█"]
    assert draw.strain({"rate": 50.0, "budget": 100.0, "shared_by": None}) == 0.5
    assert draw.strain({"rate": 50.0, "budget": None}) is None
    assert draw.strain({"rate": 50.0, "budget": 10.0, "shared_by": 1}) is None, "it may be faster than its floor"
    assert draw.plain("a\x1b[31mb\nc") == "a [31mb c"
