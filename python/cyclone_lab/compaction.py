"""Compaction as a driver of the long runs, where autovacuum on the engine is none: it comes to each table again and again.

`settings` has it take each table of which a few per cent can be won. `stop` sees to it that nobody compacts tables, and forgets what was
noted of them, so that no table waits for a day when compaction begins again.
"""

import random

import psycopg

from cyclone_lab.background import wait_until

CHOICES = {
    "cyclone.compaction": ("on", "on", "off"),
    "cyclone.compaction_min_size": (0,),
    "cyclone.compaction_threshold": (0, 5),
    "cyclone.compaction_latency_target": ("0", "auto"),
    "cyclone.debug_compaction_visit": (50,),
}


def settings(rng: random.Random) -> dict:
    """Return settings of a server, one of each."""
    return {name: rng.choice(values) for name, values in CHOICES.items()}


def stop(conn: psycopg.Connection) -> int:
    """Stop it, wait for its end, and return how many complete runs there were in this database."""
    conn.execute("ALTER SYSTEM SET cyclone.compaction = off")
    conn.execute("SELECT pg_reload_conf()")
    processes = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'pg_cyclone compaction%'"
    wait_until(lambda: conn.execute(processes).fetchone() == (0,), "the end of compaction")
    [(runs,)] = conn.execute("SELECT coalesce(sum(runs), 0)::int FROM cyclone.compaction_state")
    conn.execute("DELETE FROM cyclone.compaction_state")
    return runs


def go_on(conn: psycopg.Connection) -> None:
    """Let it be as the server's settings have it."""
    conn.execute("ALTER SYSTEM RESET cyclone.compaction")
    conn.execute("SELECT pg_reload_conf()")
