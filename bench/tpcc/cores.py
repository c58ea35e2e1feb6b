"""What the load's sessions have of the cores: how long they ran, and how long they waited for one."""

from dataclasses import dataclass
from pathlib import Path

from cyclone_lab.cluster import Cluster


@dataclass(frozen=True)
class CoreUse:
    """Of all sessions of the load together, in seconds; since they began, or in some time."""

    ran: float
    waited: float  # for a core, while they could have run

    def since(self, before: "CoreUse | None", seconds: float) -> "CoreUse | None":
        """Return what they have had a second since `before`, which is `seconds` old; None if that isn't known."""
        return before and CoreUse((self.ran - before.ran) / seconds, (self.waited - before.waited) / seconds)


def core_use(server: Cluster) -> CoreUse | None:
    """Return what the kernel says the load's sessions have had so far; None if it doesn't count that."""
    ran = waited = 0
    try:
        for (pid,) in server.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'"):
            numbers = Path(f"/proc/{pid}/schedstat").read_text().split()
            ran, waited = ran + int(numbers[0]), waited + int(numbers[1])
    except FileNotFoundError:
        return None
    return CoreUse(ran / 1e9, waited / 1e9)
