"""Two equal tables, and sessions that do the same to both: what must come of it must come of both.

Each statement goes to `control` first, then to `compacted`, which is made smaller meanwhile. So a session that has locked, changed or
inserted a row of `control` has the row of `compacted` to itself, and there the statement must find the same rows and return the same of them,
whatever moves. No ledger is needed: `control` is one.

Statements that succeed beside PostgreSQL's VACUUM must succeed: keys that all writers insert or update, values that two rows have until a deferred
constraint is checked, ANALYZE in a transaction that has changed rows. Some transactions have a `lock_timeout`, and may end by it.

Both refer to `parent`, and a table of its own refers to each. Apart from the writers' rows are accounts in pairs, of which only
serializable transactions withdraw money, and only if the pair has it: so no pair is ever overdrawn.
"""

import random
import threading
import time
from collections import Counter
from contextlib import suppress

import psycopg

from cyclone_lab.background import DEBUG_POINT_LOCK
from long_runs.load import Sessions
from long_runs.workload import CONFLICTS, SESSION, Table, note

TWINS = ("control", "compacted")
FEW, MANY = 1000, 2500  # rows; between them writers now fill the tables and now empty them
PARENTS = 40
IDS = 1_000_000  # those of writers are below
SHARED = range(4 * MANY, 4 * MANY + 20)  # ids that each writer may insert
PAIRS = 10  # of accounts, for each duel
START = 100  # what an account has in the beginning
WITHDRAWAL = 150
PATIENCE = 0.5  # seconds to wait for a row to move
BREATH = 4.0, 0.5  # seconds after which all hold their breath, and for how long, so that the end of a table can be cut off

COLUMNS = """
    (id int NOT NULL, u bigint NOT NULL, k int NOT NULL, n int NOT NULL, seed int NOT NULL, tags int[] NOT NULL, parent int,
     money int NOT NULL, note text NOT NULL, slot int)
"""


def twin(name: str, on_delete_parent: str, excluding: bool) -> Table:
    """Return one of the twins; one index a column, for `checks.index_scan_errors`, and maybe an exclusion constraint."""
    exclude = (f"ALTER TABLE {name} ADD EXCLUDE USING gist (point(u::float8, 0) WITH ~=)",) if excluding else ()
    return Table(name, f"CREATE TABLE {name} {COLUMNS} WITH (fillfactor = 85); ALTER TABLE {name} ALTER note SET STORAGE external", (
        f"ALTER TABLE {name} ADD CONSTRAINT {name}_id PRIMARY KEY (id)", f"CREATE UNIQUE INDEX {name}_u ON {name} (u)",
        f"ALTER TABLE {name} ADD CONSTRAINT {name}_slot UNIQUE (slot) DEFERRABLE INITIALLY DEFERRED",
        f"CREATE INDEX {name}_k ON {name} (k) INCLUDE (id)", f"CREATE INDEX {name}_n ON {name} (n) WHERE n > 500",
        f"CREATE INDEX {name}_seed ON {name} USING hash (seed)", f"CREATE INDEX {name}_tags ON {name} USING gin (tags)",
        f"CREATE INDEX {name}_parent ON {name} (parent)",
        f"ALTER TABLE {name} ADD FOREIGN KEY (parent) REFERENCES parent ON UPDATE CASCADE ON DELETE {on_delete_parent}",
        *exclude,
    ), 0, MANY)  # fmt: skip


def child(name: str, on_delete: str) -> Table:
    """Return the table that refers to one of the twins."""
    return Table(f"{name}_child", f"CREATE TABLE {name}_child (id int NOT NULL, ref int)", (
        f"ALTER TABLE {name}_child ADD CONSTRAINT {name}_child_id PRIMARY KEY (id)",
        f"CREATE INDEX {name}_child_ref ON {name}_child (ref)",
        f"ALTER TABLE {name}_child ADD FOREIGN KEY (ref) REFERENCES {name} ON UPDATE CASCADE ON DELETE {on_delete}",
    ), 0, MANY // 2)  # fmt: skip


# TWIN stands for one of the two. These are true in every snapshot.
CONTENT = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM TWIN t"
CHILDREN = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM TWIN_child t"
# Conditions, and whether all rows meet them. With other scans switched off, an index of each kind is scanned for one.
PATHS = (
    ("id > -2000000000", True), ("u > -2000000000", True), ("k > -2000000000", True), ("tags @> '{}'", True), ("n > 500", False),
    ("seed = 7", False), ("seed = ANY ('{1,2,3,4,5}')", False), ("tags @> '{3}'", False), ("parent < 20", False), ("parent IS NULL", False),
    ("point(u::float8, 0) <@ box '(-1e9,-1e9),(1e9,1e9)'", True),
)  # fmt: skip
OVERDRAWN = f"SELECT abs(id) %% {IDS}, sum(money) FROM TWIN WHERE abs(id) >= {IDS} GROUP BY 1 HAVING sum(money) < 0 OR count(*) <> 2"
PLACES = "SELECT array_agg(ctid::text ORDER BY id) FROM compacted WHERE id = ANY (%s)"
LAST = f"""
    SELECT abs(id) %% {IDS} FROM compacted WHERE abs(id) >= {IDS} AND abs(id) %% {IDS} BETWEEN %s AND %s ORDER BY ctid DESC LIMIT 1
"""
MOVING = "SELECT EXISTS (SELECT FROM cyclone.progress WHERE relation = 'compacted'::regclass AND phase = 'moving rows')"
ORPHANS = """
    SELECT 'row', id FROM TWIN t WHERE parent IS NOT NULL AND NOT EXISTS (SELECT FROM parent p WHERE p.id = t.parent)
    UNION ALL SELECT 'child', id FROM TWIN_child c WHERE ref IS NOT NULL AND NOT EXISTS (SELECT FROM TWIN t WHERE t.id = c.ref)
"""


def breathe(sessions: Sessions) -> None:
    """Between two transactions: wait if all do."""
    sessions.pause(max(0, BREATH[1] - time.monotonic() % BREATH[0]))


class Twins:
    """The tables in one database, and what was done. `proof` takes it for a workload."""

    def __init__(self, writers: int, duels: int, rng: random.Random):
        self.writers = writers
        self.duels = duels
        on_delete_parent = rng.choice(["CASCADE", "CASCADE", "SET NULL"])
        on_delete = rng.choice(["CASCADE", "RESTRICT", "SET NULL", "NO ACTION"])
        excluding = rng.random() < 0.5
        self.tables = tuple(
            table for name in TWINS for table in (twin(name, on_delete_parent, excluding), child(name, on_delete))
        )
        self.done: Counter = Counter()
        self.shrinking = False
        self.compactor = 0  # the process that compacts
        self._lock = threading.Lock()

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.done[what] += number

    def readable(self, _conn: psycopg.Connection) -> tuple[Table, ...]:
        return self.tables

    def create(self, conn: psycopg.Connection, rng: random.Random) -> None:
        """Make the tables with their indexes, accounts and first rows."""
        conn.execute("CREATE TABLE parent (id int PRIMARY KEY); CREATE SEQUENCE children; CREATE SEQUENCE slots")
        conn.execute(f"INSERT INTO parent SELECT generate_series(0, {PARENTS - 1})")
        for table in self.tables:
            conn.execute(table.create)
        for table in self.tables:
            for index in table.indexes:
                conn.execute(index)
        with conn.transaction():
            for pair in range(self.duels * PAIRS):
                open_accounts(conn, accounts(pair))
        with conn.transaction():
            for number in range(self.writers):
                writer = Writer(self, conn, rng, number)
                for _ in range(MANY // self.writers // 50):
                    writer.insert(50)

    def assert_content(self, conn: psycopg.Connection) -> None:
        """In one snapshot the twins are equal, and true to all constraints and rules."""
        with conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert_true(conn)


def both(conn: psycopg.Connection, statement: str, parameters=()) -> list[tuple] | int:
    """Run a statement for both twins; return the rows, in any order, or the number of rows, which must be equal."""
    control, compacted = (_run(conn, statement, name, parameters) for name in TWINS)
    if control != compacted:
        fewer, more = (set(map(repr, x)) if isinstance(x, list) else {x} for x in (compacted, control))
        raise AssertionError(f"{statement}: control has {sorted(more - fewer)[:5]}, compacted has {sorted(fewer - more)[:5]}")
    return control


def _run(conn: psycopg.Connection, statement: str, name: str, parameters) -> list[tuple] | int:
    cursor = conn.execute(statement.replace("TWIN", name), parameters)
    return sorted(cursor.fetchall(), key=repr) if cursor.description else cursor.rowcount


def assert_true(conn: psycopg.Connection) -> list[list[tuple]]:
    """In a snapshot: the twins are equal, no pair of accounts is overdrawn, and foreign keys hold. Return their contents."""
    contents = [both(conn, CONTENT), both(conn, CHILDREN)]
    assert not (overdrawn := both(conn, OVERDRAWN)), f"pairs of accounts are overdrawn: {overdrawn}"
    assert not (orphans := both(conn, ORPHANS)), f"foreign keys don't hold: {orphans[:5]}"
    return contents


def accounts(pair: int) -> list[int]:
    """Return the ids of a pair's accounts in ascending order, far from each other in an index."""
    return [-IDS - pair, IDS + pair]


def open_accounts(conn: psycopg.Connection, ids: list[int]) -> None:
    """Insert accounts: rows large enough to come to the end of a table without much room."""
    both(
        conn, "INSERT INTO TWIN SELECT id, 2 * id, 0, 0, 0, '{}', NULL, %s, %s FROM unnest(%s::int[]) id",
        (START, note(999, 999), ids),
    )  # fmt: skip


class Writer:
    """One session's random transactions. New ids are its number modulo the number of writers; it changes the rows of all."""

    def __init__(self, twins: Twins, conn: psycopg.Connection, rng: random.Random, number: int):
        self.twins = twins
        self.conn = conn
        self.rng = rng
        self.number = number

    def both(self, statement: str, parameters=()) -> list[tuple] | int:
        return both(self.conn, statement, parameters)

    def transaction(self, pause) -> None:
        """Make some changes, and commit or roll back; `pause` takes a number of seconds."""
        level = self.rng.choices(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"], [6, 3, 1])[0]
        try:
            self.conn.execute(f"BEGIN ISOLATION LEVEL {level}")
            if self.rng.random() < 0.15:
                self.conn.execute(f"SET LOCAL lock_timeout = {self.rng.choice([1, 10, 100, 1000])}")
            for _ in range(self.rng.randrange(1, 5)):
                self._savepoint_or_not(pause)
            if self.rng.random() < 0.1:
                pause(self.rng.uniform(0, 0.2))
            end = "COMMIT" if self.rng.random() < 0.85 else "ROLLBACK"
            self.conn.execute(end)
            self.twins.count(f"transactions: {end}")
        except CONFLICTS as conflict:
            self.conn.execute("ROLLBACK")
            detail = conflict.diag.message_detail or ""
            assert f"Process {self.twins.compactor} waits" not in detail, f"compaction has a part in it: {conflict}"
            self.twins.count(f"conflicts of writers: {type(conflict).__name__}")

    def _savepoint_or_not(self, pause) -> None:
        fate = self.rng.choices(["none", "RELEASE s", "ROLLBACK TO s"], [70, 15, 15])[0]
        action = self._choose()
        count = self.rng.choice([1, 1, 2, 5, 20, 60])
        if fate != "none":
            self.conn.execute("SAVEPOINT s")
        action(count)
        if fate != "none":
            if self.rng.random() < 0.1:
                pause(0.1)
            self.conn.execute(fate)

    def _choose(self):
        if self.rng.random() < 0.05:
            [(rows,)] = self.conn.execute("SELECT count(*) FROM control")
            self.twins.shrinking = rows > MANY or rows > FEW and self.rng.random() < 0.5
        shrinking = self.twins.shrinking
        actions = {
            self.insert: 1 if shrinking else 8, self._copy: 1 if shrinking else 4, self._upsert: 2, self._insert_again: 1,
            self._upsert_shared: 3, self._rotate_slots: 3, self._analyze: 0.3,
            self._update: 6, self._update_key: 3, self._update_note: 2, self._update_at_cursor: 2, self._rename: 3,
            self._delete: 10 if shrinking else 2, self._delete_parent: 0.6 if shrinking else 0.1, self._lock: 5,
            self._add_children: 3, self._delete_children: 3,
        }  # fmt: skip
        return self.rng.choices(list(actions), list(actions.values()))[0]

    def _some(self, count: int, lock: str) -> list[int]:
        """Lock some of the rows of `control`, neighbours or not, and return their ids."""
        if self.rng.random() < 0.5:
            where, at = "id >= %s", self.rng.randrange(4 * MANY)
        else:
            where, at = "id = ANY (%s)", [self.rng.randrange(4 * MANY) for _ in range(4 * count)]
        found = self.conn.execute(
            f"SELECT id FROM control WHERE {where} AND id BETWEEN 0 AND {IDS - 1} ORDER BY id LIMIT %s FOR {lock}", (at, count)
        )  # fmt: skip
        return [id for (id,) in found]

    def _unused(self, count: int) -> list[int]:
        """Return ids of ours that no row has."""
        ours = self.rng.sample(range(self.number, 4 * MANY, self.twins.writers), 3 * count)
        query = "SELECT id FROM unnest(%s::int[]) id EXCEPT SELECT id FROM control LIMIT %s"
        return [id for (id,) in self.conn.execute(query, (ours, count))]

    def _parents(self) -> list[int | None]:
        """Lock some parents, and return them, and none, to choose from."""
        found = self.conn.execute("SELECT id FROM parent WHERE id >= %s ORDER BY id LIMIT 2 FOR KEY SHARE", (self.rng.randrange(PARENTS),))
        return [None, *(id for (id,) in found)]

    def _note(self) -> str:
        return note(self.rng.randrange(3000), self.rng.choice([60, 60, 60, 300, 300, 300, 6000]))

    def _rows(self, count: int) -> list[tuple]:
        rng, parents = self.rng, self._parents()
        return [
            (
                id, 2 * id, rng.randrange(1000), rng.randrange(1000), rng.randrange(50), [id % 7, -(id % 11)], rng.choice(parents),
                0, self._note(),
            )
            for id in self._unused(count)
        ]  # fmt: skip

    def insert(self, count: int) -> None:
        rows = self._rows(count)
        if rows:
            values = ", ".join(["(%s, %s, %s, %s, %s, %s::int[], %s::int, %s, %s)"] * len(rows))
            self.both(f"INSERT INTO TWIN VALUES {values}", [value for row in rows for value in row])

    def _copy(self, count: int) -> None:
        rows = self._rows(count)
        for name in TWINS:
            with self.conn.cursor().copy(f"COPY {name} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row((*row, None))

    def _upsert(self, _count: int) -> None:
        """Insert ids of ours, of which some have rows: they are changed instead."""
        ids = self.rng.sample(range(self.number, 4 * MANY, self.twins.writers), 4)
        self.both(
            "INSERT INTO TWIN SELECT id, 2 * id, 0, 0, 0, '{}', NULL, 0, 'upsert' FROM unnest(%s::int[]) id"
            " ON CONFLICT (id) DO UPDATE SET n = TWIN.n + 1, note = TWIN.note || '.' RETURNING hashtextextended(TWIN::text, 0)",
            (sorted(ids),),
        )  # fmt: skip

    def _numbers(self, count: int) -> list[int]:
        return [number for (number,) in self.conn.execute("SELECT nextval('slots')::int FROM generate_series(1, %s)", (count,))]

    def _upsert_shared(self, _count: int) -> None:
        """Insert ids that others insert, too, maybe at this moment: the second one changes the row.

        Everything else that is unique must be new: PostgreSQL itself refuses a second one there, as only ids are asked about.
        """
        ids = sorted(self.rng.sample(SHARED, 3))
        new = [200 * IDS + 2 * number for number in self._numbers(len(ids))]
        self.both(
            "INSERT INTO TWIN SELECT id, u, 0, 0, 0, '{}', NULL, 0, 'shared' FROM unnest(%s::int[], %s::bigint[]) AS new (id, u)"
            " ON CONFLICT (id) DO UPDATE SET n = TWIN.n + 1, k = TWIN.k + 1 RETURNING hashtextextended(TWIN::text, 0)",
            (ids, new),
        )  # fmt: skip
        self.twins.count("upserts of shared keys")

    def _rotate_slots(self, count: int) -> None:
        """Give each of some rows the slot of the next one, one after the other: until the last has its own, two rows have the same."""
        ids = self._some(min(count, 10), "UPDATE")
        slots = dict(self.conn.execute("SELECT id, slot FROM control WHERE id = ANY (%s)", (ids,)).fetchall())
        without = [id for id in ids if slots[id] is None]
        slots |= dict(zip(without, self._numbers(len(without))))
        for id, following in zip(ids, ids[1:] + ids[:1]):
            found = self.both("UPDATE TWIN SET slot = %s WHERE id = %s RETURNING hashtextextended(TWIN::text, 0)", (slots[following], id))
            assert len(found) == 1, f"row {id} was not found"
        if self.rng.random() < 0.3:
            self.conn.execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")
        self.twins.count("rotations of slots", len(ids) > 1)

    def _analyze(self, _count: int) -> None:
        """Take a lock that compaction has, too, in a transaction that has changed rows, maybe."""
        self.conn.execute("ANALYZE compacted")
        self.twins.count("ANALYZE in transactions")

    def _insert_again(self, _count: int) -> None:
        """A unique key is refused a second time."""
        for id in self._some(1, "KEY SHARE"):
            [(u,)] = self.conn.execute("SELECT u FROM control WHERE id = %s", (id,))
            key = self.rng.choice([(id, 10 * IDS), (10 * IDS + self.number, u)])
            for name in TWINS:
                try:
                    with self.conn.transaction():
                        self.conn.execute(f"INSERT INTO {name} VALUES (%s, %s, 0, 0, 0, '{{}}', NULL, 0, '')", key)
                # which comes first changes with REINDEX CONCURRENTLY
                except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
                    continue
                raise AssertionError(f"{name} takes {id} a second time")
            self.twins.count("duplicates refused")

    def _change(self, ids: list[int], assignments: str, *parameters) -> None:
        """Update rows that are there, and compare what they have become."""
        statement = f"UPDATE TWIN SET {assignments} WHERE id = ANY (%s) RETURNING hashtextextended(TWIN::text, 0)"
        assert len(self.both(statement, (*parameters, ids))) == len(ids), f"not all of {ids} were found by {statement}"

    def _update(self, count: int) -> None:
        """Change what no index has, once or several times: HOT, where there is room."""
        ids = self._some(count, "NO KEY UPDATE")
        for _ in range(self.rng.choice([1, 1, 2, 4])):
            self._change(ids, "money = money + 1")

    def _update_key(self, count: int) -> None:
        what = self.rng.choice(["k = (k + 7) % 1000", "n = (n + 137) % 1000", "tags = tags || n % 7", "seed = (seed + 1) % 50"])
        self._change(self._some(count, "NO KEY UPDATE"), what.replace("%", "%%"))

    def _update_note(self, count: int) -> None:
        self._change(self._some(min(count, 20), "NO KEY UPDATE"), "note = %s", self._note())

    def _update_at_cursor(self, count: int) -> None:
        """Change rows of `compacted` where a cursor stands, that may have moved since it came there.

        It must read a column that no index has: from an index alone PostgreSQL may take a place where there is no row version.
        """
        ids = self._some(min(count, 5), "UPDATE")
        self.conn.execute("DECLARE here CURSOR FOR SELECT money FROM compacted WHERE id = ANY (%s)", (ids,))
        time.sleep(self.rng.choice([0, 0, 0.1]))
        while self.conn.execute("FETCH here").rowcount == 1:
            time.sleep(self.rng.choice([0, 0, 0.05]))
            found = self.conn.execute("UPDATE compacted SET money = money - 1, u = u # 1 WHERE CURRENT OF here").rowcount
            assert found == 1, "a row has gone from under a cursor"
        self.conn.execute("CLOSE here")
        assert self.conn.execute("UPDATE control SET money = money - 1, u = u # 1 WHERE id = ANY (%s)", (ids,)).rowcount == len(ids)

    def _rename(self, count: int) -> None:
        """Give rows other ids: updates of the key that others refer to."""
        old = self._some(min(count, 10), "UPDATE")
        new = self._unused(len(old))
        old = old[: len(new)]
        found = self.both(
            "UPDATE TWIN t SET id = new.id, u = 2 * new.id FROM unnest(%s::int[], %s::int[]) AS new (was, id) WHERE t.id = new.was"
            " RETURNING hashtextextended(t::text, 0)", (old, new),
        )  # fmt: skip
        assert len(found) == len(old)

    def _refused(self, statement: str, *parameters) -> bool:
        """Run a statement that a foreign key to a twin may forbid; if it is that to `control`, undo it and return True."""
        try:
            with self.conn.transaction():
                self.conn.execute(statement, parameters)
        except psycopg.errors.IntegrityError as error:
            assert error.diag.table_name == "control_child", f"only one of the twins refuses: {error}"
            self.twins.count("deletes refused")
            return True
        return False

    def _delete(self, count: int) -> None:
        ids = self._some(count, "UPDATE")
        if not self._refused("DELETE FROM control WHERE id = ANY (%s)", ids):
            found = self.conn.execute("DELETE FROM compacted WHERE id = ANY (%s)", (ids,)).rowcount
            assert found == len(ids), f"{found} of {len(ids)} rows deleted"

    def _delete_parent(self, _count: int) -> None:
        """Delete a parent, with its rows or not, and let it come again."""
        id = self.rng.randrange(PARENTS)
        if not self._refused("DELETE FROM parent WHERE id = %s", id):
            self.conn.execute("INSERT INTO parent VALUES (%s) ON CONFLICT DO NOTHING", (id,))

    def _lock(self, count: int) -> None:
        """Lock rows in both: multixacts, with the locks and updates of others."""
        mode = self.rng.choice(["KEY SHARE", "KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"])
        ids = self._some(count, mode)
        what = "id" if mode == "KEY SHARE" else "hashtextextended(t::text, 0)"  # others may change the rest
        locked = self.conn.execute(f"SELECT {what} FROM compacted t WHERE id = ANY (%s) FOR {mode}", (ids,)).fetchall()
        expected = self.conn.execute(f"SELECT {what} FROM control t WHERE id = ANY (%s)", (ids,)).fetchall()
        assert sorted(locked) == sorted(expected) and len(ids) == len(locked), f"{len(locked)} of {len(ids)} rows locked"

    def _add_children(self, count: int) -> None:
        """Refer to rows of both, which are there."""
        refs = self._some(count, "KEY SHARE")
        ids = [id for (id,) in self.conn.execute("SELECT nextval('children')::int FROM generate_series(1, %s)", (len(refs),))]
        self.both("INSERT INTO TWIN_child SELECT * FROM unnest(%s::int[], %s::int[])", (ids, refs))

    def _delete_children(self, count: int) -> None:
        found = self.conn.execute("SELECT id FROM control_child ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED", (2 * count,))
        ids = [id for (id,) in found]
        assert len(self.both("DELETE FROM TWIN_child WHERE id = ANY (%s) RETURNING id, ref", (ids,))) == len(ids)


def read(twins: Twins, sessions: Sessions, conn: psycopg.Connection, rng: random.Random) -> None:
    """Keep a snapshot for a while: in it nothing changes, whichever index leads there, and cursors go on."""
    level = rng.choice(["REPEATABLE READ"] * 3 + ["SERIALIZABLE", "SERIALIZABLE READ ONLY", "SERIALIZABLE READ ONLY DEFERRABLE"])
    with suppress(*CONFLICTS):
        conn.execute(f"BEGIN ISOLATION LEVEL {level}")
        first = assert_true(conn)
        cursors = [_Cursor(conn, rng, number) for number in range(rng.randrange(3))]
        for _ in range(rng.randrange(1, 5)):
            sessions.pause(rng.uniform(0, 1.5 if rng.random() < 0.05 else 0.1))
            where, all_rows = rng.choice(PATHS)
            conn.execute("SET LOCAL enable_seqscan = off")
            found = both(conn, f"{CONTENT} WHERE {where}")
            assert not all_rows or found == first[0], f"found by {where}: {found} instead of {first[0]}"
            conn.execute("SET LOCAL enable_seqscan = on")
            for cursor in cursors:
                cursor.go_on()
            assert assert_true(conn) == first, "a snapshot has changed"
            twins.count("comparisons in snapshots")
        if rng.random() < 0.2:
            control, compacted = (_copy_out(conn, name) for name in TWINS)
            assert control == compacted, "COPY tells other rows"
        conn.execute("COMMIT")
        if rng.random() < 0.5:
            sessions.pause(rng.uniform(0, 0.5))
        for cursor in cursors:
            cursor.finish()
            twins.count("cursors")
    conn.execute("ROLLBACK; CLOSE ALL")


def _copy_out(conn: psycopg.Connection, name: str) -> list[bytes]:
    with conn.cursor().copy(f"COPY {name} TO STDOUT") as copy:
        return sorted(b"".join(map(bytes, copy)).splitlines())


class _Cursor:
    """A cursor for each twin, WITH HOLD, which are at the same place; go forward and, if they can, back."""

    def __init__(self, conn: psycopg.Connection, rng: random.Random, number: int):
        self.conn, self.rng, self.number = conn, rng, number
        self.ordered = rng.choice(["", "ORDER BY id", "ORDER BY u"])
        self.scroll = "SCROLL" if rng.random() < 0.5 else "NO SCROLL"
        self.rows: dict[str, list[tuple]] = {name: [] for name in TWINS}
        conn.execute(f"SET LOCAL enable_sort = off; SET LOCAL enable_seqscan = {'off' if self.ordered else 'on'}")
        for name in TWINS:
            conn.execute(f"DECLARE at_{name}_{number} {self.scroll} CURSOR WITH HOLD FOR SELECT t::text FROM {name} t {self.ordered}")
        conn.execute("SET LOCAL enable_sort = on; SET LOCAL enable_seqscan = on")

    def go_on(self, how: str = "") -> None:
        """Fetch from both and compare, as far as their order is the same."""
        count = self.rng.randrange(1, 500)
        for name in TWINS:
            cursor = f"at_{name}_{self.number}"
            fetched = self.conn.execute(f"FETCH {how or count} FROM {cursor}").fetchall()
            self.rows[name] += fetched
            if self.scroll == "SCROLL" and not how and fetched:
                back = self.conn.execute(f"FETCH BACKWARD {count} FROM {cursor}").fetchall()
                at = 0 if len(fetched) < count else 1  # beyond the last row, or on it
                assert back == self.rows[name][::-1][at : at + count], "a cursor goes back another way"
                self.conn.execute(f"MOVE ABSOLUTE {len(self.rows[name])} FROM {cursor}")
        if self.ordered:
            assert self.rows["control"] == self.rows["compacted"], "cursors find other rows"

    def finish(self) -> None:
        """Fetch the rest: all in all the rows are the same."""
        self.go_on("ALL")
        assert sorted(self.rows["control"]) == sorted(self.rows["compacted"]), "cursors found other rows"


class Duel:
    """Two serializable transactions each see that a pair of accounts has enough, and withdraw from one of the two (write skew).

    They read in `compacted` only, so that nothing but its rows tells the server of the conflict; mostly by row number, as else the
    index would tell. One begins when the other has read, often not before a row has moved. The pairs are this duel's own.
    """

    def __init__(self, twins: Twins, sessions: Sessions, conn: psycopg.Connection, rng: random.Random, number: int):
        self.twins = twins
        self.sessions = sessions
        self.rng = rng
        self.number = number
        self.one = conn

    def run(self) -> None:
        with self.sessions.cluster.connect(self.sessions.dbname) as self.other:
            self.other.execute(SESSION)
            while not self.sessions.stopped:
                pair = self._fight()
                with suppress(*CONFLICTS), self.one.transaction():
                    self._refill(pair)
                breathe(self.sessions)

    def _refill(self, pair: int) -> None:
        """Give both accounts what they had in the beginning; mostly one is a new row, which may come to the table's end."""
        ids = accounts(pair)
        sums = both(self.one, "SELECT sum(money), count(*) FROM TWIN WHERE id = ANY (%s)", (ids,))
        assert sums[0][0] >= 0 and sums[0][1] == 2, f"pair {pair} is overdrawn: {sums}"
        if self.rng.random() < 0.8:
            new = [self.rng.choice(ids)]
            both(self.one, "DELETE FROM TWIN WHERE id = ANY (%s)", (new,))
            open_accounts(self.one, new)
        both(self.one, "UPDATE TWIN SET money = %s WHERE id = ANY (%s) AND money <> %s", (START, ids, START))

    def _fight(self) -> int:
        """Let the two withdraw from a pair, and return which it was; raise AssertionError if both could."""
        committed = moved = 0
        pair = self.number * PAIRS + self.rng.randrange(PAIRS)
        try:
            meet = self.rng.random() < 0.8
            if meet and self.other.execute(f"SELECT pg_try_advisory_lock({DEBUG_POINT_LOCK})").fetchone() == (True,):
                self._wait_for(MOVING, seconds=1.5)  # no row moves until the first has read
                [(pair,)] = self.other.execute(LAST, (self.number * PAIRS, (self.number + 1) * PAIRS - 1))
            ids = accounts(pair)
            places = self._places(ids)
            seen = self._begin_and_read(self.one, ids)
            if meet:
                self.other.execute("SELECT pg_advisory_unlock_all()")
                moved = self._wait_for(f"SELECT ({PLACES}) <> %s", ids, places)
            # who has read before a row moved fails to change it, conflict or not: so that is for the other to do
            still = [id for id, was, now in zip(ids, places, self._places(ids)) if was == now] or ids
            first = self.rng.choice(still)
            second = sum(ids) - first
            if seen and self._begin_and_read(self.other, ids):
                turns = [(self.other, second), (self.one, first)]
                if self.rng.random() < 0.3:
                    turns.reverse()
                commit_late = self.rng.random() < 0.3
                for conn, id in turns:
                    both(conn, f"UPDATE TWIN SET money = money - {WITHDRAWAL} WHERE id = %s", (id,))
                    if not commit_late:
                        conn.execute("COMMIT")
                        committed += 1
                for conn, _ in turns if commit_late else ():
                    conn.execute("COMMIT")
                    committed += 1
                raise AssertionError(f"write skew: both have withdrawn from accounts {ids}, moved: {bool(moved)}")
        except CONFLICTS as conflict:
            self.twins.count(f"duels ended by {type(conflict).__name__}")
            self.twins.count("duels that one side won", committed)
            self.twins.count("duels in which a row moved", moved)
        finally:
            self.one.execute("ROLLBACK")
            self.other.execute("ROLLBACK; SELECT pg_advisory_unlock_all()")
        return pair

    def _places(self, ids: list[int]) -> list[str]:
        return self.other.execute(PLACES, (ids,)).fetchone()[0]

    def _begin_and_read(self, conn: psycopg.Connection, ids: list[int]) -> bool:
        """Begin, and tell whether the pair has enough; not if a row moved before it could be read where it was."""
        where, parameters = "id = ANY (%s)", [ids]
        if self.rng.random() < 0.8:
            where, parameters = where + " AND ctid = ANY (%s::tid[])", [ids, self._places(ids)]
        conn.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        conn.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        if len(parameters) > 1:
            conn.execute("SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off")
        [(count, money)] = conn.execute(f"SELECT count(*), sum(money) FROM compacted WHERE {where}", parameters)
        conn.execute("SET LOCAL enable_indexscan = on; SET LOCAL enable_indexonlyscan = on")
        return count == 2 and money >= WITHDRAWAL

    def _wait_for(self, query: str, *parameters, seconds: float = PATIENCE) -> int:
        """Wait for a while until a query in the other session, in no transaction, says True; return 1 if it did, else 0."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.sessions.stopped:
            if self.other.execute(query, parameters).fetchone() == (True,):
                return 1
            time.sleep(0.005)
        return 0
