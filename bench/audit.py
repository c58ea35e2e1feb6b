"""Measures what audits cost: the CPU time of VACUUM in one process without any and with all but each page audited, of tables in memory.

What a share of the pages costs is that share of the difference, which is larger than the noise. `make bench-audit`.
"""

import argparse
from pathlib import Path

from rich.console import Console

from circumstances import RESULTS, add_common_arguments, find_circumstances, print_circumstances
from cyclone_lab import build
from cyclone_lab.cluster import Cluster

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "off",
    "fsync": "off",
    "shared_buffers": "1GB",
    "checkpoint_timeout": "1h",
    "max_parallel_maintenance_workers": 0,
}
DEFAULT = 0.01
# So many that the second look at indexes takes half as many, as with any share below 1
MOST = 0.99
POINT = "(point(v, id % 97))"
# Indexes, which rows are deleted, and options
CASES = {
    "no index": ((), "id % 20 = 0", ""),
    "no index, FREEZE": ((), "id % 20 = 0", "(FREEZE)"),
    "btree in order": (("(id)",), "id % 20 = 0", ""),
    "btree in random order": (("(hashint8(id))",), "id % 20 = 0", ""),
    "the same, nine tenths deleted": (("(hashint8(id))",), "id % 10 <> 0", ""),
    "four btrees": (("(id)", "(hashint8(id))", "((v % 1000))", "((to_hex(v)))"), "id % 20 = 0", ""),
    "hash": (("USING hash (id)",), "id % 5 = 0", ""),
    "GIN": (("USING gin ((ARRAY[v % 1000, v]))",), "id % 5 = 0", ""),
    "GiST": ((f"USING gist ({POINT})",), "id % 5 = 0", ""),
    "SP-GiST": ((f"USING spgist ({POINT})",), "id % 5 = 0", ""),
}


def cpu_ms(conn, case, rows: int, audit: float) -> float:
    """Return the CPU time of a VACUUM of a fresh table."""
    indexes, deleted, options = case
    conn.execute("DROP TABLE IF EXISTS t")
    conn.execute("CREATE UNLOGGED TABLE t (id bigint, v int) WITH (autovacuum_enabled = off)")
    conn.execute(f"INSERT INTO t SELECT i, i FROM generate_series(1, {rows}) i")
    for index in indexes:
        conn.execute(f"CREATE INDEX ON t {index}")
    conn.execute(f"DELETE FROM t WHERE {deleted}")
    conn.execute("SELECT count(*) FROM t")
    conn.execute(f"SET cyclone.audit = {audit}")
    statistics = Path(f"/proc/{conn.info.backend_pid}/schedstat")
    before = int(statistics.read_text().split()[0])
    conn.execute(f"VACUUM {options} t")
    return (int(statistics.read_text().split()[0]) - before) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="size of the table (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "audit")
    options = parser.parse_args()
    prefix = build.install(options.major)
    config = {**CONFIG, **dict(options.set)}
    print_circumstances(Console(), find_circumstances(prefix, config, options.base))
    with Cluster.create(prefix, config, base=options.base) as cluster:
        cluster.start()
        with cluster.connect() as conn:
            for name, case in CASES.items():
                best = {audit: min(cpu_ms(conn, case, options.rows, audit) for _ in range(options.rounds)) for audit in (0, MOST)}
                ratio = best[MOST] / best[0] - 1
                default = ratio * DEFAULT / MOST
                print(f"{name:30} {best[0]:8.1f} ms, audited {best[MOST]:8.1f} ms: {ratio:6.0%}, by default {default:.2%}", flush=True)


if __name__ == "__main__":
    main()
