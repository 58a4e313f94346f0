"""The Lanczos process (Lanczos 1950; preconditioned as by Paige & Saunders 1975)."""

from collections.abc import Iterator
from math import copysign, inf, isfinite, sqrt

import torch

from natcompanion.solvers.solution import Reason, System, blocks, dot

KEPT = 2**24
"""Numbers kept to hold the vectors orthogonal; beyond this, rounding may slowly spoil their
orthogonality.
"""
FEWEST = 64
"""Vectors that must fit, or none are kept: a few would cost more than the rest of an iteration, and
not help after it.
"""


def lanczos(system: System, r: torch.Tensor) -> Iterator[tuple[float, float, float, torch.Tensor]]:
    r"""Yield ``(alpha_k, beta_k, beta_{k+1}, v_k)`` of the tridiagonal matrix that ``A`` is in the
    basis ``v``.

    :math:`A V_k = V_{k+1} T`, with ``alpha`` on the diagonal of ``T`` and ``beta`` beside it. With
    a preconditioner P the vectors are orthogonal in the inner product of its inverse, and ``v_1``
    is ``P r / beta_1``. Without one, each new vector is made orthogonal to those kept. A
    ``beta_{k+1}`` at the level of rounding is given as 0: the space is invariant. A negative one
    means that P is not positive definite, see :func:`breakdown`. The vector that is given is
    overwritten by the next, and ``r`` too. The entries of ``T`` are appended
    to ``system.tridiagonals``.
    """
    system.tridiagonals.append(T := [])
    kept = _room(r) if system.preconditioner is None else r[:0, None]
    current = r
    before, y, v = torch.zeros_like(r), torch.empty_like(r), torch.empty_like(r)
    z = system.precondition(current)
    beta = length(current, z)
    beta_old, size, k = 0.0, 0.0, 0
    if not 0 < beta < inf:
        yield beta, beta, beta, z
    while 0 < beta < inf:
        torch.div(z, beta, out=v)
        alpha, factor = 0.0, beta / beta_old if beta_old else 0.0
        for v_, product_, before_, y_ in blocks(v, system.A @ v, before, y):
            alpha += float(v_ @ torch.sub(product_, before_, alpha=factor, out=y_))
        y.sub_(current, alpha=alpha / beta)
        if k < len(kept):
            kept[k] = v
            y.sub_(kept[: k + 1].mT @ (kept[: k + 1] @ y))
        before, current, y = current, y, before
        z = system.precondition(current)
        beta_next = length(current, z)
        size = max(size, abs(alpha) + beta_old)
        if abs(beta_next) <= system.negligible * size:
            beta_next = 0.0
        if isfinite(alpha + beta_next):
            T.append((alpha, beta_next))
        yield alpha, beta, beta_next, v
        beta_old, beta, k = beta, beta_next, k + 1


def _room(r: torch.Tensor) -> torch.Tensor:
    """Return room for the vectors that are kept; none, if it would be for a few only."""
    count = min(len(r), KEPT // len(r))
    return r.new_empty(count if count >= min(len(r), FEWEST) else 0, len(r))


def length(v: torch.Tensor, z: torch.Tensor) -> float:
    """Return the root of ``v z``, with the sign of ``v z``."""
    square = dot(v, z)
    return copysign(sqrt(abs(square)), square)


def breakdown(alpha: float, beta: float, beta_next: float) -> Reason | None:
    """Return why the process cannot go on, or None if it can."""
    if not isfinite(alpha + beta_next):
        return Reason.NOT_FINITE
    return Reason.NOT_POSITIVE_DEFINITE if beta <= 0 or beta_next < 0 else None
