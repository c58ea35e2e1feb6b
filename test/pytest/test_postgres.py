"""Where the tests' servers come from."""

import os

import pytest

from cyclone_lab import debian, postgres


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No package has a PostgreSQL, wherever it is looked for."""

    def no_wheel(major, folder, minor):
        raise postgres.NoWheel(f"no wheel of {major}")

    def not_in_debian(major, tree, libraries, version):
        assert os.listdir(libraries) == []
        raise debian.NotInDebian("404 Not Found")

    monkeypatch.setattr(postgres, "REPO", tmp_path)
    monkeypatch.setattr(postgres, "_download_wheel", no_wheel)
    monkeypatch.setattr(debian, "fetch", not_in_debian)
    monkeypatch.delenv("CYCLONE_PG19", raising=False)
    return tmp_path


def test_a_version_that_is_not_to_be_had_is_left_out_and_said(nowhere):
    versions, missing = postgres.available([17, 18, 19])
    assert versions == [17, 18]
    assert list(missing) == [19]
    assert "no wheel of 19, and 404 Not Found. Set CYCLONE_PG19" in missing[19]
    assert os.listdir(nowhere / ".postgres") == []


def test_a_version_that_is_named_is_taken(nowhere, monkeypatch):
    monkeypatch.setenv("CYCLONE_PG19", str(nowhere))
    monkeypatch.setattr(postgres, "run_program", lambda *arguments: type("Result", (), {"stdout": "PostgreSQL 19.0\n"}))
    assert postgres.available([19]) == ([19], {})


def test_a_tree_whose_programs_have_lost_their_libraries_is_fetched_anew(tmp_path, monkeypatch):
    def put_pg_config(major, prefix):
        (prefix / "bin").mkdir(parents=True)
        program = prefix / "bin" / "pg_config"
        program.write_text("#!/bin/sh\necho PostgreSQL 19.0\n")
        program.chmod(0o755)

    monkeypatch.setattr(postgres, "REPO", tmp_path)
    monkeypatch.setattr(postgres, "_fetch", put_pg_config)
    monkeypatch.delenv("CYCLONE_PG19", raising=False)
    prefix = postgres.find_or_fetch(19)
    assert prefix == tmp_path / ".postgres" / "19"
    (prefix / "bin" / "pg_config").write_text(f"#!{tmp_path}/moved/ld-linux.so\n")  # the kernel says that there is no such file
    assert postgres.find_or_fetch(19) == prefix
    assert (prefix / "bin" / "pg_config").read_text().startswith("#!/bin/sh")
