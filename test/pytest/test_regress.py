"""The SQL tests (test/sql) and isolation specs (test/specs), each in a fresh database, as items of this test run.

Their output stays in build/results/<major>/<driver>/<name>/results: the place to copy new expected output from.
"""

import re
import subprocess

import pytest

from conftest import TEMPLATE
from cyclone_lab.postgres import REPO, linked_libpq, program_env, program_path, run_program

EVERY_VERSION = "what SQL shows"

TEST = REPO / "test"
SQL = sorted(path.stem for path in TEST.glob("sql/*.sql"))
SPECS = sorted(path.stem for path in TEST.glob("specs/*.spec"))


def run_driver(driver: str, name: str, cluster, db: str, pg_major: int, folder: str = "") -> None:
    """Run one test with pg_regress or pg_isolation_regress; raise AssertionError with the differences if it fails."""
    output = REPO / "build" / "results" / str(pg_major) / (folder or driver) / name
    output.mkdir(parents=True, exist_ok=True)
    differences = output / "regression.diffs"
    differences.unlink(missing_ok=True)
    options = ["--use-existing", f"--dbname={db}", f"--bindir={cluster.prefix / 'bin'}"]
    options += [f"--inputdir={TEST}", f"--expecteddir={TEST}", f"--outputdir={output}"]
    options += [f"--host={cluster.socket_dir}", "--user=postgres"]
    try:
        run_program(cluster.prefix, driver, *options, name)
    except RuntimeError as error:
        detail = differences.read_text(errors="replace") if differences.exists() else ""
        raise AssertionError(f"{error}\n{detail}") from None


@pytest.mark.parametrize("name", SQL)
def test_sql(cluster, db, pg_major, name):
    run_driver("pg_regress", name, cluster, db, pg_major)


@pytest.mark.parametrize("name", SPECS)
def test_isolation(cluster, db, pg_major, name):
    run_driver("pg_isolation_regress", name, cluster, db, pg_major)


def test_all_of_them_are_replayed_by_a_standby_as_they_ran(new_cluster, pg_major):
    """Every change is logged with the whole page that came of it, and replay stops at the first that comes out otherwise."""
    primary = new_cluster(wal_consistency_checking="all", wal_keep_size="4GB")
    with primary.standby().start() as standby:
        for driver, names in (("pg_regress", SQL), ("pg_isolation_regress", SPECS)):
            assert names
            for name in names:
                primary.sql(f"CREATE DATABASE replayed TEMPLATE {TEMPLATE}")
                run_driver(driver, name, primary, "replayed", pg_major, f"{driver}-replayed")
                standby.wait_for_replay(primary)
                primary.sql("DROP DATABASE replayed")
        standby.wait_for_replay(primary)
        assert not re.search("inconsistent page|PANIC|TRAP", standby.log)


@pytest.mark.once
def test_installcheck_where_the_files_leave_it_off(new_cluster, tmp_path):
    """As docs/rollout.md has it at first."""
    server = new_cluster(**{"cyclone.enabled": "off", "cyclone.autovacuum": "off"})
    command = ["make", "--silent", "-C", tmp_path, "-f", REPO / "Makefile", "installcheck", f"PG_CONFIG={program_path(server.prefix, 'pg_config')}"]
    env = {name: value for name, value in program_env(server.prefix).items() if not name.startswith(("MAKE", "MFLAGS"))}
    made = subprocess.run(command, env={**env, **server.client_env()}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert made.returncode == 0, made.stdout + "".join(file.read_text() for file in tmp_path.rglob("regression.diffs"))


def test_isolationtester_uses_the_libpq_of_its_server(prefix):
    libpq = linked_libpq(prefix, "isolationtester")
    assert libpq.is_relative_to(prefix) or "-libraries" in libpq.parent.name  # those beside a PostgreSQL of Debian's
