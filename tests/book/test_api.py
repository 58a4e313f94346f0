"""The reference pages cover the library."""

import importlib
import pkgutil
import re
from pathlib import Path

import natcompanion
import natcompanion.chapters

API = Path(__file__).resolve().parents[2] / "book" / "api"
MODULE = re.compile(r"^\.\. automodule:: (natcompanion[\w.]*)$", re.MULTILINE)


def modules(page: Path) -> list[str]:
    """Return the modules that a page documents."""
    return MODULE.findall(page.read_text())


def test_every_public_module_has_a_page():
    public = {
        f"{package.__name__}.{module.name}"
        for package in (natcompanion, natcompanion.chapters)
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    }
    documented = {name for page in API.glob("*.rst") for name in modules(page)}
    assert public - {"natcompanion.chapters"} <= documented


def test_every_public_name_is_on_its_page(site):
    """A name without a docstring would be left out of its page."""
    for page in API.glob("*.rst"):
        html = (site / "book" / "api" / f"{page.stem}.html").read_text()
        for path in modules(page):
            module = importlib.import_module(path)
            for name in getattr(module, "__all__", []):
                value = getattr(module, name)
                assert f'{path}.{name}"' in html or not callable(value), f"{path}.{name}"
