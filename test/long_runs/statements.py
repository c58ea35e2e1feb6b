"""Random VACUUM statements, with random settings, and the debug points that each kind may come to.

A new kind of statement is one line in KINDS.
"""

import random
from collections.abc import Iterable
from typing import NamedTuple

import psycopg


class Kind(NamedTuple):
    """A kind of VACUUM: how often it comes, which options it takes (one of each tuple), and its debug points."""

    weight: int
    options: tuple[tuple[str, ...], ...]
    points: tuple[str, ...]


PARALLEL = ("", "PARALLEL 0", "PARALLEL 1", "PARALLEL 2", "PARALLEL 2", "PARALLEL 4")
PLAIN_OPTIONS = (
    PARALLEL,
    ("", "", "FREEZE"),
    ("", "", "DISABLE_PAGE_SKIPPING"),
    ("", "INDEX_CLEANUP on", "INDEX_CLEANUP on", "INDEX_CLEANUP off", "INDEX_CLEANUP auto"),
    ("", "", "TRUNCATE on", "TRUNCATE off"),
    ("", "", "", "PROCESS_TOAST off", "PROCESS_MAIN off"),
    ("", "", "", "SKIP_LOCKED"),
    ("", "", "VERBOSE"),
    ("", "", "", "ANALYZE"),
    ("", "", "BUFFER_USAGE_LIMIT '128kB'", "BUFFER_USAGE_LIMIT 0"),
    ("", "", "", "", "", "", "ADAPTIVE_DELAY off", "ADAPTIVE_DELAY"),
)
PLAIN_POINTS = (
    "heap-scan", "index-vacuum", "btree-page", "btree-chain", "btree-duties", "hash-bucket", "gist-page", "gist-chain",
    "spgist-page", "spgist-pending", "gin-page", "gin-posting-page", "gin-piece", "gin-empty-pages", "index-page-deletion",
    "heap-vacuum", "index-cleanup", "truncate",
)  # fmt: skip
POINTS_BY_TABLE = {"vectors": ("hnsw-remove", "hnsw-repair", "hnsw-walk", "hnsw-link", "hnsw-mark")}
REWRITE_OPTIONS = (PARALLEL, ("", "", "VERBOSE"), ("", "", "ANALYZE"), ("", "", "FREEZE"))
REWRITE_POINTS = ("rewrite-created", "heap-copy", "update-chains", "rewrite-swap", "rewrite-index", "rewrite-btree-join", "rewrite-swapped")

INPLACE_OPTIONS = (
    PARALLEL, ("", "INDEX_CLEANUP off"), ("", "", "FREEZE"), ("", "", "", "SKIP_LOCKED"), ("", "", "VERBOSE"), ("", "", "", "ANALYZE"),
    ("", "", "", "PROCESS_TOAST off"),
)  # fmt: skip
SHRINK_POINTS = (
    "shrink-create", "shrink-build", "shrink-built", "shrink-wait", "shrink-validate", "shrink-swap", "shrink-swapped", "shrink-drop", "shrink-lock",
)  # fmt: skip
INPLACE_POINTS = ("inplace-pause", "inplace-batch", "inplace-value", "heap-scan", "heap-vacuum", "truncate", *SHRINK_POINTS)
KINDS = {
    "": Kind(12, PLAIN_OPTIONS, PLAIN_POINTS),
    "FULL": Kind(3, REWRITE_OPTIONS, REWRITE_POINTS),
    "FULL REWRITE": Kind(1, REWRITE_OPTIONS, REWRITE_POINTS),
    "FULL INPLACE": Kind(4, INPLACE_OPTIONS, INPLACE_POINTS),
}
REPACK = Kind(2, (PARALLEL, ("", "", "VERBOSE")), REWRITE_POINTS)  # since 19, of a single table each time
SETTINGS = {
    "maintenance_work_mem": ("64kB", "256kB", "64MB", "64MB"),
    "cyclone.debug_workers": (0, 1, 2, 2, 3),
    "cyclone.debug_parking": (0, 0, 1, 4),
    "cyclone.debug_fed": (1000, 1000, 0),
    "cyclone.debug_cores": (1000, 1000, 0),
    "cyclone.debug_btree_parts": (0, 2, 3),
    "cyclone.debug_max_duties": (0, 0, 1),
    "cyclone.debug_max_tree_pages": (0, 2, 10),
    "vacuum_cost_delay": (0, 0, 0, "0.5ms"),
    "vacuum_freeze_min_age": (0, 100, 50_000_000),
    "vacuum_freeze_table_age": (0, 150_000_000),
    "vacuum_multixact_freeze_min_age": (0, 5_000_000),
    "cyclone.adaptive_delay": ("off", "off", "off", "on"),
    "cyclone.preserve_page_cache": ("auto", "off", "on"),
    "cyclone.index_wait": ("20ms", "200ms", "1s"),
}


class Vacuum(NamedTuple):
    """A statement, its tables (none for the whole database), its settings, and the debug points it may come to."""

    statement: str
    tables: tuple[str, ...]
    settings: dict[str, str | int]
    points: tuple[str, ...]
    kind: str

    def make_settings(self, conn: psycopg.Connection) -> None:
        """Make its settings for a session."""
        for name, value in self.settings.items():
            conn.execute("SELECT set_config(%s, %s, false)", (name, str(value)))


def alter_system(conn: psycopg.Connection, *changes: str) -> None:
    """Make changes of the server's configuration, each SET or RESET, and have it read."""
    for change in changes:
        conn.execute(f"ALTER SYSTEM {change}")
    conn.execute("SELECT pg_reload_conf()")


def random_vacuum(rng: random.Random, tables: tuple[str, ...], *, repack: bool = False) -> Vacuum:
    """Return a VACUUM of some of these tables, or now and then of the whole database; or a REPACK of one."""
    kinds = {**KINDS, "REPACK": REPACK} if repack else KINDS
    name = rng.choices(list(kinds), [kind.weight for kind in kinds.values()])[0]
    kind = kinds[name]
    options = [option for option in (name, *map(rng.choice, kind.options)) if option and option != "REPACK"]
    rng.shuffle(options)
    if not name and rng.random() < 0.05 and not {"PROCESS_MAIN off", "PROCESS_TOAST off"} & set(options):
        targets = []
    else:
        targets = rng.sample(tables, 1 if name == "REPACK" else rng.choice([1, 1, 1, 1, 2]))
    command = "REPACK" if name == "REPACK" else "VACUUM"
    listed = f" ({', '.join(options)})" if options else ""
    settings = {name: rng.choice(values) for name, values in SETTINGS.items()}
    return Vacuum(f"{command}{listed} {', '.join(targets)}".strip(), tuple(targets), settings, points(kind, targets), name or "VACUUM")


def points(kind: Kind, tables: Iterable[str]) -> tuple[str, ...]:
    """Return the debug points that a kind of VACUUM may come to in these tables."""
    of_tables = [point for table in tables for point in POINTS_BY_TABLE.get(table, ()) if kind is KINDS[""]]
    return (*kind.points, *of_tables)
