"""Training by contrastive divergence, and persistent chains, with divergence and stuck chains named."""

import torch

from natcompanion import _checks
from natcompanion.adaptive import Divergence
from natcompanion.boltzmann.rbm import RBM

WEIGHT_LIMIT = 1e3
"""Largest absolute weight that training accepts: beyond it every unit is frozen."""


def check_weights(W: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> RBM:
    """Return the machine of these parameters in ``dtype``.

    Raises
    ------
    Divergence
        If a number is not finite or a weight is larger than ``WEIGHT_LIMIT``.
    """
    largest = float(W.abs().max())
    if not (largest <= WEIGHT_LIMIT and bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())):
        raise Divergence(
            f"weights of the RBM have run away: largest absolute weight {largest:.3g}, limit {WEIGHT_LIMIT:g}; "
            "lower the learning rate or add weight decay"
        )
    return RBM(W.to(dtype), a.to(dtype), b.to(dtype))


def cd_epoch(
    rbm: RBM,
    data: torch.Tensor,
    *,
    lr: float = 0.1,
    batch_size: int = 100,
    k: int = 1,
    weight_decay: float = 0.0,
    mean_field: bool = False,
    generator: torch.Generator | None = None,
) -> RBM:
    """Return the machine after one pass of CD-k over the shuffled rows of ``data`` (n, D).

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
    weight_decay
        Subtract ``lr * weight_decay * W`` at each step.
    mean_field
        Reconstruct with the visible probabilities instead of samples: less noise and fewer random numbers, and no
        longer the expectation of a Gibbs chain. Usual for grey images.
    generator
        Source of randomness.

    Raises
    ------
    Divergence
        If the weights have run away at the end.
    ValueError
        If the data are not (n, D), not finite or outside [0, 1], or ``batch_size`` or ``k`` is below 1.
    """
    _checks.non_negative(lr, "lr"), _checks.non_negative(weight_decay, "weight_decay")
    if batch_size < 1 or k < 1:
        raise ValueError(f"batch_size and k: expected at least 1, got {batch_size} and {k}")
    dtype = rbm.W.dtype
    W, a, b = (
        x.float() if dtype in (torch.float16, torch.bfloat16) else x.clone() for x in (rbm.W, rbm.a, rbm.b)
    )
    data = rbm.check_visible(data).to(W.dtype)
    for rows in torch.randperm(len(data), generator=generator).split(batch_size):
        v = data.index_select(0, rows)
        q = torch.addmm(b, v, W).sigmoid_()
        v_model, q_model = v, q
        for _ in range(k):
            h = torch.rand(q.shape, generator=generator, dtype=W.dtype).lt_(q_model)
            v_model = torch.addmm(a, h, W.mT).sigmoid_()
            if not mean_field:
                v_model = torch.rand(v.shape, generator=generator, dtype=W.dtype).lt_(v_model)
            q_model = torch.addmm(b, v_model, W).sigmoid_()
        rate = lr / len(v)
        W.mul_(1 - lr * weight_decay).addmm_(v.mT, q, alpha=rate).addmm_(v_model.mT, q_model, alpha=-rate)
        a.add_((v - v_model).sum(0), alpha=rate)
        b.add_((q - q_model).sum(0), alpha=rate)
    return check_weights(W, a, b, dtype)


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
        Mean fraction of visible units that changed in the last call; ``stuck`` is true when it is below 1e-3.
    """

    def __init__(self, v: torch.Tensor, *, generator: torch.Generator | None = None):
        self.v, self.generator, self.flip_rate = _checks.matrix(v, "v").clone(), generator, 1.0

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
                f"persistent chains are stuck: {self.flip_rate:.2g} of the visible units changed in {steps} sweeps "
                f"(largest weight {float(rbm.W.abs().max()):.3g}); restart them from data, lower the learning rate "
                "or add weight decay"
            )
        return rbm.contrast(v, model)
