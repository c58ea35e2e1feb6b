"""`make bench-large` and `make prove-large`, small: they come to their ends, and measure and notice what they are for."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

import beside
import large
import measure
from circumstances import file_system
from cyclone_lab import build, large_proof, page_cache
from cyclone_lab.files import GIBIBYTE
from cyclone_lab.large_proof import LargeProof
from cyclone_lab.postgres import REPO

PNG = b"\x89PNG\r\n\x1a\n"
BYTES = 1 << 20


def test_page_cache_is_seen_and_emptied():
    """Where files are not in memory anyway."""
    (REPO / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=REPO / "build") as folder:
        file, empty = Path(folder) / "file", Path(folder) / "empty"
        file.write_bytes(b"x" * BYTES)
        empty.touch()
        assert page_cache.held([file, empty, Path(folder) / "missing"]) == BYTES
        page_cache.drop([file, empty])
        assert page_cache.held([file]) == (BYTES if file_system(file) == "tmpfs" else 0)
        page_cache.fill([file])
        assert page_cache.held([file]) == BYTES


@pytest.fixture
def bench(prefix, monkeypatch, tmp_path):
    """A function that runs the bench with a small table and more arguments, and returns its exit status."""
    monkeypatch.setattr(build, "install", lambda major: prefix)
    monkeypatch.setattr(beside, "MOST_SECONDS", 1)

    def run(*arguments: str) -> int:
        usual = ["--size=0.02", "--hot=0.01", "--rounds=1", "--workers=0", "--before=1", "--after=1", f"--results={tmp_path}"]
        monkeypatch.setattr(sys, "argv", ["large.py", *usual, *arguments])
        return large.main()

    return run


CONTENDERS = [("core", 1, "auto"), ("core", 7, "auto"), ("pg_cyclone", 0, "auto"), ("core", 0, "auto"), ("pg_cyclone", 1, "off")]
BESIDE = [("core", "auto"), ("pg_cyclone", "auto"), ("pg_cyclone", "off")]


def test_bench_runs_through(bench, tmp_path, capsys):
    assert bench() == 0, capsys.readouterr().out
    [result] = json.loads((tmp_path / "results.json").read_text())["results"]
    size = result["heap_bytes"] + result["index_bytes"]
    assert [tuple(run["contender"].values()) for run in result["runs"]] == CONTENDERS
    for run in result["runs"]:
        assert run["device"]["read_bytes"] >= size  # nothing was in shared_buffers
        assert run["device"]["written_bytes"] > 0
        assert run["kernel"]["cached"] + run["cached_before"] > 0
    assert all(rate > 0 for rates in result["programs"] for rate in rates.values())
    hot = json.loads((tmp_path / "hot.json").read_text())
    assert [(run["contender"]["engine"], run["contender"]["page_cache"]) for run in hot] == BESIDE
    for run in hot:
        assert run["p95_ms"]["before"] > 0 and run["p95_ms"]["after"] > 0
        assert run["kept"][0][0] < 0
        assert max(share for _, share in run["kept"]) > 0.9
    text = (tmp_path / "large.md").read_text()
    assert "memory: " in text and text.count("| core, PARALLEL 7 |") == 1
    assert (tmp_path / "hot.png").read_bytes().startswith(PNG)


@pytest.fixture
def kept():
    """A folder that the server's user can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "kept"


def test_bench_goes_on_where_it_was_interrupted(bench, kept, monkeypatch, tmp_path, capsys):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(measure, "_timed_vacuum", interrupted_after(2, measure._timed_vacuum))
        bench(f"--keep={kept}", "--resume")
    [first] = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [tuple(run["contender"].values()) for run in first["runs"]] == CONTENDERS[:2]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(large, "measure_hot", interrupted_after(1, large.measure_hot))
        bench(f"--keep={kept}", "--resume")
    assert "of an earlier run" in capsys.readouterr().out
    assert (tmp_path / "large.md").exists(), "what there is can be read, too"
    (kept / "runs" / "left").write_text("by a run that was killed")
    assert bench(f"--keep={kept}", "--resume") == 0
    [result] = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [tuple(run["contender"].values()) for run in result["runs"]] == CONTENDERS
    assert result["runs"][:2] == first["runs"] and result["programs"] == first["programs"]
    assert [run["contender"]["engine"] for run in json.loads((tmp_path / "hot.json").read_text())] == [engine for engine, _ in BESIDE]
    assert not any((kept / "runs").iterdir())
    with pytest.raises(RuntimeError, match="another table"):
        bench(f"--keep={kept}", "--resume", "--size=0.01")
    with pytest.raises(RuntimeError, match="another settings"):
        bench(f"--keep={kept}", "--resume", "--set", "work_mem=8MB")
    monkeypatch.setattr(large, "hold_memory", lambda left: b"some")
    with pytest.raises(RuntimeError, match="another memory left"):
        bench(f"--keep={kept}", "--resume", "--left=1")


def interrupted_after(calls: int, function):
    """Return a function that does the same, but raises KeyboardInterrupt after so many calls."""
    done = []

    def wrapped(*arguments, **options):
        done.append(arguments)
        if len(done) > calls:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return wrapped


def test_bench_says_before_all_work_what_fits(tmp_path):
    with pytest.raises(RuntimeError, match=r"GB left, and .* GB are needed: .* --size \d"):
        large.assert_fits(tmp_path, 1e9, 0, logged=False)
    free = shutil.disk_usage(tmp_path).free / GIBIBYTE
    large.assert_fits(tmp_path, 0.6 * (free - 1), 0, logged=False, is_made=True)
    with pytest.raises(RuntimeError, match="GB are needed"):
        large.assert_fits(tmp_path, 0.6 * (free - 1), 0, logged=False)


def test_proof_runs_through(prefix):
    said = []
    with LargeProof(prefix, 0.1, say=said.append) as proof:
        proof.run()
    assert sum(line.startswith("VACUUM (") for line in said) == len(large_proof.COMMANDS)


def test_proof_that_proves_too_little_fails(prefix):
    with LargeProof(prefix, 0.01, memory="64MB", say=lambda line: None) as proof, pytest.raises(AssertionError, match="take less"):
        proof.run()
