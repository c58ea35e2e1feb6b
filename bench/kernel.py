"""The kernel's figures of a server's VACUUM: processor time, the disk's traffic, and the page cache; and the speed that a program of our
own gets from the same disk, doing with files what VACUUM does with them.
"""

import ctypes
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from cyclone_lab import page_cache
from cyclone_lab.cluster import Cluster

SECTOR_BYTES = 512
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
CHUNK_BYTES = 128 << 10
BLOCK_BYTES = 8 << 10
BEHIND_BYTES = 64 << 20
PROGRAM_BYTES = 2 << 30  # what the program goes over, at most
_libc = ctypes.CDLL(None, use_errno=True)
_SYNC_FILE_RANGE = {"begin": 2, "wait": 1 | 2 | 4}


@dataclass(frozen=True)
class KernelUse:
    """The kernel's counters at a moment, or their growth between two."""

    user: float  # seconds of all processes of the server
    system: float
    disk_read: int  # bytes, by all that use that disk; 0 if the data is on none
    disk_written: int
    cached: int  # bytes of the table's files in the page cache

    def __sub__(self, before: "KernelUse") -> "KernelUse":
        return KernelUse(
            *(getattr(self, name) - getattr(before, name) for name in ("user", "system", "disk_read", "disk_written", "cached"))
        )


def kernel_use(cluster: Cluster, files: Iterable[Path]) -> KernelUse:
    """Return what the kernel counts now for a running server, and for these files."""
    return KernelUse(*server_times(cluster.postmaster.pid), *disk_traffic(cluster.data), page_cache.held(files))


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


def disk_traffic(folder: Path) -> tuple[int, int]:
    """Return how many bytes the disk of a folder has read and written since the machine's start; zeros if that is on none."""
    device = os.stat(folder).st_dev
    try:
        fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    except FileNotFoundError:
        return 0, 0
    return int(fields[2]) * SECTOR_BYTES, int(fields[6]) * SECTOR_BYTES


def data_files(cluster: Cluster) -> list[Path]:
    """Return the files of the cluster's databases."""
    return [file for file in (cluster.data / "base").rglob("*") if file.is_file()]


@dataclass(frozen=True)
class Way:
    """How the program treats a file: read it in CHUNK_BYTES, and write all back in pieces of `write` bytes, if not 0."""

    write: int
    behind: bool  # what it has passed is written back and dropped from the page cache

    @property
    def name(self) -> str:
        what = f"reads, rewrites in {self.write >> 10} kB" if self.write else "reads"
        return f"{what}, drops behind" if self.behind else what


WAYS = tuple(Way(write, behind) for write in (0, BLOCK_BYTES, CHUNK_BYTES) for behind in (False, True))


def program_rates(cluster: Cluster) -> dict[str, float]:
    """Return how many bytes a second the program goes over, in each way, of the largest files of a stopped cluster: not in the page
    cache before. It writes the bytes that it has read, and has ended when all are on the disk.
    """
    files, total = [], 0
    for file in sorted(data_files(cluster), key=lambda file: -file.stat().st_size):
        if total < PROGRAM_BYTES:
            files.append(file)
            total += file.stat().st_size
    rates = {}
    for way in WAYS:
        page_cache.drop(files)
        start = time.perf_counter()
        for file in files:
            _go_over(file, way)
        if way.write:
            _sync(files)
        rates[way.name] = total / (time.perf_counter() - start)
    page_cache.drop(files)
    return rates


def _sync(files: list[Path]) -> None:
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _go_over(file: Path, way: Way) -> None:
    descriptor = os.open(file, os.O_RDWR)
    try:
        offset = 0
        while chunk := os.pread(descriptor, CHUNK_BYTES, offset):
            for at in range(0, len(chunk), way.write) if way.write else ():
                os.pwrite(descriptor, chunk[at : at + way.write], offset + at)
            offset += len(chunk)
            if way.behind and offset % BEHIND_BYTES == 0:
                _leave_behind(descriptor, offset - BEHIND_BYTES, way)
    finally:
        os.close(descriptor)


def _leave_behind(descriptor: int, offset: int, way: Way) -> None:
    """Begin to write back BEHIND_BYTES from this offset, and drop those before; without writing drop them at once."""
    if way.write:
        _sync_file_range(descriptor, offset, "begin")
        offset -= BEHIND_BYTES
        if offset < 0:
            return
        _sync_file_range(descriptor, offset, "wait")
    os.posix_fadvise(descriptor, offset, BEHIND_BYTES, os.POSIX_FADV_DONTNEED)


def _sync_file_range(descriptor: int, offset: int, what: str) -> None:
    if _libc.sync_file_range(descriptor, ctypes.c_int64(offset), ctypes.c_int64(BEHIND_BYTES), _SYNC_FILE_RANGE[what]):
        raise OSError(ctypes.get_errno(), "sync_file_range")
