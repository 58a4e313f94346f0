"""No tensor is made on a device of its own choice: the default device is another one here, so that
it would not fit the inputs.
"""

import pytest
import torch
from torch import nn

from natcompanion import boltzmann, metrics, projections
from natcompanion.likelihoods import Bernoulli, Categorical, FromNLL, Gaussian
from natcompanion.metrics import FisherOperator
from natcompanion.optim import KFAC, TONGA, HessianFree, NaturalGradient, Newton
from natcompanion.solvers import conjugate_gradient, damped_solve, minres, minres_qlp, ridge_solve
from natcompanion.whitening import EASI, Whitener, whitening_matrix

MODEL = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
G = torch.Generator().manual_seed(0)
X, T = torch.randn(6, 3, generator=G).double(), torch.arange(6) % 3
C = X.mT @ X
V = (torch.rand(6, 5, generator=G) < 0.5).double()
MACHINE = boltzmann.RBM.random(5, 3, scale=0.3, generator=G)
KNOWN = (Gaussian(0.5), Bernoulli(), Categorical())


def optimizer_step(make):
    model = nn.Sequential(nn.Linear(3, 4, device="cpu"), nn.Tanh(), nn.Linear(4, 3, device="cpu"))
    model = model.double()
    make(model).step(X, T)


def kfac_step():
    model = nn.Sequential(nn.Linear(3, 4, device="cpu"), nn.Linear(4, 3, device="cpu")).double()
    optimizer = KFAC(model, Categorical(), 0.1, momentum=0.5)
    optimizer.refresh(X)
    Categorical().nll(model(X), T).mean().backward()
    optimizer.step()


CALLS = {
    "fisher": lambda: [metrics.fisher(MODEL, X, known) for known in KNOWN],
    "gauss_newton": lambda: metrics.gauss_newton(MODEL, X, T, Categorical()),
    "gradient_covariance": lambda: metrics.gradient_covariance(MODEL, X, T, Categorical()),
    "monte_carlo": lambda: metrics.monte_carlo_fisher(MODEL, X, Categorical(), samples=2),
    "operator": lambda: [FisherOperator(MODEL, X, known).diagonal() for known in KNOWN],
    "curvature": lambda: [
        (kind(MODEL, X, T, Categorical()).diagonal(), kind(MODEL, X, T, Categorical()).dense())
        for kind in (metrics.GaussNewtonOperator, metrics.HessianOperator)
    ],
    "estimates": lambda: (
        metrics.estimate_trace(C, 2),
        metrics.estimate_diagonal(FisherOperator(MODEL, X, Categorical()), 2),
    ),
    "own": lambda: metrics.fisher(MODEL, X, FromNLL(Categorical().nll, targets=T[:3])),
    "kronecker": lambda: metrics.kronecker_factors(MODEL, X, Categorical())["0"].dense(),
    "block_diagonal": lambda: metrics.block_diagonal(C, [1, 2]),
    "solvers": lambda: [s(C, X[0]) for s in (conjugate_gradient, minres, minres_qlp)],
    "regularized": lambda: (damped_solve(C, X[0], 0.1), ridge_solve(C, X[0], 0.1)),
    "whitening": lambda: [whitening_matrix(C, k, 0.1) for k in ("zca", "pca", "cholesky")],
    "whitener": lambda: Whitener().fit(X * X.new_tensor([1, 1e-8, 1e4])),
    "easi": lambda: EASI(3).update(X),
    "projections": lambda: (
        projections.sketched_covariance(X, 2),
        projections.debiased_projected_covariance(C, projections.projection(2, 3, like=C)),
        projections.projected_squared_norm(X, X, 2),
    ),
    "rbm": lambda: (
        MACHINE.fisher(),
        MACHINE.natural_gradient(V, 1e-2),
        MACHINE.cd_gradient(V),
        MACHINE.log_likelihood(V),
        boltzmann.cd_epoch(MACHINE, V, momentum=0.5),
        boltzmann.reconstruction_error(MACHINE, V),
        boltzmann.RBM.random(3, 2).fisher(),
    ),
    "kfac": kfac_step,
    "natural_gradient": lambda: optimizer_step(lambda m: NaturalGradient(m, Categorical(), 0.1)),
    "tonga": lambda: optimizer_step(lambda m: TONGA(m, Categorical(), 0.1)),
    "newton": lambda: optimizer_step(lambda m: Newton(m, Categorical(), 0.1, damping=1.0)),
    "hessian_free": lambda: optimizer_step(lambda m: HessianFree(m, Categorical())),
}


@pytest.mark.parametrize("name", CALLS)
def test_everything_follows_its_inputs(name):
    with torch.device("meta"):
        CALLS[name]()


def test_the_check_sees_a_tensor_on_another_device():
    with torch.device("meta"), pytest.raises(RuntimeError, match="device"):
        C + torch.eye(3, dtype=C.dtype)


def test_a_machine_moves_and_projections_follow():
    half = MACHINE.to(torch.float32)
    assert half.W.dtype == half.a.dtype == half.b.dtype == torch.float32
    assert torch.equal(half.W, MACHINE.W.float()) and MACHINE.W.dtype == torch.float64
    with torch.device("meta"):  # drawn on the CPU all the same
        assert boltzmann.RBM.random(3, 2, device="cpu").W.device.type == "cpu"
    R = projections.projection(2, 3, generator=torch.Generator().manual_seed(1))
    like = projections.projection(2, 3, generator=torch.Generator().manual_seed(1), like=X.float())
    assert torch.equal(like, R.float()) and R.dtype == torch.float64
