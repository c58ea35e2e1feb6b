"""pg_cyclone's VACUUM leaves tables of every shape as PostgreSQL's does: on copies of one stopped data directory, both leave
equal line pointers and tuple headers, visibility map, free space map, statistics and reports."""

import re
from dataclasses import dataclass, field

import pytest

from conftest import CONFIG, TEMPLATE, create_with_template
from cyclone_lab import checks
from cyclone_lab.background import messages_to
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import as_server_user, run_program

EVERY_VERSION = "what core does differs"

DB = "shapes"
ACCESS_METHODS = {
    # name: (type of the column, its value for k, a condition that finds k in 1 .. 1000, in an index alone)
    "btree": ("int", "k", "v BETWEEN 1 AND 1000"),
    "hash": ("int", "k", "v = ANY(ARRAY(SELECT generate_series(1, 1000)))"),
    "gin": ("int[]", "ARRAY[k, -k]", "v && ARRAY(SELECT generate_series(1, 1000))"),
    "gist": ("point", "point(k, k % 10)", "v <@ box '(0.5,-1),(1000.5,11)'"),
    "spgist": ("point", "point(k, k % 10)", "v <@ box '(0.5,-1),(1000.5,11)'"),
    "brin": ("int", "k", "v BETWEEN 1 AND 1000"),
    "bloom": ("int", "k", "v = ANY(ARRAY(SELECT generate_series(1, 1000)))"),
}

# Rows of this width fill a page by fours.
WIDE = "repeat('x', 1950)"


def access_method_shape(method: str) -> str:
    """Return the statements that make table am_<method>: its rows k up to 1000 are deleted, every seventh is moved."""
    type_name, value, _ = ACCESS_METHODS[method]
    return f"""
        CREATE TABLE am_{method} (k int, v {type_name}, note text);
        INSERT INTO am_{method} SELECT k, {value}, md5(k::text) FROM generate_series(1, 8000) k;
        CREATE INDEX am_{method}_v ON am_{method} USING {method} (v);
        INSERT INTO am_{method} SELECT k, {value}, md5(k::text) FROM generate_series(8001, 9000) k;
        UPDATE am_{method} SET note = note || 'x', v = v WHERE k % 7 = 0;
        DELETE FROM am_{method} WHERE k <= 1000 OR k > 8900;
    """


SHAPES = {
    "no_index": """
        CREATE TABLE no_index (id int, note text);
        INSERT INTO no_index SELECT i, md5(i::text) FROM generate_series(1, 15000) i;
        DELETE FROM no_index WHERE id % 3 = 0;
        UPDATE no_index SET note = note || 'y' WHERE id % 7 = 0;
    """,
    "many_dead": """
        CREATE TABLE many_dead (id int);
        INSERT INTO many_dead SELECT generate_series(1, 100000);
        CREATE INDEX ON many_dead (id);
        DELETE FROM many_dead WHERE id % 2 = 0;
    """,
    **{f"am_{method}": access_method_shape(method) for method in ACCESS_METHODS},
    "hash_chains": """
        CREATE TABLE hash_chains (id int, v int, w text);
        CREATE INDEX hash_chains_v ON hash_chains USING hash (v);
        CREATE INDEX hash_chains_w ON hash_chains USING hash (w) WITH (fillfactor = 30);
        INSERT INTO hash_chains SELECT i, i % 7, md5((i % 9000)::text) FROM generate_series(1, 20000) i;
        DELETE FROM hash_chains WHERE id % 5 = 0 OR id BETWEEN 3000 AND 9000;
        UPDATE hash_chains SET w = w || 'x' WHERE id % 8 = 1;
    """,
    "brin_gaps": """
        CREATE TABLE brin_gaps (id int, v int, w text);
        CREATE INDEX brin_gaps_v ON brin_gaps USING brin (v) WITH (pages_per_range = 2);
        CREATE INDEX brin_gaps_w ON brin_gaps USING brin (upper(w)) WITH (pages_per_range = 3);
        CREATE INDEX brin_gaps_b ON brin_gaps USING brin (v int4_bloom_ops, id int4_minmax_multi_ops) WITH (pages_per_range = 1);
        INSERT INTO brin_gaps SELECT i, i % 1000, md5(i::text) FROM generate_series(1, 30000) i;
        SELECT brin_summarize_range('brin_gaps_v', 50);
        SELECT brin_summarize_range('brin_gaps_w', 6);
        DELETE FROM brin_gaps WHERE id % 5 = 0;
    """,
    "special_indexes": """
        CREATE TABLE special_indexes (id int PRIMARY KEY, kind int, note text);
        INSERT INTO special_indexes SELECT i, i % 5, md5(i::text) FROM generate_series(1, 10000) i;
        CREATE INDEX ON special_indexes (note) WHERE kind = 2;
        CREATE INDEX ON special_indexes (upper(note));
        CREATE INDEX ON special_indexes (kind) INCLUDE (id);
        CREATE INDEX ON special_indexes (id) WHERE false;
        UPDATE special_indexes SET kind = kind + 1 WHERE id % 11 = 0;
        DELETE FROM special_indexes WHERE id BETWEEN 2000 AND 5000;
    """,
    "toasted": """
        CREATE TABLE toasted (id int PRIMARY KEY, big text);
        ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL;
        INSERT INTO toasted SELECT i, repeat(md5(i::text), 400) FROM generate_series(1, 400) i;
        UPDATE toasted SET big = big || 'z' WHERE id % 4 = 0;
        DELETE FROM toasted WHERE id % 3 = 0;
    """,
    "toast_alone": """
        CREATE TABLE toast_alone (id int, big text);
        ALTER TABLE toast_alone ALTER big SET STORAGE EXTERNAL;
        INSERT INTO toast_alone SELECT i, repeat(md5(i::text), 300) FROM generate_series(1, 200) i;
        DELETE FROM toast_alone WHERE id % 2 = 0;
    """,
    "hot_chains": """
        CREATE TABLE hot_chains (id int PRIMARY KEY, n int, note text) WITH (fillfactor = 50);
        INSERT INTO hot_chains SELECT i, 0, md5(i::text) FROM generate_series(1, 8000) i;
        UPDATE hot_chains SET n = n + 1 WHERE id % 3 = 0;
        UPDATE hot_chains SET n = n + 1 WHERE id % 9 = 0;
        SELECT sum(n) FROM hot_chains;
        UPDATE hot_chains SET n = n + 1 WHERE id % 27 = 0;
        SELECT sum(n) FROM hot_chains;
        UPDATE hot_chains SET n = n + 1 WHERE id % 3 <> 0;
        DELETE FROM hot_chains WHERE id % 12 = 0;
        BEGIN;
        UPDATE hot_chains SET n = n + 1 WHERE id % 5 = 0;
        UPDATE hot_chains SET n = n + 1 WHERE id % 5 = 0;
        COMMIT;
    """,
    "aborted": """
        CREATE TABLE aborted (id int PRIMARY KEY, n int);
        INSERT INTO aborted SELECT i, 0 FROM generate_series(1, 5000) i;
        BEGIN; INSERT INTO aborted SELECT i, 1 FROM generate_series(5001, 9000) i; ROLLBACK;
        BEGIN; UPDATE aborted SET n = 2 WHERE id % 3 = 0; ROLLBACK;
        BEGIN; DELETE FROM aborted WHERE id % 4 = 0; ROLLBACK;
        BEGIN;
        INSERT INTO aborted SELECT i, 3 FROM generate_series(9001, 9500) i;
        SAVEPOINT s;
        INSERT INTO aborted SELECT i, 4 FROM generate_series(9501, 9900) i;
        UPDATE aborted SET n = 5 WHERE id % 7 = 0;
        ROLLBACK TO s;
        DELETE FROM aborted WHERE id % 10 = 0;
        COMMIT;
    """,
    "dropped_columns": """
        CREATE TABLE dropped_columns (id int PRIMARY KEY, a text, b int);
        INSERT INTO dropped_columns SELECT i, md5(i::text), i FROM generate_series(1, 6000) i;
        ALTER TABLE dropped_columns DROP COLUMN a;
        ALTER TABLE dropped_columns ADD COLUMN c int DEFAULT 7;
        INSERT INTO dropped_columns SELECT i, i, i FROM generate_series(6001, 9000) i;
        UPDATE dropped_columns SET c = 8 WHERE id % 4 = 0;
        DELETE FROM dropped_columns WHERE id % 5 = 0;
    """,
    "single_page": """
        CREATE TABLE single_page (id int PRIMARY KEY);
        INSERT INTO single_page VALUES (1), (2);
        DELETE FROM single_page WHERE id = 1;
    """,
    "never_filled": "CREATE TABLE never_filled (id int PRIMARY KEY)",
    "all_dead": f"""
        CREATE TABLE all_dead (id int PRIMARY KEY, filler text);
        INSERT INTO all_dead SELECT i, {WIDE} FROM generate_series(1, 2000) i;
        DELETE FROM all_dead;
    """,
    "dead_tail": f"""
        CREATE TABLE dead_tail (id int PRIMARY KEY, filler text);
        INSERT INTO dead_tail SELECT i, {WIDE} FROM generate_series(1, 3000) i;
        DELETE FROM dead_tail WHERE id > 1000 OR id % 5 = 0;
    """,
    "few_dead": f"""
        CREATE TABLE few_dead (id int PRIMARY KEY, filler text);
        INSERT INTO few_dead SELECT i, {WIDE} FROM generate_series(1, 2000) i;
        DELETE FROM few_dead WHERE id % 400 = 0;
    """,
    "thin_end": """
        CREATE TABLE thin_end (id int PRIMARY KEY, note text);
        INSERT INTO thin_end SELECT i, repeat('x', 100) FROM generate_series(1, 5700) i;
        DELETE FROM thin_end WHERE ctid >= '(64,0)' AND id % 20 <> 0 OR ctid >= '(95,0)';
        VACUUM (INDEX_CLEANUP on) thin_end;
    """,
    "unlogged": """
        CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY, note text);
        INSERT INTO unlogged SELECT i, md5(i::text) FROM generate_series(1, 10000) i;
        DELETE FROM unlogged WHERE id % 3 = 0;
    """,
    "parted": """
        CREATE TABLE parted (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
        CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (3000);
        CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (3000) TO (6000) WITH (fillfactor = 30);
        INSERT INTO parted SELECT i, md5(i::text) FROM generate_series(0, 5999) i;
        UPDATE parted SET note = 'moved' WHERE id % 6 = 0;
        DELETE FROM parted WHERE id % 4 = 0;
    """,
    "matview": """
        CREATE TABLE matview_source AS SELECT i AS id, i % 3 AS n FROM generate_series(1, 6000) i;
        CREATE MATERIALIZED VIEW matview AS SELECT * FROM matview_source;
        CREATE UNIQUE INDEX ON matview (id);
        UPDATE matview_source SET n = n + 1 WHERE id % 2 = 0;
        REFRESH MATERIALIZED VIEW CONCURRENTLY matview;
    """,
}
CATALOGS = ("pg_class", "pg_attribute", "pg_type", "pg_depend")
# Made by functions below
MIXED_MAP, NEW_PAGES, MULTIXACTS, IN_PROGRESS = "mixed_map", "new_pages", "multixacts", "in_progress"
TABLES = [*SHAPES, MIXED_MAP, NEW_PAGES, MULTIXACTS, IN_PROGRESS]

# Runs of all-visible blocks: shorter than, equal to and longer than the 32 that are worth skipping.
RUNS = (1, 2, 31, 32, 33, 5, 40, 64, 30, 100, 3, 63, 200, 32, 31, 130)

ENGINE_LINES = ("horizon:", "audit:", "dead-TID store:", "parallel workers:", "phases:", "pace:")
VARYING_LINES = ("avg read rate:", "buffer usage:", "WAL usage:", "memory usage:", "system usage:", "I/O timings:", "delay time:")


def make_mixed_map(conn) -> None:
    """Make a table of 1500 pages: half all-frozen, half all-visible, both with dirty pages in between."""
    conn.execute(f"CREATE TABLE {MIXED_MAP} (id int PRIMARY KEY, filler text)")
    conn.execute(f"INSERT INTO {MIXED_MAP} SELECT i, {WIDE} FROM generate_series(1, 3000) i")
    conn.execute(f"VACUUM (FREEZE) {MIXED_MAP}")
    conn.execute(f"INSERT INTO {MIXED_MAP} SELECT i, {WIDE} FROM generate_series(3001, 6000) i")
    conn.execute(f"VACUUM {MIXED_MAP}")
    block, dirty = 0, []
    while block < 1450:
        for run in RUNS:
            block += run
            dirty.append(block)
            block += 1
    tids = [f"({block},{1 + block % 4})" for block in dirty if block < 1490]
    conn.execute(f"DELETE FROM {MIXED_MAP} WHERE ctid = ANY(%s::tid[])", (tids[::2],))
    conn.execute(f"UPDATE {MIXED_MAP} SET id = -id WHERE ctid = ANY(%s::tid[])", (tids[1::4],))
    # locks clear the all-frozen bit alone
    locked = [f"({block},1)" for block in (10, 50, 51, 52, 350, 700)]
    conn.execute(f"SELECT 1 FROM {MIXED_MAP} WHERE ctid = ANY(%s::tid[]) FOR KEY SHARE", (locked,))


def make_multixacts(cluster: Cluster, conn) -> None:
    """Make a table with row locks and updates by several transactions: committed, aborted, and prepared ones."""
    conn.execute(f"CREATE TABLE {MULTIXACTS} (id int PRIMARY KEY, n int, filler text) WITH (fillfactor = 60)")
    conn.execute(f"INSERT INTO {MULTIXACTS} SELECT i, 0, md5(i::text) FROM generate_series(1, 3000) i")
    with cluster.connect(DB) as other:

        def together(mine: str, others: str, end: str, end_of_other: str) -> None:
            conn.execute("BEGIN")
            other.execute("BEGIN")
            conn.execute(mine)
            other.execute(others)
            conn.execute(end)
            other.execute(end_of_other)

        lock = f"SELECT 1 FROM {MULTIXACTS} WHERE id %% 10 = {{}} FOR {{}}".replace("%%", "%")
        update = f"UPDATE {MULTIXACTS} SET n = n + 1 WHERE id % 10 = {{}}"
        together(lock.format(1, "KEY SHARE"), lock.format(1, "KEY SHARE"), "COMMIT", "COMMIT")
        together(lock.format(2, "SHARE"), lock.format(2, "SHARE"), "COMMIT", "ROLLBACK")
        together(lock.format(3, "KEY SHARE"), update.format(3), "COMMIT", "COMMIT")
        together(lock.format(4, "KEY SHARE"), update.format(4), "COMMIT", "ROLLBACK")
        conn.execute(f"DELETE FROM {MULTIXACTS} WHERE id % 10 = 5 AND id % 3 = 0")
        together(lock.format(6, "KEY SHARE"), update.format(6), "PREPARE TRANSACTION 'locks'", "COMMIT")


def make_in_progress(conn) -> None:
    """Make a table that a prepared transaction has written to, with rows that died, and rows born, since then."""
    conn.execute(f"CREATE TABLE {IN_PROGRESS} (id int PRIMARY KEY, n int)")
    conn.execute(f"INSERT INTO {IN_PROGRESS} SELECT i, 0 FROM generate_series(1, 8000) i")
    conn.execute(f"DELETE FROM {IN_PROGRESS} WHERE id % 8 = 0")
    conn.execute("BEGIN")
    conn.execute(f"INSERT INTO {IN_PROGRESS} SELECT i, 1 FROM generate_series(8001, 9000) i")
    conn.execute(f"UPDATE {IN_PROGRESS} SET n = 2 WHERE id % 8 = 1")
    conn.execute(f"DELETE FROM {IN_PROGRESS} WHERE id % 8 = 2")
    conn.execute("PREPARE TRANSACTION 'work'")
    conn.execute(f"DELETE FROM {IN_PROGRESS} WHERE id % 8 = 3")
    conn.execute(f"UPDATE {IN_PROGRESS} SET n = 3 WHERE id % 8 = 4")
    conn.execute(f"INSERT INTO {IN_PROGRESS} SELECT i, 4 FROM generate_series(9001, 10000) i")


def append_pages(cluster: Cluster, path: str, *pages: bytes) -> None:
    """Append raw pages to a relation's file of a stopped cluster, with checksums where the cluster has them."""
    control = run_program(cluster.prefix, "pg_controldata", "-D", cluster.data).stdout
    has_checksums = not re.search(r"checksum version: +0\b", control)
    if has_checksums:
        run_program(cluster.prefix, "pg_checksums", "--disable", "--no-sync", "-D", cluster.data, **as_server_user())
    with open(cluster.data / path, "ab") as file:
        file.write(b"".join(pages))
    if has_checksums:
        run_program(cluster.prefix, "pg_checksums", "--enable", "--no-sync", "-D", cluster.data, **as_server_user())


ZERO_PAGE = bytes(8192)
# pd_lower 24, pd_upper and pd_special 8192, layout version 4: initialized, without line pointers, never logged
EMPTY_PAGE = bytes(12) + b"".join(n.to_bytes(2, "little") for n in (24, 8192, 8192, 8196)) + bytes(8172)
# the same with the page's own all-visible bit, which the map knows nothing of
VISIBLE_PAGE = EMPTY_PAGE[:10] + (4).to_bytes(2, "little") + EMPTY_PAGE[12:]


@pytest.fixture(scope="module")
def base(prefix, pg_major):
    """A stopped cluster with a database of all shapes, and transactions still open in it."""
    # without the WAL files that it would keep for later, which are more than the tables, copies are made in half of the time
    config = {**CONFIG, "checkpoint_timeout": "1h", "max_wal_size": "10GB", "wal_recycle": "off", "track_io_timing": "on"}
    if pg_major >= 18:
        config["track_cost_delay_timing"] = "on"
    with create_with_template(prefix, config) as cluster:
        cluster.start()
        cluster.sql(f"CREATE DATABASE {DB} TEMPLATE {TEMPLATE}")
        with cluster.connect(DB) as conn:
            conn.execute(f"CREATE TABLE {NEW_PAGES} (id int PRIMARY KEY, filler text)")
            conn.execute(f"INSERT INTO {NEW_PAGES} SELECT i, {WIDE} FROM generate_series(1, 800) i")
            [(path,)] = conn.execute(f"SELECT pg_relation_filepath('{NEW_PAGES}')")
        cluster.stop()
        append_pages(cluster, path, *[ZERO_PAGE] * 70, *[EMPTY_PAGE] * 3, VISIBLE_PAGE)
        cluster.start()
        with cluster.connect(DB) as conn:
            conn.execute("SET cyclone.enabled = off")
            conn.execute("CREATE EXTENSION bloom")
            conn.execute(f"INSERT INTO {NEW_PAGES} SELECT i, {WIDE} FROM generate_series(801, 1600) i")
            conn.execute(f"DELETE FROM {NEW_PAGES} WHERE id % 10 = 0")
            for i in range(150):
                conn.execute(f"CREATE TEMP TABLE churn_{i} (a int PRIMARY KEY, b text)")
                if i % 10:
                    conn.execute(f"DROP TABLE churn_{i}")
            for statements in SHAPES.values():
                for statement in filter(str.strip, statements.split(";")):
                    conn.execute(statement)
            make_mixed_map(conn)
            make_multixacts(cluster, conn)
            make_in_progress(conn)
        cluster.stop()
        append_pages(cluster, path, *[ZERO_PAGE] * 40, *[EMPTY_PAGE] * 2, *[VISIBLE_PAGE] * 2)
        yield cluster


@dataclass
class Outcome:
    """What a run of VACUUM over all tables left behind, and said."""

    states: dict[str, dict] = field(default_factory=dict)
    messages: dict[str, list[str]] = field(default_factory=dict)


def state_of(conn, heap: str) -> dict:
    """Return what is to be equal of a heap: sums, and for each block its items, visibility and free space."""
    state = checks.table_state(conn, heap)
    [(items,)] = conn.execute(
        """
        SELECT array_agg(hash ORDER BY block)
        FROM (SELECT block, sum(hash_record_extended((lp, lp_flags, lp_off, lp_len, t_xmin, t_xmax, t_field3, t_ctid,
                                                      t_infomask, t_infomask2), 0)) AS hash
              FROM generate_series(0, pg_relation_size(%(heap)s::regclass) / 8192 - 1) block,
                   heap_page_items(get_raw_page(%(heap)s::text, block))
              GROUP BY block) blocks
        """,
        {"heap": heap},
    )
    # all but LSN and checksum, and the hole
    [(pages,)] = conn.execute(
        """
        SELECT array_agg(sha256(substr(page, 11, lower - 10) || substr(page, upper + 1)) ORDER BY block)
        FROM (SELECT block, get_raw_page(%(heap)s::text, block) AS page
              FROM generate_series(0, pg_relation_size(%(heap)s::regclass) / 8192 - 1) block) raw, page_header(page)
        WHERE upper > 0
        """,
        {"heap": heap},
    )
    [(map_bits,)] = conn.execute(
        "SELECT array_agg((all_visible, all_frozen)::text ORDER BY blkno) FROM pg_visibility_map(%s::regclass)", (heap,)
    )
    [(space,)] = conn.execute("SELECT array_agg(avail ORDER BY blkno) FROM pg_freespace(%s::regclass)", (heap,))
    [(frozenxid, minmxid)] = conn.execute(
        "SELECT relfrozenxid::text::bigint, relminmxid::text::bigint FROM pg_class WHERE oid = %s::regclass", (heap,)
    )
    indexes = conn.execute(
        """
        SELECT indexrelid::regclass::text, relpages, reltuples, pg_relation_size(indexrelid)
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
        WHERE indrelid = %s::regclass ORDER BY indexrelid
        """,
        (heap,),
    ).fetchall()
    entries = {name: index_entries(conn, name) for (name, *_) in indexes}
    statistics = conn.execute(
        """
        SELECT n_live_tup, n_dead_tup, n_ins_since_vacuum, vacuum_count > 0
        FROM pg_stat_all_tables WHERE relid = %s::regclass
        """,
        (heap,),
    ).fetchone()
    state.update(items=items, pages=pages, map_bits=map_bits, space=space, indexes=indexes, statistics=statistics)
    state.update(entries={name: found for name, found in entries.items() if found is not None})
    state.update(relfrozenxid=frozenxid, relminmxid=minmxid)
    del state["relfrozenxid_age"], state["relminmxid_age"]
    if heap == "pg_class":
        del state["content_hash"]  # it tells of all the other tables
    return state


# By access method: what is to be equal of an index, one row of it, from all its pages but the first.
INDEX_ENTRIES = {
    # of leaves; where pages were deleted is not compared
    "btree": """
        SELECT count(*), sum(hashtextextended((itemoffset, itemlen, data, dead, htid, tids)::text, 0))
        FROM (SELECT block FROM pages, bt_page_stats(%(index)s::text, block) WHERE type = 'l' OFFSET 0) leaves,
             bt_page_items(%(index)s::text, block)
    """,
    "hash": """
        SELECT count(*), sum(hashtextextended((block, itemoffset, ctid, data)::text, 0))
        FROM (SELECT * FROM pages WHERE hash_page_type(page) IN ('bucket', 'overflow') OFFSET 0) buckets,
             hash_page_items(page)
    """,
    "brin": """
        SELECT count(*), sum(hashtextextended((blknum, attnum, allnulls, hasnulls, placeholder, value)::text, 0))
        FROM (SELECT * FROM pages WHERE brin_page_type(page) = 'regular' OFFSET 0) regular,
             brin_page_items(page, %(index)s)
    """,
}


def index_entries(conn, index: str) -> tuple | None:
    """Return a number and a sum of what is in an index, each with its place where that is to be equal; None if unknown."""
    [(method,)] = conn.execute(
        "SELECT amname FROM pg_class JOIN pg_am ON pg_am.oid = relam WHERE pg_class.oid = %s::regclass", (index,)
    )
    if method not in INDEX_ENTRIES:
        return None
    pages = """
        WITH pages AS MATERIALIZED (
            SELECT block, get_raw_page(%(index)s::text, block) AS page
            FROM generate_series(1, pg_relation_size(%(index)s::regclass) / 8192 - 1) block)
    """
    return conn.execute(pages + INDEX_ENTRIES[method], {"index": index}).fetchone()


def vacuum_all(conn, options: str, settings: dict, tables: tuple[str, ...] = (*TABLES, *CATALOGS)) -> Outcome:
    """Vacuum these tables with these options, and look at them."""
    outcome = Outcome()
    [(toast,)] = conn.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'toast_alone'")
    targets = [toast if name == "toast_alone" else name for name in tables]
    heaps = {target: checks.heaps(conn, target) for target in targets}
    said: list[str] = []
    conn.add_notice_handler(lambda message: said.append(f"{message.severity}: {message.message_primary}"))
    for name, value in settings.items():
        conn.execute(f"SET {name} = {value}")
    for target in targets:
        conn.execute(f"VACUUM (VERBOSE{options}) {target}")
        outcome.messages[target] = list(said)
        said.clear()
    conn.execute("SELECT pg_stat_force_next_flush()")
    for heap in dict.fromkeys(sum(heaps.values(), [])):
        outcome.states[heap] = state_of(conn, heap)
    return outcome


def reports(messages: list[str], exact: bool) -> list[str]:
    """Return the lines without those of teams and pg_cyclone's alone, and, unless exact or varying, with the numbers."""
    lines = []
    for line in "\n".join(message for message in messages if "parallel vacuum worker" not in message).splitlines():
        if not line.startswith(ENGINE_LINES):
            with_numbers = exact and not line.startswith(VARYING_LINES)
            lines.append(line if with_numbers else re.sub(r"\d+(\.\d+)?( resets?)?", "#", line))
    return lines


def start_copy(base: Cluster, workers: int) -> Cluster:
    """Return a running copy of the cluster, for a VACUUM with `workers` workers.

    Without them, VACUUM freezes pages of which the WAL gets a full image anyhow. A process cannot tell for the first page
    it changes, so a worker freezes one page less than the leader would have: there, full-page images are off.
    """
    cluster = base.copy()
    cluster.config["full_page_writes"] = "off" if workers > 0 else "on"
    return cluster.start()


@pytest.fixture(scope="module")
def core_outcome(base):
    """A function that returns what PostgreSQL's VACUUM with these options does, found out once."""
    known: dict[str, Outcome] = {}

    def outcome(options: str, workers: int) -> Outcome:
        key = options, workers > 0
        if key not in known:
            with start_copy(base, workers) as cluster, cluster.connect(DB) as conn:
                known[key] = vacuum_all(conn, options, {"cyclone.enabled": "off"})
        return known[key]

    return outcome


def differences(ours: Outcome, core: Outcome, exact_catalogs: bool, exact_reports: bool) -> list[str]:
    """Return how the two outcomes differ. Workers that start pin pages of catalogs, which then cannot be cleaned."""
    found = []
    for heap, expected in core.states.items():
        if heap in CATALOGS and not exact_catalogs:
            expected = {name: expected[name] for name in ("rows", "relpages")}
        for name, value in expected.items():
            actual = ours.states[heap][name]
            wrong = actual != value
            if wrong and isinstance(value, list) and name != "indexes" and len(value) == len(actual):
                blocks = [i for i, (a, b) in enumerate(zip(actual, value, strict=True)) if a != b]
                found.append(f"{heap}: {name} of {len(blocks)} blocks: {blocks[:10]}")
            elif wrong:
                found.append(f"{heap}: {name} is {str(actual)[:300]} and core's {str(value)[:300]}")
    for target, messages in core.messages.items():
        if target in CATALOGS and not exact_catalogs:
            continue
        mine, theirs = reports(ours.messages[target], exact_reports), reports(messages, exact_reports)
        if mine != theirs:
            found.append(f"{target}: reports, ours first\n  " + "\n  ".join(sorted(set(mine) ^ set(theirs), key=str)))
    return found


def assert_sound(conn) -> None:
    """Run all checks, after ending what was in progress, as they take locks, and removing dead items left on purpose."""
    conn.execute("COMMIT PREPARED 'locks'")
    conn.execute("COMMIT PREPARED 'work'")
    for table in [*TABLES, *CATALOGS]:
        conn.execute(f"VACUUM (INDEX_CLEANUP on, PARALLEL 2) {table}")
    checks.assert_clean(conn, *TABLES, *CATALOGS)


def assert_indexes_forgot_deleted_rows(conn) -> None:
    """Fill the freed space with other rows: an index entry left behind would now lead to one of them."""
    for method, (_, value, condition) in ACCESS_METHODS.items():
        table = f"am_{method}"
        conn.execute(f"INSERT INTO {table} SELECT k, {value}, '' FROM generate_series(1000001, 1003000) k")
        conn.execute("SET enable_seqscan = off")
        plan = "\n".join(line for (line,) in conn.execute(f"EXPLAIN SELECT count(*) FROM {table} WHERE {condition}"))
        assert f"{table}_v" in plan, plan
        assert conn.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone() == (0,), table
        conn.execute("RESET enable_seqscan")


VARIANTS = {  # and how they are marked
    ("", 0): [],
    ("", 2): [pytest.mark.full],
    (", FREEZE", 0): [pytest.mark.full],
    (", FREEZE", 2): [],
    (", DISABLE_PAGE_SKIPPING", 2): [pytest.mark.once],
    (", INDEX_CLEANUP on, TRUNCATE off", 2): [pytest.mark.once],
    (", INDEX_CLEANUP off", 0): [pytest.mark.once],
    (", INDEX_CLEANUP off", 2): [pytest.mark.full],
}


@pytest.mark.parametrize(
    "options, workers",
    [pytest.param(o, w, id=f"{o.strip(', ') or 'plain'}-{w}", marks=marks) for (o, w), marks in VARIANTS.items()],
)
def test_tables_of_every_shape_are_left_as_core_leaves_them(base, core_outcome, options, workers):
    with start_copy(base, workers) as cluster:
        with cluster.connect(DB) as conn:
            ours = vacuum_all(conn, f"{options}, PARALLEL {workers}", {"min_parallel_index_scan_size": 0})
            assert differences(ours, core_outcome(options, workers), workers == 0, exact_reports=True) == []
            assert any(f"{workers} launched" in message for message in ours.messages["many_dead"])
            assert_sound(conn)
            if "INDEX_CLEANUP off" not in options:
                assert_indexes_forgot_deleted_rows(conn)


def repeat_vacuum(conn, workers: int) -> dict:
    """Vacuum all tables five times; return the pages scanned each time, and the statistics after the 2nd and 5th."""
    found = {}
    said = messages_to(conn)
    for run in range(1, 6):
        for table in TABLES:
            said.clear()
            conn.execute(f"VACUUM (VERBOSE, PARALLEL {workers}) {table}")
            found[table, run] = re.findall(r"pages: .* scanned \(.*\)", "\n".join(said))
        if run in (2, 5):
            conn.execute("SELECT pg_stat_force_next_flush()")
            for row in conn.execute(
                """
                SELECT pg_class.relname, relpages, reltuples, relallvisible, n_live_tup, n_dead_tup
                FROM pg_class JOIN pg_stat_all_tables ON relid = pg_class.oid WHERE pg_class.relname = ANY(%s)
                """,
                (TABLES,),
            ):
                found["statistics", row[0], run] = row
    return found


@pytest.fixture(scope="module")
def repeated_by_core(base):
    """What repeat_vacuum finds under PostgreSQL."""
    with start_copy(base, 0) as cluster, cluster.connect(DB) as conn:
        conn.execute("SET cyclone.enabled = off")
        return repeat_vacuum(conn, 0)


@pytest.mark.once
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.full), 3])
def test_vacuum_again_and_again_keeps_the_statistics_as_core_does(base, repeated_by_core, workers):
    with start_copy(base, 0) as cluster, cluster.connect(DB) as conn:
        conn.execute("SET min_parallel_index_scan_size = 0")
        ours = repeat_vacuum(conn, workers)
        assert {key: value for key, value in ours.items() if value != repeated_by_core[key]} == {}
        [(live,)] = conn.execute("SELECT count(*) FROM thin_end")
        assert ours["statistics", "thin_end", 5][2] == pytest.approx(live, rel=0.02)
        assert_sound(conn)


@pytest.mark.once
@pytest.mark.parametrize("workers", [0, 2, pytest.param(4, marks=pytest.mark.full)])
def test_several_rounds_for_lack_of_memory_leave_what_one_round_leaves(base, workers):
    """Of the one table here of which the engine needs more than one; core needs some fifty."""
    outcomes = []
    for enabled in ("on", "off"):
        with start_copy(base, workers) as cluster, cluster.connect(DB) as conn:
            conn.execute("ROLLBACK PREPARED 'work'")
            conn.execute("ROLLBACK PREPARED 'locks'")
            conn.execute("INSERT INTO many_dead SELECT generate_series(100001, 400000)")
            conn.execute("DELETE FROM many_dead WHERE id > 100000 AND id % 2 = 0")
            conn.execute("SELECT pg_stat_force_next_flush()")  # or what VACUUM says of the rows would come first
            settings = {"maintenance_work_mem": "'64kB'", "min_parallel_index_scan_size": 0, "cyclone.enabled": enabled}
            outcomes.append(vacuum_all(conn, f", PARALLEL {workers}", settings, ("many_dead",)))
            if enabled == "on":
                checks.assert_clean(conn, "many_dead")
    for outcome in outcomes:
        [report] = [message for message in outcome.messages["many_dead"] if "finished" in message]
        assert int(re.search(r"index scans: (\d+)", report)[1]) > 1
    assert differences(*outcomes, exact_catalogs=True, exact_reports=False) == []


def test_a_temporary_table_is_left_as_core_leaves_it_and_gets_no_workers(conn):
    outcomes = {}
    for name, enabled, workers in (("core", "off", 0), ("alone", "on", 0), ("with_workers", "on", 2)):
        said = []
        conn.execute(f"CREATE TEMP TABLE {name} (id int PRIMARY KEY, note text)")
        conn.execute(f"INSERT INTO {name} SELECT i, md5(i::text) FROM generate_series(1, 10000) i")
        conn.execute(f"DELETE FROM {name} WHERE id % 3 = 0 OR id > 9000")
        conn.execute(f"SET cyclone.enabled = {enabled}")
        conn.add_notice_handler(lambda message, said=said: said.append(message.message_primary))
        conn.execute(f"VACUUM (VERBOSE, PARALLEL {workers}) {name}")
        state = checks.table_state(conn, name)
        del state["relfrozenxid_age"]
        report = [message.replace(name, "core") for message in said if "finished" in message]
        outcomes[name] = state, reports(report, exact=False)
        checks.assert_clean(conn, name)
    assert outcomes["alone"] == outcomes["core"]
    assert outcomes["with_workers"] == outcomes["core"]
    warning = 'disabling parallel option of vacuum on "with_workers" --- cannot vacuum temporary tables in parallel'
    assert said.count(warning) == 1
    assert any("parallel workers: 0 planned" in message for message in said)


WORKERS_TABLES = {
    "dead rows": ("id % 3 = 0", ("btree (id)", "btree (note)", "gin (a)", "brin (id)"), ""),
    "few dead rows": ("id % 1000 = 0", ("btree (id)", "btree (note)"), ""),
    "no dead rows": ("false", ("btree (id)", "btree (note)", "gin (a)", "brin (id)"), ""),
    "only btrees": ("id % 3 = 0", ("btree (id)", "btree (note)"), ""),
    "cleanup off": ("id % 3 = 0", ("btree (id)", "btree (note)"), ", INDEX_CLEANUP off"),
    "no indexes": ("id % 3 = 0", (), ""),
    "no workers": ("id % 3 = 0", ("btree (id)", "btree (note)"), ", PARALLEL 0"),
}


@pytest.mark.parametrize("case", WORKERS_TABLES)
def test_the_report_speaks_of_memory_and_workers_as_core_does(conn, pg_major, case):
    """Since 19. How many workers there are is not compared, as theirs have only indexes to do, nor what the store takes."""
    which, indexes, options = WORKERS_TABLES[case]
    said: list[str] = []
    conn.add_notice_handler(lambda message: said.extend(message.message_primary.splitlines()))
    conn.execute("SET min_parallel_index_scan_size = 0")
    lines = {}
    for who in ("ours", "core"):
        conn.execute(f"CREATE TABLE {who} AS SELECT i AS id, md5(i::text) AS note, ARRAY[i % 10, i] AS a FROM generate_series(1, 9000) i")
        for index in indexes:
            conn.execute(f"CREATE INDEX ON {who} USING {index}")
        conn.execute(f"DELETE FROM {who} WHERE {which}")
        conn.execute(f"SET cyclone.enabled = {who == 'ours'}")
        said.clear()
        conn.execute(f"VACUUM (VERBOSE{options}) {who}")
        lines[who] = [
            re.sub(r"\d+ planned, \d+ launched|storage \d+\.\d+ MB", "#", line)
            for line in said
            if line.startswith(("parallel workers: index", "memory usage: "))
        ]
    assert lines["ours"] == lines["core"]
    assert len(lines["core"]) >= (1 if pg_major >= 19 else 0)
