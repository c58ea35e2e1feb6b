"""What pg_cyclone costs those who don't use it: a server that preloads it with cyclone.enabled = off, and one without it.

Both servers run on equal copies of a data directory, one of them idle while the other is measured: `pgbench -S`, and a thousand
VACUUMs of a small table, one after the other, in one session. They take turns, in another order each round. Turns are short and
rounds many, and a round's ratio is what counts. Processor time is less disturbed by what else goes on in the machine.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autovacuum.processes import server_seconds
from cyclone_lab.cluster import Cluster

CONFIG = {"autovacuum": "off", "fsync": "off", "shared_buffers": "256MB", "checkpoint_timeout": "1h"}
WITHOUT, WITH = "without pg_cyclone", "preloaded, cyclone.enabled = off"
SERVERS = {WITHOUT: {}, WITH: {"shared_preload_libraries": "pg_cyclone", "cyclone.enabled": "off"}}
SCALE = 10
CLIENTS = 2
SECONDS = 4
VACUUMS = 1000


TRANSACTIONS, TRANSACTION_TIME = "pgbench -S, transactions a second", "processor time of one, µs"
VACUUMS_A_SECOND, VACUUM_TIME = "VACUUMs of a small table a second", "processor time of a VACUUM, µs"


@dataclass
class Seam:
    """What both servers did: by what was measured and by server, round by round."""

    measured: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, server: str, numbers: dict[str, float]) -> None:
        for what, number in numbers.items():
            self.measured.setdefault(what, {WITHOUT: [], WITH: []})[server].append(number)

    def ratios(self, what: str) -> list[float]:
        """Return what was measured with the library as a part of that without it, round by round."""
        values = self.measured[what]
        return [there / here for there, here in zip(values[WITH], values[WITHOUT])]


def measure(prefix: Path, config: dict, *, rounds: int, base: Path, say: Callable[[str], None] = print) -> Seam:
    """Measure both servers, with these settings, in `rounds` rounds; `say` is called with each line of progress."""
    result = Seam()
    with Cluster.create(prefix, config, base=base) as here:
        here.start()
        here.run("pgbench", "-i", "-q", "-s", str(SCALE))
        here.sql("CREATE TABLE small AS SELECT i id FROM generate_series(1, 100) i")
        here.sql("CREATE INDEX ON small (id)")
        here.sql("VACUUM (FREEZE, ANALYZE)")
        here.stop()
        with here.copy(base=base) as there:
            there.config |= SERVERS[WITH]
            servers = {WITHOUT: here.start(), WITH: there.start()}
            for server in servers.values():
                _selects(server)
                _vacuums(server)
            for number in range(1, rounds + 1):
                for work in (_selects, _vacuums):
                    for name in list(SERVERS)[:: 1 if number % 2 else -1]:
                        result.add(name, work(servers[name]))
                say(f"seam, round {number} of {rounds}: done")
    return result


def _selects(server: Cluster) -> dict[str, float]:
    """Return the transactions a second of `pgbench -S`, and what one takes of the server's processor time."""
    used = server_seconds(server.postmaster.pid)
    done = server.run("pgbench", "-n", "-S", "-M", "prepared", "-c", str(CLIENTS), "-T", str(SECONDS))
    used = server_seconds(server.postmaster.pid) - used
    transactions = int(re.search(r"actually processed: (\d+)", done.stdout)[1])
    return {TRANSACTIONS: float(re.search(r"tps = ([\d.]+)", done.stdout)[1]), TRANSACTION_TIME: used / transactions * 1e6}


def _vacuums(server: Cluster) -> dict[str, float]:
    """Return how many VACUUMs of the small table a session does a second, and what one takes of its processor time."""
    with server.connect() as conn:
        conn.execute("VACUUM small")  # which also reads the catalogs
        schedstat = Path(f"/proc/{conn.info.backend_pid}/schedstat")  # nanoseconds first
        used, begin = int(schedstat.read_text().split()[0]), time.perf_counter()
        for _ in range(VACUUMS):
            conn.execute("VACUUM small")
        seconds = time.perf_counter() - begin
        used = int(schedstat.read_text().split()[0]) - used
    return {VACUUMS_A_SECOND: VACUUMS / seconds, VACUUM_TIME: used / VACUUMS / 1000}
