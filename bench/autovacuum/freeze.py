"""A table due for a forced freeze, and the autovacuum to prevent wraparound that it gets: by PostgreSQL, and by the engine.

The table t has a bigint that counts, and an int; a primary key, an index on an expression with 1000 values and one in random
order; 40 bytes a row, 185 rows a page. It was loaded at once and vacuumed, so each page is all-visible; no row has been frozen,
and none is dead. 100,000 transaction IDs later, which is autovacuum_freeze_max_age here, the autovacuum comes that is also
called emergency vacuum: it reads each page, freezes each row, and has nothing to do in the indexes. There is no cost delay.
The time is the one that the server's log gives. WAL has an image of each page, as none was changed since the last checkpoint,
which is how it is with old tables. So a good part of the work is to write WAL, and how much of it the WAL writer does, on a
core of its own if there is one, is seen in the processor time of the whole server.

Each run is on an equal copy of the data directory, with the table in shared buffers and WAL files to write over.
"""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autovacuum.processes import server_seconds
from cyclone_lab.cluster import Cluster
from measure import CONFIG as MEASURE_CONFIG
from measure import LEAST_BUFFERS_MB, LOAD_CONFIG, assert_room

FREEZE_MAX_AGE = 100_000  # the least that it can be
AGE_AT_START = 90_000  # not older: a server that starts with an older table lets autovacuum have it at once
CONFIG = {
    **MEASURE_CONFIG,
    "autovacuum": "on",
    "autovacuum_freeze_max_age": FREEZE_MAX_AGE,
    "autovacuum_naptime": "1s",
    "autovacuum_vacuum_cost_delay": 0,
    "cyclone.autovacuum_max_parallel_workers": 1,
    "log_autovacuum_min_duration": 0,
}
CORE, CYCLONE = "PostgreSQL", "pg_cyclone, 1 worker"
CONTENDERS = {CORE: {"cyclone.autovacuum": "off"}, CYCLONE: {"cyclone.autovacuum": "on"}}
SETUP = (
    "CREATE EXTENSION pg_prewarm",
    "CREATE EXTENSION pg_visibility",
    # In one implicit transaction, so that with wal_level = minimal the rows go unlogged.
    "CREATE TABLE t (id bigint, v int); INSERT INTO t SELECT i, i FROM generate_series(1, {rows}) i",
    "ALTER TABLE t ADD PRIMARY KEY (id)",
    "CREATE INDEX ON t ((v % 1000))",
    "CREATE INDEX ON t (hashint8(id))",
    # With images of pages off: who logs one freezes the page, too, as that costs no more then.
    "SET vacuum_freeze_min_age = 1000000000",
    "VACUUM (ANALYZE) t",
    "CREATE PROCEDURE burn(n int) LANGUAGE plpgsql AS"
    " $$BEGIN FOR i IN 1..n LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END$$",
)
PATIENCE_SECONDS = 1800
POLL_SECONDS = 0.5
_ENDED = re.compile(
    r'automatic (?:aggressive )?vacuum to prevent wraparound of table "postgres\.public\.t".*?elapsed: ([\d.]+) s', re.DOTALL
)


@dataclass
class Run:
    """One autovacuum of the table."""

    name: str
    round: int
    seconds: float
    processor_seconds: float  # of the whole server meanwhile: autovacuum, its worker, and who writes WAL for them
    launched: int | None  # parallel workers; None if it was the server's
    outcome: dict[str, int]  # what it left behind; has to be the same for all
    log: str  # what the server said of it


@dataclass
class Freeze:
    """All runs, and the sizes of the table."""

    rows: int
    heap_bytes: int
    index_bytes: int
    before: dict[str, int]  # as Run.outcome
    runs: list[Run] = field(default_factory=list)

    def runs_of(self, name: str) -> list[Run]:
        """Return a contender's runs, by round."""
        return [run for run in self.runs if run.name == name]

    def ratios(self) -> list[float]:
        """Return how many times as fast the engine was, round by round."""
        return [core.seconds / ours.seconds for core, ours in zip(self.runs_of(CORE), self.runs_of(CYCLONE))]

    def objections(self) -> list[str]:
        """Return what makes the numbers doubtful."""
        found = []
        outcomes = {tuple(run.outcome.items()) for run in self.runs}
        if len(outcomes) > 1:
            found.append(f"the contenders left different tables: {'; '.join(str(dict(outcome)) for outcome in outcomes)}")
        if self.before["frozen_pages"]:
            found.append(f"{self.before['frozen_pages']} pages were frozen before")
        expected = {CORE: None, CYCLONE: 1}
        unexpected = [run for run in self.runs if run.launched != expected[run.name]]
        found += [f"round {run.round}, {run.name}: {run.launched} workers" for run in unexpected]
        return found


def measure(
    prefix: Path, config: dict, *, rows: int, rounds: int, base: Path, say: Callable[[str], None] = print
) -> Freeze:
    """Let each contender freeze a table of `rows` rows, `rounds` times in turn; return the times.

    `config` is the server's settings; `say` is called with each line of progress. Raises RuntimeError if there is too
    little room for the copies, TimeoutError if no autovacuum comes to its end.
    """
    with Cluster.create(prefix, {**LOAD_CONFIG, "full_page_writes": "off"}, base=base) as original:
        original.start()
        with original.connect() as conn:
            for statement in SETUP:
                conn.execute(statement.format(rows=rows))
            _grow_old(conn, AGE_AT_START)
            sizes = conn.execute("SELECT pg_table_size('t'), pg_indexes_size('t')").fetchone()
            result = Freeze(rows, *sizes, _state(conn))
            conn.execute("CHECKPOINT")
        original.stop()
        buffers = max(LEAST_BUFFERS_MB, int(1.2 * sum(sizes) / (1 << 20)))
        original.config = {"shared_buffers": f"{buffers}MB", **config}
        assert_room(original)
        for number in range(1, rounds + 1):
            for name in list(CONTENDERS)[:: 1 if number % 2 else -1]:
                with original.copy(base=base) as server:
                    server.config |= CONTENDERS[name]
                    result.runs.append(_run(server, name, number))
                say(f"freeze, round {number} of {rounds}, {name}: {result.runs[-1].seconds:.2f} s")
    return result


def _run(server: Cluster, name: str, number: int) -> Run:
    """Make the table due for a forced freeze and wait for the end of it."""
    server.start()
    server.warm_up("t")
    os.sync()  # or the copy is written back while the clock runs
    with server.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cyclone")
        _grow_old(conn, FREEZE_MAX_AGE - 100)
        used = server_seconds(server.postmaster.pid)
        _grow_old(conn, FREEZE_MAX_AGE + 100)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (ended := _ENDED.search(server.log)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no autovacuum of the table came to its end in {PATIENCE_SECONDS} s:\n{server.log[-4000:]}")
            time.sleep(POLL_SECONDS)
        used = server_seconds(server.postmaster.pid) - used
        row = conn.execute("SELECT last_workers FROM cyclone.autovacuum_details WHERE relid = 't'::regclass").fetchone()
        return Run(name, number, float(ended[1]), used, row[0] if row else None, _state(conn), ended[0])


def _grow_old(conn, age: int) -> None:
    """Use up transaction IDs until the table is this old."""
    conn.execute("SET synchronous_commit = off")
    [(missing,)] = conn.execute("SELECT %s - age(relfrozenxid) FROM pg_class WHERE oid = 't'::regclass", (age,))
    conn.execute("CALL burn(%s)" % missing)


def _state(conn) -> dict[str, int]:
    """Return what a VACUUM leaves in the table; the map's numbers are pages."""
    row = conn.execute(
        "SELECT relpages, reltuples::bigint, all_visible, all_frozen FROM pg_class, pg_visibility_map_summary('t')"
        " WHERE oid = 't'::regclass"
    ).fetchone()
    return dict(zip(("pages", "rows", "visible_pages", "frozen_pages"), row))
