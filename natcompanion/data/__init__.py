"""Data sets as tensors: an embedded default that needs no network, and the full sets by checked download."""

from natcompanion.data._sets import mnist
from natcompanion.data._store import DataUnavailable

__all__ = ["DataUnavailable", "mnist"]
