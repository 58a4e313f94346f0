"""The small machine that learns by several rules while its Fisher matrix is looked at."""

import pytest
import torch

from natcompanion.boltzmann import RBM, CovariancePenalty, ThresholdController, states
from natcompanion.boltzmann.whitened import whitened_direction
from natcompanion.chapters.numbers.boltzmann import machine
from natcompanion.chapters.page import trace

D, H = machine.VISIBLE, machine.HIDDEN
V = states(D)[::2]


def given(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = RBM.random(D, H, scale=1.0, bias_scale=0.5, generator=generator).vector()
    A, B = (
        torch.eye(n, dtype=torch.float64)
        + 0.3 * torch.randn(n, n, generator=generator, dtype=torch.float64)
        for n in (D, H)
    )
    return theta, A, B


def brute_covariance(theta: torch.Tensor, statistics) -> torch.Tensor:
    """Covariance of statistics (v, h) -> (k,) over all states of both layers."""
    rbm = RBM.from_vector(theta, D, H)
    pairs = [(v, h) for v in states(D) for h in states(H)]
    p = torch.softmax(torch.stack([-rbm.energy(v, h) for v, h in pairs]), 0)
    s = torch.stack([statistics(v, h) for v, h in pairs])
    s = s - p @ s
    return (p[:, None] * s).mT @ s


@pytest.mark.parametrize("seed", range(3))
def test_a_penalized_step_descends_the_mixed_objective(seed):
    theta = given(seed)[0]
    moved, likelihood, covariance, fisher = machine.penalized(theta, V, 0.1, 0.3)
    leaf = theta.clone().requires_grad_()
    rbm = RBM.from_vector(leaf, D, H)
    (slope,) = torch.autograd.grad(CovariancePenalty().objective(rbm, V, 0.3), leaf)
    torch.testing.assert_close(moved, theta - 0.1 * slope)
    G = brute_covariance(theta, lambda v, h: torch.cat([v, h, torch.outer(v, h).flatten()]))
    torch.testing.assert_close(fisher, G)
    torch.testing.assert_close(covariance, G[:D, D : D + H])
    torch.testing.assert_close(likelihood, rbm.log_likelihood(V).mean().detach())


@pytest.mark.parametrize("seed", range(3))
def test_the_fisher_matrix_of_the_whitened_parameters_is_that_of_the_whitened_units(seed):
    theta, A, B = given(seed)
    _, A, B, _, fisher = machine.whitened(theta, A, B, V, 0.1, 0.2, 0.01)
    mean = RBM.from_vector(theta, D, H).statistics_mean()
    mu, lam = mean[:D], mean[D : D + H]

    def units(v, h):
        x, y = A @ (v - mu), B @ (h - lam)
        return torch.cat([x, y, torch.outer(x, y).flatten()])

    torch.testing.assert_close(fisher, brute_covariance(theta, units))
    T = machine.coordinates(A, B, mu, lam)
    gradient = RBM.from_vector(theta, D, H).gradient(V)
    direction = whitened_direction(gradient, mu, lam, A.mT @ A, B.mT @ B)
    torch.testing.assert_close(T.mT @ T @ gradient, direction)
    wrong = machine.coordinates(A, B, lam.new_zeros(D), lam)
    assert float((wrong.mT @ wrong @ gradient - direction).abs().max()) > 1e-3


def test_whitening_that_has_been_learned_makes_the_metric_of_independent_units_the_identity():
    theta, A, B = given(0)
    theta = torch.cat([theta[: D + H], torch.zeros(D * H, dtype=torch.float64)])
    first = machine.whitened(theta, A, B, V, 0.0, 0.5, 0.0)[-1]
    for _ in range(400):
        _, A, B, _, fisher = machine.whitened(theta, A, B, V, 0.0, 0.5, 0.0)
    torch.testing.assert_close(fisher, torch.eye(len(fisher), dtype=torch.float64))
    assert float(machine.off_diagonal(fisher)) < 1e-9
    assert float(machine.off_diagonal(first)) > 0.01


@pytest.mark.parametrize("gamma", [1e-5, 0.01, 0.95, 1.0])
@pytest.mark.parametrize("threshold", [0.001, 0.02, 0.2])
def test_gamma_follows_the_papers_rule(gamma, threshold):
    covariance = machine.penalized(given(1)[0], V, 0.1, 0.0)[2]
    for fraction in (0.05, 0.5):
        rule = ThresholdController(threshold, fraction, gamma=gamma)
        ours = machine.next_gamma(
            covariance, torch.tensor(gamma, dtype=torch.float64), threshold, fraction
        )
        assert float(ours) == pytest.approx(rule.update(covariance), rel=1e-12)


def test_the_steps_can_be_traced_and_hold_at_other_inputs():
    (one, A, B), (two, C, E) = given(0), given(1)
    C1, C2 = (machine.penalized(theta, V, 0.1, 0.3)[2] for theta in (one, two))
    light = [
        trace(machine.next_gamma, [C1, 0.5, 0.01, 0.1], [C2, 0.01, 0.2, 0.6]),
        trace(machine.penalized, [one, V, 0.1, 0.3], [two, V, 0.7, 0.9]),
        trace(machine.whitened, [one, A, B, V, 0.1, 0.2, 0.01], [two, C, E, V, 0.5, 0.4, 0.1]),
    ]
    assert all(len(program.code) < 500 for program in light)
