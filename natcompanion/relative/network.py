r"""The relative metrics of all layers of a network, beside the diagonal blocks of its Fisher
matrix.
"""

from typing import Any

import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from natcompanion.relative.activations import Options
from natcompanion.relative.subsystems import layer_rfim, softmax_rfim

Layer = tuple[nn.Linear, nn.Module | None]


def activation_of(module: nn.Module | None) -> tuple[str, Options]:
    """Return the name and the options (see :func:`nu`) of a torch activation; no module is
    "linear".

    Parameters
    ----------
    module : Module or None

    Raises
    ------
    ValueError
        If it is not one of Tanh, Sigmoid, ReLU, LeakyReLU, ELU and Identity.

    Examples
    --------
    >>> activation_of(nn.LeakyReLU(0.5)), activation_of(None)
    (('relu', {'iota': 0.5}), ('linear', {}))
    """
    match module:
        case None | nn.Identity():
            return "linear", {}
        case nn.Tanh():
            return "tanh", {}
        case nn.Sigmoid():
            return "sigmoid", {}
        case nn.ReLU():
            return "relu", {}
        case nn.LeakyReLU(negative_slope=iota):
            return "relu", {"iota": iota}
        case nn.ELU(alpha=alpha):
            return "elu", {"alpha": alpha}
    raise ValueError(
        "activation: expected Tanh, Sigmoid, ReLU, LeakyReLU, ELU or Identity, got "
        f"{type(module).__name__}"
    )


def network_rfim(
    model: nn.Sequential, x: torch.Tensor, likelihood: Likelihood
) -> list[torch.Tensor]:
    r"""Return the relative metric of each linear layer of a network, given the inputs it gets from
    the layers before.

    The last layer has no activation; its response is the target, whose distribution the likelihood
    says. All others answer as their activation does, with ``sigma=1``. No metric depends on the
    layers after its own.

    Parameters
    ----------
    model : Sequential
        Linear layers with bias, each but the last followed by an activation that
        :func:`activation_of` knows.
    x : Tensor, shape (n, D)
    likelihood : Gaussian, Bernoulli or Categorical

    Returns
    -------
    list of Tensor, each of shape (m (D + 1), m (D + 1))
        Ordered neuron by neuron, weights and then bias; compare them with :func:`fisher_blocks`.

    Raises
    ------
    ValueError
        If the network or the likelihood is another.

    Notes
    -----
    Source: rfim Eq. 9, 23, 25 and Section 4.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(1, 1))
    >>> network_rfim(model, torch.tensor([[1.0], [2.0]]), Gaussian())
    [tensor([[2.5000, 1.5000],
            [1.5000, 1.0000]])]
    """
    *hidden, (last, activation) = _layers(model)
    if activation is not None:
        raise ValueError(
            f"model: expected a linear layer at the end, got {type(activation).__name__}"
        )
    metrics, h = [], check.matrix(x, "x")
    with torch.no_grad():
        for linear, module in hidden:
            name: Any
            name, options = activation_of(module)
            metrics.append(torch.block_diag(*layer_rfim(_weights(linear), h, name, **options)))
            h = module(linear(h)) if module is not None else linear(h)
        return [*metrics, _last_rfim(_weights(last), h, likelihood)]


def fisher_blocks(G: torch.Tensor, model: nn.Sequential) -> list[torch.Tensor]:
    """Return the diagonal block of each linear layer of a matrix (P, P), neuron by neuron as in
    :func:`network_rfim`.

    Parameters
    ----------
    G : Tensor, shape (P, P)
    model : Sequential

    Raises
    ------
    ValueError
        If ``G`` is not a square matrix of the number of parameters of the model.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))
    >>> [block.shape for block in fisher_blocks(torch.eye(4), model)]
    [torch.Size([2, 2]), torch.Size([2, 2])]
    """
    layers = [linear for linear, _ in _layers(model)]
    sizes = [linear.weight.numel() + linear.out_features for linear in layers]
    if len(check.square(G, "G")) != sum(sizes):
        raise ValueError(
            f"G: expected {sum(sizes)} rows, one a parameter of the model, got {len(G)}"
        )
    starts = torch.tensor([0, *sizes]).cumsum(0)
    orders = [starts[k] + neuron_order(layer) for k, layer in enumerate(layers)]
    return [G[order][:, order] for order in orders]


def neuron_order(linear: nn.Linear) -> torch.Tensor:
    """Return where the parameters of a linear layer, neuron by neuron with the bias last, are in
    (weight, bias).

    Parameters
    ----------
    linear : Linear

    Examples
    --------
    >>> neuron_order(nn.Linear(2, 2))  # the rows of the weight are 0, 1 and 2, 3; the bias is 4, 5
    tensor([0, 1, 4, 2, 3, 5])
    """
    if not isinstance(linear, nn.Linear):
        raise ValueError(f"linear: expected a torch.nn.Linear, got {check.got(linear)}")
    m, D = linear.weight.shape
    weights, bias = torch.arange(m * D).view(m, D), torch.arange(m * D, m * (D + 1)).view(m, 1)
    return torch.cat([weights, bias], 1).reshape(-1)


def rank(G: torch.Tensor, rtol: float = 1e-10) -> int:
    """Return the number of eigenvalues of a symmetric matrix, in float64, above ``rtol`` times the
    largest.

    Parameters
    ----------
    G : Tensor, shape (P, P)
    rtol : float

    Raises
    ------
    ValueError
        If ``G`` is not a finite symmetric matrix or has a truly negative eigenvalue.

    Examples
    --------
    >>> rank(torch.ones(3, 3))
    1
    """
    values, _ = check.semidefinite_eigh(check.symmetric(G, "G").detach().double(), "G", G.dtype)
    return int((values > check.non_negative(rtol, "rtol") * values[-1]).sum())


def _last_rfim(W: torch.Tensor, h: torch.Tensor, likelihood: Likelihood) -> torch.Tensor:
    match likelihood:
        case Categorical():
            return softmax_rfim(W, h)
        case Bernoulli():
            return torch.block_diag(*layer_rfim(W, h, "sigmoid"))
        case Gaussian(beta):
            return torch.block_diag(*layer_rfim(W, h, "linear", sigma=beta))
    raise ValueError(f"likelihood: expected Gaussian, Bernoulli or Categorical, got {likelihood!r}")


def _layers(model: nn.Sequential) -> list[Layer]:
    """Return the linear layers, each with the activation after it, or None."""
    if not isinstance(model, nn.Sequential):
        raise ValueError(f"model: expected a Sequential, got {type(model).__name__}")
    layers: list[Layer] = []
    for module in model:
        if isinstance(module, nn.Linear) and module.bias is not None:
            layers.append((module, None))
        elif layers and layers[-1][1] is None and not isinstance(module, nn.Linear):
            activation_of(module)
            layers[-1] = (layers[-1][0], module)
        else:
            raise ValueError(
                "model: expected linear layers with bias, each with at most one "
                f"activation, got {module}"
            )
    if not layers:
        raise ValueError("model: expected at least one linear layer, got none")
    return layers


def _weights(linear: nn.Linear) -> torch.Tensor:
    return torch.cat([linear.weight, linear.bias[:, None]], 1)
