"""Side by side with scikit-learn's BernoulliRBM: seconds per epoch and exact likelihood; and the
cost of exact sums.

Run ``python benchmarks/rbm.py``. Both train on the same 5,000 digits in float32, in batches of 100,
from the same kind of start, on the same number of threads. The epochs are timed with 784 x 64
units. scikit-learn trains by persistent chains whose visible units are sampled; ours is CD-1, with
sampled reconstructions or with their probabilities. To show that a faster epoch does not learn
less, machines with 10 hidden units (whose exact likelihood can be summed) are trained with the best
of five learning rates for each. On a busy machine the smallest times say more than the medians.
"""

import argparse
import statistics
import subprocess
import sys
import time

import numpy as np
import torch
from sklearn.neural_network import BernoulliRBM
from threadpoolctl import threadpool_limits

from natcompanion.boltzmann import RBM, cd_epoch
from natcompanion.data import mnist

RATES = (0.1, 0.2, 0.4, 0.8, 1.6)
KINDS = {"probabilities": True, "samples": False}
EXACT = {
    "log Z, 784 x 20": "RBM.random(784, 20, scale=0.1, generator=g).log_partition()",
    "Fisher matrix, 100 x 10": "RBM.random(100, 10, scale=0.1, generator=g).fisher()",
}


def start(data: torch.Tensor, hidden: int) -> RBM:
    """Return the machine that scikit-learn starts from: weights of standard deviation 0.01, no
    biases.
    """
    generator = torch.Generator().manual_seed(0)
    return RBM.random(data.shape[1], hidden, generator=generator, dtype=data.dtype)


def sklearn_machine(hidden: int, *, lr: float = 0.1, epochs: int = 1) -> BernoulliRBM:
    """Return an untrained machine of scikit-learn."""
    return BernoulliRBM(hidden, learning_rate=lr, batch_size=100, n_iter=epochs, random_state=0)


def seconds_per_epoch(data: torch.Tensor, hidden: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of interleaved single epochs: ours of both kinds, and scikit-learn's."""
    found = {name: [] for name in (*KINDS, "scikit-learn")}
    rbm, generator, array = start(data, hidden), torch.Generator().manual_seed(1), data.numpy()
    for _ in range(repeats):
        for name, mean_field in KINDS.items():
            begin = time.perf_counter()
            cd_epoch(rbm, data, lr=0.1, batch_size=100, mean_field=mean_field, generator=generator)
            found[name].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        sklearn_machine(hidden).fit(array)
        found["scikit-learn"].append(time.perf_counter() - begin)
    return found


def as_rbm(machine: BernoulliRBM) -> RBM:
    """Return a trained machine of scikit-learn as ours."""
    parts = (machine.components_.T, machine.intercept_visible_, machine.intercept_hidden_)
    return RBM(*(torch.from_numpy(np.ascontiguousarray(part)).double() for part in parts))


def our_likelihoods(data: torch.Tensor, lr: float, epochs: int, mean_field: bool) -> list[float]:
    """Return the exact mean log-likelihood of a machine with 10 hidden units after each epoch of
    CD-1.
    """
    rbm, generator, found = start(data, 10), torch.Generator().manual_seed(1), []
    for _ in range(epochs):
        rbm = cd_epoch(rbm, data, lr=lr, batch_size=100, mean_field=mean_field, generator=generator)
        found.append(float(RBM(*rbm.double()).log_likelihood(data.double()).mean()))
    return found


def best_likelihoods(data: torch.Tensor, epochs: list[int]) -> dict[str, list[float]]:
    """Return the best exact mean log-likelihood over ``RATES``: ours after every epoch, theirs
    after some.
    """
    found = {
        name: np.max([our_likelihoods(data, lr, max(epochs), kind) for lr in RATES], 0).tolist()
        for name, kind in KINDS.items()
    }
    theirs = [
        [as_rbm(sklearn_machine(10, lr=lr, epochs=n).fit(data.numpy())) for lr in RATES]
        for n in epochs
    ]
    found["scikit-learn"] = [
        max(float(r.log_likelihood(data.double()).mean()) for r in tried) for tried in theirs
    ]
    return found


def exact(expression: str, threads: int) -> tuple[float, float, float]:
    """Return seconds, processor seconds and the peak MiB (with torch itself) of one exact sum in a
    fresh process.
    """
    code = (
        "import time, torch, resource; from natcompanion.boltzmann import RBM; "
        f"torch.set_num_threads({threads}); g = torch.Generator().manual_seed(0); "
        f"wall, used = time.perf_counter(), time.process_time(); {expression}; "
        "print(time.perf_counter() - wall, time.process_time() - used, "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    wall, used, size = map(float, done.stdout.split())
    return wall, used, size / 1024


def main() -> None:
    """Print all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--epochs", type=int, nargs="*", default=[1, 3, 5])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data = mnist(split="all", dtype=torch.float32)[0].flatten(1)
    with threadpool_limits(arguments.threads):
        found = seconds_per_epoch(data, 64, arguments.repeats)
        print(
            f"epoch of 5,000 digits, 784 x 64, batch 100, {arguments.threads} threads, "
            f"{arguments.repeats} repeats"
        )
        theirs = found["scikit-learn"]
        for name, ours in found.items():
            ratio = statistics.median(ours) / statistics.median(theirs)
            print(
                f"  {name:14s} median {statistics.median(ours):.3f} s (ratio {ratio:.2f}), "
                f"least {min(ours):.3f} s (ratio {min(ours) / min(theirs):.2f})"
            )
        likelihoods = best_likelihoods(data, arguments.epochs)
        print("exact mean log-likelihood, 784 x 10, best of five learning rates for each")
        for epochs, goal in zip(arguments.epochs, likelihoods["scikit-learn"], strict=True):
            print(f"  scikit-learn, {epochs} epochs: {goal:.1f}")
            for name in KINDS:
                first = next(
                    (n for n, value in enumerate(likelihoods[name], 1) if value >= goal), None
                )
                share = statistics.median(found[name]) / statistics.median(theirs)
                told = (
                    f"after {first}, in {first / epochs * share:.2f} of its time"
                    if first
                    else "not reached"
                )
                print(
                    f"    {name}: {likelihoods[name][epochs - 1]:.1f} after as many; as high {told}"
                )
    for name, expression in EXACT.items():
        seconds, used, size = exact(expression, arguments.threads)
        print(
            f"{name}: {seconds:.2f} s ({used:.2f} s of processor time), peak {size:.0f} MiB "
            "with torch"
        )


if __name__ == "__main__":
    main()
