"""Short versions of the long runs: a few crashes, faults and damages, and some seconds with a standby and a subscriber.

With --whole also longer ones, and each once more with autovacuum as a driver. `make crash-test`, `make fault-test`, `make damage-test` and
`make soak` go on for as long as one likes. A failed test shows its seed; CYCLONE_SEED repeats its choices.
"""

import os
import random
import shlex
import subprocess
import sys
from collections import Counter
from unittest.mock import MagicMock

import pytest

from cyclone_lab import build, pgvector, power
from long_runs import autovacuum, crash_test, damage_test, fault_test, power_test, soak, twins
from long_runs.crash_test import IN_AUTOVACUUM, CrashTest
from long_runs.damage_test import DamageTest, Outcome
from long_runs.fault_test import BREAKERS, LEFT_TO_SERVER, FaultTest
from long_runs.soak import LEAST_VACUUMS, Soak

LIVES = 10  # at most, in which what a run is about comes to pass for certain, and mostly in the first one


def short_and_longer(name, short, longer):
    return pytest.mark.parametrize(name, [short, pytest.param(longer, marks=pytest.mark.full)])


@pytest.fixture
def seed():
    number = int(os.environ.get("CYCLONE_SEED", random.randrange(1_000_000)))
    print(f"CYCLONE_SEED={number}")
    return number


def run_lives(test, amount: int, life: int, *wanted: str) -> None:
    """Make a long run of `amount` rounds, and more of them until each of these has happened."""
    for number in range(LIVES):
        test.run(amount, number * life, show=print)
        if all(test.done[what] for what in wanted):
            return
    raise AssertionError(f"it proves too little, for lack of one of {wanted}: {test.done}")


@short_and_longer("rounds", 4, 12)
def test_nothing_is_lost_or_wrong_after_crashes_under_load(prefix, pg_major, seed, rounds):
    with CrashTest(prefix, pg_major, seed) as test:
        run_lives(test, rounds, 2 * crash_test.LIFE, "commit", "VACUUM")
        assert test.done["rounds"] >= rounds


@short_and_longer("faults", 4, 8)
def test_a_disk_that_fails_harms_only_the_command(prefix, pg_major, seed, faults):
    with FaultTest(prefix, pg_major, seed) as test:
        for life in range(LIVES):
            test.run(faults + test.done["faults"], life * fault_test.LIFE, show=print)
            if test.done["ended by a clear error"]:
                break
        assert test.done["ended by a clear error"] > 0


@short_and_longer("damages", 4, 12)
def test_damaged_files_end_vacuum_no_worse_than_postgresqls(prefix, pg_major, seed, damages):
    with DamageTest(prefix, pg_major, seed) as test:
        run_lives(test, damages, damages, "FULL: ok")
        assert test.done["damages"] >= damages


def power_test_of(pg_major, seed, rounds: int, filesystem: str, before: str = "pass") -> str:
    """Run a power test in a process of its own, which has its mounts, after this code; return what it has said. Where there can be none it says
    why, and this is no test of more."""
    code = f"import sys; from long_runs import power_test; {before}; sys.exit(power_test.main())"
    options = ["--version", pg_major, "--seed", seed, "--rounds", rounds, "--filesystem", filesystem]
    command = [sys.executable, "-c", code, *map(str, options)]
    ended = subprocess.run(command, text=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(build.REPO / "test")})
    return ended.stdout + ended.stderr


@short_and_longer("rounds", 2, 12)
def test_nothing_is_lost_or_wrong_after_power_cuts(pg_major, seed, rounds):
    said = power_test_of(pg_major, seed, rounds, power.FILE_SYSTEMS[seed % 2])
    assert f"\nrounds: {rounds}\n" in said or "\nno power test: " in f"\n{said}", said


def test_a_power_cut_without_fsync_is_noticed(pg_major, seed):
    said = power_test_of(pg_major, seed, 4, "ext4", "power_test.CONFIG['fsync'] = 'off'; power_test.PowerTest.server.keep = repr")
    assert " failed: repeat with SEED=" in said or "\nno power test: " in f"\n{said}", said


def test_an_end_that_postgresql_does_not_come_to_is_noticed(prefix, pg_major, seed, monkeypatch):
    with DamageTest(prefix, pg_major, seed) as test:
        execute = test._execute
        monkeypatch.setattr(test, "_execute", lambda run, *rest: Outcome("crash") if run.name == "team" else execute(run, *rest))
        with pytest.raises(AssertionError, match="team of .*kind='crash'"):
            test.run(12)


def test_rows_that_are_gone_are_noticed(prefix, pg_major, seed):
    with DamageTest(prefix, pg_major, seed) as test:
        test.run(0)
        test.rows["other"] = test.rows["gin"]
        with pytest.raises(AssertionError, match="other has other rows"):
            test.run(12)


@short_and_longer("seconds", 5, 24)
def test_standby_and_subscriber_have_what_was_committed(prefix, seed, monkeypatch, seconds):
    monkeypatch.setattr(soak, "PERIOD", min(seconds, soak.PERIOD))
    with Soak(prefix, seed, writers=6) as test:
        test.run(seconds / 60, show=print)
        assert test.done["comparisons"] > 0 and test.done["vacuums"] >= LEAST_VACUUMS and test.done["promotions"] == 1


@pytest.mark.full
def test_crashes_in_the_midst_of_autovacuums(prefix, pg_major, seed):
    with CrashTest(prefix, pg_major, seed, with_autovacuum=True) as test:
        for life in range(1, LIVES + 1):
            test.run(8, (life - 1) * crash_test.LIFE, show=print)
            if test.done[IN_AUTOVACUUM] and test.autovacuums.done[autovacuum.WITH_WORKERS]:
                break
        assert test.done["rounds"] == 8 * life and test.done[IN_AUTOVACUUM] > 0 and test.autovacuums.done[autovacuum.WITH_WORKERS] > 0


@pytest.mark.full
def test_a_disk_that_fails_autovacuum_opens_circuit_breakers(prefix, pg_major, seed):
    with FaultTest(prefix, pg_major, seed, with_autovacuum=True) as test:
        test.run(4, show=print)
        assert test.done[BREAKERS] > 0 and test.done[LEFT_TO_SERVER] > 0


@pytest.mark.full
def test_standby_and_subscriber_beside_autovacuum(prefix, seed):
    with Soak(prefix, seed, writers=4, with_autovacuum=True) as test:
        test.run(0.3, show=print)
        assert test.done["comparisons"] > 0 and test.done["promotions"] == 1
        assert test.done[autovacuum.FORCED] > 0 and test.done[autovacuum.WITH_WORKERS] > 0


@pytest.mark.full
def test_too_little_autovacuum_is_noticed(prefix, seed, monkeypatch):
    """As it is if the engine has no workers."""
    monkeypatch.setitem(autovacuum.CHOICES, "cyclone.autovacuum_max_parallel_workers", (0,))
    monkeypatch.setattr("long_runs.soak.EXTRA", 0)
    with Soak(prefix, seed, writers=2, with_autovacuum=True) as test:
        with pytest.raises(AssertionError, match=autovacuum.WITH_WORKERS):
            test.run(0.05)


@pytest.mark.full
def test_a_breaker_that_opens_is_noticed(prefix, seed, monkeypatch):
    """Though the server does the work after that."""
    monkeypatch.setitem(autovacuum.CONFIG, "cyclone.debug_point", "heap-vacuum:any:error")
    with Soak(prefix, seed, writers=2, with_autovacuum=True) as test:
        with pytest.raises(AssertionError, match="autovacuum failed"):
            test.run(0.2)


@pytest.mark.parametrize(
    "command, module, name, variables, run",
    [
        ("crash-test", crash_test, "CrashTest", {"ROUNDS": 3, "FIRST": 24, "AUTOVACUUM": 1}, (3, 24)),
        ("crash-test", crash_test, "CrashTest", {}, (500, 0)),
        ("power-test", power_test, "PowerTest", {"ROUNDS": 3, "FIRST": 20, "AUTOVACUUM": 1, "FILESYSTEM": "xfs"}, (3, 20)),
        ("power-test", power_test, "PowerTest", {"FILESYSTEM": "ext4"}, (300, 0)),
        ("fault-test", fault_test, "FaultTest", {"FAULTS": 3, "FIRST": 40}, (3, 40)),
        ("fault-test", fault_test, "FaultTest", {}, (200, 0)),
        ("damage-test", damage_test, "DamageTest", {"DAMAGES": 3, "FIRST": 40}, (3, 40)),
        ("damage-test", damage_test, "DamageTest", {}, (500, 0)),
        ("soak", soak, "Soak", {"MINUTES": 0.5, "WRITERS": 3, "AUTOVACUUM": 1}, (0.5,)),
        ("soak", soak, "Soak", {}, (60,)),
        ("twins", twins, "TwinTest", {"MINUTES": 2, "WRITERS": 3}, (2,)),
        ("twins", twins, "TwinTest", {}, (10,)),
    ],
)
def test_the_command_of_each_long_run_starts(monkeypatch, tmp_path, command, module, name, variables, run):
    """With the options that make gives it, each of which comes to where it is meant to. Only the run itself is none."""
    given = {"SEED": 7, "VERSION": 17, "BASE": tmp_path, **variables}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "-n", command, *(f"{name}={value}" for name, value in given.items())]
    lines = subprocess.run(make, cwd=build.REPO, env=environment, text=True, capture_output=True, check=True).stdout.splitlines()
    [words] = [shlex.split(line) for line in lines if f"-m {module.__name__}" in line]
    kind = MagicMock()
    kind.return_value.__enter__.return_value = test = MagicMock(done=Counter(rounds=1))
    monkeypatch.setattr("sys.argv", words[words.index("-m") + 1 :])
    monkeypatch.setattr(build, "install", MagicMock(return_value="prefix"))
    monkeypatch.setattr(pgvector, "why_not", lambda major: "not asked for")
    monkeypatch.setattr(module, name, kind)
    monkeypatch.setattr(power_test, "why_no_cuts", lambda: "")

    assert module.main() == 0
    assert build.install.call_args.args == (17,)
    assert kind.call_args.args[0] == "prefix" and 7 in kind.call_args.args
    assert "WRITERS" not in given or given["WRITERS"] in kind.call_args.args
    more = {"filesystem": given["FILESYSTEM"]} if "FILESYSTEM" in given else {}
    assert kind.call_args.kwargs == {"base": tmp_path, "with_autovacuum": "AUTOVACUUM" in given, **more}
    assert test.run.call_args.args == run
