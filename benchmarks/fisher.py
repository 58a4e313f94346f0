"""Time our Fisher matrices and products beside torch.func, curvlinops, BackPACK and NNGeometry, in
one run.

    python benchmarks/fisher.py [--repeats 7] [--threads 1]

Workload 1: the dense softmax Fisher matrix of a tanh network 100-20-20-10 on 500 inputs, in
float64, as a multiple of ``jacrev`` and ``einsum``. Workload 2: one product with a vector, and the
first one with its set-up, as a multiple of one gradient, for networks 100-20-20-10 and 784-200-10.
Function and yardstick run in turns, and every time is the least of all repeats: by the clock, and
of the processor (all threads), which other programs on the machine disturb less. "difference" is
relative to the plain result. Last, the memory that 1,000 products add. Peers that are not installed
are left out:

    pip install curvlinops-for-pytorch backpack-for-pytorch nngeometry
"""

import argparse
import gc
import mmap
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

from natcompanion import metrics
from natcompanion.likelihoods import Categorical

INSTALLED = {name for name in ("curvlinops", "backpack", "nngeometry") if find_spec(name)}


def problem(
    sizes: tuple[int, ...], dtype: torch.dtype
) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """Return a tanh network, 500 inputs and 500 labels."""
    torch.set_default_dtype(dtype)  # NNGeometry makes constants of the default dtype
    torch.manual_seed(0)
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
    return (
        nn.Sequential(*layers[:-1]).to(dtype),
        torch.randn(500, sizes[0], dtype=dtype),
        torch.randint(10, (500,)),
    )


def jacrev_einsum(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the Fisher matrix the plain way: all Jacobians, then a sum."""
    named = {name: p.detach() for name, p in model.named_parameters()}
    jacobians = vmap(jacrev(lambda theta, x_i: functional_call(model, theta, (x_i,))), (None, 0))(
        named, x
    )
    jacobian = torch.cat([j.flatten(2) for j in jacobians.values()], 2)
    y = torch.softmax(model(x).detach(), 1)
    metric = torch.diag_embed(y) - y.unsqueeze(2) * y.unsqueeze(1)
    return torch.einsum("nap,nab,nbq->pq", jacobian, metric, jacobian) / len(x)


def dense_contestants(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor
) -> Iterator[tuple[str, Callable]]:
    """Yield the ways to form the dense matrix."""
    yield "natcompanion", lambda: metrics.fisher(model, x, Categorical())
    loss = nn.CrossEntropyLoss()
    if "curvlinops" in INSTALLED:
        import curvlinops

        parameters = list(model.parameters())
        yield (
            "curvlinops",
            lambda: (
                curvlinops.GGNLinearOperator(
                    model, loss, parameters, [(x, t)], check_deterministic=False
                )
                @ torch.eye(sum(p.numel() for p in parameters), dtype=x.dtype)
            ),
        )
    if "backpack" in INSTALLED:
        import backpack
        import backpack.extensions

        extended, extended_loss = (
            backpack.extend(problem((100, 20, 20, 10), x.dtype)[0]),
            backpack.extend(loss),
        )

        def with_backpack() -> torch.Tensor:
            extended.zero_grad()
            with backpack.backpack(backpack.extensions.SqrtGGNExact()):
                extended_loss(extended(x), t).backward()
            rows = torch.cat(
                [p.sqrt_ggn_exact.flatten(2) for p in extended.parameters()], 2
            ).flatten(0, 1)
            return rows.mT @ rows

        yield "BackPACK", with_backpack
    if "nngeometry" in INSTALLED:
        from nngeometry.metrics import FIM
        from nngeometry.object import PMatDense
        from torch.utils.data import DataLoader, TensorDataset

        loader = DataLoader(TensorDataset(x, t), batch_size=len(x))
        yield (
            "NNGeometry",
            lambda: FIM(model, loader, PMatDense, variant="classif_logits").to_torch(),
        )


def product_contestants(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor
) -> Iterator[tuple[str, Callable]]:
    """Yield functions that make an operator: each returns the function v -> G v."""

    def ours() -> Callable:
        operator = metrics.FisherOperator(model, x, Categorical())
        return lambda v: operator @ v

    yield "natcompanion", ours
    named = dict(model.named_parameters())
    sizes = [p.numel() for p in named.values()]

    def with_func() -> Callable:
        theta = {name: p.detach() for name, p in named.items()}

        def product(v: torch.Tensor) -> torch.Tensor:
            tangent = {
                n: piece.view_as(p)
                for (n, p), piece in zip(theta.items(), v.split(sizes), strict=True)
            }
            forward = lambda z: functional_call(model, z, (x,))
            r, u = jvp(forward, (theta,), (tangent,))
            _, pull = vjp(forward, theta)
            return torch.cat(
                [g.flatten() for g in pull(Categorical().fisher_product(r, u) / len(x))[0].values()]
            )

        return product

    yield "torch.func", with_func
    if "curvlinops" in INSTALLED:
        import curvlinops

        def with_curvlinops() -> Callable:
            operator = curvlinops.GGNLinearOperator(
                model,
                nn.CrossEntropyLoss(),
                list(model.parameters()),
                [(x, t)],
                check_deterministic=False,
            )
            return lambda v: operator @ v

        yield "curvlinops", with_curvlinops
    if "backpack" in INSTALLED:
        from backpack.hessianfree.ggnvp import ggn_vector_product

        def with_backpack() -> Callable:
            parameters = list(model.parameters())

            def product(v: torch.Tensor) -> torch.Tensor:
                r = model(x)
                pieces = [
                    piece.view_as(p) for piece, p in zip(v.split(sizes), parameters, strict=True)
                ]
                out = ggn_vector_product(nn.functional.cross_entropy(r, t), r, model, pieces)
                return torch.cat([g.flatten() for g in out])

            return product

        yield "BackPACK", with_backpack
    if "nngeometry" in INSTALLED:
        from nngeometry.metrics import FIM
        from nngeometry.object import PMatImplicit, PVector
        from torch.utils.data import DataLoader, TensorDataset

        def with_nngeometry() -> Callable:
            loader = DataLoader(TensorDataset(x, t), batch_size=len(x))
            matrix = FIM(model, loader, PMatImplicit, variant="classif_logits")
            layout = PVector.from_model(model).layer_collection
            return lambda v: matrix.mv(PVector(layout, vector_repr=v)).to_torch()

        yield "NNGeometry", with_nngeometry


class Seconds(NamedTuple):
    """A time by the clock and one of the processor."""

    wall: float
    cpu: float

    def over(self, other: "Seconds") -> str:
        """Return both as multiples of another time."""
        return f"{self.wall / other.wall:8.3f} {self.cpu / other.cpu:8.3f}"


def timed(function: Callable) -> Seconds:
    """Return the time of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def beside(function: Callable, yardstick: Callable, repeats: int) -> tuple[Seconds, Seconds]:
    """Time both in turns, so that a busy machine slows both; return their least times."""
    function(), yardstick()
    pairs = [(timed(function), timed(yardstick)) for _ in range(repeats)]
    ours, theirs = ([pair[i] for pair in pairs] for i in (0, 1))
    return tuple(
        Seconds(min(s.wall for s in times), min(s.cpu for s in times)) for times in (ours, theirs)
    )


def dense(repeats: int) -> None:
    """Print workload 1."""
    model, x, t = problem((100, 20, 20, 10), torch.float64)
    expected = jacrev_einsum(model, x)
    plain = [timed(lambda: jacrev_einsum(model, x)) for _ in range(3)]
    base = Seconds(min(s.wall for s in plain), min(s.cpu for s in plain))
    print(
        "\nDense Fisher, 100-20-20-10, 500 inputs, float64: jacrev + einsum takes "
        f"{base.wall:.3g} s ({base.cpu:.3g} s of the processor)"
    )
    print(f"{'time / plain:':14} {'clock':>8} {'cpu':>8} {'difference':>11}")
    for name, function in dense_contestants(model, x, t):
        matrix = function().detach()
        times = [timed(function) for _ in range(repeats)]
        best = Seconds(min(s.wall for s in times), min(s.cpu for s in times))
        print(
            f"{name:14} {best.over(base)} "
            f"{float((matrix - expected).norm() / expected.norm()):11.1e}"
        )


def products(sizes: tuple[int, ...], dtype: torch.dtype, repeats: int) -> None:
    """Print workload 2 for one network."""
    model, x, t = problem(sizes, dtype)
    parameters = list(model.parameters())
    v = torch.linspace(-1, 1, sum(p.numel() for p in parameters), dtype=dtype)

    def gradient() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(nn.functional.cross_entropy(model(x), t), parameters)

    exact = metrics.FisherOperator(deepcopy(model).double(), x.double(), Categorical()) @ v.double()
    rows = []
    for name, make in product_contestants(model, x, t):
        product = make()
        result = product(v).detach().double()
        later, base = beside(lambda: product(v), gradient, 10 * repeats)  # noqa: B023
        first, base_ = beside(lambda: make()(v), gradient, 10 * repeats)  # noqa: B023
        difference = float((result - exact).norm() / exact.norm())
        rows.append(f"{name:14} {later.over(base)}  {first.over(base_)} {difference:11.1e}")
    name = "-".join(map(str, sizes))
    print(
        f"\nProducts, {name}, 500 inputs, {dtype}: one gradient takes {1e3 * base.cpu:.3g} "
        "ms of the processor"
    )
    print(
        f"{'time/gradient:':14} {'later':>8} {'cpu':>8}  {'first':>8} {'cpu':>8} {'difference':>11}"
    )
    print(*rows, sep="\n")


def memory() -> None:
    """Print how much the process grows from the 20th to the 1,020th product with one operator."""
    model, x, _ = problem((784, 200, 10), torch.float32)
    operator = metrics.FisherOperator(model, x, Categorical())
    v = torch.ones(operator.shape[0])

    def resident(products: int) -> int:
        for _ in range(products):
            operator @ v
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident(20)
    print(
        f"\nMemory: 1,000 products add {(resident(1000) - before) / 2**20:.1f} MiB to "
        f"{before / 2**20:.0f} MiB"
    )


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="timed calls of each function")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    print(
        f"torch {torch.__version__}, {options.threads} thread(s); peers installed: "
        f"{', '.join(sorted(INSTALLED)) or 'none'}"
    )
    dense(options.repeats)
    products((100, 20, 20, 10), torch.float64, options.repeats)
    products((784, 200, 10), torch.float32, options.repeats)
    memory()


if __name__ == "__main__":
    main()
