"""A disk that reads as slowly as one likes: test/shim/slow_disk.c, whose header says what is modelled, built and preloaded into a server."""

import struct

from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO
from cyclone_lab.shim import preloadable

_SOURCE = REPO / "test" / "shim" / "slow_disk.c"
_LAYOUT = struct.Struct("3q")


class SlowDisk:
    """The disk of a stopped cluster, from its next start on. It takes no time until it is told to."""

    def __init__(self, cluster: Cluster):
        library, file, self._map = preloadable(_SOURCE, _LAYOUT.size, base=cluster.home)
        cluster.env = {**cluster.env, "LD_PRELOAD": str(library), "CYCLONE_DISK": str(file)}

    def slow_down(self, operation_us: int, us_per_block: int = 0) -> None:
        """Have each read take this many microseconds, and these for each 8 kB of it; 0 and 0: none. Servers may be at work meanwhile."""
        self._map[:] = _LAYOUT.pack(operation_us, us_per_block, 0)
