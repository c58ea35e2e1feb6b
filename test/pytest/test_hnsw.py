"""HNSW indexes of pgvector: after each VACUUM all live rows are in the graph, no others, each can be reached, and no link leads to what is
gone; with any operator class, beside insertions and searches, after errors and crashes, and on a standby.

Run only where CYCLONE_PGVECTOR says where pgvector's source is: see cyclone_lab/pgvector.py.
"""

import os
import re
import signal
import struct
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, made_once
from cyclone_lab import checks, hnsw, pgvector
from cyclone_lab.background import Background, Parked, heard, wait_until
from cyclone_lab.postgres import hand_over, run_program
from long_runs.proof import wait_for_restart
from test_corruption import damageable, tuple_at
from test_wraparound import BURN, FAILSAFE_AGE, FAILSAFE_CONFIG, burn_until_age

ROWS = 1500
TEAM = {"min_parallel_index_scan_size": 0, "min_parallel_table_scan_size": 0, "max_parallel_maintenance_workers": 4}
# The passes over an index, by their debug points
PASSES = ("hnsw-remove", "hnsw-repair", "hnsw-walk", "hnsw-link", "hnsw-mark")
NUMBERS = "SELECT string_agg((1 + hashint8(i * 1000 + d) % 1000)::text, ',') FROM generate_series(1, {0}) d"
VECTOR = f"('[' || ({NUMBERS}) || ']')"
# By operator class: the type, its value for the number i, and options of the index
CLASSES = {
    "vector_l2_ops": ("vector(12)", VECTOR.format(12), "m = 4, ef_construction = 16"),
    "vector_ip_ops": ("vector(12)", VECTOR.format(12), "m = 4, ef_construction = 16"),
    "vector_cosine_ops": ("vector(12)", VECTOR.format(12), "m = 16"),
    "vector_l1_ops": ("vector(12)", VECTOR.format(12), "m = 2, ef_construction = 4"),
    "halfvec_l2_ops": ("halfvec(12)", VECTOR.format(12), "m = 4, ef_construction = 16"),
    "halfvec_cosine_ops": ("halfvec(12)", VECTOR.format(12), "m = 4, ef_construction = 16"),
    "bit_hamming_ops": ("bit(64)", "(hashint8extended(i, 0)::bit(64))", "m = 4, ef_construction = 16"),
    "bit_jaccard_ops": ("bit(64)", "(hashint8extended(i, 0)::bit(64))", "m = 4, ef_construction = 16"),
    "sparsevec_l2_ops": (
        "sparsevec(100)",
        "('{1:' || i % 7 + 1 || ',' || i % 40 + 2 || ':' || i % 11 + 1 || ',' || i % 50 + 45 || ':' || i || '}/100')",
        "m = 4, ef_construction = 16",
    ),
    "sparsevec_cosine_ops": ("sparsevec(100)", "('{1:' || i % 7 + 1 || ',' || i % 40 + 2 || ':' || i || '}/100')", "m = 4, ef_construction = 16"),
    # an element and its list don't fit on a page
    "wide vector_l2_ops": (
        "vector(1990)",
        "array_cat(ARRAY(SELECT hashint8(i * 1000 + d) % 100 FROM generate_series(1, 40) d), array_fill(i, ARRAY[1950]))",
        "m = 8",
    ),
}
DELETIONS = {
    "a tenth": "i % 10 = 3",
    "half": "hashint8(i) % 2 = 0",
    "the oldest": "i < 500",
    "nearly all": "i % 100 <> 0",
    "all": "true",
    "one": "i = 700",
}


@pytest.fixture(scope="module", autouse=True)
def version(prefix):
    """The version of pgvector, which is installed."""
    return pgvector.install(prefix)


@pytest.fixture(scope="module")
def made(cluster, version):
    """A database with the extension."""
    with made_once(cluster, "made_hnsw", lambda conn: conn.execute("CREATE EXTENSION vector")):
        yield


@pytest.fixture
def template(made):
    return "made_hnsw"


def make_table(conn, opclass: str = "vector_l2_ops", rows: int = ROWS, persistence: str = "", table: str = "t") -> None:
    """A table with numbers and vectors, some of which are null, and some the same."""
    kind, value, options = CLASSES[opclass]
    # pgvector's own workers leave double links where two of them put in neighbours at the same time
    conn.execute(f"CREATE {persistence} TABLE {table} (i int, v {kind}) WITH (autovacuum_enabled = off, parallel_workers = 0)")
    conn.execute(f"ALTER TABLE {table} ALTER v SET STORAGE external")
    conn.execute(f"CREATE INDEX {table}_v ON {table} USING hnsw (v {opclass.split()[-1]}) WITH ({options})")
    insert(conn, 1, rows, opclass, table)
    conn.execute(f"INSERT INTO {table} SELECT i, NULL FROM generate_series(-20, -1) i")
    conn.execute(f"INSERT INTO {table} SELECT t.i + 100000, t.v FROM {table} t, generate_series(1, 13) WHERE t.i = 8")


def insert(conn, first: int, last: int, opclass: str = "vector_l2_ops", table: str = "t") -> None:
    kind, value, _ = CLASSES[opclass]
    conn.execute(f"INSERT INTO {table} SELECT i, {value}::{kind} FROM generate_series({first}, {last}) i")


def assert_right(conn, table: str = "t") -> None:
    checks.assert_vacuumed(conn, table)
    assert hnsw.problems(conn, table, f"{table}_v") == []


def report(conn, statement: str) -> str:
    return "\n".join(heard(conn, statement))


@pytest.fixture
def team(conn):
    for name, value in TEAM.items():
        conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
    return conn


@pytest.mark.parametrize("opclass", CLASSES)
def test_each_operator_class(team, opclass):
    rows = 250 if "wide" in opclass else ROWS
    make_table(team, opclass, rows)
    for number, workers in enumerate((2, 0, 1)):
        team.execute(f"DELETE FROM t WHERE hashint8(i) % 5 = {number}")
        text = report(team, f"VACUUM (PARALLEL {workers}, VERBOSE) t")
        assert 'index "t_v": elements: ' in text
        assert_right(team)
        insert(team, 10000 * (number + 1), 10000 * (number + 1) + rows // 5, opclass)
    # what it leaves is what pgvector's own VACUUM expects, and the other way round
    for enabled in ("off", "on"):
        team.execute("DELETE FROM t WHERE i % 6 = 1" if enabled == "off" else "DELETE FROM t WHERE i % 6 = 2")
        team.execute(f"SET cyclone.enabled = {enabled}")
        team.execute("VACUUM t")
        assert hnsw.problems(team, "t", "t_v", reachable=enabled == "on") == []


@pytest.mark.parametrize("deletion", DELETIONS)
@pytest.mark.parametrize("workers", [0, 3])
def test_each_deletion(team, deletion, workers):
    make_table(team)
    team.execute(f"DELETE FROM t WHERE {DELETIONS[deletion]}")
    team.execute(f"VACUUM (PARALLEL {workers}, INDEX_CLEANUP on) t")
    assert_right(team)
    pages = team.execute("SELECT pg_relation_size('t_v')").fetchone()
    insert(team, 20000, 20000 + ROWS // 2)
    if deletion in ("nearly all", "all"):  # the room is used again
        assert team.execute("SELECT pg_relation_size('t_v')").fetchone() == pages
    team.execute("DELETE FROM t WHERE i % 3 = 0")
    team.execute(f"VACUUM (PARALLEL {workers}, INDEX_CLEANUP on) t")
    assert_right(team)


def test_entry_points_that_die_one_after_the_other(team):
    make_table(team)
    for _ in range(12):
        graph = hnsw.read(team, "t_v")
        block, offset = graph.rows[graph.numbers([graph.entry])[0]][0]
        team.execute(f"DELETE FROM t WHERE v = (SELECT v FROM t WHERE ctid = '({block},{offset})')")
        team.execute("VACUUM (PARALLEL 2, INDEX_CLEANUP on) t")
        assert_right(team)


def test_only_lists_near_dead_elements_are_written(team):
    """Of elements none of whose neighbours died, only those that repaired ones are to be led to from."""
    make_table(team, "vector_cosine_ops", rows=3000)
    before = hnsw.read(team, "t_v")
    team.execute("DELETE FROM t WHERE i = 77")
    text = report(team, "VACUUM (INDEX_CLEANUP on, VERBOSE) t")
    repaired = int(re.search(r"elements: 1 dead, (\d+) repaired", text)[1])
    after = hnsw.read(team, "t_v")
    lists = [{(number, place) for number, place in zip(graph.source.tolist(), graph.target.tolist(), strict=True)} for graph in (before, after)]
    changed = {number for number, _ in lists[0] ^ lists[1]}
    assert (before.place == after.place).all() and repaired < 500
    assert 0 < len(changed) <= 3 * repaired + 1
    assert_right(team)


def test_the_graph_is_searched_where_many_neighbours_die(team):
    make_table(team, rows=3000)
    for deleted, few in (("hashint8(i) % 2 = 0", False), ("i = (SELECT max(i) FROM t)", True)):
        team.execute(f"DELETE FROM t WHERE {deleted}")
        text = report(team, "VACUUM (INDEX_CLEANUP on, VERBOSE) t")
        repaired, searches = map(int, re.search(r"dead, (\d+) repaired, (\d+) searches", text).groups())
        assert (searches < repaired / 2) == few
        assert_right(team)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_long_graph(team, workers):
    """Along a line there are many links from one end to the other. All that can be reached is found to be so."""
    team.execute("CREATE TABLE t (i int, v vector(2)) WITH (autovacuum_enabled = off)")
    team.execute("CREATE INDEX t_v ON t USING hnsw (v vector_l2_ops) WITH (m = 2, ef_construction = 8)")
    team.execute("INSERT INTO t SELECT i, format('[%s,0]', i)::vector FROM generate_series(1, 8000) i")
    team.execute("DELETE FROM t WHERE i % 10 = 0")
    text = report(team, f"VACUUM (PARALLEL {workers}, VERBOSE) t")
    assert int(re.search(r"(\d+) linked anew", text)[1]) < 50
    assert_right(team)


@pytest.mark.parametrize("workers", [0, 2])
def test_gaps_in_lists(prefix, pg_major, version, workers):
    """An insertion leaves one in a list that becomes shorter meanwhile. What only links behind them lead to is linked anew."""

    def make_gaps(page: bytearray) -> None:
        for number in range(1, (struct.unpack_from("<H", page, 12)[0] - 24) // 4 + 1):
            at = tuple_at(page, number)
            if page[at] == hnsw.LIST:
                second = at + hnsw.LINKS_AT + hnsw.TID_SIZE * (struct.unpack_from("<H", page, at + 2)[0] - 7)  # of 8 on layer 0
                page[second : second + hnsw.TID_SIZE] = bytes(hnsw.TID_SIZE)

    with damageable(prefix, pg_major, {**CONFIG, **TEAM}) as cluster:
        with cluster.connect(TEMPLATE) as conn:
            conn.execute("CREATE EXTENSION vector")
            make_table(conn)
            conn.execute("CHECKPOINT")
            [(path,)] = conn.execute("SELECT pg_relation_filepath('t_v')")
        cluster.stop()
        with open(cluster.data / path, "r+b") as file:
            pages = [bytearray(page) for page in iter(lambda: file.read(8192), b"")]
            for page in pages[1:]:
                make_gaps(page)
            file.seek(0)
            file.write(b"".join(pages))
        cluster.start()
        with cluster.connect(TEMPLATE) as conn:
            assert len(hnsw.read(conn, "t_v").unreachable()) > 100
            conn.execute("DELETE FROM t WHERE i = 700")
            conn.execute(f"VACUUM (PARALLEL {workers}, INDEX_CLEANUP on) t")
            assert_right(conn)


def test_rounds_of_deletions_and_insertions(team):
    """Slots are used again and again; links never lead to what was there before."""
    make_table(team)
    for number in range(8):
        team.execute(f"DELETE FROM t WHERE hashint8(i + {number}) % 4 = 0")
        team.execute(f"VACUUM (PARALLEL {number % 3}, INDEX_CLEANUP on) t")
        assert_right(team)
        insert(team, 10000 * number + 30000, 10000 * number + 30000 + ROWS // 4)


def test_searches_find_what_is_there(team):
    make_table(team)
    team.execute("DELETE FROM t WHERE hashint8(i) % 2 = 0")
    team.execute("VACUUM (PARALLEL 2) t")
    team.execute("SET hnsw.ef_search = 200; SET enable_seqscan = off")
    queries = [text for (text,) in team.execute("SELECT v::text FROM t WHERE i BETWEEN 1 AND 200")]
    found = [team.execute("SELECT i FROM t ORDER BY v <-> %s::vector LIMIT 1", (query,)).fetchone()[0] for query in queries]
    assert len(queries) > 50
    there = [i for (i,) in team.execute("SELECT i FROM t WHERE i BETWEEN 1 AND 200")]
    assert sum(a == b for a, b in zip(found, there, strict=True)) > 0.95 * len(there)


@pytest.mark.parametrize("point", PASSES)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_each_pass(team, point, workers):
    make_unreachable(team)
    team.execute("DELETE FROM t WHERE hashint8(i) % 3 = 0")
    team.execute(f"SET cyclone.debug_point = '{point}:any:error'")
    with pytest.raises(psycopg.Error, match="debug point"):
        team.execute(f"VACUUM (PARALLEL {workers}, INDEX_CLEANUP on) t")
    team.execute("RESET cyclone.debug_point")
    assert_nothing_dead_is_found(team)
    insert(team, 40000, 40100)
    team.execute(f"VACUUM (PARALLEL {workers}, INDEX_CLEANUP on) t")
    assert_right(team)


def make_unreachable(conn) -> None:
    """With so few links some elements lose all that lead to them, so that there is work in each pass."""
    make_table(conn, "vector_l1_ops")


def assert_nothing_dead_is_found(conn) -> None:
    """No link of a live element leads to a slot that is free, and searches return rows that are there."""
    graph = hnsw.read(conn, "t_v")
    target = graph.numbers(graph.target)
    assert (target >= 0).all() and not graph.deleted[target[graph.live()[graph.source]]].any()
    conn.execute("SET enable_seqscan = off; SET hnsw.ef_search = 1000")
    rows = conn.execute("SELECT i FROM t ORDER BY v <+> (SELECT v FROM t WHERE i = 500) LIMIT 1000").fetchall()
    conn.execute("RESET enable_seqscan")
    conn.execute("SET enable_indexscan = off")
    assert len(rows) > 100 and {*rows} <= {*conn.execute("SELECT i FROM t")}
    conn.execute("RESET enable_indexscan")


@pytest.mark.parametrize("point", PASSES)
def test_a_cancel_in_each_pass(cluster, db, team, point):
    make_unreachable(team)
    team.execute("DELETE FROM t WHERE hashint8(i) % 3 = 0")
    with Parked(cluster, db, f"{point}:any", 1, "VACUUM (PARALLEL 2, INDEX_CLEANUP on) t", TEAM) as vacuum:
        team.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
        assert isinstance(vacuum.wait(), psycopg.errors.QueryCanceled)
    assert_nothing_dead_is_found(team)
    team.execute("VACUUM (PARALLEL 2, INDEX_CLEANUP on) t")
    assert_right(team)


@pytest.mark.parametrize("point", PASSES)
@pytest.mark.parametrize("victim", ["leader", "worker"])
def test_a_kill_in_each_pass_and_a_standby(new_cluster, version, point, victim):
    """A crash; after recovery, and on a standby, each page is as it was written. The next VACUUM ends the work."""
    primary = new_cluster(wal_consistency_checking="generic", max_wal_size="4GB", wal_keep_size="2GB", **TEAM)
    with ExitStack() as stack:
        with primary.connect(TEMPLATE) as conn:
            conn.execute("CREATE EXTENSION vector")
            make_unreachable(conn)
            conn.execute("DELETE FROM t WHERE hashint8(i) % 3 = 0")
        standby = stack.enter_context(primary.standby({"hot_standby_feedback": "off"}))
        standby.start()
        # few blocks are left for the links, so perhaps only one process comes there
        both = 1 if point == "hnsw-link" else 2
        with Parked(primary, TEMPLATE, f"{point}:any", both, "VACUUM (PARALLEL 1, INDEX_CLEANUP on) t") as vacuum:
            victims = [*vacuum.workers, vacuum.pid] if victim == "worker" else [vacuum.pid]
            os.kill(victims[0], signal.SIGKILL)
            vacuum.wait()
        wait_until(lambda: "reinitializing" in primary.log, "the crash")
        wait_for_restart(primary)
        with primary.connect(TEMPLATE) as conn:
            assert_nothing_dead_is_found(conn)
            insert(conn, 40000, 40100, "vector_l1_ops")
            conn.execute("VACUUM (PARALLEL 2, INDEX_CLEANUP on) t")
            assert_right(conn)
        standby.wait_for_replay(primary)
        with standby.connect(TEMPLATE) as conn:
            assert hnsw.problems(conn, "t", "t_v") == []
        for server in (primary, standby):
            assert "inconsistent page" not in server.log and "PANIC" not in server.log and "TRAP" not in server.log


@pytest.mark.once
def test_the_failsafe_leaves_the_graph_as_it_is(new_cluster, version):
    cluster = new_cluster(autovacuum="off", **FAILSAFE_CONFIG, **TEAM)
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE EXTENSION vector")
        conn.execute(BURN)
        make_unreachable(conn)
        conn.execute("DELETE FROM t WHERE hashint8(i) % 3 = 0")
        burn_until_age(conn, "t", FAILSAFE_AGE - 200)
        statement = "VACUUM (SKIP_DATABASE_STATS, PROCESS_TOAST off, VERBOSE, PARALLEL 2, INDEX_CLEANUP on) t"
        with Parked(cluster, TEMPLATE, "hnsw-repair:any", 1, statement) as vacuum:
            conn.execute("CALL burn(1000)")
            assert "\n".join(vacuum.finish()).count("as a failsafe") == 1
        graph = hnsw.read(conn, "t_v")
        assert not graph.deleted.any() and not all(graph.rows)
        assert_nothing_dead_is_found(conn)
        conn.execute("SET vacuum_failsafe_age = 2000000000; DELETE FROM t WHERE i = 700")
        conn.execute("VACUUM (PARALLEL 2, INDEX_CLEANUP on) t")
        assert_right(conn)


@pytest.mark.parametrize("point", PASSES)
def test_insertions_and_searches_in_each_pass(cluster, db, team, point):
    """They wait for nothing but each other, and what comes meanwhile is part of the graph."""
    make_unreachable(team)
    team.execute("DELETE FROM t WHERE hashint8(i) % 3 = 0")
    with Parked(cluster, db, f"{point}:any", 1, "VACUUM (PARALLEL 2, INDEX_CLEANUP on) t", TEAM) as vacuum:
        team.execute("SET statement_timeout = '60s'")
        insert(team, 50000, 50100, "vector_l1_ops")
        team.execute("DELETE FROM t WHERE i BETWEEN 600 AND 700")
        assert_nothing_dead_is_found(team)
        vacuum.finish()
    # but for what was deleted since, and as an insertion may take a link that led to an element
    assert [problem for problem in hnsw.problems(team, "t", "t_v", reachable=False) if "and gone" not in problem] == []
    team.execute("VACUUM (INDEX_CLEANUP on) t")
    assert_right(team)


def test_all_rows_die_while_others_come(cluster, db, team):
    make_table(team)
    team.execute("DELETE FROM t")
    for point in ("hnsw-remove", "hnsw-repair", "hnsw-mark"):
        with Parked(cluster, db, f"{point}:any", 1, "VACUUM (PARALLEL 2, INDEX_CLEANUP on) t", TEAM) as vacuum:
            insert(team, 1, 40)
            vacuum.finish()
        assert_right(team)
        team.execute("DELETE FROM t")
    team.execute("VACUUM (INDEX_CLEANUP on) t")
    assert_right(team)


def test_beside_sessions_that_insert_delete_and_search(cluster, db, team):
    make_table(team)
    load = """
        DO $$ DECLARE n int; BEGIN
            PERFORM set_config('enable_seqscan', 'off', false), set_config('hnsw.iterative_scan', 'relaxed_order', false);
            FOR r IN 1..60 LOOP
                INSERT INTO t SELECT r * 1000 + {0} * 100000 + i, {1}::vector FROM generate_series(1, 20) i;
                DELETE FROM t WHERE i % 60 = r AND hashint8(i) % 2 = {0} % 2;
                BEGIN
                    SELECT count(*) INTO n FROM (SELECT FROM t ORDER BY v <-> (SELECT v FROM t WHERE v IS NOT NULL LIMIT 1) LIMIT 300) x;
                EXCEPTION WHEN internal_error THEN -- an iterative search may come back to one, beside pgvector's own VACUUM, too
                    IF SQLERRM <> 'cannot load deleted element' THEN RAISE; END IF;
                END;
                COMMIT;
            END LOOP;
        END $$"""
    sessions = [Background(cluster, db, load.format(number, VECTOR.format(12))) for number in range(1, 4)]
    while any(session.running for session in sessions):
        team.execute("VACUUM (PARALLEL 2, INDEX_CLEANUP on) t")
    for session in sessions:
        session.finish()
    team.execute("VACUUM (PARALLEL 2, INDEX_CLEANUP on) t")
    team.execute("DELETE FROM t WHERE i % 50 = 7")
    team.execute("VACUUM (PARALLEL 2, INDEX_CLEANUP on) t")
    assert_right(team)


def test_several_indexes_and_other_kinds(team):
    make_table(team)
    team.execute("CREATE INDEX t_v2 ON t USING hnsw (v vector_cosine_ops); CREATE INDEX ON t (i)")
    team.execute("CREATE INDEX t_part ON t USING hnsw (v vector_l2_ops) WHERE i > 300")
    team.execute("CREATE INDEX ON t USING ivfflat (v vector_l2_ops) WITH (lists = 10)")
    team.execute("DELETE FROM t WHERE hashint8(i) % 3 = 0")
    team.execute("VACUUM (PARALLEL 3) t")
    assert_right(team)
    assert hnsw.problems(team, "t", "t_v2") == []
    assert not [problem for problem in hnsw.problems(team, "t", "t_part") if "isn't in the index" not in problem]


@pytest.mark.parametrize("persistence", ["UNLOGGED", "TEMP"])
def test_tables_without_wal(team, persistence):
    make_table(team, persistence=persistence)
    team.execute("DELETE FROM t WHERE hashint8(i) % 3 = 0")
    team.execute("VACUUM (INDEX_CLEANUP on) t")
    if persistence == "UNLOGGED":
        assert_right(team)
    assert team.execute("SELECT count(*) FROM (SELECT FROM t ORDER BY v <-> (SELECT v FROM t WHERE v IS NOT NULL LIMIT 1) LIMIT 10) x").fetchone() == (10,)


@pytest.mark.parametrize(
    "change, reason",
    [
        ("ALTER EXTENSION vector DROP FUNCTION hnswhandler(internal)", "its access method isn't pgvector's"),
        ("ALTER FUNCTION vector_l2_squared_distance(vector, vector) PARALLEL UNSAFE", "its operator class isn't like those of pgvector 0.8"),
    ],
)
def test_what_is_not_known_is_left_to_pgvector(team, change, reason):
    make_table(team)
    team.execute(change)
    team.execute("DELETE FROM t WHERE hashint8(i) % 3 = 0")
    text = report(team, "VACUUM (PARALLEL 2, VERBOSE, INDEX_CLEANUP on) t")
    assert f'index "t_v" is left to its access method\'s own routine: {reason}' in text
    assert "elements:" not in text
    # nobody looks at an index that isn't to be vacuumed
    assert "left to" not in report(team, "VACUUM (VERBOSE, INDEX_CLEANUP off) t")
    assert hnsw.problems(team, "t", "t_v", reachable=False) == []


def test_another_version_of_the_library_is_left_to_pgvector(cluster, db, team, prefix, pg_major, version):
    """Another package's file, before ALTER EXTENSION. To PostgreSQL 17 a library says nothing, so what is installed counts."""
    make_table(team)
    team.execute("DELETE FROM t WHERE hashint8(i) % 3 = 0")
    folder = Path(tempfile.mkdtemp(dir=cluster.data))
    library = (Path(run_program(prefix, "pg_config", "--pkglibdir").stdout.strip()) / "vector.so").read_bytes()
    other = library.replace(version.encode() + b"\0", b"0.9" + version.encode()[3:] + b"\0")
    assert other != library or pg_major == 17
    (folder / "vector.so").write_bytes(other)
    for path in (folder, folder / "vector.so"):
        hand_over(path)
    team.execute("UPDATE pg_proc SET probin = %s WHERE probin = '$libdir/vector'", (str(folder / "vector"),))
    with cluster.connect(db) as conn:
        text = report(conn, "VACUUM (VERBOSE, INDEX_CLEANUP on) t")
        assert ("own routine: this version of pgvector isn't known" in text) == (pg_major > 17) == ("elements:" not in text)
        assert hnsw.problems(conn, "t", "t_v", reachable=False) == []


@pytest.mark.parametrize("fault, found", [("hnsw-rows", "one is still there"), ("hnsw-links", "this one does")])
@pytest.mark.parametrize("workers", [0, 2])
def test_audits_find_what_is_wrong(team, fault, found, workers):
    make_table(team)
    team.execute("DELETE FROM t WHERE hashint8(i) % 3 = 0")
    dead = checks.table_state(team, "t")["dead_items"]
    team.execute(f"SET cyclone.audit = 1; SET cyclone.debug_fault = '{fault}'")
    with pytest.raises(psycopg.errors.DataCorrupted, match='relation "t_v"') as error:
        team.execute(f"VACUUM (PARALLEL {workers}, INDEX_CLEANUP on) t")
    assert found in error.value.diag.message_detail
    # no item has become unused
    team.execute("RESET cyclone.debug_fault; SELECT cyclone.autovacuum_reset('t'); REINDEX INDEX t_v")
    assert checks.table_state(team, "t")["dead_items"] > dead
    team.execute("VACUUM (INDEX_CLEANUP on) t")
    checks.assert_vacuumed(team, "t")
    assert hnsw.problems(team, "t", "t_v", reachable=False) == []


def test_how_much_of_an_index_is_deleted_elements(team):
    def told() -> tuple[int, ...]:
        query = "SELECT size, live_bytes, dead_bytes, rewrite_size FROM cyclone.estimate_bloat('t', 5000) WHERE relation = 't_v'::regclass"
        return team.execute(query).fetchone()

    make_table(team, "vector_cosine_ops")
    size, live, dead, rewritten = told()
    assert live > size / 2 and dead == 0 and rewritten == size
    team.execute("DELETE FROM t WHERE i % 2 = 0")
    team.execute("VACUUM (PARALLEL 2) t")
    _, then, dead, rewritten = told()
    assert then + dead == live and 0.4 * live < dead < 0.6 * live
    team.execute("REINDEX INDEX t_v")
    assert abs(told()[0] - rewritten) <= 0.1 * size
