"""Sessions write and read at random while VACUUM, in many processes, runs again and again on the same table.

Rows come in pairs that always live, change and die together, so what any snapshot holds can be checked in itself; what is
committed is known besides, as each writer keeps a ledger of its own rows. Readers ask every index in one snapshot for what
a sequential scan finds in it, and cursors stand still on pinned index pages.

A short run ends as soon as everything was done. A longer one goes on for CYCLONE_STRESS_SECONDS at least, on each version: 20 s
if not set; half of it, but 20 s at most, with a standby. CYCLONE_STRESS_SEED repeats the choices of a run, not its timing. A
failed test shows its seed.
"""

import os
import random
import re
import threading
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from itertools import count

import psycopg
import pytest

from conftest import TEMPLATE
from cyclone_lab import checks
from cyclone_lab.background import wait_until
from cyclone_lab.workload import CHECKED_WAL

SECONDS = float(os.environ.get("CYCLONE_STRESS_SECONDS", "20"))
SEED = int(os.environ.get("CYCLONE_STRESS_SEED", random.randrange(1_000_000)))
WRITERS = 3
KINDS = 8
CONFIG = {
    "shared_buffers": "16MB",
    "min_parallel_table_scan_size": 0,
    "min_parallel_index_scan_size": 0,
    "checkpoint_timeout": "30s",
    "jit": "off",
    "max_parallel_workers_per_gather": 0,
}
TABLE = """
    CREATE TABLE t (
        id int, pair uuid NOT NULL, tag text NOT NULL, kind int NOT NULL, word text, n int NOT NULL, a int[] NOT NULL,
        p point NOT NULL, note text NOT NULL, big text STORAGE EXTERNAL
    ) WITH (autovacuum_enabled = off, fillfactor = 85)
"""
INDEXES = """
    ALTER TABLE t ADD CONSTRAINT t_id PRIMARY KEY (id);
    CREATE UNIQUE INDEX t_md5 ON t (md5(id::text));
    CREATE INDEX t_pair ON t (pair) WITH (fillfactor = 100);
    CREATE INDEX t_kind ON t (kind);
    CREATE INDEX t_word ON t (word text_pattern_ops);  -- wide, so that pages split and become empty often
    CREATE INDEX t_wide ON t ((id + 1)) INCLUDE (word);  -- and neighbours go together, so that blocks are recycled
    CREATE INDEX t_n ON t (n) INCLUDE (id);
    CREATE INDEX t_some ON t (kind, pair) WHERE kind < 3;
    CREATE INDEX t_tag ON t USING hash (tag);
    CREATE INDEX t_tag_brin ON t USING brin (tag) WITH (pages_per_range = 4);
    CREATE INDEX t_a ON t USING gin (a);
    CREATE INDEX t_p ON t USING gist (p);
"""
# What a query returns, and from where it takes that if it goes by the index of this name; without, it is from t.
BY_INDEX = {
    "t_id": ("count(*), sum(hashint4(id))", "(SELECT id FROM t ORDER BY id OFFSET 0) x"),
    "t_md5": ("count(*), sum(hashint4(n))", "(SELECT n FROM t ORDER BY md5(id::text) OFFSET 0) x"),
    "t_pair": ("count(*), sum(uuid_hash(pair))", "(SELECT pair FROM t ORDER BY pair OFFSET 0) x"),
    "t_kind": ("count(*), sum(kind)", "(SELECT kind FROM t ORDER BY kind OFFSET 0) x"),
    "t_word": ("count(*), sum(hashtext(word))", "(SELECT word FROM t ORDER BY word USING ~<~ OFFSET 0) x"),
    "t_wide": ("count(*), sum(hashtext(word))", "(SELECT word FROM t ORDER BY id + 1 OFFSET 0) x"),
    "t_n": ("count(*), sum(n), sum(hashint4(id))", "(SELECT n, id FROM t ORDER BY n OFFSET 0) x"),
    "t_some": (
        "count(*), sum(uuid_hash(pair))",
        "(SELECT kind, pair FROM t WHERE kind < 3 ORDER BY kind, pair OFFSET 0) x",
    ),
    "t_tag": ("count(*), sum(hashtext(tag))", "(SELECT DISTINCT tag FROM t OFFSET 0) tags JOIN t USING (tag)"),
    "t_tag_brin": ("count(*), sum(hashtext(tag))", "t WHERE tag > '!'"),
    "t_a": ("count(*), sum(hashint4(n))", f"generate_series(1, {KINDS}) number JOIN t ON a @> ARRAY[-number]"),
    "t_p": ("count(*), sum(hashint4(id))", "t WHERE p <@ box '(-1,-1),(1e9,1e9)'"),
}
PLANNER = ("seqscan", "indexscan", "indexonlyscan", "bitmapscan", "sort", "incremental_sort", "hashagg", "hashjoin", "mergejoin")
NO_SCAN_BUT_SEQUENTIAL = ("indexscan", "indexonlyscan", "bitmapscan")
NO_WAY_BUT_BY_INDEX = ("seqscan", "sort", "incremental_sort", "hashagg", "hashjoin", "mergejoin")
ROW_HASH = "hashtextextended(t::text, 0)"
LENGTHS = pytest.mark.parametrize("seconds", [pytest.param(0, id="short"), pytest.param(SECONDS, id="longer", marks=pytest.mark.full)])
UNPAIRED = "SELECT pair FROM t GROUP BY pair HAVING count(*) <> 2 OR sum(n) <> 0 OR max(id) - min(id) <> 1 LIMIT 5"


def forbid(conn, methods: tuple[str, ...]) -> None:
    """Keep the planner from these methods and from no other, until the transaction's end or the next call."""
    for method in PLANNER:
        conn.execute(f"SET LOCAL enable_{method} = {'off' if method in methods else 'on'}")


def by_index(conn, index: str) -> tuple:
    """Return what the query by this index finds; raise AssertionError if another index would be used."""
    columns, source = BY_INDEX[index]
    query = f"SELECT {columns} FROM {source}"
    with conn.transaction():
        forbid(conn, NO_WAY_BUT_BY_INDEX)
        plan = "\n".join(line for (line,) in conn.execute(f"EXPLAIN {query}"))
        # REINDEX CONCURRENTLY may rename an index after it was chosen and before EXPLAIN looks its name up
        assert re.search(rf"(using|on) {index}(_ccold\d*)?\b", plan), plan
        return conn.execute(query, prepare=False).fetchone()  # or else by the plan of another time


def by_sequential_scan(conn, index: str) -> tuple:
    """Return the same as by_index, without any index."""
    columns, _ = BY_INDEX[index]
    with conn.transaction():
        forbid(conn, NO_SCAN_BUT_SEQUENTIAL)
        query = f"SELECT {columns} FROM t" + (" WHERE kind < 3" if index == "t_some" else "")
        return conn.execute(query, prepare=False).fetchone()


def assert_indexes_agree(conn, indexes) -> None:
    """Each index leads to the rows that a sequential scan finds; within one snapshot, if the caller has opened one."""
    for index in indexes:
        expected, found = by_sequential_scan(conn, index), by_index(conn, index)
        assert found == expected, f"by {index}: {found}, by sequential scan: {expected}"


class Stress:
    """Writers, readers and a VACUUM, each a thread with a session, from `run` until everything was done, for `seconds` at least, or to the
    first failure."""

    def __init__(self, cluster, seconds: float, *, pairs: int, batch: int):
        """Prepare for a table where each writer has `pairs` / 2 to 3/2 `pairs`, and changes up to `batch` of them at once."""
        print(f"CYCLONE_STRESS_SEED={SEED} CYCLONE_STRESS_SECONDS={seconds:g}")
        self.cluster = cluster
        self.seconds = seconds
        self.pairs = pairs
        self.batch = batch
        self.ledgers: list[dict[int, int]] = [{} for _ in range(WRITERS)]
        self.done: Counter = Counter()
        self.wanted = {"vacuums": 5, "workers": 3, "pages deleted": 1, "commits": 10, "rollbacks": 3}
        self.wanted |= {"snapshots": 3, "cursors": 3, "compactions": 1, "rows moved": 1, "indexes built anew": 1}
        self._turnstile = threading.Condition()
        self._inside = 0
        self._closed = False
        self._indexes_in_turn = threading.Event()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[BaseException] = []

    def make_table(self) -> None:
        """Make the table, with all its indexes and each writer's first rows."""
        with self.cluster.connect(TEMPLATE) as conn:
            conn.execute(TABLE)
            for writer in range(WRITERS):
                with conn.transaction():
                    Writer(self, conn, writer).fill(self.pairs)
            conn.execute(INDEXES)
            conn.execute("ANALYZE t")

    def run(self, *others) -> None:
        """Run all sessions, and the functions `others` (of a Random) in threads of their own; raise the first failure."""
        jobs = [*(lambda rng, number=number: self._write(rng, number) for number in range(WRITERS))]
        jobs += [self._read_by_all_indexes, self._read_slowly, self._read_slowly, self._vacuum, self._breathe, *others]
        threads = [
            threading.Thread(target=self._guard, args=(job, random.Random(SEED * 100 + number)), daemon=True)
            for number, job in enumerate(jobs)
        ]
        for thread in threads:
            thread.start()
        self._stop.wait(self.seconds)
        # as long as that takes, on a slow machine
        with suppress(TimeoutError):
            wait_until(lambda: self._failures or self._everything_was_done(), "a turn of everyone", 900)
        self._stop.set()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive(), "a session does not end"
        print(dict(sorted(self.done.items())))
        if self._failures:
            raise self._failures[0]
        assert self._everything_was_done(), f"not everything was done: {self.done}"

    @property
    def running(self) -> bool:
        return not self._stop.is_set()

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.done[what] += number

    def pause(self, rng: random.Random, seconds: float) -> None:
        self._stop.wait(rng.uniform(0, seconds))

    @contextmanager
    def inside(self):
        """A transaction that uses the table, which waits while nobody may."""
        with self._turnstile:
            self._turnstile.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._turnstile:
                self._inside -= 1
                self._turnstile.notify_all()

    def _breathe(self, rng: random.Random) -> None:
        """While indexes are built anew, see to it that now and then nobody uses the table: it takes such a moment for each."""
        while self.running:
            if not self._indexes_in_turn.wait(0.1):
                continue
            with self._turnstile:
                self._closed = True
                self._turnstile.wait_for(lambda: self._inside == 0)
            self._stop.wait(0.1)
            with self._turnstile:
                self._closed = False
                self._turnstile.notify_all()
            self.pause(rng, 0.05)

    def committed(self) -> dict[int, int]:
        """Return what the table holds by the writers' ledgers: a hash of each row by its id."""
        return {key: value for ledger in self.ledgers for key, value in ledger.items()}

    def _everything_was_done(self) -> bool:
        return all(self.done[what] >= number for what, number in self.wanted.items())

    def _guard(self, job, rng: random.Random) -> None:
        try:
            job(rng)
        except BaseException as failure:  # which run() raises again
            self._failures.append(failure)
            self._stop.set()

    def _write(self, rng: random.Random, number: int) -> None:
        with self.cluster.connect(TEMPLATE) as conn:
            writer = Writer(self, conn, number, rng)
            while self.running:
                with self.inside():
                    writer.transaction()
                self.pause(rng, 0.02)  # or else the table grows for ever

    def _vacuum(self, rng: random.Random) -> None:
        """VACUUM, fast or slowly, with memory for all dead items or for few, and now and then VACUUM FULL of both kinds."""
        messages: list[str] = []

        def listen(message) -> None:
            messages.append(message.message_primary)
            self.count("indexes built anew", message.message_primary.count('debug point "shrink-swapped" reached'))

        with self.cluster.connect(TEMPLATE) as conn:
            conn.add_notice_handler(listen)
            conn.execute("SET cyclone.debug_point = 'btree-chain:any:notice shrink-swapped:any:notice'; SET vacuum_cost_limit = 1000")
            for number in count():
                if not self.running:
                    break
                conn.execute(f"SET vacuum_cost_delay = {rng.choice([0, 1, 2])}")
                conn.execute(f"SET maintenance_work_mem = '{rng.choice(['64kB', '256kB', '64MB', '64MB'])}'")
                conn.execute(f"SET cyclone.debug_parking = {rng.choice([0, 1, 4])}; SET cyclone.debug_fed = {rng.choice([0, 1000])}")
                option = rng.choice(["", "", "", ", FREEZE", ", DISABLE_PAGE_SKIPPING"])
                conn.execute(f"VACUUM (VERBOSE, INDEX_CLEANUP on, PARALLEL {rng.choice([4, 4, 4, 2, 0])}{option}) t")
                said = "\n".join(messages)
                messages.clear()
                self.count("vacuums")
                self.count("workers", sum(map(int, re.findall(r"^parallel workers: \d+ planned, (\d+) launched$", said, re.M))))
                self.count("pages deleted", sum(map(int, re.findall(r"^index .* (\d+) newly deleted", said, re.M))))
                self.count("pages followed", said.count('debug point "btree-chain" reached'))
                if rng.random() < 0.05:
                    conn.execute(f"VACUUM (FULL, PARALLEL {rng.choice([2, 0])}) t")
                    self.count("rewrites")
                if number % 3 == 2:
                    self._compact(conn, "auto" if number % 9 == 2 else "off")
                    moved = re.search(r"rows moved: (\d+)", "\n".join(messages))
                    messages.clear()
                    self.count("compactions")
                    self.count("rows moved", int(moved[1]))
                self.pause(rng, 0.1)

    def _compact(self, conn, index_cleanup: str) -> None:
        if index_cleanup != "off":
            self._indexes_in_turn.set()
        conn.execute(f"VACUUM (FULL INPLACE, VERBOSE, INDEX_CLEANUP {index_cleanup}) t")
        self._indexes_in_turn.clear()

    def _read_by_all_indexes(self, rng: random.Random) -> None:
        with self.cluster.connect(TEMPLATE) as conn:
            while self.running:
                with self.inside():
                    self.read_in_one_snapshot(conn, rng)
                self.pause(rng, 0.3)

    def read_in_one_snapshot(self, conn, rng: random.Random, what: str = "snapshots") -> None:
        """Some of the indexes agree with the table, and all rows have their partners."""
        with conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            assert_indexes_agree(conn, rng.sample(sorted(BY_INDEX), 3))
            assert conn.execute(UNPAIRED).fetchall() == []
        self.count(what)

    def _read_slowly(self, rng: random.Random) -> None:
        """Scan an index by a cursor that often stands still, back and forth: it finds what was there when it was opened."""
        indexes = {"pair": "t_pair", "n": "t_n", "id": "t_id"}
        with self.cluster.connect(TEMPLATE) as conn:
            while self.running:
                key = rng.choice(sorted(indexes))
                query = f"SELECT {key} FROM t ORDER BY {key}"
                with self.inside(), conn.transaction():
                    conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    forbid(conn, NO_SCAN_BUT_SEQUENTIAL)
                    expected = [value for (value,) in conn.execute(query, prepare=False)]
                    forbid(conn, (*NO_WAY_BUT_BY_INDEX, "bitmapscan"))
                    assert f"Index Only Scan using {indexes[key]}" in conn.execute(f"EXPLAIN {query}").fetchone()[0]
                    conn.execute(f"DECLARE c SCROLL CURSOR FOR {query}", prepare=False)
                    at = 0
                    for _ in range(rng.randrange(4, 40)):
                        some = rng.randrange(1, max(2, len(expected) // 20))
                        if at > some and rng.random() < 0.2:
                            found = [value for (value,) in conn.execute(f"FETCH BACKWARD {some} FROM c")]
                            assert found == expected[at - 1 - some : at - 1][::-1], f"by {indexes[key]}, backward from {at}"
                            at -= some
                        else:
                            found = [value for (value,) in conn.execute(f"FETCH {some} FROM c")]
                            assert found == expected[at : at + some], f"by {indexes[key]}, from {at}"
                            at += len(found)
                            if len(found) < some:
                                break
                        self.pause(rng, 0.03)
                self.count("cursors")
                self.pause(rng, 0.2)


class Writer:
    """One session's random changes to the pairs that it owns, and a ledger of those that it has committed.

    Pair k is the rows 2k and 2k + 1, whose n are v and -v; each writer has a range of ids to itself.
    """

    def __init__(self, stress: Stress, conn, number: int, rng: random.Random | None = None):
        self.stress = stress
        self.conn = conn
        self.number = number
        self.rng = rng or random.Random(SEED * 1000 + number)
        self.ledger = stress.ledgers[number]
        self.unused: list[int] = []  # pairs that were deleted
        self.shrinking = False
        self.next_pair = max(self.ledger, default=number * 10_000_000) // 2 + 1

    def fill(self, pairs: int) -> None:
        """Insert `pairs` pairs, within the caller's transaction, which has to commit."""
        self.pending = dict(self.ledger)
        self._insert(pairs)
        self.ledger.update(self.pending)

    def transaction(self) -> None:
        """Make some changes, and commit them or not."""
        rng = self.rng
        self.pending = dict(self.ledger)
        rolled_back = rng.random() < 0.2
        with self.conn.transaction(force_rollback=rolled_back):
            for _ in range(rng.randrange(1, 4)):
                before = dict(self.pending)
                undone = rng.random() < 0.1
                with self.conn.transaction(force_rollback=undone):  # a savepoint
                    self._choose()(rng.randrange(1, self.stress.batch + 1))
                if undone:
                    self.pending = before
        if rolled_back:
            self.stress.count("rollbacks")
            return
        self.unused += {key // 2 for key in self.ledger} - {key // 2 for key in self.pending}
        self.ledger.clear()
        self.ledger.update(self.pending)
        self.stress.count("commits")

    def _choose(self):
        if len(self.pending) > 3 * self.stress.pairs:
            self.shrinking = True
        elif len(self.pending) < self.stress.pairs:
            self.shrinking = False
        actions = {
            self._insert: 1 if self.shrinking else 8,
            self._copy: 1 if self.shrinking else 3,
            self._update_keys: 4,
            self._update_note: 4,
            self._delete: 3 if self.shrinking else 1,
            self._delete_neighbours: 4 if self.shrinking else 1,
            self._look_up: 1,
        }
        return self.rng.choices(list(actions), list(actions.values()))[0]

    def _new_rows(self, pairs: int) -> list[tuple[int, int, str, int]]:
        """Return id, n, pair and a number to make the other columns of, for pairs that are new or were deleted before."""
        rows = []
        self.rng.shuffle(self.unused)
        for _ in range(pairs):
            if self.unused and self.rng.random() < 0.5:
                pair = self.unused.pop()
            else:
                pair = self.next_pair
                self.next_pair += 1
            if 2 * pair not in self.pending:
                rows += self._pair(2 * pair)
        return rows

    def _pair(self, first: int) -> list[tuple[int, int, str, int]]:
        n, key = self.rng.randrange(100, 1_000_000), str(uuid.UUID(int=self.rng.getrandbits(128)))
        return [(first, n, key, self.rng.getrandbits(31)), (first + 1, -n, key, self.rng.getrandbits(31))]

    COLUMNS = f"""
        new.pair, md5('tag' || seed), mod(seed, {KINDS}), CASE WHEN mod(seed, 5) > 0 THEN repeat(md5('word' || seed), 9) END,
        new.n, ARRAY[new.n, -1 - mod(seed, {KINDS})], point(mod(seed, 1000), new.id), repeat('x', mod(seed, 60)),
        CASE WHEN mod(seed, 30) = 0 THEN repeat('big' || seed, 400) END
    """
    NEW = "unnest(%s::int[], %s::int[], %s::uuid[], %s::int[]) AS new (id, n, pair, seed)"

    def _remember(self, cursor, expected: int) -> None:
        changed = dict(cursor.fetchall())
        assert len(changed) == expected, f"{len(changed)} rows instead of {expected}"
        self.pending.update(changed)

    def _insert(self, pairs: int) -> None:
        if rows := self._new_rows(pairs):
            insert = f"INSERT INTO t SELECT new.id, {self.COLUMNS} FROM {self.NEW} RETURNING id, {ROW_HASH}"
            self._remember(self.conn.execute(insert, list(map(list, zip(*rows)))), len(rows))

    def _copy(self, pairs: int) -> None:
        rows = self._new_rows(pairs)
        with self.conn.cursor().copy("COPY t FROM STDIN") as copy:
            for key, n, pair, seed in rows:
                kind = seed % KINDS
                copy.write_row((key, pair, f"copied {seed}", kind, None, n, [n, -1 - kind], f"({seed % 1000},{key})", "", None))
        found = f"SELECT id, {ROW_HASH} FROM t WHERE id = ANY (%s)"
        self._remember(self.conn.execute(found, ([row[0] for row in rows],)), len(rows))

    def _some(self, pairs: int) -> list[int]:
        """Return the first id of random pairs of our own."""
        firsts = [key for key in self.pending if key % 2 == 0]
        return self.rng.sample(firsts, min(pairs, len(firsts)))

    def _update_keys(self, pairs: int) -> None:
        rows = [row for first in self._some(pairs) for row in self._pair(first)]
        columns = "pair, tag, kind, word, n, a, p, note, big"
        update = f"UPDATE t SET ({columns}) = ROW ({self.COLUMNS}) FROM {self.NEW} WHERE t.id = new.id RETURNING t.id, {ROW_HASH}"
        if rows:
            self._remember(self.conn.execute(update, list(map(list, zip(*rows)))), len(rows))

    def _update_note(self, pairs: int) -> None:
        """Change what is in no index: mostly HOT."""
        ids = [key for first in self._some(pairs) for key in (first, first + 1)]
        for _ in range(self.rng.randrange(1, 3)):
            update = f"UPDATE t SET note = repeat('y', %s) WHERE id = ANY (%s) RETURNING id, {ROW_HASH}"
            self._remember(self.conn.execute(update, (self.rng.randrange(60), ids)), len(ids))

    def _delete(self, pairs: int) -> None:
        self._delete_pairs(self._some(pairs))

    def _delete_neighbours(self, pairs: int) -> None:
        """Delete pairs of a range of ids, which empties pages of some indexes."""
        firsts = sorted(key for key in self.pending if key % 2 == 0)
        at = self.rng.randrange(len(firsts) + 1)
        self._delete_pairs(firsts[at : at + 5 * pairs])

    def _delete_pairs(self, firsts: list[int]) -> None:
        ids = [key for first in firsts for key in (first, first + 1)]
        gone = sorted(key for (key,) in self.conn.execute("DELETE FROM t WHERE id = ANY (%s) RETURNING id", (ids,)))
        assert gone == sorted(ids)
        for key in ids:
            del self.pending[key]

    def _look_up(self, pairs: int) -> None:
        ids = [key for first in self._some(pairs) for key in (first, first + 1)]
        query = f"SELECT id, {ROW_HASH} FROM t WHERE md5(id::text) = ANY (SELECT md5(i::text) FROM unnest(%s::int[]) i)"
        found = dict(self.conn.execute(query, (ids,)))
        assert found == {key: self.pending[key] for key in ids}


def vacuum_all_pages(conn) -> None:
    """VACUUM; again, if it says that it passed over pages that someone, like the checkpointer, had pinned just then."""
    said: list[str] = []

    def listen(message) -> None:
        said.append(message.message_primary)

    conn.add_notice_handler(listen)
    for _ in range(3):
        said.clear()
        conn.execute("VACUUM (VERBOSE, INDEX_CLEANUP on, PARALLEL 4) t")
        assert any(text.startswith("finished vacuuming") for text in said)
        if "not removed due to cleanup lock contention" not in "\n".join(said):
            break
    conn.remove_notice_handler(listen)


def assert_sound(stress: Stress, conn) -> None:
    """The table has the rows that were committed, by each index; VACUUM leaves nothing dead, and every check passes."""
    expected = stress.committed()
    assert expected
    for vacuumed in (False, True):
        if vacuumed:
            vacuum_all_pages(conn)
        found = dict(conn.execute(f"SELECT id, {ROW_HASH} FROM t"))
        wrong = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
        assert not wrong, f"rows {wrong[:10]} are not as they were committed"
        assert_indexes_agree(conn, BY_INDEX)
    state = checks.table_state(conn, "t")
    assert state["rows"] == len(expected)
    assert state["dead_items"] == state["dead_tuples"] == 0
    # bt_index_parent_check with heapallindexed and rootdescend is among these, and every index entry has its row
    checks.assert_clean(conn, "t")


def nothing_is_dead(conn) -> bool:
    conn.execute("VACUUM (INDEX_CLEANUP on, PARALLEL 4) t")
    return checks.table_state(conn, "t")["dead_tuples"] == 0


def assert_right_on_standby(stress: Stress, standby) -> None:
    """The standby has the rows that were committed on the primary, by each index, and they are still there when it takes over."""
    expected = stress.committed()
    with standby.connect(TEMPLATE) as conn:
        assert dict(conn.execute(f"SELECT id, {ROW_HASH} FROM t")) == expected
        assert_indexes_agree(conn, BY_INDEX)
        assert checks.heap_corruption(conn, "t") == checks.btree_corruption(conn, "t") == []
        assert checks.dangling_index_entries(conn, "t") == []
        standby.promote()
        assert_sound(stress, conn)


def assert_quiet_log(cluster) -> None:
    noise = [line for line in cluster.log.splitlines() if re.search("ERROR|PANIC|WARNING|TRAP|inconsistent page", line)
             and "could not be compacted fully" not in line and "could not be truncated" not in line]
    assert not noise, noise[:5]


@LENGTHS
def test_many_sessions_write_and_read_while_a_team_vacuums_again_and_again(new_cluster, seconds):
    cluster = new_cluster(**CONFIG)
    stress = Stress(cluster, seconds, pairs=3000 if seconds else 1000, batch=120 if seconds else 60)
    stress.make_table()
    stress.run()
    with cluster.connect(TEMPLATE) as conn:
        assert_sound(stress, conn)
    assert_quiet_log(cluster)


@LENGTHS
def test_a_standby_follows_and_can_take_over(new_cluster, seconds):
    """The primary logs whole pages with every change, for the standby to compare with what replay makes of them."""
    primary = new_cluster(
        **CONFIG, wal_consistency_checking=CHECKED_WAL, wal_keep_size="8GB", wal_receiver_status_interval=1
    )
    stress = Stress(primary, min(seconds / 2, 20), pairs=1000, batch=12)  # no more, as WAL is large
    stress.make_table()
    # with feedback and patience few queries are cancelled, and so come across more of what is replayed
    patience = {"hot_standby_feedback": "on", "max_standby_streaming_delay": "10s"}

    def read_on_standby(rng: random.Random) -> None:
        while stress.running:
            try:
                with standby.connect(TEMPLATE) as conn:
                    stress.read_in_one_snapshot(conn, rng, "snapshots on the standby")
            except psycopg.OperationalError as error:
                assert "conflict with recovery" in str(error), f"{error}\n{standby.log[-2000:]}"
                stress.count("conflicts with recovery")

    with primary.standby(patience).start() as standby:
        stress.wanted["snapshots on the standby"] = 3
        stress.run(read_on_standby)
        with primary.connect(TEMPLATE) as conn:
            wait_until(lambda: nothing_is_dead(conn), "the standby's word that it needs no dead rows", 300)  # when it has caught up
            assert_sound(stress, conn)
        standby.wait_for_replay(primary, 300)
        assert "inconsistent page" not in standby.log
        assert_right_on_standby(stress, standby)
        assert not re.search("PANIC|TRAP|WARNING|inconsistent page", standby.log)
    assert_quiet_log(primary)
