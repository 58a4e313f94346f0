"""Properties that hold for any input: solvers, metrics and whitening, on problems that
hypothesis draws.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from natcompanion import reference
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian
from natcompanion.metrics import empirical_fisher, fisher, gradient_covariance
from natcompanion.solvers import conjugate_gradient, damped_solve, minres, minres_qlp
from natcompanion.whitening import Whitener, whitening_matrix

SOLVERS = [conjugate_gradient, minres, minres_qlp]
LIKELIHOODS = [Gaussian(), Gaussian(0.5), Bernoulli(), Categorical()]

seeds = st.integers(0, 2**31 - 1)
sizes = st.integers(1, 8)
scales = st.floats(-8, 8).map(lambda power: 10.0**power)
few = settings(max_examples=25, deadline=None, derandomize=True)


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spectrum(size: int, seed: int, digits: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A symmetric matrix with eigenvalues from 1 down to 10**-digits, and a right-hand side."""
    Q, _ = torch.linalg.qr(torch.randn(size, size, generator=rng(seed), dtype=torch.float64))
    values = torch.logspace(0, -digits, size, dtype=torch.float64)
    b = torch.randn(size, generator=rng(seed + 1), dtype=torch.float64)
    return (Q * values) @ Q.mT, b


# ---- Solvers


def true_residual(A: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> float:
    return float((b - A @ x).norm() / b.norm())


@pytest.mark.parametrize("solver", SOLVERS)
@few
@given(size=sizes, seed=seeds, digits=st.floats(0, 5))
def test_a_solver_that_claims_success_has_the_residual_that_it_says(solver, size, seed, digits):
    A, b = spectrum(size, seed, digits)
    found = solver(A, b, rtol=1e-8, max_iter=20 * size)
    rounding = 1e-14 * float(A.norm() * found.x.norm() / b.norm())
    assert found.residual == pytest.approx(true_residual(A, found.x, b), rel=1e-6, abs=rounding)
    if found.converged:
        assert true_residual(A, found.x, b) <= 1.001e-8
    assert found.converged  # 20 sweeps over at most 8 directions are enough here


@pytest.mark.parametrize("solver", SOLVERS)
@few
@given(size=sizes, seed=seeds, scale=scales)
def test_solvers_do_not_care_for_units(solver, size, seed, scale):
    A, b = spectrum(size, seed, 2.0)
    plain = solver(A, b, rtol=1e-12, max_iter=20 * size)
    scaled = solver(scale * A, b, rtol=1e-12, max_iter=20 * size)
    torch.testing.assert_close(scale * scaled.x, plain.x, rtol=0, atol=1e-7 * float(plain.x.norm()))


@few
@given(size=sizes, seed=seeds, damping=st.floats(1e-3, 10))
def test_damping_shortens_the_step(size, seed, damping):
    A, b = spectrum(size, seed, 3.0)
    short, long = damped_solve(A, b, 2 * damping), damped_solve(A, b, damping)
    assert float(short.norm()) <= float(long.norm()) * (1 + 1e-12)
    torch.testing.assert_close(A @ long + damping * long, b, rtol=1e-8, atol=1e-10)


# ---- Metrics


def net(seed: int, inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    return nn.Sequential(*layers).double()


def batch(likelihood, seed: int, n: int, inputs: int, outputs: int):
    x = torch.randn(n, inputs, generator=rng(seed), dtype=torch.float64)
    if isinstance(likelihood, Categorical):
        return x, torch.randint(outputs, (n,), generator=rng(seed + 1))
    return x, torch.rand(n, outputs, generator=rng(seed + 1), dtype=torch.float64)


shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
@few
@given(seed=seeds, n=st.integers(1, 4), shape=shapes)
def test_the_fisher_matrix_is_the_sum_over_labels(likelihood, seed, n, shape):
    model = net(seed, *shape)
    x, _ = batch(likelihood, seed, n, shape[0], shape[2])
    G = fisher(model, x, likelihood)
    torch.testing.assert_close(G, reference.fisher(model, x, likelihood), rtol=1e-9, atol=1e-12)
    assert float(torch.linalg.eigvalsh(G)[0]) >= -1e-12 * float(G.trace())
    # negative control: without the division by n, which a batch of one cannot tell apart
    if n > 1 and float(G.norm()) > 1e-9:
        assert not torch.allclose(n * G, reference.fisher(model, x, likelihood), rtol=1e-3)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
@few
@given(seed=seeds, n=st.integers(2, 5), shape=shapes)
def test_the_covariance_is_the_second_moment_less_the_mean(likelihood, seed, n, shape):
    model = net(seed, *shape)
    x, t = batch(likelihood, seed, n, shape[0], shape[2])
    U = empirical_fisher(model, x, t, likelihood)
    C = gradient_covariance(model, x, t, likelihood)
    mean = reference.gradients(model, x, t, likelihood).mean(0)
    torch.testing.assert_close(U - C, torch.outer(mean, mean), rtol=1e-9, atol=1e-12)


# ---- Whitening


@pytest.mark.parametrize("kind", ["zca", "pca", "cholesky"])
@few
@given(size=st.integers(1, 6), seed=seeds, digits=st.floats(0, 4), scale=scales)
def test_whitened_covariances_are_the_identity(kind, size, seed, digits, scale):
    A, _ = spectrum(size, seed, digits)
    cov = scale * A
    W, eye = whitening_matrix(cov, kind), torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(W @ cov @ W.mT, eye, rtol=0, atol=1e-8)
    rotation = W @ torch.linalg.inv(whitening_matrix(cov, "zca"))
    torch.testing.assert_close(rotation @ rotation.mT, eye, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["zca", "pca", "cholesky"])
@few
@given(seed=seeds, n=st.integers(20, 60), shift=st.floats(-100, 100))
def test_a_whitener_centres_scales_and_comes_back(kind, seed, n, shift):
    mixing = torch.randn(4, 4, generator=rng(seed), dtype=torch.float64)
    mixing = mixing + 3 * torch.eye(4, dtype=torch.float64)
    x = torch.randn(n, 4, generator=rng(seed + 1), dtype=torch.float64) @ mixing + shift
    whitener = Whitener(kind=kind).fit(x)
    y = whitener.transform(x)
    eye = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(y.mean(0), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-8)
    torch.testing.assert_close(y.mT @ y / n, eye, rtol=0, atol=1e-6)
    torch.testing.assert_close(whitener.inverse_transform(y), x, rtol=1e-7, atol=1e-7)
    # negative control: the divisor n - 1 is another matrix
    assert not torch.allclose(y.mT @ y / (n - 1), eye, rtol=0, atol=1e-6)
