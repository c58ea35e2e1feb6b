"""The pages of a GIN index, read byte by byte: what is on each, and where keys lead."""

import struct
from typing import NamedTuple

import psycopg

DATA, LEAF, DELETED, META, LIST, INCOMPLETE_SPLIT = 1, 2, 4, 8, 16, 64
POSTING_TREE = 0xFFFF
NO_BLOCK = 0xFFFFFFFF
HEADER_SIZE, OFFSET_BITS = 24, 11
POSTING_TREE_PAGE_START = HEADER_SIZE + 8  # after the page's right bound
_TID = struct.Struct("<HHH")
_BLOCK = struct.Struct("<HH")


class Page(NamedTuple):
    """A page without what differs between equal indexes: LSN, checksum, and where on the page an item is."""

    flags: int
    right: int
    maxoff: int
    items: tuple[bytes, ...]  # index tuples; of a posting tree's page, all that is on it


def read_pages(conn: psycopg.Connection, index: str) -> list[Page | None]:
    """Return the index's pages, None for one that was never initialized."""
    rows = conn.cursor(binary=True).execute(
        "SELECT get_raw_page(%(index)s::text, block)"
        " FROM generate_series(0, pg_relation_size(%(index)s::regclass) / current_setting('block_size')::int - 1) block ORDER BY block",
        {"index": index},
    )
    return [_parse(page) for (page,) in rows]


def _parse(page: bytes) -> Page | None:
    lower, upper, special = struct.unpack_from("<HHH", page, 12)
    if upper == 0:
        return None
    right, maxoff, flags = struct.unpack_from("<IHH", page, special)
    if flags & DELETED:
        items = []
    elif flags & (DATA | META):
        items = [page[HEADER_SIZE:lower]]
    else:
        pointers = [pointer for (pointer,) in struct.iter_unpack("<I", page[HEADER_SIZE:lower])]
        items = [page[pointer & 0x7FFF : (pointer & 0x7FFF) + (pointer >> 17)] for pointer in pointers]
    return Page(flags, right, maxoff, tuple(items))


def leaves_of_trees(pages: list[Page | None]) -> set[int]:
    """Return the leaves of all posting trees that keys lead to: down by the first child, and then to the right.

    No key leads to a tree that an insertion has made and that failed, as in a crash, before it made the entry. No scan and no VACUUM ever
    comes there.
    """
    leaves: set[int] = set()
    for page in pages:
        if page is None or page.flags & (DATA | DELETED | META | LIST) or not page.flags & LEAF:
            continue
        for item in page.items:
            high, low, length = _TID.unpack_from(item)
            if length != POSTING_TREE:
                continue
            block = high << 16 | low
            while not pages[block].flags & LEAF:
                high, low = _BLOCK.unpack_from(pages[block].items[0], POSTING_TREE_PAGE_START - HEADER_SIZE)
                block = high << 16 | low
            while block != NO_BLOCK and block not in leaves:
                leaves.add(block)
                block = pages[block].right
    return leaves
