"""Output models: what the last pre-activations ``r`` say about the target ``t``.

Each likelihood knows, with respect to ``r`` of shape (n, o):

* the mean of the target (the network's output ``y``), and ``-log p(t | r)`` per example;
* the KL divergence between two outputs;
* its Fisher matrix, as a product with a vector and as a root ``S`` with ``S @ S.mT`` equal to it.

Everything is computed from ``r``, never by dividing by the output, so that confident outputs stay
finite. The scale is that of :math:`\\mathrm{KL}(p_r \\| p_{r+\\delta}) \\approx \\tfrac12 \\delta^T
F \\delta`. Half-precision inputs are computed in float32 and cast back.

A loss of a likelihood is ``likelihood.nll(r, t).mean()``, a mean over the n examples of sums over
outputs and positions, with normalizing constants. With outputs (n, o), or (n, T, o) of T positions,
the losses of torch are:

.. list-table::
   :header-rows: 1

   * - torch
     - the same as
   * - ``nn.CrossEntropyLoss()``
     - ``Categorical().nll(r, t).mean() / T``; torch wants the classes second: ``r.movedim(-1, 1)``
   * - ``nn.CrossEntropyLoss(reduction="sum")``
     - ``Categorical().nll(r, t).sum()``
   * - ``nn.CrossEntropyLoss(ignore_index=k)``
     - ``Categorical(ignore_index=k).nll(r, t).sum() / (t != k).sum()``
   * - ``nn.CrossEntropyLoss(label_smoothing=s)``
     - ``Categorical()`` with soft labels ``(1 - s) * one_hot(t) + s / o``
   * - ``nn.CrossEntropyLoss(weight=w)``
     - ``Weighted(Categorical(), w[t]).nll(r, t).sum() / w[t].sum()``
   * - ``nn.MSELoss()``
     - ``2 / (T * o) * Gaussian().nll(r, t).mean() - log(2 * pi)``
   * - ``nn.MSELoss(reduction="sum")``
     - ``2 * Gaussian().nll(r, t).sum() - r.numel() * log(2 * pi)``
   * - ``nn.BCEWithLogitsLoss()``
     - ``Bernoulli().nll(r, t).mean() / (T * o)``
   * - ``nn.BCEWithLogitsLoss(reduction="sum")``
     - ``Bernoulli().nll(r, t).sum()``

Gradients and metrics scale with the loss: for ``nn.MSELoss()`` of o outputs, the Fisher matrix that
belongs to it is that of ``Gaussian()`` times ``2 / (T * o)``.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid

from natcompanion import _checks
from natcompanion._memory import affordable_root
from natcompanion._own_likelihood import FromNLL, complete

__all__ = ["Bernoulli", "Categorical", "FromNLL", "Gaussian", "Likelihood", "Weighted"]


class Likelihood(Protocol):
    """What the metrics ask of an output model.

    One of your own needs ``nll`` alone, see :class:`FromNLL`; with all these methods it is faster.

    Examples
    --------
    >>> likelihood: Likelihood = Gaussian()
    >>> likelihood.kl(torch.zeros(1, 2), torch.ones(1, 2))
    tensor([1.])
    """

    def mean(self, r: torch.Tensor) -> torch.Tensor: ...

    def nll(self, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor: ...

    def kl(self, r: torch.Tensor, s: torch.Tensor) -> torch.Tensor: ...

    def fisher_product(self, r: torch.Tensor, u: torch.Tensor) -> torch.Tensor: ...

    def fisher_root(self, r: torch.Tensor) -> torch.Tensor: ...

    def sample(
        self, r: torch.Tensor, *, generator: torch.Generator | None = None
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class Gaussian:
    r"""Independent Gaussian targets with mean ``r`` and standard deviation ``beta``.

    .. math:: p(t \mid r) = \prod_i \mathcal N(t_i \mid r_i, \beta^2), \qquad F = \beta^{-2} I.

    Source: revisiting Eq. 23, 9 and 24. The paper prints :math:`\beta^2` where :math:`\beta^{-2}`
    is right.

    Parameters
    ----------
    beta : float
        The standard deviation.

    Raises
    ------
    ValueError
        If ``beta`` is not a positive number.

    Examples
    --------
    >>> Gaussian(beta=2.0).fisher_product(torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[0.2500, 0.2500]])
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        _checks.positive(self.beta, "beta")

    def mean(self, r: torch.Tensor) -> torch.Tensor:
        """Return the mean of the target, ``r`` itself; (n, o)."""
        return r

    def nll(self, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return ``-log p(t | r)`` with its normalizing constant, per example; (n,)."""
        z = (_like(t, r) - _wide(r)) / self.beta
        return _per_example(0.5 * (z.square() + math.log(2 * math.pi * self.beta**2))).to(r.dtype)

    def kl(self, r: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        """Return KL(p_r || p_s) per example; (n,)."""
        return (0.5 * ((_wide(r) - _wide(s)) / self.beta).square()).sum(-1).to(r.dtype)

    def fisher_product(self, r: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Return F u for each example; ``u`` and the result have the shape of ``r``."""
        return u / self.beta**2

    def fisher_root(self, r: torch.Tensor) -> torch.Tensor:
        """Return S with ``S @ S.mT`` = F; (n, o, o)."""
        o = affordable_root(r)
        return torch.eye(o, dtype=r.dtype, device=r.device).expand(*r.shape, -1) / self.beta

    def sample(self, r: torch.Tensor, *, generator: torch.Generator | None = None) -> torch.Tensor:
        """Draw one target per example; (n, o)."""
        return r + self.beta * torch.randn(
            r.shape, dtype=r.dtype, device=r.device, generator=generator
        )


@dataclass(frozen=True)
class Bernoulli:
    r"""Independent binary targets with probability ``sigmoid(r)``.

    .. math:: p(t \mid r) = \prod_i y_i^{t_i} (1-y_i)^{1-t_i}, \quad y = \sigma(r),
              \qquad F = \operatorname{diag}\big(y (1-y)\big).

    Targets are numbers in [0, 1]. Source: revisiting Eq. 25, 17 and 26.

    Examples
    --------
    >>> Bernoulli().fisher_product(torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[0.2500, 0.2500]])
    """

    def mean(self, r: torch.Tensor) -> torch.Tensor:
        """Return the probability of a one; (n, o)."""
        return torch.sigmoid(r)

    def nll(self, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return ``-log p(t | r)``, the cross-entropy, per example; (n,)."""
        t = _like(t, r)
        if t.numel() and not bool(((t >= 0) & (t <= 1)).all()):
            raise ValueError(
                f"t: expected numbers in [0, 1], got {float(t.min()):.3g} to {float(t.max()):.3g}"
            )
        loss = binary_cross_entropy_with_logits(_wide(r), t, reduction="none")
        return _per_example(loss).to(r.dtype)

    def kl(self, r: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        """Return KL(p_r || p_s) per example; (n,)."""
        r_ = _wide(r)
        d, signs = _wide(s) - r_, torch.tensor([1, -1], dtype=r_.dtype, device=r_.device)
        log_p = logsigmoid(r_.unsqueeze(-1) * signs)  # of one and zero
        D = torch.stack([torch.sigmoid(-r_) * d, -torch.sigmoid(r_) * d], -1)
        return _kl(log_p, D).sum(-1).to(r.dtype)

    def fisher_product(self, r: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Return F u for each example; ``u`` and the result have the shape of ``r``."""
        r_ = _wide(r)
        return (torch.sigmoid(r_) * torch.sigmoid(-r_) * u).to(u.dtype)

    def fisher_root(self, r: torch.Tensor) -> torch.Tensor:
        """Return S with ``S @ S.mT`` = F; (n, o, o)."""
        affordable_root(r)
        r_ = _wide(r)
        return torch.diag_embed((torch.sigmoid(r_) * torch.sigmoid(-r_)).sqrt()).to(r.dtype)

    def sample(self, r: torch.Tensor, *, generator: torch.Generator | None = None) -> torch.Tensor:
        """Draw one target of zeros and ones per example; (n, o)."""
        return torch.bernoulli(torch.sigmoid(_wide(r)), generator=generator).to(r.dtype)


@dataclass(frozen=True)
class Categorical:
    r"""One of ``o`` classes, with probabilities ``softmax(r)``.

    .. math:: p(t \mid r) = y_t, \quad y = \operatorname{softmax}(r), \qquad
              F = \operatorname{diag}(y) - y y^T.

    Targets are class numbers, an integer tensor of shape (n,), or probabilities of the classes, of
    the shape of ``r`` (soft labels, whose own entropy is left out, as in torch). Outputs
    (n, ..., o) have one target at each position, and the positions of an example add up. Source:
    revisiting Eq. 27, 19 and 28.

    Parameters
    ----------
    ignore_index : int, optional
        Targets of this number count nothing: loss and gradient are 0 there. The Fisher matrix
        reads no target; :class:`Weighted` leaves positions out of both.

    Examples
    --------
    >>> Categorical(ignore_index=-100).nll(torch.zeros(1, 2, 2), torch.tensor([[1, -100]]))
    tensor([0.6931])
    >>> Categorical().fisher_product(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    tensor([[ 0.2500, -0.2500]])
    """

    ignore_index: int | None = None

    def __post_init__(self) -> None:
        if self.ignore_index is not None:
            _checks.whole(self.ignore_index, "ignore_index", low=-(2**63))

    def mean(self, r: torch.Tensor) -> torch.Tensor:
        """Return the class probabilities; (n, o)."""
        return torch.softmax(_wide(r), -1).to(r.dtype)

    def nll(self, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return ``-log p(t | r)``, the cross-entropy, per example; (n,)."""
        wide = _wide(r)
        if not isinstance(t, torch.Tensor):
            raise ValueError(
                f"t: expected class numbers, an integer tensor, got {type(t).__name__}"
            )
        _checks.numbers(t, "t")
        if t.is_floating_point() and t.shape == r.shape:
            return self._soft(r, t)
        if t.is_floating_point() or t.dtype == torch.bool or t.shape != r.shape[:-1]:
            raise ValueError(
                f"t: expected class numbers, an integer tensor of shape {tuple(r.shape[:-1])}, "
                f"got {t.dtype} of shape {tuple(t.shape)}"
            )
        counted = (
            torch.ones_like(t, dtype=torch.bool)
            if self.ignore_index is None
            else (t != self.ignore_index)
        )
        if t.numel() and not bool((((t >= 0) & (t < r.shape[-1])) | ~counted).all()):
            remedy = "; Categorical(ignore_index=-100) leaves out those of -100"
            raise ValueError(
                f"t: expected class numbers from 0 to {r.shape[-1] - 1}, got {int(t.min())} "
                f"to {int(t.max())}{remedy if bool((t == -100).any()) else ''}"
            )
        ignored = -100 if self.ignore_index is None else self.ignore_index
        rows, classes = wide.reshape(-1, r.shape[-1]), t.reshape(-1).long()
        found = cross_entropy(rows, classes, reduction="none", ignore_index=ignored)
        return _summed(found.view(t.shape)).to(r.dtype)

    def _soft(self, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        wide = _wide(r)
        t = t.to(wide.dtype)
        if t.numel() and not bool(((t >= 0).all(-1) & ((t.sum(-1) - 1).abs() < 1e-2)).all()):
            raise ValueError(
                "t: expected class numbers, or probabilities of the classes that sum to 1, got "
                f"sums from {float(t.sum(-1).min()):.3g} to {float(t.sum(-1).max()):.3g}"
            )
        return _summed(-(t * torch.log_softmax(wide, -1)).sum(-1)).to(r.dtype)

    def kl(self, r: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        """Return KL(p_r || p_s) per example; (n,)."""
        log_p = torch.log_softmax(_wide(r), -1)
        d = _from_likeliest(_wide(s) - _wide(r), log_p)
        return _kl(log_p, d - (log_p.exp() * d).sum(-1, keepdim=True)).to(r.dtype)

    def fisher_product(self, r: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Return F u for each example; ``u`` and the result have the shape of ``r``."""
        y = torch.softmax(_wide(r), -1)
        v = _from_likeliest(u, y)  # F 1 = 0, so u may be shifted
        return (y * (v - (y * v).sum(-1, keepdim=True))).to(u.dtype)

    def fisher_root(self, r: torch.Tensor) -> torch.Tensor:
        r"""Return S with ``S @ S.mT`` = F; (n, o, o): :math:`S_{ij} = (\delta_{ij} - y_i)
        \sqrt{y_j}`.
        """
        o, y = affordable_root(r), torch.softmax(_wide(r), -1)
        eye = torch.eye(o, dtype=y.dtype, device=y.device)
        others = ((1 - eye) * y.unsqueeze(-2)).sum(-1)  # 1 - y, without cancellation
        return (
            (torch.diag_embed(others) - y.unsqueeze(-1) * (1 - eye)) * y.sqrt().unsqueeze(-2)
        ).to(r.dtype)

    def sample(self, r: torch.Tensor, *, generator: torch.Generator | None = None) -> torch.Tensor:
        """Draw one class number per example; (n,), int64."""
        y = torch.softmax(_wide(r), -1)
        return torch.multinomial(y.flatten(0, -2), 1, generator=generator).view(r.shape[:-1])


@dataclass(frozen=True, eq=False)
class Weighted:
    r"""Another likelihood with weights of examples, or of positions, of one batch.

    Loss and Fisher matrix of what has the weight w count w times; a mask of zeros and ones leaves
    out what it masks. Divisors stay: a mean over n examples is still one over n.

    .. math:: -w \log p(t \mid r), \qquad w F

    Parameters
    ----------
    likelihood : Likelihood
        One of this module, or one of your own from :class:`FromNLL`.
    weights : Tensor, shape (n,) or that of the positions, (n, ...)
        Not negative.

    Raises
    ------
    ValueError
        If weights are negative or not finite, or do not fit the outputs.

    Notes
    -----
    Gradients at given targets count w times too, so that their outer products (the empirical
    Fisher) count :math:`w^2` times. Source: revisiting Eq. 8 to 13, with the expectation over
    examples weighted.

    Examples
    --------
    >>> Weighted(Gaussian(), torch.tensor([1.0, 0.0])).nll(torch.zeros(2, 1), torch.zeros(2, 1))
    tensor([0.9189, 0.0000])
    """

    likelihood: Likelihood
    weights: torch.Tensor

    def __post_init__(self) -> None:
        complete(self.likelihood)  # refuses what is none
        w = self.weights
        if not isinstance(w, torch.Tensor) or not bool((w >= 0).all() & w.isfinite().all()):
            raise ValueError("weights: expected a tensor of finite numbers that are not negative")

    @property
    def drawn(self) -> "Weighted":
        """With the roots of the weights: scores at drawn labels whose covariance is w F."""
        return Weighted(self.likelihood, self.weights.double().sqrt())

    def mean(self, r: torch.Tensor) -> torch.Tensor:
        """Return the mean of the target."""
        return self.likelihood.mean(r)

    def nll(self, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return ``-w log p(t | r)`` per example; (n,)."""
        lead = r.ndim - 1
        found = self.likelihood.nll(r.flatten(0, -2), t.flatten(0, lead - 1))
        return _summed(found.view(r.shape[:-1]) * self._of(r))

    def kl(self, r: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        """Return w KL(p_r || p_s) of every row of outputs; (n, ...)."""
        return self.likelihood.kl(r, s) * self._of(r)

    def fisher_product(self, r: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Return w F u for each example; ``u`` and the result have the shape of ``r``."""
        return self._of(r).unsqueeze(-1) * self.likelihood.fisher_product(r, u)

    def fisher_root(self, r: torch.Tensor) -> torch.Tensor:
        """Return S with ``S @ S.mT`` = w F; (n, o, o)."""
        return self._of(r).sqrt()[..., None, None] * self.likelihood.fisher_root(r)

    def sample(self, r: torch.Tensor, *, generator: torch.Generator | None = None) -> torch.Tensor:
        """Draw targets; the weights do not matter."""
        return self.likelihood.sample(r, generator=generator)

    def _of(self, r: torch.Tensor) -> torch.Tensor:
        """Return the weight of every position, of the shape of ``r`` without its last dimension."""
        w = self.weights.to(r)
        draws = len(r) // max(len(w), 1)  # labels that are drawn for every example
        if (
            len(w) * draws != len(r)
            or w.ndim >= r.ndim
            or (w.ndim > 1 and w.shape[1:] != r.shape[1 : w.ndim])
        ):
            raise ValueError(
                f"weights: expected shape {tuple(r.shape[:1])} or {tuple(r.shape[:-1])} for these "
                f"outputs, got {tuple(w.shape)}; weights belong to one batch"
            )
        w = w.repeat_interleave(draws, 0)
        return w.reshape(*w.shape, *[1] * (r.ndim - 1 - w.ndim)).expand(r.shape[:-1])


def _from_likeliest(u: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Measure ``u`` from its value at the largest ``y``: no digits cancel when a probability is
    near 0 or 1.
    """
    return u - u.gather(-1, y.argmax(-1, keepdim=True).expand(*u.shape[:-1], 1))


def _kl(log_p: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
    r"""Return KL(p || q) over the last dimension, where q is p with its logits moved by D of mean
    zero under p.

    .. math:: \mathrm{KL} = \log \mathrm E_p\, e^D = \log\big(1 + \mathrm E_p [e^D - 1 - D]\big)

    The second form sums numbers that are not negative, so that small steps keep their digits; the
    first is for large ones, where the second overflows.
    """
    near = torch.log1p((log_p.exp() * _exp_beyond_line(D.clamp(max=64))).sum(-1))
    far = torch.logsumexp(log_p + D, -1).clamp(min=0)
    return torch.where(D.amax(-1) < 64, near, far)


def _exp_beyond_line(x: torch.Tensor) -> torch.Tensor:
    """Return ``e^x - 1 - x``; by its series near 0, where the digits cancel."""
    small = x.abs() < 0.25
    near, far = torch.where(small, x, 0), torch.where(small, 1, x)
    tail = torch.ones_like(near)
    for k in range(14, 2, -1):  # x^2/2 (1 + x/3 (1 + x/4 (1 + ...))), to float64
        tail = 1 + near / k * tail
    return torch.where(small, near.square() / 2 * tail, torch.expm1(far) - far)


def _wide(r: torch.Tensor) -> torch.Tensor:
    """Return the outputs ``r``, or ``r`` in float32 if it is in half precision."""
    if not isinstance(r, torch.Tensor) or not r.is_floating_point():
        _checks.floating(r, "r")
    return r.float() if r.dtype in (torch.float16, torch.bfloat16) else r


def _per_example(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over the outputs of each example, (n, ...) to (n,), in any number of
    dimensions; one vector to a number.
    """
    return values.flatten(1).sum(1) if values.ndim > 1 else values.sum(-1)


def _summed(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over the positions of each example, (n, ...) to (n,)."""
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def _like(t: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Return the target in the computing dtype of ``r`` if it has its shape."""
    wide = _wide(r)
    if not isinstance(t, torch.Tensor) or t.shape != r.shape:
        got = tuple(t.shape) if isinstance(t, torch.Tensor) else type(t).__name__
        raise ValueError(f"t: expected the shape of the model's output {tuple(r.shape)}, got {got}")
    _checks.numbers(t, "t")
    return t.to(wide.dtype)
