"""Random option lists: pg_cyclone takes or refuses each one as PostgreSQL does, with the same words.

CYCLONE_OPTION_LISTS is how many (a long run: 10000), CYCLONE_SEED where chance begins.
"""

import os
import random
import re

import psycopg
import pytest

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
FULL_PARALLEL = "VACUUM FULL cannot be performed in parallel"


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
        if diagnosis.message_primary == FULL_PARALLEL:  # with a hint, where the engine is off
            return diagnosis.sqlstate, FULL_PARALLEL, warnings
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
        if expected[1] == FULL_PARALLEL:  # with pg_cyclone it can, if nothing else is wrong
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


# A statement or setting that is wrong, and what is said of it: the error, and what to do about it
WRONG = {
    "VACUUM (FULL INPLCE) t": ('invalid value for VACUUM option FULL: "inplce"', "FULL takes INPLACE, REWRITE, or a Boolean value."),
    "VACUUM (FULL, INPLACE) t": ('unrecognized VACUUM option "inplace"', "FULL INPLACE), without a comma"),
    "VACUUM (REWRITE) t": ('unrecognized VACUUM option "rewrite"', "FULL REWRITE), without a comma"),
    "VACUUM (FULL, CONCURRENTLY) t": ('unrecognized VACUUM option "concurrently"', "VACUUM (FULL INPLACE) makes a table small while other sessions"),
    "VACUUM (FULL CONCURRENTLY) t": ('invalid value for VACUUM option FULL: "concurrently"', "FULL takes INPLACE"),
    "VACUUM (DRYRUN) t": ('unrecognized VACUUM option "dryrun"', "Perhaps you meant DRY_RUN."),
    "VACUUM FULL INPLACE": ('relation "inplace" does not exist', "in parentheses, as in VACUUM (FULL INPLACE) t."),
    "VACUUM FULL INPLACE t": ('syntax error at or near "t"', "in parentheses, as in VACUUM (FULL INPLACE) t."),
    "vacuum inplace t": ('syntax error at or near "t"', "VACUUM (FULL INPLACE) t."),
    "VACUUM (FULL IN PLACE) t": ('syntax error at or near "IN"', "VACUUM (FULL INPLACE) t."),
    "VACUUM (FULL=INPLACE) t": ('syntax error at or near "="', "VACUUM (FULL INPLACE) t."),
    "VACUUM FULL CONCURRENTLY t": ("syntax error", "VACUUM (FULL INPLACE) t makes a table small"),
    "VACUUM DRY_RUN t": ("syntax error", "VACUUM (DRY_RUN) t."),
    "VACUUM ADAPTIVE_DELAY t": ("syntax error", "VACUUM (ADAPTIVE_DELAY) t."),
    "VACUUM PARALLEL 2 t": ("syntax error", "VACUUM (PARALLEL 2) t."),
    "VACUUM (WORKERS 2) t": ('unrecognized VACUUM option "workers"', "PARALLEL"),
    "VACUUM (DRY RUN) t": ('unrecognized VACUUM option "dry"', "DRY_RUN"),
    "ALTER SYSTEM SET cyclone.compaction_window = 'not 01:00-04:00'": ("invalid value for parameter", 'like "Mon-Fri 22:00-05:00, Sat-Sun"'),
    "SECURITY LABEL FOR pg_cyclone ON TABLE t IS 'threshold=300'": ("invalid label", "'threshold=40'"),
    "SECURITY LABEL FOR pg_cyclone ON TABLE t IS 'off'": ("invalid label", "'compaction=off'"),
    "VACUUM DRY_RUN": ('relation "dry_run" does not exist', "in parentheses"),
    "VACUUM (ADAPTIVE_DELY) t": ('unrecognized VACUUM option "adaptive_dely"', "Perhaps you meant ADAPTIVE_DELAY."),
    "VACUUM (ADAPTIVE on) t": ('unrecognized VACUUM option "adaptive"', "Perhaps you meant ADAPTIVE_DELAY."),
    "VACUUM (ADAPTIVE_DELAY '20ms') t": ("ADAPTIVE_DELAY requires a Boolean value", None),
    "VACUUM (ADAPTIVE_DELAY 2) t": ("ADAPTIVE_DELAY requires a Boolean value", None),
    "VACUUM (ADAPTIVE_DELAY autovacuum) t": ("ADAPTIVE_DELAY requires a Boolean value", None),
    "VACUUM (FULL INPLACE, TRUNCATE off) t": ("VACUUM option FULL INPLACE cannot be used with TRUNCATE false", "Leave TRUNCATE false out."),
    "VACUUM (FULL INPLACE, PROCESS_MAIN off) t": ("VACUUM option FULL INPLACE cannot be used with PROCESS_MAIN", "Leave"),
    "VACUUM (FULL INPLACE, ONLY_DATABASE_STATS)": ("VACUUM option FULL INPLACE cannot be used with ONLY_DATABASE_STATS", "Leave"),
    "SET cyclone.adaptive_delay = '20ms'": ("invalid value for parameter", "Available values: off, autovacuum, on."),
    "SET cyclone.min_free_disk = 'much'": ("invalid value for parameter", "It is a share"),
}
OFF = ("ADAPTIVE_DELAY", "FULL INPLACE", "FULL REWRITE")


def test_a_wrong_use_is_told_what_to_do(conn):
    """Before any page is touched."""
    conn.execute("CREATE TABLE t (id int) WITH (autovacuum_enabled = off); INSERT INTO t SELECT generate_series(1, 1000); DELETE FROM t")
    size = conn.execute("SELECT pg_relation_size('t')").fetchone()
    for statement, (message, hint) in WRONG.items():
        print(statement)
        with pytest.raises(psycopg.Error) as error:
            conn.execute(statement)
        assert message in error.value.diag.message_primary and (hint or "") in (error.value.diag.message_hint or ""), statement
        assert conn.execute("SELECT pg_relation_size('t')").fetchone() == size, statement


def test_errors_of_other_statements_are_the_servers(conn):
    """No hint is added where VACUUM is only a word, or the option is none of ours."""
    for statement in ("VACUUM FULL t t", "SELECT vacuum inplace t t", "EXPLAIN VACUUM FULL INPLACE t"):
        with pytest.raises(psycopg.errors.SyntaxError) as error:
            conn.execute(statement)
        assert error.value.diag.message_hint is None, statement


def test_options_need_the_engine(conn):
    conn.execute("CREATE TABLE t (id int); SET cyclone.enabled = off")
    for option in OFF:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=f"{option.split(chr(39))[0].strip()} is pg_cyclone's") as error:
            conn.execute(f"VACUUM ({option}) t")
        assert "cyclone.enabled = on" in error.value.diag.message_hint
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=FULL_PARALLEL):
        conn.execute("VACUUM (FULL, PARALLEL 2) t")
    conn.execute("VACUUM (FULL) t")
    conn.execute("VACUUM (FULL, PARALLEL 0) t")


def test_a_limit_of_workers_is_said(conn):
    """Once a statement, and only if it was asked for more."""
    messages = []
    conn.add_notice_handler(lambda message: messages.append((message.message_primary, message.message_hint)))
    conn.execute("CREATE TABLE t (id int); SET max_parallel_maintenance_workers = 2")
    for statement in ("VACUUM (PARALLEL 2) t", "VACUUM t", "VACUUM (FULL INPLACE, PARALLEL 1) t"):
        conn.execute(statement)
    assert messages == []
    for statement in ("VACUUM (PARALLEL 1024) t", "VACUUM (FULL, PARALLEL 3) t", "VACUUM (FULL INPLACE, PARALLEL 8) t"):
        conn.execute(statement)
    assert [text for text, _ in messages] == [f"VACUUM has 2 parallel workers at most, not {asked}" for asked in (1024, 3, 8)]
    assert all("max_parallel_maintenance_workers" in hint for _, hint in messages)
    messages.clear()
    conn.execute("SET max_parallel_maintenance_workers = 1024; SET max_parallel_workers = 1024")
    conn.execute("VACUUM (PARALLEL 1024) t")
    [(processes,)] = conn.execute("SHOW max_worker_processes")
    assert messages[0][0] == f"VACUUM has {processes} parallel workers at most, not 1024" and "max_worker_processes" in messages[0][1]
