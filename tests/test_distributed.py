"""Several processes under torchrun make the steps of one."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from _states import equal

from natcompanion.recipes import example_folder
from tests import _distributed_training as training

ROOT = Path(__file__).parents[1]


def torchrun(*arguments: str) -> None:
    """Run a module in two processes on this machine; a warning is an error."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    done = subprocess.run(
        [sys.executable, *launcher, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, done.stderr


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where two processes have left what they saw of every scenario, and a training run on
    images.
    """
    directory = tmp_path_factory.mktemp("distributed")
    example_folder(directory / "images")
    torchrun("tests._distributed_training", str(directory))
    return directory


@pytest.fixture(scope="module")
def paths(directory):
    return [torch.load(directory / f"paths.{rank}") for rank in range(2)]


def gap(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", training.SCENARIOS)
def test_two_processes_give_the_path_of_one(paths, name):
    alone = training.train(name)
    moved = alone[-1] - alone[0]
    for rank in range(2):
        assert float((paths[rank][name] - alone).norm() / moved.norm()) < 1e-10
    assert torch.equal(paths[0][name], paths[1][name])
    assert gap(alone[-1], alone[0]) > 0.01


def test_without_a_sum_over_the_statistics_the_paths_part(paths):
    """The negative control: each process whitens by its own half of the sample."""
    alone = training.train("uneven shares")
    moved = alone[-1] - alone[0]
    for rank in range(2):
        assert (
            float((paths[rank]["statistics of one process"] - alone).norm() / moved.norm()) > 0.01
        )


def test_the_image_recipe_runs_on_two_processes_and_goes_on_to_the_last_bit(directory):
    """One run by the command of the recipe, against one that was cut in two."""
    logs = [(directory / name / "log.jsonl").read_text() for name in ("whole", "parts")]
    states = [torch.load(directory / name / "checkpoint.pt") for name in ("whole", "parts")]
    assert logs[0] == logs[1] and equal(*states)
    losses = [entry["loss"] for entry in map(json.loads, logs[0].splitlines()) if "loss" in entry]
    assert len(losses) == training.IMAGES["steps"] and all(map(math.isfinite, losses))
    initial = torch.load(directory / "other" / "checkpoint.pt")
    assert not equal(initial, states[0]), "another seed is another run"


def test_the_recipe_is_a_program():
    command = [sys.executable, "-W", "error", "-m", "natcompanion.recipes.imagefolder", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--sample-size" in done.stdout and not done.stderr, done.stderr
