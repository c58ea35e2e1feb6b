"""Autovacuum's tables come to the engine, and what the server expects of an autovacuum holds; if the engine fails, the server's own
VACUUM has the table next.

Autovacuum comes to the tables that a test lets it (`let`), and to no others. A debug point in the configuration is that of autovacuum, as the
tests' own sessions run no VACUUM.
"""

import os
import re
import signal
import struct
import threading
import time
from contextlib import contextmanager

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, create_with_template
from cyclone_lab import build, checks
from cyclone_lab.background import DEBUG_POINT_LOCK, PATIENCE_SECONDS, Background, wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import hand_over
from long_runs.log_reports import REPORT
from test_pace import BURN as BURN_A_CORE
from test_pace import NOTHING_ADDED, cancel
from test_seam import said

NEVER = 1_000_000_000
AUTOVACUUM = {
    "shared_preload_libraries": "pg_cyclone,short_naptime",
    "autovacuum": "on",
    "autovacuum_vacuum_threshold": NEVER,
    "autovacuum_vacuum_insert_threshold": -1,
    "autovacuum_analyze_threshold": NEVER,
    "autovacuum_vacuum_cost_delay": 0,
    "log_autovacuum_min_duration": 0,
    "deadlock_timeout": "300ms",
    "log_lock_waits": "on",
    "cyclone.autovacuum": "on",
    "statement_timeout": "2min",
}
ADAPTIVE = "in all, with an adaptive delay"
TABLE_OPTIONS = {"autovacuum_vacuum_threshold": 0, "autovacuum_vacuum_scale_factor": 0}


class Auto:
    """A server with autovacuum, and a session in a database of its own."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.conn = cluster.connect(TEMPLATE)
        self.changed: set[str] = set()
        self.forget_log()

    def forget_log(self) -> None:
        self.log_start = len(self.cluster.log)

    @property
    def log(self) -> str:
        """The server's log since the test began."""
        return self.cluster.log[self.log_start :]

    def sql(self, query, *args):
        cursor = self.conn.execute(query, *args)
        return cursor.fetchall() if cursor.description else []

    def set(self, **config) -> None:
        """Change configuration files, and have the server read them; two underscores stand for a dot."""
        for name, value in config.items():
            name = name.replace("__", ".")
            self.changed.add(name)
            self.conn.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.reload()

    def unset(self, *names) -> None:
        for name in names:
            self.conn.execute(f"ALTER SYSTEM RESET {name.replace('__', '.')}")
        self.reload()

    def reload(self) -> None:
        before = self.cluster.log.count("reloading configuration files")
        self.conn.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self.cluster.log.count("reloading configuration files") > before, "a reload")
        self.cluster.connect(TEMPLATE).close()  # which the postmaster serves when it has also told all the others

    def make_table(self, name="t", rows=6000, indexes=("btree (id)",), **options) -> None:
        """Make a table of some 400 pages for 6000 rows, of which every third one is dead, and which autovacuum leaves alone."""
        options = {**TABLE_OPTIONS, "fillfactor": 10, "autovacuum_enabled": "off", **options}
        text = ", ".join(f"{option} = {value}" for option, value in options.items())
        self.conn.execute(f"CREATE TABLE {name} (id int, a int[], note text) WITH ({text})")
        self.conn.execute(f"INSERT INTO {name} SELECT i, ARRAY[i % 100, i], 'x' FROM generate_series(1, {rows}) i")
        for index in indexes:
            self.conn.execute(f"CREATE INDEX ON {name} USING {index}")
        self.make_dead(name)

    def make_dead(self, name="t", which="id % 3 = 0") -> None:
        self.conn.execute(f"DELETE FROM {name} WHERE {which}")
        self.conn.execute("SELECT pg_stat_force_next_flush()")

    def let(self, *names, enabled="on") -> None:
        """Let autovacuum come to these tables, or leave them alone."""
        with self.conn.transaction():  # for all of them from the same moment on
            for name in names:
                self.conn.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = {enabled}, toast.autovacuum_enabled = {enabled})")

    def row(self, name="t") -> dict | None:
        """The row of cyclone.autovacuum of a table."""
        cursor = self.conn.execute(
            "SELECT * FROM cyclone.autovacuum_details WHERE relid = %s::regclass AND datname IS NOT DISTINCT FROM"
            " (SELECT CASE WHEN relisshared THEN NULL ELSE current_database() END FROM pg_class c WHERE c.oid = relid)",
            [name],
        )
        rows = cursor.fetchall()
        assert len(rows) <= 1
        return dict(zip((column.name for column in cursor.description), rows[0], strict=True)) if rows else None

    def count(self, what, name="t") -> int:
        row = self.row(name)
        return row[what] if row else 0

    def wait_for(self, what, name="t", more_than=0) -> dict:
        """Wait until a count in the view is higher than that; return the row. Then leave the table alone again."""
        try:
            wait_until(lambda: self.count(what, name) > more_than, f"{what} of {name} after\n{self.log[-3000:]}")
        except TimeoutError:
            print(self.row(name), self.log[-5000:])
            raise
        self.let(name, enabled="off")
        return self.row(name)

    def vacuum(self, name="t", by="engine") -> dict:
        """Have autovacuum come to a table, once."""
        return self.vacuum_all(name, by=by)[0]

    def vacuum_all(self, *names, by="engine") -> list[dict]:
        """Have autovacuum come to tables, once, which takes no longer than for one."""
        what = f"{by}_count"
        before = [self.count(what, name) for name in names]
        self.let(*names)
        return [self.wait_for(what, name, count) for name, count in zip(names, before, strict=True)]

    def activity(self) -> dict[int, tuple]:
        """Autovacuum workers that have come to a table and their parallel workers, by process ID: query and leader.

        Every now and then there is one that only looks which tables are due.
        """
        rows = self.sql(
            "SELECT pid, query, leader_pid FROM pg_stat_activity"
            " WHERE backend_type = 'parallel worker' OR backend_type = 'autovacuum worker' AND query <> ''"
        )
        return {pid: (query, leader) for pid, query, leader in rows}

    def come_only_once(self, name="t") -> Background:
        """Leave a table alone that is being vacuumed, as soon as its lock can be had, whatever becomes of that vacuum.

        Else a worker that comes at the right moment may have it again before the test has seen that it failed. Returns the
        session that waits for the lock.
        """
        patience = {"deadlock_timeout": "10min"}  # it would cancel the vacuum then
        statement = f"ALTER TABLE {name} SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)"
        waiter = Background(self.cluster, TEMPLATE, statement, patience)
        waiting = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
        wait_until(lambda: self.sql(waiting, [waiter.pid]), "the wait for the lock")
        return waiter

    def waiters(self) -> list[int]:
        """The processes that wait at a debug point."""
        query = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted ORDER BY pid"
        return [pid for (pid,) in self.sql(query, [DEBUG_POINT_LOCK])]

    def wait_for_parking(self, processes: int) -> None:
        """Wait until this many of them do."""
        wait_until(lambda: len(self.waiters()) >= processes, f"parking of {processes} processes\n{self.log[-2000:]}")

    @contextmanager
    def parked(self, *names, processes: int, point="heap-scan:any"):
        """Have autovacuum come to tables, and wait at a debug point, until the block is left; gives the process IDs."""
        gate = self.cluster.connect(TEMPLATE)
        gate.execute("SELECT pg_advisory_lock(%s)", [DEBUG_POINT_LOCK])
        self.set(cyclone__debug_point=f"{point}:wait")
        try:
            self.let(*names)
            self.wait_for_parking(processes)
            # who would not come to it again
            self.conn.execute("ALTER SYSTEM RESET cyclone.debug_point")
            self.conn.execute("SELECT pg_reload_conf()")
            yield self.waiters()
        finally:
            gate.close()
            if self.cluster.running and not self.conn.closed:
                self.unset("cyclone__debug_point")

    def reconnect(self) -> None:
        """Connect again when the server is back; after a crash, when the session has heard of it."""

        def has_ended():
            try:
                self.conn.execute("SELECT 1")
                return False
            except psycopg.OperationalError:
                return True

        def connected():
            try:
                self.conn = self.cluster.connect(TEMPLATE)
                return True
            except psycopg.OperationalError:
                return False

        wait_until(has_ended, "the end of the session")
        self.conn.close()
        wait_until(connected, "the server's restart")

    def restart(self) -> None:
        """Restart the server, and connect again."""
        self.conn.close()
        self.cluster.restart()
        self.reconnect()

    def leaders(self) -> list[int]:
        return [pid for pid, (_, leader) in self.activity().items() if leader is None]

    def nobody(self) -> None:
        """Wait until there is no autovacuum any more."""
        wait_until(lambda: not self.activity(), "the end of all autovacuums")

    def close(self) -> None:
        """Undo what the test has done."""
        for name in self.changed:
            self.conn.execute(f"ALTER SYSTEM RESET {name}")
        self.reload()
        for (name,) in self.sql("SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"):
            self.conn.execute(f"DROP TABLE {name}")
        self.nobody()
        self.conn.execute("SELECT cyclone.autovacuum_reset()")
        self.conn.close()


@pytest.fixture(scope="module")
def autovacuum_config(pg_major, prefix) -> dict:
    """AUTOVACUUM, and what the server itself must allow before an autovacuum has workers."""
    build.install_test_module("short_naptime", prefix)
    return {**AUTOVACUUM, **({"autovacuum_max_parallel_workers": 16} if pg_major >= 19 else {})}


@pytest.fixture(scope="module")
def shared(prefix, autovacuum_config):
    with create_with_template(prefix, {**CONFIG, **autovacuum_config}) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def auto(shared):
    auto = Auto(shared)
    yield auto
    auto.close()


@pytest.fixture
def own(new_cluster, autovacuum_config):
    """A function that returns an Auto on a server of its own."""
    return lambda **config: Auto(new_cluster(**{**autovacuum_config, **config}))


def assert_no_noise(log: str) -> None:
    """Nobody but who was cancelled says so in the log."""
    assert "FATAL" not in log and "terminating" not in log and "PANIC" not in log, log


def logged(log: str, table: str) -> list[str]:
    """Return the lines of the log's last report on a table, without numbers."""
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if re.search(rf'automatic (aggressive )?vacuum .*of table "(\w+\.)+{table}"', line)]
    assert starts, log
    end = starts[-1] + 1
    while end < len(lines) and lines[end].startswith("\t"):
        end += 1
    report = [re.sub(r"^.*LOG:  ", "", lines[starts[-1]])] + lines[starts[-1] + 1 : end]
    return report


def kinds(report: list[str], table: str) -> list[str]:
    """Reduce a report to what a reader looks for."""
    return [re.sub(r"-?\d+(\.\d+)?", "0", line.replace(table, "TABLE")) for line in report]


# What the tables of a pair have beside the usual; and whether they have an index
PAIRS = {
    "plain": {},
    "no_indexes": {"indexes": ()},
    "no_cleanup": {"vacuum_index_cleanup": "off"},
    "cleanup": {"vacuum_index_cleanup": "on"},
    "no_truncate": {"vacuum_truncate": "off"},
    "freeze": {"autovacuum_freeze_min_age": 0},
    "freeze_table": {"autovacuum_freeze_min_age": 0, "autovacuum_freeze_table_age": 0},
    "multixact": {"autovacuum_multixact_freeze_min_age": 0, "autovacuum_multixact_freeze_table_age": 0},
    "gin": {"indexes": ("gin (a)", "hash (id)", "brin (id)", "btree (id)")},
    "alone": {"parallel_workers": 0},
}
OURS = ("horizon: ", "audit: ", "dead-TID store: ", "parallel workers: ", "phases: ", "pace: ")


def test_as_the_server_would(auto):
    """Equal tables, one by the engine and one by the server: the same state, statistics and report."""
    for who in ("engine", "server"):
        for pair, options in PAIRS.items():
            auto.make_table(f"{pair}_{who}", **options)
            auto.make_dead(f"{pair}_{who}", "id > 4000")
    for who in ("engine", "server"):
        auto.set(cyclone__autovacuum="on" if who == "engine" else "off")
        auto.let(*(f"{pair}_{who}" for pair in PAIRS))
        for pair in PAIRS:
            row = auto.wait_for(f"{who}_count", f"{pair}_{who}")
            assert row["last_by"] == who and row["last_reason"] == (None if who == "engine" else "off")
            assert (row["last_rows_removed"] is not None) == (who == "engine")
    for pair in PAIRS:
        states, stats, reports = [], [], []
        for who in ("engine", "server"):
            name = f"{pair}_{who}"
            state = checks.table_state(auto.conn, name)
            ages = state.pop("relfrozenxid_age"), state.pop("relminmxid_age")
            assert ages[0] < 1000 and ages[1] < 1000
            states.append({**state, "content_hash": None, "sum": auto.sql(f"SELECT sum(id) FROM {name}")})
            stats += auto.sql(
                "SELECT vacuum_count, autovacuum_count, n_live_tup, n_dead_tup, n_ins_since_vacuum, last_vacuum,"
                " last_autovacuum > now() - interval '1h' FROM pg_stat_all_tables WHERE relname = %s",
                [name],
            )
            assert not checks.dangling_index_entries(auto.conn, name, between_passes=True)
            if pair != "no_cleanup":
                checks.assert_clean(auto.conn, name)
            reports.append(logged(auto.log, name))
            assert REPORT.match("\n".join([*reports[-1], ""])), reports[-1]
        assert states[0] == states[1], pair
        assert stats[0] == stats[1] and stats[0][:2] == (0, 1), pair
        ours, servers = (kinds(report, f"{pair}_{who}") for report, who in zip(reports, ("engine", "server"), strict=True))
        end = next(i for i, line in enumerate(ours) if line.strip().startswith("system usage:")) + 1
        assert ours[end:] and all(line.strip().startswith(OURS) for line in ours[end:]), pair
        same = lambda lines: [line.split(":")[0] for line in lines if "I/O timings" not in line]  # noqa: E731
        assert same(ours[:end]) == same(servers), pair
        # what isn't about buffers, WAL and time must be equal to the last digit, but for XIDs
        counted = lambda lines: [line.replace("_engine", "").replace("_server", "") for line in lines  # noqa: E731
                                 if line.strip().startswith(("pages:", "tuples:", "index scan", "frozen:"))]  # fmt: skip
        assert counted(reports[0]) == counted(reports[1]), pair
    assert_no_noise(auto.log)


def test_toast_tables_and_catalogs(auto):
    auto.conn.execute("CREATE TABLE t (id int, value text) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
    auto.conn.execute("ALTER TABLE t ALTER value SET STORAGE EXTERNAL")
    auto.conn.execute("INSERT INTO t SELECT i, repeat('x', 5000) FROM generate_series(1, 600) i")
    auto.make_dead("t")
    auto.conn.execute("DO $$BEGIN FOR i IN 1..200 LOOP EXECUTE 'CREATE ROLE r'||i; EXECUTE 'DROP ROLE r'||i; END LOOP; END$$")
    [(toast,)] = auto.sql("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 't'")
    auto.set(autovacuum_vacuum_threshold=50, autovacuum_vacuum_scale_factor=0)
    auto.let("t")
    auto.conn.execute("DO $$BEGIN FOR i IN 1..200 LOOP EXECUTE 'CREATE VIEW v AS SELECT 1'; EXECUTE 'DROP VIEW v'; END LOOP; END$$")
    auto.conn.execute("SELECT pg_stat_force_next_flush()")
    names = ("t", toast, "pg_authid", "pg_class")
    for name in names:
        wait_until(lambda: auto.count("engine_count", name) > 0, f"a vacuum of {name}")  # noqa: B023
    shared = auto.sql("SELECT datid, datname, relation FROM cyclone.autovacuum_details WHERE relid = 'pg_authid'::regclass")
    assert shared == [(0, None, "pg_authid")]
    for name in names:
        counts = auto.sql(
            "SELECT autovacuum_count > 0, last_autovacuum IS NOT NULL FROM pg_stat_all_tables WHERE relid = %s::regclass",
            [name],
        )
        assert counts == [(True, True)], name
    auto.set(autovacuum_vacuum_threshold=NEVER)
    auto.let("t", enabled="off")
    auto.nobody()
    checks.assert_clean(auto.conn, "t")
    for name in ("pg_authid", "pg_class"):
        assert not checks.heap_corruption(auto.conn, name) and not checks.btree_corruption(auto.conn, name)
        assert not checks.visibility_map_errors(auto.conn, name)
        # rows that died after that vacuum may have been pruned by a session that read them
        assert not checks.dangling_index_entries(auto.conn, name, between_passes=True)
    assert_no_noise(auto.log)


def test_options_of_a_toast_table(auto):
    auto.conn.execute(
        "CREATE TABLE t (id int, value text) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off,"
        " toast.autovacuum_vacuum_threshold = 0, toast.autovacuum_vacuum_scale_factor = 0, toast.vacuum_truncate = off,"
        " toast.vacuum_index_cleanup = off)"
    )
    auto.conn.execute("ALTER TABLE t ALTER value SET STORAGE EXTERNAL")
    auto.conn.execute("INSERT INTO t SELECT i, repeat('x', 5000) FROM generate_series(1, 600) i")
    auto.make_dead("t", "id > 200")
    [(toast, relid)] = auto.sql("SELECT reltoastrelid::regclass::text, reltoastrelid FROM pg_class WHERE relname = 't'")
    [(size,)] = auto.sql("SELECT pg_relation_size(%s::oid)", [relid])
    auto.let("t")
    wait_until(lambda: auto.count("engine_count", toast) > 0, "a vacuum of the TOAST table")
    auto.let("t", enabled="off")
    auto.nobody()
    assert auto.row("t") is None
    assert auto.sql("SELECT pg_relation_size(%s::oid)", [relid]) == [(size,)]
    assert checks.table_state(auto.conn, toast)["dead_items"] > 0
    assert not checks.dangling_index_entries(auto.conn, toast, between_passes=True)
    assert not checks.heap_corruption(auto.conn, toast) and not checks.btree_corruption(auto.conn, toast)


def test_memory(auto):
    auto.set(autovacuum_work_mem="2MB", maintenance_work_mem="32MB")
    auto.make_table()
    auto.vacuum()
    assert "of at most 2048 kB" in "\n".join(logged(auto.log, "t"))
    auto.set(autovacuum_work_mem="-1")
    auto.make_dead("t", "id % 3 = 1")
    auto.vacuum()
    assert "of at most 32768 kB" in "\n".join(logged(auto.log, "t"))
    checks.assert_clean(auto.conn, "t")


def test_what_the_views_show(auto):
    auto.make_table(parallel_workers=2)
    with auto.parked("t", processes=3) as pids:
        activity = auto.activity()
        [leader] = auto.leaders()
        assert sorted(activity) == pids
        assert {query for query, _ in activity.values()} == {"autovacuum: VACUUM public.t"}
        assert {lead for _, lead in activity.values()} == {None, leader}
        assert auto.sql("SELECT pid, relid = 't'::regclass, phase, heap_blks_total > 100 FROM pg_stat_progress_vacuum") == [
            (leader, True, "scanning heap", True)
        ]
        assert {pid for (pid,) in auto.sql("SELECT pid FROM cyclone.progress")} == set(pids)
    row = auto.wait_for("engine_count")
    assert (row["last_workers"], row["last_rows_removed"], row["failures"], row["breaker_open"]) == (2, 2000, 0, False)
    assert row["last_pages_scanned"] == auto.sql("SELECT relpages FROM pg_class WHERE relname = 't'")[0][0]
    assert auto.sql("SELECT count(*) FROM pg_stat_progress_vacuum") == [(0,)]
    checks.assert_clean(auto.conn, "t")


@pytest.mark.parametrize("point", ["heap-scan:any", "index-vacuum:any", "heap-vacuum:any"])
def test_it_gives_way_to_a_lock(auto, point):
    auto.set(min_parallel_index_scan_size=0)
    auto.make_table(parallel_workers=2, indexes=("btree (id)", "btree (note)", "hash (id)"))
    with auto.parked("t", processes=3, point=point):
        # so it doesn't come back either, before we have looked
        Background(auto.cluster, TEMPLATE, "ALTER TABLE t ADD COLUMN more int, SET (autovacuum_enabled = off)").finish()
        row = auto.wait_for("cancel_count")
        assert (row["cancel_count"], row["error_count"], row["failures"], row["breaker_open"]) == (1, 0, 0, False)
        assert row["last_by"] == "engine" and row["failed_with"] is None
        auto.nobody()
    assert auto.log.count("canceling autovacuum task") == 1
    assert_no_noise(auto.log)
    assert auto.vacuum()["last_workers"] == 2
    checks.assert_clean(auto.conn, "t")


WRAPAROUND = {"autovacuum_freeze_max_age": 100_000, "vacuum_failsafe_age": 0}
BURN = "CREATE PROCEDURE burn(n int) LANGUAGE plpgsql AS $$BEGIN FOR i IN 1..n LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END$$"


def freeze_all_but_t(auto) -> None:
    """Make all other tables of the server younger."""
    auto.conn.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
    for (name,) in auto.sql("SELECT datname FROM pg_database"):
        with auto.cluster.connect(name) as conn:
            tables = conn.execute(
                "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class WHERE relkind IN ('r', 'm') AND relname <> 't'"
            ).fetchone()[0]
            conn.execute(f"VACUUM (FREEZE) {tables}")
    auto.conn.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS false")


def test_a_vacuum_to_prevent_wraparound(own):
    """It doesn't give way; and near the failsafe it has no delay and as many workers as there may be."""
    auto = own(**WRAPAROUND, autovacuum="off", autovacuum_vacuum_cost_delay="100ms", autovacuum_vacuum_cost_limit=1)
    auto.make_table(autovacuum_vacuum_threshold=NEVER, parallel_workers=1)
    auto.set(cyclone__autovacuum_max_parallel_workers=3)
    auto.conn.execute(BURN)
    auto.conn.execute("SET synchronous_commit = off")
    # the others are too young then to be come to first, in whatever order
    auto.conn.execute("CALL burn(50000)")
    freeze_all_but_t(auto)
    auto.conn.execute("CALL burn(51000)")
    gate = auto.cluster.connect(TEMPLATE)
    gate.execute("SELECT pg_advisory_lock(%s)", [DEBUG_POINT_LOCK])
    auto.set(cyclone__debug_point="heap-scan:any:wait")
    auto.set(autovacuum="on")
    processes = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'autovacuum: VACUUM%public.t (to prevent wraparound)'"
    table = lambda: {pid for (pid,) in auto.sql(processes)}  # noqa: E731
    wait_until(lambda: len(table().intersection(auto.waiters())) == 4, "a vacuum to prevent wraparound by four processes")
    [(limited_by, budget)] = auto.sql("SELECT limited_by, budget FROM cyclone.pace_details WHERE relid = 't'::regclass")
    assert limited_by == "nothing" and budget is None
    ddl = Background(auto.cluster, TEMPLATE, "ALTER TABLE t ADD COLUMN more int")
    wait_until(lambda: "still waiting for AccessExclusiveLock" in auto.log, "the DDL's deadlock check")
    assert ddl.running and len(table()) == 4
    gate.close()
    row = auto.wait_for("engine_count")
    ddl.finish()
    assert row["cancel_count"] == 0 and row["last_workers"] == 3
    assert "canceling autovacuum task" not in auto.log
    auto.unset("cyclone.debug_point")
    [(age,)] = auto.sql("SELECT age(relfrozenxid) FROM pg_class WHERE relname = 't'")
    assert age < 100_000
    checks.assert_clean(auto.conn, "t")


def test_small_tables_in_a_hurry(own):
    """They have no workers, as it takes longer to start one than to vacuum them."""
    auto = own(**WRAPAROUND, autovacuum="off")
    auto.set(cyclone__autovacuum_max_parallel_workers=3)
    for i in range(5):
        auto.make_table(f"t{i}", rows=20, autovacuum_vacuum_threshold=NEVER)
    auto.conn.execute(BURN)
    auto.conn.execute("SET synchronous_commit = off")
    auto.conn.execute("CALL burn(101000)")
    auto.set(autovacuum="on")
    for i in range(5):
        wait_until(lambda: auto.count("engine_count", f"t{i}") > 0, "a vacuum", 5 * PATIENCE_SECONDS)  # noqa: B023
        assert auto.row(f"t{i}")["last_workers"] == 0
        assert "to prevent wraparound" in logged(auto.log, f"t{i}")[0]
    assert "parallel workers: 0 planned" in auto.log


def test_a_thousand_small_tables(own):
    """Each is vacuumed once, by the engine and without workers, and nothing of it is done twice."""
    auto = own()
    options = ", ".join(f"{option} = {value}" for option, value in TABLE_OPTIONS.items())
    names = [f"t{i}" for i in range(1000)]
    for name in names:
        auto.conn.execute(f"CREATE TABLE {name} (id int) WITH ({options}, autovacuum_enabled = off)")
        auto.conn.execute(f"CREATE INDEX ON {name} (id)")
        auto.conn.execute(f"INSERT INTO {name} SELECT generate_series(1, 60)")
        auto.conn.execute(f"DELETE FROM {name} WHERE id % 3 = 0")
    auto.conn.execute("SELECT pg_stat_force_next_flush()")
    auto.let(*names)
    done = lambda: auto.sql("SELECT count(*) FROM cyclone.autovacuum WHERE relation::text ~ '^t' AND engine_count > 0")[0][0]  # noqa: E731
    wait_until(lambda: done() == 1000, "a vacuum of each table", 5 * PATIENCE_SECONDS)
    assert auto.sql(
        "SELECT DISTINCT last_rows_removed, last_workers, server_count, error_count, breaker_open FROM cyclone.autovacuum_details WHERE relation::text ~ '^t'"
    ) == [(20, 0, 0, 0, False)]
    assert auto.sql("SELECT DISTINCT autovacuum_count, n_live_tup FROM pg_stat_user_tables WHERE relname ~ '^t'") == [(1, 40)]
    assert_no_noise(auto.log)
    auto.set(cyclone__autovacuum="off")
    checks.assert_clean(auto.conn, *names[::10])


def test_workers_say_nothing_of_their_leaders_error(auto):
    """Those that are at work then; the server ends workers that have only just been started."""
    auto.make_table(parallel_workers=2)
    with auto.parked("t", processes=3) as pids:
        [leader] = auto.leaders()
        waiter = auto.come_only_once("t")
        auto.conn.execute("SELECT pg_cancel_backend(%s)", [leader])
        gone(*(pid for pid in pids if pid != leader))
        waiter.finish()
    wait_until(lambda: auto.count("cancel_count") >= 1, "its end's being counted")
    assert_no_noise(auto.log)


def gone(*pids) -> None:
    """Wait until these processes are no more."""

    def alive(pid):
        try:
            os.kill(pid, 0)
            return True
        except ProcessLookupError:
            return False

    wait_until(lambda: not any(alive(pid) for pid in pids), "the end of the processes")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_the_server_is_stopped(own, mode):
    auto = own()
    auto.make_table(parallel_workers=2)
    with auto.parked("t", processes=3) as pids:
        [leader] = auto.leaders()
        auto.conn.close()
        auto.cluster.stop(mode)
        gone(*pids)
    if mode == "fast":
        # workers may be told before their leader is, which may then say so before it is told
        errors = [line for line in auto.log.splitlines() if "ERROR" in line]
        # so does one that was just looking which tables are due
        assert auto.log.count(f"[{leader}] FATAL:  terminating autovacuum process") == 1
        assert all(line.endswith('terminating background worker "parallel worker" due to administrator command') for line in errors), errors
    auto.cluster.start()
    auto.reconnect()
    auto.unset("cyclone.debug_point")
    auto.make_dead("t", "id % 3 = 1")  # a crash takes the statistics with it
    assert "interrupted by a crash" not in auto.log
    row = auto.wait_for("engine_count")
    assert (row["error_count"], row["failed_with"]) == (0, None)
    checks.assert_clean(auto.conn, "t")


@pytest.mark.parametrize("force", ["", " WITH (FORCE)"])
def test_its_database_is_dropped(auto, force):
    auto.make_table(parallel_workers=2)
    with auto.parked("t", processes=3):
        pass
    auto.wait_for("engine_count")
    auto.nobody()
    admin = auto.cluster.connect("postgres")
    admin.execute("CREATE DATABASE other TEMPLATE template0")
    other = Auto(auto.cluster)
    other.conn.close()
    other.conn = auto.cluster.connect("other")
    other.conn.execute("CREATE EXTENSION pg_cyclone")
    other.make_table(parallel_workers=2)
    auto.set(cyclone__debug_point="heap-scan:any:wait")
    gate = auto.cluster.connect("other")
    gate.execute("SELECT pg_advisory_lock(%s)", [DEBUG_POINT_LOCK])
    other.let("t")
    other.wait_for_parking(3)
    pids = other.waiters()
    other.conn.close()
    # without force sessions are waited for, autovacuums are ended; so the gate must not be one
    if force == "":
        cluster = auto.cluster
        thread = threading.Thread(target=lambda: (time.sleep(0.5), gate.close()))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        gate.close()
        thread.start()
        dropper = Background(cluster, "postgres", "DROP DATABASE other")
        time.sleep(0.3)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        dropper.finish()
        thread.join()
    else:
        admin.execute("DROP DATABASE other WITH (FORCE)")
    gone(*pids)
    assert "PANIC" not in auto.log and "terminated by signal" not in auto.log
    assert auto.sql("SELECT count(*) FROM pg_database WHERE datname = 'other'") == [(0,)]
    auto.unset("cyclone__debug_point")
    auto.make_dead("t", "id % 3 = 1")
    assert auto.vacuum()["last_workers"] == 2, "workers are given back"


@pytest.mark.parametrize("who", ["leader", "worker"])
def test_a_process_is_terminated(auto, who):
    auto.make_table(parallel_workers=2)
    with auto.parked("t", processes=3) as pids:
        [leader] = auto.leaders()
        victim = leader if who == "leader" else next(pid for pid in pids if pid != leader)
        auto.conn.execute("SELECT pg_terminate_backend(%s)", [victim])
        gone(*pids)
    assert "PANIC" not in auto.log and "terminated by signal" not in auto.log
    assert auto.log.count("FATAL") == 1, auto.log
    assert "pg_cyclone has failed" not in auto.log
    row = auto.wait_for("engine_count")  # the next one, which may be done by now
    assert (row["cancel_count"], row["error_count"]) == (int(who == "worker"), 0)
    assert (row["last_workers"], row["failures"]) == (2, 0)
    checks.assert_clean(auto.conn, "t")


@pytest.mark.parametrize("who", ["leader", "worker", "launcher"])
def test_a_process_is_killed(own, who):
    auto = own()
    auto.make_table(parallel_workers=2)
    with auto.parked("t", processes=3) as pids:
        [leader] = auto.leaders()
        [(launcher,)] = auto.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'autovacuum launcher'")
        victims = {"leader": leader, "worker": next(pid for pid in pids if pid != leader), "launcher": launcher}
        os.kill(victims[who], signal.SIGKILL)
        auto.reconnect()
        gone(*pids)
    auto.make_dead("t", "id % 3 = 2 AND id < 100")  # a crash takes the statistics with it
    [(relid, database)] = auto.sql("SELECT 't'::regclass::oid, oid FROM pg_database WHERE datname = current_database()")
    assert f"an autovacuum by pg_cyclone of relation {relid} in database {database} was interrupted by a crash" in auto.log
    row = auto.wait_for("server_count")
    assert (row["error_count"], row["failures"], row["failed_with"], row["breaker_open"]) == (1, 1, "crash", True)
    assert (row["last_by"], row["last_reason"]) == ("server", "circuit breaker")
    assert auto.sql("SELECT cyclone.autovacuum_reset('t')") == [(1,)]
    auto.make_dead("t", "id % 3 = 1")
    assert auto.vacuum()["last_workers"] == 2
    checks.assert_clean(auto.conn, "t")
    before = auto.log.count("interrupted by a crash")
    auto.restart()
    assert auto.log.count("interrupted by a crash") == before, "a note was not crossed out"


def crash(auto, name) -> None:
    """Have the server crash while autovacuum is at a table that has dead rows."""
    with auto.parked(name, processes=1) as pids:
        os.kill(pids[0], signal.SIGKILL)
        auto.reconnect()
    auto.let(name, enabled="off")


def make_dead_again(auto, *names) -> None:
    """A crash takes the statistics with it."""
    for name in names:
        auto.make_dead(name, f"id IN (SELECT id FROM {name} LIMIT 100)")


def test_two_tables_that_are_the_servers_end(own):
    """They don't take turns: a breaker that a crash has opened is open after the next one, and after a restart."""
    auto = own()
    for name in ("t", "u"):
        auto.make_table(name, parallel_workers=0)
    crash(auto, "t")
    until = auto.row("t")["breaker_until"]
    make_dead_again(auto, "u")
    crash(auto, "u")
    make_dead_again(auto, "t", "u")
    assert auto.log.count("interrupted by a crash") == 2
    row = auto.row("t")
    assert (row["failed_with"], row["breaker_open"], row["breaker_until"]) == ("crash", True, until)
    for row in auto.vacuum_all("t", "u", by="server"):
        assert (row["last_reason"], row["failures"]) == ("circuit breaker", 1)
    auto.restart()
    assert auto.row("t")["breaker_until"] == until and auto.row("u")["breaker_open"]
    # who closes it closes it for good
    assert auto.sql("SELECT cyclone.autovacuum_reset('t')") == [(1,)]
    auto.restart()
    assert auto.row("t") is None and auto.row("u")["breaker_open"]
    assert auto.sql("SELECT cyclone.autovacuum_reset()") == [(1,)]
    auto.restart()
    assert auto.row("u") is None
    make_dead_again(auto, "t", "u")
    assert [row["failures"] for row in auto.vacuum_all("t", "u")] == [0, 0]
    checks.assert_clean(auto.conn, "t", "u")


def test_many_tables_that_are_the_servers_end(own):
    """They don't take turns for long: after three crashes all tables are the server's, whichever they are."""
    auto = own()
    names = ("t", "u", "v", "w")
    for name in names:
        auto.make_table(name, parallel_workers=0)
    for name in names[:3]:
        assert "leaves all tables" not in auto.log
        crash(auto, name)
        make_dead_again(auto, *names)
    assert "autovacuum leaves all tables to PostgreSQL's own VACUUM until" in auto.log
    assert auto.vacuum("w", by="server")["last_reason"] == "crashes"
    row = auto.row("w")
    assert (row["breaker_open"], row["failures"], row["failed_with"]) == (True, 0, None)
    assert auto.sql("SELECT cyclone.autovacuum_reset('w')") == [(1,)]
    make_dead_again(auto, "w")
    assert auto.vacuum("w", by="server")["last_reason"] == "crashes"
    assert auto.sql("SELECT cyclone.autovacuum_reset()") == [(4,)]
    make_dead_again(auto, *names)
    assert [row["failures"] for row in auto.vacuum_all(*names)] == [0] * len(names)
    checks.assert_clean(auto.conn, *names)


def test_a_crash_breaker_ends(own):
    """When its time is over a restart doesn't open it again; and the next failure counts as the second one."""
    auto = own(**{"cyclone.debug_break_seconds": 1})
    auto.make_table(parallel_workers=0)
    crash(auto, "t")
    wait_until(lambda: not auto.row()["breaker_open"], "the end of the break")
    make_dead_again(auto, "t")
    crash(auto, "t")
    assert (auto.row()["failures"], auto.row()["failed_with"]) == (2, "crash")
    wait_until(lambda: not auto.row()["breaker_open"], "the end of the break")
    auto.restart()
    assert auto.row() is None
    make_dead_again(auto, "t")
    assert auto.vacuum()["failures"] == 0


def test_damaged_notes(own):
    """The server starts with any contents of the file, and no session suffers for it."""
    auto = own()
    notes = auto.cluster.data / "pg_cyclone" / "running"
    auto.make_table()
    for content in (b"", b"x" * 1001, os.urandom(100_000), b"\0" * 100_000):
        auto.conn.close()
        auto.cluster.stop()
        notes.write_bytes(content)
        auto.cluster.start()
        auto.reconnect()
        assert auto.sql("SELECT count(*) FROM cyclone.autovacuum WHERE failures > 0") == [(0,)]
        make_dead_again(auto, "t")
        assert auto.vacuum()["failures"] == 0
        assert notes.with_suffix(".damaged").read_bytes() == content
    assert "interrupted by a crash" not in auto.log


def alarm(auto, name: str) -> None:
    auto.sql("SET cyclone.debug_fault = 'live-row'")
    with pytest.raises(psycopg.errors.DataCorrupted):
        auto.sql(f"VACUUM {name}")
    auto.sql("RESET cyclone.debug_fault")


ALL_LEFT = "all tables are left to PostgreSQL's own VACUUM, as it isn't known on which of them audits have failed"


@pytest.mark.parametrize("how", ["unreadable", "header", "record"])
def test_alarms_that_cannot_be_read(own, how):
    """Any table may have one: all are PostgreSQL's, after further restarts, too, until a person says otherwise. The file is kept."""
    auto = own(autovacuum="off")
    file = auto.cluster.data / "pg_cyclone" / "breakers"
    for name in ("t", "u"):
        auto.make_table(name)
    alarm(auto, "t")
    auto.conn.close()
    auto.cluster.stop()
    content = bytearray(file.read_bytes())
    if how == "unreadable":
        file.chmod(0)
    else:
        content[4 if how == "header" else -10] ^= 1
        file.write_bytes(content)
    for _ in range(2):
        auto.cluster.start()
        auto.reconnect()
        assert ALL_LEFT in auto.log
        for name in ("t", "u"):
            assert "is left to PostgreSQL, as an audit" in said(auto.conn, f"VACUUM (VERBOSE) {name}")
        auto.conn.close()
        auto.cluster.stop()
    kept = file.with_suffix(".damaged")
    kept.chmod(0o600)
    assert file.stat().st_ino != kept.stat().st_ino
    assert kept.read_bytes() == content
    auto.cluster.start()
    auto.reconnect()
    auto.sql("SELECT cyclone.autovacuum_reset('t')")
    assert "is left to PostgreSQL, as an audit" in said(auto.conn, "VACUUM (VERBOSE) u")
    auto.sql("SELECT cyclone.autovacuum_reset()")
    assert "parallel workers: " in said(auto.conn, "VACUUM (VERBOSE) u")
    auto.restart()
    assert "parallel workers: " in said(auto.conn, "VACUUM (VERBOSE) t")
    checks.assert_clean(auto.conn, "t", "u")


def test_more_alarms_than_are_remembered(own):
    """As it isn't known which tables have them, all are left to PostgreSQL, also after a restart."""
    auto = own(autovacuum="off", **{"cyclone.debug_max_tables": 2})
    for name in ("t", "u", "v", "w"):
        auto.make_table(name)
    for name in ("t", "u"):
        alarm(auto, name)
    assert "parallel workers: " in said(auto.conn, "VACUUM (VERBOSE) w")
    assert ALL_LEFT not in auto.log
    alarm(auto, "v")
    for _ in range(2):
        assert ALL_LEFT in auto.log
        for name in ("v", "w"):
            assert "is left to PostgreSQL, as an audit" in said(auto.conn, f"VACUUM (VERBOSE) {name}")
        auto.restart()
    auto.sql("SELECT cyclone.autovacuum_reset()")
    assert "parallel workers: " in said(auto.conn, "VACUUM (VERBOSE) w")
    checks.assert_clean(auto.conn, "t", "u", "v", "w")


def test_nobody_waits_for_the_disk(own):
    """While alarms are written, other sessions and workers read what they need to know of a table."""
    auto = own(autovacuum="off")
    auto.make_table()
    alarm(auto, "t")
    file = auto.cluster.data / "pg_cyclone" / "breakers.new"
    os.mkfifo(file)  # who opens it to write waits for a reader
    hand_over(file)
    reset = Background(auto.cluster, TEMPLATE, "SELECT cyclone.autovacuum_reset()")
    rows = "DO $$ BEGIN ASSERT (SELECT count(*) FROM cyclone.autovacuum) = 0; END $$"
    wait_until(lambda: Background(auto.cluster, TEMPLATE, rows).wait() is None, "the reset")
    vacuum = Background(auto.cluster, TEMPLATE, "VACUUM (VERBOSE) t")
    assert vacuum.wait() is None and reset.running
    assert not any("is left to PostgreSQL" in message for message in vacuum.messages)
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    assert reset.wait() is None
    os.close(reader)
    checks.assert_clean(auto.conn, "t")


def test_a_base_backup_of_a_server_at_work(own):
    """A copy of the notes of a server that is alive names a crash that never was; breakers of real ones are copied."""
    auto = own()
    for name in ("t", "u"):
        auto.make_table(name, parallel_workers=0)
    crash(auto, "u")
    make_dead_again(auto, "t")
    with auto.parked("t", processes=1):
        copy = auto.cluster.standby()
    auto.wait_for("engine_count")
    with copy:
        copy.start()
        copy.promote()
        assert "interrupted by a crash" not in copy.log
        other = Auto(copy)
        assert other.row("t") is None and other.row("u")["breaker_open"]
        other.conn.close()


def test_an_alarm_lasts(own):
    """Longer than any breaker, on a standby that is promoted, too, and over its restarts; until a person says otherwise, here or there."""
    auto = own(autovacuum="off", **{"cyclone.debug_break_seconds": 1})
    for name in ("t", "u"):
        auto.make_table(name)
    with auto.cluster.standby().start() as copy:
        for name in ("t", "u"):
            alarm(auto, name)
        assert auto.sql("SELECT cyclone.autovacuum_reset('u')") == [(1,)]
        assert "is left to PostgreSQL, as an audit" not in said(auto.conn, "VACUUM (VERBOSE) u")
        time.sleep(1.5)
        assert (auto.row()["breaker_open"], auto.row()["breaker_until"]) == (True, None)
        assert "is left to PostgreSQL, as an audit" in said(auto.conn, "VACUUM (VERBOSE) t")

        copy.promote()
        for _ in range(2):
            other = Auto(copy)
            row = other.row()
            assert (row["failed_with"], row["breaker_open"], row["breaker_until"]) == ("audit", True, None)
            assert "is left to PostgreSQL, as an audit" in said(other.conn, "VACUUM (VERBOSE) t")
            assert other.row("u") is None
            other.conn.close()
            copy.restart()
        other = Auto(copy)
        assert other.sql("SELECT cyclone.autovacuum_reset('t')") == [(1,)]
        assert "parallel workers: " in said(other.conn, "VACUUM (VERBOSE) t")
        checks.assert_clean(other.conn, "t", "u")
        other.conn.close()
    assert auto.row()["breaker_open"], "that was the other server"


@pytest.mark.once
def test_nobody_can_make_an_alarm_for_standbys(own):
    """Messages in the WAL are for everybody to write, and are no alarms."""
    auto = own(autovacuum="off")
    auto.make_table()
    with auto.cluster.standby().start() as copy:
        [(database, relation)] = auto.sql("SELECT d.oid::int, 't'::regclass::oid::int FROM pg_database d WHERE datname = current_database()")
        alarm = struct.pack("=4I", 1, database, relation, 0)
        auto.sql("SELECT pg_logical_emit_message(false, 'pg_cyclone', %s)", [alarm])
        auto.sql("SELECT pg_logical_emit_message(true, 'pg_cyclone', %s)", [alarm])
        copy.promote()
        other = Auto(copy)
        assert other.row() is None and "parallel workers: " in said(other.conn, "VACUUM (VERBOSE) t")
        checks.assert_clean(other.conn, "t")
        other.conn.close()


def test_a_standby_that_feeds_back(own):
    """Rows that its snapshot sees stay, and go when it has ended."""
    auto = own()
    feedback = {"hot_standby_feedback": "on", "wal_receiver_status_interval": 1, "max_standby_streaming_delay": -1}
    auto.make_table(parallel_workers=2)
    assert auto.vacuum()["last_rows_removed"] == 2000
    backend_xmin = "SELECT backend_xmin FROM pg_stat_replication"
    with auto.cluster.standby(feedback).start() as standby, standby.connect(TEMPLATE) as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (4000,)
        [(xmin,)] = reader.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::xid").fetchall()
        wait_until(lambda: auto.sql(backend_xmin) == [(xmin,)], "feedback")
        auto.make_dead(which="id % 3 = 1")
        assert auto.vacuum()["last_rows_removed"] == 0
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (4000,)
        reader.execute("COMMIT")
        wait_until(lambda: auto.sql(backend_xmin) != [(xmin,)], "feedback")
        assert auto.vacuum()["last_rows_removed"] == 2000
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (2000,)
    auto.set(cyclone__autovacuum="off")
    checks.assert_clean(auto.conn, "t")


def test_no_workers_to_be_had(own):
    auto = own(max_parallel_workers=0)
    auto.make_table(parallel_workers=2)
    assert auto.vacuum()["last_workers"] == 0
    checks.assert_clean(auto.conn, "t")
    auto.set(max_parallel_workers=8, cyclone__autovacuum_max_parallel_workers=0)
    auto.make_dead("t", "id % 3 = 1")
    assert auto.vacuum()["last_workers"] == 0


def test_the_servers_own_limits_of_workers_count(auto, pg_major):
    """Which a server has since 19: a parameter, 0 if nothing is said, and a table's option."""
    auto.make_table(parallel_workers=2)
    assert auto.vacuum()["last_workers"] == 2
    if pg_major >= 19:
        auto.conn.execute("ALTER TABLE t SET (autovacuum_parallel_workers = 1)")
        auto.make_dead("t", "id % 3 = 1")
        assert auto.vacuum()["last_workers"] == 1
        auto.conn.execute("ALTER TABLE t RESET (autovacuum_parallel_workers)")
        auto.set(autovacuum_max_parallel_workers=0)
        auto.make_dead("t", "id % 3 = 2")
        assert auto.vacuum()["last_workers"] == 0
    checks.assert_clean(auto.conn, "t")


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_all_autovacuums_share_their_workers(auto, how):
    auto.set(cyclone__autovacuum_max_parallel_workers=3)
    for name in ("t", "u"):
        auto.make_table(name, parallel_workers=2)
    with auto.parked("t", "u", processes=5):
        workers = [leader for _, leader in auto.activity().values() if leader is not None]
        assert len(workers) == 3 and sorted(workers.count(leader) for leader in set(workers)) == [1, 2]
        auto.conn.execute("ALTER SYSTEM SET autovacuum = off")
        auto.reload()
        # who has been cancelled goes on to the other's table, if that one has given it up, too, and nobody else wants it
        waiters = [auto.come_only_once(name) for name in ("t", "u")]
        for ended, leader in enumerate(auto.leaders(), start=1):
            auto.conn.execute(f"SELECT pg_{how}_backend(%s)", [leader])
            wait_until(lambda: sum(not waiter.running for waiter in waiters) >= ended, "a table's lock")  # noqa: B023
            gone(leader)
        for waiter in waiters:
            waiter.finish()
        auto.nobody()
    auto.unset("autovacuum")
    auto.conn.execute("SELECT cyclone.autovacuum_reset()")
    for name in ("t", "u"):
        auto.let(name)
    assert auto.wait_for("engine_count", "t")["last_workers"] + auto.wait_for("engine_count", "u")["last_workers"] in (3, 4)
    for name in ("t", "u"):
        auto.make_dead(name, "id % 3 = 1")
        assert auto.vacuum(name)["last_workers"] == 2
    checks.assert_clean(auto.conn, "t", "u")


def budgets(auto) -> dict[str, float]:
    return dict(auto.sql("SELECT relid::regclass::text, budget FROM cyclone.pace_details WHERE relid IS NOT NULL"))


def wait_for_budgets(auto, **expected) -> None:
    def reached():
        nonlocal found
        found = budgets(auto)
        return found == expected

    found = None
    try:
        wait_until(reached, "budgets")
    except TimeoutError:
        raise AssertionError(f"{found} is not {expected}\n{auto.log[-2000:]}") from None


def wait_for_budget(auto, name, *expected) -> None:
    """Wait until a table has one of these budgets."""
    try:
        wait_until(lambda: budgets(auto).get(name) in expected, "a budget")
    except TimeoutError:
        raise AssertionError(f"{budgets(auto)}, {auto.activity()}, {auto.log[-3000:]}") from None


def test_the_limit_is_shared_out(auto):
    """Each of two has a half, as by the server's rule, but for one with limits of its own; and a reload is followed at once.

    Budgets are so small that no table is done before it is seen.
    """
    for name in ("t", "u"):
        auto.make_table(name, rows=20000, parallel_workers=2)
    auto.make_table("v", rows=20000, autovacuum_vacuum_cost_limit=5, autovacuum_vacuum_cost_delay=10)
    auto.set(autovacuum_vacuum_cost_delay="100ms", autovacuum_vacuum_cost_limit=10, vacuum_cost_limit=20)
    auto.let("t")
    wait_for_budgets(auto, t=100)
    auto.let("u")
    wait_for_budgets(auto, t=50, u=50)
    auto.let("v")
    wait_for_budgets(auto, t=50, u=50, v=500)
    auto.set(autovacuum_vacuum_cost_limit=20)
    wait_for_budgets(auto, t=100, u=100, v=500)
    auto.set(autovacuum_vacuum_cost_delay="50ms")
    wait_for_budgets(auto, t=200, u=200, v=500)
    auto.unset("autovacuum_vacuum_cost_limit")  # so that vacuum_cost_limit counts
    wait_for_budgets(auto, t=200, u=200, v=500)
    auto.set(vacuum_cost_limit=40)
    wait_for_budgets(auto, t=400, u=400, v=500)
    # an autovacuum that is alone has it all
    auto.let("u", enabled="off")
    wait_for_budgets(auto, t=800, v=500)
    auto.set(autovacuum_vacuum_cost_delay=0)
    row = auto.wait_for("engine_count", "t")
    assert row["last_workers"] == 0, "a slow pace needs no workers"
    assert "pace: processes slept" in "\n".join(logged(auto.log, "t"))
    wait_until(lambda: auto.count("cancel_count", "u") == 1, "its end's being counted")
    auto.vacuum("u")
    auto.let("v", enabled="off")  # which goes on at its own pace
    auto.conn.execute("ALTER TABLE v RESET (autovacuum_vacuum_cost_limit, autovacuum_vacuum_cost_delay)")
    auto.make_dead("v", "id % 3 = 1")
    auto.vacuum("v")
    checks.assert_clean(auto.conn, "t", "u", "v")


@pytest.mark.parametrize("point", ["index-vacuum:any", "index-cleanup:any"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_reload_while_a_gin_index_is_vacuumed(auto, workers, point):
    """The server's own delay point is in charge there, and may not read the files beside workers: it would fail."""
    # the rows last until the server's delay point has heard that there is no delay any more
    rows = 30000 if point.startswith("index-vacuum") else 3000
    auto.make_table("t", rows=rows, indexes=("gin (a)", "gin (a)"), parallel_workers=workers)
    auto.make_table("u", rows=30000)
    auto.set(vacuum_cost_page_hit=20, vacuum_cost_page_miss=20, vacuum_cost_page_dirty=20)
    auto.set(cyclone__autovacuum_max_parallel_workers=2 * workers, min_parallel_index_scan_size=0)
    with auto.parked("t", processes=1 + workers, point=point):
        auto.let("u")
        auto.set(autovacuum_vacuum_cost_delay="100ms", autovacuum_vacuum_cost_limit=10)
    if point.startswith("index-vacuum"):
        wait_for_budget(auto, "t", 100, 50)
        auto.set(autovacuum_vacuum_cost_limit=20)
        wait_for_budget(auto, "t", 200, 100)
    auto.set(autovacuum_vacuum_cost_delay=0)
    auto.wait_for("engine_count", "t")
    auto.wait_for("engine_count", "u")
    assert "cannot be set" not in auto.log and "ERROR" not in auto.log
    checks.assert_clean(auto.conn, "t", "u")


def test_the_parameters_of_the_next_table(own):
    """A setting that enters or leaves the files while a table is vacuumed counts for the next table of the same worker."""
    auto = own(autovacuum_max_workers=1)
    auto.set(autovacuum_vacuum_cost_delay="100ms", autovacuum_vacuum_cost_limit=300, vacuum_cost_page_hit=20)
    names = ("t", "u", "v")
    for name in names:
        auto.make_table(name, rows=10000, indexes=("gin (a)",) * 3, parallel_workers=0, fillfactor=100)
    # where only the server's own delay point will hear of it
    with auto.parked(*names, processes=1, point="index-cleanup:any") as [pid]:
        [(name, budget)] = budgets(auto).items()
        assert budget == 3000
        auto.unset("autovacuum_vacuum_cost_limit")
    second = wait_until(lambda: {table: value for table, value in budgets(auto).items() if table != name}, "the second table")
    assert list(second.values()) == [2000] and auto.leaders() == [pid], "of the same worker"
    auto.set(autovacuum_vacuum_cost_delay=0)
    for name in names:
        auto.wait_for("engine_count", name)
    checks.assert_clean(auto.conn, *names)


def test_switched_off_midway(auto):
    auto.make_table(parallel_workers=2)
    auto.make_table("u")
    with auto.parked("t", processes=3):
        auto.set(cyclone__autovacuum="off")
        auto.let("u")
        assert auto.wait_for("server_count", "u")["last_reason"] == "off"
    row = auto.wait_for("engine_count")
    assert row["last_workers"] == 2 and row["server_count"] == 0
    auto.make_dead("t", "id % 3 = 1")
    assert auto.vacuum(by="server")["last_reason"] == "off"
    auto.set(cyclone__autovacuum="on", cyclone__enabled="off")
    auto.make_dead("t", "id % 3 = 2")
    assert auto.vacuum(by="server")["last_reason"] == "off", "cyclone.enabled is for all"
    checks.assert_clean(auto.conn, "t", "u")


def test_with_an_adaptive_delay_the_delay_is_the_floor(auto):
    """Each of two has the half that PostgreSQL gives it, while a session is at work: also of what there is where there is no delay."""
    auto.set(autovacuum_vacuum_cost_delay="100ms", autovacuum_vacuum_cost_limit=10, cyclone__adaptive_delay="autovacuum")
    auto.set(cyclone__debug_price=NOTHING_ADDED["cyclone.debug_price"])
    auto.make_table(rows=20000, parallel_workers=2)
    auto.make_table("u", rows=20000)
    auto.conn.execute(BURN_A_CORE)
    burner = Background(auto.cluster, TEMPLATE, "SELECT burn(600)")
    with auto.parked("t", processes=3):
        assert auto.sql("SELECT shared_by, limited_by, budget, added FROM cyclone.pace_details") == [(1, "learning", 100, 0)]
    auto.let("u")
    wait_for_budgets(auto, t=50, u=50)
    auto.set(autovacuum_vacuum_cost_delay=0, autovacuum_vacuum_cost_limit=2)
    wait_for_budgets(auto, t=500, u=500)
    cancel(auto.conn, burner)
    assert auto.wait_for("engine_count")["last_workers"] == 2
    auto.wait_for("engine_count", "u")
    assert ADAPTIVE in "\n".join(logged(auto.log, "t"))
    assert "adaptive" not in said(auto.conn, "VACUUM (VERBOSE) t")
    # a table that is to have no delay has none, also when files are read
    auto.set(cyclone__adaptive_delay="on", autovacuum_vacuum_cost_delay="100ms", autovacuum_vacuum_cost_limit=1)
    auto.conn.execute("ALTER TABLE t SET (autovacuum_vacuum_cost_delay = 0)")
    auto.make_dead("t", "id % 3 = 1")
    with auto.parked("t", processes=3):
        assert auto.sql("SELECT limited_by, budget, shared_by FROM cyclone.pace_details") == [("nothing", None, None)]
    auto.wait_for("engine_count", more_than=1)
    assert ADAPTIVE not in "\n".join(logged(auto.log, "t"))
    checks.assert_clean(auto.conn, "t")


def test_an_adaptive_delay_of_the_database_slows_nothing_down(auto):
    """Its owner may have it for autovacuum, but not where the server's settings say full speed."""
    auto.set(autovacuum_vacuum_cost_delay="1ms", autovacuum_vacuum_cost_limit=10000)
    auto.conn.execute(f"ALTER DATABASE {TEMPLATE} SET cyclone.adaptive_delay = on")
    try:
        auto.make_table(rows=1000)
        auto.vacuum()
        assert ADAPTIVE in "\n".join(logged(auto.log, "t"))
        auto.set(autovacuum_vacuum_cost_delay=0)
        auto.make_dead("t", "id % 3 = 1")
        with auto.parked("t", processes=1):
            auto.set(cyclone__adaptive_delay="on")
            assert auto.sql("SELECT limited_by, budget, shared_by FROM cyclone.pace_details") == [("nothing", None, None)]
        auto.wait_for("engine_count", more_than=1)
        assert ADAPTIVE not in "\n".join(logged(auto.log, "t"))
    finally:
        auto.conn.execute(f"ALTER DATABASE {TEMPLATE} RESET cyclone.adaptive_delay")
    checks.assert_clean(auto.conn, "t")


@pytest.mark.parametrize("point, workers", [("heap-scan:leader", 0), ("index-vacuum:any", 2), ("heap-scan:worker", 2), ("truncate:leader", 0)])
def test_an_error_opens_the_breaker(auto, point, workers):
    auto.make_table(parallel_workers=workers)
    auto.make_dead("t", "id > 4000")
    auto.make_table("u")
    gate = auto.cluster.connect(TEMPLATE)
    gate.execute("SELECT pg_advisory_lock(%s)", [DEBUG_POINT_LOCK])
    # the leader leaves something to its workers, who wait, too, until it is certain that they come but once
    auto.set(cyclone__debug_point=f"{point}:wait {point}:error" + (" heap-scan:leader:wait" if "worker" in point else ""))
    auto.let("t")
    auto.wait_for_parking(2 if "worker" in point else 1)
    auto.come_only_once("t")
    gate.close()
    row = auto.wait_for("error_count")
    assert (row["failures"], row["failed_with"], row["breaker_open"], row["last_by"]) == (1, "XX000", True, "engine")
    assert f'pg_cyclone has failed on table "{TEMPLATE}.public.t": autovacuum leaves it to PostgreSQL\'s own VACUUM until' in auto.log
    [(seconds,)] = auto.sql(
        "SELECT extract(epoch FROM breaker_until - last_start)::float8 - last_seconds FROM cyclone.autovacuum_details WHERE relid = 't'::regclass"
    )
    assert 3599 <= seconds <= 3601
    row = auto.vacuum(by="server")
    assert (row["last_reason"], row["failures"], row["breaker_open"]) == ("circuit breaker", 1, True)
    auto.set(cyclone__debug_point="")
    assert auto.vacuum("u")["last_by"] == "engine", "others are not concerned"
    assert auto.sql("SELECT cyclone.autovacuum_reset('t')") == [(1,)] and auto.row() is None
    auto.make_dead("t", "id % 3 = 1")
    row = auto.vacuum()
    assert (row["last_workers"], row["failures"], row["failed_with"]) == (workers, 0, None)
    checks.assert_clean(auto.conn, "t", "u")


def test_each_failure_doubles_the_time(auto):
    auto.set(cyclone__debug_break_seconds=1, cyclone__debug_point="heap-scan:leader:wait heap-scan:leader:error")
    auto.make_table()
    for number in (1, 2, 3):
        auto.make_dead("t", f"id % 3 = 1 AND id % 7 = {number}")
        wait_until(lambda: not auto.row() or not auto.row()["breaker_open"], "the end of the break")
        gate = auto.cluster.connect(TEMPLATE)
        gate.execute("SELECT pg_advisory_lock(%s)", [DEBUG_POINT_LOCK])
        auto.let("t")
        auto.wait_for_parking(1)
        auto.come_only_once("t")
        gate.close()
        row = auto.wait_for("error_count", more_than=number - 1)
        [(seconds,)] = auto.sql("SELECT extract(epoch FROM breaker_until - last_start)::float8 - last_seconds FROM cyclone.autovacuum_details")
        assert row["failures"] == number and abs(seconds - 2 ** (number - 1)) < 0.25
    auto.unset("cyclone__debug_point")
    auto.make_dead("t", "id % 3 = 2")
    wait_until(lambda: not auto.row()["breaker_open"], "the end of the break")
    row = auto.vacuum()
    assert (row["failures"], row["failed_with"], row["breaker_open"]) == (0, None, False)
    assert row["error_count"] == 3
    checks.assert_clean(auto.conn, "t")


def test_no_note_can_be_written(own):
    auto = own()
    notes = auto.cluster.data / "pg_cyclone" / "running"
    notes.unlink(missing_ok=True)
    notes.parent.mkdir(exist_ok=True)
    hand_over(notes.parent)
    notes.mkdir()
    auto.make_table()
    row = auto.vacuum(by="server")
    assert (row["last_reason"], row["engine_count"], row["error_count"]) == ("no note on disk", 0, 0)
    assert "ERROR" not in auto.log
    auto.restart()  # nor can they be read
    notes.rmdir()
    auto.make_dead("t", "id % 3 = 1")
    assert auto.vacuum()["last_by"] == "engine"
    checks.assert_clean(auto.conn, "t")


def test_more_tables_than_are_remembered(own):
    auto = own(**{"cyclone.debug_max_tables": 100})
    names = [f"t{i}" for i in range(150)]
    for name in names:
        auto.make_table(name, rows=10, indexes=())
    auto.set(cyclone__debug_point="heap-scan:leader:error")
    auto.let("t0")
    auto.wait_for("error_count", "t0")
    auto.unset("cyclone__debug_point")
    auto.let(*names[1:])
    done = lambda: auto.sql("SELECT count(*) FROM pg_stat_all_tables WHERE autovacuum_count > 0")[0][0]  # noqa: E731
    wait_until(lambda: done() >= 149, "a vacuum of each table")
    assert auto.sql("SELECT count(*) FROM cyclone.autovacuum") == [(100,)]
    assert auto.row("t0")["breaker_open"], "an open breaker is not forgotten for a table that has none"
    assert auto.sql("SELECT cyclone.autovacuum_reset()") == [(100,)]


def test_who_may_see_it(auto):
    auto.make_table()
    auto.vacuum()
    for role in ("av_nobody", "av_monitor"):
        auto.conn.execute(f"CREATE ROLE {role}")
    try:
        auto.conn.execute("GRANT pg_monitor TO av_monitor")
        allowed = {}
        for role in ("av_nobody", "av_monitor"):
            auto.conn.execute(f"SET ROLE {role}")
            for query in ("SELECT * FROM cyclone.autovacuum_details", "SELECT * FROM cyclone.autovacuum_rows()", "SELECT cyclone.autovacuum_reset()"):
                try:
                    auto.conn.execute(query)
                    allowed[role, query] = True
                except psycopg.errors.InsufficientPrivilege:
                    allowed[role, query] = False
            auto.conn.execute("RESET ROLE")
        assert list(allowed.values()) == [False, False, False, True, True, False]
    finally:
        auto.conn.execute("RESET ROLE")
        for role in ("av_nobody", "av_monitor"):
            auto.conn.execute(f"DROP ROLE {role}")


def test_an_index_whose_expression_fails(auto):
    """That is no fault of the engine's, but it may not make autovacuum worse than it was."""
    auto.conn.execute(
        "CREATE FUNCTION fails(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN"
        " RETURN $1 / (SELECT count(*) FROM pg_stat_activity WHERE pid = pg_backend_pid() AND backend_type = 'client backend'); END$$"
    )
    auto.make_table(indexes=("btree (id)", "brin (public.fails(id)) WITH (pages_per_range = 1, autosummarize = off)"))
    auto.make_table("u")
    try:
        auto.conn.execute("INSERT INTO t SELECT i, NULL, 'x' FROM generate_series(0, 500) i")
        auto.make_dead("t", "id % 3 = 1")
        auto.let("t", "u")
        row = auto.wait_for("error_count")
        assert (row["failed_with"], row["failures"], row["breaker_open"]) == ("22012", 1, True)
        assert auto.wait_for("engine_count", "u")["last_by"] == "engine"
        servers = auto.log.count("division by zero")
        auto.let("t")
        wait_until(lambda: auto.log.count("division by zero") > servers, "the server's attempt")
        row = auto.row()
        assert (row["error_count"], row["server_count"]) == (1, 0)
    finally:
        auto.let("t", enabled="off")
        auto.nobody()
        auto.conn.execute("DROP TABLE t")
        auto.conn.execute("DROP FUNCTION fails")


def test_only_what_is_listed(auto):
    """Tables that a list leaves out are the server's, with the reason in the view; the list may be the database's own."""
    auto.make_table("orders")
    auto.make_table("others")
    auto.set(cyclone__tables="orders")
    assert auto.vacuum("orders")["last_reason"] is None
    assert auto.vacuum("others", by="server")["last_reason"] == "not listed"
    auto.set(cyclone__databases="nowhere")
    auto.make_dead("orders", "id % 3 = 1")
    assert auto.vacuum("orders", by="server")["last_reason"] == "not listed"
    auto.unset("cyclone__databases", "cyclone__tables")
    auto.sql(f"ALTER DATABASE {TEMPLATE} SET cyclone.tables = 'orders'")
    try:
        auto.make_dead("others", "id % 3 = 1")
        assert auto.vacuum("others", by="server")["last_reason"] == "not listed"
    finally:
        auto.sql(f"ALTER DATABASE {TEMPLATE} RESET cyclone.tables")
    checks.assert_clean(auto.conn, "orders", "others")


def test_an_audit_that_fails(auto):
    """The table's breaker opens, though the error is of the class of damaged data; also after one in a command."""
    auto.make_table()
    auto.set(cyclone__debug_fault="live-row")
    auto.let("t")
    row = auto.wait_for("error_count")
    assert (row["failed_with"], row["failures"], row["breaker_open"]) == ("audit", 1, True)
    assert row["breaker_until"] is None, "a person has to end it"
    assert re.search(r'ERROR:  an audit of VACUUM has failed in relation "t" at item \d+ of block \d+', auto.log)
    assert f'an audit has failed on table "{TEMPLATE}.public.t": it is left to PostgreSQL\'s own VACUUM from now on' in auto.log
    assert auto.vacuum(by="server")["last_reason"] == "circuit breaker"
    auto.sql("SELECT cyclone.autovacuum_reset('t')")
    with pytest.raises(psycopg.errors.DataCorrupted):
        auto.make_dead("t", "id % 3 = 1")
        auto.sql("VACUUM t")
    row = auto.row()
    assert (row["failed_with"], row["breaker_open"], row["last_by"]) == ("audit", True, None)
    assert auto.vacuum(by="server")["last_reason"] == "circuit breaker"
    auto.unset("cyclone__debug_fault")
    auto.sql("VACUUM t")
    checks.assert_clean(auto.conn, "t")
