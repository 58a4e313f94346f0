"""PRONG, RNGD and K-FAC on public models that nobody here wrote, beside SGD in one run.

    python benchmarks/models.py [MODEL ...] [--threads 1]

The architectures are those of the packages, whole, with random weights. Only the inputs are small,
so that one processor core trains them: batches of 32, images of 32 and 64 pixels (resnet18) and of
16 (ViT, U-Net), 28 as in the MNIST example, sentences of 16 tokens; ViT and GPT-2 have 6 layers of
width 192. Random data, float32. Every option but the step size is at its default, except that K-FAC
draws one label per example (by default it takes the expectation, which sends as many columns back
as a batch has outputs: 10 for ten classes, 16,000 for GPT-2).

Every optimizer trains a copy of the model, and they take turns of 10 updates: the same noise for
all. A first update, which is not timed, makes the statistics. Then there are three turns without a
renewal, and one with it. Printed are

    100 updates    processor time beside SGD's, with the renewals in their proportion: nine turns
                   without (the median of them) and one with. PRONG and RNGD have the default
                   period of 100, and K-FAC renews its factors as often
    update         a turn without a renewal, beside SGD's
    plain          share of the parameters that takes plain steps, for want of a metric

Needs the packages:

    pip install torchvision transformers diffusers
"""

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from natcompanion.likelihoods import Categorical, Gaussian
from natcompanion.optim import KFAC, PRONG, RNGD

BATCH = 32
PERIOD, TURN, TURNS = 100, 10, 3


@dataclass
class Case:
    """A model, a batch of its inputs and targets, and how its output is read."""

    model: nn.Module
    x: Any
    loss: Callable[[torch.Tensor], torch.Tensor]
    likelihood: Any
    output: Any = None

    def value(self) -> torch.Tensor:
        """Return the loss of the batch."""
        made = self.model(*self.x) if isinstance(self.x, tuple) else self.model(self.x)
        return self.loss(self.output(made) if self.output else made)


def labelled(classes: int, *shape: int) -> tuple[torch.Tensor, Callable]:
    """Return random inputs and the cross entropy of random labels."""
    t = torch.randint(classes, (BATCH,))
    return torch.randn(BATCH, *shape), lambda out: nn.functional.cross_entropy(out, t)


def mnist_example() -> Case:
    """Return the network of PyTorch's MNIST example."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
    x, loss = labelled(10, 1, 28, 28)
    return Case(model, x, loss, Categorical())


def resnet18(pixels: int = 32) -> Case:
    """Return torchvision's resnet18 on small images."""
    from torchvision.models import resnet18 as network

    x, loss = labelled(10, 3, pixels, pixels)
    return Case(network(num_classes=10), x, loss, Categorical())


def vit() -> Case:
    """Return a vision transformer of 6 layers, width 192, with patches of 4 of the 16 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=16,
        patch_size=4,
        num_labels=10,
    )
    x, loss = labelled(10, 3, 16, 16)
    model = ViTForImageClassification(config)
    return Case(model, x, loss, Categorical(), lambda made: made.logits)


def gpt2() -> Case:
    """Return GPT-2 with 6 layers, width 192 and 16 positions; 1,000 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=6, n_embd=192, n_head=3, n_positions=16, vocab_size=1000, use_cache=False
    )
    x = torch.randint(1000, (BATCH, 16))
    t = torch.randint(1000, (BATCH, 16))

    def loss(out: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(out.flatten(0, 1), t.flatten())

    return Case(GPT2LMHeadModel(config), x, loss, Categorical(), lambda made: made.logits)


def unet() -> Case:
    """Return diffusers' U-Net on images of 16 pixels, which predicts the noise."""
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    x = torch.randn(BATCH, 1, 16, 16), torch.randint(1000, (BATCH,))
    noise = torch.randn(BATCH, 1, 16, 16)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return (out - noise).square().mean()

    return Case(model, x, loss, Gaussian(), lambda made: made.sample)


CASES = {
    "MNIST example": mnist_example,
    "resnet18": resnet18,
    "resnet18 at 64 pixels": lambda: resnet18(64),
    "ViT": vit,
    "GPT-2": gpt2,
    "U-Net": unet,
}


class Contestant:
    """One optimizer on a copy of a model, and the processor time of its turns."""

    def __init__(self, name: str, make: Callable[[Case], Any], case: Case) -> None:
        self.name, self.case = name, Case(**vars(case) | {"model": copy.deepcopy(case.model)})
        self.times: list[float] = []
        self.refused = ""
        try:
            self.optimizer = make(self.case)
        except ValueError as error:
            self.refused = str(error)

    def update(self, steps: int | None = None) -> None:
        """Make one update, after so many; a multiple of the period is when statistics are renewed.

        RNGD renews at the end of a period, the others at its beginning.
        """
        if steps is not None:
            if isinstance(self.optimizer, KFAC):
                self.optimizer.refresh(self.case.x)
            for group in self.optimizer.param_groups:
                group["steps"] = steps - isinstance(self.optimizer, RNGD)
        self.optimizer.zero_grad()
        self.case.value().backward()
        self.optimizer.step()

    def turn(self, *, renewing: bool) -> None:
        """Make some updates."""
        start = time.process_time()
        self.update(2 * PERIOD if renewing else None)
        for _ in range(TURN - 1):
            self.update()
        self.times.append(time.process_time() - start)

    @property
    def ordinary(self) -> float:
        """The time of a turn without a renewal."""
        return median(self.times[:TURNS])

    @property
    def whole(self) -> float:
        """The time of a period."""
        return (PERIOD // TURN - 1) * self.ordinary + self.times[TURNS]

    @property
    def plain(self) -> float:
        """The share of the parameters that takes plain steps."""
        if not hasattr(self.optimizer, "plain"):
            return 1.0
        modules, plain = dict(self.case.model.named_modules()), self.optimizer.plain
        sizes = {p: p.numel() for p in self.case.model.parameters()}
        own = {p for name in plain for p in modules[name].parameters(recurse=False)}
        return sum(sizes[p] for p in own) / sum(sizes.values())


LR = 1e-4
OPTIMIZERS: dict[str, Callable[[Case], Any]] = {
    "SGD": lambda case: torch.optim.SGD(case.model.parameters(), lr=LR),
    "PRONG": lambda case: PRONG(case.model, lr=LR),
    "RNGD": lambda case: RNGD(case.model, lr=LR),
    "K-FAC": lambda case: KFAC(case.model, case.likelihood, lr=LR, draws=1, output=case.output),
}


def compare(name: str) -> None:
    """Print the row of each optimizer on one model."""
    torch.manual_seed(0)
    case = CASES[name]()
    size = sum(p.numel() for p in case.model.parameters())
    print(f"{name}, {size:,} parameters", flush=True)
    contestants = [Contestant(key, make, case) for key, make in OPTIMIZERS.items()]
    running = [one for one in contestants if not one.refused]
    for one in running:
        one.update(PERIOD)
    for turn in range(TURNS + 1):
        for one in running:
            one.turn(renewing=turn == TURNS)
    sgd = running[0]
    print(f"  SGD          {1e3 * sgd.ordinary / TURN:.0f} ms an update")
    for one in contestants[1:]:
        if one.refused:
            print(f"  {one.name:12} refused: {one.refused}")
            continue
        print(
            f"  {one.name:12} {PERIOD} updates {one.whole / sgd.whole:5.2f} of SGD, update "
            f"{one.ordinary / sgd.ordinary:5.2f}, plain {one.plain:.0%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", choices=[[], *CASES], default=[])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    for name in options.models or CASES:
        compare(name)


if __name__ == "__main__":
    main()
