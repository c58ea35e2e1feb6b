"""The files of a server's databases, compared with what its catalogs say, pg_cyclone's journals of rewrites, and room for files."""

import re
import shutil
import struct
from pathlib import Path

import psycopg

from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster

GIBIBYTE = 1 << 30
# As in src/new_files/journal.h.
_RECORD = struct.Struct("=QQIIIIQ")
BEGIN, SPACE, FILE, TRIED = range(1, 5)


def assert_free(folder: Path, needed: float, advice: str) -> None:
    """Raise RuntimeError, with this advice, unless `needed` bytes are free where `folder` is."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RuntimeError(f"{folder} has {free / GIBIBYTE:.1f} GB left, and {needed / GIBIBYTE:.1f} GB are needed: {advice}")


def database_folders(cluster: Cluster, conn: psycopg.Connection) -> list[Path]:
    """Return the folders of the connection's database, one for each tablespace."""
    [(oid,)] = conn.execute("SELECT oid FROM pg_database WHERE datname = current_database()")
    return [cluster.data / "base" / str(oid), *cluster.data.glob(f"pg_tblspc/*/PG_*/{oid}")]


def table_files(cluster: Cluster, conn: psycopg.Connection, table: str) -> list[Path]:
    """Return the files of a table and of its indexes, all segments and forks."""
    paths = conn.execute(
        "SELECT pg_relation_filepath(oid) FROM pg_class"
        " WHERE oid = %(table)s::regclass OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = %(table)s::regclass)",
        {"table": table},
    )
    return [file for (path,) in paths for pattern in (path, f"{path}[._]*") for file in cluster.data.glob(pattern)]


def stray_files(cluster: Cluster, conn: psycopg.Connection) -> list[str]:
    """Return the relation files of the connection's database that belong to no relation, once those that were dropped are gone."""
    conn.execute("CHECKPOINT")
    used = {str(number) for (number,) in conn.execute("SELECT pg_relation_filenode(oid) FROM pg_class") if number}
    return sorted(
        str(file.relative_to(cluster.data))
        for folder in database_folders(cluster, conn)
        for file in folder.iterdir()
        if re.match(r"\d", file.name) and re.match(r"\d+", file.name)[0] not in used
    )


def missing_files(cluster: Cluster, conn: psycopg.Connection) -> list[str]:
    """Return the relations of the connection's database that have no file but should."""
    rows = conn.execute("SELECT oid::regclass::text, pg_relation_filepath(oid) FROM pg_class WHERE relpersistence <> 't'")
    return [name for name, path in rows if path and not (cluster.data / path).exists()]


def journals(cluster: Cluster) -> list[Path]:
    """Return the journals that there are, but for those that were set aside."""
    folder = cluster.data / "pg_cyclone"
    return sorted(path for path in folder.glob("rewrite-*") if path.suffix != ".damaged")


def wait_for_cleaning(cluster: Cluster) -> None:
    """Wait until no journal is left, on a server that rewrites nothing; a cleaner starts when a transaction commits."""
    wait_until(lambda: cluster.sql("SELECT 1") and not journals(cluster), "the cleaning")


def journal_record(
    system_id: int, kind: int, database: int, *, tablespace: int = 0, file: int = 0, next_oid: int = 0, number: int = 0
) -> bytes:
    """Return a record of a journal; see src/new_files/journal.h."""
    return _checked(_RECORD.pack(system_id, number, tablespace, database, file, next_oid, kind))


def journal_header() -> bytes:
    """Return what a journal begins with; see src/small_file.c and src/new_files/journal.c."""
    return _checked(struct.pack("=III", 0x43594A52, 2, _RECORD.size))


def _checked(data: bytes) -> bytes:
    return data + struct.pack("=I", crc32c(data))


def crc32c(data: bytes) -> int:
    """Return the checksum that PostgreSQL uses."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
