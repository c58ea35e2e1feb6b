"""A disk that is full, with the WAL on it: no VACUUM takes the server down, and docs/disk-full.md makes room from 0 kB on."""

import subprocess

import pytest

from test_guards import run_on_full_disk

# Processes of their own, as a small disk is made before there is a second thread
BEGIN = """
import sys
from pathlib import Path
from cyclone_lab.small_disk import can_be_small, move_data, move_wal

why_not = can_be_small()
if why_not:
    sys.exit(f"no small disk: {why_not}")

import psycopg
from cyclone_lab import checks
from cyclone_lab.cluster import Cluster

MB = 1 << 20
"""

# The page's steps, with 0 kB free
AS_THE_PAGE_SAYS = BEGIN + """
# no file is kept for WAL to come, and none is removed before there is a checkpoint
config = {
    "shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "wal_recycle": "off", "min_wal_size": "32MB",
    "checkpoint_timeout": "1h",
}
with Cluster.create(Path(sys.argv[1]), config) as cluster:
    disk = move_data(cluster, 700)
    try:
        cluster.start()
        conn = cluster.connect()
        conn.execute("CREATE EXTENSION pg_cyclone; CREATE ROLE alice LOGIN; CREATE SCHEMA alice AUTHORIZATION alice")
        checks.create_extensions(conn)
        with cluster.connect(user="alice") as owner:
            owner.execute("CREATE TABLE tiny AS SELECT 1 AS i")
            owner.execute("VACUUM tiny")
        conn.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
        for part in range(4):
            conn.execute("INSERT INTO orders SELECT i, repeat(md5(i::text), 3) FROM generate_series(%s::int, %s::int) i",
                         (part * 150000 + 1, part * 150000 + 150000))
            conn.execute("CHECKPOINT")
        conn.execute("DELETE FROM orders WHERE id % 8 <> 0")
        before = checks.table_state(conn, "orders")
        ballast = disk.folder / "ballast"
        ballast.write_bytes(b"x" * MB)
        with open(disk.folder / "rest", "ab", 0) as rest:
            try:
                while rest.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        free = disk.free()
        assert free < 4096, free

        # a table's owner has an error, and nobody anything else
        with cluster.connect(user="alice") as owner:
            for statement in ("VACUUM tiny", "VACUUM (FREEZE) tiny", "VACUUM (FULL) tiny", "VACUUM (FULL INPLACE) tiny"):
                try:
                    owner.execute(statement)
                except psycopg.errors.DiskFull as error:
                    print("refused:", error.diag.message_detail)
        assert conn.execute("SELECT 1").fetchone() == (1,) and "PANIC" not in cluster.log

        ballast.unlink()
        for statement in ("ALTER SYSTEM SET max_wal_size = '64MB'", "SELECT pg_reload_conf()", "CHECKPOINT"):
            conn.execute(statement)
        size = "SELECT pg_relation_size('orders')"
        for run in range(20):
            try:
                conn.execute("VACUUM (FULL INPLACE, INDEX_CLEANUP off) orders")
            except psycopg.errors.DiskFull as error:
                print("run", run, error.diag.message_primary)
            conn.execute("CHECKPOINT")
            if conn.execute(size).fetchone()[0] < 12 * MB:
                break
        print("runs:", run + 1)
        assert conn.execute(size).fetchone()[0] < 12 * MB, conn.execute(size).fetchone()
        conn.execute("VACUUM (FULL INPLACE) orders")
        assert conn.execute("SELECT pg_relation_size('orders_pkey')").fetchone()[0] < 4 * MB
        after = checks.table_state(conn, "orders")
        assert (after["rows"], after["content_hash"]) == (before["rows"], before["content_hash"])
        checks.assert_clean(conn, "orders", "alice.tiny")
        assert "PANIC" not in cluster.log
        conn.close()
        print("still up")
    finally:
        cluster.stop("immediate")
        disk.remove()
"""

# WAL that only the next checkpoint would remove, and no checkpoint that comes by itself
UNTIL_FULL = BEGIN + """
config = {
    "shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "wal_keep_size": 0, "max_wal_size": "64MB",
    "min_wal_size": "32MB", "max_parallel_maintenance_workers": 2, "min_parallel_table_scan_size": 0, "cyclone.min_free_disk": sys.argv[2],
    "checkpoint_timeout": "1h", "cyclone.debug_longest_hold": 1000,
}
with Cluster.create(Path(sys.argv[1]), config) as cluster:
    disk = move_wal(cluster, 600)
    try:
        cluster.start()
        conn = cluster.connect()
        conn.execute("CREATE EXTENSION pg_cyclone")
        checks.create_extensions(conn)
        conn.execute("CREATE TABLE t (id int, note text)")
        conn.execute("CREATE INDEX ON t (id)")
        for part in range(8):
            conn.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(%s::int, %s::int) i", (part * 15000 + 1, part * 15000 + 15000))
            conn.execute("CHECKPOINT")
        conn.execute("DELETE FROM t WHERE id % 2 = 0")
        conn.execute("CHECKPOINT")
        before = checks.table_state(conn, "t")
        conn.execute("ALTER SYSTEM SET max_wal_size = '1GB'")  # as it is by default
        conn.execute("SELECT pg_reload_conf()")
        conn.execute("CHECKPOINT")  # from now on each page's first change is an image
        disk.leave(40 << 20)
        # a rewrite begins anew each time, and others get further
        for run in range(1 if "FULL," in sys.argv[3] else 20):
            try:
                conn.execute(f"VACUUM ({sys.argv[3]}) t")
                break
            except psycopg.errors.DiskFull as error:
                print("ended:", error.diag.message_detail, error.diag.message_hint)
                conn.execute("CHECKPOINT")
        else:
            assert "FULL," in sys.argv[3], "it never comes to its end"
            disk.leave(1 << 30)
            conn.execute(f"VACUUM ({sys.argv[3]}) t")
        after = checks.table_state(conn, "t")
        assert (after["rows"], after["content_hash"]) == (before["rows"], before["content_hash"])
        checks.assert_clean(conn, "t")
        assert "PANIC" not in cluster.log
        conn.close()
        print("still up")
    finally:
        cluster.stop("immediate")
        disk.remove()
"""


def assert_still_up(done: subprocess.CompletedProcess) -> None:
    assert done.returncode == 0 and "still up" in done.stdout, done.stdout + done.stderr


def test_room_is_made_as_the_page_says(prefix):
    """With 0 kB free a VACUUM of any kind is refused and nothing else happens; then the steps of docs/disk-full.md make room."""
    done = run_on_full_disk(prefix, "5%", script=AS_THE_PAGE_SAYS)
    assert_still_up(done)
    assert done.stdout.count("refused:") == 4, done.stdout


@pytest.mark.parametrize(
    "options",
    [
        "FREEZE, PARALLEL 2",
        pytest.param("FREEZE, PARALLEL 0", marks=pytest.mark.once),
        pytest.param("FULL INPLACE", marks=pytest.mark.once),
        pytest.param("FULL, PARALLEL 0", marks=pytest.mark.once),
    ],
)
def test_no_vacuum_fills_the_disk_with_wal(prefix, options):
    """It ends with an error before that, and after a CHECKPOINT goes on where it was."""
    assert_still_up(run_on_full_disk(prefix, "5%", options, script=UNTIL_FULL))


@pytest.mark.full
def test_without_the_guard_it_does(prefix):
    """Or the test before would prove nothing."""
    done = run_on_full_disk(prefix, "0", "FREEZE, PARALLEL 0", script=UNTIL_FULL)
    assert done.returncode != 0 and "still up" not in done.stdout, done.stdout + done.stderr
