"""Where the entries of a table's indexes lead, read byte by byte: thousands of pages in one go, as to look at each entry in SQL, or in a
loop, takes many times as long.

numpy is imported where it is needed, as it starts threads, with which there is no small disk.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from cyclone_lab import gin

if TYPE_CHECKING:
    import numpy as np

PAGES_AT_ONCE, HEAP_PAGES_AT_ONCE = 1000, 20000
COPY_HEADER_SIZE, COPY_ROW_HEADER_SIZE, COPY_END_SIZE = 19, 6, 2
HEADER_SIZE, LINE_POINTER_SIZE = gin.HEADER_SIZE, 4
BTREE_LEAF, BTREE_NO_ENTRIES = 1, 4 | 8  # deleted pages, and the meta page
ALT_TID, IS_POSTING, POSTING_COUNT = 0x2000, 0x2000, 0x0FFF
HASH_ENTRIES = 1 | 2  # of overflow pages and buckets
GIST_LEAF, GIST_DELETED = 1, 2
SPGIST_LEAF, SPGIST_STATE, SPGIST_LIVE, SPGIST_TID = 4, 3, 0, 6


class Items(NamedTuple):
    """Tuples of an index: the page of each among those that were read, its number there, and where it is, from the first page on."""

    page: "np.ndarray"
    number: "np.ndarray"
    at: "np.ndarray"


class Entries(NamedTuple):
    """Entries of an index: the page of each among those that were read, its item there, and the TID that it leads to."""

    page: "np.ndarray"
    item: "np.ndarray"
    block: "np.ndarray"
    offset: "np.ndarray"


class Pages:
    """Some pages of a relation, one behind the other."""

    def __init__(self, copied: bytes, size: int):
        """Take pages of this size out of what a binary COPY of one column has sent."""
        import numpy as np

        rows = np.frombuffer(copied, np.uint8)[COPY_HEADER_SIZE:-COPY_END_SIZE].reshape(-1, COPY_ROW_HEADER_SIZE + size)
        self.size = size
        self.bytes = rows[:, COPY_ROW_HEADER_SIZE:].reshape(-1)
        self.words = self.bytes.view("<u4")
        self.start = np.arange(0, len(self.bytes), size)
        self.lower, self.upper, special = (self.short(self.start + at) for at in (12, 14, 16))
        self.special = self.start + special

    def short(self, at) -> "np.ndarray":
        """Return the numbers of two bytes at these places."""
        return self.bytes[at].astype(int) | self.bytes[at + 1].astype(int) << 8

    def tid_block(self, at) -> "np.ndarray":
        """Return the block of the TIDs at these places; what follows it is the offset."""
        return self.short(at) << 16 | self.short(at + 2)

    def items(self, which, first=0) -> Items:
        """Return the tuples of those pages that `which` says, from the number `first` on (0 or 1), which may differ by page."""
        import numpy as np

        most = (self.size - HEADER_SIZE) // LINE_POINTER_SIZE
        count = np.where(which, np.clip((self.lower - HEADER_SIZE) // LINE_POINTER_SIZE, 0, most), 0)
        page, number = _runs(count)
        pointer = self.words[(self.start[page] + HEADER_SIZE) // LINE_POINTER_SIZE + number].astype(int)
        items = Items(page, number + 1, self.start[page] + (pointer & 0x7FFF))
        return _those(items, number >= np.broadcast_to(first, count.shape)[page])


class Roots:
    """The line pointers of a heap that an index entry may point at: normal ones that are not heap-only, and redirects; dead ones before the
    second pass over the heap. The server lists them."""

    def __init__(self, conn: psycopg.Connection, heap: str, between_passes: bool):
        import numpy as np

        self._blocks, _ = _size(conn, heap)
        found = [np.zeros(0, ">i8")]
        for block in range(0, self._blocks, HEAP_PAGES_AT_ONCE):
            rows = conn.cursor(binary=True).execute(
                f"""
                SELECT string_agg(int8send(block << {gin.OFFSET_BITS} | lp), '')
                FROM generate_series(%s::bigint, %s::bigint) block, heap_page_items(get_raw_page(%s::text, block))
                WHERE lp_flags = 2 OR lp_flags = 1 AND t_infomask2 & 32768 = 0 OR lp_flags = 3 AND %s
                """,
                (block, min(block + HEAP_PAGES_AT_ONCE, self._blocks) - 1, heap, between_passes),
            )
            found.append(np.frombuffer(rows.fetchone()[0] or b"", ">i8"))
        places = np.concatenate(found).astype(int)
        blocks, offsets = places >> gin.OFFSET_BITS, places & (1 << gin.OFFSET_BITS) - 1
        self._offsets = int(offsets.max(initial=0)) + 1
        self._are = np.zeros(self._blocks * self._offsets, bool)
        self._are[blocks * self._offsets + offsets] = True

    def missing(self, entries: Entries) -> Entries:
        """Return those entries that lead to none of them."""
        import numpy as np

        inside = (entries.block < self._blocks) & (entries.offset < self._offsets)
        place = np.where(inside, entries.block * self._offsets + entries.offset, 0)
        return _those(entries, ~(self._are[place] & inside) if len(self._are) else ~inside)


def read(conn: psycopg.Connection, relation: str, first: int = 0) -> Iterator[tuple[int, Pages]]:
    """Yield the pages of a relation from the block `first` on, some at a time, with the number of the first of these."""
    blocks, size = _size(conn, relation)
    for block in range(first, blocks, PAGES_AT_ONCE):
        query = "COPY (SELECT get_raw_page(%s, block) FROM generate_series(%s::bigint, %s::bigint) block) TO STDOUT (FORMAT binary)"
        with conn.cursor().copy(query, (relation, block, min(block + PAGES_AT_ONCE, blocks) - 1)) as copy:
            data = b"".join(copy)
        yield block, Pages(data, size)


def entries(conn: psycopg.Connection, index: str, method: str, roots: Roots | None = None) -> Iterator[tuple[int, int, str]]:
    """Yield block, item and TID of each entry of an index; given the roots of its heap, of those that lead to none of them."""
    for first, pages in read(conn, index, _FIRST_BLOCK[method]):
        found = _ENTRIES[method](pages)
        found = roots.missing(found) if roots else found
        for page, item, block, offset in zip(*(values.tolist() for values in found), strict=True):
            yield first + page, item, f"({block},{offset})"


def _size(conn: psycopg.Connection, relation: str) -> tuple[int, int]:
    """Return how many blocks a relation has, and how large they are."""
    query = "SELECT pg_relation_size(%s::regclass) / size, size FROM (SELECT current_setting('block_size')::int AS size) x"
    return conn.execute(query, (relation,)).fetchone()


def _runs(count) -> tuple["np.ndarray", "np.ndarray"]:
    """Return for runs of so many each the run's number, over and over, and 0, 1, 2 ... in it."""
    import numpy as np

    run = np.repeat(np.arange(len(count)), count)
    return run, np.arange(len(run)) - np.repeat(np.cumsum(count) - count, count)


def _those(values, which):
    """Return a named tuple of arrays with those elements that `which` says."""
    return type(values)(*(value[which] for value in values))


def _by_tid(pages: Pages, items: Items, tid: int = 0) -> Entries:
    """Return the entries of items that have a TID each, so many bytes after the begin of the tuple."""
    return Entries(items.page, items.number, pages.tid_block(items.at + tid), pages.short(items.at + tid + 4))


def _flags(pages: Pages, at: int):
    """Return the flags of each page's special space; none of one that was never initialized."""
    import numpy as np

    return np.where(pages.upper > 0, pages.short(np.where(pages.upper > 0, pages.special + at, 0)), 0)


def _btree_entries(pages: Pages) -> Entries:
    """Of leaves all but the high key, which the rightmost has not; posting lists are taken apart."""
    import numpy as np

    flags = _flags(pages, 12)
    is_leaf = (flags & BTREE_LEAF > 0) & (flags & BTREE_NO_ENTRIES == 0)
    next_at = np.where(is_leaf, pages.special + 4, 0)
    items = pages.items(is_leaf, first=(pages.tid_block(next_at) != 0).astype(int))
    entries = _by_tid(pages, items)
    is_posting = (pages.short(items.at + 6) & ALT_TID > 0) & (entries.offset & IS_POSTING > 0)
    lists = _those(entries, is_posting)
    run, number = _runs(lists.offset & POSTING_COUNT)
    # of a list the block is how far it is from the begin of the tuple, with the higher half first
    at = (items.at[is_posting] + lists.block)[run] + 6 * number
    posted = Entries(lists.page[run], lists.item[run], pages.tid_block(at), pages.short(at + 4))
    return Entries(*(np.concatenate(both) for both in zip(_those(entries, ~is_posting), posted, strict=True)))


def _hash_entries(pages: Pages) -> Entries:
    return _by_tid(pages, pages.items(_flags(pages, 12) & HASH_ENTRIES > 0))


def _gist_entries(pages: Pages) -> Entries:
    flags = _flags(pages, 12)
    return _by_tid(pages, pages.items((flags & GIST_LEAF > 0) & (flags & GIST_DELETED == 0)))


def _spgist_entries(pages: Pages) -> Entries:
    """Of tuples on leaf pages those that are live."""
    items = pages.items(_flags(pages, 0) & SPGIST_LEAF > 0)
    items = _those(items, pages.bytes[items.at] & SPGIST_STATE == SPGIST_LIVE)
    return _by_tid(pages, items, SPGIST_TID)


def _gin_entries(pages: Pages) -> Entries:
    """Of leaves of the entry tree and of posting trees. The pending list is left out."""
    import numpy as np

    flags = _flags(pages, 6)
    is_leaf = (flags & gin.LEAF > 0) & (flags & (gin.DELETED | gin.META | gin.LIST) == 0)
    items = pages.items(is_leaf & (flags & gin.DATA == 0))
    length = pages.short(items.at + 4)  # of a tuple's list; what would be the block is where it is
    has_list = (length > 0) & (length < gin.POSTING_TREE)
    items, length = _those(items, has_list), length[has_list]
    at = items.at + (pages.tid_block(items.at) & 0x7FFFFFFF)
    # of a posting tree's page there are lists one behind the other, and no items
    trees = [(page, place) for page in np.flatnonzero(is_leaf & (flags & gin.DATA > 0)) for place in _lists_of_tree(pages, page)]
    page = np.append(items.page, [page for page, _ in trees]).astype(int)
    item = np.append(items.number, [0] * len(trees)).astype(int)
    at = np.append(at, [place for _, place in trees]).astype(int)
    which, place = _decoded(pages, at)
    assert (np.bincount(which, minlength=len(at))[: len(length)] == length).all(), "a list of a GIN index is longer or shorter than it says"
    return Entries(page[which], item[which], place >> gin.OFFSET_BITS, place & (1 << gin.OFFSET_BITS) - 1)


def _lists_of_tree(pages: Pages, page: int) -> Iterator[int]:
    """Yield where the compressed lists of a leaf of a posting tree begin."""
    at, end = pages.start[page] + gin.POSTING_TREE_PAGE_START, pages.start[page] + pages.lower[page]
    while at < end:
        yield at
        nbytes = pages.short(at + 6)
        at += 8 + nbytes + nbytes % 2


def _decoded(pages: Pages, at) -> tuple["np.ndarray", "np.ndarray"]:
    """Return the TIDs of the compressed lists at these places, as gin.py has them, and of which list each is: a list has its first TID, and
    then what is to be added, seven bits a byte, the last of which has no eighth."""
    import numpy as np

    first = pages.tid_block(at) << gin.OFFSET_BITS | pages.short(at + 4)
    of_byte, number = _runs(pages.short(at + 6))
    of_list = np.arange(len(at))
    if not len(of_byte):
        return of_list, first
    byte = pages.bytes[at[of_byte] + 8 + number].astype(int)
    is_last = byte < 0x80
    begins = np.flatnonzero((number == 0) | np.append(True, is_last[:-1]))
    ends = np.append(begins[1:], len(byte)) - 1
    assert is_last[ends].all(), "a list of a GIN index ends in the midst of a TID"
    of_delta = of_byte[begins]
    _, group = _runs(ends - begins + 1)
    sums = np.cumsum(np.add.reduceat((byte & 0x7F) << 7 * group, begins))
    before = np.append(0, sums)[np.searchsorted(of_delta, of_list)]  # what was summed up before the list began
    return np.append(of_list, of_delta), np.append(first, first[of_delta] + sums - before[of_delta])


_FIRST_BLOCK = {"btree": 1, "hash": 1, "gist": 0, "spgist": 1, "gin": 1}
_ENTRIES: dict[str, Callable[[Pages], Entries]] = {
    "btree": _btree_entries,
    "hash": _hash_entries,
    "gist": _gist_entries,
    "spgist": _spgist_entries,
    "gin": _gin_entries,
}
METHODS = tuple(_ENTRIES)
