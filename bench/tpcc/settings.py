"""The ways to vacuum that are compared. To add one, add it here."""

from dataclasses import dataclass, field

NO_VACUUM = "no-vacuum"
TARGET = "cyclone-target"


@dataclass(frozen=True)
class Setting:
    """How the large tables are vacuumed in one run."""

    name: str
    title: str
    about: str
    parameters: dict[str, str] = field(default_factory=dict)  # settings of the session that vacuums

    @property
    def vacuums(self) -> bool:
        return self.name != NO_VACUUM


def _core(**parameters: str) -> dict[str, str]:
    return {"cyclone.enabled": "off", **parameters}


def _costs(hit: int, miss: int, dirty: int, limit: int, delay: str) -> dict[str, str]:
    """Return the settings of a cost-based delay."""
    costs = {"hit": hit, "miss": miss, "dirty": dirty}
    return {
        **{f"vacuum_cost_page_{name}": str(cost) for name, cost in costs.items()},
        "vacuum_cost_limit": str(limit),
        "vacuum_cost_delay": delay,
    }


def settings_with(targets: list[str]) -> list[Setting]:
    """Return all settings in the order in which they are run and shown; of the latency target one for each of `targets`."""
    return [
        Setting(NO_VACUUM, "no VACUUM", "the large tables are not vacuumed"),
        Setting("core-no-delay", "PostgreSQL, no delay", "PostgreSQL's defaults for VACUUM", _core(vacuum_cost_delay="0")),
        # In 2004 the delay was 200 ms, twice what is allowed today; half of it at half the limit is the same pace.
        Setting("core-2004-1", "PostgreSQL, 2004-1",
                "the first settings of 2004: page costs 4, 10, 20; 200 a 200 ms, made 100 a 100 ms",
                _core(**_costs(4, 10, 20, 100, "100ms"))),
        Setting("core-2004-2", "PostgreSQL, 2004-2",
                "the second settings of 2004: page costs 6, 10, 20; 100 a 200 ms, made 50 a 100 ms",
                _core(**_costs(6, 10, 20, 50, "100ms"))),
        Setting("core-autovacuum", "PostgreSQL, as autovacuum", "autovacuum's defaults: page costs 1, 2, 20; 200 a 2 ms",
                _core(**_costs(1, 2, 20, 200, "2ms"))),
        Setting("cyclone-no-delay", "pg_cyclone, no delay", "pg_cyclone as it comes", {"vacuum_cost_delay": "0"}),
        *(Setting(TARGET, f"pg_cyclone, latency target {target}", f"cyclone.latency_target = {target}, no delay else",
                  {"vacuum_cost_delay": "0", "cyclone.latency_target": target, "cyclone.latency_percentile": "99"})
          for target in targets),
    ]  # fmt: skip
