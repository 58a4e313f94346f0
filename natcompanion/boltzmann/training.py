"""Training by contrastive divergence, and persistent chains, with divergence and stuck chains
named.
"""

from collections.abc import Sequence

import torch

from natcompanion import _checks
from natcompanion.boltzmann.rbm import RBM
from natcompanion.whitening import Divergence

WEIGHT_LIMIT = 1e3
"""Largest absolute weight that training accepts: beyond it every unit is frozen."""


def check_weights(W: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> RBM:
    """Return the machine of these parameters in ``dtype``.

    Parameters
    ----------
    W, a, b : Tensor, shapes (D, H), (D,) and (H,)
    dtype : torch.dtype

    Raises
    ------
    Divergence
        If a number is not finite or a weight is larger than ``WEIGHT_LIMIT``.

    Examples
    --------
    >>> check_weights(torch.tensor([[1e30]]), torch.zeros(1), torch.zeros(1), torch.float32)
    Traceback (most recent call last):
    natcompanion.whitening.adaptive.Divergence: ...
    """
    largest = float(W.abs().max())
    if not (
        largest <= WEIGHT_LIMIT and bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())
    ):
        raise Divergence(
            f"weights of the RBM have run away: largest absolute weight {largest:.3g}, "
            f"limit {WEIGHT_LIMIT:g}; "
            "lower the learning rate or add weight decay"
        )
    return RBM(W.to(dtype), a.to(dtype), b.to(dtype))


@torch.no_grad()
def cd_epoch(
    rbm: RBM,
    data: torch.Tensor,
    *,
    lr: float = 0.1,
    batch_size: int = 100,
    k: int = 1,
    momentum: float = 0.0,
    velocity: Sequence[torch.Tensor] | None = None,
    weight_decay: float = 0.0,
    mean_field: bool = False,
    generator: torch.Generator | None = None,
) -> RBM:
    r"""Return the machine after one pass of CD-k over the shuffled rows of ``data`` (n, D).

    Parameters
    ----------
    rbm
        Start; it is not changed.
    data
        (n, D) in [0, 1].
    lr
        Step size of the ascent on the mean log-likelihood.
    batch_size
        Rows per step; the last batch may be smaller.
    k
        Gibbs sweeps per step.
    momentum
        :math:`\mu` of the step :math:`\mathrm{lr}\, u`, :math:`u \leftarrow \mu u + g`, from 0 to
        below 1.
    velocity
        Tensors like (W, a, b), in float32 for half precision, which hold ``u`` and are changed in
        place: hand the same to the next epoch. If left out, ``u`` starts at 0.
    weight_decay
        Subtract ``lr * weight_decay * W`` at each step.
    mean_field
        Reconstruct with the visible probabilities instead of samples: less noise and fewer random
        numbers, and no longer the expectation of a Gibbs chain. Usual for grey images.
    generator
        Source of randomness.

    Raises
    ------
    Divergence
        If the weights have run away at the end.
    ValueError
        If the data are not (n, D), not finite or outside [0, 1], ``batch_size`` or ``k`` is no
        integer >= 1, ``momentum`` is out of range, or ``velocity`` does not fit.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(2, 1), torch.zeros(2), torch.zeros(1))
    >>> data = torch.tensor([[1.0, 0.0]]).repeat(1000, 1)
    >>> after = cd_epoch(rbm, data, generator=torch.Generator().manual_seed(0))
    >>> after.a.sign()  # the first unit is on in the data, the second off
    tensor([ 1., -1.])
    """
    _checks.non_negative(lr, "lr"), _checks.non_negative(weight_decay, "weight_decay")
    batch_size, k = _checks.whole(batch_size, "batch_size"), _checks.whole(k, "k")
    dtype = RBM.check(rbm).W.dtype
    W, a, b = (
        x.float() if dtype in (torch.float16, torch.bfloat16) else x.clone()
        for x in (rbm.W, rbm.a, rbm.b)
    )
    u = _velocity(velocity, (W, a, b), momentum)
    data = rbm.check_visible(data).to(W.dtype)
    size = min(batch_size, len(data))
    visible, hidden = (
        W.new_empty(2 * size, len(a)),
        W.new_empty(2 * size, len(b)),
    )  # data above, model below
    visible_coins, hidden_coins = (
        _Coins(visible[:size], generator),
        _Coins(hidden[:size], generator),
    )
    source = data.device if generator is None else generator.device
    order = torch.randperm(len(data), generator=generator, device=source).to(data.device)
    for rows in order.split(batch_size):
        n = len(rows)
        (v, v_model), (q, q_model) = visible[: 2 * n].split(n), hidden[: 2 * n].split(n)
        torch.index_select(data, 0, rows, out=v)
        torch.addmm(b, v, W, out=q).sigmoid_()
        for sweep in range(k):
            h = hidden_coins.toss(q_model if sweep else q)
            torch.addmm(a, h, W.mT, out=v_model).sigmoid_()
            if not mean_field:
                visible_coins.toss(v_model, out=v_model)
            torch.addmm(b, v_model, W, out=q_model).sigmoid_()
        W.mul_(1 - lr * weight_decay)
        for part in u or ():
            part.mul_(momentum)
        (to_W, to_a, to_b), rate = ((W, a, b), lr / n) if u is None else (u, 1 / n)
        to_a.add_(v.sum(0).sub_(v_model.sum(0)), alpha=rate)
        to_b.add_(q.sum(0).sub_(q_model.sum(0)), alpha=rate)
        q_model.neg_()
        to_W.addmm_(visible[: 2 * n].mT, hidden[: 2 * n], alpha=rate)
        for p, part in zip((W, a, b), u or (), strict=u is not None):
            p.add_(part, alpha=lr)
    return check_weights(W, a, b, dtype)


def _velocity(
    given: Sequence[torch.Tensor] | None, like: Sequence[torch.Tensor], momentum: float
) -> Sequence[torch.Tensor] | None:
    """Return the velocity of a machine, None if there is no momentum."""
    if _checks.non_negative(momentum, "momentum") >= 1:
        raise ValueError(f"momentum: expected a number from 0 to below 1, got {momentum!r}")
    if given is None:
        return [torch.zeros_like(p) for p in like] if momentum else None
    kinds = [[(tuple(p.shape), p.dtype) for p in parts] for parts in (given, like)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"velocity: expected tensors like W, a and b, {kinds[1]}, got {kinds[0]}")
    return given


def reconstruction_error(rbm: RBM, v: torch.Tensor) -> torch.Tensor:
    r"""Return the squared error of the reconstruction of each row of ``v``; (n,).

    .. math:: \lVert v - p(v = 1 \mid h) \rVert^2, \qquad h = p(h = 1 \mid v)

    The usual gauge of training with contrastive divergence. It is no likelihood: a machine that
    copies its input has none. Where the smaller layer has few units,
    :meth:`natcompanion.boltzmann.RBM.log_likelihood` is exact.

    Parameters
    ----------
    rbm : RBM
    v : Tensor, shape (n, D)
        In [0, 1].

    Raises
    ------
    ValueError
        If ``v`` does not fit.

    Notes
    -----
    Hinton (2010), *A practical guide to training restricted Boltzmann machines*, Section 5.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(2, 1), torch.zeros(2), torch.zeros(1))
    >>> reconstruction_error(rbm, torch.tensor([[1.0, 0.0]]))
    tensor([0.5000])
    """
    return (v - RBM.check(rbm).visible_mean(rbm.hidden_mean(rbm.check_visible(v)))).square().sum(1)


class _Coins:
    """Binary states of many units at once, in reused memory, with a quarter of the usual random
    numbers.

    A unit draws a number of 16 bits, and all share the fraction that follows it, so that each unit
    is on with exactly its probability; what two units share is a correlation below 2**-32.

    Parameters
    ----------
    units
        Sets the shape (most rows first), dtype and device.
    generator
        Source of randomness.
    """

    def __init__(self, units: torch.Tensor, generator: torch.Generator | None):
        self.generator, self.level = generator, torch.empty_like(units)
        self.bits = torch.empty(-(-units.numel() // 4), dtype=torch.int64, device=units.device)

    def toss(self, p: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return 1 with probability ``p`` and 0 otherwise, in ``out`` or in memory that the next
        call uses again.
        """
        count = p.numel()
        bits = self.bits[: -(-count // 4)].random_(-(2**63), None, generator=self.generator)
        level = self.level[: len(p)].copy_(bits.view(torch.int16)[:count].view(p.shape))
        fraction = float(torch.rand((), generator=self.generator, device=p.device))
        level.sub_(p, alpha=65536)
        return torch.lt(level, -32768 - fraction, out=level if out is None else out)


class PersistentChains:
    """Gibbs chains that go on from step to step (persistent contrastive divergence).

    Parameters
    ----------
    v
        Start (n, D), in [0, 1].
    generator
        Source of randomness.

    Attributes
    ----------
    flip_rate
        Mean fraction of visible units that changed in the last call; ``stuck`` is true when it is
        below 1e-3.

    Raises
    ------
    ValueError
        If ``v`` is no matrix, not finite or outside [0, 1].

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.tensor([99.0]), torch.zeros(1))  # v is 1
    >>> v, h = PersistentChains(torch.zeros(3, 1)).advance(rbm)
    >>> v.mT
    tensor([[1., 1., 1.]])
    """

    def __init__(self, v: torch.Tensor, *, generator: torch.Generator | None = None):
        self.v = _checks.unit(_checks.matrix(v, "v"), "v").clone()
        self.generator, self.flip_rate = generator, 1.0

    @property
    def stuck(self) -> bool:
        """Whether the chains have practically stopped to move."""
        return self.flip_rate < 1e-3

    def advance(self, rbm: RBM, steps: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Move all chains by ``steps`` sweeps and return ``(v, h)``, binary."""
        v, h = rbm.gibbs(self.v, steps, generator=self.generator)
        self.flip_rate = float((v != self.v).double().mean())
        self.v = v
        return v, h

    def gradient(self, rbm: RBM, v: torch.Tensor, steps: int = 1) -> torch.Tensor:
        """Return the estimate of ``rbm.gradient(v)`` after moving the chains, (P,).

        Raises
        ------
        Divergence
            If the chains are stuck: fewer than one unit in 1,000 changed.
        """
        model, _ = self.advance(rbm, steps)
        if self.stuck:
            raise Divergence(
                f"persistent chains are stuck: {self.flip_rate:.2g} of the visible units "
                f"changed in {steps} sweeps "
                f"(largest weight {float(rbm.W.abs().max()):.3g}); restart them from data, "
                "lower the learning rate "
                "or add weight decay"
            )
        return rbm.contrast(v, model)
