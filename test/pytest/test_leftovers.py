"""A crash of the server in the midst of a VACUUM FULL leaves no file behind once it has started again, and nothing is
removed that belongs to anything."""

import os
import re
from pathlib import Path

import psycopg
import pytest

from cyclone_lab import checks
from cyclone_lab.background import Parked, wait_until
from conftest import TEMPLATE

FULL = "VACUUM (FULL, PARALLEL 2) t"
POINTS = {
    "before the first file": "rewrite-begun:leader",
    "files created": "rewrite-created:leader",
    "copying": "heap-copy:any",
    "before the swap": "rewrite-swap:leader",
    "building an index": "no-point:any",
    "before the commit": "rewrite-swapped:leader",
}
FAR_AHEAD = 1 << 30


def database_folders(cluster, conn) -> list[Path]:
    """Return the folders of the connection's database, one for each tablespace."""
    [(oid,)] = conn.execute("SELECT oid FROM pg_database WHERE datname = current_database()")
    return [cluster.data / "base" / str(oid), *cluster.data.glob(f"pg_tblspc/*/PG_*/{oid}")]


def stray_files(cluster, conn) -> list[str]:
    """Return the relation files of the database that belong to no relation, once those that were dropped are gone."""
    conn.execute("CHECKPOINT")
    used = {str(number) for (number,) in conn.execute("SELECT pg_relation_filenode(oid) FROM pg_class") if number}
    return sorted(
        str(file.relative_to(cluster.data))
        for folder in database_folders(cluster, conn)
        for file in folder.iterdir()
        if re.match(r"\d", file.name) and re.match(r"\d+", file.name)[0] not in used
    )


def missing_files(cluster, conn) -> list[str]:
    """Return the relations that have no file but should."""
    rows = conn.execute("SELECT oid::regclass::text, pg_relation_filepath(oid) FROM pg_class WHERE relpersistence <> 't'")
    return [name for name, path in rows if path and not (cluster.data / path).exists()]


def journals(cluster) -> list[Path]:
    """Return the journals that there are."""
    folder = cluster.data / "pg_cyclone"
    return sorted(folder.iterdir()) if folder.exists() else []


def wait_for_cleaning(cluster) -> None:
    """Wait until the journals are gone that were there when the server started."""
    wait_until(lambda: not journals(cluster), "the cleaning")


def make_table(cluster, conn, kind: str = "") -> dict:
    """Make table t with a TOAST table, in one tablespace, with indexes in this and others, and room to gain; return its state.

    One of its indexes takes an advisory lock for each row, so that a test can stop its building.
    """
    for name in ("one", "two"):
        folder = cluster.home / f"tablespace-{name}"
        if not folder.exists():
            cluster_owned_folder(cluster, folder)
            conn.execute(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
    conn.execute(
        """
        CREATE OR REPLACE FUNCTION same(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock_shared(51966); RETURN i; END $$
        """
    )
    conn.execute(f"CREATE {kind} TABLE t (id int, note text, big text) TABLESPACE one")
    conn.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    conn.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    conn.execute("CREATE INDEX t_note ON t USING hash (note) TABLESPACE two")
    conn.execute("CREATE INDEX t_same ON t (same(id)) TABLESPACE two")
    conn.execute("CREATE INDEX t_last ON t (note)")
    fill(conn)
    assert stray_files(cluster, conn) == missing_files(cluster, conn) == []
    return checks.table_state(conn, "t")


def fill(conn) -> None:
    """Put rows into table t, and take away some."""
    conn.execute("INSERT INTO t SELECT i, md5(i::text), repeat(md5(i::text), 100) FROM generate_series(1, 2000) i")
    conn.execute("DELETE FROM t WHERE id % 3 = 0")
    conn.execute("VACUUM (INDEX_CLEANUP on) t")


def cluster_owned_folder(cluster, folder: Path) -> None:
    """Make a folder that belongs to who owns the data."""
    folder.mkdir()
    owner = cluster.data.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)


def crash_at(cluster, point: str, statement: str = FULL) -> None:
    """Have a VACUUM FULL come to this point, then kill every process."""
    settings = {"cyclone.debug_workers": 2, "max_parallel_maintenance_workers": 2}
    with Parked(cluster, TEMPLATE, point, 1, statement, settings) as vacuum:
        cluster.crash()
        assert isinstance(vacuum.wait(), psycopg.OperationalError)


def same_rows(state: dict, other: dict) -> bool:
    return (state["rows"], state["content_hash"]) == (other["rows"], other["content_hash"])


@pytest.mark.parametrize("wal_level", ["replica", "minimal"])
@pytest.mark.parametrize("kind", ["", "UNLOGGED"])
def test_nothing_is_left_over_by_a_crash(new_cluster, wal_level, kind):
    cluster = new_cluster(wal_level=wal_level, **({"max_wal_senders": 0} if wal_level == "minimal" else {}))
    with cluster.connect(TEMPLATE) as conn:
        before = make_table(cluster, conn, kind)
    for what, point in POINTS.items():
        crash_at(cluster, point)
        assert len(journals(cluster)) == 1
        cluster.start()
        wait_for_cleaning(cluster)
        with cluster.connect(TEMPLATE) as conn:
            assert stray_files(cluster, conn) == missing_files(cluster, conn) == [], what
            after = checks.table_state(conn, "t")
            assert after["rows"] == 0 if kind else same_rows(after, before), what
            checks.assert_clean(conn, "t")
            if kind:
                fill(conn)
    assert cluster.log.count(" of an unfinished VACUUM FULL") > len(POINTS)
    with cluster.connect(TEMPLATE) as conn:
        conn.execute(FULL)
        assert kind or same_rows(checks.table_state(conn, "t"), before)
        assert journals(cluster) == stray_files(cluster, conn) == missing_files(cluster, conn) == []
