"""REPACK on pg_cyclone's engine does what PostgreSQL's does, with the same words, in less time: the same tables, rows, headers, catalogs,
statistics, warnings and errors. PARALLEL is an option of ours, and an error where PostgreSQL runs it.

CYCLONE_OPTION_LISTS is how many random statements are compared, CYCLONE_SEED where chance begins.
"""

import os
import random
import re

import psycopg
import pytest

from cyclone_lab import build, checks
from cyclone_lab.background import Background, Parked, wait_until
from test_faults import PLACES, assert_ends_without_harm, ends_of, make_versions
from test_guards import HELD_BY_DISK, SHORT, one, pace_of, retain_wal
from test_inplace import SAFE_SNAPSHOTS
from test_key_sets import assert_rewritten_as_by_core, of_sets
from test_neighbours import CATALOGS as NEIGHBOUR_CATALOGS
from test_neighbours import hear, pages, pretend, refusal, told
from test_options import verdict
from test_rewrite import (  # noqa: F401 (base and versions are fixtures)
    CATALOGS,
    CHANGES,
    FAULT_SETTINGS,
    LEFT_TO_SERVER,
    MAKE_VERSIONS,
    TABLES,
    assert_alike,
    base,
    content,
    rewrite_all,
    run_script,
    versions,
)  # fmt: skip
from test_rewrite import DB as SHAPES_DB

FIRST_MAJOR = 19
LISTS = int(os.environ.get("CYCLONE_OPTION_LISTS", 300))
SEED = int(os.environ.get("CYCLONE_SEED", random.randrange(1_000_000)))
REPACK = "REPACK (PARALLEL 2) t"


@pytest.fixture(scope="module")
def core(base):  # noqa: F811
    """What PostgreSQL's REPACK does to tables of every shape."""
    return rewrite_all(base, {"cyclone.enabled": "off"}, "REPACK")


@pytest.mark.parametrize("workers", [0, 2])
def test_tables_of_every_shape(base, core, workers):  # noqa: F811
    assert_alike(rewrite_all(base, {"cyclone.debug_point": "''"}, f"REPACK (PARALLEL {workers})"), core, workers)


def test_what_is_left_to_the_server(base):  # noqa: F811
    """Only what VACUUM FULL leaves to it, too, and what is left is said at DEBUG1."""
    left = set()
    with base.copy().start() as cluster, cluster.connect(SHAPES_DB) as conn:
        conn.execute("SET client_min_messages = debug1")
        for table in (*TABLES, *CATALOGS, "pg_toast.pg_toast_1255"):
            said = "\n".join(hear(conn, f"REPACK (VERBOSE) {table}"))
            if "pg_cyclone leaves relation" in said:
                left.add(table)
            else:
                assert "finished rewriting" in said, table
    assert left == {*LEFT_TO_SERVER, "pg_toast.pg_toast_1255"}


@of_sets
def test_btrees_on_random_keys(conn, seed):
    assert_rewritten_as_by_core(conn, seed, "REPACK")


def make_menagerie(conn) -> None:
    """Make relations of all kinds, for statements that make sense or don't."""
    for name in ("t", "u"):
        conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        conn.execute(f"INSERT INTO {name} SELECT i, 'x' FROM generate_series(1, 1000) i")
        conn.execute(f"DELETE FROM {name} WHERE id % 2 = 0")
    conn.execute("ALTER TABLE u CLUSTER ON u_pkey")
    conn.execute("CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (500)")
    conn.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (500) TO (1001) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (500) TO (1001)")
    conn.execute("INSERT INTO p SELECT i, 'x' FROM generate_series(1, 1000) i")
    conn.execute("DELETE FROM p WHERE id % 2 = 0")
    conn.execute("CREATE TABLE parent (id int)")
    conn.execute("CREATE TABLE child () INHERITS (parent)")
    conn.execute("CREATE VIEW v AS SELECT 1")
    conn.execute("CREATE SEQUENCE s")
    conn.execute("CREATE MATERIALIZED VIEW m AS SELECT * FROM t")
    conn.execute("CREATE MATERIALIZED VIEW unfilled AS SELECT 1 WITH NO DATA")
    conn.execute("CREATE EXTENSION file_fdw")
    conn.execute("CREATE SERVER files FOREIGN DATA WRAPPER file_fdw")
    conn.execute("CREATE FOREIGN TABLE f (id int) SERVER files OPTIONS (filename '/dev/null')")
    conn.execute("CREATE TABLE with_foreign (id int) PARTITION BY LIST (id)")
    conn.execute("CREATE FOREIGN TABLE f1 PARTITION OF with_foreign FOR VALUES IN (1) SERVER files OPTIONS (filename '/dev/null')")
    conn.execute("CREATE TABLE f2 PARTITION OF with_foreign FOR VALUES IN (2)")


TARGETS = ("t", "t", "t", "u", "p", "ONLY p", "p1", "p2", "parent", "v", "s", "t_pkey", "m", "unfilled", "f", "with_foreign", "nowhere",
           "missing.t", "t (id)", "t (id, v)", "t (nothing)", "t (id, id)", "p (id)", "pg_class", "pg_database", "pg_toast.pg_toast_1255",
           "t USING INDEX", "t USING INDEX t_pkey", "u USING INDEX", "t USING INDEX nowhere", "p USING INDEX", "p USING INDEX p_pkey",
           "t (id) USING INDEX t_pkey")  # fmt: skip
BOOLEANS = ("", "", "", "on", "off", "true", "FALSE", "0", "1")
VALUES = (*BOOLEANS, "2", "-1", "1.5", "auto", "'on'", "''", "'yes'", "99999999999", "tRuE", '"On"')
OPTIONS = ("VERBOSE", "VERBOSE", "ANALYZE", "ANALYZE", "ANALYSE", "CONCURRENTLY", "NONSENSE", "FULL", "FREEZE", '"Verbose"', "verbose")


def random_repack(chance: random.Random) -> str:
    """Return a REPACK, sensible or not, without an option of ours."""
    options = []
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3))):
        value = chance.choice(BOOLEANS if chance.random() < 0.8 else VALUES)
        options.append(f"{chance.choice(OPTIONS)} {value}".strip())
    listed = f"({', '.join(options)}) " if options else ""
    target = chance.choice(TARGETS)
    if chance.random() < 0.03 and "ANALY" in listed.upper():
        target = ""
    return f"REPACK {listed}{target}".strip()


def test_random_statements(conn):
    """Each ends as PostgreSQL's does, with the same words at the same place; in a transaction block and in a function, too."""
    print(f"CYCLONE_SEED={SEED}")
    chance = random.Random(SEED)
    conn.prepare_threshold = None  # or psycopg would prepare what comes often, and several statements can't be
    make_menagerie(conn)
    conn.execute("CREATE FUNCTION run(text) RETURNS void LANGUAGE plpgsql AS $$BEGIN EXECUTE $1; END$$")
    seen = {True: 0, False: 0}
    for _ in range(LISTS):
        statement = random_repack(chance)
        where = chance.choice(("", "", "", "block", "function", "script"))
        verdicts = []
        for enabled in ("off", "on"):
            conn.execute(f"SET cyclone.enabled = {enabled}")
            if where == "block":
                conn.execute("BEGIN")
            run = {"function": "SELECT run('{}')", "script": "SELECT 1; {}"}.get(where, "{}")
            verdicts.append(verdict(conn, run.format(statement.replace("'", "''") if where == "function" else statement)))
            if where == "block":
                conn.execute("ROLLBACK")
        assert verdicts[1] == verdicts[0], (where, statement)
        seen[verdicts[0][0] == "accepted"] += 1
    assert min(seen.values()) > LISTS / 10, "hardly any was accepted, or hardly any refused"
    # what no statement has rewritten has deleted rows, and entries that lead to them as soon as they are pruned
    conn.execute("SET cyclone.enabled = off")
    conn.execute("VACUUM t, u, p, m")
    checks.assert_clean(conn, "t", "u", "p", "m")


WRONG = {
    # what follows REPACK: the SQLSTATE, and what is said
    "(PARALLEL) t": ("42601", "PARALLEL option must be between 0 and 1024"),
    "(PARALLEL off) t": ("42601", "PARALLEL option must be between 0 and 1024"),
    "(PARALLEL 1.5) t": ("42601", "PARALLEL option must be between 0 and 1024"),
    "(PARALLEL -1) t": ("42601", "PARALLEL option must be between 0 and 1024"),
    "(PARALLEL 1025) t": ("42601", "PARALLEL option must be between 0 and 1024"),
    "(PARALLEL 2) t USING INDEX t_pkey": ("0A000", "REPACK option PARALLEL cannot be used with USING INDEX"),
    "(PARALLEL 0) u USING INDEX": ("0A000", "REPACK option PARALLEL cannot be used with USING INDEX"),
    "(PARALLEL 2) USING INDEX": ("0A000", "REPACK option PARALLEL cannot be used with USING INDEX"),
    "(PARALLEL 2, CONCURRENTLY) t": ("0A000", "REPACK option PARALLEL cannot be used with CONCURRENTLY"),
    "(CONCURRENTLY on, PARALLEL 0) t": ("0A000", "REPACK option PARALLEL cannot be used with CONCURRENTLY"),
    "(PARALLEL 2, ANALYZE) p": ("0A000", "cannot execute REPACK (ANALYZE) on multiple tables"),
}  # fmt: skip


def test_parallel_where_it_cannot_be(conn):
    make_menagerie(conn)
    before = filenodes(conn)["t"], filenodes(conn)["p1"]
    for statement, expected in WRONG.items():
        assert verdict(conn, f"REPACK {statement}")[:2] == expected, statement
    for where, expected in {
        "BEGIN; REPACK (PARALLEL 2) t": "REPACK (PARALLEL) cannot run inside a transaction block",
        "DO 'BEGIN REPACK (PARALLEL 2) t; END'": "REPACK (PARALLEL) cannot be executed from a function or procedure",
    }.items():
        assert verdict(conn, where)[:2] == ("25001", expected), where
        conn.execute("ROLLBACK")
    # what is wrong beside it is for the server to say
    for options in ("NONSENSE", "VERBOSE maybe", "ANALYZE 3", "CONCURRENTLY maybe"):
        expected = verdict(conn, f"REPACK ({options}) t")
        actual = verdict(conn, f"REPACK ({options}, PARALLEL 2) t")
        assert expected[0] != "accepted" and actual == expected, options
    for statement in ("() t (id)", "(ANALYZE)", "(CONCURRENTLY false, ANALYZE) p", "() nowhere", "() v"):
        expected = verdict(conn, f"REPACK {statement}".replace("() ", ""))
        actual = verdict(conn, "REPACK " + statement.replace(")", ", PARALLEL 2)", 1).replace("(, ", "("))
        assert expected[0] != "accepted" and actual[:4] == expected[:4], statement
    warning = 'WARNING: disabling parallel option of repack on "pg_depend" --- it is left to PostgreSQL'
    assert hear(conn, "REPACK (PARALLEL 2) pg_depend") == [warning] and hear(conn, "REPACK (PARALLEL 0) pg_depend") == []
    conn.execute("SET cyclone.enabled = off")
    assert verdict(conn, "REPACK (PARALLEL 2) t")[:2] == ("42601", 'unrecognized REPACK option "parallel"')
    assert (filenodes(conn)["t"], filenodes(conn)["p1"]) == before


def filenodes(conn) -> dict[str, int]:
    """Return the file of each relation in the database."""
    return dict(conn.execute("SELECT oid::regclass::text, pg_relation_filenode(oid) FROM pg_class WHERE relkind IN ('r', 'm', 'i', 't')"))


def rewritten(conn, statement: str) -> tuple[set[str], list[str]]:
    """Run a statement and return whose files it has changed, and the warnings."""
    before = filenodes(conn)
    said = hear(conn, statement)
    after = filenodes(conn)
    return {name for name in after if after[name] != before.get(name)}, [line for line in said if line.startswith("WARNING")]


def test_a_whole_database(cluster, db, conn):
    """The same tables as in PostgreSQL's, catalogs included, but for those that others have to themselves."""
    make_menagerie(conn)
    run_script(conn, MAKE_VERSIONS.replace(" t ", " big "))
    conn.execute("CREATE TEMP TABLE mine AS SELECT 1 AS id")
    before = content(conn, "big"), content(conn, "t")
    datfrozenxid = "SELECT datfrozenxid::text FROM pg_database WHERE datname = current_database()"
    old = conn.execute(datfrozenxid).fetchone()
    outcomes = []
    with cluster.connect(db) as other:
        other.execute("CREATE TEMP TABLE theirs AS SELECT 1 AS id")
        for enabled, statement in (("off", "REPACK"), ("on", "REPACK"), ("on", "REPACK (PARALLEL 2, VERBOSE)")):
            conn.execute(f"SET cyclone.enabled = {enabled}")
            outcomes.append(rewritten(conn, statement))
            assert conn.execute(datfrozenxid).fetchone() == old  # which is left to VACUUM
    assert outcomes[0] == outcomes[1] and outcomes[0][0] == outcomes[2][0]
    assert len(outcomes[2][1]) == 1 and 'parallel option of repack on "mine"' in outcomes[2][1][0]
    files, warnings = outcomes[0]
    assert {"t", "t_pkey", "p1", "p21", "m", "mine", "pg_class", "pg_attribute", "pg_database"} <= files
    assert "unfilled" not in files and not any("theirs" in name for name in files) and warnings == []
    assert (content(conn, "big"), content(conn, "t")) == before
    checks.assert_clean(conn, "big", "t", "p", "m")
    for catalog in ("pg_class", "pg_attribute"):  # which have changed since their turn
        assert checks.heap_corruption(conn, catalog) == checks.btree_corruption(conn, catalog) == []


def test_privileges(cluster, db, conn):
    """Which roles may do what: an error for a table that is named, a warning for one of several."""
    make_menagerie(conn)
    name = f"worker_of_{db}"
    conn.execute(f"CREATE ROLE {name}")
    conn.execute(f"GRANT MAINTAIN ON u, p, p21, m TO {name}")
    conn.execute(f"ALTER TABLE parent OWNER TO {name}")
    for target, fails in {"t": True, "u": False, "p": False, "p1": True, "p2": True, "p21": False, "m": False, "parent": False,
                          "child": True, "pg_class": True, "": False}.items():  # fmt: skip
        outcomes = []
        for enabled in ("off", "on"):
            conn.execute(f"RESET ROLE; SET cyclone.enabled = {enabled}; SET ROLE {name}")
            end = verdict(conn, f"REPACK {target}")
            outcomes.append((end, rewritten(conn, f"REPACK {target}") if end[0] == "accepted" else None))
        assert outcomes[0] == outcomes[1], target
        assert (outcomes[0][0][0] == "42501") == fails, target
    assert conn.execute("SELECT current_user").fetchone() == (name,)
    assert outcomes[0][1][0] >= {"u", "p21", "m", "parent"} and not {"t", "p1", "pg_class"} & outcomes[0][1][0]
    assert 'WARNING: permission denied to execute REPACK on "t", skipping it' in outcomes[0][1][1]


def test_temporary_tables(cluster, db, conn):
    """Those of others are an error; one's own are copied by one process, with a warning if more were asked for."""
    run_script(conn, MAKE_VERSIONS.replace("CREATE TABLE", "CREATE TEMP TABLE"))
    before = content(conn, "t")
    assert any("finished rewriting" in line for line in hear(conn, "REPACK (VERBOSE) t"))
    said = hear(conn, REPACK)
    assert 'WARNING: disabling parallel option of repack on "t" --- cannot repack temporary tables in parallel' in said
    assert content(conn, "t") == before
    checks.assert_clean(conn, "t")
    [(schema,)] = conn.execute("SELECT pg_my_temp_schema()::regnamespace::text")
    with cluster.connect(db) as other:
        verdicts = []
        for enabled in ("off", "on"):
            other.execute(f"SET cyclone.enabled = {enabled}")
            verdicts.append(verdict(other, f"REPACK {schema}.t"))
        assert verdicts[0] == verdicts[1] and verdicts[0][1] == "cannot execute REPACK on temporary tables of other sessions"


STATISTICS = """
    SELECT s.n_tup_ins, s.n_tup_upd, s.n_tup_del, s.n_live_tup, s.n_dead_tup, s.n_mod_since_analyze, s.n_ins_since_vacuum,
           s.last_vacuum IS NULL, s.vacuum_count, s.last_analyze IS NULL, s.analyze_count, c.reltuples, c.relpages, c.relallvisible,
           (SELECT array_agg(attname ORDER BY attname) FROM pg_stats WHERE tablename = s.relname)
    FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid WHERE s.relname = %s
"""


@pytest.mark.parametrize("statement", ["REPACK t", "REPACK (ANALYZE) t", "REPACK (ANALYZE, VERBOSE) t (id)"])
def test_statistics(conn, statement):
    """Counters, pg_class and what ANALYZE finds are as after PostgreSQL's; VERBOSE says the same, and more."""
    outcomes = []
    for enabled in ("off", "on"):
        run_script(conn, MAKE_VERSIONS)
        conn.execute("UPDATE t SET n = n + 1 WHERE id % 3 = 0")
        conn.execute("SELECT pg_stat_force_next_flush()")
        conn.execute(f"SET cyclone.enabled = {enabled}")
        # what ANALYZE says at its end has times in it
        said = [re.sub(r"\d+", "#", line) if "\n" in line else line for line in hear(conn, statement)]
        conn.execute("SELECT pg_stat_force_next_flush()")
        outcomes.append((conn.execute(STATISTICS, ("t",)).fetchall(), said))
        checks.assert_clean(conn, "t")
        conn.execute("DROP TABLE t")
    (expected, core_said), (actual, said) = outcomes
    assert actual == expected and len(expected) == 1
    ours = [line for line in said if "finished rewriting" in line]
    assert len(ours) == ("VERBOSE" in statement) and [line for line in said if line not in ours] == core_said


def test_what_verbose_says(cluster, db, conn, versions):  # noqa: F811
    """The lines of PostgreSQL's, with the same numbers, then ours."""
    with cluster.connect(db) as other:
        said = hear(other, "REPACK (VERBOSE, PARALLEL 2) t")
    assert said[0] == 'INFO: repacking "public.t" in physical order'
    assert re.fullmatch(r'INFO: "public\.t": found \d+ removable, \d+ nonremovable row versions in \d+ pages', said[1])
    assert said[-1].startswith(f'INFO: finished rewriting "{db}.public.t"\n')
    assert "\nparallel workers: 2 planned, 2 launched\n" in said[-1]
    # by the builds of VACUUM FULL
    assert "\nindex builds: 1 at once by " in said[-1]


def test_progress_is_shown(cluster, db, conn, versions):  # noqa: F811
    with Parked(cluster, db, "heap-copy:any", 3, REPACK, FAULT_SETTINGS) as repack:
        rows = conn.execute("SELECT role, phase, blocks_total FROM cyclone.progress WHERE datname = %s", (db,)).fetchall()
        assert sorted(role for role, _, _ in rows) == ["leader", "worker", "worker"]
        assert {phase for _, phase, _ in rows} == {"copying heap"}
        [(pid, command, phase, total)] = conn.execute(
            "SELECT pid, command, phase, heap_blks_total FROM pg_stat_progress_repack WHERE datname = %s", (db,)
        ).fetchall()
        assert (pid, command, phase, total) == (repack.pid, "REPACK", "seq scanning heap", rows[0][2])
        repack.finish()
    assert conn.execute("SELECT FROM pg_stat_progress_repack").fetchall() == []


@pytest.mark.parametrize("place, role, how", ends_of([place for place in PLACES if place.kind == "FULL"]))
def test_one_process_is_ended(cluster, conn, place, role, how):
    make_versions(conn)
    assert_ends_without_harm(cluster, conn, checks.table_state(conn, "t"), place, role, how, REPACK)


def test_each_of_several_tables_is_a_transaction(cluster, db, conn):
    """One that is cancelled later leaves those that are done; one that is dropped meanwhile is passed over."""
    make_menagerie(conn)
    conn.execute("CREATE TABLE q (id int) PARTITION BY LIST (id)")
    for number in (1, 2, 3):
        conn.execute(f"CREATE TABLE q{number} PARTITION OF q FOR VALUES IN ({number})")
        conn.execute("INSERT INTO q SELECT %s FROM generate_series(1, 1000)", (number,))
    before = filenodes(conn)
    waiting = "SELECT FROM pg_locks WHERE pid = %s AND relation = 'q2'::regclass AND NOT granted"
    for end in ("cancel", "drop"):
        with cluster.connect(db) as other:
            other.execute("BEGIN")
            # not the parent, which the statement locks first
            other.execute("LOCK ONLY q2 IN ACCESS EXCLUSIVE MODE")
            repack = Background(cluster, db, "REPACK (PARALLEL 1) q", FAULT_SETTINGS)
            wait_until(lambda: conn.execute(waiting, (repack.pid,)).fetchall(), "its wait for the second table")  # noqa: B023
            if end == "cancel":
                conn.execute("SELECT pg_cancel_backend(%s)", (repack.pid,))
                assert isinstance(repack.wait(), psycopg.errors.QueryCanceled)
                after = filenodes(conn)
                assert after["q1"] != before["q1"] and after["q2"] == before["q2"] and after["q3"] == before["q3"]
            else:
                other.execute("DROP TABLE q2")
                other.execute("COMMIT")
                repack.finish()
                assert filenodes(conn)["q3"] != before["q3"]
    assert conn.execute("SELECT count(*) FROM q").fetchone() == (2000,)
    checks.assert_clean(conn, "q")


def test_several_statements_at_once(cluster, db, conn):
    """One that comes first commits by itself, as VACUUM does; one that comes later is the server's, and fails with what follows."""
    make_menagerie(conn)
    with cluster.connect(db) as other:
        for first in (True, False):
            before = filenodes(conn)
            with pytest.raises(psycopg.errors.DivisionByZero), other.pipeline():
                if not first:
                    other.execute("INSERT INTO t VALUES (-1)")
                other.execute("REPACK t")
                other.execute("SELECT 1 / 0")
            assert (filenodes(conn)["t"] != before["t"]) == first
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (500,)
    checks.assert_clean(conn, "t")


def test_a_prepared_statement_is_run_again(conn):
    run_script(conn, MAKE_VERSIONS)
    before = content(conn, "t")
    for statement in ("REPACK (VERBOSE, PARALLEL 1) t", "REPACK (VERBOSE, ANALYZE) t (id)"):
        for _ in range(3):
            conn.execute(statement, prepare=True)
        assert conn.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement = %s", [statement]).fetchone() == (1,)
    assert content(conn, "t") == before
    checks.assert_clean(conn, "t")


def test_functions_in_indexes(conn):
    """They run as the owner, in a restricted context, and may do what they may in PostgreSQL's: analyze a table, for one."""
    make_menagerie(conn)
    outcomes = []
    for command in ("ANALYZE public.u", "REPACK public.u", "VACUUM public.u", "CREATE TEMP TABLE x ()", "SELECT count(*) FROM t"):
        for enabled in ("off", "on"):
            conn.execute("CREATE TABLE i (id int)")
            conn.execute("INSERT INTO i VALUES (1), (2)")
            conn.execute("CREATE OR REPLACE FUNCTION busy(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'")
            conn.execute("CREATE INDEX ON i (busy(id))")
            conn.execute(f"CREATE OR REPLACE FUNCTION work() RETURNS void LANGUAGE plpgsql AS $$BEGIN EXECUTE '{command}'; END$$")
            conn.execute("CREATE OR REPLACE FUNCTION busy(int) RETURNS int IMMUTABLE LANGUAGE plpgsql"
                         " AS $$BEGIN PERFORM public.work(); RETURN $1; END$$")  # fmt: skip
            conn.execute(f"SET cyclone.enabled = {enabled}")
            outcomes.append(verdict(conn, "REPACK i"))
            conn.execute("DROP TABLE i")
        assert outcomes[-1] == outcomes[-2], command
    assert {outcome[0] == "accepted" for outcome in outcomes} == {True, False}


@pytest.mark.parametrize("extension", sorted(NEIGHBOUR_CATALOGS))
@pytest.mark.parametrize("order", ["test_neighbours, pg_cyclone", "pg_cyclone, test_neighbours"], ids=["before", "after"])
def test_tables_of_other_libraries(prefix, new_cluster, order, extension):
    """A REPACK of a table that is distributed or divided goes on to the next library, and can't have PARALLEL."""
    build.install_test_module("test_neighbours", prefix)
    server = new_cluster(shared_preload_libraries=order, allow_system_table_mods="on")
    pretend(server, extension)
    catalog = {"citus": "pg_dist_partition VALUES ('shared', 'h')",
               "timescaledb": "_timescaledb_catalog.hypertable VALUES (1, 'public', 'shared')"}[extension]  # fmt: skip
    with server.connect(extension) as conn:
        conn.execute(f"INSERT INTO {catalog}")
        for table in ("own", "shared"):
            conn.execute(f"INSERT INTO {table} SELECT i, repeat('x', 100) FROM generate_series(1, 4000) i")
            conn.execute(f"DELETE FROM {table} WHERE id % 2 = 0")
        size = pages(conn, "shared"), pages(conn, "own")
        for target in ("shared", ""):
            for number in (0, 2):
                error = refusal(conn, f"REPACK (PARALLEL {number}) {target}")
                assert error.diag.message_primary.startswith("REPACK option PARALLEL cannot be used for")
        assert (pages(conn, "shared"), pages(conn, "own")) == size
        said = hear(conn, "REPACK (VERBOSE) shared")
        assert told(said, "watcher") == ["repack verbose"]
        assert any('leaving REPACK to the next library, as "shared" is' in line for line in said)
        assert not any("finished rewriting" in line for line in said)
        assert pages(conn, "shared") < size[0]
        said = hear(conn, "REPACK (VERBOSE, PARALLEL 1) own")
        assert any("finished rewriting" in line for line in said) and pages(conn, "own") < size[1]
        assert any("leaving REPACK" in line for line in hear(conn, "REPACK (VERBOSE)"))
        checks.assert_clean(conn, "own", "shared")


def test_the_history_has_it(conn):
    """One row a table that was rewritten here, when it is done or when it has failed; none of what the server did."""
    for name in ("public.t", "u"):
        conn.execute(f"CREATE TABLE {name} AS SELECT i AS id FROM generate_series(1, 3000) i")
        conn.execute(f"DELETE FROM {name} WHERE id % 2 = 0")

    def outcomes():
        return conn.execute(
            "SELECT relation_name, outcome, rows_removed FROM cyclone.history WHERE operation = 'REPACK'"
            " AND datname = current_database() AND relation_name LIKE 'public.%' ORDER BY id"
        ).fetchall()

    conn.execute("SET cyclone.debug_point = 'rewrite-swap:leader:error'")
    with pytest.raises(psycopg.errors.InternalError, match="debug point"):
        conn.execute("REPACK t")
    conn.execute("RESET cyclone.debug_point")
    conn.execute("REPACK pg_cast")
    conn.execute("VACUUM (FULL) pg_cast")
    assert outcomes() == [("public.t", "failed", None)]
    conn.execute("REPACK (ANALYZE) t")
    assert outcomes()[1:] == [("public.t", "done", 1500)]
    conn.execute("REPACK")
    assert sorted(outcomes()[2:]) == [("public.t", "done", 0), ("public.u", "done", 1500)]
    checks.assert_clean(conn, "t", "u")


def test_no_safe_snapshot_is_waited_for_with_a_lock(cluster, db, conn):
    """As in test_inplace.py: another session's transaction may wait for the table that is in hand."""
    conn.execute("CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 1000) i; CREATE TABLE u AS TABLE t")
    with Parked(cluster, db, "rewrite-begun:leader", 1, "REPACK", SAFE_SNAPSHOTS) as repack, cluster.connect(db) as other:
        other.execute("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT 1")
        repack.finish()
    checks.assert_clean(conn, "t", "u")


@pytest.mark.parametrize("step", ["shrink-build", "shrink-wait", "shrink-validate"])
def test_full_inplace_makes_way_for_repack_concurrently(cluster, db, conn, step):
    """REPACK (CONCURRENTLY) fails where an index is invalid, so FULL INPLACE drops its copy of an index before it makes way."""
    conn.execute("CREATE TABLE t AS SELECT i AS id, 'note' AS note FROM generate_series(1, 20000) i; ALTER TABLE t ADD PRIMARY KEY (id)")
    conn.execute("DELETE FROM t WHERE id % 10 > 0")
    before = content(conn, "t")
    with Parked(cluster, db, f"{step}:leader", 1, "VACUUM (FULL INPLACE) t") as compaction:
        repack = Background(cluster, db, "REPACK (CONCURRENTLY) t")
        waits = "SELECT FROM pg_locks WHERE pid = %s AND relation = 't'::regclass AND NOT granted"
        wait_until(lambda: conn.execute(waits, (repack.pid,)).fetchall() != [], "that it waits for the table")
        compaction.finish()
    repack.finish()
    assert conn.execute("SELECT FROM pg_index WHERE NOT indisvalid").fetchall() == []
    assert content(conn, "t") == before
    checks.assert_clean(conn, "t")


def test_a_slot_of_its_own_that_retains_wal_counts(cluster, db, conn):
    """REPACK (CONCURRENTLY) has places for slots behind those of all others; a VACUUM waits for room on disk for them, too."""
    conn.execute("CREATE TABLE r AS SELECT i AS id FROM generate_series(1, 1000) i; ALTER TABLE r ADD PRIMARY KEY (id)")
    conn.execute("CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 1000) i")
    slots = "SELECT FROM pg_replication_slots WHERE restart_lsn IS NOT NULL"
    with cluster.connect(db) as writer:
        writer.execute("BEGIN; SELECT txid_current()")  # REPACK waits for its end, and has made its slot
        repack = Background(cluster, db, "REPACK (CONCURRENTLY) r")
        wait_until(lambda: conn.execute(slots).fetchall(), "the slot")
        retain_wal(conn, slot=None)
        vacuum = Background(cluster, db, "VACUUM (PARALLEL 0) t", SHORT)
        wait_until(lambda: one(conn, HELD_BY_DISK) > 0, "the wait")
        held_by = pace_of(conn, vacuum.pid)["held_by"]
        writer.execute("ROLLBACK")
    repack.finish()
    vacuum.finish()
    assert held_by == "slot"
    checks.assert_clean(conn, "r", "t")
