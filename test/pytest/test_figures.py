"""`make figures`: what is kept of a result, the tables that are made of it, and that a table or picture of another one is noticed."""

import json

import pytest

from cyclone_lab.postgres import REPO

CIRCUMSTANCES = {"PostgreSQL": "PostgreSQL 18.6", "cores": 2, "CPU": "a CPU", "date": "2026-11-27", "commit": "abc"}
PAGE = "before\n<!-- make figures: vacuum -->\n<!-- end -->\nafter\n"


@pytest.fixture
def figures(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(REPO / "bench")
    import figures

    monkeypatch.setattr(figures, "TOP", tmp_path)
    monkeypatch.setattr(figures, "SAVED", tmp_path / "saved")
    return figures


def result() -> dict:
    """Return what `make bench` writes, as far as it is kept: two scenarios in three rounds."""
    def run(engine: str, workers: int, number: int, seconds: float) -> dict:
        phases = {"heap scan": seconds / 2, "index vacuum": seconds / 4}
        return {"contender": {"engine": engine, "workers": workers}, "round": number, "seconds": seconds, "phases": phases, "messages": ["long"]}

    runs = [run(engine, workers, number, seconds * number) for number in (3, 1, 2)
            for engine, workers, seconds in (("core", 0, 1.0), ("pg_cyclone", 0, 0.5), ("pg_cyclone", 1, 0.25))]  # fmt: skip
    results = [{"scenario": {"name": name, "about": f"of {name}"}, "rows": 20_000_000, "heap_bytes": 844 << 20, "index_bytes": size, "runs": runs}
               for name, size in (("case-1", 428 << 20), ("heap-deleted", 0))]  # fmt: skip
    return {"circumstances": CIRCUMSTANCES, "results": results}


def test_tables_and_pictures_are_those_of_the_saved_result(figures, tmp_path, monkeypatch):
    file = tmp_path / "results.json"
    file.write_text(json.dumps(result()))
    figures.save("vacuum", file, "make bench")
    saved = figures.load("vacuum")
    assert saved["command"] == "make bench" and "messages" not in saved["scenarios"][0]["runs"][0]
    assert figures.vacuum_lines(saved)[2:] == [
        "| `case-1`: of case-1 | 844 + 428 MB | 2.00 s | 1.00 s (2.00 ×) | 0.50 s (4.00 ×) |",
        "| `heap-deleted`: of heap-deleted | 844 MB | 2.00 s | 1.00 s (2.00 ×) | 0.50 s (4.00 ×) |",
    ]
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("vacuum", "guards"))
    monkeypatch.setattr(figures, "TABLES", [figures.Table("page.md", "guards", "guards", figures.guards_lines)])
    monkeypatch.setattr(figures, "PICTURES", [])
    assert figures.problems() == ["page.md: there is no bench/saved/guards.json for the table guards"]
    page.write_text(PAGE)
    monkeypatch.setattr(figures, "TABLES", [figures.Table("page.md", "vacuum", "vacuum", figures.vacuum_lines)])
    monkeypatch.setattr(figures, "PICTURES", [figures.Picture("cases.png", "vacuum", figures.draw_vacuum)])
    figures.write()
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "2026-11-27, commit abc" in text
    assert figures.problems() == []

    page.write_text(text.replace("2.00 s", "3.00 s", 1))
    assert ["page.md: the table vacuum" in problem for problem in figures.problems()] == [True]
    page.write_text("no place for it")
    assert "page.md has no lines" in figures.problems()[0]
    page.write_text(text)
    other = result()
    other["results"].pop()
    file.write_text(json.dumps(other))
    figures.save("vacuum", file, "make bench")
    assert sorted(problem.split(":")[0].split(" was")[0] for problem in figures.problems()) == ["cases.png", "page.md"]


def test_a_budget_is_spelled_as_one_sets_it(figures):
    assert figures.spelled("PostgreSQL, 400 a 2 ms") == "PostgreSQL, `vacuum_cost_limit = 400`, `vacuum_cost_delay = 2ms`"


def test_summaries_of_guards(figures):
    import guards

    assert guards.summary("archiver", [[0, 100, 0, 0, True], [8, 50, 90, 0.4, True], [8.2, 0, 90, 0.4, False]]) == "the server went down after 8.0 s"
    assert guards.summary("archiver", [[0, 100, 0, 0, True], [9, 66.6, 90, 0.4, True], [9.2, 67, 90, 1, False]]) == "9.0 s, at least 67 MB free"
    assert guards.guard_of("standby", 3) == "max_replica_lag 3 s" and guards.guard_of("archiver", 0) == "no guard"
