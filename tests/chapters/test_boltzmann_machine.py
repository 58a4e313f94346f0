"""The small machine that learns by several rules while its Fisher matrix is looked at."""

import math

import pytest
import torch

from natcompanion.boltzmann import (
    RBM,
    CovariancePenalty,
    LearnedWhitening,
    ThresholdController,
    states,
)
from natcompanion.boltzmann.whitened import whitened_direction
from natcompanion.chapters.numbers.boltzmann import machine
from natcompanion.chapters.page import trace

D, H = machine.VISIBLE, machine.HIDDEN
V = states(D)[::2]


def given(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = RBM.random(D, H, scale=1.0, bias_scale=0.5, generator=generator).vector()
    A, B = (
        torch.eye(n, dtype=torch.float64)
        + 0.3 * torch.randn(n, n, generator=generator, dtype=torch.float64)
        for n in (D, H)
    )
    return theta, A, B, torch.rand(D + H, generator=generator, dtype=torch.float64)


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
    theta, A, B, mean = given(seed)
    fisher = machine.whitened(theta, A, B, mean, V, 0.1, 0.2, 0.01)[-1]
    mu, lam = mean.split([D, H])

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


def counted() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A machine whose states have whole numbers as weights, and as many samples of each."""
    theta = torch.zeros(D + H + D * H, dtype=torch.float64)
    theta[[0, D]], theta[[1, D + 1, D + H]], theta[-1] = math.log(3), math.log(2), math.log(5)
    rbm = RBM.from_vector(theta, D, H)
    v, h = states(D).repeat_interleave(2**H, 0), states(H).repeat(2**D, 1)
    weights = torch.exp(-rbm.energy(v, h))
    count = weights.round().long()
    assert float((weights - count).abs().max()) < 1e-9
    return theta, v.repeat_interleave(count, 0), h.repeat_interleave(count, 0)


def test_whitening_learns_as_it_does_from_samples():
    theta, v, h = counted()
    _, A, B, mean = given(0)
    learned = LearnedWhitening(D, H, rate=0.2, eps=0.05)
    learned.A, learned.B, (learned.mean_v, learned.mean_h) = A, B, mean.split([D, H])
    for rate in (0.1, 0.0):
        after, A, B, mean, likelihood, _ = machine.whitened(theta, A, B, mean, V, rate, 0.2, 0.05)
        learned.update(v, h)
        torch.testing.assert_close(A, learned.A)
        torch.testing.assert_close(B, learned.B)
        torch.testing.assert_close(mean, torch.cat([learned.mean_v, learned.mean_h]))
        rbm = RBM.from_vector(theta, D, H)
        torch.testing.assert_close(after, theta + rate * learned.direction(rbm.gradient(V)))
        torch.testing.assert_close(likelihood, rbm.log_likelihood(V).mean())


def test_whitening_that_has_been_learned_makes_the_metric_of_independent_units_the_identity():
    theta, A, B, mean = given(0)
    theta = torch.cat([theta[: D + H], torch.zeros(D * H, dtype=torch.float64)])
    first = machine.whitened(theta, A, B, mean, V, 0.0, 0.5, 0.0)[-1]
    for _ in range(400):
        _, A, B, mean, _, fisher = machine.whitened(theta, A, B, mean, V, 0.0, 0.5, 0.0)
    torch.testing.assert_close(fisher, torch.eye(len(fisher), dtype=torch.float64))
    assert float(machine.off_diagonal(fisher)) < 1e-9
    assert float(machine.off_diagonal(first)) > 0.01


@pytest.mark.parametrize("seed", range(3))
def test_a_natural_step_solves_the_whole_matrix(seed):
    theta = given(seed)[0]
    moved, likelihood, fisher = machine.natural(theta, V, 0.1, 0.05)
    rbm = RBM.from_vector(theta, D, H)
    damped = fisher + 0.05 * torch.eye(len(fisher), dtype=torch.float64)
    torch.testing.assert_close(damped @ (moved - theta), 0.1 * rbm.gradient(V))
    torch.testing.assert_close(fisher, machine.penalized(theta, V, 0.1, 0.0)[-1])
    torch.testing.assert_close(likelihood, rbm.log_likelihood(V).mean())


def test_the_machine_starts_in_its_own_parameters_and_learns_four_patterns():
    theta, v = machine.start(0.5)
    torch.testing.assert_close(theta, 0.5 * machine.START)
    assert v.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    eye = [torch.eye(n, dtype=torch.float64) for n in (D, H)]
    first = machine.whitened(theta, *eye, theta.new_zeros(D + H), v, 0.1, 0.1, 0.01)[-1]
    torch.testing.assert_close(first, RBM.from_vector(theta, D, H).fisher())


@pytest.mark.parametrize("gamma", [1e-5, 0.01, 0.95, 1.0])
@pytest.mark.parametrize("threshold", [0.001, 0.02, 0.2])
def test_gamma_follows_the_papers_rule(gamma, threshold):
    covariance = machine.penalized(given(1)[0], V, 0.1, 0.0)[2]
    for fraction in (0.05, 0.5):
        rule = ThresholdController(threshold, fraction, gamma=gamma)
        ours = machine.next_gamma(covariance, gamma, threshold, fraction)
        tensor = torch.tensor(gamma, dtype=torch.float64)
        assert ours.equal(machine.next_gamma(covariance, tensor, threshold, fraction))
        assert float(ours) == pytest.approx(rule.update(covariance), rel=1e-12)


def shares(method: str) -> list[float]:
    return [float(machine.off_diagonal(G)) for G in machine.learned(method)[1]]


def test_the_figure_shows_what_the_chapter_says_about_it():
    white, penalty, natural = map(shares, ("whitened", "penalty", "natural"))
    assert white[0] > 3 * white[20]  # it fades
    assert white[100] > 1.5 * white[20]  # and comes back
    assert min(penalty) > 0.9 * penalty[0]
    assert natural[100] > max(shares("plain")[100], penalty[100], white[100]) + 0.1
    gamma = machine.learned("penalty")[2]
    assert float(gamma[40]) < 0.5
    assert float(gamma[49]) > 0.99
    low, plain = machine.learned("penalty", threshold=0.1), machine.learned("plain")
    assert float(low[2][-1]) < 1e-4
    torch.testing.assert_close(low[0], plain[0], rtol=0, atol=0.005)
    last = {method: float(machine.learned(method)[0][-1]) for method in machine.METHODS}
    assert last["natural"] > last["whitened"] > last["plain"] > last["penalty"] + 0.05
    for method in ("plain", "penalty", "natural", "whitened"):
        torch.testing.assert_close(machine.learned(method)[1][0], plain[1][0])


def test_the_penalty_alone_uses_gamma():
    assert machine.learned("plain")[2].abs().max() == 0
    first = machine.learned("penalty", steps=1, gamma=0.5, threshold=1.0)[2]
    assert first.tolist() == [0.5, 0.5 * machine.DOWN]


def test_the_steps_can_be_traced_and_hold_at_other_inputs():
    (one, A, B, m), (two, C, E, n) = given(0), given(1)
    C1, C2 = (machine.penalized(theta, V, 0.1, 0.3)[2] for theta in (one, two))
    light = [
        trace(machine.next_gamma, [C1, 0.5, 0.01, 0.1], [C2, 0.01, 0.2, 0.6]),
        trace(machine.penalized, [one, V, 0.1, 0.3], [two, V, 0.7, 0.9]),
        trace(machine.natural, [one, V, 0.1, 0.01], [two, V, 0.7, 0.9]),
        trace(
            machine.whitened,
            [one, A, B, m, V, 0.1, 0.2, 0.01],
            [two, C, E, n, V, 0.5, 0.4, 0.1],
        ),
    ]
    assert all(len(program.code) < 500 for program in light)
