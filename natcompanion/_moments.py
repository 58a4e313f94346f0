r"""Mean and covariance of what a layer is fed: accumulated in float64, merged over batches and
processes.
"""

from dataclasses import dataclass

import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion import _distributed


def first(args: tuple, kwargs: dict) -> torch.Tensor:
    """Return the input of a layer from the arguments of its call, however it was named."""
    return args[0] if args else next(iter(kwargs.values()))


def rows(module: nn.Module, h: torch.Tensor) -> torch.Tensor:
    """Return the input of a linear or convolutional layer as rows (n, features); pixels count as
    samples.
    """
    if getattr(module, "kernel_size", None) is None:
        return h.reshape(-1, h.shape[-1])
    return h.movedim(-3, -1).reshape(-1, h.shape[-3])


LARGE = 256
"""Matrices of so many rows are looked at before they are multiplied or decomposed as a whole."""


@dataclass
class Moments:
    r"""Count, mean and scatter :math:`\sum_i (h_i - \mu)(h_i - \mu)^\top` of samples, in float64.

    Centred sums lose no digits on samples far from 0, and a constant feature has a variance of
    exactly 0.
    """

    count: float
    mean: torch.Tensor
    scatter: torch.Tensor

    @classmethod
    def of(cls, samples: torch.Tensor) -> "Moments":
        """Return the moments of rows (n, d)."""
        if not len(samples):
            raise ValueError(
                "statistics: expected at least one example, got rows of shape "
                f"{tuple(samples.shape)}"
            )
        wide = samples.detach().to(torch.float64, copy=True)
        mean = wide.mean(0)
        return cls(float(len(wide)), mean, gram(wide.sub_(mean)))

    def merged(self, other: "Moments", decay: float = 1.0) -> "Moments":
        """Return the moments of both sets of samples, those of the first with weight ``decay``."""
        own, total = decay * self.count, decay * self.count + other.count
        gap = other.mean - self.mean
        between = torch.outer(gap, gap) * (own * other.count / total)
        return Moments(
            total,
            self.mean + gap * (other.count / total),
            decay * self.scatter + other.scatter + between,
        )

    def reduced(self) -> "Moments":
        """Return the moments of the samples of all processes."""
        if _distributed.world_size() == 1:
            return self
        count, mean = self.mean.new_tensor([self.count]), self.mean * self.count
        _distributed.reduce_sum([count, mean])
        mean = mean / count
        gap = self.mean - mean
        scatter = self.scatter + self.count * torch.outer(gap, gap)
        _distributed.reduce_sum([scatter])
        return Moments(float(count), mean, scatter)

    def covariance(self) -> torch.Tensor:
        """Return the covariance, divisor n."""
        return self.scatter / self.count

    def second_moment(self) -> torch.Tensor:
        """Return the mean of the outer products, divisor n."""
        return self.covariance() + torch.outer(self.mean, self.mean)

    def checked(self, name: str) -> "Moments":
        """Return the moments if they are finite."""
        if not bool(torch.isfinite(self.scatter.sum() + self.mean.sum())):
            check.floating(self.mean, f"statistics of {name}")
            check.floating(self.scatter, f"statistics of {name}")
        return self


def gram(x: torch.Tensor, blocks: int = 8) -> torch.Tensor:
    """Return ``x.mT @ x``; of wide matrices only the upper blocks of columns are multiplied, and
    then mirrored.
    """
    d = x.shape[1]
    if d < LARGE:
        return x.mT @ x
    out, width = x.new_empty(d, d), -(-d // blocks)
    for start in range(0, d, width):
        stop = min(start + width, d)
        out[start:stop, start:] = x[:, start:stop].mT @ x[:, start:]
        out[stop:, start:stop] = out[start:stop, stop:].mT
    return out


def damped_inverse(
    sigma: torch.Tensor, eps: float, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    r"""Return :math:`(\Sigma + \epsilon I)^{-1}` of a positive semi-definite float64 matrix, for
    ``eps`` > 0.

    By a Cholesky factor; if rounding has made the matrix indefinite, by its eigenvalues with the
    negative ones set to 0. The factor is inverted in ``dtype`` if its condition, the root of that
    of the matrix, leaves digits.
    """
    shifted = sigma.clone()
    shifted.diagonal().add_(eps)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    if not int(failed):
        scale = factor.diagonal()
        narrow = float(scale.min()) > 1e-3 * float(scale.max())
        return torch.cholesky_inverse(factor.to(dtype) if narrow else factor).to(dtype)
    values, vectors = check.semidefinite_eigh(sigma, "covariance", torch.float32)
    return ((vectors / (values + eps)) @ vectors.mT).to(dtype)


def eigenpairs(sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return eigenvalues (r,) and orthonormal eigenvectors (d, r) of a positive semi-definite
    float64 matrix (d, d): all of them, or those of the range alone if it is large and its rank is
    at most d / 2, as where it was made of fewer samples than it has rows.

    The range is that of the matrix times d / 2 random columns. Whether nothing is missed, the trace
    says: it is the sum of all eigenvalues, none of which is negative.
    """
    d = len(sigma)
    if d >= LARGE:
        columns = torch.randn(
            d, d // 2, dtype=sigma.dtype, generator=torch.Generator().manual_seed(0)
        )
        basis = torch.linalg.qr(sigma @ columns.to(sigma.device)).Q
        inside = basis.mT @ sigma @ basis
        rounding, trace = d * torch.finfo(sigma.dtype).eps, float(sigma.trace())
        if trace - float(inside.trace()) <= rounding * trace:
            values, vectors = torch.linalg.eigh(inside)
            kept = values > rounding * values[-1]
            return values[kept], basis @ vectors[:, kept]
    return torch.linalg.eigh(sigma)
