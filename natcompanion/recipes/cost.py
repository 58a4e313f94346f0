"""What a training run costs: counted operations times the number of images, over a throughput."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from natcompanion import _checks as check
from natcompanion._moments import first, rows
from natcompanion.layers import Whitened, whitenable


@dataclass(frozen=True)
class Work:
    """Floating-point operations of one model; a multiplication and an addition count as two.

    Parameters
    ----------
    forward, backward : float
        Of one image, in the layers and, backwards, for weights and inputs.
    statistics : float
        The second moments of the layers' inputs for one image of the sample, without the forward
        pass.
    precondition : float
        The products with the inverse covariances in one update.
    inverse : float
        One Cholesky factor and inverse of the covariance of every layer.

    Examples
    --------
    >>> Work(forward=2.0, backward=4.0, statistics=1.0, precondition=3.0, inverse=5.0).forward
    2.0
    """

    forward: float
    backward: float
    statistics: float
    precondition: float
    inverse: float


def work_per_image(model: nn.Module, image: torch.Tensor, batch: int) -> Work:
    """Count the operations of a model and of PRONG on it, by running one image through it.

    Parameters
    ----------
    model : Module
        Left as it was.
    image : Tensor, shape (1, ...)
    batch : int
        Images per update, which decides how a linear layer's gradient is preconditioned most
        cheaply.

    Raises
    ------
    ValueError
        If it is not one image, nothing is to be trained, or there are whitened layers, which need
        other products.

    Examples
    --------
    >>> work = work_per_image(nn.Linear(10, 5, bias=False), torch.zeros(1, 10), batch=1)
    >>> work.forward  # a multiplication and an addition for each weight
    100.0
    """
    check.positive(batch, "batch")
    if image.ndim < 2 or len(image) != 1:
        raise ValueError(f"image: expected one, of shape (1, ...), got shape {tuple(image.shape)}")
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("model: expected parameters with requires_grad, got none")
    whitened = [name for name, module in model.named_modules() if isinstance(module, Whitened)]
    if whitened:
        raise ValueError(
            f"model: expected plain layers, got whitened {whitened}; pass "
            "layers.canonical_model(model)"
        )
    found = {"statistics": 0.0, "precondition": 0.0, "inverse": 0.0}

    def count(module: Any, args: tuple, kwargs: dict) -> None:
        samples, features = rows(module, first(args, kwargs)).shape
        outputs, taps = len(module.weight), module.weight[0].numel() // features
        products = (
            taps * outputs if isinstance(module, nn.Conv2d) else min(batch * samples, outputs)
        )
        found["statistics"] += 2 * samples * features**2
        found["precondition"] += 2 * products * features**2
        found["inverse"] += features**3

    modes = {module: module.training for module in model.modules()}
    handles = [
        module.register_forward_pre_hook(count, with_kwargs=True)
        for module in model.modules()
        if whitenable(module)
    ]
    try:
        model.eval()
        with torch.enable_grad(), FlopCounterMode(display=False) as forward:
            loss = model(image).sum()
        with FlopCounterMode(display=False) as backward:
            torch.autograd.grad(loss, trained, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    return Work(float(forward.get_total_flops()), float(backward.get_total_flops()), **found)


@dataclass(frozen=True)
class Cost:
    """The arithmetic of a training run, from :func:`training_cost`; every input is an attribute.

    Parameters
    ----------
    work, images, epochs, batch, period, sample_size, flops_per_second
        As for :func:`training_cost`.

    Examples
    --------
    >>> work = Work(forward=1.0, backward=2.0, statistics=1.0, precondition=0.0, inverse=0.0)
    >>> plan = {"images": 100, "epochs": 2, "batch": 10, "period": 5, "sample_size": 10}
    >>> Cost(work, **plan, flops_per_second=1.0).updates
    20
    """

    work: Work
    images: int
    epochs: float
    batch: int
    period: int
    sample_size: int
    flops_per_second: float

    @property
    def updates(self) -> int:
        """Steps of the optimizer."""
        return int(self.images * self.epochs // self.batch)

    @property
    def renewals(self) -> int:
        """How often the optimizer renews its statistics."""
        return math.ceil(self.updates / self.period)

    @property
    def gradients(self) -> float:
        """Operations of the forward and backward passes, which plain gradient descent needs as
        well.
        """
        return self.updates * self.batch * (self.work.forward + self.work.backward)

    @property
    def preconditioning(self) -> float:
        """Operations of the products with the inverse covariances."""
        return self.updates * self.work.precondition

    @property
    def statistics(self) -> float:
        """Operations of measuring the covariances, with the forward passes for that."""
        return self.renewals * self.sample_size * (self.work.forward + self.work.statistics)

    @property
    def inverses(self) -> float:
        """Operations of inverting the covariances."""
        return self.renewals * self.work.inverse

    @property
    def flops(self) -> float:
        """Operations in all."""
        return self.gradients + self.preconditioning + self.statistics + self.inverses

    @property
    def share(self) -> float:
        """What part of the operations plain gradient descent would not need."""
        return 1 - self.gradients / self.flops

    @property
    def seconds(self) -> float:
        """Time at the given throughput."""
        return self.flops / self.flops_per_second

    @property
    def days(self) -> float:
        """The same in days."""
        return self.seconds / 86_400


def training_cost(
    work: Work,
    *,
    images: int,
    epochs: float,
    batch: int,
    period: int,
    sample_size: int,
    flops_per_second: float,
) -> Cost:
    """Return the cost of training with PRONG.

    Parameters
    ----------
    work : Work
        From :func:`work_per_image`.
    images, epochs, batch
        Size of the training set, passes over it, images per update.
    period, sample_size
        Updates between renewals of the statistics, and images that each of them uses.
    flops_per_second : float
        What all processors together sustain: about a third to a half of the figure in their data
        sheet.

    Raises
    ------
    ValueError
        On numbers out of range, or a plan without an update.

    Examples
    --------
    >>> work = Work(forward=1.0, backward=2.0, statistics=1.0, precondition=0.0, inverse=0.0)
    >>> plan = {"images": 100, "epochs": 2, "batch": 10, "period": 5, "sample_size": 10}
    >>> cost = training_cost(work, **plan, flops_per_second=1.0)
    >>> cost.updates, cost.renewals, cost.gradients
    (20, 4, 600.0)
    """
    numbers: dict[str, Any] = {
        "images": images,
        "epochs": epochs,
        "batch": batch,
        "period": period,
        "sample_size": sample_size,
        "flops_per_second": flops_per_second,
    }
    for name, value in numbers.items():
        check.positive(value, name)
    if images * epochs < batch:
        raise ValueError(
            f"batch: expected at most images times epochs, {images * epochs:g}, got {batch}"
        )
    return Cost(work, **numbers)
