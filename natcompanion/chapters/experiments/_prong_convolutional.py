"""The convolutional network of Figure 4 at a size that runs: data with random crops and flips,
network, annealing.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import avg_pool2d

from natcompanion.chapters.experiments._prong_training import (
    Choice,
    Run,
    at_rest,
    make_optimizer,
)
from natcompanion.chapters.experiments.kit import Clock
from natcompanion.data import cifar10, fashion_mnist, mnist
from natcompanion.likelihoods import Categorical

LIKELIHOOD = Categorical()


@dataclass(frozen=True)
class Pictures:
    """Standardized images (n, channels, side, side) and labels for training, validation and
    testing.
    """

    x: torch.Tensor
    t: torch.Tensor
    validation: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    crop: int


def pictures(
    data: str, *, size: int, crop: int, train: int, validation: int, test: int
) -> Pictures:
    """Return parts of Fashion-MNIST, CIFAR-10 or the 5,000 digits; validation and test images are
    cut to their middle.
    """
    load = {"fashion": fashion_mnist, "cifar10": cifar10, "digits": mnist}[data]
    parts = {}
    for split, n in (("train", train), ("validation", validation), ("test", test)):
        x, t = load(n, size=size, split=split, seed=0, dtype=torch.float32)
        parts[split] = (x if x.ndim == 4 else x[:, None]), t
    mean, scale = parts["train"][0].mean(), parts["train"][0].std()
    parts = {split: ((x - mean) / scale, t) for split, (x, t) in parts.items()}
    edge = (size - crop) // 2
    middle = slice(edge, edge + crop)
    held_out = {
        split: (parts[split][0][:, :, middle, middle], parts[split][1])
        for split in ("validation", "test")
    }
    return Pictures(*parts["train"], held_out["validation"], held_out["test"], crop)


def augmented(x: torch.Tensor, crop: int, generator: torch.Generator) -> torch.Tensor:
    """Return a random crop of each image, mirrored or not."""
    n, _, side, _ = x.shape
    corners = torch.randint(side - crop + 1, (n, 2), generator=generator)
    mirrored = torch.rand(n, generator=generator, dtype=torch.float32) < 0.5
    steps = torch.arange(crop)
    rows = (corners[:, :1] + steps)[:, None, :, None]
    columns = torch.where(mirrored[:, None], crop - 1 - steps, steps) + corners[:, 1:]
    return x[
        torch.arange(n)[:, None, None, None],
        torch.arange(x.shape[1])[:, None, None],
        rows,
        columns[:, None, None],
    ]


class MeanPool(nn.Module):
    """The mean of every map."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, maps) for maps (n, maps, side, side)."""
        return avg_pool2d(x, x.shape[-1]).flatten(1)


def network(
    channels: int, maps: tuple[int, ...], batch_norm: bool, generator: torch.Generator
) -> nn.Sequential:
    """Return a small network after VGG: pairs of 3 x 3 convolutions with ReLU, each pair pooled,
    then a linear layer.

    Weights from N(0, 2 / fan-in), biases 0; with ``batch_norm`` after every convolution.
    """
    layers: list[nn.Module] = []
    for out in maps:
        for inputs in (channels, out):
            layers.append(nn.Conv2d(inputs, out, 3, padding=1, dtype=torch.float32))
            layers += [nn.BatchNorm2d(out, dtype=torch.float32)] * batch_norm
            layers.append(nn.ReLU())
        layers.append(nn.MaxPool2d(2))
        channels = out
    model = nn.Sequential(*layers[:-1], MeanPool(), nn.Linear(maps[-1], 10, dtype=torch.float32))
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                noise = torch.randn(layer.weight.shape, generator=generator, dtype=torch.float32)
                layer.weight.copy_(noise * (2 / layer.weight[0].numel()) ** 0.5)
                layer.bias.zero_()  # type: ignore[union-attr]  # every layer here has one
    return model


@torch.no_grad()
def error(model: nn.Module, x: torch.Tensor, t: torch.Tensor) -> float:
    """Return the percentage of misclassified images."""
    wrong = sum(
        int((model(a).argmax(1) != b).sum())
        for a, b in zip(x.split(1000), t.split(1000), strict=True)
    )
    return 100 * wrong / len(x)


@torch.no_grad()
def cross_entropy(model: nn.Module, x: torch.Tensor, t: torch.Tensor) -> float:
    """Return the mean cross-entropy, at most 100."""
    return min(float(LIKELIHOOD.nll(model(x), t).mean().nan_to_num(100.0, 100.0)), 100.0)


class Waterfall:
    """Divide the step size by ten when the validation error has not improved for ``patience``
    looks.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, patience: int) -> None:
        self.optimizer, self.patience, self.best, self.since, self.drops = (
            optimizer,
            patience,
            float("inf"),
            0,
            0,
        )

    def look(self, error: float) -> None:
        """Take a new validation error into account."""
        self.since = 0 if error < self.best else self.since + 1
        self.best = min(self.best, error)
        if self.since >= self.patience:
            self.since, self.drops = 0, self.drops + 1
            for group in self.optimizer.param_groups:
                group["lr"] /= 10


class AnnealedRun(Run):
    """A run that looks at the validation error now and then, for the annealing and for the curves.

    Batch normalization is measured with the statistics of 2,000 training images: in a short run the
    running ones lag behind. ``curve`` holds the number of updates, the training loss on the first
    images (in the middle, not mirrored) and the validation error in per cent, at each look.
    """

    def __init__(self, *parts: Any, data: Pictures, every: int, patience: int) -> None:
        super().__init__(*parts)
        self.data, self.every, self.waterfall, self.updates = (
            data,
            every,
            Waterfall(self.optimizer, patience),
            0,
        )
        edge = (data.x.shape[-1] - data.crop) // 2
        middle = slice(edge, edge + data.crop)
        self.watched = data.x[:2000, :, middle, middle], data.t[:2000]
        self.curve: list[dict] = []

    def train(self, updates: int) -> "AnnealedRun":
        """Make some more updates, a multiple of ``every``."""
        for _ in range(updates // self.every):
            super().train(self.every)
            self.updates += self.every
            resting = self.at_rest()
            wrong = error(resting, *self.data.validation)
            self.waterfall.look(wrong)
            loss = 100.0 if self.diverged else cross_entropy(resting, *self.watched)
            self.curve.append(
                {"update": self.updates, "train": round(loss, 5), "validation": round(wrong, 4)}
            )
        return self

    def at_rest(self) -> nn.Module:
        """Return a copy of the model to be measured."""
        return at_rest(self.model, self.watched[0])

    def score(self) -> float:
        """Return the validation error at the last look."""
        return self.curve[-1]["validation"]


def start(
    method: str,
    choice: Choice,
    data: Pictures,
    maps: tuple[int, ...],
    generator: torch.Generator,
    *,
    period: int,
    batch: int,
    samples: int,
    every: int,
    patience: int,
) -> AnnealedRun:
    """Return a run of one method at its beginning."""

    def draw(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.randint(len(data.x), (n,), generator=generator)
        return augmented(data.x[index], data.crop, generator), data.t[index]

    with Clock() as clock:
        model = network(data.x.shape[1], maps, method in ("batchnorm", "prong+"), generator)
        optimizer = make_optimizer(method, model, choice, lambda: draw(samples)[0], period=period)
    return AnnealedRun(
        model,
        optimizer,
        LIKELIHOOD,
        lambda: draw(batch),
        clock,
        data=data,
        every=every,
        patience=patience,
    )
