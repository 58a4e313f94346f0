"""Time the exact damped natural-gradient step in sample space beside one gradient, in one run.

    python benchmarks/sample_space.py [--repeats 7] [--damping 1e-3]

The network is 784-1500-10 with tanh units in float32, 1.19 million parameters; the batch holds n
digits in all but name (standard normal inputs, as wide). "step" is everything: Jacobian, system,
checks, the loss and the KL divergence after it, the move. Beside it 20 iterations of the conjugate
gradient on products with the Fisher matrix, inside NaturalGradient. Processor time, the least of
all repeats, in gradients (forward and backward of the loss); with it the true relative residual of
the direction, by FisherOperator. One thread.
"""

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from natcompanion.likelihoods import Categorical
from natcompanion.metrics import FisherOperator
from natcompanion.optim import NaturalGradient, SampleSpaceNaturalGradient
from natcompanion.solvers import conjugate_gradient


def least(function: Callable[[], object], repeats: int) -> float:
    """Return the least processor time of a call."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def flat(tensors: object) -> torch.Tensor:
    """Return tensors as one vector."""
    return torch.cat([p.detach().flatten() for p in tensors])  # type: ignore[attr-defined]


def residual(model: nn.Module, x: torch.Tensor, t: torch.Tensor, damping: float) -> float:
    """Return the relative residual of the direction of a step of size 1, by FisherOperator."""
    moved = copy.deepcopy(model)
    SampleSpaceNaturalGradient(moved, Categorical(), 1.0, damping=damping).step(x, t)
    d = flat(model.parameters()) - flat(moved.parameters())
    loss = Categorical().nll(model(x), t).mean()
    g = flat(torch.autograd.grad(loss, list(model.parameters())))
    A = FisherOperator(model, x, Categorical(), damping=damping)
    return float((A @ d - g).norm() / g.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--damping", type=float, default=1e-3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 1500), nn.Tanh(), nn.Linear(1500, 10))
    for n in (32, 128):
        x, t = torch.randn(n, 784), torch.randint(10, (n,))

        def gradient(x: torch.Tensor = x, t: torch.Tensor = t) -> None:
            model.zero_grad()
            Categorical().nll(model(x), t).mean().backward()

        exact = SampleSpaceNaturalGradient(model, Categorical(), 1e-6, damping=options.damping)
        iterative = NaturalGradient(
            model, Categorical(), 1e-6, damping=options.damping, solver=conjugate_gradient
        )
        exact.step(x, t)
        one = least(gradient, 3 * options.repeats)
        step = least(partial(exact.step, x, t), options.repeats)
        krylov = least(partial(iterative.step, x, t), 2)
        print(
            f"n = {n:3d}: gradient {1e3 * one:5.1f} ms; exact step {step / one:5.1f} gradients, "
            f"residual {residual(model, x, t, options.damping):.1e} "
            f"(its own {exact.last.residual:.1e}, {exact.last.iterations} solves); "
            f"20 iterations {krylov / one:5.0f} gradients, residual {iterative.last.residual:.1e}"
        )


if __name__ == "__main__":
    main()
