"""Row locks of ended transactions from before relfrozenxid, as PostgreSQL itself can leave them: its VACUUM takes them for damage,
pg_cyclone's removes them, in each kind of VACUUM, and logs that; what is damage stays an error."""

import re
import struct

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE
from cyclone_lab import checks
from cyclone_lab.background import heard
from test_corruption import PAGE, damageable, tuple_at

KEYSHR_LOCK, EXCL_LOCK, LOCK_ONLY, XMAX_COMMITTED, XMAX_INVALID, XMAX_IS_MULTI = 0x10, 0x40, 0x80, 0x400, 0x800, 0x1000
XMAX_BITS = KEYSHR_LOCK | EXCL_LOCK | LOCK_ONLY | XMAX_COMMITTED | XMAX_INVALID | XMAX_IS_MULTI
STALE = re.compile(r"found xmax \d+ from before relfrozenxid \d+")
SAYS = re.compile(r"row locks: (\d+) of ended transactions from before relfrozenxid removed")
ROWS = 2000  # on some 110 pages, each of which has a dead row

# Name: statement, and settings for it
KINDS = {
    "t_plain": ("VACUUM (VERBOSE, PARALLEL 0)", {}),
    "t_team": ("VACUUM (VERBOSE, PARALLEL 2)", {"cyclone.debug_workers": 2}),
    "t_freeze": ("VACUUM (VERBOSE, FREEZE, PARALLEL 0)", {}),
    "t_full": ("VACUUM (FULL, VERBOSE, PARALLEL 0)", {}),
    "t_full_team": ("VACUUM (FULL, VERBOSE, PARALLEL 2)", {"cyclone.debug_workers": 2}),
    "t_inplace": ("VACUUM (FULL INPLACE, VERBOSE)", {}),
}


def forge(page: bytearray, item: int, xmax: int, bits: int) -> None:
    at = tuple_at(page, item)
    struct.pack_into("<I", page, at + 4, xmax)
    [infomask] = struct.unpack_from("<H", page, at + 20)
    struct.pack_into("<H", page, at + 20, infomask & ~XMAX_BITS | bits)


def lock_row(page: bytearray, item: int, xmax: int) -> None:
    forge(page, item, xmax, KEYSHR_LOCK | LOCK_ONLY)


def make_table(conn, name: str) -> None:
    """Make a table whose old rows are frozen, and where each page has been changed since; so has its TOAST table."""
    conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int, pad text, big text STORAGE EXTERNAL) WITH (fillfactor = 80)")
    conn.execute(
        f"INSERT INTO {name} SELECT i, 0, repeat('x', 300), CASE WHEN i %% 20 = 0 THEN repeat('y', 3000) END FROM generate_series(1, %s) i",
        (ROWS,),
    )
    conn.execute(f"VACUUM (FREEZE) {name}")
    conn.execute(f"UPDATE {name} SET v = 1 WHERE id %% 7 = 0", ())
    conn.execute(f"DELETE FROM {name} WHERE id %% 9 = 0 OR id %% 40 = 0", ())


def relfrozenxid(conn, heap: str) -> int:
    return conn.execute("SELECT relfrozenxid::text::int FROM pg_class WHERE oid = %s::regclass", (heap,)).fetchone()[0]


def live_items(conn, heap: str, block: int, number: int) -> list[int]:
    """Return line pointers of some row versions that nobody has locked, updated or deleted."""
    rows = conn.execute(
        "SELECT lp FROM heap_page_items(get_raw_page(%s, %s)) WHERE lp_flags = 1 AND t_xmax = '0' ORDER BY lp LIMIT %s",
        (heap, block, number),
    ).fetchall()
    assert len(rows) == number
    return [lp for (lp,) in rows]


class Forgery:
    """What is to be written to the pages of a cluster, all at once, while it is down."""

    def __init__(self, cluster, conn):
        self.cluster = cluster
        self.conn = conn
        self.changes = []

    def add(self, heap: str, block: int, how, number: int = 1, age: int | None = 1) -> None:
        """Let `how` change `number` row versions of a page, with an XID of that age before relfrozenxid; 3 if it is None."""
        [(path,)] = self.conn.execute("SELECT pg_relation_filepath(%s::regclass)", (heap,))
        xid = 3 if age is None else relfrozenxid(self.conn, heap) - age
        for item in live_items(self.conn, heap, block, number):
            self.changes.append((path, block, lambda page, item=item: how(page, item, xid)))

    def carry_out(self) -> None:
        self.conn.close()
        self.cluster.stop()
        for path, block, change in self.changes:
            with open(self.cluster.data / path, "r+b") as pages:
                pages.seek(block * PAGE)
                page = bytearray(pages.read(PAGE))
                change(page)
                pages.seek(block * PAGE)
                pages.write(page)


def toast_of(conn, table: str) -> str:
    return checks.heaps(conn, table)[1]


def run(conn, statement: str, settings: dict | None = None) -> str:
    """Run a statement with settings of its own and return what the server says of it."""
    for name, value in (settings or {}).items():
        conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
    try:
        return "\n".join(heard(conn, statement))
    finally:
        conn.execute("RESET ALL")


def content(conn, table: str) -> list:
    return conn.execute(f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {table} t").fetchall()


@pytest.fixture(scope="module")
def forged(prefix, pg_major):
    """A stopped cluster with a table for each kind of VACUUM, and more, that have stale locks; and how many."""
    config = {**CONFIG, "statement_timeout": "60s", "min_parallel_table_scan_size": 0, "wal_consistency_checking": "all"}
    with damageable(prefix, pg_major, config) as cluster:
        conn = cluster.connect(TEMPLATE)
        forgery = Forgery(cluster, conn)
        for kind in (*KINDS, "t_pinned", "t_chain"):
            make_table(conn, kind)
        for kind in KINDS:
            forgery.add(kind, 3, lock_row, 3)
            forgery.add(kind, 50, lock_row, 2, age=None)
            forgery.add(kind, 70, lambda page, item, xid: forge(page, item, xid, EXCL_LOCK | LOCK_ONLY | XMAX_INVALID))
            forgery.add(toast_of(conn, kind), 1, lock_row, 2)
        forgery.add("t_pinned", 0, lock_row, 3)
        forgery.add("t_chain", 0, lock_row, 3)
        forgery.carry_out()
        yield cluster


@pytest.fixture
def healable(forged):
    """A running copy of that cluster."""
    with forged.copy() as cluster:
        cluster.start()
        yield cluster


LOCKS = 3 + 2 + 1  # in each table of KINDS; and in its TOAST table:
TOAST_LOCKS = 2


def test_each_kind_of_vacuum_removes_them(healable):
    """First PostgreSQL's own fails; then ours removes them and counts them, and later ones of either have nothing to say."""
    with healable.connect(TEMPLATE) as conn:
        for kind, (statement, settings) in KINDS.items():
            before = content(conn, kind)
            old = [relfrozenxid(conn, heap) for heap in checks.heaps(conn, kind)]
            for cores in ("VACUUM", "VACUUM (FULL)"):
                with pytest.raises(psycopg.errors.DataCorrupted, match=STALE.pattern):
                    run(conn, f"{cores} {kind}", {"cyclone.enabled": "off"})
            said = run(conn, f"{statement} {kind}", settings)
            counts = [int(number) for number in SAYS.findall(said)]
            # VACUUM reports on the TOAST table by itself
            assert counts == ([LOCKS + TOAST_LOCKS] if "FULL" in statement else [LOCKS, TOAST_LOCKS]), said
            assert content(conn, kind) == before
            checks.assert_clean(conn, kind)
            assert not SAYS.search(run(conn, f"{statement} {kind}", settings))
            run(conn, f"VACUUM (FREEZE) {kind}", {"cyclone.enabled": "off"})
            new = [relfrozenxid(conn, heap) for heap in checks.heaps(conn, kind)]
            assert all(after > earlier for after, earlier in zip(new, old)), (kind, old, new)
            checks.assert_clean(conn, kind)


def test_a_pinned_page(healable):
    """A VACUUM that doesn't get the cleanup lock removes the locks nevertheless, and relfrozenxid is not set back."""
    with healable.connect(TEMPLATE) as conn, healable.connect(TEMPLATE) as other:
        old = relfrozenxid(conn, "t_pinned")
        other.execute("BEGIN")
        other.execute("DECLARE c CURSOR FOR SELECT v FROM t_pinned")
        other.execute("FETCH 1 FROM c")
        said = run(conn, "VACUUM (VERBOSE, PARALLEL 0) t_pinned")
        assert SAYS.findall(said) == ["3"] and "cleanup lock contention" in said, said
        assert relfrozenxid(conn, "t_pinned") >= old
        other.execute("COMMIT")
        run(conn, "VACUUM (FREEZE) t_pinned", {"cyclone.enabled": "off"})
        assert relfrozenxid(conn, "t_pinned") > old
        checks.assert_clean(conn, "t_pinned")


def test_linked_row_versions_in_vacuum_full(healable):
    """Those are copied by another routine; an updated version keeps its xmax, and the others lose a lock."""
    with healable.connect(TEMPLATE) as conn, healable.snapshot(TEMPLATE) as other:
        before = content(conn, "t_chain")
        conn.execute("UPDATE t_chain SET v = v + 1 WHERE ctid >= '(1,0)'")
        said = run(conn, "VACUUM (FULL, VERBOSE) t_chain")
        assert SAYS.findall(said) == ["3"], said
        other.execute("COMMIT")
        assert content(conn, "t_chain")[0][0] == before[0][0]
        run(conn, "VACUUM (FREEZE) t_chain", {"cyclone.enabled": "off"})
        checks.assert_clean(conn, "t_chain")


def headers(conn, heap: str) -> list:
    """Return the line pointers, xmax and lock bits of a whole heap, without hints, which are not logged."""
    return conn.execute(
        """
        SELECT block, lp, lp_flags, t_xmin, t_xmax, t_infomask & %(bits)s, t_infomask2
        FROM generate_series(0, pg_relation_size(%(heap)s::text::regclass) / 8192 - 1) block, heap_page_items(get_raw_page(%(heap)s::text, block::int))
        ORDER BY block, lp
        """,
        {"heap": heap, "bits": KEYSHR_LOCK | EXCL_LOCK | LOCK_ONLY | XMAX_IS_MULTI},
    ).fetchall()


def test_recovery_and_a_standby(healable):
    """Both have what VACUUM has left, and a standby compares each page with the primary's (wal_consistency_checking)."""
    with healable.standby() as standby:
        standby.start()
        with healable.connect(TEMPLATE) as conn, healable.connect(TEMPLATE) as other:
            other.execute("BEGIN")
            other.execute("DECLARE c CURSOR FOR SELECT v FROM t_pinned")
            other.execute("FETCH 1 FROM c")
            run(conn, "VACUUM t_pinned")
            other.execute("COMMIT")
            for kind, (statement, settings) in KINDS.items():
                run(conn, f"{statement} {kind}", settings)
            heaps = [heap for kind in (*KINDS, "t_pinned") for heap in checks.heaps(conn, kind)]
            left = [headers(conn, heap) for heap in heaps]
            conn.execute("SELECT pg_logical_emit_message(true, '', '')")
        standby.wait_for_replay(healable)
        with standby.connect(TEMPLATE) as conn:
            assert [headers(conn, heap) for heap in heaps] == left
        assert "inconsistent page" not in standby.log
    healable.restart("crash")
    with healable.connect(TEMPLATE) as conn:
        assert [headers(conn, heap) for heap in heaps] == left
        for kind in (*KINDS, "t_pinned"):
            run(conn, f"VACUUM (FREEZE) {kind}", {"cyclone.enabled": "off"})
            checks.assert_clean(conn, kind)


# Name: what else the page has, beside a stale lock, and what is said of it
DAMAGE = {
    "aborted": (lambda page, item, xid: forge(page, item, xid, XMAX_INVALID), "found xmax"),
    "multixact": (lambda page, item, xid: forge(page, item, 1, LOCK_ONLY | KEYSHR_LOCK | XMAX_IS_MULTI), "found multixact 1 from before relminmxid"),
    "permanent": (lambda page, item, xid: forge(page, item, 2, LOCK_ONLY | KEYSHR_LOCK), "found raw xmax 2"),
}  # fmt: skip


def use_up_multixacts(cluster, conn) -> None:
    """Make two row locks share a MultiXactId, and forget it again."""
    conn.execute("CREATE TABLE locked AS SELECT 1 AS id")
    with cluster.connect(TEMPLATE) as first, cluster.connect(TEMPLATE) as second:
        for session in (first, second):
            session.execute("BEGIN")
            session.execute("SELECT FROM locked FOR SHARE")


@pytest.mark.parametrize("options", ["INDEX_CLEANUP on", "FULL"])
def test_damage_is_still_an_error(prefix, pg_major, options):
    """It is the error that PostgreSQL gives where no lock is stale."""
    with damageable(prefix, pg_major) as cluster:
        conn = cluster.connect(TEMPLATE)
        use_up_multixacts(cluster, conn)
        forgery = Forgery(cluster, conn)
        for name in DAMAGE:
            make_table(conn, name)
            make_table(conn, f"{name}_core")
        for name, (how, _) in DAMAGE.items():
            forgery.add(name, 2, lock_row, 2)
            for table in (name, f"{name}_core"):
                forgery.add(table, 4, how, age=None)
        forgery.carry_out()
        cluster.start()
        with cluster.connect(TEMPLATE) as conn:
            for name, (_, message) in DAMAGE.items():
                errors = []
                for table, enabled in ((name, "on"), (f"{name}_core", "off")):
                    try:
                        run(conn, f"VACUUM ({options}, PARALLEL 0) {table}" if enabled == "on" else f"VACUUM ({options}) {table}", {"cyclone.enabled": enabled})
                        errors.append("")
                    except psycopg.Error as error:
                        errors.append((error.sqlstate, re.sub(r"(relfrozenxid|relminmxid) \d+", r"\1 N", error.diag.message_primary)))
                assert errors[0] == errors[1], (name, errors)
                assert errors[0] and message in errors[0][1], (name, errors)


