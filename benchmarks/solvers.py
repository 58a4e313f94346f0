"""Time what solvers do beside the product, next to a plain in-place conjugate gradient and scipy.

    python benchmarks/solvers.py [--unknowns 1191010] [--iterations 20] [--repeats 7]

The matrix is diagonal, in float32, so that its product costs next to nothing; the time of the
products is left out. All make the same number of iterations, set-up and recomputed residual
included, in turns in one run; given are processor milliseconds per iteration, the least of all
repeats, and the ratio to the plain conjugate gradient. Then all solve the system to 1e-4: the
true relative residual of each, in float64. One thread.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse.linalg
import torch

from natcompanion.solvers import conjugate_gradient, minres, minres_qlp


class Diagonal:
    """A diagonal matrix that notes the time of its products."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.dtype, self.shape = values, values.dtype, 2 * values.shape
        self.out, self.seconds = torch.empty_like(values), 0.0

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        start = time.process_time()
        torch.mul(self.values, v, out=self.out)
        self.seconds += time.process_time() - start
        return self.out


def plain(A: Diagonal, b: torch.Tensor, rtol: float, max_iter: int) -> torch.Tensor:
    """Conjugate gradients in place, without a check."""
    x, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), float(r @ r)
    enough = rtol**2 * rr
    for _ in range(max_iter):
        Ap = A @ p
        step = rr / float(p @ Ap)
        x.add_(p, alpha=step)
        r.sub_(Ap, alpha=step)
        rr, old = float(r @ r), rr
        if rr <= enough:
            break
        p.mul_(rr / old).add_(r)
    return x


def scipys(A: Diagonal, b: torch.Tensor, rtol: float, max_iter: int) -> torch.Tensor:
    """The MINRES of scipy."""
    operator = scipy.sparse.linalg.LinearOperator(
        A.shape, matvec=lambda v: (A @ torch.from_numpy(v).to(A.dtype)).numpy(), dtype=np.float32
    )
    return torch.from_numpy(
        scipy.sparse.linalg.minres(operator, b.numpy(), rtol=rtol, maxiter=max_iter)[0]
    )


METHODS: dict[str, Callable] = {
    "plain in-place CG": plain,
    "conjugate_gradient": lambda A, b, rtol, k: conjugate_gradient(A, b, rtol=rtol, max_iter=k).x,
    "minres": lambda A, b, rtol, k: minres(A, b, rtol=rtol, max_iter=k).x,
    "minres_qlp": lambda A, b, rtol, k: minres_qlp(A, b, rtol=rtol, max_iter=k).x,
    "scipy minres": scipys,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--unknowns", type=int, default=1_191_010)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    values, b = torch.logspace(0, -3, options.unknowns), torch.randn(options.unknowns)
    least = dict.fromkeys(METHODS, float("inf"))
    for _ in range(options.repeats):
        for name, method in METHODS.items():
            A, start = Diagonal(values), time.process_time()
            method(A, b, 0.0, options.iterations)
            least[name] = min(least[name], time.process_time() - start - A.seconds)
    for name, method in METHODS.items():
        x = method(Diagonal(values), b, 1e-4, 1000).double()
        residual = float((b - values.double() * x).norm() / b.double().norm())
        milliseconds = 1e3 * least[name] / options.iterations
        print(
            f"{name:18s} {milliseconds:6.2f} ms, {least[name] / least['plain in-place CG']:5.2f} "
            f"of plain; residual {residual:.1e}"
        )


if __name__ == "__main__":
    main()
