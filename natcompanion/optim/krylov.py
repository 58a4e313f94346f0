r"""Hessian-Free and Krylov Subspace Descent, which revisiting Section 7 shows to be
natural-gradient methods.

Both use the extended Gauss-Newton matrix. For the three likelihoods of this library it equals the
Fisher matrix, so both are compositions of parts that the natural gradient has already.
"""

from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion.damping import LevenbergMarquardt
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics.curvature import GaussNewtonOperator
from natcompanion.metrics.model_function import ModelFunction
from natcompanion.optim.natural_gradient import NaturalGradient, moved
from natcompanion.solvers import Reason, Solution, conjugate_gradient

FAR = 1e10
"""The loss given to the line search where the true one is not finite."""
ENDS = {0: Reason.CONVERGED, 1: Reason.MAX_ITERATIONS, 2: Reason.STAGNATED}
"""Why the search ended, by the status that L-BFGS-B gives."""


class HessianFree(NaturalGradient):
    """Hessian-Free optimization (Martens 2010): the natural gradient under another name.

    It is :class:`natcompanion.optim.NaturalGradient` with the Gauss-Newton matrix of the same
    batch, conjugate gradients that start from the last direction, Levenberg-Marquardt damping by
    the quadratic model, and step size 1.

    Left out, because they do not bear on that point: Martens' preconditioner, his stopping rule for
    conjugate gradients, and the line search.

    Parameters
    ----------
    model, likelihood, **options
        As for :class:`natcompanion.optim.NaturalGradient`, without ``metric``.
    lr : float
        Step size.
    damping : float or LevenbergMarquardt
        Adaptive from 1 by default.
    warm_start : float
        The solver starts at this multiple of the last direction.

    Source: revisiting Section 7.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = nn.Linear(1, 1).double(), torch.tensor([[-1.0], [0.0], [1.0]]).double()
    >>> t = 3 * x + 1
    >>> optimizer = HessianFree(model, Gaussian())
    >>> losses = [optimizer.step(x, t) for _ in range(20)]
    >>> bool(losses[-1] - Gaussian().nll(t, t).mean() < 1e-6)
    True
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        lr: float = 1.0,
        *,
        damping: float | LevenbergMarquardt | None = None,
        warm_start: float = 0.95,
        **options: Any,
    ) -> None:
        if "metric" in options:
            raise ValueError(
                "metric: HessianFree has its own, Gauss-Newton; use NaturalGradient for another"
            )
        damping = LevenbergMarquardt(1.0) if damping is None else damping
        options = {"solver": conjugate_gradient, "prediction": "quadratic", **options}
        super().__init__(model, likelihood, lr, damping=damping, warm_start=warm_start, **options)

    needs_targets = (
        "HessianFree takes its matrix from the batch of the gradient; use NaturalGradient"
    )

    def _metric(
        self, x: torch.Tensor, t: torch.Tensor, inputs: torch.Tensor, g: torch.Tensor
    ) -> Any:
        return GaussNewtonOperator(self.model, x, t, self.likelihood, **self._chosen())


class KrylovSubspaceDescent(NaturalGradient):
    r"""Krylov Subspace Descent (Vinyals and Povey 2012): the best point of a small subspace.

    .. math:: \theta &\leftarrow \theta + B a, \qquad
              \operatorname{span} B = \operatorname{span}\{g, Gg, \dots, G^{k-1} g,
              d_{\mathrm{last}}\}, \\ a &= \arg\min_a \mathcal L(\theta + B a)

    G is the Gauss-Newton matrix, which is the Fisher matrix, so it needs no targets; the paper
    takes it from another batch, ``metric_inputs``. The minimum is sought by L-BFGS from a = 0 on
    the batch of the gradient, so that its loss never rises. ``last.reason`` says how that search
    ended, ``last.residual`` how far the step is from solving the linear system.

    Parameters
    ----------
    model, likelihood
        As for :class:`natcompanion.optim.NaturalGradient`.
    dimension : int
        k, the number of Krylov vectors.
    search_iterations : int
        Iterations of L-BFGS.
    **options
        Also ``metric`` and ``parameters``.

    Source: revisiting Section 7.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = nn.Linear(1, 1).double(), torch.tensor([[-1.0], [0.0], [1.0]]).double()
    >>> t = 3 * x + 1
    >>> optimizer = KrylovSubspaceDescent(model, Gaussian(), dimension=2)
    >>> _ = optimizer.step(x, t)
    >>> bool(optimizer.last.loss_after - Gaussian().nll(t, t).mean() < 1e-6)
    True
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        *,
        dimension: int = 20,
        search_iterations: int = 20,
        **options: Any,
    ) -> None:
        if unknown := sorted(set(options) - {"metric", "output", "parameters"}):
            raise ValueError(
                f"{', '.join(unknown)}: KrylovSubspaceDescent has no such option; it has "
                "metric, output, parameters"
            )
        self.dimension = check.whole(dimension, "dimension")
        self.search_iterations = check.whole(search_iterations, "search_iterations")
        super().__init__(model, likelihood, 1.0, damping=0.0, warm_start=1.0, **options)

    SETTINGS = (*NaturalGradient.SETTINGS, "dimension", "search_iterations")

    def _solve(
        self, A: Any, g: torch.Tensor, f: ModelFunction, x: torch.Tensor, t: torch.Tensor
    ) -> Solution:
        basis = krylov_basis(A, g, self.dimension, self._last_direction(f))

        def loss(a: np.ndarray) -> tuple[float, np.ndarray]:
            move = basis @ torch.as_tensor(a, dtype=basis.dtype, device=basis.device)
            try:
                value, gradient = self._gradient(f, x, t, moved(f, move.to(g.dtype)))
            except check.Refused:
                raise
            except ValueError:  # too far: the loss is not finite there
                return FAR, np.zeros_like(a)
            return value, (basis.mT @ gradient.to(basis.dtype)).cpu().numpy()

        if basis.shape[1] == 0:
            return Solution(torch.zeros_like(g), 0, 0.0, True, Reason.CONVERGED)
        start = np.zeros(basis.shape[1])
        found = scipy.optimize.minimize(
            loss, start, jac=True, method="L-BFGS-B", options={"maxiter": self.search_iterations}
        )
        direction = -(basis @ torch.as_tensor(found.x, dtype=basis.dtype, device=basis.device)).to(
            g.dtype
        )
        residual = float((g - A @ direction).norm() / g.norm())
        return Solution(direction, int(found.nit), residual, found.status == 0, ENDS[found.status])


def krylov_basis(
    A: Any, g: torch.Tensor, dimension: int, extra: torch.Tensor | None = None
) -> torch.Tensor:
    """Return orthonormal columns (P, k) that span g, A g, ..., and ``extra``; float64, fewer where
    they depend.
    """
    columns: list[torch.Tensor] = []
    vector = g.double()
    for _ in range(dimension):
        if not _append(columns, vector):
            break
        vector = (A @ columns[-1].to(g.dtype)).double()
    if extra is not None:
        _append(columns, extra.double())
    return torch.stack(columns, 1) if columns else g.new_zeros(len(g), 0, dtype=torch.float64)


def _append(columns: list[torch.Tensor], vector: torch.Tensor) -> bool:
    """Append the part of ``vector`` orthogonal to the columns, normalized; False if nothing is left
    of it.
    """
    before = float(vector.norm())
    for _ in range(2):  # twice, so that rounding leaves them orthogonal
        for column in columns:
            vector = vector - column * (column @ vector)
    if not float(vector.norm()) > 1e-7 * before:
        return False
    columns.append(vector / vector.norm())
    return True
