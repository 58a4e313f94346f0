"""What a solver returns, and the frame all iterative solvers share: check, scale, iterate, recompute, judge."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from natcompanion import _checks

__all__ = ["Reason", "Solution"]


class Reason(enum.Enum):
    """Why a solver stopped."""

    CONVERGED = "the relative residual is at most rtol"
    LEAST_SQUARES = "the system has no solution: x is a least-squares solution"
    MAX_ITERATIONS = "all iterations were used; allow more, or use a larger rtol or more damping"
    STAGNATED = "rounding errors keep the residual from falling; use a larger rtol, more damping, or float64"
    NOT_POSITIVE_DEFINITE = "a direction of no or negative curvature was met; use more damping, or a solver for indefinite matrices"
    NOT_FINITE = (
        "a product with the matrix or the preconditioner was NaN or infinite; check the model and the data"
    )


@dataclass(frozen=True)
class Solution:
    """The answer of a solver.

    Parameters
    ----------
    x
        The solution, in the dtype of the right-hand side.
    iterations
        Steps taken, each with one product by the matrix.
    residual
        The true relative residual ``|b - A x| / |b|``, recomputed from ``x``.
    converged
        Whether ``x`` is an answer to the question: the residual is at most ``rtol``, or, for ``minres_qlp``,
        ``x`` is the shortest least-squares solution of a system without a solution.
    reason
        Why the solver stopped; ``reason.value`` says it in words.
    """

    x: torch.Tensor
    iterations: int
    residual: float
    converged: bool
    reason: Reason


Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Run:
    """What one run of a method hands back: a correction, its steps, and why it cannot go on (None: tolerance met).

    ``largest`` and ``smallest`` estimate the extreme singular values of ``A`` other than zero.
    """

    x: torch.Tensor
    iterations: int
    reason: Reason | None = None
    largest: float = 0.0
    smallest: float = 0.0


class System:
    """The system ``A x = b`` scaled so that the largest entry of ``b`` is 1, with vectors in float64."""

    def __init__(self, A: Any, b: torch.Tensor, x0: torch.Tensor | None, preconditioner: Any) -> None:
        if not isinstance(b, torch.Tensor) or b.ndim != 1:
            got = f"shape {tuple(b.shape)}" if isinstance(b, torch.Tensor) else type(b).__name__
            raise ValueError(f"b: expected a vector, a tensor of shape (P,), got {got}")
        b = _checks.floating(b, "b").detach()
        if isinstance(A, torch.Tensor):
            A = _checks.symmetric(A.detach(), "A")
        if not isinstance(getattr(A, "dtype", b.dtype), torch.dtype):
            raise ValueError(
                f"A: expected a tensor or an operator with a torch dtype, got {type(A).__name__} with {A.dtype}"
            )
        shape = tuple(getattr(A, "shape", (len(b), len(b))))
        if shape != (len(b), len(b)):
            raise ValueError(f"A: expected shape {(len(b), len(b))} to match b, got {shape}")
        if x0 is not None and (
            not isinstance(x0, torch.Tensor) or x0.shape != b.shape or not bool(torch.isfinite(x0).all())
        ):
            got = f"shape {tuple(x0.shape)}" if isinstance(x0, torch.Tensor) else type(x0).__name__
            raise ValueError(f"x0: expected a tensor of {len(b)} finite numbers like b, got {got}")
        self.A, self.preconditioner = A, preconditioner
        self.dtype = getattr(A, "dtype", b.dtype)
        self.unit = float(b.abs().max())  # tiny right-hand sides must not underflow when squared
        self.b = b.double() / (self.unit or 1.0)
        self.norm_b = float(self.b.norm())
        self.x0 = torch.zeros_like(self.b) if x0 is None else x0.detach().double() / (self.unit or 1.0)

    def product(self, v: torch.Tensor) -> torch.Tensor:
        """Return ``A v``, taken in the dtype of ``A``."""
        return (self.A @ v.to(self.dtype)).double()

    def precondition(self, v: torch.Tensor) -> torch.Tensor:
        """Return the preconditioner's ``P v``, an approximation of the inverse of ``A``."""
        return v if self.preconditioner is None else (self.preconditioner @ v.to(self.dtype)).double()

    def residual(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``b - A x``; no product is spent on zero."""
        return self.b - self.product(x) if bool(x.any()) else self.b

    def energy(self, x: torch.Tensor, r: torch.Tensor) -> float:
        """Return ``x A x / 2 - b x``, from ``x`` and its residual."""
        return -0.5 * float(x @ (self.b + r))

    @property
    def negligible(self) -> float:
        """Return the part of ``|A|`` below which a singular value counts as zero: 1e-11 in float64."""
        return torch.finfo(self.dtype).eps ** 0.7

    def is_least_squares(self, x: torch.Tensor, r: torch.Tensor, run: Run, rtol: float) -> bool:
        """Say whether ``x`` is a least-squares solution: ``A r`` is rounding, and rounding moves ``x`` by ``rtol``."""
        eps = torch.finfo(self.dtype).eps
        image = float(self.product(r).norm())
        rounding = 1e3 * eps * run.largest * (float(r.norm()) + run.largest * float(x.norm()))
        return image <= rounding and eps * run.largest <= max(rtol, eps**0.5) * run.smallest


Method = Callable[[System, torch.Tensor, float, int], Run]


def solve(
    method: Method,
    A: Any,
    b: torch.Tensor,
    rtol: float,
    max_iter: int | None,
    x0: torch.Tensor | None,
    preconditioner: Any,
    *,
    energy: bool = False,
    least_squares: bool = False,
) -> Solution:
    """Run ``method`` on ``A x = b``, judge it by the recomputed residual, and restart it where rounding misled it.

    ``method(system, r, tolerance, max_iter)`` looks for ``x`` with ``|r - A x| <= tolerance``. The result is kept
    if its residual is smaller or, with ``energy``, if ``x A x / 2 - b x`` is.
    """
    rtol = _checks.non_negative(rtol, "rtol")
    system = System(A, b, x0, preconditioner)
    max_iter = max(100, 5 * len(b)) if max_iter is None else _checks.whole(max_iter, "max_iter", 0)
    if system.unit == 0:
        return Solution(torch.zeros_like(b), 0, 0.0, True, Reason.CONVERGED)
    x, r, iterations, reason = _iterate(method, system, rtol, max_iter, energy)
    x = (x * system.unit).to(b.dtype)
    if b.dtype != torch.float64:
        r = system.residual(x.double() / system.unit)
    residual = float(r.norm()) / system.norm_b
    if reason is Reason.CONVERGED and not residual <= rtol:
        reason = Reason.STAGNATED  # the dtype of b cannot hold a better x
    converged = reason is Reason.CONVERGED or (least_squares and reason is Reason.LEAST_SQUARES)
    return Solution(x, iterations, residual, converged, reason)


def _iterate(
    method: Method, system: System, rtol: float, max_iter: int, energy: bool
) -> tuple[torch.Tensor, torch.Tensor, int, Reason]:
    """Return the best ``x`` found, its residual, the steps taken and the reason to stop."""
    tolerance = rtol * system.norm_b
    x, used = system.x0, 0
    r = system.residual(x)
    if not bool(torch.isfinite(r).all()):
        return x, r, used, Reason.NOT_FINITE
    while True:
        size = float(r.norm())
        if size <= tolerance:
            return x, r, used, Reason.CONVERGED
        if used >= max_iter:
            return x, r, used, Reason.MAX_ITERATIONS
        scale = float(r.abs().max())
        run = method(system, r / scale, tolerance / scale, max_iter - used)
        used += run.iterations
        x_new = x + scale * run.x
        r_new = system.residual(x_new)
        gain = float(r_new.norm()) / size
        lower = system.energy(x_new, r_new) <= system.energy(x, r) if energy else False
        if gain <= 1 + 1e-12 or (lower and run.reason is None):
            x, r = x_new, r_new
        if run.reason is Reason.LEAST_SQUARES and system.is_least_squares(x, r, run, rtol):
            return x, r, used, Reason.LEAST_SQUARES
        if not gain <= 0.5 and float(r.norm()) > tolerance and used < max_iter:
            return x, r, used, run.reason if run.reason in HOPELESS else Reason.STAGNATED


HOPELESS = (Reason.NOT_FINITE, Reason.NOT_POSITIVE_DEFINITE)
