"""An update script keeps what users have made of the extension's objects."""

import re
import shutil

import pytest

from cyclone_lab.postgres import REPO
from test_update import NEWEST

FIRST_MAJOR = 18  # extension_control_path


@pytest.fixture
def dba(cluster):
    cluster.sql("CREATE ROLE dba")
    yield
    cluster.sql("DROP ROLE dba")


def test_an_update_keeps_grants_labels_and_views(conn, cluster, dba):
    """A script that replaces each function and view, as that of a next version is to, loses none of what users have made of them."""
    script = (REPO / "sql" / f"pg_cyclone--{NEWEST}.sql").read_text()
    replacing = re.sub(r"^CREATE (FUNCTION|VIEW)", r"CREATE OR REPLACE \1", script, flags=re.MULTILINE)
    folder = cluster.home / "next" / "extension"
    folder.mkdir(parents=True)
    for name, text in ((f"{NEWEST}.sql", script), (f"{NEWEST}--9.0.0.sql", replacing)):
        (folder / f"pg_cyclone--{name}").write_text(text)
    (folder / "pg_cyclone.control").write_text((REPO / "pg_cyclone.control").read_text())
    for path in (folder.parent, folder, *folder.iterdir()):
        path.chmod(0o755)
    conn.execute(f"SET extension_control_path = '{folder.parent}:$system'; CREATE TABLE t (id int)")
    conn.execute("DROP EXTENSION pg_cyclone; CREATE EXTENSION pg_cyclone")
    conn.execute("GRANT EXECUTE ON FUNCTION cyclone.history_reset() TO dba; REVOKE SELECT ON cyclone.horizon FROM PUBLIC")
    conn.execute("GRANT SELECT ON cyclone.horizon, cyclone.autovacuum TO dba; CREATE VIEW mine AS SELECT relation FROM cyclone.bloat")
    conn.execute("SECURITY LABEL FOR pg_cyclone ON TABLE t IS 'compaction=off'")
    facts = """
        SELECT has_function_privilege('dba', 'cyclone.history_reset()', 'EXECUTE'), has_table_privilege('dba', 'cyclone.autovacuum', 'SELECT'),
            has_table_privilege('dba', 'cyclone.horizon', 'SELECT'), (SELECT count(*) FROM pg_depend WHERE refobjid = 'cyclone.bloat'::regclass) > 1,
            (SELECT label FROM pg_seclabel WHERE objoid = 't'::regclass), (SELECT extversion FROM pg_extension WHERE extname = 'pg_cyclone')"""
    try:
        assert conn.execute(facts).fetchone() == (True, True, True, True, "compaction=off", NEWEST)
        conn.execute("ALTER EXTENSION pg_cyclone UPDATE TO '9.0.0'")
        assert conn.execute(facts).fetchone() == (True, True, True, True, "compaction=off", "9.0.0")
        conn.execute("TABLE mine; TABLE cyclone.horizon")
    finally:
        conn.execute("DROP OWNED BY dba")
        shutil.rmtree(folder.parent)
