"""Algorithm 1 of *Revisiting Natural Gradient* and the damping of its text, in the paper's letters:
y outputs, G metric, g gradient, γ step size, λ damping, η step size in Eqs. 29 and 30.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from natcompanion.reference.metrics import gradient, outputs, parameter_vector


def output_jacobian(model: nn.Module, x: torch.Tensor, likelihood: Likelihood) -> torch.Tensor:
    """Return the Jacobians of the outputs y, one entry after the other; (n, o, P)."""
    rows = [[gradient(model, y_k) for y_k in likelihood.mean(model(x_i))[0]] for x_i in x.split(1)]
    return torch.stack([torch.stack(row) for row in rows])


def inner_weight(likelihood: Likelihood, y: torch.Tensor) -> torch.Tensor:
    """Return what stands between the Jacobians in Eqs. 9 (β to the -2) to 11."""
    match likelihood:
        case Gaussian(beta):
            return torch.full_like(y, beta**-2)
        case Bernoulli():
            return 1 / (y * (1 - y))
        case Categorical():
            return 1 / y
    raise ValueError(f"likelihood: expected Gaussian, Bernoulli or Categorical, got {likelihood!r}")


def metric(model: nn.Module, x: torch.Tensor, likelihood: Likelihood) -> torch.Tensor:
    """Return G of Eqs. 9 to 11 from the Jacobians of the outputs y; (P, P)."""
    J = output_jacobian(model, x, likelihood)
    weight = inner_weight(likelihood, likelihood.mean(model(x)).detach())
    return torch.einsum("nop,no,noq->pq", J, weight, J) / len(x)


def gfn(
    model: nn.Module,
    x: torch.Tensor,
    likelihood: Likelihood,
    v: torch.Tensor,
) -> torch.Tensor:
    """Return G v as the program of Section 8.3: Rop, weighted, through Lop."""

    def y(θ: torch.Tensor) -> torch.Tensor:
        return likelihood.mean(outputs(model, θ, x))

    θ = parameter_vector(model)
    out, Rop = torch.autograd.functional.jvp(y, θ, v)
    weighted = inner_weight(likelihood, out) * Rop / len(x)
    _, Lop = torch.autograd.functional.vjp(y, θ, weighted)
    return Lop


def linear_cg(
    gfn: Callable[[torch.Tensor], torch.Tensor],
    g: torch.Tensor,
    max_iters: int = 20,
    rtol: float = 1e-4,
) -> torch.Tensor:
    """Solve G x = g by conjugate gradients as textbooks have them."""
    x, r = torch.zeros_like(g), g
    p, rr = r, r @ r
    for _ in range(max_iters):
        if r.norm() <= rtol * g.norm():
            break
        Gp = gfn(p)
        step = rr / (p @ Gp)
        x, r = x + step * p, r - step * Gp
        rr, old = r @ r, rr
        p = r + (rr / old) * p
    return x


def natural_gradient(
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    likelihood: Likelihood,
    γ: float,
    λ: float = 0.0,
) -> None:
    """Change θ by a step on each batch: Algorithm 1, with the damping λ of the text."""
    parameters = [p for p in model.parameters() if p.requires_grad]

    def ng(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        g = gradient(model, likelihood.nll(model(x), t).mean())
        return linear_cg(lambda v: gfn(model, x, likelihood, v) + λ * v, g)

    for x, t in batches:
        θ = parameter_vector(model) - γ * ng(x, t)
        nn.utils.vector_to_parameters(θ, parameters)


def levenberg_marquardt(
    f: Callable[[torch.Tensor], torch.Tensor],
    θ: torch.Tensor,
    g: torch.Tensor,
    ng: torch.Tensor,
    η: float,
    λ: float,
) -> float:
    """Return the next λ by the ratio ρ of Eq. 30; the factors are those of Martens."""
    ρ = (f(θ - η * ng) - f(θ)) / (-η * (g @ ng))
    return 3 / 2 * λ if ρ < 1 / 4 else 2 / 3 * λ if ρ > 3 / 4 else λ
