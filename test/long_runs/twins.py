"""The same work on two equal tables, one of which VACUUM (FULL INPLACE) makes smaller all the time: they must stay equal.

`make twins MINUTES=10 WRITERS=8 SEED=1`. `twin_tables` has the tables, their sessions, and what these compare at every step. Every
PERIOD seconds all come to rest, and both tables and those that refer to them must pass the checks, before and after a VACUUM. A
run goes on until all that it is about has happened, and fails if that doesn't come to pass.

With `--autovacuum` (`AUTOVACUUM=1`), autovacuum on the engine comes to both tables, too, as long as compaction leaves it a moment. Its
settings change each period, and now and then all tables are old enough to be vacuumed by force. The engine may not fail there.
Without it cyclone.compaction comes to the table that is made smaller, in the breaks between the session's commands.
"""

import random
import re
import sys
import time
from pathlib import Path

import psycopg

from cyclone_lab import checks
from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO
from long_runs import autovacuum, compaction, long_run
from long_runs.autovacuum import BY_ENGINE
from long_runs.load import Sessions
from long_runs.proof import ASSERTION_COUNT, SERVER_ASSERTION, STALE_LOCK, STALE_LOCK_COUNT, assert_sound, assert_sound_before_vacuum, vacuum_all
from long_runs.soak import TROUBLE
from long_runs.twin_tables import Duel, Twins, Writer, breathe, read

PERIOD = 20
BREAK = 3  # seconds at most between two of the session's compactions, in which others may come to the table
EXTRA = 300  # seconds that a run may take longer until all of NEEDED has happened
DATABASE = "postgres"
READERS = 2
DUELS = 2
PAUSE = 0.01  # of a writer after each transaction, so that others get their turn
CONFIG = {
    **long_run.CONFIG,
    "shared_buffers": "16MB",
    "max_connections": 60,
    "max_pred_locks_per_page": 100,  # else page locks see conflicts that a row's lock may miss
    "max_pred_locks_per_transaction": 1000,
    "statement_timeout": "3min",
    "cyclone.debug_horizon_wait": 500,  # ms
}
OPTIONS = (
    ("", "INDEX_CLEANUP off", "INDEX_CLEANUP off"), ("", "PROCESS_TOAST off", "PROCESS_TOAST off"), ("", "FREEZE"),
    ("", "PARALLEL 2"), ("", "", "", "ANALYZE"), ("", "", "", "", "ADAPTIVE_DELAY"),
)  # fmt: skip
MOVED = re.compile(r"moved (\d+) rows out of (\d+) pages in \d+ passes, truncated (\d+) to (\d+) pages")
FAULT = re.compile(r'block (\d+) .*of relation "([^"]+)"')
INVALID_INDEXES = "SELECT indexrelid::regclass FROM pg_index WHERE NOT indisvalid"
OURS_FAILED = re.compile(r"Failed process was running: .*FULL INPLACE")
NEEDED = ("transactions: COMMIT", "compactions", "rows moved", "pages cut off", "comparisons in snapshots", "duels in which a row moved",
          "duels that one side won", "cursors", "upserts of shared keys", "rotations of slots", "ANALYZE in transactions")  # fmt: skip
BY_ITSELF = "runs of cyclone.compaction"
NEEDED_OF_AUTOVACUUM = (autovacuum.FORCED, autovacuum.CANCELLED, f"{BY_ENGINE}: control", f"{BY_ENGINE}: compacted")


class TwinTest(long_run.LongRun):
    """A server with the twins; `done` counts what happened."""

    def __init__(self, prefix: Path, seed: int, writers: int, *, base: Path | None = None, with_autovacuum: bool = False):
        self.twins = Twins(writers, DUELS, random.Random(f"{seed}:twins"))
        drivers = autovacuum.settings(random.Random(seed), prefix) if with_autovacuum else compaction.settings(random.Random(seed))
        config = {**CONFIG, **drivers, **({} if with_autovacuum else {"cyclone.compaction": "on"})}
        super().__init__(Cluster.create(prefix, config, base=base, initdb=("--data-checksums",)), seed, with_autovacuum)
        self.done = self.twins.done

    def __exit__(self, _kind, error, _where) -> None:
        if isinstance(error, Exception):
            long_run.show(f"the server's files are kept in {self.cluster.keep(REPO / 'build' / 'twins' / str(self.seed))}")
        self.cluster.remove()

    def run(self, minutes: float, show=lambda text: None) -> None:
        """Work and compare for `minutes`; raise AssertionError at the first difference, or if too little has happened."""
        self.cluster.start()
        with self.cluster.connect(DATABASE) as conn:
            conn.execute("CREATE EXTENSION pg_cyclone")
            checks.create_extensions(conn)
            self.twins.create(conn, random.Random(self.seed))
            # the others stay as PostgreSQL's VACUUM leaves them
            others = "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'm') AND oid >= 16384 AND relname NOT LIKE 'compacted%'"
            for (table,) in conn.execute(others).fetchall():
                conn.execute(f"SECURITY LABEL FOR pg_cyclone ON TABLE {table} IS 'compaction=off'")
        deadline = time.monotonic() + 60 * minutes
        period = 0
        while (left := deadline - time.monotonic()) > 0 or (self._missing() and left > -EXTRA):
            sessions = Sessions(self.cluster, DATABASE, f"{self.seed}:{period}")
            sessions.run(self._jobs(sessions))
            began = time.monotonic()
            with self.cluster.connect(DATABASE) as conn:
                autovacuum.vary(conn, str(self.seed), period) if self.autovacuums else compaction.go_on(conn)
            while time.monotonic() - began < (min(PERIOD, left) if left > 0 else PERIOD) and not sessions.failed:
                time.sleep(0.1)
            try:
                sessions.stop()
            except psycopg.OperationalError:
                if not self._ended_by_known_assertion():
                    raise
            self.twins.count("seconds of load", round(time.monotonic() - began))
            self._check()
            period += 1
            show(", ".join(f"{self.done[what]} {what}" for what in ("seconds of load", "compactions", "rows moved")))
        if self.autovacuums:
            self.twins.done += self.autovacuums.summary()
        assert not self._missing(), f"it proves too little, for lack of {self._missing()}"

    def _missing(self) -> list[str]:
        missing = [what for what in NEEDED if not self.done[what]]
        if self.autovacuums:
            return missing + self.autovacuums.missing(*NEEDED_OF_AUTOVACUUM)
        return missing if self.done[BY_ITSELF] else [*missing, BY_ITSELF]

    def _jobs(self, sessions: Sessions) -> list:
        """Return what the sessions do; each job makes one round of it, or goes on until the end."""

        def write(conn: psycopg.Connection, rng: random.Random, number: int) -> None:
            writer = Writer(self.twins, conn, rng, number)
            while not sessions.stopped:
                writer.transaction(sessions.pause)
                sessions.pause(rng.uniform(0, PAUSE))
                breathe(sessions)

        def go_on_reading(conn: psycopg.Connection, rng: random.Random) -> None:
            while not sessions.stopped:
                read(self.twins, sessions, conn, rng)
                breathe(sessions)

        def fight(conn: psycopg.Connection, rng: random.Random, number: int) -> None:
            Duel(self.twins, sessions, conn, rng, number).run()

        jobs = [lambda conn, rng, number=number: write(conn, rng, number) for number in range(self.twins.writers)]
        jobs += [lambda conn, rng, number=number: fight(conn, rng, number) for number in range(self.twins.duels)]
        compact = lambda conn, rng: self._compact(sessions, conn, rng)  # noqa: E731
        vacuum = lambda conn, rng: self._vacuum(sessions, conn, rng)  # noqa: E731
        return jobs + [go_on_reading] * READERS + [compact, vacuum]

    def _compact(self, sessions: Sessions, conn: psycopg.Connection, rng: random.Random) -> None:
        """Compact without a break, and take down what the server says of it."""
        self.twins.compactor = conn.info.backend_pid
        conn.execute("SET lock_timeout = 0")  # building an index anew waits for others, and may
        said: list[str] = []
        conn.add_notice_handler(lambda message: said.append(message.message_primary))
        while not sessions.stopped:
            options = [option for option in ("FULL INPLACE", "VERBOSE", *map(rng.choice, OPTIONS)) if option]
            rng.shuffle(options)
            point = "inplace-pause:leader:wait" if "PROCESS_TOAST off" in options else ""  # where a duel lets rows wait, but not values
            conn.execute(f"SET cyclone.debug_point = '{point}'")
            conn.execute(f"SET vacuum_cost_delay = '{rng.choice([0, 0, 1, 5])}ms'")
            try:
                conn.execute(f"VACUUM ({', '.join(options)}) {rng.choices(['compacted', 'compacted_child'], [8, 1])[0]}")
                self.twins.count("compactions")
            except psycopg.errors.SerializationFailure:  # its transactions are serializable, too
                self.twins.count("compactions ended by SerializationFailure")
            except psycopg.errors.DataCorrupted as error:
                raise AssertionError(f"{error}\n{self._page_at_fault(str(error))}") from error
            for found in filter(None, map(MOVED.search, said)):
                rows, _, before, after = map(int, found.groups())
                self.twins.count("rows moved", rows)
                self.twins.count("pages cut off", max(before - after, 0))
            said.clear()
            sessions.pause(rng.choice([0, rng.uniform(0, BREAK)]))

    def _page_at_fault(self, error: str) -> str:
        """Return what is on the heap page that an error is about, and what the catalog and the map say of it."""
        if not (found := FAULT.search(error)):
            return ""
        block, table = int(found[1]), found[2]
        with self.cluster.connect(DATABASE) as conn:
            queries = (
                ("SELECT relfrozenxid, relminmxid, pg_relation_size(oid) / 8192, pg_current_xact_id() FROM pg_class WHERE oid = %s::regclass",
                 (table,)),
                ("SELECT * FROM pg_visibility(%s::regclass, %s)", (table, block)),
                ("SELECT lp, lp_flags, t_xmin, t_xmax, t_ctid, raw_flags FROM heap_page_items(get_raw_page(%s, %s)),"
                 " heap_tuple_infomask_flags(t_infomask, t_infomask2)", (table, block)),
            )  # fmt: skip
            return "\n".join(str(row) for query, parameters in queries for row in conn.execute(query, parameters))

    def _vacuum(self, sessions: Sessions, conn: psycopg.Connection, rng: random.Random) -> None:
        """Let PostgreSQL's own VACUUM look after the other tables."""
        conn.execute("SET cyclone.enabled = off; SET lock_timeout = 0")
        while not sessions.stopped:
            table = rng.choice(["control", "control", "control_child", "parent"])
            try:
                conn.execute(f"VACUUM {rng.choice(['', '(FREEZE)'])} {table}")
            except psycopg.errors.DataCorrupted as error:
                if not STALE_LOCK.search(str(error)):
                    raise AssertionError(f"{error}\n{self._page_at_fault(str(error))}") from error
                self.twins.count(STALE_LOCK_COUNT)
                for statement in ("SET cyclone.enabled = on", f"VACUUM {table}", "SET cyclone.enabled = off"):
                    conn.execute(statement)
            sessions.pause(rng.uniform(0, 3))

    def _ended_by_known_assertion(self) -> bool:
        """Tell whether all sessions have ended by an assertion of PostgreSQL's own that fails on sound rows.

        If so, wait for the recovery; drop the copy of an index that was being built; and
        close the circuit breakers that this has opened.
        """
        log = self.cluster.log
        trapped = [line for line in log.splitlines() if "TRAP:" in line]
        if len(trapped) == self.done[ASSERTION_COUNT] or not all(map(SERVER_ASSERTION.search, trapped)) or OURS_FAILED.search(log):
            return False
        self.done[ASSERTION_COUNT] = len(trapped)
        self.cluster.wait_for_recovery()
        with self.cluster.connect(DATABASE) as conn:
            for (left,) in conn.execute(f"{INVALID_INDEXES} AND indexrelid::regclass::text ~ '_cyclone\\d*$'").fetchall():
                conn.execute(f"DROP INDEX IF EXISTS {left}")  # a worker may be first
            conn.execute("SELECT cyclone.autovacuum_reset()")  # the end came in the midst of some, perhaps
        return True

    def _check(self) -> None:
        """With nobody at work: everything is equal, and sound; so it is after a VACUUM."""
        with self.cluster.connect(DATABASE) as conn:
            if not self.autovacuums:
                self.twins.count(BY_ITSELF, compaction.stop(conn))
            else:
                autovacuum.turn_off(conn)
                self.autovacuums.assert_no_errors()
                autovacuum.assert_no_failures(conn)
            self.twins.assert_content(conn)
            assert_sound_before_vacuum(conn, self.twins)
            vacuum_all(conn, self.twins)
            assert_sound(conn, self.twins)
            # the cleaner comes again a minute after it found the table in use
            wait_until(lambda: not conn.execute(INVALID_INDEXES).fetchall(), "an end of invalid indexes")
        trouble = [line for line in self.cluster.log.splitlines() if TROUBLE.search(line) and not SERVER_ASSERTION.search(line)]
        assert len(trouble) <= self.done[ASSERTION_COUNT], trouble[:5]  # of each there is a line, too, that says how its process ended
        self.twins.count("checks at rest")


def main() -> int:
    return long_run.main(TwinTest, __doc__, "twins", "minutes", 10, writers=True)


if __name__ == "__main__":
    sys.exit(main())
