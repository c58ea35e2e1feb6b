"""Runs PostgreSQL's own regression and isolation tests on a server where pg_cyclone takes every VACUUM.

`make check-core PGSRC=<source tree of PostgreSQL 17, 18 or 19>`, three times: as it comes, with workers for every table
however small, and with autovacuum by pg_cyclone, too, every second. PostgreSQL is the ready-made one, or the prefix that
CYCLONE_PG17, CYCLONE_PG18 or CYCLONE_PG19 names; its minor version should be
that of the sources. A difference is a failure unless it is in EXPECTED, where its reason is.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cyclone_lab import build
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO, as_server_user, hand_over, program_env, program_path, run_program

CONFIG = {
    "shared_preload_libraries": "pg_cyclone",
    "cyclone.audit": 1,
    "fsync": "off",
    "max_prepared_transactions": 2,  # as the server's own tests have it
    "max_worker_processes": 32,
    "max_parallel_workers": 24,
}
RUNS = {
    "plain": {},
    "workers": {"cyclone.debug_workers": 2},
    "autovacuum": {"cyclone.debug_workers": 1, "cyclone.autovacuum": "on", "autovacuum_naptime": "1s"},
}
# Lines of the differences, without what begins with "---", "+++" or "@@", and why they are right
EXPECTED = {
    "VACUUM FULL takes PARALLEL": [
        "-ERROR:  VACUUM FULL cannot be performed in parallel",
    ],
}


def major_version(source: Path) -> int:
    """Return the major version of a source tree."""
    found = re.search(r"^PACKAGE_VERSION='(\d+)", (source / "configure").read_text(), re.MULTILINE)
    return int(found[1])


def build_library(source: Path, prefix: Path, folder: Path) -> None:
    """Build the C functions of the regression tests into `folder`, with those of contrib/spi."""
    includes = ["-I", run_program(prefix, "pg_config", "--includedir-server").stdout.strip()]
    command = ["cc", "-O1", "-fPIC", "-shared", "-w", *includes, source / "src/test/regress/regress.c"]
    subprocess.run([*command, "-o", folder / "regress.so"], check=True)
    libraries = Path(run_program(prefix, "pg_config", "--pkglibdir").stdout.strip())
    for name in ("autoinc", "refint"):
        shutil.copy(libraries / f"{name}.so", folder)


def unexpected(differences: str) -> list[str]:
    """Return the lines of a file of differences that EXPECTED doesn't have."""
    known = {line for lines in EXPECTED.values() for line in lines}
    return [line for line in differences.splitlines()
            if line[:1] in "+-" and line[:3] not in ("+++", "---") and line.strip() and line not in known]  # fmt: skip


def run_suite(cluster: Cluster, driver: str, inputs: Path, schedule: Path, folder: Path, *options: str) -> list[str]:
    """Run one suite; return what is wrong, as lines."""
    folder.mkdir()
    hand_over(folder)
    command = [program_path(cluster.prefix, driver), f"--bindir={cluster.prefix / 'bin'}", f"--inputdir={inputs}",
               f"--expecteddir={inputs}", f"--outputdir={folder}", f"--schedule={schedule}", f"--host={cluster.socket_dir}",
               "--user=postgres", "--max-concurrent-tests=20", *options]  # fmt: skip
    env = program_env(cluster.prefix, PGPASSWORD="")
    with open(folder / "output", "w") as output:
        done = subprocess.run(command, env=env, stdout=output, stderr=subprocess.STDOUT, **as_server_user())
    failed = re.findall(r"^not ok \d+ +[-+] (\S+)", (folder / "output").read_text(), re.MULTILINE)
    file = folder / "regression.diffs"
    wrong = unexpected(file.read_text(errors="replace")) if file.exists() else []
    if done.returncode != 0 and not failed:
        wrong.append(f"{driver} ended with status {done.returncode}: see {folder / 'output'}")
    print(f"  {driver}: {len(failed)} with differences ({', '.join(failed) or 'none'}), {len(wrong)} unexpected lines")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="source tree of PostgreSQL")
    options = parser.parse_args()
    major = major_version(options.source)
    prefix = build.install(major, debug_points=True)
    results = REPO / "build" / "check-core" / str(major)
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    wrong = []
    with tempfile.TemporaryDirectory(prefix="cyclone-core-") as home:
        home = Path(home)
        home.chmod(0o755)
        for name in ("regress", "isolation"):
            shutil.copytree(options.source / "src" / "test" / name, home / name, ignore=shutil.ignore_patterns("*.o"))
        build_library(options.source, prefix, home)
        for run, settings in RUNS.items():
            print(f"{run}: {settings or 'as it comes'}")
            with Cluster.create(prefix, {**CONFIG, **settings}) as cluster:
                cluster.start()
                regress, isolation = home / "regress", home / "isolation"
                wrong += run_suite(cluster, "pg_regress", regress, regress / "parallel_schedule", home / f"{run}-regress",
                                   f"--dlpath={home}")  # fmt: skip
                wrong += run_suite(cluster, "pg_isolation_regress", isolation, isolation / "isolation_schedule",
                                   home / f"{run}-isolation")  # fmt: skip
                if re.search("PANIC|TRAP:|was terminated by signal", cluster.log):
                    wrong.append(f"{run}: the server crashed")
                (results / f"{run}.log").write_text(cluster.log)
            for suite in ("regress", "isolation"):
                for name in ("output", "regression.diffs"):
                    if (home / f"{run}-{suite}" / name).exists():
                        shutil.copy(home / f"{run}-{suite}" / name, results / f"{run}-{suite}-{name}")
    print("\n".join(wrong[:100]))
    print(f"outputs and differences: {results}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
