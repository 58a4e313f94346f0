r"""The relative Fisher metrics of a neuron, a layer, a softmax layer and two layers, averaged over
the examples.
"""

from typing import Any, Unpack

import torch

from natcompanion import _checks as check
from natcompanion._memory import affordable, refuse_larger
from natcompanion.relative.activations import (
    Activation,
    Options,
    _activate,
    _nu,
    _options,
    _slope,
    _wide,
)

FEWER = "fewer neurons or examples at a time"


def augment(x: torch.Tensor) -> torch.Tensor:
    r"""Return :math:`\tilde x = (x, 1)`: one more column, of ones; (..., D) to (..., D + 1).

    Parameters
    ----------
    x : Tensor, shape (..., D)

    Examples
    --------
    >>> augment(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4., 1.]])
    """
    if not isinstance(x, torch.Tensor) or not x.ndim:
        raise ValueError(f"x: expected a tensor of shape (..., D), got {check.shown(x)}")
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)


def neuron_rfim(
    w: torch.Tensor, x: torch.Tensor, activation: Activation, **options: Unpack[Options]
) -> torch.Tensor:
    r"""Return the metric of one neuron.

    .. math:: g^y(w) = \frac1n \sum_i \nu_f(w^\top \tilde x_i)\, \tilde x_i \tilde x_i^\top

    Parameters
    ----------
    w : Tensor, shape (D + 1,)
        The bias comes last.
    x : Tensor, shape (n, D) or (D,)
        Inputs without the constant 1.
    activation, **options
        As for :func:`nu`.

    Returns
    -------
    Tensor, shape (D + 1, D + 1)

    Raises
    ------
    ValueError
        If a tensor is empty, not finite or not floating-point, if the sizes do not agree, or as for
        :func:`nu`.

    Notes
    -----
    Source: rfim Eq. 21.

    Examples
    --------
    >>> neuron_rfim(torch.zeros(2), torch.tensor([[2.0]]), "sigmoid")
    tensor([[1.0000, 0.5000],
            [0.5000, 0.2500]])
    """
    if check.floating(w, "w").ndim != 1:
        raise ValueError(
            f"w: expected the weights of one neuron, shape (D + 1,), got {tuple(w.shape)}"
        )
    return layer_rfim(w[None], x, activation, **options)[0]


def layer_rfim(
    W: torch.Tensor, x: torch.Tensor, activation: Activation, **options: Unpack[Options]
) -> torch.Tensor:
    r"""Return the metric of a layer, which is block diagonal: one block a neuron, each as in
    :func:`neuron_rfim`.

    Parameters
    ----------
    W : Tensor, shape (m, D + 1)
        One row a neuron, the bias in the last column.
    x, activation, **options
        As for :func:`neuron_rfim`.

    Returns
    -------
    Tensor, shape (m, D + 1, D + 1)
        ``torch.block_diag(*blocks)`` is the whole matrix, in the order ``W.reshape(-1)``.

    Raises
    ------
    ValueError
        As for :func:`neuron_rfim`, and if the blocks would be larger than
        :func:`natcompanion.metrics.dense_limit` allows.

    Notes
    -----
    Memory: n m (D + 1) numbers besides the result. Source: rfim Eq. 22, 23 and 74.

    Examples
    --------
    >>> layer_rfim(torch.zeros(3, 2), torch.tensor([[2.0]]), "sigmoid").shape
    torch.Size([3, 2, 2])
    """
    name = _options(activation, **options)
    W_, rows, dtype = _inputs(W, x)
    numbers = W.numel() * max(len(rows), W.shape[1])
    refuse_larger(numbers, rows.dtype, f"layer_rfim: blocks of shape {_blocks(W)} need", FEWER)
    weights = _nu(name, rows @ W_.mT, **options)
    weighted = weights.unsqueeze(2) * rows.unsqueeze(1)  # (n, m, D + 1)
    return (weighted.flatten(1).mT @ rows / len(rows)).unflatten(0, W.shape).to(dtype)


def linear_rfim(x: torch.Tensor, *, sigma: float = 1.0) -> torch.Tensor:
    r"""Return the block that all neurons of a linear layer share, :math:`\overline{\tilde x \tilde
    x^\top} / \sigma^2`.

    ``x`` has shape (n, D) or (D,), the result (D + 1, D + 1). Source: rfim Eq. 22 and 70.

    Parameters
    ----------
    x : Tensor, shape (n, D) or (D,)
    sigma : float
        Standard deviation of the response.

    Examples
    --------
    >>> linear_rfim(torch.tensor([[1.0], [2.0]]))
    tensor([[2.5000, 1.5000],
            [1.5000, 1.0000]])
    """
    rows = augment(_examples(x))
    return (rows.mT @ rows / (len(rows) * check.positive(sigma, "sigma") ** 2)).to(x.dtype)


def principal_inputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Return inputs in the principal axes of their linear RFIM, and the axes.

    .. math:: z_i = Q^\top \tilde x_i, \qquad
              \overline{\tilde x \tilde x^\top} = Q\, \Lambda\, Q^\top

    On a copy ``z`` of inputs that never change, the metric of a linear first layer is the diagonal
    :math:`\Lambda`, also with a multiple of I added, so that its natural gradient costs nothing:
    ``RNGD(model, lr, blocks={"0": "diagonal"})``. That layer has no bias, and for the same outputs
    the weights ``W @ Q``, where ``W`` has the bias as its last column. Axes in which no input lies
    are left out: their weights would keep their first values for ever.

    Parameters
    ----------
    x : Tensor, shape (n, D)

    Returns
    -------
    z : Tensor, shape (n, r)
        In the dtype of ``x``; computed in float64; r is the rank of the inputs with a 1 last.
        ``augment(new) @ Q`` are other inputs.
    Q : Tensor, shape (D + 1, r)
        Orthonormal columns, in float64.

    Raises
    ------
    ValueError
        If ``x`` is no finite matrix with at least one row, or the matrix of its D + 1 columns is
        larger than :func:`natcompanion.metrics.dense_limit` allows.

    Notes
    -----
    Source: the metric is that of rfim Eq. 22; the coordinates are not in the paper.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]])
    >>> z, Q = principal_inputs(x)
    >>> G = z.mT @ z / 3
    >>> torch.allclose(G, G.diagonal().diag(), atol=1e-5)
    True
    """
    rows = augment(_examples(x)).double()
    affordable(
        rows.shape[1], rows.dtype, "principal_inputs", "fewer inputs, such as pixels pooled", "axes"
    )
    values, Q = torch.linalg.eigh(rows.mT @ rows / len(rows))
    Q = Q[:, values > len(values) * torch.finfo(Q.dtype).eps * values[-1]]
    return (rows @ Q).to(x.dtype), Q


def softmax_rfim(W: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    r"""Return the metric of a softmax layer, in which the neurons are correlated.

    .. math:: g^y(W) = \frac1n \sum_i \left(\operatorname{diag}(\eta_i) - \eta_i \eta_i^\top\right)
              \otimes \tilde x_i \tilde x_i^\top, \qquad \eta_i = \operatorname{softmax}(W \tilde
              x_i)

    It is singular for all data: the same change of all rows of ``W`` leaves :math:`\eta` as it is.
    Each example adds at most m - 1 to the rank.

    Parameters
    ----------
    W : Tensor, shape (m, D + 1)
    x : Tensor, shape (n, D) or (D,)

    Returns
    -------
    Tensor, shape (m (D + 1), m (D + 1))
        In the order ``W.reshape(-1)``.

    Raises
    ------
    ValueError
        As for :func:`neuron_rfim`.

    Notes
    -----
    Source: rfim Eq. 25 and 79.

    Examples
    --------
    >>> G = softmax_rfim(torch.zeros(2, 2), torch.ones(1, 1))
    >>> torch.allclose(G @ torch.ones(4), torch.zeros(4))  # the same change of all rows
    True
    """
    W_, rows, dtype = _inputs(W, x)
    affordable(W.numel(), rows.dtype, "softmax_rfim", FEWER)
    eta = torch.softmax(rows @ W_.mT, -1)
    off = 1 - torch.eye(len(W), dtype=eta.dtype, device=eta.device)
    others = eta @ off  # 1 - eta, without cancellation
    coefficients = torch.diag_embed(eta * others) - off * eta.unsqueeze(2) * eta.unsqueeze(1)
    return _kronecker_mean(coefficients, rows).to(dtype)


def two_layer_rfim(
    W: torch.Tensor,
    C: torch.Tensor,
    x: torch.Tensor,
    activation: Activation,
    **options: Unpack[Options],
) -> torch.Tensor:
    r"""Return the metric of the first of two layers, with the response taken after the second.

    .. math::
        g^y(W \mid C) = \frac1n \sum_x F C^\top N C F \otimes \tilde x \tilde x^\top

        F = \operatorname{diag} f'(W \tilde x), \quad N = \operatorname{diag} \nu_f(C h), \quad
        h = f(W \tilde x)

    The paper prints :math:`\nu_f(W \tilde x)` in the place of :math:`f'(W \tilde x)`. The two are
    equal for tanh, sigmoid, and the hard ReLU with ``sigma=1``, and for no other.

    Parameters
    ----------
    W : Tensor, shape (m, D + 1)
        First layer, the bias in the last column.
    C : Tensor, shape (o, m)
        Second layer, one row an output, without bias.
    x : Tensor, shape (n, D) or (D,)
    activation, **options
        Of both layers, as for :func:`nu`.

    Returns
    -------
    Tensor, shape (m (D + 1), m (D + 1))
        In the order ``W.reshape(-1)``.

    Raises
    ------
    ValueError
        As for :func:`neuron_rfim`, or if ``C`` does not have m columns.

    Notes
    -----
    Source: rfim Eq. 26, 80 and 81, corrected.

    Examples
    --------
    >>> two_layer_rfim(torch.zeros(1, 2), torch.tensor([[3.0]]), torch.tensor([[1.0]]), "linear")
    tensor([[9., 9.],
            [9., 9.]])
    """
    name = _options(activation, **options)
    W_, rows, dtype = _inputs(W, x)
    if check.matrix(C, "C").shape[1] != len(W):
        raise ValueError(
            f"C: expected {len(W)} columns, one for each row of W, got shape {tuple(C.shape)}"
        )
    affordable(W.numel(), rows.dtype, "two_layer_rfim", FEWER)
    shape: dict[str, Any] = {key: value for key, value in options.items() if key != "sigma"}
    a = rows @ W_.mT
    weights = _nu(name, _activate(name, a, **shape) @ _wide(C).mT, **options)  # (n, o)
    through = _wide(C) * _slope(name, a, **shape).unsqueeze(1)  # C F: (n, o, m)
    return _kronecker_mean(through.mT @ (weights.unsqueeze(2) * through), rows).to(dtype)


def _blocks(W: torch.Tensor) -> tuple[int, int, int]:
    return len(W), W.shape[1], W.shape[1]


def _kronecker_mean(coefficients: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the mean over n of ``kron(coefficients[i], outer(rows[i], rows[i]))`` from (n, m, m)
    and (n, d).
    """
    strips = [
        rows.mT @ (c.unsqueeze(2) * rows.unsqueeze(1)).flatten(1) for c in coefficients.unbind(1)
    ]  # each (d, m d)
    return torch.cat(strips) / len(rows)


def _inputs(W: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.dtype]:
    """Return ``W`` and the augmented examples, at float32 or better, and the dtype of the
    result.
    """
    check.matrix(W, "W")
    rows = augment(_examples(x))
    if W.shape[1] != rows.shape[1]:
        raise ValueError(
            f"x: expected {W.shape[1] - 1} columns, one fewer than the weights of a neuron "
            "(the last is the bias), "
            f"got shape {tuple(x.shape)}"
        )
    if W.dtype != x.dtype:
        raise ValueError(
            f"x: expected the dtype of the weights, {W.dtype}, got {x.dtype}; convert one of them"
        )
    return _wide(W), rows, x.dtype


def _examples(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` as a finite matrix (n, D) at float32 or better."""
    if isinstance(x, torch.Tensor) and x.ndim == 1:
        x = x[None]
    return _wide(check.matrix(x, "x"))
