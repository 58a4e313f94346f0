"""Lets ``pytest --nbval book/`` compare numbers as numbers."""

from natcompanion.chapters.regression import (  # noqa: F401 - hooks of pytest
    pytest_collection_modifyitems,
    pytest_configure,
)
