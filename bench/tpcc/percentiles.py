"""Percentiles of latencies."""

from statistics import quantiles

PERCENTILES = (50, 90, 95, 99)


def percentile(values: list[float], percent: int) -> float | None:
    """Return this percentile of these values, None if there are too few of them."""
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else None


def percentiles(values: list[float]) -> list[float | None]:
    """Return the percentiles PERCENTILES of these values, None for each if there are too few values."""
    return [percentile(values, percent) for percent in PERCENTILES]
