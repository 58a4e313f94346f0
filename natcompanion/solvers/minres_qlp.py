"""MINRES-QLP (Choi, Paige & Saunders 2011), for symmetric matrices, singular or not."""

from math import hypot
from typing import Any

import torch

from natcompanion.solvers.lanczos import breakdown, lanczos
from natcompanion.solvers.solution import Reason, Run, Solution, System, blocks, norm, solve


def minres_qlp(
    A: Any,
    b: torch.Tensor,
    rtol: float = 1e-4,
    max_iter: int | None = None,
    x0: torch.Tensor | None = None,
    preconditioner: Any = None,
) -> Solution:
    """Solve ``A x = b`` for any symmetric ``A``; if there is no solution, find the shortest
    least-squares solution.

    The iterates are those of :func:`natcompanion.solvers.minres` until the last step, where a pivot
    of zero is recognized and left out. With a start ``x0``, the result is the least-squares
    solution nearest to ``x0``. It is claimed only if the rank is beyond doubt, see
    :class:`natcompanion.solvers.Solution`. A preconditioner changes what "shortest" means: it is of
    use for systems with a solution, and nothing is claimed for others. Arguments and errors as in
    :func:`natcompanion.solvers.conjugate_gradient`.

    Differences from the authors' program: no shift, no switch back to MINRES for well-conditioned
    systems, the residual is recomputed, and the run restarts from ``x`` if the true residual is not
    the one estimated.

    Source: revisiting Section 8.3; Choi, Paige and Saunders (2011), Table 3.

    Parameters
    ----------
    A, b, rtol, max_iter, x0, preconditioner
        As in :func:`natcompanion.solvers.conjugate_gradient`.

    Examples
    --------
    >>> A = torch.diag(torch.tensor([4.0, 0.0], dtype=torch.float64))
    >>> b = torch.tensor([2.0, 1.0], dtype=torch.float64)
    >>> solution = minres_qlp(A, b, rtol=1e-10)  # no x solves it
    >>> torch.allclose(solution.x, torch.tensor([0.5, 0.0], dtype=torch.float64))
    True
    >>> solution.reason
    <Reason.LEAST_SQUARES: 'the system has no solution: x is a least-squares solution'>
    """
    return solve(_run, A, b, rtol, max_iter, x0, preconditioner, least_squares=True)


def rotation(a: float, b: float) -> tuple[float, float, float]:
    """Return ``(c, s, h)`` with ``c a + s b = h >= 0`` and ``s a - c b = 0``; the identity for two
    zeros.
    """
    h = hypot(a, b)
    return (a / h, b / h, h) if h > 0 else (-1.0, 0.0, 0.0)


def _run(system: System, r: torch.Tensor, tolerance: float, max_iter: int) -> Run:
    # T = Q R, R P = L with lower triangular L (diagonal gamma, then theta, then eta); x = W u, W =
    # V P, L u = tau. A digit counts how many columns back: gamma1 is the diagonal of L one column
    # before the newest.
    x2, w, w1, spare = (torch.zeros_like(r) for _ in range(4))
    norm_r = norm(r)
    cs, sn, cr2, sr2 = -1.0, 0.0, -1.0, 0.0
    delta_next, phi, norm_A = 0.0, 0.0, 0.0
    gamma = gamma1 = theta = theta1 = eta = eta1 = tau = tau1 = u = u1 = u2 = u3 = 0.0
    k = 0
    for k, (alpha, beta, beta_next, v) in enumerate(lanczos(system, r), start=1):
        if reason := breakdown(alpha, beta, beta_next):
            return Run(x2.add_(w1, alpha=u1).add_(w, alpha=u), k, reason)
        if k == 1:
            phi, tolerance = beta, tolerance * beta / norm_r
        norm_A = max(norm_A, hypot(beta if k > 1 else 0.0, alpha, beta_next))
        # From the left: the last reflection on the new column of T, then a new one.
        delta, gbar = cs * delta_next + sn * alpha, sn * delta_next - cs * alpha
        delta_next, epsilon = -cs * beta_next, sn * beta_next
        gamma2, gamma1 = gamma1, gamma
        cs, sn, gamma = rotation(gbar, beta_next)
        tau2, tau1, tau, phi = tau1, tau, cs * phi, sn * phi
        # From the right: the reflection of columns k-2 and k, then a new one of columns k-1 and k.
        theta2, eta2, eta1 = theta1, eta1, eta
        theta1, delta = cr2 * theta + sr2 * delta, sr2 * theta - cr2 * delta
        eta, gamma = sr2 * gamma, -cr2 * gamma
        cr1, sr1, gamma1 = rotation(gamma1, delta)
        theta, gamma = sr1 * gamma, -cr1 * gamma
        # The last three entries of u; a pivot of zero means no solution along its column: the
        # shortest x has u = 0.
        singular = abs(gamma) <= system.negligible * norm_A
        u4, u3 = u3, u2
        u2 = (tau2 - eta2 * u4 - theta2 * u3) / gamma2 if k > 2 else 0.0
        u1 = (tau1 - eta1 * u3 - theta1 * u2) / gamma1 if k > 1 else 0.0
        u = 0.0 if singular else (tau - eta * u2 - theta * u1) / gamma
        # The last three columns of W, in place (``spare`` holds w2, then the new w1), and x.
        for v_, w_, w1_, spare_, x2_ in blocks(v, w, w1, spare, x2):
            torch.mul(w1_, cr2, out=spare_).add_(v_, alpha=sr2)
            x2_.add_(spare_, alpha=u2)
            w1_.mul_(sr2).sub_(v_, alpha=cr2)
            torch.mul(w_, cr1, out=spare_).add_(w1_, alpha=sr1)
            w_.mul_(sr1).sub_(w1_, alpha=cr1)
        w1, spare = spare, w1
        if singular or phi <= tolerance or k >= max_iter:
            x = x2.add_(w1, alpha=u1).add_(w, alpha=u)
            return Run(x, k, Reason.LEAST_SQUARES if singular else None)
        cr2, sr2, gamma1 = rotation(gamma1, epsilon)
    return Run(x2.add_(w1, alpha=u1).add_(w, alpha=u), max(k, 1), Reason.LEAST_SQUARES)
