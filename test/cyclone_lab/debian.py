"""PostgreSQL from Debian's packages, for a major version that is nowhere else ready-made.

Debian has a new version in its suite experimental, and then in sid, long before anybody else does; this runs those packages on an
older Debian. Mirror and keyring are this machine's own: nothing is installed, and apt checks signatures as ever, in folders of its
own. The packages are unpacked to a tree that can be moved like any other PostgreSQL, but for the C library and the other libraries
that they need: those lie in a folder beside it, by absolute path, to which patchelf leads the programs. Only the programs of that
tree use them. RPATH does that and not RUNPATH, which says nothing of the libraries that a library needs.

Extensions are built with this machine's compiler, so what its headers and makefiles say of Debian's compiler is taken back.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITES = ("sid", "experimental")  # apt takes a package from the first one if both have it
RELEASED_SUITES = ("trixie", "trixie-security")  # which have the minor versions of a major version
APT_CONFIG = """
Dir::Etc::SourceList "{home}/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "{home}/state";
Dir::State::Status "{home}/status";
Dir::Cache "{home}/cache";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
"""


class NotInDebian(RuntimeError):
    """The packages are not to be had here, or not of use here; the message says why."""


def versions(majors: list[int]) -> dict[str, list[str]]:
    """Return the versions of the server's packages of these major versions, and for each the suites that have it. Raises NotInDebian."""
    try:
        with tempfile.TemporaryDirectory(prefix="cyclone-debian-") as scratch:
            packages = _Packages(Path(scratch), SUITES + RELEASED_SUITES)
            return {key: suites for major in majors for key, suites in packages.versions(f"postgresql-{major}").items()}
    except OSError as error:
        raise NotInDebian(f"Debian's packages can't be listed here: {error}") from error


def fetch(major: int, tree: Path, libraries: Path, version: str | None = None) -> None:
    """Make `tree` a PostgreSQL of this major version, whose programs find what they need in `libraries`.

    `tree` is to be made, and can be moved; `libraries` is empty, will stay, and the server's user must be able to read it.
    `version` is one of `versions`; without, it is the newest of SUITES. Raises NotInDebian.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="cyclone-debian-") as scratch_name:
            scratch = Path(scratch_name)
            packages = _Packages(scratch, SUITES + RELEASED_SUITES if version else SUITES)
            version = version or packages.version(f"postgresql-{major}")
            names = (f"postgresql-{major}", f"postgresql-client-{major}", f"postgresql-server-dev-{major}", "libpq5")
            packages.unpack([f"{name}={version}" for name in names])
            packages.unpack_libraries()
            _arrange(packages.unpacked, major, tree, libraries)
        _fit_compiler(tree)
        _lead_programs(tree, libraries)
    except (OSError, ValueError) as error:
        raise NotInDebian(f"Debian's packages can't be arranged here: {error}") from error
    _run(tree / "bin" / "postgres", "--version")


def fetch_source(name: str, folder: Path) -> None:
    """Make `folder` the source of a package of RELEASED_SUITES as its authors have released it, without Debian's changes. Raises NotInDebian."""
    try:
        with tempfile.TemporaryDirectory(prefix="cyclone-debian-") as scratch:
            packages = _Packages(Path(scratch), RELEASED_SUITES, kind="deb-src")
            archive = packages.source(name)
            folder.mkdir()
            _run("tar", "--extract", "--strip-components=1", "--directory", folder, "--file", archive)
    except OSError as error:
        raise NotInDebian(f"Debian's source of {name} can't be unpacked here: {error}") from error


def mirrors() -> dict[str, str]:
    """Return the addresses of Debian's archive that this machine's apt uses: of the archive, "", and of its part "-security"."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text(), re.MULTILINE))
    if release.get("ID") != "debian" or not KEYRING.exists():
        raise NotInDebian("this machine is no Debian, so it has neither a mirror of Debian nor its keyring")
    with tempfile.TemporaryDirectory(prefix="cyclone-debian-") as scratch:
        private = [f"--option=Dir::{folder}={scratch}" for folder in ("State", "Cache")]
        listing = _run("apt-get", "update", "--print-uris", *private)
    found = re.findall(rf"^'(\S+)/dists/{release['VERSION_CODENAME']}(|-security)/InRelease'", listing, re.MULTILINE)
    addresses = {part: address for address, part in found}
    if "" not in addresses:
        raise NotInDebian("apt's sources of this machine name no mirror of Debian")
    return addresses


class _Packages:
    """Debian's packages of some suites, downloaded and unpacked by request into the folder `unpacked`."""

    def __init__(self, home: Path, suites: tuple[str, ...], kind: str = "deb"):
        self.unpacked = home / "unpacked"
        self._seen: set[str] = set()  # names of packages
        self._libraries: set[str] = set()  # names of the packages of libraries that they depend on
        for folder in ("state/lists/partial", "cache/archives/partial", "archives", "unpacked"):
            (home / folder).mkdir(parents=True)
        (home / "status").touch()
        self._suites = suites
        addresses = mirrors()
        sources = [(addresses.get("-security" if suite.endswith("-security") else ""), suite) for suite in suites]
        lines = [f"{kind} [signed-by={KEYRING}] {mirror} {suite} main\n" for mirror, suite in sources if mirror]
        (home / "sources.list").write_text("".join(lines))
        (home / "apt.conf").write_text(APT_CONFIG.format(home=home))
        self._archives = home / "archives"
        self._env = {**os.environ, "APT_CONFIG": str(home / "apt.conf"), "LC_ALL": "C.UTF-8"}
        _run("apt-get", "--quiet", "update", env=self._env)

    def version(self, name: str) -> str:
        """Return the newest version of a package, from the first suite that has it."""
        policy = _run("apt-cache", "policy", name, env=self._env)
        found = re.search(r"Candidate: (\d\S*)", policy)
        if found is None:
            raise NotInDebian(f"Debian has no package {name} in {' and '.join(self._suites)}")
        return found[1]

    def versions(self, name: str) -> dict[str, list[str]]:
        """Return the versions of a package, the newest first, and for each the suites that have it."""
        found: dict[str, list[str]] = {}
        for version, suite in re.findall(r"\| +(\d\S*) \| \S+ ([\w-]+)/", _run("apt-cache", "madison", name, env=self._env)):
            found.setdefault(version, []).append(suite)
        return found

    def source(self, name: str) -> Path:
        """Download a source package, and return what of it is its authors' own."""
        _run("apt-get", "--quiet", "source", "--download-only", name, env=self._env, cwd=self._archives)
        found = list(self._archives.glob("*.orig.tar.*[!c]"))
        if len(found) != 1:
            raise NotInDebian(f"Debian's source of {name} is no single archive")
        return found[0]

    def unpack(self, packages: list[str]) -> None:
        """Download packages, `name` or `name=version`, and unpack them."""
        _run("apt-get", "--quiet", "download", *packages, env=self._env, cwd=self._archives)
        for archive in self._archives.iterdir():
            _run("dpkg-deb", "--extract", archive, self.unpacked)
            archive.unlink()
        records = _run("apt-cache", "show", "--no-all-versions", *packages, env=self._env)
        depends = ",".join(re.findall(r"^(?:Pre-)?Depends: (.*)", records, re.MULTILINE))
        self._seen |= {package.split("=")[0] for package in packages}
        self._libraries |= set(re.findall(r"(?:^|, *)(z?lib[\w.+-]+)", depends))

    def unpack_libraries(self) -> None:
        """Unpack the packages of libraries that the unpacked ones need, until no program or library lacks any."""
        while missing := _missing_libraries(self.unpacked):
            wanted = sorted(name for name in self._libraries - self._seen if not name.endswith("-dev"))
            if not wanted:
                raise NotInDebian(f"no package has the libraries {' '.join(sorted(missing))}")
            self.unpack(wanted)


def _missing_libraries(folder: Path) -> set[str]:
    """Return the names of libraries that a program or library in `folder` needs and that aren't there."""
    needed = {name for file in _elf_files(folder) for name in re.findall(r"NEEDED.*\[(.*)\]", _run("readelf", "--dynamic", file))}
    return needed - {path.name for path in folder.rglob("*.so*")}


def _elf_files(folder: Path) -> Iterator[Path]:
    """Yield the programs and dynamic libraries below `folder`."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.suffix not in (".o", ".a"):
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def _arrange(unpacked: Path, major: int, tree: Path, libraries: Path) -> None:
    """Move what is PostgreSQL's to `tree`, in the folders where its programs look from where they are, and libraries to theirs."""
    usr = unpacked / "usr"
    for folder in (f"lib/postgresql/{major}", f"share/postgresql/{major}", f"include/postgresql/{major}"):
        (tree / folder).parent.mkdir(parents=True)
        shutil.move(usr / folder, tree / folder)  # which may be on another disk
    (tree / "bin").symlink_to(f"lib/postgresql/{major}/bin")
    for path in usr.glob("lib/*-linux-gnu/*.so*"):  # the loader is among them; that in lib64 is a link to it
        shutil.move(path, libraries / path.name)


def _fit_compiler(tree: Path) -> None:
    """Take back what the headers and makefiles say of a compiler and a C library newer than this machine's, and of LLVM."""
    for path in tree.rglob("pg_config*.h"):
        text = re.sub(r"#define (HAVE_TYPEOF_UNQUAL) 1", r"/* #undef \1 */", path.read_text())
        path.write_text(re.sub(r"(#define HAVE_DECL_STRLC(?:AT|PY)) 1", r"\1 0", text))
    [path] = tree.rglob("pgxs/src/Makefile.global")
    text = re.sub(r"^with_llvm\s*=.*", "with_llvm = no", path.read_text(), flags=re.MULTILINE)
    settings = " ".join(re.findall(r"^C.*FLAGS.*|^PERMIT_.*", text, re.MULTILINE))
    for flag in set(re.findall(r"(?<=\s)-[Wf][\w=-]+(?=\s)", settings)):
        probe = subprocess.run(["gcc", "-Werror", flag, "-fsyntax-only", "-x", "c", "/dev/null"], capture_output=True, text=True)
        if "unrecognized" in probe.stderr or "unknown" in probe.stderr:
            text = re.sub(rf"(?<=\s){re.escape(flag)}(?=\s)", "", text)
    path.write_text(text)


def _lead_programs(tree: Path, libraries: Path) -> None:
    """Have the programs of `tree` use the libraries in `libraries`."""
    [loader] = libraries.glob("ld-linux*.so*")
    for path in _elf_files(tree):
        if "INTERP" in _run("readelf", "--program-headers", "--wide", path):
            patchelf = Path(sys.executable).with_name("patchelf")
            _run(patchelf, "--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries, path)


def _run(program: str | Path, *arguments: str | Path, **options) -> str:
    """Run a program and return its output. Raises NotInDebian with what it says if it fails or isn't there."""
    try:
        result = subprocess.run([program, *arguments], text=True, capture_output=True, **options)
    except OSError as error:
        raise NotInDebian(f"{program} can't be run: {error.strerror}") from error
    if result.returncode != 0:
        raise NotInDebian(f"{program} failed: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout
