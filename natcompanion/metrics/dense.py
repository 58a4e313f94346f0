"""Dense metrics of a model on a batch: the Fisher matrix and the matrices it is confused with.

All are means over the ``n`` examples of ``x``, of shape (P, P), for the trainable parameters in the
order of ``model.parameters()``. The model runs in evaluation mode and is left as it was.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion._memory import affordable, refuse_larger
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics import fast
from natcompanion.metrics.model_function import ModelFunction, all_finite

Parameters = Iterable[str | nn.Parameter] | None
Output = Callable[[Any], torch.Tensor] | None

FISHER = "FisherOperator (products without the matrix) or kronecker_factors"
COVARIANCE = "CovarianceOperator (products without the matrix) or per_example_gradients"
DRAWN = "MonteCarloOperator (products without the matrix)"


def fisher(
    model: nn.Module,
    x: Any,
    likelihood: Likelihood,
    *,
    parameters: Parameters = None,
    output: Output = None,
) -> torch.Tensor:
    r"""Return the Fisher matrix: the expectation over the labels the model itself would give.

    .. math:: G = \frac1n \sum_i J_i^T F(r_i) J_i
              = \frac1n \sum_i \mathrm E_{t \sim p(t \mid x_i)}
                \left[\nabla \log p(t \mid x_i)\, \nabla \log p(t \mid x_i)^T\right]

    It never reads a target. Source: revisiting Eq. 8 to 11.

    Parameters
    ----------
    model : Module
        From (n, ...) to (n, o), or (n, ..., o) with positions, which an example sums over.
    x : Tensor, shape (n, ...), or tuple or dictionary of such
    likelihood : Likelihood
    parameters : iterable, optional
        Parameters or their names, if not all trainable ones; also pairs of both, as from
        ``named_parameters()``, and groups, as optimizers take them.
    output : callable, optional
        Selects the outputs (n, ..., o) from what the model returns.

    Raises
    ------
    ValueError
        On an empty batch, NaN, complex or sparse input, input that the model does not take (its own
        error is the cause), a model without trainable parameters, or one for which the
        matrix would be larger than :func:`natcompanion.metrics.dense_limit` allows, as for all
        dense metrics.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> fisher(model, x, Gaussian())
    tensor([[2.5000]])
    """
    f = ModelFunction(model, parameters, output)
    affordable(f.size, f.dtype, "fisher", FISHER)
    x = f.check(x)
    return gram(f, x, f.on(likelihood).fisher_root(f.output(x)).mT).div_(len(x)).to(f.out_dtype)


def gauss_newton(
    model: nn.Module,
    x: Any,
    t: torch.Tensor,
    likelihood: Likelihood,
    *,
    parameters: Parameters = None,
    output: Output = None,
) -> torch.Tensor:
    r"""Return the extended Gauss-Newton matrix of the mean negative log-likelihood.

    .. math:: G_N = \frac1n \sum_i J_i^T \, \frac{\partial^2 (-\log p(t_i \mid r_i))}{\partial r^2}
              \, J_i

    The inner Hessian is found by differentiating the loss at the given targets, so that its
    equality with the Fisher matrix for the three standard likelihoods is a result, not a
    definition. Source: revisiting Eq. 14 (which lacks the minus sign) to 21.

    Parameters
    ----------
    model, x, likelihood, parameters, output
        As for :func:`natcompanion.metrics.fisher`.
    t : Tensor
        The targets, as the likelihood wants them.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> t = model(x).detach() + torch.tensor([[1.0], [2.0]])
    >>> gauss_newton(model, x, t, Gaussian())
    tensor([[2.5000]])
    """
    f = ModelFunction(model, parameters, output)
    affordable(f.size, f.dtype, "gauss_newton", FISHER)
    x = f.check(x)
    hessian = output_hessian(f.on(likelihood), f.output(x), t)
    total = torch.zeros(f.size, f.size, dtype=f.dtype, device=x.device)
    units = torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device)
    for part, jacobian in f.chunks(x, units.expand_as(hessian)):
        total += jacobian.flatten(0, 1).mT @ (hessian[part] @ jacobian).flatten(0, 1)
    return ((total + total.mT) / (2 * len(x))).to(f.out_dtype)


def empirical_fisher(
    model: nn.Module,
    x: Any,
    t: torch.Tensor,
    likelihood: Likelihood,
    *,
    parameters: Parameters = None,
    output: Output = None,
) -> torch.Tensor:
    r"""Return the uncentred covariance of the gradients at the given targets.

    .. math:: U = \frac1n \sum_i g_i g_i^T, \qquad g_i = -\nabla \log p(t_i \mid x_i)

    Source: revisiting Eq. 13.

    Parameters
    ----------
    model, x, t, likelihood, parameters, output
        As for :func:`natcompanion.metrics.gauss_newton`.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> t = model(x).detach() + torch.tensor([[1.0], [2.0]])
    >>> torch.allclose(empirical_fisher(model, x, t, Gaussian()), torch.tensor(8.5))  # (1 + 16) / 2
    True
    """
    f = ModelFunction(model, parameters, output)
    affordable(f.size, f.dtype, "empirical_fisher", COVARIANCE)
    x = f.check(x)
    return (
        gram(f, x, score(f.on(likelihood), f.output(x), t).unsqueeze(1))
        .div_(len(x))
        .to(f.out_dtype)
    )


def gradient_covariance(
    model: nn.Module,
    x: Any,
    t: torch.Tensor,
    likelihood: Likelihood,
    *,
    parameters: Parameters = None,
    output: Output = None,
) -> torch.Tensor:
    r"""Return the centred covariance of the gradients at the given targets, with divisor n.

    .. math:: C = \frac1n \sum_i (g_i - \bar g)(g_i - \bar g)^T = U - \bar g \bar g^T

    Source: revisiting Eq. 12.

    Parameters
    ----------
    model, x, t, likelihood, parameters, output
        As for :func:`natcompanion.metrics.gauss_newton`.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> t = model(x).detach() + torch.tensor([[1.0], [2.0]])
    >>> C = gradient_covariance(model, x, t, Gaussian())  # of the gradients -1 and -4
    >>> torch.allclose(C, torch.tensor(2.25))
    True
    """
    f = ModelFunction(model, parameters, output)
    affordable(f.size, f.dtype, "gradient_covariance", COVARIANCE)
    x = f.check(x)
    scores = score(f.on(likelihood), f.output(x), t).unsqueeze(1)
    mean: Any = sum(rows.sum((0, 1)) for _, rows in f.chunks(x, scores)) / len(x)
    return gram(f, x, scores, mean).div_(len(x)).to(f.out_dtype)


def monte_carlo_fisher(
    model: nn.Module,
    x: Any,
    likelihood: Likelihood,
    *,
    samples: int = 1,
    generator: torch.Generator | None = None,
    parameters: Parameters = None,
    output: Output = None,
) -> torch.Tensor:
    """Return an unbiased estimate of the Fisher matrix from ``samples`` labels drawn from the model
    per example.

    Without ``generator``, torch's global one is used.

    Parameters
    ----------
    model, x, likelihood, parameters, output
        As for :func:`natcompanion.metrics.fisher`.
    samples : int
        Labels per example.
    generator : torch.Generator, optional

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> generator = torch.Generator().manual_seed(0)
    >>> G = monte_carlo_fisher(model, x, Gaussian(), samples=10_000, generator=generator)
    >>> bool((G - 2.5).abs() < 0.2)
    True
    """
    f = ModelFunction(model, parameters, output)
    affordable(f.size, f.dtype, "monte_carlo_fisher", DRAWN)
    x = f.check(x)
    scores = sampled_scores(f.on(likelihood), f.output(x), samples, generator)
    return gram(f, x, scores).div_(len(x)).to(f.out_dtype)


def per_example_gradients(
    model: nn.Module,
    x: Any,
    t: torch.Tensor,
    likelihood: Likelihood,
    *,
    parameters: Parameters = None,
    output: Output = None,
) -> torch.Tensor:
    """Return the gradient of ``-log p(t | x)`` of each example; (n, P).

    Parameters
    ----------
    model, x, t, likelihood, parameters, output
        As for :func:`natcompanion.metrics.gauss_newton`.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> t = model(x).detach() + torch.tensor([[1.0], [2.0]])
    >>> g = per_example_gradients(model, x, t, Gaussian())
    >>> torch.allclose(g, torch.tensor([[-1.0], [-4.0]]))
    True
    """
    f = ModelFunction(model, parameters, output)
    x = f.check(x)
    refuse_larger(
        len(x) * f.size,
        f.dtype,
        f"per_example_gradients: {len(x)} gradients of {f.size} parameters need",
        "fewer examples at a time",
    )
    scores = score(f.on(likelihood), f.output(x), t).unsqueeze(1)
    return torch.cat([rows.squeeze(1) for _, rows in f.chunks(x, scores)]).to(f.out_dtype)


def score(likelihood: Likelihood, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return the gradient of ``-log p(t | r)`` with respect to ``r``; (n, o)."""
    r = r.detach().requires_grad_()
    with torch.enable_grad():
        gradient = torch.autograd.grad(likelihood.nll(r, t).sum(), r)[0]
    if not all_finite(gradient):
        raise ValueError(
            "t: expected targets with finite gradients, got NaN or infinite ones; check the targets"
        )
    return gradient


def sampled_scores(
    likelihood: Likelihood, r: torch.Tensor, samples: int, generator: torch.Generator | None
) -> torch.Tensor:
    """Return scores at labels drawn from the model, each divided by the root of ``samples``; (n,
    samples, o).
    """
    samples = check.whole(samples, "samples")
    check.generator(generator)
    repeated = r.repeat_interleave(samples, 0)
    drawn = likelihood.sample(repeated, generator=generator)
    scores = score(getattr(likelihood, "drawn", likelihood), repeated, drawn)
    return scores.unflatten(0, (len(r), samples)) / samples**0.5


def output_hessian(likelihood: Likelihood, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return the Hessian of ``-log p(t | r)`` with respect to ``r`` of each example; (n, o, o)."""
    r = r.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(likelihood.nll(r, t).sum(), r, create_graph=True)
        if not gradient.requires_grad:  # a loss that is linear in r
            return torch.diag_embed(torch.zeros_like(gradient))
        columns = [
            torch.autograd.grad(g.sum(), r, retain_graph=True, materialize_grads=True)[0]
            for g in gradient.unbind(-1)
        ]
    return torch.stack(columns, -1)


def gram(
    f: ModelFunction, x: Any, cotangents: torch.Tensor, mean: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sum over examples and cotangents (n, k, o) of the outer products of the rows
    ``cotangents @ J``.

    If ``mean`` (P,) is given, it is subtracted from each row. The result has shape (P, P).
    """
    total = fast.gram(f, x, cotangents) if mean is None and cotangents.shape[1] > 1 else None
    if total is not None:
        return total
    total = torch.zeros(f.size, f.size, dtype=f.dtype, device=x.device)
    for _, rows in f.chunks(x, cotangents):
        rows = rows.flatten(0, 1) if mean is None else rows.flatten(0, 1) - mean
        total.addmm_(rows.mT, rows)
    return total
