"""Layers whose weight is computed from other parameters, and layers with more than the usual."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations, weight_norm

from natcompanion.likelihoods import Categorical
from natcompanion.optim import KFAC, PRONG, RNGD

OPTIMIZERS = {
    "PRONG": lambda model: PRONG(model, 0.05, period=2),
    "RNGD": lambda model: RNGD(model, 0.05, period=2, statistics_every=1),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), 0.05),  # the control
}


def kfac(model: nn.Module) -> KFAC:
    optimizer = KFAC(model, Categorical(), 0.05)
    optimizer.refresh(data()[0])
    return optimizer


def data() -> tuple:
    g = torch.Generator().manual_seed(0)
    return torch.randn(12, 5, generator=g), torch.randint(3, (12,), generator=g)


def network(first: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(4, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> float:
    """Train and return the last loss."""
    x, t = data()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), t)
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.filterwarnings("ignore:.*take plain gradient steps")
@pytest.mark.parametrize("build", [*OPTIMIZERS.values(), kfac], ids=[*OPTIMIZERS, "KFAC"])
def test_only_passes_move_the_iteration_of_spectral_normalization(build):
    model = network(parametrizations.spectral_norm(nn.Linear(5, 4)))
    alone = copy.deepcopy(model)
    optimizer = build(model)
    for m in (model, alone):
        cross_entropy(m(data()[0]), data()[1]).backward()
    optimizer.step()
    for (name, b), c in zip(model.named_buffers(), alone.buffers(), strict=True):
        assert torch.equal(b, c), name
    assert len(list(model.buffers())) == 2
    twins = copy.deepcopy((model, optimizer))
    assert train(model, optimizer) == train(*twins)


class Scaled(nn.Linear):
    """A layer with one parameter more."""

    def __init__(self, features: int, out: int) -> None:
        super().__init__(features, out)
        self.scale = nn.Parameter(torch.ones(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*take plain gradient steps")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_layer_whose_own_parameters_are_neither_weight_nor_bias(name):
    model = network(weight_norm(nn.Linear(5, 4, bias=False)))
    optimizer = OPTIMIZERS[name](model)
    start = cross_entropy(model(data()[0]), data()[1]).item()
    assert train(model, optimizer) < start
    assert name == "SGD" or "0" in optimizer.plain


@pytest.mark.filterwarnings("ignore:.*take plain gradient steps")
def test_only_the_other_parameter_of_a_layer_is_trained():
    model = network(Scaled(5, 4))
    optimizer = RNGD(model, 0.1, parameters=[model[0].scale])
    x, t = data()
    cross_entropy(model(x), t).backward()
    expected = (model[0].scale - 0.1 * model[0].scale.grad).detach()
    optimizer.step()
    assert torch.equal(model[0].scale, expected) and list(optimizer.plain) == ["0"]


def test_a_copy_of_a_layer_with_one_parameter_more_goes_on():
    model = network(Scaled(5, 4))
    optimizer = RNGD(model, 0.05, period=2, statistics_every=1)
    train(model, optimizer)
    twins = copy.deepcopy((model, optimizer))
    assert train(model, optimizer) == train(*twins)
