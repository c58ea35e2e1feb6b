"""A small disk, as an ordinary user has none: a file system in memory that only this process and its children see.

Linux lets a process have mounts of its own: root at once, others in a user namespace of their own where the system allows that. The
file system is gone when the last process that sees it has ended.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from cyclone_lab import checks
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import hand_over

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REMOUNT, MS_REC, MS_PRIVATE = 0x20, 0x4000, 0x40000
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


class Disk:
    """A folder whose files take room on a small file system if there can be one, else on that of the folder."""

    def __init__(self, folder: Path, *, small: bool, megabytes: int):
        """Make the folder; `small` is what `can_be_small` said. It has room for `megabytes` until `leave`."""
        self.folder, self.small = folder, small
        folder.mkdir()
        if small:
            _mount("tmpfs", folder, 0, f"size={megabytes}m,mode=700")
        hand_over(folder)

    def leave(self, free: int) -> None:
        """From now on only `free` bytes are free, if the disk is small. A page is the least that is given, so it may be some kB less."""
        if self.small:
            _mount("tmpfs", self.folder, MS_REMOUNT, f"size={self.used() + free}")

    def used(self) -> int:
        """Return how many bytes the files take."""
        if self.small:
            state = os.statvfs(self.folder)
            return (state.f_blocks - state.f_bfree) * state.f_frsize
        sizes = 0
        for folder, _, files in os.walk(self.folder):
            for file in files:
                try:
                    sizes += os.stat(os.path.join(folder, file)).st_blocks * 512
                except FileNotFoundError:  # removed just now
                    pass
        return sizes

    def free(self) -> int:
        """Return how many bytes are free."""
        state = os.statvfs(self.folder)
        return state.f_bavail * state.f_frsize

    def remove(self) -> None:
        """Take a small disk away; its files are not in use any more."""
        if self.small:
            _libc.umount2(os.fsencode(self.folder), MNT_DETACH)


def move_wal(cluster: Cluster, megabytes: int) -> Disk:
    """Put the WAL of a cluster that is stopped on a small disk of its own, which `can_be_small` allowed; return the disk."""
    return _move(cluster.data / "pg_wal", Disk(cluster.home / "wal", small=True, megabytes=megabytes))


def move_data(cluster: Cluster, megabytes: int) -> Disk:
    """The same for all of its data directory."""
    return _move(cluster.data, Disk(cluster.home / "small", small=True, megabytes=megabytes))


@contextmanager
def server_on(move, megabytes: int, prefix: str, config: dict):
    """A server with its WAL or all its data on a small disk (`move`); yields it, the disk and a session.

    Ends the process, saying why, if there can be no such disk. To be called before there is a second thread.
    """
    if why_not := can_be_small():
        sys.exit(f"no small disk: {why_not}")
    with Cluster.create(Path(prefix), {"shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", **config}) as cluster:
        disk = move(cluster, megabytes)
        try:
            cluster.start()
            with cluster.connect() as conn:
                conn.execute("CREATE EXTENSION pg_cyclone")
                checks.create_extensions(conn)
                yield cluster, disk, conn
            assert "PANIC" not in cluster.log
        finally:
            cluster.stop("immediate")
            disk.remove()


def _move(folder: Path, disk: Disk) -> Disk:
    """Have a folder be on that disk."""
    subprocess.run(["cp", "--archive", f"{folder}/.", disk.folder], check=True)
    shutil.rmtree(folder)
    folder.symlink_to(disk.folder)
    return disk


def can_be_small() -> str:
    """Have mounts of this process's own from now on. Return why not, "" if all is well; nothing has changed then.

    To be called before there is a second thread.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # a try, as there is no way back
        try:
            _unshare()
            _mount("tmpfs", Path("/mnt"), 0, "size=1m")
        except OSError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        problem = answer.read()
    os.waitpid(child, 0)
    if not problem:
        try:
            _unshare()
        except OSError as error:
            problem = str(error)
    return problem


def _unshare() -> None:
    """Enter a mount namespace, as an ordinary user by way of a user namespace, and let nothing of it be seen outside."""
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)):
        _fail("unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", Path("/"), MS_REC | MS_PRIVATE, "")


def _mount(kind: str, folder: Path, flags: int, options: str) -> None:
    if _libc.mount(kind.encode(), os.fsencode(folder), kind.encode(), ctypes.c_ulong(flags), options.encode()):
        _fail("mount")


def _fail(call: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")
