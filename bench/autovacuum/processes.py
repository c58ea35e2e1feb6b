"""The processor time of a server's processes, as the kernel counts it: hundredths of a second."""

import os
import re
import threading
from contextlib import suppress
from pathlib import Path

LOOK_SECONDS = 0.1
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
AUTOVACUUM, PARALLEL = "autovacuum workers", "their parallel workers"
_PARALLEL_TITLE = re.compile(r"postgres: .*parallel worker for PID (\d+)")


class AutovacuumTime:
    """Processor seconds of a server's autovacuum workers, and of their parallel workers, while the block runs.

    They come and go, so we look at all of the server's processes ten times a second. The last moments of each process are missing, on
    average half of LOOK_SECONDS. A process is known by its title.
    """

    def __init__(self, postmaster: int):
        self._postmaster = postmaster
        self._kinds: dict[tuple[int, str], str] = {}  # by process ID and time of start
        self._used: dict[tuple[int, str], float] = {}
        self._leaders: set[int] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "AutovacuumTime":
        self._thread.start()
        return self

    def __exit__(self, *_exception) -> None:
        self._done.set()
        self._thread.join()

    def seconds(self, kind: str) -> float:
        """Return the seconds of AUTOVACUUM or PARALLEL."""
        return sum(self._used[process] for process, of in self._kinds.items() if of == kind)

    def _watch(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            for pid in _children(self._postmaster):
                with suppress(OSError):  # it has ended
                    self._look(pid)

    def _look(self, pid: int) -> None:
        own, _, start = _times(pid)
        process = (pid, start)
        if process not in self._kinds:
            title = Path(f"/proc/{pid}/cmdline").read_text()
            worker = _PARALLEL_TITLE.match(title)
            if "autovacuum worker" in title:
                self._kinds[process] = AUTOVACUUM
                self._leaders.add(pid)
            elif worker and int(worker[1]) in self._leaders:
                self._kinds[process] = PARALLEL
        if process in self._kinds:
            self._used[process] = sum(own)


def server_seconds(postmaster: int) -> float:
    """Return the processor seconds of the whole server since its start, of processes that have ended, too."""
    return sum(server_times(postmaster))


def server_times(postmaster: int) -> tuple[float, float]:
    """Return the same, those in user mode and those in the kernel."""
    own, ended, _ = _times(postmaster)
    total = [own[0] + ended[0], own[1] + ended[1]]
    for pid in _children(postmaster):
        with suppress(OSError):
            (user, system), _, _ = _times(pid)
            total[0] += user
            total[1] += system
    return total[0], total[1]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _times(pid: int) -> tuple[tuple[float, float], tuple[float, float], str]:
    """Return a process's seconds in user mode and in the kernel, those of its children that have ended, and when it started; raise
    OSError if it is gone.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, children_user, children_system = (int(field) * TICK_SECONDS for field in fields[11:15])
    return (user, system), (children_user, children_system), fields[19]
