"""What a server's VACUUM uses: processor time, reads and writes, and the page cache."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

import psycopg

from cyclone_lab import page_cache
from cyclone_lab.cluster import Cluster

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
# before PostgreSQL 18 all reads and writes are of op_bytes
RELATION_BYTES = """
    SELECT coalesce(sum(coalesce(to_jsonb(io) ->> 'read_bytes', (reads * (to_jsonb(io) ->> 'op_bytes')::bigint)::text)::numeric), 0)::bigint,
           coalesce(sum(coalesce(to_jsonb(io) ->> 'write_bytes', (writes * (to_jsonb(io) ->> 'op_bytes')::bigint)::text)::numeric), 0)::bigint
    FROM pg_stat_io io WHERE object = 'relation'
"""


@dataclass(frozen=True)
class Use:
    """Counters of the server and the kernel at a moment, or their growth between two."""

    read: int  # bytes of relations, by all processes of the server
    written: int
    user: float  # seconds of all processes of the server
    system: float
    cached: int  # bytes of the table's files in the page cache

    def __sub__(self, before: "Use") -> "Use":
        return Use(*(now - then for now, then in zip(astuple(self), astuple(before))))


def use_of(cluster: Cluster, conn: psycopg.Connection, files: Iterable[Path]) -> Use:
    """Return what is counted now for a running server, and for these files; the session's own statistics are flushed."""
    conn.execute("SELECT pg_stat_force_next_flush()")
    [(read, written)] = conn.execute(RELATION_BYTES)
    return Use(read, written, *server_times(cluster.postmaster.pid), page_cache.held(files))


def server_times(postmaster: int) -> tuple[float, float]:
    """Return the processor seconds of the whole server since its start, of processes that have ended, too: those in user mode, and
    those in the kernel.
    """
    user, system, ended_user, ended_system = _times(postmaster)
    times = [(user + ended_user, system + ended_system)]
    for child in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split():
        with suppress(OSError):  # it has ended
            times.append(_times(int(child))[:2])
    return tuple(map(sum, zip(*times)))


def _times(pid: int) -> list[float]:
    """Return a process's seconds in user mode and in the kernel, and those of its children that have ended; raise OSError if it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) * TICK_SECONDS for field in fields[11:15]]


def session_ns(conn: psycopg.Connection) -> int:
    """Return the processor time that a session's process has used so far."""
    return int(Path(f"/proc/{conn.info.backend_pid}/schedstat").read_text().split()[0])


def data_files(cluster: Cluster) -> list[Path]:
    """Return the files of the cluster's databases."""
    return [file for file in (cluster.data / "base").rglob("*") if file.is_file()]
