"""The parts that the long runs share: the options of their commands, and how they begin and end."""

import argparse
import random
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from cyclone_lab import build, checks, pgvector
from cyclone_lab.cluster import Cluster, spoil_freed_memory
from cyclone_lab.postgres import REPO
from long_runs.autovacuum import Autovacuums
from long_runs.workload import Workload

# Settings of their servers
CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "cyclone.audit": 1,
    "autovacuum": "off",
    "fsync": "off",  # what is written survives the death of processes
    "max_worker_processes": 16,
    "max_parallel_workers_per_gather": 0,
    "min_parallel_table_scan_size": 0,
    "jit": "off",
}


class LongRun:
    """A run on a server, which is removed in the end; `done` counts what happened."""

    def __init__(self, cluster: Cluster | None, seed: int, with_autovacuum: bool):
        self.cluster = cluster
        self.seed = seed
        self.done: Counter = Counter()
        self.autovacuums = Autovacuums(cluster) if with_autovacuum else None
        self.database = ""

    def __enter__(self):
        return self

    def __exit__(self, *_exception) -> None:
        self.cluster.remove()

    @contextmanager
    def kept(self, command: str, number: int, repeat: str):
        """Keep the server's files if the block fails, and say where they are and which options repeat it."""
        try:
            yield
        except BaseException as failure:
            if self.cluster and not isinstance(failure, KeyboardInterrupt):
                log = self.cluster.log[-3000:]
                kept = self.cluster.keep(REPO / "build" / command / f"{self.seed}-{number}")
                failure.add_note(f"{number} failed: repeat with SEED={self.seed} {repeat}; the server's files are in {kept}\n{log}")
            raise

    def begin_life(self, number: int, rng: random.Random, writers: int, config: dict) -> None:
        """Start the server anew, with other settings, and make fresh tables in a database of their own."""
        self.cluster.stop()
        self.cluster.config = config
        self.cluster.start()
        self.database = f"life_{number}"
        self.cluster.sql(f"CREATE DATABASE {self.database}")
        with self.cluster.connect(self.database) as conn:
            conn.execute("CREATE EXTENSION pg_cyclone")
            checks.create_extensions(conn)
            self.workload = Workload(writers)
            self.workload.create(conn, rng)


def main(kind: type, about: str, name: str, amount: str, default: float, *, writers: bool = False, rounds_of: int = 0,
         **words_of: tuple[str, ...]) -> int:
    """Run a long run of this kind as its options say, and print what was done.

    `amount` is the option that says for how long, as minutes or a number of rounds; with `writers` there is one for the number of
    writers, with `rounds_of` one for the first round, a multiple of it; each of `words_of` is an option with its words, the first by default.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(f"--{amount}", type=float if amount == "minutes" else int, default=default)
    if writers:
        parser.add_argument("--writers", type=int, default=8)
    if rounds_of:
        parser.add_argument("--first", type=int, default=0, help=f"number of the first one, a multiple of {rounds_of}")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--version", type=int, default=18, help="17, 18 or 19")
    parser.add_argument("--base", type=Path, help="folder for the servers' files")
    parser.add_argument("--autovacuum", action="store_true", help="autovacuum on the engine is a driver, too")
    for option, choices in words_of.items():
        parser.add_argument(f"--{option}", choices=choices, default=choices[0])
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    words = [f"SEED={options.seed}", f"{amount.upper()}={getattr(options, amount):g}"]
    words += [f"WRITERS={options.writers}"] if writers else []
    words += [f"FIRST={options.first}"] if rounds_of else []
    words += [f"{option.upper()}={getattr(options, option)}" for option in words_of]
    words.append(spoil_freed_memory())
    print(f"{name} of PostgreSQL {options.version}:", *words, flush=True)
    prefix = build.install(options.version, debug_points=True)
    if not pgvector.why_not(options.version):
        pgvector.install(prefix)
    what = (options.seed, options.writers) if writers else (options.version, options.seed)
    more = {option: getattr(options, option) for option in words_of}
    with kind(prefix, *what, base=options.base, with_autovacuum=options.autovacuum, **more) as test:
        try:
            test.run(getattr(options, amount), *([options.first] if rounds_of else []), show=show)
        finally:
            print(*(f"{what}: {number}" for what, number in sorted(test.done.items())), sep="\n")
    return 0


def show(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)
