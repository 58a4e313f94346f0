"""PRONG, RNGD and K-FAC on public models that nobody here wrote, beside SGD in one run.

    python benchmarks/models.py [MODEL ...] [--threads 1]

The architectures are those of the packages, at sizes that one processor core trains: random
weights, random data, batches of 32, float32, every option of an optimizer but the step size at its
default; K-FAC renews its factors, from one drawn label, once. Printed are the processor seconds of
100 updates, beside SGD's, and the share of the parameters that takes plain steps because an
optimizer has no metric for it. Needs the packages:

    pip install torchvision transformers diffusers
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from natcompanion.likelihoods import Categorical, Gaussian
from natcompanion.optim import KFAC, PRONG, RNGD

BATCH = 32
PERIOD = 100


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


def resnet18() -> Case:
    """Return torchvision's resnet18 on images of 32 pixels."""
    from torchvision.models import resnet18 as network

    x, loss = labelled(10, 3, 32, 32)
    return Case(network(num_classes=10), x, loss, Categorical())


def vit() -> Case:
    """Return a vision transformer of 6 layers, width 192, with patches of 4 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=32,
        patch_size=4,
        num_labels=10,
    )
    x, loss = labelled(10, 3, 32, 32)
    model = ViTForImageClassification(config)
    return Case(model, x, loss, Categorical(), lambda made: made.logits)


def gpt2() -> Case:
    """Return GPT-2 with 6 layers, width 192 and 32 positions; 1,000 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=6, n_embd=192, n_head=3, n_positions=32, vocab_size=1000, use_cache=False
    )
    x = torch.randint(1000, (BATCH, 32))
    t = torch.randint(1000, (BATCH, 32))

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
    "ViT": vit,
    "GPT-2": gpt2,
    "U-Net": unet,
}


def optimizers(case: Case) -> dict[str, Callable[[], torch.optim.Optimizer]]:
    """Return how each optimizer is made for a model."""
    model, lr = case.model, 1e-4
    return {
        "SGD": lambda: torch.optim.SGD(model.parameters(), lr=lr),
        "PRONG": lambda: PRONG(model, lr=lr, period=PERIOD),
        "RNGD": lambda: RNGD(model, lr=lr, period=PERIOD),
        "K-FAC": lambda: KFAC(model, case.likelihood, lr=lr, draws=1, output=case.output),
    }


def seconds(case: Case, optimizer: torch.optim.Optimizer) -> float:
    """Return the processor seconds of ``PERIOD`` updates, renewals included."""
    start = time.process_time()
    for step in range(PERIOD):
        if isinstance(optimizer, KFAC) and step == 0:
            optimizer.refresh(case.x)
        optimizer.zero_grad()
        case.value().backward()
        optimizer.step()
    return time.process_time() - start


def plain_share(optimizer: torch.optim.Optimizer, model: nn.Module) -> str:
    """Return the share of the parameters that takes plain steps."""
    if not hasattr(optimizer, "plain"):
        return "100 %"
    modules, plain = dict(model.named_modules()), optimizer.plain
    sizes = {p: p.numel() for p in model.parameters()}
    own = {p for name in plain for p in modules[name].parameters(recurse=False)}
    return f"{100 * sum(sizes[p] for p in own) / sum(sizes.values()):.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", choices=[[], *CASES], default=[])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    for name in options.models or CASES:
        torch.manual_seed(0)
        case = CASES[name]()
        size = sum(p.numel() for p in case.model.parameters())
        print(f"{name}, {size:,} parameters", flush=True)
        unit = 0.0
        for optimizer, make in optimizers(case).items():
            try:
                made = make()
                taken = seconds(case, made)
            except ValueError as error:
                print(f"  {optimizer:6} refused: {error}", flush=True)
                continue
            unit = unit or taken
            plain = f"{plain_share(made, case.model)} take plain steps"
            print(f"  {optimizer:6} {taken / unit:5.2f} of SGD; {plain}", flush=True)


if __name__ == "__main__":
    main()
