"""PRONG among its rivals of today, from the comparison of all methods."""

import numpy as np

from natcompanion.chapters.numbers import compare


def ahead(key: str = "updates", problem: str = "autoencoder") -> np.ndarray:
    """Return for each start of a problem whether PRONG arrives before the best rival."""
    return compare.ahead("prong", problem, key)


def arrives(method: str, key: str = "updates") -> float | str:
    """Return the median updates or seconds of a method to the target."""
    return compare.middle("autoencoder", method, key)


def starts_ahead(key: str = "updates") -> int:
    """Return on how many starts PRONG arrives first."""
    return compare.starts_ahead("prong", "autoencoder", key)
