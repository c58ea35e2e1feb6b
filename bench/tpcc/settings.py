"""The ways to vacuum that are compared: no delay and budgets, by each engine, and the adaptive delay."""

from dataclasses import dataclass

ADAPTIVE = "cyclone-adaptive"
# Curves of harm against time, and of which settings they consist
CORE_CURVE = "PostgreSQL, budgets"
CYCLONE_CURVE = "pg_cyclone, budgets"
ADAPTIVE_CURVE = "pg_cyclone, adaptive delay"


@dataclass(frozen=True)
class Setting:
    """How the large tables are vacuumed in one run."""

    name: str
    title: str
    curve: str  # of which it is a point
    parameters: dict[str, str]  # settings of the session that vacuums


@dataclass(frozen=True)
class Budget:
    """What a VACUUM may cost: `limit` in `delay_ms` milliseconds, with autovacuum's page costs 1, 2 and 20."""

    limit: int
    delay_ms: int

    def __str__(self) -> str:
        return f"{self.limit}/{self.delay_ms}"

    def parameters(self) -> dict[str, str]:
        """Return the settings of the session."""
        costs = {"vacuum_cost_page_hit": "1", "vacuum_cost_page_miss": "2", "vacuum_cost_page_dirty": "20"}
        return costs | {"vacuum_cost_limit": str(self.limit), "vacuum_cost_delay": f"{self.delay_ms}ms"}


def all_settings(budgets: list[Budget]) -> list[Setting]:
    """Return the points of the curves of harm against time: no delay and these budgets, by each engine, and the adaptive one.

    Engines take turns, so that what changes in the machine meets both.
    """
    engines = (("core", "PostgreSQL", CORE_CURVE, {"cyclone.enabled": "off"}), ("cyclone", "pg_cyclone", CYCLONE_CURVE, {}))
    paces = [("no-delay", "no delay", {"vacuum_cost_delay": "0"})]
    paces += [(str(budget), f"{budget.limit} a {budget.delay_ms} ms", budget.parameters()) for budget in budgets]
    found = [Setting(f"{engine}-{name}", f"{called}, {title}", curve, common | parameters)
             for name, title, parameters in paces for engine, called, curve, common in engines]  # fmt: skip
    adaptive = {"vacuum_cost_delay": "0", "cyclone.adaptive_delay": "on"}
    return [*found, Setting(ADAPTIVE, "pg_cyclone, adaptive delay", ADAPTIVE_CURVE, adaptive)]
