"""A disk that gets full of WAL which nobody retains: a VACUUM of any kind asks for a checkpoint in time, and the server stays up."""

import re
import time

import psycopg
import pytest

from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, wait_until
from test_guards import (
    AT_REST,
    HELD_BY_DISK,
    SETTINGS,
    assert_done,
    assert_rows_kept,
    change,
    files,
    make_table,
    one,
    pace_of,
    pinned,
    run_on_full_disk,
    stopped,
)


def write_segments(conn, number: int) -> None:
    """Fill files of WAL, as if much had been written since the last checkpoint."""
    conn.execute("CHECKPOINT")
    for _ in range(number):
        conn.execute("SELECT txid_current()")  # or there would be nothing to switch from
        conn.execute("SELECT pg_switch_wal()")


@pytest.fixture
def unretained(new_cluster):
    """A server that keeps no files for WAL to come, and makes no checkpoint by itself; it seems to have little room."""
    config = {"wal_recycle": "off", "min_wal_size": "32MB", "checkpoint_timeout": "1h", "autovacuum": "off", "cyclone.min_free_disk": "10MB"}
    cluster = new_cluster(**config)
    with cluster.connect("postgres") as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        checks.create_extensions(conn)
        yield cluster, conn


@pytest.mark.parametrize(
    "options",
    [
        "PARALLEL 2, FREEZE",
        pytest.param("FULL INPLACE, PARALLEL 2", marks=pytest.mark.once),
        pytest.param("FULL, PARALLEL 0", marks=pytest.mark.once),
    ],
)
def test_a_checkpoint_makes_room_for_wal(unretained, options):
    """It is asked for where nothing retains WAL, and more has been written than there is room left; VACUUM waits for it."""
    cluster, conn = unretained
    before = make_table(conn)
    write_segments(conn, 6)
    since = one(conn, "SELECT pg_current_wal_lsn()")
    [(checkpointer,)] = conn.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").fetchall()
    with stopped(checkpointer):
        settings = {**SETTINGS, "cyclone.debug_free_disk_mb": 40}
        vacuum = Background(cluster, "postgres", f"VACUUM ({options}, VERBOSE) t", settings)
        wait_until(lambda: one(conn, HELD_BY_DISK) > 0, "the wait")
        wait_until(lambda: one(conn, AT_REST.replace("'CyclonePaused'", "'CycloneDiskSpace'")) == 0 and pinned(conn) == [], "the halt")
        row = pace_of(conn, vacuum.pid)
        assert (row["limited_by"], row["held_by"], row["figure"], row["bound"]) == ("disk space", "checkpoint", 40 << 20, 64 << 20)
        assert vacuum.running
    vacuum.finish()
    assert any(re.search(r"^held: for \d+\.\d{3} s to keep to cyclone.min_free_disk$", said, re.MULTILINE) for said in vacuum.messages)
    assert len(re.findall('VACUUM of table ".*" asks for checkpoints, to make room for WAL', cluster.log)) == 1  # maybe of TOAST
    assert one(conn, "SELECT redo_lsn >= %s FROM pg_control_checkpoint()", since)
    assert one(conn, "SELECT sum(disk_space_seconds) > 0 FROM cyclone.history_details")
    assert_rows_kept(conn, before)


@pytest.mark.once
@pytest.mark.parametrize("options, end", [("PARALLEL 2, FREEZE", "reload"), ("PARALLEL 2, FREEZE", "cancel"), ("FULL, PARALLEL 0", "error")])
def test_a_checkpoint_makes_no_room_for_wal(unretained, options, end):
    """Others have filled the disk: then VACUUM stands still, as where WAL is retained, and VACUUM FULL ends.

    Even with a file that the server has made for later there is room for less than two.
    """
    cluster, conn = unretained
    before = make_table(conn)
    with files(conn, **{"cyclone.min_free_disk": "4MB"}):
        vacuum = Background(cluster, "postgres", f"VACUUM ({options}) t", {**SETTINGS, "cyclone.debug_free_disk_mb": 8})
        if end != "error":
            wait_until(lambda: (pace_of(conn, vacuum.pid) or {}).get("held_by") == "full disk", "no room")
            assert vacuum.running and pinned(conn) == []
        if end == "cancel":
            conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
            assert isinstance(vacuum.wait(), psycopg.errors.QueryCanceled)
        elif end == "reload":
            change(conn, **{"cyclone.min_free_disk": "0"})
            vacuum.finish()
        else:
            error = vacuum.wait()
            assert isinstance(error, psycopg.errors.DiskFull) and "64 MB should stay free" in error.diag.message_detail, error
    conn.execute("VACUUM (FREEZE) t")
    assert_done(conn, before)


@pytest.mark.once
def test_moving_rows_ends_where_a_checkpoint_makes_no_room(unretained):
    """With what it has achieved, and a warning; what is left of its work is done."""
    cluster, conn = unretained
    before = make_table(conn)
    write_segments(conn, 1)  # near the end of a file the server makes the next one, which is room
    with files(conn, **{"cyclone.min_free_disk": "0"}):
        settings = {**SETTINGS, "cyclone.debug_batch_ms": 1, "cyclone.debug_free_disk_mb": 20}
        with Parked(cluster, "postgres", "inplace-pause:any", 1, "VACUUM (FULL INPLACE) t", settings) as vacuum:
            change(conn, **{"cyclone.min_free_disk": "10MB"})
            vacuum.step()  # a batch, in which it reads the new value
            time.sleep(1.1)  # since the last look; that it takes longer does no harm
            vacuum.release()
            vacuum.finish()
    assert any('rows of "t" cannot be moved any more' in said for said in vacuum.messages)
    assert_rows_kept(conn, before)


# As FULL_DISK; nothing retains WAL
UNRETAINED = """
import sys
from pathlib import Path
from cyclone_lab.small_disk import can_be_small, move_wal

why_not = can_be_small()
if why_not:
    sys.exit(f"no small disk: {why_not}")

from cyclone_lab import checks
from cyclone_lab.cluster import Cluster

config = {
    "shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "wal_keep_size": 0, "max_wal_size": "64MB",
    "min_wal_size": "32MB", "max_parallel_maintenance_workers": 2, "min_parallel_table_scan_size": 0, "cyclone.min_free_disk": sys.argv[2],
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
        conn.execute("ALTER SYSTEM SET min_wal_size = '80MB'")
        conn.execute("SELECT pg_reload_conf()")
        conn.execute("CHECKPOINT")  # from now on each page's first change is an image
        disk.leave(40 << 20)
        conn.execute(f"VACUUM ({sys.argv[3]}) t")
        after = checks.table_state(conn, "t")
        assert (after["rows"], after["content_hash"]) == (before["rows"], before["content_hash"])
        checks.assert_clean(conn, "t")
        assert "PANIC" not in cluster.log
        assert 'asks for checkpoints, to make room for WAL' in cluster.log
        conn.close()
        print("still up")
    finally:
        cluster.stop("immediate")
        disk.remove()
"""


@pytest.mark.parametrize(
    "options",
    [
        "FULL INPLACE, PARALLEL 2",
        pytest.param("FULL INPLACE, PARALLEL 0", marks=pytest.mark.once),
        pytest.param("FREEZE, PARALLEL 2", marks=pytest.mark.once),
        pytest.param("FULL, PARALLEL 0", marks=pytest.mark.once),
    ],
)
def test_wal_that_nobody_retains_does_not_fill_the_disk(prefix, options):
    """The server stays up although there is less room than max_wal_size, and VACUUM comes to its end."""
    done = run_on_full_disk(prefix, "5%", options, script=UNRETAINED)
    assert done.returncode == 0 and "still up" in done.stdout, done.stdout + done.stderr


@pytest.mark.full
def test_without_the_guard_wal_that_nobody_retains_does(prefix):
    """Or the test before would prove nothing."""
    done = run_on_full_disk(prefix, "0", "FULL INPLACE, PARALLEL 0", script=UNRETAINED)
    assert done.returncode != 0 and "still up" not in done.stdout, done.stdout + done.stderr
