"""Time an iteration of RNGD beside SGD, Adam, batch normalization, and the K-FAC of curvlinops, in
one run.

    python benchmarks/rngd.py [--rounds 7] [--data digits|fashion] [--threads 1]

The network is that of Figure 5, 784-64-64-64-10 with rectifiers, on batches of 100. An iteration
takes a batch from the data by its indices, and makes zero_grad, forward, backward and step. A turn
is ``period`` = 100 iterations, so that it holds one renewal of the inverse and all its statistics;
the contestants take turns in every round. Ratios are to SGD in the same round; their median and the
ratio of the least times are shown, in processor time and by the clock. Then each contestant trains
55,000 examples.

"In axes" trains on a copy of the images in their principal axes, where the metric of the first
layer is a diagonal; "shared" has one metric for the neurons of each hidden layer. K-FAC computes
its factors once in 100 iterations, from that batch alone. It needs
``pip install curvlinops-for-pytorch`` and is left out otherwise.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import nn

from natcompanion import relative
from natcompanion.chapters.experiments import _rfim_training as training
from natcompanion.optim import RNGD

PERIOD, BATCH = 100, 100


class KFAC:
    """Gradient descent preconditioned by curvlinops' K-FAC, whose factors are renewed every
    ``PERIOD`` steps.
    """

    def __init__(self, model: nn.Module, lr: float, damping: float) -> None:
        self.model, self.lr, self.damping, self.steps = model, lr, damping, 0
        self.parameters = list(model.parameters())

    def zero_grad(self) -> None:
        self.model.zero_grad()

    def step(self, x: torch.Tensor, t: torch.Tensor) -> None:
        import curvlinops

        if self.steps % PERIOD == 0:
            gradients = [p.grad for p in self.parameters]
            factors = curvlinops.KFACLinearOperator(
                self.model,
                nn.CrossEntropyLoss(),
                self.parameters,
                [(x, t)],
                check_deterministic=False,
                separate_weight_and_bias=False,
            )
            factors.compute_kronecker_factors()
            self.inverse = curvlinops.KFACInverseLinearOperator(
                factors, damping=(self.damping, self.damping)
            )
            for p, g in zip(self.parameters, gradients, strict=True):
                p.grad = g
        self.steps += 1
        with torch.no_grad():
            for p, d in zip(
                self.parameters, self.inverse @ [p.grad for p in self.parameters], strict=True
            ):
                p.sub_(d, alpha=self.lr)


class Contestant:
    """A network with an optimizer, and its times."""

    def __init__(
        self,
        name: str,
        make: Callable,
        normalization: str = "",
        axes: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        self.name, self.processor, self.clock = name, [], []
        self.model = training.network(
            (784, 64, 64, 64, 10), normalization, torch.Generator().manual_seed(0)
        )
        self.inputs = None
        if axes is not None:
            self.inputs, Q = axes
            self.model[0] = in_axes(self.model[0], Q)
        self.optimizer = make(self.model)

    def turn(
        self, x: torch.Tensor, t: torch.Tensor, generator: torch.Generator, steps: int
    ) -> float:
        """Make so many iterations and return the last loss."""
        x = x if self.inputs is None else self.inputs
        batches = training.batches(len(x), BATCH, generator)
        for _, index in zip(range(steps), batches, strict=False):
            a, b = x[index], t[index]
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(a), b)
            loss.backward()
            self.optimizer.step(a, b) if isinstance(self.optimizer, KFAC) else self.optimizer.step()
        return float(loss.detach())

    def timed_turn(
        self, x: torch.Tensor, t: torch.Tensor, generator: torch.Generator, steps: int
    ) -> float:
        """Note the times of so many iterations, per iteration."""
        processor, clock = time.process_time(), time.perf_counter()
        loss = self.turn(x, t, generator, steps)
        self.processor.append((time.process_time() - processor) / steps)
        self.clock.append((time.perf_counter() - clock) / steps)
        return loss


def in_axes(layer: nn.Linear, Q: torch.Tensor) -> nn.Linear:
    """Return the same layer for inputs in their principal axes."""
    W = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().double()
    turned = nn.Linear(Q.shape[1], len(W), bias=False)
    turned.weight.data.copy_(W @ Q)
    return turned


def contestants(x: torch.Tensor) -> list[Contestant]:
    """Return everything that is timed."""
    axes = relative.principal_inputs(x)
    turned = {"sample": axes[0], "blocks": {"0": "diagonal"}}
    shared = {**turned, "blocks": {"0": "diagonal", "2": "mean", "4": "mean"}}
    paper = {"eps": 0.03, "period": PERIOD, "decay": 0.995}
    found = [
        Contestant("SGD", lambda m: torch.optim.SGD(m.parameters(), 0.1)),
        Contestant("SGD, BN before", lambda m: torch.optim.SGD(m.parameters(), 0.1), "bnb"),
        Contestant("SGD, BN after", lambda m: torch.optim.SGD(m.parameters(), 0.1), "bna"),
        Contestant("Adam", lambda m: torch.optim.Adam(m.parameters(), 1e-3)),
        Contestant("RNGD", lambda m: RNGD(m, 0.1, **paper)),
        Contestant("RNGD, inputs once", lambda m: RNGD(m, 0.1, **paper, sample=x)),
        Contestant("RNGD, in axes", lambda m: RNGD(m, 0.1, **paper, **turned), axes=axes),
        Contestant("the same, shared", lambda m: RNGD(m, 0.1, **paper, **shared), axes=axes),
        Contestant("RNGD, every batch", lambda m: RNGD(m, 0.1, **paper, statistics_every=1)),
        Contestant("RNGD, T = 10", lambda m: RNGD(m, 0.1, **{**paper, "period": 10})),
    ]
    if find_spec("curvlinops"):
        found.append(Contestant("K-FAC, curvlinops", lambda m: KFAC(m, 0.03, 0.1)))
    return found


def table(found: list[Contestant]) -> None:
    """Print times and ratios to the first contestant."""
    print(
        f"{'':20} {'ms / iteration':>15} {'median ratio':>13} {'least ratio':>12} "
        f"{'clock, median':>14}"
    )
    base = found[0]
    for one in found:
        ratio = statistics.median(a / b for a, b in zip(one.processor, base.processor, strict=True))
        clock = statistics.median(a / b for a, b in zip(one.clock, base.clock, strict=True))
        print(
            f"{one.name:20} {1e3 * min(one.processor):15.2f} {ratio:13.2f} "
            f"{min(one.processor) / min(base.processor):12.2f} {clock:14.2f}"
        )


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--data", default="digits", choices=("digits", "fashion"))
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    split = training.load(options.data, 0)
    live = int((split.x.max(0).values > 0).sum())
    print(
        f"torch {torch.__version__}, {options.threads} thread(s), {options.data}: "
        f"{len(split.x)} images, {live} pixels not always 0"
    )
    found = contestants(split.x)
    generator = torch.Generator().manual_seed(1)
    for one in found:
        one.turn(split.x, split.t, generator, 2 * PERIOD)
    for _ in range(options.rounds):
        for one in found:
            one.timed_turn(split.x, split.t, generator, PERIOD)
    table(found)
    print("\nAn epoch of 55,000 examples, seconds of processor time and by the clock:")
    for one in found:
        loss = one.timed_turn(split.x, split.t, generator, 550)
        print(
            f"{one.name:20} {550 * one.processor[-1]:8.2f} {550 * one.clock[-1]:8.2f}   "
            f"last loss {loss:.2g}"
        )


if __name__ == "__main__":
    main()
