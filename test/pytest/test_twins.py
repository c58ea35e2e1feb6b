"""A short run of `make twins`, with --whole longer ones: what is done to a table while it is compacted has the effect that it has on an equal one.

A failed test shows its seed; CYCLONE_SEED repeats its choices.
"""

import os
import random

import psycopg
import pytest

from long_runs.autovacuum import WITH_WORKERS
from long_runs.load import Sessions
from long_runs.twin_tables import Duel, Twins, Writer
from long_runs.twins import TwinTest

SEED = int(os.environ.get("CYCLONE_SEED", random.randrange(1_000_000)))


@pytest.mark.parametrize("seconds", [5, pytest.param(15, marks=pytest.mark.full)])
def test_a_table_that_is_compacted_stays_equal_to_one_that_is_not(prefix, monkeypatch, seconds):
    """And then for as long as it takes until everything was done."""
    monkeypatch.setattr("long_runs.twins.PERIOD", seconds)
    print(f"CYCLONE_SEED={SEED}")
    with TwinTest(prefix, SEED, writers=4) as test:
        test.run(seconds / 60, show=print)
        print(test.done)
        assert test.done["rows moved"] > 0 and test.done["checks at rest"] > 0 and test.done["duels that one side won"] > 0


@pytest.mark.full
def test_the_same_beside_autovacuum(prefix):
    print(f"CYCLONE_SEED={SEED}")
    with TwinTest(prefix, SEED, writers=4, with_autovacuum=True) as test:
        test.run(0.25, show=print)
        print(test.done)
        assert test.done["rows moved"] > 0 and test.done["checks at rest"] > 0 and test.done[WITH_WORKERS] > 0


@pytest.fixture
def twins(conn):
    """Two tables with some rows."""
    twins = Twins(1, 1, random.Random(1))
    twins.create(conn, random.Random(1))
    return twins


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE compacted SET note = 'other' WHERE id = (SELECT max(id) FROM compacted WHERE id < 1000000)",
        "DELETE FROM compacted WHERE id = (SELECT max(id) FROM compacted WHERE id < 1000000)",
        "UPDATE control SET money = -1000 WHERE id = 1000000; UPDATE compacted SET money = -1000 WHERE id = 1000000",
        "SET session_replication_role = replica; DELETE FROM parent; RESET session_replication_role",
    ],
)
def test_a_difference_is_noticed(conn, twins, change):
    """One row changed or lost in one of the two, a pair of accounts overdrawn, or a foreign key that doesn't hold."""
    twins.assert_content(conn)
    conn.execute(change)
    with pytest.raises(AssertionError):
        twins.assert_content(conn)


def test_a_row_that_an_update_misses_is_noticed(conn, twins):
    """By whichever kind of change comes first."""
    conn.execute("CREATE FUNCTION miss() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    conn.execute("CREATE TRIGGER miss BEFORE UPDATE ON compacted FOR EACH ROW EXECUTE FUNCTION miss()")
    writer = Writer(twins, conn, random.Random(1), 0)
    with pytest.raises(AssertionError, match="compacted has"):
        for _ in range(20):
            writer.transaction(lambda seconds: None)


def test_write_skew_is_noticed(cluster, db, conn, twins, monkeypatch):
    """As it would be if the server saw no conflict."""
    execute = psycopg.Connection.execute
    weaker = lambda self, query, *rest: execute(self, str(query).replace("SERIALIZABLE", "REPEATABLE READ"), *rest)  # noqa: E731
    monkeypatch.setattr(psycopg.Connection, "execute", weaker)
    with pytest.raises(AssertionError, match="write skew"):
        Duel(twins, Sessions(cluster, db, 1), conn, random.Random(1), 0).run()
