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

import pytest

from conftest import CONFIG
from cyclone_lab import checks
from cyclone_lab.background import Parked
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import REPO
from cyclone_lab.shim import preloadable

MB = 1 << 20
CALLS = {"mincore": 1, "sync_file_range": 2, "posix_fadvise": 4}
LAYOUT = struct.Struct("7i")
WAIT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


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
    """Have all of a file written, and nothing of it in the page cache."""
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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


def forget(server, conn, *relations: str) -> dict[str, Path]:
    """Have nothing of these relations in the page cache, and no call counted; return their files."""
    conn.execute("CHECKPOINT")
    found = files_of(server, conn, *relations)
    for file in found.values():
        drop(file)
        assert file.stat().st_size > 4 * MB
        assert in_cache(file) == 0
    server.calls[:] = bytes(LAYOUT.size)
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


def cached(files) -> dict[str, float]:
    return {name: in_cache(file) / file.stat().st_size for name, file in files.items()}


@pytest.mark.parametrize(
    "effective_cache_size, workers",  # in 64 kB it finds no room, so the first pass is to drop the heap, too
    [("64kB", 2), ("4GB", 0), pytest.param("64kB", 0, marks=pytest.mark.full), pytest.param("4GB", 2, marks=pytest.mark.full)],
)
def test_what_was_not_there_is_gone(server, cold, effective_cache_size, workers):
    conn, files = cold
    conn.execute(f"SET effective_cache_size = '{effective_cache_size}'")
    vacuum(conn, workers=workers)
    after = cached(files)
    _, _, asked, written, dropped, waited, _ = LAYOUT.unpack(server.calls[:])
    assert min(asked, written, dropped) > 0 and waited == 0, "nobody waits until something is written"
    # what is still in the ring of each process is written later
    assert max(after.values()) < 0.3, after
    assert_vacuumed(conn)


def test_a_file_system_with_a_cache_of_its_own(server, cold):
    """It has nothing in the page cache, even of what has been read; nothing is dropped, as it might drop what was there before."""
    conn, _ = cold
    server.calls[:] = LAYOUT.pack(0, 0, 0, 0, 0, 0, 1)
    vacuum(conn)
    _, _, asked, _, dropped, _, _ = LAYOUT.unpack(server.calls[:])
    assert asked > 0 and dropped == 0
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
    assert after["t_btree"] == before["t_btree"] == 1
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
    [("mincore", "ENOSYS"), ("sync_file_range", "EIO"), ("posix_fadvise", "ENOSYS")]
    + [
        pytest.param(call, error, marks=pytest.mark.full)
        for call, error in (("mincore", "EIO"), ("sync_file_range", "ENOSYS"), ("posix_fadvise", "EIO"))
    ],
)
def test_a_call_that_fails_ends_it_and_no_more(server, cold, call, error):
    conn, files = cold
    number = getattr(errno, error)
    messages: list[str] = []
    conn.add_notice_handler(lambda message: messages.append(message.message_primary))
    conn.execute("SET client_min_messages = debug1")
    server.calls[:] = LAYOUT.pack(CALLS[call], number, 0, 0, 0, 0, 0)
    vacuum(conn)
    calls = LAYOUT.unpack(server.calls[:])[2:5]
    assert calls[list(CALLS).index(call)] == 1, "the first that failed was the last"
    said = [message for message in messages if "page cache" in message]
    assert said == [f"the page cache is not left as it was found: {call} failed: {os.strerror(number)}"]
    vacuum(conn)
    again = LAYOUT.unpack(server.calls[:])[2:5]
    assert (again == calls) == (error == "ENOSYS"), "what is not allowed a process tries once"
    assert_vacuumed(conn)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_gin(server, cold, workers):
    """Entries of their own, and one with a posting tree: also after cleanup, which reads all of the index."""
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
    _, _, asked, written, dropped, waited, _ = LAYOUT.unpack(server.calls[:])
    assert min(asked, written, dropped) > 0 and waited == 0
    assert max(cached(files).values()) < 0.3, cached(files)
    server.calls[:] = bytes(LAYOUT.size)
    files["t_gin"].read_bytes()
    conn.execute("DELETE FROM t WHERE id % 30 = 2")
    vacuum(conn, workers=workers)
    assert cached(files)["t_gin"] == 1, "what was there stays"
    assert conn.execute("SELECT count(*) FROM t WHERE keys @> '{0}'").fetchone() == (4799,)
    checks.assert_clean(conn, "t")


FULL_KINDS = ("t", "t_btree", "t_hash")


@pytest.mark.parametrize("workers", [0, 2])
def test_full_drops_what_it_reads(server, cold, workers):
    """Of the old table; its new files stay."""
    conn, files = cold
    settings = {"cyclone.preserve_page_cache": "on", "min_parallel_table_scan_size": 0}
    with Parked(server, conn.info.dbname, "rewrite-swap:leader", 1, f"VACUUM (FULL, PARALLEL {workers}) t", settings) as rewrite:
        assert cached(files)["t"] < 0.3
        rewrite.release()
        rewrite.finish()
    _, _, asked, _, dropped, waited, _ = LAYOUT.unpack(server.calls[:])
    assert min(asked, dropped) > 0 and waited == 0
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
        assert after < 0.5 and LAYOUT.unpack(server.calls[:])[5] == 0
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
    server.calls[:] = LAYOUT.pack(CALLS[call], errno.EIO, 0, 0, 0, 0, 0)
    conn.execute(statement)
    assert LAYOUT.unpack(server.calls[:])[2 + list(CALLS).index(call)] > 0
    assert conn.execute("SELECT count(*) FROM m").fetchone() == (4000,)
    checks.assert_clean(conn, "m")
