"""What others make packages from: META.json as the PGXN Meta Spec 1.0 has it, the archive, debian/, the RPM's spec and the Dockerfiles.

That the packages of debian/ build, work and go away again, and that the Dockerfiles' steps do what they should, is for `make check-debs`,
as it takes root, a mirror of Debian and some minutes.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from cyclone_lab.postgres import REPO, as_server_user, find_or_fetch, program_env, program_path, run_program
from cyclone_lab.versions import MAJORS

EVERY_VERSION = "the RPM needs the minor version of its server"

META = json.loads((REPO / "META.json").read_text())
SEMANTIC_VERSION = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-?[A-Za-z][0-9A-Za-z-]*)?"
TERM = r"[^\s/\\\x00-\x1f\x7f]{2,}"
REQUIRED = {"name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"}
OPTIONAL = {"description", "generated_by", "tags", "no_index", "prereqs", "release_status", "resources"}


def is_uri(text: str) -> bool:
    return re.fullmatch(r"(https?|git|ssh)://[^\s/]+(/\S*)?", text) is not None


def test_meta_is_as_its_specification_says():
    assert REQUIRED <= set(META) <= REQUIRED | OPTIONAL
    assert re.fullmatch(TERM, META["name"]) and re.fullmatch(SEMANTIC_VERSION, META["version"])
    assert all(META[field].strip() for field in ("abstract", "description", "maintainer", "generated_by"))
    assert re.fullmatch(r".+ <\S+@\S+>", META["maintainer"])
    assert META["license"] and all(is_uri(uri) for uri in META["license"].values())
    assert META["release_status"] in ("stable", "testing", "unstable")
    assert re.fullmatch(r"1\.0\.\d+", META["meta-spec"]["version"]) and is_uri(META["meta-spec"]["url"])
    assert len(META["tags"]) == len(set(META["tags"])) and all(re.fullmatch(r"[^/\\\x00-\x1f]{1,255}", tag) for tag in META["tags"])

    for name, extension in META["provides"].items():
        assert re.fullmatch(TERM, name) and {"file", "version"} <= set(extension) <= {"file", "version", "abstract", "docfile"}
        assert re.fullmatch(SEMANTIC_VERSION, extension["version"])
    for phase, relations in META["prereqs"].items():
        assert phase in ("configure", "build", "test", "runtime", "develop")
        for relation, needs in relations.items():
            assert relation in ("requires", "recommends", "suggests", "conflicts")
            for name, versions in needs.items():
                assert re.fullmatch(TERM, name)
                assert all(re.fullmatch(rf"((>=|<=|>|<|==|!=) *)?{SEMANTIC_VERSION}", each.strip()) for each in versions.split(","))

    resources = META["resources"]
    assert set(resources) == {"homepage", "bugtracker", "repository"} and is_uri(resources["homepage"])
    assert set(resources["bugtracker"]) == {"web", "mailto"} and is_uri(resources["bugtracker"]["web"])
    assert re.fullmatch(r"\S+@\S+", resources["bugtracker"]["mailto"])
    assert set(resources["repository"]) == {"url", "web", "type"} and resources["repository"]["type"] == "git"
    assert is_uri(resources["repository"]["url"]) and is_uri(resources["repository"]["web"])


def test_the_archive_has_what_a_build_needs():
    if (REPO / ".git").exists() and shutil.which("git"):
        # whichever user owns the repository
        env = {**os.environ, "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        made = subprocess.run(["make", "--silent", "--no-print-directory", "-C", REPO, "dist"], text=True, capture_output=True, env=env)
        assert made.returncode == 0, made.stderr
        top = f"{META['name']}-{META['version']}/"
        names = zipfile.ZipFile(REPO / made.stdout.strip()).namelist()
        assert all(name.startswith(top) for name in names)
        files = {name.removeprefix(top) for name in names if not name.endswith("/")}
        command = ["git", "-C", REPO, "ls-tree", "-r", "--name-only", "HEAD"]
        listing = subprocess.run(command, text=True, capture_output=True, check=True, env=env)
        assert files == {name for name in listing.stdout.split() if not name.startswith((".ci/", ".git"))}
    else:  # there is no repository, as in an unpacked archive, or no git
        files = {str(path.relative_to(REPO)) for path in REPO.rglob("*") if path.is_file()}
    provided = META["provides"]["pg_cyclone"]
    assert {"META.json", "Makefile", "pg_cyclone.control", "LICENSE", provided["file"], provided["docfile"]} <= files
    assert {"debian/control", "debian/rules", "debian/pgversions", "packaging/pg_cyclone.spec", "packaging/Dockerfile"} <= files
    assert {"test/sql/extension.sql", "test/expected/extension.out"} <= files  # for `make installcheck`


def text(name: str) -> str:
    return (REPO / name).read_text()


def stanzas(name: str) -> list[dict[str, str]]:
    """Return the stanzas of a file of Debian's."""
    return [dict(re.findall(r"^([\w-]+):(.*(?:\n .*)*)", part, re.MULTILINE)) for part in text(name).split("\n\n")]


def words(description: str) -> str:
    return " ".join(description.replace("\n .\n", "\n").split())


def test_debians_control_is_made_of_control_in():
    """As `pg_buildext updatecontrol` makes it where all versions are supported."""
    assert text("debian/pgversions").split() == [str(major) for major in MAJORS]
    source, package, tools = text("debian/control.in").rstrip("\n").split("\n\n")
    packages = [package.replace("PGVERSION", str(major)) for major in MAJORS]
    assert text("debian/control") == "\n\n".join([source, *packages, tools]) + "\n"


def console() -> dict:
    return tomllib.loads(text("console/pyproject.toml"))["project"]


def test_packages_tell_the_same():
    """Version, description and addresses are one, wherever they stand."""
    spec, version = text("packaging/pg_cyclone.spec"), META["version"]
    assert f"default_version = '{version}'" in text("pg_cyclone.control") and console()["version"] == version
    assert text("debian/changelog").startswith(f"pg-cyclone ({version}-") and re.search(rf"^Version:\s+{version}$", spec, re.MULTILINE)
    assert f" - {version}-" in spec and f"pg-cyclone:{version}-" in text("packaging/Dockerfile.image-volume")

    assert set(re.findall(r"pg-cyclone[-:](\d[\d.]*\d)", text("docs/packages.md"))) == {version}

    described = [words(part) for part in re.split(r"^%description.*", spec, flags=re.MULTILINE)[1:]]
    for stanza, told in zip(stanzas("debian/control.in")[1:], (described[0], described[2]), strict=True):
        assert told.startswith(words(stanza["Description"].partition("\n")[2]))
        assert max(map(len, stanza["Description"].splitlines()[1:])) < 80

    web, git, home = META["resources"]["repository"]["web"], META["resources"]["repository"]["url"], META["resources"]["homepage"]
    source = stanzas("debian/control.in")[0]
    assert [source[field].strip() for field in ("Vcs-Browser", "Vcs-Git", "Homepage", "Maintainer")] == [web, git, home, META["maintainer"]]
    assert text("debian/watch").splitlines()[1].startswith(web)
    assert re.search(rf"^URL:\s+{re.escape(home)}$", spec, re.MULTILINE) and META["maintainer"] in spec
    assert home in text("debian/copyright") and META["maintainer"] in text("debian/copyright")


def test_versions_of_postgresql_that_are_named():
    """Each list of them has those that it is for."""
    enumeration = f"PostgreSQL {', '.join(str(major) for major in MAJORS[:-1])} and {MAJORS[-1]}"
    for name in ("README.md", "SECURITY.md", "docs/install.md", "debian/changelog"):
        told = " ".join(text(name).replace(f"or {MAJORS[-1]}", f"and {MAJORS[-1]}").split())
        assert enumeration in told, name
    assert META["prereqs"]["runtime"]["requires"]["PostgreSQL"] == f">= {MAJORS[0]}.0.0, < {MAJORS[-1] + 1}.0.0"


def rpmspec(prefix: Path, *options: str) -> str:
    if not shutil.which("rpmspec"):
        pytest.xfail("NOT TESTED: there is no rpmspec here (Debian's package rpm)")
    command = ["rpmspec", *rpm_defines(prefix), *options, REPO / "packaging/pg_cyclone.spec"]
    result = subprocess.run(command, text=True, capture_output=True, env=program_env(prefix))
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def rpm_defines(prefix: Path) -> list[str]:
    """Return what makes rpm see the server in `prefix`, which isn't where its packages are."""
    major = re.search(r"\d+", run_program(prefix, "pg_config", "--version").stdout)[0]
    return [f"--define=pgmajorversion {major}", f"--define=pginstdir {prefix.resolve()}"]


def test_the_rpms_spec(prefix, pg_major):
    version = re.search(r"PostgreSQL ([\d.]+)", run_program(prefix, "pg_config", "--version").stdout)[1]
    needed = rpmspec(prefix, "--query", "--requires").splitlines()
    assert f"postgresql{pg_major}-server >= {version}" in needed
    names = rpmspec(prefix, "--query", "--queryformat=%{NAME} ").split()
    assert names == [f"pg_cyclone_{pg_major}", "pg_cyclone-tools"]
    assert "llvmjit" in rpmspec(prefix, "--define=llvm 1", "--query")
    assert "with_llvm=no" in rpmspec(prefix, "--parse") and "with_llvm=yes" in rpmspec(prefix, "--define=llvm 1", "--parse")


@pytest.mark.full
def test_the_rpms(prefix, pg_major, tmp_path):
    """They are built of the archive, and have each file."""
    if not shutil.which("rpmbuild"):
        pytest.xfail("NOT TESTED: there is no rpmbuild here (Debian's package rpm)")
    plain = find_or_fetch(pg_major).resolve()  # as its pg_config calls it
    if run_program(plain, "pg_config", "--pkglibdir").stdout.strip() != str(plain / "lib"):
        pytest.xfail("NOT TESTED: this server's folders are not those of an RPM")
    env = {**program_env(plain), "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    subprocess.run(["make", "--silent", "--no-print-directory", "-C", REPO, "dist"], check=True, capture_output=True, env=env)
    command = ["rpmbuild", "-bb", "--nodeps", f"--define=_sourcedir {REPO / 'build'}", f"--define=_topdir {tmp_path}", *rpm_defines(plain)]
    built = subprocess.run([*command, REPO / "packaging/pg_cyclone.spec"], text=True, capture_output=True, env=env)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-3000:]
    packages = {path.name.split("-0.")[0]: path for path in tmp_path.rglob("*.rpm")}
    assert {f"pg_cyclone_{pg_major}", "pg_cyclone-tools"} <= set(packages)
    listed = {name: subprocess.run(["rpm", "-qlp", path], text=True, capture_output=True, check=True).stdout for name, path in packages.items()}
    for part in ("lib/pg_cyclone.so", "extension/pg_cyclone.control", f"extension/pg_cyclone--{META['version']}.sql", "install.md"):
        assert part in listed[f"pg_cyclone_{pg_major}"]
    for part in ("/usr/bin/cyclone-top", "/usr/bin/cyclone-report", "cyclone_console/look.py", "monitoring/alerts.yml", "monitoring/grafana.json"):
        assert part in listed["pg_cyclone-tools"]


def dockerfile_steps(name: str) -> list[str]:
    return re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text(name), flags=re.MULTILINE)).splitlines()


@pytest.mark.parametrize("name", ["packaging/Dockerfile", "packaging/Dockerfile.image-volume"])
def test_dockerfiles(name):
    """They build with the headers of the image's server, and then see whether the engine is on in it."""
    steps = [step for step in dockerfile_steps(name) if step]
    commands = [re.sub(r"--mount=\S+ ", "", step.removeprefix("RUN ")) for step in steps if step.startswith("RUN ")]
    for command in commands:
        assert subprocess.run(["sh", "-n", "-c", command]).returncode == 0, command
    [install] = [command for command in commands if "apt-get install" in command]
    assert '"postgresql-server-dev-${PG_MAJOR}=${PG_VERSION}"' in install
    [check] = [command for command in commands if "packaging/check-engine" in command]
    assert commands[-1] == check, "what is checked is what there will be"


def check_engine(prefix: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run packaging/check-engine as the server's user, who may not be able to read it."""
    command = ["sh", "-s", program_path(prefix, "postgres").parent, "shared_preload_libraries=pg_cyclone", *arguments]
    env = {name: value for name, value in program_env(prefix).items() if name != "TMPDIR"}
    with (REPO / "packaging" / "check-engine").open() as program:
        return subprocess.run(command, stdin=program, text=True, capture_output=True, env=env, **as_server_user())


@pytest.mark.once
def test_check_engine(prefix):
    """The command that images and packages call says whether the engine is on."""
    command = 'test "$(psql --no-psqlrc --tuples-only --no-align --dbname=postgres --command="SELECT count(*) FROM checked")" = 5000'
    result = check_engine(prefix, "--", "sh", "-c", command)
    assert result.returncode == 0 and result.stdout.startswith("the engine is on: postgres"), result.stderr
    for setting, said in (("cyclone.debug_failed_probe=1", "does not fit this server"), ("cyclone.enabled=off", "VACUUM failed"),
                          ("no_such_setting=1", "doesn't start")):
        result = check_engine(prefix, setting)
        assert result.returncode == 1 and "check-engine: " in result.stderr and said in result.stderr, setting
    assert check_engine(prefix, "--", "false").returncode == 1


@pytest.mark.parametrize("program", ["cyclone-top", "cyclone-report"])
def test_programs_of_the_packages(program, tmp_path):
    """They find their modules where debian/ and the spec put them, here the repository's."""
    assert "console/cyclone_console usr/share/pg-cyclone-tools\n" in text("debian/pg-cyclone-tools.install")
    source = text(f"packaging/{program}")
    ast.parse(source)
    assert "/usr/share/pg-cyclone-tools" in source and source.startswith("#!/usr/bin/python3 -I\n")
    module, function = console()["scripts"][program].split(":")
    assert f"from {module} import {function}" in source
    assert module.split(".")[0] in tomllib.loads(text("console/pyproject.toml"))["tool"]["setuptools"]["packages"]
    assert os.access(REPO / "packaging" / program, os.X_OK) and f"packaging/{program} usr/bin\n" in text("debian/pg-cyclone-tools.install")
    (tmp_path / program).write_text(source.replace("/usr/share/pg-cyclone-tools", str(REPO / "console")))
    result = subprocess.run([sys.executable, "-I", tmp_path / program, "--help"], text=True, capture_output=True)
    assert result.returncode == 0 and f"usage: {program}" in result.stdout


@pytest.mark.once
def test_relative_paths(prefix, pg_major, tmp_path):
    """Of pg_config and DESTDIR: from the folder where make is called, as with any extension."""
    copy, server = tmp_path / "pg_cyclone", tmp_path / "server"
    server.symlink_to(prefix.resolve())
    (copy / "build" / str(pg_major)).mkdir(parents=True)
    for name in ("Makefile", "pg_cyclone.control", "src", "sql", "scripts", "test"):
        (copy / name).symlink_to(REPO / name)
    command = ["make", "-n", "install", "PG_CONFIG=../server/bin/pg_config", "DESTDIR=../stage"]
    made = subprocess.run(command, cwd=copy, text=True, capture_output=True, env=program_env(prefix))
    assert made.returncode == 0, made.stderr
    assert f"'{tmp_path}/stage/" in made.stdout and "../stage" not in made.stdout.replace("DESTDIR=../stage", "")
