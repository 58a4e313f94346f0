"""RNGD among its rivals of today, from the comparison of all methods."""

import numpy as np

from natcompanion.chapters.numbers import compare


def ahead(problem: str, key: str = "updates") -> np.ndarray:
    """Return for each start whether RNGD arrives before the best rival."""
    return compare.ahead("rngd", problem, key)


def arrives(problem: str, method: str, key: str = "updates") -> float | str:
    """Return the median updates or seconds of a method to the target."""
    return compare.middle(problem, method, key)


def starts_ahead(problem: str, key: str = "updates") -> int:
    """Return on how many starts RNGD arrives first."""
    return compare.starts_ahead("rngd", problem, key)


def starts(problem: str) -> int:
    """Return the number of starts."""
    return len(ahead(problem))
