"""The operating system's page cache: how much of files it holds, and files put out of it. For Linux."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def held(files: Iterable[Path]) -> int:
    """Return how many bytes of these files are in the page cache; those that are gone have none."""
    return sum(map(_held, files))


def drop(files: Iterable[Path]) -> None:
    """Put these files out of the page cache, after writing back what is dirty. Pages that a process has mapped may stay; see `held`."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def fill(files: Iterable[Path]) -> None:
    """Read these files into the page cache."""
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while stream.read(1 << 20):
                pass


def _held(file: Path) -> int:
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            return 0
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapping:
            resident = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            start = ctypes.c_char.from_buffer(mapping)
            failed = _libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), resident)
            del start  # the mapping can't be closed before
    finally:
        os.close(descriptor)
    if failed:
        raise OSError(ctypes.get_errno(), f"mincore of {file}")
    return bytes(resident).count(1) * mmap.PAGESIZE
