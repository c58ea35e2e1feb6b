"""The extension outside the server's tree, as CloudNativePG mounts it: found by two settings, of which PostgreSQL 17 has but one."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import CONFIG
from cyclone_lab import build
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO, program_env, program_path

FIRST_MAJOR = 18  # extension_control_path


@pytest.fixture
def image(prefix):
    """A folder as the image has it at its root, filled by `make image-volume` from what `prefix` was installed from."""
    folder = Path(tempfile.mkdtemp(prefix="cyclone-image-"))
    command = ["make", "--silent", "-C", REPO, "image-volume", f"IMAGE_VOLUME={folder}", f"BUILD_DIR={build.build_folder(prefix)}"]
    command += [f"PG_CONFIG={program_path(prefix, 'pg_config')}", "DEBUG_POINTS=1", "WERROR=1", "with_llvm=no"]
    command += [f"COPT={build.CHECKS_FLAGS}"] if build.CHECKS_FLAGS else []
    try:
        subprocess.run(command, env=program_env(prefix), check=True)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


def test_all_works_from_an_image_volume(image, prefix):
    files = {str(path.relative_to(image)) for path in image.rglob("*") if path.is_file()}
    scripts = {f"share/extension/{path.name}" for path in (REPO / "sql").iterdir()}
    assert files == {"lib/pg_cyclone.so", "share/extension/pg_cyclone.control", *scripts}

    # The tree of the tests' server has the extension, too; but the image comes first.
    paths = {"extension_control_path": f"{image}/share:$system", "dynamic_library_path": f"{image}/lib:$libdir"}
    with Cluster.create(prefix, {**CONFIG, **paths}) as cluster:
        cluster.start()
        with cluster.connect() as conn:
            conn.execute("CREATE EXTENSION pg_cyclone")
            conn.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 50000)")
            for number, options in enumerate(["PARALLEL 1", "FULL, PARALLEL 1", "FULL INPLACE, PARALLEL 1"]):
                conn.execute("DELETE FROM t WHERE id %% 5 = %s", (number,))
                conn.execute(f"VACUUM ({options}) t")
            runs = conn.execute("SELECT operation, outcome, run_by, workers_launched FROM cyclone.history_details ORDER BY id").fetchall()
            kinds = ("VACUUM", "FULL REWRITE", "FULL INPLACE")
            assert [run[:3] for run in runs] == [(kind, "done", "engine") for kind in kinds]
            assert runs[0][3] == 1  # a worker loads the library by its name, too
            for view in ("progress", "pace", "autovacuum", "bloat", "horizon", "advice"):
                conn.execute(f"TABLE cyclone.{view}")
            loaded = {os.path.realpath(line.split()[-1]) for line in open(f"/proc/{conn.info.backend_pid}/maps") if "pg_cyclone.so" in line}
            assert loaded == {os.path.realpath(image / "lib" / "pg_cyclone.so")}
        assert "WARNING" not in cluster.log
