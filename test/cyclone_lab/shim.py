"""A disk that breaks, fills up or gets slow on command: test/shim/io_faults.c, built and preloaded into a server."""

import errno
import mmap
import os
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO, hand_over

SOURCE = REPO / "test" / "shim" / "io_faults.c"
CALLS = {"read": 1, "write": 2, "allocate": 4, "truncate": 8, "sync": 16, "create": 32, "attach": 64}
PATHS = 2048
LAYOUT = struct.Struct(f"9i{PATHS}s")
ARMED = struct.Struct("i")


def preloadable(source: Path, size: int, *, base: Path) -> tuple[Path, Path, mmap.mmap]:
    """Build a library to be preloaded into servers, in a new folder in `base`, and make the file that it shares with us: `size`
    bytes, all zero. Return the paths of both, and the file mapped.
    """
    folder = Path(tempfile.mkdtemp(prefix="cyclone-", dir=base))
    folder.chmod(0o755)
    library = folder / f"{source.stem}.so"
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-fPIC", "-shared", source, "-o", library, "-ldl"], check=True)
    control = folder / "control"
    control.write_bytes(bytes(size))
    hand_over(control)
    with open(control, "r+b") as file:
        return library, control, mmap.mmap(file.fileno(), size)


class Seen(NamedTuple):
    """The effects of a fault: calls on the file, those that failed, and their kinds."""

    calls: int
    failed: int
    kinds: list[str]


class Disk:
    """The faults of a stopped cluster, which has them from its next start on."""

    def __init__(self, cluster: Cluster):
        library, control, self._map = preloadable(SOURCE, LAYOUT.size, base=cluster.home)
        cluster.env = {"LD_PRELOAD": str(library), "CYCLONE_FAULTS": str(control)}

    @contextmanager
    def fault(self, paths: Sequence[str], calls: Sequence[str], error: str, *, after: int = 0, lasting: bool = False):
        """Within the block, let one of these calls on a file whose path contains one of `paths` fail, after some that don't, or
        from then on each; yields a function that returns what was `Seen` so far."""
        parts = b"".join(os.fsencode(path) + b"\0" for path in paths)
        assert len(parts) < PATHS, "too many paths"
        wanted = sum(CALLS[call] for call in calls)
        number = getattr(errno, error)
        self._map[:] = LAYOUT.pack(0, wanted, number, lasting, after, 0, 0, 0, 0, parts)
        self._map[: ARMED.size] = ARMED.pack(1)
        try:
            yield self._seen
        finally:
            self._map[: ARMED.size] = ARMED.pack(0)

    def slow_down(self, read_us: int) -> None:
        """From now on, without a fault, have each read take this many microseconds."""
        self._map[:] = LAYOUT.pack(0, 0, 0, 0, 0, 0, 0, 0, read_us, b"")

    def _seen(self) -> Seen:
        _, _, _, _, _, calls, failed, kinds, _, _ = LAYOUT.unpack(self._map[:])
        return Seen(calls, failed, [name for name, bit in CALLS.items() if kinds & bit])
