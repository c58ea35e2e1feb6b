"""Power cuts at random moments and at named points, under load, and the proof after each that nothing is lost or wrong.

`make power-test ROUNDS=300 SEED=1 FILESYSTEM=xfs`, as root. The rounds are those of `crash_test`, with fsync on and the data on a file system
of its own, which is cut off from its disk in the midst (`cyclone_lab.power`): now and then after some of its blocks were written, after a process
was killed, or again while the server recovers. After the proof of `crash_test`, no file may be without an owner, no index be invalid for
long, and each page's checksum must be right. full_page_writes is on, as neither file system writes a page of PostgreSQL as a whole.
"""

import random
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psycopg

from cyclone_lab.background import wait_until
from cyclone_lab.files import missing_files, stray_files, wait_for_cleaning
from cyclone_lab.postgres import as_server_user, run_program
from cyclone_lab.power import FILE_SYSTEMS, PoweredCluster, why_no_cuts
from long_runs import crash_test, long_run
from long_runs.autovacuum import Key
from long_runs.crash_test import CrashTest

CONFIG = {**crash_test.CONFIG, "fsync": "on"}
CHOICES = {
    **crash_test.CHOICES,
    "wal_sync_method": ("fdatasync", "fdatasync", "fsync", "open_datasync"),
    "wal_init_zero": ("on", "off"),
    "wal_recycle": ("on", "off"),
    "recovery_init_sync_method": ("fsync", "syncfs"),
}
INVALID_SECONDS = 60
# What isn't synced: the latest rows of the history, and a journal before the files it is about are filled
MAY_TEAR = re.compile(r"(history|rewrite-.*)\.damaged")
# Replay makes a file that the disk has lost and WAL has not. Nobody knows of it if its transaction hasn't committed; so it is with PostgreSQL's VACUUM.
EMPTY = "empty files that replay has made for nobody, as seen after each round"
HALF_UNLOGGED_COUNT = "known bug of PostgreSQL: recovery ends at an unlogged index"
KILLED_BEFORE, IN_RECOVERY = "cuts soon after a kill or a shutdown", "cuts in or just after recovery"


class PowerTest(CrashTest):
    """One cluster that lives through rounds; `done` counts what happened."""

    command = "power-test"
    server = PoweredCluster
    config = CONFIG
    choices = CHOICES
    wanted = ()  # notes of what is at work are lost with the power

    def __init__(self, prefix: Path, major: int, seed: int, *, filesystem: str = FILE_SYSTEMS[0], **options):
        super().__init__(prefix, major, seed, **options)
        self.cluster.plug_in(filesystem)
        self.log_at_cut = 0

    def _crash(self, rng: random.Random, how: str, leader: int | None, workers: list[int]) -> str:
        """Cut the power, perhaps after what a round of the crash test does, and perhaps more than once; return "power cut"."""
        if rng.random() < 0.15:
            super()._crash(rng, how, leader, workers)
            time.sleep(rng.uniform(0, 0.3))
            self.done[KILLED_BEFORE] += 1
        self._cut(rng)
        while rng.random() < 0.25:
            self._cut_in_recovery(rng)
            self.done[IN_RECOVERY] += 1
        return "power cut"

    def _cut(self, rng: random.Random) -> None:
        self.cluster.cut(rng)
        self.log_at_cut = len(self.cluster.log)

    def _cut_in_recovery(self, rng: random.Random) -> None:
        """Start the server, and cut the power again, wherever it is then."""
        is_over = threading.Event()

        def start() -> None:
            with suppress(RuntimeError):
                self.cluster.start()
            is_over.wait()  # the server ends with the thread

        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        wait_until(lambda: self.cluster.running, "the server's start")
        time.sleep(rng.uniform(0, 1) ** 2)
        self._cut(rng)
        is_over.set()
        thread.join()

    def _check_notes(self, _log: str, noted: set[Key] | None) -> None:
        """Of notes that a server has found which lost its power soon after it, breakers are left at most."""
        super()._check_notes(self.cluster.log[self.log_at_cut :], noted)

    def _look_further(self, conn: psycopg.Connection) -> None:
        """With nobody at work: what is no table's is gone, and all that is there is valid."""
        invalid = "SELECT array_agg(indexrelid::regclass::text) FROM pg_index WHERE NOT indisvalid"
        wait_until(lambda: conn.execute(invalid).fetchone() == (None,), "the end of all invalid indexes", INVALID_SECONDS)
        wait_for_cleaning(self.cluster)
        found, missing = stray_files(self.cluster, conn), missing_files(self.cluster, conn)
        strays = [path for path in found if (self.cluster.data / path).stat().st_size]
        self.done[EMPTY] += len(found) - len(strays)
        databases = {str(oid) for (oid,) in conn.execute("SELECT oid FROM pg_database")}
        strays += [f"base/{folder.name}" for folder in (self.cluster.data / "base").iterdir() if folder.name not in {*databases, "pgsql_tmp"}]
        damaged = [path.name for path in (self.cluster.data / "pg_cyclone").glob("*.damaged")]
        strays += [f"pg_cyclone/{name}" for name in damaged if not MAY_TEAR.fullmatch(name)]
        assert not strays and not missing, f"files without an owner: {strays}; without a file: {missing}"

    def _examine(self, *round_) -> None:
        """Examine all as the crash test does, then all checksums."""
        super()._examine(*round_)
        self.done[HALF_UNLOGGED_COUNT] = self.cluster.half_unlogged
        self.cluster.stop()
        run_program(self.cluster.prefix, "pg_checksums", "--check", "-D", self.cluster.data, **as_server_user())
        self.cluster.start()


def main() -> int:
    if why_not := why_no_cuts():
        sys.exit(f"no power test: {why_not}")
    return long_run.main(PowerTest, __doc__, "power-test", "rounds", 300, rounds_of=crash_test.LIFE, filesystem=FILE_SYSTEMS)


if __name__ == "__main__":
    sys.exit(main())
