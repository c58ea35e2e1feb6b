"""Runs PostgreSQL's own tests on servers where pg_cyclone takes every VACUUM, with workers, and each page is audited.

`make check-core PGSRC=<source tree of PostgreSQL 17, 18 or 19> [SUITES="regress recovery/02*"]`. PostgreSQL is the ready-made one, or the
prefix that CYCLONE_PG17, CYCLONE_PG18 or CYCLONE_PG19 names: best one with assertions and injection points; its minor version should be that
of the sources. Regression and isolation tests run three times: as it comes, with workers for every table however small, and with autovacuum
by pg_cyclone, too, every second. Those of TAP, which need Perl's IPC::Run, run with workers and autovacuum by pg_cyclone. What differs by
design is in EDITS. A test of TAP that fails is run once more without pg_cyclone, which tells where to look.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from fnmatch import fnmatch
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
TAP_CONFIG = {"shared_preload_libraries": "pg_cyclone", "cyclone.audit": 1, "cyclone.debug_workers": 2, "cyclone.autovacuum": "on"}
SQL = ("amcheck", "bloom", "pageinspect", "pg_freespacemap", "pg_surgery", "pg_visibility")  # of contrib
TAP = {
    "recovery": "src/test/recovery",
    "subscription": "src/test/subscription",
    "amcheck-tap": "contrib/amcheck",
    "pg_visibility-tap": "contrib/pg_visibility",
    "pg_amcheck": "src/bin/pg_amcheck",
    "scripts": "src/bin/scripts",
    "xid_wraparound": "src/test/modules/xid_wraparound",
}
MODULES = ("injection_points", "xid_wraparound")
HEAPS = ("regress", "isolation")
# What differs by design: in these files the first text becomes the second
EDITS = [
    # VACUUM FULL takes PARALLEL
    ("src/test/regress/expected/vacuum.out", "ERROR:  VACUUM FULL cannot be performed in parallel\n", ""),
    # pg_cyclone is a provider of labels, which that test wants to be without
    ("src/test/regress/parallel_schedule", " security_label", ""),
    # the libraries that it loads would take the place of ours
    ("src/test/recovery/t/027_stream_regress.pl", "'pg_stat_statements'\n", "'pg_stat_statements, pg_cyclone'\n"),
    # dead items take less memory, and the test waits for a second round of index vacuuming
    ("src/test/recovery/t/*_vacuum_horizon_floor.pl", "my $nrows = 2000;", "my $nrows = 400000;"),
    # empty pages of a btree are deleted after the pass, from right to left, so that the half-dead one isn't the leftmost
    ("contrib/amcheck/t/005_pitr.pl", "qr/interrupted page deletion detected/", "qr/block 2 .* concurrently deleted/"),
]


@dataclass
class CoreTests:
    """PostgreSQL's tests, copied to a folder of their own, for the server in `prefix`."""

    source: Path
    prefix: Path
    home: Path
    results: Path
    wanted: list[str]
    wrong: list[str] = field(default_factory=list)

    def wants(self, name: str) -> bool:
        return not self.wanted or any(fnmatch(name, pattern) or fnmatch(name, f"{pattern}/*") for pattern in self.wanted)

    def prepare(self) -> None:
        """Copy the tests, without the differences that are by design, and build their C functions and modules."""
        folders = ["src/test/perl", *(f"src/test/{name}" for name in HEAPS), *(f"contrib/{name}" for name in SQL), *TAP.values()]
        for folder in {*folders, *(f"src/test/modules/{name}" for name in MODULES)}:
            shutil.copytree(self.source / folder, self.home / folder, ignore=shutil.ignore_patterns("*.o", "*.so", "tmp_check"))
        for pattern, old, new in EDITS:
            for file in self.home.glob(pattern):
                assert old in file.read_text(), f"{file} doesn't have {old}"
                file.write_text(file.read_text().replace(old, new))
        includes = ["-I", run_program(self.prefix, "pg_config", "--includedir-server").stdout.strip()]
        command = ["cc", "-O1", "-fPIC", "-shared", "-w", *includes, self.home / "src/test/regress/regress.c"]
        subprocess.run([*command, "-o", self.home / "regress.so"], check=True)
        libraries = Path(run_program(self.prefix, "pg_config", "--pkglibdir").stdout.strip())
        for name in ("autoinc", "refint"):
            shutil.copy(libraries / f"{name}.so", self.home)
        for name in MODULES:
            command = ["make", "--silent", "USE_PGXS=1", f"PG_CONFIG={program_path(self.prefix, 'pg_config')}", "install"]
            subprocess.run(command, cwd=self.home / "src/test/modules" / name, env=program_env(self.prefix), check=True)

    def run_sql(self, run: str, settings: dict) -> None:
        """Run the tests in SQL on a server with these settings, besides the usual ones."""
        print(f"{run}: {settings or 'as it comes'}", flush=True)
        with Cluster.create(self.prefix, {**CONFIG, **settings}) as cluster:
            cluster.start()
            for suite in HEAPS:
                inputs = self.home / "src/test" / suite
                schedule = inputs / ("parallel_schedule" if suite == "regress" else f"{suite}_schedule")
                driver = "pg_regress" if suite == "regress" else f"pg_{suite}_regress"
                self._run_driver(cluster, driver, f"{suite}/{run}", inputs, f"--schedule={schedule}", f"--dlpath={self.home}")
            for suite in SQL:
                inputs = self.home / "contrib" / suite
                [tests] = re.findall(r"^REGRESS = (.*(?:\\\n.*)*)", (inputs / "Makefile").read_text(), re.MULTILINE)
                self._run_driver(cluster, "pg_regress", f"{suite}/{run}", inputs, "--dbname=contrib_regression", *tests.replace("\\", "").split())
            if re.search("PANIC|TRAP:|was terminated by signal", cluster.log):
                self.wrong.append(f"{run}: the server crashed")
            (self.results / f"{run}.log").write_text(cluster.log)

    def _run_driver(self, cluster: Cluster, driver: str, name: str, inputs: Path, *options: str) -> None:
        """Run one suite by PostgreSQL's driver, if it is wanted."""
        if not self.wants(name):
            return
        folder = self.home / name.replace("/", "-")
        folder.mkdir()
        hand_over(folder)
        command = [program_path(self.prefix, driver), f"--bindir={self.prefix / 'bin'}", f"--inputdir={inputs}", f"--expecteddir={inputs}",
                   f"--outputdir={folder}", f"--host={cluster.socket_dir}", "--user=postgres", "--max-concurrent-tests=20", *options]  # fmt: skip
        with open(folder / "output", "w") as output:
            done = subprocess.run(command, env=program_env(self.prefix, PGPASSWORD=""), stdout=output, stderr=subprocess.STDOUT, **as_server_user())
        tests = re.findall(r"^(not )?ok \d+ +[-+] (\S+)", (folder / "output").read_text(), re.MULTILINE)
        failed = [test for failed, test in tests if failed]
        self._say(name, f"{len(tests)} tests" + f", differences in {', '.join(failed)}" * bool(failed), done.returncode == 0 and bool(tests))
        for file in filter(Path.exists, (folder / "output", folder / "regression.diffs")):
            shutil.copy(file, self.results / f"{folder.name}-{file.name}")

    def run_tap(self, suite: str) -> None:
        """Run the wanted tests of a TAP suite, one by one."""
        folder = self.home / TAP[suite]
        for test in sorted((folder / "t").glob("*.pl")):
            name = f"{suite}/{test.stem}"
            if self.wants(name):
                sound = self._prove(test, f"{suite}-{test.stem}", TAP_CONFIG)
                other = "" if sound or self._prove(test, f"{suite}-{test.stem}-without", {}) else "without pg_cyclone, too"
                self._say(name, other, sound)

    def _prove(self, test: Path, name: str, config: dict) -> bool:
        """Run a test with servers of these settings; tell whether it passes."""
        with tempfile.TemporaryDirectory(prefix="core-") as data:
            hand_over(Path(data))
            settings = Path(data) / "settings"
            settings.write_text("".join(f"{key} = '{value}'\n" for key, value in config.items()))
            settings.chmod(0o644)
            configured = run_program(self.prefix, "pg_config", "--configure").stdout
            env = program_env(self.prefix, PG_REGRESS=str(program_path(self.prefix, "pg_regress")), TEMP_CONFIG=str(settings), PGPORT="65432",
                              PATH=f"{self.prefix / 'bin'}:{os.environ['PATH']}", REGRESS_SHLIB=str(self.home / "regress.so"),
                              PG_TEST_EXTRA="xid_wraparound", TESTDATADIR=data, TESTLOGDIR=f"{data}/log", top_builddir=data,
                              enable_injection_points="yes" if "--enable-injection-points" in configured else "no",
                              with_icu="yes" if "--with-icu" in configured else "no", HOME=data)  # fmt: skip
            command = ["prove", "--verbose", "-I", self.home / "src/test/perl", f"t/{test.name}"]
            with open(self.results / f"{name}.output", "w") as output:
                user = {**as_server_user(), "cwd": test.parent.parent}
                done = subprocess.run(command, env=env, stdout=output, stderr=subprocess.STDOUT, **user)
            if done.returncode != 0:
                with open(self.results / f"{name}.output", "a") as output:
                    for log in (*Path(data).glob("*.diffs"), *sorted(Path(data, "log").iterdir())):
                        output.write(f"\n{log.name}\n{log.read_text(errors='replace')}")
            return done.returncode == 0

    def _say(self, name: str, what: str, sound: bool) -> None:
        print(f"  {name}: {'passed' if sound else 'FAILED'}{what and f', {what}'}", flush=True)
        if not sound:
            self.wrong.append(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="source tree of PostgreSQL")
    parser.add_argument("suites", nargs="*", help="patterns of suites, or of SUITE/RUN and SUITE/TEST (default: all)")
    options = parser.parse_args()
    major = int(re.search(r"^PACKAGE_VERSION='(\d+)", (options.source / "configure").read_text(), re.MULTILINE)[1])
    prefix = build.install(major, debug_points=True)
    results = REPO / "build" / "check-core" / str(major)
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cyclone-core-") as home:
        Path(home).chmod(0o755)
        tests = CoreTests(options.source, prefix, Path(home), results, options.suites)
        tests.prepare()
        for run, settings in RUNS.items():
            if any(tests.wants(f"{suite}/{run}") for suite in (*HEAPS, *SQL)):
                tests.run_sql(run, settings)
        for suite in TAP:
            tests.run_tap(suite)
    print(f"{len(tests.wrong)} failed: {', '.join(tests.wrong) or 'none'}; outputs, differences and logs: {results}")
    return 1 if tests.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
