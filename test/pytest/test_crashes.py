"""A dozen rounds of the crash test; `make crash-test` runs as many as one likes."""

import os
import random

from cyclone_lab.crash_test import CrashTest

ROUNDS = int(os.environ.get("CYCLONE_CRASH_ROUNDS", 12))
SEED = int(os.environ.get("CYCLONE_CRASH_SEED", random.randrange(1_000_000)))


def test_nothing_is_lost_or_wrong_after_crashes_under_load(prefix, pg_major):
    with CrashTest(prefix, pg_major, SEED) as test:
        test.run(ROUNDS, show=print)
        assert test.done["rounds"] == ROUNDS and test.workload.done["commit"] > 0
