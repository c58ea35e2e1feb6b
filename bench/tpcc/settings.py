"""The ways to vacuum that are compared. To add one, add it here."""

from dataclasses import dataclass, field

NO_VACUUM = "no-vacuum"
TARGET = "cyclone-target"
# Curves of harm against time, and of which settings they consist
CORE_CURVE = "PostgreSQL, budgets"
CYCLONE_CURVE = "pg_cyclone, budgets"
TARGET_CURVE = "pg_cyclone, latency target"


@dataclass(frozen=True)
class Setting:
    """How the large tables are vacuumed in one run."""

    name: str
    title: str
    about: str
    parameters: dict[str, str] = field(default_factory=dict)  # settings of the session that vacuums
    curve: str = ""  # of which it is a point; empty if of none

    @property
    def vacuums(self) -> bool:
        return self.name != NO_VACUUM


_TARGET = Setting(TARGET, "pg_cyclone, latency target auto", "cyclone.latency_target = auto, no delay else",
                  {"vacuum_cost_delay": "0", "cyclone.latency_target": "auto"}, TARGET_CURVE)  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """What a VACUUM may cost: `limit` in `delay_ms` milliseconds, with autovacuum's page costs 1, 2 and 20."""

    limit: int
    delay_ms: int

    def __str__(self) -> str:
        return f"{self.limit}/{self.delay_ms}"

    def parameters(self) -> dict[str, str]:
        return _costs(1, 2, 20, self.limit, f"{self.delay_ms}ms")


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


def usual_settings() -> list[Setting]:
    """Return all settings in the order in which they are run and shown."""
    core_no_delay, *_ = _budget_settings([], CORE_CURVE)
    cyclone_no_delay, *_ = _budget_settings([], CYCLONE_CURVE)
    return [
        Setting(NO_VACUUM, "no VACUUM", "the large tables are not vacuumed"),
        core_no_delay,
        # In 2004 the delay was 200 ms, twice what is allowed today; half of it at half the limit is the same pace.
        Setting("core-2004-1", "PostgreSQL, 2004-1",
                "the first settings of 2004: page costs 4, 10, 20; 200 a 200 ms, made 100 a 100 ms",
                _core(**_costs(4, 10, 20, 100, "100ms"))),
        Setting("core-2004-2", "PostgreSQL, 2004-2",
                "the second settings of 2004: page costs 6, 10, 20; 100 a 200 ms, made 50 a 100 ms",
                _core(**_costs(6, 10, 20, 50, "100ms"))),
        Setting("core-autovacuum", "PostgreSQL, as autovacuum", "autovacuum's defaults: page costs 1, 2, 20; 200 a 2 ms",
                _core(**Budget(200, 2).parameters()), CORE_CURVE),
        cyclone_no_delay,
        _TARGET,
    ]  # fmt: skip


def curve_settings(budgets: list[Budget]) -> list[Setting]:
    """Return the points of the curves of harm against time: no delay and these budgets, by each engine, and the target.

    Engines take turns, so that what changes in the machine meets both.
    """
    pairs = zip(_budget_settings(budgets, CORE_CURVE), _budget_settings(budgets, CYCLONE_CURVE))
    return [*(setting for pair in pairs for setting in pair), _TARGET]


def _budget_settings(budgets: list[Budget], curve: str) -> list[Setting]:
    """Return a setting without a delay, and one for each budget, of this curve's engine."""
    name, title, common = ("core", "PostgreSQL", _core()) if curve == CORE_CURVE else ("cyclone", "pg_cyclone", {})
    about = "PostgreSQL's defaults for VACUUM" if curve == CORE_CURVE else "pg_cyclone as it comes"
    return [
        Setting(f"{name}-no-delay", f"{title}, no delay", about, {**common, "vacuum_cost_delay": "0"}, curve),
        *(Setting(f"{name}-{budget}", f"{title}, {budget.limit} a {budget.delay_ms} ms",
                  f"page costs 1, 2, 20; {budget.limit} a {budget.delay_ms} ms", {**common, **budget.parameters()}, curve)
          for budget in budgets),
    ]  # fmt: skip
