"""The proof that a table is sound after a VACUUM: PostgreSQL's own checkers, and the one rule of VACUUM they do not cover.

That rule: no index entry may point at a heap line pointer that VACUUM has freed. All checks look at the table with its
TOAST table, or at every partition of a partitioned one; they need a database with `EXTENSIONS` and a quiet table.
"""

import psycopg
from psycopg.rows import dict_row

from cyclone_lab import gin, tids

EXTENSIONS = ("amcheck", "pageinspect", "pg_freespacemap", "pg_visibility", "pgstattuple")


def create_extensions(conn: psycopg.Connection) -> None:
    """Create the extensions that the checks call in the connection's database."""
    for name in EXTENSIONS:
        conn.execute(f"CREATE EXTENSION IF NOT EXISTS {name}")


def heaps(conn: psycopg.Connection, table: str) -> list[str]:
    """Return the names of the relations that hold the table's rows: itself or its partitions, and their TOAST tables."""
    rows = conn.execute(
        """
        WITH leaf AS (
            SELECT relid AS oid FROM pg_partition_tree(%(table)s::regclass) WHERE isleaf
            UNION SELECT %(table)s::regclass
        )
        SELECT heap.oid::regclass::text
        FROM pg_class leaf_class
        JOIN leaf USING (oid)
        JOIN pg_class heap ON heap.oid IN (leaf_class.oid, leaf_class.reltoastrelid)
        WHERE heap.relkind IN ('r', 'm', 't')
        ORDER BY heap.relkind = 't', heap.oid
        """,
        {"table": table},
    )
    return [name for (name,) in rows]


def assert_clean(conn: psycopg.Connection, *tables: str) -> None:
    """Run every check on each table; raise AssertionError with all that is wrong."""
    problems = [
        f"{heap}: {problem}"
        for table in tables
        for heap in heaps(conn, table)
        for problem in [
            *heap_corruption(conn, heap),
            *btree_corruption(conn, heap),
            *visibility_map_errors(conn, heap),
            *dangling_index_entries(conn, heap),
        ]
    ]
    assert not problems, f"{len(problems)} problems, the first ones:\n" + "\n".join(problems[:20])


def heap_corruption(conn: psycopg.Connection, heap: str) -> list[str]:
    """Return what amcheck's verify_heapam finds wrong, a line each."""
    rows = conn.execute("SELECT blkno, offnum, attnum, msg FROM verify_heapam(%s)", (heap,))
    return [f"heap block {block}, offset {offset}, attribute {column}: {text}" for block, offset, column, text in rows]


def btree_corruption(conn: psycopg.Connection, heap: str, *, beside_writers: bool = False) -> list[str]:
    """Return what amcheck finds wrong with each btree of the heap: order, uniqueness, missing heap rows, parent links.

    On a standby the parent links go unchecked, as the lock for that cannot be had there; and with `beside_writers`, such as
    prepared transactions, who would have to wait, or be waited for.
    """
    [(in_recovery,)] = conn.execute("SELECT pg_is_in_recovery()")
    if in_recovery or beside_writers:
        check = "bt_index_check(%s, heapallindexed => true, checkunique => true)"
    else:
        check = "bt_index_parent_check(%s, heapallindexed => true, rootdescend => true, checkunique => true)"
    problems = []
    for index in indexes_of(conn, heap, "btree"):
        try:
            conn.execute(f"SELECT {check}", (index,))
        except psycopg.InternalError as error:
            problems.append(f"index {index}: {error}")
    return problems


def visibility_map_errors(conn: psycopg.Connection, heap: str) -> list[str]:
    """Return the tuples that contradict the all-visible or all-frozen bit of their page."""
    rows = conn.execute(
        """
        SELECT 'not visible to all on an all-visible page', t_ctid::text FROM pg_check_visible(%(heap)s::regclass)
        UNION ALL SELECT 'not frozen on an all-frozen page', t_ctid::text FROM pg_check_frozen(%(heap)s::regclass)
        """,
        {"heap": heap},
    )
    return [f"tuple {tid} is {problem}" for problem, tid in rows]


def index_entries(conn: psycopg.Connection, index: str, method: str) -> list[tuple[int, str]]:
    """Return the block and the TID of each entry of an index, in order."""
    return sorted((block, tid) for block, _, tid in tids.entries(conn, index, method))


def dangling_index_entries(conn: psycopg.Connection, heap: str, *, between_passes: bool = False) -> list[str]:
    """Return the entries of the heap's btree, hash, GiST, SP-GiST and GIN indexes that lead to no root of a row version: to a
    line pointer that is unused, dead or heap-only, or beyond the end of the heap.

    With `between_passes`, as after a VACUUM that was interrupted, they may lead to dead ones. What a crash has left of a GIN index,
    so that nothing leads there, is passed over, as by VACUUM.
    """
    indexes = [(index, method) for method in tids.METHODS for index in indexes_of(conn, heap, method)]
    if not indexes:
        return []
    roots = tids.Roots(conn, heap, between_passes)  # before the entries, which a VACUUM that somebody else runs removes first
    return [
        f"index {index}, block {block}, item {item} dangles: {tid}"
        for index, method in indexes
        for block, item, tid in _reached(conn, index, method, list(tids.entries(conn, index, method, roots)))
    ]


def _reached(conn: psycopg.Connection, index: str, method: str, entries: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return those of an index's entries to which its keys lead. Those of a GIN posting tree have no item."""
    if method != "gin" or all(item for _, item, _ in entries):
        return entries
    leaves = gin.leaves_of_trees(gin.read_pages(conn, index))
    return [entry for entry in entries if entry[1] or entry[0] in leaves]


def free_space_errors(conn: psycopg.Connection, heap: str) -> list[str]:
    """Return the pages of which the free space map promises more than they have, and those beyond the heap's end that it has.

    It is exact only after a VACUUM (DISABLE_PAGE_SKIPPING, INDEX_CLEANUP on) with nobody else at work.
    """
    rows = conn.execute(
        """
        WITH size AS (SELECT pg_relation_size(%(heap)s::regclass) / current_setting('block_size')::int AS blocks),
        page AS (
            SELECT block, CASE WHEN upper = 0 THEN current_setting('block_size')::int ELSE upper - lower END AS room
            FROM size, generate_series(0, blocks - 1) block, page_header(get_raw_page(%(heap)s::text, block))
            UNION ALL SELECT block, 0 FROM size, generate_series(blocks, blocks + 1000) block
        )
        SELECT block, pg_freespace(%(heap)s::regclass, block), room FROM page
        WHERE pg_freespace(%(heap)s::regclass, block) > room
        """,
        {"heap": heap},
    )
    return [f"block {block} has {room} bytes free, and {promised} by the map" for block, promised, room in rows]


# Conditions that all rows meet, and that only an index of this kind can look for; {0} is the column.
_IN_BOX = "{0} <@ box '(-1e9,-1e9),(1e9,1e9)'"
_ALL_BY = {"gin": "{0} @> '{{}}'", "gist": _IN_BOX, "spgist": _IN_BOX}
# The values to look for one by one: all, or those at the ends, which a summary that is too narrow leaves out.
_VALUES_BY = {
    "hash": "SELECT DISTINCT {0} FROM {1}",
    "brin": "(SELECT DISTINCT {0} FROM {1} ORDER BY 1 LIMIT 10) UNION (SELECT DISTINCT {0} FROM {1} ORDER BY 1 DESC LIMIT 10)",
}
_INDEX_SCANS = ("indexscan", "indexonlyscan", "bitmapscan")
_OTHER_WAYS = ("seqscan", "sort", "incremental_sort", "hashagg", "hashjoin", "mergejoin", "tidscan")


def index_scan_errors(conn: psycopg.Connection, heap: str, *, but: tuple[str, ...] = ()) -> list[str]:
    """Return the indexes of the heap, but of some kinds, by which other rows are found than by a sequential scan, in one
    snapshot.

    Needs one index of a kind for a column or expression, with columns of type int[] for GIN, point for GiST and SP-GiST and int for hash and
    BRIN. Within a transaction that the caller has opened, REPEATABLE READ makes it right beside writers.
    """
    problems = []
    found = "SELECT count(*), sum(hashtextextended(ctid::text, 0))"
    with conn.transaction():
        for method in sorted({"btree", *_VALUES_BY, *_ALL_BY} - set(but)):
            for index in indexes_of(conn, heap, method):
                [(column, predicate)] = conn.execute(
                    "SELECT pg_get_indexdef(indexrelid, 1, true), pg_get_expr(indpred, indrelid) FROM pg_index"
                    " WHERE indexrelid = %s::regclass",
                    (index,),
                )
                forbid_index_scans(conn)
                if method == "btree":
                    where = f" WHERE {predicate}" if predicate else ""
                    query = f"{found} FROM (SELECT ctid FROM {heap}{where} ORDER BY {column} OFFSET 0) x"
                elif method in _ALL_BY:
                    where = f" WHERE {_ALL_BY[method].format(column)}"
                    query = f"{found} FROM {heap}{where}"
                else:
                    values = conn.execute(_VALUES_BY[method].format(column, heap), prepare=False).fetchall()
                    array = f"'{{{','.join(str(value) for (value,) in values)}}}'::int[]"
                    where = f" WHERE {column} = ANY ({array})"
                    query = f"{found} FROM (SELECT t.ctid FROM unnest({array}) value JOIN {heap} t ON t.{column} = value) x"
                expected = conn.execute(f"{found} FROM {heap}{where}", prepare=False).fetchone()
                allow_only_index_scans(conn)
                plan = "\n".join(line for (line,) in conn.execute(f"EXPLAIN {query}", prepare=False))
                assert index.split(".")[-1] in plan, f"no scan of {index}:\n{plan}"
                if (result := conn.execute(query, prepare=False).fetchone()) != expected:
                    problems.append(f"by index {index}: {result}, by a sequential scan: {expected}")
        _set_planner(conn, on=_OTHER_WAYS)
    return problems


def forbid_index_scans(conn: psycopg.Connection) -> None:
    """Have the planner use no index, until the transaction's end."""
    _set_planner(conn, on=_OTHER_WAYS, off=_INDEX_SCANS)


def allow_only_index_scans(conn: psycopg.Connection) -> None:
    """Have the planner use an index wherever it can, until the transaction's end."""
    _set_planner(conn, on=_INDEX_SCANS, off=_OTHER_WAYS)


def _set_planner(conn: psycopg.Connection, *, on: tuple[str, ...], off: tuple[str, ...] = ()) -> None:
    """Let the planner use some methods and not others, until the transaction's end."""
    settings = {**dict.fromkeys(on, "on"), **dict.fromkeys(off, "off")}
    conn.execute("; ".join(f"SET LOCAL enable_{method} = {value}" for method, value in settings.items()))


def indexes_of(conn: psycopg.Connection, heap: str, method: str) -> list[str]:
    """Return the names of the heap's valid indexes of this access method."""
    rows = conn.execute(
        """
        SELECT index.oid::regclass::text
        FROM pg_index
        JOIN pg_class index ON index.oid = indexrelid
        JOIN pg_am ON pg_am.oid = index.relam
        WHERE indrelid = %s::regclass AND indisvalid AND amname = %s AND index.relkind = 'i'
        ORDER BY index.oid
        """,
        (heap, method),
    )
    return [name for (name,) in rows]


def same_rows(state: dict, other: dict) -> bool:
    """Tell whether two states of tables have the same rows."""
    return (state["rows"], state["content_hash"]) == (other["rows"], other["content_hash"])


def assert_vacuumed(conn: psycopg.Connection, table: str = "t", before: dict | None = None) -> dict:
    """The table is clean, nothing in it is dead, and it has the rows that it had; return its state."""
    after = table_state(conn, table)
    assert after["dead_items"] == after["dead_tuples"] == 0
    assert before is None or same_rows(after, before)
    assert_clean(conn, table)
    return after


def table_state(conn: psycopg.Connection, table: str) -> dict:
    """Return what a VACUUM changes or must keep, by name, to compare two tables or a table before and after.

    rows, content_hash                                   the visible rows, in any order
    dead_items, dead_tuples                              LP_DEAD line pointers, and tuples no one needs but still there
    all_visible, all_frozen                              pages, by the visibility map
    free_space                                           bytes, by the free space map
    relpages, reltuples, relallvisible, relallfrozen     as in pg_class; the last is None before PostgreSQL 18
    relfrozenxid_age, relminmxid_age                     transactions, multixacts
    """
    # a TOAST table has no row type
    [(kind,)] = conn.execute("SELECT relkind FROM pg_class WHERE oid = %s::regclass", (table,))
    row = "(chunk_id, chunk_seq, chunk_data)" if kind == "t" else "t"
    query = f"""
        SELECT rows, content_hash, dead_items, dead_tuple_count AS dead_tuples, all_visible, all_frozen, map.free_space,
               relpages, reltuples, relallvisible, (to_jsonb(class) ->> 'relallfrozen')::int AS relallfrozen,
               age(relfrozenxid) AS relfrozenxid_age, mxid_age(relminmxid) AS relminmxid_age
        FROM pg_class class,
             (SELECT count(*) AS rows, sum(hashtextextended({row}::text, 0)) AS content_hash FROM {table} t) content,
             (SELECT count(*) FILTER (WHERE lp_flags = 3) AS dead_items
              FROM generate_series(0, pg_relation_size(%(table)s::regclass) / current_setting('block_size')::int - 1) block,
                   heap_page_items(get_raw_page(%(table)s::text, block))) items,
             pgstattuple(%(table)s::regclass),
             pg_visibility_map_summary(%(table)s::regclass),
             (SELECT coalesce(sum(avail), 0)::bigint AS free_space FROM pg_freespace(%(table)s::regclass)) map
        WHERE class.oid = %(table)s::regclass
    """
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, {"table": table}).fetchone()
