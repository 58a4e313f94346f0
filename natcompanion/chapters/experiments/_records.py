"""The old name of `store`."""

from .store import *
from .store import merge, path_of, read  # noqa: F401
