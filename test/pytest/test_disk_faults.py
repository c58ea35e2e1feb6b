"""A dozen faults of the fault test; `make fault-test` has as many as one likes."""

import os
import random

from cyclone_lab.fault_test import FaultTest

FAULTS = int(os.environ.get("CYCLONE_FAULTS_WANTED", 12))
SEED = int(os.environ.get("CYCLONE_FAULT_SEED", random.randrange(1_000_000)))


def test_a_disk_that_fails_harms_only_the_command(prefix, pg_major):
    with FaultTest(prefix, pg_major, SEED) as test:
        test.run(FAULTS, show=print)
        assert test.done["ended by a clear error"] > 0
