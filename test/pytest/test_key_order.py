"""VACUUM FULL sorts entries of btrees as integers, and leaves the pages that PostgreSQL's build leaves, for all types and orders of keys."""

import random
import struct
from pathlib import Path

import psycopg
import pytest

from conftest import CONFIG, every_other
from cyclone_lab import checks
from cyclone_lab.background import Parked, messages_to
from cyclone_lab.cluster import Cluster
from cyclone_lab.shim import Disk
from test_rewrite import content, relation_files, run_script
from test_rewrite_indexes import ICU_SHAPES, SHAPES

# By type: values at the ends of its order and beside them, and an expression of a number i and a random r for the rest.
TYPES = {
    "bool": (["true", "false"], "i % 3 = 0"),
    '"char"': (["''", "'a'", "chr(127)::\"char\"", "'\\200'::\"char\"", "'\\377'::\"char\""], "chr(1 + i % 100)::\"char\""),
    "int2": (["-32768", "32767", "0", "-1", "1"], "(r * 60000 - 30000)::int2"),
    "int4": (["-2147483648", "2147483647", "0", "-1", "1", "255", "256"], "(r * 1e9 - 5e8)::int4"),
    "int8": (["-9223372036854775808", "9223372036854775807", "0", "-1", "1", "4294967296"], "(r * 1e18 - 5e17)::int8"),
    "oid": (["0", "4294967295", "2147483648", "2147483647"], "(r * 4e9)::int8::oid"),
    "date": (["'infinity'", "'-infinity'", "'4713-01-01 BC'", "'2000-01-01'"], "'2000-01-01'::date + (r * 9999 - 5000)::int"),
    "time": (["'00:00'", "'24:00'", "'23:59:59.999999'"], "'00:00'::time + r * '23 hours'::interval"),
    "timestamp": (["'infinity'", "'-infinity'", "'2000-01-01'"], "'2000-01-01'::timestamp + (r - 0.5) * '90 years'::interval"),
    "timestamptz": (["'infinity'", "'-infinity'", "'2000-01-01'"], "'2000-01-01'::timestamptz + (r - 0.5) * '90 years'::interval"),
    "money": (["'-92233720368547758.08'", "'92233720368547758.07'", "'0'"], "(r * 1000)::numeric::money"),
    "float4": (["'NaN'", "'-Infinity'", "'Infinity'", "'-0'", "'0'", "'1e-45'", "'-1e-45'", "'3.4e38'"], "((r - 0.5) * 1e3)::float4"),
    "float8": (["'NaN'", "-'NaN'::float8", "'-Infinity'", "'Infinity'", "'-0'", "'0'", "'5e-324'", "'-5e-324'"], "(r - 0.5) * 1e300"),
    "mood": (["'sad'", "'ok'", "'happy'"], "(enum_range(NULL::mood))[1 + i % 3]"),
    "extended": (["'sad'", "'so-so'", "'happy'"], "(enum_range(NULL::extended))[1 + i % 4]"),
    "pg_lsn": (["'0/0'", "'FFFFFFFF/FFFFFFFF'", "'7FFFFFFF/FFFFFFFF'", "'80000000/0'"], "'0/0'::pg_lsn + (r * 1e15)::int8"),
    "xid8": (["'0'", "'18446744073709551615'", "'9223372036854775808'"], "((r * 1e15)::int8)::text::xid8"),
    "uuid": (["repeat('0', 32)::uuid", "repeat('f', 32)::uuid", "(repeat('0', 31) || '1')::uuid"], "md5(i::text)::uuid"),
    "macaddr": (["'00:00:00:00:00:00'", "'ff:ff:ff:ff:ff:ff'", "'7f:00:00:80:00:00'"], "left(md5(i::text), 12)::macaddr"),
    "positive": (["1", "2147483647"], "(r * 1e9)::int4 + 1"),
    # these are sorted by what the server abbreviates them to, or
    "text": (["''", "'a'", "'A'"], "md5(i::text)"),
    "bytea": (["''", "'\\x00'", "'\\x0000'"], "decode(md5(i::text), 'hex')"),
    "inet": (["'0.0.0.0/0'", "'::'", "'10.0.0.0/8'"], "'10.0.0.0'::inet + i"),
    # by the server
    "numeric": (["'NaN'", "0", "-1"], "(r * 1e9)::numeric"),
}
OF_SERVER = ("float4", "float8", "mood", "extended", "numeric")
MAKE_TYPES = """
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE TYPE extended AS ENUM ('sad', 'ok', 'happy');
    ALTER TYPE extended ADD VALUE 'so-so' BEFORE 'ok';
    CREATE DOMAIN positive AS int4 CHECK (VALUE > 0)
"""
ORDERS = ["ASC NULLS LAST", "ASC NULLS FIRST", "DESC NULLS LAST", "DESC NULLS FIRST"]
META, LEAF_LEVEL, NONE = 0, 0, 0


def pages_of(conn, index: str) -> list[list[bytes]]:
    """Return the pages of a btree from left to right, by level from the root on, without what is different in each file.

    That is LSN, checksum, and the numbers of blocks: of siblings, and in downlinks, which lead to the pages of the level
    below in their order.
    """

    def page_at(block: int) -> bytes:
        [(page,)] = conn.execute("SELECT get_raw_page(%s, %s)", (index, block))
        return page

    def downlinks(page: bytes) -> list[int]:
        lower, _, special = struct.unpack_from("<HHH", page, 12)
        is_rightmost = struct.unpack_from("<I", page, special + 4)[0] == NONE
        items = [struct.unpack_from("<I", page, at)[0] & 0x7FFF for at in range(24, lower, 4)]
        high, low = zip(*(struct.unpack_from("<HH", page, offset) for offset in items[0 if is_rightmost else 1 :]), strict=True)
        return [one << 16 | other for one, other in zip(high, low, strict=True)]

    meta = page_at(META)
    root, level = struct.unpack_from("<II", meta, 24 + 8)
    levels, blocks = [], [root] if root else []
    while blocks:
        images, below = [], []
        for number, block in enumerate(blocks):
            page = page_at(block)
            lower, upper, special = struct.unpack_from("<HHH", page, 12)
            left, right, found_level = struct.unpack_from("<III", page, special)
            assert found_level == level
            assert left == (blocks[number - 1] if number > 0 else NONE)
            assert right == (blocks[number + 1] if number + 1 < len(blocks) else NONE)
            image = bytearray(page)
            image[0:10] = bytes(10)
            image[special : special + 8] = bytes(8)
            image[lower:upper] = bytes(upper - lower)  # free space
            if level > LEAF_LEVEL:
                below += downlinks(page)
                for at in range(24, lower, 4):  # a high key has one as well, of the page that it came from
                    offset = struct.unpack_from("<I", page, at)[0] & 0x7FFF
                    image[offset : offset + 4] = bytes(4)
            images.append(bytes(image))
        levels.append(images)
        blocks, level = below, level - 1
    return levels


def assert_as_built_by_core(conn, table: str, names: list[str] | None = None) -> int:
    """Compare all btrees of a table, or those named, with those that PostgreSQL builds of the same rows; return how many leaf pages
    there were."""
    if names is None:
        names = [name for (name,) in conn.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass", (table,))]
    ours = {name: pages_of(conn, name) for name in names}
    sizes = {name: conn.execute("SELECT pg_relation_size(%s)", (name,)).fetchone() for name in names}
    checks.assert_clean(conn, table)
    conn.execute(f"REINDEX TABLE {table}")
    for name in names:
        [(definition,)] = conn.execute("SELECT pg_get_indexdef(%s::regclass)", (name,))
        expected = pages_of(conn, name)
        assert [len(level) for level in ours[name]] == [len(level) for level in expected], definition
        for level, (mine, theirs) in enumerate(zip(ours[name], expected, strict=True)):
            for number, (image, other) in enumerate(zip(mine, theirs, strict=True)):
                assert image == other, f"{definition}: level {level} from the root, page {number}"
        assert conn.execute("SELECT pg_relation_size(%s)", (name,)).fetchone() == sizes[name], definition
    return sum(len(levels[-1]) for levels in ours.values() if levels)


def fill(conn, table: str, columns: dict[str, str], rows: int, distinct: int, seed: int) -> None:
    """Make a table of random keys: many different ones or few, some at the ends of the order, some null."""
    names = list(columns)
    conn.execute(f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns.items())}, filler int)")
    conn.execute("SELECT setseed(%s)", (seed / 1000,))
    values = []
    for kind in columns.values():
        ends, rest = TYPES[kind]
        array = f"(ARRAY[{', '.join(f'CAST({end} AS {kind})' for end in ends)}])[1 + (random() * 97)::int]"
        values.append(f"CASE WHEN random() < 0.1 THEN NULL WHEN random() < 0.6 THEN {rest} ELSE coalesce({array}, {rest}) END")
    conn.execute(
        f"INSERT INTO {table} ({', '.join(names)}, filler) SELECT {', '.join(values)}, i"
        f" FROM (SELECT i, (hashint4(i) + 2147483648) / 4294967296::float8 r FROM generate_series(1, {rows}) n, LATERAL (SELECT n % {distinct} i))"
    )
    conn.execute(f"DELETE FROM {table} WHERE filler % 7 = 0")


def is_sorted_by_us(conn, table: str) -> bool:
    """Does VACUUM FULL sort entries of an index of this table by itself?"""
    conn.execute("SET cyclone.debug_point = 'rewrite-entry-sort:leader:error'")
    try:
        conn.execute(f"VACUUM (FULL, PARALLEL 0) {table}")
    except psycopg.errors.InternalError_:
        return True
    finally:
        conn.execute("RESET cyclone.debug_point")
    return False


@pytest.mark.parametrize("workers", [0, 2])
def test_every_type_in_every_order(conn, workers):
    """Each index has the pages that PostgreSQL's own build gives it, whoever builds it."""
    run_script(conn, MAKE_TYPES)
    for number, kind in enumerate(TYPES):
        table = f"t{number}"
        fill(conn, table, {"k": kind}, rows=3000, distinct=2000, seed=number)
        for order in ORDERS:
            conn.execute(f"CREATE INDEX ON {table} (k {order})")
        if workers == 0:
            assert is_sorted_by_us(conn, table) == (kind not in OF_SERVER), kind
        conn.execute(f"VACUUM (FULL, PARALLEL {workers}) {table}")
        assert assert_as_built_by_core(conn, table) > 4


@pytest.mark.parametrize("distinct", [1, 50, 100_000])
def test_few_and_many_duplicates(conn, distinct):
    """Posting lists are as PostgreSQL makes them; options of the index count, and keys that come in order stay so."""
    fill(conn, "t", {"a": "int4", "b": "int8"}, rows=20_000, distinct=distinct, seed=distinct % 997)
    for index in ("(a)", "(filler)", "(b DESC)", "(a) WITH (deduplicate_items = off)", "(b) WITH (fillfactor = 50)",
                  "(a) WHERE b > 0", "((a % 10))", "((a % 3), b) WHERE b IS NOT NULL", "(filler) INCLUDE (b)"):  # fmt: skip
        conn.execute(f"CREATE INDEX ON t {index}")
    conn.execute("VACUUM (FULL, PARALLEL 0) t")
    assert_as_built_by_core(conn, "t")


@pytest.mark.parametrize("shape", [*SHAPES, *ICU_SHAPES])
def test_every_shape(conn, shape):
    """Wide texts, compressed ones, equal prefixes: those that the server sorts, and those that are sorted by a prefix."""
    columns, index, rows = {**SHAPES, **ICU_SHAPES}[shape]
    if shape in ICU_SHAPES:
        try:
            conn.execute("CREATE COLLATION without_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        except psycopg.errors.FeatureNotSupported:
            pytest.xfail("NOT TESTED: this server comes without ICU")
    run_script(conn, f"""
        CREATE FUNCTION wide(int) RETURNS text IMMUTABLE LANGUAGE sql
            RETURN (SELECT string_agg(md5($1 || ' ' || j), '') FROM generate_series(1, 80) j);
        CREATE TABLE t (a int, b text STORAGE EXTENDED);
        INSERT INTO t SELECT {columns} FROM generate_series(1, {rows // 4}) i;
        CREATE INDEX ON t {index};
        CREATE INDEX ON t (b COLLATE "C" DESC NULLS LAST, a);
        CREATE INDEX ON t (a DESC, b);
        CREATE INDEX ON t ((left(b, 9)::bytea))
    """)  # fmt: skip
    conn.execute("VACUUM (FULL, PARALLEL 0) t")
    assert_as_built_by_core(conn, "t")


def test_several_columns(conn):
    """Indexes on several columns in random orders, as long as they fit into an integer and longer."""
    run_script(conn, MAKE_TYPES)
    chance = random.Random(44)
    for number in range(12):
        kinds = chance.choices(list(TYPES), k=chance.randint(2, 8))
        fill(conn, f"t{number}", {f"c{i}": kind for i, kind in enumerate(kinds)}, rows=1500, distinct=700, seed=number)
        for _ in range(3):
            columns = chance.sample(range(len(kinds)), chance.randint(2, len(kinds)))
            conn.execute(f"CREATE INDEX ON t{number} ({', '.join(f'c{i} {chance.choice(ORDERS)}' for i in columns)})")
        conn.execute(f"VACUUM (FULL, PARALLEL {number % 2}) t{number}")
        assert_as_built_by_core(conn, f"t{number}")


def test_as_many_columns_as_an_index_may_have(conn):
    """Of all types, so that only the first ones fit into an integer; and of one byte each, where the most do."""
    run_script(conn, MAKE_TYPES)
    kinds = (list(TYPES) * 2)[:32]
    for table, columns in (("t", [*kinds[12:], *kinds[:12]]), ("narrow", ["bool", '"char"'] * 16)):
        fill(conn, table, {f"c{i}": kind for i, kind in enumerate(columns)}, rows=1500, distinct=40, seed=32)
        names = [f"c{i}" for i in range(32)]
        conn.execute(f"CREATE INDEX ON {table} ({', '.join(names)})")
        conn.execute(f"CREATE INDEX ON {table} ({', '.join(f'{name} DESC' for name in names[5:])})")
        conn.execute(f"CREATE INDEX ON {table} ({', '.join(names[:15])})")
        assert is_sorted_by_us(conn, table)
        conn.execute(f"VACUUM (FULL, PARALLEL 0) {table}")
        assert_as_built_by_core(conn, table)


def test_in_parts(conn):
    """Built in parts by several processes, they are sound, and have the same rows in the same order."""
    run_script(conn, MAKE_TYPES)
    conn.execute("SET cyclone.debug_btree_parts = 3")
    for number, kind in enumerate(TYPES):
        fill(conn, f"t{number}", {"k": kind}, rows=3000, distinct=2000, seed=number)
        for order in ORDERS[::3]:
            conn.execute(f"CREATE INDEX ON t{number} (k {order})")
        conn.execute(f"VACUUM (FULL, PARALLEL 2) t{number}")
        checks.assert_clean(conn, f"t{number}")


@pytest.mark.parametrize("point", ["rewrite-swap", "rewrite-index", "rewrite-index-alone"])
def test_an_enum_that_gets_a_value_meanwhile(cluster, db, conn, point):
    """Before its entries are sorted: PostgreSQL compares them."""
    run_script(conn, MAKE_TYPES)
    conn.execute("CREATE TABLE t (id int, m mood)")
    conn.execute("INSERT INTO t SELECT hashint4(i), (SELECT enum_range(NULL::mood))[1 + i % 3] FROM generate_series(1, 50000) i")
    conn.execute("CREATE INDEX ON t (id, m); CREATE INDEX ON t (m, id); CREATE INDEX ON t (m) WHERE id > 0")
    rows = content(conn, "t")
    with Parked(cluster, db, point, 1, "VACUUM (FULL, VERBOSE, PARALLEL 1) t", {"cyclone.debug_point": f"{point}:any:wait"}) as vacuum:
        conn.execute("ALTER TYPE mood ADD VALUE 'so-so' BEFORE 'ok'")
        vacuum.finish()
    assert content(conn, "t") == rows
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("memory", ["64MB", "64kB"])
def test_full_inplace_builds_the_same(conn, memory):
    """Each type, rows with chains of HOT updates, unique indexes with nulls; some it leaves to the server."""
    run_script(conn, MAKE_TYPES)
    columns = {f"c{number}": kind for number, kind in enumerate(TYPES)}
    fill(conn, "t", columns, rows=26_000, distinct=20_000, seed=5)
    conn.execute("ALTER TABLE t ADD id int GENERATED ALWAYS AS IDENTITY, ADD fourth int, ADD seen int")
    conn.execute("UPDATE t SET fourth = id WHERE id % 4 = 0")
    ours = [f"(c{number} {ORDERS[number % len(ORDERS)]})" for number, kind in enumerate(TYPES) if is_whole(kind)]
    ours += [f"({', '.join(list(columns)[2:5])})", "(c3) WITH (deduplicate_items = off, fillfactor = 70)"]
    servers = [f"({name})" for name, kind in columns.items() if not is_whole(kind)]
    servers += ["(c3) INCLUDE (c4)", "((c3 % 100))", "(c4) WHERE filler > 7", f"({', '.join(list(columns)[8:15])})"]
    for index in ours + servers:
        conn.execute(f"CREATE INDEX ON t {index}")
    conn.execute("CREATE UNIQUE INDEX ON t (id); CREATE UNIQUE INDEX ON t (fourth)")
    conn.execute("DELETE FROM t WHERE filler % 3 <> 0")
    conn.execute("UPDATE t SET seen = 1 WHERE id % 5 = 0")
    files = "SELECT indexrelid, pg_relation_filenode(indexrelid) FROM pg_index WHERE indrelid = 't'::regclass"
    before = set(conn.execute(files).fetchall())
    said = messages_to(conn)
    conn.execute(f"SET maintenance_work_mem = '{memory}'; SET cyclone.debug_point = 'shrink-scanned:leader:notice'")
    conn.execute("VACUUM (FULL INPLACE) t")
    conn.execute("RESET cyclone.debug_point; RESET maintenance_work_mem")
    assert before.isdisjoint(conn.execute(files).fetchall())
    assert len(before) == len(ours) + len(servers) + 2
    assert sum("shrink-scanned" in message for message in said) == len(ours) + 2
    noted = "relpages * 8192 = pg_relation_size(c.oid) AND (indpred IS NOT NULL OR reltuples = (SELECT count(*) FROM t))"
    assert conn.execute(f"SELECT relname FROM pg_class c JOIN pg_index ON indexrelid = c.oid WHERE indrelid = 't'::regclass AND NOT ({noted})").fetchall() == []
    [(redirects,)] = conn.execute("SELECT count(*) FROM generate_series(0, 49) b, heap_page_items(get_raw_page('t', b)) WHERE lp_flags = 2")
    assert redirects > 9, "no chains"
    assert_as_built_by_core(conn, "t")


def is_whole(kind: str) -> bool:
    """Says an entry of this type all, while others write to the table and change its types?"""
    return kind not in (*OF_SERVER, "text", "bytea", "inet")


def test_more_entries_than_memory(conn):
    """Entries that don't fit into memory are sorted in temporary files, to the same end, as far as temp_file_limit goes."""
    fill(conn, "t", {"a": "int4", "b": "uuid"}, rows=60_000, distinct=40_000, seed=1)
    for index in ("(a)", "(b DESC)", "(filler)"):
        conn.execute(f"CREATE INDEX ON t {index}")
    conn.execute("SET maintenance_work_mem = '1MB'; SET temp_file_limit = '500kB'")
    before = content(conn, "t")
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        conn.execute("VACUUM (FULL, PARALLEL 0) t")
    assert content(conn, "t") == before
    checks.assert_clean(conn, "t")

    conn.execute("RESET temp_file_limit; SET log_temp_files = 0; SET client_min_messages = log")
    said = messages_to(conn)
    conn.execute("VACUUM (FULL, PARALLEL 0) t")
    assert sum("temporary file" in message for message in said) > 3
    conn.execute("RESET client_min_messages")
    assert_as_built_by_core(conn, "t")


@pytest.mark.parametrize(("memory", "workers", "parts", "passes"), [
    ("64MB", 0, 0, 1),  # all fit
    ("4500kB", 0, 0, 3),  # two at a time
    ("1MB", 0, 0, 5),  # none
    ("1MB", 1, 2, 5),  # no room to be collected
])  # fmt: skip
def test_how_often_the_table_is_read(conn, memory, workers, parts, passes):
    """Once for as many indexes as fit into memory, or for each that wouldn't fit alone."""
    fill(conn, "t", {"a": "int4", "b": "uuid"}, rows=70_000, distinct=40_000, seed=2)
    for index in ("(a)", "(b)", "(filler)", "(b DESC)", "(filler, a, filler DESC)"):
        conn.execute(f"CREATE INDEX ON t {index}")
    rows = content(conn, "t")
    said = messages_to(conn)
    conn.execute(f"SET maintenance_work_mem = '{memory}'; SET cyclone.debug_btree_parts = {parts}")
    conn.execute("SET cyclone.debug_point = 'rewrite-index:any:notice'")
    conn.execute(f"VACUUM (FULL, PARALLEL {workers}) t")
    conn.execute("RESET cyclone.debug_point")
    assert sum('"rewrite-index" reached' in message for message in said) == passes
    assert content(conn, "t") == rows
    if parts == 0:
        assert_as_built_by_core(conn, "t")
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize(("workers", "parts"), [(0, 0), (2, 0), (2, 3)])
def test_temporary_files_that_may_not_be_so_large(cluster, conn, workers, parts):
    """In whichever process: the statement fails, nothing is left of it, and the next one does as if it hadn't been."""
    fill(conn, "t", {"a": "int4", "b": "uuid"}, rows=60_000, distinct=40_000, seed=3)
    for index in ("(a)", "(b DESC)", "(filler)"):
        conn.execute(f"CREATE INDEX ON t {index}")
    conn.execute(f"SET maintenance_work_mem = '1MB'; SET cyclone.debug_btree_parts = {parts}")
    before, files = content(conn, "t"), relation_files(cluster, conn)
    for limit in ("16kB", "500kB"):
        conn.execute(f"SET temp_file_limit = '{limit}'")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            conn.execute(f"VACUUM (FULL, PARALLEL {workers}) t")
        assert content(conn, "t") == before
        assert relation_files(cluster, conn).keys() == files.keys()
        assert list((cluster.data / "base" / "pgsql_tmp").glob("*")) == []
    conn.execute("RESET temp_file_limit")
    checks.assert_clean(conn, "t")
    conn.execute(f"VACUUM (FULL, PARALLEL {workers}) t")
    assert content(conn, "t") == before
    checks.assert_clean(conn, "t")


def private_memory(pid: int) -> int:
    """Return how much memory of its own a process has, in bytes, with what it has given back since it had the most."""
    lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    kilobytes = {line[0]: int(line[1]) for line in lines if line[-1] == "kB"}
    return (kilobytes["RssAnon:"] + kilobytes["VmPeak:"] - kilobytes["VmSize:"]) << 10


def shared_segments(pids: list[int]) -> int:
    """Return how much memory the segments have, in bytes, that these processes have mapped besides the server's own."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    segments = {line.split()[-1] for line in lines if "/PostgreSQL." in line}
    return sum(Path(segment).stat().st_blocks * 512 for segment in segments)


def make_large(conn) -> None:
    """Make table t with more entries than memory."""
    conn.execute("CREATE TABLE t (id int, n int, u uuid, note text)")
    conn.execute("INSERT INTO t SELECT i, hashint4(i), md5(i::text)::uuid, md5(i::text) FROM generate_series(1, 200000) i")
    for index in ("(id)", "(n)", "(u)", '(note COLLATE "C")', "(n, id)", "(id DESC)", "((n % 1000))", "(n) WHERE id > 7"):
        conn.execute(f"CREATE INDEX ON t {index}")


@pytest.fixture(scope="module")
def large(prefix):
    """A server on which each segment of shared memory is a file, with that table."""
    with Cluster.create(prefix, {**CONFIG, "min_dynamic_shared_memory": 0, "dynamic_shared_memory_type": "posix"}) as cluster:
        cluster.start()
        with cluster.connect() as conn:
            conn.execute("CREATE EXTENSION amcheck; CREATE EXTENSION pageinspect; CREATE EXTENSION pg_visibility")
            make_large(conn)
        yield cluster


@every_other("workers, parts, memory", [pytest.param(0, 0), pytest.param(1, 0), pytest.param(1, 8)], [16, 64, 1024])
def test_all_processes_together_keep_to_their_memory(large, memory, workers, parts):
    """When the first index of each has its leaves, all entries are there, and the array for sorting has just been given back."""
    settings = {"maintenance_work_mem": f"{memory}MB", "cyclone.debug_btree_parts": parts}
    with Parked(large, "postgres", "rewrite-btree-part:any", workers + 1, f"VACUUM (FULL, PARALLEL {workers}) t", settings) as vacuum:
        private = sum(private_memory(pid) for pid in vacuum.parked)
        shared = shared_segments(vacuum.parked)
    with large.connect() as conn:
        # what a process has anyway: catalogs, pages of a level; and each chunk's mark where assertions are
        usual = 22 if conn.execute("SHOW debug_assertions").fetchone() == ("on",) else 20
        least = min(memory, 48) << 18  # of 1 GB the entries take a small part
        assert least < private + shared < (memory + usual * (workers + 1)) << 20
        assert (shared > least) == (workers > 0), "what all have collected"
        checks.assert_clean(conn, "t")


@pytest.mark.parametrize("memory", [32, pytest.param(1024, marks=pytest.mark.full)])
def test_full_inplace_keeps_to_its_memory(large, memory):
    """When the table has been read, the entries of its first index are all there, or in files; when they are sorted, too."""
    with large.connect() as conn:
        conn.execute("DROP TABLE IF EXISTS bloated; CREATE TABLE bloated (id int, u uuid) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO bloated SELECT i, md5(i::text)::uuid FROM generate_series(1, 450000) i")
        conn.execute("CREATE INDEX ON bloated (u); DELETE FROM bloated WHERE id % 3 = 0")
    settings = {"maintenance_work_mem": f"{memory}MB", "cyclone.debug_point": "shrink-scanned:leader:wait rewrite-btree-part:leader:wait"}
    with Parked(large, "postgres", "shrink-scanned:leader", 1, "VACUUM (FULL INPLACE) bloated", settings) as vacuum:
        while_scanned = private_memory(vacuum.pid)
        vacuum.step()
        assert 8 << 20 < while_scanned < private_memory(vacuum.pid) < (memory + 22) << 20
    assert vacuum.error is None
    with large.connect() as conn:
        checks.assert_clean(conn, "bloated")


def test_a_disk_that_is_full(prefix):
    """Of temporary files or of the new ones: the statement fails, nothing is left of it, and the table is what it was."""
    with Cluster.create(prefix, {**CONFIG, "maintenance_work_mem": "1MB"}) as cluster:
        disk = Disk(cluster)
        cluster.start()
        with cluster.connect() as conn:
            conn.execute("CREATE EXTENSION amcheck; CREATE EXTENSION pageinspect; CREATE EXTENSION pg_visibility")
            conn.execute("CREATE TABLE t (a int, b int)")
            conn.execute("INSERT INTO t SELECT i, hashint4(i) FROM generate_series(1, 60000) i")
            conn.execute("CREATE INDEX ON t (a); CREATE INDEX ON t (b)")
            before, files = content(conn, "t"), relation_files(cluster, conn)
            for paths, after, workers, parts in (
                (["pgsql_tmp"], 0, 0, 0), (["pgsql_tmp"], 5, 0, 0), (["base/"], 8, 0, 0), (["base/"], 20, 0, 0),
                (["pgsql_tmp"], 0, 2, 0), (["pgsql_tmp"], 5, 2, 0), (["pgsql_tmp"], 0, 2, 2), (["base/"], 20, 2, 2),
            ):  # fmt: skip
                conn.execute(f"SET cyclone.debug_btree_parts = {parts}")
                with disk.fault(paths, ["write", "allocate"], "ENOSPC", after=after) as seen:
                    with pytest.raises(psycopg.errors.DiskFull):
                        conn.execute(f"VACUUM (FULL, PARALLEL {workers}) t")
                    assert seen().failed == 1
                assert content(conn, "t") == before
                assert relation_files(cluster, conn).keys() == files.keys()
                assert list((cluster.data / "base" / "pgsql_tmp").glob("*")) == []
            conn.execute("SET cyclone.debug_btree_parts = 0")
            conn.execute("VACUUM (FULL, PARALLEL 0) t")
            assert_as_built_by_core(conn, "t")


def test_an_emptied_table_with_many_wide_indexes(conn):
    """One entry of each takes more than all memory, and there are none."""
    conn.execute("CREATE TABLE t (k text STORAGE PLAIN COLLATE \"C\")")
    conn.execute("INSERT INTO t SELECT repeat('x', 2000) FROM generate_series(1, 10); ANALYZE t; DELETE FROM t")
    for _ in range(40):
        conn.execute("CREATE INDEX ON t (k)")
    conn.execute("SELECT set_config(name, min_val, false) FROM pg_settings WHERE name = 'maintenance_work_mem'")
    conn.execute("VACUUM (FULL, PARALLEL 0) t")
    conn.execute("INSERT INTO t VALUES ('a')")
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize(("text", "memory"), [
    ("'https://example.com/' || md5(i::text)", "64MB"),  # abbreviations are all the same
    ("repeat(md5((i % 10)::text), 30)", "1MB"),  # whose size doesn't show in that of the index
], ids=["no-abbreviations", "no-memory"])  # fmt: skip
def test_a_sort_that_is_given_up(conn, text, memory):
    """The server does it after all, whether there are other indexes or not."""
    for table in ("alone", "beside"):
        conn.execute(f"CREATE TABLE {table} (i int, k text)")
        conn.execute(f"INSERT INTO {table} SELECT i, {text} FROM generate_series(1, 8000) i")
        conn.execute(f"CREATE INDEX ON {table} (k)")
    conn.execute("CREATE INDEX ON beside (i DESC)")
    conn.execute(f"SET maintenance_work_mem = '{memory}'")
    assert not is_sorted_by_us(conn, "alone")
    conn.execute("RESET maintenance_work_mem")
    assert is_sorted_by_us(conn, "alone") == (memory == "1MB"), "what it was given up for isn't what was meant"
    conn.execute(f"SET maintenance_work_mem = '{memory}'")
    for table in ("alone", "beside"):
        conn.execute(f"VACUUM (FULL, PARALLEL 0) {table}")
        assert_as_built_by_core(conn, table)
