"""Servers that pg_cyclone was not built for."""

import re
import shutil
import subprocess
from contextlib import contextmanager

import psycopg
import pytest

from conftest import CONFIG
from cyclone_lab import build, checks
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO, hand_over, program_env, program_path
from test_neighbours import hear

EVERY_VERSION = "it is about the server"

OTHER_VERSION = r"WARNING:  pg_cyclone was built against PostgreSQL (\S+), and this is PostgreSQL (\S+)\n"
UNFIT = "WARNING:  pg_cyclone does not fit this server, so PostgreSQL's own VACUUM is used\n"
DETAIL = r"DETAIL:  It was built against PostgreSQL (\S+), and this is PostgreSQL (\S+)\. What differs: (.*)\.\n"
PROBES = [
    "WAL records about the visibility map",
    "struct IndexAmRoutine",
    "struct IndexInfo",
    "struct TupleDescData",
    "struct TupleTableSlot",
    "structs BufferUsage and WalUsage",
]

# What another minor version might have in its headers: by probe, where it is and what is there instead.
OTHER_HEADERS = {
    "WAL records about the visibility map": ("access/heapam_xlog.h", r"#define HEAP_MULTI_INSERT_BLKREF_VM.*\n", ""),
    "struct IndexAmRoutine": ("access/amapi.h", r"(\n\tambuild_function ambuild;)", r"\n\tvoid *added;\1"),
    "struct IndexInfo": ("nodes/execnodes.h", r"(\n} IndexInfo;)", r"\n\tvoid *added;\1"),
    "struct TupleDescData": ("access/tupdesc.h", r"(typedef struct TupleDescData\n{)", r"\1\n\tint64 added;"),
    "struct TupleTableSlot": ("executor/tuptable.h", r"(\n} TupleTableSlot;)", r"\n\tint64 added;\1"),
    "structs BufferUsage and WalUsage": ("executor/instrument.h", r"(\n} WalUsage;)", r"\n\tint64 added;\1"),
}

# Sizes and formats that the cluster has noted: where ours is, and what it is there instead
OTHER_SIZES = {
    "the version of the catalogs": ("catalog/catversion.h", "CATALOG_VERSION_NO", 202001011),
    "BLCKSZ": ("pg_config.h", "BLCKSZ", 16384),
    "RELSEG_SIZE": ("pg_config.h", "RELSEG_SIZE", 6),
    "XLOG_BLCKSZ": ("pg_config.h", "XLOG_BLCKSZ", 16384),
}


def own_version(cluster) -> tuple[int, str]:
    [(number,)] = cluster.sql("SELECT current_setting('server_version_num')::int")
    return number, f"{number // 10000}.{number % 10000}"


def vacuumed(cluster, db: str = "postgres") -> str:
    """VACUUM a table with dead rows, prove that none is left, and return the report."""
    reports = []
    with cluster.connect(db) as conn:
        checks.create_extensions(conn)
        conn.add_notice_handler(lambda message: reports.append(message.message_primary))
        conn.execute("DROP TABLE IF EXISTS t")
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, note text) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO t SELECT i, 'note' FROM generate_series(1, 20000) i")
        conn.execute("DELETE FROM t WHERE id % 3 = 0")
        conn.execute("VACUUM (VERBOSE) t")
        state = checks.table_state(conn, "t")
        assert state["dead_items"] == state["dead_tuples"] == 0
        conn.execute("VACUUM (FULL) t")
        checks.assert_clean(conn, "t")
    return "\n".join(reports)


def assert_core_serves(cluster, differs: str) -> None:
    """The library isn't used, for this reason, and says so once; what PostgreSQL doesn't know is an error."""
    assert cluster.log.count(UNFIT) == 1
    assert not re.search(OTHER_VERSION, cluster.log)
    [(_, _, reasons)] = re.findall(DETAIL, cluster.log)
    assert reasons == differs
    assert "dead-TID store" not in vacuumed(cluster)
    with cluster.connect() as conn:
        for options in ("FULL INPLACE", "FULL REWRITE", "ADAPTIVE_DELAY", "FULL, ADAPTIVE_DELAY"):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not fit this server") as error:
                conn.execute(f"VACUUM ({options}) t")
            assert differs in error.value.diag.message_detail
            assert "pg_config" in error.value.diag.message_hint
        if own_version(cluster)[0] >= 190000:
            assert "finished rewriting" not in "".join(hear(conn, "REPACK (VERBOSE) t"))
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not fit this server"):
                conn.execute("REPACK (PARALLEL 2) t")
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_cyclone")
        assert conn.execute("SELECT * FROM cyclone.autovacuum_details").fetchall() == []
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not fit this server"):
            conn.execute("SELECT cyclone.autovacuum_reset()")
        assert conn.execute("SELECT cyclone.pause(), cyclone.resume(), cyclone.pause(1), cyclone.resume(1)").fetchone() == (0, 0, False, False)
        of_mine = "cyclone.pause(pg_backend_pid()), cyclone.resume(pg_backend_pid())"
        assert conn.execute(f"SELECT {of_mine}").fetchone() == (False, False)
        for estimate in ("cyclone.estimate_bloat('t')", "cyclone.bloat"):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="estimates of bloat"):
                conn.execute(f"SELECT * FROM {estimate}")
        conn.execute("SET cyclone.enabled = off")
        with pytest.raises(psycopg.errors.SyntaxError, match="requires a Boolean value"):
            conn.execute("VACUUM (FULL INPLACE) t")
    assert cluster.log.count(UNFIT) == 1


# A value for each argument of the extension's functions, by its name, or else its type
ARGUMENTS = {
    "view": "'progress'",
    "full": "'inplace'",
    "result": "NULL",
    "boolean": "true",
    "integer": "1000",
    "bigint": "1000",
    "real": "0.1",
    "double precision": "10",
    "interval": "'1 day'",
    "name": "'t'",
    "text": "''",
    "text[]": "'{public.t}'",
    "oid": "'t'::regclass",
    "regclass": "'t'",
    "regclass[]": "'{t}'",
}


def all_that_can_be_asked(conn) -> dict[str, str]:
    """Return a statement for each view, table, function and procedure of the schema cyclone, by its name."""
    named = "SELECT c.oid::regclass::text FROM pg_class c WHERE relnamespace = 'cyclone'::regnamespace AND relkind IN ('v', 'm', 'r')"
    statements = {name: f"SELECT * FROM {name}" for (name,) in conn.execute(named)}
    called = """
        SELECT p.oid::regproc::text, p.oid::regprocedure::text, p.prokind,
               ARRAY(SELECT ARRAY[p.proargnames[n], format_type(u.type, NULL)] FROM unnest(p.proargtypes) WITH ORDINALITY u(type, n) ORDER BY n)
          FROM pg_proc p WHERE pronamespace = 'cyclone'::regnamespace AND prorettype <> 'trigger'::regtype
        """
    for name, signature, kind, named_types in conn.execute(called):
        arguments = ", ".join(ARGUMENTS.get(argument) or ARGUMENTS.get(of_type, f"NULL::{of_type}") for argument, of_type in named_types)
        statements[signature] = f"CALL {name}({arguments})" if kind == "p" else f"SELECT * FROM {name}({arguments})"
    return statements


def answers(cluster) -> dict[str, str]:
    """Ask for all of it, each in a session of its own, and return what it came to: "rows", or the error's message."""
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_cyclone")
        conn.execute("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, note text)")
        statements = all_that_can_be_asked(conn)
    found = {}
    for name, statement in statements.items():
        with cluster.connect() as conn:
            try:
                conn.execute(statement)
                found[name] = "rows"
            except psycopg.Error as error:
                # without an SQLSTATE the connection is lost, XX000 is for what should not happen
                assert error.sqlstate is not None and not error.sqlstate.startswith("XX"), (statement, str(error))
                found[name] = error.diag.message_primary
    assert "terminated by signal" not in cluster.log and "TRAP" not in cluster.log
    return found


def test_all_that_can_be_asked_of_a_server_that_differs(new_cluster):
    """Each view and function of the extension has rows, or an error that says what is wrong."""
    found = answers(new_cluster(**{"cyclone.debug_failed_probe": 1}))
    assert len(found) >= 30 and found["cyclone.progress_details"] == found["cyclone.pace"] == "rows"
    assert {name: said for name, said in found.items() if said != "rows" and not said.endswith("does not fit this server")} == {}


def test_all_that_can_be_asked_without_preloading(new_cluster):
    cluster = new_cluster()
    cluster.stop()
    cluster.config = {name: value for name, value in cluster.config.items() if not name.startswith("cyclone.")}
    cluster.config["shared_preload_libraries"] = ""
    cluster.start()
    found = answers(cluster)
    assert len(found) >= 30 and found["cyclone.progress_details"] != "rows"
    assert {name: said for name, said in found.items() if said != "rows" and 'must be loaded via "shared_preload_libraries"' not in said} == {}


def test_the_server_it_was_built_for_is_fit_without_a_word(new_cluster):
    own = new_cluster()
    assert "pg_cyclone" not in re.sub(r"cyclone_template", "", own.log)
    assert "dead-TID store" in vacuumed(own)


def test_a_newer_server_is_named_and_served(cluster, new_cluster):
    number, built = own_version(cluster)
    own = new_cluster(**{"cyclone.debug_server_version": number + 3})
    assert "dead-TID store" in vacuumed(own)
    assert re.findall(OTHER_VERSION, own.log) == [(built, f"{number // 10000}.{number % 10000 + 3}")]
    assert UNFIT not in own.log


def test_an_older_server_serves_itself(cluster, new_cluster):
    number, _ = own_version(cluster)
    assert_core_serves(new_cluster(**{"cyclone.debug_server_version": number - 1}), "the version, which is older")


@pytest.mark.once
@pytest.mark.parametrize("probe", range(1, len(PROBES) + 1))
def test_a_server_that_differs_serves_itself(prefix, probe):
    with Cluster.create(prefix, {**CONFIG, "cyclone.debug_failed_probe": probe}) as own:
        own.start()
        assert_core_serves(own, PROBES[probe - 1])


def test_a_library_built_with_other_headers_is_found_out(prefix, pg_major, tmp_path):
    """One in which all that is probed differs: each probe notices."""
    # all servers 19 log changes of the map alike, and a library that does otherwise can't be built for them
    other = {probe: header for probe, header in OTHER_HEADERS.items() if pg_major < 19 or "visibility map" not in probe}
    with library_of_other_headers(prefix, tmp_path, list(other.values())) as own:
        [(_, _, reasons)] = re.findall(DETAIL, own.log)
        assert reasons == ", ".join(other)
        assert "dead-TID store" not in vacuumed(own)


def test_a_library_for_other_sizes_is_found_out(prefix, tmp_path):
    """It would read and write pages and files as they are not."""
    headers = [(name, rf"(#define {macro}\s+)\d+", rf"\g<1>{value}") for name, macro, value in OTHER_SIZES.values()]
    with library_of_other_headers(prefix, tmp_path, headers) as own:
        [(_, _, reasons)] = re.findall(DETAIL, own.log)
        for what, (_, _, value) in OTHER_SIZES.items():
            assert re.search(rf"(^|, ){what} \({value} there, \d+ here\)", reasons), reasons
        assert "TOAST_MAX_CHUNK_SIZE" in reasons and "LOBLKSIZE" in reasons
        assert "dead-TID store" not in vacuumed(own)


@contextmanager
def library_of_other_headers(prefix, tmp_path, changes: list[tuple[str, str, str]]):
    """A running server of `prefix` with the library as it is compiled if these texts of headers are replaced."""
    includes, objects = tmp_path / "include", tmp_path / "objects"
    pg_config = program_path(prefix, "pg_config")
    original = subprocess.run([pg_config, "--includedir-server"], env=program_env(prefix), check=True, capture_output=True, text=True)
    shutil.copytree(original.stdout.strip(), includes)
    for name, pattern, replacement in changes:
        text, replaced = re.subn(pattern, replacement, (includes / name).read_text())
        assert replaced == 1, name
        (includes / name).write_text(text)
    objects.mkdir()
    command = ["make", "--silent", "-C", objects, "-f", REPO / "Makefile", f"PG_CONFIG={pg_config}", f"includedir_server={includes}"]
    command += ["DEBUG_POINTS=1", f"COPT={build.CHECKS_FLAGS} -Wno-error -O0"]

    def make(target: str) -> None:
        made = subprocess.run([*command, target], env=program_env(prefix), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert made.returncode == 0, made.stdout

    # one file looks at the server; the others are taken as they are, as newer than what they are made of
    make(looks := "src/server_check.o")
    built = build.build_folder(prefix)
    for compiled in (built / "src").rglob("*.o"):
        copy = objects / compiled.relative_to(built)
        if str(copy.relative_to(objects)) != looks:
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(compiled, copy)
    make("all")
    config = {name: value for name, value in CONFIG.items() if not name.startswith("cyclone.")}
    with Cluster.create(prefix, config) as own:
        library = own.home / "pg_cyclone.so"
        shutil.copy(objects / "pg_cyclone.so", library)
        hand_over(library)
        own.config["shared_preload_libraries"] = str(library)
        own.start()
        yield own
