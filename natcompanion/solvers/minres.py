"""MINRES (Paige & Saunders 1975), for symmetric matrices, definite or not."""

from math import hypot
from typing import Any

import torch

from natcompanion.solvers.lanczos import breakdown, lanczos
from natcompanion.solvers.solution import Reason, Run, Solution, System, norm, solve


def minres(
    A: Any,
    b: torch.Tensor,
    rtol: float = 1e-4,
    max_iter: int | None = None,
    x0: torch.Tensor | None = None,
    preconditioner: Any = None,
) -> Solution:
    """Solve ``A x = b`` for a symmetric ``A``, definite or not.

    After k steps ``x`` has the smallest residual over ``x0`` plus the first k Krylov vectors. If
    the system has no solution, the result is a least-squares solution, but not the shortest one,
    and ``converged`` is false: use
    :func:`natcompanion.solvers.minres_qlp`. Arguments and errors as in
    :func:`natcompanion.solvers.conjugate_gradient`.

    Source: revisiting Section 8.3.

    Parameters
    ----------
    A, b, rtol, max_iter, x0, preconditioner
        As in :func:`natcompanion.solvers.conjugate_gradient`.

    Examples
    --------
    >>> A = torch.diag(torch.tensor([4.0, -1.0], dtype=torch.float64))
    >>> b = torch.tensor([2.0, 1.0], dtype=torch.float64)
    >>> torch.allclose(minres(A, b, rtol=1e-10).x, b / A.diagonal())
    True
    """
    return solve(_run, A, b, rtol, max_iter, x0, preconditioner)


def _run(system: System, r: torch.Tensor, tolerance: float, max_iter: int) -> Run:
    x, x_old, w, w_old = (torch.zeros_like(r) for _ in range(4))
    norm_r = norm(r)
    cs, sn, dbar, epsilon, norm_A, phi = -1.0, 0.0, 0.0, 0.0, 0.0, 0.0
    k = 0
    for k, (alpha, beta, beta_next, v) in enumerate(lanczos(system, r), start=1):
        if reason := breakdown(alpha, beta, beta_next):
            return Run(x, k, reason)
        if k == 1:
            phi, tolerance = beta, tolerance * beta / norm_r
        norm_A = max(norm_A, hypot(beta if k > 1 else 0.0, alpha, beta_next))
        # The new column of the triangular factor of T: epsilon_old, delta, gamma.
        epsilon_old, delta, gbar = epsilon, cs * dbar + sn * alpha, sn * dbar - cs * alpha
        epsilon, dbar = sn * beta_next, -cs * beta_next
        gamma = hypot(gbar, beta_next)
        if (
            gamma <= system.negligible * norm_A or hypot(gbar, dbar) <= system.negligible * norm_A
        ):  # A r = 0
            return Run(x, k, Reason.LEAST_SQUARES)
        cs, sn = gbar / gamma, beta_next / gamma
        torch.sub(v, w_old, alpha=epsilon_old, out=w_old).sub_(w, alpha=delta).div_(gamma)
        w, w_old = w_old, w
        torch.add(x, w, alpha=cs * phi, out=x_old)
        x, x_old = x_old, x
        if norm(x) * system.negligible * norm_A > norm_r:  # along a null vector
            return Run(x_old, k, Reason.LEAST_SQUARES)
        phi = sn * phi
        if phi <= tolerance or k >= max_iter:
            return Run(x, k)
    return Run(x, max(k, 1), Reason.LEAST_SQUARES)
