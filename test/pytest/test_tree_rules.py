"""The rules of the source tree, each a script of its own."""

import subprocess

import pytest

from cyclone_lab.postgres import REPO


@pytest.mark.parametrize("script", ["check-docs", "check-includes", "check-version-macros"])
def test_rule(script):
    result = subprocess.run([REPO / "scripts" / script], text=True, capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr
