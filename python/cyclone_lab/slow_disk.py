"""A disk as slow as one likes: test/shim/slow_disk.c, whose header says what is modelled, built and preloaded into a server."""

import struct
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO
from cyclone_lab.shim import preloadable

SOURCE = REPO / "test" / "shim" / "slow_disk.c"
FILE_BYTES = 65536
HEAD_START_US = 100_000_000  # more than any burst


@dataclass(frozen=True)
class Model:
    """The abilities of a disk. An operation is a read, a write or a sync."""

    operation_us: int  # that the position of an operation takes, or 1 / the operations a second
    bytes_per_second: int
    merge_bytes: int  # that one operation reads ahead, or writes, in a sequence
    latency_us: int  # the least time from an operation's begin to its answer, in which the disk serves others, too
    burst_us: int  # work that a disk which had nothing to do makes up for
    dirty_us: int  # work of queued writes above which writers have to wait
    has_arm: bool  # which takes its position first, and transfers then; else there are limits on operations and on bytes


class Preset(NamedTuple):
    """A model with its story."""

    about: str
    model: Model


PRESETS = {
    "2004": Preset(
        "a disk of 2004: 150 operations a second by one arm, 50 MB/s, read ahead by 128 kB",
        Model(operation_us=6667, bytes_per_second=50_000_000, merge_bytes=128 << 10, latency_us=0, burst_us=0,
              dirty_us=2_000_000, has_arm=True),
    ),
    "cloud": Preset(
        "a cloud volume of today: 3000 operations or 125 MB a second, 0.8 ms at least, read ahead by 128 kB; bursts of a second's",
        Model(operation_us=333, bytes_per_second=125_000_000, merge_bytes=128 << 10, latency_us=800, burst_us=1_000_000,
              dirty_us=1_000_000, has_arm=False),
    ),
}  # fmt: skip


# For what isn't to be measured
FAST = Model(operation_us=1, bytes_per_second=1 << 40, merge_bytes=1 << 20, latency_us=0, burst_us=0, dirty_us=1 << 20,
             has_arm=False)  # fmt: skip


class Counts(NamedTuple):
    """The operations of a disk; times in microseconds."""

    reads: int
    read_bytes: int
    writes: int  # to relations
    write_bytes: int
    wal_bytes: int
    syncs: int  # that had something to do
    sequential: int  # of reads and writes
    busy_us: int  # the work of all this, queued writes included
    waited_us: int  # by all processes
    throttled: int  # writes that had to wait for their turn


class SlowDisk:
    """A disk, for the servers that are started with its `env` from now on; they share it."""

    _PARAMETERS = struct.Struct("8q")
    _COUNTS = struct.Struct(f"{len(Counts._fields)}q")

    def __init__(self, model: Model, *, base: Path):
        """Build it in a new folder in `base`, which the servers' user must be able to enter."""
        self.library, self.file, self.map = preloadable(SOURCE, FILE_BYTES, base=base)
        self.env = {"LD_PRELOAD": str(self.library), "CYCLONE_DISK": str(self.file)}
        self._origin = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 - HEAD_START_US
        self.renew(model)

    def renew(self, model: Model) -> None:
        """Replace it by one that has done nothing so far. Servers may be at work meanwhile; what they wait for takes its old time."""
        self.model = model
        self.map[:] = self._PARAMETERS.pack(self._origin, *astuple(model)).ljust(FILE_BYTES, b"\0")

    def counts(self) -> Counts:
        """Return what it has been asked for so far."""
        return Counts(*self._COUNTS.unpack_from(self.map, self._PARAMETERS.size))


def give(cluster: Cluster, model: Model) -> SlowDisk:
    """Put a stopped cluster on such a disk, from its next start on; return it."""
    disk = SlowDisk(model, base=cluster.home)
    cluster.env = {**cluster.env, **disk.env}
    return disk
