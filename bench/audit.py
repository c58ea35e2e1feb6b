"""Measures what audits cost: the CPU time of VACUUM in one process, of tables in memory, without audits and with several shares of pages.

An audit of a share of the pages costs that share of the difference, which is larger than the noise. VACUUM (FULL) counts the rows of the
new file whatever the share is: what audits of next to no page add is a column of its own, as exact as the machine is quiet. `make
bench-audit` prints a table, and writes the times into bench/results/audit/results.json.
"""

import argparse
from dataclasses import dataclass

import psycopg

from circumstances import RESULTS, add_common_arguments, begin, run_main, save_results
from cyclone_lab.cluster import Cluster
from figures import audit_lines
from kernel import session_ns

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "off",
    "fsync": "off",
    "synchronous_commit": "off",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "max_parallel_maintenance_workers": 0,
}
# next to none; and as many as let the second look at indexes take half as many, as with any share below 1
LEAST, MOST = 1e-6, 0.99
SHARES = {"none": 0, "least": LEAST, "most": MOST}
POINT = "(point(v, id % 97))"
FOUR = ("(id)", "(hashint8(id))", "((v % 1000))", "((to_hex(v)))")


@dataclass(frozen=True)
class Case:
    """A table to be vacuumed: its indexes, which of its rows are deleted, and how."""

    indexes: tuple[str, ...] = ()
    deleted: str = "id % 20 = 0"
    options: str = ""
    logged: bool = False
    own_transactions: bool = False  # each row is inserted by one, and there are a tenth of the rows


CASES = {
    "no index": Case(),
    "no index, FREEZE": Case(options="(FREEZE)"),
    "no index, FREEZE, a transaction for each row": Case(options="(FREEZE)", own_transactions=True),
    "no index, a transaction for each row": Case(own_transactions=True),
    "no index, logged": Case(logged=True),
    "btree in order": Case(("(id)",)),
    "btree in random order": Case(("(hashint8(id))",)),
    "the same, logged": Case(("(hashint8(id))",), logged=True),
    "the same, nine tenths deleted": Case(("(hashint8(id))",), "id % 10 <> 0"),
    "four btrees": Case(FOUR),
    "hash": Case(("USING hash (id)",), "id % 5 = 0"),
    "GIN": Case(("USING gin ((ARRAY[v % 1000, v]))",), "id % 5 = 0"),
    "GiST": Case((f"USING gist ({POINT})",), "id % 5 = 0"),
    "SP-GiST": Case((f"USING spgist ({POINT})",), "id % 5 = 0"),
    "FULL, no index": Case((), "id % 3 = 0", "(FULL)"),
    "FULL, four btrees": Case(FOUR, "id % 3 = 0", "(FULL)"),
    "FULL INPLACE, no index": Case((), "id % 3 = 0", "(FULL INPLACE)"),
    "FULL INPLACE, four btrees": Case(FOUR, "id % 3 = 0", "(FULL INPLACE)"),
}


def make_table(conn: psycopg.Connection, case: Case, rows: int) -> None:
    """Make the table anew, in shared buffers."""
    conn.execute("DROP TABLE IF EXISTS t")
    conn.execute(f"CREATE {'' if case.logged else 'UNLOGGED'} TABLE t (id bigint, v int) WITH (autovacuum_enabled = off)")
    if case.own_transactions:
        conn.execute(f"DO $$BEGIN FOR i IN 1..{rows // 10} LOOP INSERT INTO t VALUES (i, i); COMMIT; END LOOP; END$$")
    else:
        conn.execute(f"INSERT INTO t SELECT i, i FROM generate_series(1, {rows}) i")
    for index in case.indexes:
        conn.execute(f"CREATE INDEX ON t {index}")
    conn.execute(f"DELETE FROM t WHERE {case.deleted}")
    conn.execute("SELECT count(*) FROM t")
    conn.execute("CHECKPOINT")


def cpu_ms(conn: psycopg.Connection, case: Case, rows: int, audit: float) -> float:
    """Return the CPU time of a VACUUM of a fresh table in milliseconds."""
    make_table(conn, case, rows)
    conn.execute(f"SET cyclone.audit = {audit}")
    before = session_ns(conn)
    conn.execute(f"VACUUM {case.options} t")
    return (session_ns(conn) - before) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="size of the table (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help="these cases (default: all)")
    add_common_arguments(parser, RESULTS / "audit")
    options = parser.parse_args()
    _console, prefix, config, circumstances = begin(options, CONFIG)
    cases = []
    with Cluster.create(prefix, config, base=options.base) as cluster:
        cluster.start()
        with cluster.connect() as conn:
            for name in options.only:
                runs: dict[str, list[float]] = {share: [] for share in SHARES}
                for _ in range(options.rounds):
                    for share, times in runs.items():
                        times.append(cpu_ms(conn, CASES[name], options.rows, SHARES[share]))
                cases.append({"name": name, **{share: round(min(times), 3) for share, times in runs.items()}})
    save_results(options.results, circumstances, audit_lines, rows=options.rows, rounds=options.rounds, cases=cases)


if __name__ == "__main__":
    run_main(main)
