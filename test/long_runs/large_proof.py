"""Tables of several segments: what VACUUM, VACUUM (FULL) and VACUUM (FULL INPLACE) leave of them passes every check.

The heap has --size GB, so that with the default there are blocks beyond 4 GB, and memory for dead items is so little that the indexes
are vacuumed in several rounds. Before each command a seventh of the rows is deleted, here and there. After it come all `checks`, amcheck
with heapallindexed, pg_visibility and a look at each index entry among them, and the number and a sum of all rows, which must be what
they were. The page cache is preserved meanwhile. `make prove-large SIZE=6`.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from cyclone_lab import build, checks, page_cache
from cyclone_lab.cluster import Cluster
from cyclone_lab.files import GIBIBYTE, assert_free, table_files
from long_runs.long_run import show

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "off",
    "fsync": "off",
    "max_wal_size": "1GB",
    "shared_buffers": "512MB",
    "cyclone.preserve_page_cache": "on",
    "work_mem": "256MB",
    "max_parallel_maintenance_workers": 2,
}
ROW_BYTES = 1024
PAGE_BYTES = 8192
STORED_BYTES = 2  # what the dead items of a page take of memory, at least: with that there are several rounds
LEAST_ROUNDS = 2
PARTS = 7  # of the rows, one of which goes before each command
COMMANDS = ("PARALLEL 1, INDEX_CLEANUP on", "FULL, PARALLEL 1", "FULL INPLACE, PARALLEL 1")
ROOM = 3.5  # of the size: the table with its indexes twice, sorts of the checks, and WAL
INDEX_ROUNDS = re.compile(r"index scans: (\d+)")
TABLE = "large"
SUM = f"SELECT count(*), sum(hashtextextended(note, id)), sum(v::bigint) FROM {TABLE}"


class LargeProof:
    """A server with a table of this size in GB, as a context manager; `memory` is maintenance_work_mem."""

    def __init__(self, prefix: Path, gigabytes: float, *, memory: str = "", base: Path | None = None, say: Callable[[str], None] = show):
        size = int(gigabytes * GIBIBYTE)
        self.cluster = Cluster.create(prefix, CONFIG, base=base)
        self._memory = memory or f"{max(64, size // PAGE_BYTES * STORED_BYTES // 1024)}kB"
        self._rows = size // ROW_BYTES
        self._say = say

    def __enter__(self) -> "LargeProof":
        return self

    def __exit__(self, *_exception) -> None:
        self.cluster.remove()

    def run(self) -> None:
        """Run all commands; raise AssertionError where one leaves what it must not."""
        self.cluster.start()
        with self.cluster.connect() as conn:
            checks.create_extensions(conn)
            with self._timed("rows"):
                self._fill(conn)
        for number, options in enumerate(COMMANDS):
            self._run_command(number, options)

    def _fill(self, conn) -> None:
        conn.execute(f"CREATE TABLE {TABLE} (id bigint, v int, note text STORAGE PLAIN)")
        conn.execute(
            f"INSERT INTO {TABLE} SELECT i, hashint8(i), repeat(chr(97 + (i % 26)::int), {ROW_BYTES} - 92) || i"
            f" FROM generate_series(1, {self._rows}) i"
        )
        conn.execute(f"ALTER TABLE {TABLE} ADD PRIMARY KEY (id)")
        conn.execute(f"CREATE INDEX ON {TABLE} (v)")

    def _run_command(self, number: int, options: str) -> None:
        """Delete the rows whose turn it is, run the command, and prove the table."""
        messages: list[str] = []
        with self.cluster.connect() as conn:
            before = conn.execute(f"{SUM} WHERE id % {PARTS} <> {number}").fetchone()
            conn.execute(f"DELETE FROM {TABLE} WHERE id % {PARTS} = {number}")
            [(old_size,)] = conn.execute(f"SELECT pg_relation_size('{TABLE}')")
            conn.execute(f"SET maintenance_work_mem = '{self._memory}'")
            conn.add_notice_handler(lambda notice: messages.append(f"{notice.message_primary}\n{notice.message_detail or ''}"))
            conn.execute("CHECKPOINT")
            page_cache.drop(table_files(self.cluster, conn, TABLE))
            cached_before = page_cache.held(table_files(self.cluster, conn, TABLE))
            with self._timed(f"VACUUM ({options})"):
                conn.execute(f"VACUUM ({options}, VERBOSE) {TABLE}")
        with self.cluster.connect() as conn:
            [(new_size,)] = conn.execute(f"SELECT pg_relation_size('{TABLE}')")
            cached = page_cache.held(table_files(self.cluster, conn, TABLE))
            rounds = max(map(int, INDEX_ROUNDS.findall("\n".join(messages))), default=0)
            self._say(
                f"  heap: {old_size / GIBIBYTE:.2f} GB before, {new_size / GIBIBYTE:.2f} GB after; rounds of index vacuuming: {rounds};"
                f" of heap and indexes in the page cache: {cached_before / GIBIBYTE:.2f} GB before, {cached / GIBIBYTE:.2f} GB after"
            )
            if "FULL" not in options:
                assert rounds >= LEAST_ROUNDS, f"{rounds} rounds with {self._memory} of maintenance_work_mem: it proves too little, take less"
            else:
                assert new_size < old_size, "the table is no smaller"
            with self._timed("  sums and checks"):
                after = conn.execute(SUM).fetchone()
                assert after == before, f"rows and sums: {before} before, {after} after"
                checks.assert_clean(conn, TABLE)

    @contextmanager
    def _timed(self, what: str):
        """Say how long the block took."""
        start = time.perf_counter()
        yield
        self._say(f"{what}: {time.perf_counter() - start:.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=6, help="GB of the heap (default: %(default)s)")
    parser.add_argument("--memory", default="", help="maintenance_work_mem (default: so little that there are several rounds)")
    parser.add_argument("--version", type=int, default=18, help="17, 18 or 19")
    parser.add_argument("--base", type=Path, help="folder for the server's files")
    options = parser.parse_args()
    prefix = build.install(options.version)
    with LargeProof(prefix, options.size, memory=options.memory, base=options.base) as proof:
        assert_free(proof.cluster.home, ROOM * options.size * GIBIBYTE, "choose another folder with --base, or a smaller --size")
        proof.run()
    show("sound: every check passed, and no row was lost or changed")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(str(error))
