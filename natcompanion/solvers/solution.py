"""What a solver returns, and the frame all iterative solvers share: check, scale, iterate,
recompute, judge.
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, isfinite, log, sqrt
from typing import Any

import torch

from natcompanion import _checks

__all__ = ["Reason", "Solution"]


class Reason(enum.Enum):
    """Why a solver stopped.

    Examples
    --------
    >>> Reason.CONVERGED.value
    'the relative residual is at most rtol'
    """

    CONVERGED = "the relative residual is at most rtol"
    LEAST_SQUARES = "the system has no solution: x is a least-squares solution"
    MAX_ITERATIONS = "all iterations were used; allow more, or use a larger rtol or more damping"
    STAGNATED = (
        "rounding errors keep the residual from falling; use a larger rtol, more damping, or "
        "float64"
    )
    NOT_POSITIVE_DEFINITE = (
        "a direction of no or negative curvature was met; use more damping, or a solver "
        "for indefinite matrices; "
        "a preconditioner must be positive definite for every solver"
    )
    NOT_FINITE = (
        "a product with the matrix or the preconditioner was NaN or infinite; check the model "
        "and the data"
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
        The true relative residual ``|b - A x| / |b|``, recomputed from ``x`` with a product in the
        dtype of ``A``.
    converged
        Whether ``x`` is an answer to the question: the residual is at most ``rtol``, or, for
        ``minres_qlp``, ``x`` is the shortest least-squares solution of a system without a solution.
        That is said only if the singular values leave no doubt about the rank, and rounding moves
        ``x`` by less than 2e-5 of its length (1e-2 in float32). If not, the reason is
        ``STAGNATED``.
    reason
        Why the solver stopped; ``reason.value`` says it in words.

    Examples
    --------
    >>> from natcompanion.solvers import conjugate_gradient
    >>> solution = conjugate_gradient(torch.eye(2), torch.tensor([1.0, 2.0]))
    >>> solution.converged, solution.iterations, solution.reason.name
    (True, 1, 'CONVERGED')
    """

    x: torch.Tensor
    iterations: int
    residual: float
    converged: bool
    reason: Reason


Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Run:
    """What one run of a method hands back: a correction, its steps, and why it cannot go on (None:
    tolerance met).
    """

    x: torch.Tensor
    iterations: int
    reason: Reason | None = None


LONG = 2**17
"""Up to that many unknowns the vectors of a solver are float64 whatever the dtype of ``A``. Longer
ones have the dtype of the system: wide copies and fresh memory would cost more than the product.
"""
BLOCK = 2**17
"""Numbers of a vector that are worked on together."""


def blocks(*vectors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the vectors part by part, small enough for the cache of a processor to hold them
    through several operations; as they are on other devices.
    """
    size = BLOCK if vectors[0].is_cpu else len(vectors[0])
    return zip(*(vector.split(size) for vector in vectors), strict=True)


def dot(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the inner product of two vectors; the sums of its blocks are added in float64."""
    return sum(float(x @ y) for x, y in blocks(a, b))


def norm(a: torch.Tensor) -> float:
    """Return the Euclidean length of a vector whose squares neither overflow nor vanish."""
    return sqrt(dot(a, a))


class Scaled:
    """An operator for the vectors of a solver, divided by a power of four, which costs no digits.

    The first product sets the power so that it has about the length of its argument: squares
    neither overflow nor vanish after that. The operator must not keep the vectors it is given: they
    are overwritten. Its own products are only read; the next one may overwrite the last.
    """

    def __init__(self, operator: Any, name: str, like: torch.Tensor, dtype: torch.dtype) -> None:
        self.dtype = getattr(operator, "dtype", dtype)
        if not hasattr(operator, "__matmul__"):
            raise ValueError(
                f"{name}: expected a matrix or an object with @, got {type(operator).__name__}; "
                "for a function, write a class whose __matmul__ calls it"
            )
        if not isinstance(self.dtype, torch.dtype):
            raise ValueError(
                f"{name}: expected a tensor or an operator with a torch dtype, "
                f"got {type(operator).__name__} with {self.dtype}"
            )
        shape = tuple(getattr(operator, "shape", 2 * like.shape))
        if shape != 2 * like.shape:
            raise ValueError(
                f"{name}: expected shape {tuple(2 * like.shape)} to match b, got {shape}"
            )
        self.operator, self.name, self.unit = operator, name, 0.0
        self._given: torch.Tensor | None = None
        self._product: torch.Tensor | None = None

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        product = self.operator @ self._in_own_dtype(v)
        if product.shape != v.shape:
            raise ValueError(
                f"{self.name}: expected its product with a vector like b to have shape "
                f"{tuple(v.shape)}, "
                f"got {tuple(product.shape)}"
            )
        if not self.unit and largest(v):
            self.unit = unit(largest(product) / largest(v))
        if product.dtype == v.dtype and self.unit in (0.0, 1.0):
            return product
        if self._product is None:
            self._product = torch.empty_like(v)
        self._product.copy_(product)
        return self._product if self.unit in (0.0, 1.0) else self._product.div_(self.unit)

    def _in_own_dtype(self, v: torch.Tensor) -> torch.Tensor:
        if v.dtype == self.dtype:
            return v
        if self._given is None:
            self._given = torch.empty_like(v, dtype=self.dtype)
        return self._given.copy_(v)


def largest(v: torch.Tensor) -> float:
    """Return the largest absolute value, without a copy."""
    return max(abs(float(end)) for end in torch.aminmax(v.detach()))


def unit(size: float) -> float:
    """Return the power of four to divide numbers of this size by: 1 where squares are safe without
    it, 0 if there is none.
    """
    if not 0 < size < inf:
        return 0.0
    return 1.0 if 1e-6 < size < 1e6 else 4.0 ** min(round(log(size, 4)), 511)


class System:
    """The system ``A x = b``, both sides scaled to entries near 1, with vectors of one dtype."""

    def __init__(
        self, A: Any, b: torch.Tensor, x0: torch.Tensor | None, preconditioner: Any
    ) -> None:
        if not isinstance(b, torch.Tensor) or b.ndim != 1:
            got = f"shape {tuple(b.shape)}" if isinstance(b, torch.Tensor) else type(b).__name__
            raise ValueError(f"b: expected a vector, a tensor of shape (P,), got {got}")
        b = _checks.floating(b, "b").detach()
        self.A = Scaled(
            _checks.symmetric(A.detach(), "A") if isinstance(A, torch.Tensor) else A,
            "A",
            b,
            b.dtype,
        )
        self.dtype = self.A.dtype
        self.preconditioner = (
            None
            if preconditioner is None
            else Scaled(preconditioner, "preconditioner", b, self.dtype)
        )
        if x0 is not None and (
            not isinstance(x0, torch.Tensor) or x0.shape != b.shape or not isfinite(largest(x0))
        ):
            got = f"shape {tuple(x0.shape)}" if isinstance(x0, torch.Tensor) else type(x0).__name__
            raise ValueError(f"x0: expected a tensor of {len(b)} finite numbers like b, got {got}")
        wide = torch.promote_types(torch.promote_types(self.dtype, b.dtype), torch.float32)
        self.wide = torch.float64 if len(b) <= LONG else wide
        self.unit = unit(largest(b))  # tiny right-hand sides must not underflow when squared
        self.b = b.to(self.wide)
        if self.unit not in (0.0, 1.0):
            self.b = (b.double() / self.unit).to(self.wide)
        self.norm_b = norm(self.b)
        self.x0 = None if x0 is None or not largest(x0) else x0.detach()
        self.tridiagonals: list[list[tuple[float, float]]] = []  # one of each Lanczos process

    def precondition(self, v: torch.Tensor) -> torch.Tensor:
        """Return the preconditioner's ``P v``, an approximation of the inverse of ``A``."""
        return v if self.preconditioner is None else self.preconditioner @ v

    def start(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the start, in the units of the scaled system, and its residual."""
        if self.x0 is None:
            return torch.zeros_like(self.b), self.b
        image = self.A @ (self.x0.double() / self.unit).to(self.wide)  # sets the unit of A
        return self.scale(self.x0), self.b - image * (self.A.unit or 1.0)

    def residual(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``b - A x``; no product is spent on zero."""
        return self.b - self.A @ x if largest(x) else self.b

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        """Return an ``x`` of the caller in the units of the scaled system."""
        return (x.double() / self.unit * (self.A.unit or 1.0)).to(self.wide)

    def unscale(self, x: torch.Tensor) -> torch.Tensor:
        """Return an ``x`` of the scaled system in the units of the caller."""
        if self.unit == 1 and self.A.unit in (0.0, 1.0):
            return x
        return x.double() * self.unit / (self.A.unit or 1.0)

    def energy(self, x: torch.Tensor, r: torch.Tensor) -> float:
        """Return ``x A x / 2 - b x``, from ``x`` and its residual."""
        return -0.5 * (dot(x, self.b) + dot(x, r))

    @property
    def negligible(self) -> float:
        """Return the part of ``|A|`` below which a singular value counts as zero: 1e-11 in
        float64.
        """
        return torch.finfo(self.dtype).eps ** 0.7

    def is_least_squares(self, x: torch.Tensor, r: torch.Tensor) -> bool:
        r"""Say whether ``x`` is beyond doubt a least-squares solution of a system that has no
        solution.

        The singular values seen by Lanczos must fall into two groups: zero to working precision,
        and the others, the smallest of which is :math:`\sigma`. As :math:`\lVert A r\rVert /
        \sigma^2` bounds the error of ``x``, it must be small beside ``x``, whatever rounding does
        to ``A``. If not, the rank is uncertain.
        """
        if self.preconditioner is not None:  # it changes the norm in which r is smallest
            return False
        eps, norm_x, norm_r = torch.finfo(self.dtype).eps, norm(x), norm(r)
        rounding = 10 * sqrt(len(x)) * eps
        sigma = torch.cat([singular_values(T) for T in self.tridiagonals if T])
        norm_A = float(sigma.max())
        zero = sigma <= rounding * norm_A
        smallest = float(sigma[~zero].min()) if not bool(zero.all()) else inf
        error = (norm(self.A @ r) + rounding * norm_A * norm_r) / smallest**2
        unsolvable = norm_r > rounding * (norm_A * norm_x + self.norm_b)
        return bool(zero.any()) and unsolvable and error <= eps**0.3 * norm_x


def singular_values(T: list[tuple[float, float]]) -> torch.Tensor:
    """Return those of the tridiagonal matrix, one row longer than wide, with the given (diagonal,
    next below).
    """
    alpha, beta = torch.tensor(T, dtype=torch.float64, device="cpu").T
    full = alpha.new_zeros(len(T) + 1, len(T))
    full[:-1] = alpha.diag() + beta[:-1].diag(1)
    full[1:] += beta.diag()
    return torch.linalg.svdvals(full)


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
    """Run ``method`` on ``A x = b``, judge it by the recomputed residual, and restart it where
    rounding misled it.

    ``method(system, r, tolerance, max_iter)`` looks for ``x`` with ``|r - A x| <= tolerance``; it
    may overwrite ``r``. The result is kept if its residual is smaller or, with ``energy``, if
    ``x A x / 2 - b x`` is.
    """
    for name, given in (("A", A), ("b", b)):
        _refuse_kind(given, name)
    rtol = _checks.non_negative(rtol, "rtol")
    system = System(A, b, x0, preconditioner)
    max_iter = max(100, 5 * len(b)) if max_iter is None else _checks.whole(max_iter, "max_iter", 0)
    if system.unit == 0:
        return Solution(torch.zeros_like(b), 0, 0.0, True, Reason.CONVERGED)
    x, r, iterations, reason = _iterate(method, system, rtol, max_iter, energy)
    x = system.unscale(x).to(b.dtype)
    if b.dtype != system.wide:
        r = system.residual(system.scale(x))
    residual = norm(r) / system.norm_b
    if reason is Reason.CONVERGED and not residual <= rtol:
        reason = Reason.STAGNATED  # the dtype of b cannot hold a better x
    converged = reason is Reason.CONVERGED or (least_squares and reason is Reason.LEAST_SQUARES)
    return Solution(x, iterations, residual, converged, reason)


def _refuse_kind(given: Any, name: str) -> None:
    """Refuse complex and sparse tensors, whose parts other checks would drop or not find."""
    if not isinstance(given, torch.Tensor):
        return
    if given.is_complex():
        raise ValueError(
            f"{name}: expected real numbers, got {given.dtype}; give the real system of real and "
            "imaginary parts"
        )
    if given.layout != torch.strided:
        raise ValueError(
            f"{name}: expected a dense tensor, got layout {given.layout}; convert it with "
            ".to_dense(), or write a class with @"
        )


def _iterate(
    method: Method, system: System, rtol: float, max_iter: int, energy: bool
) -> tuple[torch.Tensor, torch.Tensor, int, Reason]:
    """Return the best ``x`` found, its residual, the steps taken and the reason to stop."""
    tolerance = rtol * system.norm_b
    (x, r), used = system.start(), 0
    if not isfinite(largest(r)):
        return x, r, used, Reason.NOT_FINITE
    while True:
        size = norm(r)
        if size <= tolerance:
            return x, r, used, Reason.CONVERGED
        if used >= max_iter:
            return x, r, used, Reason.MAX_ITERATIONS
        scale = largest(r)
        run = method(system, r / scale, tolerance / scale, max_iter - used)
        used += run.iterations
        x_new = run.x.mul_(scale).add_(x)
        r_new = system.residual(x_new)
        gain = norm(r_new) / size
        lower = system.energy(x_new, r_new) <= system.energy(x, r) if energy else False
        if gain <= 1 + 1e-12 or (lower and run.reason is None):
            x, r = x_new, r_new
        if run.reason is Reason.LEAST_SQUARES and system.is_least_squares(x, r):
            return x, r, used, Reason.LEAST_SQUARES
        if not gain <= 0.5 and norm(r) > tolerance and used < max_iter:
            return x, r, used, run.reason if run.reason in HOPELESS else Reason.STAGNATED


HOPELESS = (Reason.NOT_FINITE, Reason.NOT_POSITIVE_DEFINITE)
