"""Claims of the rfim paper that an exact computation settles."""

import pytest
import torch
from torch import nn

from natcompanion import metrics, optim, reference, relative
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian

F64 = {"dtype": torch.float64}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return standard normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **F64)


def test_nu_is_largest_where_the_neuron_is_linear():
    a = torch.linspace(-8, 8, 1601, **F64)
    for name, options in (("tanh", {}), ("sigmoid", {}), ("relu", {"omega": 0.1}), ("elu", {})):
        weight = relative.nu(name, a, **options)
        curvature = relative.slope(name, a, **options).diff().abs()
        straight = a[weight > 0.99 * weight.max()]
        assert weight.max() > 100 * weight.min()
        if name in ("tanh", "sigmoid"):
            assert float(straight.abs().max()) < 0.3
        else:
            assert float(straight.min()) > -0.1 and float(curvature[a[:-1] > 1].max()) < 1e-4


def test_a_diagonal_block_of_softmax_is_a_sigmoid_neuron():
    """Given what the other classes sum up to, class i is a sigmoid neuron with logit a_i - log
    sum_j!=i exp a_j.
    """
    V, x = normal(3, 4), normal(3, seed=1)
    block = relative.softmax_rfim(V, x)[4:8, 4:8]
    a = V @ relative.augment(x)
    logit = a[1] - torch.logsumexp(a[[0, 2]], 0)
    z = relative.augment(x)
    assert torch.allclose(block, relative.nu("sigmoid", logit) * torch.outer(z, z), atol=1e-12)
    assert not torch.allclose(block, relative.neuron_rfim(V[1], x, "sigmoid"), atol=1e-3)


def test_the_fisher_matrix_is_positive_and_the_hessian_may_not_be():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    x, t = normal(20, 2), 3 * normal(20, 1, seed=1)
    assert torch.linalg.eigvalsh(metrics.fisher(model, x, Gaussian()))[0] > -1e-12
    assert torch.linalg.eigvalsh(reference.loss_hessian(model, x, t, Gaussian()))[0] < -1e-3


def test_a_metric_needs_as_many_samples_as_weights():
    w, x = normal(7), normal(7, 6, seed=1)
    assert relative.rank(relative.neuron_rfim(w, x, "tanh")) == 7
    assert relative.rank(relative.neuron_rfim(w, x[:6], "tanh")) == 6


class LogNormalizer:
    """The mirror log(1 + sum exp theta): dual parameters are the probabilities of all classes but
    the last.
    """

    def value(self, theta: torch.Tensor) -> torch.Tensor:
        return torch.cat([theta, theta.new_zeros(1)]).logsumexp(0)

    def gradient(self, theta: torch.Tensor) -> torch.Tensor:
        return (theta - self.value(theta)).exp()

    def conjugate_gradient(self, omega: torch.Tensor) -> torch.Tensor:
        return omega.log() - (1 - omega.sum()).log()


def test_mirror_descent_is_the_natural_gradient_in_the_dual_coordinates():
    mirror, target = LogNormalizer(), torch.tensor([0.5, 0.2], **F64)
    start = torch.tensor([0.3, -0.4], **F64)
    theta = start.clone().requires_grad_()
    optimizer = optim.MirrorDescent([theta], mirror, lr=0.3)
    (mirror.value(theta) - target @ theta).backward()
    optimizer.step()

    def loss(omega: torch.Tensor) -> torch.Tensor:
        th = mirror.conjugate_gradient(omega)
        return mirror.value(th) - target @ th

    omega = mirror.gradient(start)
    metric = torch.diag(1 / omega) + 1 / (1 - omega.sum())
    gradient = torch.autograd.functional.jacobian(loss, omega)
    natural = omega - 0.3 * torch.linalg.solve(metric, gradient)
    assert torch.allclose(mirror.gradient(theta.detach()), natural, atol=1e-12)
    assert not torch.allclose(mirror.gradient(theta.detach()), omega - 0.3 * gradient, atol=1e-2)


def test_energy_information_needs_a_distance_that_goes_along_with_a_renaming():
    points = torch.linspace(-6, 6, 121, **F64)
    distance, order = (
        (points[:, None] - points).abs(),
        torch.randperm(121, generator=torch.Generator().manual_seed(0)),
    )

    def family(mean: torch.Tensor) -> torch.Tensor:
        return torch.softmax(-((points - mean) ** 2) / 2, 0)

    def renamed(mean: torch.Tensor) -> torch.Tensor:
        return family(mean)[order]

    mean = torch.zeros(1, **F64)
    plain = reference.energy_information(family, mean, distance)
    along = reference.energy_information(renamed, mean, distance[order][:, order])
    alone = reference.energy_information(renamed, mean, distance)
    assert torch.allclose(plain, along, atol=1e-12)
    assert not torch.allclose(plain, alone, rtol=0.5)


@pytest.mark.parametrize("pair", [(0, 1), (1, 2)])
def test_a_network_of_784_64_64_64_10_needs_less_memory_in_parts(pair):
    layers = [(784, 64), (64, 64), (64, 64), (64, 10)]
    neurons = sum(m * (d + 1) ** 2 for d, m in layers)
    blocks = sum((m * (d + 1)) ** 2 for d, m in layers)
    whole = sum(m * (d + 1) for d, m in layers) ** 2
    sizes = (neurons, blocks, whole)
    assert sizes[pair[0]] < sizes[pair[1]] and whole > 80 * neurons
    assert round(100 * (1 - blocks / whole)) == 27


def test_a_network_of_784_64_64_64_10_is_cheaper_to_invert_in_parts():
    """Section 5: operations as the power 2.373 of the number of parameters of each part."""
    layers = [(784, 64), (64, 64), (64, 64), (64, 10)]
    whole = sum(m * (d + 1) for d, m in layers) ** 2.373
    blocks = sum((m * (d + 1)) ** 2.373 for d, m in layers)
    neurons = sum(m * (d + 1) ** 2.373 for d, m in layers)
    assert 200 * neurons < blocks < whole < 2 * blocks  # the first layer has most of both


def test_the_fisher_matrix_of_a_mini_batch_is_singular_until_it_has_enough_samples():
    """Section 5: a network 6-5-3 has 53 parameters, and a sample adds two to the rank. Three
    logits that move together change nothing: one direction for each hidden unit, and one for the
    biases, are in the null space for any number of samples.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    parameters = sum(p.numel() for p in model.parameters())
    x = normal(400, 6)
    rank = {
        n: int(torch.linalg.matrix_rank(metrics.fisher(model, x[:n], Categorical()), rtol=1e-10))
        for n in (1, 10, 20, 400)
    }
    assert parameters == 53 and rank == {1: 2, 10: 20, 20: 40, 400: 47}


def test_one_bernoulli_output_is_the_neuron_of_section_5():
    model = nn.Linear(3, 1).double()
    x = normal(9, 3)
    own = relative.network_rfim(nn.Sequential(model), x, Bernoulli())[0]
    assert torch.allclose(own, metrics.fisher(model, x, Bernoulli()), atol=1e-12)


def test_no_balanced_step_changes_a_response_by_more_than_its_length():
    """Section 4: with a largest eigenvalue of 1; without balancing it does."""
    radius, x = 1e-3, 10 * normal(20, 4, seed=1)
    G = torch.block_diag(*relative.layer_rfim(0.1 * normal(3, 5), x, "tanh"))
    values, vectors = torch.linalg.eigh(G)
    steps = torch.cat([normal(500, len(G), seed=2), vectors[:, -1:].mT])
    steps = radius * steps / steps.norm(dim=1, keepdim=True)

    def largest(metric: torch.Tensor) -> float:
        return float(((steps @ metric) * steps).sum(1).max().sqrt())

    assert largest(G / values[-1]) == pytest.approx(radius, rel=1e-12)
    assert largest(G) > 2 * radius
