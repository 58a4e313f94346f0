"""The reference pages cover the library."""

import pkgutil
import re
from pathlib import Path

import natcompanion

API = Path(__file__).resolve().parents[2] / "book" / "api"


def test_every_public_module_has_a_page():
    public = {
        module.name
        for module in pkgutil.iter_modules(natcompanion.__path__)
        if not module.name.startswith("_")
    }
    documented = set()
    for page in API.glob("*.rst"):
        documented |= set(
            re.findall(r"^\.\. automodule:: natcompanion\.(\w+)$", page.read_text(), re.MULTILINE)
        )
    assert documented == public


def test_every_public_name_is_on_its_page(site):
    """A name without a docstring would be left out of its page."""
    for page in API.glob("*.rst"):
        module = __import__(f"natcompanion.{page.stem}", fromlist=["*"])
        html = (site / "book" / "api" / f"{page.stem}.html").read_text()
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            assert f'natcompanion.{page.stem}.{name}"' in html or not callable(value), (
                f"{page.stem}.{name}"
            )
