"""Optimizers under DistributedDataParallel: two processes make the steps of one."""

import pytest
import torch
from test_distributed import torchrun

from tests import _distributed_optimizers as training


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """What each of two processes saw of every scenario."""
    directory = tmp_path_factory.mktemp("distributed")
    torchrun("tests._distributed_optimizers", str(directory))
    return [torch.load(directory / f"optimizers.{rank}") for rank in range(2)]


@pytest.mark.parametrize("name", training.SCENARIOS)
def test_two_processes_give_the_path_of_one(paths, name):
    alone = training.train(name)
    moved = (alone[-1] - alone[0]).norm()
    assert moved > 0.1 * alone[0].norm()
    for rank in range(2):
        assert float((paths[rank][name] - alone).norm() / moved) < 1e-6
    assert torch.equal(paths[0][name], paths[1][name])


@pytest.mark.parametrize("name", training.SHARDED)
def test_sharded_parameters_are_refused(paths, name):
    for rank in range(2):
        said = paths[rank]["refusals"]
        assert "use DistributedDataParallel instead of fully_shard" in said[name]
        assert "give the model itself" in said[f"{name}, parts"]  # not a part of its parameters


def test_what_needs_the_whole_batch_is_refused(paths):
    assert "use NaturalGradient" in paths[0]["refusals"]["SampleSpaceNaturalGradient"]


def test_without_a_mean_over_the_processes_the_paths_part(paths):
    """The negative control: each process has the statistics of its own part."""
    alone = training.train("RNGD")
    moved = (alone[-1] - alone[0]).norm()
    for rank in range(2):
        gap = paths[rank]["statistics of one process"] - alone
        assert float(gap.norm() / moved) > 0.001
