"""Measures whether recall pays: what searches of an HNSW index of pgvector find after many rounds of deletion, VACUUM and insertion.

Beside it pgvector's own VACUUM, of a copy of the same data, and an index built anew from the same rows. In each round the entry point
dies, too. The cases: a tenth of the rows, of random ones or of the oldest, is deleted and inserted anew in each round; one in a
hundred is; half is deleted, or whole regions are, once. Elements that no links lead to are counted after the last VACUUM. `--embeddings` names a
file of numpy's with one vector a row, in random order, enough for queries and insertions. CYCLONE_PGVECTOR says where pgvector's
source is (test/cyclone_lab/pgvector.py). `make bench-recall` prints a table, and writes bench/results/recall/results.json.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psycopg

from circumstances import RESULTS, add_common_arguments, begin, run_main, save_results
from cyclone_lab import hnsw, pgvector
from cyclone_lab.cluster import Cluster
from vectors import CONFIG, SEARCHES, Vectors, as_text, create, exact, insert, recalls, vacuum

QUERIES, BUILDS = 1000, 2
OF_TABLE, OF_QUERIES, FRESH = 1, 99, 100  # seeds of vectors; of the rounds' ones from FRESH on
REGION = 50  # a region is that part of the rows, the nearest ones of one


class Rows(NamedTuple):
    """The rows of the table, the oldest first."""

    ids: np.ndarray
    vectors: np.ndarray

    def some(self, number: int, random: np.random.Generator) -> np.ndarray:
        return random.choice(len(self.ids), number, replace=False)

    def oldest(self, number: int, _random: np.random.Generator) -> np.ndarray:
        return np.arange(number)

    def regions(self, number: int, random: np.random.Generator) -> np.ndarray:
        """Return the nearest rows of some."""
        size = len(self.ids) // REGION
        centres = self.vectors[random.choice(len(self.ids), number // size, replace=False)]
        return np.unique([np.argsort(((self.vectors - centre) ** 2).sum(axis=1))[:size] for centre in centres])


class Case(NamedTuple):
    rounds: int
    share: float
    choose: Callable[[Rows, int, np.random.Generator], np.ndarray]


CASES = {
    "rounds": Case(20, 0.1, Rows.some),
    "oldest": Case(20, 0.1, Rows.oldest),
    "entry points": Case(20, 0.01, Rows.some),
    "half": Case(1, 0.5, Rows.some),
    "regions": Case(1, 0.4, Rows.regions),
}
CONTENDERS = ("pgvector", "one process", "with a worker")


class File:
    """Vectors of a file: those of queries come first, then those of the table, then those that are inserted, in each case the same."""

    def __init__(self, path: Path, rows: int):
        self.vectors = np.load(path, mmap_mode="r")
        self.rows = rows

    def make(self, number: int, seed: int) -> np.ndarray:
        first = {OF_QUERIES: 0, OF_TABLE: QUERIES}.get(seed, QUERIES + self.rows + (seed - FRESH) * number)
        if first + number > len(self.vectors):
            raise RuntimeError(f"the file has {len(self.vectors)} vectors, of which {first + number} are needed")
        return np.array(self.vectors[first : first + number])


def entry_point(conn: psycopg.Connection) -> int:
    """Return the id of a row of the index's entry point."""
    graph = hnsw.read(conn, "v_e")
    block, offset = graph.rows[graph.numbers([graph.entry])[0]][0]
    return conn.execute("SELECT id FROM v WHERE ctid = %s::tid", (f"({block},{offset})",)).fetchone()[0]


def delete(conn: psycopg.Connection, rows: Rows, chosen: np.ndarray) -> Rows:
    """Delete rows, and that of the entry point; return those that are left."""
    gone = np.isin(rows.ids, [*rows.ids[chosen], entry_point(conn)])
    conn.execute("DELETE FROM v WHERE id = ANY (%s)", (rows.ids[gone].tolist(),))
    return Rows(rows.ids[~gone], rows.vectors[~gone])


def live(conn: psycopg.Connection, case: Case, contender: str, rows: Rows, fresh: list[np.ndarray]) -> None:
    """Go through the rounds of a case; the last one ends with VACUUM."""
    random = np.random.default_rng(5)
    for number in range(case.rounds):
        rows = delete(conn, rows, case.choose(rows, int(len(rows.ids) * case.share), random))
        vacuum(conn, contender)
        if number < len(fresh):
            first = rows.ids.max() + 1
            insert(conn, fresh[number], first)
            ids = np.concatenate([rows.ids, np.arange(first, first + len(fresh[number]))])
            rows = Rows(ids, np.concatenate([rows.vectors, fresh[number]]))


def measure(origin: Cluster, case: Case, contender: str, rows: Rows, fresh: list[np.ndarray], queries: list[str]) -> dict:
    """Return what searches find on a copy of a stopped cluster, after a case, and in indexes built anew."""
    with origin.copy() as cluster:
        cluster.start()
        with cluster.connect() as conn:
            live(conn, case, contender, rows, fresh)
            truth = exact(conn, "v", queries)
            found = {"recall": recalls(conn, "v", queries, truth), "unreachable": len(hnsw.read(conn, "v_e").unreachable())}
            conn.execute("CREATE TABLE anew AS SELECT * FROM v")
            builds = []
            for _ in range(BUILDS):
                conn.execute("DROP INDEX IF EXISTS anew_e; CREATE INDEX anew_e ON anew USING hnsw (e vector_l2_ops)")
                builds.append(recalls(conn, "anew", queries, truth))
            return found | {"recall_anew": np.mean(builds, axis=0).round(4).tolist()}


def lines(saved: dict) -> list[str]:
    first, second = SEARCHES
    heads = "data", "case", "VACUUM by", f"recall, ef_search {first} and {second}", "of an index built anew", "before", "not reached"
    found = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, contenders in saved["cases"].items():
        for contender, one in contenders.items():
            recall, anew, before = (" and ".join(f"{value:.3f}" for value in values) for values in (one["recall"], one["recall_anew"], saved["before"]))
            found.append(f"| {saved['data']} | {name} | {contender} | {recall} | {anew} | {before} | {one['unreachable']} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000, help="size of the table (default: %(default)s)")
    parser.add_argument("--dimensions", type=int, default=96, help="of a vector (default: %(default)s)")
    parser.add_argument("--kind", choices=("clusters", "uniform"), default="clusters", help="of data (default: %(default)s)")
    parser.add_argument("--embeddings", type=Path, metavar="FILE.npy", help="vectors to use instead")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="these cases (default: all)")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=["pgvector", "one process"], help="these contenders (default: %(default)s)")
    add_common_arguments(parser, RESULTS / "recall")
    options = parser.parse_args()
    _console, prefix, config, circumstances = begin(options, CONFIG)
    circumstances["pgvector"] = pgvector.install(prefix)
    source = File(options.embeddings, options.rows) if options.embeddings else Vectors(options.rows, options.dimensions, options.kind)
    data = options.embeddings.stem if options.embeddings else f"{options.kind}, {options.dimensions}"
    queries, vectors = as_text(source.make(QUERIES, OF_QUERIES)), source.make(options.rows, OF_TABLE)
    fresh = {name: [source.make(int(options.rows * CASES[name].share), FRESH + i) for i in range(CASES[name].rounds - 1)] for name in options.cases}
    rows = Rows(np.arange(options.rows), vectors)
    with Cluster.create(prefix, config, base=options.base) as origin:
        origin.start()
        with origin.connect() as conn:
            create(conn, vectors)
            before = recalls(conn, "v", queries, exact(conn, "v", queries))
        origin.stop()
        cases = {name: {} for name in options.cases}
        for name, found in cases.items():
            for contender in options.only:
                found[contender] = measure(origin, CASES[name], contender, rows, fresh[name], queries)
                print(name, contender, found[contender], flush=True)
    save_results(options.results, circumstances, lines, data=data, before=before, cases=cases)


if __name__ == "__main__":
    run_main(main)
