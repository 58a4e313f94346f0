"""The covariance penalty: its exact gradient, its natural gradient, and the paper's
finite-difference scheme.
"""

from collections import deque
from typing import Any, NamedTuple

import torch

from natcompanion import _checks
from natcompanion.boltzmann.enumeration import check_enumerable, weighted_states
from natcompanion.boltzmann.fisher import SampledFisherOperator
from natcompanion.boltzmann.rbm import RBM

THRESHOLDS = (0.0001, 0.001, 0.01, 0.1, 0.2)
"""The thresholds v that the paper tried (boltzmann Sec. 5)."""

FRACTIONS = (0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8)
"""The fractions p that the paper tried (boltzmann Sec. 5)."""


class Moments(NamedTuple):
    """First and second moments of the activations: E[v] (D,), E[h] (H,), E[v h^T] (D, H).

    Parameters
    ----------
    v : Tensor, shape (D,)
    h : Tensor, shape (H,)
    vh : Tensor, shape (D, H)

    Examples
    --------
    >>> Moments(torch.tensor([0.5]), torch.tensor([0.5]), torch.tensor([[0.5]])).covariance
    tensor([[0.2500]])
    """

    v: torch.Tensor
    h: torch.Tensor
    vh: torch.Tensor

    @property
    def covariance(self) -> torch.Tensor:
        """cov(v, h), (D, H)."""
        return self.vh - torch.outer(self.v, self.h)


def model_moments(rbm: RBM) -> Moments:
    """Return the exact moments under the model.

    Parameters
    ----------
    rbm : RBM

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> model_moments(rbm).vh
    tensor([[0.2500]])
    """
    v, h, vh = (
        RBM.check(rbm).statistics_mean().split([rbm.visible, rbm.hidden, rbm.visible * rbm.hidden])
    )
    return Moments(v, h, vh.reshape(rbm.visible, rbm.hidden))


def sample_moments(v: torch.Tensor, h: torch.Tensor) -> Moments:
    """Return the moments of paired rows of ``v`` (n, D) and ``h`` (n, H), divisor 1/n.

    Parameters
    ----------
    v, h : Tensor, shapes (n, D) and (n, H)

    Examples
    --------
    >>> sample_moments(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [1.0]])).vh
    tensor([[0.5000]])
    """
    _checks.paired(v, h)
    return Moments(v.mean(0), h.mean(0), v.mT @ h / len(v))


def covariances(rbm: RBM) -> dict[str, torch.Tensor]:
    """Return the exact model covariances ``"vv"`` (D, D), ``"hh"`` (H, H) and ``"vh"`` (D, H).

    Parameters
    ----------
    rbm : RBM

    Notes
    -----
    Enumerates the hidden layer.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> covariances(rbm)["vv"]
    tensor([[0.2500]])
    """
    check_enumerable(RBM.check(rbm).hidden, rbm.visible)
    mean_v, mean_h, _ = model_moments(RBM(*rbm.double()))
    vv: Any = 0.0
    hh: Any = 0.0
    vh: Any = 0.0
    for p, h, m in weighted_states(*rbm.double()):
        x, y, s = m - mean_v, h - mean_h, p @ (m * (1 - m))
        weighted = p[:, None] * x
        vv, vh, hh = (
            vv + weighted.mT @ x + torch.diag(s),
            vh + weighted.mT @ y,
            hh + (p[:, None] * y).mT @ y,
        )
    return {name: C.to(rbm.W.dtype) for name, C in (("vv", vv), ("hh", hh), ("vh", vh))}


def natural_direction(rbm: RBM) -> torch.Tensor:
    r"""Return u with 2 G u the gradient, and 2 u the natural gradient, of :math:`\|\mathrm{cov}(v,
    h)\|^2`, (P,).

    .. math:: u = (-C\,E[h],\; -C^T E[v],\; \mathrm{vec}\,C), \qquad C = \mathrm{cov}(v, h)

    The part for W is C itself: following the natural gradient of this penalty is a decay of the
    weights along C.

    Parameters
    ----------
    rbm : RBM

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))
    >>> bool(natural_direction(rbm).abs().max() < 1e-6)  # v and h do not depend on each other
    True
    """
    moments = model_moments(rbm)
    C = moments.covariance
    return torch.cat([-C @ moments.h, -C.mT @ moments.v, C.reshape(-1)])


def sampled_penalty_gradient(v: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    r"""Return the sample estimate of the gradient of :math:`\|\mathrm{cov}(v, h)\|^2`, (P,).

    .. math:: 2\,\mathrm{Cov}_n(g, g^T \hat u)

    No finite differences: n D H operations. The value :math:`\|\hat C\|^2` itself is biased upwards
    by about
    :math:`\sum_{ij} \mathrm{var}(v_i)\,\mathrm{var}(h_j) / n`.

    Parameters
    ----------
    v, h
        Samples from the model (n, D) and (n, H).

    Examples
    --------
    >>> v = h = torch.tensor([[0.0], [1.0]])
    >>> sampled_penalty_gradient(v, h)
    tensor([0., 0., 0.])
    """
    moments = sample_moments(v, h)
    C = moments.covariance
    u = torch.cat([-C @ moments.h, -C.mT @ moments.v, C.reshape(-1)])
    metric = SampledFisherOperator(v, h)
    return 2 * metric.covariance_with(metric.along(u))


class CovariancePenalty:
    r"""The squared Frobenius norm of one covariance of the model, exactly, and the paper's mixed
    objective.

    .. math:: L = (1 - \gamma)\,(-\text{mean} \log p(v)) + \gamma\, \|\mathrm{cov}\|_F^2

    Parameters
    ----------
    pair
        ``"vh"`` (the paper's example), ``"vv"`` or ``"hh"``.

    Raises
    ------
    ValueError
        For another pair.

    Notes
    -----
    Each gradient is Cov(g, q) for a quadratic function q of (v, h), summed over the hidden states.
    Source: boltzmann Sec. 4.1.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> float(CovariancePenalty("vv").value(rbm))  # the variance 1/4, squared
    0.0625
    """

    def __init__(self, pair: str = "vh"):
        if pair not in ("vh", "vv", "hh"):
            raise ValueError(f'pair: expected "vh", "vv" or "hh", got {pair!r}')
        self.pair = pair

    def value(self, rbm: RBM) -> torch.Tensor:
        """Return the squared Frobenius norm, a scalar."""
        return (covariances(rbm)[self.pair] ** 2).sum()

    def gradient(self, rbm: RBM) -> torch.Tensor:
        """Return the gradient of ``value`` with respect to (a, b, vec W), (P,)."""
        exact = RBM(*rbm.double())
        mean = exact.statistics_mean()
        mean_v, mean_h = mean[: rbm.visible], mean[rbm.visible : rbm.visible + rbm.hidden]
        C = covariances(exact)[self.pair]
        out_v: Any = 0.0
        out_h: Any = 0.0
        out_vh: Any = 0.0
        expected_q: Any = 0.0
        for p, h, m in weighted_states(*rbm.double()):
            x, y = m - mean_v, h - mean_h
            q, slope = self._quadratic(C, x, y, m)
            visible = p[:, None] * (q[:, None] * m + slope * m * (1 - m))
            out_v, out_h, out_vh = (
                out_v + visible.sum(0),
                out_h + (p * q) @ h,
                out_vh + visible.mT @ h,
            )
            expected_q = expected_q + p @ q
        statistics = torch.cat([out_v, out_h, out_vh.reshape(-1)])
        return (2 * (statistics - expected_q * mean)).to(rbm.W.dtype)

    def _quadratic(
        self, C: torch.Tensor, x: torch.Tensor, y: torch.Tensor, m: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return E[q|h] (n,) and Cov(v_i, q|h) / var(v_i|h), (n, D), for centred means x and states
        y.
        """
        if self.pair == "hh":
            return ((y @ C) * y).sum(1), torch.zeros_like(x)
        if self.pair == "vh":
            return ((x @ C) * y).sum(1), y @ C.mT
        own = C.diagonal()
        return ((x @ C) * x).sum(1) + (m * (1 - m)) @ own, 2 * x @ C + own * (1 - 2 * m)

    def objective(self, rbm: RBM, v: torch.Tensor, gamma: float) -> torch.Tensor:
        """Return (1 - gamma) (-mean log p(v)) + gamma (in [0, 1]) times the penalty, a scalar to be
        minimized.
        """
        _check_gamma(gamma)
        return (1 - gamma) * -rbm.log_likelihood(v).mean() + gamma * self.value(rbm)

    def objective_gradient(self, rbm: RBM, v: torch.Tensor, gamma: float) -> torch.Tensor:
        """Return the gradient of ``objective``, (P,)."""
        _check_gamma(gamma)
        return -(1 - gamma) * rbm.gradient(v) + gamma * self.gradient(rbm)


def _check_gamma(gamma: float) -> None:
    if _checks.non_negative(gamma, "gamma") > 1:
        raise ValueError(f"gamma: expected a number in [0, 1], got {gamma!r}")


def printed_difference(before: Moments, after: Moments) -> torch.Tensor:
    """Return the numerator of Eq. 4 as printed: the third term takes E[v] after the step, (D, H).

    Parameters
    ----------
    before, after : Moments
        At the steps t and t + 1.

    Notes
    -----
    The product rule wants E[v] before the step; the printed form is off by the product of the two
    changes, whose mean under sampling noise is -2 C / batch. Source: boltzmann Eq. 4 and the three
    displays after it.

    Examples
    --------
    >>> before = Moments(torch.tensor([0.5]), torch.tensor([0.5]), torch.tensor([[0.25]]))
    >>> after = Moments(torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([[0.5]]))
    >>> printed_difference(before, after)
    tensor([[0.]])
    """
    change_v, change_h = after.v - before.v, after.h - before.h
    return after.vh - before.vh - torch.outer(change_v, after.h) - torch.outer(after.v, change_h)


def product_rule_difference(before: Moments, after: Moments) -> torch.Tensor:
    """Return the change of cov(v, h) between two steps, (D, H); Eq. 4 with the product rule put
    right. Source: boltzmann Eq. 4 and the three displays after it.

    Parameters
    ----------
    before, after : Moments
        At the steps t and t + 1.

    Examples
    --------
    >>> before = Moments(torch.tensor([0.5]), torch.tensor([0.5]), torch.tensor([[0.25]]))
    >>> after = Moments(torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([[0.5]]))
    >>> product_rule_difference(before, after)
    tensor([[0.]])
    """
    return after.covariance - before.covariance


class PaperPenalty:
    """The paper's scheme: differences of batch moments over steps, dW := 1, averaged over the last
    steps.

    The covariance factor and the trace are left out, as the paper does.

    Parameters
    ----------
    window
        Number of differences averaged.
    rule
        ``"printed"`` (Eq. 4) or ``"product"`` (the product rule; the average then telescopes to the
        difference of two covariances divided by ``window``).

    Notes
    -----
    Source: boltzmann Eq. 4 and Sec. 5.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> penalty = PaperPenalty(window=2)
    >>> penalty.update(model_moments(rbm))  # nothing has changed yet
    tensor([[0.]])
    """

    def __init__(self, window: int = 15, *, rule: str = "printed"):
        if rule not in ("printed", "product"):
            raise ValueError(f'rule: expected "printed" or "product", got {rule!r}')
        self._difference = printed_difference if rule == "printed" else product_rule_difference
        self._terms: deque[torch.Tensor] = deque(maxlen=_checks.whole(window, "window"))
        self._last: Moments | None = None

    def update(self, moments: Moments, dW: torch.Tensor | None = None) -> torch.Tensor:
        """Take the moments of one step and return the averaged penalty matrix (D, H), zero at the
        first step.

        Parameters
        ----------
        moments
            Batch moments of this step.
        dW
            Change of W in the last step, to divide by; by default 1, the paper's final choice.
        """
        for name, value in zip(("E[v]", "E[h]", "E[v h^T]"), moments, strict=True):
            _checks.floating(value, name)
        if self._last is not None:
            difference = self._difference(self._last, moments)
            self._terms.append(difference if dW is None else difference / dW)
        self._last = moments
        return (
            torch.stack(tuple(self._terms)).mean(0) if self._terms else torch.zeros_like(moments.vh)
        )


class ThresholdController:
    """The rule for gamma: up if more than ``fraction`` of the penalty entries exceed ``threshold``,
    else down.

    Parameters
    ----------
    threshold
        v of the paper; its values are in ``THRESHOLDS``.
    fraction
        p of the paper; its values are in ``FRACTIONS``.
    gamma
        Start. The paper gives none.
    up, down
        Factors of one step. The paper gives none.
    signed
        Compare the entries themselves instead of their absolute values. The paper does not say
        which.
    bounds
        gamma is trimmed to this interval, and starts in it; the paper's values.

    Raises
    ------
    ValueError
        On arguments out of range.

    Notes
    -----
    Source: boltzmann Sec. 5.

    Examples
    --------
    >>> rule = ThresholdController(threshold=0.01, fraction=0.05, gamma=0.5)
    >>> rule.update(torch.tensor([[0.0, -0.3]]))  # half of the entries exceed it
    0.55
    """

    def __init__(
        self,
        threshold: float,
        fraction: float,
        *,
        gamma: float = 0.01,
        up: float = 1.1,
        down: float = 0.9,
        signed: bool = False,
        bounds: tuple[float, float] = (1e-5, 1.0),
    ):
        self.threshold, self.gamma = (
            _checks.non_negative(threshold, "threshold"),
            _checks.positive(gamma, "gamma"),
        )
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction: expected a number in [0, 1], got {fraction!r}")
        if not (up > 1 > down > 0):
            raise ValueError(f"up and down: expected up > 1 > down > 0, got {up!r} and {down!r}")
        low, high = (_checks.positive(bound, "bounds") for bound in bounds)
        if not low <= self.gamma <= high:
            raise ValueError(
                f"bounds: expected low <= gamma <= high, got {bounds!r} and gamma = {gamma!r}"
            )
        self.fraction, self.up, self.down, self.signed, self.bounds = (
            fraction,
            up,
            down,
            signed,
            bounds,
        )

    def exceeding(self, penalty: torch.Tensor) -> float:
        """Return the fraction of entries above the threshold."""
        size = penalty if self.signed else penalty.abs()
        return float((size > self.threshold).double().mean())

    def update(self, penalty: torch.Tensor) -> float:
        """Take a penalty matrix, change gamma once, and return it."""
        factor = (
            self.up
            if self.exceeding(_checks.floating(penalty, "penalty")) > self.fraction
            else self.down
        )
        low, high = self.bounds
        self.gamma = min(max(self.gamma * factor, low), high)
        return self.gamma
