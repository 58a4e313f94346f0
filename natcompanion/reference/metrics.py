"""The naive twins: each fast function of the library written out in a few lines anyone can check by
eye.
"""

import itertools

import torch
from torch import nn

from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from natcompanion.metrics.model_function import find_slots, substituted


def labels(likelihood: Likelihood, r: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return every label of one output ``r`` (o,) as ``(label, probability)``; for a Gaussian, a
    quadrature rule.

    The rule has two nodes per output, ``r - beta`` and ``r + beta``: exact for the products of
    scores we integrate.

    Parameters
    ----------
    likelihood : Gaussian, Bernoulli or Categorical
    r : Tensor, shape (o,)

    Examples
    --------
    >>> labels(Bernoulli(), torch.zeros(1))
    [(tensor([0.]), tensor(0.5000)), (tensor([1.]), tensor(0.5000))]
    """
    binary = itertools.product([0.0, 1.0], repeat=len(r))
    match likelihood:
        case Categorical():
            return [(torch.tensor(k), p) for k, p in enumerate(torch.softmax(r, 0))]
        case Bernoulli():
            y = torch.sigmoid(r)
            return [(t, (t * y + (1 - t) * (1 - y)).prod()) for t in map(r.new_tensor, binary)]
        case Gaussian(beta):
            return [
                (r + beta * (2 * r.new_tensor(t) - 1), r.new_tensor(0.5 ** len(r))) for t in binary
            ]
    raise ValueError(f"likelihood: expected Gaussian, Bernoulli or Categorical, got {likelihood!r}")


def gradient(model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """Return the gradient of ``loss`` by the trainable parameters as one vector (P,).

    Parameters
    ----------
    model : Module
        From (n, ...) to (n, o).
    loss : Tensor
        A number that was computed with the model.

    Examples
    --------
    >>> model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> gradient(model, model(x).sum())
    tensor([3.])
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    pieces = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([piece.reshape(-1) for piece in pieces])


def gradients(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor, likelihood: Likelihood
) -> torch.Tensor:
    """Return the gradient of ``-log p(t | x)`` of each example, one after the other; (n, P).

    Parameters
    ----------
    model, x, t, likelihood
        As for :func:`natcompanion.metrics.gauss_newton`.

    Examples
    --------
    >>> model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> t = model(x).detach() + torch.tensor([[1.0], [2.0]])
    >>> torch.allclose(gradients(model, x, t, Gaussian()), torch.tensor([[-1.0], [-4.0]]))
    True
    """
    return torch.stack(
        [
            gradient(model, likelihood.nll(model(x[i : i + 1]), t[i : i + 1]).sum())
            for i in range(len(x))
        ]
    )


def fisher(model: nn.Module, x: torch.Tensor, likelihood: Likelihood) -> torch.Tensor:
    """Return the Fisher matrix as a sum over all examples and all labels of p(label) g gᵀ; (P,
    P).

    Parameters
    ----------
    model : Module
        From (n, ...) to (n, o).
    x : Tensor, shape (n, ...)
    likelihood : Gaussian, Bernoulli or Categorical

    Examples
    --------
    >>> model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> torch.allclose(fisher(model, x, Gaussian()), torch.tensor(2.5))
    True
    """
    total = torch.zeros(())
    for x_i in x.split(1):
        r = model(x_i)
        for label, probability in labels(likelihood, r[0].detach()):
            g = gradient(model, likelihood.nll(r, label.unsqueeze(0)).sum())
            total = total + probability * torch.outer(g, g)
    return total / len(x)


def empirical_fisher(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor, likelihood: Likelihood
) -> torch.Tensor:
    """Return U: the mean of g gᵀ over the examples; (P, P).

    Parameters
    ----------
    model, x, t, likelihood
        As for :func:`natcompanion.metrics.gauss_newton`.

    Examples
    --------
    >>> model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> t = model(x).detach() + torch.tensor([[1.0], [2.0]])
    >>> torch.allclose(empirical_fisher(model, x, t, Gaussian()), torch.tensor(8.5))  # (1 + 16) / 2
    True
    """
    g = gradients(model, x, t, likelihood)
    return torch.stack([torch.outer(g_i, g_i) for g_i in g]).mean(0)


def gradient_covariance(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor, likelihood: Likelihood
) -> torch.Tensor:
    """Return C: the mean of (g - mean g)(g - mean g)ᵀ over the examples; (P, P).

    Parameters
    ----------
    model, x, t, likelihood
        As for :func:`natcompanion.metrics.gauss_newton`.

    Examples
    --------
    >>> model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> t = model(x).detach() + torch.tensor([[1.0], [2.0]])
    >>> torch.allclose(gradient_covariance(model, x, t, Gaussian()), torch.tensor(2.25))
    True
    """
    g = gradients(model, x, t, likelihood)
    return torch.stack([torch.outer(g_i - g.mean(0), g_i - g.mean(0)) for g_i in g]).mean(0)


def outputs(model: nn.Module, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return ``model(x)`` with the trainable parameters replaced by the vector ``theta`` (P,).

    Parameters
    ----------
    model : Module
        From (n, ...) to (n, o).
    theta : Tensor, shape (P,)
    x : Tensor, shape (n, ...)

    Examples
    --------
    >>> model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> outputs(model, torch.tensor([3.0]), x)
    tensor([[3.],
            [6.]])
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    pieces = theta.split([p.numel() for p in parameters])
    new = {id(p): piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)}
    with substituted(find_slots(dict(model.named_modules())), new):
        return model(x)


def parameter_vector(model: nn.Module) -> torch.Tensor:
    """Return the trainable parameters as one vector (P,).

    Parameters
    ----------
    model : Module
        From (n, ...) to (n, o).

    Examples
    --------
    >>> parameter_vector(nn.Linear(3, 2)).shape
    torch.Size([8])
    """
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


def kl(
    model: nn.Module, x: torch.Tensor, likelihood: Likelihood, delta: torch.Tensor
) -> torch.Tensor:
    """Return the mean over ``x`` of KL(p_θ || p_(θ+δ)), summed over all labels (for a Gaussian, by
    quadrature).

    The oracle of every Fisher matrix: it is ½ δᵀ F δ up to the third order in ``delta`` (P,).

    Parameters
    ----------
    model, x, likelihood
        As for :func:`natcompanion.reference.fisher`.
    delta : Tensor, shape (P,)

    Examples
    --------
    >>> model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> torch.allclose(kl(model, x, Gaussian(), torch.tensor([0.1])), torch.tensor(0.01 * 2.5 / 2))
    True
    """
    theta = parameter_vector(model)
    total = torch.zeros((), dtype=theta.dtype)
    for x_i in x.split(1):
        r, s = outputs(model, theta, x_i), outputs(model, theta + delta, x_i)
        for label, probability in labels(likelihood, r[0].detach()):
            t = label.unsqueeze(0)
            total = total + probability * (likelihood.nll(s, t) - likelihood.nll(r, t)).sum()
    return total / len(x)


def kl_hessian(model: nn.Module, x: torch.Tensor, likelihood: Likelihood) -> torch.Tensor:
    """Return the Hessian of ``kl`` at δ = 0 by differentiating twice; (P, P). Source: revisiting
    Eq. 3.

    Parameters
    ----------
    model, x, likelihood
        As for :func:`natcompanion.reference.fisher`.

    Examples
    --------
    >>> model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> torch.allclose(kl_hessian(model, x, Gaussian()), torch.tensor(2.5))
    True
    """
    zero = torch.zeros_like(parameter_vector(model))
    return torch.autograd.functional.hessian(lambda delta: kl(model, x, likelihood, delta), zero)


def loss_hessian(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor, likelihood: Likelihood
) -> torch.Tensor:
    """Return the Hessian of the mean negative log-likelihood by differentiating twice; (P, P).

    Source: revisiting Section 4.2.

    Parameters
    ----------
    model, x, t, likelihood
        As for :func:`natcompanion.metrics.gauss_newton`.

    Examples
    --------
    >>> model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> t = model(x).detach() + torch.tensor([[1.0], [2.0]])
    >>> loss_hessian(model, x, t, Gaussian())
    tensor([[2.5000]])
    """
    return torch.autograd.functional.hessian(
        lambda theta: likelihood.nll(outputs(model, theta, x), t).mean(), parameter_vector(model)
    )


def jacobian(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the Jacobian of each output by the parameters, one entry after the other; (n, o,
    P).

    Parameters
    ----------
    model : Module
        From (n, ...) to (n, o).
    x : Tensor, shape (n, ...)

    Examples
    --------
    >>> model, x = nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]])
    >>> jacobian(model, x)
    tensor([[[1.]],
            [[2.]]])
    """
    return torch.stack(
        [torch.stack([gradient(model, r_k) for r_k in model(x_i)[0]]) for x_i in x.split(1)]
    )
