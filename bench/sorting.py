"""Measures what sorting takes for an entry, in nanoseconds of CPU time: pg_cyclone's sort of integers, in a program of its own, and
PostgreSQL's tuplesort, as the difference between a query with ORDER BY and the same without. All in memory. `make bench-sorting`.

tuplesort has it easier: it sorts bare values here, not index tuples. Where there are two columns it sorts tuples.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

from circumstances import RESULTS, add_common_arguments, find_circumstances, print_circumstances
from cyclone_lab import build
from cyclone_lab.cluster import Cluster

UNIT = build.REPO / "test" / "unit"
FLAGS = ["-std=gnu11", "-O2", "-fno-strict-aliasing", "-fwrapv", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections",
         "-D_GNU_SOURCE"]  # fmt: skip
CONFIG = {
    "autovacuum": "off",
    "fsync": "off",
    "shared_buffers": "1GB",
    "work_mem": "16GB",
    "max_parallel_workers_per_gather": 0,
    "jit": "off",
}
HASH = "hashint8extended(i, 0)"
# Columns, and of what they are made, as entry_sort_times.c has it
KINDS = {
    "int4": f"{HASH}::bit(64)::bit(32)::int AS a",
    "int8": f"{HASH} AS a",
    "in-order": "i::int AS a",
    "stretches": "(i # 16384)::int AS a",
    "int4-int8": f"{HASH}::bit(64)::bit(32)::int AS a, hashint8extended(i, 1) AS b",
}
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
# Few entries are sorted again and again, until this many were
LEAST_ENTRIES = 2_000_000


def compiled(prefix: Path, folder: Path) -> Path:
    """Return the program that measures our sort, compiled as the extension is, without assertions."""
    config = prefix / "bin" / "pg_config"
    headers = subprocess.run([config, "--includedir-server"], text=True, capture_output=True, check=True).stdout.strip()
    features = subprocess.run([build.REPO / "scripts" / "probe-server", "cc", f"-I{headers}"], check=True, capture_output=True)
    (folder / "server_features.h").write_bytes(features.stdout)
    program = folder / "entry_sort_times"
    includes = [f"-I{path}" for path in (build.REPO / "src", UNIT, folder, headers)]
    subprocess.run(["cc", *FLAGS, *includes, UNIT / "unit.c", UNIT / "entry_sort_times.c", "-o", program, "-lm"], check=True)
    return program


def our_ns(program: Path, kind: str, n: int) -> float:
    """Return the nanoseconds that our sort takes for one of n entries."""
    return float(subprocess.run([program, kind, str(n)], text=True, capture_output=True, check=True).stdout.split()[0])


def tuplesort_ns(conn, kind: str, n: int) -> float:
    """Return the nanoseconds that PostgreSQL's sort takes for one of n rows of the table t."""
    columns = "a, b" if "-int" in kind else "a"
    statistics = Path(f"/proc/{conn.info.backend_pid}/schedstat")
    times = max(LEAST_ENTRIES // n, 1)

    def cpu_ns(order: str) -> int:
        before = int(statistics.read_text().split()[0])
        for _ in range(times):
            conn.execute(f"SELECT {columns} FROM t {order} OFFSET {n}")
        return int(statistics.read_text().split()[0]) - before

    return (cpu_ns(f"ORDER BY {columns}") - cpu_ns("")) / times / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="numbers of entries (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "sorting")
    options = parser.parse_args()
    prefix = build.install(options.major)
    config = {**CONFIG, **dict(options.set)}
    print_circumstances(Console(), find_circumstances(prefix, config, options.base))
    with tempfile.TemporaryDirectory(dir=options.base) as folder, Cluster.create(prefix, config, base=options.base) as cluster:
        program = compiled(prefix, Path(folder))
        cluster.start()
        with cluster.connect() as conn:
            conn.prepare_threshold = None  # each table t has columns of its own
            for kind, expressions in KINDS.items():
                for n in options.sizes:
                    conn.execute(f"CREATE UNLOGGED TABLE t AS SELECT {expressions} FROM generate_series(1::bigint, {n}) i")
                    conn.execute("SELECT count(*) FROM t")
                    ours = min(our_ns(program, kind, n) for _ in range(options.rounds))
                    core = min(tuplesort_ns(conn, kind, n) for _ in range(options.rounds))
                    conn.execute("DROP TABLE t")
                    print(f"{kind:10} {n:12,} entries: {ours:6.1f} ns, tuplesort {core:6.1f} ns: {core / ours:5.1f} times as fast", flush=True)


if __name__ == "__main__":
    main()
