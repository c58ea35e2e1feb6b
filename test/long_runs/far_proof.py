"""Blocks above 2^31: a table of some 17 TB and an index as large, of sparse files, with rows in their first, middle and last pages.

What is between is a hole: pages of zeros, of which a made visibility map says that they are all-frozen, so that nobody looks at them. VACUUM
cuts off a gap of --gap segments at the table's end. Index vacuuming begins behind the hole, by a debug setting: else it would read all of it.
After each command come sums, checks of all pages with rows, and of each index entry. `make prove-far`: some minutes, 8 GB in BASE, by default
/dev/shm. With --inplace FULL INPLACE moves rows of the last pages to the first, and may skip the hole, too; its plan asks the free space map
for each block, which takes the longest.
"""

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import psycopg

from cyclone_lab import build, checks, tids
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import hand_over
from long_runs.long_run import show

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "cyclone.audit": 0.001,
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "256MB",
    "enable_seqscan": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "2GB",
    "min_parallel_index_scan_size": 0,
}
PAGE, SEGMENT = 8192, 131072  # bytes, blocks
HALF = 1 << 31
HALF_SEGMENT = HALF // SEGMENT
MAP_PAGE_BLOCKS = (PAGE - 24) * 4
FSM_PAGE_BLOCKS = 4000  # at least so many has a page of the free space map
MAP_HEADER = bytes(12) + b"".join(n.to_bytes(2, "little") for n in (24, PAGE, PAGE, PAGE + 4)) + bytes(4)
ROWS = 20000  # in each region
REGION = 1_000_000  # between the first keys of two regions
INDEXES = {"btree": "(id)", "hash": "(v)", "gin": "(items)", "gist": "(place)"}
LIVE = "SELECT ctid::text FROM far WHERE id >= 0"
SUM = "SELECT count(*), sum(hashtextextended(note, id)), sum(v::bigint) FROM {} WHERE id >= 0"


class FarProof:
    """A server with such a table, as a context manager; `gap` is in segments."""

    def __init__(self, prefix: Path, major: int, base: Path, gap: int):
        initdb = ("--no-data-checksums",) if major >= 18 else ()  # as pages of the map are made here
        self.cluster = Cluster.create(prefix, CONFIG, base=base, initdb=initdb)
        self.starts = [0, HALF - 300, (HALF_SEGMENT + gap // 10) * SEGMENT, (HALF_SEGMENT + gap // 10 + gap) * SEGMENT]
        self.regions: list[range] = []

    def __enter__(self) -> "FarProof":
        return self

    def __exit__(self, *_exception) -> None:
        self.cluster.remove()

    def run(self, inplace: bool) -> None:
        with self.cluster.start().connect() as conn:
            checks.create_extensions(conn)
            conn.execute("CREATE EXTENSION pg_cyclone")
        self._make_table()
        self._vacuum()
        self._look()
        if inplace:
            self._inplace()
        self._index()

    # files

    def _file(self, relation: str) -> Path:
        return self.cluster.data / self.cluster.sql(f"SELECT pg_relation_filepath('{relation}')")[0][0]

    def _stretch(self, relation: str, blocks: int) -> None:
        """Make a relation this long by a hole at its end, without a free space map."""
        path = self._file(relation)
        self.cluster.stop()
        path.with_name(f"{path.name}_fsm").unlink(missing_ok=True)
        for number in range((blocks - 1) // SEGMENT + 1):
            segment = path.with_name(f"{path.name}.{number}") if number else path
            _lengthen(segment, min(blocks - number * SEGMENT, SEGMENT) * PAGE)
        self.cluster.start()

    def _make_maps(self) -> None:
        """Make a visibility map of the table, all-frozen but for the regions, and room for its free space map."""
        path = self._file("far")
        self.cluster.stop()
        vm = path.with_name(f"{path.name}_vm")
        with open(vm, "wb") as file:
            for first in range(0, self.regions[-1].stop, MAP_PAGE_BLOCKS):
                bits = bytearray(b"\xff" * (PAGE - len(MAP_HEADER)))
                for region in self.regions:
                    for block in range(max(region.start, first), min(region.stop, first + MAP_PAGE_BLOCKS)):
                        bits[(block - first) // 4] &= ~(3 << (block - first) % 4 * 2)
                file.write(MAP_HEADER + bits)
        hand_over(vm)
        pages = self.regions[-1].stop // FSM_PAGE_BLOCKS
        for number in range(pages // SEGMENT + 1):
            _lengthen(path.with_name(f"{path.name}_fsm{f'.{number}' if number else ''}"), min(pages - number * SEGMENT, SEGMENT) * PAGE)
        self.cluster.start()

    # commands

    def _make_table(self) -> None:
        with self.cluster.connect() as conn:
            conn.execute("CREATE TABLE far (id int, v int, note text STORAGE PLAIN, items int[] STORAGE PLAIN, place point)")
            for method, what in INDEXES.items():
                conn.execute(f"CREATE INDEX far_{method} ON far USING {method} {what}")
        for number, start in enumerate(self.starts):
            if start:
                self._stretch("far", start)
            with self.cluster.connect() as conn:
                conn.execute(
                    "INSERT INTO far SELECT i, i, repeat(md5(i::text), 6), ARRAY[i %% 10, i], point(i, i %% 7) FROM generate_series(%s::int, %s::int) i",
                    (number * REGION, number * REGION + ROWS - 1),
                )
                self.regions.append(range(max(start - 1, 0), self._blocks(conn)))
        self._make_maps()
        with self.cluster.connect() as conn:
            conn.execute(f"DELETE FROM far WHERE id < {REGION} AND id % 10 > 0")
            conn.execute(f"DELETE FROM far WHERE id BETWEEN {REGION} AND {3 * REGION - 1} AND id % 3 = 0")
            conn.execute(f"DELETE FROM far WHERE id >= {3 * REGION}")
            show(f"table: {self._blocks(conn)} blocks, rows in {self.regions}")

    def _run(self, statement: str, **settings: str | int) -> str:
        """Run a VACUUM while its views are looked at; return what it says."""
        said: list[str] = []
        over = threading.Event()
        wrong: list[tuple] = []

        def watch() -> None:
            with self.cluster.connect() as conn:
                while not over.wait(0.2):
                    wrong.extend(conn.execute("SELECT * FROM cyclone.progress_details WHERE blocks_done < 0 OR blocks_total < 0"
                                              " OR blocks_done > blocks_total AND index_relid IS NULL"))  # fmt: skip
                    wrong.extend(conn.execute("SELECT * FROM pg_stat_progress_vacuum WHERE heap_blks_scanned NOT BETWEEN 0 AND heap_blks_total"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        begin = time.perf_counter()
        try:
            with self.cluster.connect() as conn:
                conn.add_notice_handler(lambda notice: said.append(f"{notice.message_primary}\n{notice.message_detail or ''}"))
                for name, value in settings.items():
                    conn.execute("SELECT set_config(%s, %s, false)", (name.replace("__", "."), str(value)))
                conn.execute(statement)
        finally:
            over.set()
            watcher.join()
        show(f"{statement}: {time.perf_counter() - begin:.0f} s\n" + "\n".join(said))
        assert not wrong, wrong[:5]
        return "\n".join(said)

    def _vacuum(self) -> None:
        with self.cluster.connect() as conn:
            before = conn.execute(SUM.format("far")).fetchone()
        end = self._last_used(2)
        said = self._run("VACUUM (PARALLEL 2, FREEZE, VERBOSE) far", maintenance_work_mem="64kB")
        removed = self.regions[-1].stop - end
        assert f"pages: {removed} removed, {end} remain" in said
        self._check(before, end, [range(r.start, min(r.stop, end)) for r in self.regions[:3]])

    def _look(self) -> None:
        """What tells of sizes doesn't take large ones for negative."""
        with self.cluster.connect() as conn:
            size = self._blocks(conn) * PAGE
            [bloat] = conn.execute("SELECT size, total_pages, live_bytes, free_bytes, error_bytes FROM cyclone.estimate_bloat('far', 300, indexes => false)")
            assert bloat[:2] == (size, size // PAGE) and min(bloat[2:]) >= 0, bloat
            [history] = conn.execute("SELECT bytes_before, bytes_after FROM cyclone.history_details ORDER BY id DESC LIMIT 1")
            assert history[0] > history[1] > size, history
            conn.execute("SELECT * FROM cyclone.advice, cyclone.compaction_details")
        said = self._run("VACUUM (DRY_RUN) far") + self._run("VACUUM (DRY_RUN, FULL INPLACE) far")
        assert "-" not in "".join(word for word in said.split() if word[-1:].isdigit() and word[0] == "-"), said

    def _inplace(self) -> None:
        with self.cluster.connect() as conn:
            before = conn.execute(SUM.format("far")).fetchone()
        end = self._last_used(1)
        self._run("VACUUM (FULL INPLACE, PARALLEL 2, VERBOSE) far", cyclone__debug_fault="inplace-skips:1")
        self._check(before, end, [range(r.start, min(r.stop, end)) for r in self.regions[:2]])

    def _index(self) -> None:
        """The same with an index whose pages are beyond the middle, in parts by two processes, and then built anew."""
        segment = HALF_SEGMENT + 1
        with self.cluster.connect() as conn:
            conn.execute("CREATE TABLE small (id int PRIMARY KEY, v int, note text)")
            conn.execute("INSERT INTO small SELECT i, i, md5(i::text) FROM generate_series(1, 1000) i")
        self._stretch("small_pkey", segment * SEGMENT)
        with self.cluster.connect() as conn:
            conn.execute("INSERT INTO small SELECT i, i, md5(i::text) FROM generate_series(2001, 200000) i")
            conn.execute("DELETE FROM small WHERE id > 3000 AND (id % 3 = 0 OR id BETWEEN 50000 AND 100000)")
            before = conn.execute(SUM.format("small")).fetchone()
        said = self._run("VACUUM (PARALLEL 2, VERBOSE, INDEX_CLEANUP on) small", cyclone__debug_index_segment=segment)
        assert f'index "small_pkey": pages: {segment * SEGMENT}' not in said
        with self.cluster.connect() as conn:
            live = {tid for (tid,) in conn.execute("SELECT ctid::text FROM small WHERE id > 0")}
            assert conn.execute(SUM.format("small")).fetchone() == before
            assert checks.btree_corruption(conn, "small") == []
            last = conn.execute("SELECT pg_relation_size('small_pkey') / 8192").fetchone()[0]
            entries = list(_leaf_entries(conn, "small_pkey", range(segment * SEGMENT, last)))
            assert entries and set(entries) <= live, "entries that lead nowhere"
            [bloat] = conn.execute("SELECT size, bloat_bytes FROM cyclone.estimate_bloat('small') WHERE relation = 'small_pkey'::regclass")
            assert bloat[0] == last * PAGE and bloat[1] > 0.99 * bloat[0], bloat
        self._run("VACUUM (FULL INPLACE, VERBOSE) small", cyclone__debug_index_segment=segment)
        with self.cluster.connect() as conn:
            assert conn.execute("SELECT pg_relation_size('small_pkey') < 100000000").fetchone()[0]
            assert conn.execute(SUM.format("small")).fetchone() == before
            checks.assert_clean(conn, "small")

    # checks

    def _blocks(self, conn: psycopg.Connection) -> int:
        return conn.execute(f"SELECT pg_relation_size('far') / {PAGE}").fetchone()[0]

    def _last_used(self, region: int) -> int:
        """Return where the table would end if the rows of this region were its last ones."""
        where = f"id BETWEEN {region * REGION} AND {(region + 1) * REGION - 1}"
        return self.cluster.sql(f"SELECT max(split_part(trim('()' from ctid::text), ',', 1)::bigint) + 1 FROM far WHERE {where}")[0][0]

    def _check(self, before: tuple, end: int, regions: list[range]) -> None:
        """The table has these rows and blocks; its pages, its map and its indexes are right."""
        with self.cluster.connect() as conn:
            assert self._blocks(conn) == end
            assert conn.execute("SELECT relpages::bigint & 4294967295 FROM pg_class WHERE relname = 'far'").fetchone() == (end,)
            assert conn.execute(SUM.format("far")).fetchone() == before
            for region in regions:
                ends = {"first": region.start, "last": region.stop - 1}
                assert conn.execute("SELECT * FROM verify_heapam('far', startblock => %(first)s, endblock => %(last)s)", ends).fetchall() == []
                bad = conn.execute(
                    "SELECT block FROM generate_series(%(first)s::bigint, %(last)s::bigint) block, pg_visibility('far', block) v,"
                    " heap_page_items(get_raw_page('far', block)) WHERE lp_flags = 3 OR v.all_visible AND NOT v.pd_all_visible",
                    ends,
                ).fetchall()
                assert bad == [], f"dead items, or a map without the page: {bad[:5]}"
            live = sorted(tid for (tid,) in conn.execute(LIVE))
            for method in INDEXES:
                found = [tid for _, _, tid in tids.entries(conn, f"far_{method}", method)]
                assert sorted(set(found)) == live, f"{method}: {len(found)} entries of {len(live)} rows"
            conn.execute("SELECT bt_index_check('far_btree')")


def _lengthen(file: Path, size: int) -> None:
    with open(file, "ab") as opened:
        opened.truncate(size)
    os.chmod(file, 0o600)
    hand_over(file)


def _leaf_entries(conn: psycopg.Connection, index: str, blocks: range):
    """Yield the TIDs of the leaf pages among these blocks of a btree."""
    rows = conn.execute(
        "SELECT coalesce(tids, ARRAY[htid])::text[] FROM generate_series(%s::bigint, %s::bigint) block, bt_page_stats(%s, block) s,"
        " bt_page_items(%s, block) i WHERE s.type = 'l' AND NOT (itemoffset = 1 AND s.btpo_next <> 0)",
        (blocks.start, blocks.stop - 1, index, index),
    )
    for (found,) in rows:
        yield from found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gap", type=int, default=100, help="segments that VACUUM cuts off (default: %(default)s)")
    parser.add_argument("--inplace", action="store_true", help="FULL INPLACE of the table, too")
    parser.add_argument("--version", type=int, default=18, help="17, 18 or 19")
    parser.add_argument("--base", type=Path, default=Path("/dev/shm"), help="folder for the server's files, whose file system has sparse ones")
    options = parser.parse_args()
    with FarProof(build.install(options.version, debug_points=True), options.version, options.base, options.gap) as proof:
        proof.run(options.inplace)
    show("sound: every check passed, and no row was lost or changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
