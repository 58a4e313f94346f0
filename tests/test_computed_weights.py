"""Layers whose weight is computed from other parameters, and layers with more than the usual."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations, weight_norm

from natcompanion.likelihoods import Categorical
from natcompanion.metrics import FisherOperator, fisher
from natcompanion.optim import KFAC, PRONG, RNGD, NaturalGradient, SampleSpaceNaturalGradient

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
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("build", [*OPTIMIZERS.values(), kfac], ids=[*OPTIMIZERS, "KFAC"])
def test_a_layer_whose_own_parameters_are_neither_weight_nor_bias(build, bias):
    model = network(weight_norm(nn.Linear(5, 4, bias=bias)))
    optimizer = build(model)
    start = cross_entropy(model(data()[0]), data()[1]).item()
    assert train(model, optimizer) < start
    if isinstance(optimizer, RNGD) and bias:
        assert optimizer.blocks["0"].dim == 1  # the bias has a metric
    elif not isinstance(optimizer, torch.optim.SGD):
        assert list(optimizer.plain) == ["0"]


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


@pytest.mark.filterwarnings("ignore:Initializing zero-element", "ignore:.*take plain gradient")
@pytest.mark.parametrize("build", [*OPTIMIZERS.values(), kfac], ids=[*OPTIMIZERS, "KFAC"])
def test_a_layer_without_outputs_stands_still(build):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 0), nn.Tanh(), nn.Linear(0, 3))
    optimizer = build(model)
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([1.0, 0.0, -1.0]))
    start = cross_entropy(model(data()[0]), data()[1]).item()
    assert train(model, optimizer) < start
    assert isinstance(optimizer, torch.optim.SGD) or set(optimizer.plain) == {"0", "2"}


@pytest.mark.filterwarnings("ignore:Initializing zero-element", "ignore:.*take plain gradient")
def test_the_metric_of_a_layer_without_outputs_is_that_of_the_others():
    model = nn.Sequential(nn.Linear(5, 0), nn.Tanh(), nn.Linear(0, 3)).double()
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([1.0, 0.0, -1.0]))
    x, t = data()
    x = x.double()
    y = model[2].bias.detach().softmax(0)
    F = torch.diag(y) - torch.outer(y, y)
    assert torch.allclose(fisher(model, x, Categorical()), F, atol=1e-15)
    operator = FisherOperator(model, x, Categorical())
    assert torch.allclose(operator @ torch.ones(3).double(), F.sum(1), atol=1e-15)
    for kind in (NaturalGradient, SampleSpaceNaturalGradient):
        again = copy.deepcopy(model)
        optimizer = kind(again, Categorical(), 0.5, damping=0.1)
        g = y - torch.bincount(t, minlength=3) / len(t)
        expected = model[2].bias - 0.5 * torch.linalg.solve(F + 0.1 * torch.eye(3).double(), g)
        optimizer.step(x, t)
        assert torch.allclose(again[2].bias, expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*take plain gradient steps", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scripted_model_takes_plain_steps(name):
    model = torch.jit.script(network(nn.Linear(5, 4)))
    start = cross_entropy(model(data()[0]), data()[1]).item()
    assert train(model, OPTIMIZERS[name](model)) < start
