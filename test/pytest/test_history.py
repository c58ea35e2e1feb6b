"""cyclone.history has the past VACUUMs, across restarts and crashes; the log has them in words that log readers know."""

import os
import re
import shutil
import signal
import threading

import psycopg
import pytest

from conftest import TEMPLATE
from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, messages_to, wait_until
from cyclone_lab.postgres import hand_over
from long_runs.log_reports import REPORT
from test_autovacuum import Auto, autovacuum_config  # noqa: F401 (a fixture)

PUBLIC = ("id", "datname")
HEADER_BYTES = 16


def history(conn, **where) -> list[dict]:
    """The rows of this database with these values, the oldest first."""
    conditions = " AND ".join(["datname = current_database()", *(f"{column} = %({column})s" for column in where)])
    cursor = conn.execute(f"SELECT * FROM cyclone.history_details WHERE {conditions} ORDER BY id", where)
    columns = [column.name for column in cursor.description]
    return [dict(zip(columns, row, strict=True)) for row in cursor]


def everything(conn) -> list[tuple]:
    return conn.execute("SELECT * FROM cyclone.history_details ORDER BY id").fetchall()


def make_table(conn, name="t", rows=6000, keep="id % 3 <> 0", **options) -> None:
    """Make a table of some hundred pages with values in its TOAST table and an index, and delete what isn't to be kept."""
    text = ", ".join(f"{option} = {value}" for option, value in {"autovacuum_enabled": "off", **options}.items())
    conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text) WITH ({text})")
    conn.execute(f"ALTER TABLE {name} ALTER note SET STORAGE EXTERNAL")
    conn.execute(f"INSERT INTO {name} SELECT i, repeat('x', CASE WHEN i % 100 = 0 THEN 4000 ELSE 300 END) FROM generate_series(1, {rows}) i")
    conn.execute(f"DELETE FROM {name} WHERE NOT ({keep})")


def sizes(conn, name="t", toast=False) -> tuple[int, int]:
    """The table's pages, and the bytes of what a row of the view counts."""
    return conn.execute(
        "SELECT pg_relation_size(%(t)s::regclass) / 8192, (pg_relation_size(%(t)s::regclass)"
        " + (SELECT sum(pg_relation_size(indexrelid)) FROM pg_index WHERE indrelid = %(t)s::regclass)"
        " + CASE WHEN %(toast)s THEN (SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = %(t)s::regclass) ELSE 0 END)::bigint",
        {"t": name, "toast": toast},
    ).fetchone()


def test_vacuum(conn):
    make_table(conn)
    before = sizes(conn)
    conn.execute("VACUUM (FREEZE, PARALLEL 2, PROCESS_TOAST false, TRUNCATE false) t")
    after = sizes(conn)
    [row] = history(conn)
    [(oid,)] = conn.execute("SELECT 't'::regclass::oid")
    expected = {
        "relid": oid, "relation_name": "public.t", "started_by": "command", "operation": "VACUUM", "run_by": "engine",
        "options": "FREEZE, PROCESS_TOAST false, TRUNCATE false, PARALLEL 2",
        "usename": "postgres", "outcome": "done", "sqlstate": None, "error": None, "warnings": None, "forced": False,
        "workers_launched": 2, "rows_removed": 2000, "rows_dead": 0, "rows_moved": None, "held": None,
        "pages_scanned": before[0], "bytes_before": before[1], "bytes_after": after[1],
    }  # fmt: skip
    assert {column: row[column] for column in expected} == expected
    assert row["wal_bytes"] > before[0]
    assert row["slept_seconds"] == 0 and row["seconds"] > 0
    [(just_now,)] = conn.execute("SELECT %s BETWEEN now() - interval '1min' AND now()", [row["started"]])
    assert just_now
    assert set(row["phases"]) == {"heap scan", "index vacuum", "heap vacuum", "index cleanup", "team", "other"}
    assert sum(row["phases"].values()) == pytest.approx(row["seconds"], abs=0.001)

    conn.execute("VACUUM t")
    rows = history(conn)
    [(toast,)] = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 't'::regclass")
    assert [r["relation_name"] for r in rows] == ["public.t", "public.t", toast], "a TOAST table has a row of its own"
    assert [r["id"] for r in rows] == sorted({r["id"] for r in rows})
    assert rows[1]["options"] is None


@pytest.mark.parametrize("kind, options", [("REWRITE", "FULL, PARALLEL 2, ANALYZE"), ("REWRITE", "FULL REWRITE"), ("INPLACE", "FULL INPLACE, PARALLEL 2")])
def test_full(conn, kind, options):
    make_table(conn, keep="id > 3000")
    before = sizes(conn, toast=True)
    heard = messages_to(conn)
    conn.execute("SET min_parallel_table_scan_size = '8kB'")
    conn.execute(f"VACUUM ({options}, VERBOSE) t")
    after = sizes(conn, toast=True)
    [row] = history(conn, operation=f"FULL {kind}")
    assert (row["relation_name"], row["started_by"], row["run_by"], row["outcome"]) == ("public.t", "command", "engine", "done")
    assert row["bytes_before"] == before[1]
    # the TOAST table's own VACUUM, which comes after FULL INPLACE, may cut off more
    assert row["bytes_after"] == after[1] or kind == "INPLACE" and after[1] < row["bytes_after"] < before[1]
    assert after[1] < before[1] * 0.7
    parallel = "PARALLEL 2" in options
    if kind == "REWRITE":
        said = re.search(r"parallel workers: (\d+) planned, (\d+) launched", "\n".join(heard)) or (0, 0, 0)
        assert row["workers_launched"] == int(said[2])
        assert int(said[1]) == 2 or not parallel
    words = [word for word in ("VERBOSE", "ANALYZE") if word in f"{options}, VERBOSE"] + ["PARALLEL 2"] * parallel
    assert row["options"].split(", ") == words
    if kind == "REWRITE":
        assert (row["rows_removed"], row["rows_moved"]) == (3000, None)
        assert {"heap copy", "TOAST copy", "index build", "other"} <= set(row["phases"])
    else:
        assert row["rows_removed"] is None and row["rows_moved"] > 0
        assert {"vacuum", "moving values", "moving rows", "indexes rebuilt", "other"} == set(row["phases"])
        assert [r["operation"] for r in history(conn)] == ["FULL INPLACE", "VACUUM"], "the TOAST table's comes at the end"
    assert row["wal_bytes"] > after[1] / 2
    checks.assert_clean(conn, "t")


def test_pace(conn):
    make_table(conn)
    conn.execute("SET vacuum_cost_delay = '10ms'; SET vacuum_cost_limit = 20")  # less than a slow machine spends
    conn.execute("VACUUM (PROCESS_TOAST false) t")
    conn.execute("VACUUM (FULL INPLACE) t")
    conn.execute("RESET vacuum_cost_delay; RESET vacuum_cost_limit")
    heard = messages_to(conn)
    conn.execute("VACUUM (ADAPTIVE_DELAY, PROCESS_TOAST false, VERBOSE) t")
    [slow, inplace, toast, adaptive] = history(conn)
    assert slow["slept_seconds"] > 0
    assert inplace["slept_seconds"] > 0
    [slept] = re.findall(r"pace: processes slept ([\d.]+) s in all, with an adaptive delay", heard[-1])
    assert adaptive["slept_seconds"] == pytest.approx(float(slept), abs=0.0006)


@pytest.mark.parametrize(
    "statement, point, operation",
    [
        ("VACUUM t", "heap-scan:leader", "VACUUM"),
        ("VACUUM (PARALLEL 2) t", "index-vacuum:any", "VACUUM"),
        ("VACUUM (FULL) t", "heap-copy:leader", "FULL REWRITE"),
        ("VACUUM (FULL) t", "rewrite-swapped:leader", "FULL REWRITE"),
        ("VACUUM (FULL INPLACE) t", "inplace-batch:leader", "FULL INPLACE"),
        ("VACUUM (FULL INPLACE) t", "inplace-plan:leader", "FULL INPLACE"),
    ],
)
def test_errors(conn, statement, point, operation):
    make_table(conn, keep="id > 3000")
    conn.execute(f"SET cyclone.debug_point = '{point}:error'")
    with pytest.raises(psycopg.errors.InternalError_) as raised:
        conn.execute(statement)
    conn.execute("RESET cyclone.debug_point")
    [row] = history(conn)
    assert (row["operation"], row["outcome"], row["sqlstate"]) == (operation, "failed", "XX000")
    assert row["error"] == raised.value.diag.message_primary
    assert [row[column] for column in ("phases", "rows_removed", "bytes_before", "workers_launched")] == [None] * 4
    conn.execute(statement)
    assert [r["outcome"] for r in history(conn)][:2] == ["failed", "done"]
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("how", ["cancel", "terminate"])
@pytest.mark.parametrize(
    "statement, point, operation",
    [
        ("VACUUM t", "heap-scan", "VACUUM"),
        ("VACUUM (FULL) t", "heap-copy", "FULL REWRITE"),
        ("VACUUM (FULL INPLACE) t", "inplace-pause", "FULL INPLACE"),
    ],
)
def test_cancelled(cluster, db, conn, how, statement, point, operation):
    make_table(conn, keep="id > 3000")
    with Parked(cluster, db, f"{point}:leader", 1, statement) as parked:
        conn.execute(f"SELECT pg_{how}_backend(%s)", [parked.pid])
        assert parked.wait() is not None
    row = wait_until(lambda: history(conn), "a row")[0]
    text = {"cancel": "canceling statement due to user request", "terminate": "the process was terminated"}[how]
    state = {"cancel": "57014", "terminate": "57P01"}[how]
    assert (row["operation"], row["outcome"], row["sqlstate"], row["error"]) == (operation, "cancelled", state, text)
    conn.execute(statement)
    assert history(conn)[1]["outcome"] == "done"
    checks.assert_clean(conn, "t")


def test_a_long_message_is_cut(conn):
    name = "ä" * 31
    conn.execute(f'CREATE FUNCTION fails(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN'
                 f" IF current_setting('test.fail', true) = 'on' THEN RAISE EXCEPTION '{'ö' * 400}'; END IF; RETURN $1; END$$")  # fmt: skip
    conn.execute(f'CREATE TABLE "{name}" (id int)')
    conn.execute(f'INSERT INTO "{name}" SELECT generate_series(1, 1000)')
    conn.execute(f'CREATE INDEX ON "{name}" (public.fails(id))')
    conn.execute("SET test.fail = 'on'")
    with pytest.raises(psycopg.errors.RaiseException):
        conn.execute(f'VACUUM (FULL) "{name}"')
    [row] = history(conn)
    assert row["relation_name"] == f'public."{name}"' and row["sqlstate"] == "P0001"
    assert re.fullmatch("ö{126}[.]{3}", row["error"]), row["error"]


def test_warnings(cluster, db, conn):
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 300) FROM generate_series(1, 6000) i")
    with cluster.snapshot(db, "SELECT count(*) FROM t"):
        conn.execute("DELETE FROM t WHERE id % 2 = 0")
        heard = []
        conn.add_notice_handler(lambda message: heard.append(message.message_primary) if message.severity == "WARNING" else None)
        conn.execute("VACUUM (FULL INPLACE) t")
    [row] = history(conn, operation="FULL INPLACE")
    assert heard and row["warnings"] == "\n".join(heard)
    assert row["rows_dead"] >= 3000 and row["outcome"] == "done"
    # what isn't a run's is nobody's
    conn.execute("DO $$BEGIN RAISE WARNING 'not of a VACUUM'; END$$")
    conn.execute("VACUUM t")
    assert history(conn)[-1]["warnings"] is None


def test_left_to_the_server(conn):
    make_table(conn)
    conn.execute("SET cyclone.enabled = off")
    conn.execute("VACUUM t")
    conn.execute("VACUUM (FULL) t")
    assert history(conn) == [], "the switch is for all that pg_cyclone does"


@pytest.fixture
def auto(new_cluster, autovacuum_config):  # noqa: F811
    auto = Auto(new_cluster(**autovacuum_config))
    yield auto


def test_autovacuum(auto):
    conn = auto.conn
    auto.make_table()
    auto.vacuum()
    auto.set(cyclone__autovacuum="off")
    auto.make_dead("t", "id % 3 = 1")
    auto.vacuum(by="server")
    rows = [wait_until(lambda: history(conn, relation_name="public.t", run_by=who), f"a row of the {who}")[0] for who in ("engine", "server")]  # noqa: B023
    [ours, servers] = rows
    for row in rows:
        assert (row["started_by"], row["operation"], row["options"], row["outcome"]) == ("autovacuum", "VACUUM", None, "done")
        assert row["usename"] is None and row["forced"] is False
        assert row["wal_bytes"] > 0 and row["seconds"] > 0
    assert (ours["run_by"], ours["rows_removed"]) == ("engine", 2000) and ours["phases"]
    assert (servers["run_by"], servers["rows_removed"], servers["phases"], servers["workers_launched"]) == ("server", None, None, None)
    # an error, by either
    auto.set(cyclone__autovacuum="on", cyclone__debug_point="heap-scan:leader:error")
    auto.make_dead("t", "id % 3 = 2 AND id < 3000")
    auto.let("t")
    auto.wait_for("error_count")
    row = wait_until(lambda: history(conn, outcome="failed"), "a row")[0]
    assert (row["started_by"], row["run_by"], row["sqlstate"]) == ("autovacuum", "engine", "XX000")
    # another session wants the table
    auto.unset("cyclone__debug_point")
    conn.execute("SELECT cyclone.autovacuum_reset()")
    auto.make_dead("t", "id % 3 = 2")  # or there may be nothing to do: the server may have come before we looked
    with auto.parked("t", processes=1, point="heap-scan:leader"):
        conn.execute("ALTER TABLE t SET (autovacuum_enabled = off)")
    row = wait_until(lambda: history(conn, outcome="cancelled"), "a row")[0]
    assert (row["sqlstate"], row["error"]) == ("57014", "canceling autovacuum task")


def test_a_busy_table_leaves_others_theirs(new_cluster):
    cluster = new_cluster(**{"cyclone.history_size": 15})
    conn = cluster.connect(TEMPLATE)
    conn.execute("SELECT cyclone.history_reset()")
    for name in ("quiet", "calm", "busy"):
        conn.execute(f"CREATE TABLE {name} (id int)")

    def counts():
        return dict(conn.execute("SELECT relation_name, count(*) FROM cyclone.history GROUP BY 1"))

    for name, times in (("quiet", 2), ("calm", 3), ("busy", 50)):
        for _ in range(times):
            conn.execute(f"VACUUM {name}")
    assert counts() == {"public.quiet": 2, "public.calm": 3, "public.busy": 10}
    assert [r["id"] for r in history(conn)] == [1, 2, 3, 4, 5, *range(46, 56)], "the oldest ones have gone"
    before = everything(conn)
    cluster.restart()
    conn = cluster.connect(TEMPLATE)
    assert everything(conn) == before
    # more tables than rows: the latest ones
    for i in range(20):
        conn.execute(f"CREATE TABLE t{i} (id int)")
        conn.execute(f"VACUUM t{i}")
    assert counts() == {f"public.t{i}": 1 for i in range(5, 20)}
    cluster.crash()
    cluster.config["cyclone.history_size"] = 4
    cluster.start()
    conn = cluster.connect(TEMPLATE)
    assert counts() == {f"public.t{i}": 1 for i in range(16, 20)}


def test_nobody_pushes_out_what_belongs_to_others(new_cluster):
    """A role floods the history, by commands or by autovacuum of its tables; of others it takes nothing as long as they have less."""
    cluster = new_cluster(autovacuum="on", autovacuum_naptime="1s", **{"cyclone.history_size": 40})
    rows = "SELECT count(*) FROM cyclone.history WHERE relation_name LIKE %s"
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE ROLE flooder LOGIN; GRANT CREATE ON SCHEMA public TO flooder; SELECT cyclone.history_reset()")
        conn.execute("CREATE TABLE important (id int) WITH (autovacuum_enabled = off)")
        for _ in range(10):
            conn.execute("VACUUM important")
        with cluster.connect(TEMPLATE, user="flooder") as flooder:
            for number in range(60):
                flooder.execute(f"CREATE TEMP TABLE t{number} ()")
                flooder.execute(f"VACUUM t{number}")
            assert conn.execute(rows, ("%important",)).fetchone() == (10,)
            for number in range(30):
                flooder.execute(f"CREATE TABLE job{number} (id int) WITH (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0)")
                flooder.execute(f"INSERT INTO job{number} VALUES (1); DELETE FROM job{number}")
            flooder.execute("SELECT pg_stat_force_next_flush()")
        wait_until(lambda: conn.execute(rows, ("%job%",)).fetchone()[0] >= 25, "autovacuums")
        assert conn.execute(rows, ("%important",)).fetchone() == (10,)
        assert conn.execute("SELECT count(*) FROM cyclone.history").fetchone() == (40,)


@pytest.mark.parametrize("how", ["fast", "immediate", "crash", "backend"])
def test_it_survives(new_cluster, how):
    cluster = new_cluster()
    conn = cluster.connect(TEMPLATE)
    make_table(conn)
    for options in ("(PARALLEL 2)", "(FULL)", "(FULL INPLACE)", "(FREEZE)"):
        conn.execute(f"VACUUM {options} t")
    before = everything(conn)
    assert len(before) >= 5
    running = Parked(cluster, TEMPLATE, "heap-scan:leader", 1, "VACUUM (DISABLE_PAGE_SKIPPING) t")
    if how == "backend":
        os.kill(running.pid, signal.SIGKILL)
        wait_until(lambda: "all server processes terminated" in cluster.log, "the end of all")
        cluster.wait_for_recovery()
    else:
        cluster.restart(how)
    running.wait()
    conn = cluster.connect(TEMPLATE)
    after = everything(conn)
    if how == "fast":
        assert after.pop()[0] == before[-1][0] + 1, "what the stop has ended"
        assert history(conn)[-1]["outcome"] == "cancelled"
    assert after == before
    last = everything(conn)[-1][0]
    conn.execute("VACUUM (PROCESS_TOAST false) t")
    assert [row[0] for row in everything(conn) if row[0] > last] == [last + 1], "numbers go on"
    checks.assert_clean(conn, "t")


def test_a_damaged_file(new_cluster):
    cluster = new_cluster()
    file = cluster.data / "pg_cyclone" / "history"
    conn = cluster.connect(TEMPLATE)
    conn.execute("SELECT cyclone.history_reset()")
    conn.execute("CREATE TABLE t (id int)")
    for _ in range(5):
        conn.execute("VACUUM t")
    rows = everything(conn)
    cluster.stop()
    data = bytearray(file.read_bytes())
    size, rest = divmod(len(data) - HEADER_BYTES, 5)
    assert rest == 0

    def start(content: bytes) -> list[tuple]:
        cluster.stop()
        file.write_bytes(content)
        cluster.start()
        with cluster.connect(TEMPLATE) as conn:
            return everything(conn)

    assert start(data) == rows
    flipped = bytearray(data)
    flipped[HEADER_BYTES + 2 * size + 100] ^= 1
    assert start(flipped) == rows[:2] + rows[3:]
    assert start(data[:-10]) == rows[:4], "a row that was written in part"
    hole = data[:HEADER_BYTES] + bytes(size) + data[HEADER_BYTES + size :]
    assert start(hole) == rows[1:]
    assert start(b"") == [] and start(data[:10]) == []
    other = bytearray(data)
    other[4] += 1
    assert start(other) == []
    assert 'file "pg_cyclone/history" is ignored, as it is damaged, or not in the format of this version of pg_cyclone' in cluster.log
    assert 'file "pg_cyclone/history" has damaged records, which are ignored' in cluster.log
    assert file.with_suffix(".damaged").read_bytes() == other
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("VACUUM t")
        assert [row[0] for row in everything(conn)] == [1]
    assert "PANIC" not in cluster.log


def test_an_error_beside_a_file_that_cannot_be_written(new_cluster):
    """The error stays what it was, whatever comes while the leader complains about the file: here a cancellation.

    The end of the worker whose error it is comes in the same way.
    """
    cluster = new_cluster()
    file = cluster.data / "pg_cyclone" / "history"
    conn = cluster.connect(TEMPLATE)
    make_table(conn)
    file.unlink()
    os.mkfifo(file)  # who opens it to write waits for a reader
    hand_over(file)
    vacuum = Background(cluster, TEMPLATE, "VACUUM t", {"cyclone.debug_point": "heap-scan:leader:error"})
    [row] = wait_until(lambda: history(conn, relation_name="public.t"), "the row")
    assert row["outcome"] == "failed"
    conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    assert "debug point" in str(vacuum.wait())
    os.close(reader)
    file.unlink()
    assert cluster.log.count('could not write to file "pg_cyclone/history"') == 1
    conn.execute("VACUUM t")
    checks.assert_clean(conn, "t")


def test_a_file_that_cannot_be_written(new_cluster):
    cluster = new_cluster()
    folder = cluster.data / "pg_cyclone"
    conn = cluster.connect(TEMPLATE)
    conn.execute("CREATE TABLE t (id int)")
    (folder / "history").unlink()
    (folder / "history").mkdir()
    conn.execute("VACUUM t")
    conn.execute("VACUUM t")
    assert len(history(conn, relation_name="public.t")) == 2
    assert cluster.log.count('could not write to file "pg_cyclone/history"') == 1, "once in a session"
    cluster.stop()
    (folder / "history").rmdir()
    (folder / "history.new").mkdir()
    hand_over(folder / "history.new")
    cluster.start()
    assert "the view cyclone.history won't survive the next restart" in cluster.log
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("VACUUM t")
        assert len(history(conn, relation_name="public.t")) == 1
        assert conn.execute("SELECT cyclone.history_reset()").fetchall() == [(1,)]
    cluster.stop()
    shutil.rmtree(folder / "history.new")
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("VACUUM t")
        before = everything(conn)
    cluster.restart()
    with cluster.connect(TEMPLATE) as conn:
        assert everything(conn) == before and len(before) == 1
    cluster.stop()
    file = folder / "history"
    file.write_bytes(b"as it was")
    hand_over(file)
    file.chmod(0)
    cluster.start()
    assert 'could not read file "pg_cyclone/history": Permission denied' in cluster.log
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("VACUUM t")
        assert len(history(conn, relation_name="public.t")) == 1
    file.chmod(0o600)
    assert file.read_bytes() == b"as it was"


def test_switched_off_and_reset(new_cluster):
    cluster = new_cluster()
    conn = cluster.connect(TEMPLATE)
    conn.execute("CREATE TABLE t (id int)")
    conn.execute("VACUUM t")
    before = everything(conn)
    cluster.config["cyclone.history_size"] = 0
    cluster.restart()
    conn = cluster.connect(TEMPLATE)
    for options in ("", "(FULL)", "(FULL INPLACE)"):
        conn.execute(f"VACUUM {options} t")
    assert everything(conn) == [] and conn.execute("SELECT cyclone.history_reset()").fetchall() == [(0,)]
    cluster.config["cyclone.history_size"] = 7
    cluster.restart()
    conn = cluster.connect(TEMPLATE)
    assert everything(conn) == before
    assert conn.execute("SELECT cyclone.history_reset()").fetchall() == [(1,)] and everything(conn) == []
    cluster.restart()
    conn = cluster.connect(TEMPLATE)
    assert everything(conn) == []
    conn.execute("VACUUM t")
    assert everything(conn)[0][0] == before[-1][0] + 1, "numbers go on"


def test_many_at_once(new_cluster):
    cluster = new_cluster(**{"cyclone.history_size": 100})
    conn = cluster.connect(TEMPLATE)
    conn.execute("SELECT cyclone.history_reset()")
    for i in range(8):
        conn.execute(f"CREATE TABLE t{i} (id int)")
    errors = []

    def work(i):
        try:
            with cluster.connect(TEMPLATE) as session:
                for _ in range(60):
                    session.execute(f"VACUUM t{i}")
        except psycopg.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ids = [row[0] for row in everything(conn)]
        assert len(ids) == len(set(ids)) <= 100
    assert not errors
    rows = everything(conn)
    assert len(rows) == 80 and rows[-1][0] == 480, "ten of each table"
    cluster.restart("crash")
    with cluster.connect(TEMPLATE) as conn:
        assert everything(conn) == rows


def test_a_standby_and_its_promotion(new_cluster):
    cluster = new_cluster()
    conn = cluster.connect(TEMPLATE)
    conn.execute("CREATE TABLE t (id int)")
    conn.execute("VACUUM t")
    rows = everything(conn)
    with cluster.standby() as standby:
        conn.execute("VACUUM t")
        standby.start()
        with standby.connect(TEMPLATE) as there:
            assert everything(there) == rows, "as the backup found it"
            standby.promote()
            there.execute("VACUUM t")
            assert len(everything(there)) == len(rows) + 1


def test_who_sees_what(cluster, db, conn):
    for role in ("h_owner", "h_other", "h_monitor"):
        conn.execute(f"CREATE ROLE {role} LOGIN")
    conn.execute("GRANT pg_monitor TO h_monitor")
    conn.execute("GRANT CREATE ON SCHEMA public TO h_owner")
    conn.execute("CREATE TABLE t (id int)")
    conn.execute("VACUUM t")
    with cluster.connect(db, user="h_owner") as owner:
        owner.execute("CREATE TABLE own (id int)")
        owner.execute("VACUUM (FREEZE) own")
        [of_super, of_owner] = history(owner)
        assert of_owner["relation_name"] == "public.own" and of_owner["usename"] == "h_owner" and of_owner["options"] == "FREEZE"
        assert {column for column, value in of_super.items() if value is not None} == set(PUBLIC)
    for role, sees in (("h_other", False), ("h_monitor", True)):
        with cluster.connect(db, user=role) as session:
            rows = history(session)
            assert len(rows) == 2
            for row in rows:
                assert ({column for column, value in row.items() if value is not None} > set(PUBLIC)) == sees
            for statement in ("SELECT cyclone.history_reset()", "SET cyclone.log_min_duration = 0"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    session.execute(statement)
    conn.execute("DROP OWNED BY h_owner")
    conn.execute("DROP ROLE h_owner")
    row = history(conn)[1]
    assert row["usename"] is None and row["relation_name"] == "public.own"


def test_other_databases(new_cluster):
    cluster = new_cluster()
    cluster.sql("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
    cluster.sql("SELECT cyclone.history_reset()", dbname=TEMPLATE)
    with cluster.connect("latin") as there:
        there.execute('CREATE TABLE "größe" (id int)')
        there.execute('VACUUM "größe"')
    cluster.sql("VACUUM (PROCESS_TOAST false) pg_database")
    with cluster.connect(TEMPLATE) as conn:
        [here, shared] = conn.execute("SELECT datname, relation_name FROM cyclone.history_details ORDER BY id").fetchall()
        assert here == ("latin", 'public."gr??e"') and shared == (None, "pg_catalog.pg_database")
        cluster.sql("DROP DATABASE latin")
        assert conn.execute("SELECT datname, relation_name FROM cyclone.history ORDER BY id").fetchone() == (None, 'public."gr??e"')


# The report of a command, with lines of ours, and the last one
MESSAGE = re.compile(rf"LOG:  {REPORT.pattern}" + r"(?P<ours>(?:.+\n)*?)\t?started by: (?P<command>.+)\n")


def logged(log: str) -> list[re.Match]:
    return list(MESSAGE.finditer(log))


def test_the_log(cluster, db, conn):
    make_table(conn)
    start = len(cluster.log)
    conn.execute("SET client_min_messages = log")
    heard = messages_to(conn)
    conn.execute("VACUUM (PROCESS_TOAST false) t")
    assert not logged(cluster.log[start:]), "off by default"
    conn.execute("SET cyclone.log_min_duration = 0")
    conn.execute("DELETE FROM t WHERE id % 3 = 1")
    conn.execute("VACUUM (PARALLEL 2) t")
    conn.execute("VACUUM (FREEZE, PROCESS_TOAST false) t")
    assert heard == [], "the log's is the server's own"
    [(toast,)] = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 't'::regclass")
    found = logged(cluster.log[start:])
    assert "STATEMENT" not in cluster.log[start:]
    assert [match["table"] for match in found] == [f"{db}.public.t", f"{db}.{toast}", f"{db}.public.t"]
    assert all(match["command"] == 'VACUUM command of user "postgres"' for match in found)
    assert (found[0]["removed"], found[0]["remain"]) == ("2000", "2000")
    assert "automatic aggressive vacuum of table" in found[2][0] and "aggressive" not in found[0][0]
    assert "parallel workers: 2 planned, 2 launched" in found[0]["ours"]

    # with VERBOSE both the client and the log have it, each in its words
    conn.execute("VACUUM (VERBOSE, PROCESS_TOAST false) t")
    assert sum(text.startswith(f'finished vacuuming "{db}.public.t": index scans:') for text in heard) == 1
    assert not any("automatic" in text or "started by" in text for text in heard)
    assert len(logged(cluster.log[start:])) == 4

    start = len(cluster.log)
    conn.execute("VACUUM (FULL) t")
    conn.execute("VACUUM (FULL INPLACE, PROCESS_TOAST false) t")
    log = cluster.log[start:]
    assert f'LOG:  finished rewriting "{db}.public.t"' in log and 'started by: VACUUM (FULL) command of user "postgres"' in log
    assert f'LOG:  finished compacting "{db}.public.t" in place' in log and 'started by: VACUUM (FULL INPLACE) command of user "postgres"' in log
    assert not logged(log), "its passes are no VACUUMs of their own"

    start = len(cluster.log)
    conn.execute("SET cyclone.log_min_duration = '1h'")
    for options in ("(FREEZE)", "(FULL)", "(FULL INPLACE)"):
        conn.execute(f"VACUUM {options} t")
    assert "started by" not in cluster.log[start:]


def test_autovacuum_is_logged_as_it_was(auto):
    auto.set(cyclone__log_min_duration=0)
    auto.make_table()
    auto.vacuum()
    wait_until(lambda: "automatic vacuum of table" in auto.log, "a line in the log")
    assert "started by" not in auto.log
