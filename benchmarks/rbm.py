"""Side by side with scikit-learn's BernoulliRBM: seconds per epoch, and exact likelihood after equal epochs.

Run ``python benchmarks/rbm.py``. Both train on the same 5,000 digits in float32, in batches of 100, from the same kind
of start, on the same number of threads. The epochs are timed with 784 x 64 units. scikit-learn trains by persistent
chains, ours by CD-1. To show that the faster epoch does not learn less, machines with 10 hidden units (whose exact
likelihood can be summed) are trained with the best of five learning rates for each.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from sklearn.neural_network import BernoulliRBM

from natcompanion.boltzmann import RBM, cd_epoch
from natcompanion.data import mnist


def start(data: torch.Tensor, hidden: int) -> RBM:
    """Return the machine that scikit-learn starts from: weights of standard deviation 0.01, no biases."""
    generator = torch.Generator().manual_seed(0)
    return RBM.random(data.shape[1], hidden, generator=generator, dtype=data.dtype)


RATES = (0.1, 0.2, 0.4, 0.8, 1.6)


def sklearn_machine(hidden: int, *, lr: float = 0.1, epochs: int = 1) -> BernoulliRBM:
    """Return an untrained machine of scikit-learn."""
    return BernoulliRBM(hidden, learning_rate=lr, batch_size=100, n_iter=epochs, random_state=0)


def seconds_per_epoch(
    data: torch.Tensor, hidden: int, repeats: int, mean_field: bool
) -> tuple[list[float], list[float]]:
    """Return the seconds of interleaved single epochs: ours, scikit-learn's."""
    ours, theirs = [], []
    rbm, generator, array = start(data, hidden), torch.Generator().manual_seed(1), data.numpy()
    for _ in range(repeats):
        begin = time.perf_counter()
        rbm = cd_epoch(rbm, data, lr=0.1, batch_size=100, mean_field=mean_field, generator=generator)
        ours.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        sklearn_machine(hidden).fit(array)
        theirs.append(time.perf_counter() - begin)
    return ours, theirs


def as_rbm(machine: BernoulliRBM) -> RBM:
    """Return a trained machine of scikit-learn as ours."""
    parts = (machine.components_.T, machine.intercept_visible_, machine.intercept_hidden_)
    return RBM(*(torch.from_numpy(np.ascontiguousarray(part)).double() for part in parts))


def best_likelihoods(data: torch.Tensor, epochs: int, mean_field: bool) -> tuple[float, float]:
    """Return the best exact mean log-likelihood over ``RATES`` after ``epochs`` epochs: ours, scikit-learn's."""
    ours, theirs = [], []
    for lr in RATES:
        rbm, generator = start(data, 10), torch.Generator().manual_seed(1)
        for _ in range(epochs):
            rbm = cd_epoch(rbm, data, lr=lr, batch_size=100, mean_field=mean_field, generator=generator)
        ours.append(RBM(*rbm.double()))
        theirs.append(as_rbm(sklearn_machine(10, lr=lr, epochs=epochs).fit(data.numpy())))
    return tuple(
        max(float(r.log_likelihood(data.double()).mean()) for r in machines) for machines in (ours, theirs)
    )


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--epochs", type=int, nargs="*", default=[1, 3, 5])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data = mnist(split="all", dtype=torch.float32)[0].flatten(1)
    print(
        f"epoch of 5,000 digits, 784 x 64, batch 100, {arguments.threads} threads, median of {arguments.repeats}"
    )
    for mean_field in (True, False):
        ours, theirs = seconds_per_epoch(data, 64, arguments.repeats, mean_field)
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        name = "reconstructions by probability" if mean_field else "sampled reconstructions"
        print(
            f"  {name:32s}natcompanion {statistics.median(ours):.3f} s, "
            f"scikit-learn {statistics.median(theirs):.3f} s, ratio {ratio:.2f}"
        )
    print("exact mean log-likelihood, 784 x 10, best of five learning rates for each")
    for epochs in arguments.epochs:
        a, b = best_likelihoods(data, epochs, True)
        print(f"  after {epochs} epochs: natcompanion {a:.1f}, scikit-learn {b:.1f}")


if __name__ == "__main__":
    main()
