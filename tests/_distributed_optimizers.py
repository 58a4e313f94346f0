"""Training by one process or by two, with optimizers that follow a model's layers; run by
torchrun, it stores the path of the parameters.

torchrun --standalone --nproc-per-node 2 -m tests._distributed_optimizers DIRECTORY
"""

import copy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from natcompanion.likelihoods import Categorical
from natcompanion.optim import (
    KFAC,
    PRONG,
    RNGD,
    TONGA,
    HessianFree,
    NaturalGradient,
    Newton,
    SampleSpaceNaturalGradient,
    rngd,
)

STEPS, BATCH, SHARES = 60, 20, (13, 7)


class Net(nn.Module):
    """Two layers, and one that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)
        self.idle = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return correlated, shifted inputs, in an order so that the parts of a batch differ."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(60, 6, generator=g, dtype=torch.float64)
    x = x @ torch.randn(6, 6, generator=g, dtype=torch.float64) / 2 + 1
    return x, torch.randint(3, (60,), generator=g)


BATCHES: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "NaturalGradient": lambda m: NaturalGradient(m, Categorical(), 0.1, damping=0.1, max_iter=8),
    "TONGA": lambda m: TONGA(m, Categorical(), 0.1, damping=0.1, max_iter=8),
    "Newton": lambda m: Newton(m, Categorical(), 0.1, damping=1.0),
    "HessianFree": lambda m: HessianFree(m, Categorical(), 0.1, damping=1.0, max_iter=8),
}
"""Optimizers that are given a batch."""


def made(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of a scenario."""
    kind = name.removesuffix(", resumed")
    if kind in BATCHES:
        return BATCHES[kind](model)
    if name.startswith("KFAC"):
        used = [p for key, p in model.named_parameters() if "idle" not in key]
        params = None if name == "KFAC, idle layer" else used
        return KFAC(model, Categorical(), 0.05, damping=0.1, decay=0.5, parameters=params)
    options = {"eps": 0.05, "period": 3, "decay": 0.8, "momentum": 0.5, "weight_decay": 0.01}
    if name == "RNGD, sample":
        options["sample"] = data()[0]
    return RNGD(model, 0.05, statistics_every=1, **options)


SCENARIOS = (
    "RNGD",
    "RNGD, sample",
    "RNGD, resumed",
    "KFAC",
    "KFAC, idle layer",
    "KFAC, resumed",
    *BATCHES,
    "NaturalGradient, resumed",
)


def train(name: str, rank: int = 0, world: int = 1) -> torch.Tensor:
    """Return the parameters after each step, seen from one process of ``world``; (steps, P)."""
    model = Net().double()
    optimizer = made(name, model)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True) if world > 1 else model
    x, t = data()
    path = []
    for step in range(STEPS):
        rows = torch.randperm(60, generator=torch.Generator().manual_seed(step))[:BATCH]
        rows = rows[x[rows, 0].argsort()]
        mine = rows.split(SHARES)[rank] if world > 1 else rows
        if isinstance(optimizer, KFAC) and step % 5 == 0:
            optimizer.refresh(x[mine])
        if step == STEPS // 2 and name.endswith("resumed"):
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = made(name, model)
            optimizer.load_state_dict(state)
        if name.removesuffix(", resumed") in BATCHES:
            optimizer.step(x[mine], t[mine])  # type: ignore[arg-type]  # a batch, no closure
            path.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
            continue
        optimizer.zero_grad()
        loss = cross_entropy(wrapped(x[mine]), t[mine], reduction="sum") * (world / BATCH)
        loss.backward()
        optimizer.step()
        path.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(path)


NLL = Categorical()
SHARDED: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "PRONG": lambda m: PRONG(m, 0.1),
    "RNGD": lambda m: RNGD(m, 0.1),
    "KFAC": lambda m: KFAC(m, NLL, 0.1),
    "NaturalGradient": lambda m: NaturalGradient(m, NLL, 0.1),
}


def refusals() -> dict[str, str]:
    """Return what optimizers say of parameters of which each process holds a part, and those that
    need the whole batch of one.
    """
    with warnings.catch_warnings():  # torch warns of itself when this is imported
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer

    found = {}
    for name, make in SHARDED.items():
        model = Net().double()
        fully_shard(model)
        try:
            found[name] = repr(make(model))
        except ValueError as error:
            found[name] = str(error)
        model, extra = Net().double(), {} if name in ("PRONG", "RNGD") else {"likelihood": NLL}
        try:  # each process is to hold the state of a part of the parameters
            kind = type(make(model))
            found[f"{name}, parts"] = repr(
                ZeroRedundancyOptimizer(model.parameters(), kind, lr=0.1, **extra)
            )
        except ValueError as error:
            found[f"{name}, parts"] = str(error)
    optimizer = SampleSpaceNaturalGradient(Net().double(), Categorical(), 0.1)
    try:
        found["SampleSpaceNaturalGradient"] = str(optimizer.step(*data()))
    except ValueError as error:
        found["SampleSpaceNaturalGradient"] = str(error)
    return found


def main(directory: Path) -> None:
    """Store what this process sees of every scenario."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    paths: dict = {name: train(name, rank, world) for name in SCENARIOS}
    paths["refusals"] = refusals()
    means = rngd.world_size
    rngd.world_size = lambda: 1  # the negative control: each process has statistics of its own
    paths["statistics of one process"] = train("RNGD", rank, world)
    rngd.world_size = means
    torch.save(paths, directory / f"optimizers.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
