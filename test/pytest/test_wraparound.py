"""What VACUUM does for old transaction IDs besides its daily work: eager scanning of all-visible pages (PostgreSQL 18),
and the failsafe, which comes on when it is late, be it before the vacuum, in the heap scan or among the indexes."""

import re

import psycopg
import pytest

from conftest import CONFIG, TEMPLATE, create_with_template
from cyclone_lab import checks
from cyclone_lab.background import Background, Parked, heard, wait_until
from cyclone_lab.postgres import as_server_user, hand_over, run_program
from long_runs.statements import alter_system
from test_pace import BUSY, STANDSTILL, Load, pace

FREEZE_MAX_AGE = 100_000  # the least that autovacuum_freeze_max_age can be
FAILSAFE_AGE = 105_000  # what follows from it when vacuum_failsafe_age is less
FAILSAFE_CONFIG = {"autovacuum_freeze_max_age": FREEZE_MAX_AGE, "vacuum_failsafe_age": 0}
EAGER_PAGES = 9000
EAGER_REGION_FAILURES = 122  # 3 % of 4096 blocks
READ_AHEAD = 600  # more than the blocks that a few read streams have in flight

BURN = """
    CREATE PROCEDURE burn(n int) LANGUAGE plpgsql AS
    $$BEGIN FOR i IN 1..n LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END$$
"""


def burn_until_age(conn, table: str, age: int) -> None:
    """Use up transaction IDs until the table's relfrozenxid is this old."""
    conn.execute("SET synchronous_commit = off")
    [(missing,)] = conn.execute("SELECT %s - age(relfrozenxid) FROM pg_class WHERE oid = %s::regclass", (age, table))
    assert missing > 0
    conn.execute("CALL burn(%s)" % missing)


def report_of(conn, statement: str) -> str:
    """Run a VACUUM (VERBOSE) and return all that it says."""
    texts = lambda notice: (f"{notice.severity}: {notice.message_primary}", notice.message_detail or "", notice.message_hint or "")  # noqa: E731
    return "\n".join(map(" ".join, heard(conn, statement, texts)))


@pytest.mark.parametrize(
    "enabled, workers", [pytest.param("off", 0, marks=pytest.mark.full), pytest.param("on", 0, marks=pytest.mark.once), ("on", 2)]
)
@pytest.mark.parametrize("freezable", [True, False], ids=["freezable", "not-freezable"])
def test_eager_scanning_freezes_a_fifth_or_gives_up_by_region(conn, pg_major, enabled, workers, freezable):
    conn.execute(BURN)
    conn.execute("CREATE TABLE t (id int, filler text) WITH (fillfactor = 10)")
    conn.execute("INSERT INTO t VALUES (0, repeat('x', 1900))")
    conn.execute("SET vacuum_freeze_min_age = 1000000000")
    conn.execute("CALL burn(1000)")
    conn.execute(f"INSERT INTO t SELECT i, repeat('x', 1900) FROM generate_series(2, {EAGER_PAGES}) i")
    conn.execute("VACUUM t")
    before = checks.table_state(conn, "t")
    assert (before["relpages"], before["all_visible"], before["all_frozen"]) == (EAGER_PAGES, EAGER_PAGES, 0)

    conn.execute(f"SET vacuum_freeze_min_age = {0 if freezable else 500}")
    conn.execute(f"SET cyclone.enabled = {enabled}")
    report = report_of(conn, f"VACUUM (VERBOSE, PARALLEL {workers}) t")

    after = checks.table_state(conn, "t")
    eager = int((re.search(r"(\d+) eagerly scanned", report) or ["", 0])[1])
    if pg_major < 18:
        assert eager == 0 and after["all_frozen"] <= 2
    elif freezable:
        assert EAGER_PAGES * 0.2 <= eager <= EAGER_PAGES * 0.2 + READ_AHEAD
        # besides, the last page is scanned, and runs too short to be skipped, which end where a member's range does
        assert eager <= after["all_frozen"] <= eager + 2 + 32 * (workers + 1)
        assert report.count("disabling eager scanning after freezing 1800 eagerly scanned blocks of relation") == 1
    else:
        assert 2 * EAGER_REGION_FAILURES <= eager <= 4 * EAGER_REGION_FAILURES + READ_AHEAD
        assert after["all_frozen"] <= 1
        assert "disabling eager scanning" not in report
    assert after["relfrozenxid_age"] == before["relfrozenxid_age"]
    checks.assert_clean(conn, "t")


def make_table(conn, name: str, indexes: int = 2) -> None:
    conn.execute(f"CREATE TABLE {name} (id int, note char(128)) WITH (fillfactor = 20)")
    conn.execute(f"INSERT INTO {name} SELECT i, md5(i::text) FROM generate_series(1, 6000) i")
    for i in range(indexes):
        conn.execute(f"CREATE INDEX {name}_{i} ON {name} ((id + {i}))")
    conn.execute(f"DELETE FROM {name} WHERE id % 3 = 0 OR id > 4000")


@pytest.fixture(scope="module")
def failsafe_base(prefix):
    """A stopped cluster where the failsafe is 6000 transactions away for tables core, alone and team, all equal."""
    with create_with_template(prefix, {**CONFIG, **FAILSAFE_CONFIG}) as cluster:
        cluster.start()
        with cluster.connect(TEMPLATE) as conn:
            conn.execute(BURN)
            conn.execute("SET min_parallel_index_scan_size = 0")
            for name in ("core", "alone", "team"):
                make_table(conn, name, 6)
            burn_until_age(conn, "team", FREEZE_MAX_AGE - 1000)
        cluster.stop()
        yield cluster


@pytest.fixture
def failsafe_conn(failsafe_base):
    """A connection to a copy of that cluster; the cluster itself is its attribute `cluster`."""
    with failsafe_base.copy() as cluster:
        cluster.start()
        with cluster.connect(TEMPLATE) as conn:
            conn.cluster = cluster
            yield conn


WARNING = f'bypassing nonessential maintenance of table "{TEMPLATE}.public.team" as a failsafe'
# Without SKIP_DATABASE_STATS the end of a VACUUM would call the autovacuum launcher.
SKIP_STATS = "SKIP_DATABASE_STATS, VERBOSE"


def assert_vacuumable(conn, table: str) -> None:
    """A later VACUUM, no longer late, does what was left undone."""
    conn.execute("SET vacuum_failsafe_age = 2000000000")
    conn.execute(f"VACUUM (SKIP_DATABASE_STATS, PARALLEL 2) {table}")
    state = checks.assert_vacuumed(conn, table)
    assert state["all_visible"] == state["relpages"] > 0
    assert state["rows"] == 2667


def test_failsafe_from_the_start_bypasses_indexes_and_truncation_as_core_does(failsafe_conn):
    conn = failsafe_conn
    burn_until_age(conn, "core", FAILSAFE_AGE + 500)
    outcomes = {}
    for name, workers in (("core", 0), ("alone", 0), ("team", 2)):
        conn.execute(f"SET cyclone.enabled = {'off' if name == 'core' else 'on'}")
        report = report_of(conn, f"VACUUM ({SKIP_STATS}, PROCESS_TOAST off, PARALLEL {workers}) {name}")
        lines = [line.replace(name, "core") for line in report.splitlines()]
        ours_alone = ("horizon:", "audit:", "dead-TID store:", "parallel workers:", "phases:", "pace:", "INFO: launched")
        lines = [re.sub(r"[\d.]+", "#", line.rstrip()) for line in lines if not line.startswith(ours_alone)]
        state = checks.table_state(conn, name)
        age = state.pop("relfrozenxid_age")
        assert age < 200
        outcomes[name] = lines, state
    warnings = [line for line in lines if line.startswith("WARNING")]
    assert len(warnings) == 1 and "as a failsafe after # index scans" in warnings[0]
    assert "index scan bypassed by failsafe" in report and "parallel workers: 2 planned, 2 launched" in report
    assert state["dead_items"] > 2000
    assert outcomes["alone"] == outcomes["core"]
    assert outcomes["team"] == outcomes["core"]
    assert_vacuumable(conn, "team")


@pytest.mark.once
def test_the_nearer_the_failsafe_the_more_a_vacuum_does_beside_its_adaptive_delay(failsafe_conn):
    """Half of the way, while nothing is added: nobody's statements hold it back so far that it keeps to its cost delay."""
    conn = failsafe_conn
    burn_until_age(conn, "alone", (FREEZE_MAX_AGE + FAILSAFE_AGE) // 2)
    dbname = conn.info.dbname
    statement = f"VACUUM ({SKIP_STATS}, PARALLEL 0, ADAPTIVE_DELAY) alone"
    with Load(conn.cluster, dbname, BUSY, 2):
        vacuum = Background(conn.cluster, dbname, statement, {**STANDSTILL, "cyclone.debug_price": 500})
        wait_until(lambda: (row := pace(conn)) and row["added"] == 0 and (row["rate"] or 0) > 5 * row["budget"], "what it needs")
        conn.execute("SELECT pg_cancel_backend(%s)", (vacuum.pid,))
        vacuum.wait()


def burn_most_of_the_way(conn) -> None:
    """Make the table alone so old that a VACUUM of it may have most of a process at work, whatever holds it back."""
    burn_until_age(conn, "alone", FREEZE_MAX_AGE + (FAILSAFE_AGE - FREEZE_MAX_AGE) * 9 // 10)


@pytest.mark.once
def test_the_nearer_the_failsafe_the_less_a_cost_delay_holds_back(failsafe_conn):
    """Also in the server's code, which vacuums indexes of other kinds. By this delay the table would take an hour."""
    conn = failsafe_conn
    conn.execute("CREATE EXTENSION bloom; CREATE INDEX ON alone USING bloom (id)")
    burn_most_of_the_way(conn)
    conn.execute("SET statement_timeout = '60s'; SET vacuum_cost_delay = '100ms'; SET vacuum_cost_limit = 1")
    said = report_of(conn, f"VACUUM ({SKIP_STATS}, INDEX_CLEANUP on, PARALLEL 0) alone")
    assert "as a failsafe" not in said
    assert checks.table_state(conn, "alone")["dead_items"] == 0
    checks.assert_clean(conn, "alone")


@pytest.mark.once
def test_a_vacuum_that_was_faster_than_it_need_be_owes_nothing_for_that(failsafe_conn):
    """It comes to a cost delay after a time without one: by its own clock, for which it didn't wait till then, it would owe minutes."""
    conn = failsafe_conn
    burn_most_of_the_way(conn)
    alter_system(conn, "SET cyclone.adaptive_delay = 'on'")
    statement = f"VACUUM ({SKIP_STATS}, INDEX_CLEANUP on, PARALLEL 0) alone"
    settings = {"statement_timeout": "90s", "cyclone.debug_price": 60}
    with Parked(conn.cluster, conn.info.dbname, "heap-scan:leader", 1, statement, settings) as vacuum:
        for _ in range(15):
            conn.execute("SELECT pg_sleep(0.15)")
            vacuum.step()
            vacuum.wait_for(1)
        alter_system(conn, "SET vacuum_cost_delay = '100ms'", "SET vacuum_cost_limit = 1", "SET cyclone.adaptive_delay = 'off'")
        vacuum.finish()
    assert checks.table_state(conn, "alone")["dead_items"] == 0
    checks.assert_clean(conn, "alone")


def test_in_an_emergency_the_whole_team_freezes_and_nobody_sleeps_or_touches_an_index(failsafe_conn):
    conn = failsafe_conn
    burn_until_age(conn, "team", FAILSAFE_AGE + 500)
    conn.execute("CREATE EXTENSION IF NOT EXISTS pgstattuple")
    indexes = "SELECT i, pg_relation_size(i), (pgstatindex(i)).* FROM generate_series(0, 5) n, format('team_%s', n) i"
    before = conn.execute(indexes).fetchall()
    # with this delay it would take minutes, and workers would be parked
    settings = {"vacuum_cost_delay": "100ms", "vacuum_cost_limit": 1, "cyclone.debug_fed": 0, "cyclone.debug_cores": 0}
    statement = f"VACUUM ({SKIP_STATS}, PROCESS_TOAST off, PARALLEL 2) team"
    with Parked(conn.cluster, conn.info.dbname, "heap-scan:any", 3, statement, settings) as vacuum:
        said = "\n".join(vacuum.finish())
    assert said.count(WARNING) == 1
    state = checks.table_state(conn, "team")
    assert state["relfrozenxid_age"] < 200
    assert state["dead_items"] > 2000
    assert "delay: " not in said
    assert conn.execute(indexes).fetchall() == before
    assert_vacuumable(conn, "team")


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.once), 2])
def test_failsafe_among_the_indexes_stops_there_and_keeps_the_dead_items(failsafe_conn, workers):
    conn = failsafe_conn
    burn_until_age(conn, "team", FAILSAFE_AGE - 200)
    settings = {"min_parallel_index_scan_size": 0}
    statement = f"VACUUM ({SKIP_STATS}, PROCESS_TOAST off, PARALLEL {workers}) team"
    with Parked(conn.cluster, conn.info.dbname, "index-vacuum:any", workers + 1, statement, settings) as vacuum:
        conn.execute("CALL burn(1000)")
        said = "\n".join(vacuum.finish())
    assert said.count(WARNING) == 1
    assert "index scan bypassed by failsafe" in said
    dead_items = checks.table_state(conn, "team")["dead_items"]
    assert dead_items == 3333
    if workers == 0:  # with workers, those that did not wait for the leader's look may have done more
        assert said.count(": pages: ") == 1
    assert_vacuumable(conn, "team")


@pytest.mark.once
def test_failsafe_in_the_heap_scan_comes_on_after_4_gb(failsafe_base):
    """A file with holes makes the table that long: zeroed pages, of which each is looked at."""
    workers, segments, segment_pages = 2, 4, 131072
    with failsafe_base.copy() as cluster:
        cluster.start()
        [(path,)] = cluster.sql("SELECT pg_relation_filepath('team')", dbname=TEMPLATE)
        cluster.stop()
        for i in range(segments + 1):
            segment = cluster.data / (f"{path}.{i}" if i else path)
            with open(segment, "ab") as file:
                file.truncate(8192 * (segment_pages if i < segments else 4000))
            hand_over(segment)
        cluster.start()
        with cluster.connect(TEMPLATE) as conn:
            conn.execute("INSERT INTO team SELECT -i, md5(i::text) FROM generate_series(1, 1500) i")
            conn.execute("DELETE FROM team WHERE id < 0 AND id % 3 = 0")
            burn_until_age(conn, "team", FAILSAFE_AGE - 200)
            statement = f"VACUUM ({SKIP_STATS}, PROCESS_TOAST off, PARALLEL {workers}) team"
            with Parked(cluster, TEMPLATE, "heap-scan:any", workers + 1, statement) as vacuum:
                conn.execute("CALL burn(1000)")
                said = "\n".join(vacuum.finish())
            assert said.count(WARNING) == 1
            assert "index scan bypassed by failsafe" in said
            assert f"{workers} launched" in said


SEGMENT_XIDS, SEGMENT_BYTES = 32 * 32768, 32 * 8192  # of a file of the commit log
REFUSED_BEFORE = 3_000_000  # so many transaction IDs before wraparound the server assigns no more


@pytest.mark.parametrize("workers", [0, 2])
def test_where_the_server_refuses_transaction_ids(new_cluster, workers):
    """VACUUM by the engine works where the server assigns no transaction IDs any more, and so do the views. A slot holds the catalogs back,
    so nothing else ends this. When it is dropped, as cyclone.horizon says, autovacuum by the engine does."""
    cluster = new_cluster(wal_level="logical", autovacuum="on", autovacuum_naptime="1s", **{"cyclone.autovacuum": "on"})
    with cluster.connect(TEMPLATE) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, note text) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i")
        conn.execute("DELETE FROM t WHERE id % 3 = 0 OR id > 15000")
        conn.execute("SELECT pg_create_logical_replication_slot('late', 'pgoutput')")
    cluster.stop()
    [oldest] = re.findall(r"oldestXID: +(\d+)", run_program(cluster.prefix, "pg_controldata", "-D", cluster.data).stdout)
    xid = int(oldest) + 2**31 - REFUSED_BEFORE + 1000
    run_program(cluster.prefix, "pg_resetwal", "-x", str(xid), "-D", cluster.data, **as_server_user())
    segment = cluster.data / "pg_xact" / f"{xid // SEGMENT_XIDS:04X}"
    segment.write_bytes(bytes(SEGMENT_BYTES))
    hand_over(segment)
    cluster.start()
    with cluster.connect(TEMPLATE) as conn:
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="not accepting commands"):
            conn.execute("INSERT INTO t VALUES (0)")
        said = report_of(conn, f"VACUUM (VERBOSE, FREEZE, INDEX_CLEANUP off, TRUNCATE off, PARALLEL {workers}) t")
        assert f"parallel workers: {workers} planned" in said
        assert conn.execute("SELECT age(relfrozenxid) < 100 FROM pg_class WHERE oid = 't'::regclass").fetchone() == (True,)
        assert conn.execute("SELECT kind, name FROM cyclone.horizon_details WHERE is_oldest_for_catalogs").fetchone() == ("replication slot", "late")
        assert conn.execute("SELECT count(*) FROM cyclone.advice WHERE xid_age > xid_limit").fetchone()[0] > 0
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="not accepting commands"):
            conn.execute("VACUUM (FULL INPLACE) t")
        conn.execute("SELECT pg_drop_replication_slot('late')")

        def takes_rows() -> bool:
            try:
                conn.execute("INSERT INTO t VALUES (0) ON CONFLICT DO NOTHING")
            except psycopg.errors.ProgramLimitExceeded:
                return False
            return True

        wait_until(takes_rows, "the end of the refusals")
        assert conn.execute("SELECT count(*) FROM cyclone.autovacuum_details WHERE engine_count > 0 AND last_by = 'engine'").fetchone()[0] > 0
        conn.execute("VACUUM t")
        checks.assert_clean(conn, "t")
