"""Time updates of PRONG beside SGD, batch normalization and K-FAC, on the paper's auto-encoder, in
one run.

    python benchmarks/prong.py [--rounds 21] [--renewals 3] [--period 100] [--sample 1000]
    [--threads 1]

The network is 784-1000-500-250-30 with a symmetric decoder and sigmoid units; batches of 128
digits, float32. In every round each method makes some updates, one after the other, so that a busy
machine slows all of them; in the first few rounds it also renews what it renews every ``period``
updates. Each number is the median over the rounds of the ratio to SGD in the same round:

    update       one update, without renewal
    renewal      one renewal (statistics from ``sample`` inputs, and what is computed from them), in
    updates of SGD amortized    update + renewal / period, by processor time; and by the clock
    renewal %    share of the renewals in that

"PRONG" runs on the unmodified model and inverts by Cholesky factors; "constant input" measures the
statistics of the images once. "whitened layers" is PRONG as the paper writes it, with
eigendecompositions. "curvlinops" is K-FAC of that package with one drawn label per example, if it
is installed:

    pip install curvlinops-for-pytorch
"""

import argparse
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from statistics import median

import torch
from torch import nn

from natcompanion import layers
from natcompanion.data import mnist
from natcompanion.likelihoods import Bernoulli
from natcompanion.optim import KFAC, PRONG, PRONGPlus

WIDTHS = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)
BATCH, EPS, LR = 128, 0.01, 0.01
LOSS = nn.BCEWithLogitsLoss()
Pair = tuple[Callable[[torch.Tensor], None], Callable[[], None]]


def autoencoder() -> nn.Sequential:
    """Return the paper's auto-encoder, without the last non-linearity."""
    torch.manual_seed(0)
    modules = [m for a, b in pairwise(WIDTHS) for m in (nn.Linear(a, b), nn.Sigmoid())]
    return nn.Sequential(*modules[:-1])


def with_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, renew: Callable[[], None] = lambda: None
) -> Pair:
    """Return an update and a renewal."""

    def update(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        LOSS(model(x), x).backward()
        optimizer.step()

    return update, renew


def prong(
    sample: torch.Tensor, *, whitened: bool = False, kind: type = PRONG, **options: object
) -> Pair:
    """Return PRONG, which renews when told to."""
    model = layers.whiten_model(autoencoder()) if whitened else autoencoder()
    optimizer = kind(model, LR, eps=EPS, period=10**9, sample=sample, **options)
    return with_optimizer(model, optimizer, optimizer.refresh)


def kfac(sample: torch.Tensor) -> Pair:
    """Return our K-FAC, with one drawn label per example."""
    model = autoencoder()
    optimizer = KFAC(model, Bernoulli(), LR, damping=EPS, factored=True, draws=1)
    optimizer.refresh(sample)
    return with_optimizer(model, optimizer, lambda: optimizer.refresh(sample))


def curvlinops_kfac(sample: torch.Tensor) -> Pair:
    """Return K-FAC of curvlinops: its factors and its inverse."""
    import curvlinops

    model = autoencoder()
    parameters, inverse = list(model.parameters()), None

    def renew() -> None:
        nonlocal inverse
        operator = curvlinops.KFACLinearOperator(
            model,
            LOSS,
            parameters,
            [(sample, sample)],
            check_deterministic=False,
            separate_weight_and_bias=False,
            num_data=len(sample),
            num_per_example_loss_terms=1,
        )
        inverse = curvlinops.KFACInverseLinearOperator(
            operator, damping=EPS, use_heuristic_damping=True
        )
        inverse @ [torch.zeros_like(p) for p in parameters]  # it inverts at the first product

    def update(x: torch.Tensor) -> None:
        gradients = torch.autograd.grad(LOSS(model(x), x), parameters)
        with torch.no_grad():
            for p, step in zip(parameters, inverse @ list(gradients), strict=True):
                p.sub_(step, alpha=LR)

    renew()
    return update, renew


def contestants(sample: torch.Tensor) -> dict[str, Pair]:
    """Return an update and a renewal for each method."""
    plain, normalized = autoencoder(), layers.with_batch_norm(autoencoder())
    methods = {
        "SGD": with_optimizer(plain, torch.optim.SGD(plain.parameters(), LR)),
        "batch normalization": with_optimizer(
            normalized, torch.optim.SGD(normalized.parameters(), LR)
        ),
        "PRONG": prong(sample),
        "PRONG, constant input": prong(sample, constant_inputs=["0"]),
        "PRONG, whitened layers": prong(sample, whitened=True),
        "PRONG+, diagonal": prong(sample, kind=PRONGPlus, normalization="diagonal"),
        "K-FAC": kfac(sample),
    }
    if find_spec("curvlinops"):
        methods["K-FAC, curvlinops"] = curvlinops_kfac(sample)
    return methods


def seconds(function: Callable[[], object]) -> torch.Tensor:
    """Return processor time and time by the clock of one call."""
    start = time.process_time(), time.perf_counter()
    function()
    return torch.tensor([time.process_time() - start[0], time.perf_counter() - start[1]])


def measured(
    methods: dict[str, Pair], x: torch.Tensor, updates: int, renewing: bool
) -> dict[str, torch.Tensor]:
    """Return times (update, renewal) x (processor, clock) of one round, for each method; NaN if not
    renewing.
    """
    found = {}
    for name, (update, renew) in methods.items():
        batches = [x[torch.randint(len(x), (BATCH,))] for _ in range(updates)]
        update(batches[0])
        run = seconds(lambda: [update(batch) for batch in batches]) / updates  # noqa: B023
        found[name] = torch.stack(
            (run, seconds(renew) if renewing else torch.full((2,), torch.nan))
        )
    return found


def report(rounds: list[dict[str, torch.Tensor]], period: int) -> None:
    """Print the table."""
    base = median(1e3 * float(r["SGD"][0, 0]) for r in rounds)
    print(
        f"\nOne update of SGD takes {base:.3g} ms of processor time. In units of it, "
        "medians (least, most):\n"
    )
    print(
        f"{'':24}{'update':>8}{'renewal':>9}{'amortized':>11}{'':16}{'clock':>7}{'renewal %':>11}"
    )
    for name in rounds[0]:
        ratios = torch.stack([r[name] / r["SGD"][0] for r in rounds])  # (round, part, clock)
        update, renewal = ratios[:, 0], ratios[:, 1].nanmedian(0).values
        whole = update + renewal / period
        share = 100 * renewal[0] / period / whole[:, 0]
        least, most = (float(f(whole[:, 0])) for f in (torch.min, torch.max))
        print(
            f"{name:24}{float(update[:, 0].median()):8.2f}{float(renewal[0]):9.1f}"
            f"{float(whole[:, 0].median()):11.2f}{f'  ({least:.2f}, {most:.2f})':16}"
            f"{float(whole[:, 1].median()):7.2f}{float(share.median()):11.1f}"
        )


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=21, help="how often all methods take their turn"
    )
    parser.add_argument("--renewals", type=int, default=3, help="in how many of them they renew")
    parser.add_argument("--updates", type=int, default=4, help="updates of each method in a round")
    parser.add_argument("--period", type=int, default=100, help="updates between two renewals")
    parser.add_argument("--sample", type=int, default=1000, help="inputs for the statistics")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    x = mnist(split="all")[0].flatten(1).float()
    methods = contestants(x[torch.randperm(len(x))[: options.sample]])
    peer = "curvlinops installed" if find_spec("curvlinops") else "curvlinops not installed"
    print(
        f"torch {torch.__version__}, {options.threads} thread(s), {options.rounds} rounds; {peer}"
    )
    measured(methods, x, 1, renewing=False)
    rounds = [
        measured(methods, x, options.updates, renewing=i < options.renewals)
        for i in range(options.rounds)
    ]
    report(rounds, options.period)


if __name__ == "__main__":
    main()
