"""The proof of a workload's tables in crash test, fault test, soak and twins: by the ledger, and by all `checks`."""

import re
import time

import psycopg

from cyclone_lab import checks, hnsw
from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster, what_was_forgotten
from long_runs.workload import VECTORS, Workload

PROVING = "VACUUM (INDEX_CLEANUP on, DISABLE_PAGE_SKIPPING, PARALLEL 2)"
# An error of PostgreSQL's own VACUUM, autovacuum included, about sound rows that it has left with the lock of an ended transaction
# (test/upstream/stale-row-lock.md). pg_cyclone's removes such a lock, and never says so; that is not forgiven anywhere.
STALE_LOCK = re.compile(r"found xmax \d+ from before relfrozenxid \d+")
STALE_LOCK_COUNT = "known bug of PostgreSQL: found xmax from before relfrozenxid"
# Assertions of PostgreSQL's own that fail although the data is right (test/upstream/aborted-update-lock.md
# and stale-row-lock.md): a row is updated whose update was rolled back to a savepoint while it was locked; VACUUM can't get the
# cleanup lock of a page with such a lock as STALE_LOCK is about.
SERVER_ASSERTION = re.compile(
    r'TRAP: failed Assert\("(HEAP_XMAX_IS_LOCKED_ONLY\(infomask_lock_old_tuple\)|TransactionIdPrecedesOrEquals\(cutoffs->relfrozenxid, xid\))"\),'
    r' File: "(?:[^"]*/)?heapam\.c"'
)  # fmt: skip
# A VACUUM in several rounds leaves entries of removed rows in a GIN index (test/upstream/gin-pending-list.md). pg_cyclone's doesn't.
PENDING_LIST_COUNT = "known bug of PostgreSQL: entries of removed rows in a GIN index"
PATIENCE = 300  # for a recovery that compares each page
DANGLES = re.compile(r"index (\S+), block \d+, item \d+ dangles: ")
ASSERTION_COUNT = "known bug of PostgreSQL: an assertion that ends the server"


def heaps_of(conn: psycopg.Connection, workload: Workload) -> list[str]:
    """Return the heaps of all tables, TOAST tables included."""
    return [heap for table in workload.readable(conn) for heap in checks.heaps(conn, table.name)]


def assert_sound_before_vacuum(conn: psycopg.Connection, workload: Workload, *, doubtful: frozenset[str] = frozenset()) -> int:
    """The tables are sound, though a VACUUM may have been interrupted, and transactions may be prepared; also on a standby.

    Of indexes that are doubtful entries may dangle; return how many do.
    """
    [(on_standby,)] = conn.execute("SELECT pg_is_in_recovery()")
    problems = []
    for heap in heaps_of(conn, workload):
        problems += checks.heap_corruption(conn, heap)
        problems += checks.btree_corruption(conn, heap, beside_writers=True)
        problems += checks.dangling_index_entries(conn, heap, between_passes=True)
        for index in checks.indexes_of(conn, heap, "hnsw"):
            problems += hnsw.errors_before_vacuum(conn, heap, index) + hnsw.search_errors(conn, heap, index, all_found=False)
        if not on_standby:  # where pg_visibility's checks don't run in PostgreSQL 17 with assertions
            problems += checks.visibility_map_errors(conn, heap)
    forgiven = [problem for problem in problems if (found := DANGLES.match(problem)) and found[1] in doubtful]
    problems = [problem for problem in problems if problem not in forgiven]
    assert not problems, f"{len(problems)} problems before VACUUM:\n" + "\n".join(problems[:20])
    return len(forgiven)


def vacuum_all(conn: psycopg.Connection, workload: Workload) -> None:
    """Let VACUUM pass over everything. In the table of vectors there is a dead row, as it repairs a graph only if there is."""
    if VECTORS in workload.tables:
        conn.execute("BEGIN; INSERT INTO vectors VALUES (-1, 0, 0, 0, '{}', '(0,0)', ''); ROLLBACK")
    conn.execute(f"{PROVING} {', '.join(table.name for table in workload.tables)}")


def assert_sound(conn: psycopg.Connection, workload: Workload) -> None:
    """After `vacuum_all`, with nobody else at work: everything is as the ledgers say, every check passes, nothing was forgotten."""
    problems = what_was_forgotten()
    for heap in heaps_of(conn, workload):
        problems += checks.free_space_errors(conn, heap)
        if not heap.startswith("pg_toast."):
            problems += checks.index_scan_errors(conn, heap)
        for index in checks.indexes_of(conn, heap, "hnsw"):
            problems += [f"index {index}: {problem}" for problem in hnsw.graph_problems(hnsw.read(conn, index))]
            problems += hnsw.errors_before_vacuum(conn, heap, index) + hnsw.search_errors(conn, heap, index, all_found=True)
    assert not problems, f"{len(problems)} problems after VACUUM:\n" + "\n".join(problems[:20])
    checks.assert_clean(conn, *(table.name for table in workload.tables))
    workload.assert_content(conn)


def wait_for_restart(cluster: Cluster) -> None:
    """Wait until a server that may be restarting itself takes connections; start it if it is down."""

    def up() -> bool:
        if not cluster.running:  # recovery ends, too, while the disk still fails
            cluster.start()
        try:
            cluster.connect().close()
            return True
        except psycopg.OperationalError:
            time.sleep(0.02)
            return False

    wait_until(up, "the restart of the server", PATIENCE)
