#!/usr/bin/env python3
"""Builds the packages in bare systems of Debian's releases, and uses them in others: `make check-debs`.

For each release debootstrap makes a system in a folder. In a copy of it the source package and the packages are built as an ordinary user,
with their tests, where nothing is installed but what debian/control names; lintian may find no error, and the tests of debian/tests run on
the installed packages. In another copy they are installed, used by debian/tests/engine, and removed without a trace. In another one the
block for Debian in docs/install.md is followed, on a server that runs, then the blocks that install the programs for terminal and report,
and beside Debian's TimescaleDB that of docs/compatibility.md. In others the steps of the Dockerfiles run as docker runs them, with
Debian's server in place of the image's. In the last one the packages are made as docs/packages.md has it. In Debian 12 the block of
docs/install.md for trying it without installing is followed, and demo and tests run in a clean clone, as an ordinary user.

The last commit is built. The mirror is that of this machine's apt, with its settings; pip has those of this machine. It needs root,
Debian, debootstrap, 8 GB in the folder, and up to 20 minutes for each release on two busy cores. The packages are in build/debs/<release>
in the end, beside the log; the folder is deleted unless --keep says otherwise.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))

from cyclone_lab import debian
from cyclone_lab.postgres import REPO

RELEASES = ("trixie", "sid", "bookworm")
WITHOUT_OUR_POSTGRESQL = "bookworm"  # Debian 12: only what fetches its own PostgreSQL runs there
SOURCE = "pg-cyclone"
IMAGE_VOLUME_SINCE = 18
CARRIED_SETTINGS = ("Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until")
READER = 'APT::Get::Assume-Yes "true"; APT::Install-Recommends "true";\n'  # who types what a page says
# A file system of its own for /dev/shm, and no process or mount that outlives the command.
ENTER = """
mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/dev/shm" || exit 125
exec chroot --userspec="$3" "$1" /usr/bin/env --ignore-environment --chdir="$2" PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive DEB_BUILD_OPTIONS="parallel=$(nproc)" $5 sh -euc "$4"
"""

# Whose last line fails unless the engine has compacted three chunks.
CHUNKS = """
CREATE EXTENSION timescaledb;
CREATE EXTENSION IF NOT EXISTS pg_cyclone;
CREATE TABLE conditions (at timestamptz NOT NULL, id int, note text);
SELECT create_hypertable('conditions', 'at', chunk_time_interval => interval '1 day');
INSERT INTO conditions SELECT '2026-01-01'::timestamptz + i * interval '40 s', i, repeat('x', 200) FROM generate_series(1, 6000) i;
DELETE FROM conditions WHERE id % 2 = 0;
{}
SELECT 1 / (count(*) FILTER (WHERE outcome = 'done') = count(*) AND count(*) >= 3)::int
FROM cyclone.history_details WHERE operation = 'FULL INPLACE' AND run_by = 'engine' AND relation_name LIKE '%hyper%';
"""


class Failed(RuntimeError):
    """A step of the check; the message is the end of what it said."""


class System:
    """A system in a folder. All that is done in it is in the log."""

    def __init__(self, root: Path, log: Path):
        self.root = root
        self.log = log

    def copy(self, name: str) -> "System":
        """Return a copy in a folder of this name beside this one."""
        other = System(self.root.parent / name, self.log)
        shutil.rmtree(other.root, ignore_errors=True)
        run(self.log, "cp", "--archive", "--reflink=auto", self.root, other.root)
        return other

    def run(self, command: str, folder: str = "/", user: str = "root", **variables: str) -> str:
        """Run a shell command in the system, and return its output. Raises Failed."""
        assignments = " ".join(f"{name}={value}" for name, value in variables.items())
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", ENTER, "enter"]
        return run(self.log, *enter, self.root, folder, f"{user}:{user}", command, assignments)

    def put(self, text: str, path: str, mode: int = 0o644) -> None:
        """Write a file."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def unpack_source(self, folder: str) -> None:
        """Put the last commit into a folder of the system."""
        place = self.root / folder.lstrip("/")
        place.mkdir(parents=True)
        archive = self.root / "tmp" / "source.tar"
        git("archive", "--format=tar", f"--output={archive}", "HEAD")
        run(self.log, "tar", "--extract", "--directory", place, "--file", archive)
        archive.unlink()


    def clone_source(self, folder: str) -> None:
        """Put a clone of the last commit into a folder of the system."""
        run(self.log, "git", "clone", "--quiet", "--no-local", "--depth=1", REPO, self.root / folder.lstrip("/"))

    def let_pip_in(self) -> dict[str, str]:
        """Give pip the certificates that this machine's pip asks for, if it does; return the variables that say so."""
        certificates = os.environ.get("PIP_CERT")
        if not certificates:
            return {}
        self.put(Path(certificates).read_text(), "/etc/ssl/pip.crt")
        return {"PIP_CERT": "/etc/ssl/pip.crt"}


def block(page: str, begin: str) -> str:
    """Return the block of a page that begins with this."""
    texts = re.findall(r"^```\w+\n(.*?)^```", (REPO / page).read_text(), re.MULTILINE | re.DOTALL)
    [found] = [text for text in texts if text.startswith(begin)]
    return found


def run(log: Path, *command: str | Path) -> str:
    """Run a program, with its output in the log, and return that. Raises Failed."""
    with log.open("a") as file:
        file.write(f"\n$ {' '.join(map(str, command))}\n")
        file.flush()
        begin = file.tell()
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    output = log.read_bytes()[begin:].decode(errors="replace")
    if result.returncode != 0:
        raise Failed(output[-3000:])
    return output


def git(*arguments: str) -> str:
    """Run git in the repository, even if another user owns it."""
    return subprocess.run(["git", "-c", f"safe.directory={REPO}", "-C", REPO, *arguments], text=True, capture_output=True, check=True).stdout


def bare_system(release: str, root: Path, log: Path) -> System:
    """Return a system that has nothing but what each has; it is made unless it is there."""
    system = System(root, log)
    if (root / "ready").exists():
        return system
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    run(log, "debootstrap", "--variant=minbase", release, root, debian.mirrors()[""])
    dump = subprocess.run(["apt-config", "dump"], text=True, capture_output=True, check=True).stdout
    settings = [line for line in dump.splitlines() if line.startswith(CARRIED_SETTINGS)]
    system.put("\n".join([*settings, 'APT::Install-Recommends "false";', ""]), "/etc/apt/apt.conf.d/90check")
    system.put("force-unsafe-io\n", "/etc/dpkg/dpkg.cfg.d/unsafe-io")
    system.put("#!/bin/sh\nexit 101\n", "/usr/sbin/policy-rc.d", 0o755)  # no service is started
    system.put("create_main_cluster = false\n", "/etc/postgresql-common/createcluster.d/check.conf")
    system.run("apt-get --quiet update; apt-get --quiet --yes dist-upgrade")
    system.put("", "/ready")
    return system


def build(bare: System, version: str) -> list[Path]:
    """Build the packages, with their tests, and return them; test them once more where they are installed."""
    system, folder = bare.copy("build"), f"/build/{SOURCE}-{version}"
    system.unpack_source(folder)
    system.run(f"tar --create --gzip --file {SOURCE}_{version}.orig.tar.gz {SOURCE}-{version}", "/build")
    system.run("apt-get --quiet --yes build-dep .; apt-get --quiet --yes install lintian; useradd builder", folder)
    system.run("pg_buildext updatecontrol; chown -R builder:builder /build", folder)
    system.run("dpkg-buildpackage --no-sign", folder, "builder")
    system.run(f"lintian --fail-on error --info --tag-display-limit 0 {SOURCE}_*.changes", "/build", "builder")
    for substvars in (system.root / folder.lstrip("/") / "debian").glob("postgresql-*.substvars"):
        if not re.search(r"^cyclone:Depends=postgresql-\d+ \(>= \d+[.~]\w+~\)$", substvars.read_text(), re.MULTILINE):
            raise Failed(f"{substvars.name} doesn't name the minor version:\n{substvars.read_text()}")
    packages = [package for package in (system.root / "build").glob("*.deb") if "-dbgsym_" not in package.name]
    system.run("apt-get --quiet --yes install " + " ".join(f"./{package.name}" for package in packages), "/build")
    system.run("debian/tests/installcheck", folder, "builder")
    return packages


def use(bare: System, packages: list[Path]) -> None:
    """Install the packages where nothing is but what they depend on, use them, and remove them without a trace."""
    system = bare.copy("use")
    for package in packages:
        shutil.copy(package, system.root / "tmp")
    system.run("apt-get --quiet --yes install " + " ".join(f"/tmp/{package.name}" for package in packages))
    system.unpack_source("/src")
    system.run("debian/tests/engine", "/src")
    names = " ".join(package.name.split("_")[0] for package in packages)
    shipped = set(system.run(f"dpkg --listfiles {names}").split())
    for what in ("bin/cyclone-top", "bin/cyclone-report", "pg-cyclone-tools/monitoring/alerts.yml", "/pg_cyclone.so", "/pg_cyclone.control"):
        if not any(name.endswith(what) for name in shipped):
            raise Failed(f"no package has {what}")
    system.run(f"rm -rf /src /tmp/*; apt-get --quiet --yes purge {names}")
    left = system.run("find / -xdev -path /proc -prune -o -name '*cyclone*' -print")
    if left.strip():
        raise Failed(f"what the packages leave behind:\n{left}")


def follow_the_page(bare: System) -> None:
    """Install from source on a server that runs, as docs/install.md has it; then the programs, which look at it, and a neighbour."""
    system = bare.copy("reader")
    system.put(READER, "/etc/apt/apt.conf.d/91reader")
    system.run("apt-get --quiet install postgresql sudo")
    major = system.run("ls /usr/lib/postgresql").split()[-1]
    system.unpack_source("/src")
    commands = re.sub(r"(?<=[-/ ])18(?=[/ \n])", major, block("docs/install.md", "sudo apt install"))
    system.run(f"pg_createcluster {major} main --start\n{commands}", "/src")  # grep, the last one, fails if VACUUM is PostgreSQL's
    system.run("apt-get --quiet install pipx")
    programs = block("docs/watching.md", "pipx install") + block("docs/monitoring.md", "pipx install")
    programs = re.sub(r"^cyclone-top \".*\n", "", programs, flags=re.MULTILINE)  # which goes on until someone types q
    programs = re.sub(r'"host=db1[^"]*"', '"dbname=postgres"', programs)
    system.run(f"pg_ctlcluster {major} main start; sudo -u postgres createuser --superuser root\n{programs}test -s shop.html",
               "/src", PATH="/tmp/.local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **system.let_pip_in())  # fmt: skip
    use_chunks(system, major)


def use_chunks(system: System, major: str) -> None:
    """Vacuum the chunks of a hypertable as docs/compatibility.md has it, where the server has pg_cyclone and TimescaleDB can be had."""
    name = f"postgresql-{major}-timescaledb"
    if not system.run(f"apt-cache search --names-only '^{name}$'").strip():
        print(f"NOT CHECKED: there is no {name} here, so no block of docs/compatibility.md for TimescaleDB", flush=True)
        return
    system.run(f"apt-get --quiet install {name}")
    system.put(CHUNKS.format(block("docs/compatibility.md", "SELECT format('VACUUM (FULL INPLACE")), "/tmp/chunks.sql")
    system.run(f"""pg_ctlcluster {major} main start
        sudo -u postgres psql -c 'ALTER SYSTEM SET shared_preload_libraries = pg_cyclone, timescaledb'
        pg_ctlcluster {major} main restart
        sudo -u postgres psql --set=ON_ERROR_STOP=1 --file=/tmp/chunks.sql""")


def make_packages(bare: System, packages: list[Path]) -> None:
    """Make the packages of a clone, and install them, as docs/packages.md has it."""
    system = bare.copy("maker")
    system.put(READER, "/etc/apt/apt.conf.d/91reader")
    system.clone_source("/work/pg_cyclone")
    major = max(re.findall(r"postgresql-(\d+)-cyclone_", " ".join(package.name for package in packages)))
    commands = block("docs/packages.md", "apt install").replace("postgresql-18-", f"postgresql-{major}-")
    system.run(commands, "/work/pg_cyclone")
    system.run(f"test -e /usr/lib/postgresql/{major}/lib/pg_cyclone.so; cyclone-top --help")


def try_it(bare: System) -> str:
    """Try it without installing, as docs/install.md has it for Debian 12, as an ordinary user in a clean clone; return what was tried."""
    system, folder = bare.copy("trial"), "/home/trial/pg_cyclone"
    system.put(READER, "/etc/apt/apt.conf.d/91reader")
    system.run("useradd --create-home trial")
    system.clone_source(folder)
    system.run(block("docs/install.md", "apt install gcc"))
    system.run("chown -R trial:trial /home/trial")
    variables = {"HOME": "/home/trial", "TMPDIR": "/dev/shm", **system.let_pip_in()}
    said = system.run("make demo DEMO_ARGS='--rows 200000'; make check PYTEST_ARGS='-k smoke'", folder, "trial", **variables)
    return said.strip().splitlines()[-1]


def steps(dockerfile: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, and what each is given."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def build_image(base: System, dockerfile: Path, variables: dict[str, str]) -> System:
    """Run the steps of a Dockerfile, as far as ours have them, on a system in place of the image that it names; return the last stage."""
    stages: dict[str, System] = {}
    for instruction, given in steps(dockerfile):
        if instruction == "FROM":
            image, _, name = given.partition(" AS ")
            name = name or "image"
            stages[name] = current = base.copy(name)
            if image == "scratch":
                shutil.rmtree(current.root)
                current.root.mkdir()
        elif instruction == "COPY" and given == ". /src":
            current.unpack_source("/src")
        elif instruction == "COPY" and (found := re.fullmatch(r"--from=(\w+) (/\S+)/ /", given)):
            run(base.log, "cp", "--archive", "--no-target-directory", stages[found[1]].root / found[2].lstrip("/"), current.root)
        elif instruction == "RUN" and given.startswith("--mount=type=bind,source=packaging,target=/packaging "):
            shutil.copytree(REPO / "packaging", current.root / "packaging")
            current.run(given.split(maxsplit=1)[1], **variables)
            shutil.rmtree(current.root / "packaging")
        elif instruction == "RUN" and not given.startswith("--"):
            current.run(given, **variables)
        elif instruction != "ARG":
            raise Failed(f"{dockerfile.name}: this check has no step {instruction} {given}")
    return current


def build_images(bare: System) -> str:
    """Run the Dockerfiles' steps; return the version of the server."""
    base = bare.copy("server")
    base.run("apt-get --quiet --yes install postgresql")
    major = base.run("ls /usr/lib/postgresql").split()[-1]
    version = base.run(f"dpkg-query --show --showformat '${{Version}}' postgresql-{major}")
    # what the official image has beside the server
    base.run(f"cd /usr/share/postgresql; mv {major}/postgresql.conf.sample .; ln -s ../postgresql.conf.sample {major}; mkdir /docker-entrypoint-initdb.d")
    variables = {"PG_MAJOR": major, "PG_VERSION": version}
    build_image(base, REPO / "packaging" / "Dockerfile", variables)
    if int(major) >= IMAGE_VOLUME_SINCE:
        image = build_image(base, REPO / "packaging" / "Dockerfile.image-volume", variables)
        files = {str(path.relative_to(image.root)) for path in image.root.rglob("*") if path.is_file()}
        if files != {"lib/pg_cyclone.so", "share/extension/pg_cyclone.control", *(f"share/extension/{sql.name}" for sql in (REPO / "sql").iterdir())}:
            raise Failed(f"the image for volumes has {' '.join(sorted(files))}")
    return version


def check(release: str, folder: Path, version: str) -> str:
    """Check one release; return what was done. Raises Failed."""
    results = REPO / "build" / "debs" / release
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    log = results / "log"
    bare = bare_system(release, folder / release / "bare", log)
    if release == WITHOUT_OUR_POSTGRESQL:
        return f"demo and tests in a clean clone: {try_it(bare)}"
    packages = build(bare, version)
    for package in packages:
        shutil.copy(package, results)
    use(bare, packages)
    follow_the_page(bare)
    server = build_images(bare)
    make_packages(bare, packages)
    return f"with PostgreSQL {server}: {' '.join(sorted(package.name for package in packages))}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=RELEASES, help="Debian's releases (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/pg_cyclone-debs"), help="where the systems are (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the systems; bare ones are used again")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        print("NOT CHECKED: it needs root, and debootstrap (on Debian: apt install debootstrap)", file=sys.stderr)
        return 1
    version = re.search(r"^default_version = '(.*)'", (REPO / "pg_cyclone.control").read_text(), re.MULTILINE)[1]
    failed = False
    for release in arguments.releases:
        try:
            print(f"{release}: {check(release, arguments.folder, version)}", flush=True)
        except (Failed, debian.NotInDebian) as error:
            failed = True
            print(f"{release}: FAILED, see build/debs/{release}/log\n{error}", flush=True)
        finally:
            if not arguments.keep:
                shutil.rmtree(arguments.folder / release, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
