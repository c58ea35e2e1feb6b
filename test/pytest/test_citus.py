"""Beside Citus, on three nodes: VACUUM reaches each shard, on the engine, or says that it doesn't.

Collected only where CYCLONE_CITUS_PG_CONFIG is the pg_config of a server in which Citus is installed. The decisions alone are in
test_neighbours.py.
"""

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
    "wal_level": "logical",
    "output_plugin_libraries": "pgoutput, citus",  # which splits shards by a plugin of its own
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
        self.prefix = prefix
        self.clusters: list[Cluster] = []
        self.connections: list[psycopg.Connection] = []
        for _ in range(3):
            self.start_server(stack)
        self.coordinator = self.connections[0]
        first, *others = (str(cluster.socket_dir) for cluster in self.clusters)
        self.coordinator.execute("SELECT citus_set_coordinator_host(%s, 5432)", (first,))
        for other in others:
            self.coordinator.execute("SELECT citus_add_node(%s, 5432)", (other,))
        for table in TABLES[1:]:
            self.coordinator.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)")
        self.distribute()
        self.coordinator.execute("SELECT create_reference_table('reference')")
        self.coordinator.execute("SELECT citus_add_local_table_to_metadata('managed')")

    def start_server(self, stack: ExitStack) -> None:
        """Start a server, which is no node yet."""
        cluster = stack.enter_context(Cluster.create(self.prefix, {**CONFIG, **SETTINGS}))
        cluster.config["citus.local_hostname"] = str(cluster.socket_dir)
        cluster.start()
        connection = stack.enter_context(cluster.connect())
        connection.execute("CREATE EXTENSION citus; CREATE EXTENSION pg_cyclone")
        checks.create_extensions(connection)
        self.clusters.append(cluster)
        self.connections.append(connection)

    def distribute(self) -> None:
        """Make the distributed table, with as many shards on one worker as on the other."""
        self.coordinator.execute("DROP TABLE IF EXISTS distributed; CREATE TABLE distributed (id int PRIMARY KEY, note text)")
        self.coordinator.execute("SELECT create_distributed_table('distributed', 'id')")

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


@pytest.mark.parametrize("target", ["distributed", "reference", "managed", "own, distributed", ""])
@pytest.mark.parametrize("options", ["FULL INPLACE", "FULL, PARALLEL 2", "ADAPTIVE_DELAY", "FULL, ADAPTIVE_DELAY"])
def test_what_citus_cannot_send_is_an_error(nodes, options, target):
    nodes.fill()
    before = nodes.state(*TABLES)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="distributed by Citus") as caught:
        nodes.coordinator.execute(f"VACUUM ({options}) {target}")
    assert "on each node" in caught.value.diag.message_hint
    assert nodes.state(*TABLES) == before


@pytest.mark.parametrize("options", ["FULL INPLACE", "FULL, PARALLEL 2", "ADAPTIVE_DELAY"])
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


def test_a_logical_move_of_what_is_compacted(nodes):
    """A row that is moved at the source stays the same row for a subscriber; the target, to which a subscription writes, is not
    compacted."""
    nodes.fill()
    contents = "SELECT * FROM distributed ORDER BY id"
    rows = nodes.coordinator.execute(contents).fetchall()
    first = min(shard for node, shard in nodes.shards("distributed") if node == 1)
    source, target = (node.socket_dir for node in nodes.clusters[1:])
    move = f"SELECT citus_move_shard_placement({first.split('_')[1]}::bigint, '{source}', 5432, '{target}', 5432, 'force_logical')"
    # where Citus's own tests stop a logical move: its subscription is at work
    nodes.coordinator.execute("SELECT pg_advisory_lock(44000, 55152)")
    moving = Background(nodes.clusters[0], "postgres", move, {"citus.running_under_citus_test_suite": "on"})
    try:
        waiting = "SELECT FROM pg_locks WHERE pid = %s AND locktype = 'advisory' AND NOT granted"
        wait_until(lambda: nodes.coordinator.execute(waiting, (moving.pid,)).fetchall(), "the move to have caught up")
        said = []
        for cluster in nodes.clusters[1:]:
            with cluster.connect() as conn:
                conn.add_notice_handler(lambda notice: said.append((notice.message_primary, notice.message_detail)))
                conn.execute("SET citus.enable_ddl_propagation = off")
                conn.execute(f"VACUUM (FULL INPLACE) {first}")
        refused = f'rows of "{first}" cannot be moved, vacuuming only'
        assert said == [(refused, "A subscription of logical replication writes to it.")]
    finally:
        nodes.coordinator.execute("SELECT pg_advisory_unlock(44000, 55152)")
    moving.finish()
    assert nodes.coordinator.execute(contents).fetchall() == rows
    checks.assert_clean(nodes.connections[2], first)
    nodes.coordinator.execute("CALL citus_cleanup_orphaned_resources()")
    nodes.distribute()
