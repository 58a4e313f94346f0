"""The judges of the exercises on natural neural networks: each tests a property, by steps of PRONG
or by trial.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from natcompanion import optim
from natcompanion.chapters.numbers.prong import knobs
from natcompanion.chapters.numbers.small_training import (
    UPDATES,
    images_and_labels,
    last_loss,
    small_network,
    train,
)

UNITS, INPUTS, SAMPLES = 3, 5, 40
RATE, EPS, OFTEN = 0.03, 0.01, 10
ENOUGH = 1.2
Steps = Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
Scale = Callable[[Tensor, Tensor], float]


def _random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def moved(layer: nn.Linear, sample: Tensor, batch: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the step of PRONG on the weights and the bias of a layer, for step size 1 and a loss
    whose gradient by each output is another number.
    """
    before = layer.weight.detach().clone(), layer.bias.detach().clone()
    optimizer = optim.PRONG(layer, 1.0, eps=eps, sample=sample)
    (layer(batch) * _random(len(batch), layer.out_features, seed=5)).mean(0).sum().backward()
    optimizer.step()
    return before[0] - layer.weight.detach(), before[1] - layer.bias.detach()


def _layer() -> nn.Linear:
    layer = nn.Linear(INPUTS, UNITS, dtype=torch.float64)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def first_light(factor: Callable[[float], float]) -> str:
    """Say what is off with the factor, as a function of ε, by which PRONG multiplies the step of
    the weight of an input that was always 0 in the sample.
    """
    sample, batch = _random(SAMPLES, INPUTS), _random(1, INPUTS, seed=1)
    sample[:, 0] = 0.0
    for eps in (0.5, 0.1, 0.01):
        layer = _layer()
        step, _ = moved(layer, sample, batch, eps)
        assert layer.weight.grad is not None
        truth = float(step[0, 0] / layer.weight.grad[0, 0])
        answer = float(factor(eps))
        if not abs(answer / truth - 1) < 1e-4:
            return f"with ε = {eps:g} the step is not {answer:.3g} times as long"
    return ""


def any_root(rule: Callable[[Tensor], Tensor]) -> str:
    """Say what is off with a step made from the gradient by V, (units, inputs): it must go down and
    be equally long for all units, and the same for all roots of the covariance.
    """
    for seed in range(3):
        G = _random(UNITS, INPUTS, seed=seed) * torch.tensor([[0.1], [1.0], [10.0]])
        step = torch.as_tensor(rule(G.clone()), dtype=torch.float64)
        if step.shape != G.shape:
            return f"expected a matrix of shape {tuple(G.shape)}, got {tuple(step.shape)}"
        if not bool(((step * G).sum(1) > 0).all()):
            return "the step of a unit does not go down"
        lengths = step.norm(dim=1)
        ratio = float(lengths.max() / lengths.min())
        if not ratio < 1 + 1e-6:
            return f"the step of one unit is {ratio:.3g} times as long as that of another"
        R = torch.linalg.qr(_random(INPUTS, INPUTS, seed=seed + 9)).Q
        turned = torch.as_tensor(rule(G @ R.mT), dtype=torch.float64)
        gap = float((turned - step @ R.mT).norm() / step.norm())
        if not gap < 1e-6:
            return f"with another root it ends {gap:.3g} steps away"
    return ""


def ordinary_steps(steps: Steps) -> str:
    """Say what is off with the steps of PRONG in W and b for step size 1, as a function of both
    gradients, of the mean and the covariance of the input, and of ε.
    """
    for seed in range(3):
        sample = _random(SAMPLES, INPUTS, seed=seed) @ _random(INPUTS, INPUTS, seed=seed + 9) + 1
        layer, eps = _layer(), (0.5, 0.1, 0.01)[seed]
        truth = moved(layer, sample, sample[:9], eps)
        assert layer.weight.grad is not None and layer.bias.grad is not None
        c, S = sample.mean(0), torch.cov(sample.mT, correction=0)
        answers = steps(layer.weight.grad, layer.bias.grad, c, S, eps)
        for name, answer, right in zip("Wb", answers, truth, strict=True):
            if answer.shape != right.shape:
                shapes = f"{tuple(right.shape)}, got {tuple(answer.shape)}"
                return f"expected a step of {name} of shape {shapes}"
            off = float((answer - right).norm() / right.norm())
            if not off < 1e-6:
                return f"the step of {name} is off by {off:.2g} of it"
    return ""


def covariances(model: nn.Sequential, x: Tensor) -> list[Tensor]:
    """Return the covariance of what each linear layer of a model is fed."""
    found = []
    for module in model:
        if isinstance(module, nn.Linear):
            found.append(torch.cov(x.detach().mT, correction=0))
        x = module(x)
    return found


def trained(scale: Scale, rate: float = RATE, period: int = OFTEN) -> list[float]:
    """Return the losses of the small network of the chapter, ε = 0.01: PRONG that at each whitening
    multiplies the step size of each layer by ``scale(first, now)``, of the covariances of its
    input at the first whitening and at this one.
    """
    model, sample = small_network(nn.Tanh), images_and_labels()[0][:500]
    first = covariances(model, sample)
    groups = [{"params": list(m.parameters())} for m in model if isinstance(m, nn.Linear)]
    optimizer = optim.PRONG(model, rate, eps=EPS, period=period, sample=sample, parameters=groups)

    def rescale(*_: object) -> None:
        if optimizer.steps % period == 0:
            now = covariances(model, sample)
            for group, one, other in zip(optimizer.param_groups, first, now, strict=True):
                group["lr"] = rate * float(scale(one, other))

    optimizer.register_step_pre_hook(rescale)
    return train(model, optimizer)


@cache
def whitened_once() -> float:
    """Return the loss at the end of the run that whitens once, without any scale."""
    loss = last_loss(knobs.live_prong(EPS, UPDATES, RATE))
    assert loss is not None
    return loss


def length(scale: Scale) -> str:
    """Say what is off with a factor of the steps that is to make up for frequent whitening: it must
    be 1 while the covariance is what it was, and bring whitening every 10 updates as far as
    whitening once (within a fifth of its loss).
    """
    for seed in range(3):
        x = _random(SAMPLES, INPUTS, seed=seed)
        unchanged = float(scale(x.mT.cov(), x.mT.cov()))
        if not abs(unchanged - 1) < 1e-6:
            return f"where the covariance has not changed it is {unchanged:.3g}"
    try:
        loss = last_loss(trained(scale))
    except ValueError:
        loss = None
    if loss is None:
        return "the run diverges"
    once = whitened_once()
    return "" if loss < ENOUGH * once else f"it ends at {loss:.2g}, whitening once at {once:.2g}"
