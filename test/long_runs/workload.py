"""Tables of many kinds, writers that change them at random, and a ledger of what they committed, kept outside the server.

Each writer owns the rows whose id is its number modulo the number of writers, and knows them all. The changes of a transaction
are noted before its COMMIT is sent, and count as committed once the server has said so. If a crash comes in between,
`Workload.settle` asks the server which it was: the transaction is there as a whole or not at all, or else that is an error.
"""

import hashlib
import random
import threading
from collections import Counter
from functools import cache
from typing import NamedTuple

import psycopg

# All that VACUUM writes itself. GiST would be a false alarm: inserting into a page whose items were killed, PostgreSQL sets
# F_TUPLES_DELETED in replay only.
# Nor a hash index: a record of its deletions has an image of a page that others may change meanwhile, and so a wrong checksum,
# at which replay ends. test/upstream/wal-consistency.md
CHECKED_WAL = "heap, heap2, btree, gin, brin, spgist, sequence, generic"
# Errors that a writer may get beside others, after which it rolls back
CONFLICTS = (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable, psycopg.errors.SerializationFailure)
SESSION = "SET deadlock_timeout = '50ms'; SET lock_timeout = '2s'"


class Table(NamedTuple):
    """A table with the columns of COLUMNS, or its partitions; `note` is how long a note is at most, and a writer has about
    `rows` rows."""

    name: str
    create: str
    indexes: tuple[str, ...]
    note: int
    rows: int
    logged: bool = True
    partitions: tuple[str, ...] = ()


COLUMNS = """
    (id int NOT NULL, k int NOT NULL, n int NOT NULL, seed int NOT NULL, tags int[] NOT NULL, spot point NOT NULL, note text NOT NULL)
"""
# One index a column, so that a scan of that column has to use it
TABLES = (
    Table("plain", f"CREATE TABLE plain {COLUMNS} WITH (fillfactor = 40)", (
        "ALTER TABLE plain ADD CONSTRAINT plain_id PRIMARY KEY (id)", "CREATE INDEX plain_k ON plain (k) INCLUDE (seed)",
        "CREATE INDEX plain_seed ON plain USING hash (seed)", "CREATE INDEX plain_n ON plain USING brin (n) WITH (pages_per_range = 4)",
        "CREATE INDEX plain_tags ON plain USING gin (tags)", "CREATE INDEX plain_spot ON plain USING gist (spot)",
    ), 300, 500),
    Table("toasted", f"CREATE TABLE toasted {COLUMNS}; ALTER TABLE toasted ALTER note SET STORAGE external", (
        "ALTER TABLE toasted ADD CONSTRAINT toasted_id PRIMARY KEY (id)", "CREATE INDEX toasted_k ON toasted (k)",
        "CREATE INDEX toasted_spot ON toasted USING spgist (spot)",
    ), 9000, 60),
    Table("parts", f"CREATE TABLE parts {COLUMNS} PARTITION BY HASH (id);"
          " CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
          " CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1)", (
        "ALTER TABLE parts ADD PRIMARY KEY (id)", "CREATE INDEX ON parts (k)",
    ), 60, 200, partitions=("parts_0", "parts_1")),
    Table("chains", f"CREATE TABLE chains {COLUMNS} WITH (fillfactor = 15)", (
        "CREATE UNIQUE INDEX chains_id ON chains ((id + 1))", "CREATE INDEX chains_k ON chains (k) WHERE n > 500",
        "CREATE INDEX chains_spot ON chains USING spgist (spot)",
    ), 30, 300),
    Table("bare", f"CREATE TABLE bare {COLUMNS}", (), 400, 100),
    Table("scratch", f"CREATE UNLOGGED TABLE scratch {COLUMNS}", (
        "ALTER TABLE scratch ADD CONSTRAINT scratch_id PRIMARY KEY (id)", "CREATE INDEX scratch_seed ON scratch USING hash (seed)",
    ), 100, 200, logged=False),
)  # fmt: skip
# Where pgvector is installed; with so few links a VACUUM comes to elements that nothing leads to, and some vectors are the same
VECTORS = Table("vectors", f"CREATE EXTENSION IF NOT EXISTS vector; CREATE TABLE vectors {COLUMNS}", (
    "ALTER TABLE vectors ADD CONSTRAINT vectors_id PRIMARY KEY (id)",
    "CREATE INDEX vectors_near ON vectors USING hnsw ((ARRAY[k % 11, n % 13, seed % 7, id % 4]::vector(4)) vector_l2_ops)"
    " WITH (m = 4, ef_construction = 16)",
), 60, 200)  # fmt: skip
BY_NAME = {table.name: table for table in (*TABLES, VECTORS)}

Row = tuple[int, int, int]  # k, n, seed: all else follows from these and the id
Changes = dict[tuple[str, int], Row | None]  # by table and id; None if the row goes


@cache
def note(seed: int, limit: int) -> str:
    """Return the note of a row with this seed: text that hardly compresses, of any length up to `limit`."""
    length = seed % (limit + 1)
    return hashlib.shake_128(str(seed).encode()).hexdigest(length // 2 + 1)[:length]


@cache
def note_hash(seed: int, limit: int) -> str:
    return hashlib.md5(note(seed, limit).encode()).hexdigest()


class Doubt(NamedTuple):
    """A transaction that was under way: `step` is what was sent last, or "prepared" if the answer to PREPARE came."""

    step: str
    gid: str
    changes: Changes


class Workload:
    """The tables in one database, the ledgers of all writers, and what was done."""

    def __init__(self, writers: int, *, scale: float = 1, tables: tuple[Table, ...] = ()):
        """`scale` multiplies the number of rows; `tables` are all by default."""
        self.writers = writers
        self.tables = tables
        self.scale = scale
        self.ledgers: list[dict[tuple[str, int], Row]] = [{} for _ in range(writers)]
        self.doubts: list[Doubt | None] = [None] * writers
        self.done: Counter = Counter()
        self._lock = threading.Lock()

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.done[what] += number

    def create(self, conn: psycopg.Connection, rng: random.Random) -> None:
        """Make the tables with their indexes and each writer's first rows."""
        with_vectors = conn.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall()
        self.tables = self.tables or (*TABLES, *[VECTORS] * bool(with_vectors))
        for table in self.tables:
            conn.execute(table.create)
        for number in range(self.writers):
            Writer(self, conn, number, rng).fill()
        for table in self.tables:
            for index in table.indexes:
                conn.execute(index)

    def expected(self, table: Table) -> dict[int, Row]:
        """Return the rows of a table that are committed, by the ledgers."""
        return {id: row for ledger in self.ledgers for (name, id), row in ledger.items() if name == table.name}

    def content(self, conn: psycopg.Connection, table: Table) -> dict[int, Row]:
        """Return the rows that the server has; raise AssertionError if one is damaged in itself or is there twice."""
        query = f"SELECT id, k, n, seed, tags = ARRAY[k, -(k %% 8)] AND spot ~= point(k, id), md5(note) FROM {table.name}"
        found = {}
        with conn.transaction():
            conn.execute("SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off")
            for id, k, n, seed, consistent, hashed in conn.execute(query, ()):
                assert consistent, f"{table.name}: row {id} has a column of another row"
                assert hashed == note_hash(seed, table.note), f"{table.name}: row {id} has another note"
                assert id not in found, f"{table.name}: row {id} is there twice"
                found[id] = k, n, seed
        return found

    def readable(self, conn: psycopg.Connection) -> list[Table]:
        """Return the tables that can be read there: on a standby those that are logged."""
        [(in_recovery,)] = conn.execute("SELECT pg_is_in_recovery()")
        return [table for table in self.tables if table.logged or not in_recovery]

    def assert_content(self, conn: psycopg.Connection, *tables: Table) -> None:
        """The server has what the ledgers say, in these tables or all, no more and no less; no transaction may be in doubt."""
        for table in tables or self.readable(conn):
            self._compare(table, self.content(conn, table))

    def forget_unlogged(self) -> None:
        """After a crash or a promotion unlogged tables are empty."""
        for ledger in self.ledgers:
            for key in [key for key in ledger if not BY_NAME[key[0]].logged]:
                del ledger[key]

    def _compare(self, table: Table, found: dict[int, Row]) -> None:
        expected = self.expected(table)
        wrong = [id for id in found.keys() | expected.keys() if found.get(id) != expected.get(id)]
        examples = [(id, "found", found.get(id), "expected", expected.get(id)) for id in sorted(wrong)[:5]]
        assert not wrong, f"{table.name}: {len(wrong)} of {len(expected)} rows are not as committed: {examples}"

    def settle(self, conn: psycopg.Connection) -> None:
        """After a crash: learn the fate of transactions in doubt, and compare everything with the ledgers.

        Transactions that are prepared remain so, and in doubt, until `finish_prepared`. Raises AssertionError.
        """
        self.forget_unlogged()
        found = {table.name: self.content(conn, table) for table in self.tables}
        prepared = {gid for (gid,) in conn.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")}
        for number, doubt in enumerate(self.doubts):
            if doubt is None:
                continue
            changes = {key: row for key, row in doubt.changes.items() if BY_NAME[key[0]].logged}
            ledger = self.ledgers[number]
            is_new = {found[name].get(id) == row for (name, id), row in changes.items() if ledger.get((name, id)) != row}
            what = f"writer {number}, {doubt.step} {doubt.gid}"
            assert len(is_new) < 2, f"{what}: the transaction is there in part only"
            there = True in is_new
            changed = bool(is_new)
            if doubt.gid in prepared:
                assert doubt.step != "commit" and not there, what
                self.doubts[number] = doubt._replace(step="prepared", changes=changes)
                self.count("prepared transactions recovered")
                continue
            assert doubt.step != "prepared", f"{what}: a prepared transaction is lost"
            assert not (there and doubt.step in ("prepare", "rollback prepared")), f"{what}: it is there"
            assert there or not changed or doubt.step != "commit prepared", f"{what}: it is not there"
            if there:
                self.apply(number, changes)
            self.doubts[number] = None
            self.count("in doubt, committed" if there else "in doubt, not committed")
        left_over = prepared - {doubt.gid for doubt in self.doubts if doubt}
        assert not left_over, f"prepared transactions that should not be: {left_over}"
        for table in self.tables:
            self._compare(table, found[table.name])

    def finish_prepared(self, conn: psycopg.Connection, rng: random.Random) -> int:
        """Commit what is prepared or roll it back, by chance, and return how many there were."""
        count = sum(doubt is not None for doubt in self.doubts)
        for number, doubt in enumerate(self.doubts):
            if doubt and rng.random() < 0.5:
                conn.execute(f"COMMIT PREPARED '{doubt.gid}'")
                self.apply(number, doubt.changes)
            elif doubt:
                conn.execute(f"ROLLBACK PREPARED '{doubt.gid}'")
            self.doubts[number] = None
        return count

    def apply(self, number: int, changes: Changes) -> None:
        """Enter committed changes into a writer's ledger."""
        ledger = self.ledgers[number]
        for key, row in changes.items():
            if row is None:
                ledger.pop(key, None)
            else:
                ledger[key] = row


class Writer:
    """One session's random transactions on the rows it owns."""

    def __init__(self, workload: Workload, conn: psycopg.Connection, number: int, rng: random.Random, name: str = "w"):
        """`name` begins the names of prepared transactions."""
        self.workload = workload
        self.conn = conn
        self.number = number
        self.rng = rng
        self.name = name
        self.transactions = 0
        self.view: dict[tuple[str, int], Row] = {}  # the ledger and this transaction's changes
        self.changes: Changes = {}
        self.untouchable: set[tuple[str, int]] = set()

    def fill(self) -> None:
        """Insert the first rows, in a transaction of its own."""
        self._begin()
        for table in self.workload.tables:
            self._insert(table, int(table.rows * self.workload.scale))
        self._end("commit")

    def transaction(self, pause=lambda seconds: None) -> None:
        """Make some changes, and commit, roll back, or prepare and then do either; `pause` takes a number of seconds."""
        self.transactions += 1
        self._begin()
        try:
            for _ in range(self.rng.randrange(1, 5)):
                self._some_changes()
            if self.rng.random() < 0.1:
                pause(self.rng.uniform(0, 0.1))
        except CONFLICTS as conflict:
            self.conn.execute("ROLLBACK")
            self.workload.count(f"conflicts: {type(conflict).__name__}")
            return
        end = self.rng.choices(["commit", "rollback", "prepare"], [75, 15, 10])[0]
        if end == "prepare" and self.changes:
            gid = f"{self.name}-{self.number}-{self.transactions}"
            self._send("prepare", f"PREPARE TRANSACTION '{gid}'", gid)
            self.workload.doubts[self.number] = Doubt("prepared", gid, self.changes)
            pause(self.rng.uniform(0, 0.1))
            verb = self.rng.choice(["commit", "commit", "rollback"])
            self._send(f"{verb} prepared", f"{verb} PREPARED '{gid}'", gid)
            self._ended(verb)
        else:
            self._end("commit" if end == "prepare" else end)

    def _begin(self) -> None:
        self.view = dict(self.workload.ledgers[self.number])
        self.changes = {}
        self.untouchable = set()
        self.conn.execute("BEGIN")

    def _end(self, verb: str) -> None:
        if verb == "commit":
            self._send(verb, "COMMIT", "")
        else:
            self.conn.execute("ROLLBACK")
        self._ended(verb)

    def _send(self, step: str, statement: str, gid: str) -> None:
        """Note what is going to be, then say it."""
        self.workload.doubts[self.number] = Doubt(step, gid, self.changes)
        self.conn.execute(statement)

    def _ended(self, verb: str) -> None:
        if verb == "commit":
            self.workload.apply(self.number, self.changes)
        self.workload.doubts[self.number] = None
        self.workload.count(verb)

    def _some_changes(self) -> None:
        """Do one thing to one table, perhaps in a savepoint, which perhaps is rolled back.

        A transaction that rolls back may not change rows that this transaction has changed before. Such a row version keeps HEAP_COMBOCID
        when it is frozen; replay of a lock on it clears that, PostgreSQL itself doesn't, and wal_consistency_checking says so.
        """
        table = self.rng.choice(self.workload.tables)
        action = self._choose(table)
        batch = self.rng.choice([1, 1, 2, 5, 20, 60])
        fate = self.rng.choices(["none", "release", "rollback"], [70, 15, 15])[0]
        if fate == "none":
            action(table, batch)
            return
        before = dict(self.view), dict(self.changes)
        self.untouchable = set(self.changes) if fate == "rollback" else set()
        self.conn.execute("SAVEPOINT s")
        action(table, batch)
        if fate == "rollback":
            self.conn.execute("ROLLBACK TO s")
            self.view, self.changes = before
        self.conn.execute("RELEASE s")
        self.untouchable = set()

    def _choose(self, table: Table):
        rows = sum(name == table.name for name, _ in self.view)
        target = table.rows * self.workload.scale
        actions = {
            self._insert: 8 if rows < target else 1 if rows > 1.5 * target else 3,
            self._update_number: 6,
            self._update_key: 3,
            self._update_note: 2,
            self._move: 1,
            self._delete: 2 if rows < target else 6 if rows > 1.5 * target else 3,
            self._delete_tail: 0.3 if rows < target else 1,
            self._lock_others: 3,
        }
        return self.rng.choices(list(actions), list(actions.values()))[0]

    def _put(self, table: Table, id: int, row: Row | None) -> None:
        self.changes[table.name, id] = row
        if row is None:
            del self.view[table.name, id]
        else:
            self.view[table.name, id] = row

    def _ours(self, table: Table) -> list[int]:
        """Return the ids of our rows that may be changed."""
        return [key[1] for key in self.view if key[0] == table.name and key not in self.untouchable]

    def _some(self, table: Table, count: int) -> list[int]:
        """Return ids of some of our rows, neighbours or not."""
        ids = sorted(self._ours(table))
        if self.rng.random() < 0.5:
            at = self.rng.randrange(len(ids) + 1)
            return ids[at : at + count]
        return self.rng.sample(ids, min(count, len(ids)))

    def _unused(self, table: Table, count: int) -> list[int]:
        """Return ids of ours that no row has: those of rows that are gone, if possible."""
        free, number = [], self.rng.randrange(0, 4 * table.rows)
        while len(free) < count:
            id = number * self.workload.writers + self.number
            if (table.name, id) not in self.view:
                free.append(id)
            number += 1
        return free

    def _random_row(self) -> Row:
        return self.rng.randrange(1000), self.rng.randrange(1000), self.rng.randrange(1 << 30)

    def _execute(self, statement: str, parameters, expected: int) -> None:
        """Run a statement that has to find this many rows."""
        found = self.conn.execute(statement, parameters).rowcount
        assert found == expected, f"{found} rows instead of {expected}: {statement}"

    def _insert(self, table: Table, count: int) -> None:
        rows = {id: self._random_row() for id in self._unused(table, count)}
        columns = [[id, k, n, seed, [k, -(k % 8)], f"({k},{id})", note(seed, table.note)] for id, (k, n, seed) in rows.items()]
        if self.rng.random() < 0.5:
            with self.conn.cursor().copy(f"COPY {table.name} FROM STDIN") as copy:
                for row in columns:
                    copy.write_row(row)
        else:
            values = [[row[column] for row in columns] for column in (0, 1, 2, 3, 6)]
            self._execute(
                f"INSERT INTO {table.name} SELECT id, k, n, seed, ARRAY[k, -(k %% 8)], point(k, id), note"
                " FROM unnest(%s::int[], %s::int[], %s::int[], %s::int[], %s::text[]) AS new (id, k, n, seed, note)",
                values, len(rows),
            )  # fmt: skip
        for id, row in rows.items():
            self._put(table, id, row)

    def _update_number(self, table: Table, count: int) -> None:
        """Change what only a BRIN index has, once or several times: HOT, where there is room."""
        ids = self._some(table, count)
        for _ in range(self.rng.choice([1, 1, 2, 4])):
            self._execute(f"UPDATE {table.name} SET n = n + 1 WHERE id = ANY (%s)", (ids,), len(ids))
            for id in ids:
                k, n, seed = self.view[table.name, id]
                self._put(table, id, (k, n + 1, seed))

    def _update_key(self, table: Table, count: int) -> None:
        ids = self._some(table, count)
        shift = self.rng.randrange(1, 1000)
        self._execute(
            f"UPDATE {table.name} SET k = k + %s, tags = ARRAY[k + %s, -((k + %s) %% 8)], spot = point(k + %s, id)"
            " WHERE id = ANY (%s)", (shift, shift, shift, shift, ids), len(ids),
        )  # fmt: skip
        for id in ids:
            k, n, seed = self.view[table.name, id]
            self._put(table, id, (k + shift, n, seed))

    def _update_note(self, table: Table, count: int) -> None:
        ids = self._some(table, min(count, 20))
        seeds = [self.rng.randrange(1 << 30) for _ in ids]
        self._execute(
            f"UPDATE {table.name} t SET seed = new.seed, note = new.note"
            " FROM unnest(%s::int[], %s::int[], %s::text[]) AS new (id, seed, note) WHERE t.id = new.id",
            (ids, seeds, [note(seed, table.note) for seed in seeds]), len(ids),
        )  # fmt: skip
        for id, seed in zip(ids, seeds):
            k, n, _ = self.view[table.name, id]
            self._put(table, id, (k, n, seed))

    def _move(self, table: Table, count: int) -> None:
        """Give rows other ids: key updates, and moves between partitions."""
        old = self._some(table, min(count, 20))
        new = self._unused(table, len(old))
        self._execute(
            f"UPDATE {table.name} t SET id = new.id, spot = point(k, new.id)"
            " FROM unnest(%s::int[], %s::int[]) AS new (was, id) WHERE t.id = new.was", (old, new), len(old),
        )  # fmt: skip
        for was, id in zip(old, new):
            row = self.view[table.name, was]
            self._put(table, was, None)
            self._put(table, id, row)

    def _delete(self, table: Table, count: int) -> None:
        ids = self._some(table, count)
        self._execute(f"DELETE FROM {table.name} WHERE id = ANY (%s)", (ids,), len(ids))
        for id in ids:
            self._put(table, id, None)

    def _delete_tail(self, table: Table, _count: int) -> None:
        """Delete our rows on the last pages, so that the table can become shorter."""
        ids = self._ours(table)
        leaf = self.rng.choice(table.partitions or (table.name,))
        share = self.rng.choice([1.1, 1.5, 4])
        gone = self.conn.execute(
            f"DELETE FROM {leaf} WHERE id = ANY (%s)"
            f" AND (ctid::text::point)[0] >= pg_relation_size('{leaf}') / current_setting('block_size')::int / %s RETURNING id",
            (ids, share),
        )  # fmt: skip
        for (id,) in gone:
            self._put(table, id, None)

    def _lock_others(self, table: Table, count: int) -> None:
        """Lock anyone's rows: multixacts, with the locks and updates of others."""
        mode = self.rng.choice(["KEY SHARE", "KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"])
        at = self.rng.randrange(1000)
        self.conn.execute(f"SELECT FROM {table.name} WHERE k >= %s LIMIT %s FOR {mode} SKIP LOCKED", (at, count))
