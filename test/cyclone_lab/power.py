"""A server whose data is on a file system of its own, the power of which can be cut.

The file system is in an image, mounted by a loop device where only this process and its children see it: what another mount namespace
holds would stay shut down. At a cut the kernel shuts it down (FS_IOC_SHUTDOWN), and what the file system hasn't written is lost.
"""

import ctypes
import fcntl
import os
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import copy_tree, hand_over
from cyclone_lab.small_disk import can_be_small

FILE_SYSTEMS = ("ext4", "xfs")
BYTES = 2 << 30  # of the image, most of it a hole
FS_IOC_SHUTDOWN = 0x8004587D
LOGFLUSH, NOLOGFLUSH = 1, 2  # the file system's own log is written before, or not
SYNC_FILE_RANGE_WRITE, SYNC_FILE_RANGE_WAIT_AFTER = 2, 4
BLOCK = 4096
# An unlogged index whose main fork is on disk and whose other one only in WAL, at which recovery ends (test/upstream/unlogged-power-cut.md)
HALF_UNLOGGED = re.compile(r'FATAL:  could not create file "(base/\d+/\d+)": File exists')

_libc = ctypes.CDLL(None, use_errno=True)


def why_no_cuts() -> str:
    """Prepare this process for such servers. Return why there can be none, "" if all is well. To be called before there is a second thread."""
    if os.geteuid():
        return "it mounts file systems, so run it as root"
    if problem := can_be_small():
        return f"there can be no mounts of its own: {problem}"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    return ""


class PoweredCluster(Cluster):
    """A cluster that `cut` takes the power from, once `plug_in` has moved it; `cut.img` is what its disk had at the last cut."""

    half_unlogged = 0  # how often start had to remove what PostgreSQL stumbles over
    _is_mounted = False

    def plug_in(self, file_system: str) -> None:
        """Put the data, which no server uses, on a file system of its own, safely."""
        self.file_system = file_system
        self.image, self.disk = self.home / "disk.img", self.home / "disk"
        self.image.touch()
        os.truncate(self.image, BYTES)
        _run(f"mkfs.{file_system}", "-q", self.image)
        self.disk.mkdir()
        self._mount()
        hand_over(self.disk)
        copy_tree(self.data, self.disk / "data")
        shutil.rmtree(self.data)
        self.data.symlink_to(self.disk / "data")
        _run("sync", "--file-system", self.disk)

    def cut(self, rng: random.Random) -> None:
        """Take the power from the server and its disk; as after a boot, the disk is there, and the server is not."""
        if self.running:
            self.crash(lambda: self._shut_down(rng))
        else:
            self._shut_down(rng)
        self._unmount()
        _run("cp", "--sparse=always", "--reflink=auto", self.image, self.home / "cut.img")
        self._mount()
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for lock in self.socket_dir.glob(".s.PGSQL.*"):
            lock.unlink()

    def start(self) -> "PoweredCluster":
        """Start the server as any other, also where a fault of PostgreSQL's own keeps it from that."""
        while True:
            position = len(self.log)
            try:
                return super().start()
            except RuntimeError:
                found = HALF_UNLOGGED.search(self.log[position:])
                if not found or not (self.data / f"{found[1]}_init").exists():
                    raise
                (self.data / found[1]).unlink()
                self.half_unlogged += 1

    def _shut_down(self, rng: random.Random) -> None:
        """Shut the file system down, after it has written some blocks of some files, as it may at any time."""
        share = rng.choice((0, 0, 0.3, 1))
        for path in sorted(path for path in self.disk.rglob("*") if path.is_file() and rng.random() < share):
            with open(path, "rb") as file:
                begin = rng.randrange(path.stat().st_size // BLOCK + 1) * BLOCK
                length = rng.choice((BLOCK, 16 * BLOCK, 0))  # 0 is all
                flags = SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER
                _libc.sync_file_range(file.fileno(), ctypes.c_int64(begin), ctypes.c_int64(length), flags)
        folder = os.open(self.disk, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, FS_IOC_SHUTDOWN, struct.pack("I", rng.choice((NOLOGFLUSH, NOLOGFLUSH, NOLOGFLUSH, LOGFLUSH))))
        finally:
            os.close(folder)

    def keep(self, folder: Path) -> Path:
        """Kill the server, and copy its files; those of its data are in the image then."""
        if self.running:
            self.crash()
        self._unmount()
        return super().keep(folder)

    def remove(self) -> None:
        """Stop the server and delete all that the cluster has on disk; harmless when repeated."""
        self.stop("immediate")
        self._unmount()
        super().remove()

    def _mount(self) -> None:
        _run("mount", "-t", self.file_system, "-o", "loop", self.image, self.disk)
        self._is_mounted = True

    def _unmount(self) -> None:
        if self._is_mounted:
            _run("umount", self.disk)
            self._is_mounted = False


def _run(*command: str | Path) -> None:
    """Run a command; raise RuntimeError with what it said if it fails."""
    result = subprocess.run(command, text=True, capture_output=True)
    if result.returncode:
        raise RuntimeError(f"{command[0]} has failed: {result.stderr.strip() or result.stdout.strip()}")
