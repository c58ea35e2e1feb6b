"""The rules of the source tree find what breaks them; `make tidy`, which `make check` calls first, applies them to the tree."""

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from cyclone_lab import versions
from cyclone_lab.postgres import REPO


def script(name: str):
    """Return a script as a module."""
    loader = SourceFileLoader(name.replace("-", "_"), str(REPO / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


check_c = script("check-c")


def function(length: int, comment: str = "/* do_it -- for a test. */") -> str:
    """Return the source of a function of `length` lines."""
    return f"{comment}\nstatic void\ndo_it(void)\n{{\n" + "\t;\n" * (length - 2) + "}\n"


def including(*headers: str) -> str:
    return "".join(f"#include {header}\n" for header in headers)


def head(lines: int) -> str:
    return "/*\n" + " *\n" * (lines - 2) + ' */\n#include "postgres.h"\n\n/*' + "\n" * 40 + "*/\n"


OLD_HEADER = "\tsize = add_size(size, mul_size(2, sizeof(int)));\n"


@pytest.mark.parametrize(
    "rule, text, problem",
    [
        (check_c.functions, function(70), None),
        (check_c.functions, function(71), "do_it has 71 lines, where 70 are allowed"),
        (check_c.functions, function(5, ""), "do_it has no comment above it"),
        (check_c.functions, function(5, "/* For a test. */"), "the comment above do_it doesn't begin with its name"),
        (check_c.functions, function(5, "/*\n * do_it\n *\t\tFor a test.\n */"), None),
        (check_c.includes, including('"postgres.h"', "<limits.h>", '"access/heapam.h"', '"compat.h"', '"engine/state.h"'), None),
        (check_c.includes, including('"postgres.h"', '"compat.h"', '"miscadmin.h"'), "miscadmin.h"),
        (check_c.includes, including('"postgres.h"', '"miscadmin.h"', "<limits.h>"), "limits.h"),
        (check_c.includes, OLD_HEADER, "storage/shmem.h"),  # as older minor versions have it
        (check_c.includes, including('"postgres.h"', '"storage/shmem.h"') + OLD_HEADER, None),
        (check_c.calls_made_twice, "until = Min(until, clock_pay(&paid, now));", "clock_pay"),
        (check_c.calls_made_twice, "until = Min(until, /* pay(), */ Max(ceil(x), MAXALIGN(sizeof(\"a(\"))));", None),
        (check_c.calls_made_twice, "weight = 1.0 / (Min(controller->nrests++, RESTS - 1) + 1);", "++"),
        (check_c.calls_made_twice, "wait(Min(left, 5)); pay(now);", None),
        (check_c.calls_made_twice, "first = Max(first,\n\t\tMin(read (a), 1));", "read"),
        (check_c.asserts, "Assert(rel != NULL);", "Assert"),
        (check_c.asserts, "Assert(rel != NULL &&\n\t\t   name != NULL);", "Assert"),
        (check_c.asserts, "Assert(nremoved == 0 || removed != NULL);", None),
        (check_c.asserts, "Assert(rel != NULL && compat_is_locked(buffer));", None),
        (check_c.head_length, head(25), None),
        (check_c.head_length, head(26), ""),
    ],
)
def test_what_a_rule_of_c_finds(rule, text, problem):
    found = rule(Path("src/some.c"), text)
    assert not found if problem is None else found and problem in found[0]


@pytest.mark.parametrize(
    "file, name, is_strange",
    [
        ("src/engine/heap/heap_page.c", "heap_page_scan", False),
        ("src/engine/heap/heap_page.c", "scan_heap_page", True),
        ("src/pace/pace_view.c", "view_show", False),
        ("src/pace/adaptive.c", "pace_adaptive", False),
        ("src/pace/adaptive.c", "be_adaptive", True),
        ("src/command/options.c", "vacuum_options_read", False),
        ("src/command/relations.c", "vacuum_all", True),
        ("src/transaction.c", "become_owner", False),
    ],
)
def test_names_of_functions(file, name, is_strange):
    strange = script("check-names").strange_names(Path(file), f"void\n{name}(void)\n{{\n}}\n")
    assert bool(strange) == is_strange


def test_shape_by_eye():
    text = "static void\ndo_it(void)\n{\n\tif (true) {\n    ;\n\t}\t\n}\n"
    assert [problem.split(":")[1] for problem in check_c.shape_by_eye(Path("src/some.c"), text)] == ["4", "5", "6"]


def test_types_are_found_in_headers(tmp_path):
    (tmp_path / "some.h").write_text(
        "typedef struct Plain\n{\n\tint\t\tx;\n} Plain;\ntypedef int Number;\ntypedef void (*Callback) (int x);\n"
        "typedef struct\n{\n\tbool\t\t(*run) (void);\n} Nameless;\n"
    )
    assert {"Plain", "Number", "Callback", "Nameless"} <= check_c.type_names([tmp_path])


@pytest.mark.parametrize(
    "call, found",
    [
        ('ereport(ERROR, (errcode(CODE), errmsg("no \\"%s\\" of %d", name(1, 2), 3), errhint("Ask.")));', ['no "…" of …']),
        ('ereport(ok(1, 2) ? NOTICE : WARNING, (errmsg("wrote " UINT64_FORMAT " of %5.1f%%", a, b)));', ["wrote … of …%"]),
        ('elog(ERROR, "two " "parts");', ["two parts"]),
        ('ereport(ERROR, (n ? errmsg("one") : errmsg_plural("%d", "%ds", n, n)));', ["one", "…"]),
        ('ereport(LOG, (errmsg("for the log of %s", name)));', ["for the log of …"]),
        ('ereport(DEBUG1, (errmsg("for us")));', []),
        ('/* elog(ERROR, "in a comment"); */', []),
    ],
)
def test_messages_are_found(call, found):
    assert list(script("check-errors").messages(call)) == found


def test_errors_of_the_extensions_script_are_found():
    text = "IF bad THEN RAISE EXCEPTION 'schema % isn''t yours' USING HINT = 'Drop it.'; END IF; RAISE NOTICE 'never mind'"
    assert list(script("check-errors").messages_of_sql(text)) == ["schema … isn't yours"]


def test_an_error_without_a_cure_is_found():
    page = "| message | cause | cure |\n|---|---|---|\n| `a` | b | `x \\| y` |\n| `c` | d | |\n| `e` | f |\n"
    assert [problem.split(": ")[2] for problem in script("check-errors").unfinished_rows(page)] == ["| `c` | d | |", "| `e` | f |"]


def test_riddles_are_found():
    riddles = script("check-docs").RIDDLES
    assert [bool(riddles.search(text)) for text in ("Nice. Who wants it waits", "A session that wants it", "so many rows", "mended")] == [
        True, False, True, True]  # fmt: skip


def test_a_file_that_is_named_and_gone_is_found():
    text = "`src/pace`, `src/*.c`, `src/gone.c`, `gone/by.c`, `bench/results/table`\n```sh\n`src/shown.c`\n```\n"
    assert script("check-docs").missing_files(text) == ["src/gone.c"]


def test_a_file_of_tests_that_the_proofs_leave_out_is_found():
    text = (REPO / "test/proofs.md").read_text()
    assert script("check-docs").unnamed_tests(text.replace("test_seam.py", "")) == ["test_seam.py"]


@pytest.mark.parametrize("major, name", [(17, "compat_pgstat_report_vacuum"), (19, "compat_may_signal_autovacuum"), (19, "compat_repack_by_server")])
def test_a_difference_that_no_test_comes_by_is_found(monkeypatch, major, name):
    """On each version on which it is one, though it may mean nothing on others."""
    assert versions.problems() == []
    rows = [row for row in versions.rows() if row[:2] != (major, name)]
    monkeypatch.setattr(versions, "rows", lambda: rows)
    assert versions.problems() == [f"no test of {versions.TABLE.name} comes by {name} on PostgreSQL {major}: run make measure-versions"]


def test_a_fault_whose_place_is_gone_is_found(monkeypatch, tmp_path):
    check = script("check_mutants.py")
    monkeypatch.setattr(check, "TOP", tmp_path)
    monkeypatch.setattr(check, "LIST", tmp_path / "mutants.toml")
    (tmp_path / "test/pytest").mkdir(parents=True)
    (tmp_path / "test/pytest/test_it.py").touch()
    (tmp_path / "some.c").write_text("once\ntwice\ntwice\n")
    listed = [check.Mutant(old, "", "some.c", f"{old}\n", "", ["test_it.py"]) for old in ("once", "twice", "never")]
    assert [problem.split(": ")[1] for problem in check.problems(listed)] == ["twice", "never"]
    assert len(check.problems([check.Mutant("once", "", "some.c", "once\n", "", ["test_gone.py"])])) == 1


def test_a_file_that_writes_and_is_not_listed_is_found():
    check = script("check-writes")
    map_page = "| file | what |\n|---|---|\n| `a/page.c` | pages |\n| `a/map.c` | nothing any more |\n| `gone.c` | |\n\n## Next\n\n| `other.c` | |\n"
    files = check.listed(f"# Title\n\n{check.HEADING}\n\n{map_page}")
    assert files == ["a/page.c", "a/map.c", "gone.c"]
    sources = {"a/page.c": "MarkBufferDirty(buffer);", "a/map.c": "/* unlink(it) */ say(\"XLogInsert()\");", "b.c": "if (pwrite(fd, &n, 1, 0) != 1)"}
    found = check.problems(sources, files)
    assert [problem.split(": ")[0] for problem in found] == ["ARCHITECTURE.md", "src/b.c calls pwrite", "ARCHITECTURE.md"]
    assert "src/a/map.c is listed" in found[0] and "src/gone.c is gone" in found[2]


@pytest.mark.parametrize(
    "call",
    ["MarkBufferDirtyHint(b, true)", "START_CRIT_SECTION()", "XLogInsert(RM_X, 0)", "log_newpage_buffer(b, true)", "smgrtruncate2(r)",
     "RelationTruncate(rel, 0)", "visibilitymap_clear(rel, 0)", "compat_visibilitymap_set(rel)", "unlink(path)", "durable_rename(a, b, LOG)",
     "pg_pwritev(fd, v, 1, 0)", "CatalogTupleUpdate(rel, tid, tuple)"],
)  # fmt: skip
def test_each_call_that_writes_is_found(call):
    assert len(script("check-writes").calls_in(f"static void f(void)\n{{\n\t(void) {call};\n}}\n")) == 1


@pytest.mark.parametrize("call", ["smgrnblocks(rel, 0)", "BufFileWrite(file, p, 1)", "overwrite(p)", "XLogFlush(lsn)", "write_page(p)"])
def test_calls_that_write_no_data_are_not(call):
    assert script("check-writes").calls_in(call) == set()
