"""Compare our Kronecker factors with curvlinops' and time both, in one run.

    python benchmarks/kfac.py [--repeats 7] [--threads 1]

The models are a tanh network 100-50-20-10 and a small convolutional one, with 256 inputs, in
float64; both sides use the exact expectation over the labels, and one block for weight and bias.
The times are for all factors of a model, and for factors and damped inverse together; each is the
least of all repeats, which go in turns. Needs the peer:

    pip install curvlinops-for-pytorch
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise

import curvlinops
import torch
from torch import nn

from natcompanion.likelihoods import Categorical
from natcompanion.metrics import kronecker_factors

DAMPING = 1e-3


def networks() -> dict[str, tuple[nn.Sequential, torch.Tensor]]:
    """Return models with a batch of inputs."""
    torch.manual_seed(0)
    layers = [m for a, b in pairwise((100, 50, 20, 10)) for m in (nn.Linear(a, b), nn.Tanh())]
    convolutional = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.Conv2d(8, 16, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16 * 9, 10),
    )
    return {
        "100-50-20-10": (nn.Sequential(*layers[:-1]).double(), torch.randn(256, 100).double()),
        "convolutional": (convolutional.double(), torch.randn(256, 1, 12, 12).double()),
    }


def peer(model: nn.Module, x: torch.Tensor) -> curvlinops.KFACLinearOperator:
    """Return curvlinops' operator, whose factors are computed as it is made or first used."""
    return curvlinops.KFACLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        list(model.parameters()),
        [(x, torch.zeros(len(x), dtype=torch.long))],
        fisher_type="type-2",
        separate_weight_and_bias=False,
        check_deterministic=False,
    )


def inverse(operator: curvlinops.KFACLinearOperator) -> curvlinops.KFACInverseLinearOperator:
    """Return the exactly damped inverse of a peer's operator."""
    return curvlinops.KFACInverseLinearOperator(operator, damping=DAMPING, use_exact_damping=True)


def dense(operator: object, model: nn.Module) -> torch.Tensor:
    """Return a peer's operator as a matrix over the parameters in the order of the model."""
    return operator @ torch.eye(sum(p.numel() for p in model.parameters()), dtype=torch.float64)


def least(functions: dict[str, Callable], repeats: int) -> dict[str, float]:
    """Return the least time of each function, called in turns."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name, (model, x) in networks().items():
        small = x[:16]
        ours = torch.block_diag(
            *[f.dense() for f in kronecker_factors(model, small, Categorical()).values()]
        )
        theirs = dense(peer(model, small), model)
        print(
            f"{name}: relative difference of all blocks "
            f"{float((ours - theirs).norm() / theirs.norm()):.1e}"
        )
        v = torch.randn(len(ours), dtype=torch.float64)
        mine = torch.linalg.solve(ours + DAMPING * torch.eye(len(ours), dtype=torch.float64), v)
        other = inverse(peer(model, small)) @ v
        print(
            "  of the exactly damped inverse on a vector "
            f"{float((mine - other).norm() / other.norm()):.1e}"
        )

        def factors_and_inverse(model: nn.Module = model, x: torch.Tensor = x) -> None:
            for f in kronecker_factors(model, x, Categorical()).values():
                f.inverse(DAMPING)

        times = least(
            {
                "natcompanion": factors_and_inverse,
                "curvlinops": lambda model=model, x=x, v=v: inverse(peer(model, x)) @ v,
            },
            options.repeats,
        )
        for who, seconds in times.items():
            print(f"  {who:13s} factors and inverse of {len(x)} inputs: {1e3 * seconds:7.1f} ms")


if __name__ == "__main__":
    main()
