"""Differences between versions of PostgreSQL, and the tests that show them: `make check` runs these on each version.

All that differs goes through names in src/compat/: functions and macros. A use is such a name in a line of another file of src. The table
test/versions.tsv, made by scripts/measure_versions.py, says for each version and use which files of tests come by it.
"""

import re
from collections import defaultdict
from functools import cache

from cyclone_lab.postgres import REPO

MAJORS = (17, 18, 19)
MAIN = 18  # on which `make check` runs everything
TABLE = REPO / "test" / "versions.tsv"
SRC = REPO / "src"
COMPAT = SRC / "compat"
HEADERS = {17: ("pg17.h", "before19.h"), 18: ("pg18.h", "since18.h", "before19.h"), 19: ("pg19.h", "since18.h")}
# Names that coverage doesn't show on versions to which they mean nothing: these versions, and why
UNSEEN = {
    "COMPAT_VACUUM_RECURSES_INHERITANCE": ({17}, "a constant: what goes by it is decided by the compiler"),
    "COMPAT_WRITES_TOGETHER": ({17, 19}, "a constant: what goes by it is decided by the compiler"),
    "compat_may_signal_autovacuum": ({17}, "a constant before 18"),
    "compat_repack_by_server": ({17}, "there is no REPACK before 19"),
}
_DEFINED = re.compile(r"^#define[ \t]+(\w+)|^(compat_\w+)\(", re.MULTILINE)
_HEAD = """\
# Which files of tests `make check` runs on a version of PostgreSQL, as they come by this use of a name of src/compat/.
# Made by `make measure-versions`; don't edit.
# version\tname\tsource\ttests
"""


def names(major: int) -> set[str]:
    """Return the functions and macros that the headers of src/compat/ define for this version, guards apart."""
    found = set()
    for header in HEADERS[major]:
        found |= {define or function for define, function in _DEFINED.findall((COMPAT / header).read_text())}
    return {name for name in found if not name.startswith("CYCLONE_")}


def uses(major: int) -> dict[str, dict[int, set[str]]]:
    """Return by source file, below src, and line number the names of this version that are used there, comments apart."""
    wanted = names(major)
    found = defaultdict(dict)
    for source in sorted(SRC.rglob("*.[ch]")):
        if source.parent == COMPAT:
            continue
        text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), source.read_text(), flags=re.DOTALL)
        for number, line in enumerate(text.splitlines(), start=1):
            here = wanted & set(re.findall(r"\w+", line))
            if here:
                found[str(source.relative_to(SRC))][number] = here
    return found


def write(chosen: dict[int, dict[tuple[str, str], list[str]]]) -> None:
    """Write the table: by version, by use (name, source), the files of tests."""
    lines = []
    for major, by_use in sorted(chosen.items()):
        lines += ["\t".join([str(major), name, source, " ".join(files)]) + "\n" for (name, source), files in sorted(by_use.items())]
    TABLE.write_text(_HEAD + "".join(lines))


@cache
def tests(major: int) -> frozenset[str]:
    """Return the files of tests that the table has for this version."""
    return frozenset(file for version, _, _, files in rows() if version == major for file in files)


def problems() -> list[str]:
    """Return what is wrong with the table: names that no test comes by, files that are gone."""
    found = []
    table = rows()
    for major in set(MAJORS) - {MAIN}:
        reached = {name for version, name, _, _ in table if version == major}
        used = {name for by_line in uses(major).values() for here in by_line.values() for name in here}
        unseen = {name for name, (majors, _) in UNSEEN.items() if major in majors}
        for name in sorted(used - reached - unseen):
            found.append(f"no test of {TABLE.name} comes by {name} on PostgreSQL {major}: run make measure-versions")
    here = {file.name for file in (REPO / "test" / "pytest").glob("test_*.py")}
    for file in sorted({file for _, _, _, files in table for file in files} - here):
        found.append(f"{TABLE.name} names {file}, which is gone: run make measure-versions")
    return found


@cache
def rows() -> list[tuple[int, str, str, list[str]]]:
    """Return the rows of the table: version, name, source, files of tests."""
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")] if TABLE.exists() else []
    split = [line.split("\t") for line in lines]
    return [(int(version), name, source, files.split()) for version, name, source, files in split]
