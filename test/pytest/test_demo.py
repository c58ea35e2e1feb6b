"""`make demo`, small: it comes to its end, its proofs hold, and they notice what is wrong."""

import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console

from cyclone_lab import build
from cyclone_lab.postgres import REPO

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def demo(monkeypatch):
    """The module of scripts/demo.py."""
    monkeypatch.syspath_prepend(REPO / "scripts")
    import demo

    return demo


def test_runs_through(demo, prefix, monkeypatch, tmp_path, capsys):
    picture = tmp_path / "folder" / "demo.png"
    arguments = ["--rows=20000", "--workers=1", "--rounds=1", "--seconds=0.5", "--cap=60", f"--picture={picture}"]
    monkeypatch.setattr(sys, "argv", ["demo.py", *arguments])
    monkeypatch.setattr(build, "install", lambda major: prefix)
    assert demo.main() == 0
    output = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert output.count("index entries: sound") == 3
    assert output.count("and pgbench's changes: sound") == 2
    assert "The contents of all copies are equal." in output
    assert "The rows are those that there were." in output
    assert "times as fast as core" in output
    assert picture.read_bytes().startswith(PNG)
    before, after = map(int, re.search(r"(\d+) MB before, (\d+) MB after", output).groups())
    assert after < before


def test_the_first_size_is_from_before_what_is_watched(demo, conn):
    """However short that is."""
    conn.execute("CREATE TABLE orders (id int)")
    cluster = SimpleNamespace(connect=lambda: nullcontext(conn))
    with demo.Watch(cluster, "orders", Console(), engine=True, with_sizes=True) as watch:
        assert [size for _, size in watch.sizes] == [0]


def test_lost_change_is_noticed(demo, conn):
    conn.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer int, touched int); CREATE TABLE history (id bigint)")
    conn.execute("INSERT INTO orders SELECT i, i, 1 FROM generate_series(1, 100) i; INSERT INTO history SELECT id FROM orders")
    cluster = SimpleNamespace(connect=lambda: nullcontext(conn))
    assert demo.prove_load(cluster) == "sound"
    conn.execute("UPDATE orders SET touched = 0 WHERE id = 5")
    assert "100 TRANSACTIONS WERE COMMITTED, 99 CHANGES ARE THERE" in demo.prove_load(cluster)


def test_percentiles_and_what_is_beside_vacuum(demo):
    run = demo.BusyRun("x", begin=110, end=120, loaded=100)
    run.transactions = [(100.5, 90.0), (103, 1.0), (104, 2.0), (109.99, 20.0), (115, 5.0), (119.9, 500.0), (121, 1.0)]
    assert run.before(100) == 2.0
    assert run.during(100) == 500.0
    assert run.during(0) == 5.0
    assert demo.percentile([], 95) == 0
