"""The scenarios: each is a table in a certain state and the VACUUM it gets. To add one, add it to SCENARIOS."""

from dataclasses import dataclass, field

TABLE = "t"
LARGE = "large"  # by far the largest: bench/large.py

GROUPS = {
    "cases": "One btree, unlogged: the five cases of the pgsql-hackers thread “Batch TIDs lookup in ambulkdelete”",
    "heap": "No index",
    "indexes": "From one index to eight",
    "kinds": "One index that is not a btree, a fifth of the rows deleted here and there",
    "cold": "A table on the device, past the page cache (debug_io_direct = data)",
    "full": "VACUUM FULL",
    "large": "A table larger than memory",
}

_VACUUM = f"VACUUM (VERBOSE, PARALLEL %(workers)s) {TABLE}"
_VACUUM_EACH_PAGE = f"VACUUM (VERBOSE, DISABLE_PAGE_SKIPPING, PARALLEL %(workers)s) {TABLE}"
# In one implicit transaction, so that with wal_level = minimal the rows go unlogged.
_LOAD = f"""
    CREATE TABLE {TABLE} (id bigint, v int) WITH (autovacuum_enabled = off);
    INSERT INTO {TABLE} SELECT i, i FROM generate_series(1, %(rows)s) i
"""
# Keys that each row has, and values that few, some and many rows have
_LOAD_JSONB = f"""
    CREATE TABLE {TABLE} (id bigint, v jsonb) WITH (autovacuum_enabled = off);
    INSERT INTO {TABLE}
    SELECT i, jsonb_build_object('id', i, 'user', (random() * 100000)::int, 'kind', i %% 10, 'tags', jsonb_build_array('t' || i %% 1000))
    FROM generate_series(1, %(rows)s) i
"""
# Ten words a row, of 50,000, some of them in most rows
_LOAD_WORDS = f"""
    CREATE TABLE {TABLE} (id bigint, v tsvector) WITH (autovacuum_enabled = off);
    INSERT INTO {TABLE}
    SELECT i, array_to_tsvector(ARRAY(SELECT DISTINCT 'w' || (power(random(), 4) * 50000 + 0 * i)::int FROM generate_series(1, 10)))
    FROM generate_series(1, %(rows)s) i
"""
_FULL = f"VACUUM (FULL, VERBOSE, PARALLEL %(workers)s) {TABLE}"
_CLEAN = f"VACUUM (FREEZE off, ANALYZE) {TABLE}"
_DELETE_A_TENTH = f"DELETE FROM {TABLE} WHERE id %% 10 = 0"
_DELETE_A_TWENTIETH = f"DELETE FROM {TABLE} WHERE id %% 20 = 0"
_DELETE_A_FIFTH_HERE_AND_THERE = f"DELETE FROM {TABLE} WHERE random() < 0.2"
_PRIMARY_KEY = f"ALTER TABLE {TABLE} ADD PRIMARY KEY (id)"
# Somewhere in a square of 10,000 by 10,000
_POINT = "point(hashint8(id) %% 10000, hashint8(-id) %% 10000)"
_BOX = f"box({_POINT}, {_POINT} + point(id %% 7, id %% 11))"
# Beside the primary key: one with few distinct keys, one in random order, one on text.
_THREE_MORE_INDEXES = (
    f"CREATE INDEX ON {TABLE} ((v %% 1000))",
    f"CREATE INDEX ON {TABLE} (hashint8(id))",
    f"CREATE INDEX ON {TABLE} ((to_hex(v)))",
)
# From the largest to the smallest; the first is as large as the last five together.
_EIGHT_UNEQUAL_INDEXES = (
    f"CREATE INDEX ON {TABLE} (md5(v::text))",
    f"CREATE INDEX ON {TABLE} (hashint8(id))",
    f"CREATE INDEX ON {TABLE} (id)",
    f"CREATE INDEX ON {TABLE} ((v %% 1000))",
    *(f"CREATE INDEX ON {TABLE} (v) WHERE hashint4(v) & {mask} = 0" for mask in (1, 3, 7, 15)),
)
_LOAD_OF_ALL_SORTS = f"""
    CREATE TABLE {TABLE} (id bigint, v int, at timestamp, u uuid, note text) WITH (autovacuum_enabled = off);
    INSERT INTO {TABLE}
    SELECT i, hashint8(i), '2020-01-01'::timestamp + random() * '900 days'::interval, md5(i::text)::uuid, md5((-i)::text)
    FROM generate_series(1, %(rows)s) i
"""
# Beside the primary key; texts in the order of their bytes, as a server may come without ICU
_EIGHT_INDEXES_OF_ALL_SORTS = (
    f"CREATE INDEX ON {TABLE} (v)",
    f"CREATE INDEX ON {TABLE} (at)",
    f"CREATE INDEX ON {TABLE} (u)",
    f'CREATE INDEX ON {TABLE} (note COLLATE "C")',
    f"CREATE INDEX ON {TABLE} (lower(note))",
    f"CREATE INDEX ON {TABLE} (v, at DESC)",
    f"CREATE INDEX ON {TABLE} (at) WHERE v > 0",
)
_TWO_INDEXES = (_PRIMARY_KEY, f"CREATE INDEX ON {TABLE} (v)")
# How many sessions load a table at the same time
_LOADERS = 2
_CREATE_LARGE = f"CREATE %(persistence)s TABLE {TABLE} (id bigint, v int) WITH (autovacuum_enabled = off)"
_LOAD_LARGE = tuple(
    f"INSERT INTO {TABLE} SELECT i, i FROM generate_series(%(rows)s::bigint * {part} / {_LOADERS} + 1, %(rows)s::bigint * {part + 1} / {_LOADERS}) i"
    for part in range(_LOADERS)
)
_EIGHT_NAMED_INDEXES = tuple(
    tuple(f"CREATE INDEX {TABLE}_v_idx{number} ON {TABLE} (v)" for number in range(first, first + _LOADERS)) for first in range(1, 9, _LOADERS)
)
_PAGE = f"(SELECT format('(%%s,0)', pg_relation_size('{TABLE}') / current_setting('block_size')::int * {{}} / {_LOADERS})::tid)"
_DELETE_A_FIFTIETH = tuple(
    f"DELETE FROM {TABLE} WHERE id %% 50 = 0 AND ctid >= {_PAGE.format(part)} AND ctid < {_PAGE.format(part + 1)}" for part in range(_LOADERS)
)
_PAST_THE_PAGE_CACHE = {"debug_io_direct": "data"}
_CREATE_CASE = "CREATE %(persistence)s TABLE {table} (c {type}) WITH (autovacuum_enabled = off); INSERT INTO {table} {rows}"
_INTEGERS = "SELECT generate_series(1, %(rows)s)"
_THOUSAND_KEYS = "SELECT c %% 1000 FROM generate_series(1, %(rows)s) c"
_UUIDS = "SELECT gen_random_uuid() FROM generate_series(1, %(rows)s) c"
# The sub-select makes it a scan of these pages alone.
_DELETE_FIRST_PAGES = (
    f"DELETE FROM {TABLE} WHERE ctid < (SELECT format('(%%s,0)',"
    f" ceil(pg_relation_size('{TABLE}') / current_setting('block_size')::int * 0.3))::tid)"
)


@dataclass(frozen=True)
class Scenario:
    """A table, and the VACUUM that is timed on it."""

    name: str
    group: str  # in GROUPS
    about: str
    rows: int  # at scale 1
    setup: tuple[str | tuple[str, ...], ...]  # statements, those in a tuple at the same time; %(rows)s stands for the number of rows
    vacuum: str = _VACUUM  # %(workers)s stands for the number of workers
    full: bool = False  # VACUUM FULL, for which PostgreSQL's command has no degree: a parameter gives it
    indexes: int = 0
    logged: bool = True
    repeatable: bool = False  # VACUUM leaves the table as it found it, so that all runs can share one copy
    settings: dict = field(default_factory=dict)  # of the server that is timed
    page_cache_dropped: bool = False  # the table's files are not in the page cache when VACUUM begins

    @property
    def is_cold(self) -> bool:
        """Whether the table is read from the device."""
        return self.page_cache_dropped or self.settings == _PAST_THE_PAGE_CACHE

    def setup_statements(self, rows: int) -> list[list[str]]:
        """Return the statements that make the table, with this number of rows: lists of those to run at the same time."""
        variables = {"rows": rows, "persistence": "" if self.logged else "UNLOGGED"}
        steps = ((step,) if isinstance(step, str) else step for step in self.setup)
        return [[statement % variables for statement in step] for step in steps]

    def vacuum_statement(self, workers: int) -> str:
        """Return the statement to time, with this number of parallel workers beside the leader."""
        return self.vacuum % {"workers": workers}


def _five_cases() -> list[Scenario]:
    """Return the scenarios of the five cases: three tenths of the rows deleted, in different ways."""

    def case(number: int, about: str, column_type: str, rows: str, *setup: str) -> Scenario:
        return Scenario(
            name=f"case-{number}",
            group="cases",
            about=about,
            rows=20_000_000,
            setup=("SELECT setseed(0.5)", _CREATE_CASE.format(table=TABLE, type=column_type, rows=rows), *setup),
            indexes=1,
            logged=False,
        )

    index = f"CREATE INDEX ON {TABLE} (c)"
    return [
        case(1, "distinct keys, 30 % deleted together", "int", _INTEGERS, index,
             f"DELETE FROM {TABLE} WHERE c < %(rows)s * 0.3"),
        case(2, "distinct keys, 30 % deleted here and there", "int", _INTEGERS, index,
             f"DELETE FROM {TABLE} WHERE random() < 0.3"),
        case(3, "1000 keys, first 30 % of the pages deleted", "int", _THOUSAND_KEYS, index, _DELETE_FIRST_PAGES),
        case(4, "1000 keys, table in index order, first 30 % of the pages deleted", "int", _THOUSAND_KEYS, index,
             f"CLUSTER {TABLE} USING {TABLE}_c_idx", _DELETE_FIRST_PAGES),
        case(5, "random UUIDs, first 30 % of the pages deleted", "uuid", _UUIDS, index, _DELETE_FIRST_PAGES),
    ]  # fmt: skip


def _kind(name: str, about: str, load: str, index: str) -> Scenario:
    """Return the scenario of a kind of index, every fifth row of whose table is deleted, here and there."""
    setup = ("SELECT setseed(0.5)", load, f"CREATE INDEX ON {TABLE} {index}", _CLEAN, _DELETE_A_FIFTH_HERE_AND_THERE)
    return Scenario(name=f"kind-{name}", group="kinds", about=about, rows=5_000_000, setup=setup, indexes=1)


def _cold(name: str, about: str, indexes: tuple[str, ...], delete: tuple[str, ...], vacuum: str) -> Scenario:
    """Return a scenario in which each page has to come from the device, and what is written go there."""
    setup = (_LOAD, *indexes, _CLEAN, *delete)
    return Scenario(f"cold-{name}", "cold", about, 15_000_000, setup, vacuum, indexes=len(indexes), settings=_PAST_THE_PAGE_CACHE)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        *_five_cases(),
        Scenario(
            name="heap-deleted",
            group="heap",
            about="no index, every tenth row deleted",
            rows=20_000_000,
            setup=(_LOAD, _CLEAN, _DELETE_A_TENTH),
        ),
        Scenario(
            name="heap-clean",
            group="heap",
            about="no index, every page all-visible, none skipped",
            rows=20_000_000,
            setup=(_LOAD, _CLEAN),
            vacuum=_VACUUM_EACH_PAGE,
            repeatable=True,
        ),
        Scenario(
            name="one-index",
            group="indexes",
            about="primary key, every tenth row deleted",
            rows=20_000_000,
            setup=(_LOAD, _PRIMARY_KEY, _CLEAN, _DELETE_A_TENTH),
            indexes=1,
        ),
        Scenario(
            name="eight-unequal",
            group="indexes",
            about="eight indexes from large to small, every twentieth row deleted",
            rows=10_000_000,
            setup=(_LOAD, *_EIGHT_UNEQUAL_INDEXES, _CLEAN, _DELETE_A_TWENTIETH),
            indexes=8,
        ),
        _kind("gist", "GiST index on boxes", _LOAD, f"USING gist ({_BOX})"),
        _kind("spgist", "SP-GiST index on points", _LOAD, f"USING spgist ({_POINT})"),
        _kind("gin-jsonb", "GIN index on jsonb", _LOAD_JSONB, "USING gin (v)"),
        _kind("gin-words", "GIN index on tsvector", _LOAD_WORDS, "USING gin (v)"),
        _kind("hash", "hash index on a number", _LOAD, "USING hash (v)"),
        Scenario(
            name=LARGE,
            group=LARGE,
            about="eight equal indexes, every fiftieth row deleted, nothing of it in the page cache",
            rows=150_000_000,
            setup=(_CREATE_LARGE, _LOAD_LARGE, _CLEAN, *_EIGHT_NAMED_INDEXES, _DELETE_A_FIFTIETH),
            indexes=8,
            logged=False,
            page_cache_dropped=True,
        ),
        _cold("heap", "no index, every page all-visible, none skipped", (), (), _VACUUM_EACH_PAGE),
        _cold("indexes", "two indexes, every twentieth row deleted", _TWO_INDEXES, (_DELETE_A_TWENTIETH,), _VACUUM),
        Scenario(
            name="full-narrow",
            group="full",
            about="two integers, one index, 30 % deleted here and there",
            rows=20_000_000,
            setup=("SELECT setseed(0.5)", _LOAD, f"CREATE INDEX ON {TABLE} (id)", f"DELETE FROM {TABLE} WHERE random() < 0.3"),
            vacuum=_FULL,
            full=True,
            indexes=1,
        ),
        Scenario(
            name="full-indexes",
            group="full",
            about="two integers, primary key and four more indexes, 30 % deleted here and there",
            rows=5_000_000,
            setup=(
                *("SELECT setseed(0.5)", _LOAD, _PRIMARY_KEY, *_THREE_MORE_INDEXES, f"CREATE INDEX ON {TABLE} (v)"),
                f"DELETE FROM {TABLE} WHERE random() < 0.3",
            ),
            vacuum=_FULL,
            full=True,
            indexes=5,
        ),
        Scenario(
            name="full-eight-indexes",
            group="full",
            about="eight indexes: integers, timestamps, uuid, texts, two columns, partial; 30 % deleted here and there",
            rows=3_000_000,
            setup=("SELECT setseed(0.5)", _LOAD_OF_ALL_SORTS, _PRIMARY_KEY, *_EIGHT_INDEXES_OF_ALL_SORTS, f"DELETE FROM {TABLE} WHERE random() < 0.3"),
            vacuum=_FULL,
            full=True,
            indexes=8,
        ),
    )
}
