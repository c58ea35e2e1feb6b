"""What all benchmarks share: options of the command line, the circumstances on which the numbers depend, and the file of results."""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cyclone_lab import build
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO, server_user_can_read

RESULTS = Path(__file__).resolve().parent / "results"


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def commit() -> str:
    """Return the version of the source, marked if it was changed since."""
    command = ["git", "-C", REPO, "describe", "--always", "--tags", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, text=True, capture_output=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not in a commit)"


def cpu_model() -> str:
    """Return the processor's name as the kernel knows it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def file_system(folder: Path) -> str:
    """Return the type of the file system below `folder`."""
    return subprocess.run(["stat", "--file-system", "--format=%T", folder], text=True, capture_output=True).stdout.strip()


def find_circumstances(prefix: Path, config: dict, base: Path) -> dict:
    """Return what the numbers depend on, by name."""
    with Cluster.create(prefix, config, base=base) as cluster:
        cluster.start()
        [(version, checksums)] = cluster.sql("SELECT version(), current_setting('data_checksums')")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "PostgreSQL": " ".join(version.split()[:2]),
        "cores": cores(),
        "CPU": cpu_model(),
        "kernel": platform.release(),
        "load average at start": f"{os.getloadavg()[0]:.1f}",
        "data in": f"{base} ({file_system(base)})",
        "settings": {**config, "data_checksums": checksums},
    }


def add_common_arguments(parser: argparse.ArgumentParser, results: Path, *, choose_major: bool = True) -> None:
    """Add the options that each benchmark has; `results` is the folder where its results go by default."""
    if choose_major:
        parser.add_argument("--major", type=int, default=18, choices=(17, 18, 19), help="PostgreSQL version (default: %(default)s)")
    parser.add_argument("--base", type=_parse_base, default=tempfile.gettempdir(), metavar="FOLDER",
                        help="where the data goes, for instance /dev/shm (default: %(default)s)")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], type=_parse_setting, metavar="NAME=VALUE",
                        help="a server setting other than the bench's own, as full_page_writes=off; may be repeated")  # fmt: skip
    parser.add_argument("--results", type=Path, default=results, metavar="FOLDER",
                        help=f"where results.json goes (default: {results.relative_to(REPO)})")  # fmt: skip


def begin(options: argparse.Namespace, config: dict, prefix: Path | None = None) -> tuple[Console, Path, dict, dict]:
    """Install pg_cyclone, unless it is in `prefix`, and print the circumstances; return a console, the server's prefix, its settings with those of --set, and
    the circumstances.
    """
    console = Console(width=None if sys.stdout.isatty() else 240)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # leave through the context managers
    prefix, config = prefix or build.install(options.major), {**config, **dict(options.set)}
    circumstances = find_circumstances(prefix, config, options.base)
    grid = Table.grid(padding=(0, 2))
    for name, value in circumstances.items():
        grid.add_row(name, ", ".join(f"{key} = {setting}" for key, setting in value.items()) if isinstance(value, dict) else str(value))
    console.print(grid)
    return console, prefix, config, circumstances


def in_turn(contenders: Iterable, number: int) -> list:
    """Return the contenders in the order of a round, from 0: each begins with another one."""
    contenders = list(contenders)
    turn = number % len(contenders)
    return contenders[turn:] + contenders[:turn]


def save_results(folder: Path, circumstances: dict, lines: Callable[[dict], list[str]] | None = None, **found) -> None:
    """Write results.json into `folder`, which is made if need be: whole, or not at all. Print the lines that `make figures` makes of it,
    if this gives any. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "results.json.partial"
    partial.write_text(json.dumps({"circumstances": circumstances, **found}, indent=1, default=str) + "\n")
    partial.rename(folder / "results.json")
    if lines:
        print("\n".join(lines(found)))


def run_main(main: Callable[[], int | None]) -> None:
    """Run a benchmark, and leave the process with its status, or with a line that says what is in its way."""
    try:
        sys.exit(main())
    except (RuntimeError, TimeoutError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")


def _parse_base(text: str) -> Path:
    """Return the path; raise ArgumentTypeError unless it is a folder that the server's user can enter."""
    if not Path(text).is_dir() or not server_user_can_read(Path(text)):
        raise argparse.ArgumentTypeError(f"{text} is no folder that the server's user can enter")
    return Path(text)


def _parse_setting(text: str) -> tuple[str, str]:
    """Split `name=value`; raise ArgumentTypeError if it is not that."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
