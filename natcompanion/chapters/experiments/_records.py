"""The old name of `store`, until the last test has learnt the new one."""

from .store import *
from .store import merge, path_of, read  # noqa: F401
