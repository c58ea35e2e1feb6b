"""The library on servers that aren't as ours: filters of system calls, files that move, no preloading."""

import re
import shutil
import signal
import subprocess
import sys

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, create_with_template
from cyclone_lab import checks, seccomp
from cyclone_lab.background import messages_to, wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import hand_over, program_env, program_path, run_program
from test_rewrite import run_script

MAKE = """
    DROP TABLE IF EXISTS t;
    CREATE TABLE t (id int PRIMARY KEY, n int UNIQUE) WITH (parallel_workers = 2, autovacuum_enabled = off);
    INSERT INTO t SELECT i, -i FROM generate_series(1, 20000) i;
    DELETE FROM t WHERE id % 3 > 0
"""
KINDS = ("VACUUM (PARALLEL 2, VERBOSE) t", "VACUUM (FULL INPLACE, PARALLEL 2) t", "VACUUM (FULL, PARALLEL 2) t")


def vacuum_in_each_way(conn) -> list[str]:
    """VACUUM a table with dead rows in each way that has workers, prove that it is sound, and return what was said."""
    messages = messages_to(conn)
    for statement in KINDS:
        run_script(conn, MAKE)
        conn.execute(statement)
        assert conn.execute("SELECT count(*), sum(id + n) FROM t").fetchone() == (6666, 0)
        checks.assert_clean(conn, "t")
    return messages


@pytest.fixture
def forbidding(prefix):
    """A function that returns a running server that these system calls end."""
    made = []

    def make(*calls: str) -> Cluster:
        made.append(create_with_template(prefix, {**CONFIG, "autovacuum": "on", "autovacuum_naptime": 1, "cyclone.debug_cores": 0}))
        made[-1].forbidden_calls = calls
        return made[-1].start()

    yield make
    for cluster in made:
        cluster.remove()


def postgres_makes(prefix, call: str) -> bool:
    """Tell whether the server makes this call by itself when it starts, as libnuma does."""
    command = [program_path(prefix, "postgres"), "--version"]
    ended = subprocess.run(command, env=program_env(prefix), capture_output=True, preexec_fn=lambda: seccomp.forbid((call,)))
    return ended.returncode == -signal.SIGSYS


@pytest.mark.parametrize("calls", [("statfs",), seccomp.CALLS], ids=["statfs", "all"])
def test_no_filter_of_system_calls_ends_a_server(prefix, forbidding, calls):
    """A process that makes one of these is ended: all that neither PostgreSQL nor a library of its makes."""
    cluster = forbidding(*(call for call in calls if not postgres_makes(prefix, call)))
    with cluster.connect(TEMPLATE) as conn:
        vacuum_in_each_way(conn)
        conn.execute("SET cyclone.adaptive_delay = 'on'; SET vacuum_cost_delay = 1")
        conn.execute("VACUUM t")
        conn.execute("CREATE TABLE a (id int) WITH (autovacuum_vacuum_threshold = 10, autovacuum_vacuum_scale_factor = 0)")
        conn.execute("INSERT INTO a SELECT generate_series(1, 1000)")
        conn.execute("DELETE FROM a")
        vacuumed = "SELECT engine_count > 0 FROM cyclone.autovacuum WHERE relation = 'a'::regclass"
        wait_until(lambda: conn.execute(vacuumed).fetchone() == (True,), "autovacuum by the engine")
    assert "terminated by signal" not in cluster.log
    assert "cannot find out how much disk space is free" in cluster.log


def test_system_calls_can_be_switched_off(prefix):
    """No child of the server tries them, heap's table of functions stays as it is, and the rest works."""
    config = {**CONFIG, "cyclone.system_calls": "off", "cyclone.preserve_page_cache": "on"}
    with create_with_template(prefix, {**config, "cyclone.debug_free_disk_mb": 1}) as cluster:
        cluster.forbidden_calls = tuple(call for call in seccomp.CALLS if not postgres_makes(prefix, call))
        with cluster.start().connect(TEMPLATE) as conn:
            assert not any("parallel workers: " in message for message in vacuum_in_each_way(conn))
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="ADAPTIVE_DELAY is not available") as error:
                conn.execute("VACUUM (ADAPTIVE_DELAY) t")
            assert "message in the server's log" in error.value.diag.message_hint
        assert cluster.log.count("LOG:  VACUUM and autovacuum are PostgreSQL's own, as cyclone.system_calls is off") == 1
        assert not re.search("cannot take over|how much disk space|the page cache|terminated by signal", cluster.log)


def test_a_disk_that_cannot_be_seen_is_no_secret(prefix):
    """A filter by which statfs fails, as those of containers do: the server's log says at its start that no disk is guarded."""
    with create_with_template(prefix) as cluster:
        cluster.refused_calls = ("statfs",)
        with cluster.start().connect(TEMPLATE) as conn:
            vacuum_in_each_way(conn)
        assert cluster.log.count("cannot find out how much disk space is free") == 1 and "The system refuses statfs." in cluster.log


def test_the_filter_ends_a_process():
    """Or the test above would prove nothing."""
    command = [sys.executable, "-c", "import os; os.sched_getaffinity(0)"]
    assert subprocess.run(command, preexec_fn=lambda: seccomp.forbid(("sched_getaffinity",))).returncode == -signal.SIGSYS


@pytest.mark.parametrize("change", ["moved", "replaced"])
def test_workers_find_the_library_that_the_server_has(new_cluster, prefix, change):
    """A package's upgrade moves or replaces the file of a running server; sessions, old and new, go on with the old one."""
    cluster = new_cluster()
    cluster.stop()
    library = cluster.home / "pg_cyclone.so"
    shutil.copy(run_program(prefix, "pg_config", "--pkglibdir").stdout.strip() + "/pg_cyclone.so", library)
    hand_over(library)
    cluster.config["shared_preload_libraries"] = str(library)
    cluster.start()
    with cluster.connect(TEMPLATE) as before:
        if change == "moved":
            library.unlink()
        else:
            library.rename(library.with_suffix(".old"))
            shutil.copy(library.with_suffix(".old"), library)
            hand_over(library)
        for conn in (before, cluster.connect(TEMPLATE)):
            messages = vacuum_in_each_way(conn)
            assert any("parallel workers: 2 planned, 2 launched" in message for message in messages), messages
            # the extension's functions are in the file of the usual place, which isn't the one that was preloaded
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="preloaded from another file") as error:
                conn.execute("TABLE cyclone.progress")
            assert str(library) in error.value.diag.message_detail
        said = []
        conn.add_notice_handler(lambda message: said.append((message.severity, message.message_primary, message.message_hint)))
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_cyclone")
        replaced = ("WARNING", "the library of pg_cyclone has been replaced since the server was started")
        assert any(words[:2] == replaced and "Restart the server" in words[2] for words in said) == (change == "replaced")
        conn.close()
    assert "terminated by signal" not in cluster.log


def test_without_preloading_it_is_quiet(new_cluster):
    """At login, for LOAD, and for what pg_upgrade and pg_restore do; functions say what is to be done."""
    cluster = new_cluster()
    dump = cluster.run("pg_dump", "--dbname", TEMPLATE).stdout
    cluster.stop()
    config = {name: value for name, value in cluster.config.items() if not name.startswith("cyclone.")}
    cluster.config = {**config, "shared_preload_libraries": "", "session_preload_libraries": "pg_cyclone"}
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("LOAD 'pg_cyclone'")
        run_script(conn, MAKE)
        conn.execute("VACUUM t")
        with pytest.raises(psycopg.errors.SyntaxError, match="requires a Boolean value"):
            conn.execute("VACUUM (FULL INPLACE) t")
        functions = conn.execute(
            "SELECT format('%s cyclone.%I(%s)', CASE prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END, proname,"
            " (SELECT string_agg(format('NULL::%s', format_type(type, NULL)), ', ')"
            " FROM unnest(proargtypes) type)), proisstrict AND pronargs > 0 FROM pg_proc JOIN pg_language l ON l.oid = prolang"
            " WHERE pronamespace = 'cyclone'::regnamespace AND lanname = 'c' AND prorettype <> 'trigger'::regtype"
        ).fetchall()
        assert len(functions) > 10
        for call, returns_null in functions:
            if returns_null:
                call = re.sub(r"NULL::([\w ]+\[\])", r"'{}'::\1", call)
                call = call.replace("NULL::double precision", "20").replace("NULL::regclass", "'t'").replace("NULL::text", "''")
                call = call.replace("NULL::integer", "1").replace("NULL::name", "'t'").replace("NULL::oid", "1").replace("NULL::bigint", "1")
            if "NULL::" in call and returns_null:
                continue
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="must be loaded via") as error:
                conn.execute(call)
            assert "restart the server" in error.value.diag.message_hint
        conn.execute("CREATE DATABASE restored")
    cluster.run("psql", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname=restored", input=dump)
    assert cluster.run("pg_dump", "--dbname=restored").stdout.count("CREATE EXTENSION") == dump.count("CREATE EXTENSION")
    assert "pg_cyclone" not in "".join(line for line in cluster.log.splitlines() if "FATAL" in line)
