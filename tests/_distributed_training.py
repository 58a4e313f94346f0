"""Training with PRONG by one process or by several; run by torchrun, it stores the path of the
parameters.

torchrun --standalone --nproc-per-node 2 -m tests._distributed_training DIRECTORY
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from natcompanion._moments import Moments
from natcompanion.layers import whiten_model
from natcompanion.optim import PRONG, PRONGPlus
from natcompanion.recipes import imagefolder

STEPS, BATCH = 8, 20
SHARES = {"even": (10, 10), "uneven": (13, 7)}


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
    ).double()


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(48, 3),
    ).double()


class Branches(nn.Module):
    """A network with a layer that few examples reach: in many steps none of those of a process."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.rare, self.last = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        out, some = self.last(h), x[:, 0] > 3
        if some.any():
            out = out.index_add(0, some.nonzero()[:, 0], self.rare(h[some]))
        return out


def branches() -> nn.Module:
    return Branches().double()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return correlated, shifted inputs and labels."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(60, 6, generator=g, dtype=torch.float64)
    x = x @ torch.randn(6, 6, generator=g, dtype=torch.float64) + 2
    return x, torch.randint(3, (60,), generator=g)


def options(**changes: object) -> dict:
    return {"lr": 0.02, "momentum": 0.9, "eps": 0.05, "period": 3, "sample": data()[0], **changes}


SCENARIOS: dict[str, tuple[Callable[[], nn.Module], dict, str]] = {
    "plain layers": (dense, options(), "even"),
    "uneven shares": (dense, options(), "uneven"),
    "whitened layers": (lambda: whiten_model(dense()), options(), "uneven"),
    "convolution": (convolutional, options(), "uneven"),
    "drawn sample": (dense, options(sample_size=31), "uneven"),
    "training batches": (dense, options(sample=None), "uneven"),
    "weight decay": (dense, options(weight_decay=0.1, nesterov=True), "even"),
    "whitened gradients": (dense, options(backward_eps=1.0), "even"),
    "a diagonal for every batch": (dense, options(normalization="diagonal"), "uneven"),
    "a layer without gradient": (branches, options(sample=None, eps=0.3), "uneven"),
    "resumed": (dense, options(sample=None), "uneven"),
    "resumed, whitened": (lambda: whiten_model(dense()), options(), "uneven"),
    "DistributedDataParallel": (dense, options(synchronize=False), "uneven"),
}


def train(name: str, rank: int = 0, world: int = 1) -> torch.Tensor:
    """Return the parameters after each step of a scenario, seen from one process of ``world``;
    (steps, P).
    """
    make, settings, share = SCENARIOS[name]
    model = make()
    optimizer = (PRONGPlus if "normalization" in settings else PRONG)(model, **settings)
    wrapped = (
        DistributedDataParallel(model)
        if world > 1 and not settings.get("synchronize", True)
        else model
    )
    x, t = data()
    path = []
    for step in range(STEPS):
        if step == STEPS // 2 and name.startswith("resumed"):  # from the state of the first process
            states = [(model.state_dict(), optimizer.state_dict())]
            if world > 1:
                dist.broadcast_object_list(states, 0)
            wrapped = model = make()
            optimizer = PRONG(model, **{**settings, "period": 1, "eps": 1.0})
            model.load_state_dict(states[0][0])
            optimizer.load_state_dict(states[0][1])
        rows = torch.randperm(60, generator=torch.Generator().manual_seed(step))[:BATCH]
        mine = rows.split(SHARES[share])[rank] if world > 1 else rows
        optimizer.zero_grad()
        loss = cross_entropy(wrapped(x[mine]), t[mine], reduction="sum") * (world / BATCH)
        loss.backward()
        optimizer.step()
        path.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(path)


IMAGES = {
    "size": 20,
    "width": 0.06,
    "batch": 16,
    "epochs": 9,
    "steps": 10,
    "period": 3,
    "sample-size": 24,
    "evaluate-every": 5,
    "lr": 0.03,
}


def train_on_images(directory: Path, name: str, **changes: int) -> None:
    """Call the recipe as its command line does."""
    options = [f"--{key}={value}" for key, value in {**IMAGES, **changes}.items()]
    imagefolder.main([str(directory / "images"), str(directory / name), *options])


def main(directory: Path) -> None:
    """Store what this process sees of every scenario; train on images, also with a break."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    paths = {name: train(name, rank, world) for name in SCENARIOS}
    reduced = Moments.reduced
    Moments.reduced = lambda moments: moments
    paths["statistics of one process"] = train("uneven shares", rank, world)
    Moments.reduced = reduced
    torch.save(paths, directory / f"paths.{rank}")
    train_on_images(directory, "whole")
    train_on_images(directory, "parts", steps=3)
    train_on_images(directory, "parts")
    train_on_images(directory, "other", seed=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
