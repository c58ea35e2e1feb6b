"""A disk that is full, with the WAL on it: no VACUUM takes the server down, and docs/disk-full.md makes room from 0 kB on."""

import os
import subprocess
import sys

import pytest

from cyclone_lab.postgres import REPO

# Processes of their own, as a small disk is made before there is a second thread
BEGIN = """
import sys
import psycopg
from cyclone_lab import checks
from cyclone_lab.small_disk import move_data, move_wal, server_on

MB = 1 << 20
"""

# The page's steps, with 0 kB free
AS_THE_PAGE_SAYS = BEGIN + """
# no file is kept for WAL to come, and none is removed before there is a checkpoint
config = {"wal_recycle": "off", "min_wal_size": "32MB", "checkpoint_timeout": "1h"}
with server_on(move_data, 700, sys.argv[1], config) as (cluster, disk, conn):
    conn.execute("CREATE ROLE alice LOGIN; CREATE SCHEMA alice AUTHORIZATION alice")
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
print("still up")
"""

# WAL that only the next checkpoint would remove, and no checkpoint that comes by itself
UNTIL_FULL = BEGIN + """
config = {
    "wal_keep_size": 0, "max_wal_size": "64MB",
    "min_wal_size": "32MB", "max_parallel_maintenance_workers": 2, "min_parallel_table_scan_size": 0, "cyclone.min_free_disk": sys.argv[2],
    "checkpoint_timeout": "1h", "cyclone.debug_longest_hold": 1000,
}
with server_on(move_wal, 600, sys.argv[1], config) as (cluster, disk, conn):
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
print("still up")
"""


UNTIL_HELD = BEGIN + """
from cyclone_lab.background import Background, wait_until

DISK_MB = 160
HELD = "SELECT held_by FROM cyclone.pace WHERE limited_by = 'disk space'"
config = {
    "archive_mode": "on", "archive_command": "true",
    "wal_keep_size": 0, "max_wal_size": "64MB", "min_wal_size": "32MB", "wal_recycle": "off", "checkpoint_completion_target": 0,
    "cyclone.min_free_disk": sys.argv[2],
}
with server_on(move_wal, DISK_MB, sys.argv[1], config) as (cluster, disk, conn):
    def archived():
        # by the folder: a process that hasn't written since may have a removed file open, which takes room until it writes
        conn.execute("CHECKPOINT")
        return conn.execute("SELECT count(*) <= 2 FROM pg_ls_waldir()").fetchone()[0]

    conn.execute("CREATE TABLE t (id int, note text)")
    conn.execute("CREATE INDEX ON t (id)")
    for part in range(8):
        conn.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(%s::int, %s::int) i", (part * 15000 + 1, part * 15000 + 15000))
        conn.execute("DELETE FROM t WHERE id > %s AND id %% 100 = 0", (part * 15000,))
        wait_until(archived, "WAL to be archived and removed")
    before = checks.table_state(conn, "t")
    conn.execute("ALTER SYSTEM SET archive_command = 'false'")
    conn.execute("SELECT pg_reload_conf()")
    wait_until(lambda: conn.execute("SHOW archive_command").fetchone() == ("false",), "the reload")
    conn.execute("CHECKPOINT")  # from now on each page's first change is an image
    vacuum = Background(cluster, "postgres", "VACUUM (PARALLEL 1, FREEZE) t")
    held = wait_until(lambda: conn.execute(HELD).fetchall() or not vacuum.running, "the wait")
    assert held == [("archiver",)], (held, vacuum.error)
    free = DISK_MB - disk.used() / MB
    assert 16 <= free < 64, free
    conn.execute("INSERT INTO t VALUES (0, 'others write')")
    conn.execute("DELETE FROM t WHERE id = 0")
    assert vacuum.running and conn.execute(HELD).fetchall() == [("archiver",)]
    # nothing retains WAL then, and VACUUM leaves the rest to checkpoints: so they come, and it writes slowly
    conn.execute("ALTER SYSTEM SET cyclone.max_wal_rate = '16MB'")
    conn.execute("SELECT pg_reload_conf()")
    wait_until(lambda: conn.execute("SHOW cyclone.max_wal_rate").fetchone() == ("16MB",), "the reload")
    assert conn.execute("SELECT cyclone.pause(%s)", (vacuum.pid,)).fetchone() == (True,)
    conn.execute("ALTER SYSTEM SET archive_command = 'true'")
    conn.execute("SELECT pg_reload_conf()")
    wait_until(archived, "WAL to be archived and removed")
    assert vacuum.running and conn.execute("SELECT cyclone.resume(%s)", (vacuum.pid,)).fetchone() == (True,)
    while vacuum.running:
        conn.execute("CHECKPOINT")
    vacuum.finish()
    after = checks.table_state(conn, "t")
    assert (after["rows"], after["content_hash"]) == (before["rows"], before["content_hash"])
    checks.assert_clean(conn, "t")
print(f"held with {free:.0f} MB free")
"""


def run_on_full_disk(prefix, min_free: str, *options: str, script: str) -> subprocess.CompletedProcess:
    done = subprocess.run([sys.executable, "-c", script, prefix, min_free, *options], text=True, capture_output=True,
                          env={**os.environ, "PYTHONPATH": str(REPO / "test")})  # fmt: skip
    if "no small disk: " in done.stderr:
        pytest.xfail(f"NOT TESTED: a disk that gets full of WAL: {done.stderr.strip()}")
    return done


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


@pytest.mark.once
def test_an_archiver_that_fails_does_not_fill_the_disk(prefix):
    """The server stays up, with the guard alone between it and its end; VACUUM goes on when the archiver does."""
    done = run_on_full_disk(prefix, "64MB", script=UNTIL_HELD)
    assert done.returncode == 0 and "held with" in done.stdout, done.stdout + done.stderr


@pytest.mark.full
def test_without_the_guard_an_archiver_does(prefix):
    """Or the test before would prove nothing."""
    done = run_on_full_disk(prefix, "0", script=UNTIL_HELD)
    assert done.returncode != 0 and "held with" not in done.stdout, done.stdout + done.stderr
