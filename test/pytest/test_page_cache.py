"""cyclone.preserve_page_cache: VACUUM leaves the page cache as it finds it.

The disk is as quick as it must be for that (test/shim/page_cache.c): what is written back is clean at once.
"""

import ctypes
import errno
import mmap
import os
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import CONFIG
from cyclone_lab import build, checks
from cyclone_lab.background import Parked, messages_to, wait_until
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO, hand_over
from cyclone_lab.shim import preloadable

MB = 1 << 20
CALLS = {"mincore": 1, "sync_file_range": 2, "posix_fadvise": 4, "mmap": 8}
LAYOUT = struct.Struct("9i")
WAIT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class Control(NamedTuple):
    """What test/shim/page_cache.c shares with us."""

    failing: int = 0
    error: int = 0
    asked: int = 0  # calls of mincore
    written: int = 0  # of sync_file_range
    dropped: int = 0  # of posix_fadvise
    mapped: int = 0
    waited: int = 0
    hides: int = 0
    locked: int = 0  # all of these that were made with a page locked, or an LWLock


def seen(server) -> Control:
    return Control._make(LAYOUT.unpack(server.calls[:]))


def set_control(server, **fields: int) -> None:
    """Set these, and forget what was counted, of which no call was made with a lock."""
    locked = seen(server).locked
    server.calls[:] = LAYOUT.pack(*Control(**fields))
    assert locked == 0


def calls(server, call: str) -> int:
    """Return how often this call was made."""
    return seen(server)[2 + list(CALLS).index(call)]


def in_cache(file: Path) -> int:
    """Return how many bytes of a file are in the page cache."""
    size = file.stat().st_size
    with open(file, "rb") as opened:
        place = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, opened.fileno(), 0)
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    assert _libc.mincore(place, size, pages) == 0
    _libc.munmap(place, size)
    return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE


def drop(file: Path) -> None:
    """Have all of a file written, and nothing of it in the page cache.

    The kernel leaves a page there that it has in hand at that moment, to move it in memory for example.
    """

    def is_gone() -> bool:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return in_cache(file) == 0

    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
        wait_until(is_gone, f"that no page of {file} is in the page cache")


def disk() -> Path | None:
    """Return a folder of whose files nothing is in the page cache if it is written back and dropped; None if there is none.

    In memory nothing is dropped; on overlayfs sync_file_range does nothing.
    """
    for folder in (tempfile.gettempdir(), "/var/tmp", str(REPO / "build")):
        if os.access(folder, os.W_OK):
            with tempfile.NamedTemporaryFile(dir=folder) as file:
                file.write(bytes(MB))
                file.flush()
                assert _libc.sync_file_range(file.fileno(), 0, MB, WAIT) == 0
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                if in_cache(Path(file.name)) == 0:
                    return Path(folder)
    return None


@pytest.fixture(scope="module")
def server(prefix):
    """A server on a disk, with little memory and the shim."""
    base = disk()
    if base is None:
        pytest.skip("no folder here is on a disk with a page cache: in memory and on overlayfs what is to be dropped stays")
    # the server's own calls would be told from ours by nothing
    config = {"shared_buffers": "2MB", "checkpoint_flush_after": 0, "bgwriter_flush_after": 0, "cyclone.audit": 0}
    cluster = Cluster.create(prefix, {**CONFIG, **config}, base=base)
    try:
        library, control, cluster.calls = preloadable(REPO / "test" / "shim" / "page_cache.c", LAYOUT.size, base=cluster.home)
        cluster.meminfo = control.with_name("meminfo")
        cluster.env = {
            "LD_PRELOAD": str(library),
            "CYCLONE_PAGE_CACHE": str(control),
            "CYCLONE_MEMINFO": str(cluster.meminfo),
        }
        cluster.start()
        with cluster.connect() as conn:
            checks.create_extensions(conn)
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture
def cold(server):
    """A session and the files of a table t and its indexes with dead rows, none of which is in the page cache; server.calls is
    all zero."""
    with server.connect() as conn:
        conn.execute("DROP TABLE IF EXISTS t")
        conn.execute("CREATE TABLE t (id int, filler text) WITH (autovacuum_enabled = off, fillfactor = 10)")
        conn.execute("INSERT INTO t SELECT i, repeat('x', 150) FROM generate_series(1, 16000) i")
        conn.execute("CREATE INDEX t_btree ON t (id, filler) WITH (fillfactor = 10)")
        conn.execute("CREATE INDEX t_hash ON t USING hash (id) WITH (fillfactor = 10)")
        conn.execute("DELETE FROM t WHERE id % 3 = 0")
        yield conn, forget(server, conn, "t", "t_btree", "t_hash")
        assert seen(server).locked == 0


def forget(server, conn, *relations: str) -> dict[str, Path]:
    """Have nothing of these relations in the page cache, and no call counted; return their files."""
    conn.execute("CHECKPOINT")
    found = files_of(server, conn, *relations)
    for file in found.values():
        drop(file)
        assert file.stat().st_size > 4 * MB
    set_control(server)
    return found


def files_of(server, conn, *relations: str) -> dict[str, Path]:
    return {
        name: server.data / conn.execute("SELECT pg_relation_filepath(%s)", (name,)).fetchone()[0] for name in relations
    }


def vacuum(conn, setting: str = "on", workers: int = 0) -> None:
    conn.execute(f"SET cyclone.preserve_page_cache = {setting}")
    conn.execute(f"VACUUM (PARALLEL {workers}) t")


def assert_vacuumed(conn) -> None:
    """Prove that the table is sound and has its rows; this reads all of it."""
    assert conn.execute("SELECT count(*) FROM t WHERE id % 3 > 0").fetchone() == (10667,)
    checks.assert_clean(conn, "t")


def assert_worked(server) -> None:
    """Each of the calls was made, and none that waits until something is written."""
    assert min(seen(server).asked, seen(server).written, seen(server).dropped) > 0 and seen(server).waited == 0


def cached(files) -> dict[str, float]:
    return {name: in_cache(file) / file.stat().st_size for name, file in files.items()}


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_not_there_is_gone(server, cold, workers):
    conn, files = cold
    vacuum(conn, workers=workers)
    after = cached(files)
    assert_worked(server)
    # what is still in the ring of each process is written later
    assert max(after.values()) < 0.3, after
    assert_vacuumed(conn)


def test_what_the_server_is_told_to_write_back_is_so_without_a_lock(server, cold):
    """As are all of these calls, in all of these tests: pages of the ring, for backend_flush_after.

    Not those of VACUUM FULL: where the server's own code finds a free buffer by writing another page, it may have a page locked.
    """
    conn, _ = cold
    conn.execute("SET cyclone.preserve_page_cache = off; SET min_parallel_table_scan_size = 0; SET backend_flush_after = '64kB'")
    conn.execute("ALTER SYSTEM SET fsync = on")  # or the server calls nothing
    conn.execute("SELECT pg_reload_conf()")
    try:
        wait_until(lambda: conn.execute("SHOW fsync").fetchone() == ("on",), "the reload")
        conn.execute("VACUUM (PARALLEL 2) t")
    finally:
        conn.execute("ALTER SYSTEM RESET fsync")
        conn.execute("SELECT pg_reload_conf()")
    assert seen(server).written > 0 and seen(server).asked == seen(server).locked == 0
    assert_vacuumed(conn)


@pytest.mark.once
def test_a_call_with_a_lock_is_noticed(server, cold, prefix):
    """As it would be if one of ours were made so."""
    conn, _ = cold
    build.install_test_module("test_hooks", prefix)
    conn.execute("CREATE EXTENSION test_hooks; SELECT drop_with_lock('t'); DROP EXTENSION test_hooks")
    assert (seen(server).dropped, seen(server).locked) == (1, 1)
    server.calls[:] = bytes(LAYOUT.size)


def test_what_is_in_shared_buffers_tells_nothing(prefix):
    """A table whose first 40 MB are there: that reading them brings nothing to the page cache doesn't end it."""
    base = disk()
    if base is None:
        pytest.skip("no folder here is on a disk with a page cache")
    with Cluster.create(prefix, {**CONFIG, "shared_buffers": "64MB", "cyclone.audit": 0}, base=base) as server:
        server.start()
        with server.connect() as conn:
            checks.create_extensions(conn)
            conn.execute("CREATE EXTENSION pg_prewarm")
            conn.execute("CREATE TABLE t (id int, filler text) WITH (autovacuum_enabled = off, fillfactor = 10)")
            conn.execute("INSERT INTO t SELECT i, repeat('x', 700) FROM generate_series(1, 10000) i")
            conn.execute("VACUUM (FREEZE) t")
            conn.execute("CHECKPOINT")
            [file] = files_of(server, conn, "t").values()
        server.restart()
        with server.connect() as conn:
            conn.execute(f"SELECT pg_prewarm('t', 'buffer', 'main', 0, {40 * MB // 8192 - 1})")
            drop(file)
            conn.execute("SET cyclone.preserve_page_cache = on")
            conn.execute("VACUUM (DISABLE_PAGE_SKIPPING, PARALLEL 0) t")
            assert file.stat().st_size > 75 * MB and in_cache(file) < 16 * MB
            checks.assert_clean(conn, "t")


def test_a_file_system_with_a_cache_of_its_own(server, cold):
    """It has nothing in the page cache, even of what has been read; nothing is dropped, as it might drop what was there before."""
    conn, _ = cold
    set_control(server, hides=1)
    vacuum(conn)
    assert seen(server).asked > 0 and seen(server).dropped == 0
    assert_vacuumed(conn)


def test_what_was_there_stays(cold):
    conn, files = cold
    half = files["t"].stat().st_size // 2 // MB * MB
    files["t_btree"].read_bytes()
    with open(files["t"], "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        while file.tell() < half:
            file.read(MB)
    before = cached(files)
    vacuum(conn)
    after = cached(files)
    assert min(before["t_btree"], after["t_btree"]) > 0.98, "all of it, but for what the system takes for others"
    assert before["t"] <= after["t"] < before["t"] + 0.2
    assert before["t_hash"] == 0 and after["t_hash"] < 0.2
    assert_vacuumed(conn)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("share, preserves", [(0.9, True), (1.1, False), (None, False)])
def test_by_itself_where_memory_is_full(server, cold, share, preserves, workers):
    """`share` of what the table and its indexes have is unused; None: the system doesn't tell."""
    conn, files = cold
    size = sum(file.stat().st_size for file in files.values())
    text = "MemTotal: 1 kB\n" if share is None else f"MemTotal: 1 kB\nMemFree: {int(size * share) // 1024} kB\n"
    server.meminfo.write_text(text)
    assert conn.execute("SELECT boot_val FROM pg_settings WHERE name = 'cyclone.preserve_page_cache'").fetchone() == ("auto",)
    vacuum(conn, "auto", workers)
    if preserves:
        assert max(cached(files).values()) < 0.3, cached(files)
    else:
        assert server.calls[:] == bytes(LAYOUT.size)
    assert_vacuumed(conn)


def test_without_the_setting_nothing_is_asked(server, cold):
    conn, files = cold
    vacuum(conn, "off")
    assert min(cached(files).values()) > 0.9
    assert server.calls[:] == bytes(LAYOUT.size)
    assert_vacuumed(conn)


@pytest.mark.parametrize(
    "call, error",
    [("mincore", "ENOSYS"), ("sync_file_range", "EIO"), ("posix_fadvise", "ENOSYS"), ("mmap", "ENODEV")]
    + [
        pytest.param(call, error, marks=pytest.mark.full)
        for call, error in (("mincore", "EIO"), ("sync_file_range", "ENOSYS"), ("posix_fadvise", "EIO"), ("mmap", "EPERM"))
    ],
)
def test_a_call_that_fails_ends_it_and_no_more(server, cold, call, error):
    conn, files = cold
    number = getattr(errno, error)
    messages = messages_to(conn)
    conn.execute("SET client_min_messages = debug1")
    set_control(server, failing=CALLS[call], error=number)
    vacuum(conn)
    first = seen(server)
    assert calls(server, call) == 1, "the first that failed was the last"
    said = [message for message in messages if "page cache" in message]
    assert said == [f"the page cache is not left as it was found: {call} failed: {os.strerror(number)}"]
    vacuum(conn)
    assert (seen(server) == first) == (error in ("ENOSYS", "EPERM")), "what is not allowed a process tries once"
    assert_vacuumed(conn)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_gin(server, cold, workers):
    """Entries of their own, and one with a posting tree. Cleanup, which the access method does by itself, reads all of the index."""
    conn, _ = cold
    conn.execute("DROP INDEX t_btree, t_hash")
    conn.execute("VACUUM t")
    conn.execute("ALTER TABLE t ADD keys int[]")
    conn.execute("UPDATE t SET keys = ARRAY(SELECT id * 40 + i FROM generate_series(1, 40) i) || 0")
    conn.execute("VACUUM t")
    conn.execute("CREATE INDEX t_gin ON t USING gin (keys)")
    conn.execute("DELETE FROM t WHERE id % 3 = 1")
    files = forget(server, conn, "t", "t_gin")
    vacuum(conn, workers=workers)
    assert_worked(server)
    assert cached(files)["t"] < 0.3, cached(files)
    set_control(server)
    files["t_gin"].read_bytes()
    conn.execute("DELETE FROM t WHERE id % 30 = 2")
    vacuum(conn, workers=workers)
    assert cached(files)["t_gin"] > 0.98, "what was there stays"
    assert conn.execute("SELECT count(*) FROM t WHERE keys @> '{0}'").fetchone() == (4799,)
    checks.assert_clean(conn, "t")


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("method, column", [("gist", "box(point(id, id), point(id, id))"), ("spgist", "repeat(md5(id::text), 20)")])
def test_gist_and_spgist(server, cold, method, column, workers):
    conn, _ = cold
    conn.execute("DROP INDEX t_btree, t_hash")
    conn.execute("VACUUM t")
    conn.execute(f"CREATE INDEX t_other ON t USING {method} (({column})) WITH (fillfactor = 10)")
    conn.execute("DELETE FROM t WHERE id % 30 = 1")
    files = forget(server, conn, "t", "t_other")
    vacuum(conn, workers=workers)
    assert_worked(server)
    assert max(cached(files).values()) < 0.3, cached(files)
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (10133,)
    checks.assert_clean(conn, "t")


def test_a_table_whose_end_is_cut_off(server, cold):
    """Of what isn't there any more nothing is dropped."""
    conn, files = cold
    conn.execute("DELETE FROM t WHERE id > 2000")
    before = forget(server, conn, "t", "t_btree", "t_hash")["t"].stat().st_size
    vacuum(conn, workers=2)
    assert files["t"].stat().st_size < before / 4
    assert max(cached({"t": files["t"], "t_btree": files["t_btree"]}).values()) < 0.5, cached(files)
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (1334,)
    checks.assert_clean(conn, "t")


def test_an_index_in_a_tablespace(server, cold):
    conn, files = cold
    place = server.home / "elsewhere"
    place.mkdir()
    hand_over(place)
    conn.execute(f"CREATE TABLESPACE elsewhere LOCATION '{place}'")
    try:
        conn.execute("ALTER INDEX t_btree SET TABLESPACE elsewhere")
        files = forget(server, conn, "t", "t_btree", "t_hash")
        assert "pg_tblspc" in str(files["t_btree"])
        vacuum(conn)
        assert_worked(server)
        assert max(cached(files).values()) < 0.3, cached(files)
        assert_vacuumed(conn)
    finally:
        conn.execute("DROP TABLE t")
        conn.execute("DROP TABLESPACE elsewhere")
        place.rmdir()


FULL_KINDS = ("t", "t_btree", "t_hash")


@pytest.mark.parametrize("workers", [0, 2])
def test_full_drops_what_it_reads(server, cold, workers):
    """Of the old table; its new files stay."""
    conn, files = cold
    settings = {"cyclone.preserve_page_cache": "on", "min_parallel_table_scan_size": 0}
    with Parked(server, conn.info.dbname, "rewrite-swap:leader", 1, f"VACUUM (FULL, PARALLEL {workers}) t", settings) as rewrite:
        assert cached(files)["t"] < 0.3
        rewrite.finish()
    assert min(seen(server).asked, seen(server).dropped) > 0 and seen(server).waited == 0
    assert min(cached(files_of(server, conn, *FULL_KINDS)).values()) > 0.9
    assert_vacuumed(conn)


def test_full_without_the_setting_asks_nothing(server, cold):
    conn, _ = cold
    full(conn, setting="off")
    assert min(cached(files_of(server, conn, *FULL_KINDS)).values()) > 0.9
    assert server.calls[:] == bytes(LAYOUT.size)
    assert_vacuumed(conn)


def full(conn, workers: int = 0, setting: str = "on") -> None:
    conn.execute(f"SET cyclone.preserve_page_cache = {setting}")
    conn.execute("SET min_parallel_table_scan_size = 0")
    conn.execute(f"VACUUM (FULL, PARALLEL {workers}) t")


@pytest.fixture
def sparse(server):
    """As cold, with a table m whose front has room for its tail."""
    with server.connect() as conn:
        conn.execute("DROP TABLE IF EXISTS m")
        conn.execute("CREATE TABLE m (id int, filler text) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO m SELECT i, repeat('x', 1500) FROM generate_series(1, 16000) i")
        conn.execute("DELETE FROM m WHERE id % 4 > 0")
        yield conn, forget(server, conn, "m")
        assert seen(server).locked == 0


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("setting", ["on", "off"])
def test_inplace(server, sparse, setting, workers):
    conn, files = sparse
    conn.execute("SET min_parallel_table_scan_size = 0")
    conn.execute(f"SET cyclone.preserve_page_cache = {setting}")
    before = files["m"].stat().st_size
    conn.execute(f"VACUUM (FULL INPLACE, PARALLEL {workers}) m")
    assert files["m"].stat().st_size < before / 3
    after = cached(files)["m"]
    if setting == "off":
        assert after > 0.9 and server.calls[:] == bytes(LAYOUT.size)
    else:
        assert after < 0.5 and seen(server).waited == 0
    assert conn.execute("SELECT count(*) FROM m").fetchone() == (4000,)
    checks.assert_clean(conn, "m")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("statement", ["VACUUM (FULL, PARALLEL 2) m", "VACUUM (FULL INPLACE, PARALLEL 2) m"])
def test_a_call_that_fails_ends_no_full(server, sparse, call, statement):
    conn, _ = sparse
    conn.execute("CREATE INDEX m_btree ON m (id)")
    forget(server, conn, "m")
    conn.execute("SET min_parallel_table_scan_size = 0")
    conn.execute("SET cyclone.preserve_page_cache = on")
    set_control(server, failing=CALLS[call], error=errno.EIO)
    conn.execute(statement)
    assert calls(server, call) > 0
    assert conn.execute("SELECT count(*) FROM m").fetchone() == (4000,)
    checks.assert_clean(conn, "m")
