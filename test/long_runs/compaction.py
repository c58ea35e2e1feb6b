"""Compaction as a driver of the long runs, where autovacuum on the engine is none: it comes to each table again and again.

`settings` has it take each table of which a few per cent can be won, and wait for no pause. `stop` sees to it that nobody compacts tables.
"""

import random
from collections import Counter

import psycopg

from cyclone_lab.background import wait_until
from long_runs.statements import alter_system

CHOICES = {
    "cyclone.compaction": ("on", "on", "off"),
    "cyclone.compaction_threshold": (0, 5),
    "cyclone.debug_compaction_hour": (10, 1000),
    "cyclone.debug_compaction_least": (1,),
    "cyclone.debug_compaction_visit": (50,),
}

# Complete runs that were counted before, by server and database
counted = Counter()


def settings(rng: random.Random) -> dict:
    """Return settings of a server, one of each."""
    return {name: rng.choice(values) for name, values in CHOICES.items()}


def stop(conn: psycopg.Connection) -> int:
    """Stop it, wait for its end, and return how many more complete runs there were in this database."""
    alter_system(conn, "SET cyclone.compaction = off")
    processes = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'pg_cyclone compaction%'"
    wait_until(lambda: conn.execute(processes).fetchone() == (0,), "the end of compaction")
    [(runs,)] = conn.execute("SELECT coalesce(sum(runs), 0)::int FROM cyclone.compaction_details")
    key = conn.info.host, conn.info.port, conn.info.dbname
    more = max(runs - counted[key], 0)
    counted[key] = runs
    return more


def go_on(conn: psycopg.Connection) -> None:
    """Let it be as the server's settings have it."""
    alter_system(conn, "RESET cyclone.compaction")
