"""Differences between minor versions are found in their headers, not by their numbers."""

import re
import shutil
import subprocess
import sys

import pytest

from cyclone_lab import build, server_use
from cyclone_lab.postgres import REPO, program_env, program_path, run_program

sys.path.insert(0, str(REPO / "scripts"))
import check_minors

MAP_PROBE = "#define HEAP_MULTI_INSERT_BLKREF_VM 1\n"


def probe(tmp_path, gist: str, heap: str = MAP_PROBE, compiler: str = "gcc") -> subprocess.CompletedProcess:
    """Run the probes on a server whose headers are these."""
    access = tmp_path / "access"
    access.mkdir(exist_ok=True)
    (tmp_path / "postgres.h").write_text("typedef char *Page;\n")
    (access / "gist.h").write_text(gist)
    (access / "heapam_xlog.h").write_text(heap)
    command = [REPO / "scripts/probe-server", compiler, f"-I{tmp_path}", "-Wall", "-Wextra", "-Werror"]
    return subprocess.run(command, text=True, capture_output=True)


@pytest.mark.parametrize(
    "gist, has",
    [
        ("#define GistMarkTuplesDeleted(page) ((void) (page))\n", 1),
        ("extern void GistMarkTuplesDeleted(Page page);\n", 1),
        ("static inline void GistMarkTuplesDeleted(Page page) { (void) page; }\n", 1),
        ("enum {GistMarkTuplesDeleted};\n", 1),
        ("extern void GistMarkTuples(Page page);\n", 0),
        ("/* GistMarkTuplesDeleted */\n", 0),
    ],
)
def test_a_name_is_found_whatever_it_is_of(tmp_path, gist, has):
    result = probe(tmp_path, gist)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"#define SERVER_HAS_GistMarkTuplesDeleted {has}\n" in result.stdout
    assert "#define SERVER_HAS_HEAP_MULTI_INSERT_BLKREF_VM 1\n" in result.stdout


@pytest.mark.parametrize(
    "gist, compiler, says",
    [
        ("#error of its own\n", "gcc", "cannot compile the server's header access/gist.h"),
        ("", "no-such-compiler", "cannot compile the server's header access/gist.h"),
        ("struct probe {int x;};\n#define typeof nothing\n#define __typeof__(x) nothing\n", "gcc", "cannot tell whether access/gist.h has"),
    ],
)
def test_what_cannot_be_told_is_an_error(tmp_path, gist, compiler, says):
    result = probe(tmp_path, gist, compiler=compiler)
    assert result.returncode == 1
    assert says in result.stderr


def make(prefix, folder, includes, target: str) -> None:
    """Make a target of the Makefile in a folder, with the server's headers in `includes`."""
    command = ["make", "--silent", "-C", folder, "-f", REPO / "Makefile", f"PG_CONFIG={program_path(prefix, 'pg_config')}", "WERROR=1"]
    made = subprocess.run([*command, f"includedir_server={includes}", target], env=program_env(prefix), text=True, capture_output=True)
    assert made.returncode == 0, made.stderr


def test_a_server_whose_headers_have_changed_under_the_same_number_is_compiled_for_anew(prefix, tmp_path):
    includes, objects = tmp_path / "server", tmp_path / "objects"
    shutil.copytree(run_program(prefix, "pg_config", "--includedir-server").stdout.strip(), includes)
    objects.mkdir()
    gist = includes / "access/gist.h"
    without = re.sub(r"#define GistMarkTuplesDeleted.*\n", "", gist.read_text())
    other = {0: without, 1: f"{without}\n#define GistMarkTuplesDeleted(page) (GistPageGetOpaque(page)->flags |= F_TUPLES_DELETED)\n"}
    for has, text in other.items():
        gist.write_text(text)
        make(prefix, objects, includes, "src/engine/index/gist_vacuum.o")
        assert f"#define SERVER_HAS_GistMarkTuplesDeleted {has}\n" in (objects / "server_features.h").read_text()
    made_at = (objects / "src/engine/index/gist_vacuum.o").stat().st_mtime_ns
    make(prefix, objects, includes, "src/engine/index/gist_vacuum.o")
    assert (objects / "src/engine/index/gist_vacuum.o").stat().st_mtime_ns == made_at


def test_32_bit_servers_are_refused(prefix):
    server = run_program(prefix, "pg_config", "--includedir-server").stdout.strip()
    source = '#include "postgres.h"\n{}#include "compat.h"\n'
    command = ["gcc", "-fsyntax-only", f"-I{server}", f"-I{REPO}/src", f"-I{build.build_folder(prefix)}", "-D_GNU_SOURCE", "-x", "c", "-"]
    compiled = subprocess.run(command, input=source.format(""), text=True, capture_output=True)
    assert compiled.returncode == 0, compiled.stderr
    small = "#undef SIZEOF_VOID_P\n#define SIZEOF_VOID_P 4\n"
    refused = subprocess.run(command, input=source.format(small), text=True, capture_output=True)
    assert refused.returncode != 0 and "pg_cyclone supports 64-bit systems only" in refused.stderr


def test_what_is_used_is_listed(prefix, pg_major):
    used = server_use.list_use(prefix, build.build_folder(prefix) / "src", pg_major)
    assert "heap_page_prune_and_freeze(" in used["function heap_page_prune_and_freeze"]
    assert int(used["struct PruneFreezeResult: its size"]) > int(used["struct PruneFreezeResult: deadoffsets"]) > 0
    assert used["macro PG_VERSION_NUM"].startswith(str(pg_major))
    names = ("variable VacuumCostBalance", "inline function heap_getattr", "macro ItemIdIsDead", "constant PRUNE_VACUUM_SCAN")
    assert [name for name in names if name not in used] == []
    other = {**used, "function gone": "", "struct PruneFreezeResult: its size": "1"}
    assert check_minors.difference(other, used) == "function gone, struct PruneFreezeResult: its size"


def test_no_other_library_headers_are_needed(tmp_path, server_headers):
    """gcc, make and the headers of the server and of libc are enough to build: OpenSSL's, for example, are in a package of their own."""
    libc = {"arpa", "asm", "asm-generic", "bits", "gnu", "linux", "net", "netinet", "rpc", "sys"}
    features = subprocess.run([REPO / "scripts/probe-server", "gcc", f"-I{server_headers}"], check=True, capture_output=True)
    (tmp_path / "server_features.h").write_bytes(features.stdout)
    command = ["gcc", "-M", "-MG", "-D_GNU_SOURCE", f"-I{REPO / 'src'}", f"-I{server_headers}", f"-I{tmp_path}"]
    found = subprocess.run(command + sorted(map(str, (REPO / "src").rglob("*.c"))), check=True, capture_output=True, text=True).stdout
    folders = {parts[1] for parts in re.findall(r"/usr/include/(x86_64-linux-gnu/|aarch64-linux-gnu/)?([^/\s]+)/", found)}
    missing = {part for part in re.findall(r"\s([a-z]\w*)/\w+\.h", found) if not (REPO / "src" / part).is_dir()}  # not on this machine
    assert "bits" in folders
    assert folders | missing <= libc
