"""Short versions of the long runs: a dozen crashes, some faults, and half a minute with a standby and a subscriber.

`make crash-test`, `make fault-test` and `make soak` go on for as long as one likes. A failed test shows its seed; CYCLONE_SEED
repeats its choices.
"""

import os
import random

import pytest

from cyclone_lab.crash_test import CrashTest
from cyclone_lab.fault_test import FaultTest
from cyclone_lab.soak import Soak


@pytest.fixture
def seed():
    number = int(os.environ.get("CYCLONE_SEED", random.randrange(1_000_000)))
    print(f"CYCLONE_SEED={number}")
    return number


def test_nothing_is_lost_or_wrong_after_crashes_under_load(prefix, pg_major, seed):
    with CrashTest(prefix, pg_major, seed) as test:
        test.run(12, show=print)
        assert test.done["rounds"] == 12 and test.done["commit"] > 0 and test.done["VACUUM"] > 0


def test_a_disk_that_fails_harms_only_the_command(prefix, pg_major, seed):
    with FaultTest(prefix, pg_major, seed) as test:
        test.run(8, show=print)
        assert test.done["ended by a clear error"] > 0


def test_standby_and_subscriber_have_what_was_committed(prefix, seed):
    with Soak(prefix, seed, writers=6) as soak:
        soak.run(0.4, show=print)
        assert soak.done["comparisons"] > 0 and soak.done["vacuums"] > 3 and soak.done["promotions"] == 1
