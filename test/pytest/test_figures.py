"""`make figures`: what is kept of a result, the tables that are made of it, and that a table or picture of another one is noticed."""

import json
import re
from statistics import median

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
    assert figures.short_lines(saved)[2:] == [
        "| one btree: the picture's five cases | 2.00 s | 2.0 × | 4.0 × |",
        "| of heap-deleted | 2.00 s | 2.0 × | 4.0 × |",
    ]
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("vacuum", "guards"))
    monkeypatch.setattr(figures, "TABLES", [figures.Table("page.md", "guards", "guards", figures.guards_lines)])
    monkeypatch.setattr(figures, "PICTURES", [])
    assert "saved/guards.json" in figures.problems()[0]
    page.write_text(PAGE)
    monkeypatch.setattr(figures, "TABLES", [figures.Table("page.md", "vacuum", "vacuum", figures.short_lines)])
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


def test_the_readmes_table(figures):
    """It has a line of each saved result that is there, and for each a machine."""
    scenarios = [{**one["scenario"], "rows": one["rows"], "runs": [{**run["contender"], **run} for run in one["runs"]]} for one in result()["results"]]

    def named(name: str) -> dict:
        return {"circumstances": CIRCUMSTANCES, "scenarios": [{**scenarios[0], "name": name}]}

    large = {"circumstances": CIRCUMSTANCES, "scenario": {"heap_bytes": 10**10, "index_bytes": 10**10},
             "runs": [{**run, "page_cache": "auto"} for run in scenarios[0]["runs"]]}  # fmt: skip
    own = {"pgvector": {"seconds": 8}, "one process": {"seconds": 2}, "with a worker": {"seconds": 1}}
    saved = {"vacuum": named("one-index"), "large": large, "more": named("full-narrow")}
    lines = figures.readme_lines(saved)
    assert [re.findall(r"[\d.]+ times", line) for line in lines[2:-2]] == 3 * [["2.0 times", "4.0 times"]]
    assert lines[-1].startswith("(PostgreSQL 18.6, 2 cores;")
    vectors = {"circumstances": CIRCUMSTANCES, "cases": [{"share": 0.1, "results": own}]}
    [added] = set(figures.readme_lines({**saved, "vectors": vectors})) - set(lines)
    assert "10% of its rows" in added and added.endswith("| 8.0 s | 4.0 times as fast | 8.0 times as fast |")


def test_a_result_of_no_commit_is_not_saved(figures, tmp_path):
    file = tmp_path / "results.json"
    for commit in ("abc-dirty", "unknown (not in a commit)"):
        file.write_text(json.dumps({**result(), "circumstances": {**CIRCUMSTANCES, "commit": commit}}))
        with pytest.raises(ValueError, match="not of a commit"):
            figures.save("vacuum", file, "make bench")


def test_a_figure_that_was_typed_is_found(figures):
    """On the page of conclusions, which has no others than those of saved results; versions and cores are none."""
    made = "<!-- make figures: vacuum in short -->\n| 2.49 s | 1.9 × |\n<!-- end -->\n"
    assert figures.typed(f"On PostgreSQL 18.6, 2 cores:\n{made}as fast as 19's") == []
    for figure in ("1.2 %", "1.06 times", "2.5 ×", "20 ms", "6.2 GB"):
        assert figures.typed(f"{made}It takes {figure}.\n{made}") == [figure]


def saved(name: str) -> dict:
    return json.loads((REPO / "bench/saved" / f"{name}.json").read_text())


def of_contender(result: dict, name: str, what: str) -> float:
    return median(run[what] for run in result["runs"] if run["contender"] == name)


def test_what_the_pages_say_in_words_of_making_a_table_small():
    """Of README, docs/why.md and docs/performance.md, by the saved results."""
    online, on_19 = saved("online"), saved("online-19")
    for result, other, least, most in ((online, "pg_repack", 1.5, 2.5), (on_19, "REPACK (CONCURRENTLY)", 0.75, 1.33)):
        assert least < of_contender(result, "FULL INPLACE", "seconds") / of_contender(result, other, "seconds") < most
        assert of_contender(result, "FULL INPLACE", "wal") > of_contender(result, other, "wal")
        assert of_contender(result, "FULL INPLACE", "peak_disk") < of_contender(result, other, "peak_disk") / 50
        assert max(run["longest_lock_wait_ms"] for run in result["runs"] if run["contender"] == "FULL INPLACE") < 10
    paced, full, repack, core = (of_contender(online, name, "p95_ms") for name in ("FULL INPLACE, ADAPTIVE_DELAY", "FULL INPLACE", "pg_repack", "VACUUM FULL"))
    assert paced < repack < full < core
    assert 8 < of_contender(online, "FULL INPLACE, ADAPTIVE_DELAY", "seconds") / of_contender(online, "pg_repack", "seconds") < 12
    assert of_contender(online, "FULL INPLACE", "wal") > of_contender(online, "VACUUM FULL", "wal")


def test_what_the_page_says_in_words_of_latency_and_small_tables(figures):
    """Of docs/performance.md: harm and time are a trade, the adaptive delay is slow and harmless, and small tables gain less."""
    points = {point["title"]: (point["seconds"]["median"], point["harm"]["95"]["median"]) for point in saved("latency")["points"]}
    adaptive, smallest = points["pg_cyclone, adaptive delay"], points["pg_cyclone, 200 a 2 ms"]
    assert adaptive[0] > smallest[0] and adaptive[1] <= smallest[1] and max(points["PostgreSQL, 200 a 2 ms"][1], smallest[1]) <= 1
    assert points["pg_cyclone, no delay"][1] > points["PostgreSQL, no delay"][1]
    [whole] = [way for way in saved("tables")["ways"] if way["way"] == "VACUUM"]
    [large] = [one for one in saved("vacuum")["scenarios"] if one["name"] == "one-index"]
    assert median(whole["PostgreSQL"]) / median(whole["pg_cyclone"]) < figures.ratio(large, 0)
