"""VACUUMs of each kind, with workers, errors, old snapshots and an adaptive delay, and the views and functions of schema cyclone, on
a server that runs under valgrind's memcheck; then the repository's SQL tests and isolation specs on it.

`make check-valgrind PGSRC=<source tree of PostgreSQL 17, 18 or 19>`. CYCLONE_PG17, CYCLONE_PG18 or CYCLONE_PG19 names a PostgreSQL that was configured
with CPPFLAGS=-DUSE_VALGRIND, so that memcheck knows its memory contexts. Anything that memcheck finds, but for what PostgreSQL's
own suppressions have, is a failure.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psycopg

from cyclone_lab import build, checks, cluster
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO, hand_over, program_env, program_path, run_program
from long_runs.proof import assert_sound, vacuum_all
from long_runs.workload import SESSION, Workload, Writer

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "fsync": "off",
    "autovacuum": "off",
    "shared_buffers": "4MB",
    "max_prepared_transactions": 5,
    "min_parallel_table_scan_size": 0,
    "min_parallel_index_scan_size": 0,
}
POINTS = ("heap-scan:leader", "btree-page:any", "heap-vacuum:worker", "index-cleanup:any", "heap-copy:any", "rewrite-swapped:leader",
          "inplace-half:leader", "inplace-value:leader", "inplace-batch:leader")  # fmt: skip
# Tables with free space in front. The values of the first two lie in the TOAST table; of the first, most belong to a column that is gone.
OWN_TABLES = """
    CREATE TABLE dropped (id int PRIMARY KEY, gone text, kept text);
    ALTER TABLE dropped ALTER gone SET STORAGE external, ALTER kept SET STORAGE external;
    INSERT INTO dropped SELECT i, repeat(md5(i::text), 200), repeat(md5(i::text), 100) FROM generate_series(1, 60) i;
    ALTER TABLE dropped DROP COLUMN gone;
    DELETE FROM dropped WHERE id % 3 = 0;
    CREATE TABLE moved (id int PRIMARY KEY, k int, pad text, value text);
    ALTER TABLE moved ALTER value SET STORAGE external;
    CREATE INDEX ON moved (k);
    CREATE INDEX ON moved USING hash (pad);
    INSERT INTO moved SELECT i, i % 10, md5(i::text), CASE WHEN i % 10 = 0 THEN repeat(md5(i::text), 100) ELSE repeat('x', 200) END
        FROM generate_series(1, 1000) i;
    DELETE FROM moved WHERE id <= 700;
    CREATE TABLE excluded (id int, pad text, EXCLUDE (id WITH =) DEFERRABLE INITIALLY DEFERRED);
    INSERT INTO excluded SELECT i, repeat('x', 300) FROM generate_series(1, 1000) i;
    DELETE FROM excluded WHERE id <= 700;
"""
OWN_CONTENT = """
    SELECT (SELECT array_agg(d ORDER BY id)::text FROM dropped d), (SELECT array_agg(m ORDER BY id)::text FROM moved m)
"""
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
    run(f"VACUUM (PARALLEL 0, FREEZE, ADAPTIVE_DELAY) {tables}")
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1")
    change(12)
    run(f"VACUUM (FULL, PARALLEL 2, VERBOSE) {tables}")
    old.execute("COMMIT")
    for point in POINTS:
        change(4)
        option = (
            "FULL" if point.startswith(("heap-copy", "rewrite"))
            else "FULL INPLACE, INDEX_CLEANUP off" if point.startswith("inplace") else "INDEX_CLEANUP on"
        )  # fmt: skip
        run(f"VACUUM ({option}, PARALLEL 2) plain, toasted", cyclone__debug_point=f"{point}:error")
    run("VACUUM (PARALLEL 2) plain", statement_timeout="300ms")
    change(6)
    run(f"VACUUM (FULL INPLACE, PARALLEL 2, VERBOSE) {tables}")


def shrink(conn: psycopg.Connection) -> None:
    """Make OWN_TABLES small, each in both ways, failing first; estimates of bloat come before and between."""

    def sizes() -> list[int]:
        return [size for table in ("dropped", "moved") for (size,) in conn.execute("SELECT pg_total_relation_size(%s)", (table,))]

    conn.execute(OWN_TABLES)
    [content] = conn.execute(OWN_CONTENT)
    before = sizes()
    for point in ("inplace-half", "inplace-value", "inplace-batch"):
        conn.execute("SELECT set_config('cyclone.debug_point', %s, false)", (f"{point}:leader:error",))
        try:
            conn.execute("VACUUM (FULL INPLACE) moved")
            raise AssertionError(f"the VACUUM does not come to {point}")
        except psycopg.errors.InternalError as error:
            print(error.diag.message_primary, flush=True)
    conn.execute("RESET cyclone.debug_point")
    for statement in ("VACUUM (FULL INPLACE, PARALLEL 2, VERBOSE) moved", "VACUUM (FULL, PARALLEL 2, VERBOSE) dropped",
                      "VACUUM (FULL INPLACE) dropped", "VACUUM (FULL, PARALLEL 0) moved"):  # fmt: skip
        for query in ("SELECT * FROM cyclone.bloat_details", "SELECT * FROM cyclone.estimate_bloat('moved', 4, 1)",
                      "SELECT * FROM cyclone.estimate_bloat('dropped')"):  # fmt: skip
            assert conn.execute(query).fetchall()
        conn.execute(statement)
        print(f"{statement}: done, {before} -> {sizes()} bytes", flush=True)
        assert [content] == conn.execute(OWN_CONTENT).fetchall(), "the rows are not as they were"
    assert all(now < then / 2 for now, then in zip(sizes(), before)), "the tables are hardly smaller"


def shrink_beside_the_excluded(conn: psycopg.Connection, other: psycopg.Connection) -> None:
    """Make a table small while another session is about to violate its exclusion constraint, so that rows are moved and moved back."""
    query = "SELECT (SELECT ctid FROM excluded WHERE id = 1000), array_agg(e.id ORDER BY id), pg_relation_size('excluded') FROM excluded e"
    row, ids, before = conn.execute(query).fetchone()
    other.execute("BEGIN; INSERT INTO excluded VALUES (1000)")
    conn.execute("SET cyclone.debug_horizon_wait = 1")
    conn.execute("VACUUM (FULL INPLACE, VERBOSE) excluded")
    assert conn.execute(query).fetchone()[:2] == (row, ids), "a row that others look for has moved, or the rows are not as they were"
    other.execute("ROLLBACK")
    conn.execute("RESET cyclone.debug_horizon_wait")
    conn.execute("VACUUM (FULL INPLACE, PARALLEL 2) excluded")
    moved, now_ids, size = conn.execute(query).fetchone()
    print(f"VACUUM (FULL INPLACE) beside a row that excludes one: {row} stayed and is {moved} now, {before} -> {size} bytes", flush=True)
    assert ids == now_ids and moved != row and size < before / 2


def vacuum_beside_others(server: Cluster, conn: psycopg.Connection) -> None:
    """VACUUM with an adaptive delay and without, while one session works and another reads the views."""
    ended = threading.Event()
    seen = {"progress": 0, "pace": 0, "statements": 0}

    def statements() -> None:
        with server.connect() as other:
            while not ended.is_set():
                other.execute("UPDATE moved SET k = k + 1 WHERE id = 800")
                other.execute("SELECT count(*) FROM moved WHERE k = %s", (3,))
                seen["statements"] += 2

    def views() -> None:
        with server.connect() as other:
            while not ended.is_set():
                for view in ("progress", "pace"):
                    seen[view] += len(other.execute(f"SELECT * FROM cyclone.{view}").fetchall())

    others = [threading.Thread(target=work) for work in (statements, views)]
    for other in others:
        other.start()
    try:
        for adaptive in ("off", "on"):
            for option in ("PARALLEL 2, VERBOSE, DISABLE_PAGE_SKIPPING", "FULL INPLACE"):
                conn.execute(f"VACUUM ({option}, ADAPTIVE_DELAY {adaptive}) plain, moved")
    finally:
        ended.set()
        for other in others:
            other.join()
    print(f"VACUUM beside others: {seen}", flush=True)
    assert all(seen.values()), "the others saw nothing of it"


def run_own_tests(server: Cluster, folder: Path) -> None:
    """Run the SQL tests and isolation specs on the server, with their output in `folder`; raise RuntimeError if one fails."""
    folder.mkdir()
    command = ["make", "-C", folder, "-f", REPO / "Makefile", "installcheck", f"PG_CONFIG={program_path(server.prefix, 'pg_config')}"]
    env = {name: value for name, value in program_env(server.prefix).items() if not name.startswith(("MAKE", "MFLAGS"))}
    result = subprocess.run(command, env={**env, **server.client_env()}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(result.stdout, flush=True)
    if result.returncode != 0:
        raise RuntimeError("\n".join(file.read_text() for file in folder.rglob("regression.diffs")))


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
            shrink(conn)
            shrink_beside_the_excluded(conn, old)
            vacuum_beside_others(server, conn)
            vacuum_all(conn, workload)
            assert_sound(conn, workload)
        server.config = {"shared_preload_libraries": "pg_cyclone", "autovacuum": "off", "fsync": "off", "max_prepared_transactions": 5}
        server.restart()
        run_own_tests(server, logs / "results")
        server.stop()
        texts = [file.read_text(errors="replace") for file in logs.glob("*.log")]
        errors = [text for text in texts if BEGIN in text]
        print(f"{len(texts)} processes, {len(errors)} with something that memcheck found")
        print("\n".join(text[:3000] for text in errors[:5]))
        return 1 if errors or not texts else 0


if __name__ == "__main__":
    sys.exit(main())
