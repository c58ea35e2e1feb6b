"""Beside Citus, on three nodes: VACUUM reaches each shard, on the engine, or says that it doesn't.

Collected only where CYCLONE_CITUS_PG_CONFIG is the pg_config of a server in which Citus is installed. The decisions alone are in
test_neighbours.py.
"""

import os
import socket
from contextlib import ExitStack

import psycopg
import pytest

from conftest import CONFIG
from cyclone_lab import checks
from cyclone_lab.background import Background, wait_until
from cyclone_lab.cluster import Cluster

ROWS = 6000
TABLES = ("distributed", "reference", "managed", "own")
SETTINGS = {
    "shared_preload_libraries": "citus, pg_cyclone",
    "citus.node_conninfo": "sslmode=prefer",
    "citus.shard_count": 4,
    "citus.show_shards_for_app_name_prefixes": "*",
    "log_min_messages": "info",
    "max_worker_processes": 32,
    "min_parallel_table_scan_size": "64kB",
}
# The name of a table or of one of its shards, which ends in a number, on each node.
SHARDS = """
    SELECT oid::regclass::text FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND (relname ~ '_[0-9]+$' OR relname = 'own')
    ORDER BY 1
    """


class Nodes:
    """A coordinator with two workers, and a connection to each."""

    def __init__(self, prefix, stack: ExitStack):
        self.clusters = [stack.enter_context(Cluster.create(prefix, {**CONFIG, **SETTINGS})) for _ in range(3)]
        self.connections = []
        for cluster in self.clusters:
            cluster.config["citus.local_hostname"] = str(cluster.socket_dir)
            cluster.start()
            connection = stack.enter_context(cluster.connect())
            connection.execute("CREATE EXTENSION citus; CREATE EXTENSION pg_cyclone")
            checks.create_extensions(connection)
            self.connections.append(connection)
        self.coordinator = self.connections[0]
        first, *others = (str(cluster.socket_dir) for cluster in self.clusters)
        self.coordinator.execute("SELECT citus_set_coordinator_host(%s, 5432)", (first,))
        for other in others:
            self.coordinator.execute("SELECT citus_add_node(%s, 5432)", (other,))
        for table in TABLES:
            self.coordinator.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
        self.coordinator.execute("SELECT create_distributed_table('distributed', 'id')")
        self.coordinator.execute("SELECT create_reference_table('reference')")
        self.coordinator.execute("SELECT citus_add_local_table_to_metadata('managed')")

    def fill(self) -> None:
        for table in TABLES:
            self.coordinator.execute(f"TRUNCATE {table}")
            self.coordinator.execute(f"INSERT INTO {table} SELECT i, repeat('x', 200) FROM generate_series(1, {ROWS}) i")
            self.coordinator.execute(f"DELETE FROM {table} WHERE id % 2 = 0")

    def shards(self, *tables: str) -> dict[tuple[int, str], psycopg.Connection]:
        """Return a connection for each shard of these tables, by the number of the node and the shard's name."""
        return {
            (number, shard): connection
            for number, connection in enumerate(self.connections)
            for (shard,) in connection.execute(SHARDS)
            if shard.split("_")[0] in tables
        }

    def state(self, *tables: str) -> dict[tuple[int, str], tuple[int, int]]:
        """Return how many dead rows and pages each of these shards has."""
        query = "SELECT dead_tuple_count, table_len / 8192 FROM pgstattuple(%s::regclass)"
        return {key: conn.execute(query, (key[1],)).fetchone() for key, conn in self.shards(*tables).items()}

    def run(self, statement: str) -> list[str]:
        """Run a statement on the coordinator; return what has come to the log of each node since."""
        before = [len(cluster.log) for cluster in self.clusters]
        self.coordinator.execute(statement)
        return [cluster.log[start:] for cluster, start in zip(self.clusters, before, strict=True)]


@pytest.fixture(scope="module")
def nodes(neighbours_prefix):
    with ExitStack() as stack:
        yield Nodes(neighbours_prefix, stack)


def engine_reports(log: str, shard: str) -> int:
    """Return how many reports of the engine a server's log has on a table."""
    parts = log.split("INFO:  ")
    return sum(f'public.{shard}"' in part.split("\n")[0] and "\n\tparallel workers: " in part for part in parts)


@pytest.mark.parametrize("options", ["VERBOSE", "VERBOSE, PARALLEL 2", "VERBOSE, ANALYZE", "VERBOSE, FREEZE"])
@pytest.mark.parametrize("target", ["distributed, reference, managed, own", ""], ids=["named", "bare"])
def test_vacuum_reaches_each_shard_on_the_engine(nodes, options, target):
    nodes.fill()
    logs = nodes.run(f"VACUUM ({options}) {target}")
    shards = nodes.shards(*TABLES)
    assert len(shards) == 4 + 3 + 1 + 1  # the coordinator has no part of the distributed table
    for node, shard in shards:
        assert engine_reports(logs[node], shard) == 1, (node, shard)
    assert {dead for dead, _ in nodes.state(*TABLES).values()} == {0}
    for (_, shard), connection in shards.items():
        checks.assert_clean(connection, shard)


@pytest.mark.parametrize("options", ["FULL", "FULL REWRITE"])
@pytest.mark.parametrize("target", ["distributed, reference, managed, own", ""], ids=["named", "bare"])
def test_full_reaches_each_shard(nodes, options, target):
    nodes.fill()
    before = nodes.state(*TABLES)
    logs = nodes.run(f"VACUUM ({options}, VERBOSE) {target}")
    for key, (dead, pages) in nodes.state(*TABLES).items():
        assert dead == 0 and pages < 0.6 * before[key][1], key
    for (node, shard), connection in nodes.shards(*TABLES).items():
        checks.assert_clean(connection, shard)
        # what Citus doesn't send to a node is rewritten by the coordinator's own server
        if node > 0 or (target and shard != "own"):
            assert engine_reports(logs[node], shard) == 1, (node, shard)


OURS = ["FULL INPLACE", "FULL, PARALLEL 2", "LATENCY_TARGET 20", "FULL, LATENCY_TARGET 20", "FULL INPLACE, LATENCY_TARGET 20, PARALLEL 2"]


@pytest.mark.parametrize("options", OURS)
def test_the_whole_database_is_an_error(nodes, options):
    nodes.fill()
    before = nodes.state(*TABLES)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="distributed by Citus"):
        nodes.coordinator.execute(f"VACUUM ({options})")
    assert nodes.state(*TABLES) == before


@pytest.mark.parametrize("target", ["distributed", "reference", "managed", "own, distributed, reference, managed"])
@pytest.mark.parametrize("options", OURS)
def test_our_options_reach_each_shard(nodes, options, target):
    nodes.fill()
    tables = target.split(", ")
    before = nodes.state(*tables)
    said = []
    nodes.coordinator.add_notice_handler(keep := lambda notice: said.append(notice.message_primary))
    nodes.coordinator.execute(f"VACUUM ({options}, VERBOSE) {target}")
    nodes.coordinator.remove_notice_handler(keep)
    after = nodes.state(*tables)
    assert len(before) == len(after) > 0
    for key, (dead, pages) in after.items():
        assert dead == 0 and ("FULL" not in options or pages < 0.7 * before[key][1]), key
        checks.assert_clean(nodes.connections[key[0]], key[1])
        assert key[1] == "own" or any(f", public.{key[1]}: " in line for line in said)


def test_rows_of_the_function(nodes):
    nodes.fill()
    query = "SELECT shard, nodename, status, size_after < size_before FROM cyclone.vacuum_cluster('{distributed,reference}', %s)"
    here = str(nodes.clusters[0].socket_dir)
    for options in ("full inplace", "full, parallel 2", ""):
        nodes.fill()
        rows = nodes.coordinator.execute(query, (options,)).fetchall()
        shards = sorted(shard for _, shard in nodes.shards("distributed", "reference"))
        assert sorted(shard.removeprefix("public.") for shard, *_ in rows) == shards
        for _, node, status, smaller in rows:
            skipped = "inplace" in options and node == here
            assert status == ("skipped" if skipped else "vacuumed") and (smaller or skipped or not options)


def running(nodes) -> list[int]:
    """Return the nodes on which a VACUUM that was sent still runs."""
    query = "SELECT FROM pg_stat_activity WHERE query LIKE 'CALL cyclone.vacuum_node%' AND state = 'active'"
    return [number for number, connection in enumerate(nodes.connections) if connection.execute(query).fetchall()]


@pytest.mark.parametrize("how", ["cancel", "timeout", "terminate", "lost connection"])
def test_all_nodes_stop(nodes, how):
    nodes.fill()
    for connection in nodes.connections[1:]:
        connection.execute("ALTER SYSTEM SET cyclone.debug_point = 'heap-scan:leader:wait'")
        connection.execute("SELECT pg_reload_conf(), pg_advisory_lock(51966)")
    try:
        settings = {"statement_timeout": "5s"} if how == "timeout" else {}
        vacuum = Background(nodes.clusters[0], "postgres", "VACUUM (FULL INPLACE) distributed", settings)
        wait_until(lambda: running(nodes) == [1, 2], "the VACUUM to run on both workers")
        if how == "lost connection":
            with socket.socket(fileno=os.dup(vacuum.connection.fileno())) as client:
                client.shutdown(socket.SHUT_RDWR)
        elif how != "timeout":
            nodes.coordinator.execute(f"SELECT pg_{'cancel' if how == 'cancel' else 'terminate'}_backend(%s::int)", (vacuum.pid,))
        assert vacuum.wait() is not None
        wait_until(lambda: not running(nodes), "all nodes to stop")
    finally:
        for connection in nodes.connections[1:]:
            connection.execute("SELECT pg_advisory_unlock(51966)")
            connection.execute("ALTER SYSTEM RESET cyclone.debug_point")
            connection.execute("SELECT pg_reload_conf()")


def test_a_shard_that_moves_meanwhile(nodes):
    """It is vacuumed where it has come to, whether or not its old copy is still there."""
    nodes.fill()
    first, second = (str(cluster.socket_dir) for cluster in nodes.clusters[1:])
    worker = nodes.connections[1]
    worker.execute("ALTER SYSTEM SET cyclone.debug_point = 'heap-scan:leader:wait'")
    worker.execute("SELECT pg_reload_conf(), pg_advisory_lock(51966)")
    try:
        vacuum = Background(nodes.clusters[0], "postgres", "VACUUM (FULL INPLACE) distributed")
        waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: worker.execute(waiting).fetchall(), "the VACUUM to wait")
        last = max(shard for node, shard in nodes.shards("distributed") if node == 1)
        move = "SELECT citus_move_shard_placement(%s::bigint, %s, 5432, %s, 5432, 'block_writes')"
        nodes.coordinator.execute(move, (last.split("_")[1], first, second))
    finally:
        worker.execute("ALTER SYSTEM RESET cyclone.debug_point")
        worker.execute("SELECT pg_reload_conf(), pg_advisory_unlock(51966)")
    vacuum.finish()
    assert f"shard public.{last} has come to {second}:5432 during VACUUM, and was vacuumed there" in vacuum.messages
    assert nodes.state("distributed")[2, last][0] == 0
    checks.assert_clean(nodes.connections[2], last)
    assert nodes.coordinator.execute("SELECT count(*) FROM distributed").fetchone() == (ROWS // 2,)


def test_a_node_that_is_down(nodes):
    nodes.fill()
    nodes.connections[2].close()
    nodes.clusters[2].stop()
    try:
        with pytest.raises(psycopg.errors.ExternalRoutineException, match="failed on 1 of 2 nodes"):
            nodes.coordinator.execute("VACUUM (FULL INPLACE) distributed")
        there = [shard for (shard,) in nodes.connections[1].execute(SHARDS) if shard.startswith("distributed")]
        query = "SELECT dead_tuple_count FROM pgstattuple(%s::regclass)"
        assert {nodes.connections[1].execute(query, (shard,)).fetchone()[0] for shard in there} == {0}
        down = str(nodes.clusters[2].socket_dir)
        for view in ("progress", "pace", "autovacuum", "bloat"):
            query = f"SELECT nodename FROM cyclone.cluster_{view} WHERE error IS NOT NULL"
            assert nodes.coordinator.execute(query).fetchall() == [(down,)]
    finally:
        nodes.clusters[2].start()
        # Citus's sessions keep connections to nodes
        nodes.coordinator.close()
        nodes.connections[0] = nodes.coordinator = nodes.clusters[0].connect()
        nodes.connections[2] = nodes.clusters[2].connect()


def test_views_of_all_nodes(nodes):
    nodes.fill()
    rows = nodes.coordinator.execute("SELECT nodename, relation FROM cyclone.cluster_bloat WHERE kind = 'table' AND error IS NULL").fetchall()
    found = {(name, relation) for name, relation in rows}
    names = [str(cluster.socket_dir) for cluster in nodes.clusters]
    assert {(names[node], shard) for node, shard in nodes.shards(*TABLES)} <= found
    for view in ("progress", "pace", "autovacuum"):
        assert nodes.coordinator.execute(f"SELECT error FROM cyclone.cluster_{view} WHERE error IS NOT NULL").fetchall() == []


@pytest.mark.parametrize("options", ["FULL INPLACE", "FULL, PARALLEL 2", "LATENCY_TARGET 20"])
def test_what_the_hint_says_works(nodes, options):
    """Nodes that Citus keeps out of take the statement, for shards by their names, or for the whole database."""
    for targets in (lambda shards: ", ".join(shards), lambda _: ""):
        nodes.fill()
        shards = nodes.shards(*TABLES)
        for number, connection in enumerate(nodes.connections):
            connection.execute("SET citus.enable_ddl_propagation = off")
            connection.execute(f"VACUUM ({options}) {targets(shard for node, shard in shards if node == number)}")
            connection.execute("RESET citus.enable_ddl_propagation")
        assert {dead for dead, _ in nodes.state(*TABLES).values()} == {0}
        for (_, shard), connection in shards.items():
            checks.assert_clean(connection, shard)


def test_citus_comes_first(neighbours_prefix):
    with Cluster.create(neighbours_prefix, {**CONFIG, **SETTINGS, "shared_preload_libraries": "pg_cyclone, citus"}) as cluster:
        with pytest.raises(RuntimeError, match="Citus has to be loaded first"):
            cluster.start()
