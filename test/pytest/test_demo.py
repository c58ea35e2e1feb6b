"""`make demo`, small: it comes to its end, its proofs hold, and they notice what is wrong. `make try` leaves nothing."""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from cyclone_lab.postgres import REPO

PNG = b"\x89PNG\r\n\x1a\n"
DEMO = """
import demo
demo.SETTLE_SECONDS = 0.5
if without_disk := sys.argv.pop(1):
    demo.can_be_small = lambda: without_disk
sys.exit(demo.main())
"""
TRY = """
import try_server
sys.exit(try_server.main())
"""


def run(program: str, prefix, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Run a script in a process of its own, as a small disk can only be had before there are threads."""
    start = "import sys\nfrom pathlib import Path\nfrom cyclone_lab import build\nprefix = sys.argv.pop(1)\nbuild.install = lambda major: Path(prefix)\n"
    env = {**os.environ, "PYTHONPATH": ":".join(str(REPO / folder) for folder in ("test", "bench", "scripts"))}
    return subprocess.run([sys.executable, "-c", start + program, prefix, *arguments], text=True, stdout=subprocess.PIPE, env=env, **options)


@pytest.fixture
def demo(monkeypatch):
    """The module of scripts/demo.py."""
    monkeypatch.syspath_prepend(REPO / "bench")
    monkeypatch.syspath_prepend(REPO / "scripts")
    import demo

    return demo


@pytest.mark.parametrize("without_disk", ["", pytest.param("not allowed", marks=pytest.mark.full)])
def test_runs_through(prefix, tmp_path, without_disk):
    picture = tmp_path / "folder" / "demo.png"
    arguments = ["--rows=20000", "--workers=1", "--rounds=1", "--seconds=0.5", "--seen=500", f"--picture={picture}"]
    result = run(DEMO, prefix, without_disk, *arguments, stderr=subprocess.PIPE)
    assert result.returncode == 0, result.stdout + result.stderr
    output = re.sub(r"\s+", " ", result.stdout)
    assert output.count("index entries: sound") == 2
    assert output.count("and pgbench's changes: sound") == 4
    assert "The contents of both copies are equal." in output
    assert "The rows are those that there were." in output
    assert "times as fast" in output
    starts = ("without VACUUM", *(rf"{way}: [\d.]+ s," for way in ("PostgreSQL, default delay", "pg_cyclone, adaptive delay", "PostgreSQL, no delay")))
    alone, *_, full = (float(re.search(start + r" 95 % take less than ([\d.]+) ms", output)[1]) for start in starts)
    assert ("leaves room" in output) == (full < 1.2 * alone) or abs(full - 1.2 * alone) < 0.2
    assert "nothing that is installed is touched" in output.split("Getting PostgreSQL")[0]
    assert picture.read_bytes().startswith(PNG)
    before, after = map(int, re.search(r"(\d+) MB before, (\d+) MB after", output).groups())
    assert after < before
    if without_disk:
        assert "A small disk can't be made here (not allowed)" in output
    elif "The disk had 300 kB left" in output:
        assert "could not extend file" in output
        assert int(re.search(r"(\d+) kB more were used", output)[1]) <= 300


def test_a_server_to_try(prefix):
    """psql runs on it, another one can, the views are there; nothing is left when psql has ended."""
    home = re.compile(r"For another session: (\S+) -h (\S+) -U postgres shop\nThe server's log: (\S+)\n")
    lines = ["VACUUM (VERBOSE) pg_class;", "SELECT count(*) > 0 AS has_views FROM cyclone.bloat;", "\\conninfo", "\\q"]
    result = run(TRY, prefix, input="\n".join(lines), stderr=subprocess.STDOUT)
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith("psql on a server of its own") and "VACUUM (FULL INPLACE) orders" in result.stdout
    assert "parallel workers: 0 planned" in result.stdout and "has_views" in result.stdout and "ERROR" not in result.stdout
    psql, socket, log = home.search(result.stdout).groups()
    assert os.access(psql, os.X_OK) and not os.path.exists(socket) and not os.path.exists(log)


@pytest.mark.once
@pytest.mark.parametrize(
    ("full_ms", "adaptive_seconds", "says"), [(1.1, 5, "says nothing"), (3, 9.5, "leaves no room"), (3, 5, "delay is 2.0 times as fast")]
)
def test_the_third_part_says_what_it_has_shown(demo, full_ms, adaptive_seconds, says):
    ways = [demo.Beside(name, {}, seconds=seconds, before_ms=1, ms=ms) for name, seconds, ms in
            (("default delay", 10, 1.1), ("no delay", 1, full_ms), ("adaptive delay", adaptive_seconds, 1.2))]  # fmt: skip
    assert says in demo.paced_claim(ways)


def test_lost_change_is_noticed(demo, conn):
    conn.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer int, touched int); CREATE TABLE history (id bigint)")
    conn.execute("INSERT INTO orders SELECT i, i, 1 FROM generate_series(1, 100) i; INSERT INTO history SELECT id FROM orders")
    cluster = SimpleNamespace(connect=lambda: nullcontext(conn))
    assert demo.prove_load(cluster) == "sound"
    conn.execute("UPDATE orders SET touched = 0 WHERE id = 5")
    assert "100 STATEMENTS WERE COMMITTED, 99 CHANGES ARE THERE" in demo.prove_load(cluster)
