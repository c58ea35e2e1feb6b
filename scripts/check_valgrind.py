"""VACUUMs of each kind, with workers, errors and old snapshots, on a server that runs under valgrind's memcheck.

`make check-valgrind PGSRC=<source tree of PostgreSQL 17 or 18>`. CYCLONE_PG17 or CYCLONE_PG18 names a PostgreSQL that was configured
with CPPFLAGS=-DUSE_VALGRIND, so that memcheck knows its memory contexts. Anything that memcheck finds, but for what PostgreSQL's
own suppressions have, is a failure.
"""

import argparse
import random
import re
import sys
import tempfile
from pathlib import Path

import psycopg

from cyclone_lab import build, checks, cluster
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import hand_over, run_program
from cyclone_lab.proof import assert_sound, vacuum_all
from cyclone_lab.workload import SESSION, Workload, Writer

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "fsync": "off",
    "autovacuum": "off",
    "shared_buffers": "4MB",
    "max_prepared_transactions": 5,
    "min_parallel_table_scan_size": 0,
    "min_parallel_index_scan_size": 0,
    "cyclone.check_disk_space": "off",
}
POINTS = ("heap-scan:leader", "btree-page:any", "heap-vacuum:worker", "index-cleanup:any", "heap-copy:any", "rewrite-swapped:leader")
BEGIN = "FOUND BY MEMCHECK"


def vacuum_in_all_ways(conn: psycopg.Connection, old: psycopg.Connection, writer: Writer, tables: str) -> None:
    """VACUUM between changes: with workers in several rounds, alone, FULL beside an old snapshot, failing, and timed out."""

    def change(transactions: int) -> None:
        for _ in range(transactions):
            writer.transaction()

    def run(statement: str, **settings: str) -> None:
        for name, value in settings.items():
            conn.execute("SELECT set_config(%s, %s, false)", (name.replace("__", "."), value))
        try:
            conn.execute(statement)
            print(f"{statement}: done", flush=True)
        except (psycopg.errors.InternalError, psycopg.errors.QueryCanceled) as error:
            print(f"{statement}: {error.diag.message_primary}", flush=True)
        for name in settings:
            conn.execute(f"RESET {name.replace('__', '.')}")

    conn.execute("SET cyclone.debug_workers = 2; SET maintenance_work_mem = '64kB'")
    change(12)
    run(f"VACUUM (PARALLEL 2, VERBOSE, INDEX_CLEANUP on) {tables}")
    change(12)
    run(f"VACUUM (PARALLEL 0, FREEZE, LATENCY_TARGET '5ms') {tables}")
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1")
    change(12)
    run(f"VACUUM (FULL, PARALLEL 2, VERBOSE) {tables}")
    old.execute("COMMIT")
    for point in POINTS:
        change(4)
        option = "FULL" if point.startswith(("heap-copy", "rewrite")) else "INDEX_CLEANUP on"
        run(f"VACUUM ({option}, PARALLEL 2) plain, toasted", cyclone__debug_point=f"{point}:error")
    run("VACUUM (PARALLEL 2) plain", statement_timeout="300ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="source tree of PostgreSQL")
    options = parser.parse_args()
    found = re.search(r"^PACKAGE_VERSION='(\d+)", (options.source / "configure").read_text(), re.MULTILINE)
    prefix = build.install(int(found[1]), debug_points=True)
    if "USE_VALGRIND" not in run_program(prefix, "pg_config", "--configure").stdout:
        parser.error(f"{prefix} was not configured with CPPFLAGS=-DUSE_VALGRIND")
    cluster.START_SECONDS = 600  # everything takes thirty times as long
    with tempfile.TemporaryDirectory(prefix="cyclone-valgrind-") as folder, Cluster.create(prefix, CONFIG) as server:
        logs = Path(folder)
        hand_over(logs)
        suppressions = logs / "suppressions"
        suppressions.write_text((options.source / "src" / "tools" / "valgrind.supp").read_text())
        suppressions.chmod(0o644)
        server.wrapper = ["valgrind", "--quiet", "--trace-children=yes", "--leak-check=no", f"--error-markers={BEGIN},END",
                          f"--suppressions={suppressions}", f"--log-file={logs}/%p.log"]  # fmt: skip
        server.start()
        workload = Workload(1, scale=0.5)
        with server.connect() as conn, server.connect() as old:
            conn.execute("CREATE EXTENSION pg_cyclone")
            checks.create_extensions(conn)
            conn.execute(SESSION)
            chance = random.Random(1)
            workload.create(conn, chance)
            tables = ", ".join(table.name for table in workload.tables)
            vacuum_in_all_ways(conn, old, Writer(workload, conn, 0, chance), tables)
            vacuum_all(conn, workload)
            assert_sound(conn, workload)
        server.stop()
        texts = [file.read_text(errors="replace") for file in logs.glob("*.log")]
        errors = [text for text in texts if BEGIN in text]
        print(f"{len(texts)} processes, {len(errors)} with something that memcheck found")
        print("\n".join(text[:3000] for text in errors[:5]))
        return 1 if errors or not texts else 0


if __name__ == "__main__":
    sys.exit(main())
