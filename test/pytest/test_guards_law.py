"""The law that bounds the lag of standbys, in simulations: a standby replays what was written, and tells of it late."""

import ctypes
import random
import subprocess
from collections import deque

import pytest

from cyclone_lab import build

STEP_SECONDS, FINE = 0.25, 0.05
MB = 1 << 20
SPEED = 40 * MB  # of what VACUUM writes without a bound


class Law(ctypes.Structure):
    """LagLaw of src/guards/lag_law.h."""

    _fields_ = [("speed", ctypes.c_double), ("others", ctypes.c_double), ("unreported", ctypes.c_double)]


class Seen(ctypes.Structure):
    """LagSeen of src/guards/lag_law.h."""

    _fields_ = [(name, ctypes.c_double) for name in ("seconds", "bound", "lag", "backlog", "replayed", "written", "ours")]


@pytest.fixture(scope="module")
def step(server_headers, tmp_path_factory):
    """lag_law_step, compiled for itself."""
    library = tmp_path_factory.mktemp("law") / "lag_law.so"
    source = build.REPO / "src/guards/lag_law.c"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", f"-I{build.REPO}/src", f"-I{server_headers}", source, "-o", library, "-lm"], check=True
    )
    function = ctypes.CDLL(str(library)).lag_law_step
    function.argtypes = [ctypes.POINTER(Law), ctypes.POINTER(Seen)]
    function.restype = ctypes.c_double
    return function


def simulate(step, standby, *, bound=10.0, seconds=300, others=0.0, delay=0.2, every=0.0, noise=0.2, seed=1) -> tuple[float, float]:
    """Return the greatest lag, and what VACUUM wrote a second.

    The standby replays `standby(time)` bytes a second, and tells each `every` seconds what it has done, which is known `delay` seconds later.
    """
    chance, law = random.Random(seed), Law()
    written = replayed = ours = 0.0
    history = deque([(0.0, 0.0)])  # when the WAL was at which position, from what is not replayed on
    seen = deque([(0.0, 0.0)])  # the same, from what is not known to be replayed on
    reports = deque([(0.0, 0.0)])
    next_report = 0.0
    rate = step(law, Seen(seconds=STEP_SECONDS, bound=bound))
    last = dict(time=0.0, written=0.0, ours=0.0, replayed=0.0)
    greatest, time = 0.0, 0.0

    while time < seconds:
        time += FINE
        mine = min(rate, SPEED) * FINE
        ours += mine
        written += mine + others * FINE
        history.append((time, written))
        seen.append((time, written))
        replayed = min(replayed + standby(time) * FINE * (1 + chance.uniform(-noise, noise)), written)
        if time >= next_report:
            reports.append((time, replayed))
            next_report = time + every
        # the true lag: since when what comes next has been there
        while len(history) > 1 and history[1][1] <= replayed:
            history.popleft()
        greatest = max(greatest, time - history[0][0] if replayed < written else 0)
        if time - last["time"] < STEP_SECONDS - FINE / 2:
            continue
        while len(reports) > 1 and reports[1][0] <= time - delay:
            reports.popleft()
        known = reports[0][1]
        while len(seen) > 1 and seen[1][1] <= known:
            seen.popleft()
        seen_lag = time - seen[0][0] if known < written else 0
        rate = step(
            law,
            Seen(
                seconds=time - last["time"],
                bound=bound,
                lag=seen_lag,
                backlog=written - known,
                replayed=known - last["replayed"],
                written=written - last["written"],
                ours=ours - last["ours"],
            ),
        )
        last = dict(time=time, written=written, ours=ours, replayed=known)
    return greatest, ours / seconds


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("delay", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("bound", [5.0, 10.0, 60.0])
@pytest.mark.parametrize("factor", [0.5, 1, 2])
@pytest.mark.parametrize("others", [0, 0.2])
def test_lag_stays_within_its_bound_and_hardly_anything_is_lost(step, factor, bound, delay, seed, others):
    """Of standbys of half, equal and double the speed of VACUUM: within 1.2 of the bound, and 80 % of the best constant rate."""
    speed = SPEED * factor
    lag, rate = simulate(step, lambda time: speed, bound=bound, delay=delay, seed=seed, others=others * speed)
    assert lag <= 1.2 * bound
    assert rate >= 0.8 * min(SPEED, speed * (1 - others))


@pytest.mark.parametrize("seed", range(3))
def test_a_standby_that_becomes_slower_and_faster_again(step, seed):
    """A fifth of its speed for a minute, and then all of it."""
    lag, rate = simulate(step, lambda time: SPEED / 5 if 100 < time < 160 else SPEED * 2, bound=10, seed=seed)
    assert lag <= 1.2 * 10
    assert rate >= 0.8 * (SPEED * 240 + SPEED / 5 * 60) / 300


@pytest.mark.parametrize("every", [1, 2.5, 5, 8])
@pytest.mark.parametrize("factor", [0.5, 1, 2])
def test_a_follower_that_confirms_seldom(step, factor, every):
    """Up to nearly the bound between two of its reports: within the bound, and nearly as much as of one that reports at once."""
    lag, rate = simulate(step, lambda time: SPEED * factor, bound=10, every=every)
    assert lag <= 1.2 * 10
    assert rate >= 0.8 * min(SPEED, SPEED * factor)


def test_a_follower_that_stands_still_after_a_report(step):
    """Its speed before is no reason to write on."""
    law = Law(speed=SPEED, unreported=5)
    assert step(law, Seen(seconds=STEP_SECONDS, bound=10, lag=8, backlog=10 * SPEED)) == 32 * 1024
    assert law.speed == SPEED and law.unreported == 5 + STEP_SECONDS


def test_a_standby_that_stands_still_stops_vacuum(step):
    """But for what had been written before, nothing; and it goes on when the standby does."""
    law = Law()
    step(law, Seen(seconds=STEP_SECONDS, bound=10))
    assert step(law, Seen(seconds=STEP_SECONDS, bound=10, lag=10, backlog=100 * MB)) == 0
    assert step(law, Seen(seconds=STEP_SECONDS, bound=10, lag=9.9, backlog=100 * MB)) > 0
