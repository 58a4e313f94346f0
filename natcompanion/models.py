r"""Probabilistic models small enough that everything about them is exact."""

import math
from typing import Literal

import torch

from natcompanion import _checks as check


class LinearGaussian:
    r"""A Gaussian whose mean is linear in the parameters.

    .. math:: q(x; \theta) = \mathcal N(x;\, M \theta,\, I)

    The data distribution enters through its mean alone: wherever a method takes ``mean``, the data
    are
    :math:`\mathcal N(\mathrm{mean}, I)`. All methods accept parameters with leading batch
    dimensions (..., P).

    Parameters
    ----------
    M : Tensor, shape (d, P)
        Eq. 1 has ``M = [[3, 1/3], [1/3, 0]]``.

    Raises
    ------
    ValueError
        If ``M`` is not a finite floating-point matrix.

    Notes
    -----
    Source: whitening Eqs. 1-4 and Section 1.2.
    """

    def __init__(self, M: torch.Tensor) -> None:
        self.M = check.matrix(M, "M")

    def log_prob(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return log q(x; theta) for ``x`` of shape (..., d) (whitening Eq. 1).

        It works under ``torch.func.vmap`` and so does not look at the values of ``x``: NaN in, NaN
        out.
        """
        gap = _width(x, "x", len(self.M)) - self._mean(theta)
        return -0.5 * gap.square().sum(-1) - 0.5 * gap.shape[-1] * math.log(2 * math.pi)

    def nll(self, theta: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        """Return J, the expected negative log likelihood of the data, in nats (whitening Eq. 2)."""
        dim = len(self.M)
        return self.kl(theta, mean) + 0.5 * dim * (1 + math.log(2 * math.pi))

    def gradient(self, theta: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        """Return the gradient of :meth:`nll`, which a descent step subtracts (whitening Eqs.
        3-4).
        """
        return (self._mean(theta) - self._data(mean, "mean")) @ self.M

    def kl(self, theta: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        """Return KL(data || q), in nats."""
        return 0.5 * (self._data(mean, "mean") - self._mean(theta)).square().sum(-1)

    def fisher(self) -> torch.Tensor:
        r"""Return the Fisher information :math:`M^\top M`, the same at every theta (whitening Eq.
        30).
        """
        return self.M.mT @ self.M

    def data_fisher(self, theta: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        r"""Return :math:`M^\top M + \nabla J \nabla J^\top`, the average over the data (whitening
        Eq. 31).
        """
        gradient = self.gradient(theta, mean)
        return self.fisher() + gradient[..., :, None] * gradient[..., None, :]

    def path(
        self,
        theta: torch.Tensor,
        mean: torch.Tensor,
        *,
        lr: float,
        steps: int,
        inverse_metric: torch.Tensor | None = None,
    ) -> torch.Tensor:
        r"""Descend: :math:`\theta_{t+1} = \theta_t - \mathrm{lr}\, G^{-1} \nabla J`.

        Parameters
        ----------
        theta : Tensor, shape (..., P)
            The start.
        mean : Tensor, shape (d,)
        lr : float
        steps : int
        inverse_metric : Tensor, shape (P, P), optional
            :math:`G^{-1}`, or any replacement of it; the identity (steepest descent) when left out.

        Returns
        -------
        Tensor, shape (steps + 1, ..., P)
            The start and the parameters after each step.

        Notes
        -----
        Source: whitening Eqs. 3 and 26-28.
        """
        check.non_negative(lr, "lr")
        check.whole(steps, "steps", 0)
        if (
            inverse_metric is not None
            and check.square(inverse_metric, "inverse_metric").shape[0] != self.M.shape[1]
        ):
            raise ValueError(
                f"inverse_metric: expected {self.M.shape[1]} rows, got shape "
                f"{tuple(inverse_metric.shape)}"
            )
        path = [theta]
        for _ in range(steps):
            step = self.gradient(path[-1], mean)
            if inverse_metric is not None:
                step = step @ inverse_metric.mT
            path.append(path[-1] - lr * step)
        return torch.stack(path)

    def _mean(self, theta: torch.Tensor) -> torch.Tensor:
        return _width(check.floating(theta, "theta"), "theta", self.M.shape[1]) @ self.M.mT

    def _data(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return _width(check.floating(x, name), name, len(self.M))


class BoltzmannMachine:
    r"""A fully visible Boltzmann machine, enumerated.

    .. math:: q(x; \theta) &= \frac{e^{-E(x; \theta)}}{Z(\theta)}, \qquad
              E(x; \theta) = -\theta \cdot f(x), \\
              f(x) &= (x_1 x_2,\, x_1 x_3,\, \dots,\, x_{n-1} x_n,\; x_1,\, \dots,\, x_n)

    The P = n(n+1)/2 parameters are the couplings of the pairs i < j in lexicographic order, then
    the biases. Distributions over the :math:`2^n` states are vectors in the order of
    :attr:`states`; :meth:`empirical` makes one from data. Every method accepts parameters with
    leading batch dimensions (..., P), and every expectation is exact: a sum over all states.

    Parameters
    ----------
    n : int
        Number of units, 1 to 16.
    units : "01" or "pm1"
        Values of a unit: 0 and 1, or -1 and +1.
    dtype, device
        Of everything the machine returns.

    Attributes
    ----------
    states : Tensor, shape (2**n, n)
        All states; the first unit changes slowest.
    statistics : Tensor, shape (2**n, P)
        The features of all states.

    Raises
    ------
    ValueError
        If ``n`` is not in 1..16 (the enumeration doubles with each unit), or ``units`` is unknown.

    Notes
    -----
    Source: whitening Section 2.4, Eqs. 30-33.
    """

    def __init__(
        self,
        n: int,
        units: Literal["01", "pm1"] = "01",
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        if not (isinstance(n, int) and 1 <= n <= 16):
            raise ValueError(
                f"n: expected 1 to 16 units (2**16 states are enumerated at most), got {n!r}"
            )
        if units not in ("01", "pm1"):
            raise ValueError(f'units: expected "01" or "pm1", got {units!r}')
        self.n, self.units = n, units
        index = torch.arange(2**n, device=device)
        bits = torch.arange(n - 1, -1, -1, device=device)
        self.states = ((index[:, None] >> bits) & 1).to(dtype)
        if units == "pm1":
            self.states = 2 * self.states - 1
        self.statistics = self.features(self.states)
        self._flips = (
            index ^ (1 << bits)[:, None]
        )  # (n, 2**n): index of each state with one unit flipped

    @property
    def parameters(self) -> int:
        """The number P of parameters."""
        return self.n * (self.n + 1) // 2

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features f(x), shape (..., P), of ``x`` of shape (..., n).

        Like :meth:`energy` and :meth:`log_prob` it works under ``torch.func.vmap`` and so does not
        look at values: NaN in, NaN out.
        """
        _width(x, "x", self.n)
        i, j = torch.triu_indices(self.n, self.n, 1, device=x.device)
        return torch.cat([x[..., i] * x[..., j], x], -1)

    def energy(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return E(x; theta), shape (...,) for ``theta`` (P,) and ``x`` (..., n)."""
        return -self.features(x) @ theta

    def log_partition(self, theta: torch.Tensor) -> torch.Tensor:
        """Return log Z(theta), shape (...,)."""
        return self._logits(theta).logsumexp(-1)

    def distribution(self, theta: torch.Tensor) -> torch.Tensor:
        """Return q(x; theta) for all states, shape (..., 2**n) (whitening Eq. 32)."""
        return self._logits(theta).softmax(-1)

    def log_prob(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return log q(x; theta), shape (...,) for ``theta`` (P,) and ``x`` (..., n)."""
        return -self.energy(theta, x) - self.log_partition(theta)

    def empirical(self, x: torch.Tensor) -> torch.Tensor:
        """Return the distribution over all states of the data ``x``, shape (m, n) -> (2**n,).

        Raises
        ------
        ValueError
            If ``x`` is not a floating-point matrix with n columns that holds only the two values of
            a unit.
        """
        if check.matrix(x, "x").shape[1] != self.n:
            raise ValueError(f"x: expected (m, {self.n}), got shape {tuple(x.shape)}")
        low, high = self.states[0, 0], self.states[-1, 0]
        if not bool(((x == low) | (x == high)).all()):
            raise ValueError(
                f"x: expected only {int(low)} and {int(high)} (units={self.units!r}), "
                f"got values from {float(x.min()):.3g} to {float(x.max()):.3g}"
            )
        weights = 2 ** torch.arange(self.n - 1, -1, -1, device=x.device)
        index = ((x == high) * weights).sum(1)
        return torch.bincount(index, minlength=2**self.n).to(self.states.dtype) / len(x)

    def sample(
        self, theta: torch.Tensor, count: int, *, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Draw ``count`` independent states from q(x; theta), shape (count, n)."""
        index = torch.multinomial(
            self.distribution(theta), count, replacement=True, generator=generator
        )
        return self.states[index]

    def nll(self, theta: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """Return the mean negative log likelihood under the data distribution ``p`` (whitening Eq.
        29).
        """
        logits = self._logits(theta)
        return logits.logsumexp(-1) - (self._data(p) * logits).sum(-1)

    def kl(self, theta: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """Return KL(p || q), in nats."""
        return self.nll(theta, p) + torch.xlogy(self._data(p), p).sum(-1)

    def gradient(self, theta: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        r"""Return the gradient of :meth:`nll`, :math:`\langle f \rangle_q - \langle f
        \rangle_p`.
        """
        return (self.distribution(theta) - self._data(p)) @ self.statistics

    def mpf(self, theta: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        r"""Return the minimum probability flow objective with single-unit flips.

        .. math:: K = \sum_x p(x) \sum_{x' \sim x} e^{(E(x) - E(x')) / 2}
        """
        return (self._data(p)[..., None, :] * self._flow(theta)).sum((-2, -1))

    def mpf_gradient(self, theta: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """Return the gradient of :meth:`mpf`."""
        leaving = self._data(p)[..., None, :] * self._flow(theta)
        arriving = leaving.gather(-1, self._flips.expand_as(leaving))
        return 0.5 * (arriving - leaving).sum(-2) @ self.statistics

    def gibbs(self, theta: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """Return the distribution after one Gibbs sweep from ``p``, each unit once and in order."""
        logits, p = self._logits(theta), self._data(p)
        for flip in self._flips:
            p = (p + p[..., flip]) * torch.sigmoid(logits - logits[..., flip])
        return p

    def cd_gradient(self, theta: torch.Tensor, p: torch.Tensor, k: int = 1) -> torch.Tensor:
        r"""Return the expected contrastive-divergence update, with the sign of :meth:`gradient`.

        It is :math:`\langle f \rangle_{p_k} - \langle f \rangle_p`, where :math:`p_k` is ``p``
        after ``k`` Gibbs sweeps, so it carries no sampling noise. It is not the gradient of a
        function.
        """
        check.whole(k, "k")
        swept = p
        for _ in range(k):
            swept = self.gibbs(theta, swept)
        return (swept - self._data(p)) @ self.statistics

    def fisher(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the Fisher information (..., P, P), the covariance of f under q (whitening Eq.
        30).
        """
        q = self.distribution(theta)
        return self._second_moment(q, q @ self.statistics)

    def data_fisher(self, theta: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """Return the Fisher information with the average over the data (whitening Eq. 31).

        The features still lose their mean under the model; only the average is over ``p``.
        """
        return self._second_moment(self._data(p), self.distribution(theta) @ self.statistics)

    def energy_metric(self, p: torch.Tensor, *, centred: bool = False) -> torch.Tensor:
        """Return the energy approximation, the second moment of the features under ``p`` (whitening
        Eq. 33).

        It does not depend on theta. With ``centred=True`` it is their covariance under ``p``.
        """
        mean = self._data(p) @ self.statistics
        return self._second_moment(p, mean if centred else torch.zeros_like(mean))

    def _second_moment(self, p: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
        gap = self.statistics - centre[..., None, :]
        return (gap * p[..., None]).mT @ gap

    def _flow(self, theta: torch.Tensor) -> torch.Tensor:
        """Return exp((E(x) - E(x')) / 2) for the n flips x' of every state x, shape (..., n,
        2**n).
        """
        logits = self._logits(theta)
        return ((logits[..., self._flips] - logits[..., None, :]) / 2).exp()

    def _logits(self, theta: torch.Tensor) -> torch.Tensor:
        return _width(check.floating(theta, "theta"), "theta", self.parameters) @ self.statistics.mT

    def _data(self, p: torch.Tensor) -> torch.Tensor:
        if check.floating(p, "p").shape[-1:] != self.states.shape[:1]:
            raise ValueError(
                f"p: expected a distribution over {len(self.states)} states, got shape "
                f"{tuple(p.shape)}; "
                "make one from data with .empirical(x)"
            )
        if bool((p < 0).any()) or float((p.sum(-1) - 1).abs().max()) > 1e-3:
            raise ValueError("p: expected non-negative probabilities that sum to 1")
        return p


def _width(x: torch.Tensor, name: str, width: int) -> torch.Tensor:
    """Return ``x`` if it is floating point with this last dimension; the values are not looked
    at.
    """
    if not x.is_floating_point() or x.shape[-1:] != (width,):
        raise ValueError(
            f"{name}: expected floating point of shape (..., {width}), got {x.dtype} "
            f"{tuple(x.shape)}"
        )
    return x
