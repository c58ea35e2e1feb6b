"""Find out which test files `make check` runs on which version of PostgreSQL, by coverage: `make measure-versions`.

All that differs between versions goes through the names in src/compat/. So every file of tests runs by itself on each version, on a
build with gcov, and leaves which lines of src it has come by that use such a name. Of all files the cheapest few are chosen that together
come by each use that any file comes by, and written to test/versions.tsv, of which conftest.py and `make tidy` read.

    scripts/measure_versions.py                      every file on every version but the main one: an hour on 2 cores
    scripts/measure_versions.py test_x.py ...        these files alone; what is known of those chosen stays
    scripts/measure_versions.py --choose             choose again of what was measured before
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cyclone_lab import build, versions
from cyclone_lab.postgres import REPO

MEASURED = REPO / "build" / "versions.json"
TESTS = REPO / "test" / "pytest"
LIMIT = 1800  # seconds for one file


def main() -> int:
    """Measure, choose and write; return 1 if a file of tests failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="names of files in test/pytest, by default all")
    parser.add_argument("--versions", type=int, nargs="+", default=[major for major in versions.MAJORS if major != versions.MAIN])
    parser.add_argument("--choose", action="store_true", help="measure nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    measured = _chosen_before()
    for major, by_file in json.loads(MEASURED.read_text()).items() if MEASURED.exists() else ():
        measured.setdefault(major, {}).update(by_file)
    files = arguments.files or sorted(file.name for file in TESTS.glob("test_*.py"))
    failed = []
    for major in [] if arguments.choose else arguments.versions:
        build.install(major, debug_points=True, werror=True)
        uses = versions.uses(major)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for file, (seconds, passed, reached) in zip(files, pool.map(lambda file: _measure(major, file, uses), files)):
                print(f"{major} {file}: {seconds:.0f} s, {len(reached)} uses{'' if passed else ', FAILED'}", flush=True)
                measured.setdefault(str(major), {})[file] = {"seconds": seconds, "uses": sorted(reached)}
                failed += [] if passed else [f"{major} {file}"]
                MEASURED.write_text(json.dumps(measured, indent=1))
    versions.write({int(major): _choose(by_file) for major, by_file in measured.items()})
    for major, by_file in measured.items():
        never = _all_uses(int(major)) - {use for file in by_file.values() for use in file["uses"]}
        print(f"{major}: no file comes by " + (", ".join(sorted(never)) or "nothing"))
    if failed:
        print("failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def _chosen_before() -> dict:
    """Return what the table knows of the files that were chosen: without their seconds, so they are chosen again."""
    measured = {}
    for version, name, source, files in versions.rows():
        for file in files:
            by_file = measured.setdefault(str(version), {})
            by_file.setdefault(file, {"seconds": 0, "uses": []})["uses"].append(f"{name}@{source}")
    return measured


def _measure(major: int, file: str, uses: dict) -> tuple[float, bool, set[str]]:
    """Run one file of tests on one version; return its seconds, whether it passed, and the uses that it came by."""
    with tempfile.TemporaryDirectory(prefix="cyclone-gcov-") as folder:
        counts = Path(folder)
        counts.chmod(0o777)
        env = {**os.environ, "PG_VERSIONS": str(major), "GCOV_PREFIX": folder, "PYTHONPATH": str(REPO / "test")}
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=0", "-p", "no:cacheprovider", "-m", "not once", str(TESTS / file)]
        began = time.monotonic()
        result = subprocess.run(command, env=env, cwd=REPO, capture_output=True, text=True, timeout=LIMIT)
        seconds = time.monotonic() - began
        if result.returncode not in (0, 5):  # 5: no test for this version
            (REPO / "build" / f"versions-{major}-{file}.log").write_text(result.stdout + result.stderr)
        return seconds, result.returncode in (0, 5), _reached(major, counts, uses)


def _reached(major: int, counts: Path, uses: dict) -> set[str]:
    """Return which of `uses` lines were come by that left their counts below this folder."""
    objects = build.folder_of(major, debug_points=True)
    reached = set()
    for data in counts.rglob("*.gcda"):
        inner = data.relative_to(counts / str(objects)[1:])
        shutil.copy(objects / inner.with_suffix(".gcno"), data.with_suffix(".gcno"))
        report = subprocess.run(["gcov", "--json-format", "--stdout", data.name], cwd=data.parent, capture_output=True, text=True)
        for source in json.loads(report.stdout)["files"] if report.stdout else []:
            path = (objects / source["file"]).resolve()
            lines = uses.get(str(path.relative_to(REPO / "src"))) if path.is_relative_to(REPO / "src") else None
            if lines:
                reached |= {f"{name}@{path.relative_to(REPO / 'src')}" for name in _reached_in(source, lines)}
    return reached


def _reached_in(source: dict, lines: dict[int, set[str]]) -> set[str]:
    """Return the names in these lines of one source file whose statement was come by; gcov counts a statement at one of its lines."""
    counted = {line["line_number"]: line["count"] for line in source["lines"]}
    reached = set()
    for number, names in lines.items():
        statement = next((near for near in range(number, number - 6, -1) if near in counted), None)
        if statement and counted[statement]:
            reached |= names
    return reached


def _all_uses(major: int) -> set[str]:
    """Return the uses of this version as text: name@source."""
    return {f"{name}@{source}" for source, lines in versions.uses(major).items() for here in lines.values() for name in here}


def _choose(by_file: dict[str, dict]) -> dict[tuple[str, str], list[str]]:
    """Return for each use the chosen files that come by it, chosen so that they take little time together."""
    left = {use for file in by_file.values() for use in file["uses"]}
    chosen = []
    while left:
        best = max(by_file, key=lambda name: len(left & set(by_file[name]["uses"])) / (by_file[name]["seconds"] + 1))
        chosen.append(best)
        left -= set(by_file[best]["uses"])
    # one chosen early may have become needless
    for name in list(chosen):
        others = {use for other in chosen if other != name for use in by_file[other]["uses"]}
        if set(by_file[name]["uses"]) <= others:
            chosen.remove(name)
    found = defaultdict(list)
    for name in sorted(chosen):
        for use in by_file[name]["uses"]:
            found[tuple(use.split("@"))].append(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
