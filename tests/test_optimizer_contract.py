"""What torch promises of an optimizer, asked of every optimizer and configuration: one table.

A row of ``TABLE`` is a configuration, a function ``test_*`` a property; ``EXEMPT`` holds the pairs
that do not go together, each with its reason. To add an optimizer, add its rows.
"""

import copy
import io
import pickle
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from _states import equal
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.optim.swa_utils import SWALR, AveragedModel

from natcompanion import optim
from natcompanion.damping import LevenbergMarquardt
from natcompanion.layers import canonical_model, whiten_model, with_batch_norm
from natcompanion.likelihoods import Categorical
from natcompanion.optim import (
    KFAC,
    PRONG,
    TONGA,
    HessianFree,
    KrylovSubspaceDescent,
    NaturalGradient,
    Newton,
    PRONGPlus,
    SampleSpaceNaturalGradient,
    natural_space,
)
from natcompanion.optim.base import Preconditioned
from natcompanion.optim.mirror_descent import MirrorDescent
from natcompanion.optim.relative_gradient import RelativeGradient
from natcompanion.optim.rngd import RNGD

FEATURES, CLASSES = 5, 3
KINDS = ("gradient", "batch")


def data(n: int = 32, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple:
    """Return correlated inputs off their mean, and labels."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=g, dtype=torch.float64).cumsum(1) * 0.5 + 0.3
    return x.to(dtype), torch.randint(CLASSES, (n,), generator=g)


def mlp() -> nn.Sequential:
    """Return a small network, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()


# ---- The table


@dataclass(frozen=True)
class Row:
    """A configuration: its model, its optimizer, and what of it a saved state cannot hold.

    ``kind`` says how a step is made: ``"gradient"`` by backward and ``step()``, ``"batch"`` by
    ``step(x, t)``. ``options`` are in ``param_groups``, so that a state brings them along;
    ``given`` has to be given again. ``start`` is called once before the first step, ``key`` names
    the argument that takes the parameters.
    """

    build: Callable[..., torch.optim.Optimizer]
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    model: Callable[[], nn.Module] = mlp
    start: Callable[[Any], Any] = lambda optimizer: None
    key: str = "parameters"

    def make(self, **changes: Any) -> tuple[nn.Module, Any]:
        """Return a model and its optimizer, ready for the first step."""
        model = self.model()
        optimizer = self.build(model, **self.settings(**changes))
        self.start(optimizer)
        return model, optimizer

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Return the arguments of the optimizer, no object of them shared."""
        return copy.deepcopy({**self.given, **self.options, **changes})

    def chosen(self, choose: Callable[[nn.Module], Any], **changes: Any) -> tuple[nn.Module, Any]:
        """Return the same with the parameters that are chosen."""
        model = self.model()
        optimizer = self.build(model, **self.settings(**changes), **{self.key: choose(model)})
        self.start(optimizer)
        return model, optimizer


def likelihood_first(kind: type) -> Callable[..., torch.optim.Optimizer]:
    """Return a constructor from a model and options."""
    return lambda model, **options: kind(model, Categorical(), **options)


def mirrored(model: nn.Module, params: Any = None, **options: Any) -> torch.optim.Optimizer:
    """Return mirror descent in a fixed metric of all parameters of the model."""
    params = list(model.parameters()) if params is None else params
    P = sum(p.numel() for p in model.parameters())
    g = torch.Generator().manual_seed(5)
    M = torch.randn(P, P, generator=g, dtype=torch.float64)
    return MirrorDescent(params, M @ M.mT / P + torch.eye(P, dtype=torch.float64), **options)


class Metric:
    """A function that gives a metric of all parameters of a model, which moves with them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self) -> torch.Tensor:
        theta = nn.utils.parameters_to_vector(self.model.parameters()).detach().double()
        return torch.diag(1 + theta**2) + torch.outer(theta, theta)


def natural(model: nn.Module, params: Any = None, **options: Any) -> torch.optim.Optimizer:
    """Return gradient descent on the natural parameters of a model."""
    params = list(model.parameters()) if params is None else params
    groups = params if isinstance(params[0], dict) else [{"params": params}]
    groups = [{**options, **group} for group in groups]
    return natural_space(groups, Metric(model), torch.optim.SGD, period=2)


def relative(model: nn.Module, params: Any = None, **options: Any) -> torch.optim.Optimizer:
    """Return relative gradients for the square matrices of a model."""
    return RelativeGradient(list(model.parameters()) if params is None else params, **options)


def squares() -> nn.Sequential:
    """Return a network of square matrices."""
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(2)]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1]).double()


def refreshed(optimizer: Any) -> None:
    """Measure the metric of an optimizer that is told when."""
    optimizer.refresh(data(40, 9)[0])


def whitened() -> nn.Module:
    """Return the network in whitened coordinates."""
    return whiten_model(mlp())


def normalized() -> nn.Module:
    """Return the network with batch normalization."""
    return with_batch_norm(mlp())


def wide() -> nn.Module:
    """Return a network whose layers have more outputs than four rows of a batch: PRONG uses what it
    captured.
    """
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 80), nn.Tanh(), nn.Linear(80, CLASSES)).double()


class Sample:
    """A function that gives inputs for statistics, in the precision of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self) -> torch.Tensor:
        return data(40, 9, next(self.model.parameters()).dtype)[0]


def sampled(kind: type) -> Callable[..., torch.optim.Optimizer]:
    """Return a constructor that gives the optimizer a sample."""
    return lambda model, **options: kind(model, sample=Sample(model), **options)


MOMENTUM = {"momentum": 0.6, "nesterov": True, "weight_decay": 0.02}
RNGD_OPTIONS = {"lr": 0.05, "period": 2, "statistics_every": 1, "decay": 0.8, "eps": 0.1}
TABLE = {
    "KFAC": Row(likelihood_first(KFAC), "gradient", {"lr": 0.05, "damping": 0.1}, start=refreshed),
    "KFAC factored": Row(
        likelihood_first(KFAC),
        "gradient",
        {"lr": 0.05, "damping": 0.1, "factored": True, "decay": 0.5, **MOMENTUM},
        start=refreshed,
    ),
    "PRONG": Row(PRONG, "gradient", {"lr": 0.05, "eps": 0.1, "period": 2, "decay": 0.7}),
    "PRONG with a sample": Row(
        sampled(PRONG), "gradient", {"lr": 0.05, "eps": 0.1, "period": 3, **MOMENTUM}
    ),
    "PRONG on whitened layers": Row(
        sampled(PRONG), "gradient", {"lr": 0.05, "eps": 0.1, "period": 2}, model=whitened
    ),
    "PRONG on whitened layers by batches": Row(
        PRONG, "gradient", {"lr": 0.05, "eps": 0.1, "period": 2, **MOMENTUM}, model=whitened
    ),
    "PRONG with captured passes": Row(
        sampled(PRONG), "gradient", {"lr": 0.02, "eps": 0.1, "period": 2}, model=wide
    ),
    "PRONG with footnote 4": Row(
        PRONG, "gradient", {"lr": 0.01, "eps": 0.1, "period": 2, "backward_eps": 0.3}
    ),
    "PRONG+": Row(PRONGPlus, "gradient", {"lr": 0.05, "period": 2}, model=normalized),
    "PRONG+ diagonal": Row(
        sampled(PRONGPlus),
        "gradient",
        {"lr": 0.02, "period": 2, "floor": 0.3},
        {"normalization": "diagonal"},
    ),
    "NaturalGradient": Row(likelihood_first(NaturalGradient), "batch", {"lr": 0.1}),
    "NaturalGradient adaptive": Row(
        likelihood_first(NaturalGradient),
        "batch",
        {
            "lr": 0.1,
            **MOMENTUM,
            "damping": LevenbergMarquardt(0.5, increase=3.0),
            "warm_start": 0.9,
            "max_iter": 3,
            "prediction": "quadratic",
        },
    ),
    "SampleSpaceNaturalGradient": Row(
        likelihood_first(SampleSpaceNaturalGradient),
        "batch",
        {"lr": 0.3, "damping": 0.1, "kl": 0.002},
    ),
    "TONGA": Row(likelihood_first(TONGA), "batch", {"lr": 0.1, "damping": 0.1, "centred": False}),
    "Newton": Row(likelihood_first(Newton), "batch", {"lr": 0.1, "damping": 1.0}),
    "HessianFree": Row(likelihood_first(HessianFree), "batch", {"lr": 0.1}),
    "KrylovSubspaceDescent": Row(
        likelihood_first(KrylovSubspaceDescent),
        "batch",
        {"dimension": 4, "search_iterations": 6},
    ),
    "RNGD": Row(RNGD, "gradient", RNGD_OPTIONS),
    "RNGD shared": Row(
        RNGD,
        "gradient",
        {**RNGD_OPTIONS, "relative_eps": 0.1, "omega": 0.2, **MOMENTUM},
        {"blocks": "mean"},
    ),
    "MirrorDescent": Row(mirrored, "gradient", {"lr": 0.05}, key="params"),
    "natural_space": Row(natural, "gradient", {"lr": 0.05}, key="params"),
    "RelativeGradient": Row(
        relative, "gradient", {"lr": 0.1, **MOMENTUM}, model=squares, key="params"
    ),
}
KSD = "KrylovSubspaceDescent"
EXEMPT: dict[tuple[str, str], str] = {
    ("step_size_of_any_kind", KSD): "it minimizes in a subspace: there is no step size",
    ("accumulation", "PRONG+"): "batch normalization sees the parts one by one",
    ("model_in_another_precision", KSD): "rounding changes which of its trial points it takes",
    ("momentum_nesterov_and_decay", KSD): "the last step is in its subspace instead",
    ("some_gradients_are_missing", "MirrorDescent"): "its metric couples all parameters",
    ("a_group_added_later", "MirrorDescent"): "its metric has a size",
    ("a_group_added_later", "natural_space"): "its metric has a size",
    ("hooks_of_the_step_run_once", "natural_space"): "its inner optimizer is one more of torch's",
    **{
        (prop, "RelativeGradient"): "a layer of its model is one square matrix"
        for prop in (
            "a_group_added_later",
            "freezing_and_unfreezing",
            "half_of_a_layer_is_frozen",
        )
    },
    **{
        (prop, name): "it takes tensors of any origin, and no model"
        for prop in (
            "ways_to_name_the_parameters",
            "parameters_that_will_not_do",
            "a_model_is_asked_for",
        )
        for name in ("MirrorDescent", "RelativeGradient", "natural_space")
    },
}


def over(*kinds: str) -> Callable:
    """Ask a property of all rows of these kinds but the exempt ones."""

    def mark(test: Callable) -> Callable:
        name = test.__name__.removeprefix("test_")
        rows = [k for k, row in TABLE.items() if row.kind in (kinds or KINDS)]
        asked = [k for k in rows if (name, k) not in EXEMPT]
        assert len(asked) == len(rows) - sum(prop == name for prop, _ in EXEMPT), name
        return pytest.mark.parametrize("row", [TABLE[k] for k in asked], ids=asked)(test)

    return mark


# ---- Passes and steps


def loss_of(model: nn.Module, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(x), t)


def backward(model: nn.Module, optimizer: Any, seed: int = 0, scale: float = 1.0) -> None:
    """Clear the gradients and compute new ones."""
    optimizer.zero_grad()
    (loss_of(model, *data(seed=seed)) * scale).backward()


def train(
    row: Row, model: nn.Module, optimizer: Any, steps: int = 1, start: int = 0
) -> torch.Tensor:
    """Make some steps and return the parameters."""
    for seed in range(start, start + steps):
        if row.kind == "batch":
            optimizer.step(*data(seed=seed))
        else:
            backward(model, optimizer, seed)
            optimizer.step()
    return vector(model)


def vector(model: nn.Module) -> torch.Tensor:
    """Return a copy of all parameters and buffers, one after the other."""
    return torch.cat([p.detach().double().flatten() for p in model.state_dict().values()])


def pieces(model: nn.Module) -> list[torch.Tensor]:
    """Return copies of the parameters, of whitened layers those of the plain layers that they are:
    new coordinates do not move the function.
    """
    return [p.detach().clone() for p in canonical_model(model).parameters()]


def moving(model: nn.Module) -> torch.Tensor:
    """Return them one after the other."""
    return torch.cat([p.flatten() for p in pieces(model)])


def still(a: Any, b: Any) -> bool:
    """Return whether parameters are the same, to the rounding of a change of coordinates."""
    return all(torch.allclose(p, q, rtol=1e-12, atol=1e-13) for p, q in zip(a, b, strict=True))


def plain(model: nn.Module) -> nn.Module:
    """Return a copy that no optimizer knows."""
    free = copy.deepcopy(model)
    for module in free.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return free


def close(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# ---- It trains


@over()
def test_loss_falls(row):
    model, optimizer = row.make()
    x, t = data()
    before = loss_of(model, x, t).item()
    for _ in range(10):
        if row.kind == "batch":
            optimizer.step(x, t)
        else:
            backward(model, optimizer)
            optimizer.step()
    assert loss_of(model, x, t).item() < before - 0.01


@over()
def test_same_steps_again(row):
    assert torch.equal(train(row, *row.make(), 4), train(row, *row.make(), 4))


@over()
def test_printed_by_name(row):
    _, optimizer = row.make()
    assert type(optimizer).__name__ in repr(optimizer)


# ---- A gradient is a gradient


@over()
def test_gradient_stays_the_gradient(row):
    model, optimizer = row.make()
    train(row, model, optimizer, 3)
    free, (x, t) = plain(model), data(seed=5)
    optimizer.zero_grad()
    loss_of(model, x, t).backward()
    loss_of(free, x, t).backward()
    close([p.grad for p in model.parameters()], [p.grad for p in free.parameters()])
    found = torch.autograd.grad(loss_of(model, x, t), list(model.parameters()))
    close(list(found), [p.grad for p in free.parameters()])
    x = x.requires_grad_()
    ours, theirs = (torch.autograd.grad(loss_of(net, x, t), x)[0] for net in (model, free))
    close(ours, theirs)


@over("gradient")
def test_step_leaves_the_gradient(row):
    model, optimizer = row.make()
    train(row, model, optimizer)
    backward(model, optimizer)
    before = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    assert equal([p.grad for p in model.parameters()], before)


@over()
def test_second_derivatives(row):
    """A gradient penalty, and a step on it."""
    model, optimizer = row.make()
    train(row, model, optimizer, 3)
    free, found = plain(model), []
    for net in (model, free):
        x, t = data(seed=5)
        x.requires_grad_()
        loss = loss_of(net, x, t)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        net.zero_grad()
        (loss + slope.square().sum()).backward()
        found.append([p.grad.clone() for p in net.parameters()])
    close(*found)
    before = moving(model)
    if row.kind == "gradient":
        optimizer.step()
        assert not torch.equal(moving(model), before)


@over()
def test_function_transforms(row):
    model, optimizer = row.make()
    train(row, model, optimizer)
    model.eval()
    free, (x, t), found = plain(model), data(seed=5), []
    for net in (model, free):
        theta = {name: p.detach() for name, p in net.named_parameters()}

        def loss(theta, net=net):
            return cross_entropy(functional_call(net, theta, (x,)), t)

        jacobian = torch.func.jacrev(lambda x, net=net: net(x))(x[:4])
        found.append((torch.func.grad(loss)(theta), jacobian))
    close(*found)


@over("gradient")
def test_step_is_linear_in_the_gradient(row):
    """Clipped, scaled by hand, or a loss that was scaled: the same direction."""
    ends = []
    for way in ("loss", "clipped", "in place", "assigned"):
        model, optimizer = row.make(momentum=0.0, nesterov=False, weight_decay=0.0)
        train(row, model, optimizer)
        backward(model, optimizer, 1, 1.0 if way != "loss" else 0.3)
        if way == "clipped":
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
            total = nn.utils.clip_grad_norm_(model.parameters(), 0.3 * float(norm))
            close(total, norm)
        for p in model.parameters():
            if way == "in place":
                p.grad.mul_(0.3)
            if way == "assigned":
                p.grad = 0.3 * p.grad
        before = moving(model)
        optimizer.step()
        ends.append(moving(model) - before)
    for end in ends[1:]:
        close(end, ends[0], 1e-6)
    assert float(ends[0].norm()) > 1e-4


@over("gradient")
def test_gradients_from_elsewhere(row):
    """From autograd, or from a copy that no optimizer knows."""
    ends = []
    for way in ("backward", "autograd", "a copy"):
        model, optimizer = row.make()
        train(row, model, optimizer, 2)
        optimizer.zero_grad()
        if way == "autograd":
            found = torch.autograd.grad(loss_of(model, *data(seed=2)), list(model.parameters()))
            for p, g in zip(model.parameters(), found, strict=True):
                p.grad = g
        else:
            backward(model, optimizer, 2)
        if way == "a copy":
            free = plain(model)
            free.zero_grad()
            loss_of(free, *data(seed=2)).backward()
            for p, q in zip(model.parameters(), free.parameters(), strict=True):
                p.grad = q.grad
        optimizer.step()
        ends.append(moving(model))
    close(ends[1], ends[0])
    close(ends[2], ends[0])


@over("gradient")
def test_gradients_for_another_purpose(row):
    """What ``autograd.grad`` returned and nobody put into ``.grad`` has no part in the step."""
    ends = []
    for times in ("never", "before", "between", "after"):
        model, optimizer = row.make()
        for seed in range(3):
            optimizer.zero_grad()
            for now in ("before", "between", "after"):
                if now != "before":
                    x, t = (part[16 * (now == "after") :][:16] for part in data(seed=seed))
                    (loss_of(model, x, t) / 2).backward()
                if now == times:
                    x, t = data(seed=seed + 10)
                    x = (5 * x[:4]).requires_grad_()
                    torch.autograd.grad(loss_of(model, x, t[:4]), list(model.parameters()))
                    torch.autograd.grad(loss_of(model, x, t[:4]), x)
            optimizer.step()
        ends.append(moving(model))
    for end in ends[1:]:
        close(end, ends[0])


@over("gradient")
def test_accumulation(row):
    """Four backward passes of eight rows make the step of one of thirty-two."""
    ends = []
    for parts in (1, 4):
        model, optimizer = row.make()
        for seed in range(4):
            x, t = data(seed=seed)
            optimizer.zero_grad()
            for a, b in zip(x.chunk(parts), t.chunk(parts), strict=True):
                (loss_of(model, a, b) / parts).backward()
            optimizer.step()
        ends.append(moving(model))
    close(*ends)


# ---- The step


@over("gradient")
def test_nothing_to_do(row):
    """Without gradients, and with gradients of zero, nothing moves."""
    model, optimizer = row.make(weight_decay=0.0)
    before = pieces(model)
    optimizer.step()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert still(pieces(model), before)


@over("gradient")
def test_some_gradients_are_missing(row):
    model, optimizer = row.make()
    train(row, model, optimizer)
    backward(model, optimizer)
    first, *rest = model.parameters()
    first.grad = None
    before = first.detach().clone(), rest[-1].detach().clone()
    optimizer.step()
    assert torch.equal(first, before[0]) and not torch.equal(rest[-1], before[1])


@over("gradient")
def test_gradients_zeroed_in_place(row):
    ends = []
    for to_none in (True, False):
        model, optimizer = row.make()
        for seed in range(3):
            optimizer.zero_grad(set_to_none=to_none)
            loss_of(model, *data(seed=seed)).backward()
            optimizer.step()
        ends.append(moving(model))
    close(*ends)


@over("gradient")
def test_closure(row):
    ends = []
    for use in (True, False):
        model, optimizer = row.make()

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = loss_of(model, *data())
            loss.backward()
            return loss

        with torch.no_grad():
            if use:
                assert float(optimizer.step(closure)) == pytest.approx(
                    float(loss_of(row.model(), *data()))
                )
            else:
                backward_with_grad = torch.enable_grad()(backward)
                backward_with_grad(model, optimizer)
                optimizer.step()
        ends.append(moving(model))
    assert torch.equal(*ends)


@over("batch")
def test_asks_for_a_batch(row):
    model, optimizer = row.make()
    with pytest.raises(ValueError, match="expected a batch"):
        optimizer.step(closure=lambda: 0.0)
    backward(model, optimizer)
    with pytest.raises(ValueError, match="expected a batch"):
        optimizer.step()


@over()
def test_what_is_not_finite_changes_nothing(row):
    model, optimizer = row.make()
    train(row, model, optimizer, 2)
    before, state = pieces(model), copy.deepcopy(optimizer.state_dict())
    x, t = data()
    for value in (torch.nan, torch.inf):
        if row.kind == "batch":
            x[3, 1] = value
            with pytest.raises(ValueError, match="finite"):
                optimizer.step(x, t)
        else:
            backward(model, optimizer, 2)
            next(iter(model.parameters())).grad[0, 0] = value
            with pytest.raises(ValueError, match="finite"):
                optimizer.step()
        assert still(pieces(model), before)
        assert equal(optimizer.state_dict()["param_groups"], state["param_groups"])
    train(row, model, optimizer, 1, 2)
    again, other = row.make()
    train(row, again, other, 3)
    close(moving(model), moving(again), 1e-12)


@over("gradient")
def test_a_step_that_overflows_changes_no_parameter(row):
    """The gradient is finite, what it would lead to is not: plain SGD shows that, the control."""
    model, optimizer = row.make()
    train(row, model, optimizer, 2)
    backward(model, optimizer, 2)
    for p in model.parameters():
        p.grad.fill_(1e300)
    for group in optimizer.param_groups:
        group["lr"] = 1e12
    before = pieces(model)
    velocities = [
        s["momentum_buffer"].clone() for s in optimizer.state.values() if "momentum_buffer" in s
    ]
    with pytest.raises(ValueError, match="expected (a )?finite"):
        optimizer.step()
    assert still(pieces(model), before)
    kept = [s["momentum_buffer"] for s in optimizer.state.values() if "momentum_buffer" in s]
    assert all(v.isfinite().all() for v in kept) and len(kept) == len(velocities)
    free = plain(model)
    for p in free.parameters():
        p.grad = torch.full_like(p, 1e300)
    torch.optim.SGD(free.parameters(), lr=1e12).step()
    assert not vector(free).isfinite().all()


@over()
def test_nothing_trained_is_a_step_without_effect_or_said(row):
    model, optimizer = row.make()
    train(row, model, optimizer, 1)
    model.requires_grad_(False)
    before = pieces(model)
    if row.kind == "batch":
        with pytest.raises(ValueError, match="requires_grad"):
            optimizer.step(*data())
    else:
        optimizer.zero_grad()
        optimizer.step()
    assert still(pieces(model), before)


@over()
def test_momentum_nesterov_and_decay(row):
    """Two steps in closed form, from the directions of steps without any of the three."""
    mu, decay, lr = 0.6, 0.2, 0.01
    plainly = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    for nesterov in (False, True):
        model, optimizer = row.make(lr=lr, momentum=mu, nesterov=nesterov, weight_decay=decay)
        theta, v = moving(model), 0.0
        for seed in range(2):
            twin, other = copy.deepcopy((model, optimizer))
            for group in other.param_groups:
                group.update(plainly)
            train(row, twin, other, 1, seed)
            d = (moving(model) - moving(twin)) / lr
            v = mu * v + d
            theta = (1 - lr * decay) * theta - lr * (d + mu * v if nesterov else v)
            train(row, model, optimizer, 1, seed)
            close(moving(model), theta, 1e-8)
        assert float(v.norm()) > 1e-3


@over()
def test_hooks_of_the_step_run_once(row):
    calls = Counter()
    for other in TABLE.values():  # wherever else optimizers are made in the same process
        other.make()
    model, optimizer = row.make()
    optimizer.register_step_pre_hook(lambda *_: calls.update(["before"]))
    optimizer.register_step_post_hook(lambda *_: calls.update(["after"]))
    remove = register_optimizer_step_pre_hook(lambda *_: calls.update(["of all"]))
    try:
        train(row, model, optimizer)
    finally:
        remove.remove()
    assert calls == {"before": 1, "after": 1, "of all": 1}


@over()
def test_autocast(row):
    """A step within a block of low precision is the step outside."""
    ends = []
    for inside in (False, True):
        model, optimizer = row.make()
        model.float()
        for seed in range(2):
            x, t = data(seed=seed, dtype=torch.float32)
            if row.kind == "gradient":
                optimizer.zero_grad()
                loss_of(model, x, t).backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                optimizer.step(*((x, t) if row.kind == "batch" else ()))
        ends.append(moving(model))
    assert torch.equal(*ends)


@pytest.fixture
def compiler():
    """Let compiled code go at the end: it keeps tensors, which other tests count."""
    yield torch.compile
    torch._dynamo.reset()


@over("gradient")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
def test_compiled_model(row, backend, compiler):
    (model, optimizer), (other, again) = row.make(), row.make()
    compiled = compiler(model, backend=backend)
    for seed in range(3):
        backward(compiled, optimizer, seed)
        optimizer.step()
    close(vector(model), train(row, other, again, 3))


@over()
def test_model_in_another_precision(row):
    """The model is cast after some steps, and its optimizer goes with it."""
    ends = []
    for first in (torch.float64, torch.float32):
        model, optimizer = row.make()
        model.to(first)
        for seed in range(4):
            dtype = first if seed < 2 else torch.float64
            model.to(dtype)
            x, t = data(seed=seed, dtype=dtype)
            if row.kind == "batch":
                optimizer.step(x, t)
            else:
                optimizer.zero_grad()
                loss_of(model, x, t).backward()
                optimizer.step()
        ends.append(vector(model))
    close(*ends, 1e-4)


# ---- Options and groups


@over()
def test_step_size_of_any_kind(row):
    ends = []
    for kind in (float, np.float64, torch.tensor):
        model, optimizer = row.make(lr=kind(0.02))
        ends.append(train(row, model, optimizer, 2))
    close(ends[1], ends[0], 1e-6)
    close(ends[2], ends[0], 1e-6)
    model, optimizer = row.make()
    optimizer.param_groups[0]["lr"] = torch.tensor(0.02)
    train(row, model, optimizer)


@over()
def test_options_out_of_range(row):
    for wrong in ({"lr": -1.0}, {"lr": "much"}, {"momentum": 1.0}, {"weight_decay": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            row.make(**wrong)
    with pytest.raises(ValueError, match="nesterov"):
        row.make(nesterov=True, momentum=0.0)


@over()
def test_options_set_out_of_range_later(row):
    """The step that would use them is refused, and changes nothing."""
    model, optimizer = row.make()
    train(row, model, optimizer)
    before = moving(model)
    for key, wrong in (("lr", -1.0), ("momentum", 2.0), ("weight_decay", -1.0)):
        right = optimizer.param_groups[0][key]
        optimizer.param_groups[0][key] = wrong
        with pytest.raises(ValueError, match=key):
            train(row, model, optimizer)
        assert torch.equal(moving(model), before)
        optimizer.param_groups[0][key] = right
    train(row, model, optimizer)
    assert not torch.equal(moving(model), before)


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "list": lambda m: list(m.parameters()),
    "generator": lambda m: m.parameters(),
    "names": lambda m: [name for name, _ in m.named_parameters()],
    "pairs": lambda m: m.named_parameters(),
    "group": lambda m: [{"params": m.parameters()}],
    "group of names": lambda m: [{"params": [name for name, _ in m.named_parameters()]}],
    "a group each": lambda m: [{"params": p} for p in m.parameters()],
    "an empty group": lambda m: [{"params": []}, {"params": list(m.parameters())}],
}


@over()
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_name_the_parameters(row, way):
    model, optimizer = row.chosen(WAYS[way])
    expected = train(row, *row.make(), 3)
    close(train(row, model, optimizer, 3), expected)
    names = [name for name, _ in model.named_parameters()]
    saved = optimizer.state_dict()["param_groups"][0].get("param_names")
    assert saved == (names if way == "pairs" else None)


@over()
def test_parameters_that_will_not_do(row):
    stranger = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    for choose in (
        lambda m: [],
        lambda m: [*m.parameters(), stranger],
        lambda m: ["nothing"],
        lambda m: [{"params": m.parameters()}, {"params": m.parameters()}],
        lambda m: [*m.parameters(), next(m.parameters())],
    ):
        with warnings.catch_warnings(), pytest.raises(ValueError, match="parameter"):
            warnings.simplefilter("ignore")  # torch warns of what is refused
            row.chosen(choose)


@over()
@pytest.mark.parametrize("option", ["maximize", "dampening", "differentiable"])
def test_options_of_torch_that_are_not_here(row, option):
    model, optimizer = row.make()
    before = pieces(model)
    optimizer.param_groups[0][option] = 0
    train(row, model, optimizer)  # off is no demand
    assert not still(before, pieces(model))
    optimizer.param_groups[0][option] = True
    before = pieces(model)
    with pytest.raises(ValueError, match=f"{option}: expected it off, got True"):
        train(row, model, optimizer)
    assert still(before, pieces(model))


@over()
def test_a_model_is_asked_for(row):
    with pytest.raises(ValueError, match="model: expected a torch.nn.Module, got generator"):
        row.build(row.model().parameters(), **row.settings())


@over()
def test_step_size_of_a_group(row):
    def halves(model):
        first, second = list(model.parameters())[:2], list(model.parameters())[2:]
        return [{"params": first, "lr": 0.0}, {"params": second}]

    model, optimizer = row.chosen(halves)
    before = pieces(model)
    train(row, model, optimizer, 2)
    moved = [not still([p], [q]) for p, q in zip(pieces(model), before, strict=True)]
    assert not any(moved[:2]) and all(moved[2:])


@over()
def test_a_group_added_later(row):
    model, optimizer = row.chosen(lambda m: list(m.parameters())[2:])
    first, last = next(model.parameters()), list(model.parameters())[-1]
    before = first.detach().clone()
    train(row, model, optimizer, 2)
    assert torch.equal(first, before)
    state = copy.deepcopy(optimizer.state_dict())
    for wrong in ({"params": [last]}, {"params": [first], "lr": -1.0}):
        with pytest.raises(ValueError, match=r"param|lr"):
            optimizer.add_param_group(wrong)
        assert equal(optimizer.state_dict(), state)
    optimizer.add_param_group({"params": list(model.parameters())[:2]})
    row.start(optimizer)
    train(row, model, optimizer, 2, 2)
    assert not torch.equal(first, before)
    assert optimizer.steps == 4


@over()
def test_freezing_and_unfreezing(row):
    """Of a layer, also of one that was frozen when the optimizer was built."""
    model = row.model()
    layers = [m for m in model.modules() if m._parameters]
    layers[0].requires_grad_(False)
    optimizer = row.build(model, **row.settings())
    row.start(optimizer)
    before = pieces(model)
    train(row, model, optimizer, 2)
    assert still(pieces(model)[:2], before[:2]) and not still(pieces(model)[-2:], before[-2:])
    layers[0].requires_grad_(True)
    row.start(optimizer)
    train(row, model, optimizer, 2, 2)
    assert not any(still([p], [q]) for p, q in zip(pieces(model), before, strict=True))
    layers[-1].requires_grad_(False)
    optimizer.zero_grad()
    row.start(optimizer)
    before = pieces(model)
    train(row, model, optimizer, 2, 4)
    assert still(pieces(model)[-2:], before[-2:]) and not still(pieces(model)[:2], before[:2])


@over()
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_half_of_a_layer_is_frozen(row, name):
    """The step on the other half leads downhill."""
    model, optimizer = row.make()
    train(row, model, optimizer)
    names = {"weight": ("weight", "V"), "bias": ("bias", "d")}[name]
    for n, p in model.named_parameters():
        p.requires_grad_(n.split(".")[-1] not in names)
    optimizer.zero_grad()
    row.start(optimizer)
    for group in optimizer.param_groups:
        group.update(lr=1e-4, momentum=0.0, nesterov=False, weight_decay=0.0)
    losses = [loss_of(model, *data(seed=1)).item()]
    train(row, model, optimizer, 1, 1)
    losses.append(loss_of(model, *data(seed=1)).item())
    assert losses[1] < losses[0]


SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 1),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.CosineAnnealingLR(o, 5)], [2]
    ),
    "SWALR": lambda o: SWALR(o, 0.01),
}


@over()
def test_schedulers(row):
    for make in SCHEDULERS.values():
        model, optimizer = row.make()
        scheduler = make(optimizer)
        average = AveragedModel(model)
        for seed in range(3):
            train(row, model, optimizer, 1, seed)
            scheduler.step()
            average.update_parameters(model)
        assert torch.isfinite(vector(average.module)).all()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = moving(model)
    train(row, model, optimizer)
    assert torch.equal(moving(model), before)


# ---- Copies and states


@over()
@pytest.mark.parametrize("way", ["copy", "pickle"])
def test_copies_go_on_by_themselves(row, way):
    """Also where a scheduler has wrapped the step; nothing of the original moves with them."""
    model, optimizer = row.make()
    lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    train(row, model, optimizer, 3)
    pair = (model, optimizer)
    other, again = copy.deepcopy(pair) if way == "copy" else pickle.loads(pickle.dumps(pair))
    before = vector(model)
    ours = train(row, other, again, 3, 3)
    assert torch.equal(vector(model), before)
    assert torch.equal(ours, train(row, model, optimizer, 3, 3))


@over()
def test_optimizer_copied_alone(row):
    model, optimizer = row.make()
    train(row, model, optimizer, 2)
    alone = copy.deepcopy(optimizer)
    assert equal(alone.state_dict(), optimizer.state_dict())
    assert equal(pickle.loads(pickle.dumps(optimizer)).state_dict(), optimizer.state_dict())


@over()
def test_resumes_bit_for_bit_at_every_step(row):
    """Into an optimizer with other options: the state brings its own."""
    model, optimizer = row.make()
    files = []
    for seed in range(5):
        files.append(io.BytesIO())
        torch.save((model.state_dict(), optimizer.state_dict()), files[-1])
        train(row, model, optimizer, 1, seed)
    for seed, file in enumerate(files):
        file.seek(0)
        weights, state = torch.load(file, weights_only=True)
        other = row.model()
        given = copy.deepcopy(row.given)
        again = row.build(other, **({"lr": 0.3} if "lr" in row.options else {}), **given)
        other.load_state_dict(weights)
        again.load_state_dict(state)
        assert torch.equal(train(row, other, again, 5 - seed, seed), vector(model)), seed


@over()
def test_state_is_a_tree_of_tensors_and_numbers(row):
    model, optimizer = row.make()
    train(row, model, optimizer, 2)

    def leaves(tree):
        if isinstance(tree, (dict, list, tuple)):
            for item in tree.values() if isinstance(tree, dict) else tree:
                yield from leaves(item)
        else:
            yield tree

    state = optimizer.state_dict()
    assert state.keys() == {"state", "param_groups"}
    for leaf in leaves(state):
        assert isinstance(leaf, (torch.Tensor, int, float, bool, str, type(None))), type(leaf)


@over()
def test_loaded_state_is_not_shared(row):
    model, optimizer = row.make()
    train(row, model, optimizer, 2)
    state = optimizer.state_dict()
    kept = copy.deepcopy(state)
    other, again = row.make()
    again.load_state_dict(state)
    train(row, other, again, 3, 2)
    assert equal(state, kept)


@over()
def test_state_that_does_not_fit(row):
    model, optimizer = row.make()
    train(row, model, optimizer, 2)
    kept = copy.deepcopy(optimizer.state_dict())
    foreign = torch.optim.SGD(row.model().parameters(), 0.1).state_dict()
    fewer = copy.deepcopy(kept)
    fewer["param_groups"][0]["params"].pop()
    wrong = copy.deepcopy(kept)
    wrong["param_groups"][0]["lr"] = -1.0
    for state in (foreign, fewer, wrong, {"state": {}}):
        with pytest.raises((ValueError, KeyError)):
            optimizer.load_state_dict(state)
        assert equal(optimizer.state_dict(), kept)


@over()
def test_hooks_of_the_state_see_all_of_it(row):
    model, optimizer = row.make()
    train(row, model, optimizer, 2)
    seen: list = []
    handle = optimizer.register_state_dict_post_hook(lambda _, state: seen.append(state))
    kept = copy.deepcopy(optimizer.state_dict())
    handle.remove()
    assert equal(seen[0], kept)
    _, again = row.make()
    again.register_load_state_dict_pre_hook(lambda _, wrapped: wrapped["inside"])
    again.register_load_state_dict_post_hook(lambda o: seen.append(o.state_dict()))
    again.load_state_dict({"inside": kept})
    assert equal(seen[1], kept)


@over()
def test_distributed_checkpoint(row):
    model, optimizer = row.make()
    train(row, model, optimizer, 2)
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    other, again = row.make()
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, again, saved)
    close(train(row, other, again, 2, 2), train(row, model, optimizer, 2, 2), 1e-12)


# ---- The table itself


def test_every_optimizer_of_the_library_has_a_row():
    exported = [getattr(optim, name) for name in optim.__all__]
    ours = {it for it in exported if isinstance(it, type) and issubclass(it, Preconditioned)}
    assert len(ours) >= 12 and ours <= {type(row.make()[1]) for row in TABLE.values()}


def test_exemptions_are_few_and_of_rows_that_exist():
    properties = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert len(EXEMPT) <= 20
    assert all(prop in properties and row in TABLE and EXEMPT[prop, row] for prop, row in EXEMPT)
