"""The circumstances on which the numbers of every benchmark depend, found and shown; and options that their command lines share."""

import argparse
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

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


def print_circumstances(console: Console, circumstances: dict) -> None:
    """Print on what, of what and with which settings the numbers that follow were measured."""
    grid = Table.grid(padding=(0, 2))
    for name, value in circumstances.items():
        grid.add_row(name, _circumstance(value))
    console.print(grid)


def circumstances_markdown(circumstances: dict) -> str:
    """Return the same as a list in Markdown."""
    return "".join(f"- {name}: {_circumstance(value)}\n" for name, value in circumstances.items())


def _circumstance(value) -> str:
    """Return the value of a circumstance in one line."""
    return ", ".join(f"{key} = {setting}" for key, setting in value.items()) if isinstance(value, dict) else str(value)


def add_common_arguments(parser: argparse.ArgumentParser, results: Path, *, choose_major: bool = True) -> None:
    """Add the options that each benchmark has; `results` is the folder where its results go by default."""
    if choose_major:
        parser.add_argument("--major", type=int, default=18, choices=(17, 18, 19), help="PostgreSQL version (default: %(default)s)")
    parser.add_argument("--base", type=_parse_base, default=tempfile.gettempdir(), metavar="FOLDER",
                        help="where the data goes, for instance /dev/shm (default: %(default)s)")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], type=_parse_setting, metavar="NAME=VALUE",
                        help="a server setting other than the bench's own, as full_page_writes=off; may be repeated")  # fmt: skip
    parser.add_argument("--results", type=Path, default=results, metavar="FOLDER",
                        help=f"where tables, numbers and pictures go (default: {results.relative_to(REPO)})")  # fmt: skip


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
