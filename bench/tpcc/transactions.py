"""The load: the five transactions in the specification's mix, by pgbench."""

from pathlib import Path

from tpcc.load import Sizes

SCRIPTS = Path(__file__).resolve().parent / "scripts"
# Share of each script in a hundred transactions
MIX = {"new_order": 45, "payment": 43, "order_status": 4, "delivery": 4, "stock_level": 4}


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
