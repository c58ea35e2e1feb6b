#!/usr/bin/env python3
"""Compiles pg_cyclone with the headers of each minor version of PostgreSQL that can be had, and says what of it each has in another way.

Its functions, macros and structs are mostly not made for extensions, so a minor version may change them. Each gets a line: does it
compile, warnings being errors; does the server have each function; and what that we use differs from the version that tests run on,
`.postgres/<major>`. That may be all right; it is to be read. Everything that is used, with its declaration, is in
build/minors/<version>.txt; with PGSRC, a source tree of PostgreSQL, functions, macros and types that its documentation names are left out
there.

A version that can be had and doesn't compile is a failure. It says which ones could not be had.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))

from cyclone_lab import server_use
from cyclone_lab.postgres import REPO, PostgresUnavailable, find_or_fetch, find_or_fetch_minor, minors, program_env, program_path, run_program

NAMES_IN_A_LINE = 12


def compile_for(prefix: Path, folder: Path) -> str:
    """Compile in a folder for the server in `prefix`, warnings being errors; return what the compiler says against it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["make", "--silent", "--keep-going", f"--jobs={os.cpu_count()}", "-C", folder, "-f", REPO / "Makefile"]
    command += ["WERROR=1", "with_llvm=no", f"PG_CONFIG={program_path(prefix, 'pg_config')}"]
    result = subprocess.run(command, env=program_env(prefix), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    errors = dict.fromkeys(re.findall(r"error: .*|probe-server: .*", result.stdout))
    return "" if result.returncode == 0 else "\n".join(errors) or result.stdout


def missing_symbols(prefix: Path, library: Path, used: dict[str, str]) -> list[str]:
    """Return the functions and variables that the library needs, and that the server in `prefix` declares but hasn't."""
    listing = subprocess.run(["ldd", "-r", library], text=True, capture_output=True).stdout
    exported = subprocess.run(["nm", "--dynamic", program_path(prefix, "postgres")], text=True, capture_output=True, check=True).stdout
    wanted = set(re.findall(r"undefined symbol: (\w+)", listing)) - set(re.findall(r" [A-Z] (\w+)", exported))
    return sorted(name for name in wanted if {f"function {name}", f"variable {name}"} & used.keys())


def documented(pgsrc: Path | None) -> set[str]:
    """Return the words of PostgreSQL's documentation, in a source tree of it."""
    pages = pgsrc.glob("doc/src/sgml/**/*.sgml") if pgsrc else []
    return {word for page in pages for word in re.findall(r"\w+", page.read_text())}


def difference(used: dict[str, str], usual: dict[str, str]) -> str:
    """Say what is declared otherwise than usual, or only here or there."""
    names = sorted(name for name in used.keys() | usual.keys() if used.get(name) != usual.get(name) and "PG_VERSION" not in name)
    more = f" and {len(names) - NAMES_IN_A_LINE} more" if len(names) > NAMES_IN_A_LINE else ""
    return ", ".join(names[:NAMES_IN_A_LINE]) + more


def check(prefix: Path, name: str, major: int, public: set[str]) -> tuple[str, dict[str, str]]:
    """Compile for the server in `prefix`; return what is wrong, and what is used of it, which a file of this name gets, too."""
    folder = REPO / "build" / "minors" / name
    if wrong := compile_for(prefix, folder):
        return f"DOES NOT COMPILE:\n{wrong}", {}
    used = server_use.list_use(prefix, folder, major)
    if missing := missing_symbols(prefix, folder / "pg_cyclone.so", used):
        return f"COMPILES, BUT THE SERVER HAS NO {' '.join(missing)}", used
    lines = [f"{key}: {what}\n" for key, what in sorted(used.items()) if ":" in key or key.split()[-1] not in public]
    folder.with_suffix(folder.suffix + ".txt").write_text("".join(lines))
    return "", used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("majors", nargs="*", type=int, default=[17, 18, 19], help="major versions, all by default")
    parser.add_argument("--pgsrc", type=Path, help="a source tree of PostgreSQL: what its documentation names is left out of the lists")
    arguments = parser.parse_args()
    public, failed = documented(arguments.pgsrc), False
    found, problems = minors(arguments.majors)
    usual, numbers = {}, {}
    for major in arguments.majors:
        try:
            prefix = find_or_fetch(major)
            number = run_program(prefix, "pg_config", "--version").stdout.split()[1]
            numbers[major] = number
            wrong, usual[major] = check(prefix, f"{major}-usual", major, public)
            print(f"{number:7} that of the tests: {wrong or f'compiles, uses {len(usual[major])} names'}", flush=True)
            failed |= bool(wrong)
        except PostgresUnavailable as error:
            problems.append(str(error))
    for minor in sorted(found, key=lambda minor: minor.name):
        try:
            prefix = find_or_fetch_minor(minor)
        except PostgresUnavailable as error:
            problems.append(str(error))
            continue
        wrong, used = check(prefix, minor.name, minor.major, public)
        failed |= bool(wrong)
        other = difference(used, usual.get(minor.major) or {}) if used else ""
        print(f"{minor.number:7} {minor.origin}: {wrong or 'compiles'}{other and f'; differs in {other}'}", flush=True)
        if "." in minor.number and re.search("beta|rc", numbers.get(minor.major, "")):
            print(f"{minor.number} IS RELEASED, AND TESTS RUN ON {numbers[minor.major]}: remove .postgres/{minor.major}")
            failed = True
    for problem in problems:
        print(f"NOT CHECKED: {problem}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
