"""Servers for the tests, in each process that runs some.

Every test that asks for a server runs once for each major version in PG_VERSIONS, if it is asked for on that: see _is_left_out.
"""

import gc
import os
import re
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count, product
from pathlib import Path

import psycopg
import pytest

from cyclone_lab import build, checks, pgvector, versions
from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster, spoil_freed_memory, what_was_forgotten
from cyclone_lab.postgres import available, find_or_fetch, hand_over, run_program

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "autovacuum": "off",
    "fsync": "off",
    "cyclone.audit": 1,  # each page is judged twice
    "cyclone.min_free_disk": 0,  # however full the disk is on which tests run
    "cyclone.debug_ring_turn": 4,  # as if each table were larger than shared buffers
    "cyclone.debug_horizon_wait": 300,  # ms, as many tests are about those who are waited for
    "max_connections": 50,
    "max_worker_processes": 16,
    "max_parallel_workers": 16,
    "max_parallel_maintenance_workers": 4,
    "max_prepared_transactions": 10,
    "bgwriter_lru_maxpages": 0,  # who writes a page has it pinned, and VACUUM passes over what it would find there
    "statement_timeout": "5min",
    "wal_level": "replica",
    "min_dynamic_shared_memory": "64MB",  # gives out memory that was used before, and is not cleared
}
TEMPLATE = "cyclone_template"
SLOWEST = ("test_long_runs.py", "test_twins.py")  # by the single test: at the end all others would wait for it
NO_VERSION = 99  # of tests that ask for no server
# Beside other libraries, where there is a server that has them: its pg_config is in this variable.
NEIGHBOURS = {"test_citus.py": "CYCLONE_CITUS_PG_CONFIG", "test_timescaledb.py": "CYCLONE_TIMESCALE_PG_CONFIG"}
WITH_PGVECTOR = ("test_hnsw.py",)  # whose source is in a variable, and is built for the server
collect_ignore = [file for file, variable in NEIGHBOURS.items() if not os.environ.get(variable)]
# Found once, and handed to the other processes: a package that vanishes from a mirror must not stop the tests on other versions.
PG_VERSIONS, MISSING = available([int(major) for major in os.environ.get("PG_VERSIONS", "17 18 19").split()])
os.environ["PG_VERSIONS"] = " ".join(map(str, PG_VERSIONS))
NO_VECTORS = {major: why for major in PG_VERSIONS if (why := pgvector.why_not(major))}
FREED_MEMORY = spoil_freed_memory()
# Databases are made and dropped by the hundred, which takes a disk's file system more time than the tests need.
if "TMPDIR" not in os.environ and os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free >= 8 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = "/dev/shm"

_database_number = count(1)
_ubsan_reports = tempfile.TemporaryDirectory(prefix="cyclone-ubsan-") if build.UBSAN else None


def pytest_addoption(parser):
    """Add the option that runs what only the whole matrix needs."""
    parser.addoption("--whole", action="store_true", help="run the tests marked full, too, and every file on every version")
    parser.addoption("--every-version", action="store_true", help="run every file on every version, as it goes for files that are named")


def pytest_configure(config):
    """Run files that are named on every version. Let the sanitizer, if it is compiled in, write each finding of any server to a
    file, and crash that server."""
    if config.args_source != config.ArgsSource.TESTPATHS:
        config.option.every_version = True
    if _ubsan_reports:
        hand_over(Path(_ubsan_reports.name))
        os.environ["UBSAN_OPTIONS"] = f"abort_on_error=1:print_stacktrace=1:log_path={_ubsan_reports.name}/report"


def pytest_report_header() -> list[str]:
    """Say which versions are not tested, and why."""
    if not PG_VERSIONS:
        raise pytest.UsageError("no version of PostgreSQL to test on: " + "; ".join(MISSING.values()))
    vectors = [f"HNSW INDEXES NOT TESTED ON POSTGRESQL {major}: {why}" for major, why in NO_VECTORS.items()]
    return [*(f"NOT TESTED ON POSTGRESQL {major}: {why}" for major, why in MISSING.items()), *vectors]


def pytest_terminal_summary(terminalreporter):
    """Say so again at the end, where it is seen."""
    for line in pytest_report_header():
        terminalreporter.write_line(line, red=True, bold=True)


def pytest_xdist_auto_num_workers():
    """Have a process more than there are cores, as many tests wait for this or that."""
    return os.cpu_count() + 1


def pytest_collection_modifyitems(config, items):
    """Leave out what neither the options nor `make check` ask for, and begin with what takes longest."""
    left_out = {item for item in items if _is_left_out(item, config.option)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = sorted((item for item in items if item not in left_out), key=lambda item: item.path.name not in SLOWEST)


def pytest_collection_finish():
    """Keep the garbage collector from looking through all tests, and the modules, again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown():
    """Fail a test in which the sanitizer found something, also one that takes a crash for granted or made its own servers; or
    one in which a server complained that something had been forgotten."""
    try:
        return (yield)
    finally:
        complaints = what_was_forgotten()
        assert not complaints, "\n".join(complaints)
        if _ubsan_reports:
            files = list(Path(_ubsan_reports.name).iterdir())
            texts = [file.read_text(errors="replace") for file in files]
            for file in files:
                file.unlink()
            assert not texts, "undefined behaviour:\n" + "\n".join(texts)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Turn every skip into a failure: a test that did not run proves nothing. Say what a failed one's servers found in freed memory."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but every test has to run: {report.longrepr}"
    if report.failed:
        report.sections.append(("freed memory of the servers", FREED_MEMORY))
    return report


@pytest.fixture(scope="session", params=PG_VERSIONS, ids=[f"pg{major}" for major in PG_VERSIONS])
def pg_major(request) -> int:
    """The major version of PostgreSQL."""
    return request.param


@pytest.fixture(scope="session")
def prefix(pg_major):
    """The PostgreSQL tree, with the extension built with debug points, without warnings, and installed."""
    return build.install(pg_major, debug_points=True, werror=True)


@pytest.fixture(scope="session")
def server_headers() -> Path:
    """The headers of one server, for what is compiled for itself and tested without a server: so once, not for each version."""
    return Path(run_program(find_or_fetch(PG_VERSIONS[-1]), "pg_config", "--includedir-server").stdout.strip())


@pytest.fixture(scope="session")
def cluster(prefix):
    """A running server that all tests of a major version share; a test that stops it makes its own from `new_cluster`."""
    with create_with_template(prefix) as shared:
        shared.start().connect(TEMPLATE).close()  # which leaves a file of its catalogs' cache there, that is copied with it
        yield shared


@pytest.fixture
def new_cluster(prefix):
    """A function that returns a running server of the test's own, with settings on top of the usual ones."""
    made = []

    def make(**config) -> Cluster:
        made.append(create_with_template(prefix, {**CONFIG, **config}))
        return made[-1].start()

    yield make
    for own in made:
        own.remove()


@pytest.fixture(scope="module")
def neighbours_prefix(request):
    """The tree with the extension in which the library is installed that a file of NEIGHBOURS is about."""
    pg_config = Path(os.environ[NEIGHBOURS[request.path.name]]).resolve()
    origin = pg_config.parent.parent
    version = run_program(origin, "pg_config", "--version").stdout
    return build.install(int(re.search(r"\d+", version)[0]), origin=origin, debug_points=True, werror=True)


@pytest.fixture
def template() -> str:
    """The name of the database that `db` is a copy of; a file whose tests need the same tables has another one."""
    return TEMPLATE


@pytest.fixture
def db(cluster, template):
    """The name of a fresh database with pg_cyclone and the extensions of the checks, dropped after the test, with roles that it has made."""
    name = f"test_{next(_database_number)}"
    cluster.sql(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")  # 50 ms instead of 80
    yield name
    # at once, with the sessions that a test has left in it; twenty at a time take no less: 20 ms each
    wait_until(lambda: _dropped(cluster, name), f"the end of the sessions in {name}")


@pytest.fixture
def conn(cluster, db):
    """A connection in autocommit mode to the test's own database."""
    with cluster.connect(db) as connection:
        yield connection


@pytest.fixture
def latin(cluster):
    """The name of a database in LATIN1, with pg_cyclone; texts from it may be none in UTF8, as other databases are."""
    cluster.sql("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
    cluster.sql("CREATE EXTENSION pg_cyclone", dbname="latin")
    yield "latin"
    wait_until(lambda: _dropped(cluster, "latin"), "the end of the sessions in a database in LATIN1")


def _dropped(cluster: Cluster, name: str) -> bool:
    """Drop a database and all roles, and say so; the server waits no more than five seconds for the sessions that it ends for that."""
    try:
        with cluster.connect() as conn:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")
            for (role,) in conn.execute("SELECT quote_ident(rolname) FROM pg_roles WHERE oid >= 16384").fetchall():  # FirstNormalObjectId
                conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    except psycopg.errors.ObjectInUse:
        return False
    return True


def _major_of(item) -> int:
    """Return the version that a test runs on, or more than any if it asks for no server."""
    return item.callspec.params.get("pg_major", NO_VERSION) if hasattr(item, "callspec") else NO_VERSION


def _is_left_out(item, option) -> bool:
    """Tell whether a test isn't for the version that it would run on, or stands for nothing more than others do.

    One version sees every test; on others run the files that come by what differs there (cyclone_lab.versions) or that are about
    the server itself: EVERY_VERSION says why; of these not the tests marked once. A file about what only newer versions have says by
    FIRST_MAJOR which is the first.
    """
    major, first_major = _major_of(item), getattr(item.module, "FIRST_MAJOR", 0)
    if major < first_major or item.path.name in WITH_PGVECTOR and major in NO_VECTORS:
        return True
    if option.whole:
        return False
    if item.get_closest_marker("full"):
        return True
    main = max(first_major, versions.MAIN if versions.MAIN in PG_VERSIONS else PG_VERSIONS[-1])
    is_for_all = getattr(item.module, "EVERY_VERSION", "") or item.path.name in versions.tests(major)
    is_asked_for = option.every_version or is_for_all and not item.get_closest_marker("once")
    return major not in (main, NO_VERSION) and not is_asked_for


@contextmanager
def made_once(cluster: Cluster, name: str, make):
    """A copy of the template database in which make(connection) has made what several tests need, for `template`: to copy it takes much
    less time. Yields what `make` returned."""
    cluster.sql(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy")
    with cluster.connect(name) as connection:
        result = make(connection)
    yield result
    wait_until(lambda: _dropped(cluster, name), f"the end of the sessions in {name}")


def every_other(names: str, *values):
    """Parametrize with all combinations; with --whole only those in which positions add up to an odd number.

    Of three values or more each pair is in the others; of two, each value. Values may be given by pytest.param, with marks.
    """
    cases = []
    for case in product(*(list(enumerate(some)) for some in values)):
        marks = [pytest.mark.full] * (sum(number for number, _ in case) % 2)
        given = [value if isinstance(value, type(pytest.param())) else pytest.param(value) for _, value in case]
        cases.append(pytest.param(*(one for value in given for one in value.values), marks=marks + [mark for value in given for mark in value.marks]))
    return pytest.mark.parametrize(names, cases)


def table_made_once(cluster_of, make):
    """Return the fixtures made, template and table of a file whose tests need the table t that make(connection) makes: it is made once, in
    database made of cluster_of(request), and the database of a test that asks for `table` is a copy of it. `table` is what `make` returned."""

    @pytest.fixture(scope="module")
    def made(request):
        with made_once(cluster_of(request), "made", make) as result:
            yield result

    @pytest.fixture
    def template(request):
        return "made" if "table" in request.fixturenames and request.getfixturevalue("made") else TEMPLATE

    @pytest.fixture
    def table(made):
        return made

    return made, template, table


def tables_made_once(makes: dict, chosen):
    """Return the fixtures made and template of a file in which chosen(request) names the one of `makes` that has made what is in a test's
    database, or none. It is called with a connection once, when it is needed first, and the test's database is a copy of what it made."""

    @pytest.fixture(scope="module")
    def made(cluster):
        with ExitStack() as stack:

            @cache
            def database(name: str) -> str:
                copied = f"made_{list(makes).index(name)}"
                stack.enter_context(made_once(cluster, copied, makes[name]))
                return copied

            yield database

    @pytest.fixture
    def template(request):
        name = chosen(request)
        return request.getfixturevalue("made")(name) if name else TEMPLATE

    return made, template


def create_with_template(prefix: Path, config: dict = CONFIG, *, initdb: tuple[str, ...] = ()) -> Cluster:
    """Return a new, stopped cluster with these settings that has the template database, made with these options of initdb."""
    cluster = _with_template(prefix, initdb).copy()
    cluster.config = dict(config)
    return cluster


@cache
def _with_template(prefix: Path, initdb: tuple[str, ...]) -> Cluster:
    """Return a stopped cluster with the template database, to be copied: it is made once in a process."""
    cluster = Cluster.create(prefix, CONFIG, initdb=initdb).start()
    cluster.sql(f"CREATE DATABASE {TEMPLATE}")
    with cluster.connect(TEMPLATE) as connection:
        connection.execute("CREATE EXTENSION pg_cyclone")
        checks.create_extensions(connection)
    cluster.stop()
    return cluster
