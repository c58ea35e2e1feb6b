"""The dead-TID store measured by itself: how long a look-up takes and how much memory a dead item, against the server's TidStore.

The module `modules/store_bench` fills both with the same dead items and looks up every item of a made-up table, in the order
of an index; here is which tables and orders, and how they are run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from cyclone_lab import build
from cyclone_lab.cluster import Cluster

MODULE = Path(__file__).resolve().parent / "modules" / "store_bench"
ROWS = 20_000_000  # at scale 1
CONFIG = {"autovacuum": "off", "fsync": "off", "shared_buffers": "128MB"}
# Look-ups at a time: the items of a btree page with int keys, of which each is there once
BATCH = 366
CORE, ONE_BY_ONE, IN_BATCHES = "core", "ours, one by one", "ours, in batches"


@dataclass(frozen=True)
class StoreCase:
    """A table's dead items, and an order in which they are looked up."""

    name: str
    page_items: int  # rows on a heap page
    pattern: str  # as in store_bench.c
    order: str  # likewise


STORE_CASES = (
    StoreCase("first 30 % of the pages, table order (case 1, 4)", 226, "first pages", "table"),
    StoreCase("30 % here and there, table order (case 2)", 226, "scattered", "table"),
    StoreCase("first 30 % of the pages, by 1000 keys (case 3)", 226, "first pages", "keys"),
    StoreCase("first 30 % of the pages, random order (case 5)", 185, "first pages", "random"),
    StoreCase("30 % here and there, random order", 226, "scattered", "random"),
    StoreCase("one a page, table order", 226, "one a page", "table"),
    StoreCase("one a page, random order", 226, "one a page", "random"),
    StoreCase("neighbours, a tenth of each page, table order", 226, "neighbours", "table"),
    StoreCase("neighbours, a tenth of each page, random order", 226, "neighbours", "random"),
    StoreCase("all, table order", 226, "all", "table"),
    StoreCase("all, random order", 226, "all", "random"),
)


@dataclass
class StoreResult:
    """One case in one kind of memory."""

    case: StoreCase
    in_shared_memory: bool  # as if there were workers
    items: int  # of the table, each looked up once a round
    dead_items: int = 0
    used_bytes: int = 0  # ours, as VERBOSE reports it
    allocated_bytes: dict[str, int] = field(default_factory=dict)  # by way to look up
    nanoseconds: dict[str, list[float]] = field(default_factory=dict)  # a look-up, by way, round after round

    def median_nanoseconds(self, way: str) -> float:
        return median(self.nanoseconds[way])

    def allocated_bytes_per_item(self, way: str) -> float:
        return self.allocated_bytes[way] / self.dead_items

    def used_bytes_per_item(self) -> float:
        return self.used_bytes / self.dead_items


def measure_store(
    prefix: Path, *, rows: int, rounds: int, base: Path | None = None, say: Callable[[str], None] = print
) -> list[StoreResult]:
    """Time all cases with tables of about `rows` items; return them, first those in private memory.

    `base` is the folder for the server's data, `say` is called with each line of progress. Raises RuntimeError if the module
    cannot be built, psycopg.Error if the stores differ.
    """
    build.install_module(MODULE, prefix)
    with Cluster.create(prefix, CONFIG, base=base) as cluster, cluster.start().connect() as conn:
        conn.execute("CREATE EXTENSION store_bench")
        results = []
        for in_shared_memory in (False, True):
            for case in STORE_CASES:
                blocks = max(1, rows // case.page_items)
                result = StoreResult(case, in_shared_memory, blocks * case.page_items)
                arguments = (blocks, case.page_items, case.pattern, case.order, BATCH, rounds, in_shared_memory)
                query = "SELECT * FROM store_bench(%s, %s, %s, %s, %s, %s, %s) ORDER BY round"
                for _, way, nanoseconds, dead_items, used_bytes, allocated_bytes in conn.execute(query, arguments):
                    result.dead_items = dead_items
                    result.used_bytes = used_bytes or result.used_bytes
                    result.allocated_bytes[way] = allocated_bytes
                    result.nanoseconds.setdefault(way, []).append(nanoseconds)
                results.append(result)
                times = ", ".join(f"{way} {result.median_nanoseconds(way):.1f} ns" for way in (CORE, ONE_BY_ONE, IN_BATCHES))
                say(f"store, {'shared' if in_shared_memory else 'private'} memory, {case.name}: {times}")
    return results
