"""The SQL tests (test/sql) and isolation specs (test/specs), each in a fresh database, as items of this test run.

Their output stays in build/results/<major>/<driver>/results: the place to copy new expected output from.
"""

import pytest

from cyclone_lab.postgres import REPO, linked_libpq, run_program

TEST = REPO / "test"


def run_driver(driver: str, name: str, cluster, db: str, pg_major: int) -> None:
    """Run one test with pg_regress or pg_isolation_regress; raise AssertionError with the differences if it fails."""
    output = REPO / "build" / "results" / str(pg_major) / driver
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


@pytest.mark.parametrize("name", sorted(path.stem for path in TEST.glob("sql/*.sql")))
def test_sql(cluster, db, pg_major, name):
    run_driver("pg_regress", name, cluster, db, pg_major)


@pytest.mark.parametrize("name", sorted(path.stem for path in TEST.glob("specs/*.spec")))
def test_isolation(cluster, db, pg_major, name):
    run_driver("pg_isolation_regress", name, cluster, db, pg_major)


def test_isolationtester_uses_the_libpq_of_its_server(prefix):
    assert linked_libpq(prefix, "isolationtester").is_relative_to(prefix)
