"""Code that needs no server, in programs of test/unit: compiled with assertions and, where there are any, gcc's sanitizers."""

import os
import subprocess
from pathlib import Path

import pytest

from cyclone_lab import build

UNIT = build.REPO / "test" / "unit"
PROGRAMS = sorted(path.stem.removeprefix("test_") for path in UNIT.glob("test_*.c"))
# Functions that are not called need no server: each function has a section of its own, and sections that nobody needs are left out.
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Werror", "-fno-strict-aliasing", "-fno-omit-frame-pointer", "-ffunction-sections",
         "-fdata-sections", "-Wl,--gc-sections", "-D_GNU_SOURCE", *build.ASSERTION_FLAGS.split()]  # fmt: skip
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="session")
def compiler(server_headers, tmp_path_factory) -> list:
    """A compiler with all its flags, and the headers of a server."""
    folder = tmp_path_factory.mktemp("unit")
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    command = ["cc", *SANITIZERS, folder / "empty.c", "-o", folder / "empty"]
    has_sanitizers = subprocess.run(command, capture_output=True).returncode == 0
    features = subprocess.run([build.REPO / "scripts" / "probe-server", "cc", f"-I{server_headers}"], check=True, capture_output=True)
    (folder / "server_features.h").write_bytes(features.stdout)
    includes = [f"-I{folder}" for folder in (build.REPO / "src", UNIT, folder, server_headers)]
    return ["cc", *FLAGS, *(SANITIZERS if has_sanitizers else []), *includes]


@pytest.mark.parametrize("program", PROGRAMS)
def test_unit(compiler, tmp_path: Path, program):
    subprocess.run([*compiler, UNIT / "unit.c", UNIT / f"test_{program}.c", "-o", tmp_path / program, "-lm"], check=True)
    env = os.environ | {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}  # as memory contexts do
    subprocess.run([tmp_path / program], cwd=tmp_path, env=env, check=True, timeout=300)
