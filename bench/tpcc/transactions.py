"""The load: the five transactions in the specification's mix, by pgbench, which keeps to a rate and logs each transaction."""

import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import program_env, program_path
from tpcc.load import Sizes

SCRIPTS = Path(__file__).resolve().parent / "scripts"
NEW_ORDER = "new_order"
# Share of each script in a hundred transactions
MIX = {NEW_ORDER: 45, "payment": 43, "order_status": 4, "delivery": 4, "stock_level": 4}
STOP_SECONDS = 60


@dataclass(frozen=True)
class Transaction:
    """A line of pgbench's log."""

    script: str
    end: float  # seconds since the epoch
    seconds: float  # from when the rate wanted it to begin, so the wait for a free client counts

    @property
    def begin(self) -> float:
        return self.end - self.seconds


def pgbench_arguments(sizes: Sizes, *, clients: int, seed: int = 1, mix: dict[str, int] = MIX) -> list[str]:
    """Return what makes pgbench run the scripts of this mix on tables of these sizes."""
    return [
        "--no-vacuum",
        "--protocol=prepared",
        f"--client={clients}",
        f"--random-seed={seed}",
        *(f"--define={name}={value}" for name, value in sizes.variables().items()),
        *(f"--file={SCRIPTS / name}.sql@{weight}" for name, weight in mix.items()),
    ]


class Load:
    """pgbench at work, from the moment it is made until `stop`."""

    def __init__(self, cluster: Cluster, sizes: Sizes, folder: Path, *, clients: int, seconds: float, rate: float | None):
        """Start it, for at most `seconds`, at `rate` transactions a second or, without one, as fast as it goes.

        It logs to the empty folder `folder`.
        """
        self._folder = folder
        command = [program_path(cluster.prefix, "pgbench"), *pgbench_arguments(sizes, clients=clients)]
        command += ["--log", f"--log-prefix={folder / 'log'}", f"--time={max(1, round(seconds))}"]
        command += [f"--rate={rate:.1f}"] if rate else []
        env = program_env(cluster.prefix, **cluster.client_env())
        self._process = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_exception) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def stop(self) -> None:
        """End it as if its time were up; raise RuntimeError with its output if it failed or a client gave up."""
        self._process.send_signal(signal.SIGALRM)  # what its own timer sends
        output, _ = self._process.communicate(timeout=STOP_SECONDS)
        if self._process.returncode != 0:
            raise RuntimeError(f"pgbench failed with status {self._process.returncode}:\n{output}")

    def transactions(self) -> tuple[list[Transaction], int]:
        """Return what was logged, and how many transactions failed; to be called after `stop`."""
        names = list(MIX)
        done, failed = [], 0
        for log in self._folder.glob("log*"):
            for line in log.read_text().splitlines():
                _client, _number, microseconds, script, epoch, epoch_microseconds, *_ = line.split()
                if microseconds == "failed":
                    failed += 1
                else:
                    end = int(epoch) + int(epoch_microseconds) / 1e6
                    done.append(Transaction(names[int(script)], end, int(microseconds) / 1e6))
        return sorted(done, key=lambda transaction: transaction.end), failed
