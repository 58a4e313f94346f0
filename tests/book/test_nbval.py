"""Plain ``pytest --nbval``: what it lets pass, what it does not, and what it says."""

import os
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parents[2]

spec = spec_from_file_location("notebooks_tool", ROOT / "tools" / "notebooks.py")
tool = module_from_spec(spec)
spec.loader.exec_module(tool)

EXACT = """import torch
from natcompanion.chapters.show import Table
from natcompanion.whitening import whitening_matrix

x = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
W = whitening_matrix(x.mT @ x / 40, eps=1.0)
print(f"the largest entry is {W.max():.3f}")
Table(["entry", "value"], [["first", W[0, 0].item()], ["trace", W.trace().item()]], "Whitening.")"""

TRAINED = """from torch.nn import Linear, Sequential, Tanh
torch.manual_seed(0)
net = Sequential(Linear(6, 20), Tanh(), Linear(20, 1))
for layer in net[::2]:
    torch.nn.init.normal_(layer.weight, std=0.5)
sgd, data = torch.optim.SGD(net.parameters(), lr=0.05), x.float()
for _ in range(300):
    sgd.zero_grad()
    loss = (net(data)[:, 0] - data[:, 0].sin()).square().mean()
    loss.backward()
    sgd.step()
Table(["steps", "loss"], [[300, loss.item()]], "A small training.")"""

WAITS = """def pytest_collection_finish(session):
    for item in session.items:
        print("waits", item.output_timeout, item.config.option.nbval_kernel_startup_timeout)
"""

HISTORY = "print(get_ipython().history_manager.hist_file)"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder as ``book/``: a notebook with stored outputs beside the plugin."""
    folder = tmp_path_factory.mktemp("stored") / "book"
    folder.mkdir()
    shutil.copy(ROOT / "book" / "conftest.py", folder)
    cells = [new_code_cell(source, id=f"cell{i}") for i, source in enumerate((EXACT, TRAINED))]
    cells[1].metadata["natcompanion"] = {"spread": 0.05}
    cells.append(new_code_cell(HISTORY, id="history"))
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(new_notebook(cells=cells, metadata=metadata), folder / "small.ipynb")
    assert tool.execute(folder / "small.ipynb")
    return folder


def nbval(folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run ``pytest --nbval`` as in a clone, where the settings of the repository hold."""
    options = [
        "--nbval",
        "-q",
        "--color=no",
        "-p",
        "no:cacheprovider",
        "-c",
        ROOT / "pyproject.toml",
    ]
    command = [sys.executable, "-m", "pytest", *map(str, options), "--rootdir", str(folder.parent)]
    return subprocess.run(
        [*command, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
        {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"},
    ],
    ids=["as stored", "no vectors", "avx2, two threads"],
)
def test_another_instruction_set_passes(stored, environment):
    done = nbval(stored, **environment)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


def test_a_constant_of_the_library_changed_by_one_percent_is_red(stored, tmp_path):
    shutil.copytree(ROOT / "natcompanion", tmp_path / "natcompanion")
    for library in (tmp_path / "natcompanion" / "whitening").glob("*.py"):
        text = library.read_text()
        library.write_text(text.replace("(values + eps).sqrt()", "(values + 1.01 * eps).sqrt()"))
    done = nbval(stored, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and "1 failed, 2 passed" in done.stdout, done.stdout
    line = next(line for line in done.stdout.splitlines() if "number 1 of table" in line)
    assert line.startswith("book/small.ipynb, cell 0, number 1 of table 'Whitening.': stored 0.")
    assert "now 0." in line and line.endswith("(allowed: 1e-06 of it)")


def test_a_wrong_digit_a_wrong_word_and_a_wide_training_are_red(stored, tmp_path):
    shutil.copytree(stored, tmp_path / "book")
    path = tmp_path / "book" / "small.ipynb"
    notebook = nbformat.read(path, 4)
    first, second, third = notebook.cells
    number = first.outputs[0].text.split()[-1]
    wrong = f"{float(number) + 0.002:.3f}"
    first.outputs[0].text = first.outputs[0].text.replace(number, wrong)
    second.source = second.source.replace("lr=0.05", "lr=0.03")
    third.outputs[0].text = "a file"
    nbformat.write(notebook, path)
    done = nbval(tmp_path / "book")
    assert done.returncode == 1 and "3 failed" in done.stdout
    assert f"stored {wrong}, now {number} (allowed: one unit of the last digit)" in done.stdout
    assert "(allowed: a spread of 0.05)" in done.stdout
    assert "cell 2, stdout 'a file': stored 'a file', now ':memory:'" in done.stdout


def test_kernels_keep_no_history_and_a_busy_machine_has_time(stored):
    assert ":memory:" in nbformat.read(stored / "small.ipynb", 4).cells[2].outputs[0].text
    (stored.parent / "waits.py").write_text(WAITS)
    options = ["--nbval", "-q", "--collect-only", "-p", "waits", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(stored.parent), str(stored)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{stored.parent}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert done.stdout.count("waits 120 300") == 3, done.stdout
