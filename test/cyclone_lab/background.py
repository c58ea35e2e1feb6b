"""Statements that run while the test does something else, and VACUUMs that stand still where the test wants them."""

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress

import psycopg

from cyclone_lab.cluster import Cluster

DEBUG_POINT_LOCK = 51966
PATIENCE_SECONDS = 180  # less than what comes of nothing on a machine that has ten times as much to do


def wait_until(condition, what: str, seconds: float = PATIENCE_SECONDS):
    """Call `condition` until what it returns is true, and return that; raise TimeoutError naming `what` after `seconds`.

    The longer it has waited, the longer it sleeps in between: a condition mostly asks the server in a new session, which takes some 10 ms
    of a core.
    """
    begin = time.monotonic()
    while not (result := condition()):
        waited = time.monotonic() - begin
        if waited > seconds:
            raise TimeoutError(f"{what} did not come to pass in {seconds:g} s")
        time.sleep(min(max(0.01, waited / 10), 0.1))
    return result


def messages_to(conn: psycopg.Connection) -> list[str]:
    """Return a list of what the server says to a session from now on."""
    said: list[str] = []
    conn.add_notice_handler(lambda message: said.append(message.message_primary))
    return said


def heard(conn: psycopg.Connection, statement: str, form=lambda notice: notice.message_primary, **options) -> list:
    """Run a statement, with options of `execute`; return what the server says meanwhile, each notice in this form."""
    said = []

    def keep(notice) -> None:
        said.append(form(notice))

    conn.add_notice_handler(keep)
    try:
        conn.execute(statement, **options)
    finally:
        conn.remove_notice_handler(keep)
    return said


class Background:
    """A statement in a session of its own, started at once.

    `settings` are made for the session first. `messages` collects what the server sends beside the result.
    """

    def __init__(self, cluster: Cluster, dbname: str, statement: str, settings: dict | None = None):
        self.connection = cluster.connect(dbname)
        self.pid = self.connection.info.backend_pid
        self.messages = messages_to(self.connection)
        self.error: psycopg.Error | None = None
        for name, value in (settings or {}).items():
            self.connection.execute("SELECT set_config(%s, %s, false)", (name, str(value)))
        self._thread = threading.Thread(target=self._run, args=(statement,), daemon=True)
        self._thread.start()

    def _run(self, statement: str) -> None:
        try:
            self.connection.execute(statement)
        except psycopg.Error as error:
            self.error = error
        finally:
            self.connection.close()

    @contextmanager
    def paused(self):
        """Stop the session's own process for as long as the block takes."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float | None = PATIENCE_SECONDS) -> psycopg.Error | None:
        """Wait for the statement's end, for ever if `seconds` is None, and return its error, or None; raise TimeoutError if it does
        not end.
        """
        self._thread.join(seconds)
        if self.running:
            raise TimeoutError(f"the statement did not end in {seconds:g} s")
        return self.error

    def finish(self, seconds: float | None = PATIENCE_SECONDS) -> list[str]:
        """Wait for the statement's end, as `wait` does; raise its error if it failed, or else return its messages."""
        if error := self.wait(seconds):
            raise error
        return self.messages


class Parked(Background):
    """A statement whose processes wait at a debug point (with ROLE, as in "heap-scan:any") until `release`.

    Made when as many as `processes` of them have come there. `parked` has their process IDs, `workers` those that
    are not the statement's own.
    """

    def __init__(
        self, cluster: Cluster, dbname: str, point: str, processes: int, statement: str, settings: dict | None = None
    ):
        self._cluster = cluster
        self._gate = cluster.connect(dbname)
        self._gate.execute("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,))
        super().__init__(cluster, dbname, statement, {"cyclone.debug_point": f"{point}:wait", **(settings or {})})
        try:
            self.wait_for(processes)
        except BaseException:
            self.release()
            raise

    def wait_for(self, processes: int) -> None:
        """Wait until this many processes are parked; raise AssertionError if the statement ends instead."""

        def enough() -> bool:
            self.parked = self._waiters()
            enough = len(self.parked) >= processes
            assert enough or self.running, f"the statement ended before {processes} processes were parked: {self.error}"
            return enough

        wait_until(enough, f"parking of {processes} processes")
        self.workers = [pid for pid in self.parked if pid != self.pid]

    def _waiters(self) -> list[int]:
        # of this database: statements in others may be parked there, too
        rows = self._gate.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            (DEBUG_POINT_LOCK,),
        )
        return sorted(pid for (pid,) in rows)

    def step(self) -> None:
        """Let a statement of one process go on until it is parked again."""
        self.let_pass()
        self.wait_for(1)

    def let_pass(self) -> None:
        """Let a statement of one process go on; it will be parked again when it comes to a debug point."""
        old, self._gate = self._gate, self._gate_behind()
        old.close()  # the process gets the lock, then the new gate, which stands in the queue before the process comes again
        wait_until(lambda: self._gate.info.transaction_status != psycopg.pq.TransactionStatus.ACTIVE, "the next gate")

    def _gate_behind(self) -> psycopg.Connection:
        """Return a session that waits for the lock, behind the process that is parked."""
        dbname = self._gate.info.dbname
        gate = self._cluster.connect(dbname)
        threading.Thread(
            target=gate.execute, args=("SELECT pg_advisory_lock(%s)", (DEBUG_POINT_LOCK,)), daemon=True
        ).start()
        wait_until(lambda: gate.info.backend_pid in self._waiters(), "the next gate's wait")
        return gate

    def release(self) -> None:
        """Let all processes go on, for good; harmless when repeated."""
        with suppress(psycopg.OperationalError):
            self._gate.close()

    def finish(self, seconds: float | None = PATIENCE_SECONDS) -> list[str]:
        """Let all processes go on, for good, and wait for the statement's end; raise its error, or return its messages."""
        self.release()
        return super().finish(seconds)

    def __enter__(self) -> "Parked":
        return self

    def __exit__(self, error, *_where) -> None:
        """Let all processes go on, and wait for the statement's end: the next gate would stop it again."""
        self.release()
        if error is None:
            self.wait()


def time_out_while_parked(cluster: Cluster, dbname: str, point: str, processes: int, statement: str, settings: dict | None = None) -> psycopg.Error:
    """Return the error of a statement whose statement_timeout is over when this number of its processes is parked.

    The timeout is as long as it takes them to come there, on however slow a machine.
    """
    for seconds in (1, 4, 16, 64):
        try:
            with Parked(cluster, dbname, point, processes, statement, {"statement_timeout": f"{seconds}s", **(settings or {})}) as parked:
                error = parked.wait()
            assert isinstance(error, psycopg.errors.QueryCanceled) and "statement timeout" in str(error), error
            return error
        except AssertionError as early:
            if "statement timeout" not in str(early) or seconds == 64:
                raise
