"""A private PostgreSQL server in a temporary folder, reached through a Unix socket, gone when its owner is gone."""

import atexit
import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psycopg

from cyclone_lab import seccomp
from cyclone_lab.postgres import as_server_user, copy_tree, hand_over, program_env, program_path, run_program

SUPERUSER = "postgres"
CONFIG_FILE = "cluster.conf"
STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
START_SECONDS = 300
STOP_SECONDS = 300
WAL_FILE_BYTES = 16 << 20

# Words of a server about pins, locks and memory that were not released: a bug, but no error.
FORGOTTEN = re.compile(r"resource was not closed|write past chunk end|you don't own a lock of type")

_heard: list[str] = []
_read_until: dict["Cluster", int] = {}
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _quit_when_parent_dies() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def spoil_freed_memory() -> str:
    """Have the servers of this process and its children fill memory that they free, so that reading it later shows; return the setting
    by which a run is repeated. With CYCLONE_JUNK=/path/to/libjemalloc.so.2 jemalloc does it, and see _Forgetful."""
    if os.environ.get("CYCLONE_JUNK"):
        os.environ["MALLOC_CONF"] = "junk:true"
        return f"CYCLONE_JUNK={os.environ['CYCLONE_JUNK']}"
    os.environ.setdefault("MALLOC_PERTURB_", str(random.randint(1, 255)))
    return f"MALLOC_PERTURB_={os.environ['MALLOC_PERTURB_']}"


class _Forgetful(psycopg.Connection):
    """A session that forgets what it has cached as soon as it may while it vacuums. Not while tables are made and checked, nor for
    each row that FULL INPLACE moves, or each catalog, which takes hours: see test_inplace.py."""

    def execute(self, query, *arguments, **named):
        if not re.fullmatch(r"(VACUUM|REPACK)(?!.*INPLACE).*\w", str(query)):
            return super().execute(query, *arguments, **named)
        with suppress(psycopg.Error):  # an ordinary role may not
            super().execute("SET debug_discard_caches = 1")
        try:
            return super().execute(query, *arguments, **named)
        finally:
            with suppress(psycopg.Error):
                super().execute("SET debug_discard_caches = 0")


@cache
def _has_assertions(prefix: Path) -> bool:
    return "--enable-cassert" in run_program(prefix, "pg_config", "--configure").stdout


def what_was_forgotten() -> list[str]:
    """Return the lines by which the servers of this process have complained (FORGOTTEN) since the last call, removed ones too."""
    for cluster in list(_read_until):
        cluster.listen()
    lines = list(_heard)
    _heard.clear()
    return lines


class Cluster:
    """One data directory and the server on it.

    Start servers from a thread that lives as long as they should: the kernel stops a server when the thread that
    started it ends. `config` may be changed at any time and is read by the next start. As a context manager the cluster
    is stopped and removed at the end, whatever happened.
    """

    def __init__(self, prefix: Path, config: dict | None = None, *, base: Path | None = None):
        """Prepare a cluster of the PostgreSQL in `prefix` with these settings; `create` or `copy` fills it.

        `base` is the folder for the temporary data, by default the system's; the server's user must reach it.
        """
        self.prefix = prefix
        self.config = dict(config or {})
        self.home = Path(tempfile.mkdtemp(prefix="cyclone-", dir=base))
        # Apart from the data, as a socket's path must be shorter than 108 bytes.
        self.socket_dir = Path(tempfile.mkdtemp(prefix="cyclone-", dir="/tmp"))
        self.data = self.home / "data"
        self.log_file = self.home / "server.log"
        self.env: dict[str, str] = {}  # for the server, besides the usual
        self.wrapper: list[str] = []  # a command that runs the server, such as valgrind
        self.forbidden_calls: tuple[str, ...] = ()  # system calls that end the process which makes one
        self.refused_calls: tuple[str, ...] = ()  # those that fail
        self.postmaster: subprocess.Popen | None = None
        _read_until[self] = 0
        hand_over(self.home)
        hand_over(self.socket_dir)
        atexit.register(self.remove)

    @classmethod
    def create(
        cls, prefix: Path, config: dict | None = None, *, base: Path | None = None, initdb: tuple[str, ...] = ()
    ) -> "Cluster":
        """Return a new, stopped cluster, a copy of what initdb with these further options has made once."""
        cluster = cls(prefix, config, base=base)
        copy_tree(_pristine(prefix, initdb), cluster.data)
        return cluster

    def copy(self, *, base: Path | None = None) -> "Cluster":
        """Return a stopped cluster with the same settings and a copy of this stopped cluster's data."""
        assert not self.running, "stop a cluster before copying it"
        clone = Cluster(self.prefix, self.config, base=base)
        copy_tree(self.data, clone.data)
        return clone

    def standby(self, config: dict | None = None, *, base: Path | None = None) -> "Cluster":
        """Return a stopped hot standby that streams from this running cluster, with its settings plus `config`."""
        standby = Cluster(self.prefix, {**self.config, **(config or {})}, base=base)
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--pgdata", standby.data]
        run_program(self.prefix, "pg_basebackup", *options, env=self.client_env(), **as_server_user())
        return standby

    @property
    def running(self) -> bool:
        return self.postmaster is not None and self.postmaster.poll() is None

    @property
    def log(self) -> str:
        """The server's log since the cluster was made."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def listen(self) -> None:
        """Note what the server has complained of since it was listened to last."""
        with suppress(FileNotFoundError), open(self.log_file, errors="replace") as log:
            log.seek(_read_until[self])
            _heard.extend(line.rstrip() for line in log if FORGOTTEN.search(line))
            _read_until[self] = log.tell()

    def start(self) -> "Cluster":
        """Start the server and wait until it takes connections; raise RuntimeError with its log if it does not."""
        assert not self.running, "already running"
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.socket_dir), **self.config}
        env = self.env
        if junk := os.environ.get("CYCLONE_JUNK"):
            env = {**env, "LD_PRELOAD": " ".join(filter(None, [junk, env.get("LD_PRELOAD")]))}
        lines = ["{} = '{}'\n".format(name, str(value).replace("'", "''")) for name, value in settings.items()]
        config_file = self.data / CONFIG_FILE
        config_file.write_text("".join(lines))
        hand_over(config_file)
        command = [*self.wrapper, program_path(self.prefix, "postgres"), "-D", self.data]
        with open(self.log_file, "a") as log:
            self.postmaster = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=program_env(self.prefix, **env),
                preexec_fn=self._prepare,
                start_new_session=True,  # an interrupt from the terminal is for us, who may still need the server
                **as_server_user(),
            )  # fmt: skip
        self.wait_for_recovery()
        return self

    def _prepare(self) -> None:
        """Make the process that is to be the postmaster ready for that."""
        _quit_when_parent_dies()
        if self.forbidden_calls:
            seccomp.forbid(self.forbidden_calls)
        if self.refused_calls:
            seccomp.forbid(self.refused_calls, seccomp.REFUSE)

    def wait_for_recovery(self) -> None:
        """Wait until the server, which is starting, takes connections; raise RuntimeError with its log if it does not."""
        deadline = time.monotonic() + START_SECONDS
        while self.running and time.monotonic() < deadline:
            with suppress(psycopg.OperationalError):
                self.connect().close()
                return
            time.sleep(0.01)
        self.stop("immediate")
        raise RuntimeError(f"the server did not start:\n{self.log[-4000:]}")

    def stop(self, mode: str = "fast") -> None:
        """Shut the server down ("smart", "fast" or "immediate") and wait for its end; nothing happens if it is down."""
        if self.running:
            self.postmaster.send_signal(STOP_SIGNALS[mode])
            self.postmaster.wait(STOP_SECONDS)

    def restart(self, mode: str = "fast") -> None:
        """Stop the server in this mode, or have it "crash", and start it again with the present `config`."""
        if mode == "crash":
            self.crash()
        else:
            self.stop(mode)
        self.start()

    def keep(self, folder: Path) -> Path:
        """Stop the server as if it had crashed, and copy its files, log included, to `folder`, which is returned."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(Exception):
            if self.running:
                self.crash()
        subprocess.run(["cp", "--archive", "--sparse=always", self.home, folder], check=True)
        return folder

    def crash(self, meanwhile=lambda: None) -> None:
        """Kill every process of the server at once, as a loss of power would, and wait until all are gone; `meanwhile` is called
        when they stand still."""
        postmaster = self.postmaster.pid
        self.postmaster.send_signal(signal.SIGSTOP)  # it makes no more children, and none sees it gone
        while not _has_stopped(postmaster):
            time.sleep(0.001)
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for child in map(int, children):
                with suppress(ProcessLookupError):
                    os.kill(child, number)
            if number == signal.SIGSTOP:
                meanwhile()
        self.postmaster.kill()
        self.postmaster.wait()
        while any(_is_alive(int(child)) for child in children):
            time.sleep(0.01)

    def remove(self) -> None:
        """Stop the server and delete all that the cluster has on disk; harmless when repeated."""
        self.stop("immediate")
        if self in _read_until:
            self.listen()
            del _read_until[self]
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.socket_dir, ignore_errors=True)
        atexit.unregister(self.remove)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_exception) -> None:
        self.remove()

    def connect(self, dbname: str = "postgres", **parameters) -> psycopg.Connection:
        """Return a new superuser connection in autocommit mode; `parameters` are libpq's."""
        defaults = {"host": str(self.socket_dir), "user": SUPERUSER, "dbname": dbname}
        forgets = os.environ.get("CYCLONE_JUNK") and _has_assertions(self.prefix)
        return (_Forgetful if forgets else psycopg.Connection).connect(**{**defaults, **parameters}, autocommit=True)

    @contextmanager
    def snapshot(self, dbname: str, statement: str = "SELECT 1", **parameters):
        """Yield a connection in a transaction that keeps the snapshot with which it has run this statement."""
        with self.connect(dbname, **parameters) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            connection.execute(statement)
            yield connection

    def sql(self, query: str, *, dbname: str = "postgres") -> list[tuple]:
        """Run one statement on a connection of its own and return its rows, none if it yields no result."""
        with self.connect(dbname) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

    def warm_up(self, table: str, *, wal: bool = True, pages: bool = True, dbname: str = "postgres") -> None:
        """Read a table with its indexes and its TOAST table into the running server's buffers, as far as they go; needs pg_prewarm.

        With `wal` also make the WAL files that come next, filled with zeros, enough for an image of every page: a server in
        use has old ones to write over instead, and the time to make new ones would drown what is to be measured. Without
        `pages` do no more than that.
        """
        with self.connect(dbname) as conn:
            if pages:
                conn.execute(
                    "SELECT pg_prewarm(%(table)s::regclass),"
                    " CASE WHEN pg_relation_size(%(table)s::regclass, 'vm') > 0"
                    " THEN pg_prewarm(%(table)s::regclass, fork => 'vm') END,"
                    " (SELECT sum(pg_prewarm(indexrelid)) FROM pg_index WHERE indrelid = %(table)s::regclass),"
                    " (SELECT pg_prewarm(reltoastrelid) FROM pg_class WHERE oid = %(table)s::regclass AND reltoastrelid <> 0)",
                    {"table": table},
                )
            if wal:
                [(size,)] = conn.execute("SELECT pg_total_relation_size(%s::regclass)", (table,))
                self.prepare_wal(size)

    def prepare_wal(self, size: int) -> None:
        """Make the WAL files that the running server writes next, filled with zeros, enough for images of `size` bytes of pages:
        a server in use has old ones to write over instead.
        """
        names = self.sql(
            f"SELECT pg_walfile_name(pg_current_wal_lsn() + number * {WAL_FILE_BYTES}::numeric)"
            f" FROM generate_series(2, 3 + (1.2 * {size} / {WAL_FILE_BYTES})::int) number"
        )
        for (name,) in names:
            file = self.data / "pg_wal" / name
            if not file.exists():
                file.write_bytes(bytes(WAL_FILE_BYTES))
                file.chmod(0o600)
                hand_over(file)

    def client_env(self) -> dict[str, str]:
        """Return the environment that leads a client program to this server."""
        return {"PGHOST": str(self.socket_dir), "PGUSER": SUPERUSER, "PGDATABASE": "postgres"}

    def run(self, program: str, *arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
        """Run a client program (psql, pgbench, vacuumdb) against this server; `options` go to subprocess.run.

        Raises RuntimeError with its output if it fails.
        """
        return run_program(self.prefix, program, *arguments, env=self.client_env(), **options)

    def wait_for_replay(self, primary: "Cluster", seconds: float = START_SECONDS) -> None:
        """Wait until this standby has replayed all that `primary` has written so far.

        Raises TimeoutError if it does not, RuntimeError with its log if it has gone down.
        """
        # what is written may end in the middle of a record whose rest nobody flushes; so a record of our own
        [(target,)] = primary.sql("SELECT pg_logical_emit_message(false, 'cyclone', 'replay up to here', true)::text")
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.sql(f"SELECT pg_last_wal_replay_lsn() >= '{target}'")[0][0]:
                    return
            except psycopg.errors.SerializationFailure:
                continue  # what is replayed just then was received long ago, and waits for no query
            except psycopg.OperationalError:
                raise RuntimeError(f"the standby has gone down:\n{self.log[-4000:]}") from None
            if time.monotonic() > deadline:
                state = self.sql(
                    "SELECT pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn(), array_agg(ROW(backend_type, wait_event, query))"
                    " FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                )
                raise TimeoutError(f"the standby did not replay up to {target} in {seconds} s: {state}\n{self.log[-4000:]}")
            time.sleep(0.05)

    def promote(self) -> None:
        """Let this standby take over, and wait for the checkpoint that the server makes then.

        A VACUUM beside that may pass over a page which is just being written, and so leave dead rows. No session waits in
        pg_promote(): replay of what has been received for some time would cancel it, as its snapshot is in the way.
        """
        request = self.data / "promote"
        request.touch()
        hand_over(request)
        self.postmaster.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + START_SECONDS
        while "in production" not in run_program(self.prefix, "pg_controldata", self.data, **as_server_user()).stdout:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the standby did not take over in {START_SECONDS} s:\n{self.log[-4000:]}")
            time.sleep(0.05)
        self.sql("CHECKPOINT")


@cache
def _pristine(prefix: Path, options: tuple[str, ...]) -> Path:
    """Return the data directory that initdb with these further options makes, as nobody has started it; gone with this process."""
    home = Path(tempfile.mkdtemp(prefix="cyclone-initdb-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    hand_over(home)
    usual = [f"--username={SUPERUSER}", "--auth=trust", "--locale=C", "--encoding=UTF8", "--no-sync"]
    run_program(prefix, "initdb", *usual, *options, "-D", home / "data", **as_server_user())
    with open(home / "data" / "postgresql.conf", "a") as main_file:
        main_file.write(f"include '{CONFIG_FILE}'\n")
    return home / "data"


def _is_alive(pid: int) -> bool:
    """Tell whether this process still runs; one that is dead but not yet reaped by its new parent does not."""
    return _state(pid) not in "ZX"


def _has_stopped(pid: int) -> bool:
    """Tell whether this process stands still, or is gone."""
    return _state(pid) in "TZX"


def _state(pid: int) -> str:
    """Return the letter that the kernel has for a process's state."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
