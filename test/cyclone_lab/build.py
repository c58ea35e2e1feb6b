"""The extension, built from this repository and installed into a PostgreSQL tree that is its own.

Every build has a folder `build/<major>[-debug][-assert][-ubsan][-coverage][-<name of a prefix named by the environment>]` with the objects and a
copy of the PostgreSQL tree, so that a release build and one with debug points never overwrite each other.

With CYCLONE_UBSAN=1 in the environment, gcc's sanitizer of undefined behaviour is compiled into the extension, not into the
server: the first finding ends the process. Signed overflow is among them, though the server's flags allow it.

With CYCLONE_ASSERTIONS=1, assertions are compiled into the extension, also for a server that has none: every server exports what a
failed assertion calls. Those in the server's headers come with it, where what they call exists. No struct that we share with the server
has another layout then; those in its headers that have, JumbleState and MemoryContextMethods, are not ours to use.

As a program it builds what the tests need for the versions that are its arguments.

With CYCLONE_COVERAGE=1, each process writes at its end which lines of the extension it has come by, for gcov; GCOV_PREFIX says where.
"""

import fcntl
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from cyclone_lab.postgres import REPO, copy_tree, find_or_fetch, program_env, program_path, readable_home

UBSAN = bool(os.environ.get("CYCLONE_UBSAN"))
ASSERTIONS = bool(os.environ.get("CYCLONE_ASSERTIONS"))
COVERAGE = bool(os.environ.get("CYCLONE_COVERAGE"))
UBSAN_FLAGS = "-fsanitize=undefined,float-cast-overflow -fno-sanitize-recover=all -fno-wrapv -g -fno-omit-frame-pointer"
# gcc takes the offset that an assertion just tested for one that may be wrong
ASSERTION_FLAGS = "-DUSE_ASSERT_CHECKING -Wno-array-bounds"
COVERAGE_FLAGS = "--coverage -Wno-maybe-uninitialized"  # as counting keeps gcc from seeing what is set
_CHECKS = [(ASSERTIONS, "-assert", ASSERTION_FLAGS), (UBSAN, "-ubsan", UBSAN_FLAGS), (COVERAGE, "-coverage", COVERAGE_FLAGS)]
CHECKS_NAME = "".join(name for wanted, name, _ in _CHECKS if wanted)
CHECKS_FLAGS = " ".join(flags for wanted, _, flags in _CHECKS if wanted)


def install(major: int, *, origin: Path | None = None, debug_points: bool = False, werror: bool = False) -> Path:
    """Build and install the extension for this major version; return the prefix of the PostgreSQL it is installed in.

    That is a copy of the one in `origin`, by default of the one that `find_or_fetch` finds.

    `debug_points` compiles in the wait and error points that tests use, `werror` makes a warning an error.
    Raises RuntimeError with the compiler's output if the build fails, PostgresUnavailable if there is no server.
    """
    origin = origin or find_or_fetch(major)
    folder = folder_of(major, origin, debug_points=debug_points)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prefix = readable_home(folder) / "postgres"
        if not _is_copy(prefix, origin):
            shutil.rmtree(prefix, ignore_errors=True)
            copy_tree(origin, prefix)
        _make(REPO / "Makefile", folder, prefix, DEBUG_POINTS="1" if debug_points else "", WERROR="1" if werror else "")
        if UBSAN and b"__ubsan_handle" not in (folder / "pg_cyclone.so").read_bytes():
            raise RuntimeError(f"{folder}/pg_cyclone.so was built without the sanitizer")
        if ASSERTIONS and b"ExceptionalCondition" not in (folder / "pg_cyclone.so").read_bytes():
            raise RuntimeError(f"{folder}/pg_cyclone.so was built without assertions")
    return prefix


def install_commit(commit: str, major: int) -> Path:
    """Build the library of an earlier commit in build/before, once; return the prefix of the PostgreSQL it is installed in."""
    git = ["git", "-C", REPO]
    revision = subprocess.run([*git, "rev-parse", f"{commit}^{{commit}}"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    tree = REPO / "build" / "before" / revision
    if not tree.exists():
        tree.mkdir(parents=True)
        archive = subprocess.run([*git, "archive", revision], check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", tree], check=True, input=archive)
        (tree / ".postgres").symlink_to(REPO / ".postgres")
    code = f"from cyclone_lab import build; print(build.install({major}))"
    paths = [str(tree / folder) for folder in ("test", "python")]  # the harness was in python/ before
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    output = subprocess.run([sys.executable, "-c", code], cwd=tree, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Path(output.splitlines()[-1])


def folder_of(major: int, origin: Path | None = None, *, debug_points: bool = False) -> Path:
    """Return the folder in which `install` builds for this major version and the PostgreSQL in `origin`."""
    origin = origin or find_or_fetch(major)
    named = f"-{origin.name}" if origin.parent != REPO / ".postgres" else ""
    return REPO / "build" / f"{major}{'-debug' if debug_points else ''}{CHECKS_NAME}{named}"


def build_folder(prefix: Path) -> Path:
    """Return the folder in which `install` has built what is in this prefix: its objects, and server_features.h."""
    return REPO / "build" / prefix.parent.name


def install_test_module(name: str, prefix: Path) -> None:
    """Build the extension of test/modules/<name> and install it into a prefix that `install` returned.

    Raises RuntimeError with the compiler's output if the build fails.
    """
    folder = build_folder(prefix) / "modules" / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _make(REPO / "test" / "modules" / "Makefile", folder, prefix, MODULE=name, WERROR="1")


def _is_copy(prefix: Path, origin: Path) -> bool:
    """Tell whether `prefix` holds the build that `origin` holds: a newer one may have come, or another of that name."""
    with suppress(FileNotFoundError):
        copied, original = (os.stat(program_path(tree, "postgres")) for tree in (prefix, origin))
        return (copied.st_size, copied.st_mtime_ns) == (original.st_size, original.st_mtime_ns)
    return False


def _make(makefile: Path, folder: Path, prefix: Path, **variables: str) -> None:
    """Run `make install` for `prefix` in the build folder; show the compiler's warnings, raise on failure.

    Installed files stay as they are, and the rest appears as a whole, as other tests' servers may be about to read it.
    """
    with tempfile.TemporaryDirectory(dir=folder) as stage:
        command = ["make", "--silent", f"--jobs={os.cpu_count()}", "-C", folder, "-f", makefile, "install"]
        command += [f"PG_CONFIG={program_path(prefix, 'pg_config')}", f"DESTDIR={stage}"]
        command += [f"{name}={value}" for name, value in variables.items()]
        if CHECKS_FLAGS:
            command += [f"COPT={CHECKS_FLAGS}"]  # which PGXS appends to the flags of the compiler and of the linker
        result = subprocess.run(command, env=program_env(prefix), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode != 0:
            raise RuntimeError(f"building {makefile} for {prefix} failed:\n{result.stdout}")
        if "warning:" in result.stdout:
            print(result.stdout)
        for staged in filter(Path.is_file, Path(stage).rglob("*")):
            target = Path("/") / staged.relative_to(stage)
            if not target.exists() or not filecmp.cmp(staged, target, shallow=False):
                target.parent.mkdir(parents=True, exist_ok=True)
                new = target.with_name(f"{target.name}.new")
                shutil.copy(staged, new)
                new.replace(target)


if __name__ == "__main__":
    for version in sys.argv[1:]:
        install(int(version), debug_points=True, werror=True)
