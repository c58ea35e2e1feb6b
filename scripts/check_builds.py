#!/usr/bin/env python3
"""Runs the smoke tests on servers configured as no ready-made one is: with segments of 6 blocks, and with blocks of 32 kB.

`make check-builds PGSRC=<source tree of PostgreSQL 17, 18 or 19>`. The tree is copied; servers are built, with assertions, into
build/servers once for each version of the sources. That takes some minutes for each, and what PostgreSQL is built with: bison, flex, perl.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
BUILDS = {
    "segments-6": ["--with-segsize-blocks=6"],
    "blocks-32": ["--with-blocksize=32", "--with-wal-blocksize=64"],
}
OPTIONS = ["--enable-cassert", "--enable-debug", "--without-icu", "--without-readline", "--without-zlib", "CFLAGS=-O1"]
CONTRIB = ["amcheck", "pageinspect", "pg_freespacemap", "pg_visibility", "pgstattuple", "btree_gist", "btree_gin", "bloom"]
BUILT = ("*.o", "*.a", "*.so", "*.so.*", "objfiles.txt", "tmp_install", ".git")


def run(folder: Path, *command: str | Path) -> None:
    """Run a program in a folder; raise RuntimeError with the end of its output if it fails."""
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    result = subprocess.run(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{result.stdout[-3000:]}")


def build(source: Path, folder: Path, options: list[str], jobs: int) -> None:
    """Build a server from a copy of the source tree in `folder`, and install it there in folder/<its name>."""
    copy = folder / "source"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(*BUILT))
    run(copy, "./configure", "--quiet", f"--prefix={folder / folder.name}.partial", *OPTIONS, *options)
    make = ["make", "--silent", f"--jobs={jobs}"]
    run(copy, *make, "-C", "src/backend", "generated-headers")
    run(copy, *make, "-C", "src", "install")
    for name in CONTRIB:
        run(copy, *make, "-C", f"contrib/{name}", "install")
    (folder / f"{folder.name}.partial").rename(folder / folder.name)
    shutil.rmtree(copy)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a source tree of PostgreSQL")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="for make, one for each core by default")
    arguments = parser.parse_args()
    version = re.search(r"^PACKAGE_VERSION='(\S+)'", (arguments.source / "configure").read_text(), re.MULTILINE)[1]
    major = re.match(r"\d+", version)[0]
    failed = []
    for name, options in BUILDS.items():
        folder = REPO / "build" / "servers" / version / name
        prefix = folder / name
        if not prefix.exists():
            print(f"building PostgreSQL {version} {' '.join(options)}", flush=True)
            build(arguments.source.resolve(), folder, options, arguments.jobs)
        env = {**os.environ, f"CYCLONE_PG{major}": str(prefix), "PG_VERSIONS": major}
        command = [sys.executable, "-m", "pytest", "-n", "0", "--quiet", "test/pytest/test_smoke.py"]
        if subprocess.run(command, cwd=REPO, env=env).returncode != 0:
            failed.append(name)
    if failed:
        print(f"the smoke tests failed on {' and '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
