"""`make figures`: what is kept of a result, the tables that are made of it, and that a table or picture of another one is noticed."""

import json
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
    assert figures.vacuum_lines(saved)[2:] == [
        "| `case-1`: of case-1 | 20 million | 844 + 428 MB | 2.00 s | 1.00 s, 2.00 × (2.00–2.00) | 0.50 s, 4.00 × (4.00–4.00) |",
        "| `heap-deleted`: of heap-deleted | 20 million | 844 MB | 2.00 s | 1.00 s, 2.00 × (2.00–2.00) | 0.50 s, 4.00 × (4.00–4.00) |",
        "",
        "Seconds are the median of 3 rounds; the ratio is that of the rounds' ratios, the range theirs.",
    ]
    assert figures.readme_lines(saved)[2:] == [
        "| no index, every tenth row deleted, logged in full | 2.00 s | 2.0 times as fast | 4.0 times as fast |",
        "| [five cases](docs/cases.png) | 2.00 to 2.00 s | 2.0 times (mean) | 4.0 times (mean) |",
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


def test_scenarios_of_a_kind_are_told_in_a_line(figures):
    def scenario(name: str, ours: float) -> dict:
        runs = [{"engine": engine, "workers": workers, "round": 1, "seconds": seconds, "phases": {}}
                for engine, workers, seconds in (("core", 0, 1.2), ("pg_cyclone", 0, ours), ("pg_cyclone", 1, ours / 2))]  # fmt: skip
        return {"name": name, "about": f"of {name}", "rows": 50_000, "heap_bytes": 1 << 30, "index_bytes": 0, "runs": runs}

    saved = {"scenarios": [scenario("kind-gin", 0.8), scenario("one-index", 0.6), scenario("kind-gist", 0.4)]}
    assert figures.short_lines(saved)[2:] == [
        "| another kind of index: GiST, SP-GiST, GIN, hash | 1.20 s | 1.5 to 3.0 × | 3.0 to 6.0 × |",
        "| of one-index | 1.20 s | 2.0 × | 4.0 × |",
    ]


def test_contenders_that_make_a_table_small(figures):
    def run(contender: str, seconds: float, wait: float) -> dict:
        sizes = {"peak_disk": 3 << 19, "wal": 60 << 20, "table": 20 << 20, "indexes": 2 << 20}
        return {"contender": contender, "seconds": seconds, "finished": contender != "pg_squeeze", "longest_lock_wait_ms": wait, **sizes}

    runs = [run(name, seconds, wait) for seconds, wait in ((3, 0), (1, 9), (2, 1)) for name in ("nothing", "FULL INPLACE", "REPACK (CONCURRENTLY)")]
    lines = figures.online_lines({"rate": 4143.6, "runs": [*runs, *(run("pg_squeeze", 300, 0) for _ in range(3))]})
    assert lines[0] == ("A table of 20 MB and indexes of 2 MB, beside 4,144 transactions a second of pgbench; medians of 3 rounds,"
                        " and the longest wait of all:")  # fmt: skip
    assert lines[4:] == [
        "| `VACUUM (FULL INPLACE)` | 2.0 s | 1.5 MB | 60 MB | 9 ms | 22 MB |",
        "| `REPACK (CONCURRENTLY)` | 2.0 s | 1.5 MB | 60 MB | 9 ms | 22 MB |",
        "| pg_squeeze, given up | 300.0 s | 1.5 MB | 60 MB | none of 1 ms | 22 MB |",
    ]


def test_views_and_many_tables(figures):
    saved = {"tables": 1000, "runs": 10_000, "rounds": 7, "views": [{"name": "advice", "median": 64.4, "longest": 1070.6, "processor": 60.0}]}
    assert figures.views_lines(saved)[0].startswith("1,000 tables, ten of them large and bloated, and a history of 10,000 runs")
    assert figures.views_lines(saved)[4:] == ["| advice | 64.4 ms | 1,070.6 ms |"]
    saved = {"tables": 2000, "rows": 18_000, "ways": [{"way": "VACUUM", "PostgreSQL": [1.2, 1.5, 2.0], "pg_cyclone": [1.0, 1.0, 1.0]}]}
    assert figures.tables_lines(saved)[4:] == ["| VACUUM | 1.50 s | 1.00 s | 1.50 (1.20–2.00) |"]


def test_a_table_larger_than_memory(figures):
    looks = (("core", 0, "auto", 4.0), ("core", 1, "auto", 2.0), ("pg_cyclone", 0, "auto", 1.8), ("pg_cyclone", 1, "off", 1.6), ("pg_cyclone", 1, "auto", 1.0))
    runs = [{"contender": {"engine": engine, "workers": workers, "page_cache": setting}, "round": number, "seconds": seconds * number}
            for engine, workers, setting, seconds in looks for number in (2, 1)]  # fmt: skip
    one = {"scenario": {"about": "eight indexes"}, "rows": 1_000_000, "heap_bytes": 1 << 30, "index_bytes": 5 << 30, "runs": runs}
    facts = {**CIRCUMSTANCES, "memory": "23.5 GB", "memory held": "16.4 GB, so that 3 GB were left for all else"}
    kept = figures.keep_large({"circumstances": facts, "results": [one]})
    assert figures.large_short_lines(kept)[2:] == ["| a table larger than memory, on a disk | 3.0 s | 1.1 × | 2.0 × |"]
    lines = figures.large_lines(kept)
    assert lines[0] == ("Eight indexes; 1,000,000 rows, 1,024 + 5,120 MB; memory 23.5 GB, held of it 16.4 GB, so that 3 GB were left for all else;"
                        " medians of 2 rounds, and of the ratio in each:")  # fmt: skip
    assert lines[4:] == [
        "| PostgreSQL, `PARALLEL 0` | 6.0 | 0.50 × (0.50–0.50) |",
        "| PostgreSQL, `PARALLEL 1` | 3.0 | 1.00 × (1.00–1.00) |",
        "| pg_cyclone, `PARALLEL 0` | 2.7 | 1.11 × (1.11–1.11) |",
        "| pg_cyclone, `PARALLEL 1` | 1.5 | 2.00 × (2.00–2.00) |",
        "| pg_cyclone, `PARALLEL 1`, `cyclone.preserve_page_cache = off` | 2.4 | 1.25 × (1.25–1.25) |",
    ]


def test_postgresql_is_compared_as_it_does_it_best(figures):
    runs = [{"engine": engine, "workers": workers, "round": number, "seconds": seconds * number, "phases": {}} for number in (1, 2, 3)
            for engine, workers, seconds in (("core", 0, 4.0), ("core", 2, 2.0), ("pg_cyclone", 0, 1.0), ("pg_cyclone", 1, 0.5))]  # fmt: skip
    saved = {"scenarios": [{"name": "full", "about": "VACUUM FULL", "rows": 50_000, "heap_bytes": 1 << 30, "index_bytes": 0, "runs": runs}]}
    assert figures.vacuum_lines(saved)[2] == (
        "| `full`: VACUUM FULL | 50,000 | 1,024 MB | 4.00 s, 2 workers | 2.00 s, 2.00 × (2.00–2.00) | 1.00 s, 4.00 × (4.00–4.00) |")  # fmt: skip


def test_what_waits_for_a_result_gives_way_to_it(figures, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "TABLES", [figures.Table("page.md", "vacuum", "vacuum", figures.vacuum_lines)])
    monkeypatch.setattr(figures, "PICTURES", [])
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- make figures: vacuum, once saved -->\nby hand\n<!-- end -->\nafter\n")
    figures.write()
    assert figures.problems() == [] and "by hand" in page.read_text()
    file = tmp_path / "results.json"
    for commit in ("abc-dirty", "unknown (not in a commit)"):
        file.write_text(json.dumps({**result(), "circumstances": {**CIRCUMSTANCES, "commit": commit}}))
        with pytest.raises(ValueError, match="not of a commit"):
            figures.save("vacuum", file, "make bench")
    file.write_text(json.dumps(result()))
    figures.save("vacuum", file, "make bench")
    assert "the table vacuum" in figures.problems()[0]
    figures.write()
    assert figures.problems() == [] and "by hand" not in page.read_text() and "once saved" not in page.read_text()


def test_audits_in_one_process_are_compared_with_none(figures):
    saved = {"cases": [{"name": "no index", "none": 10.0, "least": 10.1, "most": 20.0}]}
    assert figures.audit_lines(saved)[2:] == ["| no index | 10.0 ms | 1.0 % | 20.0 ms | 1.0 % |"]


def test_harm_is_told_with_the_load(figures):
    spread = {"low": 1, "median": 1.234, "high": 2}
    point = {"title": "PostgreSQL, 200 a 2 ms", "curve": "PostgreSQL, budgets", "seconds": spread, "harm": {"95": spread, "99": spread}, "finished": True}
    saved = {"rate": 450.0, "database_bytes": 787 << 20, "buffers": "196MB", "sizes": {"warehouses": 6}, "points": [point]}
    lines = figures.latency_lines(saved)
    assert lines[0].startswith("6 warehouses, 787 MB, 196MB of `shared_buffers`, 450 transactions a second")
    auto = {**point, "title": "pg_cyclone, latency target auto", "seconds": {"median": 0.5}}
    short = figures.latency_short_lines({**saved, "points": [auto, point, {**point, "title": "pg_cyclone, 200 a 2 ms"}]})
    assert short[2:] == ["| cost limit 200 at 2 ms | 1.2 s, 1.23 × | 1.2 s, 1.23 × |", "| latency target auto |  | 0.5 s, 1.23 × |"]
    assert lines[-1] == ("| PostgreSQL, `vacuum_cost_limit = 200`, `vacuum_cost_delay = 2ms` (autovacuum's default)"
                         " | 1.2 (1.0–2.0) | 1.23 (1.00–2.00) | 1.23 (1.00–2.00) |")  # fmt: skip


def test_a_budget_is_spelled_as_one_sets_it(figures):
    assert figures.spelled("PostgreSQL, 400 a 2 ms") == "PostgreSQL, `vacuum_cost_limit = 400`, `vacuum_cost_delay = 2ms`"


def test_summaries_of_guards(figures):
    import guards

    assert guards.summary("archiver", [[0, 100, 0, 0, True], [8, 50, 90, 0.4, True], [8.2, 0, 90, 0.4, False]]) == "the server went down after 8.0 s"
    assert guards.summary("archiver", [[0, 100, 0, 0, True], [9, 66.6, 90, 0.4, True], [9.2, 67, 90, 1, False]]) == "9.0 s, at least 67 MB free"
    assert guards.guard_of("standby", 3) == "max_replica_lag 3 s" and guards.guard_of("archiver", 0) == "no guard"


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


def test_what_the_page_says_in_words_of_latency_and_small_tables(figures):
    """Of docs/performance.md: harm and time are a trade, `auto` is slow and harmless, and small tables gain less."""
    points = {point["title"]: (point["seconds"]["median"], point["harm"]["95"]["median"]) for point in saved("latency")["points"]}
    auto, smallest = points["pg_cyclone, latency target auto"], points["pg_cyclone, 200 a 2 ms"]
    assert auto[0] > smallest[0] and auto[1] <= smallest[1] and max(points["PostgreSQL, 200 a 2 ms"][1], smallest[1]) <= 1
    assert points["pg_cyclone, no delay"][1] > points["PostgreSQL, no delay"][1]
    [whole] = [way for way in saved("tables")["ways"] if way["way"] == "VACUUM"]
    [large] = [one for one in saved("vacuum")["scenarios"] if one["name"] == "one-index"]
    assert median(whole["PostgreSQL"]) / median(whole["pg_cyclone"]) < figures.ratio(large, 0)
