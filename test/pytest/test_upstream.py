"""Some of the bugs of PostgreSQL in test/upstream, shown by the scripts there on a server without pg_cyclone.

If one of these tests fails, upstream has fixed the bug: say so in test/upstream, docs/reliability.md and test/proofs.md.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from cyclone_lab import build
from cyclone_lab.postgres import as_server_user, hand_over, program_env
from long_runs.proof import SERVER_ASSERTION

SCRIPTS = Path(build.REPO) / "test" / "upstream"
SECONDS = 600
# Script: what it says where the bug is
FAULTS = {
    "stale-row-lock": "found xmax",
    "brin-hot": "     0\n",
    "where-current-of": "(0 rows)",
    "unlogged-power-cut": ": File exists",
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_bug_is_still_there(prefix, name):
    said = said_by(prefix, name)
    assert FAULTS[name] in said, said


def test_an_assertion_fails_in_heap_update(prefix):
    """On a server with assertions; and the long runs know it when they see it."""
    said = said_by(prefix, "aborted-update-lock")
    if re.search(r"^ +on$", said, re.MULTILINE):
        assert SERVER_ASSERTION.search(said), said
    else:
        assert "UPDATE is through" in said, said


def said_by(prefix, name: str) -> str:
    """Run a script with the programs of `prefix`, and return what it prints."""
    folder = Path(tempfile.mkdtemp(prefix="cyclone-", dir="/tmp"))  # whose sockets' paths are short
    try:
        hand_over(folder)
        for script in SCRIPTS.glob("*.sh"):
            shutil.copy(script, folder)
        env = program_env(prefix, PATH=f"{prefix}/bin:{os.environ['PATH']}", TMPDIR=str(folder), HOME=str(folder))
        script = subprocess.run(["sh", folder / f"{name}.sh"], env=env, text=True, capture_output=True, timeout=SECONDS, **as_server_user())
        assert script.returncode == 0, script.stdout + script.stderr
        return script.stdout
    finally:
        shutil.rmtree(folder, ignore_errors=True)
