"""`make bench-large` and `make prove-large`, small: they come to their ends, and measure and notice what they are for."""

import json
import sys
import tempfile
from pathlib import Path

import pytest

import large
from circumstances import file_system
from cyclone_lab import build, page_cache
from cyclone_lab.postgres import REPO
from long_runs import large_proof
from long_runs.large_proof import LargeProof

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

    def run(*arguments: str) -> int:
        usual = ["--size=0.02", "--rounds=1", "--workers=0", f"--results={tmp_path}"]
        monkeypatch.setattr(sys, "argv", ["large.py", *usual, *arguments])
        return large.main()

    return run


CONTENDERS = [("core", 1, "auto"), ("core", 7, "auto"), ("pg_cyclone", 0, "auto"), ("core", 0, "auto"), ("pg_cyclone", 1, "off")]


def test_bench_runs_through(bench, tmp_path, capsys):
    assert bench() == 0, capsys.readouterr().out
    [result] = json.loads((tmp_path / "results.json").read_text())["results"]
    size = result["heap_bytes"] + result["index_bytes"]
    assert [tuple(run["contender"].values()) for run in result["runs"]] == CONTENDERS
    for run in result["runs"]:
        assert run["use"]["read"] >= size  # nothing was in shared_buffers
        assert run["use"]["written"] > 0
        assert run["use"]["cached"] + run["cached_before"] > 0


def test_bench_says_before_all_work_what_fits(tmp_path):
    with pytest.raises(RuntimeError, match=r"GB left, and .* GB are needed: .* --size \d"):
        large.assert_fits(tmp_path, 1e9, logged=False)


def test_proof_runs_through(prefix):
    said = []
    with LargeProof(prefix, 0.1, say=said.append) as proof:
        proof.run()
    assert sum(line.startswith("VACUUM (") for line in said) == len(large_proof.COMMANDS)


def test_proof_that_proves_too_little_fails(prefix):
    with LargeProof(prefix, 0.01, memory="64MB", say=lambda line: None) as proof, pytest.raises(AssertionError, match="take less"):
        proof.run()
