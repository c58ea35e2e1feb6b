"""Beside Citus, on three nodes: VACUUM reaches each shard, on the engine, or says that it doesn't.

Collected only where CYCLONE_CITUS_PG_CONFIG is the pg_config of a server in which Citus is installed. The decisions alone are in
test_neighbours.py.
"""

import os
import random
import socket
import threading
from contextlib import ExitStack, contextmanager
from itertools import count

import psycopg
import pytest

from conftest import CONFIG
from cyclone_lab import checks
from cyclone_lab.background import DEBUG_POINT_LOCK, Background, wait_until
from cyclone_lab.cluster import Cluster
from test_docs import blocks_marked

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
        """Start one more server, which is no node yet."""
        cluster = stack.enter_context(Cluster.create(self.prefix, {**CONFIG, **SETTINGS}))
        cluster.config["citus.local_hostname"] = str(cluster.socket_dir)
        cluster.start()
        connection = stack.enter_context(cluster.connect())
        connection.execute("CREATE EXTENSION citus; CREATE EXTENSION pg_cyclone")
        checks.create_extensions(connection)
        self.clusters.append(cluster)
        self.connections.append(connection)

    def name(self, number: int) -> str:
        """Return the name that a node has in the cluster."""
        return str(self.clusters[number].socket_dir)

    def distribute(self) -> None:
        """Make the distributed table, with as many shards on one worker as on the other."""
        self.coordinator.execute("DROP TABLE IF EXISTS distributed; CREATE TABLE distributed (id int PRIMARY KEY, note text)")
        self.coordinator.execute("SELECT create_distributed_table('distributed', 'id')")

    @contextmanager
    def standing(self, number: int, point: str = "heap-scan"):
        """Have VACUUMs of a node wait there for as long as the block takes."""
        connection = self.connections[number]
        connection.execute(f"ALTER SYSTEM SET cyclone.debug_point = '{point}:leader:wait'")
        connection.execute(f"SELECT pg_reload_conf(), pg_advisory_lock({DEBUG_POINT_LOCK})")
        try:
            yield
        finally:
            connection = self.connections[number]  # it may have been made anew
            connection.execute("ALTER SYSTEM RESET cyclone.debug_point")
            connection.execute("SELECT pg_reload_conf(), pg_advisory_unlock_all()")

    def stands(self, number: int) -> bool:
        """Does a VACUUM of this node wait?"""
        query = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
        return bool(self.connections[number].execute(query, (DEBUG_POINT_LOCK,)).fetchall())

    def vacuum(self, options: str = "FULL INPLACE", tables: str = "distributed") -> Background:
        """Start a VACUUM on the coordinator."""
        return Background(self.clusters[0], "postgres", f"VACUUM ({options}) {tables}")

    def reconnect(self, *numbers: int) -> None:
        """Make connections anew."""
        for number in numbers:
            self.connections[number].close()
            self.connections[number] = self.clusters[number].connect()
        self.coordinator = self.connections[0]

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
    here = nodes.name(0)
    for options in ("full inplace", "full, parallel 2", ""):
        nodes.fill()
        rows = nodes.coordinator.execute(query, (options,)).fetchall()
        shards = sorted(shard for _, shard in nodes.shards("distributed", "reference"))
        assert sorted(shard.removeprefix("public.") for shard, *_ in rows) == shards
        for _, node, status, smaller in rows:
            skipped = "inplace" in options and node == here
            assert status == ("skipped" if skipped else "vacuumed") and (smaller or skipped or not options)


def test_the_function_as_the_page_has_it(nodes):
    nodes.fill()
    [block] = blocks_marked("with citus")
    statement = block.text.replace("{events, users}", "{distributed, reference}")
    assert statement != block.text
    rows = nodes.coordinator.execute(statement).fetchall()
    assert len(rows) == len(nodes.shards("distributed", "reference"))


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
        down = nodes.name(2)
        for view in ("progress", "pace", "autovacuum", "bloat"):
            query = f"SELECT nodename FROM cyclone.cluster_{view} WHERE error IS NOT NULL"
            assert nodes.coordinator.execute(query).fetchall() == [(down,)]
    finally:
        nodes.clusters[2].start()
        nodes.reconnect(0, 2)  # Citus's sessions keep connections to nodes


def test_views_of_all_nodes(nodes):
    nodes.fill()
    rows = nodes.coordinator.execute("SELECT nodename, relation_name FROM cyclone.cluster_bloat WHERE kind = 'table' AND error IS NULL").fetchall()
    found = {(name, relation) for name, relation in rows}
    assert {(nodes.name(node), shard) for node, shard in nodes.shards(*TABLES)} <= found
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


class Writers:
    """Clients that write to the distributed table through the coordinator, each to rows of its own, and know what must be there."""

    NUMBER = 2

    def __init__(self, nodes):
        self.nodes = nodes
        self.errors: list[psycopg.Error] = []
        self.written = 0
        self.only_new = False  # do they put in new rows, and change none?
        self._new = count(ROWS + 1)
        rows = dict(nodes.coordinator.execute("SELECT id, note FROM distributed").fetchall())
        # what a row may be, None if it is not there: more than one thing if it isn't known whether a statement was done
        self.ledger = {id: {rows.get(id)} for id in range(1, ROWS + 1)}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(self.NUMBER)]

    def _run(self, number: int) -> None:
        rng = random.Random(number)
        with ExitStack() as stack:
            conn = stack.enter_context(self.nodes.clusters[0].connect())
            while not self._stop.wait(0.002):
                id = next(self._new) if self.only_new else rng.randrange(1 + number, ROWS + 1, self.NUMBER)
                notes = ["y" * 100 + str(rng.random()), "z" * 200 + str(rng.random())]
                note = rng.choice(notes if self.only_new else [None, *notes])
                self.ledger.setdefault(id, {None}).add(note)
                try:
                    if note is None:
                        conn.execute("DELETE FROM distributed WHERE id = %s", (id,))
                    else:
                        put = "INSERT INTO distributed VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET note = excluded.note"
                        conn.execute(put, (id, note))
                except psycopg.Error as error:
                    self.errors.append(error)
                    continue
                self.ledger[id] = {note}
                self.written += 1

    def wait_for_some(self) -> None:
        """Wait until they have written a hundred times more."""
        before = self.written
        wait_until(lambda: self.written >= before + 100, "writes")

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop them; harmless when repeated."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def assert_nothing_lost(self) -> None:
        """Stop, and see to it that each row is as it was written, and each node's part of the table sound."""
        self.stop()
        rows = dict(self.nodes.coordinator.execute("SELECT id, note FROM distributed").fetchall())
        wrong = {id for id, may_be in self.ledger.items() if rows.get(id) not in may_be} | (rows.keys() - self.ledger.keys())
        assert not wrong, f"{len(wrong)} rows are wrong: {sorted(wrong)[:20]}"
        self.nodes.coordinator.execute("VACUUM distributed")  # what the writers have left
        for node, shard in placements(self.nodes):
            checks.assert_clean(self.nodes.connections[node], shard)


@pytest.fixture
def writers(nodes):
    """Writers that are at work until the test stops them or ends; then the table is made anew, as its shards have moved."""
    nodes.fill()
    writers = Writers(nodes)
    writers.start()
    yield writers
    writers.stop()
    nodes.coordinator.execute("CALL citus_cleanup_orphaned_resources()")
    nodes.distribute()


def placements(nodes, table: str = "distributed") -> dict[tuple[int, str], int]:
    """Return the pages of each shard of a table, by the number of the node and the shard's name, as Citus's catalog has them."""
    query = """
        SELECT nodename, shard_name(logicalrelid, shardid) FROM pg_dist_shard JOIN pg_dist_placement USING (shardid)
        JOIN pg_dist_node USING (groupid) WHERE logicalrelid = %s::regclass
        """
    names = [nodes.name(number) for number in range(len(nodes.clusters))]
    found = [(names.index(node), shard) for node, shard in nodes.coordinator.execute(query, (table,))]
    size = "SELECT pg_relation_size(%s::regclass) / 8192"
    return {(node, shard): nodes.connections[node].execute(size, (shard,)).fetchone()[0] for node, shard in found}


def assert_none_forgotten(nodes, vacuum: Background, before: dict[tuple[int, str], int], table: str = "distributed") -> None:
    """See to it that shards are small where they were before, and named where they have come to or gone from."""
    after = placements(nodes, table)
    for (node, shard), pages in after.items():
        place = f"{nodes.name(node)}:5432"
        come = f"shard public.{shard} has come to {place} during VACUUM, and was vacuumed there"
        if (node, shard) in before:
            assert pages < 0.8 * before[node, shard], (node, shard)
        assert (come in vacuum.messages) == ((node, shard) not in before), (come, vacuum.messages)
    for node, shard in before.keys() - after.keys():
        gone = f"shard public.{shard} was moved away from {nodes.name(node)}:5432, split or dropped during VACUUM, and was not vacuumed there"
        kept = (shard,) in nodes.connections[node].execute(SHARDS).fetchall()
        # it may have been vacuumed there before it was moved, and then it is named for where it has come to
        come = f"shard public.{shard} has come to "
        assert kept or gone in vacuum.messages or any(message.startswith(come) for message in vacuum.messages), (gone, vacuum.messages)


MODES = pytest.mark.parametrize("mode", ["block_writes", "force_logical"])
MOVE = "SELECT citus_move_shard_placement({}::bigint, '{}', 5432, '{}', 5432, '{}')"


@MODES
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "dropped"])
def test_a_shard_that_moves_meanwhile(nodes, writers, mode, is_kept):
    """It is vacuumed where it has come to, whether or not its old copy is still there."""
    before = placements(nodes)
    last = max(shard for node, shard in before if node == 1)
    with nodes.standing(1):
        vacuum = nodes.vacuum()
        wait_until(lambda: nodes.stands(1), "the VACUUM to wait")
        nodes.coordinator.execute(MOVE.format(last.split("_")[1], nodes.name(1), nodes.name(2), mode))
        if not is_kept:
            nodes.coordinator.execute("CALL citus_cleanup_orphaned_resources()")
        writers.wait_for_some()
    vacuum.finish()
    assert not writers.errors
    assert (2, last) in placements(nodes)
    assert_none_forgotten(nodes, vacuum, before)
    writers.assert_nothing_lost()


@MODES
def test_a_shard_that_is_split_meanwhile(nodes, writers, mode):
    """Its parts are vacuumed, and it is named.

    Citus 15.0devel on PostgreSQL 18.6, without us, too, never comes to the end of a logical split while rows are updated: "publisher
    did not send replica identity column".
    """
    before = placements(nodes)
    writers.only_new = mode == "force_logical"
    writers.wait_for_some()
    last = max(shard for node, shard in before if node == 1)
    query = "SELECT shardid, (shardminvalue::bigint + shardmaxvalue::bigint) / 2 FROM pg_dist_shard WHERE shardid = %s"
    shardid, middle = nodes.coordinator.execute(query, (last.split("_")[1],)).fetchone()
    node_ids = dict(nodes.coordinator.execute("SELECT nodename, nodeid FROM pg_dist_node").fetchall())
    with nodes.standing(1):
        vacuum = nodes.vacuum()
        wait_until(lambda: nodes.stands(1), "the VACUUM to wait")
        split = "SELECT citus_split_shard_by_split_points(%s, ARRAY[%s::text], ARRAY[%s, %s]::int[], %s)"
        nodes.coordinator.execute(split, (shardid, middle, node_ids[nodes.name(1)], node_ids[nodes.name(2)], mode))
        nodes.coordinator.execute("CALL citus_cleanup_orphaned_resources()")
        writers.wait_for_some()
    vacuum.finish()
    assert not writers.errors
    after = placements(nodes)
    assert len(after) == len(before) + 1 and not any(shard == last for _, shard in after)
    assert_none_forgotten(nodes, vacuum, before)
    writers.assert_nothing_lost()


def test_a_logical_move_of_what_is_compacted(nodes, writers):
    """A row that is moved at the source stays the same row for a subscriber; the target, to which a subscription writes, is not
    compacted."""
    before = placements(nodes)
    first = min(shard for node, shard in before if node == 1)
    # where Citus's own tests stop a logical move: its subscription is at work
    nodes.coordinator.execute("SELECT pg_advisory_lock(44000, 55152)")
    move = MOVE.format(first.split("_")[1], nodes.name(1), nodes.name(2), "force_logical")
    moving = Background(nodes.clusters[0], "postgres", move, {"citus.running_under_citus_test_suite": "on"})
    try:
        waiting = "SELECT FROM pg_locks WHERE pid = %s AND locktype = 'advisory' AND NOT granted"
        wait_until(lambda: nodes.coordinator.execute(waiting, (moving.pid,)).fetchall(), "the move to have caught up")
        nodes.vacuum().finish()
        assert placements(nodes)[1, first] < 0.8 * before[1, first]
        writers.wait_for_some()
        with nodes.clusters[2].connect() as target:
            said = []
            target.add_notice_handler(lambda notice: said.append((notice.message_primary, notice.message_detail)))
            target.execute("SET citus.enable_ddl_propagation = off")
            target.execute(f"VACUUM (FULL INPLACE) {first}")
        refused = f'rows of "{first}" cannot be moved, vacuuming only'
        assert said == [(refused, "A subscription of logical replication writes to it.")]
        writers.wait_for_some()
    finally:
        nodes.coordinator.execute("SELECT pg_advisory_unlock(44000, 55152)")
    moving.finish()
    nodes.vacuum().finish()
    assert not writers.errors
    assert (2, first) in placements(nodes)
    writers.assert_nothing_lost()


@MODES
def test_a_node_that_is_added_meanwhile(nodes, writers, mode):
    """Shards come to it, also those of reference tables."""
    before = placements(nodes)
    reference = placements(nodes, "reference")
    with ExitStack() as stack:
        with nodes.standing(1):
            vacuum = nodes.vacuum(tables="distributed, reference")
            wait_until(lambda: nodes.stands(1), "the VACUUM to wait")
            nodes.start_server(stack)
            nodes.coordinator.execute("SELECT citus_add_node(%s, 5432)", (nodes.name(3),))
            # to publish the one in hand, a move would wait for the VACUUM's end
            in_hand = min(shard for node, shard in before if node == 1).split("_")[1]
            rebalance = "SELECT rebalance_table_shards('distributed', excluded_shard_list := ARRAY[%s::bigint], shard_transfer_mode := %s)"
            nodes.coordinator.execute(rebalance, (in_hand, mode))
        try:
            vacuum.finish()
            assert not writers.errors
            assert any(node == 3 for node, _ in placements(nodes))
            assert_none_forgotten(nodes, vacuum, before)
            assert_none_forgotten(nodes, vacuum, reference, "reference")
            for node, shard in placements(nodes, "reference"):
                checks.assert_clean(nodes.connections[node], shard)
            writers.assert_nothing_lost()
        finally:
            writers.stop()
            nodes.coordinator.execute("SELECT citus_drain_node(%s, 5432, 'block_writes')", (nodes.name(3),))
            nodes.coordinator.execute("CALL citus_cleanup_orphaned_resources()")
            nodes.coordinator.execute("SELECT citus_remove_node(%s, 5432)", (nodes.name(3),))
            nodes.clusters.pop()
            nodes.connections.pop()


@pytest.mark.parametrize("point", ["heap-scan", "inplace-batch"])
def test_a_node_that_is_killed_and_comes_back(nodes, writers, point):
    """The others finish; nothing that was acknowledged is lost; and the next VACUUM does the rest."""
    before = placements(nodes)
    with nodes.standing(2, point):
        vacuum = nodes.vacuum()
        wait_until(lambda: nodes.stands(2), "the VACUUM to wait")
        writers.wait_for_some()
        nodes.clusters[2].crash()
        error = vacuum.wait()
        writers.wait_for_some()
        nodes.clusters[2].start()
        nodes.reconnect(0, 2)
    assert isinstance(error, psycopg.errors.ExternalRoutineException)
    assert error.diag.message_primary == "VACUUM failed on 1 of 2 nodes"
    assert error.diag.message_detail.startswith(f"{nodes.name(2)}:5432: ")
    for (node, shard), pages in placements(nodes).items():
        assert node == 2 or pages < 0.8 * before[node, shard]
    assert writers.errors, "nobody has noticed that the node was down"
    nodes.vacuum().finish()
    assert all(pages < 0.8 * before[key] for key, pages in placements(nodes).items())
    writers.assert_nothing_lost()
