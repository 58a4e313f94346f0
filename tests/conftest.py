"""Shared test helpers: the case files with exact input and output values."""

import json
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).parent / "cases"


def load_cases(paper: str) -> dict[str, dict]:
    """Return the cases of one paper by their id."""
    return {case["id"]: case for case in json.loads((CASES / f"{paper}.json").read_text())["cases"]}


@pytest.fixture(scope="session")
def cases():
    """Function ``cases(paper)``: the exact values for that paper, by id."""
    return load_cases


@pytest.fixture(autouse=True)
def one_thread():
    """Run each test on one thread, so that parallel workers do not fight for cores."""
    torch.set_num_threads(1)
