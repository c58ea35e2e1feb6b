"""However a VACUUM comes, the engine gets its tables where the server asks heap to be vacuumed, and nobody else notices.

The test module test_hooks has a hook that tells of each VACUUM, and may run it by itself as other libraries do, and a table access
method that is a copy of heap.
"""

import os
import random
import re
import signal
import subprocess
import threading
from pathlib import Path

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, create_with_template
from cyclone_lab import build, checks
from cyclone_lab.background import Parked, heard, wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import as_server_user, program_env, program_path
from test_options import random_statement, verdict

ORDERS = {"first": "pg_cyclone,pg_stat_statements,test_hooks", "last": "test_hooks,pg_stat_statements,pg_cyclone"}
SEED = int(os.environ.get("CYCLONE_SEED", random.randrange(1_000_000)))
LISTS = 200


@pytest.fixture(scope="module")
def module(prefix):
    build.install_test_module("test_hooks", prefix)


@pytest.fixture(scope="module", params=ORDERS)
def server(request, module, prefix):
    """A running server with pg_cyclone as the first or the last of its libraries; its attribute `order` says which."""
    with create_with_template(prefix, {**CONFIG, "shared_preload_libraries": ORDERS[request.param]}) as cluster:
        cluster.order = request.param
        cluster.start()
        with cluster.connect(TEMPLATE) as conn:
            conn.execute("CREATE EXTENSION test_hooks")
            conn.execute("CREATE EXTENSION pg_stat_statements")
        yield cluster


@pytest.fixture
def conn(server):
    """A connection with a table t of which every third row is dead."""
    with server.connect(TEMPLATE) as conn:
        make_table(conn)
        yield conn
        conn.execute("DROP TABLE t")


def make_table(conn, name="t", using="heap"):
    # building an index, even that of a TOAST table, insists on heap itself
    columns = "id int PRIMARY KEY, note text" if using == "heap" else "id int, note char(32)"
    conn.execute(f"CREATE TABLE {name} ({columns}) USING {using} WITH (autovacuum_enabled = off)")
    conn.execute(f"INSERT INTO {name} SELECT i, md5(i::text) FROM generate_series(1, 5000) i")
    conn.execute(f"DELETE FROM {name} WHERE id % 3 = 0")


def said(conn, statement, **options) -> str:
    """Run a statement and return all that the server says meanwhile."""
    return "\n".join(heard(conn, statement, lambda notice: f"{notice.severity}: {notice.message_primary} {notice.message_hint or ''}", **options))


def by_engine(report: str) -> bool:
    return "parallel workers: " in report


def assert_vacuumed(conn, table="t"):
    assert checks.assert_vacuumed(conn, table)["rows"] == 3334


def test_watchers_see_the_statement_and_the_engine_gets_the_table(server, conn):
    conn.execute("SET test_hooks.watch = on")
    conn.execute("SELECT pg_stat_statements_reset()")
    plain = said(conn, "VACUUM (VERBOSE) t")
    assert by_engine(plain) and "test_hooks sees VACUUM: verbose" in plain
    with_option = said(conn, "VACUUM (ADAPTIVE_DELAY, VERBOSE) t")
    assert by_engine(with_option) and has_adaptive_delay(with_option)
    # hooks that run inside ours see it as the server does
    seen = "verbose" if server.order == "last" else "adaptive_delay verbose"
    assert f"test_hooks sees VACUUM: {seen} \n" in with_option
    counts = conn.execute("SELECT query, calls FROM pg_stat_statements WHERE query ILIKE 'vacuum%' ORDER BY query").fetchall()
    assert counts == [("VACUUM (ADAPTIVE_DELAY, VERBOSE) t", 1), ("VACUUM (VERBOSE) t", 1)]
    assert_vacuumed(conn)


def test_a_library_that_runs_the_vacuum_itself(server, conn):
    conn.execute("SET test_hooks.run = on")
    assert by_engine(said(conn, "VACUUM (VERBOSE, ANALYZE) t"))
    assert_vacuumed(conn)
    if server.order == "last":
        report = said(conn, "VACUUM (VERBOSE, ADAPTIVE_DELAY) t")
        assert by_engine(report) and has_adaptive_delay(report)
    else:  # it doesn't know the option
        with pytest.raises(psycopg.errors.SyntaxError, match='unrecognized VACUUM option "adaptive_delay"'):
            conn.execute("VACUUM (VERBOSE, ADAPTIVE_DELAY) t")
    conn.execute("SET cyclone.enabled = off")
    assert not by_engine(said(conn, "VACUUM (VERBOSE) t"))


def test_switched_off(conn):
    conn.execute("SET cyclone.enabled = off")
    assert not by_engine(said(conn, "VACUUM (VERBOSE) t"))
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="is pg_cyclone's, which is off"):
        conn.execute("VACUUM (ADAPTIVE_DELAY) t")
    assert_vacuumed(conn)


def test_a_copy_of_heap_is_left_to_the_server(conn):
    make_table(conn, "copy", "heap_copy")
    try:
        report = said(conn, "VACUUM (VERBOSE, ADAPTIVE_DELAY) copy, t")
        mine, heap = report.split('INFO: vacuuming "cyclone_template.public.t"')
        assert not by_engine(mine) and by_engine(heap)
        assert not by_engine(said(conn, "VACUUM (FULL REWRITE, VERBOSE) copy"))
        assert conn.execute("SELECT count(*), sum(id) FROM copy").fetchone() == conn.execute("SELECT count(*), sum(id) FROM t").fetchone()
    finally:
        conn.execute("DROP TABLE copy")


def has_adaptive_delay(report: str) -> bool:
    return "adaptive delay" in report


def test_an_adaptive_delay_is_for_the_statement_only(server, conn):
    assert has_adaptive_delay(said(conn, "VACUUM (ADAPTIVE_DELAY, VERBOSE) t"))
    assert "pace:" not in said(conn, "VACUUM (VERBOSE) t")
    failures = [
        "VACUUM (ADAPTIVE_DELAY) nowhere",
        "VACUUM (ADAPTIVE_DELAY, NONSENSE) t",
        "VACUUM (ADAPTIVE_DELAY '2s') t",
        "VACUUM (ADAPTIVE_DELAY, PARALLEL -1) t",
    ]
    for failure in failures:
        with pytest.raises(psycopg.Error):
            conn.execute(failure)
        assert "pace:" not in said(conn, "VACUUM (VERBOSE) t")
        assert conn.execute("SELECT count(*) FROM cyclone.pace").fetchone() == (0,)
    conn.execute("SET cyclone.debug_point = 'heap-scan:leader:error'")
    with pytest.raises(psycopg.Error, match="debug point"):
        conn.execute("VACUUM (ADAPTIVE_DELAY, DISABLE_PAGE_SKIPPING) t")
    conn.execute("RESET cyclone.debug_point")
    assert "pace:" not in said(conn, "VACUUM (VERBOSE) t")
    assert_vacuumed(conn)


def test_each_table_of_a_statement_has_an_adaptive_delay(conn):
    make_table(conn, "u")
    try:
        report = said(conn, "VACUUM (ADAPTIVE_DELAY, VERBOSE) t, u")
        assert len(re.findall("adaptive delay", report)) == report.count("finished vacuuming") == 4
    finally:
        conn.execute("DROP TABLE u")


def test_an_adaptive_delay_beside_any_other_options(server, conn):
    """Each possible statement has the same effect as without it."""
    print(f"CYCLONE_SEED={SEED}")
    chance = random.Random(SEED)
    conn.execute("DROP TABLE t")
    for name in ("t", "u"):
        conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        conn.execute(f"INSERT INTO {name} SELECT i, 'x' FROM generate_series(1, 100) i")
    conn.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    conn.execute("CREATE VIEW v AS SELECT 1")
    try:
        for _ in range(LISTS):
            statement = random_statement(chance)
            if not (found := re.fullmatch(r"VACUUM \((.*)\) (.*)", statement)) or "ONLY_DATABASE_STATS" in statement:
                continue
            options = found[1].split(", ")
            value = chance.choice(("", "on", "'TRUE'", "0", "off"))
            options.insert(chance.randrange(len(options) + 1), f"ADAPTIVE_DELAY {value}".strip())
            with_option = f"VACUUM ({', '.join(options)}) {found[2]}"
            without, beside = verdict(conn, statement), verdict(conn, with_option)
            assert beside[:4] == without[:4], with_option
    finally:
        conn.execute("DROP TABLE u, p")
        conn.execute("DROP VIEW v")


@pytest.mark.parametrize("options", ["NONSENSE", "FREEZE maybe", "BUFFER_USAGE_LIMIT 3", "PARALLEL -1", "FULL maybe", "columns"])
def test_what_is_wrong_beside_an_option_of_ours(conn, options):
    """The server's error is about that, as for FULL, and not about an option that is right."""
    rest = ") t (id)" if options == "columns" else f", {options}) t"
    expected = verdict(conn, f"VACUUM (FULL{rest}")[:2]
    assert expected[0] != "accepted"
    for ours in ("FULL INPLACE", "FULL REWRITE", "FULL INPLACE, ADAPTIVE_DELAY", "FULL, ADAPTIVE_DELAY"):
        assert verdict(conn, f"VACUUM ({ours}{rest}")[:2] == expected, ours


def test_a_prepared_statement_is_run_again(conn):
    for statement in ("VACUUM (VERBOSE) t", "VACUUM (VERBOSE, ADAPTIVE_DELAY) t"):
        for _ in range(3):
            conn.execute("DELETE FROM t WHERE id IN (SELECT max(id) FROM t)")
            report = said(conn, statement, prepare=True)
            assert by_engine(report) and has_adaptive_delay(report) == ("ADAPTIVE" in statement)
        assert conn.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement = %s", [statement]).fetchone() == (1,)
    checks.assert_clean(conn, "t")


def test_where_no_vacuum_is_allowed(conn):
    conn.execute("CREATE OR REPLACE FUNCTION run(text) RETURNS void LANGUAGE plpgsql AS $$BEGIN EXECUTE $1; END$$")
    for options in ("", "(VERBOSE)", "(FULL)"):
        verdicts = []
        ours = [""] if options == "" else ["", ", ADAPTIVE_DELAY"]
        for enabled, own in [("off", ""), *(("on", own) for own in ours)]:
            conn.execute(f"SET cyclone.enabled = {enabled}")
            vacuum = f"VACUUM {options.replace(')', own + ')')} t"
            verdicts.append([verdict(conn, f"SELECT run($x${vacuum}$x$)")[:2]])
            conn.execute("BEGIN")
            verdicts[-1].append(verdict(conn, vacuum)[:2])
            conn.execute("ROLLBACK")
            verdicts[-1].append(verdict(conn, f"SELECT 1; {vacuum}")[:2])
        # the last two words since 19
        assert verdicts[0][0] in (("25001", f"VACUUM cannot be executed from a function{end}") for end in ("", " or procedure"))
        assert verdicts[0][1] == verdicts[0][2] == ("25001", "VACUUM cannot run inside a transaction block")
        assert verdicts == [verdicts[0]] * len(verdicts)
    assert "pace:" not in said(conn, "VACUUM (VERBOSE) t")


def test_a_vacuum_that_is_tried_in_the_midst_of_one(conn):
    """BRIN evaluates an expression, that runs a VACUUM, which fails, and goes on."""
    conn.execute("CREATE TABLE brin (id int) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO brin SELECT generate_series(1, 100); SET my.delay = 'off'")
    conn.execute(
        "CREATE FUNCTION tries(int) RETURNS int LANGUAGE plpgsql AS $$BEGIN"
        " EXECUTE format('VACUUM (ADAPTIVE_DELAY %s) pg_class', current_setting('my.delay')); RETURN $1;"
        " EXCEPTION WHEN active_sql_transaction THEN RETURN $1; END$$"
    )
    conn.execute("CREATE FUNCTION calls(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RETURN public.tries($1); END$$")
    conn.execute("CREATE INDEX ON brin USING brin (calls(id)) WITH (pages_per_range = 1)")
    try:
        conn.execute("INSERT INTO brin SELECT generate_series(1, 5000)")
        conn.execute("DELETE FROM brin WHERE id % 3 = 0")
        for own, tried in (("", "on"), (", ADAPTIVE_DELAY", "off")):
            conn.execute(f"SET my.delay = '{tried}'")
            report = said(conn, f"VACUUM (VERBOSE, PARALLEL 0{own}) brin")
            assert by_engine(report)
            assert has_adaptive_delay(report) == bool(own)
            conn.execute("INSERT INTO brin SELECT generate_series(1, 5000)")
    finally:
        conn.execute("DROP TABLE brin")
        conn.execute("DROP FUNCTION calls, tries")


@pytest.mark.parametrize("statement", ["VACUUM (ADAPTIVE_DELAY) pg_class", "ANALYZE u"])
def test_a_vacuum_that_is_tried_while_rows_move(conn, statement):
    """The function in an index goes on, and so does the command, at its own pace."""
    conn.execute("CREATE TABLE u (id int) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO u SELECT generate_series(1, 20000)")
    conn.execute("CREATE TABLE outcomes (pid int, outcome text) WITH (autovacuum_enabled = off)")
    conn.execute(
        "CREATE FUNCTION tries(int) RETURNS int LANGUAGE plpgsql AS $$BEGIN IF current_setting('client_min_messages') = 'log' THEN "
        f"BEGIN EXECUTE '{statement}'; EXCEPTION WHEN OTHERS THEN INSERT INTO public.outcomes VALUES (pg_backend_pid(), SQLERRM); "
        "END; END IF; RETURN $1; END$$"
    )
    conn.execute("CREATE FUNCTION calls(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RETURN public.tries($1); END$$")
    conn.execute("CREATE INDEX ON u (calls(id))")
    conn.execute("DELETE FROM u WHERE id < 15000 AND id % 20 <> 0")
    try:
        conn.execute("SET vacuum_cost_delay = '0.01ms'; SET client_min_messages = log")
        conn.execute("VACUUM (FULL INPLACE) u")
        outcomes = conn.execute("SELECT DISTINCT outcome FROM outcomes").fetchall()
        refusals = {
            "VACUUM": "VACUUM cannot run inside a transaction block",
            "ANALYZE": "ANALYZE cannot be executed from VACUUM or ANALYZE",
        }
        assert outcomes == [(refusals[statement.split()[0]],)]
        checks.assert_clean(conn, "u")
    finally:
        conn.execute("RESET vacuum_cost_delay; RESET client_min_messages")
        conn.execute("DROP TABLE u, outcomes")
        conn.execute("DROP FUNCTION calls, tries")


def mapping(pid: int, address: int) -> str:
    """Return what a process may do with the memory at an address, as in /proc."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1]
    raise AssertionError("no such memory")


def test_memory_is_protected_as_before(server, conn, prefix):
    [(address,)] = conn.execute("SELECT heap_address()")
    protection = mapping(server.postmaster.pid, address)
    assert mapping(conn.info.backend_pid, address) == protection
    config = {name: value for name, value in CONFIG.items() if "cyclone" not in name}
    with Cluster.create(prefix, {**config, "shared_preload_libraries": "test_hooks"}) as other:
        with other.start().connect() as other_conn:
            other_conn.execute("CREATE EXTENSION test_hooks")
            [(address,)] = other_conn.execute("SELECT heap_address()")
        assert mapping(other.postmaster.pid, address) == protection
    assert "w" not in protection


def test_a_seam_that_cannot_be_made(new_cluster, module):
    cluster = new_cluster(**{"cyclone.debug_seam_fails": 1, "cyclone.autovacuum": "on"})
    assert cluster.log.count("WARNING:  pg_cyclone cannot take over VACUUM") == 1
    with cluster.connect(TEMPLATE) as conn:
        make_table(conn)
        assert not by_engine(said(conn, "VACUUM (VERBOSE) t"))
        assert_vacuumed(conn)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="ADAPTIVE_DELAY is not available") as error:
            conn.execute("VACUUM (ADAPTIVE_DELAY) t")
        assert "message in the server's log" in error.value.diag.message_hint
        assert by_engine(said(conn, "VACUUM (FULL REWRITE, VERBOSE) t"))
        conn.execute("DELETE FROM t WHERE id % 2 = 0")
        assert "moved " in said(conn, "VACUUM (FULL INPLACE, VERBOSE, ADAPTIVE_DELAY) t")
        checks.assert_clean(conn, "t")


def test_a_single_user_server_is_left_alone(new_cluster):
    cluster = new_cluster()
    with cluster.connect(TEMPLATE) as conn:
        make_table(conn)
    cluster.stop()
    command = [program_path(cluster.prefix, "postgres"), "--single", "-c", "log_min_messages=info", "-D", cluster.data, TEMPLATE]
    result = subprocess.run(
        command, input="VACUUM (VERBOSE) t\nVACUUM (ADAPTIVE_DELAY) t\n", text=True, capture_output=True,
        env=program_env(cluster.prefix), timeout=120, **as_server_user(),
    )  # fmt: skip
    assert result.returncode == 0
    assert "finished vacuuming" in result.stderr and not by_engine(result.stderr)
    assert 'unrecognized VACUUM option "adaptive_delay"' in result.stderr
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        assert_vacuumed(conn)


def test_the_engine_can_be_stopped_at_the_seam(server, conn):
    """A cancelled VACUUM leaves nothing armed, and the next one of the session is as ever."""
    with Parked(server, TEMPLATE, "heap-scan:any", 1, "VACUUM (ADAPTIVE_DELAY, DISABLE_PAGE_SKIPPING) t") as vacuum:
        assert conn.execute("SELECT shared_by FROM cyclone.pace_details").fetchall() == [(1,)]
        conn.execute("SELECT pg_cancel_backend(%s)", [vacuum.pid])
        assert isinstance(vacuum.wait(), psycopg.errors.QueryCanceled)
    assert conn.execute("SELECT count(*) FROM cyclone.pace").fetchone() == (0,)
    assert by_engine(said(conn, "VACUUM (VERBOSE) t"))
    assert_vacuumed(conn)


def test_other_libraries_may_use_up_the_names_of_wait_events(new_cluster, module):
    """All that waits does so under the server's name for extensions."""
    cluster = new_cluster(shared_preload_libraries="test_hooks,pg_cyclone", **{"cyclone.compaction": "on", "cyclone.debug_compaction_visit": 100})
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE EXTENSION test_hooks")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too many custom wait events"):
            for number in range(200):
                conn.execute("SELECT name_wait_event(%s)", [f"Other{number}"])
        make_table(conn)
        log_position = len(cluster.log)
        with Parked(cluster, TEMPLATE, "heap-scan:any", 1, "VACUUM (PARALLEL 2) t", {"cyclone.debug_workers": 2}) as vacuum:
            idle = "SELECT count(*) FROM pg_stat_activity WHERE %s IN (pid, leader_pid) AND (wait_event_type, wait_event) = ('Extension', 'Extension')"
            wait_until(lambda: conn.execute(idle, [vacuum.pid]).fetchone() == (2,), "the others of its team")
            # an error of the server would have left its lock
            conn.execute("SELECT count(*) FROM pg_wait_events")
            vacuum.finish()

        def vacuumed() -> bool:
            """Compaction, which looks at the table, may hold dead rows back for a moment."""
            conn.execute("VACUUM (INDEX_CLEANUP on) t")
            state = checks.table_state(conn, "t")
            return state["dead_items"] == state["dead_tuples"] == 0

        wait_until(vacuumed, "the end of dead rows")
        assert_vacuumed(conn)
        conn.execute("DELETE FROM t WHERE id % 2 = 0")
        # of others who are waited for, and of workers
        with cluster.connect(TEMPLATE) as reader, reader.transaction():
            reader.execute("SELECT FROM t")
            conn.execute("VACUUM (FULL INPLACE, PARALLEL 2) t")
        conn.execute("VACUUM (FULL) t")
        checks.assert_clean(conn, "t")
    assert "too many custom wait events" not in cluster.log[log_position:]


def test_a_process_may_ignore_the_signal_to_cancel(new_cluster, module):
    """As background workers of other libraries do: one that comes while the lock's queue is watched is ignored, too."""
    cluster = new_cluster(shared_preload_libraries="test_hooks,pg_cyclone")
    with cluster.connect(TEMPLATE) as conn, cluster.connect(TEMPLATE) as session, cluster.connect(TEMPLATE) as user:
        conn.execute("CREATE EXTENSION test_hooks; CREATE TABLE q WITH (autovacuum_enabled = off) AS SELECT generate_series(1, 20000) id")
        conn.execute("DELETE FROM q WHERE id < 19000")
        session.execute("SELECT ignore_sigint(); SET cyclone.debug_queue_age = 600000")
        user.execute("BEGIN; LOCK TABLE q IN ROW EXCLUSIVE MODE")
        compaction = threading.Thread(target=session.execute, args=("VACUUM (FULL INPLACE) q",))
        compaction.start()
        queues = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'relation'"
        wait_until(lambda: conn.execute(queues, (session.info.backend_pid,)).fetchall() or not compaction.is_alive(), "the queue")
        while compaction.is_alive():
            os.kill(session.info.backend_pid, signal.SIGINT)
        user.execute("COMMIT")
        conn.execute("VACUUM (FULL INPLACE) q")
        assert conn.execute("SELECT count(*) FROM q").fetchone() == (1001,)
        checks.assert_clean(conn, "q")


def test_other_libraries_may_use_up_the_callbacks_at_exit(new_cluster, module):
    """A process has 20 places for them. One that is left is enough, as for PostgreSQL's VACUUM of indexes; FULL INPLACE calls that, too."""
    cluster = new_cluster(shared_preload_libraries="test_hooks,pg_cyclone")
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE EXTENSION test_hooks")
        make_table(conn)

    def survives(number: int) -> bool:
        try:
            with cluster.connect(TEMPLATE) as conn:
                conn.execute("SELECT use_exit_callbacks(%s)", [number])
        except psycopg.OperationalError:  # FATAL
            return False
        return True

    free = next(number for number in range(20, 0, -1) if survives(number))
    log_position = len(cluster.log)
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("SELECT use_exit_callbacks(%s)", [free - 1])
        conn.execute("SET cyclone.debug_workers = 2")
        conn.execute("VACUUM (PARALLEL 2) t")
        assert_vacuumed(conn)
        conn.execute("DELETE FROM t WHERE id < 4000")
        conn.execute("VACUUM (FULL, PARALLEL 2) t")
        checks.assert_clean(conn, "t")
        conn.execute("DELETE FROM t WHERE id < 4500")
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("SELECT use_exit_callbacks(%s)", [free - 2])
        conn.execute("SET cyclone.debug_workers = 2")
        conn.execute("VACUUM (FULL INPLACE, PARALLEL 2) t")
        checks.assert_clean(conn, "t")
    assert "FATAL" not in cluster.log[log_position:]


@pytest.mark.once
def test_other_libraries_may_add_a_callback_at_exit_among_the_indexes(new_cluster, module):
    """As one might that is loaded for a function of an index."""
    cluster = new_cluster(shared_preload_libraries="test_hooks,pg_cyclone")
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE EXTENSION test_hooks")
        make_table(conn)
        conn.execute(
            "CREATE FUNCTION loads(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN"
            " IF current_setting('loads.now', true) = 'yes' THEN PERFORM set_config('loads.now', 'no', false), public.use_exit_callbacks(1);"
            " RAISE NOTICE 'loaded'; END IF; RETURN $1; END$$"
        )
        conn.execute("CREATE INDEX ON t USING brin (loads(id)) WITH (pages_per_range = 1)")
        conn.execute("INSERT INTO t (id) SELECT generate_series(100001, 101000)")
        conn.execute("SET loads.now = 'yes'")
        assert said(conn, "VACUUM (PARALLEL 0) t").count("loaded") == 1
        assert checks.table_state(conn, "t")["dead_items"] == 0
        checks.assert_clean(conn, "t")


@pytest.mark.parametrize("preloaded", ["", "pg_cyclone", "pg_cyclone,pg_stat_statements"])
def test_statements_of_others_run_without_us(module, new_cluster, preloaded):
    """Queries and changes of rows come by no hook of ours. But where others look at analyzed statements, so do we: TimescaleDB needs it."""
    cluster = new_cluster(shared_preload_libraries=preloaded)
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION test_hooks")
        [(hooks,)] = conn.execute("SELECT statement_hooks()")
    statistics = ["post_parse_analyze", "planner", "ExecutorStart", "ExecutorRun", "ExecutorFinish", "ExecutorEnd"]
    assert hooks.split() == (statistics if "statements" in preloaded else [])
