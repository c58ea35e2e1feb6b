"""The parts that the commands of the long runs share: their options, and how they begin and end."""

import argparse
import random
from pathlib import Path

from cyclone_lab import build
from cyclone_lab.cluster import spoil_freed_memory


def main(kind: type, about: str, name: str, amount: str, default: float, *, writers: bool = False, rounds_of: int = 0) -> int:
    """Run a long run of this kind as its options say, and print what was done.

    `amount` is the option that says for how long, as minutes or a number of rounds; with `writers` there is one for the number of
    writers, with `rounds_of` one for the first round, a multiple of it.
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
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    words = [f"SEED={options.seed}", f"{amount.upper()}={getattr(options, amount):g}"]
    words += [f"WRITERS={options.writers}"] if writers else []
    words += [f"FIRST={options.first}"] if rounds_of else []
    words.append(spoil_freed_memory())
    print(f"{name} of PostgreSQL {options.version}:", *words, flush=True)
    prefix = build.install(options.version, debug_points=True)
    what = (options.seed, options.writers) if writers else (options.version, options.seed)
    with kind(prefix, *what, base=options.base, with_autovacuum=options.autovacuum) as test:
        try:
            test.run(getattr(options, amount), *([options.first] if rounds_of else []), show=show)
        finally:
            print(*(f"{what}: {number}" for what, number in sorted(test.done.items())), sep="\n")
    return 0


def show(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)
