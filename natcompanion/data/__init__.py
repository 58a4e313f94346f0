"""Data sets as tensors: an embedded default that needs no network, and the full sets by checked
download.
"""

from natcompanion.data._deform import deformed_digits
from natcompanion.data._sets import cifar10, digits, fashion_mnist, mnist
from natcompanion.data._store import DataUnavailable

__all__ = ["DataUnavailable", "cifar10", "deformed_digits", "digits", "fashion_mnist", "mnist"]
