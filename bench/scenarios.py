"""What is measured: each scenario is a table in a certain state and the VACUUM it gets. To add one, add it to SCENARIOS."""

from dataclasses import dataclass

TABLE = "t"

# In one implicit transaction, so that with wal_level = minimal the rows go unlogged.
_LOAD = f"""
    CREATE TABLE {TABLE} (id bigint, v int) WITH (autovacuum_enabled = off);
    INSERT INTO {TABLE} SELECT i, i FROM generate_series(1, %(rows)s) i
"""
_CLEAN = f"VACUUM (FREEZE off, ANALYZE) {TABLE}"
_DELETE_A_TENTH = f"DELETE FROM {TABLE} WHERE id %% 10 = 0"
_PRIMARY_KEY = f"ALTER TABLE {TABLE} ADD PRIMARY KEY (id)"
# Beside the primary key: one with few distinct keys, one in random order, one on text.
_THREE_MORE_INDEXES = (
    f"CREATE INDEX ON {TABLE} ((v %% 1000))",
    f"CREATE INDEX ON {TABLE} (hashint8(id))",
    f"CREATE INDEX ON {TABLE} ((to_hex(v)))",
)


@dataclass(frozen=True)
class Scenario:
    """A table, and the VACUUM that is timed on it."""

    name: str
    about: str
    rows: int  # unless the command line says otherwise
    setup: tuple[str, ...]  # statements; %(rows)s stands for the number of rows
    vacuum: str = f"VACUUM (VERBOSE, PARALLEL %(workers)s) {TABLE}"
    indexes: int = 0
    repeatable: bool = False  # VACUUM leaves the table as it found it, so that all runs can share one copy

    def setup_statements(self, rows: int) -> list[str]:
        """Return the statements that make the table, with this number of rows."""
        return [statement % {"rows": rows} for statement in self.setup]

    def vacuum_statement(self, workers: int) -> str:
        """Return the statement to time, with this number of parallel workers beside the leader."""
        return self.vacuum % {"workers": workers}


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="heap-deleted",
            about="no index, every tenth row deleted",
            rows=20_000_000,
            setup=(_LOAD, _CLEAN, _DELETE_A_TENTH),
        ),
        Scenario(
            name="heap-clean",
            about="no index, every page all-visible, none skipped",
            rows=20_000_000,
            setup=(_LOAD, _CLEAN),
            vacuum=f"VACUUM (VERBOSE, DISABLE_PAGE_SKIPPING, PARALLEL %(workers)s) {TABLE}",
            repeatable=True,
        ),
        Scenario(
            name="one-index",
            about="primary key, every tenth row deleted",
            rows=20_000_000,
            setup=(_LOAD, _PRIMARY_KEY, _CLEAN, _DELETE_A_TENTH),
            indexes=1,
        ),
        Scenario(
            name="four-indexes",
            about="primary key and three more, every tenth row deleted",
            rows=10_000_000,
            setup=(_LOAD, _PRIMARY_KEY, *_THREE_MORE_INDEXES, _CLEAN, _DELETE_A_TENTH),
            indexes=4,
        ),
    )
}
