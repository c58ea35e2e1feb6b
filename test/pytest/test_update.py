"""The extension's versions in a database: from each that was released there is a way to the newest, and the library fits them all.

A database keeps the objects that CREATE EXTENSION made until somebody says ALTER EXTENSION pg_cyclone UPDATE, while the library is
replaced with the package. `pg_cyclone--OLD--NEW.sql` must come to the same as `pg_cyclone--NEW.sql`: whoever adds an object to one
and forgets the other finds it named here.
"""

import hashlib
import json
import re

import psycopg
import pytest

from cyclone_lab.background import Parked
from cyclone_lab.postgres import REPO

EVERY_VERSION = "how scripts are run is the server's"

NEWEST = re.search(r"default_version = '([\d.]+)'", (REPO / "pg_cyclone.control").read_text())[1]
# What has been released never changes: databases have it. SHA-256 of the scripts.
RELEASED = {"0.1.0": "4d9d2a02fa3b830f63eebd08fc1e7f74e26f283011966af2d60bb78e1ed68972"}

# Each object of the extension, with all that makes it what it is. Kinds that none is of yet have no definition here.
OBJECTS = """
    WITH members AS (
        SELECT classid, objid FROM pg_depend
        WHERE deptype = 'e' AND classid <> 'pg_type'::regclass  -- these are the views' rows
          AND refclassid = 'pg_extension'::regclass AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_cyclone')
        UNION SELECT 'pg_namespace'::regclass, 'cyclone'::regnamespace
    )
    SELECT (pg_identify_object(m.classid, m.objid, 0)).type || ' ' || (pg_identify_object(m.classid, m.objid, 0)).identity,
           jsonb_pretty(jsonb_build_object(
               'is', CASE m.classid WHEN 'pg_proc'::regclass THEN pg_get_functiondef(m.objid)
                                    WHEN 'pg_class'::regclass THEN coalesce(pg_get_viewdef(m.objid), (
                                        SELECT string_agg(pg_get_constraintdef(oid), ', ' ORDER BY conname)
                                        FROM pg_constraint WHERE conrelid = m.objid))
                                    WHEN 'pg_namespace'::regclass THEN 'schema' END,
               'options', (SELECT to_jsonb(reloptions) FROM pg_class WHERE m.classid = 'pg_class'::regclass AND oid = m.objid),
               'columns', (SELECT jsonb_agg(to_jsonb(ARRAY[attname::text, format_type(atttypid, atttypmod), attnotnull::text,
                                                           pg_get_expr(adbin, adrelid), attacl::text]) ORDER BY attnum)
                           FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
                           WHERE m.classid = 'pg_class'::regclass AND attrelid = m.objid AND attnum > 0),
               'comments', (SELECT jsonb_object_agg(objsubid, description) FROM pg_description
                            WHERE classoid = m.classid AND objoid = m.objid),
               'privileges', (SELECT jsonb_agg(acl::text ORDER BY acl::text)
                              FROM (SELECT unnest(proacl) FROM pg_proc WHERE m.classid = 'pg_proc'::regclass AND oid = m.objid
                                    UNION ALL
                                    SELECT unnest(relacl) FROM pg_class WHERE m.classid = 'pg_class'::regclass AND oid = m.objid
                                    UNION ALL
                                    SELECT unnest(nspacl) FROM pg_namespace
                                    WHERE m.classid = 'pg_namespace'::regclass AND oid = m.objid) a (acl)),
               'rows for pg_dump', (SELECT extcondition[array_position(extconfig, m.objid)] FROM pg_extension
                                    WHERE m.classid = 'pg_class'::regclass AND m.objid = ANY (extconfig)),
               'for pg_dump', (SELECT jsonb_object_agg(objsubid, privtype::text || initprivs::text) FROM pg_init_privs
                               WHERE classoid = m.classid AND objoid = m.objid)))
    FROM members m
"""


@pytest.fixture
def old(conn):
    """A connection to a database that has the extension as of 0.1.0."""
    conn.execute("DROP EXTENSION pg_cyclone; DROP SCHEMA IF EXISTS cyclone; CREATE EXTENSION pg_cyclone VERSION '0.1.0'")
    return conn


@pytest.mark.parametrize("version", RELEASED)
def test_what_was_released_is_as_it_was(version):
    script = REPO / "sql" / f"pg_cyclone--{version}.sql"
    assert hashlib.sha256(script.read_bytes()).hexdigest() == RELEASED[version], (
        f"{script.name} was released: new objects belong in pg_cyclone--{NEWEST}.sql and in the script of the update"
    )


def test_the_version_is_the_same_everywhere():
    meta = json.loads((REPO / "META.json").read_text())
    assert (REPO / "sql" / f"pg_cyclone--{NEWEST}.sql").exists() and NEWEST not in RELEASED
    assert meta["version"] == meta["provides"]["pg_cyclone"]["version"] == NEWEST
    assert meta["provides"]["pg_cyclone"]["file"] == f"sql/pg_cyclone--{NEWEST}.sql"
    assert (REPO / "debian" / "changelog").read_text().startswith(f"pg-cyclone ({NEWEST}-1)")
    assert re.search(rf"^Version:\s+{re.escape(NEWEST)}$", (REPO / "packaging" / "pg_cyclone.spec").read_text(), re.MULTILINE)


@pytest.mark.parametrize("version", RELEASED)
def test_an_update_comes_to_what_a_new_install_is(conn, version):
    new = dict(conn.execute(OBJECTS).fetchall())
    conn.execute(f"DROP EXTENSION pg_cyclone; DROP SCHEMA IF EXISTS cyclone; CREATE EXTENSION pg_cyclone VERSION '{version}'")
    assert conn.execute("SELECT extversion FROM pg_extension WHERE extname = 'pg_cyclone'").fetchone() == (version,)
    assert dict(conn.execute(OBJECTS).fetchall()) != new  # or this compares nothing
    conn.execute("ALTER EXTENSION pg_cyclone UPDATE")
    updated = dict(conn.execute(OBJECTS).fetchall())

    assert conn.execute("SELECT extversion FROM pg_extension WHERE extname = 'pg_cyclone'").fetchone() == (NEWEST,)
    unknown = [name for name, definition in new.items() if not json.loads(definition)["is"]]
    assert not unknown, "kinds of objects that OBJECTS doesn't know"
    assert sorted(updated) == sorted(new), "missing after the update, or left over from it"
    for name, definition in new.items():
        assert updated[name] == definition, f"{name} differs after the update"


@pytest.mark.parametrize("version", RELEASED)
def test_an_update_leaves_to_users_what_is_theirs(conn, version):
    """Privileges on the old version's views, and views over them, are there after it."""
    conn.execute(f"DROP EXTENSION pg_cyclone; DROP SCHEMA IF EXISTS cyclone; CREATE EXTENSION pg_cyclone VERSION '{version}'")
    views = [name for (name,) in conn.execute("SELECT viewname FROM pg_views WHERE schemaname = 'cyclone' ORDER BY 1")]
    assert {"progress", "pace", "autovacuum", "bloat"} <= set(views)
    for view in views:
        conn.execute(f"REVOKE ALL ON cyclone.{view} FROM PUBLIC; GRANT SELECT ON cyclone.{view} TO pg_read_all_data")
        conn.execute(f"CREATE VIEW my_{view} AS SELECT * FROM cyclone.{view}")
    conn.execute("ALTER EXTENSION pg_cyclone UPDATE")
    for view in views:
        privileges = conn.execute(
            "SELECT has_table_privilege('pg_read_all_data', %(view)s, 'SELECT'), relacl::text NOT LIKE '%%{=r/%%' AND relacl::text NOT LIKE '%%,=r/%%'"
            " FROM pg_class WHERE oid = %(view)s::regclass",
            {"view": f"cyclone.{view}"},
        ).fetchone()
        assert privileges == (True, True), view
        conn.execute(f"TABLE my_{view}")


def test_the_library_with_objects_of_0_1_0(cluster, db, old):
    """Every view and function of the old version works, or says what to do, with a VACUUM running that they have rows of."""
    old.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 10000); DELETE FROM t WHERE id % 2 = 0")
    views = [name for (name,) in old.execute("SELECT viewname FROM pg_views WHERE schemaname = 'cyclone' ORDER BY 1")]
    outcomes = {}
    with Parked(cluster, db, "heap-scan:leader", 1, "VACUUM (LATENCY_TARGET '10s') t"):
        for call in [*(f"TABLE cyclone.{view}" for view in views), "SELECT * FROM cyclone.estimate_bloat('pg_class')"]:
            try:
                outcomes[call] = old.execute(call).fetchall()
            except psycopg.errors.ObjectNotInPrerequisiteState as error:
                outcomes[call] = error.diag.message_hint
    assert old.execute("SELECT cyclone.autovacuum_reset()").fetchone() == (0,)
    works = [call for call, outcome in outcomes.items() if isinstance(outcome, list)]
    assert all("ALTER EXTENSION pg_cyclone UPDATE" in hint for call, hint in outcomes.items() if call not in works)
    assert {"TABLE cyclone.bloat", "SELECT * FROM cyclone.estimate_bloat('pg_class')"} <= set(works)
    assert all(outcomes[call] for call in works if call != "TABLE cyclone.autovacuum"), "there should have been rows"

    # VACUUM itself needs no objects
    for options in ("", "(FULL REWRITE)", "(FULL INPLACE)"):
        old.execute(f"VACUUM {options} t")
    assert old.execute("SELECT count(*) FROM t").fetchone() == (5000,)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_function_declared_with_other_columns_is_refused(conn, more):
    """Whatever C function returns rows checks its declaration; one column less or more ends in an error that says what to do."""
    functions = conn.execute(
        """
        SELECT proname, prosrc, proretset, proargtypes::regtype[]::text[], proallargtypes::regtype[]::text[], proargnames
        FROM pg_proc WHERE pronamespace = 'cyclone'::regnamespace AND probin IS NOT NULL AND prorettype = 'record'::regtype AND prokind = 'f'
        """
    ).fetchall()
    assert len(functions) >= 10
    for name, symbol, is_set, inputs, types, names in functions:
        outputs = [f"OUT c{number} {kind}" for number, kind in enumerate(types[len(inputs):])]
        outputs = outputs[:more] if more < 0 else [*outputs, "OUT extra text"]
        assert len(outputs) > 1 and len(names) == len(types)
        conn.execute(
            f"CREATE FUNCTION public.other_{name}({', '.join([*inputs, *outputs])}) RETURNS {'SETOF' if is_set else ''} record"
            f" LANGUAGE C STRICT AS '$libdir/pg_cyclone', '{symbol}'"
        )
        arguments = [
            "'pg_class'::regclass" if kind in ("oid", "regclass")
            else "'{}'" if kind.endswith("[]")
            else f"json_populate_record(NULL::{kind}, '{{}}')" if kind.startswith("cyclone.")
            else "'1'"
            for kind in inputs
        ]
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=f"other_{name} does not fit") as error:
            conn.execute(f"SELECT * FROM public.other_{name}({', '.join(arguments)})")
        assert "ALTER EXTENSION pg_cyclone UPDATE" in error.value.diag.message_hint


@pytest.fixture
def mallory(cluster):
    cluster.sql("CREATE ROLE mallory LOGIN")
    yield
    cluster.sql("DROP ROLE mallory")


OPERATOR = """
    CREATE FUNCTION cyclone.times(numeric, int) RETURNS numeric LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'mallory''s code runs as %', current_user;
    END $$;
    CREATE OPERATOR cyclone.* (LEFTARG = numeric, RIGHTARG = int, FUNCTION = cyclone.times)
"""
ROOTS = "SET SESSION AUTHORIZATION postgres; "
MALLORYS = "SET SESSION AUTHORIZATION mallory; "


@pytest.mark.parametrize(
    "prepared",
    [
        f"CREATE SCHEMA cyclone AUTHORIZATION mallory; {MALLORYS} {OPERATOR}",
        "CREATE SCHEMA cyclone AUTHORIZATION mallory",
        "CREATE SCHEMA cyclone; GRANT CREATE ON SCHEMA cyclone TO mallory",
        "CREATE SCHEMA cyclone; GRANT CREATE ON SCHEMA cyclone TO PUBLIC",
        f"CREATE SCHEMA cyclone; GRANT ALL ON SCHEMA cyclone TO mallory; {MALLORYS} {OPERATOR}; {ROOTS} REVOKE ALL ON SCHEMA cyclone FROM mallory",
    ],
)
@pytest.mark.parametrize("command", ["CREATE EXTENSION pg_cyclone", "ALTER EXTENSION pg_cyclone UPDATE"])
def test_a_schema_that_somebody_else_has_prepared_is_refused(conn, mallory, prepared, command):
    """What is in it would be taken for the server's operators, and run as whoever reads the views."""
    conn.execute("DROP EXTENSION pg_cyclone; DROP SCHEMA cyclone")
    conn.execute(prepared + "; RESET SESSION AUTHORIZATION")
    if "UPDATE" in command:
        conn.execute("CREATE EXTENSION pg_cyclone VERSION '0.1.0'")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="schema cyclone belongs to somebody else") as refused:
            conn.execute(command)
        assert "rename or drop it" in refused.value.diag.message_hint
        if "UPDATE" not in command:
            conn.execute("ALTER SCHEMA cyclone RENAME TO theirs")
            conn.execute(command)
            conn.execute("TABLE cyclone.advice")
    finally:
        conn.execute("DROP EXTENSION IF EXISTS pg_cyclone; DROP OWNED BY mallory CASCADE")


def test_a_schema_of_ones_own_is_used(conn):
    """It remains when the extension is dropped, and a dump makes it before the extension."""
    conn.execute("DROP EXTENSION pg_cyclone")
    assert conn.execute("SELECT to_regnamespace('cyclone') IS NOT NULL").fetchone() == (True,)
    conn.execute("CREATE FUNCTION cyclone.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    conn.execute("CREATE EXTENSION pg_cyclone")
    conn.execute("TABLE cyclone.advice")
