"""Say which lines of code without a server no program of test/unit reaches: `make coverage`. Fails if there are any.

That code is each function of src/ which such a program calls; a function that none calls needs a server, and the tests in test/pytest.
gcov counts a statement at one of its lines, and none at a jump of its own ("continue;"). Lines that only raise an error (ereport, elog)
aren't asked for: what raises an error does so with a server.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from cyclone_lab import build
from cyclone_lab.postgres import find_or_fetch, run_program

UNIT = build.REPO / "test" / "unit"
# Symbols of functions that aren't called needn't be there; inlined functions would have lines of their callers.
FLAGS = ["-std=gnu11", "-O0", "-g", "-w", "-fno-strict-aliasing", "-fno-inline", "--coverage", "-D_GNU_SOURCE",
         "-no-pie", "-Wl,--unresolved-symbols=ignore-all", *build.ASSERTION_FLAGS.split()]  # fmt: skip
RAISES = re.compile(r"\b(?:ereport|elog|errcode|errmsg\w*|errdetail\w*|errhint|PG_RE_THROW|pg_unreachable|Assert)\b")


def main() -> int:
    """Compile and run each program, and print what none of them reaches."""
    functions: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    with tempfile.TemporaryDirectory(prefix="cyclone-coverage-") as name:
        folder = Path(name)
        headers = Path(run_program(find_or_fetch(18), "pg_config", "--includedir-server").stdout.strip())
        features = subprocess.run([build.REPO / "scripts" / "probe-server", "cc", f"-I{headers}"], check=True, capture_output=True)
        (folder / "server_features.h").write_bytes(features.stdout)
        includes = [f"-I{path}" for path in (build.REPO / "src", UNIT, folder, headers)]
        for program in sorted(UNIT.glob("test_*.c")):
            home = folder / program.stem
            home.mkdir()
            subprocess.run(["cc", *FLAGS, *includes, UNIT / "unit.c", program, "-o", home / "program", "-lm"], cwd=home, check=True)
            subprocess.run([home / "program"], cwd=home, check=True, timeout=600, stdout=subprocess.DEVNULL)
            for data in home.glob("*.gcda"):
                report = subprocess.run(["gcov", "--json-format", "--stdout", data], cwd=home, check=True, capture_output=True, text=True)
                for line in report.stdout.splitlines():
                    add(json.loads(line), functions)
    return show(functions)


def add(report: dict, functions: dict) -> None:
    """Add what gcov says of one program to the counts, by file, function and line, of functions that it calls."""
    for file in report["files"]:
        path = Path(file["file"]).resolve()
        if not path.is_relative_to(build.REPO / "src") or path.suffix != ".c":
            continue
        called = {function["name"] for function in file["functions"] if function["execution_count"] > 0}
        for line in file["lines"]:
            if line.get("function_name") in called:
                functions[str(path.relative_to(build.REPO)), line["function_name"]][line["line_number"]] += line["count"]


def show(functions: dict) -> int:
    """Print the lines that weren't reached, and how many were asked for; return 1 if there are any."""
    missed = total = 0
    for (file, name), lines in sorted(functions.items()):
        text = (build.REPO / file).read_text().splitlines()
        total += len(lines)
        for number in sorted(number for number, count in lines.items() if count == 0):
            statement = " ".join(text[max(0, number - 1) : number + 2])
            if not RAISES.search(statement) and text[number - 1].strip() not in ("continue;", "break;"):
                missed += 1
                print(f"{file}:{number}: {name}: {text[number - 1].strip()}")
    print(f"{missed} of {total} lines in {len(functions)} functions aren't reached by any program of test/unit")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
