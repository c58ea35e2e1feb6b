"""Measures VACUUM of a table with an HNSW index of pgvector: pgvector's own bulk deletion, and the team's, in the same run.

Each contender has a copy of the same data directory, so the same graph and the same dead rows. WAL of the index is counted apart from
the images of whole pages in it, as a checkpoint before decides how many of them there are. Recall is how many of the ten nearest rows a
search finds, at two values of ef_search, of 200 queries; and that of an index built anew from the rows that are left. CYCLONE_PGVECTOR
says where pgvector's source is (test/cyclone_lab/pgvector.py). `make bench-vectors` prints a table, and writes
bench/results/vectors/results.json.
"""

import argparse
import re
import time
from statistics import median

import numpy as np
import psycopg

from circumstances import RESULTS, add_common_arguments, begin, run_main, save_results
from cyclone_lab import hnsw, pgvector
from cyclone_lab.cluster import Cluster

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "off",
    "fsync": "off",
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "maintenance_work_mem": "1GB",
    "max_parallel_maintenance_workers": 4,
}
CLUSTERS_A_ROW, NEIGHBOURS, SEARCHES, QUERIES = 1 / 25, 10, (40, 100), 200
CONTENDERS = {"pgvector": "", "one process": "PARALLEL 0, ", "with a worker": "PARALLEL 1, "}


class Vectors:
    """Random vectors around centres of clusters, with a few directions in which they differ most; or uniform ones."""

    def __init__(self, rows: int, dimensions: int, kind: str):
        random = np.random.default_rng(7)
        self.kind, self.dimensions = kind, dimensions
        self.centres = random.normal(size=(max(int(rows * CLUSTERS_A_ROW), 1), dimensions))
        self.directions = random.normal(size=(16, dimensions)) * 3 / 8

    def make(self, number: int, seed: int) -> np.ndarray:
        random = np.random.default_rng(seed)
        if self.kind == "uniform":
            return random.random(size=(number, self.dimensions))
        vectors = self.centres[random.integers(0, len(self.centres), number)] + random.normal(size=(number, 16)) @ self.directions
        return vectors + random.normal(size=vectors.shape) * 0.6


def as_text(vectors: np.ndarray) -> list[str]:
    return ["[" + ",".join(f"{x:.5g}" for x in vector) + "]" for vector in vectors]


def create(conn: psycopg.Connection, vectors: np.ndarray) -> None:
    """Make a table with these vectors and an index."""
    conn.execute("CREATE EXTENSION vector; CREATE EXTENSION pageinspect")
    conn.execute(f"CREATE TABLE v (id int, e vector({vectors.shape[1]})) WITH (autovacuum_enabled = off)")
    insert(conn, vectors)
    conn.execute("CREATE INDEX v_e ON v USING hnsw (e vector_l2_ops)")


def insert(conn: psycopg.Connection, vectors: np.ndarray, first: int = 0) -> None:
    with conn.cursor().copy("COPY v (id, e) FROM STDIN") as copy:
        for number, vector in enumerate(as_text(vectors)):
            copy.write_row((first + number, vector))


def nearest(conn: psycopg.Connection, table: str, queries: list[str]) -> list[set[int]]:
    query = f"SELECT id FROM {table} ORDER BY e <-> %s::vector LIMIT {NEIGHBOURS}"
    return [{number for (number,) in conn.execute(query, (vector,), prepare=False)} for vector in queries]


def exact(conn: psycopg.Connection, table: str, queries: list[str]) -> list[set[int]]:
    """Return the nearest rows of each query, without an index."""
    conn.execute("SET enable_indexscan = off; SET enable_seqscan = on")
    return nearest(conn, table, queries)


def recalls(conn: psycopg.Connection, table: str, queries: list[str], truth: list[set[int]]) -> list[float]:
    """Return the share of the nearest rows that searches find, for each of SEARCHES."""
    conn.execute("SET enable_indexscan = on; SET enable_seqscan = off")
    found = []
    for searches in SEARCHES:
        conn.execute(f"SET hnsw.ef_search = {searches}")
        pairs = zip(truth, nearest(conn, table, queries), strict=True)
        found.append(round(float(np.mean([len(right & there) / NEIGHBOURS for right, there in pairs])), 4))
    return found


def vacuum(conn: psycopg.Connection, contender: str) -> tuple[float, str]:
    """Run VACUUM after a checkpoint; return how many seconds it took, and where its WAL begins."""
    conn.execute(f"SET cyclone.enabled = {contender != 'pgvector'}")
    conn.execute("CHECKPOINT")
    [(before,)] = conn.execute("SELECT pg_current_wal_insert_lsn()")
    start = time.monotonic()
    conn.execute(f"VACUUM ({CONTENDERS[contender]}INDEX_CLEANUP on) v")
    return round(time.monotonic() - start, 3), before


def wal_of_index(conn: psycopg.Connection, cluster: Cluster, since: str) -> dict:
    """Return how much WAL of the index there is, and how large the images of whole pages in it are. Only such an index has generic records."""
    [(until,)] = conn.execute("SELECT pg_current_wal_insert_lsn()")
    conn.execute("SELECT pg_switch_wal()")
    told = cluster.run("pg_waldump", "--stats", "--path", cluster.data / "pg_wal", "--start", since, "--end", until).stdout
    records, images = re.search(r"^Generic\s+\d+ \(.*?\)\s+(\d+) \(.*?\)\s+(\d+) ", told, re.MULTILINE).groups()
    return {"wal_mb": round(int(records) / 1e6, 2), "images_mb": round(int(images) / 1e6, 2)}


def measure_case(origin: Cluster, vectors: Vectors, options: argparse.Namespace, share: float) -> dict:
    """Return of each contender the medians of its rounds' times and WAL, and what its graph is like; rounds of contenders take turns."""
    runs = [{name: measure(origin, name, vectors, options, share, number == 0) for name in options.only} for number in range(options.rounds)]
    medians = {name: {key: median(run[name][key] for run in runs) for key in ("seconds", "wal_mb", "images_mb")} for name in options.only}
    seconds = {name: [run[name]["seconds"] for run in runs] for name in options.only}
    return {"share": share, "results": {name: {**runs[0][name], **medians[name], "all_seconds": seconds[name]} for name in options.only}}


def measure(origin: Cluster, contender: str, vectors: Vectors, options: argparse.Namespace, share: float, with_graph: bool) -> dict:
    """Return what a contender takes, on a copy of a stopped cluster, for so many dead rows, and with_graph what its graph is like then."""
    with origin.copy() as cluster:
        cluster.config["full_page_writes"] = "off" if options.no_full_pages else "on"
        cluster.start()
        with cluster.connect() as conn:
            for number in range(options.cycles):
                conn.execute(f"DELETE FROM v WHERE abs(hashint8(id::bigint * 31 + {number})) % 1000 < {share * 1000:.0f}")
                [(deleted,)] = conn.execute(f"SELECT {options.rows} - count(*) FROM v")
                seconds, since = vacuum(conn, contender)
                if number + 1 < options.cycles:
                    insert(conn, vectors.make(deleted, 100 + number), options.rows * (number + 2))
            result = {"seconds": seconds, **wal_of_index(conn, cluster, since)}
            if not with_graph:
                return result
            queries = as_text(vectors.make(QUERIES, 99))
            truth = exact(conn, "v", queries)
            result |= {"recall": recalls(conn, "v", queries, truth), "unreachable": len(hnsw.read(conn, "v_e").unreachable())}
            conn.execute("CREATE TABLE anew AS SELECT * FROM v; CREATE INDEX ON anew USING hnsw (e vector_l2_ops)")
            return result | {"recall_anew": recalls(conn, "anew", queries, truth)}


def lines(saved: dict) -> list[str]:
    heads = "dead rows", "VACUUM by", "time", "", "WAL of the index, and images", "recall, ef_search 40 and 100", "of an index built anew", "not reached"
    found = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for case in saved["cases"]:
        own = case["results"]["pgvector"]["seconds"] if "pgvector" in case["results"] else None
        for name, one in case["results"].items():
            times = f"{own / one['seconds']:.1f} ×" if own and name != "pgvector" else ""
            recall, anew = (" and ".join(f"{value:.3f}" for value in one[key]) for key in ("recall", "recall_anew"))
            wal = f"{one['wal_mb']:.2f} + {one['images_mb']:.1f} MB"
            cells = f"{case['share']:.0%}", name, f"{one['seconds']:.2f} s", times, wal, recall, anew, one["unreachable"]
            found.append("| " + " | ".join(map(str, cells)) + " |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000, help="size of the table (default: %(default)s)")
    parser.add_argument("--dimensions", type=int, default=96, help="of a vector (default: %(default)s)")
    parser.add_argument("--kind", choices=("clusters", "uniform"), default="clusters", help="of data (default: %(default)s)")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.01], help="of rows that are deleted (default: 0.1 0.01)")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (default: %(default)s)")
    parser.add_argument("--cycles", type=int, default=1, help="of deletion, VACUUM and insertion; the last VACUUM counts (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="these contenders (default: all)")
    parser.add_argument("--no-full-pages", action="store_true", help="write no full pages to WAL after the checkpoint")
    add_common_arguments(parser, RESULTS / "vectors")
    options = parser.parse_args()
    _console, prefix, config, circumstances = begin(options, CONFIG)
    circumstances["pgvector"] = pgvector.install(prefix)
    vectors = Vectors(options.rows, options.dimensions, options.kind)
    with Cluster.create(prefix, config, base=options.base) as origin:
        origin.start()
        with origin.connect() as conn:
            create(conn, vectors.make(options.rows, 1))
        origin.stop()
        cases = [measure_case(origin, vectors, options, share) for share in options.shares]
    save_results(options.results, circumstances, lines, rounds=options.rounds, rows=options.rows, dimensions=options.dimensions, kind=options.kind, cases=cases)


if __name__ == "__main__":
    run_main(main)
