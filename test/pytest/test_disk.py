"""The disk of `bench-tpcc --disk` does what its model says, to 5 %: against queueing theory, on a clock of the test's own.

So no test here depends on how fast the machine is. That the library makes calls wait is tested with processes and servers, by
what the disk has counted, and by times that nothing may fall below.
"""

import ctypes
import heapq
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from cyclone_lab import slow_disk
from cyclone_lab.cluster import Cluster
from cyclone_lab.slow_disk import HEAD_START_US, PRESETS, Model, SlowDisk

PAGE = 8192
ARM, VOLUME = PRESETS["2004"].model, PRESETS["cloud"].model
RELATION, WAL = False, True
SECOND = 1_000_000


class Modelled:
    """A disk that is asked directly, at moments that the test chooses. Times are in microseconds since it began."""

    def __init__(self, disk: SlowDisk, model: Model):
        disk.renew(model)
        self.disk = disk
        self.model = model
        self._library = ctypes.CDLL(str(disk.library))
        self._state = ctypes.addressof(ctypes.c_char.from_buffer(disk.map))
        number = ctypes.c_int64
        for name, arguments in {"read": 4, "write": 4, "sync": 3, "append": 2}.items():
            function = getattr(self._library, f"disk_{name}")
            function.argtypes = [ctypes.c_void_p] + [number] * arguments
            function.restype = number if name != "append" else None

    def read(self, now, file, offset, size=PAGE):
        return self._library.disk_read(self._state, now + HEAD_START_US, file, offset, size) - HEAD_START_US

    def write(self, now, file, offset, size=PAGE):
        return self._library.disk_write(self._state, now + HEAD_START_US, file, offset, size) - HEAD_START_US

    def sync(self, now, file, kind):
        return self._library.disk_sync(self._state, now + HEAD_START_US, file, kind) - HEAD_START_US

    def append(self, file, size):
        self._library.disk_append(self._state, file, size)

    def transfer(self, size=PAGE):
        return size * SECOND // self.model.bytes_per_second


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    return SlowDisk(ARM, base=tmp_path_factory.mktemp("disk"))


@pytest.fixture
def arm(disk):
    return Modelled(disk, ARM)


@pytest.fixture
def volume(disk):
    return Modelled(disk, VOLUME)


@pytest.fixture
def rng():
    return random.Random(2004)


def elsewhere(rng):
    """A file and an offset that nobody has been at."""
    return rng.getrandbits(60), rng.getrandbits(40) * PAGE


def close(value):
    return pytest.approx(value, rel=0.05)


def read_in_turn(modelled, rng, streams, number, size=PAGE):
    """Let some processes read at random, each as soon as it has what it wanted; return operations a second, and the mean time."""
    turns = [(0, stream) for stream in range(streams)]
    spent = 0
    for _ in range(number):
        now, stream = heapq.heappop(turns)
        done = modelled.read(now, *elsewhere(rng), size)
        spent += done - now
        heapq.heappush(turns, (done, stream))
    return number * SECOND / max(turns)[0], spent / number


@pytest.mark.parametrize("streams", [1, 8])
def test_an_arm_serves_one_after_the_other(arm, rng, streams):
    """As many a second from however many processes; they share them, and with 8 of them each waits for 7 others."""
    service = ARM.operation_us + arm.transfer()
    rate, mean = read_in_turn(arm, rng, streams, 5000)
    assert rate == close(SECOND / service) and mean == close(streams * service)
    counts = arm.disk.counts()
    assert (counts.reads, counts.read_bytes, counts.busy_us) == (5000, 5000 * PAGE, 5000 * service)
    assert counts.waited_us == close(5000 * mean) and counts.sequential == 0


def test_a_volume_serves_many_up_to_its_limits(disk, rng):
    """One process has its latency only; many have the operations a second, and large ones the bytes a second."""
    model = replace(VOLUME, burst_us=0)
    for streams, size, expected in (
        (1, PAGE, SECOND / VOLUME.latency_us),
        (2, PAGE, 2 * SECOND / VOLUME.latency_us),
        (16, PAGE, 3000),
        (16, 128 << 10, VOLUME.bytes_per_second / (128 << 10)),
        (16, 1 << 20, VOLUME.bytes_per_second / (1 << 20)),
    ):
        rate, mean = read_in_turn(Modelled(disk, model), rng, streams, 5000, size)
        assert rate == close(expected) and mean == close(streams * SECOND / expected)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_reads_at_random_times_wait_as_in_theory(arm, rng, load):
    """Each waits until those before it are done, to the microsecond. The mean is what Pollaczek and Khinchine say of M/D/1, and of
    M/G/1 with sizes that differ; with a high load it would take more reads than these to see that.
    """
    for sizes in ([PAGE], [PAGE, 128 << 10, 1 << 20]):
        modelled = Modelled(arm.disk, ARM)
        services = [ARM.operation_us + modelled.transfer(size) for size in sizes]
        mean = sum(services) / len(services)
        square = sum(service**2 for service in services) / len(services)
        arrival, free, waited, number = 0.0, 0, 0, 50_000
        for _ in range(number):
            arrival += rng.expovariate(load / mean)
            now = int(arrival)
            begin = max(now, free)
            size = rng.choice(sizes)
            free = begin + ARM.operation_us + modelled.transfer(size)
            assert modelled.read(now, *elsewhere(rng), size) == free
            waited += begin - now
        assert load > 0.8 or waited / number == close(load / mean * square / 2 / (1 - load))


@pytest.mark.parametrize("reads, writes", [(0.4, 0.3), (0.3, 0.6)])
def test_reads_go_before_queued_writes(arm, rng, reads, writes):
    """They wait for other reads, and for what is just being written, as in theory with two priorities (Cobham)."""
    service = ARM.operation_us + arm.transfer()
    now, waited, number = 0.0, 0, 0
    while number < 60_000:
        now += rng.expovariate((reads + writes) / service)
        if rng.random() < reads / (reads + writes):
            waited += arm.read(int(now), *elsewhere(rng)) - int(now) - service
            number += 1
        else:
            assert arm.write(int(now), *elsewhere(rng)) == int(now)
    rest = (reads + writes) * service / 2  # of the one that is being served
    assert waited / number == close(rest / (1 - reads))
    assert arm.disk.counts().throttled == 0


def test_writes_are_done_in_idle_time(arm, rng):
    """And are gone then: who reads much later doesn't wait for them; who reads before waits for one at most."""
    service = ARM.operation_us + arm.transfer()
    for _ in range(100):
        assert arm.write(0, *elsewhere(rng)) == 0
    first = arm.read(1000, *elsewhere(rng)) - 1000
    assert service < first <= service + ARM.operation_us
    assert arm.read(10 * SECOND, *elsewhere(rng)) - 10 * SECOND == service


def test_who_writes_too_much_writes_at_the_speed_of_the_disk(arm, rng):
    service = ARM.operation_us + arm.transfer()
    now = 0
    for _ in range(3000):
        now = arm.write(now, *elsewhere(rng))
    assert now == close(3000 * service - ARM.dirty_us)
    assert arm.disk.counts().throttled == close(3000 - ARM.dirty_us / service)


def test_a_sequence_pays_for_few_positions(arm, volume, disk):
    """An arm that nobody disturbs reads as fast as it transfers; one that moves to and fro, by what is read ahead."""
    number = 4000
    for modelled, streams, each in (
        (arm, 1, arm.transfer()),
        (arm, 2, arm.transfer() + ARM.operation_us // 16),
        (volume, 1, volume.transfer()),
        (volume, 2, volume.transfer()),
    ):
        disk.renew(modelled.model)
        now = 0
        for page in range(number):
            for stream in range(streams):
                now = modelled.read(now, 1 + stream, page * PAGE)
        assert now == close(number * streams * each)
        assert disk.counts().sequential == close(streams * number)  # two ends may be remembered at one place


def test_writes_in_sequence_are_merged(arm, rng):
    number = 3000
    for page in range(number):
        arm.write(0, 1, page * PAGE)
    assert arm.disk.counts().busy_us == close(number * (arm.transfer() + ARM.operation_us / 16))


def test_a_burst_is_saved_up(volume, rng):
    """After a second without work, a volume does a second's more, and then no more than its limit."""
    rate = 10_000  # that is asked for, a second
    done = [volume.read(second * SECOND // rate, *elsewhere(rng)) for second in range(rate)]
    at_once = sum(end - number * SECOND // rate <= VOLUME.latency_us for number, end in enumerate(done))
    per_second = SECOND / VOLUME.operation_us
    assert at_once == close(per_second * VOLUME.burst_us / SECOND / (1 - per_second / rate))
    assert (done[-1] - done[-2000]) / 2000 == close(VOLUME.operation_us)


def test_a_sync_waits_for_what_was_written(arm, rng):
    service = ARM.operation_us + arm.transfer()
    # WAL: all since the last one at once; a second one waits for the first, a third one later for nothing
    arm.append(7, 3 * PAGE)
    done = arm.sync(0, 7, WAL)
    assert done == ARM.operation_us + arm.transfer(3 * PAGE)
    assert arm.sync(1000, 7, WAL) == done and arm.sync(2 * done, 7, WAL) <= 2 * done
    # a relation: its part of the queue goes before the others'
    now = SECOND
    for _ in range(50):
        arm.write(now, 8, elsewhere(rng)[1])
        arm.write(now, 9, elsewhere(rng)[1])
    assert arm.sync(now, 8, RELATION) - now == close(50 * service)
    assert arm.sync(now, 9, RELATION) - now == close(100 * service)
    later = now + 101 * service
    assert arm.read(later, *elsewhere(rng)) - later == service, "something is left in the queue"


READER = """
import os, random, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
for _ in range(int(sys.argv[2])):
    page = random.randrange(1 << 30)
    data = os.pread(descriptor, 8192, page * 8192)
"""


def python(disk, *arguments, **options):
    return subprocess.Popen([sys.executable, "-S", "-c", *map(str, arguments)], env={**os.environ, **disk.env}, **options)


@pytest.fixture
def relation(tmp_path):
    """The path of a file that looks like a relation's."""
    path = tmp_path / "base" / "5" / "16384"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * (1 << 20))
    return path


def test_processes_take_turns(disk, relation):
    """Eight of them read for no less time than the disk needs for all, and none of their reads is lost or counted twice."""
    model = replace(ARM, operation_us=2000)
    disk.renew(model)
    begin = time.monotonic()
    processes = [python(disk, READER, relation, 50) for _ in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
    elapsed = time.monotonic() - begin
    counts = disk.counts()
    assert counts.reads == 400 and counts.read_bytes == 400 * PAGE
    assert counts.busy_us == 400 * (model.operation_us + PAGE * SECOND // model.bytes_per_second)
    assert elapsed * SECOND >= counts.busy_us


def test_only_relations_and_wal_are_slow(disk, tmp_path):
    disk.renew(replace(ARM, operation_us=10))
    data = b"y" * PAGE
    program = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
assert os.pwrite(descriptor, b"y" * 8192, 8192) == 8192
os.fsync(descriptor)
os.fdatasync(descriptor)
assert os.pread(descriptor, 16384, 0) == bytes(8192) + b"y" * 8192
"""
    for path, expected in {
        "base/5/16384": (1, 1, 0),
        "base/5/16384.1": (1, 1, 0),
        "base/5/t3_16384_fsm": (1, 1, 0),
        "global/1262_vm": (1, 1, 0),
        "pg_wal/000000010000000000000001": (1, 0, PAGE),
        "pg_wal/xlogtemp.123": (1, 0, PAGE),
        "base/pgsql_tmp/pgsql_tmp1.0": (0, 0, 0),
        "global/pg_control": (0, 0, 0),
        "pg_wal/archive_status/000000010000000000000001.ready": (0, 0, 0),
        "pg_xact/0000": (0, 0, 0),
        "16384": (0, 0, 0),
    }.items():
        before = disk.counts()
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        assert python(disk, program, file).wait() == 0
        after = disk.counts()
        found = (after.reads - before.reads, after.writes - before.writes, after.wal_bytes - before.wal_bytes)
        assert found == expected and file.read_bytes() == bytes(PAGE) + data, path


def test_signals_do_not_end_a_read(disk, relation):
    """It takes its time, and returns what it should, while a timer fires every millisecond."""
    disk.renew(replace(ARM, operation_us=300_000))
    program = """
import os, signal, sys, time
fired = []
signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
descriptor = os.open(sys.argv[1], os.O_RDONLY)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
begin = time.monotonic()
data = os.pread(descriptor, 8192, 0)
taken = time.monotonic() - begin
signal.setitimer(signal.ITIMER_REAL, 0)
assert data == b"x" * 8192 and taken >= 0.3 and fired, (len(data), taken, fired)
"""
    assert python(disk, program, relation).wait() == 0


def test_a_killed_process_leaves_no_lock(disk, relation):
    """Only the place in the queue that it had."""
    model = replace(ARM, operation_us=30 * SECOND)
    modelled = Modelled(disk, model)
    process = python(disk, READER, relation, 1)
    try:
        while disk.counts().reads == 0 and process.poll() is None:
            time.sleep(0.001)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    now = 1000 * SECOND
    done = modelled.read(now, *elsewhere(random))
    assert process.returncode == -signal.SIGKILL and done == now + model.operation_us + modelled.transfer()


def test_a_server_reads_and_writes_through_it(prefix, pg_major):
    """As many bytes are read as the server says, by whoever reads them; WAL and writes of a VACUUM and a checkpoint are there."""
    config = {
        "shared_preload_libraries": "pg_cyclone",
        "autovacuum": "off",
        "shared_buffers": "2MB",
        "max_logical_replication_workers": 0,  # the launcher reads a catalog now and then
    }
    with Cluster.create(prefix, config) as server:
        disk = slow_disk.give(server, replace(ARM, operation_us=20, bytes_per_second=1 << 32))
        for io_method in ("worker", "sync") if pg_major >= 18 else (None,):  # before 18 there is one way only
            server.config = {**config, "io_method": io_method} if io_method else config
            server.start()
            with server.connect() as conn:
                assert_all_is_counted(conn, disk)
            server.stop()


def assert_all_is_counted(conn, disk):
    conn.execute("SET max_parallel_workers_per_gather = 0")
    conn.execute("DROP TABLE IF EXISTS t")
    conn.execute("CREATE TABLE t AS SELECT i, repeat('x', 500) AS v FROM generate_series(1, 10000) i")
    conn.execute("CREATE INDEX ON t (i)")
    for _ in range(2):  # at the second time, the session knows the catalogs
        before = disk.counts()
        plan = conn.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT count(v) FROM t").fetchone()[0][0]
        after = disk.counts()
    pages = plan["Plan"]["Shared Read Blocks"] + plan.get("Planning", {}).get("Shared Read Blocks", 0)
    assert pages > 400 and after.read_bytes - before.read_bytes == pages * PAGE
    assert after.reads > before.reads and after.waited_us > before.waited_us

    before = disk.counts()
    [(lsn,)] = conn.execute("SELECT pg_current_wal_lsn()")
    conn.execute("DELETE FROM t WHERE i % 2 = 0")
    conn.execute("VACUUM (PARALLEL 2) t")
    conn.execute("CHECKPOINT")
    [(wal_bytes,)] = conn.execute("SELECT pg_current_wal_lsn() - %s", (lsn,))
    after = disk.counts()
    assert after.write_bytes - before.write_bytes >= 600 * PAGE
    assert after.wal_bytes - before.wal_bytes >= wal_bytes and after.syncs > before.syncs
    assert conn.execute("SELECT count(*), sum(i) FROM t").fetchone() == (5000, 25_000_000)
