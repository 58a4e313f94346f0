"""Every Python example of the pages that a newcomer reads runs as it stands."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "book/api/index.md")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[str]:
    """Return the Python blocks of a Markdown text."""
    return BLOCK.findall(text)


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], dict]:
    """Function that runs a block by itself, from seed 0, and returns its names."""

    def run(code: str) -> dict:
        torch.manual_seed(0)
        file = tmp_path / "example.py"
        file.write_text(code, encoding="utf-8")
        return runpy.run_path(str(file))

    return run


EXAMPLES = {
    f"{page} {number}": code
    for page in PAGES
    for number, code in enumerate(blocks((ROOT / page).read_text(encoding="utf-8")), start=1)
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_alone(example, run):
    run(EXAMPLES[example])


def test_the_examples_are_found_and_a_wrong_one_fails(run):
    """The negative control: other blocks are none, and a block does not see the one before."""
    assert {"README.md 1", "README.md 2", "book/api/index.md 1"} <= EXAMPLES.keys()
    text = "```bash\nls\n```\n```python\na = 1\n```\nText.\n```python\na.b\n```\n"
    assert blocks(text) == ["a = 1\n", "a.b\n"]
    assert run("a = 1\n")["a"] == 1
    with pytest.raises(NameError):
        run("a.b\n")
    with pytest.raises(ImportError):
        run("from natcompanion.optim import PRONGS\n")


def test_the_optimizer_of_the_readme_does_what_its_comment_says(run):
    code = EXAMPLES["README.md 1"]
    assert run(code)["loss"].item() == pytest.approx(0.02, abs=0.01)
    plain = re.sub(r"PRONG\(.*?\)", "torch.optim.SGD(model.parameters(), lr=0.5)", code)
    assert run(plain)["loss"].item() == pytest.approx(0.2, abs=0.05)
