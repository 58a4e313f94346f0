r"""One step of relative natural gradient descent on a logistic neuron, and how the paper sums up a
learning curve.
"""

import torch

from natcompanion import _checks as check
from natcompanion.relative.subsystems import _inputs, neuron_rfim
from natcompanion.solvers import damped_solve


def relative_damping(G: torch.Tensor, eps: float = 1e-2) -> float:
    r"""Return :math:`\epsilon \operatorname{tr}(G) / D`: ``eps`` times the mean eigenvalue of ``G``
    (D, D).

    Source: rfim Section 5.1, after Eq. 30.

    Parameters
    ----------
    G : Tensor, shape (D, D)
    eps : float

    Examples
    --------
    >>> relative_damping(torch.diag(torch.tensor([1.0, 3.0])), eps=0.5)
    1.0
    """
    return check.non_negative(eps, "eps") * float(check.square(G, "G").detach().diagonal().mean())


def neuron_step(
    w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *, lr: float = 1.0, eps: float = 1e-2
) -> torch.Tensor:
    r"""Return the weights of a logistic neuron after one step of relative natural gradient descent.

    .. math:: w \leftarrow w - \mathrm{lr}\, (G + \lambda I)^{-1} \overline{(s(w^\top \tilde x)
              - y)\, \tilde x},
              \qquad \lambda = \epsilon \operatorname{tr}(G) / (D + 1)

    with :math:`G` the neuron's metric (:func:`neuron_rfim`) and :math:`s` the logistic sigmoid. In
    a whitened input (:class:`natcompanion.whitening.Whitener`) the same step is the paper's
    WhiteNGD.

    Parameters
    ----------
    w : Tensor, shape (D + 1,)
        The bias comes last.
    x : Tensor, shape (n, D)
    y : Tensor, shape (n,)
        Labels 0 or 1.
    lr, eps : float

    Returns
    -------
    Tensor, shape (D + 1,)

    Raises
    ------
    ValueError
        If shapes do not agree, a number is out of its range, or the metric vanishes (all examples
        are far from the boundary).

    Notes
    -----
    Source: rfim Eq. 28 to 30.

    Examples
    --------
    >>> w, x, y = torch.zeros(2), torch.tensor([[-1.0], [1.0]]), torch.tensor([0.0, 1.0])
    >>> step = neuron_step(w, x, y, eps=1.0)  # the metric is I / 4, and so is the damping
    >>> torch.allclose(step, torch.tensor([1.0, 0.0]))
    True
    """
    if check.floating(w, "w").ndim != 1:
        raise ValueError(
            f"w: expected the weights of one neuron, shape (D + 1,), got {tuple(w.shape)}"
        )
    W, rows, dtype = _inputs(w.detach()[None], x)
    if not isinstance(y, torch.Tensor) or y.shape != (len(rows),):
        got = f"shape {tuple(y.shape)}" if isinstance(y, torch.Tensor) else type(y).__name__
        raise ValueError(
            f"y: expected one label an example, a tensor of shape {(len(rows),)}, got {got}"
        )
    if not bool(((y >= 0) & (y <= 1)).all()):
        raise ValueError("y: expected labels 0 or 1, got others")
    G = neuron_rfim(W[0], rows[:, :-1], "sigmoid")
    gradient = (torch.sigmoid(rows @ W[0]) - y.to(rows)) @ rows / len(rows)
    step = damped_solve(G, gradient, relative_damping(G, eps))
    return (W[0] - check.non_negative(lr, "lr") * step).to(dtype)


def sharp_ratio(costs: torch.Tensor, tau: float) -> tuple[float, float]:
    r"""Return the mean and the standard deviation of the last :math:`\tau M` of the M mini-batch
    costs of a training.

    The divisor of the variance is the number of costs. The paper speaks of a "ratio" but gives
    these two numbers.

    Parameters
    ----------
    costs : Tensor, shape (M,)
    tau : float
        In (0, 1].

    Raises
    ------
    ValueError
        If ``costs`` is not a vector of finite numbers, or ``tau`` is not in (0, 1].

    Notes
    -----
    Source: rfim Section 5.2, the table beside Figure 5.

    Examples
    --------
    >>> sharp_ratio(torch.tensor([9.0, 9.0, 1.0, 3.0]), tau=0.5)
    (2.0, 1.0)
    """
    if check.floating(costs, "costs").ndim != 1:
        raise ValueError(f"costs: expected one number an iteration, got shape {tuple(costs.shape)}")
    if check.positive(tau, "tau") > 1:
        raise ValueError(f"tau: expected a share in (0, 1], got {tau!r}")
    last = costs.detach().double()[-max(1, round(tau * len(costs))) :]
    return float(last.mean()), float(last.std(correction=0))
