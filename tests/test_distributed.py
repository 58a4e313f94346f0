"""Several processes under torchrun make the steps of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import _distributed_training as training

ROOT = Path(__file__).parents[1]


def torchrun(*arguments: str) -> str:
    """Run a module in two processes on this machine and return what they wrote; fail on a warning."""
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        [*command, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """What each of two processes saw of every scenario."""
    output = tmp_path_factory.mktemp("distributed") / "paths"
    torchrun("tests._distributed_training", str(output))
    return [torch.load(f"{output}.{rank}") for rank in range(2)]


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
        assert float((paths[rank]["statistics of one process"] - alone).norm() / moved.norm()) > 0.01
