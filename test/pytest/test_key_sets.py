"""Btrees on random keys are page by page as PostgreSQL's build leaves them: VACUUM FULL's and FULL INPLACE's; REPACK's in test_repack.

CYCLONE_KEY_SETS is how many sets of keys each of them gets, CYCLONE_SEED where chance begins.
"""

import os
import random

import pytest

from cyclone_lab import checks
from test_key_order import MAKE_TYPES, ORDERS, TYPES, assert_as_built_by_core
from test_rewrite import content, run_script

SETS = int(os.environ.get("CYCLONE_KEY_SETS", 5))
FEW = int(os.environ.get("CYCLONE_KEY_SETS", 2))  # without --whole
LEAST_MEMORY = "SELECT set_config(name, min_val, false) FROM pg_settings WHERE name = 'maintenance_work_mem'"
SEED = int(os.environ.get("CYCLONE_SEED", random.randrange(1_000_000)))
# By type: keys that differ late, or are equal without being alike.
NEIGHBOURS = {
    "int2": ["CAST((r * 6 - 3)::int AS int2)"],
    "int4": ["2147483640 + (r * 7)::int", "-2147483647 + (r * 7)::int", "(r * 1000)::int * 65536"],
    "int8": ["9223372036854775800 + (r * 7)::int", "(r * 1000)::int8 << 40"],
    "float4": ["-'NaN'::float4", "((1 + r * 9) * 1.4e-45)::float4", "-((1 + r * 9) * 1.4e-45)::float4", "((r * 2)::int - 1) * '0'::float4"],
    "float8": ["(1 + r * 9) * 5e-324", "-(1 + r * 9) * 5e-324", "((r * 2)::int - 1) * '0'::float8"],
    "timestamptz": ["'2000-01-01'::timestamptz + ((r - 0.5) * 7)::int * '1 microsecond'::interval"],
    "uuid": ["(repeat('0', 31) || (r * 9)::int)::uuid", "((r * 9)::int || repeat('f', 31))::uuid"],
    "macaddr": ["(repeat('a', 11) || (r * 9)::int)::macaddr"],
    "text": ["repeat('x', 8) || i", "repeat('x', 40) || i % 7", "repeat('é', (r * 5)::int)", "chr(9 + (r * 100)::int)"],
    "bytea": ["('\\x0102030405060708' || to_hex(4096 + i % 200))::bytea"],
    "numeric": ["1e40 + i", "(i % 9 + 0.0)::numeric(20, 1)", "(i % 9 + 0.00)::numeric(20, 2)"],
}


def random_table(conn, chance: random.Random, rows: int) -> dict[str, str]:
    """Make table t with columns of random types, each with keys from a pool: of a size from one to many, used evenly or not, some
    null; return the columns with their types."""
    kinds = chance.choices(list(TYPES), k=chance.choice([1, 1, 2, 3, 5, 32]))
    columns = {f"c{number}": kind for number, kind in enumerate(kinds)}
    conn.execute("DROP TABLE IF EXISTS t, pools")
    run_script(conn, "DROP TYPE IF EXISTS extended; CREATE TYPE extended AS ENUM ('sad', 'ok', 'happy')")
    conn.execute(f"CREATE TABLE t (filler int, {', '.join(f'{name} {kind}' for name, kind in columns.items())}) WITH (autovacuum_enabled = off)")
    indexes = [random_index(chance, columns) for _ in range(chance.randint(2, 5))]
    for index in indexes:
        conn.execute(f"CREATE INDEX ON t {index}")
    # a value that comes when there are indexes already
    conn.execute("ALTER TYPE extended ADD VALUE 'so-so' BEFORE 'ok'")
    conn.execute("SELECT setseed(%s)", (chance.random(),))
    keys, places, pools = [], [], []
    for name, kind in columns.items():
        ends, rest = TYPES[kind]
        pool = [f"CAST({value} AS {kind})" for value in ends + [rest] * chance.randint(0, 20) + NEIGHBOURS.get(kind, []) * chance.randint(0, 3)]
        size = chance.choice([1, 2, 30, rows])
        one = f"CASE (random() * {len(pool) - 1})::int {' '.join(f'WHEN {number} THEN {value}' for number, value in enumerate(pool))} END"
        conn.execute(f"CREATE TEMP TABLE pool_{name} AS SELECT i AS place, {one} AS key FROM (SELECT i, random() r FROM generate_series(1, {size}) i) s")
        skew, nulls = chance.choice([1, 4]), chance.choice([0, 0, 0.1, 0.9])
        keys.append(f"pool_{name}.key")
        places.append(f"CASE WHEN random() >= {nulls} THEN 1 + floor(random() ^ {skew} * {size})::int END AS {name}")
        pools.append(f"LEFT JOIN pool_{name} ON pool_{name}.place = row.{name}")
    order = ", ".join(str(2 + number) for number in range(min(3, len(kinds)))) if chance.random() < 0.5 else "1"
    rows_of_places = f"(SELECT i, {', '.join(places)} FROM generate_series(1, {rows}) i) row"
    conn.execute(f"INSERT INTO t SELECT i, {', '.join(keys)} FROM {rows_of_places} {' '.join(pools)} ORDER BY {order}")
    for name in columns:
        conn.execute(f"DROP TABLE pool_{name}")
    return columns


def random_index(chance: random.Random, columns: dict[str, str]) -> str:
    """Return a btree on some of these columns, in any order, perhaps on an expression, partial, or with options."""
    names = chance.sample(list(columns), chance.choice([1, min(2, len(columns)), len(columns)]))
    keys = [f"{name} {chance.choice(ORDERS)}" for name in names]
    if chance.random() < 0.2:
        end = TYPES[columns[names[0]]][0][0]
        keys[0] = f"(coalesce({names[0]}, CAST({end} AS {columns[names[0]]}))) {chance.choice(ORDERS)}"
    elif chance.random() < 0.2:
        keys = keys[:30] + ["(filler % 9)"]
    if chance.random() < 0.2 and columns[names[0]] == "text":
        keys[0] = keys[0].replace(names[0], f'{names[0]} COLLATE "C"', 1) if "coalesce" not in keys[0] else keys[0]
    include = " INCLUDE (filler)" if len(keys) < 32 and chance.random() < 0.1 else ""
    options = chance.choice(["", "", "", " WITH (fillfactor = 100)", " WITH (fillfactor = 20)", " WITH (deduplicate_items = off)"])
    where = chance.choice(["", "", "", " WHERE filler % 5 > 1", f" WHERE {names[-1]} IS NOT NULL", " WHERE filler < 0"])
    return f"({', '.join(keys)}){include}{options}{where}"


def files_of(conn) -> dict[str, int]:
    return dict(conn.execute("SELECT indexrelid::regclass::text, pg_relation_filenode(indexrelid) FROM pg_index WHERE indrelid = 't'::regclass"))


def of_sets(test):
    """Have a test run for each set: with CYCLONE_SEED that of a set that has failed, the first one is that set."""
    sets = [pytest.param(SEED + number, id=f"set-{number}", marks=[pytest.mark.full] * (number >= FEW)) for number in range(SETS)]
    return pytest.mark.parametrize("seed", sets)(test)


def assert_rewritten_as_by_core(conn, seed: int, command: str) -> None:
    """Compare what a command leaves of a set, with memory for all entries or for a few, by one process or with workers."""
    chance = random.Random(seed)
    run_script(conn, MAKE_TYPES)
    columns = random_table(conn, chance, rows=chance.randint(0, 6000))
    conn.execute("DELETE FROM t WHERE random() < 0.3")
    rows = content(conn, "t")
    conn.execute("SET min_parallel_index_scan_size = 0")
    if chance.random() < 0.5:
        conn.execute(LEAST_MEMORY)
    conn.execute(f"{command} (PARALLEL {chance.choice([0, 0, 2])}) t".replace(") (", ", "))
    assert content(conn, "t") == rows
    try:
        assert_as_built_by_core(conn, "t")
    except AssertionError as error:
        raise AssertionError(f"CYCLONE_SEED={seed}: {columns}") from error


@of_sets
def test_vacuum_full(conn, seed):
    assert_rewritten_as_by_core(conn, seed, "VACUUM (FULL)")


@of_sets
def test_full_inplace(conn, seed):
    """Those indexes that it has built anew; whether we build one or leave it to the server."""
    chance = random.Random(seed)
    run_script(conn, MAKE_TYPES)
    columns = random_table(conn, chance, rows=chance.randint(15_000, 25_000))
    conn.execute("CREATE INDEX always ON t (filler DESC)")
    conn.execute("DELETE FROM t WHERE filler % 4 > 0 OR random() < 0.3")
    conn.execute("ALTER TABLE t ADD seen int; UPDATE t SET seen = 1 WHERE filler % 8 = 0")
    rows, before = content(conn, "t"), files_of(conn)
    if chance.random() < 0.5:
        conn.execute(LEAST_MEMORY)
    conn.execute("VACUUM (FULL INPLACE) t")
    assert content(conn, "t") == rows
    checks.assert_clean(conn, "t")
    anew = [name for name, file in files_of(conn).items() if file != before[name]]
    assert "always" in anew
    try:
        assert_as_built_by_core(conn, "t", anew)
    except AssertionError as error:
        raise AssertionError(f"CYCLONE_SEED={seed}: {columns}") from error
