"""What others make packages from: META.json as the PGXN Meta Spec 1.0 has it, the archive, and the list of files in it."""

import json
import os
import re
import shutil
import subprocess
import zipfile

from cyclone_lab.postgres import REPO, run_program

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
        # whoever owns the repository
        env = {**os.environ, "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        made = subprocess.run(["make", "--silent", "-C", REPO, "dist"], text=True, capture_output=True, env=env)
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


def test_facts_that_go_stale(pg_major, prefix):
    """SECURITY.md sends nobody to a placeholder; the documents say that 19 is a release candidate just as long as tests run on one."""
    has_placeholder = ".invalid" in json.dumps(META["resources"])
    assert has_placeholder == ("has no address\nyet" in (REPO / "SECURITY.md").read_text())
    assert has_placeholder == (".invalid" in META["maintainer"])
    if pg_major == 19:
        version = run_program(prefix, "pg_config", "--version").stdout
        for page in ("docs/reliability.md", "test/proofs.md"):
            assert ("rc" in version) == ("release candidate" in (REPO / page).read_text()), f"{page} and {version}"
