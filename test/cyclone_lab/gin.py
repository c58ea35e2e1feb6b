"""The pages of a GIN index, read byte by byte: pageinspect doesn't show the TIDs in the entry tree."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import psycopg

DATA, LEAF, DELETED, META, LIST, INCOMPLETE_SPLIT = 1, 2, 4, 8, 16, 64
POSTING_TREE = 0xFFFF
NO_BLOCK = 0xFFFFFFFF
HEADER_SIZE, OFFSET_BITS = 24, 11
POSTING_TREE_PAGE_START = HEADER_SIZE + 8  # after the page's right bound
_TID = struct.Struct("<HHH")
_BLOCK = struct.Struct("<HH")
_LIST = struct.Struct("<HHHH")  # the first TID, and how many bytes follow


class Page(NamedTuple):
    """A page without what differs between equal indexes: LSN, checksum, and where on the page an item is."""

    flags: int
    right: int
    maxoff: int
    items: tuple[bytes, ...]  # index tuples; of a posting tree's page, all that is on it


class Entry(NamedTuple):
    """A TID in the index, and where it is."""

    block: int
    item: int  # 0: in a posting tree
    tid: tuple[int, int]


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


def entries(pages: list[Page | None]) -> Iterator[Entry]:
    """Yield all TIDs in the trees of the index, but not those in its pending list."""
    for block, item, places in places_by_item(pages):
        yield from (Entry(block, item, (place >> OFFSET_BITS, place & (1 << OFFSET_BITS) - 1)) for place in places)


def places_by_item(pages: list[Page | None]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the block and the number of each item with TIDs, and these as numbers: block << OFFSET_BITS | offset.

    But none of a posting tree to which no key leads: an insertion leaves it that fails, as in a crash, when it has made the tree, but not
    yet the entry. No scan and no VACUUM ever comes there.
    """
    reached = leaves_of_trees(pages)
    for block, page in enumerate(pages):
        if page is None or page.flags & (DELETED | META | LIST) or not page.flags & LEAF:
            continue
        if page.flags & DATA:
            data = page.items[0]
            if block not in reached:
                continue
            yield block, 0, _decode(data, POSTING_TREE_PAGE_START - HEADER_SIZE, len(data))
            continue
        for number, item in enumerate(page.items, 1):
            high, low, length = _TID.unpack_from(item)
            if 0 < length < POSTING_TREE:
                start = (high << 16 | low) & 0x7FFFFFFF
                places = _decode(item, start, start + 8 + _LIST.unpack_from(item, start)[3])
                assert len(places) == length, (block, number, places, length)
                yield block, number, places


def leaves_of_trees(pages: list[Page | None]) -> set[int]:
    """Return the leaves of all posting trees that keys lead to: down by the first child, and then to the right."""
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


def _decode(data: bytes, place: int, end: int) -> list[int]:
    """Return the TIDs of compressed posting lists, one behind the other, between two places."""
    found = []
    while place < end:
        high, low, offset, nbytes = _LIST.unpack_from(data, place)
        value = (high << 16 | low) << OFFSET_BITS | offset
        found.append(value)
        place += 8
        delta = shift = 0
        for byte in data[place : place + nbytes]:
            if byte < 0x80:
                value += delta | byte << shift
                found.append(value)
                delta = shift = 0
            else:
                delta |= (byte & 0x7F) << shift
                shift += 7
        assert shift == 0, "a list ends in the midst of a TID"
        place += nbytes + nbytes % 2
    return found
