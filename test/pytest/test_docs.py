"""README and docs/ are true: each SQL block runs, and says what is shown below it; each `make` command is one; the table of settings
is the server's. A block that can't be run here has "<!-- not run: the reason -->" in the line above it; one for a newer server has
"<!-- from 19 -->", one for a server with another library "<!-- with LIBRARY -->", one that has a test of its own "<!-- run: the test -->",
which may be `make check-debs`, as that takes a system of its own. Blocks marked ini are configuration files; those marked output are what
the SQL before them prints.
"""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

import conftest
from cyclone_lab import build, checks
from cyclone_lab.background import wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO, as_server_user, program_env, program_path, run_program

PAGES = [REPO / "README.md", REPO / "SECURITY.md", *sorted((REPO / "docs").glob("*.md")), REPO / "bench/research-log.md"]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SETTING = re.compile(r"\| `(cyclone\.\w+)` \| (\w+) \| (?:`(.*?)`|empty.*?) \| (.*?) \| (\w+) \|")
CONTEXTS = {"user": "user", "superuser": "superuser", "reload": "sighup", "restart": "postmaster"}
UNITS = {"": 1, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400, "kB": 1, "MB": 1024, "GB": 1024 * 1024}
# What the blocks are about: a database shop with some bloated tables.
TABLES = """
CREATE TABLE {name} (id bigint PRIMARY KEY, kind int, note text) WITH (autovacuum_enabled = off);
INSERT INTO {name} SELECT i, i % 100, md5(i::text) FROM generate_series(1, 3000) i;
DELETE FROM {name} WHERE id % 3 <> 0;
"""


# What nothing runs, by the reason; of other blocks marked sh that install packages, test_installing and `make check-debs` say what they do.
NOT_RUN = {
    "it needs docker": "docs/packages.md",  # the steps of the Dockerfiles run in `make check-debs`
}


@dataclass
class Block:
    """A block of a page; `shown` is what the page shows below it."""

    kind: str
    text: str
    mark: str
    where: str
    shown: str = ""


def every_block(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    text, found = page.read_text(), []
    for match in BLOCK.finditer(text):
        where = f"{page.relative_to(REPO)}:{text[: match.start()].count(chr(10)) + 1}"
        block = Block(match["kind"], match["text"], match["mark"] or "", where)
        if block.kind == "output":
            found[-1].shown = block.text
        found.append(block)
    return found


def blocks(page: Path, major: int = 99) -> list[Block]:
    """Return the blocks of a page, but for those that say that they aren't run, or only on servers newer than this, or elsewhere."""
    found = every_block(page)
    since = {block.where: int((re.fullmatch(r"from (\d+)", block.mark) or (0, 0))[1]) for block in found}
    return [block for block in found if not block.mark.startswith(("not run: ", "with ", "run: ")) and since[block.where] <= major]


def blocks_marked(mark: str) -> list[Block]:
    """Return the blocks of all pages that have this above them."""
    return [block for page in PAGES for block in every_block(page) if block.mark == mark]


def with_blocks(kind: str):
    """Have a test run for each page that has such blocks."""
    pages = [page for page in PAGES if any(block.kind == kind for block in blocks(page))]
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.name)


def alike(text: str) -> list[str]:
    """Return the lines of a text without what differs from run to run: figures, units, and space between words."""
    text = re.sub(r"\b(?:kB|MB|GB)\b", "bytes", re.sub(r"\d+(?:\.\d+)?", "0", text)).replace("indexes", "index")
    return [" ".join(line.split()) for line in text.splitlines()]


def assert_printed(shown: str, printed: str, where: str) -> None:
    for line in alike(shown):
        wanted = line.removesuffix("...").rstrip(", ")
        assert any(wanted in one for one in alike(printed)), f"{where} shows {line!r}; printed:\n{printed}"


@pytest.fixture(scope="module")
def shop(cluster):
    """The name of the database of the blocks; what they change of the server is undone at the end."""
    cluster.sql("CREATE DATABASE shop TEMPLATE cyclone_template")
    yield "shop"
    as_it_came(cluster)
    wait_until(lambda: conftest._dropped(cluster, "shop"), "the end of the sessions in shop")
    cluster.sql("DROP ROLE IF EXISTS watcher, alice")


def as_it_came(cluster):
    """Undo what a block has set for the server and the database, and wait until sessions begin without it."""
    with cluster.connect() as conn:
        for statement in ("ALTER DATABASE shop RESET ALL", "ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()"):
            conn.execute(statement)
    query = "SELECT FROM pg_settings WHERE sourcefile LIKE '%postgresql.auto.conf'"
    wait_until(lambda: not cluster.sql(query), "the end of the settings of a block")


def psql(cluster, text: str) -> str:
    """Run a block as a reader does, in a session of its own; return all that is printed."""
    as_it_came(cluster)
    cluster.sql("CREATE EXTENSION IF NOT EXISTS pg_cyclone", dbname="shop")
    return cluster.run("psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", "shop", input=text, stderr=subprocess.STDOUT).stdout


@with_blocks("sql")
def test_sql(cluster, pg_major, shop, page):
    names = ("orders", "t", "big", "audit_log", "jobs")
    shards = ("events_102008", "events_102010")
    psql(cluster, f"DROP TABLE IF EXISTS {', '.join((*names, *shards))}, events;" + "".join(TABLES.format(name=name) for name in names))
    if "CREATE TABLE events" not in page.read_text():
        psql(cluster, "".join(TABLES.format(name=name) for name in ("events", *shards)))
    psql(cluster, "SELECT cyclone.history_reset()")  # a dry run goes by what other pages ran
    for block in blocks(page, pg_major):
        if block.kind != "sql":
            continue
        text = block.text.replace("CREATE EXTENSION pg_cyclone;", "CREATE EXTENSION IF NOT EXISTS pg_cyclone;")
        assert_printed(block.shown, psql(cluster, text), block.where)
    with cluster.connect("shop") as conn:
        conn.execute("VACUUM orders, t")
        for table in ("orders", "t"):
            checks.assert_clean(conn, table)


@pytest.mark.once
@pytest.mark.parametrize("page", ["verbose.md"])
def test_pages_for_the_first_hour_leave_nothing_out(cluster, page):
    """Their blocks run one after the other in a new database, as somebody would who has read nothing else."""
    cluster.sql("CREATE DATABASE bare")
    try:
        for block in blocks(REPO / "docs" / page):
            if block.kind == "sql":
                cluster.run("psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", "bare", input=block.text, stderr=subprocess.STDOUT)
    finally:
        wait_until(lambda: conftest._dropped(cluster, "bare"), "the end of the sessions in bare")


def test_beside_pg_stat_statements(new_cluster):
    server = new_cluster(shared_preload_libraries="pg_cyclone, pg_stat_statements")
    server.sql("CREATE EXTENSION pg_stat_statements")
    [block] = blocks_marked("with pg_stat_statements")
    server.sql("VACUUM pg_class")
    assert ("VACUUM pg_class", 1) in server.sql(block.text)


def assert_made(prefix, where: str, words: list[str]) -> None:
    """A command is make's, and make would run it: what it does is for other tests."""
    while words and (words[0] == "sudo" or re.match(r"[A-Z_0-9]+=", words[0])):
        del words[0]
    assert words[:1] == ["make"], f"{where}: `{shlex.join(words)}` can't be run here; say so above the block"
    arguments = [re.sub(r"^PG_CONFIG=.*", f"PG_CONFIG={prefix}/bin/pg_config", word) for word in words[1:]]
    made = subprocess.run(["make", "-n", *arguments], cwd=REPO, capture_output=True, text=True)
    assert made.returncode == 0, f"{where}: {shlex.join(words)}\n{made.stderr}"


@with_blocks("sh")
def test_shell(prefix, pg_major, page):
    (REPO / "build" / str(pg_major)).mkdir(parents=True, exist_ok=True)  # as the make that only says what it would do doesn't
    for block in blocks(page):
        for line in re.sub(r"\\\n", " ", block.text).splitlines() if block.kind == "sh" else ():
            assert_made(prefix, block.where, shlex.split(line, comments=True))


def test_installing(prefix, pg_major):
    """Each block that installs ends with the line that docs/install.md shows; before that, the server preloads nothing, and says so.

    Packages come by themselves here, make says what it would do, the library being there, and the server is one of the test's own.
    """
    (REPO / "build" / str(pg_major)).mkdir(parents=True, exist_ok=True)
    look, *ways = [block for block in blocks_marked("run: test_installing") if not block.where.startswith("README.md")]
    [in_readme] = [block for block in blocks_marked("run: test_installing") if block.where.startswith("README.md")]
    assert in_readme.text == ways[0].text and len(ways) == 3
    [shown] = [block for block in blocks(REPO / "docs/install.md") if block.kind == "output"]
    asks = re.compile(r"sudo -u postgres (?:/usr/local/pgsql/bin/)?psql (.*)")

    def say(server: Cluster, line: str) -> str:
        """Run a line of a block for a server; return what it prints."""
        if asked := asks.match(line):
            command = f"{shlex.quote(str(program_path(prefix, 'psql')))} -X {asked[1]}"
            env = program_env(prefix, **server.client_env())
            return subprocess.run(command, shell=True, env=env, stdout=subprocess.PIPE, text=True).stdout
        if re.match(r"sudo .*\brestart\b", line):
            server.restart()
        elif not re.match(r"sudo (apt|dnf) install [\w -]+$", line):
            assert_made(prefix, "docs/install.md", shlex.split(line, comments=True))
        return ""

    with Cluster.create(prefix, {}) as server:
        server.start()
        assert say(server, look.text.strip()).split()[2:] == ["(1", "row)"]
        for way in ways:
            lines = way.text.splitlines()
            assert len(lines) <= 6 and say(server, lines[-1]) == "", "PostgreSQL's VACUUM has no such line"
            assert [say(server, line) for line in lines][-1] == shown.text
            server.sql("ALTER SYSTEM RESET ALL")
            server.restart()


def test_blocks_that_nothing_runs():
    """They are listed in one place; each other mark leads to a test."""
    marked = [(block.mark, block.where) for page in PAGES for block in every_block(page) if block.mark]
    assert {mark.removeprefix("not run: "): where.split(":")[0] for mark, where in marked if mark.startswith("not run: ")} == NOT_RUN
    kinds = {kind: {page.name for page in PAGES for block in every_block(page) if block.kind == kind} for kind in ("yaml", "")}
    assert kinds == {"yaml": {"packages.md"}, "": {"bloat.md", "history.md"}}, "only these are for test_packaging and for a test below"
    assert {block.kind for page in PAGES for block in every_block(page)} == {"sql", "sh", "ini", "output", *kinds}
    debs = (REPO / "scripts/check_packages.py").read_text()
    for mark, where in marked:
        kind, _, name = mark.partition(": ") if ": " in mark else mark.partition(" ")
        if kind == "with":
            tests = [file for file in (REPO / "test/pytest").glob("test_*.py") if f'blocks_marked("{mark}")' in file.read_text()]
            assert len(tests) == 1, f"{where}: no test has a server {mark}"
        elif kind == "run" and name == "make check-debs":
            assert f'"{where.split(":")[0]}"' in debs, f"{where}: scripts/check_packages.py doesn't read this page"
        elif kind == "run":
            assert name in globals(), f"{where}: there is no {name}"
        else:
            assert kind in ("from", "not run"), f"{where}: what does {mark!r} mean?"


def test_packages_of_a_bare_system():
    """What docs/install.md has one install in Debian 12 is what .ci/run installs there."""
    if not (REPO / ".ci").exists():
        pytest.skip("the archive of make dist doesn't have it")
    [block] = [block for block in blocks_marked("run: make check-debs") if block.where.startswith("docs/install.md")]
    listed = re.search(r"PACKAGES=\((.*?)\)", (REPO / ".ci/run").read_text(), re.DOTALL)[1]
    assert block.text.replace("\\\n", " ").split() == ["apt", "install", *re.sub(r"#.*", "", listed).split()]


@with_blocks("ini")
def test_configuration(conn, pg_major, page):
    """Settings in files are settings, and take these values."""
    for block in blocks(page, pg_major):
        for name, value in re.findall(r"^([\w.]+) = ('.*?'|\S+)", block.text, re.MULTILINE) if block.kind == "ini" else ():
            known = conn.execute("SELECT name FROM pg_settings WHERE name = %s", (name,)).fetchone()
            assert known, f"{block.where}: there is no setting {name}"
            if name.startswith("cyclone."):
                conn.execute(f"ALTER SYSTEM SET {name} = {value}")
                conn.execute(f"ALTER SYSTEM RESET {name}")


def in_unit(value: str, unit: str) -> float:
    """Return a value as the page has it, in the setting's unit."""
    number, of = re.fullmatch(r"(-?[\d.]+)\s*(\w*)", value).groups()
    return float(number) * UNITS[of] / UNITS[unit] if of else float(number)


def test_settings(conn):
    """docs/settings.md has each setting, with the type, the default, the range and the context that the server has."""
    said = {name: facts for name, *facts in SETTING.findall((REPO / "docs/settings.md").read_text())}
    query = """SELECT name, boot_val, coalesce(unit, ''), context, vartype, min_val, max_val, enumvals FROM pg_settings
        WHERE name LIKE 'cyclone.%' AND name NOT LIKE 'cyclone.debug%'"""
    settings = conn.execute(query).fetchall()
    assert said.keys() == {row[0] for row in settings}
    for name, default, unit, context, kind, lowest, highest, choices in settings:
        said_kind, said_default, values, who = said[name]
        assert (said_kind, CONTEXTS[who]) == (kind, context), name
        if kind in ("integer", "real"):
            assert in_unit(said_default, unit) == float(default), name
            bounds = re.fullmatch(r"`(.*?)` to `(.*?)`", values)
            if bounds:
                assert [in_unit(bound, unit) for bound in bounds.groups()] == [float(lowest), float(highest)], name
            else:
                assert in_unit(re.match(r"`(.*?)`", values)[1], unit) == float(lowest) and float(highest) == 2**31 - 1, name
        else:
            assert said_default == default, name
        assert set(re.findall(r"`(\w+)`", values)) == set(choices) if kind == "enum" else True, name


@pytest.mark.once
def test_wait_events():
    """docs/views.md has each wait event and lock that pg_stat_activity may show of pg_cyclone."""
    source = "".join(path.read_text() for path in sorted((REPO / "src").rglob("*.[ch]")))
    names = set(re.findall(r'"(Cyclone[A-Z]\w+)"', source)) | set(re.findall(r'#define \w*TRANCHE\s+"(.*?)"', source))
    page = " ".join((REPO / "docs/views.md").read_text().split("## Wait events")[1].split())
    assert len(names) > 15 and [name for name in sorted(names) if f"`{name}`" not in page] == []


@pytest.mark.once
def test_contributing_says_what_is_tested_where():
    page = (REPO / "CONTRIBUTING.md").read_text()
    names = [path.stem.removeprefix("test_") for path in sorted((REPO / "test/pytest").glob("test_*.py"))]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.once
def test_commits_that_pages_and_results_name():
    """They are in the history, so that what was measured can be measured again."""
    git = ["git", "-c", "safe.directory=*", "-C", str(REPO)]
    asked = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], text=True, capture_output=True) if shutil.which("git") else None
    if not asked or asked.stdout.strip() != "false":
        pytest.xfail("NOT TESTED: the history isn't here")
    history = subprocess.run([*git, "rev-list", "HEAD"], text=True, capture_output=True, check=True).stdout.split()
    named = {}
    for page in [*PAGES, *(REPO / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "test/proofs.md"))]:
        for name in re.findall(r"(?<![\w/.-])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}(?![\w/.-]*\w)", page.read_text()):
            named[name] = page.name
    for result in sorted((REPO / "bench/saved").glob("*.json")):
        named |= {name: result.name for name in re.findall(r'"commit": "([^"]+)"', result.read_text())}
    known = {name for name in named if any(commit.startswith(name) for commit in history)}
    unknown = {name: where for name, where in named.items() if name not in known}
    assert len(known) > 20 and not unknown, unknown


@pytest.mark.once
def test_messages_that_pages_show(cluster, shop):
    """Advice, the line of VERBOSE on the horizon, and a command's report in the log."""
    advice, horizon, report = [block.text for page in ("bloat.md", "history.md") for block in blocks(REPO / "docs" / page) if not block.kind]
    psql(cluster, """
        DROP TABLE IF EXISTS orders;
        CREATE TABLE orders (id bigint PRIMARY KEY, note text) WITH (autovacuum_enabled = off);
        INSERT INTO orders SELECT i, md5(i::text) FROM generate_series(1, 150000) i;
        DELETE FROM orders WHERE id % 6 <> 0;
        VACUUM ANALYZE orders;
        CREATE ROLE alice LOGIN SUPERUSER;
        """)
    assert_printed(advice, psql(cluster, "SELECT unnest(advice) FROM cyclone.advice WHERE relation = 'orders'::regclass"), "bloat.md")
    with cluster.snapshot(shop, user="alice", application_name="report") as other:
        psql(cluster, "DELETE FROM orders WHERE id % 12 = 0")
        assert_printed(horizon, psql(cluster, "VACUUM (VERBOSE) orders"), "bloat.md")
        other.execute("ROLLBACK")
        before = len(cluster.log)
        other.execute("SET cyclone.log_min_duration = 0")
        other.execute("VACUUM (PARALLEL 2) orders")
    assert_printed(report, cluster.log[before:], "history.md")


@pytest.mark.once
def test_what_postgresql_says_where_pg_cyclone_is_missing(prefix, cluster):
    """docs/errors.md has the first errors of someone who has forgotten a step, or has few rights, as PostgreSQL words them."""
    page = (REPO / "docs/errors.md").read_text().split("## The command is refused")[0]

    def is_told(conn, statement: str):
        with pytest.raises(psycopg.Error) as error:
            conn.execute(statement)
        message = error.value.diag.message_primary
        told = re.sub(r'"(cyclone\.)?[^"]*"', lambda found: f'"{found[1] or ""}…"', message).replace("database postgres", "database …")
        assert any(text in page for text in (f"`{message}`", f"`{told}`")), f"{statement}: {message}"

    with Cluster.create(prefix, {}) as plain, plain.start().connect() as conn:
        conn.execute("CREATE TABLE orders (id int)")
        conn.execute("SET cyclone.enabled = on")
        for statement in ("VACUUM (FULL INPLACE) orders", "VACUUM (ADAPTIVE_DELAY) orders", "VACUUM (DRY_RUN) orders",
                          "SHOW cyclone.audit", "SELECT FROM cyclone.advice", "CREATE EXTENSION pg_cyclone_nowhere",
                          "ALTER TABLE orders SET (cyclone.compaction = on)"):  # fmt: skip
            is_told(conn, statement)
        conn.execute("ALTER SYSTEM RESET cyclone.enabled")  # as docs/upgrade.md has it
    with cluster.connect() as conn:
        page = (REPO / "docs/errors.md").read_text()  # of those that refuse the command, too
        conn.execute("CREATE TABLE orders (id int)")
        is_told(conn, "VACUUM FULL INPLACE orders")
        is_told(conn, "VACUUM FULL inplace")
        is_told(conn, "DO $$BEGIN EXECUTE 'VACUUM (FULL INPLACE) orders'; END$$")
        is_told(conn, "SELECT 1; VACUUM (FULL INPLACE) orders")
        conn.execute("DROP TABLE orders")
        conn.execute("CREATE ROLE bob; SET ROLE bob")
        is_told(conn, "SET cyclone.audit = 1")
        is_told(conn, "CREATE EXTENSION pg_cyclone")
        conn.execute("RESET ROLE; GRANT CREATE ON DATABASE postgres TO bob; SET ROLE bob")
        is_told(conn, "CREATE EXTENSION pg_cyclone")
        conn.execute("RESET ROLE; REVOKE CREATE ON DATABASE postgres FROM bob; DROP ROLE bob")


@pytest.mark.once
@pytest.mark.parametrize("connections", [100, 500, 1000])
def test_shared_memory(prefix, connections):
    """What docs/workers.md says of it, and of it the history."""
    said = re.search(rf"\| {connections} \| ([\d.]+) MB \| ([\d.]+) MB \|", (REPO / "docs/workers.md").read_text())

    def megabytes(**config) -> float:
        """Return all that a server with these settings has, its reserve, too: before PostgreSQL 19 hash tables take of that."""
        with Cluster.create(prefix, {"max_connections": connections, **config}) as server:
            [[found]] = server.start().sql("SELECT sum(allocated_size) / 1048576.0 FROM pg_shmem_allocations")
            return float(found)

    ours = {"shared_preload_libraries": "pg_cyclone"}
    whole = megabytes(**ours)
    found = [whole - megabytes(), whole - megabytes(**ours, **{"cyclone.history_size": 0})]
    # the server rounds what it reserves, on each version from another sum
    assert found == pytest.approx([float(one) for one in said.groups()], abs=0.15)


def test_rolling_out(new_cluster):
    """The steps of docs/rollout.md do what they say of autovacuum in two databases, and so does the way back."""
    page = (REPO / "docs/rollout.md").read_text()
    server = new_cluster(**{"cyclone.enabled": "off", "cyclone.autovacuum": "off", "autovacuum": "on", "autovacuum_naptime": "1s"})
    for name in ("shop", "crm"):
        server.sql(f"CREATE DATABASE {name} TEMPLATE cyclone_template")
        server.sql("CREATE TABLE t AS SELECT generate_series(1, 1000) AS i", dbname=name)

    def comes(name: str, by: str):
        """Wait until autovacuum comes to the table once more, by this."""
        server.sql("UPDATE t SET i = i", dbname=name)
        return [(by,)] == server.sql("SELECT last_by FROM cyclone.autovacuum WHERE relid = 't'::regclass", dbname=name)

    def step(shop: str, crm: str, *statements: str):
        """Say what the page says, and wait for autovacuum by these in both databases."""
        for statement in statements:
            assert statement in page
            server.sql(statement)
        server.sql("SELECT pg_reload_conf()")
        wait_until(lambda: comes("shop", shop), f"autovacuum by {shop} after {statements}")
        wait_until(lambda: comes("crm", crm), f"autovacuum by {crm} after {statements}")

    step("server", "server", "ALTER DATABASE shop SET cyclone.enabled = on;")
    step("engine", "server", "ALTER SYSTEM SET cyclone.autovacuum = on;")
    step("engine", "engine", "ALTER SYSTEM SET cyclone.enabled = on;", "ALTER DATABASE shop RESET cyclone.enabled;")
    server.sql("ALTER DATABASE shop SET cyclone.enabled = on")
    step("server", "server", "ALTER SYSTEM SET cyclone.enabled = never;")
    step("engine", "server", "ALTER SYSTEM SET cyclone.enabled = on;", "ALTER SYSTEM SET cyclone.databases = 'shop';")


@pytest.mark.full
@pytest.mark.parametrize("preload", ["pg_cyclone", ""])
def test_pg_upgrade(pg_major, prefix, preload):
    """A server of the oldest version that is tested becomes one of this; views, labels and settings come along."""
    oldest = int(os.environ["PG_VERSIONS"].split()[0])
    old_prefix = build.install(oldest, debug_points=True, werror=True)
    config = {"shared_preload_libraries": "pg_cyclone", "cyclone.adaptive_delay": "on"}
    initdb = ("--no-data-checksums",) if oldest < 18 <= pg_major else ()  # as both must be alike in that
    with (
        Cluster.create(old_prefix, config) as old,
        Cluster.create(prefix, {**config, "shared_preload_libraries": preload}, initdb=initdb) as new,
    ):
        old.start()
        old.sql("CREATE EXTENSION pg_cyclone")
        old.sql("CREATE TABLE orders AS SELECT generate_series(1, 1000) AS id")
        if preload:
            old.sql("SECURITY LABEL FOR pg_cyclone ON TABLE orders IS 'threshold=50'")
        old.sql("CREATE VIEW mine AS SELECT relation, outcome FROM cyclone.history")
        old.sql("ALTER ROLE CURRENT_USER SET cyclone.audit = 1")
        old.stop()
        new.start().stop()  # writes its settings
        folders = ("-d", old.data, "-D", new.data, "-b", old_prefix / "bin", "-B", prefix / "bin", "-s", new.socket_dir)
        run_program(prefix, "pg_upgrade", *folders, "-U", "postgres", **{**as_server_user(), "cwd": new.home})
        new.config["shared_preload_libraries"] = "pg_cyclone"
        new.start()
        assert new.sql("SELECT relation::text, label FROM cyclone.compaction_details") == [("orders", "threshold=50" if preload else None)]
        assert new.sql("SELECT count(*) >= 0 FROM mine") == [(True,)]
        assert new.sql("SHOW cyclone.audit") == [("1",)]
        with new.connect() as conn:
            conn.execute("VACUUM (FULL INPLACE) orders")
            conn.execute("ALTER EXTENSION pg_cyclone UPDATE")
            assert conn.execute("SELECT count(*), sum(id) FROM orders").fetchone() == (1000, 500500)
