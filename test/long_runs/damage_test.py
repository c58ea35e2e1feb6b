"""Files damaged at random, and what each kind of VACUUM makes of them beside PostgreSQL's on an equal copy.

`make damage-test DAMAGES=500 SEED=1`. A template database has tables of each kind of index, one with values in a TOAST table and one
that stays undamaged. Of each damage there are copies, made by CREATE DATABASE and damaged before anybody reads them: one for
PostgreSQL's VACUUM and one for its VACUUM FULL, and one each for pg_cyclone's VACUUM by one process and by a team, its VACUUM FULL and
FULL INPLACE, two dry runs, and for cyclone.bloat, which tells of the table whatever has come over it. Ours may hang, run into the
statement timeout or crash only where PostgreSQL does; FULL INPLACE also where it inserts into a damaged index, by PostgreSQL's routines,
as each UPDATE does. Afterwards the server works, the undamaged table has its rows and is vacuumed, and so has the damaged one if the
damage was elsewhere than in its heap. Where one gives an error and the other doesn't, that is counted.
"""

import os
import random
import re
import signal
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psycopg

from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import hand_over
from long_runs import long_run

PAGE = 8192
TEMPLATE = "pristine"
TIMEOUT, PATIENCE = 4, 3  # seconds for a statement, and for it to notice that they are over
LONGER = 15  # times as long, before it is a fault
CONFIG = {
    **long_run.CONFIG,
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "wal_level": "minimal",
    "max_wal_senders": 0,
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "bgwriter_lru_maxpages": 0,
    "max_worker_processes": 8,
    "min_parallel_index_scan_size": 0,
    "cyclone.debug_workers": 2,
    "cyclone.debug_max_tree_pages": 2,
    "cyclone.debug_horizon_wait": 10,
}
OTHER = "other"

# Table: its rows, and its indexes
TABLES = {
    "btree": (
        "SELECT i AS id, i / 3 AS k, md5(i::text) AS note FROM generate_series(1, 12000) i",
        ("CREATE UNIQUE INDEX {0}_i ON {0} (id)", "CREATE INDEX {0}_k ON {0} (k)", "CREATE INDEX {0}_b ON {0} USING brin (id)"),
    ),
    "gin": (
        "SELECT i AS id, ARRAY[i % 3, 10 + i % 3000] AS a FROM generate_series(1, 12000) i",
        ("CREATE INDEX {0}_i ON {0} USING gin (a) WITH (fastupdate = off)", "CREATE INDEX {0}_p ON {0} USING gin (a)"),
    ),
    "gist": ("SELECT i AS id, point(i % 100, i / 100) AS p FROM generate_series(1, 8000) i", ("CREATE INDEX {0}_i ON {0} USING gist (p)",)),
    "spgist": ("SELECT i AS id, md5(i::text) AS t FROM generate_series(1, 6000) i", ("CREATE INDEX {0}_i ON {0} USING spgist (t)",)),
    "hash": (
        "SELECT i AS id, i % 900 AS h, md5(i::text) AS t FROM generate_series(1, 12000) i",
        ("CREATE INDEX {0}_i ON {0} USING hash (h)", "CREATE INDEX {0}_t ON {0} USING hash (t)"),
    ),
    "long": (
        "SELECT i AS id, repeat(md5(i::text), 120) AS t FROM generate_series(1, 600) i",
        ("ALTER TABLE {0} ALTER t SET STORAGE external", "CREATE INDEX {0}_i ON {0} (id)"),
    ),
    OTHER: ("SELECT i AS id, i % 10 AS n FROM generate_series(1, 2000) i", ("CREATE INDEX {0}_i ON {0} (id)",)),
}
# Where links are on a page, from its end, and the numbers of flags that make another kind of page of it
LINKS = {"btree": (16, 12), "gin": (8,), "gist": (8,), "hash": (16, 12, 8), "spgist": (), "heap": ()}
FLAGS = {"btree": 4, "gin": 2, "gist": 4, "hash": 4, "spgist": 8, "heap": PAGE - 10}


class File(NamedTuple):
    """One fork of a relation of the template."""

    table: str
    relation: str
    kind: str  # "heap", "toast" or an access method
    fork: str  # "", "_vm" or "_fsm"
    name: str  # of the file

    @property
    def has_rows(self) -> bool:
        return self.kind in ("heap", "toast") and self.fork == ""


def links_of(file: File) -> tuple[int, ...]:
    """Return where links to other pages are, from a page's end."""
    return LINKS.get(file.kind, ()) if not file.fork else ()


def some_block(rng: random.Random, pages: bytearray, block: int) -> int:
    """Return a block that a link may lead to: the page itself, one of the file, none, or one beyond it."""
    count = len(pages) // PAGE
    return rng.choice([block, rng.randrange(count), rng.randrange(count), max(block - 1, 0), 0, 0xFFFFFFFF, count, count + 1000])


def flip_bits(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    start, end = rng.choice([(0, 24), (24, 64), (24, PAGE), (PAGE - 64, PAGE), (PAGE - 16, PAGE)])
    for _ in range(rng.choice([1, 1, 2, 8])):
        pages[block * PAGE + rng.randrange(start, end)] ^= 1 << rng.randrange(8)


def zero_page(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    pages[block * PAGE : (block + 1) * PAGE] = bytes(PAGE)


def zero_some(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    start = block * PAGE + 512 * rng.randrange(PAGE // 512)
    pages[start : start + 512] = bytes(512)


def swap_pages(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    here, there = (slice(number * PAGE, (number + 1) * PAGE) for number in (block, rng.randrange(len(pages) // PAGE)))
    pages[here], pages[there] = pages[there], pages[here]


def misdirect(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    """A page holds a copy of another one, near it as a rule."""
    count = len(pages) // PAGE
    other = rng.choice([rng.randrange(count), max(block - rng.randrange(1, 8), 0), min(block + rng.randrange(1, 8), count - 1)])
    pages[block * PAGE : (block + 1) * PAGE] = pages[other * PAGE : (other + 1) * PAGE]


def tear(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    """The second half is another page's."""
    other = rng.randrange(len(pages) // PAGE)
    pages[block * PAGE + PAGE // 2 : (block + 1) * PAGE] = pages[other * PAGE + PAGE // 2 : (other + 1) * PAGE]


def truncate(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    del pages[rng.choice([block * PAGE, block * PAGE + PAGE // 2]) :]


def lengthen(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    pages += rng.choice([bytes(PAGE), rng.randbytes(PAGE), pages[block * PAGE : (block + 1) * PAGE]])


def lose(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    """The file is gone; see `damaged`."""
    pages.clear()


def relink(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    """Links between siblings lead elsewhere."""
    for place in rng.sample(links_of(file), rng.randint(1, len(links_of(file)))):
        struct.pack_into("<I", pages, (block + 1) * PAGE - place, some_block(rng, pages, block))


def circle(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    """A page leads back to one to its left."""
    place = links_of(file)[-1] if file.kind != "hash" else 12
    [right] = struct.unpack_from("<I", pages, (block + 1) * PAGE - place)
    for _ in range(rng.randrange(3)):
        if right * PAGE >= len(pages):
            break
        [right] = struct.unpack_from("<I", pages, (right + 1) * PAGE - place)
    if 0 < right * PAGE < len(pages):
        struct.pack_into("<I", pages, (right + 1) * PAGE - place, block)


def half_dead(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    """Leaf pages of a btree are left as an interrupted VACUUM leaves them, with links that may lead anywhere."""
    start, previous = block * PAGE, None
    for _ in range(rng.randint(1, 3)):
        [line_pointer] = struct.unpack_from("<I", pages, start + 24)
        at = line_pointer & 0x7FFF
        if not 24 < at < PAGE - 24:
            return
        struct.pack_into("<H", pages, start + 12, 28)
        struct.pack_into("<HH", pages, start + at, 0xFFFF, 0xFFFF)
        pages[start + PAGE - 4] |= 1 | 16
        [right] = struct.unpack_from("<I", pages, start + PAGE - 12)
        if right == 0 or right * PAGE >= len(pages):
            return
        previous, start = start, right * PAGE
    if rng.random() < 0.5:
        struct.pack_into("<I", pages, previous + PAGE - 12, some_block(rng, pages, block))


def set_flags(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    at = (block + 1) * PAGE - FLAGS.get(file.kind, FLAGS["heap"])
    struct.pack_into("<H", pages, at, struct.unpack_from("<H", pages, at)[0] ^ 1 << rng.randrange(10))


def item_of(rng: random.Random, pages: bytearray, block: int) -> tuple[int, int]:
    """Return where a line pointer is and where it leads to; 0 if there is none."""
    [lower] = struct.unpack_from("<H", pages, block * PAGE + 12)
    if not 28 <= lower <= PAGE:
        return 0, 0
    at = block * PAGE + 24 + 4 * rng.randrange((lower - 24) // 4)
    [pointer] = struct.unpack_from("<I", pages, at)
    return at, block * PAGE + min(pointer & 0x7FFF, PAGE - 32)


def change_line_pointer(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    at, _ = item_of(rng, pages, block)
    if not at:
        return
    [pointer] = struct.unpack_from("<I", pages, at)
    offset, flags, length = pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17
    offset = rng.choice([offset, offset, offset ^ 8, rng.randrange(0x8000)])
    flags = rng.choice([flags, flags, rng.randrange(4)])
    length = rng.choice([length // 2, length - 1 & 0x7FFF, 0, rng.randrange(0x8000)])
    struct.pack_into("<I", pages, at, offset | flags << 15 | length << 17)


def change_downlink(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    """An index tuple leads to another block."""
    _, at = item_of(rng, pages, block)
    if file.kind == "gin" and rng.random() < 0.5:
        at = block * PAGE + 32 + 10 * rng.randrange(4)  # of an inner page of a posting tree
    if at:
        target = some_block(rng, pages, block)
        struct.pack_into("<HH", pages, at, target >> 16, target & 0xFFFF)


def change_tuple(rng: random.Random, file: File, pages: bytearray, block: int) -> None:
    """A row's header says something else: its XIDs, its flags, or the place of its next version."""
    _, at = item_of(rng, pages, block)
    if not at:
        return
    what = rng.randrange(4)
    if what < 2:
        struct.pack_into("<I", pages, at + 4 * what, rng.choice([0, 2, 3, 700, 800, 5_000_000, rng.getrandbits(32)]))
    elif what == 2:
        for _ in range(rng.randint(1, 2)):
            pages[at + rng.choice([18, 19, 20, 21, 22])] ^= 1 << rng.randrange(8)
    if what != 2 and rng.random() < 0.5 or what == 3:
        target = some_block(rng, pages, block)
        struct.pack_into("<HHH", pages, at + 12, target >> 16, target & 0xFFFF, rng.choice([0, 1, 2, 3, 40, 300, 0xFFFF]))
        pages[at + 19] |= rng.choice([0, 0x40, 0x80])  # updated, or a later version, on this page
        pages[at + 21] &= rng.choice([0xFF, ~0x08 & 0xFF])  # and maybe its xmax counts


DAMAGES = {
    flip_bits: 8, zero_page: 3, zero_some: 3, swap_pages: 4, misdirect: 8, tear: 2, truncate: 3, lengthen: 2, lose: 1, relink: 8, circle: 8,
    half_dead: 6, set_flags: 4, change_line_pointer: 4, change_downlink: 6, change_tuple: 8,
}  # fmt: skip


def applies(how, file: File) -> bool:
    """Tell whether there is such a damage in such a file."""
    if how in (relink, circle):
        return bool(links_of(file))
    if how is half_dead:
        return file.kind == "btree"
    if how is change_tuple:
        return file.has_rows
    if how is change_downlink:
        return not file.fork and file.kind not in ("heap", "toast", "brin")
    return not (how in (set_flags, change_line_pointer) and file.fork)


class Run(NamedTuple):
    """A statement that is run on a copy: by whom, and how."""

    name: str
    statement: str
    ours: bool
    reference: str  # PostgreSQL's run that may end as badly


CORE = Run("core", "VACUUM (INDEX_CLEANUP on, PARALLEL 0) {0}", False, "")
CORE_FULL = Run("core FULL", "VACUUM (FULL) {0}", False, "")
CORE_INSERT = Run("core INSERT", "INSERT INTO {0} SELECT * FROM {0}", False, "")  # what FULL INPLACE does to indexes, if it is asked why it ends
OURS = (
    Run("one process", "VACUUM (INDEX_CLEANUP on, PARALLEL 0) {0}", True, "core"),
    Run("team", "VACUUM (INDEX_CLEANUP on, PARALLEL 2) {0}", True, "core"),
    Run("FULL", "VACUUM (FULL) {0}", True, "core FULL"),
    Run("INPLACE", "VACUUM (FULL INPLACE) {0}", True, "core"),
    Run("dry run", "VACUUM (DRY_RUN) {0}", True, "core"),
    Run("dry run of INPLACE", "VACUUM (DRY_RUN, FULL INPLACE) {0}", True, "core"),
    Run("bloat", "SELECT count(*) FROM cyclone.bloat WHERE of_table = '{0}'::regclass", True, ""),
)
BAD = ("crash", "hang", "timeout")
IN_VACUUM = re.compile("while (scanning|pruning|vacuuming|cleaning up|truncating)|scanning heap|vacuuming|cleaning up|truncating")
# An assertion of the server's about pages that it comes by on its way to insert; VACUUM does, too, but other runs than INPLACE show that
IN_INSERTION = re.compile(r'TRAP: .*File: "[^"]*/(?:nbt(?:search|insert|page)|hash(?:page|insert))\.c"')


class Outcome(NamedTuple):
    """How a run ended: ok, error or one of BAD; and what the error was, or where it hung."""

    kind: str
    text: str = ""

    def is_of_insertion(self, damaged: dict[File, bytes | None]) -> bool:
        """Tell whether FULL INPLACE ended so where it inserts into a damaged index, by PostgreSQL's routines, as UPDATE does."""
        in_vacuum = IN_VACUUM.search(self.text) or self.kind == "crash" and "PANIC" not in self.text and not IN_INSERTION.search(self.text)
        return not in_vacuum and any(not file.fork and not file.has_rows for file in damaged)


class DamageTest(long_run.LongRun):
    """One server after the other, on a copy of the same files; `done` counts what happened."""

    def __init__(self, prefix: Path, major: int, seed: int, *, base: Path | None = None, with_autovacuum: bool = False):
        assert not with_autovacuum, "damage is for VACUUM as a command"
        super().__init__(None, seed, False)
        initdb = ("--no-data-checksums",) if major >= 18 else ()  # before, there are none if nothing is said
        self.pristine = Cluster.create(prefix, CONFIG, base=base, initdb=initdb)
        self.files: list[File] = []
        self.rows: dict[str, tuple] = {}

    def __exit__(self, *_exception) -> None:
        self._end_life()
        self.pristine.remove()

    def run(self, damages: int, first: int = 0, show=lambda text: None) -> None:
        """Damage files `damages` times; raise AssertionError at the first that ends worse than with PostgreSQL."""
        if not self.files:
            self._make_tables()
        for number in range(first, first + damages):
            with self.kept("damage-test", number, f"FIRST={number}"):
                show(f"damage {number}: {self._damage(number)}")
            self.done["damages"] += 1

    def _make_tables(self) -> None:
        self.pristine.start()
        self.pristine.sql(f"CREATE DATABASE {TEMPLATE}")
        with self.pristine.connect(TEMPLATE) as conn:
            conn.execute("CREATE EXTENSION pg_cyclone")
            for name, (rows, indexes) in TABLES.items():
                conn.execute(f"CREATE TABLE {name} WITH (fillfactor = 90) AS {rows}")
                for index in indexes:
                    conn.execute(index.format(name))
                conn.execute(f"VACUUM (FREEZE) {name}")
                [(most,)] = conn.execute(f"SELECT max(id) FROM {name}")
                conn.execute(f"UPDATE {name} SET id = id WHERE id % 11 = 0")
                conn.execute(f"DELETE FROM {name} WHERE id % 5 = 0 OR id BETWEEN {most} * 0.3 AND {most} * 0.6")
                self.rows[name] = self._rows(conn, name)
            conn.execute("INSERT INTO gin SELECT 100000 + i, ARRAY[i % 3, i] FROM generate_series(1, 300) i")
            self.rows["gin"] = self._rows(conn, "gin")
            conn.execute("CHECKPOINT")
            self.files = self._list_files(conn)
        self.pristine.stop()

    def _rows(self, conn, table: str) -> tuple:
        """The rows of a table's heap, read without its TOAST table and its indexes, at which not even the planner may look."""
        with conn.transaction(force_rollback=True):
            conn.execute(f"UPDATE pg_index SET indisvalid = false WHERE indrelid = '{table}'::regclass")
            [row] = conn.execute(f"SELECT count(*), sum(hashint4(id)) FROM {table}")
        return row

    def _list_files(self, conn) -> list[File]:
        rows = conn.execute(
            "SELECT coalesce(t.relname, o.relname, c.relname), c.relname,"
            " CASE c.relkind WHEN 'r' THEN 'heap' WHEN 't' THEN 'toast' ELSE am.amname END, pg_relation_filepath(c.oid)"
            " FROM pg_class c LEFT JOIN pg_am am ON am.oid = c.relam LEFT JOIN pg_index i ON i.indexrelid = c.oid"
            " LEFT JOIN pg_class t ON t.oid = i.indrelid AND t.relkind = 'r'"
            " LEFT JOIN pg_class o ON o.reltoastrelid = coalesce(i.indrelid, c.oid)"
            " WHERE coalesce(t.relname, o.relname, c.relname) = ANY (%s) AND c.relkind IN ('r', 'i', 't') ORDER BY c.oid",
            (list(set(TABLES) - {OTHER}),),
        )
        files = []
        for table, relation, kind, path in rows:
            for fork in ("", "_vm", "_fsm"):
                file = Path(self.pristine.data / (path + fork))
                if file.exists() and file.stat().st_size > 0 and (table == "long" or not relation.startswith("pg_toast")):
                    files.append(File(table, relation, kind, fork, file.name))
        return files

    def _choose(self, number: int) -> tuple[str, str, dict[File, bytes | None]]:
        """Return a table, what is damaged, and the damaged files; None is a file that is gone."""
        rng = random.Random(f"{self.seed}:{number}")
        [(database,)] = self.cluster.sql(f"SELECT oid FROM pg_database WHERE datname = '{TEMPLATE}'")
        folder = self.cluster.data / "base" / str(database)
        table = rng.choice(sorted({file.table for file in self.files}))
        mine = [file for file in self.files if file.table == table]
        damaged: dict[File, bytes | None] = {}
        told = []
        for _ in range(rng.choice([1, 1, 1, 2])):
            file = rng.choices(mine, [1 if file.fork else 2 if file.kind in ("heap", "brin") else 6 for file in mine])[0]
            pages = bytearray(damaged.get(file) or (folder / file.name).read_bytes())
            kinds = [how for how in DAMAGES if applies(how, file)]
            [how] = rng.choices(kinds, [DAMAGES[how] for how in kinds])
            times = rng.choice([1, 1, 2, 4]) if how not in (truncate, lengthen, lose) else 1
            for _ in range(times):
                block = rng.randrange(len(pages) // PAGE)
                how(rng, file, pages, block)
                told.append(f"{how.__name__} {file.relation}{file.fork} block {block}")
            damaged[file] = None if how is lose else bytes(pages)
        return table, ", ".join(told), damaged

    def _damage(self, number: int) -> str:
        if self.cluster is None:
            self.cluster = self.pristine.copy().start()
        table, told, damaged = self._choose(number)
        outcomes: dict[str, Outcome] = {}
        for run in (CORE, CORE_FULL, *OURS):
            outcome = outcomes[run.name] = self._run(run, table, damaged)
            if not run.ours:
                continue
            self.done[f"{run.name}: {outcome.kind}"] += 1
            if not run.reference:
                if outcome.kind in BAD:
                    outcome = self._run(run, table, damaged, LONGER)
                assert outcome.kind == "ok", f"{told}: {run.name} of {table}: {outcome}"
                continue
            reference = outcomes[run.reference]
            if run.name == "INPLACE" and outcome.kind in BAD and outcome.is_of_insertion(damaged):
                self.done[f"{run.name}: {outcome.kind} in an insertion into a damaged index"] += 1
            elif outcome.kind in BAD and reference.kind not in BAD:
                outcome = self._run(run, table, damaged, LONGER)
                if run.name == "INPLACE" and outcome.kind in BAD and self._run(CORE_INSERT, table, damaged).kind in BAD:
                    self.done[f"{run.name}: {outcome.kind} where PostgreSQL's INSERT of all rows has one, too"] += 1
                    continue
                assert outcome.kind not in BAD, f"{told}: {run.name} of {table}: {outcome}, but PostgreSQL's: {reference}"
            elif outcome.kind != reference.kind:
                self.done[f"{run.name}: {outcome.kind} where PostgreSQL's is {reference.kind}"] += 1
        return f"{told}: {'; '.join(f'{name}: {outcome.kind} {outcome.text}'.strip() for name, outcome in outcomes.items())}"

    def _run(self, run: Run, table: str, damaged: dict[File, bytes | None], longer: int = 1) -> Outcome:
        """Run it on a damaged copy, and look whether all the rest is well."""
        if self.cluster is None:
            self.cluster = self.pristine.copy().start()
        self.cluster.sql(f"CREATE DATABASE damaged TEMPLATE {TEMPLATE} STRATEGY file_copy")
        [(database,)] = self.cluster.sql("SELECT oid FROM pg_database WHERE datname = 'damaged'")
        for file, pages in damaged.items():
            path = self.cluster.data / "base" / str(database) / file.name
            if pages is None:
                path.unlink()
            else:
                path.write_bytes(pages)
                hand_over(path)
        outcome = self._execute(run, table, longer)
        if outcome.kind in ("crash", "hang"):
            self._end_life()
            return outcome
        if run.ours:
            self._prove(run, table, damaged)
        self.cluster.sql("DROP DATABASE damaged WITH (FORCE)")
        return outcome

    def _execute(self, run: Run, table: str, longer: int) -> Outcome:
        """Run a statement; who can't be ended otherwise is killed, and the server with it."""
        phases: list[str] = []
        with self.cluster.connect("damaged") as conn:
            conn.execute(f"SET statement_timeout = '{TIMEOUT * longer}s'; SET cyclone.enabled = {'on' if run.ours else 'off'}")
            watch = threading.Timer((TIMEOUT + PATIENCE) * longer, self._kill, (conn.info.backend_pid, phases))
            watch.start()
            try:
                conn.execute(run.statement.format(table))
            except psycopg.Error as error:
                if phases:
                    return Outcome("hang", phases[0])
                if conn.closed:
                    return Outcome("crash", self._last_words())
                if error.sqlstate == "57014":
                    return Outcome("timeout", error.diag.context or "")
                return Outcome("error", f"{error.sqlstate} {error.diag.message_primary}")
            finally:
                watch.cancel()
        return Outcome("ok")

    def _kill(self, pid: int, phases: list[str]) -> None:
        """End a process that can't be ended otherwise, and note in which phase it was."""
        rows = self.cluster.sql(f"SELECT phase FROM cyclone.progress WHERE pid = {pid}", dbname="damaged")
        phases.append(str(rows))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _last_words(self) -> str:
        """The words of the log about the crash, of which the last ones come when the process is gone."""
        with suppress(TimeoutError):
            wait_until(lambda: "terminated by signal" in self.cluster.log, "the end of the process in the log", PATIENCE)
        words = re.findall(r"PANIC: .*(?:\n.*CONTEXT: .*)?|TRAP: .*|terminated by signal.*", self.cluster.log)
        return " ".join(words[-2:])

    def _prove(self, run: Run, table: str, damaged: dict[File, bytes | None]) -> None:
        """The undamaged table is as it was, and is vacuumed; so is the damaged one's heap, if it isn't that that was damaged."""
        with self.cluster.connect("damaged") as conn:
            conn.execute(f"SET statement_timeout = '{TIMEOUT * LONGER}s'")
            assert conn.execute("SELECT * FROM cyclone.progress_details").fetchall() == []
            conn.execute(f"VACUUM (INDEX_CLEANUP on) {OTHER}")
            tables = [OTHER] if any(file.has_rows and file.kind == "heap" for file in damaged) else [OTHER, table]
            for name in tables:
                assert self._rows(conn, name) == self.rows[name], f"{run.name}: {name} has other rows"

    def _end_life(self) -> None:
        if self.cluster:
            self.cluster.remove()
            self.cluster = None


def main() -> int:
    return long_run.main(DamageTest, __doc__, "damage-test", "damages", 500, rounds_of=1)


if __name__ == "__main__":
    sys.exit(main())
