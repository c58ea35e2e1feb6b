"""Random option lists: pg_cyclone takes or refuses each one as PostgreSQL does, with the same words.

CYCLONE_OPTION_LISTS is how many (a long run: 10000), CYCLONE_SEED where chance begins.
"""

import os
import random
import re

import psycopg

from cyclone_lab import checks

LISTS = int(os.environ.get("CYCLONE_OPTION_LISTS", 1000))
SEED = int(os.environ.get("CYCLONE_SEED", random.randrange(1_000_000)))

FLAGS = ("FULL", "FREEZE", "VERBOSE", "ANALYZE", "DISABLE_PAGE_SKIPPING", "SKIP_LOCKED", "PROCESS_MAIN", "PROCESS_TOAST",
         "SKIP_DATABASE_STATS", "ONLY_DATABASE_STATS", "TRUNCATE", "INDEX_CLEANUP")  # fmt: skip
OTHERS = ("PARALLEL", "BUFFER_USAGE_LIMIT", "NONSENSE", '"Freeze"', '"full"', "full")
BOOLEANS = ("", "", "", "on", "off", "true", "FALSE", "0", "1")
VALUES = (*BOOLEANS, "2", "-1", "1.5", "auto", "'AUTO'", "'on'", "''", "'yes'", "'1'", "'256kB'", "'128 kB'", "'64kB'", "'17GB'",
          "'1 parsec'", "1024", "99999999999", "2147483647", "tRuE", '"On"')  # fmt: skip
TARGETS = ("t", "t", "t", "", "t, u", "t (id)", "ONLY t", "p", "v", "nowhere", "t, nowhere", "u (id, v)", "missing.t", "t (nothing)")


def random_statement(chance: random.Random) -> str:
    """Return a VACUUM or ANALYZE, sensible or not."""
    options = []
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4, 6))):
        if chance.random() < 0.75:
            name, value = chance.choice(FLAGS), chance.choice(BOOLEANS if chance.random() < 0.7 else VALUES)
        else:
            name, value = chance.choice(OTHERS), chance.choice(VALUES)
        options.append(f"{name} {value}".strip())
    command = "ANALYZE" if chance.random() < 0.1 else "VACUUM"
    target = chance.choice(TARGETS)
    if target == "" and any("FULL" in option.upper() for option in options):
        target = "t"  # of the whole database it would take too long
    if options or chance.random() < 0.5:
        options = f" ({', '.join(options)})" if options else ""
    else:
        words = ("FULL", "FREEZE", "VERBOSE", "ANALYZE")
        options = "".join(f" {word}" for word in words if chance.random() < 0.3)
        target = target or "t"
    return f"{command}{options} {target}".strip()


def verdict(conn, statement: str) -> tuple:
    """Return how a statement ended, and of what it warned."""
    warnings = []

    def keep(notice):
        if notice.severity_nonlocalized == "WARNING":
            warnings.append((notice.sqlstate, notice.message_primary, notice.message_hint))

    conn.add_notice_handler(keep)
    try:
        conn.execute(statement)
        return "accepted", warnings
    except psycopg.Error as error:
        diagnosis = error.diag
        return diagnosis.sqlstate, diagnosis.message_primary, diagnosis.message_detail, diagnosis.message_hint, \
            diagnosis.statement_position, warnings  # fmt: skip
    finally:
        conn.remove_notice_handler(keep)


def test_random_option_lists(conn):
    print(f"CYCLONE_SEED={SEED}")
    chance = random.Random(SEED)
    for name in ("t", "u"):
        conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        conn.execute(f"INSERT INTO {name} SELECT i, 'x' FROM generate_series(1, 100) i")
    conn.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    conn.execute("CREATE VIEW v AS SELECT 1")
    seen = {True: 0, False: 0}
    for _ in range(LISTS):
        statement = random_statement(chance)
        conn.execute("SET cyclone.enabled = off")
        expected = verdict(conn, statement)
        allowed = [expected]
        if expected[1] == "VACUUM FULL cannot be performed in parallel":  # with pg_cyclone it can, if nothing else is wrong
            expected = verdict(conn, re.sub(r"\bPARALLEL \d+", "PARALLEL 0", statement))
            allowed = [expected] if expected[0] == "accepted" else [*allowed, expected]
        conn.execute("SET cyclone.enabled = on")
        assert verdict(conn, statement) in allowed, statement
        seen[expected[0] == "accepted"] += 1
    assert min(seen.values()) > LISTS / 10, "hardly any list was accepted, or hardly any refused"
    checks.assert_clean(conn, "t", "u")


def test_random_option_lists_in_a_transaction(conn):
    """Where no VACUUM is allowed, whatever its options."""
    print(f"CYCLONE_SEED={SEED}")
    chance = random.Random(SEED)
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    for _ in range(LISTS // 10):
        statement = random_statement(chance)
        verdicts = []
        for enabled in ("off", "on"):
            conn.execute(f"SET cyclone.enabled = {enabled}")
            conn.execute("BEGIN")
            verdicts.append(verdict(conn, statement))
            conn.execute("ROLLBACK")
        assert verdicts[0] == verdicts[1], statement
