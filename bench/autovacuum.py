"""Measures what it is worth that autovacuum runs on pg_cyclone's engine, and what it costs those who don't use it.

churn: two tables that change all the time, and autovacuum with the server's defaults, by PostgreSQL, by the engine, and by the engine
with an adaptive delay. Each transaction updates four rows of `updated`, an indexed column among them, and replaces four rows of
`replaced`, that is deletes and inserts them; each client draws from rows of its own. Both tables always have as many rows, of the same
size, as at the start, when they were loaded, indexed and frozen: each byte that heap and indexes have beyond the start is bloat. Files
don't shrink while rows at their end are in use: bloat is a high-water mark.
seam: a server that preloads pg_cyclone and has it off against one without it: `pgbench -S`, and a thousand VACUUMs of a small table.

`make bench-autovacuum AUTOVACUUM_ARGS="--minutes 1.5 --churn-rows 60000 --seam-rounds 3"` to try it out.
"""

import argparse
import os
import re
import time
from dataclasses import asdict, dataclass, field
from statistics import mean, median

from beside import Pgbench, percentile, run_pgbench
from circumstances import RESULTS, add_common_arguments, begin, run_main, save_results
from cyclone_lab.cluster import Cluster
from cyclone_lab.files import assert_free
from grid import Grid
from kernel import server_times, session_ns
from measure import LOAD_CONFIG

PARTS = ("churn", "seam")
MB = 1 << 20
CHURN_CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "on",
    "fsync": "off",
    # Checkpoints come, as ten minutes of WAL are too much to keep; without images of pages after them they are hardly felt.
    "full_page_writes": "off",
    "max_wal_size": "4GB",
    "min_wal_size": "4GB",
    "wal_level": "replica",
}
TABLES = ["updated", "replaced"]
BUFFERS = 0.25  # shared_buffers as a part of the database
WIDTH = 900  # bytes of a row's text: eight rows a page
CLIENTS = 8
SHARE_OF_MOST, LEAST_SHARE = 0.5, 0.95  # of what pgbench does without a limit; and of that rate, which a run must have kept to
GROWTH = 4  # by what factor a database may grow in a run
RAMPUP_SECONDS, CALIBRATION_SECONDS, SAMPLE_SECONDS = 5, 10, 5
CORE = "PostgreSQL"
CONTENDERS = {
    CORE: {"cyclone.autovacuum": "off"},
    "pg_cyclone": {"cyclone.autovacuum": "on"},
    "pg_cyclone, adaptive delay": {"cyclone.autovacuum": "on", "cyclone.adaptive_delay": "on"},
}
SAMPLE = """
    SELECT sum(pg_relation_size(relid) + pg_indexes_size(relid))::bigint, sum(n_dead_tup)::bigint
    FROM pg_stat_user_tables WHERE relname = ANY (%s)
"""
COUNTS = "SELECT coalesce(sum(server_count), 0)::int, coalesce(sum(engine_count), 0)::int FROM cyclone.autovacuum WHERE relid = ANY (%s::regclass[])"
SEAM_CONFIG = {"autovacuum": "off", "fsync": "off", "shared_buffers": "256MB", "checkpoint_timeout": "1h"}
WITHOUT, WITH = "without pg_cyclone", "preloaded, cyclone.enabled = off"
SELECT_SECONDS, VACUUMS = 4, 1000


@dataclass
class Run:
    """What came of the load with one way to autovacuum."""

    name: str
    samples: list[tuple[float, int, int]] = field(default_factory=list)  # seconds, bytes of all tables and indexes, dead rows
    times_ms: list[float] = field(default_factory=list)  # of transactions
    seconds: float = 0.0
    counts: tuple[int, int] = (0, 0)  # autovacuums by the server, and by the engine
    server_seconds: float = 0.0  # of processor time, of the whole server

    def bloat(self) -> int:
        return self.samples[-1][1] - self.samples[0][1]


def churn_script(rows: int) -> str:
    """Return pgbench's transaction: rows at random, of those whose number leaves the client's as the rest."""
    names = ("id0", "id1", "id2", "id3")
    draw = "".join(f"\\set {name} random(0, {rows // CLIENTS - 1}) * {CLIENTS} + :client_id\n" for name in names)
    ids = ", ".join(f":{name}" for name in names)
    return (
        f"{draw}\\set v random(-2000000000, 2000000000)\nBEGIN;\nUPDATE updated SET v = :v WHERE id IN ({ids});\n"
        f"WITH gone AS (DELETE FROM replaced WHERE id IN ({ids}) RETURNING id)\n"
        f"INSERT INTO replaced SELECT id, :v, repeat('x', {WIDTH}) FROM gone;\nEND;\n"
    )


def load(original: Cluster, rows: int) -> int:
    """Make the tables of a new cluster, and stop it; return their bytes."""
    original.start()
    with original.connect() as conn:
        conn.execute("CREATE EXTENSION pg_prewarm")
        for table in TABLES:
            conn.execute(f"CREATE TABLE {table} (id int, v int, filler text)")
            conn.execute(f"INSERT INTO {table} SELECT i, hashint4(i), repeat('x', {WIDTH}) FROM generate_series(0, {rows - 1}) i")
            conn.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (id)")
            conn.execute(f"CREATE INDEX ON {table} (v)")
        conn.execute("VACUUM (FREEZE, ANALYZE)")
        [(size, _)] = conn.execute(SAMPLE, (TABLES,))
        conn.execute("CHECKPOINT")
    original.stop()
    return size


def warm_up(server: Cluster, size: int) -> None:
    """Start the server, with full buffers, WAL files to write over, and a file system at rest."""
    server.start()
    server.sql("CREATE EXTENSION pg_cyclone")
    server.prepare_wal(size)
    for table in TABLES:  # more than there is room for
        server.warm_up(table, wal=False)
    os.sync()  # or the copy is written back while the clock runs


def churn(server: Cluster, name: str, script: str, seconds: int, rate: float) -> Run:
    """Run the load on a server; return what came of it."""
    run = Run(name)
    used = sum(server_times(server.postmaster.pid))
    begin = time.time()
    with server.connect() as conn, Pgbench(server, script, rate, seconds=seconds, clients=CLIENTS) as pgbench:
        for number in range(1 + seconds // SAMPLE_SECONDS):
            time.sleep(max(0, begin + number * SAMPLE_SECONDS - time.time()))
            run.samples.append((round(time.time() - begin, 1), *conn.execute(SAMPLE, (TABLES,)).fetchone()))
        run.times_ms = [ms for moment, ms in pgbench.wait() if moment >= begin + RAMPUP_SECONDS]
        run.seconds = time.time() - begin
        run.counts = conn.execute(COUNTS, (TABLES,)).fetchone()
    run.server_seconds = sum(server_times(server.postmaster.pid)) - used
    return run


def churn_grid(runs: list[Run]) -> Grid:
    """Return a row for each run of the load."""
    header = ["autovacuum by", "autovacuums", "of the engine", "bloat at the end, MB", "of PostgreSQL's", "dead rows in the mean", "p95, ms",
              "CPU of the server, s"]  # fmt: skip
    core = runs[0].bloat()
    return Grid(header, [
        [run.name, str(sum(run.counts)), str(run.counts[1]), f"{run.bloat() / MB:,.0f}", f"{run.bloat() / core:.2f}" if core else "",
         f"{mean(dead for *_, dead in run.samples):,.0f}", f"{percentile(run.times_ms):.2f}", f"{run.server_seconds:.1f}"]
        for run in runs
    ])  # fmt: skip


def objections(runs: list[Run], rate: float) -> list[str]:
    """Return what makes the numbers of the load doubtful."""
    found = []
    for run in runs:
        if (done := len(run.times_ms) / (run.seconds - RAMPUP_SECONDS)) < LEAST_SHARE * rate:
            found.append(f"{run.name}: the load came to {done:.0f} transactions a second only, of {rate:.0f}")
        if not run.counts[run.name != CORE] or run.counts[run.name == CORE]:
            found.append(f"{run.name}: autovacuums by the server and by the engine: {run.counts}; more --minutes, or fewer --churn-rows?")
    return found


def seam(prefix, config: dict, rounds: int, base) -> Grid:
    """Measure both servers, on equal copies, one of them idle while the other is measured, in turn."""
    measured: dict[str, dict[str, list[float]]] = {}
    with Cluster.create(prefix, config, base=base) as here:
        here.start()
        here.run("pgbench", "-i", "-q", "-s", "10")
        here.sql("CREATE TABLE small AS SELECT i id FROM generate_series(1, 100) i")
        here.sql("CREATE INDEX ON small (id)")
        here.sql("VACUUM (FREEZE, ANALYZE)")
        here.stop()
        with here.copy(base=base) as there:
            there.config |= {"shared_preload_libraries": "pg_cyclone", "cyclone.enabled": "off"}
            servers = {WITHOUT: here.start(), WITH: there.start()}
            for number in range(rounds + 1):  # the first one warms up
                for work in (selects, vacuums):
                    for name in list(servers)[:: 1 if number % 2 else -1]:
                        for what, value in work(servers[name]).items():
                            measured.setdefault(what, {WITHOUT: [], WITH: []})[name].append(value)
    rows = []
    for what, values in measured.items():
        ratios = [with_it / without for with_it, without in zip(values[WITH][1:], values[WITHOUT][1:])]
        rows.append([what, *(f"{median(values[name][1:]):,.1f}" for name in (WITHOUT, WITH)),
                     f"{median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})"])  # fmt: skip
    return Grid(["", WITHOUT, WITH, "the latter as a part of the former (lowest–highest round)"], rows)


def selects(server: Cluster) -> dict[str, float]:
    """Return the transactions a second of `pgbench -S`, and what one takes of the server's processor time."""
    used = sum(server_times(server.postmaster.pid))
    done = server.run("pgbench", "-n", "-S", "-M", "prepared", "-c", "2", "-T", str(SELECT_SECONDS))
    used = sum(server_times(server.postmaster.pid)) - used
    transactions = int(re.search(r"actually processed: (\d+)", done.stdout)[1])
    return {"pgbench -S, transactions a second": float(re.search(r"tps = ([\d.]+)", done.stdout)[1]),
            "processor time of one, µs": used / transactions * 1e6}  # fmt: skip


def vacuums(server: Cluster) -> dict[str, float]:
    """Return how many VACUUMs of the small table a session does a second, and what one takes of its processor time."""
    with server.connect() as conn:
        conn.execute("VACUUM small")  # which also reads the catalogs
        used, start = session_ns(conn), time.perf_counter()
        for _ in range(VACUUMS):
            conn.execute("VACUUM small")
        seconds, used = time.perf_counter() - start, session_ns(conn) - used
    return {"VACUUMs of a small table a second": VACUUMS / seconds, "processor time of a VACUUM, µs": used / VACUUMS / 1000}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS, metavar="PART", help=f"the parts to run (default: all): {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=10, help="length of each run of churn (default: %(default)s)")
    parser.add_argument("--churn-rows", type=int, default=1_000_000, metavar="N", help="rows of each of its two tables (default: %(default)s)")
    parser.add_argument("--rate", type=float, help="its load in transactions a second, without measuring the most")
    parser.add_argument("--seam-rounds", type=int, default=15, metavar="N", help="rounds of seam (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "autovacuum")
    options = parser.parse_args()
    if min(options.churn_rows // CLIENTS, options.seam_rounds) < 1 or options.minutes * 60 < 20:
        parser.error(f"rounds are 1 or more, --churn-rows {CLIENTS} or more, --minutes a third or more")
    console, prefix, config, circumstances = begin(options, CHURN_CONFIG)
    found: dict = {}
    runs: list[Run] = []
    rate = options.rate or 0.0
    if "seam" in options.only:
        grid = seam(prefix, {**SEAM_CONFIG, **dict(options.set)}, options.seam_rounds, options.base)
        found["seam"] = asdict(grid)
        console.print(grid.to_rich("Cost for those who don't use it"))
    if "churn" in options.only:
        script = churn_script(options.churn_rows)
        with Cluster.create(prefix, LOAD_CONFIG, base=options.base) as original:
            size = load(original, options.churn_rows)
            original.config = {"shared_buffers": f"{max(16, int(BUFFERS * size / MB))}MB", **config}
            assert_free(options.base, GROWTH * size + (8 << 30), "choose another folder with --base, or fewer --churn-rows")
            if not rate:
                with original.copy(base=options.base) as server:
                    server.config |= {"autovacuum": "off"}
                    warm_up(server, size)
                    rate = SHARE_OF_MOST * len(run_pgbench(server, script, CALIBRATION_SECONDS, None, clients=CLIENTS)) / CALIBRATION_SECONDS
            for name, settings in CONTENDERS.items():
                with original.copy(base=options.base) as server:
                    server.config |= settings
                    warm_up(server, size)
                    runs.append(churn(server, name, script, round(options.minutes * 60), rate))
        found["churn"] = {"rows": options.churn_rows, "bytes": size, "rate": rate, "runs": [asdict(run) | {"times_ms": len(run.times_ms)} for run in runs]}
        console.print(churn_grid(runs).to_rich(f"Two tables of {options.churn_rows:,} rows, {size // MB} MB, {rate:.0f} transactions a second"))
        for line in objections(runs, rate):
            console.print(line, highlight=False)
    save_results(options.results, circumstances, **found)
    return 1 if objections(runs, rate) else 0


if __name__ == "__main__":
    run_main(main)
