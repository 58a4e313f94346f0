"""Sums over all states of one layer of binary units, in chunks, in double precision."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from natcompanion import _checks
from natcompanion._memory import refuse_larger

ENUMERATION_LIMIT = 20
"""Largest number of units whose states are summed without being asked twice."""

_CHUNK_NUMBERS = 2**19
_STATES_TIMES_UNITS_PER_SECOND = 1e8


def softplus(x: torch.Tensor) -> torch.Tensor:
    r"""Return :math:`\log(1 + e^x)` to full double precision (torch's default cuts off at x =
    20).
    """
    return F.softplus(x, threshold=50.0)


def states(
    units: int, start: int = 0, stop: int | None = None, *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return the binary states number ``start`` to ``stop - 1`` of ``units`` units.

    Parameters
    ----------
    units
        Number of units.
    start, stop
        Range of state numbers; by default all ``2**units``.
    device
        Where to put them.

    Returns
    -------
    torch.Tensor
        (stop - start, units), double precision. Counting in base 2, the first unit is the most
        significant digit.

    Examples
    --------
    >>> states(2)
    tensor([[0., 0.],
            [0., 1.],
            [1., 0.],
            [1., 1.]], dtype=torch.float64)
    """
    stop = 2 ** _checks.whole(units, "units", 0) if stop is None else stop
    refuse_larger((stop - start) * units, torch.float64, "states: they need", "start and stop")
    number = torch.arange(start, stop, device=device)
    return (number[:, None] >> torch.arange(units - 1, -1, -1, device=device) & 1).double()


def check_enumerable(units: int, others: int, limit: int = ENUMERATION_LIMIT) -> None:
    """Raise ValueError with an estimate of time and memory if ``2**units`` states are too many.

    Parameters
    ----------
    units
        Units of the smaller layer, which is enumerated.
    others
        Units of the other layer.
    limit
        Largest number of units allowed.

    Raises
    ------
    ValueError
        If ``units > limit``.
    """
    if units > limit:
        seconds = 2.0**units * others / _STATES_TIMES_UNITS_PER_SECOND
        raise ValueError(
            f"enumeration: expected at most {limit} units in the smaller layer, got "
            f"{units}: 2**{units} states of "
            f"{others} units would take about {seconds:.2g} seconds and "
            f"{8 * 2.0**units / 2**30:.2g} GiB; "
            "use fewer units, sampling (cd_gradient, SampledFisherOperator), or pass "
            "limit= if you mean it"
        )


def chunks(units: int, others: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of state numbers whose (states, others) arrays fit in the cache."""
    size = max(1, _CHUNK_NUMBERS // max(others, 1))
    for start in range(0, 2**units, size):
        yield start, min(start + size, 2**units)


def hidden_log_weights(W: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    r"""Return the unnormalized :math:`\log p^*(h)` of every hidden state.

    .. math:: \log p^*(h) = b^T h + \sum_i \log\left(1 + e^{a_i + W_i h}\right)

    Parameters
    ----------
    W, a, b
        Double precision, (D, H), (D,), (H,).

    Returns
    -------
    torch.Tensor
        (2**H,)

    Notes
    -----
    Source: boltzmann Sec. 3 (the sum over hidden states).
    """
    D, H = W.shape
    out = W.new_empty(
        2**H
    )  # filled in place: a list of small pieces would keep the memory of every chunk from reuse
    for start, stop in chunks(H, D):
        h = states(H, start, stop, device=W.device)
        out[start:stop] = h @ b + softplus(torch.addmm(a, h, W.mT)).sum(1)
    return out


def weighted_states(
    W: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    r"""Yield ``(p, h, m)`` in chunks: the probability of a hidden state, the state, and E[v|h].

    Parameters
    ----------
    W, a, b
        Double precision, (D, H), (D,), (H,).

    Yields
    ------
    tuple
        ``p`` (n,), ``h`` (n, H) and ``m`` (n, D); the ``p`` of all chunks sum to 1.
    """
    D, H = W.shape
    probability = torch.softmax(hidden_log_weights(W, a, b), 0)
    for start, stop in chunks(H, D):
        h = states(H, start, stop, device=W.device)
        yield probability[start:stop], h, torch.sigmoid(torch.addmm(a, h, W.mT))
