"""The covariance penalty for the hidden layers of feed-forward and convolutional networks."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from natcompanion import _checks as check


def covariance_norm(
    x: torch.Tensor, y: torch.Tensor | None = None, *, weights: torch.Tensor | None = None
) -> torch.Tensor:
    r"""Return :math:`\|\mathrm{cov}(x, y)\|_F^2` over a batch, a scalar; differentiable.

    Parameters
    ----------
    x : Tensor, shape (n, D)
    y : Tensor, shape (n, H), optional
        ``x`` if left out.
    weights : Tensor, shape (n,), optional
        Probabilities of the examples; 1/n if left out.

    Raises
    ------
    ValueError
        If these are no matrices of the same number of rows, or the weights do not sum to 1.

    Notes
    -----
    With fewer examples than units the matrix of units by units is never formed: with centred
    :math:`X, Y`, :math:`\|X^T Y\|^2 = \mathrm{tr}(X X^T Y Y^T)`. Without the variances of the units
    it is twice the penalty of Cogswell et al. (2016), "Reducing overfitting in deep networks by
    decorrelating representations". Source: boltzmann Sec. 4.1.

    Examples
    --------
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    >>> covariance_norm(x)  # four entries of 1/4
    tensor(0.2500)
    """
    y = x if y is None else y
    check.matrix(x, "x"), check.matrix(y, "y")
    n = len(x)
    if len(y) != n:
        raise ValueError(f"y: expected the {n} examples of x, got {len(y)}")
    p = x.new_full((n,), 1 / n) if weights is None else weights
    if p.shape != (n,) or bool((p < 0).any()) or abs(float(p.sum()) - 1) > 1e-4:
        raise ValueError(f"weights: expected {n} probabilities, got shape {tuple(p.shape)}")
    X, Y = (p.sqrt()[:, None] * (z - p @ z) for z in (x, y))
    if n * n < x.shape[1] * y.shape[1]:
        return ((X @ X.mT) * (Y @ Y.mT)).sum()
    return (X.mT @ Y).square().sum()


def hidden_covariance_penalty(
    model: nn.Module,
    x: Any,
    pairs: Iterable[tuple[str, str]],
    *,
    units: Literal["channels", "positions"] = "channels",
    weights: torch.Tensor | None = None,
) -> tuple[Any, torch.Tensor]:
    r"""Return the output of a network and the squared norms of covariances of its layers.

    .. math:: \sum_{(k, l)} \|\mathrm{cov}(h_k, h_l)\|_F^2

    Add it to a loss: ``(1 - gamma) * loss + gamma * penalty``.

    Parameters
    ----------
    model : Module
    x : Tensor, shape (n, ...)
        What the model takes: one pass is made.
    pairs : iterable of pairs of str
        Names of modules as in ``named_modules()``, whose outputs are :math:`h_k` and :math:`h_l`;
        ``"input"`` is ``x``. ``("input", "1")`` is the network's cov(v, h), ``("1", "1")`` its
        cov(h, h).
    units : "channels" or "positions"
        What a unit of a convolution's maps (n, c, ...) is: a channel, each position of which is one
        more example, or a channel at one position.
    weights : Tensor, shape (n,), optional
        Probabilities of the examples; 1/n if left out.

    Returns
    -------
    tuple
        The output of the model, and the penalty, a scalar.

    Raises
    ------
    ValueError
        If a name is not one of a module that gives one tensor, once in the pass; if layers of a
        pair have maps of different sizes, whose channels cannot be paired.

    Notes
    -----
    Where units are stochastic, as in a Boltzmann machine, covariances are those of their means,
    given the input. The two agree but for the variances of hidden units: with the sigmoid layer of
    a machine, and its distribution of v as weights, ``("input", "1")`` is ``CovariancePenalty()``
    to rounding. Source: boltzmann Sec. 4.1, which says that the technique "applies equally well to
    MLPs or ConvNets".

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2))
    >>> output, penalty = hidden_covariance_penalty(model, torch.eye(3), [("1", "1")])
    >>> penalty.backward()  # decorrelates the four hidden units
    >>> [p.grad is not None for p in model.parameters()]
    [True, True, False, False]
    """
    pairs = list(pairs)
    modules = dict(check.model(model).named_modules())
    wanted = {name for pair in pairs for name in pair} - {"input"}
    if not pairs or any(len(pair) != 2 for pair in pairs) or not wanted <= modules.keys():
        raise ValueError(
            f'pairs: expected pairs of "input" and names of modules, of {list(modules)[1:20]}; '
            f"got {pairs}"
        )
    if units not in ("channels", "positions"):
        raise ValueError(f'units: expected "channels" or "positions", got {units!r}')
    seen: dict[str, Any] = {"input": x}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if name in seen:
                raise ValueError(f"pairs: expected modules that run once, {name!r} runs again")
            seen[name] = output

        return hook

    handles = [modules[name].register_forward_hook(keep(name)) for name in sorted(wanted)]
    try:
        with check.told(lambda: f"{check.TAKES}, but model({check.shown(x)}) failed"):
            output = model(x)
    finally:
        for handle in handles:
            handle.remove()
    total: Any = 0.0
    for pair in pairs:
        (left, p), (right, _) = (_rows(seen.get(name), name, units, weights) for name in pair)
        if len(left) != len(right):
            raise ValueError(
                f"pairs: expected {pair} to have maps of one size, got "
                f'{[tuple(seen[name].shape) for name in pair]}; take units="positions"'
            )
        total = total + covariance_norm(left, right, weights=p)
    return output, total


def _rows(
    h: Any, name: str, units: str, weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return activations as examples by units, and the examples' weights."""
    if not isinstance(h, torch.Tensor) or h.ndim < 2:
        got = "nothing" if h is None else type(h).__name__
        raise ValueError(f"pairs: expected {name!r} to give a tensor (n, units, ...), got {got}")
    if units == "positions" or h.ndim == 2:
        return h.flatten(1), weights
    places = h[0, 0].numel()
    repeated = None if weights is None else weights.repeat_interleave(places) / places
    return h.flatten(2).transpose(1, 2).flatten(0, 1), repeated
