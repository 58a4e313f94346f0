"""The judges of the exercises on natural gradient for deep networks: each tests a property, by
trial.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from natcompanion import metrics, solvers
from natcompanion.chapters.numbers import revisiting as numbers
from natcompanion.likelihoods import Categorical

CLASSES, INPUTS = 3, 40
CHANGE = 1e-6
DAMPINGS = (0.001, 0.1, 3.0)
PRODUCTS, DAMPING = 3, 0.01
Score = Callable[[Tensor, int], Tensor]


def _random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def scores(by_y: Score, by_r: Score) -> str:
    """Say what is off with the derivatives of the loss -log y_t of softmax outputs y (3,), r their
    pre-activations, as functions of y and the label t: one by y, each output by itself, one by r.
    """
    for seed in range(3):
        r, d = _random(2, CLASSES, seed=seed)
        y = torch.softmax(r, 0)
        for t in range(CLASSES):
            ways = {
                "y": (by_y, y + CHANGE * d),
                "r": (by_r, torch.softmax(r + CHANGE * d, 0)),
            }
            for name, (score, moved) in ways.items():
                answer = torch.as_tensor(score(y, t), dtype=torch.float64)
                if answer.shape != (CLASSES,):
                    return f"by {name}, expected a vector of 3, got shape {tuple(answer.shape)}"
                fall = float((y[t] / moved[t]).log()) / CHANGE
                ratio = float(answer @ d) / fall
                if not abs(ratio - 1) < 0.001:
                    return f"by {name}, it says {ratio:.3g} times the change of the loss"
    return ""


def shortening(factor: Callable[[float], float]) -> str:
    """Say what is off with the factor by which the step with C is longer than the one with U, as a
    function of s = gᵀ (C + λ I)⁻¹ g.
    """
    model, (x, t) = numbers.network_of((3, 4, CLASSES)), numbers.random_batch(INPUTS, CLASSES)
    C = metrics.gradient_covariance(model, x, t, Categorical())
    U = metrics.empirical_fisher(model, x, t, Categorical())
    g = metrics.per_example_gradients(model, x, t, Categorical()).mean(0)
    for lam in DAMPINGS:
        damping = lam * torch.eye(len(g), dtype=g.dtype)
        by_C, by_U = (torch.linalg.solve(M + damping, g) for M in (C, U))
        s, truth = float(g @ by_C), float(by_C.norm() / by_U.norm())
        answer = float(factor(s))
        if not abs(answer / truth - 1) < 1e-4:
            return f"with damping {lam:g} s is {s:.3g}, and it gives {answer:.3g}"
    return ""


@cache
def one_label_error() -> float:
    """Return the root mean square distance from G, in units of G, of its estimate from one label
    for each of the chapter's 40 inputs: by a sum over all labels.
    """
    model, (x, _) = numbers.network_of((3, 4, CLASSES)), numbers.random_batch(INPUTS, CLASSES)
    y = torch.softmax(model(x), 1).detach()
    labels = (torch.full((INPUTS,), c) for c in range(CLASSES))
    each = torch.stack([metrics.per_example_gradients(model, x, t, Categorical()) for t in labels])
    G_i = torch.einsum("nc,cnp,cnq->npq", y, each, each)
    squares = torch.einsum("nc,cn->", y, each.square().sum(2) ** 2)
    variance = (squares - G_i.square().sum()) / INPUTS**2
    return float(variance.sqrt() / G_i.mean(0).norm())


def labels(each: int, inputs: int) -> str:
    """Say what is off with the number of labels for each of 40 inputs that brings the estimate of
    G to a root mean square error of 10 %, and with the number of such inputs of one label each.
    """
    ways = {
        f"{each} labels for each of the 40 inputs": INPUTS * each,
        f"one label for each of {inputs} inputs": inputs,
    }
    for name, drawn in ways.items():
        if not drawn > 0:
            return "a number must be positive"
        error = one_label_error() * (INPUTS / drawn) ** 0.5
        if not 0.09 < error < 0.11:
            return f"with {name} the error is {100 * error:.3g} %"
    return ""


def with_bias() -> tuple[Tensor, Tensor]:
    """Return the chapter's 40 inputs with a fourth that is always 1, (40, 4), and their labels."""
    x, t = numbers.random_batch(INPUTS, CLASSES)
    return torch.cat([x, torch.ones(INPUTS, 1, dtype=x.dtype)], 1), t


def truncated_step(inner: Callable[[Tensor], Tensor], change: Tensor) -> Tensor:
    """Return what three products with G give for (G + λ M) x = g, as a change of the 12 weights
    of a softmax regression of the inputs ``Z``, if they are written as ``Z @ change.T``; (3, 4).

    M has the block ``inner`` of these inputs for each output, and its inverse is the
    preconditioner.
    """
    Z, t = with_bias()
    Z = Z @ change.mT
    model = nn.Linear(4, CLASSES, bias=False, dtype=Z.dtype)
    model.weight.data = _random(CLASSES, 4) @ change.inverse()
    G = metrics.fisher(model, Z, Categorical())
    g = metrics.per_example_gradients(model, Z, t, Categorical()).mean(0)
    S = torch.as_tensor(inner(Z), dtype=Z.dtype)
    M = torch.kron(torch.eye(CLASSES, dtype=Z.dtype), S.contiguous())
    P, A = torch.cholesky_inverse(torch.linalg.cholesky(M)), G + DAMPING * M
    step = solvers.conjugate_gradient(A, g, 0.0, PRODUCTS, preconditioner=P).x
    return step.reshape(CLASSES, 4) @ change


def truncation(inner: Callable[[Tensor], Tensor]) -> str:
    """Say what is off with a matrix (4, 4) made of the inputs (n, 4): with it in the place of the
    identity, a damped step of three products must be the same in all coordinates of the inputs.
    """
    S = torch.as_tensor(inner(with_bias()[0]))
    if S.shape != (4, 4):
        return f"expected a matrix of shape (4, 4), got {tuple(S.shape)}"
    try:
        here = truncated_step(inner, torch.eye(4, dtype=torch.float64))
        gaps = [
            float((truncated_step(inner, _random(4, 4, seed=seed)) - here).norm() / here.norm())
            for seed in (1, 2, 3)
        ]
    except (ValueError, torch.linalg.LinAlgError):
        return "it is not symmetric and positive definite for all inputs"
    return "" if max(gaps) < 1e-6 else f"in other coordinates it ends {max(gaps):.3g} steps away"
