"""The rfim experiments: the single neuron against plain loops, and what the stored results say."""

import math

import pytest
import torch
from torch import nn

from natcompanion import metrics, relative
from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import _rfim_geometry as geometry
from natcompanion.chapters.experiments import _rfim_neuron as single
from natcompanion.chapters.experiments import rfim
from natcompanion.likelihoods import Bernoulli

F64 = {"dtype": torch.float64}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return standard normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **F64)


def samples(n: int = 40, d: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs with two constant columns and noisy labels: not separable."""
    x = normal(n, d) * torch.tensor([3.0, 1.0, 0.3, 0.1][:d], **F64) + 0.5
    t = (x[:, 0] + normal(n, seed=1) * 2 > 0.5).double()
    return torch.cat([x, torch.zeros(n, 2, **F64)], 1), t


def plain_loop(
    Z: torch.Tensor, t: torch.Tensor, natural: bool, rate: float, momentum: float, eps: float
) -> list[float]:
    """Return the losses of ten steps written out with autograd on the full inputs."""
    theta, velocity, losses = torch.zeros(Z.shape[1], requires_grad=True, **F64), 0.0, []
    for _ in range(11):
        loss = nn.functional.binary_cross_entropy_with_logits(Z @ theta, t)
        (step,) = torch.autograd.grad(loss, theta)
        losses.append(float(loss.detach()))
        if natural:
            p = torch.sigmoid(Z @ theta.detach())
            g = torch.einsum("n,ni,nj->ij", p * (1 - p), Z, Z) / len(Z)
            step = torch.linalg.solve(g + eps * g.trace() / len(g) * torch.eye(len(g), **F64), step)
        velocity = momentum * velocity - rate * step
        theta = (theta.detach() + velocity).requires_grad_()
    return losses


@pytest.mark.parametrize("natural", [False, True])
def test_training_in_the_span_of_the_inputs_is_training_of_all_weights(natural):
    x, t = samples()
    rate, momentum = torch.tensor([0.1, 0.4], **F64), torch.tensor([0.0, 0.8], **F64)
    curves = single.train(single.neuron(x, t, "raw"), natural, rate, momentum, epochs=10, eps=0.01)
    Z = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    for curve, r, m in zip(curves, rate.tolist(), momentum.tolist(), strict=True):
        assert torch.allclose(
            curve, torch.tensor(plain_loop(Z, t, natural, r, m, 0.01), **F64), atol=1e-10
        )
    if natural:  # the damping divides by all parameters, constant pixels too
        other = torch.tensor(plain_loop(Z[:, [0, 1, 2, 3, 6]], t, True, 0.1, 0.0, 0.01), **F64)
        assert not torch.allclose(curves[0], other, atol=1e-6)


def test_white_coordinates_are_white_and_any_root_gives_the_same_curve():
    x, t = samples()
    problem = single.neuron(x, t, "white")
    z = problem.Z[:, :-1]
    assert torch.allclose(z.mean(0), torch.zeros(4, **F64), atol=1e-12)
    assert torch.allclose(z.mT @ z / len(z), torch.eye(4, **F64), atol=1e-12)
    rotation = torch.linalg.qr(normal(4, 4, seed=3))[0]
    turned = single.Neuron(torch.cat([z @ rotation, problem.Z[:, -1:]], 1), t, problem.dim)
    one = torch.ones(1, **F64)
    for natural in (False, True):
        curves = [
            single.train(p, natural, one, 0 * one, epochs=10, eps=0.01) for p in (problem, turned)
        ]
        assert torch.allclose(*curves, atol=1e-12)


def test_the_metric_is_the_fisher_matrix_of_the_neuron():
    x, t = samples()
    problem, theta = single.neuron(x[:, :4], t, "raw"), normal(1, 5, seed=4)
    model = nn.Linear(5, 1, bias=False).double()
    model.weight.data.copy_(theta)
    assert torch.allclose(
        problem.metric(theta)[0], metrics.fisher(model, problem.Z, Bernoulli()), atol=1e-12
    )
    hessian = torch.autograd.functional.jacobian(lambda th: problem.gradient(th[None])[0], theta[0])
    assert torch.allclose(problem.metric(theta)[0], hessian, atol=1e-12)


def test_natural_steps_coincide_as_the_damping_vanishes():
    x, t = samples()
    one = torch.ones(1, **F64)
    gap = {}
    for eps in (1e-1, 1e-3, 1e-12):
        raw, white = (
            single.train(single.neuron(x, t, name), True, one, 0 * one, epochs=10, eps=eps)
            for name in ("raw", "white")
        )
        gap[eps] = float((raw - white).abs().max())
    assert gap[1e-12] < 1e-9 and 1e-5 < gap[1e-3] < gap[1e-1]


def test_a_metric_that_has_vanished_ends_the_run_and_the_floor_does_too():
    x, t = samples()
    rates, still = torch.tensor([1.0, 1e5], **F64), torch.zeros(2, **F64)
    curves = single.train(single.neuron(x, t, "raw"), True, rates, still, epochs=20, eps=1e-2)
    assert curves[0].isfinite().all() and math.isinf(curves[1, -1])
    apart = single.neuron(
        torch.tensor([[-1.0], [1.0]], **F64), torch.tensor([0.0, 1.0], **F64), "raw"
    )
    curves = single.train(apart, True, rates, still, epochs=60, eps=1e-2, floor=1e-12)
    assert (curves[:, -1] == 1e-12).all() and curves[1, 1] == 1e-12 < curves[0, 1]
    assert apart.minimum() is None


def test_minimum_of_classes_that_overlap_has_no_gradient():
    x, t = samples()
    least = single.neuron(x, t, "white").minimum()
    assert least == pytest.approx(single.neuron(x, t, "raw").minimum(), abs=1e-9)
    Z = torch.cat([x[:, :4], torch.ones_like(x[:, :1])], 1)
    assert min(plain_loop(Z, t, True, 1.0, 0.0, 1e-9)) == pytest.approx(least, abs=1e-9)


def test_epochs_to_counts_from_the_start():
    curves = torch.tensor([[3.0, 2.0, 1.0], [3.0, 3.0, 3.0], [0.5, 9.0, 9.0]])
    assert single.epochs_to(curves, 1.0).tolist() == [2, 3, 0]


def test_the_best_of_tied_configurations_is_the_soonest():
    curves = torch.full((2, 3, 4), 1e-12, **F64)
    curves[:, :, 0] = 1.0
    curves[:, 0, 1:3] = 0.5
    curves[:, 1, 1] = 0.5
    curves[:, 2, 3] = 0.1
    grid = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], **F64)
    best = rfim._best(curves, grid, torch.zeros(2, **F64), rfim.Figure4(epochs=3))
    assert float(best["rate"]) == 2.0 and best["final"] == [1e-12, 1e-12]


@pytest.mark.parametrize("pair", ["3v5", "4v9"])
def test_a_small_figure_4_orders_the_methods_as_the_stored_one(pair):
    small = experiments.run("rfim_figure4", pair=pair, runs=1, epochs=20, beyond=())
    for record in (small, experiments.load("rfim_figure4").select(pair=pair).records[0]):
        assert max(record["excess_WhiteNGD"]) < min(record["excess_GD"])
        assert record["separable"] == 0


def test_stored_damping_gaps_fall_with_the_damping():
    gaps = experiments.load("rfim_damping").values("gap")
    assert gaps.shape[0] == 20 and (gaps[:, 0] > 50 * gaps[:, -1]).sum() >= 18


# ---- Section 4


def test_ranks_obey_their_bounds_and_the_rfim_has_the_larger():
    record = experiments.run("rfim_rank", n=(1, 5, 9), seed=3)
    for n, full, blocks, own in zip(
        (1, 5, 9), record["fisher"], record["fisher_blocks"], record["rfim"], strict=True
    ):
        assert full == n and blocks[:2] == [n, n]
        assert own == [8 * min(n, 7), 8 * min(n, 9), min(n, 9)]


def test_balanced_steps_change_no_response_by_more_than_the_radius():
    record = experiments.run("rfim_balance", scale=10.0, steps=50)
    assert record["largest_balanced"] <= 0.1 < record["largest_raw"]
    assert record["change_balanced"] < record["change_raw"]


def test_a_step_of_the_largest_eigenvector_reaches_the_radius():
    metric = torch.diag(torch.tensor([4.0, 1.0], **F64))
    delta = geometry.balanced(torch.tensor([[0.1, 0.0], [0.0, 0.1]], **F64), metric)
    assert geometry.intrinsic(metric, delta).tolist() == pytest.approx([0.1, 0.05])
    assert geometry.intrinsic(metric, torch.tensor([[0.1, 0.0]], **F64)).tolist() == pytest.approx(
        [0.2]
    )


def test_normalized_inputs_have_a_uniform_diagonal_and_white_ones_the_identity():
    x = normal(200, 5) @ normal(5, 5, seed=1) + 3
    values = geometry.conditioning(torch.cat([x, torch.ones(200, 1, **F64)], 1), 0.0)
    assert values["whitened"] == pytest.approx(0, abs=1e-9)
    assert values["diagonal_normalized"] == pytest.approx(1) and values["diagonal_raw"] > 1.5
    assert values["normalized"] < values["raw"]
    G = relative.layer_rfim(normal(3, 6, seed=2), x, "linear")[1]
    assert values["raw"] == pytest.approx(math.log10(metrics.condition_number(G)))


def test_the_network_of_section_4_is_reproducible_and_its_inputs_are_those_of_the_layers():
    model = geometry.network((3, 4, 2), "tanh", torch.Generator().manual_seed(0))
    again = geometry.network((3, 4, 2), "tanh", torch.Generator().manual_seed(0))
    x = normal(5, 3)
    inputs = geometry.layer_inputs(model, x)
    assert torch.equal(inputs[0], x) and torch.equal(inputs[1], torch.tanh(model[0](x)))
    assert torch.equal(model(x), again(x))
    h = geometry.tanh_responses(geometry.matrix(model[0]), x)
    assert torch.allclose(h, inputs[1], atol=1e-12)
