"""One look at the VACUUMs of a server: by the views of pg_cyclone where they are, and by the server's own.

Nothing is written, and no query reads tables of the user's: a look costs the server a few milliseconds. The views may come and go, and
their columns may be fewer in another version, so each look asks anew what there is.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from cyclone_console.session import EXTENSION


@dataclass
class Process:
    """A process of a VACUUM; of one by the server, how many blocks it has done is not known."""

    pid: int
    role: str
    phase: str
    done: int | None = None
    total: int | None = None
    index: str | None = None


@dataclass
class Vacuum:
    """A VACUUM that runs. A value that the user may not see is None."""

    pid: int
    datname: str | None
    relation: str | None = None
    relid: int | None = None
    by_engine: bool = False
    is_autovacuum: bool = False
    usename: str | None = None
    statement: str | None = None  # of a command on a table whose name can't be looked up
    phase: str | None = None
    done: int | None = None  # blocks, of the phase
    total: int | None = None
    seconds: float | None = None  # since the statement or, in autovacuum, the table began
    processes: list[Process] = field(default_factory=list)
    phase_left: float | None = None
    left: float | None = None
    pace: dict | None = None


@dataclass
class Look:
    """What a look has seen."""

    taken: datetime
    server: str
    database: str
    has_views: bool
    vacuums: list[Vacuum]
    holders: list[dict] | None  # None if the extension is too old to tell
    is_preloaded: bool = True  # if not, the views are there and refuse to answer
    role: str | None = None  # one that isn't told of what other users do; None: all can be seen


def ask(conn: psycopg.Connection, query: str) -> list[dict]:
    """Return a query's rows; raise psycopg.Error. They come as binary: a time as text is in a form that DateStyle and IntervalStyle choose."""
    return conn.execute(query, binary=True).fetchall()


def look(conn: psycopg.Connection) -> Look:
    """Take a look; raise psycopg.Error. It is one transaction, as behind a pooler a setting holds no longer."""
    with conn.transaction():
        conn.execute("SET LOCAL search_path TO ''")
        return _look(conn)


def _look(conn: psycopg.Connection) -> Look:
    [server] = ask(
        conn,
        f"""
        SELECT clock_timestamp() AS taken, current_setting('server_version') AS version, current_database() AS database,
               {EXTENSION} IS NOT NULL AND to_regclass('cyclone.progress') IS NOT NULL AND to_regclass('cyclone.pace') IS NOT NULL AS has_views,
               to_regclass('cyclone.horizon') IS NOT NULL AS has_horizon,
               to_regclass('pg_catalog.pg_stat_progress_repack') IS NOT NULL AS has_repack,
               CASE WHEN NOT pg_has_role('pg_read_all_stats', 'USAGE') THEN current_user::text END AS role
        """,
    )
    rewrites = "pg_stat_progress_repack" if server["has_repack"] else "pg_stat_progress_cluster"
    vacuums = {row["pid"]: _servers_vacuum(row) for row in _servers_rows(conn, rewrites)}
    holders, is_preloaded = None, True
    try:
        with conn.transaction():
            if server["has_views"]:
                for vacuum in _engines_vacuums(conn):
                    vacuums[vacuum.pid] = _merge(vacuum, vacuums.get(vacuum.pid))
                if server["has_horizon"]:
                    holders = _holders(conn)
    except psycopg.errors.ObjectNotInPrerequisiteState:
        is_preloaded = False
    return Look(
        server["taken"], server["version"], server["database"], server["has_views"],
        sorted(vacuums.values(), key=lambda vacuum: (-(vacuum.seconds or 0), vacuum.pid)), holders, is_preloaded, server["role"],
    )  # fmt: skip


def _servers_rows(conn: psycopg.Connection, rewrites: str) -> list[dict]:
    """Return what the server's own views have."""
    return ask(
        conn,
        f"""
        SELECT s.*, a.usename, a.backend_type, a.query,
               extract(epoch FROM clock_timestamp() - CASE WHEN a.backend_type = 'autovacuum worker'
                                                           THEN a.xact_start ELSE a.query_start END)::float8 AS seconds,
               CASE WHEN s.datname = current_database() THEN s.relid::regclass::text END AS relation,
               (SELECT array_agg(w.pid ORDER BY w.pid) FROM pg_stat_activity w WHERE w.leader_pid = s.pid) AS workers
        FROM (SELECT pid, datname::text, relid, phase, heap_blks_total,
                     CASE WHEN phase = 'vacuuming heap' THEN heap_blks_vacuumed ELSE heap_blks_scanned END AS done
              FROM pg_stat_progress_vacuum
              UNION ALL
              SELECT pid, datname::text, relid, phase, heap_blks_total, heap_blks_scanned
              FROM {rewrites} WHERE command IN ('VACUUM FULL', 'REPACK')) s
        LEFT JOIN pg_stat_activity a ON a.pid = s.pid
        """,
    )


def _servers_vacuum(row: dict) -> Vacuum:
    """Return a VACUUM by what the server tells of it."""
    is_autovacuum = row["backend_type"] == "autovacuum worker"
    name = row["relation"]
    if name is None and (told := re.fullmatch(r"autovacuum: VACUUM (?:ANALYZE )?(.+?)(?: \(to prevent wraparound\))?", row["query"] or "")):
        name = told[1]
    # of another user it would only be told that it isn't told
    statement = row["query"] if name is None and row["relid"] is not None else None
    counts = row["phase"] in ("scanning heap", "vacuuming heap", "seq scanning heap")
    return Vacuum(
        row["pid"], row["datname"], name, row["relid"], False, is_autovacuum, row["usename"], statement, row["phase"],
        row["done"] if counts else None, (row["heap_blks_total"] or None) if counts else None, row["seconds"],
        [Process(row["pid"], "leader", row["phase"]), *(Process(pid, "worker", "") for pid in row["workers"] or [])],
    )  # fmt: skip


def _engines_vacuums(conn: psycopg.Connection) -> list[Vacuum]:
    """Return the VACUUMs that pg_cyclone tells of."""
    rows = ask(
        conn,
        """
        SELECT p.*, p.relation::text AS relation, p.index::text AS index, clock_timestamp() AS now, a.usename, a.backend_type,
               extract(epoch FROM clock_timestamp() - CASE WHEN a.backend_type = 'autovacuum worker'
                                                           THEN a.xact_start ELSE a.query_start END)::float8 AS seconds
        FROM cyclone.progress_details p
        LEFT JOIN pg_stat_activity a ON a.pid = p.pid
        ORDER BY p.role, p.pid
        """,
    )
    paces = {row["pid"]: row for row in ask(conn, "SELECT * FROM cyclone.pace_details")}
    return [
        _engines_vacuum(row, [other for other in rows if row["role"] and other["leader_pid"] == row["pid"]], paces.get(row["pid"]))
        for row in rows
        if row["role"] != "worker"
    ]


def _engines_vacuum(leader: dict, rows: list[dict], pace: dict | None) -> Vacuum:
    """Return a VACUUM by the rows of its processes; of another user's, all that one may see is that it runs."""
    vacuum = Vacuum(leader["pid"], leader["datname"], leader["relation"], leader["relid"], leader["role"] is not None)
    if not vacuum.by_engine:
        return vacuum
    vacuum.is_autovacuum = leader["backend_type"] == "autovacuum worker"
    vacuum.usename, vacuum.phase, vacuum.seconds = leader["usename"], leader["phase"], leader["seconds"]
    vacuum.processes = [
        Process(row["pid"], row["role"], row["phase"], row["blocks_done"], row["blocks_total"] or None, row["index"] or row["index_relid"])
        for row in rows
    ]
    same = [row for row in rows if row["phase"] == leader["phase"] and row["index_relid"] is None]
    if leader["blocks_total"] and leader["index_relid"] is None:
        vacuum.done, vacuum.total = sum(row["blocks_done"] for row in same), leader["blocks_total"]
    vacuum.phase_left = _estimate(leader, "phase_eta")
    vacuum.left = _estimate(leader, "eta")
    vacuum.pace = pace
    return vacuum


def _estimate(row: dict, name: str) -> float | None:
    """Return how many seconds are left by the estimate in this column; None if there is none, as in older versions of the extension."""
    return max((row[name] - row["now"]).total_seconds(), 0) if row.get(name) else None


def _merge(vacuum: Vacuum, servers: Vacuum | None) -> Vacuum:
    """Return what both views have of a VACUUM; the server's knows blocks of rounds before, and of workers that have left."""
    if servers is None:
        return vacuum
    if not vacuum.by_engine:
        return servers
    if servers.relid == vacuum.relid and servers.phase == vacuum.phase and servers.total:
        vacuum.done, vacuum.total = servers.done, servers.total
    vacuum.relation = vacuum.relation or servers.relation
    vacuum.statement = servers.statement
    return vacuum


def _holders(conn: psycopg.Connection) -> list[dict]:
    """Return who holds back the removal of dead rows, the oldest first; without the columns that would read tables."""
    return ask(
        conn,
        """
        SELECT kind, name, pid, datname, usename, application, state, xmin_age, is_oldest, how_to_end,
               extract(epoch FROM clock_timestamp() - since)::float8 AS seconds
        FROM cyclone.horizon_details
        WHERE pid IS DISTINCT FROM pg_backend_pid() AND xmin_age IS NOT NULL
        ORDER BY xmin_age DESC, seconds DESC NULLS LAST
        """,
    )
