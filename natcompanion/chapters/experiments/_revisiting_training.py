"""Training runs of the revisiting experiments: data, networks, and the five columns of Table 1."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from natcompanion.chapters.experiments._prong_time import seconds
from natcompanion.chapters.experiments.settings import Settings
from natcompanion.damping import LevenbergMarquardt
from natcompanion.data import fashion_mnist, mnist
from natcompanion.likelihoods import Categorical
from natcompanion.metrics import FisherOperator
from natcompanion.optim import TONGA, NaturalGradient

LIKELIHOOD = Categorical()
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Split:
    """Images (n, d), or (n, 1, side, side), and labels of the parts of a data set; the unlabelled
    part has no labels.
    """

    x: torch.Tensor
    t: torch.Tensor
    validation: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    unlabelled: torch.Tensor

    def to(self, device: str) -> "Split":
        """Return the same data on ``device``."""
        x, t, u = (part.to(device) for part in (self.x, self.t, self.unlabelled))
        validation, test = ((a.to(device), b.to(device)) for a, b in (self.validation, self.test))
        return Split(x, t, validation, test, u)


def draws(settings: Settings, offset: int = 0) -> torch.Generator:
    """Return a generator on the CPU, so that weights, batches and data are those of any device."""
    return replace(settings, device="cpu").generator(offset)


def digits_fold(fold: int, *, size: int, labelled: int, validation: int) -> Split:
    """Return one of five folds of the 5,000 digits. A thousand are its test part, and the four
    thousand after them, the last followed by the first, are cut into ``labelled`` examples for
    training, ``validation`` for the choice of settings, and images that are unlabelled. So folds
    share no test digit, and up to 1,000 labelled digits each has its own.
    """
    images, t = mnist(size=size, split="all", seed=0, dtype=torch.float32)
    x, t = (part.roll(-1000 * (fold + 1), 0) for part in (images.flatten(1), t))
    return _cut(x[:4000], t[:4000], (x[4000:], t[4000:]), labelled, validation)


def subset(data: str, seed: int, *, size: int, labelled: int, validation: int, test: int) -> Split:
    """Return ``labelled`` examples of Fashion-MNIST or of the whole of MNIST; all other training
    images are unlabelled.
    """
    load: Any = {"fashion": fashion_mnist, "mnist": partial(mnist, full=True)}[data]
    options: dict[str, Any] = {"size": size, "seed": seed, "dtype": torch.float32}
    x, t = load(split="train+validation", **options)
    x_test, t_test = load(test, split="test", **options)
    return _cut(x.flatten(1), t, (x_test.flatten(1), t_test), labelled, validation)


def _cut(x: torch.Tensor, t: torch.Tensor, test: tuple, labelled: int, validation: int) -> Split:
    last = labelled + validation
    return Split(x[:labelled], t[:labelled], (x[labelled:last], t[labelled:last]), test, x[last:])


def mlp(inputs: int, hidden: int, generator: torch.Generator, outputs: int = 10) -> nn.Sequential:
    """Return a network with one hidden layer of tanh units; weights N(0, 1 / fan-in), biases 0."""
    return initialized(
        nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)), generator
    )


def convolutional(
    size: int, maps: tuple[int, int], hidden: int, generator: torch.Generator
) -> nn.Sequential:
    """Return the network of Section 8.6: two convolutions 5 x 5 with max pooling, a hidden layer,
    softmax; tanh units.
    """
    first, second = maps
    return initialized(
        nn.Sequential(
            nn.Unflatten(1, (1, size, size)),
            nn.Conv2d(1, first, 5, padding=2),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5, padding=2),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * (size // 4) ** 2, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 10),
        ),
        generator,
    )


def initialized(model: Network, generator: torch.Generator) -> Network:
    """Draw the weights from N(0, 1 / fan-in), set the biases to 0, and return the model in
    float32.
    """
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                scale = layer.weight[0].numel() ** -0.5
                noise = torch.randn(layer.weight.shape, generator=generator, dtype=torch.float32)
                layer.weight.copy_(scale * noise)
                layer.bias.zero_()  # type: ignore[union-attr]  # every layer here has one
    return model.float()


@torch.no_grad()
def cross_entropy(model: nn.Module, x: torch.Tensor, t: torch.Tensor, block: int = 2000) -> float:
    """Return the mean negative log-likelihood, infinite if the model has diverged."""
    parts = [
        LIKELIHOOD.nll(model(a), b).sum()
        for a, b in zip(x.split(block), t.split(block), strict=True)
    ]
    return float(torch.stack(parts).sum().nan_to_num(torch.inf, torch.inf)) / len(x)


@torch.no_grad()
def wrong(model: nn.Module, x: torch.Tensor, t: torch.Tensor, block: int = 2000) -> int:
    """Return the number of misclassified examples."""
    return sum(
        int((model(a).argmax(1) != b).sum())
        for a, b in zip(x.split(block), t.split(block), strict=True)
    )


def error(model: nn.Module, x: torch.Tensor, t: torch.Tensor) -> float:
    """Return the percentage of misclassified examples."""
    return 100 * wrong(model, x, t) / len(x)


def batches(
    n: int, size: int, generator: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pairs of disjoint batches of indices, each pair from a new permutation of the ``n``
    examples.
    """
    while True:
        order = torch.randperm(n, generator=generator)
        for start in range(0, n - 2 * size + 1, 2 * size):
            yield order[start : start + size], order[start + size : start + 2 * size]


COLUMNS = ("msgd", "unlabelled", "different", "same", "covariance")
"""The columns of Table 1."""


@dataclass(frozen=True)
class Setting:
    """A point of the search: step size, damping, and whether the damping adapts
    (Levenberg-Marquardt, Eq. 30).
    """

    rate: float
    damping: float = 0.0
    adaptive: bool = False


def make_optimizer(
    column: str, model: nn.Module, setting: Setting, max_iter: int
) -> torch.optim.Optimizer:
    """Return the optimizer of a column."""
    if column == "msgd":
        return torch.optim.SGD(model.parameters(), setting.rate)
    damping = LevenbergMarquardt(setting.damping) if setting.adaptive else setting.damping
    kind = TONGA if column == "covariance" else NaturalGradient
    return kind(model, LIKELIHOOD, setting.rate, damping=damping, max_iter=max_iter)


def train(
    column: str,
    model: nn.Module,
    split: Split,
    setting: Setting,
    generator: torch.Generator,
    *,
    updates: int,
    batch: int,
    metric_batch: int,
    max_iter: int = 20,
    sgd_ratio: int = 20,
    sgd_batch: int = 50,
    watch: Callable[[int], None] = lambda update: None,
    schedule: Callable[[int], float] = lambda update: 1.0,
) -> torch.optim.Optimizer:
    """Train in place by one column's method; ``watch(update)`` is called after each update.

    Minibatch SGD makes ``sgd_ratio`` times as many updates, each on ``sgd_batch`` examples;
    ``watch`` then sees every ``sgd_ratio``-th. The step size is ``setting.rate`` times
    ``schedule(update)``. The run ends early if it diverges.
    """
    optimizer: Any
    optimizer = make_optimizer(column, model, setting, max_iter)
    pairs = batches(len(split.x), batch, generator)
    for update in range(1, updates + 1):
        for group in optimizer.param_groups:
            group["lr"] = setting.rate * schedule(update)
        if column == "msgd":
            for _ in range(sgd_ratio):
                index = torch.randint(len(split.x), (sgd_batch,), generator=generator)
                optimizer.zero_grad()
                LIKELIHOOD.nll(model(split.x[index]), split.t[index]).mean().backward()
                optimizer.step()
        else:
            index, other = next(pairs)
            try:
                optimizer.step(
                    split.x[index],
                    split.t[index],
                    *_metric_inputs(column, split, index, other, metric_batch, generator),
                )
            except ValueError:  # the loss or a parameter is no longer finite
                return optimizer
        watch(update)
    return optimizer


def to_no_error(
    x: torch.Tensor,
    t: torch.Tensor,
    hidden: int,
    setting: Setting,
    generator: torch.Generator,
    *,
    batch: int,
    max_iter: int,
    updates: int,
) -> tuple[list[int], int]:
    """Train a network by the natural gradient until it makes no error on its ``n`` examples, or
    ``updates`` are used.

    Return the errors before and after each update, and how many updates a run that was stopped just
    before, saved, and loaded into another network and a new optimizer repeats to the last bit.
    """
    model, other = (mlp(x.shape[1], hidden, generator).to(x.device) for _ in range(2))
    optimizer: Any
    optimizer = make_optimizer("same", model, setting, max_iter)
    errors, repeated = [wrong(model, x, t)], 0
    pairs = batches(len(x), batch, generator)
    while errors[-1] and len(errors) <= updates:
        index, _ = next(pairs)
        file = io.BytesIO()
        torch.save([part.state_dict() for part in (model, optimizer)], file)
        file.seek(0)
        resumed: Any
        resumed = make_optimizer("same", other, setting, max_iter)
        part: Any
        for part, state in zip((other, resumed), torch.load(file), strict=True):
            part.load_state_dict(state)
        for stepper in (optimizer, resumed):
            stepper.step(x[index], t[index])
        same = (
            torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True)
        )
        repeated += all(same) and optimizer.last == resumed.last
        errors.append(wrong(model, x, t))
    return errors, repeated


def time_products(settings: Any) -> dict:
    """Return the least processor time of a Gauss-Newton product, of a Hessian product, and of a
    gradient.

    Both products keep the graph of their first pass. The Hessian's is the derivative of the
    gradient along a vector.
    """
    generator = draws(settings)
    model = mlp(settings.size**2, settings.hidden, generator).to(settings.device)
    x = torch.rand(settings.batch, settings.size**2, generator=generator).to(settings.device)
    t = torch.randint(10, (settings.batch,), generator=generator).to(settings.device)
    parameters = list(model.parameters())
    pieces = [torch.randn(p.shape, generator=generator).to(settings.device) for p in parameters]
    v = torch.cat([piece.flatten() for piece in pieces])
    operator = FisherOperator(model, x, LIKELIHOOD)
    loss = LIKELIHOOD.nll(model(x), t).mean()
    first = torch.autograd.grad(loss, parameters, create_graph=True)
    work = {
        "gradient": lambda: torch.autograd.grad(LIKELIHOOD.nll(model(x), t).mean(), parameters),
        "hessian": lambda: torch.autograd.grad(first, parameters, pieces, retain_graph=True),
        "gauss_newton": lambda: operator @ v,
    }
    rounds = [
        {name: seconds(function) for name, function in work.items()}
        for _ in range(settings.repeats)
    ]
    return {name: min(one[name] for one in rounds) for name in work}


def _metric_inputs(
    column: str,
    split: Split,
    index: torch.Tensor,
    other: torch.Tensor,
    size: int,
    generator: torch.Generator,
) -> tuple:
    """Return the inputs of the metric, or nothing where they are those of the gradient."""
    if column == "different":
        return (split.x[other],)
    if column in ("unlabelled", "added"):
        drawn = split.unlabelled[torch.randint(len(split.unlabelled), (size,), generator=generator)]
        return (drawn if column == "unlabelled" else torch.cat([split.x[index], drawn]),)
    return ()
