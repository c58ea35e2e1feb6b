"""What comes next: cyclone.advice against what autovacuum then does.

Tables are staged on both sides of each threshold that autovacuum goes by, and locked. Then the view says which of them are due. When
they are unlocked, autovacuum takes these and no others.
"""

import re

import psycopg
import pytest

from conftest import TEMPLATE
from cyclone_lab import checks
from cyclone_lab.background import Parked, wait_until
from test_bloat import pages_read
from test_wraparound import BURN

NEVER = 1_000_000_000
AUTOVACUUM = {
    "autovacuum_naptime": "1s",
    "autovacuum_vacuum_threshold": 60,
    "autovacuum_vacuum_scale_factor": 0.1,
    "autovacuum_vacuum_insert_threshold": 200,
    "autovacuum_vacuum_insert_scale_factor": 0.5,
    "autovacuum_analyze_threshold": NEVER,
    "autovacuum_vacuum_cost_delay": 0,
    "cyclone.autovacuum": "on",
}
ROWS = 1000
AGE = 100_000  # the least that autovacuum_freeze_max_age can be
LOCK = """
    CREATE PROCEDURE lock(n int) LANGUAGE plpgsql AS
    $$BEGIN FOR i IN 1..n LOOP PERFORM FROM locked FOR KEY SHARE; COMMIT; END LOOP; END$$
"""
MULTIXACT_AGE = 10_000  # and autovacuum_multixact_freeze_max_age
CAPPED = {"autovacuum_vacuum_max_threshold": 40}  # since PostgreSQL 18

# Options of a table, rows deleted, rows inserted, and what it is due for
DEAD, INSERTED = "dead rows", "inserted rows"
STAGED = {
    "dead_below": ({}, 160, 0, None),
    "dead_above": ({}, 161, 0, DEAD),
    "dead_options_below": ({"autovacuum_vacuum_threshold": 5, "autovacuum_vacuum_scale_factor": 0.02}, 25, 0, None),
    "dead_options_above": ({"autovacuum_vacuum_threshold": 5, "autovacuum_vacuum_scale_factor": 0.02}, 26, 0, DEAD),
    "dead_zero_below": ({"autovacuum_vacuum_threshold": 0, "autovacuum_vacuum_scale_factor": 0}, 0, 0, None),
    "dead_zero_above": ({"autovacuum_vacuum_threshold": 0, "autovacuum_vacuum_scale_factor": 0}, 1, 0, DEAD),
    "other_option_below": ({"fillfactor": 90}, 160, 0, None),
    "other_option_above": ({"fillfactor": 90}, 161, 0, DEAD),
    "disabled": ({"autovacuum_enabled": "off"}, 900, 2000, None),
    # all pages are frozen, which PostgreSQL 18 takes into account
    "inserted_below": ({}, 0, {17: 700, 18: 200}, None),
    "inserted_above": ({}, 0, {17: 701, 18: 201}, INSERTED),
    "inserted_options_below": ({"autovacuum_vacuum_insert_threshold": 10, "autovacuum_vacuum_insert_scale_factor": 0}, 0, 10, None),
    "inserted_options_above": ({"autovacuum_vacuum_insert_threshold": 10, "autovacuum_vacuum_insert_scale_factor": 0}, 0, 11, INSERTED),
    "inserted_off": ({"autovacuum_vacuum_insert_threshold": -1}, 0, 5000, None),
}


def rows(conn) -> dict[str, dict]:
    """Return the rows of the view by table."""
    cursor = conn.execute("SELECT * FROM cyclone.advice")
    names = [column.name for column in cursor.description]
    return {row[0]: dict(zip(names, row, strict=True)) for row in cursor}


def row_or_none(conn, table: str | int) -> dict | None:
    cursor = conn.execute("SELECT * FROM cyclone.advice WHERE relation = %s::regclass", [table])
    row = cursor.fetchone()
    return row and dict(zip((column.name for column in cursor.description), row, strict=True))


def row_of(conn, table: str) -> dict:
    row = row_or_none(conn, table)
    assert row
    return row


def flush(conn) -> None:
    conn.execute("SELECT pg_stat_force_next_flush()")


def make_table(conn, name: str, options: dict, dead: int = 0, inserted: int = 0) -> None:
    """Make a table of ROWS rows, all of them frozen, then delete `dead` rows and insert `inserted`."""
    text = ", ".join(f"{option} = {value}" for option, value in options.items())
    conn.execute(f"CREATE TABLE {name} (id int)" + (f" WITH ({text})" if text else ""))
    conn.execute(f"INSERT INTO {name} SELECT generate_series(1, {ROWS})")
    flush(conn)  # or it would be counted after VACUUM
    conn.execute(f"VACUUM (FREEZE) {name}")
    conn.execute(f"INSERT INTO {name} SELECT generate_series(1, {inserted})")
    conn.execute(f"DELETE FROM {name} WHERE ctid IN (SELECT ctid FROM {name} WHERE id <= {dead} LIMIT {dead})")
    flush(conn)


def make_toast(conn, name: str, options: dict, dead: int) -> None:
    """Make a table with a TOAST table of 2 * ROWS rows, of which 2 * `dead` are deleted."""
    text = ", ".join(f"{option} = {value}" for option, value in options.items())
    conn.execute(f"CREATE TABLE {name} (id int, value text) WITH (autovacuum_vacuum_threshold = {NEVER}{', ' + text if text else ''})")
    conn.execute(f"ALTER TABLE {name} ALTER value SET STORAGE EXTERNAL")
    conn.execute(f"INSERT INTO {name} SELECT i, repeat('x', 3000) FROM generate_series(1, {ROWS}) i")
    flush(conn)
    conn.execute(f"VACUUM (FREEZE) {name}")
    conn.execute(f"DELETE FROM {name} WHERE id <= {dead}")
    flush(conn)


def toast_of(conn, name: str) -> str:
    return conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = %s::regclass", [name]).fetchone()[0]


def autovacuums(conn, name: str) -> int:
    return conn.execute("SELECT autovacuum_count FROM pg_stat_all_tables WHERE relid = %s::regclass", [name]).fetchone()[0]


def use_up_multixacts(cluster, conn, number: int) -> None:
    """Make `number` multixacts, each of one transaction that goes on and another that locks the same row."""
    with cluster.connect(TEMPLATE) as other:
        other.execute("BEGIN")
        other.execute("SELECT FROM locked FOR KEY SHARE")
        conn.execute("CALL lock(%s)" % number)
        other.execute("ROLLBACK")


@pytest.fixture
def server(new_cluster):
    cluster = new_cluster(**AUTOVACUUM)
    with cluster.connect(TEMPLATE) as conn:
        yield cluster, conn


def test_autovacuum_takes_what_is_due(server, pg_major):
    cluster, conn = server
    due = {}
    for name, (options, dead, inserted, reason) in STAGED.items():
        inserted = inserted[min(pg_major, 18)] if isinstance(inserted, dict) else inserted
        make_table(conn, name, options, dead, inserted)
        due[name] = reason
    # half of the pages are frozen: the server goes by what ANALYZE has counted
    make_table(conn, "half_frozen", {}, 0, ROWS)
    conn.execute("ANALYZE half_frozen")
    due["half_frozen"] = None if pg_major < 18 else INSERTED
    [(share,)] = conn.execute("SELECT to_jsonb(c)->>'relallfrozen' FROM pg_class c WHERE relname = 'half_frozen'")
    assert (share is None) == (pg_major < 18)
    if pg_major >= 18:
        make_table(conn, "capped_below", CAPPED, 40)
        make_table(conn, "capped_above", CAPPED, 41)
        due |= {"capped_below": None, "capped_above": DEAD}
    # a TOAST table goes by its own options, if it has any, or by those of its table
    for name, options, dead, reason in (
        ("toast_plain", {}, 900, None),
        ("toast_own_below", {"toast.autovacuum_vacuum_threshold": 100, "toast.autovacuum_vacuum_scale_factor": 0}, 50, None),
        ("toast_own_above", {"toast.autovacuum_vacuum_threshold": 99, "toast.autovacuum_vacuum_scale_factor": 0}, 50, DEAD),
        ("toast_other_option", {"toast.vacuum_truncate": "off"}, 300, DEAD),
    ):
        make_toast(conn, name, options, dead)
        due[toast_of(conn, name)] = reason

    locked = [name for name in due if not name.startswith("pg_toast")]  # which no statement locks
    with cluster.connect(TEMPLATE) as holder:
        holder.execute("BEGIN")
        holder.execute(f"LOCK TABLE {', '.join(locked)} IN SHARE UPDATE EXCLUSIVE MODE")
        before = rows(conn)
        assert all(before[name]["due"] is None for name in due), "autovacuum is off"
        told = {name: (before[name]["dead_rows"], before[name]["dead_threshold"], before[name]["autovacuum_enabled"]) for name in due}
        conn.execute("ALTER SYSTEM SET autovacuum = on")
        conn.execute("SELECT pg_reload_conf()")
        wait_until(lambda: conn.execute("SHOW autovacuum").fetchone() == ("on",), "the setting")
        now = rows(conn)
        assert {name: now[name]["due"] for name in locked} == {name: due[name] for name in locked}
    for name, reason in due.items():
        dead, threshold, enabled = told[name]
        assert (reason == DEAD) == (enabled and dead > threshold), (name, told[name])

    for name, reason in due.items():
        if reason:
            wait_until(lambda: autovacuums(conn, name), f"autovacuum of {name}")  # noqa: B023
    # a worker that comes to the last one has looked at all
    make_table(conn, "last", {"autovacuum_vacuum_threshold": 0, "autovacuum_vacuum_scale_factor": 0}, 1)
    wait_until(lambda: autovacuums(conn, "last"), "autovacuum of the last table")
    taken = {name: autovacuums(conn, name) > 0 for name in due}
    assert taken == {name: reason is not None for name, reason in due.items()}
    assert conn.execute("SELECT array_agg(relation) FROM cyclone.advice WHERE due IS NOT NULL AND relation >= 16384").fetchone() == (None,)

    checks.assert_clean(conn, "dead_above")


def test_wraparound(server):
    """At the limit autovacuum does not come, and with the next ID it does; a disabled table is no exception. It never comes to a temporary one."""
    cluster, conn = server
    session = cluster.connect(TEMPLATE)
    session.execute(f"CREATE TEMP TABLE kept (id int, note text) WITH (autovacuum_freeze_max_age = {AGE})")
    [(temporary, toast)] = session.execute("SELECT oid, reltoastrelid FROM pg_class WHERE relname = 'kept'")
    conn.execute(BURN)
    conn.execute(LOCK)
    conn.execute("CREATE TABLE locked AS SELECT 1 AS id")
    xid_option = {"autovacuum_freeze_max_age": AGE}
    multixact_option = {"autovacuum_multixact_freeze_max_age": MULTIXACT_AGE}
    for name, options in (("plain", {}), ("xids", xid_option), ("multixacts", multixact_option),
                          ("off", {**xid_option, "autovacuum_enabled": "off"})):  # fmt: skip
        make_table(conn, name, options)
    conn.execute("SET synchronous_commit = off")
    row = row_of(conn, "xids")
    assert row["xid_limit"] == AGE
    assert row["forced_in"] == AGE - row["xid_age"] + 1

    [(age,)] = conn.execute("SELECT mxid_age(relminmxid) FROM pg_class WHERE relname = 'multixacts'")
    use_up_multixacts(cluster, conn, MULTIXACT_AGE - age)
    assert row_of(conn, "multixacts")["due"] is None
    assert " or 1 multixact IDs (relminmxid)" in advice_of(conn, "multixacts", "prevent wraparound comes in", "VACUUM (FREEZE) multixacts")
    use_up_multixacts(cluster, conn, 1)
    assert row_of(conn, "multixacts")["due"] == "age of multixact IDs"
    assert f" and {MULTIXACT_AGE + 1} multixact IDs" in advice_of(conn, "multixacts", "should have come", "VACUUM (FREEZE) multixacts")
    assert row_of(conn, "plain")["advice"] == []

    assert row_or_none(conn, temporary) is None
    conn.execute("CALL burn(%s)" % (AGE - 100 - row_of(conn, "off")["xid_age"]))
    row = row_of(conn, "xids")
    assert row["due"] is None and 0 < row["forced_in"] <= 101 + 20
    [advice] = [text for text in row["advice"] if "wraparound" in text]
    assert f"in {row['forced_in']} transactions" in advice and "VACUUM (FREEZE) xids" in advice
    conn.execute("CALL burn(%s)" % (AGE - row_of(conn, "off")["xid_age"]))
    row = row_of(conn, "off")
    assert (row["xid_age"], row["due"], row["forced_in"]) == (AGE, None, 1)
    conn.execute("CALL burn(1)")
    row = row_of(conn, "off")
    assert (row["xid_age"], row["due"], row["forced_in"]) == (AGE + 1, "age of transaction IDs", 0)
    assert row_of(conn, "plain")["due"] is None

    for oid in (temporary, toast):
        row = row_or_none(conn, oid)
        assert row["xid_age"] > AGE and [row[name] for name in ("due", "forced_in")] == [None] * 2
        [text] = row["advice"]
        assert f"{row['xid_age']} transactions" in text and re.search(r"DROP TABLE pg_temp_\d+\.kept, which autovacuum does, too", text)
    session.close()

    conn.execute("ALTER SYSTEM SET autovacuum = on")
    conn.execute("SELECT pg_reload_conf()")
    for name in ("xids", "off", "multixacts"):
        wait_until(lambda: autovacuums(conn, name), f"autovacuum of {name}")  # noqa: B023
        assert row_of(conn, name)["due"] is None
    assert autovacuums(conn, "plain") == 0
    assert row_or_none(conn, temporary) is None
    conn.close()


def advice_of(conn, table: str, *words: str) -> str:
    """Return the one piece of advice for a table that has these words."""
    [text] = [text for text in row_of(conn, table)["advice"] if all(word in text for word in words)]
    assert re.search(r"\d", text)
    return text


@pytest.mark.once
def test_what_would_help(cluster, db, conn):
    make_table(conn, "quiet", {})
    assert row_of(conn, "quiet")["advice"] == []
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int, note text) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, i, i, repeat('x', 100) FROM generate_series(1, 100000) i")
    for column in ("a", "b"):
        conn.execute(f"CREATE INDEX t_{column} ON t ({column})")
    conn.execute("SET enable_seqscan = off")
    assert conn.execute("SELECT count(*) FROM t WHERE a = 5").fetchone() == (1,)
    flush(conn)
    assert row_of(conn, "t")["advice"] == []  # an index that was never used, but cost no VACUUM anything yet
    conn.execute("VACUUM (ANALYZE) t")
    flush(conn)
    assert row_of(conn, "t")["advice"] == []  # scans have been counted for less than a week
    [(definition,)] = conn.execute("SELECT pg_get_functiondef('cyclone.unused_indexes'::regproc)")
    assert "'7 days'" in definition
    conn.execute(definition.replace("'7 days'", "'0'"))
    # not of the one that was used, nor of the primary key
    assert len(row_of(conn, "t")["advice"]) == 1
    text = advice_of(conn, "t", "never scanned", "DROP INDEX public.t_b.")
    [(size, share)] = conn.execute(
        "SELECT pg_size_pretty(pg_relation_size('t_b')), round(100.0 * pg_relation_size('t_b') /"
        " (pg_relation_size('t') + pg_indexes_size('t')))"
    )
    assert f" {size}, {share} %" in text and re.search(r"on this server since \d{4}-\d\d-\d\d and", text)
    # 2^31 + 2^20 blocks, as the catalog has them
    conn.execute("UPDATE pg_class SET relpages = (1 << 20) - 2147483648 WHERE oid = 't_b'::regclass")
    assert " 16 TB, 100 %" in advice_of(conn, "t", "never scanned", "DROP INDEX public.t_b.")

    conn.execute("DELETE FROM t WHERE id % 10 > 0")
    flush(conn)
    assert "90000 dead rows; it would have come at 20050 " in advice_of(conn, "t", "Autovacuum is off")
    conn.execute("VACUUM (ANALYZE) t")
    text = advice_of(conn, "t", "VACUUM (FULL INPLACE) t would give back about")
    [(gain, size)] = conn.execute("SELECT inplace_bytes, size FROM cyclone.bloat WHERE relation = 't'::regclass")
    said, of = re.search(r"about (\d+ \w+) of (\d+ \w+), give or take", text).groups()
    [(said_bytes, of_bytes)] = conn.execute("SELECT pg_size_bytes(%s), pg_size_bytes(%s)", [said, of])
    assert abs(said_bytes - gain) < 0.05 * size and abs(of_bytes - size) < 0.05 * size
    # pages are read once, and for who asks for advice only
    assert pages_read(conn, "SELECT advice, cardinality(advice) FROM cyclone.advice WHERE cardinality(advice) > 0") == 300
    assert pages_read(conn, "SELECT relation, due, forced_in FROM cyclone.advice WHERE dead_rows >= 0") == 0
    assert pages_read(conn, "SELECT count(*) FROM cyclone.advice") == 0
    conn.execute("VACUUM (FULL INPLACE) t")
    conn.execute("ANALYZE t")
    assert not any("FULL INPLACE" in text for text in row_of(conn, "t")["advice"])


def test_advice_about_settings_and_holders(server):
    cluster, conn = server
    make_table(conn, "t", {}, 500)
    assert "500 dead rows; it would have come at 160 " in advice_of(conn, "t", "off on this server")
    conn.execute("UPDATE pg_class SET reltuples = 50000000 WHERE relname = 't'")
    text = advice_of(conn, "t", "waits for 5000060 dead rows, 10 % of the table")
    assert "ALTER TABLE t SET (autovacuum_vacuum_scale_factor = 0.01) would have it come at about 500000." in text

    make_table(conn, "held", {})
    with cluster.connect(TEMPLATE) as session:
        session.execute("BEGIN")
        session.execute("SELECT pg_current_xact_id()")
        conn.execute("DELETE FROM held WHERE id <= 500")
        flush(conn)
        conn.execute("VACUUM held")
        flush(conn)
        # a session that has only just begun is no reason
        assert not any("horizon" in text for text in row_of(conn, "held")["advice"])
        [(definition,)] = conn.execute("SELECT pg_get_viewdef('cyclone.advice'::regclass)")
        assert "'00:01:00'" in definition
        conn.execute("CREATE OR REPLACE VIEW cyclone.advice AS " + definition.replace("'00:01:00'", "'0'"))
        text = advice_of(conn, "held", "see cyclone.horizon")
        assert "now 500 " in text and "as a session keeps" in text
        session.execute("COMMIT")
    conn.execute("VACUUM held")
    assert not any("horizon" in text for text in row_of(conn, "held")["advice"])


@pytest.mark.once
def test_privileges(cluster, db, conn):
    """PostgreSQL's views show all of it to every role, except what is estimated from pages of the table."""
    conn.execute("CREATE ROLE plain LOGIN")
    conn.execute("CREATE TABLE t (id int, note text)")
    conn.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 100000) i")
    conn.execute("ANALYZE t")
    conn.execute("DELETE FROM t WHERE id % 10 > 0")
    conn.execute("VACUUM (ANALYZE) t")
    flush(conn)
    wanted = row_of(conn, "t")
    with cluster.connect(db, user="plain") as plain:
        seen = row_of(plain, "t")
        for view in ("horizon", "advice"):
            [(writable,)] = plain.execute("SELECT has_table_privilege(%s, 'INSERT, UPDATE, DELETE, TRUNCATE')", [f"cyclone.{view}"])
            assert not writable
    assert any("FULL INPLACE" in text for text in wanted["advice"])
    assert not any("FULL INPLACE" in text for text in seen["advice"])
    vague = ("advice", "forced_in", "xid_age")
    assert {k: v for k, v in seen.items() if k not in vague} == {k: v for k, v in wanted.items() if k not in vague}


@pytest.mark.once
def test_every_column_is_described(conn):
    rows = conn.execute(
        "SELECT attrelid::regclass, attname FROM pg_attribute WHERE attrelid IN ('cyclone.horizon'::regclass, 'cyclone.advice'::regclass)"
        " AND attnum > 0 AND col_description(attrelid, attnum) IS NULL"
    )
    assert rows.fetchall() == []


def test_on_a_standby(new_cluster):
    """Nothing is due there, as there is no autovacuum; the ages are told."""
    primary = new_cluster(**AUTOVACUUM)
    with primary.connect(TEMPLATE) as conn:
        make_table(conn, "t", {}, 500)
    with primary.standby().start() as standby, standby.connect(TEMPLATE) as conn:
        row = row_of(conn, "t")
        assert (row["due"], row["forced_in"], row["xid_limit"]) == (None, None, 200_000_000)
        assert row["xid_age"] > 0
        assert conn.execute("SELECT count(*) FROM cyclone.horizon").fetchone() == (0,)


@pytest.mark.once
def test_indexes_that_are_left_over(cluster, db, conn):
    """The view tells the copy that a killed VACUUM (FULL INPLACE) leaves, if no worker drops it, from an index of CREATE INDEX
    CONCURRENTLY, and neither is named while it is built."""
    conn.execute(f"ALTER DATABASE {db} SET cyclone.debug_point = 'copy-cleaner:worker:error'")
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, n int) WITH (autovacuum_enabled = off)")
    conn.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 20000) i")
    conn.execute("DELETE FROM t WHERE id % 10 > 0")
    advice = "SELECT unnest(advice) FROM cyclone.advice WHERE relation = 't'::regclass"

    def said() -> list[str]:
        return [text for (text,) in conn.execute(advice) if text.startswith("Index ")]

    with Parked(cluster, db, "shrink-wait:leader", 1, "VACUUM (FULL INPLACE) t") as vacuum:
        assert said() == []
        conn.execute("SELECT pg_terminate_backend(%s)", (vacuum.pid,))
        vacuum.wait()
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute("CREATE UNIQUE INDEX CONCURRENTLY broken ON t (n)")
    [ours, other] = said()
    assert ours.startswith("Index t_pkey_cyclone was left by a VACUUM (FULL INPLACE) that ended early, and is not needed")
    assert other.startswith("Index broken is invalid")
    conn.execute("DROP INDEX broken")
    # REINDEX of the table makes it valid; then it is named all the same
    conn.execute("REINDEX TABLE t")
    assert conn.execute("SELECT FROM pg_index WHERE indrelid = 't'::regclass AND NOT indisvalid").fetchall() == []
    assert said() == [ours]
    conn.execute("DROP INDEX t_pkey_cyclone")
    conn.execute("VACUUM (FULL INPLACE) t")
    assert said() == []
    checks.assert_clean(conn, "t")
