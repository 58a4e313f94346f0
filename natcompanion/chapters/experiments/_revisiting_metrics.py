"""Comparisons of metrics and solvers on small networks, for the revisiting experiments."""

import copy
from typing import Any

import torch
from torch import nn

from natcompanion import metrics, reference
from natcompanion.chapters.experiments._revisiting_training import LIKELIHOOD, Split, initialized
from natcompanion.optim import NaturalGradient
from natcompanion.reference.revisiting import linear_cg
from natcompanion.solvers import conjugate_gradient, minres, minres_qlp


def small_network(
    generator: torch.Generator, sizes: tuple[int, int, int] = (6, 9, 4)
) -> nn.Sequential:
    """Return a float64 network with one hidden layer of tanh units, drawn at random."""
    inputs, hidden, outputs = sizes
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
    return initialized(model, generator).double()


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Return float64 normal numbers."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def _rank(matrix: torch.Tensor) -> int:
    values = torch.linalg.eigvalsh(matrix)
    return int((values > 1e-10 * values[-1]).sum())


def convergence(
    generator: torch.Generator, samples: tuple[int, ...], sharpen: tuple[float, ...], examples: int
) -> dict:
    """Return ranks of U and G on few examples, and relative distances of U, C and the Hessian from
    G.
    """
    model: Any
    model = small_network(generator)
    x = normal(generator, examples, 6)
    t = LIKELIHOOD.sample(model(x).detach(), generator=generator)
    values = {
        "rank_fisher": _rank(metrics.fisher(model, x, LIKELIHOOD)),
        "rank_empirical": _rank(metrics.empirical_fisher(model, x, t, LIKELIHOOD)),
        "rank_covariance": _rank(metrics.gradient_covariance(model, x, t, LIKELIHOOD)),
        "bound_fisher": 3 * examples,
        "bound_empirical": examples,
    }
    sampled = []
    for n in samples:
        x = normal(generator, n, 6)
        t = LIKELIHOOD.sample(model(x).detach(), generator=generator)
        G = metrics.fisher(model, x, LIKELIHOOD)
        sampled.append(_distance(metrics.empirical_fisher(model, x, t, LIKELIHOOD), G))
    certain: dict[str, list[float]] = {"empirical": [], "hessian": [], "scale": []}
    x = normal(generator, 200, 6)
    last, plain = model[-1], (model[-1].weight.detach().clone(), model[-1].bias.detach().clone())
    t = model(x).argmax(1)
    for factor in sharpen:
        with torch.no_grad():
            last.weight.copy_(factor * plain[0])
            last.bias.copy_(factor * plain[1])
        G = metrics.fisher(model, x, LIKELIHOOD)
        U = metrics.empirical_fisher(model, x, t, LIKELIHOOD)
        certain["empirical"].append(_distance(U, G))
        certain["hessian"].append(_distance(reference.loss_hessian(model, x, t, LIKELIHOOD), G))
        certain["scale"].append(float(U.trace() / G.trace()))
    return {
        **values,
        "sampled": sampled,
        **{f"certain_{name}": value for name, value in certain.items()},
    }


def unbalanced(
    generator: torch.Generator, examples: int, updates: int, rate: float, damping: float
) -> dict:
    """Return what a metric on inputs with class A twice does, beside one on the balanced inputs,
    from equal starts.

    ``ratio``: the KL divergence that the first step moves the model by on A over that on B.
    ``probability``: the mean probability of A on new balanced inputs after all ``updates``. Two
    overlapping normal classes in the plane.
    """

    def draw(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, t = normal(generator, 2 * n, 2), torch.arange(2 * n) // n
        return x + torch.tensor([1.0, 0.0], dtype=x.dtype) * (1 - 2 * t).unsqueeze(1), t

    (x, t), (x_new, _) = draw(examples), draw(20 * examples)
    start = small_network(generator, (2, 5, 2))
    values = {}
    for name, inputs in (("balanced", x), ("doubled", torch.cat([x, x[:examples]]))):
        model = copy.deepcopy(start)
        optimizer = NaturalGradient(
            model, LIKELIHOOD, rate, damping=damping, rtol=1e-8, max_iter=100
        )
        before = model(x).detach()
        optimizer.step(x, t, inputs)
        kl = LIKELIHOOD.kl(before, model(x).detach())
        values[f"ratio_{name}"] = float(kl[:examples].mean() / kl[examples:].mean())
        for _ in range(updates - 1):
            optimizer.step(x, t, inputs)
        values[f"probability_{name}"] = float(LIKELIHOOD.mean(model(x_new).detach())[:, 0].mean())
    return values


def variances(generator: torch.Generator, examples: int) -> dict:
    """Return the rank correlation of the curvature of the KL divergence with the variance of the
    gradients.

    Over the eigenvectors of G outside its null space; for labels drawn at random, and for the
    model's likeliest ones.
    """
    model = small_network(generator)
    x, t = normal(generator, examples, 6), torch.randint(4, (examples,), generator=generator)
    curvature, vectors = torch.linalg.eigh(metrics.fisher(model, x, LIKELIHOOD))
    kept = curvature > 1e-10 * curvature[-1]
    values = {}
    for name, labels in (("random", t), ("likeliest", model(x).argmax(1))):
        C = metrics.gradient_covariance(model, x, labels, LIKELIHOOD)
        variance = ((C @ vectors) * vectors).sum(0)
        ranks = torch.stack([v[kept].argsort().argsort().double() for v in (curvature, variance)])
        values[name] = float(torch.corrcoef(ranks)[0, 1])
    return values


def plateau(generator: torch.Generator, factors: tuple[float, ...], damping: float) -> dict:
    """Return, for each factor on the input weights, the KL divergence moved by a step of size 0.01
    of each method.
    """
    model: Any
    model = small_network(generator)
    x, t = normal(generator, 50, 6), torch.randint(4, (50,), generator=generator)
    first, weight = model[0], model[0].weight.detach().clone()
    moved: dict[str, list[float]] = {"gradient": [], "natural": [], "covariance": []}
    for factor in factors:
        with torch.no_grad():
            first.weight.copy_(factor * weight)
        parameters = [first.weight, first.bias]  # the flat directions
        g = metrics.per_example_gradients(model, x, t, LIKELIHOOD, parameters=parameters).mean(0)
        matrices = {
            "gradient": torch.zeros(len(g), len(g), dtype=g.dtype),
            "natural": metrics.fisher(model, x, LIKELIHOOD, parameters=parameters),
            "covariance": metrics.empirical_fisher(model, x, t, LIKELIHOOD, parameters=parameters),
        }
        for name, matrix in matrices.items():
            ridge = 1.0 if name == "gradient" else damping
            step = -0.01 * torch.linalg.solve(matrix + ridge * torch.eye(len(g), dtype=g.dtype), g)
            moved[name].append(_kl_moved(model, parameters, step, x))
    return {name: value for name, value in moved.items()} | {"factors": list(factors)}


def _kl_moved(
    model: nn.Module, parameters: list[nn.Parameter], step: torch.Tensor, x: torch.Tensor
) -> float:
    """Return the mean KL divergence on ``x`` between the model and the model after ``step``; it is
    put back.
    """
    with torch.no_grad():
        before = model(x)
        move(parameters, step)
        after = model(x)
        move(parameters, -step)
    return float(LIKELIHOOD.kl(before, after).mean())


@torch.no_grad()
def move(parameters: list[nn.Parameter], step: torch.Tensor) -> None:
    """Add a vector to parameters in place."""
    for p, piece in zip(parameters, step.split([p.numel() for p in parameters]), strict=True):
        p.add_(piece.view_as(p))


def solvability(
    generator: torch.Generator, examples: int, max_iter: int, dampings: tuple[float, ...]
) -> dict:
    """Return, for the metric of the same and of another batch, the part of g out of its range and
    what solvers do.
    """
    model = small_network(generator)
    x, other = normal(generator, examples, 6), normal(generator, examples, 6)
    t = torch.randint(4, (examples,), generator=generator)
    g = metrics.per_example_gradients(model, x, t, LIKELIHOOD).mean(0)
    values: dict = {"parameters": len(g), "gradient_norm": float(g.norm())}
    solvers = {"cg": conjugate_gradient, "minres": minres, "minres_qlp": minres_qlp}
    for name, inputs in (("same", x), ("other", other)):
        G = metrics.fisher(model, inputs, LIKELIHOOD)
        lam, vectors = torch.linalg.eigh(G)
        inside = lam > 1e-10 * lam[-1]
        coordinates = vectors.mT @ g
        shortest = vectors[:, inside] @ (coordinates[inside] / lam[inside])
        values[f"{name}_rank"] = int(inside.sum())
        values[f"{name}_null"] = float(coordinates[~inside].norm() / g.norm())
        values[f"{name}_shortest"] = float(shortest.norm())
        for solver, function in solvers.items():
            solution = function(G, g, rtol=1e-8, max_iter=10 * max_iter)
            values[f"{name}_{solver}_length"] = float(solution.x.norm() / shortest.norm())
            values[f"{name}_{solver}_off"] = _distance(solution.x, shortest)
            values[f"{name}_{solver}_converged"] = solution.converged
            values[f"{name}_{solver}_reason"] = solution.reason.name
        lengths = [textbook_cg(G, g, k) for k in range(1, max_iter + 1)]
        values[f"{name}_textbook"] = lengths
        values[f"{name}_damped"] = [
            float(torch.linalg.solve(G + d * torch.eye(len(g), dtype=g.dtype), g).norm())
            for d in dampings
        ]
    return values


def textbook_cg(A: torch.Tensor, b: torch.Tensor, iterations: int) -> float:
    """Return the length of ``x`` after so many steps of conjugate gradients that never stop by
    themselves.
    """
    x = linear_cg(lambda v: A @ v, b, max_iters=iterations, rtol=0.0)
    return min(float(x.norm().nan_to_num(torch.inf)), 1e300)


def reach(
    model: nn.Module,
    split: Split,
    batch: int,
    damping: float,
    max_iter: int,
    decrease: float,
    generator: torch.Generator,
) -> dict:
    """Return, for steps that lower the batch's loss equally to first order, what they change
    elsewhere.

    For each metric: the KL divergence moved on the batch, on unlabelled inputs that the metric has
    not seen, and on test inputs; and the fall of the test loss as a share of the fall of the
    batch's loss.
    """
    order = torch.randperm(len(split.x), generator=generator)[:batch]
    x, t = split.x[order], split.t[order]
    half = len(split.unlabelled) // 2
    seen, unseen = split.unlabelled[:half], split.unlabelled[half:]
    drawn = seen[torch.randperm(len(seen), generator=generator)]
    g = _gradient(model, x, t)
    inputs = {"same": x, "unlabelled": drawn[:batch], "more": drawn}
    steps = {"plain": g}
    for name, on in inputs.items():
        A = metrics.FisherOperator(model, on, LIKELIHOOD, damping)
        steps[name] = minres_qlp(A, g, rtol=1e-3, max_iter=max_iter).x
    values: dict = {}
    parameters = list(model.parameters())
    for name, direction in steps.items():
        step = -decrease * direction / (g @ direction)
        places = {"batch": x, "seen": drawn[:batch], "unlabelled": unseen, "test": split.test[0]}
        for place, on in places.items():
            values[f"{name}_kl_{place}"] = _kl_moved(model, parameters, step, on)
        before = _losses(model, (x, t), split.test)
        move(parameters, step)
        after = _losses(model, (x, t), split.test)
        move(parameters, -step)
        values[f"{name}_share"] = (before[1] - after[1]) / (before[0] - after[0])
    return values


@torch.no_grad()
def _losses(model: nn.Module, *parts: tuple[torch.Tensor, torch.Tensor]) -> list[float]:
    return [float(LIKELIHOOD.nll(model(x).double(), t).mean()) for x, t in parts]


def _gradient(model: nn.Module, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    pieces = torch.autograd.grad(LIKELIHOOD.nll(model(x), t).mean(), list(model.parameters()))
    return torch.cat([piece.reshape(-1) for piece in pieces])
