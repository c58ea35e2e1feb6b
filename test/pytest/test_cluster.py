"""VACUUM of tables that are on several nodes: what is sent to each, and what a node makes of it.

The nodes are a stand-in for Citus, in SQL: its catalog, and a function that says which command it would run where, and answers
what the test wants. The commands that a node gets are tried here, too. Citus itself is in test_citus.py.
"""

import json
import os
import re
import socket
import threading

import psycopg
import pytest
from psycopg import sql

from cyclone_lab import checks
from cyclone_lab.background import Background, wait_until

ROWS = 4000
STAND_IN = """
    SET allow_system_table_mods = on;
    INSERT INTO pg_extension SELECT 77777, 'citus', 10, oid, false, '1' FROM pg_namespace WHERE nspname = 'public';
    CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass);
    CREATE TABLE pg_catalog.pg_dist_shard (logicalrelid regclass, shardid bigint);
    CREATE TABLE pg_catalog.pg_dist_placement (shardid bigint, shardstate int DEFAULT 1, groupid int);
    CREATE TABLE pg_catalog.pg_dist_node
        (groupid int, nodename text, nodeport int, noderole text DEFAULT 'primary', isactive bool DEFAULT true);
    CREATE TABLE pg_catalog.pg_dist_local_group (groupid int);
    INSERT INTO pg_catalog.pg_dist_local_group VALUES (0);
    INSERT INTO pg_catalog.pg_dist_node VALUES (0, 'host', 9700), (1, 'host', 9701), (2, 'host', 9702);
    CREATE FUNCTION pg_catalog.shard_name(t regclass, id bigint) RETURNS text LANGUAGE sql AS
        $$ SELECT quote_ident(relname || '_' || id) FROM pg_class WHERE oid = t $$;
    CREATE FUNCTION pg_catalog.asked_yet() RETURNS bool LANGUAGE sql AS
        $$ SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND pid = pg_backend_pid()) $$;
    CREATE TABLE answers (port int PRIMARY KEY, success bool, result text);
    -- a node that has no answer has vacuumed all it was asked to
    CREATE FUNCTION pg_catalog.master_run_on_worker(names text[], ports int[], commands text[], parallel bool,
        OUT node_name text, OUT node_port int, OUT success bool, OUT result text) RETURNS SETOF record LANGUAGE plpgsql AS $$
    BEGIN
        FOR i IN 1 .. cardinality(ports) LOOP
            RAISE NOTICE 'sent % %', ports[i], commands[i];
            PERFORM pg_advisory_lock(4711); -- asked_yet() from now on
            node_name := names[i];
            node_port := ports[i];
            SELECT a.success, a.result INTO success, result FROM public.answers a WHERE a.port = ports[i];
            IF NOT FOUND THEN
                success := true;
                SELECT json_build_object('failed', false, 'not_kept', 0, 'messages', '[]'::json, 'shards',
                                         json_agg(json_build_object('status', 'vacuumed', 'before', 200, 'after', 100)))
                INTO result FROM regexp_matches(substring(commands[i] FROM 'ARRAY.*'), '''(public|"a b")', 'g');
            END IF;
            RETURN NEXT;
        END LOOP;
        PERFORM pg_advisory_lock_shared(4712), pg_advisory_unlock_shared(4712); -- work() is going on
    END $$;
    """


class Said(list):
    """What the server has said to a client."""

    def __init__(self, conn):
        super().__init__()
        conn.add_notice_handler(lambda notice: self.append(f"{notice.severity}: {notice.message_primary}"))

    def commands(self) -> dict[int, str]:
        """Return the commands that were sent since the last call, by the node's port."""
        sent = [re.fullmatch(r"NOTICE: sent (\d+) (.*)", line, re.DOTALL) for line in self]
        self[:] = [line for line, match in zip(self, sent, strict=True) if not match]
        found = [match for match in sent if match]
        assert len({match[1] for match in found}) == len(found), "a node got two commands"
        return {int(match[1]): match[2] for match in found}

    def warnings(self) -> list[str]:
        return [line.partition(": ")[2] for line in self if line.startswith("WARNING")]


def distribute(conn, table: str, **shards: int) -> None:
    """Enter a table in the catalog, with shards named like s102008 and the groups of their nodes."""
    conn.execute("INSERT INTO pg_dist_partition VALUES (%s::regclass)", (table,))
    for shard, group in shards.items():
        place(conn, table, int(shard[1:]), group)


def place(conn, table: str, shard: int, group: int) -> None:
    conn.execute("INSERT INTO pg_dist_shard SELECT %s::regclass, %s", (table, shard))
    conn.execute("INSERT INTO pg_dist_placement (shardid, groupid) VALUES (%s, %s)", (shard, group))


def answer(conn, port: int, shards: list[dict], messages: list[dict] | None = None, *, failed: bool = False) -> None:
    result = {"failed": failed, "not_kept": 0, "shards": shards, "messages": messages or []}
    conn.execute("INSERT INTO answers VALUES (%s, true, %s)", (port, json.dumps(result)))


@pytest.fixture
def said(conn):
    """The notices of a database in which two tables are distributed over nodes 9701 and 9702."""
    conn.execute(STAND_IN)
    conn.execute("CREATE TABLE t (id int, note text); CREATE TABLE r (id int); CREATE TABLE own (id int PRIMARY KEY, note text)")
    distribute(conn, "t", s101=1, s102=2, s103=1)
    distribute(conn, "r", s201=1)
    for group in (0, 2):
        conn.execute("INSERT INTO pg_dist_placement (shardid, groupid) VALUES (201, %s)", (group,))
    return Said(conn)


@pytest.mark.parametrize(
    "options, sent",
    [
        ("FULL INPLACE, LATENCY_TARGET '20ms', PARALLEL 2, VERBOSE", "full 'inplace', latency_target '20ms', parallel 2, verbose"),
        ("LATENCY_TARGET 1.5", "latency_target 1.5"),
        ("LATENCY_TARGET auto, INDEX_CLEANUP off, SKIP_LOCKED", "latency_target 'auto', index_cleanup 'off', skip_locked"),
        ("FULL, PARALLEL 1", "full, parallel 1"),
        ("FULL REWRITE, LATENCY_TARGET 5", "full 'rewrite', latency_target 5"),
    ],
)
def test_each_node_gets_one_command(conn, said, options, sent):
    conn.execute(f"VACUUM ({options}) t")
    quoted = sent.replace("'", "''")
    assert said.commands() == {
        9701: f"CALL cyclone.vacuum_node('{quoted}', ARRAY['public.t_101', 'public.t_103']::text[], NULL)",
        9702: f"CALL cyclone.vacuum_node('{quoted}', ARRAY['public.t_102']::text[], NULL)",
    }
    if "VERBOSE" in options:
        assert said[-1] == "INFO: vacuumed 3 of 3 shards on 2 nodes, from 600 to 300 bytes"
        assert len(said) == 1


def test_reference_tables_partitions_columns_and_names(conn, said):
    conn.execute('CREATE TABLE p (id int, "no te" text) PARTITION BY RANGE (id)')
    conn.execute('CREATE SCHEMA "a b"; CREATE TABLE "a b"."P 1" PARTITION OF p FOR VALUES FROM (0) TO (9)')
    distribute(conn, "p", s301=1)
    distribute(conn, '"a b"."P 1"', s302=1)
    conn.execute("VACUUM (FULL INPLACE) r")
    assert sorted(said.commands()) == [9700, 9701, 9702]
    conn.execute('VACUUM (LATENCY_TARGET 20, ANALYZE) p (id, "no te"), t (note)')
    sent = said.commands()
    shards = '\'"a b"."P 1_302" (id, "no te")\', \'public.t_101 (note)\', \'public.t_103 (note)\''
    assert f"ARRAY[{shards}]" in sent[9701]
    assert "public.t_102 (note)" in sent[9702]


def test_what_is_sent_can_be_executed(conn, said):
    """Names and values arrive as they were given, whatever is in them: the commands are run here as they stand."""
    schema, table, column = "s\"c'h %s $1 \\", "we\"ird '%s %1$s\n\\' näme); DROP TABLE own; --", "co\"l, 'x' %d) FROM own; --"
    names = {"s": sql.Identifier(schema), "t": sql.Identifier(schema, table), "c": sql.Identifier(column)}
    names["shard"] = sql.Identifier(schema, f"{table}_501")
    conn.execute(sql.SQL("CREATE SCHEMA {s}; CREATE TABLE {t} (id int, {c} int); CREATE TABLE {shard} (id int, {c} int)").format(**names))
    conn.execute(sql.SQL("INSERT INTO {shard} SELECT i, i % 3 FROM generate_series(1, 900) i").format(**names))
    distribute(conn, names["t"].as_string(conn), s501=1)
    answer(conn, 9701, [{"status": "vacuumed"}])
    for options in ("LATENCY_TARGET '7ms', ANALYZE, BUFFER_USAGE_LIMIT '2MB'", "FULL INPLACE, ANALYZE on", "FULL 'rewrite', PARALLEL 1, ANALYZE"):
        conn.execute(sql.SQL("DELETE FROM {shard} WHERE id % 3 = 0").format(**names))
        conn.execute(sql.SQL("VACUUM ({o}) {t} ({c})").format(o=sql.SQL(options), **names))
        ((port, command),) = said.commands().items()
        (result,) = conn.execute(command.encode()).fetchone()
        assert port == 9701 and json.loads(result)["messages"] == []
        assert [shard["status"] for shard in json.loads(result)["shards"]] == ["vacuumed"]
        query = "SELECT attname, dead_tuple_count FROM pg_stats, pgstattuple(%s) WHERE tablename = %s"
        assert conn.execute(query, (names["shard"].as_string(conn), f"{table}_501")).fetchall() == [(column, 0)]
        conn.execute("DELETE FROM pg_statistic WHERE starelid = %s::regclass", (names["shard"].as_string(conn),))


def test_operators_of_others_are_not_called(conn, said):
    """Queries of catalogs and answers use no operators that other roles could put before the server's."""
    traps = [("=", "oid", "regclass"), ("=", "regclass", "oid"), ("->>", "jsonb", "jsonb"), ("=", "name", "text"), ("<>", '"char"', "text")]
    for i, (operator, left, right) in enumerate(traps):
        conn.execute(f"""
            CREATE FUNCTION trap_{i}({left}, {right}) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
            CREATE OPERATOR public.{operator} (FUNCTION = trap_{i}, LEFTARG = {left}, RIGHTARG = {right})
            """)
    with pytest.raises(psycopg.errors.RaiseException, match="trapped"):
        conn.execute("SELECT 1 FROM pg_class WHERE oid = 'own'::regclass")
    for path in ("public", "public, pg_catalog"):
        conn.execute(f"SET search_path = {path}")
        conn.execute("VACUUM (FULL INPLACE) t")
        assert sorted(said.commands()) == [9701, 9702]
        assert len(conn.execute("SELECT * FROM cyclone.vacuum_cluster('{t}')").fetchall()) == 3
        said.clear()
        conn.execute("INSERT INTO answers VALUES (9700, true, '[]'), (9701, true, '[]'), (9702, true, '[]')")
        assert conn.execute("SELECT nodeport FROM cyclone.cluster_rows('pace') WHERE error IS NULL").fetchall() == [(9700,), (9701,), (9702,)]
        conn.execute("TRUNCATE answers")
        said.clear()


def test_a_table_that_is_named_twice(conn, said):
    conn.execute("VACUUM (LATENCY_TARGET 20, ANALYZE) t (id), t (note), t (id)")
    assert "'public.t_102 (id, note)'" in said.commands()[9702]
    conn.execute("VACUUM (LATENCY_TARGET 20, ANALYZE) t (id), t")
    assert "'public.t_102'" in said.commands()[9702]


def test_only_a_partitioned_table(pg_major, conn, said):
    """VACUUM has ONLY since PostgreSQL 18."""
    conn.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)")
    distribute(conn, "p", s301=1)
    distribute(conn, "p1", s302=1)
    if pg_major < 18:
        with pytest.raises(psycopg.errors.SyntaxError):
            conn.execute("VACUUM (FULL INPLACE) ONLY p, ONLY p1")
        return
    conn.execute("VACUUM (FULL INPLACE) ONLY p, ONLY p1")
    assert "ARRAY['public.p1_302']" in said.commands()[9701]
    assert said.warnings() == ['"p" is partitioned, and without its partitions there is nothing to vacuum']


def test_tables_that_are_not_distributed(conn, said):
    """Other tables of a list are vacuumed here, with the same options."""
    conn.execute(f"INSERT INTO own SELECT i, repeat('x', 100) FROM generate_series(1, {ROWS}) i")
    for options in ("FULL INPLACE", "LATENCY_TARGET 20", "FULL, PARALLEL 2"):
        conn.execute("DELETE FROM own WHERE id % 7 = 0")
        conn.execute(f"INSERT INTO own SELECT -i, 'x' FROM generate_series(1, {ROWS}) i ON CONFLICT DO NOTHING")
        conn.execute("DELETE FROM own WHERE id < 0")
        conn.execute(f"VACUUM ({options}) own, t, r")
        assert sorted(said.commands()) == [9700, 9701, 9702]
        assert conn.execute("SELECT dead_tuple_count FROM pgstattuple('own')").fetchone() == (0,)
    conn.execute("VACUUM (FULL INPLACE) own")
    assert said.commands() == {}
    checks.assert_clean(conn, "own")


def test_what_is_still_an_error(conn, said):
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="whole database"):
        conn.execute("VACUUM (FULL INPLACE)")
    conn.execute("INSERT INTO own VALUES (1); DELETE FROM own")
    for tables in ("t, missing", "own, t, missing"):
        with pytest.raises(psycopg.errors.UndefinedTable):
            conn.execute(f"VACUUM (FULL INPLACE) {tables}")
    assert conn.execute("SELECT dead_tuple_count FROM pgstattuple('own')").fetchone() == (1,)
    with pytest.raises(psycopg.errors.ActiveSqlTransaction), conn.transaction():
        conn.execute("VACUUM (FULL INPLACE) t")
    for options in ("FULL INPLACE, PARALLEL 99999", "LATENCY_TARGET 20, NONSENSE", "FULL INPLACE, TRUNCATE off"):
        with pytest.raises(psycopg.Error):
            conn.execute(f"VACUUM ({options}) t")
    assert said.commands() == {}
    # Citus has nothing to do with it
    conn.execute("SET citus.enable_ddl_propagation = off")
    conn.execute("VACUUM (FULL INPLACE) t")
    assert said.commands() == {}


def test_messages(conn, said):
    messages = [
        {"severity": "INFO", "sqlstate": "00000", "shard": "public.t_102", "message": "finished", "detail": "much"},
        {"severity": "WARNING", "sqlstate": "55P03", "shard": "public.t_102", "message": "skipping", "hint": "wait"},
        {"severity": "NOTICE", "sqlstate": "00000", "message": "for all"},
    ]
    answer(conn, 9702, [{"status": "skipped"}], messages)
    conn.execute("VACUUM (LATENCY_TARGET 20) t")
    said.commands()
    assert said == [
        "INFO: host:9702, public.t_102: finished",
        "WARNING: host:9702, public.t_102: skipping",
        "NOTICE: host:9702: for all",
    ]
    rows = conn.execute("SELECT nodeport, relation::text, shard, status, size_before, message FROM cyclone.vacuum_cluster('{t}') ORDER BY 3")
    assert rows.fetchall() == [
        (9701, "t", "public.t_101", "vacuumed", 200, None),
        (9702, "t", "public.t_102", "skipped", None, "skipping"),
        (9701, "t", "public.t_103", "vacuumed", 200, None),
    ]


def test_errors_of_nodes(conn, said):
    """A node's error is reported when the others are through, with what was done."""
    conn.execute("INSERT INTO answers VALUES (9701, false, 'failed to connect to host:9701')")
    error = {"severity": "ERROR", "sqlstate": "XX001", "shard": "public.t_102", "message": "bad page"}
    answer(conn, 9702, [{"status": "failed", "before": 1}], [error], failed=True)
    with pytest.raises(psycopg.errors.ExternalRoutineException) as caught:
        conn.execute("VACUUM (FULL INPLACE) t")
    assert caught.value.diag.message_primary == "VACUUM failed on 2 of 2 nodes"
    assert caught.value.diag.message_detail == "host:9701: failed to connect to host:9701\nhost:9702: bad page"
    said.commands()
    assert said.warnings() == [
        "host:9701: failed to connect to host:9701",
        "host:9702, public.t_102: bad page",
        "vacuumed 0 of 3 shards on 2 nodes, from 0 to 0 bytes",
    ]
    rows = conn.execute("SELECT shard, status, message FROM cyclone.vacuum_cluster('{t}', 'full inplace') ORDER BY 1").fetchall()
    assert rows == [
        ("public.t_101", "failed", "failed to connect to host:9701"),
        ("public.t_102", "failed", "bad page"),
        ("public.t_103", "failed", "failed to connect to host:9701"),
    ]


@pytest.mark.parametrize(
    "result",
    [
        "",
        "no JSON",
        "7",
        '{"shards": 5}',
        '{"failed": false, "not_kept": 0, "shards": [{"status": "vacuumed"}]}',
        '{"failed": false, "not_kept": 0, "shards": [{}, {}]}',
        '{"shards": [{"status": "vacuumed"}, {"status": "vacuumed"}]}',
    ],
)
def test_a_node_that_answers_otherwise(conn, said, result):
    """Another version on one node doesn't keep from the client what the others have done."""
    conn.execute("INSERT INTO answers VALUES (9701, true, %s)", (result,))
    answer(conn, 9702, [{"status": "vacuumed"}], [{"severity": "INFO", "message": "all is well"}])
    with pytest.raises(psycopg.errors.ExternalRoutineException, match="failed on 1 of 2 nodes"):
        conn.execute("VACUUM (FULL INPLACE) t")
    said.commands()
    assert said == [
        "WARNING: host:9701: its answer is not as this version of pg_cyclone has it",
        "INFO: host:9702: all is well",
        "WARNING: vacuumed 1 of 3 shards on 2 nodes, from 0 to 0 bytes",
    ]


def test_answers_that_say_little(conn, said):
    """A node that failed is reported, also if it doesn't say why; a message may lack everything."""
    answer(conn, 9701, [{"status": "failed"}, {"status": "not reached"}], failed=True)
    answer(conn, 9702, [{"status": "vacuumed"}], [{}, {"severity": "WARNING", "sqlstate": "x", "message": "%s %n"}])
    with pytest.raises(psycopg.errors.ExternalRoutineException) as caught:
        conn.execute("VACUUM (FULL INPLACE) t")
    assert caught.value.diag.message_detail == "host:9701: VACUUM failed"
    said.commands()
    assert said.warnings()[:2] == ["host:9702: ", "host:9702: %s %n"]


def test_shards_that_move(conn, said):
    """A shard that isn't where it was is vacuumed where it is now; one that is nowhere is named."""
    answer(conn, 9701, [{"status": "moved"}, {"status": "vacuumed"}])
    conn.execute("""
        ALTER TABLE pg_catalog.pg_dist_placement RENAME TO placements;
        CREATE VIEW pg_catalog.pg_dist_placement AS
            SELECT shardid, shardstate,
                   CASE WHEN shardid = 101 AND pg_catalog.asked_yet() THEN 2 ELSE groupid END AS groupid
            FROM pg_catalog.placements
        """)
    conn.execute("VACUUM (FULL INPLACE, VERBOSE) t")
    sent = [(line[13:17], "t_101" in line) for line in said if line.startswith("NOTICE: sent")]
    assert sent == [("9701", True), ("9702", False), ("9702", True)]
    assert said[3:] == [
        "NOTICE: shard public.t_101 was moved away from host:9701, split or dropped during VACUUM, and was not vacuumed there",
        "NOTICE: shard public.t_101 has come to host:9702 during VACUUM, and was vacuumed there",
        "INFO: vacuumed 3 of 4 shards on 2 nodes, from 400 to 200 bytes",
    ]

    # the old copy may still be there
    conn.execute("SELECT pg_advisory_unlock_all(); TRUNCATE answers")
    said.clear()
    conn.execute("VACUUM (FULL INPLACE) t")
    assert said[3:] == ["NOTICE: shard public.t_101 has come to host:9702 during VACUUM, and was vacuumed there"]
    answer(conn, 9701, [{"status": "moved"}, {"status": "vacuumed"}])

    conn.execute("""
        CREATE OR REPLACE VIEW pg_catalog.pg_dist_placement AS
            SELECT shardid, CASE WHEN shardid = 101 AND pg_catalog.asked_yet() THEN 4 ELSE shardstate END AS shardstate,
                   groupid
            FROM pg_catalog.placements;
        SELECT pg_advisory_unlock_all()
        """)
    said.clear()
    conn.execute("VACUUM (FULL INPLACE) t")
    said.commands()
    assert said.warnings() == [
        "shard public.t_101 is on no node, and was not vacuumed",
        "shard public.t_101 was moved away from host:9701, split or dropped during VACUUM, and was not vacuumed there",
    ]


def test_nodes_that_take_no_part(conn, said):
    conn.execute("UPDATE pg_dist_node SET isactive = false WHERE groupid = 1")
    conn.execute("VACUUM (FULL INPLACE) t")
    assert list(said.commands()) == [9702]
    assert said.warnings() == [f"host:9701 is not active, and its shard public.t_{n} was not vacuumed" for n in (101, 103)]
    conn.execute("UPDATE pg_dist_placement SET shardstate = 3 WHERE shardid = 102")
    said.clear()
    conn.execute("VACUUM (FULL INPLACE) t")
    assert said.commands() == {}
    assert "shard public.t_102 is on no node, and was not vacuumed" in said.warnings()


def test_function_for_schedulers(conn, said):
    query = "SELECT nodeport, status FROM cyclone.vacuum_cluster('{t,r}', %s) WHERE relation = 'r'::regclass ORDER BY 1"
    assert conn.execute(query, ("full, parallel 1",)).fetchall() == [(9700, "vacuumed"), (9701, "vacuumed"), (9702, "vacuumed")]
    assert "parallel 1" in said.commands()[9701]
    # one on this server would wait for the transaction of the query
    assert conn.execute(query, ("full inplace",)).fetchall() == [(9700, "skipped"), (9701, "vacuumed"), (9702, "vacuumed")]
    assert sorted(said.commands()) == [9701, 9702]
    assert said.warnings() == ["shard public.r_201 is on this server, and was not vacuumed"]
    with pytest.raises(psycopg.errors.WrongObjectType):
        conn.execute("SELECT * FROM cyclone.vacuum_cluster('{own}')")
    for options in ("full inplace) t; DROP TABLE own; VACUUM (full", "nonsense", "full) own, t; --", "latency_target 'x'"):
        with pytest.raises(psycopg.Error):
            conn.execute("SELECT * FROM cyclone.vacuum_cluster('{t}', %s)", (options,))
    assert said.commands() == {}


@pytest.mark.parametrize("moves, is_told", [(4, False), (5, True)])
def test_a_shard_that_moves_again_and_again(conn, said, moves, is_told):
    """Four moves are followed, in five rounds. A warning tells of a fifth one."""
    conn.execute(f"""
        INSERT INTO pg_catalog.pg_dist_node SELECT i, 'host', 9700 + i FROM generate_series(3, 6) i;
        CREATE FUNCTION pg_catalog.times_asked() RETURNS int LANGUAGE sql AS
            $$ SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND objid > 5000 AND pid = pg_backend_pid() $$;
        ALTER FUNCTION pg_catalog.master_run_on_worker RENAME TO run_at_once;
        CREATE FUNCTION pg_catalog.master_run_on_worker(names text[], ports int[], commands text[], parallel bool,
            OUT success bool, OUT result text) RETURNS SETOF record LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_lock(5001 + times_asked());
            RETURN QUERY SELECT r.success, r.result FROM pg_catalog.run_at_once(names, ports, commands, parallel) r;
        END $$;
        ALTER TABLE pg_catalog.pg_dist_placement RENAME TO placements;
        CREATE VIEW pg_catalog.pg_dist_placement AS
            SELECT shardid, shardstate,
                   CASE WHEN shardid = 101 THEN 1 + least(pg_catalog.times_asked(), {moves}) ELSE groupid END AS groupid
            FROM pg_catalog.placements
        """)
    conn.execute("VACUUM (LATENCY_TARGET 20, VERBOSE) t")
    assert [line[13:17] for line in said if line.startswith("NOTICE: sent") and "t_101" in line] == ["9701", "9702", "9703", "9704", "9705"]
    told = ["shards were moved again and again during VACUUM, and the last moves were not followed"]
    assert said.warnings() == (told if is_told else [])
    assert said[-1] == "INFO: vacuumed 7 of 7 shards on 5 nodes, from 1400 to 700 bytes"


def test_function_sees_a_shard_that_moves(cluster, db, conn, said):
    """With any snapshot of its transaction."""
    conn.execute("""
        ALTER FUNCTION pg_catalog.master_run_on_worker RENAME TO run_at_once;
        CREATE FUNCTION pg_catalog.master_run_on_worker(names text[], ports int[], commands text[], parallel bool,
            OUT success bool, OUT result text) RETURNS SETOF record LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(7);
            RETURN QUERY SELECT r.success, r.result FROM pg_catalog.run_at_once(names, ports, commands, parallel) r;
        END $$;
        SELECT pg_advisory_lock(7);
        """)
    vacuum = Background(cluster, db, "SELECT cyclone.vacuum_cluster('{t}')", {"default_transaction_isolation": "repeatable read"})
    waiting = "SELECT FROM pg_locks WHERE pid = %s AND locktype = 'advisory' AND NOT granted"
    wait_until(lambda: conn.execute(waiting, (vacuum.pid,)).fetchall(), "the first round")
    conn.execute("UPDATE pg_dist_placement SET groupid = 2 WHERE shardid = 101")
    conn.execute("SELECT pg_advisory_unlock(7)")
    vacuum.finish()
    assert "shard public.t_101 has come to host:9702 during VACUUM, and was vacuumed there" in vacuum.messages


def test_function_is_a_statement_of_its_own(conn, said):
    """VACUUM FULL would wait on nodes for its own transaction there, and nodes stop only if it fails as a whole."""
    call = "SELECT * FROM cyclone.vacuum_cluster('{t}')"
    caught = "DO $$ BEGIN BEGIN PERFORM cyclone.vacuum_cluster('{t}'); EXCEPTION WHEN query_canceled THEN END; END $$"
    for statement in (f"BEGIN; {call}", f"SELECT 1; {call}", caught):
        with pytest.raises(psycopg.errors.ActiveSqlTransaction):
            conn.execute(statement)
        conn.execute("ROLLBACK")
    assert said.commands() == {}
    conn.execute(caught.replace("EXCEPTION WHEN query_canceled THEN ", ""))
    assert sorted(said.commands()) == [9701, 9702]


def test_views(conn, said):
    conn.execute("INSERT INTO answers VALUES (9700, true, '[]'), (9702, false, 'failed to connect')")
    progress = json.dumps([{"pid": 7, "relation": "t_101", "phase": "scanning heap", "blocks_done": 5}])
    conn.execute("INSERT INTO answers VALUES (9701, true, %s)", (progress,))
    rows = conn.execute("SELECT nodeport, error, pid, relation_name, phase, blocks_done FROM cyclone.cluster_progress ORDER BY 1").fetchall()
    assert rows == [(9701, None, 7, "t_101", "scanning heap", 5), (9702, "failed to connect", None, None, None, None)]
    assert set(said.commands().values()) == {"SELECT cyclone.node_rows('progress', 1000)"}
    for view in ("pace", "bloat", "autovacuum", "compaction"):
        conn.execute("UPDATE answers SET result = '[]' WHERE success")
        assert conn.execute(f"SELECT nodeport, error FROM cyclone.cluster_{view}").fetchall() == [(9702, "failed to connect")]
    conn.execute("UPDATE answers SET result = 'no JSON' WHERE success")
    rows = conn.execute("SELECT nodeport, error, result FROM cyclone.cluster_rows('pace')").fetchall()
    wrong = "the node's answer is not JSON: no JSON"
    assert rows == [(9700, wrong, None), (9701, wrong, None), (9702, "failed to connect", None)]


@pytest.mark.parametrize("timeout, sent", [(1, "10"), (5000, "5000"), (2147483647, "3600000")])
def test_time_to_connect(conn, said, timeout, sent):
    """Citus allows 10 ms to an hour, so nothing else is asked of it."""
    conn.execute("""
        CREATE OR REPLACE FUNCTION pg_catalog.master_run_on_worker(names text[], ports int[], commands text[], parallel bool,
            OUT node_name text, OUT node_port int, OUT success bool, OUT result text) RETURNS SETOF record LANGUAGE sql AS
        $$ SELECT 'x', p, true, current_setting('citus.node_connection_timeout') FROM unnest(ports) p $$;
        SET citus.node_connection_timeout = '30s'
        """)
    assert conn.execute("SELECT DISTINCT result::text FROM cyclone.cluster_rows('pace', %s)", (timeout,)).fetchall() == [(sent,)]
    assert conn.execute("SHOW citus.node_connection_timeout").fetchone() == ("30s",)


TEXT, REGCLASS, INT4 = 25, 2205, 23


def test_views_without_citus(conn):
    conn.execute(f"CREATE TABLE big AS SELECT i FROM generate_series(1, {ROWS}) i")
    here = conn.execute("SELECT relation::text, size FROM cyclone.bloat WHERE relation = 'big'::regclass").fetchone()
    rows = "SELECT r->>'relation', (r->>'size')::bigint FROM cyclone.cluster_rows('bloat', 600000), jsonb_array_elements(result) r"
    assert conn.execute(f"{rows} WHERE r->>'relation' = 'big'").fetchone() == here
    for view in ("progress", "pace", "autovacuum", "bloat", "compaction"):
        columns = {c.name: c.type_code for c in conn.execute(f"SELECT * FROM cyclone.{view} WHERE false").description}
        there = {c.name: c.type_code for c in conn.execute(f"SELECT * FROM cyclone.cluster_{view} WHERE false").description}
        assert list(there)[:2] == ["nodename", "nodeport"] and list(there)[-1] == "error" and REGCLASS not in there.values()
        named = {"relation_name": TEXT, "table_name": TEXT, "nodename": TEXT, "nodeport": INT4, "error": TEXT}
        assert there == {name: named.get(name) or columns[name] for name in there}
    here = conn.execute("SELECT relation::text, reason, size FROM cyclone.compaction WHERE relation = 'big'::regclass").fetchall()
    assert len(here) == 1 and conn.execute("SELECT relation_name, reason, size FROM cyclone.cluster_compaction WHERE relation_name = 'big'").fetchall() == here
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        conn.execute("SELECT cyclone.node_rows('pg_authid')")


def test_errors_without_citus(cluster, db, conn):
    """As those of another node: a row, where nothing ends the whole statement."""
    conn.execute("CREATE ROLE cyclone_cluster_reader; SET ROLE cyclone_cluster_reader")
    [(node, port, error, result)] = conn.execute("SELECT * FROM cyclone.cluster_rows('autovacuum')").fetchall()
    assert (node, result) == ("localhost", None) and error == "permission denied for view autovacuum"
    conn.execute("RESET ROLE; DROP ROLE cyclone_cluster_reader")

    with cluster.connect(db) as other:
        other.execute("BEGIN; ALTER VIEW cyclone.history SET (security_barrier = false)")
        rows = "SELECT error, relid FROM cyclone.cluster_rows('history', 100) LEFT JOIN LATERAL jsonb_to_recordset(result) AS r(relid oid) ON true"
        assert conn.execute(rows).fetchall() == [("canceling statement due to statement timeout", None)]
        conn.execute("SET statement_timeout = 100")
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("SELECT * FROM cyclone.cluster_rows('history', 600000)")
        conn.execute("SET statement_timeout = 0")
        waiting = Background(cluster, db, "SELECT * FROM cyclone.cluster_rows('history', 600000)")
        wait_until(lambda: other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (1,), "the wait for the lock")
        other.execute("SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted")
        with pytest.raises(psycopg.errors.QueryCanceled):
            waiting.finish()
    assert conn.execute("SELECT error FROM cyclone.cluster_rows('history', 600000)").fetchall() == [(None,)]


def test_the_time_of_a_view_ends_with_it(conn):
    """An error that is caught leaves no timeout behind."""
    conn.execute("CREATE ROLE cyclone_cluster_reader; SET ROLE cyclone_cluster_reader")
    try:
        conn.execute("""
            DO $$ BEGIN
                BEGIN PERFORM cyclone.node_rows('autovacuum', 800); EXCEPTION WHEN insufficient_privilege THEN RAISE NOTICE 'caught'; END;
                PERFORM pg_sleep(1);
            END $$
            """)
        assert conn.execute("SHOW statement_timeout").fetchone() == ("5min",)
    finally:
        conn.execute("RESET ROLE; DROP ROLE cyclone_cluster_reader")


def vacuum_node(conn, options: str, *tables: str) -> dict:
    call = "CALL cyclone.vacuum_node({}, ARRAY[{}]::text[], NULL)"
    literals = [sql.Literal(text).as_string(conn) for text in (options, *tables)]
    (result,) = conn.execute(call.format(literals[0], ", ".join(literals[1:]))).fetchone()
    return json.loads(result)


@pytest.fixture
def shards(conn):
    for shard in ("a_1", "a_12", "a_2"):
        conn.execute(f"CREATE TABLE {shard} (id int PRIMARY KEY, note text)")
        conn.execute(f"INSERT INTO {shard} SELECT i, repeat('x', 300) FROM generate_series(1, {ROWS}) i")
        conn.execute(f"DELETE FROM {shard} WHERE id <= {ROWS // 2}")
    return [f"public.{shard}" for shard in ("a_1", "a_12", "a_2")]


@pytest.mark.parametrize("options", ["full 'inplace', verbose", "full, parallel 1, verbose", "verbose, latency_target 20", ""])
def test_a_node(conn, shards, options):
    said = Said(conn)
    result = vacuum_node(conn, options, *shards, "public.gone_3")
    assert not result["failed"], result["messages"]
    assert [shard["status"] for shard in result["shards"]] == ["vacuumed"] * 3 + ["moved"]
    assert said == []
    for shard, row in zip(shards, result["shards"], strict=False):
        assert row["shard"] == shard and ("full" not in options or row["after"] < 0.7 * row["before"])
        assert any(message.get("shard") == shard for message in result["messages"]) == ("verbose" in options)
        assert conn.execute("SELECT dead_tuple_count FROM pgstattuple(%s)", (shard,)).fetchone() == (0,)
        checks.assert_clean(conn, shard)
    assert conn.execute("SHOW client_connection_check_interval").fetchone() == ("0",)


def test_a_node_without_any_of_the_tables(conn, shards):
    """It must not become a VACUUM of the whole database."""
    result = vacuum_node(conn, "full", "public.gone_1", "gone.a_2")
    assert [shard["status"] for shard in result["shards"]] == ["moved"] * 2
    assert conn.execute("SELECT dead_tuple_count > 0 FROM pgstattuple('a_1')").fetchone() == (True,)


@pytest.mark.parametrize("options, point", [("full 'inplace', verbose", "heap-scan"), ("full, verbose", "heap-copy")])
def test_an_error_on_a_node(conn, shards, options, point):
    """An error is in the result, and the session goes on."""
    said = Said(conn)
    conn.execute(f"SET cyclone.debug_point = '{point}:leader:error'")
    result = vacuum_node(conn, options, *shards)
    conn.execute("RESET cyclone.debug_point")
    assert result["failed"] and said == []
    assert [shard["status"] for shard in result["shards"]] == ["failed", "not reached", "not reached"]
    assert result["messages"][-1]["severity"] == "ERROR" and result["messages"][-1]["shard"] == shards[0]
    assert conn.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'a_1'::regclass").fetchone() == (0,)
    assert not vacuum_node(conn, options, *shards)["failed"]
    for shard in shards:
        checks.assert_clean(conn, shard)


def test_tables_that_a_node_skips(cluster, db, conn, shards):
    with cluster.connect(db) as other, other.transaction():
        other.execute("LOCK a_12")
        result = vacuum_node(conn, "skip_locked, full 'inplace'", *shards)
    assert [shard["status"] for shard in result["shards"]] == ["vacuumed", "skipped", "vacuumed"]
    assert [message["severity"] for message in result["messages"] if message["shard"] == "public.a_12"] == ["WARNING"]
    conn.execute("CREATE ROLE cyclone_cluster_user; GRANT MAINTAIN ON a_1 TO cyclone_cluster_user; SET ROLE cyclone_cluster_user")
    try:
        result = vacuum_node(conn, "", *shards)
    finally:
        conn.execute("RESET ROLE; DROP OWNED BY cyclone_cluster_user; DROP ROLE cyclone_cluster_user")
    assert [shard["status"] for shard in result["shards"]] == ["vacuumed", "skipped", "skipped"]
    assert [message["shard"] for message in result["messages"] if message["severity"] == "WARNING"] == shards[1:]


def test_what_a_node_skips_for_its_kind(conn, shards):
    conn.execute("CREATE VIEW v_7 AS SELECT 1 AS one")
    result = vacuum_node(conn, "full 'inplace'", "public.v_7", shards[0])
    assert [shard["status"] for shard in result["shards"]] == ["skipped", "vacuumed"]


def test_a_node_tells_of_what_it_skips_in_any_case(cluster, db, conn, shards):
    """The status doesn't depend on what the role wants to be told."""
    conn.execute("SET client_min_messages = error")
    with cluster.connect(db) as other, other.transaction():
        other.execute("LOCK a_12")
        result = vacuum_node(conn, "skip_locked", *shards)
    assert [shard["status"] for shard in result["shards"]] == ["vacuumed", "skipped", "vacuumed"]
    assert conn.execute("SHOW client_min_messages").fetchone() == ("error",)


@pytest.mark.parametrize("text", ['table "public.a_12"', "« a_12 »", "„public.a_12“", "«a_12»", "a_12"])
def test_messages_in_other_languages(conn, shards, text):
    """Servers speak as lc_messages says, and have other quotes then."""
    conn.execute(f"""
        CREATE TABLE talks_1 AS SELECT 1 AS id;
        CREATE FUNCTION talk(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $f$ BEGIN RAISE WARNING '{text}'; RETURN $1; END $f$;
        CREATE INDEX ON talks_1 (talk(id))
        """)
    messages = vacuum_node(conn, "full", "public.talks_1", *shards)["messages"]
    assert {message["shard"] for message in messages} == {"public.a_12"}


def test_messages_are_kept_once(conn):
    """Messages of VACUUM may be long: of each message only its JSON stays in memory."""
    conn.execute("""
        CREATE TABLE talks_1 AS SELECT i AS id FROM generate_series(1, 300) i;
        CREATE FUNCTION talk(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $f$
        BEGIN
            RAISE NOTICE '% %', (SELECT sum(used_bytes) FROM pg_backend_memory_contexts WHERE name LIKE 'Cyclone node%'), repeat('x', 10000);
            RETURN $1;
        END $f$;
        CREATE INDEX ON talks_1 (talk(id))
        """)
    messages = vacuum_node(conn, "analyze", "public.talks_1")["messages"]
    used = [int(message["message"].split()[0]) for message in messages if message["message"].endswith("x")]
    # a buffer for the JSON, which doubles when it is full
    assert len(used) == 300 and max(used) < 2 * 1.2 * 300 * 10000


@pytest.mark.parametrize("encoding", ["latin1", "utf8"])
def test_messages_in_another_encoding(conn, encoding):
    """The coordinator's database may have another one than the node's, and Citus makes that its client's."""
    conn.execute('CREATE TABLE "größe_7" AS SELECT 1 AS id')
    conn.execute(f"SET client_encoding = {encoding}")
    result = vacuum_node(conn, "full 'inplace', verbose", 'public."größe_7"')
    assert {message["shard"] for message in result["messages"]} == {'public."größe_7"'}
    assert any("größe_7" in message["message"] for message in result["messages"])
    conn.execute("SET cyclone.debug_point = 'heap-scan:leader:error'")
    assert vacuum_node(conn, "full 'inplace'", 'public."größe_7"')["failed"]
    assert conn.execute("SELECT 'größe'").fetchone() == ("größe",)


def test_a_node_is_called_at_top_level_only(conn, shards):
    call = "CALL cyclone.vacuum_node('', '{a_1}', NULL)"
    with pytest.raises(psycopg.errors.InvalidTransactionTermination), conn.transaction():
        conn.execute(call)
    for nested in (f"DO $$ DECLARE r text; BEGIN {call.replace('NULL', 'r')}; END $$", f"{call}; SELECT 1"):
        with pytest.raises(psycopg.errors.InvalidTransactionTermination):
            conn.execute(nested)
    for tables in ("{}", "{NULL}", '{"a_1, a_2"}', '{"a_1; DROP TABLE a_2"}'):
        with pytest.raises(psycopg.Error):
            conn.execute(f"CALL cyclone.vacuum_node('', '{tables}', NULL)")
    assert conn.execute("SELECT count(*) FROM pg_class WHERE relname = 'a_2'").fetchone() == (1,)


def test_a_coordinator_that_goes_away(cluster, db, conn, shards):
    """A node's VACUUM ends soon after the connection is lost, though it has nothing to send."""
    conn.execute("SELECT pg_advisory_lock(51966)")
    lost = cluster.connect(db)
    lost.execute("SET cyclone.debug_point = 'heap-scan:leader:wait'")
    pid = lost.info.backend_pid
    caller = threading.Thread(target=lambda: pytest.raises(psycopg.Error, vacuum_node, lost, "full 'inplace'", *shards))
    caller.start()
    waiting = "SELECT FROM pg_locks WHERE pid = %s AND locktype = 'advisory' AND NOT granted"
    wait_until(lambda: conn.execute(waiting, (pid,)).fetchall(), "the VACUUM to wait")
    with socket.socket(fileno=os.dup(lost.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: not conn.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchall(), "the session to end")
    caller.join()
    lost.close()
    conn.execute("SELECT pg_advisory_unlock(51966)")


def test_order_of_preloading(new_cluster):
    """If Citus is named after pg_cyclone, the log says so at the start, which then fails in Citus, or here for the lack of it."""
    with pytest.raises(RuntimeError) as caught:
        new_cluster(shared_preload_libraries="pg_cyclone, citus")
    assert 'WARNING:  citus must come before pg_cyclone in "shared_preload_libraries"' in str(caught.value)


@pytest.fixture
def at_work(cluster, db, conn, said):
    """The nodes of the stand-in have something to do for as long as this holds a lock."""
    with cluster.connect(db) as holder:
        holder.execute("SELECT pg_advisory_lock(4712)")
        yield holder


@pytest.mark.parametrize("outer", ["VACUUM (LATENCY_TARGET 20, ANALYZE)", "VACUUM (FULL INPLACE)", "VACUUM (FULL)", "VACUUM (PARALLEL 0)"])
def test_no_cluster_in_the_midst_of_another_vacuum(conn, said, outer):
    """A function in an index expression may call it, and must not take the other VACUUM's pace away."""
    conn.execute(f"""
        CREATE FUNCTION calls(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
        BEGIN
            IF current_setting('test.calls', true) = 'on' THEN
                PERFORM cyclone.vacuum_cluster('{{public.t}}', 'LATENCY_TARGET 20');
            END IF;
            RETURN $1;
        END $$;
        INSERT INTO own SELECT i FROM generate_series(1, {ROWS}) i;
        CREATE INDEX ON own (calls(id));
        DELETE FROM own WHERE id % 3 = 0;
        SET test.calls = on
        """)
    try:
        conn.execute(f"{outer} own")
    except psycopg.errors.FeatureNotSupported as error:
        assert "cannot be executed from VACUUM or ANALYZE" in str(error)
    except (psycopg.errors.ActiveSqlTransaction, psycopg.errors.InvalidTransactionState):
        pass
    conn.execute("SET test.calls = off")
    conn.execute("VACUUM (FULL INPLACE, LATENCY_TARGET 20) own")
    assert conn.execute("SELECT count(*) FROM cyclone.pace").fetchone() == (0,)
    checks.assert_clean(conn, "own")


def test_the_same_session_goes_on_after_an_error(cluster, db, conn, at_work):
    conn.execute("SET statement_timeout = '700ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        conn.execute("VACUUM (LATENCY_TARGET 20) t")
    conn.execute("RESET statement_timeout")
    at_work.execute("SELECT pg_advisory_unlock(4712)")
    for _ in range(2):
        conn.execute("VACUUM (LATENCY_TARGET 20) t")
        conn.execute("VACUUM (LATENCY_TARGET 20) own")


def test_no_target_for_a_cluster_where_the_library_does_not_fit(cluster, new_cluster):
    number = int(cluster.sql("SHOW server_version_num")[0][0])
    own = new_cluster(**{"cyclone.debug_server_version": number - 1})
    with own.connect() as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_cyclone")
        conn.execute(STAND_IN)
        conn.execute("CREATE TABLE t (id int)")
        distribute(conn, "t", s101=1)
        assert len(conn.execute("SELECT * FROM cyclone.vacuum_cluster('{t}', 'FREEZE')").fetchall()) == 1
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not fit this server"):
            conn.execute("SELECT * FROM cyclone.vacuum_cluster('{t}', 'LATENCY_TARGET 20')")
