"""The version is the same everywhere, and the library fits the objects that a database has, or says what to do.

Once a version is published its script never changes, pg_cyclone--OLD--NEW.sql updates from it, and a test compares what an update
comes to with a new install. The one that did so for 0.1.0, which never was, is in this file's history.
"""

import json
import re

import psycopg
import pytest

from cyclone_lab.postgres import REPO

EVERY_VERSION = "how scripts are run is the server's"

NEWEST = re.search(r"default_version = '([\d.]+)'", (REPO / "pg_cyclone.control").read_text())[1]


def test_the_version_is_the_same_everywhere():
    meta = json.loads((REPO / "META.json").read_text())
    assert (REPO / "sql" / f"pg_cyclone--{NEWEST}.sql").exists()
    assert meta["version"] == meta["provides"]["pg_cyclone"]["version"] == NEWEST
    assert meta["provides"]["pg_cyclone"]["file"] == f"sql/pg_cyclone--{NEWEST}.sql"
    assert (REPO / "debian" / "changelog").read_text().startswith(f"pg-cyclone ({NEWEST}-1)")
    assert re.search(rf"^Version:\s+{re.escape(NEWEST)}$", (REPO / "packaging" / "pg_cyclone.spec").read_text(), re.MULTILINE)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_function_declared_with_other_columns_is_refused(conn, more):
    """Each C function that returns rows checks its declaration; one column less or more ends in an error that says what to do."""
    functions = conn.execute(
        """
        SELECT proname, prosrc, proretset, proargtypes::regtype[]::text[], proallargtypes::regtype[]::text[], proargnames
        FROM pg_proc WHERE pronamespace = 'cyclone'::regnamespace AND probin IS NOT NULL AND prorettype = 'record'::regtype AND prokind = 'f'
        """
    ).fetchall()
    assert len(functions) >= 7
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
        assert "DROP EXTENSION pg_cyclone; CREATE EXTENSION pg_cyclone;" in error.value.diag.message_hint


@pytest.fixture
def mallory(cluster):
    cluster.sql("CREATE ROLE mallory LOGIN")
    yield
    cluster.sql("DROP ROLE IF EXISTS mallory")


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
def test_a_schema_that_somebody_else_has_prepared_is_refused(conn, mallory, prepared):
    """Its operators would be taken for the server's, and run with the rights of the role that reads the views."""
    conn.execute("DROP EXTENSION pg_cyclone; DROP SCHEMA cyclone")
    conn.execute(prepared + "; RESET SESSION AUTHORIZATION")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="schema cyclone belongs to another role") as refused:
            conn.execute("CREATE EXTENSION pg_cyclone")
        assert "rename or drop the schema" in refused.value.diag.message_hint
        conn.execute("ALTER SCHEMA cyclone RENAME TO theirs")
        conn.execute("CREATE EXTENSION pg_cyclone")
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
