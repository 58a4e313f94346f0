"""The method of conjugate gradients (Hestenes & Stiefel 1952), for positive definite matrices."""

from math import isfinite, sqrt
from typing import Any

import torch

from natcompanion.solvers.solution import Reason, Run, Solution, System, blocks, dot, norm, solve


def conjugate_gradient(
    A: Any,
    b: torch.Tensor,
    rtol: float = 1e-4,
    max_iter: int | None = None,
    x0: torch.Tensor | None = None,
    preconditioner: Any = None,
) -> Solution:
    r"""Solve ``A x = b`` for a positive semi-definite ``A``.

    After k steps ``x`` minimizes :math:`\tfrac12 x^T A x - b^T x` over ``x0`` plus the first k
    Krylov vectors. If ``A`` is singular but ``b`` lies in its range, this still converges. If ``b``
    does not, there is no solution, the curvature of the search directions falls to zero, and the
    solver stops and says so.

    Parameters
    ----------
    A
        A symmetric (P, P) matrix, or anything with ``A @ v`` for vectors (P,).
    b
        The right-hand side (P,).
    rtol
        Stop when ``|b - A x| <= rtol |b|``.
    max_iter
        Most products with ``A`` (100, or 5 P if that is more, by default).
    x0
        Where to start; zero by default.
    preconditioner
        Anything with ``P @ r``, an approximation of the inverse of ``A``; symmetric, positive
        definite.

    Raises
    ------
    ValueError
        If shapes do not match, ``b`` has NaN entries, or a matrix ``A`` is not symmetric.

    Source: revisiting Section 8.3, Algorithm 1 (``linear_cg``).

    Examples
    --------
    >>> A = torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))
    >>> b = torch.tensor([2.0, 1.0], dtype=torch.float64)
    >>> solution = conjugate_gradient(A, b, rtol=1e-10)
    >>> torch.allclose(solution.x, b / A.diagonal()), solution.iterations, solution.converged
    (True, 2, True)
    """
    return solve(_run, A, b, rtol, max_iter, x0, preconditioner, energy=True)


def _run(system: System, r: torch.Tensor, tolerance: float, max_iter: int) -> Run:
    x, *others = torch.zeros_like(r), torch.empty_like(r), torch.empty_like(r)
    z = system.precondition(r)
    p, rz, length, largest = z.clone(), dot(r, z), dot(z, z), 0.0
    best, smallest = x, norm(r)  # to fall back on if the curvature vanishes
    for k in range(max_iter):
        Ap = system.A @ p
        curvature = dot(p, Ap)
        if not isfinite(curvature + length):
            return Run(best, k + 1, Reason.NOT_FINITE)
        largest = max(largest, curvature / length if length else 0.0)
        if rz <= 0 or curvature <= system.negligible * largest * length:
            return Run(best, k + 1, Reason.NOT_POSITIVE_DEFINITE)
        step = rz / curvature
        free = next(vector for vector in others if vector is not best)
        square = 0.0
        for free_, x_, p_, r_, Ap_ in blocks(free, x, p, r, Ap):
            torch.add(x_, p_, alpha=step, out=free_)
            r_.sub_(Ap_, alpha=step)
            square += float(r_ @ r_)
        x, others = free, [x, *(vector for vector in others if vector is not free)]
        size = sqrt(square)
        if size < smallest:
            best, smallest = x, size
        if size <= tolerance:
            return Run(x, k + 1)
        z = system.precondition(r)
        rz, rz_old, length = square if z is r else dot(r, z), rz, 0.0
        for z_, p_ in blocks(z, p):
            torch.add(z_, p_, alpha=rz / rz_old, out=p_)
            length += float(p_ @ p_)
    return Run(x, max_iter)
