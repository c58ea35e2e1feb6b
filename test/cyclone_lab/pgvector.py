"""pgvector, built from its source for a server of the tests.

CYCLONE_PGVECTOR says where the source is: a folder, or "debian", which is its source package, of the suites that have released versions.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from cyclone_lab import debian
from cyclone_lab.postgres import REPO, program_env

VARIABLE = "CYCLONE_PGVECTOR"
WHY_NOT = "CYCLONE_PGVECTOR_WHY_NOT"


class PgvectorUnavailable(RuntimeError):
    """pgvector can't be had, or not be built for this server; the message says why."""


@cache
def install(prefix: Path) -> str:
    """Build pgvector for the server in `prefix` and install it there; return its version. Raises PgvectorUnavailable."""
    source = _source()
    folder = prefix.parent / "pgvector"
    with open(prefix.parent / "pgvector.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        control = next(folder.glob("vector.control"), None)
        if control is None or not list(prefix.glob("lib/**/vector.so")):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".git", "*.o", "*.so", "*.bc"))
            # for any processor, as packages are
            make = ["make", "-C", folder, "OPTFLAGS=", "with_llvm=no", f"PG_CONFIG={prefix / 'bin' / 'pg_config'}", "install"]
            done = subprocess.run(make, env=program_env(prefix), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                raise PgvectorUnavailable(f"pgvector can't be built for this server:\n{done.stdout[-2000:]}")
    return _version(folder)


@cache
def why_not(major: int) -> str | None:
    """Return why there is no pgvector for this major version of PostgreSQL; None if there is one."""
    if not os.environ.get(VARIABLE):
        return os.environ.get(WHY_NOT, f"{VARIABLE} doesn't say where its source is")
    try:
        version = _version(_source())
    except PgvectorUnavailable as error:
        # not to be tried again, for another version or in another process
        os.environ[VARIABLE], os.environ[WHY_NOT] = "", str(error)
        return str(error)
    first = {17: (0, 8, 0), 18: (0, 8, 1)}.get(major, (0, 8, 3))
    return None if tuple(map(int, version.split("."))) >= first else f"{version} is too old"


def _version(folder: Path) -> str:
    return next(line.split("'")[1] for line in (folder / "vector.control").read_text().splitlines() if "default_version" in line)


@cache
def _source() -> Path:
    """Return a folder with the source."""
    named = os.environ[VARIABLE]
    if named != "debian":
        return Path(named).resolve()
    folder = REPO / "build" / "pgvector-source"
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                try:
                    debian.fetch_source("pgvector", Path(scratch) / "source")
                except debian.NotInDebian as error:
                    raise PgvectorUnavailable(f"Debian's source of pgvector can't be had: {error}") from error
                (Path(scratch) / "source").rename(folder)
    return folder
