"""Learning to whiten one batch at a time: EASI and its kin."""

from collections.abc import Callable

import torch

from natcompanion import _checks

Nonlinearity = Callable[[torch.Tensor], torch.Tensor]

_RUNAWAY = 1e12


class Divergence(ArithmeticError):
    """Numbers ran away: the message names the quantity, its size and what to change.

    Examples
    --------
    >>> easi = EASI(1, rate=1.0, normalized=False)
    >>> easi.update(torch.full((3, 1), 1e200, dtype=torch.float64))
    Traceback (most recent call last):
    natcompanion.whitening.adaptive.Divergence: ...
    """


def relative_gradient(
    y: torch.Tensor,
    rate: float,
    nonlinearity: Nonlinearity | None = None,
    *,
    normalized: bool = True,
) -> torch.Tensor:
    r"""Return the mean relative gradient of the serial update, (d, d).

    .. math:: H = \frac{y y^T - I}{1 + \lambda\, y^T y} + \frac{g(y) y^T - y g(y)^T}{1 +
              \lambda\, |y^T g(y)|}

    The first, symmetric part whitens; the second, skew part rotates towards independence.

    Parameters
    ----------
    y
        Outputs (n, d).
    rate
        The step size lambda in the denominators.
    nonlinearity
        g, elementwise; without it the skew part is left out.
    normalized
        With False both denominators are 1.

    Notes
    -----
    Source: boltzmann Sec. 4 (Cardoso and Laheld 1996; no rule is printed in the paper).

    Examples
    --------
    >>> relative_gradient(torch.tensor([[2.0], [-2.0]]), rate=0.5, normalized=False)
    tensor([[3.]])
    """
    n, d = y.shape
    size = 1 + rate * (y * y).sum(1) if normalized else torch.ones_like(y[:, 0])
    eye = torch.eye(d, dtype=y.dtype, device=y.device)
    H = (y / size[:, None]).mT @ y / n - (1 / size).mean() * eye
    if nonlinearity is None:
        return H
    g = nonlinearity(y)
    size = 1 + rate * (y * g).sum(1).abs() if normalized else torch.ones_like(y[:, 0])
    skew = (g / size[:, None]).mT @ y / n
    return H + skew - skew.mT


class EASI:
    r"""Equivariant adaptive whitening and separation: B <- B - lambda H B for y = B x.

    Seen in y, the path does not depend on how the signals were mixed (equivariance), as long as
    ``eps`` is 0.

    Parameters
    ----------
    dim
        Number of signals d.
    rate
        lambda.
    nonlinearity
        g of the skew part, such as ``torch.tanh``; None whitens only. The sign of g decides which
        sources separate.
    normalized
        Divide by the sizes of y: bounded steps for any input. The plain form (False) diverges for
        ``rate * y.y > 2``, and is exact on average where the normalized one is biased by its
        weights.
    eps
        Ridge: adds ``eps B B^T`` to the outer product, which keeps signals that never change
        finite.
    start
        First B (d, d), which is copied; by default the identity.
    dtype
        Of B.

    Attributes
    ----------
    B
        The whitening matrix, (d, d), with ``B C B^T`` near the identity: determined up to a
        rotation.

    Notes
    -----
    The inputs must have mean zero. Source: boltzmann Sec. 4 (Cardoso and Laheld 1996).

    Examples
    --------
    >>> easi = EASI(1, rate=0.5, normalized=False)
    >>> _ = easi.update(torch.tensor([[2.0], [-2.0]], dtype=torch.float64))
    >>> easi.B  # 1 - 0.5 (4 - 1)
    tensor([[-0.5000]], dtype=torch.float64)
    """

    def __init__(
        self,
        dim: int,
        rate: float = 0.01,
        nonlinearity: Nonlinearity | None = None,
        *,
        normalized: bool = True,
        eps: float = 0.0,
        start: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ):
        self.rate, self.eps = _checks.positive(rate, "rate"), _checks.non_negative(eps, "eps")
        self.nonlinearity, self.normalized = nonlinearity, normalized
        start = (
            torch.eye(_checks.whole(dim, "dim"), device="cpu")
            if start is None
            else _checks.square(start, "start")
        )
        self.B = start.detach().to(dtype, copy=True)
        if len(self.B) != dim:
            raise ValueError(f"start: expected shape ({dim}, {dim}), got {tuple(self.B.shape)}")

    def transform(self, x: torch.Tensor) -> torch.Tensor:
        """Return y = B x of each row of ``x`` (n, d)."""
        _checks.matrix(x, "x")
        if x.shape[1] != len(self.B):
            raise ValueError(f"x: expected (n, {len(self.B)}), got shape {tuple(x.shape)}")
        self.B = self.B.to(x.device)
        return x.to(self.B.dtype) @ self.B.mT

    @torch.no_grad()  # a graph kept in B would grow with every batch
    def update(self, batch: torch.Tensor) -> torch.Tensor:
        """Do one step with the mean relative gradient of the rows of ``batch`` (n, d) and return y
        (n, d).

        Raises
        ------
        Divergence
            If B would run away; B is left as it was.
        """
        y = self.transform(batch)
        H = relative_gradient(y, self.rate, self.nonlinearity, normalized=self.normalized)
        if self.eps:
            ridge = self.eps * self.B @ self.B.mT
            H = H + (
                ridge / (1 + self.rate * float(ridge.diagonal().sum()))
                if self.normalized
                else ridge
            )
        B = self.B - self.rate * H @ self.B
        largest = float(B.abs().max())
        if not largest < _RUNAWAY:
            raise Divergence(
                f"EASI has diverged: the largest entry of B would be {largest:.3g} at rate "
                f"{self.rate:.3g} "
                f"(largest y.y of the batch {float((y * y).sum(1).max()):.3g}); lower the "
                "rate, use normalized=True, "
                "or set eps > 0 if a signal never changes"
            )
        self.B = B
        return y


def potter_update(S: torch.Tensor, x: torch.Tensor, rho: float) -> torch.Tensor:
    r"""Return the root S' of the inverse covariance after one sample: if S S^T = C^-1 then S' S'^T
    = C'^-1.

    .. math:: C' = \rho\, C + (1 - \rho)\, x x^T

    Parameters
    ----------
    S
        (d, d)
    x
        (d,)
    rho
        Between 0 and 1.

    Notes
    -----
    Source: boltzmann references (Potter 1963, listed and not cited in the text).

    Examples
    --------
    >>> S = potter_update(torch.eye(1), torch.tensor([2.0]), rho=0.5)
    >>> S @ S.mT  # the inverse of 0.5 + 0.5 * 4
    tensor([[0.4000]])
    """
    _forgetting(rho)
    _checks.shaped(_checks.floating(x, "x"), "x", len(_checks.square(S, "S")))
    phi, ratio = S.mT @ x, rho / (1 - rho)
    alpha = 1 / (ratio + phi @ phi)
    gamma = 1 / (1 + (alpha * ratio).sqrt())
    return (S - alpha * gamma * torch.outer(S @ phi, phi)) / rho**0.5


def sherman_morrison_update(P: torch.Tensor, x: torch.Tensor, rho: float) -> torch.Tensor:
    """Return the inverse of rho C + (1 - rho) x x^T from P = C^-1, (d, d), in d^2 operations.

    Parameters
    ----------
    P : Tensor, shape (d, d)
    x : Tensor, shape (d,)
    rho : float
        Between 0 and 1.

    Examples
    --------
    >>> sherman_morrison_update(torch.eye(1), torch.tensor([2.0]), rho=0.5)
    tensor([[0.4000]])
    """
    _forgetting(rho)
    _checks.shaped(_checks.floating(x, "x"), "x", len(_checks.square(P, "P")))
    Px = P @ x
    return (P - torch.outer(Px, Px) / (rho / (1 - rho) + x @ Px)) / rho


def _forgetting(rho: float) -> None:
    if not 0 < _checks.non_negative(rho, "rho") < 1:
        raise ValueError(f"rho: expected a number strictly between 0 and 1, got {rho!r}")
