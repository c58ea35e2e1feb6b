#!/usr/bin/env python3
"""Puts small faults into the engine, one at a time, and says which test or audit finds each: `make check-mutants`.

test/mutants/mutants.toml has the faults. Each is applied in a copy of the source below build/, the extension is built there, and the tests
named for it run, the first of which should fail. A fault that nothing finds is an error; so is one whose place is no longer in its file.
With --anchors only that is checked, as tidy does. With names, only these: `make check-mutants MUTANTS="gin-not-logged no-freezing"`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
LIST = TOP / "test" / "mutants" / "mutants.toml"
TREE = TOP / "build" / "mutants"
TIME_LIMIT = 600  # seconds, of the tests of one; one that makes them hang is found, too
AUDIT = re.compile(r"an audit of .* has failed")


@dataclass(frozen=True)
class Mutant:
    """A fault: `old`, which stands once in `file`, becomes `new`; `tests` are files of test/pytest, of which one has to find it."""

    name: str
    about: str
    file: str
    old: str
    new: str
    tests: list[str]


def mutants() -> list[Mutant]:
    """Return all faults of the list."""
    return [Mutant(**row) for row in tomllib.loads(LIST.read_text())["mutant"]]


def problems(listed: list[Mutant]) -> list[str]:
    """Return what is wrong with the list: places that are gone or not the only one, tests that there are none, names that come twice."""
    found = []
    for mutant in listed:
        file = TOP / mutant.file
        number = file.read_text().count(mutant.old) if file.exists() else 0
        if number != 1:
            found.append(f"{LIST.relative_to(TOP)}: {mutant.name}: its place is {number} times in {mutant.file}")
        found += [f"{LIST.relative_to(TOP)}: {mutant.name}: no {test} in test/pytest"
                  for test in mutant.tests if not (TOP / "test" / "pytest" / test.split("::")[0]).exists()]  # fmt: skip
    names = [mutant.name for mutant in listed]
    return found + [f"{LIST.relative_to(TOP)}: {name} is there twice" for name in set(names) if names.count(name) > 1]


def copy_tree() -> None:
    """Make, or bring up to date, the copy of the source that faults are put into; what was built there stays."""
    TREE.mkdir(parents=True, exist_ok=True)
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP, check=True, capture_output=True, text=True).stdout.splitlines()
    for file in files:
        source, target = TOP / file, TREE / file
        if source.is_file() and (not target.exists() or target.read_bytes() != source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    for old in {path.relative_to(TREE) for path in (TREE / "src").rglob("*.[ch]")} - {Path(file) for file in files}:
        (TREE / old).unlink()
    for name in (".venv", ".postgres"):
        link = TREE / name
        if not link.is_symlink():
            link.symlink_to((TOP / name).resolve())


def run(tests: list[str], arguments: list[str]) -> tuple[bool, str]:
    """Run these tests in the copy until one fails; did they pass, and what did they say?"""
    command = [TREE / ".venv/bin/python", "-m", "pytest", "-x", "-q", "-n", "2", *(f"test/pytest/{test}" for test in tests), *arguments]
    env = {**os.environ, "PG_VERSIONS": "18", "PYTHONPATH": "test"}
    try:
        done = subprocess.run(command, cwd=TREE, env=env, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    except subprocess.TimeoutExpired as error:
        return False, f"hang: {error}"
    return done.returncode == 0, done.stdout + done.stderr


def finder(output: str) -> str:
    """Return what found a fault, by the output of tests: the first test that failed, and if it was for an audit."""
    if output.startswith("hang"):
        return "a test that hangs"
    failed = re.search(r"^(?:FAILED|ERROR) test/pytest/(\S+)", output, re.MULTILINE)
    if not failed:
        return ""
    return failed[1] + (" (an audit)" if AUDIT.search(output) else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="the faults to try (default: all)")
    parser.add_argument("--anchors", action="store_true", help="only check that their places are in the source")
    parser.add_argument("--as-is", action="store_true", help="first see that the tests pass without a fault, which takes some minutes")
    arguments = parser.parse_args()
    listed = mutants()
    wrong = problems(listed)
    unknown = set(arguments.names) - {mutant.name for mutant in listed}
    print("\n".join([*wrong, *(f"there is no {name}" for name in sorted(unknown))]), end="\n" if wrong or unknown else "")
    if arguments.anchors or wrong or unknown:
        return 1 if wrong or unknown else 0

    chosen = [mutant for mutant in listed if not arguments.names or mutant.name in arguments.names]
    copy_tree()
    if arguments.as_is:
        passed, output = run(sorted({test for mutant in chosen for test in mutant.tests}), [])
        if not passed:
            print(f"without a fault these tests fail: {finder(output)}\n{output[-4000:]}")
            return 1
    survivors = 0
    for mutant in chosen:
        begin = time.monotonic()
        file = TREE / mutant.file
        sound = file.read_text()
        file.write_text(sound.replace(mutant.old, mutant.new))
        try:
            passed, output = run(mutant.tests, [])
        finally:
            file.write_text(sound)
        found_by = "" if passed else finder(output)
        if not found_by:
            survivors += 1
            found_by = "SURVIVES" if passed else f"NOT TRIED: {output[-2000:]}"
        print(f"{mutant.name}: {found_by} ({time.monotonic() - begin:.0f} s)", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} faults are found")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
