"""cyclone-report writes one HTML page on a database's VACUUMs: what runs, who holds dead rows, what comes next, bloat, and what past ones have done.

It reads the views of pg_cyclone over one connection, changes nothing, and needs no more than pg_monitor. Each section asks on its own: where the
extension is absent, or the role lacks rights, that section says so and the others are there. The page refers to no other file and to no host.
"""

import argparse
import math
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psycopg

from cyclone_console.page import (
    Markup,
    bars,
    columns,
    count,
    document,
    duration,
    element,
    folded,
    join,
    legend,
    mark,
    moment,
    note,
    percent,
    size,
    sizes,
    table,
)
from cyclone_console.session import EXTENSION, connect, read_any_text

OUTCOMES = {"done": "good", "cancelled": "warn", "failed": "bad"}
MOST_RUNS = 60
SHOWN_RUNS = 12  # the rest of them is folded away
MOST_ADVICE = 40
CHART_COLUMNS = 48
MOST_QUERY = 300
XIDS = 2_144_483_647  # a database that is so old is given no more transaction IDs


class Report:
    """A connection, what is known of the server, and what the sections have found for the tiles on top."""

    def __init__(self, conn: psycopg.Connection, days: float, tables: int):
        self.conn = conn
        self.days = days
        self.tables = tables
        self.tiles: list[tuple[str, str, str]] = []
        read_any_text(conn)
        conn.execute("SET search_path TO ''")
        [self.server] = self.rows(
            "SELECT current_setting('server_version') AS version, current_database() AS database, current_user AS role,"
            " now() AS now, current_setting('TimeZone') AS zone, pg_postmaster_start_time() AS started, pg_is_in_recovery() AS standby,"
            f" {EXTENSION} AS extension,"
            " current_setting('cluster_name') AS cluster"
        )

    def rows(self, query: str, *parameters) -> list[dict]:
        """Return a query's rows; raise psycopg.Error. They come as binary: DateStyle and IntervalStyle choose the form of times as text."""
        return self.conn.execute(query, parameters or None, binary=True).fetchall()

    def tile(self, value: str | None, text: str, color: str = "quiet") -> None:
        self.tiles.append((value or "none", text, color))

    def hidden(self, what: str, needed: str) -> Markup:
        """Return a remark on what this role may not see, and what would change that."""
        return note(f"{what} Role ", element("code", self.server["role"]), " is not a member of ", element("code", needed), ", which pg_monitor is.")

    def section(self, build: Callable[["Report"], Markup], needs_extension: bool) -> Markup:
        """Return a section's content, or why there is none."""
        if needs_extension and not self.server["extension"]:
            return note(
                "Not available: the extension pg_cyclone is not in database ", element("code", self.server["database"]),
                ", or not all of it is owned by superusers. There, ", element("code", "CREATE EXTENSION pg_cyclone"), " makes its views.",
            )
        try:
            return build(self)
        except psycopg.errors.InsufficientPrivilege as error:
            return note(
                f"Not available: {error.diag.message_primary}. Role ", element("code", self.server["role"]),
                " needs to be a member of ", element("code", "pg_monitor"), ".",
            )
        except psycopg.OperationalError as error:
            if self.conn.broken:
                raise
            return note(f"Not available: {error.diag.message_primary or error}.")
        except psycopg.Error as error:
            return note(f"Not available: {error.diag.message_primary or error}.")


def statement(query: str | None) -> Markup | None:
    """Return a session's query, or its beginning."""
    return element("code", query[:MOST_QUERY] + ("..." if len(query) > MOST_QUERY else "")) if query else None


def running(report: Report) -> Markup:
    """VACUUMs at work, with their pace."""
    found = report.rows(
        "SELECT l.pid, l.datname, coalesce(l.relation::text, 'OID ' || l.relid::text) AS relation, l.phase, a.processes, a.done, a.total,"
        " p.limited_by, p.asleep"
        " FROM cyclone.progress_details l"
        " JOIN (SELECT leader_pid, sum(processes) AS processes, sum(done) AS done, sum(total)::bigint AS total"
        " FROM (SELECT leader_pid, count(*) AS processes, sum(blocks_done) AS done, max(blocks_total) AS total"  # each may have an index of its own
        " FROM cyclone.progress_details GROUP BY leader_pid, phase, index_relid) part GROUP BY 1) a ON a.leader_pid = l.pid"
        " LEFT JOIN cyclone.pace p ON p.pid = l.pid WHERE l.role = 'leader' ORDER BY l.pid"
    )
    statements = {row["pid"]: row["query"] for row in report.rows("SELECT pid, query FROM pg_stat_activity WHERE state = 'active'")}
    hidden = report.rows("SELECT count(*) AS n FROM cyclone.progress WHERE role IS NULL")[0]["n"]
    report.tile(f"{len(found)}{' or more' if hidden else ''}", "VACUUMs running")
    parts = [report.hidden(f"{hidden} process(es) of VACUUMs belong to other users.", "pg_read_all_stats") if hidden else None]
    if not found:
        return join([*parts, element("p", f"{'No other' if hidden else 'None'} when this page was made.", class_="faint")])
    drawn = [
        (f"{row['datname']}: {row['relation']}, {row['phase']}", [(float(row["done"] or 0) / row["total"] if row["total"] else 0, "accent")],
         percent(float(row["done"] or 0) / row["total"]) if row["total"] else "", f"{count(row['done'])} of {count(row['total'])} blocks")
        for row in found
    ]
    detail = [
        [row["relation"], row["datname"], statement(statements.get(row["pid"])), row["limited_by"], str(row["pid"]), count(row["processes"]),
         percent(row["asleep"])]
        for row in found
    ]
    names = ["Table", "Database", "Statement", "Limited by", "#Process ID", "#Processes", "#Asleep"]
    return join([*parts, bars(drawn, 1), table(names, detail)])


def wraparound(report: Report) -> Markup:
    """How old each database is: this needs no extension."""
    found = report.rows(
        "SELECT datname, age(datfrozenxid) AS xids, mxid_age(datminmxid) AS multixacts,"
        " current_setting('autovacuum_freeze_max_age')::bigint AS xid_limit,"
        " current_setting('autovacuum_multixact_freeze_max_age')::bigint AS multixact_limit FROM pg_database ORDER BY 2 DESC, 1"
    )
    oldest = max(max(row["xids"] / row["xid_limit"], row["multixacts"] / row["multixact_limit"]) for row in found)
    report.tile(percent(oldest), "of the way to a forced autovacuum", "bad" if oldest > 1.2 else "warn" if oldest > 0.9 else "good")
    drawn = []
    for row in found:
        for kind, name in (("xid", "transactions"), ("multixact", "multixact IDs")):
            age, limit = row[f"{kind}s"], row[f"{kind}_limit"]
            color = "bad" if age > 1.2 * limit else "warn" if age > 0.9 * limit else "accent"
            drawn.append((f"{row['datname']}: {name}", [(age / limit, color)], percent(age / limit), f"{count(age)} of {count(limit)} {name}"))
    text = f"Age of each database. Full is where autovacuum to prevent wraparound begins: {count(found[0]['xid_limit'])} transactions,"
    text += f" {count(found[0]['multixact_limit'])} multixact IDs. At {count(XIDS)} transactions the server assigns no more."
    return join([element("p", text, class_="faint"), bars(drawn, max(1.0, oldest))])


def horizon(report: Report) -> Markup:
    """The holders of dead rows."""
    found = report.rows(
        "SELECT *, dead_tables::text[] AS dead_tables, clock_timestamp() - since AS held FROM cyclone.horizon_details"
        " WHERE pid IS DISTINCT FROM pg_backend_pid()"
    )
    ages = [row["xmin_age"] if row["xmin_age"] is not None else row["catalog_xmin_age"] for row in found]
    oldest = max((age for age in ages if age is not None), default=None)
    color = "good" if (oldest or 0) <= 100_000 else "warn" if oldest <= 10_000_000 else "bad"
    report.tile(count(oldest), "transactions held by the oldest holder", color)
    if not found:
        return element("p", "Nobody: VACUUM can remove every dead row.", class_="faint")
    parts = []
    for row in found:
        if row["is_oldest"] and row["dead_rows"] is not None:
            kept = f"The oldest keeps up to {count(row['dead_rows'])} dead rows"
            kept += f" (about {size(row['held_bytes'])} in the tables that have most of them)" if row["held_bytes"] is not None else ""
            tables = ", ".join(row["dead_tables"] or [])
            parts.append(element("p", f"{kept}{': ' + tables if tables else ''}."))
            break
    detail = []
    for row, age in zip(found, ages, strict=True):
        who = ", ".join(str(row[key]) for key in ("name", "usename", "application", "state") if row[key])
        detail.append(
            [join([row["kind"], " ", mark("oldest", "warn")]) if row["is_oldest"] else row["kind"], who, row["datname"],
             row["held"] and duration(row["held"].total_seconds()), count(age),
             statement(row["query"]),
             row["how_to_end"] and element("code", row["how_to_end"])]
        )
    hidden = sum(row["kind"] == "session" and row["state"] is None for row in found)
    if hidden:
        parts.append(report.hidden(f"What {hidden} of these sessions do, and since when, is for their users.", "pg_read_all_stats"))
    parts.append(table(["Kind", "Who", "Database", "#For", "#Transactions", "Query", "What would end it"], detail))
    parts.append(element("p", "What would end it is a text; mind what its users lose.", class_="faint"))
    return join(parts)


def advice(report: Report) -> Markup:
    """What autovacuum does next, and what would help."""
    found = report.rows(
        "SELECT relation::text AS name, * FROM cyclone.advice"
        " ORDER BY due IS NULL, greatest(dead_rows / (dead_threshold + 1), xid_age / (xid_limit + 1.0)) DESC, relation"
    )
    due = [row for row in found if row["due"]]
    color = "warn" if any(row["due"].startswith("age of") for row in due) else "good"
    report.tile(str(len(due)), f"tables of {report.server['database']} due for autovacuum", color)
    texts = [(row["name"], text) for row in found for text in row["advice"] or []]
    parts = [element("h3", "What would help")]
    if texts:
        parts.append(table(["Table", "Advice"], texts[:MOST_ADVICE]))
    else:
        parts.append(element("p", "Nothing to be said.", class_="faint"))
    if len(texts) > MOST_ADVICE:
        parts.append(note(f"{len(texts) - MOST_ADVICE} more are in cyclone.advice."))
    coming = found[:15]
    parts.append(element("h3", f"The {len(coming)} of {len(found)} tables that are nearest to their next autovacuum"))
    rows = [
        [row["name"], mark(row["due"], "warn") if row["due"] else "", f"{count(row['dead_rows'])} of {count(row['dead_threshold'])}", count(row["forced_in"])]
        for row in coming
    ]
    parts.append(table(["Table", "Due for", "#Dead rows", "#Transactions until forced"], rows))
    return join(parts)


def bloat(report: Report) -> Markup:
    """What the largest tables could give back."""
    [asked] = report.rows(
        "SELECT array_agg(oid ORDER BY relpages DESC) AS oids, (SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'm') AND oid >= 16384) AS total"
        " FROM (SELECT oid, relpages::bigint & 4294967295 AS relpages FROM pg_class WHERE relkind IN ('r', 'm') AND relpersistence <> 't' AND oid >= 16384"
        " ORDER BY 2 DESC, oid LIMIT %s) c", report.tables
    )
    if not asked["oids"]:
        return element("p", "There are no tables.", class_="faint")
    found = report.rows(
        "SELECT of_table::text AS of_table, relation::text AS relation, kind, size, bloat_bytes, bloat_ratio, error_bytes, held_bytes,"
        " inplace_bytes FROM cyclone.bloat WHERE of_table = ANY (%s::oid[]::regclass[])"
        " ORDER BY bloat_bytes DESC NULLS LAST, size DESC NULLS LAST",
        asked["oids"]
    )
    parts = []
    told = len({row["of_table"] for row in found})
    if told < len(asked["oids"]):
        missing = f"{len(asked['oids']) - told} of the {len(asked['oids'])} largest tables are left out, which this role may not VACUUM."
        parts.append(report.hidden(missing, "pg_stat_scan_tables"))
    if not found:
        return join(parts)
    total = sum(row["bloat_bytes"] or 0 for row in found)
    whole = sum(row["size"] or 0 for row in found)
    report.tile(size(total), f"bloat in {report.server['database']}, of {size(whole)}", "warn" if whole and total > 0.3 * whole else "good")
    text = f"Estimated from up to 5\u202f000 pages of each, of {told} of {asked['total']} tables, the largest, with their indexes and TOAST tables."
    parts.append(element("p", text, class_="faint"))
    columns_of_sizes = ("size", "bloat_bytes", "error_bytes", "held_bytes", "inplace_bytes")
    texts = iter(sizes(row[column] for row in found for column in columns_of_sizes))
    in_one_unit = [{column: next(texts) for column in columns_of_sizes} for _ in found]
    drawn = [
        (row["relation"], [((row["size"] or 0) - (row["bloat_bytes"] or 0), "quiet"), (row["bloat_bytes"] or 0, "warn")],
         f"{text['bloat_bytes']} of {text['size']}", f"{row['relation']}: {percent(row['bloat_ratio'])} bloat")
        for row, text in zip(found[:12], in_one_unit, strict=False) if row["bloat_bytes"]
    ]
    if drawn:
        parts += [legend([("needed", "quiet"), ("bloat", "warn")]), bars(drawn)]
    rows = [
        [row["relation"], row["kind"], text["size"], text["bloat_bytes"], percent(row["bloat_ratio"]),
         text["error_bytes"] and f"±{text['error_bytes']}", text["held_bytes"], text["inplace_bytes"]]
        for row, text in zip(found[:30], in_one_unit, strict=False)
    ]
    parts.append(table(["Relation", "Kind", "#Size", "#Bloat", "#Share", "#Error", "#Held", "#INPLACE gives back"], rows))
    if len(found) > 30:
        parts.append(element("p", f"{len(found) - 30} more with less bloat are left out.", class_="faint"))
    return join(parts)


def history_chart(report: Report, runs: list[dict]) -> Markup:
    """Runs over time by outcome, and the seconds that they took."""
    end, length = report.server["now"], timedelta(days=report.days)
    # where all runs are in the last part of the time, the chart shows that
    length = min(length, max(end - min(run["started"] for run in runs), timedelta(minutes=1)) * 1.02)
    begin, step = end - length, length / CHART_COLUMNS
    numbers = [[0] * len(OUTCOMES) for _ in range(CHART_COLUMNS)]
    seconds = [[0.0] for _ in range(CHART_COLUMNS)]
    for run in runs:
        place = min(max(int((run["started"] - begin) / step), 0), CHART_COLUMNS - 1)
        numbers[place][list(OUTCOMES).index(run["outcome"])] += 1
        seconds[place][0] += run["seconds"] or 0
    form = "%d %b" if report.days > 2 and length > timedelta(days=2) else "%H:%M" if length > timedelta(hours=1) else "%H:%M:%S"
    axis = [(begin + length * part).strftime(form) for part in (0, 1 / 3, 2 / 3, 1)]
    times = [moment(begin + step * number) for number in range(CHART_COLUMNS)]
    first = columns(numbers, list(OUTCOMES.values()), [f"{time}: {sum(parts)} runs" for time, parts in zip(times, numbers, strict=True)], axis, count)
    second = columns(seconds, ["accent"], [f"{time}: {duration(parts[0])}" for time, parts in zip(times, seconds, strict=True)], axis,
                     lambda value: duration(value) if value else "0")
    return join([element("h3", "Runs"), legend(list(OUTCOMES.items())), first, element("h3", "Time that they took"), second])


def history(report: Report) -> Markup:
    """What past runs have done."""
    found = report.rows(
        "SELECT *, bytes_before - bytes_after AS freed FROM cyclone.history_details WHERE started > now() - make_interval(secs => %s) ORDER BY id DESC",
        report.days * 86400
    )
    hidden = report.rows("SELECT count(*) AS n FROM cyclone.history WHERE started IS NULL")[0]["n"]
    runs = [run for run in found if run["outcome"] in OUTCOMES]
    bad = [run for run in runs if run["outcome"] == "failed"]
    more = " or more" if hidden else ""
    report.tile(count(len(runs)) + more, f"runs in {report.days:g} days")
    report.tile(f"{len(bad)}{more}", "of them failed", "bad" if bad else "quiet" if hidden else "good")
    parts = []
    if hidden:
        parts.append(report.hidden(f"{hidden} runs are hidden.", "pg_read_all_stats"))
    if not runs:
        return join([*parts, element("p", f"No {'other ' if hidden else ''}run in the last {report.days:g} days.", class_="faint")])
    parts.append(history_chart(report, runs))
    by_table: dict = defaultdict(float)
    for run in runs:
        by_table[f"{run['datname'] or 'shared'}: {run['relation_name']}"] += run["seconds"] or 0
    longest = sorted(by_table.items(), key=lambda item: -item[1])[:8]
    parts += [element("h3", "Where the time goes"), bars([(name, [(took, "accent")], duration(took), name) for name, took in longest])]
    troubled = [run for run in runs if run["outcome"] != "done" or run["warnings"]][:MOST_RUNS]
    if troubled:
        rows = [
            [moment(run["started"]), run["datname"] or "shared", run["relation_name"], run["operation"],
             mark(run["outcome"], OUTCOMES[run["outcome"]]), run["sqlstate"],
             " – ".join(filter(None, [run["error"], run["warnings"]]))]
            for run in troubled
        ]
        parts += [element("h3", "What went wrong"), table(["@Started", "Database", "Table", ".Operation", ".Outcome", "SQLSTATE", "Message"], rows)]
    rows = []
    freed, wal = (iter(sizes(run[column] for run in runs[:MOST_RUNS])) for column in ("freed", "wal_bytes"))
    for run in runs[:MOST_RUNS]:
        rows.append([moment(run["started"]), run["datname"] or "shared",
                     run["relation_name"], run["operation"], run["started_by"] + (", server" if run["run_by"] == "server" else ""),
                     mark(run["outcome"], OUTCOMES[run["outcome"]]), duration(run["seconds"]), count(run["rows_removed"]), next(freed),
                     next(wal)])
    parts.append(element("h3", f"The last {len(rows)} of {len(runs)} runs"))
    names = ["@Started", "Database", "Table", ".Operation", ".Started by", ".Outcome", "#Took", "#Rows removed", "#Freed", "#WAL"]
    parts.append(table(names, rows[:SHOWN_RUNS]))
    if len(rows) > SHOWN_RUNS:
        parts.append(folded(f"{len(rows) - SHOWN_RUNS} more", table(names, rows[SHOWN_RUNS:])))
    return join(parts)


def autovacuum(report: Report) -> Markup:
    """Circuit breakers, and what is left to the server."""
    found = report.rows("SELECT *, relation::text AS relation FROM cyclone.autovacuum_details ORDER BY breaker_open DESC, failures DESC, last_start DESC")
    opened = sum(row["breaker_open"] for row in found)
    report.tile(str(opened), "circuit breakers open", "bad" if opened else "good")
    if not found:
        return element("p", "Autovacuum has come to no table since the server's start.", class_="faint")
    rows = [
        [row["relation"] or f"OID {row['relid']}", row["datname"],
         join([mark("open", "bad"), f" until {moment(row['breaker_until']) or 'reset'}"]) if row["breaker_open"] else mark("closed", "quiet"),
         row["failed_with"],
         row["last_by"], row["last_reason"], moment(row["last_start"]), duration(row["last_seconds"]), count(row["engine_count"]),
         count(row["server_count"]), count(row["error_count"])]
        for row in found[:25]
    ]
    names = ["Table", "Database", "Breaker", "Failed with", ".Last by", "Why not the engine", "@Last began", "#Took", "#Engine", "#Server", "#Errors"]
    rest = f" {len(found) - 25} more are in cyclone.autovacuum." if len(found) > 25 else ""
    return join([table(names, rows), element("p", rest, class_="faint") if rest else None])


SECTIONS = (
    ("running", "At work now", running, True),
    ("history", "What past VACUUMs have done", history, True),
    ("horizon", "Who holds dead rows", horizon, True),
    ("advice", "What comes next in {database}", advice, True),
    ("bloat", "Bloat in {database}", bloat, True),
    ("autovacuum", "Autovacuum", autovacuum, True),
    ("wraparound", "Wraparound", wraparound, False),
)


def make(conn: psycopg.Connection, days: float = 7, tables: int = 20) -> str:
    """Return the page. The connection is to be in autocommit mode, with `dict_row`; raise psycopg.Error if it is lost."""
    report = Report(conn, days, tables)
    sections = [(name, title.format(database=report.server["database"]), report.section(build, needs)) for name, title, build, needs in SECTIONS]
    server = report.server
    extension = f"pg_cyclone {server['extension']}" if server["extension"] else "without pg_cyclone"
    up = duration((server["now"] - server["started"]).total_seconds())
    where = f"PostgreSQL {server['version']}, {extension}{', a standby' if server['standby'] else ''}. Up for {up}."
    name = f"{server['cluster']}: {server['database']}" if server["cluster"] else server["database"]
    tiles = [element("div", element("b", value), element("span", text), class_=f"tile {color}") for value, text, color in report.tiles]
    head = join([
        element("h1", f"VACUUM report: {name}"),
        element("p", f"{where} Made {moment(server['now'])} ({server['zone']}) as role {server['role']}.", class_="faint"),
        element("div", *tiles, class_="tiles"),
    ])
    foot = element("p", "Made by cyclone-report of pg_cyclone. The page holds names, queries and messages of the server.")
    return document(f"VACUUM report: {name}", head, sections, foot)


def positive(text: str) -> float:
    value = float(text)
    if not (0 < value and math.isfinite(value)):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Write the page; return 1 if the server cannot be asked or the file cannot be written."""
    parser = argparse.ArgumentParser(prog="cyclone-report", description="Writes an HTML page on a PostgreSQL database's VACUUMs.")
    parser.add_argument("connection", nargs="?", default="", help="connection string of libpq, a URI, or a database; the environment has the rest")
    parser.add_argument("-o", "--output", default="cyclone-report.html", metavar="FILE",
                        help="where to write it; - for the standard output (default: %(default)s)")
    parser.add_argument("--days", type=positive, default=7, help="how far the history goes back (default: %(default)s)")
    parser.add_argument("--tables", type=int, default=20, metavar="N", help="estimate the bloat of the N largest tables (default: %(default)s)")
    parser.add_argument("--timeout", type=positive, default=60, metavar="SECONDS", help="how long a section may take (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        with connect(options.connection, "cyclone-report") as conn:
            conn.execute("SET default_transaction_read_only = on")
            conn.execute("SET lock_timeout = '5s'")
            conn.execute("SELECT set_config('statement_timeout', %s, false)", [f"{max(int(options.timeout * 1000), 1)}ms"])
            page = make(conn, options.days, max(options.tables, 0))
    except psycopg.Error as error:
        print(f"cyclone-report: {error}", file=sys.stderr)
        return 1
    try:
        if options.output == "-":
            sys.stdout.buffer.write(page.encode())
        else:
            Path(options.output).write_text(page, encoding="utf-8")
            print(f"{os.path.abspath(options.output)}: {len(page.encode()) // 1024 + 1} kB", file=sys.stderr)
    except OSError as error:
        print(f"cyclone-report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
