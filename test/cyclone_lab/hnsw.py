"""The graph in an HNSW index of pgvector, read byte by byte, and what is wrong with it.

numpy is imported where it is needed, as in tids.py.
"""

from typing import TYPE_CHECKING, NamedTuple

import psycopg

from cyclone_lab import tids

if TYPE_CHECKING:
    import numpy as np

OFFSET_BITS = 16
ELEMENT, LIST = 1, 2
LEVEL_AT, DELETED_AT, VERSION_AT, ROWS_AT, LIST_AT = 1, 2, 3, 4, 64
ROWS, TID_SIZE, LINKS_AT = 10, 6, 4
META_AT = 24  # of the metapage


class Graph(NamedTuple):
    """Elements by their place (block << 16 | offset), in order, and what each leads to on all layers: `source` is its number, `target` a
    place, and `ground` says which links are of layer 0, and followed: none is that comes after a free place."""

    place: "np.ndarray"
    level: "np.ndarray"
    deleted: "np.ndarray"
    rows: list[list[tuple[int, int]]]
    source: "np.ndarray"
    target: "np.ndarray"
    ground: "np.ndarray"
    versions_differ: int
    entry: int | None

    def numbers(self, places) -> "np.ndarray":
        """Return the number of the element at each of these places, -1 where there is none."""
        import numpy as np

        number = np.minimum(np.searchsorted(self.place, places), max(len(self.place) - 1, 0))
        return np.where(self.place[number] == places, number, -1) if len(self.place) else np.full(len(places), -1)

    def live(self) -> "np.ndarray":
        import numpy as np

        return np.array([bool(rows) for rows in self.rows], bool) & ~self.deleted

    def unreachable(self) -> list[int]:
        """Return the places of live elements to which no links of layer 0 lead from the entry point."""
        import numpy as np

        live = self.live()
        if self.entry is None:
            return self.place[live].tolist()
        reached = np.zeros(len(self.place), bool)
        frontier = self.numbers([self.entry])
        reached[frontier] = True
        source, target = self.source[self.ground], self.numbers(self.target[self.ground])
        while len(frontier):
            is_next = np.zeros(len(self.place), bool)
            is_next[target[np.isin(source, frontier) & (target >= 0)]] = True
            frontier = np.flatnonzero(is_next & ~reached)
            reached[frontier] = True
        return self.place[live & ~reached].tolist()


def read(conn: psycopg.Connection, index: str) -> Graph:
    """Read the graph; slots of deleted elements are among its elements."""
    import numpy as np

    elements, lists, rows, meta = [], {}, [], None
    for first, pages in tids.read(conn, index):
        if first == 0:
            meta = pages.bytes[META_AT : META_AT + 32].view("<u4")
        items = pages.items((pages.upper > 0) & (first + np.arange(len(pages.start)) > 0))
        kind = pages.bytes[items.at]
        which = np.flatnonzero(kind == ELEMENT)
        at = items.at[which]
        place = (first + items.page[which]) << OFFSET_BITS | items.number[which]
        columns = [pages.bytes[at + offset].astype(int) for offset in (LEVEL_AT, DELETED_AT, VERSION_AT)]
        list_place = pages.tid_block(at + LIST_AT) << OFFSET_BITS | pages.short(at + LIST_AT + 4)
        elements.append(np.stack([place, *columns, list_place]))
        row_at = at[:, None] + ROWS_AT + TID_SIZE * np.arange(ROWS)
        blocks, offsets = pages.tid_block(row_at), pages.short(row_at + 4)
        for block, offset in zip(blocks.tolist(), offsets.tolist(), strict=True):
            count = offset.index(0) if 0 in offset else ROWS
            rows.append(list(zip(block[:count], offset[:count], strict=True)))
        for number in np.flatnonzero(kind == LIST):
            start = items.at[number]
            links = start + LINKS_AT + TID_SIZE * np.arange(pages.short(start + 2))
            where = int(first + items.page[number]) << OFFSET_BITS | int(items.number[number])
            lists[where] = int(pages.bytes[start + 1]), pages.tid_block(links) << OFFSET_BITS | pages.short(links + 4)
    place, level, deleted, version, list_place = np.concatenate(elements, axis=1)
    m = int(meta[3]) & 0xFFFF
    source, target, ground, differ = [], [], [], 0
    for number, where in enumerate(list_place.tolist()):
        list_version, links = lists[where]
        differ += list_version != version[number] or len(links) != (level[number] + 2) * m
        valid = links & (1 << OFFSET_BITS) - 1 != 0
        on_ground = np.arange(len(links)) >= len(links) - 2 * m
        source.append(np.full(valid.sum(), number))
        target.append(links[valid])
        ground.append((on_ground & np.logical_and.accumulate(valid | ~on_ground))[valid])
    has_entry = int(meta[4]) != 0xFFFFFFFF
    return Graph(
        place,
        level,
        deleted > 0,
        rows,
        *(np.concatenate(parts) if parts else np.zeros(0, int) for parts in (source, target)),
        np.concatenate(ground).astype(bool) if ground else np.zeros(0, bool),
        differ,
        int(meta[4]) << OFFSET_BITS | int(meta[5]) & 0xFFFF if has_entry else None,
    )


def problems(conn: psycopg.Connection, table: str, index: str, *, reachable: bool = True) -> list[str]:
    """Return what is wrong with a quiet table's index after a VACUUM that has done all its work: a live row that isn't in it, or twice; a
    row in it that is gone; and what is wrong with its graph. There may be no HOT updates."""
    graph = read(conn, index)
    indexed = [row for rows in graph.rows for row in rows]
    column = conn.execute("SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 1", (index,)).fetchone()[0]
    there = [tuple(map(int, tid.strip("()").split(","))) for (tid,) in conn.execute(f"SELECT ctid::text FROM {table} WHERE {column} IS NOT NULL")]
    found = [f"row {row} isn't in the index" for row in sorted(set(there) - set(indexed))[:5]]
    found += [f"row {row} is in the index, and gone" for row in sorted(set(indexed) - set(there))[:5]]
    return found + graph_problems(graph, reachable=reachable)


def graph_problems(graph: Graph, *, reachable: bool = True) -> list[str]:
    """Return what is wrong with a graph after a VACUUM that has done all its work: a row that is there twice; links to what isn't a live
    element; elements that nothing leads to; an entry point that isn't the highest."""
    import numpy as np

    found = []
    live = graph.live()
    indexed = [row for rows in graph.rows for row in rows]
    found += [f"{len(indexed) - len(set(indexed))} rows are in it twice"] * (len(indexed) != len(set(indexed)))
    target = graph.numbers(graph.target)
    leads_to_live = (target >= 0) & live[target]
    wrong = live[graph.source] & ~leads_to_live
    found += [f"{wrong.sum()} links of live elements lead to no live one"] * bool(wrong.any())
    loops = live[graph.source] & (target == graph.source)
    found += [f"{loops.sum()} elements lead to themselves"] * bool(loops.any())
    pairs = np.stack([graph.source, graph.target, graph.ground])[:, live[graph.source] & graph.ground]
    doubled = pairs.shape[1] - np.unique(pairs, axis=1).shape[1]
    found += [f"{doubled} links are there twice"] * bool(doubled)
    unfinished = ~live & ~graph.deleted
    found += [f"{unfinished.sum()} elements without rows aren't marked deleted"] * bool(unfinished.any())
    found += [f"{graph.versions_differ} lists aren't their elements'"] * bool(graph.versions_differ)
    if live.any():
        entry = graph.numbers([graph.entry if graph.entry is not None else -1])[0]
        found += ["the entry point is no live element"] * bool(entry < 0 or not live[entry])
        found += ["the entry point isn't the highest"] * bool(entry >= 0 and graph.level[entry] < graph.level[live].max())
    else:
        found += ["an empty index has an entry point"] * (graph.entry is not None)
    if reachable and (lost := graph.unreachable()):
        found.append(f"{len(lost)} elements can't be reached")
    return found


def errors_before_vacuum(conn: psycopg.Connection, heap: str, index: str) -> list[str]:
    """Return what may not be in an index even after a VACUUM that was interrupted: links of live elements to a place that is free, or to
    none; rows in it twice, or of line pointers that are free."""
    import numpy as np

    roots = tids.Roots(conn, heap, between_passes=True)
    graph = read(conn, index)
    target = graph.numbers(graph.target)
    wrong = graph.live()[graph.source] & ((target < 0) | graph.deleted[target])
    found = [f"index {index}: {wrong.sum()} links of live elements lead nowhere"] * bool(wrong.any())
    rows = np.array([(*divmod(int(place), 1 << OFFSET_BITS), *row) for place, rows in zip(graph.place, graph.rows, strict=True) for row in rows])
    if len(rows):
        missing = roots.missing(tids.Entries(*rows.T))
        found += [f"index {index}: {len(missing.block)} rows are gone"] * bool(len(missing.block))
        found += [f"index {index}: {len(rows) - len(np.unique(rows[:, 2:], axis=0))} rows are in it twice"] * (len(rows) > len(np.unique(rows[:, 2:], axis=0)))
    return found


def search_errors(conn: psycopg.Connection, heap: str, index: str, *, all_found: bool) -> list[str]:
    """Return what an iterative search for everything finds twice, or beyond what a sequential scan does; with `all_found` also what it
    doesn't find."""
    [(key,)] = conn.execute("SELECT pg_get_indexdef(%s::regclass, 1, true)", (index,))
    query = f"SELECT ctid::text FROM {heap} ORDER BY {key} <-> (SELECT {key} FROM {heap} LIMIT 1)"
    settings = {"ef_search": 1000, "iterative_scan": "relaxed_order", "max_scan_tuples": 2_000_000_000, "scan_mem_multiplier": 1000}
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET LOCAL enable_indexscan = off")
        expected = {tid for (tid,) in conn.execute(query, prepare=False)}
        conn.execute("SET LOCAL enable_indexscan = on; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
        for name, value in settings.items():
            conn.execute(f"SET LOCAL hnsw.{name} = {value}")
        plan = "\n".join(line for (line,) in conn.execute(f"EXPLAIN {query}", prepare=False))
        assert index in plan, plan
        found = [tid for (tid,) in conn.execute(query, prepare=False)]
    lost = len(expected - set(found)) * all_found
    return [
        f"index {index}: a search finds {number} rows {what}"
        for number, what in ((len(found) - len(set(found)), "twice"), (len(set(found) - expected), "that aren't there"), (lost, "too few"))
        if number
    ]
